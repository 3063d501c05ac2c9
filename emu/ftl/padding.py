"""Padding of incomplete word lines.

Owns the arrival of programs in word lines, the conditions for padding, and the padding itself. Does
not own the word lines and their passes (word_line_buffer.py) or page allocation (page_map.py).
Source: controllers pad a word line for a FLUSH, or when its data have waited for long.

Padding completes a word line and, with two passes, also the next one:
 - when a FLUSH, or a write that completes on flash (FUA), waits for it and all pages that they wait
   for have reached a word line;
 - when the host waits and no event is pending in the drive or on the way to it: first word lines of
   host writes, then those of collection and of the mapping table;
 - when its oldest page has waited for ``ftl.gather_time``.
Word lines filled by collection are not padded while collection has pages to move to them: their
places are reserved.
"""

from __future__ import annotations

from ondie.emu.clock import NEVER
from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.counters import (
    GATHERED_MOST,
    PADDED_AT_FLUSH,
    PADDED_AT_REST,
    PADDED_IN_TIME,
)
from ondie.emu.engine.core.events import CACHED, ROW, go, rest, set_leaf, take_txn
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl import word_lines as lines
from ondie.emu.ftl.gc import ask
from ondie.emu.ftl.transfers import encode
from ondie.emu.ftl.word_line_buffer import find, insert, second, send, unit_of, whole
from ondie.emu.nand.timing import PROGRAM
from ondie.emu.nvme import data_cache as cache
from ondie.kernels.jit import cold, njit

# --- padding


@njit
def pad(st, dev, u, stream):
    """Pad the next page slots of a write frontier, up to the end of its page offset."""
    c = st.cfg[0]
    ppn, n = mapping.allocate(st, dev, u, stream, c.together)
    filled = st.reg[0].filled
    t = take_txn(st)
    if t < 0:
        return
    x = st.txn[t]
    x.dev = dev
    x.lpn = -1
    x.ppn = ppn
    x.n = n
    x.op = PROGRAM
    x.bare = lines.PADDING
    x.size = n * c.page_bytes
    x.bus = n * c.page_bytes
    mapping.place_of(st, dev, t)
    x.array = st.page_ps[1, x.page]
    if filled != 0:
        ask(st, dev, u)
    if not encode(st, t, s.ENCODED):
        go(st, t, s.ENCODED)


@njit
def pad_to(st, dev, u, stream, end):
    """Pad the open block of a write frontier up to page slot ``end``."""
    front = st.front[stream, u]
    block = front.block
    while front.block == block and front.next < end:
        pad(st, dev, u, stream)


@njit
def missing_to(st, head):
    """Return the page slot up to which a waiting word line (with two passes, also the next one)
    lacks pages, or -1 if none is missing or the places are reserved by collection."""
    c = st.cfg[0]
    x = st.txn[head]
    b = mapping.block_at(st, x.dev, x.ppn)
    u = b // c.all_blocks
    front = st.front[st.block[b].stream, u]
    if front.block != b - u * c.all_blocks or front.owed > 0:
        return -1
    stripe = (x.ppn - mapping.first_page(st, x.dev, b)) // c.stripe
    end = min((stripe + c.passes) * c.stripe, c.block_pages)
    return end if front.next < end else -1


@njit
def pad_line(st, head, rule):
    """Pad a waiting word line (with two passes, also the next one) and increment counter ``rule``.
    Return False when all places are taken or reserved."""
    end = missing_to(st, head)
    if end < 0:
        return False
    dev = st.txn[head].dev
    b = mapping.block_at(st, dev, st.txn[head].ppn)
    st.count[dev, rule] += 1
    pad_to(st, dev, b // st.cfg[0].all_blocks, st.block[b].stream, end)
    return True


@njit
def pad_streams(st, dev, first, behind, rule):
    """Pad all waiting word lines of streams ``first`` to ``behind - 1``. Return True if there was
    any."""
    c = st.cfg[0]
    any_padded = False
    if st.dev[dev].lines == 0:
        return any_padded
    for u in range(dev * c.units, (dev + 1) * c.units):
        t = st.pool[u].lines - 1
        while t >= 0:
            stream = st.block[mapping.block_at(st, dev, st.txn[t].ppn)].stream
            if first <= stream < behind and pad_line(st, t, rule):
                any_padded = True
            t = st.txn[t].next
    return any_padded


@cold
def shut_early(st, dev, u, b):
    """Pad the last word line of open block ``b``, in which a program has failed, before the block
    is closed. No word line follows it."""
    c = st.cfg[0]
    stream = st.block[b].stream
    front = st.front[stream, u]
    end = front.next + -front.next % c.stripe
    pad_to(st, dev, u, stream, end)
    if front.block != b - u * c.all_blocks:
        return
    st.block[b].last = end // c.stripe - 1
    if c.passes == 2:
        last = mapping.first_page(st, dev, b) + end - c.stripe
        for plane in range(c.stripe // c.line):
            second(st, u, find(st, u, lines.of(st, last + plane * c.slots)))


# --- reasons to pad


@cold
def urgent(st, t):
    """Count the pages of fetched write command ``t`` if it completes on flash (FUA)."""
    x = st.txn[t]
    if x.kind == ROW and st.row[x.row].fua != 0 and st.cfg[0].cache_writes == 0:
        st.dev[x.dev].fua += x.n


@cold
def stored(st, dev):
    """Request padding for a write in the data cache that completes on flash (FUA)."""
    st.dev[dev].pressing = 1
    hurry(st, dev)


@cold
def halfway(st, t):
    """Handle the end of the first of two passes over the word line of program ``t``: the second
    pass needs the next word line, which may have to be padded."""
    x = st.txn[t]
    if x.kind == CACHED:
        hurry(st, x.dev)
    elif x.kind == ROW and st.row[x.row].fua != 0 and st.dev[x.dev].fua == 0:
        pad_streams(st, x.dev, 0, st.cfg[0].collected, PADDED_AT_FLUSH)


@cold
def again(st, t):
    """Count the pages of failed FUA program ``t`` again: it will join another word line."""
    x = st.txn[t]
    if x.kind == ROW and st.row[x.row].fua != 0:
        st.dev[x.dev].fua += x.n


@cold
def hurry(st, dev):
    """Pad word lines for a FLUSH or FUA write that waits for the data cache, once all pages that
    can come now are in word lines."""
    d = st.dev[dev]
    cached = st.cache[dev]
    if cached.flush_first == 0 and d.pressing == 0 or cached.flying > d.joined:
        return
    more = cached.first > 0 and st.cpage[cached.first - 1].epoch <= cached.flushed
    if more and cached.flying < st.cfg[0].cache_flights:
        return
    d.pressing = 0
    pad_streams(st, dev, 0, st.cfg[0].collected, PADDED_AT_FLUSH)


@njit
def quiet(st, dev):
    """Return True if no event is pending in a drive or on the way to it, except events that it
    cannot know of (an arrival, host computation) and its padding timeout."""
    c = st.cfg[0]
    key = st.key
    half = key.shape[0] >> 1
    for b in range(dev * c.channels, (dev + 1) * c.channels):
        if key[half + b] != NEVER:
            return False
    first = half + st.reg[0].station0
    for station in range(s.HOST_STATIONS):
        computing = station == s.CPU or station == s.ACCELERATOR or station == s.RELAY
        if key[first + station] != NEVER and not computing:
            return False
    first += s.station(st, dev, 0)
    for station in range(s.ECC + c.channels):
        if key[first + station] != NEVER and station != s.TIMER:
            return False
    return True


@cold
def at_rest(st):
    """Pad the word lines that a command waits for in each drive without pending events. Return True
    if an event was added or changed."""
    c = st.cfg[0]
    reg = st.reg[0]
    if st.dev.shape[0] == 1 and st.tree[1] < reg.station0 and st.key[1] < NEVER:
        return False  # the next event is a channel's
    found = False
    for dev in range(st.dev.shape[0]):
        leaf = reg.gather0 + dev
        waits = st.dev[dev].lines > 0
        if not waits and st.key[(st.key.shape[0] >> 1) + leaf] == NEVER or not quiet(st, dev):
            continue
        if not waits:
            rest(st, leaf)
            found = True
        elif awaited(st, dev):
            if pad_streams(st, dev, 0, c.collected, PADDED_AT_REST):
                found = True
            elif pad_streams(st, dev, c.collected, st.front.shape[0], PADDED_AT_REST):
                found = True
    return found


@njit
def awaited(st, dev):
    """Return True if the host waits for a command, or a processor in the drive for pages in
    incomplete word lines."""
    c = st.cfg[0]
    if not cache.idle(st, dev):
        return True
    for u in range(dev * c.units, (dev + 1) * c.units):
        head = st.pool[u].lines - 1
        while head >= 0:
            t = head
            while t >= 0:
                if st.txn[t].kind == ROW:
                    return True
                t = st.txn[t].mate
            head = st.txn[head].next
    return False


@cold
def overdue(st, dev):
    """Pad word lines whose first page has waited for ``gather_time``, and set the timer for the
    next ones."""
    c = st.cfg[0]
    now = st.reg[0].now
    oldest = NEVER
    lacking = NEVER  # oldest time of the word lines that could be padded
    padded_any = False
    leaf = st.reg[0].gather0 + dev
    rest(st, leaf)
    for u in range(dev * c.units, (dev + 1) * c.units):
        t = st.pool[u].lines - 1
        while t >= 0:
            x = st.txn[t]
            if x.time + c.gather <= now:
                if pad_line(st, t, PADDED_IN_TIME):
                    padded_any = True
                else:
                    x.time = now  # its missing pages are on the way or reserved
            if x.time + c.gather > now:
                oldest = min(oldest, x.time)
                if missing_to(st, t) >= 0:
                    lacking = min(lacking, x.time)
            t = x.next
    if not padded_any and quiet(st, dev):
        oldest = lacking  # no pages will arrive for the other word lines
    if oldest < NEVER:
        set_leaf(st, leaf, oldest + c.gather)


# --- arrivals


@cold
def join(st, t):
    """Add encoded program ``t`` to its word line. The last program of a word line sends the line
    to its die."""
    st.reg[0].hop = 0
    x = st.txn[t]
    dev = x.dev
    d = st.dev[dev]
    d.gathered += x.n
    st.count[dev, GATHERED_MOST] = max(st.count[dev, GATHERED_MOST], d.gathered)
    head = insert(st, t)
    if whole(st, head):
        send(st, unit_of(st, t), head, s.ENCODED)
    elif st.key[(st.key.shape[0] >> 1) + st.reg[0].gather0 + dev] == NEVER:
        set_leaf(st, st.reg[0].gather0 + dev, st.reg[0].now + st.cfg[0].gather)
    if x.kind == CACHED:
        d.joined += 1
        page = st.cpage[cache.find(st, dev, x.lpn) - 1]
        if page.landing > 0 and st.cfg[0].cache_through == 0:
            d.pressing = 1
        hurry(st, dev)
    elif x.kind == ROW and st.row[x.row].fua != 0:
        d.fua -= x.n
        if d.fua == 0:
            pad_streams(st, dev, 0, st.cfg[0].collected, PADDED_AT_FLUSH)
