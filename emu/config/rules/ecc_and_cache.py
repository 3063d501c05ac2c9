"""Rules for error correction, simulated errors, the data cache and DRAM.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: none.
"""

from __future__ import annotations

from ondie.emu.config.rules.rule import Rule, mapping_unit, no_errors

RULES: tuple[Rule, ...] = (
    Rule(
        ("errors.kind", "ecc.codeword", "flash.page", "ftl.mapping_unit"),
        lambda c: no_errors(c) or mapping_unit(c) % c.ecc.codeword_bytes == 0,
        'kind "model" needs pages, or mapping units, of whole code words',
    ),
    Rule(
        ("errors.kind", "ecc.codeword", "ecc.correctable_bits"),
        lambda c: no_errors(c) or 0 < c.ecc.correctable_bits < 4 * c.ecc.codeword_bytes,
        "a code corrects at least one bit and fewer than half of its bits",
    ),
    Rule(
        ("errors.kind", "ecc.decode", "ecc.decode_limit"),
        lambda c: no_errors(c) or c.ecc.decode_ps <= c.ecc.decode_limit_ps,
        "decoding at the limit takes no less than without errors",
    ),
    Rule(
        ("errors.kind", "ecc.retry_gain"),
        lambda c: no_errors(c) or c.ecc.retry_gain <= 1,
        "a retry leaves at most all of the shifted errors, 1",
    ),
    Rule(
        ("errors.kind", "ecc.soft_gain"),
        lambda c: no_errors(c) or c.ecc.soft_gain >= 1,
        "soft decision corrects no fewer bits than hard decision, 1",
    ),
    Rule(
        ("errors.kind", "ftl.reclaim_reads", "ftl.reclaim_retries"),
        lambda c: not no_errors(c) or c.ftl.reclaim_reads == c.ftl.reclaim_retries == 0,
        'data move because of their reads where kind is "model" only; else 0',
    ),
    Rule(
        ("cache.mode", "cache.capacity", "flash.page"),
        lambda c: c.cache.mode == "off" or c.cache.capacity_bytes >= c.flash.page_bytes,
        "a data cache holds at least one page",
    ),
    Rule(
        ("cache.mode", "cache.capacity", "dram.capacity"),
        lambda c: c.cache.mode == "off" or c.cache.capacity_bytes <= c.dram.capacity_bytes,
        "the data cache must fit the drive's DRAM",
    ),
    Rule(
        ("cache.mode", "ftl.map_update"),
        lambda c: c.cache.mode in ("off", "read") or c.ftl.map_update == "programmed",
        'what a cache has written may be trimmed on its way: map_update "programmed"',
    ),
    Rule(
        ("cache.dirty_share",),
        lambda c: c.cache.dirty_share <= 1,
        "at most all of the cache, 1",
    ),
    Rule(
        ("ftl.map_cache", "dram.capacity"),
        lambda c: c.ftl.map_cache_bytes <= c.dram.capacity_bytes,
        "the cached mapping table must fit the drive's DRAM",
    ),
    Rule(
        ("dram.isp", "dram.capacity"),
        lambda c: c.dram.isp_bytes <= c.dram.capacity_bytes,
        "the processor's part must fit the drive's DRAM",
    ),
)
