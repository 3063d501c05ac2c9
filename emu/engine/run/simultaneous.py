"""Choice among simultaneous events, as in MQSim: in the order of their registration.

Owns the choice. Does not own the registrations (events.py, nand/event_order.py).
Source: MQSim's event list, which keeps the events of one time in the order of registration.
"""

from __future__ import annotations

from ondie.emu.clock import NEVER
from ondie.emu.nand import event_order
from ondie.kernels.jit import cold


@cold
def first_leaf(st, time):
    """Return the resource whose event at time ``time`` (ps), the next one, was registered first."""
    reg = st.reg[0]
    half = st.key.shape[0] >> 1
    best = st.tree[1]
    first = NEVER
    for leaf in range(reg.gather0):
        if st.key[half + leaf] == time:
            if leaf < reg.station0:
                sequence = event_order.first_due(st, leaf)[0]
            else:
                sequence = st.sequence[leaf]
            if sequence < first:
                first = sequence
                best = leaf
    return best
