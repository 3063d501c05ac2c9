"""Priority classes as MQSim polls them: the turns that looks at a chip take, one look at a time."""

import itertools

import numpy as np
import pytest

from ondie.emu.nand import die as dies
from ondie.emu.nand import polling
from ondie.emu.nvme.request import READ, WRITE
from ondie.emu.replay.player import Player, Source
from tests.state.written import PAGE, requests
from tests.timing.test_classes import zoned

WEIGHT = {1: 4, 2: 2, 3: 1}


def look(turn, rounds, waiting):
    """One look of MQSim: through classes 1, 2 and 3 until one has a turn, or until class 1 has been
    passed four times. Returns (class or None, turn, rounds)."""
    if 0 in waiting:
        return 0, turn, rounds
    passes = 0
    while passes < 4:
        turn = turn % 3 + 1
        if turn == 1:
            passes += 1
            rounds = rounds - 1 or 4
        if WEIGHT[turn] >= rounds and turn in waiting:
            return turn, turn, rounds
    return None, turn, rounds


@pytest.mark.parametrize(
    "waiting", [w for n in range(5) for w in itertools.combinations(range(4), n)]
)
def test_many_looks_are_as_many_single_looks(waiting):
    bits = sum(1 << rank for rank in waiting)
    for turn, rounds in itertools.product(range(4), range(1, 5)):
        if turn == 0 and rounds < 4:
            continue  # only at the start
        at, left, missed = turn, rounds, 0
        for looks in range(40):
            assert polling.advance(turn, rounds, bits, looks) == (at, left, missed)
            found, at, left = look(at, left, waiting)
            missed += found is None


def served(polled, op, classes, depth=16):
    """The classes of the requests of a busy drive of one die, in the order of their ends."""
    cfg, arrays = zoned(
        ftl__unwritten="as_written", ftl__host_order="polled" if polled else "class"
    )
    sources = []
    for i, zone in enumerate(arrays.zone):
        count = 100 if i in classes else 1
        offset = (int(zone.first_lpn) + np.arange(count) % 40) * PAGE
        sources.append(Source(iter([requests(offset, PAGE, op)]), depth, True, stream=i))
    done = Player(arrays, cfg, sources).run()
    ends = np.concatenate([r["end"] for r in done.requests])
    rank = np.repeat(np.arange(4), [len(r) for r in done.requests])
    return rank[np.argsort(ends, kind="stable")]


@pytest.mark.parametrize("op", [READ, WRITE])
def test_looks_at_a_busy_chip_take_turns(op):
    """Each command of the only die is followed by two more looks: when its cycles have left the
    channel, and when the next request is submitted. With classes 1 and 2, every third turn is one
    of class 1, so that class 2 waits until class 1 is done. Every request completes."""
    shares = {}
    for polled in (False, True):
        order = served(polled, op, (1, 2))
        assert sorted(order) == [0] + [1] * 100 + [2] * 100 + [3]
        shares[polled] = (order[20:80] == 2).mean()
    assert shares[False] == pytest.approx(1 / 3, abs=0.03)
    assert shares[True] == 0


def test_only_the_last_class_has_every_other_turn():
    """A look after a turn of class 3 finds nothing if only class 3 waits; the request completes at
    the next look."""
    _, arrays = zoned(ftl__host_order="polled")
    state = arrays.handle()
    arrays.txn.stream[:4] = 3
    arrays.txn.next[:4] = [1, 2, 3, -1]
    arrays.queue[0, 2 * dies.Q_READ : 2 * dies.Q_READ + 2] = 0, 3
    arrays.die.waiting[0] = 1 << dies.Q_READ
    arrays.die.pick[0] = dies.Q_READ
    found = []
    for looks in range(1, 9):
        arrays.bus.looks[0] = looks
        found.append(bool(polling.find_command(state, 0)))
    assert found == [True, False] * 4


def test_an_array_that_ends_with_a_phase_takes_no_look():
    """MQSim registered the end of the array earlier, so that the channel is still busy."""
    _, arrays = zoned(ftl__host_order="polled")
    state = arrays.handle()
    polling.become_busy(state, 0)
    polling.become_idle(state, 0)
    polling.end_array(state, 0)
    polling.look(state, 0)
    assert arrays.bus.looks[0] == 1
    polling.end_array(state, 0)
    polling.look(state, 0)
    assert arrays.bus.looks[0] == 2
