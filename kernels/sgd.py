"""Update kernels of SGD, momentum and Nesterov momentum.

This module owns the coefficients and updates of these operations; m is the momentum buffer. It does
not own unscaling and clipping (grad.py), array checks, the choice of a backend or threading
(update.py).
Source: Sutskever et al., ICML 2013, in PyTorch's convention. The torch form follows the order of
operations of torch 2.13's fused CPU SGD, which was found by experiment and is checked by a test.
torch's scalar tail (the last n % 16 elements with AVX-512, n % 8 with AVX2) combines other
multiplications and additions into FMAs, which changes a result by 1 ulp per step.

Both forms use one formula over mad(a, b, c) = a * b + c. The canonical form rounds mad twice; the
torch form rounds it once. In the first step the buffer becomes the gradient without dampening; m
must be zero before that step.
"""

from collections.abc import Mapping
from functools import partial

from .contract import Array, Definition, Mad, States
from .exact import compiled_mad, fused, rounded
from .jit import njit

PLAIN = ("lr", "weight_decay", "maximize")
MOMENTUM = ("lr", "momentum", "dampening", "weight_decay", "maximize")


def fold_sgd(values: Mapping[str, float], step: int, form: str) -> list[float]:
    """Return the coefficients of a step of SGD: lr, l2.

    ONDIE_SGD in csrc/ondie.h defines them.
    """
    sign = -1.0 if values["maximize"] else 1.0
    return [sign * values["lr"], sign * values["weight_decay"]]


def fold_momentum(values: Mapping[str, float], step: int, form: str) -> list[float]:
    """Return the coefficients of a step of momentum: lr, l2, mu, c1.

    ONDIE_MOMENTUM in csrc/ondie.h defines them. In step 1, mu is -0 to keep the sign of a zero
    gradient.
    """
    sign = -1.0 if values["maximize"] else 1.0
    mu, c1 = (-0.0, 1.0) if step == 1 else (values["momentum"], 1.0 - values["dampening"])
    return [values["lr"], sign * values["weight_decay"], mu, sign * c1]


def fold_nesterov(values: Mapping[str, float], step: int, form: str) -> list[float]:
    """Return the coefficients of a step of Nesterov momentum: lr, l2, mu, c1, look.

    ONDIE_NESTEROV in csrc/ondie.h defines them.
    """
    sign = -1.0 if values["maximize"] else 1.0
    _, l2, mu, c1 = fold_momentum(values, step, form)
    return [sign * values["lr"], l2, mu, c1, sign * values["momentum"]]


def numpy_sgd(mad: Mad, w: Array, g: Array, states: States, coef: Array) -> None:
    """Update w in place with SGD in NumPy.

    w, g: float32[n]; coef: the coefficients of `fold_sgd`.
    """
    lr, l2 = coef
    if l2 != 0:
        g = mad(w, l2, g)
    w[:] = mad(g, -lr, w)


def numpy_momentum(mad: Mad, w: Array, g: Array, states: States, coef: Array) -> None:
    """Update w and m in place with momentum in NumPy.

    w, g, m: float32[n]; coef: the coefficients of `fold_momentum`.
    """
    (m,) = states
    lr, l2, mu, c1 = coef
    if l2 != 0:
        g = mad(w, l2, g)
    m[:] = mad(c1, g, mu * m)
    w[:] = mad(m, -lr, w)


def numpy_nesterov(mad: Mad, w: Array, g: Array, states: States, coef: Array) -> None:
    """Update w and m in place with Nesterov momentum in NumPy.

    w, g, m: float32[n]; coef: the coefficients of `fold_nesterov`.
    """
    (m,) = states
    lr, l2, mu, c1, look = coef
    if l2 != 0:
        g = mad(w, l2, g)
    m[:] = mad(c1, g, mu * m)
    w[:] = mad(mad(m, look, g), -lr, w)


@njit(forceinline=True)
def sgd_loop(w, g, coef, once):
    """Update w in place with SGD; ``once`` = True selects the torch form."""
    lr, l2 = coef[0], coef[1]
    with_l2 = l2 != 0
    for i in range(w.size):
        gi = compiled_mad(w[i], l2, g[i], once) if with_l2 else g[i]
        w[i] = compiled_mad(gi, -lr, w[i], once)


@njit(forceinline=True)
def momentum_loop(w, g, m, coef, once, nesterov):
    """Update w and m in place with momentum, or with Nesterov momentum if ``nesterov`` is True;
    ``once`` = True selects the torch form."""
    lr, l2, mu, c1 = coef[0], coef[1], coef[2], coef[3]
    look = coef[4] if nesterov else coef[3]
    with_l2 = l2 != 0
    for i in range(w.size):
        gi = compiled_mad(w[i], l2, g[i], once) if with_l2 else g[i]
        mi = compiled_mad(c1, gi, mu * m[i], once)
        m[i] = mi
        di = compiled_mad(mi, look, gi, once) if nesterov else mi
        w[i] = compiled_mad(di, -lr, w[i], once)


@njit
def numba_sgd_canonical(w, g, coef):
    """Update w in place with SGD in the canonical form."""
    sgd_loop(w, g, coef, False)


@njit
def numba_sgd_torch(w, g, coef):
    """Update w in place with SGD in the torch form."""
    sgd_loop(w, g, coef, True)


@njit
def numba_momentum_canonical(w, g, m, coef):
    """Update w and m in place with momentum in the canonical form."""
    momentum_loop(w, g, m, coef, False, False)


@njit
def numba_momentum_torch(w, g, m, coef):
    """Update w and m in place with momentum in the torch form."""
    momentum_loop(w, g, m, coef, True, False)


@njit
def numba_nesterov_canonical(w, g, m, coef):
    """Update w and m in place with Nesterov momentum in the canonical form."""
    momentum_loop(w, g, m, coef, False, True)


@njit
def numba_nesterov_torch(w, g, m, coef):
    """Update w and m in place with Nesterov momentum in the torch form."""
    momentum_loop(w, g, m, coef, True, True)


DEFINITIONS = {
    "sgd": Definition(
        states=(),
        takes=PLAIN,
        fold=fold_sgd,
        coefs=2,
        numpy={"canonical": partial(numpy_sgd, rounded), "torch": partial(numpy_sgd, fused)},
        numba={"canonical": numba_sgd_canonical, "torch": numba_sgd_torch},
        c="sgd",
    ),
    "momentum": Definition(
        states=("m",),
        takes=MOMENTUM,
        fold=fold_momentum,
        coefs=4,
        numpy={
            "canonical": partial(numpy_momentum, rounded),
            "torch": partial(numpy_momentum, fused),
        },
        numba={"canonical": numba_momentum_canonical, "torch": numba_momentum_torch},
        c="momentum",
    ),
    "nesterov": Definition(
        states=("m",),
        takes=MOMENTUM,
        fold=fold_nesterov,
        coefs=5,
        numpy={
            "canonical": partial(numpy_nesterov, rounded),
            "torch": partial(numpy_nesterov, fused),
        },
        numba={"canonical": numba_nesterov_canonical, "torch": numba_nesterov_torch},
        c="nesterov",
    ),
}
