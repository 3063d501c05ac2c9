"""Points of a measurement: conditions, metrics, and the split into fitted and held-out points.

Owns the records of a point, the merging of repeated measurements, and the split by seed. Does not
own the format of fio's results (fio_result.py) or the simulation of a point (simulate.py).
Source: Little, A proof for the queuing formula L = lambda W, Operations Research 9(3), 1961.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ondie.emu.units import InputError, fmt_bytes

PERCENTILES = (50.0, 90.0, 99.0)
"""Latency percentiles that a point must have for each direction of its requests."""
FEWEST_POINTS = 4
"""Smallest number of different conditions in a calibration; half of the conditions are held out
(not used by the fit)."""
SPREAD = 1.5
"""Largest allowed ratio of IOPS, mean latency or median latency between the first and each later
measurement under the same conditions."""
OUTSTANDING = 1.05
"""Largest allowed mean number of outstanding requests of a point, in multiples of its depth."""


@dataclass(frozen=True, order=True)
class Condition:
    """Workload of a point: a closed loop of ``depth`` requests of ``block_bytes`` bytes each.

    ``read_share``: fraction of reads, 0 to 1. ``random``: True for uniform random offsets, False
    for sequential ones.
    """

    read_share: float
    random: bool
    block_bytes: int
    depth: int

    def __str__(self) -> str:
        """Return a text such as "4 KiB randread depth 32", which contains fio's name of the access
        pattern."""
        if self.read_share in (0.0, 1.0):
            pattern = ("rand" if self.random else "") + ("read" if self.read_share else "write")
        else:
            pattern = f"{'randrw' if self.random else 'rw'} {100 * self.read_share:g} % reads"
        return f"{fmt_bytes(self.block_bytes, binary=True)} {pattern} depth {self.depth}"

    @property
    def directions(self) -> tuple[str, ...]:
        """Directions of the requests of this condition: "read", "write" or both."""
        shares = {"read": self.read_share, "write": 1 - self.read_share}
        return tuple(name for name, share in shares.items() if share > 0)


@dataclass(frozen=True)
class Latency:
    """Latencies of the requests of one direction (reads or writes) in us: the mean, and the value
    at each of PERCENTILES."""

    mean: float
    percentiles: Mapping[float, float]


@dataclass(frozen=True)
class Figures:
    """Performance metrics of a point: requests per second (IOPS), and the latencies by direction.

    ``spread``: uncertainty of simulated percentiles as a relative error, by their names in
    :meth:`flat`; empty for measured metrics.
    """

    iops: float
    latency: Mapping[str, Latency]
    spread: Mapping[str, float] = field(default_factory=dict)

    def flat(self) -> dict[str, float]:
        """Return all metrics by name: "iops", "read mean", "read p50", ..."""
        found = {"iops": self.iops}
        for direction, of in self.latency.items():
            found[f"{direction} mean"] = of.mean
            found |= {f"{direction} p{p:g}": value for p, value in of.percentiles.items()}
        return found


@dataclass(frozen=True)
class Point:
    """A measured point. ``host_us``: time per request in the host in us, from a completion to the
    next submission (by Little's law, depth / IOPS minus the mean latency). ``busy``: CPU
    utilization of fio per job, in cores. ``place``: file and job of the point, for messages.
    ``repeats``: number of measurements that were merged into this point."""

    condition: Condition
    figures: Figures
    host_us: float
    place: str
    busy: float = 0.0
    repeats: int = 1


def mean_latency(condition: Condition, figures: Figures) -> float:
    """Return the mean latency of all requests of a point (us)."""
    shares = {"read": condition.read_share, "write": 1 - condition.read_share}
    return sum(shares[name] * of.mean for name, of in figures.latency.items())


def point(condition: Condition, figures: Figures, place: str, busy: float = 0.0) -> Point:
    """Return the point with the given metrics, and compute its host time.

    ``place``, ``busy``: fields of :class:`Point`. Raises InputError if the metrics contradict the
    condition: the mean number of outstanding requests exceeds the depth.
    """
    mean = mean_latency(condition, figures)
    outstanding = figures.iops * mean / 1e6
    if outstanding > OUTSTANDING * condition.depth:
        raise InputError(
            f"{place}: {figures.iops:,.0f} IOPS at a mean latency of {mean:,.1f} us require "
            f"{outstanding:.1f} outstanding requests, but the depth is {condition.depth}; "
            "check iodepth and numjobs"
        )
    host_us = max(condition.depth / figures.iops * 1e6 - mean, 0)
    return Point(condition, figures, host_us, place, busy)


def merged(points: Sequence[Point]) -> list[Point]:
    """Return the points in the order of their conditions, with repeated measurements merged.

    A merged metric is the geometric mean of the measurements. Raises InputError if IOPS, mean or
    median latency differ by more than the factor SPREAD between the first and a later measurement
    under the same conditions, or if there are fewer than FEWEST_POINTS conditions.
    """
    groups: dict[Condition, list[Point]] = {}
    for each in points:
        groups.setdefault(each.condition, []).append(each)
    found = []
    for condition, group in sorted(groups.items()):
        for other in group[1:]:
            _check_repeat(group[0], other)
        found.append(group[0] if len(group) == 1 else _mean(condition, group))
    if len(found) < FEWEST_POINTS:
        raise InputError(
            f"{len(found)} point{'s' * (len(found) != 1)} ({'; '.join(map(str, groups))}): a fit "
            f"needs at least {FEWEST_POINTS} conditions, half of which are held out; measure more "
            "conditions with the job file of ondie calibrate --jobs FILE"
        )
    return found


def _check_repeat(first: Point, other: Point) -> None:
    """Raise InputError if IOPS, mean or median latency of two measurements under the same
    conditions differ by more than the factor SPREAD."""
    values = other.figures.flat()
    for name, value in first.figures.flat().items():
        if name == "iops" or name.endswith((" mean", " p50")):
            ratio = values[name] / value
            if not 1 / SPREAD <= ratio <= SPREAD:
                unit = "" if name == "iops" else " us"
                raise InputError(
                    f"{other.place}: {other.condition}: {name} is {values[name]:,.1f}{unit}, but "
                    f"{value:,.1f}{unit} in {first.place} under the same conditions; measure "
                    "again, or remove one of the results"
                )


def _mean(condition: Condition, group: Sequence[Point]) -> Point:
    """Return a point with the geometric means of the repeated measurements ``group``."""

    def mean(values: list[float]) -> float:
        return float(np.exp(np.mean(np.log(values))))

    latency = {
        name: Latency(
            mean([each.figures.latency[name].mean for each in group]),
            {
                p: mean([each.figures.latency[name].percentiles[p] for each in group])
                for p in PERCENTILES
            },
        )
        for name in condition.directions
    }
    figures = Figures(mean([each.figures.iops for each in group]), latency)
    busy = max(each.busy for each in group)
    place = ", ".join(each.place for each in group)
    host = max(condition.depth / figures.iops * 1e6 - mean_latency(condition, figures), 0)
    return Point(condition, figures, host, place, busy, len(group))


def held_out(points: Sequence[Point], seed: int) -> list[bool]:
    """Return a list that is True for each held-out point: half of the points, drawn by ``seed``.

    Half of the read-only, half of the write-only and half of the mixed points are held out. The
    fitted half therefore contains each kind that has at least two points.
    """
    rng = np.random.default_rng(seed)
    kinds = [each.condition.directions for each in points]
    order: list[int] = []
    for kind in sorted(set(kinds)):
        members = [i for i, of in enumerate(kinds) if of == kind]
        order += [int(i) for i in rng.permutation(members)]
    held = [False] * len(points)
    for i in order[1::2]:
        held[i] = True
    return held
