"""Does a drive keep its contract over power cuts? Histories of commands that are cut at any event,
held to the versions that each mapping unit may have, with each feature of the flash on and off.
Source: tests/state/versions.py.
"""

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.engine.run.power_system import Start
from ondie.emu.ftl import block_recovery, recovery, trim_maps
from ondie.emu.ftl.cached_entries import KEPT
from ondie.emu.ftl.page_map import FREE, VICTIM
from ondie.emu.nand.sealed_records import (
    READS_BLANK,
    READS_VALID,
    read_spares,
)
from ondie.emu.nvme import power_cut
from ondie.emu.nvme.command import COMMAND, FLUSH, READ, TRIM, WRITE
from ondie.emu.units import InputError
from tests.state import small
from tests.state.versions import Versions

SHAPE = {
    "flash__page": "4 KiB", "ftl__block_unit": "die", "frontend__max_transfer": "32 KiB",
    "host__io_queue_depth": 16, "flash__blocks_per_plane": 16,
}  # fmt: skip
CACHE = {"cache__capacity": "64 KiB", "cache__mode": "write_back"}
UNITS = {"flash__page": "16 KiB", "ftl__mapping_unit": "4 KiB"}
SECTORS = {"ftl__partial_pages": "sectors"}
LINES = {
    "flash__programming": "one_shot", "pe__kind": "none", "flash__cell": "TLC",
    "flash__pages_per_block": 12,
}  # fmt: skip
TWO_PASS = {"flash__programming": "two_pass", "flash__t_program_second": "900 us"}
MAP = SHAPE | {"ftl__map_cache": "60 B", "flash__page": "512 B", "flash__blocks_per_plane": 12}
PSLC = {
    "ftl__pslc": "dynamic", "ftl__pslc_share": 0.3, "flash__cell": "TLC",
    "flash__pages_per_block": 6, "flash__blocks_per_plane": 12,
}  # fmt: skip
DRIVES = {
    "plain": {},
    "write back": CACHE,
    "write through": CACHE | {"cache__mode": "write_through"},
    "read cache": CACHE | {"cache__mode": "read"},
    "idle destage": SHAPE | CACHE | {"cache__destage_idle": "true"},
    "mapping units": SHAPE | UNITS | CACHE,
    "word lines": SHAPE | LINES,
    "word lines, write back": SHAPE | LINES | CACHE,
    "sectors": SHAPE | SECTORS,
    "all of these": SHAPE | LINES | CACHE | UNITS | SECTORS,
    "failures": SHAPE | {"ftl__program_failures": 0.01, "ftl__erase_failures": 0.005,
                         "ftl__erase": "collected", "ftl__bad_blocks": 0.02},
    "planes": SHAPE | {"ftl__block_unit": "plane", "ftl__gc_parallel": 2,
                       "flash__suspend": "program_erase", "ftl__gc_copyback": "true"},
    "wear": SHAPE | {"ftl__erase": "collected", "ftl__wear_static_cycles": 3},
    "static": SHAPE | {"ftl__placement": "static"},
    "streams": SHAPE | {"ftl__write_streams": 2, "ftl__gc_streams": "each",
                        "ftl__open_blocks": "ahead"},
    "two passes": SHAPE | LINES | TWO_PASS,
    "two passes, write back": SHAPE | LINES | TWO_PASS | CACHE | UNITS | SECTORS | {
        "ftl__block_unit": "plane", "ftl__program_failures": 0.005},
    "cached map": MAP,
    "cached map, word lines": MAP | LINES | TWO_PASS | CACHE | {"ftl__map_writes": 1},
    "pSLC": SHAPE | PSLC,
    "pSLC region": SHAPE | PSLC | CACHE | UNITS | {"ftl__pslc": "static", "ftl__pslc_full": "wait",
                                                   "ftl__fold_idle": "1 ms"},
    "checkpoints": {"ftl__map_checkpoint": "8 KiB", "flash__blocks_per_plane": 16},
    "all of these, checkpoints": SHAPE | LINES | CACHE | UNITS | SECTORS
                                 | {"ftl__map_checkpoint": "64 KiB"},
    "pSLC, checkpoints": SHAPE | PSLC | {"ftl__map_checkpoint": "64 KiB"},
    "pSLC region, checkpoints": SHAPE | PSLC | CACHE | UNITS | {
        "ftl__pslc": "static", "ftl__pslc_full": "wait", "ftl__fold_idle": "1 ms",
        "ftl__map_checkpoint": "256 KiB"},
    "two passes, checkpoints": SHAPE | LINES | TWO_PASS | {"ftl__map_checkpoint": "256 KiB"},
    "two passes, write back, checkpoints": SHAPE | LINES | TWO_PASS | CACHE | UNITS | SECTORS | {
        "ftl__block_unit": "plane", "ftl__program_failures": 0.005,
        "ftl__map_checkpoint": "256 KiB"},
    "copy-back, checkpoints": SHAPE | {
        "ftl__block_unit": "plane", "ftl__gc_parallel": 2, "flash__suspend": "program_erase",
        "ftl__gc_copyback": "true", "ftl__gc_window_pages": 2, "flash__pages_per_block": 40,
        "flash__blocks_per_plane": 12, "flash__channels": 1, "flash__dies_per_channel": 1,
        "ftl__map_checkpoint": "256 KiB"},
    "several trim maps": {"flash__blocks_per_plane": 64, "flash__pages_per_block": 24},
}  # fmt: skip
ONE_DIE = DRIVES["two passes"] | {
    "flash__channels": 1, "flash__dies_per_channel": 1, "flash__blocks_per_plane": 24,
    "flash__pages_per_block": 36,
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("few_transactions")


OPS = (WRITE,) * 5 + (READ, READ, TRIM)


def versions(name, seed=0, more=None, **changes):
    """``more``: further keys. The contract is that of VWC = 0 with power-loss protection."""
    leaves = {"ftl__gc_low_blocks": 1, "ftl__trim_maps": "true"}
    leaves |= (DRIVES | {"one die": ONE_DIE}).get(name, CACHE)
    cfg = small.config(**leaves | (more or {}))
    drive = Drive(cfg, True, strict=True, seed=seed, queues=4, **changes)
    safe = cfg.cache.power_loss_protection
    cached = cfg.cache.mode in ("write_back", "read_write") and not safe
    return Versions(drive, cached=cached, protected=safe)


def some(rng, drive, most=24):
    """Commands of any sectors, none of them a FLUSH."""
    return [
        (
            int(rng.choice(OPS)),
            int(rng.integers(0, drive.capacity)),
            int(rng.integers(1, 8 * drive.unit_bytes // drive.block_bytes)) * drive.block_bytes,
            int(rng.random() < 0.1),
        )
        for _ in range(int(rng.integers(1, most)))
    ]


def history(held, rng, turns):
    """Yield what each of the recoveries of a history has found (None: nothing was on flash)."""
    for _ in range(turns):
        what = rng.random()
        if what < 0.25:
            held.cut(some(rng, held.drive), int(rng.integers(0, 600)), queues=4)
            yield held.drive.recovered
        elif what < 0.4:
            held.run([(FLUSH, 0, 0, 0)])
        else:
            held.run(some(rng, held.drive), queues=4)
        check_map(held.drive)


def check_map(drive):
    """What a translation page does not know of its span is dirty in the map cache, or the page is
    to be written back."""
    cfg, l2p = drive.arrays.cfg[0], drive.arrays.l2p[0]
    lpns, span = int(cfg.lpns), int(cfg.map_span)
    if cfg.tpages == 0 or not drive.idle or not drive.store.segments_on_disk():
        return
    records = drive.store.records(0)
    entries = drive.arrays.entry[: int(drive.arrays.maps["used"][0])]
    dirty = set(entries["lpn"][entries["dirty"] != 0].tolist())
    for page in range(int(cfg.tpages)):
        if drive.arrays.tpage["state"][page] != KEPT:
            continue
        place = int(l2p[lpns + page])
        known = records["sequence"][place - 1] if place else 0
        units = np.flatnonzero(l2p[page * span : min((page + 1) * span, lpns)]) + page * span
        later = records["step"][l2p[units].astype(np.int64) - 1] >= known
        assert dirty.issuperset(units[later].tolist()), f"translation page {page} is stale"


def check_modes(drive):
    """A block in use has the mode of all its pages, and no page behind those of its mode."""
    cfg, geometry = drive.arrays.cfg[0], drive.geometry
    for first, records in drive.store.block_records(geometry.block_pages, geometry.physical_pages):
        for at, pages in enumerate(records):
            block = drive.arrays.block[first // geometry.block_pages + at]
            read = read_spares(pages)
            if block["state"] == FREE or not (read == READS_VALID).any():
                continue
            in_pslc = block["stream"] == cfg.pslc_stream
            same = (pages["stream"][read == READS_VALID] == cfg.pslc_stream) == in_pslc
            assert same.all(), "a block has pages of both modes"
            if in_pslc:
                assert (read[int(cfg.pslc_pages) :] == READS_BLANK).all()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", [name for name in DRIVES if "checkpoints" not in name])
def test_histories_with_cuts(name, counts):
    """1,320 at full counts, of the 2,000 of docs/testing.md."""
    refused = trimmed = cuts = 0
    # With fewer, no interrupted program of "all of these" leaves a valid seal in 60 histories.
    turns = counts(30, 30 if name == "all of these" else 20)
    for seed in range(counts(3, 60)):
        rng = np.random.default_rng((seed, 17))
        held = versions(name, seed)
        for found in history(held, rng, turns):
            if found is not None:
                refused, trimmed = refused + found.refused_pages, trimmed + found.trimmed
                check_modes(held.drive)
        cuts += held.cuts
    assert cuts > counts(3, 60) and trimmed > 0
    assert refused > 0 or counts(True, False), "no interrupted program has left a valid seal"


def flush_and_trim(held, rng):
    """Fill half of the drive, trim and flush some of it."""
    drive = held.drive
    held.run([(WRITE, unit * drive.unit_bytes, drive.unit_bytes, 0) for unit in range(0, 100, 2)])
    held.run([(FLUSH, 0, 0, 0)])
    held.run([(TRIM, unit * drive.unit_bytes, 4 * drive.unit_bytes, 0) for unit in range(0, 60, 8)])
    held.run([(FLUSH, 0, 0, 0)])


def trims_without_flush(held, rng):
    """Write, trim and collect, and cut the power now and then; no FLUSH. Return the number of trim
    maps that erases have waited for."""
    drive, size, maps = held.drive, held.drive.unit_bytes, 0
    flush_and_trim(held, rng)
    for turn in range(40):
        first = int(rng.integers(0, drive.units - 8))
        held.run([(TRIM, first * size, 8 * size, 0)])
        units = rng.integers(0, drive.units, 20).tolist()
        held.run([(WRITE, unit * size, size, 0) for unit in units])
        if turn % 4 == 3:
            maps += small.counter(drive, small.MAP_PROGRAM_PAGES)
            held.cut([], 0)
    return maps


def no_seal(monkeypatch, held):
    reads = recovery.read_spares
    monkeypatch.setattr(recovery, "read_spares", lambda records: np.minimum(reads(records), 1))


def numbers_used_again(monkeypatch, held):
    recover = recovery.recover

    def forgetful(*args):
        found = recover(*args)
        found.sequence = found.programs = 0
        return found

    monkeypatch.setattr(recovery, "recover", forgetful)


def trims_not_recorded(monkeypatch, held):
    monkeypatch.setattr(recovery, "_apply_trim_maps", lambda *args: None)


def torn_pages_taken(monkeypatch, held):
    monkeypatch.setattr(recovery, "CHECKED_STRIPES", 0)


def block_not_closed(monkeypatch, held):
    """Writes continue right behind the last visible page."""
    go_on = block_recovery.continue_blocks

    def at_once(found, stripe, arrays, geometry):
        continued = go_on(found, stripe, arrays, geometry)
        moved = arrays.front["block"] >= 0
        arrays.front["next"][moved] -= stripe
        return continued

    monkeypatch.setattr(block_recovery, "continue_blocks", at_once)
    monkeypatch.setattr(recovery, "_check_newest", lambda *args: None)


def stale_map_kept(monkeypatch, held):
    """Recovery takes all translation pages on flash for up to date."""
    monkeypatch.setattr(recovery, "queue_stale", lambda *args: 0)


def fold_erases_too_early(monkeypatch, held):
    """The source of a fold is erased before its pages are programmed elsewhere."""
    tear = power_cut.tear

    def early(arrays, now, payload, rng, plans):
        victims = (arrays.block["state"] == VICTIM) & (
            arrays.block["stream"] == arrays.cfg["pslc_stream"]
        )
        pages = held.drive.geometry.block_pages
        for block in np.flatnonzero(victims).tolist():
            if arrays.valid[block] > 0:
                payload.store.erase(block * pages, pages)
        tear(arrays, now, payload, rng, plans)

    monkeypatch.setattr(power_cut, "tear", early)


def mode_ignored(monkeypatch, held):
    """Recovery takes all blocks for native ones."""
    set_blocks = recovery.set_blocks

    def native(found, stripe, arrays, geometry, cfg):
        found.stream[found.stream == int(arrays.cfg.pslc_stream[0])] = 0
        return set_blocks(found, stripe, arrays, geometry, cfg)

    monkeypatch.setattr(recovery, "set_blocks", native)


def flush_answered_early(monkeypatch, held):
    """The data cache says that nothing is left."""
    run, held.checks = held.run, False

    def forget_contents(items, queues=1):
        if items[0][0] == FLUSH:
            held.drive.arrays.cache["contents"] = 0
        run(items, queues)

    held.run = forget_contents


def erase_does_not_wait(monkeypatch, held):
    """No block remembers that a trim has removed one of its pages."""
    run = held.run

    def forget_trims(items, queues=1):
        run(items, queues)
        held.drive.arrays.block["trims"] = 0

    held.run = forget_trims


@pytest.mark.soak
@pytest.mark.parametrize(
    ("break_it", "name"),
    [
        (no_seal, "plain"),
        (numbers_used_again, "plain"),
        (trims_not_recorded, "plain"),
        (torn_pages_taken, "plain"),
        (block_not_closed, "plain"),
        (fold_erases_too_early, "pSLC"),
        (mode_ignored, "pSLC"),
        (stale_map_kept, "cached map"),
        (flush_answered_early, "write back"),
        (erase_does_not_wait, "plain"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_what_the_histories_catch(monkeypatch, break_it, name):
    """Each of these mistakes breaks the contract within a few histories."""
    for seed in range(40):
        rng = np.random.default_rng((seed, 17))
        held = versions(name, seed)
        break_it(monkeypatch, held)
        try:
            if break_it is erase_does_not_wait:
                trims_without_flush(held, rng)
            for _ in history(held, rng, 30):
                check_modes(held.drive)
        except (AssertionError, InputError):
            monkeypatch.undo()
            return
        monkeypatch.undo()
    pytest.fail("never caught")


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("name", "seeds"), [("plain", 6), ("two passes", 4), ("pSLC", 4)])
def test_a_cut_in_recovery_changes_nothing(monkeypatch, name, seeds):
    """Recovery overwrites pages. If it is cut at any of them, the next one finds the same."""

    class Cut(Exception):
        pass

    pages = 0
    for seed in range(seeds):
        rng = np.random.default_rng((seed, 18))
        held = versions(name, seed)
        for _ in history(held, rng, 12):
            pass
        chosen = held.batch(some(rng, held.drive))
        held.drive.power_cut(int(rng.integers(20, 200)))
        held.settle(chosen, held.drive.completions())
        drive = held.drive
        for left in range(100):
            done = []

            def cut_spoil(ppn, done=done, left=left, spoil=drive.store.spoil):
                done.append(ppn)
                spoil(ppn, done=len(done) <= left)
                if len(done) > left:
                    raise Cut

            monkeypatch.setattr(drive.store, "spoil", cut_spoil)
            try:
                drive.power_on()
            except Cut:
                pages += 1
                drive.off = True
            else:
                break
            finally:
                monkeypatch.undo()
        held.look()
    assert pages > 3 * seeds


def test_what_a_recovery_has_found_stays(rng):
    """A second cut at once, and a cut of a drive that only reads, find the same."""
    held = versions("write back")
    for _ in history(held, rng, 12):
        pass
    for _ in range(5):
        held.cut([(READ, 0, held.drive.unit_bytes, 0)], int(rng.integers(0, 30)))
    found = held.drive.recovered
    bytes_found = held.held.copy()
    held.cut([], 0)
    assert held.drive.recovered.mapped == found.mapped and (held.held == bytes_found).all()
    assert held.drive.recovered.sequence == found.sequence


def test_a_trim_is_on_flash_before_its_block_is_erased(rng):
    """Without any FLUSH: else an older version would come back than the one that was trimmed."""
    held = versions("plain")
    assert trims_without_flush(held, rng) > 3


def test_times_of_a_flush_after_trims():
    """It programs one page, once; a second FLUSH has nothing to do."""
    held = versions("plain")
    drive = held.drive
    flush_and_trim(held, None)
    programmed = small.counter(drive, small.MAP_PROGRAM_PAGES)
    assert programmed == 1

    def flush():
        command = np.zeros(1, COMMAND)
        command["op"], command["data"], command["arrival"] = FLUSH, -1, drive.earliest_arrival
        drive.submit(command)
        drive.run()
        done = drive.completions()[0]
        return int(done["end"] - done["start"])

    short = flush()
    held.run([(TRIM, 0, drive.unit_bytes, 0)])
    assert flush() == short  # unit 0 was trimmed before
    held.run([(WRITE, 0, drive.unit_bytes, 0)])
    held.run([(TRIM, 0, drive.unit_bytes, 0)])
    assert flush() > short + drive.cfg.flash.t_program_ps
    assert flush() == short
    assert small.counter(drive, small.MAP_PROGRAM_PAGES) == 2


def test_more_trim_maps_than_are_programmed_at_a_time():
    """Each has the bits of its own units."""
    cfg = small.config(
        ftl__trim_maps="true", flash__blocks_per_plane=400, flash__pages_per_block=24
    )
    drive = Drive(cfg, True, strict=True)
    maps, span = int(drive.arrays.cfg.trim_maps[0]), int(drive.arrays.cfg.trim_span[0])
    assert maps > trim_maps.FLIGHTS
    for at in range(maps):
        count = (2 + at % 5) * small.PAGE
        drive.write(at * span * small.PAGE, np.ones(count, np.uint8))
    trims = np.zeros(maps, COMMAND)
    trims["op"], trims["size"], trims["data"] = TRIM, small.PAGE, -1
    trims["offset"], trims["arrival"] = np.arange(maps) * span * small.PAGE, drive.earliest_arrival
    drive.submit(trims)
    drive.run()
    drive.flush()
    for at in range(maps):
        page = drive.store.read(int(drive.arrays.l2p[0, drive.units + at]) - 1)
        held = drive.arrays.l2p[0, at * span : min((at + 1) * span, drive.units)] != 0
        assert (np.unpackbits(page, bitorder="little")[: len(held)] == held).all()


def test_power_on_is_refused():
    drive = Drive(small.config(), True)
    with pytest.raises(InputError, match="the power is already on"):
        drive.power_on()
    drive.power_cut(0)
    drive.power_on()
    assert drive.started is Start.NEW
    drive.close()
    with pytest.raises(InputError, match="closed"):
        drive.power_on()
    for payload, changes, words in (
        (False, {}, "keeps no payload"),
        (True, {"ftl__map_cache": "1 KiB"}, r"ftl.map_cache_bytes = 1024: requires ftl.trim_maps"),
    ):
        drive = Drive(small.config(**changes), payload)
        drive.power_cut(0)
        with pytest.raises(InputError, match=words):
            drive.power_on()
