"""Batch sizes of engines (the compute units of hosts and drives) by Algorithm 1 of STANNIS, in a
terminating form and as printed.

Owns speed curves, the choice of the reference engine and the batches of the other engines. Does not
own the measurement of curves (throughput_benchmark.py), the allocator that replaces the paper's
rule (throughput_allocator.py), the split of a data set (data_split.py) or the time of a whole step
(paths/data_parallel.py).
Source: STANNIS (DAC 2020), Algorithm 1. The printed form never terminates: its increment is zero at
equal times, while its loop condition still holds. The terminating form, called the target form
here, sets the step time of engine i to t_i = t_ref (1 + margin).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ondie.emu.units import InputError, known_names

MARGIN = 0.2
"""Default margin: the step time of the other engines exceeds that of the reference engine by this
fraction. The reference engine is idle during the difference."""
MOST_BATCH = 1 << 53
"""Largest allowed batch, 2^53. Above it, a float64 cannot represent every integer."""


@dataclass(frozen=True)
class Engine:
    """Measured speed curve of one engine (a host or a drive that trains): ``points`` of (batch,
    samples per second), with ascending batches.

    The speed is linear between points and constant outside them; a single point is a constant
    speed. ``limit`` is the largest batch that fits into the engine's memory. Raises InputError if
    there are no points, if a batch or speed is not positive, if the batches do not ascend, if a
    larger batch takes no longer than a smaller one, or if ``limit`` is less than 1.
    """

    name: str
    points: tuple[tuple[int, float], ...]
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.points:
            raise InputError(
                f"{self.name}: no speed was measured; give at least one (batch, speed)"
            )
        before = 0
        for batch, speed in self.points:
            if batch <= before:
                raise InputError(
                    f"{self.name}: batch {batch}; must be at least {before + 1}, because batches "
                    f"must be positive and in strictly ascending order"
                )
            if not (math.isfinite(speed) and speed > 0):
                raise InputError(
                    f"{self.name}: {speed} samples/s at batch {batch}; must be finite and above 0"
                )
            if before and self.seconds(batch) <= self.seconds(before):
                raise InputError(
                    f"{self.name}: a batch of {batch} takes {self.seconds(batch):.4g} s, and a "
                    f"batch of {before} takes {self.seconds(before):.4g} s; a larger batch must "
                    f"take longer"
                )
            before = batch
        if self.limit is not None and self.limit < 1:
            raise InputError(f"{self.name}: batch limit {self.limit}; must be at least 1")

    def speed(self, batch: int) -> float:
        """Return the training speed at a batch size, samples per second."""
        points = self.points
        if batch <= points[0][0]:
            return points[0][1]
        for (b0, s0), (b1, s1) in zip(points, points[1:], strict=False):
            if batch <= b1:
                return s0 + (s1 - s0) * (batch - b0) / (b1 - b0)
        return points[-1][1]

    def seconds(self, batch: int) -> float:
        """Return the step time with a batch size, seconds; it increases with the batch."""
        return batch / self.speed(batch)

    def scaled(self, factor: float) -> Engine:
        """Return an engine whose training speed is ``factor`` times as high at every batch size."""
        return replace(self, points=tuple((size, factor * speed) for size, speed in self.points))

    @property
    def most(self) -> int:
        """Largest measured batch of the engine, but at most the largest batch that fits into its
        memory."""
        return min(self.points[-1][0], self.limit or MOST_BATCH)

    @property
    def best(self) -> int:
        """Measured batch with the highest speed, but at most the memory limit. If several batches
        are equally fast, it is the smallest of these batches."""
        return min(
            max(self.points, key=lambda point: (point[1], -point[0]))[0], self.limit or MOST_BATCH
        )

    def held_down(self) -> bool:
        """Return True if the engine's memory limits its best batch."""
        return self.best < replace(self, limit=None).best

    def batch_for(self, seconds: float) -> int:
        """Return the batch size whose step time is closest to ``seconds``. The batch is at least 1
        and at most the memory limit."""
        most = self.limit or MOST_BATCH
        low, high = 0, most
        while low < high:  # binary search for the largest batch within the time
            middle = (low + high + 1) // 2
            if self.seconds(middle) <= seconds:
                low = middle
            else:
                high = middle - 1
        if low < most and self.seconds(low + 1) - seconds < seconds - self.seconds(low):
            low += 1
        return max(low, 1)


def slowest(engines: Sequence[Engine], counts: Sequence[int] | None = None) -> int:
    """Return the index of the engine that is slowest at its best batch. If several engines are
    equally slow, the first index is returned."""
    count_each(engines, counts)
    return min(range(len(engines)), key=lambda i: engines[i].speed(engines[i].best))


def most_influential(engines: Sequence[Engine], counts: Sequence[int] | None = None) -> int:
    """Return the index of the engine kind with the largest total speed.

    The total speed is the speed at the best batch x the count (default: 1 engine of each kind). If
    several kinds have the same total speed, the first index is returned.
    """
    each = count_each(engines, counts)
    return max(range(len(engines)), key=lambda i: (engines[i].speed(engines[i].best) * each[i], -i))


REFERENCES: dict[str, Callable[[Sequence[Engine], Sequence[int] | None], int]] = {
    "slowest": slowest,
    "influential": most_influential,
}
"""Rules by which STANNIS selects the reference engine, by name: functions that return the index of
this engine. The reference engine keeps its best batch (``Engine.best``)."""


@dataclass(frozen=True)
class Tuning:
    """Result of Algorithm 1 of STANNIS: one batch per engine, the reference engine, the target time
    and the step times."""

    batches: tuple[int, ...]
    reference: int
    """Index of the reference engine, which keeps its best batch."""
    target_s: float
    """Target time for the batches of the other engines: time of the reference engine x (1 +
    margin), seconds."""
    seconds: tuple[float, ...]
    """Step time of each engine with its batch, seconds."""
    limited: tuple[bool, ...]
    """True for each engine whose batch is reduced by the engine's memory limit."""


def tuning(
    engines: Sequence[Engine],
    *,
    counts: Sequence[int] | None = None,
    margin: float = MARGIN,
    reference: int | str = "slowest",
) -> Tuning:
    """Return the batches that Algorithm 1 selects in its target form (the terminating form).

    ``counts``: number of identical engines that each element of ``engines`` represents; None for
    one each. ``reference``: a name in REFERENCES or the index of an engine. The reference engine,
    and every engine identical to it, keeps its best batch. Every other engine gets the batch whose
    time is nearest to the reference's time x (1 + margin), or the largest batch that fits into its
    memory. Raises InputError if there are no engines, or for an unknown reference, an invalid count
    or an invalid margin.
    """
    each = count_each(engines, counts)
    if isinstance(reference, str):
        if reference not in REFERENCES:
            raise InputError(
                f"reference {reference!r}: unknown; {known_names(reference, REFERENCES)}"
            )
        reference = REFERENCES[reference](engines, each)
    if not 0 <= reference < len(engines):
        raise InputError(f"reference engine {reference}: must be from 0 to {len(engines) - 1}")
    ref = engines[reference]
    target = ref.seconds(ref.best) * (1 + _checked(margin))
    batches, limited = [], []
    for engine in engines:
        like = (engine.points, engine.limit) == (ref.points, ref.limit)
        batch = engine.best if like else engine.batch_for(target)
        free = replace(engine, limit=None)
        batches.append(batch)
        limited.append(engine.held_down() if like else batch < free.batch_for(target))
    seconds = tuple(e.seconds(b) for e, b in zip(engines, batches, strict=True))
    return Tuning(tuple(batches), reference, target, seconds, tuple(limited))


def tune(
    engines: Sequence[Engine], *, margin: float = MARGIN, reference: int | None = None
) -> tuple[int, ...]:
    """Return the batches that :func:`tuning` selects, one per engine. The default reference is the
    slowest engine."""
    at = "slowest" if reference is None else reference
    return tuning(engines, margin=margin, reference=at).batches


def algorithm_1(
    engine: Engine, reference_s: float, margin: float = MARGIN, batch: int = 1
) -> Iterator[int]:
    """Yield the batch after each iteration of Algorithm 1 as printed.

    While the engine's time is below reference_s x (1 + margin), the batch grows in proportion to
    the difference between ``reference_s`` and the engine's time. The increment is zero once both
    times are equal, so with a margin above 0 the loop does not terminate. The caller must stop the
    iteration.
    """
    target = reference_s * (1 + _checked(margin))
    while engine.seconds(batch) < target:
        lacks = (reference_s - engine.seconds(batch)) / reference_s
        batch = max(1, batch + round(batch * lacks))
        yield batch


def reference_batch(
    batch: int, speed: float, reference_speed: float, margin: float = MARGIN
) -> int:
    """Return the reference engine's batch when only the other engine's batch is known.

    The result is at least 1. It is the largest batch for which :func:`tune` gives an engine of
    ``speed`` (samples per second) a batch of at most ``batch``. Example: batch 315 at speed 32.3
    and reference speed 3.08 give 25. Raises InputError if a value is not positive or the margin is
    negative.
    """
    for name, value in (("batch", batch), ("speed", speed), ("reference speed", reference_speed)):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} {value}: must be a finite number above 0")
    exact = batch / speed * reference_speed / (1 + _checked(margin))
    return max(1, math.floor(exact * (1 + 1e-12)))  # 310 x 0.12 / 1.2 is 31


def throughput(engines: Sequence[Engine], batches: Sequence[int]) -> float:
    """Return the samples per second of a synchronous step without communication.

    The slowest engine determines the step time. Raises InputError if all batches are 0.
    """
    longest = max(
        (engine.seconds(batch) for engine, batch in zip(engines, batches, strict=True) if batch),
        default=0.0,
    )
    if not longest:
        raise InputError("no engine has a sample; at least one batch must be above 0")
    return sum(batches) / longest


def _checked(margin: float) -> float:
    """Return ``margin`` if it is valid. Raises InputError if it is negative or not finite."""
    if not (math.isfinite(margin) and margin >= 0):
        raise InputError(f"margin {margin}: must be finite and at least 0 (the paper uses 0.2)")
    return margin


def count_each(engines: Sequence[Engine], counts: Sequence[int] | None) -> Sequence[int]:
    """Return the number of engines of each kind after validation. If ``counts`` is None, the number
    is 1 for each kind. Raises InputError if there are no engines, if ``counts`` has another length,
    or if a count is less than 1."""
    if not engines:
        raise InputError("no engines to tune; give at least one")
    each = [1] * len(engines) if counts is None else counts
    if len(each) != len(engines):
        raise InputError(
            f"{len(each)} counts for {len(engines)} engines: must be one count per engine"
        )
    for engine, count in zip(engines, each, strict=True):
        if count < 1:
            raise InputError(f"{engine.name}: {count} engines; must be at least 1")
    return each
