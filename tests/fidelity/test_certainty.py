"""Is the stated certainty of a winner that of the ranges of the constants, for all strategies?

Held against closed forms for one uncertain constant, and against energy() on changed constants.
"""

import dataclasses
import io
import math

import numpy as np
import pytest
from rich.console import Console

from ondie import traces
from ondie.emu.analysis.answer import answer
from ondie.emu.analysis.compare import Comparison, compare
from ondie.emu.analysis.energy import energy, is_price
from ondie.emu.analysis.energy_draws import EnergyDraws
from ondie.emu.analysis.monte_carlo import DRAWS
from ondie.emu.config.config import Config, load_preset
from ondie.emu.paths.base import Options
from ondie.emu.results.tables import answer as screen
from ondie.emu.validate import model
from tests.fidelity.test_uncertainty import with_ranges, without_ranges
from tests.smoke.commands import LITTLE_FLASH

LOW, MODE, HIGH = 20.0, 88.0, 180.0
"""Power of the waiting host, W."""


def printed(comparison: Comparison) -> str:
    console = Console(file=io.StringIO(), width=132)
    screen.show(comparison, answer(comparison), console)
    return " ".join(console.file.getvalue().split())


def under(comparison: Comparison, cfg: Config) -> dict[str, float]:
    """J per sample of every strategy that ran, with the constants of another configuration."""
    return {
        r.name: energy(cfg, r.ledger.totals, r.work).all[1] / comparison.steps / r.ledger.samples
        for r in comparison.results
        if r.reason is None
    }


def draws(comparison: Comparison) -> EnergyDraws:
    ran = [r for r in comparison.results if r.reason is None]
    samples = {r.name: comparison.steps * r.ledger.samples for r in ran}
    runs = {r.name: (r.ledger, r.work) for r in ran}
    return EnergyDraws(comparison.cfg, runs, samples, comparison.options.seed)


@pytest.fixture(scope="module")
def dear() -> Comparison:
    """A comparison in which the energy of a die is so high that on_die, of the headline's pair,
    does not win. One constant has a range: the power of the waiting host."""
    cfg = load_preset("optimstore-r1", ["energy.pe_multiply=20 nJ", "energy.controller=20 W"])
    cfg = with_ranges(cfg, {"host.wait_power": (round(LOW * 1e3), round(HIGH * 1e3))})
    return compare(model("adam", 2_000_000), cfg, swing=False)


@pytest.fixture(scope="module")
def stannis() -> Comparison:
    """Batches as published: other samples per step, and host and drives train."""
    trace, cfg = (
        traces.load("mobilenetv2"),
        load_preset("newport", [*LITTLE_FLASH, "system.devices=24"]),
    )
    return compare(trace, cfg, options=Options(batch="paper"), swing=False)


def triangle(x: float) -> float:
    """Share of a triangle LOW, MODE, HIGH that lies below x."""
    if x <= LOW or x >= HIGH:
        return float(x >= HIGH)
    if x < MODE:
        return (x - LOW) ** 2 / ((HIGH - LOW) * (MODE - LOW))
    return 1 - (HIGH - x) ** 2 / ((HIGH - LOW) * (HIGH - MODE))


def test_the_share_of_draws_is_that_of_the_closed_form(dear):
    """Each energy is a + t w in the power w, so the winner has the least in an interval of w, whose
    share of the triangle is known."""
    found = answer(dear).least_energy
    lines = {}
    for name, at_zero in under(dear, dear.cfg.replace({"host.wait_power": 0})).items():
        lines[name] = at_zero, under(dear, dear.cfg)[name] - at_zero  # at 0, and of 88 W
    best = lines.pop(found.best)
    low, high = 0.0, math.inf
    for name, (start, slope) in lines.items():
        if name in found.equal:
            continue
        crossing = MODE * (best[0] - start) / (slope - best[1])
        assert slope != best[1]
        if slope > best[1]:
            low = max(low, crossing)
        else:
            high = min(high, crossing)
    exact = triangle(high) - triangle(low)
    assert 0.1 < exact < 0.95  # the question is open
    error = math.sqrt(exact * (1 - exact) / DRAWS)
    sure = found.certainty
    assert abs(sure.probability - exact) < 4 * error
    assert (sure.constants, sure.decided_by) == (1, "host.wait_power")
    assert sure.other == next(iter(found.others))


def test_a_winner_outside_the_headline_is_judged_too(dear, stannis):
    for comparison in (dear, stannis):
        found = answer(comparison).least_energy
        assert found.best not in (comparison.swing_pair or ())
        sure = found.certainty
        assert 0 <= sure.probability <= 1 and sure.with_times is None
        text = printed(comparison)
        noun = "energy constant" if sure.constants == 1 else "energy constants"
        assert (
            f"of {DRAWS:,} draws of {sure.constants} {noun}; of the energy constants, "
            f"{sure.decided_by} matters most:" in text
        )
        assert "Times are exact for these constants, which were not varied." in text


def test_the_draws_are_the_energies_of_the_runs(dear, stannis):
    """At typical constants, and with all of them at either end, J per sample of the first table."""
    for comparison in (dear, stannis):
        drawn = draws(comparison)
        for row in answer(comparison).strategies:
            if row.reason is not None:
                continue
            assert drawn.joules({})[row.name] == pytest.approx([row.all_j_per_sample[1]])
            for i, end in ((0, "low"), (2, "high")):
                at = {span.key: np.array([getattr(span, end)]) for span in drawn.spans}
                joules = drawn.joules(at)[row.name]
                assert joules == pytest.approx([row.all_j_per_sample[i]])


def test_all_energy_constants_with_a_range_are_drawn(stannis):
    """Those that some strategy is charged for: powers of host and accelerator, NAND, links, ISP."""
    drawn = {span.key for span in draws(stannis).spans}
    assert {"host.compute_power", "energy.isp_core", "energy.controller", "link.energy"} <= drawn
    assert all(is_price(key) for key in drawn)
    usual = under(stannis, stannis.cfg)
    for leaf in stannis.cfg.leaves():
        if is_price(leaf.key) and leaf.low != leaf.high:
            changed = under(stannis, stannis.cfg.replace({leaf.key: leaf.high * 2 + 1}))
            assert (leaf.key in drawn) == (changed != usual), leaf.key


def test_what_decides_changes_the_lead_most(stannis):
    verdict = answer(stannis).least_energy
    sure = verdict.certainty
    usual, ends = under(stannis, stannis.cfg), {}
    for leaf in stannis.cfg.leaves():
        if is_price(leaf.key) and leaf.low != leaf.high:
            at = [under(stannis, stannis.cfg.replace({leaf.key: x})) for x in (leaf.low, leaf.high)]
            ends[leaf.key] = [joules[sure.other] / joules[verdict.best] for joules in at]
    width = {key: max(max(x / y, y / x) for x in (at[0],) for y in (at[1],))
             for key, at in ends.items()}  # fmt: skip
    assert sure.decided_by == max(width, key=lambda key: width[key])
    assert sure.ratio == pytest.approx(ends[sure.decided_by])
    low, high = sorted(sure.ratio)
    assert (
        f"{sure.decided_by} matters most: over its range {sure.other} uses {low:.2f} "
        f"to {high:.2f} times as much" in printed(stannis)
    )
    assert usual[verdict.best] == pytest.approx(verdict.value)


def test_without_ranges_nothing_is_said_to_be_drawn(dear):
    bare = dataclasses.replace(dear, cfg=without_ranges(dear.cfg))
    assert answer(bare).least_energy.certainty is None
    assert "draws" not in printed(bare)


def test_the_same_seed_gives_the_same_share(stannis):
    other = dataclasses.replace(stannis, options=dataclasses.replace(stannis.options, seed=1))
    values = [draws(c).drawn["stannis"] for c in (stannis, stannis, other)]
    assert (values[0] == values[1]).all() and not (values[0] == values[2]).all()


def test_equal_strategies_are_no_rivals(dear):
    """Two names of one run differ in no draw, so one cannot take less than the other."""
    found = answer(dear).least_energy
    twin = dataclasses.replace(dear.result(found.best), name="twin")
    both = answer(dataclasses.replace(dear, results=(*dear.results, twin))).least_energy
    assert both.equal == (*found.equal, "twin")
    assert both.certainty.probability == found.certainty.probability


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "100%"), (0.99999, "more than 99%"), (0.991, "99%"), (0.5, "50%"),
     (1e-4, "less than 1%"), (0.0, "0%")],
)  # fmt: skip
def test_only_a_certain_share_is_said_to_be(value, text):
    assert screen.share(value) == text
