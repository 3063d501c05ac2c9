"""Shared sensing: reads of several slots of a page as one array operation.

Owns which reads of slots (subpage.py) form one command, and the count of slots that are sensed but
not requested. Does not own the issuers of reads (nvme/command_split.py, gc.py) or their completion
(completion.py).
Source: ONFI: a read loads a page into the register, of which columns are selected for output (05h
and E0h, 06h and E0h); a page is always sensed whole, however little is transferred.

The first transaction of a command holds the place in the queue and the array. The transactions
behind it (``mate``) are transferred from the register after it, one by one. ``array`` below 0 marks
them: each needs a column selection first.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import ARRAY_READS, BESIDE_PAGES
from ondie.emu.ftl.page_map import block_at
from ondie.emu.nand import channel as nand
from ondie.emu.nand.die import into_chip, planes_at
from ondie.kernels.jit import cold, inline

CHAINED = -1
"""``array`` of a read that is not the first of its command."""


@cold
def fits(st, t, u):
    """Return True if read ``u`` can share the array operation of read ``t``. It must be of the same
    page, or of the same page offset in another plane of the block if planes are read together."""
    c = st.cfg[0]
    x = st.txn[t]
    y = st.txn[u]
    if x.page != y.page or block_at(st, x.dev, x.ppn) != block_at(st, y.dev, y.ppn):
        return False
    return x.planes == y.planes or (c.multi_plane != 0 and c.lanes == 1)


@cold
def follow(st, t, u):
    """Append read ``u`` to read ``t`` and the reads that share its array operation."""
    st.txn[t].planes |= st.txn[u].planes
    st.txn[u].array = CHAINED
    last = t
    while st.txn[last].mate >= 0:
        last = st.txn[last].mate
    st.txn[last].mate = u


@cold
def send(st, g, t, q):
    """Add the command whose first read is ``t`` to queue ``q`` of die ``g``."""
    c = st.cfg[0]
    note(st, t)
    u = st.txn[t].mate
    while u >= 0:
        y = st.txn[u]
        y.queue = q
        if c.chip != 0:
            y.die = into_chip(st, u)
        u = y.mate
    nand.push(st, g, t, q)


@cold
def note(st, t):
    """Count an array read of slots. Its pages are sensed whole, and the reads disturb their
    block."""
    c = st.cfg[0]
    x = st.txn[t]
    planes = planes_at(st, t)
    asked = 0
    u = t
    while u >= 0:
        asked += st.txn[u].n
        u = st.txn[u].mate
    st.count[x.dev, ARRAY_READS] += 1
    st.count[x.dev, BESIDE_PAGES] += planes * c.slots - asked
    if c.errors != 0:
        st.block[block_at(st, x.dev, x.ppn)].reads += planes


@inline
def count(st, t):
    """Count the array read of ``t``, which is a separate command, of slots or of whole pages."""
    if st.cfg[0].slots > 1:
        note(st, t)
    else:
        st.count[st.txn[t].dev, ARRAY_READS] += 1
