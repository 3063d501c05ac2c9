"""Health of flash pages: lost sectors, undetected bit errors, and the inputs of the bit error rate.

Owns the marks of physical pages (sectors that were unreadable when their page was moved, and bit
errors that copy-back moved past the ECC), wear and age of blocks, and the log of wrong bytes. Does
not own the verdict on a read (read_retry.py) or the rates (nand/rber.py).
Source: NVMe base specification (a read of lost data is an unrecovered read error, not other data);
Hong et al., NVMSA 2019 (copy-back propagates errors).

A mark is stored with its physical page, as in a spare area, and is cleared when the block is
erased.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import LOG_BAD
from ondie.emu.engine.core.state import record_type
from ondie.emu.ftl.page_map import block_at, first_page
from ondie.emu.nand import rber
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
)
ALL_SECTORS = -1
PS_PER_DAY = 86_400 * 10**12


@njit
def worn(st, b):
    """Return the P/E cycles of block ``b``, and update its rate coefficients to them."""
    return worn_by(st, b, st.block[b].erases)


@njit
def worn_by(st, b, erases):
    """Return the P/E cycles of a plane of block ``b`` after ``erases`` erases, and update the
    block's rate coefficients to them."""
    q = st.quality[b]
    cycles = st.cfg[0].initial_cycles + erases
    if q.cycles != cycles + 1:
        q.cycles = cycles + 1
        q.stable = rber.stable_rate(st.rate[0], cycles)
        q.leak = rber.leak_rate(st.rate[0], cycles)
        q.pressure = rber.pressure_rate(st.rate[0], cycles)
    return cycles


@njit
def age(st, b, ppn):
    """Return the days since block ``b`` was opened, or since the run began to write to it. Page
    ``ppn`` of the block is no older."""
    q = st.quality[b]
    since = q.since
    if since == 0 and q.first > 0 and ppn % st.cfg[0].block_pages >= q.first - 1:
        since = q.began
    days = float(st.reg[0].now - since) / PS_PER_DAY
    if since == 0:
        days += st.cfg[0].initial_days
    return days


@njit
def programmed(st, t):
    """Note the time and the first page of the run's programs in a block that was open at the start
    of the run, so that ``age`` counts these pages from then on."""
    x = st.txn[t]
    q = st.quality[block_at(st, x.dev, x.ppn)]
    if q.since == 0:
        slot = x.ppn % st.cfg[0].block_pages
        if q.first == 0:
            q.began = st.reg[0].now
            q.first = slot + 1
        q.first = min(q.first, slot + 1)


@njit
def shifted(st, b, ppn):
    """Return the part of the bit error rate of page ``ppn`` of block ``b`` that is due to shifted
    charge. Reads are divided by the planes of the unit, since each read disturbs the block of one
    plane."""
    q = st.quality[b]
    reads = float(st.block[b].reads) / st.cfg[0].unit_planes
    return rber.shifted_rate(st.rate[0], q.leak, q.pressure, age(st, b, ppn), reads)


@njit
def lost_of(st, b, dev, ppn):
    """Return the mask of sectors (one bit each) of a physical page of block ``b`` whose data were
    lost before they were programmed there."""
    return st.lost[dev, ppn] if st.quality[b].marks > 0 else 0


@njit
def kept_rate(st, b, dev, ppn):
    """Return the bit error rate of the data that a physical page of block ``b`` was programmed
    with."""
    if st.cfg[0].copyback == 0 or st.quality[b].marks == 0:
        return 0.0
    return float(st.kept[dev, ppn])


@njit
def carry(st, t):
    """Mark the sectors that transaction ``t`` could not read as lost at their new page. Called
    after the program, since the erase of the block may still be in progress before it."""
    lost = st.reading[t].lost
    if lost != 0:
        x = st.txn[t]
        st.lost[x.dev, x.ppn] = lost
        st.quality[block_at(st, x.dev, x.ppn)].marks += 1


@njit
def moved(st, t):
    """Carry marks and wrong bits to the new page after garbage collection has programmed it with
    ``t``."""
    x = st.txn[t]
    if x.bus == 0:
        copied(st, t)
        return
    carry(st, t)
    if st.reading[t].spoilt != 0 and x.lpn < st.cfg[0].lpns:
        if int(st.l2p[x.dev, x.lpn]) - 1 == x.ppn:
            log_bad(st, t, x.lpn, x.ppn)


@njit
def copied(st, t):
    """Carry wrong bits and marks to the new page after copy-back inside a die."""
    x = st.txn[t]
    dev = x.dev
    source = x.old
    b = block_at(st, dev, source)
    worn(st, b)
    page = (source - first_page(st, dev, b)) // st.cfg[0].unit_planes
    if st.block[b].stream == st.cfg[0].pslc_stream:
        page += st.cfg[0].pages
    rate = rber.total_rate(st.quality[b].stable, shifted(st, b, source), st.scale[page])
    st.block[b].reads += 1
    st.kept[dev, x.ppn] = min(rate + kept_rate(st, b, dev, source), rber.MOST)
    st.lost[dev, x.ppn] = lost_of(st, b, dev, source)
    st.quality[block_at(st, dev, x.ppn)].marks += 1


@njit
def wiped(st, dev, b):
    """Clear the marks of block ``b`` after its erase."""
    q = st.quality[b]
    if q.marks == 0:
        return
    q.marks = 0
    first = first_page(st, dev, b)
    for ppn in range(first, first + st.cfg[0].block_pages):
        st.lost[dev, ppn] = 0
        if st.cfg[0].copyback != 0:
            st.kept[dev, ppn] = 0.0


@njit
def log_bad(st, t, lpn, ppn):
    """Append a log entry for a page with wrong data: the row that read it, or its new place."""
    reg = st.reg[0]
    if reg.log_on == 0:
        return
    r = st.reading[t]
    y = st.txn[t]
    x = st.log[reg.logged]
    x.what = LOG_BAD
    x.row = -1 if y.row < 0 else st.row[y.row].id
    x.lpn = lpn
    x.ppn = ppn
    x.old = -1
    x.n = r.level
    x.dev = y.dev
    x.die = y.die
    x.key = r.key
    x.rate = r.rate
    reg.logged += 1
