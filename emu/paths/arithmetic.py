"""The arithmetic of one training step's update, on any piece of the flat parameter vector.

Owns the choice of kernel and its coefficients per step and parameter group. Does not own memory:
who calls brings the vectors, wherever they came from.
Source: ondie.kernels; the trace's hyper-parameters per step and group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ondie.emu.units import InputError
from ondie.kernels import OPS, get
from ondie.kernels.cast import narrow
from ondie.traces import Trace


class Arithmetic:
    """Update kernel of a trace.

    ``form`` is "canonical" or "torch" (ondie.kernels.FORMS); ``format`` how vectors and gradients
    are stored: "fp32", or "bf16_all", their BF16 bits as uint16. Raises InputError for a trace
    whose optimizer has no kernel, or that holds no initial weights.
    """

    def __init__(
        self, trace: Trace, form: str = "canonical", backend: str = "auto", format: str = "fp32"
    ) -> None:
        if trace.op not in OPS:
            raise InputError(
                f"{trace.name}: optimizer operation {trace.op!r} has no update kernel; "
                f"known are {', '.join(OPS)}"
            )
        if trace.weights("initial") is None:
            raise InputError(f"{trace.name}: no initial weights, so nothing to update")
        self.trace = trace
        self.kernel = get(trace.op, backend=backend, form=form, format=format)
        self.narrow = format == "bf16_all"
        self.ranges = trace.group_ranges()

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the vectors an update writes: the weights and the states."""
        return ("w", *self.kernel.states)

    def stored(self, values: np.ndarray) -> np.ndarray:
        """float32[n] as the format stores it: a copy, or rounded to BF16, uint16[n]."""
        return narrow(values, "bfloat16") if self.narrow else values.copy()

    def coefficients(self, step: int) -> list[np.ndarray]:
        """Folded scalars of each parameter group at ``steps[step]``, float32."""
        s = self.trace.steps[step]
        return [self.kernel.coefficients(hyper, s.count) for hyper in s.hyper]

    def apply(
        self,
        coefficients: Sequence[np.ndarray],
        start: int,
        stop: int,
        vectors: Mapping[str, np.ndarray],
        gradient: np.ndarray,
    ) -> None:
        """Update parameters [start, stop) in place.

        ``vectors`` (w and the states) and ``gradient`` hold just these parameters, as `stored`
        gives them.
        """
        for first, last, group in self.ranges:
            a, b = max(first, start), min(last, stop)
            if a >= b:
                continue
            piece = slice(a - start, b - start)
            self.kernel(
                vectors["w"][piece],
                gradient[piece],
                [vectors[name][piece] for name in self.kernel.states],
                coefficients[group],
            )

    def reference(
        self, steps: int, sent: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> np.ndarray:
        """Weights after ``steps`` steps of the same kernel outside the emulator, as the format
        stores them. ``sent``: what a path makes of a gradient on its way."""
        initial = self.trace.weights("initial")
        assert initial is not None
        vectors = {"w": initial, **self.trace.states()}
        vectors = {name: self.stored(values) for name, values in vectors.items()}
        for i in range(steps):
            if self.trace.steps[i].skipped:
                continue
            g = self.trace.gradient(i)
            g = g if sent is None else sent(g)
            g = self.stored(g) if self.narrow else g
            self.apply(self.coefficients(i), 0, self.trace.n_params, vectors, g)
        return vectors["w"]
