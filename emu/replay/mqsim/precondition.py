"""Enabled_Preconditioning: initial contents of a drive, placed as MQSim places them.

Owns the decision whether the flows can be placed in this way, and their order. Does not own the
draws (precondition_draws.py), the distributions (precondition_blocks.py), the steady state of
initial_occupancy.py, which is used if MQSim cannot fill the drive as configured, or the entries of
the mapping cache (map_warm_up.py).
Source: MQSim's preconditioning. Quirks reproduced: nine_tenths, one_sector, preconditioning,
warm_map.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.ftl.precondition.apply import whole_pages
from ondie.emu.replay.mqsim import map_warm_up, precondition_blocks
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.precondition_draws import distribution, touched
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.workload_xml import Synthetic


def laid(
    arrays: Arrays,
    cfg: Config,
    drive: Drive,
    flows: Sequence[Flow],
    pages: Sequence[int],
    quirks: frozenset[str],
) -> bool:
    """Place the pages that the flows occupy before the run, as MQSim does; return True on success.

    ``pages``: number of logical pages of each flow. ``quirks``: names of the quirks to reproduce.
    Returns False, without any change, if a flow is a trace, if a flow occupies nearly all of its
    pages or more pages than fit, or if too few blocks would stay free for host writes (with the
    quirk preconditioning, if no block would stay free).
    """
    found: list[tuple[Synthetic, np.ndarray]] = []
    orders: list[np.ndarray] = []
    warm = "warm_map" in quirks and not drive.ideal_mapping_table
    page = drive.page_capacity_bytes // SECTOR_BYTES
    for i, (flow, flow_pages) in enumerate(zip(flows, pages, strict=True)):
        parameters = flow.parameters
        if not isinstance(parameters, Synthetic):
            return _nothing(arrays)
        first = int(arrays.zone["first_lpn"][i])
        sectors = arrays.sectors[0, first : first + flow_pages]
        skew = int(arrays.zone["skew"][i]) // SECTOR_BYTES
        held = flow.range.numbered(page) if skew else flow_pages
        wanted = int(parameters.initial_occupancy_percentage / 100 * held)
        order = np.zeros(flow_pages + 1 if warm else 0, np.int64)
        if not touched(flow, parameters, page, wanted, sectors, quirks, skew, order):
            return _nothing(arrays)
        orders.append(order[1 : 1 + order[0]] if warm else order)
        found.append((parameters, np.flatnonzero(sectors)))
    planes: list[precondition_blocks.Plane] = []
    listed = Counter(plane for flow in flows for plane in flow.parameters.planes)
    most = max(flow.parameters.initial_occupancy_percentage for flow in flows) / 100
    for i, (parameters, lpns) in enumerate(found):
        if not len(lpns):
            continue
        part = 1.0 / max(listed[plane] for plane in parameters.planes)
        share = _share(drive, cfg, parameters, most)
        mine = (
            None
            if share is None
            else precondition_blocks.planned(arrays, cfg, i, lpns, share, part)
        )
        if mine is None:
            return _nothing(arrays)
        planes += mine
    taken = np.zeros(len(arrays.pool), np.int64)
    for plane in planes:
        taken[plane.unit] += len(plane.valid)
    least = 1 if "preconditioning" in quirks else max(cfg.ftl.gc_stop_blocks, 1)
    if (arrays.pool.free_n - taken < least).any():
        return _nothing(arrays)
    for plane in planes:
        precondition_blocks.lay(arrays, cfg, plane)
    host = int(arrays.cfg.lpns[0])
    marked = np.flatnonzero(arrays.sectors[0, :host])
    held = arrays.l2p[0, marked] != 0
    arrays.sectors[0, marked[~held]] = 0  # pages without room in their plane
    if "one_sector" not in quirks:
        whole_pages(arrays, marked[held])
    if warm:
        map_warm_up.fill(arrays, drive, flows, orders)
    return True


def _nothing(arrays: Arrays) -> bool:
    """Clear the marks of written sectors and return False."""
    marked = np.flatnonzero(arrays.sectors[0, : int(arrays.cfg.lpns[0])])
    arrays.sectors[0, marked] = 0
    return False


def _share(
    drive: Drive, cfg: Config, parameters: Synthetic, most: float
) -> precondition_blocks.F64 | None:
    """Return the fraction of blocks with 0, 1, ... valid pages for a flow, float64[pages per block
    + 1], or None if the model has no solution.

    The distribution depends on the flow's addresses and on the drive's victim selection policy.
    ``most``: largest occupancy of all flows, 0 to 1.
    """
    fill = parameters.initial_occupancy_percentage / 100 * (1 - drive.overprovisioning_ratio)
    low, blocks = cfg.ftl.gc_low_blocks + 1, drive.block_no_per_plane
    kind = distribution(parameters)
    if kind == "STREAMING":
        return precondition_blocks.in_order(drive.page_no_per_block, fill / (1 - low / blocks))
    policy = drive.gc_block_selection_policy
    share = precondition_blocks.uniform(policy, drive.page_no_per_block, blocks, fill, low, most)
    if share is not None and kind == "RANDOM_HOTCOLD":
        return precondition_blocks.stretched(share, parameters.percentage_of_hot_region / 100)
    return share
