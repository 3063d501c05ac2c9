"""Error correcting codes: rates of decoding failures, compared with the capability model.

Owns the test cases of each code, the numbers of decoded words, and the rows. Does not own the codes
(kernels/bch.py, kernels/ldpc.py), the model of reads (ldpc_curve.py) or the capability model
(nand/ecc.py). Source: S. Lin and D. Costello, "Error Control Coding", 2nd ed., ch. 6 (probability
that a word is decoded to another code word); RiF, HPCA 2024 (limit of an LDPC code of 4 KiB).

Every rate is computed from the number of decoded words. Nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from ondie.emu.analysis.row import IDENTITY, SHOWN, Progress, Row
from ondie.emu.config.config import load_preset
from ondie.emu.nand import ecc
from ondie.emu.units import InputError
from ondie.emu.validate.ldpc_curve import FramePoint, frame_errors
from ondie.kernels import bch, get

SUITE = "ecc"
FIELD = 13
"""Degree m of the field GF(2^m) of the BCH codes. Their words are as long as the field allows."""
BCH_WORDS = {2: 50_000, 3: 100_000, 4: 100_000, 5: 200_000, 6: 500_000}
"""Number of words with t + 1 bit errors to decode in a full run (``full`` of ecc_rows), by t, the
number of bit errors that the BCH code corrects."""
CHANCE = 1e-3
"""Probability that a row of the BCH codes is outside its tolerance although the code is correct."""
PRESETS = ("gen4-tlc", "newport", "laguna", "smartssd")
"""Presets whose controller has an LDPC code with words of 4 KiB."""
ASSUMED = 8.5e-3
"""Raw bit error rate up to which the code of RiF corrects all errors, according to its paper."""
TARGET = 1e-3
"""Frame error rate that defines the correction limit of a code in the presets."""
POINTS: tuple[tuple[int, float, int], ...] = (
    (1, 7.0e-3, 1_500_000), (1, 7.3e-3, 200_000), (1, 7.5e-3, 100_000), (1, 7.7e-3, 100_000),
    (1, 8.0e-3, 20_000), (1, 8.5e-3, 5_000), (1, 9.0e-3, 2_000), (1, 10e-3, 1_000),
    (2, 14.0e-3, 20_000), (2, 14.5e-3, 5_000), (2, 15.0e-3, 2_000), (2, 16.0e-3, 1_000),
    (3, 16.5e-3, 20_000), (3, 17.0e-3, 5_000), (3, 18.0e-3, 2_000), (3, 19.0e-3, 1_000),
)  # fmt: skip
"""Measured points of the LDPC code: number of reads, raw bit error rate, and number of frames to
decode in a full run (``full`` of ecc_rows)."""
NEAR = {1: 7.7e-3, 3: 16.5e-3}
"""Raw bit error rates at which the frame error rate is near TARGET, by number of reads. One read is
hard decision; three reads are soft decision with the two additional reads of the presets."""
FEWER = 20
"""Divisor of the frame counts of POINTS in a short run (without ``full`` of ecc_rows). The quotient
is limited to the range LEAST to MOST. The points of NEAR, which determine the limits of the
presets, are not divided but limited to MOST frames."""
LEAST, MOST = 200, 10_000
TOLERANCE = 0.03
"""Relative tolerance of a preset's number of correctable bits. About six of 5,000 frames fail; this
number determines the limit of the code to about 2 %. A change of the limit by 3 % changes the
failure rate of the model by a factor of four. The rows show the interval of the limit that follows
from the number of failures."""


def ecc_rows(progress: Progress = None, full: bool | None = None) -> list[Row]:
    """Return the rows of the BCH codes, the LDPC code, and the presets' limits.

    ``full``: decode as many LDPC frames as a frame error rate of 1e-5 needs, and ten times as many
    BCH words. This takes minutes instead of seconds.
    """
    rows: list[Row] = []
    weights = [frames_of(point, bool(full)) for point in POINTS]
    total = 1.1 * sum(weights)
    for t in BCH_WORDS:
        if progress is not None:
            progress(f"bch, t = {t}", 0.1 * list(BCH_WORDS).index(t) / len(BCH_WORDS) / 1.1)
        rows += bch_rows(t, BCH_WORDS[t] // (1 if full else 10))
    kernel, points = get("ldpc"), []
    for at, (reads, raw_ber, _) in enumerate(POINTS):
        if progress is not None:
            done = 0.1 * sum(weights) + sum(weights[:at])
            progress(f"ldpc, RBER {raw_ber:g}", done / total)
        points.append(frame_errors(kernel, raw_ber, reads, weights[at], seed=1))
    return rows + ldpc_rows(points) + limit_rows(points)


def frames_of(point: tuple[int, float, int], full: bool) -> int:
    """Return the number of frames to decode for ``point``, an element of POINTS."""
    reads, raw_ber, frames = point
    if full:
        return frames
    if NEAR.get(reads) == raw_ber:
        return min(frames, MOST)
    return min(max(frames // FEWER, LEAST), MOST)


# --- BCH


def one_more_wrong(
    code: bch.Bch, words: int, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Yield words of zero data with t + 1 bit errors each, as arrays (data, check bytes).

    Stops when at least ``words`` words have been yielded.
    """
    size, width = code.check_bytes, code.code.data_bytes
    clean = np.concatenate((code.encode(np.zeros(width, np.uint8)), np.zeros(width, np.uint8)))
    while words > 0:
        places = rng.integers(0, code.code.bits, (min(words, 10_000), code.code.t + 1))
        ordered = np.sort(places, axis=1)
        places = places[(ordered[:, 1:] != ordered[:, :-1]).all(axis=1)]
        words -= len(places)
        word = np.tile(clean, (len(places), 1))
        for column in places.T:
            word[np.arange(len(word)), column // 8] ^= (1 << column % 8).astype(np.uint8)
        yield np.ascontiguousarray(word[:, size:]), np.ascontiguousarray(word[:, :size])


def bch_rows(t: int, words: int) -> list[Row]:
    """Return the rows of the BCH codes that correct t bits, without and with a CRC in the word."""
    rows = []
    for crc in (False, True):
        code = bch.get(FIELD, t, bch.most_data(FIELD, t, crc), crc)
        taken = silent = total = 0
        for data, check in one_more_wrong(code, words, np.random.default_rng([t, crc])):
            if crc:
                silent += int((code.decode(data.copy(), check.copy()) >= 0).sum())
            taken += int((code.decode(data, check, verify=False) >= 0).sum())
            total += len(data)
        share = comb(code.code.bits - t - 1, t) / 2**code.code.degree
        least, most = binom.ppf((CHANCE / 2, 1 - CHANCE / 2), total, share) / total
        what = "CRC not checked" if crc else "no CRC"
        rows.append(
            Row(
                SUITE, f"t = {t}, {what}: corrected to another word", IDENTITY, share,
                taken / total, "of words", max(most - share, share - least) / share,
                f"BCH codes with m = {FIELD}, n bits and a generator of degree r: a word with t "
                "+ 1 bit errors is decoded to another code word with probability C(n - t - 1, "
                f"t) / 2^r. The tolerance includes {1 - CHANCE:.1%} of the counts that this "
                "probability produces",
                trials=total,
            )
        )  # fmt: skip
        if crc:
            rows.append(
                Row(
                    SUITE, f"t = {t}, CRC checked: wrong data without a failure", IDENTITY, 0,
                    silent, "words", 0,
                    "BCH codes whose words contain the CRC-32C of the data: decoded with the CRC "
                    "check; input: the words of the row 'CRC not checked' with the same t",
                    trials=total,
                )
            )  # fmt: skip
    return rows


# --- LDPC


def limits() -> dict[int, int]:
    """Return the number of bit errors in 4 KiB that the presets correct, by number of reads.

    One read is hard decision, three are soft decision. Raises InputError if the codes of the
    presets differ.
    """
    found = set()
    for name in PRESETS:
        record = ecc.code(load_preset(name).replace({"errors.kind": "model"}))[0]
        found.add((int(record.bits), int(record.limit), int(record.soft_limit)))
    if len(found) > 1:
        raise InputError(
            f"presets {', '.join(PRESETS)}: their codes differ; configure the same code in all "
            "presets. (Bits per code word, correctable bit errors with hard decision, correctable "
            f"bit errors with soft decision): {', '.join(map(str, sorted(found)))}"
        )
    _, hard, soft = found.pop()
    return {1: hard, 3: soft}


def ldpc_rows(points: list[FramePoint]) -> list[Row]:
    """Return a row for each point, compared with the capability model, and a row with the number of
    frames that were decoded to wrong data with a correct CRC."""
    of, limit = get("ldpc").code, limits()
    bits = 8 * of.data_bytes
    source = (
        f"LDPC, {of.data_bytes} bytes of data in {of.word_bytes}, rate {of.rate:.3f}, at most 20 "
        "iterations: share of frames that are not decoded; interval: Clopper and Pearson, 95 %. "
        f"Expected: the capability model with the limits of {', '.join(PRESETS)} ({limit[1]} bit "
        f"errors in 4 KiB with one read, {limit[3]} with three; the model does not cover two reads)"
    )
    rows = []
    for point in points:
        model = None
        if point.reads in limit:
            model = ecc.codeword_failure(bits, limit[point.reads], point.raw_ber)
        rows.append(
            Row(
                SUITE, _where(point), SHOWN, model, point.rate, "of frames", None, source,
                trials=point.frames, interval=(point.low, point.high),
            )
        )  # fmt: skip
    rows.append(
        Row(
            SUITE, "LDPC: undetected errors (CRC matches)", IDENTITY, 0,
            sum(point.silent for point in points), "frames", 0,
            "LDPC, all frames of the curve", trials=sum(point.frames for point in points),
        )
    )  # fmt: skip
    return rows


def _where(point: FramePoint) -> str:
    reads = f"{point.reads} read{'s' * (point.reads > 1)}"
    return f"{reads}, RBER {1e3 * point.raw_ber:g}e-3"


def equivalent_bits(rate: float, raw_ber: float, bits: int) -> int:
    """Return the smallest number of correctable bits with which the capability model fails in at
    most the fraction ``rate`` of words of ``bits`` bits at the raw bit error rate ``raw_ber``."""
    low, high = 0, bits
    while low < high:
        middle = (low + high) // 2
        if ecc.codeword_failure(bits, middle, raw_ber) <= rate:
            high = middle
        else:
            low = middle + 1
    return low


def crossing(points: list[FramePoint]) -> float | None:
    """Return the raw bit error rate at which the frame error rate with one read is TARGET.

    The result is interpolated between two points with failures; None if no two points enclose it.
    """
    hard = [point for point in points if point.reads == 1 and point.failed]
    for below, above in zip(hard, hard[1:], strict=False):
        if below.rate <= TARGET < above.rate:
            logs = np.log([below.rate, TARGET, above.rate])
            share = (logs[1] - logs[0]) / (logs[2] - logs[0])
            return float(below.raw_ber + share * (above.raw_ber - below.raw_ber))
    return None


def limit_rows(points: list[FramePoint]) -> list[Row]:
    """Return rows that compare the numbers of correctable bits in the presets with the LDPC code.
    Also return a row that compares two raw bit error rates: the published limit ASSUMED, and the
    rate at which the frame error rate is TARGET (omitted if no two points enclose TARGET).

    The number for the LDPC code is the number of correctable bits with which the capability model
    has the measured frame error rate of the code. If no frame of a point fails, the row of this
    point contains a lower bound: the number at the upper end of the confidence interval of the
    frame error rate.
    """
    limit, bits = limits(), 8 * get("ldpc").code.data_bytes
    source = (
        "expected: number of bit errors in 4 KiB that the presets correct; predicted: number with "
        "which the capability model has the measured frame error rate of the LDPC code, which is "
        f"near {TARGET:g}"
    )
    rows = []
    for reads, name in ((1, "ecc.correctable_bits"), (3, "ecc.correctable_bits x ecc.soft_gain")):
        point = next(p for p in points if (p.reads, p.raw_ber) == (reads, NEAR[reads]))
        most, found, least = (
            equivalent_bits(rate, point.raw_ber, bits)
            for rate in (point.low, point.rate, point.high)
        )
        what = f"{name}, {_where(point)}"
        tolerance: float | None = TOLERANCE
        if not point.failed:  # a bound: it misses only if the code surely corrects more
            what, found, most = f"{what}: no frame fails, at least", least, bits
            tolerance = TOLERANCE if least > limit[reads] else None
        rows.append(
            Row(
                SUITE, what, IDENTITY, limit[reads], found, "bits", tolerance, source,
                trials=point.frames, interval=(least, most),
            )
        )  # fmt: skip
    if (reached := crossing(points)) is not None:
        rows.append(
            Row(
                SUITE, f"hard input: RBER with {TARGET:g} frame errors", SHOWN, ASSUMED, reached,
                "RBER", None,
                "published: RBER up to which RiF's LDPC code of 4 KiB corrects all errors; "
                f"predicted: RBER at which the frame error rate of this project's code is "
                f"{TARGET:g}, interpolated between two measured points", "RiF, HPCA 2024",
            )
        )  # fmt: skip
    return rows
