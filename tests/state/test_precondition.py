"""Is a preconditioned drive one that was really written? Its books, its WAF, its free blocks."""

import numpy as np
import pytest

from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl import write_frontier
from ondie.emu.ftl.invariants import check_between_events
from ondie.emu.ftl.precondition import apply as precondition
from ondie.emu.ftl.precondition.steady_state import Region
from ondie.emu.nand.geometry import Geometry
from ondie.emu.units import InputError
from tests.state.test_steady import distance
from tests.state.written import config, drive, play, requests, uniform, waf

STATIC = {
    "ftl__placement": "static",
    "ftl__erase": "collected",
    "ftl__open_blocks": "ahead",
    "ftl__allocation": "CWDP",
}
DRIVES = {
    "by plane": {},
    "by die": {"ftl__block_unit": "die"},
    "static": STATIC,
    "static, by die": STATIC | {"ftl__block_unit": "die"},
    "bad blocks": {"ftl__bad_blocks": "0.05"},
    "reservoir": {"ftl__block_unit": "die", "ftl__reservoir_fraction": "0.2"},
    "sectors": {"ftl__partial_pages": "sectors"},
    "mapping units": {"flash__page": "8 KiB", "ftl__mapping_unit": "4 KiB"},
    "mapping units, by die": {
        "flash__page": "16 KiB", "flash__pages_per_block": "16", "ftl__mapping_unit": "4 KiB",
        "ftl__block_unit": "die",
    },
    "mapping units, static": STATIC | {"flash__page": "8 KiB", "ftl__mapping_unit": "4 KiB"},
    "level": {"ftl__wear_dynamic": "true", "ftl__gc_policy": "random"},
    "as it comes": {"ftl__wear_dynamic": "false", "ftl__gc_policy": "fifo"},
}  # fmt: skip


def full_blocks(arrays):
    """Valid pages of the full blocks."""
    return arrays.valid[arrays.block["state"] == mapping.FULL]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", ["fill", "steady"])
@pytest.mark.parametrize("name", DRIVES)
def test_the_books_balance_before_and_after(name, kind, rng):
    cfg = config(**DRIVES[name])
    arrays = drive(cfg)
    precondition.precondition(arrays, cfg, kind, seed=1)
    geometry = Geometry.of(cfg)
    lpns = int(arrays.cfg.lpns[0])
    check_between_events(arrays, geometry)
    assert int(arrays.dev.mapped[0]) == lpns == np.count_nonzero(arrays.l2p)
    assert int(arrays.reg.now[0]) == 0 and not arrays.count.any()
    # Every page is read from flash, none of it is unknown, and the drive goes on to be written.
    everything = requests(np.arange(lpns) * 4096, 4096, 0)
    after = play(arrays, cfg, [everything, *uniform(rng, lpns, lpns, 0.3)])
    assert after.counters["unmapped_pages"] == 0
    assert after.counters["gc_program_pages"] > 0
    check_between_events(arrays, geometry)


@pytest.mark.parametrize(
    "name",
    [n if n == "by die" else pytest.param(n, marks=pytest.mark.soak) for n in DRIVES],
)
def test_a_fill_by_rounds_is_one_page_after_the_other(name):
    """A fill maps whole rounds over the units at once; calls too short for a round cannot."""
    cfg = config(**DRIVES[name])
    whole, single = drive(cfg), drive(cfg)
    lpns = int(whole.cfg.lpns[0])
    assert write_frontier.fill(whole.handle(), 0, 0, lpns, 0) == 0
    record = whole.cfg[0]
    each = int(record.slots * (record.unit_planes if record.multi_plane else 1))
    handle = single.handle()  # takes longer than to fill a few pages
    for lpn in range(0, lpns, each):
        assert write_frontier.fill(handle, 0, lpn, min(each, lpns - lpn), 0) == 0
    for table in ("l2p", "p2l", "valid", "block", "front", "pool", "dev", "free", "count"):
        np.testing.assert_array_equal(getattr(whole, table), getattr(single, table), table)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("changes", [{}, {"ftl__block_unit": "die"}, STATIC])
@pytest.mark.parametrize("op", ["0.2", "0.3"])
def test_as_if_written(op, changes, counts):
    """A drive that was filled and overwritten four times, one write after the other so that
    collection keeps up: its WAF over two drive writes and more, and its blocks after them. Where a
    block is that of a whole die, a victim takes so long that the next block is opened meanwhile:
    often one block more is free afterwards, which adds 5 % to the WAF.
    """
    cfg = config(ftl__over_provisioning=op, **changes)
    drives = counts(2, 8)
    long_run, here, there = [], [], []
    for seed in range(drives):
        rng = np.random.default_rng(seed)
        arrays = drive(cfg)
        lpns = int(arrays.cfg.lpns[0])
        precondition.fill(arrays, cfg)
        writes = 6 * lpns + int(rng.integers(lpns // 2))
        done = play(arrays, cfg, uniform(rng, lpns, writes), depth=1, half=4 * lpns)
        long_run.append(waf(done.counters, done.half))
        there.append((full_blocks(arrays), arrays.pool["free_n"].copy()))
    states = []
    for seed in range(4 * drives):
        arrays = drive(cfg)
        states.append(precondition.set_steady_state(arrays, cfg, seed=seed).waf)
        here.append((full_blocks(arrays), arrays.pool["free_n"].copy()))
    whole_dies = changes.get("ftl__block_unit") == "die"
    assert np.mean(states) == pytest.approx(np.mean(long_run), rel=0.06 if whole_dies else 0.02)
    valid, free = (
        [np.concatenate([one[part] for one in drives]) for drives in (there, here)]
        for part in (0, 1)
    )
    assert distance(*valid) < 0.06
    # 3 blocks of a unit are free; 4 where the next one is open already.
    usual = 4 if changes is STATIC else 3
    for found in free:
        assert np.mean(found == usual) > (0.2 if whole_dies else 0.8)
        assert np.abs(found - usual).max() <= 2


@pytest.mark.one_in(5, start=1)
@pytest.mark.parametrize("depth", [8, 64])
@pytest.mark.parametrize("changes", [{}, {"ftl__block_unit": "die"}, STATIC])
def test_write_amplification_right_after_it(changes, depth, rng):
    """Over one drive write, also with so much at once that collection does not keep up and fewer
    blocks are free than at rest: that of a drive which was written six times over."""
    cfg = config(ftl__over_provisioning="0.25", **changes)
    arrays = drive(cfg)
    lpns = int(arrays.cfg.lpns[0])
    precondition.fill(arrays, cfg)
    done = play(arrays, cfg, uniform(rng, lpns, 6 * lpns), depth, half=3 * lpns)
    soon = []
    for seed in range(2):
        arrays = drive(cfg)
        precondition.set_steady_state(arrays, cfg, seed=seed)
        soon.append(waf(play(arrays, cfg, uniform(rng, lpns, lpns), depth).counters))
    assert np.mean(soon) == pytest.approx(waf(done.counters, done.half), rel=0.025)


def test_hot_and_cold_regions():
    """A tenth of the pages with nine tenths of the writes, in one frontier: cold pages are carried
    along, and the WAF is higher."""
    cfg = config()
    hot = [Region(0.1, 0.9), Region(0.9, 0.1)]
    factors = []
    for regions in (precondition.UNIFORM, hot):
        arrays = drive(cfg)
        factors.append(precondition.set_steady_state(arrays, cfg, regions=regions, seed=2).waf)
        check_between_events(arrays, Geometry.of(cfg))
    assert factors[1] > 1.1 * factors[0]


def test_part_of_the_drive():
    cfg = config(ftl__partial_pages="sectors")
    arrays = drive(cfg)
    precondition.set_steady_state(arrays, cfg, footprint=(100, 9000), seed=2)
    mapped = np.flatnonzero(arrays.l2p[0])
    np.testing.assert_array_equal(mapped, np.arange(100, 9000))
    np.testing.assert_array_equal(arrays.sectors[0, mapped], 0xFF)
    assert not np.delete(arrays.sectors[0], mapped).any()
    check_between_events(arrays, Geometry.of(cfg))


def test_free_rings_are_in_order_of_wear():
    cfg = config(ftl__wear_dynamic="true", ftl__gc_low_blocks="12", ftl__gc_policy="random")
    arrays = drive(cfg)
    precondition.set_steady_state(arrays, cfg, seed=2)
    erases = arrays.block["erases"].reshape(16, -1)
    for u in range(16):
        ring = arrays.free[u, : arrays.pool["free_n"][u]]
        assert len(ring) > 10 and (np.diff(erases[u, ring]) >= 0).all()


def test_older_blocks_are_older():
    """By both clocks that policies look at, and what was filled last is not of the future."""
    cfg = config()
    arrays = drive(cfg)
    precondition.set_steady_state(arrays, cfg, seed=2)
    for u in range(16):
        block = arrays.block[u * 64 : (u + 1) * 64]
        full = block[block["state"] == mapping.FULL]
        order = np.argsort(full["filled"])
        assert (np.diff(full["filled"][order]) > 0).all()
        assert (np.diff(full["written"][order]) > 0).all()
    assert arrays.block["written"].max() == 0
    assert arrays.block["filled"].max() < arrays.dev.filled[0]


def test_a_seed_is_a_drive():
    cfg = config()
    maps = []
    for seed in (3, 3, 4):
        arrays = drive(cfg)
        precondition.precondition(arrays, cfg, "steady", seed=seed)
        maps.append(arrays.l2p.tobytes() + arrays.free.tobytes() + arrays.block.tobytes())
    assert maps[0] == maps[1] != maps[2]


def test_none_is_a_drive_as_it_was_built():
    cfg = config()
    arrays = drive(cfg)
    assert precondition.precondition(arrays, cfg, "none") is None
    assert not arrays.l2p.any() and not arrays.valid.any()


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        ("stady", {}, "'stady': must be one of none, fill, steady"),
        ("steady", {"ftl__over_provisioning": "0.01"}, "would free no space|frees no more space"),
        (
            "fill",
            {"ftl__over_provisioning": "0.001"},
            "ftl.over_provisioning=0.001; use a larger value",
        ),
    ],
)
def test_what_cannot_be(kind, changes, says):
    cfg = config(**changes)
    with pytest.raises(InputError, match=says) as error:
        precondition.precondition(drive(cfg), cfg, kind)
    assert "\n" not in str(error.value)


def test_a_policy_of_the_users_own(tmp_path):
    (tmp_path / "mine.py").write_text("def first(st, u):\n    return -1\n")
    cfg = config(ftl__gc_policy=f"{tmp_path}/mine.py:first")
    with pytest.raises(InputError, match=r"mine.py:first.*greedy.*--precondition fill"):
        precondition.precondition(drive(cfg), cfg, "steady")
