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

from ondie.emu.ftl import page_map, subpage_sense
from ondie.emu.ftl.read_path import locate, return_zeros
from ondie.emu.nand import timing
from ondie.emu.nand.die import Q_READ
from ondie.emu.nvme.page_transactions import make_part
from ondie.kernels.jit import cold


@cold
def split_slots(st, tid, lpn, end):
    """Split slots ``lpn .. end`` of read ``tid`` into transactions; ``send`` issues them.

    Adjacent slots that are adjacent on flash form one transaction. Unmapped slots are returned as
    zeros by the controller.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    while lpn < end:
        entry = int(st.l2p[dev, lpn])
        waits = cfg.locks != 0 and page_map.is_locked(st, dev, lpn)
        count = 1
        if entry == 0:
            while (
                lpn + count < end
                and count < cfg.planes * cfg.slots
                and st.l2p[dev, lpn + count] == 0
            ):
                count += 1
        elif not waits and cfg.partial == 0:
            limit = min(end - lpn, readable_together(st, entry - 1))
            while count < limit and int(st.l2p[dev, lpn + count]) == entry + count:
                count += 1
        other = make_part(st, tid, lpn, count, timing.READ)
        if other < 0:
            return
        if waits:
            page_map.park(st, other)
        elif entry == 0:
            return_zeros(st, other)
        else:
            locate(st, other, entry)
            join_or_start(st, other)
        lpn += count


@cold
def readable_together(st, ppn):
    """Return the number of slots from ``ppn`` on that may be read together.

    The limit is the end of the page, or of the super-page if planes are read together.
    """
    cfg = st.cfg[0]
    whole = cfg.slots
    if cfg.multi_plane != 0 and cfg.lanes == 1:
        whole = cfg.together
    return whole - ppn % cfg.block_pages % whole


@cold
def join_or_start(st, part):
    """Add read ``part`` to the array operation of its page, or start a new one."""
    reg = st.reg[0]
    tid = reg.cut_first - 1
    while tid >= 0:
        if subpage_sense.can_share(st, tid, part):
            subpage_sense.append_read(st, tid, part)
            return
        tid = st.txn[tid].next
    st.txn[part].next = -1
    if reg.cut_first == 0:
        reg.cut_first = part + 1
    else:
        st.txn[reg.cut_last - 1].next = part
    reg.cut_last = part + 1


@cold
def send(st):
    """Send the array operations of the read to their dies after the whole read has been split."""
    reg = st.reg[0]
    tid = reg.cut_first - 1
    reg.cut_first = 0
    while tid >= 0:
        following = st.txn[tid].next
        subpage_sense.queue_command(st, st.txn[tid].die, tid, Q_READ)
        tid = following
