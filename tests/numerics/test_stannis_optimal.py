"""Is no plan faster than the allocator's, and does it keep its limits and say what it risks?"""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ondie.emu.cluster.batch_tuner import Engine, tune
from ondie.emu.cluster.collectives import ring
from ondie.emu.cluster.emulated_engine import published
from ondie.emu.cluster.networks import network
from ondie.emu.cluster.throughput_allocator import interval, plan, recruited
from ondie.emu.cluster.throughput_benchmark import Fitted
from ondie.emu.cluster.throughput_search import _accumulating
from ondie.emu.units import InputError

RATE = 36e6


def ring_s(name: str, nodes: int, latency: float = 0.0) -> float:
    piece = ring.piece_bytes(network(name).gradient_bytes, nodes)
    return ring.steps(nodes) * (piece / RATE + latency)


def of_table_i(name: str, **limits):
    return plan(published(network(name)), [1, 24], ring_s(name, 25), **limits)


@pytest.mark.parametrize("times", [(1.0, 5.0), (1.0, 1.5), (2.0, 3.0, 9.0)])
def test_accumulated_batches_against_every_division(times):
    """The batches of one step differ by at most one sample."""
    size, most = 6, 4
    best, steps = _accumulating(np.array(times), size, most)
    for samples in range(1, size + 1):
        every = {}
        for number in range(1, most + 1):
            low, more = divmod(samples, number)
            batches = [low + 1] * more + [low] * (number - more)
            if all(1 <= batch <= len(times) for batch in batches):
                every[number] = sum(times[batch - 1] for batch in batches)
        if not every:
            assert (best[samples - 1], steps[samples - 1]) == (np.inf, 0)
            continue
        assert best[samples - 1] == pytest.approx(min(every.values()))
        assert steps[samples - 1] == min(every, key=lambda n: (round(every[n], 9), n))


# --- by hand, from Table I


def test_equal_times_are_the_best_of_one_batch():
    """25 / 3.08 = 8.117 s x 32.3 = 262.2: (262 + 600) / (8.117 + 0.740) = 97.3 samples/s; Stannis
    915 / (9.752 + 0.740) = 87.2: +11.6 %."""
    found = of_table_i("mobilenetv2")
    assert (found.samples, found.micro_batches, found.batches) == ((262, 25), (1, 1), (262, 25))
    assert found.samples == tune(published(network("mobilenetv2")), margin=0)
    assert found.samples_per_s == pytest.approx(97.3, rel=1e-3)
    stannis = 915 / (315 / 32.3 + ring_s("mobilenetv2", 25))
    assert found.samples_per_s / stannis == pytest.approx(1.116, abs=5e-4)
    assert (found.total, found.effective_batch, found.staleness) == (862, 862, 1)
    assert found.seconds == pytest.approx((262 / 32.3, 25 / 3.08))
    assert found.exchange_s / found.period_s == pytest.approx(0.740 / 8.857, rel=1e-3)


def test_inception_synchronises_less_often():
    """16 / 1.85 = 8.65 s, the ring 48 x 95.32 MB / 25 / 36 MB/s = 5.08 s: 10 % of the time after 6
    steps, 5.08 x 0.9 / 0.1 / 8.65 = 5.3. (6 x 75.2 x 8.65) / (51.9 + 5.08) = 68.4 samples/s."""
    one = of_table_i("inceptionv3")
    for method, batch, stale in (("accumulate", 3902, 1), ("local", 650, 6)):
        few = of_table_i("inceptionv3", method=method, most_micro_batches=64, overhead=0.1)
        assert max(few.micro_batches) == 6 and few.exchange_s <= 0.1 * few.period_s
        assert few.samples_per_s == pytest.approx(68.4, rel=2e-3)
        assert few.samples_per_s >= 1.3 * one.samples_per_s
        assert (few.effective_batch, few.staleness) == (batch, stale)
        assert few.batches[1] == 16 and few.batches[0] <= 370
        assert str(batch) in few.risk and ("6 local steps" in few.risk) == (method == "local")


def test_a_limit_on_the_batch_limits_the_micro_batches():
    for most in (862, 1000, 2000, 8192):
        found = of_table_i("mobilenetv2", most_samples=most, most_micro_batches=64)
        assert found.total <= most
        # whole rounds of 24 drives, and a host beside them
        bound = 32.3 + 24 * 3.08
        assert found.samples_per_s < bound
        assert found.total > most - 40
    small = of_table_i("mobilenetv2", most_samples=100, most_micro_batches=64)
    assert small.total == 100 and max(small.micro_batches) == 1


def test_memory_is_a_limit_of_its_own():
    """A host that holds 100: 262 samples in 3 steps, as one of a larger memory would in 1."""
    host, csd = Engine("host", ((315, 32.3),), limit=100), Engine("csd", ((25, 3.08),))
    alone = plan([host, csd], [1, 24], 0.74)
    assert alone.batches[0] <= 100
    more = plan([host, csd], [1, 24], 0.74, most_micro_batches=3)
    assert more.batches[0] <= 100 and max(more.micro_batches) == 3
    assert more.samples_per_s > alone.samples_per_s


# --- no plan is faster


def curve(name, start, per, limit):
    points = tuple((b, b / (start + b * per)) for b in range(1, limit + 1))
    return Fitted(name, points, limit, start, per)


def every(engine, count, steps):
    """(samples, seconds) of one engine: all batches of all numbers of steps."""
    out = {0: 0.0}
    for k in range(1, steps + 1):
        for parts in itertools.combinations_with_replacement(range(1, engine.limit + 1), k):
            took = sum(engine.seconds(b) for b in parts)
            out[sum(parts)] = min(took, out.get(sum(parts), took))
    return out


@given(
    st.floats(0, 0.3), st.floats(0.05, 1), st.integers(1, 6),
    st.floats(0, 0.3), st.floats(0.2, 3), st.integers(1, 5),
    st.integers(1, 5), st.floats(0, 3), st.integers(1, 3), st.none() | st.integers(1, 60),
)  # fmt: skip
@example(0.24, 0.43, 6, 0.11, 0.27, 4, 3, 2.89, 1, 4)  # a drive each, and the host 1
def test_no_plan_is_faster(s0, p0, l0, s1, p1, l1, drives, exchange, steps, most):
    """Against all batches and numbers of steps, in any order, of a host and some drives; the
    host's limit lets it make up for what whole rounds of drives leave."""
    host, csd = curve("host", s0, p0, l0), curve("csd", s1, p1, l1)
    best = 0.0
    for (a, ta), (b, tb) in itertools.product(
        every(host, 1, steps).items(), every(csd, drives, steps).items()
    ):
        total = a + drives * b
        if total and (most is None or total <= most):
            best = max(best, total / (max(ta, tb) + exchange))
    found = plan([host, csd], [1, drives], exchange, most_micro_batches=steps, most_samples=most)
    assert found.total == found.samples[0] + drives * found.samples[1]
    assert most is None or found.total <= most
    assert max(found.micro_batches) <= steps
    assert all(b <= e.limit for b, e in zip(found.batches, (host, csd), strict=True))
    assert found.samples_per_s <= best * (1 + 1e-9)
    if most is None or l0 * steps >= drives:
        assert found.samples_per_s >= best * (1 - 1e-9)
    else:  # within one round of the drives
        assert found.samples_per_s >= best * (1 - drives / most) * (1 - 1e-9)


@given(st.floats(0.1, 3), st.floats(0.1, 3), st.floats(0.01, 5), st.integers(1, 8))
def test_local_steps_are_alike(p0, p1, exchange, steps):
    host, csd = curve("host", 0.1, p0, 20), curve("csd", 0.1, p1, 9)
    found = plan([host, csd], [1, 4], exchange, method="local", most_micro_batches=steps)
    assert set(found.micro_batches) <= {0, steps}
    each = [n // steps for n in found.samples]
    assert [n * steps for n in each] == list(found.samples)
    best = max(
        steps * (a + 4 * b) / (steps * max(host.seconds(a), csd.seconds(b)) + exchange)
        for a in range(1, 21) for b in range(1, 10)
    )  # fmt: skip
    assert found.samples_per_s >= best * (1 - 1e-9)
    assert found.staleness == steps and found.effective_batch == each[0] + 4 * each[1]


@given(st.floats(1e-3, 1e3), st.floats(0, 1e4), st.floats(1e-3, 0.999))
def test_the_interval_is_the_smallest(seconds, exchange, overhead):
    k = interval(seconds, exchange, overhead)

    def share(n):
        return exchange / (n * seconds + exchange)

    assert k >= 1 and share(k) <= overhead and (k == 1 or share(k - 1) > overhead)


def test_intervals_by_hand():
    """9 s of exchange beside steps of 1 s: 10 % after 81, 50 % after 9."""
    assert [interval(1.0, 9.0, o) for o in (0.1, 0.5, 0.9)] == [81, 9, 1]
    assert interval(1.0, 0.0, 0.5) == 1


# --- how many drives


def test_drives_that_cost_more_than_they_add_stay_out():
    """InceptionV3: with 4 drives the ring takes 4.2 s for 7.4 samples/s more than the host's 30.8;
    24 gain."""
    engines = published(network("inceptionv3"))

    def exchange(nodes):
        return ring_s("inceptionv3", nodes, 200e-6)

    few, many = (recruited(engines, [1, n], exchange) for n in (4, 24))
    assert (few.names, few.counts) == (("host",), (1,))
    assert few.samples_per_s == pytest.approx(30.8)
    assert plan(engines, [1, 4], exchange).samples_per_s < 30.8
    assert many.counts == (1, 24)
    for n in range(1, 25):
        assert plan(engines, [1, n], exchange).samples_per_s <= many.samples_per_s


def test_a_large_fleet_stops_growing():
    """Where the exchange grows with the square of the nodes, the best number is found in 100,000:
    samples 266 + 16 n over 8.65 + 1e-6 n^2 is largest near n = 2,900."""
    engines = published(network("inceptionv3"))

    def exchange(nodes):
        return 1e-6 * nodes * nodes

    found = recruited(engines, [1, 100_000], exchange)
    near = found.counts[1]
    assert 2800 < near < 3100
    for n in (near - 1, near + 1):
        assert plan(engines, [1, n], exchange).samples_per_s <= found.samples_per_s


# --- bad input

ONE = [Engine("csd", ((25, 3.08),))]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plan([]), "no engines"),
        (lambda: plan(ONE, [0]), "csd: 0 engines"),
        (lambda: plan(ONE, method="locl"), "method 'locl': unknown; nearest: local"),
        (lambda: plan(ONE, most_micro_batches=0), "most_micro_batches = 0: must"),
        (lambda: plan(ONE, most_samples=0), "most_samples = 0: must"),
        (lambda: plan(ONE, [30], most_samples=29), "most_samples = 29: too few for a plan of 30"),
        (lambda: plan([Engine("csd", ((1 << 21, 3.08),))]), "csd: batches up to 2097152"),
        (lambda: plan(ONE, exchange_s=-1.0), "exchange of -1.0 s among 1 nodes"),
        (lambda: plan(ONE, exchange_s=lambda n: float("inf")), "exchange of inf s"),
        (
            lambda: plan(ONE, most_micro_batches=100_000),
            "csd: 100000 micro-batches of 25 samples exceed .* 1048576",
        ),
        (lambda: plan(ONE, overhead=0.0), "overhead 0.0"),
        (lambda: interval(0.0, 1.0, 0.5), "step of 0.0 s"),
        (lambda: recruited([], [], lambda n: 0.0), "no engines"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
