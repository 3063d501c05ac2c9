"""Command record for host and internal commands, and the submission queue with its depth.

Owns the records of commands and completions, and the admission of commands up to the queue depth.
Does not own the execution of a command inside the device (command_split.py).
Source: NVMe base specification (submission and completion queues).
"""

from __future__ import annotations

import numpy as np

from ondie.kernels.jit import njit

READ, WRITE, TRIM, FLUSH = range(4)
COMMAND_NAMES = ("READ", "WRITE", "TRIM", "FLUSH")

COMMAND = np.dtype(
    [
        ("op", "i4"),  # READ, WRITE, TRIM, FLUSH
        ("lpn", "i8"),  # first logical page
        ("n", "i8"),  # logical pages
        ("stream", "i4"),
        ("priority", "i4"),
        ("fua", "i4"),  # 1: the write completes when it is on flash, with or without data cache
        ("fence_token", "i8"),
        ("atomic_unit", "i4"),
        ("payload_slot", "i8"),  # first page in the caller's buffer, -1 = timing only
        ("tag", "i8"),  # returned with the completion
        ("arrival", "i8"),  # ps
    ],
    align=True,
)
COMPLETION = np.dtype(
    [
        ("tag", "i8"),
        ("arrival", "i8"),
        ("start", "i8"),
        ("end", "i8"),
        ("status", "i8"),  # status code type and code: 0, or 0x281 (unrecovered read error)
    ],
    align=True,
)


@njit
def wait_for_slot(st, dev, rid):
    """Append plan row ``rid`` to the rows of device ``dev`` that wait for the queue depth."""
    dev_rec = st.dev[dev]
    st.row[rid].next = -1
    if dev_rec.sq_head < 0:
        dev_rec.sq_head = rid
    else:
        st.row[dev_rec.sq_tail].next = rid
    dev_rec.sq_tail = rid


@njit
def next_admissible(st, dev):
    """Return the first waiting plan row, or -1 if none waits or the queue depth is reached."""
    dev_rec = st.dev[dev]
    if dev_rec.sq_head < 0 or dev_rec.outstanding >= st.cfg[0].queue_depth:
        return -1
    return dev_rec.sq_head


@njit
def admit_next(st, dev):
    """Remove the first waiting plan row from the list and count it as an outstanding command."""
    dev_rec = st.dev[dev]
    dev_rec.sq_head = st.row[dev_rec.sq_head].next
    dev_rec.outstanding += 1
