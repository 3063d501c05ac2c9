"""MQSim's NVMe interface: flows that begin inside a page, and queues full of unfetched entries.

MQSim's figures: commit 7ec40e3 with its collection repaired, one run each of these parameters.
"""

import numpy as np
import pytest

from ondie.emu.replay import player as replay
from ondie.emu.replay.mqsim import flash_counts
from ondie.emu.replay.mqsim import to_engine as simulate
from ondie.emu.replay.mqsim.address_partition import Range
from ondie.emu.replay.mqsim.flows import flows as make_flows
from ondie.emu.replay.mqsim.quirks import met
from ondie.emu.replay.mqsim.run import read_pair
from tests.config.mqsim_files import drive_xml, flow_xml, workload_xml

DRIVE = {
    "IO_Queue_Depth": "64",
    "Preemptible_GC_Enabled": "false",
    "Static_Wearleveling_Enabled": "false",
    "Channel_Transfer_Rate": "1000",
    "Flash_Technology": "SLC",
    "CMD_Suspension_Support": "NONE",
    "Die_No_Per_Chip": "1",
    "Plane_No_Per_Die": "1",
    "Flash_Channel_Count": "4",
    "Chip_No_Per_Channel": "1",
    "Page_Capacity": "8192",
    "Overprovisioning_Ratio": "0.3",
    "Block_No_Per_Plane": "130",
    "Page_No_Per_Block": "64",
}
FLOW = {
    "Die_IDs": "0",
    "Plane_IDs": "0",
    "Channel_IDs": "0,1,2,3",
    "Chip_IDs": "0",
    "Working_Set_Percentage": "80",
    "Synthetic_Generator_Type": "QUEUE_DEPTH",
    "Read_Percentage": "0",
    "Address_Distribution": "RANDOM_UNIFORM",
    "Address_Alignment_Unit": "16",
    "Request_Size_Distribution": "FIXED",
    "Average_Request_Size": "16",
    "Average_No_of_Reqs_in_Queue": "16",
    "Bandwidth": "262144",
    "Total_Requests_To_Generate": "8000",
}
OTHER = {"Seed": "6533"}
READS, MIXED = {"Read_Percentage": "100"}, {"Read_Percentage": "50"}
OPEN = {"Synthetic_Generator_Type": "BANDWIDTH"}
HALF = {"Address_Alignment_Unit": "8", "Average_Request_Size": "8"}
CROSSING = {"Address_Alignment_Unit": "8"}
CACHED = {"Device_Level_Data_Caching_Mode": "WRITE_CACHE"}
BEHIND = (
    OPEN
    | READS
    | {  # at 3.6 times the drive's rate, so that 8600 of its requests wait
        "Bandwidth": "2000000000",
        "Average_Request_Size": "128",
        "Address_Alignment_Unit": "128",
        "Total_Requests_To_Generate": "12000",
    }
)
INSIDE = {"Overprovisioning_Ratio": "0.301"}  # the second flow begins 4 sectors behind a page's


def both(flow):
    """Two flows of the same kind."""
    return [flow, flow | OTHER]


CASES = {
    "inside a page: writes": (both({}), INSIDE),
    "inside a page: reads": (both(READS), INSIDE),
    "inside a page: reads and writes": (
        both(MIXED | {"Total_Requests_To_Generate": "14000"}), INSIDE,
    ),
    "inside a page: half pages": (both(HALF), {"Overprovisioning_Ratio": "0.31"}),
    "inside a page: write cache": (both(CACHED), INSIDE | {"Data_Cache_Capacity": "1048576"}),
    "numbered twice: writes": (both(CROSSING), INSIDE | {"Overprovisioning_Ratio": "0.31"}),
    "numbered twice: reads": (both(CROSSING | READS), INSIDE | {"Overprovisioning_Ratio": "0.31"}),
    "numbered twice: any address": (
        both(MIXED | {"Address_Alignment_Unit": "1", "Average_Request_Size": "20"}), INSIDE,
    ),
    "open loop: reads": ([OPEN | READS | {"Bandwidth": "2000000000"}], {"IO_Queue_Depth": "16"}),
    "open loop: writes": (
        [OPEN | {"Bandwidth": "200000000"}], {"IO_Queue_Depth": "16", "Queue_Fetch_Size": "16"},
    ),
    "open loop: reads and writes": (
        [OPEN | MIXED | {"Bandwidth": "120000000"}], {"IO_Queue_Depth": "32"},
    ),
    "open loop: two flows": (
        [OPEN | {"Bandwidth": "50000000"}, OPEN | OTHER | READS | {"Bandwidth": "200000000"}],
        {"IO_Queue_Depth": "4", "Queue_Fetch_Size": "8"},
    ),
    "open loop: one entry": ([OPEN | MIXED | {"Bandwidth": "120000000"}], {"IO_Queue_Depth": "2"}),
    "closed loop, deeper than the queue": (
        [MIXED | {"Average_No_of_Reqs_in_Queue": "64"}],
        {"IO_Queue_Depth": "8", "Queue_Fetch_Size": "16"},
    ),
    "open loop: far behind": ([BEHIND], {"IO_Queue_Depth": "65535"}),
    "open loop: far behind, and a closed one": (
        [BEHIND, OTHER | READS], {"IO_Queue_Depth": "65535"},
    ),
}  # fmt: skip
FOUND = {
    "inside a page: writes": (6222.7, [5129.002, 5118.045]),
    "inside a page: reads": (64694.0, [493.476, 492.135]),
    "inside a page: reads and writes": (11513.32, [2776.926, 2761.763]),
    "inside a page: half pages": (6175.39, [5118.498, 5175.394]),
    "inside a page: write cache": (4364.3, [7326.863, 7318.898]),
    "open loop: reads": (66797.26, [7357.803]),
    "open loop: writes": (6020.57, [4942.62]),
    "open loop: reads and writes": (11517.5, [31173.926]),
    "open loop: two flows": (9991.75, [1965.109, 361.138]),
    "closed loop, deeper than the queue": (10964.81, [1991.692]),
    "numbered twice: writes": (4022.24, [7949.285, 7346.774]),
    "numbered twice: reads": (45215.31, [707.147, 653.226]),
    "numbered twice: any address": (5155.94, [6197.72, 5601.51]),
    "open loop: one entry": (2983.77, [335.117]),
    "open loop: far behind": (8546.14, [505003.557]),
    "open loop: far behind, and a closed one": (13047.81, [509556.942, 3065.226]),
}
"""MQSim's requests per second, and the mean latency of each flow in us."""


def prepared(tmp_path, flows, drive):
    """The drive of a case, its scenario, and its flows."""
    paths = tmp_path / "ssd.xml", tmp_path / "load.xml"
    paths[0].write_text(drive_xml(**DRIVE | drive))
    paths[1].write_text(workload_xml([flow_xml(**FLOW | changes) for changes in flows]))
    d, scenarios = read_pair(*paths)
    return d, scenarios[0], make_flows(d, scenarios[0], frozenset(), [])


def played(tmp_path, flows, drive, quirks=frozenset()):
    """What came of a case."""
    d, _, made = prepared(tmp_path, flows, drive)
    return simulate.played(d, made, quirks)


@pytest.mark.parametrize("name", CASES)
def test_mqsims_own_results(tmp_path, name):
    """Operations per second, and the mean latency of each flow, within 1 %."""
    iops, mean_us = FOUND[name]
    quirks = frozenset({"pages_of_flows"} if name.startswith("numbered twice") else ())
    done = played(tmp_path, *CASES[name], quirks)
    end = max(r["end"].max() for r in done.requests) / 1e12
    assert sum(map(len, done.requests)) / end == pytest.approx(iops, rel=0.01)
    ours = [(r["end"] - r["start"]).mean() / 1e6 for r in done.requests]
    assert ours == pytest.approx(mean_us, rel=0.01)


def test_whole_pages_of_the_drive_are_whole_pages_of_the_flow(tmp_path):
    """Requests of one page, aligned on the drive: a program each, though the flow begins inside."""
    d, scenario, made = prepared(tmp_path, *CASES["inside a page: writes"])
    assert [f.range.first % 16 for f in made] == [0, 4]
    done = simulate.played(d, made, frozenset())
    count = flash_counts.counters(done.counters)
    assert all((r["offset"] % 8192 == 0).all() for r in done.requests)
    assert count["user_writes"] == 16000
    asked = simulate.played(d, made, frozenset({"pages_of_flows"}))
    for a, b in zip(asked.requests, done.requests, strict=True):  # whole pages are the same
        assert a.tolist() == b.tolist()
    assert "pages_of_flows" in [quirk.name for quirk in met(d, scenario)]
    d, scenario, _ = prepared(tmp_path, *CASES["open loop: reads"])
    assert "pages_of_flows" not in [quirk.name for quirk in met(d, scenario)]


def test_parts_of_two_pages_with_one_number(tmp_path):
    """What crosses a page's end behind the flow's place in it is read from one page: sectors that a
    write lacks there are those of the other part, which it has just brought."""
    flows, drive = CASES["numbered twice: writes"]
    right = flash_counts.counters(played(tmp_path, flows, drive).counters)
    asked = played(tmp_path, flows, drive, frozenset({"pages_of_flows"}))
    twice = flash_counts.counters(asked.counters)
    assert right["user_writes"] == twice["user_writes"] == 23965  # MQSim's
    assert (right["user_reads"], twice["user_reads"]) == (5265, 8685)  # 8685 of them MQSim's
    r = asked.requests
    aligned = r[1]["offset"] % 8192 == 0
    time = r[1]["end"] - r[1]["start"]
    assert (~aligned).sum() > 3000 and time[~aligned].mean() > time[aligned].mean()
    assert r[0]["size"].sum() == r[1]["size"].sum() == 8000 * 8192


@pytest.mark.parametrize(
    ("first", "last", "base", "pages"),
    [(0, 31, 0, 2), (4, 31, 0, 2), (20, 35, 16, 2), (20, 31, 16, 1), (15, 16, 0, 2)],
)
def test_pages_of_a_range(first, last, base, pages):
    """Sectors of 16-sector pages, the first and the last in part."""
    assert (Range(first, last).base(16), Range(first, last).pages(16)) == (base, pages)


@pytest.mark.parametrize("depth", [2, 3, 8])
def test_one_place_of_the_queue_stays_free(tmp_path, monkeypatch, depth):
    """Looked at after each event: the entries that the host does not know to be fetched fill the
    queue but for one place, while more requests than that are outstanding."""
    few = OPEN | MIXED | {"Bandwidth": "200000000", "Total_Requests_To_Generate": "200"}
    d, _, made = prepared(tmp_path, [few], {"IO_Queue_Depth": str(depth)})
    players, seen = [], []

    class Watched(replay.Player):
        def __init__(self, *given):
            super().__init__(*given)
            players.append(self)

    def look(done, now):
        pair = players[0].arrays.pair[0]
        assert 0 <= pair.known <= pair.fetched <= pair.next
        seen.append((pair.next - pair.known, pair.outstanding))

    monkeypatch.setattr(simulate, "Player", Watched)
    monkeypatch.setattr("ondie.emu.engine.run.driver.EVENTS_PER_CALL", 1)
    done = simulate.played(d, made, frozenset(), look)
    most = np.max(seen, axis=0)
    assert most[0] == depth - 1
    assert most[1] >= depth - 1
    r = done.requests[0]
    late = r["start"] > r["arrival"]
    assert late.any()
    assert np.isin(r["start"][late], r["end"]).all()  # a completion makes room
    assert players[0].arrays.pair[0].fetched == 200


@pytest.mark.parametrize(
    ("scheme", "planes", "dies", "applies"),
    [("DWCP", 2, 1, True), ("DWCP", 2, 2, False), ("DWCP", 1, 2, False), ("DCWP", 2, 1, False)],
)
def test_planes_from_the_list_of_dies(tmp_path, scheme, planes, dies, applies):
    """DWCP with more planes than dies: where MQSim reads behind the end of a list."""
    drive = {"Plane_No_Per_Die": str(planes), "Die_No_Per_Chip": str(dies)}
    ids = {"Plane_IDs": "0,1"[: 2 * planes - 1], "Die_IDs": "0,1"[: 2 * dies - 1]}
    d, scenario, _ = prepared(tmp_path, [READS | ids], drive | {"Plane_Allocation_Scheme": scheme})
    said = [quirk for quirk in met(d, scenario) if quirk.name == "unwritten_plane"]
    assert len(said) == applies
