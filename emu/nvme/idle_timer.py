"""Idle timer: detects that a drive has had no host command for a given time.

Owns the timer that expires when a drive has been idle for ``fold_idle``. Does not own the
background work that follows (ftl/pslc_folding.py).
Source: drives that start background work after an idle time, to keep short gaps between commands
available to the host.

A drive has one timer. If host commands arrive and complete before the timer expires, the timer is
restarted at its expiry for the remaining idle time.
"""

from __future__ import annotations

from ondie.emu.engine.core import idle, stages
from ondie.emu.engine.core.events import enter, give_txn, take_txn
from ondie.kernels.jit import cold


@cold
def start_idle(st, dev):
    """If drive ``dev`` is idle, record the start of an idle period and start the timer.

    Called when a command has completed. If the timer is already running, only the start of the idle
    period is recorded.
    """
    dev_rec = st.dev[dev]
    if not idle.no_command(st, dev):
        return
    dev_rec.quiet_since = st.reg[0].now
    if dev_rec.waking != 0:
        return
    tid = take_txn(st)
    if tid < 0:
        return
    dev_rec.waking = 1
    st.txn[tid].dev = dev
    start_timer(st, tid)


@cold
def start_timer(st, tid):
    """Start the idle timer, transaction ``tid``, for the part of the idle time ``fold_idle`` that
    has not passed since the last command."""
    cfg = st.cfg[0]
    dev = st.txn[tid].dev
    station = stages.station(st, dev, stages.REST)
    st.fifo[station].fixed = st.dev[dev].quiet_since + cfg.fold_idle - st.reg[0].now
    st.reg[0].hop = 0
    enter(st, station, tid, 0, 0, stages.RESTED)


@cold
def on_expired(st, tid):
    """Handle the expiry of the timer. Return True if the drive was idle for the full time
    ``cfg.fold_idle`` (ps), otherwise False.

    If a command completed before the expiry and the drive is idle again, restart the timer.
    """
    dev = st.txn[tid].dev
    if idle.long_enough(st, dev):
        st.dev[dev].waking = 0
        give_txn(st, tid)
        return True
    if idle.no_command(st, dev):
        start_timer(st, tid)
        return False
    st.dev[dev].waking = 0  # the end of the current command starts the timer again
    give_txn(st, tid)
    return False
