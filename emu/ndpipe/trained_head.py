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
    the first one. ``macs``: multiply-accumulates of their forward pass. ``vectors``: vectors of a
    sample, such as one per token, of which the inputs consist."""

    inputs: int
    macs: int
    vectors: int


def trained_head(trace: Trace) -> TrainedHead | str:
    """Return the head that a trace trains, or the reason why it trains no head.

    A head is a chain of dense layers: weights [outputs, inputs], each with or without a bias
    [outputs]. Its backward pass is the gradient of each weight, and that of each input but the
    first, for each vector of a sample. With one vector, it takes the multiply-accumulates of the
    chain alone, and frozen layers behind it would add theirs. With several, they could be those of
    such layers, so the trace must list no frozen tensor behind a trained one.
    """
    frozen = [at for at, each in enumerate(trace.tensors) if each.size and not each.trainable]
    if not frozen:
        return f"{trace.name} has no frozen parameters; ndpipe trains a head behind frozen layers"
    if (wrong := _no_chain(trace)) is not None:
        return wrong
    weights = [each.shape for each in trace.trainable if len(each.shape) == 2]
    forward = [outputs * inputs for outputs, inputs in weights]
    backward = 2 * sum(forward) - forward[0]
    vectors, rest = divmod(trace.macs_backward, backward)
    if rest or not vectors:
        return (
            f"{trace.name} states {trace.macs_backward:,} multiply-accumulates of the backward "
            f"pass (macs_backward); its dense layers take {backward:,} per vector"
        )
    first = next(at for at, each in enumerate(trace.tensors) if each.trainable)
    if vectors > 1 and frozen[-1] > first:
        return (
            f"{trace.name} lists the frozen tensor {trace.tensors[frozen[-1]].name} behind the "
            f"trained one {trace.tensors[first].name}, so its backward pass can be that of "
            f"{vectors} vectors per sample or that of frozen layers behind the trained ones; a "
            "recording of this version of ondie lists tensors in the order of the model"
        )
    return TrainedHead(vectors * weights[0][1], vectors * sum(forward), vectors)


def _no_chain(trace: Trace) -> str | None:
    """Return why the trainable tensors are no chain of dense layers, or None."""
    biases: Counter[tuple[int, ...]] = Counter(
        each.shape[:1] for each in trace.trainable if len(each.shape) == 2
    )
    outputs: int | None = None
    for tensor in trace.trainable:  # groups of the optimizer may separate weights from biases
        shape = tuple(tensor.shape)
        if tensor.size and len(shape) == 2 and outputs in (None, shape[1]):
            outputs = shape[0]
        elif tensor.size and biases[shape]:
            biases[shape] -= 1
        else:
            return (
                f"{trace.name} trains {tensor.name} of shape {shape}, which is no part of a chain "
                "of dense layers"
            )
    return None
