"""Does a drive continue from its store? After a clean stop as if there had been none, after a kill
with what its contract promises, with damaged files by name.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.drive import Drive, MediaError
from ondie.emu.engine.core import sparse_table
from ondie.emu.engine.core.sparse_table import SPARSE_BYTES
from ondie.emu.engine.run.power_system import Start
from ondie.emu.nand import checkpoint
from ondie.emu.nand.page_store import OOB
from ondie.emu.nand.store_check import check_store, describe_store
from ondie.emu.nvme.command import COMMAND, FLUSH, READ, TRIM, WRITE
from ondie.emu.nvme.status import CriticalWarning, Status
from ondie.emu.units import InputError
from tests.faults.kills import MODES
from tests.state import small
from tests.state.test_power_on import DRIVES

pytestmark = pytest.mark.usefixtures("few_transactions")


def some(drive, rng, count=60):
    found = np.zeros(count, COMMAND)
    found["op"] = rng.choice([READ, WRITE, WRITE, WRITE, TRIM, FLUSH], count)
    found["size"] = drive.block_bytes * rng.integers(1, 4, count)
    found["offset"] = rng.integers(0, drive.capacity // drive.block_bytes - 4, count)
    found["offset"] *= drive.block_bytes
    found["size"][found["op"] == FLUSH] = found["offset"][found["op"] == FLUSH] = 0
    found["tag"], found["queue"] = np.arange(count), rng.integers(0, 2, count)
    slots = rng.integers(0, 60, count) * drive.unit_bytes
    found["data"] = np.where(np.isin(found["op"], [READ, WRITE]), slots, -1)
    found["arrival"] = drive.earliest_arrival + np.sort(rng.integers(0, 10**9, count))
    return found


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "name",
    ["write back", "all of these", "cached map, word lines",
     *(pytest.param(name, marks=pytest.mark.soak)
       for name in ("plain", "sectors", "wear", "pSLC"))],
)  # fmt: skip
def test_a_clean_stop_changes_nothing(in_memory, name, counts):
    """The same completions, to the picosecond, and the same bytes as without the stop."""
    cfg = small.config(**{"ftl__gc_low_blocks": 1, "ftl__trim_maps": "true"} | DRIVES[name])
    for seed in range(counts(2, 20)):
        stopped = Drive(cfg, True, store=in_memory / str(seed), queues=2, seed=seed)
        goes_on = Drive(cfg, True, queues=2, seed=seed)
        rngs = [np.random.default_rng(seed) for _ in range(2)]
        shape = 64, stopped.unit_bytes
        memory = [each.integers(0, 256, shape, np.uint8) for each in rngs]
        for _ in range(5):
            stopped.buffer, goes_on.buffer = memory
            for drive, rng in zip((stopped, goes_on), rngs, strict=True):
                drive.submit(some(drive, rng))
                drive.run()
            assert (stopped.completions() == goes_on.completions()).all()
            assert (memory[0] == memory[1]).all()
            goes_on.flush()
            stopped.close()
            stopped = Drive(cfg, True, store=in_memory / str(seed), queues=2, seed=seed)
            assert stopped.started is Start.CHECKPOINT and stopped.now == goes_on.now
            stopped.check()
        stopped.close()


def test_a_checkpoint_of_tables_in_large_memory_pages(in_memory, monkeypatch, rng):
    """As outside of tests, where a table of some megabytes is in large pages: the next start has
    every entry that was written here and there, and no other. The file is that of small pages."""
    kept, whole = [], load_preset("gen4-tlc")
    cfg = whole.replace({"flash.blocks_per_plane": whole.flash.blocks_per_plane // 64}, ref="test")
    data = rng.integers(0, 256, (5, 4096), np.uint8)
    for most in (0, 1 << 30):
        monkeypatch.setattr(sparse_table, "HUGE_BYTES", most)
        path = in_memory / str(most)
        with Drive(cfg, True, store=path) as drive:
            places = np.linspace(0, drive.units - 1, 5).astype(int) * drive.unit_bytes
            assert SPARSE_BYTES < drive.arrays.l2p.nbytes < 1 << 30
            for place, each in zip(places.tolist(), data, strict=True):
                drive.write(place, each)
            drive.flush()
            held = [table[table != 0].tolist() for table in (drive.arrays.l2p, drive.arrays.p2l)]
            assert list(map(len, held)) == [5, 5]
        kept.append((path / checkpoint.NAME).read_bytes())
        with Drive(cfg, True, store=path) as drive:
            assert drive.started is Start.CHECKPOINT
            found = [table[table != 0].tolist() for table in (drive.arrays.l2p, drive.arrays.p2l)]
            assert found == held
            assert all((drive.read(place, 4096) == each).all()
                       for place, each in zip(places.tolist(), data, strict=True))  # fmt: skip
            drive.check()
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    "mode", [mode if mode == "write back" else pytest.param(mode, marks=pytest.mark.soak)
             for mode in MODES],
)  # fmt: skip
def test_kills_of_a_writing_process(in_memory, root, mode, counts):
    """216 kills at full counts, of all modes."""
    kills = counts(10, 36)
    for durability, share in (("process", 0.8), ("host", 0.2)):
        words = [in_memory / durability, mode, durability, round(kills * share), 1]
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.kills", *map(str, words)],
            cwd=root, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        told = done.stdout.split()
        assert int(told[3]) > 0 and int(told[5]) > kills * share / 2, done.stdout
        assert (int(told[7]) > 0) == (mode == "protected"), done.stdout
        checkpoints = mode == "checkpoints" and durability == "process"
        assert (int(told[9]) > 0) == checkpoints, done.stdout


@pytest.fixture
def closed(in_memory, rng):
    """(folder, configuration, bytes of all units): a store with a checkpoint."""
    cfg = small.config(cache__mode="write_back", cache__capacity="16 KiB")
    drive = Drive(cfg, True, store=in_memory / "store")
    data = rng.integers(0, 256, (drive.units, small.PAGE), np.uint8)
    for unit in range(drive.units):
        drive.write(unit * small.PAGE, data[unit])
    drive.close()
    return in_memory / "store", cfg, data


def read_all(drive):
    return np.stack([drive.read(unit * small.PAGE, small.PAGE) for unit in range(drive.units)])


def test_a_damaged_checkpoint_is_not_used(closed, counts, rng):
    folder, cfg, data = closed
    path = folder / checkpoint.NAME
    good = path.read_bytes()
    for turn in range(counts(4, 30)):
        bad = bytearray(good)
        if turn % 4 == 0:
            bad = bad[: int(rng.integers(0, len(bad)))]
        else:
            bad[int(rng.integers(0, len(bad)))] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(bad)
        drive = Drive(cfg, True, store=folder)
        assert drive.started is Start.RECOVERY
        assert (read_all(drive) == data).all()
        drive.check()
        drive.close()
        assert Drive(cfg, True, store=folder).started is Start.CHECKPOINT
    path.unlink()
    drive = Drive(cfg, True, store=folder)
    assert drive.started is Start.RECOVERY and (read_all(drive) == data).all()


def test_other_queue_pairs_start_by_recovery(closed):
    folder, cfg, data = closed
    drive = Drive(cfg, True, store=folder, queues=3)
    assert drive.started is Start.RECOVERY and drive.recovered.mapped == drive.units
    assert (read_all(drive) == data).all()
    drive.close()
    drive = Drive(cfg, True, store=folder, queues=3, strict=True)
    assert drive.started is Start.CHECKPOINT and not drive.arrays.dev.ends[0]


def test_a_checkpoint_says_what_it_holds(closed):
    """One line of JSON, which another program can read."""
    folder, _, _ = closed
    head = json.loads((folder / checkpoint.NAME).read_bytes().split(b"\n")[0])
    assert head["numbers"]["sequence"] > 0 and {"l2p", "block"} <= set(head["tables"])


def test_a_change_ends_the_checkpoint(closed):
    folder, cfg, data = closed
    drive = Drive(cfg, True, store=folder)
    drive.write(0, data[1])
    drive.flush()
    drive.store.close()  # as a kill leaves it
    drive = Drive(cfg, True, store=folder)
    assert drive.started is Start.RECOVERY
    assert (drive.read(0, small.PAGE) == data[1]).all()


def test_reads_leave_the_checkpoint(closed):
    folder, cfg, data = closed
    drive = Drive(cfg, True, store=folder)
    assert (drive.read(0, small.PAGE) == data[0]).all()
    drive.store.close()
    assert Drive(cfg, True, store=folder).started is Start.CHECKPOINT


def test_damaged_records_are_reported(closed):
    """The other pages stay readable."""
    folder, cfg, data = closed
    drive = Drive(cfg, True, store=folder)
    ppn = int(drive.arrays.l2p[0, 7]) - 1
    drive.store.close()
    (folder / checkpoint.NAME).unlink()
    path = folder / "segment-0.oob"
    raw = bytearray(path.read_bytes())
    raw[ppn * OOB.itemsize + 8] ^= 0xFF
    path.write_bytes(raw)
    drive = Drive(cfg, True, store=folder)
    assert drive.recovered.damaged == [ppn] and f"1 damaged physical page ({ppn})" in drive.why
    found = read_all(drive)
    assert (np.delete(found, 7, 0) == np.delete(data, 7, 0)).all()


def test_reads_of_a_damaged_page_fail(closed, rng):
    """Its bytes are never taken for data: by reads, by the cache, by writes of a part of it."""
    folder, cfg, data = closed
    drive = Drive(cfg, True, store=folder)
    ppns = drive.arrays.l2p[0, :8].astype(int) - 1
    drive.store.close()
    path = folder / "segment-0.pages"
    raw = bytearray(path.read_bytes())
    for ppn in ppns[:4].tolist():
        raw[ppn * small.PAGE + int(rng.integers(0, small.PAGE))] ^= 1 << int(rng.integers(0, 8))
    path.write_bytes(raw)
    (folder / checkpoint.NAME).unlink()  # its cache has these pages
    drive = Drive(cfg, True, store=folder)
    assert drive.started is Start.RECOVERY
    for unit in range(8):
        if unit < 4 and ppns[unit] not in drive.arrays.l2p[0, :8].astype(int) - 1:
            continue  # one of the newest, which recovery has refused
        if unit < 4:
            with pytest.raises(MediaError) as caught:
                drive.read(unit * small.PAGE, small.PAGE)
            assert caught.value.status is Status.UNRECOVERED_READ_ERROR
            assert str(ppns[unit]) in drive.why
        else:
            assert (drive.read(unit * small.PAGE, small.PAGE) == data[unit]).all()
    assert drive.critical_warning == CriticalWarning.RELIABILITY_DEGRADED
    drive.write(0, data[0])
    assert (drive.read(0, small.PAGE) == data[0]).all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("where", ["bytes", "record"])
def test_damage_behind_a_cached_copy_is_said_at_the_start(closed, where):
    """The checkpoint has the right bytes, so that no read would meet the damage until the copy is
    evicted. The copy that `ondie store check` makes of the store is not changed by it."""
    folder, cfg, data = closed
    drive = Drive(cfg, True, store=folder)
    cached = [unit for unit in range(drive.units) if drive.cached(unit) is not None]
    unit = cached[0]
    ppn = int(drive.arrays.l2p[0, unit]) - 1
    assert len(cached) == 32 and drive.why == "" and not drive.critical_warning
    drive.close()
    path, size = folder / f"segment-0.{where}", small.PAGE
    if where == "bytes":
        path = folder / "segment-0.pages"
    else:
        path, size = folder / "segment-0.oob", OOB.itemsize
    raw = bytearray(path.read_bytes())
    raw[ppn * size + 9] ^= 1
    path.write_bytes(raw)
    report = check_store(folder)
    assert [*report.pages_listed, *report.records_listed] == [ppn] and not report.intact
    for read_only in (True, False):
        drive = Drive(cfg, True, store=folder, read_only=read_only)
        assert drive.started is Start.CHECKPOINT
        assert read_only or (f"({ppn})" in drive.why and "damaged" in drive.why)
        assert CriticalWarning.RELIABILITY_DEGRADED in drive.critical_warning
        assert (drive.read(unit * small.PAGE, small.PAGE) == data[unit]).all()
        drive.close()


def test_a_write_of_a_part_of_a_damaged_page_leaves_it_damaged(tmp_path):
    cfg = small.config(flash__page="4 KiB", ftl__partial_pages="sectors")
    drive = Drive(cfg, True, store=tmp_path / "store", block_bytes=512)
    drive.write(0, np.arange(4096, dtype=np.uint8))
    drive.flush()
    drive.store.flip(int(drive.arrays.l2p[0, 0]) - 1, 3000)
    drive.write(0, np.ones(512, np.uint8))
    drive.flush()
    with pytest.raises(MediaError):
        drive.read(0, 512)
    drive.write(0, np.ones(4096, np.uint8))
    assert drive.read(0, 4096).all()


@pytest.mark.parametrize(("changes", "key"), [({"ftl__map_update": "placed"}, "ftl.map_update")])
def test_a_drive_that_cannot_be_recovered_has_no_store(tmp_path, changes, key):
    with pytest.raises(InputError, match=key):
        Drive(small.config(**changes), True, store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.fixture
def kept(tmp_path):
    """(folder, configuration): the store of a protected drive after a kill. Units 0 to 9 were
    written again, only in the cache; 10 and 11 were on flash and have been trimmed."""
    cfg = small.config(ftl__gc_low_blocks=1, flash__blocks_per_plane=16, **MODES["protected"])
    drive = Drive(cfg, True, store=tmp_path / "store", strict=True)
    for unit in range(12):
        drive.write(unit * small.PAGE, np.full(small.PAGE, unit + 1, np.uint8))
    drive.close()
    drive = Drive(cfg, True, store=tmp_path / "store", strict=True)
    assert drive.started is Start.CHECKPOINT
    trim = np.zeros(1, COMMAND)
    trim["op"], trim["offset"], trim["size"], trim["data"] = TRIM, 10 * small.PAGE, 1024, -1
    trim["arrival"] = drive.earliest_arrival
    drive.submit(trim)
    drive.run()
    for unit in range(10):
        drive.write(unit * small.PAGE, np.full(small.PAGE, unit + 101, np.uint8))
    drive.store.close()
    return tmp_path / "store", cfg


def started(folder, cfg):
    drive = Drive(cfg, True, store=folder, strict=True)
    return drive, [int(drive.read(unit * small.PAGE, small.PAGE)[0]) for unit in range(12)]


def test_a_read_only_open_leaves_a_protected_cache(kept):
    folder, cfg = kept
    held = {path.name: path.read_bytes() for path in folder.iterdir()}
    with Drive(cfg, True, store=folder, read_only=True) as drive:
        found = [int(drive.read(unit * small.PAGE, small.PAGE)[0]) for unit in range(12)]
    assert found == [*range(101, 111), 0, 0]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == held
    assert started(folder, cfg)[1] == found


def test_a_read_only_open_creates_nothing(tmp_path):
    cfg = small.config()
    with pytest.raises(InputError, match="missing: cannot be opened"):
        Drive(cfg, True, store=tmp_path / "missing", read_only=True)
    with pytest.raises(InputError, match="is not a store"):
        Drive(cfg, True, store=tmp_path, read_only=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["cache.pages", "cache.trims"])
def test_a_missing_file_of_a_protected_cache_is_said(kept, name):
    folder, cfg = kept
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{name}: is missing"):
        Drive(cfg, True, store=folder)
    assert any(f"{name}: is missing" in problem for problem in check_store(folder).problems)


def test_what_a_kill_leaves_of_a_protected_cache(kept):
    """It is there although the store had a checkpoint, a second start finds it on flash, and `ondie
    store` knows it."""
    folder, cfg = kept
    report = check_store(folder)
    assert report.intact and (report.cached.pages, report.cached.trims) == (10, 2)
    assert "cached pages      10, 0 broken entries" in "\n".join(report.lines())
    assert describe_store(folder)["cached_pages"] == 10
    drive, found = started(folder, cfg)
    assert found == [*range(101, 111), 0, 0]
    assert (drive.recovered.restored, drive.recovered.restored_trims) == (10, 2)
    first = drive.recovered.time_ps
    drive.store.close()
    assert check_store(folder).cached.pages == 0
    drive, found = started(folder, cfg)
    assert found == [*range(101, 111), 0, 0] and drive.recovered.restored == 0
    assert drive.recovered.time_ps < first, "the writes of the first start have taken time"


def test_damaged_files_of_a_protected_cache(kept):
    folder, cfg = kept
    path = folder / "cache.trims"
    good = path.read_bytes()
    path.write_bytes(good[:80] + bytes([good[80] ^ 4]) + good[81:])
    assert "mapping unit 10 is damaged" in check_store(folder).problems[0]
    with pytest.raises(InputError, match="mapping unit 10 is damaged"):
        Drive(cfg, True, store=folder)
    path.write_bytes(good[:-4096])
    with pytest.raises(InputError, match="truncated"):
        Drive(cfg, True, store=folder)
    path.write_bytes(good)
    path = folder / "cache.pages"
    raw = bytearray(path.read_bytes())
    raw[raw.index(bytes([101]) * 64)] ^= 1
    path.write_bytes(raw)
    assert "cache.pages: damaged contents of 1 mapping unit (0)" in check_store(folder).problems
    drive, found = started(folder, cfg)
    assert drive.recovered.damaged_cached == [0] and "cache.pages" in drive.why
    assert found == [1, *range(102, 111), 0, 0]
