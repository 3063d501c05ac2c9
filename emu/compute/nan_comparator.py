"""OptimStore's NaN comparator: replaces infinities and NaNs with finite values.

Owns the comparator's effect on values. Does not own the source of values (paths/payload.py) or the
bit errors (ftl/reservoir.py).
Source: OptimStore (HPCA 2023): ECC is bypassed except for a NaN comparator that flips the top bit
of the exponent.

The position of the comparator is not published. Assumption: the comparator processes every value of
the optimizer's pages in zero time when the value leaves the registers for the processing element or
for the host. If the dies have a cipher or a randomizer (pe.cipher, pe.randomiser), the comparator
is between that engine and the processing element. In that case, it does not process pages sent to
the host, because their words are still encrypted or randomized.

If all eight bits of the exponent are 1 (infinity, any NaN), the top bit becomes 0 (bit 30 in FP32,
bit 14 in BF16). The exponent is then 127; sign and mantissa are unchanged. Infinity becomes 1 with
the sign of the infinity. A NaN becomes a value between 1 and 2 with the sign of the NaN. All finite
values are unchanged, including very large values such as 2**127.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.config.config import Config


def sees_host(cfg: Config) -> bool:
    """Return True if a NaN comparator in the drive processes the data that is sent to the host."""
    layers = "die" in (cfg.pe.cipher, cfg.pe.randomiser)
    return cfg.pe.protection == "nan_comparator" and not layers


class Word(NamedTuple):
    """Bit layout of a floating-point type: unsigned integer type of the same size, mask of the
    exponent, mask of the exponent's top bit."""

    dtype: np.dtype
    exponent: np.unsignedinteger
    top: np.unsignedinteger


WORDS = {
    np.dtype(np.float32): Word(np.dtype(np.uint32), np.uint32(0x7F80_0000), np.uint32(0x4000_0000)),
    np.dtype(np.uint16): Word(np.dtype(np.uint16), np.uint16(0x7F80), np.uint16(0x4000)),
}
"""Bit layouts by dtype of the values. Arrays of BF16 values have dtype uint16."""


def special(values: np.ndarray) -> np.ndarray:
    """Return a mask that is True where ``values`` contains an infinity or a NaN, bool[n].
    ``values``: float32[n], or BF16 bits as uint16[n]."""
    word = WORDS[values.dtype]
    found: np.ndarray = (values.view(word.dtype) & word.exponent) == word.exponent
    return found


def compare(values: np.ndarray) -> int:
    """Replace infinities and NaNs with finite values in place. Return the number of replaced
    values. ``values``: as in :func:`special`.
    """
    found = special(values)
    n = int(np.count_nonzero(found))
    if n:
        word = WORDS[values.dtype]
        values.view(word.dtype)[found] ^= word.top
    return n
