"""Lossless narrowing: storage of a float32 vector in 16 bits if no bit is lost.

This module owns the choice of the format (FP16 or BF16, with a power-of-two shift), packing and
unpacking. It does not round; a vector that does not fit exactly stays float32.
Source: IEEE 754 binary16 and bfloat16 ranges. An FP16 gradient divided by a loss scale of 2**k fits
into FP16 again after multiplication by 2**k. It then has the bytes that the accelerator produced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ondie.traces.errors import TraceError
from ondie.traces.model import F32

# (significant bits - 1, exponent of the lowest bit, exponent of the highest bit)
_FORMATS = {"float16": (10, -24, 15), "bfloat16": (7, -133, 127)}
_PROBE = 4096
_MAX_SHIFT = 300
_MAX_SHIFTS = 4096  # per-tensor shifts are stored in an attribute; HDF5 limits it to 64 KiB


@dataclass(frozen=True)
class Packed:
    """A vector stored in 16 bits, or in float32 if 16 bits would lose information.

    An element of the vector is its stored value times 2**-shift. `values` is float32, float16 or
    uint16 (bfloat16). `shift` has one entry for the vector, or one for each tensor.
    """

    storage: str
    shift: tuple[int, ...]
    values: npt.NDArray[Any]


def pack(vector: F32, starts: Sequence[int], prefer: int = 0) -> Packed:
    """Narrow float32[n] to 16 bits if every bit is preserved; otherwise keep float32.

    starts: first element of each tensor (the first entry is 0), for shifts per tensor. prefer:
    preferred shift if several shifts are possible, log2 of the loss scale.
    """
    vector = np.ascontiguousarray(vector, np.float32)
    for storage, (span, low, high) in _FORMATS.items():
        shifts = _shifts(vector, starts, span, low, high, prefer)
        if shifts is None:
            continue
        packed = Packed(storage, shifts, _narrow(vector, storage, starts, shifts))
        if np.array_equal(unpack(packed, starts).view(np.uint32), vector.view(np.uint32)):
            return packed
    return Packed("float32", (0,), vector)


def unpack(packed: Packed, starts: Sequence[int]) -> F32:
    """Return the vector that pack() narrowed, float32[n]. starts: as in pack().

    Raises TraceError for an unknown storage type or an invalid shift.
    """
    if packed.storage == "float32":
        return np.ascontiguousarray(packed.values, np.float32)
    if packed.storage not in _FORMATS:
        raise TraceError(
            f"storage is {packed.storage!r}; must be one of float32, {', '.join(_FORMATS)}"
        )
    if any(abs(k) > _MAX_SHIFT for k in packed.shift):
        raise TraceError(
            f"shift is {max(packed.shift, key=abs)}; must be from -{_MAX_SHIFT} to {_MAX_SHIFT}"
        )
    if len(packed.shift) not in (1, len(starts)):
        raise TraceError(f"shift has {len(packed.shift)} entries; must have 1 or {len(starts)}")
    if packed.storage == "bfloat16":
        wide = (packed.values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        wide = packed.values.astype(np.float32)
    if all(k == 0 for k in packed.shift):
        return wide
    with np.errstate(over="ignore", under="ignore"):
        return _scaled(wide, starts, packed.shift, -1).astype(np.float32)


def _scaled(
    vector: F32, starts: Sequence[int], shifts: tuple[int, ...], sign: int
) -> npt.NDArray[np.float64]:
    """Return the vector multiplied by 2**(sign * shift), in float64.

    The product is exact, because the shifts are small compared with the exponents of float64.
    """
    wide = vector.astype(np.float64)
    if len(shifts) == 1:
        return wide * 2.0 ** (sign * shifts[0])
    for start, stop, shift in zip(starts, [*starts[1:], len(wide)], shifts, strict=True):
        wide[start:stop] *= 2.0 ** (sign * shift)
    return wide


def _narrow(
    vector: F32, storage: str, starts: Sequence[int], shifts: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return the vector multiplied by 2**shift in a 16-bit type.

    The type is float16, or uint16 with the bits of bfloat16.
    """
    wide = vector.astype(np.float64) if shifts == (0,) else _scaled(vector, starts, shifts, 1)
    with np.errstate(over="ignore", under="ignore"):
        if storage == "float16":
            return wide.astype(np.float16)
        return (wide.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _bits(vector: F32) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None:
    """Return the exponents of the lowest and of the highest set bit of each non-zero element.

    Both are int32 arrays. Returns None if an element is not finite.
    """
    magnitude = vector.view(np.uint32) & np.uint32(0x7FFFFFFF)
    magnitude = magnitude[magnitude != 0]
    if magnitude.size and int(magnitude.max()) >= 0x7F800000:
        return None
    exponent = (magnitude >> np.uint32(23)).astype(np.int32)
    significand = (magnitude & np.uint32(0x7FFFFF)).astype(np.int32)
    significand[exponent > 0] |= 0x800000
    unit = np.maximum(exponent, 1) - 150  # weight of the significand's last bit
    # an integer below 2**24 is exact in float32, so its exponent field gives its log2
    top = (significand.astype(np.float32).view(np.int32) >> 23) - 127
    last = ((significand & -significand).astype(np.float32).view(np.int32) >> 23) - 127
    return unit + last, unit + top


def _range(vector: F32, span: int, low: int, high: int) -> tuple[int, int] | None:
    """Return the minimum and maximum shift with which a vector fits exactly into a format.

    span: number of fraction bits. low, high: lowest and highest exponent of a bit of the format.
    Returns None if no shift fits.
    """
    bits = _bits(vector)
    if bits is None:
        return None
    last, top = bits
    if last.size == 0:
        return -_MAX_SHIFT, _MAX_SHIFT
    if int((top - last).max()) > span:
        return None
    least, most = low - int(last.min()), high - int(top.max())
    return (least, most) if least <= most else None


def _nearest(bounds: tuple[int, int], prefer: int) -> int:
    """Return the shift within ``bounds`` (minimum, maximum) that is nearest to ``prefer``."""
    return min(max(prefer, bounds[0]), bounds[1])


def _shifts(
    vector: F32, starts: Sequence[int], span: int, low: int, high: int, prefer: int
) -> tuple[int, ...] | None:
    """Return the shifts with which the vector fits exactly into a format.

    The result has one shift for the vector, or one for each tensor. The result is None if no shift
    fits.
    """
    probe = _bits(vector[:_PROBE])
    if probe is None or (probe[0].size and int((probe[1] - probe[0]).max()) > span):
        return None
    whole = _range(vector, span, low, high)
    if whole is not None:
        return (_nearest(whole, prefer),)
    if not 1 < len(starts) <= _MAX_SHIFTS:
        return None
    out: list[int] = []
    for start, stop in zip(starts, [*starts[1:], len(vector)], strict=True):
        part = _range(vector[start:stop], span, low, high)
        if part is None:
            return None
        out.append(_nearest(part, prefer))
    return tuple(out)
