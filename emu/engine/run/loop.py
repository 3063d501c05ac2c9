"""Event loop and start of plan rows.

Owns the start of every kind of row, the budget of transactions and the event loop, which handles
events in order of time. Does not own the data paths inside a device (engine/run/datapath.py) or the
dependencies of rows (engine/core/plan_rows.py).
Source: the plan format (engine/core/plan_rows.py); the tournament tree (engine/core/events.py).
"""

from __future__ import annotations

from ondie.emu.clock import NEVER
from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    COMMANDS_DONE,
    ISP_BYTES,
    ISP_READ_BYTES,
    ISP_WRITE_BYTES,
    UP_BYTES,
)
from ondie.emu.engine.core.error_codes import E_PAST_END, E_POOL, E_RESOURCE, E_TIME
from ondie.emu.engine.core.events import (
    CACHED,
    REQUEST,
    enter,
    fail,
    give_txn,
    go,
    leave,
    next_to_go,
    register,
    take_last_to_go,
)
from ondie.emu.engine.core.payload_log import LOG_ROW, log
from ondie.emu.engine.core.plan_rows import (
    ACCELERATOR,
    DIE,
    DMA_DOWN,
    DMA_UP,
    HOST_CPU,
    ISP,
    ISP_IO,
    JOIN,
    NVME,
    TUNNEL,
    advance,
    complete,
    room,
)
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.run import completion, datapath
from ondie.emu.engine.run.start_die import pages_of_bytes, start_die, take_part
from ondie.emu.engine.run.start_transfer import (
    MAX_PIECES,
    occupy_station,
    start_dma_down,
    start_message,
)
from ondie.emu.ftl import (
    padding,
    refresh,
    transfers,
)
from ondie.emu.nand import channel, event_order, phase_end, polling, timing
from ondie.emu.nand.die import POLLED, touch_channel
from ondie.emu.nvme import (
    command,
    command_split,
    data_cache,
    idle_timer,
    queue_pair,
)
from ondie.kernels.jit import apart, cold, njit

STEPPED = 1 << 12
"""Number of events handled one at a time at the end of a call of :func:`run`, so that the call ends
exactly at the requested event.
"""


@njit
def start_ready(st):
    """Start ready plan rows in order, until the budget has too few transactions for the next
    row."""
    reg = st.reg[0]
    while reg.ready_head >= 0 and reg.error == 0 and reg.halted == 0:
        rid = reg.ready_head
        if st.row[rid].resource > NVME and not reserve_transactions(st, rid):
            break
        reg.ready_head = st.row[rid].next
        if st.row[rid].resource == JOIN:
            st.row[rid].start = reg.now
            complete(st, rid)
            if st.row[rid].id == reg.tail:
                advance(st)
        elif st.row[rid].resource == NVME:
            command.wait_for_slot(st, st.row[rid].device, rid)
            admit_commands(st, st.row[rid].device)
        else:
            start_row(st, rid)
    if reg.starved != 0:
        reg.starved = 0
        for dev in range(st.dev.shape[0]):
            admit_commands(st, dev)
        for queue in range(st.pair.shape[0]):
            queue_pair.issue(st, queue)


@njit
def transactions_needed(st, rid):
    """Return the maximum number of transactions that row ``rid`` may need at the same time.

    NVMe and ISP commands: one, plus one per page (TRIM: one). DMA down: MAX_PIECES. DMA up: one,
    plus one per piece. BPP (with the preceding erase), VPP and computation (with their DRAM
    traffic): two. Programs by the controller (with erase and DRAM traffic): three. Tunnel messages:
    five.
    """
    row = st.row[rid]
    if row.resource == NVME or row.resource == ISP_IO:
        if row.kind == command.TRIM:
            return 1
        return 1 + pages_of_bytes(st, row.bytes_in + row.bytes_out)
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
def reserve_transactions(st, rid):
    """Reserve the transactions that row ``rid`` may need. Return False if the budget has too few
    transactions.

    The reservation ensures that the pool never becomes empty in the middle of a command. A row that
    needs more transactions than the whole budget is an error (E_POOL).
    """
    reg = st.reg[0]
    need = transactions_needed(st, rid)
    if need > reg.budget:
        if need > st.cfg[0].budget:
            fail(st, E_POOL, need, st.cfg[0].budget)
        return False
    reg.budget -= need
    return True


@njit
def admit_commands(st, dev):
    """Submit waiting host commands to drive ``dev``, up to the queue depth."""
    reg = st.reg[0]
    while reg.error == 0:
        rid = command.next_admissible(st, dev)
        if rid < 0:
            return
        if not reserve_transactions(st, rid):
            reg.starved = 1
            return
        command.admit_next(st, dev)
        tid = take_part(st, rid)
        txn = st.txn[tid]
        row = st.row[rid]
        row.start = reg.now
        txn.size = row.bytes_in + row.bytes_out
        st.command[tid].offset = 0
        txn.n = pages_of_bytes(st, txn.size)
        txn.op = timing.READ if row.kind == command.READ else timing.PROGRAM
        if row.kind >= command.TRIM:
            txn.n = row.bytes_in // st.cfg[0].page_bytes
            txn.size = 0
            txn.op = timing.OTHER
            txn.role = Role.TRIMMING if row.kind == command.TRIM else Role.NONE
        if txn.lpn < 0 or txn.lpn + txn.n > st.cfg[0].lpns:
            fail(st, E_PAST_END, txn.lpn, txn.n)
            return
        if row.array_ps > reg.now:
            timer = stages.station(st, dev, stages.TIMER)
            gap = max(row.array_ps - max(reg.now, st.fifo[timer].free_at), 0)
            if enter(st, timer, tid, 0, gap, stages.ARRIVED):
                st.use[txn.phase, reg.fifo0 + timer] -= gap  # waiting is not busy time
            else:
                go(st, tid, stages.ARRIVED)
        else:
            submit_command(st, tid)


@njit
def submit_command(st, tid):
    """Write the submission queue entry of a command. The write occupies station SUBMIT of the
    host."""
    st.row[st.txn[tid].row].start = st.reg[0].now
    if not enter(st, stages.SUBMIT, tid, 0, st.cfg[0].submit, stages.SUBMITTED):
        go(st, tid, stages.SUBMITTED)


@njit
def start_row(st, rid):
    """Start plan row ``rid``, which is not an NVMe command."""
    row = st.row[rid]
    dev = row.device
    row.start = st.reg[0].now
    tid = take_part(st, rid)
    if row.resource == ISP_IO:
        start_isp_io(st, rid, tid)
    elif row.resource == DIE:
        start_die(st, rid, tid)
    elif row.resource == DMA_DOWN:
        start_dma_down(st, rid, tid)
    elif row.resource == DMA_UP:
        st.command[tid].bytes_left = row.bytes_out
        st.count[dev, UP_BYTES] += row.bytes_out
        transfers.next_piece(st, tid, stages.DMA_READY)
    elif row.resource == HOST_CPU:
        occupy_station(st, stages.CPU, tid, row.array_ps)
    elif row.resource == ACCELERATOR:
        occupy_station(st, stages.ACCELERATOR, tid, row.array_ps)
    elif row.resource == ISP:
        size = row.bytes_in + row.bytes_out
        st.count[dev, ISP_BYTES] += size
        occupy_station(st, stages.station(st, dev, stages.ISP), tid, row.array_ps)
        if size > 0:
            other = take_part(st, rid)
            st.command[other].bytes_left = size
            transfers.next_piece(st, other, stages.TRAFFIC_PIECE)
    elif row.resource == TUNNEL:
        start_message(st, rid, tid)
    else:
        fail(st, E_RESOURCE, row.id, row.resource)


@njit
def start_isp_io(st, rid, tid):
    """Start a read or write of the conventional namespace by the ISP. The access bypasses the front
    end and NVMe.
    """
    cfg = st.cfg[0]
    row = st.row[rid]
    txn = st.txn[tid]
    txn.size = row.bytes_in + row.bytes_out
    st.command[tid].offset = 0
    txn.n = pages_of_bytes(st, txn.size)
    txn.op = timing.READ if row.kind == command.READ else timing.PROGRAM
    if txn.lpn < 0 or txn.lpn + txn.n > cfg.lpns:
        fail(st, E_PAST_END, txn.lpn, txn.n)
        return
    if row.kind == command.READ:
        st.count[row.device, ISP_READ_BYTES] += txn.size
        command_split.cut_read(st, tid)
    else:
        st.count[row.device, ISP_WRITE_BYTES] += txn.size
        command_split.cut_write(st, tid, stages.ISP_WRITE_FETCHED)
    finish_part(st, tid)


@apart
def finish_part(st, tid):
    """Finish transaction ``tid`` of a plan row or host request. If it was the last unfinished
    transaction of the row or request, complete the row or request.
    """
    if st.txn[tid].kind == REQUEST:
        queue_pair.on_part_done(st, tid)
        return
    rid = st.txn[tid].row
    row = st.row[rid]
    give_txn(st, tid)
    row.pending -= 1
    if row.pending > 0:
        return
    reg = st.reg[0]
    dev = row.device
    reg.budget += transactions_needed(st, rid)
    if row.resource == NVME:
        st.dev[dev].outstanding -= 1
        if st.cfg[0].cache_idle != 0:
            data_cache.schedule_deferred(st, dev)
        st.count[dev, COMMANDS_DONE] += 1
    elif (
        row.resource >= DMA_DOWN and row.tag > 0
    ):  # lpn and tag: first parameter and number of parameters
        log(st, LOG_ROW, tid, row.lpn, -1, row.tag, row.resource, dev, -1)
    complete(st, rid)
    if row.id == reg.tail:
        advance(st)
    if row.resource == NVME:
        admit_commands(st, dev)
        if st.cfg[0].fold_idle != 0:
            idle_timer.start_idle(st, dev)


@cold
def register_next(st, leaf):
    """Register the next event of station ``leaf``, after the station's last event has been
    handled.
    """
    if st.fifo[leaf - st.reg[0].station0].head >= 0:
        register(st, leaf)


@njit
def on_station_left(st, tid):
    """Advance transaction ``tid``, whose service at a station has ended."""
    if st.txn[tid].step == stages.ARRIVED:
        submit_command(st, tid)
        return
    finished = datapath.travel(st, tid)
    if finished >= 0:
        finish_part(st, finished)


@apart
def on_channel_event(st, bus):
    """Advance the transactions whose flash commands have finished on channel ``bus``."""
    touch_channel(st, bus)
    while phase_end.is_due(st, bus):
        tid = phase_end.next_finished(st, bus)
        while tid >= 0:
            following = st.txn[tid].mate
            st.txn[tid].mate = -1
            finished = completion.on_flash_done(st, tid)
            if finished >= 0:
                finish_part(st, finished)
            tid = following


@cold
def on_first_of_channel(st, bus):
    """Handle the first of the simultaneous events of channel ``bus``, and everything that follows
    from it at the same time.

    Until this handling ends, the die and the channel of the finished command accept no other
    command.
    """
    kind = event_order.first_due(st, bus)[1]
    die, tid = event_order.begin_event(st, bus, kind)
    while tid >= 0:
        following = st.txn[tid].mate
        st.txn[tid].mate = -1
        finished = completion.on_flash_done(st, tid)
        if finished >= 0:
            finish_part(st, finished)
        drain(st, -1)
        tid = following
    if die >= 0:
        event_order.end_event(st, bus, kind, die)


@cold
def place_cached(st, tid):
    """Advance transaction ``tid`` of the data cache, in a drive with ordered events.

    A write is queued at its die as soon as a page is allocated to the write. The data cache submits
    its writes in groups. After the last write of a group, the channels are granted before the next
    group is submitted.
    """
    reg = st.reg[0]
    last = st.txn[tid].step == stages.WRITE_IN_DRAM and st.txn[tid].gathered != 0
    on_station_left(st, tid)
    if reg.go_head >= 0 and reg.go_tail == tid and st.txn[tid].step == stages.ENCODED:
        on_station_left(st, take_last_to_go(st))
    if last:
        channel.finish_event(st)


@apart
def drain(st, tid):
    """Do all work that takes no simulated time.

    Advance transaction ``tid`` (if >= 0), then the other transactions that can advance. Then retry
    writes that waited for a free block, and start ready rows. Finally grant the channels.
    """
    reg = st.reg[0]
    while reg.error == 0:
        if tid < 0:
            tid = next_to_go(st)
        if tid >= 0:
            if st.cfg[0].ordered != 0 and st.txn[tid].kind == CACHED:
                place_cached(st, tid)
            else:
                on_station_left(st, tid)
            tid = -1
        elif reg.retries > 0:
            reg.retries -= 1
            other = st.retry[reg.retries]
            st.pool[other].retry = 0
            completion.check_unit(st, other // st.cfg[0].units, other)
        elif reg.ready_head >= 0 or reg.starved != 0:
            before = reg.budget
            start_ready(st)
            if reg.go_head < 0 and reg.budget == before:
                break
        else:
            break
    channel.finish_event(st)


@njit
def run(st, until, max_events, want_room):
    """Handle events in order of time, up to ``until`` ps and ``max_events`` events.

    Pause when the ring has room for ``want_room`` rows (0: never), when a queue pair has issued all
    loaded requests and needs more requests, when the wanted number of requests has completed, or
    when the log is more than half full. Return the number of events handled. The clock stays at the
    time of the last event.
    """
    reg = st.reg[0]
    # Each log record belongs to a transaction, which returns to the pool only later.
    log_limit = st.log.shape[0] // 2
    count = 0
    reg.until = until
    stepped = max_events - STEPPED
    reg.fast = int(stepped > 0)
    reg.hops = 0
    gathers = st.cfg[0].line > 1
    upkeep = st.cfg[0].upkeep
    if upkeep != 0:
        reg.until = min(until, reg.upkeep)
    ranked = st.cfg[0].ranked
    ordered = st.cfg[0].ordered
    if ordered != 0:
        reg.fast = 0
    start_ready(st)
    tid = -1
    left = -1
    while True:
        drain(st, tid)
        if left >= 0:
            register_next(st, left)
            left = -1
        if count + reg.hops >= max_events or reg.error != 0:
            break
        if want_room > 0 and room(st) >= want_room:
            break
        if reg.pause != 0 or (reg.log_on != 0 and reg.logged > log_limit):
            break
        if gathers and padding.pad_at_rest(st):
            count += 1
            tid = -1
            continue
        if ranked == POLLED and ordered == 0 and st.key[1] >= NEVER and polling.look_again(st):
            count += 1
            tid = -1
            continue
        leaf = st.tree[1]
        time = st.key[1]
        if time > reg.until or time >= NEVER:
            if upkeep != 0 and refresh.start_due(st, until):
                count += 1
                tid = -1
                continue
            if time > until or time >= NEVER:
                break
        if time < reg.now:
            fail(st, E_TIME, leaf, time)
            break
        reg.now = time
        if ordered != 0:
            leaf = event_order.first_leaf(st, time)
        count += 1
        if count + reg.hops > stepped:
            reg.fast = 0
        tid = -1
        if leaf < reg.station0:
            if ordered != 0:
                on_first_of_channel(st, leaf)
            else:
                on_channel_event(st, leaf)
        elif leaf < reg.pair0:
            tid = leave(st, leaf - reg.station0)
            if ordered != 0:
                left = leaf
        elif leaf < reg.gather0:
            queue_pair.issue(st, leaf - reg.pair0)
        else:
            padding.pad_overdue(st, leaf - reg.gather0)
    count += reg.hops
    reg.events += count
    return count
