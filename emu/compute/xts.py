"""AES-XTS: encryption of pages.

Owns the tweaks of the blocks of a data unit, and the implementations of the cipher mode in NumPy
(reference) and in Numba. Does not own AES (aes.py), the numbers of data units
(emu/studies/page_layers.py) or the time of a cipher (emu/compute/pe.py). Source: IEEE Std 1619-2018
(XTS-AES-128 and XTS-AES-256), section 5; NIST SP 800-38E.

A page is one data unit of whole blocks, so no ciphertext stealing is needed. The tweak of block j
is the number of the page (16 bytes, little-endian), encrypted with the second key and multiplied by
x^j in GF(2^128) modulo x^128 + x^7 + x^2 + x + 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondie.emu.compute.aes import BLOCK_BYTES, Aes, as_bytes, as_words, one_block
from ondie.kernels.errors import KernelError, whole
from ondie.kernels.jit import njit

KEY_BYTES = (32, 64)
"""Total size of the two keys (bytes): for XTS-AES-128 and for XTS-AES-256."""
MOST_BLOCKS = 1 << 20
"""Maximum number of blocks of a data unit (IEEE 1619, 5.1)."""
Bytes = NDArray[np.uint8]


def defined_tweaks(first: bytes, blocks: int) -> Bytes:
    """Return the tweaks of ``blocks`` consecutive blocks, uint8[blocks, 16]. ``first``: tweak of
    the first block (16 bytes).
    """
    tweak, found = int.from_bytes(first, "little"), []
    for _ in range(blocks):
        found.append(tweak.to_bytes(BLOCK_BYTES, "little"))
        tweak = tweak << 1 & (1 << 128) - 1 ^ 0x87 * (tweak >> 127)
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, BLOCK_BYTES)


@njit
def apply_unit(tables, last, step, keys, tweak, blocks):
    """Encrypt or decrypt the ``blocks`` of a data unit, int64[n, 4], in place.

    ``tweak``: tweak of the first block, int64[4], which the function overwrites. The other
    arguments are those of aes.one_block.
    """
    spare = np.zeros(4, np.int64)
    for i in range(blocks.shape[0]):
        for c in range(4):
            blocks[i, c] ^= tweak[c]
        one_block(tables, last, step, keys, blocks[i], spare)
        for c in range(4):
            blocks[i, c] ^= tweak[c]
        carry = tweak[3] >> 31
        for c in range(3, 0, -1):
            tweak[c] = (tweak[c] << 1 | tweak[c - 1] >> 31) & 0xFFFFFFFF
        tweak[0] = tweak[0] << 1 & 0xFFFFFFFF ^ 0x87 * carry


class Xts:
    """AES-XTS cipher. ``key``: the key for the data, followed by a different key for the tweak.

    ``backend``: "numpy" (reference implementation) or "numba"; the results are bit-identical.
    Raises KernelError if the key or the backend is invalid.
    """

    def __init__(self, key: bytes, backend: str = "numba") -> None:
        if not isinstance(key, bytes) or len(key) not in KEY_BYTES:
            size = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
            raise KernelError(
                f"XTS key: {size}; must be a bytes object of length 32 (AES-128) or 64 (AES-256)"
            )
        half = len(key) // 2
        if key[:half] == key[half:]:
            raise KernelError("XTS key: both halves are equal; XTS requires two different keys")
        self.backend = backend
        self._data, self._tweak = (Aes(part, backend) for part in (key[:half], key[half:]))

    def encrypt(self, data: Bytes, unit: Any) -> Bytes:
        """Return ``data``, uint8[bytes], encrypted as data unit ``unit``, 0 to 2^128 - 1. Raises
        KernelError if ``data`` has another dtype or shape, if it does not consist of 1 to 2^20
        blocks of 16 bytes, or if ``unit`` is not a whole number in that range.
        """
        blocks, first = self._checked(data, unit)
        if self.backend == "numba":
            return _applied(self._data.forth, blocks, first)
        tweaks = defined_tweaks(first.tobytes(), len(blocks))
        return (self._data.encrypt(blocks ^ tweaks) ^ tweaks).reshape(-1)

    def decrypt(self, data: Bytes, unit: Any) -> Bytes:
        """Return ``data``, uint8[bytes], decrypted as data unit ``unit``. Raises KernelError as
        :meth:`encrypt` does.
        """
        blocks, first = self._checked(data, unit)
        if self.backend == "numba":
            return _applied(self._data.back, blocks, first)
        tweaks = defined_tweaks(first.tobytes(), len(blocks))
        return (self._data.decrypt(blocks ^ tweaks) ^ tweaks).reshape(-1)

    def _checked(self, data: Bytes, unit: Any) -> tuple[Bytes, Bytes]:
        """Return the blocks of a data unit, uint8[n, 16], and its first tweak, uint8[1, 16]. Raises
        KernelError as :meth:`encrypt` does.
        """
        number = whole("unit", unit)
        if not 0 <= number < 1 << 128:
            raise KernelError(f"unit = {number}: must be from 0 to 2**128 - 1")
        if data.dtype != np.uint8 or data.ndim != 1:
            raise KernelError(f"data: {data.dtype}, shape {data.shape}; must be uint8[bytes]")
        blocks, rest = divmod(data.size, BLOCK_BYTES)
        if rest or not 1 <= blocks <= MOST_BLOCKS:
            raise KernelError(
                f"data: {data.size} bytes; must be 1 to {MOST_BLOCKS} blocks of {BLOCK_BYTES} bytes"
            )
        raw = np.frombuffer(number.to_bytes(BLOCK_BYTES, "little"), np.uint8)
        return data.reshape(-1, BLOCK_BYTES), self._tweak.encrypt(raw[None])


def _applied(arguments: tuple[Any, ...], blocks: Bytes, first: Bytes) -> Bytes:
    words = as_words(blocks)
    apply_unit(*arguments, as_words(first)[0], words)
    return as_bytes(words).reshape(-1)
