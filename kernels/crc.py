"""CRC-32C, the checksum of stored pages.

Owns the computation of the checksum. Does not own the checked data (emu/nand/page_store.py).
Source: RFC 3720, appendix B.4 (Castagnoli polynomial, reflected).
"""

import numpy as np

from . import native
from .jit import njit

REVERSED = 0x82F63B78


def _table() -> np.ndarray:
    """Return the lookup table of the CRC, with one entry for each byte value: uint32[256]."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = crc >> np.uint32(1) ^ (crc & np.uint32(1)) * np.uint32(REVERSED)
    return crc


TABLE = _table()


@njit
def by_table(table, data, crc):
    """Return the CRC register after ``data``, uint8[n]. ``crc``: the register before ``data``."""
    for byte in data:
        crc = crc >> 8 ^ int(table[(crc ^ byte) & 255])
    return crc


def crc32c(data: bytes | np.ndarray, crc: int = 0, isa: str | None = None) -> int:
    """Return the CRC-32C of ``data``, a contiguous array of any type or bytes.

    ``crc``: CRC-32C of the bytes that precede ``data``; 0 if there are none. ``isa``: instruction
    set of the C extension; None selects the widest one, or Numba if the extension is not built.
    """
    raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    raw = raw.reshape(-1).view(np.uint8)
    if native.lib is None:
        return int(by_table(TABLE, raw, ~crc & 0xFFFFFFFF)) ^ 0xFFFFFFFF
    number = native.ISAS.index(isa or native.isas()[-1])
    return int(native.lib.ondie_crc32c(number, crc, native.ffi.from_buffer(raw), raw.size))
