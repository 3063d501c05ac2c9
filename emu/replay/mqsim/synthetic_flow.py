"""Synthetic flows: types, sizes, addresses and arrival times of requests, drawn from a seed.

Owns the compiled generator of requests and its Flow. Does not own the random numbers (mrg32k3a.py)
or the arrival times in a closed loop (the simulation).
Source: MQSim's synthetic flow: order of the draws, distributions, and behavior at the edges of the
address range.

For each request, the type is drawn first, then the size, then the address. If the hot region is the
first h % of the working set, RANDOM_HOTCOLD sends (100 - h) % of the requests to it. STREAMING
starts at a random address and continues from the end of each request. A Poisson arrival is a whole
number of ns after the previous arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.nvme.request import MAX_CHUNK, NOT_YET, READ, REQUEST, WRITE
from ondie.emu.replay.mqsim import mrg32k3a
from ondie.emu.replay.mqsim.address_partition import Range, working_set
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.ssdconfig import PS_PER_NS
from ondie.emu.replay.mqsim.workload_xml import MOST_SECTORS, Synthetic
from ondie.kernels.jit import njit

UNIFORM, HOTCOLD, STREAMING = range(3)
DISTRIBUTIONS = {
    "RANDOM_UNIFORM": UNIFORM,
    "RANDOM_HOTCOLD": HOTCOLD,
    "STREAMING": STREAMING,
}
TYPE, ADDRESS, HOT_ADDRESS, HOT_CHOICE, SIZE, INTERVAL = range(6)
NS_PER_S = 10**9

SHAPE = np.dtype(
    [
        ("read_share", "f8"),
        ("hot_share", "f8"),
        ("mean_size", "f8"),  # sectors
        ("deviation", "f8"),  # sectors; negative: all of the mean size
        ("mean_interval", "f8"),  # ns; 0: closed loop
        ("distribution", "i8"),
        ("first", "i8"),  # sectors
        ("last", "i8"),  # of the working set
        ("end", "i8"),  # of the flow
        ("hot_last", "i8"),
        ("unit", "i8"),  # sectors; 1: not aligned
        ("stream", "i8"),
        ("wrap_first", "i8"),  # range in which an address before the flow moves
        ("wrap_last", "i8"),  # 0: no address moves there
        ("wide_sizes", "i8"),  # negative sizes become 16 bits of their two's complement
        ("next", "i8"),  # state: sector at which STREAMING continues
        ("clock", "i8"),  # state: the last arrival, ns
        ("count", "i8"),  # state: requests so far
    ]
)


@njit
def fill(out, shape, rng, spare):
    """Draw requests and write them to all elements of ``out`` (REQUEST[n]).

    ``shape``: SHAPE[1], parameters and state of the flow. ``rng``: int64[6, 6], state of the
    generator for each purpose (TYPE to INTERVAL). ``spare``: float64[1], see mrg32k3a.normal.
    """
    header = shape[0]
    first = header["first"]
    last = header["last"]
    unit = header["unit"]
    count = header["count"]
    clock = header["clock"]
    following = header["next"]
    for i in range(out.shape[0]):
        op = READ if mrg32k3a.uniform(rng[TYPE]) <= header["read_share"] else WRITE
        size = np.int64(header["mean_size"])
        drawn = size
        if header["deviation"] >= 0.0:
            value = math.ceil(
                mrg32k3a.normal(rng[SIZE], spare, header["mean_size"], header["deviation"])
            )
            drawn = np.int64(value)
            if drawn == 0:
                drawn = np.int64(1)
            elif drawn < 0:
                drawn = drawn + 4294967296 if header["wide_sizes"] != 0 else np.int64(1)
            size = drawn
            if header["wide_sizes"] != 0:
                size = drawn & 65535
            if size == 0:
                size = np.int64(1)
            elif size > MOST_SECTORS:
                size = np.int64(MOST_SECTORS)
        if header["distribution"] == UNIFORM:
            at = first + mrg32k3a.below(rng[ADDRESS], last - first + 1)
            if at + drawn > last:
                at = first
        elif header["distribution"] == HOTCOLD:
            hot = header["hot_last"]
            if mrg32k3a.uniform(rng[HOT_CHOICE]) < header["hot_share"]:
                at = hot + 1 + mrg32k3a.below(rng[HOT_ADDRESS], last - hot)
            else:
                at = first + mrg32k3a.below(rng[HOT_ADDRESS], hot - first + 1)
        else:
            at = following
            if at + drawn > last:
                at = first
            following += drawn
            if following > last:
                following = first
            if following % unit != 0:
                following += unit - following % unit
        at -= at % unit
        if header["wrap_last"] > 0:
            if at < header["wrap_first"]:
                at = header["wrap_first"] + at % (header["wrap_last"] - header["wrap_first"])
        elif at < first:  # the range starts inside a unit
            at += unit
        if (
            at + size - 1 > header["end"] and header["wrap_last"] == 0
        ):  # at most a request's length from the end
            at = max(header["end"] + 1 - size, first)
        arrival = np.int64(NOT_YET)
        if header["mean_interval"] > 0.0:
            clock += np.int64(mrg32k3a.exponential(rng[INTERVAL], header["mean_interval"]))
            arrival = clock * PS_PER_NS
        row = out[i]
        row["arrival"] = arrival
        row["start"] = NOT_YET
        row["end"] = NOT_YET
        row["offset"] = at * SECTOR_BYTES
        row["size"] = size * SECTOR_BYTES
        row["op"] = op
        row["stream"] = header["stream"]
        row["tag"] = count
        count += 1
    header["count"] = count
    header["clock"] = clock
    header["next"] = following


def synthetic_flow(
    stream: int,
    parameters: Synthetic,
    range_: Range,
    quirks: frozenset[str],
    where: str,
    wrap: Range | None = None,
) -> Flow:
    """Return the flow of ``parameters`` on the addresses ``range_``; error messages begin with
    ``where``.

    Quirks reproduced: whole_rate, negative_sizes, address_alias, wrapped_requests. ``wrap``: range
    in which wrapped_requests moves addresses, or None for the flow's working set. Raises the errors
    of :func:`shape_of`, and InputError if no request arrives before the stop time.
    """
    shape = shape_of(stream, parameters, range_, quirks, where)
    if "wrapped_requests" in quirks:
        wrap = wrap or working_set(parameters, range_)
        shape["wrap_first"], shape["wrap_last"] = wrap.first, wrap.last
    stop = parameters.stop_time_ps or None
    total = None if stop else parameters.total_requests_to_generate
    closed = parameters.closed_loop
    if stop is not None and not closed:
        total = sum(len(chunk) for chunk in _chunks(shape, parameters, None, stop, quirks))
        if not total:
            raise parameters.bad(where, "stop_time_ps", "no request arrives before this time")

    def source() -> Iterator[np.ndarray]:
        return _chunks(shape, parameters, total, None if closed else stop, quirks)

    return Flow(
        stream=stream,
        name=f"Host.IO_Flow.Synth.No_{stream}",
        parameters=parameters,
        range=range_,
        depth=parameters.average_no_of_reqs_in_queue if closed else None,
        total=total,
        stop_ps=stop,
        source=source,
    )


def shape_of(
    stream: int, parameters: Synthetic, range_: Range, quirks: frozenset[str], where: str
) -> np.ndarray:
    """Return SHAPE[1], the parameters and the initial state of the flow.

    Raises InputError if requests or the alignment unit are larger than the working set, if there is
    no cold region, or if the request rate is rounded to zero (see :func:`interval_ns`).
    """
    shape = np.zeros(1, SHAPE)
    first, end = range_.first, range_.last
    last = working_set(parameters, range_).last
    unit = (
        parameters.address_alignment_unit_bytes // SECTOR_BYTES
        if parameters.generated_aligned_addresses
        else 1
    )
    mean = parameters.average_request_size_bytes // SECTOR_BYTES
    room = last - first + 1
    if mean > room or unit > room:
        name = "average_request_size_bytes" if mean > room else "address_alignment_unit_bytes"
        raise parameters.bad(
            where, name, f"the flow's working set has {room} sectors; use 1 to {room}"
        )
    hot_share = parameters.percentage_of_hot_region / 100.0
    hot_last = first + int(float(last - first) * hot_share)
    if parameters.address_distribution == "RANDOM_HOTCOLD" and hot_last >= last:
        raise parameters.bad(
            where, "percentage_of_hot_region", f"a working set of {room} sectors has no cold region"
        )
    shape["read_share"] = parameters.read_percentage / 100.0
    shape["hot_share"] = hot_share
    shape["mean_size"] = mean
    normal = parameters.request_size_distribution == "NORMAL"
    shape["deviation"] = parameters.variance_request_size_bytes // SECTOR_BYTES if normal else -1
    shape["mean_interval"] = (
        0.0 if parameters.closed_loop else interval_ns(parameters, quirks, where)
    )
    shape["distribution"] = DISTRIBUTIONS[parameters.address_distribution]
    shape["first"], shape["last"], shape["end"] = first, last, end
    shape["hot_last"], shape["unit"], shape["stream"] = hot_last, unit, stream
    shape["wide_sizes"] = "negative_sizes" in quirks
    return shape


def interval_ns(parameters: Synthetic, quirks: frozenset[str], where: str) -> float:
    """Return the mean interval of Poisson arrivals in ns.

    The quirk whole_rate truncates the rate to an integer, as MQSim does. Raises InputError if this
    rounds the rate to zero.
    """
    sectors = parameters.average_request_size_bytes // SECTOR_BYTES
    if "whole_rate" not in quirks:
        return parameters.average_request_size_bytes * NS_PER_S / parameters.bandwidth_bytes_per_s
    per_s = parameters.bandwidth_bytes_per_s // SECTOR_BYTES // sectors
    if not per_s:
        raise parameters.bad(
            where,
            "bandwidth_bytes_per_s",
            "must allow at least 1 request per second; at lower rates, MQSim divides by zero",
        )
    return float(NS_PER_S // per_s)


def generators(parameters: Synthetic) -> np.ndarray:
    """Return the initial states of the generators for each purpose (TYPE to INTERVAL), int64[6, 6].

    The purposes that the flow needs have consecutive seeds, beginning with ``parameters.seed``.
    """
    uses = [TYPE, ADDRESS]
    if parameters.address_distribution == "RANDOM_HOTCOLD":
        uses += [HOT_ADDRESS, HOT_CHOICE]
    if parameters.request_size_distribution == "NORMAL":
        uses.append(SIZE)
    if not parameters.closed_loop:
        uses.append(INTERVAL)
    rng = np.zeros((6, 6), np.int64)
    for after, use in enumerate(uses):
        rng[use] = mrg32k3a.start(parameters.seed + after)
    return rng


def _chunks(
    shape: np.ndarray,
    parameters: Synthetic,
    total: int | None,
    stop: int | None,
    quirks: frozenset[str],
) -> Iterator[np.ndarray]:
    shape, spare, rng = shape.copy(), np.zeros(1), generators(parameters)
    header = shape[0]
    if header["distribution"] == STREAMING:
        at = int(header["first"]) + int(
            mrg32k3a.below(rng[ADDRESS], header["last"] - header["first"] + 1)
        )
        header["next"] = at - at % header["unit"]
    left = total
    while left is None or left > 0:
        out = np.zeros(MAX_CHUNK if left is None else min(left, MAX_CHUNK), REQUEST)
        fill(out, shape, rng, spare)
        if "address_alias" in quirks:
            alias(out)
        if stop is not None and out["arrival"][-1] > stop:
            count = int(np.searchsorted(out["arrival"], stop, "right"))
            if count:
                yield out[:count]
            return
        if left is not None:
            left -= len(out)
        yield out


def alias(out: np.ndarray) -> None:
    """Change the offsets of requests as MQSim's quirk address_alias does.

    MQSim restores the upper half of a 64-bit sector number one bit too low. ``out``: REQUEST[n].
    """
    sector = out["offset"] // SECTOR_BYTES
    out["offset"] = ((sector & 0xFFFFFFFF) | (sector >> 32 << 31)) * SECTOR_BYTES
