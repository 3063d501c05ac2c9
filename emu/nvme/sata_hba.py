"""A host adapter: one queue for all sources of requests, full by what completions tell of it.

Owns entries and completions of that queue, and what waits for room. Does not own the time that the
host takes for each (pairs.py) or their messages (flows.py).
Source: MQSim's SATA host bus adapter, a queue after NVMe's rings: one place always stays free, and
the host learns how far the drive has fetched from the last completion that it has looked at.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.events import go
from ondie.kernels.jit import cold, njit


@njit
def _last(st, head, tail, t):
    """Transaction ``t`` goes behind the others of a list; returns its head. Both are 1 + a
    transaction, 0 where there is none."""
    st.txn[t].next = -1
    if head == 0:
        return t + 1
    st.txn[tail - 1].next = t
    return head


@njit
def _enter(st, t):
    d = st.dev[st.txn[t].dev]
    d.entered += 1
    st.req[st.txn[t].row].start = st.reg[0].now


@cold
def full(st, t):
    """Does the request of ``t`` have to wait until there is room in the queue? Else it is in."""
    d = st.dev[st.txn[t].dev]
    if d.entered - d.known < st.cfg[0].adapter - 1:
        _enter(st, t)
        return False
    d.entry_head = _last(st, d.entry_head, d.entry_tail, t)
    d.entry_tail = t + 1
    return True


@cold
def looked_at(st, t):
    """The host looks at the completion that ``t`` carried."""
    d = st.dev[st.txn[t].dev]
    d.known = st.txn[t].left


@cold
def refill(st, dev):
    """Requests that wait go into the queue while there is room."""
    d = st.dev[dev]
    while d.entry_head != 0 and d.entered - d.known < st.cfg[0].adapter - 1:
        t = d.entry_head - 1
        d.entry_head = st.txn[t].next + 1
        _enter(st, t)
        go(st, t, s.ENTERED)


@njit
def _post(st, t):
    d = st.dev[st.txn[t].dev]
    d.posted += 1
    st.txn[t].left = d.fetched
    go(st, t, s.DATA_UP)


@cold
def complete(st, t):
    """The drive has done the request of ``t``: its completion goes up once there is room for it."""
    d = st.dev[st.txn[t].dev]
    if d.posted - d.reaped < st.cfg[0].adapter - 1:
        _post(st, t)
        return
    d.post_head = _last(st, d.post_head, d.post_tail, t)
    d.post_tail = t + 1


@cold
def acknowledged(st, dev):
    """The drive hears that the host has looked at one more completion."""
    d = st.dev[dev]
    d.reaped += 1
    if d.post_head != 0:
        t = d.post_head - 1
        d.post_head = st.txn[t].next + 1
        _post(st, t)
