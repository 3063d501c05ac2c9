"""Queue pairs: issue of host requests, open and closed loops, completion of requests.

Owns the rings of requests, open and closed loops, and the end of a request. Does not own its path
through the drive (engine/run/datapath.py) or the sources of requests (request.py owns the record).
Source: NVMe base specification (submission and completion queues, doorbells; a completion tells the
host how many entries the drive has fetched). As in MQSim, a closed loop issues a new request after
each completion, an open loop issues requests at their arrival time.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.counters import COMMANDS_DONE
from ondie.emu.engine.core.events import (
    E_PAST_END,
    E_POOL,
    REQUEST,
    enter,
    fail,
    give_txn,
    go,
    rest,
    set_leaf,
    take_txn,
)
from ondie.emu.engine.core.intrinsics import prefetch
from ondie.emu.engine.core.state import record_type
from ondie.emu.ftl.page_map import block_at
from ondie.emu.nand.timing import OTHER, PROGRAM, READ
from ondie.emu.nvme import (
    command as queues,
)
from ondie.emu.nvme import (
    data_cache as cache,
)
from ondie.emu.nvme import (
    idle_timer as quiet,
)
from ondie.emu.nvme import (
    sata_hba as adapter,
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
    pending="i4",  # parts under way
    done="i4",
    status="i4",  # 0, or the error (ftl/read_retry.py); set to 0 when the request is loaded
)
AHEAD = 4
"""Distance in requests from the issued one to the one whose map entries are prefetched."""
PAIR = record_type(
    next="i8",  # index of the next request to issue, from the start of the run
    loaded="i8",  # requests loaded so far
    tail="i8",  # index of the oldest request that is not done
    outstanding="i8",
    depth="i8",  # largest number of outstanding requests
    closed="i8",  # 1: closed loop, a request arrives when there is room for it
    dev="i8",
    stream="i8",  # zone of the pair, and stream of its writes
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
    """Return (first page, byte offset in that page, pages) of a request within its zone."""
    shift = st.cfg[0].page_shift
    offset = req.offset - zone.first_byte if req.op != FLUSH else 0
    first = offset >> shift
    return first, offset - (first << shift), ((offset + req.size - 1) >> shift) - first + 1


@inline
def parts_of(req, pages):
    """Return the most transactions that a request may need at once: request, data, one per page."""
    return pages + 2 if req.op <= WRITE else 2


@inline
def crowded(st, q):
    """Return True if the submission queue is full as far as the host knows.

    It counts the entries that the drive has not fetched. One place stays free, so that a full queue
    differs from an empty one.
    """
    c = st.cfg[0]
    return c.entries > 0 and st.pair[q].next - st.pair[q].known >= c.entries - 1


@inline
def look_ahead(st, q):
    """Prefetch the map entry of a request that will soon be issued, and the block of an earlier
    one.

    The map entry of the earlier one has been loaded meanwhile. A large mapping table fits in no
    processor cache.
    """
    c = st.cfg[0]
    pair = st.pair[q]
    zone = st.zone[pair.stream]
    at = pair.next + AHEAD
    if at >= pair.loaded:
        return
    table = pair.dev * st.l2p.shape[1]
    end = st.l2p.shape[1]
    offset = st.req[q * c.ring + (at & (c.ring - 1))].offset - zone.first_byte
    lpn = zone.first_lpn + (offset >> c.page_shift)
    prefetch(st.l2p, table + lpn)
    if c.partial != 0:
        prefetch(st.sectors, pair.dev * st.sectors.shape[1] + lpn)
    at -= AHEAD // 2
    offset = st.req[q * c.ring + (at & (c.ring - 1))].offset - zone.first_byte
    lpn = zone.first_lpn + (offset >> c.page_shift)
    if 0 <= lpn < end:
        entry = int(st.l2p[pair.dev, lpn])
        if entry != 0:
            b = block_at(st, pair.dev, entry - 1)
            prefetch(st.block, b)
            prefetch(st.valid, b)


@cold
def entry_in(st, t):
    """Count the queue entry that ``t`` carried as fetched by the drive."""
    if st.txn[t].kind == REQUEST:
        st.pair[st.txn[t].row >> st.cfg[0].ring_shift].fetched += 1


@apart
def issue(st, q):
    """Issue the requests that pair ``q`` may issue now.

    In an open loop, set the time of the next call to the next arrival. If all loaded requests have
    been issued and more will follow, the run pauses to load them.
    """
    pair = st.pair[q]
    reg = st.reg[0]
    c = st.cfg[0]
    ring = c.ring - 1
    leaf = reg.pair0 + q
    if reg.now < pair.start:
        set_leaf(st, leaf, pair.start)
        return
    while pair.next < pair.loaded and pair.outstanding < pair.depth and reg.now <= pair.stop:
        if crowded(st, q):  # a completion makes room
            break
        r = pair.next & ring
        req = st.req[q * c.ring + r]
        if pair.closed != 0:
            req.arrival = reg.now
        elif req.arrival > reg.now:
            set_leaf(st, leaf, req.arrival)
            return
        zone = st.zone[pair.stream]
        first, old, n = pages_of(st, req, zone)
        need = parts_of(req, n)
        if reg.budget < need:
            if need > c.budget:
                fail(st, E_POOL, n + 1, c.budget - 1)
                return
            reg.starved = 1
            break
        reg.budget -= need
        pair.next += 1
        pair.outstanding += 1
        t = take_txn(st)
        x = st.txn[t]
        x.kind = REQUEST
        x.row = q * c.ring + r
        x.dev = pair.dev
        x.phase = 0
        x.stream = pair.stream
        x.op = READ if req.op == 0 else PROGRAM
        if req.op > WRITE:
            x.op = OTHER
            x.bare = queues.TRIMMING if req.op == TRIM else 0
        x.lpn = zone.first_lpn + first
        x.old = old
        if first < 0 or x.lpn + n > zone.last_lpn:
            fail(st, E_PAST_END, req.offset // 512, req.size // 512)
            return
        x.n = n
        x.size = req.size
        req.start = reg.now
        look_ahead(st, q)
        req.pending = 1
        req.done = 0
        if not enter(st, s.SUBMIT, t, 0, c.submit, s.SUBMITTED):
            go(st, t, s.SUBMITTED)
    rest(st, leaf)
    if pair.next == pair.loaded and pair.more != 0:
        reg.thirsty = 1


@cold
def too_many(st, t):
    """Return True if the drive already works on the most commands of the pair (``fetch_limit``).

    Then ``t`` is held and fetched later; otherwise it is counted as one of them.
    """
    x = st.txn[t]
    if x.kind != REQUEST:
        return False
    pair = st.pair[x.row >> st.cfg[0].ring_shift]
    if pair.working < st.cfg[0].fetch_limit:
        pair.working += 1
        return False
    x.next = -1
    if pair.held == 0:
        pair.held = t + 1
    else:
        st.txn[pair.held_last - 1].next = t
    pair.held_last = t + 1
    return True


@cold
def one_fewer(st, q):
    """Count a command of the pair as done and fetch the next held command, if there is one."""
    pair = st.pair[q]
    t = pair.held - 1
    if t < 0:
        pair.working -= 1
        return
    pair.held = st.txn[t].next + 1
    go(st, t, s.CALLED)


@njit
def part_done(st, t):
    """Handle the end of a part of a request. After the last part, send the completion to the host.

    Data that cross the link as one transfer per command go directly before the completion: both are
    queued at once.
    """
    x = st.txn[t]
    req = st.req[x.row]
    c = st.cfg[0]
    if x.step == s.ACKNOWLEDGED or x.step == s.DATA_SENT:
        if c.adapter > 0 and x.step == s.ACKNOWLEDGED:
            adapter.acknowledged(st, x.dev)
        give_txn(st, t)
    elif x.step == s.POSTED and c.adapter > 0:
        if not enter(st, s.CPU, t, 0, c.submit, s.REAPED):
            go(st, t, s.REAPED)
    elif x.step == s.POSTED or x.step == s.REAPED:
        ended(st, t)
    else:
        req.pending -= 1
        if req.pending > 0:
            give_txn(st, t)
        else:
            answer = s.DATA_UP
            if req.op == 0 and c.whole_commands != 0:
                answer = s.ANSWERED
                x.size = req.size
            if answer == s.ANSWERED and goes_alone(st, t):
                answer = s.DATA_UP
                u = take_txn(st)
                y = st.txn[u]
                y.kind = REQUEST
                y.row = x.row
                y.dev = x.dev
                y.phase = x.phase
                y.op = x.op
                y.size = req.size
                go(st, u, s.DATA_READY)
            if c.fetch_limit > 0:
                one_fewer(st, x.row >> c.ring_shift)
            x.bare = 0
            if c.adapter > 0:
                adapter.complete(st, t)
            else:
                if c.entries > 0:
                    x.left = st.pair[x.row >> c.ring_shift].fetched
                go(st, t, answer)


@inline
def goes_alone(st, t):
    """Return True if other work may come between the data of a read and its completion.

    That is the fetch of a held command, or the SATA adapter, which may have no room for the
    completion.
    """
    c = st.cfg[0]
    if c.adapter > 0:
        return True
    return c.fetch_limit > 0 and st.pair[st.txn[t].row >> c.ring_shift].held != 0


@njit
def ended(st, t):
    """Record the completion that ``t`` carried at the host, ring the doorbell, and issue the
    next."""
    reg = st.reg[0]
    c = st.cfg[0]
    q = st.txn[t].row >> c.ring_shift
    pair = st.pair[q]
    req = st.req[st.txn[t].row]
    waited = crowded(st, q)
    if c.adapter > 0:
        adapter.looked_at(st, t)
    elif c.entries > 0:
        pair.known = st.txn[t].left
    req.end = reg.now
    req.done = 1
    reg.budget += parts_of(req, pages_of(st, req, st.zone[pair.stream])[2])
    pair.outstanding -= 1
    st.count[pair.dev, COMMANDS_DONE] += 1
    while pair.tail < pair.next and st.req[q * c.ring + (pair.tail & (c.ring - 1))].done != 0:
        pair.tail += 1
    if waited:  # requests that wait for room go before the doorbell of the completion
        issue(st, q)
    if c.doorbell > 0:
        go(st, t, s.COMPLETED)
    else:
        give_txn(st, t)
    issue(st, q)
    if c.adapter > 0:
        adapter.refill(st, pair.dev)
    if c.cache_idle != 0:
        cache.later(st, pair.dev)
    if c.fold_idle != 0:
        quiet.begins(st, pair.dev)
