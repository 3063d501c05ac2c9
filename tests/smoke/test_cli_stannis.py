"""Do `ondie stannis tune`, `plan` and `simulate` say what they found, and refuse what is wrong?"""

import json
import subprocess
import sys

import pytest

from ondie.emu.cluster.training_sim import Simulation
from tests.smoke.commands import files, here, refused


def told(capsys, tmp_path, *words):
    out = tmp_path / "out.json"
    done = here(capsys, "stannis", *words, "--json", out, "--quiet")
    assert (done.code, done.out) == (0, ""), done
    return json.loads(out.read_text())


def test_tune(capsys, tmp_path):
    data = told(capsys, tmp_path, "tune", "mobilenetv2")
    rows = {row["allocator"]: row for row in data["allocations"]}
    assert rows["paper"]["samples"] == {"host": 315, "newport": 25}
    assert rows["paper"]["samples_per_s"] == pytest.approx(2.7 * 32.3, rel=0.01)
    assert rows["equal"]["samples_per_s"] > 1.1 * rows["paper"]["samples_per_s"]
    assert rows["best"]["samples_per_s"] > rows["equal"]["samples_per_s"]
    assert data["without_exchange_samples_per_s"] > rows["best"]["samples_per_s"]
    done = here(capsys, "stannis", "tune", "inceptionv3")
    assert done.code == 0 and "no waiting" in done.out and "memory limit" in done.out


def test_tune_says_where_fewer_drives_are_faster(capsys, tmp_path):
    words = ("tune", "inceptionv3", "--drives", "newport=4")
    done = here(capsys, "stannis", *words)
    assert (
        done.code == 0
        and "A cluster with 0 of the 4 drives is faster than one with all drives: 30.8" in done.out
    )
    fastest = told(capsys, tmp_path, *words)["fastest"]
    assert fastest == {"nodes": {"host": 1}, "samples_per_s": pytest.approx(30.8)}
    data = told(capsys, tmp_path, "tune", "inceptionv3")
    assert data["fastest"]["nodes"] == {"host": 1, "newport": 24}
    rows = {row["allocator"]: row["samples_per_s"] for row in data["allocations"]}
    assert data["fastest"]["samples_per_s"] == pytest.approx(rows["equal"])
    done = here(capsys, "stannis", "tune", "inceptionv3")
    assert done.code == 0 and "are faster than all" not in done.out
    for drives in (("newport=0",), ("newport=2", "laguna=2")):
        words = [word for kind in drives for word in ("--drives", kind)]
        assert "fastest" not in told(capsys, tmp_path, "tune", "inceptionv3", *words)


def test_plan(capsys, tmp_path):
    data = told(capsys, tmp_path, "plan", "mobilenetv2", "--private", "500", "--public", "72000")
    nodes = data["nodes"]
    assert data["steps"] == pytest.approx(91.803, abs=0.001)
    assert nodes["batch"] == [315, *[25] * 24]
    assert nodes["private"] == [0, *[500] * 24]
    assert nodes["public"][0] == 28_918 and set(nodes["public"][1:]) == {1_795}
    done = here(capsys, "stannis", "plan", "mobilenetv2")
    assert done.code == 0 and "28,918" in done.out and "1,795" in done.out


def test_plan_with_unequal_private_data(capsys, tmp_path):
    own = [100 * i for i in range(24)]
    data = told(capsys, tmp_path, "plan", "mobilenetv2", "--private", ",".join(map(str, own)))
    nodes = data["nodes"]
    assert nodes["private"] == [0, *own]
    assert len({a + b for a, b in zip(nodes["private"], nodes["public"], strict=True)}) == 2


def test_scale(capsys, tmp_path):
    figure = tmp_path / "f.png"
    words = ("scale", "mobilenetv2,inceptionv3", "--drives", "newport=8", "--figure", figure)
    rows = told(capsys, tmp_path, *words)
    assert [row["drives"] for row in rows] == 2 * [0, 1, 2, 4, 8]
    over = {(row["workload"], row["drives"]): row["over_host"] for row in rows}
    assert over["mobilenetv2", 0] == 1 < over["mobilenetv2", 1] < over["mobilenetv2", 8]
    assert over["inceptionv3", 1] < 1  # the exchange takes longer than a drive adds
    assert figure.read_bytes()[:4] == b"\x89PNG"
    refused(here(capsys, "stannis", "scale", "mobilenetv2,"), "a name is empty")
    two = ("--drives", "newport=1", "--drives", "laguna=1")
    refused(here(capsys, "stannis", "scale", "mobilenetv2", *two), "one kind")


def test_simulate(capsys, tmp_path):
    (tmp_path / "load.csv").write_text("seconds,node,cores\n30,0,6\n")
    (tmp_path / "members.csv").write_text("seconds,node,event\n100,3,dies\n")
    more = ("--steps", "60", "--load", tmp_path / "load.csv", "--members", tmp_path / "members.csv")
    data = told(capsys, tmp_path, "simulate", "mobilenetv2", *more, "--hypertune", "gated")
    runs = data["runs"]
    assert list(runs) == ["left alone", "interrupted", "HyperTune"]
    speeds = [runs[name]["samples_per_s"] for name in runs]
    assert speeds[0] > speeds[2] > speeds[1]
    assert [n["what"] for n in runs["interrupted"]["notes"]] == ["dies"]
    assert {n["what"] for n in runs["HyperTune"]["notes"]} == {"batches", "dies"}
    figure = tmp_path / "f.png"
    done = here(capsys, "stannis", "simulate", "mobilenetv2", *more, "--figure", figure)
    assert done.code == 0 and figure.read_bytes()[:4] == b"\x89PNG"
    assert "interrupted" in done.out and "node 3" in done.out


def test_several_kinds_of_drives_and_servers(capsys, tmp_path):
    words = ("--drives", "newport=6", "--drives", "laguna=4", "--hosts", "2")
    data = told(capsys, tmp_path, "simulate", "mobilenetv2", *words, "--steps", "3")
    assert data["runs"]["left alone"]["nodes"]["kind"] == [
        *["host"] * 2, *["newport"] * 6, *["laguna"] * 4
    ]  # fmt: skip


def test_a_trace(capsys, tmp_path):
    words = ("gpt-small", "--host-batch", "64", "--drives", "newport=3")
    data = told(capsys, tmp_path, "tune", *words)
    assert {row["allocator"] for row in data["allocations"]} == {"paper", "equal", "best"}
    data = told(capsys, tmp_path, "simulate", *words, "--steps", "4")
    assert data["runs"]["left alone"]["samples"] > 0


def test_the_same_seed_gives_the_same_bytes(capsys, tmp_path):
    words = ("simulate", "squeezenet", "--steps", "20", "--jitter", "0.05", "--draw-load", "0.2,60",
             "--hypertune", "gated", "--seed", "4")  # fmt: skip
    one, two = (told(capsys, tmp_path, *words) for _ in range(2))
    assert one == two
    other = told(capsys, tmp_path, *words[:-1], "5")
    assert other != one


def test_eq3_is_refused_before_anything_is_simulated(capsys, monkeypatch):
    monkeypatch.setattr(Simulation, "run", None)
    words = ("simulate", "gpt-small", "--host-batch", "64", "--no-reading", "--hypertune", "gated")
    done = here(capsys, "stannis", *words, "--batch-rule", "eq3")
    refused(done, "use --batch-rule proportional")


def test_numbers_beyond_64_bits_are_refused(capsys, tmp_path):
    for option, rest in (("--load", "cores\n1,99999999999999999999,2"),
                         ("--members", "event\n1,99999999999999999999,dies")):  # fmt: skip
        (tmp_path / "file.csv").write_text(f"seconds,node,{rest}\n")
        words = ("stannis", "simulate", "mobilenetv2", "--no-reading", option)
        refused(here(capsys, *words, tmp_path / "file.csv"), "line 2")


def test_a_drawn_load_does_not_end_before_the_run(capsys, tmp_path):
    words = ("simulate", "mobilenetv2", "--steps", "200", "--draw-load", "0.5,120", "--no-reading")
    runs = told(capsys, tmp_path, *words)["runs"]
    compute = runs["interrupted"]["steps"]["compute_s"]
    alone = runs["left alone"]["steps"]["compute_s"][0]
    for first in range(0, 200, 40):
        part = compute[first : first + 40]
        assert sum(part) > 2 * alone * len(part)


def test_the_papers_way_shows_what_it_drops(capsys, tmp_path):
    words = ("stannis", "simulate", "mobilenetv2", "--no-reading", "--steps", "30")
    done = here(capsys, *words, "--hypertune", "papers")
    assert done.code == 0 and "dropped" in done.out.splitlines()[2]
    assert "epoch ended, 79,431 samples dropped" in done.out and "batches: \n" not in done.out
    assert "HyperTune: no epoch finishes" in done.out
    done = here(capsys, *words, "--hypertune", "gated")
    assert done.code == 0 and "dropped" not in done.out and "no epoch" not in done.out


def test_stragglers_are_no_decline(capsys, tmp_path):
    words = ("simulate", "mobilenetv2", "--steps", "200", "--no-reading", "--stragglers", "0.05")
    runs = told(capsys, tmp_path, *words, "--hypertune", "gated")["runs"]
    assert not [n for n in runs["HyperTune"]["notes"] if n["what"] == "batches"]
    assert runs["HyperTune"]["seconds"] == runs["left alone"]["seconds"]


def test_joining_costs_time_and_energy(capsys, tmp_path):
    """13.88 MB of weights down a tunnel of tens of MB/s."""
    words = ("simulate", "mobilenetv2", "--no-reading", "--steps", "20", "--private", "0")
    found = []
    for event in ("30,3,joins", "30,3,leaves"):
        (tmp_path / "members.csv").write_text(f"seconds,node,event\n{event}\n")
        run = told(capsys, tmp_path, *words, "--members", tmp_path / "members.csv")["runs"]
        run = run["interrupted"]
        steps = run["steps"]
        spent = sum(sum(steps[name]) for name in ("compute_s", "exchange_s", "update_s"))
        found.append((run["seconds"] - spent, run["joules"] - sum(steps["joules"])))
    (took, joules), idle = found
    assert 0.05 < took < 2 and joules == pytest.approx(took * 340, rel=0.5)
    assert idle == pytest.approx((0, 0), abs=1e-6)


LARGE = """
import re, sys
from ondie.emu.cli.main import main
try:
    main(sys.argv[1:])
finally:  # VmHWM: the largest that ru_maxrss knows may be the process that this was forked from
    kib = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
    print(kib, file=sys.stderr)
"""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="KiB there; bytes or nothing elsewhere")
def test_a_large_fleet_takes_little_memory():
    """100,000 nodes with load and HyperTune; a row per node and step would still be less."""
    words = ("stannis", "simulate", "mobilenetv2", "--drives", "newport=99999", "--steps", "3",
             "--private", "0", "--public", "100000000", "--no-reading", "--draw-load", "0.1,60",
             "--hypertune", "gated", "--jitter", "0.02", "--quiet")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", LARGE, *words], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.split()[-1]) < 768 * 1024


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tune", "mobilnetv2"), "mobilnetv2"),
        (("tune", "mobilenetv2", "--drives", "newport"), "newport=24"),
        (("tune", "mobilenetv2", "--drives", "newport=-1"), "newport=24"),
        (("tune", "mobilenetv2", "--drives", "neuport=3"), "newport"),
        (("tune", "mobilenetv2", "--drives", "optimstore-r1=3"), "cannot train"),
        (("tune", "mobilenetv2", "--hosts", "0"), "at least 1"),
        (("tune", "mobilenetv2", "--allreduce", "rong"), "ring"),
        (("tune", "mobilenetv2", "--allocator", "papr"), "paper"),
        (("tune", "mobilenetv2", "--margin", "-1"), "at least 0"),
        (("tune", "mobilenetv2", "--reference", "fastest"), "slowest"),
        (("tune", "mobilenetv2", "--host-batch", "3"), "published"),
        (("tune", "gpt-small", "--host-batch", "0"), "from 1 to"),
        (("tune", "gpt3-175b"), "GB"),
        (("tune", "mobilenetv2", "--most-batch", "0"), "from 1 to"),
        (("tune", "mobilenetv2", "--set", "isp.training_ratio=0",
          "--set", "isp.training_ratio_by_model.mobilenetv2=0"), "cannot train"),
        (("plan", "mobilenetv2", "--private", "1,2"), "24 drives"),
        (("plan", "mobilenetv2", "--private", "x"), "number"),
        (("plan", "mobilenetv2", "--private", "50000"), "private samples"),
        (("plan", "mobilenetv2", "--public", "-5"), "from 0 to"),
        (("plan", "mobilenetv2", "--levelling", "no"), "repeat"),
        (("simulate", "mobilenetv2", "--steps", "0"), "at least 1"),
        (("simulate", "mobilenetv2", "--hypertune", "on"), "gated"),
        (("simulate", "mobilenetv2", "--draw-load", "2"), "0.2,120"),
        (("simulate", "mobilenetv2", "--draw-load", "2,3"), "between 0 and 1"),
        (("simulate", "mobilenetv2", "--no-reading", "--draw-load", "0.1,1e-7"), "spells of"),
        (("simulate", "mobilenetv2", "--no-reading", "--hypertune", "gated", "--private", "0",
          "--allocator", "best", "--most-batch", "10"),
         "--allocator best gives newport a batch of 0 within --most-batch 10"),
        (("simulate", "mobilenetv2", "--no-reading", "--batch-rule", "eq4"), "--batch-rule 'eq4'"),
        (("simulate", "gpt-small", "--host-batch", "64", "--no-reading", "--hypertune", "gated",
          "--batch-rule", "eq3-literal"), "--batch-rule eq3-literal: host: its speed does not"),
        (("simulate", "mobilenetv2", "--load", "none.csv"), "cannot be read"),
        (("simulate", "mobilenetv2", "--members", "none.csv"), "cannot be read"),
        (("simulate", "mobilenetv2", "--jitter", "7"), "0 to 1"),
        (("simulate", "mobilenetv2", "--figure", "f.gif"), "png"),
    ],
)  # fmt: skip
def test_bad_input(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    done = here(capsys, "stannis", *words, "--json", "out.json")
    refused(done)
    assert message in done.err
    assert files(tmp_path) == []
