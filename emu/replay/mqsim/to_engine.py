"""Translation of MQSim's drive and flows to this project's engine.

Owns the conversion of each parameter of MQSim to this engine. Does not own files (ssdconfig.py,
workload_xml.py), requests (flow.py) or the engine. Source: MQSim's source. Its command times follow
from the NV-DDR2 constants tCS 20, tWC 25, tWB 100, tRR 20, tDBSY 500, tADL 70, tCALS 15, tWPST 6,
tWPSTH 15 ns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ondie.emu.config.config import Config, load_preset
from ondie.emu.config.leaf import Value
from ondie.emu.engine.core import stages
from ondie.emu.engine.core.state import Arrays, records
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.engine.run import build
from ondie.emu.ftl import cmt, page_map
from ondie.emu.ftl.precondition import per_stream
from ondie.emu.ftl.precondition.apply import whole_pages
from ondie.emu.nand import event_order, scheduler_statistics
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.timing import ERASE, PROGRAM, READ
from ondie.emu.replay.mqsim import (
    data_cache,
    device_statistics,
    gc_policies,
    mrg32k3a,
    precondition,
    sata,
)
from ondie.emu.replay.mqsim.address_partition import working_set
from ondie.emu.replay.mqsim.device_statistics import DeviceStatistics
from ondie.emu.replay.mqsim.flash_counts import counters, half
from ondie.emu.replay.mqsim.flow import ISSUE_PS, Flow, half_way
from ondie.emu.replay.mqsim.initial_occupancy import occupied
from ondie.emu.replay.mqsim.outstanding import MOST_REQUESTS, outstanding
from ondie.emu.replay.mqsim.run import Run
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.start_order import start_order
from ondie.emu.replay.player import Player, Replayed, Source

PS_PER_NS = 1000
STALLS = frozenset(["stalled_writes", "lost_map_entries"])
"""Names of the quirks that can make requests wait forever."""
MOST_NUMBERED = 32
"""Maximum number of sectors per page for the quirk pages_of_flows, which uses one bit per sector of
two pages in 64 bits."""
STOP = 10
"""Number of free blocks of a plane below which MQSim makes host writes wait.

It is also the maximum number of concurrent garbage collections in a plane.
"""
TR_MORE = 20 * PS_PER_NS
"""Time that MQSim adds to every array read (20 ns), ps."""
READ_REQUEST = 4
"""Size of the payload of the message with which the drive requests data from host memory, bytes.
With packet overhead, the message has 32 bytes."""
CLASSES = ("URGENT", "HIGH", "MEDIUM", "LOW")
RANKED = ("PRIORITY_OUT_OF_ORDER",)
ABSENT: dict[str, Value] = {
    "flash.programming": "page",
    "frontend.read_delay": 0,
    "frontend.write_delay": 0,
    "ftl.mapping_unit": 0,
    "cache.mode": "off",
}
"""Configuration values that disable the features of the preset which MQSim's drive lacks or
implements in a different way."""
STEADY = {
    "GREEDY": "greedy",
    "RGA": "d_choices",
    "RANDOM": "random",
    "RANDOM_P": "random",
    "RANDOM_PP": "random_some",
    "FIFO": "fifo",
}
"""Victim selection policy of the steady state in which the drive starts, by value of MQSim's
parameter GC_Block_Selection_Policy."""


def configuration(drive: Drive, streams: int, quirks: frozenset[str]) -> Config:
    """Return MQSim's drive with ``streams`` write streams as a configuration of this project."""
    rate = drive.channel_transfer_rate_hz * drive.flash_channel_width_bytes
    if "channel_rates_rounded" in quirks:
        per_byte = 1000 // (drive.channel_transfer_rate_hz // 10**6)  # of each byte of the width
        rate = 10**9 * drive.flash_channel_width_bytes // per_byte if per_byte else 10**15
    middle, upper = _more(drive, "read"), _more(drive, "program")
    threshold = max(int(drive.gc_exec_threshold * drive.block_no_per_plane), STOP)
    dies = drive.chip_no_per_channel * drive.die_no_per_chip
    background = drive.preemptible_gc_enabled
    suspend = drive.cmd_suspension_support.lower()
    return load_preset("gen4-tlc").replace(
        {
            "flash.channels": drive.flash_channel_count,
            "flash.dies_per_channel": dies,
            "flash.dies_per_chip": drive.die_no_per_chip,
            "flash.chip_busy": "per_chip" if "one_die_at_a_time" in quirks else "per_die",
            "flash.planes_per_die": drive.plane_no_per_die,
            "flash.blocks_per_plane": drive.block_no_per_plane,
            "flash.pages_per_block": drive.page_no_per_block,
            "flash.page_bytes": drive.page_capacity_bytes,
            "flash.cell": drive.flash_technology,
            "flash.page_types": "planar",
            "flash.t_read_ps": drive.page_read_latency_lsb_ps + TR_MORE,
            "flash.t_read_middle_ps": middle[0],
            "flash.t_read_upper_ps": middle[1],
            "flash.t_program_ps": drive.page_program_latency_lsb_ps,
            "flash.t_program_middle_ps": upper[0],
            "flash.t_program_upper_ps": upper[1],
            "flash.t_erase_ps": drive.block_erase_latency_ps,
            "flash.bus_bytes_per_s": rate,
            "flash.t_command_ps": 95 * PS_PER_NS,
            "flash.multi_plane": True,
            "flash.cache_read": False,
            "flash.cache_program": False,
            "flash.interleave_commands": False,
            "flash.grants": "data",
            "flash.program_order": "any",
            "flash.suspend": "none" if "suspension_never_issued" in quirks else suspend,
            "flash.t_suspend_program_ps": drive.suspend_program_time_ps,
            "flash.t_suspend_erase_ps": drive.suspend_erase_time_ps,
            "flash.suspend_program_left_ps": drive.preferred_suspend_write_time_for_read_ps,
            "flash.suspend_erase_left_ps": drive.preferred_suspend_erase_time_for_read_ps,
            "ecc.decode_ps": 0,
            "ecc.encode_ps": 0,
            "frontend.command_ps": 0,
            "frontend.queue_depth": 65535,
            "frontend.fetch_limit": 0 if sata.used(drive) else drive.queue_fetch_size,
            "frontend.doorbell_bytes": 2,
            "frontend.request_bytes": READ_REQUEST,
            "frontend.entry_bytes": 72,
            "frontend.completion_bytes": 16,
            "frontend.transfer": "command",
            "link.down_bytes_per_s": drive.pcie_lane_bandwidth_bytes_per_s * drive.pcie_lane_count,
            "link.up_bytes_per_s": drive.pcie_lane_bandwidth_bytes_per_s * drive.pcie_lane_count,
            "link.latency_ps": 0,
            "link.lanes": drive.pcie_lane_count,
            "link.packet_bytes": 128,
            "link.packet_overhead_bytes": 28,
            "link.tick_ps": PS_PER_NS,
            "host.io_submit_ps": drive.sata_processing_delay_ps if sata.used(drive) else 0,
            "host.io_queue_depth": 65535,
            "host.io_block_bytes": max(drive.page_capacity_bytes, 1 << 20),
            "frontend.max_transfer_bytes": max(drive.page_capacity_bytes, 1 << 20),
            "ftl.over_provisioning": drive.overprovisioning_ratio,
            "ftl.block_unit": "plane",
            "ftl.placement": "static",
            "ftl.allocation": drive.plane_allocation_scheme,
            "ftl.write_streams": streams,
            "ftl.gc_streams": "each",
            "ftl.open_blocks": "ahead",
            "ftl.gc_policy": gc_policies.policy(drive.gc_block_selection_policy),
            "ftl.gc_low_blocks": threshold - 1,
            "ftl.gc_stop_blocks": STOP,
            "ftl.gc_hard_blocks": max(int(drive.gc_hard_threshold * drive.block_no_per_plane), 1),
            "ftl.gc_parallel": STOP,
            "ftl.gc_window_pages": 0,
            "ftl.gc_checks": "filled" if "stalled_writes" in quirks else "stalled",
            "ftl.host_order": _host_order(drive, quirks),
            "ftl.gc_priority": "background" if background else "exclusive",
            "ftl.erase": "collected",
            "ftl.wear_dynamic": drive.dynamic_wearleveling_enabled,
            "ftl.wear_static_cycles": drive.static_wearleveling_threshold
            if drive.static_wearleveling_enabled
            else 0,
            "ftl.partial_pages": "sectors",
            "ftl.unwritten": "as_written",
            "ftl.map_update": "placed",
            "ftl.victim_pages": "locked",
            "ftl.map_cache_bytes": _map_caches(drive, streams, quirks)[1],
            "ftl.map_writes": 0 if "mapping_writes" in quirks else 16,
            "ftl.map_read_bytes": 0 if drive.ideal_mapping_table else SECTOR_BYTES,
            "ftl.initial": "fresh",
            **ABSENT,
            "ftl.reservoir_fraction": 0.0,
        },
        ref="MQSim's ssdconfig.xml",
    )


def _host_order(drive: Drive, quirks: frozenset[str]) -> str:
    """Return the value of ftl.host_order, the order of host transactions on a die."""
    if drive.transaction_scheduling_policy not in RANKED:
        return "arrival"
    return "polled" if "polling" in quirks else "class"


def _more(drive: Drive, what: str) -> tuple[int, int]:
    """Return the additional times of a middle page and of an upper page compared with a lower page
    (ps), each at least 0. ``what``: "read" or "program"."""
    low, middle, upper = (
        getattr(drive, f"page_{what}_latency_{kind}_ps") for kind in ("lsb", "csb", "msb")
    )
    return max(middle - low, 0), max(upper - low, 0)


def cycles(planes: int) -> dict[int, np.ndarray]:
    """Return the times (ps) of the command and address cycles of each operation, int64[planes + 1].

    Element n is the time of a command on n planes; element 0 is 0.
    """
    numbers = np.arange(1, planes + 1)
    ns = {
        READ: 20 + 150 * numbers + 500 * (numbers - 1) + 120,
        PROGRAM: (numbers - 1) * (125 + 70 + 6 + 15 + 100 + 500) + 20 + 150 + 70 + 6 + 15 + 100,
        ERASE: 20 + numbers * (100 + 100) + (numbers - 1) * 500,
    }
    return {op: np.concatenate([[0], time * PS_PER_NS]) for op, time in ns.items()}


def prepared(drive: Drive, flows: Sequence[Flow], quirks: frozenset[str]) -> tuple[Config, Arrays]:
    """Return the configuration and the arrays of a drive that is ready to run the flows.

    The drive has one zone (address range) per stream (see sata.streams), and is filled if
    Enabled_Preconditioning is true. Raises InputError if a plane has no room for the translation
    pages.
    """
    streams = sata.streams(drive, flows)
    unused = len(flows) - len(streams)
    cfg = configuration(drive, len(streams), quirks)
    sectors = drive.page_capacity_bytes // 512
    skews = [skew(drive, flow, quirks) for flow in streams]
    pages = [
        flow.range.pages(sectors) + (inside > 0)
        for flow, inside in zip(streams, skews, strict=True)
    ]
    first = _first_pages(drive, pages, skews)
    arrays = build.build(
        cfg,
        devices=1,
        phases=1,
        pairs=len(flows),
        seed=drive.seed,
        lpns=first[-1] + pages[-1],
        destage=data_cache.sizes(drive, flows, quirks),
        adapter=drive.io_queue_depth if sata.used(drive) else 0,
        entries=0 if sata.used(drive) else drive.io_queue_depth,
        budget=outstanding(flows, sectors, quirks),
        maps=(len(streams), _map_caches(drive, len(streams), quirks)[0]),
    )
    for op, times in cycles(drive.plane_no_per_die).items():
        arrays.cycles[op, : len(times)] = times
    arrays.fifo["scale"][stages.HOST_STATIONS + stages.DRAM] = (
        0  # in MQSim only the data cache uses the DRAM
    )
    arrays.cfg["map_losses"] = (
        "lost_map_entries" in quirks and int(arrays.cfg["map_writes"][0]) == 0
    )
    arrays.lots[: gc_policies.LEAST_LOT] = mrg32k3a.start(drive.seed + 1)
    occupancy = max(flow.parameters.initial_occupancy_percentage for flow in flows) / 100
    random = drive.gc_block_selection_policy.startswith("RANDOM")
    arrays.lots[gc_policies.REPEATED_LOT] = random and "lost_drawings" not in quirks
    arrays.lots[gc_policies.LEAST_LOT] = int(occupancy * drive.page_no_per_block)
    _zones(cfg, arrays, drive, streams, pages, first)
    arrays.zone["skew"] = skews
    if "wrapped_requests" in quirks:
        for zone, flow in zip(arrays.zone, streams, strict=True):
            zone.inside = flow.range.first * 512 - zone_start(drive, flow)
            last = (
                flow.range.last
                if sata.used(drive)
                else working_set(flow.parameters, flow.range).last
            )
            zone.end_byte = (last + 1) * 512
    both = zip(streams, skews, strict=True)
    numbered = [f.range.numbered(sectors) if s else f.range.pages(sectors) for f, s in both]
    _frontiers(arrays, drive, unused, numbered)
    if drive.enabled_preconditioning:
        _filled(cfg, arrays, drive, streams, pages, quirks)
    data_cache.divide(arrays, streams)
    if "forgotten_sectors" in quirks:
        cmt.forget_sectors(arrays)
    return cfg, arrays


def _per_translation_page(drive: Drive) -> int:
    """Return the number of mapping entries per translation page."""
    entry = math.ceil((math.log2(drive.physical_pages) + drive.page_sectors) / 8)
    return drive.page_capacity_bytes // entry


def _first_pages(drive: Drive, pages: Sequence[int], skews: Sequence[int]) -> list[int]:
    """Return the number of the first logical page of each flow.

    With a cached mapping table, each flow begins at the boundary of a translation page, because
    MQSim's flows have separate translation pages. For a flow with a skew (:func:`skew`), page 0,
    which is the second of its logical pages, begins there.
    """
    step = 1 if drive.ideal_mapping_table else _per_translation_page(drive)
    first = [0]
    for of_flow, inside in zip(pages[:-1], skews[1:], strict=True):
        second = int(inside > 0)
        first.append(-(-(first[-1] + of_flow + second) // step) * step - second)
    return first


def _map_caches(drive: Drive, streams: int, quirks: frozenset[str]) -> tuple[int, int]:
    """Return the number of caches of the mapping table, which is 1 or ``streams``, and their total
    capacity in bytes.

    ``streams``: number of flows with a separate mapping table.
    """
    if drive.ideal_mapping_table:
        return 1, 0
    if drive.cmt_sharing_mode == "EQUAL_PARTITIONING":
        return streams, drive.cmt_capacity_bytes
    if "shared_map_cache" in quirks:
        return streams, streams * drive.cmt_capacity_bytes
    return 1, drive.cmt_capacity_bytes


def zone_start(drive: Drive, flow: Flow) -> int:
    """Return the offset on the drive, in bytes, of the page in which the flow begins."""
    return flow.range.base(drive.page_sectors) * 512


def skew(drive: Drive, flow: Flow, quirks: frozenset[str]) -> int:
    """Return the offset in bytes within a page at which a flow begins, for quirk pages_of_flows.

    Returns 0 without the quirk, with SATA, and for pages of more than MOST_NUMBERED sectors.
    """
    if "pages_of_flows" not in quirks or sata.used(drive) or drive.page_sectors > MOST_NUMBERED:
        return 0
    return flow.range.first * 512 % drive.page_capacity_bytes


def _filled(
    cfg: Config,
    arrays: Arrays,
    drive: Drive,
    flows: Sequence[Flow],
    pages: Sequence[int],
    quirks: frozenset[str],
) -> None:
    """Fill the drive with the pages that its flows contain before the run. The data cache treats
    these pages as programmed."""
    if not precondition.laid(arrays, cfg, drive, flows, pages, quirks):
        held = occupied(drive, flows, pages)
        free = max((cfg.ftl.gc_low_blocks + 1) // 2, STOP) + 1
        policy = {"ftl.gc_policy": STEADY[drive.gc_block_selection_policy]}
        per_stream.occupy(arrays, cfg.replace(policy, ref="MQSim"), held, free, seed=drive.seed)
    if len(arrays.recent) >= int(arrays.cfg.lpns[0]):
        arrays.recent[np.flatnonzero(arrays.l2p[0, : int(arrays.cfg.lpns[0])])] |= 1


def _zones(
    cfg: Config,
    arrays: Arrays,
    drive: Drive,
    flows: Sequence[Flow],
    pages: Sequence[int],
    first: Sequence[int],
) -> None:
    """Set the address range and the planes of each flow in ``arrays``."""
    order = arrays.turn
    channels, chips = drive.flash_channel_count, drive.chip_no_per_channel
    planes, dies = drive.plane_no_per_die, drive.die_no_per_chip
    die, plane = np.divmod(order, planes)
    way, channel = np.divmod(die, channels)
    chip, die_of_chip = np.divmod(way, dies)
    assert chip.max() < chips
    turns, at = [], 0
    zone = records(page_map.ZONE, len(flows))
    for i, flow in enumerate(flows):
        wanted = flow.parameters
        mine = np.isin(channel, wanted.channel_ids) & np.isin(chip, wanted.chip_ids)
        mine &= np.isin(die_of_chip, wanted.die_ids) & np.isin(plane, wanted.plane_ids)
        turn = order[mine]
        if flow.range.first * 512 > zone_start(drive, flow):  # its first whole page is number 0
            turn = np.roll(turn, 1)
        zone[i].first_byte = zone_start(drive, flow)
        zone[i].first_lpn, zone[i].last_lpn = first[i], first[i] + pages[i]
        zone[i].turn, zone[i].units = at, len(turn)
        zone[i].rank = CLASSES.index(wanted.priority_class)
        turns.append(turn)
        at += len(turn)
    arrays.turn = np.ascontiguousarray(np.concatenate(turns), np.int32)
    arrays.zone = zone


def _frontiers(arrays: Arrays, drive: Drive, unused: int, pages: Sequence[int]) -> None:
    """Open three blocks of each stream in every plane: one for host writes, one for translation
    pages, and one for garbage collection.

    For each of ``unused`` flows without a stream, three further blocks per plane are reserved and
    stay empty. With a cached mapping table, the full translation pages of each stream are written;
    without one, the blocks that they would fill are reserved.
    """
    streams = len(pages)
    per_page = _per_translation_page(drive)
    units, blocks = arrays.free.shape
    held = np.zeros((streams, units), np.int64)  # translation pages of each stream in each plane
    for i, zone in enumerate(arrays.zone):
        laid = np.arange(pages[i] // per_page) + int(zone.skew > 0)
        at = arrays.turn[int(zone.turn) + laid % int(zone.units)]
        np.add.at(held[i], at, 1)
    mapped = int(arrays.cfg.map_stream[0])
    for unit in range(units):
        opened: list[int | None] = []
        for i in range(streams):
            opened += [i, mapped + i if mapped >= 0 else None, streams + i]
        opened += [None] * (3 * unused)
        if mapped < 0:  # those that are full of translation pages
            opened += [None] * int((held[:, unit] // drive.page_no_per_block).sum())
        for b, stream in enumerate(opened):
            block = arrays.block[unit * blocks + b]
            block.state = page_map.BAD if stream is None else page_map.OPEN
            block.stream = -1 if stream is None else stream
            if stream is not None:
                arrays.front[stream, unit].block = b
        arrays.free[unit, : blocks - len(opened)] = np.arange(len(opened), blocks)
        arrays.pool[unit].free_n = blocks - len(opened)
    if mapped >= 0:
        for i, zone in enumerate(arrays.zone):
            whole = pages[i] // per_page * per_page  # a last one that is not full is not laid down
            begin = int(zone.first_lpn) + int(zone.skew > 0)
            if cmt.fill_translation_pages(arrays.handle(), 0, begin, whole):
                raise drive.bad(
                    "block_no_per_plane", "there is no room for translation pages; use more blocks"
                )
        whole_pages(arrays, np.flatnonzero(arrays.l2p[0]))
    fronts: Any = arrays.front
    assert (fronts["block"] >= 0).all()


def simulate(
    drive: Drive,
    flows: Sequence[Flow],
    quirks: frozenset[str],
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Simulate the flows on the drive. ``quirks``: names of the quirks to reproduce.

    ``progress``: function that is called with the number of completed requests and the clock in ps.
    """
    done, device = watched(drive, flows, quirks, progress)
    return Run(
        requests=done.requests,
        counters=counters(done.counters),
        half=half(done),
        warmed_s=done.warmed_s,
        unserved=tuple(done.unserved),
        device=device,
    )


def played(
    drive: Drive,
    flows: Sequence[Flow],
    quirks: frozenset[str],
    progress: Callable[[int, int], None] | None = None,
) -> Replayed:
    """Simulate the flows on the drive and return the full result of the player (Replayed)."""
    return watched(drive, flows, quirks, progress)[0]


def watched(
    drive: Drive,
    flows: Sequence[Flow],
    quirks: frozenset[str],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Replayed, DeviceStatistics]:
    """Simulate the flows on the drive. Return the player's result (Replayed) and the drive's
    statistics."""
    cfg, arrays = prepared(drive, flows, quirks)
    scheduler_statistics.watch(arrays, Geometry.of(cfg), len(arrays.zone))
    if "event_order" in quirks and not int(arrays.cfg["overlap"][0]):
        event_order.watch(arrays)
    sources = [
        Source(
            chunks=flow.chunks(),
            depth=flow.depth if flow.depth is not None else MOST_REQUESTS,
            closed=flow.depth is not None,
            start_ps=ISSUE_PS if flow.depth is not None else 0,
            stop_ps=flow.stop_ps if flow.stop_ps is not None else 1 << 61,
            stream=0 if sata.used(drive) else i,
        )
        for i, flow in enumerate(flows)
    ]
    # Of simultaneous events, the event of the flow that comes first in this order is the first.
    last_first = list(range(len(flows)))[::-1]
    by_table = "start_order" in quirks
    order = start_order(drive, flows, flows[0].scenario) if by_table else last_first
    done = Player(arrays, cfg, [sources[i] for i in order]).run(
        half_way(flows), progress, may_stall=bool(STALLS & quirks)
    )
    device = device_statistics.read(arrays, drive.flash_channel_count, int(arrays.reg.now[0]))
    at = [order.index(i) for i in range(len(flows))]
    done.requests[:] = [done.requests[i] for i in at]
    done.unserved[:] = [done.unserved[i] for i in at]
    return done, device
