"""BCH codes: construction, definition in NumPy, and tables for the compiled functions.

Owns the construction of a code, its definition and the tables of the compiled functions. Does not
own these functions (bch.py, csrc/bch.c) or the CRC (crc.py).
Source: Bose and Ray-Chaudhuri 1960, Hocquenghem 1959; Lin and Costello, "Error Control Coding", 2nd
ed., ch. 6 (codes, Berlekamp's iteration, Chien search).

A word is a polynomial over GF(2): bit i of byte j is the coefficient of x^(8 j + i). From the
lowest power up, a word consists of ceil(r / 8) bytes of parity, the 4-byte CRC-32C of the data, and
the data. Parity and CRC are the check bytes. Every word of the code is a multiple of the generator
polynomial g, which has degree r and the roots a, a^2, ..., a^(2 t). Here a is a root of the
smallest primitive polynomial of degree m.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .crc import crc32c
from .errors import KernelError
from .memory import aligned_empty

PRIMITIVE = {10: 0x409, 11: 0x805, 12: 0x1053, 13: 0x201B, 14: 0x402B, 15: 0x8003}
"""Smallest primitive polynomial over GF(2) of each degree m; bit i is the coefficient of x^i."""
MOST_ERRORS = 100
CRC_BYTES = 4
UNCORRECTABLE = -1
"""Result of `Bch.decode` for a word with more than t bit errors, which it cannot correct."""
MISCORRECTED = -2
"""Result of `Bch.decode` for a word that would be corrected to a code word with a wrong CRC."""

Bytes = NDArray[np.uint8]
Results = NDArray[np.int32]


@dataclass(frozen=True)
class Field:
    """The field GF(2^m) with the primitive element a. With n = 2^m - 1, `exp` (uint16[2 n]) holds
    the powers of a, and `log` (uint16[n + 1]) the exponent of each element other than 0."""

    m: int
    exp: NDArray[np.uint16]
    log: NDArray[np.uint16]

    @property
    def n(self) -> int:
        """Return 2^m - 1, the order of the primitive element and the maximum length of a code word
        in bits."""
        return (1 << self.m) - 1

    def times(self, left: Any, right: Any) -> Any:
        """Return the products of the field elements in two arrays, broadcast against each other."""
        left, right = np.asarray(left, np.int64), np.asarray(right, np.int64)
        product = self.exp[self.log[left].astype(np.int64) + self.log[right]]
        return np.where((left == 0) | (right == 0), 0, product)

    def inverse(self, element: int) -> int:
        """Return the multiplicative inverse of the field element ``element``."""
        return int(self.exp[(self.n - int(self.log[element])) % self.n])


@cache
def field(m: int) -> Field:
    """Return the field GF(2^m) for m from 10 to 15."""
    order, element = (1 << m) - 1, 1
    exp, log = np.empty(2 * order, np.uint16), np.zeros(order + 1, np.uint16)
    for i in range(order):
        exp[i] = exp[i + order] = element
        log[element] = i
        element <<= 1
        if element >> m:
            element ^= PRIMITIVE[m]
    return Field(m, exp, log)


@cache
def generator(m: int, t: int) -> int:
    """Return the generator polynomial of the code over GF(2^m) that corrects t bit errors. Bit i of
    the number is the coefficient of x^i. The polynomial is the product of the distinct minimal
    polynomials of a, a^3, ..., a^(2 t - 1)."""
    gf, product, known = field(m), 1, set[int]()
    for odd in range(1, 2 * t, 2):
        orbit = {odd * 2**k % gf.n for k in range(m)}
        if min(orbit) in known:
            continue
        known.add(min(orbit))
        minimal = np.array([1], np.int64)  # coefficients, lowest power first
        for exponent in orbit:
            scaled = gf.times(minimal, int(gf.exp[exponent]))
            minimal = np.append(0, minimal) ^ np.append(scaled, 0)
        before, product = product, 0
        for shift in np.flatnonzero(minimal):
            product ^= before << int(shift)
    return product


def check_bytes(m: int, t: int, crc: bool = True) -> int:
    """Return the number of check bytes of a code word: parity, and CRC if ``crc`` is True. Raises
    KernelError for an invalid m or t."""
    if type(m) is not int or m not in PRIMITIVE:
        raise KernelError(f"bch: m = {m!r}; must be from {min(PRIMITIVE)} to {max(PRIMITIVE)}")
    if type(t) is not int or not 1 <= t <= MOST_ERRORS:
        raise KernelError(f"bch: t = {t!r}; must be from 1 to {MOST_ERRORS}")
    return -(-(generator(m, t).bit_length() - 1) // 8) + CRC_BYTES * crc


def most_data(m: int, t: int, crc: bool = True) -> int:
    """Return the maximum number of data bytes of a code word. Over all valid arguments, the result
    is smallest (29) for m = 10, t = 99 and a CRC."""
    return ((1 << m) - 1) // 8 - check_bytes(m, t, crc)


@dataclass(frozen=True)
class Code:
    """A BCH code: its parameters and the sizes of its words. Raises KernelError for an invalid m or
    t, if ``data_bytes`` is below 1, or if a word would exceed 2^m - 1 bits."""

    m: int
    t: int
    data_bytes: int
    crc: bool

    def __post_init__(self) -> None:
        most = most_data(self.m, self.t, self.crc)
        size = self.data_bytes
        if type(size) is int and 1 <= size <= most:
            return
        what = f"bch: data_bytes = {size!r} with m = {self.m}, t = {self.t}"
        crc = " and a CRC" if self.crc else ""
        word = (1 << self.m) - 1
        message = f"{what}{crc}: must be from 1 to {most}, since a word has at most {word} bits"
        if type(size) is int and size > most:
            larger = [m for m in PRIMITIVE if m > self.m and most_data(m, self.t, self.crc) >= size]
            message += f"; m = {larger[0]} fits" if larger else "; no m fits"
        raise KernelError(message)

    @cached_property
    def field(self) -> Field:
        """Return the field GF(2^m) of the code."""
        return field(self.m)

    @cached_property
    def degree(self) -> int:
        """Return r, the degree of the generator polynomial, which is the number of parity bits."""
        return generator(self.m, self.t).bit_length() - 1

    @property
    def parity_bytes(self) -> int:
        """Return the number of parity bytes of a code word."""
        return -(-self.degree // 8)

    @property
    def check_bytes(self) -> int:
        """Return the number of check bytes of a code word: parity, and CRC if the code has one."""
        return check_bytes(self.m, self.t, self.crc)

    @property
    def bits(self) -> int:
        """Return the number of bits of a code word, at most 2^m - 1."""
        return 8 * (self.data_bytes + self.check_bytes)

    @cached_property
    def residues(self) -> Bytes:
        """Return x^i mod g for i from 0 to max(bits, 2 r) + 1023, that is, for each bit of a word
        and at least 1024 further positions: uint8[positions, width]. Byte 0 holds the lowest
        powers. The width is the number of parity bytes, rounded up to a multiple of 8."""
        degree, product = self.degree, generator(self.m, self.t)
        width = -(-degree // 64) * 8
        count = max(self.bits, 2 * degree) + 1024
        power, found = 1, bytearray()
        for _ in range(count):
            found += power.to_bytes(width, "little")
            power <<= 1
            if power >> degree:
                power ^= product
        return np.frombuffer(found, np.uint8).reshape(count, width)

    def syndromes(self, positions: np.ndarray) -> NDArray[np.int64]:
        """Return the syndromes of a word whose bits are 1 at ``positions``: the sum of a^(j p) over
        these positions p, for j from 1 to 2 t: int64[2 t]."""
        powers = np.outer(np.arange(1, 2 * self.t + 1), positions) % self.field.n
        return np.bitwise_xor.reduce(self.field.exp[powers].astype(np.int64), axis=1)


# --- the definition


def numpy_remainder(code: Code, word: Bytes) -> Bytes:
    """Return ``word`` modulo the generator polynomial g, uint8[parity_bytes]: the sum of x^i mod g
    over the bits i that are 1."""
    places = np.flatnonzero(np.unpackbits(word, bitorder="little"))
    return np.bitwise_xor.reduce(code.residues[places], axis=0, initial=0)[: code.parity_bytes]


def numpy_locator(code: Code, syndromes: np.ndarray) -> NDArray[np.int64] | None:
    """Return the coefficients of the error locator polynomial, lowest power first, by Berlekamp's
    iteration. Return None if its degree would exceed t, because the word has more than t bit
    errors."""
    gf, size = code.field, 2 * code.t + 2
    locator, shifted = np.zeros(size, np.int64), np.zeros(size, np.int64)
    locator[0] = shifted[1] = 1
    length = 0
    for step in range(2 * code.t):
        terms = gf.times(locator[: step + 1], syndromes[step::-1])
        discrepancy = int(np.bitwise_xor.reduce(terms))
        before = locator.copy()
        if discrepancy:
            locator ^= gf.times(shifted, discrepancy)
            if 2 * length <= step:
                length = step + 1 - length
                shifted = gf.times(before, gf.inverse(discrepancy))
        shifted = np.append(0, shifted[:-1])
    return locator[: length + 1] if length <= code.t else None


def numpy_positions(code: Code, word: Bytes) -> NDArray[np.int64] | None:
    """Return the positions of the bit errors of a word, or None if decoding fails because the word
    has more than t bit errors."""
    gf = code.field
    places = np.flatnonzero(np.unpackbits(word, bitorder="little"))
    syndromes = code.syndromes(places)
    locator = numpy_locator(code, syndromes) if syndromes.any() else np.array([1])
    if locator is None:
        return None
    values = np.zeros(code.bits, np.int64)  # at a^-p for each position p
    inverses = gf.exp[-np.arange(code.bits) % gf.n]
    for coefficient in locator[::-1]:
        values = gf.times(values, inverses) ^ coefficient
    found = np.flatnonzero(values == 0)
    return found if found.size == locator.size - 1 else None


class Functions(Protocol):
    """Interface of the encoder and decoder of a BCH code, implemented in NumPy, Numba and C. The
    arrays have passed the checks of `Bch`; each row of an array is a code word."""

    form: str | None  # of C

    def encode(self, data: Bytes, check: Bytes) -> None:
        """Write the check bytes of each code word (row of ``data``) to ``check``."""

    def check(self, data: Bytes, check: Bytes, verify: bool, clean: Bytes) -> None:
        """Write 1 to ``clean`` for each row of ``data`` that forms a code word with the same row of
        ``check``, else 0. If ``verify`` is True, the CRC must also be correct."""

    def decode(self, data: Bytes, check: Bytes, verify: bool, result: Results) -> None:
        """Correct each word in place. Write the number of its corrected bits, UNCORRECTABLE or
        MISCORRECTED to ``result``. If ``verify`` is False, the CRC is not compared."""


class Definition:
    """Encoder and decoder of a BCH code in NumPy, word by word. They define the results of all
    backends."""

    form: str | None = None

    def __init__(self, code: Code) -> None:
        self.code = code

    def _crc(self, data: Bytes) -> Bytes:
        value = crc32c(data) if self.code.crc else 0
        size = CRC_BYTES if self.code.crc else 0
        return np.frombuffer(value.to_bytes(CRC_BYTES, "little")[:size], np.uint8)

    def encode(self, data: Bytes, check: Bytes) -> None:
        """Write the check bytes of each code word (row of ``data``) to ``check``."""
        parity = self.code.parity_bytes
        for one, row in zip(data, check, strict=True):
            row[:parity] = 0
            row[parity:] = self._crc(one)
            row[:parity] = numpy_remainder(self.code, np.concatenate((row, one)))

    def check(self, data: Bytes, check: Bytes, verify: bool, clean: Bytes) -> None:
        """Write 1 to ``clean`` for each code word that passes the check (see `Functions.check`),
        and 0 for all others."""
        parity = self.code.parity_bytes
        for i, (one, row) in enumerate(zip(data, check, strict=True)):
            right = not numpy_remainder(self.code, np.concatenate((row, one))).any()
            clean[i] = right and (not verify or np.array_equal(row[parity:], self._crc(one)))

    def decode(self, data: Bytes, check: Bytes, verify: bool, result: Results) -> None:
        """Correct ``data`` and ``check`` in place; write the result of each code word to
        ``result`` (see `Bch.decode`)."""
        parity, size = self.code.parity_bytes, self.code.check_bytes
        for i, (one, row) in enumerate(zip(data, check, strict=True)):
            word = np.concatenate((row, one))
            positions = numpy_positions(self.code, word)
            if positions is None:
                result[i] = UNCORRECTABLE
                continue
            np.bitwise_xor.at(word, positions // 8, np.uint8(1) << (positions % 8).astype(np.uint8))
            if verify and not np.array_equal(word[parity:size], self._crc(word[size:])):
                result[i] = MISCORRECTED
                continue
            row[:], one[:] = word[:size], word[size:]
            result[i] = positions.size


# --- tables of the compiled functions


def sums_of_rows(rows: np.ndarray) -> np.ndarray:
    """Return the exclusive or of each subset of the k rows along axis -2: [..., k, n] -> [..., 2^k,
    n]."""
    count = rows.shape[-2]
    sums = np.zeros((*rows.shape[:-2], 1 << count, rows.shape[-1]), rows.dtype)
    for i in range(count):
        half = 1 << i
        sums[..., half : 2 * half, :] = sums[..., :half, :] ^ rows[..., i : i + 1, :]
    return sums


def aligned(values: np.ndarray) -> np.ndarray:
    """Return a copy of ``values`` that begins at a multiple of 64 bytes."""
    found = aligned_empty(values.size, values.dtype).reshape(values.shape)
    found[...] = values
    return found


def syndrome_table(code: Code) -> NDArray[np.uint16]:
    """Return the contribution of each value of each 4-bit digit of a remainder to the syndromes at
    a, a^3, ..., a^(2 t - 1): uint16[digits, 16, lanes], where lanes is t rounded up to a multiple
    of 32."""
    bits = np.arange(-(-code.degree // 4) * 4)
    odds = 2 * np.arange(code.t) + 1
    values = np.zeros((bits.size, -(-code.t // 32) * 32), np.uint16)
    values[:, : code.t] = code.field.exp[np.outer(bits, odds) % code.field.n]
    return aligned(sums_of_rows(values.reshape(-1, 4, values.shape[1])))


def linear_maps(gf: Field, form: str) -> Bytes:
    """Return the linear maps y -> c y^(2^k) of GF(2^m) for k from 0 to 6 and each constant c with
    at most one nonzero 4-bit digit. The indexes of the result, uint8[7, 4, 16, size of a map], are
    k, the position of the digit in c, the value of the digit, and the byte of the map. Maps have 32
    bytes for csrc/bch_avx512.c and 128 bytes for csrc/bch_avx2.c (``form`` = "clmul")."""
    columns = np.zeros((7, 16, 16), np.uint16)  # [k, bit of c, bit of y]
    bits = np.arange(gf.m)
    for k in range(7):
        columns[k, : gf.m, : gf.m] = gf.exp[(bits[:, None] + bits * 2**k) % gf.n]
    images = sums_of_rows(columns.reshape(7, 4, 4, 16))  # [k, digit, value, bit of y]
    if form == "clmul":  # the images of 16 values of each 4-bit digit of y: low bytes, high bytes
        sums = sums_of_rows(images.reshape(7, 4, 16, 4, 4, 1))[..., 0]
        both = np.stack((sums & 255, sums >> 8), axis=-2)
        return aligned(both.astype(np.uint8).reshape(7, 4, 16, 128))
    matrix = (images[..., None, :] >> np.arange(16, dtype=np.uint16)[:, None]) & 1  # [.., out, in]
    rows = np.packbits(matrix.astype(np.uint8), axis=-1, bitorder="little")  # [.., out, in byte]
    rows = rows.reshape(7, 4, 16, 2, 8, 2)[..., ::-1, :].swapaxes(-1, -2)  # [out byte, in byte, 8]
    return aligned(rows.reshape(7, 4, 16, 32))
