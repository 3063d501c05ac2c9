"""Sub-page reads: groups the mapping units of a read command into array operations.

Owns the split of a read where a flash page holds several mapping units (slots): one array operation
for all slots of a page that the command reads. Does not own the command (command_split.py) or the
operation (ftl/subpage_sense.py).
Source: a page is sensed as a whole, so that further slots of the page only cost their bytes on the
channel.

The reads of a command are kept in a list linked through their first transaction (``next``) until
the whole command has been split. Slots of one page that are apart in the command are thus read
together.
"""

from __future__ import annotations

from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl import subpage_sense as sharing
from ondie.emu.nand import channel as nand
from ondie.emu.nand import timing
from ondie.emu.nvme.page_transactions import locate, part, zeros
from ondie.kernels.jit import cold


@cold
def sense(st, t, lpn, end):
    """Split slots ``lpn .. end`` of read ``t`` into transactions; ``send`` issues them.

    Adjacent slots that are adjacent on flash form one transaction. Unmapped slots are returned as
    zeros by the controller.
    """
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    while lpn < end:
        entry = int(st.l2p[dev, lpn])
        waits = c.locks != 0 and mapping.locked(st, dev, lpn)
        n = 1
        if entry == 0:
            while lpn + n < end and n < c.planes * c.slots and st.l2p[dev, lpn + n] == 0:
                n += 1
        elif not waits and c.partial == 0:
            limit = min(end - lpn, reach(st, entry - 1))
            while n < limit and int(st.l2p[dev, lpn + n]) == entry + n:
                n += 1
        u = part(st, t, lpn, n, timing.READ)
        if u < 0:
            return
        if waits:
            mapping.park(st, u)
        elif entry == 0:
            zeros(st, u)
        else:
            locate(st, u, entry)
            keep(st, u)
        lpn += n


@cold
def reach(st, ppn):
    """Return the number of slots from ``ppn`` on that may be read together.

    The limit is the end of the page, or of the super-page if planes are read together.
    """
    c = st.cfg[0]
    whole = c.slots
    if c.multi_plane != 0 and c.lanes == 1:
        whole = c.together
    return whole - ppn % c.block_pages % whole


@cold
def keep(st, u):
    """Add read ``u`` to the array operation of its page, or start a new one."""
    reg = st.reg[0]
    t = reg.cut_first - 1
    while t >= 0:
        if sharing.fits(st, t, u):
            sharing.follow(st, t, u)
            return
        t = st.txn[t].next
    st.txn[u].next = -1
    if reg.cut_first == 0:
        reg.cut_first = u + 1
    else:
        st.txn[reg.cut_last - 1].next = u
    reg.cut_last = u + 1


@cold
def send(st):
    """Send the array operations of the read to their dies after the whole read has been split."""
    reg = st.reg[0]
    t = reg.cut_first - 1
    reg.cut_first = 0
    while t >= 0:
        following = st.txn[t].next
        sharing.send(st, st.txn[t].die, t, nand.Q_READ)
        t = following


@cold
def again(st, u):
    """Read slot ``u`` after the read has waited for the slot to be moved."""
    entry = int(st.l2p[st.txn[u].dev, st.txn[u].lpn])
    if entry == 0:
        zeros(st, u)
        return
    locate(st, u, entry)
    sharing.send(st, st.txn[u].die, u, nand.Q_READ)
