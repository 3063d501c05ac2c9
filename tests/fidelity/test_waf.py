"""Write amplification of the whole drive, requests through queue pairs and every page operation
timed, against theory: greedy collection under uniform random writes of single pages.

Spare, as counted here: of P physical pages (1 - OP) P are logical, floor by drive, and all of them
are mapped. When a unit of N blocks of b pages chooses a victim, ``gc_low`` blocks are free and the
host's next one is not open yet, and collected pages have an open block of their own, half full on
average: the valid pages lie in N - gc_low - 1 full blocks (waf_theory.fill, whose ``low`` is one
less, as it looks when the host's block has just been opened).
"""

import numpy as np
import pytest

from ondie.emu.nvme.request import WRITE
from tests.fidelity.waf_theory import fill, lambert, mean_field
from tests.state.written import PAGE, config, drive, play, requests, uniform, waf

BLOCKS, PAGES, UNITS = 128, 256, 2
SHAPE = {
    "flash__channels": 1,
    "flash__dies_per_channel": 1,
    "flash__planes_per_die": UNITS,
    "flash__blocks_per_plane": BLOCKS,
    "flash__pages_per_block": PAGES,
    "ftl__gc_low_blocks": 1,
}
OVER_PROVISIONING = (0.12, 0.28, 0.07, 0.2, 0.4)
"""Write amplification from 8.5 down to 1.5; the first two are always run."""


def measured(
    op: float, rng: np.random.Generator, depth: int = 32, **changes: object
) -> tuple[float, float]:
    """(WAF, share of valid pages among full blocks): written full in random order, overwritten
    three times, and measured over three times more."""
    cfg = config(**SHAPE | {"ftl__over_provisioning": op} | changes)
    arrays = drive(cfg)
    lpns = int(arrays.cfg.lpns[0])
    assert lpns == int(UNITS * BLOCKS * PAGES * (1 - op))
    play(arrays, cfg, [requests(rng.permutation(lpns) * PAGE, PAGE, WRITE)])
    before = play(arrays, cfg, uniform(rng, lpns, 3 * lpns), depth).counters
    after = play(arrays, cfg, uniform(rng, lpns, 3 * lpns), depth).counters
    assert after["program_pages"] - before["program_pages"] == 3 * lpns
    return waf(after, before), fill(lpns / UNITS, BLOCKS, PAGES, 0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("placement", ["static", "dynamic"])
def test_greedy_under_uniform_writes(placement, counts, rng):
    """256 pages per block: within 3 % of the Lambert-W form, and of the mean field with block
    size, at every over-provisioning."""
    for op in OVER_PROVISIONING[: counts(2, 5)]:
        got, rho = measured(op, rng, ftl__placement=placement)
        assert got == pytest.approx(lambert(rho), rel=0.03), op
        assert got == pytest.approx(mean_field(rho, PAGES).waf, rel=0.02), op


def test_blocks_that_are_kept_free_are_no_spare(rng):
    """The theory is for what is chosen from: with 12 blocks kept free instead of 1 it is the theory
    of a smaller drive that holds, and the other one does not. One write at a time, so that
    collection keeps up: a host that does not wait takes the free blocks down to the last."""
    low = 12
    got, rho = measured(0.28, rng, 1, ftl__gc_low_blocks=low)
    kept = fill(int(UNITS * BLOCKS * PAGES * 0.72) / UNITS, BLOCKS, PAGES, low - 1)
    assert got == pytest.approx(mean_field(kept, PAGES).waf, rel=0.03)
    assert got > 1.05 * mean_field(rho, PAGES).waf


def test_choosing_among_few_costs_what_theory_says(rng):
    """d-choices with d = log2 of 128 blocks."""
    got, rho = measured(0.2, rng, ftl__gc_policy="d_choices")
    assert got == pytest.approx(mean_field(rho, PAGES, 7).waf, rel=0.03)
    assert got > 1.02 * mean_field(rho, PAGES).waf
