"""Observations of torch's events, one per optimizer step.

This module owns the Watcher: times of forward and backward, loss, samples, scale, clipping, sample
order and ready times. It does not wrap torch (hooks.py), read gradients or write files (record.py).
Source: forward lasts from the first module call to backward(); the times of the micro-batches of a
    step are added up. The ready time of a gradient counts from the start of the last backward pass.
    All times are measured with the host's clock. On CUDA the ends of phases are synchronized, but
    the ready time of a gradient is the time at which its kernel was launched.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ondie.traces import parameters
from ondie.traces.hooks import Hooks
from ondie.traces.macs import MacCounter


@dataclass
class Window:
    """Observations of a Watcher since the last optimizer step: times (s), loss, samples, scale,
    clipping and sample order."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    loss: float | None = None
    samples: int = 0
    input_bytes: int = 0
    scale: float = 1.0
    clip: float = 1.0
    ready: dict[int, float] = field(default_factory=dict)  # by id of the parameter
    order: list[int] = field(default_factory=list)
    begun: float | None = None  # start of the running forward pass
    batch: int = 0  # largest leading dimension of its inputs
    batch_bytes: int = 0
    scaled: list[tuple[Any, Any]] = field(default_factory=list)  # (scaled loss, loss)


class StepListener(Protocol):
    """Interface of an object that receives the events of optimizer steps, such as a Recorder."""

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None: ...
    def after_step(self, optimizer: Any) -> None: ...
    def skipped_step(self, optimizer: Any) -> None: ...
    def before_unscale(self, scaler: Any, optimizer: Any) -> None: ...


class Watcher:
    """Observer of the training in one process.

    `window` holds the events since the last step.
    """

    def __init__(self, torch: Any, listener: StepListener, count_macs: bool) -> None:
        self.torch = torch
        self.listener = listener
        self.hooks = Hooks(torch, self)
        self.window = Window()
        self._previous = Window()
        self.macs = MacCounter(torch) if count_macs else None
        self.model: Any = None  # outermost module of the last forward pass
        self.buffers: dict[str, Any] = {}  # buffers of the model before that pass
        self.keep_buffers = True
        self.dataset_samples = 0
        self._pid = os.getpid()
        self._depth = 0
        self._in_backward: float | None = None
        self._stale = True  # there may be parameters without hooks
        self._hooked: dict[int, Any] = {}  # keeps parameters alive, so that ids stay unique
        self._retired = False
        self._mark = time.perf_counter()
        self._stepped = False
        self._cuda = False

    @property
    def mine(self) -> bool:
        """True if this watcher observes the current process: retire() was not called, and the
        process is not a forked child."""
        return not self._retired and os.getpid() == self._pid

    def retire(self) -> None:
        """Stop observing.

        The hooks are removed at the next backward pass, because torch may be iterating over them
        now.
        """
        self._retired = True

    def now(self) -> float:
        """Return the time of the host clock (s) after the accelerator has completed all queued
        work.
        """
        if self._cuda:
            self.torch.cuda.synchronize()
        return time.perf_counter()

    def seen(self) -> Window:
        """Return the events of the current step.

        Optimizers that take their steps after the same backward pass share these events.
        """
        return self.window if self.window.backward_s > 0 else self._previous

    def next_window(self) -> None:
        """Start a new window after an optimizer step."""
        if self.window.backward_s > 0:
            self._previous = self.window
        self.window = Window()
        self._mark = self.now()

    def forward_begins(self, module: Any) -> None:
        """Observe the start of a module call; the outermost call starts the forward pass."""
        if not self.mine or self._in_backward is not None:
            return
        self._depth += 1
        if self._depth == 1 and self.torch.is_grad_enabled():
            self.model = module
            if self.keep_buffers and self.window.begun is None:
                self.buffers = {
                    name: buffer.detach().clone() for name, buffer in module.named_buffers()
                }
            if self.window.begun is None:
                self.window.begun = self.now()
            if self.macs is not None:
                self.macs.start()

    def forward_ends(self, args: Any, kwargs: Any) -> None:
        """Observe the end of a module call; the inputs of the outermost call determine the batch
        size and the number of input bytes."""
        if not self.mine or self._in_backward is not None or self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0 and self.torch.is_grad_enabled():
            if self.macs is not None:
                self.macs.stop("forward")
            inputs = [
                v for v in [*args, *kwargs.values()] if self.torch.is_tensor(v) and v.ndim > 0
            ]
            if inputs and len(inputs[0]) >= self.window.batch:
                self.window.batch = len(inputs[0])
                self.window.batch_bytes = sum(
                    v.element_size() * v.numel() for v in inputs if len(v) == len(inputs[0])
                )

    @contextlib.contextmanager
    def backward(self, tensors: Any) -> Iterator[None]:
        """Observe one call of torch.autograd.backward, which runs inside the context."""
        if self._retired:
            self.hooks.remove()
        if not self.mine or self._in_backward is not None:
            yield
            return
        window, self._depth = self.window, 0
        root = tensors if self.torch.is_tensor(tensors) else next(iter(tensors), None)
        self._cuda = bool(getattr(root, "is_cuda", False))
        started = self._mark if window.begun is None else window.begun
        forward = self.now() - started
        self._hook_parameters()
        loss = self._loss(root)
        before = dict(window.ready)
        window.ready.clear()
        if self.macs is not None:
            self.macs.start()
        self._in_backward = begun = self.now()
        try:
            yield
        finally:
            ended = self.now()
            self._in_backward = None
            if self.macs is not None:
                self.macs.stop("backward")
        window.forward_s += forward
        window.backward_s += ended - begun
        window.samples += window.batch
        window.input_bytes += window.batch_bytes
        if loss is not None:
            window.loss = loss + (window.loss or 0.0)
        window.ready = {**before, **window.ready}
        window.begun, window.batch, window.batch_bytes = None, 0, 0
        self._mark = ended

    def ready(self, parameter: Any) -> None:
        """Record the time at which the gradient of a parameter became ready."""
        if self._in_backward is not None:
            self.window.ready[id(parameter)] = time.perf_counter() - self._in_backward

    def scaled(self, scaler: Any, outputs: Any, result: Any) -> None:
        """Record a scaled loss together with the loss before scaling."""
        if self.mine and self.torch.is_tensor(outputs):
            self.window.scaled.append((result, outputs))

    def unscaling(self, scaler: Any, optimizer: Any) -> None:
        """Call the listener before a gradient scaler unscales the gradients."""
        if self.mine:
            self.listener.before_unscale(scaler, optimizer)

    def scaler_step_begins(self, scaler: Any, optimizer: Any) -> None:
        """Record the loss scale at the start of a gradient scaler's step."""
        self._stepped = False
        if self.mine and scaler.is_enabled():
            self.window.scale = float(scaler.get_scale())

    def scaler_step_ends(self, optimizer: Any) -> None:
        """If the gradient scaler skipped the step, call the listener and start a new window of
        observations."""
        if self.mine and not self._stepped:
            self.listener.skipped_step(optimizer)
            self.next_window()

    def fetched(self, dataset: Any, indices: Any) -> None:
        """Record the sample order and the size of the data set when a data loader fetches a
        batch.
        """
        if not self.mine or not self.torch.is_grad_enabled():
            return
        if isinstance(indices, list) and all(isinstance(i, int) for i in indices):
            self.window.order += indices
            if hasattr(dataset, "__len__"):
                self.dataset_samples = len(dataset)

    def clipped(self, clipped: list[Any], max_norm: float, total_norm: Any) -> None:
        """Record the factor by which a call of gradient clipping multiplies the gradients of the
        parameters ``clipped``. ``max_norm``: maximum norm that the call requests. ``total_norm``:
        norm of the gradients before clipping."""
        if self.mine and any(id(parameter) in self._hooked for parameter in clipped):
            # same arithmetic as torch: one float32 division
            coefficient = float(max_norm / (total_norm + 1e-6))
            if math.isfinite(coefficient):
                self.window.clip *= min(coefficient, 1.0)

    def optimizer_changed(self, optimizer: Any) -> None:
        """Record that an optimizer may have new parameters, which need hooks."""
        self._stale = True

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Call the listener before an optimizer step."""
        if self.mine:
            self._stepped = True
            self.listener.before_step(optimizer, args, kwargs)

    def step_ends(self, optimizer: Any) -> None:
        """Call the listener after an optimizer step, and start a new window of observations."""
        if self.mine:
            self.listener.after_step(optimizer)
            self.next_window()

    def _loss(self, root: Any) -> float | None:
        """Return the loss before scaling, for the tensor ``root`` on which backward() was called.

        Returns None if the loss is not a finite scalar.
        """
        for scaled, unscaled in self.window.scaled:
            if scaled is root:
                root = unscaled
        if root is None or not self.torch.is_tensor(root) or root.numel() != 1:
            return None
        value = float(root.detach())
        return value if math.isfinite(value) else None

    def _hook_parameters(self) -> None:
        """Install hooks on the parameters of all live optimizers and, for FP32 master weights, on
        the parameters of the 16-bit model.

        The hooks report when a gradient is ready.
        """
        if not self._stale:
            return
        self._stale = False
        modules = parameters.roots(self.torch.nn.Module)
        for optimizer in parameters.live(self.torch.optim.Optimizer):
            wanted = [p for _, p in parameters.flat_parameters(optimizer)]
            for _, named in parameters.twins(optimizer, modules):
                wanted += [parameter for _, parameter in named]
            for parameter in wanted:
                if id(parameter) not in self._hooked and parameter.requires_grad:
                    self._hooked[id(parameter)] = parameter
                    if parameter.is_leaf:
                        self.hooks.when_ready(parameter)
