"""Benchmark of an engine: measured or emulated step time by batch size, and the fitted line.

Owns the measuring loop, the largest batch that fits into memory, and the fit of speed(batch). Does
not own measured curves (batch_tuner.py), the training step that is run, or the emulated engines
(emulated_engine.py).
Source: STANNIS (DAC 2020): every engine is benchmarked over a list of batch sizes. The line t(b) =
start + b / rate is an assumption of this project: a step launches the same number of layers at
every batch size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.units import InputError

REPEATS, WARM_UPS = 3, 1


@dataclass(frozen=True)
class Fitted(Engine):
    """Engine whose step time is linear in the batch: ``start_s`` + batch x ``sample_s``, seconds.

    ``points``: the measured (batch, samples/s). ``error``: the largest relative error of the line
    at the fitted points. ``full``: (batch, samples/s): at this batch and every larger batch, the
    speed is constant; None if the line applies to every batch.
    """

    start_s: float = 0.0
    sample_s: float = 0.0
    error: float = 0.0
    full: tuple[int, float] | None = None
    cut: bool = False
    """True if the benchmark ended because a batch did not fit into memory."""

    def speed(self, batch: int) -> float:
        """Return the training speed at a batch size, samples per second. The speed follows from the
        fitted step time below the batch ``full[0]``, and is ``full[1]`` from this batch on."""
        if self.full is not None and batch >= self.full[0]:
            return self.full[1]
        return batch / (self.start_s + batch * self.sample_s)

    def scaled(self, factor: float) -> Fitted:
        """Return an engine whose training speed is ``factor`` times as high at every batch size."""
        return replace(
            self,
            points=tuple((size, factor * speed) for size, speed in self.points),
            start_s=self.start_s / factor,
            sample_s=self.sample_s / factor,
            full=None if self.full is None else (self.full[0], factor * self.full[1]),
        )

    def held_down(self) -> bool:
        """Return True if memory limits the engine's best batch (the measured batch with the highest
        speed)."""
        return super().held_down() or (self.cut and self.best == self.limit)

    @property
    def half_batch(self) -> float:
        """Batch size at which the constant part ``start_s`` is half of the step time. At this batch
        size, the speed on the fitted line is half of its limit for large batches."""
        return self.start_s / self.sample_s


@dataclass(frozen=True)
class Measured:
    """Results of the benchmark of one engine: ascending ``batches``, and two values for each batch.

    ``seconds``: median time of a step, seconds. ``spread``: (longest - shortest time) / median.
    """

    name: str
    batches: tuple[int, ...]
    seconds: tuple[float, ...]
    spread: tuple[float, ...]
    limit: int | None
    """Largest batch that fits into the engine's memory, or None if all tried batches fit."""

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """Measured speed by batch size, as (batch, samples per second) in ascending order of the
        batches."""
        return tuple(
            (batch, batch / seconds)
            for batch, seconds in zip(self.batches, self.seconds, strict=True)
        )

    def engine(self) -> Engine:
        """Return the engine with the measured speed curve. The speed is interpolated linearly
        between the measured points.

        Raises InputError if a larger batch took no longer than a smaller batch; use :meth:`fit` in
        this case.
        """
        return Engine(self.name, self.points, self.limit)

    def fit(self, full: int | None = None) -> Fitted:
        """Return the engine with the least-squares line through the measured times. The intercept
        and the slope of the line are not negative.

        ``full``: batch starting at which the speed is constant. The line is fitted to the batches
        up to ``full``. If ``full`` was measured, the line is scaled to pass exactly through its
        time. Raises InputError if the time does not grow with the batch, or if no batch up to
        ``full`` was measured.
        """
        batches, times = np.array(self.batches, np.float64), np.array(self.seconds)
        if full is not None:
            batches, times = batches[batches <= full], times[: int((batches <= full).sum())]
            if not len(batches):
                raise InputError(
                    f"{self.name}: no batch up to {full} was measured; measure a batch of at most "
                    f"{full} samples, because the speed is assumed to be constant above {full}"
                )
        start, slope = 0.0, float(batches @ times / (batches @ batches))
        if len(batches) > 1:
            db, dt = batches - batches.mean(), times - times.mean()
            free = float(db @ dt / (db @ db))
            if free <= 0:
                raise InputError(
                    f"{self.name}: time does not grow with the batch ({times[0]:.4g} s at batch "
                    f"{batches[0]:.0f}, {times[-1]:.4g} s at batch {batches[-1]:.0f}); use larger "
                    f"batches or more repeats"
                )
            if times.mean() > free * batches.mean():  # else the best line passes through the origin
                start, slope = float(times.mean() - free * batches.mean()), free
        met = None
        if full is not None and batches[-1] == full:
            met = full, full / float(times[-1])
            scale = float(times[-1]) / (start + full * slope)
            start, slope = start * scale, slope * scale
        error = float(np.max(np.abs((start + batches * slope) / times - 1)))
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
    """Measure the time of ``run(batch)``, one training step, for each batch in ``batches``.

    ``run`` returns the time of the step in seconds (an emulated engine), or None if ``clock`` must
    measure the time (a real engine; ``run`` must return when the step has finished). If a batch
    raises one of the exceptions in ``out_of_memory``, the function searches for the largest batch
    that fits between the previous batch and this batch, and skips larger batches. Raises InputError
    for invalid arguments, and if a batch of 1 does not fit into memory.
    """
    wanted = sorted(set(batches))
    if not wanted or wanted[0] < 1:
        raise InputError(
            f"{name}: batches {wanted}: give at least one batch; each must be at least 1"
        )
    if repeats < 1 or warm_ups < 0:
        raise InputError(
            f"{name}: {repeats} repeats after {warm_ups} warm-ups: must be at least 1 repeat "
            f"and 0 warm-ups"
        )
    found: dict[int, list[float]] = {}

    def fits(batch: int) -> bool:
        """Measure one batch; return False if it does not fit into memory."""
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
            raise InputError(
                f"{name}: a batch of 1 does not fit into memory; use a smaller model or more memory"
            )
        limit = low
        break
    kept = sorted(found)
    middles = tuple(median(found[size]) for size in kept)
    spread = tuple(
        (max(found[size]) - min(found[size])) / typical
        for size, typical in zip(kept, middles, strict=True)
    )
    return Measured(name, tuple(kept), middles, spread, limit)


def _seconds(
    name: str, run: Callable[[int], float | None], batch: int, clock: Callable[[], float]
) -> float:
    """Return the time of one step in seconds. Raises InputError if the time is not finite or not
    more than 0."""
    begin = clock()
    told = run(batch)
    took = clock() - begin if told is None else told
    if not (math.isfinite(took) and took > 0):
        raise InputError(f"{name}: batch {batch} took {took} s; must be finite and above 0")
    return took
