"""Batch resizing: the batch for a node that has become slower than in the tuning.

Owns the three rules for the new batch: proportional to the speed, HyperTune's Eq. 3 corrected, and
Eq. 3 as printed. Does not own the decision to resize (controller.py) or the measurement of curves
(cluster/throughput_benchmark.py).
Source: HyperTune (HeydariGorji et al.), Eq. 3 and the third method of the paper. The printed Eq. 3
has its weights swapped, and it inverts the curve of an uninterrupted node, which is nearly flat.
The published batches, 140 and 100 of 180, are those of the proportional rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.units import InputError


class Curves:
    """Speed of every node as a function of its batch while no other program slows the node down.

    Node i has the curve ``engines[kinds[i]]``; ``kinds``: int64[n]. Without engines, a node has its
    tuned speed at every batch. ``tuned``: tuned speeds, float64[n], samples/s. Raises InputError if
    the arrays differ in length or an index of an engine is invalid.
    """

    def __init__(
        self, tuned: np.ndarray, engines: Sequence[Engine] = (), kinds: np.ndarray | None = None
    ) -> None:
        self.tuned = tuned
        self.engines = tuple(engines)
        self.kinds = np.zeros(len(tuned), np.int64) if kinds is None else np.asarray(kinds)
        if self.kinds.shape != tuned.shape:
            raise InputError(
                f"{len(self.kinds)} kinds and {len(tuned)} speeds: give one kind and one "
                f"speed per node"
            )
        if self.engines and len(tuned):
            low, high = self.kinds.min(), self.kinds.max()
            if low < 0 or high >= len(self.engines):
                wrong = low if low < 0 else high
                raise InputError(f"engine {wrong}: must be from 0 to {len(self.engines) - 1}")

    def speed(self, batches: np.ndarray) -> np.ndarray:
        """Return the speed of each uninterrupted node with the batches ``batches``, samples per
        second, float64[n]."""
        out = self.tuned.astype(np.float64)
        for kind, engine in enumerate(self.engines):
            mine = self.kinds == kind
            sizes, speeds = np.array(engine.points).T
            out[mine] = np.interp(batches[mine], sizes, speeds)
        return out

    def within(self, seconds: np.ndarray) -> np.ndarray:
        """Return the batch size (not rounded) with which the step of each uninterrupted node takes
        ``seconds``, float64[n]."""
        out = seconds * self.tuned
        for kind, engine in enumerate(self.engines):
            mine = self.kinds == kind
            sizes, speeds = np.array(engine.points).T
            out[mine] = _within(seconds[mine], sizes, speeds)
        return out

    def inverse(self, speeds: np.ndarray, literal: bool) -> np.ndarray:
        """Return the batch size (not rounded) at which each uninterrupted node has the given speed
        (samples/s), by Eq. 3, float64[n].

        The function interpolates between the two measured points around a speed, on the rising part
        of the curve. Outside this part, it returns the nearest point. ``literal``: True to use the
        weights as printed in the paper, which are swapped. Raises InputError as :func:`rising`
        does.
        """
        out = np.empty(len(speeds))
        for kind, engine in enumerate(self.engines):
            mine = self.kinds == kind
            sizes, known = rising(engine)
            speed = np.clip(speeds[mine], known[0], known[-1])
            found = np.interp(speed, known, sizes)
            if literal:
                right = np.clip(np.searchsorted(known, speed), 1, len(known) - 1)
                found = sizes[right - 1] + sizes[right] - found
            out[mine] = found
        return out


def rising(engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Return the batches and speeds of those measured points of a speed curve that are faster than
    all points with smaller batches, float64 each. Raises InputError if there are fewer than two
    such points, because the curve then does not determine a batch."""
    sizes, speeds = np.array(engine.points, np.float64).T
    higher = np.append(True, speeds[1:] > np.maximum.accumulate(speeds)[:-1])
    if higher.sum() < 2:
        raise InputError(
            f"{engine.name}: its speed does not rise with the batch, so HyperTune's Eq. 3 does "
            f"not determine a batch; use the proportional rule"
        )
    return sizes[higher], speeds[higher]


def _within(seconds: np.ndarray, sizes: np.ndarray, speeds: np.ndarray) -> np.ndarray:
    """Return the batches that take ``seconds`` on one curve, float64[n].

    The function solves b / (s0 + (s1 - s0)(b - b0) / (b1 - b0)) = seconds for b. Outside the points
    the speed is constant.
    """
    times = sizes / speeds
    at = np.clip(np.searchsorted(times, seconds), 1, max(len(sizes) - 1, 1))
    if len(sizes) > 1:
        slope = (speeds[at] - speeds[at - 1]) / (sizes[at] - sizes[at - 1])
        base = speeds[at - 1] - slope * sizes[at - 1]
        between = seconds * base / (1 - seconds * slope)
    else:
        between = seconds * speeds[0]
    low, high = seconds <= times[0], seconds >= times[-1]
    found: np.ndarray = np.select([low, high], [seconds * speeds[0], seconds * speeds[-1]], between)
    return found
