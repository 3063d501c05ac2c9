"""Owns: the flash engine's points for pytest-benchmark, and whether a bench's rows are right.
Does not: judge a speed; machines differ.
Source: own.
"""

import dataclasses
import json

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.engine.run import build
from ondie.emu.ftl.precondition import apply as precondition
from ondie.emu.replay.player import Player, Source
from ondie.emu.units import InputError
from ondie.emu.validate import mqsim_cases as mq
from ondie.emu.validate.speed import anchors, large, peer, speed
from ondie.emu.validate.speed.plan import SECTIONS, Plan, speed_rows
from tests.fidelity.test_mqsim_results import CASES
from tests.smoke.commands import files, here, refused

FLASH = 100_000
WRITES = 50_000


@pytest.fixture
def memory():
    """Anchors on arrays small enough for a test."""
    found = anchors.Memory(1 << 20, 1 << 20)
    found.measure()
    return found


# --- points


def test_flash_without_ftl(benchmark):
    speed.flash_once(1000)
    benchmark.extra_info["pages"] = FLASH
    benchmark(speed.flash_once, FLASH)


@pytest.mark.parametrize("name", ["small", "whole data path"])
def test_ftl_with_collection(benchmark, name):
    cfg = load_preset("gen4-tlc", (*speed.SMALL, *(speed.BARE if name == "small" else speed.PLAIN)))
    speed.ftl_once(cfg, 1000, 0)

    def setup():
        arrays = build.build(cfg, devices=1, phases=1, pairs=1)
        precondition.set_steady_state(arrays, cfg)
        chunks = speed.writes(np.random.default_rng(0), int(arrays.cfg.lpns[0]), WRITES)
        return (Player(arrays, cfg, [Source(chunks, speed.DEPTH, True)]),), {}

    done = benchmark.pedantic(Player.run, setup=setup, rounds=3)
    benchmark.extra_info["pages"] = speed.page_operations(done.counters)


# --- figures


def test_what_is_counted_as_a_page_operation():
    """Uniform writes at 25 % over-provisioning: WAF above 2, and every page moved is read too."""
    cfg = load_preset("gen4-tlc", (*speed.SMALL, *speed.BARE))
    count = speed.ftl_once(cfg, WRITES, 3).counters
    assert count["program_pages"] == WRITES and 2 < 1 + count["gc_program_pages"] / WRITES < 2.8
    assert count["gc_read_pages"] >= count["gc_program_pages"]
    pages = WRITES + count["gc_read_pages"] + count["gc_program_pages"]
    assert speed.page_operations(count) == pages > 3.5 * WRITES


def test_small_maps_fit_a_cache_and_large_ones_do_not():
    small, big = (
        build.build(load_preset("gen4-tlc", (*x, *speed.BARE)), devices=1, phases=1, pairs=1)
        for x in (speed.SMALL, speed.LARGE)
    )
    assert small.l2p.nbytes + small.p2l.nbytes < 1 << 20
    assert int(big.cfg.lpns[0]) * speed.PAGE >= 64 << 30
    assert big.l2p.nbytes + big.p2l.nbytes > 100 << 20


def test_anchors(memory):
    """A chase visits every line once before it comes back."""
    lines = memory.following.size // (anchors.LINE // 8)
    assert anchors.chase(memory.following, 0, lines) == 0
    seen, at = set(), 0
    for _ in range(lines):
        seen.add(at)
        at = anchors.chase(memory.following, at, 1)
    assert len(seen) == lines
    found = memory.anchors()
    assert 0 < found.copy_ns < 1e4 and 0 < found.chase_ns < 1e5
    np.testing.assert_array_equal(memory.source, memory.target)


def test_rows_of_a_speed():
    rows = speed_rows("x", 5e6, 8e6, 10e6, anchors.Anchors(copy_ns=4.0, chase_ns=100.0))
    found = [(row.value, row.unit, row.anchor, row.ratio) for row in rows]
    assert found == [
        (5.0, "M pages/s", "target 10 M/s", 0.5),
        (8.0, "M pages/s", "target 10 M/s", 0.8),
        (200.0, "ns/page", "pointer chase", 2.0),
        (200.0, "ns/page", "memory copy, cache line", 50.0),
    ]


def test_a_large_drive_reads_what_it_has_written():
    """300 MiB of it: every page is programmed once, and read where its write had been in time."""
    size = 300 << 20
    chunks = list(large._in_order_then_anywhere(size))
    first, reads = chunks[0], np.concatenate(chunks[1:])
    np.testing.assert_array_equal(first["offset"], np.arange(300) << 20)
    assert first["size"].sum() == size and (first["op"] == 1).all()
    assert (reads["offset"] + reads["size"]).max() <= size and (reads["op"] == 0).all()
    cfg = load_preset("gen4-tlc", large.HUGE)
    arrays = build.build(cfg, devices=1, phases=1, pairs=1)
    assert int(arrays.cfg.lpns[0]) * 16384 >= 32 * 10**12
    done = Player(arrays, cfg, [Source(iter([first, reads[:10_000]]), 256, True)]).run()
    assert done.counters["program_pages"] == size // 16384
    assert done.counters["read_pages"] + done.counters["unmapped_pages"] == 10_000


# --- beside MQSim


@pytest.fixture
def case():
    return mq.read_cases(CASES, ["V20"])[0]


def test_a_case_made_longer(case, tmp_path):
    config, workload = peer.pair_in(case, tmp_path, 3)
    assert config.read_bytes() == (CASES / "configs/V20.ssdconfig.xml").read_bytes()
    before = (CASES / "configs/V20.workload.xml").read_text()
    assert "<Total_Requests_To_Generate>50000<" in before
    changed = before.replace("Generate>50000<", "Generate>150000<")
    assert workload.read_text() == changed.replace("<Stop_Time>0<", "<Stop_Time>0<")
    traced = mq.read_cases(CASES, ["V16"])[0]
    _, workload = peer.pair_in(traced, tmp_path, 4)
    assert "<Relay_Count>4<" in workload.read_text()
    assert (tmp_path / "traces/mixed50k.trace").read_text().count("\n") == 50_000


FAKE = """#!/bin/sh
echo 'Total 7'
echo 'PEER {"loop_wall_s": 2.0, "loop_cpu_s": 1.5, "transactions": 3000000, "served": SERVED,
"generated": 9}' | tr -d '\\n'
echo
"""


def test_a_peer_is_timed(case, tmp_path):
    """A program that says it took two seconds; quick runs want half of one: it runs as it is."""
    program = tmp_path / "MQSim"
    program.write_text(FAKE.replace("SERVED", "9"))
    program.chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    rows = {r.name: r for r in peer.case_rows(program, case, folder, True, lambda what: None)}
    assert set(rows) >= {f"V20 x 1: {what}" for what in ("loop", "loop, processor time", "command")}
    loop = rows["V20 x 1: loop"]
    # 50,000 writes of one page; MQSim's 3 M transactions in 2 s are 1.5 M/s
    assert loop.anchor == "MQSim 1.5 M/s, target 10 x"
    assert loop.ratio == pytest.approx(loop.value / 1.5) and loop.value > 0.02
    program.write_text(FAKE.replace("SERVED", "8"))
    with pytest.raises(InputError, match="only 8 of 9 requests were served"):
        peer.case_rows(program, case, folder, True, lambda what: None)
    program.write_text("#!/bin/sh\necho ERROR: no >&2; exit 3\n")
    with pytest.raises(InputError, match="MQSim ended with exit status 3: ERROR: no"):
        peer.case_rows(program, case, folder, True, lambda what: None)


def test_without_its_loop_time_commands_are_compared(case):
    ours, theirs = peer.Run(2.0, 1.0, 1.0, 0.9, 10**6), peer.Run(8.0, 6.0, None, None, None)
    rows = peer.compared(dataclasses.replace(case), 1, ours, theirs)
    assert [(r.name, r.value, r.ratio) for r in rows] == [
        ("V20 x 1: command", 0.5, 4.0),
        ("V20 x 1: command, processor time", 1.0, 6.0),
    ]
    collecting = dataclasses.replace(case, expected=dict(case.expected) | {"gc_executions": 5})
    assert "target 20 x" in peer.compared(collecting, 1, ours, theirs)[0].anchor


# --- the command


def test_the_command_writes_rows(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(Plan, "repeat", 1)
    monkeypatch.setattr(anchors.Memory.__init__, "__defaults__", (1 << 20, 1 << 20))
    words = ("bench", "engine", "--quick", "--only", "flash", "--json", tmp_path / "a.json")
    done = here(capsys, *words)
    assert (done.code, done.err) == (0, "")
    data = json.loads((tmp_path / "a.json").read_text())
    assert set(data) == {"schema_version", "machine", "rows"}
    rows = {row["name"]: row for row in data["rows"]}
    assert rows["no FTL, 256 planes"]["anchor"] == "target 30 M/s"
    assert rows["no FTL, 256 planes"]["value"] > 0.1 and rows["memory copy"]["unit"] == "GB/s"
    assert "no FTL, 256 planes" in done.out and "pointer chase" in done.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--only", "flsh"), "--only flsh: must be one of flash, ftl"),
        (("--peer", "nowhere"), "--peer nowhere: is not an executable program"),
        (("--peer", "/bin/true"), "--peer /bin/true requires --cases DIR"),
        (("--peer", "/bin/true", "--cases", "."), "cases.json"),
        (("--json", "a/b/c.json"), "a"),
    ],
)
def test_what_is_refused(capsys, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("")
    refused(here(capsys, "bench", "engine", *words), says)
    assert files(tmp_path) == ["a"]


def test_sections():
    assert SECTIONS == ("flash", "ftl", "ftl-64g", "peer", "large", "memory", "start")
