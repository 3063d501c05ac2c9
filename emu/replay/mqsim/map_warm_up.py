"""Entries of the cached mapping table (CMT) before the run, as MQSim's preconditioning leaves them.

Owns the number of entries of each flow and their order. Does not own the pages that the flows
contain (precondition_draws.py) or the table (ftl/cmt.py).
Source: MQSim's preconditioning. With EQUAL_PARTITIONING of the cache, each flow gets an equal share
of the entries, but at most one entry per page of its working set. Otherwise, its share is
proportional to its expected rate. The order of the entries depends on the flow's addresses. Hot and
cold addresses: hot pages before cold pages. Uniform addresses: every n-th page in the order of the
draws, with a random n. Stream: page 0, then the pages in descending order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import cached_entries, cmt
from ondie.emu.replay.mqsim import mrg32k3a, synthetic_flow
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.precondition_draws import distribution
from ondie.emu.replay.mqsim.ssdconfig import Drive, map_entries
from ondie.emu.replay.mqsim.workload_xml import Synthetic
from ondie.kernels.jit import njit

I64 = npt.NDArray[np.int64]
NS_PER_S = 10**9
PS_PER_NS = 1000


def fill(arrays: Arrays, drive: Drive, flows: Sequence[Flow], orders: Sequence[I64]) -> None:
    """Insert the mapping entries that MQSim's preconditioning leaves for each flow into the cached
    mapping tables.

    ``orders``: for each flow, its pages in the order in which preconditioning touched them,
    int64[n]; an element is twice the number of the page within the flow, plus 1 if the page is hot.
    """
    known = [flow.parameters for flow in flows if isinstance(flow.parameters, Synthetic)]
    rates = [_rate(drive, parameters) for parameters in known]
    rng = mrg32k3a.start(drive.seed)
    entries = map_entries(drive)
    for i, (parameters, order) in enumerate(zip(known, orders, strict=True)):
        pages = _pages(drive, flows[i], parameters)
        if drive.cmt_sharing_mode == "EQUAL_PARTITIONING":
            wanted = min(int(1.0 / len(flows) * entries), pages)
        else:
            wanted = int(rates[i] / sum(rates) * entries)
        first = int(arrays.zone["first_lpn"][i]) + int(arrays.zone["skew"][i] > 0)
        order = order - 2 * int(arrays.zone["skew"][i] > 0)  # MQSim's page 0 is the second one
        if distribution(parameters) != "STREAMING":  # only the pages of the working set
            order = order[order >> 1 < pages]
        lpns = first + chosen(parameters, order, wanted, rng)
        insert_all(arrays.handle(), lpns[arrays.l2p[0, lpns] != 0])


def chosen(parameters: Synthetic, order: I64, wanted: int, rng: I64) -> I64:
    """Return the pages of a flow that have a cached mapping entry at the start of the run, in the
    order of insertion into the cache, int64[n].

    ``order``: see :func:`fill`. ``wanted``: number of entries. ``rng``: state of the drive's
    generator.
    """
    kind = distribution(parameters)
    pages, hot = order >> 1, (order & 1).astype(bool)
    if kind == "STREAMING":
        pages = np.sort(pages)[::-1]
        return (np.roll(pages, 1) if len(pages) and pages[-1] == 0 else pages)[:wanted]
    if kind == "RANDOM_HOTCOLD":
        cold = np.flatnonzero(~hot)
        boundary = next((int(at) for at in cold if at > 0), 0)
        pages = np.concatenate([pages[hot], pages[~hot]])
        most_hot = int(parameters.percentage_of_hot_region / 100 * wanted)
        held = min(most_hot, boundary)
        more = max(wanted - 2 * held, 0)
        return np.concatenate([pages[:held], pages[held + boundary :][:more]])
    if len(pages) < 2 or wanted == 0:
        return pages[:wanted]
    walker = int(mrg32k3a.uniform(rng) * (len(pages) - 2))
    step = int((len(pages) // wanted + 1.0) * mrg32k3a.uniform(rng))
    return pages[walk(len(pages), walker, step, wanted)]


@njit
def walk(size, walker, step, wanted):
    """Return the positions (int64[n], n <= ``wanted``) that MQSim's walk through a list of ``size``
    elements takes.

    The walk starts at the first element. Each iteration advances by ``step`` elements that have not
    been taken (backwards if ``step`` is negative), takes the element there, and continues with the
    next element. ``walker``: start value of a counter to which each iteration adds ``step``.
    ``step`` changes its sign if the sum would be negative or at least the number of remaining
    elements - 1. The walk ends early if it passes an end of the list.
    """
    following = np.arange(1, size + 1)
    before = np.arange(-1, size - 1)
    out = np.zeros(min(wanted, size), np.int64)
    at = 0
    left = size
    for i in range(len(out)):
        for _ in range(abs(step)):
            if 0 <= at < size:
                at = following[at] if step > 0 else before[at]
        if at < 0 or at >= size:
            return out[:i]
        out[i] = at
        if following[at] < size:
            before[following[at]] = before[at]
        if before[at] >= 0:
            following[before[at]] = following[at]
        at = following[at]
        left -= 1
        if walker + step >= left - 1 or walker + step < 0:
            step = -step
        walker += step
    return out


@njit
def insert_all(st, lpns):
    """Insert clean entries for the logical pages ``lpns`` (int64[n]) into the cached mapping
    tables."""
    for lpn in lpns:
        if cached_entries.find(st, 0, lpn) == 0:
            cmt.insert(st, 0, lpn)


def _pages(drive: Drive, flow: Flow, parameters: Synthetic) -> int:
    """Return the number of pages from the first to the last of the flow's working set."""
    first, last = flow.range.first, flow.range.last
    share = parameters.working_set_percentage / 100
    last = first + int(float(last - first) * share)
    return last // drive.page_sectors - first // drive.page_sectors + 1


def _rate(drive: Drive, parameters: Synthetic) -> float:
    """Return the rate that MQSim expects for a flow, in sectors per second."""
    sectors = parameters.average_request_size_bytes // 512
    if not parameters.closed_loop:
        interval = synthetic_flow.interval_ns(parameters, frozenset({"whole_rate"}), "")
        return 1.0 / interval * NS_PER_S * sectors
    reads = parameters.read_percentage / 100
    latest = int(reads * _mean_ns(drive, "read") + (1 - reads) * _mean_ns(drive, "program"))
    return 1.0 / (latest / parameters.average_no_of_reqs_in_queue) * NS_PER_S * sectors


def _mean_ns(drive: Drive, what: str) -> int:
    """Return the mean time of a page's read or program (``what``) in whole ns, as MQSim computes
    it."""
    kinds = {"SLC": ("lsb",), "MLC": ("lsb", "msb"), "TLC": ("lsb", "csb", "msb")}
    times = [
        getattr(drive, f"page_{what}_latency_{kind}_ps") // PS_PER_NS
        for kind in kinds[drive.flash_technology]
    ]
    return int(sum(times) // len(times))
