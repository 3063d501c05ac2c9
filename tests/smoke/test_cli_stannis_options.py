"""Do `ondie stannis tune` and `plan` show the engines they use, and refuse numbers out of range?"""

import pytest

from tests.smoke.commands import files, here, refused
from tests.smoke.test_cli_stannis import told

HUGE = "99999999999999999999"


@pytest.fixture(autouse=True)
def memory_fed(monkeypatch):
    """How fast flash feeds the nodes is no question here, and takes seconds to find out."""
    monkeypatch.setattr("ondie.emu.cluster.build.feed_bytes_per_s", lambda *_, **__: 1e9)


def test_plan_adds_up_with_repetitions(capsys, tmp_path):
    """5,000 / 25 = 200 steps of 315 + 24 x 25: 183,000 samples, 63,000 of them the host's."""
    own = ",".join(["500"] * 23 + ["5000"])
    words = ("plan", "mobilenetv2", "--private", own, "--levelling", "repeat")
    data = told(capsys, tmp_path, *words)
    nodes = data["nodes"]
    assert data["steps"] == 200
    assert sum(map(sum, (nodes["private"], nodes["public"], nodes["repeated"]))) == 183_000
    assert nodes["repeated"][0] == nodes["repeated"][-1] == 0 < nodes["repeated"][1]
    done = here(capsys, "stannis", *words)
    assert done.code == 0 and "repeated" in done.out
    assert "34.4%" in done.out and "71.2%" not in done.out


def test_tune_shows_what_was_benchmarked(capsys, tmp_path):
    data = told(capsys, tmp_path, "tune", "mobilenetv2")
    host, drive = data["engines"]
    assert host["batches"] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 315]
    assert drive["batches"] == [1, 2, 4, 8, 16, 25]
    for engine, speed in ((host, 32.3), (drive, 3.08)):
        assert engine["samples_per_s"][-1] == pytest.approx(speed)
        assert engine["samples_per_s"] == sorted(engine["samples_per_s"])
        assert engine["half_batch"] == pytest.approx(1) and engine["half_batch_is"] == "assumed"
        assert engine["start_s"] == pytest.approx(engine["sample_s"])
    done = here(capsys, "stannis", "tune", "mobilenetv2")
    assert (
        done.code == 0
        and "batches tried" in done.out
        and "half of that speed is assumed" in " ".join(done.out.split())
    )
    (host, _) = told(capsys, tmp_path, "tune", "gpt-small", "--host-batch", "64")["engines"]
    assert host["batches"] == [64] and "half_batch" not in host


def test_another_drives_server_is_named(capsys, tmp_path):
    words = ("squeezenet", "--drives", "laguna=36")
    for command in ("tune", "plan"):
        (note,) = told(capsys, tmp_path, command, *words)["notes"]
        assert "not published on laguna" in note and "newport server" in note
        done = here(capsys, "stannis", command, *words)
        assert done.code == 0 and "not published on laguna" in done.out
    rows = told(capsys, tmp_path, "scale", "squeezenet", "--drives", "laguna=2")
    assert all("not published on laguna" in row["notes"][0] for row in rows)
    words = ("simulate", "squeezenet", "--drives", "laguna=2", "--steps", "2", "--no-reading")
    assert "not published on laguna" in told(capsys, tmp_path, *words)["notes"][0]
    assert "not published on laguna" in here(capsys, "stannis", *words).out.replace("\n", " ")
    assert told(capsys, tmp_path, "tune", "mobilenetv2", "--drives", "laguna=36")["notes"] == []


def test_who_is_held_down_by_memory(capsys, tmp_path):
    small = ("tune", "mobilenetv2", "--set", "dram.isp=1 GB")
    rows = {a["allocator"]: a for a in told(capsys, tmp_path, *small)["allocations"]}
    assert rows["paper"]["samples"]["newport"] == 17
    assert rows["paper"]["held_down_by_memory"] == ["newport"]
    done = here(capsys, "stannis", *small)
    assert "Memory limits the batch of newport" in done.out
    done = here(capsys, "stannis", "tune", "mobilenetv2")
    assert done.code == 0 and "Memory limits" not in done.out


def test_synchronisation_by_overhead_and_local_steps(capsys, tmp_path):
    """At most a tenth of the time in the exchange; local steps are so many steps stale."""
    found = {}
    for more in ((), ("--method", "local"), ("--overhead", "0.1", "--method", "local")):
        data = told(capsys, tmp_path, "tune", "inceptionv3", *more)
        found[more] = {row["allocator"]: row for row in data["allocations"]}["best"]
    assert "local steps" not in found[()]["risk"]
    assert "4 local steps" in found["--method", "local"]["risk"]
    rare = found["--overhead", "0.1", "--method", "local"]
    steps = rare["micro_batches"]["newport"]
    assert f"{steps} local steps" in rare["risk"]
    assert rare["exchange_s"] <= 0.1 * (rare["exchange_s"] + rare["compute_s"])
    one_less = rare["compute_s"] * (steps - 1) / steps
    assert rare["exchange_s"] > 0.1 * (rare["exchange_s"] + one_less)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "--private", HUGE), "2**62"),
        (("plan", "--private", "9" * 18 + ",0" * 23, "--levelling", "repeat"), "more than 2**62"),
        (("plan", "--public", HUGE), f"--public {HUGE}: must be from 0 to 2**62"),
        (("plan", "--public", "9000000000000000000"), "2**62"),
        (("simulate", "--public", "9000000000000000000"), "2**62"),
        (("tune", "--most-batch", HUGE), "--most-batch"),
        (("tune", "--most-micro-batches", HUGE), "--most-micro-batches"),
        (("tune", "--most-micro-batches", "0"), "--most-micro-batches 0: must be from 1"),
        (("tune", "--drives", "newport=1000000000"), "1,000,000,001 nodes in total"),
        (("tune", "--drives", f"newport={HUGE}"), "1 to 1,000,000"),
        (("scale", "--drives", "newport=1000000000"), "1 to 1,000,000"),
        (("tune", "--hosts", HUGE), "1 to 1,000,000"),
        (("tune", "--overhead", "0"), "between 0 and 1"),
        (("tune", "--overhead", "1"), "between 0 and 1"),
        (("tune", "--overhead", "nan"), "between 0 and 1"),
        (("tune", "--method", "lokal"), "nearest: local"),
    ],
)
def test_numbers_out_of_range(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    command, *more = words
    done = here(capsys, "stannis", command, "mobilenetv2", *more, "--json", "out.json")
    refused(done)
    assert message in done.err
    assert files(tmp_path) == []


def test_the_inverted_curve_works_for_networks(capsys, tmp_path):
    """Their speed rises with the batch, so Eq. 3 tells batches apart."""
    (tmp_path / "load.csv").write_text("seconds,node,cores\n30,0,6\n")
    words = ("simulate", "mobilenetv2", "--steps", "40", "--no-reading", "--batch-rule", "eq3",
             "--load", tmp_path / "load.csv", "--hypertune", "gated")  # fmt: skip
    run = told(capsys, tmp_path, *words)["runs"]["HyperTune"]
    notes = [note for note in run["notes"] if note["what"] == "batches"]
    assert notes and "node 0" in notes[0]["text"]
