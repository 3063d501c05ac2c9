"""ssdconfig.xml: the parameters of MQSim's host and device as one frozen record.

Owns Drive, the reader of the file, and the geometry of the drive. Does not own workloads
(workload_xml.py) or the translation to the engine (to_engine.py).
Source: MQSim's Execution_Parameter_Set: names, units and built-in values. The valid ranges are this
project's: they contain all values that are meaningful for a drive.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from dataclasses import dataclass
from typing import Annotated, Any

from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.replay.mqsim.parameter import (
    P,
    Parameter,
    Values,
    complete,
    parameters,
    read,
    spelled,
)
from ondie.emu.replay.mqsim.xml import Element, leaves, read_document
from ondie.emu.units import InputError

PS_PER_NS = 1000
NS = {"unit": "ns", "scale": PS_PER_NS}
SECOND = 10**9  # in ns
MOST_PAGE = 32768  # 64 sectors: MQSim keeps one bit of a 64-bit word for each
SCHEMES = tuple("".join(order) for order in itertools.permutations("CWDP"))
_ROOT = "Execution_Parameter_Set"
HOST_SET, DEVICE_SET, FLASH_SET = (
    "Host_Parameter_Set",
    "Device_Parameter_Set",
    "Flash_Parameter_Set",
)


@dataclass(frozen=True)
class Drive:
    """Parameters of ssdconfig.xml, one field per parameter; the name of a field is the parameter's
    name in lower case, followed by the unit. Times are in ps."""

    # fmt: off
    # --- Host_Parameter_Set
    pcie_lane_bandwidth_bytes_per_s: Annotated[
        int, P("PCIe_Lane_Bandwidth", "rate of one lane in each direction, payload and overhead",
               "GB/s", 0, 1000, 10**9, default="0.4")]
    pcie_lane_count: Annotated[int, P("PCIe_Lane_Count", "lanes", least=1, most=64, default="4")]
    sata_processing_delay_ps: Annotated[
        int, P("SATA_Processing_Delay", "host time per request and completion, SATA only",
               most=SECOND, default="400000", **NS)]
    enable_response_time_logging: Annotated[
        bool, P("Enable_ResponseTime_Logging", "write a log of mean response times in addition "
        "to the results",
                default="false")]
    response_time_logging_period_length_ps: Annotated[
        int, P("ResponseTime_Logging_Period_Length", "time between two lines "
               "of the log of response times",
               least=1, most=10**15, default="400000", **NS)]
    # --- Device_Parameter_Set
    seed: Annotated[int, P("Seed", "seed of the drive's random choices", default="123")]
    enabled_preconditioning: Annotated[
        bool, P("Enabled_Preconditioning", "the drive is filled before the run", default="true")]
    memory_type: Annotated[str, P("Memory_Type", "", choices=("FLASH",), default="FLASH")]
    host_interface_type: Annotated[
        str, P("HostInterface_Type", "queue pair per flow, or one queue for all",
               choices=("NVME", "SATA"), default="NVME")]
    io_queue_depth: Annotated[
        int, P("IO_Queue_Depth", "entries of a submission queue", least=2, most=65535,
               default="1024")]
    queue_fetch_size: Annotated[
        int, P("Queue_Fetch_Size", "largest number of requests of a flow that the drive "
        "processes at the same time", least=1,
               most=65535, default="512")]
    caching_mechanism: Annotated[
        str, P("Caching_Mechanism", "data cache", choices=("SIMPLE", "ADVANCED"),
               default="ADVANCED")]
    data_cache_sharing_mode: Annotated[
        str, P("Data_Cache_Sharing_Mode", "", choices=("SHARED", "EQUAL_PARTITIONING"),
               default="SHARED")]
    data_cache_capacity_bytes: Annotated[
        int, P("Data_Cache_Capacity", "DRAM of the data cache", "bytes", 1, 2**50,
               default="536870912")]
    data_cache_dram_row_size_bytes: Annotated[
        int, P("Data_Cache_DRAM_Row_Size", "", "bytes", 1, 2**24, default="8192")]
    data_cache_dram_data_rate_hz: Annotated[
        int, P("Data_Cache_DRAM_Data_Rate", "transfers per second", "MT/s", 1, 10**6, 10**6,
               default="800")]
    data_cache_dram_data_burst_size_bytes: Annotated[
        int, P("Data_Cache_DRAM_Data_Busrt_Size", "bytes of a transfer; the spelling is MQSim's",
               "bytes", 1, 1024, default="4", aliases=("Data_Cache_DRAM_Data_Burst_Size",))]
    data_cache_dram_trcd_ps: Annotated[
        int, P("Data_Cache_DRAM_tRCD", "", most=10**6, default="13", **NS)]
    data_cache_dram_tcl_ps: Annotated[
        int, P("Data_Cache_DRAM_tCL", "", most=10**6, default="13", **NS)]
    data_cache_dram_trp_ps: Annotated[
        int, P("Data_Cache_DRAM_tRP", "", most=10**6, default="13", **NS)]
    address_mapping: Annotated[
        str, P("Address_Mapping", "", choices=("PAGE_LEVEL", "HYBRID"), default="PAGE_LEVEL")]
    ideal_mapping_table: Annotated[
        bool, P("Ideal_Mapping_Table", "address lookups take no time", default="false")]
    cmt_capacity_bytes: Annotated[
        int, P("CMT_Capacity", "DRAM of the cached mapping table", "bytes", 1, 2**50,
               default="2097152")]
    cmt_sharing_mode: Annotated[
        str, P("CMT_Sharing_Mode", "", choices=("SHARED", "EQUAL_PARTITIONING"),
               default="SHARED")]
    plane_allocation_scheme: Annotated[
        str, P("Plane_Allocation_Scheme", "order in which consecutive pages vary: channel, "
        "way, die, "
               "plane", choices=SCHEMES, default="CWDP")]
    transaction_scheduling_policy: Annotated[
        str, P("Transaction_Scheduling_Policy", "",
               choices=("OUT_OF_ORDER", "PRIORITY_OUT_OF_ORDER", "FLIN"),
               default="OUT_OF_ORDER")]
    overprovisioning_ratio: Annotated[
        float, P("Overprovisioning_Ratio", "share of the pages that are not exported", most=1,
                 default="0.07")]
    gc_exec_threshold: Annotated[
        float, P("GC_Exec_Threshold", "share of free blocks below which collection starts",
                 most=1, default="0.05")]
    gc_block_selection_policy: Annotated[
        str, P("GC_Block_Selection_Policy", "victims",
               choices=("GREEDY", "RGA", "RANDOM", "RANDOM_P", "RANDOM_PP", "FIFO"),
               default="RGA")]
    use_copyback_for_gc: Annotated[
        bool, P("Use_Copyback_for_GC", "collection moves pages inside the chip", default="false")]
    preemptible_gc_enabled: Annotated[
        bool, P("Preemptible_GC_Enabled", "user requests have priority over collection until it "
        "is urgent",
                default="true")]
    gc_hard_threshold: Annotated[
        float, P("GC_Hard_Threshold", "share of free blocks below which collection "
                 "is urgent", most=1,
                 default="0.005")]
    dynamic_wearleveling_enabled: Annotated[
        bool, P("Dynamic_Wearleveling_Enabled", "the least worn free block is opened first",
                default="true")]
    static_wearleveling_enabled: Annotated[
        bool, P("Static_Wearleveling_Enabled", "blocks of cold data are moved "
                "(static wear leveling)", default="true")]
    static_wearleveling_threshold: Annotated[
        int, P("Static_Wearleveling_Threshold", "difference in erase counts that "
        "starts wear leveling", least=1,
               default="100")]
    preferred_suspend_erase_time_for_read_ps: Annotated[
        int, P("Preferred_suspend_erase_time_for_read", "least time left "
               "of an erase that a read suspends",
               most=10**12, default="700000",
               aliases=("Prefered_suspend_erase_time_for_read",), **NS)]
    preferred_suspend_erase_time_for_write_ps: Annotated[
        int, P("Preferred_suspend_erase_time_for_write", "least time left "
               "of an erase that a write suspends",
               most=10**12, default="700000", **NS)]
    preferred_suspend_write_time_for_read_ps: Annotated[
        int, P("Preferred_suspend_write_time_for_read", "least time left "
               "of a program that a read suspends",
               most=10**12, default="100000", **NS)]
    flash_channel_count: Annotated[int, P("Flash_Channel_Count", "", least=1, most=1024,
                                          default="8")]
    flash_channel_width_bytes: Annotated[int, P("Flash_Channel_Width", "", "bytes", 1, 64,
                                                default="1")]
    channel_transfer_rate_hz: Annotated[
        int, P("Channel_Transfer_Rate", "transfers of the width per second", "MT/s", 1, 10**5,
               10**6, default="300")]
    chip_no_per_channel: Annotated[int, P("Chip_No_Per_Channel", "", least=1, most=1024,
                                          default="4")]
    flash_comm_protocol: Annotated[str, P("Flash_Comm_Protocol", "", choices=("NVDDR2",),
                                          default="NVDDR2")]
    # --- Flash_Parameter_Set
    flash_technology: Annotated[
        str, P("Flash_Technology", "", choices=("SLC", "MLC", "TLC"), default="MLC")]
    cmd_suspension_support: Annotated[
        str, P("CMD_Suspension_Support", "operations that can be suspended",
               choices=("NONE", "PROGRAM", "PROGRAM_ERASE", "ERASE"), default="ERASE")]
    page_read_latency_lsb_ps: Annotated[
        int, P("Page_Read_Latency_LSB", "", least=1, most=SECOND, default="75000", **NS)]
    page_read_latency_csb_ps: Annotated[
        int, P("Page_Read_Latency_CSB", "TLC", least=1, most=SECOND, default="75000", **NS)]
    page_read_latency_msb_ps: Annotated[
        int, P("Page_Read_Latency_MSB", "MLC, TLC", least=1, most=SECOND, default="75000", **NS)]
    page_program_latency_lsb_ps: Annotated[
        int, P("Page_Program_Latency_LSB", "", least=1, most=SECOND, default="750000", **NS)]
    page_program_latency_csb_ps: Annotated[
        int, P("Page_Program_Latency_CSB", "TLC", least=1, most=SECOND, default="750000", **NS)]
    page_program_latency_msb_ps: Annotated[
        int, P("Page_Program_Latency_MSB", "MLC, TLC", least=1, most=SECOND, default="750000",
               **NS)]
    block_erase_latency_ps: Annotated[
        int, P("Block_Erase_Latency", "", least=1, most=10 * SECOND, default="3800000", **NS)]
    block_pe_cycles_limit: Annotated[
        int, P("Block_PE_Cycles_Limit", "", least=1, default="10000",
               ignored="MQSim uses it only for the size of a table and retires no blocks")]
    suspend_erase_time_ps: Annotated[
        int, P("Suspend_Erase_Time", "time to suspend an erase", most=SECOND,
               default="700000", **NS)]
    suspend_program_time_ps: Annotated[
        int, P("Suspend_Program_Time", "time to suspend a program", most=SECOND,
               default="100000", **NS)]
    die_no_per_chip: Annotated[int, P("Die_No_Per_Chip", "", least=1, most=64, default="2")]
    plane_no_per_die: Annotated[int, P("Plane_No_Per_Die", "", least=1, most=64, default="2")]
    block_no_per_plane: Annotated[
        int, P("Block_No_Per_Plane", "", least=1, most=10**7, default="2048")]
    page_no_per_block: Annotated[int, P("Page_No_Per_Block", "", least=1, most=10**6,
                                        default="256")]
    page_capacity_bytes: Annotated[
        int, P("Page_Capacity", "", "bytes", SECTOR_BYTES, MOST_PAGE, default="8192")]
    page_metadat_capacity_bytes: Annotated[
        int, P("Page_Metadat_Capacity", "the spelling is MQSim's", "bytes", default="1872",
               aliases=("Page_Metadata_Capacity",),
               ignored="MQSim moves no metadata")]
    # fmt: on

    source: str = dataclasses.field(default="", compare=False)
    """Path of the file from which the drive was read, for error messages."""

    @property
    def planes(self) -> int:
        """Number of planes of the whole drive."""
        return (
            self.flash_channel_count
            * self.chip_no_per_channel
            * self.die_no_per_chip
            * self.plane_no_per_die
        )

    @property
    def page_sectors(self) -> int:
        """Number of 512-byte sectors per page."""
        return self.page_capacity_bytes // SECTOR_BYTES

    @property
    def physical_pages(self) -> int:
        """Number of physical pages of the whole drive."""
        return self.planes * self.block_no_per_plane * self.page_no_per_block

    @property
    def counts(self) -> dict[str, int]:
        """Number of channels, of chips per channel, of dies per chip and of planes per die. The
        keys are the workload parameters that list the ids of these parts."""
        return {
            "channel_ids": self.flash_channel_count,
            "chip_ids": self.chip_no_per_channel,
            "die_ids": self.die_no_per_chip,
            "plane_ids": self.plane_no_per_die,
        }

    def plane_sectors(self, share: int) -> int:
        """Return the number of logical sectors of a plane that each flow can address if ``share``
        flows use the plane."""
        whole = self.block_no_per_plane * self.page_no_per_block * self.page_sectors
        return int(whole * (1.0 - self.overprovisioning_ratio) * 1.0 / share)

    def bad(self, attribute: str, words: str) -> InputError:
        """Return an InputError that names the file, the parameter and its value, followed by
        ``words``."""
        return _bad(self.source, attribute, getattr(self, attribute), words)


_SETS: dict[str, tuple[str, str]] = {
    HOST_SET: ("pcie_lane_bandwidth_bytes_per_s", "response_time_logging_period_length_ps"),
    DEVICE_SET: ("seed", "flash_comm_protocol"),
    FLASH_SET: ("flash_technology", "page_metadat_capacity_bytes"),
}
_ALL = parameters(Drive)
_PLACE = {k.attribute: at for at, k in enumerate(_ALL)}
SETS: dict[str, tuple[Parameter, ...]] = {
    name: _ALL[_PLACE[first] : _PLACE[last] + 1] for name, (first, last) in _SETS.items()
}
"""Parameters of each parameter set of ssdconfig.xml, in the order of the fields of Drive, by name
of the set."""


def read_drive(path: str | os.PathLike[str]) -> Drive:
    """Return the drive that the file ssdconfig.xml at ``path`` describes.

    Raises InputError if the file is invalid; the message states file, line, parameter, value and
    the valid values. A parameter may be missing only if it has no effect.
    """
    where = os.fspath(path)
    root = read_document(where, _ROOT)
    _known_sets(root, where)
    host, device = root.only(HOST_SET, where), root.only(DEVICE_SET, where)
    flash = device.only(FLASH_SET, where)
    found: list[tuple[Values, Element]] = []
    for name, element in ((HOST_SET, host), (DEVICE_SET, device), (FLASH_SET, flash)):
        elsewhere = {key.p.name: s for s, ks in SETS.items() if s != name for key in ks}
        inside = (FLASH_SET,) if name == DEVICE_SET else ()
        values = read(list(leaves(element, where, inside)), SETS[name], where, {}, elsewhere)
        found.append((values, element))
    said: dict[str, Any] = {}
    for values, _ in found:
        said |= values.values
    stated = dict(said)
    for values, element in found:
        complete(values, element.line, lambda key: _matters(key.attribute, stated), "state it")
        said |= values.values
    drive = Drive(**said, source=where)
    check_drive(drive)
    return drive


def _known_sets(root: Element, where: str) -> None:
    for child in root.children:
        if child.name not in (HOST_SET, DEVICE_SET):
            raise InputError(
                f"{where}: line {child.line}: {child.name} in {_ROOT}; "
                f"must be {HOST_SET} or {DEVICE_SET}"
            )


def _matters(attribute: str, said: dict[str, Any]) -> bool:
    """Return True if the parameter ``attribute`` has an effect. ``said``: values of the parameters
    in the file, by attribute."""
    match attribute:
        case "sata_processing_delay_ps":
            return said.get("host_interface_type") == "SATA"
        case "queue_fetch_size":
            return said.get("host_interface_type") != "SATA"
        case "response_time_logging_period_length_ps":
            return bool(said.get("enable_response_time_logging"))
        case "cmt_capacity_bytes" | "cmt_sharing_mode":
            return said.get("ideal_mapping_table") is not True
        case "gc_hard_threshold":
            return said.get("preemptible_gc_enabled") is not False
        case "static_wearleveling_threshold":
            return said.get("static_wearleveling_enabled") is not False
        case "page_read_latency_csb_ps" | "page_program_latency_csb_ps":
            return said.get("flash_technology") not in ("SLC", "MLC")
        case "page_read_latency_msb_ps" | "page_program_latency_msb_ps":
            return said.get("flash_technology") != "SLC"
        case "suspend_erase_time_ps":
            return said.get("cmd_suspension_support") not in ("NONE", "PROGRAM")
        case "suspend_program_time_ps":
            return said.get("cmd_suspension_support") not in ("NONE", "ERASE")
        case _ if attribute.startswith("preferred_suspend_"):
            return said.get("cmd_suspension_support") != "NONE"
    return True


def _bad(where: str, attribute: str, value: Any, words: str) -> InputError:
    parameter = _ALL[_PLACE[attribute]]
    return InputError(f"{where}: {parameter.p.name} is {spelled(parameter, value)}: {words}")


def check_drive(drive: Drive) -> None:
    """Raise InputError if a combination of parameters is invalid or not supported.

    The message names the file, the parameter and its value.
    """
    page, width = drive.page_capacity_bytes, drive.flash_channel_width_bytes
    if page % SECTOR_BYTES:
        near = max(SECTOR_BYTES, round(page / SECTOR_BYTES) * SECTOR_BYTES)
        raise drive.bad("page_capacity_bytes", f"use a multiple of {SECTOR_BYTES}, such as {near}")
    if SECTOR_BYTES % (2 * width):
        raise drive.bad(
            "flash_channel_width_bytes",
            f"must be 1, 2, 4, 8, 16, 32 or 64: a sector of {SECTOR_BYTES} bytes must be a whole "
            "number of "
            "pairs of transfers",
        )
    if drive.physical_pages * page >= 2**62:
        raise drive.bad(
            "block_no_per_plane", "the drive's capacity exceeds 2**62 bytes; use a smaller value"
        )
    for attribute in ("overprovisioning_ratio", "gc_exec_threshold"):
        if not 0 < getattr(drive, attribute) < 1:
            raise drive.bad(attribute, "use a value above 0 and below 1")
    if drive.plane_sectors(1) < drive.page_sectors:
        raise drive.bad(
            "overprovisioning_ratio", "less than one page per plane remains; use a smaller value"
        )
    row, burst = drive.data_cache_dram_row_size_bytes, drive.data_cache_dram_data_burst_size_bytes
    if row % (2 * burst):
        raise drive.bad(
            "data_cache_dram_row_size_bytes",
            f"must be a multiple of two transfers of {burst} bytes "
            "(Data_Cache_DRAM_Data_Busrt_Size)",
        )
    for attribute, refused, words in REFUSED:
        if getattr(drive, attribute) == refused:
            raise drive.bad(attribute, words)


REFUSED: list[tuple[str, Any, str]] = [
    ("address_mapping", "HYBRID", "MQSim does not implement it; use PAGE_LEVEL"),
    (
        "transaction_scheduling_policy",
        "FLIN",
        "MQSim ends with an exception; use OUT_OF_ORDER or PRIORITY_OUT_OF_ORDER",
    ),
]
"""Parameter values that are rejected: attribute of Drive, value, and a phrase that states the
reason and the supported values."""


def spelled_out(drive: Drive) -> dict[str, Any]:
    """Return the parameters of the drive by attribute name, to be stored in the results."""
    return {key.attribute: getattr(drive, key.attribute) for key in _ALL}


def scenario_drive(drive: Drive, number: int) -> Drive:
    """Return the drive of scenario ``number``, counted from 1.

    As in MQSim, the seed increases by 2 with each scenario.
    """
    return dataclasses.replace(drive, seed=drive.seed + 2 * (number - 1))


def map_entries(drive: Drive) -> int:
    """Return the number of entries in the cached mapping table.

    An entry consists of two page numbers and one bit for each sector.
    """
    bits = math.ceil(math.log2(drive.physical_pages) * 2 + drive.page_sectors)
    return drive.cmt_capacity_bytes // -(-bits // 8)
