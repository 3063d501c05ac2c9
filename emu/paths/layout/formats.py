"""Storage formats: the type of each vector of an update, and the number of values per page.

Owns the storage formats of the paths, values per page, and bytes of a range. Does not own placement
of pages (regions.py) or any arithmetic (ondie.kernels).
Source: the formats of ondie.kernels; bf16_master: DeepSpeed's bf16_master_weights_and_grads (BF16
master weights and gradients, FP32 states). On the host, the scales of 8-bit states are separate
files, as in bitsandbytes. Inside a drive, scales share a page with their codes, so that one page
read returns both codes and scales. A page starts with the maximum number of blocks of 256 codes
that fit together with their scales; the scales follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from ondie.emu.units import InputError, known_names
from ondie.kernels import FORMATS as KERNELS
from ondie.kernels import get
from ondie.kernels.formats import B16, BLOCK, F32, NONE, TYPES, Format
from ondie.kernels.update import Slot

BF16_MASTER = Format("bf16_master", B16, B16, F32, NONE, NONE)
"""Format with BF16 weights and gradients and FP32 states. It has no dedicated kernel: the values
are converted to FP32, updated, and converted back (paths/optimizer_step.py)."""
FORMATS = {"fp32": KERNELS["fp32"], BF16_MASTER.name: BF16_MASTER, **KERNELS}
SCALE_BYTES = 4
MODEL_BYTES = 2
"""Size in bytes of a parameter in the 16-bit type (FP16 or BF16) that the model computes with."""


def checked(name: str) -> str:
    """Return ``name``. Raises InputError, which names the most similar format, if ``name`` is not a
    storage format."""
    if name not in FORMATS:
        raise InputError(f"format: unknown format {name!r}; {known_names(name, FORMATS)}")
    return name


def refused(name: str, op: str) -> str | None:
    """Return the reason why the states of optimizer operation ``op`` cannot be stored in format
    ``name``, or None if they can be stored."""
    if FORMATS[name].codes and not get(op, backend="numpy").states:
        return f"{op} has no states that can be stored in 8 bits"
    return None


@dataclass(frozen=True)
class Vector:
    """Storage description of one vector: values of a plain type, or 8-bit codes with one scale per
    BLOCK (256) codes."""

    name: str
    dtype: np.dtype
    coded: bool = False

    @property
    def bytes_each(self) -> Fraction:
        """Number of bytes per value. For codes, this includes the bytes of a scale divided by
        BLOCK."""
        return Fraction(self.dtype.itemsize) + Fraction(SCALE_BYTES * self.coded, BLOCK)

    def size(self, count: int) -> int:
        """Return the size of ``count`` values and their scales, bytes."""
        return count * self.dtype.itemsize + SCALE_BYTES * self.coded * -(-count // BLOCK)

    def blocks(self, page_bytes: int) -> int:
        """Return the number of blocks of codes that fit in a page, each with its scale."""
        return page_bytes // (BLOCK * self.dtype.itemsize + SCALE_BYTES)

    def per_page(self, page_bytes: int) -> int:
        """Return the number of values in a page."""
        return self.blocks(page_bytes) * BLOCK if self.coded else page_bytes // self.dtype.itemsize

    def pages(self, count: int, page_bytes: int) -> int:
        """Return the number of pages that ``count`` values occupy."""
        return -(-count // self.per_page(page_bytes))

    def paged(self, count: int, page_bytes: int) -> int:
        """Return the number of bytes to transfer for ``count`` values that start at the beginning
        of a page. Pages of codes are transferred as a whole."""
        return (
            self.pages(count, page_bytes) * page_bytes
            if self.coded
            else count * self.dtype.itemsize
        )

    def unpack(self, pages: np.ndarray, count: int) -> dict[str, np.ndarray]:
        """Return the first ``count`` values in ``pages``, uint8[k, page_bytes], and their scales,
        as arrays by slot name. The arrays are views for a plain type and copies for codes."""
        if not self.coded:
            return {self.name: pages.reshape(-1).view(self.dtype)[:count]}
        whole = self.per_page(pages.shape[1])
        scales = np.ascontiguousarray(pages[:, whole : whole + self.blocks(pages.shape[1]) * 4])
        return {
            self.name: pages[:, :whole].reshape(-1)[:count].copy(),
            f"{self.name}_scale": scales.reshape(-1).view(np.float32)[: -(-count // BLOCK)],
        }

    def pack(self, pages: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the values (and scales) in ``arrays``, by slot name, into ``pages``, uint8[k,
        page_bytes], starting with the first page. The bytes after the last value are unchanged."""
        values = arrays[self.name]
        if not self.coded:
            pages.reshape(-1).view(self.dtype)[: len(values)] = values
            return
        whole, each = self.per_page(pages.shape[1]), self.blocks(pages.shape[1])
        scales = arrays[f"{self.name}_scale"]
        for page in range(self.pages(len(values), pages.shape[1])):
            codes = values[page * whole : (page + 1) * whole]
            pages[page, : len(codes)] = codes
            part = np.ascontiguousarray(scales[page * each : (page + 1) * each]).view(np.uint8)
            pages[page, whole : whole + len(part)] = part


@dataclass(frozen=True)
class Stored:
    """Storage of the weights, gradient and states of optimizer operation ``op``, for example
    "adam", in the storage format ``name``. Raises InputError if the format cannot store the states
    of the operation."""

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
        """Vectors that a step writes: the weights, then the states."""
        form = self.format
        states = (Vector(name, TYPES[form.state], bool(form.codes)) for name in self.states)
        return (Vector("w", TYPES[form.w]), *states)

    @cached_property
    def gradient(self) -> Vector:
        return Vector("g", TYPES[self.format.g])

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Arrays of an update in the order of host files and kernel arguments: w, g, then the
        states. A state that is stored in codes is followed by its scales."""
        found = [Slot("w", TYPES[self.format.w]), Slot("g", TYPES[self.format.g], written=False)]
        for vector in self.vectors[1:]:
            found.append(Slot(vector.name, vector.dtype))
            if vector.coded:
                found.append(Slot(f"{vector.name}_scale", TYPES[F32], BLOCK))
        return tuple(found)

    @property
    def shown(self) -> np.dtype:
        """Dtype of the updated weights that the model computes with: the dtype of the format's
        16-bit copy if the format has such a copy, else the dtype of the stored weights."""
        form = self.format
        return TYPES[form.w if form.out == NONE else form.out]

    @cached_property
    def bytes_each(self) -> Fraction:
        """Number of bytes of weights and states on flash per parameter, including scales."""
        return sum((vector.bytes_each for vector in self.vectors), Fraction())

    @property
    def copy_bytes(self) -> int:
        """Number of bytes per weight of the separate copy that the format keeps for the model; 0 if
        the format keeps no such copy."""
        return 0 if self.format.out == NONE else TYPES[self.format.out].itemsize

    @cached_property
    def traffic(self) -> Fraction:
        """Number of DRAM bytes per parameter of an update, read plus written, including scales."""
        return 2 * self.bytes_each + self.gradient.bytes_each + self.copy_bytes
