"""Inspection of torch optimizers: operation, hyperparameters, state and step count.

This module owns the map from torch.optim classes to operation names and the access to their
hyperparameters, states and step counts. It does not install hooks (hooks.py) or import torch.
Source: torch.optim (SGD, Adam, AdamW, Adagrad), attribute names as in its param_groups and state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ondie.traces.errors import TraceError

_SGD = ("lr", "momentum", "dampening", "weight_decay", "maximize")
_ADAM = ("lr", "beta1", "beta2", "eps", "weight_decay", "maximize")
_HYPER: dict[str, tuple[str, ...]] = {
    "sgd": ("lr", "weight_decay", "maximize"),
    "momentum": _SGD,
    "nesterov": _SGD,
    "adam": _ADAM,
    "adamw": _ADAM,
    "adagrad": ("lr", "lr_decay", "eps", "weight_decay", "maximize"),
}
#: ondie state name -> torch's key in optimizer.state[parameter]
STATE_KEYS: dict[str, dict[str, str]] = {
    "sgd": {},
    "momentum": {"m": "momentum_buffer"},
    "nesterov": {"m": "momentum_buffer"},
    "adam": {"m": "exp_avg", "v": "exp_avg_sq"},
    "adamw": {"m": "exp_avg", "v": "exp_avg_sq"},
    "adagrad": {"v": "sum"},
    "other": {},
}


def identify(optimizer: Any) -> tuple[str, str]:
    """Return the operation that a torch optimizer performs, as (operation, "").

    If no kernel implements it, return ("other", reason).
    """
    kind = type(optimizer)
    groups = optimizer.param_groups
    if not kind.__module__.startswith("torch.optim"):
        return "other", f"{kind.__module__}.{kind.__name__} is not an optimizer of torch.optim"
    if any(group.get("differentiable") for group in groups):
        return "other", f"{kind.__name__} with differentiable=True"
    if kind.__name__ == "SGD":
        if any(g["nesterov"] for g in groups):
            if all(g["nesterov"] for g in groups):
                return "nesterov", ""
            return "other", "SGD with nesterov in some parameter groups only"
        return ("momentum" if any(g["momentum"] for g in groups) else "sgd"), ""
    if kind.__name__ in ("Adam", "AdamW"):
        if any(g["amsgrad"] for g in groups):
            return "other", f"{kind.__name__} with amsgrad=True"
        decoupled = {
            bool(g.get("decoupled_weight_decay", kind.__name__ == "AdamW")) for g in groups
        }
        if len(decoupled) > 1:
            return "other", f"{kind.__name__} with decoupled weight decay in some groups only"
        return ("adamw" if decoupled == {True} else "adam"), ""
    if kind.__name__ == "Adagrad":
        return "adagrad", ""
    return "other", f"torch.optim.{kind.__name__} is not among {', '.join(_HYPER)}"


def hyper(optimizer: Any, op: str) -> tuple[dict[str, float | bool], ...]:
    """Return the current hyperparameters of each parameter group under the names that the kernels
    use. If ``op`` has no kernel, return all numbers in the group."""
    out: list[dict[str, float | bool]] = []
    for group in optimizer.param_groups:
        values: dict[str, Any] = dict(group)
        if "betas" in values:
            values["beta1"], values["beta2"] = values["betas"]
        names = _HYPER.get(op) or sorted(k for k, v in values.items() if _is_number(v))
        entry: dict[str, float | bool] = {}
        for name in names:
            value = values[name]
            entry[name] = value if isinstance(value, bool) else float(value)
        out.append(entry)
    return tuple(out)


def fused(optimizer: Any) -> tuple[bool, ...]:
    """Return, for each parameter group, whether it uses torch's fused operator."""
    return tuple(bool(group.get("fused")) for group in optimizer.param_groups)


def count(optimizer: Any, parameters: Iterable[tuple[str, Any]], seen: int) -> int:
    """Return the number of the step that is about to run, counted from 1.

    `seen`: number of observed updates of this optimizer; SGD has no step counter. Raises TraceError
    if the step counters of the parameters differ.
    """
    states = [(name, optimizer.state.get(parameter, {})) for name, parameter in parameters]
    if any("step" in state for _, state in states):
        counts = {int(state.get("step", 0)): name for name, state in reversed(states)}
        if len(counts) > 1:
            (first, one), (second, other) = sorted(counts.items())[:2]
            raise TraceError(
                f"the step counter of parameter {one!r} is {first}, but that of {other!r} is "
                f"{second}: all parameters of the optimizer must have the same counter"
            )
        return next(iter(counts)) + 1
    resumed = any(state.get("momentum_buffer") is not None for _, state in states)
    return max(seen + 1, 2 if resumed else 1)


def state_of(optimizer: Any, op: str, parameter: Any) -> dict[str, Any]:
    """Return the existing states of one parameter as torch tensors, by ondie state name."""
    state = optimizer.state.get(parameter, {})
    found = {name: state.get(key) for name, key in STATE_KEYS[op].items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def defaults(optimizer: Any) -> str:
    """Return the optimizer's constructor arguments as the text of a JSON object."""
    plain = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in optimizer.defaults.items()
    }
    return json.dumps(
        {
            k: v if isinstance(v, str | bool | int | float | list | None) else float(v)
            for k, v in plain.items()
        }
    )


def array(tensor: Any) -> npt.NDArray[np.float32]:
    """Return an exact copy of a torch tensor (FP32, FP16 or BF16) as a flat float32 array."""
    flat: npt.NDArray[np.float32] = tensor.detach().float().cpu().reshape(-1).numpy()
    return flat


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)
