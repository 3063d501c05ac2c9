"""Queue of the erases of a chip, as in MQSim: an erase is queued when garbage collection starts.

In MQSim, the erase of a block enters the queue of its chip when the garbage collection of the block
starts. It is ready when all valid pages of the block have been moved. A command erases the block of
the first ready erase in the queue and blocks of further ready erases in other planes. All of them
are on the die of the first erase in the queue, which need not be ready. The further erases must
have the page number of this first erase. An erase has the page number of the operation that started
the garbage collection: the page that filled a block, the read for which the garbage collection
waited, or the erase after which it started.

Owns the order, the page number and the readiness of these erases. Does not own the transactions
that are ready (die_scheduler.py), their combination (multi_plane.py) or garbage collection
(ftl/gc.py). Source: MQSim's garbage collection and transaction scheduling units. ``st.erasing`` has
a record for each block. The records are used only if events are handled in the order of their
registration (event_order.py).
"""

from __future__ import annotations

import numpy as np

from ondie.emu.engine.core.state import record_type, records
from ondie.emu.nand.die import POLLED, Q_GC_ERASE
from ondie.emu.nand.die_scheduler import push_in_order
from ondie.emu.nand.polling import submit
from ondie.kernels.jit import cold, inline

ERASING = record_type(
    next="i4",  # 1 + the block of the next erase in the queue of its chip; 0 = none
    page="i4",  # page number of the erase
    order="i8",  # number of collections that started before it
    ready="i4",  # 1 + the transaction of the erase, not yet admitted; 0 = not ready or admitted
)


def tables(blocks: int = 1) -> dict[str, np.ndarray]:
    """Return {"erasing": table of queued erases, ERASING[blocks]}, with a record for each of
    ``blocks`` blocks. "erasing" is the name of the table's field in the engine's state."""
    return {"erasing": records(ERASING, blocks)}


@inline
def head_of(st, die):
    """Return the number of the DIE record with the erase queue of the chip that contains die
    ``die``."""
    return st.die[die].first if st.cfg[0].chip != 0 else die


@inline
def die_at(st, block):
    """Return the die that contains block ``block``."""
    return int(st.block[block].die)


@cold
def enter(st, block):
    """Append the erase of block ``block``, whose garbage collection starts, to the queue of its
    chip.

    ``reg.cause`` is 1 + the page number of the operation that started the garbage collection, or 0
    if the cause is a filled block.
    """
    reg = st.reg[0]
    head = st.die[head_of(st, die_at(st, block))]
    erase = st.erasing[block]
    reg.erases += 1
    reg.begun = block + 1
    erase.order = reg.erases
    erase.page = reg.cause - 1 if reg.cause > 0 else st.cfg[0].block_pages - 1
    erase.next = 0
    erase.ready = 0
    if head.erase_first > 0:
        st.erasing[head.erase_last - 1].next = block + 1
    else:
        head.erase_first = block + 1
    head.erase_last = block + 1


@cold
def make_ready(st, die, tid):
    """Record that erase ``tid`` on die ``die`` is ready: all valid pages of its block have been
    moved.

    With polled priority classes, the erase of a block without valid pages is submitted only now.
    """
    erase = st.erasing[st.txn[tid].lpn]
    st.txn[tid].page = erase.page
    st.txn[tid].order = erase.order
    erase.ready = tid + 1
    if st.reg[0].begun == st.txn[tid].lpn + 1 and st.cfg[0].ranked == POLLED:
        submit(st, Q_GC_ERASE)
    admit(st, head_of(st, die))


@cold
def admit(st, head):
    """Pass ready erases from the queue of DIE record ``head`` to the die scheduler. Only erases on
    the same die as the first erase in the queue are passed."""
    at = st.die[head].erase_first - 1
    die = die_at(st, at) if at >= 0 else -1
    while at >= 0:
        erase = st.erasing[at]
        if erase.ready > 0 and die_at(st, at) == die:
            tid = erase.ready - 1
            erase.ready = 0
            push_in_order(st, die, tid, Q_GC_ERASE)
        at = erase.next - 1


@cold
def page_of_first(st, die):
    """Return the page number of the first erase in the queue of the chip that contains die ``die``.
    See the module docstring for the page number of an erase."""
    return st.erasing[st.die[head_of(st, die)].erase_first - 1].page


@cold
def leave(st, die, tid):
    """Remove the erases of one multi-plane command from the erase queue of a chip. Then hand over
    to the die scheduler the ready erases on the die of the new first erase in this queue.

    ``die``: index of a die of the chip. ``tid``: first transaction of the command; field ``mate``
    links it to the other transactions.
    """
    head = head_of(st, die)
    while tid >= 0:
        remove(st, st.die[head], st.txn[tid].lpn)
        tid = st.txn[tid].mate
    admit(st, head)


@inline
def remove(st, head, block):
    """Remove the erase of block ``block`` from the queue of DIE record ``head``."""
    before = -1
    at = head.erase_first - 1
    while at != block:
        before = at
        at = st.erasing[at].next - 1
    if before < 0:
        head.erase_first = st.erasing[block].next
    else:
        st.erasing[before].next = st.erasing[block].next
    if head.erase_last == block + 1:
        head.erase_last = before + 1
