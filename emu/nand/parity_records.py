"""Out-of-band data of the pages under a parity, in the form that the parity covers.

Owns the out-of-band data of a page as a parity covers them, and those that a parity page holds.
Does not own the record (page_store.py) or the choice of the pages (paths/on_die/protection.py).
Source: this project.

A parity is made before the blocks of its pages are known, so that it covers their out-of-band data
with an erase count and a mark of check bytes of 0. A parity page
holds the exclusive or of their sequence numbers, checksums and seals; that of the other fields
follows from its place.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.nand.page_store import OOB, SPARE_BYTES, PageStore, Spare, record_checksum


def covered(store: PageStore, ppn: int) -> np.ndarray:
    """Return the out-of-band data of page ``ppn`` that a parity covers, uint8[SPARE_BYTES]."""
    record, none = store.page_records(np.array([ppn])), (0,) * 6
    late = int(record["stream"][0]), int(record["erases"][0])
    # CRCs of records of one length: that of a xor b is that of a xor that of b xor that of zeros
    record["seal"] ^= np.uint32(record_checksum(*none, *late) ^ record_checksum(*none, 0, 0))
    return record.view(np.uint8)[:SPARE_BYTES]


def joined(store: PageStore, ppn: int, rest: Spare) -> np.ndarray:
    """Return the exclusive or of the out-of-band data that parity page ``ppn`` covers,
    uint8[SPARE_BYTES]. ``rest``: exclusive or of the fields that follow from the location of the
    pages; its sequence number is not used. Raises InputError if the page is not programmed."""
    store.read(ppn)
    held, found = store.page_records(np.array([ppn]))[0], np.zeros(1, OOB)
    found["lpn"], found["step"], found["slot"] = rest.lpn, rest.step, rest.slot
    found["sequence"], found["checksum"], found["seal"] = (
        held["sectors"], held["stream"], held["erases"],
    )  # fmt: skip
    return found.view(np.uint8)[:SPARE_BYTES]
