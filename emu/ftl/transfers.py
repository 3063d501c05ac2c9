"""Transfers of transactions through stations: DRAM, host link, decoders and encoders.

Owns the service time of a transaction at each of these stations, and the counters there. Does not
own the order of the stations (engine/run/datapath.py) or the verdict on decoded pages
(read_retry.py).
Source: the data paths of Newport and Laguna, with pages stored and forwarded in the controller's
DRAM; packets on the link as in PCI Express.
"""

from __future__ import annotations

from ondie.emu.clock import transfer_ps
from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.counters import (
    ECC_DECODED_PAGES,
    ECC_ENCODED_PAGES,
    LINK_EXTRA_DOWN_BYTES,
    LINK_EXTRA_UP_BYTES,
    PE_DECODED_PAGES,
    PE_ENCODED_PAGES,
)
from ondie.emu.engine.core.events import arrive, enter, go, occupy
from ondie.emu.ftl import read_retry as reading
from ondie.kernels.jit import inline, njit

HOST_PASSES = 2
"""Number of times a host byte crosses the device's DRAM: stored, then forwarded. ISP data cross it
once."""


@inline
def dram(st, t, passes, step):
    """Pass ``t`` through the device's DRAM. Return False if that takes no time."""
    x = st.txn[t]
    station = s.station(st, x.dev, s.DRAM)
    service = -1
    if st.cfg[0].dram_row != 0:
        service = passes * by_rows(st, station, x.size)
    elif st.fifo[station].scale == 0:  # no limit
        x.step = step
        return False
    return enter(st, station, t, passes * x.size, service, step)


@inline
def extra(which):
    """Return the counter of bytes other than data in a direction of the link."""
    return LINK_EXTRA_DOWN_BYTES if which == s.DOWN else LINK_EXTRA_UP_BYTES


@njit
def by_rows(st, station, n_bytes):
    """Return the time of one DRAM access that opens row after row (ps): tRCD and tCL for each row,
    tRP between rows."""
    c = st.cfg[0]
    f = st.fifo[station]
    opened = (n_bytes + c.dram_row - 1) // c.dram_row
    time = transfer_ps(n_bytes, f.scale, f.shift) if f.scale > 0 else 0
    return time + opened * c.dram_open + max(opened - 1, 0) * c.dram_close


@inline
def packed(st, t, which, n_bytes):
    """Return (station, bytes on the wire, service time in ps or -1) of data over the device's link,
    with packet overhead."""
    x = st.txn[t]
    c = st.cfg[0]
    wire = n_bytes
    station = s.station(st, x.dev, which)
    if c.packet > 0:
        packets = 1
        if n_bytes > c.packet:
            packets = (n_bytes + c.packet - 1) // c.packet
        wire += packets * c.packet_overhead
        if c.link_shift > 0:
            wire = (wire + c.link_lanes - 1) >> c.link_shift << c.link_shift
        elif c.link_shift < 0:
            wire = (wire + c.link_lanes - 1) // c.link_lanes * c.link_lanes
        st.count[x.dev, extra(which)] += wire - n_bytes
    service = -1
    if c.link_tick > 0:
        service = transfer_ps(wire, st.fifo[station].scale, st.fifo[station].shift)
        service -= service % c.link_tick
    return station, wire, service


@inline
def send(st, t, which, n_bytes, step):
    """Send data over the device's link. Return False if there are no data, or they take no time."""
    if n_bytes == 0:
        st.txn[t].step = step
        return False
    station, wire, service = packed(st, t, which, n_bytes)
    return arrive(st, station, t, wire, service, step)


@njit
def send_off(st, t, which, n_bytes):
    """Send data over the device's link; no transaction waits for their arrival."""
    if n_bytes > 0:
        station, wire, service = packed(st, t, which, n_bytes)
        occupy(st, station, t, wire, service)


@njit
def decode(st, t, step):
    """Pass ``t`` through the decoder of the die's channel."""
    c = st.cfg[0]
    if c.errors != 0:
        return reading.decode(st, t, step)
    return coded(st, t, ECC_DECODED_PAGES, c.decode, step)


@njit
def decode_bare(st, t, step):
    """Pass the optimizer's pages through the decoder of the die's channel."""
    c = st.cfg[0]
    x = st.txn[t]
    st.count[x.dev, PE_DECODED_PAGES] += x.n
    if c.errors == 0:
        return coded(st, t, ECC_DECODED_PAGES, c.decode, step)
    st.count[x.dev, ECC_DECODED_PAGES] += x.n
    station = s.station(st, x.dev, s.ECC) + st.die[x.die].bus % c.channels
    return enter(st, station, t, x.bus, st.reading[t].time, step)


@njit
def encode_bare(st, t, step):
    """Pass the result of a die's computation through the encoder of its channel, for its parity."""
    st.count[st.txn[t].dev, PE_ENCODED_PAGES] += st.txn[t].n
    return encode(st, t, step)


@njit
def encode(st, t, step):
    """Pass ``t`` through the encoder of the die's channel."""
    return coded(st, t, ECC_ENCODED_PAGES, st.cfg[0].encode, step)


@inline
def coded(st, t, counter, time, step):
    """Pass ``t`` through the ECC engine of the die's channel, which takes ``time`` per page (ps).
    Return False if that takes no time."""
    x = st.txn[t]
    st.count[x.dev, counter] += x.n
    if time == 0:
        x.step = step
        return False
    station = s.station(st, x.dev, s.ECC) + st.die[x.die].bus % st.cfg[0].channels
    return enter(st, station, t, x.bus, x.n * time, step)


@njit
def next_piece(st, t, step):
    """Pass the next piece of a long transfer through DRAM. Pieces let other transactions use DRAM
    in between."""
    x = st.txn[t]
    x.size = min(x.left, st.cfg[0].piece)
    x.left -= x.size
    if not enter(st, s.station(st, x.dev, s.DRAM), t, x.size, -1, step):
        go(st, t, step)
