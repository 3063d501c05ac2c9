"""Random draws of the pages of a synthetic flow that hold data before the run, as in MQSim.

Owns the draws. Does not own the handling of flows for which draws do not suffice
(initial_occupancy.py), the generator of requests (synthetic_flow.py) or the placement of the pages
(precondition_blocks.py).
Source: MQSim's preconditioning: the flow's own generators, started from their seeds, up to one
sector before the end of the flow's working set, until the wanted number of pages has been touched;
hot pages in order, where all hot pages are wanted.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.nvme.request import MAX_CHUNK, REQUEST
from ondie.emu.replay.mqsim import mrg32k3a, synthetic_flow
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.workload_xml import Synthetic

I64 = npt.NDArray[np.int64]
MOST_HOT = 0.3
"""Share of the hot region above which addresses are treated as uniform."""
CROWDED = 1.1
"""Least ratio of the pages of a range to the wanted pages at which pages are drawn.

With fewer pages in the range, drawing takes too long.
"""


def distribution(parameters: Synthetic) -> str:
    """Return the address distribution that preconditioning assumes for the flow."""
    if (
        parameters.address_distribution == "RANDOM_HOTCOLD"
        and parameters.percentage_of_hot_region > 100 * MOST_HOT
    ):
        return "RANDOM_UNIFORM"
    return parameters.address_distribution


@dataclasses.dataclass
class _Space:
    """Range of sectors from which addresses are drawn.

    ``first``, ``last``: sectors. ``page``: sectors of a page.
    """

    first: int
    last: int
    page: int
    beyond: int = 1
    """Number of pages at the end of the range that are not counted as available."""

    @property
    def base(self) -> int:
        return self.first // self.page

    @property
    def top(self) -> int:
        return self.last // self.page - self.beyond

    def widened(self, share: float) -> None:
        """Extend the range to all addresses of the flow.

        ``share``: the working set as a share of these addresses.
        """
        self.last = self.first + int(float(self.last - self.first) / share)
        self.beyond = 0


def touched(flow: Flow, parameters: Synthetic, page: int, wanted: int) -> I64 | None:
    """Return the logical pages that a flow holds before the run, ascending, numbered from 0.

    ``page``: sectors of a page. ``wanted``: number of pages; a few more are returned if the last
    request covers several. None if ``wanted`` is nearly all pages of the range.
    """
    shape = synthetic_flow.shape_of(flow.stream, parameters, flow.range, frozenset(), flow.name)
    header = shape[0]
    unit = int(header["unit"])
    space = _Space(-(-int(header["first"]) // unit) * unit, int(header["last"]) - 1, page)
    share = parameters.working_set_percentage / 100
    kind = distribution(parameters)
    hot_last = space.first + int(
        float(space.last - space.first) * parameters.percentage_of_hot_region / 100
    )
    hot_top = hot_last // page - 1
    whole = False
    if kind == "RANDOM_HOTCOLD":
        whole = hot_top - space.base < wanted
        if space.top - hot_top < CROWDED * (wanted - (hot_top - space.base)):
            space.widened(share)
            if space.top - hot_top < CROWDED * (wanted - (hot_top - space.base)):
                return None
    elif kind == "STREAMING":
        if space.top - space.base < wanted:
            space.widened(share)
            wanted = min(wanted, space.top - space.base + 1)
    elif space.top - space.base < CROWDED * wanted:
        space.widened(share)
        if space.top - space.base < CROWDED * wanted:
            return None
    header["first"], header["last"], header["end"], header["hot_last"] = (
        space.first,
        space.last,
        1 << 62,
        hot_last,
    )
    header["distribution"] = synthetic_flow.DISTRIBUTIONS[kind]
    return _pages(shape, parameters, page, wanted, whole)


def _pages(shape: np.ndarray, parameters: Synthetic, page: int, wanted: int, hot: bool) -> I64:
    """Return the pages that generated requests touch, until at least ``wanted`` pages are found.

    ``hot``: take all hot pages in order and draw only the cold ones.
    """
    header = shape[0]
    first = int(header["first"])
    rng, spare = synthetic_flow.generators(parameters), np.zeros(1)
    if header["distribution"] == synthetic_flow.STREAMING:
        header["next"] = first + int(
            mrg32k3a.below(rng[synthetic_flow.ADDRESS], int(header["last"]) - first + 1)
        )
    found: I64 = np.zeros(0, np.int64)
    if hot:
        starts = np.arange(
            first, int(header["hot_last"]) + 1 + int(header["mean_size"]), int(header["mean_size"])
        )
        starts -= starts % int(header["unit"])
        found = _until(
            found, starts - first, np.full(len(starts), int(header["mean_size"])), page, wanted
        )
        header["hot_share"] = 2.0  # draw only cold addresses from now on
    out = np.zeros(min(MAX_CHUNK, max(wanted, 1)), REQUEST)
    while len(found) < wanted:
        synthetic_flow.fill(out, shape, rng, spare)
        found = _until(
            found, out["offset"] // SECTOR_BYTES - first, out["size"] // SECTOR_BYTES, page, wanted
        )
    return found


def _until(found: I64, start: I64, size: I64, page: int, wanted: int) -> I64:
    """Return the pages ``found`` and those of further requests, until ``wanted`` pages are reached.

    The pages of the request that reaches ``wanted`` are all included. ``start``, ``size``: sectors
    of the requests, counted from the first sector of the range.
    """
    low = start // page
    count = (start + size - 1) // page - low + 1
    rows = np.repeat(np.arange(len(start)), count)
    lpn = low[rows] + np.arange(len(rows)) - (np.cumsum(count) - count)[rows]
    new, at = np.unique(lpn, return_index=True)
    fresh = np.sort(at[~np.isin(new, found)])
    missing = wanted - len(found)
    if len(fresh) >= missing:
        last = rows[fresh[missing - 1]]
        fresh = fresh[rows[fresh] <= last]
    return np.union1d(found, lpn[fresh])
