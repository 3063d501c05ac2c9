"""A drive that is served: sectors, four queues, bytes in every mode of the cache; and the times are
those of a replay."""

import sys
from typing import Any

import numpy as np
import pytest

from ondie.emu.drive import Drive, MediaError
from ondie.emu.engine.core import payload_log
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.run import build
from ondie.emu.nand import page_store
from ondie.emu.nvme import command as queues
from ondie.emu.nvme.request import FLUSH, READ, TRIM, WRITE
from ondie.emu.paths.base import Rows
from ondie.emu.replay.player import Player, Source
from ondie.emu.units import InputError
from ondie.kernels import native
from tests.state.written import config, requests

SECTOR = 512
QUEUES = 4
SMALL = {
    "flash__channels": 2,
    "flash__dies_per_channel": 1,
    "flash__planes_per_die": 2,
    "flash__blocks_per_plane": 16,
    "flash__pages_per_block": 6,
    "flash__page": "4 KiB",
    "ftl__block_unit": "die",
    "ftl__gc_low_blocks": 2,
    "ftl__over_provisioning": 0.35,
    "frontend__max_transfer": "32 KiB",
    "host__io_queue_depth": 16,
}
MODES: dict[str, dict[str, Any]] = {
    "no cache": {},
    "write back": {"cache__mode": "write_back", "cache__capacity": "64 KiB"},
    "a small cache": {"cache__mode": "write_back", "cache__capacity": "16 KiB",
                      "cache__dirty_share": 0.5},
    "idle destage": {"cache__mode": "write_back", "cache__capacity": "64 KiB",
                     "cache__destage_idle": "true"},
    "write through": {"cache__mode": "write_through", "cache__capacity": "64 KiB"},
    "read cache": {"cache__mode": "read", "cache__capacity": "64 KiB"},
    "read and write cache": {"cache__mode": "read_write", "cache__capacity": "64 KiB"},
    "mapping units": {"ftl__mapping_unit": "1 KiB", "cache__mode": "write_back",
                      "cache__capacity": "64 KiB"},
    "mapping units, no cache": {"ftl__mapping_unit": "2 KiB"},
    "word lines": {"flash__programming": "one_shot", "pe__kind": "none",
                   "flash__pages_per_block": 12, "flash__cell": "TLC",
                   "cache__mode": "write_back", "cache__capacity": "128 KiB"},
    "word lines, no cache": {"flash__programming": "two_pass", "pe__kind": "none",
                             "flash__pages_per_block": 12, "flash__cell": "TLC",
                             "ftl__gather_time": "1 ms", "flash__t_program_second": "500 us",
                             "ftl__over_provisioning": 0.5},
    "pSLC": {"ftl__pslc": "dynamic", "ftl__pslc_share": 0.2, "flash__cell": "TLC",
             "ftl__over_provisioning": 0.5, "flash__blocks_per_plane": 24},
    "by plane": {"ftl__block_unit": "plane", "ftl__gc_parallel": 2},
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("few_transactions")


def settings(mode: str, **changes: Any) -> Any:
    return config(**(SMALL | MODES[mode] | changes))


# --- the same times as in a replay


def history(rng: np.random.Generator, capacity: int, n: int) -> np.ndarray:
    """REQUEST[n]: reads, writes, trims and flushes of any sectors, in bursts and after pauses."""
    sectors = capacity // SECTOR
    op = rng.choice([READ, WRITE, TRIM, FLUSH], n, p=[0.4, 0.5, 0.05, 0.05])
    size = np.minimum(rng.geometric(0.12, n), 64)
    at = rng.integers(0, sectors - 64, n)
    gap = np.where(rng.random(n) < 0.6, 0, rng.exponential(60e6, n).astype(np.int64))
    size, at = np.where(op == FLUSH, 0, size), np.where(op == FLUSH, 0, at)
    return requests(at * SECTOR, size * SECTOR, op, np.cumsum(gap))


def replayed(cfg: Any, given: np.ndarray, depth: int) -> np.ndarray:
    arrays = build.build(cfg, devices=1, phases=1, pairs=1)
    (done,) = Player(arrays, cfg, [Source(iter([given]), depth, False)]).run().requests
    return done


def served(cfg: Any, given: np.ndarray, depth: int, rng: np.random.Generator) -> np.ndarray:
    """The same in batches of any length, each submitted before its first arrival, with the clock
    moved on between them in steps of any length."""
    drive = Drive(cfg, queue_depth=depth, block_bytes=SECTOR)  # not strict: ends cost no time
    batch = np.zeros(len(given), queues.COMMAND)
    for name in ("op", "offset", "size", "arrival"):
        batch[name] = given[name]
    batch["data"], batch["tag"] = -1, np.arange(len(given))
    at = 0
    while at < len(batch):
        count = int(rng.integers(1, 12))
        drive.submit(batch[at : at + count])
        at += count
        if at < len(batch):
            before = int(batch["arrival"][at])
            kind = rng.integers(3)
            if kind == 0 and before > drive.now:
                drive.run_until(int(rng.integers(drive.now, before)))
            elif kind == 1 and before > drive.now:
                drive.run_until(before - 1, int(rng.integers(1, 200)))
    drive.run()
    drive.check()
    assert drive.defect is None
    done = drive.completions()
    assert (np.diff(done["end"]) >= 0).all()
    return done[np.argsort(done["tag"])]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES)
def test_requests_start_and_end_as_in_a_replay(mode, counts):
    """To the picosecond, whatever the batches are: 1,000 histories over all modes."""
    cfg = settings(mode, ftl__partial_pages="sectors")
    for seed in range(counts(3, -(-1000 // len(MODES)))):
        rng = np.random.default_rng(seed)
        given = history(rng, Drive(cfg).capacity, 60)
        depth = int(rng.choice([1, 4, 16]))
        wanted, found = replayed(cfg, given, depth), served(cfg, given, depth, rng)
        for name in ("start", "end", "status"):
            np.testing.assert_array_equal(wanted[name], found[name], f"{name}, seed {seed}")


# --- the bytes of a dictionary


class Sectors:
    """A drive and, beside it, the stamp of every sector (0: zeros)."""

    def __init__(self, cfg: Any, rng: np.random.Generator) -> None:
        self.rng = rng
        self.drive = Drive(
            cfg, payload=True, queues=QUEUES, queue_depth=8, block_bytes=SECTOR, strict=True
        )
        self.buffer = np.zeros((64 * 24, SECTOR // 8), np.int64)
        self.drive.buffer = self.buffer
        self.stamps = np.zeros(self.drive.capacity // SECTOR, np.int64)
        self.lost = 0
        """Number of reads that have ended with a media error."""
        self.next = 1
        self.unit = self.drive.unit_bytes // SECTOR

    def batch(self) -> None:
        """Commands in flight together, over all queues, that share no sector: then their order is
        free. They often share mapping units."""
        rng, total = self.rng, len(self.stamps)
        free, slot, chosen = np.ones(total, bool), 0, []
        center = int(rng.integers(0, total))
        for _ in range(int(rng.integers(1, 24))):
            op = int(rng.choice([READ, WRITE, TRIM, FLUSH], p=[0.35, 0.5, 0.1, 0.05]))
            size = int(min(rng.geometric(0.2), 64))
            at = (center + int(rng.integers(-40, 40))) % (total - size)
            if op == FLUSH:
                at = size = 0
            if not free[at : at + size].all():
                continue
            free[at : at + size] = False
            chosen.append((op, at, size, slot))
            slot += size if op <= WRITE else 0
        commands = np.zeros(len(chosen), queues.COMMAND)
        self.buffer[:] = -1
        for command, (op, at, size, slot) in zip(commands, chosen, strict=True):
            command["op"], command["queue"] = op, rng.integers(QUEUES)
            command["offset"], command["size"] = at * SECTOR, size * SECTOR
            command["data"] = slot * SECTOR if op <= WRITE else -1
            command["fua"] = op == WRITE and rng.random() < 0.1
            if op == WRITE:
                stamps = np.arange(self.next, self.next + size)
                self.next += size
                self.buffer[slot : slot + size] = stamps[:, None]
        before = self.buffer.copy()
        commands["tag"] = np.arange(len(chosen))
        commands["arrival"] = self.drive.earliest_arrival
        self.drive.submit(commands)
        self.drive.run_until(completions=len(chosen))
        done = self.drive.completions()
        assert sorted(done["tag"]) == list(range(len(chosen)))
        read = np.zeros(len(self.buffer), bool)
        for op, _, size, slot in chosen:
            read[slot : slot + size] |= op == READ
        assert (self.buffer == before)[~read].all()  # nothing but reads writes to memory
        self.compare(chosen, dict(zip(done["tag"].tolist(), done["status"].tolist(), strict=True)))

    def compare(self, chosen: list[tuple[int, int, int, int]], status: dict[int, int]) -> None:
        """What reads have brought, and what the dictionary holds then."""
        for tag, (op, at, size, slot) in enumerate(chosen):
            if op == READ and status[tag] == 0:
                wanted = self.stamps[at : at + size]
                assert (self.buffer[slot : slot + size] == wanted[:, None]).all(), (at, size)
            elif op == READ:
                assert status[tag] == 0x281
                self.lost += 1
        for op, at, size, slot in chosen:
            if op == WRITE:
                self.stamps[at : at + size] = self.buffer[slot : slot + size, 0]
            elif op == TRIM:
                first, end = -(-at // self.unit) * self.unit, (at + size) // self.unit * self.unit
                if end > first:  # whole mapping units are trimmed
                    self.stamps[first:end] = 0

    def all(self) -> float:
        """Read every mapping unit with nothing else under way; return the share that is lost."""
        lost = 0
        for at in range(0, len(self.stamps), self.unit):
            try:
                found = self.drive.read(at * SECTOR, self.unit * SECTOR).view(np.int64)
            except MediaError:
                lost += 1
                continue
            wanted = self.stamps[at : at + self.unit, None]
            assert (found.reshape(self.unit, -1) == wanted).all()
        return lost * self.unit / len(self.stamps)


@pytest.mark.one_in(5)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_the_drive_is_a_dictionary_of_sectors(mode, counts):
    """Writes of parts of a mapping unit meet in flight, collection moves everything, and bytes are
    those of the last write. 325 histories, over all modes, of the 2,000 of docs/testing.md."""
    seen: dict[str, int] = {}
    for seed in range(counts(2, 25)):
        model = Sectors(settings(mode), np.random.default_rng(seed))
        for _ in range(counts(240, 150)):
            model.batch()
            if model.rng.random() < 0.1:
                model.drive.run_until(model.drive.now + int(model.rng.integers(1, 10**10)))
        model.drive.run()
        assert model.all() == 0
        model.drive.check()
        for name, count in zip(COUNTERS, model.drive.arrays.count[0].tolist(), strict=True):
            seen[name] = seen.get(name, 0) + count
    assert seen["gc_program_pages"] > 0 and seen["trimmed_pages"] > 0
    assert seen["merge_read_pages"] > 0
    if "cache__mode" not in MODES[mode]:
        assert seen["remerged_pages"] > 0


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mode", MODES)
def test_errors_are_statuses(mode, rng):
    """Pages that cannot be corrected, read by the host, by merges and by collection: a read of what
    is lost ends with 0x281, everything else is right, and the host's memory is not touched."""
    cfg = settings(mode, errors__kind="rate", errors__rate="2.5e-3", ecc__correctable_bits=20)
    model = Sectors(cfg, rng)
    for _ in range(100):
        model.batch()
    model.drive.run()
    assert model.lost and 0 < model.all() < 0.8
    model.drive.check()


# --- the host's memory


def test_a_write_takes_what_is_in_memory_when_it_reaches_the_drive():
    """And a read writes nothing outside its bytes."""
    drive = Drive(settings("write back"), payload=True, block_bytes=SECTOR, strict=True)
    memory = np.full(8 * SECTOR, 7, np.uint8)
    drive.buffer = memory
    commands = np.zeros(2, queues.COMMAND)
    commands["op"], commands["size"], commands["data"] = WRITE, SECTOR, [0, 3 * SECTOR]
    commands["offset"] = [SECTOR, 6 * SECTOR]
    memory[3 * SECTOR : 4 * SECTOR] = 9
    drive.submit(commands)
    drive.run()
    memory[:] = 1
    read = np.zeros(1, queues.COMMAND)
    read["op"], read["offset"], read["size"], read["data"] = READ, SECTOR, 6 * SECTOR, SECTOR
    read["arrival"] = drive.earliest_arrival
    drive.submit(read)
    drive.run()
    wanted = np.full(8, 1)
    wanted[1:7] = [7, 0, 0, 0, 0, 9]
    assert (memory.reshape(8, SECTOR) == wanted[:, None]).all()
    assert len(drive.completions()) == 3


def test_a_page_that_is_programmed_twice_is_an_error():
    drive = Drive(settings("no cache"), payload=True, strict=True)
    drive.write(0, np.ones(4096, np.uint8))
    (ppn,) = (ppn for ppn, lpn, _ in drive.store.programmed() if lpn == 0)
    drive.store.erase(ppn, 1)
    drive.store.write(ppn + 1, 5, np.ones(4096, np.uint8))
    with pytest.raises(InputError, match="is programmed twice without an erase"):
        for page in range(1, 20):
            drive.write(page * 4096, np.ones(4096, np.uint8))


@pytest.mark.parametrize("then", [WRITE, TRIM])
def test_contents_on_their_way_to_flash_are_those_that_left(then):
    """While a page is being programmed, its unit is written again or trimmed: flash gets the first
    contents. After a TRIM they are older than all others, so that no recovery takes them."""
    drive = Drive(settings("write back"), payload=True, strict=True)
    memory = np.repeat(np.array([1, 2], np.uint8), 4096).reshape(2, 4096)
    drive.buffer = memory
    batch = np.zeros(2, queues.COMMAND)
    batch["op"], batch["size"] = [WRITE, then], 4096
    batch["fua"], batch["tag"] = [1, 0], [1, 2]
    batch["data"] = [0, 4096 if then == WRITE else -1]
    batch["arrival"] = [0, 40_000_000]
    drive.submit(batch)
    drive.run()
    ((ppn, lpn, sequence),) = drive.store.programmed()
    assert lpn == 0 and (drive.store.read(ppn) == 1).all() and drive.store.intact(ppn)
    assert sequence == (1 if then == WRITE else 0)
    wanted = 2 if then == WRITE else 0
    assert (drive.read(0, 4096) == wanted).all()
    assert (drive.stored(0) is None) == (then == TRIM)


def test_every_page_is_sealed_as_a_controller_checks_it(rng):
    """C writes the seals, Python checks them: over every field of the out-of-band data."""
    model = Sectors(settings("word lines"), rng)
    for _ in range(60):
        model.batch()
    model.drive.run()
    store = model.drive.store
    pages = list(store.programmed())
    assert len(pages) > 50
    spares = [store.spare(ppn) for ppn, _, _ in pages]
    for (ppn, lpn, sequence), spare in zip(pages, spares, strict=True):
        assert (spare.lpn, spare.sequence, spare.slot) == (lpn, sequence, 0) and store.intact(ppn)
    programs = [spare.step for spare in spares]
    assert min(programs) > 0 and len(set(programs)) == len(programs)
    _, oob, at = store._segment(pages[0][0])
    for name in ("lpn", "sequence", "step", "slot", "checksum", "sectors", "stream", "erases"):
        oob[at][name] ^= 1
        assert store.spare(pages[0][0]) is False, name
        oob[at][name] ^= 1
    assert store.spare(pages[0][0])


@pytest.mark.parametrize(
    "record, dtype",
    [
        ("ondie_record", payload_log.LOG),
        ("ondie_transfer", queues.TRANSFER),
        ("ondie_spare", page_store.OOB),
    ],
)
def test_records_in_c_are_those_in_python(record, dtype):
    assert native.ffi.sizeof(record) == dtype.itemsize
    fields = {name: place.offset for name, place in native.ffi.typeof(record).fields}
    assert fields == {name: dtype.fields[name][1] for name in dtype.names}


def test_kinds_of_log_records_in_c_are_those_in_python():
    kinds = native.ffi.typeof("enum ondie_log").relements
    assert len(kinds) == 20
    for name, number in kinds.items():
        assert getattr(payload_log, name.removeprefix("ONDIE_")) == number


# --- plans beside commands


def test_plans_and_commands_share_one_engine():
    """A plan that keeps the link and flash busy: commands take longer beside it, it takes longer
    beside them, and the books have both."""
    cfg = settings("no cache", system__devices=3)

    def plan() -> np.ndarray:
        out = Rows()
        out.add(40, resource=rows.DMA_DOWN, bytes_in=1 << 16)
        out.add(30, resource=rows.NVME, kind=WRITE, bytes_in=8192, lpn=2 * np.arange(30))
        return out.take()

    def commands(drive: Drive) -> np.ndarray:
        out = np.zeros(60, queues.COMMAND)
        out["op"], out["size"], out["data"] = WRITE, 8192, -1
        out["offset"] = (100 + 2 * np.arange(60)) * 4096
        return out

    ends = {}
    for name in ("plan", "commands", "both"):
        drive = Drive(cfg, queue_depth=8, strict=True)
        assert drive.devices == 1
        if name != "plan":
            drive.submit(commands(drive))
        if name != "commands":
            drive.start([plan()])
        drive.run()
        assert drive.plan_done and drive.outstanding == 0
        drive.check()
        done = drive.completions()
        row = drive.arrays.row["end"][:70].max() if name != "commands" else 0
        ends[name] = (int(row), int(done["end"].max()) if len(done) else 0)
    assert ends["both"][0] > ends["plan"][0] > 0
    assert ends["both"][1] > ends["commands"][1] > 0


# --- bad input


def tagged(tag: int) -> np.ndarray:
    """A FLUSH with this tag."""
    command = np.zeros(1, queues.COMMAND)
    command["op"], command["data"], command["tag"], command["arrival"] = FLUSH, -1, tag, 10**12
    return command


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda d: d.run_until(-1), "t_ps = -1"),
        (lambda d: d.run_until(1.5e12), "t_ps = 1500000000000.0: must be a whole number"),
        (lambda d: d.power_cut(-1), "after_events = -1"),
        (lambda d: Drive(settings("no cache"), queues=257), "queues = 257: must be from 1 to 256"),
        (lambda d: Drive(settings("no cache"), queues=1.5), "queues = 1.5: must be a whole"),
        (lambda d: Drive(settings("no cache"), block_bytes=0), "block_bytes = 0"),
        (lambda d: d.stored(-1), "unit = -1"),
        (lambda d: d.stored(10**6), "unit = 1000000: must be from 0 to"),
        (lambda d: d.read(0, 1 << 50), "size = 1125899906842624"),
        (lambda d: d.read(1 << 70, 512), "offset = 1180591620717411303424"),
        (lambda d: d.start([]), "plans cannot move this drive's data; use a drive without payload"),
        (lambda d: d.fill(0, 0, 8), "filled pages have no contents"),
        (lambda d: setattr(d, "buffer", None), "buffer of type NoneType"),
        (lambda d: setattr(d, "buffer", np.array([None] * 64)), "buffer of type ndarray"),
        (lambda d: d.submit([1, 2]), "commands: int64"),
        (lambda d: d.submit(tagged(-(2**63))), "tag = -9223372036854775808"),
        (lambda d: d.run_until(2**62), "t_ps = 4611686018427387904: must be from 0"),
        (lambda d: d.run_until(completions=-1), "completions = -1: must be from 0"),
        (lambda d: Drive(settings("no cache"), queue_depth=0), "queue_depth = 0"),
        (lambda d: d.write(SECTOR // 2, bytes(SECTOR)), "offset = 256: must be a multiple of"),
        (lambda d: d.write(d.capacity, bytes(SECTOR)), "offset = 1019904: must be from 0"),
        (lambda d: d.read(0, 1 << 19), "size = 524288: must be from 512 to 32768"),
    ],
)
def test_what_is_refused_leaves_the_drive_as_it_was(call, words):
    drive = Drive(settings("write back"), payload=True, block_bytes=SECTOR, strict=True)
    drive.write(0, b"a" * SECTOR)
    with pytest.raises(InputError, match=words):
        call(drive)
    assert drive.read(0, SECTOR).tobytes() == b"a" * SECTOR and drive.outstanding == 0
    drive.check()


def test_nothing_and_more_than_there_is():
    """No commands, fewer completions than are waited for, arrays of any layout."""
    drive = Drive(settings("write back"), queues=2, strict=True)
    drive.submit(np.zeros(0, queues.COMMAND))
    assert drive.run_until(completions=5) == 0 and len(drive.completions()) == 0
    assert drive.now == 0
    batch = np.zeros(8, queues.COMMAND)
    batch["op"], batch["size"], batch["data"] = WRITE, drive.unit_bytes, -1
    drive.submit(batch[::2])
    batch["arrival"] = drive.earliest_arrival
    batch.flags.writeable = False
    drive.submit(batch[:3])
    drive.run_until(completions=100)
    assert len(drive.completions()) == 7 and drive.outstanding == 0
    drive.check()


@pytest.mark.parametrize("step", [None, 100_000_000])
def test_more_commands_than_a_ring_holds(step, monkeypatch):
    """They wait in order, and none is lost or reported twice, whatever the clock is told. Each
    starts and ends as with a ring for all."""
    cfg = settings("no cache")

    def served(ring: int) -> np.ndarray:
        monkeypatch.setattr("ondie.emu.nvme.tables.PAIR_RING", ring)
        monkeypatch.setattr(build, "PAIR_RING", ring)
        drive = Drive(cfg, queues=2, queue_depth=4, strict=True)
        batch = np.zeros(100, queues.COMMAND)
        batch["op"], batch["size"], batch["data"] = WRITE, drive.unit_bytes, -1
        batch["offset"] = np.arange(100) * drive.unit_bytes
        batch["queue"], batch["tag"] = np.arange(100) % 10 == 9, np.arange(100)
        drive.submit(batch)
        batch["tag"] += 100
        drive.submit(batch)
        assert drive.outstanding == 200
        found = []
        while drive.outstanding:
            drive.run_until(None if step is None else drive.now + step)
            found.append(drive.completions())
        drive.check()
        return np.concatenate(found)

    few, all_of_them = served(16), served(256)
    assert sorted(few["tag"]) == list(range(200))
    np.testing.assert_array_equal(few, all_of_them)


def test_what_was_reported_takes_no_memory():
    drive = Drive(settings("write back"), payload=True, strict=True)
    for _ in range(50):
        drive.read(0, 4096)
    assert not drive._reports and not drive._in_use


def test_the_clock_never_goes_back():
    drive = Drive(settings("no cache"), queue_depth=2, strict=True)
    drive.run_until(10**12)
    plan = Rows()
    plan.one(resource=rows.DMA_DOWN, bytes_in=4096)
    drive.start([plan.take()])
    with pytest.raises(InputError, match="a plan is running"):
        drive.start([])
    drive.run()
    assert drive.arrays.row["start"][0] == 10**12 < drive.now
    drive.run_until(2 * 10**12)
    drive.power_cut(10)
    assert drive.now == 2 * 10**12


def test_memory_that_is_replaced_stays_until_its_commands_are_done():
    drive = Drive(settings("write back"), payload=True, strict=True)
    first = np.full((1, 4096), 5, np.uint8)
    drive.buffer = first
    command = np.zeros(1, queues.COMMAND)
    command["op"], command["size"] = WRITE, 4096
    drive.submit(command)
    before = sys.getrefcount(first)
    drive.buffer = np.zeros((1, 4096), np.uint8)
    assert sys.getrefcount(first) == before
    drive.run()
    drive.completions()
    assert sys.getrefcount(first) == before - 1
    found = drive.read(0, 4096)
    assert (found == 5).all() and sys.getrefcount(found) == 2
