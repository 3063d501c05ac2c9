"""Are the requests of a workload those that it describes, and MQSim's own, draw by draw?"""

import math
from pathlib import Path

import numpy as np
import pytest

from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.nvme.request import MAX_CHUNK, NOT_YET, READ, REQUEST, WRITE
from ondie.emu.replay.mqsim import mrg32k3a as mrg
from ondie.emu.replay.mqsim.address_partition import ranges
from ondie.emu.replay.mqsim.flow import half_way, total
from ondie.emu.replay.mqsim.flows import flows, recorded_flows
from ondie.emu.replay.mqsim.quirks import obeyed
from ondie.emu.replay.mqsim.ssdconfig import read_drive
from ondie.emu.replay.mqsim.synthetic_flow import alias
from ondie.emu.replay.mqsim.trace_flow import read_recorded
from ondie.emu.replay.mqsim.workload_xml import read_workload
from ondie.emu.units import InputError
from ondie.traces import TraceError
from tests.config.mqsim_files import TRACE, drive_xml, flow_xml, put, workload_xml
from tests.config.test_mqsim_xml import refused

CASES = Path(__file__).parent.parent / "fidelity" / "mqsim"
CLOSED = {"Synthetic_Generator_Type": "QUEUE_DEPTH", "Request_Size_Distribution": "FIXED"}
UNIFORM = CLOSED | {"Address_Distribution": "RANDOM_UNIFORM"}
OWN = ["V01", "V02", "V04", "V05", "V06", "V08", "V14", "V20"]


def made(tmp_path, *changes, quirks=frozenset(), of_drive=None, base=None):
    """Flows of the sample scenario, changed."""
    kind = [flow_xml(**c) if base is None else flow_xml(base, **c) for c in changes]
    drive = read_drive(put(tmp_path / "ssd.xml", drive_xml(**(of_drive or {}))))
    (scenario,) = read_workload(put(tmp_path / "wl.xml", workload_xml(kind)))
    return flows(drive, scenario, quirks, [tmp_path])


def all_of(flow, most=None):
    """All requests of a flow, or the first."""
    got, n = [], 0
    for chunk in flow.chunks():
        assert chunk.dtype == REQUEST and 1 <= len(chunk) <= MAX_CHUNK
        got.append(chunk)
        n += len(chunk)
        if most is not None and n >= most:
            break
    return np.concatenate(got)[:most]


# --- the random numbers


def reference(seed: int, count: int) -> list[float]:
    """MRG32k3a by L'Ecuyer's recurrences in Python's integers, from the start of a seed."""
    m1, m2 = 2**32 - 209, 2**32 - 22853
    s = [int(x) for x in mrg.start(seed)]
    x, y, out = s[:3], s[3:], []
    for _ in range(count):
        x = [x[1], x[2], (1403580 * x[1] - 810728 * x[0]) % m1]
        y = [y[1], y[2], (527612 * y[2] - 1370589 * y[0]) % m2]
        out.append(((x[2] - y[2]) % m1 + 1) * (1 / (m1 + 1)))
    return out


@pytest.mark.parametrize("seed", [0, 1, 199, 200, 798, 2**31 - 1])
def test_mrg32k3a(seed):
    state = mrg.start(seed)
    assert [mrg.uniform(state) for _ in range(200)] == reference(seed, 200)


def test_the_start_of_a_jump_without_overflow():
    """Seed 0 is one step from all ones: x = 1403580 - 810728, y = 527612 - 1370589 + m2."""
    assert mrg.start(0).tolist() == [1, 1, 592852, 1, 1, 4294944443 - 842977]


def test_which_seeds_meet():
    """Twice 2^e steps are 2^(e + 1): of 0 to 398, seeds 199 apart are the same, no others."""
    starts = [tuple(mrg.start(seed).tolist()) for seed in range(399)]
    assert starts[200:] == starts[1:200] and len(set(starts)) == 200


def test_normal_and_exponential(counts):
    n = counts(50_000, 1_000_000)
    s, spare = mrg.start(5), np.zeros(1)
    z = np.array([mrg.normal(s, spare, 10.0, 2.0) for _ in range(n)])
    e = np.array([mrg.exponential(s, 3.0) for _ in range(n)])
    for got, mean, deviation in ((z, 10.0, 2.0), (e, 3.0, 3.0)):
        assert abs(got.mean() - mean) < 5 * deviation / math.sqrt(n)
        # standard error of a variance: sqrt((kurtosis - 1) / n), 2 and 8
        assert abs(got.var() / deviation**2 - 1) < 5 * math.sqrt(8 / n)
    assert abs((z < 10).mean() - 0.5) < 2.5 / math.sqrt(n) and e.min() > 0


# --- MQSim's own requests


@pytest.mark.parametrize("case", OWN)
def test_requests_are_mqsims_own(case):
    """Type, size, address and Poisson arrival of the first 2,000 requests of MQSim's runs. The
    record has requests of one arrival in order of completion, so each such group is sorted."""
    drive = read_drive(CASES / "configs" / f"{case}.ssdconfig.xml")
    (scenario,) = read_workload(CASES / "configs" / f"{case}.workload.xml")
    (flow,) = flows(drive, scenario)
    recorded = read_recorded(next((CASES / "requests").glob(f"{case}.*.npz")))
    ours = all_of(flow, len(recorded))
    theirs = recorded.records()
    group = np.concatenate([[0], np.cumsum(np.diff(theirs["arrival"]) > 0)])
    columns = ("op", "size", "offset")
    sort = [np.lexsort((*(r[c] for c in columns), group)) for r in (ours, theirs)]
    for name in columns:
        assert (ours[name][sort[0]] == theirs[name][sort[1]]).all(), name
    if flow.depth is None:
        assert (ours["arrival"] == theirs["arrival"]).all()
    else:
        assert (ours["arrival"] == NOT_YET).all()
        assert (theirs["arrival"] == 1000).sum() == flow.depth


def test_a_flow_repeats_itself_and_a_seed_changes_it(tmp_path):
    a, b, c = made(tmp_path, UNIFORM, UNIFORM, UNIFORM | {"Seed": "799"})
    first = all_of(a)
    assert (first == all_of(a)).all() and len(first) == 3000 and first["tag"].tolist() == [*range(3000)]  # noqa: E501 # fmt: skip
    assert (
        first["offset"] + (b.range.first - a.range.first) * SECTOR_BYTES == all_of(b)["offset"]
    ).all()
    assert (all_of(c)["offset"] - c.range.first * SECTOR_BYTES != first["offset"]).mean() > 0.99
    assert [f.stream for f in (a, b, c)] == [0, 1, 2] == [int(all_of(f)["stream"][0]) for f in (a, b, c)]  # noqa: E501 # fmt: skip
    assert total([a, b, c]) == 9000 and half_way([a, b, c]) == 4501


def test_chunks_do_not_show(tmp_path, monkeypatch):
    for changes in ({}, UNIFORM, CLOSED | {"Address_Distribution": "STREAMING"}):
        (flow,) = made(tmp_path, changes)
        whole = all_of(flow)
        monkeypatch.setattr("ondie.emu.replay.mqsim.synthetic_flow.MAX_CHUNK", 701)
        parts = list(flow.chunks())
        monkeypatch.undo()
        assert [len(p) for p in parts] == [701] * 4 + [196]
        assert (np.concatenate(parts) == whole).all()


# --- what the parameters mean


def within(count: int, n: int, share: float) -> bool:
    """Whether a binomial count lies within 5 standard deviations."""
    return abs(count - n * share) < 5 * math.sqrt(n * share * (1 - share)) + 1


@pytest.mark.parametrize("percentage", [0, 1, 50, 99, 100])
def test_read_percentage(tmp_path, counts, percentage):
    n = counts(20_000, 500_000)
    changes = {"Read_Percentage": str(percentage), "Total_Requests_To_Generate": str(n)}
    op = all_of(made(tmp_path, UNIFORM | changes)[0])["op"]
    assert set(op.tolist()) <= {READ, WRITE}
    assert within(int((op == READ).sum()), n, percentage / 100)
    assert percentage not in (0, 100) or len(set(op.tolist())) == 1


@pytest.mark.parametrize(("aligned", "unit"), [("true", 16), ("true", 7), ("false", 16)])
def test_uniform_addresses(tmp_path, counts, aligned, unit):
    """Over the working set in 20 parts, chi-square; aligned where asked; never past its end."""
    n = counts(20_000, 500_000)
    changes = {"Generated_Aligned_Addresses": aligned, "Address_Alignment_Unit": str(unit),
               "Total_Requests_To_Generate": str(n)}  # fmt: skip
    for flow in made(tmp_path, UNIFORM | changes, UNIFORM | changes):
        got = all_of(flow)
        first, last = flow.range.first, flow.range.last
        end = first + int((last - first) * 0.85)
        sector = got["offset"] // SECTOR_BYTES
        assert sector.min() >= first and (sector + 24 - 1).max() <= end
        assert (sector % unit == 0).all() == (aligned == "true")
        parts = np.bincount((sector - first) * 20 // (end + 1 - first), minlength=20)
        assert ((parts - n / 20) ** 2 / (n / 20)).sum() < 60  # 19 degrees: once in a million
        assert (got["size"] == 24 * SECTOR_BYTES).all() and (got["start"] == NOT_YET).all()


@pytest.mark.parametrize("hot", [1, 20, 50, 90])
def test_hot_and_cold(tmp_path, counts, hot):
    """(100 - h) % of the requests in the first h % of the addresses, evenly within each part."""
    n = counts(20_000, 500_000)
    changes = {"Percentage_of_Hot_Region": str(hot), "Total_Requests_To_Generate": str(n)}
    (flow,) = made(tmp_path, CLOSED | changes)
    sector = all_of(flow)["offset"] // SECTOR_BYTES
    last = int(flow.range.last * 0.85)
    bound = int(last * hot / 100)
    inside = sector <= bound - bound % 16
    assert within(int(inside.sum()), n, 1 - hot / 100)
    for part, low, high in ((sector[inside], 0, bound), (sector[~inside], bound, last)):
        halves = int((part < (low + high) / 2).sum())
        assert within(halves, len(part), 0.5)
    assert sector.max() + 24 - 1 <= flow.range.last


def test_streaming(tmp_path):
    """Each request starts where the one before ended, up to alignment; after the end, at the
    start, of which the first is used twice."""
    small = {"Block_No_Per_Plane": "14", "Page_No_Per_Block": "2"}
    changes = {"Address_Distribution": "STREAMING", "Working_Set_Percentage": "1"}
    (flow,) = made(tmp_path, CLOSED | changes, of_drive=small)
    last = int(flow.range.last * 0.01)  # 256 planes * trunc(14 * 2 * 8 * 0.93) sectors: 531
    assert (flow.range.last, last) == (53247, 532)
    sector = all_of(flow, 100)["offset"] // SECTOR_BYTES
    step = 32  # 24 sectors, rounded up to 16
    wraps = np.flatnonzero(np.diff(sector[:-1]) < 0)
    assert len(wraps) >= 5
    for at in wraps:
        assert sector[at] + step + 24 > last and sector[at + 1] == sector[at + 2] == 0
    inner = np.diff(sector)[(np.diff(sector) > 0)]
    assert (inner == step).all()


def test_sizes(tmp_path, counts):
    """The variance is the standard deviation; sizes are rounded up, so that their mean is half a
    sector above; what is drawn below one sector is one."""
    n = counts(20_000, 500_000)
    changes = {"Synthetic_Generator_Type": "QUEUE_DEPTH", "Total_Requests_To_Generate": str(n)}
    size = all_of(made(tmp_path, changes)[0])["size"] // SECTOR_BYTES
    assert abs(size.mean() - 24.5) < 5 * 4 / math.sqrt(n)
    assert abs(size.std() - 4) < 0.1
    wide = changes | {"Average_Request_Size": "4", "Variance_Request_Size": "4"}
    size = all_of(made(tmp_path, wide)[0])["size"] // SECTOR_BYTES
    below = 0.5 * math.erfc(3 / 4 / math.sqrt(2))  # of a normal number up to 1
    assert size.min() == 1 and within(int((size == 1).sum()), n, below)
    odd = all_of(made(tmp_path, wide, quirks=obeyed(True))[0])["size"] // SECTOR_BYTES
    low = odd > 60_000  # 16 bits of a negative number
    assert within(int(low.sum()), n, 0.5 * math.erfc(5 / 4 / math.sqrt(2)))
    assert (odd[~low] == size[~low]).all() and (size[low] == 1).all()


def test_poisson_arrivals(tmp_path, counts):
    n = counts(20_000, 500_000)
    changes = UNIFORM | {"Synthetic_Generator_Type": "BANDWIDTH", "Average_Request_Size": "8",
                         "Bandwidth": "2000000", "Total_Requests_To_Generate": str(n)}  # fmt: skip
    (flow,) = made(tmp_path, changes)
    arrival = all_of(flow)["arrival"]
    assert flow.depth is None and (arrival % 1000 == 0).all() and (np.diff(arrival) >= 0).all()
    gaps = np.diff(arrival, prepend=0) / 1e9  # in ms; 4 KiB at 2 MB/s: 2.048 ms
    assert abs(gaps.mean() - 2.048) < 5 * 2.048 / math.sqrt(n)
    assert within(int((gaps > 2.048).sum()), n, math.exp(-1))
    # 2000000 // 512 // 8 = 488 requests per s, 10**9 // 488 = 2049180 ns
    other = all_of(made(tmp_path, changes, quirks=obeyed(True))[0])["arrival"]
    assert abs(other[-1] / arrival[-1] - 2.049180 / 2.048) < 1e-6


def test_stop_time(tmp_path):
    """Open loop: arrivals up to and at it, whatever the total. Closed loop: without end here."""
    base = {"Total_Requests_To_Generate": "3000"}
    whole = all_of(made(tmp_path, base)[0])
    stop = int(whole["arrival"][99]) // 1000
    (flow,) = made(tmp_path, base | {"Stop_Time": str(stop), "Total_Requests_To_Generate": "5"})
    assert flow.total == 100 and (all_of(flow) == whole[:100]).all()
    (flow,) = made(tmp_path, UNIFORM | {"Stop_Time": "5"})
    assert (flow.total, flow.stop_ps, flow.depth) == (None, 5000, 7)
    assert len(all_of(flow, MAX_CHUNK + 5)) == MAX_CHUNK + 5 and half_way([flow]) is None
    refused(lambda: made(tmp_path, {"Stop_Time": "1"}), "Stop_Time is 1", "no request arrives")


def test_large_addresses(tmp_path):
    """Beyond 2 TiB an address stays itself; with the quirk its upper half comes down by one bit."""
    big = {"Block_No_Per_Plane": "20000"}
    (right,) = made(tmp_path, UNIFORM, of_drive=big)
    (folded,) = made(tmp_path, UNIFORM, of_drive=big, quirks=obeyed(True))
    sector, low = (all_of(flow)["offset"] // SECTOR_BYTES for flow in (right, folded))
    above = sector >= 2**32
    assert above.mean() > 0.3 and (low[~above] == sector[~above]).all()
    assert (low[above] != sector[above]).all() and low.max() < 2**32
    one = np.zeros(1, REQUEST)
    one["offset"] = (5 * 2**32 + 7) * SECTOR_BYTES
    alias(one)  # bits 32 and 34 become 31 and 33
    assert one["offset"][0] // SECTOR_BYTES == 2**33 + 2**31 + 7


def test_flows_that_do_not_fit(tmp_path):
    small = {"Block_No_Per_Plane": "14", "Page_No_Per_Block": "1", "Overprovisioning_Ratio": "0.9"}
    working = {"Working_Set_Percentage": "1", "Average_Request_Size": "500"}
    refused(lambda: made(tmp_path, UNIFORM | working, of_drive=small),
            "flow 0 of scenario 1", "Average_Request_Size is 500", "has 29 sectors")  # fmt: skip
    unit = {"Working_Set_Percentage": "1", "Address_Alignment_Unit": "30"}
    refused(lambda: made(tmp_path, UNIFORM | unit, of_drive=small), "Address_Alignment_Unit is 30")
    slow = {"Bandwidth": "1000", "Request_Size_Distribution": "FIXED"}
    assert made(tmp_path, slow)[0].total == 3000
    refused(lambda: made(tmp_path, slow, quirks=obeyed(True)), "Bandwidth is 1000", "divides by zero")  # noqa: E501 # fmt: skip


# --- traces

LINES = "1000 0 8 8 1\n2000 0 16 8 0\n2000 0 24 16 1\n5000 3 32 8 0\n"


def traced(tmp_path, text=LINES, quirks=frozenset(), name="a.trace", of_drive=None, **changes):
    put(tmp_path / name, text)
    (flow,) = made(tmp_path, {"File_Path": name} | changes, base=TRACE, quirks=quirks,
                   of_drive=of_drive)  # fmt: skip
    return flow


def test_a_trace(tmp_path):
    flow = traced(tmp_path)
    got = all_of(flow)
    assert (flow.depth, flow.total, flow.stop_ps, flow.notes) == (None, 4, None, ())
    assert got["arrival"].tolist() == [10**6, 2 * 10**6, 2 * 10**6, 5 * 10**6]
    assert (got["offset"] // SECTOR_BYTES).tolist() == [8, 16, 24, 32]
    assert (got["size"] // SECTOR_BYTES).tolist() == [8, 8, 16, 8]
    assert got["op"].tolist() == [READ, WRITE, READ, WRITE] and got["tag"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("unit", "ps"), [("PICOSECOND", 1), ("NANOSECOND", 1000), ("MICROSECOND", 10**6)])  # noqa: E501 # fmt: skip
def test_the_unit_of_a_trace(tmp_path, unit, ps):
    assert all_of(traced(tmp_path, Time_Unit=unit))["arrival"][0] == 1000 * ps
    mqsim = traced(tmp_path, Time_Unit=unit, quirks=obeyed(True))
    assert all_of(mqsim)["arrival"][0] == 10**6


def test_rounds_and_shares(tmp_path):
    """A round begins when the last request of the one before it came."""
    flow = traced(tmp_path, Relay_Count="3")
    got = all_of(flow)
    assert flow.total == 12 and got["tag"].tolist() == [*range(12)]
    us = (got["arrival"] // 10**6).tolist()
    assert us == [1, 2, 2, 5, 6, 7, 7, 10, 11, 12, 12, 15]
    assert len(all_of(traced(tmp_path, Percentage_To_Be_Executed="74"))) == 2
    both = {"Relay_Count": "2", "Percentage_To_Be_Executed": "50"}
    assert (all_of(traced(tmp_path, **both))["arrival"] // 10**6).tolist() == [1, 2, 3, 4]
    assert traced(tmp_path, **both, quirks=obeyed(True)).total == 8
    refused(lambda: traced(tmp_path, Percentage_To_Be_Executed="24"), "is 24", "none of the 4")
    refused(lambda: traced(tmp_path, text="9000000000000000 0 8 8 1\n", Relay_Count="1000000"),
            "Relay_Count is 1000000", "days")  # fmt: skip


def test_addresses_beyond_the_flow(tmp_path):
    """Wrapped at the flow's size; MQSim wraps one sector earlier. What would lie across the end
    ends there, in MQSim it goes on at the beginning. Both are said."""
    d = read_drive(put(tmp_path / "ssd.xml", drive_xml()))
    size = 256 * 243_793
    text = f"1 0 {size} 8 1\n2 0 {3 * size + 80} 8 0\n3 0 {size - 3} 8 1\n4 0 {size - 8} 8 1\n"
    flow = traced(tmp_path, text)
    assert flow.range.sectors == size == ranges(d, [flow.parameters])[0].sectors
    assert (all_of(flow)["offset"] // SECTOR_BYTES).tolist() == [0, 80, size - 8, size - 8]
    assert [n.split(" ", 1)[0] for n in flow.notes] == ["2", "1"]
    assert f"beyond the flow's {size} sectors were wrapped" in flow.notes[0]
    mqsim = traced(tmp_path, text, quirks=obeyed(True))
    assert (all_of(mqsim)["offset"] // SECTOR_BYTES).tolist() == [1, 83, size - 3, size - 8]


def test_where_a_trace_is_found(tmp_path, monkeypatch):
    """In the current folder as by MQSim, then beside the workload; compressed or not."""
    import gzip

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    compressed = gzip.compress(LINES.encode())
    (tmp_path / "traces").mkdir()
    put(tmp_path / "traces" / "b.trace.gz", compressed)
    name = {"File_Path": "traces/b.trace"}
    assert len(all_of(made(tmp_path, name, base=TRACE)[0])) == 4
    (tmp_path / "here" / "traces").mkdir()
    put(tmp_path / "here" / "traces" / "b.trace", "7 0 8 8 1\n")
    assert len(all_of(made(tmp_path, name, base=TRACE)[0])) == 1
    refused(lambda: made(tmp_path, {"File_Path": "c.trace"}, base=TRACE), "File_Path is c.trace",
            "no such file", str(tmp_path / "c.trace"))  # fmt: skip


BAD_TRACES = [
    ("5 0 8 8 1\n4 0 8 8 1\n", TraceError, "time 4 is before time 5 of line 1"),
    ("5 0 8 8\n", TraceError, "4 columns"),
    ("", TraceError, "empty"),
    ("5 0 8 0 1\n", TraceError, "sectors"),
    ("5 0 8 65536 1\n", InputError, "at most 65535"),
]


@pytest.mark.parametrize(("text", "error", "words"), BAD_TRACES)
def test_bad_traces(tmp_path, text, error, words):
    with pytest.raises(error, match=words) as caught:
        traced(tmp_path, text)
    assert len(str(caught.value).splitlines()) == 1 and "a.trace" in str(caught.value)


# --- recorded requests


def record(path, **changes):
    columns = {
        "arrival_ns": np.array([1, 1, 50], np.uint64),
        "latency_ns": np.array([40, 49, 60], np.uint32),
        "lba": np.array([8, 0, 16], np.uint32),
        "sectors": np.array([8, 8, 16], np.uint16),
        "is_read": np.array([True, False, True]),
    }
    columns = {k: v for k, v in (columns | changes).items() if v is not None}
    np.savez(path, **columns)
    return path


def test_recorded_requests(tmp_path):
    d = read_drive(put(tmp_path / "ssd.xml", drive_xml()))
    (scenario,) = read_workload(put(tmp_path / "wl.xml", workload_xml([flow_xml(**UNIFORM)])))
    recorded = read_recorded(record(tmp_path / "a.npz"))
    (flow,) = recorded_flows(d, scenario, recorded)
    got = all_of(flow)
    assert (flow.depth, flow.total) == (7, 3) and (got["arrival"] == NOT_YET).all()
    assert (got["offset"] // SECTOR_BYTES).tolist() == [8, 0, 16] and got["op"].tolist() == [
        0,
        1,
        0,
    ]
    known = recorded.records()
    assert known["end"].tolist() == [41_000, 50_000, 110_000]
    (opened,) = read_workload(put(tmp_path / "wl.xml", workload_xml([flow_xml()])))
    (flow,) = recorded_flows(d, opened, recorded)
    assert flow.depth is None and all_of(flow)["arrival"].tolist() == [1000, 1000, 50_000]
    assert len(recorded.head(2)) == 2


def test_recorded_requests_of_two_flows(tmp_path):
    d = read_drive(put(tmp_path / "ssd.xml", drive_xml()))
    text = workload_xml([flow_xml(**UNIFORM), flow_xml(**UNIFORM)])
    (scenario,) = read_workload(put(tmp_path / "wl.xml", text))
    first = ranges(d, scenario.flows)[1].first
    lba = np.array([8, first, first + 8])
    recorded = read_recorded(record(tmp_path / "a.npz", lba=lba, flow=np.array([0, 1, 1])))
    a, b = recorded_flows(d, scenario, recorded)
    assert len(all_of(a)) == 1 and len(all_of(b)) == 2 and all_of(b)["stream"].tolist() == [1, 1]
    wrong = read_recorded(record(tmp_path / "a.npz", lba=lba, flow=np.array([0, 0, 1])))
    refused(
        lambda: recorded_flows(d, scenario, wrong), "request 1", f"sector {first}", "outside flow 0"
    )
    third = read_recorded(record(tmp_path / "a.npz", lba=lba, flow=np.array([0, 1, 2])))
    refused(lambda: recorded_flows(d, scenario, third), "flow 2", "has only 2 flows")


BAD_RECORDS = [
    ({"lba": None}, ["column lba is missing"]),
    ({"lba": np.array([1, 2])}, ["lba is int64[2]", "integers[3]"]),
    ({"lba": np.array([1.0, 2, 3])}, ["lba is float64"]),
    ({"lba": np.array([1, -2, 3])}, ["lba contains values below 0"]),
    ({"sectors": np.array([0, 1, 1])}, ["has 0 sectors"]),
    ({"arrival_ns": np.array([5, 4, 6])}, ["arrival_ns of request 1 is 4", "at least 5"]),
    ({"lba": np.array([{}, 1, 2], object)}, ["is not an .npz"]),
]


@pytest.mark.parametrize(("changes", "words"), BAD_RECORDS)
def test_bad_records(tmp_path, changes, words):
    path = record(tmp_path / "a.npz", **changes)
    refused(lambda: read_recorded(path), str(path), *words)


def test_no_record(tmp_path):
    refused(lambda: read_recorded(tmp_path / "a.npz"), "no such file")
    refused(lambda: read_recorded(put(tmp_path / "a.npz", "text")), "is not an .npz")
