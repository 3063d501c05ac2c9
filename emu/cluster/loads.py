"""Load traces: the share of a node's cores that other programs leave free, step by step.

Owns the drawing of traces: bursts, short jobs, ramps, periods. Does not own the effect of a load on
speed (load/contention.py). Source: none; the papers publish no trace of their interference.

A trace is float64[steps, n], the free share of each node's cores, from 1/8 to 1. Nodes and traces
differ by their random draws. Lengths are in steps [assumed], given with each kind.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.units import InputError, nearest

CORES = 8


def bursts(steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw jobs that take 2 to 6 of 8 cores for 10 to 80 steps, 20 to 200 steps apart."""
    share = np.ones(steps)
    at = int(rng.integers(5, 100))
    while at < steps:
        length = int(rng.integers(10, 81))
        share[at : at + length] = 1 - rng.integers(2, 7) / CORES
        at += length + int(rng.integers(20, 201))
    return share


def short_jobs(steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw jobs of 2 to 15 steps that take 1 to 6 of 8 cores.

    Such jobs end at about the time when a controller can react to them.
    """
    share = np.ones(steps)
    at = int(rng.integers(5, 100))
    while at < steps:
        length = int(rng.integers(2, 16))
        share[at : at + length] = 1 - rng.integers(1, 7) / CORES
        at += length + int(rng.integers(2, 21))
    return share


def ramps(steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw loads that grow to 4 to 7 of 8 cores, hold, and fall, each over 10 to 60 steps."""
    share = np.ones(steps)
    at = int(rng.integers(5, 100))
    while at < steps:
        lengths = rng.integers(10, 61, 3)
        corners = at + np.concatenate([[0], np.cumsum(lengths)])
        low = 1 - rng.integers(4, 8) / CORES
        inside = np.arange(at, min(int(corners[-1]), steps))
        share[inside] = np.interp(inside, corners, [1, low, low, 1])
        at = int(corners[-1] + rng.integers(20, 101))
    return share


def periodic(steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a sine between all cores and 2 to 4 of 8, with a period of 20 to 120 steps."""
    depth = rng.integers(4, 7) / CORES
    phase = 2 * np.pi * (np.arange(steps) / rng.integers(20, 121) + rng.random())
    wave: np.ndarray = 1 - depth * (1 + np.sin(phase)) / 2
    return wave


KINDS = {"bursts": bursts, "short jobs": short_jobs, "ramps": ramps, "periodic": periodic}


def trace(
    kind: str, steps: int, nodes: int, interrupted: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the free shares of the cores of ``nodes`` nodes, the first ``interrupted`` loaded.

    Each loaded node has a separate trace. Raises InputError for an unknown kind and for more
    interrupted nodes than nodes.
    """
    if kind not in KINDS:
        raise InputError(
            f"unknown load {kind!r}; nearest: {nearest(kind, KINDS) or 'none'} "
            f"(of {', '.join(KINDS)})"
        )
    if not 0 <= interrupted <= nodes:
        raise InputError(f"{interrupted} interrupted nodes of {nodes}: 0 to {nodes} is right")
    share = np.ones((steps, nodes))
    for node in range(interrupted):
        share[:, node] = KINDS[kind](steps, rng)
    return share
