"""Arithmetic of the optimizer update of one step, on any range of the flat parameter vector.

Owns the choice of kernel, its coefficients per step and parameter group, and the conversion of
values to a format. Does not own memory: the caller supplies the vectors.
Source: ondie.kernels; the trace's hyperparameters per step and group.

Two cases have no dedicated kernel: the format bf16_master, and a block of codes with a boundary
between two parameter groups. In these cases the stored values are converted to FP32, updated with
the FP32 kernel, and converted back. The kernels of the other formats are defined by this
sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ondie.emu.paths.layout.formats import Stored
from ondie.emu.units import InputError
from ondie.kernels import FORMATS, OPS, get
from ondie.kernels.cast import narrow, widen
from ondie.kernels.codes import codes, numpy_encode
from ondie.kernels.formats import BLOCK, NONE
from ondie.kernels.stochastic import key
from ondie.kernels.tiles import numpy_update
from ondie.kernels.update import SIGNED
from ondie.traces import Trace

CASTS = {np.dtype(np.float16): "float16", np.dtype(np.uint16): "bfloat16"}


class Scalars(NamedTuple):
    """Scalar arguments of the update kernel for one step and one parameter group."""

    coef: np.ndarray
    key: int | None
    """Key of stochastic rounding; None if the kernel does not round stochastically."""


class Arithmetic:
    """Update kernel of a trace, with its arguments.

    ``form``: "canonical" or "torch" (ondie.kernels.FORMS). ``backend``: backend of the kernel, or
    "auto". ``format``: storage format of vectors and gradients (layout/formats.py). ``seed``: seed
    of stochastic rounding. Raises InputError if the trace's optimizer has no kernel, or if the
    trace has no initial weights.
    """

    def __init__(
        self, trace: Trace, form: str = "canonical", backend: str = "auto", format: str = "fp32",
        seed: int = 0,
    ) -> None:  # fmt: skip
        if trace.op not in OPS:
            raise InputError(
                f"{trace.name}: optimizer operation {trace.op!r} has no update kernel; "
                f"known: {', '.join(OPS)}"
            )
        if trace.weights("initial") is None:
            raise InputError(
                f"{trace.name}: the trace has no initial weights to update; use a trace that "
                f"was recorded by `ondie record --payload`"
            )
        self.trace, self.seed = trace, seed & 0xFFFFFFFF
        self.layout = Stored(format, trace.op)
        own = format if format in FORMATS else "fp32"
        self.kernel = get(trace.op, backend=backend, form=form, format=own)
        self._plain = get(trace.op, backend=backend, form=form)
        self.given: Mapping[str, np.ndarray] | None = None
        """Weights and states before the first step, by slot name. None selects the values of the
        trace."""
        self.ranges = trace.group_ranges()
        self.numbers = self._numbers()

    def _numbers(self) -> list[int]:
        """Return, for each parameter range, the index of its first element within its parameter
        group. Stochastic rounding uses this index."""
        seen: dict[int, int] = {}
        found = []
        for first, last, group in self.ranges:
            found.append(seen.get(group, 0))
            seen[group] = found[-1] + last - first
        return found

    def initial(self) -> dict[str, np.ndarray]:
        """Return the weights and states before the first step, by slot name, in the types of the
        storage format."""
        if self.given is not None:
            return {name: values.copy() for name, values in self.given.items()}
        weights = self.trace.weights("initial")
        assert weights is not None
        form = self.layout.format
        found = {"w": self.cast(weights, self.layout.vectors[0].dtype)}
        states = self.trace.states()
        for vector in self.layout.vectors[1:]:
            if vector.coded:
                found[vector.name] = np.empty(len(weights), vector.dtype)
                scale = found[f"{vector.name}_scale"] = np.empty(
                    -(-len(weights) // BLOCK), np.float32
                )
                map_ = codes(form.codes, SIGNED[vector.name])
                with np.errstate(all="ignore"):
                    numpy_encode(states[vector.name], found[vector.name], scale, map_)
            else:
                found[vector.name] = self.cast(states[vector.name], vector.dtype)
        return found

    def gradient(self, values: np.ndarray) -> np.ndarray:
        """Return a gradient, given as float32[n], in the gradient type of the storage format,
        [n]."""
        dtype = self.layout.gradient.dtype
        return values if dtype == values.dtype else self.cast(values, dtype)

    @staticmethod
    def cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return ``values``, float32[n], converted to ``dtype`` with rounding to nearest even."""
        return narrow(values, CASTS[dtype]) if dtype in CASTS else values.copy()

    @staticmethod
    def wide(values: np.ndarray) -> np.ndarray:
        """Return stored values (FP32, FP16, or BF16 as uint16) converted to float32[n]."""
        return widen(values, CASTS[values.dtype]) if values.dtype in CASTS else values

    def shown(self, weights: np.ndarray) -> np.ndarray:
        """Return the weights that the model computes with, [n]: the stored weights, converted to
        16 bits if the format keeps a 16-bit copy for the model."""
        return (
            weights if self.layout.shown == weights.dtype else self.cast(weights, self.layout.shown)
        )

    def coefficients(self, step: int) -> list[Scalars]:
        """Return the scalar kernel arguments of each parameter group at ``steps[step]``."""
        step_record = self.trace.steps[step]
        random = self.kernel.random
        return [
            Scalars(
                self.kernel.coefficients(hyper, step_record.count),
                key(step_record.count, self.seed + (group << 32)) if random else None,
            )
            for group, hyper in enumerate(step_record.hyper)
        ]

    def apply(
        self,
        coefficients: Sequence[Scalars],
        start: int,
        stop: int,
        vectors: dict[str, np.ndarray],
        gradient: np.ndarray,
    ) -> None:
        """Update parameters [start, stop) in place.

        ``coefficients``: scalar arguments by parameter group. ``vectors`` (w and the states by slot
        name) and ``gradient`` hold only these parameters, in the stored types. If vectors are
        stored as codes, the range must consist of whole blocks of codes, except for the last block
        of all parameters. If the format has a separate copy of the weights for the model, this copy
        is added to ``vectors`` as "out".
        """
        if self.layout.format.out != NONE:
            vectors["out"] = np.empty(stop - start, self.layout.shown)
        here = [
            (max(first, start) - start, min(last, stop) - start, group, number + start - first)
            for (first, last, group), number in zip(self.ranges, self.numbers, strict=True)
            if max(first, start) < min(last, stop)
        ]
        cut = self.layout.format.codes and any(a % BLOCK for a, *_ in here)
        if cut or self.kernel.format != self.layout.name:
            self._between_casts(coefficients, here, vectors, gradient)
            return
        for a, b, group, number in here:
            arrays = [
                vectors[slot.name][a // slot.share : -(-b // slot.share)]
                for slot in self.kernel.slots[2:]
            ]
            states = arrays[:-1] if "out" in vectors else arrays
            scalars = coefficients[group]
            self.kernel(
                vectors["w"][a:b], gradient[a:b], states, scalars.coef,
                out=vectors["out"][a:b] if "out" in vectors else None,
                first=number + a, key=scalars.key,
            )  # fmt: skip

    def _between_casts(
        self,
        coefficients: Sequence[Scalars],
        here: Sequence[tuple[int, int, int, int]],
        vectors: dict[str, np.ndarray],
        gradient: np.ndarray,
    ) -> None:
        def plain(
            weights: np.ndarray, gradients: np.ndarray, states: list[np.ndarray], _: object
        ) -> None:
            for start, stop, group, _number in here:
                parts = [state[start:stop] for state in states]
                self._plain(
                    weights[start:stop], gradients[start:stop], parts, coefficients[group].coef
                )

        names = [slot.name for slot in self.layout.slots if slot.name != "g"]
        arrays = [vectors["w"], gradient, *(vectors[name] for name in names[1:])]
        signs = [SIGNED[name] for name in self.layout.states]
        with np.errstate(all="ignore"):
            numpy_update(plain, self.layout.format, signs, arrays, coefficients[0].coef, 0, 0)

    def reference(
        self, steps: int, sent: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> np.ndarray:
        """Return the weights after ``steps`` steps of the same kernel outside the emulator,
        [n_params], in the stored type. ``sent``: function that returns a gradient as it arrives
        after transfer, for example after compression, or None if gradients arrive unchanged.
        """
        vectors = self.initial()
        for i in range(steps):
            if self.trace.steps[i].skipped:
                continue
            gradient = self.trace.gradient(i)
            gradient = self.gradient(gradient if sent is None else sent(gradient))
            self.apply(self.coefficients(i), 0, self.trace.n_params, vectors, gradient)
        return vectors["w"]
