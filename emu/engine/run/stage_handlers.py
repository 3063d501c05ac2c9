"""Handlers of stages: actions on a transaction before it crosses the next station.

Owns the decisions that the stage table cannot express. Each handler returns the next stage: its
current stage, a branch, FINISHED, or WAITS. Does not own the order of stages (stage_table.py, which
lists the branches of each handler), the crossings, or the handlers that only call another package
(both in datapath.py).
Source: STANNIS (DAC 2020) for Newport and HyperTune (HeydariGorji et al.) for Laguna; NVMe base
specification for the messages of a command.
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
from ondie.emu.engine.core.transaction import child, has_fua
from ondie.emu.ftl import cmt, map_checkpoint, padding, refresh, reservoir
from ondie.emu.ftl.gc import maybe_start_gc, queue_of
from ondie.emu.ftl.transfers import next_piece, send_off
from ondie.emu.ftl.write_path import check_for_collection, place_or_wait
from ondie.emu.nand import event_order, timing
from ondie.emu.nand.die import Q_PE, Q_WRITE
from ondie.emu.nand.die_scheduler import push, push_in_order
from ondie.emu.nvme import (
    command_split,
    data_cache,
    idle_timer,
    mqsim_cache,
    queue_pair,
    sata_hba,
    write_errors,
)
from ondie.kernels.jit import cold, inline, njit


@inline
def of_isp(st, txn):
    """Return True if transaction ``txn`` belongs to a command of the ISP."""
    return txn.kind == ROW and st.row[txn.row].resource == st.cfg[0].isp_io


# --- messages of an NVMe command


@cold
def enter_adapter_queue(st, tid):
    """Enter a request into the queue of the SATA adapter, or hold it until the queue has room."""
    return stages.WAITS if sata_hba.wait_if_full(st, tid) else stages.SUBMITTED


@cold
def limit_fetches(st, tid):
    """Hold command ``tid`` while the drive is processing the maximum number of commands of the
    command's queue pair."""
    return stages.WAITS if queue_pair.hold_at_limit(st, tid) else stages.RUNG


@cold
def count_entry(st, tid):
    """Count an entry of the SATA adapter's queue or of a queue pair as fetched."""
    if st.cfg[0].adapter > 0:
        st.dev[st.txn[tid].dev].fetched += 1
    if st.cfg[0].entries > 0:
        queue_pair.count_fetched(st, tid)
    return stages.ENTRY_IN


@inline
def route_command(st, tid):
    """Select the firmware latency of a decoded command: for reads or for other commands."""
    return stages.PARSED if st.txn[tid].op == timing.READ else stages.PARSED_WRITE


@njit
def execute_command(st, tid):
    """Execute an NVMe command that the front end has decoded.

    The transaction is then finished, except for a write whose data first crosses the link in one
    transfer.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    st.count[dev, COMMANDS] += 1
    if st.dev[dev].protected != 0 and write_errors.refuse(st, tid):
        return stages.FINISHED
    if txn.op == timing.READ:
        st.count[dev, HOST_READ_BYTES] += txn.size
        command_split.cut_read(st, tid)
    elif txn.op == timing.PROGRAM:
        st.count[dev, HOST_WRITE_BYTES] += txn.size
        if cfg.meta_maps != 0:
            map_checkpoint.on_host_write(st, dev, txn.size)
        if cfg.line > 1:
            padding.count_fua_pages(st, tid)
        if cfg.whole_commands != 0:
            return stages.FETCHED
        command_split.cut_write(st, tid, stages.WRITE_FETCHED)
    elif txn.role != Role.TRIMMING:
        if cfg.trim_maps != 0 and cfg.cache_safe == 0:
            command_split.flush_trims(st, tid)
        if cfg.cache_writes != 0:
            if st.dev[dev].full != 0 and write_errors.fail_flush(st, tid):
                return stages.FINISHED
            if cfg.cache_safe == 0:
                command_split.flush(st, tid)
                if cfg.line > 1:
                    padding.pad_for_cache(st, dev)
    else:
        command_split.cut_trim(st, tid)
        if cfg.static == 0:
            check_for_collection(st, dev, dev * cfg.units)
        else:
            for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
                check_for_collection(st, dev, unit)
    return stages.FINISHED


@cold
def split_command_data(st, tid):
    """Pass all data of a write command to the destage buffer, or split the data into pages."""
    if st.cfg[0].cache == mqsim_cache.BUFFER and mqsim_cache.write(st, tid):
        return stages.WAITS
    command_split.cut_write(st, tid, stages.DOWN_DONE)
    return stages.FINISHED


@njit
def send_command_data(st, tid):
    """Send all data of a read command to the host; another transaction carries the completion."""
    send_off(st, tid, stages.UP, st.txn[tid].size)
    st.txn[tid].step = stages.DATA_SENT
    return stages.FINISHED


@njit
def send_answer(st, tid):
    """Send all data of a read command to the host; the completion follows directly."""
    send_off(st, tid, stages.UP, st.txn[tid].size)
    return stages.DATA_UP


@njit
def ring_completion_doorbell(st, tid):
    """Send the doorbell of a completion over the link. No other action waits for the doorbell's
    arrival.
    """
    size = st.cfg[0].doorbell
    st.count[st.txn[tid].dev, LINK_EXTRA_DOWN_BYTES] += size
    send_off(st, tid, stages.DOWN, size)
    st.txn[tid].step = stages.ACKNOWLEDGED
    return stages.FINISHED


# --- reads


@njit
def route_sensed(st, tid):
    """Select the path of data that has left a die, by the role of its transaction and the kind of
    its plan row."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    if txn.role == Role.NONE:
        return stages.SENSED
    if txn.role == Role.MERGING:
        return stages.SENSED_REST
    kind = st.row[txn.row].kind
    if kind == timing.SCAN:
        return stages.SENSED_FOR_CONTROLLER
    if kind == timing.LIFT:
        if cfg.round_trip != 0:
            return stages.SENSED_BARE_FOR_CONTROLLER
        return stages.SENSED_FOR_CONTROLLER
    if cfg.round_trip != 0:
        return stages.SENSED_BARE
    return stages.SENSED_RESERVOIR


@njit
def route_decoded(st, tid):
    """Return the next stage of a decoded page: the transfer to the ISP or to the host. If reads
    fill the drive's cache (``cache_fills``), also store the page of an ordinary host read in the
    cache."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    if of_isp(st, txn):
        return stages.DECODED_FOR_ISP
    if cfg.cache_fills != 0 and txn.role == Role.NONE:
        fill_cache(st, tid)
    return stages.DECODED


@cold
def fill_cache(st, tid):
    """Store the data of a flash read in the data cache or the destage buffer."""
    if st.cfg[0].cache == mqsim_cache.BUFFER:
        mqsim_cache.fill(st, tid)
    else:
        data_cache.fill(st, tid)


@njit
def route_unmapped(st, tid):
    """Route the zeros that are returned for an unmapped page to the ISP or to the host."""
    return stages.UNMAPPED_FOR_ISP if of_isp(st, st.txn[tid]) else stages.READ_UNMAPPED


@njit
def route_read_data(st, tid):
    """Route read data from DRAM to the host. Finish the transaction instead if the ISP reads the
    data, or if all data of the command is sent later in one transfer."""
    txn = st.txn[tid]
    if of_isp(st, txn) or (st.cfg[0].whole_commands != 0 and txn.role == Role.NONE):
        return stages.FINISHED
    return stages.READ_IN_DRAM


@cold
def route_map_page(st, tid):
    """Select the number of DRAM passes of a translation page: two if the page is changed and
    written back, otherwise one.

    A page that was read for scrubbing is not stored in DRAM.
    """
    txn = st.txn[tid]
    if txn.role == Role.SCRUB:
        refresh.on_scrubbed(st, tid)
        return stages.WAITS
    if txn.role == Role.MAP_BACK and txn.ppn >= 0:
        return stages.MAP_DECODED_FOR_MERGE
    return stages.MAP_DECODED


# --- writes


@njit
def place_write(st, tid):
    """Allocate a flash page for a written page in DRAM, as soon as the mapping entry of the page is
    available.
    """
    cfg = st.cfg[0]
    st.reg[0].prompt = 1
    if cfg.map_entries == 0 or not cmt.waits_for_mapping(st, tid):
        place_or_wait(st, tid)
    st.reg[0].prompt = 0
    return stages.WAITS


@njit
def cache_write(st, tid):
    """Store a write in the data cache.

    For a write that completes on flash (FUA), request padding of incomplete word lines.
    """
    txn = st.txn[tid]
    dev = txn.dev
    if st.dev[dev].full != 0 and write_errors.refuse_cached(st, tid):
        return stages.WAITS
    urgent = st.cfg[0].line > 1 and has_fua(st, tid)
    data_cache.store(st, tid)
    if urgent:
        padding.request_padding(st, dev)
    return stages.WAITS


@njit
def queue_program(st, tid):
    """Append program ``tid``, whose page is encoded, to a queue of its die. The kind and the role
    of the transaction select the queue. If whole word lines are programmed together, add a
    conventional page to its word line instead."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    if cfg.line > 1 and txn.role != Role.RESERVOIR and txn.role < Role.REGISTERS:
        padding.join_word_line(st, tid)
        return stages.WAITS
    queue = Q_WRITE
    if txn.kind == OWN:
        queue = queue_of(st, txn)
    elif txn.role == Role.RESERVOIR or txn.role == Role.GRADIENT:
        queue = Q_PE
    elif txn.role == Role.MADE:
        reservoir.wait_for_registers(st, tid)
    elif cfg.placed != 0 and txn.role == Role.MERGING:
        push_in_order(st, st.die[txn.die].first, tid, Q_WRITE)
        return stages.WAITS
    event_order.submit(st, st.die[txn.die].first, tid, queue)
    return stages.WAITS


@cold
def resume_translated(st, tid):
    """Continue transaction ``tid``, whose mapping entries are available: read its pages from flash,
    or allocate flash pages for its write.
    """
    if st.cfg[0].map_entries != 0 and cmt.waits_for_mapping(st, tid):
        return stages.WAITS
    if st.txn[tid].op == timing.READ:
        command_split.sense_all(st, tid)
        return stages.FINISHED
    place_or_wait(st, tid)
    return stages.WAITS


# --- long transfers, messages between drives, timer


@njit
def continue_transfer(st, tid):
    """Occupy DRAM with the next piece of transaction ``tid``, which models data that a plan row
    reads from or writes to DRAM. If no bytes are left, return FINISHED: the transaction ends.
    """
    if st.command[tid].bytes_left == 0:
        return stages.FINISHED
    next_piece(st, tid, stages.TRAFFIC_PIECE)
    return stages.WAITS


@njit
def send_piece(st, tid):
    """Send transaction ``tid``, which carries one piece of a DMA, up the link to the host. If bytes
    of the DMA remain, first create a transaction for these bytes and pass its first piece through
    DRAM."""
    command = st.command[tid]
    if command.bytes_left > 0:
        piece = child(st, tid, st.txn[tid].lpn, 0)
        if piece < 0:
            return stages.WAITS
        st.command[piece].bytes_left = command.bytes_left
        command.bytes_left = 0
        next_piece(st, piece, stages.DMA_READY)
    return stages.DMA_READY


@cold
def send_message_down(st, tid):
    """Send the tail of a message, whose other parts have reached the host, down to the destination
    drive.
    """
    txn = st.txn[tid]
    row = st.row[txn.row]
    down = stages.station(st, row.lpn, stages.TUNNEL_DOWN)
    tail = st.message[row.stream].tail
    st.reg[0].hop = 1
    waits = enter(st, down, tid, row.bytes_in, tail, stages.PART_DONE)
    st.reg[0].hop = 0
    return stages.WAITS if waits else stages.ADVANCED


@cold
def return_to_die(st, tid):
    """Queue corrected pages of the optimizer for transfer back to the registers of their die."""
    txn = st.txn[tid]
    txn.op = timing.VPP
    push(st, txn.die, tid, Q_PE)
    return stages.WAITS


@cold
def check_idle(st, tid):
    """Handle the expiry of the idle timer: if the drive has been idle, check every unit for garbage
    collection and pSLC folding.
    """
    cfg = st.cfg[0]
    dev = st.txn[tid].dev
    if idle_timer.on_expired(st, tid):
        for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
            maybe_start_gc(st, dev, unit)
    return stages.WAITS
