"""Queue pairs: closed and open loops, depth, order, TRIM and FLUSH, and what is refused."""

from collections import Counter

import numpy as np
import pytest

from ondie.emu.ftl.invariants import check_between_events
from ondie.emu.ftl.precondition import apply as precondition
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme.request import FLUSH, READ, TRIM, WRITE
from ondie.emu.replay.player import Player, Source
from ondie.emu.units import InputError
from tests.state.both_ways import printed
from tests.state.written import PAGE, config, drive, play, requests, uniform
from tests.timing.harness import NS, TIMES, US, preset


def outstanding(done):
    """Requests outstanding right after each time at which some start."""
    start, end = np.unique(done["start"]), np.sort(done["end"])
    started = np.searchsorted(np.sort(done["start"]), start, side="right")
    return started - np.searchsorted(end, start, side="right")


def test_one_request_by_hand():
    """A read: submit 0.4, link 0.2, firmware 0.3, command 0.1, tR 10, page at 1000 MB/s 4.096,
    decode 1, DRAM twice 1, link 1 + 0.2. A page that nobody has written leaves the flash out:
    0.9 + DRAM 1 + link 1.2. A flush and a TRIM: 0.9, the completion and no data."""
    cfg = preset(TIMES)
    arrays = drive(cfg)
    precondition.fill(arrays, cfg, 8)
    all_ = requests(
        np.array([0, 40 * PAGE, 0, 0]), [PAGE, PAGE, 0, PAGE], [READ, READ, FLUSH, TRIM]
    )
    done = play(arrays, cfg, [all_], depth=1).requests[0]
    took = (done["end"] - done["start"]) / US
    assert took.tolist() == [18.296, 3.1, 0.9, 0.9]


@pytest.mark.parametrize("depth", [1, 7, 300])
def test_a_closed_loop_keeps_its_depth(depth, rng):
    cfg = config()
    arrays = drive(cfg)
    lpns = int(arrays.cfg.lpns[0])
    precondition.fill(arrays, cfg)
    done = play(arrays, cfg, uniform(rng, lpns, 3000, reads=0.5), depth).requests[0]
    waiting = outstanding(done)
    assert (waiting[:-1] == depth).all()  # each completion brings the next request
    assert (done["arrival"] == done["start"]).all()
    assert np.isin(done["start"][depth:], done["end"]).all()


def test_an_open_loop_keeps_the_times(rng):
    cfg = config()
    arrays = drive(cfg)
    precondition.fill(arrays, cfg)
    arrival = np.cumsum(rng.integers(0, 40 * US, 2000))
    reads = requests(rng.integers(0, 900, 2000) * PAGE, PAGE, READ, arrival)
    done = Player(arrays, cfg, [Source(iter([reads]), 1000, False)]).run().requests[0]
    np.testing.assert_array_equal(done["arrival"], arrival)
    np.testing.assert_array_equal(done["start"], arrival)
    assert (done["end"] > done["start"]).all()


def test_a_full_queue_holds_requests_back(rng):
    """All at once, four at a time: they wait in the host, and no longer than they must."""
    cfg = config()
    arrays = drive(cfg)
    precondition.fill(arrays, cfg)
    reads = requests(rng.integers(0, 900, 500) * PAGE, PAGE, READ, 5 * US)
    done = Player(arrays, cfg, [Source(iter([reads]), 4, False)]).run().requests[0]
    assert (done["arrival"] == 5 * US).all()
    assert (done["start"][:4] == 5 * US).all() and (done["start"][4:] > 5 * US).all()
    assert outstanding(done).max() == 4 and np.isin(done["start"][4:], done["end"]).all()


def test_more_requests_than_the_ring_holds(rng):
    """In pieces of all sizes, all of them come back, in order, as they were."""
    cfg = config()
    arrays = drive(cfg)
    n = 150_000
    assert n > 2 * int(arrays.cfg.ring[0])
    given = requests(rng.integers(0, 900, n) * PAGE, PAGE, READ)
    cuts = np.sort(rng.integers(0, n, 20))
    seen = []
    done = play(arrays, cfg, np.split(given, cuts), depth=500,
                progress=lambda count, now: seen.append((count, now)))  # fmt: skip
    (out,) = done.requests
    for name in ("offset", "size", "op"):
        np.testing.assert_array_equal(out[name], given[name])
    np.testing.assert_array_equal(out["tag"], np.arange(n))
    assert done.counters["unmapped_pages"] == done.counters["commands_done"] == n
    assert seen == sorted(seen) and seen[-1] == (n, done.simulated_ps)


def test_two_queue_pairs_share_the_drive(rng):
    cfg = config()
    arrays = drive(cfg, pairs=2)
    precondition.fill(arrays, cfg)
    lpns = int(arrays.cfg.lpns[0])
    sources = [Source(uniform(rng, lpns, n, reads=1), depth, True, start_ps=at)
               for n, depth, at in ((4000, 8, 0), (1000, 2, 3 * US))]  # fmt: skip
    first, second = Player(arrays, cfg, sources).run().requests
    assert (len(first), len(second)) == (4000, 1000)
    assert outstanding(first).max() == 8 and outstanding(second).max() == 2
    assert first["start"].min() == 0 and second["start"].min() == 3 * US
    # Four times as many outstanding get about four times as much.
    assert second["end"].max() == pytest.approx(first["end"].max(), rel=0.1)


def test_nothing_is_issued_after_the_stop(rng):
    cfg = config()
    arrays = drive(cfg)
    lpns = int(arrays.cfg.lpns[0])
    source = Source(uniform(rng, lpns, 10**9), 4, True, stop_ps=2000 * US)
    (done,) = Player(arrays, cfg, [source]).run().requests
    assert len(done) > 4
    assert done["start"].max() <= 2000 * US < done["end"].max()
    arrival = np.arange(100) * US
    reads = requests(0, PAGE, np.zeros(100), arrival)
    source = Source(iter([reads]), 1000, False, stop_ps=50 * US)
    (done,) = Player(drive(cfg), cfg, [source]).run().requests
    assert done["arrival"].max() == 50 * US


def test_trim_unmaps_whole_pages(rng):
    """Beside a set of page numbers; the first and last page of a TRIM may be covered in part."""
    cfg = config(ftl__partial_pages="sectors")
    arrays = drive(cfg)
    lpns = int(arrays.cfg.lpns[0])
    model, given = set(), []
    for _ in range(3000):
        if rng.random() < 0.7:
            lpn, n = int(rng.integers(0, lpns - 4)), int(rng.integers(1, 5))
            given.append((lpn * PAGE, n * PAGE, WRITE))
            model |= set(range(lpn, lpn + n))
        else:
            first, n = int(rng.integers(0, lpns * 8 - 400)), int(rng.integers(1, 400))
            given.append((first * 512, n * 512, TRIM))
            model -= set(range(-(-first // 8), (first + n) // 8))
    offset, size, op = (np.array(x) for x in zip(*given, strict=True))
    done = play(arrays, cfg, [requests(offset, size, op)], depth=1)
    assert set(np.flatnonzero(arrays.l2p[0]).tolist()) == model
    assert set(np.flatnonzero(arrays.sectors[0]).tolist()) == model
    first, last = -(-offset // PAGE), (offset + size) // PAGE
    trimmed = np.maximum(last - first, 0)[op == TRIM].sum()
    assert done.counters["trimmed_pages"] == trimmed > 1000
    check_between_events(arrays, Geometry.of(cfg))


def test_a_trimmed_drive_is_empty():
    """At once, however large; what is read then is zeros, and there is room for all of it again."""
    cfg = config()
    arrays = drive(cfg)
    precondition.fill(arrays, cfg)
    size = int(arrays.cfg.lpns[0]) * PAGE
    offset, length, op = [0, 0, PAGE], [size, 0, PAGE], [TRIM, FLUSH, READ]
    done = play(arrays, cfg, [requests(offset, length, op)], depth=1)
    assert not arrays.l2p.any() and int(arrays.dev.mapped[0]) == 0
    assert done.counters["unmapped_pages"] == 1
    assert (done.requests[0]["end"] - done.requests[0]["start"]).max() < 10 * US


def test_counters_half_way(rng):
    cfg = config()
    arrays = drive(cfg)
    lpns = int(arrays.cfg.lpns[0])
    done = play(arrays, cfg, uniform(rng, lpns, 6000), half=3001)
    done_then = done.half["commands_done"]
    assert 3001 <= done_then <= 3002  # a two-plane program may complete two
    assert done_then <= done.half["program_pages"] < done_then + 33
    assert done.counters["program_pages"] == 6000


@pytest.mark.parametrize("op", [READ, WRITE, TRIM])
def test_past_the_end(op):
    cfg = config()
    arrays = drive(cfg)
    end = int(arrays.cfg.lpns[0]) * PAGE
    play(arrays, cfg, [requests(end - PAGE, PAGE, op)])
    with pytest.raises(InputError, match="beyond the end of the device"):
        play(drive(cfg), cfg, [requests([end - PAGE], 2 * PAGE, op)])


def test_a_request_larger_than_the_drive_can_handle():
    cfg = config(flash__blocks_per_plane="512")
    arrays = drive(cfg)
    pages = int(arrays.cfg.budget[0]) + 1
    with pytest.raises(InputError, match=f"command of {pages} pages: must be at most {pages - 3}"):
        play(arrays, cfg, [requests(0, [pages * PAGE], READ)])


def test_a_drive_that_is_full(rng):
    cfg = config(ftl__over_provisioning="0.02")
    arrays = drive(cfg)
    lpns = int(arrays.cfg.lpns[0])
    with pytest.raises(InputError, match=r"is full: .*(over_provisioning=0.02|collect)"):
        play(arrays, cfg, uniform(rng, lpns, 6 * lpns))


def test_compiled_and_uncompiled_runs_are_alike():
    """Every operation, both loops; the times of all requests, and the map, to the bit."""
    script = (
        "import hashlib, numpy as np\n"
        "from ondie.emu.replay.player import Player, Source\n"
        "from tests.state.written import config, drive, requests, PAGE\n"
        "cfg = config(ftl__partial_pages='sectors', flash__blocks_per_plane=6,\n"
        "             flash__pages_per_block=4, ftl__over_provisioning=0.6, flash__channels=2)\n"
        "rng = np.random.default_rng(3)\n"
        "arrays = drive(cfg, pairs=2)\n"
        "sources = []\n"
        "for closed in (True, False):\n"
        "    op = rng.choice(4, 60, p=[.3, .6, .08, .02])\n"
        "    offset = np.where(op < 3, rng.integers(0, 300, 60) * 512, 0)\n"
        "    size = np.where(op < 3, rng.integers(1, 40, 60) * 512, 0)\n"
        "    given = requests(offset, size, op, np.arange(60) * 20_000_000)\n"
        "    sources.append(Source(iter([given]), 6, closed))\n"
        "done = Player(arrays, cfg, sources).run()\n"
        "text = b''.join(r.tobytes() for r in done.requests) + arrays.l2p.tobytes()\n"
        "print(hashlib.sha256(text).hexdigest(), done.counters)\n"
    )
    found = printed(script)
    assert found[0] == found[1] and "'collections': 0" not in found[0]


def test_every_operation_of_a_mix_is_done_once(rng):
    """Conservation over a mix with collection: what the host asked for is what the drive did."""
    cfg = config()
    arrays = drive(cfg)
    lpns = int(arrays.cfg.lpns[0])
    op = rng.choice([READ, WRITE, TRIM, FLUSH], 60_000, p=[0.3, 0.6, 0.05, 0.05])
    pages = np.where(op == FLUSH, 0, rng.integers(1, 5, len(op)))
    offset = np.where(op == FLUSH, 0, rng.integers(0, lpns - 4, len(op)))
    given = requests(offset * PAGE, pages * PAGE, op)
    done = play(arrays, cfg, [given], depth=64)
    count = Counter(done.requests[0]["op"].tolist())
    assert count == Counter(op.tolist())
    assert done.counters["program_pages"] == pages[op == WRITE].sum()
    read = done.counters["read_pages"] + done.counters["unmapped_pages"]
    assert read == pages[op == READ].sum()
    assert done.counters["trimmed_pages"] == pages[op == TRIM].sum()
    assert done.counters["gc_program_pages"] > 1000
    assert done.simulated_ps >= done.requests[0]["end"].max() > 100 * NS
