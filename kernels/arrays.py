"""Argument check: a flat, contiguous array of the type that a kernel reads.

This module owns the check. It does not convert arrays.
Source: this project.
"""

import numpy as np
from numpy.typing import DTypeLike

from .errors import KernelError


def flat(name: str, array: np.ndarray, dtype: DTypeLike, writable: bool = False) -> None:
    """Raise KernelError unless `a` is 1-D, contiguous, aligned to its item size and of `dtype`."""
    want = np.dtype(dtype)
    if array.dtype != want or array.ndim != 1 or not array.flags.c_contiguous:
        layout = "" if array.flags.c_contiguous else ", strided"
        raise KernelError(
            f"{name} is {array.dtype} {array.shape}{layout}, expected contiguous {want} (n,)"
        )
    if not array.flags.aligned:
        raise KernelError(f"{name} is not aligned to {want.itemsize} bytes; pass a copy")
    if writable and not array.flags.writeable:
        raise KernelError(f"{name} is read-only, expected a writable array")
