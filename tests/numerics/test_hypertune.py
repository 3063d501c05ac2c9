"""Does HyperTune act within ten steps of a decline, never without one, and choose the right batch?

FACTS used: Eq. 2 = 0.7 (SP - SP_i) / SP + 0.3 (N - step) / N, above 0.20 five times in a row; as
printed it fires with no decline in the first third of an epoch; Eq. 3 has its weights swapped in
print; BS SP_i / SP gives the paper's batches; mean of the last 5 of a 10-step window.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.cluster.cluster import Fleet, Kind
from ondie.emu.cluster.collectives.multi_server import Exchanged
from ondie.emu.cluster.hypertune.controller import HyperTune, Rule
from ondie.emu.cluster.hypertune.slowdown_detector import gated, index, literal
from ondie.emu.cluster.load.trace import Load
from ondie.emu.cluster.training_sim import Data, Simulation
from ondie.emu.units import InputError

NOISE, CPU_NOISE = 0.05, 0.02
PLAIN = Rule()


def fleet(n, batch=180, speed=32.0, rule=PLAIN, **options):
    return HyperTune(rule, np.full(n, batch), np.full(n, speed), **options)


def feed(tune, ratios, cores, *, steps=100, start=0, rng=None):
    """Observe rows of float64[count, n]: speeds over the tuned ones and shares of cores, with the
    noise of FACTS if there is a generator; the changes by row."""
    changes = {}
    n = ratios.shape[1]
    for row, (ratio, core) in enumerate(zip(ratios, cores, strict=True)):
        if rng is not None:
            ratio = ratio * (1 + NOISE * rng.standard_normal(n))
            core = np.clip(core + CPU_NOISE * rng.standard_normal(n), 0, 1)
        change = tune.observe((start + row) % steps, steps, 32.0 * ratio, core)
        if change is not None:
            changes[row] = change
    return changes


def rows(*parts):
    """float64[count, n] of (count, values of the nodes) one after the other."""
    return np.concatenate([np.tile(np.asarray(v, np.float64), (count, 1)) for count, v in parts])


# --- Eq. 2


@given(st.integers(1, 3000), st.data())
def test_as_printed_it_fires_with_no_decline_in_the_first_third(steps, data):
    """0.3 (N - step) / N > 0.2: step < N / 3. 0.14 more at a 20 % decline: step < 0.8 N."""
    step = data.draw(st.integers(0, steps - 1))
    flagged = literal(np.array([0.0, 0.2]), step, steps)
    if 3 * step != steps:  # there rounding decides
        assert flagged[0] == (3 * step < steps)
    if 5 * step != 4 * steps:
        assert flagged[1] == (5 * step < 4 * steps)


def test_the_index_by_hand():
    """0.7 x 0.2 + 0.3 x 25/100 = 0.215; 0.7 x 0.5 + 0 = 0.35."""
    assert index(np.array([0.2]), 75, 100) == pytest.approx(0.215)
    assert index(np.array([0.5]), 100, 100) == pytest.approx(0.35)


def test_the_gate_by_hand():
    """Margin 0.1, step 90 of 100, dated 81: 0.7 (d + 0.1) + 0.3 x 0.19 > 0.2 from d = 0.1043 on; in
    step 0 the margin alone decides; what is not observed is not flagged."""
    decline = np.array([0.10, 0.104, 0.105, np.nan])
    margin = np.full(4, 0.1)
    assert gated(decline, margin, 90, 100).tolist() == [False, False, True, False]
    assert gated(decline, margin, 0, 100).tolist() == [False, True, True, False]
    assert not gated(np.array([0.0]), np.array([0.1]), 0, 100).any()


# --- when


def test_no_trigger_without_a_decline(counts):
    """1,000 epochs of 37 nodes at full counts, of the papers' 92 steps."""
    rng = np.random.default_rng(11)
    tune = fleet(37, rule=Rule())
    steps = 92
    for _ in range(counts(40, 1000)):
        ones = np.ones((steps, 37))
        assert not feed(tune, ones, ones, steps=steps, rng=rng)
    assert (tune.batches == 180).all()


@given(st.integers(1, 400), st.integers(1, 6), st.integers(0, 2**32), st.data())
def test_a_decline_of_a_fifth_triggers_within_ten_steps(steps, n, seed, data):
    """Wherever it begins in the first 75 % of an epoch, of however many nodes; of nobody else."""
    start = data.draw(st.integers(0, 3 * steps // 4).filter(lambda s: s <= 0.75 * steps))
    hit = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    ratio, cores = np.where(hit, 0.8, 1.0), np.where(hit, 0.5, 1.0)
    before = max(start, data.draw(st.integers(0, 2)) * steps + start)  # epochs may have gone by
    tune = fleet(n, rule=Rule())
    feed_rng = np.random.default_rng(seed)
    ones = np.ones((before, n))
    assert not feed(tune, ones, ones, steps=steps, rng=feed_rng)
    changes = feed(
        tune, rows((10, ratio)), rows((10, cores)), steps=steps, start=before, rng=feed_rng
    )
    changed = np.unique(np.concatenate([c.nodes for c in changes.values()] or [[]]))
    assert changed.tolist() == np.flatnonzero(hit).tolist()
    assert (tune.batches[~hit] == 180).all()
    assert (np.abs(tune.batches[hit] - 144) < 0.12 * 144).all()  # 5 x 5 % / sqrt(5)


@pytest.mark.parametrize("steps", [4, 20, 28, 40, 60, 100, 400])
def test_a_decline_at_three_quarters_of_an_epoch(steps, counts):
    """The hardest: 0.7 x 0.2 + 0.3 x 0.25 = 0.215, and less with every step it takes to see."""
    n, start = counts(2000, 50_000), 3 * steps // 4
    rng = np.random.default_rng(steps)
    tune = fleet(n, rule=Rule())
    ones = np.broadcast_to(1.0, (steps + start, n))
    assert not feed(tune, ones, ones, steps=steps, rng=rng)
    down, half = np.full((10, n), 0.8), np.full((10, n), 0.5)
    changes = feed(tune, down, half, steps=steps, start=start, rng=rng)
    assert sum(len(c.nodes) for c in changes.values()) == n
    assert min(changes) >= 4  # five flags


def test_what_the_paper_could_not_flag_is_late_but_seen():
    """A 20 % decline in the last fifth: the literal index stays below 0.2 until the next epoch."""
    printed = fleet(1, rule=Rule(index="literal"))
    ratios, ones = rows((12, [0.8])), np.ones((12, 1))
    assert not feed(printed, ratios, ones, steps=100, start=85)
    assert min(feed(fleet(1), ratios, ones, steps=100, start=85)) <= 9


def test_five_in_a_row():
    """A margin of 11.18 %. Four steps at 0.8 are means of 4, 8, 12, 16, 16, 12, 8, 4 % less: four
    flags. Five steps are 4, 8, 12, 16, 20, 16, 12, 8, 4 %: five, and a batch for 12 % less."""
    for count, expected in ((4, []), (5, [158])):
        tune = fleet(1)
        ratios = rows((10, [1.0]), (count, [0.8]), (10, [1.0]))
        changes = feed(tune, ratios, np.ones_like(ratios)).values()
        assert [c.batches[0] for c in changes] == expected


def test_a_batch_does_not_grow_on_steps_that_decline():
    """Batch 90 on a quarter of the cores. All cores return; one step at 0.02 keeps the mean of five
    below its margin for four steps: (0.02 + 4 x 0.5) / 5 = 0.404 is 19 % below 0.5. The five steps
    that growth requires begin after them: rows 4 to 8."""
    tune = fleet(1)
    feed(tune, rows((10, [1.0]), (20, [0.5])), rows((10, [1.0]), (20, [0.25])))
    assert tune.batches.tolist() == [90]
    ratios = rows((1, [0.02]), (3, [0.5]), (12, [1.0]))
    flags = []
    for row, ratio in enumerate(ratios):
        change = tune.observe(30 + row, 100, 32.0 * ratio, np.ones(1))
        flags.append(int(tune.flags[0]))
        if change is not None:
            break
    assert flags[:5] == [1, 2, 3, 4, 0]
    assert row == 8 and change.after.tolist() == [180]


# --- as printed: livelock


class Watched(HyperTune):
    """A controller that keeps its changes with the number of observations before them."""

    def __init__(self, rule):
        super().__init__(rule, np.full(3, 180), np.full(3, 32.0))
        self.observed, self.changes = 0, []

    def observe(self, *observations):
        change = super().observe(*observations)
        if change is not None:
            self.changes.append((self.observed, change))
        self.observed += 1
        return change


def train(rule, epoch, steps, load=None):
    """Train with three equal nodes, ``epoch`` steps of 540 samples each; (controller, history)."""
    node = Kind("host", 3, Engine("node", ((180, 32.0),)), 8, lambda left: left, host=True)
    cluster = Fleet((node,), lambda there: Exchanged("", 0.157, 0.0, ""), 0, lambda there: 0.0)
    tune, data = Watched(rule), Data(epoch * 540, np.zeros(3, np.int64))
    run = Simulation(cluster, np.full(3, 180), data, load=load, tuner=tune)
    return tune, run.run(steps)


def epochs_of(history):
    return len([note for note in history.notes if note.what == "epoch"])


def test_as_printed_no_epoch_ever_ends():
    """With the papers' termination five flags come in the first five steps of every epoch, at full
    speed: the rest of the data is never seen. Gated, every epoch ends; and with a new split at the
    next step the printed index ends epochs, too, but acts in each."""
    found = {}
    for name, rule in (
        ("printed", Rule(index="literal", ends_epoch=True)),
        ("gated", Rule(ends_epoch=True)),
        ("printed, next step", Rule(index="literal")),
    ):
        tune, history = train(rule, 60, 601)  # the end of an epoch is noted in the step after it
        found[name] = [at for at, _ in tune.changes], epochs_of(history), history.dropped
    changes, epochs, dropped = found["printed"]
    assert (changes, epochs) == (list(range(4, 600, 5)), 0)
    assert dropped == 120 * 55 * 540  # 55 of 60 steps, again and again
    assert found["gated"] == ([], 10, 0)
    changes, epochs, dropped = found["printed, next step"]
    assert (epochs, dropped) == (10, 0)
    assert len([at for at in changes if at < 600]) == 10 * 4  # 20 steps of 60, five by five


def test_a_change_may_end_the_epoch():
    load = Load(np.array([10 * (180 / 32 + 0.157) - 0.1]), np.array([0]), np.array([4.0]))
    tune, history = train(Rule(ends_epoch=True), 30, 40, load)
    ((at, change),) = tune.changes
    assert change.ends_epoch and at == 15  # means 0.9 (below its margin), 0.8, ..: six steps
    assert history.dropped == 14 * 540 and epochs_of(history) == 0
    assert not fleet(3).rule.ends_epoch


# --- which batch


def curve(*points):
    return Engine("node", tuple(points))


RISING = curve((50, 20.0), (100, 28.0), (200, 32.0))


def test_eq_3_by_hand():
    """At 30 samples/s, between 28 at 100 and 32 at 200: 150 either way; at 29: 100 (32 - 29)/4 +
    200 (29 - 28)/4 = 125, as printed 100/4 + 200 x 3/4 = 175; at 24: 75."""
    for rule, expected in (("eq3", [150, 125, 75, 50]), ("eq3-literal", [150, 175, 75, 100])):
        tune = fleet(4, 200, 32.0, Rule(batch=rule), engines=[RISING])
        wanted = tune._curves.inverse(np.array([30.0, 29.0, 24.0, 20.0]), rule == "eq3-literal")
        assert wanted.tolist() == pytest.approx(expected)


def test_eq_3_as_printed_goes_the_wrong_way():
    """The more a node slows within two points, the larger its batch: 31 samples/s of 32 is nearly
    200, and printed nearly 100."""
    speeds = np.linspace(28.1, 31.9, 20)
    tune = fleet(20, 200, 32.0, Rule(batch="eq3"), engines=[RISING])
    right, printed = (tune._curves.inverse(speeds, literal=form) for form in (False, True))
    assert (np.diff(right) > 0).all() and (np.diff(printed) < 0).all()
    assert (right + printed).tolist() == pytest.approx([300] * 20)


@pytest.mark.parametrize(("rule", "batch"), [("eq3", 102), ("eq3-literal", 200)])
def test_eq_3_decides(rule, batch):
    """A node at 28.1 of 32 samples/s: the curve has that at 102.5. Printed: at 197.5, which is not
    worth a change, and the node is slow for ever."""
    tune = fleet(2, 200, 32.0, Rule(batch=rule), engines=[RISING])
    ratios = rows((10, [1, 1]), (20, [28.1 / 32, 1]))
    feed(tune, ratios, np.ones_like(ratios))
    assert tune.batches.tolist() == [batch, 200]


def test_eq_3_cannot_tell_batches_of_a_flat_curve_apart():
    for points in (((180, 32.0),), ((90, 32.0), (180, 32.0)), ((90, 33.0), (180, 32.0))):
        with pytest.raises(InputError, match="node: its speed does not rise"):
            fleet(1, rule=Rule(batch="eq3"), engines=[curve(*points)])
    text = "'eq3' requires the tuner's speed curves; pass them with engines="
    with pytest.raises(InputError, match=text):
        fleet(1, rule=Rule(batch="eq3"))


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=40))
def test_any_number_of_nodes_at_once(ratios):
    """Without noise each gets the largest batch that takes no longer than its tuned one, if the
    decline is above the margin, 11.18 %; and nobody waits for it any more."""
    tune = fleet(len(ratios))
    ratio = np.array(ratios)
    feed(tune, rows((3, np.ones_like(ratio)), (20, ratio)), np.ones((23, len(ratios))))
    margin = 5 * 0.05 / math.sqrt(5)
    for got, r in zip(tune.batches.tolist(), ratios, strict=True):
        if abs(1 - r - margin) > 1e-3:
            assert got == (max(1, math.floor(180 * r + 1e-9)) if 1 - r > margin else 180)


def test_a_node_on_a_rising_curve_gets_the_batch_of_its_time():
    """Half the speed: 200 / 32 s x 0.5 = 3.125 s, which on the curve are 20 + 8/50 (b - 50) samples
    a second: b = 3.125 x 12 / (1 - 3.125 x 0.16) = 75; by 200 x 0.5 = 100 it would be late."""
    tune = fleet(1, 200, 32.0, engines=[RISING])
    batches = []
    for step in range(60):
        at = int(tune.batches[0])
        change = tune.observe(step, 100, np.array([0.5 * RISING.speed(at)]), np.array([0.5]))
        batches += [change.batches[0]] if change is not None else []
    assert batches == [75]


# --- back again, and not to and fro


def test_a_node_grows_when_its_cores_come_back():
    tune = fleet(3)
    ratios = rows((10, [1, 1, 1]), (30, [0.5, 0.8, 1]), (30, [1, 1, 1]))
    cores = rows((10, [1, 1, 1]), (30, [0.25, 0.5, 1]), (30, [1, 1, 1]))
    changes = list(feed(tune, ratios, cores).values())
    assert tune.batches.tolist() == [180, 180, 180]
    assert sorted(n for c in changes for n in c.nodes) == [0, 0, 1, 1]
    assert math.prod(c.learning_rate for c in changes) == pytest.approx(1)


def test_it_grows_as_far_as_cores_came_back():
    tune = fleet(1)
    ratios = rows((10, [1.0]), (30, [0.56]), (30, [0.8]), (30, [0.9]), (30, [1.0]))
    cores = rows((10, [1.0]), (30, [0.25]), (30, [0.5]), (30, [0.75]), (30, [1.0]))
    batches = [c.batches[0] for c in feed(tune, ratios, cores).values()]
    assert batches == [100, 144, 162, 180]


def test_without_cpu_use_a_freed_node_stays_small():
    """The node's speed is then 25 % above the expected one; only the free cores would show whether
    that lasts."""
    tune = fleet(1)
    ratios = rows((10, [1.0]), (30, [0.8]), (60, [1.0]))
    assert len(feed(tune, ratios, np.full((100, 1), np.nan))) == 1
    assert tune.batches.tolist() == [144]


def test_a_decline_that_cores_do_not_explain_ends_with_the_speed():
    """Heat: all cores all the time."""
    tune = fleet(1)
    ratios = rows((10, [1.0]), (30, [0.7]), (30, [1.0]))
    batches = [c.batches[0] for c in feed(tune, ratios, np.ones((70, 1))).values()]
    assert batches == [126, 180]


def test_no_to_and_fro_under_a_constant_load(counts):
    """One change each and no other, in noise, with every speed from 40 to 85 %."""
    n = 40
    rng = np.random.default_rng(5)
    tune = fleet(n, rule=Rule())
    ratio = np.linspace(0.4, 0.85, n)
    ones = np.ones((20, n))
    feed(tune, ones, ones, rng=rng)
    count = counts(500, 20_000)
    changes = feed(tune, rows((count, ratio)), rows((count, np.full(n, 0.5))), rng=rng)
    changed = np.bincount(np.concatenate([c.nodes for c in changes.values()]), minlength=n)
    assert changed[:32].tolist() == [1] * 32  # a decline of 23 % and more
    assert changed.max() <= 2


def test_what_comes_and_goes_within_five_steps_changes_nothing():
    ratios = np.tile(rows((2, [0.8]), (3, [1.0])), (40, 1))  # means of five: 0.92
    assert not feed(fleet(1), ratios, np.where(ratios < 1, 0.5, 1.0))


def test_a_small_change_is_not_made():
    """4 % less is a decline where there is no noise, and not worth a new split."""
    quiet = Rule(noise=0.0, least_decline=0.02)
    ratios = rows((10, [1.0]), (30, [0.96]))
    assert not feed(fleet(1, rule=quiet), ratios, np.ones_like(ratios))
    eager = Rule(noise=0.0, least_decline=0.02, least_change=0.0)
    tune = fleet(1, rule=eager)
    assert feed(tune, ratios, np.ones_like(ratios)) and tune.batches.tolist() == [172]


def test_a_second_decline_counts_from_the_first():
    """0.8 is expected after the first: 0.8 x 0.8 of the tuned speed is a decline of 20 %."""
    rng = np.random.default_rng(3)
    tune = fleet(200)
    ratios = rows((20, np.ones(200)), (60, np.full(200, 0.8)), (30, np.full(200, 0.64)))
    cores = rows((20, np.ones(200)), (60, np.full(200, 0.5)), (30, np.full(200, 0.3)))
    changes = feed(tune, ratios, cores, rng=rng)
    assert (tune.margin < 5 * 0.05 * math.sqrt(1 / 5 + 1 / 5) + 1e-12).all()
    late = np.unique(np.concatenate([c.nodes for at, c in changes.items() if at >= 80]))
    assert len(late) > 190
    assert np.mean(tune.batches) == pytest.approx(0.64 * 180, rel=0.03)


def test_a_reference_gets_better_while_nothing_happens():
    """From a mean of 5 steps, margin 5 x 0.05 sqrt(2/5) = 15.8 %, to one of 20, 12.5 %."""
    rng = np.random.default_rng(4)
    tune = fleet(300)
    feed(tune, np.ones((10, 300)), np.ones((10, 300)), rng=rng)
    down, half = rows((12, np.full(300, 0.6))), rows((12, np.full(300, 0.25)))
    feed(tune, down, half, rng=rng)
    assert tune.margin == pytest.approx(5 * 0.05 * math.sqrt(2 / 5))
    spread = np.std(tune._expected.ratio)
    feed(tune, np.tile(down, (4, 1)), np.tile(half, (4, 1)), rng=rng)
    settled = tune.margin < 0.1251
    assert settled.mean() > 0.95 and tune.margin[settled] == pytest.approx(0.125)
    assert np.std(tune._expected.ratio) < 0.7 * spread


# --- limits, learning rate, nodes that come and go


def test_limits():
    tune = fleet(3, least=np.array([1, 100, 160]), most=np.array([180, 180, 240]))
    ratios = rows((10, [1, 1, 1]), (20, [0.3, 0.3, 0.3]))
    feed(tune, ratios, np.where(ratios < 1, 0.2, 1.0))
    assert tune.batches.tolist() == [54, 100, 160]
    more = rows((30, [1.5, 1.5, 1.5]))  # faster than tuned: up to what is allowed
    feed(tune, more, np.ones_like(more))
    assert tune.batches.tolist() == [180, 180, 240]


@pytest.mark.parametrize(
    ("rule", "factor"), [("linear", 450 / 540), ("sqrt", math.sqrt(450 / 540)), ("none", 1.0)]
)
def test_the_learning_rate_follows_the_total_batch(rule, factor):
    tune = fleet(3, rule=Rule(learning_rate=rule))
    ratios = rows((10, [1, 1, 1]), (10, [0.5, 1, 1]))
    (change,) = feed(tune, ratios, np.where(ratios < 1, 0.25, 1.0)).values()
    assert change.learning_rate == pytest.approx(factor)
    assert (change.nodes.tolist(), change.before.tolist()) == ([0], [180])
    assert (change.after.tolist(), change.batches.tolist()) == ([90], [90, 180, 180])


def test_a_node_that_is_not_observed_keeps_its_batch():
    tune = fleet(3)
    feed(tune, np.ones((8, 3)), np.ones((8, 3)))
    speeds, cores = np.array([32.0, np.nan, 16.0]), np.array([1, np.nan, 0.25])
    for step in range(9):
        tune.observe(step, 50, speeds, cores)
    assert tune.batches.tolist() == [180, 180, 90]


def test_all_nodes_at_once_are_as_each_alone(counts):
    """No node's decision depends on another's; so it is O(n), and 100,000 are no other matter."""
    rng = np.random.default_rng(9)
    n, steps = 12, counts(150, 1500)
    ratio = np.repeat(rng.uniform(0.3, 1, (steps // 30, n)), 30, axis=0)
    cores = np.clip(ratio**1.3, 0, 1)
    seen = 32 * ratio * (1 + NOISE * rng.standard_normal(ratio.shape))
    together, alone = fleet(n, rule=Rule()), [fleet(1, rule=Rule()) for _ in range(n)]
    for step in range(steps):
        together.observe(step % 100, 100, seen[step], cores[step])
        for i, tune in enumerate(alone):
            tune.observe(step % 100, 100, seen[step, i : i + 1], cores[step, i : i + 1])
    assert together.batches.tolist() == [int(t.batches[0]) for t in alone]


def test_a_hundred_thousand_nodes():
    n = 100_000
    tune = fleet(n, rule=Rule())
    hit = np.arange(n) % 3 == 0
    ratios = rows((10, np.ones(n)), (10, np.where(hit, 0.6, 1.0)))
    cores = np.where(ratios < 1, 0.4, 1.0)
    changes = feed(tune, ratios, cores, rng=np.random.default_rng(1))
    assert sum(len(c.nodes) for c in changes.values()) == hit.sum()
    assert tune.batches[hit].mean() == pytest.approx(0.6 * 180 - 0.5, rel=0.001)


# --- what cannot be


def test_bad_input():
    tune = fleet(2)
    fine = np.ones(2)
    for call, words in (
        (lambda: Rule(index="gatd"), "index 'gatd': unknown; nearest: gated"),
        (lambda: Rule(batch="eq4"), "batch 'eq4': unknown; nearest: eq3"),
        (lambda: Rule(learning_rate="square"), "learning_rate 'square'"),
        (lambda: Rule(noise=-0.1), "noise -0.1: must be finite and at least 0"),
        (lambda: Rule(sigmas=math.nan), "sigmas nan: must be finite and at least 0"),
        (lambda: tune.observe(100, 100, fine), "step 100 of an epoch of 100: must be from 0 to 99"),
        (lambda: tune.observe(-1, 100, fine), "step -1 of an epoch of 100"),
        (lambda: tune.observe(0, 100, np.ones(3)), "3 speeds for 2 nodes"),
        (
            lambda: tune.observe(0, 100, np.array([1, -2.0])),
            "node 1: speed -2.0; must be at least 0",
        ),
        (lambda: tune.observe(0, 100, np.array([np.inf, 1])), "node 0: speed inf"),
        (
            lambda: tune.observe(0, 100, fine, np.array([1, 1.5])),
            "node 1: free cores 1.5; must be from 0 to 1",
        ),
        (lambda: tune.observe(0, 100, fine, np.ones(1)), "1 fractions of free cores for 2 nodes"),
        (lambda: fleet(2, batch=0), "node 0: batch 0; must be at least 1"),
        (lambda: fleet(2, speed=0.0), "node 0: speed 0.0; must be more than 0"),
        (lambda: fleet(2, least=181), "node 0: least batch 181; must be from 1 to the tuned batch"),
        (
            lambda: fleet(2, most=np.array([180, 179])),
            "node 1: most batch 179; must be at least the tuned batch",
        ),
        (lambda: fleet(2, cores=0.0), "node 0: share of cores 0.0; must be above 0"),
        (
            lambda: fleet(2, engines=[RISING], kinds=np.array([0, 1])),
            "engine 1: must be from 0 to 0",
        ),
        (lambda: fleet(2, kinds=np.array([0])), "1 kinds and 2 speeds"),
        (lambda: HyperTune(PLAIN, np.array([5]), np.array([np.nan])), "node 0: speed nan"),
        (lambda: HyperTune(PLAIN, np.array([5]), np.ones(2)), "2 speeds and 1 batches"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
