"""The recorded subject: one optimizer's parameters, gradients, weights and states.

This module owns the flat order of parameters, the collection of vectors from torch and the
description of the run. It does not own the measured times (watch.py) or the storage of the vectors
(record.py).
Source: the flat vector has the optimizer's order, group by group, with trainable parameters only.
"""

from __future__ import annotations

import hashlib
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ondie.traces import optim, parameters
from ondie.traces.consistency import FLOAT_TYPES
from ondie.traces.errors import TraceError
from ondie.traces.model import F32
from ondie.traces.records import Tensor

_BLOCK = 1 << 20


@dataclass
class Parameter:
    """One parameter of the recorded model: its name, its tensor, its parameter group and its offset
    in the flat vector."""

    name: str
    tensor: Any
    group: int  # -1: not held by the optimizer
    offset: int  # -1: not trainable
    twin: Any = None  # 16-bit parameter that gives this master its gradient


class Subject:
    """The recorded optimizer with its parameters.

    It is created at the first recorded step, because gradients do not exist before. Raises
    TraceError if the optimizer cannot be recorded.
    """

    def __init__(
        self,
        torch: Any,
        optimizer: Any,
        model: Any,
        buffers: dict[str, Any],
        ready: dict[int, float],
    ) -> None:
        """Collect the optimizer's parameters.

        model, buffers and ready (ready times in s by id of the parameter) are those that a Watcher
        observed last.
        """
        self.torch = torch
        self.optimizer = optimizer
        self.op, self.reason = optim.identify(optimizer)
        modules = parameters.roots(torch.nn.Module)
        owner, names = parameters.owner_and_names(optimizer, modules)
        twin = next(
            (
                (module, named)
                for module, named in parameters.twins(optimizer, modules)
                if any(id(parameter) in ready for _, parameter in named)
            ),
            None,
        )
        if twin is not None and owner is None:
            owner, names = twin[0], [name for name, _ in twin[1]]
        self.masters = twin is not None
        self.model = type(model if owner is None else owner).__name__
        self.parameters = self._flat(names, [p for _, p in twin[1]] if twin else None)
        self._add_frozen(owner, {id(p) for _, p in twin[1]} if twin else set())
        self.listed = self._listed(owner)
        self.trainable = [p for p in self.parameters if p.offset >= 0]
        self.starts = [p.offset for p in self.trainable]
        self.buffers = {name: _host(buffer) for name, buffer in buffers.items()}

    def _flat(self, names: list[str], twins: list[Any] | None) -> list[Parameter]:
        """Return the optimizer's parameters in the order of the flat vector.

        Raises TraceError for a type that cannot be recorded, and if no parameter has a gradient.
        """
        held = parameters.flat_parameters(self.optimizer)
        out: list[Parameter] = []
        offset = 0
        for (group, tensor), name, twin in zip(
            held, names, twins or [None] * len(names), strict=True
        ):
            if tensor.grad is None or not tensor.requires_grad:
                out.append(Parameter(name, tensor, group, -1))
                continue
            if dtype_name(tensor) not in FLOAT_TYPES:
                raise TraceError(
                    f"parameter {name!r} is {dtype_name(tensor)}: "
                    f"only {', '.join(FLOAT_TYPES)} can be recorded"
                )
            out.append(Parameter(name, tensor, group, offset, twin))
            offset += tensor.numel()
        if offset == 0:
            raise TraceError(
                f"{type(self.optimizer).__name__}: none of its {len(names)} "
                "parameters has a gradient at the first recorded step"
            )
        return out

    def _add_frozen(self, owner: Any, twins: set[int]) -> None:
        """Add the parameters of model ``owner`` that the optimizer does not hold to `parameters` as
        not trainable.

        ``twins``: ids of the 16-bit parameters of master weights, which are left out.
        """
        known = {p.name for p in self.parameters}
        held = {id(p.tensor) for p in self.parameters} | twins
        for name, tensor in owner.named_parameters() if owner is not None else ():
            if id(tensor) not in held:
                unique = name if name not in known else f"{name}~frozen"
                self.parameters.append(Parameter(unique, tensor, -1, -1))

    def _listed(self, owner: Any) -> list[Parameter]:
        """Return the parameters in the order of the trace's tensors.

        If all parameters are trainable, this is the optimizer's order. Otherwise it is the order in
        which the model registers them, after the parameters that no module holds.
        """
        if owner is None or all(p.offset >= 0 for p in self.parameters):
            return self.parameters
        places = {id(tensor): at for at, (_, tensor) in enumerate(owner.named_parameters())}
        return sorted(
            self.parameters,
            key=lambda p: places.get(id(p.tensor), places.get(id(p.twin), -1)),
        )

    def check_same(self) -> None:
        """Raise TraceError if the optimizer's parameters have changed since the first recorded
        step.
        """
        held = [id(p.tensor) for p in self.parameters if p.group >= 0]
        if held != [id(p) for _, p in parameters.flat_parameters(self.optimizer)]:
            raise TraceError(
                f"{type(self.optimizer).__name__}: its parameters changed while recording; record "
                "from a later step with --skip"
            )

    def count(self, updates: int) -> int:
        """Return the number of the next step, counted from 1, after `updates` observed updates."""
        return optim.count(self.optimizer, [(p.name, p.tensor) for p in self.trainable], updates)

    def gradient(self, index: int, grad_scale: Any, keep: bool) -> tuple[F32, float, str]:
        """Return (flat gradient, L2 norm, sha256) of the gradient that the step will consume.

        grad_scale: divisor that a fused operator will apply, or None. If `keep` is False, the
        vector is empty and the gradient is hashed tensor by tensor, which saves memory. Raises
        TraceError for a sparse or non-finite gradient, and if the set of parameters with a gradient
        has changed.
        """
        digest, square, parts = hashlib.sha256(), 0.0, []
        for parameter in self.parameters:
            gradient = parameter.tensor.grad
            if parameter.offset < 0:
                if parameter.group >= 0 and gradient is not None:
                    raise TraceError(
                        f"parameter {parameter.name!r} had no gradient in the first recorded step "
                        f"but has one now, in step {index}; record from a later step with --skip"
                    )
                continue
            if gradient is None:
                raise TraceError(
                    f"parameter {parameter.name!r} had a gradient in the first "
                    f"recorded step but has none now, in step {index}: torch omits it from the "
                    "update, which a trace cannot represent; end the recording before this step"
                )
            if gradient.is_sparse:
                raise TraceError(
                    f"parameter {parameter.name!r} has a sparse gradient: only dense "
                    "gradients can be recorded (sparse=False)"
                )
            part = optim.array(gradient)
            if grad_scale is not None:
                part = part / np.float32(float(grad_scale))  # same operation as torch's fused one
            norm2 = _square(part)
            if not math.isfinite(norm2):
                raise TraceError(
                    f"step {index}, parameter {parameter.name!r}: the gradient has "
                    "NaN or Inf, so the run cannot be replayed"
                )
            square += norm2
            digest.update(np.ascontiguousarray(part, "<f4").data)
            if keep:
                parts.append(part)
        vector = np.concatenate(parts) if parts else np.empty(0, np.float32)
        return vector, math.sqrt(square), digest.hexdigest()

    def raw(self) -> npt.NDArray[Any] | None:
        """Return the gradients in 16 bits, as float16, or as uint16 that holds bfloat16.

        The result is None if the gradients need 32 bits.
        """
        parts = [p.tensor.grad for p in self.trainable]
        if any(part is None for part in parts):
            return None
        scaled = np.concatenate([optim.array(part) for part in parts])
        for dtype in (self.torch.float16, self.torch.bfloat16):
            narrow = self.torch.from_numpy(scaled).to(dtype)
            if np.array_equal(narrow.float().numpy().view(np.uint32), scaled.view(np.uint32)):
                bits: npt.NDArray[Any] = narrow.view(self.torch.uint16).numpy()
                return bits.view(np.float16) if dtype is self.torch.float16 else bits
        return None

    def weights(self) -> F32:
        """Return the current trainable parameters as one vector, float32[n_params]."""
        return np.concatenate([optim.array(p.tensor) for p in self.trainable])

    def states(self) -> dict[str, F32]:
        """Return the current optimizer states; states that are all zero are omitted."""
        out: dict[str, F32] = {}
        for name in optim.STATE_KEYS[self.op]:
            parts = [optim.state_of(self.optimizer, self.op, p.tensor) for p in self.trainable]
            vector = np.concatenate(
                [
                    optim.array(part[name])
                    if name in part
                    else np.zeros(p.tensor.numel(), np.float32)
                    for p, part in zip(self.trainable, parts, strict=True)
                ]
            )
            if vector.any():
                out[name] = vector
        return out

    def ready(self, times: dict[int, float]) -> npt.NDArray[np.float64] | None:
        """Return the ready time (s) of each tensor, NaN if unknown; None if all are unknown.

        times: ready time by id of the parameter. A master weight has the time of its 16-bit
        parameter.
        """
        own = any(id(p.tensor) in times for p in self.listed)
        keys = [id(p.tensor if own or p.twin is None else p.twin) for p in self.listed]
        row = np.array([times.get(key, math.nan) for key in keys])
        return None if np.isnan(row).all() else row

    def tensors(self, times: npt.NDArray[np.float64] | None) -> tuple[Tensor, ...]:
        """Return the trace's records of the tensors. ``times``: time in one step at which the
        gradient of each tensor was ready (NaN: none), or None. Tensors are ranked by this time;
        tensors without a time have rank -1."""
        ranks = [-1] * len(self.listed)
        if times is not None:
            known = np.flatnonzero(~np.isnan(times))
            for rank, at in enumerate(known[np.argsort(times[known], kind="stable")]):
                ranks[at] = rank
        return tuple(
            Tensor(
                p.name,
                tuple(p.tensor.shape),
                dtype_name(p.tensor),
                p.offset,
                p.tensor.numel(),
                p.offset >= 0,
                p.group,
                rank,
            )
            for p, rank in zip(self.listed, ranks, strict=True)
        )

    def gradient_dtype(self) -> str:
        """Return the type of the gradient on the accelerator, such as "float16".

        It is the type of the parameters or, for FP32 masters, of their 16-bit parameters. It is
        "float32" if the parameters have several types.
        """
        kinds = {dtype_name(p.tensor if p.twin is None else p.twin) for p in self.trainable}
        return kinds.pop() if len(kinds) == 1 else "float32"

    def describe(self, script: Path | None) -> dict[str, Any]:
        """Return the attributes of the trace: framework, model, optimizer, device, seed, code."""
        torch, device = self.torch, self.trainable[0].tensor.device.type
        attrs: dict[str, Any] = {
            "framework": f"torch {torch.__version__}",
            "python": platform.python_version(),
            "model": self.model,
            "optimizer": type(self.optimizer).__name__,
            "optimizer_defaults": optim.defaults(self.optimizer),
            "device": device,
            "processor": platform.machine(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "seed": torch.initial_seed(),
            "master_weights": self.masters,
            "ready_clock": "host" if device == "cpu" else "host, at launch",
        }
        if self.reason:
            attrs["op_reason"] = self.reason
        if script is not None and script.is_file():
            attrs["script"] = script.name
            digest = hashlib.sha256(script.read_bytes()).hexdigest()
            attrs["code_version"] = f"sha256 of the script: {digest}"
        return attrs


def dtype_name(tensor: Any) -> str:
    """Return NumPy's name of a torch tensor's type, such as float32; BF16 is "bfloat16"."""
    return str(tensor.dtype).removeprefix("torch.")


def _host(buffer: Any) -> npt.NDArray[Any]:
    """Return a buffer as a NumPy array on the host."""
    wide = buffer.float() if dtype_name(buffer) == "bfloat16" else buffer
    array: npt.NDArray[Any] = wide.cpu().numpy()
    return array


def _square(vector: F32) -> float:
    """Return the sum of squares of a vector in float64, added block by block.

    The result is NaN or infinity if an element is NaN or infinite.
    """
    total = 0.0
    for start in range(0, len(vector), _BLOCK):
        block = vector[start : start + _BLOCK].astype(np.float64)
        total += float(np.dot(block, block))
    return total
