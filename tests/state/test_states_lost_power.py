"""Does a store with durability "host" keep the states of a drive whose host loses its power? What
was not synced is on disk, or not, page by page and record by record.
Source: docs/store.md; fdatasync(2): changes since the last sync reach a disk in any order.
"""

import shutil

import numpy as np
import pytest

from ondie.emu.engine.core.payload_log import LOG_BPP, LOG_LANDED
from ondie.emu.ftl.reservoir_recovery import DieScan, Version
from ondie.emu.nand.page_store import OOB
from ondie.emu.nand.segment_files import CHANGED, SegmentFiles
from ondie.emu.nand.store_folder import StoreFull
from ondie.emu.nvme.command import WRITE
from ondie.emu.nvme.status import Condition
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.emu.units import InputError
from tests.state.test_drive_states import DRIVES, Both
from tests.state.versions import Versions

pytestmark = pytest.mark.usefixtures("few_transactions")


class LosingHost:
    """A host whose power fails: of the pages and records that were changed since the last sync of
    the store, any may be on disk as they are or as they were."""

    def __init__(self, monkeypatch, folder, both):
        geometry = both.drive.geometry
        self.folder, self.pages = folder, geometry.physical_pages
        self.sizes = {".pages": geometry.page_bytes, ".oob": OOB.itemsize}
        block = np.arange(self.pages) // geometry.block_pages
        self.states = block % geometry.all_blocks >= geometry.blocks
        self.synced, sync = {}, SegmentFiles.sync

        def noted(files):
            sync(files)
            self.synced = self.contents()

        monkeypatch.setattr(SegmentFiles, "sync", noted)

    def contents(self):
        """Pages and records of each file, uint8[pages, size]."""
        found = {}
        for path in self.folder.glob("segment-*"):
            size = self.sizes[path.suffix]
            with path.open("rb") as file:
                held = np.frombuffer(file.read(self.pages * size), np.uint8)
            found[path.name] = held.reshape(-1, size).copy()
        return found

    def unsynced(self):
        """Which pages of the reservoir have changed since the last sync, bool[pages]."""
        found = np.zeros(self.pages, bool)
        for name, now in self.contents().items():
            changed = (self.before(name, now) != now).any(axis=1)
            found[: len(now)] |= changed
        return found & self.states

    def before(self, name, now):
        """What the last sync has kept of a file, like ``now``."""
        old = self.synced.get(name, now[:0])
        return np.concatenate([old, np.zeros((len(now) - len(old), now.shape[1]), np.uint8)])

    def lose(self, target, chosen):
        """Copy the store as such a host leaves it to ``target``; return the number of losses in the
        reservoir. ``chosen``: returns which pages or records are lost if they have changed, bool[n]
        or bool, for a name and n."""
        shutil.copytree(self.folder, target)
        lost = 0
        for name, now in self.contents().items():
            old = self.before(name, now)
            changed = (old != now).any(axis=1)
            gone = changed & chosen(name, len(now))
            lost += int((gone & self.states[: len(gone)]).sum())
            with (target / name).open("r+b") as file:
                file.write(np.where(gone[:, None], old, now).tobytes())
        return lost


BLOCKS_OF_16 = {"flash__pages_per_block": 16, "flash__blocks_per_plane": 12}
"""The store is synced at every erase; these blocks leave many programs between two of them."""


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", [n for n in DRIVES if n != "protected"])
def test_a_host_that_loses_its_power(tmp_path, monkeypatch, name, counts):
    """Durability "host": completed updates are there, and one that was running goes on, whatever
    the host had not synced."""
    lost = 0
    for seed in range(counts(3, 8)):
        folder, target = tmp_path / f"{seed}", tmp_path / f"lost {seed}"
        both = Both(name, "sgd", seed, 120, BLOCKS_OF_16, store=folder, durability="host")
        both.held = Versions(both.drive, cached=True)
        with monkeypatch.context() as patch:
            host = LosingHost(patch, folder, both)
            both.begin()
            both.drive.run()
            assert both.states.complete
            both.held.run(both.items(), 2)
            both.begin()
            chosen = both.held.batch(both.items(), 2)
            both.drive.run_until(max_events=int(both.rng.integers(60, 300)))
            done = both.states.stripes_done if seed % 3 == 0 else 0
            both.drive.run_until(max_events=int(both.rng.integers(20, 160)))
            both.held.settle(chosen, both.drive.completions())
            while not host.unsynced().any() and not both.drive.plan_done:
                both.drive.run_until(max_events=8)
            rng, part = both.rng, both.rng.uniform(0.2, 0.6)
            lost += host.lose(target, lambda _, n, rng=rng, part=part: rng.random(n) < part)
        both.drive.close()
        both.options["store"] = target
        both.states = both.fresh()
        both.drive = both.held.drive = both.opened()
        both.states.open(both.drive)
        both.held.look()
        assert both.states.recovered.undone or both.states.stripes_done >= done
        if both.go_on():
            both.drive.run()
        both.look()
        both.drive.check()
        both.restart()
        both.look()
        both.drive.close()
    assert lost > 0


def test_an_update_stays_when_the_next_one_was_undone_and_lost(tmp_path, monkeypatch):
    """The record of a lost program of the next update has the number of its second attempt; the
    committed update is of the first."""
    folder, target = tmp_path / "store", tmp_path / "lost"
    both = Both("undo", "sgd", 0, 1, store=folder, durability="host")

    def restart():
        both.drive.power_cut(0)
        both.drive.power_on()
        both.states = both.fresh()
        both.states.open(both.drive)

    def program():
        while not both.states._opened.updated.any():
            both.drive.run_until(max_events=1)

    with monkeypatch.context() as patch:
        host = LosingHost(patch, folder, both)
        restart()  # which pads a place: the next update but one begins a block
        both.begin()
        both.drive.run()
        assert both.states.complete
        both.begin()
        program()
        restart()
        assert both.states.recovered.undone
        both.states.start_update(2 * both.gradient)
        program()
        assert host.lose(target, lambda name, _: name.endswith(".pages")) == 1
    both.drive.close()
    both.options["store"], both.updates, both.wanted = target, 1, both.before
    both.states = both.fresh()
    both.drive = both.opened()
    both.states.open(both.drive)
    assert not both.states.recovered.undone
    both.look()
    both.drive.close()


def test_a_die_that_has_lost_a_super_page_before_its_last(tmp_path, monkeypatch):
    """What stands behind it is given up, too: the update goes on behind what is there in order."""
    folder, target = tmp_path / "store", tmp_path / "lost"
    both = Both("plain", "sgd", 0, 120, BLOCKS_OF_16, store=folder, durability="host")
    die_pages = both.drive.geometry.die_pages

    def one_before_the_last():
        """Pages of the second of three results of update 2 that a die has programmed since the last
        sync; without the first, which begins a block, the whole block would look erased."""
        new = np.flatnonzero(host.unsynced())
        records = host.contents()["segment-0.oob"].view(OOB)[:, 0]
        for die in np.unique(new // die_pages):
            own = new[(new // die_pages == die) & (records["step"][new] == 2)]
            found = np.unique(records["sequence"][own])
            if len(found) > 2:
                return own[records["sequence"][own] == found[1]]
        return None

    with monkeypatch.context() as patch:
        host = LosingHost(patch, folder, both)
        both.begin()
        both.drive.run()
        assert both.states.complete
        both.begin()
        while (middle := one_before_the_last()) is None:
            assert not both.drive.plan_done
            both.drive.run_until(max_events=4)
        assert host.lose(target, lambda _, n: np.isin(np.arange(n), middle)) == 2 * len(middle)
    both.drive.close()
    both.options["store"] = target
    both.states = both.fresh()
    both.drive = both.opened()
    both.states.open(both.drive)
    assert 1 in both.states.recovered.cursors[0]
    assert both.go_on()
    both.drive.run()
    both.look()
    both.drive.close()


def test_the_commit_record_says_which_attempt_counts():
    scan = DieScan(0, 4, 4, records=100)
    for place, (super_page, step, sequence) in enumerate([(0, 1, 3), (100, 1, 4), (0, 2, 5)]):
        scan.versions[place] = Version(super_page, step, sequence, place)
    assert [scan.committed_by(step) for step in (0, 1, 2)] == [-1, 4, -1]


def test_moved_stripes_are_durable_before_the_update_begins(tmp_path, monkeypatch):
    """A die whose moved stripe is lost would have updated the stripes behind it."""
    both = Both("moves", "sgd", 0, 40, store=tmp_path / "store", durability="host")
    files, apply, moved, found = both.drive.store.files, Reservoir.apply, [], []

    def noted(payload, entry):
        if entry.what == LOG_BPP and moved:
            found.append(int((files.marks & CHANGED != 0).sum()))
            moved.clear()
        apply(payload, entry)
        moved.extend([entry] if entry.what == LOG_LANDED else [])

    monkeypatch.setattr(Reservoir, "apply", noted)
    for _ in range(40):
        both.begin()
        both.drive.run()
    assert found and not any(found)
    both.look()


def test_what_stands_behind_a_lost_super_page_is_dropped():
    scan = DieScan(0, 4, 4, records=100)
    for place, (super_page, step) in enumerate([(0, 1), (4, 1), (8, 1), (0, 2), (8, 2), (100, 2)]):
        scan.versions[place] = Version(super_page, step, place, place)
    assert scan.drop_unordered(1, [0, 4, 8]) and len(scan.versions) == 6
    assert not scan.drop_unordered(2, [0, 4, 8])
    assert sorted(scan.versions) == [0, 1, 2, 3, 5]
    scan.drop_records(1)
    assert scan.committed == 2
    scan.drop_records(2)
    assert sorted(scan.versions) == [0, 1, 2, 3] and scan.committed == 0


@pytest.mark.parametrize("reported", [20, 0])
def test_what_is_not_synced_does_not_count(tmp_path, monkeypatch, reported):
    """After a sync that fails, a report has the stripes of the last one that did not: those that a
    power loss of the host leaves, whatever it takes."""
    folder, target = tmp_path / "store", tmp_path / "lost"
    options = {"store": folder, "durability": "host", "strict": False}
    both = Both("plain", "sgd", 0, 120, BLOCKS_OF_16, **options)

    def program(more):
        payload = both.states._opened
        wanted = payload.updated.sum() + more
        while payload.updated.sum() < wanted:
            both.drive.run_until(max_events=1)

    with monkeypatch.context() as patch:
        host = LosingHost(patch, folder, both)
        both.begin()
        done, host.synced = 0, host.contents()  # as they were created
        if reported:
            program(reported)
            assert (done := both.states.stripes_done) >= reported
        program(9)

        def fails(files):
            raise StoreFull("cannot be synced: test")

        patch.setattr(SegmentFiles, "sync", fails)
        for _ in range(2):
            assert both.states.stripes_done == done and not both.states.complete
        assert both.drive.condition is Condition.READ_ONLY
        with pytest.raises(InputError, match="the drive is read-only: .*cannot be synced"):
            both.states.start_update(both.gradient)
        host.lose(target, lambda _, n: True)
        both.drive.run()
        assert both.states.stripes_done == done and not both.states.complete
        assert both.states._opened.updated.sum() == both.states.stripes
    both.drive.close()
    both.options["store"] = target
    both.states = both.fresh()
    both.drive = both.opened()
    both.states.open(both.drive)
    if reported:
        assert both.states.stripes_done == done
    assert both.go_on()
    both.drive.run()
    both.look()
    both.drive.close()


def test_what_a_drive_without_power_has_not_synced_does_not_count(tmp_path):
    both = Both("plain", "sgd", 0, 120, BLOCKS_OF_16, store=tmp_path / "s", durability="host")
    both.begin()

    def program(wanted):
        while both.states._opened.updated.sum() < wanted:
            both.drive.run_until(max_events=1)

    program(20)
    assert (done := both.states.stripes_done) >= 20
    program(done + 5)
    both.drive.power_cut(both.drive.now)
    assert both.states._opened.updated.sum() > both.states.stripes_done == done
    both.drive.close()


def test_a_report_syncs_what_the_update_has_changed_alone(tmp_path, monkeypatch):
    """Not what commands write, and nothing twice; a parity is a change, too."""
    both = Both("parity", "sgd", 0, 40, store=tmp_path / "store", durability="host")
    calls, sync = [], SegmentFiles.sync

    def noted(files):
        calls.append(files)
        sync(files)

    def report():
        calls.clear()
        assert (both.states.stripes_done, both.states.complete, both.states.step) is not None
        return len(calls)

    monkeypatch.setattr(SegmentFiles, "sync", noted)
    assert report() == 0  # created, and synced then
    both.held.run([(WRITE, unit * 512, 512, 0) for unit in range(8)])
    assert report() == 0
    both.begin()
    payload, counts = both.states._opened, []
    while not both.drive.plan_done:
        before = payload.updated.sum(), both.states._made
        both.drive.run_until(max_events=1)
        counts.append((report(), before != (payload.updated.sum(), both.states._made)))
        assert report() == 0
    assert all(count == changed for count, changed in counts)
    assert {changed for _, changed in counts} == {False, True}
    both.look()
    both.drive.close()
