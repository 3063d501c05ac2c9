"""Read retry: correction of a page by hard decision, retries or soft decision, or failure of the
correction.

Owns the outcome of a page's ECC decoding, the number of readings until this outcome, the repeated
readings, and their decoding time. Does not own the bit error rates (nand/rber.py), the code
(nand/ecc.py) or the marks of pages (page_health.py).
Source: Cai et al., Proc. IEEE 105(9), 2017 (hard decision, retries at other voltages, then soft
decision); NVMe base specification, status code type 2h, code 81h (unrecovered read error).

The outcome of a page is drawn when its first reading reaches the controller. After the decoder has
failed on a reading, the next reading passes through the queue of the die, the array and the
channel. Readings for soft decision are decoded together, after the last of them. If pages were read
together, each page that is not corrected is read again separately. The random draws depend on the
seed, the page, the P/E cycles of its block and the number of reads of the page, never on the order
of events. The bit error rate also depends on the number of reads of the block.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.schema.flash import CELLS
from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    CORRECTED_BITS,
    ECC_DECODED_PAGES,
    ECC_ITERATIONS,
    ECC_LATE_ITERATIONS,
    ECC_RETRY_ITERATIONS,
    LOST_PAGES,
    MEDIA_ERRORS,
    RETRIED_PAGES,
    RETRY_READ_PAGES,
    SOFT_PAGES,
    SOFT_READ_PAGES,
    UNASKED_OUT_BYTES,
    UNCORRECTABLE_PAGES,
)
from ondie.emu.engine.core.events import (
    OWN,
    REQUEST,
    ROW,
    enter,
    go,
)
from ondie.emu.engine.core.rng import absorb, page_key
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.state import record_type, records
from ondie.emu.engine.core.transaction import sibling
from ondie.emu.ftl import page_health, read_path
from ondie.emu.ftl.page_map import block_at, count_pending_read, set_place
from ondie.emu.nand import ecc, rber
from ondie.emu.nand.codec import effort
from ondie.emu.nand.die_scheduler import push
from ondie.emu.nand.timing import page_kinds
from ondie.kernels.jit import njit

UNRECOVERED = 0x281
"""Status of a command: status code type 2h (media and data integrity errors), code 81h (unrecovered
read error).
"""
READING = record_type(
    key="u8",  # key of the verdict's draws
    rate="f8",  # bit error rate of the last reading with hard decision
    stable="f8",  # part of the bit error rate that retries do not change
    shifted="f8",  # part that they reduce, at the first reading
    time="i8",  # time of the last decoding (ps)
    work="i8",  # iterations of a real code in the last decoding
    late="i8",  # those of them that do not fit into ecc.decode
    lost="i8",  # mask of sectors that an internal read could not recover
    total="i4",  # readings that the page takes; 0 = no verdict yet
    done="i4",  # readings that have reached the controller
    hard="i4",  # readings with hard decision
    level="i4",  # retry level of the last reading with hard decision
    spoilt="i4",  # 1: given up, the bytes are wrong
    errors="i4",  # wrong bits in the last reading with hard decision
)


@njit
def on_sensed(st, tid):
    """Count one reading (array read) of the pages of read ``tid``, after its data has reached the
    controller. Return True if the pages must be read again.
    """
    reading = st.reading[tid]
    if reading.total == 0:
        draw_verdict(st, tid)
    reading.done += 1
    return reading.done < reading.total


@njit
def needs_refresh(st, tid):
    """Return True if the data of the block that ``tid`` reads should be moved, because the block
    was read too often, or because a page needed more than ``ftl.reclaim_retries`` readings. A limit
    of 0 is not applied. Reads are counted over all planes of a super-block, so the limit per block
    is multiplied by the number of planes.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    if cfg.reclaim_retries > 0 and st.reading[tid].total > cfg.reclaim_retries:
        return True
    if cfg.reclaim_reads == 0:
        return False
    return st.block[block_at(st, txn.dev, txn.ppn)].reads >= cfg.reclaim_reads * cfg.unit_planes


@njit
def draw_verdict(st, tid):
    """Draw the outcome of each page of read ``tid`` after the first reading of the pages.

    Each page that must be read again gets a separate transaction. If all pages must be read again,
    the last page keeps ``tid``.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    block = block_at(st, txn.dev, txn.ppn)
    quality = st.quality[block]
    cycles = page_health.pe_cycles(st, block)
    shifted = page_health.shifted_rate_of(st, block, txn.ppn)
    if cfg.slots == 1:
        st.block[block].reads += txn.n
    seed = absorb(cfg.seed, txn.dev)
    scale = st.scale[txn.page]
    lpn = txn.lpn
    ppn = txn.ppn
    pages = txn.n
    st.reading[tid].time = 0
    st.reading[tid].work = 0
    st.reading[tid].late = 0
    st.reading[tid].lost = 0
    kept = 0
    for i in range(pages):
        dev = txn.dev
        st.seen[dev, ppn + i] += 1
        key = page_key(seed, ppn + i, cycles, st.seen[dev, ppn + i])
        stable = quality.stable + page_health.kept_rate(st, block, dev, ppn + i) / scale
        outcome, retries, errors = ecc.read_page(st.code[0], key, stable, shifted, scale)
        total = ecc.senses(st.code[0], outcome, retries)
        piece = tid
        if total > 1 and (kept > 0 or i < pages - 1):
            piece = split_page(st, tid, lpn + i, ppn + i)
            if piece < 0:
                return
        else:
            kept += 1
            txn.lpn = lpn + i if total > 1 else lpn
            txn.ppn = ppn + i if total > 1 else ppn
        reading = st.reading[piece]
        reading.key = key
        reading.rate = rber.retry_rate(stable, shifted, scale, st.code[0].gain, retries)
        reading.level = retries
        reading.total = total
        reading.done = 0
        reading.hard = 1 + retries
        reading.errors = errors
        reading.spoilt = int(outcome == ecc.UNCORRECTABLE)
        if st.code[0].coded == 0:
            reading.time += last_decoding_ps(st, outcome, errors)
        else:
            reading.stable = stable
            reading.shifted = shifted
            add_last_decoding(st, piece, outcome, errors)
        lost = page_health.lost_sectors(st, block, dev, ppn + i)
        if reading.spoilt != 0 and not is_decoded(st, tid):
            lost = page_health.ALL_SECTORS
        lost &= wanted_sectors(st, tid)
        count_outcome(st, dev, outcome, total, errors, lost)
        if txn.kind == OWN or txn.role == Role.MERGING:
            reading.lost = lost
        elif lost != 0:
            set_media_error(st, piece)
        if total == 1:
            log_bytes(st, piece, lpn + i, ppn + i)
        if piece != tid:
            reading.done = 1
            go(st, piece, stages.SENSED)


@njit
def is_decoded(st, tid):
    """Return True if the implemented ECC decoder determines whether the data of read ``tid`` is
    correct. This applies to reads for commands and plan rows of a drive with payload
    (nvme/decoded_reads.py).
    """
    txn = st.txn[tid]
    real = st.code[0].coded != 0 and st.reg[0].log_on != 0
    asked = txn.kind == REQUEST or txn.kind == ROW
    return real and asked and txn.role != Role.MERGING


@njit
def log_bytes(st, tid, lpn, ppn):
    """Log the result of the last reading of page ``lpn`` at physical page ``ppn`` if its data is
    incorrect or must be decoded.
    """
    if st.code[0].coded != 0:
        page_health.log_decoding(st, tid, lpn, ppn)
        return
    txn = st.txn[tid]
    if st.reading[tid].spoilt != 0 and txn.kind != OWN:
        if txn.role != Role.MERGING:  # the program marks the lost sectors of its page
            page_health.log_wrong_page(st, tid, lpn, ppn)


@njit
def wanted_sectors(st, tid):
    """Return the mask (one bit per sector) of the sectors that read ``tid`` needs from its pages:
    all sectors, the sectors requested by a command, or the sectors not written by a partial write.
    """
    txn = st.txn[tid]
    if txn.kind == OWN or st.cfg[0].partial == 0:
        return page_health.ALL_SECTORS
    if txn.role != Role.MERGING:
        return txn.sectors
    sectors = st.cfg[0].page_bytes // 512
    return ~txn.sectors if sectors >= 64 else ~txn.sectors & ((1 << sectors) - 1)


@njit
def last_decoding_ps(st, outcome, errors):
    """Return the time of the last decoding of a read with outcome ``outcome`` (ps). ``errors``:
    number of bit errors.
    """
    code = st.code[0]
    if outcome == ecc.CORRECTED:
        return ecc.decode_ps(code, errors)
    return code.soft_decode if code.soft_reads > 0 else code.decode_limit


@njit
def add_last_decoding(st, tid, outcome, errors):
    """Add the iterations and the time that an implemented ECC code needs for the last decoding of a
    page to the totals of read ``tid``.
    """
    code = st.code[0]
    reading = st.reading[tid]
    soft = 1 if outcome != ecc.CORRECTED and code.soft_reads > 0 else 0
    made = np.int64(0)
    if errors > 0:
        made = ecc.page_iterations(
            code, st.effort, reading.key, np.int64(reading.level), reading.rate, soft
        )
    late = ecc.late_iterations(code, made)
    reading.work += made
    reading.late += late
    reading.time += code.decode + late * code.iteration


@njit
def given_up(st, tid):
    """Return the number of decoder iterations in the last, failed attempt of read ``tid`` to decode
    its page with an implemented ECC code. The page is read again after such an attempt.
    """
    code = st.code[0]
    reading = st.reading[tid]
    level = np.int64(reading.done) - 1
    scale = st.scale[st.txn[tid].page]
    rate = rber.retry_rate(reading.stable, reading.shifted, scale, code.gain, level)
    return ecc.failed_iterations(code, st.effort, reading.key, level, rate)


@njit
def count_outcome(st, dev, outcome, total, errors, lost):
    """Count the outcome of the read of one page.

    ``outcome``: ecc.CORRECTED, SOFT or UNCORRECTABLE. ``total``: number of times that the page is
    sensed. ``errors``: number of bit errors in the last hard decision. ``lost``: mask of the
    requested sectors whose data is lost.
    """
    if total > 1:
        st.count[dev, RETRIED_PAGES] += 1
    if outcome != ecc.CORRECTED and st.code[0].soft_reads > 0:
        st.count[dev, SOFT_PAGES] += 1
    if outcome == ecc.UNCORRECTABLE:
        st.count[dev, UNCORRECTABLE_PAGES] += 1
    else:
        st.count[dev, CORRECTED_BITS] += errors
        if lost != 0:
            st.count[dev, LOST_PAGES] += 1


@njit
def set_media_error(st, tid):
    """Set the media error status of the command or plan row to which read ``tid`` belongs."""
    txn = st.txn[tid]
    if txn.kind == REQUEST:
        done = st.req[txn.row]
        if done.status == 0:
            done.status = UNRECOVERED
            st.count[txn.dev, MEDIA_ERRORS] += 1
    else:
        row = st.row[txn.row]
        if row.status == 0:
            row.status = UNRECOVERED
            st.count[txn.dev, MEDIA_ERRORS] += 1


@njit
def split_page(st, tid, lpn, ppn):
    """Move logical page ``lpn``, at physical page ``ppn``, from read ``tid`` to a new transaction.
    Return the new transaction, or -1 if no transaction is free.
    """
    other = sibling(st, tid)
    if other < 0:
        return other
    txn = st.txn[tid]
    other_txn = st.txn[other]
    other_txn.role = txn.role
    other_txn.queue = txn.queue
    other_txn.lpn = lpn
    other_txn.ppn = ppn
    other_txn.n = 1
    other_txn.size = txn.size // txn.n
    other_txn.bus = txn.bus // txn.n
    set_place(st, txn.dev, other)
    txn.size -= other_txn.size
    txn.bus -= other_txn.bus
    txn.n -= 1
    st.reading[other].time = 0
    st.reading[other].work = 0
    st.reading[other].late = 0
    st.reading[other].lost = 0
    count_pending_read(st, txn.dev, ppn)
    return other


@njit
def decode(st, tid, step):
    """Pass read ``tid`` through the decoder of the channel. Then read the page again if it needs
    further readings; otherwise continue at stage ``step``. Return False if the decoding takes no
    time."""
    txn = st.txn[tid]
    reading = st.reading[tid]
    time = reading.time
    count = txn.n
    if reading.done < reading.total:
        step = stages.AGAIN
        time = st.code[0].decode_limit
        if reading.done > reading.hard:  # for soft decision: decoded with the last reading
            time = 0
            count = 0
        elif st.code[0].coded != 0:
            made = given_up(st, tid)
            late = ecc.late_iterations(st.code[0], made)
            time = st.code[0].decode + late * st.code[0].iteration
            st.count[txn.dev, ECC_ITERATIONS] += made
            st.count[txn.dev, ECC_LATE_ITERATIONS] += late
            st.count[txn.dev, ECC_RETRY_ITERATIONS] += made
    else:
        if st.code[0].coded != 0:
            st.count[txn.dev, ECC_ITERATIONS] += reading.work
            st.count[txn.dev, ECC_LATE_ITERATIONS] += reading.late
        if reading.total > 1:
            log_bytes(st, tid, txn.lpn, txn.ppn)
        reading.total = 0
    st.count[txn.dev, ECC_DECODED_PAGES] += count
    if time == 0:
        txn.step = step
        return False
    station = stages.station(st, txn.dev, stages.ECC) + st.die[txn.die].bus % st.cfg[0].channels
    return enter(st, station, tid, txn.bus, time, step)


@njit
def read_again(st, tid):
    """Queue another reading of the page of read ``tid`` at its die: command, array operation and
    data transfer.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    reading = st.reading[tid]
    if reading.done < reading.hard:
        st.count[txn.dev, RETRY_READ_PAGES] += 1
    else:
        st.count[txn.dev, SOFT_READ_PAGES] += 1
        txn.bus = cfg.page_bytes  # soft decision takes whole code words
    st.count[txn.dev, UNASKED_OUT_BYTES] += cfg.page_bytes - txn.bus
    die = set_place(st, txn.dev, tid)
    read_path.count_command(st, tid)
    if cfg.slots == 1:
        st.block[block_at(st, txn.dev, txn.ppn)].reads += 1
    txn.array = st.page_ps[0, txn.page]
    push(st, die, tid, txn.queue)


def page_scales(cfg: Config) -> np.ndarray:
    """Return the scale factors of the bit error rate by page offset in the block, float64[pages].
    If pSLC is on, append the factors of pages in pSLC mode: float64[2 * pages].
    """
    kinds = page_kinds(cfg)
    scales = rber.scales(cfg)
    native = scales[CELLS.index(cfg.flash.cell)][kinds]
    if cfg.ftl.pslc == "off":
        return np.ascontiguousarray(native)
    return np.concatenate([native, np.full(len(kinds), scales[CELLS.index("pSLC"), 0])])


def tables(cfg: Config, txns: int, blocks: int) -> dict[str, np.ndarray]:
    """Return the arrays of this module and of page_health.py for the state of compiled code, by
    field name. If errors are off, arrays with one record per transaction or block have only one
    record."""
    on = cfg.errors.kind != "none"
    return {
        "rate": rber.rates(cfg),
        "code": ecc.code(cfg),
        "effort": effort(cfg),
        "scale": page_scales(cfg) if on else np.ones(1),
        "quality": records(page_health.QUALITY, blocks if on else 1),
        "reading": records(READING, txns if on else 1),
    }
