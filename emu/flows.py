"""Flows: what happens next to a transaction that leaves a station, an array or a channel.

Owns the routes through one device: reads, writes, collection, gradients to the dies. Does not own
plan rows: a transaction that is finished is returned to system.py, which completes its row.
Source: the data paths of Newport and Laguna (host <-> front end <-> back end <-> flash; ISP <->
back end <-> flash, bypassing front end and NVMe), pages stored and forwarded in the controller's
DRAM.
"""

from __future__ import annotations

from ondie.emu import stations as s
from ondie.emu.backend import gc, mapping, nand, timing
from ondie.emu.events import (
    E_FULL,
    LOG_BPP,
    LOG_BPR,
    LOG_MOVE,
    LOG_ODC,
    LOG_PROGRAM,
    LOG_VPP,
    enter,
    fail,
    give_txn,
    log,
    take_txn,
)
from ondie.emu.frontend.controller import child
from ondie.emu.stats import (
    ARRAY_ERASES,
    ARRAY_PROGRAMS,
    ARRAY_READS,
    BPP_PAGES,
    BPR_PAGES,
    COLLECTIONS,
    ECC_DECODED_PAGES,
    ECC_ENCODED_PAGES,
    ERASED_BLOCKS,
    GC_DROPPED,
    GC_PROGRAM_PAGES,
    GC_READ_PAGES,
    ODC_OPS,
    PROGRAM_PAGES,
    VPP_PAGES,
)
from ondie.kernels.jit import njit

HOST_PASSES = 2
"""Times a host byte crosses the device's DRAM: stored, then forwarded. The ISP's cross it once."""


@njit
def decode(st, t, step):
    """Through the decoder of the die's channel."""
    x = st.txn[t]
    st.count[x.dev, ECC_DECODED_PAGES] += x.n
    ecc = s.station(st, x.dev, s.ECC) + (x.die % st.cfg[0].dies) % st.cfg[0].channels
    enter(st, ecc, t, x.bus, x.n * st.cfg[0].decode, step)


@njit
def encode(st, t):
    """Through the encoder of the die's channel, then to the die."""
    x = st.txn[t]
    st.count[x.dev, ECC_ENCODED_PAGES] += x.n
    ecc = s.station(st, x.dev, s.ECC) + (x.die % st.cfg[0].dies) % st.cfg[0].channels
    enter(st, ecc, t, x.bus, x.n * st.cfg[0].encode, s.ENCODED)


@njit
def next_piece(st, t, step):
    """The next piece of a long transfer goes through DRAM, so that others get their turn
    between."""
    x = st.txn[t]
    x.size = min(x.left, st.cfg[0].piece)
    x.left -= x.size
    enter(st, s.station(st, x.dev, s.DRAM), t, x.size, -1, step)


@njit
def place(st, t):
    """Give the pages of a write their physical places, die after die, and send them on. Returns
    False when no die has a block to write to."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    d = st.dev[dev]
    refused = 0
    while True:
        die = d.cursor
        d.cursor = die + 1 if die + 1 < c.dies else 0
        ppn, k = mapping.allocate(st, dev, die, mapping.USER, x.n)
        if gc.begin(st, dev * c.dies + die):
            collect(st, dev, dev * c.dies + die)
        if k == 0:
            refused += 1
            if refused == c.dies:
                return False
            continue
        refused = 0
        u = t
        if k < x.n:  # the rest needs another super-page
            u = child(st, t, x.lpn, k)
            if u < 0:
                return True
            x.lpn += k
            x.n -= k
        y = st.txn[u]
        y.op = timing.PROGRAM
        y.ppn = ppn
        y.die = dev * c.dies + die
        y.bus = k * c.page_bytes
        encode(st, u)
        if u == t:
            return True


@njit
def place_or_wait(st, t):
    """Place a write, or let it wait until collection has freed a block."""
    x = st.txn[t]
    d = st.dev[x.dev]
    if d.stall_head < 0 and place(st, t):
        return
    x.next = -1
    if d.stall_head < 0:
        d.stall_head = t
    else:
        st.txn[d.stall_tail].next = t
    d.stall_tail = t


@njit
def retry_stalled(st, dev):
    """A block has become free: writes that waited for one try again, in order."""
    d = st.dev[dev]
    while d.stall_head >= 0:
        t = d.stall_head
        following = st.txn[t].next
        if not place(st, t):
            return
        d.stall_head = following


@njit
def collect(st, dev, g):
    """Keep the collection of die ``g`` going: read the next valid pages of its victim, or end it
    (then reg.retry asks for stalled writes to be tried again)."""
    c = st.cfg[0]
    pool = st.pool[g]
    freed = False
    while pool.victim >= 0:
        if pool.scan == 0:
            st.count[dev, COLLECTIONS] += 1
        while pool.moving < c.gc_window:
            lpn, ppn = gc.next_valid(st, dev, g)
            if lpn < 0:
                break
            t = take_txn(st)
            if t < 0:
                return
            x = st.txn[t]
            x.op = timing.READ
            x.dev = dev
            x.die = g
            x.lpn = lpn
            x.ppn = ppn
            x.old = ppn
            x.n = 1
            x.bus = c.page_bytes
            x.size = c.page_bytes
            pool.moving += 1
            st.count[dev, GC_READ_PAGES] += 1
            st.count[dev, ARRAY_READS] += 1
            nand.push(st, g, t, nand.Q_GC_READ)
        if pool.moving > 0:
            break
        gc.finish(st, g)
        freed = True
        gc.begin(st, g)
    if freed:
        st.reg[0].retry = dev + 1


@njit
def hunt(st, dev):
    """Pages have landed or become invalid while writes wait for a free block: a block that was not
    worth collecting when they were refused, or still being written, may be now."""
    if st.dev[dev].stall_head < 0:
        return
    for g in range(dev * st.cfg[0].dies, (dev + 1) * st.cfg[0].dies):
        if gc.begin(st, g):
            collect(st, dev, g)


@njit
def moved(st, t):
    """A collected page has reached its end: programmed again, or dropped."""
    x = st.txn[t]
    dev = x.dev
    g = x.die
    give_txn(st, t)
    st.pool[g].moving -= 1
    collect(st, dev, g)


@njit
def move(st, t):
    """A collected page is in DRAM: write it to the die's collection block, unless it was
    overwritten."""
    c = st.cfg[0]
    x = st.txn[t]
    if int(st.l2p[x.dev, x.lpn]) - 1 != x.old:
        st.count[x.dev, GC_DROPPED] += 1
        moved(st, t)
        return
    ppn, k = mapping.allocate(st, x.dev, x.die - x.dev * c.dies, mapping.COLLECTED, 1)
    if k == 0:
        fail(st, E_FULL, x.dev, x.die)
        return
    x.op = timing.PROGRAM
    x.ppn = ppn
    encode(st, t)


@njit
def programmed(st, t):
    """A program is done: its pages are mapped. Returns the transaction if a row waits for it."""
    x = st.txn[t]
    dev = x.dev
    st.count[dev, ARRAY_PROGRAMS] += 1
    mapping.landed(st, dev, x.ppn, x.n)
    if x.row >= 0:
        st.count[dev, PROGRAM_PAGES] += x.n
        for i in range(x.n):
            mapping.map_page(st, dev, x.lpn + i, x.ppn + i)
        log(st, LOG_PROGRAM, x.row, x.lpn, x.ppn, -1, x.n, dev, x.die)
        hunt(st, dev)
        return t
    st.count[dev, GC_PROGRAM_PAGES] += 1
    if int(st.l2p[dev, x.lpn]) - 1 == x.old:
        mapping.map_page(st, dev, x.lpn, x.ppn)
        log(st, LOG_MOVE, -1, x.lpn, x.ppn, x.old, 1, dev, x.die)
    moved(st, t)
    return -1


@njit
def after_flash(st, t):
    """Transaction ``t`` is done with its die: its data are out, programmed, loaded or computed.
    Returns it when it is finished, else -1."""
    x = st.txn[t]
    dev = x.dev
    if x.op == timing.READ:
        if x.row < 0:
            decode(st, t, s.MOVE_DECODED)
        elif x.bare != 0:
            enter(st, s.station(st, dev, s.DRAM), t, HOST_PASSES * x.size, -1, s.READ_IN_DRAM)
        else:
            decode(st, t, s.DECODED)
        return -1
    if x.op == timing.PROGRAM:
        return programmed(st, t)
    if x.op == timing.ERASE:
        st.count[dev, ERASED_BLOCKS] += x.n
        st.count[dev, ARRAY_ERASES] += 1
        mapping.erased(st, t)
        give_txn(st, t)
        return -1
    if x.op == timing.VPP:
        st.count[dev, VPP_PAGES] += x.n
        log(st, LOG_VPP, x.row, x.lpn, -1, -1, x.n, dev, x.die)
    elif x.op == timing.BPR:
        st.count[dev, BPR_PAGES] += x.n
        st.count[dev, ARRAY_READS] += 1
        log(st, LOG_BPR, x.row, x.lpn, x.ppn, -1, x.n, dev, x.die)
    elif x.op == timing.ODC:
        st.count[dev, ODC_OPS] += 1
        log(st, LOG_ODC, x.row, x.lpn, x.ppn, -1, x.n, dev, x.die)
    else:
        st.count[dev, BPP_PAGES] += x.n
        st.count[dev, ARRAY_PROGRAMS] += 1
        mapping.reservoir_map(st, dev, x.lpn, x.ppn)
        log(st, LOG_BPP, x.row, x.lpn, x.ppn, -1, x.n, dev, x.die)
    return t


@njit
def after_station(st, t):
    """Transaction ``t`` has left a device's station. Returns it if it is finished, else -1."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    step = x.step
    if step == s.DECODED:
        if st.row[x.row].resource == c.isp_io:
            enter(st, s.station(st, dev, s.ISP_LINK), t, x.size, -1, s.ISP_READ_READY)
        else:
            enter(st, s.station(st, dev, s.DRAM), t, HOST_PASSES * x.size, -1, s.READ_IN_DRAM)
    elif step == s.READ_IN_DRAM:
        if st.row[x.row].resource == c.isp_io:
            return t
        enter(st, s.station(st, dev, s.UP), t, x.size, -1, s.UP_DONE)
    elif step == s.UP_DONE:
        if c.shared_uplink != 0:
            enter(st, s.UPLINK_UP, t, x.size, -1, s.ROW_PART_DONE)
        else:
            return t
    elif step == s.UPLINK_DOWN_DONE:
        enter(st, s.station(st, dev, s.DOWN), t, x.size, -1, s.DOWN_DONE)
    elif step == s.DOWN_DONE:
        enter(st, s.station(st, dev, s.DRAM), t, HOST_PASSES * x.size, -1, s.WRITE_IN_DRAM)
    elif step == s.WRITE_IN_DRAM:
        place_or_wait(st, t)
    elif step == s.ENCODED:
        nand.push(st, x.die, t, nand.Q_WRITE if x.row >= 0 else nand.Q_GC_WRITE)
    elif step == s.ISP_READ_READY:
        enter(st, s.station(st, dev, s.DRAM), t, x.size, -1, s.ROW_PART_DONE)
    elif step == s.ISP_WRITE_IN_DRAM:
        enter(st, s.station(st, dev, s.ISP_LINK), t, x.size, -1, s.ISP_WRITE_READY)
    elif step == s.ISP_WRITE_READY:
        place_or_wait(st, t)
    elif step == s.MOVE_DECODED:
        enter(st, s.station(st, dev, s.DRAM), t, HOST_PASSES * x.size, -1, s.MOVE_IN_DRAM)
    elif step == s.MOVE_IN_DRAM:
        move(st, t)
    elif step == s.TRAFFIC_PIECE:
        if x.left == 0:
            return t
        next_piece(st, t, s.TRAFFIC_PIECE)
    elif step == s.DMA_READY:
        if x.left > 0:
            u = child(st, t, x.lpn, 0)
            if u < 0:
                return -1
            st.txn[u].left = x.left
            x.left = 0
            next_piece(st, u, s.DMA_READY)
        enter(st, s.station(st, dev, s.UP), t, x.size, -1, s.UP_DONE)
    elif step == s.DMA_UPLINK_DONE:
        enter(st, s.station(st, dev, s.DOWN), t, x.size, -1, s.DMA_DOWN_DONE)
    elif step == s.DMA_DOWN_DONE:
        enter(st, s.station(st, dev, s.DRAM), t, x.size, -1, s.ROW_PART_DONE)
    else:  # ROW_PART_DONE
        return t
    return -1
