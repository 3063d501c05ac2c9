"""Do the draws have the distributions that they claim, whatever else is drawn?"""

import math
from fractions import Fraction

import numpy as np
import pytest

from ondie.emu.engine.core import rng as draws
from ondie.kernels.jit import njit


@njit
def many_uniform(seed, n):
    out = np.empty(n)
    for i in range(n):
        out[i] = draws.uniform(draws.page_key(seed, i, 3, 5), 0)
    return out


@njit
def many_binomial(seed, n, bits, p):
    out = np.empty(n, np.int64)
    for i in range(n):
        out[i] = draws.binomial(draws.page_key(seed, i, 0, 0), bits, p)
    return out


@njit
def many_below(seed, n, most):
    out = np.empty(n, np.int64)
    for i in range(n):
        out[i] = draws.below(seed, i, most)
    return out


def excess(observed, expected):
    """(chi-square - degrees of freedom) / its standard deviation, sqrt(2 df)."""
    freedom = len(expected) - 1
    return (((observed - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def exact_masses(bits, p):
    """P(X = k) for all k, from whole numbers: C(n, k) a**k b**(n - k) / (a + b)**n."""
    a, b = p.numerator, p.denominator - p.numerator
    return [float(Fraction(math.comb(bits, k) * a**k * b ** (bits - k), p.denominator**bits))
            for k in range(bits + 1)]  # fmt: skip


def test_mix_is_splitmix64():
    """The published generator, state 0: its first outputs are mix(GAMMA), mix(2 GAMMA), ..."""
    outputs = [int(draws.mix(np.uint64(i * draws.GAMMA & draws.MASK))) for i in (1, 2, 3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_each_part_of_a_key_counts(rng):
    """One bit more in any part changes about half of the 64 bits: mean 32, 4 sigma of 400 keys."""
    for part in range(4):
        distances = []
        for _ in range(400):
            words = [int(w) for w in rng.integers(0, 2**40, 4)]
            other = list(words)
            other[part] ^= 1 << int(rng.integers(0, 40))
            a, b = int(draws.page_key(*words)), int(draws.page_key(*other))
            distances.append((a ^ b).bit_count())
        assert abs(np.mean(distances) - 32) < 4 * math.sqrt(16 / 400)


def test_keys_of_a_drive_differ():
    """2**16 reads of 256 pages: no two keys alike (chance of one by accident: 1e-10)."""
    keys = {int(draws.page_key(1, ppn, 0, read)) for ppn in range(256) for read in range(256)}
    assert len(keys) == 2**16


def test_uniform_numbers_are_uniform(counts):
    n = counts(100_000, 10_000_000)
    u = many_uniform(11, n)
    assert 0 < u.min() and u.max() < 1
    observed = np.histogram(u, 256, (0, 1))[0]
    assert abs(excess(observed, np.full(256, n / 256))) < 5
    # neighbouring pages: the correlation of n pairs is within 5/sqrt(n) of none
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 / math.sqrt(n)


def test_positions_are_uniform(counts):
    n = counts(100_000, 10_000_000)
    observed = np.bincount(many_below(np.uint64(5), n, 1000), minlength=1000)
    assert len(observed) == 1000
    assert abs(excess(observed, np.full(1000, n / 1000))) < 5


@pytest.mark.parametrize(
    ("bits", "p"),
    [
        (40, Fraction(1, 50)),  # mean 0.8: inversion
        (300, Fraction(3, 100)),  # mean 9: inversion, just below the switch
        (300, Fraction(4, 100)),  # mean 12: rejection, just above it
        (2000, Fraction(1, 20)),  # mean 100: rejection
        (64, Fraction(1, 2)),  # a page that holds nothing
    ],
)
def test_binomial_counts(bits, p, counts):
    """Chi-square against exact masses; bins of fewer than 10 expected counts go together."""
    n = counts(100_000, 5_000_000)
    observed = np.bincount(many_binomial(7, n, bits, float(p)), minlength=bits + 1)
    expected = np.array(exact_masses(bits, p)) * n
    keep = expected >= 10
    seen = np.append(observed[keep], observed[~keep].sum())
    wanted = np.append(expected[keep], expected[~keep].sum())
    assert seen.sum() == n
    assert abs(excess(seen, wanted)) < 5


@pytest.mark.parametrize("p", [1e-9, 1e-8, 1e-6, 1e-4, 1.48e-3, 8.5e-3, 0.1, 0.5])
def test_mean_and_variance_on_a_page(p, counts):
    """131072 bits: mean n p and variance n p (1 - p), each within 5 of its standard errors."""
    n, bits = counts(50_000, 2_000_000), 131072
    x = many_binomial(3, n, bits, p)
    mean, variance = bits * p, bits * p * (1 - p)
    assert abs(x.mean() - mean) < 5 * math.sqrt(variance / n)
    # Var(s^2) = (mu4 - sigma^4) / n, mu4 = variance + 3 variance^2 up to terms in p
    assert abs(x.var() - variance) < 5 * math.sqrt((variance + 2 * variance**2) / n)
    assert x.min() >= 0 and x.max() <= bits


@pytest.mark.parametrize("p", [0.0, -0.0])
def test_no_errors_at_rate_zero(p):
    assert not many_binomial(1, 100, 131072, p).any()


def test_order_does_not_matter():
    """Drawn backwards, the same counts."""
    forwards = many_binomial(9, 1000, 4096, 0.01)
    keys = [np.uint64(draws.page_key(9, i, 0, 0)) for i in range(1000)]
    backwards = [draws.binomial(key, 4096, 0.01) for key in reversed(keys)]
    assert backwards == forwards[::-1].tolist()
    assert (many_binomial(10, 1000, 4096, 0.01) != forwards).mean() > 0.8


@pytest.mark.parametrize("k", [0, 1, 5, 9, 10, 11, 100, 131072])
def test_stirlings_rest(k):
    """log k! - (k + 1/2) log(k + 1) + (k + 1) - log(2 pi)/2, whose series is cut at 1/(1680 11^7) =
    3.1e-11; exact log k! by whole numbers up to
    100, by lgamma (absolute error about 1e-10 there) beyond."""
    log_factorial = math.log(math.factorial(k)) if k <= 100 else math.lgamma(k + 1)
    rest = log_factorial - ((k + 0.5) * math.log(k + 1) - (k + 1) + 0.5 * math.log(2 * math.pi))
    assert draws.stirling_rest(k) == pytest.approx(rest, abs=1e-9 if k > 100 else 4e-11)
