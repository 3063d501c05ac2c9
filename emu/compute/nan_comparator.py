"""OptimStore's comparator: a value whose exponent is all ones is made finite.

Owns what it does to values. Does not own where values come from (paths/payload.py) or which wrong
bits there are (backend/bare.py).
Source: OptimStore (HPCA 2023): ECC is bypassed but for a NaN comparator that flips the exponent's
top bit. Where it sits is not published: taken to see every value of the optimizer's pages as it
leaves the registers, for the processing element or for the host, in no time of its own.

Exactly: with the eight bits of the exponent all 1 (infinity, any NaN), bit 30 becomes 0. The
exponent is then 127, sign and mantissa stay: infinity becomes 1, a NaN lies between 1 and 2, with
its sign. All else passes as it is, however large: 2**127 is no concern of a NaN comparator.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Word(NamedTuple):
    """The bits of a value as a whole number: their type, the exponent, its top bit."""

    dtype: np.dtype
    exponent: np.unsignedinteger
    top: np.unsignedinteger


WORDS = {
    np.dtype(np.float32): Word(np.dtype(np.uint32), np.uint32(0x7F80_0000), np.uint32(0x4000_0000)),
    np.dtype(np.uint16): Word(np.dtype(np.uint16), np.uint16(0x7F80), np.uint16(0x4000)),
}
"""By type of values. uint16: BF16."""


def special(values: np.ndarray) -> np.ndarray:
    """Which of float32[n], or of BF16's bits as uint16[n], have an exponent of ones: infinities and
    NaNs, bool[n]."""
    word = WORDS[values.dtype]
    found: np.ndarray = (values.view(word.dtype) & word.exponent) == word.exponent
    return found


def compare(values: np.ndarray) -> int:
    """Make such values finite in place; returns how many were not."""
    found = special(values)
    n = int(np.count_nonzero(found))
    if n:
        word = WORDS[values.dtype]
        values.view(word.dtype)[found] ^= word.top
    return n
