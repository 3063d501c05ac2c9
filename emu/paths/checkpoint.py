"""Checkpoints out of the reservoir: all planes of every super-page, to the host.

Owns the rows. Does not own what the host does with the bytes, nor a copy inside the drive.
Source: OptimStore (HPCA 2023): no ECC covers the reservoir and its errors stay, so what is to last
has to leave it; and a step whose gradients are lost with the host can only begin again from one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondie.emu import rows
from ondie.emu.backend import timing
from ondie.emu.paths.base import CHECKPOINT, Rows
from ondie.emu.paths.on_die import OnDie


def plan(path: OnDie, first: int) -> Iterator[np.ndarray]:
    """Every super-page once, the devices in turn: array, channel, DRAM, link."""
    out = Rows(first)
    after = out.fence(CHECKPOINT)
    piece = rows.MAX_CHUNK // len(path.stripes)
    for a in range(0, max(s.count for s in path.stripes), piece):
        for s in path.stripes:
            n = min(piece, s.count - a)
            if n > 0:
                out.add(
                    n,
                    device=s.shard.device,
                    resource=rows.DIE,
                    kind=timing.READ,
                    phase=CHECKPOINT,
                    lpn=np.arange(a, a + n),
                    bytes_out=s.planes * path.geometry.page_bytes,
                    after0=after,
                )
        if out.full():
            yield out.take()
    yield out.take()
    path.next_row = out.next
