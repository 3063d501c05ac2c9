"""Soft decision: reliability of bits from two more reads, one on either side of the reference
voltage.

Owns the model of the three reads, their voltages, and the messages to the decoder. Does not own the
decoder (kernels/ldpc.py) or the bit errors of the middle read (bit_errors.py).
Source: J. Wang et al., "Enhanced Precision Through Multiple Reads for LDPC Decoding in Flash
Memories", IEEE JSAC 32, 2014 (voltages that maximize mutual information).

A cell of one bit has the level +1 (bit 0) or -1 (bit 1) plus normal noise. The probability that a
read at 0 is wrong is the raw bit error rate. The other two reads are at -d and d. A bit is
*unreliable* if these two reads differ. The message of a bit is proportional to its log-likelihood
ratio. Its sign is that of the middle read, and its magnitude is STRONG if the bit is reliable.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ondie.emu.engine.core.rng import uniform
from ondie.kernels.jit import njit

STRONG = 16
"""Decoder message of a reliable bit, on which all three reads agree."""
UNSURE = 1 << 49
"""Index, in a code word's random sequence, of the first number that decides whether a bit is
reliable."""
LEAST_RATE = 1e-6
"""Lowest bit error rate for which read voltages are computed. At lower rates, the reads almost
never differ.
"""
NORMAL = NormalDist()


class SoftModel(NamedTuple):
    """Soft-decision model at one raw bit error rate: reliability of a bit that is read at the
    reference voltage, at a lower voltage and at a higher voltage."""

    right: float
    """Probability that a bit is unreliable if the middle read is correct."""
    wrong: float
    """Probability that a bit is unreliable if the middle read is wrong."""
    weak: int
    """Decoder message of an unreliable bit, at least 1."""


@lru_cache(256)
def soft_model(rate: float) -> SoftModel:
    """Return the soft-decision model for raw bit error rate ``rate``, above 0 and below 1/2."""
    mean = -NORMAL.inv_cdf(max(rate, LEAST_RATE))  # of the level, in deviations of the noise

    def probabilities(distance: float) -> tuple[float, float, float, float]:
        """Return the probabilities that a bit 0 is reliable and correct, unreliable and correct,
        unreliable and wrong, or reliable and wrong.
        """
        low, middle, high = (NORMAL.cdf(at - mean) for at in (-distance, 0.0, distance))
        return 1 - high, high - middle, middle - low, low

    def information(distance: float) -> float:
        zero = probabilities(distance)
        return sum(
            a * math.log2(2 * a / (a + b)) for a, b in zip(zero, reversed(zero), strict=True) if a
        )

    distances = [mean * step / 200 for step in range(1, 150)]
    sure_right, unsure_right, unsure_wrong, sure_wrong = probabilities(
        max(distances, key=information)
    )
    strong, weak = math.log(sure_right / sure_wrong), math.log(unsure_right / unsure_wrong)
    return SoftModel(
        unsure_right / (sure_right + unsure_right),
        unsure_wrong / (sure_wrong + unsure_wrong),
        max(1, round(STRONG * weak / strong)),
    )


@njit
def _unsure(found, mask, key, right, wrong):
    """Set ``found`` (uint8[8 * bytes]) to 1 for the unreliable bits of a word and to 0 for the
    other bits. ``mask``: bit errors of the word, uint8[bytes]. ``right``, ``wrong``: fields of
    SoftModel.
    """
    for bit in range(found.shape[0]):
        hit = (mask[bit >> 3] >> (bit & 7)) & 1
        found[bit] = uniform(key, UNSURE + bit) < (wrong if hit else right)


def soft_messages(
    read: np.ndarray, mask: np.ndarray, keys: np.ndarray, rates: np.ndarray
) -> np.ndarray:
    """Return the decoder messages of code words, int8[n, 8 * bytes]. A bit that is 0 has a positive
    message.

    ``read``: data of the middle read, uint8[n, bytes]. ``mask``: bit errors of this read. ``keys``:
    random keys of the words, uint64[n]. ``rates``: raw bit error rates of the words, float64[n],
    above 0.
    """
    bits = np.unpackbits(read, axis=1, bitorder="little").astype(np.int8)
    unsure = np.empty(bits.shape, np.uint8)
    weak = np.empty((len(read), 1), np.int8)
    for at in range(len(read)):
        model = soft_model(float(rates[at]))
        _unsure(unsure[at], mask[at], np.uint64(keys[at]), model.right, model.wrong)
        weak[at] = model.weak
    return ((1 - 2 * bits) * np.where(unsure != 0, weak, np.int8(STRONG))).astype(np.int8)
