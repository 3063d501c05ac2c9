"""Host requests: the record of a block I/O request, used by workloads, drive and statistics.

Owns the record. Does not own the sources of requests (replay/) or the record of commands
(command.py).
Source: MQSim's host model (terms: arrival, enqueueing, completion).
"""

from __future__ import annotations

import numpy as np

from ondie.emu.nvme import command

READ, WRITE, TRIM, FLUSH = command.READ, command.WRITE, command.TRIM, command.FLUSH
REQUEST_NAMES = ("read", "write", "trim", "flush")

MAX_CHUNK = 1 << 18
"""Maximum number of requests in one array that a source of requests returns."""

NOT_YET = -1
"""Value of a time field of a host request until the time is known."""

REQUEST = np.dtype(
    [
        ("arrival", "i8"),  # ps; arrival at the host; NOT_YET in a closed loop until it is issued
        ("start", "i8"),  # ps; entry into the submission queue; after arrival if that is full
        ("end", "i8"),  # ps; arrival of the completion at the host
        ("offset", "i8"),  # bytes from the start of the drive, whole sectors
        ("size", "i8"),  # bytes, at least one sector; FLUSH: 0
        ("op", "i4"),  # READ, WRITE, TRIM, FLUSH
        ("stream", "i4"),  # flow of the request, from 0
        ("tag", "i8"),  # index of the request in its flow, from 0
        ("status", "i8"),  # NVMe status of the completion: 0, or 0x281 (unrecovered read error)
    ],
    align=True,
)
