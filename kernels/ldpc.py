"""Quasi-cyclic LDPC code of a flash page's code words, with a CRC-32C inside each word.

Owns the parity-check matrix (a rule and a seed), and encoding, checking and decoding in NumPy, Numba
and C with identical results. Does not own what a drive does with the code, nor the measurement of
its frame errors (emu/validate/ldpc_curve.py).
Source: R. G. Gallager, "Low-Density Parity-Check Codes", 1963 (code, bit flipping); M. Fossorier,
"Quasi-Cyclic Low-Density Parity-Check Codes from Circulant Permutation Matrices", IEEE Trans. Inf.
Theory 50, 2004 (girth); J. Chen and M. Fossorier, "Near Optimum Universal Belief Propagation Based
Decoding of LDPC Codes", IEEE Trans. Commun. 50, 2002 (scaled min-sum); D. Hocevar, "A Reduced
Complexity Decoder Architecture via Layered Decoding of LDPC Codes", SiPS 2004.

**Code.** A word has columns of ``circulant`` bits, here Z. Bit i of a column is bit i % 8 of byte
i / 8. Row r of checks has a shift s for each column, or -1 for none. Its check i is the exclusive or
of bits (i + s) % Z of its columns, and 0 in a code word. The last ROWS columns are parity. The
columns before contain the data, their CRC-32C, and bits that are 0 and not stored.

**Bit flipping** (hard input). A round flips every bit all of whose checks fail; if there is none,
every bit of which three checks fail. It ends without an error, without a bit to flip, or after
``flips`` rounds. If checks still fail, min-sum starts with the bits that were read.

**Min-sum.** A message is an integer, positive for 0. Each iteration updates the rows in turn. The
check of a row receives from each bit its total minus the check's last message. It answers each bit
with the product of the signs and the least magnitude of the others, at most LARGEST, times 3/4,
rounded down. Iterations end when all checks are satisfied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import native
from .crc import crc32c
from .errors import KernelError
from .jit import njit
from .memory import aligned_empty

ROWS = 4
CRC_BYTES = 4
LARGEST = 32  # ONDIE_LDPC_LARGEST: of the magnitudes that a check takes into account
MOST = 31  # largest magnitude of an input message
KNOWN = 100  # ONDIE_LDPC_KNOWN: message of a bit that is not stored
HARD = 12  # magnitude of an input message with hard input
ITERATIONS, FLIPS = 20, 10
CIRCULANTS = (64, 128, 256, 512, 1024, 2048, 4096)
DRAWS = 64  # columns of which the rule takes the best one

CORRECT, FAILED, WRONG_CRC = 0, 1, 2
"""Outcome of a word: decoded; checks fail after the last iteration; a code word with another CRC."""

Bits = NDArray[np.uint8]
Words = NDArray[np.uint8]


# --- matrix


def draws(seed: int) -> Iterator[int]:
    """Yield 64-bit numbers of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    state, mask = seed, (1 << 64) - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
        yield mixed ^ mixed >> 31


def parity_shifts(numbers: Iterator[int], circulant: int) -> NDArray[np.int32]:
    """Return the shifts of the parity columns, int32[ROWS, ROWS] with -1 on the diagonal.

    The determinant is a sum of nine powers of the shift. Four of them are chosen so that eight
    cancel: the inverse then has three terms in each place at most, and encoding needs no division.
    """
    e, half = np.full((ROWS, ROWS), -1, np.int64), circulant // 2
    for row, column in permutations(range(ROWS), 2):
        e[row, column] = next(numbers) % circulant
    e[3, 2] = e[3, 1] + e[1, 2] + e[2, 3] - e[2, 1] - e[1, 3] + half
    e[0, 1] = e[0, 2] + e[3, 1] - e[3, 2] + half
    common = e[1, 0] - e[0, 1]
    e[3, 0] = e[0, 3] + e[3, 2] + e[2, 1] + common - e[1, 2] - e[2, 3]
    e[2, 0] = e[0, 2] + e[2, 3] + e[3, 1] + common - e[1, 3] - e[3, 2]
    off = ~np.eye(ROWS, dtype=bool)
    e[off] %= circulant
    return e.astype(np.int32)


def data_shifts(
    numbers: Iterator[int], parity: NDArray[np.int32], count: int, circulant: int
) -> NDArray[np.int32]:
    """Return the shifts of ``count`` data columns, int32[ROWS, count].

    Of DRAWS random columns, each is the first of those that close the fewest cycles of four edges
    with the columns before, and of these the fewest cycles of six. Its last shift is 0.
    """
    paths = np.zeros((2, ROWS, ROWS, circulant), np.int64)  # of two and of four edges, by row
    chosen = np.zeros((ROWS, 0), np.int64)

    rows, others = np.array(list(permutations(range(ROWS), 2))).T

    def add(column: NDArray[np.int64]) -> None:
        there = [row for row in range(ROWS) if column[row] >= 0]
        for row, other in permutations(there, 2):
            shift = column[other] - column[row]
            paths[0, row, other, shift % circulant] += 1
            for last in set(range(ROWS)) - {row, other}:
                both = (chosen[other] >= 0) & (chosen[last] >= 0)
                more = chosen[last][both] - chosen[other][both]
                np.add.at(paths[1, row, last], (shift + more) % circulant, 1)
                both = (chosen[last] >= 0) & (chosen[row] >= 0)
                more = chosen[row][both] - chosen[last][both]
                np.add.at(paths[1, last, other], (shift + more) % circulant, 1)

    for number in range(ROWS + count):
        if number < ROWS:
            best = parity[:, number].astype(np.int64)
        else:
            drawn = np.array(
                [[*(next(numbers) % circulant for _ in range(ROWS - 1)), 0] for _ in range(DRAWS)]
            )
            steps = (drawn[:, others] - drawn[:, rows]) % circulant
            four, six = paths[:, rows, others, steps].sum(2)
            best = drawn[np.lexsort((six, four))[0]]
        add(best)
        chosen = np.column_stack([chosen, best])
    return chosen[:, ROWS:].astype(np.int32)


@dataclass(frozen=True, eq=False)
class Code:
    """A code by its shifts, int32[ROWS, columns]; raises KernelError for one that cannot be used.

    In each column the last shift is taken to be 0, by a rotation of the column.
    """

    data_bytes: int
    circulant: int
    shifts: NDArray[np.int32]

    def __post_init__(self) -> None:
        size, shifts = self.circulant, np.array(self.shifts, np.int32)
        if size not in CIRCULANTS:
            raise KernelError(f"circulant: {size}; must be one of {', '.join(map(str, CIRCULANTS))}")
        if shifts.ndim != 2 or shifts.shape[0] != ROWS or shifts.shape[1] <= ROWS:
            raise KernelError(
                f"shifts: {shifts.shape}; must have {ROWS} rows, and more than {ROWS} columns"
            )
        if shifts.min() < -1 or shifts.max() >= size:
            raise KernelError(
                f"shifts: {shifts.min()} to {shifts.max()}; must be from -1 to {size - 1}"
            )
        columns = shifts.shape[1] - ROWS
        least, most = (columns - 1) * size // 8 - CRC_BYTES + 1, columns * size // 8 - CRC_BYTES
        if not max(least, 1) <= self.data_bytes <= most:
            raise KernelError(
                f"data_bytes: {self.data_bytes}; {columns} data columns of {size} bits hold "
                f"{max(least, 1)} to {most} bytes and a CRC"
            )
        weights = (shifts >= 0).sum(0)
        if weights.min() < 3:
            raise KernelError(
                f"shifts: column {weights.argmin()} has {weights.min()} circulants; must be 3 or 4"
            )
        for column in shifts.T:
            there = column >= 0
            column[there] = (column[there] - column[there][-1]) % size
        shifts.setflags(write=False)
        object.__setattr__(self, "shifts", shifts)
        if len(determinant(shifts[:, -ROWS:], size)) % 2 == 0:
            raise KernelError(
                "shifts: the parity columns are singular: an even number of products of their "
                "shifts remain in the determinant; leave out the diagonal, for example"
            )

    @property
    def columns(self) -> int:
        """Number of columns of circulants."""
        return int(self.shifts.shape[1])

    @property
    def stored_bits(self) -> int:
        """Number of bits of data and CRC."""
        return (self.data_bytes + CRC_BYTES) * 8

    @property
    def word_bytes(self) -> int:
        """Number of bytes of a stored word: data, CRC, parity."""
        return self.data_bytes + CRC_BYTES + ROWS * self.circulant // 8

    @property
    def rate(self) -> float:
        """Code rate: data bits over stored bits."""
        return self.data_bytes / self.word_bytes

    @cached_property
    def girth(self) -> int:
        """Length of the shortest cycle of the Tanner graph; a breadth-first search from one bit of
        each column, which suffices in a quasi-cyclic code.
        """
        return min(self._shortest_cycle(column) for column in range(self.columns))

    def _shortest_cycle(self, start: int) -> int:
        """Return the edges until two paths from bit 0 of a column meet."""
        size, nodes, parents = self.circulant, np.array([start * self.circulant]), np.array([-1])
        for length in range(1, 2 * ROWS * self.columns):
            table = self.shifts.T if length % 2 else self.shifts
            sign = -1 if length % 2 else 1
            group, at = nodes // size, nodes % size
            found, origin = [], []
            for next_group in range(table.shape[1]):
                shift = table[group, next_group]
                good = (shift >= 0) & (parents != next_group)
                found.append(next_group * size + (at + sign * shift)[good] % size)
                origin.append(group[good])
            nodes, parents = np.concatenate(found), np.concatenate(origin)
            if np.unique(nodes).size < nodes.size:
                return 2 * length
        raise AssertionError("every column has three circulants: there are cycles")

    @cached_property
    def inverse(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Inverse of the parity columns: of each parity column and each row, shifts to add up."""
        return inverted(self.shifts[:, -ROWS:], self.circulant)


def determinant(shifts: NDArray[np.int32], circulant: int) -> set[int]:
    """Return the powers of the shift whose sum is the determinant of a square matrix."""
    found: set[int] = set()
    for order in permutations(range(len(shifts))):
        chosen = [int(shifts[row, column]) for row, column in enumerate(order)]
        if min(chosen) >= 0:
            found ^= {sum(chosen) % circulant}
    return found


def product(some: set[int], others: set[int], circulant: int) -> set[int]:
    """Return the product of two sums of powers of the shift, modulo 2."""
    found: set[int] = set()
    for power in some:
        found ^= {(power + other) % circulant for other in others}
    return found


def inverted(
    shifts: NDArray[np.int32], circulant: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return the inverse of a square matrix of circulants as sums of powers of the shift.

    Let d be its determinant. Modulo 2 and x^Z - 1, with Z a power of two, d^Z = 1 if d has an odd
    number of terms. The inverse of d is thus d^(Z-1), the product of d^1, d^2, d^4 .. d^(Z/2), and
    each of these has as many terms as d.
    """
    powers, inverse = determinant(shifts, circulant), {0}
    for _ in range(circulant.bit_length() - 1):
        inverse = product(powers, inverse, circulant)
        powers = {2 * power % circulant for power in powers}
    if len(inverse) == 0:
        raise KernelError("shifts: the parity columns are singular")
    found = []
    for column in range(len(shifts)):
        line = []
        for row in range(len(shifts)):
            minor = np.delete(np.delete(shifts, row, 0), column, 1)
            terms = product(determinant(minor, circulant), inverse, circulant)
            line.append(tuple(sorted(terms)))
        found.append(tuple(line))
    return tuple(found)


@cache
def code(data_bytes: int = 4096, circulant: int = 1024, seed: int = 1) -> Code:
    """Return the code by the rule of `parity_shifts` and `data_shifts` with a seed.

    Words of 4096 bytes have rate 0.888 with circulant 1024, 0.940 with 512. Raises KernelError.
    """
    if circulant not in CIRCULANTS:
        raise KernelError(f"circulant: {circulant}; must be one of {', '.join(map(str, CIRCULANTS))}")
    if not isinstance(data_bytes, int) or not 1 <= data_bytes <= 1 << 16:
        raise KernelError(f"data_bytes: {data_bytes!r}; must be from 1 to {1 << 16}")
    if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise KernelError(f"seed: {seed!r}; must be from 0 to 2**64 - 1")
    numbers = draws(seed)
    parity = parity_shifts(numbers, circulant)
    count = -(-(data_bytes + CRC_BYTES) * 8 // circulant)
    data = data_shifts(numbers, parity, count, circulant)
    return Code(data_bytes, circulant, np.column_stack([data, parity]))


# --- definition


def columns_of(code: Code, words: Words) -> Bits:
    """Return the bits of one stored word by column, uint8[columns, circulant]."""
    bits = np.unpackbits(words, bitorder="little")
    found = np.zeros(code.columns * code.circulant, np.uint8)
    found[: code.stored_bits] = bits[: code.stored_bits]
    found[-ROWS * code.circulant :] = bits[code.stored_bits :]
    return found.reshape(code.columns, code.circulant)


def word_of(code: Code, bits: Bits) -> Words:
    """Return the stored word of bits by column, uint8[word_bytes]."""
    flat = bits.reshape(-1)
    parts = flat[: code.stored_bits], flat[-ROWS * code.circulant :]
    return np.packbits(np.concatenate(parts), bitorder="little")


def numpy_checks(code: Code, bits: Bits, columns: int | None = None) -> Bits:
    """Return the checks of the first ``columns`` columns (None: all), uint8[ROWS, circulant]."""
    found = np.zeros((ROWS, code.circulant), np.uint8)
    for row in range(ROWS):
        for column in range(code.columns if columns is None else columns):
            if (shift := code.shifts[row, column]) >= 0:
                found[row] ^= np.roll(bits[column], -shift)
    return found


def numpy_parity(code: Code, bits: Bits) -> None:
    """Set the parity columns of ``bits``, uint8[columns, circulant]."""
    sums = numpy_checks(code, bits, code.columns - ROWS)
    bits[-ROWS:] = 0
    for column, line in enumerate(code.inverse):
        for row, powers in enumerate(line):
            for power in powers:
                bits[column - ROWS] ^= np.roll(sums[row], -power)


def numpy_flip(code: Code, bits: Bits, known: NDArray[np.bool_], most: int) -> tuple[bool, int]:
    """Correct ``bits`` by flipping; return whether all checks are satisfied, and the rounds."""
    weights = (code.shifts >= 0).sum(0)[:, None]
    for rounds in range(most + 1):
        checks = numpy_checks(code, bits)
        if not checks.any():
            return True, rounds
        failed = np.zeros(bits.shape, np.uint8)
        for row, column in np.argwhere(code.shifts >= 0):
            failed[column] += np.roll(checks[row], code.shifts[row, column])
        chosen = (failed == weights) & ~known
        if not chosen.any():
            chosen = (failed >= 3) & ~known
        if rounds == most or not chosen.any():
            break
        bits ^= chosen
    return False, rounds


def numpy_min_sum(
    code: Code, total: NDArray[np.int8], known: NDArray[np.bool_], bits: Bits, most: int
) -> int:
    """Iterate from input messages ``total``, int8[columns, circulant]; write ``bits``.

    Returns the number of iterations, or -1 if checks fail after the last one.
    """
    messages = np.zeros((ROWS, *total.shape), np.int8)
    for made in range(1, most + 1):
        for row in range(ROWS):
            columns = np.flatnonzero(code.shifts[row] >= 0)
            shifts = code.shifts[row, columns]
            pairs = list(zip(columns, shifts, strict=True))
            unstored = np.stack([np.roll(known[column], -shift) for column, shift in pairs])
            sent = np.stack([np.roll(total[column], -shift) for column, shift in pairs])
            sent = np.where(unstored, np.int8(KNOWN), sent - messages[row, columns])
            ordered = np.minimum(np.sort(np.abs(sent), axis=0)[:2], LARGEST).astype(np.int16)
            low, high = (3 * ordered // 4).astype(np.int8)
            is_least = np.abs(sent) == np.abs(sent).min(0)
            negative = np.logical_xor.reduce(sent < 0, axis=0) ^ (sent < 0)
            answer = np.where(is_least, high, low)
            answer = np.where(negative, -answer, answer)
            messages[row, columns] = answer
            for (column, shift), values in zip(pairs, sent + answer, strict=True):
                total[column] = np.roll(values, shift)
        bits[:] = total < 0
        if not numpy_checks(code, bits).any():
            return made
    return -1


# --- Numba


@njit
def numba_checks(shifts, bits, columns, checks):
    """Write the checks of the first ``columns`` columns; return whether one is not satisfied."""
    size = bits.shape[1]
    checks[:] = 0
    for row in range(shifts.shape[0]):
        for column in range(columns):
            shift = shifts[row, column]
            if shift >= 0:
                for i in range(size - shift):
                    checks[row, i] ^= bits[column, i + shift]
                for i in range(size - shift, size):
                    checks[row, i] ^= bits[column, i + shift - size]
    return checks.any()


@njit
def numba_flip(shifts, bits, known, most, checks):
    """The same as `numpy_flip`."""
    rows, columns = shifts.shape
    size = bits.shape[1]
    failed = np.zeros(bits.shape, np.uint8)
    rounds = 0
    while numba_checks(shifts, bits, columns, checks):
        if rounds == most:
            return False, rounds
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
        rounds += 1
    return True, rounds


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
                value = np.int8(total[column, at] - messages[row, column, i])
                if known[column, at]:
                    value = np.int8(KNOWN)
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
def numba_min_sum(shifts, total, known, bits, most, checks):
    """The same as `numpy_min_sum`."""
    rows, columns = shifts.shape
    messages = np.zeros((rows, columns, total.shape[1]), np.int8)
    sent = np.zeros(total.shape, np.int8)
    for made in range(1, most + 1):
        for row in range(rows):
            numba_row(shifts, row, total, known, messages, sent)
        for column in range(columns):
            for i in range(total.shape[1]):
                bits[column, i] = total[column, i] < 0
        if not numba_checks(shifts, bits, columns, checks):
            return made
    return -1


# --- kernel


@dataclass(frozen=True, eq=False)
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

    backend, isa: as in `ondie.kernels.get`. code: a result of `code`, or any other Code.
    """

    def __init__(self, backend: str = "auto", isa: str | None = None, of: Code | None = None):
        self.backend, self.isa = native.choose(backend, isa)
        self.code = code() if of is None else of
        self._known = np.zeros(self.code.columns * self.code.circulant, bool)
        self._known[self.code.stored_bits : -ROWS * self.code.circulant] = True
        self._known = self._known.reshape(self.code.columns, self.code.circulant)
        self._thread = threading.local()
        if self.backend == "c":
            self._record, self._kept = _record(self.code)

    def __repr__(self) -> str:
        of = self.code
        isa = f", isa={self.isa!r}" if self.isa else ""
        return (
            f"Ldpc(backend={self.backend!r}{isa}: {of.data_bytes} bytes in {of.word_bytes}, "
            f"rate {of.rate:.4f}, circulant {of.circulant}, girth {of.girth})"
        )

    def encode(self, data: NDArray[np.uint8]) -> Words:
        """Return code words uint8[n, word_bytes] of ``data``, uint8[n, data_bytes]; without n for one.

        A word is the data, their CRC-32C in little-endian order, and parity. Raises KernelError.
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
        """Write the code word of ``data`` with NumPy."""
        word[: data.size] = data
        word[data.size : data.size + CRC_BYTES] = _crc_bytes(data)
        word[data.size + CRC_BYTES :] = 0
        bits = columns_of(self.code, word)
        numpy_parity(self.code, bits)
        word[:] = word_of(self.code, bits)

    def decode(
        self, words: Words, iterations: int = ITERATIONS, flips: int = FLIPS
    ) -> Decoded:
        """Decode words of bits, uint8[n, word_bytes] (hard input).

        iterations: largest number of those of min-sum, 1 to 20. flips: largest number of rounds of
        bit flipping, 0 to 20. Raises KernelError.
        """
        if not isinstance(flips, int) or not 0 <= flips <= ITERATIONS:
            raise KernelError(f"flips: {flips!r}; must be from 0 to {ITERATIONS}")
        rows = _checked("words", words, np.uint8, self.code.word_bytes)
        return self._decoded(rows, None, iterations, flips)

    def decode_soft(self, messages: NDArray[np.int8], iterations: int = ITERATIONS) -> Decoded:
        """Decode words of messages, int8[n, 8 * word_bytes], from -31 (1) to 31 (0) (soft input).

        The message of bit i % 8 of byte i / 8 is number i. A message is proportional to the
        logarithm of how much more probable 0 is than 1. Raises KernelError.
        """
        rows = _checked("messages", messages, np.int8, 8 * self.code.word_bytes)
        if rows.size and max(int(rows.max()), -int(rows.min())) > MOST:
            raise KernelError(f"messages: {rows.min()} to {rows.max()}; must be from -31 to 31")
        return self._decoded(None, rows, iterations, 0)

    def satisfied(self, words: Words) -> NDArray[np.bool_]:
        """Return which words, uint8[n, word_bytes], satisfy all checks and have their CRC."""
        rows = _checked("words", words, np.uint8, self.code.word_bytes)
        size = self.code.data_bytes
        return np.array([
            not numpy_checks(self.code, columns_of(self.code, word)).any()
            and bool((word[size : size + CRC_BYTES] == _crc_bytes(word[:size])).all())
            for word in rows
        ], bool)  # fmt: skip

    def _decoded(
        self, words: Words | None, messages: NDArray[np.int8] | None, iterations: int, flips: int
    ) -> Decoded:
        """Decode checked input on the backend."""
        if not isinstance(iterations, int) or not 1 <= iterations <= ITERATIONS:
            raise KernelError(f"iterations: {iterations!r}; must be from 1 to {ITERATIONS}")
        count = len(messages) if words is None else len(words)  # type: ignore[arg-type]
        results = np.empty((count, 3), np.int32)
        found = np.empty((count, self.code.word_bytes), np.uint8)
        if self.backend == "c":
            hard, soft = (
                native.ffi.NULL if given is None else native.ffi.from_buffer(kind, given)
                for kind, given in (("uint8_t[]", words), ("int8_t[]", messages))
            )
            native.function("ldpc_decode", self.isa)(
                self._record, hard, soft, iterations, flips, native.ffi.from_buffer(found),
                native.ffi.from_buffer("ondie_ldpc_result[]", results), count, self._memory(),
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
        return Decoded(found, results[:, 0], results[:, 1], results[:, 2])

    def _decode(
        self,
        found: Words,
        word: Words | None,
        messages: NDArray[np.int8] | None,
        iterations: int,
        flips: int,
    ) -> tuple[int, int, int]:
        """Decode one word with NumPy or Numba; return iterations, rounds and outcome."""
        of, compiled = self.code, self.backend == "numba"
        checks = np.zeros((ROWS, of.circulant), np.uint8)
        read = np.packbits(messages < 0, bitorder="little") if word is None else word  # type: ignore[operator]
        bits = columns_of(of, read)
        rounds = 0
        made = -1 if numpy_checks(of, bits).any() else 0
        if made < 0 and flips and messages is None:
            if compiled:
                good, rounds = numba_flip(of.shifts, bits, self._known, flips, checks)
            else:
                good, rounds = numpy_flip(of, bits, self._known, flips)
            made = 0 if good else -1
        done = 0
        if made < 0:
            bits = columns_of(of, read)
            total = (HARD - 2 * HARD * bits.astype(np.int8)).astype(np.int8)
            if messages is not None:
                total.reshape(-1)[: of.stored_bits] = messages[: of.stored_bits]
                total[-ROWS:] = messages[of.stored_bits :].reshape(ROWS, -1)
            if compiled:
                made = numba_min_sum(of.shifts, total, self._known, bits, iterations, checks)
            else:
                made = numpy_min_sum(of, total, self._known, bits, iterations)
            done = iterations if made < 0 else made
        found[:] = word_of(of, bits)
        if made < 0:
            return done, rounds, FAILED
        size = of.data_bytes
        same = (found[size : size + CRC_BYTES] == _crc_bytes(found[:size])).all()
        return done, rounds, CORRECT if same else WRONG_CRC

    def _memory(self) -> Any:
        """Return the memory of this thread's calls of C as a pointer."""
        if not hasattr(self._thread, "memory"):
            size = native.lib.ondie_ldpc_memory(self._record)
            self._thread.memory = native.ffi.from_buffer(aligned_empty(size, np.uint8))
        return self._thread.memory


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
    return np.ascontiguousarray(given).reshape(-1, size)


def _record(of: Code) -> tuple[Any, tuple[Any, ...]]:
    """Return a code as the C record ondie_ldpc, and what must live as long."""
    turns = of.shifts.copy()
    for column in range(of.columns):
        rows = np.flatnonzero(of.shifts[:, column] >= 0)
        shifts = of.shifts[rows, column]
        turns[rows, column] = (shifts - np.roll(shifts, 1)) % of.circulant
    lists = [powers for line in of.inverse for powers in line]
    start = np.cumsum([0, *map(len, lists)]).astype(np.int32)
    inverse = np.array([power for powers in lists for power in powers], np.int32)
    kept = tuple(
        native.ffi.from_buffer("int32_t[]", np.ascontiguousarray(array))
        for array in (of.shifts, turns, inverse, start)
    )
    sizes = (of.columns, of.circulant, of.stored_bits, of.word_bytes)
    return native.ffi.new("ondie_ldpc *", (*sizes, *kept)), kept
