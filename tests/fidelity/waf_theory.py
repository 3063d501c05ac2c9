"""Owns: write amplification and the valid pages of blocks by theory, for uniform and for hot/cold
random writes. Does not: simulate. Source: Desnoyers, "Analytic Models of SSD Write Performance"
(ACM TOS 10(2), 2014); Van Houdt, "A mean field model for a class of garbage collection algorithms
in flash-based solid state drives" (SIGMETRICS 2013); Xiang and Kurkoski, "An Improved Analytical
Expression for Write Amplification in NAND Flash" (ICNC 2012). Derived anew below.

Setting. N full blocks of b pages hold rho N b valid pages. Every user write invalidates one of
them, all alike. A victim with J valid pages is chosen by the policy, its J pages are written again,
and b - J user writes use up what it gave; a block that is filled has b valid pages and joins the
full ones. WAF A = b / E[b - J]. Whether collected pages share an open block with the user's makes
no difference as N -> infinity: pages are alike, and a block is open for a time of order 1/N.

Balance. Let x_i be the share of full blocks with i valid pages, and W = E[b - J] the user writes
per victim. Per victim, blocks with at least i valid pages gain 1 (the one that is filled), lose
P(J >= i) to collection, and lose W i x_i / (rho b) to the step from i to i - 1. So

    x_i = P(J < i) / (c i),  i = 1 .. b,   c = W / (rho b) = 1 / (A rho)                         (1)

for every policy. Summing i x_i gives W / c = rho b: the mean is right for any c, and c (that is, A)
follows from rho. What a policy adds is the law of J:

- d choices: J is the least of d draws from x. With the tail s_i = x_i + x_(i+1) + ..., P(J < i) =
  1 - s_i^d, and (1) is s_i + s_i^d / (c i) = s_(i+1) + 1 / (c i), solved from i = b down.
- random: d = 1; E[J] = rho b and A = 1 / (1 - rho) for every b.
- greedy: d -> infinity: s_i^d -> 0 below s_i = 1, so x_i = 1 / (c i) down to the i at which the sum
  reaches 1; there are no blocks below.
- FIFO: a page survives the time between filling and collection with probability p = exp(-c), J is
  binomial(b, p), A = 1 / (1 - p), so p = exp(-(1 - p) / rho): p = -rho W0(-exp(-1/rho) / rho) with
  Lambert's W. (1) holds with it, too. Large blocks lose pages at equal rates, the oldest is the
  emptiest, and greedy tends to this: "Lambert-W form".

Which pages count. rho is that of the blocks among which the victim is chosen, at that moment: not
the free blocks, whose number then is the low-water mark, and not the open ones; see `fill`.
"""

from dataclasses import dataclass

import numpy as np

GREEDY = np.inf
"""As a number of choices."""


@dataclass(frozen=True)
class Stationary:
    """What one policy does to blocks of b pages."""

    waf: float
    blocks: np.ndarray
    """float64[b + 1]: share of the full blocks with i valid pages."""
    victims: np.ndarray
    """float64[b + 1]: share of the victims with i valid pages."""


def fill(pages: float, blocks: int, b: int, low: int, *, shared: bool = False) -> float:
    """Share of valid pages of the full blocks of one unit when it chooses a victim.

    ``pages``: mapped ones of the unit; ``blocks``: all it may use. It collects when ``low`` blocks
    are free, which is seen when a block is opened for the user: that one is empty. With a separate
    open block for collected pages, this one is half full on average. ``shared``: there is none.

    What counts is how many blocks are free when a victim is chosen, here ``low``. A device that
    looks when a block fills, before the next is opened, chooses at a threshold T with T - 1 left
    afterwards: low = T - 1. Under load, when collection falls behind, fewer are free: each such
    block is worth 1 / (blocks - low - 2) of rho.
    """
    opened = 1 if shared else 2
    return (pages - (0 if shared else b / 2)) / ((blocks - low - opened) * b)


def lambert_w(x: float) -> float:
    """Principal branch of Lambert's W, w exp(w) = x, for -1/e <= x < 0, by Halley's iteration."""
    w = -1 + np.sqrt(max(2 * (1 + np.e * x), 0.0))  # the branch point's expansion
    for _ in range(50):
        e = np.exp(w)
        f = w * e - x
        if f == 0 or w <= -1:
            break
        w -= f / (e * (w + 1) - (w + 2) * f / (2 * w + 2))
    return float(w)


def lambert(rho: float) -> float:
    """WAF of FIFO, and of greedy in large blocks."""
    return 1 / (1 + rho * lambert_w(-np.exp(-1 / rho) / rho))


def fifo(rho: float, b: int) -> Stationary:
    """FIFO with blocks of ``b`` pages."""
    waf = lambert(rho)
    c = 1 / (waf * rho)
    i = np.arange(b + 1)
    choose = np.cumsum(np.concatenate([[0.0], np.log(i[:0:-1]) - np.log(i[1:])]))
    victims = np.exp(choose - c * i + (b - i) * np.log(-np.expm1(-c)))
    return _with_blocks(waf, victims, c)


def _with_blocks(waf: float, victims: np.ndarray, c: float) -> Stationary:
    """Equation (1)."""
    i = np.arange(1, len(victims))
    x = np.cumsum(victims)[:-1] / (c * i)
    return Stationary(waf, np.concatenate([[1 - x.sum()], x]), victims)


def mean_field(rho: float, b: int, choices: float = GREEDY) -> Stationary:
    """The best of ``choices`` random blocks of ``b`` pages; 1: random, GREEDY: all of them."""
    low, high = 1e-3 / (b * rho), 10.0 / rho  # c = 1 / (A rho), 1 <= A
    for _ in range(60):
        c = np.sqrt(low * high)
        tail = _tail(c, b, choices)
        if tail[1:].sum() > rho * b:
            low = c
        else:
            high = c
    blocks = tail - np.append(tail[1:], 0)
    below = c * np.arange(1, b + 1) * blocks[1:]  # P(J < i), by (1)
    victims = np.diff(np.concatenate([[0.0], below, [1.0]]))
    return Stationary(1 / (c * rho), blocks, victims)


def _tail(c: float, b: int, choices: float) -> np.ndarray:
    """float64[b + 1]: share of blocks with at least i valid pages, for a given c."""
    s = np.zeros(b + 2)
    s[0] = 1
    for i in range(b, 0, -1):
        right = s[i + 1] + 1 / (c * i)
        low, high = s[i + 1], min(1.0, right)
        if choices == GREEDY:
            low = high
        for _ in range(50 if low < high else 0):
            middle = (low + high) / 2
            if middle + middle**choices / (c * i) < right:
                low = middle
            else:
                high = middle
        s[i] = high
    return s[:-1]


def fifo_regions(rho: float, shares: np.ndarray, writes: np.ndarray) -> float:
    """WAF of FIFO when region r is the share ``shares[r]`` of the pages and gets ``writes[r]`` of
    the user's writes, whatever open blocks they share.

    A page of r is overwritten at the rate writes/shares times the mean one, so that it survives a
    turn of all blocks with p_r = exp(-c writes_r / shares_r), c = 1 / (A rho). Pages of r are
    written (user's and collected) at writes_r / (1 - p_r) per user write: A = sum of that.
    (Desnoyers 2014, least recently written under non-uniform traffic.)
    """
    low, high = 1.0, 1e6
    for _ in range(200):
        a = np.sqrt(low * high)
        if (writes / -np.expm1(-writes / (shares * a * rho))).sum() > a:
            low = a
        else:
            high = a
    return float(a)
