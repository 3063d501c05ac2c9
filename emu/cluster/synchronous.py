"""Synchronous steps of a cluster while other programs use some of its cores.

Owns the time of a step of n nodes, which all wait for the slowest, and its noisy observations. Does
not own the decision (hypertune/controller.py), data, energy or the network: `sync_s` is an input.
Source: HyperTune: training is synchronous, and a node's speed is that of its own computation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ondie.emu.cluster.hypertune.controller import Change, HyperTune
from ondie.emu.cluster.load.contention import Slowdown
from ondie.emu.units import InputError


@dataclass(frozen=True)
class Nodes:
    """n nodes of a cluster.

    ``speeds``: own speeds with all cores, equal at every batch (samples/s), float64[n]. ``sync_s``:
    synchronization time of a step (s). ``slowdown``: relative speed on fewer cores.
    """

    speeds: np.ndarray
    sync_s: float
    slowdown: Slowdown


@dataclass(frozen=True)
class Noise:
    """Noise of observations: standard deviations of speeds (relative) and of shares of cores.

    The simulated execution itself has no noise.
    """

    speed: float = 0.0
    cpu: float = 0.0


@dataclass
class Steps:
    """Results by step."""

    samples: np.ndarray
    """Samples of all nodes, int64[steps]."""
    seconds: np.ndarray
    """Time of each step (s), float64[steps]."""
    epochs: int = 0
    """Number of finished epochs."""
    dropped: int = 0
    """Samples of epochs that a change ended early."""
    changes: list[tuple[int, Change]] = field(default_factory=list)
    """(step after which the change was made, change)."""

    def rate(self, first: int = 0) -> float:
        """Return the samples per second from step ``first`` on."""
        return float(self.samples[first:].sum() / self.seconds[first:].sum())


def simulate(
    nodes: Nodes,
    batches: np.ndarray,
    share: np.ndarray,
    epoch: int,
    tune: HyperTune | None = None,
    noise: Noise = Noise(),
    rng: np.random.Generator | None = None,
) -> Steps:
    """Simulate one step per row of ``share``, float64[steps, n]: the free share of each node's
    cores.

    ``batches``: initial batches, int64[n]. ``epoch``: samples of an epoch, rounded up to whole
    steps. ``tune``: controller; without it, batches stay constant. ``rng``: generator for the
    noise.
    """
    if epoch < 1:
        raise InputError(f"an epoch of {epoch} samples: 1 or more is right")
    draw = rng or np.random.default_rng(0)
    count, n = share.shape
    out = Steps(np.zeros(count, np.int64), np.zeros(count))
    done, left = 0, epoch
    ratio = nodes.slowdown.ratio(share)
    for at in range(count):
        own = nodes.speeds * ratio[at]
        total = int(batches.sum())
        out.samples[at] = total
        with np.errstate(divide="ignore"):
            out.seconds[at] = float((batches / own).max()) + nodes.sync_s
        steps = done + -(-left // total)
        change = None
        if tune is not None:
            seen = own * np.maximum(1 + noise.speed * draw.standard_normal(n), 0)
            cpu = np.clip(share[at] + noise.cpu * draw.standard_normal(n), 0, 1)
            change = tune.observe(done, steps, seen, cpu)
        done, left = done + 1, left - total
        if change is not None:
            out.changes.append((at, change))
            batches = change.batches
            if change.ends_epoch and left > 0:
                out.dropped += left
                done, left = 0, epoch
        if left <= 0:
            out.epochs += 1
            done, left = 0, epoch
    return out
