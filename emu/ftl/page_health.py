"""Health of flash pages: lost sectors, undetected bit errors, and the inputs of the bit error rate.

Owns the marks of physical pages (sectors unreadable when their page was moved, and bit errors moved
by copy-back without correction), wear and age of blocks, and the log of incorrect data. Does not
own the outcome of a read (read_retry.py) or the rates (nand/rber.py).
Source: NVMe base specification (a read of lost data is an unrecovered read error, not other data);
Hong et al., NVMSA 2019 (copy-back propagates errors).

A mark is stored with its physical page, as in a spare area, and is cleared when the block is
erased.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import NEWLY_LOST_PAGES
from ondie.emu.engine.core.events import OWN
from ondie.emu.engine.core.payload_log import LOG_BAD, LOG_DECODED, note_log
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.state import record_type
from ondie.emu.ftl.page_map import block_at, first_page
from ondie.emu.nand import ecc, rber
from ondie.kernels.jit import njit

QUALITY = record_type(
    stable="f8",  # part of the rate that no reference voltage removes
    leak="f8",  # coefficient of retention
    pressure="f8",  # coefficient of read disturb
    cycles="i8",  # P/E cycles + 1 for which the coefficients hold; 0 = none yet
    since="i8",  # time at which the block was opened (ps); 0 = before the run
    first="i8",  # if since = 0: 1 + the lowest page that the run has programmed; 0 = none
    began="i8",  # time of the run's first program in the block (ps)
    marks="i8",  # marks set in the block since its erase
    weak="i8",  # 1: scrubbing has found too many bit errors in it since its erase
)
ALL_SECTORS = -1
PS_PER_DAY = 86_400 * 10**12


@njit
def pe_cycles(st, block):
    """Return the number of P/E cycles of block ``block``. Set the block's error-rate coefficients
    for this number.
    """
    return pe_cycles_after(st, block, st.block[block].erases)


@njit
def pe_cycles_after(st, block, erases):
    """Return the number of P/E cycles of a plane of block ``block`` after ``erases`` erases. Set
    the block's error-rate coefficients for this number.
    """
    quality = st.quality[block]
    cycles = st.cfg[0].initial_cycles + erases
    if quality.cycles != cycles + 1:
        quality.cycles = cycles + 1
        quality.stable = rber.stable_rate(st.rate[0], cycles)
        quality.leak = rber.leak_rate(st.rate[0], cycles)
        quality.pressure = rber.pressure_rate(st.rate[0], cycles)
    return cycles


@njit
def age_days(st, block, ppn):
    """Return the assumed age of page ``ppn`` in days: the time since its block was opened. If the
    block was opened before the run, the age of the pages that the run has programmed is the time
    since the first of these programs. The age of the block's other pages is the time since the
    start of the run plus the configured initial age.
    """
    quality = st.quality[block]
    since = quality.since
    if since == 0 and quality.first > 0 and ppn % st.cfg[0].block_pages >= quality.first - 1:
        since = quality.began
    days = float(st.reg[0].now - since) / PS_PER_DAY
    if since == 0:
        days += st.cfg[0].initial_days
    return days


@njit
def note_first_program(st, tid):
    """Record the time and page of the run's first program in a block that was open at the start of
    the run. For all pages of the block that the run programs, ``age_days`` returns the time since
    this first program.
    """
    txn = st.txn[tid]
    quality = st.quality[block_at(st, txn.dev, txn.ppn)]
    if quality.since == 0:
        slot = txn.ppn % st.cfg[0].block_pages
        if quality.first == 0:
            quality.began = st.reg[0].now
            quality.first = slot + 1
        quality.first = min(quality.first, slot + 1)


@njit
def shifted_rate_of(st, block, ppn):
    """Return the part of the bit error rate of page ``ppn`` of block ``block`` that is caused by
    shifted charge (retention and read disturb). The read count is divided by the number of planes
    of the unit, because each read disturbs the block of one plane.
    """
    quality = st.quality[block]
    reads = float(st.block[block].reads) / st.cfg[0].unit_planes
    return rber.shifted_rate(
        st.rate[0], quality.leak, quality.pressure, age_days(st, block, ppn), reads
    )


@njit
def lost_sectors(st, block, dev, ppn):
    """Return the mask (one bit per sector) of the lost sectors of a physical page in ``block``. The
    data of these sectors was lost before the page was programmed.
    """
    return st.lost[dev, ppn] if st.quality[block].marks > 0 else 0


@njit
def kept_rate(st, block, dev, ppn):
    """Return the bit error rate that the data of a physical page in block ``block`` already had
    when the page was programmed. Copy-back moves data without correction by ECC.
    """
    if st.cfg[0].copyback == 0 or st.quality[block].marks == 0:
        return 0.0
    return float(st.kept[dev, ppn])


@njit
def mark_lost_sectors(st, tid):
    """Mark sectors as lost in the page that transaction ``tid`` has programmed, because ``tid``
    could not read them from the old page. Call this function after the program, because an erase of
    the block, which clears marks, may precede the program.
    """
    lost = st.reading[tid].lost
    if lost != 0:
        txn = st.txn[tid]
        st.lost[txn.dev, txn.ppn] = lost
        st.quality[block_at(st, txn.dev, txn.ppn)].marks += 1


@njit
def carry_after_move(st, tid):
    """Transfer the marks and bit errors of a collected page to its new page, which ``tid`` has
    programmed.
    """
    txn = st.txn[tid]
    if txn.bus == 0:
        carry_after_copy_back(st, tid)
        return
    source = block_at(st, txn.dev, txn.src_ppn)
    if st.reading[tid].spoilt != 0 and lost_sectors(st, source, txn.dev, txn.src_ppn) == 0:
        st.count[txn.dev, NEWLY_LOST_PAGES] += 1
    mark_lost_sectors(st, tid)
    if st.reading[tid].spoilt != 0 and txn.lpn < st.cfg[0].lpns:
        if int(st.l2p[txn.dev, txn.lpn]) - 1 == txn.ppn:
            log_wrong_page(st, tid, txn.lpn, txn.ppn)


@njit
def carry_after_copy_back(st, tid):
    """Transfer the bit errors and marks of a page to its new page after a copy-back."""
    txn = st.txn[tid]
    dev = txn.dev
    source = txn.src_ppn
    block = block_at(st, dev, source)
    pe_cycles(st, block)
    page = (source - first_page(st, dev, block)) // st.cfg[0].unit_planes
    if st.block[block].stream == st.cfg[0].pslc_stream:
        page += st.cfg[0].pages
    rate = rber.total_rate(
        st.quality[block].stable, shifted_rate_of(st, block, source), st.scale[page]
    )
    st.block[block].reads += 1
    st.kept[dev, txn.ppn] = min(rate + kept_rate(st, block, dev, source), rber.MOST_RBER)
    st.lost[dev, txn.ppn] = lost_sectors(st, block, dev, source)
    st.quality[block_at(st, dev, txn.ppn)].marks += 1


@njit
def clear_marks(st, dev, block):
    """Reset the records of block ``block`` after its erase: the sectors lost in its pages, the bit
    error rates passed on by copy-backs, and the mark that scrubbing has found too many bit errors.
    """
    quality = st.quality[block]
    quality.weak = 0
    if quality.marks == 0:
        return
    quality.marks = 0
    first = first_page(st, dev, block)
    for ppn in range(first, first + st.cfg[0].block_pages):
        st.lost[dev, ppn] = 0
        if st.cfg[0].copyback != 0:
            st.kept[dev, ppn] = 0.0


@njit
def log_wrong_page(st, tid, lpn, ppn):
    """Append a log entry (LOG_BAD) if the engine's log is on: the data of logical page ``lpn`` at
    physical page ``ppn`` is incorrect. The entry contains the plan row of transaction ``tid``, or
    -1 if the transaction has no plan row.
    """
    reg = st.reg[0]
    if reg.log_on == 0:
        return
    reading = st.reading[tid]
    txn = st.txn[tid]
    note_log(st, LOG_BAD, tid, lpn, ppn, -1, reading.level, txn.dev, txn.die)
    record = st.log[reg.logged - 1]
    record.key = reading.key
    record.rate = reading.rate


@njit
def log_decoding(st, tid, lpn, ppn):
    """Append a log entry (LOG_DECODED) for the last reading of logical page ``lpn`` at physical
    page ``ppn``. An implemented ECC code decodes the page from this entry. Do nothing if the
    engine's log is off or the reading has no bit errors. The entry contains the request or plan row
    of read ``tid``. If ``tid`` is a read of the FTL or the read of an old page for a merge, the
    entry contains neither, because the data of the page is not returned.
    """
    reg = st.reg[0]
    reading = st.reading[tid]
    if reg.log_on == 0 or reading.errors == 0:
        return
    txn = st.txn[tid]
    outcome = ecc.CORRECTED
    if reading.spoilt != 0:
        outcome = ecc.UNCORRECTABLE
    elif reading.total > reading.hard:
        outcome = ecc.SOFT
    note_log(st, LOG_DECODED, tid, lpn, ppn, outcome, reading.level, txn.dev, txn.die)
    record = st.log[reg.logged - 1]
    record.key = reading.key
    record.rate = reading.rate
    if txn.kind == OWN or txn.role == Role.MERGING:
        record.row = -1
        record.queue = -1
