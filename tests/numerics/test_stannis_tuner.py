"""Does Algorithm 1 end, on the paper's batches, and on the nearest whole batch of any curve? Does
it never, as printed?"""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.cluster.batch_tuner import (
    Engine,
    algorithm_1,
    most_influential,
    reference_batch,
    slowest,
    throughput,
    tune,
    tuning,
)
from ondie.emu.units import InputError

# STANNIS (DAC 2020), Table I: batch of host and Newport, images per second of host and Newport;
# MobileNetV2's host speed as tuned in the text.
TABLE_I = {
    "mobilenetv2": (315, 25, 32.3, 3.08),
    "nasnet-mobile": (325, 15, 47.31, 2.80),
    "inceptionv3": (370, 16, 30.80, 1.85),
    "squeezenet": (850, 50, 219.0, 16.3),
}


def test_mobilenet_batches_are_315_and_25():
    """1.2 x (25 / 3.08) x 32.3 = 314.6, the paper's 315."""
    host, newport = Engine("host", ((315, 32.3),)), Engine("newport", ((25, 3.08),))
    assert tune([host, newport]) == (315, 25)
    assert tune([newport, host, newport]) == (25, 315, 25)
    # 1.0 x (25 / 3.08) x 32.3 = 262.2; 1.5 x = 393.3
    assert tune([host, newport], margin=0.0) == (262, 25)
    assert tune([host, newport], margin=0.5) == (393, 25)


def test_the_reference_is_the_slowest_at_its_best_batch():
    fast = Engine("fast", ((8, 10.0), (16, 12.0)))
    slow = Engine("slow", ((4, 2.0), (8, 3.0), (16, 3.0)))
    assert (fast.best, slow.best) == (16, 8)  # of equal speeds the smaller batch
    assert slowest([fast, slow]) == 1
    # 8 / 3 s x 1.2 = 3.2 s x 12 samples/s (constant beyond its last point) = 38.4
    assert tune([fast, slow]) == (38, 8)
    # 16 / 12 s x 1.2 = 1.6 s; below its first point the slow one makes 2 samples/s: 3.2
    assert tune([fast, slow], reference=0) == (16, 3)


def test_a_curve_is_followed_between_its_points():
    """Speed at 20 is 10 + (14 - 10) x (20 - 10) / (30 - 10) = 12; 20 / 12 = 1.667 s."""
    curve = Engine("curve", ((10, 10.0), (30, 14.0)))
    assert curve.speed(20) == pytest.approx(12.0)
    assert curve.batch_for(20 / 12) == 20
    assert curve.batch_for(1.0) == 10 and curve.batch_for(30 / 14) == 30
    assert curve.batch_for(0.0) == 1


def test_memory_limits_a_batch():
    slow = Engine("slow", ((25, 3.08),))
    assert tune([Engine("host", ((315, 32.3),), limit=300), slow]) == (300, 25)
    assert tune([Engine("slow", ((8, 2.0), (16, 3.0)), limit=10)]) == (10,)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(0.1, 1e3)), min_size=1, max_size=6),
    st.floats(1e-3, 1e4),
)
def test_the_batch_is_the_one_nearest_in_time(points, seconds):
    curve: list[tuple[int, float]] = []
    for batch, speed in sorted(points):  # keep what makes a curve: longer batches take longer
        if not curve or (batch > curve[-1][0] and batch / speed > curve[-1][0] / curve[-1][1]):
            curve.append((batch, speed))
    engine = Engine("any", tuple(curve))
    batch = engine.batch_for(seconds)
    for other in (batch - 1, batch + 1):
        if other >= 1:
            gap = abs(engine.seconds(other) - seconds)
            assert abs(engine.seconds(batch) - seconds) <= gap * (1 + 1e-9)


@given(st.integers(1, 10_000), st.floats(0.5, 500), st.floats(0.01, 1.0), st.floats(0, 1))
def test_the_reference_batch_is_the_largest_that_keeps_the_other_within_its_own(
    batch, speed, ratio, margin
):
    def answer(reference):
        slow = Engine("slow", ((reference, speed * ratio),))
        return tune([Engine("fast", ((batch, speed),)), slow], margin=margin, reference=1)[0]

    found = reference_batch(batch, speed, speed * ratio, margin)
    assert found == 1 or answer(found) <= batch
    exact = (found + 1) * (1 + margin) / ratio  # what the next one would ask of the other
    assert exact > batch * (1 - 1e-9)


def test_the_reference_batch_of_the_paper():
    """315 / 32.3 x 3.08 / 1.2 = 25.03; 310 x 0.12 / 1.2 is 31, 30.999999999999996 in floats."""
    assert reference_batch(315, 32.3, 3.08) == 25
    assert reference_batch(310, 1.0, 0.12) == 31
    assert reference_batch(2, 1.0, 0.072) == 1


@pytest.mark.parametrize(
    ("name", "published"),
    [("mobilenetv2", 2.905), ("squeezenet", 2.412), ("nasnet-mobile", 2.108),
     ("inceptionv3", 2.038)],
)  # fmt: skip
def test_ceilings_at_24_drives(name, published):
    """Without communication all wait for the host: (315 + 24 x 25) / 315 = 2.905, and so on."""
    host_batch, batch, host_speed, speed = TABLE_I[name]
    host = Engine("host", ((host_batch, host_speed),))
    engines = [host] + 24 * [Engine("newport", ((batch, speed),))]
    batches = [host_batch] + 24 * [batch]
    assert round(throughput(engines, batches) / host_speed, 3) == published
    assert throughput(engines, [host_batch] + 24 * [0]) == pytest.approx(host_speed)


def test_a_step_waits_for_the_slowest():
    """10 samples at 10/s and 3 at 1/s: 13 samples in 3 s."""
    engines = [Engine("a", ((1, 10.0),)), Engine("b", ((1, 1.0),))]
    assert throughput(engines, [10, 3]) == pytest.approx(13 / 3)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ((), "no speed was measured"),
        (((4, 0.0),), "0.0 samples/s at batch 4"),
        (((4, -1.0),), "-1.0 samples/s at batch 4"),
        (((4, math.nan),), "nan samples/s at batch 4"),
        (((4, math.inf),), "inf samples/s at batch 4"),
        (((0, 1.0),), "batch 0; must be at least 1"),
        (((4, 1.0), (4, 2.0)), "batch 4; must be at least 5"),
        (((4, 1.0), (8, 2.0)), "a batch of 8 takes 4 s, and a batch of 4 takes 4 s"),
    ],
)
def test_bad_curves(points, words):
    with pytest.raises(InputError, match=words) as caught:
        Engine("csd 3", points)
    assert "csd 3" in str(caught.value) and "\n" not in str(caught.value)


def test_bad_calls():
    one = Engine("one", ((4, 1.0),))
    for call, words in (
        (lambda: tune([]), "no engines"),
        (lambda: tune([one], reference=1), "reference engine 1"),
        (lambda: tune([one], margin=-0.1), "margin -0.1"),
        (lambda: tune([one], margin=math.inf), "margin inf"),
        (lambda: Engine("one", ((4, 1.0),), limit=0), "batch limit 0"),
        (lambda: throughput([one], [0]), "no engine has a sample"),
        (lambda: reference_batch(8, 0.0, 1.0), "speed 0.0"),
        (lambda: reference_batch(8, 1.0, 0.0), "reference speed 0.0"),
        (lambda: reference_batch(0, 1.0, 1.0), "batch 0"),
    ):
        with pytest.raises(InputError, match=words):
            call()


# --- Algorithm 1 as printed, and its reference


def test_as_printed_it_never_ends():
    """The host's batch grows until its time is the Newport's, 32.3 x 25 / 3.08 = 262.2, and stays
    there: 262 / 32.3 = 8.11 s is still below 1.2 x 8.12 = 9.74 s."""
    host, reference_s = Engine("host", ((315, 32.3),)), 25 / 3.08
    rounds = list(itertools.islice(algorithm_1(host, reference_s), 100_000))
    assert len(rounds) == 100_000, "it ended"
    settled = rounds.index(262)
    assert settled < 100 and set(rounds[settled:]) == {262}
    assert rounds[: settled + 1] == sorted(rounds[: settled + 1])
    assert host.seconds(rounds[-1]) < 1.2 * reference_s, "its condition holds"
    assert tuning([host, Engine("csd", ((25, 3.08),))]).batches[0] == 315, "the target form's"


@given(st.floats(0.1, 500), st.floats(0.5, 50), st.floats(0.05, 1), st.integers(1, 2000))
def test_as_printed_it_ends_only_beyond_its_condition(speed, reference_s, margin, batch):
    """It ends where one round jumps over the margin, else it is stuck below it."""
    engine = Engine("any", ((1, speed),))
    rounds = list(itertools.islice(algorithm_1(engine, reference_s, margin, batch), 2000))
    last = rounds[-1] if rounds else batch
    if len(rounds) < 2000:
        assert engine.seconds(last) >= reference_s * (1 + margin)
    else:
        assert engine.seconds(last) < reference_s * (1 + margin)


def test_the_most_influential_engine_is_speed_times_count():
    """24 x 3.08 = 73.9 samples/s of the drives, 32.3 of the host; 8 x 3.08 = 24.6."""
    host, csd = Engine("host", ((315, 32.3),)), Engine("csd", ((25, 3.08),))
    assert most_influential([host, csd], [1, 24]) == 1
    assert most_influential([host, csd], [1, 8]) == 0
    assert most_influential([host, csd]) == 0
    few = tuning([host, csd], counts=[1, 8], reference="influential")
    # the host keeps 315, 9.75 s; a drive 1.2 x 9.75 x 3.08 = 36.04
    assert (few.reference, few.batches) == (0, (315, 36))
    many = tuning([host, csd], counts=[1, 24], reference="influential")
    assert (many.reference, many.batches) == (1, (315, 25))
    assert many.target_s == pytest.approx(1.2 * 25 / 3.08)
    assert many.seconds == pytest.approx((315 / 32.3, 25 / 3.08))


def test_it_says_where_memory_holds_a_batch_down():
    host, csd = Engine("host", ((315, 32.3),), limit=300), Engine("csd", ((25, 3.08),), limit=111)
    found = tuning([host, csd])
    assert (found.batches, found.limited) == ((300, 25), (True, False))
    small = tuning([Engine("csd", ((8, 2.0), (16, 3.0)), limit=10)])
    assert (small.batches, small.limited) == ((10,), (True,))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: tuning(e, reference="slow"), "reference 'slow': unknown; nearest: slowest"),
        (lambda e: tuning(e, counts=[1, 2]), "2 counts for 1 engines"),
        (lambda e: tuning(e, counts=[0]), "csd: 0 engines; must be at least 1"),
        (lambda e: slowest([]), "no engines to tune"),
        (lambda e: next(algorithm_1(e[0], 1.0, margin=-1)), "margin -1"),
    ],
)
def test_bad_tunings(call, words):
    with pytest.raises(InputError, match=words):
        call([Engine("csd", ((25, 3.08),))])
