"""A torch optimizer whose update is one of our kernels, in any of its formats.

Owns the states and what a format stores beside a parameter. Does not own the arithmetic
(ondie.kernels). Source: the interface of torch.optim.Optimizer.

    optimizer = KernelOptimizer(model.parameters(), "adamw", format="int8_dynamic", lr=1e-3,
                                betas=(0.9, 0.999), eps=1e-8)

Where a parameter or gradient already is what the format stores (float32, float16 or bfloat16,
contiguous), the kernel works on its memory. Else the optimizer keeps an array of the right type,
casts the gradient into it before the update and the new weight out of it afterwards: a model in
float32 then computes with exactly the weights that the format can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from ondie.kernels import KernelError, get, tensors
from ondie.kernels.stochastic import key
from ondie.kernels.update import Slot

_TORCH = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.uint16): torch.bfloat16,  # NumPy has none: its bits
    np.dtype(np.uint8): torch.uint8,
}


def _array(t: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, flat."""
    flat = t.view(-1)
    if t.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()


def _fits(t: torch.Tensor, slot: Slot) -> bool:
    """Whether a tensor's memory is what an array of the update wants."""
    return t.dtype == _TORCH[slot.dtype] and t.is_contiguous()


class KernelOptimizer(torch.optim.Optimizer):
    """Updates parameters on the CPU with ``ondie.kernels.get(op, format=…)``.

    op, backend, form, isa, format: as `get` takes them. hyper: the operation's hyperparameters
    under torch's names (``betas``) or ours (``beta1``), for all groups; a group may have its own,
    and schedulers may change them. seed: of rounding at random. Raises KernelError for what the
    kernel does not take, and for parameters elsewhere than on the CPU.
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
        self.kernel = get(op, backend=backend, form=form, isa=isa, format=format)
        self.threads, self.seed = threads, seed
        narrow = any(slot.name == "out" for slot in self.kernel.slots)
        self._shown = "out" if narrow else "w"  # what the model computes with
        super().__init__(params, hyper)
        for group in self.param_groups:
            self.kernel.coefficients(self._hyper(group), 1)

    def _hyper(self, group: dict[str, Any]) -> dict[str, float]:
        """A group's hyperparameters under our names."""
        found = {name: group[name] for name in self.defaults}
        found |= {n: v for n, v in group.items() if n in self.kernel.takes}
        if "betas" in found:
            found["beta1"], found["beta2"] = found.pop("betas")
        return found

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, those of a group in one call."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            by_step: dict[int, list[torch.Tensor]] = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.device.type != "cpu" or p.grad.is_sparse:
                    raise KernelError(f"{self.kernel.op}: {p.device.type} parameter of shape "
                                      f"{tuple(p.shape)}, want a dense one on the CPU")  # fmt: skip
                if not self.state[p]:
                    self.state[p] = self._start(p)
                self.state[p]["step"] += 1
                by_step.setdefault(self.state[p]["step"], []).append(p)
            for step, parameters in by_step.items():
                self._update(parameters, self._hyper(group), step, self.seed + number)
        return loss

    def _start(self, p: torch.Tensor) -> dict[str, Any]:
        """What is kept of a parameter, before the first step: the states, and weights where the
        parameter does not hold them as the format does."""
        state: dict[str, Any] = {"step": 0}
        for name, array in zip(self.kernel.states, self.kernel.zeros(p.numel()), strict=True):
            kind = _TORCH[array.dtype]
            state[name] = torch.from_numpy(array.view(np.int16) if array.dtype == np.uint16 else
                                           array).view(kind)  # fmt: skip
        w = self.kernel.slots[0]
        if self._shown != "w" or not _fits(p, w):
            state["w"] = p.detach().reshape(-1).to(_TORCH[w.dtype], copy=True)
        return state

    def _update(
        self, parameters: list[torch.Tensor], hyper: dict[str, float], step: int, seed: int
    ) -> None:
        parts, back = [], []
        for p in parameters:
            arrays = []
            for slot in self.kernel.slots:
                there = {"g": p.grad, self._shown: p}.get(slot.name)
                if slot.name in self.state[p]:
                    held = self.state[p][slot.name]
                elif there is not None and _fits(there, slot):
                    held = there.detach()
                else:
                    held = torch.empty(p.numel(), dtype=_TORCH[slot.dtype])
                if there is not None and held.data_ptr() != there.data_ptr():
                    if slot.name == "g":
                        held.copy_(there.reshape(-1))
                    else:
                        back.append((p, held))
                arrays.append(_array(held))
            parts.append(arrays)
        coef = self.kernel.coefficients(hyper, step)
        number = key(step, seed) if self.kernel.random else None
        tensors(self.kernel, parts)(coef, self.threads, number)
        for p, held in back:
            p.copy_(held.view(p.shape))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but every state keeps its type: torch would cast it to the parameter's."""
        super().load_state_dict(state_dict)
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        held = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(ids, held, strict=True):
            if i in state_dict["state"]:
                self.state[p] = {
                    name: value.detach().clone() if isinstance(value, torch.Tensor) else value
                    for name, value in state_dict["state"][i].items()
                }
