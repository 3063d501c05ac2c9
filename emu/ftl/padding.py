"""Padding of incomplete word lines.

Owns the addition of programs to word lines, the conditions for padding, and the padding programs.
Does not own the word lines and their passes (word_line_buffer.py) or page allocation (page_map.py).
Source: this project, which assumes that controllers pad a word line for a FLUSH, or when its data
has waited for a long time.

Padding completes a word line and, with two passes, also the next word line, in these cases:
- A FLUSH or an FUA write (which completes only when its data is on flash) waits for the word line,
  and all pages for which it waits have been added to word lines.
- A host command or a processor in the drive waits, and no event is pending in the drive or on the
  links to it. In this case, first word lines of host writes are padded, then word lines of garbage
  collection and of the mapping table.
- The oldest page of the word line has waited for ``ftl.gather_time``.
- All other work of a run is done.

Word lines of collected pages are not padded while a garbage collection in progress has reserved
page slots in them for pages that it still has to move.
"""

from __future__ import annotations

from ondie.emu.clock import NEVER
from ondie.emu.engine.core import idle, lru, stages
from ondie.emu.engine.core.counters import (
    GATHERED_MOST,
    PADDED_AT_FLUSH,
    PADDED_AT_REST,
    PADDED_IN_TIME,
)
from ondie.emu.engine.core.events import (
    CACHED,
    ROW,
    go,
    rest,
    set_leaf,
    take_txn,
)
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.transaction import has_fua
from ondie.emu.ftl import page_map, pslc, trim_maps, word_lines, write_frontier
from ondie.emu.ftl.gc import maybe_start_gc
from ondie.emu.ftl.transfers import encode
from ondie.emu.ftl.word_line_buffer import (
    find,
    insert,
    is_whole,
    longest_wait,
    send_line,
    start_second_pass,
    unit_of,
)
from ondie.emu.nand.timing import PROGRAM
from ondie.kernels.jit import cold, njit

# --- padding


@njit
def pad(st, dev, unit, stream):
    """Program padding into the next page slots of a write frontier, up to the last plane at the
    current page offset."""
    cfg = st.cfg[0]
    if stream == cfg.pslc_stream:
        ppn, count = pslc.allocate(st, dev, unit, cfg.together)
    else:
        ppn, count = write_frontier.allocate(st, dev, unit, stream, cfg.together)
    filled = st.reg[0].filled
    tid = take_txn(st)
    if tid < 0:
        return
    txn = st.txn[tid]
    txn.dev = dev
    txn.lpn = -1
    txn.ppn = ppn
    txn.n = count
    txn.op = PROGRAM
    txn.role = Role.PADDING
    txn.size = count * cfg.page_bytes
    txn.bus = count * cfg.page_bytes
    page_map.set_place(st, dev, tid)
    txn.array = st.page_ps[1, txn.page]
    if filled != 0:
        maybe_start_gc(st, dev, unit)
    if not encode(st, tid, stages.ENCODED):
        go(st, tid, stages.ENCODED)


@njit
def pad_to(st, dev, unit, stream, end):
    """Program padding into the open block of a write frontier until page slot ``end`` - 1 is
    programmed.
    """
    front = st.front[stream, unit]
    block = front.block
    while front.block == block and front.next < end:
        pad(st, dev, unit, stream)


@njit
def missing_to(st, head):
    """Return the end (exclusive) of the page slots to program to complete the waiting word line
    that begins with program ``head``. With two passes, the next word line is included. Return -1 if
    no page is missing or if garbage collection has reserved the page slots."""
    cfg = st.cfg[0]
    txn = st.txn[head]
    block = page_map.block_at(st, txn.dev, txn.ppn)
    unit = block // cfg.all_blocks
    front = st.front[st.block[block].stream, unit]
    if front.block != block - unit * cfg.all_blocks or front.owed > 0:
        return -1
    stripe = (txn.ppn - page_map.first_page(st, txn.dev, block)) // cfg.stripe
    end = min((stripe + cfg.passes) * cfg.stripe, pslc.pages_of_mode(st, block))
    return end if front.next < end else -1


@njit
def pad_line(st, head, rule):
    """Pad the waiting word line that begins with program ``head`` (with two passes, also the next
    word line), increment counter ``rule``, and return True. Return False without padding if all
    page slots of the line are allocated, or if garbage collection has reserved the slots."""
    end = missing_to(st, head)
    if end < 0:
        return False
    dev = st.txn[head].dev
    block = page_map.block_at(st, dev, st.txn[head].ppn)
    st.count[dev, rule] += 1
    pad_to(st, dev, block // st.cfg[0].all_blocks, st.block[block].stream, end)
    return True


@njit
def pad_streams(st, dev, first, behind, rule):
    """Pad all waiting word lines of streams ``first`` to ``behind - 1``. Increment counter ``rule``
    for each padded word line. Return True if any word line was padded.
    """
    cfg = st.cfg[0]
    any_padded = False
    if st.dev[dev].lines == 0:
        return any_padded
    for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
        tid = st.pool[unit].lines - 1
        while tid >= 0:
            stream = st.block[page_map.block_at(st, dev, st.txn[tid].ppn)].stream
            if stream == cfg.pslc_stream:
                stream = 0  # of the host
            if first <= stream < behind and pad_line(st, tid, rule):
                any_padded = True
            tid = st.txn[tid].next
    return any_padded


@cold
def pad_before_close(st, dev, unit, block):
    """Pad the current word line of open block ``block`` before the block is closed. The padded word
    line is then the last word line of the block.
    """
    cfg = st.cfg[0]
    stream = st.block[block].stream
    front = st.front[stream, unit]
    end = front.next + -front.next % cfg.stripe
    pad_to(st, dev, unit, stream, end)
    if front.block != block - unit * cfg.all_blocks:
        return
    st.block[block].last = end // cfg.stripe - 1
    if cfg.passes == 2:
        last = page_map.first_page(st, dev, block) + end - cfg.stripe
        for plane in range(cfg.stripe // cfg.line):
            start_second_pass(
                st, unit, find(st, unit, word_lines.word_line_of(st, last + plane * cfg.slots))
            )


@cold
def close_early(st, dev, unit, bid):
    """Close block ``bid`` if it is open, even if it is not full. Its remaining pages stay
    unprogrammed; with word lines, only the current word line is completed by padding.
    """
    block = st.block[bid]
    if st.cfg[0].line > 1 and block.state == page_map.OPEN:
        pad_before_close(st, dev, unit, bid)
    if block.state == page_map.OPEN:
        st.front[block.stream, unit].block = -1
        block.state = page_map.FULL
        block.filled = st.dev[dev].filled
        st.dev[dev].filled += 1
        if pslc.is_pslc(st, bid):
            pslc.mark_foldable(st, unit, bid)


# --- reasons to pad


@cold
def count_fua_pages(st, tid):
    """Count the pages of fetched write command ``tid`` if it has FUA and the data cache does not
    cache writes. Such a command completes only when its data is on flash.
    """
    txn = st.txn[tid]
    if has_fua(st, tid) and st.cfg[0].cache_writes == 0:
        st.dev[txn.dev].fua += txn.n


@cold
def request_padding(st, dev):
    """Request padding for a write in the data cache that completes only when its data is on flash
    (FUA).
    """
    st.dev[dev].pressing = 1
    pad_for_cache(st, dev)


@cold
def on_first_pass_done(st, tid):
    """Handle the end of the first of two passes over the word line of program ``tid``.

    Before the second pass, the next word line of the block, if any, must be filled and receive its
    first pass. Pad the next word line if a FLUSH, an FUA write, a trim map or a metadata page waits
    for the second pass.
    """
    txn = st.txn[tid]
    if txn.kind == CACHED:
        pad_for_cache(st, txn.dev)
    elif trim_maps.is_trim_map(st, tid):
        pad_for_trim_maps(st, txn.dev)
    elif has_fua(st, tid) and st.dev[txn.dev].fua == 0:
        pad_streams(st, txn.dev, 0, st.cfg[0].collected, PADDED_AT_FLUSH)


@cold
def count_again(st, tid):
    """Count the pages of FUA program ``tid`` again after a program failure, because the pages will
    be added to another word line.
    """
    txn = st.txn[tid]
    if has_fua(st, tid):
        st.dev[txn.dev].fua += txn.n


@cold
def pad_for_cache(st, dev):
    """Pad word lines for a FLUSH or FUA write that waits for the data cache.

    Do nothing before every page that the cache is writing to flash has been added to a word line,
    or while the cache can send another page to flash.
    """
    dev_rec = st.dev[dev]
    cached = st.cache[dev]
    waits = cached.flush_first > 0 or dev_rec.pressing != 0 or dev_rec.saving != 0
    if not waits or cached.flying > dev_rec.joined:
        return
    more = cached.first > 0 and st.cpage[cached.first - 1].epoch <= cached.flushed
    if more and cached.flying < st.cfg[0].cache_flights:
        return
    dev_rec.pressing = 0
    pad_streams(st, dev, 0, st.cfg[0].collected, PADDED_AT_FLUSH)


@cold
def pad_for_trim_maps(st, dev):
    """Pad the word lines that contain trim maps or metadata pages, once all trim maps and metadata
    pages in flight have reached word lines.
    """
    cfg = st.cfg[0]
    if st.dev[dev].trim_joining > 0:
        return
    if st.dev[dev].trim_flights > 0:
        pad_streams(st, dev, cfg.collected, cfg.collected + cfg.collected_streams, PADDED_AT_FLUSH)
    if st.dev[dev].meta_flying > 0:
        pad_streams(st, dev, cfg.map_stream, cfg.map_stream + 1, PADDED_AT_FLUSH)


@njit
def no_event_pending(st, dev):
    """Return True if no event is pending in drive ``dev`` or on the links to it.

    Arrivals of requests, host computation and the padding timeout do not count.
    """
    cfg = st.cfg[0]
    key = st.key
    half = key.shape[0] >> 1
    for bus in range(dev * cfg.channels, (dev + 1) * cfg.channels):
        if key[half + bus] != NEVER:
            return False
    first = half + st.reg[0].station0
    for station in range(stages.HOST_STATIONS):
        computing = (
            station == stages.CPU or station == stages.ACCELERATOR or station == stages.RELAY
        )
        if key[first + station] != NEVER and not computing:
            return False
    first += stages.station(st, dev, 0)
    for station in range(stages.ECC + cfg.channels):
        if key[first + station] != NEVER and station != stages.TIMER:
            return False
    return True


@cold
def pad_at_rest(st):
    """In each drive without pending events, pad the word lines for which a command waits. At the
    end of a run, pad all word lines.

    Return True if the function has added or changed an event.
    """
    cfg = st.cfg[0]
    reg = st.reg[0]
    if st.dev.shape[0] == 1 and st.tree[1] < reg.station0 and st.key[1] < NEVER:
        return False  # the next event is a channel's
    found = False
    for dev in range(st.dev.shape[0]):
        leaf = reg.gather0 + dev
        waits = st.dev[dev].lines > 0
        if (
            not waits
            and st.key[(st.key.shape[0] >> 1) + leaf] == NEVER
            or not no_event_pending(st, dev)
        ):
            continue
        if not waits:
            rest(st, leaf)
            found = True
        elif run_has_ended(st):
            found = pad_streams(st, dev, 0, st.front.shape[0], PADDED_AT_REST) or found
        elif is_awaited(st, dev):
            if pad_streams(st, dev, 0, cfg.collected, PADDED_AT_REST):
                found = True
            elif pad_streams(st, dev, cfg.collected, st.front.shape[0], PADDED_AT_REST):
                found = True
    return found


@njit
def run_has_ended(st):
    """Return True if all work of a run is done and only padding is pending."""
    reg = st.reg[0]
    if reg.closing == 0 or st.tree[1] < reg.gather0 or reg.tail != reg.next_row:
        return False
    for queue in range(st.pair.shape[0]):
        if st.pair[queue].outstanding > 0 or st.pair[queue].next < st.pair[queue].loaded:
            return False
    return True


@njit
def is_awaited(st, dev):
    """Return True if the host waits for a command, or if a processor in the drive waits for pages
    in incomplete word lines.
    """
    cfg = st.cfg[0]
    if not idle.no_command(st, dev):
        return True
    for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
        head = st.pool[unit].lines - 1
        while head >= 0:
            tid = head
            while tid >= 0:
                if st.txn[tid].kind == ROW:
                    return True
                tid = st.txn[tid].mate
            head = st.txn[head].next
    return False


@cold
def pad_overdue(st, dev):
    """Pad the word lines whose first page has waited for at least the time that
    :func:`longest_wait` returns, and set the timer for the remaining word lines.
    """
    cfg = st.cfg[0]
    now = st.reg[0].now
    wait = longest_wait(st, dev)
    oldest = NEVER
    lacking = NEVER  # oldest time of the word lines that could be padded
    padded_any = False
    leaf = st.reg[0].gather0 + dev
    rest(st, leaf)
    for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
        tid = st.pool[unit].lines - 1
        while tid >= 0:
            txn = st.txn[tid]
            if txn.time + wait <= now:
                if pad_line(st, tid, PADDED_IN_TIME):
                    padded_any = True
                else:
                    txn.time = now  # its missing pages are on the way or reserved
            if txn.time + wait > now:
                oldest = min(oldest, txn.time)
                if missing_to(st, tid) >= 0:
                    lacking = min(lacking, txn.time)
            tid = txn.next
    if not padded_any and no_event_pending(st, dev):
        oldest = lacking  # no pages will arrive for the other word lines
    if oldest < NEVER:
        set_leaf(st, leaf, oldest + wait)


# --- arrivals


@cold
def join_word_line(st, tid):
    """Add encoded program ``tid`` to its word line. If the word line is then complete, send it to
    its die.
    """
    st.reg[0].hop = 0
    txn = st.txn[tid]
    dev = txn.dev
    dev_rec = st.dev[dev]
    dev_rec.gathered += txn.n
    st.count[dev, GATHERED_MOST] = max(st.count[dev, GATHERED_MOST], dev_rec.gathered)
    head = insert(st, tid)
    if is_whole(st, head):
        send_line(st, unit_of(st, tid), head, stages.ENCODED)
    elif st.key[(st.key.shape[0] >> 1) + st.reg[0].gather0 + dev] == NEVER:
        set_leaf(st, st.reg[0].gather0 + dev, st.reg[0].now + longest_wait(st, dev))
    if txn.kind == CACHED:
        dev_rec.joined += 1
        page = st.cpage[lru.find(st.cbucket, st.cpage, dev, txn.lpn) - 1]
        if page.landing > 0 and st.cfg[0].cache_through == 0:
            dev_rec.pressing = 1
        pad_for_cache(st, dev)
    elif trim_maps.is_trim_map(st, tid):
        dev_rec.trim_joining -= 1
        pad_for_trim_maps(st, dev)
    elif has_fua(st, tid):
        dev_rec.fua -= txn.n
        if dev_rec.fua == 0:
            pad_streams(st, dev, 0, st.cfg[0].collected, PADDED_AT_FLUSH)
