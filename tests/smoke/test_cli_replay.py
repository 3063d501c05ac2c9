"""Does `ondie replay` take every block trace format, and say what it found?"""

import csv
import gzip
import json

import h5py
import numpy as np
import pytest

from ondie.emu.cli.output import OutputOptions
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.ftl.precondition import apply
from ondie.emu.replay import player as replay
from ondie.emu.validate.speed.speed import WHOLE_PAGES
from ondie.traces import block
from tests.protocol.block_samples import SAMPLES, columns
from tests.smoke.commands import files, here, refused
from tests.smoke.test_cli_mqsim import FIELDS, NAMES

SMALL = (*WHOLE_PAGES, "ftl.gather_time=10 ms", "flash.channels=2", "flash.dies_per_channel=2",
         "flash.blocks_per_plane=32", "flash.pages_per_block=32", "flash.page=4 KiB",
         "ftl.over_provisioning=0.3")  # fmt: skip
CAPACITY = int(2 * 2 * 4 * 32 * 32 * 0.7) * 4096


def settings(*more):
    """Overrides of the small drive, of which those in ``more`` replace others of the same key."""
    last = dict(setting.split("=", 1) for setting in (*SMALL, *more))
    return [word for key, value in last.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture
def msr(tmp_path):
    """An MSR trace of writes and reads at known places, a millisecond apart."""
    path = tmp_path / "small.csv"
    lines = [
        f"{128166372003061629 + i * 10_000},host,0,{'Read' if i % 4 == 3 else 'Write'},"
        f"{i * 8192},{4096 if i % 2 else 8192},100"
        for i in range(400)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def run(capsys, *words):
    done = here(capsys, "replay", *words, *settings())
    assert done.code == 0, done
    return done


def test_statistics_log_and_tables(capsys, msr, tmp_path):
    done = run(capsys, msr, "--from", "msr", "--json", tmp_path / "a.json", "--log",
               tmp_path / "a.csv")  # fmt: skip
    data = json.loads((tmp_path / "a.json").read_text())
    assert set(data) == FIELDS | {"utilisation", "operations", "management", "counters"}
    assert all(set(data["latency_us"][kind]) == NAMES for kind in ("all", "read", "write"))
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["request"]) for row in rows] == list(range(400))
    assert [row["op"] for row in rows[:4]] == ["write", "write", "write", "read"]
    assert [int(row["offset"]) for row in rows] == [i * 8192 for i in range(400)]
    assert [int(row["arrival_ps"]) for row in rows] == [i * 10**9 for i in range(400)]
    took = np.array([int(row["end_ps"]) - int(row["arrival_ps"]) for row in rows])
    assert data["latency_us"]["all"]["mean"] == pytest.approx(took.mean() / 1e6)
    assert data["latency_us"]["all"]["p99"] == pytest.approx(np.percentile(took, 99) / 1e6)
    assert data["requests"] == 400 and data["simulated_ns"] * 1000 == int(rows[-1]["end_ps"])
    moved = sum(int(row["size"]) for row in rows)
    assert data["bandwidth_bytes_per_s"] == pytest.approx(moved / data["simulated_ns"] * 1e9)
    # 300 writes, of which 200 have two pages; 100 reads of one page, which a filled drive holds
    assert data["flash"]["user_writes"] == 500 and data["flash"]["user_reads"] == 100
    assert list(data["operations"]) == ["read", "write"]
    assert data["operations"]["read"]["latency_us"] == data["latency_us"]["read"]
    assert sum(part["bytes"] for part in data["operations"].values()) == moved
    assert list(data["counters"]) == list(COUNTERS)
    assert data["counters"].items() >= data["management"].items()
    assert data["management"]["trimmed_pages"] == data["management"]["overruled_victims"] == 0
    assert data["config"]["trace"] == {"source": "small.csv", "format": "msr", "requests": 400}
    assert data["config"]["drive"]["flash"]["channels"]["value"] == 2
    assert data["config"]["precondition"] == "fill" and data["config"]["queue_depth"] is None
    assert 0 < data["utilisation"]["dies"]["mean"] < data["utilisation"]["dies"]["most"] < 1
    for words in (
        "400 requests in 399 ms",
        "write amplification",
        "Busy time of each resource",
        "dies",
    ):
        assert words in done.out
    assert done.err == ""


STUBBORN = """
from ondie.emu.ftl.policies import collectable, first_block


def stubborn(st, u):
    \"\"\"The block with the most valid pages.\"\"\"
    best = -1
    for b in range(first_block(st, u), first_block(st, u) + st.cfg[0].blocks):
        if collectable(st, b) and (best < 0 or st.valid[b] > st.valid[best]):
            best = b
    return best
"""


def test_a_policy_that_is_overruled_is_told(capsys, tmp_path):
    """Blocks with nothing to gain are chosen until the last free one is needed."""
    (tmp_path / "own.py").write_text(STUBBORN)
    path = tmp_path / "hot.csv"
    lines = [f"{128166372003061629 + i * 1000},host,0,Write,{i % 64 * 4096},4096,1"
             for i in range(8000)]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    policy = ("--set", f"ftl.gc_policy={tmp_path / 'own.py'}:stubborn")
    done = here(capsys, "replay", path, "--from", "msr", "--json", tmp_path / "a.json",
                *settings(), *policy)  # fmt: skip
    assert done.code == 0, done
    found = json.loads((tmp_path / "a.json").read_text())["management"]
    assert 0 < found["overruled_victims"] <= found["collections"]
    said = f"{found['overruled_victims']} of {found['collections']} garbage collections selected"
    assert said in done.err.replace("\n", " ")


def test_word_lines_are_told(capsys, tmp_path):
    """A page every 20 ms, alone in its word line of 2 x 4 pages: seven of padding each."""
    path = tmp_path / "alone.csv"
    lines = [f"{128166372003061629 + i * 200_000},host,0,Write,{i * 4096},4096,1" for i in range(9)]
    path.write_text("\n".join(lines) + "\n")
    out = tmp_path / "a.json"
    drive = settings("flash.programming=one_shot", "flash.cell=MLC")
    done = here(capsys, "replay", path, "--from", "msr", "--json", out, *drive)
    assert done.code == 0, done
    data = json.loads(out.read_text())
    assert data["word_lines"]["padding_pages"] == 9 * 7 and data["waf"] == 8
    assert data["word_lines"]["padded_at_rest"] == 9
    assert "padding pages, programmed to complete a word line" in done.out


def test_a_log_in_hdf5_is_the_same(capsys, msr, tmp_path):
    for name in ("a.csv.gz", "a.h5"):
        run(capsys, msr, "--from", "msr", "--log", tmp_path / name, "--quiet")
    with gzip.open(tmp_path / "a.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    with h5py.File(tmp_path / "a.h5") as file:
        names = list(file["op"].attrs["names"])
        assert [names[op] for op in file["op"][:]] == [row["op"] for row in rows]
        for column in set(rows[0]) - {"op"}:
            assert file[column][:].tolist() == [int(row[column]) for row in rows]
    assert files(tmp_path) == ["a.csv.gz", "a.h5", "small.csv"]


@pytest.mark.parametrize(
    ("words", "depth", "seconds"),
    [
        ((), None, 0.399),
        (("--open",), None, 0.399),
        (("--speed", "2"), None, 0.1995),
        (("--open", "--speed", "0.5"), None, 0.798),
        (("--queue-depth", "1"), 1, None),
        (("--as-fast-as-possible",), 256, None),
    ],
)
def test_how_requests_are_let_go(capsys, msr, tmp_path, words, depth, seconds):
    run(capsys, msr, "--from", "msr", *words, "--json", tmp_path / "a.json", "--quiet")
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["config"]["queue_depth"] == depth
    if depth == 1:  # one after the other: the sum of the latencies
        total = data["latency_us"]["all"]["mean"] * 400 * 1000
        assert data["simulated_ns"] == pytest.approx(total, rel=1e-6)
    elif depth:
        assert data["simulated_ns"] < 0.05e9
    else:
        assert data["simulated_ns"] / 1e9 == pytest.approx(seconds, rel=0.01)


def test_every_format(capsys, tmp_path):
    """The same requests from four formats, each as exact as its times are; blkparse's sample."""
    plain = [(i * 10**9, i % 2, i * 12288, 4096 * (1 + i % 3), 0) for i in range(60)]
    trace = columns(plain, ("0",))
    found = {}
    for form, unit in (("mqsim", "ns"), ("msr", None), ("fio2", None), ("fio3", None)):
        path = tmp_path / f"a.{form}"
        block.write_block(trace, path, form, time_unit=unit)
        words = ("--time-unit", unit) if unit else ()
        words += ("--wait", "program") if form == "fio2" else ()
        run(capsys, path, "--from", form, *words, "--log", tmp_path / "a.csv", "--quiet")
        with open(tmp_path / "a.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        found[form] = [
            (int(r["arrival_ps"]), ("read", "write").index(r["op"]), int(r["offset"]),
             int(r["size"]), 0) for r in rows
        ]  # fmt: skip
    for form, rows in found.items():
        first = rows[0][0]  # fio 3's first entry is 1 us after it opened the file
        assert first == (10**6 if form == "fio3" else 0)
        assert [(t - first, *rest) for t, *rest in rows] == plain, form
    words = ("--from", "blkparse", "--side-by-side", "--footprint", "wrap")
    done = run(capsys, SAMPLES / "blkparse.txt", *words)
    wanted = len(block.read_block(SAMPLES / "blkparse.txt", "blkparse"))
    assert wanted > 5 and f"{wanted} requests in" in done.out


def test_an_iolog_without_times_runs_in_a_closed_loop(capsys, tmp_path):
    path = tmp_path / "a.log"
    path.write_text(
        "fio version 2 iolog\n/dev/a add\n/dev/a open\n/dev/a write 0 8192\n/dev/a trim 0 4096\n"
        "/dev/a sync 0 0\n/dev/a read 0 512\n/dev/a read 4096 4096\n/dev/a close\n"
    )
    words = ("--from", "fio", "--precondition", "none", "--queue-depth", "1")
    done = run(capsys, path, *words, "--json", tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["requests"] == 5 and data["flash"]["user_reads"] == 1
    assert "reads of 1 unwritten pages returned zeros" in done.err
    assert "the trace has no timestamps; 1 requests are kept outstanding" in done.err
    assert "1 requests cover parts of pages" in done.err
    for name in ("trim", "flush"):
        assert f" {name} " in done.out
    again = run(capsys, path, "--from", "fio")
    assert "8 requests are kept outstanding" in again.err  # host.io_queue_depth
    refused(here(capsys, "replay", path, "--from", "fio", "--open", *settings(), "--quiet"),
            "a.log", "has no timestamps")  # fmt: skip


def test_too_few_writes_for_steady_state_are_said_before_it(capsys, msr, tmp_path, monkeypatch):
    """The remark comes before the drive is preconditioned, once; a refused replay has none."""
    order = []
    whole = apply.precondition
    monkeypatch.setattr(
        apply,
        "precondition",
        lambda *given, **more: order.append("steady") or whole(*given, **more),
    )
    monkeypatch.setattr(
        OutputOptions, "remark", lambda self, line: order.append(line.partition(":")[0])
    )
    data = tmp_path / "a.json"
    run(capsys, msr, "--from", "msr", "--precondition", "steady", "--json", data)
    assert order == ["no write amplification", "steady"]
    assert json.loads(data.read_text())["waf"] is None
    order.clear()
    assert here(capsys, "replay", msr, "--from", "msr", "--precondition", "steady",
                *settings("flash.channels=1", "flash.dies_per_channel=1",
                          "flash.planes_per_die=1")).code == 2  # fmt: skip
    assert order == []


def test_a_drive_in_steady_state_collects(capsys, tmp_path, rng):
    path = tmp_path / "w.trace"
    pages = CAPACITY // 4096
    path.write_text("".join(f"0 0 {p * 8} 8 0\n" for p in rng.integers(0, pages, 12_000)))
    words = (path, "--from", "mqsim", "--time-unit", "ns", "--queue-depth", "32", "--quiet")
    factors = {}
    for kind in ("none", "fill", "steady"):
        run(capsys, *words, "--precondition", kind, "--json", tmp_path / "a.json")
        factors[kind] = json.loads((tmp_path / "a.json").read_text())["waf"]
    assert 1 <= factors["none"] < factors["fill"] < factors["steady"] < 2.6


def test_pslc_blocks_are_told_of(capsys, msr, tmp_path):
    """400 requests of 1.5 pages each, three of four of them writes, in a region that holds a third
    of its blocks' pages; what is folded counts in write amplification."""
    words = settings("flash.cell=TLC", "ftl.pslc=static", "ftl.pslc_share=0.1",
                     "ftl.fold_idle=100 ms")  # fmt: skip
    path = tmp_path / "a.json"
    done = here(capsys, "replay", msr, "--from", "msr", "--json", path, *words)
    assert done.code == 0, done
    data = json.loads(path.read_text())
    told = data["pslc"]
    written = data["flash"]["user_writes"]
    assert told["pslc_pages"] + told["direct_pages"] == written > 400
    assert told["folds"] > 0 and told["fold_read_pages"] == told["fold_program_pages"] > 0
    again = data["flash"]["gc_writes"] + told["fold_program_pages"]
    assert data["waf"] == (written + again) / written
    blocks = 2 * 2 * 4 * int(32 * 0.1)
    assert told["pslc_bytes"] == blocks * (32 // 3) * 4096
    assert told["offered_bytes"] == int(2 * 2 * 4 * (32 - 3) * 32 * 0.7) * 4096
    assert f"{told['fold_program_pages']:,}" in done.out and "pSLC blocks (static)" in done.out


def test_parts_of_pages_over_a_cached_map(capsys, tmp_path):
    """A drive that is full from the start has translation pages, which no host has written."""
    path = tmp_path / "parts.trace"
    path.write_text("".join(f"{i * 100_000} 0 {i * 37 % 9000} 3 {i % 2}\n" for i in range(300)))
    done = here(capsys, "replay", path, "--from", "mqsim", "--time-unit", "ns",
                *settings("ftl.map_cache=1 KiB"))  # fmt: skip
    assert done.code == 0, done


@pytest.mark.parametrize("option", ["--json", "--log"])
def test_the_trace_is_not_written_over(capsys, msr, option):
    before = msr.read_bytes()
    done = here(capsys, "replay", msr, "--from", "msr", option, msr, *settings())
    assert refused(done, "small.csv", "is an input file") and msr.read_bytes() == before


def test_the_same_replay_twice(capsys, msr, tmp_path):
    found = []
    for name in ("a", "b"):
        run(capsys, msr, "--from", "msr", "--precondition", "steady", "--seed", 3, "--json",
            tmp_path / f"{name}.json", "--log", tmp_path / f"{name}.csv", "--quiet")  # fmt: skip
        data = json.loads((tmp_path / f"{name}.json").read_text())
        assert data.pop("wall_s") > 0 and data.pop("peak_rss_bytes") > 0
        found.append((data, (tmp_path / f"{name}.csv").read_bytes()))
    assert found[0] == found[1]


def test_requests_past_the_end(capsys, tmp_path):
    path = tmp_path / "far.csv"
    path.write_text(f"1,host,0,Write,0,4096,0\n2,host,0,Write,{CAPACITY - 2048},4096,0\n")
    words = ("replay", path, "--from", "msr", "--json", tmp_path / "a.json", *settings())
    refused(here(capsys, *words), "far.csv", "request 1", str(CAPACITY), "--footprint wrap")
    assert files(tmp_path) == ["far.csv"]
    assert here(capsys, *words, "--footprint", "wrap").code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--queue-depth", "4", "--open"), "--queue-depth 4 and --open"),
        (("--queue-depth", "4", "--speed", "2"), "--queue-depth 4 and --speed 2.0"),
        (("--as-fast-as-possible", "--queue-depth", "4"), "--queue-depth 4 and --as-fast"),
        (("--speed", "-1"), "--speed -1.0: use a value above 0"),
        (("--queue-depth", "0"), "--queue-depth"),
        (("--precondition", "stedy"), "stedy"),
        (("--time-unit", "ns"), "msr's time unit is fixed"),
        (("--volume", "x"), "device 'x'"),
        (("--set", "flash.chanels=3"), "flash.chanels"),
        (("--log", "a.txt"), ".csv"),
        (("--log", "nowhere/a.csv"), "nowhere"),
        (("--json", "small.csv/a.json"), "small.csv"),
        (("--log", "a.csv", "--json", "a.csv"), "the result is written to a file with this name"),
        (("--device", "gen4-tcl"), "gen4-tlc"),
    ],
)
def test_what_is_refused(capsys, msr, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    outcome = here(capsys, "replay", msr, "--from", "msr", *settings(), *words)
    refused(outcome, says)
    assert files(tmp_path) == ["small.csv"]


@pytest.mark.parametrize("form", ["mrs", "fio"])
def test_another_format(capsys, msr, form):
    refused(here(capsys, "replay", msr, "--from", form, *settings()), "small.csv")


def test_two_devices(capsys, tmp_path):
    path = tmp_path / "two.csv"
    path.write_text("1,host,0,Write,0,4096,0\n2,host,1,Read,0,4096,0\n")
    words = ("replay", path, "--from", "msr", *settings())
    refused(here(capsys, *words), "two.csv", "2 devices", "--volume", "--side-by-side")
    assert "1 requests in" in here(capsys, *words, "--volume", "host_1").out
    assert "2 requests in" in here(capsys, *words, "--side-by-side").out


def test_a_full_drive(capsys, tmp_path, rng):
    path = tmp_path / "w.trace"
    places = [*range(16_000), *rng.integers(0, 16_000, 16_000)]
    path.write_text("".join(f"0 0 {p * 8} 8 0\n" for p in places))
    words = ("replay", path, "--from", "mqsim", "--time-unit", "ns", "--queue-depth", "32",
             "--json", tmp_path / "a.json", *settings()[:-2],
             "--set", "ftl.over_provisioning=0.02")  # fmt: skip
    for kind in ("fill", "none", "steady"):
        outcome = here(capsys, *words, "--quiet", "--precondition", kind)
        refused(outcome, "the drive can become full", "over_provisioning = 0.02", "at least 0.0625")
    assert files(tmp_path) == ["w.trace"]


def test_a_replay_that_does_not_balance(capsys, msr, tmp_path, monkeypatch):
    """A request of which the drive took a byte less."""
    collect = replay.RequestFeed._collect

    def cheat(feed, source):
        feed.arrays.req["size"][3] -= 1
        collect(feed, source)

    monkeypatch.setattr(replay.RequestFeed, "_collect", cheat)
    outcome = here(capsys, "replay", msr, "--from", "msr", "--json", tmp_path / "a.json",
                   "--log", tmp_path / "a.csv", *settings(), "--quiet")  # fmt: skip
    refused(outcome, "defect", "bytes up the link, at the end of the replay", code=1)
    assert files(tmp_path) == ["small.csv"]
