"""Read path: from the mapping table entry of a page to a transaction in the queue of its die.

Owns the lookup of a read's physical pages, the answer for unmapped pages, and the retry of a read
whose page was locked by a collection. Does not own the split of commands (nvme/command_split.py),
the sense of several mapping units of a page (subpage_sense.py) or retries after uncorrectable
errors (read_retry.py).
Source: a read looks up the mapping when it is sent to its die, as in MQSim.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import (
    ARRAY_READS,
    READ_PAGES,
    UNASKED_OUT_BYTES,
    UNMAPPED_PAGES,
)
from ondie.emu.engine.core.events import go
from ondie.emu.engine.core.payload_log import LOG_ZERO, log, log_sectors
from ondie.emu.engine.core.stages import READ_UNMAPPED
from ondie.emu.engine.core.transaction import bus_bytes
from ondie.emu.ftl import page_map, subpage_sense
from ondie.emu.nand.die import Q_READ
from ondie.emu.nand.die_scheduler import push
from ondie.kernels.jit import cold, inline


@inline
def return_zeros(st, tid):
    """Complete read ``tid`` of unmapped pages with zeros from the controller, without a die."""
    txn = st.txn[tid]
    st.count[txn.dev, UNMAPPED_PAGES] += txn.n
    log(st, LOG_ZERO, tid, txn.lpn, -1, -1, txn.n, txn.dev, -1)
    if st.cfg[0].partial != 0 and txn.n == 1:  # the data cache may have the others
        log_sectors(st, txn.sectors)
    go(st, tid, READ_UNMAPPED)


@inline
def locate(st, tid, entry):
    """Set the physical page of read ``tid`` from mapping table entry ``entry``. Return the index of
    the DIE record.
    """
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
    """Send read ``tid`` to its die; ``entry`` is the mapping table entry of its first page."""
    if entry == 0:
        return_zeros(st, tid)
        return
    die = locate(st, tid, entry)
    st.count[st.txn[tid].dev, ARRAY_READS] += 1
    push(st, die, tid, Q_READ)


@cold
def fetch_again(st, tid):
    """Send read ``tid`` to its die after garbage collection has moved the page of the read."""
    entry = int(st.l2p[st.txn[tid].dev, st.txn[tid].lpn])
    if st.cfg[0].slots == 1:
        fetch(st, tid, entry)
    elif entry == 0:
        return_zeros(st, tid)
    else:
        locate(st, tid, entry)
        subpage_sense.queue_command(st, st.txn[tid].die, tid, Q_READ)
