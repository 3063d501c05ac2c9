"""What the controller programs beside stripes, byte for byte: parity over dies, records of a step.

Owns the exclusive or of the stripes under a parity, of their out-of-band data as well; what a
record says; a super-page of a lost die, made again from the others. Does not own where these lie
(guards.py), when they are made (on_die.py, resume.py) or how much is read (checkpoint.py).
Source: as guards.py; the exclusive or of out-of-band data: own, since what is made again must be
found again. It lies where ECC's parity would, which the optimizer's pages have none of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.nand.page_store import SPARE_BYTES, Spare, record
from ondie.emu.paths.on_die.protection import Guarded

RECORD_PLANES = 1
"""A record takes one page of its super-page."""


@dataclass
class Chain:
    """The exclusive or of stripes that are under one parity, as far as the controller has them."""

    planes: np.ndarray
    """uint8[planes, page bytes]."""
    records: np.ndarray
    """uint8[planes, SPARE_BYTES]."""
    stripes: set[int]


@dataclass(frozen=True)
class Made:
    """What is programmed as one super-page, a page of each plane from the first on."""

    spares: Sequence[Spare]
    planes: np.ndarray
    members: np.ndarray | None = None
    """Of a parity: uint8[planes, SPARE_BYTES]."""


class Beside:
    """Parities and records of one device. ``planes`` in use, of ``page`` bytes each."""

    def __init__(self, guarded: Guarded, planes: int, page: int) -> None:
        self.guarded = guarded
        self.planes, self.page = planes, page
        self.chains: dict[int, Chain] = {}

    def join(self, stripe: int, planes: np.ndarray, records: np.ndarray) -> None:
        """The controller has a stripe's new pages and their out-of-band data."""
        if not self.guarded.members:
            return
        empty = Chain(
            np.zeros((self.planes, self.page), np.uint8),
            np.zeros((self.planes, SPARE_BYTES), np.uint8),
            set(),
        )
        chain = self.chains.setdefault(stripe // self.guarded.members, empty)
        if stripe in chain.stripes:
            raise SimulationError(f"stripe {stripe} joins its parity twice")
        chain.planes ^= planes
        chain.records ^= records
        chain.stripes.add(stripe)

    def planes_of(self, super_page: int) -> int:
        """Pages of a super-page that are programmed."""
        return RECORD_PLANES if self.guarded.is_record(super_page) else self.planes

    def made(self, super_page: int, sequence: int, step: int) -> Made:
        """What the controller programs as a parity or a record. Raises SimulationError where a
        stripe is missing."""
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
            raise SimulationError(f"super-page {super_page}: not all stripes under it have joined")
        return Made(spares, chain.planes, chain.records)

    def done(self, super_page: int) -> None:
        """A parity is in the array."""
        self.chains.pop(self.guarded.number(super_page), None)

    def others(self, stripe: int) -> list[int]:
        """Super-pages whose exclusive or is that of a stripe: those beside it, and the parity."""
        number = stripe // self.guarded.members
        beside = [x for x in self.guarded.under(number) if x != stripe]
        return [*beside, int(self.guarded.parity[number])]

    def again(self, stripe: int, read: Callable[[int], np.ndarray]) -> np.ndarray:
        """A stripe's pages, uint8[planes, n], from what ``read`` gives of the others."""
        found = [read(super_page) for super_page in self.others(stripe)]
        out: np.ndarray = np.bitwise_xor.reduce(found)
        return out


def records(spares: Sequence[Spare], planes: np.ndarray) -> np.ndarray:
    """Out-of-band data of pages as cells hold them, uint8[planes, SPARE_BYTES]."""
    return np.stack([record(spare, page) for spare, page in zip(spares, planes, strict=True)])
