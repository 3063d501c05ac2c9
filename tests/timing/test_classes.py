"""Classes of the host's work on a die: who goes first, and how often."""

import numpy as np
import pytest

from ondie.emu.engine.core.state import records
from ondie.emu.ftl import page_map as mapping
from ondie.emu.nand import die as dies
from ondie.emu.nvme.request import READ, WRITE
from ondie.emu.replay.player import Player, Source
from ondie.emu.units import InputError
from tests.state.written import PAGE, config, drive, requests

SHAPE = {
    "flash__channels": 1,
    "flash__dies_per_channel": 1,
    "flash__planes_per_die": 1,
    "ftl__placement": "static",
    "ftl__write_streams": 4,
    "ftl__stream_policy": "by_command",
    "ftl__erase": "collected",
    "ftl__gc_priority": "urgent",
    "ftl__host_order": "class",
}


def zoned(**changes):
    """A drive with a part of the addresses for each of four classes."""
    cfg = config(**SHAPE | changes)
    arrays = drive(cfg, pairs=4)
    zones = records(mapping.ZONE, 4)
    quarter = int(arrays.cfg.lpns[0]) // 4
    zones.first_lpn = np.arange(4) * quarter
    zones.last_lpn = zones.first_lpn + quarter
    zones.first_byte = zones.first_lpn * PAGE
    zones.units = len(arrays.turn)
    zones.rank = np.arange(4)
    arrays.zone = zones
    return cfg, arrays


def turns(classes):
    """The classes of a queue in the order of service: class 0 first, then as long as a class's
    weight (4, 2, 1) is at least the number of the round, one of each in turn, rounds 3, 2, 1, 4."""
    left, out = list(classes), []
    turn, rounds = 0, 4
    while left:
        if 0 in left:
            out.append(0)
            left.remove(0)
            continue
        while True:
            turn = turn % 3 + 1
            if turn == 1:
                rounds = rounds - 1 or 4
            if {1: 4, 2: 2, 3: 1}[turn] >= rounds and turn in left:
                break
        out.append(turn)
        left.remove(turn)
    return out


@pytest.mark.parametrize("q", [dies.Q_READ, dies.Q_WRITE])
def test_turns(q, rng):
    """Any queue, one promotion after the other; equals in order of arrival."""
    _, arrays = zoned()
    state = arrays.handle()
    for _ in range(50):
        classes = rng.integers(0, 4, 30)
        n = len(classes)
        arrays.txn.stream[:n] = classes
        arrays.txn.next[: n - 1] = np.arange(1, n)
        arrays.txn.next[n - 1] = -1
        arrays.queue[0, 2 * q : 2 * q + 2] = 0, n - 1
        for name in ("turn_read", "round_read", "turn_write", "round_write"):
            arrays.die[name] = 0
        arrays.die.waiting = 1 << q
        served = []
        while arrays.die.waiting[0]:
            dies.promote(state, 0, q)
            served.append(int(dies.pop(state, 0, q)))
        assert sorted(served) == list(range(n))
        assert classes[served].tolist() == turns(classes.tolist())
        for one in range(4):
            assert (
                served == sorted(served)
                or np.diff([t for t in served if classes[t] == one]).min(initial=1) > 0
            )


@pytest.mark.parametrize("op", [READ, WRITE])
def test_whose_requests_end_first(op):
    """One die, 16 outstanding of each class: class 0 is served before all others, and of the first
    28 of the others' about 16, 8 and 4 are of classes 1, 2 and 3."""
    cfg, arrays = zoned(ftl__unwritten="as_written")
    sources = []
    for i, zone in enumerate(arrays.zone):
        offset = (int(zone.first_lpn) + np.arange(16)) * PAGE
        sources.append(Source(iter([requests(offset, PAGE, op)]), 16, True, stream=i))
    done = Player(arrays, cfg, sources).run()
    ends = [r["end"] for r in done.requests]
    others = np.sort(np.concatenate(ends[1:]))
    assert (np.sort(ends[0])[2:] < others[4]).all()
    shares = [int((e <= others[27]).sum()) for e in ends[1:]]
    assert shares[0] >= shares[1] >= shares[2] and shares[0] >= 13 and shares[2] <= 6


def test_where_there_are_no_classes():
    with pytest.raises(InputError, match="host_order"):
        config(**SHAPE | {"ftl__gc_priority": "shared"})
