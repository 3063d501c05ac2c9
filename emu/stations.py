"""Where the first-in first-out stations of a system stand, and the steps between them.

Owns the numbering of stations and steps, shared by front end, device and system. Does not own
rates.
Source: the README's block diagram: host, PCIe, front end, back end, ISP, tunnel.
"""

from __future__ import annotations

from ondie.kernels.jit import njit

# Stations of the host, one each per system.
CPU, ACCELERATOR, SUBMIT, UPLINK_DOWN, UPLINK_UP = range(5)
HOST_STATIONS = 5
HOST_NAMES = ("host CPU", "accelerator", "host submission", "uplink down", "uplink up")
# Stations of each device; the ECC engines of its channels follow.
# TIMER holds commands until they arrive; devices have one each, as arrivals are sorted by device.
FRONTEND, DOWN, UP, DRAM, ISP, ISP_LINK, TUNNEL_UP, TUNNEL_DOWN, TIMER, ECC = range(10)
DEVICE_NAMES = (
    "front end", "link down", "link up", "DRAM", "ISP", "ISP flash path", "tunnel up",
    "tunnel down", "timer",
)  # fmt: skip

# What happens to a transaction when it leaves its station.
(
    ARRIVED, SUBMITTED, FETCHED, UPLINK_DOWN_DONE, DOWN_DONE, WRITE_IN_DRAM, ISP_WRITE_READY,
    ENCODED, DECODED, ISP_READ_READY, READ_IN_DRAM, UP_DONE, ROW_PART_DONE, MOVE_DECODED,
    MOVE_IN_DRAM, TRAFFIC_PIECE, DMA_READY, DMA_DOWN_DONE, DMA_UPLINK_DONE, ISP_WRITE_IN_DRAM,
) = range(20)  # fmt: skip


@njit
def station(st, dev, which):
    """Index of a device's station."""
    return HOST_STATIONS + dev * (ECC + st.cfg[0].channels) + which
