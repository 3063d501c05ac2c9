"""Trainings of the recorded networks by a host and its drives, averaged in one way or another.

Owns the ways, the training loop and what is known of a training at its end. Does not own networks,
data or copies (averaging_nets.py), weights and sums (stannis/weighting.py) or rows
(averaging_shown.py).
Source: Goyal et al. 2017 for the learning rate in proportion to the batch, Malladi et al. 2022 for
its square root under Adam; McMahan et al. 2017 for parameters averaged by samples.

Every way of a seed sees the same samples in the same order: micro-batch m of node i is the same
everywhere, whether it is followed by an exchange, by others or by an update of the node's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ondie.emu.cluster import gradient_weighting as weighting
from ondie.emu.studies import averaging_nets as nets

KS = (1, 2, 4, 8)
"""Micro-batches, or local updates, between two exchanges."""
ALIKE, PRIVATE = "alike", "private"
"""Data: every node's like all the others', or some of the drives' their own."""


@dataclass(frozen=True)
class Way:
    """How nodes train together.

    ``mean``: of gradients, by "batch" or by "rank" (Horovod); "none": one node has the batches of
    all. ``every``: micro-batches between two exchanges. ``local``: after each of them a node
    updates its own parameters, and parameters are exchanged, averaged by samples; optimizer states
    stay. ``rate``: power of ``every`` that the learning rate is multiplied with. ``late``:
    exchanges that run while nodes go on: so many updates old are the weights of a gradient.
    ``shared``: batch statistics are those of all nodes' samples together.
    """

    mean: str = "batch"
    every: int = 1
    local: bool = False
    rate: float = 0.0
    late: int = 0
    shared: bool = False


PLAIN, WEIGHTED, UNWEIGHTED = "one node", "weighted", "unweighted"
SHARED, LATE = "unweighted, shared statistics", "one exchange late"


def batched(k: int) -> str:
    """Name of a way: k micro-batches between two exchanges."""
    return f"{k} micro-batches"


def rooted(k: int) -> str:
    """And the learning rate by the square root of k."""
    return f"{k} micro-batches, rate x {k**0.5:.3g}"


def scaled(k: int) -> str:
    """And the learning rate by k."""
    return f"{k} micro-batches, rate x {k}"


def local(k: int) -> str:
    """k local steps between two exchanges."""
    return f"{k} local step{'s' if k > 1 else ''}"


WAYS: dict[str, Way] = {
    PLAIN: Way("none"),
    WEIGHTED: Way(),
    UNWEIGHTED: Way("rank"),
    SHARED: Way("rank", shared=True),
    **{batched(k): Way(every=k) for k in KS[1:]},
    **{rooted(k): Way(every=k, rate=0.5) for k in KS[1:]},
    scaled(KS[-1]): Way(every=KS[-1], rate=1.0),
    **{local(k): Way(every=k, local=True) for k in KS},
    LATE: Way(late=1),
}
APART = (PLAIN, WEIGHTED, UNWEIGHTED, SHARED, local(KS[0]), local(KS[-1]))
"""Of these with private data."""


def runs(name: str) -> list[tuple[str, str]]:
    """(data, way) of every training of a network."""
    ways = [way for way in WAYS if way != SHARED or nets.NETWORKS[name].has_statistics]
    wanted = [(ALIKE, way) for way in ways if way != SHARED]
    return wanted + [(PRIVATE, way) for way in ways if way in APART]


@dataclass(frozen=True)
class Trained:
    """A training: loss of every micro-batch, mean over all nodes' samples; at its end loss and
    share right of the samples held out, of all, and of those like the drives' private ones. A loss
    that is no number counts as that of knowing nothing, the log of the number of classes."""

    losses: tuple[float, ...]
    held_loss: float
    held_right: float
    private_loss: float
    private_right: float


def train(name: str, way: str, skew: float, seed: int, steps: int) -> Trained:
    """Train a network in one of WAYS for ``steps`` micro-batches of each node, a multiple of the
    largest of KS; ``skew``: of the drives' data, 0 where all are alike."""
    with nets.deterministic(seed), np.errstate(all="ignore"):  # a training may diverge
        return Training(nets.NETWORKS[name], WAYS[way], skew, seed).run(steps)


class Training:
    """The nodes of one training."""

    def __init__(self, network: nets.Network, way: Way, skew: float, seed: int) -> None:
        self.network, self.way = network, way
        self.samples = network.samples()
        self.batches = network.batches
        parts = nets.shards(self.samples.train, self.samples.key, self.batches, skew, seed)
        self.border = _border(self.samples.key, parts)
        self.draws = [
            nets.drawn(part, batch, seed, node)
            for node, (part, batch) in enumerate(zip(parts, self.batches, strict=True))
        ]
        self.together = way.mean == "none" or way.shared
        count = 1 if self.together else len(self.batches)
        self.models = nets.copies(network.make(), count, shared=not way.local)
        self.optimizers = [
            network.optimizer(model) for model in (self.models if way.local else self.models[:1])
        ]
        self.params = [nets.held(optimizer) for optimizer in self.optimizers]
        by = weighting.by_rank if way.mean == "rank" else weighting.by_batch
        self.weights = by(self.batches)
        self.rates = [group["lr"] for group in self.optimizers[0].param_groups]

    def run(self, steps: int) -> Trained:
        """``steps`` micro-batches of each node, whole exchanges."""
        losses: list[float] = []
        pending: deque[np.ndarray] = deque()
        every = self.way.every
        for done in range(every, steps + 1, every):
            batches = [[next(draw) for draw in self.draws] for _ in range(every)]
            if self.way.local:
                losses += self._apart(batches, done - every)
                continue
            found = [self._exchanged(batch) for batch in batches]
            losses += [loss for loss, _ in found]
            even = np.full(every, 1 / every)
            pending.append(weighting.all_reduce([g for _, g in found], even))
            if len(pending) > self.way.late:
                self._update(0, pending.popleft(), done)
        while pending:
            self._update(0, pending.popleft(), steps)
        return self._judged(losses)

    def _exchanged(self, batch: Sequence[np.ndarray]) -> tuple[float, np.ndarray]:
        """Loss and gradient of one micro-batch of each node, averaged."""
        if self.together:
            x, y = self.samples.pick(np.concatenate(batch))
            counts = None
            if self.way.mean != "none":
                each = weighting.sample_weights(self.batches, self.weights)
                counts = torch.from_numpy(np.repeat(each, self.batches)).float()
            return nets.gradient(self.models[0], self.params[0], x, y, counts)
        found = [
            nets.gradient(model, self.params[0], *self.samples.pick(part))
            for model, part in zip(self.models, batch, strict=True)
        ]
        loss = np.dot(weighting.by_batch(self.batches), [loss for loss, _ in found])
        return float(loss), weighting.all_reduce([g for _, g in found], self.weights, "ring")

    def _apart(self, batches: Sequence[Sequence[np.ndarray]], done: int) -> list[float]:
        """Each node's own updates, then parameters averaged; the loss of every micro-batch."""
        losses = []
        for batch in batches:
            done += 1
            each = []
            for node, (model, part) in enumerate(zip(self.models, batch, strict=True)):
                loss, g = nets.gradient(model, self.params[node], *self.samples.pick(part))
                self._update(node, g, done)
                each.append(loss)
            losses.append(float(np.dot(self.weights, each)))
        mean = weighting.all_reduce([nets.flat(p) for p in self.params], self.weights, "ring")
        for params in self.params:
            nets.put(params, mean)
        return losses

    def _update(self, node: int, gradient: np.ndarray, done: int) -> None:
        """One update by a gradient, ``done`` micro-batches into the training."""
        optimizer, network = self.optimizers[node], self.network
        warm = min(1.0, done / network.warm_up) if network.warm_up else 1.0
        scale = warm * (1.0 if self.way.local else self.way.every**self.way.rate)
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * scale
        nets.put(self.params[node], gradient, as_gradient=True)
        if network.clip is not None:
            nn.utils.clip_grad_norm_(self.params[node], network.clip)
        optimizer.step()

    def _judged(self, losses: Sequence[float]) -> Trained:
        if not self.together:
            nets.merge_statistics(self.models, weighting.by_batch(self.batches).tolist())
        loss, right = nets.scores(self.models[0], self.samples)
        private = self.samples.key[self.samples.held] >= self.border
        return Trained(
            tuple(losses), float(loss.mean()), float(right.mean()),
            float(loss[private].mean()), float(right[private].mean()),
        )  # fmt: skip


def _border(key: np.ndarray, parts: Sequence[np.ndarray]) -> int:
    """Least key of what the drives would hold if all their data were private."""
    every = np.sort(key[np.concatenate(parts)])
    return int(every[len(parts[0])])
