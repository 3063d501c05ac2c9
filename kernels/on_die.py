"""Adam and AdaGrad as processing elements on the flash dies compute them, and their cycles.

Owns the passes of each operation, their operands, the cycles they take, and the update of the
passes that differ from the exact definition: the fast inverse square root in the place of square
root and division. Does not own when a die computes, or how its passes get their operands.
Source: OptimStore (HPCA 2023): LVS v1 <- a v1 + b v2, QVS v1 <- a v1 + b v2^2, ISQRT, VMUL; a
value per cycle and pass; all scalars folded by the host, no division on the die. Fast inverse
square root: Lomont, "Fast inverse square root", 2003. How many Newton steps is not published.

Relative error of ISQRT, for any normal number: at most BOUNDS by the number of Newton steps (held
by a test over all exponents). For denormals it has no bound: below 2^-126 the root is that of a
number near it. There is no eps: where v is 0 the root is 2e19 (1.3e19 without a Newton step, 4.5e19
with three), so that a weight whose gradients were all 0 stays; beta2 = 0 is refused.
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
    """One vector pass: additions and multiplications per value, values read and written."""

    name: str
    adds: int
    multiplies: int
    reads: int
    writes: int = 1


LVS = Pass("LVS", adds=1, multiplies=2, reads=2)  # v1 <- a v1 + b v2
QVS = Pass("QVS", adds=1, multiplies=3, reads=2)  # v1 <- a v1 + b v2^2
VMUL = Pass("VMUL", adds=0, multiplies=1, reads=2)


def isqrt_pass(newton: int) -> Pass:
    """The pass of the inverse square root: a shift and a subtraction, then for each Newton step
    three multiplications and a subtraction, and once a half of the number."""
    return Pass("ISQRT", adds=1 + newton, multiplies=3 * newton + (newton > 0), reads=1)


ISQRT = isqrt_pass(1)
PASSES: dict[str, tuple[Pass, ...]] = {
    "sgd": (LVS,),
    "momentum": (LVS, LVS),
    "nesterov": (LVS, LVS, LVS),
    "adam": (LVS, QVS, ISQRT, VMUL, LVS),
    "adamw": (LVS, QVS, ISQRT, VMUL, LVS),  # decoupled decay is the last pass's coefficient a
    "adagrad": (QVS, ISQRT, VMUL, LVS),
}
COUPLED_DECAY = LVS
"""Weight decay added to the gradient (all but adamw) takes a pass of its own."""
OPERANDS: dict[str, tuple[tuple[str, str], ...]] = {
    "sgd": (("w", "g"),),
    "momentum": (("m", "g"), ("w", "m")),
    "nesterov": (("m", "g"), ("g", "m"), ("w", "g")),
    "adam": (("m", "g"), ("v", "g"), ("t", "v"), ("t", "m"), ("w", "t")),
    "adamw": (("m", "g"), ("v", "g"), ("t", "v"), ("t", "m"), ("w", "t")),
    "adagrad": (("v", "g"), ("t", "v"), ("t", "g"), ("w", "t")),
}
"""Of each pass: the vector that it changes or makes (v1), and the other one that it reads (v2). g
is the gradient, t what is made on the way."""


def passes(op: str, coupled_decay: bool = False, newton: int = 1) -> tuple[Pass, ...]:
    """The passes of an operation, with weight decay added to the gradient or not."""
    found = tuple(isqrt_pass(newton) if p.name == "ISQRT" else p for p in PASSES[op])
    if coupled_decay and op != "adamw":
        return (COUPLED_DECAY, *found)
    return found


def operands(op: str, coupled_decay: bool = False) -> tuple[tuple[str, str], ...]:
    """(v1, v2) of each of the :func:`passes`, in the same order."""
    if coupled_decay and op != "adamw":
        return (("g", "w"), *OPERANDS[op])
    return OPERANDS[op]


def cycles(op: str, n: int, coupled_decay: bool = False) -> dict[str, int]:
    """Cycles of each pass over ``n`` values, by its number and name: one value per cycle, the
    Newton steps of ISQRT in a pipeline."""
    return {f"{i} {p.name}": n for i, p in enumerate(passes(op, coupled_decay), start=1)}


def numpy_isqrt(x: Array, newton: int) -> Array:
    """The fast inverse square root of float32[n]."""
    y = (np.uint32(MAGIC) - (x.view(np.uint32) >> 1)).view(np.float32)
    half = np.float32(0.5) * x
    for _ in range(newton):
        y = y * (np.float32(1.5) - (half * y) * y)
    return y


@njit(forceinline=True)
def numba_isqrt(x, newton):
    y = floating(np.int32(MAGIC - (np.int64(bits(x)) & 0xFFFFFFFF) // 2))
    half = np.float32(0.5) * x
    for _ in range(newton):
        y = y * (np.float32(1.5) - (half * y) * y)
    return y


def fold_adam(h: Mapping[str, float], step: int, decoupled: bool) -> list[float]:
    """beta1, c1, beta2, c2, newton, l2, decay, step: see ONDIE_DIE_ADAM in csrc/ondie.h."""
    beta1, c1, beta2, c2, _, l2, decay, size, _, _ = adam.fold(
        {**h, "eps": 0.0}, step, "canonical", decoupled
    )
    if h["beta2"] == 0:
        raise KernelError("on the die beta2 = 0.0 would divide by a gradient of 0: want more")
    root = math.sqrt(1.0 - h["beta2"] ** step)
    return [beta1, c1, beta2, c2, h["newton"], l2, decay, -size * root]


def fold_adagrad(h: Mapping[str, float], step: int) -> list[float]:
    """lr, l2, newton: see ONDIE_DIE_ADAGRAD in csrc/ondie.h."""
    sign = -1.0 if h["maximize"] else 1.0
    lr = sign * h["lr"] / (1.0 + (step - 1) * h["lr_decay"])
    return [-lr, sign * h["weight_decay"], h["newton"]]


def numpy_adam(w: Array, g: Array, states: States, c: Array) -> None:
    m, v = states
    beta1, c1, beta2, c2, newton, l2, decay, step = c
    if l2 != 0:
        g = np.float32(1) * g + l2 * w
    m[:] = beta1 * m + c1 * g
    v[:] = beta2 * v + (c2 * g) * g
    w[:] = decay * w + step * (m * numpy_isqrt(v, int(newton)))


def numpy_adagrad(w: Array, g: Array, states: States, c: Array) -> None:
    (v,) = states
    lr, l2, newton = c
    if l2 != 0:
        g = np.float32(1) * g + l2 * w
    v[:] = v + g * g
    w[:] = w + lr * (g * numpy_isqrt(v, int(newton)))


@njit
def numba_adam(w, g, m, v, c):
    beta1, c1, beta2, c2, newton = c[0], c[1], c[2], c[3], int(c[4])
    l2, decay, step = c[5], c[6], c[7]
    for i in range(w.size):
        gi = g[i] + l2 * w[i] if l2 != 0 else g[i]
        mi = beta1 * m[i] + c1 * gi
        vi = beta2 * v[i] + (c2 * gi) * gi
        m[i] = mi
        v[i] = vi
        w[i] = decay * w[i] + step * (mi * numba_isqrt(vi, newton))


@njit
def numba_adagrad(w, g, v, c):
    lr, l2, newton = c[0], c[1], int(c[2])
    for i in range(w.size):
        gi = g[i] + l2 * w[i] if l2 != 0 else g[i]
        vi = v[i] + gi * gi
        v[i] = vi
        w[i] = w[i] + lr * (gi * numba_isqrt(vi, newton))


def _adam(decoupled: bool) -> Definition:
    return Definition(
        states=("m", "v"),
        takes=("lr", "beta1", "beta2", "weight_decay", "maximize", "newton"),
        fold=lambda h, step, form: fold_adam(h, step, decoupled),
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
