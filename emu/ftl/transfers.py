"""Transfers of transactions through stations: DRAM, host link, decoders and encoders.

Owns the service time of a transaction at each of these stations, the counters of the transfers, and
the start of programs by firmware. Does not own the order of the stations (engine/run/datapath.py)
or the outcome of decoding (read_retry.py).
Source: the data paths of Newport and Laguna, with pages stored and forwarded in the controller's
DRAM; packets on the link as in PCI Express.
"""

from __future__ import annotations

from ondie.emu.clock import transfer_ps
from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    ECC_DECODED_PAGES,
    ECC_ENCODED_PAGES,
    LINK_EXTRA_DOWN_BYTES,
    LINK_EXTRA_UP_BYTES,
    PE_DECODED_PAGES,
    PE_ENCODED_PAGES,
)
from ondie.emu.engine.core.events import (
    arrive,
    enter,
    go,
    occupy,
)
from ondie.emu.ftl import page_map, read_retry
from ondie.emu.nand.timing import PROGRAM
from ondie.kernels.jit import inline, njit

HOST_PASSES = 2
"""Number of times that host data crosses the device's DRAM: once when it is stored, and once when
it is forwarded.

ISP data crosses the DRAM once.
"""


@inline
def dram(st, tid, passes, step):
    """Pass the data of ``tid`` through the device's DRAM ``passes`` times, then continue at stage
    ``step``. Return False if the transfer takes no time.
    """
    txn = st.txn[tid]
    station = stages.station(st, txn.dev, stages.DRAM)
    service = -1
    if st.cfg[0].dram_row != 0:
        service = passes * by_rows(st, station, txn.size)
    elif st.fifo[station].scale == 0:  # no limit
        txn.step = step
        return False
    return enter(st, station, tid, passes * txn.size, service, step)


@njit
def start_program(st, tid, ppn):
    """Start the program of page ``ppn`` with data that firmware has composed in DRAM (transaction
    ``tid``).
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    txn.op = PROGRAM
    txn.ppn = ppn
    txn.size = cfg.page_bytes
    txn.bus = cfg.page_bytes
    page_map.set_place(st, txn.dev, tid)
    txn.array = st.page_ps[1, txn.page]
    if not encode(st, tid, stages.ENCODED):
        go(st, tid, stages.ENCODED)


@inline
def extra(which):
    """Return the counter of overhead bytes (bytes other than data) for link direction ``which``."""
    return LINK_EXTRA_DOWN_BYTES if which == stages.DOWN else LINK_EXTRA_UP_BYTES


@njit
def by_rows(st, station, n_bytes):
    """Return the time of one DRAM access that opens one row after another (ps): the transfer time,
    tRCD and tCL for each row, and tRP between rows.
    """
    cfg = st.cfg[0]
    fifo = st.fifo[station]
    opened = (n_bytes + cfg.dram_row - 1) // cfg.dram_row
    time = transfer_ps(n_bytes, fifo.scale, fifo.shift) if fifo.scale > 0 else 0
    return time + opened * cfg.dram_open + max(opened - 1, 0) * cfg.dram_close


@inline
def packed(st, tid, which, n_bytes):
    """Return (station, bytes on the wire including packet overhead, service time in ps) of a
    transfer of ``n_bytes`` over the device's link in direction ``which`` (stages.UP or
    stages.DOWN). The service time is -1 if the rate of the station determines the time.
    """
    txn = st.txn[tid]
    cfg = st.cfg[0]
    wire = n_bytes
    station = stages.station(st, txn.dev, which)
    if cfg.packet > 0:
        packets = 1
        if n_bytes > cfg.packet:
            packets = (n_bytes + cfg.packet - 1) // cfg.packet
        wire += packets * cfg.packet_overhead
        if cfg.link_shift > 0:
            wire = (wire + cfg.link_lanes - 1) >> cfg.link_shift << cfg.link_shift
        elif cfg.link_shift < 0:
            wire = (wire + cfg.link_lanes - 1) // cfg.link_lanes * cfg.link_lanes
        st.count[txn.dev, extra(which)] += wire - n_bytes
    service = -1
    if cfg.link_tick > 0:
        service = transfer_ps(wire, st.fifo[station].scale, st.fifo[station].shift)
        service -= service % cfg.link_tick
    return station, wire, service


@inline
def send(st, tid, which, n_bytes, step):
    """Send ``n_bytes`` over the device's link, then continue at stage ``step``. Return False if
    there is no data or the transfer takes no time.
    """
    if n_bytes == 0:
        st.txn[tid].step = step
        return False
    station, wire, service = packed(st, tid, which, n_bytes)
    return arrive(st, station, tid, wire, service, step)


@njit
def send_off(st, tid, which, n_bytes):
    """Send ``n_bytes`` over the device's link in direction ``which`` (stages.UP or stages.DOWN). No
    transaction waits for the arrival of the data."""
    if n_bytes > 0:
        station, wire, service = packed(st, tid, which, n_bytes)
        occupy(st, station, tid, wire, service)


@njit
def decode(st, tid, step):
    """Pass the data of ``tid`` through the ECC decoder of the die's channel, then continue at stage
    ``step``. Return False if decoding takes no time.
    """
    cfg = st.cfg[0]
    if cfg.errors != 0:
        return read_retry.decode(st, tid, step)
    return coded(st, tid, ECC_DECODED_PAGES, cfg.decode, step)


@njit
def decode_bare(st, tid, step):
    """Pass reservoir pages, which transaction ``tid`` has read, through the ECC decoder of the
    die's channel, then continue at stage ``step``. Return False if decoding takes no time."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    st.count[txn.dev, PE_DECODED_PAGES] += txn.n
    if cfg.errors == 0:
        return coded(st, tid, ECC_DECODED_PAGES, cfg.decode, step)
    st.count[txn.dev, ECC_DECODED_PAGES] += txn.n
    station = stages.station(st, txn.dev, stages.ECC) + st.die[txn.die].bus % cfg.channels
    return enter(st, station, tid, txn.bus, st.reading[tid].time, step)


@njit
def encode_bare(st, tid, step):
    """Pass the result of on-die computation ``tid`` through the ECC encoder of the die's channel,
    which computes the check bytes; stage ``step`` follows. If encoding takes no time, only set the
    stage of ``tid`` to ``step`` and return False.
    """
    st.count[st.txn[tid].dev, PE_ENCODED_PAGES] += st.txn[tid].n
    return encode(st, tid, step)


@njit
def encode(st, tid, step):
    """Pass the data of ``tid`` through the ECC encoder of the die's channel; stage ``step``
    follows. If encoding takes no time, only set the stage of ``tid`` to ``step`` and return False.
    """
    return coded(st, tid, ECC_ENCODED_PAGES, st.cfg[0].encode, step)


@inline
def coded(st, tid, counter, time, step):
    """Pass the data of ``tid`` through the ECC engine of the die's channel, which takes ``time`` ps
    per page; stage ``step`` follows. Add the pages to ``counter``. If ``time`` is 0, only set the
    stage of ``tid`` to ``step`` and return False.
    """
    txn = st.txn[tid]
    st.count[txn.dev, counter] += txn.n
    if time == 0:
        txn.step = step
        return False
    station = stages.station(st, txn.dev, stages.ECC) + st.die[txn.die].bus % st.cfg[0].channels
    return enter(st, station, tid, txn.bus, txn.n * time, step)


@njit
def next_piece(st, tid, step):
    """Pass the next piece (at most ``cfg.piece`` bytes) of a long transfer through DRAM, for
    transaction ``tid``. Splitting a transfer into pieces lets other transactions use DRAM in
    between."""
    txn = st.txn[tid]
    command = st.command[tid]
    txn.size = min(command.bytes_left, st.cfg[0].piece)
    command.bytes_left -= txn.size
    if not enter(st, stages.station(st, txn.dev, stages.DRAM), tid, txn.size, -1, step):
        go(st, tid, step)
