"""Protection of on-die updates: parity over dies and commit records in place of the controller's
protection.

Owns the additional steps of a stripe, the super-pages of parity over dies and of commit records,
their reserved capacity, and the note on pages without ECC. Does not own timing (compute/pe.py for
operations in the die, engine/ for all other operations).
Source: OptimStore (HPCA 2023) for the omitted protection; this project for commit records. Parity
over dies follows the vendors' RAIN and RAISE schemes: one die stores the exclusive or of the data
on other dies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import xor

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.nand import timing
from ondie.emu.nand.page_store import Spare
from ondie.emu.nand.pe_protection import WITHOUT_ECC
from ondie.emu.paths.layout.regions import Stripes

GRADIENT, KEEP_STEP, GATE, SENSE, COMPUTE, FETCH_STEP, PROGRAM_STEP, STORE_STEP, CHAIN = range(9)
"""Numbers of the steps in which a die updates one stripe. GATE and CHAIN take no time but wait for
other steps. GATE is complete when all gradients of a channel have been loaded; CHAIN is complete
when all stripes under one parity have been fetched."""
KIND = {
    GRADIENT: timing.VPP, KEEP_STEP: timing.KEEP, SENSE: timing.BPR, COMPUTE: timing.ODC,
    FETCH_STEP: timing.FETCH, PROGRAM_STEP: timing.BPP, STORE_STEP: timing.STORE,
}  # fmt: skip
JOIN_STEPS = (GATE, CHAIN)


def steps(cfg: Config) -> tuple[int, ...]:
    """Return the numbers of the steps in which a die updates one stripe, in order.

    With parity over dies, the controller needs the results of every die. A FETCH step therefore
    transfers the results from the registers to the controller before the die programs them. With
    protection "controller_ecc" there is no FETCH step, because the results already pass through the
    controller.
    """
    out = [GRADIENT, SENSE, COMPUTE]
    if cfg.pe.rain and cfg.pe.protection != "controller_ecc":
        out += [FETCH_STEP]
    out += [PROGRAM_STEP]
    if cfg.pe.rain:
        out += [CHAIN]
    return tuple(out)


@dataclass(frozen=True)
class Guarded:
    """Super-pages of one device: stripes, the parities over them, and a commit record per die.

    ``dies``: number of dies of the device. ``members``: number of stripes under one parity, or 0 if
    there is no parity. Parity j covers stripes j x members .. (j + 1) x members - 1, which are on
    consecutive dies. Parity j is stored on the die before that of its first stripe.
    """

    count: int
    dies: int
    members: int
    parity: np.ndarray
    """Number of the super-page that holds each parity, int64[parities]."""
    records: int
    """Number of the first super-page that holds a commit record. There is one commit record per
    die, after all other super-pages."""
    commits: bool
    undo: bool

    @staticmethod
    def of(cfg: Config, stripes: Stripes, dies: int) -> Guarded:
        members = cfg.pe.rain - 1 if cfg.pe.rain else 0
        base = -(-stripes.count // dies) * dies
        parity = np.zeros(0, np.int64)
        rank = 0
        if members:
            groups = -(-stripes.count // members)
            die = (np.arange(groups, dtype=np.int64) * members - 1) % dies
            order = np.argsort(die, kind="stable")
            first = np.searchsorted(die[order], np.arange(dies))
            turn = np.empty(groups, np.int64)
            turn[order] = np.arange(groups) - first[die[order]]
            parity = base + turn * dies + die
            rank = int(turn.max(initial=-1)) + 1
        commits = cfg.pe.atomicity != "none"
        records = base + rank * dies
        return Guarded(
            stripes.count, dies, members, parity, records, commits, cfg.pe.atomicity == "undo"
        )

    def under(self, number: int) -> range:
        """Return the stripes that parity ``number`` covers."""
        first = number * self.members
        return range(first, min(first + self.members, self.count))

    def number(self, super_page: int) -> int:
        """Return the number of the parity in a super-page, or -1 if the super-page does not hold a
        parity."""
        found = np.flatnonzero(self.parity == super_page)
        return int(found[0]) if len(found) else -1

    def is_parity(self, super_page: int) -> bool:
        """Return True if the super-page is in the range of super-pages that is reserved for
        parities."""
        return self.count <= super_page < self.records

    def joined(self, super_page: int, step: int, slot: int) -> Spare:
        """Return the exclusive or of the out-of-band data of the pages in plane ``slot`` that a
        parity covers. The parity is in ``super_page`` and was made in update ``step``. The sequence
        number in the result is 0, because sequence numbers are excluded."""
        under = self.under(self.number(super_page))
        odd = len(under) % 2
        return Spare(reduce(xor, under), 0, step * odd, slot * odd)

    def is_record(self, super_page: int) -> bool:
        return self.commits and super_page >= self.records

    def beside(self, die: int) -> list[int]:
        """Return the super-pages of a die that hold parities, followed by the super-page of its
        commit record."""
        found = [int(super_page) for super_page in self.parity if super_page % self.dies == die]
        return found + ([self.records + die] if self.commits else [])

    @property
    def super_pages(self) -> int:
        """Number of logical super-pages, including super-pages that are never used."""
        return self.records + self.dies * self.commits

    @property
    def reserved(self) -> int:
        """Number of super-pages to reserve: those in use, or twice this number if a step can be
        undone, because the old super-pages remain until the new ones are committed."""
        held = self.count + len(self.parity) + self.dies * self.commits
        return held * (2 if self.undo else 1)

    def completed(self, stripes: np.ndarray) -> np.ndarray:
        """For each element n of ``stripes``, return the number of parities whose stripes are all
        among the first n stripes, int64[len(stripes)]."""
        if not self.members:
            return np.zeros_like(stripes)
        whole = stripes // self.members
        return np.where(stripes >= self.count, len(self.parity), whole)


def without_ecc(cfg: Config) -> list[str]:
    """Return a note if pages of MLC, TLC or QLC cells are read without ECC, otherwise an empty
    list.

    OptimStore (HPCA 2023) omits ECC in pSLC mode only.
    """
    cell, protection = cfg.flash.cell, cfg.pe.protection
    if cell in ("pSLC", "SLC") or protection not in WITHOUT_ECC:
        return []
    advice = "see docs/errors.md"
    if cfg.errors.kind == "none":
        advice = f"--set errors.kind=model counts bit errors; {advice}"
    return [f"pages of {cell} are read without ECC (pe.protection = {protection}); {advice}"]
