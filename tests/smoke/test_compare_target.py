"""Is "fast enough?" answered by what the simulation took, and the bandwidth that is asked for
enough when the drive has it?"""

import dataclasses
import json

import pytest

from ondie.emu.analysis import step_budget as target
from ondie.emu.analysis.compare import compare
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.paths.offload.options import Offload
from ondie.emu.units import InputError
from ondie.emu.validate import model
from tests.smoke.commands import files, here, refused

N = 4_000_000
FORWARD_S, BACKWARD_S = 0.02, 0.01
DRIVE_TIMES = ("flash.t_read", "flash.t_program", "flash.t_erase", "flash.t_command", "ecc.decode",
               "ecc.encode", "frontend.command", "link.latency")  # fmt: skip
DRIVE_RATES = ("link.down", "link.up", "flash.bus", "dram.bandwidth", "isp.flash", "isp.engine")


def training():
    trace = model("adam", N)
    step = dataclasses.replace(trace.steps[0], forward_s=FORWARD_S, backward_s=BACKWARD_S)
    return dataclasses.replace(trace, steps=(step,))


@pytest.fixture(scope="module")
def cfg():
    # io_submit is the host's; with none of it, a faster drive makes all of the transfers faster.
    return load_preset("optimstore-r1", ["host.io_submit=0 us", "host.io_queue_depth=64"])


@pytest.fixture(scope="module")
def c(cfg):
    return compare(training(), cfg, swing=False)


def of(c, target_s: float) -> dict:
    return {v.path: v for v in target.verdicts(c, target_s)}


def test_the_answer_is_that_of_the_simulation(c):
    steps = {r.name: r.ledger.step_s for r in c.results if r.ledger}
    for limit in (min(steps.values()), max(steps.values()), 0.04):
        found = of(c, limit)
        assert set(found) == set(steps)
        for name, v in found.items():
            assert v.step_s == steps[name] and v.met == (steps[name] <= limit)


def test_host_offload_by_hand(c):
    """16 B/param read and 12 written in the update, 4 written during backward, over the link; the
    host updates 0.8 Gparam/s, 5 ms for 4 M parameters, and nothing overlaps it. 45 ms leave 10 ms:
    112 MB in 10 ms are 11.2 GB/s, at which the gradients' 16 MB are written in 1.4 ms of backward's
    10."""
    v = of(c, 0.045)["host_offload"]
    assert v.fixed_s == pytest.approx(FORWARD_S + BACKWARD_S + N / 0.8e9, rel=1e-3)
    assert v.left_s == pytest.approx(0.010, rel=1e-3)
    assert v.read_bytes == pytest.approx(16 * N, rel=1e-3)
    assert v.written_bytes == pytest.approx(16 * N, rel=1e-3)
    assert v.needed_bytes_per_s == pytest.approx(28 * N / 0.010, rel=2e-3)
    book = c.result("host_offload").ledger
    assert v.has_bytes_per_s == pytest.approx(28 * N / (book.update_s - N / 0.8e9), rel=1e-3)


def test_gradients_that_backward_cannot_hide():
    """Backward takes 1 ms; 45 ms leave 19 ms. At (28 N)/19 ms = 5.9 GB/s gradients would take 2.7
    ms of it, so all 32 B/param have 20 ms: 6.4 GB/s."""
    trace = training()
    step = dataclasses.replace(trace.steps[0], backward_s=0.001)
    c = compare(
        dataclasses.replace(trace, steps=(step,)), load_preset("optimstore-r1"),
        paths=["host_offload"], swing=False,
    )  # fmt: skip
    v = of(c, 0.045)["host_offload"]
    assert v.left_s == pytest.approx(0.019, rel=1e-3)
    assert v.needed_bytes_per_s == pytest.approx(32 * N / 0.020, rel=2e-3)


def test_in_the_drive_the_flash_is_counted(c):
    """w, m, v read and written: 12 B/param each way; on the die the new weights are read again."""
    found = of(c, 0.045)
    for name, read in (("in_storage", 12), ("on_die", 16)):
        v = found[name]
        assert v.where == "flash" and v.fixed_s == pytest.approx(FORWARD_S + BACKWARD_S)
        assert v.read_bytes == pytest.approx(read * N, rel=0.01)
        assert v.written_bytes == pytest.approx(12 * N, rel=0.01)
        assert v.needed_bytes_per_s == pytest.approx((v.read_bytes + v.written_bytes) / 0.015)


@pytest.mark.parametrize("name", ["host_offload", "in_storage", "on_die"])
def test_a_drive_with_that_bandwidth_meets_it(c, cfg, name):
    """Everything in the drive faster by needed over had: simulated, the step then takes what was
    asked for, but for what does not scale: the tail of the gradients and the PEs' lockstep."""
    step = c.result(name).ledger.step_s
    fixed = of(c, 1.0)[name].fixed_s
    limit = fixed + 0.7 * (step - fixed)
    v = of(c, limit)[name]
    assert not v.met
    k = v.needed_bytes_per_s / v.has_bytes_per_s
    assert 1.3 < k < 1.6
    changes = {key: round(cfg.leaf(key).value / k) for key in DRIVE_TIMES}
    changes |= {key: round(cfg.leaf(key).value * k) for key in DRIVE_RATES}
    again = compare(training(), cfg.replace(changes), paths=[name], swing=False)
    assert again.result(name).ledger.step_s == pytest.approx(limit, rel=0.02)


@pytest.fixture(scope="module")
def many(cfg):
    """Eight sub-groups, so that something is pipelined."""
    return cfg.replace({"host.subgroup_params": N // 8})


def one(cfg, target_s, **offload):
    options = Options(offload=Offload(**offload))
    c = compare(training(), cfg, paths=["host_offload"], swing=False, options=options)
    return of(c, target_s)["host_offload"]


def test_pipelined_by_its_options_is_pipelined(many):
    """The same run by either name: the same answer."""
    c = compare(training(), many, paths=["host_offload_pipelined"], swing=False)
    theirs = of(c, 0.045)["host_offload_pipelined"]
    ours = one(many, 0.045, pipeline_read=True, pipeline_write=True)
    assert dataclasses.replace(ours, path=theirs.path) == theirs
    assert ours.fixed_s == pytest.approx(FORWARD_S + BACKWARD_S)
    # Reads and writes, 112 MB, have all of the 15 ms beside the update.
    assert ours.needed_bytes_per_s == pytest.approx(28 * N / 0.015, rel=2e-3)


def test_pipelined_one_way(many):
    """Reads go beside the update, writes have the 10 ms that it leaves of 15: 28 B in 15 ms ask for
    more. With a target of 36 ms, writes have 1 ms, and ask for 48 MB in it."""
    found = one(many, 0.045, pipeline_read=True)
    assert found.needed_bytes_per_s == pytest.approx(28 * N / 0.015, rel=2e-3)
    found = one(many, 0.036, pipeline_read=True)
    assert found.needed_bytes_per_s == pytest.approx(12 * N / 0.001, rel=2e-3)
    assert one(many, 0.0349, pipeline_read=True).needed_bytes_per_s is None


def test_a_host_that_updates_by_another_name():
    """Smart-Infinity's baseline: its bytes cross the link, and no drive shortens its CPU's time."""
    cfg = load_preset("smartssd")
    c = compare(training(), cfg, paths=["smart_base", "smart_update"], swing=False)
    base, update = (of(c, 0.032)[name] for name in ("smart_base", "smart_update"))
    assert (base.where, update.where) == ("link", "flash")
    cpu = c.result("smart_base").ledger.totals.busy_ps["update", "host CPU"] / 1e12
    copies = 4 * N / cfg.host.gradient_copy_bytes_per_s  # into pinned buffers, during backward
    fixed = FORWARD_S + BACKWARD_S + copies
    assert cpu > 0.002 and base.fixed_s == pytest.approx(fixed + cpu, rel=1e-3)
    assert update.fixed_s == pytest.approx(fixed, rel=1e-3)  # and none of what it waits for
    assert base.read_bytes == pytest.approx(16 * N, rel=0.02)
    assert target.answer(base) == "no, not with any drive"


def test_what_no_drive_can_do(c):
    found = of(c, FORWARD_S + BACKWARD_S + 0.004)  # less than the host's update alone
    assert found["host_offload"].needed_bytes_per_s is None
    assert target.answer(found["host_offload"]) == "no, not with any drive"
    assert target.answer(found["in_storage"]) == "no"
    assert {target.answer(v) for v in of(c, 1.0).values()} == {"yes"}


@pytest.mark.parametrize(
    ("text", "value"), [("3.5 s", 3.5), ("3.5s", 3.5), ("500 ms", 0.5), ("2 s", 2.0)]
)
def test_how_it_is_given(text, value):
    assert target.seconds(text) == value


@pytest.mark.parametrize("text", ["0", "-1", "3q", "", "1 GB", "nan", "3.5", "2"])
def test_what_is_refused(text):
    with pytest.raises(InputError, match="--target-step"):
        target.seconds(text)


def test_on_the_command_line(capsys, tmp_path):
    words = ["compare", "mlp-fp16", "--steps", "1", "--no-swing"]
    outcome = here(capsys, *words, "--target-step", "1 ms", "--out", tmp_path / "a")
    assert outcome.code == 0 and "Drive bandwidth required for a step of 1.00 ms" in outcome.out
    data = json.loads((tmp_path / "a/result.json").read_text())["target"]
    assert data["step_s"] == 0.001
    assert [p["path"] for p in data["paths"]][:2] == ["host_offload", "host_offload_pipelined"]
    swept = [
        *words,
        "--target-step",
        "1 ms",
        "--sweep",
        "flash.channels=4,8",
        "--out",
        tmp_path / "b",
    ]
    outcome = here(capsys, *swept)
    assert outcome.code == 0 and "meets" in outcome.out
    rows = json.loads((tmp_path / "b/sweep.json").read_text())["rows"]
    ran = [row for row in rows if row["reason"] is None]
    assert all(row["target"]["met"] == (row["step_s"] <= 0.001) for row in ran) and len(ran) == 8
    refused(here(capsys, *words, "--target-step", "soon", "--out", tmp_path / "c"), "soon")
    assert sorted(files(tmp_path))[0] == "a" and not (tmp_path / "c").exists()
