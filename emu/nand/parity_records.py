"""Out-of-band data of protected pages, in the form that a parity page covers.

Owns the conversion of a page's out-of-band data to this form, and the reading of the exclusive or
that a parity page stores. Does not own the record (page_store.py) or the choice of the pages
(paths/on_die/protection.py).
Source: this project.

A parity is computed before the blocks of its pages are known, so it covers out-of-band data with an
erase count and a check-byte mark of 0. A parity page stores the exclusive or of the sequence
numbers, checksums and seals of its pages. The exclusive or of the other fields follows from the
location of the pages.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.nand.page_store import OOB, SPARE_BYTES, PageStore, Spare, record_checksum


def covered(store: PageStore, ppn: int) -> np.ndarray:
    """Return the out-of-band data of page ``ppn`` in the form that a parity covers,
    uint8[SPARE_BYTES]. The seal of the record is recomputed as if its erase count and its
    check-byte mark were 0."""
    record, none = store.page_records(np.array([ppn])), (0,) * 6
    late = int(record["stream"][0]), int(record["erases"][0])
    # CRCs of records of one length: that of a xor b is that of a xor that of b xor that of zeros
    record["seal"] ^= np.uint32(record_checksum(*none, *late) ^ record_checksum(*none, 0, 0))
    return record.view(np.uint8)[:SPARE_BYTES]


def joined(store: PageStore, ppn: int, rest: Spare) -> np.ndarray:
    """Return the exclusive or of the out-of-band data that parity page ``ppn`` covers,
    uint8[SPARE_BYTES]. ``rest``: exclusive or of the fields that follow from the location of the
    pages; its sequence number is not used. Raises InputError if the page is erased."""
    store.read(ppn)
    held, found = store.page_records(np.array([ppn]))[0], np.zeros(1, OOB)
    found["lpn"], found["step"], found["slot"] = rest.lpn, rest.step, rest.slot
    found["sequence"], found["checksum"], found["seal"] = (
        held["sectors"], held["stream"], held["erases"],
    )  # fmt: skip
    return found.view(np.uint8)[:SPARE_BYTES]
