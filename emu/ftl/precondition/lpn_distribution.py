"""Which unit of a drive holds which logical page, when the drive has been overwritten at random.

Owns the number of pages per unit and the deal of LPNs to units. Does not own where in its unit a
page is (untimed.py). Source: derived here; static allocation as in MQSim (FAST 2018): the LPN names
the plane.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.ftl.precondition.untimed_ftl import below
from ondie.kernels.jit import njit


def static_counts(unit_of: np.ndarray, units: int, edges: np.ndarray) -> np.ndarray:
    """int64[units, regions] of pages when LPN l is held by unit ``unit_of[l mod n]``.

    ``unit_of``: int64[n]; ``edges``: int64[regions + 1], ascending LPNs.
    """
    n = len(unit_of)
    below_edge = (edges[:, None] - np.arange(n) + n - 1) // n  # LPNs of each residue below an edge
    counts = np.zeros((units, len(edges) - 1), np.int64)
    for r, of_residue in enumerate(np.diff(below_edge, axis=0)):
        np.add.at(counts[:, r], unit_of, of_residue)
    return counts


def dynamic_counts(
    units: int, pages: np.ndarray, writes: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """int64[units, regions] of pages when writes go round the units, whatever their LPN.

    ``pages``: int64[regions] on the drive; ``writes``: float64[regions], shares of the writes.

    In one round, a write per unit, a unit gains a page of region r with probability q_r and loses
    the share q_r U / L_r of those it has. Its deviations x from the mean therefore obey dx_r =
    -a_r x_r + noise, a_r = q_r U / L_r, with noise of variance q_r (1 - q_r) + q_r and covariance
    -q_r q_s (one page comes, Poisson many go): normal, with stationary covariance noise_rs /
    (a_r + a_s), for one region L / 2U. What the units have in common is taken off: their sum is
    the drive's.
    """
    noise = 2 * np.diag(writes) - np.outer(writes, writes)
    rate = writes * units / np.maximum(pages, 1)
    rates = rate[:, None] + rate[None, :]
    covariance = np.divide(noise, rates, out=np.zeros_like(noise), where=rates > 0)
    x = rng.multivariate_normal(np.zeros(len(writes)), covariance, units, method="eigh")
    counts = np.maximum(np.rint(x - x.mean(axis=0) + pages / units), 0).astype(np.int64)
    for r, total in enumerate(pages):
        while miss := int(total - counts[:, r].sum()):  # what rounding left
            some = rng.permutation(units)[: abs(miss)]
            some = some[counts[some, r] + np.sign(miss) >= 0]
            counts[some, r] += np.sign(miss)
    return counts


@njit
def deal_by_table(l2p, held, lo, hi, unit_of, cursor):
    """l2p[lo:hi] from the lists ``held`` of the units' ppn + 1, in order of their LPNs.

    ``cursor``: int64[units], next entry of each unit in ``held``; moves on.
    """
    n = unit_of.size
    at = lo % n
    for lpn in range(lo, hi):
        unit = unit_of[at]
        at = at + 1 if at + 1 < n else 0
        l2p[lpn] = held[cursor[unit]]
        cursor[unit] += 1


@njit
def deal_at_random(l2p, held, lo, hi, left, cursor, rng):
    """The same, every assignment of ``left`` (int64[units], used up) LPNs to units alike."""
    units = left.size
    most = left.max()
    redo = units
    for lpn in range(lo, hi):
        unit = below(rng, units)
        while below(rng, most) >= left[unit]:  # a unit with probability in proportion to its rest
            unit = below(rng, units)
        left[unit] -= 1
        redo -= 1
        if redo == 0 or left[unit] + 1 == most:
            most = max(1, left.max())
            redo = units
        l2p[lpn] = held[cursor[unit]]
        cursor[unit] += 1


@njit
def invert(l2p, p2l, lo, hi):
    """p2l from l2p[lo:hi], all else 0."""
    p2l[:] = 0
    for lpn in range(lo, hi):
        p2l[int(l2p[lpn]) - 1] = lpn + 1
