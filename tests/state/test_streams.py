"""Streams: writes that live as long as each other fill blocks of their own."""

import numpy as np
import pytest

from ondie.emu.engine.core import counters as stats
from ondie.emu.ftl import page_map as mapping
from ondie.emu.nvme import command as queues
from ondie.emu.units import InputError
from tests.state.small import commands, counter, device

WRITE, READ = queues.WRITE, queues.READ
SHAPE = {
    "flash__channels": 1,
    "flash__dies_per_channel": 1,
    "flash__planes_per_die": 2,
    "flash__blocks_per_plane": 64,
    "flash__pages_per_block": 16,
    "ftl__block_unit": "plane",
    "ftl__over_provisioning": 0.2,
    "ftl__gc_low_blocks": 1,
    "host__io_queue_depth": 16,
}


def hot_and_cold(lpns, n, rng):
    """90 % of the writes to 10 % of the pages: (pages, 0 = hot, 1 = cold)."""
    hot = rng.random(n) < 0.9
    edge = lpns // 10
    pages = np.where(hot, rng.integers(0, edge, n), rng.integers(edge, lpns, n))
    return pages, (~hot).astype(int)


def written(n=16_000, **changes):
    """A drive written full, then hot and cold; (device, WAF of the second half)."""
    d = device(**(SHAPE | changes))
    streams = int(d.arrays.cfg.streams[0])
    rng = np.random.default_rng(1)
    fill = commands([(WRITE, int(lpn), 1) for lpn in rng.permutation(d.lpns)])
    fill["stream"] = np.minimum(fill["lpn"] >= d.lpns // 10, streams - 1)
    d.submit(fill)
    d.run()
    wafs = []
    for _ in range(2):
        pages, which = hot_and_cold(d.lpns, n // 2, rng)
        batch = commands([(WRITE, int(lpn), 1) for lpn in pages], arrival=d.now)
        batch["stream"] = np.minimum(which, streams - 1)
        before = counter(d, stats.GC_PROGRAM_PAGES)
        d.submit(batch)
        d.run()
        wafs.append(1 + (counter(d, stats.GC_PROGRAM_PAGES) - before) / len(batch))
        d.check()
    return d, wafs[1]


def test_streams_keep_hot_and_cold_apart():
    """By the host's word, and by the drive's own guess: less is moved than with one stream. With
    two streams that nobody tells apart nothing is gained. A guess gains little beside being told:
    collection already keeps what it moves apart from what the host writes."""
    waf = {
        "one stream": written()[1],
        "by command": written(ftl__write_streams=2)[1],
        "told, each": written(ftl__write_streams=2, ftl__gc_streams="each")[1],
        "by age, each": written(
            ftl__write_streams=2, ftl__stream_policy="by_age", ftl__gc_streams="each"
        )[1],
        "one of two": written(ftl__write_streams=2, ftl__stream_policy="one")[1],
    }
    one = waf.pop("one stream") - 1  # pages moved per page written
    moved = {how: (w - 1) / one for how, w in waf.items()}
    assert moved["told, each"] < 0.8 and moved["by command"] < 0.95, moved
    assert moved["by age, each"] < 0.99 and moved["one of two"] > 0.97, moved


@pytest.mark.parametrize("each", ["one", "each"])
def test_blocks_hold_one_stream(each):
    """Of every block that host writes filled all pages are of one temperature; of collected
    blocks, too, when each stream has its own."""
    d, _ = written(4000, ftl__write_streams=2, ftl__gc_streams=each)
    block, g = d.arrays.block, d.geometry
    lpns = np.flatnonzero(d.arrays.l2p[0])
    at = (d.arrays.l2p[0, lpns].astype(int) - 1) // g.block_pages
    cold = lpns >= d.lpns // 10
    mixed = {b for b in np.unique(at) if len(set(cold[at == b])) > 1}
    stream = block.stream[list(mixed)] if mixed else np.zeros(0, int)
    if each == "each":
        assert not mixed
        for b in np.unique(at):  # 0 and 2 are hot, 1 and 3 cold
            assert block.stream[b] % 2 == cold[at == b][0]
    else:
        assert mixed and set(stream.tolist()) == {2}


def test_every_stream_has_its_open_block():
    d = device(**(SHAPE | {"ftl__write_streams": 4}))
    batch = commands([(WRITE, 8 * i, 2) for i in range(4)])
    batch["stream"] = range(4)
    d.submit(batch)
    d.run()
    front = d.arrays.front.block
    assert (front[:4] >= 0).all() and (front[4] < 0).all()
    for u in range(2):
        assert len(set(front[:4, u].tolist())) == 4
    opened = d.arrays.block.state == mapping.OPEN
    assert sorted(d.arrays.block.stream[opened].tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_stream_that_the_drive_does_not_have_is_refused():
    d = device(**(SHAPE | {"ftl__write_streams": 3}))
    for stream in (-1, 3):
        batch = commands([(WRITE, 0, 1)])
        batch["stream"] = stream
        with pytest.raises(InputError, match=rf"command 0: stream = {stream}: must be from 0 to 2"):
            d.submit(batch)
    batch["stream"] = 2
    d.submit(batch)
    d.run()
    d.check()
