"""Sub-page reads: groups the mapping units of a read command into array operations.

Owns the split of a read on a drive whose flash pages hold several mapping units (slots). All slots
of a flash page that one command reads share one array operation. Does not own the split of other
commands (command_split.py) or the array operation (ftl/read_path.py).
Source: an array operation senses a whole flash page, so further slots of the page only cost channel
time.

The array operations of a command are kept in a list until the whole command has been split. The
list is linked by ``next`` of the first transaction of each array operation. Thus, slots of one
flash page are read together even if they are not adjacent in the command.
"""

from __future__ import annotations

from ondie.emu.ftl import page_map, read_path
from ondie.emu.ftl.read_path import locate, return_zeros
from ondie.emu.nand import timing
from ondie.emu.nand.die import Q_READ
from ondie.emu.nvme.page_transactions import make_part
from ondie.kernels.jit import cold


@cold
def split_slots(st, tid, lpn, end):
    """Split mapping units ``lpn`` to ``end - 1`` of read ``tid`` into transactions.

    Each mapping unit is one slot of a flash page. The function collects the array operations of the
    transactions for :func:`send`. Consecutive slots that are also consecutive on flash form one
    transaction. The controller returns zeros for unmapped slots.
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
    """Return the number of slots, starting with physical slot ``ppn``, that one array operation can
    read.

    The limit is the end of the flash page, or of the super-page if multi-plane reads are on.
    """
    cfg = st.cfg[0]
    whole = cfg.slots
    if cfg.multi_plane != 0 and cfg.lanes == 1:
        whole = cfg.together
    return whole - ppn % cfg.block_pages % whole


@cold
def join_or_start(st, part):
    """Add read transaction ``part`` to the array operation that reads its flash page. If no
    operation reads this page yet, start a new array operation."""
    reg = st.reg[0]
    tid = reg.cut_first - 1
    while tid >= 0:
        if read_path.can_share(st, tid, part):
            read_path.append_read(st, tid, part)
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
    """Send the array operations that :func:`join_or_start` has collected for a read command to
    their dies, after the whole command has been split."""
    reg = st.reg[0]
    tid = reg.cut_first - 1
    reg.cut_first = 0
    while tid >= 0:
        following = st.txn[tid].next
        read_path.queue_command(st, st.txn[tid].die, tid, Q_READ)
        tid = following
