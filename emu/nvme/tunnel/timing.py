"""Commands and time of one message through the tunnel, computed command by command (compiled).

Owns the times at which the blocks of one message have passed the tunnel, without other traffic.
Does not own the protocol (host.py, device.py; a test checks that both agree) or resources that
several tunnels share (cost.py). All values are integers, times in ps.
Source: none. A command starts when the host's relay, with one thread per direction, has done its
part; `outstanding` commands may be in flight. Upward the drive signals first, then the relay
receives.

A message of n bytes becomes TCP segments of at most the mtu, all available at once; no TCP window
delays them. Acknowledgements are omitted: they travel in blocks that are sent anyway, 54 B for two
packets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.nvme.tunnel.framing import HEADER
from ondie.kernels.jit import njit

SEGMENT_HEADER = 52
"""Header bytes of a packet: IPv4 20, TCP 20 and its time stamps 12."""
PS = 10**12
LATER = 1 << 62


class Times(NamedTuple):
    """Times and sizes of one direction of a tunnel."""

    room: int
    """Bytes of the stream in a block."""
    mtu: int
    concatenate: int
    """1: a block may hold several packets."""
    burst: int
    """Upward: 1, the drive signals once per message; 0, once per block."""
    outstanding: int
    command: int
    """ps from submission to completion, without the host's CPU time."""
    notify: int
    """Upward: ps from the time the drive has a block until the host's relay is called."""
    cpu: int
    """ps of the relay for a command, and for a notification."""
    copy_rate: int
    """Bytes per second of the relay's copying; 0: copying takes no time."""
    link: int
    """Link rate, bytes per second."""
    wait: int = 0
    """ps that the relay's thread waits for a core each time, if threads share cores."""


@njit
def ceiling(a, block):
    """Return a / b, rounded up."""
    return (a + block - 1) // block


@njit
def segments(n, mtu):
    """Return the number of packets of a message of n bytes."""
    return ceiling(n, mtu - SEGMENT_HEADER)


@njit
def stream(n, mtu):
    """Return the bytes of the stream of a message: packets and their length headers."""
    return n + segments(n, mtu) * (SEGMENT_HEADER + HEADER)


@njit
def count(n, room, mtu, concatenate):
    """Return the number of blocks of a message whose bytes are all available."""
    if n == 0:
        return 0
    total = stream(n, mtu)
    if concatenate != 0:
        return ceiling(total, room)
    record = mtu + HEADER
    others = segments(n, mtu) - 1
    return others * ceiling(record, room) + ceiling(total - others * record, room)


@njit
def next_block(at, there, total, tid):
    """Return the bytes of the block packed from byte ``at`` of a stream.

    Complete packets up to byte ``there`` are available.
    """
    if tid.concatenate != 0:
        return min(tid.room, there - at)
    record = tid.mtu + HEADER
    return min(tid.room, min((at // record + 1) * record, total) - at)


@njit
def whole(at, total, mtu):
    """Return the bytes of the complete packets among the first ``at`` bytes of the stream."""
    record = mtu + HEADER
    return total if at == total else at // record * record


@njit
def handling(size, tid):
    """Return the ps of the relay's thread for a command and its bytes."""
    return tid.cpu + (ceiling(size * PS, tid.copy_rate) if tid.copy_rate > 0 else 0)


@njit
def spacing(size, tid):
    """Return the ps of a block on the link."""
    return ceiling(size * PS, tid.link) if tid.link > 0 else 0


@njit
def upward(n, tid):
    """Return (bytes of the stream at the host, time at which it has them in ps): int64[blocks]
    each.

    The relay's thread handles notifications and completions in the order of their times. A block
    must have passed the relay before the block that is `outstanding` later is requested.
    """
    total = stream(n, tid.mtu)
    blocks = count(n, tid.room, tid.mtu, tid.concatenate)
    there = np.zeros(blocks, np.int64)
    done = np.zeros(blocks, np.int64)
    came = np.zeros(blocks, np.int64)  # time of the completion, before the relay handles it
    told = np.full(blocks, LATER, np.int64)  # notification; in a burst: earliest request
    at = 0
    for i in range(blocks):
        at += next_block(at, total, total, tid)
        there[i] = at
    for i in range(min(tid.outstanding, blocks)):
        told[i] = tid.notify
    free, crossed = 0, 0
    asked, taken = 0, 0  # blocks requested, handled
    while taken < blocks:
        next_told = told[asked] if asked < blocks else LATER
        next_came = came[taken] if taken < asked else LATER
        if next_told < next_came:  # request the block
            began = next_told
            if tid.burst == 0 or asked == 0:
                free = max(free, next_told) + tid.wait + tid.cpu
                began = free
            size = there[asked] - (there[asked - 1] if asked > 0 else 0)
            came[asked] = max(began + tid.command, crossed + spacing(size, tid))
            crossed = came[asked]
            if tid.burst == 0 and asked + tid.outstanding < blocks:
                told[asked + tid.outstanding] = came[asked] + tid.notify
            asked += 1
        else:
            size = there[taken] - (there[taken - 1] if taken > 0 else 0)
            free = max(free, next_came) + tid.wait + handling(size, tid)
            done[taken] = free
            if tid.burst != 0 and taken + tid.outstanding < blocks:
                told[taken + tid.outstanding] = free
            taken += 1
    return there, done


@njit
def downward(n, there, ready, tid):
    """Return (bytes of the stream at the drive, time at which it has them in ps): int64[blocks]
    each.

    ``there``, ``ready``: bytes of the stream that have arrived at the host, ascending, and when,
    ps.
    """
    total = stream(n, tid.mtu)
    most = len(there) + count(n, tid.room, tid.mtu, tid.concatenate)
    sent = np.zeros(most, np.int64)
    done = np.zeros(most, np.int64)
    at, waiting, arrived, free, crossed, blocks = 0, 0, 0, 0, 0, 0
    while at < total:
        start = free
        if blocks >= tid.outstanding:
            start = max(start, done[blocks - tid.outstanding])
        while arrived < len(there) and (ready[arrived] <= start or waiting == at):
            start = max(start, ready[arrived])
            waiting = whole(there[arrived], total, tid.mtu)
            arrived += 1
        size = next_block(at, waiting, total, tid)
        free = start + tid.wait + handling(size, tid)
        at += size
        sent[blocks] = at
        done[blocks] = max(free + tid.command, crossed + spacing(size, tid))
        crossed = done[blocks]
        blocks += 1
    return sent[:blocks], done[:blocks]


@njit
def copied(there, tid):
    """Return the copy time of the relay, ps, for blocks that end at the bytes ``there``."""
    before, sum_ps = 0, 0
    for at in there:
        sum_ps += handling(at - before, tid) - tid.cpu
        before = at
    return sum_ps
