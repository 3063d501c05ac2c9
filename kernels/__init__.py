"""Optimizer update kernels: pure functions on arrays, implemented in NumPy, Numba and C.

This package owns the arithmetic of optimizer updates, of the gradient operations that precede
them (unscaling, clipping, compression) and of error correction (bch.py, ldpc.py). It does not own
devices, traces or torch integration.
Kernels keep no data between calls except compiled code and idle threads.
Source: each module names the paper of its operation; `csrc/ondie.h` lists every formula.
    from ondie.kernels import get
    k = get("adamw")                                     # C if the extension is built, else Numba
    coef = k.coefficients({"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}, step=1)
    k(w, g, (m, v), coef)                                # in place, flat float32
"""

if __name__ == "kernels":
    raise ImportError(
        "import this package as ondie.kernels, not as kernels: install the distribution ondie"
    )

from .batch import Table, one, pages, tensors
from .errors import KernelError
from .memory import aligned_empty
from .native import backends, isas
from .update import BACKENDS, ECC, FORMATS, FORMS, ON_DIE, OPS, Update, get

__all__ = [
    "BACKENDS",
    "ECC",
    "FORMATS",
    "FORMS",
    "ON_DIE",
    "OPS",
    "KernelError",
    "Table",
    "Update",
    "aligned_empty",
    "backends",
    "get",
    "isas",
    "one",
    "pages",
    "tensors",
]
