"""Hooks in torch: global hooks and wrapped functions, installed and removed together.

This module owns the list of wrapped torch functions, the restoration of the originals and the
interface of the receiver of events. It does not interpret the events (watch.py). Source:
torch.optim.optimizer and torch.nn.modules.module global hooks, torch.autograd.backward,
torch.amp.GradScaler, torch.nn.utils.clip_grad, torch.utils.data; tested with torch 2.13.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol


class EventReceiver(Protocol):
    """Interface of an object that receives the events of a training run in torch, such as a
    Watcher."""

    def forward_begins(self, module: Any) -> None: ...
    def forward_ends(self, args: Any, kwargs: Any) -> None: ...
    def backward(self, tensors: Any) -> AbstractContextManager[None]: ...
    def ready(self, parameter: Any) -> None: ...
    def scaled(self, scaler: Any, outputs: Any, result: Any) -> None: ...
    def unscaling(self, scaler: Any, optimizer: Any) -> None: ...
    def scaler_step_begins(self, scaler: Any, optimizer: Any) -> None: ...
    def scaler_step_ends(self, optimizer: Any) -> None: ...
    def fetched(self, dataset: Any, indices: Any) -> None: ...
    def clipped(self, clipped: list[Any], max_norm: float, total_norm: Any) -> None: ...
    def optimizer_changed(self, optimizer: Any) -> None: ...
    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None: ...
    def step_ends(self, optimizer: Any) -> None: ...


class Hooks:
    """The hooks in torch that report events to one watcher: install() installs them, remove()
    removes them."""

    def __init__(self, torch: Any, watcher: EventReceiver) -> None:
        self.torch = torch
        self.watcher = watcher
        self._handles: list[Any] = []
        self._originals: list[tuple[Any, str, Any]] = []
        self._last: tuple[Any, Any] | None = None  # (optimizer, handle) of the local pre-hook

    def install(self) -> None:
        """Install the hooks in torch; the training script needs no change."""
        torch, watcher = self.torch, self.watcher
        modules = torch.nn.modules.module
        optimizers = importlib.import_module("torch.optim.optimizer")  # not exported by torch.optim
        self._handles += [
            modules.register_module_forward_pre_hook(
                lambda module, args: watcher.forward_begins(module)
            ),
            modules.register_module_forward_hook(
                lambda module, args, kwargs, out: watcher.forward_ends(args, kwargs),
                with_kwargs=True,
                always_call=True,
            ),
            optimizers.register_optimizer_step_pre_hook(self._before_any_step),
            optimizers.register_optimizer_step_post_hook(
                lambda optimizer, args, kwargs: watcher.step_ends(optimizer)
            ),
        ]
        self._wrap(torch.autograd, "backward", self._backward)
        self._wrap(torch.optim.Optimizer, "add_param_group", self._add_param_group)
        self._wrap(torch.amp.GradScaler, "scale", self._scale)
        self._wrap(torch.amp.GradScaler, "unscale_", self._unscale)
        self._wrap(torch.amp.GradScaler, "step", self._scaler_step)
        self._wrap(torch.utils.data._utils.fetch._MapDatasetFetcher, "fetch", self._fetch)
        self._wrap(torch.nn.utils.clip_grad, "_clip_grads_with_norm_", self._clip)
        self._wrap(torch.nn.utils, "clip_grads_with_norm_", self._clip)

    def remove(self) -> None:
        """Remove all hooks and restore the original functions."""
        for handle in self._handles:
            handle.remove()
        for place, name, original in reversed(self._originals):
            setattr(place, name, original)
        if self._last is not None:
            self._last[1].remove()
        self._handles, self._originals, self._last = [], [], None

    def when_ready(self, parameter: Any) -> None:
        """Register a hook that calls the watcher each time torch has accumulated the parameter's
        gradient."""
        self._handles.append(parameter.register_post_accumulate_grad_hook(self.watcher.ready))

    def _wrap(self, place: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace the function ``name`` of the class or module ``place`` by ``wrapper``.

        The wrapper's first argument is the original function.
        """
        original = getattr(place, name, None)
        if original is None:  # another torch version: this event is not observed
            return
        self._originals.append((place, name, original))

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        setattr(place, name, wrapped)

    def _before_any_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Move the optimizer's local hook after its other pre-hooks, which may change gradients.

        torch runs the global hooks first and reads the optimizer's local hooks afterwards.
        """
        if self._last is not None:
            self._last[1].remove()
        self._last = (optimizer, optimizer.register_step_pre_hook(self.watcher.step_begins))

    def _backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        with self.watcher.backward(tensors):
            return original(tensors, *args, **kwargs)

    def _add_param_group(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        self.watcher.optimizer_changed(optimizer)
        return result

    def _scale(self, original: Any, scaler: Any, outputs: Any) -> Any:
        result = original(scaler, outputs)
        self.watcher.scaled(scaler, outputs, result)
        return result

    def _unscale(self, original: Any, scaler: Any, optimizer: Any) -> Any:
        self.watcher.unscaling(scaler, optimizer)
        return original(scaler, optimizer)

    def _scaler_step(
        self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self.watcher.scaler_step_begins(scaler, optimizer)
        result = original(scaler, optimizer, *args, **kwargs)
        self.watcher.scaler_step_ends(optimizer)
        return result

    def _fetch(self, original: Any, fetcher: Any, indices: Any) -> Any:
        self.watcher.fetched(fetcher.dataset, indices)
        return original(fetcher, indices)

    def _clip(
        self,
        original: Any,
        parameters: Any,
        max_norm: Any,
        total_norm: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        parameters = [parameters] if self.torch.is_tensor(parameters) else list(parameters)
        self.watcher.clipped(parameters, float(max_norm), total_norm)
        return original(parameters, max_norm, total_norm, *args, **kwargs)
