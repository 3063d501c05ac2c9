"""Word-line buffer: buffers programs in DRAM until all pages of a program unit are present.

Owns the buffered lines (word_lines.py): their programs, the order of passes over the array, and the
start of each pass. Does not own allocation (write_path.py), padding (padding.py) or completion
after the last pass (completion.py).
Source: one-shot and two-pass (foggy-fine) programming of 3D NAND: the second pass over a word line
follows the first pass over its neighbor.

A line is buffered from the arrival of its first program. When all its pages are present, they are
sent to their die as one program. With two passes, the line waits again after its first pass, until
the first pass over the next line of the block is done (if there is a next line). The data stays in
DRAM and crosses the channel again. A line whose pages are all padding needs no second pass.
"""

from __future__ import annotations

from ondie.emu.clock import NEVER
from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    ARRAY_PROGRAMS,
    PADDING_PAGES,
    SECOND_PASS_PAGES,
    UNASKED_AGAIN_BYTES,
)
from ondie.emu.engine.core.events import (
    CACHED,
    OWN,
    give_txn,
    set_leaf,
)
from ondie.emu.engine.core.roles import Role
from ondie.emu.ftl import page_map, pslc_folding, word_lines
from ondie.emu.ftl.gc import maybe_start_gc
from ondie.emu.ftl.write_path import check_for_collection
from ondie.emu.nand.die import Q_MAP_WRITE, Q_WRITE
from ondie.emu.nand.die_scheduler import push
from ondie.kernels.jit import cold, njit

SAVING_WAIT = 10**8
"""Longest time that a word line waits for pages while capacitors power the drive (ps)."""


@cold
def longest_wait(st, dev):
    """Return the time for which the first page of a word line may wait for the other pages (ps):
    ``gather_time``, but at most SAVING_WAIT while capacitors power the drive.
    """
    if st.dev[dev].saving != 0:
        return min(int(st.cfg[0].gather), SAVING_WAIT)
    return int(st.cfg[0].gather)


# --- buffered lines


@njit
def unit_of(st, tid):
    """Return the unit that contains the pages of transaction ``tid``."""
    txn = st.txn[tid]
    return page_map.block_at(st, txn.dev, txn.ppn) // st.cfg[0].all_blocks


@njit
def find(st, unit, key):
    """Return the first buffered program of the word line with number ``key`` in unit ``unit``, or
    -1 if the word line is not buffered."""
    tid = st.pool[unit].lines - 1
    while tid >= 0 and word_lines.word_line_of(st, st.txn[tid].ppn) != key:
        tid = st.txn[tid].next
    return tid


@njit
def replace(st, unit, head, other):
    """Replace a word line in the list of buffered word lines of unit ``unit``. ``head``, ``other``:
    first program of the old and of the new word line. If ``other`` is -1, only remove the old word
    line."""
    pool = st.pool[unit]
    following = st.txn[head].next
    st.txn[head].next = -1
    if other >= 0:
        st.txn[other].next = following
        following = other
    before = pool.lines - 1
    if before == head:
        pool.lines = following + 1
        return
    while st.txn[before].next != head:
        before = st.txn[before].next
    st.txn[before].next = following


@njit
def insert(st, tid):
    """Insert program ``tid`` into its word line, in page order.

    Return the first program of the line.
    """
    txn = st.txn[tid]
    unit = unit_of(st, tid)
    head = find(st, unit, word_lines.word_line_of(st, txn.ppn))
    txn.mate = -1
    if head < 0:
        txn.next = st.pool[unit].lines - 1
        txn.time = st.reg[0].now
        st.pool[unit].lines = tid + 1
        st.dev[txn.dev].lines += 1
        return tid
    if st.txn[head].page > txn.page:
        txn.time = st.txn[head].time
        txn.mate = head
        replace(st, unit, head, tid)
        return tid
    at = head
    while st.txn[at].mate >= 0 and st.txn[st.txn[at].mate].page <= txn.page:
        at = st.txn[at].mate
    txn.next = -1
    txn.mate = st.txn[at].mate
    st.txn[at].mate = tid
    return head


@njit
def is_whole(st, head):
    """Return True if all pages of the word line that begins with program ``head`` are buffered."""
    count = 0
    tid = head
    while tid >= 0:
        count += st.txn[tid].n
        tid = st.txn[tid].mate
    return count >= st.cfg[0].line


@njit
def send_line(st, unit, head, step):
    """Send the complete line that begins with program ``head`` to its die.

    ``step``: stages.ENCODED for the first pass, stages.PASSED for the second pass.
    """
    cfg = st.cfg[0]
    replace(st, unit, head, -1)
    txn = st.txn[head]
    dev = txn.dev
    st.dev[dev].lines -= 1
    planes = 0
    tid = head
    while tid >= 0:
        other_txn = st.txn[tid]
        if step == stages.PASSED:
            page_map.set_place(st, dev, tid)  # chips number their planes consecutively
            other_txn.array = st.page_ps[2, other_txn.page]
            st.count[dev, SECOND_PASS_PAGES] += other_txn.n
            st.count[dev, UNASKED_AGAIN_BYTES] += other_txn.n * cfg.page_bytes - other_txn.bus
        other_txn.step = step
        planes |= other_txn.planes
        tid = other_txn.mate
    txn.planes = planes
    tid = txn.mate
    while cfg.slots > 1 and tid >= 0:  # the first holds the planes of all with its page offset
        if st.txn[tid].page == txn.page:
            st.txn[tid].planes = 0
        tid = st.txn[tid].mate
    push(st, st.die[txn.die].first, head, line_queue(st, head))


@njit
def line_queue(st, tid):
    """Return the number of the die queue (Q_*) for the word line of program ``tid``. The write
    stream of the word line's block determines the queue."""
    cfg = st.cfg[0]
    stream = st.block[page_map.block_at(st, st.txn[tid].dev, st.txn[tid].ppn)].stream
    if stream < cfg.collected or stream == cfg.pslc_stream:
        return Q_WRITE
    return Q_MAP_WRITE if page_map.is_map_stream(st, stream) else cfg.q_gc_write


# --- passes


@cold
def on_line_programmed(st, tid):
    """Complete one pass over the word line of program ``tid``. Return True if no owner of the
    program is to be notified yet, because another pass follows or because the pages are padding."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    if word_lines.is_first_page(st, txn.ppn):
        st.count[dev, ARRAY_PROGRAMS] += 1
    if cfg.passes == 2 and txn.step == stages.ENCODED:
        txn.step = stages.PASSED
        page_map.log_first_pass(st, tid)
        head = insert(st, tid)
        if is_whole(st, head):
            on_first_pass_done(st, unit_of(st, tid), head)
        return True
    dev_rec = st.dev[dev]
    dev_rec.gathered -= txn.n
    if txn.kind == CACHED:
        dev_rec.joined -= 1
    if txn.kind == OWN and txn.role == Role.PADDING:
        on_padding_programmed(st, tid)
        return True
    return False


@njit
def on_padding_programmed(st, tid):
    """Complete program ``tid`` of padding pages, and check whether its unit needs a garbage
    collection.
    """
    txn = st.txn[tid]
    dev = txn.dev
    unit = unit_of(st, tid)
    st.count[dev, PADDING_PAGES] += txn.n
    page_map.log_padding(st, tid)
    page_map.count_programmed(st, dev, txn.ppn, txn.n)
    folds = pslc_folding.is_foldable(st, page_map.block_at(st, dev, txn.ppn))
    give_txn(st, tid)
    check_for_collection(st, dev, unit)
    if st.pool[unit].retiring > 0 or folds:
        maybe_start_gc(st, dev, unit)


@njit
def on_first_pass_done(st, unit, head):
    """Complete the first pass over the word line that begins with program ``head``. Start the
    second pass over the previous word line of the block. If no word line follows in the block, also
    start the second pass over this word line."""
    cfg = st.cfg[0]
    txn = st.txn[head]
    dev = txn.dev
    ppn = txn.ppn
    block = page_map.block_at(st, dev, ppn)
    stripe = (ppn - page_map.first_page(st, dev, block)) // cfg.stripe
    if stripe > 0:
        start_second_pass(st, unit, find(st, unit, word_lines.word_line_of(st, ppn - cfg.stripe)))
    tid = head
    while tid >= 0 and st.txn[tid].kind == OWN and st.txn[tid].role == Role.PADDING:
        tid = st.txn[tid].mate
    if tid < 0:
        complete_padding_line(st, unit, head)
    elif stripe == st.block[block].last:
        start_second_pass(st, unit, head)
    elif st.key[(st.key.shape[0] >> 1) + st.reg[0].gather0 + dev] == NEVER:
        set_leaf(st, st.reg[0].gather0 + dev, st.reg[0].now + longest_wait(st, dev))


@njit
def start_second_pass(st, unit, head):
    """Start the second pass over the word line that begins with program ``head``, if its first pass
    is done."""
    if head >= 0 and st.txn[head].step == stages.PASSED and is_whole(st, head):
        send_line(st, unit, head, stages.PASSED)


@njit
def complete_padding_line(st, unit, head):
    """Complete the word line that begins with program ``head``. All programs of the word line are
    padding, so the word line needs no second pass."""
    replace(st, unit, head, -1)
    st.dev[st.txn[head].dev].lines -= 1
    while head >= 0:
        tid = head
        head = st.txn[tid].mate
        st.txn[tid].mate = -1
        st.dev[st.txn[tid].dev].gathered -= st.txn[tid].n
        on_padding_programmed(st, tid)
