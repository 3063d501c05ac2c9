"""A torch optimizer that updates parameters with an ondie kernel, in any format of the kernel.

This module owns the states and the arrays that a format stores in addition to a parameter. It does
not own the arithmetic (ondie.kernels).
Source: the interface of torch.optim.Optimizer.

    optimizer = KernelOptimizer(model.parameters(), "adamw", format="int8_dynamic", lr=1e-3,
                                betas=(0.9, 0.999), eps=1e-8)

The kernel works on the memory of a parameter or gradient if this tensor already has the type of the
format (float32, float16 or bfloat16) and is contiguous. Otherwise the optimizer casts the gradient
to the required type before the update and copies the new weight to the parameter afterwards. A
float32 model then computes with exactly the weights that the format can hold. The optimizer keeps
weights between steps only if the parameter cannot hold them, such as the FP32 weights of a model
that computes with 16 bits. The kept weights are those of the last step; later changes of the
model's parameters do not affect them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from ondie.kernels import KernelError, Table, get, tensors
from ondie.kernels.hyper import RANGES
from ondie.kernels.stochastic import key
from ondie.kernels.update import Slot

_TORCH = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.uint16): torch.bfloat16,  # NumPy has no bfloat16; uint16 holds its bits
    np.dtype(np.uint8): torch.uint8,
}
_BETAS = ("beta1", "beta2")
Back = list[tuple[torch.Tensor, torch.Tensor]]


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a contiguous tensor's memory as a flat NumPy array; bfloat16 becomes uint16."""
    flat = tensor.view(-1)
    if tensor.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return an array's memory as a tensor; uint16 becomes bfloat16."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _fits(tensor: torch.Tensor, slot: Slot) -> bool:
    """Return True if the kernel can use the tensor's memory as the array that ``slot``
    describes."""
    return tensor.dtype == _TORCH[slot.dtype] and tensor.is_contiguous()


def _cast(tensor: torch.Tensor, slot: Slot) -> torch.Tensor:
    """Return a flat copy of a tensor, converted to the type of the array that ``slot``
    describes."""
    return tensor.detach().reshape(-1).to(_TORCH[slot.dtype], copy=True)


class KernelOptimizer(torch.optim.Optimizer):
    """Torch optimizer that updates parameters on the CPU with a kernel of `ondie.kernels.get`.

    op, backend, form, isa, format: see `ondie.kernels.get`. hyper: the operation's hyperparameters
    under torch's names (``betas``) or kernel names (``beta1``), for all groups. A group may
    override them, and schedulers may change them. seed: seed of stochastic rounding, 0 to
    2**32 - 1. Raises KernelError if the kernel rejects an argument or if a parameter is not on the
    CPU. A step that raises KernelError changes nothing.
    """

    def __init__(
        self,
        params: Iterable[Any],
        op: str = "adamw",
        *,
        backend: str = "auto",
        form: str = "canonical",
        isa: str | None = None,
        format: str = "fp32",
        threads: int = 1,
        seed: int = 0,
        **hyper: Any,
    ) -> None:
        if threads < 1:
            raise KernelError(f"threads: {threads}; must be at least 1")
        if not 0 <= seed < 1 << 32:
            raise KernelError(f"seed: {seed}; must be from 0 to 2**32 - 1")
        self._chosen: dict[str, Any] = {
            "op": op, "backend": backend, "form": form, "isa": isa, "format": format,
        }  # fmt: skip
        self.threads, self.seed = threads, seed
        self._names = {*hyper, *RANGES, "betas"}  # group entries that are not from schedulers
        self._choose()
        super().__init__(params, hyper)

    def _choose(self) -> None:
        """Create the kernel from the chosen operation, backend, form and format."""
        self.kernel = get(**self._chosen)
        narrow = any(slot.name == "out" for slot in self.kernel.slots)
        self._shown = "out" if narrow else "w"  # the array that the model computes with

    def __getstate__(self) -> dict[str, Any]:
        names = ("_chosen", "threads", "seed", "_names")
        return super().__getstate__() | {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "kernel" not in self.__dict__:  # after copying: a kernel cannot be copied
            self._choose()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group as torch does.

        The betas of the group are renamed to the names that the defaults use: either ``betas``, or
        ``beta1`` and ``beta2``.
        """
        group = dict(param_group)
        if "betas" in self.defaults and not group.keys().isdisjoint(_BETAS):
            given = self._spelled({"betas": group.get("betas", self.defaults["betas"])})
            group["betas"] = tuple(group.pop(name, given[name]) for name in _BETAS)
        elif "betas" in group and not self.defaults.keys().isdisjoint(_BETAS):
            group |= self._spelled({"betas": group.pop("betas")})
        super().add_param_group(group)
        try:
            self.kernel.coefficients(self._hyper(self.param_groups[-1]), 1)
        except KernelError:
            del self.param_groups[-1]
            raise

    def _spelled(self, found: dict[str, Any]) -> dict[str, Any]:
        """Replace ``betas`` in a dictionary of hyperparameters by ``beta1`` and ``beta2``."""
        if "betas" in found:
            try:
                found["beta1"], found["beta2"] = found.pop("betas")
            except (TypeError, ValueError):
                raise KernelError(
                    f"{self.kernel.op}: betas must be a pair of numbers, such as (0.9, 0.999)"
                ) from None
        return found

    def _hyper(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters of a group under the names that the kernels use."""
        return self._spelled({name: group[name] for name in group if name in self._names})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. One kernel call updates all parameters of a
        group that have the same step number."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        calls = []
        fresh: dict[torch.Tensor, dict[str, Any]] = {}  # new states, stored after all checks pass
        for number, group in enumerate(self.param_groups):
            by_step: dict[int, list[torch.Tensor]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    self._check(param)
                    by_step.setdefault(self.state.get(param, {}).get("step", 0) + 1, []).append(
                        param
                    )
            for step, parameters in by_step.items():
                coef = self.kernel.coefficients(self._hyper(group), step)
                random = key(step, self.seed + (number << 32)) if self.kernel.random else None
                table, back = self._table(parameters, fresh)
                calls.append((step, parameters, table, back, coef, random))
        for param, state in fresh.items():
            self.state[param] = state
        for step, parameters, table, back, coef, random in calls:
            table(coef, self.threads, random)
            for param in parameters:
                self.state[param]["step"] = step
            for param, held in back:
                param.copy_(held.view(param.shape))
            torch.autograd.graph.increment_version(parameters)  # the kernel wrote behind autograd
        return loss

    def _check(self, param: torch.Tensor) -> None:
        """Raise KernelError for a parameter or gradient that is not a dense real CPU tensor."""
        for what, tensor in (("parameter", param), ("gradient", param.grad)):
            assert tensor is not None
            if (
                tensor.device.type != "cpu"
                or tensor.layout != torch.strided
                or not tensor.is_floating_point()
            ):
                layout = str(tensor.layout).removeprefix("torch.")
                raise KernelError(
                    f"{self.kernel.op}: {what} of shape {tuple(param.shape)} is {tensor.dtype}, "
                    f"{layout}, on {tensor.device}; must be a dense CPU tensor of real numbers"
                )

    def _table(
        self, parameters: list[torch.Tensor], fresh: dict[torch.Tensor, dict[str, Any]]
    ) -> tuple[Table, Back]:
        """Return a `Table` that updates all ``parameters``, and the pairs (parameter, new weights)
        to copy after the update.

        ``fresh`` receives the state of each parameter.
        """
        parts: list[list[np.ndarray]] = []
        back: Back = []
        for param in parameters:
            state = fresh[param] = dict(self.state.get(param, {}))
            if not state:
                arrays = self.kernel.zeros(param.numel())
                state["step"] = 0
                state.update(zip(self.kernel.states, map(tensor_of, arrays), strict=True))
            parts.append(
                [array_of(self._held(param, state, slot, back)) for slot in self.kernel.slots]
            )
        return tensors(self.kernel, parts), back

    def _held(
        self, param: torch.Tensor, state: dict[str, Any], slot: Slot, back: Back
    ) -> torch.Tensor:
        """Return the tensor that the kernel uses for array ``slot`` of a parameter.

        Appends to ``back`` if the new weights must be copied to the parameter.
        """
        if slot.name in self.kernel.states:
            return state[slot.name]
        if slot.name == "g":
            assert param.grad is not None
            return param.grad.detach() if _fits(param.grad, slot) else _cast(param.grad, slot)
        if slot.name == self._shown and slot.name not in state and _fits(param, slot):
            return param.detach()
        if slot.name == "out":
            held = torch.empty(param.numel(), dtype=_TORCH[slot.dtype])
        else:
            held = state.get("w")
            if held is None:
                held = _cast(param, slot)
            if self._keeps(param, slot):
                state["w"] = held
        if slot.name == self._shown:
            back.append((param, held))
        return held

    def _keeps(self, param: torch.Tensor, slot: Slot) -> bool:
        """Return True if storing the weights in the parameter would lose information."""
        return (
            self._shown != "w"
            or torch.promote_types(param.dtype, _TORCH[slot.dtype]) != param.dtype
        )

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dictionary, extended by the format of the states."""
        return {**super().state_dict(), "format": self.kernel.format}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load states as torch does, but keep the type of every state.

        torch would cast states to the parameter's type. Raises KernelError for states of another
        kernel.
        """
        format = state_dict.get("format", self.kernel.format)
        if format != self.kernel.format:
            raise KernelError(
                f"states are in format {format!r}; must be in format {self.kernel.format!r}, or "
                f"create the optimizer with format={format!r}"
            )
        ids = [number for group in state_dict["param_groups"] for number in group["params"]]
        held = [param for group in self.param_groups for param in group["params"]]
        for number, param in zip(ids, held, strict=False):  # torch reports different lengths
            self._check_state(number, param, state_dict["state"].get(number))
        super().load_state_dict(state_dict)
        for number, param in zip(ids, held, strict=True):
            if number in state_dict["state"]:
                self.state[param] = {
                    name: value.detach().clone() if isinstance(value, torch.Tensor) else value
                    for name, value in state_dict["state"][number].items()
                }

    def _check_state(
        self, number: int, param: torch.Tensor, state: Mapping[str, Any] | None
    ) -> None:
        """Raise KernelError unless a loaded state fits this kernel."""
        if not state:
            return
        slots = {slot.name: slot for slot in self.kernel.slots}
        names = [*self.kernel.states, *(["w"] if "w" in state or self._shown != "w" else [])]
        for name in ("step", *names):
            if name not in state:
                have = ", ".join(map(str, state)) or "nothing"
                raise KernelError(
                    f"state of parameter {number}: {name} is missing; the state has {have}"
                )
        for name in names:
            tensor, kind = state[name], _TORCH[slots[name].dtype]
            if tensor.dtype != kind or tensor.shape != (slots[name].size(param.numel()),):
                raise KernelError(
                    f"state of parameter {number}: {name} is {tensor.dtype} {tuple(tensor.shape)}, "
                    f"expected {kind} ({slots[name].size(param.numel())},)"
                )
