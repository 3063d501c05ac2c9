"""Does a torch optimizer of our kernels give a model the bits of torch's optimizers, or of the
kernel called on arrays, in every format, whatever the parameters look like and after a restart?"""

import copy
import io
import itertools
import pickle
from functools import partial

import numpy as np
import pytest

from ondie.kernels import FORMATS, ON_DIE, OPS, KernelError, get
from ondie.kernels.stochastic import key
from tests.numerics.harness import same_bits, values
from tests.numerics.test_updates import BASE

torch = pytest.importorskip("torch", reason="torch is not installed")

from ondie.kernels.torch_optimizer import KernelOptimizer  # noqa: E402

STEPS = 5
SHAPES = [(3, 7), (), (1000,), (0,), (2, 300)]
WITH_STATES = [op for op in OPS if op != "sgd"]
CASES = [(op, f) for f in FORMATS for op in (WITH_STATES if f.startswith("int8") else OPS)]
SIXTEEN = {"fp16": torch.float16} | dict.fromkeys(
    ("bf16", "bf16_all", "bf16_stochastic"), torch.bfloat16
)
"""Formats in which a model computes with 16 bits."""
ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8}


def named(op):
    """Hyperparameters of an operation under torch's names."""
    hyper = dict(BASE[op])
    if "beta1" in hyper:
        hyper["betas"] = (hyper.pop("beta1"), hyper.pop("beta2"))
    return hyper


def drawn(rng, shape, dtype=torch.float32):
    size = int(np.prod(shape))
    return torch.from_numpy(values(rng, size, "ordinary").reshape(shape)).to(dtype)


def parameters(rng, shapes=SHAPES, dtype=torch.float32):
    return [torch.nn.Parameter(drawn(rng, shape, dtype)) for shape in shapes]


def copies(ps):
    return [torch.nn.Parameter(p.detach().clone()) for p in ps]


def give(ps, rng, scale=1.0):
    """New gradients for all."""
    for p in ps:
        p.grad = drawn(rng, tuple(p.shape), p.dtype) * scale


def bits(t):
    """The bits of a tensor, as unsigned integers."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    return t.detach().contiguous().view(-1).view(kind).numpy()


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(bits(a), bits(b))


def steps(optimizer, ps, seed, n=STEPS):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        give(ps, rng)
        optimizer.step()


# --- torch's optimizers

THEIRS = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "nesterov": partial(torch.optim.SGD, nesterov=True),
    "adam": torch.optim.Adam,
    "adamw": partial(torch.optim.AdamW, weight_decay=0.0),
    "adagrad": torch.optim.Adagrad,
}
RATES = [lambda step: (step + 1) / 9, lambda step: 1]
SCHEDULES = {
    "steps": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.3),
    "two rates": lambda o: torch.optim.lr_scheduler.LambdaLR(o, RATES),
}
CYCLE = {"cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=12)}
"""Changes momentum or the first beta, too."""


SCHEDULED = [
    (op, name) for op in OPS for name in SCHEDULES | (CYCLE if op not in ("sgd", "adagrad") else {})
]


@pytest.mark.parametrize("op, schedule", SCHEDULED)
def test_torch_form_is_torchs_optimizer(op, schedule, rng):
    """Sizes are of whole vectors: torch's scalar tail is test_torch.py's. One parameter has a
    gradient in every third step only."""
    first = parameters(rng, [(4, 16), (32,), (3, 5, 16), (160,)])
    histories = []
    for make in (partial(KernelOptimizer, op=op, form="torch"), partial(THEIRS[op], fused=True)):
        ps = copies(first)
        groups = [{"params": ps[:2], "weight_decay": 0.1}, {"params": ps[2:], "lr": 0.03}]
        optimizer = make(groups, **named(op))
        scheduler = (SCHEDULES | CYCLE)[schedule](optimizer)
        gradients, history = np.random.default_rng(7), []
        for step in range(12):
            give(ps, gradients)
            if step % 3:
                ps[1].grad = None
            optimizer.step()
            scheduler.step()
            history.append([p.detach().clone() for p in ps])
        histories.append(history)
    for step, (ours, theirs) in enumerate(zip(*histories, strict=True), start=1):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert same(a, b), f"parameter {i} differs from torch at step {step}"
    assert not same(histories[0][0][0], first[0])


# --- the kernel on arrays


def stored(t, dtype):
    """A flat tensor as the array of a kernel: rounded to nearest where it has to be."""
    if dtype == np.uint16:
        return t.detach().reshape(-1).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    return t.detach().reshape(-1).to(torch.from_numpy(np.empty(0, dtype)).dtype).numpy().copy()


def loaded(a):
    """The numbers of an array, float32."""
    wide = (a.astype(np.uint32) << 16).view(np.float32) if a.dtype == np.uint16 else a
    return torch.from_numpy(wide.astype(np.float32))


class Direct:
    """Calls of a kernel on arrays of its own: what the optimizer is held to."""

    def __init__(self, op, format, groups, hypers, seed):
        self.kernel, self.hypers, self.seed, self.count = get(op, format=format), hypers, seed, 0
        self.w_type, self.g_type = (slot.dtype for slot in self.kernel.slots[:2])
        kinds = {slot.name: slot.dtype for slot in self.kernel.slots}
        self.groups = []
        for group in groups:
            arrays = [(stored(p, self.w_type), self.kernel.zeros(p.numel())) for p in group]
            out = kinds.get("out")
            outs = [None if out is None else np.empty(p.numel(), out) for p in group]
            self.groups.append([(w, s, o) for (w, s), o in zip(arrays, outs, strict=True)])

    def step(self, groups):
        self.count += 1
        for number, (group, hyper) in enumerate(zip(groups, self.hypers, strict=True)):
            coef = self.kernel.coefficients(hyper, self.count)
            at = 0
            for p, (w, states, out) in zip(group, self.groups[number], strict=True):
                random = {}
                if self.kernel.random:
                    random = {"first": at, "key": key(self.count, self.seed + (number << 32))}
                self.kernel(w, stored(p.grad, self.g_type), states, coef, out=out, **random)
                at += w.size


@pytest.mark.parametrize("op, format", CASES)
def test_the_bits_of_the_kernel(op, format, rng):
    """FP32 parameters: the model has the format's weights, the optimizer what it stores beside."""
    ps = parameters(rng)
    groups = [ps[:3], ps[3:]]
    hypers = [BASE[op] | {"weight_decay": 0.01}, BASE[op] | {"lr": 0.05}]
    direct = Direct(op, format, groups, hypers, seed=11)
    optimizer = KernelOptimizer(
        [{"params": groups[0], "weight_decay": 0.01}, {"params": groups[1], "lr": 0.05}],
        op, format=format, seed=11, **named(op),
    )  # fmt: skip
    for step in range(1, STEPS + 1):
        give(ps, rng, 0.1)
        before = [p.grad.clone() for p in ps]
        direct.step(groups)
        optimizer.step()
        for p, g, (w, states, out) in zip(ps, before, itertools.chain(*direct.groups), strict=True):
            assert same(p.grad, g)
            assert same(p.detach().view(-1), loaded(w if out is None else out))
            if format in SIXTEEN:
                assert same(p.detach(), p.detach().to(SIXTEEN[format]).float())
            held = dict(optimizer.state[p])
            assert held.pop("step") == step
            if out is not None:
                assert same_bits(held.pop("w").numpy(), w)
            assert list(held) == list(optimizer.kernel.states)
            for name, state in zip(held, states, strict=True):
                assert held[name].dtype.itemsize == state.itemsize
                assert np.array_equal(bits(held[name]), state.view(bits(held[name]).dtype)), name
    shown = ps[4]
    if format in ("fp16", "bf16"):
        assert not same(optimizer.state[shown]["w"], shown.detach().view(-1))
    if format.startswith("int8"):
        assert {t.dtype for n, t in optimizer.state[shown].items() if n in "mv"} == {torch.uint8}
        assert not same(shown, shown.detach().bfloat16().float())


@pytest.mark.parametrize("op", ON_DIE)
def test_the_dies_arithmetic(op, rng):
    hyper = {"lr": 0.01} | ({} if op.startswith("adagrad") else {"beta1": 0.9, "beta2": 0.99})
    ps = parameters(rng, [(1000,)])
    for newton in (0, 2):
        mine = copies(ps)
        optimizer = KernelOptimizer(mine, op, newton=newton, **hyper)
        direct = Direct(op, "fp32", [ps], [hyper | {"newton": newton}], seed=0)
        for _ in range(STEPS):
            give(mine, rng)
            direct.step([mine])
            optimizer.step()
        assert same_bits(mine[0].detach().numpy(), direct.groups[0][0][0])


# --- what parameters look like


@pytest.mark.parametrize("format", SIXTEEN)
def test_parameters_of_16_bits_are_updated_where_they_lie(format, rng):
    ps = parameters(rng, dtype=SIXTEEN[format])
    optimizer = KernelOptimizer(ps, format=format, seed=3, **ADAM)
    hyper = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
    direct = Direct("adamw", format, [ps], [hyper], seed=3)
    before = [p.data_ptr() for p in ps]
    for _ in range(STEPS):
        give(ps, rng)
        direct.step([ps])
        optimizer.step()
    assert [p.data_ptr() for p in ps] == before
    for p, (w, _, out) in zip(ps, direct.groups[0], strict=True):
        assert same(p.detach().view(-1), loaded(w if out is None else out).to(p.dtype))
        assert ("w" in optimizer.state[p]) == (out is not None)


@pytest.mark.parametrize("format", ["fp32", "int8_dynamic"])
def test_parameters_of_16_bits_with_weights_in_32(format, rng):
    """The model has roundings of them, so that small changes are not lost."""
    ps = parameters(rng, [(1000,)], torch.bfloat16)
    start = ps[0].detach().clone()
    optimizer = KernelOptimizer(ps, format=format, **ADAM | {"lr": 1e-4})
    for _ in range(40):
        ps[0].grad = torch.ones_like(ps[0])
        optimizer.step()
    w = optimizer.state[ps[0]]["w"]
    assert w.dtype == torch.float32 and same(ps[0].detach(), w.bfloat16())
    # Adam moves by the learning rate: 40 steps of 1e-4, which are 1/977 of 3.9.
    assert torch.allclose(start.float() - w, torch.tensor(40e-4), rtol=0.01)
    assert not same(start, ps[0])


def test_parameters_of_64_bits_hold_what_the_format_can(rng):
    ps, narrow = parameters(rng, [(1000,)], torch.float64), None
    narrow = [torch.nn.Parameter(ps[0].detach().float())]
    optimizers = [KernelOptimizer(x, **ADAM) for x in (ps, narrow)]
    for _ in range(STEPS):
        give(narrow, rng)
        ps[0].grad = narrow[0].grad.double()
        for optimizer in optimizers:
            optimizer.step()
    assert same(ps[0].detach().float().double(), ps[0].detach())
    assert same(ps[0].detach().float(), narrow[0].detach())


def strided(rng):
    """Parameters that are not contiguous, of shapes (6, 8) and (4, 3, 5, 5)."""
    image = drawn(rng, (4, 3, 5, 5)).to(memory_format=torch.channels_last)
    found = [torch.nn.Parameter(drawn(rng, (8, 6)).t()), torch.nn.Parameter(image)]
    assert not any(p.is_contiguous() for p in found)
    return found


@pytest.mark.parametrize("format", FORMATS)
def test_any_layout(format, rng):
    ps = strided(rng)
    plain = [torch.nn.Parameter(p.detach().clone(memory_format=torch.contiguous_format))
             for p in ps]  # fmt: skip
    optimizers = [KernelOptimizer(x, format=format, **ADAM) for x in (ps, plain)]
    before = [(p.data_ptr(), p.stride()) for p in ps]
    for step in range(STEPS):
        give(plain, rng)
        ps[0].grad = plain[0].grad.t().contiguous().t()
        ps[1].grad = plain[1].grad.clone()
        if step == 2:  # what a loss that is a sum gives: one number in memory
            ps[0].grad, plain[0].grad = torch.ones(()).expand(6, 8), torch.ones(6, 8)
        for optimizer in optimizers:
            optimizer.step()
        for a, b in zip(ps, plain, strict=True):
            assert same(a.detach().contiguous(), b.detach())
    assert [(p.data_ptr(), p.stride()) for p in ps] == before
    assert ("w" in optimizers[0].state[ps[0]]) == (format in ("fp16", "bf16"))


@pytest.mark.parametrize("format", ["fp32", "bf16_all", "int8_linear"])
def test_weights_that_were_changed_meanwhile(format, rng):
    """Where the parameter holds what the format does, the next step begins from it."""
    ps = [*strided(rng), *parameters(rng, [(300,)])]
    optimizer = KernelOptimizer(ps, format=format, lr=0.0, betas=(0.9, 0.99), eps=1e-8)
    give(ps, rng)
    optimizer.step()
    with torch.no_grad():
        for p in ps:
            p.fill_(0.5)
    optimizer.step()
    assert all((p == 0.5).all() for p in ps)


def test_a_model_that_changes_its_type_or_layout_meanwhile(rng):
    """Without learning, weights stay: there is no moment at which they come from nowhere."""
    model = torch.nn.Conv2d(3, 4, 5)
    optimizer = KernelOptimizer(model.parameters(), lr=0.0, betas=(0.9, 0.99), eps=1e-8)
    for change in (
        lambda: model.to(memory_format=torch.channels_last),
        lambda: model.to(torch.bfloat16),
        lambda: model.to(torch.float32, memory_format=torch.contiguous_format),
    ):
        give(model.parameters(), rng)
        optimizer.step()
        change()
        before = [p.detach().clone() for p in model.parameters()]
        give(model.parameters(), rng)
        optimizer.step()
        assert all(map(same, before, (p.detach() for p in model.parameters())))


def test_autograd_hears_of_the_update(rng):
    """A gradient of weights that are there no more would be wrong without a word."""
    for kind in (torch.float32, torch.float64):  # in place, and copied into
        w = torch.nn.Parameter(drawn(rng, (20,), kind))
        optimizer = KernelOptimizer([w], **ADAM)
        loss = (w**3).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


# --- steps


def test_a_parameter_without_gradient_waits(rng):
    ps = parameters(rng, [(100,), (100,)])
    with torch.no_grad():
        ps[1].copy_(ps[0])
    start = ps[0].detach().clone()
    gradients = [drawn(rng, (100,)) for _ in range(3)]
    optimizer = KernelOptimizer(ps, **ADAM)
    history = []
    for g in gradients:
        ps[0].grad = g
        optimizer.step()
        history.append(ps[0].detach().clone())
    assert same(ps[1].detach(), start) and ps[1] not in optimizer.state
    for i, g in enumerate(gradients):
        ps[0].grad = g
        ps[1].grad = g
        optimizer.step()
        assert same(ps[1].detach(), history[i])  # its first steps are first ones
    assert [optimizer.state[p]["step"] for p in ps] == [6, 3]
    assert len(KernelOptimizer(parameters(rng), **ADAM).state) == 0


def test_closure(rng):
    ps = parameters(rng, [(100,)])
    alike = copies(ps)
    optimizer, plain = (KernelOptimizer(x, **ADAM) for x in (ps, alike))

    def closure():
        optimizer.zero_grad()
        loss = (ps[0] ** 2).sum()
        loss.backward()
        return loss

    wanted = (ps[0].detach() ** 2).sum()
    found = optimizer.step(closure)
    assert found.item() == wanted.item() and found.requires_grad
    alike[0].grad = 2 * alike[0].detach()
    assert plain.step() is None
    assert same(ps[0].detach(), alike[0].detach())


@pytest.mark.parametrize(
    "hyper, group",
    [
        ({"betas": (0.9, 0.99)}, {"beta1": 0.5}),
        ({"betas": (0.9, 0.99)}, {"betas": (0.5, 0.99)}),
        ({"beta1": 0.9, "beta2": 0.99}, {"betas": (0.5, 0.99)}),
        ({"beta1": 0.9, "beta2": 0.99}, {"beta1": 0.5}),
    ],
    ids=str,
)
def test_a_group_has_its_own_betas_under_either_name(hyper, group, rng):
    ps = parameters(rng, [(100,), (100,)])
    alike = copies(ps)
    optimizer = KernelOptimizer([{"params": ps[0]}, {"params": ps[1], **group}],
                                lr=0.01, eps=1e-8, **hyper)  # fmt: skip
    apart = [KernelOptimizer([p], lr=0.01, eps=1e-8, betas=betas)
             for p, betas in zip(alike, ((0.9, 0.99), (0.5, 0.99)), strict=True)]  # fmt: skip
    for _ in range(STEPS):
        give(ps, rng)
        for p, q, other in zip(ps, alike, apart, strict=True):
            q.grad = p.grad
            other.step()
        optimizer.step()
    assert all(same(p.detach(), q.detach()) for p, q in zip(ps, alike, strict=True))


# --- states that are saved


def saved(optimizer):
    """Its states through a file."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", [saved, lambda o: o.state_dict()], ids=["file", "dictionary"])
@pytest.mark.parametrize("format", FORMATS)
def test_training_continues_from_saved_states(format, way, dtype, rng):
    ps = parameters(rng, dtype=dtype)
    optimizer = KernelOptimizer([{"params": ps[:2], "lr": 0.1}, {"params": ps[2:]}],
                                format=format, seed=9, **ADAM)  # fmt: skip
    steps(optimizer, ps, seed=1)
    later = copies(ps)
    other = {"lr": 1.0, "beta1": 0.5, "beta2": 0.5, "eps": 1.0}
    groups = [{"params": later[:2]}, {"params": later[2:]}]
    fresh = KernelOptimizer(groups, format=format, seed=9, **other)
    state = way(optimizer)
    fresh.load_state_dict(state)
    for p, q, number in zip(ps, later, itertools.count()):
        assert optimizer.state[p].keys() == fresh.state[q].keys()
        for name, value in optimizer.state[p].items():
            mine = fresh.state[q][name]
            if name == "step":
                assert type(mine) is int and mine == value == STEPS
            else:
                assert same(mine, value)
                given = state["state"][number][name]
                assert mine.numel() == 0 or mine.data_ptr() != given.data_ptr()
    steps(optimizer, ps, seed=2)
    steps(fresh, later, seed=2)
    for p, q in zip(ps, later, strict=True):
        assert same(p.detach(), q.detach())
    fresh.add_param_group({"params": parameters(rng, [(10,)])})
    steps(fresh, [p for group in fresh.param_groups for p in group["params"]], seed=3, n=1)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
                         ids=["copy", "pickle"])  # fmt: skip
def test_an_optimizer_can_be_copied(way, rng):
    ps = parameters(rng)
    optimizer = KernelOptimizer(ps, "adam", format="bf16_stochastic", seed=5, **ADAM)
    steps(optimizer, ps, seed=1)
    later, other = way((ps, optimizer))
    steps(optimizer, ps, seed=2)
    steps(other, later, seed=2)
    assert all(same(p.detach(), q.detach()) for p, q in zip(ps, later, strict=True))


def spoiled(state, **changes):
    state["state"][0] |= changes
    return state


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda p: KernelOptimizer(p, format="int8_dynamic", **ADAM), ["int8_dynamic", "fp32"]),
        (lambda p: KernelOptimizer(p, "momentum", lr=0.1, momentum=0.9), ["0: v is missing"]),
        (lambda p: torch.optim.AdamW(p), ["0: m is missing; the state has step, exp_avg"]),
        (lambda p: torch.optim.SGD(p, momentum=0.9), ["0: step is missing"]),
    ],
)
def test_states_of_another_optimizer_are_refused(make, words, rng):
    ps = parameters(rng, [(50,), (60,)])
    other = make(copies(ps))
    steps(other, other.param_groups[0]["params"], seed=1, n=1)
    optimizer = KernelOptimizer(ps, **ADAM)
    steps(optimizer, ps, seed=2, n=1)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(KernelError) as error:
        optimizer.load_state_dict(other.state_dict())
    assert all(word in str(error.value) for word in words), error.value
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(same(after["state"][i]["m"], before["state"][i]["m"]) for i in range(2))


@pytest.mark.parametrize(
    "change, words",
    [({"m": torch.zeros(51)}, "m is torch.float32 (51,), expected torch.float32 (50,)"),
     ({"v": torch.zeros(50, dtype=torch.bfloat16)}, "v is torch.bfloat16 (50,), expected torch.f"),
     ({"w": torch.zeros(49)}, "w is torch.float32 (49,)")],
)  # fmt: skip
def test_states_of_another_size_or_type_are_refused(change, words, rng):
    ps = parameters(rng, [(50,), (60,)])
    optimizer = KernelOptimizer(ps, **ADAM)
    steps(optimizer, ps, seed=1, n=1)
    with pytest.raises(KernelError) as error:
        optimizer.load_state_dict(spoiled(saved(optimizer), **change))
    assert f"state of parameter 0: {words}" in str(error.value)


def test_states_without_the_weights_in_32_bits_are_refused(rng):
    ps = parameters(rng, [(50,)])
    optimizer = KernelOptimizer(ps, format="bf16", **ADAM)
    steps(optimizer, ps, seed=1, n=1)
    state = saved(optimizer)
    del state["state"][0]["w"]
    with pytest.raises(KernelError, match="w is missing"):
        optimizer.load_state_dict(state)


# --- rounding at random


def ended(seed, threads=1, order=slice(None), shapes=((40_000,), (1, 30_001), (50_000,))):
    rng = np.random.default_rng(1)
    ps = parameters(rng, shapes)
    optimizer = KernelOptimizer(
        ps[order], format="bf16_stochastic", seed=seed, threads=threads, **ADAM
    )
    steps(optimizer, ps, seed=2, n=3)
    return [p.detach() for p in ps]


def test_a_seed_is_what_rounding_depends_on():
    """On no thread, and on no other run before."""
    first = ended(4)
    for threads in (1, 2, 5):
        assert all(map(same, first, ended(4, threads)))
    for a, b in zip(first, ended(5), strict=True):
        # The two roundings of a number lie half a unit apart on average, so that about one weight
        # in two or more differs after a few steps.
        assert (a != b).float().mean() > 0.3


def test_groups_and_steps_are_rounded_by_numbers_of_their_own(rng):
    """Four equal parameters, of two groups and two optimizers with neighbouring seeds: a seed's
    second group must not repeat the next one's first."""
    w, g = drawn(rng, (20_000,)), drawn(rng, (20_000,))
    found = []
    for seed in (0, 1):
        ps = [torch.nn.Parameter(w.clone()) for _ in range(2)]
        groups = [{"params": [p]} for p in ps]
        optimizer = KernelOptimizer(groups, format="bf16_stochastic", seed=seed, **ADAM)
        for p in ps:
            p.grad = g.clone()
        optimizer.step()
        found += [p.detach() for p in ps]
    for a, b in itertools.combinations(found, 2):
        # P(differ) = 2 q (1 - q) with q the distance to the lower neighbour: 1/3 on average where
        # that is uniform.
        assert 0.2 < (a != b).float().mean() < 0.5


# --- bad input


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"op": "adamv"}, ["operation 'adamv'", "did you mean 'adam"]),
        ({"format": "int4"}, ["format 'int4'"]),
        ({"form": "torch", "format": "bf16"}, ["'bf16'", "'torch'"]),
        ({"backend": "cuda"}, ["'cuda'"]),
        ({"lr": None}, ["lr", "None"]),
        ({"eps": -1}, ["eps", "-1"]),
        ({"betas": (0.9, 1.0)}, ["beta2", "1.0"]),
        ({"betas": 0.9}, ["betas", "a pair of numbers"]),
        ({"betas": (0.9, 0.99, 0.999)}, ["betas", "a pair of numbers"]),
        ({"momentum": 0.9}, ["'momentum'"]),
        ({"amsgrad": True}, ["'amsgrad'"]),
        ({"threads": 0}, ["threads: 0"]),
        ({"seed": -1}, ["seed: -1"]),
        ({"seed": 1 << 32}, ["seed: 4294967296"]),
    ],
    ids=str,
)
def test_what_a_kernel_does_not_take(arguments, words, rng):
    with pytest.raises(KernelError) as error:
        KernelOptimizer(parameters(rng), **{**ADAM, **arguments})
    assert all(word in str(error.value) for word in words), error.value


def test_a_learning_rate_is_wanted_of_every_group(rng):
    ps = parameters(rng, [(5,), (5,), (5,)])
    with pytest.raises(KernelError, match="'lr' is missing"):
        KernelOptimizer(ps, betas=(0.9, 0.99), eps=1e-8)
    with pytest.raises(KernelError, match="'lr' is missing"):
        KernelOptimizer([{"params": ps[0], "lr": 0.1}, {"params": ps[1]}], "sgd")
    optimizer = KernelOptimizer([{"params": ps[0], "lr": 0.1}], "sgd")
    for bad in ({}, {"lr": -1}, {"lr": 0.1, "momentum": 0.9}):
        with pytest.raises(KernelError):
            optimizer.add_param_group({"params": ps[1], **bad})
    optimizer.add_param_group({"params": ps[1], "lr": 0.2})
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


def bad_steps():
    def sparse(ps, optimizer):
        ps[-1].grad = torch.eye(7)[:3].to_sparse()

    def rate(ps, optimizer):
        optimizer.param_groups[-1]["lr"] = float("nan")

    def state(ps, optimizer):
        optimizer.state[ps[-1]]["m"] = torch.zeros(4)

    def memory(ps, optimizer):
        ps[-1].data = optimizer.state[ps[-1]]["m"].view(3, 7)

    return {
        "sparse": (sparse, "gradient of shape (3, 7) is torch.float32, sparse_coo"),
        "rate": (rate, "lr = nan"),
        "state": (state, "m is float32 (4,)"),
        "memory": (memory, "share memory"),
    }


@pytest.mark.parametrize("name", bad_steps())
def test_a_refused_step_changes_nothing(name, rng):
    """Not even what comes before: the last of three groups is the bad one."""
    change, words = bad_steps()[name]
    ps = parameters(rng, [(50,), (60,), (3, 7)])
    optimizer = KernelOptimizer([{"params": [p]} for p in ps], **ADAM)
    steps(optimizer, ps, seed=1, n=2)
    give(ps, rng)
    change(ps, optimizer)
    before = copy.deepcopy((ps, optimizer.state_dict()["state"]))
    with pytest.raises(KernelError) as error:
        optimizer.step()
    assert words in str(error.value), error.value
    state = optimizer.state_dict()["state"]
    for i, p in enumerate(ps):
        assert same(p.detach(), before[0][i].detach())
        assert state[i]["step"] == 2
        assert all(same(state[i][n], before[1][i][n]) for n in "mv")


def test_a_refused_first_step_keeps_nothing(rng):
    """Weights that are loaded after it are those that the next step begins with."""
    ps = parameters(rng, [(50,), (60,)])
    optimizer = KernelOptimizer([{"params": [p]} for p in ps], format="fp16", **ADAM)
    give(ps, rng)
    ps[1].grad = ps[1].grad.to_sparse()
    with pytest.raises(KernelError, match="sparse"):
        optimizer.step()
    assert not optimizer.state_dict()["state"]
    for p in ps:
        p.data.fill_(5.0)
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert all((p == 5.0).all() for p in ps)


@pytest.mark.parametrize(
    "p, words",
    [
        (torch.zeros(3, dtype=torch.complex64), "is torch.complex64"),
        (torch.zeros(3, device="meta"), "on meta"),
    ],
    ids=["complex", "elsewhere"],
)
def test_parameters_that_are_no_numbers_in_memory(p, words):
    w = torch.nn.Parameter(p)
    w.grad = torch.zeros_like(p)
    with pytest.raises(KernelError, match=words):
        KernelOptimizer([w], **ADAM).step()
