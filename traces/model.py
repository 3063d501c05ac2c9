"""The trace of a training run, step by step, as arrays and numbers.

This module owns the class Trace and the sources of its vectors. It does not own the records of
tensors and steps (records.py), access files (hdf5.py), import torch (record.py), or depend on
devices or update kernels. Source: the trace contract of this project; names of states and
hyperparameters as in torch.optim.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ondie.traces import step_times
from ondie.traces.consistency import OP_STATES, check
from ondie.traces.errors import TraceError
from ondie.traces.records import Contents, Step, Tensor

F32 = npt.NDArray[np.float32]


class Source(Protocol):
    """Interface of the source of a trace's vectors: memory, or a file that is read on demand."""

    def gradient(self, index: int) -> F32: ...
    def raw(self, index: int) -> npt.NDArray[Any] | None: ...
    def weights(self, which: str) -> F32 | None: ...
    def states(self) -> dict[str, F32]: ...
    def buffers(self) -> dict[str, npt.NDArray[Any]]: ...


@dataclass
class Memory:
    """A Source that holds its vectors in memory. Gradients are keyed by step index."""

    gradients: Mapping[int, F32] = field(default_factory=dict)
    weight_vectors: Mapping[str, F32] = field(default_factory=dict)
    state_vectors: Mapping[str, F32] = field(default_factory=dict)
    buffer_arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    raw_gradients: Mapping[int, npt.NDArray[Any]] = field(default_factory=dict)

    def gradient(self, index: int) -> F32:
        return self.gradients[index]

    def raw(self, index: int) -> npt.NDArray[Any] | None:
        return self.raw_gradients.get(index)

    def weights(self, which: str) -> F32 | None:
        return self.weight_vectors.get(which)

    def states(self) -> dict[str, F32]:
        return dict(self.state_vectors)

    def buffers(self) -> dict[str, npt.NDArray[Any]]:
        return dict(self.buffer_arrays)


@dataclass(frozen=True, eq=False)
class Trace(Contents):
    """A training run: list of tensors, scalars of each step (times, loss, hyperparameters), and, if
    recorded, gradients and weights.

    Flat vectors hold the trainable parameters in the optimizer's order: float32[n_params]. Raises
    TraceError for inconsistent contents.
    """

    source: Source = field(default_factory=Memory)
    digest: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the trace file. If there is no file, SHA-256 of the definition of the trace
        (tensors, steps, attributes)."""
        if self.digest is not None:
            return self.digest()
        text = repr((self.name, self.op, self.form, self.tensors, self.attrs))
        for step in self.steps:
            ready = b"" if step.ready_s is None else step.ready_s.tobytes()
            scalars = (step.loss, step.samples, step.forward_s, step.backward_s, step.hyper)
            text += repr((step.index, scalars, step.gradient_sha256, ready))
        return hashlib.sha256(text.encode()).hexdigest()

    def step(self, i: int) -> Step:
        """Return the step at position i in the trace. Raises TraceError if the position is
        invalid."""
        if not 0 <= i < len(self.steps):
            raise TraceError(
                f"{self.origin}: step {i}: this trace has steps 0 to {len(self.steps) - 1}"
            )
        return self.steps[i]

    def gradient(self, i: int) -> F32:
        """Return the gradient that the optimizer consumed at steps[i], float32[n_params].

        It is unscaled and clipped. Raises TraceError for an invalid position, for a trace without
        payload, for a skipped step, and if the stored vector contains NaN or infinity, or has the
        wrong type, length or hash.
        """
        step = self.step(i)
        if self.payload != "recorded":
            raise TraceError(
                f"{self.origin}: step {i}: payload is {self.payload!r}; record the trace "
                "with payload to get gradients"
            )
        if step.skipped:
            raise TraceError(
                f"{self.origin}: step {i}: no gradient is recorded, because loss scaling found a "
                "non-finite gradient and skipped this step; use another step"
            )
        vector = self._sized(self.source.gradient(step.index), f"gradient of step {i}")
        if not np.isfinite(vector).all():
            at = int(np.flatnonzero(~np.isfinite(vector))[0])
            name, where = self.locate(at)
            raise TraceError(
                f"{self.origin}: gradient of step {i}, tensor {name!r}: element "
                f"{where} is {vector[at]}; all must be finite"
            )
        if step.gradient_sha256 and vector_sha256(vector) != step.gradient_sha256:
            raise TraceError(
                f"{self.origin}: gradient of step {i}: sha256 {vector_sha256(vector)[:12]}... "
                f"differs from the recorded {step.gradient_sha256[:12]}...; the file is damaged"
            )
        return vector

    def timed(self, forward_s: float | None = None, backward_s: float | None = None) -> Trace:
        """Return the trace with its forward and backward times (s) replaced in every step.

        None keeps the recorded times. Gradients become ready at the same fractions of the backward
        pass as before. If the recorded backward pass took no time, the ready times become unknown.
        Raises TraceError for a negative or infinite time.
        """
        for name, value in (("forward_s", forward_s), ("backward_s", backward_s)):
            if value is not None and not 0 <= value < math.inf:
                raise TraceError(f"{name}: {value!r} s; must be at least 0")

        if forward_s is None and backward_s is None:
            return self
        return replace(
            self, steps=tuple(_with_times(step, forward_s, backward_s) for step in self.steps)
        )

    def at_rate(self, flop_per_s: float) -> Trace:
        """Return the trace with the times of an accelerator that computes at `flop_per_s`.

        The times of a step follow from its number of samples (step_times.py); the ready times of
        gradients change as in timed(). Raises TraceError if the trace does not state its
        multiply-accumulates or if the rate is not above 0.
        """
        if not 0 < flop_per_s < math.inf:
            raise TraceError(f"rate of {flop_per_s!r} FLOP/s; must be above 0")
        if not (self.macs_forward and self.macs_backward):
            raise TraceError(
                f"{self.origin}: the trace does not state its multiply-accumulates (macs_forward = "
                f"{self.macs_forward}, macs_backward = {self.macs_backward}); both must be above 0"
            )
        return replace(
            self,
            steps=tuple(
                _with_times(
                    step,
                    step_times.seconds(self.macs_forward, step.samples, flop_per_s),
                    step_times.seconds(self.macs_backward, step.samples, flop_per_s),
                )
                for step in self.steps
            ),
        )

    def raw_gradient(self, i: int) -> npt.NDArray[Any] | None:
        """Return the 16-bit gradient of steps[i] before unscaling; None if it was not recorded.

        The type is float16, or uint16 for bfloat16.
        """
        return self.source.raw(self.step(i).index)

    def weights(self, which: str) -> F32 | None:
        """Return the weights before steps[0] ("initial") or after the last step ("final").

        The result is float32[n_params], or None if the weights were not recorded. Raises TraceError
        for another value of `which` and for a vector of wrong type or length.
        """
        if which not in ("initial", "final"):
            raise TraceError(f"{self.origin}: weights {which!r}: must be 'initial' or 'final'")
        vector = self.source.weights(which)
        return None if vector is None else self._sized(vector, f"{which} weights")

    def states(self) -> dict[str, F32]:
        """Return the optimizer states before steps[0] by name, float32[n_params].

        States that were not recorded are zeros. Raises TraceError for a vector of wrong type or
        length.
        """
        stored = self.source.states()
        out: dict[str, F32] = {}
        for name in OP_STATES[self.op]:
            if name in stored:
                out[name] = self._sized(stored[name], f"state {name!r}")
            else:
                out[name] = np.zeros(self.n_params, np.float32)
        return out

    def buffers(self) -> dict[str, npt.NDArray[Any]]:
        """Return the model's buffers (such as running means) before steps[0], by name."""
        return self.source.buffers()

    def group_ranges(self) -> list[tuple[int, int, int]]:
        """Return the flat vector's runs (start, stop, group) of elements that belong to one
        parameter group. The runs cover [0, n_params)."""
        runs: list[tuple[int, int, int]] = []
        for tensor in self.trainable:
            if tensor.size == 0:
                continue
            stop = tensor.offset + tensor.size
            if runs and runs[-1][2] == tensor.group:
                runs[-1] = (runs[-1][0], stop, tensor.group)
            else:
                runs.append((tensor.offset, stop, tensor.group))
        return runs

    def locate(self, element: int) -> tuple[str, int]:
        """Return the tensor that contains an element of the flat vector.

        The result is (tensor name, element inside the tensor). Raises TraceError for an element
        outside the vector.
        """
        for tensor in self.trainable:
            if tensor.offset <= element < tensor.offset + tensor.size:
                return tensor.name, element - tensor.offset
        raise TraceError(f"{self.origin}: element {element}: must be below {self.n_params}")

    def _sized(self, vector: F32, what: str) -> F32:
        """Return ``vector``. Raises TraceError if its type or length is wrong; ``what`` names the
        vector."""
        if vector.shape != (self.n_params,) or vector.dtype != np.float32:
            raise TraceError(
                f"{self.origin}: {what}: {vector.dtype}{list(vector.shape)}; "
                f"must be float32[{self.n_params}]"
            )
        return vector


def _with_times(step: Step, forward_s: float | None, backward_s: float | None) -> Step:
    """Return a step with its forward and backward times replaced (s); None keeps a time.

    Gradients become ready at the same fractions of the backward time as before.
    """
    before = step.backward_s
    now = before if backward_s is None else backward_s
    ready = None if step.ready_s is None or not before else step.ready_s * (now / before)
    return replace(
        step,
        forward_s=step.forward_s if forward_s is None else forward_s,
        backward_s=now,
        ready_s=step.ready_s if now == before else ready,
    )


def vector_sha256(vector: F32) -> str:
    """Return the SHA-256 of the little-endian bytes of a float32 vector as hexadecimal text."""
    return hashlib.sha256(np.ascontiguousarray(vector, "<f4").data).hexdigest()


def flat_tensors(
    entries: Sequence[tuple[str, tuple[int, ...], int, int]], dtype: str = "float32"
) -> tuple[Tensor, ...]:
    """Return trainable tensors whose elements follow each other in the flat vector.

    entries: (name, shape, group, ready_order) of each tensor.
    """
    out: list[Tensor] = []
    offset = 0
    for name, shape, group, ready in entries:
        size = math.prod(shape)
        out.append(Tensor(name, shape, dtype, offset, size, True, group, ready))
        offset += size
    return tuple(out)
