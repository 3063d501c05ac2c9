"""Mapping: which physical page holds which logical page, and where the next one goes.

Owns the page map of the conventional namespace, super-block allocation per die, the reservoir's
super-page map, TRIM and the untimed fill. Does not own collection (gc.py) or time.
Source: page-level mapping with out-of-place writes; the reservoir (super-page map, written strictly
in sequence) after OptimStore (HPCA 2023). A write is mapped when its program is done.
"""

from __future__ import annotations

from ondie.emu.backend import nand
from ondie.emu.backend.timing import ERASE
from ondie.emu.events import E_RESERVOIR, LOG_ERASE, fail, log, take_txn
from ondie.emu.state import record_type
from ondie.kernels.jit import njit

USER, COLLECTED = range(2)
STREAMS = 2
FREE, OPEN, FULL = range(3)
BLOCK = record_type(
    valid="i4",  # mapped pages (reservoir: mapped super-pages)
    flying="i4",  # allocated pages whose program is not done
    state="i4",
    dirty="i4",  # 1: has to be erased before it is written
    erases="i4",
    pad="i4",
)
FRONT = record_type(block="i8", next="i8")  # open super-block of a stream on a die; next page slot
POOL = record_type(
    free_head="i8",
    free_n="i8",
    victim="i8",  # super-block under collection, -1 = none
    scan="i8",  # next page slot of the victim to look at
    moving="i8",  # pages of the victim on their way
    r_next="i8",  # next reservoir super-page of this die, in sequence
)


@njit
def block_of(st, ppn):
    """(die, super-block) of a physical page of the device."""
    c = st.cfg[0]
    die = ppn // c.die_pages
    return die, (ppn - die * c.die_pages) // c.block_pages


@njit
def open_block(st, dev, die, stream):
    """Open a free super-block for a stream. Returns False when the die has none to give."""
    c = st.cfg[0]
    g = dev * c.dies + die
    pool = st.pool[g]
    if pool.free_n <= (0 if stream == COLLECTED else c.gc_reserve):
        return False
    b = st.free[g, pool.free_head]
    pool.free_head = pool.free_head + 1 if pool.free_head + 1 < c.blocks else 0
    pool.free_n -= 1
    block = st.block[g, b]
    block.state = OPEN
    st.front[stream, g].block = b
    st.front[stream, g].next = 0
    return True


@njit
def erase_if_dirty(st, dev, g, b, queue):
    """Queue the erase that a used super-block needs before its first program, in the queue in
    which that program will follow."""
    c = st.cfg[0]
    block = st.block[g, b]
    if block.dirty == 0:
        block.dirty = 1
        return
    t = take_txn(st)
    if t < 0:
        return
    x = st.txn[t]
    x.op = ERASE
    x.row = -1
    x.dev = dev
    x.die = g
    x.n = c.planes
    x.ppn = b
    nand.push(st, g, t, queue)


@njit
def free_block(st, g, b):
    """A super-block without valid pages goes to the end of the die's free ring."""
    c = st.cfg[0]
    pool = st.pool[g]
    at = pool.free_head + pool.free_n
    if at >= c.blocks:
        at -= c.blocks
    st.free[g, at] = b
    pool.free_n += 1
    st.block[g, b].state = FREE


@njit
def erased(st, t):
    """An erase is done."""
    x = st.txn[t]
    st.block[x.die, x.ppn].erases += 1
    log(st, LOG_ERASE, -1, -1, x.ppn, -1, 1, x.dev, x.die)


@njit
def allocate(st, dev, die, stream, n):
    """Up to ``n`` page slots at consecutive planes of one super-page of ``die``.

    Returns (first ppn, count); (-1, 0) when the die has no block to write to.
    """
    c = st.cfg[0]
    g = dev * c.dies + die
    front = st.front[stream, g]
    if front.block < 0 and not open_block(st, dev, die, stream):
        return -1, 0
    plane = front.next % c.planes
    k = min(n, c.planes - plane)
    if c.multi_plane == 0:
        k = 1
    b = front.block
    ppn = die * c.die_pages + b * c.block_pages + front.next
    first = front.next == 0
    front.next += k
    st.block[g, b].flying += k
    if front.next == c.block_pages:
        front.block = -1
        st.block[g, b].state = FULL
    if first:
        erase_if_dirty(st, dev, g, b, nand.Q_GC_WRITE if stream == COLLECTED else nand.Q_WRITE)
    return ppn, k


@njit
def unmap(st, dev, lpn):
    """Forget where a logical page is; its physical page becomes invalid."""
    old = st.l2p[dev, lpn]
    if old == 0:
        return
    die, b = block_of(st, int(old) - 1)
    st.block[dev * st.cfg[0].dies + die, b].valid -= 1
    st.l2p[dev, lpn] = 0
    st.dev[dev].mapped -= 1


@njit
def map_page(st, dev, lpn, ppn):
    """The logical page is now here."""
    unmap(st, dev, lpn)
    die, b = block_of(st, ppn)
    st.l2p[dev, lpn] = ppn + 1
    st.p2l[dev, ppn] = lpn + 1
    st.block[dev * st.cfg[0].dies + die, b].valid += 1
    st.dev[dev].mapped += 1


@njit
def landed(st, dev, ppn, n):
    """``n`` pages allocated at ``ppn`` have been programmed."""
    die, b = block_of(st, ppn)
    st.block[dev * st.cfg[0].dies + die, b].flying -= n


@njit
def fill(st, dev, lpn, n):
    """Map ``n`` pages from ``lpn`` on as if written in sequence, without taking time.

    Returns the number of pages that found no place. A fill costs no erase.
    """
    c = st.cfg[0]
    d = st.dev[dev]
    dies_without = 0
    while n > 0:
        g = dev * c.dies + d.cursor
        front = st.front[USER, g]
        if front.block < 0 and st.pool[g].free_n > c.gc_reserve:
            st.block[g, st.free[g, st.pool[g].free_head]].dirty = 0
        ppn, k = allocate(st, dev, d.cursor, USER, n)
        d.cursor = d.cursor + 1 if d.cursor + 1 < c.dies else 0
        if k == 0:
            dies_without += 1
            if dies_without == c.dies:
                return n
            continue
        dies_without = 0
        for i in range(k):
            map_page(st, dev, lpn + i, ppn + i)
        landed(st, dev, ppn, k)
        lpn += k
        n -= k
    return 0


@njit
def reservoir_open(st, dev, s):
    """Physical super-page (within its die's reservoir) for the next program of super-page ``s``.

    The die writes strictly in sequence. A block is entered only when nothing in it is valid any
    more, so collection moves nothing; otherwise the reservoir is too small, and the run fails.
    """
    c = st.cfg[0]
    g = dev * c.dies + s % c.dies
    pool = st.pool[g]
    at = pool.r_next
    if at % c.pages == 0:
        b = c.blocks + at // c.pages
        if st.block[g, b].valid != 0:
            fail(st, E_RESERVOIR, g, st.block[g, b].valid)
        erase_if_dirty(st, dev, g, b, nand.Q_PE)
    pool.r_next = at + 1 if at + 1 < c.reservoir_pages else 0
    return at


@njit
def reservoir_map(st, dev, s, at):
    """Super-page ``s`` is now at ``at`` of its die's reservoir."""
    c = st.cfg[0]
    g = dev * c.dies + s % c.dies
    old = st.rmap[dev, s]
    if old != 0:
        st.block[g, c.blocks + (int(old) - 1) // c.pages].valid -= 1
    else:
        st.dev[dev].r_mapped += 1
    st.rmap[dev, s] = at + 1
    st.block[g, c.blocks + at // c.pages].valid += 1


@njit
def reservoir_fill(st, dev, s, n):
    """Map ``n`` super-pages from ``s`` on, in sequence, without taking time or costing erases."""
    c = st.cfg[0]
    for i in range(n):
        g = dev * c.dies + (s + i) % c.dies
        at = st.pool[g].r_next
        if at % c.pages == 0:
            st.block[g, c.blocks + at // c.pages].dirty = 0
        reservoir_map(st, dev, s + i, reservoir_open(st, dev, s + i))
