"""Distribution of logical pages over the units of a drive that was overwritten at random.

Owns the number of pages per unit and the assignment of LPNs to units. Does not own the location of
a page within its unit (untimed_ftl.py).
Source: derived in this module; static allocation as in MQSim (FAST 2018): the LPN determines the
plane.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.ftl.precondition.untimed_ftl import below
from ondie.kernels.jit import njit


def static_counts(unit_of: np.ndarray, units: int, edges: np.ndarray) -> np.ndarray:
    """Return the number of pages per unit and region with static allocation, int64[units, regions].

    LPN l is in unit ``unit_of[l mod n]``. ``unit_of``: int64[n]; ``edges``: int64[regions + 1], the
    first LPN of each region and the end of the last region, ascending.
    """
    count = len(unit_of)
    below_edge = (
        edges[:, None] - np.arange(count) + count - 1
    ) // count  # LPNs of each residue below an edge
    counts = np.zeros((units, len(edges) - 1), np.int64)
    for region, of_residue in enumerate(np.diff(below_edge, axis=0)):
        np.add.at(counts[:, region], unit_of, of_residue)
    return counts


def dynamic_counts(
    units: int, pages: np.ndarray, writes: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draw the number of pages per unit and region, int64[units, regions], with dynamic allocation,
    in which writes use the units round-robin, regardless of their LPN.

    ``pages``: int64[regions], pages on the drive; ``writes``: float64[regions], fractions of the
    writes.

    In one round (one write per unit), a unit gains a page of region r with probability q_r and
    loses the fraction q_r U / L_r of its pages of r (U units, L_r pages of r on the drive). The
    deviations x from the mean therefore obey dx_r = -a_r x_r + noise, a_r = q_r U / L_r. The noise
    has variance q_r (1 - q_r) + q_r and covariance -q_r q_s (one page arrives, and a Poisson
    number of pages leaves). The deviations are normal, with stationary covariance noise_rs / (a_r +
    a_s); for one region this is L / 2U.
    The mean over the units is subtracted, because the sum over the units is the drive's total.
    """
    noise = 2 * np.diag(writes) - np.outer(writes, writes)
    rate = writes * units / np.maximum(pages, 1)
    rates = rate[:, None] + rate[None, :]
    covariance = np.divide(noise, rates, out=np.zeros_like(noise), where=rates > 0)
    x = rng.multivariate_normal(np.zeros(len(writes)), covariance, units, method="eigh")
    counts = np.maximum(np.rint(x - x.mean(axis=0) + pages / units), 0).astype(np.int64)
    for region, total in enumerate(pages):
        while miss := int(total - counts[:, region].sum()):  # correct the sum after rounding
            some = rng.permutation(units)[: abs(miss)]
            some = some[counts[some, region] + np.sign(miss) >= 0]
            counts[some, region] += np.sign(miss)
    return counts


@njit
def deal_by_table(l2p, held, lo, hi, unit_of, cursor):
    """Fill l2p[lo:hi] from ``held``, which contains ppn + 1 of the pages of each unit, unit by
    unit. The pages of a unit are taken in the order of ``held``.

    ``unit_of``: int64[n], unit of each LPN by LPN mod n. ``cursor``: int64[units], index in
    ``held`` of the next entry of each unit; the function advances these indexes.
    """
    count = unit_of.size
    at = lo % count
    for lpn in range(lo, hi):
        unit = unit_of[at]
        at = at + 1 if at + 1 < count else 0
        l2p[lpn] = held[cursor[unit]]
        cursor[unit] += 1


@njit
def deal_at_random(l2p, held, lo, hi, left, cursor, rng):
    """Fill l2p[lo:hi] from ``held`` with a uniformly random assignment of LPNs to units.

    ``left``: int64[units], number of LPNs to assign to each unit; the function counts these numbers
    down to 0. ``cursor``: as in deal_by_table().
    """
    units = left.size
    most = left.max()
    redo = units
    for lpn in range(lo, hi):
        unit = below(rng, units)
        while below(rng, most) >= left[unit]:  # unit: in proportion to left[unit]
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
    """Compute p2l as the inverse of l2p[lo:hi]. All other entries of p2l become 0."""
    p2l[:] = 0
    for lpn in range(lo, hi):
        p2l[int(l2p[lpn]) - 1] = lpn + 1
