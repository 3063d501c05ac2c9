"""MQSim's drawn victims against the same drawings written down in Python."""

import numpy as np
import pytest

from ondie.emu.ftl import page_map as mapping
from ondie.emu.replay.mqsim import gc_policies as victims
from ondie.emu.replay.mqsim import mrg32k3a as mrg
from tests.state.small import device

BLOCKS, PAGES = 24, 8
SHAPE = {
    "flash__blocks_per_plane": BLOCKS,
    "flash__planes_per_die": 1,
    "ftl__block_unit": "plane",
    "ftl__over_provisioning": 0.3,
}


@pytest.fixture(scope="module")
def small():
    return device(**SHAPE)


def drawn_up(small, rng):
    """A unit of the drive with blocks in any state; (its number, safe, pages won by each)."""
    a = small.arrays
    n = len(a.block)
    a.block.state = rng.choice([mapping.FREE, mapping.OPEN, *[mapping.FULL] * 3], n)
    a.block.flying = rng.random(n) < 0.2
    a.block.retire = np.where(rng.random(n) < 0.1, mapping.PINNED, 0)
    a.block.stream = rng.integers(0, 2, n)  # the host's 0, collection's 1
    assert int(a.cfg.collected[0]) == 1
    a.valid[:] = np.where(a.block.state == mapping.FULL, rng.integers(4, PAGES + 1, n), 0)
    unit = int(rng.integers(n // BLOCKS))
    b = a.block[unit * BLOCKS : (unit + 1) * BLOCKS]
    full = (b["state"] == mapping.FULL) & (b["retire"] == 0)
    safe = (b["state"] == mapping.FREE) | full & ((b["flying"] == 0) | (b["stream"] == 1))
    won = PAGES - a.valid[unit * BLOCKS : (unit + 1) * BLOCKS]
    won = np.where(full & (b["flying"] == 0), won, 0)
    return unit, safe, won, b["state"] == mapping.FULL


def seeded(small, seed, least=0, repeated=0):
    """Both generators at one place."""
    small.arrays.lots[victims.REPEATED_LOT] = repeated
    small.arrays.lots[: victims.LEAST_LOT] = mrg.start(seed)
    small.arrays.lots[victims.LEAST_LOT] = least
    return mrg.start(seed)


def test_rga(small, rng):
    """The best of 4 different safe blocks of 24, the lowest of equals."""
    found = 0
    for seed in range(200):
        unit, safe, won, _ = drawn_up(small, rng)
        if safe.sum() < 4:
            continue
        state = seeded(small, seed)
        picked: set[int] = set()
        while len(picked) < 4:
            b = int(mrg.below(state, BLOCKS))
            if safe[b]:
                picked.add(b)
        best = max(sorted(picked), key=lambda b: won[b])
        wanted = unit * BLOCKS + best if won[best] > 0 else -1
        assert victims.rga(small.state, unit) == wanted
        found += wanted >= 0
    assert found > 100


@pytest.mark.parametrize("name, full, least", [("random", 0, 0), ("random_p", 1, 0),
                                               ("random_pp", 1, 3)])  # fmt: skip
def test_redrawn(small, rng, name, full, least):
    """Drawn again while it will not do, at most as often as there are blocks; the last one counts,
    and is of no use where it wins nothing."""
    kinds = set()
    for seed in range(300):
        unit, safe, won, filled = drawn_up(small, rng)
        state = seeded(small, seed, least)
        b = int(mrg.below(state, BLOCKS))
        repeats = 0
        while not (safe[b] and (not full or filled[b]) and won[b] >= least) and repeats < BLOCKS:
            b = int(mrg.below(state, BLOCKS))
            repeats += 1
        wanted = unit * BLOCKS + b if won[b] > 0 else -1
        assert getattr(victims, name)(small.state, unit) == wanted
        kinds.add(wanted >= 0)
    assert kinds == {True, False}


@pytest.mark.parametrize("name, least", [("random", 0), ("random_p", 0), ("random_pp", 3)])
def test_repeated_until_it_is_of_use(small, rng, name, least):
    """Every drawing ends with a block that wins something, where there is one."""
    for seed in range(100):
        unit, _, won, _ = drawn_up(small, rng)
        seeded(small, seed, least, repeated=1)
        chosen = getattr(victims, name)(small.state, unit) - unit * BLOCKS
        assert won[chosen] > 0
        if name == "random_pp" and (won >= 3).sum() > 4:
            assert won[chosen] >= 3


def test_too_few_safe_blocks_end(small):
    """MQSim would draw for ever."""
    small.arrays.block.state = mapping.OPEN
    seeded(small, 1)
    assert victims.rga(small.state, 0) == -1
