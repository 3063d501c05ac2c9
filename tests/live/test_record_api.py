"""What the Recorder keeps of a run is what the optimizer did: replayed, it gives the same bits."""

import math

import numpy as np
import pytest

from ondie.traces import TraceError, load
from ondie.traces.record import Recorder, record

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402

from tests.traces.training import ADAM, data, freeze_objects, loop, net, replay  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def frozen():
    freeze_objects()


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, ADAM),
    "adamw": (torch.optim.AdamW, ADAM),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.01}),
}


def recorded(path, model, optimizer, steps=4, before=lambda step: None, **options):
    with Recorder(path, **options):
        loop(model, optimizer, steps, before)
    return load(path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.h5"


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("op", OPTIMIZERS)
def test_replaying_the_trace_gives_the_recorded_weights(path, op, fused):
    kind, hyper = OPTIMIZERS[op]
    model = net()
    optimizer = kind(model.parameters(), **hyper, fused=fused)
    first = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    trace = recorded(path, model, optimizer)
    last = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (trace.op, trace.form) == (op, "torch" if fused else "canonical")
    np.testing.assert_array_equal(trace.weights("initial"), first.numpy())
    np.testing.assert_array_equal(trace.weights("final"), last.numpy())
    fixed = {"lr": 0.1, "nesterov": op == "nesterov", "momentum": 0.9} if "m" in op or (
        op == "nesterov") else {"lr": 0.1}  # fmt: skip
    fixed = fixed if kind is torch.optim.SGD and op != "sgd" else {"lr": 0.1}
    again = replay(trace, kind, fused, **fixed)
    np.testing.assert_array_equal(again.view(np.uint32), last.numpy().view(np.uint32))


def test_what_a_step_says(path):
    model = net()
    losses: list[float] = []
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, **ADAM)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    norms: list[float] = []

    def before(step):
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.3)))

    with Recorder(path, name="other-name"):
        for _ in range(3):
            losses += loop(model, optimizer, 1, before)
            schedule.step()
    trace = load(path)
    assert trace.name == "other-name"
    assert trace.groups == 2
    assert [t.name for t in trace.tensors] == ["0.weight", "3.weight", "0.bias", "1.weight",
                                               "1.bias", "3.bias"]  # fmt: skip
    assert trace.group_ranges() == [(0, 42, 0), (42, 63, 1)]
    for i, step in enumerate(trace.steps):
        assert step.loss == losses[i]
        assert step.samples == 8
        assert step.count == i + 1
        assert [h["lr"] for h in step.hyper] == [0.01 * 0.5**i] * 2
        assert [h["weight_decay"] for h in step.hyper] == [0.1, 0.0]
        assert set(step.hyper[0]) == {"lr", "beta1", "beta2", "eps", "weight_decay", "maximize"}
        assert step.clip_coefficient == pytest.approx(min(1, 0.3 / (norms[i] + 1e-6)), rel=1e-6)
        assert step.gradient_norm == pytest.approx(min(0.3, norms[i]), rel=1e-5)
        assert step.gradient_norm == pytest.approx(np.linalg.norm(trace.gradient(i)), rel=1e-6)
        assert step.forward_s > 0 and step.backward_s > 0 and step.optimizer_s > 0
        assert (step.ready_s >= 0).all() and (step.ready_s <= step.backward_s).all()
    assert trace.bytes_per_sample == 4 * 4
    assert trace.attrs["optimizer"] == "AdamW"
    assert trace.attrs["model"] == "Sequential"
    assert trace.attrs["seed"] == torch.initial_seed()


def test_gradients_become_ready_from_the_last_layer_to_the_first(path):
    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(5)], nn.Linear(4, 3))
    trace = recorded(path, model, torch.optim.SGD(model.parameters(), lr=0.1))
    order = {t.name: t.ready_order for t in trace.tensors}
    assert order.pop("5.weight") in (0, 1) and order.pop("5.bias") in (0, 1)
    assert order == {"4.weight": 2, "3.weight": 3, "2.weight": 4, "1.weight": 5, "0.weight": 6}


def test_buffers_are_those_before_the_first_recorded_forward_pass(path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    def before(step):
        seen.append(model[1].running_mean.clone())

    trace = recorded(path, model, optimizer, before=before, skip=2)
    np.testing.assert_array_equal(trace.buffers()["1.running_mean"], seen[1].numpy())
    assert trace.buffers()["1.num_batches_tracked"] == 2


@pytest.mark.parametrize("op", ["momentum", "adamw", "adagrad"])
def test_a_recording_may_start_later_with_the_state_it_finds(path, op):
    kind, hyper = OPTIMIZERS[op]
    model = net()
    optimizer = kind(model.parameters(), **hyper)
    loop(model, optimizer, 3)  # before any hook
    states = {"momentum": {"m": "momentum_buffer"}, "adamw": {"m": "exp_avg", "v": "exp_avg_sq"},
              "adagrad": {"v": "sum"}}[op]  # fmt: skip
    want = {ours: torch.cat([optimizer.state[p][theirs].flatten().clone()
                             for p in model.parameters()]).numpy()
            for ours, theirs in states.items()}  # fmt: skip
    trace = recorded(path, model, optimizer)
    for name, vector in want.items():
        np.testing.assert_array_equal(trace.states()[name], vector)
    # SGD keeps no counter: all that is known is that it is not the first step
    assert [s.count for s in trace.steps] == ([2, 2, 3, 4] if op == "momentum" else [4, 5, 6, 7])


def test_skip_and_steps_choose_a_stretch(path):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    losses = []
    with Recorder(path, skip=2, steps=3) as recorder:
        for _ in range(7):
            losses += loop(model, optimizer, 1)
        assert recorder.finished
    trace = load(path)
    assert [s.loss for s in trace.steps] == losses[2:5]
    assert [s.count for s in trace.steps] == [3, 4, 5]
    assert trace.attrs["ended_by"] == "steps"
    assert (trace.states()["m"] != 0).any()


def test_the_file_is_whole_as_soon_as_its_steps_are(path):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    with pytest.raises(ZeroDivisionError), Recorder(path, steps=2):
        loop(model, optimizer, 3)
        1 / 0  # noqa: B018
    assert len(load(path).steps) == 2


def test_stop_ends_the_run(path):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    with pytest.raises(SystemExit) as ended, Recorder(path, steps=2, stop=True):
        loop(model, optimizer, 100)
    assert ended.value.code == 0
    assert len(load(path).steps) == 2


def test_without_payload_only_hashes_and_norms_stay(path, tmp_path):
    one, two = net(), net()
    full = recorded(path, one, torch.optim.Adam(one.parameters(), **ADAM))
    bare = recorded(tmp_path / "b.h5", two, torch.optim.Adam(two.parameters(), **ADAM),
                    payload=False)  # fmt: skip
    assert [s.gradient_sha256 for s in bare.steps] == [s.gradient_sha256 for s in full.steps]
    assert [s.gradient_norm for s in bare.steps] == [s.gradient_norm for s in full.steps]
    assert bare.weights("initial") is None and bare.payload == "none"
    assert bare.tensors[0].shape == full.tensors[0].shape


def test_max_bytes_ends_the_recording_and_says_so(path):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    # 63 parameters: weights twice are 504 bytes, a gradient of less than 64 elements 252
    trace = recorded(path, model, optimizer, steps=6, max_bytes=504 + 3 * 252)
    assert len(trace.steps) == 3
    assert trace.attrs["ended_by"] == "max_bytes"
    with pytest.raises(TraceError, match="--max-bytes is 600"):
        recorded(path.with_name("x.h5"), model, optimizer, max_bytes=600)
    assert not path.with_name("x.h5").exists()


def test_micro_batches_add_up(path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(path):
        for step in range(2):
            optimizer.zero_grad()
            for micro in range(3):
                x, y = data(10 * step + micro)
                (nn.functional.cross_entropy(model(x), y) / 3).backward()
            optimizer.step()
    trace = load(path)
    assert [s.samples for s in trace.steps] == [24, 24]
    assert trace.steps[0].loss == pytest.approx(1.1, abs=0.5)


def test_evaluation_between_steps_is_not_training(path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def before(step):
        with torch.no_grad():
            model(torch.zeros(500, 4))

    trace = recorded(path, model, optimizer, before=before)
    assert {s.samples for s in trace.steps} == {8}


def test_the_order_of_samples_is_kept(path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data(0, 20)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(20), x, y), 8, shuffle=True
    )
    seen = []
    with Recorder(path):
        for at, xs, ys in loader:
            seen.append(at.tolist())
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(xs), ys).backward()
            optimizer.step()
            with torch.no_grad():
                for _ in loader:
                    pass
    trace = load(path)
    assert [s.order.tolist() for s in trace.steps] == seen
    assert trace.dataset_samples == 20
    assert [s.samples for s in trace.steps] == [8, 8, 4]


def test_a_hook_of_the_users_own_that_changes_gradients_comes_first(path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def zero(optimizer, args, kwargs):
        for parameter in model.parameters():
            parameter.grad.fill_(0.25)

    with Recorder(path):
        loop(model, optimizer, 1)
        optimizer.register_step_pre_hook(zero)
        loop(model, optimizer, 2)
    trace = load(path)
    assert (trace.gradient(0) != 0.25).any()
    assert (trace.gradient(1) == 0.25).all()
    assert (trace.gradient(2) == 0.25).all()


def test_frozen_parameters_are_listed_but_not_in_the_vector(path):
    model = net()
    model[0].weight.requires_grad_(False)
    held = [p for name, p in model.named_parameters() if name != "1.bias"]
    trace = recorded(path, model, torch.optim.SGD(held, lr=0.1))
    by_name = {t.name: t for t in trace.tensors}
    assert by_name["0.weight"].trainable is False and by_name["0.weight"].group == 0
    assert by_name["1.bias"].trainable is False and by_name["1.bias"].group == -1
    assert trace.n_params == 63 - 24 - 6


def test_parameters_without_a_module_get_numbers(path):
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with Recorder(path, samples=5):
        for _ in range(2):
            optimizer.zero_grad()
            (weight**2).sum().backward()
            optimizer.step()
    trace = load(path)
    assert [t.name for t in trace.tensors] == ["group0.0"]
    assert [s.samples for s in trace.steps] == [5, 5]
    assert [s.loss for s in trace.steps] == [3.0, pytest.approx(3 * 0.8**2)]


def test_names_are_those_of_the_outermost_module(path):
    class Wrapped(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)

    model = Wrapped(net())
    trace = recorded(path, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert trace.tensors[0].name == "inner.0.weight"
    assert trace.attrs["model"] == "Wrapped"


def test_names_given_to_the_optimizer_win(path):
    model = net()
    named = [(f"my.{name}", p) for name, p in model.named_parameters()]
    trace = recorded(path, model, torch.optim.SGD(named, lr=0.1))
    assert trace.tensors[0].name == "my.0.weight"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: torch.optim.RMSprop(p, lr=0.01), "RMSprop"),
        (lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True), "amsgrad"),
    ],
)
def test_an_update_without_a_kernel_is_recorded_as_other(path, make, reason):
    model = net()
    trace = recorded(path, model, make(model.parameters()), any_optimizer=True)
    assert (trace.op, trace.form) == ("other", "canonical")
    assert reason in trace.attrs["op_reason"]
    assert trace.steps[0].hyper[0]["lr"] == 0.01
    assert trace.states() == {}


def test_an_optimizer_of_the_users_own_is_other_too(path):
    class Sign(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.5})

        def step(self):
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter -= 0.5 * parameter.grad.sign()

    model = net()
    trace = recorded(path, model, Sign(model.parameters()), any_optimizer=True)
    assert trace.op == "other" and "Sign" in trace.attrs["op_reason"]


def test_two_optimizers_must_be_told_apart(path):
    def gan():
        one, two = net(1), net(2)
        first = torch.optim.Adam(one.parameters(), **ADAM)
        second = torch.optim.SGD(two.parameters(), lr=0.1)
        for step in range(3):
            for model, optimizer, samples in ((one, first, 8), (two, second, 6)):
                x, y = data(step, samples)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()

    with pytest.raises(TraceError, match=r"0 Adam \(6 tensors\), 1 SGD.*--optimizer"), record(path):
        gan()
    assert not list(path.parent.iterdir())
    for number, (op, samples) in enumerate((("adam", 8), ("sgd", 6))):
        with record(path, optimizer=number):
            gan()
        trace = load(path)
        assert (trace.op, len(trace.steps)) == (op, 3)
        assert {s.samples for s in trace.steps} == {samples}


def test_two_optimizers_after_one_backward_share_what_was_seen(path):
    model = net()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam(model[3].parameters(), **ADAM)
    with record(path, optimizer=1):
        for step in range(2):
            x, y = data(step)
            first.zero_grad(), second.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            first.step(), second.step()
    trace = load(path)
    assert [s.samples for s in trace.steps] == [8, 8]
    assert trace.n_params == 18 + 3
    assert all(s.backward_s > 0 for s in trace.steps)


REFUSED = {
    "closure": r"SGD.step\(closure\)",
    "none": "'3.bias' had a gradient.*has none now",
    "later": "'3.bias' had no gradient.*one now",
    "nan": "step 1, parameter '3.bias': the gradient has NaN or Inf",
    "double": "'0.weight' is float64",
    "changed": "parameters changed",
    "samples": "--samples",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_recorded_is_refused_and_leaves_nothing(path, what):
    model = net()
    if what == "double":
        model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bias = model[3].bias

    def before(step):
        if (what, step) in (("none", 1), ("later", 0)):
            bias.grad = None
        if (what, step) == ("nan", 1):
            bias.grad[0] = math.nan
        if (what, step) == ("changed", 1):
            extra = nn.Parameter(torch.zeros(2))
            extra.grad = torch.ones(2)
            optimizer.add_param_group({"params": [extra]})

    with pytest.raises(TraceError, match=REFUSED[what]) as caught, Recorder(path):
        if what == "closure":
            optimizer.step(lambda: 0)
        elif what == "double":
            model(torch.zeros(8, 4).double()).sum().backward()
            optimizer.step()
        elif what == "samples":
            (bias**2).sum().backward()
            optimizer.step()
        else:
            loop(model, optimizer, 3, before)
    assert "\n" not in str(caught.value)
    assert not list(path.parent.iterdir())


def test_a_sparse_gradient_is_refused(path):
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    with pytest.raises(TraceError, match="'weight' has a sparse gradient"), Recorder(path):
        table(torch.tensor([1, 2])).sum().backward()
        optimizer.step()


def test_a_refusal_swallowed_by_the_script_still_counts(path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TraceError, match="closure"), Recorder(path):
        try:
            optimizer.step(lambda: 0)
        except Exception:  # noqa: BLE001
            pass
    assert not list(path.parent.iterdir())


def test_an_error_of_the_run_leaves_nothing(path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for error in (ZeroDivisionError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), Recorder(path):
            loop(model, optimizer, 2)
            raise error
        assert not list(path.parent.iterdir())


def test_nothing_seen_is_an_error(path):
    with pytest.raises(TraceError, match="no step of a torch optimizer was seen"), Recorder(path):
        pass
    model = net()
    with pytest.raises(TraceError, match="after the first 9"), Recorder(path, skip=9):
        loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not list(path.parent.iterdir())


def watched():
    import torch.optim.optimizer as module

    scaler, clip = torch.amp.GradScaler, torch.nn.utils.clip_grad
    return (
        torch.autograd.backward, torch.optim.Optimizer.add_param_group, scaler.scale,
        scaler.unscale_, scaler.step, clip._clip_grads_with_norm_,
        torch.utils.data._utils.fetch._MapDatasetFetcher.fetch,
        len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks),
        len(torch.nn.modules.module._global_forward_hooks),
        len(torch.nn.modules.module._global_forward_pre_hooks),
    )  # fmt: skip


def test_torch_is_as_it_was_afterwards(path):
    before = watched()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(path, steps=2):
        assert watched() != before
        loop(model, optimizer, 4)
    assert watched() == before
    assert not optimizer._optimizer_step_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    with pytest.raises(ZeroDivisionError), Recorder(path):
        1 / 0  # noqa: B018
    assert watched() == before


def test_recording_does_not_change_the_run(path):
    one, two = net(), net()
    plain = loop(one, torch.optim.AdamW(one.parameters(), **ADAM, fused=True))
    with Recorder(path, count_macs=True):
        watched_losses = loop(two, torch.optim.AdamW(two.parameters(), **ADAM, fused=True))
    assert watched_losses == plain
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_macs_are_counted_by_the_layers_arithmetic(path):
    # depthwise 3x3 on 6 channels, 5x5 out: 6*9*25 = 1350; pointwise 6->4: 24*25 = 600; 100->3: 300
    model = nn.Sequential(
        nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Conv2d(6, 4, 1), nn.Flatten(), nn.Linear(100, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(path, count_macs=True):
        for _ in range(2):
            model(torch.ones(7, 6, 5, 5)).sum().backward()
            optimizer.step()
    trace = load(path)
    assert trace.macs_forward == 1350 + 600 + 300
    # every weight's gradient, and the input's of all but the first
    assert trace.macs_backward == 2 * (1350 + 600 + 300) - 1350
    assert trace.attrs["macs_source"] == "counted in the first step"


def test_torchs_own_attention_is_counted(path):
    # 2 heads of 4, 5 tokens: 2 products of 2*5*5*4 = 400 forward; flash does 5 backward
    q = nn.Parameter(torch.randn(3, 2, 5, 4))
    optimizer = torch.optim.SGD([q], lr=0.1)

    class Attend(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(q, x, x)

    with Recorder(path, count_macs=True):
        Attend()(torch.randn(3, 2, 5, 4)).sum().backward()
        optimizer.step()
    assert load(path).macs_forward == 400
    assert load(path).macs_backward == 1000


def test_tensors_of_very_different_size_are_narrowed_one_by_one(path):
    # 11 significant bits each, so FP16, but 2**60 and 2**-60 need shifts of their own
    large, small = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([large, small], lr=0.1)
    with Recorder(path, samples=1):
        large.grad = torch.full((2,), (1 + 2.0**-10) * 2.0**60)
        small.grad = torch.full((3,), (1 + 2.0**-10) * 2.0**-60)
        optimizer.step()
    trace = load(path)
    storage, shifts, _ = trace.source.storage(0)
    assert storage == "float16" and len(shifts) == 2
    want = torch.cat([large.grad, small.grad]).numpy()
    np.testing.assert_array_equal(trace.gradient(0), want)


def test_note_says_what_hooks_cannot_see(path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(path) as recorder:
        loop(model, optimizer, 2, lambda step: recorder.note(scale=8.0, loss=5.0, samples=3)
             if step == 0 else None)  # fmt: skip
    one, two = load(path).steps
    assert (one.scale, one.loss, one.samples) == (8.0, 5.0, 3)
    assert (two.scale, two.samples) == (1.0, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "--steps is 0"),
        ({"skip": -1}, "--skip is -1"),
        ({"max_bytes": 0}, "--max-bytes"),
        ({"stepz": 3}, "did you mean 'steps'"),
    ],
)
def test_options_out_of_range_are_refused(path, options, words):
    with pytest.raises(TraceError, match=words):
        Recorder(path, **options)


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path):
    with pytest.raises(TraceError, match="must end in .h5"):
        Recorder(tmp_path / "run.txt")
    with pytest.raises(TraceError, match="does not exist"):
        Recorder(tmp_path / "no" / "run.h5")
