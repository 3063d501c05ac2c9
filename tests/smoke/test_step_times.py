"""Do forward and backward take the time of the device's accelerator, and is it said?"""

import dataclasses
import json

import pytest

from ondie import traces
from ondie.emu.analysis.compare import compare
from ondie.emu.cluster.emulated_engine import emulated
from ondie.emu.cluster.networks import network
from ondie.emu.cluster.workload import of_trace
from ondie.emu.compute import training
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.paths.data_parallel import Stannis
from ondie.emu.units import InputError
from ondie.traces import synth
from tests.smoke.commands import here, refused

RATE = 312e12 * 0.0187
FORWARD_S = 2 * 300_774_272 * 315 / RATE  # 32.5 ms
"""MobileNetV2, 315 samples per step, on csd-pe."""


@pytest.fixture(scope="module")
def csd_pe():
    return load_preset("csd-pe")


@pytest.fixture(scope="module")
def mobilenet():
    return traces.load("mobilenetv2")


def test_times_follow_from_macs(csd_pe, mobilenet):
    found, rule = training.timed(mobilenet, csd_pe)
    step, recorded = found.steps[0], mobilenet.steps[0]
    assert step.forward_s == pytest.approx(FORWARD_S, rel=1e-12)
    assert step.backward_s == pytest.approx(2 * FORWARD_S, rel=1e-12)
    assert step.ready_s / step.backward_s == pytest.approx(recorded.ready_s / recorded.backward_s)
    assert (rule.rule, rule.flop_per_s) == ("accelerator", pytest.approx(RATE))
    assert "5.83 TFLOP/s" in rule.text and "by_model.mobilenetv2" in rule.text


def test_the_trace_counts_if_asked_or_without_a_rate(csd_pe, mobilenet):
    for cfg, asked in ((csd_pe, "trace"), (load_preset("newport"), None)):
        found, rule = training.timed(mobilenet, cfg, asked)
        assert found is mobilenet and rule.rule == "trace" and rule.flop_per_s is None


def test_stated_times_override_either_rule(csd_pe, mobilenet):
    found, rule = training.timed(mobilenet, csd_pe, None, 0.5)
    assert found.steps[0].forward_s == 0.5
    assert found.steps[0].backward_s == pytest.approx(2 * FORWARD_S)
    assert rule.forward_given and not rule.backward_given
    assert rule.text.startswith("--forward; otherwise 2 x MACs")


def test_synthetic_transformers_take_the_same_rule(csd_pe):
    """312 TFLOP/s x 0.44, from the trace and from the preset, bit for bit."""
    trace = synth.build("gpt2-1.5b")
    step = training.timed(trace, csd_pe)[0].steps[0]
    assert step.forward_s == trace.steps[0].forward_s
    assert step.backward_s == pytest.approx(trace.steps[0].backward_s, rel=1e-15)


def test_a_trace_without_macs_keeps_its_times_and_says_so(csd_pe, mobilenet):
    bare = dataclasses.replace(mobilenet, macs_forward=0, macs_backward=0)
    found, rule = training.timed(bare, csd_pe)
    assert found is bare and "does not state its multiply-accumulates" in rule.text
    with pytest.raises(InputError, match="does not state its multiply-accumulates"):
        training.timed(bare, csd_pe, "accelerator")
    with pytest.raises(traces.TraceError, match="does not state its multiply-acc"):
        bare.at_rate(1e12)
    with pytest.raises(traces.TraceError, match="must be above 0"):
        mobilenet.at_rate(0)


def test_the_drives_ratio_is_derived(csd_pe, mobilenet):
    """Newport's 3.08 img/s against 5.83 TFLOP/s / 1.80 GFLOP per image = 3,233 img/s."""
    trace = training.timed(mobilenet, csd_pe)[0]
    path = Stannis(csd_pe, trace, Options())
    assert path.speed(0) * path.ratio == pytest.approx(3.08, rel=1e-3)
    assert path.speed(0) == pytest.approx(315 / (3 * FORWARD_S))
    slow = Stannis(csd_pe, mobilenet, Options())  # at the trace's own speed, 32.3 img/s
    assert slow.ratio == pytest.approx(3.08 / 32.3, rel=1e-3)
    twice = csd_pe.replace({"isp.cores": 8})
    assert Stannis(twice, trace, Options()).ratio == pytest.approx(2 * path.ratio)
    host, drive = emulated(network("mobilenetv2"), csd_pe)
    assert (host.speed, drive.speed) == (
        pytest.approx(path.speed(0)),
        pytest.approx(3.08, rel=1e-3),
    )
    work = of_trace(mobilenet, [csd_pe])
    assert work.host.speed(315) == pytest.approx(path.speed(0))


@pytest.mark.parametrize(
    ("name", "published", "error"),
    [("nasnet-mobile", 2.80, -0.41), ("inceptionv3", 1.85, -0.91), ("squeezenet", 16.3, -0.93)],
)
def test_error_of_the_drives_rate_on_the_other_networks(csd_pe, name, published, error):
    """What docs/model.md says of the fit: it holds for MobileNetV2 only."""
    trace = training.timed(traces.load(name), csd_pe)[0]
    path = Stannis(csd_pe, trace, Options())
    assert path.speed(0) * path.ratio / published - 1 == pytest.approx(error, abs=0.006)


def test_a_drive_that_is_too_slow_has_a_row_with_a_note(csd_pe, mobilenet):
    for batch in ("same", "tuned"):
        c = compare(mobilenet, csd_pe, paths=["stannis"], options=Options(batch=batch), swing=False)
        row = c.result("stannis")
        assert row is not None and (row.ledger.samples == 315) == (batch == "same")
        assert any("gets no sample" in n or "get no sample" in n for n in row.notes) == (
            batch == "same"
        )


@pytest.mark.one_in(5)
@pytest.mark.parametrize("model", ["mobilenetv2", "gpt2-124m"])
@pytest.mark.parametrize("devices", [1, 4])
def test_every_default_path_runs(csd_pe, model, devices):
    cfg = csd_pe.replace({"system.devices": devices})
    c = compare(traces.load(model), cfg, steps=1, swing=False)
    assert [(r.name, r.reason) for r in c.results] == [
        (name, None)
        for name in ("host_offload", "host_offload_pipelined", "in_storage", "on_die", "stannis")
    ]
    assert c.step_times.rule == "accelerator"


def test_the_command_says_which_rule_counts(capsys, tmp_path):
    words = ["compare", "mobilenetv2", "--device", "csd-pe", "--paths", "on_die", "--no-swing"]
    outcome = here(capsys, *words, "--out", tmp_path / "a")
    assert outcome.code == 0
    assert "forward and backward: 2 x MACs x samples / 5.83 TFLOP/s" in outcome.out
    data = json.loads((tmp_path / "a" / "result.json").read_text())
    assert data["step_times"]["rule"] == "accelerator"
    assert data["step_times"]["flop_per_s"] == pytest.approx(RATE)
    outcome = here(capsys, *words, "--step-times", "trace", "--out", tmp_path / "b")
    data = json.loads((tmp_path / "b" / "result.json").read_text())
    assert data["step_times"] == {"rule": "trace", "text": "the trace's (synthetic)",
                                  "flop_per_s": None}  # fmt: skip


def test_bad_input(capsys, tmp_path):
    words = ("compare", "mobilenetv2", "--out", tmp_path / "none")
    outcome = here(capsys, *words, "--device", "newport", "--step-times", "accelerator")
    refused(
        outcome, "--step-times accelerator", "newport does not state an accelerator rate",
        "host.accelerator_peak",
    )  # fmt: skip
    for setting, *wanted in (
        ("host.accelerator_utilization=1.5", "at most 1"),
        ("host.accelerator_utilization=0", "requires host.accelerator_utilization above 0"),
        (
            "host.accelerator_utilization_by_model.mobilenetv2=2",
            "_by_model.mobilenetv2 = 2 must be above 0 and at most 1",
        ),
        ("host.accelerator_peak=312 GB/s", "is a rate, not a FLOP rate"),
        ("isp.training_utilization=0", "requires isp.training_utilization above 0"),
        ("isp.training_ratio=0.1", "requires isp.training_ratio = 0"),
        ("isp.training_ratio_by_model.mobilenetv2=0.1", "isp.training_ratio_by_model"),
        ("isp.kind=fpga", "isp.kind"),
        ("isp.flops_per_cycle=-1", '"-1" is too small'),
        ("isp.cores=0", "isp.cores above 0"),
        ("host.accelerator_peak=-1 TFLOP/s", "must be at least 0 FLOP/s"),
        ("host.accelerator_wait_power=80", "has no unit"),
        ("energy.pe_add=-1 pJ", "is too small"),
        ("pe.bus_values=0", "pe.bus_values above 0"),
        ("pe.dispatch=none", "pe.dispatch", "use one of lockstep, free"),
        ("tunnel.payload=1 B", "tunnel.payload must be from 64 B"),
        ("ftl.reservoir_fraction=2", "must be at least 0 and below 1"),
    ):
        refused(here(capsys, *words, "--device", "csd-pe", "--set", setting), *wanted)
