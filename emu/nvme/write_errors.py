"""Commands that a served drive cannot execute because it is full or read-only or has a write fault.

Owns the decision that garbage collection cannot free space for waiting writes, and the status with
which writes, trims and flushes then end. Does not own the meaning of a status (status.py), media
errors (ftl/read_retry.py), the count of spare blocks (ftl/write_frontier.py) or the end of commands
after a defect of the engine (engine/run/command_system.py).
Source: NVMe base specification: Capacity Exceeded, Namespace is Write Protected, Write Fault.

Only a drive with ``st.dev.ends`` ends commands in this way. Replays and plans raise an error
instead: ``raise_full`` in engine/run/errors.py.

Writes of requests that wait for space leave their queue and complete. They then hold no
transactions or slots in a queue pair. Pages that the data cache sends to flash may hold
acknowledged data. These pages stay in the cache and in the queue, and are written when a TRIM has
freed space.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import PADDED_AT_FLUSH
from ondie.emu.engine.core.events import REQUEST, go
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.stages import PART_DONE
from ondie.emu.engine.core.transaction import has_fua
from ondie.emu.ftl import padding, translation_pages
from ondie.emu.ftl.gc import maybe_start_gc
from ondie.emu.nand import timing
from ondie.emu.nvme.status import Status
from ondie.kernels.jit import cold, njit

SUCCESS = int(Status.SUCCESS)
CAPACITY_EXCEEDED = int(Status.CAPACITY_EXCEEDED)
WRITE_PROTECTED = int(Status.NAMESPACE_WRITE_PROTECTED)
WRITE_FAULT = int(Status.WRITE_FAULT)
UNPLACED = -1
"""Value of the argument ``status`` of :func:`end_requests` for writes for which neither the cache
nor flash has space; :func:`end_write` then determines their status."""


@njit
def set_status(st, tid, status):
    """Set the status of the host request to which transaction ``tid`` belongs, unless it is already
    set."""
    req = st.req[st.txn[tid].row]
    if req.status == 0:
        req.status = status


@njit
def status_without_space(st, dev):
    """Return the NVMe status of a write for which drive ``dev`` has no space."""
    return WRITE_PROTECTED if st.dev[dev].protected != 0 else CAPACITY_EXCEEDED


# --- refused before anything is stored


@cold
def refuse(st, tid):
    """If command ``tid`` of a read-only drive is a write or TRIM request, reject it and return
    True. Its data then does not cross the link. Otherwise return False."""
    txn = st.txn[tid]
    writes = txn.op == timing.PROGRAM
    if txn.kind != REQUEST or not (writes or txn.role == Role.TRIMMING):
        return False
    set_status(st, tid, WRITE_PROTECTED)
    if writes:
        st.dev[txn.dev].refused_pages += txn.n
        st.dev[txn.dev].refused_bytes += txn.size
    return True


@cold
def refuse_cached(st, tid):
    """Reject page ``tid`` of a write to the data cache of a full drive. Return False, without
    effect, if the drive raises an error instead (``st.dev.ends`` is 0) or the write does not belong
    to a request."""
    txn = st.txn[tid]
    if st.dev[txn.dev].ends == 0 or txn.kind != REQUEST:
        return False
    set_status(st, tid, status_without_space(st, txn.dev))
    st.dev[txn.dev].refused_pages += txn.n
    go(st, tid, PART_DONE)
    return True


@cold
def fail_flush(st, tid):
    """Return True if FLUSH ``tid`` of a full drive must end immediately, because the data cache
    holds pages for which flash has no space. In this case, also set the status of the FLUSH to the
    result of :func:`status_of_flush`."""
    txn = st.txn[tid]
    if st.dev[txn.dev].ends == 0 or txn.kind != REQUEST or st.cache[txn.dev].contents == 0:
        return False
    set_status(st, tid, status_of_flush(st))
    return True


@njit
def status_of_flush(st):
    """Return the status of a FLUSH while the data cache holds pages for which flash has no space:
    success for a write-through cache, because flash holds all acknowledged data; otherwise a write
    fault."""
    return SUCCESS if st.cfg[0].cache_through != 0 else WRITE_FAULT


@cold
def fail_unwritten_read(st, tid):
    """Fail read ``tid`` of an unwritten page, for which the full drive has no flash page: set the
    status Capacity Exceeded and return True. Return False, without effect, if the drive raises an
    error instead (``st.dev.ends`` is 0) or the read does not belong to a request."""
    txn = st.txn[tid]
    if st.dev[txn.dev].ends == 0 or txn.kind != REQUEST:
        return False
    set_status(st, tid, CAPACITY_EXCEEDED)
    return True


# --- writes that wait for space


@njit
def end_waiting(st, dev, certain):
    """End the writes of drive ``dev`` that wait for space if garbage collection cannot free any.
    Return True if the event loop may have work at the current time.

    ``certain``: 1 if no event is pending. With 0, no write is ended while a program or a collection
    is in progress, because such an operation may free space.
    """
    cfg = st.cfg[0]
    dev_rec = st.dev[dev]
    dev_rec.doubt = 0
    first = dev * cfg.units
    behind = first + cfg.units
    ended = False
    if certain != 0 and dev_rec.trim_waiters > 0 and dev_rec.trim_flights == 0:
        waiters = end_requests(st, int(dev_rec.trim_waiters) - 1, WRITE_FAULT)[0]
        dev_rec.trim_waiters = waiters + 1  # no page is free for a trim map
        ended = True
    full = dev_rec.full != 0
    if (cfg.static == 0 and dev_rec.stall_head >= 0) or st.maps[dev].stall_first > 0:
        if full or cannot_gain(st, dev, first, behind, certain):
            note_full(st, dev)
            ended = end_list(st, dev_rec)
    if cfg.static != 0:
        for unit in range(first, behind):
            if st.pool[unit].stall_head >= 0 and (
                full or cannot_gain(st, dev, unit, unit + 1, certain)
            ):
                note_full(st, dev)
                ended = end_list(st, st.pool[unit]) or ended
    if dev_rec.full == 0:
        return ended or st.reg[0].retries > 0 or has_victims(st, first, behind)
    if cfg.cache != 0:
        ended = end_cache_waits(st, dev) or ended
    if cfg.map_entries != 0:
        translation_pages.start_write_backs(st, dev)
    return ended or st.reg[0].retries > 0 or st.reg[0].go_head >= 0


@njit
def note_full(st, dev):
    """Mark drive ``dev`` as full. The drive also becomes read-only if three conditions hold: it had
    enough spare blocks at the start, it has fewer spare blocks now because blocks have failed, and
    garbage collection is also checked when writes wait (ftl.gc_checks = "stalled")."""
    dev_rec = st.dev[dev]
    dev_rec.full = 1
    failed = dev_rec.spare < dev_rec.spare_at_start
    if failed and dev_rec.spare_at_start >= 0 and st.cfg[0].gc_stalled != 0:
        dev_rec.protected = 1


@njit
def has_victims(st, first, behind):
    """Return True if garbage collection is in progress in one of the block units ``first`` to
    ``behind - 1``. A block unit consists of the blocks of a die or plane."""
    for unit in range(first, behind):
        if st.pool[unit].victims > 0:
            return True
    return False


@njit
def cannot_gain(st, dev, first, behind, certain):
    """Return True if neither a collection nor a program in block units ``first`` to ``behind - 1``
    can free space. Return False if a collection or, with ``certain`` = 0, a program is in progress
    there. Otherwise, first start the collections that these units need."""
    cfg = st.cfg[0]
    if certain == 0:
        for block in range(first * cfg.all_blocks, behind * cfg.all_blocks):
            if st.block[block].flying > 0:
                return False
    if has_victims(st, first, behind):
        return False
    for unit in range(first, behind):
        maybe_start_gc(st, dev, unit)
    return st.reg[0].retries == 0 and not has_victims(st, first, behind)


@njit
def end_list(st, waiting):
    """End the writes of requests in a list of writes that wait for a free block. ``waiting``:
    record of the block unit or drive that has the list. Return True if any write ended."""
    before = waiting.stall_head
    waiting.stall_head, waiting.stall_tail = end_requests(st, int(before), UNPLACED)
    return before != waiting.stall_head or st.reg[0].go_head >= 0


@njit
def end_cache_waits(st, dev):
    """End the commands waiting for the data cache of full drive ``dev``: writes without a cache
    slot, writes that complete only when their data is on flash (FUA, write-through), and FLUSHes.
    Return True if any command ended.

    The pages of FUA and write-through writes stay in the cache and are written to flash when there
    is space.
    """
    cache = st.cache[dev]
    status = status_without_space(st, dev)
    head, tail = end_requests(st, int(cache.wait_first) - 1, UNPLACED)
    cache.wait_first = head + 1
    cache.wait_last = tail + 1
    for place in range(dev * st.cfg[0].cache_pages, dev * st.cfg[0].cache_pages + cache.used):
        page = st.cpage[place]
        page.waiting = end_requests(st, int(page.waiting) - 1, status)[0] + 1
        page.landing = end_requests(st, int(page.landing) - 1, status)[0] + 1
    cache.flush_first = end_requests(st, int(cache.flush_first) - 1, status_of_flush(st))[0] + 1
    return st.reg[0].go_head >= 0


@njit
def end_requests(st, head, status):
    """End the transactions of host requests in the list of transactions that begins with ``head``
    (-1 if the list is empty), and remove them from the list. Their status is ``status``; if
    ``status`` is UNPLACED, :func:`end_write` sets their status. Return (first, last) transaction of
    the remaining list, or (-1, -1) if no transaction remains. The order of the remaining
    transactions does not change."""
    first = -1
    last = -1
    tid = head
    while tid >= 0:
        following = int(st.txn[tid].next)
        if st.txn[tid].kind != REQUEST:
            if first < 0:
                first = tid
            else:
                st.txn[last].next = tid
            last = tid
            st.txn[tid].next = -1
        elif status == UNPLACED:
            end_write(st, tid)
        else:
            set_status(st, tid, status)
            go(st, tid, PART_DONE)
        tid = following
    return first, last


@njit
def end_write(st, tid):
    """End write ``tid``, for which neither the cache nor flash has space. Its status is a write
    fault if one of its programs failed, and otherwise that of :func:`status_without_space`."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    status = status_without_space(st, dev)
    if cfg.program_failures > 0.0 and st.command[tid].failed != 0:
        status = WRITE_FAULT
        st.dev[dev].faults += int(st.req[txn.row].status == 0)
    set_status(st, tid, status)
    st.dev[dev].refused_pages += txn.n
    if cfg.line > 1 and cfg.cache_writes == 0 and has_fua(st, tid):
        st.dev[dev].fua -= txn.n
        if st.dev[dev].fua == 0:
            padding.pad_streams(st, dev, 0, cfg.collected, PADDED_AT_FLUSH)
    go(st, tid, PART_DONE)
