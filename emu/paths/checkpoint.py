"""Checkpoints out of the reservoir: all planes of every super-page, to the host.

Owns the rows. Does not own what the host does with the bytes, nor a copy inside the drive.
Source: OptimStore (HPCA 2023): no ECC covers the reservoir and its errors stay, so what is to last
has to leave it; and a step whose gradients are lost with the host can only begin again from one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondie.emu.paths.base import CHECKPOINT, Rows
from ondie.emu.paths.on_die import OnDie


def plan(path: OnDie, first: int) -> Iterator[np.ndarray]:
    """Every super-page once, the devices in turn: array, channel, DRAM, link."""
    out = Rows(first)
    after = out.fence(CHECKPOINT)
    planes = path.stripes[0].planes
    size = planes * path.geometry.page_bytes
    yield from path.read_out(out, after, CHECKPOINT, planes, size)
    yield out.take()
    path.next_row = out.next
