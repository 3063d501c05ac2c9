"""The head that a recorded training run trains, if it trains nothing else.

Owns the search for the head in a trace. Does not own traces (traces/) or layer tables (layers.py).
Source: this project. A trace states for each tensor whether it is trainable, and the
multiply-accumulates of forward and backward.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ondie.traces import Trace


@dataclass(frozen=True)
class TrainedHead:
    """Dense layers that follow frozen layers; counts are per sample. ``inputs``: elements that
    enter the first dense layer. ``macs``: multiply-accumulates of the forward pass of the dense
    layers. ``vectors``: number of vectors in a sample, such as one per token; the inputs consist of
    these vectors."""

    inputs: int
    macs: int
    vectors: int


def trained_head(trace: Trace) -> TrainedHead | str:
    """Return the head that a trace trains, or the reason why it does not train a head.

    A head is a chain of dense layers with weights [outputs, inputs] and an optional bias [outputs].
    For each vector of a sample, the backward pass of a head computes the gradients of all weights,
    and the gradients of the inputs of all layers except the first. If the trace's MACs of the
    backward pass are those of one vector, no other layer takes part in the backward pass. If the
    MACs are those of several vectors, frozen layers after the head could account for some of these
    MACs, so the trace must not list a frozen tensor after a trained tensor.
    """
    frozen = [at for at, each in enumerate(trace.tensors) if each.size and not each.trainable]
    if not frozen:
        return f"{trace.name} has no frozen parameters; ndpipe trains a head after frozen layers"
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
            f"{trace.name} lists the frozen tensor {trace.tensors[frozen[-1]].name} after the "
            f"trained tensor {trace.tensors[first].name}, so its backward pass can be that of "
            f"{vectors} vectors per sample or include frozen layers after the trained layers; a "
            "trace recorded with this version of ondie lists tensors in the order of the model"
        )
    return TrainedHead(vectors * weights[0][1], vectors * sum(forward), vectors)


def _no_chain(trace: Trace) -> str | None:
    """Return the reason why the trainable tensors do not form a chain of dense layers, or None if
    they form one."""
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
                f"{trace.name} trains {tensor.name} of shape {shape}, which is not part of a chain "
                "of dense layers"
            )
    return None
