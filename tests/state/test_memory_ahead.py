"""Memory of pages that is made ready before programs reach it: which parts, and who ends it."""

import mmap
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ondie.emu import service as service_module
from ondie.emu.drive import Drive
from ondie.emu.nand.memory_ahead import MemoryAhead
from ondie.emu.nand.store_folder import SEGMENT_BYTES
from ondie.emu.nvme.command import COMMAND, READ, WRITE
from ondie.emu.service import Service
from ondie.emu.units import InputError
from ondie.kernels import native
from tests.state.small import config

LARGE = 1 << 21
PAGE = 16 << 10
CFG = config(
    flash__page="16 KiB", flash__channels=1, flash__dies_per_channel=1, flash__planes_per_die=1,
    flash__blocks_per_plane=12, flash__pages_per_block=1024, frontend__max_transfer="1 MiB",
    host__io_block="16 KiB",
)  # fmt: skip


def parts(drive: Drive) -> set[int]:
    """Large pages, as addresses, behind those that programs have reached in their segment."""
    store, found = drive.store, set()
    assert store is not None
    for number in store.segments_on_disk():
        records = store.records(number)
        start = int(store.page_at[number])
        for at in np.flatnonzero(records["written"]).tolist():
            first = (start + at * PAGE) // LARGE * LARGE
            begins = start + at * PAGE - first < PAGE
            if begins and first + LARGE < start + SEGMENT_BYTES:
                found.add(first + LARGE)
    return found


def in_use(address: int) -> bool:
    """Return True if the system has given memory to the page at ``address``."""
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(address // mmap.PAGESIZE * 8)
        return int.from_bytes(pagemap.read(8), "little") >> 62 != 0


def wait_for(ahead: MemoryAhead, count: int) -> None:
    end = time.monotonic() + 30
    while ahead.ready < count and time.monotonic() < end:
        time.sleep(0.001)


def test_the_next_part_is_ready() -> None:
    """Two segments: each part behind the first page of a large page, and none past a segment."""
    drive = Drive(CFG, payload=True)
    with MemoryAhead() as ahead:
        drive.prepare_memory(ahead)
        for at in range(80):
            drive.write(at << 20, np.full(1 << 20, at + 1, np.uint8))
        drive.flush()
        wanted = parts(drive)
        wait_for(ahead, len(wanted))
        assert ahead.ready == len(wanted) > SEGMENT_BYTES // LARGE - 1
        assert drive.store is not None and len(drive.store.segments_on_disk()) == 2
        assert all(in_use(address) and in_use(address + LARGE - 1) for address in wanted)
        start = int(drive.store.page_at[1])
        last = max(each for each in wanted if start <= each < start + SEGMENT_BYTES)
        assert last + 2 * LARGE < start + SEGMENT_BYTES
        assert not in_use(last + 2 * LARGE)  # no more than the next one
        drive.prepare_memory(None)
        drive.write(80 << 20, np.full(4 << 20, 9, np.uint8)[: 1 << 20])
        assert ahead.ready == len(wanted)
    assert all((drive.read(at << 20, 1 << 20) == at + 1).all() for at in range(80))


def test_a_service_has_it_and_ends_it() -> None:
    def threads() -> int:
        return sum(each.name == "ondie memory" for each in threading.enumerate())

    drive, before = Drive(CFG, payload=True), threads()
    commands = np.zeros(8, COMMAND)
    commands["op"], commands["size"], commands["data"] = WRITE, 1 << 20, np.arange(8) << 20
    commands["offset"] = np.arange(8) << 20
    with Service(drive) as served:
        assert not served.submit(commands, np.ones(8 << 20, np.uint8)).result()["status"].any()
        assert threads() == before + 1
        end = time.monotonic() + 30
        wanted = served.call(lambda: parts(drive)).result()
        while not all(map(in_use, wanted)) and time.monotonic() < end:
            time.sleep(0.001)
        assert wanted and all(map(in_use, wanted))
    assert threads() == before
    drive.write(9 << 20, np.full(1 << 20, 3, np.uint8))  # nobody makes memory ready any more
    assert (drive.read(9 << 20, 1 << 20) == 3).all() and (drive.read(0, 1 << 20) == 1).all()


def test_a_service_that_cannot_have_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients get the error instead of waiting, and the drive is free."""

    def fails() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(service_module, "MemoryAhead", fails)
    drive, commands = Drive(CFG, payload=True), np.zeros(1, COMMAND)
    commands["op"], commands["size"], commands["data"] = READ, PAGE, -1
    with Service(drive) as served:
        with pytest.raises((RuntimeError, InputError), match="can't start new thread"):
            served.submit(commands).result(30)
    assert drive.owner is None


LATE = """
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#include "ondie.h"
static ondie_ahead ahead;
static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); }
uint64_t late_rung(const ondie_doorbell *bell) { nap(); return ondie_rung(bell); }
int late_await(ondie_doorbell *bell, uint64_t seen, int64_t poll_ns, int64_t last_ns,
               int64_t deadline_ns, const ondie_doorbell *other) {
    nap();
    return ondie_await(bell, seen, poll_ns, last_ns, deadline_ns, other);
}
static void *run(void *none) { ondie_run_ahead(&ahead); return none; }
int main(void) {
    for (int at = 0; at < 6; at++) { /* within each nap, and behind them */
        pthread_t thread;
        ahead = (ondie_ahead){.closing = 0};
        pthread_create(&thread, NULL, run, NULL);
        nanosleep(&(struct timespec){.tv_nsec = 10000000L * at}, NULL);
        ondie_close_ahead(&ahead);
        pthread_join(thread, NULL);
    }
    return 0;
}
"""
"""Ends a thread that is late: 20 ms before each look at the doorbell, and before each wait."""


def test_the_end_is_never_missed(root: Path, tmp_path: Path) -> None:
    """Whenever it comes, also between two looks of the thread."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    (tmp_path / "late.c").write_text(LATE)
    csrc = root / "csrc"
    flags = [compiler, "-std=gnu11", "-O1", f"-I{csrc}"]
    late = ["-Dondie_rung=late_rung", "-Dondie_await=late_await"]
    for command in (
        [*flags, *late, "-c", csrc / "memory_ahead.c", "-o", tmp_path / "ahead.o"],
        [*flags, tmp_path / "late.c", tmp_path / "ahead.o", csrc / "doorbell.c", "-pthread",
         "-o", tmp_path / "late"],
    ):  # fmt: skip
        subprocess.run(command, check=True, timeout=60)
    subprocess.run([tmp_path / "late"], check=True, timeout=10)


class NoThread(MemoryAhead):
    """Parts that nobody makes ready."""

    def __init__(self, added: int) -> None:
        self.queue = native.ffi.new("ondie_ahead *")
        self.queue.added = added


@pytest.mark.parametrize("room", [0, 1, 2])
def test_more_parts_than_room(room: int) -> None:
    """Parts that find no room are left out, and the pages hold their bytes all the same."""
    drive, most = Drive(CFG, payload=True), native.lib.ONDIE_AHEAD
    ahead = NoThread(most - room)
    drive.prepare_memory(ahead)
    drive.write(0, np.full(1 << 20, 5, np.uint8))
    drive.write(4 << 20, np.full(1 << 20, 6, np.uint8))
    drive.write(8 << 20, np.full(1 << 20, 7, np.uint8))
    drive.flush()
    assert len(parts(drive)) == 2
    assert ahead.queue.added == most and (ahead.queue.part[most - 1] != 0) == (room > 0)
    assert (drive.read(0, 1 << 20) == 5).all() and (drive.read(8 << 20, 1 << 20) == 7).all()
