"""Dispatch: what a plan row starts, and the loop that acts on events in order of time.

Owns the start of every kind of row, the budget of transactions and the event loop. Does not own
the routes inside a device (flows.py) or what rows wait for (rows.py). Source: this project's
contract of plans (rows.py); the tournament tree of events.py.
"""

from __future__ import annotations

from ondie.emu import flows
from ondie.emu import stations as s
from ondie.emu.backend import mapping, nand, timing
from ondie.emu.clock import NEVER
from ondie.emu.events import (
    E_PAST_END,
    E_POOL,
    E_RESOURCE,
    E_UNWRITTEN,
    LOG_ROW,
    enter,
    fail,
    give_txn,
    leave,
    log,
    take_txn,
)
from ondie.emu.frontend import controller, queues
from ondie.emu.rows import (
    ACCELERATOR,
    DIE,
    DMA_DOWN,
    DMA_UP,
    HOST_CPU,
    ISP,
    ISP_IO,
    JOIN,
    NVME,
    STARTED,
    TUNNEL,
    UPWARD,
    advance,
    complete,
    room,
)
from ondie.emu.stats import (
    ARRAY_READS,
    COMMANDS,
    COMMANDS_DONE,
    DOWN_BYTES,
    HOST_READ_BYTES,
    HOST_WRITE_BYTES,
    ISP_BYTES,
    ISP_READ_BYTES,
    ISP_WRITE_BYTES,
    LOAD_BYTES,
    RESERVOIR_READ_PAGES,
    RESERVOIR_UP_BYTES,
    TUNNEL_BYTES,
    UP_BYTES,
)
from ondie.kernels.jit import njit

MAX_PIECES = 64
"""Pieces that one row sends down the link at most."""


@njit
def start_ready(st):
    """Start the rows that are ready, in order, as long as there are transactions to carry them."""
    reg = st.reg[0]
    while reg.ready_head >= 0 and reg.error == 0:
        r = reg.ready_head
        if st.row[r].resource > NVME and not afford(st, r):
            break
        reg.ready_head = st.row[r].next
        if st.row[r].resource == JOIN:
            st.row[r].start = reg.now
            complete(st, r)
            if st.row[r].id == reg.tail:
                advance(st)
        elif st.row[r].resource == NVME:
            queues.wait_for_slot(st, st.row[r].device, r)
            admit(st, st.row[r].device)
        else:
            start(st, r)
    if reg.starved != 0:
        reg.starved = 0
        for dev in range(st.dev.shape[0]):
            admit(st, dev)


@njit
def cost(st, r):
    """Transactions that row ``r`` may need at once: one per page and one for itself, one per
    piece, or two (a BPP with the erase before it, a VPP or a computation with its DRAM
    traffic)."""
    row = st.row[r]
    if row.resource == NVME or row.resource == ISP_IO:
        return 1 if row.kind == queues.TRIM else 1 + pages(st, row.bytes_in + row.bytes_out)
    if row.resource == DMA_DOWN:
        return MAX_PIECES
    if row.resource == DMA_UP:
        return 1 + row.bytes_out // st.cfg[0].piece
    return 2


@njit
def afford(st, r):
    """Set aside the transactions that row ``r`` may need; False when too many are promised. So the
    pool never runs dry in the middle of a command."""
    reg = st.reg[0]
    need = cost(st, r)
    if need > reg.budget:
        if need > st.cfg[0].budget:
            fail(st, E_POOL, need, st.cfg[0].budget)
        return False
    reg.budget -= need
    return True


@njit
def admit(st, dev):
    """Submit waiting host commands up to the queue depth."""
    reg = st.reg[0]
    while reg.error == 0:
        r = queues.next_admissible(st, dev)
        if r < 0:
            return
        if not afford(st, r):
            reg.starved = 1
            return
        queues.admit_next(st, dev)
        t = part(st, r)
        x = st.txn[t]
        row = st.row[r]
        row.start = reg.now
        x.size = row.bytes_in + row.bytes_out
        x.n = pages(st, x.size)
        x.op = timing.READ if row.kind == queues.READ else timing.PROGRAM
        if row.kind == queues.TRIM:
            x.n = row.bytes_in // st.cfg[0].page_bytes
            x.size = 0
        if x.lpn < 0 or x.lpn + x.n > st.cfg[0].lpns:
            fail(st, E_PAST_END, x.lpn, x.n)
            return
        if row.array_ps > reg.now:
            timer = s.station(st, dev, s.TIMER)
            gap = max(row.array_ps - max(reg.now, st.fifo[timer].free_at), 0)
            enter(st, timer, t, 0, gap, s.ARRIVED)
            st.use[x.phase, reg.fifo0 + timer] -= gap  # waiting is no work
        else:
            enter(st, s.SUBMIT, t, 0, st.cfg[0].submit, s.SUBMITTED)


@njit
def pages(st, n_bytes):
    """Pages that hold a number of bytes."""
    return (n_bytes + st.cfg[0].page_bytes - 1) // st.cfg[0].page_bytes


@njit
def part(st, r):
    """A transaction that works for row ``r``."""
    t = take_txn(st)
    x = st.txn[t]
    row = st.row[r]
    row.state = STARTED
    row.pending += 1
    x.row = r
    x.phase = row.phase
    x.dev = row.device
    x.lpn = row.lpn
    x.op = timing.OTHER
    return t


@njit
def start(st, r):
    """Start a row that is not an NVMe command."""
    row = st.row[r]
    dev = row.device
    row.start = st.reg[0].now
    t = part(st, r)
    x = st.txn[t]
    if row.resource == ISP_IO:
        start_isp_io(st, r, t)
    elif row.resource == DIE:
        start_die(st, r, t)
    elif row.resource == DMA_DOWN:
        start_dma_down(st, r, t)
    elif row.resource == DMA_UP:
        x.left = row.bytes_out
        st.count[dev, UP_BYTES] += x.left
        flows.next_piece(st, t, s.DMA_READY)
    elif row.resource == HOST_CPU:
        enter(st, s.CPU, t, 0, row.array_ps, s.ROW_PART_DONE)
    elif row.resource == ACCELERATOR:
        enter(st, s.ACCELERATOR, t, 0, row.array_ps, s.ROW_PART_DONE)
    elif row.resource == ISP:
        size = row.bytes_in + row.bytes_out
        st.count[dev, ISP_BYTES] += size
        enter(st, s.station(st, dev, s.ISP), t, 0, row.array_ps, s.ROW_PART_DONE)
        if size > 0:
            u = part(st, r)
            st.txn[u].left = size
            flows.next_piece(st, u, s.TRAFFIC_PIECE)
    elif row.resource == TUNNEL:
        st.count[dev, TUNNEL_BYTES] += row.bytes_in
        which = s.TUNNEL_UP if row.kind == UPWARD else s.TUNNEL_DOWN
        enter(st, s.station(st, dev, which), t, row.bytes_in, -1, s.ROW_PART_DONE)
    else:
        fail(st, E_RESOURCE, row.id, row.resource)


@njit
def start_dma_down(st, r, t):
    """Bytes go down the link in pieces, so that each can move on to DRAM while others follow."""
    row = st.row[r]
    dev = row.device
    st.count[dev, DOWN_BYTES] += row.bytes_in
    piece = max(st.cfg[0].piece, row.bytes_in // MAX_PIECES + 1)
    left = row.bytes_in
    while True:
        x = st.txn[t]
        x.size = min(left, piece)
        left -= x.size
        if st.cfg[0].shared_uplink != 0:
            enter(st, s.UPLINK_DOWN, t, x.size, -1, s.DMA_UPLINK_DONE)
        else:
            enter(st, s.station(st, dev, s.DOWN), t, x.size, -1, s.DMA_DOWN_DONE)
        if left == 0:
            return
        t = part(st, r)


@njit
def start_isp_io(st, r, t):
    """The ISP reads or writes the conventional namespace, bypassing front end and NVMe."""
    c = st.cfg[0]
    row = st.row[r]
    x = st.txn[t]
    x.size = row.bytes_in + row.bytes_out
    x.n = pages(st, x.size)
    if x.lpn < 0 or x.lpn + x.n > c.lpns:
        fail(st, E_PAST_END, x.lpn, x.n)
        return
    if row.kind == queues.READ:
        st.count[row.device, ISP_READ_BYTES] += x.size
        controller.cut_read(st, t, 1)
    else:
        st.count[row.device, ISP_WRITE_BYTES] += x.size
        dram = s.station(st, row.device, s.DRAM)
        controller.cut_write(st, t, dram, s.ISP_WRITE_IN_DRAM)
    release(st, t)


@njit
def start_die(st, r, t):
    """An operation on the dies' reservoir: its super-page's die, registers and physical place."""
    c = st.cfg[0]
    row = st.row[r]
    x = st.txn[t]
    dev = row.device
    if row.lpn < 0 or row.lpn >= st.rmap.shape[1]:
        fail(st, E_PAST_END, row.lpn, 1)
        return
    g = dev * c.dies + row.lpn % c.dies
    x.op = row.kind
    x.die = g
    x.n = pages(st, row.bytes_in + row.bytes_out)
    x.array = row.array_ps
    x.bare = 1
    x.ppn = int(st.rmap[dev, row.lpn]) - 1
    if x.ppn < 0 and (row.kind == timing.BPR or row.kind == timing.READ):
        fail(st, E_UNWRITTEN, row.lpn, g)
        return
    if row.kind == timing.VPP:
        x.bus = row.bytes_in
        st.count[dev, LOAD_BYTES] += row.bytes_in
        # Streamed from DRAM to the channel: both are needed, side by side.
        u = part(st, r)
        st.txn[u].left = row.bytes_in
        flows.next_piece(st, u, s.TRAFFIC_PIECE)
        nand.push(st, g, t, nand.Q_LOAD)
    elif row.kind == timing.READ:
        x.size = row.bytes_out
        x.bus = row.bytes_out
        st.count[dev, RESERVOIR_READ_PAGES] += x.n
        st.count[dev, RESERVOIR_UP_BYTES] += x.size
        st.count[dev, ARRAY_READS] += 1
        nand.push(st, g, t, nand.Q_READ)
    else:
        if row.kind == timing.BPP:
            x.ppn = mapping.reservoir_open(st, dev, row.lpn)
        nand.push(st, g, t, nand.Q_PE)


@njit
def release(st, t):
    """A part of a row is done; with the last part the row is."""
    r = st.txn[t].row
    row = st.row[r]
    give_txn(st, t)
    row.pending -= 1
    if row.pending > 0:
        return
    reg = st.reg[0]
    dev = row.device
    reg.budget += cost(st, r)
    if row.resource == NVME:
        st.dev[dev].outstanding -= 1
        st.count[dev, COMMANDS_DONE] += 1
    elif (
        row.resource >= DMA_DOWN and row.tag > 0
    ):  # lpn and tag are its first parameter and their number
        log(st, LOG_ROW, r, row.lpn, -1, row.tag, row.resource, dev, -1)
    complete(st, r)
    if row.id == reg.tail:
        advance(st)
    if row.resource == NVME:
        admit(st, dev)


@njit
def fetched(st, t):
    """The front end has fetched and decoded a command: do what it says."""
    x = st.txn[t]
    row = st.row[x.row]
    dev = row.device
    st.count[dev, COMMANDS] += 1
    if row.kind == queues.READ:
        st.count[dev, HOST_READ_BYTES] += x.size
        controller.cut_read(st, t, flows.HOST_PASSES)
    elif row.kind == queues.WRITE:
        st.count[dev, HOST_WRITE_BYTES] += x.size
        if st.cfg[0].shared_uplink != 0:
            controller.cut_write(st, t, s.UPLINK_DOWN, s.UPLINK_DOWN_DONE)
        else:
            controller.cut_write(st, t, s.station(st, dev, s.DOWN), s.DOWN_DONE)
    elif row.kind == queues.TRIM:
        controller.cut_trim(st, t)
        flows.hunt(st, dev)
    release(st, t)


@njit
def left(st, t):
    """Transaction ``t`` has left a station."""
    step = st.txn[t].step
    if step == s.ARRIVED:
        st.row[st.txn[t].row].start = st.reg[0].now
        enter(st, s.SUBMIT, t, 0, st.cfg[0].submit, s.SUBMITTED)
    elif step == s.SUBMITTED:
        fe = s.station(st, st.txn[t].dev, s.FRONTEND)
        enter(st, fe, t, 0, st.cfg[0].command, s.FETCHED)
    elif step == s.FETCHED:
        fetched(st, t)
    else:
        u = flows.after_station(st, t)
        if u >= 0:
            release(st, u)


@njit
def channel(st, b):
    """Channel ``b`` has something to do: what its dies have finished goes on its way."""
    nand.touch(st, b)
    t = nand.finished(st, b)
    while t >= 0:
        while t >= 0:
            following = st.txn[t].mate
            st.txn[t].mate = -1
            u = flows.after_flash(st, t)
            if u >= 0:
                release(st, u)
            t = following
        t = nand.finished(st, b)


@njit
def run(st, until, max_events, want_room):
    """Act on events in order of time, up to ``until`` ps and ``max_events`` events.

    Pauses when the ring has room for ``want_room`` rows (0: never) or the log is nearly full.
    Returns the number of events. The clock stays at the last event.
    """
    reg = st.reg[0]
    # Reads of unmapped pages are logged as they start, each with a transaction of its own;
    # everything else that is logged is one entry per event.
    log_limit = st.log.shape[0] - st.txn.shape[0]
    n = 0
    start_ready(st)
    nand.settle(st)
    while n < max_events and reg.error == 0:
        if want_room > 0 and room(st) >= want_room:
            break
        if reg.log_on != 0 and reg.logged > log_limit:
            break
        leaf = st.tree[1]
        time = st.key[1]
        if time > until or time >= NEVER:
            break
        reg.now = time
        n += 1
        if leaf < reg.station0:
            channel(st, leaf)
        else:
            left(st, leave(st, leaf - reg.station0))
        while reg.retry > 0:
            dev = reg.retry - 1
            reg.retry = 0
            flows.retry_stalled(st, dev)
        start_ready(st)
        nand.settle(st)
    reg.events += n
    return n
