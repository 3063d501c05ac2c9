"""Benchmarks of engines: time over batch sizes, measured or emulated, and the line through it.

Owns the measuring loop, the largest batch that memory holds, and the fit of speed(batch). Does not
own curves as they are measured (tuner.py), what is run, or any machine (emulated.py).
Source: STANNIS (DAC 2020): every engine is benchmarked over a list of batch sizes. The line
t(b) = start + b / rate is own: a step launches so many layers whatever the batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np

from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.units import InputError

REPEATS, WARM_UPS = 3, 1


@dataclass(frozen=True)
class Fitted(Engine):
    """An engine whose time is a line: ``start_s`` + batch x ``sample_s``.

    ``points`` are those that were measured. ``error`` is the largest relative error of the times of
    those it was fitted to. ``full``, (batch, samples/s): from that batch on the speed is constant,
    and no longer the line's.
    """

    start_s: float = 0.0
    sample_s: float = 0.0
    error: float = 0.0
    full: tuple[int, float] | None = None
    cut: bool = False
    """Did the benchmark end where memory did?"""

    def speed(self, batch: int) -> float:
        if self.full is not None and batch >= self.full[0]:
            return self.full[1]
        return batch / (self.start_s + batch * self.sample_s)

    def held_down(self) -> bool:
        return super().held_down() or (self.cut and self.best == self.limit)

    @property
    def half_batch(self) -> float:
        """The batch at which half of a step goes to what no sample adds to: at half the speed that
        the line tends to."""
        return self.start_s / self.sample_s


@dataclass(frozen=True)
class Measured:
    """What a benchmark found: batches ascending, the median time of each, and how far the times of
    one batch lie apart, relative to it."""

    name: str
    batches: tuple[int, ...]
    seconds: tuple[float, ...]
    spread: tuple[float, ...]
    limit: int | None
    """The largest batch that memory holds; None: all that were tried."""

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """(batch, samples per second)."""
        return tuple((b, b / s) for b, s in zip(self.batches, self.seconds, strict=True))

    def engine(self) -> Engine:
        """The curve as measured, linear in speed between its points. InputError where a larger
        batch took less time; then :meth:`fit` is what can be used."""
        return Engine(self.name, self.points, self.limit)

    def fit(self, full: int | None = None) -> Fitted:
        """The line nearest to the times in least squares, neither term negative. InputError where
        time does not grow with the batch.

        ``full``: a batch that has the highest speed. The line is fitted to those up to it, and
        scaled to meet its own exactly, if it was measured; from there on the speed is constant.
        """
        b, t = np.array(self.batches, np.float64), np.array(self.seconds)
        if full is not None:
            b, t = b[b <= full], t[: int((b <= full).sum())]
            if not len(b):
                raise InputError(
                    f"{self.name}: no batch up to {full} was measured, from which on its speed is "
                    f"to be constant; one at least is right"
                )
        start, slope = 0.0, float(b @ t / (b @ b))
        if len(b) > 1:
            db, dt = b - b.mean(), t - t.mean()
            free = float(db @ dt / (db @ db))
            if free <= 0:
                raise InputError(
                    f"{self.name}: time does not grow with the batch, {t[0]:.4g} s at {b[0]:.0f}, "
                    f"{t[-1]:.4g} s at {b[-1]:.0f}; larger batches or more repeats are right"
                )
            if t.mean() > free * b.mean():  # else a line through the origin is nearest
                start, slope = float(t.mean() - free * b.mean()), free
        met = None
        if full is not None and b[-1] == full:
            met = full, full / float(t[-1])
            scale = float(t[-1]) / (start + full * slope)
            start, slope = start * scale, slope * scale
        error = float(np.max(np.abs((start + b * slope) / t - 1)))
        cut = self.limit is not None
        return Fitted(self.name, self.points, self.limit, start, slope, error, met, cut)


def benchmark(
    name: str,
    run: Callable[[int], float | None],
    batches: Iterable[int],
    *,
    repeats: int = REPEATS,
    warm_ups: int = WARM_UPS,
    out_of_memory: tuple[type[Exception], ...] = (MemoryError,),
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Time ``run(batch)`` over batch sizes: a training step, which returns its seconds (an emulated
    engine), or None to be timed by ``clock`` (a real one; it ends when the step has).

    Where a batch raises one of ``out_of_memory``, the largest that does not is looked for between
    it and the one before, and larger ones are not tried. InputError where nothing can be measured.
    """
    wanted = sorted(set(batches))
    if not wanted or wanted[0] < 1:
        raise InputError(f"{name}: batches {wanted}: at least one, each 1 or more, is right")
    if repeats < 1 or warm_ups < 0:
        raise InputError(
            f"{name}: {repeats} repeats after {warm_ups} warm-ups: 1 or more after 0 or more"
        )
    found: dict[int, list[float]] = {}

    def fits(batch: int) -> bool:
        """Measure a batch, if memory holds it."""
        try:
            times = [_seconds(name, run, batch, clock) for _ in range(warm_ups + repeats)]
        except out_of_memory:
            return False
        found[batch] = times[warm_ups:]
        return True

    fitting, limit = 0, None
    for batch in wanted:
        if fits(batch):
            fitting = batch
            continue
        low, high = fitting, batch  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        if not low:
            raise InputError(f"{name}: a batch of 1 does not fit into memory")
        limit = low
        break
    kept = sorted(found)
    middles = tuple(median(found[b]) for b in kept)
    spread = tuple((max(found[b]) - min(found[b])) / s for b, s in zip(kept, middles, strict=True))
    return Measured(name, tuple(kept), middles, spread, limit)


def _seconds(
    name: str, run: Callable[[int], float | None], batch: int, clock: Callable[[], float]
) -> float:
    """Of one step."""
    begin = clock()
    told = run(batch)
    took = clock() - begin if told is None else told
    if not (math.isfinite(took) and took > 0):
        raise InputError(f"{name}: batch {batch} took {took} s; more than 0 is right")
    return took
