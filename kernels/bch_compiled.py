"""BCH codes in Numba and C.

Owns the compiled functions in Numba, the tables of both backends and the calls of C. Does not own
the definition (bch.py) or the functions in C (csrc/bch.c).
Source: as bch.py; Burton, "Inversionless decoding of binary BCH codes", IEEE Trans. Inf. Theory
17(4), 1971; Barrett, CRYPTO '86 (division by a constant).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import native
from .bch import Bytes, Code, Field, Results, generator
from .crc import TABLE, by_table
from .jit import njit
from .memory import aligned_empty

FORMS = ("plain", "clmul", "gfni")
"""Forms of the C functions, in the order of enum ONDIE_BCH_*."""
PLANES = ("plain",)
"""Forms that find roots in planes of bits."""
POWER_BYTES = 1 << 19
"""Largest table of powers in bytes, which should stay in the second-level cache."""


def _spans(rows: np.ndarray) -> np.ndarray:
    """Return the sums of all subsets of the rows along axis -2: [..., k, n] -> [..., 2^k, n]."""
    count = rows.shape[-2]
    sums = np.zeros((*rows.shape[:-2], 1 << count, rows.shape[-1]), rows.dtype)
    for i in range(count):
        half = 1 << i
        sums[..., half : 2 * half, :] = sums[..., :half, :] ^ rows[..., i : i + 1, :]
    return sums


def _aligned(values: np.ndarray) -> np.ndarray:
    """Return a copy that begins at a multiple of 64 bytes."""
    found = aligned_empty(values.size, values.dtype).reshape(values.shape)
    found[...] = values
    return found


def _syndrome_table(code: Code) -> NDArray[np.uint16]:
    """Return the values at a, a^3, ... of each 4-bit digit of a remainder: uint16[digits, 16,
    lanes], where lanes is t rounded up to a multiple of 32."""
    bits = np.arange(-(-code.degree // 4) * 4)
    odds = 2 * np.arange(code.t) + 1
    values = np.zeros((bits.size, -(-code.t // 32) * 32), np.uint16)
    values[:, : code.t] = code.field.exp[np.outer(bits, odds) % code.field.n]
    return _aligned(_spans(values.reshape(-1, 4, values.shape[1])))


# --- Numba


class Tables(NamedTuple):
    """A code as compiled functions see it."""

    t: int
    degree: int
    order: int  # 2^m - 1
    crc: bool
    exp: NDArray[np.int32]  # [2 order]
    log: NDArray[np.int32]  # [order + 1]
    rows: Bytes  # [256, parity bytes]: what a byte above the parity leaves
    rest: Bytes  # [bits above the degree, parity bytes]: what a bit above the degree leaves
    syndromes: NDArray[np.uint16]  # [digits, 16, lanes]
    crc_table: NDArray[np.uint32]


@njit
def multiply(tables, left, right):
    """Return the product of two elements of the field."""
    if left == 0 or right == 0:
        return 0
    return int(tables.exp[tables.log[left] + tables.log[right]])


@njit
def divide(tables, word):
    """Leave a word modulo g in its parity: byte by byte from the highest power."""
    parity = tables.rows.shape[1]
    for i in range(word.size - 1, parity - 1, -1):
        row = tables.rows[word[i]]
        for j in range(parity):
            word[i - parity + j] ^= row[j]
    for i in range(tables.rest.shape[0] - 1, -1, -1):
        bit = 1 << ((tables.degree + i) & 7)
        if word[parity - 1] & bit:
            for j in range(parity):
                word[j] ^= tables.rest[i, j]
            word[parity - 1] ^= bit


@njit
def find_syndromes(tables, remainder, syndromes):
    """Write the values of a remainder at a^1 to a^(2 t)."""
    syndromes[:] = 0
    for digit in range(tables.syndromes.shape[0]):
        row = tables.syndromes[digit, remainder[digit >> 1] >> (4 * (digit & 1)) & 15]
        for i in range(tables.t):
            syndromes[2 * i] ^= row[i]
    for i in range(tables.t):
        syndromes[2 * i + 1] = multiply(tables, syndromes[i], syndromes[i])


@njit
def find_locator(tables, syndromes, locator):
    """Write the locator polynomial and return its degree; -1 if more than t bits are wrong.

    Berlekamp's iteration without inversions. The discrepancies of a binary code are 0 in every
    second step, so that the other polynomial moves by two powers at a time.
    """
    size = locator.size
    other, before = np.zeros(size, np.int32), np.empty(size, np.int32)
    locator[:] = 0
    locator[0] = other[1] = 1
    scale, length = 1, 0
    for step in range(0, 2 * tables.t, 2):
        discrepancy = 0
        for i in range(min(step, length) + 1):
            discrepancy ^= multiply(tables, locator[i], syndromes[step - i])
        before[:] = locator
        if discrepancy:
            for i in range(size):
                locator[i] = multiply(tables, scale, locator[i]) ^ multiply(
                    tables, discrepancy, other[i]
                )
            if 2 * length <= step:
                length = step + 1 - length
                if length > tables.t:
                    return -1
                scale = discrepancy
                other[:] = before
        other[2:] = other[: size - 2].copy()
        other[:2] = 0
    return length


@njit
def find_positions(tables, locator, degree, bits, positions):
    """Write the positions whose locations are inverses of roots; return their number (Chien)."""
    power = np.empty(degree + 1, np.int32)
    for i in range(degree + 1):
        power[i] = tables.log[locator[i]]
    found = 0
    for place in range(bits):
        value = 0
        for i in range(degree + 1):
            if locator[i]:
                value ^= tables.exp[power[i]]
                power[i] += tables.order - i if power[i] < i else -i
        if value == 0 and found < degree:
            positions[found] = place
            found += 1
    return found


@njit
def crc_of(tables, data):
    """Return the CRC-32C of data."""
    return by_table(tables.crc_table, data, 0xFFFFFFFF) ^ 0xFFFFFFFF


@njit
def crc_agrees(tables, word, first):
    """Return True if the CRC of a word, 4 bytes before its ``first`` byte of data, is right."""
    given = 0
    for i in range(4):
        given |= int(word[first - 4 + i]) << (8 * i)
    return given == crc_of(tables, word[first:])


@njit
def encode_words(tables, data, check):
    """Write the check bytes of words."""
    parity, size = tables.rows.shape[1], check.shape[1]
    word = np.empty(size + data.shape[1], np.uint8)
    for i in range(data.shape[0]):
        word[:parity] = 0
        word[size:] = data[i]
        if tables.crc:
            crc = crc_of(tables, data[i])
            for j in range(4):
                word[parity + j] = check[i, parity + j] = crc >> (8 * j) & 255
        divide(tables, word)
        check[i, :parity] = word[:parity]


@njit
def decode_words(tables, data, check, verify, correct, result):
    """Write the number of wrong bits of each word, or why it is not corrected. ``correct``: False:
    words with wrong bits are UNCORRECTABLE."""
    parity, size = tables.rows.shape[1], check.shape[1]
    word, copy = np.empty(size + data.shape[1], np.uint8), np.empty(size + data.shape[1], np.uint8)
    syndromes, locator = np.empty(2 * tables.t, np.int32), np.empty(2 * tables.t + 4, np.int32)
    positions = np.empty(tables.t + 1, np.int32)
    for i in range(data.shape[0]):
        word[:size], word[size:] = check[i], data[i]
        copy[:] = word
        divide(tables, copy)
        wrong = 0
        if copy[:parity].any():
            wrong = -1
            if correct:
                find_syndromes(tables, copy, syndromes)
                wrong = find_locator(tables, syndromes, locator)
                if wrong >= 0:
                    found = find_positions(tables, locator, wrong, 8 * word.size, positions)
                    wrong = wrong if found == wrong else -1
        for j in range(wrong):
            word[positions[j] >> 3] ^= 1 << (positions[j] & 7)
        if wrong >= 0 and verify and not crc_agrees(tables, word, size):
            wrong = -2
        elif wrong > 0:
            check[i], data[i] = word[:size], word[size:]
        result[i] = wrong


class Numba:
    """The functions of a code in Numba."""

    form: str | None = None

    def __init__(self, code: Code) -> None:
        gf, parity = code.field, code.parity_bytes
        high = code.residues[8 * parity :][:8, :parity]
        self._tables = Tables(
            code.t, code.degree, gf.n, code.crc, gf.exp.astype(np.int32), gf.log.astype(np.int32),
            _spans(np.ascontiguousarray(high)),
            np.ascontiguousarray(code.residues[code.degree : 8 * parity, :parity]),
            _syndrome_table(code), TABLE,
        )  # fmt: skip

    def encode(self, data: Bytes, check: Bytes) -> None:
        """As bch.Functions."""
        encode_words(self._tables, data, check)

    def check(self, data: Bytes, check: Bytes, verify: bool, clean: Bytes) -> None:
        """As bch.Functions."""
        result = np.empty(len(data), np.int32)
        decode_words(self._tables, data, check, verify, False, result)
        clean[:] = result == 0

    def decode(self, data: Bytes, check: Bytes, verify: bool, result: Results) -> None:
        """As bch.Functions."""
        decode_words(self._tables, data, check, verify, True, result)


# --- C


def _maps(gf: Field, form: str) -> Bytes:
    """Return the linear maps y -> c y^(2^k) for k below 7 and c with one 4-bit digit that is not 0:
    uint8[7, 4, 16, 32 or 128], as csrc/bch_avx512.c and csrc/bch_avx2.c apply them."""
    columns = np.zeros((7, 16, 16), np.uint16)  # [k, bit of c, bit of y]
    bits = np.arange(gf.m)
    for k in range(7):
        columns[k, : gf.m, : gf.m] = gf.exp[(bits[:, None] + bits * 2**k) % gf.n]
    images = _spans(columns.reshape(7, 4, 4, 16))  # [k, digit, value, bit of y]
    if form == "clmul":  # the images of 16 values of each 4-bit digit of y: low bytes, high bytes
        sums = _spans(images.reshape(7, 4, 16, 4, 4, 1))[..., 0]
        both = np.stack((sums & 255, sums >> 8), axis=-2)
        return _aligned(both.astype(np.uint8).reshape(7, 4, 16, 128))
    matrix = (images[..., None, :] >> np.arange(16, dtype=np.uint16)[:, None]) & 1  # [.., out, in]
    rows = np.packbits(matrix.astype(np.uint8), axis=-1, bitorder="little")  # [.., out, in byte]
    rows = rows.reshape(7, 4, 16, 2, 8, 2)[..., ::-1, :].swapaxes(-1, -2)  # [out byte, in byte, 8]
    return _aligned(rows.reshape(7, 4, 16, 32))


class Native:
    """The functions of a code in C."""

    def __init__(self, code: Code, isa: str) -> None:
        self._number = native.lib.ondie_bch_form(native.ISAS.index(isa))
        self.form: str | None = FORMS[self._number]
        gf, words = code.field, -(-code.degree // 64)
        record = native.ffi.new("ondie_bch *")
        record.m, record.t, record.n, record.degree = gf.m, code.t, gf.n, code.degree
        record.data_bytes, record.parity_bytes = code.data_bytes, code.parity_bytes
        record.crc, record.words = code.crc, words
        syndromes = _syndrome_table(code)
        record.lanes = syndromes.shape[2]
        record.inverse = self._inverse(code)
        record.groups = -(-words // 12)
        record.group = -(-words // record.groups)
        data_words = -(-code.data_bytes // 8)
        record.blocks = -(-(data_words + code.crc) // 8)
        span = self._span(code, 1024 if self.form in PLANES else 64)
        record.span, record.spans = span, -(-code.bits // span)
        self._kept: list[np.ndarray] = []
        low = generator(code.m, code.t) ^ 1 << code.degree
        generator_words = np.frombuffer(low.to_bytes(8 * words, "little"), np.uint64)
        for name, kind, table in (
            ("generator", "uint64_t", generator_words),
            ("syndromes", "uint16_t", syndromes),
            ("exp", "uint16_t", gf.exp),
            ("log", "uint16_t", gf.log),
            ("powers", "uint8_t", self._powers(code, span, self.form in PLANES)),
        ):
            self._set(record, name, kind, table)
        if self.form == "plain":
            self._set(record, "rows", "uint32_t", self._rows(code))
        else:
            self._set(record, "maps", "uint8_t", _maps(gf, self.form))
            self._set(record, "dot", "uint64_t", self._dot(code, record))
        self._record = record

    def _set(self, record: Any, name: str, kind: str, table: np.ndarray) -> None:
        """Set a pointer of the record to a table, which stays alive."""
        self._kept.append(table)
        setattr(record, name, native.ffi.cast(f"{kind} *", table.ctypes.data))

    @staticmethod
    def _inverse(code: Code) -> int:
        """Return floor(x^(r + 64) / g) without its highest power, x^64."""
        product, rest, quotient = generator(code.m, code.t), 1 << (code.degree + 64), 0
        for shift in range(64, -1, -1):
            if rest >> (code.degree + shift):
                quotient |= 1 << shift
                rest ^= product << shift
        return quotient ^ 1 << 64

    @staticmethod
    def _span(code: Code, step: int) -> int:
        """Return the positions that the table of powers covers, a multiple of ``step``."""
        size = (code.t + 1) // 2 * (2 * code.bits)
        pieces = -(-size // POWER_BYTES)
        return -(-code.bits // (step * pieces)) * step

    @staticmethod
    def _powers(code: Code, span: int, planes: bool) -> Bytes:
        """Return a^(-j i) for odd j: the low and the high bytes, uint8[(t + 1) / 2, 2, span], or
        with ``planes`` the m bits, uint8[(t + 1) / 2, m, span / 8]."""
        odds = 2 * np.arange((code.t + 1) // 2)[:, None] + 1
        values = code.field.exp[-odds * np.arange(span) % code.field.n]
        if planes:
            bits = values[:, None, :] >> np.arange(code.m, dtype=np.uint16)[:, None] & 1
            return _aligned(np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little"))
        return _aligned(np.stack((values & 255, values >> 8), axis=1).astype(np.uint8))

    @staticmethod
    def _rows(code: Code) -> NDArray[np.uint32]:
        """Return what each of 4 bytes above the parity leaves: uint32[4, 256, words]."""
        width = -(-code.degree // 32)
        first = code.residues[32 * width :][:32].view(np.uint32)[:, :width]
        return _aligned(_spans(np.ascontiguousarray(first).reshape(4, 8, width)))

    @staticmethod
    def _dot(code: Code, record: Any) -> NDArray[np.uint64]:
        """Return x^p mod g for the place p of each word of 64 bits of data, and of the CRC behind
        them: uint64[groups, blocks, columns, 8]."""
        data_words = -(-code.data_bytes // 8)
        places = [8 * code.check_bytes + 64 * i for i in range(data_words)]
        places += [8 * code.parity_bytes] if code.crc else []
        factors = np.zeros((record.blocks * 8, record.groups * record.group), np.uint64)
        factors[: len(places), : record.words] = code.residues[places].view(np.uint64)
        split = factors.reshape(record.blocks, 8, record.groups, record.group)
        return _aligned(split.transpose(2, 0, 3, 1))

    def encode(self, data: Bytes, check: Bytes) -> None:
        """As bch.Functions."""
        place = native.ffi.from_buffer
        native.lib.ondie_bch_encode(
            self._number, self._record, place("uint8_t[]", data), place("uint8_t[]", check),
            len(data),
        )  # fmt: skip

    def check(self, data: Bytes, check: Bytes, verify: bool, clean: Bytes) -> None:
        """As bch.Functions."""
        place = native.ffi.from_buffer
        native.lib.ondie_bch_check(
            self._number, self._record, place("uint8_t[]", data), place("uint8_t[]", check),
            len(data), verify, place("uint8_t[]", clean),
        )  # fmt: skip

    def decode(self, data: Bytes, check: Bytes, verify: bool, result: Results) -> None:
        """As bch.Functions."""
        place = native.ffi.from_buffer
        native.lib.ondie_bch_decode(
            self._number, self._record, place("uint8_t[]", data), place("uint8_t[]", check),
            len(data), verify, place("int32_t[]", result),
        )  # fmt: skip
