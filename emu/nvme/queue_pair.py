"""Queue pairs: issue of host requests, open and closed loops, completion of requests.

Owns the rings of requests, open and closed loops, and the completion of a request. Does not own the
stages of a request in the drive (engine/run/datapath.py), the sources of requests (replay/) or
their record (request.py).
Source: NVMe base specification (submission and completion queues, doorbells; a completion contains
the number of entries that the drive has fetched). As in MQSim, a closed loop issues a new request
after each completion, and an open loop issues requests at their arrival time.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import COMMANDS_DONE
from ondie.emu.engine.core.error_codes import E_PAST_END, E_POOL
from ondie.emu.engine.core.events import (
    REQUEST,
    enter,
    fail,
    give_txn,
    go,
    register,
    rest,
    set_leaf,
    take_txn,
)
from ondie.emu.engine.core.intrinsics import prefetch
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.state import record_type
from ondie.emu.ftl.page_map import block_at
from ondie.emu.nand.timing import OTHER, PROGRAM, READ
from ondie.emu.nvme import (
    data_cache,
    idle_timer,
    sata_hba,
)
from ondie.emu.nvme.request import FLUSH, TRIM, WRITE
from ondie.kernels.jit import apart, cold, inline, njit

REQ = record_type(
    arrival="i8",  # ps
    start="i8",  # entry into the submission queue
    end="i8",  # arrival of the completion at the host
    offset="i8",  # bytes
    size="i8",  # bytes
    op="i4",  # request.READ, WRITE, TRIM or FLUSH
    stream="i4",
    pending="i4",  # transactions in flight
    done="i4",
    fua="i4",  # 1: a write completes when it is on flash, with or without data cache
    status="i4",  # status.Status; set to 0 when the request is loaded
)
EXTRA_PAGES = 2
"""Maximum number of additional pages that a request touches because it passes the end of its flow's
address range and is divided there (request_pieces.py)."""
AHEAD = 4
"""Prefetch distance: when request i is issued, the mapping entry of request i + AHEAD is prefetched
into the CPU cache of the simulator."""
PAIR = record_type(
    next="i8",  # index of the next request to issue, from the start of the run
    loaded="i8",  # requests loaded so far
    tail="i8",  # index of the oldest request that is not done
    outstanding="i8",
    depth="i8",  # largest number of outstanding requests
    closed="i8",  # 1: closed loop, a request arrives when there is room for it
    dev="i8",
    stream="i8",  # zone of the pair, and stream of its writes
    by_request="i8",  # 1: each request names the stream of its writes
    more="i8",  # 1: more requests will be loaded
    start="i8",  # ps; first issue of a closed loop
    stop="i8",  # ps; last time of issue
    fetched="i8",  # entries fetched by the drive, where queues have a size
    known="i8",  # fetched entries known to the host
    working="i8",  # commands that the drive executes
    held="i8",  # 1 + first transaction held because of fetch_limit, or 0
    held_last="i8",
)


@inline
def pages_of(st, req, zone):
    """Return (first page, byte offset in that page, number of pages) of a request.

    The first page is counted from the start of ``zone``, the address range of the request's flow.
    """
    shift = st.cfg[0].page_shift
    offset = req.offset - zone.first_byte if req.op != FLUSH else 0
    first = offset >> shift
    return first, offset - (first << shift), ((offset + req.size - 1) >> shift) - first + 1


@inline
def parts_of(req, pages, zone):
    """Return the maximum number of transactions that a request uses at the same time: one for the
    command, one for its data, and one per page."""
    return pages + 2 + EXTRA_PAGES * int(zone.end_byte > 0) if req.op <= WRITE else 2


@inline
def is_full(st, queue):
    """Return True if the submission queue of pair ``queue`` is full from the host's point of view.

    The host counts the entries that the drive has not reported as fetched. One entry is never used,
    so that a full queue differs from an empty queue.
    """
    cfg = st.cfg[0]
    return cfg.entries > 0 and st.pair[queue].next - st.pair[queue].known >= cfg.entries - 1


@inline
def prefetch_next(st, queue):
    """Prefetch data of later requests of pair ``queue`` into the CPU cache of the simulator.

    Prefetch the mapping entry of the request AHEAD positions later. For the request AHEAD // 2
    positions later, whose mapping entry was prefetched before, prefetch the block record of its
    physical page. This helps because a large mapping table does not fit in the CPU cache.
    """
    cfg = st.cfg[0]
    pair = st.pair[queue]
    zone = st.zone[pair.stream]
    at = pair.next + AHEAD
    if at >= pair.loaded:
        return
    table = pair.dev * st.l2p.shape[1]
    end = st.l2p.shape[1]
    offset = st.req[queue * cfg.ring + (at & (cfg.ring - 1))].offset - zone.first_byte
    lpn = zone.first_lpn + (offset >> cfg.page_shift)
    prefetch(st.l2p, table + lpn)
    if cfg.partial != 0:
        prefetch(st.sectors, pair.dev * st.sectors.shape[1] + lpn)
    at -= AHEAD // 2
    offset = st.req[queue * cfg.ring + (at & (cfg.ring - 1))].offset - zone.first_byte
    lpn = zone.first_lpn + (offset >> cfg.page_shift)
    if 0 <= lpn < end:
        entry = int(st.l2p[pair.dev, lpn])
        if entry != 0:
            block = block_at(st, pair.dev, entry - 1)
            prefetch(st.block, block)
            prefetch(st.valid, block)


@cold
def count_fetched(st, tid):
    """Count the submission queue entry of command ``tid`` as fetched by the drive."""
    if st.txn[tid].kind == REQUEST:
        st.pair[st.txn[tid].row >> st.cfg[0].ring_shift].fetched += 1


@apart
def issue(st, queue):
    """Issue the requests that pair ``queue`` may issue now.

    In an open loop, schedule the next call at the next arrival time. If all loaded requests have
    been issued and more will follow, the run pauses so that they can be loaded.
    """
    pair = st.pair[queue]
    reg = st.reg[0]
    cfg = st.cfg[0]
    ring = cfg.ring - 1
    leaf = reg.pair0 + queue
    if reg.now < pair.start:
        register(st, leaf)
        set_leaf(st, leaf, pair.start)
        return
    while pair.next < pair.loaded and pair.outstanding < pair.depth and reg.now <= pair.stop:
        if is_full(st, queue):  # a completion makes room
            break
        rid = pair.next & ring
        req = st.req[queue * cfg.ring + rid]
        if pair.closed != 0:
            req.arrival = reg.now
        elif req.arrival > reg.now:
            register(st, leaf)
            set_leaf(st, leaf, req.arrival)
            return
        zone = st.zone[pair.stream]
        first, old, count = pages_of(st, req, zone)
        need = parts_of(req, count, zone)
        if reg.budget < need:
            if need > cfg.budget:
                fail(st, E_POOL, count + 1, cfg.budget - 1)
                return
            reg.starved = 1
            break
        reg.budget -= need
        pair.next += 1
        pair.outstanding += 1
        tid = take_txn(st)
        txn = st.txn[tid]
        txn.kind = REQUEST
        txn.row = queue * cfg.ring + rid
        txn.dev = pair.dev
        txn.phase = 0
        txn.stream = req.stream if pair.by_request != 0 else pair.stream
        txn.op = READ if req.op == 0 else PROGRAM
        if req.op > WRITE:
            txn.op = OTHER
            txn.role = Role.TRIMMING if req.op == TRIM else Role.NONE
        txn.lpn = zone.first_lpn + first
        st.command[tid].offset = old
        if first < 0 or (txn.lpn + count > zone.last_lpn and zone.end_byte == 0):
            fail(st, E_PAST_END, req.offset // 512, req.size // 512)
            return
        txn.n = count
        txn.size = req.size
        req.start = reg.now
        prefetch_next(st, queue)
        req.pending = 1
        req.done = 0
        if not enter(st, stages.SUBMIT, tid, 0, cfg.submit, stages.SUBMITTED):
            go(st, tid, stages.SUBMITTED)
    rest(st, leaf)
    if pair.next == pair.loaded and pair.more != 0:
        reg.pause = 1


@cold
def hold_at_limit(st, tid):
    """Hold command ``tid`` if the drive already executes ``fetch_limit`` commands of the queue
    pair.

    Returns True if the command is held; the drive fetches it later. Otherwise counts the command as
    executing and returns False.
    """
    txn = st.txn[tid]
    if txn.kind != REQUEST:
        return False
    pair = st.pair[txn.row >> st.cfg[0].ring_shift]
    if pair.working < st.cfg[0].fetch_limit:
        pair.working += 1
        return False
    txn.next = -1
    if pair.held == 0:
        pair.held = tid + 1
    else:
        st.txn[pair.held_last - 1].next = tid
    pair.held_last = tid + 1
    return True


@cold
def on_command_done(st, queue):
    """Count a command of queue pair ``queue`` as done, and fetch the next command that is held back
    because of ``fetch_limit``, if there is one."""
    pair = st.pair[queue]
    tid = pair.held - 1
    if tid < 0:
        pair.working -= 1
        return
    pair.held = st.txn[tid].next + 1
    go(st, tid, stages.CALLED)


@njit
def on_part_done(st, tid):
    """Handle the end of transaction ``tid`` of a request.

    After the last transaction of the request, send the completion to the host. If the data of a
    command crosses the link in one transfer, that transfer is queued directly before the
    completion.
    """
    txn = st.txn[tid]
    req = st.req[txn.row]
    cfg = st.cfg[0]
    if txn.step == stages.ACKNOWLEDGED or txn.step == stages.DATA_SENT:
        if cfg.adapter > 0 and txn.step == stages.ACKNOWLEDGED:
            sata_hba.on_acknowledged(st, txn.dev)
        give_txn(st, tid)
    elif txn.step == stages.POSTED and cfg.adapter > 0:
        if not enter(st, stages.CPU, tid, 0, cfg.submit, stages.REAPED):
            go(st, tid, stages.REAPED)
    elif txn.step == stages.POSTED or txn.step == stages.REAPED:
        on_completion(st, tid)
    else:
        req.pending -= 1
        if req.pending > 0:
            give_txn(st, tid)
        else:
            answer = stages.DATA_UP
            if req.op == 0 and cfg.whole_commands != 0:
                answer = stages.ANSWERED
                txn.size = req.size
            if answer == stages.ANSWERED and completes_alone(st, tid):
                answer = stages.DATA_UP
                other = take_txn(st)
                other_txn = st.txn[other]
                other_txn.kind = REQUEST
                other_txn.row = txn.row
                other_txn.dev = txn.dev
                other_txn.phase = txn.phase
                other_txn.op = txn.op
                other_txn.size = req.size
                go(st, other, stages.DATA_READY)
            if cfg.fetch_limit > 0:
                on_command_done(st, txn.row >> cfg.ring_shift)
            txn.role = Role.NONE
            if cfg.adapter > 0:
                sata_hba.complete(st, tid)
            else:
                if cfg.entries > 0:
                    st.command[tid].fetched = st.pair[txn.row >> cfg.ring_shift].fetched
                go(st, tid, answer)


@inline
def completes_alone(st, tid):
    """Return True if the completion of read ``tid`` is transferred separately from its data,
    because other transfers may take place in between.

    Such a transfer is the fetch of a held command or, with a SATA adapter, any transfer while the
    completion waits for a free entry in the adapter.
    """
    cfg = st.cfg[0]
    if cfg.adapter > 0:
        return True
    return cfg.fetch_limit > 0 and st.pair[st.txn[tid].row >> cfg.ring_shift].held != 0


@njit
def on_completion(st, tid):
    """Handle the completion of request ``tid`` at the host: record its time, ring the completion
    doorbell, and issue further requests of the queue pair.
    """
    reg = st.reg[0]
    cfg = st.cfg[0]
    queue = st.txn[tid].row >> cfg.ring_shift
    pair = st.pair[queue]
    req = st.req[st.txn[tid].row]
    waited = is_full(st, queue)
    if cfg.adapter > 0:
        sata_hba.update_fetched(st, tid)
    elif cfg.entries > 0:
        pair.known = st.command[tid].fetched
    req.end = reg.now
    req.done = 1
    st.done[reg.completed & (st.done.shape[0] - 1)] = st.txn[tid].row
    reg.completed += 1
    if reg.completed == reg.wanted:
        reg.pause = 1
    zone = st.zone[pair.stream]
    reg.budget += parts_of(req, pages_of(st, req, zone)[2], zone)
    pair.outstanding -= 1
    st.count[pair.dev, COMMANDS_DONE] += 1
    while (
        pair.tail < pair.next and st.req[queue * cfg.ring + (pair.tail & (cfg.ring - 1))].done != 0
    ):
        pair.tail += 1
    if waited:  # requests that wait for room go before the doorbell of the completion
        issue(st, queue)
    if cfg.doorbell > 0:
        go(st, tid, stages.COMPLETED)
    else:
        give_txn(st, tid)
    issue(st, queue)
    if cfg.adapter > 0:
        sata_hba.enter_waiting(st, pair.dev)
    if cfg.cache_idle != 0:
        data_cache.schedule_deferred(st, pair.dev)
    if cfg.fold_idle != 0:
        idle_timer.start_idle(st, pair.dev)
