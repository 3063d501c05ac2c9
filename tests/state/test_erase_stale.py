"""Does the erasure of old versions leave no old byte in memory or files, and all others as they
were, in every mode of cache and FTL, after any start, and beside other clients?"""

from pathlib import Path

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.ftl import page_map
from ondie.emu.nand import store_check
from ondie.emu.nvme.command import COMMAND, TRIM, WRITE
from ondie.emu.service import Service
from tests.state.test_service import MODES, SMALL
from tests.state.written import config

FILES = ("write back", "word lines", "mapping units")
PROTECTED = {"cache__power_loss_protection": "true", "cache__hold_up": "10 mJ"}
OLD, NEW = b"OLD!OLD!", b"new?new?"
SECTOR = 512


def occurrences(folder: Path) -> dict[str, int]:
    """Files of a store that hold old bytes, and how often."""
    found = {each.name: each.read_bytes().count(OLD) for each in folder.rglob("*")
             if each.is_file()}  # fmt: skip
    assert not folder.exists() or len(found) > 2
    return {name: count for name, count in found.items() if count}


def trims(drive: Drive, gone: list[int]) -> np.ndarray:
    out = np.zeros(len(gone), COMMAND)
    out["op"], out["size"], out["data"] = TRIM, drive.unit_bytes, -1
    out["offset"], out["arrival"] = np.array(gone) * drive.unit_bytes, drive.earliest_arrival
    return out


def in_memory(drive: Drive) -> int:
    """Occurrences of old bytes in the pages of a drive, and in the memory of its cache."""
    assert drive.store is not None
    pages = (drive.store.bytes_of(page) for page in range(drive.geometry.physical_pages))
    kept = [page for page in pages if page is not None]
    kept += [drive.moved.tables()[f"bytes {name}"] for name in ("cached", "flying")]
    return sum(each.tobytes().count(OLD) for each in kept)


def erase_and_check(drive: Drive, folder: Path, rng: np.random.Generator, most: int) -> set[int]:
    """Keep new bytes in up to ``most`` units; trim and erase all else. Return the kept units."""
    unit = drive.unit_bytes
    kept = set(rng.integers(drive.units, size=most).tolist())
    for at in sorted(kept):
        drive.write(at * unit, NEW * (unit // 8))
    drive.submit(trims(drive, [at for at in range(drive.units) if at not in kept]))
    drive.run()
    drive.flush()
    drive.erase_stale()
    drive.check()
    assert in_memory(drive) == 0
    assert occurrences(folder) == {}
    check_contents(drive, kept)
    return kept


def check_contents(drive: Drive, kept: set[int]) -> None:
    unit = drive.unit_bytes
    for at in range(drive.units):
        wanted = NEW * (unit // 8) if at in kept else bytes(unit)
        assert drive.read(at * unit, unit).tobytes() == wanted


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mode", MODES)
def test_no_old_byte_is_left(mode, tmp_path, counts):
    files = mode in FILES[: counts(1, 2)]
    drive = Drive(config(**(SMALL | MODES[mode])), payload=True, strict=True,
                  store=tmp_path / "store" if files else None)  # fmt: skip
    rng, unit = np.random.default_rng(3), drive.unit_bytes
    for at in rng.integers(drive.units, size=2 * drive.units).tolist():
        drive.write(at * unit, OLD * (unit // 8))
    assert in_memory(drive)
    erase_and_check(drive, tmp_path / "store", rng, drive.units // 4)
    drive.close()
    assert occurrences(tmp_path / "store") == {}


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("protected", "durability", "start"),
    [
        (False, "process", "new"),
        (False, "process", "closed"),
        (False, "host", "killed"),
        (True, "process", "closed"),
        (True, "process", "killed"),
        (True, "host", "closed"),
    ],
)
def test_no_file_holds_old_bytes(protected, durability, start, tmp_path, counts):
    """Also those of power-loss protection, and the checkpoint of an earlier stop and of the
    next."""
    folder = tmp_path / "store"
    for mode in FILES[: counts(1, 3)]:
        cfg = config(**(SMALL | MODES[mode] | (PROTECTED if protected else {})))
        here = folder / mode.replace(" ", "-")

        def opened(cfg=cfg, here=here):
            return Drive(cfg, payload=True, store=here, block_bytes=SECTOR, durability=durability)

        drive, rng = opened(), np.random.default_rng(7)
        unit = drive.unit_bytes
        for at in rng.permutation(drive.units).tolist():
            drive.write(at * unit, OLD * (unit // 8))
        for at in rng.integers(drive.units, size=drive.units // 2).tolist():
            drive.write(at * unit, OLD * (SECTOR // 8))
        if start == "killed":
            assert drive.store is not None
            drive.store.close()
        elif start == "closed":
            drive.close()
            assert "checkpoint" in occurrences(here)
        if start != "new":
            drive = opened()
        assert occurrences(here)
        kept = erase_and_check(drive, here, rng, 4)  # most entries of cache.pages stay
        drive.close()
        assert occurrences(here) == {}
        assert store_check.check_store(here).intact
        drive = opened()
        check_contents(drive, kept)
        drive.close()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("failures", ["program", "erase"])
def test_retired_blocks_hold_no_old_bytes(failures, tmp_path):
    """Nor do they after a recovery, which finds the same data."""
    share = {"program": 0.002, "erase": 0.1}[failures]
    changes = {f"ftl__{failures}_failures": share, "flash__blocks_per_plane": 40,
               "ftl__erase": "collected"}  # fmt: skip
    cfg, folder = config(**(SMALL | MODES["write back"] | changes)), tmp_path / "store"
    drive = Drive(cfg, payload=True, store=folder, block_bytes=SECTOR)
    rng = np.random.default_rng(1)
    unit = drive.unit_bytes
    for at in rng.integers(drive.units, size=3 * drive.units).tolist():
        drive.write(at * unit, OLD * (unit // 8))
    assert (drive.arrays.block["state"] == page_map.BAD).any()
    kept = erase_and_check(drive, folder, rng, drive.units // 4)
    assert drive.store is not None
    drive.store.close()  # as a kill does
    assert store_check.check_store(folder).intact
    drive = Drive(cfg, payload=True, store=folder, block_bytes=SECTOR)
    check_contents(drive, kept)
    drive.close()
    assert occurrences(folder) == {}


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_commands_in_flight_complete_first(clock):
    """Those of other clients of a service, and their completions are delivered."""
    drive = Drive(config(**(SMALL | MODES["write back"])), payload=True)
    unit, memory = drive.unit_bytes, np.frombuffer(NEW * (drive.unit_bytes // 8), np.uint8).copy()
    writes = np.zeros(drive.units, COMMAND)
    writes["op"], writes["size"] = WRITE, unit
    writes["offset"] = np.arange(drive.units) * unit
    with Service(drive, clock) as service:
        left = []

        def erase() -> None:
            left.append(drive.outstanding)
            drive.erase_stale()
            left.append(drive.outstanding)

        done = []
        while not (left and left[0]):
            left.clear()
            done += [service.submit(writes, memory) for _ in range(3)]
            service.call(erase).result(60)
        assert left[0] > left[1] == 0
        done.append(service.submit(writes, memory))
        for each in done:
            found = each.result(60)
            assert len(found) == len(writes)
            assert not found["status"].any()
    check_contents(drive, set(range(drive.units)))
