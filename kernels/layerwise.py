"""LAMB and Adafactor: updates that need norms or means of a whole tensor.

This module owns their definitions in NumPy with a fixed order of operations. Every element-wise
operation is rounded separately to float32. Sums are in float64 in a fixed order (grad.norm, or
NumPy's order along an axis). Scalars are folded in double precision and rounded once. There are no
Numba or C implementations.
2020, algorithm 2; Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory
Cost", ICML 2018, algorithms 4 and 5, without momentum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from . import hyper
from .arrays import flat
from .contract import Array
from .errors import KernelError
from .grad import norm

LAMB = ("lr", "beta1", "beta2", "eps", "weight_decay", "trust_max")
ADAFACTOR = ("lr", "decay_rate", "eps1", "eps2", "clip", "weight_decay")
F32 = np.float32


def lamb(
    w: Array, g: Array, m: Array, v: Array, hyper_parameters: Mapping[str, float], step: int
) -> float:
    """Apply one step of LAMB to one tensor in place and return the trust ratio.

    All arrays are flat float32[n].
    m = b1 m + c1 g; v = b2 v + (c2 g) g; u = a (m / (sqrt(v) root + eps)) + decay w; the ratio is
    min(|w|, trust_max) / |u|, or 1 if either norm is 0; w = w - (lr ratio) u. a and root correct
    the bias as in adam.py. Raises KernelError for arrays that do not fit and bad hyperparameters.
    """
    h = hyper.checked("lamb", LAMB, hyper_parameters)
    step = hyper.checked_step("lamb", step)
    for name, x in (("w", w), ("g", g), ("m", m), ("v", v)):
        flat(name, x, np.float32, writable=name != "g")
        if x.size != w.size:
            raise KernelError(f"lamb: {name} has {x.size} elements, want {w.size}")
    _apart("lamb", (w, g, m, v))
    with np.errstate(all="ignore"):
        m[:] = F32(h["beta1"]) * m + F32(1 - h["beta1"]) * g
        v[:] = F32(h["beta2"]) * v + (F32(1 - h["beta2"]) * g) * g
        root = F32(1 / math.sqrt(1 - h["beta2"] ** step))
        u = F32(1 / (1 - h["beta1"] ** step)) * (m / (np.sqrt(v) * root + F32(h["eps"])))
        if h["weight_decay"] != 0:
            u = u + F32(h["weight_decay"]) * w
        size, length = norm(w, "numpy"), norm(u, "numpy")
        ratio = min(size, h["trust_max"]) / length if size > 0 and length > 0 else 1.0
        w[:] = w - F32(h["lr"] * ratio) * u
    return ratio


def adafactor(
    w: Array,
    g: Array,
    rows: Array,
    columns: Array,
    hyper_parameters: Mapping[str, float],
    step: int,
) -> float:
    """Apply one step of Adafactor to one matrix in place and return the step size.

    w, g: float32[r, c]. rows: float32[r]. columns: float32[c].
    With d = 1 - step^decay_rate: rows = d rows + (1 - d) mean of (g^2 + eps1) along each row, and
    columns likewise along each column; u = g / (sqrt(rows / mean of rows) sqrt(columns));
    u = u / max(1, rms(u) / clip); w = w (1 - lr weight_decay); w = w - (max(eps2, rms(w)) lr) u,
    where rms(w) is taken before the decay. Raises KernelError.
    """
    h = hyper.checked("adafactor", ADAFACTOR, hyper_parameters)
    step = hyper.checked_step("adafactor", step)
    fits = g.shape == w.shape and (*rows.shape, *columns.shape) == w.shape
    if w.ndim != 2 or rows.ndim != 1 or not fits:
        shapes = f"w {w.shape}, g {g.shape}, rows {rows.shape}, columns {columns.shape}"
        raise KernelError(f"adafactor: {shapes}: want (r, c), (r, c), (r,), (c,)")
    for name, x in (("w", w), ("g", g), ("rows", rows), ("columns", columns)):
        if not x.flags.c_contiguous:
            raise KernelError(f"adafactor: {name} is strided, want a contiguous array")
        flat(name, x.reshape(-1), np.float32, writable=name != "g")
    _apart("adafactor", (w, g, rows, columns))
    for name in ("clip", "eps1"):
        if F32(h[name]) == 0:
            raise KernelError(f"adafactor: {name} = {h[name]!r}, want a number above 0 in float32")
    if w.size == 0:
        return 0.0
    keep = 1 - float(step) ** h["decay_rate"]
    with np.errstate(all="ignore"):
        square = g * g + F32(h["eps1"])
        for state, axis in ((rows, 1), (columns, 0)):
            mean = square.mean(axis=axis, dtype=np.float64).astype(np.float32)
            state[:] = F32(keep) * state + F32(1 - keep) * mean
        middle = F32(rows.mean(dtype=np.float64))
        u = g / (np.sqrt(rows / middle)[:, None] * np.sqrt(columns)[None, :])
        u = u / F32(max(1.0, _rms(u) / h["clip"]))
        size = max(h["eps2"], _rms(w)) * h["lr"]
        if h["weight_decay"] != 0:
            w[:] = F32(1 - h["lr"] * h["weight_decay"]) * w
        w[:] = w - F32(size) * u
    return size


def _rms(x: np.ndarray) -> float:
    """Return the root mean square of an array; 0 for an empty one."""
    return norm(x.reshape(-1), "numpy") / math.sqrt(x.size) if x.size else 0.0


def _apart(op: str, arrays: Sequence[np.ndarray]) -> None:
    """Raise KernelError if two of the arrays share memory."""
    for i, a in enumerate(arrays):
        if any(np.may_share_memory(a, b) for b in arrays[:i]):
            raise KernelError(f"{op}: two of the arrays share memory; pass separate ones")
