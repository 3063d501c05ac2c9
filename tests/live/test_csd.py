"""Does a model train on the emulated drive exactly as it does without, whatever the path?"""

import copy
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.units import InputError
from ondie.kernels import FORMATS, KernelError

torch = pytest.importorskip("torch", reason="torch is not installed")

from ondie.emu.csd_optimizer import UPDATING, CSDOptimizer  # noqa: E402
from ondie.kernels.torch_optimizer import KernelOptimizer  # noqa: E402
from ondie.traces.scripts import gpt, mobilenet  # noqa: E402
from tests.smoke.commands import SMALL  # noqa: E402

pytestmark = pytest.mark.skipif(
    find_spec("sklearn") is None, reason="scikit-learn is not installed"
)

MODELS = {"gpt": (gpt, "adamw"), "mobilenet": (mobilenet, "adam")}
DEVICES = {
    "host_offload": "gen4-tlc",
    "host_offload_pipelined": "newport",
    "in_storage": "newport",
    "on_die": "optimstore-r1",
}
ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8}


@pytest.fixture(scope="module")
def plainly(counts):
    """plainly(model): (steps, what training with the same kernel outside the emulator gives)."""
    found = {}

    def train(name):
        if name not in found:
            script, op = MODELS[name]
            steps = counts(8, 60)
            update = partial(lambda params, op, **h: KernelOptimizer(params, op, **h), op=op)
            found[name] = steps, script.train(update, steps)
        return found[name]

    return train


@pytest.mark.parametrize("path", UPDATING)
@pytest.mark.parametrize("model", ["gpt", pytest.param("mobilenet", marks=pytest.mark.soak)])
def test_training_ends_on_the_same_bits(model, path, plainly):
    """Every loss, and every weight at the end."""
    steps, plain = plainly(model)
    script, op = MODELS[model]
    made = []

    def update(params, **hyper):
        made.append(CSDOptimizer(params, op, device=DEVICES[path], path=path, **hyper))
        return made[-1]

    found = script.train(update, steps)
    assert found.losses == plain.losses
    for name, weights in plain.weights.items():
        np.testing.assert_array_equal(found.weights[name], weights)
    book, joules = made[-1].account()
    assert book.steps == steps
    assert made[-1].seconds == pytest.approx(steps * book.step_s, rel=1e-9) and book.update_s > 0
    assert 0 < joules.drive[0] < joules.drive[1] < joules.drive[2]


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 8))


def grads(net, step):
    rng = torch.Generator().manual_seed(step)
    for p in net.parameters():
        p.grad = torch.randn(p.shape, generator=rng).to(p.dtype)


def make(net, path="on_die", **more):
    return CSDOptimizer(net.parameters(), device=DEVICES[path], path=path, **(ADAM | more))


def run(optimizer, net, steps):
    for step in steps:
        grads(net, step)
        optimizer.step()
    return [p.detach().numpy().copy() for p in net.parameters()]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("path", UPDATING)
def test_states_are_those_on_flash(path):
    """A checkpoint read from the pages goes on, on another drive and without one."""
    whole, first = model(), model()
    wanted = run(make(whole, path), whole, range(6))
    optimizer = make(first, path)
    run(optimizer, first, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    for other in UPDATING:
        second = copy.deepcopy(first)
        again = make(second, other)
        again.load_state_dict(saved)
        assert same(run(again, second, range(3, 6)), wanted), other
    third = copy.deepcopy(first)
    outside = KernelOptimizer(third.parameters(), "adamw", **ADAM)
    outside.load_state_dict(saved)
    assert same(run(outside, third, range(3, 6)), wanted)


ON_DIE = ("fp16", "bf16", "bf16_all")
"""Formats that elements on the dies can keep, if they take 16-bit values."""
NARROW = [
    (path, format)
    for path in UPDATING
    for format in FORMATS
    if format != "fp32" and (path != "on_die" or format in ON_DIE)
]
WIDENS = {"settings": ["pe.narrow_values=1"]}


@pytest.mark.parametrize(("path", "format"), NARROW)
def test_formats_end_on_the_same_bits(path, format):
    """Two groups of two and three tensors (2,400 + 8 and 480 + 60 + 1 parameters: no multiple of a
    block of codes), rounding at random by a seed; every state of a checkpoint, too."""

    def trained(kind, **more):
        torch.manual_seed(0)
        first, second = torch.nn.Linear(40, 60), torch.nn.Linear(60, 8)
        scale = torch.nn.Parameter(torch.ones(1))
        groups = [
            {"params": [first.weight, second.bias], "weight_decay": 0.1},
            {"params": [second.weight, first.bias, scale], "lr": 0.003},
        ]
        held = [p for group in groups for p in group["params"]]
        optimizer = kind(groups, "adamw", format=format, seed=5, **more, **ADAM)
        for step in range(4):
            rng = torch.Generator().manual_seed(step)
            for p in held:
                p.grad = torch.randn(p.shape, generator=rng)
            optimizer.step()
        return [p.detach().numpy().copy() for p in held], optimizer.state_dict()

    found, saved = trained(
        CSDOptimizer, device=DEVICES[path], path=path, **(WIDENS if path == "on_die" else {})
    )
    wanted, plain = trained(KernelOptimizer)
    assert same(found, wanted)
    assert saved["format"] == plain["format"] == format
    for number, state in plain["state"].items():
        assert saved["state"][number].keys() == state.keys()
        for name, value in state.items():
            mine = saved["state"][number][name]
            assert mine == value if name == "step" else torch.equal(mine, value), (number, name)


@pytest.mark.parametrize(
    ("path", "format"), [x for x in NARROW if x[1] in ("bf16", "bf16_all", "int8_dynamic")]
)
def test_states_in_a_format_are_those_on_flash(path, format):
    """A checkpoint read from the pages goes on, on another drive, as it would have."""
    more = {"format": format, **(WIDENS if path == "on_die" else {})}
    whole, first = model(), model()
    wanted = run(make(whole, path, **more), whole, range(4))
    optimizer = make(first, path, **more)
    run(optimizer, first, range(2))
    again = make(first, path, **more)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert same(run(again, first, range(2, 4)), wanted)


@pytest.mark.parametrize("path", [p for p in UPDATING if p != "on_die"])
def test_bf16_masters_are_the_fp32_update_between_casts(path):
    """No kernel has them: weights and gradient from BF16, the update in FP32 with FP32 states, the
    weights back to BF16. By hand, and saved and loaded under that name."""
    net, plain = model(), model()
    optimizer = make(net, path, format="bf16_master")
    found = run(optimizer, net, range(2))
    again = make(net, path, format="bf16_master")
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.state_dict()["format"] == "bf16_master"
    found = run(again, net, range(2, 4))
    with torch.no_grad():
        for p in plain.parameters():
            p.copy_(p.bfloat16())
    outside = KernelOptimizer(plain.parameters(), "adamw", **ADAM)
    for step in range(4):
        grads(plain, step)
        with torch.no_grad():
            for p in plain.parameters():
                p.grad = p.grad.bfloat16().float()
            outside.step()
            for p in plain.parameters():
                p.copy_(p.bfloat16())
    assert same(found, [p.detach().numpy() for p in plain.parameters()])
    with pytest.raises(KernelError, match="'bf16_master'; must be in format 'fp32'"):
        make(model(), path).load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize(
    ("format", "more", "text"),
    [
        ("bf16_all", {}, "narrow_values = 0"),
        ("fp16", {}, "narrow_values = 0"),
        ("bf16_master", WIDENS, "the same number of values"),
        ("int8_dynamic", WIDENS, "the same number of values"),
        ("bf16_stochastic", WIDENS, "random bits"),
    ],
)
def test_formats_that_a_die_cannot_keep(format, more, text):
    net = model()
    with pytest.raises(InputError, match=f"on_die: format {format}: .*{text}"):
        run(make(net, format=format, **more), net, [0])


def test_a_power_cut_with_16_bits_on_the_die():
    """Pages of BF16, and gradients of BF16 beside FP32 pages."""
    small = [*WIDENS["settings"], *SMALL]
    for format in ON_DIE:
        plain, net = model(), model()
        wanted = run(make(plain, format=format, settings=small), plain, range(3))
        optimizer = make(net, format=format, settings=small)
        for step in range(3):
            if step == 1:
                optimizer.cut_power(9)
            found = run(optimizer, net, [step])
        assert same(found, wanted) and len(optimizer.recoveries) == 1


def test_weights_come_from_the_pages():
    """What is done to the model between two steps is gone: the drive has the weights."""
    net, touched = model(), model()
    wanted = run(make(net), net, range(4))
    optimizer = make(touched)
    run(optimizer, touched, range(2))
    with torch.no_grad():
        for p in touched.parameters():
            p.zero_()
    assert same(run(optimizer, touched, range(2, 4)), wanted)


def test_groups_and_schedules():
    def trained(kind, **more):
        net = model()
        groups = [
            {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in net.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ]
        optimizer = kind(groups, "adamw", **more, **ADAM)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for step in range(4):
            grads(net, step)
            optimizer.step()
            schedule.step()
        return [p.detach().numpy() for p in net.parameters()]

    assert same(trained(CSDOptimizer), trained(KernelOptimizer))


def test_time_and_energy_grow_with_steps():
    net = model()
    optimizer = make(net, forward_s=1e-3, backward_s=2e-3)
    assert optimizer.seconds == 0
    with pytest.raises(KernelError, match="no step"):
        optimizer.account()
    times, energies = [], []
    for step in range(3):
        run(optimizer, net, [step])
        times.append(optimizer.seconds)
        energies.append(optimizer.account()[1].all[1])
    assert np.diff([0, *times]).min() > 3e-3  # forward and backward, and the update
    assert energies[0] < energies[1] < energies[2]
    assert optimizer.account()[0].steps == 3


def test_a_device_of_ones_own():
    net, plain = model(), model()
    cfg = load_preset("newport", ["ftl.gc_policy=fifo"])
    wanted = run(make(plain, "in_storage"), plain, range(3))
    settings = CSDOptimizer(
        net.parameters(), device="newport", settings=["ftl.gc_policy=fifo"], path="in_storage",
        **ADAM,
    )  # fmt: skip
    assert settings.cfg == cfg
    assert same(run(settings, net, range(3)), wanted)
    with pytest.raises(InputError, match="settings"):
        CSDOptimizer(net.parameters(), device=cfg, settings=["ftl.gc_policy=fifo"], **ADAM)


@pytest.mark.parametrize(
    "more, text",
    [
        ({"path": "on_dye"}, "on_die"),
        ({"path": "stannis"}, "host_offload"),
        ({"device": "newpord"}, "newport"),
        ({"format": "bf16_al"}, "bf16_all"),
        ({"format": "bf16_all", "form": "torch"}, "canonical"),
        ({"format": "int8_linear", "op": "sgd"}, "no states"),
        ({"op": "adam_on_die"}, "op = 'adam_on_die': must be one of sgd, "),
        ({"lr": -1.0}, "lr"),
        ({"settings": ["ftl.gc_polizy=fifo"]}, "gc_policy"),
        ({"threads": 2}, "threads: not supported, because the drive"),
        ({"backend": "numpy"}, "backend: not supported, because the drive"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**64}, "seed = 18446744073709551616"),
        ({"samples": 1.5}, "samples = 1.5"),
        ({"forward_s": 1e9}, "forward_s = 1000000000.0: must be from 0 to 1,000,000"),
        ({"backward_s": "x"}, "backward_s = 'x'"),
    ],
)
def test_bad_arguments(more, text):
    with pytest.raises((InputError, KernelError), match=text):
        CSDOptimizer(model().parameters(), **(ADAM | more))


def test_what_cannot_be_updated():
    net = model()
    optimizer = make(net)
    with pytest.raises(KernelError, match="parameter 0 .*no gradient"):
        optimizer.step()
    with pytest.raises(KernelError, match="must be torch.float32"):
        half = model().half()
        run(make(half), half, [0])
    before = run(optimizer, net, [0])
    next(net.parameters()).grad = None
    with pytest.raises(KernelError, match="no gradient"):
        optimizer.step()
    assert same([p.detach().numpy() for p in net.parameters()], before)
    with pytest.raises(KernelError, match="copied"):
        copy.deepcopy(optimizer)
    with pytest.raises(KernelError, match="cannot be added after the first step"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
    with pytest.raises(KernelError, match="first step"):
        optimizer.load_state_dict(optimizer.state_dict())


def test_the_clock_has_an_end():
    net = model()
    optimizer = make(net, forward_s=9e5)
    before = run(optimizer, net, [0])
    grads(net, 1)
    with pytest.raises(InputError, match="s of simulated time; the limit is 1,000,000 s"):
        optimizer.step()
    assert same([p.detach().numpy() for p in net.parameters()], before)


def test_a_path_that_the_device_lacks():
    net = model()
    with pytest.raises(InputError, match="on_die"):
        run(CSDOptimizer(net.parameters(), device="newport", path="on_die", **ADAM), net, [0])


def test_training_survives_power_cuts():
    """Three cuts in six steps: the weights are those of a training without."""
    plain, net = model(), model()
    wanted = run(make(plain, settings=SMALL), plain, range(6))
    optimizer = make(net, samples=4, seed=9, settings=SMALL)
    for step in range(6):
        if step % 2:
            optimizer.cut_power(10 + 3 * step)
        found = run(optimizer, net, [step])
    assert same(found, wanted)
    assert len(optimizer.recoveries) == 3
    assert all(x.seconds > 0 and x.scanned > 0 for x in optimizer.recoveries)
    assert optimizer.account()[0].steps == 6


def test_power_cuts_that_cannot_be():
    net = model()
    for after in (0, -3, 1.5):
        with pytest.raises(InputError, match="after_events"):
            make(net).cut_power(after)
    with pytest.raises(InputError, match="power cuts require path = 'on_die'"):
        make(net, "in_storage").cut_power(10)
