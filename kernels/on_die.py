"""Adam and AdaGrad as OptimStore's on-die processing elements compute them, and their cycles.

This module owns the vector passes of each operation, their operands and their cycles. It also owns
the updates whose passes differ from the exact definition: they use the fast inverse square root
instead of square root and division. It does not own the time at which a die computes, or the
transfer of the operands.
Source: OptimStore (HPCA 2023): LVS v1 <- a v1 + b v2, QVS v1 <- a v1 + b v2^2, ISQRT, VMUL. A pass
processes one value per cycle. The host folds all scalars, and the die has no divider. Fast inverse
square root: Lomont, "Fast inverse square root", 2003.

The paper does not give the number of Newton steps. BOUNDS gives the maximum relative error of ISQRT
for normal numbers, indexed by the number of Newton steps; a test checks it over all exponents. The
error for denormals has no bound, because below 2^-126 the result is the root of a nearby number.
There is no eps. For v = 0 the inverse root is 2e19 (1.3e19 without a Newton step, 4.5e19 with
three), so a weight whose gradients were all 0 does not change. beta2 = 0 is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from . import adam
from .contract import Array, Definition, States
from .errors import KernelError
from .exact import bits, floating
from .jit import njit

MAGIC = 0x5F3759DF
BOUNDS = (3.44e-2, 1.76e-3, 4.8e-6, 3e-7)


@dataclass(frozen=True)
class Pass:
    """One vector pass of a processing element: the arithmetic operations per value, and the numbers
    of values that the pass reads and writes."""

    name: str
    adds: int
    multiplies: int
    reads: int
    writes: int = 1


LVS = Pass("LVS", adds=1, multiplies=2, reads=2)  # v1 <- a v1 + b v2
QVS = Pass("QVS", adds=1, multiplies=3, reads=2)  # v1 <- a v1 + b v2^2
VMUL = Pass("VMUL", adds=0, multiplies=1, reads=2)


def isqrt_pass(newton: int) -> Pass:
    """Return the pass of the inverse square root with ``newton`` Newton steps.

    The pass takes a shift and a subtraction, three multiplications and one subtraction per Newton
    step, and one multiplication by 0.5 if there is any Newton step.
    """
    return Pass("ISQRT", adds=1 + newton, multiplies=3 * newton + (newton > 0), reads=1)


ISQRT = isqrt_pass(1)
PASSES: dict[str, tuple[Pass, ...]] = {
    "sgd": (LVS,),
    "momentum": (LVS, LVS),
    "nesterov": (LVS, LVS, LVS),
    "adam": (LVS, QVS, ISQRT, VMUL, LVS),
    "adamw": (LVS, QVS, ISQRT, VMUL, LVS),  # coefficient a of the last pass is the decoupled decay
    "adagrad": (QVS, ISQRT, VMUL, LVS),
}
COUPLED_DECAY = LVS
"""Pass that adds weight decay to the gradient. It precedes the passes of PASSES in any operation
except adamw if weight decay is used."""
OPERANDS: dict[str, tuple[tuple[str, str], ...]] = {
    "sgd": (("w", "g"),),
    "momentum": (("m", "g"), ("w", "m")),
    "nesterov": (("m", "g"), ("g", "m"), ("w", "g")),
    "adam": (("m", "g"), ("v", "g"), ("t", "v"), ("t", "m"), ("w", "t")),
    "adamw": (("m", "g"), ("v", "g"), ("t", "v"), ("t", "m"), ("w", "t")),
    "adagrad": (("v", "g"), ("t", "v"), ("t", "g"), ("w", "t")),
}
"""Operands (v1, v2) of each pass, by operation.

v1 is the output vector of the pass, v2 its second input vector. g is the gradient, t a temporary
vector.
"""


def passes(op: str, coupled_decay: bool = False, newton: int = 1) -> tuple[Pass, ...]:
    """Return the vector passes of an operation, in order.

    coupled_decay: whether weight decay is added to the gradient (ignored for adamw). newton: number
    of Newton steps of the inverse square root.
    """
    found = tuple(isqrt_pass(newton) if p.name == "ISQRT" else p for p in PASSES[op])
    if coupled_decay and op != "adamw":
        return (COUPLED_DECAY, *found)
    return found


def operands(op: str, coupled_decay: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the operands (v1, v2) of the :func:`passes` of an operation, in the same order."""
    if coupled_decay and op != "adamw":
        return (("g", "w"), *OPERANDS[op])
    return OPERANDS[op]


def numpy_isqrt(x: Array, newton: int) -> Array:
    """Return the fast inverse square root of each element of float32[n] after ``newton`` Newton
    steps."""
    y = (np.uint32(MAGIC) - (x.view(np.uint32) >> 1)).view(np.float32)
    half = np.float32(0.5) * x
    for _ in range(newton):
        y = y * (np.float32(1.5) - (half * y) * y)
    return y


@njit(forceinline=True)
def numba_isqrt(x, newton):
    """Return the fast inverse square root of a float32 scalar after ``newton`` Newton steps."""
    y = floating(np.int32(MAGIC - (np.int64(bits(x)) & 0xFFFFFFFF) // 2))
    half = np.float32(0.5) * x
    for _ in range(newton):
        y = y * (np.float32(1.5) - (half * y) * y)
    return y


def fold_adam(values: Mapping[str, float], step: int, decoupled: bool) -> list[float]:
    """Return the coefficients of a step of Adam on the die, or of AdamW if ``decoupled`` is True:
    beta1, c1, beta2, c2, newton, l2, decay, step.

    ONDIE_DIE_ADAM in csrc/ondie.h defines them. Raises KernelError for beta2 = 0.
    """
    beta1, c1, beta2, c2, _, l2, decay, size, _, _ = adam.fold(
        {**values, "eps": 0.0}, step, "canonical", decoupled
    )
    if values["beta2"] == 0:
        raise KernelError(
            "beta2 = 0.0: must be above 0, because the die would divide by a gradient of 0"
        )
    root = math.sqrt(1.0 - values["beta2"] ** step)
    return [beta1, c1, beta2, c2, values["newton"], l2, decay, -size * root]


def fold_adagrad(values: Mapping[str, float], step: int) -> list[float]:
    """Return the coefficients of a step of AdaGrad on the die: lr, l2, newton. ONDIE_DIE_ADAGRAD in
    csrc/ondie.h defines them."""
    sign = -1.0 if values["maximize"] else 1.0
    lr = sign * values["lr"] / (1.0 + (step - 1) * values["lr_decay"])
    return [-lr, sign * values["weight_decay"], values["newton"]]


def numpy_adam(w: Array, g: Array, states: States, coef: Array) -> None:
    """Update w, m and v in place with Adam as the die computes it, in NumPy.

    w, g, m, v: float32[n]; coef: the coefficients of `fold_adam`.
    """
    m, v = states
    beta1, c1, beta2, c2, newton, l2, decay, step = coef
    if l2 != 0:
        g = np.float32(1) * g + l2 * w
    m[:] = beta1 * m + c1 * g
    v[:] = beta2 * v + (c2 * g) * g
    w[:] = decay * w + step * (m * numpy_isqrt(v, int(newton)))


def numpy_adagrad(w: Array, g: Array, states: States, coef: Array) -> None:
    """Update w and v in place with AdaGrad as the die computes it, in NumPy.

    w, g, v: float32[n]; coef: the coefficients of `fold_adagrad`.
    """
    (v,) = states
    lr, l2, newton = coef
    if l2 != 0:
        g = np.float32(1) * g + l2 * w
    v[:] = v + g * g
    w[:] = w + lr * (g * numpy_isqrt(v, int(newton)))


@njit
def numba_adam(w, g, m, v, coef):
    """Update w, m and v in place with Adam as the die computes it."""
    beta1, c1, beta2, c2, newton = coef[0], coef[1], coef[2], coef[3], int(coef[4])
    l2, decay, step = coef[5], coef[6], coef[7]
    for i in range(w.size):
        gi = g[i] + l2 * w[i] if l2 != 0 else g[i]
        mi = beta1 * m[i] + c1 * gi
        vi = beta2 * v[i] + (c2 * gi) * gi
        m[i] = mi
        v[i] = vi
        w[i] = decay * w[i] + step * (mi * numba_isqrt(vi, newton))


@njit
def numba_adagrad(w, g, v, coef):
    """Update w and v in place with AdaGrad as the die computes it."""
    lr, l2, newton = coef[0], coef[1], int(coef[2])
    for i in range(w.size):
        gi = g[i] + l2 * w[i] if l2 != 0 else g[i]
        vi = v[i] + gi * gi
        v[i] = vi
        w[i] = w[i] + lr * (gi * numba_isqrt(vi, newton))


def _adam(decoupled: bool) -> Definition:
    """Return the definition of Adam on the die, or of AdamW if ``decoupled`` is True."""
    return Definition(
        states=("m", "v"),
        takes=("lr", "beta1", "beta2", "weight_decay", "maximize", "newton"),
        fold=lambda values, step, form: fold_adam(values, step, decoupled),
        coefs=8,
        numpy={"canonical": numpy_adam},
        numba={"canonical": numba_adam},
        c="die_adam",
    )


DEFINITIONS = {
    "adam_on_die": _adam(decoupled=False),
    "adamw_on_die": _adam(decoupled=True),
    "adagrad_on_die": Definition(
        states=("v",),
        takes=("lr", "weight_decay", "lr_decay", "maximize", "newton"),
        fold=lambda h, step, form: fold_adagrad(h, step),
        coefs=3,
        numpy={"canonical": numpy_adagrad},
        numba={"canonical": numba_adagrad},
        c="die_adagrad",
    ),
}
