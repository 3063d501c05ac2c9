"""Random selection, as in MQSim, of the pages that contain data when a synthetic flow starts.

Owns the draws. Does not own the handling of flows for which draws do not suffice
(initial_occupancy.py), the generator of requests (synthetic_flow.py) or the placement of the pages
(precondition_blocks.py).
Source: MQSim's preconditioning. It draws requests from the flow's generators, started from their
seeds, until they have touched the required number of pages. Addresses end one sector before the end
of the flow's working set. If all hot pages are required, they are taken in order without draws.
Quirks reproduced: nine_tenths, one_sector.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.nvme.request import MAX_CHUNK, REQUEST
from ondie.emu.nvme.request_pieces import MASK_SECTORS
from ondie.emu.replay.mqsim import mrg32k3a, synthetic_flow
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.workload_xml import Synthetic
from ondie.kernels.jit import njit

I64 = npt.NDArray[np.int64]
MOST_HOT = 0.3
"""Fraction of hot addresses above which preconditioning treats the addresses of a flow as
uniform."""
CROWDED = 1.1
"""The required pages are drawn at random only if the range has at least CROWDED times as many
pages. With fewer pages, the draws would take too long."""
MOST_FILLED = 0.9
"""Fraction of the pages of a range that MQSim fills if the ratio of the pages in the range to the
required pages is below CROWDED."""


def distribution(parameters: Synthetic) -> str:
    """Return the address distribution that MQSim's preconditioning assumes for the flow."""
    if (
        parameters.address_distribution == "RANDOM_HOTCOLD"
        and parameters.percentage_of_hot_region > 100 * MOST_HOT
    ):
        return "RANDOM_UNIFORM"
    return parameters.address_distribution


@dataclasses.dataclass
class _Space:
    """Range of sectors of a flow from which addresses are drawn.

    ``first``, ``last``: first and last sector. ``page``: number of sectors per page.
    """

    first: int
    last: int
    page: int
    beyond: int = 1
    """Number of pages at the end of the range that do not count as available for draws."""

    @property
    def base(self) -> int:
        """Number of the first page of the range, counted from the start of the drive."""
        return self.first // self.page

    @property
    def top(self) -> int:
        """Number of the last available page of the range."""
        return self.last // self.page - self.beyond

    def widened(self, share: float) -> None:
        """Extend the range to all addresses of the flow.

        ``share``: size of the working set as a fraction of these addresses.
        """
        self.last = self.first + int(float(self.last - self.first) / share)
        self.beyond = 0


def touched(
    flow: Flow,
    parameters: Synthetic,
    page: int,
    wanted: int,
    sectors: I64,
    quirks: frozenset[str],
    skew: int = 0,
    order: I64 | None = None,
) -> bool:
    """Draw the logical pages of a flow that contain data before the run, and mark their sectors.

    ``page``: sectors per page. ``wanted``: number of pages; a few more are marked if the last
    request covers several pages, and fewer if the range of a stream has fewer pages. ``sectors``:
    int64[pages of the flow], initially 0; bit i of an element marks sector i of the page. As in
    MQSim, each request marks only its first sector in every page that it touches. Page 0 contains
    the first sector of the flow; with the quirk one_sector, page 0 begins at the first aligned
    sector of the flow. ``skew``: offset within a page at which the flow begins, in sectors, if the
    flow numbers its pages from its first sector (request_pieces.py); otherwise 0. ``order``:
    int64[pages of the flow + 1] that receives the number of marked pages, then the pages in the
    order of their marks, each times 2, plus 1 for a hot page; None if the order is not needed.

    Returns False, with nothing marked, if ``wanted`` is nearly all pages of the range. With the
    quirk nine_tenths, nine tenths of the range are marked instead.
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
    begin = space.last - space.first + 1  # a stream begins in the range before it is widened
    if kind == "RANDOM_HOTCOLD":
        whole = hot_top - space.base < wanted
        if space.top - hot_top < CROWDED * (wanted - (hot_top - space.base)):
            space.widened(share)
            if space.top - hot_top < CROWDED * (wanted - (hot_top - space.base)):
                return False
    elif kind == "STREAMING":
        if space.top - space.base < wanted:
            space.widened(share)
            wanted = min(wanted, space.top - space.base + 1)
    elif space.top - space.base < CROWDED * wanted:
        space.widened(share)
        if space.top - space.base < CROWDED * wanted:
            if "nine_tenths" not in quirks:
                return False
            wanted = int(float(space.top - space.base) * MOST_FILLED)
    header["first"], header["last"], header["end"], header["hot_last"] = (
        space.first,
        space.last,
        1 << 62,
        hot_last,
    )
    header["distribution"] = synthetic_flow.DISTRIBUTIONS[kind]
    header["next"] = begin
    start = flow.range.base(page)
    if "one_sector" in quirks:
        start += space.first - flow.range.first - (page - skew if skew else 0)
    hot_end = space.first - 1 if kind != "RANDOM_HOTCOLD" else hot_last
    order = np.zeros(0, np.int64) if order is None else order
    _draw(shape, parameters, wanted, whole, _Pages(page, start, skew, sectors, hot_end, order))
    return True


@dataclasses.dataclass(frozen=True)
class _Pages:
    """Pages of a flow: sectors per page, sector at which page 0 begins, last sector of the hot
    addresses, and the arguments ``skew``, ``sectors`` and ``order`` of :func:`touched`."""

    sectors_of_page: int
    start: int
    skew: int
    sectors: I64
    hot_end: int
    order: I64

    def mark(self, requests: np.ndarray, count: int, wanted: int) -> int:
        """Mark the sectors of ``requests``, REQUEST[n]; return the number of marked pages.

        Calls the module's function :func:`mark`, which describes the arguments.
        """
        page = self.sectors_of_page
        before = int(np.count_nonzero(self.sectors)) if len(self.order) else 0
        found = mark(
            self.sectors, requests, self.start, page, self.skew, count, wanted, self.order,
            self.hot_end, before,
        )  # fmt: skip
        return int(found)


def _draw(shape: np.ndarray, parameters: Synthetic, wanted: int, hot: bool, pages: _Pages) -> None:
    """Mark the pages that generated requests touch, until ``wanted`` pages are marked.

    A stream begins in the first ``shape["next"]`` sectors of the range. ``hot``: True to take all
    hot pages in order and to draw only cold pages.
    """
    header = shape[0]
    first = int(header["first"])
    rng, spare = synthetic_flow.generators(parameters), np.zeros(1)
    if header["distribution"] == synthetic_flow.STREAMING:
        begin = mrg32k3a.below(rng[synthetic_flow.ADDRESS], int(header["next"]))
        header["next"] = first + int(begin)
    count = 0
    out = np.zeros(min(MAX_CHUNK, max(wanted, 1)), REQUEST)
    if hot:
        count = _mark_hot(shape, rng, spare, wanted, pages)
        header["hot_share"] = 2.0  # draw only cold addresses from now on
    unit = int(header["unit"])
    if header["distribution"] == synthetic_flow.HOTCOLD:
        header["unit"] = 1
    while count < wanted:
        synthetic_flow.fill(out, shape, rng, spare)
        if header["distribution"] == synthetic_flow.HOTCOLD:
            _inside(out, int(header["hot_last"]), int(header["last"]), unit)
        count = pages.mark(out, count, wanted)


def _inside(requests: np.ndarray, hot_last: int, last: int, unit: int) -> None:
    """Move cold requests that reach sector ``last`` to the first cold sector, then align all
    requests.

    ``requests``: REQUEST[n]. ``hot_last``: last hot sector. ``unit``: alignment in sectors. MQSim
    moves such requests in its preconditioning, but not in its flows.
    """
    begins = requests["offset"] // SECTOR_BYTES
    sectors = requests["size"] // SECTOR_BYTES
    ends = begins + sectors
    begins[(begins > hot_last) & (ends > last)] = hot_last + 1
    requests["offset"] = (begins - begins % unit) * SECTOR_BYTES


def _mark_hot(
    shape: np.ndarray, rng: I64, spare: npt.NDArray[np.float64], wanted: int, pages: _Pages
) -> int:
    """Mark the hot pages in order until ``wanted`` pages are marked; return the number of pages.

    The sizes of the requests are drawn; each request begins at the end of the previous request,
    aligned down. The last request begins after the hot addresses.
    """
    header = shape[0]
    unit, hot_last = int(header["unit"]), int(header["hot_last"])
    run = shape.copy()
    run["distribution"], run["unit"] = synthetic_flow.STREAMING, 1
    run["next"], run["last"] = header["first"], 1 << 61
    out = np.zeros(min(MAX_CHUNK, max(wanted, 1)), REQUEST)
    begin = count = 0
    while count < wanted and begin <= hot_last:
        saved = run.copy(), rng.copy(), spare.copy()
        synthetic_flow.fill(out, run, rng, spare)
        begins = out["offset"] // SECTOR_BYTES
        used = 1 + int(np.count_nonzero(begins[:-1] <= hot_last))
        if used < len(out):  # the sizes of the others are those of cold addresses
            run, rng[:], spare[:] = saved
            out = out[:used]
            synthetic_flow.fill(out, run, rng, spare)
        begin = int(begins[used - 1])
        out["offset"] -= begins[:used] % unit * SECTOR_BYTES
        count = pages.mark(out, count, wanted)
    return count


@njit
def mark(sectors, requests, first, page, skew, count, wanted, order, hot_end, marked):
    """Mark the sectors of requests until ``wanted`` pages are marked. Return the number of marked
    pages.

    ``sectors``: bit mask of the marked sectors of each page. ``requests``: REQUEST[n]. ``first``:
    sector at which page 0 begins. ``page``: sectors per page. ``skew``: if above 0, the last
    ``skew`` sectors of a page use the lowest bits of its mask, from bit 0, and the other sectors
    use the highest bits, up to bit MASK_SECTORS - 1. ``count``: number of marked pages before the
    call. All pages of the last request are marked. Pages beyond the end of ``sectors`` are counted,
    but not marked. ``order``: see :func:`touched`; empty if the order is not needed. ``hot_end``:
    last sector of the hot addresses. ``marked``: number of pages in ``order`` before the call.
    """
    for i in range(requests.shape[0]):
        if count >= wanted:
            return count
        at = requests[i]["offset"] // SECTOR_BYTES - first
        hot = int(at + first <= hot_end)
        left = requests[i]["size"] // SECTOR_BYTES
        while left > 0:
            lpn = at // page
            inside = at - lpn * page
            part = min(page - inside, left)
            if lpn >= sectors.shape[0]:
                count += 1
            else:
                bit = inside
                if skew > 0:
                    bit = inside + skew - page
                    bit += MASK_SECTORS if bit < 0 else 0
                if sectors[lpn] == 0:
                    count += 1
                    if order.shape[0] > 0:
                        marked += 1
                        order[0] = marked
                        order[marked] = 2 * lpn + hot
                sectors[lpn] |= 1 << bit
            at += part
            left -= part
    return count
