"""Update kernels of Adam and AdamW.

This module owns the coefficients and the update of Adam and AdamW; m and v are the running moments
of the gradient. It does not own unscaling and clipping (grad.py), array checks, the choice of a
backend or threading (update.py).
Source: Kingma & Ba, ICLR 2015; Loshchilov & Hutter, ICLR 2019. The torch form follows the order of
operations of torch 2.13's fused CPU Adam, which was found by experiment and is checked by a test.
torch's scalar tail (the last n % 16 elements with AVX-512, n % 8 with AVX2) combines other
multiplications and additions into FMAs, which changes a result by 1 ulp per step.
"""

import math
from collections.abc import Mapping

import numpy as np

from .contract import Array, Definition, States
from .exact import fma, fused
from .jit import njit

TAKES = ("lr", "beta1", "beta2", "eps", "weight_decay", "maximize")


def fold(values: Mapping[str, float], step: int, form: str, decoupled: bool) -> list[float]:
    """Return the coefficients of a step of Adam, or of AdamW if ``decoupled`` is True.

    The coefficients are beta1, c1, beta2, c2, eps, l2, decay, step, root and sign. ONDIE_ADAM in
    csrc/ondie.h defines them.
    """
    sign = -1.0 if values["maximize"] else 1.0
    l2 = 0.0 if decoupled else values["weight_decay"]
    decay = 1.0 - values["lr"] * values["weight_decay"] if decoupled else 1.0
    step_size = values["lr"] / (1.0 - values["beta1"] ** step)
    root = math.sqrt(1.0 - values["beta2"] ** step)
    c1, c2 = 1.0 - values["beta1"], 1.0 - values["beta2"]
    if form == "torch":
        rest = [l2, decay, -step_size, root, sign]
    else:
        c1 *= sign
        rest = [sign * l2, decay, step_size, 1.0 / root, sign]
    return [values["beta1"], c1, values["beta2"], c2, values["eps"], *rest]


def numpy_canonical(w: Array, g: Array, states: States, coef: Array) -> None:
    """Update w, m and v in place with Adam in the canonical form, in NumPy.

    w, g, m, v: float32[n]; coef: the coefficients of `fold`.
    """
    m, v = states
    beta1, c1, beta2, c2, eps, l2, decay, step, root, _ = coef
    if l2 != 0:
        g = g + l2 * w
    m[:] = beta1 * m + c1 * g
    v[:] = beta2 * v + (c2 * g) * g
    w[:] = decay * w - step * (m / (np.sqrt(v) * root + eps))


def numpy_torch(w: Array, g: Array, states: States, coef: Array) -> None:
    """Update w, m and v in place with Adam in the torch form. The arguments are those of
    `numpy_canonical`."""
    m, v = states
    _, c1, beta2, c2, eps, l2, decay, step, root, sign = coef
    g = sign * g
    if l2 != 0:
        g = fused(w, l2, g)
    m[:] = fused(g - m, c1, m) if c1 < 0.5 else fused(m - g, np.float32(1) - c1, g)
    v[:] = fused(c2 * g, g, beta2 * v)
    w[:] = decay * w + (step * m) / (np.sqrt(v) / root + eps)


@njit
def numba_canonical(w, g, m, v, coef):
    """Update w, m and v in place with Adam in the canonical form."""
    beta1, c1, beta2, c2, eps = coef[0], coef[1], coef[2], coef[3], coef[4]
    l2, decay, step, root = coef[5], coef[6], coef[7], coef[8]
    with_l2 = l2 != 0
    for i in range(w.size):
        gi = g[i] + l2 * w[i] if with_l2 else g[i]
        mi = beta1 * m[i] + c1 * gi
        vi = beta2 * v[i] + (c2 * gi) * gi
        m[i] = mi
        v[i] = vi
        w[i] = decay * w[i] - step * (mi / (np.sqrt(vi) * root + eps))


@njit
def numba_torch(w, g, m, v, coef):
    """Update w, m and v in place with Adam in the torch form."""
    c1, beta2, c2, eps = coef[1], coef[2], coef[3], coef[4]
    l2, decay, step, root, sign = coef[5], coef[6], coef[7], coef[8], coef[9]
    with_l2 = l2 != 0
    from_m = c1 < np.float32(0.5)
    rest = np.float32(1) - c1
    for i in range(w.size):
        gi = sign * g[i]
        if with_l2:
            gi = fma(w[i], l2, gi)
        mi = fma(gi - m[i], c1, m[i]) if from_m else fma(m[i] - gi, rest, gi)
        vi = fma(c2 * gi, gi, beta2 * v[i])
        m[i] = mi
        v[i] = vi
        w[i] = decay * w[i] + (step * mi) / (np.sqrt(vi) / root + eps)


def _definition(decoupled: bool) -> Definition:
    """Return the definition of Adam, or of AdamW if ``decoupled`` is True."""
    return Definition(
        states=("m", "v"),
        takes=TAKES,
        fold=lambda values, step, form: fold(values, step, form, decoupled),
        coefs=10,
        numpy={"canonical": numpy_canonical, "torch": numpy_torch},
        numba={"canonical": numba_canonical, "torch": numba_torch},
        c="adam",
    )


DEFINITIONS = {"adam": _definition(decoupled=False), "adamw": _definition(decoupled=True)}
