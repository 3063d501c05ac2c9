"""Start of plan rows whose data does not cross flash: tunnel messages, and host data for the DRAM.

Owns the start of these rows. Does not own other rows (loop.py) or the cost of messages
(nvme/tunnel/).
Source: the plan format (engine/core/plan_rows.py).
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    DOWN_BYTES,
    TUNNEL_BYTES,
    TUNNEL_COMMANDS,
    TUNNEL_WIRE_BYTES,
)
from ondie.emu.engine.core.error_codes import E_PAST_END
from ondie.emu.engine.core.events import enter, fail, go
from ondie.emu.engine.core.plan_rows import ACROSS, DOWNWARD
from ondie.emu.engine.run.start_die import take_part
from ondie.kernels.jit import cold, njit

MAX_PIECES = 64
"""Maximum number of pieces into which a plan row's transfer from host to drive is split."""


@njit
def occupy_station(st, station, tid, time):
    """Occupy a station for ``time`` ps with transaction ``tid``. The transaction is finished after
    this time.
    """
    if not enter(st, station, tid, 0, time, stages.PART_DONE):
        go(st, tid, stages.PART_DONE)


@cold
def start_message(st, rid, tid):
    """Start a tunnel message: from a drive up to the host, down to a drive, or across to another
    drive.

    The message also occupies the host relay, starting at the same time. If drives share an uplink,
    the message also occupies the uplink. The message is delivered when all these occupations have
    ended.
    """
    row = st.row[rid]
    dev = row.device
    message = st.message[row.stream]
    st.count[dev, TUNNEL_COMMANDS] += message.commands
    st.count[dev, TUNNEL_WIRE_BYTES] += message.wire_up + message.wire_down
    occupy_station(st, stages.RELAY, take_part(st, rid), message.relay)
    if st.cfg[0].shared_uplink != 0:
        for station, size in (
            (stages.UPLINK_UP, message.wire_up),
            (stages.UPLINK_DOWN, message.wire_down),
        ):
            other = take_part(st, rid)
            if not enter(st, station, other, size, -1, stages.PART_DONE):
                go(st, other, stages.PART_DONE)
    if row.kind == DOWNWARD:
        st.count[dev, TUNNEL_BYTES] += row.bytes_in
        down = stages.station(st, dev, stages.TUNNEL_DOWN)
        if not enter(st, down, tid, row.bytes_in, message.body + message.tail, stages.PART_DONE):
            go(st, tid, stages.PART_DONE)
        return
    st.count[dev, TUNNEL_BYTES] += row.bytes_in
    following = stages.PART_DONE
    if row.kind == ACROSS:
        if row.lpn < 0 or row.lpn >= st.dev.shape[0]:
            fail(st, E_PAST_END, row.lpn, 1)
            return
        st.count[row.lpn, TUNNEL_BYTES] += row.bytes_in
        down = stages.station(st, row.lpn, stages.TUNNEL_DOWN)
        occupy_station(st, down, take_part(st, rid), message.body)
        following = stages.CROSSED
    if not enter(
        st, stages.station(st, dev, stages.TUNNEL_UP), tid, row.bytes_in, message.up, following
    ):
        go(st, tid, following)


@njit
def start_dma_down(st, rid, tid):
    """Send the bytes of row ``rid`` from the host to the drive's DRAM in pieces, so that one piece
    enters DRAM while the next piece crosses the link.
    """
    row = st.row[rid]
    dev = row.device
    st.count[dev, DOWN_BYTES] += row.bytes_in
    piece = max(st.cfg[0].piece, row.bytes_in // MAX_PIECES + 1)
    left = row.bytes_in
    while True:
        txn = st.txn[tid]
        txn.size = min(left, piece)
        left -= txn.size
        if st.cfg[0].shared_uplink == 0:
            go(st, tid, stages.DMA_UPLINK_DONE)
        elif not enter(st, stages.UPLINK_DOWN, tid, txn.size, -1, stages.DMA_UPLINK_DONE):
            go(st, tid, stages.DMA_UPLINK_DONE)
        if left == 0:
            return
        tid = take_part(st, rid)
