"""What knowing a page's place costs: a hit nothing, a miss the reading of a translation page before
its own, and its writing back the die's time later. Each is blocked one picosecond early.

One die of two planes; one translation page tells of all pages. A cache of 2 bytes holds one entry.
"""

import pytest

from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.core import stages as s
from ondie.emu.nvme import command as queues
from tests.timing import harness as h
from tests.timing.test_table import program_ps

READ_PS = 18_296 * h.NS
"""An NVMe read of one page (test_table.py)."""
MISS = h.COMMAND + h.READ + h.BUS + h.DECODE + h.DRAM
"""The translation page: command 0.1 + tR 10 + channel 4.096 + decoder 1 + DRAM once 0.5."""


def bench(entries=1, pages=8, **changes):
    out = h.Bench(ftl__map_cache=f"{2 * entries} B", **changes)
    out.system.fill(0, 0, pages)
    return out


def count(b, which):
    return int(b.arrays.count[0, which])


def test_miss_then_hit():
    """15.696 us before the read that missed; nothing before one that hits."""
    assert MISS == 15_696 * h.NS
    b = bench()
    b.assert_ready_at(b.nvme(queues.READ, 0), READ_PS + MISS)
    start = b.now
    b.assert_ready_at(b.nvme(queues.READ, 0), start + READ_PS)
    assert count(b, stats.MAP_MISSES) == 1 and count(b, stats.MAP_HITS) == 1


def test_every_miss_reads():
    """Entries are cached, not pages: the next page's entry is read from the same translation
    page."""
    b = bench()
    b.assert_ready_at(b.nvme(queues.READ, 0), READ_PS + MISS)
    start = b.now
    b.assert_ready_at(b.nvme(queues.READ, 2), start + READ_PS + MISS)
    assert count(b, stats.MAP_READ_PAGES) == 2


def test_a_miss_of_few_bytes():
    """512 of 4096 bytes over channel and DRAM: 0.512 and 0.0625 us instead of 4.096 and 0.5."""
    b = bench(ftl__map_read="512 B")
    less = (h.BUS + h.DRAM) * 7 // 8
    b.assert_ready_at(b.nvme(queues.READ, 0), READ_PS + MISS - less)


def test_what_was_never_written_needs_no_page():
    """A drive without translation pages: the directory itself says that there is nothing."""
    b = h.Bench(ftl__map_cache="2 B")
    b.assert_ready_at(b.nvme(queues.READ, 0), 3_100 * h.NS)
    assert count(b, stats.MAP_READ_PAGES) == 0


def test_a_write_translates_first():
    """The page is in DRAM when its place is looked up; the program begins behind the miss."""
    b = bench()
    b.assert_ready_at(b.nvme(queues.WRITE, 0), program_ps() + MISS)
    start = b.now
    b.assert_ready_at(b.nvme(queues.WRITE, 0), start + program_ps())


def test_two_that_miss_wait_together():
    """Two reads of both planes at one time (submission is free): one translation page, then one
    after the other as without it: with the cache register the second is done 10.1 us later."""
    b = bench(4, host__io_submit="0 us", frontend__command="0 us")
    first, second = b.nvme(queues.READ, 0), b.nvme(queues.READ, 2)
    t = READ_PS - h.SUBMIT - h.FIRMWARE + MISS
    b.assert_ready_at(first, t + h.COMMAND)  # the second's command goes before the first's data
    b.assert_ready_at(second, t + h.COMMAND + h.READ)
    assert count(b, stats.MAP_READ_PAGES) == 1


def evicting(**changes):
    """Page 0 is written, so its entry is dirty; then page 2 is read, whose entry drives it out.
    Returns the bench, the read, and when that entry has come."""
    b = bench(**changes)
    b.assert_ready_at(b.nvme(queues.WRITE, 0), program_ps() + MISS)
    come = b.now + h.SUBMIT + h.LATENCY + h.FIRMWARE + MISS
    return b, b.nvme(queues.READ, 2), come


def test_eviction():
    """From the moment the entry has come. The old translation page is read first (mapping goes
    before the host): command 0.1, tR 10, then at 10.1 the command of the host's read, 0.1, tR until
    20.2; the page's data 10.2-14.296, decoder 1, DRAM twice 1, encoder 0.5: 16.796. The host's data
    20.2-24.296, then decoder 1, DRAM 1, link 1, latency 0.2. Program behind the data: 24.296 +
    0.1 + 4.096 + 50 = 78.492."""
    b, read, come = evicting()
    b.assert_ready_at(read, come + 27_496 * h.NS)
    done = come + 78_492 * h.NS
    b.run_to(done - 1)
    assert count(b, stats.MAP_PROGRAM_PAGES) == 0 and b.arrays.maps.writing[0] == 1
    b.run_to(done)
    assert count(b, stats.MAP_PROGRAM_PAGES) == 1 and b.arrays.maps.writing[0] == 0


@pytest.mark.parametrize("early", [True, False])
def test_what_is_on_its_way_out_is_known(early):
    """While the translation page is on its way to flash it is in DRAM: a read of page 4 needs no
    reading of it, and waits for the die alone. Behind the program it does."""
    b, read, come = evicting()
    b.run_to(come + (30_000 if early else 80_000) * h.NS)
    assert b.done(read)
    at = b.now
    again = b.nvme(queues.READ, 4)
    b.run_to()
    assert count(b, stats.MAP_READ_PAGES) == (3 if early else 4)
    if early:  # command once the array rests, at 78.492
        rest = come + 78_492 * h.NS
        assert b.end(again) == rest + READ_PS - h.SUBMIT - h.LATENCY - h.FIRMWARE
    else:
        assert b.end(again) == at + READ_PS + MISS


def test_a_write_back_crosses_dram_twice():
    """A translation page that is on flash is read into DRAM and sent to the die from there: two
    passes. The other passes are two for each of the two host pages, which are stored and forwarded,
    and one for each of the two misses."""
    b, _, _ = evicting()
    b.run_to()
    dram = int(b.arrays.reg.fifo0[0]) + s.HOST_STATIONS + s.DRAM
    assert b.arrays.use[:, dram].sum() == (2 + 2 * 2 + 2 * 1) * h.DRAM


def test_clean_entries_leave_for_nothing():
    """Reads alone: nothing is written back."""
    b = bench()
    for i in range(4):
        start = b.now
        b.assert_ready_at(b.nvme(queues.READ, 2 * i), start + READ_PS + MISS)
    assert count(b, stats.MAP_PROGRAM_PAGES) == 0
