"""Does a store keep its durability, and does it change only when it is asked to and closed?

What hangs on it: which pages a recovery reads whole, and what is synced before a FLUSH is reported.
"""

import os

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.nand.store_check import describe_store
from ondie.emu.nand.store_folder import SUPERBLOCK, StoreFolder
from ondie.emu.units import InputError
from tests.smoke.commands import here, refused
from tests.state import small


@pytest.fixture(params=["process", "host"])
def held(request, tmp_path):
    """(folder, its durability, the other one): a store with a page, closed."""
    with Drive(small.config(), True, store=tmp_path / "s", durability=request.param) as drive:
        drive.write(0, np.ones(small.PAGE, np.uint8))
    return tmp_path / "s", request.param, "host" if request.param == "process" else "process"


@pytest.mark.one_in(5)
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("read_only", [True, False])
def test_another_durability_is_refused(held, closed, read_only):
    folder, durability, other = held
    if not closed:
        drive = Drive(small.config(), True, store=folder)
        drive.write(0, np.ones(small.PAGE, np.uint8))
        drive.store.close()
    before = (folder / SUPERBLOCK).read_bytes()
    with pytest.raises(InputError) as caught:
        Drive(small.config(), True, store=folder, durability=other, read_only=read_only)
    assert str(caught.value) == (
        f"{folder}: has durability {durability}, not {other}; open it without durability, or "
        f"change it with `ondie store durability {folder} {other}`"
    )
    assert (folder / SUPERBLOCK).read_bytes() == before
    for same in (None, durability):
        with Drive(small.config(), True, store=folder, durability=same) as drive:
            assert drive.store.files.folder.durability == durability
            drive.write(0, np.full(small.PAGE, 2, np.uint8))
            assert describe_store(folder)["durability"] == durability


def test_it_changes_on_request(held, capsys, monkeypatch):
    """All files are synced first, the superblock last. The drive then follows it."""
    folder, durability, other = held
    synced: list[str] = []
    real = os.fsync

    def fsync(handle):
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    outcome = here(capsys, "store", "durability", str(folder), other)
    assert outcome.code == 0
    assert f"has durability {other} now, and had {durability}" in " ".join(outcome.out.split())
    first = synced.index(SUPERBLOCK + ".new")
    assert {"segment-0.pages", "segment-0.oob", "checkpoint"} <= set(synced[:first])
    outcome = here(capsys, "store", "durability", str(folder), other)
    assert f"has durability {other}, as before" in " ".join(outcome.out.split())
    with Drive(small.config(), True, store=folder) as drive:
        assert drive.started.value == "checkpoint" and drive.read(0, small.PAGE).all()
        drive.flush()
        assert describe_store(folder)["durability"] == other


def test_it_does_not_change_before_recovery(held, capsys):
    """A store with "host" that was not closed must be read whole: as "process", it would not be."""
    folder, durability, other = held
    drive = Drive(small.config(), True, store=folder)
    drive.write(0, np.full(small.PAGE, 3, np.uint8))
    with pytest.raises(InputError, match="is in use"):
        StoreFolder.set_durability(folder, other)
    drive.store.close()
    refused(here(capsys, "store", "durability", str(folder), other), "was not closed")
    drive = Drive(small.config(), True, store=folder)
    every = drive.geometry.block_pages
    assert (drive.recovered.checked_stripes == every) == (durability == "host")
    drive.close()
    assert StoreFolder.set_durability(folder, other) == durability


def test_a_store_is_needed(tmp_path, capsys):
    refused(here(capsys, "store", "durability", str(tmp_path), "host"), "is not a store")
    refused(here(capsys, "store", "durability", str(tmp_path), "disk"), "process", "host")
