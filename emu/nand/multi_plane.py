"""Multi-plane commands: combination of separately queued operations into one command.

Owns the choice of a die's queued operations that form one command. Does not own operations that
span several planes when they are created (ftl/page_map.py allocates their pages as a whole).
Source: ONFI multi-plane addressing: the same operation in different planes of one die at the same
page offset.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import OWN
from ondie.emu.engine.core.intrinsics import lowest_bit
from ondie.emu.nand import erase_queue, polling
from ondie.emu.nand.die import (
    POLLED,
    Q_GC_READ,
    Q_GC_WRITE,
    Q_MAP_READ,
    Q_READ,
    Q_WRITE,
    planes_of,
    pop,
    rank_of,
)
from ondie.emu.nand.timing import COPYBACK, ERASE, PROGRAM
from ondie.kernels.jit import cold, inline, njit


@cold
def gather_all(st, die, tid, queue):
    """Add queued operations to the command of ``tid``: first from queue ``queue``, then from the
    other queues with operations of the same kind. The power budget limits the number of planes.

    If events are ordered, a mapping read is combined with the reads of only one other queue, as in
    MQSim: garbage-collection reads if they are pending and have priority over user transactions,
    otherwise user reads.
    """
    gather(st, die, tid, queue)
    if queue == Q_MAP_READ and st.cfg[0].ordered != 0:
        moves = polling.is_urgent(st, die) and st.die[die].waiting >> Q_GC_READ & 1
        gather(st, die, tid, Q_GC_READ if moves else Q_READ)
    elif queue == Q_READ or queue == Q_GC_READ or queue == Q_MAP_READ:
        if queue != Q_READ:
            gather(st, die, tid, Q_READ)
        if queue != Q_GC_READ:
            gather(st, die, tid, Q_GC_READ)
    elif queue == Q_WRITE:
        gather(st, die, tid, Q_GC_WRITE)
    elif queue == Q_GC_WRITE:
        gather(st, die, tid, Q_WRITE)


@inline
def same_priority(st, tid, unit):
    """Return True if host transactions ``tid`` and ``unit`` have equal priority classes."""
    return rank_of(st, tid) == rank_of(st, unit)


@inline
def may_join(st, tid):
    """Return True if transaction ``tid`` may join a multi-plane command of an FTL operation under
    MQSim's polled priority classes (polling.py).

    It may join if it is a transaction of the FTL, or a user transaction of class ``reg.companion``.
    """
    return st.txn[tid].kind == OWN or rank_of(st, tid) == st.reg[0].companion


@njit
def gather(st, die, tid, queue):
    """Add to the command of ``tid`` the operations of queue ``queue`` that can run in other planes.

    An erase may overtake programs, because the programs are for other blocks. A program does not
    overtake an erase, because the program may be for the erased block. Programs of different
    duration (for example the two passes of one page offset) are not combined. Word lines are
    programmed in order, and so are the pages of a block unless flash.program_order is "any". Reads
    of different duration (such as a retry) are combined, and the command takes as long as the
    longest read.
    """
    txn = st.txn[tid]
    cfg = st.cfg[0]
    if txn.page < 0 or txn.op == COPYBACK or not st.die[die].waiting >> queue & 1:
        return
    full = (1 << cfg.planes) - 1
    if cfg.chip != 0:
        full <<= lowest_bit(txn.planes) // cfg.planes * cfg.planes
    room = cfg.planes
    if cfg.power > 0:
        die_rec = st.die[die]
        room = cfg.power - st.dev[die_rec.dev].power + die_rec.power - planes_of(st, tid)
    page = txn.page
    if txn.op == ERASE and cfg.ordered != 0:
        page = erase_queue.page_of_first(st, die)
    before = -1
    passed = 0  # planes with a skipped program that others may not overtake
    other = st.queue[die, 2 * queue]
    while other >= 0 and txn.planes != full:
        cand = st.txn[other]
        following = cand.next
        if cand.op == ERASE and txn.op != ERASE:
            return
        if (
            cand.op == txn.op
            and cand.page == page
            and cand.planes & txn.planes == 0
            and cand.planes & ~full == 0
            and (cand.n <= room or cfg.slots > 1 and planes_of(st, other) <= room)
            and (
                txn.op != PROGRAM
                or cand.array == txn.array
                and (
                    cand.planes & passed == 0
                    or cfg.word == 0
                    and not overtakes(st, st.queue[die, 2 * queue], other)
                )
            )
            and (
                cfg.ranked == 0
                or txn.kind == OWN
                or cand.kind == OWN
                or same_priority(st, tid, other)
            )
            and (cfg.ranked != POLLED or txn.kind != OWN or may_join(st, other))
        ):
            if before < 0:
                pop(st, die, queue)
            else:
                st.txn[before].next = following
                if following < 0:
                    st.queue[die, 2 * queue + 1] = before
            cand.next = -1
            cand.queue = txn.queue
            txn.planes |= cand.planes
            txn.array = max(txn.array, cand.array)
            room -= planes_of(st, other)
            merge(st, tid, other)
        else:
            before = other
            if cfg.any_order == 0 or cfg.word != 0:
                passed |= cand.planes
        other = following


@njit
def overtakes(st, first, tid):
    """Return True if program ``tid`` would overtake a program of the same block in the same queue.
    ``first``: first program of the queue. A program of several pages (several transactions, linked
    by field ``mate``) may be for several blocks. It therefore counts as a program of every block in
    its planes."""
    txn = st.txn[tid]
    pages = st.cfg[0].block_pages
    while first != tid:
        each = st.txn[first]
        if each.planes & txn.planes != 0 and (
            each.mate >= 0 or txn.mate >= 0 or each.ppn // pages == txn.ppn // pages
        ):
            return True
        first = each.next
    return False


@njit
def merge(st, tid, part):
    """Add the transactions of command ``part`` to the command of transaction ``tid``. Field
    ``mate`` links the transactions of a command in a list.

    The list is ordered by page offset, so that the pages of one offset in several planes are
    adjacent.
    """
    at = tid
    while part >= 0:
        following = st.txn[part].mate
        page = st.txn[part].page
        behind = st.txn[at].mate
        while behind >= 0 and st.txn[behind].page <= page:
            at = behind
            behind = st.txn[at].mate
        st.txn[part].mate = behind
        st.txn[at].mate = part
        at = part
        part = following
