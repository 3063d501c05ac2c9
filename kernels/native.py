"""Access to the C extension.

This module owns calls of the extension, the list of instruction sets that this processor runs, and
the choice of a backend. It never falls back from a backend that the caller named.
Source: csrc/ondie.h.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from .errors import KernelError, unknown

try:
    from ondie.kernels._native import ffi as ffi
    from ondie.kernels._native import lib as lib
except ModuleNotFoundError:  # the extension was not built: NumPy and Numba still work
    ffi = None
    lib = None
else:
    from ondie.kernels._call import Caller as OneCaller  # built together with it

_FLOATS = None if ffi is None else ffi.typeof("float[]")
_PARTS = None if ffi is None else ffi.typeof("ondie_part[]")
BACKENDS = ("numpy", "numba", "c")
ISAS = ("base", "avx2", "avx512")  # order of enum ondie_isa, narrowest first


@cache
def isas() -> tuple[str, ...]:
    """Return the C extension's instruction sets that this processor runs, widest last.

    The result is empty if the extension is not built.
    """
    if lib is None:
        return ()
    return tuple(name for i, name in enumerate(ISAS) if lib.ondie_isa_runs(i))


def backends() -> tuple[str, ...]:
    """Return the usable backends: "numpy", "numba", and "c" if the extension is built."""
    return BACKENDS if lib is not None else BACKENDS[:2]


def choose(backend: str, isa: str | None) -> tuple[str, str | None]:
    """Resolve "auto" and the instruction set; return (backend, isa), with isa None except for "c".

    "auto" selects C with its widest instruction set if the extension is built, else Numba. Raises
    KernelError for unknown names and for a backend or instruction set that cannot run here.
    """
    if backend not in ("auto", *BACKENDS):
        raise unknown("backend", backend, ("auto", *BACKENDS))
    if backend == "auto":
        backend = "c" if lib is not None else "numba"
    if backend != "c":
        if isa is not None:
            raise KernelError(
                f"isa {isa!r}: backend {backend!r} has no instruction sets; use backend 'c'"
            )
        return backend, None
    if lib is None:
        raise KernelError(
            "backend 'c': the C extension is not built; install the package ondie with pip, which "
            "builds it, or use backend 'numba'"
        )
    if isa is None:
        return backend, isas()[-1]
    if isa not in ISAS:
        raise unknown("isa", isa, ISAS)
    if isa not in isas():
        raise KernelError(f"isa {isa!r}: this processor runs only {', '.join(isas())}")
    return backend, isa


def pointer(ctype: str = "float[]") -> Callable[[np.ndarray], Any]:
    """Return a function that converts a contiguous array to a C pointer.

    The pointer keeps the array alive. ``ctype``: C type of the memory.
    """
    return partial(ffi.from_buffer, ffi.typeof(ctype))


def function(name: str, isa: str | None, *leading: int) -> Callable[..., None]:
    """Return a function that calls the C function ondie_<name>.

    The first arguments of the C function are the instruction set ``isa`` (None: "base") and
    ``leading``. The returned function raises KernelError if the C function returns a status other
    than 0.
    """
    compiled = partial(getattr(lib, f"ondie_{name}"), ISAS.index(isa or "base"), *leading)

    def call(*arguments: Any) -> None:
        raise_status(name, compiled(*arguments))

    return call


def call(name: str, *arguments: Any) -> Any:
    """Call the C function ondie_<name>, which takes no instruction set, and return its result.
    Arrays are passed as pointers to their elements."""
    kinds = {"f4": "float[]", "u4": "uint32_t[]"}
    given = [
        ffi.from_buffer(kinds[array.dtype.str[1:]], array)
        if isinstance(array, np.ndarray)
        else array
        for array in arguments
    ]
    return getattr(lib, f"ondie_{name}")(*given)


def raise_status(name: str, status: int) -> None:
    """Raise KernelError if the status of the C function ``name`` is not 0."""
    if status == 0:
        return
    if status == lib.ONDIE_OVERLAP:
        raise KernelError(f"{name}: two of the arrays share memory; pass separate arrays")
    raise KernelError(f"{name}: the C function returned status {status}")


PLACES = ("w", "g", "a", "b", "out", "scale_a", "scale_b")
"""Names of the array pointers in the C record ondie_part (one tensor or page of an update), in
order."""


def places(names: Sequence[str], states: Sequence[str]) -> tuple[int, ...]:
    """Return the index in PLACES of each array in ``names``. ``states``: names of the operation's
    states, which use the places "a" and "b" in this order."""
    known = {"w": "w", "g": "g", "out": "out"}
    for state, place in zip(states, "ab", strict=False):
        known |= {state: place, f"{state}_scale": f"scale_{place}"}
    return tuple(PLACES.index(known[name]) for name in names)


@cache
def maps(name: str) -> Any:
    """Return the tables of a code map as C records ondie_codes[2]: signed, then unsigned."""
    from .codes import codes

    found = ffi.new("ondie_codes[2]")
    for target, signed in zip(found, (True, False), strict=True):
        code_map = codes(name, signed)
        for field in ("value", "bucket", "line", "limit", "to_line"):
            ffi.memmove(
                getattr(target, field), getattr(code_map, field), getattr(code_map, field).nbytes
            )
        target.zero, target.base, target.least = code_map.zero, code_map.base, code_map.least
    return found


One = Callable[[tuple[np.ndarray, ...], np.ndarray, int, int, int | None], int | None]
"""Function that updates one tensor: (arrays, coef, threads, first, key) -> status. If an argument
is wrong or must be copied, nothing is updated and the result is None. Source: csrc/call.c."""


class Caller:
    """Interface to the C function ondie_update with a fixed instruction set, operation, variant and
    code map."""

    def __init__(self, isa: str | None, op: str, variant: int, codes: str):
        number = getattr(lib, f"ONDIE_{op.upper()}")
        self._what = (ISAS.index(isa or "base"), number, variant)
        self._maps = maps(codes) if codes else ffi.NULL
        self._name = op

    def one(
        self, slots: Sequence[tuple[int, np.dtype, int, bool]], coefs: int, random: bool
    ) -> One:
        """Return a function that updates one tensor; see One.

        slots: for each array, its index in PLACES, its type, the number of parameters per entry,
        and True if the array is written. coefs: number of coefficients. random: True if each step
        needs a key.
        """
        update = ffi.addressof(lib, "ondie_update_one")
        address, codes = (int(ffi.cast("uintptr_t", at)) for at in (update, self._maps))
        return OneCaller(address, *self._what, codes, coefs, random, tuple(slots))

    def bound(self, parts: np.ndarray, coef: np.ndarray, threads: int) -> Callable[[int], int]:
        """Return a function that updates all ``parts``. Its argument is the key of the random bits
        (`stochastic.key`), and its result is a status.

        parts: records of type ondie_part (tensors or pages). Pointers are cast once. The caller
        keeps `parts` and `coef` alive.
        """
        here, scalars = ffi.from_buffer(_PARTS, parts), ffi.from_buffer(_FLOATS, coef)
        call = ffi.new(
            "ondie_call *", (*self._what, threads, here, len(parts), scalars, self._maps)
        )
        return partial(lib.ondie_update, call)

    def check(self, status: int) -> None:
        """Raise KernelError if ``status``, the result of an update, is not 0."""
        raise_status(self._name, status)


def limit(
    isa: str, threads: int, slots: Sequence[Any], places: tuple[int, ...],
    arrays: Sequence[np.ndarray],
) -> Callable[[], None]:  # fmt: skip
    """Return a function that calls ondie_limit on the arrays of an update, in slot order.

    ondie_limit reads and writes the bytes of an update with almost no arithmetic. Scales are
    excluded.
    """
    each = [0] * len(PLACES)
    for place, slot in zip(places, slots, strict=True):
        if slot.share == 1:
            each[place] = slot.dtype.itemsize
    sizes = ffi.new("int32_t[5]", each[:5])
    part, kept = ffi.new("ondie_part *"), [ffi.from_buffer(array) for array in arrays]
    for place, pointer in zip(places, kept, strict=True):
        if each[place]:
            setattr(part, PLACES[place], pointer)
    part.n = arrays[0].size
    run = partial(lib.ondie_limit, ISAS.index(isa), threads, part, sizes)

    def call() -> None:
        assert kept, "the arrays must live"
        raise_status("limit", run())

    return call
