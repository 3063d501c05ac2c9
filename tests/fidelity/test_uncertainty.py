"""Is the stated certainty of "who takes less energy" that of the ranges of the constants?

Cases with one uncertain constant have a closed form; the rest is held against energy() itself.
"""

import dataclasses
import math

import numpy as np
import pytest

from ondie.emu.analysis import monte_carlo as uncertainty
from ondie.emu.analysis.compare import Comparison, compare
from ondie.emu.analysis.energy import energy, is_price
from ondie.emu.analysis.monte_carlo import DRAWS, DRIVE_ALONE, WITH_HOST, Pair, Span, assess
from ondie.emu.analysis.sensitivity import USER_CHOICES, Swing
from ondie.emu.config.config import Config, load_preset
from ondie.emu.results.tables import energy_uncertainty
from ondie.emu.validate import model
from tests.smoke.commands import SMALL

RIVAL = {"optimstore-r2": "on_die", "newport": "in_storage"}
PAIR = ("host_offload", "on_die")
N = 2_000_000


def without_ranges(cfg: Config) -> Config:
    """The same values; nothing is uncertain."""
    return cfg.replace({leaf.key: leaf.value for leaf in cfg.leaves()})


def with_ranges(cfg: Config, ranges: dict[str, tuple[float, float]]) -> Config:
    """Only these are uncertain; quantities in base units."""
    fixed = without_ranges(cfg)
    leaves = {
        key: dataclasses.replace(fixed.leaf(key), low=low, high=high)
        for key, (low, high) in ranges.items()
    }
    return dataclasses.replace(fixed, records={**fixed.records, **leaves})


def runs(c: Comparison) -> dict:
    """Ledger and work of the pair."""
    found = {name: c.result(name) for name in PAIR}
    return {name: (r.ledger, r.work) for name, r in found.items()}


def spans(c: Comparison, cfg: Config) -> list:
    """(low, typical, high) J of drive and host of the pair, on another configuration."""
    return [energy(cfg, *(book.totals, work)).storage_and_host for book, work in runs(c).values()]


@pytest.fixture(scope="module")
def c() -> Comparison:
    """A comparison in which the energy of a die is so high that on_die loses, unless a waiting host
    draws more than about 150 W."""
    cfg = load_preset("optimstore-r1", ["energy.pe_multiply=72 nJ"])
    return compare(model("adam", N), cfg, paths=PAIR, swing=False)


@pytest.fixture(scope="module")
def cheap() -> Comparison:
    """on_die takes less even without any host."""
    return compare(model("adam", N), load_preset("optimstore-r1"), paths=PAIR, swing=False)


@pytest.fixture(scope="module")
def whole() -> Comparison:
    """Of a model as small as the sample, with blocks as short as the sample's."""
    settings = ["flash.pages_per_block=4", "flash.blocks_per_plane=2000"]
    cfg = load_preset("optimstore-r1", [*settings, "flash.channels=4", "flash.dies_per_channel=4"])
    return compare(model("adam", 250_000), cfg, paths=PAIR)


def waits(c: Comparison, cfg: Config) -> float:
    """Power in W of the waiting host at which both take the same, by hand.

    The host waits for the whole step under on_die, and under host_offload while its CPU does not
    update N parameters: E_base + P t_base = E_rival + P t_rival.
    """
    base, rival = (e[1] for e in spans(c, cfg))
    base_s, rival_s = (book.step_s for book, _ in runs(c).values())
    base_s -= N / cfg.host.adam_params_per_s
    power = cfg.host.wait_power_mw / 1e3
    return ((rival - power * rival_s) - (base - power * base_s)) / (base_s - rival_s)


# --- one constant, exactly


def test_a_triangle_around_the_typical_value(c):
    """Only the power of the waiting host is uncertain, 50..400 W around 88 W. on_die takes less
    above P*; of a triangle above its mode P(x > P*) = (high - P*)^2 / (range (high - mode))."""
    cfg = with_ranges(c.cfg, {"host.wait_power": (50_000, 400_000)})
    limit = waits(c, cfg)
    assert 88 < limit < 400
    exact = (400 - limit) ** 2 / (350 * (400 - 88))
    assert 0.3 < exact < 0.7
    for law in uncertainty.DRAW_LAWS:  # eightfold: no decade, so both laws are the triangle
        a = assess(cfg, runs(c), [], 0).answers[law][WITH_HOST]
        assert a.error == pytest.approx(math.sqrt(exact * (1 - exact) / DRAWS), rel=0.05)
        assert abs(a.probability - exact) < 4 * a.error


def test_evenly_in_the_logarithm_beyond_a_decade(c):
    """20..1000 W is more than a decade: P(x > P*) = ln(1000/P*) / ln(50); and the law that is
    triangular throughout gives another probability, of its own closed form."""
    cfg = with_ranges(c.cfg, {"host.wait_power": (20_000, 1_000_000)})
    limit = waits(c, cfg)
    answers = assess(cfg, runs(c), [], 0).answers
    exact = {
        "mixed": math.log(1000 / limit) / math.log(50),
        "triangular": (1000 - limit) ** 2 / (980 * (1000 - 88)),
    }
    assert abs(exact["mixed"] - exact["triangular"]) > 0.1
    for law, p in exact.items():
        a = answers[law][WITH_HOST]
        assert abs(a.probability - p) < 4 * a.error, law
        assert answers[law][DRIVE_ALONE].quantiles == pytest.approx(
            [answers[law][DRIVE_ALONE].typical] * 3, rel=1e-5
        )


def test_quantiles_of_one_constant(c):
    """The ratio rises with the waiting power: its 95 % quantile is the ratio at the power's 95 %,
    which for a triangle is high - sqrt(0.05 range (high - mode))."""
    cfg = with_ranges(c.cfg, {"host.wait_power": (50_000, 400_000)})
    a = assess(cfg, runs(c), [], 0).answers["mixed"][WITH_HOST]
    watts = 400 - math.sqrt(0.05 * 350 * (400 - 88))
    base, rival = (e[1] for e in spans(c, cfg.replace({"host.wait_power": round(watts * 1e3)})))
    assert a.quantiles[2] == pytest.approx(base / rival, rel=0.01)
    assert a.typical == pytest.approx(spans(c, cfg)[0][1] / spans(c, cfg)[1][1])


def test_without_ranges_it_is_certain(c):
    odds = assess(without_ranges(c.cfg), runs(c), [], 0)
    assert (odds.drawn, odds.bars) == (0, ())
    for answers in odds.answers.values():
        for a in answers.values():
            assert a.quantiles == pytest.approx([a.typical] * 3, rel=1e-5)
            assert (a.probability, a.error) == (float(a.typical > 1), 0.0)


def test_a_constant_is_the_same_for_both_paths(c):
    """A cell that is dear to program is so for both: the ratio stays between its ends."""
    key = "energy.nand_program"
    cfg = with_ranges(c.cfg, {key: (10_000, 1_000_000)})
    odds = assess(cfg, runs(c), [], 0)
    (bar,) = odds.bars
    a = odds.answers["mixed"][DRIVE_ALONE]
    assert min(bar.drive) * (1 - 1e-5) < a.quantiles[0] < a.quantiles[2]
    assert a.quantiles[2] < max(bar.drive) * (1 + 1e-5)


def test_the_two_powers_of_a_host_are_drawn_independently(c):
    """Equal powers are among the draws: the host's CPU may draw as much while it waits."""
    ranges = {"host.update_power": (80_000, 250_000), "host.wait_power": (50_000, 200_000)}
    pair = Pair(with_ranges(c.cfg, ranges), runs(c), [])
    drawn = {span.key: span.draw(3, "mixed") for span in pair.spans}
    up, wait = (drawn[key] for key in ranges)
    assert abs(np.corrcoef(up, wait)[0, 1]) < 0.03
    assert ((up / wait > 0.98) & (up / wait < 1.02)).any()


def test_constants_of_one_link_are_drawn_together(c):
    a = Span("link.down", 1.0, 2.0, 3.0, False, ("", ""), None)
    b = dataclasses.replace(a, key="link.up")
    assert (a.draw(3, "mixed") == b.draw(3, "mixed")).all()


def test_draws_of_a_constant_do_not_depend_on_others():
    a = Span("energy.dram", 1.0, 2.0, 3.0, False, ("", ""), None)
    b = dataclasses.replace(a, key="energy.ecc")
    assert (a.draw(1, "mixed") == a.draw(1, "mixed")).all()
    assert not (a.draw(1, "mixed") == a.draw(2, "mixed")).all()
    assert abs(np.corrcoef(a.draw(1, "mixed"), b.draw(1, "mixed"))[0, 1]) < 0.03


@pytest.mark.parametrize("ends", [(1.0, 3.0), (2.0, 3.0), (1.0, 2.0), (0.0, 50.0), (1.5, 100.0)])
def test_draws_stay_in_their_range(ends):
    """And have the mean of their law: (low + mode + high) / 3, or (high - low) / ln(high / low)."""
    low, high = ends
    span = Span("k", low, 2.0, high, False, ("", ""), None)
    for law in uncertainty.DRAW_LAWS:
        values = span.draw(0, law)
        assert low <= values.min() and values.max() <= high
        even = law == "mixed" and low > 0 and high / low > 10
        mean = (high - low) / math.log(high / low) if even else (low + 2 + high) / 3
        assert values.mean() == pytest.approx(mean, rel=0.02)


def test_a_choice_keeps_its_typical_value_in_half_of_the_draws():
    span = Span("pe.dispatch", 0.0, 0.0, 1.0, True, ("lockstep", "double_buffered"), None)
    assert set(span.draw(0, "mixed")) == {0.0, 1.0}
    assert span.draw(0, "mixed").mean() == pytest.approx(0.5, abs=0.02)
    both = dataclasses.replace(span, low=-1.0)
    found = [float((both.draw(0, "mixed") == x).mean()) for x in (-1.0, 0.0, 1.0)]
    assert found == pytest.approx([0.25, 0.5, 0.25], abs=0.02)


# --- what changes time


def test_between_simulated_ends_a_quantity_is_a_power_of_the_constant(c):
    """Twice the seconds at a quarter of the rate: at half the rate sqrt(2) times; above the typical
    value nothing changes."""
    typical = c.cfg.host.adam_params_per_s
    cfg = with_ranges(c.cfg, {"host.adam": (typical // 4, typical * 4)})
    swing = Swing("host.adam", "", "", 1.0, 1.0, 1.0, 1.0, {"host_offload": {"host busy": 2.0}})
    pair = Pair(cfg, runs(c), [swing])

    def seconds(rate: float) -> float:
        of = pair.slopes({"host.adam": np.array([rate])})
        return float(of["host.update_power"][0])

    one = seconds(typical)
    assert one == pytest.approx(N / typical)
    found = [seconds(typical * x) / one for x in (0.25, 0.5, 2, 4)]
    assert found == pytest.approx([2, math.sqrt(2), 1, 1])


def test_every_constant_with_a_range_has_a_bar(whole):
    """All prices that are charged and all that may have a say in time, assumed or not."""
    keys = {bar.key for bar in whole.odds.bars}
    assumed = {s.key for s in whole.swings if not is_price(s.key)} - USER_CHOICES
    prices = set(Pair(whole.cfg, runs(whole), []).prices)
    assert assumed | {"flash.t_read", "flash.t_program", "flash.page", "link.up"} <= keys
    assert {key for key in prices if whole.cfg.leaf(key).low is not None} <= keys
    assert {"host.update_power", "host.wait_power", "energy.nand_read"} <= keys
    assert not keys & USER_CHOICES
    widths = [uncertainty.width(bar.energy, whole.odds.ratios[0]) for bar in whole.odds.bars]
    assert widths == sorted(widths, reverse=True)


def test_bars_of_prices_are_energy_at_the_ends(whole):
    bars = [bar for bar in whole.odds.bars if is_price(bar.key)]
    assert len(bars) > 10
    for bar in bars:
        leaf = whole.cfg.leaf(bar.key)
        for end, both, drive in zip((leaf.low, leaf.high), bar.energy, bar.drive, strict=True):
            cfg = whole.cfg.replace({bar.key: end})
            base, rival = (energy(cfg, book.totals, work) for book, work in runs(whole).values())
            ratio = base.storage_and_host[1] / rival.storage_and_host[1]
            assert both == pytest.approx(ratio, rel=1e-9), bar.key
            assert drive == pytest.approx(base.drive[1] / rival.drive[1], rel=1e-9), bar.key
        assert bar.speedup == pytest.approx([whole.odds.ratios[2]] * 2)


@pytest.mark.parametrize("key", ["flash.t_program", "host.adam", "pe.dispatch", "flash.page"])
def test_bars_of_times_are_whole_runs_at_the_ends(whole, key):
    """Where a run at an end is the sample at that end."""
    (bar,) = (bar for bar in whole.odds.bars if bar.key == key)
    leaf = whole.cfg.leaf(key)
    for i, end in enumerate((leaf.low, leaf.high)):
        at = compare(whole.trace, whole.cfg.replace({key: end}), paths=PAIR, swing=False)
        base, rival = (at.result(name) for name in PAIR)
        ratio = base.energy.storage_and_host[1] / rival.energy.storage_and_host[1]
        assert bar.energy[i] == pytest.approx(ratio, rel=1e-9)
        assert bar.drive[i] == pytest.approx(base.energy.drive[1] / rival.energy.drive[1])
        assert bar.speedup[i] == pytest.approx(base.ledger.update_s / rival.ledger.update_s)


def test_an_end_at_which_a_path_cannot_run_is_not_drawn(c):
    """n/a at the high end: draws stay at or below the typical value, and its bar has one end."""
    typical = c.cfg.flash.dies_per_channel
    cfg = with_ranges(c.cfg, {"flash.dies_per_channel": (typical // 2, typical * 2)})
    change = {"on_die": {"host waiting": 1.5}}
    swing = Swing("flash.dies_per_channel", "", "", 0.7, None, 0.8, None, change)
    pair = Pair(cfg, runs(c), [swing])
    (span,) = pair.deciding
    assert span.draw(0, "mixed").max() <= typical
    (bar,) = uncertainty.bars(pair, 2.0)
    assert bar.energy[1] is bar.drive[1] is bar.speedup[1] is None
    assert bar.speedup[0] == pytest.approx(1.4)
    assert bar.energy[0] < assess(cfg, runs(c), [], 0).ratios[0]


# --- the host power at which the winner changes


@pytest.mark.parametrize("key", ["host.update_power", "host.wait_power"])
def test_at_that_power_both_take_the_same(c, key):
    (crossing,) = (x for x in assess(c.cfg, runs(c), [], 0).crossings if x.keys == (key,))
    (watts,) = crossing.watts
    for factor, winner in ((1.0, None), (0.99, crossing.below), (1.01, crossing.above)):
        cfg = c.cfg.replace({key: round(watts * factor * 1e3)})
        base, rival = (e[1] for e in spans(c, cfg))
        if winner is None:
            assert base / rival == pytest.approx(1, rel=1e-4)
        else:
            assert (rival < base) == (winner == "on_die")


@pytest.mark.parametrize(("vary", "ratio"), [("in proportion", 120 / 88), ("equal", 1.0)])
def test_both_powers_at_once(c, vary, ratio):
    """Where the host draws more than this, waiting for it costs more than the dear die."""
    (crossing,) = (x for x in assess(c.cfg, runs(c), [], 0).crossings if x.vary == vary)
    assert (crossing.below, crossing.above) == PAIR
    watts = dict(zip(crossing.keys, crossing.watts, strict=True))
    assert watts["host.update_power"] / watts["host.wait_power"] == pytest.approx(ratio)
    for factor in (0.9, 1.0, 1.1):
        powers = {key: round(x * factor * 1e3) for key, x in watts.items()}
        base, rival = (e[1] for e in spans(c, c.cfg.replace(powers)))
        if factor == 1:
            assert base / rival == pytest.approx(1, rel=1e-4)
        else:
            assert (rival < base) == (factor > 1)


@pytest.mark.parametrize("vary", ["in proportion", "equal"])
def test_no_power_changes_the_winner_where_the_drive_alone_wins_too(cheap, vary):
    cfg = cheap.cfg
    (crossing,) = (x for x in assess(cfg, runs(cheap), [], 0).crossings if x.vary == vary)
    assert crossing.watts is None and crossing.below == crossing.above == "on_die"
    for factor in (0.001, 1, 1000):
        powers = {key: round(cfg.leaf(key).value * factor) for key in crossing.keys}
        base, rival = (e[1] for e in spans(cheap, cfg.replace(powers)))
        assert rival < base


def test_the_power_as_an_interval(c):
    """Only the other power is uncertain: P* falls linearly with it, and its 95 % quantile is at
    the 5 % quantile of that power."""
    cfg = with_ranges(c.cfg, {"host.update_power": (80_000, 250_000)})
    found = assess(cfg, runs(c), [], 0).crossings
    (crossing,) = (x for x in found if x.keys == ("host.wait_power",))
    watts = 80 + math.sqrt(0.05 * 170 * (120 - 80))  # 5 % of the triangle
    limit = waits(c, cfg.replace({"host.update_power": round(watts * 1e3)}))
    assert crossing.quantiles[2] == pytest.approx(limit, rel=0.01)
    assert crossing.quantiles[0] < crossing.watts[0] < crossing.quantiles[2]


# --- of a comparison


@pytest.mark.parametrize("end", ["low", "high", None])
def test_a_typical_ratio_outside_the_draws_is_explained(c, end):
    """Typical at an end of the only range, all draws but few lie on one side of it."""
    span = {"low": (88_000, 300_000), "high": (1_000, 88_000), None: (80_000, 96_000)}[end]
    cfg = with_ranges(c.cfg, {"host.wait_power": span})
    odds = assess(cfg, runs(c), (), 0)
    drawn = odds.answers["mixed"][WITH_HOST]
    outside = not drawn.quantiles[0] <= drawn.typical <= drawn.quantiles[2]
    assert outside == (end is not None)
    words = energy_uncertainty.odds_words(odds)
    expected = "because the typical value is an end of the range of host.wait_power. "
    assert (expected in words) == outside == words.startswith("The typical ratio (SSD and host)")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("preset", ["optimstore-r2", "newport"])
def test_a_comparison_has_its_odds(preset, counts):
    cfg = load_preset(preset, SMALL)
    c = compare(model("adam", counts(100_000, 1_000_000)), cfg)
    assert c.odds.pair == c.swing_pair == ("host_offload", RIVAL[preset])
    base, rival = (c.result(name) for name in c.odds.pair)
    typical = base.energy.storage_and_host[1] / rival.energy.storage_and_host[1]
    for answers in c.odds.answers.values():
        assert answers[WITH_HOST].typical == pytest.approx(typical, rel=1e-12)
        for a in answers.values():
            assert 0 <= a.probability <= 1 and a.quantiles == tuple(sorted(a.quantiles))
    assert c.odds.drawn > 20
    books = {r.name: (r.ledger, r.work) for r in (base, rival)}
    fewer = assess(cfg, books, list(c.swings), 0)  # without what is not assumed
    assert fewer.drawn < c.odds.drawn
    assert fewer.answers != assess(cfg, books, list(c.swings), 1).answers
    assert fewer == assess(cfg, books, list(c.swings), 0)
