"""Mapping units of 4 KiB on pages of 16 KiB: what is sensed, what crosses the channel, and when.

One die of two planes, no cache register. A read: submission and link 0.6, firmware 0.3, command
0.1, tR 10, a slot over the channel 4.096, its quarter of the decoder's 1, DRAM twice 1, link
1 + 0.2: in all 0.75 less than a page of 4 KiB takes (test_table.py).
"""

import pytest

from ondie.emu.analysis.energy import components
from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.core.totals import StepClock
from ondie.emu.ftl import write_frontier
from ondie.emu.nvme import command as queues
from ondie.emu.paths.statement import Work
from tests.timing import harness as h
from tests.timing.harness import ns

SLOTS = 4
QUARTER = h.DECODE // SLOTS
READ_PS = 18_296 * h.NS - (h.DECODE - QUARTER)
"""An NVMe read of one slot."""


def bench(order=(), **changes):
    """A drive whose first logical slots lie on flash in this order."""
    leaves = {
        "flash__page": "16 KiB",
        "ftl__mapping_unit": "4 KiB",
        "ftl__reservoir_fraction": 0,
        "flash__pages_per_block": 4,
        "flash__cache_read": "false",
    }
    out = h.Bench(**leaves | changes)
    for lpn in order:
        assert write_frontier.fill(out.system.state, 0, lpn, 1, 0) == 0
    return out


def counts(b, *which):
    return [int(b.arrays.count[0, x]) for x in which]


def sensed(b):
    """(array reads, slots read by the host, slots sensed beside them, bytes over the channel)."""
    out = counts(b, stats.ARRAY_READS, stats.READ_PAGES, stats.BESIDE_PAGES)
    return (*out, int(b.arrays.bus.size_out.sum()))


def test_a_slot_takes_its_bytes_and_a_whole_page_sensed():
    b = bench(range(8))
    b.assert_ready_at(b.nvme(queues.READ, 5), READ_PS)
    assert sensed(b) == (1, 1, 3, h.PAGE)


def test_a_page_is_one_operation():
    """Four slots that lie side by side: one transfer of 16.384, one decoding of 1, 2 in DRAM, and 4
    over the link, each behind the one before."""
    b = bench(range(8))
    three = SLOTS - 1
    more = three * (h.BUS + QUARTER + 2 * h.DRAM + h.LINK)
    b.assert_ready_at(b.nvme(queues.READ, 4, 4), READ_PS + more)
    assert sensed(b) == (1, 4, 0, 4 * h.PAGE)


def test_slots_of_a_page_in_any_order_are_one_operation():
    """Each leaves the register on its own, so that the link is busy with one while another leaves:
    only the channel adds up."""
    b = bench((3, 1, 0, 2))
    b.assert_ready_at(b.nvme(queues.READ, 0, 4), READ_PS + 3 * h.BUS)
    assert sensed(b) == (1, 4, 0, 4 * h.PAGE)


def test_slots_apart_in_the_command_share_their_page():
    """0 and 2 of one page, 1 and 3 of the page behind it in the same plane's unit: two reads, the
    second of which begins when the data of the first have left."""
    b = bench((0, 2, 8, 9, 1, 3), ftl__block_unit="plane", flash__planes_per_die=1)
    second = h.COMMAND + h.READ + 2 * h.BUS
    b.assert_ready_at(b.nvme(queues.READ, 0, 4), READ_PS + h.BUS + second)
    assert sensed(b) == (2, 4, 4, 4 * h.PAGE)


def test_slots_of_two_pages_are_two_operations():
    """Read one by one, each senses a page."""
    b = bench(range(8), flash__planes_per_die=1)
    b.assert_ready_at(b.nvme(queues.READ, 3, 2), READ_PS + h.COMMAND + h.READ + h.BUS)
    assert sensed(b) == (2, 2, 6, 2 * h.PAGE)


def test_planes_are_read_together():
    """The last slot of plane 0's page and the first of plane 1's: a command of two planes takes
    0.1 more, the slots cross as one transfer."""
    b = bench(range(8))
    more = h.COMMAND + h.BUS + QUARTER + 2 * h.DRAM + h.LINK
    b.assert_ready_at(b.nvme(queues.READ, 3, 2), READ_PS + more)
    assert sensed(b) == (1, 2, 6, 2 * h.PAGE)


TAIL = h.COMMAND + SLOTS * h.BUS + h.PROGRAM
"""A page is loaded and programmed: 66.484."""


def test_four_small_writes_are_one_program():
    """Entries are written at 0.4, 0.8, 1.2 and 1.6, understood 0.5 later, and their data cross the
    link in a row, from 0.9 on: the last is in at 5.1, in DRAM at 6.1 and encoded at 6.225. Then the
    page is loaded, and all four writes are done with it."""
    b = bench()
    writes = [b.nvme(queues.WRITE, lpn) for lpn in (5, 1, 0, 2)]
    b.assert_ready_at(writes[0], ns(6.225)[0] + TAIL)
    assert b.ends(writes) == [ns(6.225)[0] + TAIL] * SLOTS
    assert counts(b, stats.ARRAY_PROGRAMS, stats.PADDING_PAGES) == [1, 0]
    assert int(b.arrays.bus.size_in.sum()) == SLOTS * h.PAGE


def test_a_large_write_does_not_wait():
    """Four slots of a command cross everything together: 0.9, link 4.2, DRAM 4, encoder 0.5."""
    b = bench()
    b.assert_ready_at(b.nvme(queues.WRITE, 4, 4), ns(9.6)[0] + TAIL)
    assert counts(b, stats.ARRAY_PROGRAMS, stats.PADDING_PAGES) == [1, 0]


def test_a_small_write_alone_is_padded():
    """Encoded at 0.9 + 1.2 + 1 + 0.125 = 3.225, when nothing else is under way: three slots of
    padding take the encoder 0.375, and the page is programmed."""
    b = bench()
    b.assert_ready_at(b.nvme(queues.WRITE, 3), ns(3.6)[0] + TAIL)
    assert counts(b, stats.ARRAY_PROGRAMS, stats.PADDING_PAGES) == [1, 3]
    assert int(b.arrays.bus.size_in.sum()) == SLOTS * h.PAGE


def test_a_slot_costs_the_energy_of_its_page():
    """All of the page is sensed; a quarter of it crosses the channel and the decoder."""
    b = bench(range(8))
    b.nvme(queues.READ, 5)
    b.run_to()
    parts = components(b.cfg, b.system.totals(StepClock(("a",), b.arrays.phase)), Work())
    bits = {part.name: part.quantity for part in parts}
    assert bits["NAND read"] == SLOTS * h.PAGE * 8
    assert bits["channels"] == bits["ECC"] == h.PAGE * 8


@pytest.mark.parametrize("interface, column", [("NV-DDR2", 1), ("fixed", 0)])
def test_columns_are_selected(interface, column):
    """Two slots of a page that lie apart take the cycles that select a column each."""
    both = []
    for order in ((0, 1, 2, 3), (0, 2, 1, 3)):
        b = bench(order, flash__interface=interface, flash__bus="800 MT/s")
        row = b.nvme(queues.READ, 0, 2)
        b.run_to()
        both.append(b.arrays.use[:, b.arrays.reg.bus0[0]].sum())
        assert b.done(row)
    cycles = b.arrays.cfg[0].out + 2 * b.arrays.cfg[0].out_plane
    assert both[1] - both[0] == cycles * column
