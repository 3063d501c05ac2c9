"""Are data renewed before they are too old, and found before they cannot be corrected?

Ages and reads are those that a test sees from outside: changes of the map, of the page that has
been read, and of the clock.
"""

import numpy as np
import pytest

from ondie.emu.clock import NEVER
from ondie.emu.config.rules.ecc_and_cache import CLOCK_END_PS
from ondie.emu.drive import Drive
from ondie.emu.engine.core.conservation import Imbalance
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.ftl import page_map
from ondie.emu.nvme import command as queues
from ondie.emu.nvme.command import FLUSH, READ, TRIM, WRITE
from ondie.emu.nvme.status import CriticalWarning, Status
from ondie.emu.service import Service
from ondie.emu.units import InputError
from tests.state import small
from tests.state.test_power_on import CACHE, LINES, SECTORS, SHAPE, UNITS
from tests.state.versions import Versions

pytestmark = pytest.mark.usefixtures("few_transactions")

MS = 10**9
AGE = 20 * MS
LEAD = AGE // 16
CODE = {
    "ecc__codeword": "512 B", "ecc__correctable_bits": 40, "ecc__decode_limit": "20 us",
    "ecc__retries": 2, "ecc__retry_gain": 0.5, "ecc__soft_reads": 0,
}  # fmt: skip
FLAT = CODE | {
    "errors__kind": "model", "errors__pslc": 1, "errors__mlc": 1, "errors__tlc": 1,
    "errors__wear": 0, "errors__retention": 0, "errors__disturb": 0, "errors__floor": 1e-4,
    "ftl__initial": "fresh",
}  # fmt: skip
"""Hardly a wrong bit, none of which age adds."""
LEAKY = FLAT | {
    "errors__floor": 0, "errors__retention": 4e-3 * 86_400e3 / 20,
    "errors__retention_exponent": 1, "errors__retention_cycles_exponent": 0,
    "errors__initial_days": 0,
}  # fmt: skip
"""Bits that go wrong with age: 4e-3 of them in 20 ms, which is 16 of the 4,096 of a code word, and
1e-2, 41 and often too many, in 50 ms."""
OLD = {"ftl__refresh_age": "20 ms"}
DRIVES = {
    "plain": {},
    "erased at once": {"ftl__erase": "collected", "ftl__wear_static_cycles": 3},
    "planes": {"ftl__block_unit": "plane", "ftl__gc_parallel": 2, "ftl__gc_copyback": "true"},
    "static placement": {"ftl__placement": "static"},
    "streams": {"ftl__write_streams": 2, "ftl__gc_streams": "each", "ftl__open_blocks": "ahead",
                "ftl__over_provisioning": 0.6},
    "locked, exclusive": {"ftl__victim_pages": "locked", "ftl__gc_priority": "exclusive",
                          "ftl__placement": "static", "ftl__partial_pages": "sectors"},
    "mapping units": {"flash__page": "2 KiB", "ftl__mapping_unit": "512 B"},
    "word lines": {"flash__programming": "two_pass", "flash__cell": "MLC", "pe__kind": "none",
                   "flash__t_program_second": "300 us", "flash__blocks_per_plane": 16,
                   "ftl__gather_time": "1 ms"},
    "cached map": {"ftl__map_cache": "400 B", "ftl__over_provisioning": 0.6},
    "pSLC": {"ftl__pslc": "static", "ftl__pslc_share": 0.2, "flash__cell": "MLC",
             "pe__kind": "none", "flash__blocks_per_plane": 16},
    "borrowed pSLC": {"ftl__pslc": "dynamic", "ftl__pslc_share": 0.2, "flash__cell": "MLC",
                      "pe__kind": "none", "flash__blocks_per_plane": 16},
}  # fmt: skip


def count(made, *names):
    found = [int(made.arrays.count[0, COUNTERS.index(name)]) for name in names]
    return found[0] if len(found) == 1 else found


def filled(share=1.0, **changes):
    """A drive with that share of its pages written once."""
    made = small.device(**FLAT | changes)
    made.submit(small.commands([(WRITE, lpn, 1) for lpn in range(int(made.lpns * share))]))
    made.run()
    made.completions()
    return made


class Ages:
    """The age of each logical page: the time since its place on flash last changed."""

    def __init__(self, made):
        self.made = made
        self.place = made.arrays.l2p[0].astype(np.int64).copy()
        self.since = np.full(len(self.place), made.now)
        self.oldest = 0

    def look(self):
        now = self.made.arrays.l2p[0].astype(np.int64)
        moved = now != self.place
        self.place[moved], self.since[moved] = now[moved], self.made.registers[0]
        ages = self.made.registers[0] - self.since[now != 0]
        self.oldest = max(self.oldest, int(ages.max(initial=0)))


def slack(made):
    """How long the blocks of a unit take at most, one after the other, each page of them alone,
    with the erase before and after: ps."""
    cfg = made.cfg.flash
    page = (
        cfg.t_read_ps
        + 2 * cfg.t_program_ps
        + 200 * 10**6
        + 2 * 900 * 10**6 * (cfg.programming == "two_pass")
    )
    blocks = int(made.arrays.cfg.blocks[0])
    return blocks * (int(made.arrays.cfg.block_pages[0]) * page + 3 * cfg.t_erase_ps)


def pass_time(made, until, seen):
    """Let idle time pass, one event at a time."""
    while made.now < until:
        made.run_until(until, max_events=1)
        seen()


# --- refresh


def test_no_data_become_older_than_the_limit():
    """To the event. The blocks of a unit, filled one after the other, move in the last 1/16 of
    their age, so that each is younger than the limit as it moves: a die moves a block in less."""
    made = filled(0.5, **OLD, ftl__erase="collected")
    ages = Ages(made)
    pass_time(made, made.now + 4 * AGE, ages.look)
    assert AGE - LEAD <= ages.oldest <= AGE + AGE // 4  # all blocks of a unit are due at once
    made.run()
    moved, read, dropped = count(
        made, "refresh_program_pages", "refresh_read_pages", "refresh_dropped_pages"
    )
    assert 3 * made.lpns // 2 <= moved == read <= 5 * made.lpns // 2 and dropped == 0
    assert count(made, "refreshed_blocks") * 16 >= moved
    assert count(made, "collections", "gc_read_pages", "reclaimed_blocks") == [0, 0, 0]
    assert count(made, "array_erases") >= count(made, "refreshed_blocks") - 4
    made.check()


@pytest.mark.parametrize("name", DRIVES)
def test_every_kind_of_drive_refreshes_all_its_data(name):
    """Blocks of every stream and mode, also open ones; not one page for longer than the limit and
    the time that a unit takes for all of its blocks."""
    made = filled(0.6, **OLD | DRIVES[name])
    ages = Ages(made)
    for _ in range(300):
        made.run_until(made.now + AGE // 100)
        ages.look()
    assert ages.oldest <= AGE + slack(made), ages.oldest / AGE
    assert count(made, "refresh_program_pages") > made.lpns
    assert count(made, "gc_read_pages", "copyback_pages") == [0, 0] or "streams" in name
    made.check()


def kept_busy(limit, **changes):
    """A drive whose first pages are overwritten without a pause while the others lie there. Return
    (drive, oldest of the others, end of the last write)."""
    made = filled(**limit | {"ftl__over_provisioning": 0.4} | changes)
    rng = np.random.default_rng(1)
    ages = Ages(made)
    items = [(WRITE, int(lpn), 1) for lpn in rng.integers(0, made.lpns // 4, 4_000)]
    made.submit(small.commands(items, made.now))
    while made.outstanding:
        made.run_until(completions=20)
        ages.look()
        assert made.arrays.pair.outstanding.any() or not made.outstanding
    done = made.completions()
    assert len(done) == len(items) and not done["status"].any()
    made.check()
    return made, ages.oldest, int(done["end"].max())


@pytest.mark.parametrize(
    "changes", [{}, {"ftl__gc_priority": "background"}, {"ftl__gc_low_blocks": 1}]
)
def test_a_drive_without_a_pause_refreshes_and_works_on(changes):
    """Units collect all the time, so that a block which is overdue has to get its turn; the host
    gets most of the time."""
    made, oldest, end = kept_busy(OLD, **changes)
    plain, without, end_without = kept_busy({}, **changes)
    assert count(made, "collections") > 50
    assert without > 3 * AGE and oldest <= AGE + slack(made)
    assert oldest > AGE  # not in idle times: there were none
    assert count(made, "refreshed_blocks") >= 2 * (made.lpns * 3 // 4) // 16
    assert end_without < end < (3 if "ftl__gc_low_blocks" in changes else 1.6) * end_without


def test_idle_times_come_first():
    """Between two bursts, each less than 1/16 of the limit long: all blocks move while no command
    is outstanding."""
    made = filled(0.5, ftl__refresh_age="160 ms")
    started = 0
    for _ in range(400):
        made.submit(small.commands([(READ, lpn, 1) for lpn in range(40)], made.now))
        while made.outstanding:
            before = count(made, "refreshed_blocks")
            made.run_until(max_events=1)
            started += count(made, "refreshed_blocks") - before
        made.completions()
        made.run_until(made.now + MS)
    assert count(made, "refreshed_blocks") > 20 and started <= 2


def test_time_that_nobody_asks_for_does_not_pass():
    """A drive with upkeep comes to rest, and what is due later is done when that time comes."""
    made = filled(0.5, **OLD, ftl__scrub_interval="5 ms")
    assert made.now < AGE // 2 and count(made, "refreshed_blocks") == 0
    assert made.idle and made.run() == 0
    made.run_until(made.now + 10 * AGE)
    first = count(made, "refreshed_blocks", "scrub_read_pages")
    assert min(first) > 0
    made.run()
    assert made.run() == 0
    made.submit(small.commands([(READ, 0, 1)], made.now + 10 * AGE))
    made.run()
    second = count(made, "refreshed_blocks", "scrub_read_pages")
    assert all(1.8 * a < b < 2.2 * a for a, b in zip(first, second, strict=True))
    made.check()


@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_upkeep_does_not_depend_on_the_steps_of_time(steps):
    made = filled(0.5, **OLD, ftl__scrub_interval="7 ms", ftl__scrub_pages=2)
    begin = made.now
    for step in range(1, steps + 1):
        made.run_until(begin + 5 * AGE * step // steps)
    found = (made.arrays.count.tobytes(), made.arrays.l2p.tobytes(), made.now)
    test_upkeep_does_not_depend_on_the_steps_of_time.__dict__.setdefault("found", found)
    assert found == test_upkeep_does_not_depend_on_the_steps_of_time.__dict__["found"]


def test_without_the_keys_nothing_moves():
    made = filled(0.5)
    place, counted = made.arrays.l2p.copy(), made.arrays.count.copy()
    assert made.run_until(made.now + 10**6 * MS) == 0
    assert (place == made.arrays.l2p).all() and (counted == made.arrays.count).all()
    assert len(made.arrays.upkeep) == 1


# --- scrubbing


def reads_by_page(made, until):
    """(page, time) of each read of flash up to ``until``, from the counts of reads by page."""
    seen = made.arrays.seen[0].astype(np.int64).copy()
    found = []

    def look():
        now = made.arrays.seen[0].astype(np.int64)
        found.extend((int(ppn), made.registers[0]) for ppn in np.flatnonzero(now != seen))
        assert (now - seen).max() <= 1
        seen[:] = now

    pass_time(made, until, look)
    return found


@pytest.mark.parametrize("pages", [0, 3])
def test_every_block_is_read_once_in_an_interval(pages):
    """All its pages, or as many as the key says, in parts of equal length. Counters, energy and
    stations have each read."""
    made = filled(0.7, ftl__scrub_interval="10 ms", ftl__scrub_pages=pages)
    plain = filled(0.7)
    begin, rounds = made.now, 4
    found = reads_by_page(made, begin + rounds * 10 * MS)
    places = made.arrays.l2p[0, : made.lpns].astype(np.int64)
    places = places[places > 0] - 1
    length = int(made.arrays.cfg.block_pages[0])
    expected = set(places.tolist())
    if pages:
        part = np.searchsorted(np.arange(pages) * length // pages, places % length, "right")
        expected = {
            int(places[(places // length == block) & (part == k)].min())
            for block in set((places // length).tolist())
            for k in set(part[places // length == block].tolist())
        }
    by_page = {ppn: [at for page, at in found if page == ppn] for ppn, _ in found}
    assert set(by_page) == expected
    for times in by_page.values():
        assert rounds - 1 <= len(times) <= rounds + 1
        gaps = np.diff(times)
        assert (abs(gaps - 10 * MS) < 3 * MS).all()  # behind the other pages of its block
    assert count(made, "scrub_read_pages") == int(made.arrays.seen.sum())
    since = count(made, "array_reads") - count(plain, "array_reads")
    assert since == count(made, "ecc_decoded_pages") == count(made, "scrub_read_pages")
    assert count(made, "refreshed_blocks", "refresh_read_pages") == [0, 0]
    made.check()


def test_scrubbing_reads_the_pages_with_most_errors():
    """Of three pages of a word line, the one with most reference voltages."""
    made = filled(0.7, ftl__scrub_interval="10 ms", ftl__scrub_pages=2, flash__cell="TLC",
                  flash__page_types="turns", flash__pages_per_block=12)  # fmt: skip
    found = reads_by_page(made, made.now + 30 * MS)
    scale, cfg = made.arrays.scale, made.arrays.cfg[0]
    of_read = scale[[ppn % cfg.block_pages // cfg.together for ppn, _ in found]]
    assert len(set(np.round(scale, 9).tolist())) > 1 and (of_read == scale.max()).all()


def test_a_host_command_goes_before_scrubbing():
    """Reads of pages that arrive while the dies are read through take at most one read longer."""
    took = []
    for changes in ({}, {"ftl__scrub_interval": "2 ms"}):
        made = filled(0.7, ftl__gc_priority="background", **changes)
        begin = 30 * MS
        made.run_until(begin)
        made.submit(small.commands([(READ, lpn, 1) for lpn in range(200)], begin))
        made.run()
        took.append(int(made.completions()["end"].max()) - begin)
    assert took[0] <= took[1] < 1.2 * took[0]


def test_what_scrubbing_finds_is_refreshed_before_it_is_lost():
    """Data that nobody reads for 60 ms have more wrong bits than the code corrects. Read through
    every 5 ms, and moved from a quarter of them on, none is lost; so it is with an age limit."""
    outcome = {}
    for name, changes in {
        "nothing": {},
        "bits": {"ftl__scrub_interval": "5 ms", "ftl__refresh_bits": 0.25},
        "retries": {"ftl__scrub_interval": "5 ms"},
        "age": OLD,
    }.items():
        made = filled(0.6, **LEAKY | changes | {"ecc__retries": 0 if name == "nothing" else 2})
        made.run_until(made.now + 60 * MS)
        retried = count(made, "retried_pages")
        made.submit(
            small.commands([(READ, lpn, 1) for lpn in range(int(made.lpns * 0.6))], made.now)
        )
        made.run()
        outcome[name] = (
            int((made.completions()["status"] != 0).sum()),
            count(made, "retried_pages") - retried,
            count(made, "refreshed_blocks"),
        )
        assert not count(made, "lost_pages") and made.arrays.quality["weak"].max() <= 1
        made.check()
    failed, _, none = outcome["nothing"]
    assert failed > 200 and none == 0
    for name in ("bits", "retries", "age"):
        failed, retried, refreshed = outcome[name]
        assert failed == 0 and refreshed > 10, name
        assert retried == 0 or name != "age"
    # A quarter of 40 bits is reached after 12.5 ms, 40 bits after 50 ms: 4 times as often.
    assert outcome["bits"][2] > 2.5 * outcome["retries"][2]


def test_data_that_cannot_be_corrected_are_moved_once():
    """With more wrong bits than the code corrects in every page: each block moves once, all data
    are counted as lost once, and stay unreadable, also when collection moves them, until they are
    written again."""
    made = filled(0.5, errors__floor=0.02, ftl__scrub_interval="5 ms")
    pages = int(made.arrays.dev.mapped[0])
    assert made.why == "" and not made.critical_warning
    made.run_until(made.now + 30 * MS)
    names = "newly_lost_pages", "refresh_program_pages", "refreshed_blocks"
    once = count(made, *names)
    assert once[0] == once[1] == pages and pages // 16 <= once[2] <= pages // 16 + 4
    made.run_until(made.now + 60 * MS)
    assert count(made, *names) == once
    assert count(made, "scrub_read_pages") > 10 * pages
    assert f"{pages} pages could not be corrected when the drive moved it" in made.why
    assert made.critical_warning == CriticalWarning.RELIABILITY_DEGRADED
    assert count(made, "media_errors") == 0  # no command has met one
    made.check()


def test_lost_data_stay_lost_after_moves_until_they_are_written():
    """One block goes bad. Where its data are now, every bit can be read: the mark tells."""
    made = filled(0.6, ftl__scrub_interval="5 ms", ftl__gc_low_blocks=1)
    ppn = int(made.arrays.l2p[0, 5]) - 1
    length = int(made.arrays.cfg.block_pages[0])
    block = page_map.block_at(made.state, 0, ppn)
    places = np.asarray(made.arrays.l2p[0, : made.lpns], np.int64) - 1
    lost = np.flatnonzero(places // length == ppn // length)
    made.arrays.quality["cycles"][block] = 1 + made.arrays.cfg.initial_cycles[0]
    made.arrays.quality["cycles"][block] += made.arrays.block["erases"][block]
    made.arrays.quality["stable"][block] = 0.02
    made.run_until(made.now + 20 * MS)
    assert count(made, "newly_lost_pages", "refreshed_blocks") == [len(lost), 1]
    others = np.setdiff1d(np.arange(int(made.lpns * 0.6)), lost)
    rng = np.random.default_rng(3)
    overwritten = others[: len(others) // 2]
    items = [(WRITE, int(lpn), 1) for lpn in rng.choice(overwritten, 1500)]
    for at in range(0, len(items), 50):
        made.submit(small.commands(items[at : at + 50], made.now))
        made.run()
    made.completions()
    moved = np.asarray(made.arrays.l2p[0, lost], np.int64) - 1
    assert count(made, "gc_program_pages") > 0 and count(made, "newly_lost_pages") == len(lost)
    made.submit(small.commands([(READ, int(lpn), 1) for lpn in lost], made.now))
    made.run()
    assert (made.completions()["status"] == Status.UNRECOVERED_READ_ERROR).all()
    assert count(made, "lost_pages") >= len(lost) and len(set(moved)) == len(lost)
    made.submit(small.commands([(WRITE, int(lost[0]), 1), (READ, int(lost[0]), 1)], made.now))
    made.run()
    made.submit(small.commands([(READ, int(lost[0]), 1)], made.now))
    made.run()
    assert made.completions()["status"][-1] == Status.SUCCESS
    made.check()


# --- bytes, power cuts, stores


OFTEN = {
    "ftl__refresh_age": "6 ms", "ftl__scrub_interval": "3 ms", "ftl__refresh_bits": 0.05,
    "ftl__scrub_pages": 3, "ftl__gc_low_blocks": 1, "ftl__trim_maps": "true",
}  # fmt: skip
STORED = {
    "plain": {},
    "word lines, write back": SHAPE | LINES | CACHE,
    "all of these": SHAPE | LINES | CACHE | UNITS | SECTORS,
    "failures": SHAPE | {"ftl__program_failures": 0.005, "ftl__erase_failures": 0.003,
                         "ftl__erase": "collected", "ftl__bad_blocks": 0.02},
    "planes": SHAPE | {"ftl__block_unit": "plane", "ftl__gc_parallel": 2,
                       "flash__suspend": "program_erase", "ftl__gc_copyback": "true"},
}  # fmt: skip


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", STORED)
def test_bytes_survive_refresh_and_power_cuts(name, counts):
    moved = cuts = 0
    for seed in range(counts(2, 20)):
        rng = np.random.default_rng((seed, 5))
        cfg = small.config(**FLAT | {"errors__floor": 5e-4} | OFTEN | STORED[name])
        drive = Drive(cfg, True, strict=True, seed=seed, queues=2)
        held = Versions(drive, cached=cfg.cache.mode == "write_back")
        size = drive.unit_bytes
        for _ in range(30):
            items = [
                (
                    int(rng.choice((WRITE, WRITE, WRITE, READ, TRIM))),
                    int(rng.integers(0, drive.capacity)),
                    int(rng.integers(1, 6 * size // drive.block_bytes)) * drive.block_bytes,
                    0,
                )
                for _ in range(int(rng.integers(1, 16)))
            ]
            what = rng.random()
            if what < 0.15:
                held.cut(items, int(rng.integers(0, 500)), queues=2)
            elif what < 0.25:
                held.run([(FLUSH, 0, 0, 0)])
            else:
                held.run(items, queues=2)
            drive.run_until(drive.now + int(rng.integers(0, 8)) * MS)
            drive.check()
            moved += count(drive, "refresh_program_pages")
        cuts += held.cuts
    assert cuts > 0 and moved > 0


def test_ages_after_a_recovery():
    """They are not known: each block is due within 1/16 of the limit, oldest or not; errors follow
    the same age. What is written afterwards has its own."""
    made = Drive(small.config(**FLAT | OLD, ftl__trim_maps="true"), True, strict=True)
    made.buffer = np.ones(1 << 20, np.uint8)
    size = made.unit_bytes
    commands = np.zeros(100, queues.COMMAND)
    commands["op"], commands["size"] = WRITE, size
    commands["offset"] = commands["data"] = np.arange(100) * size
    made.submit(commands)
    made.run()
    made.power_cut(0)
    made.power_on()
    since = made.arrays.quality["since"][np.asarray(made.arrays.valid) > 0]
    assert (since == LEAD - AGE).all() and len(since) > 4
    made.run_until(made.now + AGE // 2)
    held = np.asarray(made.arrays.valid) > 0
    assert (made.arrays.quality["since"][held] > 0).all()
    refreshed = count(made, "refreshed_blocks")
    assert refreshed >= len(since)
    made.check()


def test_a_clean_stop_keeps_ages_and_rounds(tmp_path):
    found = []
    for closes in (False, True):
        cfg = small.config(**FLAT | OLD, ftl__scrub_interval="7 ms", ftl__trim_maps="true")
        folder = tmp_path / str(closes)
        made = Drive(cfg, True, strict=True, store=folder)
        made.write(0, np.arange(8192 // 8))
        made.flush()
        made.run_until(made.now + AGE // 2)
        if closes:
            made.close()
            made = Drive(cfg, True, strict=True, store=folder)
            assert made.started.value == "checkpoint"
        made.run_until(2 * AGE)
        found.append((made.now, count(made, "refreshed_blocks", "scrub_read_pages")))
        made.close()
    assert found[0] == found[1] and min(found[0][1]) > 0


# --- service, refusals, books


def test_a_service_refreshes_in_the_idle_time_that_it_is_asked_for():
    """Seven weeks in which data move seven times; and data that are read through every day."""
    cfg = small.config(**FLAT | {"ftl__refresh_age": "604800 s", "ftl__scrub_interval": "86400 s"})
    drive = Drive(cfg, True)
    drive.buffer = np.ones(1 << 20, np.uint8)
    with Service(drive) as service:
        command = np.zeros(1, queues.COMMAND)
        command["op"], command["size"] = WRITE, 4096
        assert service.submit(command).result()["status"][0] == 0
        for _ in range(7):
            assert len(service.idle(604_800.0).result()) == 0
        assert drive.now == pytest.approx(49 * 86_400e12)
    moved, read = count(drive, "refresh_program_pages", "scrub_read_pages")
    pages = 4096 // drive.unit_bytes
    assert moved == 7 * pages and 47 * pages <= read <= 50 * pages
    drive.check()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"errors__kind": "none", "ftl__refresh_age": "1 s"}, "errors.kind.*ftl.refresh_age"),
        ({"errors__kind": "none", "ftl__scrub_interval": "1 s"}, "errors.kind.*ftl.scrub_interval"),
        ({"ftl__refresh_bits": 0.5}, "ftl.scrub_interval.*ftl.refresh_bits"),
        ({"ftl__scrub_pages": 1}, "ftl.scrub_interval.*ftl.scrub_pages"),
        ({"ftl__scrub_interval": "1 s", "ftl__refresh_bits": 1.5}, "ftl.refresh_bits"),
        ({"ftl__refresh_age": "1 s", "ftl__map_update": "placed"}, "ftl.map_update"),
        (
            {"ftl__refresh_age": "60 d", "errors__initial_days": 1},
            "refresh_age = .60 d.*1 d old at the start.*ends after 53.37 d.*below 54.37 d",
        ),
        ({"ftl__scrub_interval": "54 d"}, "scrub_interval = .54 d.*ends after 53.37 d"),
    ],
)
def test_keys_that_do_not_go_together(changes, words):
    with pytest.raises(InputError, match=words):
        small.config(**FLAT | changes)


def test_ages_in_days_up_to_the_end_of_the_clock():
    assert CLOCK_END_PS == NEVER
    cfg = small.config(**FLAT | {"ftl__refresh_age": "60 d", "errors__initial_days": 7})
    assert cfg.ftl.refresh_age_ps == 60 * 86_400 * 10**12


@pytest.mark.parametrize(
    "name", ["scrub_read_pages", "refresh_read_pages", "refresh_program_pages"]
)
def test_a_page_that_is_counted_twice_is_found(name):
    made = filled(0.5, **OLD, ftl__scrub_interval="7 ms")
    made.run_until(made.now + 3 * AGE)
    made.run()
    made.check()
    made.arrays.count[0, COUNTERS.index(name)] += 1
    with pytest.raises(Imbalance, match="pages"):
        made.check()


def test_blocks_on_their_way_out_are_not_refreshed_twice():
    """A unit refreshes one block at a time, also with several collections."""
    made = filled(0.6, **OLD | DRIVES["planes"])
    most = 0

    def look():
        nonlocal most
        state = made.arrays.block["state"]
        victims = np.bincount(
            np.flatnonzero(state == page_map.VICTIM) // int(made.arrays.cfg.all_blocks[0]),
            minlength=1,
        )
        most = max(most, int(victims.max()))

    pass_time(made, made.now + 2 * AGE, look)
    assert most == 1


def test_an_interval_that_is_too_short_leaves_the_host_its_dies():
    """Scrubbing is behind for ever, and takes at most a quarter of the time of a die meanwhile."""
    made = filled(0.9, ftl__scrub_interval="10 us", ftl__gc_priority="exclusive")
    start, at = made.now, COUNTERS.index("scrub_read_pages")
    before = int(made.arrays.count[0, at])
    writes = np.random.default_rng(4).integers(0, int(made.lpns * 0.9), 2000).tolist()
    made.submit(small.commands([(WRITE, lpn, 1) for lpn in writes], arrival=start))
    made.run(max_events=2_000_000)
    assert made.outstanding == 0
    reads = int(made.arrays.count[0, at]) - before
    share = reads * made.cfg.flash.t_read_ps / (made.geometry.dies * (made.now - start))
    assert 0.05 < share <= 0.25
