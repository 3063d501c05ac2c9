"""Allocator of batches that maximizes samples per second, an alternative to the paper's rule.

Owns the plan, the synchronization interval and the number of engines. Does not own the search for a
plan's samples (throughput_search.py), speed curves (batch_tuner.py), the time of an all-reduce (an
input) or the effect of a large batch or a stale step on accuracy: it reports batch and staleness.
Source: this project. Unlike STANNIS (DAC 2020), the allocator has no idle margin and synchronizes
less often: by gradient accumulation (exact: one update from a larger batch) or by local steps
between averages of the weights (Stich 2019, Local SGD: the nodes' weights diverge during the local
steps).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondie.emu.cluster.batch_tuner import Engine, count_each
from ondie.emu.cluster.throughput_search import Search
from ondie.emu.units import InputError, known_names

METHODS = ("accumulate", "local")
TRIED = 48
"""Maximum number of engine counts (numbers of engines of a kind) that :func:`recruited` tries in
one pass."""

ExchangeTime = float | Callable[[int], float]
"""Type of the duration of a synchronization (gradient exchange or weight averaging): seconds, or a
function from the number of nodes to seconds."""


@dataclass(frozen=True)
class Plan:
    """Plan of the work of each engine between two synchronizations: numbers of samples and of
    steps. The numbers are equal for all engines of a kind, so tuples have one value per kind."""

    method: str
    names: tuple[str, ...]
    counts: tuple[int, ...]
    samples: tuple[int, ...]
    """Number of samples that one engine of each kind processes between two synchronizations."""
    micro_batches: tuple[int, ...]
    """Number of steps (micro-batches) in which one engine of each kind processes its samples; the
    batches of these steps differ by at most one sample."""
    seconds: tuple[float, ...]
    """Compute time of one engine of each kind between two synchronizations, seconds."""
    exchange_s: float

    @property
    def batches(self) -> tuple[int, ...]:
        """Largest micro-batch of one engine of each kind, samples; 0 for an engine without
        samples."""
        return tuple(
            -(-samples // steps) if steps else 0
            for samples, steps in zip(self.samples, self.micro_batches, strict=True)
        )

    @property
    def total(self) -> int:
        """Number of samples between two synchronizations, over all engines."""
        return sum(
            count * samples for count, samples in zip(self.counts, self.samples, strict=True)
        )

    @property
    def compute_s(self) -> float:
        """Compute time of the slowest engine between two synchronizations, seconds."""
        return max(self.seconds)

    @property
    def period_s(self) -> float:
        """Time from the start of one synchronization to the start of the next one, seconds."""
        return self.compute_s + self.exchange_s

    @property
    def samples_per_s(self) -> float:
        """Samples per second of all engines together, including the time of the synchronization."""
        return self.total / self.period_s

    @property
    def staleness(self) -> int:
        """Number of local steps of a node between two synchronizations. The value 1 means that no
        step uses stale weights."""
        return max(self.micro_batches) if self.method == "local" else 1

    @property
    def effective_batch(self) -> int:
        """Number of samples per update of the weights: all samples of the plan, or, with the method
        "local", the samples of one local step of all engines."""
        return -(-self.total // self.staleness)

    @property
    def risk(self) -> str:
        """Description of how the plan may affect accuracy, which is shown with the results."""
        if self.method == "local" and self.staleness > 1:
            return (
                f"weights of the nodes are {self.staleness} local steps apart when averaged; "
                f"effective batch {self.effective_batch}"
            )
        return f"effective batch {self.effective_batch}; rescale the learning rate with it"


def interval(seconds: float, exchange_s: float, overhead: float) -> int:
    """Return the smallest number of steps between two synchronizations for which synchronization
    takes at most the fraction ``overhead`` of the time.

    The number satisfies exchange_s / (number x seconds + exchange_s) <= overhead. ``seconds``: time
    of one step. ``exchange_s``: time of one synchronization, seconds. Raises InputError if a value
    is out of range.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"step of {seconds} s: must be a finite number above 0")
    if not 0 < overhead < 1:
        raise InputError(f"overhead {overhead}: must be more than 0 and less than 1")
    _exchange(exchange_s, 1)
    number = max(1, math.ceil(exchange_s * (1 - overhead) / (overhead * seconds)))

    def share(steps: int) -> float:
        """Return the fraction of the time that synchronization takes."""
        return exchange_s / (steps * seconds + exchange_s)

    while (
        number > 1 and share(number - 1) <= overhead
    ):  # rounding error pushed the quotient above an integer
        number -= 1
    while share(number) > overhead:
        number += 1
    return number


def plan(
    engines: Sequence[Engine],
    counts: Sequence[int] | None = None,
    exchange_s: ExchangeTime = 0.0,
    *,
    method: str = "accumulate",
    most_samples: int | None = None,
    most_micro_batches: int = 1,
    overhead: float | None = None,
) -> Plan:
    """Return the plan with the most samples per second for ``counts[i]`` engines of kind i.

    No engine takes more than ``most_micro_batches`` steps between two synchronizations. No batch
    exceeds the engine's memory or its largest measured batch. All engines together process at most
    ``most_samples`` samples per update of the weights. ``overhead`` limits the number of steps to
    the smallest number at which synchronization takes at most this fraction of the time. With the
    method "local", all engines take the same number of steps, with batches of equal size.

    The search tries every possible compute time of an engine as the time between two
    synchronizations. It is exact if one kind has a single engine (a host). Otherwise, the total may
    be less than ``most_samples`` by at most one sample per engine. Raises InputError if an argument
    is invalid, or if the limits exclude every plan.
    """
    each = tuple(count_each(engines, counts))
    if method not in METHODS:
        raise InputError(f"method {method!r}: unknown; {known_names(method, METHODS)}")
    if most_micro_batches < 1:
        raise InputError(f"most_micro_batches = {most_micro_batches}: must be at least 1")
    if most_samples is not None and most_samples < 1:
        raise InputError(f"most_samples = {most_samples}: must be at least 1")
    took = _exchange(exchange_s, sum(each))
    names = tuple(engine.name for engine in engines)
    search = Search(tuple(engines), each, took, most_samples)

    def best(micro_batches: int) -> Plan:
        # more local steps are always better, unless synchronization is free
        steps = micro_batches if took or method == "accumulate" else 1
        found = search.local(steps) if method == "local" else search.accumulated(steps)
        return Plan(method, names, each, *found, took)

    if overhead is None:
        return best(most_micro_batches)
    return best(min(interval(best(1).compute_s, took, overhead), most_micro_batches))


def recruited(
    engines: Sequence[Engine],
    counts: Sequence[int],
    exchange_s: Callable[[int], float],
    **limits: Any,
) -> Plan:
    """Return the plan with the most samples per second. The plan may use only some of the engines.

    The search varies the count of the most numerous kind of engine, or of the last such kind if
    several kinds are equally numerous. With too many nodes, the all-reduce costs more time than
    another node saves. Up to TRIED engines, every number is tried. With more engines, a coarse grid
    is tried first, then a finer grid around the best number. ``exchange_s``: function from the
    number of nodes to the time of a synchronization, seconds. ``limits``: keyword arguments of
    :func:`plan`. Raises InputError as :func:`plan` does.
    """
    count_each(engines, counts)
    kind = max(range(len(counts)), key=lambda i: (counts[i], i))

    def with_only(number: int) -> Plan | None:
        kept = [i for i in range(len(engines)) if i != kind or number]
        if not kept:
            return None
        each = [number if i == kind else counts[i] for i in kept]
        return plan([engines[i] for i in kept], each, exchange_s, **limits)

    def best(numbers: list[int]) -> tuple[int, Plan]:
        found = [
            (number, planned) for number in numbers if (planned := with_only(number)) is not None
        ]
        return max(found, key=lambda item: item[1].samples_per_s)

    low, high, found = 0, counts[kind], None
    while high - low > TRIED:
        near = np.unique(np.geomspace(max(low, 1), high, TRIED).round().astype(int)).tolist()
        number, found = best(near)
        at = near.index(number)
        low, high = near[max(at - 1, 0)], near[min(at + 1, len(near) - 1)]
    last = best(list(range(low, high + 1)))[1]
    return last if found is None or last.samples_per_s >= found.samples_per_s else found


def _exchange(exchange_s: ExchangeTime, nodes: int) -> float:
    """Return the time of a synchronization among ``nodes`` nodes, seconds. Raises InputError if it
    is negative or not finite."""
    took = exchange_s(nodes) if callable(exchange_s) else exchange_s
    if not (math.isfinite(took) and took >= 0):
        raise InputError(f"exchange of {took} s among {nodes} nodes: must be finite and at least 0")
    return took
