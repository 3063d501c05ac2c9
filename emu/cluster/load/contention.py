"""Core contention: training speed of a node on the cores that other programs leave free.

Owns the curve of speed over free cores, the derivation of a node's compute time from the speed of a
synchronous step, and the two curves that are fitted to published speeds. Does not own the load over
time (trace.py, on_off.py) or batches (hypertune/controller.py).
Source: HyperTune (HeydariGorji et al.): six speeds of training MobileNetV2 (THREE to THREE_2_LEFT
and ALONE to WITH_DRIVES_2_LEFT), all of which were used for the fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ondie.emu.cluster.collectives import ring
from ondie.emu.units import InputError

CORES = 8
"""Number of cores of a node in HyperTune's published runs."""
BATCH, DRIVE_BATCH, LAGUNAS = 180, 15, 36
GRADIENT_BYTES = 4 * 3_400_000
"""Size of the FP32 gradient of MobileNetV2, with the number of parameters that HyperTune states,
bytes."""
ALONE, WITH_DRIVES, WITH_DRIVES_2_LEFT = 33.4, 99.83, 49.26
"""Published speeds of synchronous training in img/s: a host alone, a host with 36 Laguna drives,
and the same host and drives while other programs take 6 of the host's 8 cores."""
THREE, THREE_4_LEFT, THREE_2_LEFT = 93.4, 75.6, 53.3
"""Published speeds of synchronous training in img/s: three equal nodes, the same nodes while other
programs take 4 of the 8 cores of one node, and the same nodes while other programs take 6 of these
cores."""


@dataclass(frozen=True)
class Slowdown:
    """Training speed of a node by the fraction of its cores that other programs leave free:
    ``points`` of (fraction, speed / speed with all cores).

    The time of a sample is linear in 1 / fraction between points, as in Amdahl's law. Below the
    smallest fraction, the line continues with the slope of the nearest segment. (1, 1) is an
    implicit point. Raises InputError if there are no points, if a fraction or ratio is outside 0 to
    1, if the fractions do not ascend, or if fewer cores would be faster.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        before = (0.0, 0.0)
        for share, ratio in self.points:
            if not (0 < share < 1 and 0 < ratio <= 1):
                raise InputError(
                    f"speed {ratio} on {share} of the cores: the fraction of cores must be between "
                    f"0 and 1, and the relative speed above 0 and at most 1"
                )
            if share <= before[0] or ratio < before[1]:
                raise InputError(
                    f"speed {ratio} on {share} of the cores, after {before[1]} on {before[0]} of "
                    f"the cores: the fractions of cores must ascend, and the speeds must not fall"
                )
            before = share, ratio
        if not self.points:
            raise InputError(
                "points = (): a speed on fewer cores is missing; give at least one pair "
                "(fraction of the cores, relative speed)"
            )

    def ratio(self, share: np.ndarray) -> np.ndarray:
        """Return the speed while the fraction ``share`` of the cores is free, relative to the speed
        with all cores, float64. ``share``: 0 to 1, any shape. Raises InputError if a fraction is
        out of range."""
        share = np.asarray(share, np.float64)
        bad = ~((share >= 0) & (share <= 1))
        if bad.any():
            raise InputError(f"fraction of free cores {share[bad].flat[0]}: must be from 0 to 1")
        inverse = np.array([1.0, *(1 / free for free, _ in reversed(self.points))])
        times = np.array([1.0, *(1 / speed for _, speed in reversed(self.points))])
        slope = (times[-1] - times[-2]) / (inverse[-1] - inverse[-2])
        with np.errstate(divide="ignore", over="ignore"):
            inverse_share = 1 / share
        beyond = np.maximum(inverse_share - inverse[-1], 0)
        return 1 / (np.interp(inverse_share, inverse, times) + slope * beyond)


@dataclass(frozen=True)
class Link:
    """Network link between nodes: its name and the payload rate in each direction, bytes per
    second."""

    name: str
    bytes_per_s: float

    def ring_s(self, n_bytes: int, nodes: int) -> float:
        """Return the time of a ring all-reduce of ``n_bytes`` bytes over ``nodes`` nodes in
        seconds, excluding latency. Raises InputError if the rate of the link is not positive."""
        if not (math.isfinite(self.bytes_per_s) and self.bytes_per_s > 0):
            raise InputError(
                f"{self.name}: rate {self.bytes_per_s} B/s; must be a finite number above 0"
            )
        return ring.steps(nodes) * ring.piece_bytes(n_bytes, nodes) / self.bytes_per_s


def own_seconds(samples_per_s: float, samples: int, sync_s: float) -> float:
    """Return the compute time of the slowest node in a synchronous step, seconds.

    ``samples``: number of samples of all nodes in a step. ``samples_per_s``: speed of all nodes
    together. ``sync_s``: time of the gradient synchronization in a step, seconds. Raises InputError
    if the synchronization takes the whole step.
    """
    seconds = samples / samples_per_s - sync_s
    if not seconds > 0:
        raise InputError(
            f"{sync_s:g} s of synchronization in a step of {samples / samples_per_s:g} s; "
            f"must be less than the step"
        )
    return seconds


TCP = 1448 / 1538
"""TCP payload of a full Ethernet frame, divided by the bytes that the frame takes on the wire.
These include the headers with TCP timestamps, the preamble and the interpacket gap."""
ETHERNET = Link("1 Gb/s Ethernet", TCP * 1e9 / 8)
"""Network link between the three nodes of HyperTune's published run [assumed]; the paper does not
name the network.

The assumed rate is between that of SLOW and 10 Gb/s. At 10 Gb/s, the result of the validation check
"4 cores taken" is a batch of 145.6, which is outside the allowed range 140 +- 5.
"""
FAST = Link("10 Gb/s Ethernet", TCP * 1e10 / 8)
SLOW = Link(
    "rest of the step of a node alone at 33.4 img/s",
    ring.steps(3) * ring.piece_bytes(GRADIENT_BYTES, 3) / (3 * BATCH / THREE - BATCH / ALONE),
)
"""Slowest assumed network link between the three nodes of HyperTune's published run, on which the
ring all-reduce takes 0.39 s. This time is the step time minus the compute time, if the three nodes
are as fast as the host of the other published runs."""


@dataclass(frozen=True)
class Published:
    """Cluster of a published run of HyperTune, with fitted compute speeds and slowdown.

    ``batches``, ``speeds``, ``counts``: tuned batch size of a node, compute speed of a node
    (samples/s) and number of nodes, for each kind of node. ``sync_s``: synchronization time of a
    step, seconds. ``slowdown``: slowdown model of the node that also runs other programs.
    """

    batches: tuple[int, ...]
    speeds: tuple[float, ...]
    counts: tuple[int, ...]
    sync_s: float
    slowdown: Slowdown

    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the tuned batches and the compute speeds (samples/s) of all nodes, int64[n] and
        float64[n], in the order of the kinds."""
        return np.repeat(np.array(self.batches), self.counts), np.repeat(
            np.array(self.speeds), self.counts
        )


def three_nodes(link: Link = ETHERNET) -> Published:
    """Return the published cluster of three equal nodes, which train on 3 x 180 samples per step.

    A step takes 5.782 s. The compute time of a node is this time minus the time of the ring
    all-reduce over ``link``.
    """
    sync_s = link.ring_s(GRADIENT_BYTES, 3)
    whole, half, quarter = (
        own_seconds(speed, 3 * BATCH, sync_s) for speed in (THREE, THREE_4_LEFT, THREE_2_LEFT)
    )
    curve = Slowdown(((2 / CORES, whole / quarter), (4 / CORES, whole / half)))
    return Published((BATCH,), (BATCH / whole,), (3,), sync_s, curve)


def host_and_lagunas(margin: float = 0.2) -> Published:
    """Return the published cluster of a host with 36 Laguna drives, which together train on 720
    samples per step.

    A step takes 7.212 s, of which the host computes for 5.389 s. The speed of a Laguna is not
    published. By the tuning rule, the host's batch takes (1 + margin)
    times as long as a Laguna's batch. The host's slowdown includes the cost of relaying messages.
    """
    samples = BATCH + LAGUNAS * DRIVE_BATCH
    host_s = BATCH / ALONE
    sync_s = samples / WITH_DRIVES - host_s
    curve = Slowdown(((2 / CORES, host_s / own_seconds(WITH_DRIVES_2_LEFT, samples, sync_s)),))
    speeds = ALONE, DRIVE_BATCH * (1 + margin) / host_s
    return Published((BATCH, DRIVE_BATCH), speeds, (1, LAGUNAS), sync_s, curve)
