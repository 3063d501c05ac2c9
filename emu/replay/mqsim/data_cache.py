"""Configuration of MQSim's data cache: sizes, and the types of requests that each flow caches.

Owns the interpretation of Data_Cache_* and Device_Level_Data_Caching_Mode. Does not own the cache
(nvme/mqsim_cache.py).
Source: MQSim's source.
"""

from __future__ import annotations

from collections.abc import Sequence

from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.nvme import mqsim_cache
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.ssdconfig import Drive

NS_PER_S = 10**9
PS_PER_NS = 1000
KEPT = {
    "TURNED_OFF": 0,
    "READ_CACHE": mqsim_cache.READS,
    "WRITE_CACHE": mqsim_cache.WRITES,
    "WRITE_READ_CACHE": mqsim_cache.READS | mqsim_cache.WRITES,
}
"""Bits of ``zone.caching`` (READS, WRITES) for each value of Device_Level_Data_Caching_Mode."""


def sizes(
    drive: Drive, flows: Sequence[Flow], quirks: frozenset[str] = frozenset()
) -> mqsim_cache.Sizes | None:
    """Return the sizes of the data cache, or of each flow's cache if the cache is partitioned, or
    None if no flow uses the cache. ``quirks``: names of the quirks to reproduce."""
    if not any(KEPT[flow.parameters.device_level_data_caching_mode] for flow in flows):
        return None
    groups = len(flows) if drive.data_cache_sharing_mode == "EQUAL_PARTITIONING" else 1
    return mqsim_cache.Sizes(
        pages=drive.data_cache_capacity_bytes // drive.page_capacity_bytes // groups,
        groups=groups,
        limit=drive.planes * drive.page_capacity_bytes // SECTOR_BYTES,
        row=drive.data_cache_dram_row_size_bytes,
        burst=drive.data_cache_dram_data_burst_size_bytes,
        transfer_ns=NS_PER_S / drive.data_cache_dram_data_rate_hz,
        open_ps=drive.data_cache_dram_trcd_ps + drive.data_cache_dram_tcl_ps,
        close_ns=drive.data_cache_dram_trp_ps / PS_PER_NS,
        strays="evicted_pages" in quirks,
        unwritten="unwritten_slot" in quirks,
    )


def divide(arrays: Arrays, flows: Sequence[Flow]) -> None:
    """If the drive has a data cache, set the caching mode and the number of the cache of each flow
    in ``arrays``.

    Also mark all pages that contain data at the start as programmed.
    """
    if arrays.cfg["cache"][0] == 0:
        return
    groups = len(arrays.cache)
    for i, flow in enumerate(flows):
        zone = arrays.zone[i]
        zone.caching = KEPT[flow.parameters.device_level_data_caching_mode]
        zone.group = i if groups > 1 else 0
        zone.memory = 1
    arrays.recent[:] = arrays.l2p[0, : len(arrays.recent)] != 0
