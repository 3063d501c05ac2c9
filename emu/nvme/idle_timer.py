"""Quiet: for how long the host has wanted nothing of a drive.

Owns the timer that runs out when a drive has been at rest for a while. Does not own what it does
with its rest (folding.py). Source: drives that tidy up after a time of idleness, so that short gaps
between commands stay the host's.

A drive has one timer: where the host has come and gone again before it runs out, it is set anew.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.events import enter, give_txn, take_txn
from ondie.emu.nvme.data_cache import idle
from ondie.kernels.jit import cold


@cold
def begins(st, dev):
    """A command has ended: where nothing else is wanted, the drive rests from now on."""
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
    """The timer runs until the drive has rested long enough."""
    c = st.cfg[0]
    dev = st.txn[t].dev
    station = s.station(st, dev, s.REST)
    st.fifo[station].fixed = st.dev[dev].quiet_since + c.fold_idle - st.reg[0].now
    st.reg[0].hop = 0
    enter(st, station, t, 0, 0, s.RESTED)


@cold
def lasts(st, dev):
    """Has the drive rested long enough, and does so still?"""
    c = st.cfg[0]
    if c.fold_idle == 0 or st.reg[0].now - st.dev[dev].quiet_since < c.fold_idle:
        return False
    return idle(st, dev)


@cold
def over(st, t):
    """The timer has run out. True when the drive has rested all the while."""
    dev = st.txn[t].dev
    if lasts(st, dev):
        st.dev[dev].waking = 0
        give_txn(st, t)
        return True
    if idle(st, dev):
        wait(st, t)
        return False
    st.dev[dev].waking = 0  # the end of what it works on sets it again
    give_txn(st, t)
    return False
