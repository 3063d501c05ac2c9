"""Check and computation of the seals (checksums) of many out-of-band records at a time.

Owns the check and the computation of seals for arrays of records. Does not own the record type
(page_store.py) or the seal of one record (csrc/payload.c). Source: this project (docs/store.md).
"""

from __future__ import annotations

import numpy as np

from ondie.kernels import native

READS_BLANK, READS_VALID, READS_DAMAGED = range(3)
"""Results of reading a page's out-of-band data: the page reads as blank, the data is valid, or the
data does not match its seal (checksum)."""


def read_spares(records: np.ndarray) -> np.ndarray:
    """Return the result of reading each out-of-band record of ``records`` (OOB[n]), uint8[n]:
    READS_BLANK, READS_VALID, or READS_DAMAGED if the seal is wrong."""
    found = np.zeros(len(records), np.uint8)
    lib, ffi = native.lib, native.ffi
    lib.ondie_read_spares(
        native.ISAS.index(native.isas()[-1]),
        ffi.cast("ondie_spare *", np.ascontiguousarray(records).ctypes.data),
        len(records),
        ffi.cast("uint8_t *", found.ctypes.data),
    )
    return found


def seal_records(records: np.ndarray) -> None:
    """Compute and store the seals (checksums) of out-of-band records (OOB[n], contiguous)."""
    native.lib.ondie_seal_spares(
        native.ISAS.index(native.isas()[-1]),
        native.ffi.cast("ondie_spare *", records.ctypes.data),
        len(records),
    )
