"""Flash operations in progress at a power cut, and what is left of them on flash.

Owns the operations that a cut interrupts, and the contents that their programs would have had. Does
not own the outcomes (nand/torn_pages.py) or recovery (ftl/recovery.py).
Source: this project's rules of recovery (docs/store.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.events import CACHED, REQUEST
from ondie.emu.engine.core.payload_log import (
    LOG_FIRST_PASS,
    LOG_LAND,
    LOG_LOST,
    LOG_MAP_PAGE,
    LOG_MOVE,
    LOG_PADDING,
    LOG_PROGRAM,
    LOG_TRIM_MAP,
)
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.state import Arrays
from ondie.emu.nand import timing, torn_pages
from ondie.emu.nvme.moved_bytes import MovedBytes


def operations(arrays: Arrays, now: int) -> Iterator[tuple[int, int]]:
    """Yield (die, transaction) of each operation of an array that time ``now`` (ps) interrupts,
    suspended ones included."""
    for at, die in enumerate(arrays.die):
        for tid in (int(die.arr), int(die.paused)):
            if tid < 0:
                continue
            txn = arrays.txn[tid]
            began = int(txn.time) - int(arrays.op[int(txn.op)].array) - int(txn.array)
            if began - int(die.extra) <= now or tid == int(die.paused):
                yield at, tid  # else the command is still on the channel


def tear(arrays: Arrays, now: int, payload: MovedBytes, rng: np.random.Generator) -> None:
    """Leave what a power cut at time ``now`` (ps) leaves of the operations of device 0 on the pages
    of ``payload``, drawn from ``rng``."""
    store = payload.store
    for _, tid in operations(arrays, now):
        txn = arrays.txn[tid]
        if txn.op == timing.ERASE:
            block = range(int(txn.ppn), int(txn.ppn) + int(arrays.cfg.block_pages[0]))
            torn_pages.interrupt_erase(store, filter(store.is_written, block), rng)
        elif txn.op in (timing.PROGRAM, timing.COPYBACK):
            members = [tid]
            while arrays.txn[members[-1]].mate >= 0:
                members.append(int(arrays.txn[members[-1]].mate))
            two_pass = int(arrays.cfg.passes[0]) == 2
            for member in members:
                part = arrays.txn[member]
                first = two_pass and part.step == stages.ENCODED
                _log_program(arrays, member)
                if first:
                    arrays.log[0].what, arrays.log[0].old = LOG_FIRST_PASS, -1
                payload.apply(1)
                for ppn in range(int(part.ppn), int(part.ppn) + int(part.n)):
                    if first:
                        torn_pages.tear_first_pass(store, ppn, rng)
                    else:
                        torn_pages.tear(store, ppn, rng, may_be_blank=not two_pass)


def _log_program(arrays: Arrays, tid: int) -> None:
    """Make the record of the log that the end of program ``tid`` would make."""
    txn, record, cfg = arrays.txn[tid], arrays.log[0], arrays.cfg[0]
    block = arrays.block[int(txn.ppn) // int(cfg.block_pages)]
    lpn, partial = int(txn.lpn), bool(cfg.partial)
    record.what, record.kind, record.queue, record.row = LOG_MOVE, int(txn.kind), -1, -1
    record.place, record.lpn, record.ppn, record.n = 0, lpn, int(txn.ppn), int(txn.n)
    record.old, record.sectors, record.held = -1, -1, -1
    record.dev, record.die = int(txn.dev), int(txn.die)
    record.stream, record.erases = int(block.stream), int(block.erases)
    held = int(arrays.sectors[0, lpn]) if partial and lpn >= 0 else -1
    if txn.role == Role.PADDING:
        record.what, record.sectors, record.held = LOG_PADDING, 0, 0
        return
    if txn.role == Role.MAP_BACK:
        record.what, record.place = LOG_MAP_PAGE, lpn - int(cfg.lpns) + 1
        return
    if txn.role == Role.TRIM_MAP:
        record.what, record.place = LOG_TRIM_MAP, int(txn.src_ppn) + 1
        return
    if txn.kind not in (CACHED, REQUEST):
        record.old, record.held = int(txn.src_ppn), held
        return
    if partial:
        record.old, record.sectors = int(arrays.l2p[0, lpn]) - 1, int(txn.sectors)
        record.held = held | int(txn.sectors)
    if txn.kind == REQUEST:
        record.what = LOG_PROGRAM
        record.queue, record.row = divmod(int(txn.row), int(cfg.ring))
        return
    slots = arrays.cpage[: int(arrays.cache.used[0])]
    place = int(np.flatnonzero((slots["lpn"] == lpn) & (slots["flying"] != 0))[0])
    record.place, record.what = place + 1, LOG_LAND
    if slots["stale"][place]:
        record.what, record.old, record.held = LOG_LOST, -1, int(txn.sectors)
    record.sectors = int(txn.sectors)
