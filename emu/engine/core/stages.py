"""Numbering of the first-in first-out stations of a system and of the steps of a transaction.

Owns the numbers of stations, steps and branches, which front end, device and system share, and the
record type of a stage. Does not own the rates of stations (engine/run/build.py) or the stages
(engine/run/stage_table.py).
Source: the block diagram in the README (host, PCIe, front end, back end, ISP, tunnel).
"""

from __future__ import annotations

from enum import IntEnum

from ondie.emu.engine.core.state import record_type, rounded_up
from ondie.kernels.jit import njit

# Stations of the host, one of each per system.
CPU, ACCELERATOR, SUBMIT, UPLINK_DOWN, UPLINK_UP, RELAY = range(6)
HOST_STATIONS = 6
HOST_NAMES = (
    "host CPU", "accelerator", "host submission", "uplink down", "uplink up", "host relay",
)  # fmt: skip
# Stations of each device; the ECC engines of its channels follow.
# TIMER holds commands until they arrive; one per device, because arrivals are sorted by device.
# REST is the idle timer: it expires after the host has been idle for a time (nvme/idle_timer.py).
(
    FRONTEND, READ_FIRMWARE, WRITE_FIRMWARE, DOWN, UP, DRAM, ISP, ISP_LINK, ISP_LINK_DOWN,
    TUNNEL_UP, TUNNEL_DOWN, TIMER, REST, ECC,
) = range(14)  # fmt: skip
DEVICE_NAMES = (
    "front end", "firmware of reads", "firmware of writes", "link down", "link up", "DRAM", "ISP",
    "ISP flash path", "ISP flash writes", "tunnel up", "tunnel down", "timer", "idle timer",
)  # fmt: skip

# Last completed step of a transaction, which selects the next step (engine/run/stage_table.py).
(
    ARRIVED,  # arrival time reached
    SUBMITTED,  # the host CPU has written the submission queue entry
    ENTERED,  # entered the adapter's queue after a wait
    RUNG,  # the doorbell has arrived
    CALLED,  # a held command may be fetched: the drive was at its command limit
    ENTRY_ASKED,  # the drive has requested the entry
    ENTRY_IN,  # the entry has arrived
    PARSED,  # the front end has decoded the command; its firmware latency follows
    FETCHED,  # the command may be executed
    DATA_ASKED,  # the drive has requested the data of a whole command
    DATA_IN,  # the data has arrived
    WRITE_FETCHED,  # a piece of a write is requested
    UPLINK_DOWN_DONE, DOWN_DONE, WRITE_IN_DRAM, MERGED, ENCODED,
    SENSED,  # the data has left the die
    READ_UNMAPPED,  # zeros from the controller
    DECODED, READ_IN_DRAM, UP_DONE,
    PART_DONE,  # this transaction of a plan row or request is complete; others may be in flight
    DATA_READY,  # all data of a read command are in the drive's DRAM
    DATA_SENT,  # the data is in transit to host memory
    ANSWERED,  # the data and then the completion entry may be sent to the host
    DATA_UP,  # the completion entry may be sent
    POSTED,  # the completion entry is in host memory
    REAPED,  # the host CPU has processed the completion
    COMPLETED,  # the host has seen it
    ACKNOWLEDGED,  # the host has rung the completion doorbell
    MOVE_SENSED, MOVE_DECODED, MOVE_IN_DRAM,
    ISP_WRITE_FETCHED, ISP_WRITE_IN_DRAM, ISP_WRITE_READY, ISP_READ_READY, TRAFFIC_PIECE,
    DMA_READY, DMA_DOWN_DONE,
    DMA_UPLINK_DONE,
    TRANSLATED,  # the mapping entries of its pages are known
    MAP_SENSED, MAP_DECODED, MAP_IN_DRAM,
    AGAIN,  # the page that was read was uncorrectable and is read again
    SERVED,  # data cache hit
    DESTAGE,  # a page of the data cache must be written to flash
    DESTAGED,  # that page has left DRAM
    PASSED,  # first of two program passes of its word line
    RESTED,  # the idle timer has expired; the host may have been active since then
    PE_DECODED,  # the optimizer's pages are corrected and return to their die
    TAKEN_OUT,  # a stripe has left its die's registers for the controller
    CROSSED,  # a message has reached the host; its last part goes down to another drive
) = range(55)  # fmt: skip
# Branches: stages that a handler selects instead of the stage that usually follows a step.
(
    PARSED_WRITE,  # any command but a read
    SENSED_REST,  # the rest of a page that a write covers partially
    SENSED_FOR_CONTROLLER,  # a super-page that the controller keeps
    SENSED_BARE_FOR_CONTROLLER,  # such a super-page, with ECC in the controller
    SENSED_BARE,  # a super-page of the reservoir for the host, with ECC in the controller
    SENSED_RESERVOIR,  # a super-page of the reservoir for the host
    DECODED_FOR_ISP,
    UNMAPPED_FOR_ISP,
    MAP_DECODED_FOR_MERGE,  # a translation page that is changed and written back
    ADVANCED,  # the handler has completed the next step itself
    FINISHED,
) = range(CROSSED + 1, CROSSED + 12)
STEPS = FINISHED + 1

WAITS = -1
"""Result of a handler: the transaction waits, or was added to the list of another transaction."""


class Crossing(IntEnum):
    """Resource that a transaction occupies in a stage of its data path."""

    NOTHING = 0  # the transaction is finished
    CONTINUE = 1  # nothing; the next stage follows at once
    LINK = 2  # the drive's host link
    DRAM = 3  # the drive's DRAM
    BUFFER = 4  # the drive's DRAM, timed by the destage buffer
    DECODER = 5  # the ECC engine of the die's channel
    BARE_DECODER = 6  # the same, for data of the reservoir
    DRIVE = 7  # another station of the drive
    HOST = 8  # a station of the host


class Handling(IntEnum):
    """Action of a stage's handler on a transaction before the transaction occupies the resource of
    the stage (:class:`Crossing`)."""

    NONE = 0
    DECIDES = 1  # a handler returns the stage that follows, or WAITS
    TAKES = 2  # a handler takes the transaction over, which waits


STAGE = rounded_up(
    record_type(
        time="i8",  # ps at the station; -1: by bytes and rate
        bytes="i8",  # -1: the size of the transaction
        next="i4",  # step that is complete afterwards
        station="i2",
        counter="i2",  # counter of these bytes; -1: none
        crossing="i1",  # Crossing
        handling="i1",  # Handling
        passes="i1",  # times that the bytes cross the DRAM
    )
)
"""Record type of a stage of a drive's data paths: the resource to cross, the number of bytes, and
the step that is complete afterwards. The stage table (engine/run/stage_table.py) is indexed by step
or branch.
"""


@njit
def station(st, dev, which):
    """Return the index in table ``fifo`` of station ``which`` (FRONTEND to ECC) of device ``dev``.

    For ECC, this is the index of the station of channel 0. Add n for the index of the station of
    channel n.
    """
    return HOST_STATIONS + dev * (ECC + st.cfg[0].channels) + which
