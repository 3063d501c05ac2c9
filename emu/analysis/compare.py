"""Comparison: one trace on several paths with one device configuration.

Owns the runs of the paths. Does not own the choice of paths (analysis/path_choice.py), the check of
the final weights (analysis/weight_check.py), tables (results/tables/compare.py) or result.json
(analysis/result_json.py).
Source: this project's rule that all paths train with the same global batch, initial weights and
number of steps.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondie.emu.analysis import perfetto
from ondie.emu.analysis.energy import Energy, energy, is_price
from ondie.emu.analysis.error_notes import damaged, error_notes, uncoded_notes
from ondie.emu.analysis.extrapolate import Sampled, extend, reduced
from ondie.emu.analysis.ledger import Ledger, ledger
from ondie.emu.analysis.monte_carlo import Odds, assess
from ondie.emu.analysis.path_choice import PATHS, batched, choose, headline_pair
from ondie.emu.analysis.power_loss import cut
from ondie.emu.analysis.power_loss.interruptible import Interruptible
from ondie.emu.analysis.sensitivity import Headline, Swing, amortized, swings
from ondie.emu.analysis.weight_check import Weights, compare_weights
from ondie.emu.clock import check_seconds, ps_from_seconds
from ondie.emu.compute import training
from ondie.emu.config.config import Config
from ondie.emu.engine.core.totals import StepClock, Totals
from ondie.emu.engine.run.system import System
from ondie.emu.nand.timing import OP_NAMES
from ondie.emu.paths.base import PHASES, Options, Path, Unavailable
from ondie.emu.paths.closed_form import Bound
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.emu.paths.pieces import Piece
from ondie.emu.paths.statement import Share, Work
from ondie.emu.paths.update_path import UpdatingPath
from ondie.emu.units import InputError
from ondie.kernels import OPS
from ondie.traces import Trace

WORKERS = 2


class Stopped(Exception):
    """Exception that ends the run of a path because another path failed or the user interrupted the
    comparison."""


@dataclass(frozen=True)
class Result:
    """Result of one path (way of updating the weights) in a comparison."""

    name: str
    title: str
    reason: str | None = None
    """Reason why the path did not run; None if it ran. The fields below have their default values
    if it did not run."""
    updates_weights: bool = True
    """True if the path updates stored weights (Path.updates_weights); else it has no speedup."""
    notes: tuple[str, ...] = ()
    """Notes that are printed with the path's row of the table."""
    ledger: Ledger | None = None
    work: Work | None = None
    energy: Energy | None = None
    bound: Bound | None = None
    weights: Weights | None = None
    timeline: list[dict[str, Any]] | None = None
    dropped: int = 0
    """Number of busy intervals that are missing from ``timeline`` because the timeline was full."""
    sampled: Sampled | None = None
    """Record of the extrapolation from pieces of the model; None if the whole model was
    simulated."""
    share: Share | None = None
    """Distribution of the path's page programs over the blocks that only this path uses; None if
    there are no such blocks."""
    beside_cpu: tuple[bool, bool] = (False, False)
    """(reads, writes): True if the reads, or the writes, of the update overlap the computation on
    the host's CPU."""

    def drives_w(self, steps: int) -> tuple[float, float, float]:
        """Return the mean power of all drives over the ``steps`` steps of a run, W: (low, typical,
        high). The path must have run."""
        assert self.ledger is not None and self.energy is not None
        low, typical, high = (joules / steps / self.ledger.step_s for joules in self.energy.drives)
        return low, typical, high


@dataclass(frozen=True)
class Comparison:
    """Results of simulating a trace on several paths with one device configuration."""

    cfg: Config
    trace: Trace
    options: Options
    steps: int
    results: tuple[Result, ...]
    swings: tuple[Swing, ...]
    """Effect of each varied constant with an assumed value on speedup and energy ratio."""
    swing_pair: tuple[str, str] | None
    """(baseline, rival): the two paths of the headline; None if it does not compare two paths."""
    step_times: training.StepTimes
    odds: Odds | None = None
    """Uncertainty of the ratio of the energies of baseline and rival, the two paths of the
    headline; None if the constants were not varied."""
    published_swings: tuple[Swing, ...] = ()
    """Effect of each varied constant whose value is not assumed on speedup and energy ratio."""

    @property
    def time_swings(self) -> tuple[Swing, ...]:
        """Effect of each varied constant that may affect time on speedup and energy ratio."""
        every = (*self.swings, *self.published_swings)
        return tuple(swing for swing in every if not is_price(swing.key))

    def result(self, name: str) -> Result | None:
        """Return the result of the path called ``name`` if it ran, else None."""
        for result in self.results:
            if result.name == name and result.reason is None:
                return result
        return None


class Run(Interruptible):
    """Run of one path, step by step. Raises Unavailable if the path cannot run with this device or
    model.

    ``payload``: True to simulate the contents of weights, states and gradients in addition to
    times. ``timeline``: maximum number of recorded busy intervals; 0 for no timeline. ``initial``:
    initial weights and states by slot, in the storage format; None to use those of the trace.
    """

    def __init__(
        self,
        name: str,
        cfg: Config,
        trace: Trace,
        options: Options,
        payload: bool,
        timeline: int = 0,
        initial: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.cfg = cfg
        self.path = PATHS[name](cfg, trace, options)
        carries = payload and self.path.carries
        self.system = self.path.system(carries, timeline)
        self.system.arrays.cfg.seed = options.seed
        self.arithmetic = None
        if carries:
            self.arithmetic = Arithmetic(
                trace, options.form, format=options.format, seed=options.seed
            )
            self.arithmetic.given = initial
        self.path.prepare(self.system, self.arithmetic)
        self.clock = StepClock(self.system.phases, self.system.arrays.phase)
        self.recoveries = []

    def step(self, i: int, cut_after: int | None = None) -> bool:
        """Simulate step ``i`` of the path's trace. Return True if the step completes.

        ``cut_after``: number of events after which the power fails; None for no power failure. If
        the power fails before the step completes, the caller must call :meth:`recover`.
        """
        self.nothing_under_way()
        cut.check_cut(self.path, cut_after)
        self.clock.begin(self.system.now)
        if not self.path.trace.steps[i].skipped:
            self.path.begin_step(i)
        return self.powered_step(i, cut_after)

    def part(self) -> None:
        """Break the references between the path and the drives, so that their memory is freed."""
        self.system.drop_callbacks()
        self.path.part()

    def account(self) -> tuple[Totals, Ledger, Work, Energy]:
        """Return (totals, ledger, work, energy) of all steps simulated so far, which the path's
        trace must contain. Raises InputError if an interrupted step has not been resumed. Raises
        Imbalance if a conservation law is violated."""
        self.nothing_under_way()
        totals = self.system.totals(self.clock)
        book = ledger(totals, samples_per_step(self.path, self.path.trace))
        work = self.path.work(len(self.clock.steps))
        work = cut.with_redone(work, self.path, totals, self.recoveries)
        spent = cut.with_lost(totals, [recovery.cut for recovery in self.recoveries])
        return totals, book, work, energy(self.cfg, spent, work)


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
    """Run one path for ``steps`` steps of the trace, and return its result.

    ``payload``, ``timeline``: see :class:`Run`. ``progress`` is called with the path's name and the
    completed fraction. Raises Unavailable if the path cannot run with this device or model. Raises
    Imbalance or Mismatch if the emulator has a defect.
    """
    run = Run(name, cfg, trace, options, payload, timeline)
    path, system = run.path, run.system
    applied = [i for i in range(steps) if not trace.steps[i].skipped]
    bound = path.bound(applied[0] if applied else 0)
    staged = range(steps) if path.exchanges else applied  # a skipped step still has its exchange
    mean = sum(path.bound(i).seconds for i in staged) / steps
    bound = dataclasses.replace(bound, seconds=mean)
    check_length(name, trace, steps, bound)
    for i in range(steps):
        if progress is not None:
            _report_progress(system, name, progress, trace, i, steps, bound)
        run.step(i)
    totals, book, work, joules = run.account()
    held = path.payload if isinstance(path, UpdatingPath) else None
    decoder = None if held is None else held.moved.decoder
    decoded = None if decoder is None else decoder.counts
    bare = held.decoder.counts if isinstance(held, Reservoir) and held.decoder else None
    weights = None
    if run.arithmetic is not None:
        weights = compare_weights(path, run.arithmetic, steps, damaged(totals, decoded))
    events = None
    if timeline:
        lines = system.arrays.line[: int(system.arrays.reg.lines[0])]
        events = perfetto.events(lines, system.leaf_name, OP_NAMES, PHASES, path.heading)
    dropped = int(system.arrays.reg.line_drop[0])
    notes = (*path.notes(), *error_notes(totals, weights, path.cfg.pe.protection, decoded, bare))
    if isinstance(held, Reservoir) and cfg.errors.kind != "none":
        notes += tuple(uncoded_notes(held.uncoded_counts))
    run.part()
    return Result(
        path.name, path.heading, None, path.updates_weights, notes, book, work, joules, bound,
        weights, events, dropped, share=path.share(steps), beside_cpu=path.beside_cpu,
    )  # fmt: skip


def run_sampled(
    name: str,
    cfg: Config,
    trace: Trace,
    options: Options,
    progress: Callable[[str, float], None] | None = None,
    each: Callable[..., Iterable[Any]] = map,
) -> Result | None:
    """Simulate samples (pieces) of the model, and return the result of one step, extrapolated to
    the whole model.

    ``each`` applies a function to all pieces, as `map` does. Returns None if the whole model must
    be simulated: the pieces would be as large as the model, or the path has no update stage on
    flash. Raises Unavailable if the path cannot run. Raises Imbalance if the emulator has a defect.
    """
    path = PATHS[name](cfg, trace, options)
    found = path.pieces() if isinstance(path, UpdatingPath) else None
    if found is None:
        return None
    of_part, done = part_options(path), 0

    def run(piece: Piece) -> Ledger:
        nonlocal done
        if progress is not None:
            progress(name, done / len(found.all))
        done += 1
        share = piece.params / trace.n_params
        small = reduced(trace, piece.params, name="piece", training=share)
        fitting = cfg.replace({"host.subgroup_params": piece.group}) if piece.group else cfg
        part = Run(name, fitting, small, of_part, payload=False)
        part.step(0)
        book = part.account()[1]
        part.part()
        return book

    book, sampled = extend(found, run, each)
    work = path.work(1)
    return Result(
        path.name, path.heading, None, path.updates_weights, (*path.notes(), sampled.words), book,
        work, energy(cfg, book.totals, work), path.bound(0), sampled=sampled, share=path.share(1),
        beside_cpu=path.beside_cpu,
    )  # fmt: skip


def part_options(path: Path) -> Options:
    """Return the options for simulating a piece of the path's model. With these options, the layout
    of the piece equals that of the whole model."""
    return path.part_options() if isinstance(path, UpdatingPath) else path.options


def run_whole(
    name: str,
    cfg: Config,
    trace: Trace,
    options: Options,
    progress: Callable[[str, float], None] | None = None,
) -> Result:
    """Simulate one step of the whole model after run_sampled() returned None, and return the
    result. A note in the result states why the whole model was simulated."""
    path = PATHS[name](cfg, trace, options)
    reason = "the path has no update stage on flash"
    if isinstance(path, UpdatingPath):
        reason = path.unsampled() or "the pieces would be as large as the model"
    found = run_path(name, cfg, trace, options, steps=1, payload=False, progress=progress)
    return dataclasses.replace(found, notes=(*found.notes, f"simulated as a whole: {reason}"))


def check_length(name: str, trace: Trace, steps: int, bound: Bound) -> None:
    """Raise InputError if the simulated time of the steps could overflow the clock."""
    whole = (
        sum(step_record.forward_s + step_record.backward_s for step_record in trace.steps[:steps])
        + bound.seconds * steps
    )
    check_seconds(
        whole,
        f"{name}: {trace.name} would take {whole:.3g} s of simulated time (update stage: "
        f"{bound.seconds:.3g} s per step, bound by {bound.name})",
    )


def samples_per_step(path: Path, trace: Trace) -> int:
    """Return the number of training samples in one step: the global batch of the path if the path
    changes it, otherwise the number that the trace states."""
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
    """Install a callback that reports the progress of the running step: elapsed simulated time
    divided by the step time that the closed form predicts."""
    step_record = trace.steps[step]
    begin = system.now
    length = ps_from_seconds(step_record.forward_s + step_record.backward_s + bound.seconds) or 1

    def at(_: int) -> None:
        progress(name, (step + min((system.now - begin) / length, 1.0)) / steps)

    system.on_progress = at


def compare(
    trace: Trace,
    cfg: Config,
    *,
    paths: Sequence[str] | None = None,
    options: Options | None = None,
    steps: int | None = None,
    timeline: int = 0,
    swing: bool = True,
    sampled: bool = False,
    strict: bool = True,
    progress: Callable[[str, float], None] | None = None,
) -> Comparison:
    """Run the paths, and return the comparison.

    ``steps``: by default all steps of a recorded trace and one step of a synthetic trace.
    ``swing``: True to vary the constants. ``sampled``: True to extrapolate the update stage from
    samples of the model (analysis/extrapolate.py); requires one step, no payload and no timeline.
    The result of a path that cannot run contains the reason. Raises Unavailable if no path can run,
    or if ``strict`` is True and such a path is named in ``paths`` or has a batch in ``options``;
    InputError if an argument is invalid or no update kernel implements the optimizer operation.
    """
    options = options or Options()
    rule = options.step_times, options.forward_s, options.backward_s

    def timed(changed: Config, given: Trace = trace) -> tuple[Trace, training.StepTimes]:
        return training.timed(given, changed, *rule)

    trace, step_times = timed(cfg)
    chosen = choose(paths, trace)
    if trace.op not in OPS:
        reason = trace.attrs.get("op_reason", "no update kernel implements it")
        raise InputError(f"{trace.origin}: optimizer operation {trace.op!r} cannot run: {reason}")
    n_steps = step_count(trace, steps)
    payload = trace.payload == "recorded"
    if sampled and (payload or n_steps > 1 or timeline):
        what = "a timeline" if timeline else f"{n_steps} steps" if n_steps > 1 else "a payload"
        raise InputError(
            f"--sampled: {trace.name} with {what} cannot be extrapolated; remove --sampled"
        )
    with_batches = batched(chosen, options)
    required = chosen if paths else with_batches
    for name in required if strict else ():
        PATHS[name](cfg, trace, options)  # raises Unavailable before anything runs

    stop = threading.Event()

    def watch(name: str, share: float) -> None:
        if stop.is_set():
            raise Stopped(name)
        if progress is not None:
            progress(name, share)

    def one(name: str) -> Result:
        try:
            if sampled:
                extended = run_sampled(name, cfg, trace, options, watch, workers.map)
                if extended is None:
                    return workers.submit(run_whole, name, cfg, trace, options, watch).result()
                return extended
            return run_path(
                name, cfg, trace, options,
                steps=n_steps, payload=payload, timeline=timeline, progress=watch,
            )  # fmt: skip
        except Unavailable as error:
            reason = str(error).removeprefix(f"{name}: ")
            return Result(name, PATHS[name].title, reason)

    # The workers take pieces from one queue, so that none is idle while pieces are left. The
    # watcher thread of a path only waits for the pieces of this path.
    watchers = len(chosen) if sampled else WORKERS
    with ThreadPoolExecutor(WORKERS) as workers, ThreadPoolExecutor(watchers) as pool:
        try:
            results = tuple(pool.map(one, chosen))
        except RuntimeError as error:
            stop.set()
            if "can't start new thread" in str(error):  # Python's message when memory is short
                raise MemoryError("cannot start another thread (raise ulimit -u or -v)") from error
            raise
        except BaseException:  # also an interrupt: leaving the pool waits for the other paths
            stop.set()
            raise
    ran = [result.name for result in results if result.reason is None]
    updated = [
        result.name for result in results if result.ledger is not None and result.ledger.update_s
    ]
    if not ran:
        reasons = "; ".join(f"{result.name}: {result.reason}" for result in results)
        raise Unavailable(f"no path can run {trace.name} on {cfg.system.name}: {reasons}")
    pair = headline_pair(updated)
    every: tuple[Swing, ...] = ()
    odds = None
    if swing and pair is not None:
        every, odds = _vary(lambda changed: timed(changed)[0], cfg, options, results, pair)
    assumed = {leaf.key for leaf in cfg.assumed()}
    return Comparison(
        cfg, trace, options, n_steps, results,
        tuple(swing for swing in every if swing.key in assumed), pair, step_times, odds,
        tuple(swing for swing in every if swing.key not in assumed),
    )  # fmt: skip


def _vary(
    timed: Callable[[Config], Trace],
    cfg: Config,
    options: Options,
    results: Sequence[Result],
    pair: tuple[str, str],
) -> tuple[tuple[Swing, ...], Odds]:
    """Return the effect of each constant with a range on the headline, and the uncertainty of the
    headline's energy ratio. ``timed`` returns the trace with the times of forward and backward for
    a configuration. ``pair``: (baseline, rival)."""
    trace = timed(cfg)

    def again(name: str, changed: Config, small: Trace) -> tuple[Ledger, Work]:
        path, short = PATHS[name](changed, trace, options), amortized(changed)
        if isinstance(path, UpdatingPath) and (more := path.part_settings(small.n_params)):
            short = short.replace(more)
        result = run_path(name, short, small, part_options(path), steps=1, payload=False)
        assert result.ledger is not None and result.work is not None
        return result.ledger, result.work

    def fits(name: str, changed: Config) -> None:
        PATHS[name](changed, trace, options)

    every = swings(cfg, timed, Headline(again, fits, pair), WORKERS)
    books = {
        result.name: (result.ledger, result.work)
        for result in results
        if result.ledger and result.work
    }
    return tuple(every), assess(cfg, {name: books[name] for name in pair}, every, options.seed)


def step_count(trace: Trace, steps: int | None) -> int:
    """Return the number of steps to run. Raises InputError if ``steps`` is below 1 or above the
    number of steps of the trace."""
    if steps is None:
        return len(trace.steps) if trace.timing_source == "recorded" else 1
    if not 1 <= steps <= len(trace.steps):
        count = len(trace.steps)
        limits = f"a value from 1 to {count}" if count > 1 else "1"
        plural = "s" if count > 1 else ""
        raise InputError(
            f"--steps {steps}: trace {trace.name} has {count} step{plural}; use {limits}"
        )
    return steps
