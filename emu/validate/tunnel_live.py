"""All-reduces over live tunnels compared with the cost model: `ondie validate tunnel --live`.

Owns the rows of this comparison, and the messages of each algorithm. Does not own the threads and
packets (tunnel_cluster.py) or the cost model (nvme/tunnel/cost.py, cluster/collectives/). Source:
none; the gradient is that of MobileNetV2 in HyperTune, 3.4 M parameters in FP32.

The bytes of the gradient are added modulo 256, so that a message may have any size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondie.emu.analysis.row import IDENTITY, SHOWN, Progress, Row
from ondie.emu.cluster.collectives import ring, tree
from ondie.emu.cluster.collectives.allreduce import ALGORITHMS, exchange
from ondie.emu.config.config import load_preset
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.validate.tunnel_cluster import HOST_NODE, Cluster, Move, Run, TunnelStalled

SUITE = "tunnel-live"
GRADIENT = 13_600_000
PRESET = "laguna"
DRIVES = (2, 4, 8)
EQUAL = (
    "programs in threads, real bytes through the relays and the controllers of the drives; "
    "compared with the cost model"
)
SHARED = (
    "programs in threads, as with one packet per block, but with several packets per block: the "
    "number of packets of a message from drive to drive that share a write command depends on "
    "their arrival times at the host, whose relay is a program here"
)
CPU = (
    "CPU time of the host's relay per GB of messages, up and down: this project's, in Python; "
    "compared with the cost model's, whose constants are assumed"
)


def ring_moves(n_bytes: int, nodes: int) -> list[Move]:
    """Return the messages of a ring all-reduce, ordered by ring step, then by sending node."""
    piece, steps = ring.piece_bytes(n_bytes, nodes), ring.steps(nodes)
    hops = np.arange(steps * nodes)
    found = []
    for hop, data, own in zip(hops.tolist(), *(x.tolist() for x in ring.awaited(hops, nodes)),
                              strict=True):  # fmt: skip
        step, node = divmod(hop, nodes)
        add = step < nodes - 1
        part = (node - step if add else node + nodes - step) % nodes
        after = tuple(each for each in (data, own) if each >= 0)
        start = part * piece
        found.append(Move(node, (node + 1) % nodes, start, start + piece, add, after))
    return found


def star_moves(n_bytes: int, nodes: int) -> list[Move]:
    """Return the messages of a star all-reduce: all drives send to the host, which adds the arrays
    and sends the sum to all drives."""
    up = [Move(node, HOST_NODE, 0, n_bytes, True) for node in range(1, nodes)]
    summed = tuple(range(len(up)))
    return up + [Move(HOST_NODE, node, 0, n_bytes, False, summed) for node in range(1, nodes)]


def tree_moves(n_bytes: int, nodes: int) -> list[Move]:
    """Return the messages of a tree all-reduce: partial sums are sent towards the host, and the sum
    is sent back. A drive sends the sum to its children one after the other."""
    found: list[Move] = []
    got: dict[int, tuple[int, ...]] = {}
    below = tree.levels(nodes)[1:]
    for level in reversed(below):
        for node, parent in zip(level.tolist(), tree.parents(level).tolist(), strict=True):
            got[parent] = (*got.get(parent, ()), len(found))
            found.append(Move(node, parent, 0, n_bytes, True, got.get(node, ())))
    came: dict[int, tuple[int, ...]] = {HOST_NODE: got[HOST_NODE]}
    for level in below:
        for node, parent in zip(level.tolist(), tree.parents(level).tolist(), strict=True):
            came[node] = (len(found),)
            found.append(Move(parent, node, 0, n_bytes, False, came[parent]))
            if parent != HOST_NODE:
                came[parent] = (*came[parent], len(found) - 1)
    return found


MOVES = {"ring": ring_moves, "star": star_moves, "tree": tree_moves}


def all_reduce(cluster: Cluster, kind: str, n_bytes: int, seed: int = 0) -> Run:
    """Sum arrays of ``n_bytes`` random bytes, one array per node, with the algorithm ``kind``;
    return the measurements. Raises TunnelStalled if a packet is lost or damaged, if a command
    fails, or if the array of a node is not the sum."""
    nodes = len(cluster.drives) + 1
    rng = np.random.default_rng(seed)
    padded = ring.piece_bytes(n_bytes, nodes) * nodes if kind == "ring" else n_bytes
    arrays = [rng.integers(0, 256, padded, np.uint8) for _ in range(nodes)]
    expected = sum(arrays[1:], arrays[0].copy())
    found = cluster.run(MOVES[kind](n_bytes, nodes), arrays)
    for node, array in enumerate(arrays):
        if not np.array_equal(array, expected):
            raise TunnelStalled(f"tunnel: node {node} does not have the sum of all nodes")
    return found


def live_rows(
    progress: Progress, n_bytes: int = GRADIENT, drives: tuple[int, ...] = DRIVES
) -> list[Row]:
    """Return the rows of all-reduces of ``n_bytes`` over each number of drives in ``drives``.

    The rows compare the number of commands and the CPU time of live tunnels (expected) with the
    cost model (predicted). Raises TunnelStalled if a tunnel cannot be opened, if a command fails,
    or if bytes are lost or damaged.
    """
    rows: list[Row] = []
    cases = [(concatenate, count) for concatenate in (False, True) for count in drives]
    for at, (concatenate, count) in enumerate(cases):
        rows += _rows_of(n_bytes, count, concatenate)
        if progress is not None:
            progress(SUITE, (at + 1) / len(cases))
    return rows


def _rows_of(n_bytes: int, drives: int, concatenate: bool) -> Iterator[Row]:
    """Yield the rows of all algorithms over ``drives`` drives.

    ``concatenate``: True if a block may hold several packets.
    """
    cfg = load_preset(PRESET, (f"tunnel.concatenate={str(concatenate).lower()}",))
    cost = TunnelCost.of(cfg)
    blocks = "several packets per block" if concatenate else "one packet per block"
    with Cluster(cfg, drives) as cluster:
        for kind in ALGORITHMS:
            live, model = all_reduce(cluster, kind, n_bytes), exchange(kind, n_bytes, drives, cost)
            received = sum(
                cost.upward(move.stop - move.start).received
                for move in MOVES[kind](n_bytes, drives + 1)
                if move.source != HOST_NODE
            )
            name = f"{kind} over {drives} drives, {blocks}"
            yield Row(SUITE, f"{name}: receive commands", IDENTITY, live.received, received,
                      "commands", 0.0, EQUAL)  # fmt: skip
            counts = live.written, model.commands - received
            if concatenate and kind != "star":
                yield Row(
                    SUITE, f"{name}: write commands", SHOWN, *counts, "commands", None, SHARED
                )
            else:
                yield Row(
                    SUITE, f"{name}: write commands", IDENTITY, *counts, "commands", 0.0, EQUAL
                )
            moved = (model.bytes_up + model.bytes_down) / 1e9
            cpu = live.host_cpu_s / moved, model.host_cpu_s / moved
            yield Row(
                SUITE, f"{name}: CPU time of the host's relay", SHOWN, *cpu, "s/GB", None, CPU
            )
