"""Erases of MQSim's queue: from the start of their collections, with a page number, die by die."""

import pytest

from ondie.emu.nand import erase_queue, event_order
from ondie.emu.nand.die import Q_GC_ERASE
from ondie.emu.nand.timing import ERASE
from tests.timing.test_classes import zoned


@pytest.fixture
def drive():
    """Return (state, arrays) of a drive of one die with blocks 0, 1 and 2 in the queue, of which 1
    starts after a read of page 5, and with their erases as transactions 0, 1 and 2."""
    _, arrays = zoned(ftl__host_order="polled")
    event_order.watch(arrays)
    state = arrays.handle()
    for block, cause in ((0, 0), (1, 6), (2, 0)):
        arrays.reg.cause[0] = cause
        erase_queue.enter(state, block)
        arrays.txn.lpn[block] = block
        arrays.txn.op[block] = ERASE
        arrays.txn.mate[block] = -1
        arrays.txn.planes[block] = 1
    return state, arrays


def queued(arrays):
    """Return the erases at the scheduler, in order."""
    found = []
    tid = int(arrays.queue[0, 2 * Q_GC_ERASE]) if arrays.die.waiting[0] >> Q_GC_ERASE & 1 else -1
    while tid >= 0:
        found.append(tid)
        tid = int(arrays.txn.next[tid])
    return found


def test_page_numbers(drive):
    """That of the read for which the collection waited, else the last page of a block."""
    state, arrays = drive
    last = int(arrays.cfg.block_pages[0]) - 1
    assert arrays.erasing.page[:3].tolist() == [last, 5, last]
    assert erase_queue.page_of_first(state, 0) == last
    erase_queue.leave(state, 0, 0)
    assert erase_queue.page_of_first(state, 0) == 5


def test_ready_erases_keep_the_order_of_their_collections(drive):
    """Block 2 is ready first; it comes behind block 0 at the scheduler."""
    state, arrays = drive
    for block in (2, 0):
        erase_queue.make_ready(state, 0, block)
    assert queued(arrays) == [0, 2]


def test_only_an_erase_without_moves_is_submitted_when_it_is_ready(drive):
    """Others were submitted with the reads of their collection."""
    state, arrays = drive
    erase_queue.make_ready(state, 0, 0)
    assert arrays.reg.submitted[0] == 0
    erase_queue.make_ready(state, 0, 2)  # its collection is being started
    assert arrays.reg.submitted[0] == 1


def test_erases_wait_for_the_die_of_the_first(drive):
    """Block 2 is handed over when block 0, of another die, has left the queue."""
    state, arrays = drive
    arrays.block.die[0] = 1
    erase_queue.make_ready(state, 0, 2)
    assert queued(arrays) == []
    erase_queue.leave(state, 0, 0)
    assert queued(arrays) == [2]
