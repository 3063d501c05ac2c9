"""Geometry: numbers of channels, dies, planes, blocks and pages, and physical page numbers.

Owns the numbering. Does not own the mapping table (ftl/page_map.py).
Source: the usual hierarchy channel / die / plane / block / page. A super-block consists of the
blocks with equal index in all planes of a die. A super-page consists of the pages with equal offset
in a super-block (OptimStore's term, HPCA 2023). A unit is written and garbage-collected as a whole:
a die with its super-blocks, or a plane with its blocks.

If an entry of the mapping table covers less than a flash page, this mapping unit is a *slot* of the
flash page, and "page" means a slot here and in the mapping table. Consecutive slots are in one
flash page, then in the next plane of the super-page, then in the next super-page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.rules.rule import mapping_unit
from ondie.kernels.jit import cold


@dataclass(frozen=True)
class Geometry:
    """Dimensions of one device's flash. Die numbers: die = way * channels + channel."""

    channels: int
    ways: int
    planes: int
    blocks: int
    """Number of blocks of the conventional namespace in each unit. A unit is all planes of a die,
    or one plane (``unit_planes``)."""
    reservoir_blocks: int
    """Number of super-blocks per die in the optimizer reservoir. Their numbers follow those of the
    conventional blocks.
    """
    pages: int
    """Number of flash pages per block of a plane."""
    page_bytes: int
    """Size of a mapping unit in bytes. A mapping unit is a flash page or one of its ``slots``."""
    unit_planes: int
    """Number of planes of a unit, which is written and garbage-collected as a whole: all planes of
    a die, or 1."""
    chip_dies: int = 1
    """Number of dies of a chip, which share one chip enable."""
    lanes: int = 1
    """Number of planes of a die that read independently, or 1 if the die reads as a whole."""
    pslc_blocks: int = 0
    """Number of blocks in each unit (all planes of a die, or one plane) that always hold one bit
    per cell. They are the last conventional blocks of the unit."""
    slots: int = 1
    """Number of mapping units (pages of the mapping table) per flash page."""

    @staticmethod
    def of(cfg: Config) -> Geometry:
        """Return the geometry of a configuration."""
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
        """Number of mapping units in a block of a unit. The block spans all planes of the unit."""
        return self.pages * self.unit_planes * self.slots

    @property
    def flash_page_bytes(self) -> int:
        return self.slots * self.page_bytes

    @property
    def super_page_bytes(self) -> int:
        return self.planes * self.slots * self.page_bytes

    @property
    def all_blocks(self) -> int:
        """Number of blocks in each unit (all planes of a die, or one plane), conventional and
        reservoir together."""
        return self.blocks + self.reservoir_blocks

    @property
    def die_pages(self) -> int:
        """Number of mapping units per die, conventional and reservoir together."""
        return self.all_blocks * self.pages * self.planes * self.slots

    @property
    def physical_pages(self) -> int:
        return self.dies * self.die_pages

    @property
    def native_blocks(self) -> int:
        """Number of conventional blocks in each unit (all planes of a die, or one plane), excluding
        the fixed pSLC blocks."""
        return self.blocks - self.pslc_blocks

    @property
    def native_pages(self) -> int:
        """Number of mapping units of the device in native blocks, which are the conventional blocks
        that are not in pSLC mode. Native blocks are the final location of logical pages."""
        return self.units * self.native_blocks * self.block_pages

    @property
    def reservoir_super_pages(self) -> int:
        """Number of physical super-pages in the reservoir of the device."""
        return self.dies * self.reservoir_blocks * self.pages

    def channel_of(self, die: int) -> int:
        return die % self.channels

    def turns(self, order: str) -> np.ndarray:
        """Return the numbers of all units (dies or planes) in the order in which writes are
        allocated to them, int32[units].

        ``order``: the letters C, W, D and P (channel, way, die, plane) in some order. The dimension
        of the first letter varies fastest. P has no effect if a unit spans all planes of a die.
        """
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
def pages(st, ppn, count):
    """Return the number of flash pages that contain ``count`` slots (mapping units), starting at
    physical slot ``ppn``."""
    slots = st.cfg[0].slots
    return (ppn % slots + count - 1) // slots + 1
