"""Run of a workload on a drive, from MQSim's two files to results (`ondie mqsim`).

Owns the sequence of steps: read, check, run each scenario, count, format. Does not own the
simulation, which is passed as a function, or the command line (cli/commands/mqsim.py).
Source: MQSim's command line and names of result files. As in MQSim, scenarios run one after
another, each on a fresh drive.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ondie.emu.replay.mqsim import differences, quirks, supported, workload_xml
from ondie.emu.replay.mqsim import ssdconfig as drives
from ondie.emu.replay.mqsim.device_statistics import DeviceStatistics
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.flows import flows as make_flows
from ondie.emu.replay.mqsim.parameter import parameters
from ondie.emu.replay.mqsim.result_xml import flow_lines, response_log, result_file, total_lines
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.workload_xml import Scenario
from ondie.emu.replay.statistics import statistics


class Run(NamedTuple):
    """Result of the simulation of one scenario.

    ``requests``: completed requests of each flow, REQUEST[n], in the order of the flow.
    ``counters``: the counters in statistics.FLASH_COUNTS, and those in result_xml.COUNTS if
    available. ``half``: the counters at completion number half_way(flows), or None if that number
    is not known. ``warmed_s``: wall time of compilation, which is not part of the simulation.
    ``unserved``: numbers of issued reads and writes of each flow that never complete; empty if all
    requests complete. ``device``: statistics of the drive, or None if they are not recorded.
    """

    requests: list[np.ndarray]
    counters: dict[str, int]
    half: dict[str, int] | None
    warmed_s: float = 0.0
    unserved: tuple[tuple[int, int], ...] = ()
    device: DeviceStatistics | None = None


Simulate = Callable[[Drive, Sequence[Flow], frozenset[str]], Run]
"""Function that simulates flows on a drive; its last argument is the set of quirks to reproduce."""


@dataclass(frozen=True)
class Outcome:
    """Results of one scenario.

    ``statistics``: content of --json. ``text``: lines of text with MQSim's names. ``files``:
    contents by path, for the result file, and for logs of response times if the drive enables them.
    ``difference``: remark on the differences from MQSim's results, or None if there are no
    differences or --quirks is given.
    """

    scenario: Scenario
    statistics: dict[str, Any]
    text: tuple[str, ...]
    files: dict[Path, bytes]
    difference: str | None = None


def read_pair(
    ssdconfig: str | os.PathLike[str], workload_: str | os.PathLike[str]
) -> tuple[Drive, tuple[Scenario, ...]]:
    """Return the drive of the file ``ssdconfig`` and the scenarios of the workload file, each
    checked against the drive. Raises InputError if a file or scenario is invalid."""
    drive, scenarios = read_files(ssdconfig, workload_)
    for scenario in scenarios:
        check(drive, scenario)
    return drive, scenarios


def read_files(
    ssdconfig: str | os.PathLike[str], workload_: str | os.PathLike[str]
) -> tuple[Drive, tuple[Scenario, ...]]:
    """Return the drive of the file ``ssdconfig`` and the scenarios of the workload file, without a
    check of the scenarios against the drive (see :func:`check`). Raises InputError if a file is
    invalid."""
    return drives.read_drive(ssdconfig), workload_xml.read_workload(workload_)


def check(drive: Drive, scenario: Scenario) -> None:
    """Raise InputError if a scenario cannot run on the drive; the message states the first
    reason."""
    workload_xml.check_scenario(scenario, drive)
    supported.check_supported(drive, scenario)


def remarks(scenario: Scenario) -> list[str]:
    """Return the remarks that are printed before a scenario runs, one for each ignored parameter
    and one for each note about ignored input."""
    ignored = [(key.p.name, key.p.ignored) for key in parameters(Drive) if key.p.ignored]
    lines = [f"ignored: {name}: {why}" for name, why in ignored]
    return lines + [f"ignored: {note}" for note in scenario.skipped]


def run_scenario(
    drive: Drive,
    scenario: Scenario,
    simulate: Simulate,
    *,
    asked: bool = False,
    folders: Sequence[str | os.PathLike[str]] = (),
) -> Outcome:
    """Run one scenario and return its results. ``asked``: True if --quirks is given.

    ``folders``: further folders to search for trace files. Raises InputError or TraceError if the
    scenario cannot run, and SimulationError if the accounting check fails.
    """
    names = quirks.obeyed(asked)
    drive = drives.scenario_drive(drive, scenario.number)
    begin = time.perf_counter()
    flows = make_flows(drive, scenario, names, folders)
    run = simulate(drive, flows, names)
    wall_s = time.perf_counter() - begin - run.warmed_s
    for flow, done in zip(flows, run.requests, strict=True):
        if not len(done):
            raise drive.bad(
                "gc_exec_threshold",
                f"no request of {flow.name} completes: its writes wait for a free block that "
                "garbage collection never provides",
            )
    config = configuration(drive, scenario, flows, asked)
    numbers = statistics(
        run.requests, run.counters, page_bytes=drive.page_capacity_bytes, half=run.half,
        wall_s=wall_s, config=config,
    )  # fmt: skip
    notes = [f"{flow.name}: {note}" for flow in flows for note in flow.notes]
    left = [sum(of_flow) for of_flow in run.unserved]
    if any(left):
        numbers["unserved_requests"] = left
        notes.append(
            f"{sum(left)} requests never complete, as in MQSim: writes wait for a free "
            "block that garbage collection never provides"
        )
    base = base_name(scenario)
    files = {
        result_path(scenario): result_file(
            flows, run.requests, run.counters, names, run.unserved, run.device, drive
        )
    }
    if drive.enable_response_time_logging:
        period = drive.response_time_logging_period_length_ps
        for flow, done in zip(flows, run.requests, strict=True):
            log = response_log(done, period)
            files[Path(f"{base}.IO_Flow.No_{flow.stream}.log")] = log.encode()
    text = (
        *notes,
        *flow_lines(flows, run.requests, left),
        *total_lines(run.requests, run.counters),
    )
    end_ps = max(int(done["end"].max()) for done in run.requests)
    ran = differences.Ran(drive, scenario, run.counters, end_ps)
    return Outcome(scenario, numbers, text, files, None if asked else differences.line(ran))


def base_name(scenario: Scenario) -> str:
    """Return the path of the workload file up to the last dot of the file name, as MQSim does."""
    folder, name = os.path.split(scenario.source)
    return os.path.join(folder, name.rpartition(".")[0] or name)


def result_path(scenario: Scenario) -> Path:
    """Return the path of MQSim's result file of a scenario, in the folder of the workload."""
    return Path(f"{base_name(scenario)}_scenario_{scenario.number}.xml")


def configuration(
    drive: Drive, scenario: Scenario, flows: Sequence[Flow], asked: bool
) -> dict[str, Any]:
    """Return the resolved configuration of a run (drive, scenario, flows, quirks), to be stored
    with its result. ``asked``: True if --quirks was given."""
    listed = []
    for flow in flows:
        kind = {
            "kind": "synthetic" if isinstance(flow.parameters, workload_xml.Synthetic) else "trace"
        }
        sectors = {"first_sector": flow.range.first, "last_sector": flow.range.last}
        listed.append(kind | workload_xml.spelled_out(flow.parameters) | sectors)
    reproduced = quirks.obeyed(asked)
    return {
        "drive": drives.spelled_out(drive),
        "scenario": scenario.number,
        "flows": listed,
        "quirks": {
            quirk.name: "reproduced" if quirk.name in reproduced else quirk.treatment
            for quirk in quirks.met(drive, scenario)
        },
    }
