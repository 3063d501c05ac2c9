"""The head that a recorded training trains, if it trains nothing else.

Owns finding the head in a trace. Does not own traces (traces/) or layer tables (layers.py).
Source: this project. A trace states for each tensor whether it is trainable, and the
multiply-accumulates of forward and backward.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ondie.traces import Trace


@dataclass(frozen=True)
class TrainedHead:
    """Dense layers behind frozen ones, per sample of the training. ``inputs``: elements that enter
    the first one. ``macs``: multiply-accumulates of their forward pass."""

    inputs: int
    macs: int


def trained_head(trace: Trace) -> TrainedHead | str:
    """Return the head that a trace trains, or the reason why it trains no head.

    A head is a chain of dense layers: weights [outputs, inputs], each with or without a bias
    [outputs]. A trace does not say in which order layers run, so its backward pass must be that of
    the chain alone: the gradient of each weight, and that of each input but the first. It also
    tells how many vectors of a sample the head receives, such as one per token.
    """
    if not any(each.size and not each.trainable for each in trace.tensors):
        return f"{trace.name} has no frozen parameters; ndpipe trains a head behind frozen layers"
    weights = [each.shape for each in trace.trainable if len(each.shape) == 2]
    biases: Counter[tuple[int, ...]] = Counter(shape[:1] for shape in weights)
    outputs = 0
    for tensor in trace.trainable:  # groups of the optimizer may separate weights from biases
        shape = tuple(tensor.shape)
        if len(shape) == 2 and outputs in (0, shape[1]):
            outputs = shape[0]
        elif biases[shape]:
            biases[shape] -= 1
        else:
            return (
                f"{trace.name} trains {tensor.name} of shape {shape}, which is no part of a chain "
                "of dense layers"
            )
    forward = [outputs * inputs for outputs, inputs in weights]
    backward = 2 * sum(forward) - forward[0]
    vectors, rest = divmod(trace.macs_backward, backward)
    if rest or not vectors:
        return (
            f"{trace.name} states {trace.macs_backward:,} multiply-accumulates of the backward "
            f"pass (macs_backward); its dense layers take {backward:,} per vector"
        )
    return TrainedHead(vectors * weights[0][1], vectors * sum(forward))
