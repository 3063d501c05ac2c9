"""Protection of on-die updates: parity over dies and commit records in place of the controller's.

Owns the additional steps of a stripe, the super-pages of parity over dies and of commit records,
and their reserved capacity. Does not own time (compute/pe.py: the die's part; engine/: the rest).
Source: OptimStore (HPCA 2023) for the omitted protection; parity over dies as in vendors' RAIN and
RAISE (one die of a stripe holds the exclusive or of the others); commit records: none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.nand import timing
from ondie.emu.paths.layout.regions import Stripes

GRADIENT, KEEP_STEP, GATE, SENSE, COMPUTE, FETCH_STEP, PROGRAM_STEP, STORE_STEP, CHAIN = range(9)
"""Steps of a stripe. GATE and CHAIN only join others: GATE: all gradients of a channel have been
loaded; CHAIN: all stripes under one parity have been fetched."""
KIND = {
    GRADIENT: timing.VPP, KEEP_STEP: timing.KEEP, SENSE: timing.BPR, COMPUTE: timing.ODC,
    FETCH_STEP: timing.FETCH, PROGRAM_STEP: timing.BPP, STORE_STEP: timing.STORE,
}  # fmt: skip
JOIN_STEPS = (GATE, CHAIN)


def steps(cfg: Config) -> tuple[int, ...]:
    """Return the steps of a stripe that the die updates, in order.

    Parity over dies needs the results of all dies in one place: they are read from the registers
    before they are programmed, unless they already pass the controller's ECC.
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
    """Super-pages of one device: its stripes, the parity over them, a commit record per die.

    ``dies`` of the device, ``members``: stripes under one parity (0: none). The parity of stripes
    j members .. (j + 1) members - 1, which lie on as many dies in turn, goes to the die before
    them.
    """

    count: int
    dies: int
    members: int
    parity: np.ndarray
    """Super-page of each parity, int64[groups]."""
    records: int
    """First super-page of commit records, one per die; they end the super-pages."""
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
        """Return the stripes under a parity."""
        first = number * self.members
        return range(first, min(first + self.members, self.count))

    def number(self, super_page: int) -> int:
        """Return the number of the parity in this super-page; -1: it holds no parity."""
        found = np.flatnonzero(self.parity == super_page)
        return int(found[0]) if len(found) else -1

    def is_record(self, super_page: int) -> bool:
        return self.commits and super_page >= self.records

    def beside(self, die: int) -> list[int]:
        """Return the super-pages of a die that hold parities, and its record."""
        found = [int(super_page) for super_page in self.parity if super_page % self.dies == die]
        return found + ([self.records + die] if self.commits else [])

    @property
    def super_pages(self) -> int:
        """Number of logical super-pages, some of which are never used."""
        return self.records + self.dies * self.commits

    @property
    def reserved(self) -> int:
        """Number of super-pages in use; doubled where a step can be undone, because the old ones
        stay until the new ones are committed."""
        held = self.count + len(self.parity) + self.dies * self.commits
        return held * (2 if self.undo else 1)

    def completed(self, stripes: np.ndarray) -> np.ndarray:
        """Return the number of parities whose stripes are all among the first ``stripes``."""
        if not self.members:
            return np.zeros_like(stripes)
        whole = stripes // self.members
        return np.where(stripes >= self.count, len(self.parity), whole)
