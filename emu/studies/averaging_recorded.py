"""Gradients at the weights of a recorded run, averaged by batch and by rank.

Owns what is measured there: how far each mean lies from the whole batch's gradient, what a sample
counts in it, its noise over ways to deal the batch, its bias where the drives' data are private.
Does not own weights, sums and formulas (stannis/weighting.py), networks (averaging_nets.py) or rows
(averaging_shown.py).
Source: own; the weights before each recorded step are those that its recorded gradients lead to,
its samples those whose numbers are recorded.

A network with batch statistics is measured twice: as trained, where each node normalises its
samples by their own statistics; and with the statistics of the whole batch held still, where the
gradient is a mean over samples, as it is without batch statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ondie.emu.cluster import gradient_weighting as weighting
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.emu.studies import averaging_nets as nets
from ondie.traces import Trace, load

ROUNDING = 1e-5
"""Relative distance below which gradients differ in roundings only: that between the recorded
gradients and those of other processors (tests/golden/test_trace_provenance.py)."""
KINK = 1e-2
"""The same with ReLU6, whose slope a rounding may change: weights that differ by 2^-23 of each have
gradients up to 0.7 % apart."""
POPULATION = 512
"""Samples that stand for a data set where expected gradients are computed."""
EVERY = 3
"""Every third recorded step is measured."""


@dataclass(frozen=True)
class Distance:
    """Of a mean from the whole batch's gradient: |difference| over its length, and the cosine."""

    relative: float
    cosine: float


@dataclass(frozen=True)
class At:
    """One recorded step. Means are by (weights, data): "batch" or "rank", "alike" or "private"."""

    recorded: float
    """Relative distance of our gradient of the whole batch from the recorded one."""
    means: dict[tuple[str, str], Distance]
    sample_weight: float
    """What a drive's sample counts over a host's, by rank: from the mean and the gradients of
    single samples. NaN where those make no sense."""
    noise: tuple[float, ...]
    """Squared distance by rank over the formula's, of each way to deal the batch."""
    bias: dict[str, tuple[float, ...]]
    """By data: error by rank along the bias that is predicted of private data, over that bias."""
    bias_share: float
    """Length of that bias over that of the gradient of all data."""


@dataclass(frozen=True)
class Measured:
    """Recorded steps of a network, by number."""

    batches: tuple[int, ...]
    separate: bool
    """Is the batch's gradient a mean over samples, each of which stands by itself?"""
    rounding: float
    """Relative distance below which its gradients differ in roundings only."""
    steps: dict[int, At]

    def each(self, what: Callable[[At], Any]) -> np.ndarray:
        """A number, or some, of every step, one after the other."""
        return np.array([what(at) for at in self.steps.values()], np.float64).reshape(-1)

    def distances(self, by: str, data: str) -> np.ndarray:
        """Relative distance of every step."""
        return self.each(lambda at: at.means[by, data].relative)

    def cosines(self, by: str, data: str) -> np.ndarray:
        """Cosine of every step."""
        return self.each(lambda at: at.means[by, data].cosine)

    def along_bias(self, data: str) -> np.ndarray:
        """Errors along the predicted bias, over it, of every step and seed."""
        return self.each(lambda at: at.bias[data])


def measure(
    name: str, still: bool, skew: float, seeds: Sequence[int], steps: int | None = None
) -> Measured:
    """Measure at recorded steps, up to ``steps``. ``still``: with the batch's statistics held;
    ``seeds``: one way to deal, and one draw of private data, at each step, from each."""
    network = nets.NETWORKS[name]
    trace = load(network.trace)
    last = len(trace.steps) if steps is None else steps
    with nets.deterministic(seeds[0]):
        subject = Subject(network, still, skew, seeds)
        found = {
            i: subject.at(trace, i, weights)
            for i, weights in enumerate(recorded(trace, last))
            if i % EVERY == 0
        }
    rounding = KINK if network.has_statistics else ROUNDING
    return Measured(network.batches, still or not network.has_statistics, rounding, found)


def recorded(trace: Trace, steps: int) -> Iterator[np.ndarray]:
    """Weights before each recorded step, float32[n_params], in memory that is used again."""
    update = Arithmetic(trace, form=trace.form)
    initial = trace.weights("initial")
    assert initial is not None
    vectors = {"w": initial.copy(), **{k: v.copy() for k, v in trace.states().items()}}
    for i in range(min(steps, len(trace.steps))):
        yield vectors["w"]
        if not trace.steps[i].skipped:
            update.apply(update.coefficients(i), 0, trace.n_params, vectors, trace.gradient(i))


class Subject:
    """A network, and the data of its nodes, as it is measured."""

    def __init__(
        self, network: nets.Network, still: bool, skew: float, seeds: Sequence[int]
    ) -> None:
        self.network, self.still, self.seeds = network, still, seeds
        self.samples = network.samples()
        self.batches = network.batches
        self.by = {
            "batch": weighting.by_batch(self.batches), "rank": weighting.by_rank(self.batches),
        }  # fmt: skip
        model = network.make().to(memory_format=torch.contiguous_format)  # as recorded
        self.params = nets.held(network.optimizer(model))
        self.models = nets.copies(model, len(self.batches), shared=True)
        self.separate = still or not network.has_statistics
        every = np.random.default_rng([seeds[0], 3]).permutation(len(self.samples.key))[:POPULATION]
        self.skew = skew
        self.data = {"alike": [every] * len(self.batches), "private": self._private(every)}

    def at(self, trace: Trace, i: int, weights: np.ndarray) -> At:
        """Measure at one recorded step."""
        nets.put(self.params, weights)
        batch = trace.steps[i].order
        assert batch is not None and len(batch) == sum(self.batches)
        full = self._gradient(batch)
        taken = full * np.float32(trace.steps[i].clip_coefficient)
        if self.still:
            self._hold(batch)
            full = self._gradient(batch)
        means = {}
        by_data = {"alike": self._cut(batch), "private": self._private(batch)}
        for data, parts in by_data.items():
            for by, mean in self._means(parts).items():
                means[by, data] = mean
        weight, noise = float("nan"), tuple[float, ...]()
        if self.separate:
            weight, noise = self._singly(batch, full, means["rank", "alike"], i)
        found, share = self._bias(i)
        yardstick = distance(taken, trace.gradient(i)).relative
        apart = {key: distance(mean, full) for key, mean in means.items()}
        return At(yardstick, apart, weight, noise, found, share)

    def _singly(
        self, batch: np.ndarray, full: np.ndarray, mean: np.ndarray, i: int
    ) -> tuple[float, tuple[float, ...]]:
        """What a drive's sample counts over a host's in ``mean``, that by rank, and the noise, by
        the gradients of single samples."""
        each = np.array([self._gradient(batch[j : j + 1]) for j in range(len(batch))])
        counts = np.linalg.lstsq(each.T.astype(np.float64), mean.astype(np.float64), rcond=None)[0]
        host = self.batches[0]
        expected = weighting.noise(self.batches, self.by["rank"], weighting.spread(each))
        found = []
        for seed in self.seeds:
            dealt = np.random.default_rng([seed, 4, i]).permutation(batch)
            error = self._means(self._cut(dealt))["rank"].astype(np.float64) - full
            found.append(float(error @ error) / expected)
        return float(counts[host:].mean() / counts[:host].mean()), tuple(found)

    def _bias(self, i: int) -> tuple[dict[str, tuple[float, ...]], float]:
        """Errors by rank along the bias that the data's gradients predict, over that bias."""
        own = [self._gradient(part).astype(np.float64) for part in self.data["private"]]
        predicted = weighting.bias(self.batches, self.by["rank"], own)
        whole = np.tensordot(self.by["batch"], own, 1)
        size = float(predicted @ predicted)
        found = {}
        for number, (data, parts) in enumerate(self.data.items()):
            along = []
            for seed in self.seeds:
                rng = np.random.default_rng([seed, 5 + number, i])
                drawn = [
                    rng.choice(part, size=b) for part, b in zip(parts, self.batches, strict=True)
                ]
                means = self._means(drawn)
                error = means["rank"].astype(np.float64) - means["batch"]
                along.append(float(error @ predicted) / size if size else float("nan"))
            found[data] = tuple(along)
        return found, size**0.5 / float(np.linalg.norm(whole))

    def _private(self, samples: np.ndarray) -> list[np.ndarray]:
        """Samples dealt to the nodes, the drives' own to them."""
        return nets.shards(samples, self.samples.key, self.batches, self.skew, self.seeds[0])

    def _cut(self, order: np.ndarray) -> list[np.ndarray]:
        return np.split(order, np.cumsum(self.batches)[:-1])

    def _means(self, parts: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Of the nodes' gradients, each node by itself, by both weights."""
        found = [
            nets.gradient(model, self.params, *self.samples.pick(part))[1]
            for model, part in zip(self.models, parts, strict=True)
        ]
        return {by: weighting.all_reduce(found, w, "ring") for by, w in self.by.items()}

    def _gradient(self, batch: np.ndarray) -> np.ndarray:
        """Of all samples in one node."""
        return nets.gradient(self.models[0], self.params, *self.samples.pick(batch))[1]

    def _hold(self, batch: np.ndarray) -> None:
        """Give every copy the statistics of a batch, and let them be."""
        x: Tensor = self.samples.pick(batch)[0]
        first = self.models[0]
        layers = [[m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
                  for model in self.models]  # fmt: skip
        first.train()
        for layer in layers[0]:
            layer.momentum = 1.0
        with torch.no_grad():
            first(x)
        for model in self.models:
            model.eval()
        for same in zip(*layers, strict=True):
            for layer in same[1:]:
                layer.running_mean.copy_(same[0].running_mean)
                layer.running_var.copy_(same[0].running_var)


def distance(found: np.ndarray, right: np.ndarray) -> Distance:
    """Of one vector from another."""
    a, b = found.astype(np.float64), right.astype(np.float64)
    length = float(np.linalg.norm(b))
    cosine = float(a @ b) / (float(np.linalg.norm(a)) * length)
    return Distance(float(np.linalg.norm(a - b)) / length, cosine)
