"""Pages that are mapped when they are placed, locked while collection has yet to move them, or read
before they were written. Looked at after every event of a busy drive.
"""

import numpy as np
import pytest

from ondie.emu.engine.run import build, driver
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl.invariants import check_between_events
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme.request import READ, WRITE
from ondie.emu.units import InputError
from tests.state.written import PAGE, config, drive, play, requests

SHAPE = {
    "flash__channels": 1,
    "flash__dies_per_channel": 2,
    "flash__planes_per_die": 1,
    "flash__blocks_per_plane": 24,
    "flash__pages_per_block": 8,
    "ftl__placement": "static",
    "ftl__partial_pages": "sectors",
    "ftl__over_provisioning": 0.3,
    "ftl__gc_low_blocks": 4,
    "ftl__gc_stop_blocks": 3,
    "ftl__gc_parallel": 3,
    "ftl__gc_window_pages": 0,
    "ftl__gc_priority": "exclusive",
    "ftl__erase": "collected",
    "ftl__open_blocks": "ahead",
}
LOCKED = {"ftl__map_update": "placed", "ftl__victim_pages": "locked"}


@pytest.fixture(autouse=True, scope="module")
def _a_small_pool():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "BUDGET", 2048)
        patch.setattr(build, "ROWS", 1 << 10)
        yield


def waiting(arrays):
    """Transactions that wait for locked pages."""
    found = []
    for first in arrays.pool.parked:
        while first > 0:
            found.append(int(first) - 1)
            first = int(arrays.txn.next[found[-1]]) + 1
    return found


def stepped(monkeypatch, arrays, cfg, batch, look):
    """The requests, 24 of them outstanding; ``look`` after every event."""
    monkeypatch.setattr(driver, "EVENTS_PER_CALL", 1)
    return play(arrays, cfg, [batch], 24, progress=lambda done, now: look()).counters


def mixed(rng, lpns, n):
    """Writes and reads of parts of pages that have all been written."""
    op = np.where(rng.random(n) < 0.3, READ, WRITE)
    start = rng.integers(0, 7, n)
    return requests(
        rng.integers(0, lpns, n) * PAGE + start * 512, rng.integers(1, 9 - start) * 512, op
    )


def test_who_waits_for_what(monkeypatch, counts, rng):
    """Whoever waits, waits for a page of a block under collection; a victim that is being read has
    not begun; and no page is moved in vain, as nobody overwrites it meanwhile."""
    cfg = config(**SHAPE | LOCKED)
    arrays = drive(cfg)
    lpns = int(arrays.cfg.lpns[0])
    play(arrays, cfg, [requests(np.arange(lpns) * PAGE, PAGE, WRITE)])
    seen = {"parked": 0, "postponed": 0}

    def look():
        for t in waiting(arrays):
            assert arrays.txn.n[t] == 1
            ppn = int(arrays.l2p[0, arrays.txn.lpn[t]]) - 1
            assert arrays.block.state[ppn // 8] == mapping.VICTIM
            seen["parked"] += 1
        victim = arrays.block.state == mapping.VICTIM
        late = victim & (arrays.block.reading > 0)
        assert (arrays.block.scan[late] == 0).all()
        seen["postponed"] += int(late.sum())
        check_between_events(arrays, Geometry.of(cfg))

    count = stepped(monkeypatch, arrays, cfg, mixed(rng, lpns, counts(130, 2000)), look)
    assert count["collections"] > 20 and count["gc_dropped_pages"] == 0
    assert count["gc_read_pages"] == count["gc_program_pages"] > 20
    assert min(seen.values()) > 0


@pytest.mark.parametrize("map_update", ["programmed", "placed"])
def test_when_the_old_place_is_invalid(map_update):
    """A program takes a page 300 us and more: while one is under way, its page is mapped to the new
    place, or still to the old one."""
    cfg = config(**SHAPE | {"ftl__map_update": map_update})
    arrays = drive(cfg)
    play(arrays, cfg, [requests(0, PAGE, WRITE)])
    old = int(arrays.l2p[0, 0])
    held = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "EVENTS_PER_CALL", 1)

        def look(done, now):
            if arrays.block.flying.sum():
                held.append(int(arrays.l2p[0, 0]) == old)

        play(arrays, cfg, [requests(0, PAGE, WRITE)], progress=look)
    assert held and all(held) == (map_update == "programmed") == any(held)
    assert int(arrays.l2p[0, 0]) != old


def test_the_last_write_placed_stays():
    """Writes to one page in several channels' queues: the map has the one that was placed last,
    with the sectors of all."""
    cfg = config(**SHAPE | LOCKED)
    arrays = drive(cfg)
    play(arrays, cfg, [requests(np.arange(8) * 512, 512, WRITE)], 8)
    assert int(arrays.sectors[0, 0]) == 0xFF and int(arrays.dev.mapped[0]) == 1
    first = arrays.turn[0] * 24 * 8
    assert int(arrays.l2p[0, 0]) == first + 8  # pages are handed out in order


def test_a_page_read_before_it_was_written(rng):
    """It takes a page; its block is never collected, and is missed when the drive is full."""
    cfg = config(**SHAPE | LOCKED | {"ftl__unwritten": "as_written"})
    arrays = drive(cfg)
    lpns = int(arrays.cfg.lpns[0])
    some = np.arange(0, lpns, 8)
    count = play(arrays, cfg, [requests(some * PAGE, PAGE, READ)]).counters
    assert count["unmapped_pages"] == 0 and count["read_pages"] == len(some)
    places = arrays.l2p[0, some].astype(np.int64) - 1
    assert (places >= 0).all() and arrays.valid.sum() == len(some)
    blocks = np.unique(places // 8)
    assert (arrays.block.retire[blocks] == mapping.PINNED).all()
    others = np.setdiff1d(np.arange(lpns), some)
    batch = requests(rng.choice(others, 3000) * PAGE, PAGE, WRITE)
    count = play(arrays, cfg, [batch]).counters
    assert count["collections"] > 50
    np.testing.assert_array_equal(arrays.l2p[0, some].astype(np.int64) - 1, places)


def test_reads_alone_fill_a_drive():
    """Pages read before they were written ask for collections, which find nothing; then there is no
    page to take."""
    cfg = config(
        **SHAPE | LOCKED | {"ftl__unwritten": "as_written", "ftl__over_provisioning": 0.01}
    )
    arrays = drive(cfg)
    lpns = int(arrays.cfg.lpns[0])
    with pytest.raises(InputError, match="needs a flash page"):
        play(arrays, cfg, [requests(np.arange(lpns) * PAGE, PAGE, READ)])


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"ftl__map_update": "placed", "ftl__program_failures": 0.1}, "map_update"),
        (
            {
                "ftl__victim_pages": "locked",
                "ftl__placement": "dynamic",
                "ftl__partial_pages": "whole",
            },
            "victim_pages",
        ),
    ],
)
def test_what_cannot_be_together(changes, words):
    with pytest.raises(InputError, match=words):
        config(**SHAPE | changes)
