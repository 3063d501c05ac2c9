"""A checkpoint out of the reservoir: every bit of weights and states, through array, channel and
link, at their price; and a training that goes on from it.
"""

from dataclasses import replace

import numpy as np
import pytest

from ondie.emu.analysis.compare import Run
from ondie.emu.paths.base import Options
from ondie.emu.units import InputError
from ondie.traces import Memory
from tests.state.models import model
from tests.timing.harness import COMMAND, PAGE, TIMES, preset

LEAVES = {
    "flash.channels": "2",
    "flash.dies_per_channel": "2",
    "flash.planes_per_die": "4",
    "flash.blocks_per_plane": "16",
    "flash.pages_per_block": "4",
    "flash.page": "1 KiB",
    "ftl.reservoir_fraction": "0.5",
    "host.io_block": "4 KiB",
}


def started(trace, payload=True, **changes):
    return Run("on_die", preset(LEAVES, **changes), trace, Options(), payload)


def bits(x):
    return x.view(np.uint32)


@pytest.mark.parametrize("op", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("devices", [1, 2])
def test_another_training_goes_on_from_it(op, devices):
    trace = model(op, 5)
    run = started(trace, system__devices=devices)
    for i in range(3):
        run.step(i)
    saved = run.checkpoint().vectors
    assert set(saved) == set(run.path.vectors)
    for name, vector in saved.items():
        assert (bits(vector) == bits(run.path.payload.stored(name))).all(), name
    gradients = {i: trace.gradient(i + 3) for i in range(2)}
    states = {name: x for name, x in saved.items() if name != "w"}
    steps = tuple(replace(s, index=i) for i, s in enumerate(trace.steps[3:]))
    rest = replace(trace, steps=steps, source=Memory(gradients, {"initial": saved["w"]}, states))
    again = started(rest, system__devices=devices)
    for i in range(2):
        run.step(i + 3)
        again.step(i)
    assert (bits(again.path.finish()) == bits(run.path.finish())).all()
    run.account()  # balanced


def test_its_price():
    """One die of two planes, Momentum, two super-pages of 8 KiB: commands of two planes and arrays
    one after the other (no cache register), data over the channel, through DRAM twice, over the
    link at 4.096 B/ns with its latency. The second page's way is what counts, the first is gone by
    then: 2 x (0.2 + 10 + 8.192) us, then 2 + 2 + 0.2 us."""
    trace = model("momentum", 1, (("a", (2048,), 0),))
    cfg = preset(TIMES, flash__cache_read="false")
    run = Run("on_die", cfg, trace, Options(), payload=True)
    made = run.checkpoint()
    assert made.bytes_up == 2 * 2 * PAGE
    way = 2 * (2 * COMMAND + 10_000_000 + 8_192_000) + 2_000_000 + 2_000_000 + 200_000
    assert made.seconds * 1e12 == pytest.approx(way, abs=1)
    timed = Run("on_die", cfg, trace, Options(), payload=False).checkpoint()
    assert timed.vectors is None and timed.seconds == made.seconds


def test_a_wrong_bit_leaves_with_it():
    trace = model("adam", 1)
    run = started(trace)
    store = run.path.payload.stores[0]
    store.flip(run.path.payload.page(run.path.payload.at(0, 5), 1), 9)
    saved = run.checkpoint().vectors
    wrong = np.flatnonzero(bits(saved["m"]) != bits(trace.states()["m"]))
    assert wrong.tolist() == [5 * 256 + 2]
    assert (bits(saved["w"]) == bits(trace.weights("initial"))).all()


def test_raw_bit_errors_are_in_it():
    """Reads past the ECC: as many wrong bits as were counted, in vectors and in what pads them."""
    trace = model("adam", 1)
    run = started(trace, errors__kind="model", errors__floor="1e-4", errors__pslc="1")
    saved = run.checkpoint().vectors
    counted = run.system.totals(run.clock).counters["bare_wrong_bits"]
    truth = {"w": trace.weights("initial"), **trace.states()}
    wrong = sum(int(np.bitwise_count(bits(saved[n]) ^ bits(truth[n])).sum()) for n in saved)
    assert 0 < wrong <= counted < 1.1 * wrong + 10


def test_after_a_power_cut():
    trace = model("adam", 2)
    run, plain = started(trace), started(trace)
    run.step(0, cut_after=200)
    with pytest.raises(InputError, match="no power"):
        run.checkpoint()
    run.recover()
    with pytest.raises(InputError, match="a step is interrupted"):
        run.checkpoint()
    run.resume()
    plain.step(0)
    ours, theirs = run.checkpoint().vectors, plain.checkpoint().vectors
    assert all((bits(ours[name]) == bits(theirs[name])).all() for name in theirs)


def test_paths_that_have_no_reservoir():
    cfg = preset({}, pe__kind="none")
    run = Run("in_storage", cfg, model("adam", 1), Options(), payload=True)
    with pytest.raises(InputError, match="in_storage: only the path .* has checkpoints"):
        run.checkpoint()
