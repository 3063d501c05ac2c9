"""Count of the multiply-accumulates of one training step, with torch's formulas.

This module owns MacCounter, which counts the forward and backward passes of the first observed
step. Later steps are not counted. The counted step is slower; the trace's attribute macs_source
reports this.
Source: torch.utils.flop_counter's formulas, two FLOPs per MAC. torch has no formula for its CPU
    attention operator; it is counted as products of queries x keys x width per head, two forward
    and five backward. The backward pass of a convolution is counted here, because torch 2.13's
    formula ignores groups.
"""

from __future__ import annotations

from typing import Any


class MacCounter:
    """Counter of the multiply-accumulates (MACs) that torch executes between start() and
    stop(phase), by phase. After close(), start() has no effect."""

    def __init__(self, torch: Any) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import flop_registry

        self.macs = {"forward": 0, "backward": 0}
        self.done = False
        self._flops = 0
        self._mode: Any = None
        counter = self

        class Mode(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                out = func(*args, **(kwargs or {}))
                formula = flop_registry.get(func._overloadpacket)
                if func._overloadpacket is torch.ops.aten.convolution_backward:
                    counter._flops += _convolution_backward(*args)
                elif formula is not None:
                    counter._flops += formula(*args, **(kwargs or {}), out_val=out)
                elif "scaled_dot_product" in func.__name__:
                    counter._flops += _attention(func.__name__, args)
                return out

        self._type = Mode

    def start(self) -> None:
        """Start counting, unless counting is already active or close() was called."""
        if not self.done and self._mode is None:
            self._flops = 0
            self._mode = self._type()
            self._mode.__enter__()

    def stop(self, phase: str) -> None:
        """Stop counting and add the count to the MACs of a phase, "forward" or "backward"."""
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None
            self.macs[phase] += self._flops // 2

    def close(self) -> None:
        """Disable counting for all later steps."""
        self.done = True


def _attention(name: str, args: Any) -> int:
    """Return the FLOPs of a call of torch's attention operator, in a forward or backward pass."""
    backward = "backward" in name
    query, key, value = args[1:4] if backward else args[:3]
    scores = int(query.shape[:-1].numel()) * int(key.shape[-2])
    products = (
        (int(query.shape[-1]) * 3 + int(value.shape[-1]) * 2)
        if backward
        else (int(query.shape[-1]) + int(value.shape[-1]))
    )
    return 2 * scores * products


def _convolution_backward(gradient: Any, inputs: Any, weight: Any, *rest: Any) -> int:
    """Return the FLOPs of the backward pass of a convolution.

    Each requested gradient (of the input, of the weight) takes the FLOPs of one forward pass.
    """
    transposed, mask = rest[4], rest[7]
    outer = inputs if transposed else gradient
    return 2 * int(outer.numel()) * int(weight[0].numel()) * sum(mask[:2])
