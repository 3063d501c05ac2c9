"""Search for the number of samples per engine that maximizes samples per second.

Owns the tables of the least compute time for each number of samples, and the selection of the best
time between two synchronizations. Does not own plans and their limits (throughput_allocator.py) or
speed curves (batch_tuner.py).
Source: this project. The search maximizes samples / (T + exchange) over every time T that an engine
can take between two synchronizations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.units import InputError

ROOM = 1 << 20
"""Upper limit of the search: number of samples of one engine between two synchronizations."""
Found = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Result of a search: number of samples, number of steps and compute time (seconds) of one engine
between two synchronizations; each is a tuple with one value per kind of engine."""


@dataclass(frozen=True)
class Search:
    """Search for the best number of samples of each engine, with ``counts[i]`` engines of kind i.

    ``exchange_s``: time of one synchronization, seconds. ``most_samples``: maximum number of
    samples of all engines together, or None for no maximum.
    """

    engines: tuple[Engine, ...]
    counts: tuple[int, ...]
    exchange_s: float
    most_samples: int | None

    @cached_property
    def most(self) -> tuple[int, ...]:
        """Largest batch that the search considers for each kind of engine, at most
        ``most_samples``. Raises InputError if a value is larger than ROOM."""
        found = []
        for engine in self.engines:
            cap = min(engine.most, self.most_samples or ROOM + 1)
            if cap > ROOM:
                raise InputError(
                    f"{engine.name}: batches up to {engine.most} were measured; the search "
                    f"covers at most {ROOM} samples, so most_samples must be at most {ROOM}"
                )
            found.append(cap)
        return tuple(found)

    def local(self, steps: int) -> Found:
        """Return the result with the most samples per second if every engine takes ``steps`` steps
        with batches of equal size. Raises InputError if the search would cover more than ROOM
        samples, or if ``most_samples`` allows no sample."""
        tables = [
            (times, np.ones(len(times), np.int64))
            for times in (
                _times(engine, most) for engine, most in zip(self.engines, self.most, strict=True)
            )
        ]
        chosen = self._chosen(tables, self.exchange_s / steps)
        return (
            tuple(samples * steps for samples in chosen),
            tuple(steps if samples else 0 for samples in chosen),
            tuple(
                float(times[samples - 1]) * steps if samples else 0.0
                for samples, (times, _) in zip(chosen, tables, strict=True)
            ),
        )

    def accumulated(self, micro_batches: int) -> Found:
        """Return the result with the most samples per second if every engine divides its samples
        into micro-batches. Each engine takes the number of micro-batches, at most
        ``micro_batches``, with which its time is shortest. Raises InputError if the search would
        cover more than ROOM samples, or if ``most_samples`` allows no sample."""
        tables = []
        for engine, most in zip(self.engines, self.most, strict=True):
            size = min(most * micro_batches, self.most_samples or ROOM + 1)
            if size > ROOM:
                raise InputError(
                    f"{engine.name}: {micro_batches} micro-batches of {most} samples exceed the "
                    f"limit of {ROOM} samples; use fewer micro-batches or a smaller most_samples"
                )
            tables.append(_accumulating(_times(engine, most), size, micro_batches))
        chosen = self._chosen(tables, self.exchange_s)
        pairs = list(zip(chosen, tables, strict=True))
        return (
            chosen,
            tuple(int(steps[samples - 1]) if samples else 0 for samples, (_, steps) in pairs),
            tuple(float(times[samples - 1]) if samples else 0.0 for samples, (times, _) in pairs),
        )

    def _chosen(
        self, tables: Sequence[tuple[np.ndarray, np.ndarray]], exchange_s: float
    ) -> tuple[int, ...]:
        """Return the number of samples of one engine of each kind for which the samples per second
        are highest.

        ``tables``: (seconds, steps) by number of samples, for each kind. For every time T in the
        tables, each engine takes as many samples as it completes within T. The total is then
        reduced to ``most_samples``. Raises InputError if ``most_samples`` allows no sample.
        """
        ends = [np.maximum.accumulate(times) for times, _ in tables]
        when = np.unique(np.concatenate(ends))
        fit = np.stack([np.searchsorted(end, when, side="right") for end in ends])
        counts = np.array(self.counts)[:, None]
        if self.most_samples is not None:
            fit = _cut(fit, np.array(self.counts), self.most_samples)
        total = (fit * counts).sum(axis=0)
        if not total.any():
            raise InputError(
                f"most_samples = {self.most_samples}: too few for a plan of {sum(self.counts)} "
                f"engines, because all engines of a kind process the same number of samples; must "
                f"be at least {min(self.counts)}"
            )
        at = int(np.argmax(total / (when + exchange_s)))
        return tuple(int(samples) for samples in fit[:, at])


def _times(engine: Engine, most: int) -> np.ndarray:
    """Return the times of batches 1 to ``most`` in seconds, float64[most]."""
    return np.array([engine.seconds(batch) for batch in range(1, most + 1)])


def _accumulating(times: np.ndarray, size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the least time (s) for 1 to ``size`` samples, float64[size], and the number of steps
    that achieves it, int64[size].

    There are at most ``most`` steps, whose batches differ by at most one sample. ``times``: time of
    one step by batch, seconds.
    """
    samples = np.arange(1, size + 1)
    of = np.concatenate([[0.0], times, [np.inf]])
    best, steps = np.full(size, np.inf), np.zeros(size, np.int64)
    for number in range(1, most + 1):
        low, more = np.divmod(samples, number)
        inside = (low + (more > 0) <= len(times)) & (low > 0)
        low = np.minimum(low, len(times))
        took = np.where(
            inside, (number - more) * of[low] + more * np.where(more, of[low + 1], 0), np.inf
        )
        better = took < best * (1 - 1e-12)  # on equal times, prefer the fewest steps
        best[better], steps[better] = took[better], number
    return best, steps


def _cut(fit: np.ndarray, counts: np.ndarray, most: int) -> np.ndarray:
    """Return ``fit``, int64[kinds, candidates], reduced to at most ``most`` samples per candidate.

    ``fit``: samples of one engine of each kind. ``counts``: number of engines, int64[kinds]. All
    engines of a kind lose the same number of samples. The first pass starts with the most numerous
    kind and removes at most the excess. The second pass starts with the rarest kind and removes the
    rest of the excess, rounded up.
    """
    out = fit.copy()
    over = (fit * counts[:, None]).sum(axis=0) - most
    order = np.argsort(-counts, kind="stable")
    for kind in order:
        cut = np.minimum(out[kind], np.maximum(over, 0) // counts[kind])
        out[kind] -= cut
        over -= cut * counts[kind]
    for kind in order[::-1]:
        cut = np.minimum(out[kind], -(-np.maximum(over, 0) // counts[kind]))
        out[kind] -= cut
        over -= cut * counts[kind]
    return out
