"""State of an epoch in training: assigns samples to nodes, step by step.

Owns the remaining samples of an epoch under any sequence of batch changes, departures, returns and
joins. Each public sample is used once, by any node. Each private sample is used by the node that
stores it, once or, with leveling = repeat, several times. Does not own batch sizes, Eq. 1
(data_split.py) or the order of samples (permutation.py).
Source: this project; STANNIS (DAC 2020) for Eq. 1 and private data. In HyperTune, a change of
batches ends the epoch.

Algorithm: between two changes of batches or nodes, all steps have nearly equal sizes. With S steps
left, node i gets n_i of the remaining samples. The samples of all nodes are numbered consecutively,
and sample j belongs to step j mod S. Steps therefore differ by at most one sample, in total and on
each node. Private samples are spread evenly over a node's steps. A public sample belongs to no node
before a node takes it: the untaken public samples are ranges of positions in one shuffled order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ondie.emu.cluster.data_split import (
    check_leveling,
    checked_batches,
    checked_private,
    levelled,
    longest,
    repeated_least,
    split,
    whole_numbers,
)
from ondie.emu.cluster.interval_set import Ranges
from ondie.emu.cluster.permutation import Shuffle
from ondie.emu.units import InputError

MOST_NODE_SAMPLES = 3_000_000_000
"""Maximum number of samples of one node in an epoch. With this limit, all products in the
computation of a plan fit into 64 bits."""


@dataclass(frozen=True)
class Take:
    """Samples of each node in one step, as ranges of shuffled positions.

    The positions of a private range refer to the order of one node's private samples. A position
    after the last of these samples belongs to a repeated pass over them. The positions of a public
    range refer to the order that all nodes share. The public ranges are sorted by node. A node may
    have several public ranges after a node has left and its unfinished samples were returned to the
    epoch.
    """

    step: int
    private_start: np.ndarray
    """First position of each node's range of private samples in this step, int64[nodes]."""
    private_length: np.ndarray
    public_node: np.ndarray
    """Node that takes each range of public samples in this step, int64[ranges], ascending."""
    public_start: np.ndarray
    public_length: np.ndarray

    @property
    def public(self) -> np.ndarray:
        """Number of public samples that each node takes in this step, int64[nodes]."""
        out = np.zeros(len(self.private_length), np.int64)
        np.add.at(out, self.public_node, self.public_length)
        return out

    @property
    def samples(self) -> np.ndarray:
        """Number of samples that each node takes in this step (its batch), int64[nodes]."""
        return self.private_length + self.public


@dataclass
class _Plan:
    """Plan of the remaining steps if batches and nodes do not change; arrays are int64[nodes]."""

    steps: int
    samples: np.ndarray
    private: np.ndarray
    """Number of private samples among ``samples``."""
    first: np.ndarray
    """Index of each node's first sample in the consecutive numbering of the plan's samples."""
    done: int = 0
    """Number of steps of the plan that have been taken."""

    def until(self, step: int) -> np.ndarray:
        """Return the number of samples of each node in the steps before ``step``, int64[nodes]."""

        def below(number: np.ndarray) -> np.ndarray:
            rounds, rest = np.divmod(number, max(self.steps, 1))
            return rounds * step + np.minimum(rest, step)

        return below(self.first + self.samples) - below(self.first)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """Advance by one step. Return each node's number of samples in that step, and the number of
        private samples among them, int64[nodes] each."""
        whole = np.maximum(self.samples, 1)
        before, after = self.until(self.done), self.until(self.done + 1)
        own = self.private * after // whole - self.private * before // whole
        self.done += 1
        return after - before, own


class Epoch:
    """Epoch of ``public`` samples for any node and ``private[i]`` samples for node i only.

    ``seed``: seed of the shuffle; use a different seed for each epoch. ``leveling``: method of
    data_split.split for unequal private data.
    """

    def __init__(
        self,
        public: int,
        private: Sequence[int] | np.ndarray,
        *,
        seed: int = 0,
        leveling: str = "public",
    ) -> None:
        check_leveling(leveling)
        self.public = public
        self.private = checked_private(public, private, len(private))
        """Number of private samples of each node, int64[nodes]."""
        self.leveling = leveling
        self.step = 0
        """Number of steps taken so far."""
        self.batches = np.zeros(len(self.private), np.int64)
        self.away = np.zeros(len(self.private), np.bool_)
        """True for nodes that have left the epoch, bool[nodes]."""
        self._taken = np.zeros(len(self.private), np.int64)  # positions taken of each private order
        self._order = Shuffle(public, seed)
        self._pool = Ranges(public)
        self._plan: _Plan | None = None
        self._last: Take | None = None

    # --- remaining samples

    @property
    def nodes(self) -> int:
        """Number of nodes of the cluster, including absent nodes."""
        return len(self.private)

    @property
    def public_left(self) -> int:
        """Number of public samples that no node has taken yet."""
        return self._pool.total

    @property
    def private_left(self) -> np.ndarray:
        """Number of private samples that each node, present or absent, has not taken yet,
        int64[nodes]."""
        return np.maximum(self.private - self._taken, 0)

    @property
    def repeated(self) -> np.ndarray:
        """Number of times that each node has reused one of its private samples so far,
        int64[nodes]."""
        return np.maximum(self._taken - self.private, 0)

    @property
    def deferred(self) -> int:
        """Number of private samples of absent nodes that have not been used in this epoch. The
        epoch ends without these samples unless the nodes return."""
        return int(self.private_left[self.away].sum())

    @property
    def left(self) -> int:
        """Number of samples that the present nodes still have to train on, including
        repetitions."""
        if self._plan is None:
            return self.public_left + int(self.private_left[~self.away].sum())
        plan = self._plan
        return int((plan.samples - plan.until(plan.done)).sum())

    @property
    def steps_left(self) -> int:
        """Number of steps until the end of the epoch if batches and nodes do not change."""
        plan = self._started()
        return plan.steps - plan.done

    # --- changes

    def start(self, batches: Sequence[int] | np.ndarray) -> None:
        """Start the epoch with one batch size per node, int64[nodes].

        Raises InputError if the epoch has started, if the batch sizes are invalid, or if unequal
        amounts of private data cannot be leveled (data_split.split).
        """
        if self._plan is not None:
            raise InputError("the epoch has started; call resplit() to change its batches")
        sizes, _ = checked_batches("batch", batches)
        split(sizes, self.public, np.where(self.away, 0, self.private), self.leveling)
        self.resplit(sizes)

    def resplit(self, batches: Sequence[int] | np.ndarray) -> None:
        """Set new batches, starting with the next step. The samples of the previous step stay
        assigned and can no longer be returned to the epoch.

        If the remaining private samples of a node exceed its proportion of all remaining samples,
        the epoch is lengthened, and the other nodes take smaller batches. If leveling is "repeat"
        and there are enough public samples for the nodes without private data, the other nodes
        repeat private data instead. Raises InputError, and changes nothing, if there is not one
        valid batch per node, if a node that has left gets a batch, if a node with remaining private
        samples gets batch 0, or if a node would have more than MOST_NODE_SAMPLES samples.
        """
        sizes, _ = checked_batches("batch", batches)
        if len(sizes) != self.nodes:
            raise InputError(
                f"{len(sizes)} batches for {self.nodes} nodes: must be one batch per node"
            )
        gone = np.flatnonzero(self.away & (sizes > 0))
        if len(gone):
            raise InputError(
                f"node {gone[0]} has left, but its batch size is {sizes[gone[0]]}; call join() "
                "first"
            )
        self._plan = self._planned(sizes)
        self.batches, self._last = sizes, None

    def leave(self, nodes: Sequence[int] | np.ndarray, *, unfinished: bool = True) -> np.ndarray:
        """Remove nodes from the epoch; keep the batches of the other nodes.

        The epoch uses the remaining private samples of a removed node only if the node returns.
        ``unfinished``: True if the nodes did not finish the last step; their samples of this step
        are returned to the epoch. Returns the number of remaining private samples of each removed
        node, int64[len(nodes)]. Raises InputError if no node with a batch would remain, if a node
        number is invalid or repeated, or if a node has already left.
        """
        at = self._known(nodes)
        gone = np.flatnonzero(self.away[at])
        if len(gone):
            raise InputError(f"node {at[gone[0]]} has already left the epoch")
        batches = self.batches.copy()
        batches[at] = 0
        if self._plan is not None and not batches.any():
            raise InputError(
                f"node {at[0]} is the last node that trains; it cannot leave the epoch"
            )
        if unfinished:
            self._give_back(at)
        self.away[at] = True
        if self._plan is not None:
            last = self._last
            self.resplit(batches)
            self._last = last  # other nodes may fail in the same step
        return self.private_left[at]

    def join(self, nodes: Sequence[int] | np.ndarray, batches: Sequence[int] | np.ndarray) -> None:
        """Add nodes that had left, and set the batches of all nodes, int64[nodes].

        The private samples of these nodes continue at the position where the nodes left. Raises
        InputError if a node number is invalid or repeated, if a node is present, or if
        :meth:`resplit` rejects the batches.
        """
        at = self._known(nodes)
        there = np.flatnonzero(~self.away[at])
        if len(there):
            raise InputError(f"node {at[there[0]]} is present; call resplit() to change its batch")
        self.away[at] = False
        try:
            self.resplit(batches)
        except InputError:
            self.away[at] = True
            raise

    # --- steps

    def take(self) -> Take:
        """Return the samples of the next step. After this call, the samples of the previous step
        can no longer be returned to the epoch. Raises InputError if no step is left."""
        plan = self._started()
        if plan.done == plan.steps:
            raise InputError(f"the epoch is over after {self.step} steps; no samples are left")
        samples, own = plan.next()
        node, start, length = self._pool.take(samples - own)
        take = Take(self.step, self._taken.copy(), own, node, start, length)
        self._taken += own
        self.step += 1
        self._last = take
        return take

    def public_indices(self, start: int | np.ndarray, length: int | np.ndarray) -> np.ndarray:
        """Return the indices of the public samples in one range of positions, or in several ranges
        one after the other: int64[sum of lengths], each index from 0 to public - 1."""
        begin, size = np.atleast_1d(start), np.atleast_1d(length)
        offset = np.repeat(begin - (np.cumsum(size) - size), size)
        return self._order(offset + np.arange(len(offset)))

    # --- implementation

    def _started(self) -> _Plan:
        """Return the current plan. Raises InputError if the epoch has not started."""
        if self._plan is None:
            raise InputError("the epoch has not started; call start() first")
        return self._plan

    def _known(self, nodes: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return node numbers, int64[k], after validation: at least one number, without duplicates.
        Raises InputError for invalid numbers."""
        at = whole_numbers("node", nodes)
        if not len(at) or at.max() >= self.nodes or len(np.unique(at)) < len(at):
            raise InputError(
                f"nodes {at[:8].tolist()}: must be one or more distinct nodes from 0 to "
                f"{self.nodes - 1}"
            )
        return at

    def _planned(self, batches: np.ndarray) -> _Plan:
        """Return a plan that distributes the remaining samples among the nodes in proportion to
        ``batches``, int64[nodes]. Raises InputError if a node with remaining private samples has
        batch 0, or if a node would have more than MOST_NODE_SAMPLES samples."""
        own, public = np.where(self.away, 0, self.private_left), self.public_left
        stuck = np.flatnonzero((own > 0) & (batches == 0))
        if len(stuck):
            node = int(stuck[0])
            raise InputError(
                f"node {node}: batch 0, but {own[node]} private samples that only this node may "
                f"train on; use a batch of at least 1, or call leave()"
            )
        whole, data, need = int(batches.sum()), public + int(own.sum()), longest(own, batches)
        steps = max(-(-data // whole), -(-need.numerator // need.denominator))
        if self.leveling == "repeat" and need * whole > data:
            goal = need.numerator * batches // need.denominator
            room = goal - own
            bare = int(room[self.private == 0].sum())  # these nodes have nothing to repeat
            if bare <= public < int(room.sum()):
                given = repeated_least(self.private, self._taken + goal, room, public)
                return self._shared(steps, goal, goal - given)
        given = levelled(own, batches, public, steps)
        assert int(given.sum()) == public
        return self._shared(steps, own + given, own)

    def _shared(self, steps: int, samples: np.ndarray, private: np.ndarray) -> _Plan:
        """Return a plan with these numbers of samples and of private samples per node, int64[nodes]
        each. Raises InputError if a node has more than MOST_NODE_SAMPLES samples."""
        if samples.max() > MOST_NODE_SAMPLES:
            node = int(samples.argmax())
            raise InputError(
                f"node {node}: {samples[node]} samples in an epoch; must be at most "
                f"{MOST_NODE_SAMPLES}"
            )
        return _Plan(steps, samples, private, np.cumsum(samples) - samples)

    def _give_back(self, nodes: np.ndarray) -> None:
        """Give the samples that these nodes took in the last step back to the epoch."""
        last = self._last
        if last is None:
            return
        which = np.zeros(self.nodes, np.bool_)
        which[nodes] = True
        self._taken -= np.where(which, last.private_length, 0)
        back = which[last.public_node]
        self._pool.put_back(last.public_start[back], last.public_length[back])
        keep = ~back
        self._last = Take(
            last.step,
            last.private_start,
            np.where(which, 0, last.private_length),
            last.public_node[keep],
            last.public_start[keep],
            last.public_length[keep],
        )
