"""Owns: what an update kernel is: looked up by name, its arguments checked, run on a backend.
Does not: contain arithmetic; the operations are in adam.py, sgd.py and adagrad.py.
Source: own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import hyper, native
from .errors import KernelError, unknown
from .native import BACKENDS
from .threads import run

Array = NDArray[np.float32]
States = Sequence[Array]
Mad = Callable[[Any, Any, Any], Any]  # a * b + c, rounded once or twice

OPS = ("sgd", "momentum", "nesterov", "adam", "adamw", "adagrad")
FORMS = ("canonical", "torch")  # in the order of enum ondie_form

_F32 = np.dtype(np.float32)
_CONTIGUOUS, _ALIGNED, _WRITABLE = 0x1, 0x100, 0x400  # numpy's ndarray flags, much faster as bits
_GOOD = _CONTIGUOUS | _ALIGNED | _WRITABLE


@dataclass(frozen=True)
class Definition:
    """One operation: its states, hyperparameters and traffic, and its three implementations."""

    states: tuple[str, ...]
    takes: tuple[str, ...]  # hyperparameters
    traffic: int  # bytes read and written per parameter
    fold: Callable[[Mapping[str, float], int, str], list[float]]
    numpy: Mapping[str, Callable[[Array, Array, States, Array], None]]  # by form
    numba: Mapping[str, Callable[..., None]]
    c: str  # ondie_<c> in csrc/ondie.h


def _definitions() -> dict[str, Definition]:
    from . import adagrad, adam, sgd  # they import this module

    return {**sgd.DEFINITIONS, **adam.DEFINITIONS, **adagrad.DEFINITIONS}


class Update:
    """An update kernel; made by `get`. Calling it updates weights and states in place."""

    op: str
    backend: str
    form: str
    isa: str | None
    states: tuple[str, ...]

    def __init__(self, op: str, backend: str, form: str, isa: str | None):
        definitions = _definitions()
        if op not in definitions:
            raise unknown("operation", op, OPS)
        if form not in FORMS:
            raise unknown("form", form, FORMS)
        self.op, self.form = op, form
        self.backend, self.isa = native.choose(backend, isa)
        self._definition = definitions[op]
        self.states = self._definition.states
        self._run = getattr(self, f"_{self.backend}")()

    def __repr__(self) -> str:
        isa = f", isa={self.isa!r}" if self.isa else ""
        return f"get({self.op!r}, backend={self.backend!r}, form={self.form!r}{isa})"

    def bytes_per_param(self) -> int:
        """DRAM traffic of one update in bytes per parameter: what is read plus what is written."""
        return self._definition.traffic

    def coefficients(self, hyper_parameters: Mapping[str, float], step: int) -> Array:
        """Fold hyperparameters into the scalars of step number `step`, counted from 1.

        Everything is computed in double precision and rounded once to float32. Returns a 1-D
        array whose length depends on the operation only. Raises KernelError naming the key that
        is unknown, missing or out of range.
        """
        if step != int(step) or step < 1:
            raise KernelError(f"{self.op}: step = {step!r}, want a whole number, 1 or more")
        values = hyper.checked(self.op, self._definition.takes, hyper_parameters)
        with np.errstate(over="ignore"):
            coef = np.array(self._definition.fold(values, int(step), self.form), dtype=np.float32)
        if not np.isfinite(coef).all():
            raise KernelError(f"{self.op}: {dict(hyper_parameters)} at step {step} exceeds float32")
        return coef

    def __call__(
        self, w: Array, g: Array, states: Sequence[Array], coef: Array, threads: int = 1
    ) -> None:
        """Update `w` and `states` in place with gradient `g`; all flat float32 of one size.

        The arrays must be contiguous and must not overlap; any alignment works, 64 bytes is
        fastest, a multiple of 4 avoids copies. `coef` comes from `coefficients`.
        Results do not depend on `threads`.
        """
        arrays = (w, g, *states)
        if len(arrays) != 2 + len(self.states):
            raise KernelError(f"{self.op}: {len(states)} states, want {self.states or 'none'}")
        copied = self._check(arrays, coef)
        if copied is not None:
            self(copied[0], copied[1], copied[2:], coef, threads)
            w[:] = copied[0]
            for state, result in zip(states, copied[2:], strict=True):
                state[:] = result
            return
        if threads == 1:
            self._run(arrays, coef)
        else:
            run(w.size, threads, lambda i, j: self._run(tuple(a[i:j] for a in arrays), coef))

    def _check(self, arrays: tuple[Array, ...], coef: Array) -> tuple[Array, ...] | None:
        """None when the arrays can be used as they are, copies when they are not on 4 bytes."""
        shape = arrays[0].shape
        for a in arrays:  # this loop is most of a call's overhead
            if a.flags.num & _GOOD != _GOOD or a.dtype != _F32 or a.shape != shape:
                break
        else:
            if len(shape) == 1 and coef.dtype == _F32 and coef.flags.num & _GOOD == _GOOD:
                return None
        flags = [a.flags.num for a in arrays]
        for i, (f, a) in enumerate(zip(flags, arrays, strict=True)):
            if a.dtype != _F32 or a.shape != shape or len(shape) != 1 or not f & _CONTIGUOUS:
                raise self._bad(i, a, shape)
            if not f & _WRITABLE and i != 1:
                raise KernelError(f"{self.op}: {self._name(i)} is read-only, want a writable array")
        if coef.dtype != _F32 or coef.ndim != 1 or not coef.flags.aligned:
            raise KernelError(f"{self.op}: coef is not what coefficients() returns")
        return None if all(f & _ALIGNED for f in flags) else tuple(a.copy() for a in arrays)

    def _name(self, i: int) -> str:
        return ("w", "g", *self.states)[i]

    def _bad(self, i: int, a: Array, shape: tuple[int, ...]) -> KernelError:
        want = f"({shape[0]},)" if len(shape) == 1 else "(n,)"
        layout = "" if a.flags.c_contiguous else ", strided"
        return KernelError(
            f"{self.op}: {self._name(i)} is {a.dtype} {a.shape}{layout}, "
            f"want contiguous float32 {want}"
        )

    def _apart(self, arrays: tuple[Array, ...]) -> None:
        """C refuses overlapping arrays itself."""
        for i, a in enumerate(arrays):
            for b in arrays[i + 1 :]:
                if np.may_share_memory(a, b):
                    raise KernelError(
                        f"{self.op}: two of the arrays share memory; pass separate ones"
                    )

    def _numpy(self) -> Callable[[tuple[Array, ...], Array], None]:
        function = self._definition.numpy[self.form]

        def update(arrays: tuple[Array, ...], coef: Array) -> None:
            self._apart(arrays)
            with np.errstate(all="ignore"):
                function(arrays[0], arrays[1], arrays[2:], coef)

        return update

    def _numba(self) -> Callable[[tuple[Array, ...], Array], None]:
        function = self._definition.numba[self.form]

        def update(arrays: tuple[Array, ...], coef: Array) -> None:
            self._apart(arrays)
            with np.errstate(all="ignore"):  # matters under NUMBA_DISABLE_JIT only
                function(*arrays, coef)

        return update

    def _c(self) -> Callable[[tuple[Array, ...], Array], None]:
        function = native.function(self._definition.c, self.isa, FORMS.index(self.form))
        pointer = native.pointer()

        def update(arrays: tuple[Array, ...], coef: Array) -> None:
            function(*map(pointer, arrays), arrays[0].size, pointer(coef))

        return update


def get(op: str, backend: str = "auto", form: str = "canonical", isa: str | None = None) -> Update:
    """The update kernel of one operation.

    op: one of OPS. backend: "numpy" (the definition), "numba", "c", or "auto", which is "c" where
    the extension was built and else "numba"; the choice is in `.backend`. form: "canonical", every
    operation rounded separately, or "torch", the bits of torch's fused CPU optimizer. isa: "base",
    "avx2" or "avx512" for backend "c", None for the widest this processor runs.
    All backends, instruction sets and thread counts give the same bits; a NaN is a NaN everywhere,
    its payload and sign are not defined. Raises KernelError for a name that is not known.
    """
    return Update(op, backend, form, isa)


__all__ = ["BACKENDS", "FORMS", "OPS", "Definition", "Update", "get"]
