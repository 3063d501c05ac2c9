"""Recording of a training run: a context manager, and the recording of an unchanged command.

This module owns the Recorder (the selection of steps and their order in the file) and main() of
`ondie record`. It does not own the observation of torch (watch.py), reading of tensors (subject.py)
or the file layout (hdf5.py).
Source: the trace contract of this project. torch is imported when a recording starts.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ondie.traces import optim
from ondie.traces.errors import TraceError
from ondie.traces.hdf5 import Writer, scale_shift
from ondie.traces.model import F32, Trace
from ondie.traces.options import Options
from ondie.traces.options import options as checked_options
from ondie.traces.records import Step
from ondie.traces.subject import Subject
from ondie.traces.watch import Watcher


@dataclass
class _Pending:
    """A step that is being recorded, between the start and the end of the optimizer's update."""

    begun: float
    hyper: tuple[dict[str, float | bool], ...]
    fused: tuple[bool, ...]
    count: int
    scale: float
    skipped: bool
    norm: float | None = None
    sha256: str | None = None


class Recorder:
    """Recorder of the optimizer steps inside a `with` block; it writes them to an HDF5 trace.

        with Recorder("run.h5", steps=20):
            train()

    The file appears when all steps are recorded or the block ends without an error. Options are
    those of options.Options. Raises TraceError with one line if torch is missing, the path cannot
    be written, or the run cannot be recorded; no file exists in these cases.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partial: str | None = None,
        script: Path | None = None,
        **options: Any,
    ) -> None:
        self.options: Options = checked_options(options)
        try:
            self.torch = importlib.import_module("torch")
        except ImportError:
            raise TraceError(
                "recording needs PyTorch, which is not installed; run pip install 'ondie[train]'"
            ) from None
        self.path = Path(path)
        self.error: str | None = None
        self.finished = False
        self.steps: list[Step] = []
        self._script = script
        self._writer = Writer(self.path, partial)
        self._watcher = Watcher(self.torch, self, self.options.count_macs)
        self._optimizers: list[Any] = []  # in order of their first step
        self._subject: Subject | None = None
        self._attrs: dict[str, Any] = {}
        self._pending: _Pending | None = None
        self._raw: npt.NDArray[Any] | None = None
        self._final: F32 | None = None
        self._seen = 0  # steps of the chosen optimizer
        self._updates = 0  # steps of the chosen optimizer that were not skipped
        self._vector_bytes = 0
        self._largest = 0
        self._noted: dict[str, Any] = {}
        self._sample_bytes = 0
        self._macs = (0, 0)

    def __enter__(self) -> Recorder:
        self._watcher.hooks.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self.finished and self.error is None:
                self.finish()
        finally:
            self.close()
        if self.error is not None and not isinstance(error, TraceError):
            raise TraceError(self.error)

    def note(
        self, *, loss: float | None = None, samples: int | None = None, scale: float | None = None
    ) -> None:
        """Set values of the next step that hooks cannot observe, such as a custom loss scale."""
        given = {"loss": loss, "samples": samples, "scale": scale}
        self._noted |= {key: value for key, value in given.items() if value is not None}

    def close(self) -> None:
        """Remove the hooks from torch, and remove the partial file if it is not finished."""
        self._watcher.retire()
        self._watcher.hooks.remove()
        self._writer.discard()

    def finish(self) -> None:
        """Complete the trace file with the steps recorded so far; later steps are ignored."""
        if not self.steps:
            skipped = f" after the first {self.options.skip}" if self.options.skip else ""
            self._fail(f"no step of a torch optimizer was seen{skipped}")
        try:
            if self._final is not None:
                self._writer.vector("weights/final", self._final, self.subject.starts)
            self._writer.finish(self._trace())
        except TraceError as error:
            self._fail(str(error))
        self.finished = True
        self._watcher.retire()

    # --- calls from the Watcher --------------------------------------------------------------

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Handle the start of an optimizer step, before the optimizer uses its gradients."""
        if not self._chosen(optimizer):
            return
        if any(value is not None for value in [*args[1:], kwargs.get("closure")]):
            self._fail(
                f"{type(optimizer).__name__}.step(closure) computes the gradients inside the step; "
                "call backward() before step() instead"
            )
        found_inf = getattr(optimizer, "found_inf", None)
        skipped = found_inf is not None and float(found_inf) > 0
        if not skipped:
            self._updates += 1
        if not self._due(optimizer):
            return
        try:
            self._set_up(optimizer)
            self._begin(optimizer, skipped)
        except TraceError as error:
            self._fail(str(error))

    def after_step(self, optimizer: Any) -> None:
        """Store the data of the optimizer step that has ended, if the step is being recorded."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._complete(pending, self._watcher.now() - pending.begun)
        self._close_macs()

    def skipped_step(self, optimizer: Any) -> None:
        """Record an optimizer step that a gradient scaler skipped because a gradient is infinite or
        NaN."""
        if not self._chosen(optimizer) or not self._due(optimizer):
            return
        try:
            self._set_up(optimizer)
            self._complete(self._new_pending(skipped=True), 0.0)
        except TraceError as error:
            self._fail(str(error))
        self._close_macs()

    def before_unscale(self, scaler: Any, optimizer: Any) -> None:
        """Store 16-bit gradients, if requested, before they are divided by the loss scale."""
        self._raw = None
        if (
            self.options.raw
            and self.options.payload
            and self._seen >= self.options.skip
            and self._chosen(optimizer)
        ):
            try:
                self._set_up(optimizer)
            except TraceError as error:
                self._fail(str(error))
            self._raw = self.subject.raw()

    # --- one step ----------------------------------------------------------------------------

    @property
    def subject(self) -> Subject:
        """The recorded optimizer; raises TraceError before the first recorded step."""
        if self._subject is None:
            raise TraceError("nothing has been recorded yet; take an optimizer step first")
        return self._subject

    def _chosen(self, optimizer: Any) -> bool:
        """Return True if ``optimizer`` is the one to record.

        Raises TraceError if several optimizers take steps and none was selected.
        """
        if self.finished or self.error is not None:
            return False
        if not any(optimizer is known for known in self._optimizers):
            self._optimizers.append(optimizer)
            if self.options.optimizer is None and len(self._optimizers) > 1:
                listed = ", ".join(
                    f"{i} {type(o).__name__} ({sum(len(g['params']) for g in o.param_groups)} "
                    "tensors)"
                    for i, o in enumerate(self._optimizers)
                )
                self._fail(
                    f"several optimizers take steps in this run: {listed}; choose one with "
                    "--optimizer NUMBER"
                )
        wanted = self.options.optimizer or 0
        return len(self._optimizers) > wanted and self._optimizers[wanted] is optimizer

    def _due(self, optimizer: Any) -> bool:
        """Count a step of the recorded optimizer; return True if the step is to be recorded.

        Raises TraceError before the first step if no kernel implements the optimizer's update.
        """
        if self._seen == 0 and not self.options.any_optimizer:
            op, reason = optim.identify(optimizer)
            if op == "other":
                self._fail(
                    f"{self.path.name}: no update path can replay this optimizer: {reason}; use "
                    "torch.optim's SGD, Adam, AdamW or Adagrad without such an option, or "
                    "--any-optimizer to record only sizes and times"
                )
        self._seen += 1
        self._watcher.keep_buffers = self._seen <= self.options.skip
        return self._seen > self.options.skip

    def _set_up(self, optimizer: Any) -> None:
        """Store initial weights, states and buffers at the first recorded step."""
        if self._subject is not None:
            self._subject.check_same()
            return
        watcher = self._watcher
        subject = Subject(
            self.torch, optimizer, watcher.model, watcher.buffers, watcher.seen().ready
        )
        self._attrs = {
            **subject.describe(self._script),
            "first_step": self.options.skip,
            "steps_asked": self.options.steps,
            "ended_by": "end of the run",
        }
        if self.options.payload:
            weights = subject.weights()
            self._writer.vector("weights/initial", weights, subject.starts)
            self._vector_bytes += 2 * weights.nbytes  # upper bound that includes the final weights
            for name, vector in subject.states().items():
                self._writer.vector(f"states/{name}", vector, subject.starts)
                self._vector_bytes += vector.nbytes
            self._writer.buffers(subject.buffers)
        self._subject = subject

    def _begin(self, optimizer: Any, skipped: bool) -> None:
        """Store the gradient of an optimizer step and start the step's timing."""
        pending = self._new_pending(skipped)
        if not skipped:
            index, keep = len(self.steps), self.options.payload
            vector, pending.norm, pending.sha256 = self.subject.gradient(
                index, getattr(optimizer, "grad_scale", None), keep
            )
            if keep:
                size = self._writer.gradient(
                    index, vector, self.subject.starts, scale_shift(pending.scale)
                )
                if self._raw is not None:
                    self._writer.raw(index, self._raw)
                    size += self._raw.nbytes
                self._vector_bytes += size
                self._largest = max(self._largest, size)
        self._raw = None
        self._pending = pending
        pending.begun = self._watcher.now()

    def _new_pending(self, skipped: bool) -> _Pending:
        """Return the record of a step at its start."""
        optimizer = self.subject.optimizer
        scale = self._watcher.window.scale  # set at the start of the gradient scaler's step
        return _Pending(
            begun=self._watcher.now(),
            hyper=optim.hyper(optimizer, self.subject.op),
            fused=optim.fused(optimizer),
            count=self.subject.count(self._updates - (not skipped)),
            scale=float(self._noted.get("scale", scale)),
            skipped=skipped,
        )

    def _complete(self, pending: _Pending, seconds: float) -> None:
        """Complete the record of a step and append it; ``seconds``: duration of the optimizer's
        update (s)."""
        window = self._watcher.seen()
        samples = self.options.samples or self._noted.get("samples", window.samples)
        if samples < 1:
            self._fail(
                "the batch size cannot be derived (no module was called with a tensor before "
                "backward()); state it with --samples NUMBER"
            )
        if window.samples and not self._sample_bytes:
            self._sample_bytes = window.input_bytes // window.samples
        order = np.array(window.order, np.int64) if len(window.order) == samples else None
        self.steps.append(
            Step(
                index=len(self.steps),
                loss=self._noted.get("loss", window.loss),
                samples=samples,
                forward_s=window.forward_s,
                backward_s=window.backward_s,
                optimizer_s=seconds,
                ready_s=self.subject.ready(window.ready),
                hyper=pending.hyper,
                count=pending.count,
                scale=pending.scale,
                clip_coefficient=window.clip,
                found_inf=pending.skipped,
                skipped=pending.skipped,
                gradient_norm=pending.norm,
                gradient_sha256=pending.sha256,
                fused=pending.fused,
                order=order,
            )
        )
        self._noted = {}
        if self.options.payload:
            self._final = self.subject.weights()
        self._maybe_finish()

    def _maybe_finish(self) -> None:
        """Complete the trace file when the requested number of steps has been stored, or when a
        further step would exceed the limit `max_bytes`.

        Raises TraceError if the vectors stored so far exceed the limit, and SystemExit if the run
        is to end.
        """
        limit = self.options.max_bytes
        if limit is not None and self._vector_bytes > limit:
            self._fail(
                f"--max-bytes is {limit}, but weights, state and {len(self.steps)} "
                f"gradient(s) take {self._vector_bytes} bytes; use a larger value"
            )
        full = limit is not None and self._vector_bytes + self._largest > limit
        if full or sum(not step.skipped for step in self.steps) >= self.options.steps:
            self._attrs["ended_by"] = "max_bytes" if full else "steps"
            self.finish()
            if self.options.stop:
                raise SystemExit(0)

    def _close_macs(self) -> None:
        """Derive the MACs per sample from the count of the first step."""
        counter = self._watcher.macs
        if counter is not None and not counter.done:
            counter.close()
            samples = self.options.samples or self._watcher.seen().samples
            if samples:
                self._macs = (
                    counter.macs["forward"] // samples,
                    counter.macs["backward"] // samples,
                )

    # --- the run as a whole ------------------------------------------------------------------

    def _trace(self) -> Trace:
        """Return the trace of all recorded steps."""
        options, first, subject = self.options, self.steps[0], self.subject
        forward, backward = (
            counted if given is None else given
            for counted, given in zip(
                self._macs, (options.macs_forward, options.macs_backward), strict=True
            )
        )
        attrs = {
            **self._attrs,
            "macs_source": "given"
            if (forward, backward) != self._macs
            else "counted in the first step"
            if self._macs != (0, 0)
            else "unknown: 0",
            "samples_source": "given" if options.samples else "leading dimension of the inputs",
            "bytes_per_sample_source": "inputs of the model"
            if options.bytes_per_sample is None
            else "given",
        }
        fused = subject.op != "other" and bool(first.fused) and all(first.fused)
        times = next((s.ready_s for s in self.steps if s.ready_s is not None), None)
        dataset = self._watcher.dataset_samples
        return Trace(
            name=options.name or self.path.stem,
            payload="recorded" if options.payload else "none",
            timing_source="recorded",
            op=subject.op,
            form="torch" if fused else "canonical",
            gradient_dtype=subject.gradient_dtype(),
            groups=len(first.hyper),
            tensors=subject.tensors(times),
            steps=tuple(self.steps),
            samples_per_step=first.samples,
            bytes_per_sample=self._sample_bytes
            if options.bytes_per_sample is None
            else options.bytes_per_sample,
            macs_forward=forward,
            macs_backward=backward,
            dataset_samples=dataset if options.dataset_samples is None else options.dataset_samples,
            private_samples=options.private_samples,
            attrs=attrs,
            origin=str(self.path),
        )

    def _fail(self, message: str) -> NoReturn:
        """Stop recording, remove the file and raise TraceError."""
        if self.error is None:
            self.error = message
        self._watcher.retire()
        self._writer.discard()
        raise TraceError(self.error)


def record(path: str | os.PathLike[str], **options: Any) -> Recorder:
    """Return Recorder(path, **options), for `with record("run.h5", steps=20): train()`."""
    return Recorder(path, **options)


def main(out: str | os.PathLike[str], command: list[str] | tuple[str, ...], **options: Any) -> int:
    """Run a Python training command and record it to `out` (the command `ondie record`).

    Returns the command's exit code (128 + signal if a signal ended it). If the code is not 0 and
    the recording was not complete before, nothing is written. Options are those of options.Options.
    Raises TraceError if the command is not Python, its Python lacks torch or ondie, or the run
    cannot be recorded.
    """
    from ondie.traces.launch import launch

    return launch(Path(out), list(command), checked_options(options))
