"""AES for arrays of blocks: the block cipher that encrypts pages.

Owns the key schedule, the reference implementation in NumPy, which follows the steps of the
standard, and an equivalent implementation in Numba with one table look-up per byte and round. Does
not own modes of operation (xts.py).
Source: FIPS 197 (2001, updated 2023), sections 4 and 5; J. Daemen and V. Rijmen, "The Design of
Rijndael" (2002), 4.2, on tables and on an inverse cipher with the step order of the cipher.

This module is for data on emulated flash, not for secrets: its run time depends on key and data. In
the Numba implementation, a word is a column of the state, of a round key or of a table. The first
byte of the column is the least significant byte of the word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondie.kernels.errors import KernelError, unknown
from ondie.kernels.jit import njit

BLOCK_BYTES = 16
KEY_BYTES = (16, 24, 32)
BACKENDS = ("numpy", "numba")
MIX, UNMIX = (2, 3, 1, 1), (14, 11, 13, 9)
"""First rows of the matrices of MixColumns and InvMixColumns. The other rows are rotations of the
first row.
"""
Bytes = NDArray[np.uint8]
Words = NDArray[np.int64]


def times(values: Bytes, factor: int) -> Bytes:
    """Return the products of ``values``, uint8[...], with ``factor`` in GF(2^8) (FIPS 197,
    section 4.2)."""
    result = np.zeros_like(values)
    while factor:
        if factor & 1:
            result = result ^ values
        values = (values << 1 ^ (values >> 7) * np.uint8(0x1B)).astype(np.uint8)
        factor >>= 1
    return result


def substitutions() -> Bytes:
    """Return the table of SubBytes, uint8[256]: inverse in GF(2^8), then an affine map (FIPS
    197, 5.1.1)."""
    powers = [1]  # of 3, which generates the group
    while len(powers) < 255:
        value = powers[-1] ^ powers[-1] << 1
        powers.append(value ^ 0x11B if value > 255 else value)
    inverse = np.zeros(256, np.uint8)
    for i, value in enumerate(powers):
        inverse[value] = powers[-i % 255]
    turned = [inverse << i | inverse >> 8 - i for i in range(1, 5)]
    found: Bytes = np.bitwise_xor.reduce([inverse, *turned]) ^ np.uint8(0x63)
    return found


def mixed(columns: Bytes, first_row: tuple[int, ...]) -> Bytes:
    """Return ``columns``, uint8[..., 4], multiplied by the circulant matrix with first row
    ``first_row``.
    """
    products = {factor: times(columns, factor) for factor in set(first_row)}
    rows = [[products[first_row[(j - i) % 4]][..., j] for j in range(4)] for i in range(4)]
    return np.stack([np.bitwise_xor.reduce(row) for row in rows], axis=-1)


SUB = substitutions()
UNSUB = np.argsort(SUB).astype(np.uint8)
SHIFT = np.array([4 * ((column + row) % 4) + row for column in range(4) for row in range(4)])
"""Index in the input block of each output byte of ShiftRows. Byte 4 c + r is in column c, row r."""
UNSHIFT = np.argsort(SHIFT)


def expanded(key: bytes) -> Bytes:
    """Return the round keys of ``key``, uint8[rounds + 1, 16] (FIPS 197, 5.2). Raises KernelError
    if the key is not 16, 24 or 32 bytes long.
    """
    if not isinstance(key, bytes) or len(key) not in KEY_BYTES:
        size = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise KernelError(f"AES key: {size}; must be a bytes object of length 16, 24 or 32")
    own = len(key) // 4
    words = list(np.frombuffer(key, np.uint8).reshape(-1, 4))
    constant = np.array([1, 0, 0, 0], np.uint8)
    for i in range(own, 4 * (own + 7)):
        word = words[-1]
        if i % own == 0:
            word = SUB[np.roll(word, -1)] ^ constant
            constant = times(constant, 2)
        elif own > 6 and i % own == 4:
            word = SUB[word]
        words.append(words[i - own] ^ word)
    return np.array(words).reshape(-1, BLOCK_BYTES)


# --- NumPy


def encrypted(keys: Bytes, blocks: Bytes) -> Bytes:
    """Return ``blocks``, uint8[n, 16], encrypted with the round keys ``keys`` (FIPS 197, 5.1). This
    is the reference implementation.
    """
    state = blocks ^ keys[0]
    for key in keys[1:-1]:
        columns = SUB[state][:, SHIFT].reshape(-1, 4, 4)
        state = mixed(columns, MIX).reshape(-1, BLOCK_BYTES) ^ key
    return SUB[state][:, SHIFT] ^ keys[-1]


def decrypted(keys: Bytes, blocks: Bytes) -> Bytes:
    """Return ``blocks``, uint8[n, 16], decrypted with the round keys ``keys`` (FIPS 197, 5.3). This
    is the reference implementation.
    """
    state = blocks ^ keys[-1]
    for key in keys[-2:0:-1]:
        columns = (UNSUB[state[:, UNSHIFT]] ^ key).reshape(-1, 4, 4)
        state = mixed(columns, UNMIX).reshape(-1, BLOCK_BYTES)
    return UNSUB[state[:, UNSHIFT]] ^ keys[0]


# --- Numba


def as_words(data: Bytes) -> Words:
    """Convert AES blocks, uint8[n, 16], to one word per column, int64[n, 4]."""
    return np.ascontiguousarray(data).view("<u4").astype(np.int64)


def as_bytes(words: Words) -> Bytes:
    """Convert words, one per column (int64[n, 4]), to AES blocks, uint8[n, 16]."""
    return words.astype("<u4").view(np.uint8)


def _tables(substitution: Bytes, first_row: tuple[int, ...]) -> Words:
    """Return the tables of a round, int64[4, 256]: the column that each byte value in each row
    contributes to the output.
    """
    columns = np.zeros((4, 256, 4), np.uint8)
    for row in range(4):
        columns[row, :, row] = substitution
    found: Words = mixed(columns, first_row).view("<u4")[..., 0].astype(np.int64)
    return found


ROUNDS, UNROUNDS = _tables(SUB, MIX), _tables(UNSUB, UNMIX)
LAST, UNLAST = SUB.astype(np.int64), UNSUB.astype(np.int64)
FORTH, BACK = 1, 3
"""Column offset between successive rows in ShiftRows (FORTH) and in its inverse (BACK)."""


def inverse_keys(keys: Bytes) -> Bytes:
    """Return the round keys for the equivalent inverse cipher (FIPS 197, section 5.3.5), in which
    the steps of a round have the same order as in encryption. ``keys``: round keys of the
    encryption.
    """
    found = keys[::-1].copy()
    columns = found[1:-1].reshape(-1, 4, 4)
    found[1:-1] = mixed(columns, UNMIX).reshape(-1, BLOCK_BYTES)
    return found


@njit
def one_block(tables, last, step, keys, state, spare):
    """Encrypt or decrypt ``state``, int64[4], in place.

    ``tables``: int64[4, 256], see :func:`_tables`. ``last``: int64[256], substitution of
    the last round. ``step``: FORTH or BACK. ``keys``: int64[rounds + 1, 4], round keys. ``spare``:
    int64[4], scratch space.
    """
    rounds = keys.shape[0] - 1
    for c in range(4):
        state[c] ^= keys[0, c]
    for i in range(1, rounds):
        for c in range(4):
            spare[c] = (
                tables[0, state[c] & 255]
                ^ tables[1, state[(c + step) & 3] >> 8 & 255]
                ^ tables[2, state[(c + 2 * step) & 3] >> 16 & 255]
                ^ tables[3, state[(c + 3 * step) & 3] >> 24 & 255]
                ^ keys[i, c]
            )
        for c in range(4):
            state[c] = spare[c]
    for c in range(4):
        spare[c] = (
            last[state[c] & 255]
            ^ last[state[(c + step) & 3] >> 8 & 255] << 8
            ^ last[state[(c + 2 * step) & 3] >> 16 & 255] << 16
            ^ last[state[(c + 3 * step) & 3] >> 24 & 255] << 24
            ^ keys[rounds, c]
        )
    for c in range(4):
        state[c] = spare[c]


@njit
def each_block(tables, last, step, keys, blocks):
    """Encrypt or decrypt all ``blocks``, int64[n, 4], in place. The other arguments are those of
    :func:`one_block`.
    """
    spare = np.zeros(4, np.int64)
    for i in range(blocks.shape[0]):
        one_block(tables, last, step, keys, blocks[i], spare)


class Aes:
    """AES with a key of 16, 24 or 32 bytes.

    ``backend``: "numpy" (reference implementation) or "numba"; the results are bit-identical.
    Raises KernelError if the key or the backend is invalid.
    """

    def __init__(self, key: bytes, backend: str = "numba") -> None:
        if backend not in BACKENDS:
            raise unknown("backend", backend, BACKENDS)
        self.backend, self.keys = backend, expanded(key)
        self.forth = ROUNDS, LAST, FORTH, as_words(self.keys)
        """Arguments of :func:`one_block` for encryption."""
        self.back = UNROUNDS, UNLAST, BACK, as_words(inverse_keys(self.keys))
        """Arguments of :func:`one_block` for decryption."""

    def encrypt(self, blocks: Bytes) -> Bytes:
        """Return ``blocks``, uint8[n, 16], encrypted. Each block is encrypted independently."""
        return encrypted(self.keys, blocks) if self.backend == "numpy" else _all(self.forth, blocks)

    def decrypt(self, blocks: Bytes) -> Bytes:
        """Return ``blocks``, uint8[n, 16], decrypted. Each block is decrypted independently."""
        return decrypted(self.keys, blocks) if self.backend == "numpy" else _all(self.back, blocks)


def _all(arguments: tuple[Any, ...], blocks: Bytes) -> Bytes:
    words = as_words(blocks)
    each_block(*arguments, words)
    return as_bytes(words)
