"""Construction of the arrays of a simulation from a configuration.

Owns the sizes and initial values of the arrays, and the integer copy of the configuration that
compiled code reads. Does not own behavior (nand/, ftl/, nvme/, engine/run/loop.py).
Source: mmap(2): the kernel allocates zero pages of the mapping tables when they are first accessed.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import NEVER, rate_scale
from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows, stages
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.core.events import COMMAND, FIFO, LINE, REG, TXN, build_tree
from ondie.emu.engine.core.payload_log import LOG
from ondie.emu.engine.core.state import Arrays, aligned_records, records
from ondie.emu.engine.core.system_records import DEV
from ondie.emu.engine.run.config_table import integer_config, log2_of, set_reservoir
from ondie.emu.engine.run.stage_table import build_stages
from ondie.emu.ftl import (
    policies,
)
from ondie.emu.ftl import tables as ftl_tables
from ondie.emu.ftl.tables import (
    error_tables,
    logical_pages,
    mark_bad_blocks,
    open_blocks,
    set_cached_map,
)
from ondie.emu.ftl.trim_maps import FLIGHTS
from ondie.emu.nand import raw_jobs
from ondie.emu.nand import tables as nand_tables
from ondie.emu.nand.die import (
    MAX_WAYS,
)
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.timing import OUT_FIRST, OUT_NEXT, command_cycles, word_line_pages
from ondie.emu.nvme import mqsim_cache
from ondie.emu.nvme import tables as nvme_tables
from ondie.emu.nvme.tables import (
    PAIR_RING,
    set_data_cache,
    set_destage_buffer,
)
from ondie.emu.nvme.tunnel.message_table import MESSAGE, SIZES
from ondie.emu.units import InputError

BUDGET = 15 << 12
"""Number of transactions that are available to plan rows, per device."""
ROWS = 1 << 19
MAX_SHARES = 16
"""Number of devices above which the total number of transactions for plan rows no longer grows."""


def _check_request(
    cfg: Config, geometry: Geometry, payload: bool, pairs: bool, jobs: bool, destage: bool
) -> None:
    """Raise InputError if the arguments of :func:`build` contradict the configuration."""
    if payload and cfg.ftl.unwritten == "as_written":
        raise InputError(
            'ftl.unwritten = "as_written": must be "zeros" if payload is kept, because pages that '
            "were never written have no bytes to read"
        )
    if payload and cfg.ftl.map_update == "placed":
        raise InputError(
            'ftl.map_update = "placed": must be "programmed" if payload is kept, because '
            "pages "
            "that are mapped before they are programmed have no bytes to read"
        )
    if payload and cfg.ftl.map_checkpoint_bytes and not pairs:
        raise InputError(
            f"ftl.map_checkpoint = {cfg.ftl.map_checkpoint_bytes} B: must be 0 for plans with "
            "payload, because their page stores do not keep metadata"
        )
    if cfg.frontend.transfer == "command" and not pairs:
        raise InputError(
            'frontend.transfer = "command": must be "page" for rows of a plan and for commands '
            "without queue pairs, which are transferred page by page"
        )
    if destage and word_line_pages(cfg) * geometry.slots > 1:
        raise InputError(
            f'flash.programming = "{cfg.flash.programming}": must be "page" with a '
            "destage buffer, which writes page by page"
        )
    if geometry.slots > 1 and jobs:
        raise InputError(
            f"ftl.mapping_unit = {geometry.page_bytes} B: must be 0 for operations on physical "
            "addresses, which access whole pages"
        )
    ways = geometry.ways * (geometry.planes if cfg.flash.plane_reads == "alone" else 1)
    if ways > MAX_WAYS:
        raise InputError(
            f"flash.dies_per_channel = {geometry.ways}: a channel would have {ways} "
            f"{'independent planes' if ways > geometry.ways else 'dies'}; the maximum is "
            f"{MAX_WAYS}"
        )


def _registers(
    table: np.record, txns: int, dies: int, buses: int, fifos: int, pairs: int
) -> np.recarray:
    """Return the engine's registers (REG) with their initial values: the first index of each kind
    of resource, the heads of lists, and the budget of transactions.
    """
    reg = records(REG, 1)
    reg.station0 = buses
    reg.pair0 = buses + fifos
    reg.gather0 = buses + fifos + pairs
    reg.bus0 = dies
    reg.fifo0 = dies + buses
    reg.go_head = reg.go_tail = -1
    reg.ready_head = reg.ready_tail = -1
    reg.txns_free = txns
    reg.budget = table.budget
    return reg


def _log_records(cfg: Config, geometry: Geometry, txns: int, places: int) -> int:
    """Return the capacity of the log in records.

    In one event, each transaction may log one record. A read may also log records of transfers to
    the data cache, and of the bit errors of each page.
    """
    of_cache = 2 * geometry.planes * geometry.slots * (places > 0)
    of_errors = geometry.planes * (cfg.errors.kind != "none")
    return 2 * txns * (1 + of_cache + of_errors)


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
    destage: mqsim_cache.Sizes | None = None,
    adapter: int = 0,
    entries: int = 0,
    budget: int = 0,
    maps: tuple[int, int] = (1, 1),
) -> Arrays:
    """Return all arrays of a system, with erased or used blocks according to ``ftl.initial``.

    ``reservoir_super_pages``: number of logical super-pages in the reservoir map of each device.
    ``reservoir_planes``: planes per super-page, or 0 for all planes of a die. ``queue_depth``:
    queue depth that replaces the default, which is the smaller of the host's and the drive's queue
    depth. ``timeline``: maximum number of intervals that the timeline stores. ``destage``: sizes of
    MQSim's destage buffer (for queue pairs whose data is transferred per command), which replaces
    the data cache, or None to keep the data cache. ``adapter``: number of entries of a single queue
    that all pairs share, or 0 if there is no such queue. A completion of this queue takes as much
    host time as a submission. ``entries``: number of entries of each pair's submission queue, of
    which one stays free. ``budget``: minimum number of transactions for outstanding work. ``maps``:
    (number of zones with translation pages in separate blocks, number of cached mapping tables).

    Raises InputError if the reservoir is too small for its super-pages.
    """
    n = devices if devices is not None else cfg.system.devices
    geometry = Geometry.of(cfg)
    _check_request(cfg, geometry, payload, pairs > 0, jobs > 0, destage is not None)
    depth = queue_depth or min(cfg.host.io_queue_depth, cfg.frontend.queue_depth)
    dies, buses, units = n * geometry.dies, n * geometry.channels, n * geometry.units
    fifos = stages.HOST_STATIONS + n * (stages.ECC + geometry.channels)
    lpns = logical_pages(cfg, geometry) if lpns is None else lpns
    table = integer_config(cfg, geometry, depth)
    gathers = n if int(table["line"][0]) > 1 else 0
    key, tree = build_tree(buses + fifos + max(pairs, 1) + gathers)
    set_reservoir(cfg, geometry, table, reservoir_planes or geometry.planes)
    table.lpns = lpns
    table.adapter = adapter
    table.entries = entries
    set_cached_map(cfg, geometry, table, *maps)
    set_data_cache(cfg, geometry, table)
    if destage is not None:
        set_destage_buffer(destage, table)
    caches = n if destage is None else destage.groups
    table.seed = seed
    table.ring = PAIR_RING
    table.ring_shift = log2_of(PAIR_RING)
    lanes, places = int(table["lanes"][0]), int(table["cache_pages"][0])
    cycles = command_cycles(cfg)
    table.out, table.out_plane = cycles[OUT_FIRST, 1], cycles[OUT_NEXT, 1]
    table.budget = max(BUDGET * min(n, MAX_SHARES), budget)
    txns = _transactions(table[0], n)
    reg = _registers(table[0], txns, dies * lanes, buses, fifos, max(pairs, 1))
    reg.log_on = int(payload)
    reg.line_on = int(timeline > 0)
    arrays = Arrays(
        cfg=table,
        reg=reg,
        key=key,
        tree=tree,
        sequence=np.zeros(1, np.int64),
        fifo=_stations(cfg, geometry, n, fifos),
        txn=_pool(txns),
        command=records(COMMAND, txns),
        stage=build_stages(table[0]),
        **nand_tables.tables(cfg, geometry, n, lanes),
        **ftl_tables.tables(cfg, geometry, table[0], n, lanes, planned=pairs == 0),
        **nvme_tables.tables(table[0], geometry, caches, pairs, txns, destage is not None),
        rmap=np.zeros((n, max(reservoir_super_pages, 1)), np.uint32),
        dev=_devices(n),
        count=np.zeros((n, len(COUNTERS)), np.int64),
        row=records(plan_rows.ROW, ROWS),
        wait=np.empty(2 * ROWS, np.int64),  # plan_rows.load writes an entry before it is read
        use=np.zeros((phases + 1, dies * lanes + buses + fifos), np.int64),
        phase=_phases(phases),
        log=records(LOG, _log_records(cfg, geometry, txns, places) if payload else 1),
        job=records(raw_jobs.JOB, max(jobs, 1)),
        feed=records(raw_jobs.FEED, dies * lanes),
        where=np.zeros(max(jobs, 1), np.int32),
        message=records(MESSAGE, SIZES if cfg.tunnel.payload_bytes else 1),
        line=records(LINE, max(timeline, 1)),
        **error_tables(cfg, n, geometry, txns, units),
    )
    victims, streams = cfg.ftl.gc_policy, cfg.ftl.stream_policy
    arrays.policies = {
        "gc_policy": policies.find(victims, policies.VICTIMS, "ftl.gc_policy"),
        "stream_policy": policies.find(streams, policies.STREAMS, "ftl.stream_policy"),
    }
    mark_bad_blocks(cfg, arrays, seed)
    return arrays


def _stations(cfg: Config, geometry: Geometry, n: int, fifos: int) -> np.recarray:
    fifo = records(FIFO, fifos)
    fifo.head = fifo.tail = -1
    rates = {
        stages.UPLINK_DOWN: cfg.link.uplink_bytes_per_s,
        stages.UPLINK_UP: cfg.link.uplink_bytes_per_s,
    }
    delays = {stages.SUBMIT: cfg.link.latency_ps}
    for dev in range(n):
        at = stages.HOST_STATIONS + dev * (stages.ECC + geometry.channels)
        rates[at + stages.DOWN] = cfg.link.down_bytes_per_s
        rates[at + stages.UP] = cfg.link.up_bytes_per_s
        rates[at + stages.DRAM] = cfg.dram.bandwidth_bytes_per_s
        rates[at + stages.ISP_LINK] = cfg.isp.flash_bytes_per_s
        rates[at + stages.ISP_LINK_DOWN] = cfg.isp.flash_write_bytes_per_s
        delays[at + stages.READ_FIRMWARE] = cfg.frontend.read_delay_ps
        delays[at + stages.WRITE_FIRMWARE] = cfg.frontend.write_delay_ps
        delays[at + stages.UP] = delays[at + stages.DOWN] = cfg.link.latency_ps
    for station, rate in rates.items():
        if rate > 0:
            fifo.scale[station], fifo.shift[station] = rate_scale(rate)
    for station, delay in delays.items():
        fifo.fixed[station] = delay
    return fifo


def _transactions(table: np.record, devices: int) -> int:
    """Return the size of the transaction pool: transactions for plan rows, for the erases of blocks
    opened by the rows, for garbage collection, and for background work that the configuration
    enables.
    """
    motion = min(int(table.gc_parallel), int(table.blocks)) * (
        min(table.gc_window, table.block_pages) + table.slots
    )
    rows = table.budget + table.budget // table.block_pages
    if table.map_entries > 0:  # also waiters for a translation page, and its reads
        rows += 2 * table.budget + devices * table.map_writes
    if table.cache != 0:  # also hits and misses of one page, and destages
        rows += 3 * table.budget + devices * table.cache_flights
    if table.trim_maps > 0:
        rows += devices * (FLIGHTS + table.meta_flights)
    if table.scrub_step > 0:
        rows += devices * table.units
    fronts = open_blocks(table)
    padding = fronts * 2 * table.stripe if table.line > 1 else 0
    return int(rows + devices * (table.units * (motion + fronts + padding + 2) + 1))


def _pool(n: int) -> np.recarray:
    txn = aligned_records(TXN, n)
    txn.next[:-1] = np.arange(1, n)
    txn.next[-1] = -1
    return txn


def _devices(n: int) -> np.recarray:
    dev = records(DEV, n)
    dev.sq_head = dev.stall_head = -1
    return dev


def _phases(n: int) -> np.recarray:
    phase = records(plan_rows.PHASE, n)
    phase.first = NEVER
    phase.last = -1
    return phase
