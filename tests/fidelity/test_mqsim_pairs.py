"""Pairs of two flows with --quirks: simultaneous events, priority classes and DRAM as in MQSim.

MQSim's figures: commit 7ec40e3 with its collection repaired (wear-leveling options in their places,
the erase of a postponed collection queued, requests behind a moving page dispatched again, resumed
writes held back by it), one run each of these parameters; the mean response times in us are sums of
all response times, printed with six digits.
"""

import numpy as np
import pytest

from ondie.emu.nand import scheduler_statistics
from ondie.emu.replay.mqsim import flash_counts, quirks
from ondie.emu.replay.mqsim import to_engine as simulate
from ondie.emu.replay.mqsim.flows import flows as make_flows
from ondie.emu.replay.mqsim.run import read_pair
from tests.config.mqsim_files import SYNTHETIC, drive_xml, flow_xml, workload_xml

DRIVE = {
    "Static_Wearleveling_Enabled": "false", "CMD_Suspension_Support": "NONE",
    "Flash_Technology": "SLC", "Data_Cache_DRAM_tCL": "13", "Data_Cache_DRAM_tRP": "13",
    "Page_No_Per_Block": "64", "GC_Block_Selection_Policy": "GREEDY",
    "Ideal_Mapping_Table": "true", "CMT_Capacity": "65536", "Page_Read_Latency_LSB": "75000",
    "Block_Erase_Latency": "3800000", "Preemptible_GC_Enabled": "false",
    "Enabled_Preconditioning": "false", "Page_Program_Latency_LSB": "750000",
    "GC_Exec_Threshold": "0.05", "Transaction_Scheduling_Policy": "PRIORITY_OUT_OF_ORDER",
}  # fmt: skip
FLOW = {
    "Synthetic_Generator_Type": "QUEUE_DEPTH", "Read_Percentage": "0",
    "Percentage_of_Hot_Region": "20", "Request_Size_Distribution": "FIXED",
    "Variance_Request_Size": "0", "Address_Distribution": "RANDOM_UNIFORM",
    "Device_Level_Data_Caching_Mode": "WRITE_CACHE", "Priority_Class": "HIGH",
    "Generated_Aligned_Addresses": "true", "Initial_Occupancy_Percentage": "50",
}  # fmt: skip


def drive(channels, chips, dies, planes, blocks, page, spare, **others):
    return {
        "Flash_Channel_Count": channels, "Chip_No_Per_Channel": chips, "Die_No_Per_Chip": dies,
        "Plane_No_Per_Die": planes, "Block_No_Per_Plane": blocks, "Page_Capacity": page,
        "Overprovisioning_Ratio": spare,
    } | others  # fmt: skip


def flow(seed, size, depth, total, working, unit, **others):
    return {
        "Seed": seed, "Average_Request_Size": size, "Average_No_of_Reqs_in_Queue": depth,
        "Total_Requests_To_Generate": total, "Working_Set_Percentage": working,
        "Address_Alignment_Unit": unit,
    } | others  # fmt: skip


def cache(kind, capacity, rate, burst):
    return {
        "Data_Cache_Sharing_Mode": kind, "Data_Cache_Capacity": capacity,
        "Data_Cache_DRAM_Data_Rate": rate, "Data_Cache_DRAM_Data_Busrt_Size": burst,
    }  # fmt: skip


EACH = "EQUAL_PARTITIONING"
NO_CACHE = {"Device_Level_Data_Caching_Mode": "TURNED_OFF"}
ANY = {"Generated_Aligned_Addresses": "false"}
CASES = {
    "classes under collection": (
        drive(4, 2, 1, 2, 64, 8192, 0.2, Channel_Transfer_Rate=500, Plane_Allocation_Scheme="CWDP"),
        cache(EACH, 1048576, 800, 4),
        [flow(5016, 8, 1, 60000, 30, 8, **NO_CACHE, **ANY),
         flow(5186, 8, 4, 32768, 85, 8, **NO_CACHE, Priority_Class="LOW",
              Initial_Occupancy_Percentage=70)],
        [1081.314009, 1173.344964],
    ),
    "a slow loop beside a fast flow": (
        drive(4, 2, 2, 2, 128, 4096, 0.25, Channel_Transfer_Rate=200,
              Plane_Allocation_Scheme="CDWP"),
        cache("SHARED", 2097152, 100, 4),
        [flow(8017, 8, 4, 60000, 50, 16, Priority_Class="LOW", Initial_Occupancy_Percentage=70),
         flow(8636, 16, 16, 45000, 50, 16, Address_Distribution="RANDOM_HOTCOLD")],
        [1389.363722, 3903.045479],
    ),
    "a cache each under collection": (
        drive(4, 2, 1, 1, 160, 16384, 0.3, Channel_Transfer_Rate=333,
              Plane_Allocation_Scheme="PCWD", GC_Exec_Threshold="0.15",
              Enabled_Preconditioning="true", Transaction_Scheduling_Policy="OUT_OF_ORDER",
              Page_Program_Latency_LSB=600000),
        cache(EACH, 8388608, 100, 1),
        [flow(5213, 5, 32, 40960, 85, 16, Initial_Occupancy_Percentage=70),
         flow(5593, 16, 1, 60000, 50, 16, Initial_Occupancy_Percentage=70)],
        [6408.311401, 352.533583],
    ),
    "evictions of a shared cache": (
        drive(2, 1, 2, 1, 64, 4096, 0.125, Channel_Transfer_Rate=500,
              Plane_Allocation_Scheme="PCWD", Page_Program_Latency_LSB=600000),
        cache("SHARED", 2097152, 100, 1),
        [flow(198, 16, 32, 6144, 30, 8), flow(6985, 16, 4, 6144, 30, 8, **ANY)],
        [19487.201075, 5497.114101],
    ),
}  # fmt: skip


QUEUES = (
    drive(2, 2, 2, 2, 96, 8192, 0.07, Channel_Transfer_Rate=200,
          Plane_Allocation_Scheme="PCWD", Page_Program_Latency_LSB=600000,
          Transaction_Scheduling_Policy="OUT_OF_ORDER", GC_Exec_Threshold="0.15",
          Preemptible_GC_Enabled="true"),
    cache("SHARED", 4194304, 100, 1),
    [flow(9719, 8, 16, 60000, 50, 16, Address_Distribution="RANDOM_HOTCOLD"),
     flow(1747, 5, 1, 60000, 30, 16, Address_Distribution="RANDOM_HOTCOLD")],
    [],
)  # fmt: skip
"""A drive with two planes per die, whose collection shares commands with the host."""


def pair(tmp_path, name):
    """Return (drive, flows, quirks, MQSim's mean response times in us) of a case, or of QUEUES."""
    parts, cached, flows, means = CASES[name] if name else QUEUES
    wanted = {key: str(value) for key, value in (DRIVE | parts | cached).items()}
    places = {
        f"{part}_IDs": ",".join(map(str, range(int(wanted[count]))))
        for part, count in (
            ("Channel", "Flash_Channel_Count"), ("Chip", "Chip_No_Per_Channel"),
            ("Die", "Die_No_Per_Chip"), ("Plane", "Plane_No_Per_Die"),
        )
    }  # fmt: skip
    of_flows = [{k: str(v) for k, v in (FLOW | places | each).items()} for each in flows]
    paths = tmp_path / "ssd.xml", tmp_path / "load.xml"
    paths[0].write_text(drive_xml(**wanted))
    paths[1].write_text(workload_xml([flow_xml(SYNTHETIC, **each) for each in of_flows]))
    d, scenarios = read_pair(*paths)
    names = quirks.obeyed(True)
    return d, make_flows(d, scenarios[0], names, []), names, means


def means_of(done):
    return [float((each["end"] - each["start"]).mean()) / 1e6 for each in done.requests]


@pytest.mark.parametrize("name", CASES)
def test_mean_response_times_are_those_of_mqsim(tmp_path, name):
    """Within 0.01 %, also under collection: the commands are those of MQSim, in its order."""
    d, flows, names, means = pair(tmp_path, name)
    assert means_of(simulate.played(d, flows, names)) == pytest.approx(means, rel=1e-4)


def test_the_order_of_simultaneous_events_matters(tmp_path):
    """Without the quirk, the slow loop misses MQSim's mean by more than 1 %."""
    d, flows, names, means = pair(tmp_path, "a slow loop beside a fast flow")
    found = means_of(simulate.played(d, flows, names - {"event_order"}))
    assert abs(found[0] / means[0] - 1) > 0.01


def test_operations_leave_the_queue_that_they_entered(tmp_path, monkeypatch):
    """Also those that join a command from another queue: no queue has a negative length."""
    kept = []
    watch = scheduler_statistics.watch
    monkeypatch.setattr(
        scheduler_statistics, "watch", lambda arrays, *a: (kept.append(arrays), watch(arrays, *a))
    )
    d, flows, names, _ = pair(tmp_path, "")
    done = simulate.played(d, flows, names)
    assert flash_counts.counters(done.counters)["gc_writes"] > 100
    use = kept[0].queue_use
    left = use.entered - use.left
    assert left.min() == 0 and left.max() <= 1
    assert np.count_nonzero(use.entered) > 8 and kept[0].issued[1, 1] > 1000
