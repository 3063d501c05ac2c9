"""Argument check: a flat, contiguous array of the type that a kernel reads.

This module owns the check. It does not convert arrays.
Source: this project.
"""

import numpy as np
from numpy.typing import DTypeLike

from .errors import KernelError


def flat(name: str, a: np.ndarray, dtype: DTypeLike, writable: bool = False) -> None:
    """Raise KernelError unless `a` is 1-D, contiguous, aligned to its element and of `dtype`."""
    want = np.dtype(dtype)
    if a.dtype != want or a.ndim != 1 or not a.flags.c_contiguous:
        layout = "" if a.flags.c_contiguous else ", strided"
        raise KernelError(f"{name} is {a.dtype} {a.shape}{layout}, want contiguous {want} (n,)")
    if not a.flags.aligned:
        raise KernelError(f"{name} is not aligned to {want.itemsize} bytes; pass a copy")
    if writable and not a.flags.writeable:
        raise KernelError(f"{name} is read-only, want a writable array")
