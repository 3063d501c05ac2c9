"""Rules for the size of the drive, mapping units, garbage collection and failures.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: this project.
"""

from __future__ import annotations

from ondie.emu.config.rules.conditions import (
    ERRORS,
    MAP_CHECKPOINTS,
    MAPPED_BY_PROGRAM,
    RESERVOIR,
    SUB_PAGES,
    TRIM_MAPS,
    UNITS_ARE_DIES,
    Condition,
    above_zero,
    at_most,
    below_one,
    equal,
    only_if,
    requires,
)
from ondie.emu.config.rules.rule import (
    GEOMETRY,
    MOST_DEVICES,
    MOST_SECTORS,
    Rule,
    mapping_unit,
    nearest_power,
    power_of_two,
    raw_bytes,
)
from ondie.emu.config.schema.tree import Tree
from ondie.emu.units import INT64_MAX, fmt_bytes

CLASS_QUEUES = Condition(
    ("ftl.erase", "ftl.gc_priority"),
    lambda cfg: cfg.ftl.erase == "collected" and cfg.ftl.gc_priority != "shared",
    'ftl.erase = "collected" and ftl.gc_priority other than "shared"',
)
PLACED_OR_PARTIAL = Condition(
    ("ftl.placement", "ftl.partial_pages"),
    lambda cfg: cfg.ftl.placement == "static" or cfg.ftl.partial_pages == "sectors",
    'ftl.placement = "static" or ftl.partial_pages = "sectors"',
)


def divides_page(config: Tree) -> bool:
    """Return True if a page consists of whole mapping units.

    The size of a mapping unit must be a power of two of at least 512 bytes, or 0 for a page.
    """
    unit = config.ftl.mapping_unit_bytes
    return unit == 0 or (unit >= 512 and config.flash.page_bytes % unit == 0 and power_of_two(unit))


MESSAGES = ("doorbell", "request", "entry", "completion")
"""Keys of section ``frontend`` that state the size of a message on the link, in bytes."""

RULES: tuple[Rule, ...] = (
    *(at_most(f"frontend.{name}", 1 << 20, "1 MiB") for name in MESSAGES),
    at_most("ecc.retries", 255),
    at_most("system.devices", MOST_DEVICES),
    Rule(
        ("flash.page",),
        lambda cfg: power_of_two(cfg.flash.page_bytes),
        lambda cfg: f"must be a power of two; nearest: {nearest_power(cfg.flash.page_bytes)}",
    ),
    Rule(
        GEOMETRY,
        lambda cfg: raw_bytes(cfg) <= INT64_MAX,
        f"the raw capacity overflows; it must be at most {fmt_bytes(INT64_MAX)}",
    ),
    Rule(
        ("system.capacity", *GEOMETRY),
        lambda cfg: cfg.system.capacity_bytes <= raw_bytes(cfg),
        lambda cfg: f"the nominal capacity must fit the flash, {fmt_bytes(raw_bytes(cfg))}",
    ),
    Rule(
        ("ftl.mapping_unit", "flash.page"),
        divides_page,
        "a page must consist of whole mapping units: ftl.mapping_unit must be a power of two from "
        "512 B to flash.page, or 0 for one page",
    ),
    requires(TRIM_MAPS, MAPPED_BY_PROGRAM, "a trim map states which programmed data is mapped"),
    requires(
        MAP_CHECKPOINTS,
        equal("ftl.map_cache", 0),
        "checkpoints do not record translation pages",
    ),
    requires(
        MAP_CHECKPOINTS,
        TRIM_MAPS,
        "a checkpoint of the mapping table does not record later trims",
    ),
    requires(
        MAP_CHECKPOINTS,
        equal("ftl.unwritten", "zeros"),
        "pages that were never written have no out-of-band data",
    ),
    requires(
        SUB_PAGES, MAPPED_BY_PROGRAM, "mapping units are gathered until their page is programmed"
    ),
    requires(
        SUB_PAGES,
        equal("ftl.unwritten", "zeros"),
        "a mapping unit that was never written has no page to read",
    ),
    only_if(
        SUB_PAGES,
        ("ftl.map_cache", "ftl.map_writes"),
        lambda cfg: cfg.ftl.map_cache_bytes == 0 or cfg.ftl.map_writes > 0,
        "ftl.map_writes must be at least 1: translation pages that are never written leave their "
        "pages incomplete",
    ),
    only_if(
        SUB_PAGES,
        ("flash.pages_per_block",),
        lambda cfg: cfg.flash.pages_per_block >= 4,
        "flash.pages_per_block must be at least 4 with mapping units below a page; garbage "
        "collection gains no space from smaller blocks",
    ),
    requires(
        SUB_PAGES,
        equal("ftl.gc_copyback", False),
        "copy-back moves whole pages, but only their valid mapping units may be moved",
    ),
    only_if(
        SUB_PAGES,
        ("pe.rain",),
        lambda cfg: cfg.pe.rain == 0 or cfg.pe.kind == "none",
        "pe.rain must be 0 with mapping units below a page; parities over dies protect whole pages "
        "of the reservoir",
    ),
    Rule(
        ("host.io_block", "flash.page", "ftl.mapping_unit"),
        lambda cfg: cfg.host.io_block_bytes % mapping_unit(cfg) == 0,
        "host.io_block must be a multiple of the page, or of the mapping unit",
    ),
    Rule(
        ("frontend.max_transfer", "flash.page", "ftl.mapping_unit"),
        lambda cfg: cfg.frontend.max_transfer_bytes % mapping_unit(cfg) == 0,
        "frontend.max_transfer must be a multiple of the page, or of the mapping unit",
    ),
    below_one("ftl.over_provisioning"),
    below_one("ftl.reservoir_fraction"),
    Rule(
        ("ftl.gc_low_blocks", "flash.blocks_per_plane"),
        lambda cfg: cfg.ftl.gc_low_blocks < cfg.flash.blocks_per_plane,
        "ftl.gc_low_blocks must be below flash.blocks_per_plane",
    ),
    Rule(
        ("ftl.gc_stop_blocks", "ftl.gc_low_blocks"),
        lambda cfg: cfg.ftl.gc_stop_blocks <= cfg.ftl.gc_low_blocks + 1,
        "ftl.gc_stop_blocks must be at most ftl.gc_low_blocks + 1: host writes must not wait "
        "before garbage collection starts",
    ),
    requires(RESERVOIR, UNITS_ARE_DIES, "the reservoir consists of super-blocks"),
    below_one("ftl.bad_blocks"),
    below_one("ftl.program_failures"),
    requires(
        equal("ftl.victim_pages", "locked"),
        PLACED_OR_PARTIAL,
        "only these settings split writes into pages that can be locked one by one",
    ),
    requires(
        equal("ftl.host_order", "class", "polled"),
        CLASS_QUEUES,
        "the queues that are ordered by class may contain only host operations",
    ),
    requires(
        ERRORS, MAPPED_BY_PROGRAM, "errors are simulated only in pages that have been programmed"
    ),
    requires(
        above_zero("ftl.program_failures"),
        MAPPED_BY_PROGRAM,
        "otherwise, a page whose program fails would be lost",
    ),
    below_one("ftl.erase_failures"),
    requires(
        above_zero("ftl.erase_failures"),
        equal("ftl.erase", "collected"),
        "a failed erase retires its block, and no write may wait for that block",
    ),
    only_if(
        equal("ftl.partial_pages", "sectors"),
        ("flash.page",),
        lambda cfg: mapping_unit(cfg) <= MOST_SECTORS * 512,
        f"a page must be at most {MOST_SECTORS * 512 // 1024} KiB for a map of its sectors",
    ),
)
