"""Wear levelling: which free block is opened, and what happens to blocks under cold data."""

import numpy as np
import pytest

from ondie.emu.engine.core import counters as stats
from ondie.emu.ftl import block_manager
from ondie.emu.ftl import gc as collection
from ondie.emu.ftl import page_map as mapping
from ondie.emu.nvme import command as queues
from tests.state.small import commands, counter, device

WRITE = queues.WRITE
SHAPE = {
    "flash__channels": 1,
    "flash__dies_per_channel": 1,
    "flash__planes_per_die": 1,
    "flash__blocks_per_plane": 40,
    "flash__pages_per_block": 8,
    "ftl__block_unit": "plane",
    "ftl__over_provisioning": 0.3,
    "ftl__initial": "fresh",
    "host__io_queue_depth": 8,
}


def aged(n=12_000, hot=20, **changes):
    """Written full, then ``n`` writes to the first ``hot`` pages: all else is cold."""
    d = device(**(SHAPE | changes))
    d.submit(commands([(WRITE, lpn, 1) for lpn in range(d.lpns)]))
    rng = np.random.default_rng(7)
    d.submit(commands([(WRITE, int(lpn), 1) for lpn in rng.integers(0, hot, n)]))
    d.run()
    d.check()
    return d


def worn(d, erases):
    """Blocks that have been erased so often, in the ring as the drive keeps it."""
    d.arrays.block.erases = erases
    if d.arrays.cfg.wear_dynamic[0]:
        d.arrays.free[0] = np.argsort(erases, kind="stable")


def spread(d):
    """Most and least erases of a block, and all of them."""
    erases = d.arrays.block.erases
    return int(erases.max() - erases.min()), int(erases.sum())


@pytest.mark.parametrize("erase", ["open", "collected"])
def test_static_levelling_moves_cold_data(erase):
    """Blocks under cold data are never erased without it, and the difference grows with the
    writes; with it no block falls behind by more than the limit and what happens while one is
    emptied. It costs some erases, not many."""
    without, with_it = (aged(ftl__erase=erase, ftl__wear_static_cycles=n) for n in (0, 8))
    assert counter(without, stats.WEAR_MOVES) == 0
    assert without.arrays.block.erases.min() == 0 and spread(without)[0] > 60
    assert counter(with_it, stats.WEAR_MOVES) > 20
    assert spread(with_it)[0] <= 8 + 4
    assert with_it.arrays.block.erases.min() > 20
    assert spread(with_it)[1] < 1.25 * spread(without)[1]


def test_cold_data_move_to_worn_blocks():
    """When a block is emptied for levelling, the blocks that its pages open are the most worn of
    the free ones."""
    d = device(**(SHAPE | {"ftl__wear_static_cycles": 5, "ftl__gc_low_blocks": 3}))
    d.submit(commands([(WRITE, lpn, 1) for lpn in range(d.lpns)]))
    d.submit(commands([(WRITE, lpn % 20, 1) for lpn in range(4000)]))
    block, pool, front = d.arrays.block, d.arrays.pool, d.arrays.front
    seen = 0
    before = (0, np.zeros(0), -1)
    while d.run(1):
        levelled, free, was = before
        now = int(front.block[1, 0])
        if levelled and pool.levelled[0] == levelled and now != was and now >= 0:
            assert block.erases[now] == block.erases[free].max()
            seen += 1
        free = np.flatnonzero(block.state == mapping.FREE)
        before = (int(pool.levelled[0]), free, now)
    assert seen > 5


def test_the_most_worn_goes_first():
    """Against sorting, on rings that begin anywhere; the rest keep their order."""
    d = device(**SHAPE)
    rng = np.random.default_rng(5)
    pool, block = d.arrays.pool, d.arrays.block
    for _ in range(300):
        ring = rng.permutation(40)
        head, n = int(rng.integers(0, 40)), int(rng.integers(1, 41))
        pool.free_head[0], pool.free_n[0] = head, n
        at = (head + np.arange(n)) % 40
        d.arrays.free[0] = ring
        block.erases = rng.integers(0, 6, 40)
        listed = d.arrays.free[0, at].tolist()
        worst = max(listed, key=lambda b: block.erases[b])  # the first of equals
        block_manager.move_most_worn_to_head(d.state, 0)
        listed.remove(worst)
        assert d.arrays.free[0, at].tolist() == [worst, *listed]


@pytest.mark.parametrize("dynamic", ["true", "false"])
def test_the_least_worn_free_block_is_opened(dynamic):
    """With dynamic levelling, always; without, the one that has been free longest."""
    d = device(**(SHAPE | {"ftl__wear_dynamic": dynamic}))
    worn(d, np.random.default_rng(3).integers(0, 30, 40))
    d.submit(commands([(WRITE, lpn % 100, 1) for lpn in range(3000)]))
    block, front = d.arrays.block, d.arrays.front
    states, fronts, freed = block.state.copy(), front.block[:, 0].copy(), {}
    least = oldest = opened = 0
    while d.run(1):
        for stream in range(2):
            b = int(front.block[stream, 0])
            if b >= 0 and b != fronts[stream] and states[b] == mapping.FREE:
                free = np.flatnonzero(states == mapping.FREE)
                opened += 1
                least += block.erases[b] <= block.erases[free].min() + 1
                oldest += freed.get(b, b - 1000) == min(freed.get(x, x - 1000) for x in free)
        for b in np.flatnonzero((block.state == mapping.FREE) & (states != mapping.FREE)).tolist():
            freed[b] = opened
        states, fronts = block.state.copy(), front.block[:, 0].copy()
    assert opened > 200
    # Blocks that become free in one event are told apart by their order in the ring alone.
    if dynamic == "true":
        assert least == opened
    else:
        assert oldest > 0.95 * opened and least < 0.9 * opened


def test_dynamic_levelling_narrows_the_spread():
    """Of blocks half of which are worn: with many free at a time, the others catch up."""
    spreads = []
    room = {"ftl__over_provisioning": 0.6, "ftl__gc_low_blocks": 16}
    for dynamic in ("true", "false"):
        d = device(**(SHAPE | room | {"ftl__wear_dynamic": dynamic}))
        worn(d, np.arange(40) % 2 * 40)
        rng = np.random.default_rng(9)
        d.submit(commands([(WRITE, int(lpn), 1) for lpn in rng.integers(0, d.lpns, 20_000)]))
        d.run()
        spreads.append(d.arrays.block.erases.std())
    assert spreads[0] < 0.7 * spreads[1]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("free", [0, 1, 2, 3, 4])
def test_levelling_takes_no_block_that_the_host_waits_for(free, waits):
    """Collection begins at two free blocks, and writes wait until there are three. While one does,
    a move that brings none begins beyond these only, while none does, where collection does not
    follow: else levelling would take what that gains, and each erase begin the next move."""
    d = device(**SHAPE | {"ftl__wear_static_cycles": 2, "ftl__gc_stop_blocks": 3,
                          "ftl__gc_low_blocks": 2})  # fmt: skip
    a = d.arrays
    full = len(a.block) - 4
    a.block.state[:full] = mapping.FULL
    a.block.stream[:full] = 0
    a.block.erases[1:] = 5
    a.pool.free_n[0] = free
    a.dev.stall_head[0] = 0 if waits else -1
    collection.start_wear_leveling(d.state, 0, 0)
    assert counter(d, stats.WEAR_MOVES) == (free > (3 if waits else 2))


def test_levelling_is_not_starved_by_the_threshold_of_writes():
    """Free blocks never stay above it where collection begins just below: cold data move all the
    same, and the writes end."""
    d = aged(ftl__wear_static_cycles=8, ftl__gc_low_blocks=2, ftl__gc_stop_blocks=3)
    assert counter(d, stats.WEAR_MOVES) > 20
    assert spread(d)[0] <= 8 + 4
