"""Read path: from the mapping table entry of a page to a transaction in the queue of its die.

Owns the lookup of a read's physical pages, the result for unmapped pages, the retry of a read whose
page was locked by garbage collection, the grouping of reads of slots (word_lines.py) into commands,
and the count of slots that are sensed but not requested. Does not own the split of commands
(nvme/command_split.py), the other issuers of reads (gc.py, refresh.py), their completion
(completion.py) or retries after uncorrectable errors (read_retry.py).
Source: MQSim (the mapping is looked up when a read is sent to its die); ONFI (a read loads a page
into the register, from which columns are selected for output: 05h and E0h, 06h and E0h).

A page is always sensed completely, even if only some columns are transferred. The first transaction
of a command is queued and uses the array. The other transactions of the command are linked to it by
their field ``mate``, and their data leaves the register one after another. Their field ``array``
has the value CHAINED: they start no array operation, but each requires a column selection.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import (
    ARRAY_READS,
    BESIDE_PAGES,
    READ_PAGES,
    UNASKED_OUT_BYTES,
    UNMAPPED_PAGES,
)
from ondie.emu.engine.core.events import go
from ondie.emu.engine.core.payload_log import LOG_ZERO, log, log_sectors
from ondie.emu.engine.core.stages import READ_UNMAPPED
from ondie.emu.engine.core.transaction import bus_bytes
from ondie.emu.ftl import page_map
from ondie.emu.ftl.page_map import block_at
from ondie.emu.nand import event_order
from ondie.emu.nand.die import Q_READ, chip_record, planes_at
from ondie.emu.nand.die_scheduler import push
from ondie.kernels.jit import cold, inline

CHAINED = -1
"""Value of field ``array`` (duration of the array operation, ps) of a read that uses the array
operation of the first read of its command."""


@inline
def return_zeros(st, tid):
    """Complete read ``tid`` of unmapped pages: the controller returns zeros without accessing a
    die.
    """
    txn = st.txn[tid]
    st.count[txn.dev, UNMAPPED_PAGES] += txn.n
    log(st, LOG_ZERO, tid, txn.lpn, -1, -1, txn.n, txn.dev, -1)
    if st.cfg[0].partial != 0 and txn.n == 1:  # the data cache may have the others
        log_sectors(st, txn.sectors)
    go(st, tid, READ_UNMAPPED)


@inline
def locate(st, tid, entry):
    """Set the physical page of read ``tid`` from mapping table entry ``entry``. Return the index of
    the DIE record of the die, or of the plane if planes operate independently."""
    txn = st.txn[tid]
    txn.ppn = entry - 1
    txn.bus = bus_bytes(st, tid)
    if st.cfg[0].partial != 0:
        st.count[txn.dev, UNASKED_OUT_BYTES] += txn.n * st.cfg[0].page_bytes - txn.bus
    st.count[txn.dev, READ_PAGES] += txn.n
    die = page_map.set_place(st, txn.dev, tid)
    txn.array = st.page_ps[0, txn.page]
    page_map.count_pending_read(st, txn.dev, txn.ppn)
    return die


@inline
def fetch(st, tid, entry):
    """Send read ``tid`` to its die. ``entry``: mapping table entry of its first page (0 if
    unmapped).
    """
    if entry == 0:
        return_zeros(st, tid)
        return
    die = locate(st, tid, entry)
    st.count[st.txn[tid].dev, ARRAY_READS] += 1
    event_order.submit(st, die, tid, Q_READ)


@cold
def fetch_again(st, tid):
    """Send read ``tid`` to its die after garbage collection has moved the page that it reads."""
    entry = int(st.l2p[st.txn[tid].dev, st.txn[tid].lpn])
    if st.cfg[0].slots == 1:
        fetch(st, tid, entry)
    elif entry == 0:
        return_zeros(st, tid)
    else:
        locate(st, tid, entry)
        queue_command(st, st.txn[tid].die, tid, Q_READ)


# --- several slots of a page


@cold
def can_share(st, tid, part):
    """Return True if read ``part`` can share the array operation of read ``tid``. Both must read
    the same flash page. If the planes of a die are read together, the reads may also be in
    different planes of a super-block, at the same page offset.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    other_txn = st.txn[part]
    if txn.page != other_txn.page or block_at(st, txn.dev, txn.ppn) != block_at(
        st, other_txn.dev, other_txn.ppn
    ):
        return False
    return txn.planes == other_txn.planes or (cfg.multi_plane != 0 and cfg.lanes == 1)


@cold
def append_read(st, tid, part):
    """Append read ``part`` to the reads that share the array operation of read ``tid``."""
    st.txn[tid].planes |= st.txn[part].planes
    st.txn[part].array = CHAINED
    last = tid
    while st.txn[last].mate >= 0:
        last = st.txn[last].mate
    st.txn[last].mate = part


@cold
def queue_command(st, die, tid, queue):
    """Add the command whose first read is ``tid`` to queue ``queue`` of die ``die``."""
    cfg = st.cfg[0]
    count_slot_read(st, tid)
    other = st.txn[tid].mate
    while other >= 0:
        txn = st.txn[other]
        txn.queue = queue
        if cfg.chip != 0:
            txn.die = chip_record(st, other)
        other = txn.mate
    push(st, die, tid, queue)


@cold
def count_slot_read(st, tid):
    """Count the array read of the command that begins with read ``tid``, the page slots sensed but
    not requested, and the read of the block (read disturb).
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    planes = planes_at(st, tid)
    asked = 0
    other = tid
    while other >= 0:
        asked += st.txn[other].n
        other = st.txn[other].mate
    st.count[txn.dev, ARRAY_READS] += 1
    st.count[txn.dev, BESIDE_PAGES] += planes * cfg.slots - asked
    if cfg.errors != 0:
        st.block[block_at(st, txn.dev, txn.ppn)].reads += planes


@inline
def count_command(st, tid):
    """Count the array read of a command that consists only of read ``tid``."""
    if st.cfg[0].slots > 1:
        count_slot_read(st, tid)
    else:
        st.count[st.txn[tid].dev, ARRAY_READS] += 1
