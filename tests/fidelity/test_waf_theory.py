"""Does the theory of write amplification hold, against itself and against an FTL that writes?"""

import numpy as np
import pytest

from tests.fidelity import plain_ftl
from tests.fidelity.waf_theory import GREEDY, fifo, fifo_regions, fill, lambert, mean_field

OVER_PROVISIONING = (0.07, 0.12, 0.2, 0.28, 0.4)
"""(T - U) / T: write amplification from 7 down to 1.5."""
UNITS, BLOCKS, LOW = 2, 400, 3


def written(op, b, rng, drive_writes=3, **how):
    """A drive overwritten at random, and its logical pages."""
    lpns = int(UNITS * BLOCKS * b * (1 - op))
    ftl = plain_ftl.new(UNITS, BLOCKS, b, LOW, lpns, table=(0, 1), **how)
    plain_ftl.write(ftl, rng.permutation(lpns))
    plain_ftl.write(ftl, rng.integers(0, lpns, drive_writes * lpns))
    return ftl, lpns


def rho(lpns, b, **how):
    return fill(lpns / UNITS, BLOCKS, b, LOW, **how)


# --- the formulas among themselves


def test_published_values():
    """Xiang and Kurkoski's abstract: over-provisioning 0.3 of the user's space gives 2.36."""
    assert lambert(1 / 1.3) == pytest.approx(2.36, abs=0.005)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("b", [1, 2, 16, 256])
def test_random_victims_amplify_by_what_is_free(b):
    """A random block holds rho b valid pages, whatever b: 1 / (1 - rho)."""
    for fill_ in (0.3, 0.8, 0.95):
        assert mean_field(fill_, b, 1).waf == pytest.approx(1 / (1 - fill_), rel=1e-9)


@pytest.mark.parametrize("op", OVER_PROVISIONING)
@pytest.mark.parametrize("choices", [1, 3, 30, GREEDY])
def test_distributions_are_distributions_with_the_right_mean(op, choices):
    b = 64
    for s in (mean_field(1 - op, b, choices), fifo(1 - op, b)):
        pages = np.arange(b + 1)
        for share in (s.blocks, s.victims):
            assert share.min() >= -1e-12 and share.sum() == pytest.approx(1)
        assert s.blocks @ pages == pytest.approx((1 - op) * b)
        assert s.waf == pytest.approx(b / (b - s.victims @ pages))


def test_greedy_is_the_limit_of_many_choices_and_lamberts_of_large_blocks():
    wafs = [mean_field(0.85, 64, d).waf for d in (1, 2, 4, 16, 256, 4096, GREEDY)]
    assert wafs == sorted(wafs, reverse=True) and wafs[-2] / wafs[-1] < 1.003
    gaps = [lambert(0.85) / mean_field(0.85, b).waf - 1 for b in (16, 64, 256, 1024, 4096)]
    assert gaps == sorted(gaps, reverse=True) and 0 < gaps[-1] < 0.002
    assert 0.02 < lambert(0.8) / mean_field(0.8, 64).waf - 1 < 0.08  # why 64 pages are too few


def test_the_balance_is_what_the_process_tends_to():
    """One victim after the other, as shares of blocks, from blocks all alike: after each, W user
    writes take i x_i / (rho b N) of the blocks with i pages one down."""
    b, n, choices, fill_ = 16, 2000, 4, 0.75
    x = np.zeros(b + 1)
    x[12] = 1.0
    pages = np.arange(b + 1)
    for _ in range(30 * n):
        tail = np.append(np.cumsum(x[::-1])[::-1], 0)
        victims = tail[:-1] ** choices - tail[1:] ** choices
        step = (b - victims @ pages) / (fill_ * b * n) * pages * x
        x = x - victims / n - step + np.append(step[1:], 0)
        x[b] += 1 / n
    s = mean_field(fill_, b, choices)
    assert np.abs(x - s.blocks).max() < 1e-3
    assert b / (b - victims @ pages) == pytest.approx(s.waf, rel=2e-3)


def test_regions_that_are_alike_are_one():
    shares = np.array([0.2, 0.8])
    assert fifo_regions(0.8, shares, shares) == pytest.approx(lambert(0.8))
    assert fifo_regions(0.8, shares, shares[::-1]) > 1.1 * lambert(0.8)


# --- against an FTL that writes


@pytest.mark.parametrize("op", OVER_PROVISIONING)
@pytest.mark.parametrize("shared", [False, True])
def test_greedy_in_small_blocks(op, shared, rng):
    """64 pages per block, with and without an open block of its own for collected pages."""
    ftl, lpns = written(op, 64, rng, moved=(0,) if shared else (1,))
    theory = mean_field(rho(lpns, 64, shared=shared), 64)
    measured = plain_ftl.waf(ftl, rng.integers(0, lpns, 5 * lpns))
    assert measured == pytest.approx(theory.waf, rel=0.01)


@pytest.mark.parametrize("op", OVER_PROVISIONING)
def test_greedy_in_large_blocks(op, rng):
    """256 pages per block: Lambert's W is within 3 %, block size brings it within 1 %."""
    ftl, lpns = written(op, 256, rng, drive_writes=2)
    measured = plain_ftl.waf(ftl, rng.integers(0, lpns, 3 * lpns))
    assert measured == pytest.approx(lambert(rho(lpns, 256)), rel=0.03)
    assert measured == pytest.approx(mean_field(rho(lpns, 256), 256).waf, rel=0.01)


@pytest.mark.parametrize("choices", [1, 2, 10, plain_ftl.FIFO])
def test_other_victims(choices, rng):
    ftl, lpns = written(0.2, 32, rng, drive_writes=10, choices=choices)
    at = rho(lpns, 32)
    theory = fifo(at, 32) if choices == plain_ftl.FIFO else mean_field(at, 32, choices)
    measured = plain_ftl.waf(ftl, rng.integers(0, lpns, 10 * lpns))
    assert measured == pytest.approx(theory.waf, rel=0.02)


@pytest.mark.parametrize("choices", [2, plain_ftl.GREEDY, plain_ftl.FIFO])
def test_valid_pages_of_full_blocks(choices, rng):
    """Their distribution, by its greatest distance (Kolmogorov), pooled over many moments."""
    b = 32
    ftl, lpns = written(0.2, b, rng, drive_writes=10, choices=choices)
    seen = np.zeros(b + 1)
    for _ in range(40):
        plain_ftl.write(ftl, rng.integers(0, lpns, lpns // 4))
        seen += np.bincount(ftl.valid[ftl.state == plain_ftl.FULL], minlength=b + 1)
    at = rho(lpns, b)
    if choices == plain_ftl.FIFO:
        theory = fifo(at, b)
    else:
        theory = mean_field(at, b, GREEDY if choices == plain_ftl.GREEDY else choices)
    distance = np.abs(np.cumsum(seen / seen.sum()) - np.cumsum(theory.blocks)).max()
    assert distance < 0.02


@pytest.mark.parametrize("moved", [(1, 1), (2, 3)])
def test_hot_and_cold_pages_under_fifo(moved, rng):
    """80 % of the writes to 20 % of the pages, whatever blocks they share."""
    b = 32
    lpns = int(UNITS * BLOCKS * b * 0.8)
    hot = lpns // 5
    ftl = plain_ftl.new(
        UNITS, BLOCKS, b, LOW, lpns, choices=plain_ftl.FIFO, table=(0, 1),
        user=(0, 0) if moved == (1, 1) else (0, 1), moved=moved, edges=(hot,),
    )  # fmt: skip
    plain_ftl.write(ftl, rng.permutation(lpns))

    def writes(n):
        to_hot = rng.random(n) < 0.8
        return np.where(to_hot, rng.integers(0, hot, n), rng.integers(hot, lpns, n))

    plain_ftl.write(ftl, writes(10 * lpns))
    measured = plain_ftl.waf(ftl, writes(10 * lpns))
    # Four open blocks: two for the user, of which one is just opened and one half full on average.
    at = rho(lpns, b) if moved == (1, 1) else (lpns / UNITS - 1.5 * b) / ((BLOCKS - LOW - 4) * b)
    theory = fifo_regions(at, np.array([0.2, 0.8]), np.array([0.8, 0.2]))
    assert measured == pytest.approx(theory, rel=0.02)
