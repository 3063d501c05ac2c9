"""What a power cut leaves of word lines in two passes, and of translation pages, step by step.
Source: docs/store.md; the histories of these drives are in test_power_on.py.
"""

import numpy as np
import pytest

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.ftl import recovery
from ondie.emu.ftl.cached_entries import DUE, KEPT
from ondie.emu.nand.page_store import FIRST_PASS
from ondie.emu.nand.sealed_records import READS_DAMAGED, READS_VALID, read_spares
from ondie.emu.nvme.command import FLUSH, READ, TRIM, WRITE
from tests.state import small
from tests.state.test_power_on import versions

pytestmark = pytest.mark.usefixtures("few_transactions")


def cut_in_second_passes(held, rng, turns=6):
    """Write many units to one die, and cut the power in a second pass, while many lines have had
    their first one."""
    drive, refused = held.drive, 0
    for _ in range(turns):
        units = rng.permutation(drive.units)[:60].tolist()
        size = drive.unit_bytes
        chosen = held.batch([(WRITE, unit * size, size, 0) for unit in units], queues=4)
        passes, last = int(rng.integers(1, 9)), -1
        while passes:
            drive.run_until(max_events=1)
            tid = int(drive.arrays.die["arr"][0])
            if tid >= 0 and tid != last and drive.arrays.txn["step"][tid] == stages.PASSED:
                last, passes = tid, passes - 1
        drive.power_cut(0)
        held.settle(chosen, drive.completions())
        drive.power_on()
        held.look()
        refused += drive.recovered.refused_pages
    return refused


@pytest.mark.parametrize("more", [{}, {"ftl__map_checkpoint": "96 KiB"}], ids=["", "checkpoints"])
def test_a_second_pass_is_interrupted_behind_many_first_ones(monkeypatch, more):
    """The torn line is the last one with valid pages, not the last visible one."""
    refused = 0
    for seed in range(2):
        held = versions("one die", seed, more)
        refused += cut_in_second_passes(held, np.random.default_rng(seed))
        assert (held.drive.recovered.checkpoint > 0) == bool(more)
    assert refused > 10
    check = recovery._check_newest

    def newest_visible(scan, *args):
        scan.two_pass = False
        check(scan, *args)

    monkeypatch.setattr(recovery, "_check_newest", newest_visible)
    with pytest.raises(AssertionError, match="is none of"):
        for seed in range(6):
            cut_in_second_passes(versions("one die", seed, more), np.random.default_rng(seed))
    monkeypatch.undo()
    held, read = versions("one die", 0, more), recovery.read_spares

    def half_taken(records):
        return np.where(records["lpn"] == FIRST_PASS, READS_VALID, read(records))

    monkeypatch.setattr(recovery, "read_spares", half_taken)
    with pytest.raises(AssertionError, match="is none of"):
        cut_in_second_passes(held, np.random.default_rng(0))


def test_stale_translation_pages_are_written_back():
    """By the first read that misses, timed and counted; then nothing is stale until a trim."""
    held = versions("cached map")
    drive, size = held.drive, held.drive.unit_bytes
    pages = int(drive.arrays.cfg.tpages[0])
    units = range(0, drive.units, 40)
    reads = [(READ, unit * size, size, 0) for unit in units]
    held.run([(WRITE, unit * size, size, 0) for unit in units], queues=4)
    held.cut([], 0)
    stale = drive.recovered.stale_maps
    assert 0 < stale <= pages and (drive.arrays.tpage["state"] == DUE).sum() == stale
    assert small.counter(drive, small.MAP_PROGRAM_PAGES) == 0
    start = drive.now
    held.run(reads)
    assert small.counter(drive, small.MAP_PROGRAM_PAGES) == stale
    assert (drive.arrays.tpage["state"] == KEPT).all()
    assert drive.now - start > drive.cfg.flash.t_program_ps
    held.cut([], 0)
    assert drive.recovered.stale_maps == 0
    held.run([(TRIM, 0, size, 0)])
    held.run([(FLUSH, 0, 0, 0)])
    held.cut([], 0)
    assert drive.recovered.stale_maps > 0 and drive.arrays.tpage["state"][0] == DUE
    held.run(reads)
    held.cut([], 0)
    assert drive.recovered.stale_maps == 0
    assert drive.arrays.l2p[0, 0] == 0


def test_a_page_after_its_first_pass_is_neither_blank_nor_valid():
    """Until the second pass has ended, also after a kill of the process."""
    held = versions("one die")
    drive, size = held.drive, held.drive.unit_bytes
    held.batch([(WRITE, unit * size, size, 0) for unit in range(60)], queues=4)
    while not drive.arrays.count[0, COUNTERS.index("second_pass_pages")]:
        drive.run_until(max_events=1)
    records = drive.store.records(0)
    half = records["lpn"] == FIRST_PASS
    assert half.sum() >= 12 and (read_spares(records)[half] == READS_DAMAGED).all()
    drive.run()
    assert not (drive.store.records(0)["lpn"] == FIRST_PASS).any()
