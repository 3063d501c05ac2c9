"""Data paths of a device: the next step of a transaction that leaves a station or a die.

Owns the advance of a transaction through the stages of its drive, and the calls of the stages'
handlers. Does not own the order of stages (stage_table.py), the decisions of handlers
(stage_handlers.py), or plan rows and requests (engine/run/loop.py completes the row or request of a
finished transaction).
Source: the record of a stage (engine/core/stages.py).
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.events import enter
from ondie.emu.engine.core.stages import Crossing, Handling
from ondie.emu.engine.run.stage_handlers import (
    cache_write,
    check_idle,
    continue_transfer,
    count_entry,
    enter_adapter_queue,
    execute_command,
    limit_fetches,
    place_write,
    queue_program,
    resume_translated,
    return_to_die,
    ring_completion_doorbell,
    route_command,
    route_decoded,
    route_map_page,
    route_read_data,
    route_sensed,
    route_unmapped,
    send_answer,
    send_command_data,
    send_message_down,
    send_piece,
    split_command_data,
)
from ondie.emu.ftl import read_retry
from ondie.emu.ftl.completion import on_translation_page_read, write_collected_page
from ondie.emu.ftl.transfers import decode, decode_bare, dram, send
from ondie.emu.ftl.write_path import on_rest_read
from ondie.emu.nvme import mqsim_cache, mqsim_cache_dram
from ondie.kernels.jit import inline, njit


@njit
def decide(st, tid, step):
    """Call the handler that selects the next stage of transaction ``tid`` after ``step``. Return
    that stage, or WAITS if the transaction waits.
    """
    if step == stages.ENCODED:
        return queue_program(st, tid)
    if step == stages.WRITE_IN_DRAM:
        if st.cfg[0].cache_writes != 0:
            return cache_write(st, tid)
        return place_write(st, tid)
    if step == stages.ISP_WRITE_READY:
        return place_write(st, tid)
    if step == stages.SENSED:
        return route_sensed(st, tid)
    if step == stages.DECODED:
        return route_decoded(st, tid)
    if step == stages.READ_UNMAPPED:
        return route_unmapped(st, tid)
    if step == stages.READ_IN_DRAM:
        return route_read_data(st, tid)
    if step == stages.SUBMITTED:
        return enter_adapter_queue(st, tid)
    if step == stages.RUNG:
        return limit_fetches(st, tid)
    if step == stages.ENTRY_IN:
        return count_entry(st, tid)
    if step == stages.PARSED:
        return route_command(st, tid)
    if step == stages.FETCHED:
        return execute_command(st, tid)
    if step == stages.DATA_IN:
        return split_command_data(st, tid)
    if step == stages.DATA_READY:
        return send_command_data(st, tid)
    if step == stages.ANSWERED:
        return send_answer(st, tid)
    if step == stages.COMPLETED:
        return ring_completion_doorbell(st, tid)
    if step == stages.MAP_DECODED:
        return route_map_page(st, tid)
    if step == stages.TRANSLATED or step == stages.DESTAGED:
        return resume_translated(st, tid)
    if step == stages.DMA_READY:
        return send_piece(st, tid)
    if step == stages.TRAFFIC_PIECE:
        return continue_transfer(st, tid)
    if step == stages.CROSSED:
        return send_message_down(st, tid)
    if step == stages.PE_DECODED:
        return return_to_die(st, tid)
    return check_idle(st, tid)  # RESTED


@njit
def hand_over(st, tid, step):
    """Pass transaction ``tid`` to the function that continues the transaction after ``step``. The
    function is in another package."""
    if step == stages.MOVE_IN_DRAM:
        write_collected_page(st, tid)
    elif step == stages.MERGED:
        on_rest_read(st, tid)
    elif step == stages.MAP_IN_DRAM:
        on_translation_page_read(st, tid)
    elif step == stages.AGAIN:
        read_retry.read_again(st, tid)
    else:  # DESTAGE
        mqsim_cache.send(st, tid)


@inline
def cross(st, tid, stage):
    """Pass transaction ``tid`` through the link, the DRAM, the decoder or another station, as
    ``stage`` specifies.

    Return False if the transaction does not have to wait.
    """
    txn = st.txn[tid]
    size = stage.bytes
    if size < 0:
        size = txn.size
    if stage.crossing == Crossing.LINK:
        if stage.counter >= 0:
            st.count[txn.dev, stage.counter] += size
        return send(st, tid, stage.station, size, stage.next)
    if stage.crossing == Crossing.DRAM:
        return dram(st, tid, stage.passes, stage.next)
    if stage.crossing == Crossing.DECODER:
        return decode(st, tid, stage.next)
    if stage.crossing == Crossing.BARE_DECODER:
        return decode_bare(st, tid, stage.next)
    if stage.crossing == Crossing.BUFFER:
        return mqsim_cache_dram.access(st, tid, size, stage.next)
    if stage.crossing == Crossing.CONTINUE:
        return False
    station = stage.station
    if stage.crossing == Crossing.DRIVE:
        station = stages.station(st, txn.dev, station)
    return enter(st, station, tid, size, stage.time, stage.next)


@njit
def travel(st, tid):
    """Advance transaction ``tid`` from its last completed step until it waits or is finished.

    Return -1 if the transaction waits, or ``tid`` if it is finished. A station may advance the
    clock directly to the end of a crossing (``reg.hop``), if no other event precedes that end.
    """
    while True:
        step = st.txn[tid].step
        handling = st.stage[step].handling
        if handling == Handling.DECIDES:
            step = decide(st, tid, step)
            if step < 0:
                return -1
        elif handling == Handling.TAKES:
            hand_over(st, tid, step)
            return -1
        stage = st.stage[step]
        if stage.crossing == Crossing.NOTHING:
            return tid
        st.reg[0].hop = 1
        waits = cross(st, tid, stage)
        st.reg[0].hop = 0
        if waits:
            return -1
