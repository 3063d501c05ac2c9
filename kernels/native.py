"""Owns: access to the C extension, which instruction sets it runs here, and choosing a backend.
Does not: fall back from a backend that was asked for by name.
Source: csrc/ondie.h.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from .errors import KernelError, unknown

try:
    from ondie.kernels._native import ffi as ffi
    from ondie.kernels._native import lib as lib
except ModuleNotFoundError:  # a checkout that was not built: NumPy and Numba still work
    ffi = None
    lib = None

BACKENDS = ("numpy", "numba", "c")
ISAS = ("base", "avx2", "avx512")  # in the order of enum ondie_isa, narrowest first


@cache
def isas() -> tuple[str, ...]:
    """Instruction sets of the C extension that this processor runs, widest last; () without C."""
    if lib is None:
        return ()
    return tuple(name for i, name in enumerate(ISAS) if lib.ondie_isa_runs(i))


def backends() -> tuple[str, ...]:
    """Backends usable here: "numpy" and "numba" always, "c" where the extension was built."""
    return BACKENDS if lib is not None else BACKENDS[:2]


def choose(backend: str, isa: str | None) -> tuple[str, str | None]:
    """Resolve "auto" and the instruction set: (backend, isa), isa None except for "c".

    "auto" is C with its widest instruction set where the extension is importable, else Numba.
    """
    if backend not in ("auto", *BACKENDS):
        raise unknown("backend", backend, ("auto", *BACKENDS))
    if backend == "auto":
        backend = "c" if lib is not None else "numba"
    if backend != "c":
        if isa is not None:
            raise KernelError(f"isa: {isa!r} given with backend {backend!r}; only 'c' takes one")
        return backend, None
    if lib is None:
        raise KernelError(
            "backend 'c': the extension is not built; pip install the package, or use 'numba'"
        )
    if isa is None:
        return backend, isas()[-1]
    if isa not in ISAS:
        raise unknown("isa", isa, ISAS)
    if isa not in isas():
        raise KernelError(f"isa {isa!r}: this processor runs {', '.join(isas())}")
    return backend, isa


def pointer(ctype: str = "float[]") -> Callable[[np.ndarray], Any]:
    """A function from a contiguous array to a C pointer that keeps the array alive."""
    return partial(ffi.from_buffer, ffi.typeof(ctype))


def function(name: str, isa: str | None, *leading: int) -> Callable[..., None]:
    """ondie_<name> with isa and `leading` arguments bound, its status turned into an exception."""
    compiled = partial(getattr(lib, f"ondie_{name}"), ISAS.index(isa or "base"), *leading)

    def call(*arguments: Any) -> None:
        status = compiled(*arguments)
        if status:
            if status == lib.ONDIE_OVERLAP:
                raise KernelError(f"{name}: two of the arrays share memory; pass separate ones")
            raise KernelError(f"{name}: status {status} for isa {isa!r}")

    return call
