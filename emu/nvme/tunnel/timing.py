"""Number of commands and time of one message through the tunnel, computed command by command.

Owns the times at which the blocks of one message have passed the tunnel, without other traffic.
Does not own the protocol (host.py, device.py) or resources that several tunnels share (cost.py). A
test checks that the results agree with host.py and device.py. All values are integers, and times
are in ps. The functions are compiled.
Source: this project. The host's relay has one thread per direction, which handles each command
before it is submitted. Up to `outstanding` commands are in flight. From drive to host, the drive
signals a block before the relay receives it.

A message of n bytes becomes TCP segments of at most `mtu` bytes. All segments are available from
the start; no TCP window delays them. Acknowledgements are omitted, because they travel in blocks
that are sent anyway (54 B for two packets).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.nvme.tunnel.framing import HEADER
from ondie.kernels.jit import njit

SEGMENT_HEADER = 52
"""Bytes of the headers of an IP packet: IPv4 20, TCP 20, and TCP's timestamp option 12."""
PS = 10**12
LATER = 1 << 62


class Times(NamedTuple):
    """Times and sizes of one direction of a tunnel (times in ps, sizes in bytes)."""

    room: int
    """Maximum number of bytes of the packet stream in a block."""
    mtu: int
    concatenate: int
    """1 if a block may hold several packets, or 0 if a block ends where a packet ends."""
    burst: int
    """1 if the drive sends one notification per message, or 0 if it sends one per block. Used only
    in the direction from drive to host."""
    outstanding: int
    command: int
    """Time of a tunnel command from submission to completion without the host's CPU time, ps."""
    notify: int
    """Time from the moment when a block is ready in the drive until the host's relay is notified,
    ps. Used only in the direction from drive to host."""
    cpu: int
    """CPU time of the host's relay for each tunnel command and for each notification, ps."""
    copy_rate: int
    """Rate at which the host's relay copies data, bytes/s; 0 if copying takes no time."""
    link: int
    """Rate of the drive's link, bytes/s; 0 if transfers take no time."""
    wait: int = 0
    """Time that the relay's thread waits for a shared CPU core before each task, ps."""


@njit
def ceiling(a, block):
    """Return a / block, rounded up (int64)."""
    return (a + block - 1) // block


@njit
def segments(n, mtu):
    """Return the number of packets (TCP segments) of a message of ``n`` bytes."""
    return ceiling(n, mtu - SEGMENT_HEADER)


@njit
def stream(n, mtu):
    """Return the number of stream bytes of a message of ``n`` bytes: packets and their length
    headers.
    """
    return n + segments(n, mtu) * (SEGMENT_HEADER + HEADER)


@njit
def count(n, room, mtu, concatenate):
    """Return the number of blocks of a message of ``n`` bytes whose packets are all available from
    the start.

    ``room``: maximum stream bytes of a block. ``concatenate``: see Times.
    """
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
    """Return the number of bytes in the block that begins at byte ``at`` of a stream.

    ``there``: position in the stream up to which complete packets are available, bytes. ``total``:
    length of the message in the stream, bytes. ``tid``: Times record with the constants of the
    direction.
    """
    if tid.concatenate != 0:
        return min(tid.room, there - at)
    record = tid.mtu + HEADER
    return min(tid.room, min((at // record + 1) * record, total) - at)


@njit
def whole(at, total, mtu):
    """Return the total size in bytes of the packets that are complete in a part of a stream.
    ``at``: size of this part, from the start of the stream, bytes. ``total``: size of the stream,
    bytes."""
    record = mtu + HEADER
    return total if at == total else at // record * record


@njit
def handling(size, tid):
    """Return the time spent by a thread of the host's relay on a command that transfers ``size``
    bytes, ps. ``tid``: Times record with the constants of the direction."""
    return tid.cpu + (ceiling(size * PS, tid.copy_rate) if tid.copy_rate > 0 else 0)


@njit
def spacing(size, tid):
    """Return the time for which a block of ``size`` bytes occupies the drive's link, ps. ``tid``:
    Times record with the constants of the direction."""
    return ceiling(size * PS, tid.link) if tid.link > 0 else 0


@njit
def upward(n, tid):
    """Simulate a message of ``n`` bytes from the drive to the host.

    Returns two arrays, int64[blocks]: the number of stream bytes that have reached the host after
    each block, and the time at which the relay has handled the block, ps. The relay's thread
    handles notifications and completions in the order of their times. It must have handled block i
    before block i + `outstanding` is requested. ``tid``: Times record with the constants of this
    direction.
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
    """Simulate a message of ``n`` bytes from the host to a drive.

    ``there``: number of stream bytes that have arrived at the host after each arrival, ascending,
    int64[arrivals]. ``ready``: time of each arrival, ps, int64[arrivals]. ``tid``: Times record
    with the constants of this direction. Returns two arrays, int64[blocks]: the number of stream
    bytes that have reached the drive after each block, and the time of the block's completion, ps.
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
    """Return the total time that the host's relay spends on copying the blocks of a message, ps.
    ``there``: position in the stream at which each block ends, bytes, int64[blocks]. ``tid``:
    Times record with the constants of the direction."""
    before, sum_ps = 0, 0
    for at in there:
        sum_ps += handling(at - before, tid) - tid.cpu
        before = at
    return sum_ps
