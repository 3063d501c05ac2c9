"""Events: which exclusive resource acts next, the pool of things in flight, first-in first-out
stations.

Owns the tournament tree over the resources' next event times, the transaction pool, the stations,
the log of moved bytes and the timeline. Does not own what an event means: system.py dispatches.
Source: Knuth, TAOCP vol. 3, 5.4.1 (tournament trees); one leaf per exclusive resource was measured
twice as fast as a binary heap. Equal times go to the lower leaf, so runs repeat byte for byte.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import NEVER, transfer_ps
from ondie.emu.state import record_type
from ondie.kernels.jit import njit

TXN = record_type(
    next="i8",  # next transaction in the queue this one waits in, or in the free list
    time="i8",  # when it leaves the station it is in
    row="i8",  # ring index of the plan row it serves, -1 = collection
    lpn="i8",  # first logical page (super-page for operations on the die)
    ppn="i8",  # first physical page (physical super-page for operations on the die)
    old="i8",  # where the page was when collection picked it up
    bus="i8",  # bytes that cross the channel
    size="i8",  # bytes that cross link and DRAM
    left="i8",  # bytes of its row that follow piece by piece
    array="i8",  # array or PE time in ps, when the timing table leaves it to the row
    dev="i4",
    die="i4",  # global index
    n="i4",  # pages, at consecutive planes of one super-page
    op="i4",  # timing table index
    step="i4",  # what happens when it leaves its station (system.py)
    phase="i4",  # phase of its row; the last one is collection
    bare="i4",  # 1: reservoir data, which ECC does not cover
)
FIFO = record_type(
    head="i8",
    tail="i8",
    free_at="i8",  # when the last accepted transfer leaves
    size="i8",  # bytes moved
    scale="i8",  # ps per byte << shift (clock.rate_scale)
    shift="i8",
    fixed="i8",  # latency added after service, not occupying the station
    jobs="i8",
)
REG = record_type(
    now="i8",
    free_txn="i8",  # head of the free list
    txns_free="i8",
    budget="i8",  # transactions that are not promised to any row under way
    starved="i8",  # 1: host commands wait for transactions, not for the queue depth
    events="i8",
    error="i8",
    error_a="i8",
    error_b="i8",
    next_row="i8",  # id of the next row to be loaded
    tail="i8",  # id of the oldest row that is not complete
    ready_head="i8",  # rows whose dependencies are met, waiting for a place
    ready_tail="i8",
    logged="i8",
    log_on="i8",
    lines="i8",
    line_on="i8",
    line_drop="i8",  # timeline intervals that found no room
    retry="i8",  # device + 1 whose stalled writes should be tried again
    bus0="i8",  # first leaf of the channels
    fifo0="i8",  # first leaf of the stations
)
LOG = record_type(what="i8", row="i8", lpn="i8", ppn="i8", old="i8", n="i4", dev="i4", die="i4")
LINE = record_type(leaf="i8", start="i8", end="i8", row="i8", op="i4", phase="i4")

# Errors the compiled code can raise; errors.py words them.
(
    E_NONE, E_POOL, E_FULL, E_PAST_END, E_RESERVOIR, E_REGISTER, E_BLOCK_VALID, E_RESOURCE,
    E_UNWRITTEN,
) = range(9)  # fmt: skip
(
    LOG_READ, LOG_PROGRAM, LOG_MOVE, LOG_ERASE, LOG_VPP, LOG_BPR, LOG_ODC, LOG_BPP, LOG_ROW,
    LOG_TRIM, LOG_ZERO,
) = range(11)  # fmt: skip


@njit
def set_leaf(st, leaf, time):
    """Give a resource its next event time and replay its matches up the tree."""
    st.leaf[leaf] = time
    half = st.tree.shape[0] >> 1
    node = (leaf + half) >> 1
    while node >= 1:
        if 2 * node >= half:
            a = 2 * node - half
            b = a + 1
        else:
            a = st.tree[2 * node]
            b = st.tree[2 * node + 1]
        st.tree[node] = a if st.leaf[a] <= st.leaf[b] else b
        node >>= 1


def build_tree(leaf: np.ndarray, tree: np.ndarray) -> None:
    """Fill the tree once, bottom up. ``leaf`` int64[2**k], ``tree`` int32[2**(k+1)]."""
    half = tree.shape[0] >> 1
    tree[half:] = np.arange(half)
    width = half >> 1
    while width >= 1:  # a level of the tree at a time
        a = tree[2 * width : 4 * width : 2]
        b = tree[2 * width + 1 : 4 * width : 2]
        tree[width : 2 * width] = np.where(leaf[a] <= leaf[b], a, b)
        width >>= 1


@njit
def fail(st, code, a, b):
    """Stop the run: the first error is kept."""
    reg = st.reg[0]
    if reg.error == E_NONE:
        reg.error = code
        reg.error_a = a
        reg.error_b = b


@njit
def take_txn(st):
    """A transaction from the pool, or -1 and an error when it is empty."""
    reg = st.reg[0]
    t = reg.free_txn
    if t < 0:
        fail(st, E_POOL, 0, 0)
        return t
    x = st.txn[t]
    reg.free_txn = x.next
    reg.txns_free -= 1
    x.next = -1
    x.old = -1
    x.array = 0
    x.left = 0
    x.bus = 0
    x.size = 0
    x.bare = 0
    x.n = 0
    x.row = -1
    x.phase = st.use.shape[0] - 1
    return t


@njit
def give_txn(st, t):
    """Return a transaction to the pool."""
    reg = st.reg[0]
    st.txn[t].next = reg.free_txn
    reg.free_txn = t
    reg.txns_free += 1


@njit
def line(st, leaf, start, end, t):
    """Note that transaction ``t`` took a resource from start to end, for the timeline."""
    reg = st.reg[0]
    if reg.line_on == 0:
        return
    if reg.lines >= st.line.shape[0]:
        reg.line_drop += 1
        return
    x = st.line[reg.lines]
    y = st.txn[t]
    x.leaf = leaf
    x.start = start
    x.end = end
    x.op = y.op
    x.phase = y.phase
    x.row = st.row[y.row].id if y.row >= 0 else -1
    reg.lines += 1


@njit
def log(st, what, row, lpn, ppn, old, n, dev, die):
    """Note bytes that moved, when payload is kept. The run pauses before the log is full."""
    reg = st.reg[0]
    if reg.log_on == 0:
        return
    x = st.log[reg.logged]
    x.what = what
    x.row = st.row[row].id if row >= 0 else -1
    x.lpn = lpn
    x.ppn = ppn
    x.old = old
    x.n = n
    x.dev = dev
    x.die = die
    reg.logged += 1


@njit
def enter(st, station, t, n_bytes, service, step):
    """Transaction ``t`` arrives at a station now; it leaves after ``service`` ps (or, if negative,
    after the time its bytes take at the station's rate), behind everything that came before."""
    reg = st.reg[0]
    f = st.fifo[station]
    x = st.txn[t]
    if service < 0:
        service = transfer_ps(n_bytes, f.scale, f.shift)
    start = max(reg.now, f.free_at)
    f.free_at = start + service
    st.use[x.phase, reg.fifo0 + station] += service
    f.size += n_bytes
    f.jobs += 1
    x.time = f.free_at + f.fixed
    x.step = step
    x.next = -1
    line(st, reg.fifo0 + station, start, f.free_at, t)
    if f.head < 0:
        f.head = t
        f.tail = t
        set_leaf(st, reg.fifo0 + station, x.time)
    else:
        st.txn[f.tail].next = t
        f.tail = t


@njit
def leave(st, station):
    """The station's first transaction, whose time has come."""
    f = st.fifo[station]
    t = f.head
    f.head = st.txn[t].next
    if f.head < 0:
        f.tail = -1
        set_leaf(st, st.reg[0].fifo0 + station, NEVER)
    else:
        set_leaf(st, st.reg[0].fifo0 + station, st.txn[f.head].time)
    return t
