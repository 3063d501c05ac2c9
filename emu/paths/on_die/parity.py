"""Contents of the parity super-pages and commit records that the controller programs.

Owns the exclusive or of the stripes under a parity and of their out-of-band data, the contents of a
commit record, and the reconstruction of a lost die's super-page. Does not own the placement
(protection.py), the duration of programs (path.py, recovery_plan.py) or the selection of
super-pages to read (checkpoint.py).
Source: vendors' RAIN and RAISE, as in protection.py. The exclusive or of out-of-band data is an
addition of this project, because a reconstructed super-page must be locatable. This exclusive or is
stored in place of ECC parity, which the optimizer's pages do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.nand.page_store import SPARE_BYTES, Spare, out_of_band
from ondie.emu.paths.on_die.protection import Guarded

RECORD_PLANES = 1
"""Number of pages that a commit record occupies in its super-page."""


@dataclass
class Chain:
    """Exclusive or of the stripes that the controller has received so far for one parity
    super-page."""

    planes: np.ndarray
    """Exclusive or of the pages of the stripes received so far, uint8[planes, page_bytes]."""
    records: np.ndarray
    """Exclusive or of the out-of-band data of the stripes received so far, uint8[planes,
    SPARE_BYTES]."""
    stripes: set[int]


@dataclass(frozen=True)
class Made:
    """Data to be programmed into one super-page. ``spares``: out-of-band data of each page,
    starting with the first plane. ``planes``: pages, uint8[planes, page_bytes]."""

    spares: Sequence[Spare]
    planes: np.ndarray
    members: np.ndarray | None = None
    """For a parity, the exclusive or of the out-of-band data of its stripes, uint8[planes,
    SPARE_BYTES]. None for other super-pages."""


class ParityData:
    """Contents of the parity super-pages and commit records of one device. Super-pages have
    ``planes`` pages of ``page`` bytes."""

    def __init__(self, guarded: Guarded, planes: int, page: int) -> None:
        self.guarded = guarded
        self.planes, self.page = planes, page
        self.chains: dict[int, Chain] = {}

    def join(self, stripe: int, planes: np.ndarray, records: np.ndarray) -> None:
        """Add the new pages of a stripe, uint8[planes, page_bytes], and their out-of-band data,
        uint8[planes, SPARE_BYTES], to the stripe's parity."""
        if not self.guarded.members:
            return
        empty = Chain(
            np.zeros((self.planes, self.page), np.uint8),
            np.zeros((self.planes, SPARE_BYTES), np.uint8),
            set(),
        )
        chain = self.chains.setdefault(stripe // self.guarded.members, empty)
        if stripe in chain.stripes:
            raise SimulationError(f"stripe {stripe} was added to its parity twice")
        chain.planes ^= planes
        chain.records ^= records
        chain.stripes.add(stripe)

    def planes_of(self, super_page: int) -> int:
        """Return the number of pages that are programmed in a super-page."""
        return RECORD_PLANES if self.guarded.is_record(super_page) else self.planes

    def made(self, super_page: int, sequence: int, step: int) -> Made:
        """Return the contents of a parity or commit record to program, with sequence number
        ``sequence`` and update step ``step``. Raises SimulationError if a stripe of the parity has
        not been added."""
        spares = [
            Spare(super_page, sequence, step, plane) for plane in range(self.planes_of(super_page))
        ]
        if self.guarded.is_record(super_page):
            data = np.zeros((RECORD_PLANES, self.page), np.uint8)
            data[0, :8] = np.array([step], np.int64).view(np.uint8)
            return Made(spares, data)
        number = self.guarded.number(super_page)
        chain = self.chains.get(number)
        if chain is None or chain.stripes != set(self.guarded.under(number)):
            raise SimulationError(
                f"super-page {super_page}: some stripes have not been added to the parity that is "
                "to be programmed"
            )
        return Made(spares, chain.planes, chain.records)

    def done(self, super_page: int) -> None:
        """Discard the intermediate data of the parity in ``super_page``, after the parity has been
        programmed."""
        self.chains.pop(self.guarded.number(super_page), None)

    def others(self, stripe: int) -> list[int]:
        """Return the super-pages whose exclusive or equals the data of ``stripe``: the other
        stripes under its parity, and the parity."""
        number = stripe // self.guarded.members
        beside = [guarded for guarded in self.guarded.under(number) if guarded != stripe]
        return [*beside, int(self.guarded.parity[number])]

    def again(self, stripe: int, read: Callable[[int], np.ndarray]) -> np.ndarray:
        """Return the pages of ``stripe``, uint8[planes, n], reconstructed from its parity and the
        other stripes that the parity covers. ``read``: function that returns the pages of a
        super-page, uint8[planes, n]."""
        found = [read(super_page) for super_page in self.others(stripe)]
        out: np.ndarray = np.bitwise_xor.reduce(found)
        return out


def records(spares: Sequence[Spare], planes: np.ndarray) -> np.ndarray:
    """Return the out-of-band data of a super-page as stored in the cells, uint8[planes,
    SPARE_BYTES]. ``spares``: fields of the out-of-band data of each page. ``planes``: data of the
    pages, uint8[planes, page_bytes]."""
    return np.stack([out_of_band(spare, page) for spare, page in zip(spares, planes, strict=True)])
