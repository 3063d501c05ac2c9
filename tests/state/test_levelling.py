"""Wear inside a die and between dies: who changes roles or moves, how far apart blocks may wear,
and that what is moved stays what it is.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.analysis.compare import Run
from ondie.emu.config.config import load_preset
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl import reservoir
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.base import Options, Unavailable
from ondie.emu.paths.layout.stripe_map import Homes
from ondie.emu.paths.on_die.wear_leveling import Dies, decide
from tests.state.models import model
from tests.timing.harness import preset

LEAVES = {
    "flash.channels": "2",
    "flash.dies_per_channel": "2",
    "flash.planes_per_die": "4",
    "flash.blocks_per_plane": "16",
    "flash.pages_per_block": "4",
    "flash.page": "512 B",
    "ftl.reservoir_fraction": "0.5",
    "ftl.over_provisioning": "0.5",
    "host.io_block": "4 KiB",
}
DIES, BLOCKS, PAGES, PLANES = 4, 8, 4, 4
UNEVEN = 5 * DIES * 128 + 100  # 21 stripes on 4 dies


def run(op="adam", params=UNEVEN, steps=12, payload=True, seconds=1e-4, **changes):
    """A run whose path has done all its steps."""
    tensors = ("a", (params - 100,), 0), ("b", (100,), 1)
    trace = model(op, steps, tensors, payload=payload, seconds=seconds)
    out = Run("on_die", preset(LEAVES, **changes), trace, Options(), payload=payload)
    for i in range(steps):
        out.step(i)
    return out


def worn(r):
    """Erases of the reservoirs' blocks: int[dies, blocks, planes]."""
    return r.system.arrays.worn.reshape(-1, BLOCKS, PLANES)


def check_bits(r):
    """Weights on flash, and those that the host was sent, are the reference's."""
    reference = r.arithmetic.reference(len(r.clock.steps)).view(np.uint32)
    assert (r.path.finish().view(np.uint32) == reference).all()
    assert (r.path.delivered().view(np.uint32) == reference).all()


# --- where stripes are


@given(st.data())
def test_homes_are_one_to_one(data):
    """Whatever moves where: each stripe has one super-page, on the die that it was sent to; the
    dies' lists are in order of stripes; what was found again is the same."""
    dies = data.draw(st.integers(1, 6))
    count = data.draw(st.integers(1, 40))
    homes, die = Homes(count, dies), np.arange(count) % dies
    moves = st.tuples(st.integers(0, count - 1), st.integers(0, dies - 1))
    for stripe, to in data.draw(st.lists(moves, max_size=20)):
        if die[stripe] == to:
            continue
        source, target = homes.move(stripe, to)
        assert source % dies == die[stripe] and target % dies == to
        die[stripe] = to
    every = homes.super_pages(0, count)
    assert len(set(every.tolist())) == count and (every % dies == die).all()
    assert [homes.stripe(int(sp)) for sp in every] == list(range(count))
    assert (homes.held() == np.bincount(die, minlength=dies)).all()
    for d, its in enumerate(homes.by_die()):
        assert [homes.stripe(int(sp)) for sp in its] == np.flatnonzero(die == d).tolist()
    again = Homes.found(every, dies)
    assert (again.super_pages(0, count) == every).all()
    assert again.moved == (every != np.arange(count)).any()
    with pytest.raises(KeyError):
        homes.stripe(int(every.max()) + 1)


# --- who moves


def drawn_dies(data):
    n = data.draw(st.integers(2, 8))
    places = np.array(data.draw(st.lists(st.integers(20, 60), min_size=n, max_size=n)))
    held = np.array(data.draw(st.lists(st.integers(0, 18), min_size=n, max_size=n)))
    cycles = np.array(data.draw(st.lists(st.floats(0, 50), min_size=n, max_size=n)))
    room = held + np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    return held, Dies(cycles, places, room)


def applied(held, moves):
    held = held.copy()
    for worn_die, fresh in moves:
        held[worn_die] -= 1
        held[fresh] += 1
    return held


@given(st.data(), st.floats(0, 20))
def test_moves_go_from_dies_worn_more_and_end_when_no_difference_grows(data, threshold):
    held, dies = drawn_dies(data)
    moves = decide(held, dies, threshold)
    after = applied(held, moves)
    assert after.sum() == held.sum() and after.min() >= 0 and (after <= dies.room).all()
    assert not {a for a, _ in moves} & {b for _, b in moves}, "a die gives and takes"
    if moves:
        assert np.ptp(dies.cycles) > threshold
        givers, takers = zip(*moves, strict=True)
        assert dies.cycles[list(givers)].min() >= dies.cycles[list(takers)].min() + threshold
    for a in range(len(held)):
        for b in range(len(held)):
            apart = dies.cycles[a] - dies.cycles[b] > threshold
            if apart and after[b] < dies.room[b]:
                assert after[a] * dies.places[b] <= after[b] * dies.places[a]


def test_an_exchange_would_change_nothing_and_is_not_asked_for():
    """Dies with as many super-pages on as many places wear alike from now on, however far apart
    they are."""
    dies = Dies(np.array([90.0, 10.0]), np.array([32, 32]), np.array([20, 20]))
    assert decide(np.array([7, 7]), dies, 5) == []
    assert decide(np.array([8, 7]), dies, 80) == []
    assert decide(np.array([8, 7]), dies, 79) == [(0, 1)]
    assert decide(np.array([10, 7]), dies, 5) == [(0, 1)] * 2  # 8 and 9
    full = Dies(dies.cycles, dies.places, np.array([20, 8]))
    assert decide(np.array([10, 7]), full, 5) == [(0, 1)]


@given(st.data(), st.floats(0.5, 5))
def test_dies_stay_within_the_threshold_for_ever(data, threshold):
    """By the rates themselves, over some thousands of steps, from dies that are worn alike: apart
    by no more than the threshold and what a step adds."""
    held, dies = drawn_dies(data)
    room = np.full(len(held), held.sum() + 1)
    cycles, most = np.zeros(len(held)), 0.0
    for _ in range(300):
        held = applied(held, decide(held, Dies(cycles, dies.places, room), threshold))
        cycles = cycles + 10 * held / dies.places
        most = max(most, np.ptp(cycles))
    step = 10 * max(held.sum() / dies.places.min(), 1)
    assert most <= threshold + 2 * step


# --- inside a die


@pytest.mark.one_in(5)
@pytest.mark.parametrize("rotate", [1, 2, 5])
def test_planes_of_a_block_wear_alike(rotate):
    """Adam fills three planes of four. Of 8 blocks of 4 pages each die programs 5 a step: 60 steps
    enter its blocks 75 times. No two planes of a block are further apart than the cycles between
    changes; without them the fourth is never erased."""
    params = 5 * DIES * 128
    r = run(params=params, steps=60, ftl__reservoir_rotate=rotate)
    check_bits(r)
    apart = np.ptp(worn(r), axis=2)
    assert worn(r).sum(axis=(1, 2)).min() > 3 * 60 and apart.max() == min(rotate, worn(r).max())
    plain = run(params=params, steps=60, ftl__reservoir_rotate=0)
    assert (worn(plain)[:, :, 3] == 0).all() and np.ptp(worn(plain)[:, :, :3], axis=2).max() == 0
    assert worn(r).sum() == worn(plain).sum()  # three planes of each block, whichever


def test_every_super_page_changes_planes_once_each_time():
    """20 stripes; changes of roles by the blocks' cycles: the pages that moved are three of each
    stripe for each time that its block had turned further than the one before it."""
    r = run(params=5 * DIES * 128, steps=40, ftl__reservoir_rotate=3, payload=False)
    turned = r.account()[0].counters["turned_pages"]
    # 8 blocks a die, 5 of the 32 places a step; the fill took the first 5: 2 blocks. A die's places
    # go round 205 / 32 = 6.4 times: its blocks have 6 or 5 cycles, and turned at 3 and, those that
    # have 6, at 6: some of the last 13 places are past that.
    blocks = r.system.arrays.block.reshape(-1, 16)[:, BLOCKS:]
    assert (blocks["turned"] == blocks["erases"] // 3 % PLANES).all()
    at = np.array([(5 + i) % 32 for i in range(5 * 40)]) // PAGES
    cycles, erases, roles = np.zeros(BLOCKS, int), [], []
    cycles[:2] = 0
    entered = {0, 1}
    for i, b in enumerate(at):
        if (5 + i) % PAGES == 0:
            cycles[b] += 1
            entered.add(int(b))
        erases.append(cycles[b])
        roles.append(cycles[b] // 3 % PLANES)
    before = [0] * 5 + roles[:-5]
    changes = sum(a != b for a, b in zip(roles, before, strict=True))
    assert turned == 3 * DIES * changes and changes > 5


@pytest.mark.parametrize("op", ["momentum", "sgd", "adagrad", "nesterov"])
def test_where_no_plane_is_idle_none_changes_roles(op):
    r = run(op, params=5 * DIES * 128, steps=20, ftl__reservoir_rotate=1)
    check_bits(r)
    assert r.account()[0].counters["turned_pages"] == 0
    assert np.ptp(worn(r), axis=2).max() == 0 and worn(r).max() > 0


CASES = {
    "free": {"pe__dispatch": "free"},
    "double buffered": {"pe__dispatch": "double_buffered"},
    "two devices": {"system__devices": 2},
    "two groups in eight planes": {"flash__planes_per_die": 8},
    "a code on the die": {"pe__protection": "on_die_ecc", "pe__ecc_codeword": "512 B"},
    "the controller's code": {"pe__protection": "controller_ecc", "ecc__codeword": "512 B"},
    "parity over dies": {"pe__rain": 2},
    "records of steps": {"pe__atomicity": "undo"},
    "three dies": {"flash__channels": 1, "flash__dies_per_channel": 3},
    "bad blocks": {"ftl__bad_blocks": 0.2},
}
MOVING = {"ftl__reservoir_rotate": 1, "ftl__reservoir_migrate": 1}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_bits_are_the_same_whoever_moves(changes):
    """Weights and states after 30 steps in which planes change roles with every cycle, and dies
    exchange what they can: those of a run in which nothing moves."""
    moved = run(steps=30, **MOVING, **changes)
    check_bits(moved)
    still = {"ftl__reservoir_rotate": 0, "ftl__reservoir_migrate": 0}
    plain = run(steps=30, **still, **changes)
    for name in moved.path.vectors:
        ours, theirs = (r.path.payload.stored(name).view(np.uint32) for r in (moved, plain))
        assert (ours == theirs).all(), name
    totals = moved.account()[0]  # balanced, or it raises
    assert totals.counters["turned_pages"] > 0
    none = plain.account()[0].counters
    assert none["turned_pages"] == none["lifted_pages"] == none["landed_pages"] == 0


# --- between dies


def spread(r):
    """Largest difference of two dies' mean cycles."""
    good = r.path.good_blocks
    erases = worn(r).sum(axis=2)
    return np.ptp((erases * good).sum(axis=1) / good.sum(axis=1) / PLANES)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("bad", [0, 0.2])
@pytest.mark.parametrize("threshold", [1, 2])
def test_dies_wear_alike(bad, threshold, counts):
    """21 stripes on 4 dies, on which good blocks are as many, or not: without moves dies drift
    apart for ever, with them they stay within the threshold and what one step adds, here one
    cycle at most."""
    steps, common = counts(200, 1000), {"ftl__bad_blocks": bad, "payload": False}
    r = run(steps=steps, ftl__reservoir_migrate=threshold, **common)
    plain = run(steps=steps, ftl__reservoir_migrate=0, **common)
    assert spread(r) <= threshold + 1 < spread(plain)
    c = r.account()[0].counters
    moves = c["landed_pages"] // 3
    assert c["lifted_pages"] == c["landed_pages"] == 3 * moves and moves > 1
    homes = r.path.homes[0]
    assert homes.moved and homes.held().sum() == 21 == int(r.system.arrays.dev.r_mapped[0])
    if not bad:
        assert homes.held().max() == 6  # no die has more to do than before
    assert (r.system.arrays.rmap[0] > 0).sum() == 21


def test_moves_hide_behind_forward_and_backward():
    """30 us, 3 pages, perhaps an erase of 2 ms, and 100 us, while the accelerator works for 15 ms:
    no part of the step is longer for it."""
    r = run(steps=120, payload=False, seconds=10e-3, ftl__reservoir_migrate=1)
    spans = [s for s in r.clock.steps if "levelling" in s]
    assert len(spans) > 1
    for s in spans:
        assert s["step"][0] == s["levelling"][0] < s["levelling"][1] < s["update"][0]
    book = r.account()[1]
    assert book.phases_s["levelling"] == 0.0  # all of it hidden
    assert book.waf > 1


def test_a_die_that_is_behind_catches_up():
    """The first die has been worn before: it does less than the others until they are level."""
    trace = model("adam", 400, (("a", (UNEVEN,), 0),), payload=False)
    r = Run("on_die", preset(LEAVES, ftl__reservoir_migrate=2), trace, Options(), payload=False)
    worn(r)[0] += 8
    for i in range(400):
        r.step(i)
        held = r.path.homes[0].held()
        if spread(r) > 3:
            assert held[0] < held[1:].min() and held.max() == 6
    assert spread(r) <= 3


def test_what_is_tied_to_its_die_stays():
    """Parity over dies, and records die by die."""
    for changes in ({"pe__rain": 2}, {"pe__atomicity": "resume"}):
        r = run(steps=40, ftl__reservoir_migrate=1, payload=False, **changes)
        assert not r.path.migrates and not r.path.homes[0].moved
        assert r.account()[0].counters["lifted_pages"] == 0


# --- bad blocks


def test_bad_blocks_of_the_reservoir_are_left_out():
    """A fifth of them, by seed: never erased, never written; the others come in turn."""
    r = run(steps=40, ftl__bad_blocks=0.2)
    check_bits(r)
    bad = ~r.path.good_blocks
    state = r.system.arrays.block.reshape(-1, 16)[:, BLOCKS:]["state"]
    assert ((state == mapping.BAD) == bad).all() and 0 < bad.sum() < 16
    valid = r.system.arrays.valid.reshape(-1, 16)[:, BLOCKS:]
    assert (worn(r)[bad] == 0).all() and (valid[bad] == 0).all()
    assert (worn(r)[~bad].sum(axis=1) > 0).all()
    cfg = preset(LEAVES, ftl__bad_blocks=0.2)
    assert (reservoir.bad_blocks(cfg, Geometry.of(cfg), 1) == bad).all()


def test_a_model_that_bad_blocks_leave_no_room_for_is_refused():
    """The die with the fewest good blocks has 4 or so: 28 stripes fit 8 blocks less one."""
    params = 28 * DIES * 128
    run(params=params, steps=1)
    with pytest.raises(Unavailable, match=r"ftl.reservoir_fraction = 0.5, ftl.bad_blocks = 0.2"):
        run(params=params, steps=1, ftl__bad_blocks=0.2)


def test_defaults_leave_a_short_run_alone():
    """Nothing turns or moves before a hundred cycles."""
    for name in ("optimstore-r1", "optimstore-r2"):
        ftl = load_preset(name).ftl
        assert (ftl.reservoir_rotate, ftl.reservoir_migrate) == (100, 100)
