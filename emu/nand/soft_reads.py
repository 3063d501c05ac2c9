"""Soft decision: reliability of bits from two more readings, one on either side of the reference.

Owns the model of the three readings, their voltages, and the messages to the decoder. Does not own
the decoder (kernels/ldpc.py) or the wrong bits of the reading between them (bit_errors.py).
Source: J. Wang et al., "Enhanced Precision Through Multiple Reads for LDPC Decoding in Flash
Memories", IEEE JSAC 32, 2014 (voltages that maximize mutual information).

A cell of one bit has the level +1 (bit 0) or -1 and normal noise, such that the reading at 0 is
wrong at the raw bit error rate. The others are at -d and d. A bit is *unsure* if they differ. The
message of a bit is proportional to its log-likelihood ratio: the sign of the middle reading, and
STRONG if it is sure.
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
"""Decoder message of a reliable bit, on which all readings agree."""
UNSURE = 1 << 49
"""Index, in a code word's random sequence, of the first number that decides whether a bit is
reliable."""
LEAST_RATE = 1e-6
"""Lowest bit error rate for which reading voltages are computed; below it, readings almost never
differ."""
NORMAL = NormalDist()


class SoftModel(NamedTuple):
    """The three readings at a raw bit error rate."""

    right: float
    """Probability that a bit is unreliable if the middle reading is right."""
    wrong: float
    """Probability that a bit is unreliable if the middle reading is wrong."""
    weak: int
    """Decoder message of an unreliable bit, at least 1."""


@lru_cache(256)
def soft_model(rate: float) -> SoftModel:
    """Return the model at a raw bit error rate above 0 and below 1/2."""
    mean = -NORMAL.inv_cdf(max(rate, LEAST_RATE))  # of the level, in deviations of the noise

    def probabilities(distance: float) -> tuple[float, float, float, float]:
        """Return those of a bit of 0 for: sure and right, unsure and right, unsure, sure."""
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
    """Write which bits of a word are unsure: ``found``, uint8[8 * bytes]; ``mask``, uint8[bytes]:
    its wrong bits."""
    for bit in range(found.shape[0]):
        hit = (mask[bit >> 3] >> (bit & 7)) & 1
        found[bit] = uniform(key, UNSURE + bit) < (wrong if hit else right)


def soft_messages(
    read: np.ndarray, mask: np.ndarray, keys: np.ndarray, rates: np.ndarray
) -> np.ndarray:
    """Return the messages of words, int8[n, 8 * bytes], positive for 0.

    ``read``: uint8[n, bytes], the middle reading; ``mask``: its wrong bits; ``keys``, uint64[n]: of
    the draws; ``rates``, float64[n]: raw bit error rates, above 0.
    """
    bits = np.unpackbits(read, axis=1, bitorder="little").astype(np.int8)
    unsure = np.empty(bits.shape, np.uint8)
    weak = np.empty((len(read), 1), np.int8)
    for at in range(len(read)):
        model = soft_model(float(rates[at]))
        _unsure(unsure[at], mask[at], np.uint64(keys[at]), model.right, model.wrong)
        weak[at] = model.weak
    return ((1 - 2 * bits) * np.where(unsure != 0, weak, np.int8(STRONG))).astype(np.int8)
