"""Rules for the size of the drive, mapping units, collection and failures.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: none.
"""

from __future__ import annotations

from ondie.emu.config.rules.rule import (
    GEOMETRY,
    MOST_DEVICES,
    MOST_SECTORS,
    Rule,
    mapping_unit,
    nearest_power,
    no_errors,
    power_of_two,
    raw_bytes,
    units_are_dies,
    whole_pages,
)
from ondie.emu.units import INT64_MAX, fmt_bytes

RULES: tuple[Rule, ...] = (
    Rule(
        ("ecc.retries",),
        lambda c: c.ecc.retries <= 255,
        "at most 255 readings after the first",
    ),
    Rule(
        ("system.devices",),
        lambda c: c.system.devices <= MOST_DEVICES,
        f"at most {MOST_DEVICES} drives",
    ),
    Rule(
        ("flash.page",),
        lambda c: power_of_two(c.flash.page_bytes),
        lambda c: f"must be a power of two; nearest: {nearest_power(c.flash.page_bytes)}",
    ),
    Rule(
        GEOMETRY,
        lambda c: raw_bytes(c) <= INT64_MAX,
        lambda c: f"capacity overflows; at most {fmt_bytes(INT64_MAX)}",
    ),
    Rule(
        ("system.capacity", *GEOMETRY),
        lambda c: c.system.capacity_bytes <= raw_bytes(c),
        lambda c: f"nominal capacity must fit the flash, {fmt_bytes(raw_bytes(c))}",
    ),
    Rule(
        ("ftl.mapping_unit", "flash.page"),
        lambda c: (
            c.ftl.mapping_unit_bytes == 0
            or (
                c.ftl.mapping_unit_bytes >= 512
                and c.flash.page_bytes % c.ftl.mapping_unit_bytes == 0
                and power_of_two(c.ftl.mapping_unit_bytes)
            )
        ),
        "a page has whole mapping units, powers of two of at least 512 B; 0: the page is one",
    ),
    Rule(
        ("ftl.mapping_unit", "ftl.map_update"),
        lambda c: whole_pages(c) or c.ftl.map_update == "programmed",
        'units gather until their page is programmed, and are mapped then: "programmed"',
    ),
    Rule(
        ("ftl.mapping_unit", "ftl.unwritten"),
        lambda c: whole_pages(c) or c.ftl.unwritten == "zeros",
        'a unit that was never written has no page to be read from: unwritten "zeros"',
    ),
    Rule(
        ("ftl.mapping_unit", "ftl.map_cache", "ftl.map_writes"),
        lambda c: whole_pages(c) or c.ftl.map_cache_bytes == 0 or c.ftl.map_writes > 0,
        "translation pages that are never written leave their pages incomplete: map_writes of at "
        "least 1",
    ),
    Rule(
        ("ftl.mapping_unit", "flash.pages_per_block"),
        lambda c: whole_pages(c) or c.flash.pages_per_block >= 4,
        "collection gains from blocks of at least four pages, which gather mapping units",
    ),
    Rule(
        ("ftl.mapping_unit", "ftl.gc_copyback"),
        lambda c: whole_pages(c) or not c.ftl.gc_copyback,
        "copy-back moves whole pages, collection what is valid of them: gc_copyback false",
    ),
    Rule(
        ("ftl.mapping_unit", "ftl.reservoir_fraction"),
        lambda c: whole_pages(c) or c.ftl.reservoir_fraction == 0,
        "the reservoir is mapped by super-pages: a reservoir of 0, or mapping_unit 0",
    ),
    Rule(
        ("host.io_block", "flash.page", "ftl.mapping_unit"),
        lambda c: c.host.io_block_bytes % mapping_unit(c) == 0,
        "the block must be a multiple of the page, or of the mapping unit",
    ),
    Rule(
        ("frontend.max_transfer", "flash.page", "ftl.mapping_unit"),
        lambda c: c.frontend.max_transfer_bytes % mapping_unit(c) == 0,
        "the largest command must be a multiple of the page, or of the mapping unit",
    ),
    Rule(
        ("ftl.over_provisioning",),
        lambda c: c.ftl.over_provisioning < 1,
        "must be at least 0 and below 1",
    ),
    Rule(
        ("ftl.reservoir_fraction",),
        lambda c: c.ftl.reservoir_fraction < 1,
        "must be at least 0 and below 1",
    ),
    Rule(
        ("ftl.gc_low_blocks", "flash.blocks_per_plane"),
        lambda c: c.ftl.gc_low_blocks < c.flash.blocks_per_plane,
        "collection must start with fewer free blocks than a plane has",
    ),
    Rule(
        ("ftl.gc_stop_blocks", "ftl.gc_low_blocks"),
        lambda c: c.ftl.gc_stop_blocks <= c.ftl.gc_low_blocks + 1,
        "host writes must not wait before collection starts",
    ),
    Rule(
        ("ftl.reservoir_fraction", "ftl.block_unit"),
        lambda c: c.ftl.reservoir_fraction == 0 or units_are_dies(c),
        'the reservoir is made of super-blocks: block_unit "die", or a reservoir of 0',
    ),
    Rule(
        ("ftl.bad_blocks",),
        lambda c: c.ftl.bad_blocks < 1,
        "a share of the blocks, at least 0 and below 1",
    ),
    Rule(
        ("ftl.program_failures",),
        lambda c: c.ftl.program_failures < 1,
        "a chance per program, at least 0 and below 1",
    ),
    Rule(
        ("ftl.victim_pages", "ftl.placement", "ftl.partial_pages"),
        lambda c: (
            c.ftl.victim_pages == "open"
            or c.ftl.placement == "static"
            or c.ftl.partial_pages == "sectors"
        ),
        'pages wait one by one where writes are cut so: placement "static" or partial_pages '
        '"sectors"',
    ),
    Rule(
        ("ftl.host_order", "ftl.erase", "ftl.gc_priority"),
        lambda c: (
            c.ftl.host_order == "arrival"
            or (c.ftl.erase == "collected" and c.ftl.gc_priority != "shared")
        ),
        'classes share queues that hold nothing but the host\'s work: erase "collected", and '
        'gc_priority other than "shared"',
    ),
    Rule(
        ("errors.kind", "ftl.map_update"),
        lambda c: no_errors(c) or c.ftl.map_update == "programmed",
        'errors are those of pages that have been programmed: map_update = "programmed"',
    ),
    Rule(
        ("ftl.program_failures", "ftl.map_update"),
        lambda c: c.ftl.program_failures == 0 or c.ftl.map_update == "programmed",
        'a page whose program fails would be lost: map_update = "programmed"',
    ),
    Rule(
        ("ftl.erase_failures",),
        lambda c: c.ftl.erase_failures < 1,
        "a chance per erase, at least 0 and below 1",
    ),
    Rule(
        ("ftl.erase_failures", "ftl.erase"),
        lambda c: c.ftl.erase_failures == 0 or c.ftl.erase == "collected",
        'a failed erase retires its block, which writes must not wait for: erase = "collected"',
    ),
    Rule(
        ("ftl.partial_pages", "flash.page"),
        lambda c: c.ftl.partial_pages == "whole" or mapping_unit(c) <= MOST_SECTORS * 512,
        f"sectors are known of pages of at most {MOST_SECTORS * 512 // 1024} KiB",
    ),
)
