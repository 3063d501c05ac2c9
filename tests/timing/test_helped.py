"""Stripes that go through the controller, by hand: out of the registers, back into them, from DRAM
into the array. Numbers as in the harness: command 0.1 us a plane, a page 4.096 us on the channel
and 0.5 us in DRAM, encoder 0.5 us, decoder 1 us, tR 10 us, tPROG 50 us.
"""

import pytest

from ondie.emu.engine.core.counters import (
    ARRAY_PROGRAMS,
    ECC_DECODED_PAGES,
    ECC_ENCODED_PAGES,
    FETCHED_PAGES,
    KEPT_PAGES,
    STORED_PAGES,
)
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.nand.timing import BESIDE, BPP, BPR, FETCH, KEEP, ODC, RECALL, STORE, VPP
from tests.timing import harness as h
from tests.timing.harness import ns

PE = 7 * h.US


def prepared(**changes):
    """(bench, when) with a gradient and a stripe of two pages in the registers of die 0."""
    bench = h.Bench(super_pages=4, **changes)
    bench.die(VPP)
    bench.die(BPR, pages=2)
    bench.run_to()
    return bench, bench.now


def counted(bench, *names):
    return [int(bench.arrays.count[0, name]) for name in names]


def test_registers_are_read_without_the_array():
    """Commands for two planes 0.2, data 8.192, DRAM once 1: no tR."""
    bench, start = prepared()
    bench.assert_ready_at(bench.die(FETCH, pages=2), start + ns(9.392)[0])
    assert counted(bench, FETCHED_PAGES, ECC_DECODED_PAGES) == [2, 0]


def test_a_stripe_is_stored_with_parity_and_frees_the_registers():
    """Encoder 1, commands 0.2, data 8.192, tPROG 50. Then the next stripe may be sensed."""
    bench, start = prepared()
    bench.assert_ready_at(bench.die(STORE, pages=2), start + ns(59.392)[0])
    assert counted(bench, STORED_PAGES, ECC_ENCODED_PAGES, ARRAY_PROGRAMS) == [2, 2, 1]
    assert int(bench.arrays.rmap[0, 0]) - 1 == 4  # behind the four that were filled
    bench.die(BPR, 1, pages=2)
    bench.run_to()


def test_a_gradient_is_kept_where_its_super_page_is_and_recalled_with_it():
    """Encoder 0.5, command 0.1, data 4.096, tPROG 50: in place, no super-page moves. Sensed with
    the states (commands 0.2, tR 10) it is the gradient that the die computes with."""
    bench = h.Bench(super_pages=4)
    bench.assert_ready_at(bench.die(KEEP), ns(54.696)[0])
    assert counted(bench, KEPT_PAGES, STORED_PAGES, ARRAY_PROGRAMS) == [1, 0, 1]
    assert int(bench.arrays.rmap[0, 0]) - 1 == 0
    start = bench.now
    bench.assert_ready_at(bench.die(RECALL, pages=2), start + ns(10.2)[0])
    bench.die(ODC, pages=0, array_ps=PE)
    bench.die(BPP, pages=2)
    bench.run_to()


def test_what_the_controller_makes_waits_until_the_registers_are_free():
    """A parity for die 0 is encoded at 1, while a stripe lies in its registers: it enters only when
    that has been programmed (0.2 + 50 from the BPP on), then 0.2 + 8.192 + 50."""
    bench, start = prepared()
    made = bench.die(BESIDE, 1, pages=2)
    bench.die(ODC, pages=0, array_ps=PE)
    bench.die(BPP, pages=2)  # after 0.1 + 7 of the ODC
    bench.assert_ready_at(made, start + ns(7.1 + 50.2 + 58.392)[0])


def test_empty_registers_cannot_be_read():
    bench = h.Bench(super_pages=4)
    bench.die(FETCH, pages=2)
    with pytest.raises(SimulationError, match="die 0: .* operation READ"):
        bench.run_to()


@pytest.mark.parametrize("kind", [KEEP, RECALL])
def test_a_super_page_that_was_never_written(kind):
    bench = h.Bench(super_pages=4)
    bench.arrays.rmap[0, 3] = 0
    bench.die(kind, 3)
    with pytest.raises(SimulationError, match="super-page 3"):
        bench.run_to()
