"""The record of a rule, quantities that rules compare, and limits of the engine.

Owns the arithmetic on a configuration. Does not own the rules (the other files of this folder).
Source: arithmetic of the geometry; widths of the engine's tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ondie.emu.config.schema.tree import Tree
from ondie.emu.units import KINDS, exact


@dataclass(frozen=True, slots=True)
class Rule:
    """A mandatory condition of every configuration, and the error message for a configuration that
    does not meet it.

    `holds(config)` returns True if the condition is met. The message has `keys`, their values, and
    `right`, a text that states the allowed values.
    """

    keys: tuple[str, ...]
    holds: Callable[[Tree], bool]
    right: Callable[[Tree], str] | str


def raw_bytes(config: Tree) -> int:
    """Return the capacity of all pages of one drive in bytes, before over-provisioning."""
    flash = config.flash
    return (
        flash.channels
        * flash.dies_per_channel
        * flash.planes_per_die
        * flash.blocks_per_plane
        * flash.pages_per_block
        * flash.page_bytes
    )


def mapping_unit(config: Tree) -> int:
    """Return the size of a mapping unit in bytes: a flash page, or a part of a page."""
    return config.ftl.mapping_unit_bytes or config.flash.page_bytes


def whole_pages(config: Tree) -> bool:
    """Return True if an entry of the page map covers a whole page."""
    return mapping_unit(config) == config.flash.page_bytes


def gathered_bytes(config: Tree) -> int:
    """Return the maximum number of bytes in DRAM for word lines (or pages, if pages are programmed
    one by one) that are not yet programmed.

    Each plane and stream has one such word line or page. With two-pass programming, each has three
    word lines: the open word line, the previous word line, and the word line between its two
    passes.
    """
    flash, ftl = config.flash, config.ftl
    collected = ftl.write_streams if ftl.gc_streams == "each" else 1
    streams = ftl.write_streams + collected + (ftl.map_cache_bytes > 0)
    streams += ftl.map_checkpoint_bytes > 0
    planes = flash.channels * flash.dies_per_channel * flash.planes_per_die
    lines = 3 if flash.programming == "two_pass" else 1
    pages = 1 if flash.programming == "page" else WORD_LINE[flash.cell]
    return streams * planes * lines * pages * flash.page_bytes


def power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


def no_errors(config: Tree) -> bool:
    return config.errors.kind == "none"


def managed_blocks(config: Tree) -> int:
    """Return the number of blocks per plane that are not in the reservoir."""
    blocks = config.flash.blocks_per_plane
    return blocks - int(blocks * config.ftl.reservoir_fraction)


def pslc_blocks(config: Tree) -> int:
    """Return the number of blocks per plane in the static pSLC region, or the largest number of
    blocks per plane that the dynamic mode borrows."""
    return int(managed_blocks(config) * config.ftl.pslc_share)


def native_bytes(config: Tree) -> int:
    """Return the capacity in bytes, before over-provisioning, of all pages of one drive that are
    outside the static pSLC region.
    """
    raw = raw_bytes(config)
    if config.ftl.pslc != "static":
        return raw
    return raw - raw // config.flash.blocks_per_plane * pslc_blocks(config)


def units_are_dies(config: Tree) -> bool:
    """Return True if the unit of writing and garbage collection is a whole die."""
    return config.ftl.block_unit == "die" or config.flash.planes_per_die == 1


GEOMETRY = (
    "flash.channels",
    "flash.dies_per_channel",
    "flash.planes_per_die",
    "flash.blocks_per_plane",
    "flash.pages_per_block",
    "flash.page",
)

MOST_DEVICES = 4096
MOST_OUTSTANDING = 4096
"""Maximum number of outstanding NVMe commands in each direction of a TCP-over-NVMe tunnel."""
MOST_SECTORS = 64
"""Maximum number of sectors of a page. An entry of the sector map has one bit per sector."""
MOST_PLANES = 31
"""Maximum number of planes of a die, or of a chip that executes one command at a time.

The engine keeps one bit per plane in a signed 32-bit word.
"""
WORD_LINE = {"MLC": 2, "TLC": 3, "QLC": 4}
"""Number of pages of a word line by cell type."""


def nearest_power(value: int) -> str:
    lower = 1 << (value.bit_length() - 1)
    return exact(lower if value - lower <= 2 * lower - value else 2 * lower, KINDS["bytes"])
