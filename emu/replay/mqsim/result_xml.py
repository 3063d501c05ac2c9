"""Results in MQSim's format: lines of text, the result file, and the log of response times.

Owns the assignment of this project's counters to MQSim's names. Does not own the statistics of the
drive (device_xml.py), the values of `--json` (replay/statistics.py) or writing to disk.
Source: MQSim's result file: names, units, nesting.

Items that the simulation does not count are omitted. The device response time lasts from the entry
into the submission queue to the completion at the host. The end-to-end delay lasts from the arrival
at the host to the completion at the host. As in MQSim, both are in whole us; bytes and rates have
six decimals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ondie.emu.nvme.request import READ
from ondie.emu.replay.mqsim import device_xml, sata
from ondie.emu.replay.mqsim.device_statistics import DeviceStatistics
from ondie.emu.replay.mqsim.device_xml import Lines
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.statistics import PS_PER_S, PS_PER_US

FTL_ITEMS = (
    "Issued_Flash_Read_CMD", "Issued_Flash_Interleaved_Read_CMD",
    "Issued_Flash_Multiplane_Read_CMD", "Issued_Flash_Copyback_Read_CMD",
    "Issued_Flash_Multiplane_Copyback_Read_CMD", "Issued_Flash_Program_CMD",
    "Issued_Flash_Interleaved_Program_CMD", "Issued_Flash_Multiplane_Program_CMD",
    "Issued_Flash_Interleaved_Multiplane_Program_CMD", "Issued_Flash_Copyback_Program_CMD",
    "Issued_Flash_Multiplane_Copyback_Program_CMD", "Issued_Flash_Erase_CMD",
    "Issued_Flash_Interleaved_Erase_CMD", "Issued_Flash_Multiplane_Erase_CMD",
    "Issued_Flash_Interleaved_Multiplane_Erase_CMD", "Issued_Flash_Suspend_Program_CMD",
    "Issued_Flash_Suspend_Erase_CMD", "Issued_Flash_Read_CMD_For_Mapping",
    "Issued_Flash_Program_CMD_For_Mapping", "CMT_Hits", "CMT_Hits_For_Read", "CMT_Hits_For_Write",
    "CMT_Misses", "CMT_Misses_For_Read", "CMT_Misses_For_Write", "Total_CMT_Queries",
    "Total_CMT_Queries_For_Reads", "Total_CMT_Queries_For_Writes", "Total_GC_Executions",
    "Average_Page_Movement_For_GC", "Total_WL_Executions", "Average_Page_Movement_For_WL",
)  # fmt: skip
"""Names of the items of the element SSDDevice.FTL in MQSim's result file, in MQSim's order."""

COUNTS = {
    "Issued_Flash_Suspend_Program_CMD": "program_suspensions",
    "Issued_Flash_Suspend_Erase_CMD": "erase_suspensions",
    "Issued_Flash_Read_CMD_For_Mapping": "map_reads",
    "Issued_Flash_Program_CMD_For_Mapping": "map_writes",
    "Total_GC_Executions": "collections",
    "Total_WL_Executions": "levelings",
}
"""Name of the counter whose value this project writes to each item of MQSim's result file, by name
of the item."""


def flow_lines(
    flows: Sequence[Flow], requests: Sequence[np.ndarray], unserved: Sequence[int] = ()
) -> list[str]:
    """Return two lines for each flow: the number of requests, then the mean device response time
    and the mean end-to-end delay (us).

    ``requests``: completed requests of each flow, REQUEST[n]. ``unserved``: number of further
    requests of each flow that never complete.
    """
    lines = []
    for i, (flow, done) in enumerate(zip(flows, requests, strict=True)):
        left = unserved[i] if unserved else 0
        served = f"{len(done) + left} requests generated, {len(done)} serviced"
        end, start, arrival = done["end"], done["start"], done["arrival"]
        response = int((end - start).mean(dtype=np.float64)) // PS_PER_US
        delay = int((end - arrival).mean(dtype=np.float64)) // PS_PER_US
        lines += [
            f"{flow.name}: {served}"
            if left
            else f"{flow.name}: {len(done)} requests generated and serviced",
            f"    device response time {response} us, end-to-end request delay {delay} us",
        ]
    return lines


def total_lines(requests: Sequence[np.ndarray], counters: Mapping[str, int]) -> list[str]:
    """Return the lines of text for the whole run: requests, time of the last completion, and flash
    operations with the names of the result file."""
    count = sum(map(len, requests))
    end = max(int(done["end"].max()) for done in requests)
    lines = [f"Total: {count} requests in {end // 1000} ns of simulated time"]
    return lines + [f"    {name} {value}" for name, value in _ftl(counters).items()]


def result_file(
    flows: Sequence[Flow],
    requests: Sequence[np.ndarray],
    counters: Mapping[str, int],
    quirks: frozenset[str] = frozenset(),
    unserved: Sequence[tuple[int, int]] = (),
    device: DeviceStatistics | None = None,
    drive: Drive | None = None,
) -> bytes:
    """Return the contents of the result file of one scenario.

    ``unserved``: for each flow, numbers of reads and of writes that never complete and are not in
    ``requests``; MQSim counts them as requests. ``device``: statistics of ``drive``. The file has
    the element HostInterface only if ``device`` and ``drive`` are given, and the elements TSU and
    FlashChips only if ``device`` is given. Quirk reproduced: whole_seconds.
    """
    out = Lines()
    out.begin("MQSim_Results")
    out.begin("Host")
    end = max(int(done["end"].max()) for done in requests)
    end = end if device is None else device.end_ps
    seconds = float(end // PS_PER_S) if "whole_seconds" in quirks else end / PS_PER_S
    for i, (flow, done) in enumerate(zip(flows, requests, strict=True)):
        out.begin("Host.IO_Flow")
        out.values(_flow(flow, done, seconds, unserved[i] if unserved else (0, 0)))
        out.end()
    out.end()
    out.begin("SSDDevice")
    found = _ftl(counters)
    if device is not None and drive is not None:
        device_xml.host_interface(out, device, sata.used(drive))
        found |= device_xml.commands(device)
        found |= device_xml.lookups(device, counters, drive.ideal_mapping_table)
        found = dict.fromkeys(device_xml.NEVER_ISSUED, "0") | found
    out.element("SSDDevice.FTL", {name: found[name] for name in FTL_ITEMS if name in found})
    if device is not None:
        device_xml.scheduler_queues(out, device)
        device_xml.flash_chips(out, device)
    out.end()
    out.end()
    return out.content()


def _flow(
    flow: Flow, done: np.ndarray, seconds: float, unserved: tuple[int, int]
) -> dict[str, str]:
    reads = done["op"] == READ
    size, of_reads = int(done["size"].sum()), int(done["size"].sum(where=reads))
    read = int(reads.sum()) + unserved[0]
    count = len(done) + sum(unserved)
    counts = {"": count, "_Read": read, "_Write": count - read}
    bytes_ = {"": size, "_Read": of_reads, "_Write": size - of_reads}
    out = {"Name": flow.name}
    for kind, number in counts.items():
        out[f"{kind.strip('_')}_Request_Count".lstrip("_")] = str(number)
    out |= {f"IOPS{kind}": _rate(number, seconds) for kind, number in counts.items()}
    out |= {f"Bytes_Transferred{kind}": f"{size:.6f}" for kind, size in bytes_.items()}
    out |= {f"Bandwidth{kind}": _rate(size, seconds) for kind, size in bytes_.items()}
    for name, since in (("Device_Response_Time", "start"), ("End_to_End_Request_Delay", "arrival")):
        begin = done[since]
        time = done["end"] - begin
        out[name] = str(int(time.mean(dtype=np.float64)) // PS_PER_US)
        out[f"Min_{name}"] = str(int(time.min()) // PS_PER_US)
        out[f"Max_{name}"] = str(int(time.max()) // PS_PER_US)
    return out


def _rate(amount: int, seconds: float) -> str:
    if not seconds:
        return "inf" if amount else "-nan"
    return f"{amount / seconds:.6f}"


def _ftl(counters: Mapping[str, int]) -> dict[str, str]:
    out = {name: str(counters[mine]) for name, mine in COUNTS.items() if mine in counters}
    for what, moves in (("GC", "gc_writes"), ("WL", "leveling_writes")):
        runs = out.get(f"Total_{what}_Executions")
        if runs is None:
            continue
        if int(runs) == 0:
            out[f"Average_Page_Movement_For_{what}"] = device_xml.NOT_A_NUMBER
        elif moves in counters:
            out[f"Average_Page_Movement_For_{what}"] = f"{counters[moves] / int(runs):.6f}"
    return out


def response_log(done: np.ndarray, period_ps: int) -> str:
    """Return the contents of the response time log of one flow.

    The columns are the time, and the mean device response time and the mean end-to-end delay since
    the previous line, all in us. A line is written at the first completion after each period; the
    next period starts at the time of that completion.
    """
    lines = ["SimulationTime(us)\tReponseTime(us)\tEndToEndDelay(us)"]
    order = np.argsort(done["end"], kind="stable")
    end, start, arrival = done["end"][order], done["start"][order], done["arrival"][order]
    took, whole = (end - start) / PS_PER_US, (end - arrival) / PS_PER_US
    response = np.concatenate([[0.0], np.cumsum(took)])
    delay = np.concatenate([[0.0], np.cumsum(whole)])
    last, milestone = 0, period_ps
    while (at := int(np.searchsorted(end, milestone, "right"))) < len(end):
        count = at + 1 - last
        means = [int((sums[at + 1] - sums[last]) / count) for sums in (response, delay)]
        lines.append(f"{end[at] // PS_PER_US}\t{means[0]}\t{means[1]}")
        last, milestone = at + 1, int(end[at]) + period_ps
    return "\n".join(lines) + "\n"
