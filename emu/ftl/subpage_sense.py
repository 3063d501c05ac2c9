"""Shared sensing: reads of several slots of a page as one array operation.

Owns the grouping of reads of slots (word_lines.py) into commands, and the count of slots that are
sensed but not requested. Does not own the issuers of reads (nvme/command_split.py, gc.py) or their
completion (completion.py).
Source: ONFI: a read loads a page into the register, of which columns are selected for output (05h
and E0h, 06h and E0h). A page is always sensed whole, even if only some columns are transferred.

The first transaction of a command is the one that is queued and uses the array. The transactions
linked to it by ``mate`` follow it out of the register one by one. Their ``array`` is negative,
because each needs a column selection first.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import ARRAY_READS, BESIDE_PAGES
from ondie.emu.ftl.page_map import block_at
from ondie.emu.nand.die import chip_record, planes_at
from ondie.emu.nand.die_scheduler import push
from ondie.kernels.jit import cold, inline

CHAINED = -1
"""Value of ``array`` that marks a read other than the first of its command."""


@cold
def can_share(st, tid, part):
    """Return True if read ``part`` can share the array operation of read ``tid``. Both must read
    the same page, or the same page offset in different planes of a block if planes are read
    together.
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
    """Append read ``part`` to read ``tid`` and the reads that share its array operation."""
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
    """Count the array read of a command that begins with read ``tid``, and the slots that are
    sensed but not requested. The read disturbs its block.
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
    """Count the array read of ``tid``, a command that consists of one read."""
    if st.cfg[0].slots > 1:
        count_slot_read(st, tid)
    else:
        st.count[st.txn[tid].dev, ARRAY_READS] += 1
