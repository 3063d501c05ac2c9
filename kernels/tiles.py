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


def widened(stored: np.ndarray, kind: int) -> np.ndarray:
    """Return a float32 copy of a stored array; ``kind``: storage type of the array (F32, H16 or
    B16)."""
    if kind == F32:
        return stored.copy()
    return numpy_from_fp16(stored.view(np.uint16)) if kind == H16 else numpy_from_bf16(stored)


def narrowed(values: np.ndarray, stored: np.ndarray, kind: int, more: np.ndarray | None) -> None:
    """Store float32 ``values`` in the array ``stored``; ``kind``: storage type of the array (F32,
    H16 or B16).

    ``more``: 16 random bits per element for stochastic rounding, or None to round to nearest.
    """
    if kind == F32:
        stored[:] = values
    elif kind == H16:
        stored.view(np.uint16)[:] = numpy_to_fp16(values)
    else:
        stored[:] = numpy_to_bf16(values) if more is None else numpy_at_random(values, more)


def numpy_update(
    plain: Callable[..., None], form: Format, signs: Sequence[bool], arrays: Sequence[np.ndarray],
    coef: np.ndarray, first: int, key: int,
) -> None:  # fmt: skip
    """Apply the float32 update ``plain`` in place to arrays in a storage format.

    arrays: w, g, states, and out if the format has one. A coded state is followed by its scales.
    signs: for each state, whether it is signed.
    """
    w, g, *rest = arrays
    wide = widened(w, form.w)
    count = len(signs)
    draws = numpy_draws(w.size, first, key) if form.random else None
    more = [None if draws is None else (draws >> shift) & 0xFFFF for shift in SHIFTS]
    if form.codes:
        maps = [codes(form.codes, sign) for sign in signs]
        stored = [(rest[2 * i], rest[2 * i + 1]) for i in range(count)]
        states = [
            numpy_decode(coded, scale, code_map)
            for (coded, scale), code_map in zip(stored, maps, strict=True)
        ]
    else:
        states = [widened(state_array, form.state) for state_array in rest[:count]]
    plain(wide, widened(g, form.g), states, coef)
    for i, state in enumerate(states):
        if form.codes:
            numpy_encode(state, *stored[i], maps[i])
        else:
            narrowed(state, rest[i], form.state, more[1 + i])
    narrowed(wide, w, form.w, more[0])
    if form.out != NONE:
        narrowed(wide, rest[count], form.out, None)


# --- Numba

SGD, MOMENTUM, NESTEROV, ADAGRAD, ADAM = range(5)
WHAT = {
    "sgd": SGD, "momentum": MOMENTUM, "nesterov": NESTEROV, "adagrad": ADAGRAD, "adam": ADAM,
}  # fmt: skip


@njit
def plain(what, w, g, first, second, coef):
    """Run the FP32 update of operation number ``what`` (SGD, MOMENTUM, ..., ADAM) in place on
    float32 arrays. ``first``, ``second``: the states."""
    if what == SGD:
        sgd.numba_sgd_canonical(w, g, coef)
    elif what == MOMENTUM:
        sgd.numba_momentum_canonical(w, g, first, coef)
    elif what == NESTEROV:
        sgd.numba_nesterov_canonical(w, g, first, coef)
    elif what == ADAGRAD:
        adagrad.numba_canonical(w, g, first, coef)
    else:
        adam.numba_canonical(w, g, first, second, coef)


@njit
def wide(stored, start, stop, kind, room):
    """Return elements start .. stop - 1 of a stored array as float32.

    FP32 elements are returned in place; others are converted into ``room``.
    """
    if kind == F32:
        return stored[2 * start : 2 * stop].view(np.float32)
    values = room[: stop - start]
    if kind == H16:
        numba_from_fp16(stored[start:stop], values)
    elif kind == B16:
        numba_from_bf16(stored[start:stop], values)
    return values


@njit
def back(values, stored, start, stop, kind, random, first, key, shift):
    """Store float32 ``values`` as elements start .. stop - 1 of the array ``stored``. FP32 elements
    are already in place.

    ``kind``: storage type of ``stored`` (F32, H16 or B16). ``random``: True for stochastic
    rounding. ``first``: number of the element stored[0] for its random bits. ``key``, ``shift``:
    see `numba_to_bf16` in stochastic.py.
    """
    if kind == H16:
        numba_to_fp16(values, stored[start:stop])
    elif kind == B16 and random:
        numba_at_random(values, stored[start:stop], first + start, key, shift)
    elif kind == B16:
        numba_to_bf16(values, stored[start:stop])


@njit
def stored_tiles(
    what, count, w, g, first_state, second_state, out, coef, kinds, states, first, key
):
    """Update stored arrays tile by tile: convert to FP32, update, convert back.

    what: number of the operation (SGD to ADAM). count: number of parameters. kinds: int64[5], the
    storage types of w, g, states and out, and the stochastic rounding flag. states: number of
    states. first: index of the first element. key: key of the step.
    """
    wk, gk, sk, ok, random = kinds[0], kinds[1], kinds[2], kinds[3], kinds[4] != 0
    rooms = np.empty((4, TILE), np.float32)
    for start in range(0, count, TILE):
        stop = min(count, start + TILE)
        weights = wide(w, start, stop, wk, rooms[0])
        gradient = wide(g, start, stop, gk, rooms[1])
        first_tile = wide(first_state, start, stop, sk, rooms[2]) if states > 0 else rooms[2]
        second_tile = wide(second_state, start, stop, sk, rooms[3]) if states > 1 else rooms[3]
        plain(what, weights, gradient, first_tile, second_tile, coef)
        if states > 0:
            back(first_tile, first_state, start, stop, sk, random, first, key, SHIFTS[1])
        if states > 1:
            back(second_tile, second_state, start, stop, sk, random, first, key, SHIFTS[2])
        back(weights, w, start, stop, wk, random, first, key, SHIFTS[0])
        if ok != NONE:
            back(weights, out, start, stop, ok, False, first, key, 0)


@njit
def coded_tiles(
    what, w, g, first_state, second_state, scale_a, scale_b, coef, states, values, buckets, zeros
):
    """Update arrays with coded states block by block: decode, update, encode.

    what: number of the operation (SGD to ADAM). states: number of states. values, buckets, zeros:
    tables of the code maps of the two states.
    """
    count = w.size
    first_room = np.empty(BLOCK, np.float32)
    second_room = np.empty(BLOCK, np.float32)
    for block in range(scale_a.size):
        start = block * BLOCK
        stop = min(count, start + BLOCK)
        first_tile, second_tile = first_room[: stop - start], second_room[: stop - start]
        numba_decode(first_state[start:stop], scale_a[block], first_tile, values[0])
        if states > 1:
            numba_decode(second_state[start:stop], scale_b[block], second_tile, values[1])
        plain(what, w[start:stop], g[start:stop], first_tile, second_tile, coef)
        scale_a[block] = numba_encode(first_tile, first_state[start:stop], buckets[0], zeros[0])
        if states > 1:
            scale_b[block] = numba_encode(
                second_tile, second_state[start:stop], buckets[1], zeros[1]
            )


def numba_update(
    name: str, form: Format, signs: Sequence[bool], arrays: Sequence[np.ndarray],
    coef: np.ndarray, first: int, key: int,
) -> None:  # fmt: skip
    """Apply a float32 update in place to arrays in a storage format, in Numba.

    ``name``: name of the operation in csrc/ondie.h, in lower case. Other arguments: see
    `numpy_update`.
    """
    w, g, *rest = arrays
    count = len(signs)
    if form.codes:
        maps = [codes(form.codes, sign) for sign in signs] * 2
        coded = [*rest[::2], *rest[::2]][:2]
        scale = [*rest[1::2], *rest[1::2]][:2]
        tables: list[Any] = [
            np.stack([getattr(code_map, part) for code_map in maps[:2]])
            for part in ("value", "bucket")
        ]
        zeros = np.array([code_map.zero for code_map in maps[:2]])
        coded_tiles(WHAT[name], w, g, *coded, *scale, coef, count, *tables, zeros)
        return
    words = [array.view(np.uint16) for array in (w, g, *rest)]
    none = words[0][:0]
    first_state, second_state = (words[2 : 2 + count] + [none, none])[:2]
    out = words[2 + count] if form.out != NONE else none
    kinds = np.array([form.w, form.g, form.state, form.out, form.random], dtype=np.int64)
    stored_tiles(
        WHAT[name],
        w.size,
        words[0],
        words[1],
        first_state,
        second_state,
        out,
        coef,
        kinds,
        count,
        first,
        key,
    )
