"""Dies and channels: who may use the array, the registers and the bus, and who gets the bus next.

Owns die queues, registers, array occupancy and channel grants. Does not own addresses (mapping.py)
or what follows a transfer (system.py passes the finished transaction on).
Source: ONFI cache read and cache program (array and cache register work side by side on operations
of one kind). Short commands go before data, so that arrays work while data move; then data out,
then data in, dies in turn; reads before programs on a die.
"""

from __future__ import annotations

from ondie.emu.backend.timing import BPP, BPR, ERASE, ODC, PROGRAM, READ, VPP
from ondie.emu.clock import NEVER, transfer_ps
from ondie.emu.events import E_REGISTER, fail, line, set_leaf
from ondie.emu.state import record_type
from ondie.kernels.jit import njit

DIE = record_type(
    arr="i8",  # transaction in the array, -1 = idle
    cache="i8",  # transaction whose data are in the cache register, or moving into it
    out="i8",  # read transaction whose data wait for the channel
    read_head="i8",
    read_tail="i8",
    write_head="i8",  # programs and erases, in order
    write_tail="i8",
    load_head="i8",  # VPP: gradients into the register
    load_tail="i8",
    pe_head="i8",  # BPR, ODC, BPP in order
    pe_tail="i8",
    extra="i8",  # ps added to every array operation of this die
    gradients="i4",  # gradient pages loaded and not yet consumed
    stripe="i4",  # 1: w, m, v lie in the data registers between BPR and BPP
    held="i4",  # 1: the array's read is done but its data have nowhere to go
    on_bus="i4",
    want="i4",
    pad="i4",
)
BUS = record_type(
    ask_out="i8",  # bit per way: a die has read data waiting
    ask_command="i8",
    ask_in="i8",
    turn="i8",  # way that is asked first
    die="i8",  # who holds the channel, -1 = idle
    phase="i8",
    txn="i8",
    start="i8",  # when it was granted
    command_until="i8",  # end of the last command that interrupted data
    size_in="i8",  # bytes moved into registers
    size_out="i8",  # bytes moved out of registers
)
NONE, OUT, COMMAND, IN = range(4)
MAX_WAYS = 62


@njit
def push(st, g, t):
    """A transaction joins its die's queue; the die looks for work."""
    d = st.die[g]
    x = st.txn[t]
    x.next = -1
    if x.op == READ:
        if d.read_head < 0:
            d.read_head = t
        else:
            st.txn[d.read_tail].next = t
        d.read_tail = t
    elif x.op == PROGRAM or x.op == ERASE:
        if d.write_head < 0:
            d.write_head = t
        else:
            st.txn[d.write_tail].next = t
        d.write_tail = t
    else:
        if d.load_head < 0:
            d.load_head = t
        else:
            st.txn[d.load_tail].next = t
        d.load_tail = t
    seek(st, g)


@njit
def push_pe(st, g, t):
    """A transaction joins the queue of the die's processing elements: BPR, ODC, BPP, and the erase
    of the block that a BPP is about to open (the registers keep their data meanwhile)."""
    d = st.die[g]
    st.txn[t].next = -1
    if d.pe_head < 0:
        d.pe_head = t
    else:
        st.txn[d.pe_tail].next = t
    d.pe_tail = t
    seek(st, g)


@njit
def wish(st, g):
    """What die ``g`` wants of its channel now: a command that sets its array to work (the PE's
    first, then reads), else data out, else a gradient, else programs and erases."""
    d = st.die[g]
    if d.on_bus != 0:
        return NONE
    c = st.cfg[0]
    taken = d.stripe != 0 or d.gradients != 0  # the registers belong to the optimizer
    if d.arr < 0:
        if d.pe_head >= 0 and d.cache < 0:
            return COMMAND
        if d.read_head >= 0 and not taken and (d.cache < 0 or st.txn[d.cache].op == READ):
            return COMMAND
    if d.out >= 0:
        return OUT
    if can_load(st, g):
        return IN
    if taken:
        return NONE
    if d.write_head >= 0 and d.cache < 0:
        op = st.txn[d.write_head].op
        if d.arr < 0:
            return IN if op == PROGRAM else COMMAND
        if (
            c.cache_program != 0
            and d.read_head < 0
            and op == PROGRAM
            and st.txn[d.arr].op == PROGRAM
        ):
            return IN
    return NONE


@njit
def can_load(st, g):
    """May a gradient enter die ``g``: a gradient register is free, and so is the cache register."""
    d = st.die[g]
    if d.load_head < 0 or d.cache >= 0 or d.gradients >= st.cfg[0].gradient_registers:
        return False
    return d.arr < 0 or st.txn[d.arr].op >= VPP or d.stripe != 0


@njit
def seek(st, g):
    """Update the channel's view of die ``g`` and grant the channel if it is idle. A command need
    not wait for another die's data: it interrupts them, and they last so much longer."""
    d = st.die[g]
    want = wish(st, g)
    b = d_bus(st, g)
    bus = st.bus[b]
    if want == COMMAND and bus.die >= 0 and bus.phase != COMMAND and st.cfg[0].interleave != 0:
        if st.leaf[st.reg[0].bus0 + b] > st.reg[0].now:  # else the data are through at this instant
            interrupt(st, g, b)
            want = wish(st, g)
    if want != d.want:
        bit = 1 << d_way(st, g)
        if d.want == OUT:
            bus.ask_out &= ~bit
        elif d.want == COMMAND:
            bus.ask_command &= ~bit
        elif d.want == IN:
            bus.ask_in &= ~bit
        if want == OUT:
            bus.ask_out |= bit
        elif want == COMMAND:
            bus.ask_command |= bit
        elif want == IN:
            bus.ask_in |= bit
        d.want = want
    if bus.die < 0:
        grant(st, b)


@njit
def interrupt(st, g, b):
    """Die ``g``'s next command goes out now, between the data that hold channel ``b``."""
    bus = st.bus[b]
    t = start_command(st, g)
    time = command_ps(st, t)
    start = max(st.reg[0].now, bus.command_until)
    bus.command_until = start + time
    leaf = st.reg[0].bus0 + b
    st.use[st.txn[t].phase, leaf] += time
    line(st, leaf, start, start + time, t)
    set_leaf(st, leaf, st.leaf[leaf] + time)
    begin_array(st, g, t, start + time)


@njit
def d_bus(st, g):
    """Global channel index of a die."""
    c = st.cfg[0]
    return (g // c.dies) * c.channels + (g % c.dies) % c.channels


@njit
def d_way(st, g):
    """Position of a die on its channel."""
    c = st.cfg[0]
    return (g % c.dies) // c.channels


@njit
def first_from(mask, turn, ways):
    """Lowest set bit at or after ``turn``, cyclically; the mask is not empty."""
    for i in range(ways):
        way = turn + i
        if way >= ways:
            way -= ways
        if (mask >> way) & 1:
            return way
    return -1


@njit
def grant(st, b):
    """Give the idle channel ``b`` to the next die that asks: commands, data out, data in."""
    bus = st.bus[b]
    c = st.cfg[0]
    if bus.ask_command != 0:
        way = first_from(bus.ask_command, bus.turn, c.ways)
    elif bus.ask_out != 0:
        way = first_from(bus.ask_out, bus.turn, c.ways)
    elif bus.ask_in != 0:
        way = first_from(bus.ask_in, bus.turn, c.ways)
    else:
        return
    bus.turn = way + 1 if way + 1 < c.ways else 0
    g = (b // c.channels) * c.dies + way * c.channels + b % c.channels
    d = st.die[g]
    now = st.reg[0].now
    phase = d.want
    if phase == OUT:
        t = d.out
        end = now + transfer_ps(st.txn[t].bus, c.bus_scale, c.bus_shift)
        bus.size_out += st.txn[t].bus
    elif phase == COMMAND:
        t = start_command(st, g)
        end = now + command_ps(st, t)
        begin_array(st, g, t, end)
    else:
        t = start_load(st, g)
        x = st.txn[t]
        end = now + command_ps(st, t) + transfer_ps(x.bus, c.bus_scale, c.bus_shift)
        bus.size_in += x.bus
    d.on_bus = 1
    d.want = NONE
    bit = 1 << way
    bus.ask_out &= ~bit
    bus.ask_command &= ~bit
    bus.ask_in &= ~bit
    bus.die = g
    bus.phase = phase
    bus.txn = t
    bus.start = now
    st.use[st.txn[t].phase, st.reg[0].bus0 + b] += end - now
    set_leaf(st, st.reg[0].bus0 + b, end)


@njit
def command_ps(st, t):
    """Command and address cycles: one sequence per plane, one for the PE's computation."""
    x = st.txn[t]
    if x.op == ODC:
        return st.op[x.op].command
    return st.op[x.op].command * x.n


@njit
def start_command(st, g):
    """Take the operation whose command goes out now off its queue."""
    d = st.die[g]
    if d.pe_head >= 0 and d.cache < 0:
        t = d.pe_head
        d.pe_head = st.txn[t].next
        op = st.txn[t].op
        if op == BPR:
            if d.stripe != 0:
                fail(st, E_REGISTER, g, op)
            d.stripe = 1
        elif op == ODC:
            if d.stripe == 0 or d.gradients == 0:
                fail(st, E_REGISTER, g, op)
        elif op == BPP and d.stripe == 0:
            fail(st, E_REGISTER, g, op)
    elif d.read_head >= 0:
        t = d.read_head
        d.read_head = st.txn[t].next
    else:
        t = d.write_head
        d.write_head = st.txn[t].next
    st.txn[t].next = -1
    return t


@njit
def start_load(st, g):
    """Take the operation whose data go in now off its queue; they fill a register."""
    d = st.die[g]
    if can_load(st, g):
        t = d.load_head
        d.load_head = st.txn[t].next
    else:
        t = d.write_head
        d.write_head = st.txn[t].next
        d.cache = t
    st.txn[t].next = -1
    return t


@njit
def begin_array(st, g, t, now):
    """The array starts on ``t`` at ``now`` (which may lie ahead, at the end of the command)."""
    d = st.die[g]
    x = st.txn[t]
    time = st.op[x.op].array + x.array + d.extra
    d.arr = t
    st.use[x.phase, g] += time
    line(st, g, now, now + time, t)
    set_leaf(st, g, now + time)


@njit
def array_done(st, g):
    """The array of die ``g`` is done. Returns the transaction that is finished with it, or -1 when
    a read's data still have to leave."""
    d = st.die[g]
    t = d.arr
    x = st.txn[t]
    set_leaf(st, g, NEVER)
    if x.op == READ:
        if st.cfg[0].cache_read != 0:
            if d.cache < 0:
                d.cache = t
                d.arr = -1
                d.out = t
            else:
                d.held = 1
        else:
            d.out = t
            d.held = 1
        return t
    d.arr = -1
    if x.op == BPP:
        d.stripe = 0
    elif x.op == ODC:
        d.gradients -= 1
    elif x.op == PROGRAM and d.cache >= 0 and d.on_bus == 0:
        t2 = d.cache
        d.cache = -1
        begin_array(st, g, t2, st.reg[0].now)
    return t


@njit
def bus_done(st, b):
    """Channel ``b`` has finished its phase. Returns the transaction when it is done with the die
    (data out, or a gradient loaded), else -1. The caller grants the channel again."""
    bus = st.bus[b]
    g = bus.die
    t = bus.txn
    phase = bus.phase
    d = st.die[g]
    d.on_bus = 0
    bus.die = -1
    leaf = st.reg[0].bus0 + b
    line(st, leaf, bus.start, st.reg[0].now, t)
    set_leaf(st, leaf, NEVER)
    if phase == OUT:
        d.out = -1
        if d.arr == t:  # no cache register: the array was held
            d.arr = -1
            d.held = 0
        else:
            d.cache = -1
            if d.held != 0:
                d.held = 0
                d.cache = d.arr
                d.out = d.arr
                d.arr = -1
        return t
    if phase == IN:
        if st.txn[t].op == VPP:
            d.gradients += 1
            return t
        if d.arr < 0:
            d.cache = -1
            begin_array(st, g, t, st.reg[0].now)
    return -1
