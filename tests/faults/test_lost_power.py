"""What a power cut must not lose, in corners that histories of commands hardly reach.

Each test is a case in which data were lost, came back, or the drive could not be used any more.
"""

import errno
import mmap
import os
from dataclasses import replace

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.engine.run import build
from ondie.emu.engine.run.power_system import Start
from ondie.emu.nand import sparse_file
from ondie.emu.nand.page_store import OOB
from ondie.emu.nand.store_check import check_store
from ondie.emu.nand.timing import PROGRAM
from ondie.emu.nvme.command import COMMAND, FLUSH, TRIM, WRITE
from ondie.emu.nvme.status import Condition, Status
from ondie.emu.units import InputError
from tests.state import small
from tests.state.test_power_on import history, some, versions


@pytest.fixture(autouse=True)
def few_transactions(monkeypatch):
    monkeypatch.setattr(build, "BUDGET", 1024)
    monkeypatch.setattr(build, "ROWS", 1 << 10)


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def one(drive, op, unit, data=0):
    command = np.zeros(1, COMMAND)
    command["op"], command["offset"], command["data"] = op, unit * drive.unit_bytes, data
    command["size"], command["arrival"] = drive.unit_bytes, drive.earliest_arrival
    if op == FLUSH:
        command["size"] = command["offset"] = 0
    drive.submit(command)
    drive.run()
    return Status(int(drive.completions()["status"][0]))


def test_a_torn_program_has_the_contents_of_its_own_slot():
    """A unit that was trimmed and written again is in another slot of the cache."""
    for seed in range(40):
        held = versions("write back", seed)
        drive, size = held.drive, held.drive.unit_bytes
        for op in (WRITE, TRIM):
            for unit in (0, 1):
                held.run([(op, unit * size, size, 0)])
        held.run([(FLUSH, 0, 0, 0)])
        held.run([(WRITE, 0, size, 0)])
        chosen = held.batch([(FLUSH, 0, 0, 0)])
        for _ in range(60):
            drive.run_until(max_events=1)
            programs = drive.arrays.die["arr"]
            if any(tid >= 0 and drive.arrays.txn["op"][tid] == PROGRAM for tid in programs):
                break
        drive.power_cut(0)
        held.settle(chosen, drive.completions())
        drive.power_on()
        held.look()


def test_a_cut_while_the_next_event_is_due():
    """Between two events of one instant."""
    held = versions("plain", 1050)
    for _ in history(held, np.random.default_rng((1050, 17)), 30):
        pass
    assert held.cuts > 5


def test_a_drive_without_room_stays_read_only_after_a_cut(tmp_path, monkeypatch):
    drive = Drive(small.config(), True, store=tmp_path / "store")
    drive.buffer = np.ones((1, small.PAGE), np.uint8)
    assert one(drive, WRITE, 0) == Status.SUCCESS
    monkeypatch.setattr(sparse_file, "reserve", no_room)
    while one(drive, WRITE, 1) == Status.SUCCESS:
        pass
    drive.power_cut(0)
    drive.power_on()
    assert drive.condition is Condition.READ_ONLY and "no room" in drive.why
    assert one(drive, WRITE, 2) == Status.NAMESPACE_WRITE_PROTECTED
    assert one(drive, FLUSH, 0, -1) == Status.WRITE_FAULT


def test_a_full_file_system_at_the_start_leaves_a_drive_that_reads(tmp_path, monkeypatch, rng):
    cfg = small.config()
    data = rng.integers(0, 256, (40, small.PAGE), np.uint8)
    drive = Drive(cfg, True, store=tmp_path / "store")
    for unit, each in enumerate(data):
        drive.write(unit * small.PAGE, each)
    drive.store.close()
    monkeypatch.setattr(sparse_file, "reserve", no_room)
    monkeypatch.setattr("ondie.emu.nand.segment_files.RUN_BYTES", 1)
    drive = Drive(cfg, True, store=tmp_path / "store")
    assert drive.started is Start.RECOVERY
    for unit, each in enumerate(data):
        assert (drive.read(unit * small.PAGE, small.PAGE) == each).all()
    drive.close()
    monkeypatch.undo()
    drive = Drive(cfg, True, store=tmp_path / "store")
    assert drive.condition is Condition.ONLINE
    assert (drive.read(0, small.PAGE) == data[0]).all()


def test_a_failed_recovery_leaves_nothing_that_can_be_closed(tmp_path):
    """A damaged trim map: the drive stays off, and no checkpoint is made of half its tables."""
    drive = Drive(small.config(), True, store=tmp_path / "store")
    drive.write(0, np.ones(small.PAGE, np.uint8))
    drive.flush()
    drive.buffer = np.ones((1, small.PAGE), np.uint8)
    assert one(drive, TRIM, 0, -1) == Status.SUCCESS
    drive.flush()
    for _ in range(40):  # away from the newest pages of its block
        drive.write(small.PAGE, np.ones(small.PAGE, np.uint8))
    ppn = int(drive.arrays.l2p[0, drive.units]) - 1
    for other in range(ppn + 1, ppn + 16):
        if not drive.store.is_written(other) and other % 16:
            drive.store.spoil(other)
    drive.store.flip(ppn, 5)
    drive.power_cut(0)
    with pytest.raises(InputError, match="trim map 0"):
        drive.power_on()
    assert drive.condition is Condition.OFFLINE
    drive.close()
    with pytest.raises(InputError, match="trim map 0"):
        Drive(small.config(), True, store=tmp_path / "store")


def test_cached_bytes_survive_a_stop_after_the_host_has_swapped(tmp_path, rng):
    cfg = small.config(cache__mode="write_back", cache__capacity="128 KiB")
    drive = Drive(cfg, True, store=tmp_path / "store")
    data = rng.integers(0, 256, (200, small.PAGE), np.uint8)
    for unit, each in enumerate(data):
        drive.write(unit * small.PAGE, each)
    child = os.fork()
    if child == 0:  # its page tables are empty where memory is shared
        drive.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    drive.store.files.folder.close()
    drive = Drive(cfg, True, store=tmp_path / "store")
    assert drive.started is Start.CHECKPOINT
    for unit, each in enumerate(data):
        assert (drive.read(unit * small.PAGE, small.PAGE) == each).all()


def test_many_completions_with_a_store_error(tmp_path, monkeypatch):
    """More than one part of the list of completions."""
    drive = Drive(small.config(), True, store=tmp_path / "store")
    drive.buffer = np.ones((1, small.PAGE), np.uint8)
    monkeypatch.setattr(sparse_file, "reserve", no_room)
    commands = np.zeros(9000, COMMAND)
    commands["op"], commands["size"] = WRITE, small.PAGE
    commands["offset"] = np.arange(9000) % drive.units * small.PAGE
    commands["arrival"] = drive.earliest_arrival
    drive.submit(commands)
    drive.run()
    status = drive.completions()["status"]
    assert len(status) == 9000 and (status != Status.SUCCESS).all()


def test_a_failed_sync_before_an_erase_makes_the_drive_read_only(tmp_path, monkeypatch):
    drive = Drive(small.config(), True, store=tmp_path / "store", durability="host")
    drive.buffer = np.ones((1, small.PAGE), np.uint8)

    def broken(handle):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    found = {one(drive, WRITE, unit % drive.units) for unit in range(1200)}
    assert drive.condition is Condition.READ_ONLY and "cannot be synced" in drive.why
    assert found <= {Status.SUCCESS, Status.WRITE_FAULT, Status.NAMESPACE_WRITE_PROTECTED}


def test_the_depth_is_that_of_this_start(tmp_path):
    for depth in (16, 1):
        drive = Drive(small.config(), True, store=tmp_path / "store", queue_depth=depth)
        assert drive.arrays.pair["depth"].tolist() == [depth]
        drive.write(0, np.ones(small.PAGE, np.uint8))
        drive.close()


def test_a_clean_store_without_its_segments_is_refused(tmp_path):
    drive = Drive(small.config(), True, store=tmp_path / "store")
    drive.write(0, np.ones(small.PAGE, np.uint8))
    drive.close()
    for path in (tmp_path / "store").glob("segment-*"):
        path.unlink()
    with pytest.raises(InputError, match="has 0 segments; its superblock states 1"):
        Drive(small.config(), True, store=tmp_path / "store")


def test_a_missing_segment_fails_its_reads_only(tmp_path):
    cfg = small.config(flash__blocks_per_plane=2048, flash__pages_per_block=64, flash__page="4 KiB")
    drive = Drive(cfg, True, store=tmp_path / "store")
    size = drive.unit_bytes
    for unit in range(64):
        drive.write(unit * size, np.full(size, unit + 1, np.uint8))
    segments = drive.arrays.l2p[0, :64].astype(int) // drive.store.segment_pages
    assert len(set(segments.tolist())) > 1
    drive.close()
    (tmp_path / "store" / f"segment-{segments[0]}.pages").unlink()
    (tmp_path / "store" / f"segment-{segments[0]}.pages").symlink_to("nowhere")
    drive = Drive(cfg, True, store=tmp_path / "store")
    drive.buffer = np.zeros((1, size), np.uint8)
    for unit in range(64):
        lost = segments[unit] == segments[0]
        assert one(drive, 0, unit) == (Status.UNRECOVERED_READ_ERROR if lost else Status.SUCCESS)
        assert lost or (drive.buffer == unit + 1).all()
    assert drive.condition is Condition.ONLINE and "damaged" in drive.why


def test_what_a_host_loses_after_the_last_sync(tmp_path):
    """Durability "host": records may reach the disk before the bytes of their pages. Then the
    version of the last FLUSH is found, however many pages were programmed since."""
    cfg = small.config(ftl__over_provisioning=0.6)
    drive = Drive(cfg, True, store=tmp_path / "store", durability="host")
    size, count = drive.unit_bytes, 60
    for unit in range(count):
        drive.write(unit * size, np.full(size, 1, np.uint8))
    drive.flush()
    for unit in range(count):
        drive.write(unit * size, np.full(size, 2, np.uint8))
    newer = drive.arrays.l2p[0, :count].astype(int) - 1
    drive.store.close()
    path = tmp_path / "store" / "segment-0.pages"
    raw = bytearray(path.read_bytes())
    for ppn in newer.tolist():
        raw[ppn * size : (ppn + 1) * size] = bytes(size)
    path.write_bytes(raw)
    drive = Drive(cfg, True, store=tmp_path / "store", durability="host")
    for unit in range(count):
        assert (drive.read(unit * size, size) == 1).all()


def test_a_later_process_syncs_what_a_killed_one_has_written(tmp_path, monkeypatch):
    drive = Drive(small.config(), True, store=tmp_path / "store", durability="host")
    drive.write(0, np.ones(small.PAGE, np.uint8))
    drive.store.close()
    synced, sync = [], os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda handle: (synced.append(handle), sync(handle)))
    drive = Drive(small.config(), True, store=tmp_path / "store")
    assert drive.store.files.folder.durability == "host"  # that of the store
    drive.flush()
    assert len(synced) >= 2


def test_whole_records_that_are_damaged_are_reported(tmp_path):
    drive = Drive(small.config(), True, store=tmp_path / "store")
    for unit in range(100):
        drive.write(unit * small.PAGE, np.ones(small.PAGE, np.uint8))
    ppns = drive.arrays.l2p[0, :2].astype(int) - 1
    drive.store.close()
    path = tmp_path / "store" / "segment-0.oob"
    raw = bytearray(path.read_bytes())
    for ppn, filling in zip(ppns.tolist(), (b"\xff", b"\xa7"), strict=True):
        raw[ppn * OOB.itemsize : (ppn + 1) * OOB.itemsize] = filling * OOB.itemsize
    path.write_bytes(raw)
    drive = Drive(small.config(), True, store=tmp_path / "store")
    assert drive.recovered.damaged == sorted(ppns.tolist())
    drive.store.close()
    assert check_store(tmp_path / "store").damaged_records == 2


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["plain", "word lines", "write back"])
def test_many_cuts_of_a_full_drive(name, counts):
    """A cut costs a stripe of each open block, and these have few. Whatever happens, commands end
    with a status, also a FLUSH for whose trim maps no page is free, and reads are right."""
    for seed in range(counts(2, 8)):
        held = versions(name, seed)
        drive, rng = held.drive, np.random.default_rng((seed, 99))
        size = drive.unit_bytes
        for first in range(0, drive.units - 8, 8):
            held.run([(WRITE, first * size, 8 * size, 0)])
        drive.strict, drive._options = False, replace(drive._options, strict=False)
        for _ in range(25):
            chosen = held.batch(some(rng, drive), queues=4)
            drive.power_cut(int(rng.integers(20, 400)))
            done = drive.completions()
            held.settle(chosen, done[done["status"] == Status.SUCCESS])
            drive.power_on()
            held.look()
        for op, first, data in ((WRITE, 0, 0), (TRIM, 0, -1), (FLUSH, 0, -1), (WRITE, 9, 0)):
            assert one(drive, op, first, data) in (
                Status.SUCCESS, Status.CAPACITY_EXCEEDED, Status.WRITE_FAULT,
            )  # fmt: skip
            assert drive.defect is None, drive.why


def test_memory_of_pages_is_private():
    """touched_parts sees only private memory as it is."""
    from ondie.emu.nand.page_store import anonymous

    memory = anonymous(1 << 16)
    child = os.fork()
    if child == 0:
        memory[0] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert memory[0] == 0 and isinstance(memory, mmap.mmap)
