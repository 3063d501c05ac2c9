"""Data paths of a device: the next step of a transaction that leaves a station or a die.

Owns the routes through one device: reads, writes, garbage collection, gradients to the dies.
Does not own plan rows and requests: a finished transaction is returned to engine/run/loop.py, which
completes its row or request.
Source: the data paths of Newport and Laguna (host <-> front end <-> back end <-> flash; ISP <->
back end <-> flash, bypassing front end and NVMe), with pages stored and forwarded in the
controller's DRAM; the link messages of an NVMe command (doorbell, fetch, data, completion).
"""

from __future__ import annotations

from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.counters import (
    COMMANDS,
    HOST_READ_BYTES,
    HOST_WRITE_BYTES,
    LINK_EXTRA_DOWN_BYTES,
)
from ondie.emu.engine.core.events import GRADIENT, MADE, MERGING, OWN, RESERVOIR, ROW, enter
from ondie.emu.engine.core.transaction import child
from ondie.emu.ftl import cmt, padding
from ondie.emu.ftl import read_retry as reading
from ondie.emu.ftl import reservoir_parity as beside
from ondie.emu.ftl.completion import map_arrived, move
from ondie.emu.ftl.gc import ask, queue_of
from ondie.emu.ftl.transfers import (
    HOST_PASSES,
    decode,
    decode_bare,
    dram,
    extra,
    next_piece,
    send,
    send_off,
)
from ondie.emu.ftl.write_path import hunt, merged, place_or_wait
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
    mqsim_cache as buffer,
)
from ondie.emu.nvme import (
    queue_pair as pairs,
)
from ondie.emu.nvme import (
    sata_hba as adapter,
)
from ondie.kernels.jit import cold, inline, njit

NOWHERE = -1
"""Link direction: none."""


@inline
def of_isp(st, x):
    """Return True if transaction ``x`` belongs to a command of the ISP."""
    return x.kind == ROW and st.row[x.row].resource == st.cfg[0].isp_io


@njit
def fetched(st, t):
    """Execute an NVMe command that the front end has decoded.

    Return True if the command transaction is finished, False if the data of the whole write command
    must cross the link first.
    """
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    st.count[dev, COMMANDS] += 1
    if x.op == timing.READ:
        st.count[dev, HOST_READ_BYTES] += x.size
        controller.cut_read(st, t)
    elif x.op == timing.PROGRAM:
        st.count[dev, HOST_WRITE_BYTES] += x.size
        if c.line > 1:
            padding.urgent(st, t)
        if c.whole_commands != 0:
            return False
        controller.cut_write(st, t, s.WRITE_FETCHED)
    elif x.bare != queues.TRIMMING:
        if c.cache_writes != 0:
            controller.flush(st, t)
            if c.line > 1:
                padding.hurry(st, dev)
    else:
        controller.cut_trim(st, t)
        if c.static == 0:
            hunt(st, dev, dev * c.units)
        else:
            for u in range(dev * c.units, (dev + 1) * c.units):
                hunt(st, dev, u)
    return True


@cold
def fill(st, t):
    """Store the data of a flash read in the data cache or the destage buffer."""
    if st.cfg[0].cache == buffer.BUFFER:
        buffer.fill(st, t)
    else:
        cache.fill(st, t)


@cold
def rested(st, t):
    """Handle the expiry of the idle timer: if the drive has been idle, check every unit for
    collections and pSLC folding."""
    c = st.cfg[0]
    dev = st.txn[t].dev
    if quiet.over(st, t):
        for u in range(dev * c.units, (dev + 1) * c.units):
            ask(st, dev, u)


@njit
def travel(st, t):
    """Advance transaction ``t`` as :func:`onwards` does, and clear the hop flag (``reg.hop``)."""
    u = onwards(st, t)
    st.reg[0].hop = 0
    return u


@njit
def onwards(st, t):
    """Advance transaction ``t`` from its last completed step until it waits or is finished.

    Return -1 if it waits, ``t`` if it is finished.
    """
    c = st.cfg[0]
    reg = st.reg[0]
    while True:
        x = st.txn[t]
        dev = x.dev
        step = x.step
        reg.hop = 1
        which = NOWHERE
        size = 0
        following = 0
        told = False
        waits = False
        if step == s.SENSED:
            if x.bare == MERGING:
                waits = decode(st, t, s.MERGED)
            elif x.bare != 0 and st.row[x.row].kind == timing.SCAN:
                waits = dram(st, t, 1, s.PART_DONE)
            elif x.bare != 0 and st.row[x.row].kind == timing.LIFT:
                if c.round_trip != 0:
                    waits = decode_bare(st, t, s.TAKEN_OUT)
                else:
                    waits = dram(st, t, 1, s.PART_DONE)
            elif x.bare != 0 and c.round_trip != 0:
                waits = decode_bare(st, t, s.DECODED)
            elif x.bare != 0:
                waits = dram(st, t, HOST_PASSES, s.READ_IN_DRAM)
            else:
                waits = decode(st, t, s.DECODED)
        elif step == s.DECODED:
            if of_isp(st, x):
                waits = enter(st, s.station(st, dev, s.ISP_LINK), t, x.size, -1, s.ISP_READ_READY)
            else:
                if c.cache_fills != 0 and x.bare == 0:
                    fill(st, t)
                waits = dram(st, t, HOST_PASSES, s.READ_IN_DRAM)
        elif step == s.READ_UNMAPPED:
            passes = 1 if of_isp(st, x) else HOST_PASSES
            waits = dram(st, t, passes, s.READ_IN_DRAM)
        elif step == s.READ_IN_DRAM:
            if of_isp(st, x) or (c.whole_commands != 0 and x.bare == 0):
                return t
            which, size, following = s.UP, x.size, s.UP_DONE
        elif step == s.UP_DONE:
            if c.shared_uplink == 0:
                return t
            waits = enter(st, s.UPLINK_UP, t, x.size, -1, s.PART_DONE)
        elif step == s.ENCODED:
            if c.line > 1:
                padding.join(st, t)
            elif x.kind == OWN:
                nand.push(st, st.die[x.die].first, t, queue_of(st, x))
            elif x.bare == RESERVOIR or x.bare == GRADIENT:
                nand.push(st, st.die[x.die].first, t, nand.Q_PE)
            elif x.bare == MADE:
                beside.waits(st, t)
                nand.push(st, st.die[x.die].first, t, nand.Q_WRITE)
            elif c.placed != 0 and x.bare == MERGING:
                nand.push_in_order(st, st.die[x.die].first, t, nand.Q_WRITE)
            else:
                nand.push(st, st.die[x.die].first, t, nand.Q_WRITE)
            return -1
        elif step == s.MOVE_SENSED:
            waits = decode(st, t, s.MOVE_DECODED)
        elif step == s.MOVE_DECODED:
            waits = dram(st, t, HOST_PASSES, s.MOVE_IN_DRAM)
        elif step == s.MOVE_IN_DRAM:
            reg.hop = 0
            move(st, t)
            return -1
        elif step == s.WRITE_FETCHED:
            if c.shared_uplink != 0:
                waits = enter(st, s.UPLINK_DOWN, t, x.size, -1, s.UPLINK_DOWN_DONE)
            else:
                which, size, following = s.DOWN, x.size, s.DOWN_DONE
        elif step == s.UPLINK_DOWN_DONE:
            which, size, following = s.DOWN, x.size, s.DOWN_DONE
        elif step == s.DOWN_DONE:
            waits = dram(st, t, 1 if c.cache_writes != 0 else HOST_PASSES, s.WRITE_IN_DRAM)
        elif step == s.WRITE_IN_DRAM or step == s.ISP_WRITE_READY:
            reg.hop = 0
            if c.cache_writes != 0 and step == s.WRITE_IN_DRAM:
                urgent = c.line > 1 and x.kind == ROW and st.row[x.row].fua != 0
                cache.store(st, t)
                if urgent:
                    padding.stored(st, dev)
                return -1
            reg.prompt = 1
            if c.map_entries == 0 or not cmt.wanting(st, t):
                place_or_wait(st, t)
            reg.prompt = 0
            return -1
        elif step == s.MERGED:
            reg.hop = 0
            merged(st, t)
            return -1
        elif step == s.SUBMITTED or step == s.ENTERED:
            if c.adapter > 0 and step == s.SUBMITTED and adapter.full(st, t):
                return -1
            told = True
            which, size, following = s.DOWN, c.doorbell, s.RUNG
        elif step == s.RUNG or step == s.CALLED:
            if c.fetch_limit > 0 and step == s.RUNG and pairs.too_many(st, t):
                return -1
            told = True
            which, size, following = s.UP, c.request, s.ENTRY_ASKED
        elif step == s.ENTRY_ASKED:
            told = True
            which, size, following = s.DOWN, c.entry, s.ENTRY_IN
        elif step == s.ENTRY_IN:
            if c.adapter > 0:
                st.dev[dev].fetched += 1
            if c.entries > 0:
                pairs.entry_in(st, t)
            waits = enter(st, s.station(st, dev, s.FRONTEND), t, 0, c.command, s.FETCHED)
        elif step == s.FETCHED:
            reg.hop = 0
            if fetched(st, t):
                return t
            reg.hop = 1
            told = True
            which, size, following = s.UP, c.request, s.DATA_ASKED
        elif step == s.DATA_ASKED:
            which, size, following = s.DOWN, x.size, s.DATA_IN
        elif step == s.DATA_IN:
            reg.hop = 0
            if c.cache == buffer.BUFFER and buffer.write(st, t):
                return -1
            controller.cut_write(st, t, s.DOWN_DONE)
            return t
        elif step == s.DATA_READY:
            send_off(st, t, s.UP, x.size)
            x.step = s.DATA_SENT
            return t
        elif step == s.COMPLETED:
            if c.adapter > 0:
                told = True
                which, size, following = s.DOWN, c.doorbell, s.ACKNOWLEDGED
            else:
                st.count[dev, LINK_EXTRA_DOWN_BYTES] += c.doorbell
                send_off(st, t, s.DOWN, c.doorbell)
                x.step = s.ACKNOWLEDGED
                return t
        elif step == s.ANSWERED or step == s.DATA_UP:
            if step == s.ANSWERED:
                send_off(st, t, s.UP, x.size)
            told = True
            which, size, following = s.UP, c.completion, s.POSTED
        elif step == s.ISP_READ_READY:
            waits = dram(st, t, 1, s.PART_DONE)
        elif step == s.ISP_WRITE_IN_DRAM:
            link = s.station(st, dev, s.ISP_LINK)
            waits = enter(st, link, t, x.size, -1, s.ISP_WRITE_READY)
        elif step == s.ISP_WRITE_FETCHED:
            waits = dram(st, t, 1, s.ISP_WRITE_IN_DRAM)
        elif step == s.TRAFFIC_PIECE:
            if x.left == 0:
                return t
            reg.hop = 0
            next_piece(st, t, s.TRAFFIC_PIECE)
            return -1
        elif step == s.DMA_READY:
            if x.left > 0:
                v = child(st, t, x.lpn, 0)
                if v < 0:
                    return -1
                st.txn[v].left = x.left
                x.left = 0
                reg.hop = 0
                next_piece(st, v, s.DMA_READY)
            which, size, following = s.UP, x.size, s.UP_DONE
        elif step == s.DMA_UPLINK_DONE:
            which, size, following = s.DOWN, x.size, s.DMA_DOWN_DONE
        elif step == s.DMA_DOWN_DONE:
            waits = dram(st, t, 1, s.PART_DONE)
        elif step == s.SERVED:
            if c.cache == buffer.BUFFER:
                waits = buffer.access(st, t, x.size, s.READ_IN_DRAM)
            else:
                waits = dram(st, t, 1, s.READ_IN_DRAM)
        elif step == s.DESTAGE:
            if c.cache == buffer.BUFFER:
                reg.hop = 0
                buffer.send(st, t)
                return -1
            waits = dram(st, t, 1, s.DESTAGED)
        elif step == s.TRANSLATED or step == s.DESTAGED:
            reg.hop = 0
            if c.map_entries != 0 and cmt.wanting(st, t):
                return -1
            if x.op == timing.READ:
                controller.sense_all(st, t)
                return t
            place_or_wait(st, t)
            return -1
        elif step == s.MAP_SENSED:
            waits = decode(st, t, s.MAP_DECODED)
        elif step == s.MAP_DECODED:
            passes = HOST_PASSES if x.bare == cmt.BACK and x.ppn >= 0 else 1
            waits = dram(st, t, passes, s.MAP_IN_DRAM)
        elif step == s.MAP_IN_DRAM:
            reg.hop = 0
            map_arrived(st, t)
            return -1
        elif step == s.AGAIN:
            reg.hop = 0
            reading.again(st, t)
            return -1
        elif step == s.CROSSED:
            row = st.row[x.row]
            down = s.station(st, row.lpn, s.TUNNEL_DOWN)
            tail = st.message[row.stream].tail
            waits = enter(st, down, t, row.bytes_in, tail, s.PART_DONE)
        elif step == s.TAKEN_OUT:
            waits = dram(st, t, 1, s.PART_DONE)
        elif step == s.PE_DECODED:
            reg.hop = 0
            x.op = timing.VPP
            nand.push(st, x.die, t, nand.Q_PE)
            return -1
        elif step == s.RESTED:
            reg.hop = 0
            rested(st, t)
            return -1
        else:  # PART_DONE, POSTED, REAPED, ACKNOWLEDGED: handled by loop.py
            return t
        if which != NOWHERE:
            if told:
                st.count[dev, extra(which)] += size
            waits = send(st, t, which, size, following)
        reg.hop = 0
        if waits:
            return -1
