"""Does the path ndpipe run frozen layers on the drives and the head on the host, in the times and
bytes that the trace gives by hand, and does it refuse a trace that trains no head?"""

import dataclasses
import math

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
    changes = {"macs_backward": 1_280_000} | changes
    return dataclasses.replace(WHOLE, tensors=(*frozen, *head), **changes)


@pytest.fixture(scope="module")
def cfg():
    return load_preset("newport", (f"system.devices={DRIVES}",))


def test_a_step_by_hand(cfg):
    """105 samples on each of three drives at isp.training_ratio of the host's speed. Reading, the
    transfer and the update take a small part of that."""
    trace = training(2)
    result = run_path("ndpipe", cfg, trace, Options(), steps=1, payload=False)
    assert trained_head(trace) == TrainedHead(1280, 1_280_000, 1)
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
        (training(2).timed(forward_s=0.0), (), r"does not state the times .* \(step 0: 0 s and"),
        (training(2).timed(backward_s=0.0), (), r"does not state the times .* and 0 s\)"),
        (training(2), ("dram.isp=8 MB",), r"frozen parameters take 0.008895 GB .* = 0.008 GB"),
        (training(2), ("host.dram=8 MB",), r"of the head take 0.01537 GB .* host.dram = 0.008 GB"),
    ],
)
def test_what_it_cannot_run_is_named(trace, settings, text):
    changed = load_preset("newport", settings)
    with pytest.raises(Unavailable, match=f"ndpipe: .*{text}"):
        compare(trace, changed, paths=["ndpipe"], swing=False)


def chained(trace, shape: tuple[int, ...], **changes):
    """The trace with one more trained tensor behind its last one."""
    last = trace.tensors[-1]
    more = dataclasses.replace(
        last, name=f"more{len(trace.tensors)}", shape=shape, size=math.prod(shape),
        offset=last.offset + last.size,
    )  # fmt: skip
    steps = tuple(dataclasses.replace(each, ready_s=None) for each in trace.steps)
    return dataclasses.replace(trace, tensors=(*trace.tensors, more), steps=steps, **changes)


def test_a_chain_of_dense_layers_is_a_head():
    """The second layer has the gradient of its inputs, too, so twice its forward pass."""
    macs = 1_280_000 + 7_000
    trace = chained(training(2), (7, 1000), macs_backward=macs + 7_000)
    assert trained_head(trace) == TrainedHead(1280, macs, 1)
    biased = chained(trace, (7,))
    assert trained_head(biased) == TrainedHead(1280, macs, 1)
    *others, bias, second, last = biased.tensors
    groups = tuple(  # the weights first
        dataclasses.replace(each, offset=offset)
        for each, offset in ((second, 1_280_000), (bias, 1_287_000), (last, 1_288_000))
    )
    sorted_out = dataclasses.replace(biased, tensors=(*others, *groups))
    assert trained_head(sorted_out) == TrainedHead(1280, macs, 1)
    each = dataclasses.replace(biased, macs_backward=5 * (macs + 7_000))
    assert trained_head(each) == TrainedHead(5 * 1280, 5 * macs, 5)


def test_a_recorded_fine_tuning_trains_a_head(tmp_path):
    """Tokens go through frozen layers, and two dense layers behind them are trained."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from ondie.traces.record import Recorder

    nn = torch.nn
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2)
    )
    for layer in model[:3]:
        layer.requires_grad_(False)
    optimizer = torch.optim.SGD(model[3:].parameters(), lr=0.1)
    with Recorder(tmp_path / "run.h5", count_macs=True, dataset_samples=16):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(8, 5, 4)).square().mean().backward()
            optimizer.step()
    trace = traces.load(tmp_path / "run.h5")
    assert trained_head(trace) == TrainedHead(5 * 6, 5 * (18 + 6), 5)
    assert "ndpipe" in choose(None, trace)
    ran = run_path("ndpipe", load_preset("newport"), trace, Options(), steps=2, payload=True)
    assert ran.reason is None and ran.ledger.totals.bytes_by["link up"] == 2 * 8 * 2 * 30
    assert "60 bytes of features per sample (5 vectors)" in ran.notes[0]


@pytest.mark.parametrize("held", [False, True])
def test_layers_behind_the_trained_ones_are_no_vectors(tmp_path, held):
    """Frozen, trained and frozen layers of 4 x 4: the gradients of the trained weights and of the
    last layer's inputs take as much as two vectors would. The optimizer may hold all of them."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from ondie.traces.record import Recorder

    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    model[0].requires_grad_(False), model[2].requires_grad_(False)
    parameters = [*model[1].parameters(), *model[0].parameters(), *model[2].parameters()]
    optimizer = torch.optim.SGD(parameters if held else parameters[:2], lr=0.1)
    with Recorder(tmp_path / "run.h5", count_macs=True, dataset_samples=16):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(8, 4)).square().mean().backward()
            optimizer.step()
    trace = traces.load(tmp_path / "run.h5")
    names = [f"{layer}.{name}" for layer in range(3) for name in ("weight", "bias")]
    assert [each.name for each in trace.tensors] == names and trace.macs_backward == 32
    assert "frozen tensor 2.bias after the trained tensor 1.weight" in trained_head(trace)
    assert "that of 2 vectors per sample" in trained_head(trace)
    assert "ndpipe" not in choose(None, trace)
    last = dataclasses.replace(trace, tensors=(*trace.tensors[4:], *trace.tensors[:4]))
    assert trained_head(last) == TrainedHead(8, 32, 2)
    one = dataclasses.replace(trace, macs_backward=16)  # no layer behind has one
    assert trained_head(one) == TrainedHead(4, 16, 1)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3)])
def test_a_layer_without_elements_is_no_head(shape):
    frozen, weight, bias = training(2).tensors[-3:]
    weight = dataclasses.replace(weight, shape=shape, size=0, offset=0)
    bias = dataclasses.replace(bias, shape=(3,), size=3, offset=0)
    steps = tuple(dataclasses.replace(each, ready_s=None) for each in WHOLE.steps)
    trace = dataclasses.replace(training(2), tensors=(frozen, weight, bias), steps=steps)
    assert f"of shape {shape}, which is not part of a chain" in trained_head(trace)
    assert "ndpipe" not in choose(None, trace)


def test_what_is_no_head_is_named():
    wrong = trained_head(chained(training(2), (1000, 7)))
    assert wrong.startswith("mobilenetv2 trains more158 of shape (1000, 7), which is not part")
    twice = trained_head(chained(chained(training(2), (1000,)), (1000,)))
    assert twice.startswith("mobilenetv2 trains more158 of shape (1000,), which is not part")
    backward = trained_head(training(2, macs_backward=1_280_001))
    assert "1,280,001 multiply-accumulates of the backward pass" in backward
    assert "take 1,280,000 per vector" in backward
    assert "states 0 multiply" in trained_head(training(2, macs_backward=0))
