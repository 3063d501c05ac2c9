"""Frame error rate of the LDPC code as a function of the raw bit error rate, for one to three
reads.

Owns the model of reads, the random frames, and the confidence intervals of the rates. Does not own
the code (kernels/ldpc.py). Source: J. Wang et al., "Enhanced Precision Through Multiple Reads for
LDPC Decoding in Flash Memories", IEEE JSAC 32, 2014 (voltages of reads that maximize mutual
information); C. Clopper and E. Pearson, Biometrika 26, 1934 (intervals).

Every rate is computed from the number of decoded frames; nothing is extrapolated. A cell of one bit
has level +1 (bit 0) or -1 (bit 1), plus normally distributed noise. The raw bit error rate is that
of a read at 0. Two reads are at -d and d, three at -d, 0 and d. The decoder's message for an
interval between reads is proportional to the log-likelihood ratio of the interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm

from ondie.emu.units import InputError
from ondie.kernels.ldpc import CORRECT, FAILED, HARD, Ldpc

READS = (1, 2, 3)
STRONG = 16  # message of the outer intervals, with more than one read
BATCH = 64  # frames of a batch with one read
SOFT_BATCH = 8  # the same with more reads, so that messages stay in the processor's caches
CONFIDENCE = 0.95


@dataclass(frozen=True)
class FramePoint:
    """Result of decoding frames at one raw bit error rate.

    ``failed``: number of frames that were not decoded to the correct data, including the silent
    frames. ``silent``: number of frames with wrong data and a correct CRC. ``low``, ``high``:
    bounds of the frame error rate with a confidence of CONFIDENCE. ``iterations``, ``flips``: means
    per frame.
    """

    raw_ber: float
    reads: int
    frames: int
    failed: int
    silent: int
    low: float
    high: float
    iterations: float
    flips: float

    @property
    def rate(self) -> float:
        """Measured frame error rate: number of failed frames divided by number of frames."""
        return self.failed / self.frames


def interval(failed: int, frames: int) -> tuple[float, float]:
    """Return (low, high), the Clopper-Pearson interval of the failure rate with a confidence of
    CONFIDENCE, for ``failed`` failures in ``frames`` frames."""
    tail = (1 - CONFIDENCE) / 2
    low = float(beta.ppf(tail, failed, frames - failed + 1)) if failed else 0.0
    high = float(beta.isf(tail, failed + 1, frames - failed)) if failed < frames else 1.0
    return low, high


def intervals(raw_ber: float, reads: int) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Return the intervals between the read voltages, from the highest voltage down.

    The results are the probability of each interval for a bit of 0, float64[intervals], and the
    message of each interval, int8[intervals]. Raises InputError if ``raw_ber`` or ``reads`` is out
    of range.
    """
    if reads not in READS:
        raise InputError(f"reads = {reads}: must be 1, 2 or 3")
    if not 0 < raw_ber < 0.5:
        raise InputError(f"raw bit error rate = {raw_ber}: must be above 0 and below 0.5")
    if reads == 1:
        return np.array([1 - raw_ber, raw_ber]), np.array([HARD, -HARD], np.int8)
    mean = float(norm.isf(raw_ber))  # of the level, in standard deviations of the noise

    def probabilities(distance: float) -> NDArray[np.float64]:
        voltages = [-distance, distance] if reads == 2 else [-distance, 0.0, distance]
        return np.diff(norm.cdf(np.array([-np.inf, *voltages, np.inf]), loc=mean))[::-1]

    def information(distance: float) -> float:
        zero = probabilities(distance)
        one = zero[::-1]
        return float((zero * np.log2(2 * zero / (zero + one))).sum())

    zero = probabilities(max(np.linspace(0.02, 1.5, 149) * mean / 2, key=information))
    ratios = np.log(zero / zero[::-1])
    return zero, np.rint(STRONG * ratios / ratios[0]).astype(np.int8)


def frame_errors(
    kernel: Ldpc, raw_ber: float, reads: int, frames: int, seed: int, iterations: int = 20
) -> FramePoint:
    """Decode random frames with random bit errors and count the frames that fail.

    Raises InputError if ``raw_ber``, ``reads`` or ``frames`` is out of range.
    """
    if frames < 1:
        raise InputError(f"frames = {frames}: must be at least 1")
    probabilities, messages = intervals(raw_ber, reads)
    rng = np.random.default_rng([seed, reads, int(raw_ber * 1e9)])
    of = kernel.code
    failed = silent = made = flips = 0
    batch = BATCH if reads == 1 else SOFT_BATCH
    for first in range(0, frames, batch):
        count = min(batch, frames - first)
        data = rng.integers(0, 256, (count, of.data_bytes), np.uint8)
        words = kernel.encode(data)
        found = _intervals_of(rng, probabilities, words.size * 8)
        if reads == 1:
            errors = np.packbits(found, bitorder="little").reshape(words.shape)
            decoded = kernel.decode(words ^ errors, iterations)
        else:
            bits = np.unpackbits(words, axis=1, bitorder="little")
            signed = np.concatenate((messages, -messages))  # of a bit of 0, of 1
            found += np.uint8(len(messages)) * bits.reshape(-1)
            decoded = kernel.decode_soft(signed[found].reshape(bits.shape), iterations)
        same = (decoded.words == words).all(1)
        good = decoded.outcome == CORRECT
        failed += int((~(good & same)).sum())
        silent += int((good & ~same).sum())
        made += int(decoded.iterations.sum())
        flips += int(decoded.flips.sum())
        assert not (same & (decoded.outcome > FAILED)).any(), "a correct word must have a valid CRC"
    bounds = interval(failed, frames)
    return FramePoint(
        raw_ber, reads, frames, failed, silent, *bounds, made / frames, flips / frames
    )


def _intervals_of(
    rng: np.random.Generator, probabilities: NDArray[np.float64], bits: int
) -> NDArray[np.uint8]:
    """Draw the interval of each bit as if all bits were 0, uint8[bits].

    Most bits are in interval 0. The distances between bits in other intervals have a geometric
    distribution.
    """
    found = np.zeros(bits, np.uint8)
    other = 1 - probabilities[0]
    at = -1
    while at < bits:
        size = int((bits - at) * other * 1.05) + 100
        places = at + np.cumsum(rng.geometric(other, size))
        kinds = 1 + np.searchsorted(np.cumsum(probabilities[1:])[:-1] / other, rng.random(size))
        inside = places < bits
        found[places[inside]] = kinds[inside]
        at = int(places[-1])
    return found
