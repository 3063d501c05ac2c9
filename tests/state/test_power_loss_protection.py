"""Does a drive with power-loss protection keep every completed command over cuts and kills? The
histories of test_power_on.py with VWC = 0, kills of a store at any event, and the energy used.
Source: tests/state/versions.py; docs/store.md.
"""

import numpy as np
import pytest

from ondie import preset
from ondie.emu.drive import Drive
from ondie.emu.engine.run.power_system import Start
from ondie.emu.nand.cache_file import CacheFile
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nvme.cache_restore import SavedCache
from ondie.emu.nvme.command import COMMAND, FLUSH, TRIM, WRITE
from ondie.emu.nvme.status import CriticalWarning
from ondie.emu.units import InputError
from tests.state import small
from tests.state.test_power_on import CACHE, history, some, versions

pytestmark = pytest.mark.usefixtures("few_transactions")

SAFE = {"cache__power_loss_protection": "true", "cache__hold_up": "1 J"}
PROTECTED = {
    "write back": {},
    "read and write": {"cache__mode": "read_write"},
    "small cache": {"cache__capacity": "4 KiB"},
    "all of these": {},
    "several trim maps": CACHE,
    "plain": {},
    "write through": {},
    "cached map, word lines": {},
    "all of these, checkpoints": {},
}  # fmt: skip


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", PROTECTED)
def test_histories_with_protection(name, counts):
    """Every completed command survives, trims included, and a FLUSH waits for nothing."""
    cuts = saved = 0
    for seed in range(counts(2, 20)):
        rng = np.random.default_rng((seed, 19))
        held = versions(name, seed, SAFE | PROTECTED[name])
        for _ in history(held, rng, 30):
            assert held.drive.lost_at_cut == ""
            assert held.drive.held_up.used_j < held.drive.hold_up_j
            saved += held.drive.held_up.used_j > 0
        cuts += held.cuts
    assert cuts > counts(2, 20) and saved > 0


def killed(held, folder, **options):
    """Leave the files of a store as a kill of the process does, and start again."""
    held.drive.store.close()
    held.drive = Drive(held.drive.cfg, True, strict=True, queues=4, store=folder, **options)
    held.drive.buffer = held.memory
    held.look()
    return held.drive.recovered


def history_of_kills(held, rng, turns, folder, **options):
    """Yield what each recovery has found (None: there was none)."""
    for _ in range(turns):
        what = rng.random()
        if what < 0.15:
            held.cut(some(rng, held.drive), int(rng.integers(0, 600)), queues=4)
            yield None
        elif what < 0.5:
            chosen = held.batch(some(rng, held.drive), 4)
            held.drive.run(max_events=int(rng.integers(0, 600)))
            held.settle(chosen, held.drive.completions())
            yield killed(held, folder, **options)
        elif what < 0.6:
            held.drive.close()
            held.drive = Drive(held.drive.cfg, True, strict=True, queues=4, store=folder)
            held.drive.buffer = held.memory
            assert held.drive.started is not Start.RECOVERY
        else:
            held.run(some(rng, held.drive), queues=4)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("durability", ["process", pytest.param("host", marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", PROTECTED)
def test_kills_with_protection(in_memory, name, durability, counts):
    """Cached bytes and trims are in the store before a command completes, and what a kill has left
    there never wins over something newer on flash."""
    restored = trims = 0
    for seed in range(counts(2, 5 if durability == "process" else 2)):
        rng, folder = np.random.default_rng((seed, 23)), in_memory / str(seed)
        held = versions(name, 0, SAFE | PROTECTED[name], store=folder, durability=durability)
        for found in history_of_kills(held, rng, 25, folder):
            if found is not None:
                restored, trims = restored + found.restored, trims + found.restored_trims
                assert found.broken_entries == 0
        held.drive.close()
    assert trims > 0 and (restored > 0 or name in ("plain", "write through"))


def trims_not_in_the_file(monkeypatch):
    monkeypatch.setattr(CacheFile, "record_trim", lambda *args: None)


def entries_forgotten(monkeypatch):
    """Some of the cached pages are not written at the start."""
    restore = SavedCache.restore

    def most(saved, *args):
        del saved.pages[::2]
        restore(saved, *args)

    monkeypatch.setattr(SavedCache, "restore", most)


def stale_entries_win(monkeypatch):
    monkeypatch.setattr(SavedCache, "_number", lambda *args: 0)


def numbers_of_programs_compared(monkeypatch):
    """A program counts as newer than what was written while it was in progress."""
    spare = PageStore.spare
    monkeypatch.setattr(PageStore, "spare", lambda *args: spare(*args)._replace(slot=0))


def files_cleared_early(monkeypatch):
    """Before the contents are on flash; the drive is then killed."""
    settle = SavedCache.settle

    def clear(saved):
        settle(saved)
        saved.file.clear_after(None)
        saved.pages, saved.trimmed = [], 0

    monkeypatch.setattr(SavedCache, "settle", clear)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("break_it", "name"),
    [
        (trims_not_in_the_file, "write back"),
        (entries_forgotten, "write back"),
        (stale_entries_win, "small cache"),
        (numbers_of_programs_compared, "write back"),
        (files_cleared_early, "write back"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_what_the_kills_catch(tmp_path, monkeypatch, break_it, name):
    """Each of these mistakes breaks the contract within a few histories."""
    break_it(monkeypatch)
    with pytest.raises((AssertionError, InputError)):
        for seed in range(40):
            rng, folder = np.random.default_rng((seed, 23)), tmp_path / str(seed)
            held = versions(name, 0, SAFE | PROTECTED[name], store=folder)
            for _ in history_of_kills(held, rng, 25, folder):
                pass


def flash_left(held):
    """Number of units whose newest version is not on flash."""
    found = 0
    for unit in range(held.drive.units):
        stored = held.drive.stored(unit)
        there = bytes(held.drive.unit_bytes) if stored is None else stored.tobytes()
        found += there != held.held[unit].tobytes()
    return found


def test_capacitors_that_have_aged(rng):
    """What they do not suffice for is counted and said, and a critical warning is set."""
    held = versions("write back", 0, SAFE)
    drive, size = held.drive, held.drive.unit_bytes
    held.run([(WRITE, unit * size, size, 0) for unit in range(100)])
    waiting = flash_left(held)
    drive.hold_up_j = 0
    assert waiting > 8 and drive.why == "" and not drive.critical_warning
    drive.power_cut(0)
    units, maps = drive.held_up.lost
    assert 0 < units <= waiting and maps == 0
    words = f"power-loss protection has failed: {units} mapping units and 0 trim maps"
    assert drive.why.startswith("the power was cut; " + words)
    drive.power_on()
    assert drive.recovered.lost == (units, 0) and drive.why.startswith(words)
    assert drive.critical_warning == CriticalWarning.VOLATILE_MEMORY_BACKUP_FAILED
    left = flash_left(held)
    assert 0 < left <= units, "a program in progress may have ended whole"
    drive.hold_up_j = 1
    drive.power_cut(0)
    drive.power_on()
    assert "has failed" not in drive.why and not drive.critical_warning


def test_energy_is_that_of_the_simulated_operations(rng):
    """Twice the pages take about twice the energy; nothing to save takes none."""
    used = []
    for count in (0, 16, 32):
        held = versions("write back", 0, SAFE | {"cache__dirty_share": 1})
        drive, size = held.drive, held.drive.unit_bytes
        held.run([(WRITE, unit * size, size, 0) for unit in range(count)])
        assert drive.arrays.cache.contents[0] == count
        drive.power_cut(0)
        used.append(drive.held_up.used_fj)
        energy = drive.cfg.energy
        cells = count * size * 8 * energy.nand_program_fj_per_bit
        span = drive.held_up.end_ps - drive.held_up.cut_ps
        assert used[-1] >= cells + span * energy.controller_mw * (count > 0)
        assert (span >= drive.cfg.flash.t_program_ps) == (count > 0)
        drive.power_on()
        assert count == 0 or drive.recovered.mapped == count
    assert used[0] == 0 and 1.5 < used[2] / used[1] < 2.5


def test_capacitors_that_never_suffice_are_refused():
    with pytest.raises(
        InputError, match=r"cache.hold_up = 1e-09 J: must be at least .* to program"
    ):
        Drive(small.config(**CACHE, **SAFE | {"cache__hold_up": "1 nJ"}), True)


def test_a_flush_waits_for_nothing_with_protection():
    ends = []
    for more in ({}, SAFE):
        held = versions("write back", 0, {"cache__dirty_share": 1} | more)
        drive, size = held.drive, held.drive.unit_bytes
        held.run([(WRITE, unit * size, size, 1) for unit in range(16)])
        held.run([(TRIM, 0, 4 * size, 0)])
        drive.power_cut(0)
        drive.power_on()
        held.run([(WRITE, unit * size, size, 0) for unit in range(16)])
        begin = drive.now
        held.run([(FLUSH, 0, 0, 0)])
        ends.append(drive.now - begin)
        assert (drive.arrays.cache.contents[0] > 0) == bool(more)
    assert ends[1] < ends[0] / 2


def test_capacitors_do_not_wait_for_whole_word_lines(rng, counts):
    """The last pages of a cache seldom fill a word line: the rest is padded at once, not after
    ftl.gather_time. The cut is at the time that has been reached."""
    cfg = preset("p4320", [
        "flash.channels=1", "flash.dies_per_channel=1", "flash.blocks_per_plane=40",
        "flash.pages_per_block=24", "ftl.over_provisioning=0.3", "ftl.trim_maps=true",
        "cache.power_loss_protection=true", "cache.hold_up=50 J",
    ])  # fmt: skip
    drive = Drive(cfg, True)
    for _ in range(counts(1, 3)):
        batch = np.zeros(250, COMMAND)
        batch["op"], batch["tag"] = WRITE, np.arange(250)
        batch["size"] = rng.integers(1, 17, 250) * drive.unit_bytes
        batch["offset"] = rng.integers(0, drive.units - 16, 250) * drive.unit_bytes
        batch["arrival"] = drive.earliest_arrival + np.sort(rng.integers(0, 10**9, 250))
        drive.submit(batch, np.ones(16 * drive.unit_bytes, np.uint8))
        drive.run_until(drive.now + int(10 ** rng.uniform(8, 12)))
        reached = drive.now
        drive.power_cut(0)
        assert drive.held_up.cut_ps == reached and drive.held_up.lost == (0, 0)
        assert drive.held_up.end_ps - reached < 5 * 10**12 < cfg.ftl.gather_time_ps
        drive.completions()
        drive.power_on()
