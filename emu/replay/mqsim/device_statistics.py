"""Statistics of the drive with the meaning that they have in MQSim's result file, computed from the
state after a run.

Owns the derived values: mean lengths, deviations, fractions of time. Does not own the counters
(nand/scheduler_statistics.py) or the format (device_xml.py).
Source: MQSim's result file. Where MQSim's definition of an item differs from its name, the
definition is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ondie.emu.engine.core.state import Arrays
from ondie.emu.nand.scheduler_statistics import LENGTHS, QUEUES

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Queue:
    """Statistics of one transaction queue of a flash chip; lengths in transactions, times in ps.

    ``entered``, ``left``: number of transactions that entered and left. ``deviation``: standard
    deviation of the length as MQSim computes it, or None if the length reached LENGTHS, because all
    lengths from LENGTHS - 1 are recorded together. ``mean_wait``: mean waiting time, or None if no
    transaction left.
    """

    entered: int
    left: int
    mean_length: float
    longest: int
    deviation: float | None
    mean_wait: float | None
    longest_wait: int


@dataclass(frozen=True)
class Chip:
    """Utilization of a flash chip: fractions of the simulated time in which it executes commands,
    transfers data, and does both at the same time."""

    execution: float
    transfer: float
    overlap: float


@dataclass(frozen=True)
class DeviceStatistics:
    """Statistics of one drive after a run.

    ``channels``, ``chips``: number of channels, and of chips per channel. ``queues``: the Queue
    statistics of each chip, channel after channel, in the order of nand/scheduler_statistics.py.
    ``of_chips``: for each chip, the fractions of the simulated time in which it executes commands
    and transfers data. ``ranked``: True if the queues of host transactions are divided by priority
    class. ``streams``: int64[flows, 2, 4], for reads and writes of each flow: number of
    transactions, then the sums of their execution, transfer and waiting times (ps). ``issued``:
    int64[3, 2], number of read, program and erase commands for one plane and for several planes.
    ``lookup``: int64[3, 3], look-ups in the mapping table by reads, writes and moved pages: hits,
    misses that read a translation page, other misses. ``end_ps``: end of the simulation.
    """

    channels: int
    chips: int
    queues: tuple[tuple[Queue, ...], ...]
    of_chips: tuple[Chip, ...]
    ranked: bool
    streams: I64
    issued: I64
    lookup: I64
    end_ps: int


def read(arrays: Arrays, channels: int, end_ps: int) -> DeviceStatistics:
    """Return the statistics of a drive with ``channels`` channels after a run that ended at
    ``end_ps``."""
    chips = len(arrays.chip_use)
    queues = [
        _queue(use, lengths, end_ps)
        for use, lengths in zip(arrays.queue_use, arrays.queue_ps, strict=True)
    ]
    of_chips = [
        Chip(*(int(use[name]) / end_ps for name in ("execution", "transfer", "overlap")))
        for use in arrays.chip_use
    ]
    names = ("count", "execution", "transfer", "waiting")
    streams = np.stack([arrays.stream_use[name] for name in names], axis=1)
    return DeviceStatistics(
        channels=channels,
        chips=chips // channels,
        queues=tuple(tuple(queues[i * QUEUES : (i + 1) * QUEUES]) for i in range(chips)),
        of_chips=tuple(of_chips),
        ranked=bool(arrays.cfg["ranked"][0]),
        streams=streams.reshape(-1, 2, len(names)),
        issued=arrays.issued.copy(),
        lookup=arrays.lookup.copy(),
        end_ps=end_ps,
    )


def _queue(use: np.record, lengths: I64, end_ps: int) -> Queue:
    """Return the statistics of one queue, as MQSim computes them.

    The time since the last change of the length is not counted. The deviation is the square root of
    the sum of (n t / T - mean)**2 over the lengths n up to the longest. Here, t is the time at
    length n, and T is the time of the run.
    """
    longest = int(use["longest"])
    shares = np.arange(min(longest + 1, LENGTHS)) * lengths[: longest + 1] / end_ps
    mean = float(shares.sum())
    left = int(use["left"])
    return Queue(
        entered=int(use["entered"]),
        left=left,
        mean_length=mean,
        longest=longest,
        deviation=float(np.sqrt(((shares - mean) ** 2).sum())) if longest < LENGTHS else None,
        mean_wait=int(use["waited"]) / left if left else None,
        longest_wait=int(use["worst"]),
    )
