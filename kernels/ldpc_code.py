"""Parity-check matrix of a quasi-cyclic LDPC code, generated from a seed, and parity checks of
words.

Owns the shifts of the matrix, its girth and the inverse of its parity columns. Also owns the
conversion between a stored word and its bits by column, and the computation of parity checks and
parity bits in NumPy and Numba. Does not own decoding or the description of the layout (ldpc.py).
Source: M. Fossorier, "Quasi-Cyclic Low-Density Parity-Check Codes from Circulant Permutation
Matrices", IEEE Trans. Inf. Theory 50, 2004 (girth).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from .errors import KernelError
from .jit import njit

Bits = NDArray[np.uint8]
Words = NDArray[np.uint8]

ROWS = 4
CRC_BYTES = 4
CIRCULANTS = (64, 128, 256, 512, 1024, 2048, 4096)
DRAWS = 64  # columns of which the rule takes the best one


def draws(seed: int) -> Iterator[int]:
    """Yield the 64-bit numbers of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) for a seed."""
    state, mask = seed, (1 << 64) - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
        yield mixed ^ mixed >> 31


def parity_shifts(numbers: Iterator[int], circulant: int) -> NDArray[np.int32]:
    """Return the shifts of the parity columns, int32[ROWS, ROWS] with -1 on the diagonal.

    ``numbers``: random integers, from which the shifts are computed. The matrix of the parity
    columns has a determinant that is a sum of nine powers of the cyclic shift. Four of the shifts
    are chosen so that eight of the powers cancel. Encoding then needs no division, and no entry of
    the inverse matrix has more than three terms.
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

    Each column is selected from DRAWS random columns whose last shift is 0. The selected column
    closes the fewest cycles of length 4 with the columns before it. If several columns do, the one
    with the fewest cycles of length 6 is selected, or the first of several equal ones.
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
    """An LDPC code, defined by the cyclic shifts of its circulants, int32[ROWS, columns]; a shift
    of -1 is a zero matrix.

    The constructor rotates each column so that its last shift is 0. Raises KernelError for sizes or
    shifts that do not form a usable code.
    """

    data_bytes: int
    circulant: int
    shifts: NDArray[np.int32]

    def __post_init__(self) -> None:
        size, shifts = self.circulant, np.array(self.shifts, np.int32)
        if size not in CIRCULANTS:
            raise KernelError(
                f"circulant: {size}; must be one of {', '.join(map(str, CIRCULANTS))}"
            )
        if shifts.ndim != 2 or shifts.shape[0] != ROWS or shifts.shape[1] <= ROWS:
            raise KernelError(
                f"shifts: shape {shifts.shape}; must have {ROWS} rows, and more than {ROWS} columns"
            )
        if shifts.min() < -1 or shifts.max() >= size:
            raise KernelError(
                f"shifts: {shifts.min()} to {shifts.max()}; must be from -1 to {size - 1}"
            )
        columns = shifts.shape[1] - ROWS
        least, most = (columns - 1) * size // 8 - CRC_BYTES + 1, columns * size // 8 - CRC_BYTES
        if not max(least, 1) <= self.data_bytes <= most:
            raise KernelError(
                f"data_bytes: {self.data_bytes}; must be from {max(least, 1)} to {most} with "
                f"{columns} data columns of {size} bits"
            )
        weights = (shifts >= 0).sum(0)
        short = np.flatnonzero(weights < np.where(np.arange(columns + ROWS) < columns, ROWS, 3))
        if short.size:
            raise KernelError(
                f"shifts: column {short[0]} has {weights[short[0]]} shifts of 0 or more; data "
                f"columns must have {ROWS}, parity columns {ROWS - 1} or {ROWS}"
            )
        for column in shifts.T:
            there = column >= 0
            column[there] = (column[there] - column[there][-1]) % size
        shifts.setflags(write=False)
        object.__setattr__(self, "shifts", shifts)
        if len(determinant(shifts[:, -ROWS:], size)) % 2 == 0:
            raise KernelError(
                "shifts: the matrix of the parity columns is singular: its determinant has an even "
                "number of terms; for example, set the diagonal to -1"
            )

    @property
    def columns(self) -> int:
        """Number of columns of circulants in the parity-check matrix: data and parity."""
        return int(self.shifts.shape[1])

    @property
    def stored_bits(self) -> int:
        """Number of data and CRC bits of a code word; the parity bits are not counted."""
        return (self.data_bytes + CRC_BYTES) * 8

    @property
    def word_bytes(self) -> int:
        """Number of bytes of a stored code word: data, CRC and parity."""
        return self.data_bytes + CRC_BYTES + ROWS * self.circulant // 8

    @property
    def rate(self) -> float:
        """Code rate: data bytes divided by the bytes of a stored word."""
        return self.data_bytes / self.word_bytes

    @cached_property
    def girth(self) -> int:
        """Girth of the code: length of the shortest cycle of its Tanner graph.

        A breadth-first search from one bit of each column is sufficient, because the code is
        quasi-cyclic.
        """
        return min(self._shortest_cycle(column) for column in range(self.columns))

    def _shortest_cycle(self, start: int) -> int:
        """Return the length of the shortest cycle through bit 0 of column ``start``: twice the
        number of edges after which two paths from this bit meet."""
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
        raise AssertionError("unreachable: columns of three circulants always form a cycle")

    @cached_property
    def inverse(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Inverse of the matrix of parity columns, indexed [parity column][row]. Each entry is a
        tuple of powers of the cyclic shift, whose sum is the circulant at that position."""
        return inverted(self.shifts[:, -ROWS:], self.circulant)


def determinant(shifts: NDArray[np.int32], circulant: int) -> set[int]:
    """Return the powers of the cyclic shift whose sum is the determinant of a square matrix of
    circulants."""
    found: set[int] = set()
    for order in permutations(range(len(shifts))):
        chosen = [int(shifts[row, column]) for row, column in enumerate(order)]
        if min(chosen) >= 0:
            found ^= {sum(chosen) % circulant}
    return found


def product(some: set[int], others: set[int], circulant: int) -> set[int]:
    """Return the product, modulo 2, of two sums of powers of the cyclic shift."""
    found: set[int] = set()
    for power in some:
        found ^= {(power + other) % circulant for other in others}
    return found


def inverted(shifts: NDArray[np.int32], circulant: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return the inverse of a square matrix of circulants as sums of powers of the cyclic shift.

    Let d be the determinant, with an odd number of terms, and Z the circulant size, a power of two.
    Then d^Z = 1 modulo 2 and x^Z - 1. The inverse of d is therefore d^(Z-1), the product of d^1,
    d^2, d^4 .. d^(Z/2). Each of these factors has at most as many terms as d. Raises KernelError if
    d has an even number of terms.
    """
    powers, inverse = determinant(shifts, circulant), {0}
    if len(powers) % 2 == 0:  # then d^Z = 0
        raise KernelError("shifts: the matrix of the parity columns is singular; use other shifts")
    for _ in range(circulant.bit_length() - 1):
        inverse = product(powers, inverse, circulant)
        powers = product(powers, powers, circulant)
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
    """Return the LDPC code that `parity_shifts` and `data_shifts` generate from a seed.

    Words with 4096 bytes of data have rate 0.888 with circulants of 1024 bits and 0.940 with 512
    bits. Raises KernelError for an invalid argument.
    """
    if circulant not in CIRCULANTS:
        raise KernelError(
            f"circulant: {circulant}; must be one of {', '.join(map(str, CIRCULANTS))}"
        )
    if not isinstance(data_bytes, int) or not 1 <= data_bytes <= 1 << 16:
        raise KernelError(f"data_bytes: {data_bytes!r}; must be from 1 to {1 << 16}")
    if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise KernelError(f"seed: {seed!r}; must be from 0 to 2**64 - 1")
    numbers = draws(seed)
    parity = parity_shifts(numbers, circulant)
    count = -(-(data_bytes + CRC_BYTES) * 8 // circulant)
    data = data_shifts(numbers, parity, count, circulant)
    return Code(data_bytes, circulant, np.column_stack([data, parity]))


def columns_of(code: Code, words: Words) -> Bits:
    """Return the bits of one stored word by column, uint8[columns, circulant]."""
    bits = np.unpackbits(words, bitorder="little")
    found = np.zeros(code.columns * code.circulant, np.uint8)
    found[: code.stored_bits] = bits[: code.stored_bits]
    found[-ROWS * code.circulant :] = bits[code.stored_bits :]
    return found.reshape(code.columns, code.circulant)


def word_of(code: Code, bits: Bits) -> Words:
    """Return the stored word, uint8[word_bytes], whose bits by column are ``bits``."""
    flat = bits.reshape(-1)
    parts = flat[: code.stored_bits], flat[-ROWS * code.circulant :]
    return np.packbits(np.concatenate(parts), bitorder="little")


def numpy_checks(code: Code, bits: Bits, columns: int | None = None) -> Bits:
    """Return the parity checks of a word over the first ``columns`` columns, uint8[ROWS,
    circulant]; the default is all columns. A check is 1 if it is not satisfied."""
    found = np.zeros((ROWS, code.circulant), np.uint8)
    for row in range(ROWS):
        for column in range(code.columns if columns is None else columns):
            if (shift := code.shifts[row, column]) >= 0:
                found[row] ^= np.roll(bits[column], -shift)
    return found


def inverse_of(of: Code) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the inverse of the matrix of parity columns as (powers, start). Each entry of the
    inverse is a sum of powers of the cyclic shift. ``powers``, int32[n], contains the exponents of
    all entries, row by row. ``start``, int32[ROWS * ROWS + 1], contains the index in ``powers`` at
    which each entry begins, and the length of ``powers``."""
    lists = [powers for line in of.inverse for powers in line]
    start = np.cumsum([0, *map(len, lists)]).astype(np.int32)
    return np.array([power for powers in lists for power in powers], np.int32), start


def numpy_parity(code: Code, bits: Bits) -> None:
    """Compute the parity columns of the word ``bits``, uint8[columns, circulant], in place."""
    sums = numpy_checks(code, bits, code.columns - ROWS)
    bits[-ROWS:] = 0
    for column, line in enumerate(code.inverse):
        for row, powers in enumerate(line):
            for power in powers:
                bits[column - ROWS] ^= np.roll(sums[row], -power)


@njit
def numba_checks(shifts, bits, columns, checks):
    """Compute the parity checks over the first ``columns`` columns of the word ``bits``, and write
    them to ``checks``. Return the number of unsatisfied checks."""
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
    return checks.sum()


@njit
def numba_parity(shifts, bits, powers, start, sums):
    """Numba implementation of `numpy_parity`. ``powers``, ``start``: result of `inverse_of`.
    ``sums``: work array, uint8[ROWS, circulant]."""
    rows, size = sums.shape
    first = bits.shape[0] - rows
    numba_checks(shifts, bits, first, sums)
    bits[first:] = 0
    for column in range(rows):
        for row in range(rows):
            for at in range(start[column * rows + row], start[column * rows + row + 1]):
                power = powers[at]
                for i in range(size - power):
                    bits[first + column, i] ^= sums[row, i + power]
                for i in range(size - power, size):
                    bits[first + column, i] ^= sums[row, i + power - size]
