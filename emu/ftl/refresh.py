"""Refresh and scrubbing: background work that rewrites data before it becomes uncorrectable.

Owns the age at which blocks are refreshed, the reads of scrubbing, and the time at which refresh
and scrubbing start. Does not own the moves of a refresh (gc.py), the bit errors (page_health.py,
nand/rber.py) or read reclaim, which only host reads trigger (gc.py).
Source: Cai et al., "Flash correct-and-refresh", ICCD 2012 (blocks are read periodically, and their
pages are corrected and moved before they have more retention errors than the ECC can correct; here
to other blocks, never in place); Cai et al., Proc. IEEE 105(9), 2017, section 4 (refresh by age or
by the errors found); JEDEC JESD218 (retention required of a drive without power).

This background work ("upkeep") has no events, because pending events would keep a drive busy
forever. The time of the next check is ``reg.upkeep``. The event loop calls ``start_due`` before it
advances the clock beyond that time. It advances the clock for commands, or because the caller
requests it (``run_until`` with a time, ``Service.idle``). If neither happens, no further upkeep
begins. Therefore upkeep does not keep a run from ending when no other work is left.

A unit refreshes one block at a time, the oldest first. During the last ``refresh_lead`` before its
age limit, a block is refreshed if no host command is outstanding at one of LOOKS checks. At the
limit, it is refreshed even if the host is active. If the unit is collecting garbage at that time,
the block becomes the next victim. Garbage collection and refresh therefore alternate. A block that
is still open is closed first.
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
"""Divisor of the age limit: a block may be refreshed in idle times when at most 1/LEAD of its age
limit is left."""
LOOKS = 64
"""Number of checks for an idle time during the last 1/LEAD of the age limit."""
SHORTEST_WAIT = 10**6
"""Shortest interval between two checks of a block that cannot be refreshed yet (ps)."""
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
    """Set the age of the recovered blocks ``blocks`` (bool[blocks]) if blocks are refreshed by age.
    The age is not stored on flash, so the data is assumed to have the highest age that data can
    reach in an idle drive. The bit error rate depends on this age.
    """
    table = arrays.cfg[0]
    if table.refresh_age > 0:
        age = min(int(table.refresh_age), NEVER - 1) - int(table.refresh_lead)
        arrays.quality["since"][blocks] = -age


# --- time


@cold
def start_due(st, until):
    """Start the upkeep (refresh and scrubbing) that is due before the next event. Return False if
    no upkeep is due up to ``until`` (ps), if neither a host event nor a request of the caller
    advances the clock to that time, or after a power cut.
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
    """Return True if a drive is powered by its capacitors. Background work (refresh, scrubbing)
    then does not start, to save energy."""
    for dev in range(st.dev.shape[0]):
        if st.dev[dev].saving != 0:
            return True
    return False


@cold
def host_has_work(st):
    """Return True if loaded requests, commands or plan rows are incomplete."""
    if st.reg[0].tail != st.reg[0].next_row:
        return True
    for queue in range(st.pair.shape[0]):
        if st.pair[queue].outstanding > 0 or st.pair[queue].next < st.pair[queue].loaded:
            return True
    return False


# --- refresh


@cold
def due_time(st, bid):
    """Return the time (ps) at which the data of block ``bid`` reaches its age limit, or NEVER if
    there is no age limit.

    If scrubbing has found too many bit errors in the block, the time is negative. Of two such
    blocks, the block that was opened earlier has the smaller time. All blocks that were opened
    before the run have the same time.
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
    """Return (block, due time) of the block in unit ``unit`` with the earliest due time (see
    :func:`due_time`), or (-1, NEVER) if no block has a due time before NEVER. Blocks without valid
    pages and blocks to be retired are ignored."""
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
    """Return True if the block with record ``block`` is open or full. In other states, the block
    holds no data, or garbage collection is moving its data. The function does not check whether the
    block has valid pages."""
    return (
        block.state == page_map.FULL
        or block.state == page_map.FOLDABLE
        or block.state == page_map.OPEN
    )


@cold
def look(st, dev, unit):
    """Refresh the oldest block of unit ``unit`` if its refresh is due. Set the time of the next
    check.
    """
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
    """Close open block ``bid`` although it is not full, unless a garbage collection has reserved
    page slots in the block.
    """
    if st.front[st.block[bid].stream, unit].owed == 0:
        padding.close_early(st, dev, unit, bid)
        st.pool[unit].asked = 1
        write_frontier.schedule_check(st, unit)


# --- scrubbing


@cold
def scrub(st, dev, unit):
    """Read the next page of unit ``unit`` for scrubbing, if scrubbing of the unit is behind
    schedule.
    """
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
    """Return the next page of block ``bid`` to be read for scrubbing, or -1 if no such page is
    left.

    The block is divided into as many parts of about equal length as pages are to be read
    (``scrub_pages``; 0: all pages). One page is read from each part that has valid pages. Of these
    pages, it is the first one of the page type with the highest bit error rate.
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
    """Read physical page ``ppn`` for scrubbing, in the queue for garbage collection reads."""
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
    """Mark a block as due for a refresh after the scrubbing read ``tid``, if the page took more
    than one reading, had too many bit errors, or could not be corrected.

    Ignore a page whose data is already lost, because a move would not restore the data. Therefore
    the data of a page that cannot be corrected is moved only once. After the move, the data is
    either readable again or marked as lost (page_health.carry_after_move).
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
    """Return True if the data that ``tid`` reads was lost before the page was programmed."""
    txn = st.txn[tid]
    block = page_map.block_at(st, txn.dev, txn.ppn)
    return page_health.lost_sectors(st, block, txn.dev, txn.ppn) != 0


@cold
def on_scrubbed(st, tid):
    """Complete a scrubbing read that has been decoded, and read the next page. While the host has
    outstanding commands, the next read is delayed, so that scrubbing uses at most a quarter of the
    time of a die, even if the scrubbing interval is short.
    """
    dev = st.txn[tid].dev
    unit = page_map.block_at(st, dev, st.txn[tid].ppn) // st.cfg[0].all_blocks
    give_txn(st, tid)
    if idle.no_command(st, dev):
        scrub(st, dev, unit)
    else:
        pause(st, unit)


@cold
def pause(st, unit):
    """Delay scrubbing of unit ``unit`` by three times the longest page read time."""
    reg = st.reg[0]
    st.upkeep[unit].resume = reg.now + st.cfg[0].scrub_pause
    reg.upkeep = min(reg.upkeep, st.upkeep[unit].resume)
    reg.until = min(reg.until, reg.upkeep)
