"""Updates of arrays in any format through the FP32 update, tile by tile.

This module owns the conversion from stored numbers to FP32 and back. Numba converts one tile at a
time, so each array crosses the DRAM interface once; NumPy converts whole arrays. The module does
not own the arithmetic of an update. C has separate loops for each format (csrc/update.c).
Source: this project.

Numba receives every array as uint16, independent of its type, so one compiled program serves all
formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import adagrad, adam, sgd
from .cast import (
    numba_from_bf16,
    numba_from_fp16,
    numba_to_bf16,
    numba_to_fp16,
    numpy_from_bf16,
    numpy_from_fp16,
    numpy_to_bf16,
    numpy_to_fp16,
)
from .codes import codes, numba_decode, numba_encode, numpy_decode, numpy_encode
from .formats import B16, BLOCK, F32, H16, NONE, Format
from .jit import njit
from .stochastic import numba_to_bf16 as numba_at_random
from .stochastic import numpy_draws
from .stochastic import numpy_to_bf16 as numpy_at_random

TILE = 2048
SHIFTS = (0, 8, 16)  # offset of the random bits that weight, first and second state use


# --- NumPy


def widened(x: np.ndarray, kind: int) -> np.ndarray:
    """Return a float32 copy of an array."""
    if kind == F32:
        return x.copy()
    return numpy_from_fp16(x.view(np.uint16)) if kind == H16 else numpy_from_bf16(x)


def narrowed(y: np.ndarray, x: np.ndarray, kind: int, more: np.ndarray | None) -> None:
    """Store float32 ``y`` in ``x``; ``more`` holds random bits, or None to round to nearest."""
    if kind == F32:
        x[:] = y
    elif kind == H16:
        x.view(np.uint16)[:] = numpy_to_fp16(y)
    else:
        x[:] = numpy_to_bf16(y) if more is None else numpy_at_random(y, more)


def numpy_update(
    plain: Callable[..., None], f: Format, signs: Sequence[bool], arrays: Sequence[np.ndarray],
    coef: np.ndarray, first: int, key: int,
) -> None:  # fmt: skip
    """Apply the float32 update ``plain`` to arrays of a format, in place.

    arrays: w, g, states, and out if the format has one. A coded state is followed by its scales.
    signs: for each state, whether it is signed.
    """
    w, g, *rest = arrays
    wide = widened(w, f.w)
    n = len(signs)
    draws = numpy_draws(w.size, first, key) if f.random else None
    more = [None if draws is None else (draws >> s) & 0xFFFF for s in SHIFTS]
    if f.codes:
        maps = [codes(f.codes, sign) for sign in signs]
        stored = [(rest[2 * i], rest[2 * i + 1]) for i in range(n)]
        states = [numpy_decode(q, s, m) for (q, s), m in zip(stored, maps, strict=True)]
    else:
        states = [widened(x, f.state) for x in rest[:n]]
    plain(wide, widened(g, f.g), states, coef)
    for i, state in enumerate(states):
        if f.codes:
            numpy_encode(state, *stored[i], maps[i])
        else:
            narrowed(state, rest[i], f.state, more[1 + i])
    narrowed(wide, w, f.w, more[0])
    if f.out != NONE:
        narrowed(wide, rest[n], f.out, None)


# --- Numba

SGD, MOMENTUM, NESTEROV, ADAGRAD, ADAM = range(5)
WHAT = {
    "sgd": SGD, "momentum": MOMENTUM, "nesterov": NESTEROV, "adagrad": ADAGRAD, "adam": ADAM,
}  # fmt: skip


@njit
def plain(what, w, g, a, b, c):
    """Run the FP32 update of one operation."""
    if what == SGD:
        sgd.numba_sgd_canonical(w, g, c)
    elif what == MOMENTUM:
        sgd.numba_momentum_canonical(w, g, a, c)
    elif what == NESTEROV:
        sgd.numba_nesterov_canonical(w, g, a, c)
    elif what == ADAGRAD:
        adagrad.numba_canonical(w, g, a, c)
    else:
        adam.numba_canonical(w, g, a, b, c)


@njit
def wide(x, start, stop, kind, room):
    """Return elements start .. stop of a stored array as float32, in place or in ``room``."""
    if kind == F32:
        return x[2 * start : 2 * stop].view(np.float32)
    y = room[: stop - start]
    if kind == H16:
        numba_from_fp16(x[start:stop], y)
    elif kind == B16:
        numba_from_bf16(x[start:stop], y)
    return y


@njit
def back(y, x, start, stop, kind, random, first, key, shift):
    """Store float32 ``y`` as elements start .. stop of ``x``."""
    if kind == H16:
        numba_to_fp16(y, x[start:stop])
    elif kind == B16 and random:
        numba_at_random(y, x[start:stop], first + start, key, shift)
    elif kind == B16:
        numba_to_bf16(y, x[start:stop])


@njit
def stored_tiles(what, n, w, g, a, b, out, c, kinds, states, first, key):
    """Update stored arrays tile by tile.

    kinds: int64[5], the storage kinds of w, g, states and out, and the stochastic rounding flag.
    """
    wk, gk, sk, ok, random = kinds[0], kinds[1], kinds[2], kinds[3], kinds[4] != 0
    rooms = np.empty((4, TILE), np.float32)
    for start in range(0, n, TILE):
        stop = min(n, start + TILE)
        x = wide(w, start, stop, wk, rooms[0])
        y = wide(g, start, stop, gk, rooms[1])
        s = wide(a, start, stop, sk, rooms[2]) if states > 0 else rooms[2]
        t = wide(b, start, stop, sk, rooms[3]) if states > 1 else rooms[3]
        plain(what, x, y, s, t, c)
        if states > 0:
            back(s, a, start, stop, sk, random, first, key, SHIFTS[1])
        if states > 1:
            back(t, b, start, stop, sk, random, first, key, SHIFTS[2])
        back(x, w, start, stop, wk, random, first, key, SHIFTS[0])
        if ok != NONE:
            back(x, out, start, stop, ok, False, first, key, 0)


@njit
def coded_tiles(what, w, g, a, b, scale_a, scale_b, c, states, values, buckets, zeros):
    """Update arrays with coded states block by block.

    values, buckets, zeros: tables of the code maps of state a and state b.
    """
    n = w.size
    s = np.empty(BLOCK, np.float32)
    t = np.empty(BLOCK, np.float32)
    for block in range(scale_a.size):
        start = block * BLOCK
        stop = min(n, start + BLOCK)
        x, y = s[: stop - start], t[: stop - start]
        numba_decode(a[start:stop], scale_a[block], x, values[0])
        if states > 1:
            numba_decode(b[start:stop], scale_b[block], y, values[1])
        plain(what, w[start:stop], g[start:stop], x, y, c)
        scale_a[block] = numba_encode(x, a[start:stop], buckets[0], zeros[0])
        if states > 1:
            scale_b[block] = numba_encode(y, b[start:stop], buckets[1], zeros[1])


def numba_update(
    name: str, f: Format, signs: Sequence[bool], arrays: Sequence[np.ndarray],
    coef: np.ndarray, first: int, key: int,
) -> None:  # fmt: skip
    """Run `numpy_update` in Numba; ``name`` is the name of the operation in csrc/ondie.h."""
    w, g, *rest = arrays
    n = len(signs)
    if f.codes:
        maps = [codes(f.codes, sign) for sign in signs] * 2
        q = [*rest[::2], *rest[::2]][:2]
        scale = [*rest[1::2], *rest[1::2]][:2]
        tables: list[Any] = [
            np.stack([getattr(m, part) for m in maps[:2]]) for part in ("value", "bucket")
        ]
        zeros = np.array([m.zero for m in maps[:2]])
        coded_tiles(WHAT[name], w, g, *q, *scale, coef, n, *tables, zeros)
        return
    words = [x.view(np.uint16) for x in (w, g, *rest)]
    none = words[0][:0]
    a, b = (words[2 : 2 + n] + [none, none])[:2]
    out = words[2 + n] if f.out != NONE else none
    kinds = np.array([f.w, f.g, f.state, f.out, f.random], dtype=np.int64)
    stored_tiles(WHAT[name], w.size, words[0], words[1], a, b, out, coef, kinds, n, first, key)
