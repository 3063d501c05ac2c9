"""Word-line buffer: programs wait in DRAM until all pages of a program unit are present.

Owns the buffered lines (word_lines.py): their programs, the order of passes over the array, and the
start of each pass. Does not own allocation (write_path.py), padding (padding.py) or completion
after the last pass (completion.py).
Source: one-shot and two-pass (foggy-fine) programming of 3D NAND: the second pass over a word line
follows the first pass over its neighbour.

A line is buffered from its first program on. When all its pages are present, they go to their die
as one program. With two passes, the line waits a second time after the first pass, for the first
pass over the next line of the block, if there is a next line. The data stay in DRAM and cross the
channel again. A line whose pages are all padding needs no second pass.
"""

from __future__ import annotations

from ondie.emu.clock import NEVER
from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.counters import (
    ARRAY_PROGRAMS,
    PADDING_PAGES,
    SECOND_PASS_PAGES,
    UNASKED_IN_BYTES,
)
from ondie.emu.engine.core.events import CACHED, OWN, give_txn, set_leaf
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl import word_lines as lines
from ondie.emu.ftl.gc import ask
from ondie.emu.ftl.write_path import hunt
from ondie.emu.nand import channel as nand
from ondie.kernels.jit import cold, njit

# --- buffered lines


@njit
def unit_of(st, t):
    """Return the unit that holds the pages of transaction ``t``."""
    x = st.txn[t]
    return mapping.block_at(st, x.dev, x.ppn) // st.cfg[0].all_blocks


@njit
def find(st, u, key):
    """Return the first buffered program of line ``key`` of unit ``u``, or -1 if none is
    buffered."""
    t = st.pool[u].lines - 1
    while t >= 0 and lines.of(st, st.txn[t].ppn) != key:
        t = st.txn[t].next
    return t


@njit
def replace(st, u, head, other):
    """Replace ``head`` by ``other`` (-1: remove it) in the list of buffered lines of unit ``u``."""
    pool = st.pool[u]
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
def insert(st, t):
    """Insert program ``t`` into its line, in order of pages. Return the first program of the
    line."""
    x = st.txn[t]
    u = unit_of(st, t)
    head = find(st, u, lines.of(st, x.ppn))
    x.mate = -1
    if head < 0:
        x.next = st.pool[u].lines - 1
        x.time = st.reg[0].now
        st.pool[u].lines = t + 1
        st.dev[x.dev].lines += 1
        return t
    if st.txn[head].page > x.page:
        x.time = st.txn[head].time
        x.mate = head
        replace(st, u, head, t)
        return t
    at = head
    while st.txn[at].mate >= 0 and st.txn[st.txn[at].mate].page <= x.page:
        at = st.txn[at].mate
    x.next = -1
    x.mate = st.txn[at].mate
    st.txn[at].mate = t
    return head


@njit
def whole(st, head):
    """Return True if all pages of a line are buffered."""
    n = 0
    t = head
    while t >= 0:
        n += st.txn[t].n
        t = st.txn[t].mate
    return n >= st.cfg[0].line


@njit
def send(st, u, head, step):
    """Send a whole line to its die; ``step`` selects the pass."""
    c = st.cfg[0]
    replace(st, u, head, -1)
    x = st.txn[head]
    dev = x.dev
    st.dev[dev].lines -= 1
    planes = 0
    t = head
    while t >= 0:
        y = st.txn[t]
        if step == s.PASSED:
            mapping.place_of(st, dev, t)  # chips number their planes consecutively
            y.array = st.page_ps[2, y.page]
            st.count[dev, SECOND_PASS_PAGES] += y.n
            st.count[dev, UNASKED_IN_BYTES] += y.n * c.page_bytes - y.bus
        y.step = step
        planes |= y.planes
        t = y.mate
    x.planes = planes
    t = x.mate
    while c.slots > 1 and t >= 0:  # the first holds the planes of all with its page offset
        if st.txn[t].page == x.page:
            st.txn[t].planes = 0
        t = st.txn[t].mate
    nand.push(st, st.die[x.die].first, head, queue_of(st, head))


@njit
def queue_of(st, t):
    """Return the die queue for a line, by the stream that fills its block."""
    c = st.cfg[0]
    stream = st.block[mapping.block_at(st, st.txn[t].dev, st.txn[t].ppn)].stream
    if stream < c.collected:
        return nand.Q_WRITE
    return nand.Q_MAP_WRITE if stream == c.map_stream else c.q_gc_write


# --- passes


@cold
def programmed(st, t):
    """Complete one pass over the line of program ``t``. Return True if there is no completion to
    report: another pass follows, or the pages are padding."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    if lines.begins(st, x.ppn):
        st.count[dev, ARRAY_PROGRAMS] += 1
    if c.passes == 2 and x.step == s.ENCODED:
        x.step = s.PASSED
        head = insert(st, t)
        if whole(st, head):
            passed(st, unit_of(st, t), head)
        return True
    d = st.dev[dev]
    d.gathered -= x.n
    if x.kind == CACHED:
        d.joined -= 1
    if x.kind == OWN and x.bare == lines.PADDING:
        padded(st, t)
        return True
    return False


@njit
def padded(st, t):
    """Complete the program of padding pages."""
    x = st.txn[t]
    dev = x.dev
    u = unit_of(st, t)
    st.count[dev, PADDING_PAGES] += x.n
    mapping.landed(st, dev, x.ppn, x.n)
    give_txn(st, t)
    hunt(st, dev, u)
    if st.pool[u].retiring > 0:
        ask(st, dev, u)


@njit
def passed(st, u, head):
    """Complete the first pass over a line. Start the second pass over the line before it, and the
    second pass over this line if no line follows."""
    c = st.cfg[0]
    x = st.txn[head]
    dev = x.dev
    ppn = x.ppn
    b = mapping.block_at(st, dev, ppn)
    stripe = (ppn - mapping.first_page(st, dev, b)) // c.stripe
    if stripe > 0:
        second(st, u, find(st, u, lines.of(st, ppn - c.stripe)))
    t = head
    while t >= 0 and st.txn[t].kind == OWN and st.txn[t].bare == lines.PADDING:
        t = st.txn[t].mate
    if t < 0:
        void(st, u, head)
    elif stripe == st.block[b].last:
        second(st, u, head)
    elif st.key[(st.key.shape[0] >> 1) + st.reg[0].gather0 + dev] == NEVER:
        set_leaf(st, st.reg[0].gather0 + dev, st.reg[0].now + c.gather)


@njit
def second(st, u, head):
    """Start the second pass over a line if its first pass is done."""
    if head >= 0 and st.txn[head].step == s.PASSED and whole(st, head):
        send(st, u, head, s.PASSED)


@njit
def void(st, u, head):
    """Complete a line of padding only, after its single pass."""
    replace(st, u, head, -1)
    st.dev[st.txn[head].dev].lines -= 1
    while head >= 0:
        t = head
        head = st.txn[t].mate
        st.txn[t].mate = -1
        st.dev[st.txn[t].dev].gathered -= st.txn[t].n
        padded(st, t)
