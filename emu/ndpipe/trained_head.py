"""The head that a recorded training trains, if it trains nothing else.

Owns finding the head in a trace. Does not own traces (traces/) or layer tables (layers.py).
Source: this project. A trace states for each tensor whether it is trainable.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.traces import Trace


@dataclass(frozen=True)
class TrainedHead:
    """Dense layers behind frozen ones. ``inputs``: elements of a sample that enter the first one.
    ``macs``: multiply-accumulates of their forward pass per sample, one vector each."""

    inputs: int
    macs: int


def trained_head(trace: Trace) -> TrainedHead | str:
    """Return the head that a trace trains, or the reason why it trains no head.

    A head is a chain of dense layers, in the order of the flat vector: weights [outputs, inputs],
    each with or without a bias [outputs]; at least one parameter of the model is frozen.
    """
    frozen = sum(not tensor.trainable and tensor.size > 0 for tensor in trace.tensors)
    if not frozen:
        return f"{trace.name} has no frozen parameters; ndpipe trains a head behind frozen layers"
    inputs = outputs = macs = 0
    for tensor in trace.trainable:
        shape = tensor.shape
        bias = len(shape) == 1 and shape[0] == outputs
        if not bias and not (len(shape) == 2 and outputs in (0, shape[1])):
            return (
                f"{trace.name} trains {tensor.name} of shape {tuple(shape)}, which is no part of a "
                "chain of dense layers"
            )
        if not bias:
            inputs, outputs, macs = inputs or shape[1], shape[0], macs + shape[0] * shape[1]
    return TrainedHead(inputs, macs)
