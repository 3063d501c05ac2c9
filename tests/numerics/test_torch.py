"""How near are the kernels to torch's own optimizers, after 20 steps?

The torch form gives the bits of torch's fused CPU optimizers, but for the scalar tail of each
tensor, which torch contracts differently. The canonical form, and that tail, stay within
16 * 2^-24 * max(|w|, sum of learning rates) per element.
"""

import numpy as np
import pytest

from ondie.kernels import OPS, get
from tests.numerics.harness import compiled, same_bits, values
from tests.numerics.test_updates import BASE

torch = pytest.importorskip("torch", reason="torch is not installed")

STEPS = 20
VECTOR = 16  # torch's widest vector; elements past the last whole one are its scalar tail
EXTRAS = {
    "sgd": [{}, {"weight_decay": 0.01}, {"maximize": True, "weight_decay": 0.1}],
    "momentum": [{}, {"weight_decay": 0.01, "dampening": 0.3}, {"maximize": True}],
    "nesterov": [{}, {"weight_decay": 0.01}, {"maximize": True}],
    "adam": [{}, {"weight_decay": 0.01, "maximize": True}, {"beta1": 0.001}, {"beta1": 0.5}],
    "adamw": [{"weight_decay": 0.01}, {"maximize": True}, {"beta1": 0.4, "beta2": 0.9}],
    "adagrad": [{}, {"weight_decay": 0.01, "lr_decay": 0.05}, {"maximize": True}],
}
CASES = [(op, extra) for op in OPS for extra in EXTRAS[op]]


def optimizer(op, parameter, hyper, fused):
    """torch's optimizer for one of our operations; foreach where not fused."""
    h = dict(hyper)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad}
    if op.startswith("adam"):
        h["betas"] = (h.pop("beta1"), h.pop("beta2"))
        h.setdefault("weight_decay", 0.0)
    if op == "nesterov":
        h["nesterov"] = True
    extra = {"fused": True} if fused else {"foreach": True}
    return kind.get(op, torch.optim.SGD)([parameter], **h, **extra)


def run_torch(op, hyper, w0, gradients, fused):
    """Weights and optimizer states after every step."""
    parameter = torch.tensor(w0.copy(), requires_grad=True)
    opt = optimizer(op, parameter, hyper, fused)
    history = []
    for g in gradients:
        parameter.grad = torch.tensor(g)
        opt.step()
        state = opt.state[parameter]
        names = ("momentum_buffer", "exp_avg", "exp_avg_sq", "sum")
        arrays = [parameter.detach(), *(state[k] for k in names if state.get(k) is not None)]
        history.append([a.numpy().copy() for a in arrays])
    return history


def run_ours(kernel, hyper, w0, gradients):
    arrays = [w0.copy(), *(np.zeros_like(w0) for _ in kernel.states)]
    history = []
    for step, g in enumerate(gradients, start=1):
        kernel(arrays[0], g, arrays[1:], kernel.coefficients(hyper, step))
        history.append([a.copy() for a in arrays])
    return history


def problem(rng, n):
    w0 = values(rng, n, "ordinary")
    sizes = (1, 1e-3, 1e-6, 0.1)  # the bound takes an update to be about lr in size
    return w0, [values(rng, n, "ordinary") * np.float32(sizes[i % 4]) for i in range(STEPS)]


def bound(op, hyper, w):
    """Elementwise bound on the distance of two correct roundings after STEPS steps."""
    return 16 * 2.0**-24 * np.maximum(np.abs(w), hyper["lr"] * STEPS)


@pytest.mark.parametrize("op, extra", CASES)
def test_torch_form_is_exact(op, extra, rng, counts):
    """Of every backend."""
    hyper = BASE[op] | extra
    w0, gradients = problem(rng, counts(64, 4096) * VECTOR)
    theirs = run_torch(op, hyper, w0, gradients, fused=True)
    for which in (("numpy", None), *compiled()):
        kernel = get(op, form="torch", backend=which[0], isa=which[1])
        ours = run_ours(kernel, hyper, w0, gradients)
        for step, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1):
            for name, x, y in zip(("w", *kernel.states), a, b, strict=True):
                assert same_bits(x, y), f"{which}: {name} differs from torch at step {step}"


@pytest.mark.parametrize("op, extra", CASES)
def test_torch_form_tail(op, extra, rng):
    """Sizes with a tail: exact before it, within the bound in it."""
    hyper = BASE[op] | extra
    for n in (1, 7, 15, 17, 31, 100, 1007):
        w0, gradients = problem(rng, n)
        ours = run_ours(get(op, form="torch"), hyper, w0, gradients)[-1][0]
        theirs = run_torch(op, hyper, w0, gradients, fused=True)[-1][0]
        whole = n - n % VECTOR
        assert same_bits(ours[:whole], theirs[:whole])
        assert (np.abs(ours - theirs.astype(np.float64)) <= bound(op, hyper, theirs)).all()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("op, extra", CASES)
def test_canonical_form_is_near(op, extra, fused, rng, counts):
    hyper = BASE[op] | extra
    w0, gradients = problem(rng, counts(1003, 50_003))
    ours = run_ours(get(op), hyper, w0, gradients)[-1][0]
    theirs = run_torch(op, hyper, w0, gradients, fused)[-1][0]
    distance = np.abs(ours - theirs.astype(np.float64)) / bound(op, hyper, theirs)
    assert distance.max() <= 1, f"{distance.max():.2f} of the bound"
    assert not same_bits(ours, w0)


def test_denormals_are_not_flushed_by_torch_here(rng):
    """A comparison would hide a difference if torch had switched denormals off here."""
    tiny = torch.tensor([2.0**-140], dtype=torch.float32)
    assert float(tiny * 0.5) == 2.0**-141
