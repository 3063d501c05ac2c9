"""Geometry: how many channels, dies, planes, blocks and pages, and how a physical page is numbered.

Owns the numbering. Does not own which logical page lives where (mapping.py).
Source: the usual one: channel / die / plane / block / page; a super-block is the same block index
in every plane of one die, a super-page the same page of it (OptimStore's word, HPCA 2023). A unit
is what is written and collected together: a die with its super-blocks, or a plane with its blocks.

Where an entry of the map stands for less than a page of flash, such a mapping unit is a *slot* of
it, and all that is called a page here and in the map is a slot: consecutive ones lie in one page of
flash, then in the next plane of the super-page, then in the next super-page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.rules import mapping_unit
from ondie.kernels.jit import cold


@dataclass(frozen=True)
class Geometry:
    """Sizes of one device's flash. Dies are numbered channel first: die = way * channels +
    channel."""

    channels: int
    ways: int
    planes: int
    blocks: int
    """Blocks per unit that the conventional namespace owns."""
    reservoir_blocks: int
    """Super-blocks per die lent to the optimizer reservoir, behind the conventional ones."""
    pages: int
    """Pages of a block of flash, per plane."""
    page_bytes: int
    """Bytes of a page of the map, which is a page of flash or one of its ``slots``."""
    unit_planes: int
    """Planes of a unit: all of a die, or one."""
    chip_dies: int = 1
    """Dies behind one chip enable."""
    lanes: int = 1
    """Planes of a die that read alone."""
    pslc_blocks: int = 0
    """Blocks of a unit, the last conventional ones, that always hold one bit per cell."""
    slots: int = 1
    """Pages of the map in a page of flash."""

    @staticmethod
    def of(cfg: Config) -> Geometry:
        """Geometry of a configuration."""
        flash = cfg.flash
        lent = int(flash.blocks_per_plane * cfg.ftl.reservoir_fraction)
        blocks = flash.blocks_per_plane - lent
        fixed = int(blocks * cfg.ftl.pslc_share) if cfg.ftl.pslc == "static" else 0
        return Geometry(
            channels=flash.channels,
            ways=flash.dies_per_channel,
            planes=flash.planes_per_die,
            blocks=blocks,
            reservoir_blocks=lent,
            pages=flash.pages_per_block,
            page_bytes=mapping_unit(cfg),
            unit_planes=flash.planes_per_die if cfg.ftl.block_unit == "die" else 1,
            chip_dies=flash.dies_per_chip,
            lanes=flash.planes_per_die if flash.plane_reads == "alone" else 1,
            pslc_blocks=fixed,
            slots=flash.page_bytes // mapping_unit(cfg),
        )

    @property
    def dies(self) -> int:
        return self.channels * self.ways

    @property
    def units(self) -> int:
        return self.dies * self.planes // self.unit_planes

    @property
    def block_pages(self) -> int:
        """Pages of a unit's block."""
        return self.pages * self.unit_planes * self.slots

    @property
    def super_page_bytes(self) -> int:
        return self.planes * self.slots * self.page_bytes

    @property
    def all_blocks(self) -> int:
        """Blocks per unit, conventional and reservoir."""
        return self.blocks + self.reservoir_blocks

    @property
    def die_pages(self) -> int:
        """Physical pages per die, conventional and reservoir."""
        return self.all_blocks * self.pages * self.planes * self.slots

    @property
    def physical_pages(self) -> int:
        return self.dies * self.die_pages

    @property
    def conventional_pages(self) -> int:
        """Physical pages that the conventional namespace owns."""
        return self.units * self.blocks * self.block_pages

    @property
    def native_blocks(self) -> int:
        """Conventional blocks per unit that hold all bits of their cells, but for those lent."""
        return self.blocks - self.pslc_blocks

    @property
    def native_pages(self) -> int:
        """Physical pages that logical ones can end in: those of native blocks."""
        return self.units * self.native_blocks * self.block_pages

    @property
    def reservoir_super_pages(self) -> int:
        """Physical super-pages in the reservoir of the whole device."""
        return self.dies * self.reservoir_blocks * self.pages

    def channel_of(self, die: int) -> int:
        return die % self.channels

    def turns(self, order: str) -> np.ndarray:
        """Units in an order of channels, ways, dies and planes: int32[units], the first letter of
        ``order`` turns fastest. Within a unit of several planes, its planes are its own affair."""
        chips = self.ways // self.chip_dies
        sizes = {"C": self.channels, "W": chips, "D": self.chip_dies, "P": self.planes}
        if self.unit_planes > 1:
            sizes["P"] = 1
        left = np.arange(math.prod(sizes.values()))
        at = {}
        for letter in order:
            left, at[letter] = np.divmod(left, sizes[letter])
        die = (at["W"] * self.chip_dies + at["D"]) * self.channels + at["C"]
        return (die * sizes["P"] + at["P"]).astype(np.int32)


@cold
def pages(st, ppn, n):
    """Pages of flash in which ``n`` slots from ``ppn`` on lie."""
    slots = st.cfg[0].slots
    return (ppn % slots + n - 1) // slots + 1
