"""Update kernels of AdaGrad.

This module owns the coefficients and the update of AdaGrad; v is the sum of squared gradients. It
does not own the initial value of v, array checks, the choice of a backend or threading.
Source: Duchi, Hazan & Singer, JMLR 12, 2011. The torch form follows the order of operations of
torch 2.13's fused CPU Adagrad, which was found by experiment and is checked by a test. torch's
scalar tail (the last n % 16 elements with AVX-512, n % 8 with AVX2) may combine other
multiplications and additions into FMAs, which changes a result by 1 ulp per step.

Both forms use one formula over mad(a, b, c) = a * b + c. The canonical form rounds mad twice; the
torch form rounds it once.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from .contract import Array, Definition, Mad, States
from .exact import compiled_mad, fused, rounded
from .jit import njit

TAKES = ("lr", "eps", "lr_decay", "weight_decay", "maximize")


def fold(values: Mapping[str, float], step: int, form: str) -> list[float]:
    """Return the coefficients of an AdaGrad step: lr, l2, eps. ONDIE_ADAGRAD in csrc/ondie.h
    defines them."""
    sign = -1.0 if values["maximize"] else 1.0
    lr = values["lr"] / (1.0 + (step - 1) * values["lr_decay"])
    return [sign * lr, sign * values["weight_decay"], values["eps"]]


def numpy_adagrad(mad: Mad, w: Array, g: Array, states: States, coef: Array) -> None:
    """Update w and v in place with AdaGrad in NumPy.

    w, g, v: float32[n]; coef: the coefficients of `fold`.
    """
    (v,) = states
    lr, l2, eps = coef
    if l2 != 0:
        g = mad(w, l2, g)
    v[:] = mad(g, g, v)
    w[:] = w - (lr * g) / (np.sqrt(v) + eps)


@njit(forceinline=True)
def adagrad_loop(w, g, v, coef, once):
    """Update w and v in place with AdaGrad, in the torch form if ``once`` is True, else in the
    canonical form."""
    lr, l2, eps = coef[0], coef[1], coef[2]
    with_l2 = l2 != 0
    for i in range(w.size):
        gi = compiled_mad(w[i], l2, g[i], once) if with_l2 else g[i]
        vi = compiled_mad(gi, gi, v[i], once)
        v[i] = vi
        w[i] = w[i] - (lr * gi) / (np.sqrt(vi) + eps)


@njit
def numba_canonical(w, g, v, coef):
    """Update w and v in place with AdaGrad in the canonical form."""
    adagrad_loop(w, g, v, coef, False)


@njit
def numba_torch(w, g, v, coef):
    """Update w and v in place with AdaGrad in the torch form."""
    adagrad_loop(w, g, v, coef, True)


DEFINITIONS = {
    "adagrad": Definition(
        states=("v",),
        takes=TAKES,
        fold=fold,
        coefs=3,
        numpy={
            "canonical": partial(numpy_adagrad, rounded),
            "torch": partial(numpy_adagrad, fused),
        },
        numba={"canonical": numba_canonical, "torch": numba_torch},
        c="adagrad",
    )
}
