"""What the data cache saves and costs: writes that end in DRAM, hits, destaging, FLUSH, FUA, writes
that wait for a place. Each is blocked one picosecond early and ready on the tick.

The link takes 1 us for a page and 0.2 us more to arrive, DRAM 0.5 us for each way.
"""

import pytest

from ondie.emu.engine.core import counters as stats
from ondie.emu.nvme import command as queues
from tests.timing import harness as h
from tests.timing.test_table import program_ps

FETCHED = h.SUBMIT + h.LATENCY + h.FIRMWARE
"""Submission 0.4, latency 0.2, firmware 0.3 us: the drive knows what to do."""
TAKEN = FETCHED + h.LINK + h.LATENCY + h.DRAM
"""A written page is in DRAM: the link 1 + 0.2, DRAM once 0.5."""
TO_FLASH = h.DRAM + h.ENCODE + h.COMMAND + h.BUS + h.PROGRAM
"""From DRAM: once more 0.5, encoder 0.5, command 0.1, channel 4.096, tPROG 50 us."""
HIT = FETCHED + h.DRAM + h.LINK + h.LATENCY
READ_PS = 18_296 * h.NS
"""An NVMe read of one page (test_table.py)."""


def bench(mode="write_back", pages=8, **changes):
    return h.Bench(cache__mode=mode, cache__capacity=f"{4 * pages} KiB", **changes)


def count(b, which):
    return int(b.arrays.count[0, which])


def lands_at(b, t, pages=1):
    """So many pages are on flash at ``t`` and not before."""
    before = count(b, stats.PROGRAM_PAGES)
    b.run_to(t - 1)
    assert count(b, stats.PROGRAM_PAGES) == before
    b.run_to(t)
    assert count(b, stats.PROGRAM_PAGES) == before + pages


def test_the_sums():
    assert TAKEN == 2_600 * h.NS and HIT == 2_600 * h.NS
    assert TAKEN + TO_FLASH == program_ps() == 57_796 * h.NS


@pytest.mark.parametrize("mode", ["write_back", "read_write"])
def test_a_write_ends_in_dram(mode):
    b = bench(mode)
    b.assert_ready_at(b.nvme(queues.WRITE, 0), TAKEN)
    b.run_to()
    assert count(b, stats.PROGRAM_PAGES) == 0  # nothing asks for it


def test_a_page_of_several_ends_with_the_last():
    """Two pages: the link brings the second 1 us later, DRAM is faster."""
    b = bench()
    b.assert_ready_at(b.nvme(queues.WRITE, 0, pages=2), TAKEN + h.LINK)


@pytest.mark.parametrize("mode", ["off", "read"])
def test_without_a_write_cache_it_ends_on_flash(mode):
    b = bench(mode)
    b.assert_ready_at(b.nvme(queues.WRITE, 0), program_ps())


def test_write_through_ends_on_flash_and_stays():
    b = bench("write_through")
    b.assert_ready_at(b.nvme(queues.WRITE, 0), program_ps())
    start = b.now
    b.assert_ready_at(b.nvme(queues.READ, 0), start + HIT)


def test_fua_ends_on_flash():
    b = bench()
    b.assert_ready_at(b.nvme(queues.WRITE, 0, fua=1), program_ps())
    start = b.now
    b.assert_ready_at(b.nvme(queues.WRITE, 0), start + TAKEN)


def test_a_hit():
    """What was written is read from DRAM, on its way to flash or not."""
    b = bench(cache__dirty_share=0)
    b.assert_ready_at(b.nvme(queues.WRITE, 0), TAKEN)
    start = b.now
    b.assert_ready_at(b.nvme(queues.READ, 0), start + HIT)
    b.run_to()
    start = b.now
    b.assert_ready_at(b.nvme(queues.READ, 0), start + HIT)
    assert count(b, stats.READ_PAGES) == 0


@pytest.mark.parametrize("mode", ["read", "read_write", "write_back", "write_through"])
def test_a_miss_and_what_follows(mode):
    """A miss costs what it costs without a cache; where reads are kept, the next is a hit."""
    b = bench(mode)
    b.system.fill(0, 0, 4)
    b.assert_ready_at(b.nvme(queues.READ, 0), READ_PS)
    start = b.now
    kept = mode in ("read", "read_write")
    b.assert_ready_at(b.nvme(queues.READ, 0), start + (HIT if kept else READ_PS))


def test_a_write_past_the_cache_makes_it_forget():
    """Read cache: the page is read, then written: its next read comes from flash."""
    b = bench("read")
    b.system.fill(0, 0, 4)
    b.assert_ready_at(b.nvme(queues.READ, 0), READ_PS)
    b.run_to()
    start = b.now
    b.assert_ready_at(b.nvme(queues.WRITE, 0), start + program_ps())
    start = b.now
    b.assert_ready_at(b.nvme(queues.READ, 0), start + READ_PS)


def test_destaging_above_the_limit():
    """Half of two pages may wait. The first does; the second is one too many: the first, least
    recently written, goes on its way when the second has come."""
    b = bench(pages=2)
    b.assert_ready_at(b.nvme(queues.WRITE, 0), TAKEN)
    second = b.nvme(queues.WRITE, 1, array_ps=200 * h.US)
    b.assert_ready_at(second, 200 * h.US + TAKEN)
    lands_at(b, 200 * h.US + TAKEN + TO_FLASH)
    assert b.arrays.l2p[0, 0] != 0 and b.arrays.l2p[0, 1] == 0


def test_destaging_at_once():
    b = bench(cache__dirty_share=0)
    b.assert_ready_at(b.nvme(queues.WRITE, 0), TAKEN)
    lands_at(b, TAKEN + TO_FLASH)


def test_destaging_while_idle():
    """Nothing is outstanding as soon as the write is done."""
    b = bench(cache__destage_idle="true")
    b.assert_ready_at(b.nvme(queues.WRITE, 0), TAKEN)
    lands_at(b, TAKEN + TO_FLASH)


def test_flush():
    """A FLUSH of nothing ends when it is understood; else when the page is on flash, which goes on
    its way then."""
    b = bench()
    b.assert_ready_at(b.nvme(queues.FLUSH, 0, pages=0), FETCHED)
    start = b.now
    b.assert_ready_at(b.nvme(queues.WRITE, 0), start + TAKEN)
    start = b.now
    b.assert_ready_at(b.nvme(queues.FLUSH, 0, pages=0), start + FETCHED + TO_FLASH)
    assert count(b, stats.PROGRAM_PAGES) == 1
    start = b.now
    b.assert_ready_at(b.nvme(queues.FLUSH, 0, pages=0), start + FETCHED)


def test_flush_waits_for_what_is_on_its_way():
    b = bench(cache__dirty_share=0)
    b.assert_ready_at(b.nvme(queues.WRITE, 0), TAKEN)
    flush = b.nvme(queues.FLUSH, 0, pages=0, array_ps=30 * h.US)
    b.assert_ready_at(flush, TAKEN + TO_FLASH)


def test_flush_does_not_wait_for_what_comes_later():
    """Page 0 is on its way; a FLUSH; then page 2 is written: the FLUSH ends with page 0."""
    b = bench(cache__dirty_share=0)
    b.assert_ready_at(b.nvme(queues.WRITE, 0), TAKEN)
    flush = b.nvme(queues.FLUSH, 0, pages=0, array_ps=20 * h.US)
    b.nvme(queues.WRITE, 2, array_ps=30 * h.US)
    b.assert_ready_at(flush, TAKEN + TO_FLASH)
    b.run_to()
    assert count(b, stats.PROGRAM_PAGES) == 2


def test_a_page_written_again_on_its_way():
    """It is on its way when it is written again. A FLUSH then waits for the second content, which
    goes on its way when the first has landed."""
    b = bench(cache__dirty_share=0)
    b.assert_ready_at(b.nvme(queues.WRITE, 0), TAKEN)
    b.assert_ready_at(b.nvme(queues.WRITE, 0, array_ps=20 * h.US), 20 * h.US + TAKEN)
    b.assert_ready_at(b.nvme(queues.FLUSH, 0, pages=0), TAKEN + 2 * TO_FLASH)
    assert count(b, stats.PROGRAM_PAGES) == 2


def test_trim_makes_a_flush_free():
    b = bench()
    b.assert_ready_at(b.nvme(queues.WRITE, 0), TAKEN)
    b.one(resource=2, kind=queues.TRIM, lpn=0, bytes_in=h.PAGE)
    b.run_to()
    start = b.now
    b.assert_ready_at(b.nvme(queues.FLUSH, 0, pages=0), start + FETCHED)
    assert count(b, stats.PROGRAM_PAGES) == 0 and count(b, stats.CACHE_DROPPED_PAGES) == 1


def test_back_pressure():
    """One place. The second write comes 1 us later, which sends the first on its way; it waits
    until that has landed, and is done then."""
    b = bench(pages=1, cache__dirty_share=1)
    first, second = b.nvme(queues.WRITE, 0), b.nvme(queues.WRITE, 2)
    b.assert_ready_at(first, TAKEN)
    b.assert_ready_at(second, TAKEN + h.LINK + TO_FLASH)
    b.run_to()
    assert count(b, stats.PROGRAM_PAGES) == 1  # its own page may wait


def test_so_many_on_their_way():
    """``cache.destage_pages`` = 1: the second of two pages goes when the first has landed; with 2,
    they go to the die together, whose cache register takes the second meanwhile."""
    b = bench(cache__dirty_share=0, cache__destage_pages=1)
    for lpn in (0, 2):
        b.nvme(queues.WRITE, lpn)
    lands_at(b, TAKEN + TO_FLASH)
    lands_at(b, TAKEN + 2 * TO_FLASH)
    b = bench(cache__dirty_share=0, cache__destage_pages=2)
    for lpn in (0, 2):
        b.nvme(queues.WRITE, lpn)
    lands_at(b, TAKEN + TO_FLASH)
    lands_at(b, TAKEN + TO_FLASH + h.PROGRAM)


@pytest.mark.parametrize("mode", ["off", "write_back"])
def test_dram_by_rows(mode):
    """Rows of 1 KiB, tRCD 10 ns, tCL 20 ns, tRP 5 ns: a page opens four, 4 x 30 + 3 x 5 = 135 ns
    more for each way through DRAM: one for a write that ends there, two for one that goes on."""
    rows = {"dram__row": "1 KiB", "dram__t_rcd": "10 ns", "dram__t_cl": "20 ns"}
    b = bench(mode, dram__t_rp="5 ns", **rows)
    t = TAKEN + 135 * h.NS if mode == "write_back" else program_ps() + 270 * h.NS
    b.assert_ready_at(b.nvme(queues.WRITE, 0), t)
