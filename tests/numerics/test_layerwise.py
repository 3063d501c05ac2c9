"""Are LAMB and Adafactor what their papers say, within rounding?"""

import numpy as np
import pytest

from ondie.kernels import KernelError
from ondie.kernels.layerwise import adafactor, lamb

LAMB = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01}


def test_lamb_against_the_paper_in_double_precision(rng):
    n = 5000
    w, m, v = (rng.standard_normal(n).astype("f4"), *(np.zeros(n, np.float32) for _ in range(2)))
    x, mm, vv = w.astype("f8"), np.zeros(n), np.zeros(n)
    for step in range(1, 21):
        g = (1e-2 * rng.standard_normal(n)).astype("f4")
        ratio = lamb(w, g, m, v, LAMB, step)
        mm = 0.9 * mm + 0.1 * g.astype("f8")
        vv = 0.999 * vv + 0.001 * g.astype("f8") ** 2
        r = (mm / (1 - 0.9**step)) / (np.sqrt(vv / (1 - 0.999**step)) + 1e-6)
        u = r + 0.01 * x
        trust = min(np.linalg.norm(x), 10) / np.linalg.norm(u)
        assert ratio == pytest.approx(trust, rel=1e-5)
        x = x - 0.01 * trust * u
    np.testing.assert_allclose(w, x, atol=2e-6)


def test_lambs_ratio_is_one_where_a_norm_is_zero():
    """Weights of zero, and a gradient of zero: LAMB steps as Adam does, or not at all."""
    z, one = np.zeros(16, np.float32), np.ones(16, np.float32)
    w = z.copy()
    assert lamb(w, one, z.copy(), z.copy(), LAMB | {"weight_decay": 0}, 1) == 1
    assert np.allclose(w, -0.01, rtol=1e-4)
    w = one.copy()
    assert lamb(w, z, z.copy(), z.copy(), LAMB | {"weight_decay": 0}, 1) == 1
    assert (w == 1).all()


def test_a_step_of_lamb_is_as_long_as_the_weights(rng):
    """Whatever the gradient's size: |change| = lr min(|w|, trust_max)."""
    for scale in (1e-6, 1.0, 1e6):
        w = (0.01 * rng.standard_normal(4096)).astype("f4")
        before = w.astype("f8")
        g = (scale * rng.standard_normal(4096)).astype("f4")
        states = [np.zeros(4096, np.float32) for _ in range(2)]
        lamb(w, g, *states, LAMB | {"weight_decay": 0}, 1)
        change = np.linalg.norm(w - before)
        assert change == pytest.approx(0.01 * np.linalg.norm(before), rel=1e-4)


def test_adafactor_against_the_paper_in_double_precision(rng):
    shape = (40, 70)
    w = rng.standard_normal(shape).astype("f4")
    rows, columns = np.zeros(40, np.float32), np.zeros(70, np.float32)
    x, r, c = w.astype("f8"), np.zeros(40), np.zeros(70)
    h = {"lr": 0.02, "weight_decay": 0.1}
    for step in range(1, 21):
        g = (10.0 ** rng.uniform(-3, 0) * rng.standard_normal(shape)).astype("f4")
        size = adafactor(w, g, rows, columns, h, step)
        d = 1 - step**-0.8
        square = g.astype("f8") ** 2 + 1e-30
        r = d * r + (1 - d) * square.mean(1)
        c = d * c + (1 - d) * square.mean(0)
        u = g / np.sqrt(np.outer(r, c) / r.mean())
        u /= max(1, np.sqrt((u**2).mean()))
        rho = max(1e-3, np.sqrt((x**2).mean())) * 0.02
        assert size == pytest.approx(rho, rel=1e-5)
        x = (1 - 0.02 * 0.1) * x - rho * u
    np.testing.assert_allclose(w, x, atol=3e-6)


def test_a_matrix_of_rank_one_is_exact(rng):
    """Where g^2 is an outer product its factors hold all of it: the first step is the sign."""
    a, b = rng.uniform(0.5, 2, 30), rng.uniform(0.5, 2, 20)
    sign = np.where(rng.random((30, 20)) < 0.5, -1, 1)
    g = (np.sqrt(np.outer(a, b)) * sign).astype("f4")
    w = np.ones((30, 20), np.float32)
    adafactor(w, g, np.zeros(30, np.float32), np.zeros(20, np.float32), {"lr": 0.1}, 1)
    np.testing.assert_allclose(w, 1 - 0.1 * sign, rtol=1e-5)


def test_refused(rng):
    x = np.zeros(8, np.float32)
    with pytest.raises(KernelError, match="m has 7 elements, want 8"):
        lamb(x, x.copy(), x[:7].copy(), x.copy(), LAMB, 1)
    with pytest.raises(KernelError, match="step = 0"):
        lamb(x, x.copy(), x.copy(), x.copy(), LAMB, 0)
    with pytest.raises(KernelError, match="'beta1' is missing"):
        lamb(x, x.copy(), x.copy(), x.copy(), {"lr": 1}, 1)
    with pytest.raises(KernelError, match="share memory"):
        lamb(x, x, x.copy(), x.copy(), LAMB, 1)
    w = np.zeros((4, 5), np.float32)
    states = [np.zeros(4, np.float32), np.zeros(5, np.float32)]
    for change in ({"clip": 0}, {"eps1": 1e-50}):
        with pytest.raises(KernelError, match="a number above 0"):
            adafactor(w, w.copy(), *states, {"lr": 1} | change, 1)
    frozen = np.zeros(5, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(KernelError, match="columns is read-only"):
        adafactor(w, np.ones_like(w), states[0], frozen, {"lr": 1}, 1)
    assert not w.any() and not states[0].any()
    assert adafactor(w[:0], w[:0].copy(), states[0][:0], states[1], {"lr": 1}, 1) == 0
    with pytest.raises(KernelError, match=r"rows \(5,\)"):
        adafactor(w, w.copy(), np.zeros(5, np.float32), np.zeros(5, np.float32), {"lr": 1}, 1)
