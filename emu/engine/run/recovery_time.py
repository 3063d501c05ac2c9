"""Simulated time of a recovery: the reads and programs of its scan, which runs on all dies in
parallel.

Owns the list of flash operations that a recovery executes. Does not own their simulation
(nand/raw_jobs.py) or the results of recovery (ftl/recovery.py).
Source: this project. Each die scans its blocks with one operation after the other. The dies of a
channel share the channel. Not included: the boot of the firmware, its computations, and the reads
of trim maps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.run import build
from ondie.emu.ftl.recovery import Recovered
from ondie.emu.nand import raw_jobs, timing
from ondie.emu.nand.conventional_pages import conventional
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import OOB

WINDOW = 2
"""Number of operations in the queue of a die: one is executed, and the next one waits."""


def recovery_ps(cfg: Config, geometry: Geometry, found: Recovered) -> int:
    """Simulate the flash operations of recovery ``found`` and return their time (ps).

    A page is visible if the scan does not read the page as blank. In each conventional block, the
    out-of-band data of all pages up to the last visible page is read. In a blank block, only the
    out-of-band data of the first page is read. Then the newest visible stripes are read as whole
    pages, and the stripe after the last visible stripe is overwritten. Pages with the same offset
    in all planes of a unit are read together. Operations on blocks in pSLC mode take the times that
    apply in pSLC mode. If recovery used a checkpoint of the mapping table, only scanned blocks are
    treated in this way. In other blocks, only the out-of-band data of the first page is read. The
    metadata pages are read as whole pages.
    """
    together = geometry.unit_planes * geometry.slots
    own = conventional(geometry, np.arange(len(found.visible_stripes)))
    offsets = np.maximum(found.visible_stripes * found.stripe // together, own)
    checked = np.minimum(found.visible_stripes, found.checked_stripes) * found.stripe // together
    written = np.where(found.visible_stripes > 0, found.stripe // together, 0)
    room = found.block_pages // together - offsets
    written = np.minimum(written, room)
    if found.scanned is not None:
        offsets = np.where(found.scanned, offsets, own)
        checked, written = checked * found.scanned, written * found.scanned
    blocks = np.arange(len(offsets))
    counts = np.stack([offsets, checked, written], axis=1).reshape(-1)
    kinds = np.tile([0, 1, 2], len(offsets)).repeat(counts)
    block = blocks.repeat(3).repeat(counts)
    place = np.arange(len(kinds)) - (np.cumsum(counts) - counts).repeat(counts)
    page = place + np.select(
        [kinds == 1, kinds == 2], [(offsets - checked)[block], offsets[block]], 0
    )
    page += (found.block_pages < geometry.block_pages)[block] * geometry.pages  # in pSLC mode
    for kind, ppns in ((3, found.read_pages), (0, found.queried_pages)):
        of_block, at = np.divmod(ppns, geometry.block_pages)
        more = np.unique(np.stack([of_block, at // together], axis=1), axis=0)
        block, page = np.append(block, more[:, 0]), np.append(page, more[:, 1])
        kinds = np.append(kinds, np.full(len(more), kind))
    if geometry.slots > 1:  # whole pages are read
        cfg = replace(cfg, ftl=replace(cfg.ftl, mapping_unit_bytes=0))
    arrays = build.build(cfg, devices=1, phases=1, jobs=len(kinds))
    record = arrays.block[block]
    planes = ((1 << geometry.unit_planes) - 1) << record["plane"].astype(np.int64)
    spare = OOB.itemsize * together
    raw_jobs.load(
        arrays,
        record["die"] // geometry.lanes,
        np.where(kinds == 2, timing.PROGRAM, timing.READ),
        bus=np.where(kinds == 0, spare, geometry.page_bytes * together),
        page=page,
        planes=planes,
    )
    raw_jobs.run(arrays.handle(), WINDOW, NEVER - 1)
    return int(arrays.job["end"][: len(kinds)].max(initial=0))
