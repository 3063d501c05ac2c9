"""Quasi-cyclic LDPC code of 4 KiB words, with a CRC-32C inside each word.

Owns encoding, checking and decoding in NumPy, Numba and C with identical results. Does not own the
matrix (ldpc_code.py), its use in a drive, or the measurement of its frame errors
(emu/validate/ldpc_curve.py).
Source: R. G. Gallager, "Low-Density Parity-Check Codes", 1963 (code, bit flipping); J. Chen and
M. Fossorier, "Near Optimum Universal Belief Propagation Based Decoding of Low-Density Parity Check
Codes", IEEE Trans. Commun. 50, 2002 (scaled min-sum); D. Hocevar, "A Reduced Complexity Decoder
Architecture via Layered Decoding of LDPC Codes", SiPS 2004.

**Code.** A word has columns of ``circulant`` bits, here Z. Bit i of a column is bit i % 8 of its
byte i / 8. A row of checks has a shift s for each column, or -1 for none. Its check i is the
exclusive or of bits (i + s) % Z of its columns, and 0 in a code word. The last four columns are
parity. Those before contain the data, their CRC-32C, and bits that are 0 and not stored.

**Bit flipping** is tried before min-sum and, for AFTER rounds, after each iteration, if at most one
of FEW checks fails. A round flips every bit all of whose checks fail; if there is none, every bit
of which three checks fail. Rounds end if the number of failed checks does not fall.

**Min-sum.** A message is an integer, positive for 0. Each iteration updates the rows in turn. The
check of a row receives from each bit its total minus the check's last answer. It answers each bit
with the product of the signs and the least magnitude of the others, at most LARGEST, times 3/4,
rounded down. Iterations end when all checks are satisfied. With hard input all magnitudes are equal
at first: in the first iteration, all checks answer the read bits with FIRST times the product of
the signs of the others (flooding), which is less than 3/4 and converges sooner.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import native
from .crc import crc32c
from .errors import KernelError, whole
from .jit import njit
from .ldpc_code import (
    CRC_BYTES,
    ROWS,
    Bits,
    Code,
    Words,
    code,
    columns_of,
    inverse_of,
    numba_checks,
    numba_parity,
    numpy_checks,
    numpy_parity,
    word_of,
)
from .memory import aligned_empty

LARGEST = 32  # ONDIE_LDPC_LARGEST: of the magnitudes that a check takes into account
MOST = 31  # largest magnitude of an input message
KNOWN = 100  # ONDIE_LDPC_KNOWN: message of a bit that is not stored
HARD = 12  # ONDIE_LDPC_HARD: magnitude of an input message with hard input
FIRST = 4  # ONDIE_LDPC_FIRST: of answers to such messages in the first iteration
FEW, AFTER = 24, 2  # ONDIE_LDPC_FEW, ONDIE_LDPC_AFTER
ITERATIONS, FLIPS = 20, 10

CORRECT, FAILED, WRONG_CRC = 0, 1, 2
"""Outcome of decoding a word: decoded; checks fail after the last iteration; code word with another
CRC."""


# --- definition


def numpy_flip(
    code: Code, bits: Bits, known: NDArray[np.bool_], checks: Bits, most: int
) -> tuple[bool, int]:
    """Correct ``bits`` by flipping. ``checks``: their failed checks.

    Returns whether all checks are satisfied, and the rounds.
    """
    weights = (code.shifts >= 0).sum(0)[:, None]
    count = int(checks.sum())
    for rounds in range(most):
        failed = np.zeros(bits.shape, np.uint8)
        for row, column in np.argwhere(code.shifts >= 0):
            failed[column] += np.roll(checks[row], code.shifts[row, column])
        chosen = (failed == weights) & ~known
        if not chosen.any():
            chosen = (failed >= 3) & ~known
        if not chosen.any():
            return False, rounds
        bits ^= chosen
        before, checks = count, numpy_checks(code, bits)
        count = int(checks.sum())
        if count == 0 or count >= before:
            return count == 0, rounds + 1
    return False, most


def numpy_first(
    code: Code,
    total: NDArray[np.int8],
    known: NDArray[np.bool_],
    answers: NDArray[np.int8],
    bits: Bits,
) -> None:
    """Make the first iteration of min-sum with hard input.

    Updates ``total``, int8[columns, circulant], and ``answers``, int8[ROWS, columns, circulant].
    """
    checks = numpy_checks(code, bits)
    for row, column in np.argwhere(code.shifts >= 0):
        shift = int(code.shifts[row, column])
        negative = checks[row] ^ np.roll(bits[column], -shift)
        answers[row, column] = np.where(negative, -FIRST, FIRST)
        total[column] += np.roll(answers[row, column], shift)
    total[known] = KNOWN


def numpy_iterate(
    code: Code, total: NDArray[np.int8], known: NDArray[np.bool_], answers: NDArray[np.int8]
) -> None:
    """Make one iteration of min-sum.

    Updates ``total``, int8[columns, circulant], and ``answers``, int8[ROWS, columns, circulant].
    """
    for row in range(ROWS):
        columns = np.flatnonzero(code.shifts[row] >= 0)
        pairs = [(column, int(code.shifts[row, column])) for column in columns]
        unstored = np.stack([np.roll(known[column], -shift) for column, shift in pairs])
        sent = np.stack([np.roll(total[column], -shift) for column, shift in pairs])
        sent = np.where(unstored, np.int8(KNOWN), sent - answers[row, columns])
        ordered = np.minimum(np.sort(np.abs(sent), axis=0)[:2], LARGEST)
        low, high = (3 * ordered.astype(np.int16) // 4).astype(np.int8)
        answer = np.where(np.abs(sent) == np.abs(sent).min(0), high, low)
        negative = np.logical_xor.reduce(sent < 0, axis=0) ^ (sent < 0)
        answer = np.where(negative, -answer, answer)
        answers[row, columns] = answer
        for (column, shift), values in zip(pairs, sent + answer, strict=True):
            total[column] = np.roll(values, shift)


# --- Numba


@njit
def numba_flip(shifts, bits, known, checks, most):
    """Compute `numpy_flip` in Numba."""
    rows, columns = shifts.shape
    size = bits.shape[1]
    failed = np.zeros(bits.shape, np.uint8)
    count = checks.sum()
    for rounds in range(most):
        failed[:] = 0
        all_fail = False
        for column in range(columns):
            weight = 0
            for row in range(rows):
                shift = shifts[row, column]
                if shift >= 0:
                    weight += 1
                    for i in range(size):
                        failed[column, i] += checks[row, (i - shift) & (size - 1)]
            for i in range(size):
                if known[column, i]:
                    failed[column, i] = 0
                elif failed[column, i] == weight:
                    failed[column, i] = rows + 1
                    all_fail = True
        flipped = False
        for column in range(columns):
            for i in range(size):
                if failed[column, i] > rows or (not all_fail and failed[column, i] >= 3):
                    bits[column, i] ^= 1
                    flipped = True
        if not flipped:
            return False, rounds
        before = count
        count = numba_checks(shifts, bits, columns, checks)
        if count == 0 or count >= before:
            return count == 0, rounds + 1
    return False, most


@njit
def numba_first(shifts, total, known, answers, bits):
    """Compute `numpy_first` in Numba."""
    columns, size = bits.shape
    checks = np.empty((shifts.shape[0], size), np.uint8)
    numba_checks(shifts, bits, columns, checks)
    for row in range(shifts.shape[0]):
        for column in range(columns):
            shift = shifts[row, column]
            if shift >= 0:
                for i in range(size):
                    at = (i + shift) & (size - 1)
                    answer = -FIRST if checks[row, i] ^ bits[column, at] else FIRST
                    answers[row, column, i] = answer
                    total[column, at] += answer
    for column in range(columns):
        for i in range(size):
            if known[column, i]:
                total[column, i] = KNOWN


@njit
def numba_row(shifts, row, total, known, messages, sent):
    """Update the totals and messages of one row of checks. ``sent``: int8[columns, circulant]."""
    columns, size = total.shape
    least = np.full(size, 127, np.int8)
    second = np.full(size, 127, np.int8)
    negative = np.zeros(size, np.bool_)
    for column in range(columns):
        shift = shifts[row, column]
        if shift >= 0:
            for i in range(size):
                at = (i + shift) & (size - 1)
                value = np.int8(KNOWN)
                if not known[column, at]:
                    value = np.int8(total[column, at] - messages[row, column, i])
                sent[column, i] = value
                negative[i] ^= value < 0
                magnitude = np.int8(abs(value))
                second[i] = min(second[i], max(least[i], magnitude))
                least[i] = min(least[i], magnitude)
    for column in range(columns):
        shift = shifts[row, column]
        if shift >= 0:
            for i in range(size):
                value = sent[column, i]
                answer = second[i] if abs(value) == least[i] else least[i]
                answer = 3 * min(answer, LARGEST) >> 2
                if negative[i] != (value < 0):
                    answer = -answer
                messages[row, column, i] = answer
                total[column, (i + shift) & (size - 1)] = value + answer


@njit
def numba_iterate(shifts, total, known, answers):
    """Compute `numpy_iterate` in Numba."""
    sent = np.zeros(total.shape, np.int8)
    for row in range(shifts.shape[0]):
        numba_row(shifts, row, total, known, answers, sent)


# --- kernel


@dataclass(eq=False, slots=True)  # not frozen, since that takes 0.5 us of a word's 25
class Decoded:
    """Result of decoding n words.

    words: uint8[n, word_bytes], corrected where ``outcome`` is CORRECT. iterations, int32[n]: those
    of min-sum; flips, int32[n]: rounds of bit flipping. outcome, int32[n]: CORRECT, FAILED or
    WRONG_CRC.
    """

    words: Words
    iterations: NDArray[np.int32]
    flips: NDArray[np.int32]
    outcome: NDArray[np.int32]


class Ldpc:
    """Encoder and decoder of a code on a backend; any number of threads may use it.

    backend, isa: as in `ondie.kernels.get`. of: a result of `code`, or any other Code; None: that
    of 4 KiB words.
    """

    def __init__(self, backend: str = "auto", isa: str | None = None, of: Code | None = None):
        self.backend, self.isa = native.choose(backend, isa)
        self.code = code() if of is None else of
        known = np.zeros(self.code.columns * self.code.circulant, bool)
        known[self.code.stored_bits : -ROWS * self.code.circulant] = True
        self._known = known.reshape(self.code.columns, self.code.circulant)
        self._thread = threading.local()
        self._inverse = inverse_of(self.code)
        if self.backend == "c":
            self._record, self._kept = _record(self.code, *self._inverse)
            self._decode_words = native.function("ldpc_decode", self.isa)
            self._results_of = native.pointer("ondie_ldpc_result[]")

    def __repr__(self) -> str:
        of = self.code
        isa = f", isa={self.isa!r}" if self.isa else ""
        return (
            f"Ldpc(backend={self.backend!r}{isa}: {of.data_bytes} bytes in {of.word_bytes}, "
            f"rate {of.rate:.4f}, circulant {of.circulant}, girth {of.girth})"
        )

    def encode(self, data: NDArray[np.uint8]) -> Words:
        """Return code words uint8[n, word_bytes] of ``data``, uint8[n, data_bytes].

        A word is the data, their CRC-32C in little-endian order, and parity. Without n: one word.
        Raises KernelError.
        """
        rows = _checked("data", data, np.uint8, self.code.data_bytes)
        words = np.empty((len(rows), self.code.word_bytes), np.uint8)
        if self.backend == "c":
            call = native.function("ldpc_encode", self.isa)
            from_buffer = native.ffi.from_buffer
            call(self._record, from_buffer(rows), from_buffer(words), len(rows), self._memory())
        else:
            for row, word in zip(rows, words, strict=True):
                self._encode(row, word)
        return words.reshape(*data.shape[:-1], self.code.word_bytes)

    def _encode(self, data: NDArray[np.uint8], word: Words) -> None:
        """Write the code word of ``data`` with NumPy or Numba."""
        word[: data.size] = data
        word[data.size : data.size + CRC_BYTES] = _crc_bytes(data)
        word[data.size + CRC_BYTES :] = 0
        bits = columns_of(self.code, word)
        if self.backend == "numba":
            sums = np.empty((ROWS, self.code.circulant), np.uint8)
            numba_parity(self.code.shifts, bits, *self._inverse, sums)
        else:
            numpy_parity(self.code, bits)
        word[:] = word_of(self.code, bits)

    def decode(self, words: Words, iterations: int = ITERATIONS, flips: int = FLIPS) -> Decoded:
        """Decode words of bits, uint8[n, word_bytes] (hard input).

        iterations: largest number of those of min-sum, 1 to 20. flips: largest number of rounds of
        bit flipping, 0 to 20. Raises KernelError.
        """
        rows = _checked("words", words, np.uint8, self.code.word_bytes)
        return self._decoded(rows, None, iterations, flips)

    def decode_soft(
        self, messages: NDArray[np.int8], iterations: int = ITERATIONS, flips: int = FLIPS
    ) -> Decoded:
        """Decode words of messages, int8[n, 8 * word_bytes], from -31 (1) to 31 (0) (soft input).

        The message of bit i % 8 of byte i / 8 is number i. A message is proportional to the
        logarithm of how much more probable 0 is than 1. Raises KernelError.
        """
        rows = _checked("messages", messages, np.int8, 8 * self.code.word_bytes)
        if rows.size and max(int(rows.max()), -int(rows.min())) > MOST:
            raise KernelError(f"messages: {rows.min()} to {rows.max()}; must be from -31 to 31")
        return self._decoded(None, rows, iterations, flips)

    def satisfied(self, words: Words) -> NDArray[np.bool_]:
        """Return which words, uint8[n, word_bytes], satisfy all checks and have their CRC."""
        found = self.decode(_checked("words", words, np.uint8, self.code.word_bytes), 1, 0)
        return (found.iterations == 0) & (found.outcome == CORRECT)

    def _decoded(
        self, words: Words | None, messages: NDArray[np.int8] | None, iterations: int, flips: int
    ) -> Decoded:
        """Decode checked input on the backend."""
        if type(iterations) is not int or not 1 <= iterations <= ITERATIONS:
            raise KernelError(f"iterations: {iterations!r}; must be from 1 to {ITERATIONS}")
        if type(flips) is not int or not 0 <= flips <= ITERATIONS:
            raise KernelError(f"flips: {flips!r}; must be from 0 to {ITERATIONS}")
        count = len(messages) if words is None else words.shape[0]  # type: ignore[arg-type]
        results = np.empty((count, 3), np.int32)
        found = np.empty((count, self.code.word_bytes), np.uint8)
        if self.backend == "c":
            buffer, null = native.ffi.from_buffer, native.ffi.NULL
            self._decode_words(
                self._record, null if words is None else buffer(words),
                null if messages is None else native.ffi.from_buffer("int8_t[]", messages),
                iterations, flips, buffer(found), self._results_of(results), count, self._memory(),
            )  # fmt: skip
        else:
            for i in range(count):
                results[i] = self._decode(
                    found[i],
                    None if words is None else words[i],
                    None if messages is None else messages[i],
                    iterations,
                    flips,
                )
        return Decoded(found, *results.T)

    def _decode(
        self,
        found: Words,
        word: Words | None,
        messages: NDArray[np.int8] | None,
        iterations: int,
        flips: int,
    ) -> tuple[int, int, int]:
        """Decode one word with NumPy or Numba; return iterations, rounds and outcome."""
        of, compiled, good = self.code, self.backend == "numba", False
        read = word if messages is None else np.packbits(messages < 0, bitorder="little")
        assert read is not None
        bits = columns_of(of, read)
        total = (HARD - 2 * HARD * bits.astype(np.int8)).astype(np.int8)
        if messages is not None:
            total.reshape(-1)[: of.stored_bits] = messages[: of.stored_bits]
            total[-ROWS:] = messages[of.stored_bits :].reshape(ROWS, -1)
        answers = np.zeros((ROWS, *total.shape), np.int8)
        made = rounds = 0
        while True:
            if compiled:
                checks = np.empty((ROWS, of.circulant), np.uint8)
                numba_checks(of.shifts, bits, of.columns, checks)
            else:
                checks = numpy_checks(of, bits)
            good = not checks.any()
            if not good and checks.sum() * FEW <= ROWS * of.circulant:
                most = min(flips, AFTER) if made else flips
                if compiled:
                    good, more = numba_flip(of.shifts, bits, self._known, checks, most)
                else:
                    good, more = numpy_flip(of, bits, self._known, checks, most)
                rounds += more
            if good or made == iterations:
                break
            made += 1
            if made == 1 and messages is None:
                first = columns_of(of, read)
                if compiled:
                    numba_first(of.shifts, total, self._known, answers, first)
                else:
                    numpy_first(of, total, self._known, answers, first)
            elif compiled:
                numba_iterate(of.shifts, total, self._known, answers)
            else:
                numpy_iterate(of, total, self._known, answers)
            bits = (total < 0).astype(np.uint8)
        found[:] = word_of(of, bits)
        size = of.data_bytes
        same = (found[size : size + CRC_BYTES] == _crc_bytes(found[:size])).all()
        return made, rounds, FAILED if not good else CORRECT if same else WRONG_CRC

    def _memory(self) -> Any:
        """Return the memory of this thread's calls of C as a pointer."""
        try:
            return self._thread.memory
        except AttributeError:
            size = native.lib.ondie_ldpc_memory(self._record)
            self._thread.memory = native.ffi.from_buffer(aligned_empty(size, np.uint8))
            return self._thread.memory


def get(
    data_bytes: Any = 4096,
    circulant: Any = 1024,
    seed: Any = 1,
    backend: str = "auto",
    isa: str | None = None,
) -> Ldpc:
    """Return the LDPC code of words with ``data_bytes`` of data, by its rule and a seed.

    circulant: bits of a column; four columns are parity. seed: of the matrix. backend, isa: as of
    `kernels.get`. Raises KernelError.
    """
    given = {"data_bytes": data_bytes, "circulant": circulant, "seed": seed}
    return Ldpc(backend, isa, code(*(whole(f"ldpc: {name}", given[name]) for name in given)))


def _crc_bytes(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the CRC-32C of ``data`` as bytes in little-endian order."""
    return np.frombuffer(crc32c(np.ascontiguousarray(data)).to_bytes(4, "little"), np.uint8)


def _checked(name: str, given: np.ndarray, dtype: Any, size: int) -> np.ndarray:
    """Return an array of words as dtype[n, size]; raise KernelError if it is none."""
    if not isinstance(given, np.ndarray) or given.dtype != dtype or given.ndim not in (1, 2):
        what = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else type(given)
        raise KernelError(f"{name}: {what}; must be {np.dtype(dtype)} (n, {size}) or ({size},)")
    if given.shape[-1] != size:
        raise KernelError(f"{name}: {given.shape}; must be (n, {size}) or ({size},)")
    if given.ndim == 2 and given.flags.c_contiguous:
        return given
    return np.ascontiguousarray(given).reshape(-1, size)


def _record(
    of: Code, inverse: NDArray[np.int32], start: NDArray[np.int32]
) -> tuple[Any, tuple[Any, ...]]:
    """Return a code as the C record ondie_ldpc, and what must live as long."""
    kept = tuple(
        native.ffi.from_buffer("int32_t[]", np.ascontiguousarray(array))
        for array in (of.shifts, inverse, start)
    )
    sizes = (of.columns, of.circulant, of.stored_bits, of.word_bytes)
    return native.ffi.new("ondie_ldpc *", (*sizes, *kept)), kept
