"""Is the timeline a Chrome trace where each resource has a track and does one thing at a time?"""

import json
from collections import defaultdict

import pytest

from ondie.emu.analysis import perfetto as timeline
from ondie.emu.analysis.compare import Comparison, Result, compare
from ondie.emu.config.config import load_preset
from ondie.emu.validate import model
from tests.smoke.commands import SMALL, files, here

PS_PER_US = 10**6
ROOM = 10**6
N_PARAMS = 300_000

DIES = {f"die {channel}.{way}" for channel in range(2) for way in range(2)}
CHANNELS = {"channel 0", "channel 1"}
ECC = {"ECC 0", "ECC 1"}
LINK = {"link down", "link up", "DRAM"}
HOST = {"accelerator"}
NVME = {"front end", "host submission"}
ISP = {"ISP", "ISP flash path"}
TUNNEL = {"tunnel up", "tunnel down", "host relay"}
EVERY = DIES | CHANNELS | ECC | NVME | ISP
# What each path uses of the drive and the host.
USED = {
    "host_offload": DIES | CHANNELS | ECC | LINK | HOST | NVME | {"host CPU"},
    "host_offload_pipelined": DIES | CHANNELS | ECC | LINK | HOST | NVME | {"host CPU"},
    "in_storage": DIES | CHANNELS | ECC | LINK | HOST | ISP,
    "on_die": DIES | CHANNELS | LINK | HOST,  # reservoir pages pass no ECC
    "stannis": HOST | {"link up", "DRAM", "host CPU", "ISP"} | TUNNEL,
}
# Small enough to be read, and with every kind of device.
MACHINES = {
    "optimstore-r1": (*SMALL,),
    "optimstore-r1, two drives": (*SMALL, "system.devices=2"),
    "optimstore-r1, commands wait for data": (*SMALL, "flash.interleave_commands=false"),
    "optimstore-r1, one plane at a time": (*SMALL, "flash.multi_plane=false"),
    "newport": (*SMALL, "system.devices=2"),
}


def computing() -> object:
    """A model whose forward and backward take time, so that the accelerator has intervals."""
    import dataclasses

    trace = model("adam", N_PARAMS)
    step = dataclasses.replace(trace.steps[0], forward_s=0.001, backward_s=0.002, samples=64)
    return dataclasses.replace(trace, steps=(step,), samples_per_step=64, bytes_per_sample=1000)


@pytest.fixture(scope="module")
def comparisons() -> dict[str, Comparison]:
    """One small comparison per machine."""
    return {
        name: compare(
            computing(),
            load_preset(name.partition(",")[0], overrides),
            swing=False,
            timeline=ROOM,
        )
        for name, overrides in MACHINES.items()
    }


def ran(c: Comparison) -> list[Result]:
    return [r for r in c.results if r.reason is None]


def tracks(events: list[dict]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(pid, tid) -> its intervals [start, end) in ps, by start, the longest first."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start, end = event["ts"], event["ts"] + event["dur"]
            found[event["pid"], event["tid"]].append(
                (round(start * PS_PER_US), round(end * PS_PER_US))
            )
    return {key: sorted(x, key=lambda ab: (ab[0], -ab[1])) for key, x in found.items()}


def names(events: list[dict], what: str) -> dict:
    """(pid, tid) -> name of the thread, or pid -> name of the process."""
    return {
        (e["pid"], e["tid"]) if what == "thread_name" else e["pid"]: e["args"]["name"]
        for e in events
        if e["ph"] == "M" and e["name"] == what
    }


@pytest.mark.parametrize("machine", MACHINES)
def test_intervals_of_a_track_do_not_overlap(comparisons, machine):
    """On a channel a command may lie inside the data that it interrupts; nothing else nests."""
    for r in ran(comparisons[machine]):
        assert r.dropped == 0
        called = names(r.timeline, "thread_name")
        for track, intervals in tracks(r.timeline).items():
            outer = 0
            for start, end in intervals:
                assert start < end
                if start < outer:  # inside the one before: wholly, and only on a channel
                    assert end <= outer and called[track].startswith("channel"), (r.name, track)
                    assert "commands wait" not in machine
                outer = max(outer, end)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_resource_has_a_track_of_its_own(comparisons, machine):
    c = comparisons[machine]
    for r in ran(c):
        threads = names(r.timeline, "thread_name")
        processes = names(r.timeline, "process_name")
        assert set(tracks(r.timeline)) <= set(threads)
        found = defaultdict(set)
        for (pid, _), name in threads.items():
            assert name not in found[pid], "two tracks of one name"
            found[pid].add(name)
        assert set(processes) == set(found)
        assert set(processes.values()) == {f"{r.title}: host"} | {
            f"{r.title}: device {i}" for i in range(c.cfg.system.devices)
        }
        for i in range(c.cfg.system.devices):
            seen = found[0] | found[1 + i]
            if r.name == "stannis":  # a few samples lie on some die of each drive
                assert USED[r.name] <= seen and seen & DIES and seen & CHANNELS
                assert seen - USED[r.name] <= EVERY
            else:
                assert seen == USED[r.name], i


@pytest.mark.parametrize("machine", MACHINES)
def test_what_the_tracks_show_is_what_the_ledger_counts(comparisons, machine):
    """Summed over the tracks of a class, the time covered is the time the class was busy."""
    plural = {"die": "dies", "channel": "channels", "ECC": "ECC"}
    for r in ran(comparisons[machine]):
        covered = defaultdict(int)
        called = names(r.timeline, "thread_name")
        for track, intervals in tracks(r.timeline).items():
            first = called[track].split()[0]
            last = 0
            for start, end in intervals:
                covered[plural.get(first, called[track])] += max(end - max(start, last), 0)
                last = max(last, end)
        busy = {name: ps for name, ps in r.ledger.totals.busy_sum_ps.items() if ps}
        assert covered == busy
        whole = r.ledger.totals.steps[-1]["step"][1]
        assert max(end for x in tracks(r.timeline).values() for _, end in x) <= whole


def test_an_interval_names_its_operation_and_its_phase(comparisons):
    r = comparisons["optimstore-r1"].result("on_die")
    found = {(e["name"], e["cat"]) for e in r.timeline if e["ph"] == "X"}
    for operation in ("VPP", "BPR", "ODC", "BPP"):
        assert (operation, "update") in found
    assert ("READ", "weights_up") in found
    assert {"forward", "backward"} <= {cat for _, cat in found}


def test_what_finds_no_room_is_counted(comparisons):
    whole = comparisons["optimstore-r1"].result("on_die")
    kept = sum(e["ph"] == "X" for e in whole.timeline)
    cfg = comparisons["optimstore-r1"].cfg
    short = compare(computing(), cfg, paths=["on_die"], swing=False, timeline=100).results[0]
    assert sum(e["ph"] == "X" for e in short.timeline) + short.dropped >= kept
    assert short.dropped > 0
    data = json.loads(timeline.merge([(short.timeline, short.dropped)]))
    assert data["otherData"]["intervals_without_room"] == short.dropped
    assert short.ledger.step_s == whole.ledger.step_s  # looking changes nothing


def test_the_timeline_changes_no_time(comparisons):
    for machine, c in comparisons.items():
        plain = compare(c.trace, c.cfg, swing=False)
        for a, b in zip(c.results, plain.results, strict=True):
            assert a.reason == b.reason, machine
            if a.reason is None:
                assert a.ledger == b.ledger and b.timeline is None, machine


def test_the_file(tmp_path, capsys, monkeypatch):
    """One process per path and device, told apart by their titles."""
    monkeypatch.chdir(tmp_path)
    words = ["compare", "mlp-fp16", "--steps", "2", "--out", "out", "--timeline", "deep/line.json"]
    outcome = here(capsys, *words, "--no-swing")
    assert outcome.code == 0 and "deep/line.json" in outcome.out
    assert files(tmp_path) == [
        "deep", "deep/line.json", "out", "out/figure.pdf", "out/figure.png", "out/result.json",
    ]  # fmt: skip
    data = json.loads((tmp_path / "deep/line.json").read_text())
    assert data["otherData"] == {"intervals_without_room": 0}
    events = data["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X"}
    processes = names(events, "process_name")
    titles = [r["title"] for r in json.loads((tmp_path / "out/result.json").read_text())["paths"]
              if r["status"] == "ok"]  # fmt: skip
    assert sorted(processes.values()) == sorted(
        f"{title}: {where}" for title in titles for where in ("host", "device 0")
    )
    threads = names(events, "thread_name")
    assert {pid for pid, _ in threads} == set(processes)
    for event in events:
        if event["ph"] == "X":
            assert {"name", "cat", "ts", "dur", "pid", "tid", "args"} <= set(event)
            assert event["ts"] >= 0 and event["dur"] > 0
            assert (event["pid"], event["tid"]) in threads
