"""Synchronous training by a cluster, step by step, in virtual time.

Owns the order of the phases of a step (read, compute, wait for the last node, all-reduce, update),
and the effect of load, membership events and batch changes on a step. Does not own speeds
(cluster.py), data (epoch.py), decisions (hypertune/controller.py) or the time of an all-reduce
(collectives/allreduce.py).
Source: STANNIS (DAC 2020) and HyperTune: synchronous steps, gradients summed over all nodes, speeds
gathered after each step. A node reads the samples of its next step while it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from ondie.emu.cluster import membership
from ondie.emu.cluster.batch_tuner import MOST_BATCH
from ondie.emu.cluster.cluster import AllreduceCost, Fleet
from ondie.emu.cluster.epoch import Epoch
from ondie.emu.cluster.history import History
from ondie.emu.cluster.hypertune.controller import HyperTune
from ondie.emu.cluster.jitter import Chance
from ondie.emu.cluster.load.on_off import Spells
from ondie.emu.cluster.load.trace import Load
from ondie.emu.cluster.measurement_noise import Noise
from ondie.emu.units import InputError, plural

MOST_TOLD = 4
"""Maximum number of nodes that the text of a batch change in the history lists."""
DETECTION_S = 30.0
"""Time until the other nodes detect that a node has died (s) [assumed]. The value is the network
idle timeout of o2cb (OCFS2's cluster stack). MPI and gloo wait for minutes."""


@dataclass(frozen=True)
class Data:
    """Data set of one epoch. ``public``: number of public samples. ``private``: number of private
    samples of each node, int64[nodes]. ``leveling``: method (one of data_split.LEVELING) to level
    unequal amounts of private data."""

    public: int
    private: np.ndarray
    leveling: str = "public"


@dataclass
class Simulation:
    """Simulated training run of a cluster.

    ``batches``: batch of each node, int64[nodes], including nodes that join later. ``events``:
    membership events. ``tuner``: HyperTune's controller; if it is None, the batches do not change.
    Raises InputError for invalid batches, samples or events.
    """

    fleet: Fleet
    batches: np.ndarray
    data: Data
    load: Load | Spells | None = None
    events: Sequence[membership.Member] = ()
    tuner: HyperTune | None = None
    chance: Chance = Chance()
    pieces: np.ndarray | None = None
    """Number of micro-batches into which each node's batch is divided, int64[nodes]; None means one
    micro-batch per node. A node adds up the gradients of its micro-batches."""
    detection_s: float = DETECTION_S
    noise: Noise | None = None
    """Noise of the speeds and fractions of free cores that HyperTune observes, or None if it
    observes exact values."""

    def __post_init__(self) -> None:
        fleet = self.fleet
        self._check()
        events = membership.ordered(self.events, fleet.nodes, fleet.hosts)
        self.there = np.ones(fleet.nodes, bool)
        self.there[membership.absent(events)] = False
        self._events = list(events)[::-1]
        self.pace = (self.load or Load.none()).pace(fleet.cores, fleet.pace)
        self.now = 0.0
        self.rate = 1.0
        """Learning rate relative to the rate for which the batches were tuned."""
        self.history = History.of(fleet)
        self._random = np.random.default_rng(self.chance.seed)
        self._noise_random = self.noise.generator() if self.noise is not None else None
        self._reader = np.zeros(fleet.nodes)
        self._known: dict[bytes, AllreduceCost] = {}
        self._tuned = self.batches
        self._epochs = 0
        self.epoch = self._begin()

    def _check(self) -> None:
        """Raise InputError unless the batches, private samples and micro-batches are valid for the
        cluster. Set the missing number of micro-batches to 1 for each node."""
        fleet, batches = self.fleet, self.batches
        if batches.shape != (fleet.nodes,) or self.data.private.shape != (fleet.nodes,):
            raise InputError(
                f"{len(batches)} batches and {len(self.data.private)} numbers of private samples; "
                f"the cluster has {fleet.nodes} nodes: give one batch and one "
                f"number of private samples per node"
            )
        if np.any(batches < 0):
            node = int(np.argmin(batches))
            raise InputError(f"node {node}: batch {batches[node]}; must be at least 0")
        if not np.any(batches):
            raise InputError("the batch of every node is 0; at least one must be above 0")
        if self.pieces is None:
            self.pieces = np.ones(fleet.nodes, np.int64)
        if self.pieces.shape != (fleet.nodes,):
            raise InputError(
                f"micro-batches have shape {self.pieces.shape}: must be ({fleet.nodes},), one "
                "number per node"
            )
        if np.any(self.pieces < 1):
            node = int(np.argmin(self.pieces))
            raise InputError(f"node {node}: {self.pieces[node]} micro-batches; must be at least 1")
        self._limits = fleet.limits() * np.minimum(self.pieces, MOST_BATCH // fleet.limits())
        over = np.flatnonzero(batches > self._limits)
        if len(over):
            kind = fleet.kinds[int(fleet.kind[over[0]])]
            raise InputError(
                f"node {over[0]} ({kind.name}): batch {batches[over[0]]} in "
                f"{plural(int(self.pieces[over[0]]), 'piece')} exceeds the memory limit, "
                f"{kind.engine.limit} samples per piece"
            )

    def _wanted(self) -> np.ndarray:
        """Return the number of samples that each node should take in one step, int64[nodes]."""
        out: np.ndarray = np.where(self.there, self.batches, 0)
        return out

    def _begin(self) -> Epoch:
        """Start the next epoch without the absent nodes; return the epoch."""
        data = self.data
        epoch = Epoch(
            data.public, data.private, seed=self.chance.seed + self._epochs,
            leveling=data.leveling,
        )  # fmt: skip
        self._epochs += 1
        epoch.start(self._tuned)
        away = np.flatnonzero(~self.there)
        if len(away):
            epoch.leave(away, unfinished=False)
        epoch.resplit(self._wanted())
        return epoch

    def run(self, steps: int, progress: Callable[[int], None] | None = None) -> History:
        """Simulate ``steps`` steps and return the history. When an epoch ends, the next epoch
        starts. Raises InputError if ``steps`` is less than 1, if a step cannot end because a node
        has no free core, or if the run needs more periods of random load than Spells.check
        allows."""
        if steps < 1:
            raise InputError(f"{steps} steps: must be at least 1")
        for step in range(steps):
            self._step(step)
            if progress is not None:
                progress(step + 1)
        return self.history

    # --- a step

    def _step(self, step: int) -> None:
        """Simulate one step, including membership events and the response of HyperTune."""
        fleet = self.fleet
        self._between(step)
        if not self.epoch.steps_left:
            self.history.note(step, self.now, "epoch", "ended")
            self.history.deferred += self.epoch.deferred
            self.epoch = self._begin()
        at, steps = self.epoch.step, self.epoch.step + self.epoch.steps_left
        counts = self.epoch.take().samples
        working = counts > 0
        # Samples are read during the previous step; reads of a node are sequential.
        ready = self._reader + fleet.reading_s(counts)
        begin = np.maximum(self.now, np.where(working, ready, 0.0))
        self._reader = begin
        work = self._seconds(counts) * self.chance.longer(self._random, fleet.nodes)
        end = np.where(working, self.pace.finish(begin, work), self.now)
        late = np.flatnonzero(np.isinf(end))
        if len(late):
            raise InputError(
                f"node {late[0]} has no core left from {self.now:.6g} s on, and no core is freed "
                f"later; leave the node at least one core, or add an event that removes it"
            )
        left = self.pace.left()
        trained = float(end.max())
        counted = working
        dead = self._deaths(trained)
        if dead:
            nodes = [event.node for event in dead]
            counted = working.copy()
            counted[nodes] = False
            # Detection starts when the last surviving node has its gradient and the last node died.
            trained = max(float(np.max(end, where=counted, initial=self.now)), dead[-1].seconds)
            trained += self.detection_s
            self._gone(nodes, unfinished=True)
            self.history.note(step, trained, "dies", ", ".join(f"node {node}" for node in nodes))
        exchange = self._exchange()
        updated = float(np.max(fleet.update_s, where=self.there, initial=0.0))
        done = trained + exchange.seconds + updated
        self.history.step(
            fleet, self.now, begin, end, trained, done, np.where(counted, counts, 0), counted,
            exchange, self.there, self.rate,
        )  # fmt: skip
        self.now = done
        self._observe(step, at, steps, counts, end - begin, left, counted)

    def _seconds(self, counts: np.ndarray) -> np.ndarray:
        """Return the total time of the micro-batches of each node in seconds, float64[nodes].

        ``counts``: samples of each node, int64[nodes]. The sizes of a node's micro-batches differ
        by at most one sample.
        """
        assert self.pieces is not None
        small, larger = np.divmod(counts, self.pieces)
        if not larger.any():
            return self.pieces * self.fleet.seconds(small)
        smaller = (self.pieces - larger) * self.fleet.seconds(small)
        out: np.ndarray = smaller + larger * self.fleet.seconds(small + 1)
        return out

    def _exchange(self) -> AllreduceCost:
        """Return the cost of the all-reduce among the present nodes; the last result is cached."""
        key = self.there.tobytes()
        if key not in self._known:
            self._known = {key: self.fleet.exchange(self.there)}
        return self._known[key]

    # --- membership and batches

    def _between(self, step: int) -> None:
        """Apply the joins and departures up to the current virtual time. The death of a node
        between two steps takes effect in the next step."""
        while self._events and self._events[-1].seconds <= self.now:
            if self._events[-1].event == membership.DIES:
                break
            event = self._events.pop()
            if event.event == membership.LEAVES:
                self._gone([event.node], unfinished=False)
            else:
                before = int(self._wanted().sum())
                self.there[event.node] = True
                spent = self.fleet.kinds[int(self.fleet.kind[event.node])].join_s
                self.now += spent
                self.history.between_joules += self.fleet.watts(self.there) * spent
                self.epoch.join([event.node], self._wanted())
                self._resplit(before)
            self.history.note(step, self.now, event.event, f"node {event.node}")

    def _deaths(self, until: float) -> list[membership.Member]:
        """Remove the deaths up to time ``until`` (s) from the queue of events and return them.
        Joins and departures stay in the queue, because they take effect between two steps."""
        out: list[membership.Member] = []
        later: list[membership.Member] = []
        while self._events and self._events[-1].seconds <= until:
            event = self._events.pop()
            (out if event.event == membership.DIES else later).append(event)
        self._events += later[::-1]
        return out

    def _gone(self, nodes: list[int], unfinished: bool) -> None:
        """Remove nodes from the training. If ``unfinished`` is True, put the samples of their last
        step back into the epoch."""
        before = int(self._wanted().sum())
        self.there[nodes] = False
        self.epoch.leave(nodes, unfinished=unfinished)
        self._resplit(before)

    def _resplit(self, before: int) -> None:
        """Discard the samples that nodes have read in advance, and adapt the learning rate to the
        new total batch by HyperTune's rule (linear by default). ``before``: previous total batch,
        samples."""
        self._reader[:] = self.now
        factor = int(self._wanted().sum()) / before
        rule = self.tuner.rule.learning_rate if self.tuner is not None else "linear"
        self.rate *= {"linear": factor, "sqrt": sqrt(factor), "none": 1.0}[rule]

    def _observe(
        self, step: int, at: int, steps: int, counts: np.ndarray, seconds: np.ndarray,
        left: np.ndarray, counted: np.ndarray,
    ) -> None:  # fmt: skip
        """Report the observations of a step to HyperTune, and apply the change that the controller
        returns. ``at``: index of the step in its epoch. ``steps``: number of steps in the epoch."""
        if self.tuner is None:
            return
        speed = np.divide(counts, seconds, out=np.full(len(counts), np.nan), where=counted)
        cores = np.where(counted, left, np.nan)
        if self.noise is not None and self._noise_random is not None:
            speed, cores = self.noise.add(self._noise_random, speed, cores)
        change = self.tuner.observe(at, steps, speed, cores)
        if change is None:
            return
        before = int(self._wanted().sum())
        self.batches = np.minimum(change.batches, self._limits)
        columns = (change.nodes, change.before, change.after)
        first = zip(*(column[:MOST_TOLD].tolist() for column in columns), strict=True)
        told = [f"node {node} {old} -> {new}" for node, old, new in first]
        more = len(change.nodes) - MOST_TOLD
        told += [f"{more} more"] if more > 0 else []
        if told:
            self.history.note(step, self.now, "batches", ", ".join(told))
        if change.ends_epoch and self.epoch.left:
            lost = self.epoch.left
            self.history.note(step, self.now, "dropped", f"epoch ended, {lost:,} samples dropped")
            self.history.dropped += lost
            self.epoch = self._begin()
        elif self.epoch.steps_left:
            self.epoch.resplit(self._wanted())
        self._resplit(before)
