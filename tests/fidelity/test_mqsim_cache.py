"""MQSim's data cache: its DRAM's time by arithmetic, its results by MQSim's own.

MQSim's figures: commit 7ec40e3 with its collection repaired, one run each of these parameters.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from ondie.emu.nvme import mqsim_cache_dram as dram
from ondie.emu.replay.mqsim import data_cache as caching
from ondie.emu.replay.mqsim import flash_counts
from ondie.emu.replay.mqsim import to_engine as simulate
from ondie.emu.replay.mqsim.flows import flows as make_flows
from ondie.emu.replay.mqsim.run import read_pair
from ondie.emu.replay.statistics import statistics
from tests.config.mqsim_files import drive_xml, flow_xml, workload_xml

DRIVE = {
    "Preemptible_GC_Enabled": "false",
    "Static_Wearleveling_Enabled": "false",
    "Channel_Transfer_Rate": "1000",
    "Flash_Technology": "SLC",
    "CMD_Suspension_Support": "NONE",
    "Die_No_Per_Chip": "1",
    "Plane_No_Per_Die": "1",
    "Data_Cache_DRAM_Data_Rate": "800",
    "Data_Cache_DRAM_Data_Busrt_Size": "4",
    "Data_Cache_DRAM_tRCD": "13",
    "Data_Cache_DRAM_tCL": "13",
    "Data_Cache_DRAM_tRP": "13",
}
FLOW = {
    "Die_IDs": "0",
    "Plane_IDs": "0",
    "Working_Set_Percentage": "1",
    "Synthetic_Generator_Type": "QUEUE_DEPTH",
    "Read_Percentage": "0",
    "Address_Distribution": "RANDOM_UNIFORM",
    "Address_Alignment_Unit": "8",
    "Request_Size_Distribution": "FIXED",
    "Average_Request_Size": "8",
    "Average_No_of_Reqs_in_Queue": "32",
    "Bandwidth": "262144",
    "Total_Requests_To_Generate": "200000",
}
W, R, WR = "WRITE_CACHE", "READ_CACHE", "WRITE_READ_CACHE"


def pair(tmp_path, kib, *changed, **drive):
    paths = tmp_path / "ssd.xml", tmp_path / "load.xml"
    paths[0].write_text(drive_xml(**DRIVE | {"Data_Cache_Capacity": str(kib * 1024)} | drive))
    flows = [
        flow_xml(**FLOW | {"Device_Level_Data_Caching_Mode": m} | changes) for m, changes in changed
    ]
    paths[1].write_text(workload_xml(flows))
    d, scenarios = read_pair(*paths)
    return d, make_flows(d, scenarios[0], frozenset(), [])


def results(d, flows):
    done = simulate.played(d, flows, frozenset())
    count = flash_counts.counters(done.counters)
    return done, statistics(
        done.requests, count, page_bytes=d.page_capacity_bytes, half=None, wall_s=1, config={}
    )


SLOW = {"Data_Cache_DRAM_Data_Rate": "100", "Data_Cache_DRAM_Data_Busrt_Size": "1"}
READING = {"Read_Percentage": "70"}
WIDE = {"Working_Set_Percentage": "5"}
HALF = {"Average_No_of_Reqs_in_Queue": "16", "Total_Requests_To_Generate": "100000"} | WIDE
CASES = {
    "what all is written": (16384, [(W, {"Working_Set_Percentage": "100"})], {}, 63422.18, 504.499),
    "hot pages": (
        16384, [(W, {"Address_Distribution": "RANDOM_HOTCOLD"})], {}, 177198.85, 180.586,
    ),
    "reads beside": (1024, [(W, READING | WIDE)], {}, 182950.01, 174.857),
    "evictions": (256, [(W, {"Average_No_of_Reqs_in_Queue": "8"})], {}, 62681.94, 127.628),
    "reads alone": (
        65536, [(R, {"Read_Percentage": "100", "Total_Requests_To_Generate": "300000"})], {},
        432530.13, 73.968,
    ),
    "reads and writes": (32768, [(WR, READING)], {}, 243212.78, 131.516),
    "reads kept, writes past them": (262144, [(R, READING)], {}, 115432.31, 276.915),
    "slow DRAM": (
        262144,
        [(W, {"Working_Set_Percentage": "100", "Address_Distribution": "STREAMING",
              "Address_Alignment_Unit": "256", "Average_Request_Size": "256",
              "Average_No_of_Reqs_in_Queue": "4", "Total_Requests_To_Generate": "20000"})],
        SLOW,
        3049.5234, 1311.582,
    ),
    "a cache each": (
        8192, [(W, HALF), (W, HALF | {"Seed": "6533", "Read_Percentage": "50"})],
        {"Data_Cache_Sharing_Mode": "EQUAL_PARTITIONING"}, 99936.33, 258.458,
    ),
}  # fmt: skip


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CASES)
def test_mqsims_own_results(tmp_path, name):
    """Operations per second and the mean latency within 0.2 %."""
    kib, flows, drive, iops, mean_us = CASES[name]
    _, found = results(*pair(tmp_path, kib, *flows, **drive))
    assert found["iops"] == pytest.approx(iops, rel=0.002)
    assert found["latency_us"]["all"]["mean"] == pytest.approx(mean_us, rel=0.002)


EVICTING = {
    "Working_Set_Percentage": "1", "Total_Requests_To_Generate": "60000",
    "Average_No_of_Reqs_in_Queue": "16", "Channel_IDs": "0,1",
}  # fmt: skip


def test_pages_that_another_flow_evicts(tmp_path):
    """MQSim gives 3,267 us, cut to whole us, for both flows; 3,266 without its defect."""
    parts = {"Seed": "6533", "Average_Request_Size": "6", "Address_Alignment_Unit": "2"}
    d, flows = pair(tmp_path, 64, (W, EVICTING), (W, EVICTING | parts))
    for quirk, whole_us in (("evicted_pages", [3267, 3267]), ("none", [3266, 3266])):
        done = simulate.played(d, flows, frozenset([quirk]))
        took = [each["end"] - each["start"] for each in done.requests]
        assert [int(each.mean() / 1e6) for each in took] == whole_us


@pytest.mark.parametrize(
    ("drive", "n_bytes", "ns"),
    [
        # 13 + 13 + (4096 // 4 // 2) x 1.25
        ({}, 4096, 666),
        # two rows' worth: (8192 // 4 // 2 x 1.25 + 13) x (16384 // 8192 // 2) + 2 x 26 + 0
        ({}, 16384, 1345),
        # 13 + 13 + (8192 // 1 // 2) x 10
        (SLOW, 8192, 40_986),
        # (40,960 + 13) x 8 + 2 x 26
        (SLOW, 131072,
         327_836),
    ],
)  # fmt: skip
def test_the_time_of_an_access(tmp_path, drive, n_bytes, ns):
    d, flows = pair(tmp_path, 1024, (W, {}), **drive)
    _, arrays = simulate.prepared(d, flows, frozenset())
    assert dram.access_ps(arrays.handle(), n_bytes) == ns * 1000


def test_a_write_ends_in_dram(tmp_path):
    """Doorbell 8, fetch 8, entry 25, request for data 8, data 1248, DRAM 666, completion 11 ns;
    from the second on the doorbell of the completion before, 8, comes first."""
    one = {"Average_No_of_Reqs_in_Queue": "1", "Total_Requests_To_Generate": "50"}
    done, _ = results(*pair(tmp_path, 16384, (W, one)))
    took = done.requests[0]["end"] - done.requests[0]["start"]
    assert took.tolist() == [1_974_000, *[1_982_000] * 49]
    assert done.counters["program_pages"] == 50  # each new page went to flash at once


def test_written_again_it_stays_in_dram(tmp_path):
    """A working set of eight pages: once written and on flash, a page waits for its eviction, which
    never comes."""
    few = {"Working_Set_Percentage": "1", "Total_Requests_To_Generate": "3000"}
    small = {"Block_No_Per_Plane": "16", "Page_No_Per_Block": "2", "Flash_Channel_Count": "1"}
    ids = {"Channel_IDs": "0", "Average_No_of_Reqs_in_Queue": "1"}
    d, flows = pair(tmp_path, 1024, (W, few | ids), **small)
    done, _ = results(d, flows)
    pages = len(np.unique(done.requests[0]["offset"]))
    c = done.counters
    assert pages <= c["program_pages"] == c["destaged_pages"] < 4 * pages
    assert c["cache_write_pages"] == 3000


def test_sizes(tmp_path):
    """A cache each takes its part of the pages; a page for each plane may be on its way."""
    d, flows = pair(tmp_path, 1024, (W, {}), (R, {}), Data_Cache_Sharing_Mode="EQUAL_PARTITIONING")
    sizes = caching.sizes(d, flows)
    assert (sizes.pages, sizes.groups, sizes.limit) == (128, 2, 64 * 8)
    d, flows = pair(tmp_path, 1024, ("TURNED_OFF", {}))
    assert caching.sizes(d, flows) is None


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
sys.path.insert(0, {root!r})
from tests.fidelity.test_mqsim_cache import repeat
np.savez({file!r}, **repeat(Path({folder!r})))
"""


def repeat(tmp_path):
    """Two flows that share a small cache: evictions, waits, hits and fills."""
    few = {"Total_Requests_To_Generate": "500", "Average_No_of_Reqs_in_Queue": "24"}
    d, flows = pair(
        tmp_path, 64, (WR, few | READING), (W, few | {"Average_Request_Size": "20"}),
        Flash_Channel_Count="2", Block_No_Per_Plane="64",
    )  # fmt: skip
    done = simulate.played(d, flows, frozenset())
    out = {f"requests{i}": done.requests[i][["start", "end", "offset"]] for i in range(2)}
    return out | {"count": np.array(list(done.counters.values()))}


@pytest.mark.soak
def test_uncompiled(tmp_path, root, monkeypatch):
    monkeypatch.setitem(FLOW, "Channel_IDs", "0,1")
    compiled = repeat(tmp_path)
    file = str(tmp_path / "plain.npz")
    script = SCRIPT.format(root=str(root), file=file, folder=str(tmp_path))
    script = script.replace("np.savez", "from tests.fidelity import test_mqsim_cache\n"
                            "test_mqsim_cache.FLOW['Channel_IDs'] = '0,1'\nnp.savez")  # fmt: skip
    env = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, env=env, cwd=root)
    plain = np.load(file)
    for name, array in compiled.items():
        assert plain[name].tolist() == array.tolist(), name
