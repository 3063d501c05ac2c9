"""MQSim's SATA interface: the host's time for each message, one queue, one stream, by its results.

MQSim's figures: commit 7ec40e3 with its collection repaired, one run each of these parameters.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from ondie.emu.replay import player as replay
from ondie.emu.replay.mqsim import flash_counts, sata
from ondie.emu.replay.mqsim import to_engine as simulate
from ondie.emu.replay.mqsim.flows import flows as make_flows
from ondie.emu.replay.mqsim.quirks import met
from ondie.emu.replay.mqsim.run import read_pair
from ondie.emu.replay.statistics import statistics
from tests.config.mqsim_files import drive_xml, flow_xml, workload_xml

DRIVE = {
    "HostInterface_Type": "SATA",
    "SATA_Processing_Delay": "4000",
    "IO_Queue_Depth": "32",
    "Preemptible_GC_Enabled": "false",
    "Static_Wearleveling_Enabled": "false",
    "Channel_Transfer_Rate": "1000",
    "Flash_Technology": "SLC",
    "CMD_Suspension_Support": "NONE",
    "Die_No_Per_Chip": "1",
    "Plane_No_Per_Die": "1",
}
FLOW = {
    "Die_IDs": "0",
    "Plane_IDs": "0",
    "Working_Set_Percentage": "80",
    "Synthetic_Generator_Type": "QUEUE_DEPTH",
    "Read_Percentage": "70",
    "Address_Distribution": "RANDOM_UNIFORM",
    "Address_Alignment_Unit": "8",
    "Request_Size_Distribution": "FIXED",
    "Average_Request_Size": "8",
    "Average_No_of_Reqs_in_Queue": "32",
    "Bandwidth": "262144",
    "Total_Requests_To_Generate": "10000",
}
DEEP = {"Average_No_of_Reqs_in_Queue": "64"}
READS, WRITES = {"Read_Percentage": "100"}, {"Read_Percentage": "0"}
LARGE = {"Average_Request_Size": "256", "Average_No_of_Reqs_in_Queue": "8"}
OPEN = {"Synthetic_Generator_Type": "BANDWIDTH"}
OTHER = {"Seed": "6533", "Channel_IDs": "0,1,2", "Priority_Class": "LOW"}
FEW = {"Total_Requests_To_Generate": "3000"}
LONG = {"Total_Requests_To_Generate": "40000"}
PAIR = [READS | DEEP, WRITES | OTHER | {"Average_Request_Size": "40"}]
COLLECTING = {
    "Flash_Channel_Count": "4", "Chip_No_Per_Channel": "1", "Block_No_Per_Plane": "128",
    "Page_No_Per_Block": "64", "Overprovisioning_Ratio": "0.3",
}  # fmt: skip
CASES = {
    "one queue's depth": ([{}], {}),
    "a fast adapter, deeper than the queue": ([DEEP], {"SATA_Processing_Delay": "100"}),
    "writes deeper than a short queue": ([WRITES | DEEP], {"IO_Queue_Depth": "8"}),
    "no room for completions": (
        [{"Read_Percentage": "50", "Total_Requests_To_Generate": "30000"} | DEEP],
        {"IO_Queue_Depth": "5", "SATA_Processing_Delay": "8000"},
    ),
    "one request at a time": ([DEEP | FEW], {"IO_Queue_Depth": "2"}),
    "no delay": ([DEEP], {"SATA_Processing_Delay": "0"}),
    "large reads": ([READS | LARGE | FEW], {}),
    "large writes": ([WRITES | LARGE | FEW], {}),
    "two flows": (PAIR, {}),
    "two flows, a short queue": (PAIR, {"IO_Queue_Depth": "16", "SATA_Processing_Delay": "1000"}),
    "open loops": (
        [OPEN | {"Bandwidth": "200000000"}, OPEN | OTHER | {"Bandwidth": "100000000"}], {},
    ),
    "more than the adapter can": ([OPEN | {"Bandwidth": "2000000000"} | FEW], {}),
    "a cached map of both": (
        [LONG, LONG | OTHER], {"Ideal_Mapping_Table": "false", "CMT_Capacity": "65536"},
    ),
    "the first flow's cache": (
        [WRITES | {"Device_Level_Data_Caching_Mode": "WRITE_CACHE"}, OTHER],
        {"Data_Cache_Capacity": "1048576"},
    ),
    "the first flow's part": (
        [{"Device_Level_Data_Caching_Mode": "WRITE_CACHE"}, OTHER],
        {"Data_Cache_Capacity": "1048576", "Data_Cache_Sharing_Mode": "EQUAL_PARTITIONING"},
    ),
    "collection": (
        [WRITES | {"Total_Requests_To_Generate": "80000"},
         WRITES | OTHER | {"Total_Requests_To_Generate": "40000"}],
        COLLECTING,
    ),
    "collection, filled before": (
        [WRITES | {"Initial_Occupancy_Percentage": "60", "Total_Requests_To_Generate": "40000"}],
        COLLECTING | {"Enabled_Preconditioning": "true"},
    ),
}  # fmt: skip


def files(tmp_path, flows, drive):
    """The two files of a case."""
    paths = tmp_path / "ssd.xml", tmp_path / "load.xml"
    drive = DRIVE | drive
    paths[0].write_text(drive_xml(**drive))
    ids = {
        "Channel_IDs": ",".join(map(str, range(int(drive.get("Flash_Channel_Count", 16))))),
        "Chip_IDs": ",".join(map(str, range(int(drive.get("Chip_No_Per_Channel", 4))))),
    }
    paths[1].write_text(workload_xml([flow_xml(**FLOW | ids | changes) for changes in flows]))
    return paths


def played(tmp_path, flows, drive):
    """What came of a case, and its statistics."""
    d, scenarios = read_pair(*files(tmp_path, flows, drive))
    made = make_flows(d, scenarios[0], frozenset({"mapping_writes"}), [])
    done = simulate.played(d, made, frozenset({"mapping_writes"}))
    count = flash_counts.counters(done.counters)
    return done, statistics(
        done.requests, count, page_bytes=d.page_capacity_bytes, half=None, wall_s=1, config={}
    )


FOUND = {
    "one queue's depth": (95569.94, [326.462]),
    "a fast adapter, deeper than the queue": (150221.13, [414.016]),
    "writes deeper than a short queue": (60311.52, [1031.091]),
    "no room for completions": (103068.14, [597.346]),
    "one request at a time": (4350.35, [229.866]),
    "no delay": (150285.21, [413.846]),
    "large reads": (24630.37, [320.392]),
    "large writes": (2833.8, [2815.744]),
    "two flows": (30551.74, [313.412, 2080.016]),
    "two flows, a short queue": (30567.93, [298.549, 2080.885]),
    "open loops": (48397.91, [296.297, 271.186]),
    "more than the adapter can": (176629.78, [704.412]),
    "a cached map of both": (143347.42, [441.575, 441.084]),
    "the first flow's cache": (75226.98, [845.123, 469.802]),
    "the first flow's part": (163159.22, [385.429, 386.326]),
    "collection": (3278.96, [14613.999, 14376.732]),
    "collection, filled before": (4690.01, [6813.298]),
}
"""MQSim's requests per second, and the mean latency of each flow in us."""


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CASES)
def test_mqsims_own_results(tmp_path, name):
    """Operations per second, and the mean latency of each flow, within 1 %."""
    iops, mean_us = FOUND[name]
    done, found = played(tmp_path, *CASES[name])
    assert found["iops"] == pytest.approx(iops, rel=0.01)
    ours = [(r["end"] - r["start"]).mean() / 1e6 for r in done.requests]
    assert ours == pytest.approx(mean_us, rel=0.01)


ONE = READS | {"Average_No_of_Reqs_in_Queue": "1", "Total_Requests_To_Generate": "20"}
READ_PS = 59_706_000
"""Doorbell 8, fetch 8, entry 25, command 290, array 50,020, data out 4096, data up 1248, completion
11 and the host's 4000 ns; its doorbell is on the link while the host takes 4000 for the next."""


def test_one_read_after_another(tmp_path):
    """A request has its time from its entry on; the host's time for that comes before."""
    done, _ = played(tmp_path, [ONE], {})
    r = done.requests[0]
    assert r["start"].tolist() == [1000 + 4_000_000 + i * (READ_PS + 4_000_000) for i in range(20)]
    assert (r["end"] - r["start"]).tolist() == [READ_PS] * 20
    assert (r["start"] - r["arrival"]).tolist() == [4_000_000] * 20


def test_the_queue_is_full_until_a_completion_is_looked_at(tmp_path):
    """A queue of two has room for one entry that the host does not know to be fetched."""
    three = {"Average_No_of_Reqs_in_Queue": "3"}
    done, _ = played(tmp_path, [ONE | three], {"IO_Queue_Depth": "2"})
    r = done.requests[0]
    assert r["start"][1:].tolist() == r["end"][:-1].tolist()
    done, _ = played(tmp_path, [ONE | three], {"IO_Queue_Depth": "4"})
    r = done.requests[0]
    assert np.diff(r["start"][:3]).tolist() == [4_000_000] * 2


def test_both_queues_keep_a_place_free(tmp_path, monkeypatch):
    """Looked at after each event: entries that the host does not know to be fetched, completions
    that the drive does not know to be looked at; some of both have to wait."""
    few = DEEP | {"Total_Requests_To_Generate": "300", "Read_Percentage": "50"}
    d, scenarios = read_pair(
        *files(tmp_path, [few], {"IO_Queue_Depth": "4", "SATA_Processing_Delay": "9000"})
    )
    made = make_flows(d, scenarios[0], frozenset(), [])
    seen, known = [], [0]

    def look(done, now):
        dev = players[0].arrays.dev[0]
        assert 0 <= dev.known <= dev.fetched <= dev.entered
        waits = dev.entry_head != 0, dev.post_head != 0
        late = dev.known > known[-1] and dev.known < dev.fetched  # by a completion of before
        known.append(int(dev.known))
        seen.append((dev.entered - dev.known, dev.posted - dev.reaped, *waits, late))

    players = []

    class Watched(replay.Player):
        def __init__(self, *given):
            super().__init__(*given)
            players.append(self)

    monkeypatch.setattr(simulate, "Player", Watched)
    monkeypatch.setattr("ondie.emu.engine.run.driver.EVENTS_PER_CALL", 1)
    simulate.played(d, made, frozenset(), look)
    assert np.max(seen, axis=0).tolist() == [3, 3, 1, 1, 1]
    dev = players[0].arrays.dev[0]
    assert dev.entered == dev.fetched == dev.posted == dev.reaped == 300


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
sys.path.insert(0, {root!r})
from tests.fidelity.test_mqsim_sata import repeat
np.savez({file!r}, **repeat(Path({folder!r})))
"""


def repeat(tmp_path):
    """Two flows in a queue that is full, with completions that wait."""
    few = DEEP | {"Total_Requests_To_Generate": "300", "Read_Percentage": "50"}
    short = {"IO_Queue_Depth": "3", "SATA_Processing_Delay": "9000"}
    done, _ = played(tmp_path, [few, few | OTHER], short)
    out = {f"requests{i}": done.requests[i][["start", "end", "offset"]] for i in range(2)}
    return out | {"count": np.array(list(done.counters.values()))}


@pytest.mark.soak
def test_uncompiled(tmp_path, root):
    compiled = repeat(tmp_path)
    file = str(tmp_path / "plain.npz")
    script = SCRIPT.format(root=str(root), file=file, folder=str(tmp_path))
    env = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, env=env, cwd=root)
    plain = np.load(file)
    for name, array in compiled.items():
        assert plain[name].tolist() == array.tolist(), name


def test_what_the_drive_sees(tmp_path):
    """All planes for every flow, whatever it lists; addresses one after the other; one stream."""
    d, scenarios = read_pair(*files(tmp_path, [{}, OTHER], {}))
    made = make_flows(d, scenarios[0], frozenset(), [])
    assert [f.parameters.channel_ids for f in made] == [tuple(range(16))] * 2
    assert [f.parameters.priority_class for f in made] == ["HIGH"] * 2
    assert made[0].range.sectors == made[1].range.sectors == 64 * d.plane_sectors(2)
    whole = sata.streams(d, made)
    assert [(f.range.first, f.range.last) for f in whole] == [(0, made[1].range.last)]
    said = [quirk.name for quirk in met(d, scenarios[0])]
    for name in ("sata_is_nvme", "sata_one_stream", "sata_open_blocks"):
        assert name in said
    assert "sata_preconditioning" not in said
