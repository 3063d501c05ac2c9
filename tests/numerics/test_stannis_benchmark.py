"""Do benchmarks find speed, its line and the memory's limit, of emulated engines and real calls?"""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.cluster.batch_tuner import Engine, tune
from ondie.emu.cluster.emulated_engine import emulated, published
from ondie.emu.cluster.networks import NETWORKS, network
from ondie.emu.cluster.throughput_benchmark import Fitted, benchmark
from ondie.emu.cluster.workload import of_network, of_trace
from ondie.emu.config.config import load_preset
from ondie.emu.units import InputError
from ondie.traces import load

UNTIMED = dataclasses.replace(network("shufflenet"), tuned_host_speed=None)
STANNIS = ("mobilenetv2", "nasnet-mobile", "inceptionv3", "squeezenet")


def line(batch: int) -> float:
    """0.5 s, and 0.1 s for each sample."""
    return 0.5 + 0.1 * batch


def test_a_line_is_found():
    found = benchmark("csd", line, [4, 1, 16, 4])
    assert found.batches == (1, 4, 16) and found.limit is None
    assert found.seconds == pytest.approx((0.6, 0.9, 2.1)) and found.spread == (0, 0, 0)
    curve, fit = found.engine(), found.fit()
    assert dict(curve.points) == pytest.approx({1: 1 / 0.6, 4: 4 / 0.9, 16: 16 / 2.1})
    assert (fit.start_s, fit.sample_s) == pytest.approx((0.5, 0.1)) and fit.error < 1e-12
    assert fit.seconds(10) == pytest.approx(1.5)  # the curve's is 10 / (6.03 samples/s)
    assert curve.seconds(10) == pytest.approx(10 / (4 / 0.9 + (16 / 2.1 - 4 / 0.9) / 2))
    assert fit.best == curve.best == 16
    # 2.1 s x 1.2 = 2.52 s: (2.52 - 0.5) / 0.1 = 20.2
    assert tune([benchmark("host", lambda b: 0.5 + 0.1 * b / 8, [64, 128]).fit(), fit]) == (162, 16)


@given(
    st.lists(st.integers(1, 4000), min_size=2, max_size=12, unique=True),
    st.floats(0, 5),
    st.floats(1e-3, 2),
    st.lists(st.floats(-0.02, 0.02), min_size=12, max_size=12),
)
def test_no_other_line_is_nearer(batches, start, slope, noise):
    """In least squares of times, among lines whose terms are not negative."""
    times = {b: (start + slope * b) * (1 + e) for b, e in zip(sorted(batches), noise, strict=False)}
    found = benchmark("any", times.__getitem__, times)
    try:
        fit = found.fit()
    except InputError as error:
        assert "does not grow" in str(error)
        return

    def squares(a, b):
        return sum((a + b * x - t) ** 2 for x, t in times.items())

    assert fit.start_s >= 0 and fit.sample_s > 0
    mine = squares(fit.start_s, fit.sample_s)
    tiny = 1e-9 * sum(t * t for t in times.values())
    for da, db in itertools.product((-1e-3, 0, 1e-3), repeat=2):
        a, b = fit.start_s + da, fit.sample_s * (1 + db)
        if a >= 0:
            assert mine <= squares(a, b) + tiny
    worst = max(abs(fit.seconds(b) / t - 1) for b, t in times.items())
    assert fit.error == pytest.approx(worst)


def test_a_real_step_is_timed_and_warmed_up():
    """A clock of our own: the first call takes 9 s, the others 2, 4 and 3."""
    now, took, calls = [0.0], iter([9.0, 2.0, 4.0, 3.0]), []

    def step(batch: int) -> None:
        calls.append(batch)
        now[0] += next(took)

    found = benchmark("host", step, [8], clock=lambda: now[0])
    assert calls == [8, 8, 8, 8]
    assert found.seconds == (3.0,) and found.spread == pytest.approx((2 / 3,))


def test_times_of_this_machine_are_positive():
    found = benchmark("sum", lambda b: sum(range(200 * b)) * 0 or None, [10, 1000], repeats=2)
    assert all(s > 0 for s in found.seconds) and found.fit().sample_s > 0


@pytest.mark.parametrize("room", [1, 7, 8, 9, 100, 511])
def test_the_limit_of_memory_is_found(room):
    tried = []

    def step(batch: int) -> float:
        tried.append(batch)
        if batch > room:
            raise MemoryError
        return line(batch)

    found = benchmark("csd", step, [8, 64, 512, 4096], repeats=1, warm_ups=0)
    assert found.limit == room == max(found.batches)
    assert 4096 not in tried and len(tried) < 15
    assert found.engine().limit == room and found.fit().batch_for(1e9) == room


def test_other_errors_of_memory_can_be_named():
    def step(batch: int) -> float:
        if batch > 3:
            raise RuntimeError("out of memory")
        return line(batch)

    with pytest.raises(RuntimeError):
        benchmark("csd", step, [2, 8])
    assert benchmark("csd", step, [2, 8], out_of_memory=(RuntimeError,)).limit == 3


def full(batch: int) -> float:
    raise MemoryError


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: benchmark("csd", line, []), r"csd: batches \[\]"),
        (lambda: benchmark("csd", line, [0, 2]), r"csd: batches \[0, 2\]"),
        (lambda: benchmark("csd", line, [2], repeats=0), "csd: 0 repeats"),
        (lambda: benchmark("csd", lambda b: 0.0, [2]), "csd: batch 2 took 0.0 s"),
        (lambda: benchmark("csd", lambda b: float("nan"), [2]), "csd: batch 2 took nan s"),
        (lambda: benchmark("csd", full, [2]), "csd: a batch of 1 does not fit"),
        (lambda: benchmark("csd", lambda b: 1 / b, [2, 8]).fit(), "csd: time does not grow"),
        (lambda: benchmark("csd", lambda b: 1 / b, [2, 8]).engine(), "a batch of 8 takes 0.125 s"),
    ],
)
def test_bad_benchmarks(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


# --- emulated engines


@pytest.mark.parametrize("name", STANNIS)
def test_emulated_engines_are_table_i(name):
    """Its speed at its batch, which is the best one, and its batch fits into memory."""
    net = network(name)
    for engine, batch, speed in zip(
        emulated(net, load_preset("newport")),
        (net.host_batch, net.drive_batch),
        (net.tuned_host_speed, net.tuned_drive_speed),
        strict=True,
    ):
        curve = benchmark(engine.name, engine, engine.batches).engine()
        assert curve.best == batch and curve.speed(batch) == pytest.approx(speed)
        assert curve.speed(batch // 2) < speed and curve.speed(4 * batch) == pytest.approx(speed)
        assert engine.limit >= batch


def test_mobilenet_is_tuned_from_benchmarks():
    """Below its batch a step is longer by the fixed part, and 315 stays the nearest."""
    host, drive = emulated(network("mobilenetv2"), load_preset("newport"))
    measured = [benchmark(e.name, e, e.batches) for e in (host, drive)]
    assert tune([m.engine() for m in measured]) == (315, 25)
    assert tune([host.engine(), drive.engine()]) == (315, 25)
    assert [m.fit().error < 0.03 for m in measured] == [True, True]


@pytest.mark.parametrize("name", STANNIS)
def test_fleets_are_benchmarked_engines_that_meet_table_i(name):
    """Exactly at the tuned batch, constant above; below, by the line of a half batch of 1: at 1,
    (n + 1) / 2n of the speed at n."""
    net = network(name)
    made = of_network(name, [load_preset("newport")])
    for engine, batch, speed in (
        (made.host, net.host_batch, net.tuned_host_speed),
        (made.drives[0], net.drive_batch, net.tuned_drive_speed),
    ):
        assert isinstance(engine, Fitted) and engine.best == engine.most == batch
        assert engine.speed(batch) == engine.speed(3 * batch) == pytest.approx(speed, rel=1e-12)
        assert engine.half_batch == pytest.approx(1) and engine.error < 1e-9
        assert engine.speed(1) == pytest.approx(speed * (batch + 1) / (2 * batch))
        speeds = [engine.speed(b) for b in range(1, batch + 1)]
        assert all(a < b for a, b in itertools.pairwise(speeds))
    assert made.notes == ()


def test_a_line_meets_its_best_batch():
    """0.5 s + 0.1 s b up to 16, from there on 2.1 s / 16 a sample; noise elsewhere moves the line,
    not that point."""
    times = {1: 0.7, 4: 0.85, 16: 2.1, 32: 4.2}
    fit = benchmark("csd", times.__getitem__, times).fit(16)
    assert fit.seconds(16) == 2.1 and fit.seconds(32) == pytest.approx(4.2)
    assert fit.speed(15.999) == pytest.approx(16 / 2.1, rel=1e-3) and fit.error > 0.01
    cut = benchmark("csd", line, [1, 4, 8]).fit(16)
    assert cut.full is None and cut.seconds(8) == pytest.approx(1.3)
    with pytest.raises(InputError, match="csd: no batch up to 16 was measured"):
        benchmark("csd", line, [32, 64]).fit(16)


@pytest.mark.parametrize("host_batch", [None, 100, 315, 900])
def test_a_traces_engines_are_its_networks(host_batch):
    """A trace named as a network has its curve, met at the trace's own batch; any other's speed is
    constant."""
    trace = load("mobilenetv2")
    step, cfg = trace.steps[0], load_preset("newport")
    speed = step.samples / (step.forward_s + step.backward_s)
    made = of_trace(trace, [cfg], host_batch)
    assert made.host.limit == made.host.most == (host_batch or step.samples)
    assert made.host.speed(step.samples) == pytest.approx(speed)
    assert made.host.speed(1) < 0.51 * speed
    other = of_trace(dataclasses.replace(trace, name="another"), [cfg], host_batch)
    assert other.host.speed(1) == other.host.speed(step.samples) == pytest.approx(speed)


def test_memory_is_the_presets():
    """(6 GB - 3 x 4 B x 3.47 M) / 53.4 MB = 111.6; with 1 GB, 17: below the paper's 25."""
    net = network("mobilenetv2")
    _, drive = emulated(net, load_preset("newport"))
    assert drive.limit == 111
    host, small = emulated(net, load_preset("newport", ["dram.isp=1 GB"]))
    assert small.limit == 17
    with pytest.raises(MemoryError, match="batch 18 exceeds the memory limit, 17"):
        small(18)
    measured = benchmark("csd", small, small.batches)
    assert measured.limit == 17 and measured.engine().best == 17
    assert tune([host.engine(), measured.engine()])[1] == 17


def test_laguna_has_its_own_row():
    """Batches 180 and 15; the preset's ratio is what a margin of 20 % makes of them."""
    net = network("mobilenetv2", "laguna")
    host, drive = emulated(net, load_preset("laguna"))
    assert (net.host_batch, net.drive_batch, net.host_speed) == (180, 15, 33.4)
    assert drive.speed == pytest.approx(net.tuned_drive_speed)
    assert tune([host.engine(), drive.engine()]) == (180, 15)


def test_published_engines_have_no_larger_batch():
    host, drive = published(network("inceptionv3"))
    assert host == Engine("host", ((370, 30.80),)) and drive.most == 16


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: emulated(UNTIMED, load_preset("laguna")), "speed is not published"),
        (lambda: published(UNTIMED), "ShuffleNet on laguna: its speed is not"),
        (lambda: emulated(network("mobilenetv2"), load_preset("smartssd")), "smartssd: its drives"),
        (
            lambda: emulated(network("mobilenetv2"), load_preset("newport", ["dram.isp=60 MB"])),
            "MobileNetV2: the model takes 0.04164 GB and one sample 0.0534 GB; they do not fit "
            "together into 0.06 GB of memory",
        ),
    ],
)
def test_what_cannot_be_emulated(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_every_network_with_a_speed_can_be_emulated():
    for name in NETWORKS:
        net = network(name)
        if net.host_speed is not None:
            assert all(e.limit >= 1 for e in emulated(net, load_preset(net.drive)))
