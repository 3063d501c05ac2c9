"""Word lines under flash management: nobody waits for ever, padding is counted, a failure takes the
whole line, untimed fills leave no line half written, and Numba changes nothing.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from ondie.emu.engine.core import counters as stats
from ondie.emu.ftl import gc_victims as gc
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl.invariants import check_between_events
from ondie.emu.ftl.precondition import apply as precondition
from ondie.emu.nvme import command as queues
from ondie.emu.units import InputError
from tests.state.small import PAGE, commands, config, counter, device, random_writes

READ, WRITE = queues.READ, queues.WRITE
SHAPE = {
    "flash__cell": "TLC",
    "flash__pages_per_block": 12,
    "flash__blocks_per_plane": 24,
    "flash__t_program_second": "900 us",
    "pe__kind": "none",
    "ftl__over_provisioning": 0.6,
}
PROGRAMMING = pytest.mark.parametrize("programming", ["one_shot", "two_pass"])
UNITS = pytest.mark.parametrize("unit", ["die", "plane"])


def drive(programming, payload=False, queue_depth=None, **changes):
    return device(payload, queue_depth, flash__programming=programming, **SHAPE | changes)


def programmed(d):
    """Pages of data and of padding that were programmed."""
    names = ("PROGRAM_PAGES", "GC_PROGRAM_PAGES", "FAILED_PAGES", "MAP_PROGRAM_PAGES")
    return sum(counter(d, getattr(stats, x)) for x in names), counter(d, stats.PADDING_PAGES)


@PROGRAMMING
@UNITS
@pytest.mark.parametrize("multi_plane", ["true", "false"])
def test_one_page_at_a_time(programming, unit, multi_plane):
    """Queue depth 1: each page is alone in its line, which is padded at once, and with two passes
    its neighbour, too, unless that is of the next block."""
    d = drive(programming, queue_depth=1, ftl__block_unit=unit, flash__multi_plane=multi_plane)
    n = 40
    d.submit(commands([(WRITE, i, 1) for i in range(n)]))
    d.run()
    d.check()
    assert len(d.completions()) == n
    data, padding = programmed(d)
    stripe = 6 if unit == "die" else 3
    assert data == n and counter(d, stats.PADDED_AT_REST) == n
    if programming == "one_shot":
        assert padding == n * (stripe - 1)
    else:
        assert n * (stripe - 1) < padding <= n * (2 * stripe - 1)
    assert counter(d, stats.PADDED_IN_TIME) == 0


@PROGRAMMING
def test_nothing_is_padded_in_a_stream(programming):
    """A write of whole lines: with two passes only the line behind the last one is padding."""
    d = drive(programming, queue_depth=64)
    pages = 6 * 4 * 8  # lines of six pages, in turn on the four dies, eight on each: two blocks
    d.submit(commands([(WRITE, 16 * i, 16) for i in range(pages // 16)]))
    d.run()
    d.check()
    assert programmed(d) == (pages, 0)
    again = pages if programming == "two_pass" else 0
    assert counter(d, stats.SECOND_PASS_PAGES) == again
    operations = pages // 6 * (2 if programming == "two_pass" else 1)
    assert counter(d, stats.ARRAY_PROGRAMS) == operations


@pytest.mark.one_in(5)
@PROGRAMMING
@UNITS
def test_a_failure_takes_the_whole_line(programming, unit):
    """Every page that was confirmed has its bytes, and of a line that failed none is mapped: its
    pages have another place."""
    d = drive(programming, payload=True, ftl__program_failures=0.01, ftl__block_unit=unit)
    rng = np.random.default_rng(3)
    d.buffer = rng.integers(0, 256, (8, PAGE)).astype(np.uint8)
    written = {}
    for _ in range(60):
        starts = rng.permutation(d.lpns // 8)[:6] * 8
        batch = commands([(WRITE, int(lpn), 8) for lpn in starts], arrival=d.now)
        batch["payload_slot"] = 0
        d.submit(batch)
        d.run()
        d.check()
        written |= {int(lpn) + i: i for lpn in starts for i in range(8)}
    failures = counter(d, stats.PROGRAM_FAILURES)
    assert failures > 5 and counter(d, stats.BAD_BLOCKS) > 0
    assert counter(d, stats.FAILED_PAGES) > 2 * failures  # of lines of three pages or six
    for lpn, slot in written.items():
        assert (d.stored(lpn) == d.buffer[slot]).all()


@PROGRAMMING
@UNITS
def test_a_fill_ends_on_a_line(programming, unit):
    """Ten pages filled: what is written next goes to a line of its own, and books balance."""
    d = drive(programming, ftl__block_unit=unit)
    precondition.fill(d.arrays, d.cfg, 10)
    d.submit(commands([(WRITE, 100 + i, 1) for i in range(24)]))
    d.run()
    d.check()
    line = int(d.arrays.cfg.line[0])
    filled, timed = (d.arrays.l2p[0, a:b].astype(int) - 1 for a, b in ((0, 10), (100, 124)))
    assert (filled >= 0).all() and (timed >= 0).all()
    assert not set(filled // line) & set(timed // line)


@PROGRAMMING
@pytest.mark.parametrize("kind", ["fill", "steady"])
def test_a_used_drive_goes_on(programming, kind):
    d = drive(programming, ftl__erase="collected", queue_depth=16)
    precondition.precondition(d.arrays, d.cfg, kind)
    stripe = int(d.arrays.cfg.stripe[0])
    d.submit(random_writes(np.random.default_rng(2), 600, d.lpns, longest=8))
    d.run()
    assert len(d.completions()) == 600
    check_between_events(d.arrays, d.geometry)
    assert counter(d, stats.COLLECTIONS) > 0
    front = d.arrays.front
    here = front["block"] >= 0
    assert not (front["next"][here] % stripe).any()


@pytest.mark.parametrize(
    ("programming", "worth"), [("one_shot", 12 - 3), ("two_pass", 12 - 6), ("page", 11)]
)
def test_a_block_that_gains_less_than_a_line_is_left_alone(programming, worth):
    """Moving its pages and padding the line behind them, or two, would gain nothing."""
    d = drive(programming, ftl__block_unit="plane", ftl__gc_low_blocks=2)
    a = d.arrays
    a.block.state[:2], a.block.stream[:2] = mapping.FULL, 0
    a.pool.free_n[0] = 2
    a.valid[:2] = worth + 1
    assert gc.start_collection(d.state, 0) == -1
    a.valid[1] = worth
    assert gc.start_collection(d.state, 0) == 1


@pytest.mark.parametrize(
    ("programming", "pages", "most"),
    [("one_shot", 2, 3), ("one_shot", 3, 3), ("two_pass", 3, 6), ("two_pass", 12, 12)],
)
def test_data_in_dram_are_counted(programming, pages, most):
    """One die of one plane, lines of three pages: what was written with the padding beside it, and
    with two passes that of the line behind, is there until its last pass. All of a block fits: its
    first line's second pass ends behind the first pass over the fourth line."""
    one = {"flash__channels": 1, "flash__dies_per_channel": 1, "flash__planes_per_die": 1}
    d = drive(programming, flash__cache_program="false", **one)
    d.submit(commands([(WRITE, 0, pages)]))
    d.run()
    assert counter(d, stats.GATHERED_MOST) == most
    assert int(d.arrays.dev.gathered[0]) == int(d.arrays.dev.lines[0]) == 0


@PROGRAMMING
@pytest.mark.parametrize("how", ["fua", "fua in the cache", "flush"])
def test_who_waits_for_flash_waits_for_no_rest(programming, how):
    """Two pages among reads, one every 10 us for 40 ms, so that the drive is never at rest, and a
    patience of a second: their line is padded, with two passes the one behind it, too, as soon as
    they have come this far."""
    cache = {} if how == "fua" else {"cache__mode": "write_back", "cache__capacity": "16 KiB"}
    d = drive(programming, queue_depth=64, ftl__gather_time="1 s", **cache)
    d.submit(commands([(WRITE, 8 * i, 8) for i in range(8)]))
    d.run()
    d.submit(commands([(queues.FLUSH, 0, 0)], arrival=d.now))
    d.run()
    d.completions()
    rules = (stats.PADDED_AT_FLUSH, stats.PADDED_AT_REST, stats.PADDED_IN_TIME)
    before = [counter(d, rule) for rule in rules]
    begin, last = d.now, int(how == "flush")
    batch = commands([(READ, i % 64, 1) for i in range(4000)])
    batch[10] = commands([(WRITE, 200, 2)])[0]
    batch["fua"][10] = 1 - last
    if last:  # it is told of what was completed before it came
        batch[30] = commands([(queues.FLUSH, 0, 0)])[0]
    batch["arrival"] = begin + np.arange(4000) * 10**7
    batch["tag"] = np.arange(4000)
    d.submit(batch)
    d.run()
    done = d.completions()
    ends = dict(zip(done["tag"].tolist(), (done["end"] - begin).tolist(), strict=True))
    which = 30 if last else 10
    assert max(ends.values()) > 40 * 10**9
    assert ends[which] - which * 10**7 < 10 * 10**9
    for_flush, at_rest, in_time = (counter(d, r) - n for r, n in zip(rules, before, strict=True))
    assert for_flush > 0 and at_rest == in_time == 0


REFUSED = [
    ({"ftl__gc_copyback": "true"}, "copy-back programs a single page"),
    ({"pe__kind": "per_plane"}, "processing elements program single pages"),
    ({"ftl__map_update": "placed"}, 'map_update = "programmed"'),
    ({"ftl__unwritten": "as_written"}, 'unwritten = "zeros"'),
    ({"ftl__map_cache": "1 KiB", "ftl__map_writes": 0}, "map_writes must be at least 1"),
    ({"flash__pages_per_block": 6}, "at least three word lines"),
    ({"dram__capacity": "1 KiB", "dram__isp": "0 B"}, "buffer for incomplete word lines"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_refused(changes, words):
    with pytest.raises(InputError, match=words) as error:
        config(**SHAPE | {"flash__programming": "one_shot"} | changes)
    assert "\n" not in str(error.value) and "flash.programming" in str(error.value)


NAMES = ("l2p", "p2l", "valid", "block", "front", "pool", "count", "dev")
SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
from tests.state.test_gathering import repeat
arrays = repeat().arrays
np.savez({file!r}, **{{name: getattr(arrays, name) for name in {names!r}}})
"""


def repeat():
    """Two passes with collection, a data cache, FLUSH and failures."""
    d = drive(
        "two_pass",
        flash__blocks_per_plane=18,
        flash__channels=1,
        cache__mode="write_back",
        cache__capacity=f"{20 * PAGE} B",
        ftl__program_failures=0.005,
        ftl__map_cache="400 B",
    )
    rng = np.random.default_rng(5)
    for _ in range(6):
        d.submit(_batch(rng, d))
        d.run()
    return d


def _batch(rng, d):
    """Writes, and a FLUSH behind them."""
    out = random_writes(rng, 25, d.lpns, longest=8)
    out["arrival"] = d.now
    flush = commands([(queues.FLUSH, 0, 0)], arrival=d.now)
    return np.concatenate([out, flush])


@pytest.mark.soak
def test_uncompiled(tmp_path, root):
    """The same functions without Numba: the same state, place by place, the same times."""
    file = str(tmp_path / "state.npz")
    script = SCRIPT.format(root=str(root), file=file, names=NAMES)
    env = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, env=env, cwd=root)
    compiled, plain = repeat(), np.load(file)
    assert counter(compiled, stats.GC_PROGRAM_PAGES) > 0
    assert counter(compiled, stats.PADDED_AT_FLUSH) > 0
    for name in NAMES:
        assert np.asarray(getattr(compiled.arrays, name)).tobytes() == plain[name].tobytes(), name


@PROGRAMMING
def test_collection_moves_whole_lines_together(programming):
    """Whoever fills it, an array operation programs a stripe of whole lines: data and padding make
    as many pages, and after a run every block's programs are done."""
    d = drive(programming, queue_depth=8)
    d.submit(random_writes(np.random.default_rng(6), 2500, d.lpns, longest=4))
    d.run()
    d.check()
    assert counter(d, stats.COLLECTIONS) > 10 and counter(d, stats.GC_PROGRAM_PAGES) > 100
    assert not d.arrays.block["flying"].any()
    assert (d.arrays.block["state"] != mapping.VICTIM).all()
    pages = sum(programmed(d)) + counter(d, stats.SECOND_PASS_PAGES)
    assert pages == int(d.arrays.cfg.stripe[0]) * counter(d, stats.ARRAY_PROGRAMS)
