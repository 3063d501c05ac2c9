"""Construction of the arrays of a simulation from a configuration.

Owns sizes, initial values and the integer copy of the configuration that compiled code reads.
Does not own behaviour (nand/, ftl/, nvme/, engine/run/loop.py).
Source: mmap(2): mapping tables are lazily committed zero pages.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys

import numpy as np

from ondie.emu.clock import NEVER, rate_scale
from ondie.emu.compute import pe
from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.core.events import (
    FIFO,
    LINE,
    LOG,
    REG,
    TXN,
    build_tree,
)
from ondie.emu.engine.core.state import Arrays, record_type, records
from ondie.emu.ftl import (
    cmt,
    policies,
    reservoir,
)
from ondie.emu.ftl import (
    page_map as mapping,
)
from ondie.emu.ftl import (
    pslc as modes,
)
from ondie.emu.ftl import (
    read_retry as reading,
)
from ondie.emu.nand import pe_protection as shield
from ondie.emu.nand import raw_jobs as physical
from ondie.emu.nand.die import (
    BUS,
    DIE,
    MAX_WAYS,
    Q_GC_ERASE,
    Q_GC_READ,
    Q_GC_WRITE,
    Q_READ,
    Q_WRITE,
    QUEUES,
    order_table,
)
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.timing import OUT_FIRST, OUT_NEXT, command_cycles, timing_table, word_line_pages
from ondie.emu.nvme import data_cache as cache
from ondie.emu.nvme import mqsim_cache as buffer
from ondie.emu.nvme.queue_pair import PAIR, REQ
from ondie.emu.nvme.tunnel.message_table import MESSAGE, SIZES
from ondie.emu.units import InputError

CFG = record_type(
    channels="i8", ways="i8", planes="i8", dies="i8", pages="i8", page_bytes="i8",
    blocks="i8",  # conventional blocks per unit
    all_blocks="i8",
    block_pages="i8",  # pages of a unit's block
    line="i8",  # pages programmed together (ftl/word_lines.py)
    stripe="i8",  # pages of a unit's block between two word line boundaries of the write frontier
    passes="i8",  # program passes of a word line
    gather="i8",  # most ps that a page waits for the rest of its word line
    worth="i8",  # most valid pages of a victim block
    block_shift="i8",  # log2 of block_pages, -1 if it is not a power of two
    page_shift="i8",
    units="i8",  # units of a device
    die_units="i8",  # units of a die
    unit_planes="i8",  # planes of a unit
    slots="i8",  # mapping units of a flash page (ftl/subpage.py)
    together="i8",  # mapping units of a super-page of a unit
    unit_pages="i8",
    device_blocks="i8",  # blocks of all units of a device
    streams="i8",  # open blocks that host writes fill, per unit
    collected="i8",  # first stream of garbage-collected pages
    collected_streams="i8",  # number of those: one, or one for each host stream
    cache="i8",  # 1: data cache; 2: destage buffer (nvme/mqsim_cache.py)
    cache_pages="i8", cache_writes="i8", cache_through="i8", cache_fills="i8",
    cache_dirty="i8",  # dirty pages above which pages are destaged
    cache_flights="i8", cache_idle="i8",
    buffer_limit="i8", buffer_row="i8", buffer_burst="i8", buffer_ns="f8", buffer_open="i8",
    buffer_close="f8",  # of a destage buffer
    dram_row="i8", dram_open="i8", dram_close="i8",  # bytes, ps per row
    map_stream="i8",  # stream of translation pages, -1 = none
    map_entries="i8",  # entries of the cached mapping table; 0: the whole table is in DRAM
    map_span="i8",  # entries of a translation page
    tpages="i8",  # translation pages of a device
    map_read="i8", map_writes="i8",
    open_ahead="i8",  # 1: a stream's next block is opened when the previous one is full
    static="i8",  # 1: static placement: the logical page number determines the unit
    partial="i8",  # 1: pages may be partially filled; only filled sectors are moved
    unwritten="i8",  # 1: a page that was never written is read as if written
    placed="i8",  # 1: a written page is mapped when its physical page is assigned
    locks="i8",  # 1: valid pages of a victim are locked until they are moved
    seed="i8",
    ring_shift="i8",
    ring="i8",  # requests in a queue pair's ring, a power of two
    gc_policy="i8", stream_policy="i8",  # addresses of functions (ftl/policies.py)
    gc_stop="i8", gc_hard="i8", gc_parallel="i8", exclusive="i8", copyback="i8",
    q_gc_read="i8", q_gc_write="i8", q_gc_erase="i8",
    erase_collected="i8", wear_dynamic="i8", wear_static="i8",
    spare_parts="i8",  # 1 / over-provisioning: pages per spare page
    program_failures="f8", erase_failures="f8",
    link_lanes="i8", link_shift="i8", packet="i8", packet_overhead="i8", link_tick="i8",
    ranked="i8",  # 1: host operations on a die are ordered by class
    adapter="i8",  # entries of the single queue of a host adapter; 0: one queue per pair
    entries="i8",  # entries of a submission queue (nvme/queue_pair.py); 0: unlimited
    fetch_limit="i8",  # most commands of a queue pair in the drive; 0: unlimited
    doorbell="i8", request="i8", entry="i8", completion="i8",
    whole_commands="i8",  # 1: data cross the link per command, not per page
    lpns="i8",  # logical pages of the conventional namespace
    reservoir_pages="i8",  # reservoir super-pages per die
    reservoir_planes="i8",  # planes of a reservoir super-page
    rotate="i8",  # erase cycles of a block between rotations of its planes; 0: never
    register_move="i8",  # ps to move a page between registers of two planes
    multi_plane="i8", cache_read="i8", cache_program="i8", gradient_registers="i8",
    bus_scale="i8", bus_shift="i8",
    decode="i8", encode="i8", command="i8", submit="i8",
    queue_depth="i8",
    gc_low="i8", gc_reserve="i8", gc_window="i8",
    piece="i8",  # bytes per piece of a long DRAM transfer
    interleave="i8",  # 1: commands may interrupt data on a channel
    first_out="i8",  # best possible rank of pending data out (best_out in nand/channel.py)
    commands_first="i8",  # 1: commands before data out; 0: after, alternating with data in
    lanes="i8",  # planes of a die that read independently; 1: the whole die
    group="i8",  # 1: queued pages of a die are grouped into multi-plane operations
    power="i8",  # most planes with active arrays (power limit); 0: unlimited
    eager="i8",  # 1: the end of a read is an event while the channel is busy
    notice="i8",  # 1: the end of a read is an event before its data leave
    overlap="i8",  # 1: a die may request the channel while its array is busy
    special="i8",  # 1: suspend, power limit or independent plane reads are on
    chip="i8",  # 1: the dies of a chip are busy together
    word="i8",  # 1: programs may have pages at several offsets (word lines)
    status="i8",  # 1: the status of a program or erase is read on the channel
    out="i8", out_plane="i8",  # ps of commands for data out: first plane, each further plane
    watch="i8",  # 1: code outside the channel waits for the end of operations
    suspend_program="i8", suspend_erase="i8",  # 1: reads may suspend it
    suspend_program_left="i8", suspend_erase_left="i8",  # least remaining ps to suspend
    suspend_program_wait="i8", suspend_erase_wait="i8",  # ps until the array is free
    suspends="i8",  # 1: program or erase suspend is on
    resume_wait="i8",
    max_suspends="i8",  # most suspends of one operation
    suspend_reads="i8",  # reads during one suspend; 0: unlimited
    shared_uplink="i8",
    isp_io="i8",  # plan_rows.ISP_IO, for modules that do not import plan_rows.py
    budget="i8",  # most transactions reserved by rows
    errors="i8",  # 1: reads may have raw bit errors
    reclaim_reads="i8", reclaim_retries="i8",  # reads, retries that trigger a reclaim; 0: never
    shield_word="i8",  # code word bytes of the reservoir's on-die ECC; 0: none
    shield_limit="i8",  # bits corrected per such code word
    exposure="i8",  # reads of such a page that one simulated read represents
    round_trip="i8",  # 1: reservoir pages pass through the controller's ECC and back
    initial_cycles="i8", initial_days="f8",  # wear and age at the start of the run
    native="i8",  # conventional blocks per unit, without the fixed pSLC region
    pslc="i8",  # OFF, STATIC or DYNAMIC (ftl/pslc.py)
    pslc_stream="i8", fold_stream="i8",  # streams of pSLC writes and of folded pages
    pslc_hosts="i8",  # number of host streams (from 0) written to pSLC; 0: all
    pslc_pages="i8",  # pages of a unit's block in pSLC mode
    pslc_most="i8",  # most blocks of a unit in pSLC mode
    pslc_keep="i8",  # free blocks of a unit below which none becomes pSLC
    pslc_erase="i8",  # pSLC erase time minus native erase time (ps)
    pslc_wait="i8",  # 1: writes wait for pSLC blocks
    fold_blocks="i8", fold_idle="i8",
    fold_keep="i8",  # free native blocks that folding must leave
)  # fmt: skip
DEV = record_type(
    sq_head="i8", sq_tail="i8",  # host commands waiting for the queue depth
    outstanding="i8",
    stall_head="i8", stall_tail="i8",  # writes waiting for a free block
    cursor="i8",  # position of the next write in the allocation order
    mapped="i8",  # mapped logical pages
    r_mapped="i8",  # mapped reservoir super-pages
    filled="i8",  # blocks filled so far
    power="i8",  # planes with active arrays
    quiet_since="i8",  # time at which the host last became idle (ps)
    waking="i8",  # 1: the idle timer runs (nvme/idle_timer.py)
    first="i8",  # die (from 1) that is next to receive power
    suspended_programs="i8", suspended_erases="i8",
    entered="i8",  # requests entered into the queue of a host adapter (nvme/sata_hba.py)
    fetched="i8",  # of these, fetched by the drive
    known="i8",  # of these, those known to the host
    posted="i8",  # completions sent to the host
    reaped="i8",  # of these, acknowledged to the drive
    entry_head="i8", entry_tail="i8", post_head="i8", post_tail="i8",  # lists that wait for room
    lines="i8",  # word lines gathering or waiting for pass 2 (ftl/word_line_buffer.py)
    gathered="i8",  # pages in them and in word lines in flight
    joined="i8",  # of these, pages of the data cache
    pressing="i8",  # 1: a write waits until a page of the cache is on flash
    fua="i8",  # pages of writes that complete on flash, not in a word line yet
)  # fmt: skip
BUDGET = 15 << 12
"""Transactions for the rows of one device."""
ROWS = 1 << 19
PAIR_RING = 1 << 16
"""Most requests of a queue pair in flight or loaded in advance."""
MAX_SHARES = 16
"""Number of devices above which the transaction budget does not grow."""
SPARSE_BYTES = 1 << 22
"""Mapping tables larger than this (bytes) are mapped sparsely."""
HUGE_BYTES = 1 << 30
"""Sparse tables up to this size (bytes) use huge pages; in larger ones, untouched parts would
use memory."""
LOTS = 64
"""Number of int64 values of private state of a victim policy."""
GC_RESERVE = 1
"""Free super-blocks per die that only garbage collection may open. One more if programs may
fail."""


def integer_config(cfg: Config, geometry: Geometry, queue_depth: int) -> np.recarray:
    """Return the integer copy of the configuration for compiled code."""
    c = records(CFG, 1)
    c.channels = geometry.channels
    c.ways = geometry.ways
    c.planes = geometry.planes
    c.dies = geometry.dies
    c.pages = geometry.pages
    c.page_bytes = geometry.page_bytes
    c.blocks = geometry.blocks
    c.all_blocks = geometry.all_blocks
    c.block_pages = geometry.block_pages
    c.block_shift = _shift(geometry.block_pages)
    _lines(cfg, geometry, c)
    c.page_shift = _shift(geometry.page_bytes)
    c.units = geometry.units
    c.die_units = geometry.planes // geometry.unit_planes
    c.unit_planes = geometry.unit_planes
    c.slots = geometry.slots
    c.together = geometry.unit_planes * geometry.slots
    c.unit_pages = geometry.all_blocks * geometry.block_pages
    c.device_blocks = geometry.units * geometry.all_blocks
    c.lpns = logical_pages(cfg, geometry)
    c.multi_plane = cfg.flash.multi_plane
    c.cache_read = cfg.flash.cache_read
    c.cache_program = cfg.flash.cache_program
    c.gradient_registers = 2 if cfg.pe.dispatch == "double_buffered" else 1
    scale, shift = rate_scale(cfg.flash.bus_bytes_per_s)
    c.bus_scale, c.bus_shift = scale, shift
    c.decode = -(-cfg.ecc.decode_ps // geometry.slots)
    c.encode = -(-cfg.ecc.encode_ps // geometry.slots)
    c.command = cfg.frontend.command_ps
    c.submit = cfg.host.io_submit_ps
    c.queue_depth = queue_depth
    _management(cfg, geometry, c)
    c.link_lanes, c.link_shift = cfg.link.lanes, _shift(cfg.link.lanes)
    c.packet = cfg.link.packet_bytes
    c.packet_overhead = cfg.link.packet_overhead_bytes
    c.link_tick = cfg.link.tick_ps
    c.fetch_limit = cfg.frontend.fetch_limit
    c.ranked = cfg.ftl.host_order == "class"
    c.doorbell = cfg.frontend.doorbell_bytes
    c.request = cfg.frontend.request_bytes
    c.entry = cfg.frontend.entry_bytes
    c.completion = cfg.frontend.completion_bytes
    c.whole_commands = cfg.frontend.transfer == "command"
    c.piece = geometry.super_page_bytes
    c.interleave = cfg.flash.interleave_commands
    flash = cfg.flash
    c.commands_first = flash.grants == "commands"
    c.lanes = geometry.planes if flash.plane_reads == "alone" else 1
    c.group = flash.multi_plane and geometry.planes > 1 and geometry.unit_planes == 1
    c.power = flash.power_planes
    c.notice = flash.cache_read or c["power"][0] > 0 or flash.status == "read"
    c.eager = (flash.cache_read and flash.interleave_commands) or c["power"][0] > 0
    c.watch = 1
    c.suspend_program = "program" in flash.suspend
    c.suspend_erase = "erase" in flash.suspend
    c.suspend_program_left = flash.suspend_program_left_ps
    c.suspend_erase_left = flash.suspend_erase_left_ps
    c.suspend_program_wait = flash.t_suspend_program_ps
    c.suspend_erase_wait = flash.t_suspend_erase_ps
    c.resume_wait = flash.t_resume_ps
    c.max_suspends = flash.max_suspends
    c.suspend_reads = flash.suspend_reads
    c.suspends = flash.suspend != "none"
    c.special = c["suspends"][0] or c["power"][0] > 0 or c["lanes"][0] > 1
    c.chip = flash.chip_busy == "per_chip" and flash.dies_per_chip > 1
    c.word = flash.programming != "page"
    c.status = flash.status == "read"
    c.overlap = (
        flash.cache_program
        or cfg.pe.kind != "none"
        or c["suspends"][0] != 0
        or c["eager"][0] != 0
        or c["lanes"][0] > 1
        or c["word"][0] != 0
    )
    c.shared_uplink = 1 if cfg.link.uplink_bytes_per_s > 0 else 0
    c.isp_io = rows.ISP_IO
    c.errors = cfg.errors.kind != "none"
    c.reclaim_reads = cfg.ftl.reclaim_reads
    c.reclaim_retries = cfg.ftl.reclaim_retries
    c.shield_word, c.shield_limit = shield.code(cfg)
    c.exposure = cfg.errors.exposure
    c.round_trip = cfg.pe.kind != "none" and cfg.pe.protection == "controller_ecc"
    c.initial_cycles = cfg.errors.initial_cycles
    c.initial_days = cfg.errors.initial_days
    return c


def _reservoir(cfg: Config, geometry: Geometry, c: np.recarray, planes: int) -> None:
    """Set the constants of the reservoir, whose super-pages have ``planes`` planes each."""
    c.reservoir_pages = geometry.reservoir_blocks * geometry.pages
    c.reservoir_planes = planes
    c.rotate = cfg.ftl.reservoir_rotate if planes < geometry.planes else 0
    if cfg.pe.kind != "none":
        move = pe.register_move_ps(cfg)
        if move >= NEVER:
            raise InputError(
                f"{cfg.system.name}: a page takes {move:.4g} ps from register to register "
                f"(pe.clock_divider = {cfg.pe.clock_divider:.4g}); at most {NEVER:.4g} ps keep the "
                f"clock exact"
            )
        c.register_move = move


def _lines(cfg: Config, geometry: Geometry, c: np.recarray) -> None:
    """Set the unit of programming: a page, or a word line of one or all planes of a unit."""
    pages, slots = word_line_pages(cfg), geometry.slots
    together = geometry.unit_planes if cfg.flash.multi_plane else 1
    c.line = pages * together * slots if pages > 1 else slots
    c.stripe = pages * geometry.unit_planes * slots if pages > 1 else slots
    c.passes = 2 if cfg.flash.programming == "two_pass" else 1
    c.gather = cfg.ftl.gather_time_ps
    c.worth = geometry.block_pages - c.passes * c.stripe


def _shift(n: int) -> int:
    """Return log2 of a power of two, -1 for other numbers."""
    return n.bit_length() - 1 if n & (n - 1) == 0 else -1


def _management(cfg: Config, geometry: Geometry, c: np.recarray) -> None:
    """Set the constants of flash management: streams, garbage collection, wear leveling."""
    ftl = cfg.ftl
    c.streams = ftl.write_streams
    c.collected = ftl.write_streams
    c.collected_streams = ftl.write_streams if ftl.gc_streams == "each" else 1
    c.map_read = ftl.map_read_bytes
    together = int(c["passes"][0] * c["stripe"][0])  # fewer would wait for each other
    c.map_writes = max(ftl.map_writes, together) if together > 1 else ftl.map_writes
    c.open_ahead = ftl.open_blocks == "ahead"
    c.static = ftl.placement == "static"
    c.partial = ftl.partial_pages == "sectors"
    c.unwritten = ftl.unwritten == "as_written"
    c.placed = ftl.map_update == "placed"
    c.locks = ftl.victim_pages == "locked"
    c.gc_reserve = GC_RESERVE + (ftl.program_failures > 0)
    c.gc_low = max(ftl.gc_low_blocks, int(c["gc_reserve"][0]))
    c.gc_stop = ftl.gc_stop_blocks
    c.gc_hard = ftl.gc_hard_blocks if ftl.gc_priority == "background" else 0
    window = ftl.gc_window_pages * geometry.slots
    c.gc_window = max(window or geometry.block_pages, together)
    c.gc_parallel = ftl.gc_parallel
    c.exclusive = ftl.gc_priority == "exclusive"
    shared = ftl.gc_priority == "shared"
    c.q_gc_read = Q_READ if shared else Q_GC_READ
    c.q_gc_write = Q_WRITE if shared else Q_GC_WRITE
    c.q_gc_erase = Q_WRITE if shared else Q_GC_ERASE
    c.copyback = ftl.gc_copyback
    c.erase_collected = ftl.erase == "collected"
    c.wear_dynamic = ftl.wear_dynamic
    c.wear_static = ftl.wear_static_cycles
    c.spare_parts = max(round(1 / max(ftl.over_provisioning, 1e-9)), 1)
    c.program_failures = ftl.program_failures
    _cell_modes(cfg, geometry, c)
    c.erase_failures = ftl.erase_failures


def _cell_modes(cfg: Config, geometry: Geometry, c: np.recarray) -> None:
    """Set the constants of pSLC blocks and of folding."""
    ftl, flash = cfg.ftl, cfg.flash
    c.native = geometry.native_blocks
    c.pslc_stream = c.fold_stream = modes.NO_STREAM
    if ftl.pslc == "off":
        return
    c.pslc = modes.MODES.index(ftl.pslc)
    c.pslc_hosts = ftl.pslc_streams
    c.pslc_pages = modes.block_pages(cfg) * geometry.unit_planes
    c.pslc_most = int(geometry.blocks * ftl.pslc_share)
    c.pslc_keep = max(int(c["gc_low"][0]) + 1, ftl.gc_stop_blocks)
    c.pslc_erase = flash.pslc_t_erase_ps - flash.t_erase_ps
    c.pslc_wait = ftl.pslc_full == "wait"
    c.fold_blocks = ftl.fold_blocks
    c.fold_keep = GC_RESERVE if ftl.pslc == "static" else 0
    c.fold_idle = ftl.fold_idle_ps


def _destage_buffer(sizes: buffer.Sizes, c: np.recarray) -> None:
    """Set the constants of a destage buffer, which replaces the data cache."""
    c.cache = buffer.BUFFER
    c.cache_pages = sizes.pages
    c.cache_fills = 1
    c.cache_flights = c.buffer_limit = sizes.limit
    c.buffer_row, c.buffer_burst = sizes.row, sizes.burst
    c.buffer_ns = sizes.transfer_ns
    c.buffer_open, c.buffer_close = sizes.open_ps, sizes.close_ns


def _data_cache(cfg: Config, geometry: Geometry, c: np.recarray) -> None:
    """Set the constants of the data cache and of DRAM rows."""
    mode = cfg.cache.mode
    c.dram_row = cfg.dram.row_bytes
    c.dram_open = cfg.dram.t_rcd_ps + cfg.dram.t_cl_ps
    c.dram_close = cfg.dram.t_rp_ps
    if mode == "off":
        return
    pages = cfg.cache.capacity_bytes // geometry.page_bytes
    if pages >= 1 << 31:
        raise InputError(f"cache.capacity: {pages} pages; below 2**31")
    c.cache = 1
    c.cache_pages = pages
    c.cache_writes = mode != "read"
    c.cache_through = mode == "write_through"
    c.cache_fills = mode in ("read", "read_write")
    c.cache_dirty = 0 if mode == "write_through" else int(pages * cfg.cache.dirty_share)
    pages = geometry.dies * geometry.planes * geometry.slots
    lines = geometry.units * int(c["passes"][0] * c["stripe"][0] * c["streams"][0])
    usual = pages if c["line"][0] == 1 else max(lines, pages)
    c.cache_flights = cfg.cache.destage_pages * geometry.slots or usual
    c.cache_idle = cfg.cache.destage_idle


def _cached_map(cfg: Config, geometry: Geometry, c: np.recarray) -> None:
    """Set the sizes of the cached mapping table, and the streams behind it."""
    lpns = int(c["lpns"][0])
    entries, span, tpages = cmt.sizes(cfg, geometry.physical_pages, lpns)
    if lpns + tpages > geometry.native_pages:
        raise InputError(
            f"ftl.over_provisioning = {cfg.ftl.over_provisioning}: {lpns} logical pages and their "
            f"{tpages} translation pages are more than the {geometry.native_pages} pages of "
            "flash"
        )
    c.map_entries, c.map_span, c.tpages = entries, span, tpages
    following = int(c["collected"][0] + c["collected_streams"][0])
    c.map_stream = following if entries else -1
    if c["pslc"][0] != modes.OFF:
        following += entries > 0
        c.pslc_stream, c.fold_stream = following, following + 1
    c.first_out = 0 if entries else 1
    if cfg.ftl.gc_copyback or cfg.flash.status == "read":
        c.first_out = -1


def logical_pages(cfg: Config, geometry: Geometry) -> int:
    """Return the logical pages of the conventional namespace: floor(native physical x (1 - OP))."""
    return int(geometry.native_pages * (1 - cfg.ftl.over_provisioning))


def map_dtype(entries: int) -> type[np.unsignedinteger]:
    """Return the entry type of a mapping table: uint32 if every entry + 1 fits, else uint64."""
    return np.uint32 if entries < 2**32 - 1 else np.uint64


def map_table(shape: tuple[int, int], dtype: type[np.number]) -> np.ndarray:
    """Return a zeroed mapping table, of which only touched memory pages use memory.

    The tables of a server of 32 TB drives exceed any memory but are almost untouched. Large tables
    are therefore mapped without reserved memory, in small pages. Raises InputError if the address
    space is exhausted.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= SPARSE_BYTES:
        return np.zeros(shape, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    flags |= getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
    try:
        memory = mmap.mmap(-1, size, flags=flags)
    except OSError as error:
        raise InputError(
            f"system.devices: the page maps of {shape[0]} drives take {size / 1e9:.4g} GB of "
            f"address space, which this machine does not give ({error.strerror})"
        ) from error
    if size <= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages uses small pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def build(
    cfg: Config,
    *,
    devices: int | None = None,
    phases: int = 16,
    reservoir_super_pages: int = 0,
    reservoir_planes: int = 0,
    queue_depth: int | None = None,
    payload: bool = False,
    timeline: int = 0,
    jobs: int = 0,
    pairs: int = 0,
    seed: int = 0,
    lpns: int | None = None,
    destage: buffer.Sizes | None = None,
    adapter: int = 0,
    entries: int = 0,
    budget: int = 0,
) -> Arrays:
    """Return all arrays of a system, with erased or used blocks according to ``ftl.initial``.

    ``reservoir_super_pages``: logical super-pages per device that the optimizer maps;
    ``reservoir_planes``: planes per super-page (0: all planes of a die);
    ``queue_depth``: overrides the minimum of host and drive queue depth;
    ``timeline``: number of intervals to keep;
    ``destage``: destage buffer that replaces the data cache, for requests through queue pairs whose
    data move per command;
    ``adapter``: entries of a single queue shared by all pairs, whose completions occupy the host as
    long as submissions;
    ``entries``: entries of each pair's submission queue, of which one stays free;
    ``budget``: transactions for outstanding work, if more than the default are needed.
    Raises InputError if the reservoir is too small for its super-pages.
    """
    if payload and cfg.ftl.unwritten == "as_written":
        raise InputError(
            'ftl.unwritten = "as_written": pages that were never written have no bytes to read; '
            '"zeros" is right where bytes are kept'
        )
    if payload and cfg.ftl.map_update == "placed":
        raise InputError(
            'ftl.map_update = "placed": pages that are mapped before they are programmed have no '
            'bytes to read yet; "programmed" is right where bytes are kept'
        )
    n = devices if devices is not None else cfg.system.devices
    if cfg.frontend.transfer == "command" and not pairs:
        raise InputError(
            'frontend.transfer = "command": rows of a plan and commands of a device move page by '
            'page; "page" is right, or requests through queue pairs'
        )
    geometry = Geometry.of(cfg)
    gathers = n if word_line_pages(cfg) * geometry.slots > 1 else 0
    if gathers and destage is not None:
        raise InputError(
            f'flash.programming = "{cfg.flash.programming}": a destage buffer writes page by page; '
            f'"page" is right'
        )
    if geometry.slots > 1 and jobs > 0:
        raise InputError(
            f"ftl.mapping_unit = {geometry.page_bytes} B: operations given by their physical place "
            "are of whole pages; 0 is right"
        )
    depth = queue_depth or min(cfg.host.io_queue_depth, cfg.frontend.queue_depth)
    ways = geometry.ways * (geometry.planes if cfg.flash.plane_reads == "alone" else 1)
    if ways > MAX_WAYS:
        raise InputError(
            f"flash.dies_per_channel: {ways} dies, or planes that read alone, on one channel; at "
            f"most {MAX_WAYS}"
        )
    dies, buses, units = n * geometry.dies, n * geometry.channels, n * geometry.units
    fifos = s.HOST_STATIONS + n * (s.ECC + geometry.channels)
    key, tree = build_tree(buses + fifos + max(pairs, 1) + gathers)
    lpns = logical_pages(cfg, geometry) if lpns is None else lpns
    width = map_dtype(geometry.physical_pages)
    reg = records(REG, 1)
    reg.station0 = buses
    reg.pair0 = buses + fifos
    reg.gather0 = buses + fifos + max(pairs, 1)
    reg.go_head = reg.go_tail = -1
    c = integer_config(cfg, geometry, depth)
    _reservoir(cfg, geometry, c, reservoir_planes or geometry.planes)
    c.lpns = lpns
    c.adapter = adapter
    c.entries = entries
    _cached_map(cfg, geometry, c)
    _data_cache(cfg, geometry, c)
    if destage is not None:
        _destage_buffer(destage, c)
    caches = n if destage is None else destage.groups
    c.seed = seed
    c.ring = PAIR_RING
    c.ring_shift = _shift(PAIR_RING)
    lanes, tpages = int(c["lanes"][0]), int(c["tpages"][0])
    entries, places = int(c["map_entries"][0]), int(c["cache_pages"][0])
    cycles = command_cycles(cfg)
    c.out, c.out_plane = cycles[OUT_FIRST, 1], cycles[OUT_NEXT, 1]
    reg.bus0 = dies * lanes
    reg.fifo0 = dies * lanes + buses
    c.budget = max(BUDGET * min(n, MAX_SHARES), budget)
    txns = _transactions(c[0], n)
    reg.txns_free = txns
    reg.budget = c.budget
    reg.ready_head = reg.ready_tail = -1
    reg.log_on = int(payload)
    reg.line_on = int(timeline > 0)
    arrays = Arrays(
        cfg=c,
        reg=reg,
        key=key,
        tree=tree,
        fifo=_stations(cfg, geometry, n, fifos),
        txn=_pool(txns),
        op=timing_table(cfg),
        cycles=cycles,
        die=_dies(cfg, geometry, n, lanes),
        queue=np.full((dies * lanes, 2 * QUEUES), -1, np.int32),
        bus=_buses(geometry, n),
        way=_ways(geometry, n, lanes),
        touched=np.zeros(buses, np.int32),
        order=order_table(),
        l2p=map_table((n, lpns + tpages), width),
        p2l=map_table((n, geometry.physical_pages), width),
        sectors=map_table((n, lpns + tpages if c["partial"][0] else 1), np.int64),
        valid=np.zeros(units * geometry.all_blocks, np.int32),
        block=_blocks(cfg, geometry, units, lanes, geometry.block_pages // int(c["stripe"][0])),
        free=np.tile(np.arange(geometry.blocks, dtype=np.int32), (units, 1)),
        front=_fronts(units, _open_blocks(c[0])),
        pool=_pools(geometry, units),
        turn=geometry.turns(cfg.ftl.allocation),
        zone=_one_zone(geometry, cfg.ftl.write_streams, lpns),
        maps=records(cmt.MAPS, n),
        entry=records(cmt.ENTRY, max(n * entries, 1)),
        bucket=np.zeros((n, 1 << entries.bit_length()), np.int32),
        tpage=records(cmt.TPAGE, max(n * tpages, 1)),
        cache=_caches(caches),
        cpage=records(cache.CPAGE, max(caches * places, 1)),
        recent=np.zeros(1 if destage is None else lpns, np.int32),
        stamp=np.zeros(1 if destage is None else txns, np.int64),
        cbucket=np.zeros((caches, 1 << places.bit_length()), np.int32),
        page_ps=modes.array_times(cfg),
        **modes.tables(cfg, units, geometry.blocks, geometry.pslc_blocks),
        worn=np.zeros((max(units * geometry.reservoir_blocks, 1), geometry.planes), np.int32),
        rmap=np.zeros((n, max(reservoir_super_pages, 1)), np.uint32),
        dev=_devices(n),
        count=np.zeros((n, len(COUNTERS)), np.int64),
        row=records(rows.ROW, ROWS),
        wait=np.zeros(2 * ROWS, np.int64),
        req=records(REQ, max(pairs * PAIR_RING, 1)),
        pair=_pairs(pairs),
        retry=np.zeros(units, np.int32),
        lots=np.zeros(LOTS, np.int64),
        use=np.zeros((phases + 1, dies * lanes + buses + fifos), np.int64),
        phase=_phases(phases),
        # In one event, each transaction may log one record, plus for a read the cache transfers or
        # the wrong bits of each page.
        log=records(
            LOG,
            2
            * txns
            * (
                1
                + 2 * geometry.planes * geometry.slots * (places > 0)
                + geometry.planes * (cfg.errors.kind != "none")
            )
            if payload
            else 1,
        ),
        job=records(physical.JOB, max(jobs, 1)),
        feed=records(physical.FEED, dies * lanes),
        where=np.zeros(max(jobs, 1), np.int32),
        message=records(MESSAGE, SIZES if cfg.tunnel.payload_bytes else 1),
        line=records(LINE, max(timeline, 1)),
        **_errors(cfg, n, geometry, txns, units),
    )
    arrays.policies = {
        "gc_policy": policies.find(cfg.ftl.gc_policy, policies.VICTIMS, "ftl.gc_policy"),
        "stream_policy": policies.find(
            cfg.ftl.stream_policy, policies.STREAMS, "ftl.stream_policy"
        ),
    }
    _bad_blocks(cfg, arrays, seed)
    return arrays


def _errors(
    cfg: Config, n: int, geometry: Geometry, txns: int, units: int
) -> dict[str, np.ndarray]:
    """Return the tables of the error model, of minimal size if errors.kind = none."""
    on = cfg.errors.kind != "none"
    pages = geometry.physical_pages if on else 1
    return {
        **reading.tables(cfg, txns, units * geometry.all_blocks),
        "seen": map_table((n, pages), np.uint32),
        "lost": map_table((n, pages), np.int64),
        "kept": map_table((n, pages if cfg.ftl.gc_copyback else 1), np.float32),
    }


def _bad_blocks(cfg: Config, arrays: Arrays, seed: int) -> None:
    """Mark factory bad blocks, drawn by ``seed``, and remove them from the free rings.

    Raises InputError if the good blocks hold fewer pages than the namespace.
    """
    if cfg.ftl.bad_blocks == 0:
        return
    units, blocks = arrays.free.shape
    geometry = Geometry.of(cfg)
    if geometry.reservoir_blocks:
        lent = reservoir.bad_blocks(cfg, geometry, units // geometry.units, seed)
        arrays.block["state"].reshape(units, -1)[:, blocks:][lent] = mapping.BAD
    bad = np.random.default_rng((seed, 0xBAD)).random((units, blocks)) < cfg.ftl.bad_blocks
    state = arrays.block["state"].reshape(units, -1)
    state[:, :blocks][bad] = mapping.BAD
    for u in range(units):
        good = np.flatnonzero(~bad[u]).astype(np.int32)
        fixed = good[good >= geometry.native_blocks]
        good = good[: len(good) - len(fixed)]
        arrays.free[u, : len(good)] = good
        arrays.pool["free_n"][u] = len(good)
        if geometry.pslc_blocks:
            arrays.slc_free[u, : len(fixed)] = fixed
            arrays.slc["free_n"][u] = len(fixed)
    native = (~bad).reshape(-1, geometry.units, blocks)[:, :, : geometry.native_blocks]
    good_pages = native.sum(axis=(1, 2)) * geometry.block_pages
    lpns = int(arrays.cfg.lpns[0])
    if good_pages.min() < lpns:
        raise InputError(
            f"ftl.bad_blocks = {cfg.ftl.bad_blocks}: {int(good_pages.min())} pages lie in good "
            f"blocks, fewer than the {lpns} logical pages "
            f"(ftl.over_provisioning = {cfg.ftl.over_provisioning})"
        )


def _stations(cfg: Config, geometry: Geometry, n: int, fifos: int) -> np.recarray:
    fifo = records(FIFO, fifos)
    fifo.head = fifo.tail = -1
    rates = {s.UPLINK_DOWN: cfg.link.uplink_bytes_per_s, s.UPLINK_UP: cfg.link.uplink_bytes_per_s}
    delays = {s.SUBMIT: cfg.link.latency_ps}
    for dev in range(n):
        at = s.HOST_STATIONS + dev * (s.ECC + geometry.channels)
        rates[at + s.DOWN] = cfg.link.down_bytes_per_s
        rates[at + s.UP] = cfg.link.up_bytes_per_s
        rates[at + s.DRAM] = cfg.dram.bandwidth_bytes_per_s
        rates[at + s.ISP_LINK] = cfg.isp.flash_bytes_per_s
        delays[at + s.UP] = delays[at + s.DOWN] = cfg.link.latency_ps
    for station, rate in rates.items():
        if rate > 0:
            fifo.scale[station], fifo.shift[station] = rate_scale(rate)
    for station, delay in delays.items():
        fifo.fixed[station] = delay
    return fifo


def _transactions(c: np.record, devices: int) -> int:
    """Return the pool size: transactions of rows, erases of blocks they open, collection."""
    motion = min(int(c.gc_parallel), int(c.blocks)) * (min(c.gc_window, c.block_pages) + c.slots)
    rows = c.budget + c.budget // c.block_pages
    if c.map_entries > 0:  # also waiters for a translation page, and its reads
        rows += 2 * c.budget + devices * c.map_writes
    if c.cache != 0:  # also hits and misses of one page, and destages
        rows += 3 * c.budget + devices * c.cache_flights
    fronts = _open_blocks(c)
    padding = fronts * 2 * c.stripe if c.line > 1 else 0
    return int(rows + devices * (c.units * (motion + fronts + padding + 2) + 1))


def _open_blocks(c: np.record) -> int:
    """Return the number of streams with an open block on each unit."""
    return int(c.collected + c.collected_streams + (c.map_entries > 0) + 2 * (c.pslc != modes.OFF))


def _pool(n: int) -> np.recarray:
    txn = records(TXN, n)
    txn.next[:-1] = np.arange(1, n)
    txn.next[-1] = -1
    return txn


def _dies(cfg: Config, geometry: Geometry, n: int, lanes: int) -> np.recarray:
    die = records(DIE, n * geometry.dies * lanes)
    for name in ("arr", "cache", "paused", "loading", "pick"):
        die[name] = -1
    whole, lane = np.divmod(np.arange(n * geometry.dies * lanes), lanes)
    die["dev"], of_device = np.divmod(whole, geometry.dies)
    way, channel = np.divmod(of_device, geometry.channels)
    die["at"] = way * lanes + lane
    die["bus"] = die["dev"] * geometry.channels + channel
    die["first"] = whole * lanes
    if cfg.flash.chip_busy == "per_chip":
        way -= way % geometry.chip_dies
        die["first"] = die["dev"] * geometry.dies + way * geometry.channels + channel
    die["urgent"] = cfg.ftl.gc_priority in ("urgent", "exclusive")
    return die


def _buses(geometry: Geometry, n: int) -> np.recarray:
    bus = records(BUS, n * geometry.channels)
    for name in ("out_head", "out_tail", "done_head", "done_tail", "die", "txn"):
        bus[name] = -1
    bus["dev"] = np.arange(n * geometry.channels) // geometry.channels
    return bus


def _ways(geometry: Geometry, n: int, lanes: int) -> np.ndarray:
    dev, channel = np.divmod(np.arange(n * geometry.channels), geometry.channels)
    way, lane = np.divmod(np.arange(geometry.ways * lanes), lanes)
    die = (dev * geometry.dies + channel)[:, None] + way * geometry.channels
    return (die * lanes + lane).astype(np.int32)


def _blocks(cfg: Config, geometry: Geometry, units: int, lanes: int, stripes: int) -> np.recarray:
    """Return the block records. Used blocks must be erased when opened; one per unit is erased."""
    one = records(mapping.BLOCK, geometry.all_blocks)
    if cfg.ftl.erase == "open":
        one.dirty = int(cfg.ftl.initial == "steady")
        one["dirty"][0] = 0
    one.stream = -1
    one.last = stripes - 1
    block = records(mapping.BLOCK, units * geometry.all_blocks)
    block.view(np.uint8).reshape(units, -1)[:] = one.view(np.uint8)  # assignment by field is slow
    of_unit = block.reshape(units, -1)
    die, plane = np.divmod(np.arange(units), geometry.planes // geometry.unit_planes)
    of_unit["plane"] = plane[:, None]
    of_unit["die"] = (die * lanes + (plane if lanes > 1 else 0))[:, None]
    return block


def _one_zone(geometry: Geometry, streams: int, lpns: int) -> np.recarray:
    """Return zones in which every stream writes to all units."""
    zone = records(mapping.ZONE, streams)
    zone.last_lpn = lpns
    zone.units = geometry.units
    return zone


def _fronts(units: int, streams: int) -> np.recarray:
    front = records(mapping.FRONT, streams, units)
    front.block = -1
    return front


def _pools(geometry: Geometry, units: int) -> np.recarray:
    pool = records(mapping.POOL, units)
    pool.free_n = geometry.native_blocks
    pool.stall_head = pool.stall_tail = -1
    return pool


def _caches(n: int) -> np.recarray:
    out = records(cache.CACHE, n)
    out.epoch = 1
    return out


def _pairs(n: int) -> np.recarray:
    pair = records(PAIR, n)
    pair.stop = NEVER
    return pair


def _devices(n: int) -> np.recarray:
    dev = records(DEV, n)
    dev.sq_head = dev.stall_head = -1
    return dev


def _phases(n: int) -> np.recarray:
    phase = records(rows.PHASE, n)
    phase.first = NEVER
    phase.last = -1
    return phase
