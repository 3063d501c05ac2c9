"""Do the accelerator's rate and powers take part in the swing and in the draws?

The model is as small as the sample, and blocks as short, so that an end of a range is a whole run.
"""

import dataclasses

import pytest

from ondie import traces
from ondie.emu.analysis.answer import answer
from ondie.emu.analysis.compare import Comparison, compare
from ondie.emu.analysis.energy import is_price
from ondie.emu.config.config import Config, load_preset, preset_names
from ondie.emu.paths.base import Options
from tests.smoke.commands import assumed_only

PAIR = ("host_offload", "on_die")
WORK = 300
"""Multiplies the MACs of a small model, whose training would be hidden by its update."""
RATE = "host.accelerator_utilization"
POWERS = ("host.compute_power", "host.accelerator_wait_power")
ASKED = (RATE, *POWERS)
MORE = ("flash.t_erase", "energy.controller")
SETTINGS = ("flash.pages_per_block=4", "flash.blocks_per_plane=2000", "ftl.initial=fresh")


def run(cfg: Config, swing: bool = False, options: Options | None = None) -> Comparison:
    trace = traces.load("gpt-small")
    macs = {key: WORK * getattr(trace, key) for key in ("macs_forward", "macs_backward")}
    trace = dataclasses.replace(trace, **macs)
    return compare(trace, cfg, paths=PAIR, steps=1, swing=swing, options=options)


@pytest.fixture(scope="module")
def csd_pe() -> Config:
    return load_preset("csd-pe", SETTINGS)


@pytest.fixture(scope="module")
def c(csd_pe, counts) -> Comparison:
    """At small counts, the swing is over the constants that are asked for here, and two more."""
    return run(counts(assumed_only(csd_pe, *ASKED, *MORE), csd_pe), swing=True)


def swing(comparison: Comparison, key: str):
    (found,) = (swing for swing in comparison.swings if swing.key == key)
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("end", ["low", "high"])
def test_the_rate_changes_the_whole_step(c, csd_pe, end):
    """As two runs at the end of the range: the step, and the energy of the step."""
    leaf = csd_pe.leaf(RATE)
    at = run(csd_pe.replace({RATE: getattr(leaf, end)}))
    factors = getattr(swing(c, RATE), f"steps_at_{end}")
    for name in PAIR:
        usual, found = (x.result(name).ledger.step_s for x in (c, at))
        assert factors[name] == pytest.approx(found / usual, rel=2e-3)
        assert abs(factors[name] - 1) > 0.01
    (bar,) = (bar for bar in c.odds.bars if bar.key == RATE)
    base, rival = (at.result(name).energy for name in PAIR)
    which = ("low", "high").index(end)
    assert bar.step[which] == pytest.approx(base.all[1] / rival.all[1], rel=2e-3)
    assert bar.energy[which] == pytest.approx(
        base.storage_and_host[1] / rival.storage_and_host[1], rel=2e-3
    )


def test_the_rate_is_part_of_the_verdict_on_time(c):
    """A slower accelerator makes the steps longer, and their ratio nearer to 1."""
    found = answer(c).fastest
    slow, fast = swing(c, RATE).steps_at_low, swing(c, RATE).steps_at_high
    assert slow["host_offload"] > 1 > fast["host_offload"]
    lead = [
        c.result("host_offload").ledger.step_s * factors["host_offload"]
        / (c.result("on_die").ledger.step_s * factors["on_die"])
        for factors in (slow, fast)
    ]  # fmt: skip
    only = answer_of(c, RATE).fastest.certainty
    assert found.best == "on_die" and only.decided_by == RATE
    assert only.ratio == pytest.approx(lead) and only.ratio[0] < only.ratio[1]


def answer_of(comparison: Comparison, key: str):
    """The answer if this constant alone were varied."""
    only = (swing(comparison, key),)
    return answer(dataclasses.replace(comparison, swings=only, published_swings=()))


def test_the_peak_is_drawn_though_it_is_published(c):
    assert "host.accelerator_peak" in {bar.key for bar in c.odds.bars}
    assert "host.accelerator_peak" not in {swing.key for swing in c.swings}


def test_the_peak_is_part_of_the_verdict_on_time(c, csd_pe):
    """It is from a data sheet, and it scales forward and backward."""
    (peak,) = (swing for swing in c.published_swings if swing.key == "host.accelerator_peak")
    leaf = csd_pe.leaf(peak.key)
    assert peak.steps_at_low["on_die"] > 1 and leaf.high == leaf.value and not peak.steps_at_high
    ranged = [s.key for s in (*c.swings, *c.published_swings) if not s.fails]
    sure = answer(c).fastest.certainty
    assert sure.constants == len([key for key in ranged if not is_price(key)])
    assert any(is_price(key) for key in ranged)  # no energy constant changes a time
    only = dataclasses.replace(c, swings=(), published_swings=(peak,))
    found = answer(only).fastest.certainty
    assert (found.constants, found.decided_by) == (1, "host.accelerator_peak")
    at = [run(csd_pe.replace({peak.key: getattr(leaf, end)}))
          for end in ("low", "high")]  # fmt: skip
    lead = [x.result("host_offload").ledger.step_s / x.result("on_die").ledger.step_s for x in at]
    assert found.ratio == pytest.approx(lead, rel=4e-3)


@pytest.mark.parametrize("key", POWERS)
def test_the_powers_are_exact(c, csd_pe, key):
    (bar,) = (bar for bar in c.odds.bars if bar.key == key)
    leaf = csd_pe.leaf(key)
    for i, end in enumerate((leaf.low, leaf.high)):
        at = run(csd_pe.replace({key: end}))
        base, rival = (at.result(name).energy for name in PAIR)
        assert bar.step[i] == pytest.approx(base.all[1] / rival.all[1], rel=1e-9)
        assert bar.energy[i] == pytest.approx(
            base.storage_and_host[1] / rival.storage_and_host[1], rel=1e-9
        )
    assert bar.step[0] != bar.step[1]


@pytest.mark.soak
def test_a_rate_that_gives_no_times_changes_nothing(csd_pe):
    """Times of the trace, or stated ones, do not follow from the rate."""
    for options in (Options(step_times="trace"), Options(forward_s=1.0, backward_s=2.0)):
        found = run(assumed_only(csd_pe, RATE), swing=True, options=options)
        row = swing(found, RATE)
        assert not row.of_training and row.speedup_at_low == row.energy_at_high == 1
        (bar,) = (bar for bar in found.odds.bars if bar.key == RATE)
        assert bar.step[0] == bar.step[1] == pytest.approx(bar.step[0])


def test_stated_forward_leaves_backward_to_the_rate(csd_pe):
    found = run(assumed_only(csd_pe, RATE), swing=True, options=Options(forward_s=1.0))
    assert 1 < swing(found, RATE).steps_at_low["on_die"] < 1.01


@pytest.mark.parametrize("name", preset_names())
def test_assumed_numbers_have_ranges(name):
    cfg = load_preset(name)
    bare = [leaf.key for leaf in cfg.assumed() if leaf.low is None or leaf.high is None]
    assert bare == []
    if not cfg.host.accelerator_wait_power_mw:
        return  # Newport and Laguna train on the host's CPU, whose power is published
    for key in ("host.compute_power", "host.accelerator_wait_power"):
        assert cfg.leaf(key).low < cfg.leaf(key).high
