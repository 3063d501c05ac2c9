"""8-bit codes of optimizer states, with one scale for each block of 256 numbers.

This module owns the maps from codes to numbers, and encoding and decoding in NumPy and Numba. C has
its own implementation in codes.c. The module does not own updates (update.py).
Source: Dettmers, Lewis, Shleifer and Zettlemoyer, "8-bit Optimizers via Block-wise Quantization",
ICLR 2022, section 2 and appendix. In dynamic quantization the number of leading zeros of a code is
its decimal exponent. The bits after the first 1 bit are a linear fraction. First moments use the
signed map, second moments the unsigned map.

The scale of a block is the largest magnitude in it. A number is divided by the scale and gets the
nearest code; a tie gets the lower code. A block that contains a NaN has the scale NaN.
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
LINES = 16  # entries of the line tables in ondie_codes
FRACTION, UNSURE = 15, 4  # ONDIE_CODE_FRACTION, ONDIE_CODE_UNSURE


@dataclass(frozen=True)
class Piece:
    """Consecutive numbers of a code map that are equally spaced.

    Place p is the position of a number in the map, from ``first`` to ``last``. The number at place
    p is float32(fma(slope, p, offset)). A piece of one place has slope 0.
    """

    first: int
    last: int
    slope: float
    offset: float


@dataclass(frozen=True)
class Codes:
    """A code map: the number that each 8-bit code represents, and tables for fast conversion.

    The p-th number has the code ``base`` + p; in a signed map, its negative has the code ``base`` -
    p.

    value: float32[256], increasing. zero: code of the smallest magnitude. middle: float32[255], the
    largest float that does not exceed the mean of two neighboring values. least: magnitudes below
    it get the code ``zero``. The other tables are explained at ondie_codes in csrc/ondie.h. bucket:
    int32[2 * BUCKETS]. line: float32[2, LINES]. limit: float32[LINES]. to_line: float32[3, LINES].
    """

    base: int
    value: NDArray[np.float32]
    zero: int
    middle: NDArray[np.float32]
    bucket: NDArray[np.int32]
    line: NDArray[np.float32]
    limit: NDArray[np.float32]
    to_line: NDArray[np.float32]
    least: float


def dynamic_pieces(signed: bool) -> list[Piece]:
    """Return the pieces of dynamic quantization.

    A code with e leading zeros represents 10^-e times the middle of one of several equal parts of
    0.1 .. 1. The signed map has 64 parts for e = 0, and half as many for each further zero, down to
    one part for e = 6. The unsigned map has twice as many parts. The numbers 0 and 1 are exact.
    """
    lowest = 0 if signed else 1
    found = [Piece(0, 0, 0.0, 0.0)] if signed else [Piece(1, 1, 0.0, 0.0)]
    for power in range(lowest, lowest + 7):
        parts, unit = 2**power, 10.0 ** (power - lowest - 6)
        found.append(Piece(parts, 2 * parts - 1, 0.9 * unit / parts, unit * (0.45 / parts - 0.8)))
    parts = 2 ** (lowest + 7)
    return [*found, Piece(parts, parts, 0.0, 1.0)]


def linear_pieces(signed: bool) -> list[Piece]:
    """Return the pieces of linear quantization: one piece of equally spaced values up to 1.

    The signed map has the values p / 127 for p from -128 to 127, so its lowest value is below -1.
    The unsigned map, for second moments, has the values p / 256 for p from 1 to 256. It has no 0,
    as in Li, Chen and Zhu, NeurIPS 2023: a second moment that is rounded to 0 scales the update by
    up to 1 / eps, and training diverges.
    """
    return [Piece(0, 128, 1 / 127, 0.0)] if signed else [Piece(1, 256, 1 / 256, 0.0)]


PIECES = {"dynamic": dynamic_pieces, "linear": linear_pieces}


@cache
def codes(name: str, signed: bool) -> Codes:
    """Return the code map "dynamic" or "linear", signed or unsigned.

    Raises KernelError for an unknown name.
    """
    if name not in MAPS:
        raise unknown("map", name, MAPS)
    pieces = PIECES[name](signed)
    line = _lines(pieces)
    base = (127 if name == "dynamic" else 128) if signed else -1
    place = np.arange(256) - base
    slope, offset = line[:, (np.frexp(np.abs(place))[1] + 126) % LINES].astype(np.float64)
    size = np.where(place == 0, 0.0, np.abs(place) * slope + offset)
    value = (np.sign(place) * size).astype(np.float32)
    mean = (value[:-1].astype(np.float64) + value[1:]) / 2
    middle = mean.astype(np.float32)
    middle = np.where(middle > mean, np.nextafter(middle, np.float32(-np.inf)), middle)
    buckets = [_buckets(middle, negative) for negative in (False, True)]
    zero = int(np.abs(value).argmin())
    least = max(2.0**-23, float(value[0]))
    bucket = np.concatenate(buckets)
    return Codes(base, value, zero, middle, bucket, line, *_places(pieces, signed), least)


def _lines(pieces: list[Piece]) -> NDArray[np.float32]:
    """Return the slope and the offset that convert a place (the position of a number in a code map)
    to its number, float32[2, LINES].

    The second index is the binary exponent of the place modulo LINES. The product of a place and a
    slope and the sum with the offset are exact in float64; rounding once to float32 therefore
    equals an fma.
    """
    line = np.zeros((2, LINES), np.float32)
    for piece in pieces:
        for place in range(max(1, piece.first), piece.last + 1):
            at = (place.bit_length() - 1 + 127) % LINES
            line[:, at] = piece.slope, piece.offset
    return line


def _places(pieces: list[Piece], signed: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the tables that convert a magnitude to a place in fixed point.

    The first result is float32[LINES], the magnitude at which the next line begins. The second
    result is float32[3, LINES]: slope, offset and largest place of each line.

    A piece is a run of equally spaced values of the code, a place is the index of a code with a
    fraction, and a line is the linear inverse of a piece: from magnitude to place. A line ends
    where the first number of the next piece becomes the nearest one, which is half a place after
    its last place. The limit is set slightly above that point, so FP32 rounding near it
    cannot select the wrong line. For a piece of a single number, any line that stays close to the
    number and ends at the same point is correct. The last piece is a single number; its distance
    from the previous number is half of the previous line's step. Its line must cross the half place
    at the midpoint of the two numbers, and may begin anywhere between them.
    """
    ends = [piece.slope * piece.last + piece.offset for piece in pieces]
    starts = [piece.slope * piece.first + piece.offset for piece in pieces]
    change = [(end + start) / 2 for end, start in zip(ends, starts[1:], strict=False)]
    begin = [border * (1 + 2.0**-21) for border in change]
    shift = 0 if signed else -1  # from a place to a code
    one, high = 2.0**FRACTION, 2.0**23
    lines: list[tuple[float, float, float]] = []
    for i, piece in enumerate(pieces):
        if piece.slope:
            slope, offset = 1 / piece.slope, -piece.offset / piece.slope
        elif i == 0:
            slope, offset = 0.9 / change[0], piece.first + 0.6
        else:
            slope = lines[-1][0] / one / 4
            offset = piece.first - 0.5 - slope * change[-1]
            begin[-1] = (ends[-2] + change[-1]) / 2
        fixed = high + (offset + shift + 0.5) * one + UNSURE
        lines.append((slope * one, fixed, high + (piece.last + shift + 0.5) * one))
    limit = np.full(LINES, np.inf, np.float32)
    to_line = np.empty((3, LINES), np.float32)
    to_line[:] = np.array(lines[-1])[:, None]
    for pair in range(52, 64):  # FP32 exponents 2 pair and 2 pair + 1: magnitudes 2^-23 .. 2
        low, above = 2.0 ** (2 * pair - 127), 2.0 ** (2 * pair - 125)
        inside = [i for i, border in enumerate(begin) if low <= border < above]
        assert len(inside) < 2, "a line is shorter than two powers of two"
        to_line[:, pair % LINES] = lines[
            inside[0] if inside else sum(border < low for border in begin)
        ]
        if inside:
            limit[pair % LINES] = begin[inside[0]]
    return limit, to_line


def _buckets(middle: NDArray[np.float32], negative: bool) -> NDArray[np.int32]:
    """Return the table of the codes of FP32 magnitudes, int32[BUCKETS], with one entry per bucket.
    A bucket holds the magnitudes with the same upper 16 bits; the first bucket begins at 0.

    The bits of an entry from 17 up hold the code at the lower end of the bucket. The lower 17 bits
    hold the position in the bucket at which the code changes. ``negative``: True for the codes of
    negative numbers.
    """
    edges = (np.arange(LEAST, LEAST + BUCKETS, dtype=np.uint32) << 16).view(np.float32)
    edges[0] = 0.0
    words = np.abs(middle).view(np.uint32).astype(np.int64)
    if negative:  # a magnitude equal to a middle gets the lower code
        code = np.searchsorted(middle, -edges, side="left")
        limits = words[middle < 0]
    else:
        code = np.searchsorted(middle, edges, side="left")
        limits = words[middle >= 0] + 1
    where = (limits >> 16) - LEAST
    assert (where >= 0).all(), "a code changes below the first bucket"
    inside = where < BUCKETS
    at = np.full(BUCKETS, 1 << 16, dtype=np.int64)
    # A middle at the lower end of a bucket lies before the whole bucket.
    assert np.unique(where[inside]).size == inside.sum(), "two codes change in one bucket"
    at[where[inside]] = limits[inside] & 0xFFFF
    before = np.zeros(BUCKETS, np.int64)
    before[where[inside]] = at[where[inside]] == 0
    return ((code + np.where(negative, before, -before)) << 17 | at).astype(np.int32)


def numpy_decode(code: np.ndarray, scale: np.ndarray, code_map: Codes) -> NDArray[np.float32]:
    """Return the numbers, float32[n], that the codes uint8[n] with one scale per block
    represent.
    """
    return code_map.value[code] * np.repeat(scale, BLOCK)[: code.size]


def numpy_encode(x: np.ndarray, code: np.ndarray, scale: np.ndarray, code_map: Codes) -> None:
    """Encode float32[n]: write the codes to ``code`` and the scale of each block to ``scale``."""
    padded = np.zeros(scale.size * BLOCK, np.float32)
    padded[: x.size] = x
    blocks = np.abs(padded).reshape(-1, BLOCK)
    scale[:] = np.where(np.isnan(blocks).any(1), np.float32(np.nan), blocks.max(1, initial=0))
    scaled = x / np.repeat(scale, BLOCK)[: x.size]
    found = np.searchsorted(code_map.middle, scaled, side="left")
    code[:] = np.where(np.isnan(scaled), code_map.zero, found)


@njit
def numba_decode(q, scale, x, value):
    """Decode one block: write the values of codes ``q`` with ``scale`` to float32 ``x``."""
    for i in range(q.size):
        x[i] = value[q[i]] * scale


@njit
def numba_encode(x, q, bucket, zero):
    """Encode one block: write the codes of float32 ``x`` to ``q``; return the scale."""
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
