"""Host requests: the one record of block I/O, from the workload through the drive to statistics.

Owns the record. Does not own where requests come from (mqsim/, replay) or the commands that they
become (queues.py). Source: the terms of MQSim's host: arrival, enqueueing, completion.
"""

from __future__ import annotations

import numpy as np

READ, WRITE, TRIM, FLUSH = range(4)
REQUEST_NAMES = ("read", "write", "trim", "flush")

MAX_CHUNK = 1 << 18
"""Requests that a source hands over at a time."""

NOT_YET = -1
"""A time that has not come."""

REQUEST = np.dtype(
    [
        ("arrival", "i8"),  # ps; the host has it; NOT_YET in a closed loop until it is issued
        ("start", "i8"),  # ps; it enters its submission queue, later than arrival if that is full
        ("end", "i8"),  # ps; its completion has reached the host
        ("offset", "i8"),  # bytes from the start of the drive, whole sectors
        ("size", "i8"),  # bytes, at least one sector; FLUSH: 0
        ("op", "i4"),  # READ, WRITE, TRIM, FLUSH
        ("stream", "i4"),  # the flow that it belongs to, from 0
        ("tag", "i8"),  # its place in its flow, from 0
        ("status", "i8"),  # NVMe status of its completion: 0, or 0x281 (unrecovered read error)
    ],
    align=True,
)
