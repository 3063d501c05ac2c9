"""The controller: cuts commands into flash operations.

Owns the cut of reads, writes and TRIM at page, super-page and mapping boundaries. Does not own the
stations in between (device.py) or where pages live (mapping.py).
Source: a host request is cut at page boundaries and completes when its last page does (as in
MQSim); neighbouring pages in one super-page go as one multi-plane operation.
"""

from __future__ import annotations

from ondie.emu.backend import mapping, nand, timing
from ondie.emu.events import LOG_TRIM, LOG_ZERO, enter, log, take_txn
from ondie.emu.stations import DRAM, READ_IN_DRAM, station
from ondie.emu.stats import ARRAY_READS, READ_PAGES, TRIMMED_PAGES, UNMAPPED_PAGES
from ondie.kernels.jit import njit


@njit
def child(st, t, lpn, n):
    """A transaction for ``n`` pages of the same row as ``t``; the row waits for one part more."""
    u = take_txn(st)
    if u < 0:
        return u
    x = st.txn[t]
    y = st.txn[u]
    y.row = x.row
    y.phase = x.phase
    y.dev = x.dev
    y.lpn = lpn
    y.n = n
    y.op = x.op
    st.row[x.row].pending += 1
    return u


@njit
def bytes_of(st, t, lpn, n):
    """Bytes of the command ``t`` that pages ``lpn .. lpn + n`` carry: its last page may be
    partial."""
    c = st.cfg[0]
    x = st.txn[t]
    done = (lpn - x.lpn) * c.page_bytes
    return min(n * c.page_bytes, x.size - done)


@njit
def cut_read(st, t, passes):
    """Send the pages of read command ``t`` to their dies: runs of consecutive physical pages inside
    one super-page go together, unmapped pages are zeros from the controller."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    lpn = x.lpn
    end = x.lpn + x.n
    while lpn < end:
        entry = int(st.l2p[dev, lpn])
        n = 1
        if entry == 0:
            while lpn + n < end and n < c.planes and st.l2p[dev, lpn + n] == 0:
                n += 1
        elif c.multi_plane != 0:
            limit = min(end - lpn, c.planes - (entry - 1) % c.planes)
            while n < limit and int(st.l2p[dev, lpn + n]) == entry + n:
                n += 1
        u = child(st, t, lpn, n)
        if u < 0:
            return
        y = st.txn[u]
        y.size = bytes_of(st, t, lpn, n)
        if entry == 0:
            st.count[dev, UNMAPPED_PAGES] += n
            log(st, LOG_ZERO, y.row, lpn, -1, -1, n, dev, -1)
            y.op = timing.READ
            enter(st, station(st, dev, DRAM), u, passes * y.size, -1, READ_IN_DRAM)
        else:
            y.op = timing.READ
            y.ppn = entry - 1
            y.bus = n * c.page_bytes
            die, b = mapping.block_of(st, y.ppn)
            y.die = dev * c.dies + die
            st.count[dev, READ_PAGES] += n
            st.count[dev, ARRAY_READS] += 1
            nand.push(st, y.die, u, nand.Q_READ)
        lpn += n


@njit
def cut_write(st, t, station, step):
    """Send the pages of write command ``t`` on, a super-page's worth at a time."""
    x = st.txn[t]
    lpn = x.lpn
    while lpn < x.lpn + x.n:
        n = min(x.lpn + x.n - lpn, st.cfg[0].planes)
        u = child(st, t, lpn, n)
        if u < 0:
            return
        y = st.txn[u]
        y.size = bytes_of(st, t, lpn, n)
        enter(st, station, u, y.size, -1, step)
        lpn += n


@njit
def cut_trim(st, t):
    """Unmap the pages of TRIM command ``t``."""
    x = st.txn[t]
    st.count[x.dev, TRIMMED_PAGES] += x.n
    for lpn in range(x.lpn, x.lpn + x.n):
        mapping.unmap(st, x.dev, lpn)
    log(st, LOG_TRIM, x.row, x.lpn, -1, -1, x.n, x.dev, -1)
