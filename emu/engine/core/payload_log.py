"""Log of moved bytes, for simulations that store payload: the engine's operations on pages, in
order.

Owns the record type of the log and the functions that append records. Does not own the bytes
(nand/page_store.py, nvme/moved_bytes.py) or the operations that are logged.
Source: this project.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ondie.emu.engine.core.events import OWN, REQUEST, ROW
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.state import record_type
from ondie.kernels.jit import cold, inline

LOG = record_type(
    what="i4",
    kind="i4",  # owner of the transaction: OWN, ROW, REQUEST or CACHED
    queue="i4",  # queue pair of a request, else -1
    place="i4",  # slot of the data cache, from 1; 0: none
    row="i8",  # id of a plan row, or place of a request in the ring of its queue pair; else -1
    lpn="i8",
    ppn="i8",
    old="i8",
    sectors="i8",  # bit mask of the sectors whose bytes move; all ones: the whole page
    held="i8",  # bit mask of the sectors that hold data in a programmed page
    n="i4",
    dev="i4",
    die="i4",
    stream="i4",  # stream that fills the block of a programmed page
    erases="i4",  # erase count of this block
    key="u8",  # LOG_BAD, LOG_RAW, LOG_DECODED: key of the draws
    rate="f8",  # LOG_BAD, LOG_RAW, LOG_DECODED: bit error rate
)


class LogEntry(NamedTuple):
    """One record of the log of moved bytes, as Python numbers. The fields are those of LOG."""

    what: int
    kind: int
    queue: int
    place: int
    row: int
    lpn: int
    ppn: int
    old: int
    sectors: int
    held: int
    n: int
    dev: int
    die: int
    stream: int
    erases: int
    key: int
    rate: float


def entries(log: np.ndarray) -> Iterator[LogEntry]:
    """Iterate over the records of a log (dtype LOG) in order."""
    return map(LogEntry._make, log.tolist())


(
    LOG_READ, LOG_PROGRAM, LOG_MOVE, LOG_ERASE, LOG_VPP, LOG_BPR, LOG_ODC, LOG_BPP, LOG_ROW,
    LOG_TRIM, LOG_ZERO, LOG_BAD, LOG_RAW,
    LOG_STORE, LOG_SERVE,  # command buffer to data cache, and back
    LOG_DESTAGE, LOG_LAND, LOG_LOST,  # cache to die; die to flash; data lost
    LOG_FILL, LOG_DROP,  # flash to cache; dropped from the cache
    LOG_KEEP,  # gradient programmed into the array
    LOG_PAD,  # a physical super-page that recovery has made unusable
    LOG_FETCH, LOG_MADE,  # registers to the controller; data made by the controller to the array
    LOG_LIFT, LOG_LANDED,  # reservoir to DRAM; DRAM to another super-page
    LOG_PADDING, LOG_FAILED,  # pages programmed without data; pages whose program has failed
    LOG_TRIM_COPY, LOG_TRIM_MAP,  # a trim map is composed in a buffer; it is on flash
    LOG_FIRST_PASS,  # the first of two passes over pages has ended: they cannot be read yet
    LOG_MAP_COPY, LOG_MAP_PAGE,  # a translation page is composed; it is on flash
    LOG_READ_OUT,  # reservoir to the controller, and to the host
    LOG_DECODED,  # a page read with wrong bits has passed a real decoder; old: the model's outcome
) = range(35)  # fmt: skip


@inline
def log(st, what, tid, lpn, ppn, old, count, dev, die):
    """Append a record to the log of moved bytes if the simulation stores payload.

    The record names the plan row or request of transaction ``tid``; ``tid`` is -1 if the operation
    does not belong to a transaction. The run pauses before the log is full.
    """
    if st.reg[0].log_on != 0:
        note_log(st, what, tid, lpn, ppn, old, count, dev, die)


@inline
def log_cached(st, what, tid, lpn, ppn, old, place, sectors):
    """Log an operation on ``sectors`` (bit mask) of one logical page in slot ``place`` of the data
    cache. ``place`` is 0 if the page has no slot. See :func:`log`.
    """
    if st.reg[0].log_on != 0:
        note_log(st, what, tid, lpn, ppn, old, 1, st.txn[tid].dev, st.txn[tid].die)
        record = st.log[st.reg[0].logged - 1]
        record.place = place
        record.sectors = sectors


@inline
def log_sectors(st, sectors):
    """Restrict the last record of the log of moved bytes to ``sectors`` (bit mask) of its page."""
    if st.reg[0].log_on != 0:
        st.log[st.reg[0].logged - 1].sectors = sectors


@cold
def log_held(st, sectors):
    """Set field ``held`` of the last record of the log: the sectors (bit mask) that hold data in
    the cache slot of the record.
    """
    if st.reg[0].log_on != 0:
        st.log[st.reg[0].logged - 1].held = sectors


@cold
def note_log(st, what, tid, lpn, ppn, old, count, dev, die):
    """Append a record to the log of moved bytes. The caller has checked that the simulation stores
    payload.
    """
    reg = st.reg[0]
    record = st.log[reg.logged]
    record.what = what
    record.kind = OWN
    record.queue = -1
    record.row = -1
    if tid >= 0:
        txn = st.txn[tid]
        record.kind = txn.kind
        if txn.kind == ROW:
            record.row = st.row[txn.row].id
        elif txn.kind == REQUEST:
            record.queue = txn.row >> st.cfg[0].ring_shift
            record.row = txn.row & (st.cfg[0].ring - 1)
    record.place = 0
    record.lpn = lpn
    record.ppn = ppn
    record.old = old
    record.sectors = -1
    record.held = -1
    record.stream = -1
    record.erases = -1
    record.n = count
    record.dev = dev
    record.die = die
    reg.logged += 1


@cold
def log_read(st, tid):
    """Log the pages sensed by flash read ``tid`` and by the reads that field ``mate`` links to this
    read.

    The blocks of these pages are not erased before the data is transferred. If bit errors are
    modeled, the record names the physical page of the transaction, because the errors are drawn for
    that page. Otherwise the record names the current physical page of a logical page that garbage
    collection has moved.
    """
    reg = st.reg[0]
    if reg.log_on == 0 or st.txn[tid].role >= Role.REGISTERS:
        return
    while tid >= 0:
        txn = st.txn[tid]
        if txn.role == Role.MERGING:  # its program takes the old bytes
            tid = txn.mate
            continue
        if txn.row >= 0 and txn.role == Role.RESERVOIR:
            what = LOG_READ_OUT if txn.held_back == 0 else LOG_LIFT
            log(st, what, tid, txn.lpn, txn.ppn, txn.turn, txn.n, txn.dev, txn.die)
        elif txn.row >= 0 and (txn.role != Role.NONE or st.cfg[0].errors != 0 or stays(st, tid)):
            log(st, LOG_READ, tid, txn.lpn, txn.ppn, -1, txn.n, txn.dev, txn.die)
        elif txn.row >= 0:
            for lpn in range(txn.lpn, txn.lpn + txn.n):
                entry = int(st.l2p[txn.dev, lpn])
                what = LOG_READ if entry > 0 else LOG_ZERO
                log(st, what, tid, lpn, entry - 1, -1, 1, txn.dev, txn.die)
        if txn.row >= 0 and st.cfg[0].partial != 0:
            log_sectors(st, txn.sectors)
        tid = txn.mate


@inline
def stays(st, tid):
    """Return True if the pages of read ``tid`` have not moved since the read's command was split.

    Garbage collection with priority over host reads may have moved the pages inside their die and
    erased the block. The read then senses the new physical pages.
    """
    txn = st.txn[tid]
    for i in range(txn.n):
        if int(st.l2p[txn.dev, txn.lpn + i]) - 1 != txn.ppn + i:
            return False
    return True
