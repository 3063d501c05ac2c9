"""One-line remark on the differences between a run without --quirks and MQSim's run.

Owns the calculation of the effect that each quirk of --quirks has on the results of a completed
run. Does not own the list of quirks (quirks.py).
Source: MQSim's source; the amounts follow from the parameters and the counters of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ondie.emu.replay.mqsim import quirks
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.workload_xml import Scenario, Synthetic, TraceBased
from ondie.emu.replay.statistics import PS_PER_S, PS_PER_US

OPEN = "by an amount that depends on the load"


@dataclass(frozen=True)
class Ran:
    """A completed run of a scenario: drive, scenario, counters with MQSim's names, and end time
    (ps)."""

    drive: Drive
    scenario: Scenario
    counters: Mapping[str, int]
    end_ps: int

    def count(self, name: str) -> int:
        """Return the value of the counter ``name``; 0 if the run has no such counter."""
        return self.counters.get(name, 0)


def line(ran: Ran) -> str | None:
    """Return a remark, for a run without --quirks, on how MQSim's results of this run differ
    because of MQSim's quirks. Return None if no quirk changes the results."""
    effects = []
    for quirk in quirks.met(ran.drive, ran.scenario):
        if quirk.treatment == quirks.ASKED and (effect := EFFECTS[quirk.name](ran)):
            effects.append(f"{effect} ({quirk.name})")
    if not effects:
        return None
    return f"MQSim's results differ: {'; '.join(effects)}; --quirks reproduces them"


def _whole_seconds(ran: Ran) -> str | None:
    whole = ran.end_ps // PS_PER_S
    what = "its IOPS and bandwidth are"
    if whole == 0:
        return f"{what} infinite, because the run takes less than 1 s"
    more = ran.end_ps / PS_PER_S / whole - 1
    return f"{what} {more:.1%} higher" if more >= 0.0005 else None


def _whole_rate(ran: Ran) -> str | None:
    worst = 0.0
    for flow in ran.scenario.flows:
        if isinstance(flow, Synthetic) and not flow.closed_loop:
            sectors = flow.average_request_size_bytes // 512
            per_s = flow.bandwidth_bytes_per_s // 512 // sectors
            if not per_s:
                return "it sends no requests of a flow with less than 1 request/s"
            interval = 10**9 // per_s * flow.bandwidth_bytes_per_s / (sectors * 512 * 10**9)
            worst = max(worst, abs(1 / interval - 1), key=abs)
    return f"its requests arrive at a rate that differs by {worst:.2%}" if worst > 5e-5 else None


def _nanoseconds(ran: Ran) -> str:
    units = {f.time_unit for f in ran.scenario.flows if isinstance(f, TraceBased)}
    return f"it reads times in {' and '.join(sorted(units - {'NANOSECOND'})).lower()}s as ns"


def _channel(ran: Ran) -> str | None:
    rate = ran.drive.channel_transfer_rate_hz / 10**9
    theirs, ours = int(1 / rate), 1 / rate
    if theirs == 0:
        return "its transfers on the channel take no time"
    return f"its transfers on the channel take {1 - theirs / ours:.1%} less time"


def _suspension(ran: Ran) -> str | None:
    count = ran.count("program_suspensions") + ran.count("erase_suspensions")
    if not count:
        return None
    wait = max(ran.drive.block_erase_latency_ps, ran.drive.page_program_latency_lsb_ps)
    longest = f"reads wait up to {wait / PS_PER_US:,.0f} us longer"
    return f"it never suspends an operation ({count} suspensions here): {longest}"


def _map_writes(ran: Ran) -> str | None:
    count = ran.count("map_writes")
    return f"its {count} write-backs of the mapping table take no time" if count else None


def _lost_entries(ran: Ran) -> str | None:
    if not ran.count("map_misses"):
        return None
    return "requests whose mapping entries are evicted early can wait forever"


def _forgotten(ran: Ran) -> str | None:
    if not ran.count("map_writes"):
        return None
    return f"its partial writes first read fewer sectors: latencies change {OPEN}"


def _stalled(ran: Ran) -> str | None:
    if not ran.count("collections"):
        return None
    return "its writes that find no free block can wait forever, which ends its run early"


def _drawings(ran: Ran) -> str | None:
    if not ran.count("collections"):
        return None
    return f"it abandons a collection if the drawn block is unsuitable: fewer collections, {OPEN}"


def _fixed(text: str) -> Callable[[Ran], str]:
    return lambda ran: text


EFFECTS: dict[str, Callable[[Ran], str | None]] = {
    "whole_seconds": _whole_seconds,
    "whole_rate": _whole_rate,
    "negative_sizes": _fixed(
        "a random size below 1 becomes a size of about 65,500 sectors (32 MiB)"
    ),
    "nanoseconds": _nanoseconds,
    "whole_trace_rounds": _fixed("it runs the whole trace in each round"),
    "short_modulus": _fixed("addresses beyond a flow's range are lower by up to a few sectors"),
    "wrapped_requests": _fixed(
        f"requests that leave a flow's range access other addresses in it: latencies change {OPEN}"
    ),
    "address_alias": _fixed("addresses of 2 TiB and above refer to other sectors"),
    "pages_of_flows": _fixed(
        f"parts of two pages share a page number: fewer or more flash operations, {OPEN}"
    ),
    "one_die_at_a_time": lambda ran: (
        "a chip runs one command at a time, which divides the throughput by up to "
        f"{ran.drive.die_no_per_chip}"
    ),
    "channel_rates_rounded": _channel,
    "suspension_never_issued": _suspension,
    "unwritten_slot": _fixed(
        f"reads of unwritten pages use its cache and the cache's DRAM: latencies change {OPEN}"
    ),
    "mapping_writes": _map_writes,
    "lost_map_entries": _lost_entries,
    "forgotten_sectors": _forgotten,
    "shared_map_cache": lambda ran: (
        f"its mapping cache has {len(ran.scenario.flows)} times the capacity"
    ),
    "stalled_writes": _stalled,
    "lost_drawings": _drawings,
    "nine_tenths": _fixed("it fills at most 90% of a flow's pages"),
    "one_sector": _fixed("it fills only one sector of a page: fewer reads before overwrites"),
    "preconditioning": _fixed(
        f"it may begin with few free blocks: writes wait for garbage collection {OPEN}"
    ),
    "warm_map": _fixed("its mapping cache is full at the start: fewer reads of the mapping"),
    "evicted_pages": _fixed(
        "it writes pages that another flow evicts at addresses of that flow: more or fewer reads "
        f"before overwrites, {OPEN}"
    ),
    "event_order": _fixed(f"it orders simultaneous events differently: latencies change {OPEN}"),
    "start_order": _fixed(f"its flows start in a different order: latencies change {OPEN}"),
    "polling": _fixed(
        f"the turns of priority classes also advance on busy chips: latencies change {OPEN}"
    ),
}
"""Functions by name of a quirk that --quirks reproduces. Each describes the effect of the quirk on
a run, or returns None if the quirk has no effect."""
