"""Flash operations in progress at a power cut, and the state in which they leave flash.

Owns the search for the operations interrupted by a cut, and the choice of the log record that the
end of each program would have written. Does not own these records (ftl/page_map.py), the outcomes
(nand/torn_pages.py) or recovery (ftl/recovery.py).
Source: this project's rules of recovery (docs/store.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.conservation import Imbalance
from ondie.emu.engine.core.events import CACHED, REQUEST
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import page_map
from ondie.emu.nand import timing, torn_pages
from ondie.emu.nvme import cache_places
from ondie.emu.nvme.moved_bytes import DrivePlanBytes, MovedBytes
from ondie.kernels.jit import njit


def operations(arrays: Arrays, now: int) -> Iterator[tuple[int, int]]:
    """Yield (die, transaction) of each array operation that a power cut at time ``now`` (ps)
    interrupts, including suspended operations."""
    for at, die in enumerate(arrays.die):
        for tid in (int(die.arr), int(die.paused)):
            if tid < 0:
                continue
            txn = arrays.txn[tid]
            began = int(txn.time) - int(arrays.op[int(txn.op)].array) - int(txn.array)
            if began - int(die.extra) <= now or tid == int(die.paused):
                yield at, tid  # else the command is still on the channel


def of_reservoir(arrays: Arrays, txn: np.record) -> bool:
    """Return True if ``txn``, a program or an erase, changes the reservoir (the blocks that hold
    optimizer states). Programs of kind STORE (nand/timing.py) are not recognized; the plans of a
    drive do not contain them."""
    if txn.op == timing.ERASE:
        table = arrays.cfg[0]
        return bool(txn.lpn % table.all_blocks >= table.blocks)
    return bool(txn.op == timing.BPP or txn.role >= Role.REGISTERS)


def tear(
    arrays: Arrays,
    now: int,
    payload: MovedBytes,
    rng: np.random.Generator,
    plans: DrivePlanBytes | None,
) -> None:
    """Interrupt the program and erase operations of device 0 by a power cut at time ``now`` (ps).
    The resulting state of each affected page of ``payload`` is drawn from ``rng``. ``plans``: data
    of the update plans on this device, or None if there are no plans. Raises Imbalance if the
    reservoir is being programmed and ``plans`` is None."""
    store = payload.store
    for die, tid in operations(arrays, now):
        txn = arrays.txn[tid]
        if txn.op == timing.ERASE:
            block = range(int(txn.ppn), int(txn.ppn) + int(arrays.cfg.block_pages[0]))
            if of_reservoir(arrays, txn):
                table, mask = arrays.cfg[0], int(txn.planes)
                planes, slots = int(table.planes), int(table.slots)
                selected = [ppn for ppn in block if mask >> ppn // slots % planes & 1]
                torn_pages.interrupt_erase(store, filter(store.is_written, selected), rng)
            else:
                torn_pages.interrupt_erase(store, filter(store.is_written, block), rng)
        elif txn.op in (timing.BPP, timing.PROGRAM) and of_reservoir(arrays, txn):
            if plans is None:
                raise Imbalance(f"die {die} programs the reservoir, but no plan provides the data")
            plans.interrupt(die, tid, rng)
        elif txn.op in (timing.PROGRAM, timing.COPYBACK):
            members = [tid]
            while arrays.txn[members[-1]].mate >= 0:
                members.append(int(arrays.txn[members[-1]].mate))
            two_pass = int(arrays.cfg.passes[0]) == 2
            for member in members:
                part = arrays.txn[member]
                first = two_pass and part.step == stages.ENCODED
                log_program(arrays.handle(), member, first)
                payload.apply(1)
                for ppn in range(int(part.ppn), int(part.ppn) + int(part.n)):
                    if first:
                        torn_pages.tear_first_pass(store, ppn, rng)
                    else:
                        torn_pages.tear(store, ppn, rng, may_be_blank=not two_pass)


@njit
def log_program(st, tid, first_pass):
    """Discard the entries of the engine's log, and log program ``tid`` as if it had ended, with the
    contents that it would have programmed. On return, the new entry is the first record of the log,
    but the log's length is 0. ``first_pass``: True if the first of two passes is in progress."""
    st.reg[0].logged = 0
    txn = st.txn[tid]
    if first_pass:
        page_map.log_first_pass(st, tid)
    elif txn.kind == REQUEST:
        page_map.log_host_write(st, tid)
    elif txn.kind == CACHED:
        place = cache_places.find(st, txn.dev, txn.lpn)
        page_map.log_landing(st, tid, place, st.cpage[place - 1].stale)
    elif txn.role == Role.PADDING:
        page_map.log_padding(st, tid)
    elif txn.role == Role.MAP_BACK:
        page_map.log_map_page(st, tid)
    elif txn.role == Role.TRIM_MAP:
        page_map.log_trim_map(st, tid)
    else:
        page_map.log_move(st, tid)
    st.reg[0].logged = 0
