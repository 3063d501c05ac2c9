"""Update kernels: lookup by name, argument checks, and execution on a backend.

This module owns the `Update` class and `get`. It does not contain arithmetic; the operations are in
adam.py, sgd.py, adagrad.py and on_die.py, and error-correcting codes are in bch.py and ldpc.py.
Source: this project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from . import hyper, native
from .contract import Array, Definition
from .errors import KernelError, unknown
from .formats import BLOCK, CODES, F32, FORMATS, NONE, TYPES, Format
from .memory import aligned_empty
from .native import BACKENDS
from .threads import checked, run

if TYPE_CHECKING:
    from .bch import Bch
    from .ldpc import Ldpc

OPS = ("sgd", "momentum", "nesterov", "adam", "adamw", "adagrad")
ON_DIE = ("adam_on_die", "adamw_on_die", "adagrad_on_die")
ECC = ("bch", "ldpc")  # error correcting codes
ECC_SHAPES = {
    "bch": (("m", "t", "data_bytes"), ("crc",)),
    "ldpc": ((), ("data_bytes", "circulant", "seed")),
}
"""Names of the required and of the optional arguments of `get` for each error-correcting code."""
FORMS = ("canonical", "torch")
SIGNED = {"m": True, "v": False}  # by state

_CONTIGUOUS, _ALIGNED, _WRITABLE = 0x1, 0x100, 0x400  # bits of ndarray.flags.num, fast to test
_GOOD = _CONTIGUOUS | _ALIGNED | _WRITABLE
_F32 = TYPES[F32]


def _definitions() -> dict[str, Definition]:
    """Return the definitions of all update operations by name."""
    from . import adagrad, adam, on_die, sgd  # imported when the first kernel is created

    return {**sgd.DEFINITIONS, **adam.DEFINITIONS, **adagrad.DEFINITIONS, **on_die.DEFINITIONS}


@dataclass(frozen=True)
class Slot:
    """One array of an update: its name and type, parameters per entry, and whether it is
    written.
    """

    name: str
    dtype: np.dtype
    share: int = 1  # BLOCK for scales
    written: bool = True

    def size(self, count: int) -> int:
        """Return the number of array entries that ``count`` parameters need."""
        return -(-count // self.share)


class Update:
    """An update kernel; `get` creates it. Calling it updates weights and states in place."""

    op: str
    backend: str
    form: str
    isa: str | None
    format: str
    states: tuple[str, ...]
    takes: tuple[str, ...]  # names of the hyperparameters
    random: bool  # True if each step needs a key
    slots: tuple[Slot, ...]
    places: tuple[int, ...]  # indices of the slots in native.PLACES
    caller: native.Caller  # backend "c" only
    _one: native.One | None = None  # backend "c" only

    def __init__(self, op: str, backend: str, form: str, isa: str | None, format: str):
        definitions = _definitions()
        if op not in definitions:
            raise unknown("operation", op, (*definitions, *ECC))
        if form not in FORMS:
            raise unknown("form", form, FORMS)
        if format not in FORMATS:
            raise unknown("format", format, tuple(FORMATS))
        self._definition, self._format = definitions[op], FORMATS[format]
        if form not in self._definition.numpy:
            raise KernelError(f"{op}: form {form!r}: must be {' or '.join(self._definition.numpy)}")
        if format != "fp32" and (form != "canonical" or op in ON_DIE):
            raise KernelError(
                f"{op}: format {format!r} with form {form!r}: formats other than fp32 require the "
                f"canonical form of {', '.join(OPS)}"
            )
        if self._format.codes and not self._definition.states:
            raise KernelError(
                f"{op}: format {format!r}: the operation has no states to store in 8 bits"
            )
        self.op, self.form, self.format = op, form, format
        self.backend, self.isa = native.choose(backend, isa)
        self.takes, self.random = self._definition.takes, self._format.random
        self.slots = _slots(self._definition.states, self._format)
        self.states = tuple(slot.name for slot in self.slots[2:] if slot.name != "out")
        self.places = native.places([slot.name for slot in self.slots], self._definition.states)
        self._plain = format == "fp32"
        self._signs = tuple(SIGNED[name] for name in self._definition.states)
        if self.backend == "c":
            variant = 1 if form == "torch" else self._format.variant
            name, codes = self._definition.c, self._format.codes
            self.caller = native.Caller(self.isa, name, variant, codes)
            self._one = self.caller.one(
                [
                    (place, slot.dtype, slot.share, slot.written)
                    for place, slot in zip(self.places, self.slots, strict=True)
                ],
                self._definition.coefs,
                self.random,
            )
        else:
            self._run = self._numpy() if self.backend == "numpy" else self._numba()

    def __repr__(self) -> str:
        isa = f", isa={self.isa!r}" if self.isa else ""
        return (
            f"get({self.op!r}, backend={self.backend!r}, form={self.form!r}{isa}, "
            f"format={self.format!r})"
        )

    def bytes_per_param(self) -> int:
        """Return the DRAM traffic of one update in bytes per parameter, read plus written.

        The scales of 8-bit states are excluded (8 bytes per state for each block of 256 values).
        """
        return self._format.traffic(len(self._definition.states))

    def zeros(self, count: int) -> tuple[np.ndarray, ...]:
        """Return the states of ``count`` parameters before the first step, aligned to 64 bytes."""
        from .codes import codes

        found = []
        for slot in self.slots[2:]:
            if slot.name in self.states:
                state = aligned_empty(slot.size(count), slot.dtype)
                state[:] = 0
                if slot.dtype == TYPES[CODES]:
                    state[:] = codes(self._format.codes, SIGNED[slot.name]).zero
                found.append(state)
        return tuple(found)

    def coefficients(self, hyper_parameters: Mapping[str, float], step: int) -> Array:
        """Convert hyperparameters to the coefficients of step number `step`, counted from 1.

        Everything is computed in double precision and rounded once to float32. Returns a 1-D array
        whose length depends only on the operation. Raises KernelError naming the key that is
        unknown, missing or out of range.
        """
        step = hyper.checked_step(self.op, step)
        values = hyper.checked(self.op, self._definition.takes, hyper_parameters)
        with np.errstate(over="ignore"):
            coef = np.array(self._definition.fold(values, step, self.form), dtype=np.float32)
        if not np.isfinite(coef).all():
            raise KernelError(
                f"{self.op}: {dict(hyper_parameters)} at step {step}: a coefficient exceeds the "
                "range of float32; use less extreme values"
            )
        return coef

    def __call__(
        self,
        w: np.ndarray,
        g: np.ndarray,
        states: Sequence[np.ndarray],
        coef: Array,
        threads: int = 1,
        *,
        out: np.ndarray | None = None,
        first: int = 0,
        key: int | None = None,
    ) -> None:
        """Update `w` and `states` in place with gradient `g`.

        The arrays are flat, of one size, and of the types that `slots` names; for format "fp32" all
        are float32. out: array for the new 16-bit weights, for formats "fp16" and "bf16". first:
        number of the first element. key: key of the step (stochastic.key, a new one for each step),
        required for "bf16_stochastic". coef: the result of `coefficients`. The arrays must be
        contiguous and must not overlap. Any alignment works: a multiple of the element size avoids
        copies, and 64 bytes is fastest. Results do not depend on `threads`. Raises KernelError for
        an argument that breaks these rules.
        """
        arrays = (w, g, *states) if out is None else (w, g, *states, out)
        if self._one is not None:
            status = self._one(arrays, coef, threads, first, key)
            if status == 0:
                return
            if status is not None:
                self.caller.check(status)
        copied = self.check(arrays, coef)
        if copied is not None:
            self.apart(arrays)
            self.run(copied, coef, threads, first, key)
            for i, (array, result) in enumerate(zip(arrays, copied, strict=True)):
                if i != 1:
                    array[:] = result
            return
        self.run(arrays, coef, threads, first, key)

    def run(
        self,
        arrays: Sequence[np.ndarray],
        coef: Array,
        threads: int = 1,
        first: int = 0,
        key: int | None = None,
    ) -> None:
        """Apply the update in place to ``arrays``, given in the order of `slots`. The caller checks
        that the arrays follow the rules of :meth:`__call__`, which describes the other
        arguments."""
        number = self.checked_key(key)
        if type(first) is not int or not 0 <= first < 1 << 63:
            raise KernelError(f"{self.op}: first = {first!r}; must be a whole number, at least 0")
        if self._one is not None:
            status = self._one(tuple(arrays), coef, checked(threads), first, key)
            assert status is not None, "arrays of run() must be checked"
            self.caller.check(status)
            return
        if threads == 1:
            self._run(arrays, coef, first, number)
            return
        self.apart(arrays)

        def work(start: int, stop: int) -> None:
            parts = [
                array[start // slot.share : slot.size(stop)]
                for array, slot in zip(arrays, self.slots, strict=True)
            ]
            self._run(parts, coef, first + start, number)

        run(arrays[0].size, threads, work)

    def checked_key(self, key: int | None) -> int:
        """Return the key of a step, or 0 if the format does not use stochastic rounding.

        Raises KernelError for a missing key if the format uses stochastic rounding, because the
        same random bits in every step would bias the result.
        """
        if key is None:
            if self.random:
                raise KernelError(
                    f"{self.op}: format {self.format!r} needs key=stochastic.key(step)"
                )
            return 0
        if not isinstance(key, int) or not 0 <= key < 1 << 32:
            raise KernelError(f"{self.op}: key = {key!r}; must be from 0 to 2**32 - 1")
        return key

    def check_coef(self, coef: Array) -> None:
        """Raise KernelError unless `coef` has the type and shape of a result of `coefficients`."""
        good = coef.dtype == _F32 and coef.shape == (self._definition.coefs,)
        if not good or coef.flags.num & (_CONTIGUOUS | _ALIGNED) != _CONTIGUOUS | _ALIGNED:
            raise KernelError(f"{self.op}: coef must be a result of coefficients()")

    def check(
        self, arrays: Sequence[np.ndarray], coef: Array | None
    ) -> tuple[np.ndarray, ...] | None:
        """Check arrays in the order of `slots`; return None, or aligned copies if needed.

        Copies are needed if an array is not aligned to its element size. Raises KernelError for a
        wrong number, type, shape or layout of the arrays, and for wrong coefficients.
        """
        if len(arrays) != len(self.slots):
            names = ", ".join(slot.name for slot in self.slots)
            raise KernelError(f"{self.op}: {len(arrays)} arrays, expected {names}")
        count = arrays[0].size
        for array, slot in zip(arrays, self.slots, strict=True):  # fast path
            if array.flags.num & _GOOD != _GOOD or array.dtype != slot.dtype or array.ndim != 1:
                break
            if array.size != count and (slot.share == 1 or array.size != slot.size(count)):
                break
        else:
            if coef is not None:
                self.check_coef(coef)
            return None
        for array, slot in zip(arrays, self.slots, strict=True):
            flags, want = array.flags.num, (slot.size(count),)
            if array.dtype != slot.dtype or array.shape != want or not flags & _CONTIGUOUS:
                layout = "" if array.flags.c_contiguous else ", strided"
                shape = f"({want[0]},)" if arrays[0].ndim == 1 else "(n,)"
                raise KernelError(
                    f"{self.op}: {slot.name} is {array.dtype} {array.shape}{layout}, "
                    f"expected contiguous {slot.dtype} {shape}"
                )
            if slot.written and not flags & _WRITABLE:
                raise KernelError(f"{self.op}: {slot.name} is read-only; pass a writable array")
        if coef is not None:
            self.check_coef(coef)
        if all(array.flags.num & _ALIGNED for array in arrays):
            return None
        return tuple(array.copy() for array in arrays)

    def apart(self, arrays: Sequence[np.ndarray]) -> None:
        """Raise KernelError if two of the arrays share memory.

        The NumPy and Numba backends call this method. The C library makes the same check itself.
        """
        for i, array in enumerate(arrays):
            for other in arrays[i + 1 :]:
                if np.may_share_memory(array, other):
                    raise KernelError(
                        f"{self.op}: two of the arrays share memory; pass separate arrays"
                    )

    def _numpy(self) -> Callable[[Sequence[np.ndarray], Array, int, int], None]:
        """Return the function that updates arrays with NumPy."""
        from .tiles import numpy_update

        function = self._definition.numpy[self.form]

        def update(arrays: Sequence[np.ndarray], coef: Array, first: int, key: int) -> None:
            self.apart(arrays)
            with np.errstate(all="ignore"):
                if self._plain:
                    function(arrays[0], arrays[1], arrays[2:], coef)
                else:
                    numpy_update(function, self._format, self._signs, arrays, coef, first, key)

        return update

    def _numba(self) -> Callable[[Sequence[np.ndarray], Array, int, int], None]:
        """Return the function that updates arrays with Numba."""
        from .tiles import numba_update

        function = self._definition.numba[self.form]

        def update(arrays: Sequence[np.ndarray], coef: Array, first: int, key: int) -> None:
            self.apart(arrays)
            with np.errstate(all="ignore"):  # relevant only with NUMBA_DISABLE_JIT=1
                if self._plain:
                    function(*arrays, coef)
                else:
                    name = self._definition.c
                    numba_update(name, self._format, self._signs, arrays, coef, first, key)

        return update


def _slots(states: tuple[str, ...], form: Format) -> tuple[Slot, ...]:
    """Return the arrays of an update in a storage format, in order: w, g, states, out."""
    found = [Slot("w", TYPES[form.w]), Slot("g", TYPES[form.g], written=False)]
    for name in states:
        found.append(Slot(name, TYPES[form.state]))
        if form.codes:
            found.append(Slot(f"{name}_scale", _F32, BLOCK))
    if form.out != NONE:
        found.append(Slot("out", TYPES[form.out]))
    return tuple(found)


@overload
def get(
    op: Literal["bch"],
    backend: str = ...,
    form: str = ...,
    isa: str | None = ...,
    format: str = ...,
    *,
    m: int,
    t: int,
    data_bytes: int,
    crc: bool = ...,
) -> Bch: ...


@overload
def get(  # type: ignore[overload-overlap] # the str below is another name
    op: Literal["ldpc"],
    backend: str = ...,
    form: str = ...,
    isa: str | None = ...,
    format: str = ...,
    *,
    data_bytes: int = ...,
    circulant: int = ...,
    seed: int = ...,
) -> Ldpc: ...


@overload
def get(
    op: str,
    backend: str = ...,
    form: str = ...,
    isa: str | None = ...,
    format: str = ...,
) -> Update: ...


def get(
    op: str,
    backend: str = "auto",
    form: str = "canonical",
    isa: str | None = None,
    format: str = "fp32",
    **shape: Any,
) -> Update | Bch | Ldpc:
    """Return the update kernel of one operation, or an error-correcting code.

    op: one of OPS or ON_DIE, or ECC. backend: "numpy" (the definition), "numba", "c", or "auto",
    which selects "c" if the extension is built and "numba" otherwise; `.backend` holds the choice.
    form: "canonical", which rounds every operation separately, or "torch", which gives the bits of
    torch's fused CPU optimizer. isa: "base", "avx2" or "avx512" for backend "c", or None for the
    widest one that this processor runs. format: storage of the arrays, one of FORMATS.
    For "bch", m, t, data_bytes and crc are as in `bch.get`. For "ldpc", data_bytes, circulant and
    seed are as in `ldpc.get`. For both, form and format do not apply.
    All backends, instruction sets and thread counts give the same bits. A NaN is a NaN everywhere,
    but its payload and sign are not defined. Raises KernelError for an invalid argument.
    """
    if op not in ECC:
        if shape:
            raise KernelError(
                f"{op}: {', '.join(shape)}: unknown; the only arguments of {op} are backend, form, "
                "isa and format"
            )
        return Update(op, backend, form, isa, format)
    for name, value, default in (("form", form, "canonical"), ("format", format, "fp32")):
        if value != default:
            raise KernelError(f"{op}: {name} = {value!r}: does not apply to this code; omit it")
    needed, optional = ECC_SHAPES[op]
    if unknown_names := [name for name in shape if name not in (*needed, *optional)]:
        raise unknown(f"argument of {op!r}", unknown_names[0], (*needed, *optional))
    if missing := [name for name in needed if name not in shape]:
        raise KernelError(f"{op}: {', '.join(missing)} must be given")
    if op == "bch":
        from . import bch

        return bch.get(backend=backend, isa=isa, **shape)
    from . import ldpc

    return ldpc.get(backend=backend, isa=isa, **shape)


__all__ = ["BACKENDS", "ECC", "FORMATS", "FORMS", "ON_DIE", "OPS", "Slot", "Update", "get"]
