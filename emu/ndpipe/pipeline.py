"""Fine-tuning by stores and a Tuner in virtual time (FT-DMP), as a pipeline over sub-datasets.

Owns the stages of a store, the transfer to the Tuner, its training runs, and the batches of a store
that has failed. Does not own the drives (flash.py), the assignment of batches to stores
(batches.py), the rates of servers (servers.py) or the closed form (pipeline_bound.py).
Source: NDPipe (ASPLOS 2024), pipelined FT-DMP: while the Tuner trains on the features of one
sub-dataset (a run), stores extract those of the next one.

A store handles a batch in STAGES, each of which holds one batch at a time: load from flash,
decode, resize, normalize, features, send. The Tuner receives batches one after the other. It trains
a run when all batches of the run have arrived and the run before has been trained.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ondie.emu.config.config import Config
from ondie.emu.ndpipe.batches import Batch, assigned, batches
from ondie.emu.ndpipe.flash import PhotoDrive
from ondie.emu.units import InputError, whole_number

STAGES = ("load", "decode", "resize", "normalize", "features", "send")
"""Stages of a store, in order. The drive determines the time of the first one, Times the others."""
LOAD, SEND = 0, len(STAGES) - 1
RECEIVE, TUNER = "receive", "Tuner"
"""Names of the stations that all stores share."""


@dataclass(frozen=True)
class Times:
    """Times per photo, ps: the stages of a store behind ``load``, at speed 1, the transfer into the
    Tuner, and the training of the head on one photo, all epochs included.

    Raises InputError for a time below 0.
    """

    decode: int
    resize: int
    normalize: int
    features: int
    send: int
    receive: int
    train: int

    def __post_init__(self) -> None:
        for name in ("decode", "resize", "normalize", "features", "send", "receive", "train"):
            whole_number(name, getattr(self, name), 0, 1 << 60)

    def stage(self, stage: int) -> int:
        """Return the time per photo of stage number ``stage``, which is not LOAD."""
        return (self.decode, self.resize, self.normalize, self.features, self.send)[stage - 1]


@dataclass(frozen=True)
class Store:
    """A store. ``photos``: number of photos of its shard. ``speed``: speed of all stages except
    load, relative to Times. ``fails_ps``: time at which the store fails permanently; None: never.

    Raises InputError if it has no photos, or for an impossible speed or time.
    """

    photos: int
    speed: float = 1.0
    fails_ps: int | None = None

    def __post_init__(self) -> None:
        if self.photos == 0:
            raise InputError("store with 0 photos: it has nothing to do; leave it out")
        whole_number("photos", self.photos, 1, 1 << 40)
        if not (math.isfinite(self.speed) and self.speed > 0):
            raise InputError(f"speed = {self.speed}: must be a finite number above 0")
        if self.fails_ps is not None:
            whole_number("fails_ps", self.fails_ps, 0, 1 << 62)


@dataclass(frozen=True)
class Plan:
    """Parameters of a simulation, besides stores and times.

    ``runs``: N, number of sub-datasets. ``batch``: photos per batch. ``photo_bytes``: size of a
    stored photo. ``copies``: every batch has a copy on one other store. ``balance``: assign batches
    to the owner or the holder of the copy, whichever ends first; needs ``copies``. ``depth``:
    batches of a store in memory; 1: the stages do not overlap. ``detect_ps``: time after
    which the failure of a store is noticed.
    """

    runs: int = 1
    batch: int = 64
    photo_bytes: int = 110_000
    copies: bool = False
    balance: bool = False
    depth: int = 8
    detect_ps: int = 10**12

    def __post_init__(self) -> None:
        whole_number("runs", self.runs, 1, 1 << 20)
        whole_number("batch", self.batch, 1, 1 << 20)
        whole_number("depth", self.depth, 1, 1 << 20)
        whole_number("detect_ps", self.detect_ps, 0, 1 << 60)
        if self.balance and not self.copies:
            raise InputError(
                "balance = True: needs copies = True; without copies, a batch is on a single store"
            )


@dataclass
class Outcome:
    """Result of a simulation. Times in ps."""

    end_ps: int = 0
    """End of the last run on the Tuner."""
    ready_ps: list[int] = field(default_factory=list)
    """Time at which the last batch of each run had arrived."""
    trained_ps: list[int] = field(default_factory=list)
    """End of each run on the Tuner."""
    trained: Counter[Batch] = field(default_factory=Counter)
    """Number of times that each batch was trained."""
    lost: list[Batch] = field(default_factory=list)
    """Batches that no live store has."""
    by_store: list[int] = field(default_factory=list)
    """Photos whose features came from each store."""
    busy_ps: Counter[str] = field(default_factory=Counter)
    """Busy time of each stage, of the busiest store, and of the shared stations."""
    bytes_read: int = 0
    """Bytes that all drives have read."""

    @property
    def limited_by(self) -> str:
        """Name of the station that is busy the longest."""
        return max(self.busy_ps, key=lambda name: self.busy_ps[name])


class _Node:
    """State of a store during a simulation. Photos of other shards lie behind its own."""

    def __init__(self, store: Store, drive: PhotoDrive) -> None:
        self.store, self.drive = store, drive
        self.waiting: list[Batch] = []
        """Batches that have not been loaded, sorted by run."""
        self.queues: list[deque[Batch]] = [deque() for _ in STAGES]
        self.current: list[Batch | None] = [None] * len(STAGES)
        self.busy = [0] * len(STAGES)
        self.in_memory = 0
        self.unsent: set[Batch] = set()
        self.alive = True

    def stage_ps(self, stage: int, batch: Batch, times: Times) -> int:
        """Return the time of a stage other than LOAD."""
        return round(times.stage(stage) * batch.photos / self.store.speed)


def simulate(stores: Sequence[Store], times: Times, plan: Plan, drive: Config) -> Outcome:
    """Return the outcome of a pipelined fine-tuning on stores with one ``drive`` each.

    Raises InputError if there are no stores, or photos that do not fit on their drive.
    """
    if not stores:
        raise InputError("stores: there is none; at least one is needed")
    simulation = _Simulation(stores, times, plan, drive)
    try:
        return simulation.run()
    finally:
        simulation.close()


class _Simulation:
    """Events of stores and Tuner: a heap of (time, order, function, arguments)."""

    def __init__(self, stores: Sequence[Store], times: Times, plan: Plan, drive: Config) -> None:
        self.times, self.plan = times, plan
        self.nodes: list[_Node] = []
        for store in stores:
            size = store.photos * (2 if plan.copies and len(stores) > 1 else 1)
            self.nodes.append(_Node(store, PhotoDrive(drive, size, plan.photo_bytes)))
        self.events: list[tuple[int, int, str, tuple[object, ...]]] = []
        self.made = 0
        self.arrivals: deque[tuple[_Node, Batch]] = deque()
        self.receiving = False
        self.missing = Counter[int]()
        self.outcome = Outcome(by_store=[0] * len(stores))
        self.now = 0
        self.received: list[list[Batch]] = [[] for _ in range(plan.runs)]

    def close(self) -> None:
        """Close all drives."""
        for node in self.nodes:
            node.drive.close()

    def run(self) -> Outcome:
        """Simulate to the end."""
        counts = [node.store.photos for node in self.nodes]
        speeds = [node.store.speed for node in self.nodes]
        every = batches(counts, self.plan.runs, self.plan.batch, self.plan.copies)
        for batch, index in assigned(every, speeds, self.plan.balance).items():
            self._give(self.nodes[index], batch)
            self.missing[batch.run] += 1
        self.outcome.ready_ps = [0] * self.plan.runs
        for index, node in enumerate(self.nodes):
            if node.store.fails_ps is not None:
                self._at(node.store.fails_ps, "_fail", node)
                self._at(node.store.fails_ps + self.plan.detect_ps, "_redistribute", index)
            self._at(0, "_start", node, LOAD)
        while self.events:
            self.now, _, name, arguments = heapq.heappop(self.events)
            getattr(self, name)(*arguments)
        return self._train()

    def _at(self, time_ps: int, name: str, *arguments: object) -> None:
        """Add an event."""
        self.made += 1
        heapq.heappush(self.events, (time_ps, self.made, name, arguments))

    def _give(self, node: _Node, batch: Batch) -> None:
        """Give a batch to a store, behind its other batches of the same run."""
        insort(node.waiting, batch, key=lambda each: each.run)
        node.unsent.add(batch)

    # --- a store

    def _start(self, node: _Node, stage: int) -> None:
        """Start a stage of a live store if it is idle and a batch waits for it."""
        if not node.alive or node.current[stage] is not None:
            return
        if stage == LOAD:
            if not node.waiting or node.in_memory >= self.plan.depth:
                return
            batch = node.waiting.pop(0)
            node.in_memory += 1
            own = node is self.nodes[batch.owner]
            first = batch.first + (0 if own else node.store.photos)
            end = node.drive.load(self.now, first, batch.photos)
        elif not node.queues[stage]:
            return
        else:
            batch = node.queues[stage].popleft()
            end = self.now + node.stage_ps(stage, batch, self.times)
        node.current[stage] = batch
        node.busy[stage] += end - self.now
        self._at(end, "_end", node, stage, batch)

    def _end(self, node: _Node, stage: int, batch: Batch) -> None:
        """End a stage: pass the batch on, and start what has become possible."""
        if not node.alive:
            return
        node.current[stage] = None
        if stage == SEND:
            node.in_memory -= 1
            node.unsent.discard(batch)
            self.arrivals.append((node, batch))
            self._receive()
            self._start(node, LOAD)
        else:
            node.queues[stage + 1].append(batch)
            self._start(node, stage + 1)
        self._start(node, stage)

    def _fail(self, node: _Node) -> None:
        """Stop a store. What it has sent is on its way and still arrives."""
        node.alive = False

    def _redistribute(self, index: int) -> None:
        """Give the unsent batches of a failed store to the other place of each, if it is alive."""
        node = self.nodes[index]
        for batch in sorted(node.unsent):
            other = [place for place in batch.places if self.nodes[place].alive]
            if not other:
                self.outcome.lost.append(batch)
                self.missing[batch.run] -= 1
                ready = self.outcome.ready_ps
                ready[batch.run] = max(ready[batch.run], self.now)
                continue
            self._give(self.nodes[other[0]], batch)
            self._at(self.now, "_start", self.nodes[other[0]], LOAD)
        node.unsent.clear()

    # --- the Tuner

    def _receive(self) -> None:
        """Start to receive the next batch if the Tuner's network is idle."""
        if self.receiving or not self.arrivals:
            return
        node, batch = self.arrivals.popleft()
        self.receiving = True
        took = self.times.receive * batch.photos
        self.outcome.busy_ps[RECEIVE] += took
        self._at(self.now + took, "_arrive", node, batch)

    def _arrive(self, node: _Node, batch: Batch) -> None:
        """Count a batch that has arrived."""
        self.receiving = False
        self.received[batch.run].append(batch)
        self.outcome.ready_ps[batch.run] = self.now
        self.outcome.by_store[self.nodes.index(node)] += batch.photos
        self.missing[batch.run] -= 1
        self._receive()

    def _train(self) -> Outcome:
        """Train all runs in order; return the outcome."""
        found = self.outcome
        if any(self.missing.values()):
            raise AssertionError(f"batches are missing: {dict(self.missing)}")
        free = 0
        for run, each in enumerate(self.received):
            took = self.times.train * sum(batch.photos for batch in each)
            free = max(free, found.ready_ps[run]) + took
            found.busy_ps[TUNER] += took
            found.trained.update(each)
            found.trained_ps.append(free)
        found.end_ps = free
        for stage, name in enumerate(STAGES):
            found.busy_ps[name] = max(node.busy[stage] for node in self.nodes)
        found.bytes_read = sum(node.drive.bytes_read for node in self.nodes)
        return found
