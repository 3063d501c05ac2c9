"""Rules for blocks in pSLC mode.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: none.
"""

from __future__ import annotations

from ondie.emu.config.rules.rule import (
    WORD_LINE,
    Rule,
    managed_blocks,
    no_errors,
    pslc_blocks,
    whole_pages,
)

RULES: tuple[Rule, ...] = (
    Rule(
        ("ftl.pslc", "flash.cell"),
        lambda c: c.ftl.pslc == "off" or c.flash.cell in WORD_LINE,
        "blocks of MLC, TLC and QLC can hold one bit per cell",
    ),
    Rule(
        ("ftl.pslc", "flash.pages_per_block", "flash.cell"),
        lambda c: c.ftl.pslc == "off" or c.flash.pages_per_block >= WORD_LINE.get(c.flash.cell, 1),
        "a block has at least one word line",
    ),
    Rule(
        ("ftl.pslc", "flash.programming"),
        lambda c: c.ftl.pslc == "off" or c.flash.programming == "page",
        'native blocks beside those in pSLC mode are programmed page by page: "page" is right',
    ),
    Rule(
        ("ftl.pslc", "ftl.map_update"),
        lambda c: c.ftl.pslc == "off" or c.ftl.map_update == "programmed",
        'pages are folded once they are programmed: map_update "programmed"',
    ),
    Rule(
        ("ftl.pslc", "ftl.pslc_share", "flash.blocks_per_plane", "ftl.reservoir_fraction"),
        lambda c: c.ftl.pslc == "off" or (c.ftl.pslc_share <= 1 and pslc_blocks(c) >= 1),
        "a share of at most 1, and of at least one block of a unit",
    ),
    Rule(
        (
            "ftl.pslc",
            "ftl.pslc_share",
            "ftl.gc_low_blocks",
            "flash.blocks_per_plane",
            "ftl.reservoir_fraction",
        ),
        lambda c: (
            c.ftl.pslc != "static" or managed_blocks(c) - pslc_blocks(c) > c.ftl.gc_low_blocks
        ),
        "native blocks must be left: more than those at which collection starts",
    ),
    Rule(
        ("ftl.pslc", "errors.kind", "errors.pslc"),
        lambda c: c.ftl.pslc == "off" or no_errors(c) or c.errors.pslc > 0,
        "a share of the errors of the constants, above 0",
    ),
    Rule(
        ("ftl.pslc_streams", "ftl.write_streams"),
        lambda c: c.ftl.pslc_streams <= c.ftl.write_streams,
        "at most as many as there are",
    ),
    Rule(
        ("ftl.pslc", "ftl.mapping_unit"),
        lambda c: c.ftl.pslc == "off" or whole_pages(c),
        "blocks in pSLC mode are mapped, and folded, by whole pages: a mapping_unit of 0",
    ),
)
