"""Does the path ndpipe run frozen layers on the drives and the head on the host, in the times and
bytes that the trace gives by hand, and does it refuse a trace that trains no head?"""

import dataclasses

import pytest

from ondie import traces
from ondie.emu.analysis.compare import compare, run_path
from ondie.emu.analysis.path_choice import choose
from ondie.emu.config.config import load_preset
from ondie.emu.ndpipe.trained_head import TrainedHead, trained_head
from ondie.emu.paths.base import Options, Unavailable

WHOLE = traces.load("mobilenetv2")
DRIVES = 3


def training(count: int, **changes):
    """A trace of MobileNetV2 that trains the last ``count`` tensors only; a weight of 1000 x 1280
    and a bias are the last two. ``changes``: fields of the trace."""
    first = WHOLE.tensors[-count].offset
    frozen = [
        dataclasses.replace(each, offset=-1, trainable=False, group=-1, ready_order=-1)
        for each in WHOLE.tensors[:-count]
    ]
    head = [
        dataclasses.replace(each, offset=each.offset - first) for each in WHOLE.tensors[-count:]
    ]
    return dataclasses.replace(WHOLE, tensors=(*frozen, *head), **changes)


@pytest.fixture(scope="module")
def cfg():
    return load_preset("newport", (f"system.devices={DRIVES}",))


def test_a_step_by_hand(cfg):
    """105 samples on each of three drives at isp.training_ratio of the host's speed. Reading, the
    transfer and the update take a small part of that."""
    trace = training(2)
    result = run_path("ndpipe", cfg, trace, Options(), steps=1, payload=False)
    assert trained_head(trace) == TrainedHead(1280, 1_280_000)
    step, ratio = trace.steps[0], cfg.isp.training_ratio_by_model["mobilenetv2"]
    share = 1_280_000 / trace.macs_forward
    frozen = step.forward_s * (1 - share) / DRIVES / ratio
    head = step.forward_s * share
    phases = result.ledger.phases_s
    assert phases["forward"] == pytest.approx(frozen + head, rel=1e-3)
    assert phases["backward"] == pytest.approx(step.backward_s, rel=1e-9)
    assert phases["update"] == pytest.approx(result.bound.seconds, rel=1e-3)
    assert 0 < phases["samples"] < 0.1 * frozen
    assert result.ledger.totals.bytes_by["link up"] == step.samples * 2 * 1280


def test_a_skipped_step_has_no_update(cfg):
    skipped = dataclasses.replace(WHOLE.steps[0], skipped=True, found_inf=True)
    trace = training(2, steps=(skipped,))
    result = run_path("ndpipe", cfg, trace, Options(), steps=1, payload=False)
    assert not result.ledger.phases_s.get("update")


def test_it_is_compared_where_a_head_is_trained(cfg):
    assert "ndpipe" in choose(None, training(2)) and "ndpipe" not in choose(None, WHOLE)
    assert choose(["ndpipe"], WHOLE) == ["ndpipe"]
    with pytest.raises(Unavailable, match="ndpipe: mobilenetv2 has no frozen parameters"):
        compare(WHOLE, cfg, paths=["ndpipe"], swing=False)


@pytest.mark.parametrize(
    ("trace", "settings", "text"),
    [
        (training(3), (), r"trains features.18.bn.bias of shape \(1280,\)"),
        (training(2), ("isp.kind=none",), r"no processor that can run layers \(isp.kind = none\)"),
        (training(2, bytes_per_sample=0), (), "bytes_per_sample = 0"),
        (training(2, macs_forward=0), (), r"states 0 multiply-accumulates"),
        (training(2, dataset_samples=10**10), (), "the data set takes .* per drive"),
    ],
)
def test_what_it_cannot_run_is_named(trace, settings, text):
    changed = load_preset("newport", settings)
    with pytest.raises(Unavailable, match=f"ndpipe: .*{text}"):
        compare(trace, changed, paths=["ndpipe"], swing=False)


def test_a_chain_of_dense_layers_is_a_head():
    weight, bias = (each for each in training(2).tensors if each.trainable)
    offset = bias.offset + 1000
    second = dataclasses.replace(weight, name="2", shape=(7, 1000), size=7000, offset=offset)
    trace = dataclasses.replace(training(2), tensors=(*training(2).tensors, second))
    assert trained_head(trace) == TrainedHead(1280, 1_280_000 + 7_000)
    wrong = dataclasses.replace(second, shape=(1000, 7))
    text = trained_head(dataclasses.replace(trace, tensors=(*training(2).tensors, wrong)))
    assert text.startswith("mobilenetv2 trains 2 of shape (1000, 7)")
