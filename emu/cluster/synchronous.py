"""Synchronous steps: what a fleet of nodes does while somebody else uses some of their cores.

Owns the time of a step of n nodes, all waiting for the slowest, and what is observed of it, with
noise. Does not own the decision (hypertune.py), data, energy or the network: `sync_s` is given.
Source: as in HyperTune: training is synchronous, and a node's speed is that of its own computation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ondie.emu.cluster.hypertune.controller import Change, HyperTune
from ondie.emu.cluster.load.contention import Slowdown
from ondie.emu.units import InputError


@dataclass(frozen=True)
class Nodes:
    """n nodes: own speeds, samples per second float64[n], with all cores and at every batch; how
    they slow on fewer; and the seconds that a step synchronises for."""

    speeds: np.ndarray
    sync_s: float
    slowdown: Slowdown


@dataclass(frozen=True)
class Noise:
    """Of what is observed: standard deviations of speeds, relative, and of shares of cores. What
    really happens has none."""

    speed: float = 0.0
    cpu: float = 0.0


@dataclass
class Steps:
    """What happened, by step."""

    samples: np.ndarray
    """Of all nodes, int64[steps]."""
    seconds: np.ndarray
    """float64[steps]."""
    epochs: int = 0
    """Finished."""
    dropped: int = 0
    """Samples of epochs that a change ended."""
    changes: list[tuple[int, Change]] = field(default_factory=list)
    """(step after which it came, change)."""

    def rate(self, first: int = 0) -> float:
        """Samples per second from step ``first`` on."""
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
    """One step for each row of ``share``, float64[steps, n]: the cores left to each node.

    ``batches``: int64[n], at first. ``epoch``: samples of one, rounded up to whole steps. Without
    ``tune`` nobody decides anything. ``rng``: for noise.
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
