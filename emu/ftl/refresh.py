"""Refresh and scrubbing: background work that renews data before they can no longer be corrected.

Owns the age at which blocks are refreshed, the reads of scrubbing, and the time of both. Does not
own the moves of a refresh (gc.py), the bit errors (page_health.py, nand/rber.py) or read reclaim,
which only reads of the host trigger (gc.py).
Source: Cai et al., "Flash correct-and-refresh", ICCD 2012 (blocks are read periodically, and moved
through the ECC before retention errors exceed it; here to other blocks, never in place); Cai et
al., Proc. IEEE 105(9), 2017, section 4 (refresh by age or by the errors found); JEDEC JESD218
(retention that a drive owes without power).

This work has no event: it must not keep a drive busy for ever. The time of the next look is
``reg.upkeep``, and the event loop calls ``start_due`` when it would let that time pass, because
commands or the caller (``run_until`` a time, ``Service.idle``) advance the clock. Without those,
no more upkeep begins: a run until no work is left ends, although upkeep takes time itself.

A unit refreshes one block at a time, the oldest first. From ``refresh_lead`` before its age limit
on, a block is refreshed if no host command is outstanding at one of LOOKS looks; at the limit, also
while the host works. If the unit collects garbage then, the block follows as the next victim, so
that neither keeps the other from its work. A block that is still open is closed first.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.core import idle
from ondie.emu.engine.core.counters import SCRUB_READ_PAGES
from ondie.emu.engine.core.events import give_txn, take_txn
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import (
    gc,
    padding,
    page_health,
    page_map,
    pslc,
    read_path,
    read_retry,
    write_frontier,
)
from ondie.emu.nand import ecc, timing
from ondie.emu.nand.die_scheduler import push
from ondie.emu.nand.geometry import Geometry
from ondie.kernels.jit import cold

LEAD = 16
"""A block may be refreshed in idle times when 1/LEAD of its age limit is left."""
LOOKS = 64
"""Number of checks for an idle time during the last 1/LEAD of the age limit."""
SHORTEST_WAIT = 10**6
"""Shortest interval between two checks of a block that cannot be refreshed yet, ps."""
PS_PER_DAY = 86_400 * 10**12


def set_constants(cfg: Config, geometry: Geometry, table: np.recarray) -> None:
    """Set the constants of refresh and scrubbing in ``table``."""
    age, interval = cfg.ftl.refresh_age_ps, cfg.ftl.scrub_interval_ps
    table.upkeep = age > 0 or interval > 0
    table.refresh_bits = -1
    if not table["upkeep"][0]:
        return
    first = age - round(cfg.errors.initial_days * PS_PER_DAY)
    table.refresh_age = min(age, NEVER)
    table.refresh_first = min(max(first, 0), NEVER)
    table.refresh_lead = min(age, NEVER) // LEAD
    wait = int(table["refresh_lead"][0]) // LOOKS if age > 0 else interval // (LEAD * LOOKS)
    table.refresh_wait = min(max(wait, SHORTEST_WAIT), NEVER)
    table.scrub_step = min(max(interval // geometry.blocks, 1), NEVER) if interval > 0 else 0
    table.scrub_pages = cfg.ftl.scrub_pages
    flash = cfg.flash
    table.scrub_pause = 3 * (flash.t_read_ps + flash.t_read_middle_ps + flash.t_read_upper_ps)
    if cfg.ftl.refresh_bits > 0:
        code = ecc.code(cfg)[0]
        table.refresh_bits = int(cfg.ftl.refresh_bits * int(code.words) * int(code.limit))


def set_recovered_ages(arrays: Arrays, blocks: np.ndarray) -> None:
    """Set the age of the recovered blocks ``blocks`` (bool[blocks]), which is not stored on flash:
    the data are assumed to have the highest age that an idle drive allows. Bit errors follow this
    age.
    """
    table = arrays.cfg[0]
    if table.refresh_age > 0:
        age = min(int(table.refresh_age), NEVER - 1) - int(table.refresh_lead)
        arrays.quality["since"][blocks] = -age


# --- time


@cold
def start_due(st, until):
    """Do the upkeep that is due before the next event. Return False if none is due up to ``until``
    ps, if no event of the host or request of the caller reaches that time, or after a power cut.
    """
    cfg = st.cfg[0]
    reg = st.reg[0]
    if reg.upkeep > until:
        return False
    if is_saving(st) or (until >= NEVER - 1 and not host_has_work(st)):
        reg.until = until
        return False
    reg.now = max(reg.now, reg.upkeep)
    following = NEVER
    for dev in range(st.dev.shape[0]):
        dev_rec = st.dev[dev]
        if cfg.scrub_step > 0:
            if dev_rec.scrub_at <= reg.now:
                dev_rec.scrub_at += cfg.scrub_step
                dev_rec.scrub_turn += 1
                for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
                    if st.upkeep[unit].scrubbing == 0:
                        scrub(st, dev, unit)
            following = min(following, dev_rec.scrub_at)
        for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
            resume = st.upkeep[unit].resume
            if 0 < resume <= reg.now:
                st.upkeep[unit].resume = 0
                scrub(st, dev, unit)
                resume = st.upkeep[unit].resume
            if resume > 0:
                following = min(following, resume)
            if st.upkeep[unit].due <= reg.now:
                look(st, dev, unit)
            following = min(following, st.upkeep[unit].due)
    reg.upkeep = following
    reg.until = min(until, following)
    return True


@cold
def is_saving(st):
    """Return True if capacitors power a drive, so that no energy is spent on upkeep."""
    for dev in range(st.dev.shape[0]):
        if st.dev[dev].saving != 0:
            return True
    return False


@cold
def host_has_work(st):
    """Return True if requests, commands or plan rows are loaded that are not complete."""
    if st.reg[0].tail != st.reg[0].next_row:
        return True
    for queue in range(st.pair.shape[0]):
        if st.pair[queue].outstanding > 0 or st.pair[queue].next < st.pair[queue].loaded:
            return True
    return False


# --- refresh


@cold
def due_time(st, bid):
    """Return the time (ps) at which the data of block ``bid`` reach their age limit.

    It is negative, and still in order of age, if scrubbing has found too many bit errors in the
    block; NEVER without an age limit.
    """
    cfg = st.cfg[0]
    quality = st.quality[bid]
    since = quality.since
    if quality.weak != 0:
        return max(since, 0) - NEVER
    if cfg.refresh_age == 0:
        return NEVER
    if since == 0:
        if quality.first != 1:
            return cfg.refresh_first
        since = quality.began
    return min(since + cfg.refresh_age, NEVER)


@cold
def oldest_block(st, unit):
    """Return (the block of unit ``unit`` whose data reach their age limit first, that time in ps),
    or (-1, NEVER) if no block with data can be refreshed.
    """
    cfg = st.cfg[0]
    oldest = -1
    earliest = NEVER
    first = unit * cfg.all_blocks
    for bid in range(first, first + cfg.blocks):
        block = st.block[bid]
        if st.valid[bid] == 0 or block.retire != 0:
            continue
        if has_data(block):
            due = due_time(st, bid)
            if due < earliest:
                oldest = bid
                earliest = due
    return oldest, earliest


@cold
def has_data(block):
    """Return True if a block with valid pages keeps them: collection is not moving them."""
    return (
        block.state == page_map.FULL
        or block.state == page_map.FOLDABLE
        or block.state == page_map.OPEN
    )


@cold
def look(st, dev, unit):
    """Refresh the oldest block of unit ``unit`` if it is due. Set the time of the next check."""
    cfg = st.cfg[0]
    now = st.reg[0].now
    upkeep = st.upkeep[unit]
    upkeep.late = 0
    if upkeep.moving != 0:
        upkeep.due = NEVER  # its end calls page_map.look_now
        return
    bid, due = oldest_block(st, unit)
    if due - cfg.refresh_lead > now:
        upkeep.due = NEVER
        if cfg.refresh_age > 0:  # blocks opened from now on reach the limit later
            upkeep.due = min(due, now + cfg.refresh_age) - cfg.refresh_lead
        return
    upkeep.due = now + cfg.refresh_wait
    late = due <= now
    if not late and not idle.no_command(st, dev):
        return
    if st.block[bid].state == page_map.OPEN:
        close(st, dev, unit, bid)
    if gc.may_refresh(st, unit, bid) and (late or gc.may_level(st, unit)):
        upkeep.due = NEVER
        gc.start_refresh(st, dev, unit, bid)
    elif late:
        upkeep.late = bid + 1


@cold
def close(st, dev, unit, bid):
    """Close the open block ``bid`` before it is full, unless a collection has reserved its
    pages."""
    if st.front[st.block[bid].stream, unit].owed == 0:
        padding.close_early(st, dev, unit, bid)
        st.pool[unit].asked = 1
        write_frontier.schedule_check(st, unit)


# --- scrubbing


@cold
def scrub(st, dev, unit):
    """Read the next page of unit ``unit`` for scrubbing, if the unit is behind schedule."""
    cfg = st.cfg[0]
    upkeep = st.upkeep[unit]
    while True:
        if upkeep.scrubbing == 0:
            if upkeep.turn >= st.dev[dev].scrub_turn:
                return
            upkeep.turn = max(upkeep.turn, st.dev[dev].scrub_turn - cfg.blocks)
            upkeep.scrubbing = unit * cfg.all_blocks + upkeep.turn % cfg.blocks + 1
            upkeep.turn += 1
            upkeep.part = 0
        ppn = next_sample(st, dev, unit, upkeep.scrubbing - 1)
        if ppn >= 0:
            read(st, dev, ppn)
            return
        upkeep.scrubbing = 0


@cold
def next_sample(st, dev, unit, bid):
    """Return the next page of block ``bid`` to be read for scrubbing, or -1 if there is none.

    The block has as many parts of equal length as pages are read. Of each part, that is the first
    of the valid pages of the type with the most errors.
    """
    cfg = st.cfg[0]
    upkeep = st.upkeep[unit]
    if not has_data(st.block[bid]):
        return -1
    pages = pslc.pages_of_mode(st, bid)
    parts = min(cfg.scrub_pages, pages) if cfg.scrub_pages > 0 else pages
    base = page_map.first_page(st, dev, bid)
    while upkeep.part < parts:
        first = upkeep.part * pages // parts
        upkeep.part += 1
        best = -1
        most = 0.0
        for slot in range(first, upkeep.part * pages // parts):
            lpn = int(st.p2l[dev, base + slot]) - 1
            if lpn < 0 or int(st.l2p[dev, lpn]) - 1 != base + slot:
                continue
            page = slot // cfg.together
            if pslc.is_pslc(st, bid):
                page += cfg.pages
            if st.scale[page] > most:
                best = base + slot
                most = st.scale[page]
        if best >= 0:
            return best
    return -1


@cold
def read(st, dev, ppn):
    """Read physical page ``ppn`` for scrubbing, in the queue of collection's reads."""
    cfg = st.cfg[0]
    tid = take_txn(st)
    if tid < 0:
        pause(st, page_map.block_at(st, dev, ppn) // cfg.all_blocks)
        return
    txn = st.txn[tid]
    txn.dev = dev
    txn.role = Role.SCRUB
    txn.op = timing.READ
    txn.n = 1
    txn.lpn = int(st.p2l[dev, ppn]) - 1
    txn.ppn = ppn
    txn.size = cfg.page_bytes
    txn.bus = cfg.page_bytes
    die = page_map.set_place(st, dev, tid)
    txn.array = st.page_ps[0, txn.page]
    page_map.count_pending_read(st, dev, ppn)
    st.count[dev, SCRUB_READ_PAGES] += 1
    read_path.count_command(st, tid)
    push(st, die, tid, cfg.q_gc_read)


@cold
def judge(st, tid):
    """Mark the block that ``tid`` has read for scrubbing as due for a refresh, if the page took
    more than one reading, had too many wrong bits, or could not be corrected.

    A page whose data are lost is not judged: another move would not bring them back. So the data
    of a page that cannot be corrected are moved once, and are then readable again or marked as
    lost (page_health.carry_after_move).
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    if reading_is_of_lost_data(st, tid):
        return
    reading = st.reading[tid]
    wrong = cfg.refresh_bits >= 0 and reading.errors > cfg.refresh_bits
    if wrong or reading.total > 1 or reading.spoilt != 0 or read_retry.needs_refresh(st, tid):
        block = page_map.block_at(st, txn.dev, txn.ppn)
        st.quality[block].weak = 1
        page_map.look_now(st, block // cfg.all_blocks)


@cold
def reading_is_of_lost_data(st, tid):
    """Return True if the data of the page that ``tid`` reads were lost before it was programmed."""
    txn = st.txn[tid]
    block = page_map.block_at(st, txn.dev, txn.ppn)
    return page_health.lost_sectors(st, block, txn.dev, txn.ppn) != 0


@cold
def on_scrubbed(st, tid):
    """Complete a read of scrubbing that has been decoded, and read the next page. While the host
    has commands, the next read waits, so that scrubbing takes at most a quarter of the time of a
    die, however short its interval."""
    dev = st.txn[tid].dev
    unit = page_map.block_at(st, dev, st.txn[tid].ppn) // st.cfg[0].all_blocks
    give_txn(st, tid)
    if idle.no_command(st, dev):
        scrub(st, dev, unit)
    else:
        pause(st, unit)


@cold
def pause(st, unit):
    """Let scrubbing of unit ``unit`` wait for three times the longest read of a page."""
    reg = st.reg[0]
    st.upkeep[unit].resume = reg.now + st.cfg[0].scrub_pause
    reg.upkeep = min(reg.upkeep, st.upkeep[unit].resume)
    reg.until = min(reg.until, reg.upkeep)
