"""Multi-plane commands: combination of separately queued operations.

Owns the choice of a die's queued operations that form one command. Does not own operations that
span planes from the start (ftl/page_map.py allocates those as a whole).
Source: ONFI multi-plane addressing: the same operation in different planes of one die at the same
page offset.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import OWN
from ondie.emu.engine.core.intrinsics import lowest_bit
from ondie.emu.nand.die import (
    Q_GC_READ,
    Q_GC_WRITE,
    Q_MAP_READ,
    Q_READ,
    Q_WRITE,
    planes_of,
    pop,
    rank_of,
)
from ondie.emu.nand.timing import COPYBACK, ERASE, PROGRAM
from ondie.kernels.jit import cold, inline, njit


@cold
def gather_all(st, g, t, q):
    """Add queued operations to the command of ``t``: from its queue ``q``, then from the other
    queues of the same kind. The power budget limits the number of planes."""
    gather(st, g, t, q)
    if q == Q_READ or q == Q_GC_READ or q == Q_MAP_READ:
        if q != Q_READ:
            gather(st, g, t, Q_READ)
        if q != Q_GC_READ:
            gather(st, g, t, Q_GC_READ)
    elif q == Q_WRITE:
        gather(st, g, t, Q_GC_WRITE)
    elif q == Q_GC_WRITE:
        gather(st, g, t, Q_WRITE)


@inline
def alike(st, t, u):
    """Return True if two host transactions have the same priority class."""
    return rank_of(st, t) == rank_of(st, u)


@njit
def gather(st, g, t, q):
    """Add to the command of ``t`` the operations of queue ``q`` that can run in other planes.

    An erase may overtake programs, which go to other blocks; a program does not overtake an erase,
    whose block it may need. Programs of different duration (for example the two passes of one page
    offset) are not combined. Reads of different duration (a retry) are: the longest decides.
    """
    x = st.txn[t]
    c = st.cfg[0]
    if x.page < 0 or x.op == COPYBACK or not st.die[g].waiting >> q & 1:
        return
    full = (1 << c.planes) - 1
    if c.chip != 0:
        full <<= lowest_bit(x.planes) // c.planes * c.planes
    room = c.planes
    if c.power > 0:
        d = st.die[g]
        room = c.power - st.dev[d.dev].power + d.power - planes_of(st, t)
    before = -1
    passed = 0  # planes with a skipped word line: word lines must be programmed in order
    u = st.queue[g, 2 * q]
    while u >= 0 and x.planes != full:
        y = st.txn[u]
        following = y.next
        if y.op == ERASE and x.op != ERASE:
            return
        if (
            y.op == x.op and y.page == x.page and y.planes & x.planes == 0
            and y.planes & ~full == 0 and (y.n <= room or c.slots > 1 and planes_of(st, u) <= room)
            and (x.op != PROGRAM or (y.array == x.array and y.planes & passed == 0))
            and (c.ranked == 0 or x.kind == OWN or y.kind == OWN or alike(st, t, u))
        ):  # fmt: skip
            if before < 0:
                pop(st, g, q)
            else:
                st.txn[before].next = following
                if following < 0:
                    st.queue[g, 2 * q + 1] = before
            y.next = -1
            y.queue = x.queue
            x.planes |= y.planes
            x.array = max(x.array, y.array)
            room -= planes_of(st, u)
            merge(st, t, u)
        else:
            before = u
            if c.word != 0:
                passed |= y.planes
        u = following


@njit
def merge(st, t, u):
    """Merge the chain of mates of ``u`` into that of ``t``, ordered by page offset: the pages of
    one offset in several planes are adjacent."""
    at = t
    while u >= 0:
        following = st.txn[u].mate
        page = st.txn[u].page
        behind = st.txn[at].mate
        while behind >= 0 and st.txn[behind].page <= page:
            at = behind
            behind = st.txn[at].mate
        st.txn[u].mate = behind
        st.txn[at].mate = u
        at = u
        u = following
