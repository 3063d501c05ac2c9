"""Construction of the flows of a scenario on a drive.

Owns the choice between a synthetic flow and a trace flow. Does not own these flows
(synthetic_flow.py, trace_flow.py).
Source: MQSim's host, which creates a flow from each parameter set, in the order of the file.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from ondie.emu.replay.mqsim import sata, supported
from ondie.emu.replay.mqsim.address_partition import Range, ranges
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.synthetic_flow import synthetic_flow
from ondie.emu.replay.mqsim.trace_flow import Recorded, recorded_flow, trace_flow
from ondie.emu.replay.mqsim.workload_xml import Scenario, Synthetic, TraceBased, check_scenario
from ondie.emu.units import InputError


def flows(
    drive: Drive,
    scenario: Scenario,
    quirks: frozenset[str] = frozenset(),
    folders: Sequence[str | os.PathLike[str]] = (),
) -> list[Flow]:
    """Return the flows that the scenario describes, checked against the drive.

    ``quirks``: names of the quirks to reproduce. Trace files are searched in the current folder, as
    in MQSim, then in the folder of the workload, then in ``folders``. Raises InputError or
    TraceError if the scenario cannot run.
    """
    check_scenario(scenario, drive)
    supported.check_supported(drive, scenario)
    places = [Path("."), Path(scenario.source).parent, *map(Path, folders)]
    made = []
    seen = sata.seen(drive, scenario.flows)
    found = ranges(drive, seen)
    whole = Range(found[0].first, found[-1].last)
    for stream, (parameters, range_) in enumerate(zip(seen, found, strict=True)):
        where = scenario.place(stream)
        if isinstance(parameters, Synthetic):
            wrap = whole if sata.used(drive) else None
            made.append(synthetic_flow(stream, parameters, range_, quirks, where, wrap))
        else:
            assert isinstance(parameters, TraceBased)
            made.append(trace_flow(stream, parameters, range_, quirks, where, places))
    return [dataclasses.replace(flow, scenario=scenario.number) for flow in made]


def recorded_flows(drive: Drive, scenario: Scenario, recorded: Recorded) -> list[Flow]:
    """Return the scenario's flows with recorded requests instead of generated requests.

    Closed-loop flows keep their queue depth; all other flows use the recorded arrival times. Raises
    InputError if a request belongs to a flow that the scenario does not have, or is outside the
    flow's addresses.
    """
    check_scenario(scenario, drive)
    supported.check_supported(drive, scenario)
    most = int(recorded.stream.max())
    if most >= len(scenario.flows):
        raise InputError(
            f"{recorded.source}: flow {most}: scenario {scenario.number} of {scenario.source} has "
            f"only {len(scenario.flows)} flows"
        )
    made = []
    seen = sata.seen(drive, scenario.flows)
    for stream, range_ in enumerate(ranges(drive, seen)):
        parameters = seen[stream]
        depth = None
        if isinstance(parameters, Synthetic) and parameters.closed_loop:
            depth = parameters.average_no_of_reqs_in_queue
        made.append(recorded_flow(stream, parameters, range_, recorded, depth))
    return made
