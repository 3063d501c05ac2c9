"""Does the load of vfio-user run commands that succeed, as many as it says?"""

import contextlib

import numpy as np
import pytest

from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nbd_load import READ, WRITE
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.vfio_load import VfioLoad
from ondie.emu.serve.vfio_user import VfioUserServer
from ondie.emu.units import InputError
from tests.state.written import config

UNIT = 4096
SMALL = {"flash__blocks_per_plane": 64, "frontend__max_transfer": "128 KiB"}


@contextlib.contextmanager
def memory(folder):
    """A server of memory; yields its drive and its path."""
    path = str(folder / "sock")
    drive = NvmeDrive(MemoryDrive(config(**SMALL), UNIT))
    server = VfioUserServer(drive, Listener(Address(path), "--x"))
    try:
        yield drive, path
    finally:
        server.close()
        drive.close()


@pytest.mark.parametrize("doorbells", ["memory", "registers"])
@pytest.mark.parametrize(("kind", "size"), [(READ, UNIT), (WRITE, UNIT), (READ, 16 << 10)])
def test_its_rate_is_that_of_the_controller(tmp_path, doorbells, kind, size):
    with memory(tmp_path) as (drive, path), contextlib.closing(VfioLoad(path, doorbells)) as load:
        assert load.size == drive.served.capacity and load.block == UNIT
        rate = load.rate(kind, size, 16, 0.05)
        counted = drive.shared.read_commands if kind == READ else drive.shared.write_commands
        assert counted >= 16 and 0.02 * rate <= counted <= 30 * rate
        assert load.messages >= 1 if doorbells == "registers" else load.messages < counted
        assert (load.waits(size, 5) > 0).all()


def test_every_place_is_written_before_with_what_lists_of_pages_name(tmp_path):
    with memory(tmp_path) as (drive, path), contextlib.closing(VfioLoad(path)) as load:
        pages = np.random.default_rng(1).integers(1, 256, (16, 128 << 10), np.uint8)
        load._entries_of(WRITE, 128 << 10, 16)
        for number, each in enumerate(pages):  # data, then its list of pages
            at = load._data + number * ((128 << 10) + UNIT)
            load._memory[at : at + len(each)] = each
        load.fill()
        whole = load.size // (128 << 10)
        assert whole >= 16 and drive.shared.write_commands == whole
        assert drive.served.mapped(0, whole * 32).all()
        store = drive.served._store[: whole * (128 << 10)].reshape(whole, -1)
        for each in store:  # of one of the 16 places in memory
            assert (pages == each).all(axis=1).any()


def test_a_command_that_fails(tmp_path):
    with memory(tmp_path) as (drive, path), contextlib.closing(VfioLoad(path)) as load:
        load.size *= 2
        with pytest.raises(InputError, match="a command completed with status 0x80"):
            load.rate(READ, UNIT, 16, 0.05)
        load.size = drive.served.capacity
        with pytest.raises(InputError, match="256 commands in flight: must be from 1 to 255"):
            load.rate(READ, UNIT, 256, 0.05)


def test_a_server_that_goes(tmp_path):
    with memory(tmp_path) as (_, path):
        load = VfioLoad(path, "registers")
    gone = "the connection to the server has ended"
    with contextlib.closing(load), pytest.raises(InputError, match=gone):
        load.rate(READ, UNIT, 1, 0.05)


def test_what_is_no_server(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        VfioLoad(str(tmp_path / "no"))
