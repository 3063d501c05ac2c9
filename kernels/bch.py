"""BCH codes with a CRC-32C inside the code word: encoding, checking and correction of bytes.

Owns the functions that Numba compiles, the calls of the C functions, `get` and the argument checks.
Does not own the construction of a code and its definition in NumPy (bch_code.py), the C functions
(csrc/bch.c), error rates or the decoding time (emu/nand/ecc.py).
Source: the sources of bch_code.py; Burton, "Inversionless decoding of binary BCH codes", IEEE
Trans. Inf. Theory 17(4), 1971; Barrett, CRYPTO '86 (division by a constant).

    code = get("bch", m=14, t=40, data_bytes=1024)
    check = code.encode(data)            # uint8[words, 1024] -> uint8[words, 74]
    clean = code.check(data, check)      # bool[words]
    wrong = code.decode(data, check)     # int32[words], corrects in place; bits, or < 0 if failed
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import native
from .bch_code import (
    MISCORRECTED,
    PRIMITIVE,
    UNCORRECTABLE,
    Bytes,
    Code,
    Definition,
    Functions,
    Results,
    aligned,
    check_bytes,
    generator,
    linear_maps,
    most_data,
    sums_of_rows,
    syndrome_table,
)
from .crc import TABLE, by_table
from .errors import KernelError, whole
from .jit import njit

FORMS = ("plain", "clmul", "gfni")
"""Implementations ("forms") of BCH in C, in the order of enum ONDIE_BCH_*; see `Bch.form`."""
PLANES = ("plain",)
"""Elements of FORMS whose Chien search is bit-sliced: one bit plane per bit of a field element."""
POWER_BYTES = 1 << 19
"""Approximate maximum size of the Chien search's table of powers, bytes; it fits in L2 caches."""


# --- Numba


class Tables(NamedTuple):
    """Sizes and lookup tables of one BCH code, as the Numba functions of this module take them."""

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
    """Return the product of two elements of GF(2^m)."""
    if left == 0 or right == 0:
        return 0
    return int(tables.exp[tables.log[left] + tables.log[right]])


@njit
def divide(tables, word):
    """Reduce ``word`` modulo generator g; only its parity bytes, the remainder, are then valid."""
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
def copy_into(target, source):
    """Copy ``source`` to the start of ``target``. Numba compiles a loop 2 s faster than a slice."""
    for i in range(source.size):
        target[i] = source[i]


@njit
def find_syndromes(tables, remainder, syndromes):
    """Write to ``syndromes`` the values of the polynomial ``remainder`` at a^1 to a^(2 t)."""
    syndromes[:] = 0
    for digit in range(tables.syndromes.shape[0]):
        row = tables.syndromes[digit, remainder[digit >> 1] >> (4 * (digit & 1)) & 15]
        for i in range(tables.t):
            syndromes[2 * i] ^= row[i]
    for i in range(tables.t):
        syndromes[2 * i + 1] = multiply(tables, syndromes[i], syndromes[i])


@njit
def find_locator(tables, syndromes, locator):
    """Write the error locator polynomial; return its degree, or -1 if the degree would exceed t.

    Uses Berlekamp's iteration without inversions. The discrepancies of a binary code are 0 in every
    second step, so the auxiliary polynomial ``other`` is multiplied by x^2 in each iteration.
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
        copy_into(before, locator)
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
                copy_into(other, before)
        for i in range(size - 1, 1, -1):
            other[i] = other[i - 2]
        other[:2] = 0
    return length


@njit
def find_positions(tables, locator, degree, bits, positions):
    """Store the p < ``bits`` with locator(a^-p) = 0 (a: primitive element); return their number."""
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
    """Return the CRC-32C of ``data``."""
    return by_table(tables.crc_table, data, 0xFFFFFFFF) ^ 0xFFFFFFFF


@njit
def crc_agrees(tables, word, first):
    """Return True if the 4 bytes before word[first] hold the CRC-32C of word[first:]."""
    given = 0
    for i in range(4):
        given |= int(word[first - 4 + i]) << (8 * i)
    return given == crc_of(tables, word[first:])


@njit
def encode_words(tables, data, check):
    """Write the check bytes (parity and CRC) of each word of ``data`` to ``check``."""
    parity, size = tables.rows.shape[1], check.shape[1]
    word = np.empty(size + data.shape[1], np.uint8)
    for i in range(data.shape[0]):
        word[:parity] = 0
        copy_into(word[size:], data[i])
        if tables.crc:
            crc = crc_of(tables, data[i])
            for j in range(4):
                word[parity + j] = check[i, parity + j] = crc >> (8 * j) & 255
        divide(tables, word)
        copy_into(check[i], word[:parity])


@njit
def decode_words(tables, data, check, verify, correct, result):
    """Correct the words in place; write the result of each word (see `Bch.decode`) to ``result``.
    If ``correct`` is False, a word with bit errors is not corrected but counts as UNCORRECTABLE."""
    parity, size = tables.rows.shape[1], check.shape[1]
    word, copy = np.empty(size + data.shape[1], np.uint8), np.empty(size + data.shape[1], np.uint8)
    syndromes, locator = np.empty(2 * tables.t, np.int32), np.empty(2 * tables.t + 4, np.int32)
    positions = np.empty(tables.t + 1, np.int32)
    for i in range(data.shape[0]):
        copy_into(word, check[i])
        copy_into(word[size:], data[i])
        copy_into(copy, word)
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
            copy_into(check[i], word[:size])
            copy_into(data[i], word[size:])
        result[i] = wrong


class Numba:
    """Encoder and decoder of a BCH code, compiled by Numba (implements `Functions`)."""

    form: str | None = None

    def __init__(self, code: Code) -> None:
        gf, parity = code.field, code.parity_bytes
        high = code.residues[8 * parity :][:8, :parity]
        self._tables = Tables(
            code.t, code.degree, gf.n, code.crc, gf.exp.astype(np.int32), gf.log.astype(np.int32),
            sums_of_rows(np.ascontiguousarray(high)),
            np.ascontiguousarray(code.residues[code.degree : 8 * parity, :parity]),
            syndrome_table(code), TABLE,
        )  # fmt: skip

    def encode(self, data: Bytes, check: Bytes) -> None:
        """Write the check bytes of each word of ``data`` to ``check``."""
        encode_words(self._tables, data, check)

    def check(self, data: Bytes, check: Bytes, verify: bool, clean: Bytes) -> None:
        """Write 1 to ``clean`` for each word that passes the check (`Functions.check`), else 0."""
        result = np.empty(len(data), np.int32)
        decode_words(self._tables, data, check, verify, False, result)
        clean[:] = result == 0

    def decode(self, data: Bytes, check: Bytes, verify: bool, result: Results) -> None:
        """Correct code words in place; write each result (see `Bch.decode`) to ``result``."""
        decode_words(self._tables, data, check, verify, True, result)


# --- C


class Native:
    """Encoder and decoder of a BCH code in C (implements `Functions`)."""

    def __init__(self, code: Code, isa: str) -> None:
        self._number = native.lib.ondie_bch_form(native.ISAS.index(isa))
        self.form: str | None = FORMS[self._number]
        gf, words = code.field, -(-code.degree // 64)
        record = native.ffi.new("ondie_bch *")
        record.m, record.t, record.n, record.degree = gf.m, code.t, gf.n, code.degree
        record.data_bytes, record.parity_bytes = code.data_bytes, code.parity_bytes
        record.crc, record.words = code.crc, words
        syndromes = syndrome_table(code)
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
            self._set(record, "maps", "uint8_t", linear_maps(gf, self.form))
            self._set(record, "dot", "uint64_t", self._dot(code, record))
        self._record = record

    def _set(self, record: Any, name: str, kind: str, table: np.ndarray) -> None:
        """Point field ``name`` of the C record ondie_bch to ``table``; keep the table alive."""
        self._kept.append(table)
        setattr(record, name, native.ffi.cast(f"{kind} *", table.ctypes.data))

    @staticmethod
    def _inverse(code: Code) -> int:
        """Return floor(x^(r + 64) / g) without its term x^64, for Barrett's division by g."""
        product, rest, quotient = generator(code.m, code.t), 1 << (code.degree + 64), 0
        for shift in range(64, -1, -1):
            if rest >> (code.degree + shift):
                quotient |= 1 << shift
                rest ^= product << shift
        return quotient ^ 1 << 64

    @staticmethod
    def _span(code: Code, step: int) -> int:
        """Return how many bit positions the table of powers covers, a multiple of ``step``."""
        size = (code.t + 1) // 2 * (2 * code.bits)
        pieces = -(-size // POWER_BYTES)
        return -(-code.bits // (step * pieces)) * step

    @staticmethod
    def _powers(code: Code, span: int, planes: bool) -> Bytes:
        """Return the table of powers a^(-j i), odd j, 0 <= i < span: the low and the high bytes,
        uint8[(t + 1) / 2, 2, span], or, if ``planes``, the m bits, uint8[.., m, span / 8]."""
        odds = 2 * np.arange((code.t + 1) // 2)[:, None] + 1
        values = code.field.exp[-odds * np.arange(span) % code.field.n]
        if planes:
            bits = values[:, None, :] >> np.arange(code.m, dtype=np.uint16)[:, None] & 1
            return aligned(np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little"))
        return aligned(np.stack((values & 255, values >> 8), axis=1).astype(np.uint8))

    @staticmethod
    def _rows(code: Code) -> NDArray[np.uint32]:
        """Return remainders mod g of each value of 4 bytes above parity: uint32[4, 256, words]."""
        width = -(-code.degree // 32)
        first = code.residues[32 * width :][:32].view(np.uint32)[:, :width]
        return aligned(sums_of_rows(np.ascontiguousarray(first).reshape(4, 8, width)))

    @staticmethod
    def _dot(code: Code, record: Any) -> NDArray[np.uint64]:
        """Return x^p mod g, where p is the bit position of each 64-bit word of data and, after
        these, of the CRC: uint64[groups, blocks, columns, 8]."""
        data_words = -(-code.data_bytes // 8)
        places = [8 * code.check_bytes + 64 * i for i in range(data_words)]
        places += [8 * code.parity_bytes] if code.crc else []
        factors = np.zeros((record.blocks * 8, record.groups * record.group), np.uint64)
        factors[: len(places), : record.words] = code.residues[places].view(np.uint64)
        split = factors.reshape(record.blocks, 8, record.groups, record.group)
        return aligned(split.transpose(2, 0, 3, 1))

    def encode(self, data: Bytes, check: Bytes) -> None:
        """Write the check bytes of each word of ``data`` to ``check``."""
        place = native.ffi.from_buffer
        native.lib.ondie_bch_encode(
            self._number, self._record, place("uint8_t[]", data), place("uint8_t[]", check),
            len(data),
        )  # fmt: skip

    def check(self, data: Bytes, check: Bytes, verify: bool, clean: Bytes) -> None:
        """Write 1 to ``clean`` for each word that passes the check (`Functions.check`), else 0."""
        place = native.ffi.from_buffer
        native.lib.ondie_bch_check(
            self._number, self._record, place("uint8_t[]", data), place("uint8_t[]", check),
            len(data), verify, place("uint8_t[]", clean),
        )  # fmt: skip

    def decode(self, data: Bytes, check: Bytes, verify: bool, result: Results) -> None:
        """Correct code words in place; write each result (see `Bch.decode`) to ``result``."""
        place = native.ffi.from_buffer
        native.lib.ondie_bch_decode(
            self._number, self._record, place("uint8_t[]", data), place("uint8_t[]", check),
            len(data), verify, place("int32_t[]", result),
        )  # fmt: skip


# --- what callers have


class Bch:
    """Encoder and decoder of a BCH code on a backend; `kernels.get` creates it.

    Each row of an array is one code word: data is uint8[words, data_bytes], check uint8[words,
    check_bytes]; a single word may be one-dimensional. Arrays must be contiguous and must not
    overlap, else KernelError is raised. All backends and instruction sets give the same results.
    """

    def __init__(self, code: Code, backend: str, isa: str | None) -> None:
        self.code = code
        self.backend, self.isa = native.choose(backend, isa)
        self._functions = self._made()

    def _made(self) -> Functions:
        if self.backend == "numpy":
            return Definition(self.code)
        return Numba(self.code) if self.isa is None else Native(self.code, self.isa)

    def __repr__(self) -> str:
        code, isa = self.code, f", isa={self.isa!r}" if self.isa else ""
        return (
            f"get('bch', backend={self.backend!r}{isa}, m={code.m}, t={code.t}, "
            f"data_bytes={code.data_bytes}, crc={code.crc})"
        )

    @property
    def form(self) -> str | None:
        """Return the form of the C functions: "plain", "clmul" (AVX2 with PCLMULQDQ) or "gfni"
        (AVX-512 with GFNI and VPCLMULQDQ). The result is None for the other backends."""
        return self._functions.form

    @property
    def check_bytes(self) -> int:
        """Return the number of check bytes of each code word: parity, and CRC if present."""
        return self.code.check_bytes

    def encode(self, data: Bytes, check: Bytes | None = None) -> Bytes:
        """Return the check bytes of all rows of ``data``, in the array ``check`` if it is given."""
        rows = self._rows("data", data, self.code.data_bytes)
        if check is None:
            check = np.empty((*data.shape[:-1], self.check_bytes), np.uint8)
        places = self._rows("check", check, self.check_bytes, True)
        self._same(rows, places)
        self._functions.encode(rows, places)
        return check

    def check(self, data: Bytes, check: Bytes, verify: bool = True) -> NDArray[np.bool_]:
        """Return bool[words], True for each word that belongs to the code. Unless ``verify`` is
        False, the CRC of the word must be correct too."""
        rows = self._rows("data", data, self.code.data_bytes)
        places = self._rows("check", check, self.check_bytes)
        self._same(rows, places)
        clean = np.empty(len(rows), np.uint8)
        self._functions.check(rows, places, bool(verify) and self.code.crc, clean)
        return clean.view(np.bool_)

    def decode(self, data: Bytes, check: Bytes, verify: bool = True) -> Results:
        """Correct data and check bytes in place. Return int32[words]: the number of corrected bits,
        UNCORRECTABLE or MISCORRECTED. In the last two cases the word does not change.

        If ``verify`` is False, the CRC is not compared. A word with more than t bit errors may then
        become another word of the code.
        """
        rows = self._rows("data", data, self.code.data_bytes, True)
        places = self._rows("check", check, self.check_bytes, True)
        self._same(rows, places)
        result = np.empty(len(rows), np.int32)
        self._functions.decode(rows, places, bool(verify) and self.code.crc, result)
        return result

    @staticmethod
    def _rows(name: str, array: Bytes, size: int, writable: bool = False) -> Bytes:
        """Return ``array`` as rows of ``size`` bytes. Raises KernelError for a wrong type or
        size."""
        if not isinstance(array, np.ndarray):
            raise KernelError(f"bch: {name} is {type(array).__name__}, expected an array of uint8")
        good = array.ndim in (1, 2) and array.shape[-1] == size and array.dtype == np.uint8
        if not good or not array.flags.c_contiguous:
            strided = "" if array.flags.c_contiguous else ", strided"
            raise KernelError(
                f"bch: {name} is {array.dtype} {array.shape}{strided}, expected contiguous uint8 "
                f"(n, {size})"
            )
        if writable and not array.flags.writeable:
            raise KernelError(f"bch: {name} is read-only; pass a writable array")
        return array.reshape(-1, size)

    @staticmethod
    def _same(data: Bytes, check: Bytes) -> None:
        """Raise KernelError if data and check differ in their number of words or share memory."""
        if len(data) != len(check):
            raise KernelError(f"bch: data has {len(data)} rows, check has {len(check)}; must match")
        if np.may_share_memory(data, check):
            raise KernelError("bch: data and check share memory; pass separate arrays")


def get(
    m: Any, t: Any, data_bytes: Any, crc: bool = True, backend: str = "auto", isa: str | None = None
) -> Bch:
    """Return the BCH code that corrects ``t`` bit errors in words of ``data_bytes`` bytes of data.

    m: degree of the field; a word has at most 2^m - 1 bits. crc: True if words contain the CRC-32C
    of their data. backend, isa: as in `kernels.get`. Raises KernelError for invalid arguments.
    """
    given = {"m": m, "t": t, "data_bytes": data_bytes}
    m, t, data_bytes = (whole(f"bch: {name}", value) for name, value in given.items())
    if type(crc) is not bool:
        raise KernelError(f"bch: crc = {crc!r}; must be True or False")
    return Bch(Code(m, t, data_bytes, crc), backend, isa)


__all__ = [
    "MISCORRECTED",
    "PRIMITIVE",
    "UNCORRECTABLE",
    "Bch",
    "check_bytes",
    "generator",
    "get",
    "most_data",
]
