"""Event loop, and the start of plan rows.

Owns the start of every kind of row, the budget of transactions and the event loop, which handles
events in order of time. Does not own the routes inside a device (engine/run/datapath.py) or the
dependencies of rows (engine/core/plan_rows.py).
Source: the plan format (engine/core/plan_rows.py); the tournament tree (engine/core/events.py).
"""

from __future__ import annotations

from ondie.emu.clock import NEVER
from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.counters import (
    ARRAY_READS,
    COMMANDS_DONE,
    DOWN_BYTES,
    ISP_BYTES,
    ISP_READ_BYTES,
    ISP_WRITE_BYTES,
    LIFTED_PAGES,
    LOAD_BYTES,
    RESERVOIR_READ_PAGES,
    RESERVOIR_UP_BYTES,
    SCAN_BYTES,
    TUNNEL_BYTES,
    TUNNEL_COMMANDS,
    TUNNEL_WIRE_BYTES,
    UP_BYTES,
)
from ondie.emu.engine.core.events import (
    E_PAST_END,
    E_POOL,
    E_RESOURCE,
    E_UNWRITTEN,
    GRADIENT,
    LOG_ROW,
    MADE,
    MOVED,
    REGISTERS,
    REQUEST,
    RESERVOIR,
    ROW,
    enter,
    fail,
    give_txn,
    go,
    leave,
    log,
    next_to_go,
    take_txn,
)
from ondie.emu.engine.core.plan_rows import (
    ACCELERATOR,
    ACROSS,
    DIE,
    DMA_DOWN,
    DMA_UP,
    DOWNWARD,
    HOST_CPU,
    ISP,
    ISP_IO,
    JOIN,
    NVME,
    STARTED,
    TUNNEL,
    advance,
    complete,
    room,
)
from ondie.emu.engine.run import datapath as flows
from ondie.emu.ftl import (
    completion as landing,
)
from ondie.emu.ftl import (
    padding,
    reservoir,
)
from ondie.emu.ftl import (
    transfers as passages,
)
from ondie.emu.ftl import (
    write_path as placing,
)
from ondie.emu.nand import channel as nand
from ondie.emu.nand import timing
from ondie.emu.nvme import (
    command as queues,
)
from ondie.emu.nvme import (
    command_split as controller,
)
from ondie.emu.nvme import (
    data_cache as cache,
)
from ondie.emu.nvme import (
    idle_timer as quiet,
)
from ondie.emu.nvme import (
    queue_pair as pairs,
)
from ondie.kernels.jit import apart, cold, njit

STEPPED = 1 << 12
"""Number of last events of a call that are stepped one by one, because each can be the last."""
MAX_PIECES = 64
"""Maximum number of pieces into which one row splits its transfer down the link."""


@njit
def start_ready(st):
    """Start the ready rows in order while the budget has transactions for them."""
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
        for q in range(st.pair.shape[0]):
            pairs.issue(st, q)


@njit
def cost(st, r):
    """Return the most transactions that row ``r`` may need at once.

    NVMe and ISP commands: one, plus one per page (TRIM: one). DMA down: MAX_PIECES. DMA up: one,
    plus one per piece. BPP (with the erase before it), VPP and computation (with their DRAM
    traffic): two. Programs by the controller (with both): three. Tunnel messages: five.
    """
    row = st.row[r]
    if row.resource == NVME or row.resource == ISP_IO:
        return 1 if row.kind == queues.TRIM else 1 + pages(st, row.bytes_in + row.bytes_out)
    if row.resource == DMA_DOWN:
        return MAX_PIECES
    if row.resource == DMA_UP:
        return 1 + row.bytes_out // st.cfg[0].piece
    if row.resource == DIE and row.kind >= timing.STORE:
        return 3
    if row.resource == TUNNEL:
        return 5
    return 2


@njit
def afford(st, r):
    """Reserve the transactions that row ``r`` may need. Return False if the budget has too few.

    The reservation ensures that the pool never runs dry in the middle of a command. A row that
    needs more than the whole budget is an error (E_POOL).
    """
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
        if row.kind >= queues.TRIM:
            x.n = row.bytes_in // st.cfg[0].page_bytes
            x.size = 0
            x.op = timing.OTHER
            x.bare = queues.TRIMMING if row.kind == queues.TRIM else 0
        if x.lpn < 0 or x.lpn + x.n > st.cfg[0].lpns:
            fail(st, E_PAST_END, x.lpn, x.n)
            return
        if row.array_ps > reg.now:
            timer = s.station(st, dev, s.TIMER)
            gap = max(row.array_ps - max(reg.now, st.fifo[timer].free_at), 0)
            if enter(st, timer, t, 0, gap, s.ARRIVED):
                st.use[x.phase, reg.fifo0 + timer] -= gap  # waiting is not busy time
            else:
                go(st, t, s.ARRIVED)
        else:
            submit(st, t)


@njit
def submit(st, t):
    """Write the submission queue entry of a command, which occupies the host CPU (SUBMIT)."""
    st.row[st.txn[t].row].start = st.reg[0].now
    if not enter(st, s.SUBMIT, t, 0, st.cfg[0].submit, s.SUBMITTED):
        go(st, t, s.SUBMITTED)


@njit
def work(st, station, t, time):
    """Occupy a station for ``time`` ps with transaction ``t``, whose part is then done."""
    if not enter(st, station, t, 0, time, s.PART_DONE):
        go(st, t, s.PART_DONE)


@njit
def pages(st, n_bytes):
    """Return the number of pages that hold ``n_bytes`` bytes, rounded up."""
    return (n_bytes + st.cfg[0].page_bytes - 1) // st.cfg[0].page_bytes


@njit
def part(st, r):
    """Take a transaction from the pool for row ``r`` and return it."""
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
    x.kind = ROW
    x.stream = row.stream
    x.old = 0
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
        passages.next_piece(st, t, s.DMA_READY)
    elif row.resource == HOST_CPU:
        work(st, s.CPU, t, row.array_ps)
    elif row.resource == ACCELERATOR:
        work(st, s.ACCELERATOR, t, row.array_ps)
    elif row.resource == ISP:
        size = row.bytes_in + row.bytes_out
        st.count[dev, ISP_BYTES] += size
        work(st, s.station(st, dev, s.ISP), t, row.array_ps)
        if size > 0:
            u = part(st, r)
            st.txn[u].left = size
            passages.next_piece(st, u, s.TRAFFIC_PIECE)
    elif row.resource == TUNNEL:
        start_message(st, r, t)
    else:
        fail(st, E_RESOURCE, row.id, row.resource)


@cold
def start_message(st, r, t):
    """Start a tunnel message: up from its drive, down to its drive, or across to another drive.

    At the same time the message occupies the host relay and, if the uplink is shared, the uplink,
    which all messages share. It is delivered when all of these are done.
    """
    row = st.row[r]
    dev = row.device
    m = st.message[row.stream]
    st.count[dev, TUNNEL_COMMANDS] += m.commands
    st.count[dev, TUNNEL_WIRE_BYTES] += m.wire_up + m.wire_down
    work(st, s.RELAY, part(st, r), m.relay)
    if st.cfg[0].shared_uplink != 0:
        for station, size in ((s.UPLINK_UP, m.wire_up), (s.UPLINK_DOWN, m.wire_down)):
            u = part(st, r)
            if not enter(st, station, u, size, -1, s.PART_DONE):
                go(st, u, s.PART_DONE)
    if row.kind == DOWNWARD:
        st.count[dev, TUNNEL_BYTES] += row.bytes_in
        down = s.station(st, dev, s.TUNNEL_DOWN)
        if not enter(st, down, t, row.bytes_in, m.body + m.tail, s.PART_DONE):
            go(st, t, s.PART_DONE)
        return
    st.count[dev, TUNNEL_BYTES] += row.bytes_in
    following = s.PART_DONE
    if row.kind == ACROSS:
        if row.lpn < 0 or row.lpn >= st.dev.shape[0]:
            fail(st, E_PAST_END, row.lpn, 1)
            return
        st.count[row.lpn, TUNNEL_BYTES] += row.bytes_in
        work(st, s.station(st, row.lpn, s.TUNNEL_DOWN), part(st, r), m.body)
        following = s.CROSSED
    if not enter(st, s.station(st, dev, s.TUNNEL_UP), t, row.bytes_in, m.up, following):
        go(st, t, following)


@njit
def start_dma_down(st, r, t):
    """Send bytes down the link in pieces, so that one piece enters DRAM while the next follows."""
    row = st.row[r]
    dev = row.device
    st.count[dev, DOWN_BYTES] += row.bytes_in
    piece = max(st.cfg[0].piece, row.bytes_in // MAX_PIECES + 1)
    left = row.bytes_in
    while True:
        x = st.txn[t]
        x.size = min(left, piece)
        left -= x.size
        if st.cfg[0].shared_uplink == 0:
            go(st, t, s.DMA_UPLINK_DONE)
        elif not enter(st, s.UPLINK_DOWN, t, x.size, -1, s.DMA_UPLINK_DONE):
            go(st, t, s.DMA_UPLINK_DONE)
        if left == 0:
            return
        t = part(st, r)


@njit
def start_isp_io(st, r, t):
    """Start an ISP read or write of the conventional namespace, bypassing front end and NVMe."""
    c = st.cfg[0]
    row = st.row[r]
    x = st.txn[t]
    x.size = row.bytes_in + row.bytes_out
    x.n = pages(st, x.size)
    x.op = timing.READ if row.kind == queues.READ else timing.PROGRAM
    if x.lpn < 0 or x.lpn + x.n > c.lpns:
        fail(st, E_PAST_END, x.lpn, x.n)
        return
    if row.kind == queues.READ:
        st.count[row.device, ISP_READ_BYTES] += x.size
        controller.cut_read(st, t)
    else:
        st.count[row.device, ISP_WRITE_BYTES] += x.size
        controller.cut_write(st, t, s.ISP_WRITE_FETCHED)
    release(st, t)


@njit
def start_die(st, r, t):
    """Start an operation on the reservoir, given by logical super-page (``row.lpn``).

    Derives the die and the physical super-page. SCAN and PAD are given by physical super-page (see
    :func:`start_by_place`).
    """
    c = st.cfg[0]
    row = st.row[r]
    x = st.txn[t]
    dev = row.device
    if row.kind == timing.SCAN or row.kind == timing.PAD:
        start_by_place(st, r, t)
        return
    if row.lpn < 0 or row.lpn >= st.rmap.shape[1]:
        fail(st, E_PAST_END, row.lpn, 1)
        return
    g = dev * c.dies + row.lpn % c.dies
    x.op = row.kind
    x.die = g
    x.n = pages(st, row.bytes_in + row.bytes_out)
    x.array = row.array_ps
    x.bare = RESERVOIR
    x.ppn = int(st.rmap[dev, row.lpn]) - 1
    if x.ppn < 0 and (row.kind == timing.BPR or row.kind == timing.READ):
        fail(st, E_UNWRITTEN, row.lpn, g)
        return
    if row.kind >= timing.RECALL:
        start_help(st, r, t)
    elif row.kind == timing.VPP:
        x.bus = row.bytes_in
        st.count[dev, LOAD_BYTES] += row.bytes_in
        # Data stream from DRAM to the channel: both are occupied at the same time.
        u = part(st, r)
        st.txn[u].left = row.bytes_in
        passages.next_piece(st, u, s.TRAFFIC_PIECE)
        nand.push(st, g, t, nand.Q_LOAD)
    elif row.kind == timing.READ:
        x.old = reservoir.turned(st, g, x.ppn)
        x.size = row.bytes_out
        x.bus = row.bytes_out
        st.count[dev, RESERVOIR_READ_PAGES] += x.n
        st.count[dev, RESERVOIR_UP_BYTES] += x.size
        st.count[dev, ARRAY_READS] += 1
        nand.push(st, g, t, nand.Q_READ)
    else:
        x.bus = row.bytes_out  # bytes that cross the channel, if any
        if row.kind == timing.BPP:
            source = x.ppn
            x.ppn = reservoir.open_place(st, dev, row.lpn)
            if source >= 0 and st.cfg[0].rotate > 0:
                reservoir.change_planes(st, t, source)
        nand.push(st, g, t, nand.Q_PE)


@cold
def start_help(st, r, t):
    """Start a reservoir operation with the controller's help (timing.RECALL to timing.LAND).

    Moves data between the controller's DRAM and the die's registers, and programs data that the
    controller has encoded.
    """
    row = st.row[r]
    x = st.txn[t]
    dev = row.device
    x.size = row.bytes_in + row.bytes_out
    x.bus = x.size
    if row.kind == timing.RECALL:
        x.op = timing.BPR
        x.left = 1  # the gradient is sensed with the super-page
        if x.ppn < 0:
            fail(st, E_UNWRITTEN, row.lpn, x.die)
        nand.push(st, x.die, t, nand.Q_PE)
        return
    if row.kind == timing.LIFT:
        x.op = timing.READ
        if x.ppn < 0:
            fail(st, E_UNWRITTEN, row.lpn, x.die)
            return
        x.old = reservoir.turned(st, x.die, x.ppn)
        x.left = 1  # the data do not go to the host
        st.count[dev, LIFTED_PAGES] += x.n
        st.count[dev, ARRAY_READS] += 1
        nand.push(st, x.die, t, nand.Q_READ)
        return
    if row.kind == timing.FETCH:
        x.op = timing.READ
        x.bare = REGISTERS
        x.array = -st.op[timing.READ].array  # no array operation
        nand.push(st, x.die, t, nand.Q_PE)
        return
    u = part(st, r)  # data stream from DRAM to the channel: both are occupied
    st.txn[u].left = row.bytes_in
    passages.next_piece(st, u, s.TRAFFIC_PIECE)
    x.op = timing.PROGRAM
    if row.kind == timing.KEEP:
        x.bare = GRADIENT
        if x.ppn < 0:
            fail(st, E_UNWRITTEN, row.lpn, x.die)
    elif row.kind == timing.BESIDE:
        x.bare = MADE  # its physical super-page is assigned when it is programmed
    else:
        x.bare = RESERVOIR
        x.ppn = reservoir.open_place(st, dev, row.lpn)
    if row.kind == timing.LAND:
        x.bare = MOVED
        x.old = row.tag  # source super-page
        if x.old < 0 or x.old >= st.rmap.shape[1] or st.rmap[dev, x.old] == 0:
            fail(st, E_UNWRITTEN, x.old, x.die)
            return
        if st.cfg[0].round_trip == 0:  # no parity except that of the die
            go(st, t, s.ENCODED)
            return
    if not passages.encode(st, t, s.ENCODED):
        go(st, t, s.ENCODED)


@cold
def start_by_place(st, r, t):
    """Start a reservoir operation (SCAN or PAD) given by physical super-page.

    ``row.lpn`` counts the physical super-pages round-robin over the dies.
    """
    c = st.cfg[0]
    row = st.row[r]
    x = st.txn[t]
    dev = row.device
    g = dev * c.dies + row.lpn % c.dies
    x.ppn = row.lpn // c.dies
    x.die = g
    x.n = pages(st, row.bytes_in + row.bytes_out)
    x.bare = RESERVOIR
    if row.lpn < 0 or x.ppn >= c.reservoir_pages:
        fail(st, E_PAST_END, row.lpn, 1)
        return
    if row.kind == timing.PAD:
        x.op = timing.BPP
        nand.push(st, g, t, nand.Q_PE)
        return
    x.op = timing.READ
    x.size = row.tag
    x.bus = row.tag
    st.count[dev, RESERVOIR_READ_PAGES] += x.n
    st.count[dev, SCAN_BYTES] += x.size
    st.count[dev, ARRAY_READS] += 1
    nand.push(st, g, t, nand.Q_READ)


@apart
def release(st, t):
    """Finish one part of a row or request. After the last part, complete the row or request."""
    if st.txn[t].kind == REQUEST:
        pairs.part_done(st, t)
        return
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
        if st.cfg[0].cache_idle != 0:
            cache.later(st, dev)
        st.count[dev, COMMANDS_DONE] += 1
    elif (
        row.resource >= DMA_DOWN and row.tag > 0
    ):  # lpn and tag: first parameter and number of parameters
        log(st, LOG_ROW, r, row.lpn, -1, row.tag, row.resource, dev, -1)
    complete(st, r)
    if row.id == reg.tail:
        advance(st)
    if row.resource == NVME:
        admit(st, dev)
        if st.cfg[0].fold_idle != 0:
            quiet.begins(st, dev)


@njit
def left(st, t):
    """Handle transaction ``t`` after it has left a station."""
    if st.txn[t].step == s.ARRIVED:
        submit(st, t)
        return
    u = flows.travel(st, t)
    if u >= 0:
        release(st, u)


@apart
def channel(st, b):
    """Handle an event of channel ``b``: advance the transactions of finished flash commands."""
    nand.touch(st, b)
    while nand.due(st, b):
        t = nand.finished(st, b)
        while t >= 0:
            following = st.txn[t].mate
            st.txn[t].mate = -1
            u = landing.after_flash(st, t)
            if u >= 0:
                release(st, u)
            t = following


@apart
def drain(st, t):
    """Do all work that takes no simulated time.

    Advance transaction ``t`` (if >= 0), then the other transactions that can advance, then writes
    that waited for a free block, then ready rows. Last, the channels grant.
    """
    reg = st.reg[0]
    while reg.error == 0:
        if t < 0:
            t = next_to_go(st)
        if t >= 0:
            left(st, t)
            t = -1
        elif reg.retries > 0:
            reg.retries -= 1
            u = st.retry[reg.retries]
            st.pool[u].retry = 0
            placing.retry_stalled(st, u // st.cfg[0].units, u)
        elif reg.ready_head >= 0 or reg.starved != 0:
            before = reg.budget
            start_ready(st)
            if reg.go_head < 0 and reg.budget == before:
                break
        else:
            break
    nand.settle(st)


@njit
def run(st, until, max_events, want_room):
    """Handle events in order of time, up to ``until`` ps and ``max_events`` events.

    Pauses when the ring has room for ``want_room`` rows (0: never), when a queue pair has issued
    all loaded requests and needs more, or when the log is more than half full. Returns the number
    of events. The clock stays at the last event.
    """
    reg = st.reg[0]
    # Each log record belongs to a transaction, which returns to the pool only later.
    log_limit = st.log.shape[0] // 2
    n = 0
    reg.until = until
    stepped = max_events - STEPPED
    reg.fast = int(stepped > 0)
    reg.hops = 0
    gathers = st.cfg[0].line > 1
    start_ready(st)
    t = -1
    while True:
        drain(st, t)
        if n + reg.hops >= max_events or reg.error != 0:
            break
        if want_room > 0 and room(st) >= want_room:
            break
        if reg.thirsty != 0 or (reg.log_on != 0 and reg.logged > log_limit):
            break
        if gathers and padding.at_rest(st):
            n += 1
            t = -1
            continue
        leaf = st.tree[1]
        time = st.key[1]
        if time > until or time >= NEVER:
            break
        reg.now = time
        n += 1
        if n + reg.hops > stepped:
            reg.fast = 0
        t = -1
        if leaf < reg.station0:
            channel(st, leaf)
        elif leaf < reg.pair0:
            t = leave(st, leaf - reg.station0)
        elif leaf < reg.gather0:
            pairs.issue(st, leaf - reg.pair0)
        else:
            padding.overdue(st, leaf - reg.gather0)
    n += reg.hops
    reg.events += n
    return n
