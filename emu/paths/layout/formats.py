"""Formats in pages: the type of each vector that an update has, and what values take of a page.

Owns the formats that paths store, values per page, bytes of a range. Does not own where pages are
(layout.py) or any arithmetic (ondie.kernels).
Source: the formats of ondie.kernels; bf16_master: DeepSpeed's bf16_master_weights_and_grads (BF16
master weights and gradients, FP32 states). Scales of 8-bit states: their own files on the host,
as bitsandbytes has them; inside a drive in the page of their codes, so that a page is all that it
takes to read its values: as many blocks of 256 codes as fit with their scales, then the scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from ondie.emu.units import InputError, nearest
from ondie.kernels import FORMATS as KERNELS
from ondie.kernels import get
from ondie.kernels.formats import B16, BLOCK, F32, NONE, TYPES, Format
from ondie.kernels.update import Slot

BF16_MASTER = Format("bf16_master", B16, B16, F32, NONE, NONE)
"""Has no kernel of its own: the FP32 update between casts (paths/arithmetic.py)."""
FORMATS = {"fp32": KERNELS["fp32"], BF16_MASTER.name: BF16_MASTER, **KERNELS}
SCALE_BYTES = 4
MODEL_BYTES = 2
"""Of a parameter as the model computes with it: FP16 or BF16."""


def checked(name: str) -> str:
    """The name of a format. Raises InputError with the nearest one."""
    if name not in FORMATS:
        raise InputError(
            f"format: {name!r}; nearest: {nearest(name, FORMATS) or 'none'} "
            f"(of {', '.join(FORMATS)})"
        )
    return name


def refused(name: str, op: str) -> str | None:
    """Why a format and an operation do not go together, or None."""
    if FORMATS[name].codes and not get(op, backend="numpy").states:
        return f"{op} has no states to be kept in 8 bits"
    return None


@dataclass(frozen=True)
class Vector:
    """How the values of a vector are stored: of a type, or in codes with a scale per BLOCK."""

    name: str
    dtype: np.dtype
    coded: bool = False

    @property
    def bytes_each(self) -> Fraction:
        """Of a value, with its share of a scale."""
        return Fraction(self.dtype.itemsize) + Fraction(SCALE_BYTES * self.coded, BLOCK)

    def size(self, n: int) -> int:
        """Bytes of ``n`` values and their scales."""
        return n * self.dtype.itemsize + SCALE_BYTES * self.coded * -(-n // BLOCK)

    def blocks(self, page_bytes: int) -> int:
        """Blocks of codes in a page."""
        return page_bytes // (BLOCK * self.dtype.itemsize + SCALE_BYTES)

    def per_page(self, page_bytes: int) -> int:
        """Values in a page."""
        return self.blocks(page_bytes) * BLOCK if self.coded else page_bytes // self.dtype.itemsize

    def pages(self, n: int, page_bytes: int) -> int:
        """Pages of ``n`` values."""
        return -(-n // self.per_page(page_bytes))

    def paged(self, n: int, page_bytes: int) -> int:
        """Bytes of ``n`` values from a page's beginning on: pages of codes are moved whole."""
        return self.pages(n, page_bytes) * page_bytes if self.coded else n * self.dtype.itemsize

    def unpack(self, pages: np.ndarray, n: int) -> dict[str, np.ndarray]:
        """The first ``n`` values of uint8[k, page_bytes] by slot: a view, or of codes copies."""
        if not self.coded:
            return {self.name: pages.reshape(-1).view(self.dtype)[:n]}
        whole = self.per_page(pages.shape[1])
        scales = np.ascontiguousarray(pages[:, whole : whole + self.blocks(pages.shape[1]) * 4])
        return {
            self.name: pages[:, :whole].reshape(-1)[:n].copy(),
            f"{self.name}_scale": scales.reshape(-1).view(np.float32)[: -(-n // BLOCK)],
        }

    def pack(self, pages: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        """Put values by slot into uint8[k, page_bytes], from the first on; what is behind them in
        their last page stays."""
        values = arrays[self.name]
        if not self.coded:
            pages.reshape(-1).view(self.dtype)[: len(values)] = values
            return
        whole, each = self.per_page(pages.shape[1]), self.blocks(pages.shape[1])
        scales = arrays[f"{self.name}_scale"]
        for k in range(self.pages(len(values), pages.shape[1])):
            codes = values[k * whole : (k + 1) * whole]
            pages[k, : len(codes)] = codes
            part = np.ascontiguousarray(scales[k * each : (k + 1) * each]).view(np.uint8)
            pages[k, whole : whole + len(part)] = part


@dataclass(frozen=True)
class Stored:
    """A format with the vectors of an operation. Raises InputError where the two do not go
    together."""

    name: str
    op: str

    def __post_init__(self) -> None:
        if reason := refused(checked(self.name), self.op):
            raise InputError(f"format {self.name}: {reason}")

    @property
    def format(self) -> Format:
        return FORMATS[self.name]

    @cached_property
    def states(self) -> tuple[str, ...]:
        return get(self.op, backend="numpy").states

    @cached_property
    def vectors(self) -> tuple[Vector, ...]:
        """What a step writes: weights and states."""
        f = self.format
        states = (Vector(name, TYPES[f.state], bool(f.codes)) for name in self.states)
        return (Vector("w", TYPES[f.w]), *states)

    @cached_property
    def gradient(self) -> Vector:
        return Vector("g", TYPES[self.format.g])

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The arrays of an update, as files on the host and kernels have them: w, g, states (each
        with its scales behind it where it is codes)."""
        found = [Slot("w", TYPES[self.format.w]), Slot("g", TYPES[self.format.g], written=False)]
        for v in self.vectors[1:]:
            found.append(Slot(v.name, v.dtype))
            if v.coded:
                found.append(Slot(f"{v.name}_scale", TYPES[F32], BLOCK))
        return tuple(found)

    @property
    def shown(self) -> np.dtype:
        """Type of the weights that a model computes with, as the update leaves them."""
        f = self.format
        return TYPES[f.w if f.out == NONE else f.out]

    @cached_property
    def bytes_each(self) -> Fraction:
        """Of weights and states on flash, per parameter."""
        return sum((v.bytes_each for v in self.vectors), Fraction())

    @property
    def copy_bytes(self) -> int:
        """Of the copy of a weight that a format has for the model; 0 where it has none."""
        return 0 if self.format.out == NONE else TYPES[self.format.out].itemsize

    @cached_property
    def traffic(self) -> Fraction:
        """DRAM bytes of the update of one parameter, scales included: read plus written."""
        return 2 * self.bytes_each + self.gradient.bytes_each + self.copy_bytes
