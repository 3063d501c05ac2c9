"""Commands that the drive works on at most, and the time of messages in whole steps."""

import numpy as np
import pytest

from ondie.emu.engine.run import driver
from ondie.emu.nvme.request import READ, WRITE
from tests.state.written import PAGE, config, drive, play, requests

MESSAGES = {
    "frontend__doorbell": "2 B",
    "frontend__request": "4 B",
    "frontend__entry": "64 B",
    "frontend__completion": "16 B",
    "frontend__transfer": "command",
}


def played(limit, depth, n=300, **changes):
    cfg = config(**MESSAGES | {"frontend__fetch_limit": limit} | changes)
    arrays = drive(cfg)
    rng = np.random.default_rng(4)
    offset = rng.integers(0, int(arrays.cfg.lpns[0]), n) * PAGE
    op = np.where(rng.random(n) < 0.5, READ, WRITE)
    most = 0

    def look(done, now):
        nonlocal most
        most = max(most, int(arrays.pair.working[0]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "EVENTS_PER_CALL", 1)
        done = play(arrays, cfg, [requests(offset, PAGE, op)], depth, progress=look)
    assert int(arrays.pair.held[0]) == 0 and int(arrays.pair.working[0]) == 0
    return done.requests[0], most


def test_no_more_than_the_limit():
    """16 outstanding, 3 worked on: never more; slower than without a limit, faster than 1 of 1."""
    free, none = played(0, 16)
    three, most = played(3, 16)
    one, single = played(1, 16)
    assert (none, most, single) == (0, 3, 1)
    ends = [int(r["end"].max()) for r in (free, three, one)]
    assert ends == sorted(ends) and ends[0] < ends[1] < ends[2]


def test_a_limit_that_is_not_reached_changes_nothing():
    free, _ = played(0, 4)
    wide, most = played(4, 4)
    assert most == 4
    np.testing.assert_array_equal(free["end"], wide["end"])


def test_in_order_of_arrival():
    """One at a time: commands end in the order in which they were issued."""
    done, _ = played(1, 8)
    assert (np.diff(done["end"]) > 0).all()


def test_messages_in_whole_steps():
    """A page at 3 GB/s takes 1365.33 ns: 1365 in whole ns, and no other station is concerned."""
    rate = {"link__down": "3 GB/s", "link__up": "3 GB/s", "link__latency": "0 ns"}
    plain = {name: 0 for name in MESSAGES if name != "frontend__transfer"}
    ends = []
    for tick in ("0 ps", "1 ns"):
        cfg = config(**rate, **plain, frontend__transfer="command", link__tick=tick)
        done = play(drive(cfg), cfg, [requests(0, PAGE, WRITE)], 1).requests[0]
        ends.append(int(done["end"][0] - done["start"][0]))
    assert ends[0] - ends[1] == 334  # 1,365,333.3 ps are rounded up where they are not cut
