"""workload.xml: MQSim's scenarios and their flows as frozen records.

Owns Synthetic, TraceBased, Scenario, the reader of the file, and the checks of a scenario against a
drive. Does not own the requests of a flow (synthetic_flow.py, trace_flow.py).
Source: MQSim's IO_Flow_Parameter_Set.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.replay.mqsim.parameter import P, Parameter, complete, parameters, read, spelled
from ondie.emu.replay.mqsim.ssdconfig import NS, Drive, map_entries
from ondie.emu.replay.mqsim.xml import Element, leaves, read_document
from ondie.emu.units import InputError, nearest

MOST_FLOWS = 8  # queue pairs that MQSim's host has
MOST_SECTORS = 65535  # of a request: MQSim keeps its size in 16 bits
OPEN_BLOCKS = 3  # of each plane and flow: user, mapping, collection
RESERVE = 10  # free blocks of a plane below which no user write is placed
MOST_ID = 4095
IDS = ("channel_ids", "chip_ids", "die_ids", "plane_ids")
_ROOT, _SCENARIO = "MQSim_IO_Scenarios", "IO_Scenario"
_SYNTHETIC, _TRACE = "IO_Flow_Parameter_Set_Synthetic", "IO_Flow_Parameter_Set_Trace_Based"
_MEMORY = "MQSim would use an uninitialized value"
SKIPPED = {"Intensity": "MQSim's example file has this parameter, but MQSim does not read it"}


@dataclass(frozen=True)
class FlowParameters:
    """Parameters that MQSim's synthetic and trace-based flows have in common."""

    # fmt: off
    priority_class: Annotated[
        str, P("Priority_Class", "with PRIORITY_OUT_OF_ORDER",
               choices=("URGENT", "HIGH", "MEDIUM", "LOW"), default="HIGH")]
    device_level_data_caching_mode: Annotated[
        str, P("Device_Level_Data_Caching_Mode", "",
               choices=("TURNED_OFF", "WRITE_CACHE", "READ_CACHE", "WRITE_READ_CACHE"))]
    channel_ids: Annotated[tuple[int, ...], P("Channel_IDs", "", most=MOST_ID)]
    chip_ids: Annotated[tuple[int, ...],
        P("Chip_IDs", "ids of chips within each channel", most=MOST_ID)]
    die_ids: Annotated[tuple[int, ...], P("Die_IDs", "ids of dies within each chip", most=MOST_ID)]
    plane_ids: Annotated[tuple[int, ...],
        P("Plane_IDs", "ids of planes within each die", most=MOST_ID)]
    initial_occupancy_percentage: Annotated[
        int,
        P("Initial_Occupancy_Percentage", "share of the flow's pages that preconditioning writes",
               most=100, default="0")]
    # fmt: on

    @property
    def planes(self) -> set[tuple[int, int, int, int]]:
        """Planes of the drive that the flow uses, each as (channel, chip, die, plane)."""
        return {
            (channel, chip, die, plane)
            for channel in self.channel_ids
            for chip in self.chip_ids
            for die in self.die_ids
            for plane in self.plane_ids
        }

    def bad(self, where: str, attribute: str, words: str) -> InputError:
        """Return an InputError that names the flow (``where``), parameter and value, followed by
        ``words``."""
        parameter = next(key for key in parameters(type(self)) if key.attribute == attribute)
        value = spelled(parameter, getattr(self, attribute))
        return InputError(f"{where}: {parameter.p.name} is {value}: {words}")


@dataclass(frozen=True)
class Synthetic(FlowParameters):
    """Parameters of a flow of MQSim whose requests are generated."""

    # fmt: off
    working_set_percentage: Annotated[
        int,
        P("Working_Set_Percentage", "share of the address range, counted from its start", least=1,
               most=100)]
    synthetic_generator_type: Annotated[
        str, P("Synthetic_Generator_Type", "closed loop, or Poisson arrivals",
               choices=("QUEUE_DEPTH", "BANDWIDTH"))]
    read_percentage: Annotated[int,
        P("Read_Percentage", "share of reads among the requests", most=100)]
    address_distribution: Annotated[
        str, P("Address_Distribution", "",
               choices=("STREAMING", "RANDOM_UNIFORM", "RANDOM_HOTCOLD",
                        "MIXED_STREAMING_RANDOM"))]
    percentage_of_hot_region: Annotated[
        int, P("Percentage_of_Hot_Region", "h % of the addresses get (100 - h) % of the requests",
               most=100, default="0")]
    generated_aligned_addresses: Annotated[bool, P("Generated_Aligned_Addresses", "")]
    address_alignment_unit_bytes: Annotated[
        int, P("Address_Alignment_Unit", "", "sectors", 1, scale=SECTOR_BYTES, default="1")]
    request_size_distribution: Annotated[
        str, P("Request_Size_Distribution", "", choices=("FIXED", "NORMAL"))]
    average_request_size_bytes: Annotated[
        int, P("Average_Request_Size", "", "sectors", 1, MOST_SECTORS, SECTOR_BYTES)]
    variance_request_size_bytes: Annotated[
        int, P("Variance_Request_Size", "standard deviation of the size", "sectors",
               most=MOST_SECTORS, scale=SECTOR_BYTES, default="0")]
    seed: Annotated[int, P("Seed", "seed of the flow's random numbers", most=2**31 - 8)]
    average_no_of_reqs_in_queue: Annotated[
        int, P("Average_No_of_Reqs_in_Queue", "outstanding requests in a closed loop", least=1,
               most=65535, default="1")]
    bandwidth_bytes_per_s: Annotated[
        int, P("Bandwidth", "mean rate of Poisson arrivals", "bytes/s", 1, 10**15, default="1")]
    stop_time_ps: Annotated[
        int,
        P("Stop_Time", "time of the last request; 0: Total_Requests_To_Generate limits the flow",
               most=9 * 10**15, **NS)]
    total_requests_to_generate: Annotated[int, P("Total_Requests_To_Generate", "", default="0")]
    # fmt: on

    @property
    def closed_loop(self) -> bool:
        """True if the flow issues a new request at each completion; False for Poisson arrivals."""
        return self.synthetic_generator_type == "QUEUE_DEPTH"


@dataclass(frozen=True)
class TraceBased(FlowParameters):
    """Parameters of a flow of MQSim whose requests are read from a trace."""

    # fmt: off
    file_path: Annotated[
        str,
        P("File_Path", "path relative to the working directory or to the folder of workload.xml")]
    percentage_to_be_executed: Annotated[
        int,
        P("Percentage_To_Be_Executed", "share of the trace, from its start", least=1, most=100)]
    relay_count: Annotated[int,
        P("Relay_Count", "number of repetitions of the trace", least=1, most=10**6)]
    time_unit: Annotated[
        str,
        P("Time_Unit", "unit of time stamps", choices=("PICOSECOND", "NANOSECOND", "MICROSECOND"))]
    # fmt: on


@dataclass(frozen=True)
class Scenario:
    """Flows that run concurrently on one drive.

    ``number``: number of the scenario in the file, from 1. ``source``: path of the file. ``lines``:
    line of the file at which each flow starts.
    """

    number: int
    flows: tuple[FlowParameters, ...]
    source: str = dataclasses.field(default="", compare=False)
    lines: tuple[int, ...] = dataclasses.field(default=(), compare=False)
    skipped: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    """Parameters of the file that were skipped, each with the reason."""

    def place(self, flow: int) -> str:
        """Return the beginning of an error message about a flow: file, line, flow and scenario."""
        line = f"line {self.lines[flow]}: " if self.lines else ""
        return f"{self.source}: {line}flow {flow} of scenario {self.number}"


def read_workload(path: str | os.PathLike[str]) -> tuple[Scenario, ...]:
    """Return the scenarios of the file workload.xml at ``path``, which run one after another.

    Raises InputError if the file is invalid; the message states file, line, parameter, value and
    the valid values. A parameter may be missing only if it has no effect.
    """
    where = os.fspath(path)
    root = read_document(where, _ROOT)
    scenarios = []
    for number, child in enumerate(root.children, 1):
        _expect(child, (_SCENARIO,), where)
        scenarios.append(_scenario(child, number, where))
    if not scenarios:
        raise InputError(f"{where}: line {root.line}: {_SCENARIO} is missing; add at least one")
    return tuple(scenarios)


def _expect(element: Element, names: Sequence[str], where: str) -> None:
    if element.name not in names:
        near = nearest(element.name, names) or " or ".join(names)
        raise InputError(
            f"{where}: line {element.line}: {element.name} is not expected here; use {near}"
        )


def _scenario(element: Element, number: int, where: str) -> Scenario:
    flows, lines, skipped = [], [], []
    for child in element.children:
        _expect(child, (_SYNTHETIC, _TRACE), where)
        flows.append(_flow(child, where))
        lines.append(child.line)
        skipped += [name for grandchild in child.children if (name := grandchild.name) in SKIPPED]
    place = f"{where}: line {element.line}: scenario {number} has"
    if not flows:
        raise InputError(f"{place} no flows; add at least one")
    if len(flows) > MOST_FLOWS:
        raise InputError(f"{place} {len(flows)} flows; use at most {MOST_FLOWS}")
    notes = tuple(f"{name}: {SKIPPED[name]}" for name in dict.fromkeys(skipped))
    return Scenario(number, tuple(flows), where, tuple(lines), notes)


def _flow(element: Element, where: str) -> FlowParameters:
    cls, other = (Synthetic, TraceBased) if element.name == _SYNTHETIC else (TraceBased, Synthetic)
    known = parameters(cls)
    mine = {key.p.name for key in known}
    elsewhere = {key.p.name: "the other type of flow" for key in parameters(other)}
    elsewhere = {name: s for name, s in elsewhere.items() if name not in mine}
    found = read(list(leaves(element, where)), known, where, SKIPPED, elsewhere)
    said = dict(found.values)
    complete(found, element.line, lambda key: _matters(key, said), _MEMORY)
    flow = cls(**found.values)
    if isinstance(flow, Synthetic):
        _check_synthetic(flow, f"{where}: line {element.line}")
    return flow


def _matters(parameter: Parameter, said: dict[str, Any]) -> bool:
    """Return True if a parameter has an effect. ``said``: values of the parameters in the file, by
    attribute."""
    kind = said.get("synthetic_generator_type")
    match parameter.attribute:
        case "percentage_of_hot_region":
            return said.get("address_distribution") == "RANDOM_HOTCOLD"
        case "address_alignment_unit_bytes":
            return said.get("generated_aligned_addresses") is not False
        case "variance_request_size_bytes":
            return said.get("request_size_distribution") != "FIXED"
        case "average_no_of_reqs_in_queue":
            return kind != "BANDWIDTH"
        case "bandwidth_bytes_per_s":
            return kind != "QUEUE_DEPTH"
        case "total_requests_to_generate":
            return not said.get("stop_time_ps")
    return True


def _check_synthetic(flow: Synthetic, where: str) -> None:
    if flow.address_distribution == "MIXED_STREAMING_RANDOM":
        raise flow.bad(
            where,
            "address_distribution",
            "MQSim does not implement it; use STREAMING, RANDOM_UNIFORM or RANDOM_HOTCOLD",
        )
    if flow.address_distribution == "RANDOM_HOTCOLD":
        if not 1 <= flow.percentage_of_hot_region <= 99:
            raise flow.bad(
                where,
                "percentage_of_hot_region",
                "all requests would address one region; use 1 to 99 with RANDOM_HOTCOLD",
            )
    if not flow.stop_time_ps and not flow.total_requests_to_generate:
        raise flow.bad(
            where,
            "total_requests_to_generate",
            "the flow has no requests; use a value of at least 1, or set Stop_Time",
        )


def check_scenario(scenario: Scenario, drive: Drive) -> None:
    """Raise InputError if the drive cannot run a scenario.

    A drive cannot run a scenario if a flow names a channel, chip, die or plane that the drive does
    not have, if a cache is unsupported or too small, or if the planes have too few blocks for all
    flows.
    """
    for at, flow in enumerate(scenario.flows):
        where = scenario.place(at)
        for attribute in IDS:
            ids, count = getattr(flow, attribute), drive.counts[attribute]
            if ids[-1] >= count:
                raise flow.bad(
                    where,
                    attribute,
                    f"the drive ({drive.source}) has {count}; use ids from 0 to {count - 1}",
                )
        mode = flow.device_level_data_caching_mode
        if mode != "TURNED_OFF" and drive.caching_mechanism == "SIMPLE":
            raise flow.bad(
                where,
                "device_level_data_caching_mode",
                "MQSim's SIMPLE cache ends with an error; use Caching_Mechanism ADVANCED, or "
                "TURNED_OFF",
            )
    _check_room(scenario, drive)


def _check_room(scenario: Scenario, drive: Drive) -> None:
    flows = len(scenario.flows)
    least = OPEN_BLOCKS * flows + RESERVE + 1
    if drive.block_no_per_plane < least:
        raise drive.bad(
            "block_no_per_plane",
            f"{flows} flows keep {OPEN_BLOCKS} blocks of a plane open each, and writes wait below "
            f"{RESERVE} free blocks; must be at least {least}",
        )
    cached = any(flow.device_level_data_caching_mode != "TURNED_OFF" for flow in scenario.flows)
    split = flows if drive.data_cache_sharing_mode == "EQUAL_PARTITIONING" else 1
    if cached and drive.data_cache_capacity_bytes // drive.page_capacity_bytes < split:
        raise drive.bad(
            "data_cache_capacity_bytes",
            f"must be at least a page of {drive.page_capacity_bytes} bytes"
            + (f" for each of {flows} flows" if split > 1 else ""),
        )
    split = flows if drive.cmt_sharing_mode == "EQUAL_PARTITIONING" else 1
    if not drive.ideal_mapping_table and map_entries(drive) < split:
        raise drive.bad(
            "cmt_capacity_bytes",
            "must hold at least one entry" + (f" for each of {flows} flows" if split > 1 else ""),
        )


def spelled_out(flow: FlowParameters) -> dict[str, Any]:
    """Return the parameters of the flow by attribute name, to be stored in the results."""
    values = {key.attribute: getattr(flow, key.attribute) for key in parameters(type(flow))}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }
