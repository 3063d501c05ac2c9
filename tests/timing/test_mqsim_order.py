"""What MQSim submits together, when a chip's looks count, which reads join, and who retries.

Each test calls the function that decides on a drive of one die, with events in MQSim's order.
At small counts they run uncompiled (test_uncompiled.py): most of the functions would be
compiled as programs of their own, which takes up to 5 s each.
"""

import numba
import pytest

from ondie.emu.engine.core.events import CACHED, OWN
from ondie.emu.nand import channel, die_scheduler, erase_queue, event_order, multi_plane, polling
from ondie.emu.nand import die as dies
from ondie.emu.nand.timing import PROGRAM, READ
from tests.timing.test_classes import zoned

pytestmark = [] if numba.config.DISABLE_JIT else [pytest.mark.soak]


@pytest.fixture
def drive():
    """Return (state, arrays) of a drive of one die with four planes and polled classes."""
    _, arrays = zoned(ftl__host_order="polled", flash__planes_per_die=4)
    event_order.watch(arrays)
    state = arrays.handle()
    polling.become_idle(state, 0)
    polling.look(state, 0)
    arrays.txn.next[:] = -1
    arrays.txn.mate[:] = -1
    return state, arrays


def queued(arrays, queue):
    """Return the transactions of queue ``queue`` of the die, in order."""
    found = []
    tid = int(arrays.queue[0, 2 * queue]) if arrays.die.waiting[0] >> queue & 1 else -1
    while tid >= 0:
        found.append(tid)
        tid = int(arrays.txn.next[tid])
    return found


def put(arrays, queue, *tids):
    """Put transactions into a queue of the die without a submission."""
    for tid, after in zip(tids, (*tids[1:], -1), strict=True):
        arrays.txn.next[tid] = after
        arrays.txn.queue[tid] = queue
    arrays.queue[0, 2 * queue : 2 * queue + 2] = tids[0], tids[-1]
    arrays.die.waiting[0] |= 1 << queue


def test_writes_of_a_request_are_one_submission_with_an_ideal_map(drive):
    """A write that fills its block has the channel granted in between: no look at the first."""
    state, arrays = drive
    assert arrays.cfg.map_entries[0] == 0
    arrays.txn.op[:2] = PROGRAM
    before = int(arrays.reg.submissions[0])
    event_order.submit(state, 0, 0, dies.Q_WRITE)
    channel.grant_now(state, 0)
    assert (queued(arrays, dies.Q_WRITE), int(arrays.reg.submissions[0])) == ([], before)
    event_order.submit(state, 0, 1, dies.Q_WRITE)
    event_order.submit_kept(state)
    polling.end_submission(state)
    assert queued(arrays, dies.Q_WRITE) == [0, 1]
    assert int(arrays.reg.submissions[0]) == before + 1


@pytest.mark.parametrize(
    ("urgent", "moves", "joined"), [(0, True, [1]), (1, True, [2]), (1, False, [1])]
)
def test_a_mapping_read_is_joined_from_one_other_queue(drive, urgent, moves, joined):
    """By moves of collection (2) only if these have priority and wait, else by user reads (1)."""
    state, arrays = drive
    arrays.cfg.exclusive[0] = 0
    arrays.die.urgent[0] = urgent
    arrays.txn.op[:3] = READ
    arrays.txn.page[:3] = 7
    arrays.txn.n[:3] = 1
    arrays.txn.planes[:3] = 1, 2, 4
    arrays.txn.kind[:3] = OWN, CACHED, OWN
    arrays.txn.stream[1] = 2
    arrays.reg.companion[0] = 2
    put(arrays, dies.Q_READ, 1)
    if moves:
        put(arrays, dies.Q_GC_READ, 2)
    multi_plane.gather_all(state, 0, 0, dies.Q_MAP_READ)
    mates = []
    tid = int(arrays.txn.mate[0])
    while tid >= 0:
        mates.append(tid)
        tid = int(arrays.txn.mate[tid])
    assert mates == joined


def test_a_collection_on_a_busy_chip_is_a_submission_of_its_own(drive):
    """Its look comes before that of the writes of the request, though no die asks for the channel:
    two submissions, so two looks at the idle channel."""
    state, arrays = drive
    arrays.bus.touched[0] = 0
    before = int(polling.looks_of(state, 0))
    polling.submit(state, dies.Q_GC_READ)
    channel.grant_now(state, 0)
    assert int(polling.looks_of(state, 0)) == before + 1
    polling.submit(state, dies.Q_WRITE)
    polling.end_submission(state)
    assert int(polling.looks_of(state, 0)) == before + 2


def test_looks_before_a_collection_bars_the_host_advance_the_turns(drive):
    """Two looks at writes of classes 1 and 2 that wait, turns at the start: class 1 in round 3,
    then class 1 in round 2. Looks after the start advance nothing, as only the erase counts."""
    state, arrays = drive
    arrays.cfg.exclusive[0] = 1
    arrays.txn.op[:2] = PROGRAM
    arrays.txn.stream[:2] = 1, 2
    put(arrays, dies.Q_WRITE, 0, 1)
    arrays.bus.looks[0] += 2
    arrays.die.looks[0] = arrays.bus.looks[0] - 2
    die_scheduler.bar_host_work(state, 0, 1)
    turn = int(arrays.die.turn_write[0]), int(arrays.die.round_write[0]) + polling.ROUNDS
    assert turn == (1, 2)
    arrays.bus.looks[0] += 3
    polling.catch_up(state, 0)
    later = int(arrays.die.turn_write[0]), int(arrays.die.round_write[0]) + polling.ROUNDS
    assert later == turn


def test_an_erase_bars_the_host_and_counts_until_it_is_issued(drive):
    """From the start of its collection, even with no page of it at the scheduler."""
    state, arrays = drive
    arrays.cfg.exclusive[0] = 1
    arrays.txn.op[:1] = PROGRAM
    arrays.txn.stream[0] = 2
    put(arrays, dies.Q_WRITE, 0)
    die_scheduler.select_next(state, 0)
    assert arrays.die.pick[0] == dies.Q_WRITE
    erase_queue.enter(state, 0)
    die_scheduler.select_next(state, 0)
    assert arrays.die.want[0] == dies.NONE
    turn = int(arrays.die.turn_write[0])
    arrays.bus.looks[0] += 1
    polling.catch_up(state, 0)
    assert int(arrays.die.turn_write[0]) == turn
    arrays.txn.lpn[1] = 0  # its block
    erase_queue.leave(state, 0, 1)
    die_scheduler.select_next(state, 0)
    assert arrays.die.want[0] != dies.NONE and arrays.die.pick[0] == dies.Q_WRITE
    arrays.bus.looks[0] += 1
    polling.catch_up(state, 0)
    assert int(arrays.die.turn_write[0]) == 2
