"""Rules for dies, chips, word lines and their programming.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: this project.
"""

from __future__ import annotations

from ondie.emu.config.rules.conditions import (
    MAPPED_BY_PROGRAM,
    ONE_COMMAND_PER_CHIP,
    WORD_LINES,
    Condition,
    above_zero,
    at_most,
    equal,
    only_if,
    other_than,
    requires,
)
from ondie.emu.config.rules.rule import (
    MOST_PLANES,
    WORD_LINE,
    Rule,
    gathered_bytes,
    whole_pages,
)
from ondie.emu.units import fmt_bytes

ONE_PROGRAM_TIME = Condition(
    ("flash.t_program_middle", "flash.t_program_upper"),
    lambda cfg: cfg.flash.t_program_middle_ps == cfg.flash.t_program_upper_ps == 0,
    "flash.t_program_middle = 0 and flash.t_program_upper = 0",
)


def rounded_up(value: int, unit: int) -> int:
    """Return the smallest multiple of ``unit`` that is at least ``value``."""
    return -(-value // unit) * unit


RULES: tuple[Rule, ...] = (
    at_most("flash.planes_per_die", MOST_PLANES),
    Rule(
        ("flash.dies_per_chip", "flash.dies_per_channel"),
        lambda cfg: cfg.flash.dies_per_channel % cfg.flash.dies_per_chip == 0,
        "the dies of a channel must be whole chips: flash.dies_per_channel must be a multiple of "
        "flash.dies_per_chip",
    ),
    only_if(
        ONE_COMMAND_PER_CHIP,
        ("flash.dies_per_chip", "flash.planes_per_die"),
        lambda cfg: cfg.flash.dies_per_chip * cfg.flash.planes_per_die <= MOST_PLANES,
        f"a chip that executes one command at a time must have at most {MOST_PLANES} planes",
    ),
    requires(
        ONE_COMMAND_PER_CHIP,
        equal("flash.plane_reads", "together"),
        "a chip that executes one command at a time cannot read its planes independently",
    ),
    requires(
        ONE_COMMAND_PER_CHIP,
        equal("pe.kind", "none"),
        "processing elements need dies that execute commands independently",
    ),
    Rule(
        ("flash.power_planes", "flash.planes_per_die"),
        lambda cfg: (
            cfg.flash.power_planes == 0 or cfg.flash.power_planes >= cfg.flash.planes_per_die
        ),
        "flash.power_planes must be at least flash.planes_per_die, so that an operation on all "
        "planes of a die can run, or 0 for no limit",
    ),
    requires(
        WORD_LINES,
        equal("flash.cell", *WORD_LINE),
        "a word line of any other cell type has only one page",
    ),
    only_if(
        WORD_LINES,
        ("flash.cell", "flash.pages_per_block"),
        lambda cfg: cfg.flash.pages_per_block % WORD_LINE[cfg.flash.cell] == 0,
        lambda cfg: (
            f"a block must have whole word lines of {WORD_LINE[cfg.flash.cell]} pages; "
            f"nearest: {rounded_up(cfg.flash.pages_per_block, WORD_LINE[cfg.flash.cell])}"
        ),
    ),
    requires(WORD_LINES, ONE_PROGRAM_TIME, "all pages of a word line have the same program time"),
    requires(
        WORD_LINES, other_than("flash.page_types", "planar"), "planar chips program page by page"
    ),
    requires(equal("flash.programming", "two_pass"), above_zero("flash.t_program_second")),
    requires(
        WORD_LINES,
        equal("ftl.gc_copyback", False),
        "copy-back programs a single page from its register, not a whole word line",
    ),
    requires(
        WORD_LINES,
        equal("pe.kind", "none"),
        "processing elements program single pages from their registers",
    ),
    requires(
        WORD_LINES,
        MAPPED_BY_PROGRAM,
        "a page can be read only after its whole word line has been programmed",
    ),
    requires(
        WORD_LINES,
        equal("ftl.unwritten", "zeros"),
        "with as_written, a read of an unwritten page would leave its word line incomplete",
    ),
    only_if(
        WORD_LINES,
        ("ftl.map_cache", "ftl.map_writes"),
        lambda cfg: cfg.ftl.map_cache_bytes == 0 or cfg.ftl.map_writes > 0,
        "ftl.map_writes must be at least 1: translation pages that are never written leave their "
        "word lines incomplete",
    ),
    only_if(
        WORD_LINES,
        ("flash.pages_per_block",),
        lambda cfg: cfg.flash.pages_per_block >= 3 * WORD_LINE[cfg.flash.cell],
        "a block must have at least three word lines; garbage collection gains no space from "
        "smaller blocks",
    ),
    Rule(
        ("flash.programming", "ftl.mapping_unit", "cache.capacity", "dram.capacity"),
        lambda cfg: (
            (cfg.flash.programming == "page" and whole_pages(cfg))
            or gathered_bytes(cfg) + cfg.cache.capacity_bytes <= cfg.dram.capacity_bytes
        ),
        lambda cfg: (
            "the data cache and the buffer for incomplete word lines, "
            f"{fmt_bytes(gathered_bytes(cfg))}, must fit the drive's DRAM"
        ),
    ),
)
