"""Rules for dies, chips, word lines and their programming.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: none.
"""

from __future__ import annotations

from ondie.emu.config.rules.rule import (
    MOST_PLANES,
    WORD_LINE,
    Rule,
    gathered_bytes,
    whole_pages,
)
from ondie.emu.units import fmt_bytes

RULES: tuple[Rule, ...] = (
    Rule(
        ("flash.planes_per_die",),
        lambda c: c.flash.planes_per_die <= MOST_PLANES,
        f"at most {MOST_PLANES} planes",
    ),
    Rule(
        ("flash.dies_per_chip", "flash.dies_per_channel"),
        lambda c: c.flash.dies_per_channel % c.flash.dies_per_chip == 0,
        "the dies of a channel must be whole chips",
    ),
    Rule(
        ("flash.chip_busy", "flash.dies_per_chip", "flash.planes_per_die"),
        lambda c: (
            c.flash.chip_busy == "per_die"
            or c.flash.dies_per_chip * c.flash.planes_per_die <= MOST_PLANES
        ),
        f"a chip that takes one command at a time has at most {MOST_PLANES} planes",
    ),
    Rule(
        ("flash.chip_busy", "flash.plane_reads"),
        lambda c: c.flash.chip_busy == "per_die" or c.flash.plane_reads == "together",
        "planes cannot read alone in a chip that takes one command at a time",
    ),
    Rule(
        ("flash.chip_busy", "pe.kind"),
        lambda c: c.flash.chip_busy == "per_die" or c.pe.kind == "none",
        "the registers that processing elements use belong to a die: per_die is right",
    ),
    Rule(
        ("flash.power_planes", "flash.planes_per_die"),
        lambda c: c.flash.power_planes == 0 or c.flash.power_planes >= c.flash.planes_per_die,
        "an operation over all planes of a die must fit; 0: no limit",
    ),
    Rule(
        ("flash.programming", "flash.cell"),
        lambda c: c.flash.programming == "page" or c.flash.cell in WORD_LINE,
        "word lines of several pages are those of MLC, TLC and QLC",
    ),
    Rule(
        ("flash.programming", "flash.cell", "flash.pages_per_block"),
        lambda c: (
            c.flash.programming == "page" or c.flash.pages_per_block % WORD_LINE[c.flash.cell] == 0
        ),
        "a block has whole word lines",
    ),
    Rule(
        ("flash.programming", "flash.t_program_middle", "flash.t_program_upper"),
        lambda c: (
            c.flash.programming == "page"
            or c.flash.t_program_middle_ps == c.flash.t_program_upper_ps == 0
        ),
        "pages of a word line that are programmed together take one time; 0 is right",
    ),
    Rule(
        ("flash.programming", "flash.page_types"),
        lambda c: c.flash.programming == "page" or c.flash.page_types != "planar",
        "planar chips program page by page",
    ),
    Rule(
        ("flash.programming", "flash.t_program_second"),
        lambda c: c.flash.programming != "two_pass" or c.flash.t_program_second_ps > 0,
        "the second pass takes some time",
    ),
    Rule(
        ("flash.programming", "ftl.gc_copyback"),
        lambda c: c.flash.programming == "page" or not c.ftl.gc_copyback,
        "copy-back programs a page from its register, not a word line: gc_copyback false",
    ),
    Rule(
        ("flash.programming", "pe.kind"),
        lambda c: c.flash.programming == "page" or c.pe.kind == "none",
        'processing elements program a page from its register: programming "page"',
    ),
    Rule(
        ("flash.programming", "ftl.map_update"),
        lambda c: c.flash.programming == "page" or c.ftl.map_update == "programmed",
        'a page of a word line can be read once all of it is programmed: map_update "programmed"',
    ),
    Rule(
        ("flash.programming", "ftl.unwritten"),
        lambda c: c.flash.programming == "page" or c.ftl.unwritten == "zeros",
        'a page as if it had been written would leave its word line incomplete: unwritten "zeros"',
    ),
    Rule(
        ("flash.programming", "ftl.map_cache", "ftl.map_writes"),
        lambda c: (
            c.flash.programming == "page" or c.ftl.map_cache_bytes == 0 or c.ftl.map_writes > 0
        ),
        "translation pages that are never written leave their word lines incomplete: map_writes "
        "of at least 1",
    ),
    Rule(
        ("flash.programming", "flash.pages_per_block"),
        lambda c: (
            c.flash.programming == "page" or c.flash.pages_per_block >= 3 * WORD_LINE[c.flash.cell]
        ),
        "collection gains from blocks of at least three word lines",
    ),
    Rule(
        ("flash.programming", "ftl.mapping_unit", "cache.capacity", "dram.capacity"),
        lambda c: (
            (c.flash.programming == "page" and whole_pages(c))
            or gathered_bytes(c) + c.cache.capacity_bytes <= c.dram.capacity_bytes
        ),
        lambda c: (
            f"{fmt_bytes(gathered_bytes(c))} of DRAM hold word lines until they are "
            "programmed, beside the data cache"
        ),
    ),
)
