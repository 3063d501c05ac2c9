"""Integer copy of the configuration, which compiled code reads.

Owns the constants of geometry, link, die scheduling and reservoir. Does not own the constants of
flash management (ftl/tables.py) or of the data cache (nvme/tables.py).
Source: this project.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import NEVER, rate_scale
from ondie.emu.compute import pe
from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.core.state import records
from ondie.emu.engine.core.system_records import CFG
from ondie.emu.ftl import refresh
from ondie.emu.ftl.tables import (
    logical_pages,
    set_management,
)
from ondie.emu.nand import pe_protection
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.tables import (
    set_programming_unit,
)
from ondie.emu.units import InputError


def integer_config(cfg: Config, geometry: Geometry, queue_depth: int) -> np.recarray:
    """Return the integer copy of the configuration for compiled code, system_records.CFG[1]."""
    table = records(CFG, 1)
    table.channels = geometry.channels
    table.ways = geometry.ways
    table.planes = geometry.planes
    table.dies = geometry.dies
    table.pages = geometry.pages
    table.page_bytes = geometry.page_bytes
    table.blocks = geometry.blocks
    table.all_blocks = geometry.all_blocks
    table.block_pages = geometry.block_pages
    table.block_shift = log2_of(geometry.block_pages)
    set_programming_unit(cfg, geometry, table)
    table.page_shift = log2_of(geometry.page_bytes)
    table.units = geometry.units
    table.die_units = geometry.planes // geometry.unit_planes
    table.unit_planes = geometry.unit_planes
    table.slots = geometry.slots
    table.together = geometry.unit_planes * geometry.slots
    table.unit_pages = geometry.all_blocks * geometry.block_pages
    table.device_blocks = geometry.units * geometry.all_blocks
    table.lpns = logical_pages(cfg, geometry)
    table.multi_plane = cfg.flash.multi_plane
    table.cache_read = cfg.flash.cache_read
    table.cache_program = cfg.flash.cache_program
    table.gradient_registers = 2 if cfg.pe.dispatch == "double_buffered" else 1
    scale, shift = rate_scale(cfg.flash.bus_bytes_per_s)
    table.bus_scale, table.bus_shift = scale, shift
    table.decode = -(-cfg.ecc.decode_ps // geometry.slots)
    table.encode = -(-cfg.ecc.encode_ps // geometry.slots)
    table.command = cfg.frontend.command_ps
    table.read_delay = cfg.frontend.read_delay_ps
    table.write_delay = cfg.frontend.write_delay_ps
    table.submit = cfg.host.io_submit_ps
    table.queue_depth = queue_depth
    set_management(cfg, geometry, table)
    table.link_lanes, table.link_shift = cfg.link.lanes, log2_of(cfg.link.lanes)
    table.packet = cfg.link.packet_bytes
    table.packet_overhead = cfg.link.packet_overhead_bytes
    table.link_tick = cfg.link.tick_ps
    table.fetch_limit = cfg.frontend.fetch_limit
    table.ranked = ("arrival", "class", "polled").index(cfg.ftl.host_order)
    table.doorbell = cfg.frontend.doorbell_bytes
    table.request = cfg.frontend.request_bytes
    table.entry = cfg.frontend.entry_bytes
    table.completion = cfg.frontend.completion_bytes
    table.whole_commands = cfg.frontend.transfer == "command"
    table.piece = geometry.super_page_bytes
    table.interleave = cfg.flash.interleave_commands
    flash = cfg.flash
    table.commands_first = flash.grants == "commands"
    table.lanes = geometry.planes if flash.plane_reads == "alone" else 1
    table.group = flash.multi_plane and geometry.planes > 1 and geometry.unit_planes == 1
    table.power = flash.power_planes
    table.notice = flash.cache_read or table["power"][0] > 0 or flash.status == "read"
    table.eager = (flash.cache_read and flash.interleave_commands) or table["power"][0] > 0
    table.watch = 1
    table.suspend_program = "program" in flash.suspend
    table.suspend_erase = "erase" in flash.suspend
    table.suspend_program_left = flash.suspend_program_left_ps
    table.suspend_erase_left = flash.suspend_erase_left_ps
    table.suspend_program_wait = flash.t_suspend_program_ps
    table.suspend_erase_wait = flash.t_suspend_erase_ps
    table.resume_wait = flash.t_resume_ps
    table.max_suspends = flash.max_suspends
    table.suspend_reads = flash.suspend_reads
    table.suspends = flash.suspend != "none"
    table.special = table["suspends"][0] or table["power"][0] > 0 or table["lanes"][0] > 1
    table.chip = flash.chip_busy == "per_chip" and flash.dies_per_chip > 1
    table.any_order = flash.program_order == "any"
    table.word = flash.programming != "page"
    table.status = flash.status == "read"
    table.overlap = (
        flash.cache_program
        or cfg.pe.kind != "none"
        or table["suspends"][0] != 0
        or table["eager"][0] != 0
        or table["lanes"][0] > 1
        or table["word"][0] != 0
    )
    table.shared_uplink = 1 if cfg.link.uplink_bytes_per_s > 0 else 0
    table.isp_writes_apart = 1 if cfg.isp.flash_write_bytes_per_s > 0 else 0
    table.isp_io = plan_rows.ISP_IO
    table.errors = cfg.errors.kind != "none"
    table.reclaim_reads = cfg.ftl.reclaim_reads
    table.reclaim_retries = cfg.ftl.reclaim_retries
    refresh.set_constants(cfg, geometry, table)
    table.shield_word, table.shield_limit = pe_protection.code(cfg)
    table.shield_coded = pe_protection.coded(cfg)
    table.exposure = cfg.errors.exposure
    table.round_trip = cfg.pe.kind != "none" and cfg.pe.protection == "controller_ecc"
    table.initial_cycles = cfg.errors.initial_cycles
    table.initial_days = cfg.errors.initial_days
    return table


def set_reservoir(cfg: Config, geometry: Geometry, table: np.recarray, planes: int) -> None:
    """Set the constants of the reservoir, whose super-pages have ``planes`` planes each.

    Raises InputError if the time to move a page between registers exceeds the range of the clock.
    """
    table.reservoir_pages = geometry.reservoir_blocks * geometry.pages
    table.reservoir_planes = planes
    table.rotate = cfg.ftl.reservoir_rotate if planes < geometry.planes else 0
    if cfg.pe.kind != "none":
        move = pe.register_move_ps(cfg)
        if move >= NEVER:
            raise InputError(
                f"{cfg.system.name}: moving a page between registers takes {move:.4g} ps "
                f"(pe.clock_divider = {cfg.pe.clock_divider:.4g}); the time must be below "
                f"{NEVER:.4g} ps to keep the clock exact"
            )
        table.register_move = move


def log2_of(n: int) -> int:
    """Return log2 of a power of two, or -1 for other numbers."""
    return n.bit_length() - 1 if n & (n - 1) == 0 else -1
