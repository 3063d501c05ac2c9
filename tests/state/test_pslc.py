"""Blocks in pSLC mode: bursts, the cliff behind them, folding, and what they cost in capacity.

One die of one plane: a page of 4 KiB takes 0.1 us of command and 4.096 us of data each way. TLC
with 12 pages a block has 4 word lines: a block in pSLC mode holds 4 pages. Programs take 400 us
natively and 100 us in pSLC mode, reads 60 us and 30 us.
"""

import subprocess
import sys

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import counters as stats
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl import pslc as modes
from ondie.emu.ftl.invariants import check_between_events
from ondie.emu.ftl.precondition import apply as precondition
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme import command as queues
from ondie.emu.units import InputError, fmt_bytes
from tests.state.both_ways import printed
from tests.state.small import PageDrive, commands, counter, random_writes
from tests.timing.harness import BUS, COMMAND, TIMES, US, preset

READ, WRITE, TRIM = queues.READ, queues.WRITE, queues.TRIM
MS = 1000 * US
WORD_LINES = 4
SLC_WRITE = COMMAND + BUS + 100 * US
DIRECT = COMMAND + BUS + 400 * US
FOLD = COMMAND + 30 * US + BUS + DIRECT
LEAVES = TIMES | {
    "flash.cell": "TLC",
    "flash.planes_per_die": "1",
    "flash.blocks_per_plane": "40",
    "flash.pages_per_block": "12",
    "flash.cache_program": "false",
    "flash.cache_read": "false",
    "flash.t_read": "60 us",
    "flash.t_program": "400 us",
    "flash.t_erase": "3 ms",
    "flash.pslc_t_read": "30 us",
    "flash.pslc_t_program": "100 us",
    "flash.pslc_t_erase": "2 ms",
    "ecc.decode": "0 us",
    "ecc.encode": "0 us",
    "ftl.reservoir_fraction": "0",
    "ftl.over_provisioning": "0.3",
    "ftl.gc_low_blocks": "1",
    "ftl.gc_priority": "background",
    "ftl.erase": "collected",
    "ftl.pslc": "static",
    "ftl.pslc_share": "0.1",
    "host.io_block": "4 KiB",
}
REGION = 4 * WORD_LINES  # pages: a tenth of 40 blocks


def config(**changes):
    return preset(LEAVES, **changes)


def device(payload=False, **changes):
    return PageDrive(config(**changes), payload)


def write(d, lpn, n, at=None):
    """Write ``n`` pages one by one from ``lpn`` on, all at once; when each has ended, ps."""
    arrival = d.earliest_arrival if at is None else at
    d.submit(commands([(WRITE, lpn + i, 1) for i in range(n)], arrival=arrival))
    d.run()
    done = d.completions()
    assert len(done) == n
    d.check()
    return done["end"]


def of(d, *names):
    return tuple(counter(d, stats.COUNTERS.index(name)) for name in names)


def waf(d):
    user, collected, folded = of(d, "program_pages", "gc_program_pages", "fold_program_pages")
    return (user + collected + folded) / user


# --- bursts and what is behind them


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_burst_runs_at_pslc_speed_until_the_blocks_are_full(kind):
    """16 pages at 104.196 us each; then, as the host keeps the die at work and folding stands
    back, native ones at 404.196 us. To the tick: nothing else is on the way of a page."""
    d = device(ftl__pslc=kind)
    ends = write(d, 0, REGION + 20)
    steps = np.diff(ends)
    assert (steps[: REGION - 1] == SLC_WRITE).all()
    assert (steps[REGION : REGION + 15] == DIRECT).all()
    assert of(d, "pslc_pages", "direct_pages") == (REGION, 20)


def test_the_speed_is_back_after_a_rest():
    """What was written in a burst is folded once the host is quiet; then the next one is fast."""
    d = device(ftl__fold_idle="1 ms")
    for burst in range(3):
        steps = np.diff(write(d, burst * REGION, REGION))
        assert (steps == SLC_WRITE).all()
        assert of(d, "folds") == (4 * (burst + 1),)
        assert int(d.arrays.slc.lent[0]) == 0
    assert of(d, "direct_pages") == (0,)


def test_waf_of_a_sequential_burst_is_two():
    """Each page is programmed once as pSLC and once natively: three pSLC blocks fill one."""
    d = device(ftl__fold_idle="1 ms")
    for burst in range(3):
        write(d, burst * REGION, REGION)
    assert waf(d) == 2.0
    assert of(d, "fold_read_pages", "gc_read_pages") == (3 * REGION, 0)
    stream = d.arrays.block.stream
    native = np.flatnonzero((stream == d.arrays.cfg.fold_stream[0]) & (d.arrays.valid > 0))
    assert d.arrays.valid[native].tolist() == [12, 12, 12, 12]


def test_pages_overwritten_in_pslc_blocks_are_never_folded():
    """A burst that writes the same four pages over and over: of each block but the last nothing
    is left, and its fold moves nothing."""
    d = device(ftl__fold_idle="1 ms")
    d.submit(commands([(WRITE, i % 4, 1) for i in range(REGION)]))
    d.run()
    assert of(d, "folds", "fold_program_pages") == (4, 4)
    assert waf(d) == 1 + 4 / REGION
    d.check()


def test_writes_that_wait_go_at_the_rate_of_folding():
    """A write for each page folded: 104.196 us for it, 34.196 to read it again, 404.196 for its
    native program, and an erase of 2 ms for every four. Within 2 %: folding begins behind the
    burst, and a native block costs no erase here."""
    d = device(ftl__pslc_full="wait", ftl__gc_priority="shared")
    ends = write(d, 0, 160)
    assert of(d, "pslc_pages", "direct_pages") == (160, 0)
    page = SLC_WRITE + FOLD + 2 * MS // WORD_LINES
    rate = (ends[-1] - ends[REGION + 15]) / (160 - REGION - 16)
    assert rate == pytest.approx(page, rel=0.02)


def test_folding_in_line_with_direct_writes():
    """Where folding shares the host's line and writes do not wait, the cliff is deeper than the
    native rate, and no deeper than that of folding with a page written directly beside each."""
    d = device(ftl__gc_priority="shared", host__io_queue_depth=4)
    ends = write(d, 0, 160)
    slow = np.diff(ends)[2 * REGION :].mean()
    assert DIRECT < slow < DIRECT + FOLD + 2 * MS // WORD_LINES
    assert of(d, "folds")[0] > 4


# --- when folding begins


def test_a_rest_is_as_long_as_it_says():
    """Half of the blocks are full, so only a rest makes them fold: the first page is read a
    millisecond after the last command, not a tick earlier."""
    d = device(ftl__fold_idle="1 ms")
    d.submit(commands([(WRITE, i, 1) for i in range(2 * WORD_LINES)]))
    d.run_until(50 * SLC_WRITE // 6)  # eight pages, and less than a millisecond
    assert d.outstanding == 0
    last = int(d.completions()["end"][-1])
    d.run_until(last + MS - 1)
    assert of(d, "folds") == (0,)
    d.run_until(last + MS)
    assert of(d, "folds") == (1,)
    d.run()
    d.check()


def test_a_rest_that_was_broken_begins_anew():
    """A command comes half a millisecond into the rest: folding waits for a whole one behind it."""
    d = device(ftl__fold_idle="1 ms")
    ends = []
    for first in (0, WORD_LINES):
        at = ends[-1] + MS // 2 if ends else 0
        d.submit(commands([(WRITE, first + i, 1) for i in range(WORD_LINES)], arrival=at))
        d.run_until(at + 5 * SLC_WRITE)
        assert d.outstanding == 0
        ends.append(int(d.completions()["end"][-1]))
    assert ends[1] - ends[0] < MS
    d.run_until(ends[1] + MS - 1)
    assert of(d, "folds") == (0,)
    d.run_until(ends[1] + MS)
    assert of(d, "folds") == (1,)


@pytest.mark.parametrize(("threshold", "folds"), [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_folding_begins_at_a_threshold(threshold, folds):
    """Three of four blocks are full and one may still be opened: with a threshold of 1 one fold
    brings a second one back. Without rests it stops there."""
    d = device(ftl__fold_blocks=threshold)
    write(d, 0, 3 * WORD_LINES)
    assert of(d, "folds") == (folds,)


def test_streams_that_do_not_go_there():
    """Stream 0 goes to pSLC blocks, stream 1 to native ones, and is not counted as direct."""
    d = device(ftl__write_streams=2, ftl__pslc_streams=1)
    batch = commands([(WRITE, i, 1) for i in range(8)])
    batch["stream"] = [0, 1] * 4
    d.submit(batch)
    d.run()
    assert of(d, "program_pages", "pslc_pages", "direct_pages") == (8, 4, 0)


# --- times by mode


def test_reads_and_erases_take_the_times_of_their_mode():
    """The same page from a pSLC block and from a native one; the erase before a block is opened."""
    took = {}
    for kind in ("off", "dynamic"):
        d = device(ftl__pslc=kind, ftl__initial="steady", ftl__erase="open")
        write(d, 0, 12)  # opens a second and third block: dirty
        program = d.now
        d.submit(commands([(READ, 0, 1)], arrival=d.now))
        d.run()
        took[kind] = program, d.now - program
    assert took["off"][1] - took["dynamic"][1] == 30 * US
    # Natively one block that is erased already; else three, two of which are erased first.
    assert took["off"][0] - took["dynamic"][0] == 12 * 300 * US - 2 * (2 * MS + COMMAND)


def test_planes_in_different_modes_do_not_work_together():
    """Plane 0 has no pSLC page left and plane 1 has: pages of the same offset that are there at
    the same time are programmed one after the other, each for its own time."""
    shape = {"flash__planes_per_die": 2, "flash__pages_per_block": 3, "ftl__placement": "static"}
    d = device(ftl__block_unit="plane", ftl__pslc_share=0.025, **shape)
    assert d.geometry.pslc_blocks == 1  # of one page
    d.submit(commands([(WRITE, lpn, 1) for lpn in (0, 2, 1)]))
    d.run()
    assert of(d, "pslc_pages", "direct_pages") == (2, 1)
    first, direct, other = d.completions()["end"]
    assert (direct - first, other - direct) == (DIRECT, SLC_WRITE)


def test_errors_are_those_of_the_mode():
    """Native pages are wrong here and there, pages in pSLC mode never are: until they are folded,
    and copied on inside the die."""
    errors = {
        "errors__kind": "model", "errors__floor": 1e-3, "errors__wear": 0, "errors__retention": 0,
        "errors__disturb": 0, "errors__pslc": 1e-9, "errors__tlc": 1, "ecc__codeword": "1 KiB",
        "ecc__correctable_bits": 72, "ecc__decode_limit": "1 us", "ftl__gc_copyback": "true",
    }  # fmt: skip
    d = device(ftl__fold_blocks=0, **errors)
    write(d, 0, 8)
    d.submit(commands([(READ, i, 1) for i in range(8)], arrival=d.now))
    d.run()
    d.completions()
    assert of(d, "corrected_bits", "folds") == (0, 0)
    write(d, 8, 8)
    assert of(d, "folds")[0] > 0 and of(d, "copyback_pages")[0] > 0
    d.submit(commands([(READ, i, 1) for i in range(4)], arrival=d.now))
    d.run()
    # Four pages of 32768 bits at 1e-3, give or take four deviations.
    assert of(d, "corrected_bits")[0] == pytest.approx(4 * 32.768, abs=4 * (4 * 32.768) ** 0.5)


# --- what it costs


def test_a_region_costs_the_capacity_of_its_blocks():
    """Of 40 blocks 4 are no place for data to stay: floor(36 x 12 x 0.7) pages are offered.
    Borrowed blocks come back, and cost nothing."""
    pages = {kind: device(ftl__pslc=kind).lpns for kind in ("off", "static", "dynamic")}
    assert pages == {"off": 336, "static": 302, "dynamic": 336}


def test_a_full_drive_borrows_nothing():
    """Written full, and over again at random, a drive has free blocks for collection and none to
    lend: pSLC blocks are few, and nothing is lost."""
    d = device(ftl__pslc="dynamic", ftl__pslc_share=0.5, ftl__over_provisioning=0.15)
    write(d, 0, d.lpns)
    empty = of(d, "pslc_pages")[0]
    assert empty >= 60  # while there was room
    batch = random_writes(np.random.default_rng(1), 1500, d.lpns)
    batch["arrival"] = d.now
    d.submit(batch)
    d.run()
    assert (of(d, "pslc_pages")[0] - empty) / 1500 < 0.2
    assert of(d, "collections")[0] > 50
    d.check()


def test_a_region_wears_apart():
    """All erases of blocks in pSLC mode are those of the region's blocks, in turn, and no block
    outside it is ever in that mode."""
    d = device(ftl__fold_idle="1 ms")
    for burst in range(10):
        write(d, burst * REGION, REGION)
    erases = d.arrays.block.erases[-4:]
    assert erases.tolist() == [10] * 4 and of(d, "pslc_erased_blocks") == (40,)
    assert of(d, "erased_blocks") == (40,)


def test_a_drive_too_small_for_what_it_folds_is_named():
    """No over-provisioning at all: the error says that the drive is full."""
    d = device(ftl__over_provisioning=0)
    with pytest.raises(InputError, match="full"):
        write(d, 0, d.lpns)
        write(d, 0, d.lpns)


@pytest.mark.parametrize("erase", ["open", "collected"])
@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_after_preconditioning(kind, erase):
    """Steady state leaves the region empty and its books in order; then the region works
    as ever, while a drive that borrows has no block beyond those that collection keeps free."""
    d = device(ftl__pslc=kind, ftl__erase=erase, ftl__over_provisioning=0.4)
    precondition.precondition(d.arrays, d.cfg, "steady", seed=3)
    block = d.arrays.block
    check_between_events(d.arrays, d.geometry)
    assert not (block.stream == d.arrays.cfg.pslc_stream[0]).any()
    if kind == "static":
        assert (block.state[-4:] == mapping.FREE).all() and not d.arrays.valid[-4:].any()
    rng = np.random.default_rng(3)
    d.submit(random_writes(rng, 300, d.lpns))
    d.run()
    check_between_events(d.arrays, d.geometry)
    pslc, direct, collected, folds = of(d, "pslc_pages", "direct_pages", "collections", "folds")
    assert pslc + direct == 300 and direct > 0 and collected > 0
    assert (pslc >= REGION and folds > 0) if kind == "static" else pslc == 0


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_blocks_that_are_bad(kind):
    """From the factory, and grown in either mode: the rest goes on, and all bytes are there."""
    d = device(
        payload=True, ftl__pslc=kind, ftl__bad_blocks=0.05, ftl__program_failures=0.004,
        ftl__over_provisioning=0.6, ftl__fold_idle="1 ms",
    )  # fmt: skip
    rng = np.random.default_rng(5)
    model = {}
    for stamp in range(60):
        lpn = int(rng.integers(0, d.lpns - 12))
        pages = np.full((12, 4096), stamp, np.uint8)
        d.write(lpn, pages)
        model |= dict.fromkeys(range(lpn, lpn + 12), stamp)
        d.check()
    assert of(d, "program_failures")[0] > 0 and of(d, "bad_blocks")[0] > 0
    for lpn, stamp in model.items():
        assert (d.read(lpn) == stamp).all()


SCRIPT = """
import sys
import numpy as np
from tests.state.small import random_writes
from tests.state.test_pslc import device
from ondie.emu.ftl.invariants import check_between_events
for kind in ("static", "dynamic"):
    for full in ("direct", "wait"):
        d = device(ftl__pslc=kind, ftl__pslc_full=full, ftl__fold_idle="1 ms",
                   ftl__over_provisioning=0.5, ftl__gc_copyback="true")
        d.submit(random_writes(np.random.default_rng(2), 150, d.lpns, 4))
        d.run()
        d.check()
        print(d.completions()["end"].tolist(), d.arrays.count[0].tolist())
"""


@pytest.mark.soak
def test_interpreted_and_compiled_agree():
    """The same completions, to the tick, and the same counts."""
    said = printed(SCRIPT)
    assert said[0] == said[1] and len(said[0]) > 1000


# --- mapping units smaller than a page


PAGE_UNITS = {"flash__page": "16 KiB", "ftl__mapping_unit": "4 KiB"}


def test_mapping_units_fill_pslc_pages():
    """Pages of 16 KiB are programmed when four units of 4 KiB have come: the region of 16 pages
    takes 64 units, a program of 100 us for each four; what comes behind it is programmed natively.
    """
    d = device(**PAGE_UNITS)
    programs = COMMAND + 4 * BUS
    ends = write(d, 0, 4 * (REGION + 4)).reshape(-1, 4)
    assert (ends == ends[:, :1]).all()
    steps = np.diff(ends[:, 0])
    assert (steps[: REGION - 1] == programs + 100 * US).all()
    assert (steps[REGION:] == programs + 400 * US).all()
    assert of(d, "pslc_pages", "direct_pages") == (4 * REGION, 16)


def test_folding_moves_the_valid_units_of_a_page():
    """One unit of each of eight pages is overwritten, and eight units are new: three blocks are
    full and one is left. The folds read the 12 pages, once each, and program the 40 valid units
    into 10 pages."""
    d = device(ftl__fold_idle="1 ms", **PAGE_UNITS)
    lpns = [*range(32), *range(0, 32, 4), *range(32, 40)]
    d.submit(commands([(WRITE, lpn, 1) for lpn in lpns]))
    d.run()
    assert int(d.arrays.slc.lent[0]) == 0
    assert of(d, "folds", "fold_read_pages", "fold_program_pages") == (3, 40, 40)
    assert of(d, "fold_dropped_pages", "array_reads", "array_programs") == (0, 12, 12 + 10)
    d.check()


# --- bad input


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"flash__cell": "SLC"}, '"MLC", "TLC" or "QLC"'),
        ({"flash__pages_per_block": 2}, "one word line"),
        ({"ftl__pslc_share": 0.02}, "at least one pSLC block"),
        ({"ftl__pslc_share": 1.5}, "at most 1"),
        ({"ftl__pslc_share": 0.99}, "the number of native blocks must exceed ftl.gc_low_blocks"),
        ({"ftl__pslc_streams": 2}, "at most ftl.write_streams"),
        ({"flash__programming": "one_shot", "pe__kind": "none"}, "page by page"),
        ({"errors__kind": "model", "errors__pslc": 0}, "above 0"),
        ({"ftl__map_update": "placed"}, "programmed"),
    ],
)
def test_what_cannot_be_is_named(changes, words):
    with pytest.raises(InputError, match=words) as error:
        config(**changes)
    assert len(str(error.value).splitlines()) == 1


def test_off_is_the_default():
    """No preset says more than that its drive may have such blocks."""
    for name in ("gen4-tlc", "newport"):
        assert load_preset(name).ftl.pslc == modes.MODES[modes.OFF]


def test_the_capacity_that_is_left_is_said(root):
    """What blocks in pSLC mode hold, and what is offered beside them."""
    words = ["preset", "show", "laguna", "--set", "ftl.pslc=static", "--set"]
    out = subprocess.run(
        [sys.executable, "-m", "ondie.emu.cli", *words, "ftl.pslc_share=0.1"],
        check=True, capture_output=True, text=True, cwd=root,
    ).stdout  # fmt: skip
    cfg = load_preset("laguna", ["ftl.pslc=static", "ftl.pslc_share=0.1"])
    g = Geometry.of(cfg)
    raw = g.units * g.block_pages * g.page_bytes
    assert modes.capacity(cfg) == raw * g.pslc_blocks // 3
    offered = int(g.units * g.native_blocks * g.block_pages * (1 - cfg.ftl.over_provisioning))
    assert f"The drive has a capacity of {fmt_bytes(offered * g.page_bytes)}." in out
    assert f"(static) hold at most {fmt_bytes(modes.capacity(cfg))}" in out
