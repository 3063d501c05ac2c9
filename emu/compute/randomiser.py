"""Data randomizer: exclusive or of pages with pseudo-random bit sequences (PRBS).

Owns the sequence, its initial state for each page, and its implementations in NumPy (reference) and
in Numba. Does not own the choice of pages to randomize (emu/studies/page_layers.py) or the time
that randomizing takes (emu/compute/pe.py). Source: ITU-T O.150 (5.8), a sequence of 2^31 - 1 bits
with the polynomial x^31 + x^28 + 1; Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014 (mixing of page numbers). Vendors do not publish their polynomials and
seeds.

Bit n of a sequence is bit n - 31 xor bit n - 28. The 31 bits that precede the first bit are the
*state* of the page. The physical page number and the seed of the drive determine the state, which
is never 0. Bit i of byte k of a page is combined (xor) with bit 8 k + i of the sequence.
Randomizing a page twice restores it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondie.kernels.errors import KernelError, unknown, whole
from ondie.kernels.jit import njit

DEGREE, TAP = 31, 28
MOST = (1 << DEGREE) - 1
"""Largest state of the generator, 2^31 - 1. The states are 1 to MOST, and the sequence repeats
after MOST bits."""
BACKENDS = ("numpy", "numba")
MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
PAGES = 1 << 63
Bytes = NDArray[np.uint8]
Pages = NDArray[np.int64]


def page_states(pages: Pages, seed: int) -> NDArray[np.int64]:
    """Return the initial states of the sequences of physical pages ``pages`` for a drive with seed
    ``seed``, int64[n], each from 1 to MOST."""
    found = pages.astype(np.uint64) + np.uint64((seed + 1) * int(MIX[0]) % (1 << 64))
    found = (found ^ found >> np.uint64(30)) * MIX[1]
    found = (found ^ found >> np.uint64(27)) * MIX[2]
    states: NDArray[np.int64] = ((found ^ found >> np.uint64(31)) % np.uint64(MOST)).astype(
        np.int64
    )
    return states + 1


def defined_sequence(state: int, size: int) -> Bytes:
    """Return the first ``size`` bytes of the pseudo-random sequence that follows state ``state``.
    This reference implementation computes up to 28 bits at a time."""
    bits = np.zeros(DEGREE + 8 * size, np.uint8)
    bits[:DEGREE] = state >> np.arange(DEGREE) & 1
    for first in range(DEGREE, bits.size, TAP):
        last = min(first + TAP, bits.size)
        bits[first:last] = bits[first - DEGREE : last - DEGREE] ^ bits[first - TAP : last - TAP]
    return np.packbits(bits[DEGREE:], bitorder="little")


@njit
def apply_sequences(states, data):
    """Combine (xor) each row of ``data``, uint8[n, bytes], with the pseudo-random sequence that
    follows the row's state in ``states``, int64[n]. The result replaces ``data``."""
    for row in range(data.shape[0]):
        state = states[row]
        for k in range(data.shape[1]):
            byte = (state ^ state >> 3) & 255
            state = state >> 8 | byte << 23
            data[row, k] ^= byte


class Randomiser:
    """Randomizer of a drive with seed ``seed``, 0 to 2^64 - 1.

    ``backend``: "numpy" (reference implementation) or "numba"; the results are bit-identical.
    Raises KernelError if the seed or the backend is invalid.
    """

    def __init__(self, seed: Any = 0, backend: str = "numba") -> None:
        if backend not in BACKENDS:
            raise unknown("backend", backend, BACKENDS)
        self.seed, self.backend = whole("seed", seed), backend
        if not 0 <= self.seed < 1 << 64:
            raise KernelError(f"seed = {self.seed}: must be from 0 to 2**64 - 1")

    def __call__(self, data: Bytes, page: Any) -> Bytes:
        """Randomize ``data``, uint8[bytes], for physical page ``page`` (0 to 2^63 - 1), or restore
        randomized data of that page. Return the result. Raises KernelError if ``page`` or the dtype
        or shape of ``data`` is invalid.
        """
        number = whole("page", page)
        if not 0 <= number < PAGES:
            raise KernelError(f"page = {number}: must be from 0 to 2**63 - 1")
        if data.dtype != np.uint8 or data.ndim != 1:
            raise KernelError(f"data: {data.dtype}, shape {data.shape}; must be uint8[bytes]")
        states = page_states(np.array([number]), self.seed)
        if self.backend == "numpy":
            return data ^ defined_sequence(int(states[0]), data.size)
        found = np.array(data)[None]
        apply_sequences(states, found)
        result: Bytes = found[0]
        return result
