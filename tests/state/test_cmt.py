"""Does the cached mapping table cost what DFTL's costs, and lose nothing however small it is?

Counts are held against a plain model of DFTL in Python; what flash knows of the map is followed
page by page; the device stays a dictionary of pages while entries come and go all the time.
"""

import os
import subprocess
import sys
from collections import OrderedDict

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.run.system import System
from ondie.emu.ftl import cached_entries
from ondie.emu.ftl.invariants import check_between_events
from ondie.emu.nvme import command as queues
from ondie.emu.units import InputError
from tests.state.small import commands, config, counter, device, random_writes
from tests.state.test_dictionary import FEATURES, ITEM, LPNS, Pages
from tests.timing.harness import Rows

READ, WRITE, TRIM = queues.READ, queues.WRITE, queues.TRIM
ENTRY = 3  # bytes: two page numbers of 11 bits
SPAN = 256  # entries of 2 bytes in a page of 512


def sized(entries, **changes):
    """A drive of 2048 pages, 1433 logical ones, and as many cached entries."""
    changes = {"flash__blocks_per_plane": 32, "ftl__gc_low_blocks": 1} | changes
    return device(ftl__map_cache=f"{entries * ENTRY} B", **changes)


def one_by_one(d, items):
    for item in items:
        d.submit(commands([item], arrival=d.now))
        d.run()


class Dftl:
    """DFTL by the book, one page at a time: entries by LRU, dirty ones of a page written back
    together when one of them has to leave."""

    def __init__(self, entries):
        self.entries, self.cache, self.on_flash = entries, OrderedDict(), set()
        self.hits = self.misses = self.reads = self.programs = 0

    def _insert(self, lpn):
        if len(self.cache) == self.entries:
            old, dirty = self.cache.popitem(last=False)
            if dirty:
                page = old // SPAN
                for other in self.cache:
                    if other // SPAN == page:
                        self.cache[other] = False
                self.reads += page in self.on_flash
                self.programs += 1
                self.on_flash.add(page)
        self.cache[lpn] = False

    def use(self, lpn, write):
        if lpn in self.cache:
            self.hits += 1
            self.cache.move_to_end(lpn)
        else:
            self.misses += 1
            self.reads += lpn // SPAN in self.on_flash
            self._insert(lpn)
        if write:
            self.cache[lpn] = True


@pytest.mark.parametrize("entries", [1, 2, 7, 50, 400])
def test_it_is_dftl(entries, counts):
    """One page at a time, random reads and writes: hits, misses, pages read and written back are
    those of the model. Nothing is collected, so nothing else touches the map."""
    d = sized(entries, ftl__over_provisioning=0.3)
    assert (d.arrays.cfg.map_entries[0], d.arrays.cfg.map_span[0]) == (entries, SPAN)
    model = Dftl(entries)
    rng = np.random.default_rng(entries)
    hot = rng.integers(0, d.lpns, 60)
    n = counts(500, 700)
    for _ in range(n):
        lpn = int(rng.choice(hot)) if rng.random() < 0.5 else int(rng.integers(0, d.lpns))
        write = rng.random() < 0.6
        one_by_one(d, [(WRITE if write else READ, lpn, 1)])
        model.use(lpn, write)
        assert counter(d, stats.MAP_HITS) == model.hits
        assert counter(d, stats.MAP_MISSES) == model.misses
        assert counter(d, stats.MAP_PROGRAM_PAGES) == model.programs
        assert counter(d, stats.MAP_READ_PAGES) == model.reads
    assert counter(d, stats.COLLECTIONS) == 0
    assert model.programs > 0 or entries == 400
    d.check()


def test_a_cache_of_the_whole_map_costs_nothing():
    """Every entry has its place: each is missed once, before it is on flash, and none leaves."""
    d = sized(10_000)
    assert d.arrays.cfg.map_entries[0] == d.lpns
    rng = np.random.default_rng(3)
    for _ in range(3):
        batch = random_writes(rng, 600, d.lpns, 8)
        batch["arrival"] = d.now
        d.submit(batch)
        d.run()
    assert counter(d, stats.COLLECTIONS) > 0
    assert counter(d, stats.MAP_READ_PAGES) == counter(d, stats.MAP_PROGRAM_PAGES) == 0
    d.check()


def test_commands_that_want_one_page_wait_once():
    """32 reads of one translation page at once: it is read once, and all of them miss; behind them
    all hit."""
    cfg = config(
        ftl__map_cache="300 B",
        flash__blocks_per_plane=32,
        host__io_queue_depth=32,
        host__io_submit="0 us",
        frontend__command="0 us",
    )
    system = System(cfg, ("a",))
    system.fill(0, 0, 200)
    out = Rows()
    for i in range(32):
        out.one(resource=2, kind=READ, lpn=5 * i, bytes_out=512)
    system.run([out.take()])
    count = system.arrays.count[0]
    assert count[stats.MAP_READ_PAGES] == 1
    assert (count[stats.MAP_MISSES], count[stats.MAP_HITS]) == (32, 0)
    for i in range(32):
        out.one(resource=2, kind=READ, lpn=5 * i, bytes_out=512)
    system.run([out.take()])
    assert count[stats.MAP_READ_PAGES] == 1 and count[stats.MAP_HITS] == 32


def test_a_long_read_splits_by_what_is_known():
    """Pages 0 .. 15 with 4 .. 7 cached: two runs wait, for one reading of one page."""
    system = System(config(ftl__map_cache="300 B", flash__blocks_per_plane=32), ("a",))
    system.fill(0, 0, 16)
    out = Rows()
    first = out.one(resource=2, kind=READ, lpn=4, bytes_out=4 * 512)
    out.one(resource=2, kind=READ, lpn=0, bytes_out=16 * 512, after0=first)
    system.run([out.take()])
    count = system.arrays.count[0]
    assert count[stats.MAP_READ_PAGES] == 2
    assert (count[stats.MAP_MISSES], count[stats.MAP_HITS]) == (16, 4)
    assert count[stats.READ_PAGES] == 20


def test_a_miss_may_move_fewer_bytes():
    """``ftl.map_read``: a miss moves so much of the translation page, writing back all of it."""
    d = sized(4, ftl__map_read="64 B")
    one_by_one(d, [(WRITE, 0, 1), *((READ, lpn, 1) for lpn in (300, 600, 900, 1200))])
    assert counter(d, stats.MAP_READ_PAGES) == 0 and counter(d, stats.MAP_PROGRAM_PAGES) == 1
    # Pages 1 .. 5 miss, at 64 bytes each; the last drives out page 1, which was written.
    one_by_one(d, [(WRITE, 1, 1), *((READ, lpn, 1) for lpn in (2, 3, 4, 5))])
    assert counter(d, stats.MAP_READ_PAGES) == 6 and counter(d, stats.MAP_PROGRAM_PAGES) == 2
    assert counter(d, stats.UNASKED_OUT_BYTES) == 5 * (512 - 64)
    d.check()


@pytest.mark.parametrize("most", [1, 2])
def test_pages_are_written_back_in_turn(most):
    """``ftl.map_writes`` of them are on their way at once; while another is due, misses wait."""
    d = sized(1, ftl__map_writes=most, host__io_queue_depth=32, ftl__over_provisioning=0.5)
    a, writing, listed = d.arrays, 0, 0
    d.submit(random_writes(np.random.default_rng(4), 300, d.lpns))
    while d.run(1):
        maps = a.maps[0]
        writing = max(writing, int(maps.writing))
        listed += int((a.tpage.asked == cached_entries.LISTED).sum())
        assert maps.first > 0 or maps.miss_first == 0
    assert writing == most and listed > 0
    d.check()


# --- what flash knows


class OnFlash:
    """The map as the translation pages on flash have it: content is taken when a page is composed,
    and is there when its program is done."""

    def __init__(self, d):
        self.d, self.c = d, d.arrays.cfg[0]
        self.known = np.zeros(d.lpns, np.int64)
        self.leaving: dict[int, np.ndarray] = {}
        self.place = np.zeros(int(self.c.tpages), np.int64)
        self.written = 0

    def follow(self):
        """Run to the end, event by event; behind each, flash or a dirty entry has every place."""
        a, span, d = self.d.arrays, int(self.c.map_span), self.d
        while d.run(1):
            table = a.l2p[0, : d.lpns].astype(np.int64)
            for m in range(int(self.c.tpages)):
                mine = slice(m * span, (m + 1) * span)
                if m in self.leaving and a.tpage.state[m] != cached_entries.LEAVING:
                    self.known[mine] = self.leaving.pop(m)
                    self.written += 1
                if m not in self.leaving and a.tpage.state[m] == cached_entries.LEAVING:
                    self.leaving[m] = table[mine].copy()
            differs = set(np.flatnonzero(table != self.known).tolist())
            used = a.entry[: int(a.maps.used[0])]
            excused = set(used.lpn[used.dirty == 1].tolist())
            for m in np.flatnonzero((a.tpage.state != cached_entries.KEPT)[: int(self.c.tpages)]):
                excused |= set(range(m * span, (m + 1) * span))
            assert differs <= excused, sorted(differs - excused)[:5]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("entries", [1, 5, 60])
def test_flash_knows_what_the_cache_does_not(entries, counts):
    """Writes, TRIMs and collection with few entries: wherever a page is, its translation page on
    flash says so, unless a dirty entry does, or the page is just being written back."""
    d = sized(entries, ftl__over_provisioning=0.5)
    seen = OnFlash(d)
    rng = np.random.default_rng(entries)
    d.submit(commands([(WRITE, lpn, min(8, d.lpns - lpn)) for lpn in range(0, d.lpns, 8)]))
    seen.follow()
    for _ in range(counts(2, 20)):
        batch = random_writes(rng, 150, d.lpns, 4)
        batch["op"] = np.where(rng.random(150) < 0.8, WRITE, TRIM)
        batch["arrival"] = d.now
        d.submit(batch)
        seen.follow()
        d.check()
    assert seen.written == counter(d, stats.MAP_PROGRAM_PAGES) > 10


def test_translation_pages_are_collected():
    """The drive is written once, then its first 300 pages, with few entries. Old blocks are
    emptied first: what is valid in those of translation pages moves to one of their own kind."""
    d = sized(2, ftl__over_provisioning=0.4, ftl__gc_policy="cost_benefit")
    c, a = d.arrays.cfg[0], d.arrays
    once = commands([(WRITE, lpn, min(4, d.lpns - lpn)) for lpn in range(0, d.lpns, 4)])
    d.submit(np.concatenate([once, random_writes(np.random.default_rng(2), 1500, 300)]))
    moved = 0
    before, written = a.l2p[0, d.lpns :].copy(), 0
    while d.run(1):
        now = counter(d, stats.MAP_PROGRAM_PAGES)
        changed = np.flatnonzero(a.l2p[0, d.lpns :] != before)
        moved += len(changed) - (now - written)
        for m in changed:
            ppn = int(a.l2p[0, d.lpns + m]) - 1
            assert a.block.stream[ppn // c.block_pages] == c.map_stream
            assert a.p2l[0, ppn] == d.lpns + m + 1
        before, written = a.l2p[0, d.lpns :].copy(), now
    assert moved >= 4 and written > 10 * c.block_pages
    data = a.l2p[0, : d.lpns].astype(np.int64)
    blocks = (data[data > 0] - 1) // c.block_pages
    assert (a.block.stream[np.unique(blocks)] != c.map_stream).all()
    d.check()


# --- nothing is lost


@hypothesis.given(
    st.lists(st.lists(ITEM, min_size=1, max_size=24), min_size=1, max_size=4),
    st.sets(st.sampled_from(FEATURES)),
    st.sampled_from((1, 2, 3, 10, 200)),
    st.sampled_from((1, 3, 32)),
    st.sampled_from((1, 16)),
    st.sampled_from(("dynamic", "static")),
    st.integers(0, 2**32 - 1),
)
def test_pages_are_a_dictionary(batches, off, entries, depth, backs, placement, seed):
    """With payload: the drive is written full and half of it overwritten, then come the drawn
    commands; depths and caches small enough that every entry is fought for."""
    pages = Pages(
        ftl__map_cache=f"{entries * 3} B",
        flash__blocks_per_plane=16,
        ftl__over_provisioning=0.65,
        ftl__map_writes=backs,
        ftl__placement=placement,
        host__io_queue_depth=depth,
        **dict.fromkeys(off, "false"),
    )
    rng = np.random.default_rng(seed)
    order = [*range(0, LPNS, 16), *rng.permutation(LPNS - 16)[:12].tolist()]
    for part in np.array_split(order, 4):
        pages.batch([(WRITE, int(lpn), 16) for lpn in part])
    for items in batches:
        pages.batch(items)
    assert counter(pages.device, stats.MAP_PROGRAM_PAGES) > 0 or entries == 200
    pages.compare()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("priority", ["background", "shared", "urgent", "exclusive"])
@pytest.mark.parametrize("unit", ["die", "plane"])
def test_it_goes_with_every_collection(priority, unit, counts):
    """Collection of each priority, copy-back, partial pages, streams, failures: nothing is lost."""
    rng = np.random.default_rng(5)
    for more in (
        {"ftl__gc_copyback": "true"},
        {"ftl__partial_pages": "sectors"},
        {"ftl__erase": "collected", "ftl__gc_parallel": 2, "ftl__gc_low_blocks": 3},
        {"ftl__program_failures": 0.0005, "ftl__over_provisioning": 0.4},
        {"ftl__write_streams": 2, "ftl__gc_streams": "each", "ftl__open_blocks": "ahead"},
    ):
        d = sized(6, ftl__gc_priority=priority, ftl__block_unit=unit, **more)
        d.submit(commands([(WRITE, lpn, 4) for lpn in range(0, d.lpns - 3, 4)]))
        d.run()
        d.completions()
        for _ in range(counts(2, 10)):
            batch = random_writes(rng, 500, d.lpns - 50, 3)
            batch["op"] = rng.choice([WRITE, WRITE, READ, TRIM], 500)
            batch["arrival"] = d.now
            d.submit(batch)
            d.run()
            assert len(d.completions()) == 500
            check_between_events(d.arrays, d.geometry)
            if "ftl__erase" in more:  # of the others, not every byte is a whole page's
                d.check()
        assert counter(d, stats.COLLECTIONS) > 0 and counter(d, stats.MAP_PROGRAM_PAGES) > 0


SCRIPT = """
import sys
import numpy as np
sys.path.insert(0, {root!r})
from tests.state.test_cmt import repeat
d = repeat()
np.savez({file!r}, **{{n: np.asarray(getattr(d.arrays, n)).view(np.ndarray) for n in {names!r}}})
"""
NAMES = ("count", "l2p", "block", "entry", "tpage", "maps", "row")


def repeat():
    d = sized(9)
    rng = np.random.default_rng(8)
    for _ in range(2):
        batch = random_writes(rng, 120, d.lpns, 6)
        batch["op"] = rng.choice([WRITE, WRITE, READ, TRIM], 120)
        batch["arrival"] = d.now
        d.submit(batch)
        d.run()
    return d


@pytest.mark.soak
def test_uncompiled(tmp_path, root):
    """The same functions without Numba: the same state, entry by entry, the same times."""
    file = str(tmp_path / "state.npz")
    script = SCRIPT.format(root=str(root), file=file, names=NAMES)
    env = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, env=env, cwd=root)
    compiled, plain = repeat(), np.load(file)
    for name in NAMES:
        assert np.asarray(getattr(compiled.arrays, name)).tobytes() == plain[name].tobytes(), name


# --- bad input


def test_a_cache_without_room_for_an_entry():
    with pytest.raises(InputError, match="ftl.map_cache = 1 B: must be at least 3 B"):
        device(ftl__map_cache="1 B")


def test_a_drive_without_room_for_the_map():
    with pytest.raises(InputError, match="512 logical pages and their 2 translation pages"):
        device(ftl__map_cache="30 B", ftl__over_provisioning=0)


def test_a_full_drive_is_told():
    """Translation pages need blocks too: when collection gains nothing any more, the run ends with
    words."""
    d = device(ftl__map_cache="3 B", ftl__over_provisioning=0.1, ftl__gc_low_blocks=1)
    d.submit(commands([(WRITE, lpn, 1) for lpn in range(d.lpns)]))
    with pytest.raises(InputError, match="is full: writes wait for a free block"):
        d.run()
