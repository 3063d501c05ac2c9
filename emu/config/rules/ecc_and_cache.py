"""Rules for error correction, simulated errors, the data cache and DRAM.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: this project.
"""

from __future__ import annotations

from ondie.emu.config.rules.conditions import (
    ERRORS,
    MAPPED_BY_PROGRAM,
    NO_ERRORS,
    Condition,
    at_most,
    equal,
    only_if,
    other_than,
    requires,
)
from ondie.emu.config.rules.rule import Rule, mapping_unit
from ondie.emu.config.schema.tree import Tree

CACHE = other_than("cache.mode", "off")
WRITES_CACHED = Condition(
    ("cache.mode",),
    lambda cfg: cfg.cache.mode not in ("off", "read"),
    "a cache.mode that caches writes",
)
PROTECTED = equal("cache.power_loss_protection", True)
NO_RECLAIM = Condition(
    ("ftl.reclaim_reads", "ftl.reclaim_retries"),
    lambda cfg: cfg.ftl.reclaim_reads == cfg.ftl.reclaim_retries == 0,
    "ftl.reclaim_reads = 0 and ftl.reclaim_retries = 0",
)
NO_UPKEEP = Condition(
    ("ftl.refresh_age", "ftl.scrub_interval"),
    lambda cfg: cfg.ftl.refresh_age_ps == cfg.ftl.scrub_interval_ps == 0,
    "ftl.refresh_age = 0 and ftl.scrub_interval = 0",
)
UPKEEP = Condition(
    ("ftl.refresh_age", "ftl.scrub_interval"),
    lambda cfg: not NO_UPKEEP.holds(cfg),
    "ftl.refresh_age or ftl.scrub_interval above 0",
)
PS_PER_DAY = 86_400 * 10**12
CLOCK_END_PS = 1 << 62
"""Time of an event that never occurs (clock.NEVER), in ps: the end of the engine's clock. The
module clock is not imported here, because it loads the compiler."""


def fmt_days(ps: float) -> str:
    """Return a time in days as text, rounded down to hundredths."""
    return f"{ps // (PS_PER_DAY / 100) / 100:.2f} d"


def initial_ps(config: Tree) -> float:
    """Return the age of the data at the start of the run, in ps."""
    return config.errors.initial_days * PS_PER_DAY


NO_SCRUBBING = equal("ftl.scrub_interval", 0)

RULES: tuple[Rule, ...] = (
    only_if(
        ERRORS,
        ("ecc.codeword", "flash.page", "ftl.mapping_unit"),
        lambda cfg: mapping_unit(cfg) % cfg.ecc.codeword_bytes == 0,
        "a page, or a mapping unit, must consist of whole code words if errors are simulated",
    ),
    only_if(
        ERRORS,
        ("ecc.codeword", "ecc.correctable_bits"),
        lambda cfg: 0 < cfg.ecc.correctable_bits < 4 * cfg.ecc.codeword_bytes,
        "ecc.correctable_bits must be at least 1 and less than half of the bits of a code word",
    ),
    only_if(
        ERRORS,
        ("ecc.decode", "ecc.decode_limit"),
        lambda cfg: cfg.ecc.decode_ps <= cfg.ecc.decode_limit_ps,
        "ecc.decode_limit must be at least ecc.decode, the time without errors",
    ),
    only_if(
        ERRORS,
        ("ecc.retry_gain",),
        lambda cfg: cfg.ecc.retry_gain <= 1,
        "ecc.retry_gain, the share of errors that remains, must be at most 1",
    ),
    only_if(
        ERRORS,
        ("ecc.soft_gain",),
        lambda cfg: cfg.ecc.soft_gain >= 1,
        "ecc.soft_gain must be at least 1: soft decision corrects no fewer bits than hard decision",
    ),
    requires(NO_ERRORS, NO_RECLAIM, "without simulated errors, no block is reclaimed"),
    requires(NO_ERRORS, NO_UPKEEP, "without simulated errors, the age of data has no effect"),
    requires(
        UPKEEP,
        MAPPED_BY_PROGRAM,
        "a page must be programmed before it is read or moved",
    ),
    Rule(
        ("ftl.refresh_age", "errors.initial_days"),
        lambda cfg: cfg.ftl.refresh_age_ps < CLOCK_END_PS + initial_ps(cfg),
        lambda cfg: (
            f"the data never reaches this age: it is {cfg.errors.initial_days:g} d old at the "
            f"start, and the clock ends after {fmt_days(CLOCK_END_PS)}; use an age below "
            f"{fmt_days(CLOCK_END_PS + initial_ps(cfg))}, or 0 for never"
        ),
    ),
    Rule(
        ("ftl.scrub_interval",),
        lambda cfg: cfg.ftl.scrub_interval_ps < CLOCK_END_PS,
        f"the clock ends after {fmt_days(CLOCK_END_PS)}; use a shorter interval, or 0 for never",
    ),
    requires(NO_SCRUBBING, equal("ftl.refresh_bits", 0), "only scrubbing counts bit errors"),
    requires(NO_SCRUBBING, equal("ftl.scrub_pages", 0), "no block is scrubbed"),
    at_most("ftl.refresh_bits", 1),
    only_if(
        CACHE,
        ("cache.capacity", "flash.page"),
        lambda cfg: cfg.cache.capacity_bytes >= cfg.flash.page_bytes,
        "the data cache must hold at least one page",
    ),
    only_if(
        CACHE,
        ("cache.capacity", "dram.capacity"),
        lambda cfg: cfg.cache.capacity_bytes <= cfg.dram.capacity_bytes,
        "the data cache must fit the drive's DRAM",
    ),
    requires(
        WRITES_CACHED,
        MAPPED_BY_PROGRAM,
        "the host may trim data that the cache is writing to flash before it is programmed",
    ),
    requires(
        PROTECTED,
        MAPPED_BY_PROGRAM,
        "trims that have completed are saved as pages, which recovery finds",
    ),
    at_most("cache.dirty_share", 1),
    Rule(
        ("ftl.map_cache", "dram.capacity"),
        lambda cfg: cfg.ftl.map_cache_bytes <= cfg.dram.capacity_bytes,
        "the cached mapping table must fit the drive's DRAM",
    ),
    Rule(
        ("dram.isp", "dram.capacity"),
        lambda cfg: cfg.dram.isp_bytes <= cfg.dram.capacity_bytes,
        "the in-storage processor's part must fit the drive's DRAM",
    ),
)
