"""Reads of slots: which array operations a read command of mapping units takes.

Owns the cut of a read where pages of flash have several mapping units: one operation for all that
it asks for of a page. Does not own the command (controller.py) or the operation (sharing.py).
Source: a page is sensed whole, so that what else is asked of it costs its bytes on the channel.

Reads of a command are kept in a list by their first transaction (``next``) until the command has
been cut to its end, so that what of a page lies apart in the command still goes together.
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
    """Cut slots ``lpn .. end`` of read ``t``: neighbours that are neighbours on flash are one
    transaction, unmapped ones are zeros from the controller. They go by ``send``."""
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
    """Slots from ``ppn`` on that may be read together: to the end of its page, or of its super-page
    where planes are read together."""
    c = st.cfg[0]
    whole = c.slots
    if c.multi_plane != 0 and c.lanes == 1:
        whole = c.together
    return whole - ppn % c.block_pages % whole


@cold
def keep(st, u):
    """Read ``u`` joins the command of its page, or begins one."""
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
    """The read has been cut to its end: its commands go to their dies."""
    reg = st.reg[0]
    t = reg.cut_first - 1
    reg.cut_first = 0
    while t >= 0:
        following = st.txn[t].next
        sharing.send(st, st.txn[t].die, t, nand.Q_READ)
        t = following


@cold
def again(st, u):
    """The same for one slot, for which the read had to wait."""
    entry = int(st.l2p[st.txn[u].dev, st.txn[u].lpn])
    if entry == 0:
        zeros(st, u)
        return
    locate(st, u, entry)
    sharing.send(st, st.txn[u].die, u, nand.Q_READ)
