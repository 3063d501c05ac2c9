"""Plan rows: the ring of rows in flight, what each waits for, and what it starts.

Owns the plan's columns, dependencies, phases and the start and end of every row. Does not own the
routes inside a device (flows.py) or what a row is for (paths/).
Source: this project's contract of plans: columnar chunks; ``after`` names earlier rows or a fence.
"""

from __future__ import annotations

import numpy as np

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
from ondie.emu.state import record_type
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

# Resources a row may name.
(
    FENCE,  # done when every earlier row is done
    JOIN,  # done when the rows it names are done
    NVME,  # host command: kind READ, WRITE, TRIM, FLUSH
    ISP_IO,  # the ISP's own command on the conventional namespace: kind READ, WRITE
    DIE,  # operation on the dies' reservoir: kind VPP, BPR, ODC, BPP, READ
    DMA_DOWN,  # host memory to device DRAM: bytes_in
    DMA_UP,  # device DRAM to host memory: bytes_out
    HOST_CPU,  # array_ps on the host's CPU
    ACCELERATOR,  # array_ps on what runs forward and backward
    ISP,  # array_ps on the ISP, while bytes_in + bytes_out cross the device's DRAM
    TUNNEL,  # bytes_in through the device's tunnel: kind UPWARD or DOWNWARD
) = range(11)  # fmt: skip
RESOURCE_NAMES = (
    "fence", "join", "nvme", "isp_io", "die", "dma_down", "dma_up", "host_cpu", "accelerator",
    "isp", "tunnel",
)  # fmt: skip

UPWARD, DOWNWARD = range(2)

PLAN = np.dtype(
    [
        ("id", "i8"),  # consecutive from 0
        ("device", "i4"),
        ("resource", "i4"),
        ("kind", "i4"),
        ("phase", "i4"),  # index into the path's phases
        ("lpn", "i8"),  # first logical page, or super-page for the reservoir
        ("bytes_in", "i8"),  # into the device, its registers or its array
        ("bytes_out", "i8"),  # out of them
        ("array_ps", "i8"),  # compute or PE time; arrival time of an NVMe command
        ("after0", "i8"),  # id of an earlier row, -1 = none
        ("after1", "i8"),
        ("tag", "i8"),  # the path's own
    ],
    align=True,
)
MAX_CHUNK = 1 << 18

ROW = record_type(
    id="i8",
    lpn="i8",
    bytes_in="i8",
    bytes_out="i8",
    array_ps="i8",
    tag="i8",
    start="i8",
    end="i8",
    next="i8",  # in the ready list or the submission queue
    waiters="i8",  # first in the list of rows that wait for this one, -1 = none
    last_waiter="i8",
    device="i4",
    resource="i4",
    kind="i4",
    phase="i4",
    needs="i4",  # rows this one still waits for
    pending="i4",  # transactions under way for it
    state="i4",
    pad="i4",
)
WAITING, STARTED, DONE = range(3)
PHASE = record_type(first="i8", last="i8", rows="i8", done="i8")
MAX_PIECES = 64
"""Pieces that one row sends down the link at most."""


@njit
def room(st):
    """Rows that the ring can take now."""
    reg = st.reg[0]
    return st.row.shape[0] - (reg.next_row - reg.tail)


@njit
def load(st, plan):
    """Take over a chunk of plan rows. The caller has made sure that there is room."""
    reg = st.reg[0]
    ring = st.row.shape[0] - 1
    for i in range(plan.shape[0]):
        p = plan[i]
        r = p.id & ring
        row = st.row[r]
        row.id = p.id
        row.device = p.device
        row.resource = p.resource
        row.kind = p.kind
        row.phase = p.phase
        row.lpn = p.lpn
        row.bytes_in = p.bytes_in
        row.bytes_out = p.bytes_out
        row.array_ps = p.array_ps
        row.tag = p.tag
        row.start = -1
        row.end = -1
        row.waiters = -1
        row.needs = 0
        row.pending = 0
        row.state = WAITING
        st.phase[p.phase].rows += 1
        reg.next_row = p.id + 1
        for k in range(2):
            after = p.after0 if k == 0 else p.after1
            if after >= reg.tail and st.row[after & ring].state != DONE:
                other = st.row[after & ring]
                st.wait[2 * r + k] = -1
                if other.waiters < 0:
                    other.waiters = 2 * r + k
                else:
                    st.wait[other.last_waiter] = 2 * r + k
                other.last_waiter = 2 * r + k
                row.needs += 1
        if row.needs == 0 and p.resource != FENCE:
            make_ready(st, r)
    advance(st)


@njit
def make_ready(st, r):
    """Row ``r`` has what it waited for: behind the others that have."""
    reg = st.reg[0]
    st.row[r].next = -1
    if reg.ready_head < 0:
        reg.ready_head = r
    else:
        st.row[reg.ready_tail].next = r
    reg.ready_tail = r


@njit
def complete(st, r):
    """Row ``r`` is done: whoever waited for it may be ready now, in the order of the plan."""
    reg = st.reg[0]
    row = st.row[r]
    row.state = DONE
    row.end = reg.now
    phase = st.phase[row.phase]
    phase.done += 1
    if row.resource > JOIN:
        phase.first = min(phase.first, row.start)
        phase.last = max(phase.last, row.end)
    entry = row.waiters
    while entry >= 0:
        following = st.wait[entry]
        w = entry >> 1
        st.row[w].needs -= 1
        if st.row[w].needs == 0 and st.row[w].resource != FENCE:
            make_ready(st, w)
        entry = following
    row.waiters = -1


@njit
def advance(st):
    """Move past the oldest rows that are done; a fence that becomes the oldest is done with it."""
    reg = st.reg[0]
    ring = st.row.shape[0] - 1
    while reg.tail < reg.next_row:
        r = reg.tail & ring
        row = st.row[r]
        if row.state != DONE:
            if row.resource != FENCE:
                return
            row.start = reg.now
            complete(st, r)
        reg.tail += 1


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
    """Transactions that row ``r`` may need at once: one per page and one for itself, one per piece,
    or two (a BPP with the erase before it, a VPP or a computation with its DRAM traffic)."""
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
            gap = row.array_ps - max(reg.now, st.fifo[s.TIMER].free_at)
            enter(st, s.TIMER, t, 0, max(gap, 0), s.ARRIVED)
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
        lpn = x.lpn
        while lpn < x.lpn + x.n:
            n = min(x.lpn + x.n - lpn, c.planes)
            u = controller.child(st, t, lpn, n)
            if u < 0:
                return
            y = st.txn[u]
            y.size = controller.bytes_of(st, t, lpn, n)
            dram = s.station(st, row.device, s.DRAM)
            enter(st, dram, u, y.size, -1, s.ISP_WRITE_IN_DRAM)
            lpn += n
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
        nand.push(st, g, t)
    elif row.kind == timing.READ:
        x.size = row.bytes_out
        x.bus = row.bytes_out
        st.count[dev, RESERVOIR_READ_PAGES] += x.n
        st.count[dev, RESERVOIR_UP_BYTES] += x.size
        st.count[dev, ARRAY_READS] += 1
        nand.push(st, g, t)
    else:
        if row.kind == timing.BPP:
            x.ppn = mapping.reservoir_open(st, dev, row.lpn)
        nand.push_pe(st, g, t)


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
    elif row.resource >= DMA_DOWN:  # lpn and tag are its first parameter and their number
        log(st, LOG_ROW, r, row.lpn, -1, row.tag, row.resource, dev, -1)
    complete(st, r)
    if row.id == reg.tail:
        advance(st)
    if row.resource == NVME:
        admit(st, dev)


@njit
def fetched(st, t):
    """The front end has fetched and decoded a command: do what it says."""
    c = st.cfg[0]
    x = st.txn[t]
    row = st.row[x.row]
    dev = row.device
    st.count[dev, COMMANDS] += 1
    if row.kind == queues.READ:
        st.count[dev, HOST_READ_BYTES] += x.size
        controller.cut_read(st, t, flows.HOST_PASSES)
    elif row.kind == queues.WRITE:
        st.count[dev, HOST_WRITE_BYTES] += x.size
        lpn = x.lpn
        while lpn < x.lpn + x.n:
            n = min(x.lpn + x.n - lpn, c.planes)
            u = controller.child(st, t, lpn, n)
            if u < 0:
                return
            y = st.txn[u]
            y.size = controller.bytes_of(st, t, lpn, n)
            if c.shared_uplink != 0:
                enter(st, s.UPLINK_DOWN, u, y.size, -1, s.UPLINK_DOWN_DONE)
            else:
                enter(st, s.station(st, dev, s.DOWN), u, y.size, -1, s.DOWN_DONE)
            lpn += n
    elif row.kind == queues.TRIM:
        controller.cut_trim(st, t)
        flows.hunt(st, dev)
    release(st, t)


@njit
def left(st, t):
    """Transaction ``t`` has left a station."""
    step = st.txn[t].step
    if step == s.ARRIVED:
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
    while n < max_events and reg.error == 0:
        if want_room > 0 and room(st) >= want_room:
            break
        if reg.log_on != 0 and reg.logged > log_limit:
            break
        leaf = st.tree[1]
        time = st.leaf[leaf]
        if time > until or time >= NEVER:
            break
        reg.now = time
        n += 1
        if leaf < reg.bus0:
            t = flows.after_array(st, leaf)
            if t >= 0:
                release(st, t)
        elif leaf < reg.fifo0:
            t = flows.after_bus(st, leaf - reg.bus0)
            if t >= 0:
                release(st, t)
        else:
            left(st, leave(st, leaf - reg.fifo0))
        while reg.retry > 0:
            dev = reg.retry - 1
            reg.retry = 0
            flows.retry_stalled(st, dev)
        start_ready(st)
    reg.events += n
    return n
