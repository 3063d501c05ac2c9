"""All-reduce over a host and its drives: time of a gradient exchange by ring, tree or star.

Owns the messages of each algorithm and their total time. Does not own the cost of one message
(nvme/tunnel/cost.py), the order of the ring's hops (ring.py), the tree (tree.py), or the values
that are summed.
Source: Patarasuk and Yuan 2009 for the ring, as in Horovod; tree.py for the tree. In the star,
every drive sends its gradient to the host, which sums all gradients and sends the sum to every
drive.

Additions on the drives are included in the tunnels' effective rate. Additions on the host take time
only with tree and star, where the host adds whole gradients after it has received all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ondie.emu.clock import PS_PER_S
from ondie.emu.cluster.collectives import ring, tree
from ondie.emu.cluster.collectives.tunnels import SUM_PASSES, Links, relay_ps, sum_ps
from ondie.emu.nvme.tunnel.cost import Message, TunnelCost
from ondie.emu.units import InputError, known_names

ALGORITHMS = ("ring", "tree", "star")
WAIT_PS = 1000
"""Resolution (ps) of the search for the time that a relay thread waits for a core of the host."""


@dataclass(frozen=True)
class Allreduce:
    """Results of one all-reduce of gradients over a host and its drives: times, traffic and
    energy."""

    kind: str
    seconds: float
    """Time from the start until every node has the sum of all gradients, seconds."""
    host_s: float
    """Time from the start until the host has the sum of all gradients, seconds."""
    drives_s: float
    """Time from the start until the last drive has the sum of all gradients, seconds."""
    host_cpu_s: float
    """CPU time of the host's relay, summed over its threads, seconds."""
    commands: int
    """Number of NVMe commands that the tunnels of all drives use, in both directions."""
    notifications: int
    bytes_up: int
    """Number of bytes of all messages from drives to the host, including messages that the host
    relays to another drive."""
    bytes_down: int
    wire_bytes: int
    """Number of bytes on the links of all drives, including the headers of packets and of blocks of
    packets."""
    host_dram_bytes: int
    """Number of bytes of host DRAM traffic: messages that pass through the host, and the host's
    additions of gradients."""
    wait_ps: int
    """Time for which a thread of the host's relay waits for a core before each of its runs, ps."""
    limited_by: str
    """Resource that determines the time of the all-reduce: "tunnel up", "tunnel down", "host relay"
    or "uplink"."""
    joules: dict[str, float]
    """Energy by component (host relay, PCIe, controllers), J."""


def exchange(
    kind: str,
    n_bytes: int,
    drives: int,
    cost: TunnelCost | Sequence[TunnelCost],
    which: np.ndarray | None = None,
) -> Allreduce:
    """Return the results of an all-reduce of ``n_bytes`` over a host and ``drives`` drives that all
    start at the same time.

    ``kind``: an element of ALGORITHMS. ``cost``: cost model of the tunnels, either one for all
    drives or a sequence of models. With a sequence, ``which`` gives the index in ``cost`` for each
    drive, int64[drives]. Raises InputError for an unknown kind, a negative ``n_bytes``, or tunnels
    that :class:`tunnels.Links` does not accept. The run time is O(1) for ring and star with
    identical drives, else O(drives).
    """
    links = Links(drives, cost, which)
    if n_bytes < 0:
        raise InputError(f"exchange of {n_bytes} B: must be at least 0")
    if kind not in ALGORITHMS:
        raise InputError(f"all-reduce {kind!r}: unknown; {known_names(kind, ALGORITHMS)}")
    if drives == 0 or n_bytes == 0:
        return _result(kind, links, (0, 0), "tunnel up", [], 0)
    if kind == "ring":
        return _ring(n_bytes, links)
    return _star(n_bytes, links) if kind == "star" else _tree(n_bytes, links)


class Sent(NamedTuple):
    """Group of ``number`` equal messages of ``n_bytes`` bytes each, which are sent through the
    tunnels in an all-reduce."""

    message: Message
    number: int
    n_bytes: int


class Took(NamedTuple):
    """Time of messages that are sent at the same time, ps.

    ``ps``: total time. ``name``: name of the bottleneck. ``tunnel_ps``: time of the longest
    message. ``relay_ps``: time that the host's relay needs for all messages.
    """

    ps: int
    name: str
    tunnel_ps: int
    relay_ps: int


def _together(links: Links, sent: Sequence[Sent]) -> Took:
    """Return the time of messages that start at the same time, each through a separate tunnel.

    The time is the maximum of three values: the time of the longest message, the time that the
    relay needs for all messages, and the time of all messages on the uplink.
    """
    last = max((one.message for one in sent), key=lambda message: message.end_ps)
    took = {"tunnel up" if last.up_ps >= last.down_ps else "tunnel down": last.end_ps}
    took["host relay"] = sum(relay_ps(one.message, links.host.threads) * one.number for one in sent)
    took["uplink"] = _uplink_ps(links, sent)
    name, ps = max(took.items(), key=lambda item: item[1])
    return Took(ps, name, last.end_ps, took["host relay"])


def _uplink_ps(links: Links, sent: Sequence[Sent]) -> int:
    """Return the time of all messages on the shared uplink, ps; 0 if the rate of the uplink is
    unlimited."""
    rate = links.host.uplink
    up = sum(one.message.wire_up * one.number for one in sent)
    down = sum(one.message.wire_down * one.number for one in sent)
    return -(-max(up, down) * PS_PER_S // rate) if rate else 0


def _by_kind(links: Links, messages: Sequence[Message], n_bytes: int) -> list[Sent]:
    """Return one group of messages for each kind of drive. A group has one message for every drive
    of this kind."""
    counts = np.bincount(links.which, minlength=len(links.costs)).tolist()
    return [
        Sent(message, count, n_bytes)
        for message, count in zip(messages, counts, strict=True)
        if count
    ]


def _result(
    kind: str, links: Links, ps: tuple[int, int], name: str, sent: Sequence[Sent], host_dram: int
) -> Allreduce:
    """Return the results with totals over the messages ``sent``.

    ``ps``: times until the host has the sum and until the last drive has the sum. ``name``: name of
    the bottleneck. ``host_dram``: number of bytes of DRAM traffic for the host's additions.
    """

    def total(of: str) -> int:
        return sum(getattr(one.message, of) * one.number for one in sent)

    seconds, cpu_s, wire = max(ps) / PS_PER_S, total("cpu_ps") / PS_PER_S, total("wire")
    joules = links.host.joules(seconds, cpu_s, wire, 0)
    counts = np.bincount(links.which, minlength=len(links.costs))
    for cost, count in zip(links.costs, counts.tolist(), strict=True):
        joules["controllers"] += cost.joules(seconds, 0.0, 0, count)["controllers"]
    up = sum(one.n_bytes * one.number for one in sent if one.message.received)
    down = sum(one.n_bytes * one.number for one in sent if one.message.written)
    return Allreduce(
        kind=kind,
        seconds=seconds,
        host_s=ps[0] / PS_PER_S,
        drives_s=ps[1] / PS_PER_S,
        host_cpu_s=cpu_s,
        commands=total("received") + total("written"),
        notifications=total("notified"),
        bytes_up=up,
        bytes_down=down,
        wire_bytes=wire,
        host_dram_bytes=up + down + host_dram,
        wait_ps=links.host.up.wait,
        limited_by=name,
        joules=joules,
    )


# --- algorithms


def _ring(n_bytes: int, links: Links) -> Allreduce:
    """Return the results of the ring all-reduce. The slowest hop, or the relay of all hops,
    determines the time of a ring step.

    If the relay limits the ring, the relay threads wait for cores, and more packets accumulate for
    one command, so that the relay needs less time in total. The function then searches for the
    waiting time at which the tunnels take as long as the relay.
    """
    nodes = links.drives + 1
    piece, steps = ring.piece_bytes(n_bytes, nodes), ring.steps(nodes)
    sent = _step(links, piece)
    took = _together(links, sent)
    if took.name == "host relay":
        low, high = 0, WAIT_PS
        while _slower(links, piece, high):
            low, high = high, 2 * high
        while high - low > WAIT_PS:
            middle = (low + high) // 2
            low, high = (middle, high) if _slower(links, piece, middle) else (low, middle)
        links = links.waiting(high)
        sent = _step(links, piece)
        took = _together(links, sent)._replace(name="host relay")
    sums = (nodes - 1) * SUM_PASSES * piece  # the host's additions, in half of the steps
    every = [Sent(one.message, one.number * steps, piece) for one in sent]
    ps = took.ps * (steps - 1)
    first, last = (min(one.message.end_ps, took.ps) for one in sent[:2])
    if took.ps > took.tunnel_ps:  # a shared resource finishes all messages of a step together
        first = last = took.ps
    drives = took.ps if links.drives > 1 else first
    return _result("ring", links, (ps + last, ps + drives), took.name, every, sums)


def _slower(links: Links, piece: int, wait_ps: int) -> bool:
    """Return True if the relay takes longer than the tunnels in a ring step with ``piece`` bytes
    per message, when relay threads wait ``wait_ps`` for a core."""
    waiting = links.waiting(wait_ps)
    took = _together(waiting, _step(waiting, piece))
    return took.relay_ps > took.tunnel_ps


def _step(links: Links, piece: int) -> list[Sent]:
    """Return the messages of one ring step: from the host to the first drive, from each drive to
    the next one, and from the last drive to the host.
    """
    which, kinds_of_drive = links.which, len(links.costs)
    if kinds_of_drive == 1:
        pairs = {0: links.drives - 1}
    else:
        kinds, counts = np.unique(which[:-1] * kinds_of_drive + which[1:], return_counts=True)
        pairs = dict(zip(kinds.tolist(), counts.tolist(), strict=True))
    across = links.across(piece) if links.drives > 1 else []
    return [
        Sent(links.costs[which[0]].downward(piece), 1, piece),
        Sent(links.costs[which[-1]].upward(piece), 1, piece),
        *[
            Sent(across[at // kinds_of_drive][at % kinds_of_drive], count, piece)
            for at, count in pairs.items()
            if count
        ],
    ]


def _star(n_bytes: int, links: Links) -> Allreduce:
    """Return the results of the star all-reduce: every drive sends its gradient to the host, which
    adds all gradients and sends the sum to every drive."""
    up = _by_kind(links, links.up(n_bytes), n_bytes)
    down = _by_kind(links, links.down(n_bytes), n_bytes)
    first, last = _together(links, up), _together(links, down)
    summed = sum_ps(n_bytes, links.drives, links.host.host_dram)
    ps = first.ps + summed
    sums = SUM_PASSES * n_bytes * links.drives
    name = max(first, last).name
    return _result("star", links, (ps, ps + last.ps), name, [*up, *down], sums)


def _tree(n_bytes: int, links: Links) -> Allreduce:
    """Return the results of the tree all-reduce: partial sums are sent up the tree, and the sum is
    sent down. The result is never shorter than the time of all messages on the uplink."""
    nodes, which, kinds = links.drives + 1, links.which, len(links.costs)
    top = np.arange(1, 1 + min(links.drives, tree.CHILDREN))
    up, down = links.up(n_bytes), links.down(n_bytes)
    sent = [Sent(of[which[i - 1]], 1, n_bytes) for i in top for of in (up, down)]
    below = np.arange(len(top) + 1, nodes)
    parents = tree.parents(below)
    across = links.across(n_bytes)
    for sender, receiver in ((below, parents), (parents, below)):
        pairs, counts = np.unique(
            which[sender - 1] * kinds + which[receiver - 1], return_counts=True
        )
        for at, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            sent.append(Sent(across[at // kinds][at % kinds], count, n_bytes))
    took = {
        "tunnel up": tree.seconds_ps(n_bytes, links, shared=False),
        "host relay": tree.seconds_ps(n_bytes, links, shared=True),
        "uplink": (0, _uplink_ps(links, sent)),
    }
    name, ps = max(took.items(), key=lambda item: item[1][1])
    return _result("tree", links, ps, name, sent, SUM_PASSES * n_bytes * len(top))
