"""Queue pairs: where host requests wait, when they are issued, and when the host knows them done.

Owns the rings of requests, open and closed loops, and the end of a request. Does not own its way
through the drive (flows.py) or where requests come from (requests.py names the record).
Source: NVMe base specification (submission and completion queues, doorbells); in a closed loop a
new request follows each completion, in an open loop requests come at their time, as in MQSim.
"""

from __future__ import annotations

from ondie.emu import stations as s
from ondie.emu.backend.timing import PROGRAM, READ
from ondie.emu.clock import NEVER
from ondie.emu.events import REQUEST, enter, give_txn, go, set_leaf, take_txn
from ondie.emu.state import record_type
from ondie.emu.stats import COMMANDS_DONE
from ondie.kernels.jit import njit

REQ = record_type(
    arrival="i8",  # ps
    start="i8",  # when it entered the submission queue
    end="i8",  # when its completion had reached the host
    offset="i8",  # bytes
    size="i8",  # bytes
    op="i4",  # requests.READ or WRITE
    stream="i4",
    pending="i4",  # parts under way
    done="i4",
)
PAIR = record_type(
    next="i8",  # the next request to be issued, counted from the start of the run
    loaded="i8",  # requests handed over so far
    tail="i8",  # the oldest request that is not done
    outstanding="i8",
    depth="i8",  # requests outstanding at most
    closed="i8",  # 1: a request arrives when there is room for it
    dev="i8",
    pad="i8",
)


@njit
def issue(st, q):
    """Issue what pair ``q`` may issue now; in an open loop it says when it wants to be asked again."""
    pair = st.pair[q]
    reg = st.reg[0]
    c = st.cfg[0]
    ring = c.ring - 1
    leaf = reg.pair0 + q
    while pair.next < pair.loaded and pair.outstanding < pair.depth:
        r = pair.next & ring
        req = st.req[q * c.ring + r]
        if pair.closed != 0:
            req.arrival = reg.now
        elif req.arrival > reg.now:
            set_leaf(st, leaf, req.arrival)
            return
        first = req.offset // c.page_bytes
        n = (req.offset + req.size - 1) // c.page_bytes - first + 1
        if reg.budget < n + 2:
            reg.starved = 1
            break
        reg.budget -= n + 2
        pair.next += 1
        pair.outstanding += 1
        t = take_txn(st)
        x = st.txn[t]
        x.kind = REQUEST
        x.row = q * c.ring + r
        x.dev = pair.dev
        x.phase = 0
        x.stream = req.stream
        x.op = READ if req.op == 0 else PROGRAM
        x.lpn = first
        x.old = req.offset - first * c.page_bytes
        x.n = n
        x.size = req.size
        req.start = reg.now
        req.pending = 1
        req.done = 0
        if not enter(st, s.SUBMIT, t, 0, c.submit, s.SUBMITTED):
            go(st, t, s.SUBMITTED)
    set_leaf(st, leaf, NEVER)


@njit
def part_done(st, t):
    """A part of a request is done; the last part carries the completion to the host."""
    x = st.txn[t]
    req = st.req[x.row]
    if x.step == s.ACKNOWLEDGED:
        give_txn(st, t)
    elif x.step == s.POSTED:
        ended(st, t)
    else:
        req.pending -= 1
        if req.pending > 0:
            give_txn(st, t)
        else:
            x.size = req.size
            x.bare = 0
            whole = req.op == 0 and st.cfg[0].whole_commands != 0
            go(st, t, s.DATA_READY if whole else s.DATA_UP)


@njit
def ended(st, t):
    """The host has the completion that ``t`` carried: it says so, and may issue the next."""
    reg = st.reg[0]
    c = st.cfg[0]
    q = st.txn[t].row // c.ring
    pair = st.pair[q]
    req = st.req[st.txn[t].row]
    req.end = reg.now
    req.done = 1
    first = req.offset // c.page_bytes
    reg.budget += (req.offset + req.size - 1) // c.page_bytes - first + 3
    pair.outstanding -= 1
    st.count[pair.dev, COMMANDS_DONE] += 1
    while pair.tail < pair.next and st.req[q * c.ring + (pair.tail & (c.ring - 1))].done != 0:
        pair.tail += 1
    if c.doorbell > 0:
        go(st, t, s.COMPLETED)
    else:
        give_txn(st, t)
    issue(st, q)
