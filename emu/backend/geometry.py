"""Geometry: how many channels, dies, planes, blocks and pages, and how a physical page is numbered.

Owns the numbering. Does not own which logical page lives where (mapping.py).
Source: the usual one: channel / die / plane / block / page; a super-block is the same block index
in every plane of one die, a super-page the same page of it (OptimStore's word, HPCA 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.emu.config import Config


@dataclass(frozen=True)
class Geometry:
    """Sizes of one device's flash. Dies are numbered channel first: die = way * channels +
    channel."""

    channels: int
    ways: int
    planes: int
    blocks: int
    """Super-blocks per die that the conventional namespace owns."""
    reservoir_blocks: int
    """Super-blocks per die lent to the optimizer reservoir, behind the conventional ones."""
    pages: int
    page_bytes: int

    @staticmethod
    def of(cfg: Config) -> Geometry:
        """Geometry of a configuration."""
        flash = cfg.flash
        lent = int(flash.blocks_per_plane * cfg.ftl.reservoir_fraction)
        return Geometry(
            channels=flash.channels,
            ways=flash.dies_per_channel,
            planes=flash.planes_per_die,
            blocks=flash.blocks_per_plane - lent,
            reservoir_blocks=lent,
            pages=flash.pages_per_block,
            page_bytes=flash.page_bytes,
        )

    @property
    def dies(self) -> int:
        return self.channels * self.ways

    @property
    def super_page_bytes(self) -> int:
        return self.planes * self.page_bytes

    @property
    def all_blocks(self) -> int:
        """Super-blocks per die, conventional and reservoir."""
        return self.blocks + self.reservoir_blocks

    @property
    def die_pages(self) -> int:
        """Physical pages per die, conventional and reservoir."""
        return self.all_blocks * self.pages * self.planes

    @property
    def physical_pages(self) -> int:
        return self.dies * self.die_pages

    @property
    def conventional_pages(self) -> int:
        """Physical pages that the conventional namespace owns."""
        return self.dies * self.blocks * self.pages * self.planes

    @property
    def reservoir_super_pages(self) -> int:
        """Physical super-pages in the reservoir of the whole device."""
        return self.dies * self.reservoir_blocks * self.pages

    def channel_of(self, die: int) -> int:
        return die % self.channels
