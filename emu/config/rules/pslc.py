"""Rules for blocks in pSLC mode.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: this project.
"""

from __future__ import annotations

from ondie.emu.config.rules.conditions import (
    MAPPED_BY_PROGRAM,
    PSLC,
    equal,
    only_if,
    requires,
)
from ondie.emu.config.rules.rule import WORD_LINE, Rule, managed_blocks, no_errors, pslc_blocks

RULES: tuple[Rule, ...] = (
    requires(
        PSLC,
        equal("flash.cell", *WORD_LINE),
        "only multi-level cells have a mode with one bit per cell",
    ),
    only_if(
        PSLC,
        ("flash.pages_per_block", "flash.cell"),
        lambda cfg: cfg.flash.pages_per_block >= WORD_LINE.get(cfg.flash.cell, 1),
        "a block must have at least one word line",
    ),
    requires(
        PSLC,
        equal("flash.programming", "page"),
        "a drive with pSLC blocks programs its native blocks page by page",
    ),
    requires(PSLC, MAPPED_BY_PROGRAM, "a page can be folded only after it has been programmed"),
    only_if(
        PSLC,
        ("ftl.pslc_share", "flash.blocks_per_plane", "ftl.reservoir_fraction"),
        lambda cfg: cfg.ftl.pslc_share <= 1 and pslc_blocks(cfg) >= 1,
        "ftl.pslc_share must be at most 1, and a unit must have at least one pSLC block",
    ),
    only_if(
        equal("ftl.pslc", "static"),
        (
            "ftl.pslc_share",
            "ftl.gc_low_blocks",
            "flash.blocks_per_plane",
            "ftl.reservoir_fraction",
        ),
        lambda cfg: managed_blocks(cfg) - pslc_blocks(cfg) > cfg.ftl.gc_low_blocks,
        "the number of native blocks must exceed ftl.gc_low_blocks, at which garbage collection "
        "starts",
    ),
    only_if(
        PSLC,
        ("errors.kind", "errors.pslc"),
        lambda cfg: no_errors(cfg) or cfg.errors.pslc > 0,
        "errors.pslc must be above 0 if errors are simulated",
    ),
    Rule(
        ("ftl.pslc_streams", "ftl.write_streams"),
        lambda cfg: cfg.ftl.pslc_streams <= cfg.ftl.write_streams,
        "ftl.pslc_streams must be at most ftl.write_streams",
    ),
)
