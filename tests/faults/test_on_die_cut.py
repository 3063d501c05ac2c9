"""A power cut at any event of a step on the dies: what comes up from flash alone, and is resumed, ends
bit for bit where an uninterrupted run does: weights, states, what the host was sent, and the books.
"""

from functools import cache

import numpy as np
import pytest

from ondie.emu import rows
from ondie.emu.backend import torn
from ondie.emu.backend.recovery import DieScan, Unrecoverable, check, conclude
from ondie.emu.backend.store import SPARE_BYTES, PageStore, Spare
from ondie.emu.compare import Run
from ondie.emu.ledger import Imbalance
from ondie.emu.paths import resume
from ondie.emu.paths.base import Options, Rows
from ondie.emu.stats import COUNTERS, DOWN_BYTES
from ondie.emu.units import InputError
from tests.state.models import model
from tests.timing.harness import COMMAND, TIMES, preset

LEAVES = {
    "flash.channels": "2",
    "flash.dies_per_channel": "2",
    "flash.planes_per_die": "4",
    "flash.blocks_per_plane": "16",
    "flash.pages_per_block": "4",
    "flash.page": "512 B",
    "ftl.reservoir_fraction": "0.5",
    "host.io_block": "4 KiB",
}
PAGES, BLOCKS, STEPS = 4, 8, 3
PLACES = PAGES * BLOCKS  # of a die's reservoir

# (op, parameters, settings). 128 parameters a page: Adam 128 a stripe, Momentum 256, SGD 512.
CASES = [
    (op, params, changes)
    for op, params in (("adam", 18 * 4 * 128 - 50), ("momentum", 11 * 4 * 256 + 700))
    for changes in (
        {},
        {"dispatch": "free"},
        {"dispatch": "double_buffered"},
        {"dispatch": "free", "ways": 3, "channels": 1},
        {"ways": 1, "channels": 3},
        {"devices": 2},
    )
] + [("sgd", 9 * 4 * 512, {"dispatch": "double_buffered"}), ("adam", 300, {})]
KEYS = {
    "dispatch": "pe__dispatch",
    "ways": "flash__dies_per_channel",
    "channels": "flash__channels",
    "devices": "system__devices",
}


@cache
def configured(case, **more):
    changes = {KEYS[name]: value for name, value in CASES[case][2].items()}
    return preset(LEAVES, **(changes | more))


@cache
def trace(case, skipped=()):
    op, params, _ = CASES[case]
    return model(op, STEPS, (("a", (params - 100,), 0), ("b", (100,), 1)), skipped=skipped)


def start(case, seed=0, skipped=(), **more):
    options = Options(seed=seed)
    return Run("on_die", configured(case, **more), trace(case, skipped), options, payload=True)


def vectors(run):
    """All that training goes on with, as bits."""
    found = {name: run.path.payload.stored(name) for name in run.path.vectors}
    found["at the host"] = run.path.delivered()
    return {name: x.view(np.uint32).copy() for name, x in found.items()}


@cache
def uninterrupted(case, skipped=()):
    """(vectors at the end, events of each step, ledger)."""
    run = start(case, skipped=skipped)
    events = [0]
    for i in range(STEPS):
        assert run.step(i)
        events.append(int(run.system.arrays.reg["events"][0]))
    reference = run.arithmetic.reference(STEPS).view(np.uint32)
    found = vectors(run)
    assert (found["w"] == reference).all()
    return found, np.diff(events), run.account()[1]


def finish(run, i):
    """The rest of a run whose step i is done."""
    for k in range(i + 1, STEPS):
        assert run.step(k)


def check_end(run, case, skipped=()):
    found, _, book = uninterrupted(case, skipped)
    for name, x in vectors(run).items():
        wrong = np.flatnonzero(x != found[name])
        assert not len(wrong), f"{name}: {len(wrong)} of {len(x)} differ, the first at {wrong[0]}"
    _, ours, _, _ = run.account()  # balanced, or it raises
    assert ours.steps == STEPS and ours.step_s >= book.step_s
    return ours


def survive(run, i, cuts):
    """Step i with a cut after each number of events of ``cuts`` = [(where, events)], where "step" is
    the step or what is left of it, "recovery" the next recovery."""
    cuts = list(cuts)
    off = not run.step(i, cut_after=cuts.pop(0)[1])
    while off:
        while cuts and cuts[0][0] == "recovery":
            if run.recover(cut_after=cuts.pop(0)[1]) is not None:
                break
        if run.cut is not None:
            run.recover()
        off = not run.resume(cut_after=cuts.pop(0)[1] if cuts else None)


def test_random_cuts(counts):
    """Any configuration, any event, up to three cuts in a step: a third of them while the drive comes
    up from the one before."""
    torn_programs = torn_erases = again = resent = kept = 0
    for seed in range(counts(12, 200)):
        rng = np.random.default_rng((20260605, seed))
        case = int(rng.integers(len(CASES)))
        skipped = (1,) if rng.random() < 0.1 else ()
        _, events, _ = uninterrupted(case, skipped)
        i = int(rng.integers(STEPS))
        cuts = [("step", int(rng.integers(1, events[i] + 1)))]
        for _ in range(int(rng.integers(3))):
            if rng.random() < 0.5:
                cuts.append(("recovery", int(rng.integers(1, 400))))
            else:
                cuts.append(("step", int(rng.integers(1, events[i] + 1))))
        run = start(case, seed, skipped)
        for k in range(i):
            run.step(k)
        survive(run, i, cuts)
        finish(run, i)
        check_end(run, case, skipped)
        for found in run.recoveries:
            torn_programs += found.cut.torn_programs
            torn_erases += found.cut.torn_erases
            again += found.cut.again
            resent += found.resent_bytes
            kept += found.kept
    assert torn_programs > 0 and resent > 0 and kept > 0  # the cuts were not all harmless
    assert counts(1, torn_erases * again) > 0
