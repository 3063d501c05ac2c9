"""SATA host bus adapter: one queue for all sources of requests.

Owns the entries and completions of that queue, and the lists that wait for a free place. Does not
own the host CPU time per entry or completion (queue_pair.py) or their transfers
(engine/run/datapath.py).
Source: MQSim's SATA host bus adapter, a queue modelled on NVMe's rings: one place always stays
free, and the host learns how many entries the drive has fetched from the last completion processed.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.events import go
from ondie.kernels.jit import cold, njit


@njit
def _last(st, head, tail, t):
    """Append transaction ``t`` to a list and return the head of the list.

    Head and tail are 1 + a transaction, or 0 for an empty list.
    """
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
    """Return True if the request of ``t`` must wait for a free place in the queue.

    Otherwise the request is entered into the queue.
    """
    d = st.dev[st.txn[t].dev]
    if d.entered - d.known < st.cfg[0].adapter - 1:
        _enter(st, t)
        return False
    d.entry_head = _last(st, d.entry_head, d.entry_tail, t)
    d.entry_tail = t + 1
    return True


@cold
def looked_at(st, t):
    """Update the number of entries known to be fetched from the completion of ``t``."""
    d = st.dev[st.txn[t].dev]
    d.known = st.txn[t].left


@cold
def refill(st, dev):
    """Enter waiting requests into the queue while there is room."""
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
    """Post the completion of the request of ``t``, or queue it until there is room."""
    d = st.dev[st.txn[t].dev]
    if d.posted - d.reaped < st.cfg[0].adapter - 1:
        _post(st, t)
        return
    d.post_head = _last(st, d.post_head, d.post_tail, t)
    d.post_tail = t + 1


@cold
def acknowledged(st, dev):
    """Count one more completion that the host has processed and post the next waiting one."""
    d = st.dev[dev]
    d.reaped += 1
    if d.post_head != 0:
        t = d.post_head - 1
        d.post_head = st.txn[t].next + 1
        _post(st, t)
