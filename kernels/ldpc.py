"""Quasi-cyclic LDPC codes with a CRC-32C inside each word; a word has 4 KiB of data by default.

Owns encoding, checking and decoding in NumPy, Numba and C with identical results. Does not own the
matrix (ldpc_code.py), its use in a drive, or the measurement of its frame errors
(emu/validate/ldpc_curve.py).
Source: R. G. Gallager, "Low-Density Parity-Check Codes", 1963 (code, bit flipping); J. Chen and
M. Fossorier, "Near Optimum Universal Belief Propagation Based Decoding of Low-Density Parity Check
Codes", IEEE Trans. Commun. 50, 2002 (scaled min-sum); D. Hocevar, "A Reduced Complexity Decoder
Architecture via Layered Decoding of LDPC Codes", SiPS 2004.

**Code.** A word consists of columns of Z bits (``circulant``). Bit i of a column is bit i % 8 of
its byte i // 8. There are ROWS rows of Z checks. A row has a shift s for each of its columns and -1
for the other columns. Check i of the row is the exclusive or of bit (i + s) % Z of each of its
columns. All checks of a code word are 0. The last four columns are parity. The other columns hold
the data, their CRC-32C, and bits that are always 0 and are not stored.

**Bit flipping** runs before min-sum and, for at most AFTER rounds, after each iteration. It is
skipped if more than one in FEW checks fails. A round flips each bit whose checks all fail. If there
is no such bit, it flips each bit with at least three failing checks. The rounds end when the number
of failing checks does not decrease.

**Min-sum.** A message is an integer; its sign is positive for bit 0. Each iteration updates one row
of checks after the other. A bit sends to a check its total minus the last check-to-bit message of
this check. A check-to-bit message has the product of the signs of the messages from the other bits.
Its magnitude is 3/4 of the smaller of LARGEST and their smallest magnitude, rounded down. The
iterations end when all checks are satisfied. With hard input, all magnitudes are equal at first.
The first iteration therefore computes all check-to-bit messages from the bits as read (flooding)
and uses the magnitude FIRST, which is less than 3/4 of HARD and converges sooner.
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
"""Outcome of decoding a word. CORRECT: all checks and the CRC are satisfied. FAILED: some checks
are not satisfied after the last iteration. WRONG_CRC: a code word whose CRC is wrong."""


# --- definition


def numpy_flip(
    code: Code, bits: Bits, known: NDArray[np.bool_], checks: Bits, most: int
) -> tuple[bool, int]:
    """Correct ``bits`` in place by bit flipping. ``known``: mask of the bits that are always 0 and
    not stored. ``checks``: parity checks of ``bits``, 1 if violated. ``most``: maximum number of
    rounds.

    Returns (True if all checks are satisfied, number of rounds).
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
    """Run the first iteration of min-sum for hard input. ``bits``: the bits as read. ``known``: see
    `numpy_flip`.

    Updates the total of each bit, ``total``, int8[columns, circulant], and the check-to-bit
    messages, ``answers``, int8[ROWS, columns, circulant].
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
    """Run one iteration of min-sum.

    Updates the total of each bit, ``total``, int8[columns, circulant], and the check-to-bit
    messages, ``answers``, int8[ROWS, columns, circulant]. ``known``: see `numpy_flip`.
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
    """Numba implementation of `numpy_flip`. Overwrites ``checks``."""
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
    """Numba implementation of `numpy_first`."""
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
    """Update the totals of the bits, ``total``, and the check-to-bit messages, ``messages``, for
    one row of checks (one step of `numba_iterate`). ``sent``: work array like ``total``."""
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
    """Numba implementation of `numpy_iterate`."""
    sent = np.zeros(total.shape, np.int8)
    for row in range(shifts.shape[0]):
        numba_row(shifts, row, total, known, answers, sent)


# --- kernel


@dataclass(eq=False, slots=True)  # not frozen, since that takes 0.5 us of a word's 25
class Decoded:
    """Result of decoding n words.

    words: uint8[n, word_bytes], corrected where ``outcome`` is CORRECT. iterations: int32[n],
    number of min-sum iterations. flips: int32[n], number of rounds of bit flipping. outcome:
    int32[n], CORRECT, FAILED or WRONG_CRC.
    """

    words: Words
    iterations: NDArray[np.int32]
    flips: NDArray[np.int32]
    outcome: NDArray[np.int32]


class Ldpc:
    """Encoder and decoder of an LDPC code on a backend; safe for use by several threads.

    backend, isa: as in `ondie.kernels.get`. of: the code; the default is `code()`, for words with 4
    KiB of data.
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
        """Return the code words, uint8[n, word_bytes], of ``data``, uint8[n, data_bytes].

        A code word consists of the data, its CRC-32C in little-endian order, and the parity. A
        single word may be one-dimensional. Raises KernelError for a wrong type or shape of
        ``data``.
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
        """Write the code word of ``data`` to ``word``, with NumPy or Numba."""
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
        """Decode code words from a single read (hard input), uint8[n, word_bytes].

        iterations: maximum number of min-sum iterations, 1 to 20. flips: maximum number of rounds
        of bit flipping, 0 to 20. Raises KernelError for invalid arguments.
        """
        rows = _checked("words", words, np.uint8, self.code.word_bytes)
        return self._decoded(rows, None, iterations, flips)

    def decode_soft(
        self, messages: NDArray[np.int8], iterations: int = ITERATIONS, flips: int = FLIPS
    ) -> Decoded:
        """Decode words of messages, int8[n, 8 * word_bytes] (soft input).

        Message i belongs to bit i % 8 of byte i // 8. It ranges from -31 (surely 1) to 31 (surely
        0) and is proportional to the log-likelihood ratio log(P(0) / P(1)). Other arguments: see
        :meth:`decode`. Raises KernelError for invalid arguments.
        """
        rows = _checked("messages", messages, np.int8, 8 * self.code.word_bytes)
        if rows.size and max(int(rows.max()), -int(rows.min())) > MOST:
            raise KernelError(f"messages: {rows.min()} to {rows.max()}; must be from -31 to 31")
        return self._decoded(None, rows, iterations, flips)

    def satisfied(self, words: Words) -> NDArray[np.bool_]:
        """Return bool[n], True for each row of ``words``, uint8[n, word_bytes], that satisfies all
        checks and contains the CRC-32C of its data. Raises KernelError for a wrong type or
        shape."""
        found = self.decode(_checked("words", words, np.uint8, self.code.word_bytes), 1, 0)
        return (found.iterations == 0) & (found.outcome == CORRECT)

    def _decoded(
        self, words: Words | None, messages: NDArray[np.int8] | None, iterations: int, flips: int
    ) -> Decoded:
        """Decode ``words`` or ``messages``, whichever is not None, on the backend. Raises
        KernelError for an invalid number of iterations or flips."""
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
        """Decode one word with NumPy or Numba; write the decoded word to ``found``. Return (number
        of iterations, number of flipping rounds, outcome)."""
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
        """Return a pointer to the work memory of the C functions for the calling thread."""
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
    """Return the LDPC code of words with ``data_bytes`` bytes of data.

    circulant: bits per column; the last four columns are parity. seed: seed of the parity-check
    matrix. backend, isa: as in `kernels.get`. Raises KernelError for invalid arguments.
    """
    given = {"data_bytes": data_bytes, "circulant": circulant, "seed": seed}
    return Ldpc(backend, isa, code(*(whole(f"ldpc: {name}", given[name]) for name in given)))


def _crc_bytes(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the CRC-32C of ``data`` as bytes in little-endian order."""
    return np.frombuffer(crc32c(np.ascontiguousarray(data)).to_bytes(4, "little"), np.uint8)


def _checked(name: str, given: np.ndarray, dtype: Any, size: int) -> np.ndarray:
    """Return ``given`` as words, dtype[n, size]. Raises KernelError for a wrong type or shape."""
    if not isinstance(given, np.ndarray) or given.dtype != dtype or given.ndim not in (1, 2):
        what = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else type(given)
        raise KernelError(
            f"{name}: {what}; must be {np.dtype(dtype)} of shape (n, {size}) or ({size},)"
        )
    if given.shape[-1] != size:
        raise KernelError(f"{name}: shape {given.shape}; must be (n, {size}) or ({size},)")
    if given.ndim == 2 and given.flags.c_contiguous:
        return given
    return np.ascontiguousarray(given).reshape(-1, size)


def _record(
    of: Code, inverse: NDArray[np.int32], start: NDArray[np.int32]
) -> tuple[Any, tuple[Any, ...]]:
    """Return the C record ondie_ldpc of a code, and the buffers that must outlive the record."""
    kept = tuple(
        native.ffi.from_buffer("int32_t[]", np.ascontiguousarray(array))
        for array in (of.shifts, inverse, start)
    )
    sizes = (of.columns, of.circulant, of.stored_bits, of.word_bytes)
    return native.ffi.new("ondie_ldpc *", (*sizes, *kept)), kept
