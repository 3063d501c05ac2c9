"""Pages that are known to be wrong, and pages that carry wrong bits unnoticed.

Owns the marks of physical pages: sectors that could not be read when their page was moved, and bit
errors that copy-back has moved past the ECC; and the log of wrong bytes. Does not own verdicts
(reading.py). Source: NVMe base specification (what is read of data that were lost is an unrecovered
read error, not other data); Hong et al., NVMSA 2019 (errors that copy-back passes on).

A mark lies beside its physical page, as in a spare area, and goes when the block is erased.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import LOG_BAD
from ondie.emu.engine.core.state import record_type
from ondie.emu.ftl.page_map import block_at, first_page
from ondie.emu.nand import rber
from ondie.kernels.jit import njit

QUALITY = record_type(
    stable="f8",  # part of the rate that no reference voltages remove
    leak="f8",  # retention's coefficient
    pressure="f8",  # read disturb's coefficient
    cycles="i8",  # P/E cycles + 1 for which they hold; 0 = none yet
    since="i8",  # ps, when the block was opened; 0 = before the run
    first="i8",  # then: 1 + the first of its pages that the run has programmed; 0 = none
    began="i8",  # ps, when it did so
    marks="i8",  # pages of the block that were given a mark since its erase
)
ALL_SECTORS = -1
PS_PER_DAY = 86_400 * 10**12


@njit
def worn(st, b):
    """P/E cycles of block ``b``; its coefficients are those of so many from now on."""
    return worn_by(st, b, st.block[b].erases)


@njit
def worn_by(st, b, erases):
    """The same where a plane of the block has been erased so many times."""
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
    """Days since block ``b`` was opened, or the run began to write to it: page ``ppn`` of it is no
    older."""
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
    """Pages have been programmed; in a block that was open when the run began they are young."""
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
    """Part of the rate of page ``ppn`` of block ``b`` that comes of shifted charge. Reads are
    spread over the planes of its unit, each of which has a block of its own to disturb."""
    q = st.quality[b]
    reads = float(st.block[b].reads) / st.cfg[0].unit_planes
    return rber.shifted_rate(st.rate[0], q.leak, q.pressure, age(st, b, ppn), reads)


@njit
def lost_of(st, b, dev, ppn):
    """Bit per sector of a physical page of block ``b`` that was lost before it came there."""
    return st.lost[dev, ppn] if st.quality[b].marks > 0 else 0


@njit
def kept_rate(st, b, dev, ppn):
    """Bit error rate of what a physical page of block ``b`` was programmed with."""
    if st.cfg[0].copyback == 0 or st.quality[b].marks == 0:
        return 0.0
    return float(st.kept[dev, ppn])


@njit
def carry(st, t):
    """What transaction ``t`` could not read has been programmed at its new place, and is known as
    lost. (Not before: the erase of its block may still be on its way.)"""
    lost = st.reading[t].lost
    if lost != 0:
        x = st.txn[t]
        st.lost[x.dev, x.ppn] = lost
        st.quality[block_at(st, x.dev, x.ppn)].marks += 1


@njit
def moved(st, t):
    """The page that collection moves with ``t`` has been programmed: what was wrong with it is
    wrong there."""
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
    """Collection has moved a page inside its die: wrong bits and marks have moved with it."""
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
    """Block ``b`` has been erased."""
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
    """Note that a page came out wrong: to whom it was read, or where it has been moved to."""
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
