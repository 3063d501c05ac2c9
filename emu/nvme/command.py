"""Records of commands and completions, and the admission of plan rows up to the queue depth.

A plan row is one operation of an update plan (engine/core/plan_rows.py). Owns the records of
commands and completions, and the list of plan rows that wait because the queue depth is reached.
Does not own the submission of commands (submission.py) or their execution inside the drive
(command_split.py).
Source: NVMe base specification (submission and completion queues).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ondie.kernels.jit import njit

READ, WRITE, TRIM, FLUSH = range(4)
COMMAND_NAMES = ("READ", "WRITE", "TRIM", "FLUSH")

COMMAND = np.dtype(
    [
        ("op", "i4"),  # READ, WRITE, TRIM, FLUSH
        ("queue", "i4"),  # queue pair
        ("offset", "i8"),  # first byte on the drive, whole logical blocks
        ("size", "i8"),  # bytes, whole logical blocks; FLUSH: 0
        ("stream", "i4"),
        ("fua", "i4"),  # 1: the write completes when it is on flash, with or without data cache
        ("priority", "i4"),
        ("atomic_unit", "i4"),
        ("fence_token", "i8"),
        ("data", "i8"),  # first byte in the host's buffer, -1 = timing only
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
        ("queue", "i4"),
        ("status", "i4"),  # status code type and code (status.Status); 0: success
    ],
    align=True,
)
TRANSFER = np.dtype(
    [
        ("offset", "i8"),  # first byte on the drive
        ("size", "i8"),  # bytes
        ("data", "i8"),  # address of the host's memory; 0 = no bytes move
        ("tag", "i8"),
    ],
    align=True,
)
"""Record of the data transfer of one request in the ring of a queue pair: range on the drive,
address in host memory, tag. Its layout is that of ondie_transfer in csrc/ondie.h."""
Row = tuple[int, int, int, int, int]
"""Values of one command for :func:`commands_of`: op, offset, size, data, fua (see COMMAND)."""


def commands_of(rows: Sequence[Row]) -> np.ndarray:
    """Return COMMAND[n] with the values of ``rows``. All other fields are 0."""
    out = np.zeros(len(rows), COMMAND)
    for at, (op, offset, size, data, fua) in enumerate(rows):
        each = out[at]
        each["op"], each["offset"], each["size"] = op, offset, size
        each["data"], each["fua"] = data, fua
    return out


def first_error(done: np.ndarray) -> int:
    """Return the status of the first completion in ``done`` (COMPLETION[n]) that ended with an
    error, or 0 if all commands succeeded."""
    wrong = done["status"][done["status"] != 0]
    return int(wrong[0]) if len(wrong) else 0


@njit
def wait_for_slot(st, dev, rid):
    """Append row ``rid`` of an update plan to the list of rows of device ``dev`` that wait because
    the queue is full."""
    dev_rec = st.dev[dev]
    st.row[rid].next = -1
    if dev_rec.sq_head < 0:
        dev_rec.sq_head = rid
    else:
        st.row[dev_rec.sq_tail].next = rid
    dev_rec.sq_tail = rid


@njit
def next_admissible(st, dev):
    """Return the index of the first plan row that waits for a free entry in the queue of device
    ``dev``, or -1 if no row waits or the queue is still full."""
    dev_rec = st.dev[dev]
    if dev_rec.sq_head < 0 or dev_rec.outstanding >= st.cfg[0].queue_depth:
        return -1
    return dev_rec.sq_head


@njit
def admit_next(st, dev):
    """Remove the first waiting plan row of device ``dev`` from its list, and count the row as an
    outstanding command."""
    dev_rec = st.dev[dev]
    dev_rec.sq_head = st.row[dev_rec.sq_head].next
    dev_rec.outstanding += 1
