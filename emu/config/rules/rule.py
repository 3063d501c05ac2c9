"""The record of a rule, quantities that rules compare, and limits of the engine.

Owns the arithmetic on a configuration. Does not own the rules (the other files of this folder).
Source: geometry arithmetic; widths of the engine's tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ondie.emu.config.schema.tree import Tree
from ondie.emu.units import KINDS, exact


@dataclass(frozen=True, slots=True)
class Rule:
    """`holds(config)` must be true; otherwise the error gives `keys`, their values and `right`,
    which says what must be."""

    keys: tuple[str, ...]
    holds: Callable[[Tree], bool]
    right: Callable[[Tree], str] | str


def raw_bytes(config: Tree) -> int:
    """User bytes of every page of one drive, before over-provisioning."""
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
    """Bytes per mapping entry: a page of flash, or a part of one."""
    return config.ftl.mapping_unit_bytes or config.flash.page_bytes


def whole_pages(config: Tree) -> bool:
    """Whether a mapping entry is for a whole page."""
    return mapping_unit(config) == config.flash.page_bytes


def gathered_bytes(config: Tree) -> int:
    """Largest number of bytes in DRAM for word lines that are incomplete or not yet programmed.

    One word line per plane and stream; three with two passes, which also keep the data of the
    previous word line and of the one between its passes.
    """
    flash, ftl = config.flash, config.ftl
    collected = ftl.write_streams if ftl.gc_streams == "each" else 1
    streams = ftl.write_streams + collected + (ftl.map_cache_bytes > 0)
    planes = flash.channels * flash.dies_per_channel * flash.planes_per_die
    lines = 3 if flash.programming == "two_pass" else 1
    pages = 1 if flash.programming == "page" else WORD_LINE[flash.cell]
    return streams * planes * lines * pages * flash.page_bytes


def power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


def no_errors(config: Tree) -> bool:
    return config.errors.kind == "none"


def managed_blocks(config: Tree) -> int:
    """Blocks per plane that are not in the reservoir."""
    blocks = config.flash.blocks_per_plane
    return blocks - int(blocks * config.ftl.reservoir_fraction)


def pslc_blocks(config: Tree) -> int:
    """Blocks per plane in the pSLC region, or the most on loan."""
    return int(managed_blocks(config) * config.ftl.pslc_share)


def units_are_dies(config: Tree) -> bool:
    """Whether the unit of writing and collection is a whole die."""
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
"""Commands of a tunnel in flight each way."""
MOST_SECTORS = 64
"""Sectors of a page that one entry of the sector map holds."""
MOST_PLANES = 31
"""Planes of one die or chip that takes one command at a time: bits of a signed 32-bit word."""
WORD_LINE = {"MLC": 2, "TLC": 3, "QLC": 4}
"""Pages of a word line."""


def nearest_power(value: int) -> str:
    lower = 1 << (value.bit_length() - 1)
    return exact(lower if value - lower <= 2 * lower - value else 2 * lower, KINDS["bytes"])
