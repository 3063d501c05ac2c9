"""The comparison: one trace through several paths on one device.

Owns the choice of paths, running them, holding weights against the reference, the headline. Does not
own words, tables and files (report.py).
Source: DESIGN, what is compared; trace contract (bit equality, distance to the recorded weights).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondie.emu import timeline as timelines
from ondie.emu.backend.timing import OP_NAMES
from ondie.emu.clock import ps_from_seconds
from ondie.emu.config import Config
from ondie.emu.energy import Energy, energy
from ondie.emu.ledger import Ledger, StepClock, ledger
from ondie.emu.paths.arithmetic import Arithmetic
from ondie.emu.paths.base import PHASES, Options, Path, Unavailable
from ondie.emu.paths.bounds import Bound
from ondie.emu.paths.host_offload import HostOffload, PipelinedOffload
from ondie.emu.paths.in_storage import InStorage
from ondie.emu.paths.on_die import OnDie
from ondie.emu.paths.stannis import Stannis
from ondie.emu.sensitivity import Swing, swings
from ondie.emu.system import System
from ondie.emu.units import InputError, nearest
from ondie.traces import Trace

PATHS: dict[str, type[Path]] = {
    path.name: path for path in (HostOffload, PipelinedOffload, InStorage, OnDie, Stannis)
}
BASELINE = HostOffload.name
RIVALS = (OnDie.name, InStorage.name, PipelinedOffload.name)
"""Whose speedup over the baseline is the headline: the first of these that runs."""
WORKERS = 2
TOLERANCE = 16
"""Units of 2**-24 max(|w|, sum of learning rates) that weights may lie from the recorded ones."""


class Mismatch(RuntimeError):
    """A path did not end on the reference weights: a defect. No result is written."""


@dataclass(frozen=True)
class Weights:
    """A path's final weights against the reference and against the recorded ones."""

    equal_bits: int
    elements: int
    delivered_equal_bits: int | None
    """Of the weights that reached the host by the last step; None where the path sends none."""
    recorded_distance: float | None
    """Largest distance to the recorded weights, in units of 2**-24 max(|w|, sum of learning rates)."""
    recorded_equal_share: float | None


@dataclass(frozen=True)
class Result:
    """What one path gave."""

    name: str
    title: str
    reason: str | None = None
    """Why it did not run (then the rest is None)."""
    updates_weights: bool = True
    """Its update stage is of the same kind as the baseline's."""
    notes: tuple[str, ...] = ()
    """What a reader of the row has to know."""
    ledger: Ledger | None = None
    energy: Energy | None = None
    bound: Bound | None = None
    weights: Weights | None = None
    timeline: list[dict[str, Any]] | None = None
    dropped: int = 0
    """Intervals for which the timeline had no room."""


@dataclass(frozen=True)
class Comparison:
    """A trace through several paths on one device."""

    cfg: Config
    trace: Trace
    options: Options
    steps: int
    results: tuple[Result, ...]
    swings: tuple[Swing, ...]
    swing_pair: tuple[str, str] | None

    def result(self, name: str) -> Result | None:
        """The result of a path that ran, or None."""
        for r in self.results:
            if r.name == name and r.reason is None:
                return r
        return None


def choose(names: Sequence[str] | None) -> list[str]:
    """Names of paths, checked; all when None."""
    if not names:
        return list(PATHS)
    for name in names:
        if name not in PATHS:
            raise InputError(
                f"--paths: unknown path {name!r}; nearest: {nearest(name, PATHS) or 'none'} "
                f"(of {', '.join(PATHS)})"
            )
    return list(dict.fromkeys(names))


def run_path(
    name: str,
    cfg: Config,
    trace: Trace,
    options: Options,
    *,
    steps: int,
    payload: bool,
    timeline: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> Result:
    """Run one path for ``steps`` steps of the trace.

    Raises Unavailable when the device or model cannot run it, Imbalance and Mismatch on defects.
    """
    path = PATHS[name](cfg, trace, options)
    carries = payload and path.updates_weights
    system = path.system(carries, timeline)
    arithmetic = Arithmetic(trace, options.form) if carries else None
    path.prepare(system, arithmetic)
    clock = StepClock(system.phases, system.arrays.phase)
    applied = [i for i in range(steps) if not trace.steps[i].skipped]
    bound = path.bound(applied[0] if applied else 0)
    staged = range(steps) if path.exchanges else applied  # an exchange comes before the skip
    mean = sum(path.bound(i).seconds for i in staged) / steps
    bound = dataclasses.replace(bound, seconds=mean)
    for i in range(steps):
        if progress is not None:
            _report_progress(system, name, progress, trace, i, steps, bound)
        clock.begin(system.now)
        if not trace.steps[i].skipped:
            path.begin_step(i)
        system.run(path.plan(i))
        clock.end(system.now)
    totals = system.totals(clock)
    book = ledger(totals, samples_per_step(path, trace))
    weights = None
    if arithmetic is not None:
        weights = compare_weights(path, arithmetic, steps)
    joules = energy(cfg, totals, path.work(steps))
    events = None
    if timeline:
        lines = system.arrays.line[: int(system.arrays.reg.lines[0])]
        events = timelines.events(lines, system.leaf_name, OP_NAMES, PHASES, path.title)
    dropped = int(system.arrays.reg.line_drop[0])
    return Result(
        path.name, path.title, None, path.updates_weights, tuple(path.notes()), book, joules, bound, weights, events, dropped,
    )  # fmt: skip


def samples_per_step(path: Path, trace: Trace) -> int:
    """Samples of one step: the trace's, unless the path changes the global batch."""
    return int(getattr(path, "global_batch", trace.samples_per_step))


def _report_progress(
    system: System,
    name: str,
    progress: Callable[[str, float], None],
    trace: Trace,
    step: int,
    steps: int,
    bound: Bound,
) -> None:
    """Progress in simulated time, against the closed form."""
    s = trace.steps[step]
    begin = system.now
    length = ps_from_seconds(s.forward_s + s.backward_s + bound.seconds) or 1

    def at(_: int) -> None:
        progress(name, (step + min((system.now - begin) / length, 1.0)) / steps)

    system.on_progress = at


def compare_weights(path: Path, arithmetic: Arithmetic, steps: int) -> Weights:
    """Hold the weights on flash against the same kernel outside the emulator. Raises Mismatch."""
    final = path.finish()
    assert final is not None
    trace = arithmetic.trace
    reference = arithmetic.reference(steps)
    equal = int((final.view(np.uint32) == reference.view(np.uint32)).sum())
    if equal != len(reference):
        at = int(np.flatnonzero(final.view(np.uint32) != reference.view(np.uint32))[0])
        raise Mismatch(
            f"{path.name}: {len(reference) - equal} of {len(reference)} weights differ from the "
            f"reference, the first at {at} ({trace.locate(at)[0]}): {final[at]!r}, "
            f"not {reference[at]!r}"
        )
    delivered = None
    sent = path.delivered()
    if sent is not None and path.options.weights_up == "fp32":
        delivered = int((sent.view(np.uint32) == reference.view(np.uint32)).sum())
        if delivered != len(reference):
            raise Mismatch(
                f"{path.name}: {len(reference) - delivered} of {len(reference)} weights that were "
                "sent to the host differ from those on flash"
            )
    distance = share = None
    recorded = trace.weights("final")
    if recorded is not None and steps == len(trace.steps):
        distance, share = recorded_distance(final, recorded, trace)
        if distance > TOLERANCE:
            raise Mismatch(
                f"{path.name}: weights lie {distance:.3g} units of 2**-24 max(|w|, sum of learning "
                f"rates) from the recorded ones, {TOLERANCE} is the limit"
            )
    return Weights(equal, len(reference), delivered, distance, share)


def recorded_distance(
    final: np.ndarray, recorded: np.ndarray, trace: Trace
) -> tuple[float, float]:
    """(largest distance in units of 2**-24 max(|w|, sum of learning rates), share of equal bits)."""
    rates = [
        sum(float(step.hyper[g]["lr"]) for step in trace.steps if not step.skipped)
        for g in range(trace.groups)
    ]
    scale = np.abs(recorded.astype(np.float64))
    for a, b, group in trace.group_ranges():
        np.maximum(scale[a:b], rates[group], out=scale[a:b])
    gap = np.abs(final.astype(np.float64) - recorded)
    with np.errstate(invalid="ignore", divide="ignore"):
        units = np.where(gap == 0, 0.0, gap / (scale * 2.0**-24))
    share = float((final.view(np.uint32) == recorded.view(np.uint32)).mean())
    return float(units.max(initial=0.0)), share


def compare(
    trace: Trace,
    cfg: Config,
    *,
    paths: Sequence[str] | None = None,
    options: Options | None = None,
    steps: int | None = None,
    timeline: int = 0,
    swing: bool = True,
    progress: Callable[[str, float], None] | None = None,
) -> Comparison:
    """Run the paths. A path named in ``paths`` that cannot run raises Unavailable; one that was not
    named gets a row with the reason.

    ``steps`` defaults to all of a recorded trace and one of a synthetic one.
    """
    options = options or Options()
    chosen = choose(paths)
    n = step_count(trace, steps)
    payload = trace.payload == "recorded"
    for name in chosen if paths else ():
        PATHS[name](cfg, trace, options)  # raises Unavailable before anything runs

    def one(name: str) -> Result:
        try:
            return run_path(
                name, cfg, trace, options,
                steps=n, payload=payload, timeline=timeline, progress=progress,
            )  # fmt: skip
        except Unavailable as error:
            reason = str(error).removeprefix(f"{name}: ")
            return Result(name, PATHS[name].title, reason)

    with ThreadPoolExecutor(WORKERS) as pool:
        results = tuple(pool.map(one, chosen))
    ran = [r.name for r in results if r.reason is None]
    if not ran:
        reasons = "; ".join(f"{r.name}: {r.reason}" for r in results)
        raise Unavailable(f"no path can run {trace.name} on {cfg.system.name}: {reasons}")
    pair = headline_pair(ran)
    found: tuple[Swing, ...] = ()
    if swing and pair is not None:
        found = tuple(swings(cfg, trace, lambda c, t: headline(c, t, options, pair)))
    return Comparison(cfg, trace, options, n, results, found, pair)


def step_count(trace: Trace, steps: int | None) -> int:
    """Steps to run, checked against the trace."""
    if steps is None:
        return len(trace.steps) if trace.timing_source == "recorded" else 1
    if not 1 <= steps <= len(trace.steps):
        raise InputError(f"--steps {steps}: {trace.name} has 1 to {len(trace.steps)} steps")
    return steps


def headline_pair(ran: Sequence[str]) -> tuple[str, str] | None:
    """(baseline, rival) of the headline, or None when there are not two to compare."""
    if BASELINE not in ran:
        return None
    for name in RIVALS:
        if name in ran:
            return BASELINE, name
    return None


def headline(
    cfg: Config, trace: Trace, options: Options, pair: tuple[str, str]
) -> tuple[float, float]:
    """(update-stage speedup, energy ratio with host) of rival over baseline, timing only."""
    base, rival = (
        run_path(name, cfg, trace, options, steps=1, payload=False) for name in pair
    )
    return speedup(base, rival), energy_ratio(base, rival)


def speedup(base: Result, rival: Result) -> float:
    """Update stage of the baseline over that of the rival."""
    assert base.ledger is not None and rival.ledger is not None
    return base.ledger.update_s / rival.ledger.update_s


def energy_ratio(base: Result, rival: Result) -> float:
    """Joules of drive and host outside forward and backward, baseline over rival, typical."""
    assert base.energy is not None and rival.energy is not None
    return base.energy.storage_and_host[1] / rival.energy.storage_and_host[1]


