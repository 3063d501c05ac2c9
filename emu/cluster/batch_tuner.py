"""Batch sizes: Algorithm 1 of Stannis in the form that ends, and as printed.

Owns speed curves, the choice of the reference engine and everybody else's batch. Does not own how
curves are measured (benchmark.py), the allocator beside the paper's rule (optimal.py), the split of
a data set (allocation.py) or what a whole step takes (paths/stannis.py).
Source: STANNIS (DAC 2020), Algorithm 1. As printed it never ends (its increment is zero at equal
times, while its condition still holds); its target form: t_i = t_ref (1 + margin).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ondie.emu.units import InputError, nearest

MARGIN = 0.2
"""By how much the others' step is longer than the reference's: its idle time."""
MOST = 1 << 53
"""Batches beyond this are not counted exactly by a float."""


@dataclass(frozen=True)
class Engine:
    """One engine's measured speed: ``points`` of (batch, samples per second), batches ascending.

    Between points the speed is linear, outside them constant; a single point is a constant speed.
    ``limit`` is the largest batch that its memory holds. Raises InputError for a curve that is
    empty, not positive, or along which a larger batch would take less time.
    """

    name: str
    points: tuple[tuple[int, float], ...]
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.points:
            raise InputError(f"{self.name}: no speed was measured; at least one (batch, speed) is")
        before = 0
        for batch, speed in self.points:
            if batch <= before:
                raise InputError(
                    f"{self.name}: batch {batch} after {before}; batches of 1 or more, ascending"
                )
            if not (math.isfinite(speed) and speed > 0):
                raise InputError(
                    f"{self.name}: {speed} samples/s at batch {batch}; more than 0 is right"
                )
            if before and self.seconds(batch) <= self.seconds(before):
                raise InputError(
                    f"{self.name}: batch {batch} takes no longer than {before}; speeds must grow "
                    f"less than batches do"
                )
            before = batch
        if self.limit is not None and self.limit < 1:
            raise InputError(f"{self.name}: batch limit {self.limit}; at least 1 is right")

    def speed(self, batch: int) -> float:
        """Samples per second at a batch."""
        points = self.points
        if batch <= points[0][0]:
            return points[0][1]
        for (b0, s0), (b1, s1) in zip(points, points[1:], strict=False):
            if batch <= b1:
                return s0 + (s1 - s0) * (batch - b0) / (b1 - b0)
        return points[-1][1]

    def seconds(self, batch: int) -> float:
        """Time of one batch; grows with the batch."""
        return batch / self.speed(batch)

    @property
    def most(self) -> int:
        """The largest batch that was measured and that memory holds."""
        return min(self.points[-1][0], self.limit or MOST)

    @property
    def best(self) -> int:
        """The measured batch of highest speed, the smallest of equals, within the limit."""
        return min(max(self.points, key=lambda p: (p[1], -p[0]))[0], self.limit or MOST)

    def held_down(self) -> bool:
        """Would its best batch be larger with more memory?"""
        return self.best < replace(self, limit=None).best

    def batch_for(self, seconds: float) -> int:
        """The batch whose time is nearest to ``seconds``: at least 1, at most the limit."""
        most = self.limit or MOST
        low, high = 0, most
        while low < high:  # largest batch within the time
            middle = (low + high + 1) // 2
            if self.seconds(middle) <= seconds:
                low = middle
            else:
                high = middle - 1
        if low < most and self.seconds(low + 1) - seconds < seconds - self.seconds(low):
            low += 1
        return max(low, 1)


def slowest(engines: Sequence[Engine], counts: Sequence[int] | None = None) -> int:
    """Index of the engine that is slowest at its best batch, the first of equals."""
    count_each(engines, counts)
    return min(range(len(engines)), key=lambda i: engines[i].speed(engines[i].best))


def most_influential(engines: Sequence[Engine], counts: Sequence[int] | None = None) -> int:
    """Index of the engine whose like add most to the whole: speed at its best batch x how many
    there are (1 of each, unless given); the first of equals."""
    each = count_each(engines, counts)
    return max(range(len(engines)), key=lambda i: (engines[i].speed(engines[i].best) * each[i], -i))


REFERENCES: dict[str, Callable[[Sequence[Engine], Sequence[int] | None], int]] = {
    "slowest": slowest,
    "influential": most_influential,
}
"""The two ways in which Stannis picks the engine that keeps its best batch."""


@dataclass(frozen=True)
class Tuning:
    """Batches by Algorithm 1, one per engine, and how they came about."""

    batches: tuple[int, ...]
    reference: int
    """Index of the engine that keeps its best batch."""
    target_s: float
    """Time that the others' batches aim at: the reference's x (1 + margin)."""
    seconds: tuple[float, ...]
    """Time of each engine's batch."""
    limited: tuple[bool, ...]
    """Whose batch memory holds down."""


def tuning(
    engines: Sequence[Engine],
    *,
    counts: Sequence[int] | None = None,
    margin: float = MARGIN,
    reference: int | str = "slowest",
) -> Tuning:
    """Algorithm 1 in its target form: the reference (by name of REFERENCES, or its index) and its
    equals keep their best batch, every other engine takes the one whose time is nearest to the
    reference's times (1 + margin), or the largest that its memory holds."""
    each = count_each(engines, counts)
    if isinstance(reference, str):
        if reference not in REFERENCES:
            raise InputError(
                f"reference {reference!r}: {' or '.join(REFERENCES)} is right; nearest: "
                f"{nearest(reference, REFERENCES) or 'none'}"
            )
        reference = REFERENCES[reference](engines, each)
    if not 0 <= reference < len(engines):
        raise InputError(f"reference engine {reference}: 0 to {len(engines) - 1} is right")
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
    """The batches of :func:`tuning`; the reference is the slowest engine, unless given."""
    at = "slowest" if reference is None else reference
    return tuning(engines, margin=margin, reference=at).batches


def algorithm_1(
    engine: Engine, reference_s: float, margin: float = MARGIN, batch: int = 1
) -> Iterator[int]:
    """Algorithm 1 as printed, step by step: the batch after each round of its loop. It never ends
    of itself where the margin is more than 0.

    While the engine's time is below reference_s x (1 + margin), its batch grows in proportion to
    what its time lacks to ``reference_s``: nothing, once both take equally long. From there on the
    batch stays as it is, the condition holds, and the loop goes on. Who iterates must stop it.
    """
    target = reference_s * (1 + _checked(margin))
    while engine.seconds(batch) < target:
        lacks = (reference_s - engine.seconds(batch)) / reference_s
        batch = max(1, batch + round(batch * lacks))
        yield batch


def reference_batch(
    batch: int, speed: float, reference_speed: float, margin: float = MARGIN
) -> int:
    """Batch of the reference, where only the other engine's is known.

    The largest one that :func:`tune` answers with at most ``batch`` for an engine of ``speed``
    (samples per second), and at least 1: 315 at 32.3 beside 3.08 gives 25, which gives 315 again.
    """
    for name, value in (("batch", batch), ("speed", speed), ("reference speed", reference_speed)):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} {value}: more than 0 is right")
    exact = batch / speed * reference_speed / (1 + _checked(margin))
    return max(1, math.floor(exact * (1 + 1e-12)))  # 310 x 0.12 / 1.2 is 31


def throughput(engines: Sequence[Engine], batches: Sequence[int]) -> float:
    """Samples per second of a synchronous step without communication: all wait for the slowest."""
    longest = max((e.seconds(b) for e, b in zip(engines, batches, strict=True) if b), default=0.0)
    if not longest:
        raise InputError("no engine has a sample; at least one batch of 1 is needed")
    return sum(batches) / longest


def _checked(margin: float) -> float:
    if not (math.isfinite(margin) and margin >= 0):
        raise InputError(f"margin {margin}: 0 or more is right, 0.2 in the paper")
    return margin


def count_each(engines: Sequence[Engine], counts: Sequence[int] | None) -> Sequence[int]:
    """How many there are of each engine, checked."""
    if not engines:
        raise InputError("no engines to tune; at least one is needed")
    each = [1] * len(engines) if counts is None else counts
    if len(each) != len(engines):
        raise InputError(f"{len(each)} counts for {len(engines)} engines: one each is right")
    for engine, n in zip(engines, each, strict=True):
        if n < 1:
            raise InputError(f"{engine.name}: {n} of them; at least 1 is right")
    return each
