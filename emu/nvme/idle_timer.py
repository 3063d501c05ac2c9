"""Idle timer: detects that a drive has had no host command for a given time.

Owns the timer that expires when a drive has been idle for ``fold_idle``. Does not own the
background work that follows (ftl/pslc_folding.py).
Source: drives that start background work after an idle time, so that short gaps between commands
remain available to the host.

A drive has one timer. It is restarted if host commands came and completed before it expires.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.events import enter, give_txn, take_txn
from ondie.emu.nvme.data_cache import idle
from ondie.kernels.jit import cold


@cold
def begins(st, dev):
    """Record the start of an idle period if the drive is idle, and start the timer.

    Called when a command has completed. Does nothing else if the timer is already running.
    """
    d = st.dev[dev]
    if not idle(st, dev):
        return
    d.quiet_since = st.reg[0].now
    if d.waking != 0:
        return
    t = take_txn(st)
    if t < 0:
        return
    d.waking = 1
    st.txn[t].dev = dev
    wait(st, t)


@cold
def wait(st, t):
    """Start the timer for the rest of the idle time."""
    c = st.cfg[0]
    dev = st.txn[t].dev
    station = s.station(st, dev, s.REST)
    st.fifo[station].fixed = st.dev[dev].quiet_since + c.fold_idle - st.reg[0].now
    st.reg[0].hop = 0
    enter(st, station, t, 0, 0, s.RESTED)


@cold
def lasts(st, dev):
    """Return True if the drive has been idle for ``fold_idle`` and still is."""
    c = st.cfg[0]
    if c.fold_idle == 0 or st.reg[0].now - st.dev[dev].quiet_since < c.fold_idle:
        return False
    return idle(st, dev)


@cold
def over(st, t):
    """Handle the expiry of the timer. Return True if the drive was idle for the whole time."""
    dev = st.txn[t].dev
    if lasts(st, dev):
        st.dev[dev].waking = 0
        give_txn(st, t)
        return True
    if idle(st, dev):
        wait(st, t)
        return False
    st.dev[dev].waking = 0  # the end of the current command starts the timer again
    give_txn(st, t)
    return False
