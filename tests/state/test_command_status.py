"""Commands that a served drive cannot execute end with a status, and the drive goes on: full, worn
out, write fault, a defect of the engine, a power cut, bad input."""

import json
from typing import Any

import numpy as np
import pytest

from ondie.emu.clock import NEVER
from ondie.emu.drive import CommandError, Drive
from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.core.conservation import Imbalance
from ondie.emu.engine.run import build
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.ftl import page_map, read_retry
from ondie.emu.nvme.command import COMMAND, COMPLETION, FLUSH, READ, TRIM, WRITE
from ondie.emu.nvme.status import Condition, CriticalWarning, Status
from ondie.emu.paths.base import Rows
from ondie.emu.units import InputError
from tests.state.written import config

SHAPE = {
    "flash__channels": 2,
    "flash__dies_per_channel": 1,
    "flash__planes_per_die": 2,
    "flash__blocks_per_plane": 12,
    "flash__pages_per_block": 6,
    "flash__page": "4 KiB",
    "ftl__block_unit": "die",
    "ftl__gc_low_blocks": 1,
    "ftl__over_provisioning": 0.02,
    "frontend__max_transfer": "32 KiB",
    "host__io_queue_depth": 16,
}
CACHE = {"cache__capacity": "64 KiB"}
UNITS = {"flash__page": "16 KiB", "ftl__mapping_unit": "4 KiB"}
MODES: dict[str, dict[str, Any]] = {
    "no cache": {},
    "write back": CACHE | {"cache__mode": "write_back"},
    "write through": CACHE | {"cache__mode": "write_through"},
    "read cache": CACHE | {"cache__mode": "read"},
    "idle destage": CACHE | {"cache__mode": "write_back", "cache__destage_idle": "true"},
    "mapping units": UNITS,
    "mapping units, write back": UNITS | CACHE | {"cache__mode": "write_back"},
    "by plane": {"ftl__block_unit": "plane", "ftl__gc_parallel": 2},
    "static": {"ftl__placement": "static"},
    "filled blocks": {"ftl__gc_checks": "filled"},
    "map cache": {"ftl__map_cache": "256 B", "ftl__over_provisioning": 0.06},
    "word lines": {"flash__programming": "one_shot", "pe__kind": "none", "flash__cell": "TLC",
                   "flash__pages_per_block": 12},
}  # fmt: skip
SPARE, DEGRADED = CriticalWarning.SPARE_BELOW_THRESHOLD, CriticalWarning.RELIABILITY_DEGRADED
PROTECTED, BACKUP = CriticalWarning.READ_ONLY, CriticalWarning.VOLATILE_MEMORY_BACKUP_FAILED


pytestmark = pytest.mark.usefixtures("few_transactions")


class Pages:
    """A drive and, for each mapping unit, the stamps that it may hold (0: zeros). A write that has
    failed leaves the old or the new stamp."""

    def __init__(self, mode: str = "no cache", payload: bool = True, **changes: Any) -> None:
        options = {key: changes.pop(key) for key in ("strict", "queues", "seed") if key in changes}
        cfg = config(**(SHAPE | MODES[mode] | changes))
        self.drive = Drive(cfg, payload=payload, **options)
        self.size, self.count = self.drive.unit_bytes, self.drive.units
        self.held: list[set[int]] = [{0} for _ in range(self.count)]
        self.stamp = 0
        self.statuses: dict[int, int] = {}
        if payload:
            self.buffer = np.zeros((256, self.size // 8), np.int64)
            self.drive.buffer = self.buffer

    def commands(self, items: list[tuple[int, ...]]) -> np.ndarray:
        """COMMAND of (op, first unit, units[, fua]), whose bytes lie one after the other."""
        out, slot = np.zeros(len(items), COMMAND), 0
        for at, (op, unit, n, *fua) in enumerate(items):
            out[at]["op"], out[at]["offset"], out[at]["size"] = op, unit * self.size, n * self.size
            out[at]["data"] = -1
            out[at]["fua"] = bool(fua and fua[0])
            if op <= WRITE and self.drive.buffer is not None:
                out[at]["data"] = slot * self.size
                slot += n
        out["tag"], out["arrival"] = np.arange(len(items)), self.drive.earliest_arrival
        return out

    def run(self, items: list[tuple[int, ...]]) -> list[int]:
        """Run commands that share no unit until all have completed, and compare what is read;
        return their statuses in order."""
        batch = self.commands(items)
        if self.drive.buffer is not None:
            self.buffer[:] = -1
            for command, (op, _, n, *_) in zip(batch, items, strict=True):
                if op == WRITE:
                    first = int(command["data"]) // self.size
                    self.buffer[first : first + n] = self.stamp + 1 + np.arange(n)[:, None]
                    self.stamp += n
        self.drive.submit(batch)
        self.drive.run_until(completions=len(batch))
        done = self.drive.completions()
        assert sorted(done["tag"]) == list(range(len(batch))) and self.drive.outstanding == 0
        assert self.drive.defect is None, self.drive.why
        statuses = done["status"][np.argsort(done["tag"])].tolist()
        for status in statuses:
            self.statuses[status] = self.statuses.get(status, 0) + 1
        if self.drive.buffer is not None:
            for command, item, status in zip(batch, items, statuses, strict=True):
                self.account(item, int(command["data"]) // self.size, status)
        self.drive.check()
        return statuses

    def account(self, item: tuple[int, ...], slot: int, status: int) -> None:
        op, unit, n, *_ = item
        for i in range(n):
            found = int(self.buffer[slot + i, 0]) if op <= WRITE else 0
            if op == WRITE:
                self.held[unit + i] = {found} if status == 0 else self.held[unit + i] | {found}
            elif op == TRIM and status == 0:
                self.held[unit + i] = {0}
            elif op == READ:
                assert status == 0
                assert (self.buffer[slot + i] == found).all() and found in self.held[unit + i]
                self.held[unit + i] = {found}

    def fill(self) -> list[int]:
        """Write all units; return the statuses."""
        found = []
        for first in range(0, self.count, 64):
            units = range(first, min(first + 64, self.count), 4)
            found += self.run([(WRITE, unit, min(4, self.count - unit)) for unit in units])
        return found

    def compare(self) -> None:
        for first in range(0, self.count, 64):
            units = range(first, min(first + 64, self.count))
            self.run([(READ, unit, 1) for unit in units])

    def settle(self) -> None:
        self.drive.run()
        self.drive.check()


def modes(*left_out: str) -> Any:
    return pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in left_out])


CACHED = [mode for mode in MODES if MODES[mode].get("cache__mode") == "write_back"]


# --- full


@pytest.mark.one_in(5)
@modes()
def test_writes_to_a_full_drive_end(mode):
    """With CAPACITY_EXCEEDED, also those that come later; reads, trims and flushes do not."""
    pages = Pages(mode)
    found = pages.fill()
    assert set(found) == {0, Status.CAPACITY_EXCEEDED} and found[0] == 0
    again = pages.run([(WRITE, 0, 1), (WRITE, 9, 2)])
    assert Status.CAPACITY_EXCEEDED in again
    drive = pages.drive
    assert drive.condition is Condition.ONLINE and "is full" in drive.why
    assert len(drive.why.splitlines()) == 1
    assert drive.critical_warning & ~BACKUP == 0
    pages.compare()
    assert pages.run([(FLUSH, 0, 0)]) == [Status.WRITE_FAULT if mode in CACHED else 0]
    pages.settle()
    pages.compare()


@pytest.mark.one_in(5, start=1)
@modes()
def test_trim_frees_a_full_drive(mode):
    """Stalled writes hold nothing that collection needs: a TRIM of half the drive is enough."""
    pages = Pages(mode)
    for _ in range(3):
        pages.fill()
        assert "is full" in pages.drive.why
        half = pages.count // 2
        assert pages.run([(TRIM, 0, half)]) == [0] and pages.drive.why == ""
        for first in range(0, half // 2, 8):
            assert set(pages.run([(WRITE, unit, 1) for unit in range(first, first + 8)])) == {0}
        assert pages.run([(FLUSH, 0, 0)]) == [0]
        pages.settle()
        pages.compare()
        pages.settle()
        cache = pages.drive.arrays.cache[0]
        assert cache.flying == 0 and pages.drive.critical_warning == 0
    assert pages.drive.arrays.dev.refused_pages[0] > 0


@pytest.mark.parametrize("mode", CACHED)
def test_a_full_cache_keeps_what_it_has_acknowledged(mode):
    """Writes that completed stay in the cache, though flash has no place: reads find them, FLUSH
    says that they are not on flash, and they get there after a TRIM."""
    pages = Pages(mode)
    pages.fill()
    drive = pages.drive
    pages.settle()
    held = int(drive.arrays.cache.contents[0])
    assert held > 0 and drive.critical_warning == BACKUP
    assert pages.run([(FLUSH, 0, 0), (WRITE, 0, 1), (WRITE, 1, 1, 1)]) == [
        Status.WRITE_FAULT, Status.CAPACITY_EXCEEDED, Status.CAPACITY_EXCEEDED,
    ]  # fmt: skip
    assert drive.arrays.cache.contents[0] == held
    pages.compare()
    pages.run([(TRIM, pages.count // 4, pages.count // 2)])
    pages.settle()
    assert pages.run([(FLUSH, 0, 0)]) == [0]
    assert drive.critical_warning == 0 and drive.arrays.cache.contents[0] == 0
    pages.settle()
    pages.compare()


@pytest.mark.one_in(5, start=3)
@modes()
def test_when_a_full_drive_ends_writes_does_not_depend_on_the_steps(mode):
    """At once, event by event, and in steps of time: the same completions to the picosecond."""
    found = []
    for way in ("at once", "events", "time"):
        pages = Pages(mode, payload=False)
        items: list[tuple[int, ...]] = []
        for unit in range(pages.count):
            items.append((WRITE, unit, 1, unit % 7 == 0))
            if unit % 5 == 0:
                items.append((READ, unit // 2, 1))
        items += [*items[:100], (FLUSH, 0, 0), (TRIM, 0, 64), *items[:30]]
        batch = pages.commands(items)
        batch["arrival"] = np.arange(len(batch)) * 50_000_000
        pages.drive.submit(batch)
        while way == "events" and pages.drive.outstanding:
            pages.drive.run_until(NEVER - 1 if pages.drive.next_event >= NEVER else None, 1)
        while way == "time" and pages.drive.outstanding:
            pages.drive.run_until(pages.drive.now + 77_000_000)
        pages.drive.run()
        pages.drive.check()
        found.append(pages.drive.completions())
    assert set(found[0]["status"]) >= {0, Status.CAPACITY_EXCEEDED}
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def drawn(rng: np.random.Generator, count: int) -> list[tuple[int, ...]]:
    """Commands on units that do not meet."""
    free, items = np.ones(count, bool), []
    for _ in range(int(rng.integers(1, 32))):
        op = int(rng.choice([READ, WRITE, TRIM, FLUSH], p=[0.25, 0.6, 0.1, 0.05]))
        n = int(rng.integers(1, 9))
        unit = int(rng.integers(0, count - n))
        if op == FLUSH:
            unit = n = 0
        if free[unit : unit + n].all():
            free[unit : unit + n] = False
            items.append((op, unit, n, op == WRITE and rng.random() < 0.1))
    return items


@pytest.mark.one_in(5, start=4)
@pytest.mark.timeout(1800)
@modes()
def test_histories_of_a_drive_that_is_full_and_trimmed(mode, counts):
    """Driven full, trimmed by chance, written again; each unit holds what a dictionary says."""
    total: dict[int, int] = {}
    for seed in range(counts(2, 8)):
        rng = np.random.default_rng(seed)
        pages = Pages(mode, ftl__over_provisioning=0.06 if mode == "map cache" else 0.02)
        pages.fill()
        for _ in range(counts(40, 120)):
            pages.run(drawn(rng, pages.count))
            if rng.random() < 0.1:
                first = int(rng.integers(0, pages.count // 2))
                pages.run([(TRIM, first, int(rng.integers(1, pages.count // 2)))])
            if rng.random() < 0.2:
                pages.settle()
        pages.compare()
        pages.run([(TRIM, 0, pages.count)])
        pages.settle()
        assert pages.run([(WRITE, unit, 1) for unit in range(16)]) == [0] * 16
        pages.settle()
        pages.compare()
        for status, n in pages.statuses.items():
            total[status] = total.get(status, 0) + n
    assert total[0] > 0 and total[Status.CAPACITY_EXCEEDED] > 0
    assert set(total) <= {0, Status.CAPACITY_EXCEEDED, Status.WRITE_FAULT}


def test_a_strict_drive_raises():
    pages = Pages(payload=False, strict=True)
    pages.drive.submit(pages.commands([(WRITE, unit, 1) for unit in range(pages.count)]))
    with pytest.raises(InputError, match="device 0 is full"):
        pages.drive.run()


def test_reads_go_on_while_a_drive_is_full():
    """A write that finds no space completes while reads keep the drive busy."""
    pages = Pages(payload=False)
    pages.fill()
    batch = pages.commands([(READ, unit % 64, 1) for unit in range(400)])
    batch[7]["op"] = WRITE
    pages.drive.submit(batch)
    pages.drive.run()
    done = pages.drive.completions()
    at = int(np.flatnonzero(done["status"])[0])
    assert done["tag"][at] == 7 and done["status"][at] == Status.CAPACITY_EXCEEDED
    assert at < 100


def test_a_plan_on_a_full_drive_raises_and_commands_go_on():
    """A plan is the user's input: it ends with the error that replays and comparisons raise."""
    pages = Pages(payload=False)
    pages.fill()
    plan = Rows()
    plan.add(4, resource=rows.NVME, kind=WRITE, bytes_in=4096, lpn=np.arange(4))
    pages.drive.start([plan.take()])
    with pytest.raises(InputError, match="device 0 is full"):
        pages.drive.run()
    assert pages.drive.condition is Condition.ONLINE
    pages.drive.submit(pages.commands([(TRIM, 50, 60), (READ, 0, 1)]))
    pages.drive.run()
    assert pages.drive.completions()["status"].tolist() == [0, 0] and pages.drive.plan_done
    pages.drive.check()


# --- worn out, write fault, media error


WEAR = {
    "programs": {"ftl__program_failures": 0.02},
    "erases": {"ftl__erase_failures": 0.3, "ftl__erase": "collected"},
}
ROOMY = {"ftl__over_provisioning": 0.5, "flash__blocks_per_plane": 24}


def worn(pages: Pages, rng: np.random.Generator) -> None:
    """Write until the drive is read-only."""
    for _ in range(400):
        pages.run([item for item in drawn(rng, pages.count) if item[0] != TRIM])
        if pages.drive.condition is Condition.READ_ONLY:
            return
    raise AssertionError(f"not worn out: {pages.drive.arrays.dev.spare[0]} spare blocks")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("how", WEAR)
@modes("static", "filled blocks")
def test_a_drive_without_spare_blocks_is_read_only(mode, how, counts):
    """Writes and trims are refused, reads and flushes are not, and all data are there."""
    for seed in range(counts(1, 4)):
        rng = np.random.default_rng(seed)
        pages = Pages(mode, seed=seed, **(ROOMY | WEAR[how]))
        drive = pages.drive
        assert drive.arrays.dev.spare_at_start[0] > 0 and drive.critical_warning == 0
        worn(pages, rng)
        assert "bad blocks have used up the spare blocks" in drive.why
        assert drive.critical_warning & ~(DEGRADED | BACKUP) == SPARE | PROTECTED
        refused = Status.NAMESPACE_WRITE_PROTECTED
        found = pages.run([(WRITE, 0, 2), (TRIM, 8, 8), (READ, 20, 4), (WRITE, 30, 1, 1)])
        assert found == [refused, refused, 0, refused]
        assert pages.run([(FLUSH, 0, 0)])[0] in (0, Status.WRITE_FAULT)
        pages.settle()
        pages.compare()
        assert {0, refused} <= set(pages.statuses)
        mapped = int(drive.arrays.dev.mapped[0])
        pages.run([(TRIM, 0, pages.count)])
        assert drive.arrays.dev.mapped[0] == mapped


def test_spare_blocks_are_counted():
    """As many blocks as a drive can lose; each that fails is one less."""
    pages = Pages(ftl__program_failures=0.005, **ROOMY)
    drive, rng = pages.drive, np.random.default_rng(2)
    start, seen = int(drive.arrays.dev.spare_at_start[0]), set()
    while drive.condition is Condition.ONLINE:
        pages.run([item for item in drawn(rng, pages.count) if item[0] != TRIM])
        bad = int((drive.arrays.block.state == page_map.BAD).sum())
        lost = bad + int(drive.arrays.pool.retiring.sum())
        assert drive.arrays.dev.spare[0] == start - lost
        below = start - lost < 0.1 * start or drive.condition is Condition.READ_ONLY
        assert (SPARE in drive.critical_warning) == below
        seen.add(start - lost)
    assert len(seen) > 4 and min(seen) <= 0


def test_a_failed_program_without_another_page_is_a_write_fault():
    """The last free pages fail: WRITE_FAULT for these writes, and the drive is read-only."""
    found: set[int] = set()
    for seed in range(40):
        pages = Pages(ftl__program_failures=0.02, ftl__over_provisioning=0.05, seed=seed)
        pages.fill()
        pages.settle()
        found |= set(pages.statuses)
        faults = int(pages.drive.arrays.dev.faults[0])
        assert faults == pages.statuses.get(Status.WRITE_FAULT, 0)
        assert (DEGRADED in pages.drive.critical_warning) == (faults > 0)
        pages.compare()
    assert found == {
        0, Status.WRITE_FAULT, Status.CAPACITY_EXCEEDED, Status.NAMESPACE_WRITE_PROTECTED,
    } or found == {0, Status.WRITE_FAULT, Status.NAMESPACE_WRITE_PROTECTED}  # fmt: skip


def test_a_media_error_degrades_the_drive():
    changes = {"errors__kind": "rate", "errors__rate": "4e-3", "ecc__correctable_bits": 20}
    pages = Pages(payload=False, ftl__over_provisioning=0.4, **changes)
    pages.run([(WRITE, unit, 1) for unit in range(64)])
    found = pages.run([(READ, unit, 1) for unit in range(64)])
    assert Status.UNRECOVERED_READ_ERROR in found
    assert read_retry.UNRECOVERED == Status.UNRECOVERED_READ_ERROR
    assert pages.drive.critical_warning == DEGRADED
    assert pages.drive.condition is Condition.ONLINE and pages.drive.why == ""


# --- a defect of the engine


def broken(how: str, **options: Any) -> Pages:
    """A drive with commands in flight and in wait, of which one meets a defect."""
    pages = Pages(ftl__over_provisioning=0.4, queues=2, **options)
    drive = pages.drive
    batch = pages.commands([(WRITE, unit, 1) for unit in range(60)])
    batch["queue"] = np.arange(60) % 2
    batch["arrival"] = np.arange(60) * 20_000_000
    drive.submit(batch)
    drive.run_until(batch["arrival"][20])
    if how == "clock":
        drive.arrays.reg.now[0] = 10**15
    elif how == "bytes":
        front = drive.arrays.front[0, 0]
        first = int(front.block) * drive.geometry.block_pages + int(front.next)
        for ppn in range(first, (int(front.block) + 1) * drive.geometry.block_pages):
            drive.store.write(ppn, 5, np.ones(pages.size, np.uint8))
    elif how == "stuck":
        drive.arrays.pair["outstanding"][1] = 99
    return pages


ERRORS = {"clock": SimulationError, "bytes": InputError, "stuck": SimulationError}


@pytest.mark.parametrize("how", ERRORS)
def test_after_a_defect_a_drive_is_offline(how, tmp_path):
    """All commands in flight and those that follow complete with INTERNAL_ERROR; nothing raises."""
    pages = broken(how)
    drive = pages.drive
    before = drive.completions()
    drive.run()
    assert isinstance(drive.defect, ERRORS[how])
    assert drive.condition is Condition.OFFLINE and type(drive.defect).__name__ in drive.why
    assert len(drive.why.splitlines()) == 1 and DEGRADED in drive.critical_warning
    done = drive.completions()
    assert sorted([*before["tag"], *done["tag"]]) == list(range(60)) and drive.outstanding == 0
    assert set(done["status"]) <= {0, Status.INTERNAL_ERROR}
    ended = done[done["status"] != 0]
    assert len(ended) and (ended["queue"] == ended["tag"] % 2).all()
    assert (ended["start"] >= ended["arrival"]).all() and (ended["end"] >= ended["start"]).all()
    later = pages.commands([(READ, 0, 1), (WRITE, 1, 1), (FLUSH, 0, 0)])
    drive.submit(later)
    done = drive.completions()
    assert done.dtype == COMPLETION and done["tag"].tolist() == [0, 1, 2]
    assert (done["status"] == Status.INTERNAL_ERROR).all() and drive.outstanding == 0
    assert (done["end"] == later["arrival"]).all()
    assert drive.run_until(drive.now + 1000, completions=1) == 0 and drive.run() == 0
    with pytest.raises(InputError, match="size = 0"):
        drive.submit(pages.commands([(READ, 0, 0)]))
    with pytest.raises(CommandError, match="internal error") as caught:
        drive.read(0, pages.size)
    assert caught.value.status == Status.INTERNAL_ERROR
    drive.check()
    file = tmp_path / "report.json"
    drive.save_report(file)
    told = json.loads(file.read_text())
    assert told["condition"] == "offline" and told["defect"]["message"] == str(drive.defect)
    assert told["registers"]["now"] == int(drive.arrays.reg.now[0])
    assert told["counters"]["commands"] == drive.arrays.count[0, stats.COMMANDS]
    assert told["configuration"] == json.loads(json.dumps(drive.cfg.resolved()))
    assert len(told["queue_pairs"]) == 2 and "traceback" in told["defect"]
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(InputError, match="cannot be written"):
        drive.save_report(tmp_path)  # a folder


@pytest.mark.parametrize("how", ERRORS)
def test_a_strict_drive_raises_its_defect(how):
    pages = broken(how, strict=True)
    with pytest.raises(ERRORS[how]):
        pages.drive.run()
    assert pages.drive.defect is None


@pytest.mark.parametrize("strict", [True, False])
def test_books_that_do_not_balance_are_a_defect(strict):
    pages = Pages(strict=strict, ftl__over_provisioning=0.4)
    pages.run([(WRITE, 0, 4)])
    pages.drive.arrays.count[0, stats.PROGRAM_PAGES] += 1
    with pytest.raises(Imbalance, match="pages written"):
        pages.drive.check()
    assert pages.drive.condition is (Condition.ONLINE if strict else Condition.OFFLINE)
    if not strict:
        assert "Imbalance" in pages.drive.why
        with pytest.raises(InputError, match="offline"):
            pages.drive.start([])


def test_commands_that_wait_for_the_ring_end_too(monkeypatch):
    """More commands than a ring holds, in one queue; all are reported once."""
    monkeypatch.setattr(build, "PAIR_RING", 64)
    pages = Pages(payload=False, ftl__over_provisioning=0.4)
    drive = pages.drive
    drive.submit(pages.commands([(WRITE, unit % 80, 1) for unit in range(300)]))
    drive.run_until(max_events=500)
    drive.arrays.reg.now[0] = 10**16
    drive.run()
    assert drive.condition is Condition.OFFLINE
    assert sorted(drive.completions()["tag"]) == list(range(300))


def test_an_error_of_a_plan_is_not_one_of_the_engine():
    pages = Pages(payload=False, ftl__over_provisioning=0.4)

    def plan() -> Any:
        raise KeyError("no such step")
        yield

    with pytest.raises(KeyError):
        pages.drive.start(plan())
        pages.drive.run()
    assert pages.drive.condition is Condition.ONLINE


# --- power cut, bad input


@pytest.mark.parametrize("mode", ["no cache", "write back", "mapping units"])
def test_commands_in_flight_at_a_cut_never_complete(mode):
    pages = Pages(mode, ftl__over_provisioning=0.4)
    drive = pages.drive
    drive.submit(pages.commands([(WRITE, unit, 1) for unit in range(64)]))
    drive.power_cut(150)
    done = drive.completions()
    assert 0 < len(done) < 64 and not done["status"].any()
    assert drive.condition is Condition.OFFLINE and drive.why == "the power was cut"
    for call in (lambda: drive.submit(pages.commands([(READ, 0, 1)])), drive.run):
        with pytest.raises(InputError, match="after a power cut"):
            call()
    assert len(drive.completions()) == 0


BAD: dict[str, tuple[dict[str, int], str]] = {
    "past the end": ({"offset": 1 << 40}, "offset = "),
    "ends past the end": ({"size": 1 << 14}, "last byte"),
    "size 0": ({"size": 0}, "size = 0"),
    "odd sectors": ({"size": 1000}, "size = 1000"),
    "odd offset": ({"offset": 100}, "offset = 100"),
    "unknown queue": ({"queue": 7}, "queue = 7"),
    "buffer too small": ({"data": 255 * 4096 + 1}, "buffer of 1048576 bytes"),
    "time backwards": ({"arrival": 5}, "arrival = 5"),
    "time 2**62": ({"arrival": 1 << 62}, f"arrival = {1 << 62}"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_commands_leave_the_drive_as_it_was(what):
    pages = Pages(ftl__over_provisioning=0.4)
    pages.run([(WRITE, 0, 8)])
    drive = pages.drive
    drive.run_until(10**9)
    changes, words = BAD[what]
    batch = pages.commands([(WRITE, pages.count - 1, 1)])
    for name, value in changes.items():
        batch[name] = value
    now, events = drive.now, drive.events
    with pytest.raises(InputError, match=words) as caught:
        drive.submit(batch)
    assert len(str(caught.value).splitlines()) == 1
    assert (drive.now, drive.events, drive.outstanding) == (now, events, 0)
    assert pages.run([(WRITE, 8, 8), (READ, 0, 8)]) == [0, 0]


@pytest.mark.parametrize("t_ps", [5, 1 << 62, -1])
def test_bad_times_leave_the_drive_as_it_was(t_ps):
    pages = Pages(ftl__over_provisioning=0.4)
    pages.run([(WRITE, 0, 8)])
    pages.drive.run_until(10**10)
    with pytest.raises(InputError, match=f"t_ps = {t_ps}"):
        pages.drive.run_until(t_ps)
    assert pages.drive.now == 10**10
    assert pages.run([(WRITE, 8, 8), (READ, 0, 8)]) == [0, 0]


def test_a_depth_of_0_is_refused():
    with pytest.raises(InputError, match="queue_depth = 0"):
        Drive(config(**SHAPE), queue_depth=0)
