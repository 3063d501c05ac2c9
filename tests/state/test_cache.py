"""Is a drive with a data cache still a dictionary of pages, and are its promises kept when the
power goes: what a FLUSH or FUA has confirmed is on flash, what was in DRAM alone is gone?
"""

import os
import subprocess
import sys
from collections import OrderedDict

import hypothesis
import numpy as np
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.run import build
from ondie.emu.nand import page_store as store
from ondie.emu.nvme import command as queues
from ondie.emu.nvme import request as requests
from ondie.emu.replay import player as replay
from ondie.emu.units import InputError
from tests.state import test_ftl_machine as machine
from tests.state.small import PAGE, commands, config, counter, device, random_writes

READ, WRITE, TRIM, FLUSH = queues.READ, queues.WRITE, queues.TRIM, queues.FLUSH
MODES = ("write_back", "write_through", "read", "read_write")
WRITING = ("write_back", "read_write")


def cached(mode, pages, payload=False, **changes):
    changes = {"flash__blocks_per_plane": 16, "ftl__gc_low_blocks": 1} | changes
    capacity = f"{pages * PAGE} B"
    return device(payload, cache__mode=mode, cache__capacity=capacity, **changes)


def content(stamp):
    return np.full(PAGE // 8, stamp, np.int64).view(np.uint8)


def do(d, op, lpn, n=1, fua=0):
    batch = commands([(op, lpn, n)], arrival=d.now)
    batch["fua"] = fua
    d.submit(batch)
    d.run()


def count(d, *names):
    return tuple(counter(d, getattr(stats, name)) for name in names)


# --- a dictionary, whatever is drawn


EXTRA = st.fixed_dictionaries(
    {
        "cache__mode": st.sampled_from((*MODES, "off")),
        "pages": st.sampled_from((40, 1000, 5, 2, 1)),
        "cache__dirty_share": st.sampled_from((1, 0.5, 0.3, 0)),
        "cache__destage_pages": st.sampled_from((0, 1, 3)),
        "cache__destage_idle": st.sampled_from(("false", "true")),
        "dram__row": st.sampled_from(("0 B", "256 B")),
    }
)


class InDram(machine.Machine):
    """The drive of the state machine, with a data cache, a cached mapping table, or both."""

    @stateful.initialize(
        drawn=machine.DRIVES, extra=EXTRA, depth=machine.DEPTHS, half=st.booleans()
    )
    def make(self, drawn, extra, depth, half):
        extra = dict(extra)
        units = max(extra.pop("pages"), drawn["ftl__mapping_unit"])  # at least a page
        extra["cache__capacity"] = f"{units * PAGE} B"
        machine.Machine.make(self, drawn | extra, depth, half)

    def compare(self):
        """Every page, as DRAM has it, or flash."""
        slots = self.device.arrays.cpage
        held = set(slots["lpn"][slots["have"] != 0].tolist())  # a search of all for each is slow
        for lpn in range(self.lpns):
            if lpn in self.busy:
                continue
            page = self.device.cached(lpn) if lpn in held else None
            if page is None:
                page = self.device.stored(lpn)
            assert (page is None) == (lpn not in self.model), f"page {lpn}"
            assert page is None or (page == self.content(self.model[lpn])).all(), f"page {lpn}"

    @stateful.rule()
    def flush_to_flash(self):
        """A FLUSH with nothing else under way: flash has everything."""
        self.to_idle()
        self.send([(FLUSH, 0, 0, 0)])
        self.to_idle()
        machine.Machine.compare(self)

    @stateful.rule(
        lpn=st.integers(0, 1 << 9),
        ops=st.lists(st.sampled_from((WRITE, READ, TRIM)), min_size=6, max_size=30),
    )
    def hot_pages(self, lpn, ops):
        """The same few pages, written, read and trimmed over and over."""
        self.send((op, (lpn + i % 5) % self.lpns, 1, 0) for i, op in enumerate(ops))

    @stateful.rule(lpn=st.integers(0, 1 << 9), n=st.integers(1, 8))
    def trimmed_in_dram(self, lpn, n):
        """Pages that are trimmed as soon as they have been written."""
        lpn %= self.lpns
        n = min(n, self.lpns - lpn)
        self.send([(WRITE, lpn, n, 0)])
        self.to_idle()
        self.send([(TRIM, lpn, n, 0)])


AT_WORK = (
    "collections", "cache_write_pages", "cache_merged_pages", "cache_dropped_pages",
    "destaged_pages", "cache_hit_pages", "cache_fill_pages", "map_hits", "map_misses",
    "map_read_pages", "map_program_pages",
)  # fmt: skip


def test_the_drive_is_a_dictionary(counts, monkeypatch):
    """And every mechanism has been at work: what is drawn depends on the numbers that Hypothesis
    finds in the sources, and 90 examples leave one out now and then."""
    monkeypatch.setattr(build, "BUDGET", 512)
    monkeypatch.setattr(build, "ROWS", 1 << 10)
    monkeypatch.setattr(store, "SEGMENT_BYTES", 1 << 16)
    machine.seen.clear()
    settings = hypothesis.settings(
        max_examples=counts(15, 150),
        stateful_step_count=counts(15, 30),
        suppress_health_check=list(hypothesis.HealthCheck),
        derandomize=False,
    )
    idle = AT_WORK
    for seed in range(4):
        drawn = hypothesis.seed(seed)(InDram)
        stateful.run_state_machine_as_test(drawn, settings=settings)
        idle = tuple(name for name in AT_WORK if machine.seen[name] == 0)
        if not idle:
            break
    assert not idle, idle


# --- when the power goes


def workload(d, rng, n):
    """Writes, some of them FUA, TRIMs and FLUSHes of single pages out of 40; stamps by command."""
    batch = commands([(WRITE, int(rng.integers(0, 40)), 1) for _ in range(n)], slot=0)
    kind = rng.random(n)
    batch["op"] = np.where(kind < 0.75, WRITE, np.where(kind < 0.85, TRIM, FLUSH))
    batch["fua"] = (batch["op"] == WRITE) & (rng.random(n) < 0.2)
    for name in ("lpn", "n"):
        batch[name][batch["op"] == FLUSH] = 0
    batch["payload_slot"][batch["op"] != WRITE] = -1
    batch["arrival"] = d.now + np.cumsum(rng.integers(0, 60_000_000, n))
    d.buffer = np.stack([content(i + 1) for i in range(n)])
    return batch


def confirmed(batch, done):
    """Of each command: was it confirmed to be on flash, by itself or a FLUSH that began after its
    end? ``done``: tag -> (start, end)."""
    flushes = [done[t] for t in done if batch["op"][t] == FLUSH]
    sure = set()
    for t, (_, end) in done.items():
        if batch["fua"][t] or any(start >= end for start, _ in flushes):
            sure.add(t)
    return sure


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mode", WRITING)
@pytest.mark.parametrize("share", [0.1, 1])
def test_what_was_confirmed_survives_a_cut(mode, share, counts, monkeypatch):
    """At any event: of each page flash holds the last content that was confirmed, or a newer one;
    nothing that was superseded before that, nothing that was never written."""
    monkeypatch.setattr(build, "BUDGET", 512)
    monkeypatch.setattr(build, "ROWS", 1 << 10)
    n = 60
    for seed in range(counts(2, 6)):
        total = None
        for part in np.linspace(0, 1, counts(12, 60)):
            d = cached(mode, 12, payload=True, cache__dirty_share=share)
            batch = workload(d, np.random.default_rng(seed), n)
            d.submit(batch)
            if total is None:
                total = d.run()
                assert any(d.cached(lpn) is not None for lpn in range(d.lpns)) or share == 0
                d = cached(mode, 12, payload=True, cache__dirty_share=share)
                d.submit(workload(d, np.random.default_rng(seed), n))
            d.power_cut(int(part * total))
            report = d.completions()
            done = {
                int(r["tag"]): (int(r["start"]), int(r["end"]))
                for r in report
            }  # fmt: skip
            check_survivors(d, batch, done)
            d.check()


def check_survivors(d, batch, done):
    sure = confirmed(batch, done)
    for lpn in range(40):
        mine = [t for t in range(len(batch)) if batch["lpn"][t] == lpn and batch["op"][t] != FLUSH]
        page = d.stored(lpn)
        held = 0 if page is None else int(page.view(np.int64)[0])
        assert page is None or (page.view(np.int64) == held).all()
        may = {0} | {t + 1 for t in mine if batch["op"][t] == WRITE}
        for t in mine:
            if t in sure:  # whatever ended before it began is no more
                older = {
                    u + 1 if batch["op"][u] == WRITE else 0
                    for u in mine
                    if u in done and done[u][1] <= done[t][0]
                }
                may -= older - newer_values(batch, mine, done, t)
                if not any(batch["op"][u] == TRIM for u in mine):
                    may.discard(0)
        assert held in may, (lpn, held, may)


def newer_values(batch, mine, done, t):
    """What the page may hold that did not end before command ``t`` began."""
    return {
        (u + 1 if batch["op"][u] == WRITE else 0)
        for u in mine
        if u not in done or done[u][1] > done[t][0]
    }


def test_what_was_in_dram_alone_is_gone():
    """Ten pages are written and confirmed; nothing but a FLUSH would send them to flash."""
    d = cached("write_back", 100, payload=True)
    for lpn in range(10):
        d.write(lpn, content(lpn + 1))
    assert all((d.read(lpn)[0] == content(lpn + 1)).all() for lpn in range(10))
    d.power_cut(0)
    assert all(d.stored(lpn) is None and d.cached(lpn) is None for lpn in range(10))


def test_a_flush_brings_it_to_flash():
    d = cached("write_back", 100, payload=True)
    for lpn in range(10):
        d.write(lpn, content(lpn + 1))
    do(d, FLUSH, 0, 0)
    d.power_cut(0)
    assert all((d.stored(lpn) == content(lpn + 1)).all() for lpn in range(10))


# --- what is written, what is read


def test_what_is_written_again_is_programmed_once():
    d = cached("write_back", 10)
    for _ in range(7):
        do(d, WRITE, 3)
    assert count(d, "CACHE_WRITE_PAGES", "CACHE_MERGED_PAGES", "PROGRAM_PAGES") == (7, 6, 0)
    do(d, FLUSH, 0, 0)
    assert count(d, "PROGRAM_PAGES", "DESTAGED_PAGES") == (1, 1)
    d.check()


def test_so_many_stay_dirty():
    """Of 100 places 30 may be dirty: when 100 pages have been written and all is quiet, 70 are on
    flash, the first ones, and none of them has left."""
    d = cached("write_back", 100, cache__dirty_share=0.3)
    for lpn in range(100):
        do(d, WRITE, lpn)
    assert d.arrays.cache.contents[0] == d.arrays.cache.dirty[0] == 30
    assert (d.arrays.l2p[0, :70] > 0).all() and (d.arrays.l2p[0, 70:100] == 0).all()
    for lpn in range(100):
        do(d, READ, lpn)
    assert count(d, "READ_PAGES", "CACHE_HIT_PAGES") == (0, 100)
    d.check()


def test_the_least_recently_written_goes_first():
    d = cached("write_back", 8, cache__dirty_share=0.5)
    for lpn in (0, 1, 2, 3, 0, 4):  # 0 is written again: 1 is the oldest
        do(d, WRITE, lpn)
    assert [lpn for lpn in range(5) if d.arrays.l2p[0, lpn]] == [1]


def test_trim_of_what_is_on_its_way():
    """A page that is trimmed while its program is under way stays trimmed."""
    d = cached("write_back", 8, payload=True, cache__dirty_share=0)
    d.buffer = content(5)[None].copy()
    d.submit(commands([(WRITE, 3, 1)], slot=0))
    while d.arrays.cache.flying[0] == 0:
        d.run(1)
    do(d, TRIM, 3)
    assert count(d, "PROGRAM_PAGES", "DESTAGED_PAGES") == (1, 1)
    assert d.stored(3) is None and (d.read(3) == 0).all()
    assert d.arrays.cache.contents[0] == 0 and d.arrays.cache.spare[0] > 0
    d.check()


@pytest.mark.parametrize("mode", ["read", "read_write"])
@pytest.mark.parametrize("pages", [1, 7, 60])
def test_reads_are_kept_by_lru(mode, pages, counts):
    """One page at a time: hits as of an LRU list of so many pages."""
    d = cached(mode, pages)
    d.submit(commands([(WRITE, lpn, 8) for lpn in range(0, 160, 8)]))
    d.run()
    do(d, FLUSH, 0, 0)
    for lpn in range(160, 160 + 2 * pages):  # never written: they drive nothing out
        do(d, READ, lpn)
    lru = OrderedDict()
    if mode == "read_write":  # the last pages written are there still
        here = d.arrays.cpage[: int(d.arrays.cache.used[0])]
        at = int(d.arrays.cache.oldest[0])
        while at > 0:
            lru[int(here.lpn[at - 1])] = True
            at = int(here.newer[at - 1])
        assert len(lru) == pages
    rng = np.random.default_rng(pages)
    hits = 0
    before = count(d, "CACHE_HIT_PAGES")[0]
    for _ in range(counts(400, 4000)):
        lpn = int(min(rng.integers(0, 160), rng.integers(0, 160)))
        do(d, READ, lpn)
        hits += lpn in lru
        lru[lpn] = True
        lru.move_to_end(lpn)
        if len(lru) > pages:
            lru.popitem(last=False)
        assert count(d, "CACHE_HIT_PAGES")[0] == before + hits
    assert hits > 0 or pages == 1
    d.check()


def test_back_pressure_loses_nothing():
    """Three places and 64 commands of 8 pages at once, one page on its way at a time."""
    d = cached("write_back", 3, cache__destage_pages=1, host__io_queue_depth=64)
    batch = random_writes(np.random.default_rng(1), 64, d.lpns, 8)
    d.submit(batch)
    most = 0
    while d.run(1):
        most = max(most, int(d.arrays.cache.used[0]))
        assert d.arrays.cache.flying[0] <= 1
    assert most == 3 and len(d.completions()) == 64
    do(d, FLUSH, 0, 0)
    d.check()


def test_the_isp_writes_past_the_cache():
    """A page that the host has written to DRAM, then the ISP to flash: the host's is void, whether
    it was waiting or under way, and a read finds the ISP's."""
    from ondie.emu.engine.run.system import System
    from ondie.emu.paths.base import Rows

    for share in (0, 1):
        cfg = config(cache__mode="write_back", cache__capacity="8 KiB", cache__dirty_share=share)
        system = System(cfg, ("a",))
        out = Rows()
        host = out.one(resource=2, kind=WRITE, lpn=5, bytes_in=PAGE)
        isp = out.one(resource=3, kind=WRITE, lpn=5, bytes_in=PAGE, after0=host)
        out.one(resource=2, kind=READ, lpn=5, bytes_out=PAGE, after0=isp)
        system.run([out.take()])
        c = dict(zip(stats.COUNTERS, system.arrays.count[0].tolist(), strict=True))
        assert c["cache_dropped_pages"] + c["destaged_pages"] == 1
        assert (c["read_pages"], c["cache_hit_pages"]) == (1, 0)
        assert system.arrays.cache.contents[0] == 0


# --- parts of pages


def played(items, **changes):
    """Requests (op, sector, sectors) one after the other on pages of 8 sectors that may be written
    in parts; returns counters and the sizes that crossed the link upwards."""
    sizes = {"flash__page": "4 KiB", "host__io_block": "8 KiB", "cache__capacity": "64 KiB"}
    cfg = config(
        ftl__partial_pages="sectors",
        frontend__max_transfer="64 KiB",
        cache__mode="read_write",
        **sizes | changes,
    )
    arrays = build.build(cfg, devices=1, phases=1, pairs=1)
    out = np.zeros(len(items), requests.REQUEST)
    for i, (op, sector, sectors) in enumerate(items):
        out[i]["op"], out[i]["offset"], out[i]["size"] = op, sector * 512, sectors * 512
    source = replay.Source(iter([out]), depth=1, closed=True)
    return replay.Player(arrays, cfg, [source]).run(None).counters, arrays


def test_a_page_that_is_there_in_part():
    """Sectors 0 and 1 of a page are in DRAM; a read of all 8 takes 6 from flash, one that asks for
    those two none."""
    w, r = requests.WRITE, requests.READ
    c, arrays = played([(w, 0, 8), (requests.FLUSH, 0, 0), (r, 0, 2)])
    assert (c["read_pages"], c["cache_hit_pages"], c["program_pages"]) == (0, 1, 1)
    c, arrays = played([(w, 0, 2), (r, 0, 2), (r, 0, 8), (r, 0, 8)])
    # Never on flash: the other six sectors are zeros from the controller, and stay unknown.
    assert (c["cache_hit_pages"], c["unmapped_pages"], c["program_pages"]) == (3, 2, 0)
    assert arrays.cpage.have[0] == 0b11


def test_parts_come_together():
    """A whole page goes to flash and out of the cache; two of its sectors are written anew: a read
    of all of it brings the six others from flash, and the next one nothing."""
    w, r = requests.WRITE, requests.READ
    away = [(w, 8 * page, 8) for page in range(1, 41)]  # 40 pages drive it out of 16 places
    c, arrays = played([(w, 0, 8), *away, (w, 0, 2), (r, 0, 8), (r, 0, 8)])
    assert (c["read_pages"], c["cache_hit_pages"]) == (1, 2)
    assert int(arrays.bus.size_out.sum()) == 6 * 512
    at = int(np.flatnonzero(arrays.cpage.lpn[:16] == 0)[0])
    assert arrays.cpage.have[at] == 0xFF and arrays.cpage.dirty[at] == 0b11


# --- the same, uncompiled


SCRIPT = """
import sys
import numpy as np
sys.path.insert(0, {root!r})
from tests.state.test_cache import repeat
d = repeat({mode!r})
np.savez({file!r}, **{{n: np.asarray(getattr(d.arrays, n)).view(np.ndarray) for n in {names!r}}})
"""
NAMES = ("count", "l2p", "block", "cache", "cpage", "entry", "row")


def repeat(mode):
    d = cached(mode, 9, ftl__map_cache="40 B")
    rng = np.random.default_rng(8)
    for _ in range(2):
        batch = random_writes(rng, 120, d.lpns, 6)
        batch["op"] = rng.choice([WRITE, WRITE, READ, TRIM, FLUSH], 120)
        batch["n"][batch["op"] == FLUSH] = 0
        batch["lpn"][batch["op"] == FLUSH] = 0
        batch["fua"] = (batch["op"] == WRITE) & (rng.random(120) < 0.1)
        batch["arrival"] = d.now
        d.submit(batch)
        d.run()
    return d


@pytest.mark.parametrize(
    "mode", ["read_write", pytest.param("write_through", marks=pytest.mark.soak)]
)
def test_uncompiled(mode, tmp_path, root):
    """The same functions without Numba: the same state, place by place, the same times."""
    file = str(tmp_path / "state.npz")
    script = SCRIPT.format(root=str(root), file=file, names=NAMES, mode=mode)
    env = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, env=env, cwd=root)
    compiled, plain = repeat(mode), np.load(file)
    for name in NAMES:
        assert np.asarray(getattr(compiled.arrays, name)).tobytes() == plain[name].tobytes(), name


# --- bad input


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cache__mode": "write_back"}, "data cache must hold at least one page"),
        ({"cache__mode": "read", "cache__capacity": "1 TiB"}, "must fit the drive's DRAM"),
        ({"cache__dirty_share": 1.5}, "must be at most 1"),
        ({"cache__mode": "writeback"}, "write_back"),
        ({"ftl__map_cache": "1 TiB"}, "must fit the drive's DRAM"),
    ],
)
def test_bad_input(changes, words):
    with pytest.raises(InputError, match=words):
        config(**changes)
