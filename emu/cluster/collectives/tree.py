"""All-reduce by a binary tree: partial sums are sent up to the host, and the sum is sent down.

Owns the senders and receivers, and the time at which each node has its data. Does not own the cost
of a message (nvme/tunnel/cost.py).
Source: the binary tree of MPI's collectives (Thakur, Rabenseifner and Gropp 2005): whole messages,
level by level. The parent of node i is (i - 1) // 2, so the host, node 0, is the root. Messages
from two children share the downward direction of their parent's tunnel. The parent's messages to
its children share the upward direction. Additions on the drives are included in the tunnels'
effective rate; additions on the host take additional time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ondie.emu.cluster.collectives.tunnels import Links, relay_ps, sum_ps
from ondie.emu.nvme.tunnel.cost import Message

CHILDREN = 2


def levels(nodes: int) -> list[np.ndarray]:
    """Return the node numbers of each level of the tree, int64 each, starting with the root."""
    found, first = [], 0
    while first < nodes:
        found.append(np.arange(first, min(CHILDREN * first + 1, nodes)))
        first = CHILDREN * first + 1
    return found


def parents(nodes: np.ndarray) -> np.ndarray:
    """Return the parent in the tree of each of ``nodes``, which must not include the root."""
    return (nodes - 1) // CHILDREN


class Edges(NamedTuple):
    """Times of one message from a drive to another drive in the tree, ps, by kind of sender and
    kind of receiver; int64[kinds, kinds] each.

    ``up``: upward transfer. ``body``, ``tail``: downward transfer (cost.Message). ``relay``: time
    that the host's relay needs.
    """

    up: np.ndarray
    body: np.ndarray
    tail: np.ndarray
    relay: np.ndarray

    @classmethod
    def of(cls, links: Links, n_bytes: int) -> Edges:
        """Return the times of a message of ``n_bytes`` bytes between two drives with the tunnels
        ``links``."""
        parts = [
            [
                (
                    message.up_ps,
                    message.body_ps,
                    message.tail_ps,
                    relay_ps(message, links.host.threads),
                )
                for message in row
            ]
            for row in links.across(n_bytes)
        ]
        return cls(*np.moveaxis(np.array(parts, np.int64), 2, 0))


class Relay:
    """The host's relay as a queue that serves all messages in the order in which they start."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.free = 0

    def serve(self, start: np.ndarray, work: np.ndarray) -> np.ndarray:
        """Return the completion times of messages that arrive at ``start`` and occupy the relay for
        ``work``; all int64[n], ps."""
        order = np.argsort(start, kind="stable")
        done = np.empty_like(start)
        done[order] = queue(np.maximum(start[order], self.free), work[order])
        self.free = int(done.max())
        return done


def queue(arrival: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Return the completion times of jobs that one server processes one after the other, in the
    order of the first axis.

    ``arrival`` (ascending) and ``work``: ps, int64 arrays of the same shape.
    """
    ahead = np.cumsum(work, axis=0)
    return np.maximum.accumulate(arrival - (ahead - work), axis=0) + ahead


def seconds_ps(n_bytes: int, links: Links, shared: bool) -> tuple[int, int]:
    """Return the times from the start of a tree all-reduce of ``n_bytes`` bytes until the host has
    the sum and until the last drive has the sum, ps.

    ``shared``: True to include the host's relay, which serves one tree level after the other. If it
    is False, the relay is assumed to have enough threads.
    """
    nodes, which = links.drives + 1, links.which
    edges = Edges.of(links, n_bytes)
    relay = Relay(links.host.threads) if shared else None
    below = levels(nodes)[2:]
    top = np.arange(1, 1 + min(links.drives, CHILDREN))
    ready = np.zeros(nodes, np.int64)
    for level in reversed(below):
        _gather(level, which, edges, ready, relay)
    _with_host(top, which, links.up(n_bytes), ready, relay)
    host = int(ready[top].max()) + sum_ps(n_bytes, len(top), links.host.host_dram)
    ready[top] = host
    _with_host(top, which, links.down(n_bytes), ready, relay)
    for level in below:
        _spread(level, which, edges, ready, relay)
    return host, int(ready[1:].max())


def _with_host(
    top: np.ndarray,
    which: np.ndarray,
    messages: Sequence[Message],
    ready: np.ndarray,
    relay: Relay | None,
) -> None:
    """Send one message between the host and each of the nodes ``top``, the children of the host,
    each through a separate tunnel.

    ``ready``: times of all nodes, ps; the start times of ``top`` are replaced by the arrival times.
    """
    start = ready[top]
    mine = [messages[kind] for kind in which[top - 1]]
    ready[top] = start + np.array([message.end_ps for message in mine])
    if relay is not None:
        work = np.array([relay_ps(message, relay.threads) for message in mine], np.int64)
        ready[top] = np.maximum(ready[top], relay.serve(start, work))


def _gather(
    level: np.ndarray, which: np.ndarray, edges: Edges, ready: np.ndarray, relay: Relay | None
) -> None:
    """Send a message from every node of a level to its parent, which is a drive. Set the parent's
    ``ready`` to the time of the last arrival, ps."""
    parent = parents(level)
    pair = which[level - 1], which[parent - 1]
    up, body, tail = edges.up[pair], edges.body[pair], edges.tail[pair]
    start = ready[level]
    # Downward direction of the parent's tunnel: the body of each child's message arrives at its
    # start, its tail when the upward transfer is complete. A missing child has no message.
    families = -(-len(level) // CHILDREN)
    arrival = np.zeros((2 * CHILDREN, families), np.int64)
    work = np.zeros_like(arrival)
    for child in range(CHILDREN):
        of = slice(child, None, CHILDREN)
        count = len(level[of])
        arrival[child, :count], work[child, :count] = start[of], body[of]
        arrival[CHILDREN + child, :count], work[CHILDREN + child, :count] = (
            (start + up)[of],
            tail[of],
        )
    order = np.argsort(arrival, axis=0, kind="stable")
    done = queue(np.take_along_axis(arrival, order, 0), np.take_along_axis(work, order, 0))
    last = np.where(np.take_along_axis(work, order, 0) > 0, done, 0).max(axis=0)
    if relay is not None:
        served = np.zeros((families, CHILDREN), np.int64)
        served.reshape(-1)[: len(level)] = relay.serve(start, edges.relay[pair])
        last = np.maximum(last, served.max(axis=1))
    ready[parent[::CHILDREN]] = last


def _spread(
    level: np.ndarray, which: np.ndarray, edges: Edges, ready: np.ndarray, relay: Relay | None
) -> None:
    """Send the sum to every node of a level from its parent, which is a drive. Set the node's
    ``ready`` to the time of arrival, ps."""
    parent = parents(level)
    pair = which[parent - 1], which[level - 1]
    up, body, tail = edges.up[pair], edges.body[pair], edges.tail[pair]
    start = ready[parent]
    left = start + up
    seconds = level[1::CHILDREN]
    left[1::CHILDREN] += up[::CHILDREN][: len(seconds)]  # after the first child's message
    ends = np.maximum(start + body, left) + tail
    if relay is not None:
        ends = np.maximum(ends, relay.serve(start, edges.relay[pair]))
    ready[level] = ends
