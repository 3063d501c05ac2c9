"""What HyperTune rests on: curves, slowdown by cores, and observed steps.

FACTS used: three equal nodes 93.4, 75.6, 53.3 img/s at 0, 4, 6 of 8 cores taken; host 33.4, with 36
Lagunas 99.83 and 49.26 img/s, 1.82 s of synchronisation; MobileNetV2 3.47 M parameters.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.cluster.cluster import Fleet, Kind
from ondie.emu.cluster.collectives.multi_server import Exchanged
from ondie.emu.cluster.hypertune.batch_resize import Curves, rising
from ondie.emu.cluster.hypertune.controller import HyperTune, Rule
from ondie.emu.cluster.load.contention import (
    ETHERNET,
    FAST,
    SLOW,
    Link,
    Slowdown,
    host_and_lagunas,
    own_seconds,
    three_nodes,
)
from ondie.emu.cluster.load.trace import Load
from ondie.emu.cluster.measurement_noise import Noise
from ondie.emu.cluster.training_sim import Data, Simulation
from ondie.emu.units import InputError


@st.composite
def engines(draw):
    """Curves that the tuner accepts: speeds grow less than batches do."""
    sizes = sorted(draw(st.sets(st.integers(1, 400), min_size=1, max_size=6)))
    speed, points = draw(st.floats(1, 100)), []
    for before, size in zip([None, *sizes], sizes, strict=False):
        if before is not None:
            speed *= draw(st.floats(0.9, 0.99 * size / before))
        points.append((size, speed))
    return Engine("drawn", tuple(points))


# --- curves


@given(st.lists(engines(), min_size=1, max_size=4), st.data())
def test_curves_are_the_tuners(kinds, data):
    """Speeds and batches of a time, of many nodes at once, as Engine has them one by one."""
    n = data.draw(st.integers(1, 8))
    of = np.array(data.draw(st.lists(st.integers(0, len(kinds) - 1), min_size=n, max_size=n)))
    batches = np.array(data.draw(st.lists(st.integers(1, 600), min_size=n, max_size=n)))
    curves = Curves(np.ones(n), kinds, of)
    expected = [kinds[k].speed(int(b)) for k, b in zip(of, batches, strict=True)]
    assert curves.speed(batches).tolist() == pytest.approx(expected)
    seconds = np.array([kinds[k].seconds(int(b)) for k, b in zip(of, batches, strict=True)])
    assert curves.within(seconds).tolist() == pytest.approx(batches.tolist())
    # Any other time exactly, too; the tuner takes the whole batch beside it that is nearer in time.
    later = seconds * data.draw(st.floats(0.1, 3))
    found = curves.within(later)
    assert (found / curves.speed(found)).tolist() == pytest.approx(later.tolist())
    for k, t, real in zip(of, later, found, strict=True):
        whole = kinds[k].batch_for(float(t))
        assert real - 1 - 1e-6 < whole < real + 1 + 1e-6 or (whole == 1 and real < 1)


def test_without_engines_a_node_has_one_speed():
    curves = Curves(np.array([32.0, 3.0]))
    assert curves.speed(np.array([1, 500])).tolist() == [32, 3]
    assert curves.within(np.array([2.0, 5.0])).tolist() == [64, 15]


def test_only_what_rises_can_be_inverted():
    """The plateau and the fall behind the best batch say nothing."""
    engine = Engine("e", ((10, 5.0), (20, 7.0), (30, 7.0), (40, 6.9), (50, 8.0), (80, 7.5)))
    assert [part.tolist() for part in rising(engine)] == [[10, 20, 50], [5, 7, 8]]
    curves = Curves(np.ones(4), [engine])
    found = curves.inverse(np.array([4.0, 6.0, 7.5, 9.0]), literal=False)
    assert found.tolist() == pytest.approx([10, 15, 35, 50])


# --- slowdown


def test_three_equal_nodes_by_hand():
    """540 / 93.4 = 5.7816 s, 7.1429 s, 10.1313 s; ring of three: 4 x 4.5333 MB over 117.7 MB/s =
    0.154 s; 5.6275 / 6.9888 = 0.8052, 5.6275 / 9.9772 = 0.5640."""
    fleet = three_nodes()
    assert fleet.sync_s == pytest.approx(4 * 4_533_334 / (125e6 * 1448 / 1538))
    assert fleet.slowdown.ratio(np.array([1, 0.5, 0.25])).tolist() == pytest.approx(
        [1, 0.8052, 0.5640], abs=5e-5
    )
    assert fleet.speeds[0] == pytest.approx(180 / 5.6275, rel=1e-4)


def test_the_range_of_the_network():
    """From 0.015 s to 0.392 s = 540 / 93.4 - 180 / 33.4: there the node is the host that makes 33.4
    img/s alone. The rule's batches: 145.6 and 102.6 at one end, 143.7 and 99.6 at the other."""
    found = []
    for link in (FAST, ETHERNET, SLOW):
        fleet = three_nodes(link)
        found.append([fleet.sync_s, *(180 * fleet.slowdown.ratio(np.array([0.5, 0.25])))])
    expected = [[0.0154, 145.62, 102.60], [0.1541, 144.94, 101.53], [0.3924, 143.70, 99.61]]
    assert found == [pytest.approx(row, abs=5e-3) for row in expected]
    assert three_nodes(SLOW).speeds[0] == pytest.approx(33.4)


def test_host_and_lagunas_by_hand():
    """720 / 99.83 - 180 / 33.4 = 1.823 s; 720 / 49.26 - 1.823 = 12.793 s: 5.389 / 12.793 = 0.4213.
    A Laguna is 20 % earlier than the host: 15 x 1.2 / 5.389 = 3.34 img/s."""
    fleet = host_and_lagunas()
    assert fleet.sync_s == pytest.approx(1.823, abs=5e-4)
    assert fleet.slowdown.ratio(np.array(0.25)) == pytest.approx(0.4213, abs=5e-5)
    assert fleet.speeds == pytest.approx((33.4, 3.34))
    batches, speeds = fleet.nodes()
    assert (batches.sum(), len(speeds), speeds[0]) == (720, 37, 33.4)


def test_beyond_the_last_point_amdahl_goes_on():
    """Relative times 1, 1.25, 1.75 at 8, 4, 2 of 8 cores are 1 + 0.25 (8 / cores - 1); 2.75 at 1;
    none at all, no speed."""
    curve = Slowdown(((0.25, 1 / 1.75), (0.5, 1 / 1.25)))
    share = np.array([1.0, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0])
    expected = [1, 1 / (1 + 0.25 / 3), 1 / 1.25, 1 / (1 + 0.25 * 5 / 3), 1 / 1.75, 1 / 2.75, 0]
    assert curve.ratio(share).tolist() == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_more_cores_are_never_slower(shares):
    for fleet in (three_nodes(), host_and_lagunas()):
        found = fleet.slowdown.ratio(np.sort(np.array(shares)))
        assert (np.diff(found) >= 0).all() and (found <= 1).all()


# --- steps


def training(batches, speeds, *, sync_s=0.0, epoch=10_000, load=None, **options):
    """A training of nodes that are half as fast on a quarter of their eight cores."""
    kinds = tuple(
        Kind("host", 1, Engine("node", ((batch, speed),)), 8, HALF.ratio, host=True)
        for batch, speed in zip(batches, speeds, strict=True)
    )
    cluster = Fleet(kinds, lambda there: Exchanged("", sync_s, 0.0, ""), 0, lambda there: 0.0)
    data = Data(epoch, np.zeros(len(kinds), np.int64))
    return Simulation(cluster, np.array(batches), data, load=load, **options)


HALF = Slowdown(((0.25, 0.5),))


def six_cores_of_node_0(seconds):
    return Load(np.array([seconds]), np.array([0]), np.array([6.0]))


def test_a_step_waits_for_the_slowest():
    """180 / 32 = 5.625 s, 180 / (32 x 0.5) = 11.25 s, each and 1 s of synchronisation: 190 samples
    in 12.25 s."""
    load = six_cores_of_node_0(6.0)
    done = training([180, 10], [32.0, 3.0], sync_s=1.0, epoch=19_000, load=load).run(2)
    steps = done.steps
    assert steps["samples"].tolist() == [190, 190]
    assert (steps["compute_s"] + steps["exchange_s"]).tolist() == pytest.approx([6.625, 12.25])
    assert done.between(1, 2) == pytest.approx(190 / 12.25)


def test_epochs_are_whole_steps():
    """1,000 samples by 190 are 6 steps."""
    done = training([180, 10], [32.0, 3.0], epoch=1000).run(35)
    assert [note.step for note in done.notes] == [6, 12, 18, 24, 30]
    assert {note.what for note in done.notes} == {"epoch"}


def test_what_is_seen_is_noisy_and_what_happens_is_not():
    def run(noise):
        tune = HyperTune(Rule(), np.full(3, 180), np.full(3, 32.0))
        load = six_cores_of_node_0(10 * 180 / 32)
        run = training([180] * 3, [32.0] * 3, epoch=10**6, load=load, tuner=tune, noise=noise)
        steps = run.run(50).steps
        return steps["samples"].tolist(), steps["compute_s"].tolist()

    one, again, other = (run(Noise(0.05, 0.02, seed)) for seed in (1, 1, 2))
    assert one == again
    assert one[0][-1] != other[0][-1]
    assert one[1][:10] == pytest.approx([180 / 32] * 10, rel=1e-12)
    assert run(None) == run(Noise())


def test_reports_are_normal_within_their_range():
    noise, nodes = Noise(0.05, 0.02, seed=7), 100_000
    speed, cores = noise.add(noise.generator(), np.full(nodes, 32.0), np.full(nodes, 0.5))
    assert (speed.mean(), speed.std()) == pytest.approx((32, 1.6), rel=0.02)
    assert (cores.mean(), cores.std()) == pytest.approx((0.5, 0.02), rel=0.02)
    wide = Noise(1.0, 1.0)
    speed, cores = wide.add(wide.generator(), np.ones(nodes), np.ones(nodes))
    assert speed.min() == 0 and (cores.min(), cores.max()) == (0, 1)
    unknown = np.array([np.nan])
    assert np.isnan(noise.add(noise.generator(), unknown, unknown)).all()


def test_bad_input():
    for call, words in (
        (lambda: Slowdown(()), "a speed on fewer cores is missing"),
        (lambda: Slowdown(((1.0, 1.0),)), "speed 1.0 on 1.0 of the cores"),
        (lambda: Slowdown(((0.5, 0.0),)), "speed 0.0 on 0.5 of the cores"),
        (lambda: Slowdown(((0.5, 0.8), (0.25, 0.5))), "speed 0.5 on 0.25 .* after 0.8 on 0.5"),
        (lambda: Slowdown(((0.25, 0.8), (0.5, 0.7))), "speeds must not fall"),
        (
            lambda: HALF.ratio(np.array([0.5, 1.2])),
            "fraction of free cores 1.2: must be from 0 to 1",
        ),
        (lambda: HALF.ratio(np.array([math.nan])), "fraction of free cores nan"),
        (lambda: own_seconds(100.0, 200, 2.0), "2 s of synchronization in a step of 2 s"),
        (
            lambda: three_nodes(Link("none", 0.0)),
            "none: rate 0.0 B/s; must be a finite number above 0",
        ),
        (lambda: training([1], [1.0], epoch=0).run(1), "the epoch is over after 0 steps"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
