"""SATA host bus adapter: one command queue for all sources of requests.

Owns the entries and completions of the queue, and the lists of transactions that wait for a free
entry. Does not own the host CPU time per entry or completion (queue_pair.py) or the transfer of
entries (engine/run/datapath.py). Source: MQSim's SATA host bus adapter, a queue modeled on NVMe's
rings: one entry is never used, and the last processed completion gives the number of entries that
the drive has fetched.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.events import go
from ondie.kernels.jit import cold, njit


@njit
def _last(st, head, tail, tid):
    """Append transaction ``tid`` to a waiting list and return the head of the list.

    Head and tail are the index of a transaction + 1, or 0 for an empty list.
    """
    st.txn[tid].next = -1
    if head == 0:
        return tid + 1
    st.txn[tail - 1].next = tid
    return head


@njit
def _enter(st, tid):
    dev_rec = st.dev[st.txn[tid].dev]
    dev_rec.entered += 1
    st.req[st.txn[tid].row].start = st.reg[0].now


@cold
def wait_if_full(st, tid):
    """Enter the request of transaction ``tid`` into the adapter's queue if an entry is free.

    Otherwise append it to the waiting list. Returns True if the request must wait.
    """
    dev_rec = st.dev[st.txn[tid].dev]
    if dev_rec.entered - dev_rec.known < st.cfg[0].adapter - 1:
        _enter(st, tid)
        return False
    dev_rec.entry_head = _last(st, dev_rec.entry_head, dev_rec.entry_tail, tid)
    dev_rec.entry_tail = tid + 1
    return True


@cold
def update_fetched(st, tid):
    """Update the host's count of queue entries that the drive has fetched, from the completion of
    ``tid``."""
    dev_rec = st.dev[st.txn[tid].dev]
    dev_rec.known = st.command[tid].fetched


@cold
def enter_waiting(st, dev):
    """Enter waiting requests of device ``dev`` into the adapter's queue while entries are free."""
    dev_rec = st.dev[dev]
    while dev_rec.entry_head != 0 and dev_rec.entered - dev_rec.known < st.cfg[0].adapter - 1:
        tid = dev_rec.entry_head - 1
        dev_rec.entry_head = st.txn[tid].next + 1
        _enter(st, tid)
        go(st, tid, stages.ENTERED)


@njit
def _post(st, tid):
    dev_rec = st.dev[st.txn[tid].dev]
    dev_rec.posted += 1
    st.command[tid].fetched = dev_rec.fetched
    go(st, tid, stages.DATA_UP)


@cold
def complete(st, tid):
    """Post the completion of the request of transaction ``tid``, or queue the completion until the
    completion queue has a free entry."""
    dev_rec = st.dev[st.txn[tid].dev]
    if dev_rec.posted - dev_rec.reaped < st.cfg[0].adapter - 1:
        _post(st, tid)
        return
    dev_rec.post_head = _last(st, dev_rec.post_head, dev_rec.post_tail, tid)
    dev_rec.post_tail = tid + 1


@cold
def on_acknowledged(st, dev):
    """Count one more completion as processed by the host, and post the next waiting completion."""
    dev_rec = st.dev[dev]
    dev_rec.reaped += 1
    if dev_rec.post_head != 0:
        tid = dev_rec.post_head - 1
        dev_rec.post_head = st.txn[tid].next + 1
        _post(st, tid)
