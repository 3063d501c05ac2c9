"""Is the mapping table recovered from a checkpoint the same as from a scan of all pages? Cuts at
any event, also of the recovery and of the start; damaged metadata pages; wear and bad blocks.
Source: tests/state/versions.py; the scan of all pages (ftl/recovery.py).
"""

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.engine.core.counters import GC_PROGRAM_PAGES
from ondie.emu.engine.run import build, power_system
from ondie.emu.ftl import checkpoint_recovery, map_checkpoint, page_map, recovery
from ondie.emu.nvme.command import COMMAND, FLUSH, TRIM, WRITE
from ondie.emu.units import InputError
from tests.state import small
from tests.state import test_power_on as power_on
from tests.state.test_power_on import DRIVES, check_modes, history, some, versions
from tests.state.versions import Versions

pytestmark = pytest.mark.usefixtures("few_transactions")

REAL = checkpoint_recovery.recover


class ReadOnly:
    """Flash on which a second recovery overwrites nothing."""

    def __init__(self, store):
        self.where, self.read, self.intact = store.where, store.read, store.intact
        self.block_records = store.block_records

    def spoil(self, ppn, done=True):
        pass


class Compared:
    """Recoveries, each of which is compared with a scan of all pages."""

    def __init__(self):
        self.used = self.scanned = self.all_pages = self.queried = 0

    def __call__(self, arrays, geometry, cfg, store, every_page=False, settle=None):
        found = REAL(arrays, geometry, cfg, store, every_page, settle)
        assert not found.fallback
        if found.checkpoint:
            other = build.build(cfg, devices=1, phases=1, pairs=1)
            whole = recovery.recover(other, geometry, cfg, ReadOnly(store))
            units = int(other.cfg.meta_first[0])
            ours, theirs = arrays.l2p[0, :units], other.l2p[0, :units]
            wrong = (ours != theirs) & (ours != 0)  # a trim may not be on flash yet
            assert not wrong.any(), f"{np.flatnonzero(wrong)}: {ours[wrong]}, not {theirs[wrong]}"
            if arrays.cfg.partial[0]:
                same = arrays.sectors[0, :units] == other.sectors[0, :units]
                assert (same | (ours == 0)).all()
            assert found.programs >= whole.programs and found.sequence >= whole.sequence
            self.used += 1
            self.scanned += found.scanned_pages
            self.all_pages += whole.scanned_pages
            self.queried += len(found.queried_pages)
        return found


@pytest.fixture
def compared(monkeypatch):
    made = Compared()
    monkeypatch.setattr(checkpoint_recovery, "recover", made)
    return made


CHECKPOINTED = [name for name in DRIVES if "checkpoints" in name]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_the_same_table_from_fewer_pages(name, compared, counts):
    """30 histories of each drive at full counts."""
    cuts = 0
    for seed in range(counts(2, 30)):
        rng = np.random.default_rng((seed, 31))
        held = versions(name, seed)
        epoch = held.drive.epoch
        assert epoch == 1
        for _ in history(held, rng, 30):
            if held.drive.epoch > epoch:
                cuts, epoch = cuts + 1, epoch + 1
                assert held.drive.epoch == epoch
                check_modes(held.drive)
        assert epoch == 1 + held.cuts
    assert compared.used > cuts * 0.8 and compared.queried >= counts(0, 1)
    behind = held.drive.cfg.ftl.gc_copyback  # pages that copy-back may have overtaken are read, too
    assert compared.scanned < (0.9 if behind else 0.8) * compared.all_pages


def open_blocks_not_scanned(monkeypatch):
    load = checkpoint_recovery._load_table
    monkeypatch.setattr(
        checkpoint_recovery,
        "_load_table",
        lambda *args: load(*args) & ~map_checkpoint.WAS_OPEN,
    )


def old_copies_count(monkeypatch):
    """Entries are not compared with scanned pages that may be older versions."""
    note = checkpoint_recovery._note_pages

    def forget(records, reads, units, lpns, span, base, newest, l2p, dirty):
        asked = note(records, reads, units, lpns, span, base, newest, l2p, dirty)
        newest[asked] = 0
        return asked[:0]

    monkeypatch.setattr(checkpoint_recovery, "_note_pages", forget)


def copies_do_not_count(monkeypatch):
    """Only newer data are taken from scanned pages."""
    note = checkpoint_recovery._note_pages
    monkeypatch.setattr(checkpoint_recovery, "_note_pages", lambda *args: note(*args)[:0])


def old_map_pages(monkeypatch):
    """Of each map page, the oldest copy is taken."""
    choose = checkpoint_recovery._Found.choose

    def oldest(self, at):
        copies = sorted(self.copies.get(self.first + at, ()))
        if at >= self.maps or not copies or not self.store.intact(copies[0][2]):
            return choose(self, at)
        return copies[0][2], copies[0][0]

    monkeypatch.setattr(checkpoint_recovery._Found, "choose", oldest)


def trim_maps_ignored(monkeypatch):
    monkeypatch.setattr(checkpoint_recovery, "_apply_trim_maps", lambda *args: None)


def mode_ignored(monkeypatch):
    """Recovery takes all blocks for native ones."""
    power_on.mode_ignored(monkeypatch, None)


def pslc_blocks_not_scanned(monkeypatch):
    """A block that was open in pSLC mode counts as known."""
    scan = checkpoint_recovery._scan_since

    def native_only(of, arrays, scanned, records, base):
        native = of.blocks.stream[scanned] != int(arrays.cfg.pslc_stream[0])
        scan(of, arrays, scanned[native], records, base)

    monkeypatch.setattr(checkpoint_recovery, "_scan_since", native_only)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("break_it", "name"),
    [
        (open_blocks_not_scanned, "checkpoints"),
        (old_copies_count, "checkpoints"),
        (copies_do_not_count, "checkpoints"),
        (old_map_pages, "checkpoints"),
        (trim_maps_ignored, "checkpoints"),
        (mode_ignored, "pSLC, checkpoints"),
        (pslc_blocks_not_scanned, "pSLC, checkpoints"),
        (copies_do_not_count, "pSLC, checkpoints"),
        (open_blocks_not_scanned, "two passes, checkpoints"),
        (old_map_pages, "two passes, checkpoints"),
        (open_blocks_not_scanned, "copy-back, checkpoints"),
        (old_copies_count, "copy-back, checkpoints"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_what_the_histories_catch(monkeypatch, break_it, name):
    break_it(monkeypatch)
    for seed in range(60):
        rng = np.random.default_rng((seed, 31))
        try:
            held = versions(name, seed)
            for _ in history(held, rng, 30):
                check_modes(held.drive)
        except (AssertionError, InputError):
            return
    pytest.fail("never caught")


class Cut(Exception):
    pass


def test_cuts_of_recovery_and_start(monkeypatch, compared, counts):
    """A recovery is cut at any page that it overwrites, the start at any event of the program of
    the root. The next one finds the same, and the epoch still grows."""
    cuts = 0
    for seed in range(counts(3, 30)):
        rng = np.random.default_rng((seed, 32))
        held = versions("checkpoints", seed)
        drive = held.drive
        for _ in history(held, rng, 12):
            pass
        epoch = drive.epoch
        chosen = held.batch(some(rng, drive))
        drive.power_cut(int(rng.integers(20, 200)))
        held.settle(chosen, drive.completions())
        for left in range(12):
            with monkeypatch.context() as during:
                done = []

                def cut_spoil(ppn, done=done, left=left, spoil=drive.store.spoil):
                    done.append(ppn)
                    spoil(ppn, done=len(done) <= left)
                    if len(done) > left:
                        raise Cut

                def cut_start(left=left, drive=drive):
                    drive.power_cut(left)
                    raise Cut

                during.setattr(drive.store, "spoil", cut_spoil)
                during.setattr(drive, "run", cut_start)
                with pytest.raises(Cut):
                    drive.power_on()
            cuts += 1
        drive.power_on()
        assert drive.epoch > epoch
        held.look()
    assert cuts and compared.used > cuts / 2


def written(name="checkpoints", seed=0):
    """A drive after writes, trims and a FLUSH, all on flash."""
    held = versions(name, seed)
    size, rng = held.drive.unit_bytes, np.random.default_rng(seed)
    for _ in range(12):
        units = rng.integers(0, held.drive.units, 24).tolist()
        held.run([(WRITE, unit * size, size, 0) for unit in units])
    held.run([(TRIM, 0, 8 * size, 0)])
    held.run([(FLUSH, 0, 0, 0)])
    assert held.drive.arrays.dev.meta_root[0] > 2
    return held


def cut_when_idle(held):
    held.drive.power_cut(0)
    held.drive.power_on()
    held.look()
    return held.drive.recovered


@pytest.mark.parametrize("kind", ["map page", "block table", "root"])
@pytest.mark.parametrize("what", ["bytes", "out-of-band data"])
def test_a_damaged_metadata_page_is_not_used(kind, what):
    """All pages are scanned, now and after further cuts until there is another checkpoint."""
    held = written()
    drive, table = held.drive, held.drive.arrays.cfg[0]
    at = {"map page": 0, "block table": int(table.meta_maps), "root": int(table.meta_pages) - 1}
    ppn = int(drive.arrays.l2p[0, int(table.meta_first) + at[kind]]) - 1
    drive.power_cut(0)
    if what == "bytes":
        drive.store.read(ppn)[100] ^= 4
    else:
        drive.store._segment(ppn)[1]["seal"][ppn % drive.store.segment_pages] ^= 4
    drive.power_on()
    assert str(ppn) in drive.recovered.fallback and "checkpoint" in drive.why
    assert drive.recovered.checkpoint == 0 and drive.recovered.mapped > 0
    held.look()
    for _ in range(2):
        assert cut_when_idle(held).checkpoint == 0
    size = drive.unit_bytes
    for unit in range(40):
        held.run([(WRITE, unit * size, size, 0)])
    found = cut_when_idle(held)
    assert found.checkpoint > 0 and "not used" not in drive.why


def test_wear_and_bad_blocks_survive():
    """Erase counts of blank blocks, and blocks that have failed."""
    cfg = small.config(
        ftl__trim_maps="true", ftl__map_checkpoint="8 KiB", ftl__erase_failures=0.02,
        ftl__erase="collected", flash__blocks_per_plane=24,
    )  # fmt: skip
    held = Versions(Drive(cfg, True, strict=True), cached=False)
    drive, size = held.drive, held.drive.unit_bytes
    rng = np.random.default_rng(4)
    blank = 0
    for turn in range(60):
        units = rng.integers(0, drive.units, 24).tolist()
        held.run([(WRITE, unit * size, size, 0) for unit in units])
        before = drive.arrays.block.copy()
        bad = before["state"] == page_map.BAD
        if turn % 6 == 5:
            assert cut_when_idle(held).checkpoint > 0
            now = drive.arrays.block
            assert (now["state"][bad] == page_map.BAD).all()
            assert (now["erases"] >= before["erases"]).all()
            assert (now["erases"] <= before["erases"] + 1).all()
            blank += int(((before["state"] == page_map.FREE) & (before["erases"] > 0)).sum())
    assert bad.sum() > 1 and blank > 0


def test_the_epoch_survives_a_clean_stop(tmp_path):
    cfg = small.config(ftl__trim_maps="true", ftl__map_checkpoint="8 KiB")
    for start in range(1, 5):
        drive = Drive(cfg, True, store=tmp_path / "store")
        assert drive.epoch == start
        assert drive.started is [power_system.Start.NEW, power_system.Start.CHECKPOINT,
                                 power_system.Start.RECOVERY,
                                 power_system.Start.CHECKPOINT][start - 1]  # fmt: skip
        drive.write(0, np.full(drive.unit_bytes, start, np.uint8))
        if start == 2:
            drive.store.close()  # as a kill leaves it
        else:
            drive.close()


def test_checkpoints_are_in_the_write_amplification():
    """Each writes the changed map pages, the block table and the root."""
    cfg = small.config(ftl__trim_maps="true", ftl__map_checkpoint="8 KiB")
    drive = Drive(cfg, True, strict=True)
    table = drive.arrays.cfg[0]
    assert small.counter(drive, small.MAP_PROGRAM_PAGES) == 1  # the root, with the epoch
    tables = int(table.meta_pages - table.meta_maps) - 1
    for unit in range(16):  # 8 KiB
        drive.write(unit * small.PAGE, np.ones(small.PAGE, np.uint8))
    assert drive.arrays.dev.meta_root[0] == 1
    assert small.counter(drive, small.MAP_PROGRAM_PAGES) == 1 + 1 + tables + 1
    drive.check()


def test_what_checkpoints_need():
    with pytest.raises(InputError, match=r"ftl\.trim_maps"):
        small.config(ftl__trim_maps="false", ftl__map_checkpoint="8 KiB")


def test_a_trim_map_in_flight_is_not_taken_for_an_old_copy():
    """A map page with the entry of a trim map is composed while the trim map is being programmed:
    a TRIM that a FLUSH has completed must not be undone."""
    cfg = small.config(
        ftl__trim_maps="true", ftl__map_checkpoint="8 KiB", flash__blocks_per_plane=16
    )
    for late in range(0, 300, 15):
        drive = Drive(cfg, True, strict=True)
        size, span = drive.unit_bytes, int(drive.arrays.cfg.meta_span[0])
        for page in range(13):  # every map page changes
            drive.write(page * span * size, bytes([7]) * size)
        drive.write(size, bytes([9]) * size)
        batch = np.zeros(3, COMMAND)
        batch["op"], batch["offset"], batch["size"] = [WRITE, TRIM, FLUSH], [300 * size, 0, 0], size
        batch["size"][2] = 0
        batch["data"], batch["tag"] = [0, -1, -1], range(3)
        batch["arrival"] = drive.earliest_arrival
        batch["arrival"][1:] += late * 10_000_000
        drive.submit(batch, np.ones(size, np.uint8))
        drive.run()
        assert not drive.completions()["status"].any()
        drive.power_cut(0)
        drive.power_on()
        assert not drive.read(0, size).any(), f"{late * 10} us after the checkpoint begins"


def test_collected_pages_in_a_block_of_metadata_pages():
    """A recovery continues any block if it must, also one of metadata pages for collected ones. A
    later one takes all of its pages for such; their programs then wait for the erase, too."""
    cfg = small.config(
        ftl__trim_maps="true", ftl__map_checkpoint="8 KiB", ftl__gc_low_blocks=1,
        flash__blocks_per_plane=16,
    )  # fmt: skip
    drive = Drive(cfg, True, strict=True)
    rng = np.random.default_rng(7)
    whole = np.zeros(drive.capacity // 8, np.int64).reshape(drive.units, -1)

    def overwrite(count):
        for _ in range(count):
            unit = int(rng.integers(drive.units))
            whole[unit] = rng.integers(1 << 40)
            drive.write(unit * drive.unit_bytes, whole[unit])

    for unit in range(drive.units):
        whole[unit] = unit + 1
        drive.write(unit * drive.unit_bytes, whole[unit])
    block = drive.arrays.block
    block["stream"][block["state"] == page_map.FULL] = drive.arrays.cfg.map_stream[0]
    moved = count_moves(drive)
    overwrite(600)
    assert count_moves(drive) > moved + 100
    for unit in range(drive.units):
        assert (
            drive.read(unit * drive.unit_bytes, drive.unit_bytes).view(np.int64) == whole[unit]
        ).all()
    drive.check()


def count_moves(drive):
    return int(drive.arrays.count[0, GC_PROGRAM_PAGES])
