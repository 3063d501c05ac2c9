"""The recorded networks over a host and its drives: samples, who holds which, copies, gradients.

Owns the nodes' batches, private data, what is held out of training, and copies of a network whose
batch statistics are their own. Does not own weights (stannis/weighting.py), what is measured
(averaging_recorded.py) or trained (averaging_trained.py).
Source: models, samples and optimizers as the traces gpt-small and mobilenetv2-digits were recorded
(ondie.traces.scripts); batches in the ratio that STANNIS (DAC 2020) tuned for MobileNetV2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ondie.emu.cluster.data_split import largest_remainder
from ondie.traces.scripts import common, gpt, mobilenet

TUNED, DRIVES = (315, 25), 4
"""Batches of host and drive (STANNIS, Table I), and drives: the recorded batches, 64 and 16, split
in this ratio to 48 + 4 x 4 and 12 + 4 x 1, a drive's sample over a host's being 12 (12.6 tuned)."""
HELD_OUT = 10  # one tenth of the text, and twice that of the digits, of which there are few
Indices = np.ndarray


@dataclass(frozen=True)
class Samples:
    """Samples by the numbers that the traces know them by."""

    pick: Callable[[Indices], tuple[Tensor, Tensor]]
    """Inputs and targets of some of them."""
    key: np.ndarray
    """Of every one what private data are sorted by: its class, or how little of it is prose."""
    train: Indices
    held: Indices


@dataclass(frozen=True)
class Network:
    """A recorded network: how it is made, its samples, its batch and its optimizer."""

    trace: str
    make: Callable[[], nn.Module]
    samples: Callable[[], Samples]
    batch: int
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    clip: float | None
    """Norm that gradients are clipped at."""
    warm_up: int
    """Steps until the learning rate is whole."""
    private: str
    """What the drives' own data are."""
    has_statistics: bool
    """Does a sample's output depend on the others of its batch?"""

    @property
    def batches(self) -> tuple[int, ...]:
        """Of the host and every drive."""
        return tuple(largest_remainder(self.batch, [TUNED[0], *DRIVES * [TUNED[1]]]).tolist())


@functools.cache
def _text() -> tuple[np.ndarray, int]:
    """Characters as numbers, and how many different ones there are: as gpt.train has them."""
    text = common.text()
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    return np.array([letters[letter] for letter in text], np.int64), len(letters)


@functools.cache
def _windows() -> Samples:
    """Windows of the text; whole blocks of ten windows are held out, windows that touch one are
    not trained on. The key: characters other than small letters and blanks."""
    text = common.text()
    tokens, _ = _text()
    length = gpt.CONTEXT + 1
    prose = np.cumsum([0, *(letter.islower() or letter.isspace() for letter in text)])
    block = 10 * length
    starts = np.arange(len(tokens) - gpt.CONTEXT)
    held = (starts // block) % HELD_OUT == 0
    ends = ((starts + gpt.CONTEXT) // block) % HELD_OUT == 0
    apart = held & ends & (starts % length == 0)

    def pick(at: Indices) -> tuple[Tensor, Tensor]:
        windows = torch.from_numpy(tokens[at[:, None] + np.arange(length)])
        return windows[:, :-1], windows[:, 1:]

    signs = gpt.CONTEXT - (prose[starts + gpt.CONTEXT] - prose[starts])
    return Samples(pick, signs, starts[~held & ~ends], starts[apart])


@functools.cache
def _digits() -> Samples:
    images, labels = common.digits().tensors
    every = np.arange(len(labels))
    held = every % (HELD_OUT // 2) == 0

    def pick(at: Indices) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(at)
        return images[chosen], labels[chosen]

    return Samples(pick, labels.numpy(), every[~held], every[held])


def _gpt() -> nn.Module:
    return gpt.GPT(_text()[1], gpt.CONTEXT, width=48, layers=2, heads=4)


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, fused=True, **gpt.HYPER)


def _mobilenet() -> nn.Module:
    model: nn.Module = mobilenet.MobileNetV2().to(memory_format=torch.channels_last)  # faster
    return model


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), fused=True, **mobilenet.HYPER)


NETWORKS = {
    "GPT": Network(
        trace="gpt-small", make=_gpt, samples=_windows, batch=gpt.BATCH, optimizer=_adamw,
        clip=1.0, warm_up=gpt.WARM_UP, private="the text that is least like prose",
        has_statistics=False,
    ),
    "MobileNetV2": Network(
        trace="mobilenetv2-digits", make=_mobilenet, samples=_digits, batch=mobilenet.BATCH,
        optimizer=_adam, clip=None, warm_up=0, private="the digits 8 and 9 and some 7",
        has_statistics=True,
    ),
}  # fmt: skip


def shards(
    samples: Indices, key: np.ndarray, batches: Sequence[int], skew: float, seed: int
) -> list[Indices]:
    """A data set dealt to the nodes in proportion to their batches (Eq. 1 of STANNIS).

    ``skew`` of each drive's part are private: successive by ``key``, from its upper end. The rest
    is public: mixed, and dealt to all. 0: every node's data are alike.
    """
    rng = np.random.default_rng([seed, 1])
    sizes = largest_remainder(len(samples), batches)
    mixed = rng.permutation(samples)
    ordered = mixed[np.argsort(key[mixed], kind="stable")]
    own = [0, *(int(skew * size) for size in sizes[1:])]
    public = rng.permutation(ordered[: len(ordered) - sum(own)])
    private = ordered[len(ordered) - sum(own) :]
    cuts = np.cumsum([size - mine for size, mine in zip(sizes, own, strict=True)])[:-1]
    parts = zip(np.split(private, np.cumsum(own)[:-1]), np.split(public, cuts), strict=True)
    return [np.concatenate(part) for part in parts]


def drawn(shard: Indices, batch: int, seed: int, node: int) -> Iterator[Indices]:
    """A node's batches, epoch after epoch, each in an order of its own; the rest of an epoch that
    fills no batch is left out."""
    rng = np.random.default_rng([seed, 2, node])
    while True:
        order = rng.permutation(shard)
        for at in range(0, len(order) - batch + 1, batch):
            yield order[at : at + batch]


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """As the recorded runs were, but without filling memory that is written anyway."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        with common.deterministic(seed):
            yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = filled


def copies(model: nn.Module, count: int, shared: bool) -> list[nn.Module]:
    """The model and further ones with batch statistics of their own; ``shared``: and the very same
    parameters, as synchronous nodes hold equal ones."""
    out = [model]
    for _ in range(count - 1):
        other = deepcopy(model)
        if shared:
            for mine, theirs in zip(model.modules(), other.modules(), strict=True):
                for name, value in mine.named_parameters(recurse=False):
                    setattr(theirs, name, value)
        out.append(other)
    return out


def gradient(
    model: nn.Module, params: Sequence[Tensor], x: Tensor, y: Tensor, counts: Tensor | None = None
) -> tuple[float, np.ndarray]:
    """Mean loss of a batch and its gradient, float32[params]. ``counts``: what each sample counts
    in a mean whose weights are not equal."""
    logits = model(x).flatten(0, -2)
    if counts is None:
        loss = functional.cross_entropy(logits, y.flatten())
    else:
        each = functional.cross_entropy(logits, y.flatten(), reduction="none")
        loss = (each.view(len(y), -1).mean(1) * counts).mean()
    grads = torch.autograd.grad(loss, params)
    return loss.item(), torch.cat([g.reshape(-1) for g in grads]).numpy()


def held(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Parameters in the optimizer's order, which is the trace's."""
    return [p for group in optimizer.param_groups for p in group["params"]]


@torch.no_grad()
def flat(params: Sequence[Tensor]) -> np.ndarray:
    """A copy of the parameters, float32[n]."""
    return torch.cat([p.reshape(-1) for p in params]).numpy().copy()


@torch.no_grad()
def put(params: Sequence[Tensor], vector: np.ndarray, as_gradient: bool = False) -> None:
    """Make the parameters, or their gradients, a copy of float32[n]."""
    at = 0
    for p in params:
        part = torch.from_numpy(vector[at : at + p.numel()]).view(p.shape)
        at += p.numel()
        if not as_gradient:
            p.copy_(part)
            continue
        if p.grad is None:
            p.grad = torch.empty_like(p)  # in the parameter's own layout, as fused updates want it
        p.grad.copy_(part)


@torch.no_grad()
def merge_statistics(models: Sequence[nn.Module], weights: Sequence[float]) -> None:
    """The first model's running statistics become those of all nodes' data together: the weighted
    mean, and the variance with that of the nodes' means."""
    layers = [[m for m in model.modules() if isinstance(m, nn.BatchNorm2d)] for model in models]
    w = torch.tensor(weights, dtype=torch.float32)[:, None]
    for same in zip(*layers, strict=True):
        means = torch.stack([layer.running_mean for layer in same])
        variances = torch.stack([layer.running_var for layer in same])
        mean = (w * means).sum(0)
        same[0].running_mean.copy_(mean)
        same[0].running_var.copy_((w * (variances + means**2)).sum(0) - mean**2)


def scores(model: nn.Module, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """(loss, share that is right) of every sample held out, float64[held] each, by running
    statistics."""
    model.eval()
    with torch.no_grad():
        x, y = samples.pick(samples.held)
        logits = model(x)
        each: Any = functional.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none")
        right = (logits.argmax(-1) == y).double().view(len(y), -1).mean(1)
    model.train()
    each = torch.where(each.isfinite(), each, math.log(logits.shape[-1]))
    return each.view(len(y), -1).double().mean(1).numpy(), right.numpy()
