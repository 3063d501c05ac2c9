"""Collection in MQSim's order: when mapping entries are touched and changed, and who retries.

Each test calls the function that decides on a drive of one die, with the events in MQSim's order.
At small counts they run uncompiled (test_uncompiled.py): most of the functions would be
compiled as programs of their own, which takes up to 5 s each.
"""

import numba
import numpy as np
import pytest

from ondie.emu.engine.core.events import OWN, ROW
from ondie.emu.engine.run import completion as ends
from ondie.emu.ftl import cached_entries, cmt, gc, gc_victims, page_map
from ondie.emu.ftl import completion as moves
from ondie.emu.nand import event_order
from ondie.emu.nand.timing import PROGRAM
from ondie.emu.nvme.request import WRITE
from tests.state.written import PAGE, config, drive, play, requests
from tests.timing.test_classes import SHAPE

pytestmark = [] if numba.config.DISABLE_JIT else [pytest.mark.soak]

CACHED_MAP = {"ftl__map_cache": "4 KiB", "ftl__gc_policy": "greedy"}


def written(pages, ordered=1, **changes):
    """Return (arrays, state) of a drive of one plane that has written the first ``pages`` pages."""
    cfg = config(**SHAPE | changes)
    arrays = drive(cfg)
    play(arrays, cfg, [requests(np.arange(pages) * PAGE, PAGE, WRITE)], depth=1)
    event_order.watch(arrays)
    arrays.cfg.ordered[0] = ordered
    return arrays, arrays.handle()


def newest(arrays):
    """Return the logical pages in the mapping cache, the most recently used one first."""
    found = []
    at = int(arrays.maps.newest[0])
    while at > 0:
        found.append(int(arrays.entry.lpn[at - 1]))
        at = int(arrays.entry.older[at - 1])
    return found


@pytest.mark.parametrize("ordered", [0, 1])
def test_stalled_writes_are_retried_after_erases_only(ordered):
    """A check of the unit retries a stalled write only where events have no order."""
    arrays, state = written(4, ordered, ftl__host_order="class")
    tid = 3
    arrays.txn.kind[tid] = ROW
    arrays.txn.lpn[tid], arrays.txn.n[tid] = 9, 1
    arrays.txn.next[tid] = -1
    arrays.txn.op[tid] = PROGRAM
    arrays.txn["size"][tid] = PAGE
    pool = arrays.pool[0]
    pool.stall_head = pool.stall_tail = tid
    ends.check_unit(state, 0, 0)
    assert pool.stall_head == (tid if ordered else -1)
    ends.retry_stalled(state, 0, 0)
    assert pool.stall_head == -1


def test_collection_touches_the_entries_of_its_pages_when_it_locks_them():
    """Of pages 0 to 39 in the cache, block 0 holds 0 to 31, of which 2 and 5 have been written
    again: the entries of the others become the newest, page after page, when it is chosen."""
    arrays, state = written(40, **CACHED_MAP)
    block = page_map.block_at(state, 0, int(arrays.l2p[0, 0]) - 1)
    assert block == page_map.block_at(state, 0, int(arrays.l2p[0, 31]) - 1)
    for lpn in (2, 5):
        page_map.map_page(state, 0, lpn, int(arrays.l2p[0, 39]) + lpn)
    before = newest(arrays)
    assert before == list(range(39, -1, -1))
    arrays.cfg.gc_low[0] = arrays.pool.free_n[0]
    gc.maybe_start_gc(state, 0, int(block) // int(arrays.cfg.all_blocks[0]))
    moved = [lpn for lpn in range(31, -1, -1) if lpn not in (2, 5)]
    assert newest(arrays) == moved + [lpn for lpn in before if lpn not in moved]


def test_an_entry_that_waits_for_its_translation_page_is_not_touched():
    """Its place in the cache is reserved."""
    arrays, state = written(3, **CACHED_MAP)
    arrays.entry.dirty[cached_entries.find(state, 0, 1) - 1] = cached_entries.RESERVED
    gc.touch_entries(state, 0, page_map.block_at(state, 0, int(arrays.l2p[0, 0]) - 1))
    assert newest(arrays) == [2, 0, 1]


def test_a_move_changes_its_entry_when_the_new_page_is_allocated():
    """It is then the newest and dirty; the end of the program changes nothing more."""
    arrays, state = written(40, **CACHED_MAP)
    for lpn in range(3):
        entry = cached_entries.find(state, 0, lpn)
        if arrays.entry.dirty[entry - 1] == cached_entries.DIRTY:
            cmt.mark_clean(state, 0, entry)
    block = int(page_map.block_at(state, 0, int(arrays.l2p[0, 0]) - 1))
    gc_victims.make_victim(state, block // int(arrays.cfg.all_blocks[0]), block)
    arrays.block.moving[block] = 1
    tid = 3
    txn = arrays.txn[tid]
    txn.kind, txn.role, txn.dev, txn.lpn, txn.n = OWN, 0, 0, 1, 1
    txn.src_ppn = int(arrays.l2p[0, 1]) - 1
    txn.victim = block
    moves.write_collected_page(state, tid)
    entry = cached_entries.find(state, 0, 1)
    assert newest(arrays)[0] == 1
    assert arrays.entry.dirty[entry - 1] == cached_entries.DIRTY
    ppn = int(txn.ppn)
    cmt.mark_clean(state, 0, entry)  # evicted and written back while the program takes its time
    moves.on_own_program_done(state, tid, block // int(arrays.cfg.all_blocks[0]))
    assert arrays.entry.dirty[entry - 1] == cached_entries.CLEAN
    assert arrays.l2p[0, 1] - 1 == ppn
