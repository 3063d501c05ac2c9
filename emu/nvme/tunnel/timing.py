"""How many commands a message takes through the tunnel, and how long: command by command, compiled.

Owns the times at which the blocks of one message are through, undisturbed by other tunnels. Does
not own the protocol (tunnel.py), which a test holds it equal to, or what several tunnels share
(tunnel_cost.py). All integers, times in ps.
Source: own. A command takes its time once the host's relay, with a thread each way, has done its
part; `outstanding` of them at once; upward the drive signals first, and the relay comes for it.

A message of n bytes becomes TCP segments of at most the mtu, all there at once: no window holds
them up. Acknowledgements are left out: they ride in blocks that go anyway, 54 B for two packets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.nvme.tunnel.framing import HEADER
from ondie.kernels.jit import njit

SEGMENT_HEADER = 52
"""Bytes of a packet that are not the message's: IPv4 20, TCP 20 and its time stamps 12."""
PS = 10**12
LATER = 1 << 62


class Times(NamedTuple):
    """Of one direction of a tunnel."""

    room: int
    """Bytes of the stream in a block."""
    mtu: int
    concatenate: int
    """1: a block may hold several packets."""
    burst: int
    """Upward: 1, the drive signals once for a message; 0, for every block."""
    outstanding: int
    command: int
    """ps from submission to completion, the host's CPU apart."""
    notify: int
    """Upward: ps from a drive's having a block until the host's relay is called."""
    cpu: int
    """ps of the relay for a command, and for a notification."""
    copy_rate: int
    """Bytes per second of its copying; 0: it takes no time."""
    link: int
    """Bytes per second."""
    wait: int = 0
    """ps that the relay's thread waits for a core each time, where many share them."""


@njit
def ceiling(a, b):
    """a / b, rounded up."""
    return (a + b - 1) // b


@njit
def segments(n, mtu):
    """Packets of a message of n bytes."""
    return ceiling(n, mtu - SEGMENT_HEADER)


@njit
def stream(n, mtu):
    """Bytes of its stream: packets behind their lengths."""
    return n + segments(n, mtu) * (SEGMENT_HEADER + HEADER)


@njit
def count(n, room, mtu, concatenate):
    """Blocks of a message that is there as a whole."""
    if n == 0:
        return 0
    total = stream(n, mtu)
    if concatenate != 0:
        return ceiling(total, room)
    record = mtu + HEADER
    others = segments(n, mtu) - 1
    return others * ceiling(record, room) + ceiling(total - others * record, room)


@njit
def next_block(at, there, total, t):
    """Bytes of the block that is cut from byte ``at`` of a stream of which whole packets up to byte
    ``there`` wait."""
    if t.concatenate != 0:
        return min(t.room, there - at)
    record = t.mtu + HEADER
    return min(t.room, min((at // record + 1) * record, total) - at)


@njit
def whole(at, total, mtu):
    """Bytes of the packets that are complete when ``at`` bytes of the stream have come."""
    record = mtu + HEADER
    return total if at == total else at // record * record


@njit
def handling(size, t):
    """ps of the relay's thread for a command with its bytes."""
    return t.cpu + (ceiling(size * PS, t.copy_rate) if t.copy_rate > 0 else 0)


@njit
def spacing(size, t):
    """ps of a block on the link."""
    return ceiling(size * PS, t.link) if t.link > 0 else 0


@njit
def upward(n, t):
    """(bytes of the stream that the host has, when it has them ps): int64[blocks] each.

    The relay's thread takes what it is told, and what has come, in turn; a block's number is its
    place. Its own block must be through before the one that is `outstanding` behind is asked for.
    """
    total = stream(n, t.mtu)
    blocks = count(n, t.room, t.mtu, t.concatenate)
    there = np.zeros(blocks, np.int64)
    done = np.zeros(blocks, np.int64)
    came = np.zeros(blocks, np.int64)  # the completion, before the relay has dealt with it
    told = np.full(blocks, LATER, np.int64)  # the notification, or in a burst: it may be asked for
    at = 0
    for i in range(blocks):
        at += next_block(at, total, total, t)
        there[i] = at
    for i in range(min(t.outstanding, blocks)):
        told[i] = t.notify
    free, crossed = 0, 0
    asked, taken = 0, 0  # blocks asked for, dealt with
    while taken < blocks:
        next_told = told[asked] if asked < blocks else LATER
        next_came = came[taken] if taken < asked else LATER
        if next_told < next_came:  # asked for
            began = next_told
            if t.burst == 0 or asked == 0:
                free = max(free, next_told) + t.wait + t.cpu
                began = free
            size = there[asked] - (there[asked - 1] if asked > 0 else 0)
            came[asked] = max(began + t.command, crossed + spacing(size, t))
            crossed = came[asked]
            if t.burst == 0 and asked + t.outstanding < blocks:
                told[asked + t.outstanding] = came[asked] + t.notify
            asked += 1
        else:
            size = there[taken] - (there[taken - 1] if taken > 0 else 0)
            free = max(free, next_came) + t.wait + handling(size, t)
            done[taken] = free
            if t.burst != 0 and taken + t.outstanding < blocks:
                told[taken + t.outstanding] = free
            taken += 1
    return there, done


@njit
def downward(n, there, ready, t):
    """(bytes of the stream that the drive has, when it has them ps): int64[blocks] each.

    ``there``, ``ready``: bytes of the stream that have come, ascending, and when, ps.
    """
    total = stream(n, t.mtu)
    most = len(there) + count(n, t.room, t.mtu, t.concatenate)
    sent = np.zeros(most, np.int64)
    done = np.zeros(most, np.int64)
    at, waiting, arrived, free, crossed, blocks = 0, 0, 0, 0, 0, 0
    while at < total:
        start = free
        if blocks >= t.outstanding:
            start = max(start, done[blocks - t.outstanding])
        while arrived < len(there) and (ready[arrived] <= start or waiting == at):
            start = max(start, ready[arrived])
            waiting = whole(there[arrived], total, t.mtu)
            arrived += 1
        size = next_block(at, waiting, total, t)
        free = start + t.wait + handling(size, t)
        at += size
        sent[blocks] = at
        done[blocks] = max(free + t.command, crossed + spacing(size, t))
        crossed = done[blocks]
        blocks += 1
    return sent[:blocks], done[:blocks]


@njit
def copied(there, t):
    """ps of the relay for the bytes of blocks that end at ``there``."""
    before, sum_ps = 0, 0
    for at in there:
        sum_ps += handling(at - before, t) - t.cpu
        before = at
    return sum_ps
