"""Blocks that are bad from the factory, and blocks that become so."""

import numpy as np
import pytest

from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.core.conservation import Imbalance
from ondie.emu.ftl import page_map as mapping
from ondie.emu.nvme import command as queues
from ondie.emu.nvme import injected_faults
from ondie.emu.units import InputError
from tests.state.small import PAGE, commands, config, counter, device, random_writes

READ, WRITE = queues.READ, queues.WRITE
SHAPE = {
    "flash__blocks_per_plane": 20,
    "ftl__over_provisioning": 0.5,
    "host__io_queue_depth": 16,
}
UNITS = pytest.mark.parametrize("unit", ["die", "plane"])


def overwritten(n, seed=1, **changes):
    d = device(**(SHAPE | changes))
    d.submit(random_writes(np.random.default_rng(seed), n, d.lpns, longest=4))
    return d


def grown(d):
    """Blocks that have become bad, which were not from the start."""
    return np.flatnonzero(d.arrays.block.state == mapping.BAD)


@UNITS
def test_factory_bad_blocks_are_never_used(unit):
    """A tenth of the blocks, known by the seed; never erased, never open, nothing in them."""
    d = overwritten(4000, ftl__bad_blocks=0.1, ftl__block_unit=unit)
    bad = grown(d)
    blocks = len(d.arrays.block)
    assert 0.03 * blocks < len(bad) < 0.2 * blocks
    same = device(**(SHAPE | {"ftl__bad_blocks": 0.1, "ftl__block_unit": unit}))
    assert (grown(same) == bad).all()
    g = d.geometry
    while d.run(500):
        d.check()
        assert (d.arrays.block.state[bad] == mapping.BAD).all()
    assert counter(d, stats.COLLECTIONS) > 50 and counter(d, stats.BAD_BLOCKS) == 0
    assert (grown(d) == bad).all() and not d.arrays.block.erases[bad].any()
    pages = (bad[:, None] * g.block_pages + np.arange(g.block_pages)).ravel()
    assert not d.arrays.p2l[0, pages].any()
    good = np.setdiff1d(np.arange(blocks), bad)
    assert d.arrays.block.erases[good].min() > 0


@UNITS
@pytest.mark.parametrize("how", ["moves", "copies"])
def test_a_failed_program_goes_elsewhere_and_its_block_is_retired(unit, how):
    """Every failure closes its block; what it holds moves out, and nothing is written to it any
    more. The bytes of all pages are right, and every page was programmed once beside failures."""
    d = device(
        payload=True,
        **SHAPE | {
            "ftl__program_failures": 0.004, "ftl__block_unit": unit,
            "ftl__gc_copyback": "true" if how == "copies" else "false",
            "ftl__over_provisioning": 0.6, "flash__blocks_per_plane": 32,
        },
    )  # fmt: skip
    rng = np.random.default_rng(2)
    d.buffer = np.arange(d.lpns, dtype=np.int64).repeat(PAGE // 8).view(np.uint8).reshape(-1, PAGE)
    retired: dict[int, int] = {}
    for _ in range(20):
        batch = random_writes(rng, 60, d.lpns, longest=4)
        batch["payload_slot"], batch["arrival"] = batch["lpn"], d.now
        d.submit(batch)
        d.run()
        d.check()
        for b in grown(d).tolist():
            retired.setdefault(b, int(d.arrays.block.erases[b]))
    failures, bad = counter(d, stats.PROGRAM_FAILURES), counter(d, stats.BAD_BLOCKS)
    assert failures > 10 and 0 < bad <= failures
    assert bad == len(retired) == len(grown(d))
    assert all(d.arrays.block.erases[b] == erases for b, erases in retired.items())
    assert counter(d, stats.FAILED_PAGES) >= failures
    encoded = counter(d, stats.PROGRAM_PAGES) + counter(d, stats.FAILED_PAGES)
    encoded += counter(d, stats.GC_PROGRAM_PAGES) - counter(d, stats.COPYBACK_PAGES)
    assert counter(d, stats.ECC_ENCODED_PAGES) == encoded
    for lpn in np.flatnonzero(d.arrays.l2p[0]).tolist():
        assert (d.stored(lpn) == d.buffer[lpn]).all()


def test_collection_keeps_a_block_more_where_programs_fail():
    """A failure may spoil the only free block. The threshold is not below what is kept."""
    for chance, kept in ((0, 1), (1e-6, 2)):
        c = device(**SHAPE | {"ftl__program_failures": chance, "ftl__gc_low_blocks": 1}).arrays.cfg
        assert c.gc_reserve[0] == c.gc_low[0] == kept


def test_a_block_is_retired_although_space_is_not_short():
    """One failure on a drive that is nearly empty: its block is emptied at once."""
    d = device(**SHAPE | {"ftl__program_failures": 0.02, "ftl__block_unit": "plane"})
    d.submit(commands([(WRITE, lpn, 1) for lpn in range(100)]))
    d.run()
    d.check()
    assert counter(d, stats.PROGRAM_FAILURES) > 0
    assert (d.arrays.pool.free_n > d.arrays.cfg.gc_low[0] + 2).all()
    assert counter(d, stats.BAD_BLOCKS) == counter(d, stats.COLLECTIONS) > 0
    assert not d.arrays.pool.retiring.any()


def test_a_failed_program_retires_no_pinned_block():
    """Pages that were read before they were written keep their blocks: blocks in which programs
    fail are collected around them."""
    d = device(
        **SHAPE | {
            "ftl__program_failures": 0.02, "ftl__unwritten": "as_written",
            "flash__blocks_per_plane": 40, "ftl__over_provisioning": 0.7,
        },
    )  # fmt: skip
    some = np.arange(0, d.lpns, 16)
    d.submit(commands([(READ, int(lpn), 1) for lpn in some]))
    d.run()
    places = d.arrays.l2p[0, some].copy()
    pinned = np.flatnonzero(d.arrays.block.retire == mapping.PINNED)
    assert pinned.size and (places > 0).all()
    others = np.setdiff1d(np.arange(d.lpns), some)
    rng = np.random.default_rng(3)
    lpns = rng.choice(others, 1500).tolist()
    batch = commands([(WRITE, lpn, 1) for lpn in lpns])
    batch["arrival"] = d.now
    d.submit(batch)
    d.run()
    d.check()
    assert counter(d, stats.BAD_BLOCKS) > 0
    assert (d.arrays.block.state[pinned] == mapping.FULL).all()
    np.testing.assert_array_equal(d.arrays.l2p[0, some], places)


def test_a_block_that_is_pinned_no_longer_waits_to_be_retired():
    """Free blocks are marked as failed, and pages that are read before they were written then come
    into them: they stay, and are no longer counted as blocks to be retired."""
    d = device(**SHAPE | {"ftl__unwritten": "as_written", "ftl__program_failures": 1e-9})
    d.arrays.dev.spare[0] = 200
    marked = injected_faults.fail_spare_blocks(d.arrays, d.geometry)
    waiting = int(d.arrays.pool.retiring.sum())
    assert marked == waiting > 0
    d.submit(commands([(READ, lpn, 1) for lpn in range(0, d.lpns, 4)]))
    d.run()
    d.check()
    retire = d.arrays.block.retire
    assert (retire == mapping.PINNED).any()
    assert d.arrays.pool.retiring.sum() == (retire == mapping.FAILED_PROGRAM).sum() < waiting


@UNITS
def test_a_failed_erase_retires_its_block(unit):
    """Each failure takes one block out of use, empty; the erase is counted as work done."""
    d = overwritten(
        3000, ftl__erase_failures=0.01, ftl__erase="collected", ftl__block_unit=unit,
        ftl__over_provisioning=0.6, flash__blocks_per_plane=32,
    )  # fmt: skip
    d.run()
    d.check()
    bad = grown(d)
    assert counter(d, stats.BAD_BLOCKS) == len(bad) > 0
    assert (d.arrays.block.erases[bad] > 0).all() and not d.arrays.valid[bad].any()
    assert counter(d, stats.PROGRAM_FAILURES) == 0


def test_failures_come_at_their_rate():
    d = overwritten(
        6000, ftl__program_failures=0.003, ftl__block_unit="plane",
        ftl__over_provisioning=0.7, flash__blocks_per_plane=200,
    )  # fmt: skip
    d.run()
    tried = counter(d, stats.ARRAY_PROGRAMS)
    expected = 0.003 * tried
    assert tried > 10_000
    assert abs(counter(d, stats.PROGRAM_FAILURES) - expected) < 5 * np.sqrt(expected)


@pytest.mark.parametrize(
    "how",
    [{"ftl__program_failures": 0.05}, {"ftl__erase_failures": 0.2, "ftl__erase": "collected"}],
)
def test_a_drive_without_good_blocks_says_so(how):
    """In one line, with their number; and what it holds stays right."""
    d = device(payload=True, **SHAPE | how)
    d.buffer = np.arange(d.lpns, dtype=np.int64).repeat(PAGE // 8).view(np.uint8).reshape(-1, PAGE)
    batch = random_writes(np.random.default_rng(4), 8000, d.lpns)
    batch["payload_slot"] = batch["lpn"]
    d.submit(batch)
    with pytest.raises(InputError) as caught:
        d.run()
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and "device 0 is full" in message
    assert f"{len(grown(d))} of its {len(d.arrays.block)} blocks are bad" in message
    d.check()
    held = np.flatnonzero(d.arrays.l2p[0]).tolist()
    assert len(held) > 0.5 * d.lpns
    for lpn in held:
        assert (d.stored(lpn) == d.buffer[lpn]).all()


def test_too_few_good_blocks_are_refused():
    with pytest.raises(InputError) as caught:
        device(**SHAPE | {"ftl__bad_blocks": 0.7})
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert "ftl.bad_blocks = 0.7" in message and "logical pages" in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ftl__bad_blocks": 1.0}, "ftl.bad_blocks"),
        ({"ftl__program_failures": 1.5}, "ftl.program_failures"),
        ({"ftl__erase_failures": 1.0, "ftl__erase": "collected"}, "ftl.erase_failures"),
        ({"ftl__erase_failures": 0.1, "ftl__erase": "open"}, 'erase = "collected"'),
    ],
)
def test_chances_that_are_none_are_refused(changes, words):
    with pytest.raises(InputError) as caught:
        config(**changes)
    assert words in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_the_books_notice_failures_that_are_miscounted():
    d = overwritten(1500, ftl__program_failures=0.01, ftl__block_unit="plane",
                    ftl__over_provisioning=0.7)  # fmt: skip
    d.run()
    d.check()
    assert counter(d, stats.FAILED_PAGES) > 0
    d.arrays.count[0, stats.FAILED_PAGES] -= 1
    with pytest.raises(Imbalance, match="into the dies over the channels|pages encoded"):
        d.check()
