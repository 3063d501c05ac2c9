"""A power cut at any event: what had completed is readable, what had not is old or new, whole
pages, and nothing on flash is half-written.
"""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from ondie.emu.nvme import command as queues
from ondie.emu.units import InputError
from tests.state.small import PAGE, commands, device

pytestmark = pytest.mark.usefixtures("few_transactions")

READ, WRITE, TRIM = queues.READ, queues.WRITE, queues.TRIM
LPNS = 358
FILL = 1_000_000  # stamps of the first filling: FILL + page


def content(stamp):
    return np.full(PAGE // 8, stamp, np.int64).view(np.uint8)


def stamp(page):
    """The stamp of a stored page; fails on a page that is a mixture."""
    values = page.view(np.int64)
    assert (values == values[0]).all(), "half-written page"
    return int(values[0])


def filled():
    d = device(payload=True, ftl__gc_low_blocks=1)
    for lpn in range(0, LPNS, 16):
        n = min(16, LPNS - lpn)
        d.write(lpn, np.concatenate([content(FILL + lpn + i) for i in range(n)]))
    return d


def workload(d, rng, n):
    """Writes and TRIMs of 1 to 8 pages; stamps are command * 100 + page of the command."""
    slots = 0
    d.buffer = np.zeros((8 * n, PAGE), np.uint8)
    items, pages = [], []
    for i in range(n):
        size = int(rng.integers(1, 9))
        lpn = int(rng.integers(0, LPNS - size + 1))
        op = TRIM if rng.random() < 0.1 else WRITE
        items.append((op, lpn, size))
        pages.append({lpn + k: (i * 100 + k if op == WRITE else None) for k in range(size)})
        if op == WRITE:
            for k in range(size):
                d.buffer[slots + k] = content(i * 100 + k)
            slots += size
    batch = commands(items, arrival=d.now, slot=0)
    batch["arrival"] += np.cumsum(rng.integers(0, 400_000_000, n))
    return batch, pages


def events_of(seed, n):
    d = filled()
    batch, _ = workload(d, np.random.default_rng(seed), n)
    d.submit(batch)
    return d.run()


def cut(seed, n, events):
    d = filled()
    batch, pages = workload(d, np.random.default_rng(seed), n)
    d.submit(batch)
    done = d.power_cut(events)
    return d, done, pages


def possible(pages, completed, starts, ends):
    """What each page may hold: the last completed command's value, or that of any command that was
    under way together with it or not completed at all (their order is free)."""
    may = {lpn: {FILL + lpn} for lpn in range(LPNS)}
    for lpn in range(LPNS):
        touching = [i for i, p in enumerate(pages) if lpn in p]
        finished = [i for i in touching if i in completed]
        if finished:
            # A finished command is superseded by one that started after it had ended.
            last = [i for i in finished if all(starts[j] < ends[i] for j in finished if j != i)]
            may[lpn] = {pages[i][lpn] for i in last}
        may[lpn] |= {pages[i][lpn] for i in touching if i not in completed}
    return may


def check_cut(d, pages):
    reports = d.completions()
    completed = set(reports["tag"].tolist())
    starts = dict(zip(reports["tag"].tolist(), reports["start"].tolist(), strict=True))
    ends = dict(zip(reports["tag"].tolist(), reports["end"].tolist(), strict=True))
    for lpn, values in possible(pages, completed, starts, ends).items():
        page = d.stored(lpn)
        assert (None if page is None else stamp(page)) in values, f"page {lpn}"
    d.check()  # the map, the blocks and the pages on flash agree at any event
    return completed


def whole_pages(d):
    """Every mapped page of flash is intact, and the newest data of each logical page by sequence
    number (what recovery would take) are what the map points to, or those of an interrupted
    program, unless it was trimmed. A copy that collection made is as old as its data."""
    newest, contents = {}, {}
    for ppn, lpn, sequence in d.store.programmed():
        if not d.store.intact(ppn):  # of an interrupted program, with a valid seal
            assert int(d.arrays.l2p[0, lpn]) - 1 != ppn
            continue
        held = stamp(d.store.read(ppn))
        if sequence:  # 0: superseded before it was on flash
            assert contents.setdefault((lpn, sequence), held) == held  # a copy, or the original
        newest[lpn] = max(newest.get(lpn, 0), sequence)
    for lpn in range(LPNS):
        entry = int(d.arrays.l2p[0, lpn])
        assert entry == 0 or newest[lpn] >= d.store.sequence(entry - 1)


@pytest.mark.timeout(900)
@hypothesis.given(st.integers(0, 3), st.floats(0, 1))
def test_a_cut_at_any_event(seed, share):
    n = 60
    total = TOTALS.setdefault(seed, events_of(seed, n))
    d, done, pages = cut(seed, n, int(share * total))
    assert done == int(share * total)
    check_cut(d, pages)
    whole_pages(d)


TOTALS: dict[int, int] = {}


@pytest.mark.timeout(900)
def test_every_event_of_a_short_run(counts):
    """Cuts after 0, 1, 2, ... events (every 37th, or every one at full count); what has
    completed only grows with the number of events."""
    n = 25
    total = events_of(9, n)
    before = set()
    for events in range(0, total + 1, counts(37, 1)):
        d, _, pages = cut(9, n, events)
        completed = check_cut(d, pages)
        assert before <= completed
        before = completed
    d, _, pages = cut(9, n, total + 1000)
    assert len(check_cut(d, pages)) == n
    whole_pages(d)


def test_after_the_cut_nothing_happens():
    d, _, _ = cut(1, 40, 300)
    clock, log = d.now, d.arrays.reg.events[0]
    for call in (
        lambda: d.run(),
        lambda: d.run_until(d.now + 1),
        lambda: d.submit(commands([(WRITE, 0, 1)])),
        lambda: d.read(0),
        lambda: d.power_cut(5),
    ):
        with pytest.raises(InputError, match="after a power cut"):
            call()
    assert d.now == clock and d.arrays.reg.events[0] == log
    assert 0 < d.outstanding < 40  # lost, and known to be


def test_a_cut_before_anything():
    d, done, _ = cut(2, 10, 0)
    assert done == 0 and len(d.completions()) == 0
    assert all(stamp(d.stored(lpn)) == FILL + lpn for lpn in range(LPNS))


def test_a_write_is_on_flash_before_it_completes():
    """One write, event by event: up to the last event flash holds the old page, whole; with the
    event that completes it the new one."""
    d = filled()
    d.buffer = content(5)[None]
    d.submit(commands([(WRITE, 7, 1)], arrival=d.now, slot=0))
    while len(d.completions()) == 0:
        old = stamp(d.stored(7))
        assert old == FILL + 7
        assert d.run_until(1 << 61, max_events=1) == 1
    assert stamp(d.stored(7)) == 5
