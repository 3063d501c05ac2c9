"""Word lines under flash management take the times of the bare chip: pages gather, then load one
after the other (0.1 + 4.096 each) before one tPROG (50), or two (50, then 80).

A page reaches its line at 0.4 + 0.2 + 0.3 (submission, latency, firmware) + 1 (link) + 0.2 + 1
(DRAM) + 0.5 (encoder) = 3.6 us, each page behind it 1 us later (link). Padding comes out of the
encoder, 0.5 each.
"""

import pytest

from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.nvme import command as queues
from tests.timing import harness as h
from tests.timing.flash import Flash
from tests.timing.harness import US

PAGE = h.COMMAND + h.BUS
LOAD = 3 * PAGE
LINE = LOAD + h.PROGRAM
SECOND = LOAD + 80 * US
FIRST = 3_600 * h.NS
"""The first page of a write command has joined its line."""
TLC = {
    "flash__cell": "TLC",
    "flash__pages_per_block": 12,
    "flash__planes_per_die": 1,
    "flash__blocks_per_plane": 64,
    "flash__cache_program": "false",
    "pe__kind": "none",
    "ftl__reservoir_fraction": 0,
    "dram__capacity": "1 GiB",
}
TWO_PASS = {"flash__t_program_second": "80 us"}


def bench(programming="one_shot", **changes):
    more = TWO_PASS if programming == "two_pass" else {}
    return h.Bench(flash__programming=programming, **TLC | more | changes)


def count(b, *names):
    return tuple(int(b.arrays.count[0, getattr(stats, name)]) for name in names)


def write(b, lpn, pages, **more):
    return b.nvme(queues.WRITE, lpn, pages=pages, **more)


def joined(pages):
    """When the last page of a write command has joined."""
    return FIRST + (pages - 1) * h.LINK


def test_a_word_line():
    """The third page comes at 5.6; all are there at 5.6 + 62.588 = 68.188."""
    b = bench()
    b.assert_ready_at(write(b, 0, 3), joined(3) + LINE)
    assert joined(3) + LINE == 68_188 * h.NS
    assert count(b, "ARRAY_PROGRAMS", "PADDING_PAGES", "GATHERED_MOST") == (1, 0, 3)


@pytest.mark.parametrize("cell, bits", [("MLC", 2), ("QLC", 4)])
def test_other_cells(cell, bits):
    b = bench(flash__cell=cell, flash__pages_per_block=16)
    b.assert_ready_at(write(b, 0, bits), joined(bits) + bits * PAGE + h.PROGRAM)


def test_the_bare_chip_takes_as_long():
    """Three word lines, handed to the chip when their last pages are there: the same ends, by way
    of the FTL and without."""
    f = Flash(**TLC, flash__programming="one_shot")
    lines = [f.word_line(3, at=joined(3 * (i + 1)), page=3 * i) for i in range(3)]
    b = bench()
    b.assert_ready_at(write(b, 0, 9), max(f.ends(*[line[0] for line in lines])))


def test_the_bare_chip_takes_as_long_for_two_passes():
    """Passes in the order of neighbours: first 0, first 1, second 0."""
    f = Flash(**TLC | TWO_PASS, flash__programming="two_pass")
    f.word_line(3, at=joined(3))
    f.word_line(3, at=joined(6), page=3)
    fine = f.word_line(3, at=joined(3) + 2 * LINE, second=1)
    b = bench("two_pass")
    first = write(b, 0, 3)
    more = write(b, 3, 3, array_ps=1)
    end = f.ends(fine[0])[0]
    assert end == joined(3) + 2 * LINE + SECOND
    # The second command's firmware and data come behind the first's.
    b.assert_ready_at(first, end)
    assert not b.done(more) and count(b, "SECOND_PASS_PAGES") == (3,)


def test_planes_of_a_super_page_go_together():
    """Six pages at 2 planes: three offsets, each 0.2 + 8.192, one tPROG. Pages come by twos: 2 us
    link, 2 DRAM, 1 encoder."""
    b = bench(flash__planes_per_die=2)
    t = h.SUBMIT + h.LATENCY + h.FIRMWARE + 6 * h.LINK + h.LATENCY + 4 * h.DRAM + 2 * h.ENCODE
    b.assert_ready_at(write(b, 0, 6), t + 2 * LOAD + h.PROGRAM)
    assert count(b, "ARRAY_PROGRAMS", "PROGRAM_PAGES") == (1, 6)


def test_a_lonely_page_is_padded_at_once():
    """Nothing else is ahead when it has come, at 3.6: two pages of padding follow it."""
    b = bench()
    b.assert_ready_at(write(b, 0, 1), FIRST + 2 * h.ENCODE + LINE)
    b.run_to()
    assert count(b, "PADDED_AT_REST", "PADDED_IN_TIME", "PADDING_PAGES") == (1, 0, 2)


def test_it_waits_while_something_is_under_way():
    """The drive's processor is busy for 10 ms: after ``ftl.gather_time`` the line is padded."""
    b = bench(ftl__gather_time="1 ms")
    b.one(resource=rows.ISP, array_ps=10_000 * US)
    b.assert_ready_at(write(b, 0, 1), FIRST + 1000 * US + 2 * h.ENCODE + LINE)
    assert count(b, "PADDED_AT_REST", "PADDED_IN_TIME", "PADDING_PAGES") == (0, 1, 2)


def test_what_arrives_in_time_needs_no_padding():
    b = bench(ftl__gather_time="1 ms")
    b.one(resource=rows.ISP, array_ps=10_000 * US)
    write(b, 0, 1)
    later = write(b, 1, 2, array_ps=500 * US)
    b.assert_ready_at(later, 500 * US + joined(2) + LINE)
    assert count(b, "PADDING_PAGES") == (0,)


def test_two_passes_of_a_lonely_line():
    """Its first pass, 5.6-68.188; then nothing is ahead: a neighbour of padding, 1.5 in the encoder
    and 62.588; then its second."""
    b = bench("two_pass")
    end = joined(3) + LINE + 3 * h.ENCODE + LINE + SECOND
    b.assert_ready_at(write(b, 0, 3), end)
    b.run_to()
    assert count(b, "PADDING_PAGES", "SECOND_PASS_PAGES", "ARRAY_PROGRAMS") == (3, 3, 3)


def test_the_last_line_of_a_block_has_no_neighbour():
    """Nine pages of the block were written before: 62.588, then at once 92.588."""
    b = bench("two_pass")
    b.system.fill(0, 0, 9)
    b.assert_ready_at(write(b, 9, 3), joined(3) + LINE + SECOND)
    assert count(b, "PADDING_PAGES") == (0,)


def test_a_page_can_be_read_after_its_second_pass():
    """A read behind the first pass still finds nothing; one behind the second finds flash."""
    b = bench("two_pass")
    write(b, 0, 3)
    b.run_to(joined(3) + LINE + 1)
    assert not b.arrays.l2p[0, :3].any()
    b.run_to()
    assert b.arrays.l2p[0, :3].all()


def test_flush_pads_what_the_cache_has_sent():
    """Two pages in the cache: FLUSH sends them, 0.5 DRAM each, encoder 0.5 each behind it; one page
    of padding."""
    b = bench(cache__mode="write_back", cache__capacity="64 KiB", cache__dirty_share=1)
    b.ends([write(b, 0, 2)])
    start = b.now
    fetched = start + h.SUBMIT + h.LATENCY + h.FIRMWARE
    joins = fetched + 2 * h.DRAM + h.ENCODE
    b.assert_ready_at(b.nvme(queues.FLUSH, 0, pages=0), joins + h.ENCODE + LINE)
    assert count(b, "PADDED_AT_FLUSH", "PADDED_AT_REST", "PADDING_PAGES") == (1, 0, 1)


def test_fua_pads_its_own_line():
    """The drive's processor is busy: a plain write would wait for the rest of its line."""
    b = bench()
    b.one(resource=rows.ISP, array_ps=100_000 * US)
    b.assert_ready_at(write(b, 0, 2, fua=1), joined(2) + h.ENCODE + LINE)
    assert count(b, "PADDED_AT_FLUSH", "PADDING_PAGES") == (1, 1)


@pytest.mark.parametrize(
    "programming, pages, first, each",
    [
        ("page", 1, FIRST, PAGE + h.PROGRAM),
        ("one_shot", 3, FIRST + 2 * h.LINK, LINE),
    ],
)
def test_throughput_of_a_stream(programming, pages, first, each):
    """240 pages: one tPROG for each page, 54.196 us, or for three, 62.588: 2.6 times the rate."""
    b = bench(programming)
    ends = b.ends([write(b, 60 * i, 60) for i in range(4)])
    assert ends[-1] == first + 240 // pages * each


def test_throughput_of_two_passes():
    """For each line 62.588 and 92.588; the block's last lines end with both passes in a row, so
    nothing is padded."""
    b = bench("two_pass")
    ends = b.ends([write(b, 60 * i, 60) for i in range(4)])
    assert ends[-1] == FIRST + 2 * h.LINK + 80 * (LINE + SECOND)
    assert count(b, "PADDING_PAGES", "SECOND_PASS_PAGES") == (0, 240)


def test_a_suspended_word_line():
    """A read at 20 us of a page filled before stops the line that has been programmed since
    5.6 + 12.588: both commands, tR and data are added, as on the bare chip."""
    b = bench(flash__suspend="program", ecc__decode="0 us")
    b.system.fill(0, 100, 3)
    line = write(b, 0, 3)
    b.nvme(queues.READ, 100, array_ps=20 * US)
    more = 3 * h.COMMAND + h.READ + h.BUS
    b.assert_ready_at(line, joined(3) + LINE + more)
