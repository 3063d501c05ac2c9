"""Collection: whom it empties, what it costs, and that no request is ever lost to it."""

import numpy as np
import pytest

from ondie.emu.clock import NEVER
from ondie.emu.engine.core import counters as stats
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl import policies
from ondie.emu.ftl.tables import check_spare
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme import command as queues
from ondie.emu.units import InputError
from tests.state.small import commands, config, counter, device, random_writes

WRITE, TRIM = queues.WRITE, queues.TRIM
LPNS = 358


def filled(**changes):
    """A device written full once, in sequence."""
    d = device(ftl__gc_low_blocks=1, **changes)
    d.submit(commands([(WRITE, lpn, min(16, d.lpns - lpn)) for lpn in range(0, d.lpns, 16)]))
    d.run()
    d.completions()
    return d


def overwrite(d, n, seed=1, longest=1):
    batch = random_writes(np.random.default_rng(seed), n, d.lpns, longest)
    batch["arrival"] = d.now
    d.submit(batch)
    d.run()
    assert len(d.completions()) == n
    d.check()


def test_sequential_overwrites_move_nothing():
    """Whole blocks become invalid in the order they were written: write amplification is 1. Of
    8 blocks the data take 4, the open one 1, and 1 is kept back: 2 are invalid when one is
    needed."""
    d = device(ftl__gc_low_blocks=1, ftl__over_provisioning=0.5)
    for _ in range(8):
        batch = [(WRITE, lpn, min(8, d.lpns - lpn)) for lpn in range(0, d.lpns, 8)]
        d.submit(commands(batch, arrival=d.now))
        d.run()
    assert counter(d, stats.PROGRAM_PAGES) == 8 * d.lpns
    assert counter(d, stats.COLLECTIONS) > 30
    assert counter(d, stats.GC_PROGRAM_PAGES) == 0
    d.check()


def test_random_overwrites_amplify():
    """Under random overwrites collection has to move pages; each move is a read and a program, and
    write amplification is (user + collection) / user of the pages that were programmed."""
    d = filled()
    overwrite(d, 3000)
    user, moved = counter(d, stats.PROGRAM_PAGES), counter(d, stats.GC_PROGRAM_PAGES)
    assert user == LPNS + 3000
    waf = (user + moved) / user
    assert 1.3 < waf < 6
    # What was programmed fills the pages of the blocks that were opened: all but the open rest.
    g = d.geometry
    opened = counter(d, stats.ARRAY_ERASES) + g.dies  # one block per die was erased at the start
    open_rest = opened * g.pages * g.planes - (user + moved)
    streams = d.arrays.cfg.collected[0] + 1
    assert streams == 2  # the host's and collection's
    assert 0 <= open_rest <= streams * g.dies * g.pages * g.planes


def test_more_room_amplifies_less():
    wafs = []
    for room in (0.3, 0.5, 0.7):
        d = filled(ftl__over_provisioning=room)
        overwrite(d, 2000)
        user = counter(d, stats.PROGRAM_PAGES)
        wafs.append((user + counter(d, stats.GC_PROGRAM_PAGES)) / user)
    assert wafs[0] > wafs[1] > wafs[2] >= 1


@pytest.mark.one_in(5)
@pytest.mark.parametrize("initial", ["fresh", pytest.param("steady", marks=pytest.mark.soak)])
def test_erases_equal_blocks_opened(initial):
    """Steady: every super-block but each die's first is erased when it is opened. Fresh: only
    those that have been written before. Blocks in use or full have been opened once since their
    erase."""
    d = filled(ftl__initial=initial)
    overwrite(d, 2000)
    opened = np.zeros(32, int)
    wanted = device(ftl__initial=initial, ftl__gc_low_blocks=1)  # the same again, watched
    batch = np.concatenate(
        [
            commands([(WRITE, lpn, min(16, LPNS - lpn)) for lpn in range(0, LPNS, 16)]),
            random_writes(np.random.default_rng(1), 2000, LPNS),
        ]
    )
    wanted.submit(batch)
    before = np.full((2, 4), -1)
    while wanted.run(1):
        now = wanted.arrays.front.block
        assert now.shape == before.shape  # the host's stream and collection's, on four dies
        for stream, die in np.argwhere((now != before) & (now >= 0)):
            opened[die * 8 + now[stream, die]] += 1
        before = now.copy()
    wanted.check()
    erases = wanted.arrays.block.erases.reshape(-1)
    first_free = 1 if initial == "fresh" else 0
    for block in range(32):
        unpaid = 1 if first_free or block % 8 == 0 else 0
        assert erases[block] == max(opened[block] - unpaid, 0)
    assert wanted.arrays.block.erases.sum() > 60


def test_victims_are_greedy():
    """Whenever a die picks a victim, no full super-block without programs under way has fewer
    valid pages, and the first of the equals is taken."""
    d = filled()
    batch = random_writes(np.random.default_rng(2), 1500, LPNS)
    batch["arrival"] = d.now
    d.submit(batch)
    state, flying = (d.arrays.block[x].reshape(4, 8) for x in ("state", "flying"))
    valid = d.arrays.valid.reshape(4, 8)
    before, seen = state == mapping.VICTIM, 0
    while d.run(1):
        victims = state == mapping.VICTIM
        for die, block in np.argwhere(victims & ~before):
            assert flying[die, block] == 0
            may = (state[die] == mapping.FULL) & (flying[die] == 0)
            may[block] = True
            assert block == int(np.argmin(np.where(may, valid[die], 1 << 20)))
            seen += 1
        before = victims
    assert seen > 50
    d.check()


def test_greedy_on_random_blocks(counts):
    d = device()
    rng = np.random.default_rng(3)
    for _ in range(counts(200, 20_000)):
        unit = int(rng.integers(0, 4))
        state, flying = rng.integers(0, 3, 32), rng.integers(0, 2, 32)
        valid = rng.integers(10, 17, 32)
        d.arrays.block.state, d.arrays.block.flying, d.arrays.valid[:] = state, flying, valid
        own = np.arange(32) // 8 == unit
        may = own & (state == mapping.FULL) & (flying == 0) & (valid < 16)
        best = int(np.argmin(np.where(may, valid, 1 << 20))) if may.any() else -1
        assert policies.greedy(d.state, unit) == best


def test_collection_starts_at_the_threshold():
    """Not before a die's free super-blocks have fallen to gc_low_blocks."""
    for low in (1, 2, 4):
        d = device(ftl__gc_low_blocks=low)
        d.submit(random_writes(np.random.default_rng(4), 4000, LPNS))
        while counter(d, stats.COLLECTIONS) == 0:
            fewest = int(d.arrays.pool.free_n.min())
            assert d.run(1)
        assert fewest in (low, low + 1)


def test_reads_during_collection_see_the_page():
    """Timing only: reads of pages that are being moved complete, and read no page twice."""
    d = filled()
    rng = np.random.default_rng(5)
    n = 1000
    ops = rng.choice([queues.READ, WRITE], n)
    batch = commands(
        [(int(op), int(lpn), 1) for op, lpn in zip(ops, rng.integers(0, LPNS, n), strict=True)],
        arrival=d.now,
    )
    d.submit(batch)
    d.run()
    assert len(d.completions()) == n
    assert counter(d, stats.READ_PAGES) == int((ops == queues.READ).sum())
    assert counter(d, stats.UNMAPPED_PAGES) == 0
    d.check()


def full_device():
    """Over-provisioning of less than the blocks that collection needs: every page valid."""
    return device(ftl__over_provisioning=0.01, ftl__gc_low_blocks=1)


def test_a_full_drive_says_so_in_one_line():
    d = full_device()
    assert d.lpns == 506
    d.submit(commands([(WRITE, lpn, min(8, 506 - lpn)) for lpn in range(0, 506, 8)]))
    with pytest.raises(InputError) as caught:
        d.run()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert "device 0 is full" in message and "ftl.over_provisioning=0.01" in message


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("blocks", "changes"),
    [
        (2, {}),
        (3, {"ftl__write_streams": 2}),
        (4, {"ftl__write_streams": 2, "ftl__gc_streams": "each"}),
        (2, {"ftl__write_streams": 2, "ftl__stream_policy": "one"}),
        (3, {"ftl__program_failures": 1e-9}),
        (3, {"ftl__write_streams": 2, "ftl__block_unit": "plane"}),
    ],
)
@pytest.mark.parametrize("missing", ["nothing", "page", "block"])
def test_the_least_spare_blocks_of_a_drive(blocks, changes, missing):
    """With ``blocks`` spare blocks per unit a drive never fills. With one page less per unit it is
    refused before a replay, and with one block less it does fill."""
    shape = {"flash__blocks_per_plane": 24, "flash__channels": 1} | changes
    geometry = Geometry.of(config(**shape))
    less = {"nothing": 0, "page": 1, "block": geometry.block_pages}[missing]
    spare = blocks * geometry.block_pages - less
    share = spare / geometry.block_pages / 24
    d = device(**shape, ftl__over_provisioning=share)
    assert geometry.native_pages - d.lpns == spare * geometry.units
    rng = np.random.default_rng(1)
    every = [*range(d.lpns), *rng.integers(0, d.lpns, 12 * d.lpns)]
    batch = commands([(WRITE, int(lpn), 1) for lpn in every])
    batch["stream"] = rng.integers(0, d.cfg.ftl.write_streams, len(batch))
    d.submit(batch)
    if less:
        with pytest.raises(InputError, match=f", but {blocks} may be open or reserved"):
            check_spare(d.cfg, geometry, d.arrays.cfg)
    if missing == "block":
        with pytest.raises(InputError, match="device 0 is full"):
            d.run()
    if missing == "nothing":
        check_spare(d.cfg, geometry, d.arrays.cfg)
        d.run()


def test_a_full_drive_is_told_when_it_is_filled():
    """The untimed fill, too, leaves collection its block."""
    from ondie.emu.engine.run.system import System

    system = System(config(ftl__over_provisioning=0.01), ("a",))
    with pytest.raises(InputError, match=r"no free block for \d+ of the 506 pages"):
        system.fill(0, 0, 506)


def test_trim_frees_a_full_drive():
    """Writes that wait on a full drive go on as soon as TRIM has made pages invalid: no request is
    lost because nobody looked again."""
    d = full_device()
    d.submit(commands([(WRITE, lpn, min(8, 506 - lpn)) for lpn in range(0, 506, 8)]))
    with pytest.raises(InputError):
        d.run()
    waiting = d.outstanding
    assert waiting > 0 and d.arrays.dev.stall_head[0] >= 0
    # TRIM must pass the waiting writes: it is there first when they fill the queue only in part.
    d = device(ftl__over_provisioning=0.01, ftl__gc_low_blocks=1, host__io_queue_depth=64)
    d.submit(commands([(WRITE, lpn, min(8, 506 - lpn)) for lpn in range(0, 506, 8)]))
    trim = commands([(TRIM, 0, 256)], arrival=NEVER // 2)
    d.submit(trim)
    d.run()
    assert len(d.completions()) == 65 and d.outstanding == 0
    d.check()


@pytest.mark.parametrize("seed", range(12))
def test_writes_that_wait_are_never_forgotten(seed):
    """Tiny blocks and many commands at once: when writes are refused, every full block is still
    being written. They are taken up again when programs land, although no new write comes by."""
    rng = np.random.default_rng(seed)
    d = device(
        flash__channels=int(rng.integers(1, 3)),
        flash__dies_per_channel=1,
        flash__planes_per_die=int(rng.choice([1, 2])),
        flash__pages_per_block=int(rng.choice([2, 4])),
        flash__blocks_per_plane=11,
        ftl__over_provisioning=0.5,
        ftl__gc_low_blocks=int(rng.integers(1, 5)),
        queue_depth=int(rng.choice([32, 256])),
    )
    for _ in range(3):
        batch = random_writes(rng, 200, d.lpns, longest=min(8, d.lpns // 2))
        batch["arrival"] = d.now
        d.submit(batch)
        d.run()
        assert len(d.completions()) == 200
        d.check()


def test_only_valid_pages_are_read():
    """With the device idle between writes nothing is overwritten on its way: collection reads just
    what it programs again."""
    d = filled()
    for lpn in np.random.default_rng(8).integers(0, LPNS, 400):
        d.submit(commands([(WRITE, int(lpn), 1)], arrival=d.now))
        d.run()
    assert counter(d, stats.GC_READ_PAGES) == counter(d, stats.GC_PROGRAM_PAGES) > 400
    assert counter(d, stats.GC_DROPPED) == 0
    d.check()


def test_a_page_overwritten_on_its_way_is_dropped():
    """Collection reads a page, the host overwrites it meanwhile: the copy is not written, or,
    when it has been, is not mapped. Both are counted, and the books balance."""
    d = filled(host__io_queue_depth=32)
    overwrite(d, 3000, seed=6)
    read, programmed = counter(d, stats.GC_READ_PAGES), counter(d, stats.GC_PROGRAM_PAGES)
    assert counter(d, stats.GC_DROPPED) > 0
    assert read == programmed + counter(d, stats.GC_DROPPED)
