"""Initial_Occupancy_Percentage: the pages of a flow that contain data before the run.

Owns the selection of pages and the frequency of their writes. Does not own the resulting flash
state (ftl/precondition/per_stream.py).
Source: MQSim's preconditioning: the pages that the flow's requests touch first, up to the required
number. For a trace, read pages are taken before pages that are only written. Missing pages are
chosen at random.

This module is used for flows that precondition.py cannot place as MQSim does: traces, and flows
that occupy nearly all of their pages. MQSim fills only nine tenths of the pages of such flows; this
module fills the required number of pages.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ondie.emu.ftl.precondition.per_stream import Occupied
from ondie.emu.ftl.precondition.steady_state import Region
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.synthetic_flow import synthetic_flow
from ondie.emu.replay.mqsim.workload_xml import Synthetic

I64 = npt.NDArray[np.int64]
CROWDED = 1.1
"""Minimum ratio of the pages in a range to the required pages for which the required pages are
drawn at random. With a lower ratio, the draws would take too long."""


def occupied(drive: Drive, flows: Sequence[Flow], pages: Sequence[int]) -> list[Occupied]:
    """Return the logical pages that each flow occupies before the run.

    ``pages``: number of logical pages of each flow. The pages of a flow are numbered from 0.
    """
    return [
        _of_flow(drive, flow, flow_pages) for flow, flow_pages in zip(flows, pages, strict=True)
    ]


def _of_flow(drive: Drive, flow: Flow, pages: int) -> Occupied:
    wanted = int(flow.parameters.initial_occupancy_percentage / 100 * pages)
    rng = np.random.default_rng((drive.seed, flow.stream))
    if isinstance(flow.parameters, Synthetic):
        return _synthetic(flow, flow.parameters, drive.page_capacity_bytes, pages, wanted, rng)
    lpns = _touched(flow, drive.page_capacity_bytes, pages, wanted)
    return Occupied(_filled_up(lpns, pages, wanted, rng))


def _synthetic(
    flow: Flow, parameters: Synthetic, page: int, pages: int, wanted: int, rng: np.random.Generator
) -> Occupied:
    room = math.ceil(pages * parameters.working_set_percentage / 100)
    sequential = parameters.address_distribution == "STREAMING"
    if room < wanted * (1.0 if sequential else CROWDED):
        parameters = dataclasses.replace(parameters, working_set_percentage=100)
        room = pages
    if room < wanted * CROWDED and not sequential:
        lpns: I64 = np.sort(rng.permutation(pages)[:wanted])
    else:  # without an end
        parameters = dataclasses.replace(
            parameters, synthetic_generator_type="QUEUE_DEPTH", stop_time_ps=1
        )
        endless = synthetic_flow(flow.stream, parameters, flow.range, frozenset(), flow.name)
        lpns = _filled_up(_touched(endless, page, pages, wanted), pages, wanted, rng)
    if parameters.address_distribution == "RANDOM_HOTCOLD" and len(lpns):
        return Occupied(lpns, _hot_and_cold(lpns, room, parameters.percentage_of_hot_region / 100))
    return Occupied(lpns, sequential=sequential)


def _hot_and_cold(lpns: I64, room: int, hot: float) -> tuple[Region, ...]:
    """Return the hot and the cold region of the occupied pages ``lpns``, int64[n].

    The fraction 1 - ``hot`` of the writes goes to the first ``hot`` x ``room`` pages.
    """
    share = float((lpns < room * hot).mean())
    if not 0 < share < 1:
        return (Region(1.0, 1.0),)
    return Region(share, 1 - hot), Region(1 - share, hot)


def _touched(flow: Flow, page: int, pages: int, wanted: int) -> I64:
    """Return the first ``wanted`` distinct pages that the flow's requests touch, in ascending
    order, int64[at most wanted].

    ``page``: bytes per page. ``pages``: number of pages of the flow. For a flow with a known number
    of requests (a trace), read pages are preferred to pages that are only written.
    """
    base = flow.range.base(page // 512) * 512
    seen = np.zeros(pages, np.bool_)
    read = np.zeros(pages, np.bool_)
    count = 0
    for chunk in flow.chunks():
        begin, size = chunk["offset"] - base, chunk["size"]
        first = begin // page
        n = (begin + size - 1) // page - first + 1
        rows = np.repeat(np.arange(len(chunk)), n)
        lpn = first[rows] + np.arange(len(rows)) - (np.cumsum(n) - n)[rows]
        new = np.unique(lpn[~seen[lpn]])
        if flow.total is None and count + len(new) >= wanted:
            order = np.sort(np.unique(lpn, return_index=True)[1])
            fresh = lpn[order][~seen[lpn[order]]]
            seen[fresh[: wanted - count]] = True
            return np.flatnonzero(seen)
        seen[new] = True
        read[lpn[chunk["op"][rows] == 0]] = True
        count += len(new)
    first_read = np.argsort(~read[np.flatnonzero(seen)], kind="stable")
    return np.sort(np.flatnonzero(seen)[first_read][:wanted])


def _filled_up(lpns: I64, pages: int, wanted: int, rng: np.random.Generator) -> I64:
    """Return ``wanted`` pages in ascending order: ``lpns`` and further random pages below
    ``pages``."""
    if len(lpns) >= wanted:
        return lpns
    others = np.setdiff1d(np.arange(pages), lpns)
    return np.sort(np.concatenate([lpns, rng.permutation(others)[: wanted - len(lpns)]]))
