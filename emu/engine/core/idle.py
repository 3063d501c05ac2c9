"""Idle drives: conditions under which background work may start.

Owns two conditions: the drive is idle (no host command is outstanding), and the drive has been idle
for at least ``fold_idle`` ps. Does not own the timer for ``fold_idle`` (nvme/idle_timer.py) or the
background work (pslc_folding.py, padding.py).
Source: this project's model of drives that fold pSLC blocks and pad word lines only when no host
command is outstanding.
"""

from __future__ import annotations

from ondie.kernels.jit import cold, njit


@njit
def no_command(st, dev):
    """Return True if no host command is outstanding on drive ``dev``."""
    if st.dev[dev].outstanding > 0:
        return False
    for queue in range(st.pair.shape[0]):
        if st.pair[queue].dev == dev and st.pair[queue].outstanding > 0:
            return False
    return True


@cold
def long_enough(st, dev):
    """Return True if drive ``dev`` has been idle for at least ``fold_idle`` ps. Always returns
    False if ``fold_idle`` is 0.
    """
    cfg = st.cfg[0]
    if cfg.fold_idle == 0 or st.reg[0].now - st.dev[dev].quiet_since < cfg.fold_idle:
        return False
    return no_command(st, dev)
