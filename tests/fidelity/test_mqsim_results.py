"""Are statistics, result file and log what the times of the requests say, and rows fair?"""

import ast
import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.nvme.request import NOT_YET, READ, REQUEST, WRITE
from ondie.emu.replay.mqsim.flows import flows
from ondie.emu.replay.mqsim.quirks import ASKED, QUIRKS, obeyed
from ondie.emu.replay.mqsim.result_xml import flow_lines, response_log, result_file
from ondie.emu.replay.mqsim.run import Run, read_pair, remarks, run_scenario
from ondie.emu.replay.mqsim.trace_flow import read_recorded
from ondie.emu.replay.statistics import FLASH_COUNTS, statistics
from ondie.emu.validate import mqsim_cases as cases
from tests.config.mqsim_files import drive_xml, flow_xml, put, workload_xml
from tests.config.test_mqsim_xml import refused

CASES = Path(__file__).parent / "mqsim"
US = 10**6
NONE = dict.fromkeys(FLASH_COUNTS, 0)


def served(*rows: tuple[int, int, int, int, int], stream: int = 0) -> np.ndarray:
    """Requests (arrival, start, end in us, KiB, op)."""
    out = np.zeros(len(rows), REQUEST)
    columns = list(zip(*rows, strict=True))
    for name, column in zip(("arrival", "start", "end"), columns, strict=False):
        out[name] = np.array(column) * US
    out["size"], out["op"] = np.array(columns[3]) * 1024, columns[4]
    out["stream"], out["tag"] = stream, np.arange(len(rows))
    return out


def numbers(*requests: np.ndarray, **options):
    return statistics(
        list(requests),
        options.pop("flash", NONE),
        page_bytes=4096,
        wall_s=1.5,
        config={},
        **options,
    )


# --- statistics


def test_by_hand():
    """Five requests that end at 20, 30, 40, 60, 100 us; number 5 // 2 is the third."""
    first = served((0, 0, 30, 4, READ), (0, 10, 20, 8, WRITE), (10, 10, 100, 4, READ))
    second = served((5, 5, 40, 16, READ), (5, 20, 60, 4, WRITE), stream=1)
    got = numbers(first, second)
    assert (got["requests"], got["simulated_ns"], got["wall_s"]) == (5, 100_000, 1.5)
    assert got["iops"] == pytest.approx(5 / 100e-6, rel=1e-15)
    assert got["bandwidth_bytes_per_s"] == pytest.approx(36 * 1024 / 100e-6, rel=1e-15)
    # from the queue on: reads 30, 90, 35, writes 10, 40
    every, read, write = (got["latency_us"][kind] for kind in ("all", "read", "write"))
    assert every == pytest.approx(
        {"mean": 41, "p50": 35, "p90": 70, "p99": 88, "p999": 89.8, "max": 90}
    )
    assert (read["mean"], read["p50"], write["mean"], write["p90"]) == pytest.approx(
        (155 / 3, 35, 25, 37)
    )
    half = got["second_half"]  # those that end at 40, 60 and 100: 60 us from the first of them
    assert (half["requests"], half["simulated_ns"]) == (3, 60_000)
    assert half["iops"] == pytest.approx(2 / 60e-6, rel=1e-15)
    assert half["bandwidth_bytes_per_s"] == pytest.approx(8 * 1024 / 60e-6, rel=1e-15)
    assert half["latency_us"]["all"]["mean"] == 55 and half["latency_us"]["write"]["max"] == 40
    assert "flash" not in half and got["waf"] == 0 and got["page_write_ratio"] is None
    later = numbers(first, second, since="arrival")["latency_us"]
    assert later["write"]["mean"] == pytest.approx((20 + 55) / 2)
    json.dumps(got, allow_nan=False)


def test_nothing_to_divide():
    got = numbers(served((0, 0, 0, 4, READ)))
    assert got["iops"] is None and got["second_half"]["iops"] is None
    assert got["latency_us"]["write"] is None and got["latency_us"]["read"]["p999"] == 0
    assert got["second_half"]["requests"] == 1


def test_flash_and_its_second_half():
    flash = dict(zip(FLASH_COUNTS, (50, 100, 60, 60, 3, 5, 7), strict=True)) | {"collections": 7}
    half = dict(zip(FLASH_COUNTS, (30, 40, 10, 10, 1, 2, 2), strict=True))
    got = numbers(served((0, 0, 5, 4, WRITE)), flash=flash, half=half)
    assert got["page_write_ratio"] == 165 / 100 and got["flash"] == {
        n: flash[n] for n in FLASH_COUNTS
    }
    assert got["second_half"]["flash"] == dict(
        zip(FLASH_COUNTS, (20, 60, 50, 50, 2, 3, 5), strict=True)
    )
    assert got["second_half"]["page_write_ratio"] == 113 / 60
    assert (got["written_bytes"], got["programmed_bytes"]) == (4096, 165 * 4096)
    assert got["waf"] == 165 and got["second_half"]["written_bytes"] == 0
    assert got["second_half"]["waf"] is None


def test_a_run_below_the_least_pages_has_no_write_amplification():
    flash = dict(zip(FLASH_COUNTS, (0, 100, 60, 60, 0, 0, 7), strict=True))
    served_one = served((0, 0, 5, 4, WRITE))
    assert numbers(served_one, flash=flash, least_pages=100)["waf"] == 160
    short = numbers(served_one, flash=flash, least_pages=101)
    assert short["waf"] is short["page_write_ratio"] is None
    assert short["programmed_bytes"] == 160 * 4096


def test_ties_in_the_middle():
    """Of equal completions the later requests count to the second half, whatever their number."""
    rows = [(0, 0, end, 4, READ) for end in (10, 10, 10, 10, 10, 5, 20)]
    half = numbers(served(*rows))["second_half"]  # from number 3 on: three of those at 10, and 20
    assert (half["requests"], half["iops"]) == (4, pytest.approx(3 / 10e-6))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"end": NOT_YET}, "1 of 2 requests did not complete"),
        ({"start": -5}, "request 1 arrives at"),
        ({"arrival": NOT_YET}, "request 1 arrives at -1 ps"),
        ({"end": 1}, "ends at 1"),
    ],
)
def test_a_run_that_does_not_balance(change, words):
    done = served((0, 0, 5, 4, READ), (1, 2, 3, 4, READ))
    for name, value in change.items():
        done[name][1] = value
    with pytest.raises(SimulationError, match=words):
        numbers(done)


def test_a_run_that_did_not_count():
    with pytest.raises(SimulationError, match="has no counters for erases"):
        numbers(served((0, 0, 5, 4, READ)), flash={n: 0 for n in FLASH_COUNTS if n != "erases"})
    with pytest.raises(SimulationError, match="no request"):
        numbers(np.zeros(0, REQUEST))


def test_percentiles_of_many(rng, counts):
    """Against NumPy's on all, and the second half against a sort."""
    n = counts(20_001, 1_000_001)
    done = np.zeros(n, REQUEST)
    done["end"] = rng.integers(10**6, 10**9, n)
    done["start"] = done["end"] - rng.integers(0, 10**6, n)
    done["size"], done["op"] = 512 * rng.integers(1, 9, n), rng.integers(0, 2, n)
    got = numbers(done)
    latency = (done["end"] - done["start"]) / US
    wanted = np.percentile(latency, [50, 90, 99, 99.9])
    assert [got["latency_us"]["all"][q] for q in ("p50", "p90", "p99", "p999")] == pytest.approx(wanted)  # noqa: E501 # fmt: skip
    order = np.argsort(done["end"], kind="stable")[n // 2 :]
    half = got["second_half"]
    assert half["latency_us"]["all"]["mean"] == pytest.approx(latency[order].mean())
    span = int(done["end"][order[-1]] - done["end"][order[0]])
    size = int(done["size"][order[1:]].sum())
    assert half["bandwidth_bytes_per_s"] == pytest.approx(size / span * 1e12, rel=1e-9)


# --- in MQSim's terms


@pytest.fixture
def two(tmp_path):
    """Two flows of a drive, and times for them: 1.2 s in all."""
    ssd = put(tmp_path / "ssd.xml", drive_xml(Enable_ResponseTime_Logging="true"))
    text = workload_xml([flow_xml(), flow_xml()])
    drive, (scenario,) = read_pair(ssd, put(tmp_path / "wl.xml", text))
    made = flows(drive, scenario)
    first = served((0, 2, 30, 4, READ), (0, 10, 20, 8, WRITE), (10, 10, 1_200_000, 4, READ))
    return made, [first, served((5, 7, 40, 16, WRITE), stream=1)]


def test_the_result_file(two):
    made, done = two
    counters = NONE | {"collections": 4, "gc_writes": 10, "map_reads": 3}
    root = ET.fromstring(result_file(made, done, counters))
    flow, other = root.findall("Host/Host.IO_Flow")
    got = {child.tag: child.text for child in flow}
    assert list(got)[:4] == ["Name", "Request_Count", "Read_Request_Count", "Write_Request_Count"]
    assert (got["Name"], got["Request_Count"]) == ("Host.IO_Flow.Synth.No_0", "3")
    assert (got["Read_Request_Count"], got["Write_Request_Count"]) == ("2", "1")
    assert (got["IOPS"], got["IOPS_Read"]) == ("2.500000", "1.666667")
    assert (got["Bytes_Transferred"], got["Bytes_Transferred_Write"]) == ("16384.000000", "8192.000000")  # noqa: E501 # fmt: skip
    assert got["Bandwidth"] == f"{16384 / 1.2:.6f}"
    # 28, 10 and 1199990 us from the queue on; 30, 20 and 1199990 from the arrival on
    assert (got["Device_Response_Time"], got["End_to_End_Request_Delay"]) == ("400009", "400013")
    assert (got["Min_Device_Response_Time"], got["Max_Device_Response_Time"]) == ("10", "1199990")
    assert got["Min_End_to_End_Request_Delay"] == "20"
    assert other.findtext("IOPS_Read") == "0.000000" and other.findtext("Name")[-1] == "1"
    ftl = root.find("SSDDevice/SSDDevice.FTL").attrib
    assert ftl["Total_GC_Executions"] == "4" and ftl["Average_Page_Movement_For_GC"] == "2.500000"
    assert ftl["Issued_Flash_Read_CMD_For_Mapping"] == "3"
    assert "Issued_Flash_Read_CMD" not in ftl  # not counted: left out, not zero
    whole = ET.fromstring(result_file(made, done, counters, obeyed(True)))
    assert [e.findtext("IOPS") for e in whole.iter("Host.IO_Flow")] == ["3.000000", "1.000000"]
    done[0]["end"][2] = 900_000 * US
    short = ET.fromstring(result_file(made, done, counters, obeyed(True)))
    flow = short.find("Host/Host.IO_Flow")
    assert (flow.findtext("IOPS"), flow.findtext("Bandwidth_Read")) == ("inf", "inf")
    assert short.findall("Host/Host.IO_Flow")[1].findtext("IOPS_Read") == "-nan"


def test_lines(two):
    lines = flow_lines(*two)
    assert lines[0] == "Host.IO_Flow.Synth.No_0: 3 requests generated and serviced"
    assert "response time 400009 us" in lines[1] and "delay 400013 us" in lines[1]
    assert lines[2].startswith("Host.IO_Flow.Synth.No_1: 1 requests")


def test_the_log():
    """Periods of 10 us: the completions at 12 (a period after 0), then the first later than 22."""
    ends = (3, 12, 15, 22, 40, 49)
    rows = [(0, 1, end, 4, READ) for end in ends]
    lines = response_log(served(*rows), 10 * US).splitlines()
    assert lines[1:] == [
        "12\t6\t7",
        "40\t24\t25",
    ]  # (2 + 11) / 2; (14 + 21 + 39) / 3; 49 is not > 50


def test_a_whole_run(tmp_path):
    """From two files to statistics, text and files, with a simulation of fixed latency."""

    def fixed(drive, made, names):
        assert names == frozenset(obeyed(True)) and drive.seed in (321, 323)
        done = [np.concatenate(list(flow.chunks())) for flow in made]
        for requests in done:
            requests["start"] = requests["arrival"]
            requests["end"] = requests["arrival"] + 100 * US
        return Run(done, NONE | {"user_writes": 5}, None)

    ssd = put(tmp_path / "ssd.xml", drive_xml(Enable_ResponseTime_Logging="true"))
    work = put(tmp_path / "my.work.xml", workload_xml([flow_xml()], [flow_xml(), flow_xml(Seed="5")]))  # noqa: E501 # fmt: skip
    drive, scenarios = read_pair(ssd, work)
    outcomes = [run_scenario(drive, s, fixed, asked=True) for s in scenarios]
    names = [{path.name for path in outcome.files} for outcome in outcomes]
    assert names[0] == {"my.work_scenario_1.xml", "my.work.IO_Flow.No_0.log"}
    assert names[1] == {"my.work_scenario_2.xml"} | {f"my.work.IO_Flow.No_{i}.log" for i in (0, 1)}
    assert all(path.parent == tmp_path for o in outcomes for path in o.files)
    got = json.loads(json.dumps(outcomes[1].statistics, allow_nan=False))
    assert got["requests"] == 6000 and got["latency_us"]["all"]["p999"] == 100
    assert got["config"]["drive"]["seed"] == 323 and len(got["config"]["flows"]) == 2
    assert got["config"]["flows"][1]["first_sector"] == got["config"]["flows"][0]["last_sector"] + 1
    assert got["config"]["quirks"]["channel_rates_rounded"] == "reproduced"
    assert got["config"]["quirks"]["lost_requests"] == "named"
    whole = "requests simulated_ns iops bandwidth_bytes_per_s latency_us second_half flash waf"
    writes = "page_write_ratio written_bytes programmed_bytes"
    assert set(got) == set(f"{whole} {writes} wall_s peak_rss_bytes config".split())
    assert any("Page_Metadat_Capacity" in line for line in remarks(scenarios[0]))
    assert outcomes[0].difference is None
    plain = run_scenario(drive, scenarios[0], lambda *a: fixed(*a[:2], obeyed(True)))
    assert "(one_die_at_a_time)" in plain.difference


def test_a_quirk_is_obeyed_if_and_only_if_the_table_says_so(root):
    """Somebody in this room looks at each quirk marked ASKED, and at no other name."""
    looked = set()
    for path in (root / "emu" / "replay" / "mqsim").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                right = node.comparators[0]
                if isinstance(right, ast.Name) and right.id == "quirks":
                    looked.add(ast.literal_eval(node.left))
    assert looked == {quirk.name for quirk in QUIRKS if quirk.treatment == ASKED}


UNSUPPORTED = [
    ({"HostInterface_Type": "SATA", "Enabled_Preconditioning": "true"}, {},
     "Enabled_Preconditioning is true: with SATA, only false is supported if there are several"),
    ({"Use_Copyback_for_GC": "true"}, {}, "Use_Copyback_for_GC is true"),
]  # fmt: skip


@pytest.mark.parametrize(("of_drive", "of_flow", "words"), UNSUPPORTED)
def test_what_the_drive_cannot_is_refused(tmp_path, of_drive, of_flow, words):
    ssd = put(tmp_path / "ssd.xml", drive_xml(**of_drive))
    closed = {"Synthetic_Generator_Type": "QUEUE_DEPTH"}
    work = put(tmp_path / "wl.xml", workload_xml([flow_xml(**closed), flow_xml(**of_flow)]))
    refused(lambda: read_pair(ssd, work), words)


# --- cases


def recorded_again(case: cases.Case, factor: float = 1.0):
    """A simulation that gives each request the latency that MQSim gave it, times a factor."""
    known = read_recorded(case.recorded)

    def simulate(drive, made, names):
        done = []
        for flow in made:
            requests = known.records()[known.stream == flow.stream]
            ours = np.concatenate(list(flow.chunks()))
            assert (ours["offset"] == requests["offset"]).all()
            latency = ((requests["end"] - requests["start"]) * factor).astype(np.int64)
            requests["end"] = requests["start"] + latency
            done.append(requests)
        return Run(done, NONE | {"user_writes": 1}, None)

    return simulate


@pytest.fixture(scope="module")
def shipped():
    return {case.name: case for case in cases.read_cases(CASES)}


def test_what_is_shipped(shipped):
    """Ten cases, nine with 2,000 requests, in at most 1 MiB."""
    assert list(shipped) == ["V01", "V02", "V04", "V05", "V06", "V08", "V09", "V14", "V16", "V20"]
    assert [name for name, case in shipped.items() if case.recorded is None] == ["V09"]
    assert [name for name, case in shipped.items() if case.collects] == ["V09"]
    assert sum(p.stat().st_size for p in CASES.rglob("*") if p.is_file()) <= 2**20
    for case in shipped.values():
        if case.recorded is not None:
            assert len(read_recorded(case.recorded)) == 2000


def test_equal_times_make_equal_rows(shipped):
    rows = cases.run_recorded(shipped["V08"], recorded_again(shipped["V08"]))
    assert not any(row.misses for row in rows) and all(row.difference == 0 for row in rows)
    checked = {row.name for row in rows if row.tolerance}
    assert checked == {"IOPS"} | {f"{k}: {q}" for k in ("all", "read", "write") for q in ("mean", "p99")}  # noqa: E501 # fmt: skip
    for row in rows:
        json.dumps(row.data(), allow_nan=False)
        assert math.isfinite(row.theirs) and row.theirs != 0


@pytest.mark.parametrize(("factor", "mean", "p99"), [(1.009, False, False), (1.02, True, False), (0.94, True, True)])  # noqa: E501 # fmt: skip
def test_other_times_miss(shipped, factor, mean, p99):
    """1 % of the mean and 5 % of p99; request by request all differ alike."""
    rows = cases.run_recorded(shipped["V02"], recorded_again(shipped["V02"], factor))
    found = {row.name: row for row in rows}
    assert found["all: mean"].misses == mean and found["all: p99"].misses == p99
    assert found["1 + mean relative difference"].ours == pytest.approx(
        1 + abs(factor - 1), abs=1e-4
    )
    assert found["requests within 1%"].ours == (factor == 1.009)
    assert found["requests within 5%"].ours == (factor != 0.94)


def test_lost_requests_miss(shipped):
    def simulate(drive, made, names):
        run = recorded_again(shipped["V14"])(drive, made, names)
        return Run([run.requests[0][:-1]], run.counters, None)

    with pytest.raises(
        SimulationError, match="V14.* MQSim's run has 2000 requests, but this run has 1999"
    ):
        cases.run_recorded(shipped["V14"], simulate)


def test_a_closed_loop_of_depth_one_by_hand(shipped):
    """V01's own addresses: 55,706 ns, then 55,714 ns for each: 8 + 8 + 8 + 25 of messages, 290 of
    command, 50,020 of array, 4,096 + 1,248 of data, 11 of completion."""

    def one_by_one(drive, made, names):
        requests = np.concatenate(list(made[0].chunks()))
        latency = np.full(len(requests), 55_714_000)
        latency[0] -= 8000
        requests["end"] = 1000 + np.cumsum(latency)
        requests["start"] = requests["arrival"] = requests["end"] - latency
        return Run([requests], NONE | {"user_reads": 50_000}, NONE)

    rows = cases.run_own(shipped["V01"], one_by_one)
    assert [row.name for row in rows if row.misses] == []
    found = {row.name: row for row in rows}
    assert found["IOPS"].difference == pytest.approx(0, abs=1e-9)
    assert (
        found["requests equal at the same position"].ours == found["requests within 1%"].ours == 1
    )
    assert found["second half: all: max"].theirs == found["second half: all: max"].ours == 55.714


BAD_CASES = [
    ("{", "not a list of cases"),
    ("[]", "not a list of cases"),
    ('{"cases": {"V01": {}}}', "case V01: result or description is missing"),
    (
        '{"cases": {"V01": {"result": {}, "description": "x"}}}',
        "the result of case V01 has no served",
    ),
]


@pytest.mark.parametrize(("text", "words"), BAD_CASES)
def test_bad_cases(tmp_path, text, words):
    put(tmp_path / "cases.json", text)
    refused(lambda: cases.read_cases(tmp_path), "cases.json", words)


def test_unknown_cases(tmp_path):
    refused(lambda: cases.read_cases(tmp_path), "no such file", "--cases")
    refused(lambda: cases.read_cases(CASES, ["v01"]), "no case 'v01'", "nearest: V01")
    assert [case.name for case in cases.read_cases(CASES, ["V20", "V01"])] == ["V20", "V01"]
    refused(lambda: cases.run_recorded(cases.read_cases(CASES, ["V09"])[0], None), "V09 has no")
