"""Fine-tuning by stores and a Tuner in virtual time (FT-DMP), as a pipeline over sub-datasets.

Owns the stages of a store, the transfer to the Tuner, its training runs, and the redistribution of
a failed store's batches. Does not own the drives (flash.py), the assignment of batches to stores
(batches.py), the rates of servers (servers.py) or the closed form (pipeline_bound.py).
Source: NDPipe (ASPLOS 2024), pipelined FT-DMP: while the Tuner trains on the features of one
sub-dataset (a run), the stores extract the features of the next sub-dataset.

A store processes a batch in STAGES, each of which holds one batch at a time: load from flash,
decode, resize, normalize, features, send. The Tuner receives one batch at a time. It trains on a
run when all batches of the run have arrived and the training on the previous run is complete.
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
"""Names of the stages through which a batch passes in a store, in order. The drive determines the
time of the first stage; Times contains the times of the other stages."""
LOAD, SEND = 0, len(STAGES) - 1
RECEIVE, TUNER = "receive", "Tuner"
"""Names of the shared stations, which serve the batches of all stores: the Tuner's network and the
Tuner."""


@dataclass(frozen=True)
class Times:
    """Times per photo in the fine-tuning pipeline, ps. ``decode`` to ``send``: stages of a store
    with ``Store.speed`` = 1, except load. ``receive``: transfer to the Tuner. ``train``: training
    of the head on one photo in all epochs.

    Raises InputError if a time is below 0.
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
        """Return the time per photo of stage ``stage`` (an index in STAGES other than LOAD), ps."""
        return (self.decode, self.resize, self.normalize, self.features, self.send)[stage - 1]


@dataclass(frozen=True)
class Store:
    """A storage server of NDPipe. ``photos``: number of photos in its shard. ``speed``: speed of
    all stages except load, relative to a store that takes the times in :class:`Times`.
    ``fails_ps``: time at which the store fails permanently, or None if it does not fail.

    Raises InputError if the store has no photos, or if the speed or the time is outside its range.
    """

    photos: int
    speed: float = 1.0
    fails_ps: int | None = None

    def __post_init__(self) -> None:
        if self.photos == 0:
            raise InputError("store with 0 photos: must have at least 1; otherwise omit the store")
        whole_number("photos", self.photos, 1, 1 << 40)
        if not (math.isfinite(self.speed) and self.speed > 0):
            raise InputError(f"speed = {self.speed}: must be a finite number above 0")
        if self.fails_ps is not None:
            whole_number("fails_ps", self.fails_ps, 0, 1 << 62)


@dataclass(frozen=True)
class Plan:
    """Parameters of a simulation other than the stores and times.

    ``runs``: N, number of sub-datasets. ``batch``: photos per batch. ``photo_bytes``: size of a
    stored photo. ``copies``: True if every batch has a copy on one other store. ``balance``: True
    to assign each batch to its owner or to the store with its copy, so that the loads are balanced;
    requires ``copies``. ``depth``: batches in the memory of a store; 1 means that the stages do not
    overlap. ``detect_ps``: time from the failure of a store to its detection. Raises InputError if
    a number is outside its range, or if ``balance`` is True without ``copies``.
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
                "balance = True: needs copies = True; without copies, a batch is in only one store"
            )


@dataclass
class Outcome:
    """Result of a simulation of pipelined fine-tuning. Times are in ps."""

    end_ps: int = 0
    """End of the training on the last run (sub-dataset), ps."""
    ready_ps: list[int] = field(default_factory=list)
    """Time at which the last batch of each run (sub-dataset) arrives at the Tuner, ps."""
    trained_ps: list[int] = field(default_factory=list)
    """End of the training on each run (sub-dataset), ps."""
    trained: Counter[Batch] = field(default_factory=Counter)
    """Number of times that each batch of photos is used for training."""
    lost: list[Batch] = field(default_factory=list)
    """Batches of photos that are lost because no live store has them."""
    by_store: list[int] = field(default_factory=list)
    """Number of photos, by store, whose features the store has sent and the Tuner has received."""
    busy_ps: Counter[str] = field(default_factory=Counter)
    """Busy time by name of a stage (STAGES) or shared station (RECEIVE, TUNER), ps. For a stage, it
    is the busy time in the store with the longest busy time of this stage."""
    bytes_read: int = 0
    """Total bytes read from the drives of all stores."""

    @property
    def limited_by(self) -> str:
        """Name of the stage of a store, or of the station shared by all stores (RECEIVE or TUNER),
        that has the longest busy time."""
        return max(self.busy_ps, key=lambda name: self.busy_ps[name])


class _Node:
    """State of a store during a simulation. On the drive, photos of other shards follow the photos
    of the store's own shard."""

    def __init__(self, store: Store, drive: PhotoDrive) -> None:
        self.store, self.drive = store, drive
        self.waiting: list[Batch] = []
        """Batches that are not loaded yet, sorted by run."""
        self.queues: list[deque[Batch]] = [deque() for _ in STAGES]
        self.current: list[Batch | None] = [None] * len(STAGES)
        self.busy = [0] * len(STAGES)
        self.in_memory = 0
        self.unsent: set[Batch] = set()
        self.alive = True

    def stage_ps(self, stage: int, batch: Batch, times: Times) -> int:
        """Return the time that the store needs for ``batch`` in a stage other than LOAD, ps."""
        return round(times.stage(stage) * batch.photos / self.store.speed)


def simulate(stores: Sequence[Store], times: Times, plan: Plan, drive: Config) -> Outcome:
    """Return the outcome of pipelined fine-tuning on stores with one drive each.

    ``drive``: configuration of the drives. Raises InputError if there are no stores, or if the
    photos of a store do not fit on its drive. Raises CommandError if a load fails.
    """
    if not stores:
        raise InputError("stores: the list is empty; at least one store is needed")
    simulation = _Simulation(stores, times, plan, drive)
    try:
        return simulation.run()
    finally:
        simulation.close()


class _Simulation:
    """Discrete-event simulation of stores and Tuner. ``events``: heap of (time in ps, sequence
    number, name of the method, arguments)."""

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
        """Close the drives of all stores."""
        for node in self.nodes:
            node.drive.close()

    def run(self) -> Outcome:
        """Simulate all events and the training; return the outcome."""
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
        """Schedule a call of the method ``name`` at ``time_ps``."""
        self.made += 1
        heapq.heappush(self.events, (time_ps, self.made, name, arguments))

    def _give(self, node: _Node, batch: Batch) -> None:
        """Add a batch to a store's queue, after the other batches of the same run."""
        insort(node.waiting, batch, key=lambda each: each.run)
        node.unsent.add(batch)

    # --- a store

    def _start(self, node: _Node, stage: int) -> None:
        """Start a stage of a live store if the stage is idle and its queue has a batch."""
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
        """End a stage: pass the batch to the next stage, and start the stages that are now able to
        run."""
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
        """Stop a store. Batches that it sent before the failure still arrive."""
        node.alive = False

    def _redistribute(self, index: int) -> None:
        """Give each unsent batch of a failed store to the other store with its photos, or record
        the batch as lost if the other store is not alive."""
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
        """Start receiving the next batch if the Tuner's network is idle."""
        if self.receiving or not self.arrivals:
            return
        node, batch = self.arrivals.popleft()
        self.receiving = True
        took = self.times.receive * batch.photos
        self.outcome.busy_ps[RECEIVE] += took
        self._at(self.now + took, "_arrive", node, batch)

    def _arrive(self, node: _Node, batch: Batch) -> None:
        """Record a batch that arrives at the Tuner."""
        self.receiving = False
        self.received[batch.run].append(batch)
        self.outcome.ready_ps[batch.run] = self.now
        self.outcome.by_store[self.nodes.index(node)] += batch.photos
        self.missing[batch.run] -= 1
        self._receive()

    def _train(self) -> Outcome:
        """Compute the times of the training on all runs, in order; return the outcome."""
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
