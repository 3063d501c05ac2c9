"""Is the fused multiply-add of the definition really rounded once? Against rational arithmetic."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.kernels import exact
from ondie.kernels.jit import njit
from tests.numerics.harness import same_bits, values

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@njit
def compiled_fma(a, b, c):
    return exact.fma(a, b, c)


def exactly(a, b, c):
    """a * b + c rounded once to float32, by integers. Zero keeps no sign here."""
    value = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent  # now 2^exponent <= size < 2^(exponent + 1)
    unit = Fraction(2) ** max(exponent - 23, -149)
    rounded = round(size / unit) * unit  # round() of a Fraction is to nearest even
    rounded = float("inf") if rounded >= Fraction(2) ** 128 else float(rounded)
    return rounded if value > 0 else -rounded


def both(a, b, c):
    a, b, c = (np.float32(x) for x in (a, b, c))
    with np.errstate(all="ignore"):
        return float(exact.fused(a, b, c)), float(compiled_fma(a, b, c))


@given(FLOATS, FLOATS, FLOATS)
def test_random(a, b, c):
    want = exactly(a, b, c)
    assert all(got == want for got in both(a, b, c))


def test_false_ties():
    """c at or next to a power of two, a * b half an ulp of it, and a hair (2^-70) more or less.

    Rounding the sum to float64 first gives a tie that was none: with a = 1 - 2^-23,
    b = (1 + 2^-23) 2^-24 and c = 1 + 2^-23 the product is 2^-24 - 2^-70, so the sum rounds down.
    """
    ulp = 2.0**-23
    factors = [1.0, 1.5, *(1 + k * ulp for k in (-3, -2, -1, -0.5, 1, 2, 3))]
    wrong_if_rounded_twice = 0
    for x, y, sign, c, shift in product(
        factors, factors, (1, -1), (1.0, 1 + ulp, 1 + 2 * ulp, 2 - ulp, -1.0), (-23, -24, -25, -48)
    ):
        a, b = np.float32(x * sign), np.float32(y * 2.0**shift)
        want = exactly(a, b, np.float32(c))
        assert both(a, b, c) == (want, want)
        twice = float(np.float32(float(a) * float(b) + c))
        wrong_if_rounded_twice += twice != want
    assert wrong_if_rounded_twice >= 24  # the cases bite


def test_denormal_results_are_rounded_once():
    """Products just above and below half the smallest denormal, 2^-150."""
    for x in (1.0, 1 + 2.0**-23, 1 - 2.0**-24):
        for c in (0.0, 2.0**-149, 2.0**-126, -(2.0**-126)):
            a, b = np.float32(x * 2.0**-75), np.float32(2.0**-75)
            want = exactly(a, b, np.float32(c))
            assert both(a, b, c) == (want, want)


@pytest.mark.parametrize("kind", ["wide", "zeros", "denormals", "infinities", "nans", "bits"])
def test_arrays_agree_with_compiled_code(kind, rng, counts):
    """Signs of zeros included."""

    @njit(cache=False)
    def over(a, b, c, out):
        for i in range(a.size):
            out[i] = exact.fma(a[i], b[i], c[i])

    n = counts(20_000, 2_000_000)
    a, b, c = (values(rng, n, kind) for _ in range(3))
    with np.errstate(all="ignore"):
        c[::3] = (-a * b)[::3]  # cancellation
    out = np.empty(n, np.float32)
    over(a, b, c, out)
    with np.errstate(all="ignore"):
        assert same_bits(exact.fused(a, b, c), out)
