"""Do the drive's other users feel an update, and it them, and is nothing of either lost?"""

import dataclasses
import json

import numpy as np
import pytest

from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.foreground import interference
from ondie.emu.cli.commands.foreground import table
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.paths.offload.options import Offload
from ondie.emu.replay.block_trace import Loop, replay_block
from ondie.emu.units import InputError
from ondie.emu.validate import model
from ondie.traces import flat_tensors
from ondie.traces.block_model import BlockTrace
from tests.smoke.commands import files, here, refused

UPDATING = ("host_offload", "host_offload_pipelined", "in_storage", "on_die")
PARAMS = 8_000_000


def users(n: int, iops: float, writes: float, span: int = 1 << 16, **changes) -> BlockTrace:
    """``n`` random requests of 4 KiB at random times."""
    rng = np.random.default_rng(7)
    made = BlockTrace(
        arrival_ps=np.cumsum(rng.exponential(1e12 / iops, n)).astype(np.int64),
        op=(rng.random(n) < writes).astype(np.int8),
        offset=rng.integers(0, span, n) * 4096,
        size=np.full(n, 4096),
        device=np.zeros(n, np.int32),
        devices=("0",),
        source="users",
        format="fio",
    )
    return dataclasses.replace(made, **changes)


def felt(names, requests, loop=None, **settings):
    given = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    cfg = load_preset("optimstore-r1", given)
    trace = model("adam", PARAMS)
    return interference(trace, cfg, names, Options(), requests, loop or Loop(None))


@pytest.fixture(scope="module")
def everybody():
    return {row.name: row for row in felt([*UPDATING, "stannis"], users(3000, 40_000, 0.3))}


def test_every_path_that_updates_on_flash(everybody):
    assert tuple(everybody) == UPDATING


@pytest.mark.parametrize("name", UPDATING)
def test_both_feel_each_other(everybody, name):
    row = everybody[name]
    assert row.seconds[1] > row.seconds[0] > 0
    assert row.requests == pytest.approx(row.seconds[1] * 40_000, rel=0.1)
    for kind in ("read", "write"):
        alone, beside = row.alone[kind], row.beside[kind]
        for q in ("mean", "p50", "p99", "p999"):
            assert beside[q] > 1.2 * alone[q], (kind, q)


def test_alone_it_is_a_replay():
    """On a drive at rest, the requests take as long as `ondie replay` says they do."""
    requests = users(3000, 20_000, 0.0)
    (row,) = felt(["in_storage"], requests, host__io_submit=0)
    cfg = load_preset("optimstore-r1", ["host.io_submit=0"])
    done = replay_block(requests, cfg, Loop(None)).requests
    took = np.sort((done["end"] - done["arrival"]) / 1e6)
    assert row.alone["read"]["p50"] == pytest.approx(np.median(took), rel=1e-3)
    assert row.alone["read"]["p99"] == pytest.approx(np.percentile(took, 99), rel=0.1)


def test_requests_come_again_until_the_update_is_over():
    (row,) = felt(["on_die"], users(150, 40_000, 0.0))
    assert row.requests > 2 * 150


def test_more_of_them_cost_more():
    few, many = (felt(["on_die"], users(4000, iops, 0.0))[0] for iops in (5_000, 80_000))
    assert 0 <= few.slower < many.slower


def test_fewer_blocks_of_the_update_in_flight_let_readers_through():
    """A read waits behind the blocks of 1 MiB that the host has asked for before."""
    requests = users(3000, 20_000, 0.0)
    eight, one = (
        felt(["host_offload"], requests, host__io_queue_depth=depth)[0] for depth in (8, 1)
    )
    assert one.beside["read"]["p99"] < 0.6 * eight.beside["read"]["p99"]


def test_a_closed_loop_keeps_its_depth():
    requests = users(1000, 1.0, 0.0, timed=False, arrival_ps=np.zeros(1000, np.int64))
    one, many = (felt(["on_die"], requests, Loop(depth))[0] for depth in (1, 16))
    assert one.beside["read"]["p50"] > one.alone["read"]["p50"]
    assert many.requests > 4 * one.requests


@pytest.mark.one_in(2)
@pytest.mark.parametrize("devices", [1, 2])
def test_the_books_hold_with_several_drives(devices):
    """Run.account() raises where they do not."""
    rows = felt(list(UPDATING), users(500, 40_000, 0.5), system__devices=devices)
    assert all(row.reason is None and row.requests for row in rows)


def test_the_update_alone_is_the_one_of_the_comparison():
    """With the trace's own tensors and parameter groups: which are small enough for DRAM, and which
    decay, is theirs."""
    base = model("adam", PARAMS)
    (hyper,) = base.steps[0].hyper
    entries = [(f"t{i}", (PARAMS // 16,), i % 2, i) for i in range(16)]
    step = dataclasses.replace(base.steps[0], hyper=(hyper, {**hyper, "weight_decay": 0.1}))
    trace = dataclasses.replace(base, tensors=flat_tensors(entries), groups=2, steps=(step,))
    cfg = load_preset("optimstore-r1", ["ftl.partial_pages=sectors"])
    options = Options(offload=Offload(in_dram_below=4 << 20))
    names = ["host_offload", "on_die"]
    rows = interference(trace, cfg, names, options, users(500, 40_000, 0.0), Loop(None))
    for row in rows:
        whole = run_path(row.name, cfg, trace, options, steps=1, payload=False)
        assert row.seconds[0] == whole.ledger.step_s


def test_too_few_have_no_percentiles():
    (row,) = felt(["on_die"], users(3000, 2_000, 0.0))
    assert row.requests < 100 and row.beside == {"read": None, "write": None}
    (only,) = table([row], users(10, 1.0, 0.0)).columns[2].cells
    assert only == "-"


def test_what_does_not_fit():
    with pytest.raises(InputError, match="requests of 2 devices"):
        felt(["on_die"], users(10, 1e4, 0, devices=("0", "1")))
    with pytest.raises(InputError, match="leaves .* bytes of the drive free"):
        felt(["on_die"], users(10, 1e4, 0, size=np.full(10, 1 << 42)))


def write_trace(path):
    """Requests as MQSim has them."""
    requests = users(400, 40_000, 0.3)
    lines = zip(requests.arrival_ps // 1000, requests.offset // 512, 1 - requests.op, strict=True)
    path.write_text("".join(f"{t} 0 {lba} 8 {op}\n" for t, lba, op in lines))


def test_the_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "users.trace")
    words = ["compare", "mlp-fp16", "--no-swing", "--steps", "1", "--out", "out", "--foreground"]
    more = ["--foreground-from", "mqsim", "--foreground-time-unit", "ns"]
    done = here(capsys, *words, "users.trace", *more)
    assert done.code == 0 and "Latency of foreground I/O" in done.out
    found = json.loads((tmp_path / "out" / "result.json").read_text())["interference"]
    assert found["requests"] == 400 and found["speed"] == 1.0 and found["queue_depth"] is None
    assert [path["name"] for path in found["paths"]] == list(UPDATING)
    for path in found["paths"]:
        assert path["update_s"]["beside"] >= path["update_s"]["alone"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--foreground", "users.trace"], ["format", "--foreground-from mqsim"]),
        (["--foreground-from", "mqsim"], ["--foreground-from", "--foreground FILE"]),
        (["--foreground-depth", "4"], ["--foreground-depth", "--foreground FILE"]),
        (
            ["--foreground", "users.trace", "--foreground-from", "mqsim", "--foreground-depth", "4",
             "--foreground-speed", "2"],
            ["--foreground-depth and --foreground-speed cannot be combined"],
        ),
        (["--foreground", "users.trace", "--foreground-from", "mqsim"], ["time unit"]),
        (["--foreground", "none", "--foreground-from", "msr"], ["none"]),
    ],
)  # fmt: skip
def test_what_is_refused(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "users.trace")
    refused(here(capsys, "compare", "mlp-fp16", *words), *said)
    assert files(tmp_path) == ["users.trace"]
