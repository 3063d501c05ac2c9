"""Weighted mean of gradients: the weight of each node's mean gradient, and the weighted sum.

Owns the weights, their effect on a single sample, the bias and noise of a mean whose weights differ
from the batches, and the order of additions in an all-reduce. Does not own batches (batch_tuner.py,
data_split.py) or the time of an all-reduce (collectives/).
Source: none. Horovod's mean is its sum divided by the number of ranks, in which a rank that has
joined counts with zeros (horovod/torch/mpi_ops.py and common/tensor_queue.cc).

Node i computes the mean gradient g_i of its b_i samples; B is the sum of b. The gradient of the
whole batch is sum_i (b_i / B) g_i. With weights w a sample of node i has the factor w_i / b_i: with
weights 1/n, a sample of a drive with batch 25 counts 315 / 25 = 12.6 times as much as a sample of a
host with batch 315. The same weights apply to micro-batches of one node, and to parameters that
nodes have trained separately.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ondie.emu.units import InputError, nearest

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

EXCHANGES = ("star", "ring", "tree")
"""Orders of addition. "star": the host adds one node after another. "ring": each piece starts at a
different node and goes around the ring. "tree": node i adds the sum of node i + s, for s = 1, 2, 4,
..."""


def by_batch(batches: npt.ArrayLike, present: npt.ArrayLike | None = None) -> F64:
    """Return w_i = b_i / sum of b over the present nodes, float64[n]; 0 for absent nodes.

    ``present``: bool[n]; None means all. Raises InputError if no present node has a sample.
    """
    b, there = _nodes(batches, present)
    held = np.where(there, b, 0)
    if not held.any():
        raise InputError("no node that is present has a sample; at least one of batch 1 is needed")
    shares: F64 = held / held.sum()
    return shares


def by_rank(batches: npt.ArrayLike, present: npt.ArrayLike | None = None) -> F64:
    """Return the weights of Horovod's unweighted mean: 1/n over the n present nodes.

    A node without samples counts in n with zeros: its weight is 0, and the weights of the other
    nodes sum to less than 1.
    """
    b, there = _nodes(batches, present)
    if not (there & (b > 0)).any():
        raise InputError("no node that is present has a sample; at least one of batch 1 is needed")
    shares: F64 = np.where(there & (b > 0), 1.0, 0.0) / there.sum()
    return shares


def sample_weights(batches: npt.ArrayLike, weights: npt.ArrayLike) -> F64:
    """Return the weight of one sample of each node, B w_i / b_i, float64[n].

    A sample has weight 1 in the mean of the whole batch. 0 for nodes without samples.
    """
    b, w = _weighted(batches, weights)
    counts: F64 = np.divide(b.sum() * w, b, out=np.zeros(len(b)), where=b > 0)
    return counts


def relative_weight(
    batches: npt.ArrayLike, weights: npt.ArrayLike, node: int, other: int = 0
) -> float:
    """Return the weight of a sample of ``node`` divided by that of a sample of ``other``.

    With weights 1/n this is b_other / b_node. Raises InputError if a node number is out of range,
    or if a sample of ``other`` has weight 0.
    """
    counts = sample_weights(batches, weights)
    for i in (node, other):
        if not 0 <= i < len(counts):
            raise InputError(f"node {i}: 0 to {len(counts) - 1} is right")
    if not counts[other] > 0:
        raise InputError(f"node {other}: its samples count nothing; nothing compares with them")
    return float(counts[node] / counts[other])


def effective_batch(batches: npt.ArrayLike, weights: npt.ArrayLike) -> float:
    """Return the number of samples whose unweighted mean is equally noisy.

    Kish's effective size, (sum w)^2 / sum (w_i^2 / b_i). It is B for weights by batch, and less for
    all other weights.
    """
    b, w = _weighted(batches, weights)
    return float(w.sum() ** 2 / _squares(b, w))


def bias(batches: npt.ArrayLike, weights: npt.ArrayLike, means: npt.ArrayLike) -> F64:
    """Return the expected error of the weighted mean if the data of node i has gradient
    ``means[i]``.

    sum_i (w_i - b_i / B) means[i], float64[...] for means of float[n, ...]. It is 0 if all data are
    alike and the weights sum to 1, and for weights by batch with any data.
    """
    b, w = _weighted(batches, weights)
    m = np.asarray(means, np.float64)
    if m.shape[:1] != b.shape:
        raise InputError(
            f"gradients of {len(m) if m.ndim else 0} nodes, batches of {len(b)}: one of each per "
            f"node"
        )
    error: F64 = np.tensordot(w - b / b.sum(), m, 1)
    return error


def noise(batches: npt.ArrayLike, weights: npt.ArrayLike, spread: float) -> float:
    """Return the expected squared distance from the mean if the B samples are dealt at random.

    Exactly spread x (sum w_i^2 / b_i - (sum w)^2 / B); 0 for weights by batch. ``spread``: spread
    of these samples' gradients, as returned by `spread`.

    A sample's coefficient is c = w_i / b_i. Over all permutations the variance of sum c_x g_x is
    S^2 sum (c_x - mean c)^2, with S^2 the samples' variance with B - 1 degrees of freedom.
    """
    b, w = _weighted(batches, weights)
    return float(spread) * float(_squares(b, w) - w.sum() ** 2 / b.sum())


def spread(gradients: npt.ArrayLike) -> float:
    """Return the sum over parameters of the variance of the samples' gradients, float[B, params].

    This is S^2, with B - 1 degrees of freedom.
    """
    g = np.asarray(gradients, np.float64)
    if g.ndim != 2 or len(g) < 2:
        raise InputError(
            f"gradients of shape {g.shape}: two samples or more, [samples, parameters]"
        )
    return float(np.square(g - g.mean(axis=0)).sum() / (len(g) - 1))


def all_reduce(
    gradients: Sequence[F32 | None], weights: npt.ArrayLike, exchange: str = "star"
) -> F32:
    """Return sum_i w_i g_i, float32[params], computed as the nodes compute it.

    Each node multiplies its gradient by its weight in float32, and the exchange adds in its order;
    the result is bit-identical every time. ``gradients``: float32[params] of each node; None for a
    node that has left and takes no part. A node of weight 0 adds zeros, regardless of its gradient.
    With weights of sum 1 the result lies within (n + 1) 2^-24 sum w_i |g_i| of the exact sum, plus
    errors below float32's least normal number.
    Raises InputError for arrays of different lengths and for a weight without a gradient.
    """
    if exchange not in EXCHANGES:
        raise InputError(
            f"exchange: {exchange!r}; nearest: {nearest(exchange, EXCHANGES) or 'none'} "
            f"(of {', '.join(EXCHANGES)})"
        )
    w = _finite(weights)
    if len(gradients) != len(w):
        raise InputError(
            f"gradients of {len(gradients)} nodes, weights of {len(w)}: one of each per node"
        )
    parts: list[F32] = []
    for i, g in enumerate(gradients):
        if g is None:
            if w[i]:
                raise InputError(f"node {i}: weight {w[i]:g} and no gradient; want one, or 0")
            continue
        _like(i, g, parts)
        parts.append(np.float32(w[i]) * g if w[i] else np.zeros_like(g))
    if not parts:
        raise InputError("no node has a gradient; at least one is needed")
    return _ADD[exchange](parts)


def _star(parts: list[F32]) -> F32:
    """Add the parts in the order of the nodes."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


def _ring(parts: list[F32]) -> F32:
    """Add each piece around the ring; piece p starts at node p."""
    n, size = len(parts), len(parts[0])
    piece = -(-size // n)
    total = np.empty(size, np.float32)
    for p in range(n):
        at = slice(p * piece, min((p + 1) * piece, size))
        total[at] = parts[p][at]
        for hop in range(1, n):
            total[at] += parts[(p + hop) % n][at]
    return total


def _tree(parts: list[F32]) -> F32:
    """Add the parts in pairs, with a stride that doubles."""
    stride = 1
    while stride < len(parts):
        for i in range(0, len(parts) - stride, 2 * stride):
            parts[i] += parts[i + stride]
        stride *= 2
    return parts[0]


_ADD = {"star": _star, "ring": _ring, "tree": _tree}


def _squares(b: npt.NDArray[np.int64], w: F64) -> float:
    """Return the sum of w_i^2 / b_i over the nodes with samples."""
    return float(np.divide(w * w, b, out=np.zeros(len(b)), where=b > 0).sum())


def _nodes(
    batches: npt.ArrayLike, present: npt.ArrayLike | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the validated batches and presence flags."""
    b = np.asarray(batches)
    if b.ndim != 1 or not len(b) or b.dtype.kind not in "iu":
        raise InputError(f"batches: {b.dtype} of shape {b.shape}; a whole number per node is right")
    if (b < 0).any():
        i = int(np.argmax(b < 0))
        raise InputError(f"node {i}: batch {b[i]}; 0 or more is right")
    there = np.ones(len(b), np.bool_) if present is None else np.asarray(present)
    if there.shape != b.shape or there.dtype != np.bool_:
        raise InputError(
            f"present: {there.dtype} of shape {there.shape}; true or false for each of {len(b)} "
            f"nodes is right"
        )
    return b.astype(np.int64), there


def _weighted(batches: npt.ArrayLike, weights: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], F64]:
    """Return validated batches and weights of equal length; at least one weight is more than 0."""
    b, _ = _nodes(batches, None)
    w = _finite(weights)
    if len(w) != len(b):
        raise InputError(f"weights of {len(w)} nodes, batches of {len(b)}: one of each per node")
    if (wrong := (w > 0) & (b == 0)).any():
        i = int(np.argmax(wrong))
        raise InputError(f"node {i}: weight {w[i]:g} and no sample; want a batch, or weight 0")
    if not w.any():
        raise InputError("every weight is 0; at least one must be more")
    return b, w


def _finite(weights: npt.ArrayLike) -> F64:
    """Return the weights as float64[n]. Raises InputError unless all are finite and 0 or more."""
    w = np.asarray(weights, np.float64)
    if w.ndim != 1:
        raise InputError(f"weights of shape {w.shape}; one number per node is right")
    if (wrong := ~(np.isfinite(w) & (w >= 0))).any():
        i = int(np.argmax(wrong))
        raise InputError(f"node {i}: weight {w[i]:g}; 0 or more is right")
    return w


def _like(i: int, g: F32, others: list[F32]) -> None:
    """Raise InputError if a gradient is not a float32 vector of the same length as the others."""
    size = len(others[0]) if others else None
    if g.dtype != np.float32 or g.ndim != 1 or (size is not None and len(g) != size):
        right = "a vector of float32" if size is None else f"float32[{size}]"
        raise InputError(f"node {i}: gradient {g.dtype}{list(g.shape)}; {right} is right")
