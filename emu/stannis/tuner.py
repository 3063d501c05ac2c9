"""Batch sizes: Algorithm 1 of Stannis in the form that ends.

Owns speed curves, the choice of the reference engine and everybody else's batch. Does not own the
split of a data set (allocation.py) or what a whole step takes (paths/stannis.py).
Source: STANNIS (DAC 2020), Algorithm 1. As printed it never ends (its increment is zero at equal
times, while its condition still holds); its target form: t_i = t_ref (1 + margin).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ondie.emu.units import InputError

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
    def best(self) -> int:
        """The measured batch of highest speed, the smallest of equals, within the limit."""
        return min(max(self.points, key=lambda p: (p[1], -p[0]))[0], self.limit or MOST)

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


def slowest(engines: Sequence[Engine]) -> int:
    """Index of the engine that is slowest at its best batch, the first of equals."""
    if not engines:
        raise InputError("no engines to tune; at least one is needed")
    return min(range(len(engines)), key=lambda i: engines[i].speed(engines[i].best))


def tune(
    engines: Sequence[Engine], *, margin: float = MARGIN, reference: int | None = None
) -> tuple[int, ...]:
    """A batch for each engine: the reference (the slowest, unless given) and its equals their best
    one, every other the one whose time is nearest to the reference's times (1 + margin)."""
    at = slowest(engines) if reference is None else reference
    if not 0 <= at < len(engines):
        raise InputError(f"reference engine {at}: 0 to {len(engines) - 1} is right")
    ref = engines[at]
    target = ref.seconds(ref.best) * (1 + _checked(margin))
    equal = [(e.points, e.limit) == (ref.points, ref.limit) for e in engines]
    return tuple(
        e.best if same else e.batch_for(target) for e, same in zip(engines, equal, strict=True)
    )


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
