"""Ring all-reduce: sender, size and order of the messages.

Owns the number of ring steps, the bytes that a node sends in each step, and the order of the
messages. Does not own links and rates (the tunnel of the configuration) or the summed values.
Source: Patarasuk and Yuan 2009, bandwidth-optimal all-reduce, as in Horovod, which STANNIS uses.
With n nodes, n - 1 steps sum the n pieces around the ring, and n - 1 steps distribute the sums;
nodes send while they receive.
"""

from __future__ import annotations

import numpy as np


def steps(nodes: int) -> int:
    """Return the number of ring steps that an all-reduce over ``nodes`` nodes takes."""
    return 2 * (nodes - 1)


def piece_bytes(n_bytes: int, nodes: int) -> int:
    """Return the number of bytes that each node sends to the next node in one ring step."""
    return -(-n_bytes // nodes)


def sender(hop: np.ndarray, nodes: int) -> np.ndarray:
    """Return the node that sends each message in ``hop``, int64. A hop is one message from a node
    to the next node of the ring. Hops are numbered by ring step, then by sending node."""
    return hop % nodes


def awaited(hop: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays with the hops (messages, see :func:`sender`) for which each hop in ``hop``
    waits, int64 each; -1 for the hops of the first ring step.

    The hop in the first array delivers the data to the sender. The hop in the second array is the
    sender's previous hop, because a node sends one message at a time.
    """
    behind = np.where(hop % nodes > 0, hop - nodes - 1, hop - 1)
    before = hop - nodes
    return np.where(before < 0, -1, behind), np.where(before < 0, -1, before)


def last_arrivals(nodes: int) -> np.ndarray:
    """Return the number of the hop (message, see :func:`sender`) that delivers the last piece of
    the sum to each node, int64[nodes]."""
    return (steps(nodes) - 1) * nodes + (np.arange(nodes) - 1) % nodes
