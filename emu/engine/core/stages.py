"""Where the first-in first-out stations of a system stand, and the steps between them.

Owns the numbering of stations and steps, shared by front end, device and system. Does not own
rates.
Source: the README's block diagram: host, PCIe, front end, back end, ISP, tunnel.
"""

from __future__ import annotations

from ondie.kernels.jit import njit

# Stations of the host, one each per system.
CPU, ACCELERATOR, SUBMIT, UPLINK_DOWN, UPLINK_UP, RELAY = range(6)
HOST_STATIONS = 6
HOST_NAMES = (
    "host CPU", "accelerator", "host submission", "uplink down", "uplink up", "host relay",
)  # fmt: skip
# Stations of each device; the ECC engines of its channels follow.
# TIMER holds commands until they arrive; devices have one each, as arrivals are sorted by device.
# REST runs out when the host has been quiet for a while (frontend/quiet.py).
FRONTEND, DOWN, UP, DRAM, ISP, ISP_LINK, TUNNEL_UP, TUNNEL_DOWN, TIMER, REST, ECC = range(11)
DEVICE_NAMES = (
    "front end", "link down", "link up", "DRAM", "ISP", "ISP flash path", "tunnel up",
    "tunnel down", "timer", "timer of rests",
)  # fmt: skip

# What a transaction has behind it, and so what comes next (flows.py).
(
    ARRIVED,  # its time has come
    SUBMITTED,  # the host's CPU has written the entry
    ENTERED,  # there was room for it in the adapter's queue, after a wait
    RUNG,  # the doorbell has arrived
    CALLED,  # the drive works on fewer commands, and has come to this one
    ENTRY_ASKED,  # the drive has asked for the entry
    ENTRY_IN,  # the entry has arrived
    FETCHED,  # the firmware has understood it
    DATA_ASKED,  # the drive has asked for the data of a whole command
    DATA_IN,  # they have arrived
    WRITE_FETCHED,  # a piece of a write is asked for
    UPLINK_DOWN_DONE, DOWN_DONE, WRITE_IN_DRAM, MERGED, ENCODED,
    SENSED,  # data are out of the die
    READ_UNMAPPED,  # zeros from the controller
    DECODED, READ_IN_DRAM, UP_DONE,
    PART_DONE,  # nothing more to do for its row or request
    DATA_READY,  # all data of a read command are in the drive's DRAM
    DATA_SENT,  # they are on their way to host memory
    ANSWERED,  # they may go there, and the completion entry right behind them
    DATA_UP,  # the completion entry may follow
    POSTED,  # the completion entry is in host memory
    REAPED,  # the host has taken its time for it
    COMPLETED,  # the host has seen it
    ACKNOWLEDGED,  # the host has told that it has seen it
    MOVE_SENSED, MOVE_DECODED, MOVE_IN_DRAM,
    ISP_WRITE_FETCHED, ISP_WRITE_IN_DRAM, ISP_WRITE_READY, ISP_READ_READY, TRAFFIC_PIECE,
    DMA_READY, DMA_DOWN_DONE,
    DMA_UPLINK_DONE,
    TRANSLATED,  # the places of its pages are known
    MAP_SENSED, MAP_DECODED, MAP_IN_DRAM,
    AGAIN,  # its page was given up, and is read once more
    SERVED,  # a page is in the data cache
    DESTAGE,  # a page of it is to be written to flash
    DESTAGED,  # it has left DRAM for that
    PASSED,  # the first of two passes over its word line
    RESTED,  # the host was quiet for a while, or so it seemed
    PE_DECODED,  # the optimizer's pages are corrected, and go back to their die
    TAKEN_OUT,  # a stripe has left its die's registers for the controller
    CROSSED,  # a message is up in the host, and the rest of it goes down to another drive
) = range(54)  # fmt: skip


@njit
def station(st, dev, which):
    """Index of a device's station."""
    return HOST_STATIONS + dev * (ECC + st.cfg[0].channels) + which
