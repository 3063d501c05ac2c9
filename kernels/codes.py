"""8-bit codes of optimizer states, a scale for each block of 256 numbers.

Owns the maps from codes to numbers, and both directions in NumPy and Numba; C has them in codes.c.
Does not own updates (update.py). Source: Dettmers, Lewis, Shleifer and Zettlemoyer, "8-bit
Optimizers via Block-wise Quantization", ICLR 2022, section 2 and appendix: dynamic quantisation
has a decimal exponent of as many leading zeros as the code has, the bits behind the first one are a
linear fraction; signed for first moments, without sign for second ones.

A block's scale is its largest magnitude; a number becomes the code nearest to its quotient with
the scale, the lower one of two that are as near. A block with a NaN has the scale NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from .errors import unknown
from .exact import bits
from .formats import BLOCK
from .jit import njit

BUCKETS = 3073  # ONDIE_CODE_BUCKETS
LEAST = 0x3380  # upper 16 bits of 2^-24
MAPS = ("dynamic", "linear")


@dataclass(frozen=True)
class Codes:
    """A map: value float32[256], rising; bucket int32[2 * BUCKETS] as
    csrc/ondie.h says at ondie_codes; zero: that of the least magnitude; middle float32[255]: the
    largest float not above the mean of two values."""

    value: NDArray[np.float32]
    middle: NDArray[np.float32]
    bucket: NDArray[np.int32]
    zero: int


def dynamic_values(signed: bool) -> NDArray[np.float64]:
    """The 256 values of dynamic quantisation, rising. float64[256].

    With e leading zeros the value is 10^-e times the middle of one of equal parts of 0.1 .. 1: 64
    of them (128 without sign) for e = 0, half as many for each zero more, down to 1 (2) for e = 6.
    Then 0 and 1 are exact.
    """
    found = [0.0, 1.0]
    for zeros in range(7):
        parts = 2 ** (6 - zeros) * (1 if signed else 2)
        edges = np.linspace(0.1, 1.0, parts + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0**-zeros
        found += middles.tolist()
        if signed:
            found += (-middles).tolist()
    return np.sort(np.array(found))


def linear_values(signed: bool) -> NDArray[np.float64]:
    """Equal steps to 1, float64[256]: from -1, with a code more below, or from 1/256.

    Second moments have no 0, after Li, Chen and Zhu, NeurIPS 2023: what is divided by the root of
    one that was rounded to 0 becomes as large as 1 / eps, and training ends there.
    """
    return np.arange(-128, 128) / 127 if signed else np.arange(1, 257) / 256


@cache
def codes(name: str, signed: bool) -> Codes:
    """The map "dynamic" or "linear", of signed numbers or of others."""
    if name not in MAPS:
        raise unknown("map", name, MAPS)
    exact = dynamic_values(signed) if name == "dynamic" else linear_values(signed)
    value = exact.astype(np.float32)
    mean = (value[:-1].astype(np.float64) + value[1:]) / 2
    middle = mean.astype(np.float32)
    middle = np.where(middle > mean, np.nextafter(middle, np.float32(-np.inf)), middle)
    buckets = [_buckets(middle, negative) for negative in (False, True)]
    zero = int(np.abs(value).argmin())
    return Codes(value, middle, np.concatenate(buckets), zero)


def _buckets(middle: NDArray[np.float32], negative: bool) -> NDArray[np.int32]:
    """Of each bucket of magnitudes: the code at its lower end, and where in it that changes."""
    edges = (np.arange(LEAST, LEAST + BUCKETS, dtype=np.uint32) << 16).view(np.float32)
    edges[0] = 0.0
    words = np.abs(middle).view(np.uint32).astype(np.int64)
    if negative:  # a magnitude that reaches a middle has the lower code
        code = np.searchsorted(middle, -edges, side="left")
        limits = words[middle < 0]
    else:
        code = np.searchsorted(middle, edges, side="left")
        limits = words[middle >= 0] + 1
    where = (limits >> 16) - LEAST
    assert (where >= 0).all(), "a code changes below the first bucket"
    inside = where < BUCKETS
    at = np.full(BUCKETS, 1 << 16, dtype=np.int64)
    # A middle at a bucket's lower end has been passed by all of it.
    assert np.unique(where[inside]).size == inside.sum(), "two codes change in one bucket"
    at[where[inside]] = limits[inside] & 0xFFFF
    before = np.zeros(BUCKETS, np.int64)
    before[where[inside]] = at[where[inside]] == 0
    return ((code + np.where(negative, before, -before)) << 17 | at).astype(np.int32)


def numpy_decode(q: np.ndarray, scale: np.ndarray, m: Codes) -> NDArray[np.float32]:
    return m.value[q] * np.repeat(scale, BLOCK)[: q.size]


def numpy_encode(x: np.ndarray, q: np.ndarray, scale: np.ndarray, m: Codes) -> None:
    padded = np.zeros(scale.size * BLOCK, np.float32)
    padded[: x.size] = x
    blocks = np.abs(padded).reshape(-1, BLOCK)
    scale[:] = np.where(np.isnan(blocks).any(1), np.float32(np.nan), blocks.max(1, initial=0))
    y = x / np.repeat(scale, BLOCK)[: x.size]
    found = np.searchsorted(m.middle, y, side="left")
    q[:] = np.where(np.isnan(y), m.zero, found)


@njit
def numba_decode(q, scale, x, value):
    for i in range(q.size):
        x[i] = value[q[i]] * scale


@njit
def numba_encode(x, q, bucket, zero):
    scale = np.float32(0)
    broken = False
    for i in range(x.size):
        size = np.abs(x[i])
        broken |= size != size
        if size > scale:
            scale = size
    if broken:
        scale = np.float32(np.nan)
    for i in range(x.size):
        word = bits(x[i] / scale)
        size = word & 0x7FFFFFFF
        if size > 0x7F800000:
            q[i] = zero
            continue
        at = max((size >> 16) - LEAST, 0)
        if word < 0:
            at += BUCKETS
        code = bucket[at] >> 17
        if size & 0xFFFF >= bucket[at] & 0x1FFFF:
            code += 1 if word >= 0 else -1
        q[i] = code
    return scale
