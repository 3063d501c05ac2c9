"""Write frontiers: the next pages of the open block of each stream and unit.

Owns the allocation of pages, and fills (writes without simulated time). Does not own free blocks
(block_manager.py) or the mapping of pages (page_map.py).
Source: one open block per stream and plane or super-block, as in MQSim and FEMU.
"""

from __future__ import annotations

from ondie.emu.ftl import word_lines
from ondie.emu.ftl.block_manager import has_unreserved_block, open_block, queue_erase
from ondie.emu.ftl.page_map import (
    FULL,
    block_at,
    count_programmed,
    first_page,
    is_map_stream,
    map_page,
    pin,
    unmap,
)
from ondie.emu.nand.die import Q_MAP_WRITE, Q_WRITE
from ondie.kernels.jit import cold, inline, njit


@njit
def allocate(st, dev, unit, stream, count):
    """Allocate up to ``count`` page slots for stream ``stream`` in unit ``unit``, at consecutive
    planes of one page offset.

    Return (first ppn, number of slots), or (-1, 0) if the unit has no block available. Set
    ``reg.filled`` to 1 if the block is now full, else to 0.
    """
    cfg = st.cfg[0]
    reg = st.reg[0]
    front = st.front[stream, unit]
    if front.laid != 0:
        skip_to_next_stripe(st, dev, unit, front)
    reg.filled = 0
    if front.block < 0 and not open_block(st, dev, unit, stream):
        return -1, 0
    got = 1
    if count > 1:
        got = min(count, cfg.unit_planes - front.next % cfg.unit_planes)
        if cfg.multi_plane == 0:
            got = 1
        if cfg.slots > 1:
            got = word_lines.slots_together(st, front.next, count)
    at = unit * cfg.all_blocks + front.block
    block = st.block[at]
    ppn = first_page(st, dev, at) + front.next
    if front.next == 0 and block.dirty != 0:
        queue = cfg.q_gc_write if stream >= cfg.collected else Q_WRITE
        if is_map_stream(st, stream):
            queue = Q_MAP_WRITE
        queue_erase(st, dev, unit, at, queue)
    block.dirty = 1
    front.next += got
    block.flying += got
    if front.next == cfg.block_pages:
        close_block(st, dev, front, block)
        reg.filled = 1
        if cfg.open_ahead != 0 and (
            stream < cfg.collected + cfg.collected_streams or has_unreserved_block(st, unit)
        ):
            open_block(st, dev, unit, stream)
    return ppn, got


@inline
def close_block(st, dev, front, block):
    """Close the full block ``block`` of write frontier ``front`` (both are records)."""
    front.block = -1
    block.state = FULL
    block.filled = st.dev[dev].filled
    block.written = st.reg[0].now
    st.dev[dev].filled += 1


@cold
def skip_to_next_stripe(st, dev, unit, front):
    """Advance write frontier ``front`` to the next stripe of word lines, because an untimed fill
    has ended inside the current stripe. The remaining pages of the current stripe stay
    unprogrammed.
    """
    cfg = st.cfg[0]
    front.laid = 0
    front.next += -front.next % cfg.stripe
    if front.next == cfg.block_pages:
        close_block(st, dev, front, st.block[unit * cfg.all_blocks + front.block])


@cold
def set_laid(st, unit, stream, before):
    """Update the flag ``laid`` of the write frontier of stream ``stream`` in unit ``unit`` before
    or after an untimed fill. The flag makes the next allocation skip to the next stripe.

    ``before``: 1 to clear the flag before the fill; 0 to set it after the fill if the fill has
    ended inside a stripe.
    """
    front = st.front[stream, unit]
    front.laid = int(before == 0 and word_lines.is_inside_stripe(st, front))


@inline
def plane_of(st, ppn):
    """Return the plane of physical page ``ppn`` within its unit."""
    return ppn % st.cfg[0].unit_planes


@inline
def next_plane(st, unit, stream):
    """Return the plane, within unit ``unit``, of the next page of stream ``stream``."""
    front = st.front[stream, unit]
    return front.next % st.cfg[0].unit_planes if front.block >= 0 else 0


@cold
def map_unwritten(st, dev, lpn, stream):
    """Map logical page ``lpn``, which is read before its first write, as if it had been written.

    The block of the page is then never collected. Return False if no block has room for the page.
    """
    if fill(st, dev, lpn, 1, stream) != 0:
        return False
    ppn = int(st.l2p[dev, lpn]) - 1
    block = block_at(st, dev, ppn)
    pin(st, block)
    if st.cfg[0].buffer_unwritten != 0:
        st.unprogrammed[ppn] = 1
    unit = block // st.cfg[0].all_blocks
    if st.reg[0].filled != 0:
        st.pool[unit].asked = 1
        schedule_check(st, unit)
    return True


@njit
def schedule_check(st, unit):
    """Schedule a check of unit ``unit`` before the clock advances. The check retries the stalled
    writes of the unit and starts a garbage collection if needed.
    """
    if st.pool[unit].retry == 0:
        st.pool[unit].retry = 1
        st.retry[st.reg[0].retries] = unit
        st.reg[0].retries += 1


@inline
def writes_wait(st, dev, unit):
    """Return True if writes wait for a free block: in unit ``unit`` if allocation is static,
    otherwise in any unit of drive ``dev``.
    """
    if st.cfg[0].static != 0:
        return st.pool[unit].stall_head >= 0
    if st.cfg[0].map_entries != 0 and st.maps[dev].stall_first > 0:
        return True
    return st.dev[dev].stall_head >= 0


@cold
def doubt_space(st, dev, unit):
    """Pause the run if writes wait for space, unless a garbage collection that may free space is in
    progress.

    nvme/write_errors.py then decides how the writes end. ``unit``: with static allocation, consider
    only garbage collections in this unit; -1: consider all units.
    """
    cfg = st.cfg[0]
    for other in range(dev * cfg.units, (dev + 1) * cfg.units):
        if st.pool[other].victims > 0 and (cfg.static == 0 or unit < 0 or other == unit):
            return
    st.dev[dev].doubt = 1
    st.reg[0].pause = 1


@cold
def lose_spare_block(st, dev):
    """Count a block of drive ``dev`` that will be retired. Write-protect a served drive when no
    spare block is left.
    """
    dev_rec = st.dev[dev]
    dev_rec.spare -= 1
    if dev_rec.ends != 0 and dev_rec.spare <= 0:
        dev_rec.protected = 1


@njit
def fill(st, dev, lpn, count, stream):
    """Map ``count`` logical pages, starting at ``lpn``, as if they had been written in sequence,
    without simulated time.

    Return the number of pages for which no unit had room. The fill does not count erases.
    """
    cfg = st.cfg[0]
    dev_rec = st.dev[dev]
    without = 0
    while count > 0:
        if dev_rec.cursor == 0 and cfg.line <= 1 and cfg.static == 0:
            done = fill_rounds(st, dev, lpn, count, stream)
            lpn += done
            count -= done
            if count == 0:
                break
        unit = unit_of(st, dev, lpn, stream)
        if cfg.line > 1:
            if cfg.static == 0:
                unit = word_lines.unit_in_turn(st, dev, stream)
            set_laid(st, unit, stream, 1)
        pool = st.pool[unit]
        if st.front[stream, unit].block < 0 and pool.free_n > cfg.gc_reserve:
            st.block[unit * cfg.all_blocks + st.free[unit, pool.free_head]].dirty = 0
        limit = count if cfg.static == 0 else 1
        ppn, got = allocate(st, dev, unit, stream, limit)
        if cfg.line > 1:
            set_laid(st, unit, stream, 0)
            word_lines.next_turn(st, dev, unit, stream, stream, got)
        elif cfg.static == 0:
            dev_rec.cursor = dev_rec.cursor + 1 if dev_rec.cursor + 1 < cfg.units else 0
        if got == 0:
            without += 1
            if without == cfg.units or cfg.static != 0:
                return count
            continue
        without = 0
        for i in range(got):
            map_page(st, dev, lpn + i, ppn + i)
        count_programmed(st, dev, ppn, got)
        lpn += got
        count -= got
    return 0


@cold
def fill_rounds(st, dev, lpn, count, stream):
    """Map logical pages, starting at ``lpn``, as :func:`fill` does, in whole rounds over the units,
    until ``count`` pages are mapped or the open block of a unit is almost full.

    Return the number of pages mapped, which can be less than ``count``. Return 0 if a unit has no
    partly filled open block, or if its write frontier is inside a stripe, a flash page or (if
    planes are programmed together) a super-page.
    """
    cfg = st.cfg[0]
    each = cfg.unit_planes * cfg.slots if cfg.multi_plane != 0 else cfg.slots
    rounds = count // (cfg.units * each)
    for at in range(cfg.units):
        front = st.front[stream, dev * cfg.units + st.turn[at]]
        if front.block < 0 or front.next == 0 or front.laid != 0 or front.next % each != 0:
            return 0
        rounds = min(rounds, (cfg.block_pages - front.next) // each - 1)
    if rounds <= 0:
        return 0
    for at in range(cfg.units):
        unit = dev * cfg.units + st.turn[at]
        front = st.front[stream, unit]
        block = unit * cfg.all_blocks + front.block
        ppn = first_page(st, dev, block) + front.next
        for turn in range(rounds):
            first = lpn + (turn * cfg.units + at) * each
            for page in range(each):
                unmap(st, dev, first + page)
                st.l2p[dev, first + page] = ppn + 1
                st.p2l[dev, ppn] = first + page + 1
                ppn += 1
        st.valid[block] += rounds * each
        front.next += rounds * each
    st.dev[dev].mapped += rounds * each * cfg.units
    return rounds * each * cfg.units


@inline
def unit_of(st, dev, lpn, stream):
    """Return the unit for a write of logical page ``lpn``. With static allocation, the unit depends
    on the number of the page within the zone (address range) of stream ``stream``. Otherwise it is
    the next unit in round-robin order.
    """
    cfg = st.cfg[0]
    at = st.dev[dev].cursor
    if cfg.static != 0:
        zone = st.zone[stream]
        at = lpn - zone.first_lpn
        if cfg.together > 1:
            at //= cfg.together
        at = zone.turn + at % zone.units
    return dev * cfg.units + st.turn[at]
