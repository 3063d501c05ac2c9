"""Data paths of a device: the next step of a transaction that leaves a station or a die.

Owns the routes through one device: reads, writes, garbage collection, gradients to the dies.
Does not own plan rows and requests: a finished transaction is returned to engine/run/loop.py, which
completes its row or request.
Source: the data paths of Newport and Laguna (host <-> front end <-> back end <-> flash; ISP <->
back end <-> flash, bypassing front end and NVMe), with pages stored and forwarded in the
controller's DRAM; the link messages of an NVMe command (doorbell, fetch, data, completion).
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    COMMANDS,
    HOST_READ_BYTES,
    HOST_WRITE_BYTES,
    LINK_EXTRA_DOWN_BYTES,
)
from ondie.emu.engine.core.events import OWN, ROW, enter
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.transaction import child
from ondie.emu.ftl import cmt, padding, read_retry, reservoir_parity
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
from ondie.emu.nand import timing
from ondie.emu.nand.die import Q_PE, Q_WRITE
from ondie.emu.nand.die_scheduler import push, push_in_order
from ondie.emu.nvme import (
    command_split,
    data_cache,
    idle_timer,
    mqsim_cache,
    queue_pair,
    sata_hba,
)
from ondie.kernels.jit import cold, inline, njit

NOWHERE = -1
"""Link direction: none."""


@inline
def of_isp(st, txn):
    """Return True if transaction ``txn`` belongs to a command of the ISP."""
    return txn.kind == ROW and st.row[txn.row].resource == st.cfg[0].isp_io


@njit
def fetched(st, tid):
    """Execute an NVMe command that the front end has decoded.

    Return True if the command transaction is finished, False if the data of the whole write command
    must cross the link first.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    st.count[dev, COMMANDS] += 1
    if txn.op == timing.READ:
        st.count[dev, HOST_READ_BYTES] += txn.size
        command_split.cut_read(st, tid)
    elif txn.op == timing.PROGRAM:
        st.count[dev, HOST_WRITE_BYTES] += txn.size
        if cfg.line > 1:
            padding.urgent(st, tid)
        if cfg.whole_commands != 0:
            return False
        command_split.cut_write(st, tid, stages.WRITE_FETCHED)
    elif txn.role != Role.TRIMMING:
        if cfg.cache_writes != 0:
            command_split.flush(st, tid)
            if cfg.line > 1:
                padding.hurry(st, dev)
    else:
        command_split.cut_trim(st, tid)
        if cfg.static == 0:
            hunt(st, dev, dev * cfg.units)
        else:
            for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
                hunt(st, dev, unit)
    return True


@cold
def fill(st, tid):
    """Store the data of a flash read in the data cache or the destage buffer."""
    if st.cfg[0].cache == mqsim_cache.BUFFER:
        mqsim_cache.fill(st, tid)
    else:
        data_cache.fill(st, tid)


@cold
def rested(st, tid):
    """Handle the expiry of the idle timer: if the drive has been idle, check every unit for
    collections and pSLC folding."""
    cfg = st.cfg[0]
    dev = st.txn[tid].dev
    if idle_timer.over(st, tid):
        for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
            ask(st, dev, unit)


@njit
def travel(st, tid):
    """Advance transaction ``tid`` as :func:`onwards` does, and clear the hop flag (``reg.hop``)."""
    finished = onwards(st, tid)
    st.reg[0].hop = 0
    return finished


@njit
def onwards(st, tid):
    """Advance transaction ``tid`` from its last completed step until it waits or is finished.

    Return -1 if it waits, ``tid`` if it is finished.
    """
    cfg = st.cfg[0]
    reg = st.reg[0]
    while True:
        txn = st.txn[tid]
        dev = txn.dev
        step = txn.step
        reg.hop = 1
        which = NOWHERE
        size = 0
        following = 0
        told = False
        waits = False
        if step == stages.SENSED:
            if txn.role == Role.MERGING:
                waits = decode(st, tid, stages.MERGED)
            elif txn.role != Role.NONE and st.row[txn.row].kind == timing.SCAN:
                waits = dram(st, tid, 1, stages.PART_DONE)
            elif txn.role != Role.NONE and st.row[txn.row].kind == timing.LIFT:
                if cfg.round_trip != 0:
                    waits = decode_bare(st, tid, stages.TAKEN_OUT)
                else:
                    waits = dram(st, tid, 1, stages.PART_DONE)
            elif txn.role != Role.NONE and cfg.round_trip != 0:
                waits = decode_bare(st, tid, stages.DECODED)
            elif txn.role != Role.NONE:
                waits = dram(st, tid, HOST_PASSES, stages.READ_IN_DRAM)
            else:
                waits = decode(st, tid, stages.DECODED)
        elif step == stages.DECODED:
            if of_isp(st, txn):
                waits = enter(
                    st,
                    stages.station(st, dev, stages.ISP_LINK),
                    tid,
                    txn.size,
                    -1,
                    stages.ISP_READ_READY,
                )
            else:
                if cfg.cache_fills != 0 and txn.role == Role.NONE:
                    fill(st, tid)
                waits = dram(st, tid, HOST_PASSES, stages.READ_IN_DRAM)
        elif step == stages.READ_UNMAPPED:
            passes = 1 if of_isp(st, txn) else HOST_PASSES
            waits = dram(st, tid, passes, stages.READ_IN_DRAM)
        elif step == stages.READ_IN_DRAM:
            if of_isp(st, txn) or (cfg.whole_commands != 0 and txn.role == Role.NONE):
                return tid
            which, size, following = stages.UP, txn.size, stages.UP_DONE
        elif step == stages.UP_DONE:
            if cfg.shared_uplink == 0:
                return tid
            waits = enter(st, stages.UPLINK_UP, tid, txn.size, -1, stages.PART_DONE)
        elif step == stages.ENCODED:
            if cfg.line > 1:
                padding.join(st, tid)
            elif txn.kind == OWN:
                push(st, st.die[txn.die].first, tid, queue_of(st, txn))
            elif txn.role == Role.RESERVOIR or txn.role == Role.GRADIENT:
                push(st, st.die[txn.die].first, tid, Q_PE)
            elif txn.role == Role.MADE:
                reservoir_parity.waits(st, tid)
                push(st, st.die[txn.die].first, tid, Q_WRITE)
            elif cfg.placed != 0 and txn.role == Role.MERGING:
                push_in_order(st, st.die[txn.die].first, tid, Q_WRITE)
            else:
                push(st, st.die[txn.die].first, tid, Q_WRITE)
            return -1
        elif step == stages.MOVE_SENSED:
            waits = decode(st, tid, stages.MOVE_DECODED)
        elif step == stages.MOVE_DECODED:
            waits = dram(st, tid, HOST_PASSES, stages.MOVE_IN_DRAM)
        elif step == stages.MOVE_IN_DRAM:
            reg.hop = 0
            move(st, tid)
            return -1
        elif step == stages.WRITE_FETCHED:
            if cfg.shared_uplink != 0:
                waits = enter(st, stages.UPLINK_DOWN, tid, txn.size, -1, stages.UPLINK_DOWN_DONE)
            else:
                which, size, following = stages.DOWN, txn.size, stages.DOWN_DONE
        elif step == stages.UPLINK_DOWN_DONE:
            which, size, following = stages.DOWN, txn.size, stages.DOWN_DONE
        elif step == stages.DOWN_DONE:
            waits = dram(st, tid, 1 if cfg.cache_writes != 0 else HOST_PASSES, stages.WRITE_IN_DRAM)
        elif step == stages.WRITE_IN_DRAM or step == stages.ISP_WRITE_READY:
            reg.hop = 0
            if cfg.cache_writes != 0 and step == stages.WRITE_IN_DRAM:
                urgent = cfg.line > 1 and txn.kind == ROW and st.row[txn.row].fua != 0
                data_cache.store(st, tid)
                if urgent:
                    padding.stored(st, dev)
                return -1
            reg.prompt = 1
            if cfg.map_entries == 0 or not cmt.wanting(st, tid):
                place_or_wait(st, tid)
            reg.prompt = 0
            return -1
        elif step == stages.MERGED:
            reg.hop = 0
            merged(st, tid)
            return -1
        elif step == stages.SUBMITTED or step == stages.ENTERED:
            if cfg.adapter > 0 and step == stages.SUBMITTED and sata_hba.full(st, tid):
                return -1
            told = True
            which, size, following = stages.DOWN, cfg.doorbell, stages.RUNG
        elif step == stages.RUNG or step == stages.CALLED:
            if cfg.fetch_limit > 0 and step == stages.RUNG and queue_pair.too_many(st, tid):
                return -1
            told = True
            which, size, following = stages.UP, cfg.request, stages.ENTRY_ASKED
        elif step == stages.ENTRY_ASKED:
            told = True
            which, size, following = stages.DOWN, cfg.entry, stages.ENTRY_IN
        elif step == stages.ENTRY_IN:
            if cfg.adapter > 0:
                st.dev[dev].fetched += 1
            if cfg.entries > 0:
                queue_pair.entry_in(st, tid)
            waits = enter(
                st, stages.station(st, dev, stages.FRONTEND), tid, 0, cfg.command, stages.FETCHED
            )
        elif step == stages.FETCHED:
            reg.hop = 0
            if fetched(st, tid):
                return tid
            reg.hop = 1
            told = True
            which, size, following = stages.UP, cfg.request, stages.DATA_ASKED
        elif step == stages.DATA_ASKED:
            which, size, following = stages.DOWN, txn.size, stages.DATA_IN
        elif step == stages.DATA_IN:
            reg.hop = 0
            if cfg.cache == mqsim_cache.BUFFER and mqsim_cache.write(st, tid):
                return -1
            command_split.cut_write(st, tid, stages.DOWN_DONE)
            return tid
        elif step == stages.DATA_READY:
            send_off(st, tid, stages.UP, txn.size)
            txn.step = stages.DATA_SENT
            return tid
        elif step == stages.COMPLETED:
            if cfg.adapter > 0:
                told = True
                which, size, following = stages.DOWN, cfg.doorbell, stages.ACKNOWLEDGED
            else:
                st.count[dev, LINK_EXTRA_DOWN_BYTES] += cfg.doorbell
                send_off(st, tid, stages.DOWN, cfg.doorbell)
                txn.step = stages.ACKNOWLEDGED
                return tid
        elif step == stages.ANSWERED or step == stages.DATA_UP:
            if step == stages.ANSWERED:
                send_off(st, tid, stages.UP, txn.size)
            told = True
            which, size, following = stages.UP, cfg.completion, stages.POSTED
        elif step == stages.ISP_READ_READY:
            waits = dram(st, tid, 1, stages.PART_DONE)
        elif step == stages.ISP_WRITE_IN_DRAM:
            link = stages.station(st, dev, stages.ISP_LINK)
            waits = enter(st, link, tid, txn.size, -1, stages.ISP_WRITE_READY)
        elif step == stages.ISP_WRITE_FETCHED:
            waits = dram(st, tid, 1, stages.ISP_WRITE_IN_DRAM)
        elif step == stages.TRAFFIC_PIECE:
            if txn.bytes_left == 0:
                return tid
            reg.hop = 0
            next_piece(st, tid, stages.TRAFFIC_PIECE)
            return -1
        elif step == stages.DMA_READY:
            if txn.bytes_left > 0:
                piece = child(st, tid, txn.lpn, 0)
                if piece < 0:
                    return -1
                st.txn[piece].bytes_left = txn.bytes_left
                txn.bytes_left = 0
                reg.hop = 0
                next_piece(st, piece, stages.DMA_READY)
            which, size, following = stages.UP, txn.size, stages.UP_DONE
        elif step == stages.DMA_UPLINK_DONE:
            which, size, following = stages.DOWN, txn.size, stages.DMA_DOWN_DONE
        elif step == stages.DMA_DOWN_DONE:
            waits = dram(st, tid, 1, stages.PART_DONE)
        elif step == stages.SERVED:
            if cfg.cache == mqsim_cache.BUFFER:
                waits = mqsim_cache.access(st, tid, txn.size, stages.READ_IN_DRAM)
            else:
                waits = dram(st, tid, 1, stages.READ_IN_DRAM)
        elif step == stages.DESTAGE:
            if cfg.cache == mqsim_cache.BUFFER:
                reg.hop = 0
                mqsim_cache.send(st, tid)
                return -1
            waits = dram(st, tid, 1, stages.DESTAGED)
        elif step == stages.TRANSLATED or step == stages.DESTAGED:
            reg.hop = 0
            if cfg.map_entries != 0 and cmt.wanting(st, tid):
                return -1
            if txn.op == timing.READ:
                command_split.sense_all(st, tid)
                return tid
            place_or_wait(st, tid)
            return -1
        elif step == stages.MAP_SENSED:
            waits = decode(st, tid, stages.MAP_DECODED)
        elif step == stages.MAP_DECODED:
            passes = HOST_PASSES if txn.role == Role.MAP_BACK and txn.ppn >= 0 else 1
            waits = dram(st, tid, passes, stages.MAP_IN_DRAM)
        elif step == stages.MAP_IN_DRAM:
            reg.hop = 0
            map_arrived(st, tid)
            return -1
        elif step == stages.AGAIN:
            reg.hop = 0
            read_retry.again(st, tid)
            return -1
        elif step == stages.CROSSED:
            row = st.row[txn.row]
            down = stages.station(st, row.lpn, stages.TUNNEL_DOWN)
            tail = st.message[row.stream].tail
            waits = enter(st, down, tid, row.bytes_in, tail, stages.PART_DONE)
        elif step == stages.TAKEN_OUT:
            waits = dram(st, tid, 1, stages.PART_DONE)
        elif step == stages.PE_DECODED:
            reg.hop = 0
            txn.op = timing.VPP
            push(st, txn.die, tid, Q_PE)
            return -1
        elif step == stages.RESTED:
            reg.hop = 0
            rested(st, tid)
            return -1
        else:  # PART_DONE, POSTED, REAPED, ACKNOWLEDGED: handled by loop.py
            return tid
        if which != NOWHERE:
            if told:
                st.count[dev, extra(which)] += size
            waits = send(st, tid, which, size, following)
        reg.hop = 0
        if waits:
            return -1
