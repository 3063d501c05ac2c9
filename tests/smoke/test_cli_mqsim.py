"""Does `ondie mqsim` take MQSim's files, give its results, and refuse in one line?"""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ondie.emu.cli.commands import mqsim as command
from ondie.emu.replay import player as replay
from tests.config.mqsim_files import SYNTHETIC, TRACE, drive_xml, flow_xml, put, workload_xml
from tests.smoke.commands import files, here, refused

DRIVE = {
    "Flash_Channel_Count": "2",
    "Chip_No_Per_Channel": "2",
    "Die_No_Per_Chip": "1",
    "Plane_No_Per_Die": "1",
    "Block_No_Per_Plane": "32",
    "Page_No_Per_Block": "16",
    "GC_Exec_Threshold": "0.4",
    "Overprovisioning_Ratio": "0.5",
    "Dynamic_Wearleveling_Enabled": "true",
    "Static_Wearleveling_Enabled": "false",
    "Preemptible_GC_Enabled": "false",
    "CMD_Suspension_Support": "NONE",
}
FLOW = {
    "Channel_IDs": "0,1",
    "Chip_IDs": "0,1",
    "Die_IDs": "0",
    "Plane_IDs": "0",
    "Synthetic_Generator_Type": "QUEUE_DEPTH",
    "Address_Distribution": "RANDOM_UNIFORM",
    "Read_Percentage": "50",
    "Request_Size_Distribution": "FIXED",
    "Average_Request_Size": "8",
    "Address_Alignment_Unit": "8",
    "Average_No_of_Reqs_in_Queue": "4",
    "Total_Requests_To_Generate": "900",
}
FIELDS = {
    "requests", "simulated_ns", "iops", "bandwidth_bytes_per_s", "latency_us", "second_half",
    "flash", "waf", "page_write_ratio", "written_bytes", "programmed_bytes",
    "wall_s", "peak_rss_bytes", "config",
}  # fmt: skip
NAMES = {"mean", "p50", "p90", "p99", "p999", "max"}
FLASH = {"user_reads", "user_writes", "gc_reads", "gc_writes", "map_reads", "map_writes", "erases"}


def flow(**changes):
    return flow_xml(SYNTHETIC, **(FLOW | changes))


@pytest.fixture
def pair(tmp_path):
    """Arguments for the two files, in a folder of their own; scenarios and drive may be given."""

    def make(*scenarios, **drive):
        folder = tmp_path / "in"
        folder.mkdir(exist_ok=True)
        put(folder / "ssd.xml", drive_xml(**(DRIVE | drive)))
        put(folder / "load.v2.xml", workload_xml(*(scenarios or [[flow()]])))
        return "-i", folder / "ssd.xml", "-w", folder / "load.v2.xml"

    return make


def xml_of(path):
    root = ET.parse(path).getroot()
    return root, {child.tag: child.text for child in root.find("Host").find("Host.IO_Flow")}


def test_statistics_beside_its_own_result_file(pair, tmp_path, capsys):
    done = here(capsys, "mqsim", *pair(), "--json", tmp_path / "out" / "a.json")
    assert done.code == 0, done
    data = json.loads((tmp_path / "out" / "a.json").read_text())
    assert set(data) == FIELDS and set(data["flash"]) == FLASH
    assert set(data["latency_us"]) == {"all", "read", "write"}
    assert all(set(part) == NAMES for part in data["latency_us"].values())
    assert set(data["second_half"]) >= {"requests", "iops", "latency_us", "flash", "waf"}
    root, result = xml_of(tmp_path / "in" / "load.v2_scenario_1.xml")
    assert root.tag == "MQSim_Results"
    assert int(result["Request_Count"]) == data["requests"] == 900
    assert float(result["IOPS"]) == pytest.approx(data["iops"])
    assert float(result["Bandwidth"]) == pytest.approx(data["bandwidth_bytes_per_s"])
    assert int(result["Device_Response_Time"]) == int(data["latency_us"]["all"]["mean"])
    reads = int(result["Read_Request_Count"])
    assert 400 < reads < 500 and data["flash"]["user_reads"] == reads
    assert data["flash"]["user_writes"] == 900 - reads and data["page_write_ratio"] == 1.0
    assert data["config"]["drive"]["flash_channel_count"] == 2
    assert data["config"]["flows"][0]["average_no_of_reqs_in_queue"] == 4
    assert data["wall_s"] > 0 and data["peak_rss_bytes"] > 1e7
    assert "Host.IO_Flow.Synth.No_0: 900 requests generated and serviced" in done.out
    assert "Total: 900 requests" in done.out and f"{data['iops']:,.0f} IOPS" in done.out
    assert "ignored: Block_PE_Cycles_Limit" in done.err
    (line,) = [line for line in done.err.splitlines() if "MQSim's results differ" in line]
    assert "infinite, because the run takes less than 1 s (whole_seconds)" in line
    assert line.endswith("--quirks reproduces them") and "stalled_writes" not in line


def test_the_same_files_give_the_same_results(pair, tmp_path, capsys):
    found = []
    for name in ("a.json", "b.json"):
        assert here(capsys, "mqsim", *pair(), "--json", tmp_path / name, "--quiet").code == 0
        found.append(json.loads((tmp_path / name).read_text()))
        assert found[-1].pop("wall_s") > 0 and found[-1].pop("peak_rss_bytes") > 0
    assert found[0] == found[1]


def test_scenarios_run_one_after_the_other(pair, tmp_path, capsys):
    two = [flow(Total_Requests_To_Generate="300"), flow(Read_Percentage="0", Seed="5")]
    arguments = pair([flow()], two)
    done = here(capsys, "mqsim", *arguments, "--json", tmp_path / "a.json", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    first, second = json.loads((tmp_path / "a.json").read_text())
    assert first["requests"] == 900 and second["requests"] == 1200
    assert first["config"]["scenario"] == 1 and second["config"]["scenario"] == 2
    assert second["config"]["drive"]["seed"] == first["config"]["drive"]["seed"] + 2
    assert files(tmp_path / "in") == [
        "load.v2.xml", "load.v2_scenario_1.xml", "load.v2_scenario_2.xml", "ssd.xml",
    ]  # fmt: skip
    assert len(ET.parse(tmp_path / "in/load.v2_scenario_2.xml").getroot().find("Host")) == 2


def test_results_elsewhere(pair, tmp_path, capsys):
    done = here(capsys, "mqsim", *pair(), "--out", tmp_path / "new" / "place", "--quiet")
    assert done.code == 0
    assert files(tmp_path / "new") == ["place", "place/load.v2_scenario_1.xml", "place/result.json"]
    assert files(tmp_path / "in") == ["load.v2.xml", "ssd.xml"]


def test_a_workload_where_nothing_can_be_written(pair, tmp_path, capsys, monkeypatch):
    """The statistics are there; that the result file is not is said."""
    monkeypatch.setattr(command.os, "access", lambda path, mode: Path(path).name != "in")
    done = here(capsys, "mqsim", *pair(), "--json", tmp_path / "a.json")
    assert done.code == 0 and json.loads((tmp_path / "a.json").read_text())["requests"] == 900
    assert "load.v2_scenario_1.xml: not written, because " in done.err
    assert "/in is not writable; use --out DIR" in done.err
    assert files(tmp_path / "in") == ["load.v2.xml", "ssd.xml"]


def test_quirks_on_request(pair, tmp_path, capsys):
    """MQSim divides by whole seconds: a run of less has infinite IOPS."""
    rates = []
    for extra in ((), ("--quirks",)):
        done = here(capsys, "mqsim", *pair(), *extra)
        rates.append(float(xml_of(tmp_path / "in" / "load.v2_scenario_1.xml")[1]["IOPS"]))
        assert ("MQSim's results differ" in done.err) != bool(extra) and "quirk:" not in done.err
    assert rates[0] < 1e6 and rates[1] == float("inf")


def test_collection_is_in_the_result(pair, tmp_path, capsys):
    writes = flow(Read_Percentage="0", Total_Requests_To_Generate="6000",
                  Working_Set_Percentage="100")  # fmt: skip
    assert here(capsys, "mqsim", *pair([writes]), "--json", tmp_path / "a.json").code == 0
    data = json.loads((tmp_path / "a.json").read_text())
    flash = data["flash"]
    assert flash["user_writes"] == 6000 and flash["gc_writes"] > 0 and flash["erases"] > 100
    assert data["page_write_ratio"] == (6000 + flash["gc_writes"]) / 6000
    root, _ = xml_of(tmp_path / "in" / "load.v2_scenario_1.xml")
    assert int(root.find("SSDDevice/SSDDevice.FTL").get("Total_GC_Executions")) >= flash["erases"]


def test_a_trace_that_is_not_there(pair, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    traced = flow_xml(TRACE, **{k: v for k, v in FLOW.items() if k in TRACE})
    refused(here(capsys, "mqsim", *pair([traced]), "--json", "a.json"), "traces/a.trace")
    assert files(tmp_path) == ["in", "in/load.v2.xml", "in/ssd.xml"]


@pytest.mark.parametrize(
    ("drive", "changes", "words"),
    [
        ({"Block_No_Per_Plane": "7"}, {}, ["Block_No_Per_Plane", "7"]),
        ({"Flash_Channel_Count": "two"}, {}, ["ssd.xml", "Flash_Channel_Count", "two"]),
        ({"Channel_Count": "2"}, {}, ["ssd.xml", "Channel_Count", "Flash_Channel_Count"]),
        ({"Transaction_Scheduling_Policy": "FLIN"}, {}, ["Transaction_Scheduling_Policy", "FLIN"]),
        ({}, {"Channel_IDs": "0,2"}, ["load.v2.xml", "Channel_IDs"]),
        ({}, {"Average_Request_Size": "0"}, ["load.v2.xml", "Average_Request_Size"]),
    ],
)
def test_what_cannot_run(pair, tmp_path, capsys, drive, changes, words):
    arguments = pair([flow(**changes)], **drive)
    refused(here(capsys, "mqsim", *arguments, "--json", tmp_path / "a.json"), *words)
    assert files(tmp_path) == ["in", "in/load.v2.xml", "in/ssd.xml"]


@pytest.mark.parametrize("cause", ["channel", "trace"])
def test_a_scenario_that_cannot_run_is_refused_alone(pair, tmp_path, capsys, cause):
    """The others run and are written; the exit code and a line say that one did not."""
    wrong = flow(Channel_IDs="0,9")
    if cause == "trace":
        wrong = flow_xml(TRACE, **{k: v for k, v in FLOW.items() if k in TRACE})
    arguments = pair([flow()], [wrong], [flow(Seed="5")])
    table = tmp_path / "a.csv"
    done = here(
        capsys, "mqsim", *arguments, "--json", tmp_path / "a.json", "--csv", table, "--quiet"
    )
    assert done.code == 2 and done.out == ""
    [line] = done.err.splitlines()
    assert line.startswith("ondie: scenario 2 cannot run: ")
    first, second, third = json.loads((tmp_path / "a.json").read_text())
    assert first["requests"] == third["requests"] == 900 and third["config"]["scenario"] == 3
    assert second["scenario"] == 2 and line.endswith(second["refused"])
    assert len(table.read_text().splitlines()) == 3
    assert files(tmp_path / "in") == [
        "load.v2.xml", "load.v2_scenario_1.xml", "load.v2_scenario_3.xml", "ssd.xml",
    ]  # fmt: skip


def test_scenarios_that_all_cannot_run_leave_nothing(pair, tmp_path, capsys):
    arguments = pair([flow(Channel_IDs="0,9")], [flow(Chip_IDs="7")])
    done = here(capsys, "mqsim", *arguments, "--json", tmp_path / "a.json")
    assert done.code == 2 and done.out == ""
    lines = done.err.splitlines()
    assert "scenario 1 cannot run" in lines[0] and "Channel_IDs" in lines[0]
    assert "scenario 2 cannot run" in lines[1] and "Chip_IDs" in lines[1]
    assert lines[2].endswith(
        "no scenario of this file can run (see the reasons above); nothing was written"
    )
    assert files(tmp_path) == ["in", "in/load.v2.xml", "in/ssd.xml"]


@pytest.mark.parametrize("option", ["-i", "-w"])
def test_no_such_file(pair, tmp_path, capsys, option):
    arguments = list(pair())
    arguments[arguments.index(option) + 1] = tmp_path / "none.xml"
    refused(here(capsys, "mqsim", *arguments), "none.xml", "no such file")


@pytest.mark.parametrize("option", ["--json", "--out"])
def test_a_place_where_nothing_can_be_written(pair, tmp_path, capsys, monkeypatch, option):
    """It is said before anything runs."""
    monkeypatch.setattr(command, "simulate", None)
    (tmp_path / "file").write_text("")
    outcome = here(capsys, "mqsim", *pair(), option, tmp_path / "file" / "a", "--quiet")
    refused(outcome, "file", "not a folder")


def test_a_run_that_does_not_balance(pair, tmp_path, capsys, monkeypatch):
    """One page more is counted as valid than is mapped."""
    check = replay.Player._check

    def cheat(player):
        player.arrays.valid[0] += 1
        check(player)

    monkeypatch.setattr(replay.Player, "_check", cheat)
    outcome = here(capsys, "mqsim", *pair(), "--json", tmp_path / "a.json", "--quiet")
    refused(outcome, "defect", "valid pages, between two events (block 0)", code=1)
    assert files(tmp_path) == ["in", "in/load.v2.xml", "in/ssd.xml"]
