"""Loss scaling: what was consumed, skipped steps, and the 16-bit bytes before unscaling."""

import numpy as np
import pytest

from ondie.traces import load
from ondie.traces.record import Recorder

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402

from tests.traces.training import data, freeze_objects, loop, net, replay  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def frozen():
    freeze_objects()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.h5"


def scaled_loop(model, optimizer, scaler, steps, unscale, seen, spoil=()):
    """Training under a scaler; `seen` collects the gradients after step()."""
    for step in range(steps):
        x, y = data(step)
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if step in spoil:
            next(model.parameters()).grad[0, 0] = float("inf")
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        seen.append(torch.cat([p.grad.flatten().clone() for p in model.parameters()]).numpy())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("scale", [1024.0, 1000.0])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_the_gradient_is_the_unscaled_one_whoever_divides(path, fused, unscale, scale, kind):
    model = net()
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind]
    optimizer = make(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
    seen: list[np.ndarray] = []
    with Recorder(path):
        scaled_loop(model, optimizer, scaler, 3, unscale, seen)
    trace = load(path)
    assert {s.scale for s in trace.steps} == {scale}
    assert 0.5 < trace.steps[0].loss < 3  # the loss, not the loss times the scale
    for i in range(3):
        # torch's fused operators write the gradient they used back: that is what was consumed
        np.testing.assert_array_equal(trace.gradient(i), seen[i])
    last = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    np.testing.assert_array_equal(replay(trace, make, fused, lr=0.1), last)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_an_overflowed_step_is_recorded_as_skipped(path, fused, unscale, kind):
    model = net()
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind]
    optimizer = make(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen: list[np.ndarray] = []
    with Recorder(path, steps=3):
        scaled_loop(model, optimizer, scaler, 5, unscale, seen, spoil=(0, 2))
    steps = load(path).steps
    assert [s.skipped for s in steps] == [True, False, True, False, False]
    assert [s.found_inf for s in steps] == [s.skipped for s in steps]
    assert [s.scale for s in steps] == [1024, 512, 512, 256, 256]  # halved after each overflow
    assert [s.count for s in steps] == [1, 1, 2, 2, 3]  # a skipped step is not counted
    assert {s.samples for s in steps} == {8}
    last = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    np.testing.assert_array_equal(replay(load(path), make, fused, lr=0.1), last)


def test_a_scaler_that_is_switched_off_scales_by_one(path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with Recorder(path):
        scaled_loop(model, optimizer, scaler, 2, False, [])
    assert [(s.scale, s.skipped) for s in load(path).steps] == [(1.0, False)] * 2


def masters_loop(model, masters, optimizer, scaler, steps):
    """An FP16 model whose FP32 masters the optimizer holds; returns the FP16 gradients."""
    halves = []
    for step in range(steps):
        x, y = data(step)
        for half, master in zip(model.parameters(), masters, strict=True):
            half.data.copy_(master.data)
            half.grad = None
        scaler.scale(nn.functional.cross_entropy(model(x.half()).float(), y)).backward()
        for half, master in zip(model.parameters(), masters, strict=True):
            master.grad = half.grad.float()
        halves.append(torch.cat([p.grad.flatten() for p in model.parameters()]).numpy())
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return halves


@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "float16")])
@pytest.mark.parametrize("raw", [False, True])
def test_masters_get_names_times_and_type_of_their_16_bit_model(path, dtype, name, raw):
    model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 3))
    masters = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
    model.to(dtype)
    optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9)
    with Recorder(path, raw=raw):
        halves = masters_loop(model, masters, optimizer, scaler, 3)
    trace = load(path)
    assert [t.name for t in trace.tensors] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert {t.dtype for t in trace.tensors} == {"float32"}
    assert trace.gradient_dtype == name
    assert trace.attrs["master_weights"] is True
    assert trace.tensors[2].ready_order < trace.tensors[0].ready_order
    assert {s.samples for s in trace.steps} == {8}
    for i, half in enumerate(halves):
        assert trace.source.storage(i)[:2] == (name, (9,))
        np.testing.assert_array_equal(trace.gradient(i), half.astype(np.float32) / 512)
        if raw:
            assert trace.raw_gradient(i).tobytes() == half.tobytes()
        else:
            assert trace.raw_gradient(i) is None


def test_another_model_of_the_same_shapes_is_not_taken_for_the_masters_own(path):
    def make():
        return nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))

    decoy, model = make().half(), make()
    masters = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
    model.half()
    later = make().half()
    optimizer = torch.optim.SGD(masters, lr=0.1)
    with Recorder(path):
        masters_loop(model, masters, optimizer, torch.amp.GradScaler("cpu", init_scale=8.0), 2)
    assert load(path).steps[1].ready_s is not None
    assert all(t.ready_order >= 0 for t in load(path).tensors)
    del decoy, later


def test_a_bfloat16_model_is_recorded_as_it_is(path):
    model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 3)).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(path):
        for step in range(2):
            x, y = data(step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.bfloat16()).float(), y).backward()
            optimizer.step()
    trace = load(path)
    assert trace.gradient_dtype == "bfloat16"
    assert {t.dtype for t in trace.tensors} == {"bfloat16"}
    assert trace.source.storage(0)[0] in ("bfloat16", "float16")
    last = torch.cat([p.detach().float().flatten() for p in model.parameters()])
    np.testing.assert_array_equal(trace.weights("final"), last.numpy())


def test_raw_bytes_are_kept_only_where_there_are_any(path):
    model = net()  # FP32 gradients: nothing to keep
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with Recorder(path, raw=True):
        scaled_loop(model, optimizer, scaler, 2, True, [])
    assert load(path).raw_gradient(0) is None
    with Recorder(path, raw=True):
        loop(model, optimizer, 2)
    assert load(path).raw_gradient(1) is None
