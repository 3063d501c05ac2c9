"""How far is what a processing element computes from the exact update, and what does it take?"""

import numpy as np
import pytest

from ondie.emu.compute import pe
from ondie.kernels import ON_DIE, get, on_die
from tests.numerics.harness import KINDS, compiled, same_bits, values

HYPER = {
    "adam_on_die": {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999},
    "adamw_on_die": {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01},
    "adagrad_on_die": {"lr": 0.1},
}


def initial(rng, kernel, n, kind):
    arrays = [values(rng, n, kind) for _ in range(2 + len(kernel.states))]
    arrays[-1] = np.abs(arrays[-1])  # v
    return arrays


@pytest.mark.parametrize("newton", [0, 1, 2, 3])
@pytest.mark.parametrize("op", ON_DIE)
@pytest.mark.parametrize("backend, isa", compiled())
def test_bits_of_definition(op, newton, backend, isa, rng):
    definition, kernel = get(op, backend="numpy"), get(op, backend=backend, isa=isa)
    for decay in (0.0, 0.05):
        hyper = HYPER[op] | {"newton": newton, "weight_decay": decay, "maximize": decay > 0}
        for step, n in enumerate((0, 1, 16, 33, 1000), start=1):
            for kind in KINDS:
                coef = kernel.coefficients(hyper, step)
                wanted = initial(rng, kernel, n, kind)
                got = [a.copy() for a in wanted]
                definition(wanted[0], wanted[1], wanted[2:], coef)
                kernel(got[0], got[1], got[2:], coef)
                assert all(same_bits(a, b) for a, b in zip(got, wanted, strict=True)), (n, kind)


@pytest.mark.parametrize("newton", [0, 1, 2, 3])
def test_the_root_is_within_its_bound_over_all_exponents(newton, counts):
    """Every exponent of a normal number, significands all over: the error repeats with every second
    exponent, and comes near its bound."""
    significands = np.arange(0, 1 << 23, counts(4099, 61), dtype=np.uint32)
    worst = 0.0
    for exponent in range(1, 255):
        x = (np.uint32(exponent << 23) | significands).view(np.float32)
        exact = 1 / np.sqrt(x.astype(np.float64))
        worst = max(worst, np.abs(on_die.numpy_isqrt(x, newton) / exact - 1).max())
    bound = on_die.BOUNDS[newton]
    assert worst <= bound
    assert worst > (0.95 * bound if newton < 3 else 1e-8)


@pytest.mark.parametrize("newton", [0, 1, 2])
def test_the_update_is_off_by_no_more_than_the_root(newton, rng, counts):
    """One step from any state whose v is a normal number: m and v are exact, and the step that w
    takes is that of the exact root, without eps, but for the bound and a few roundings."""
    n = counts(10**5, 10**6)
    kernel = get("adam_on_die")
    hyper = HYPER["adam_on_die"] | {"newton": newton}
    coef = kernel.coefficients(hyper, 7)
    m = (rng.standard_normal(n) * 10.0 ** rng.uniform(-15, 15, n)).astype(np.float32)
    v = (10.0 ** rng.uniform(-37, 37, n)).astype(np.float32)
    g = (np.sqrt(v) * rng.standard_normal(n)).astype(np.float32)
    w = np.zeros(n, np.float32)
    mine, other = (m.copy(), v.copy()), (m.copy(), v.copy())
    kernel(w, g, mine, coef)
    exact = get("adam")
    exact(np.zeros(n, np.float32), g, other, exact.coefficients(
        {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}, 7))  # fmt: skip
    assert same_bits(mine[0], other[0]) and same_bits(mine[1], other[1])
    step = float(coef[7]) * mine[0].astype(np.float64) / np.sqrt(mine[1].astype(np.float64))
    seen = np.abs(step) > 1e-35
    error = np.abs(w[seen] / step[seen] - 1)
    assert error.max() <= on_die.BOUNDS[newton] + 4 * 2.0**-24


def test_distance_after_twenty_steps(rng):
    """Median distance from the exact update in units of the last place, weights and gradients as
    large as a GPT's: about 48,000, 2,800 and 37 for 0, 1 and 2 Newton steps. A third one gains
    nothing: what is left is eps, which the die does not have."""
    n = 100_000
    start = (0.02 * rng.standard_normal(n)).astype(np.float32)
    gradients = [(1e-3 * rng.standard_normal(n)).astype(np.float32) for _ in range(20)]
    exact = get("adam")
    w, states = start.copy(), exact.zeros(n)
    hyper = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999}
    for step, g in enumerate(gradients, start=1):
        exact(w, g, states, exact.coefficients(hyper | {"eps": 1e-8}, step))
    for newton, about in enumerate((48_000, 2_800, 37, 40)):
        kernel = get("adam_on_die")
        x, states = start.copy(), kernel.zeros(n)
        for step, g in enumerate(gradients, start=1):
            kernel(x, g, states, kernel.coefficients(hyper | {"newton": newton}, step))
        ulps = np.abs(x.view(np.int32).astype(np.int64) - w.view(np.int32))
        assert np.median(ulps) == pytest.approx(about, rel=0.1)


def test_passes():
    """Adam takes five passes; weight decay in the gradient is one more."""
    names = [p.name for p in on_die.passes("adamw")]
    assert names == ["LVS", "QVS", "ISQRT", "VMUL", "LVS"]
    assert len(on_die.passes("adam")) == 5
    assert len(on_die.passes("adam", coupled_decay=True)) == 6
    assert len(on_die.passes("adamw", coupled_decay=True)) == 5
    assert pe.passes is on_die.passes
    multiplies = [sum(p.multiplies for p in on_die.passes("adam", newton=k)) for k in range(4)]
    assert multiplies == [8, 12, 15, 18]  # LVS 2 + QVS 3 + VMUL 1 + LVS 2, and the root's
