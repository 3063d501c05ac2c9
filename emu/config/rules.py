"""Rules between leaves: what a configuration must satisfy before a device is built from it.

Owns the table RULES: keys involved, a predicate, and what would be right.
Does not check single leaves (provenance) nor what a model needs of a device (the paths).
Source: geometry arithmetic; NVMe (commands are whole pages here); what the flash engine takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ondie.emu.config.leaf import Leaf
from ondie.emu.units import INT64_MAX, KINDS, InputError, exact, fmt_bytes, quoted

if TYPE_CHECKING:
    from ondie.emu.config.config import Config


@dataclass(frozen=True, slots=True)
class Rule:
    """`holds(config)` must be true; else the error names `keys`, their values and `right`."""

    keys: tuple[str, ...]
    holds: Callable[[Config], bool]
    right: Callable[[Config], str] | str


def raw_bytes(config: Config) -> int:
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


def mapping_unit(config: Config) -> int:
    """Bytes that an entry of the map stands for: a page of flash, or a part of it."""
    return config.ftl.mapping_unit_bytes or config.flash.page_bytes


def _whole_pages(config: Config) -> bool:
    return mapping_unit(config) == config.flash.page_bytes


def gathered_bytes(config: Config) -> int:
    """Most bytes in DRAM for word lines that are not complete, or not done: of every plane one for
    each stream, three where two passes keep the data of the line before and of the one that has
    had its first pass."""
    flash, ftl = config.flash, config.ftl
    collected = ftl.write_streams if ftl.gc_streams == "each" else 1
    streams = ftl.write_streams + collected + (ftl.map_cache_bytes > 0)
    planes = flash.channels * flash.dies_per_channel * flash.planes_per_die
    lines = 3 if flash.programming == "two_pass" else 1
    pages = 1 if flash.programming == "page" else WORD_LINE[flash.cell]
    return streams * planes * lines * pages * flash.page_bytes


def _power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


def _no_errors(config: Config) -> bool:
    return config.errors.kind == "none"


def _managed_blocks(config: Config) -> int:
    blocks = config.flash.blocks_per_plane
    return blocks - int(blocks * config.ftl.reservoir_fraction)


def _pslc_blocks(config: Config) -> int:
    return int(_managed_blocks(config) * config.ftl.pslc_share)


def _no_tunnel(config: Config) -> bool:
    return config.tunnel.payload_bytes == 0


def _units_are_dies(config: Config) -> bool:
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
"""Of what takes one command at a time: they are bits of a signed 32-bit word."""
WORD_LINE = {"MLC": 2, "TLC": 3, "QLC": 4}
"""Pages of a word line."""

LONGEST_PS = 10**15
"""No time of a drive is longer; the clock ends after 53 days."""

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
        lambda c: _power_of_two(c.flash.page_bytes),
        lambda c: f"must be a power of two; nearest: {_nearest_power(c.flash.page_bytes)}",
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
                and _power_of_two(c.ftl.mapping_unit_bytes)
            )
        ),
        "a page has whole mapping units, powers of two of at least 512 B; 0: the page is one",
    ),
    Rule(
        ("ftl.mapping_unit", "ftl.map_update"),
        lambda c: _whole_pages(c) or c.ftl.map_update == "programmed",
        'units gather until their page is programmed, and are mapped then: "programmed"',
    ),
    Rule(
        ("ftl.mapping_unit", "ftl.unwritten"),
        lambda c: _whole_pages(c) or c.ftl.unwritten == "zeros",
        'a unit that was never written has no page to be read from: unwritten "zeros"',
    ),
    Rule(
        ("ftl.mapping_unit", "ftl.map_cache", "ftl.map_writes"),
        lambda c: _whole_pages(c) or c.ftl.map_cache_bytes == 0 or c.ftl.map_writes > 0,
        "translation pages that are never written leave their pages incomplete: map_writes of at "
        "least 1",
    ),
    Rule(
        ("ftl.mapping_unit", "flash.pages_per_block"),
        lambda c: _whole_pages(c) or c.flash.pages_per_block >= 4,
        "collection gains from blocks of at least four pages, which gather mapping units",
    ),
    Rule(
        ("ftl.mapping_unit", "ftl.gc_copyback"),
        lambda c: _whole_pages(c) or not c.ftl.gc_copyback,
        "copy-back moves whole pages, collection what is valid of them: gc_copyback false",
    ),
    Rule(
        ("ftl.mapping_unit", "ftl.reservoir_fraction"),
        lambda c: _whole_pages(c) or c.ftl.reservoir_fraction == 0,
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
        lambda c: c.ftl.reservoir_fraction == 0 or _units_are_dies(c),
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
        lambda c: _no_errors(c) or c.ftl.map_update == "programmed",
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
            (c.flash.programming == "page" and _whole_pages(c))
            or gathered_bytes(c) + c.cache.capacity_bytes <= c.dram.capacity_bytes
        ),
        lambda c: (
            f"{fmt_bytes(gathered_bytes(c))} of DRAM hold word lines until they are "
            "programmed, beside the data cache"
        ),
    ),
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
        lambda c: c.ftl.pslc == "off" or (c.ftl.pslc_share <= 1 and _pslc_blocks(c) >= 1),
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
            c.ftl.pslc != "static" or _managed_blocks(c) - _pslc_blocks(c) > c.ftl.gc_low_blocks
        ),
        "native blocks must be left: more than those at which collection starts",
    ),
    Rule(
        ("ftl.pslc", "errors.kind", "errors.pslc"),
        lambda c: c.ftl.pslc == "off" or _no_errors(c) or c.errors.pslc > 0,
        "a share of the errors of the constants, above 0",
    ),
    Rule(
        ("ftl.pslc_streams", "ftl.write_streams"),
        lambda c: c.ftl.pslc_streams <= c.ftl.write_streams,
        "at most as many as there are",
    ),
    Rule(
        ("ftl.pslc", "ftl.mapping_unit"),
        lambda c: c.ftl.pslc == "off" or _whole_pages(c),
        "blocks in pSLC mode are mapped, and folded, by whole pages: a mapping_unit of 0",
    ),
    Rule(
        ("errors.kind", "ecc.codeword", "flash.page", "ftl.mapping_unit"),
        lambda c: _no_errors(c) or mapping_unit(c) % c.ecc.codeword_bytes == 0,
        'kind "model" needs pages, or mapping units, of whole code words',
    ),
    Rule(
        ("errors.kind", "ecc.codeword", "ecc.correctable_bits"),
        lambda c: _no_errors(c) or 0 < c.ecc.correctable_bits < 4 * c.ecc.codeword_bytes,
        "a code corrects at least one bit and fewer than half of its bits",
    ),
    Rule(
        ("errors.kind", "ecc.decode", "ecc.decode_limit"),
        lambda c: _no_errors(c) or c.ecc.decode_ps <= c.ecc.decode_limit_ps,
        "decoding at the limit takes no less than without errors",
    ),
    Rule(
        ("errors.kind", "ecc.retry_gain"),
        lambda c: _no_errors(c) or c.ecc.retry_gain <= 1,
        "a retry leaves at most all of the shifted errors, 1",
    ),
    Rule(
        ("errors.kind", "ecc.soft_gain"),
        lambda c: _no_errors(c) or c.ecc.soft_gain >= 1,
        "soft decision corrects no fewer bits than hard decision, 1",
    ),
    Rule(
        ("errors.kind", "ftl.reclaim_reads", "ftl.reclaim_retries"),
        lambda c: not _no_errors(c) or c.ftl.reclaim_reads == c.ftl.reclaim_retries == 0,
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
    Rule(
        ("isp.kind", "isp.cores"),
        lambda c: c.isp.kind != "cores" or c.isp.cores > 0,
        'kind "cores" needs at least 1 core',
    ),
    Rule(
        ("isp.kind", "isp.frequency"),
        lambda c: c.isp.kind != "cores" or c.isp.frequency_hz > 0,
        'kind "cores" needs a frequency, for example "1.0 GHz"',
    ),
    Rule(
        ("isp.kind", "isp.ipc"),
        lambda c: c.isp.kind != "cores" or c.isp.ipc > 0,
        'kind "cores" needs instructions per cycle, for example 0.8',
    ),
    Rule(
        ("isp.kind", "isp.engine"),
        lambda c: c.isp.kind != "fpga" or c.isp.engine_bytes_per_s > 0,
        'kind "fpga" needs the rate of its engine, for example "8.2 GB/s"',
    ),
    Rule(
        ("isp.kind", "isp.flash"),
        lambda c: c.isp.kind == "none" or c.isp.flash_bytes_per_s > 0,
        'a processor needs a path to the flash, for example "3.2 GB/s"',
    ),
    Rule(
        ("isp.kind", "dram.isp"),
        lambda c: c.isp.kind == "none" or c.dram.isp_bytes > 0,
        'a processor needs DRAM of its own, for example "512 MiB"',
    ),
    Rule(
        ("pe.kind", "flash.plane_reads"),
        lambda c: c.pe.kind == "none" or c.flash.plane_reads == "together",
        "processing elements take the planes of a die together",
    ),
    Rule(
        ("pe.kind", "pe.clock_divider"),
        lambda c: c.pe.kind == "none" or c.pe.clock_divider > 0,
        'kind "per_plane" needs a clock divider of at least 1',
    ),
    Rule(
        ("pe.kind", "pe.bus_values"),
        lambda c: c.pe.kind == "none" or c.pe.bus_values > 0,
        "elements reach other planes over a bus of more than 0 values per cycle, for example 1",
    ),
    Rule(
        ("pe.narrow_values", "pe.clock_divider"),
        lambda c: c.pe.kind == "none" or 2 * c.pe.narrow_values <= c.pe.clock_divider,
        "registers give an element as many bytes a clock as the divider says, two for each value",
    ),
    Rule(
        ("pe.cipher", "pe.cipher_rate"),
        lambda c: c.pe.cipher == "none" or c.pe.cipher_bytes_per_s > 0,
        'an engine on the die needs a rate, for example "6.6 GB/s"',
    ),
    Rule(
        ("pe.rain", "flash.channels", "flash.dies_per_channel"),
        lambda c: c.pe.rain == 0 or 2 <= c.pe.rain <= c.flash.channels * c.flash.dies_per_channel,
        "a stripe of parity takes 2 dies at least, and no more than the drive has; 0 is none",
    ),
    Rule(
        ("pe.protection", "pe.ecc_codeword", "flash.page"),
        lambda c: (
            c.pe.protection != "on_die_ecc" or c.flash.page_bytes % c.pe.ecc_codeword_bytes == 0
        ),
        "pages of whole code words are right",
    ),
    Rule(
        ("pe.protection", "ecc.codeword", "flash.page"),
        lambda c: (
            c.pe.protection != "controller_ecc" or c.flash.page_bytes % c.ecc.codeword_bytes == 0
        ),
        "pages of whole code words are right",
    ),
    Rule(
        ("pe.protection", "pe.ecc_codeword", "pe.ecc_correctable_bits"),
        lambda c: (
            c.pe.protection != "on_die_ecc"
            or 0 < c.pe.ecc_correctable_bits < 4 * c.pe.ecc_codeword_bytes
        ),
        "a code corrects at least one bit and fewer than half of its bits",
    ),
    Rule(
        ("tunnel.payload", "tunnel.outstanding", "tunnel.relay_threads"),
        lambda c: _no_tunnel(c) or (c.tunnel.outstanding >= 1 and c.tunnel.relay_threads >= 1),
        "a tunnel has at least one command outstanding each way and one thread in the host",
    ),
    Rule(
        ("tunnel.payload", "tunnel.outstanding"),
        lambda c: c.tunnel.outstanding <= MOST_OUTSTANDING,
        f"at most {MOST_OUTSTANDING} commands outstanding",
    ),
    Rule(
        ("tunnel.payload", "frontend.max_transfer"),
        lambda c: _no_tunnel(c) or 64 <= c.tunnel.payload_bytes <= c.frontend.max_transfer_bytes,
        "a command of the tunnel carries 64 B at least, and no more than the drive takes at once",
    ),
    Rule(
        ("tunnel.payload",),
        lambda c: c.tunnel.payload_bytes <= 1 << 24,
        "a command of the tunnel carries 16 MiB at most",
    ),
    Rule(
        ("tunnel.payload", "tunnel.mtu"),
        lambda c: _no_tunnel(c) or 68 <= c.tunnel.mtu_bytes <= 65535,
        "IP packets of 68 B to 65535 B are right",
    ),
    Rule(
        ("tunnel.payload", "tunnel.command"),
        lambda c: _no_tunnel(c) or c.tunnel.command_ps > 0,
        'a command takes time, for example "100 us"',
    ),
    Rule(
        ("errors.kind", "errors.rate"),
        lambda c: c.errors.kind != "rate" or c.errors.rate <= 0.5,
        "at most every second bit, 0.5, is wrong",
    ),
)


def _nearest_power(value: int) -> str:
    lower = 1 << (value.bit_length() - 1)
    return exact(lower if value - lower <= 2 * lower - value else 2 * lower, KINDS["bytes"])


def check(config: Config, leaves: Mapping[str, Leaf], where: str) -> None:
    """Raise InputError for the first rule that `config` breaks, naming keys and values."""
    for rule in RULES:
        if not rule.holds(config):
            right = rule.right if isinstance(rule.right, str) else rule.right(config)
            values = ", ".join(f"{key} = {quoted(leaves[key].text)}" for key in rule.keys)
            raise InputError(f"{where}: {values}: {right}")
    for key, leaf in leaves.items():
        if leaf.unit == "ps" and isinstance(leaf.value, int) and leaf.value > LONGEST_PS:
            raise InputError(f"{where}: {key} = {quoted(leaf.text)}: at most 1000 s is right")
