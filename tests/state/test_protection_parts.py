"""Parts of power-loss protection that histories of commands hardly tell apart: the terms of the
energy after a cut, and the order in which the files of a cache are cleared."""

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.engine.core.counters import COUNTERS, PROGRAMMED, SENSED
from ondie.emu.nand.cache_file import CacheFile
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nvme.command import COMMAND, TRIM
from ondie.emu.nvme.power_loss_protection import DRAM_STATION, quantities
from tests.faults.kills import MODES
from tests.state import small


def test_every_operation_counts_in_the_energy():
    """Each counter, byte and picosecond that is added changes the one amount that it belongs to."""
    code = {"ecc__code": "ldpc", "flash__spare": "69 B", "errors__kind": "rate"}
    cfg = small.config(ecc__codeword="512 B", ecc__correctable_bits=20, **code)
    drive = Drive(cfg, True)
    arrays, geometry = drive.arrays, drive.geometry
    page = geometry.page_bytes * 8
    count = arrays.count[0]

    def added(change, ps=0):
        before = quantities(cfg, arrays, geometry, 0)
        change()
        after = quantities(cfg, arrays, geometry, ps)
        return {name: after[name] - before[name] for name in after if after[name] != before[name]}

    def bump(name, by=3):
        count[COUNTERS.index(name)] += by

    for name in SENSED:
        assert added(lambda name=name: bump(name)) == {"nand_read_fj_per_bit": 3 * page}
    for name in PROGRAMMED:
        assert added(lambda name=name: bump(name)) == {"nand_program_fj_per_bit": 3 * page}
    for name in ("ecc_decoded_pages", "ecc_encoded_pages"):
        assert added(lambda name=name: bump(name)) == {"ecc_fj_per_bit": 3 * page}
    late = 3 * cfg.ecc.ldpc_iteration_ps
    assert added(lambda: bump("ecc_late_iterations")) == {"ecc_decoder_mw": late}
    for name in ("ecc_iterations", "ecc_retry_iterations"):
        assert added(lambda name=name: bump(name)) == {}  # what fits into ecc.decode
    block = geometry.pages * geometry.slots * page
    assert added(lambda: bump("erased_blocks")) == {"nand_erase_fj_per_bit": 3 * block}
    for name in ("size_in", "size_out"):
        assert added(lambda name=name: add(arrays.bus[name], 1)) == {"channel_fj_per_bit": 8 * 5}
    assert added(lambda: add(arrays.fifo["size"], DRAM_STATION)) == {"dram_fj_per_bit": 8 * 5}
    assert added(lambda: None, ps=7) == {"controller_mw": 7}


def add(table, at):
    table[at] += 5


@pytest.mark.parametrize("durability", ["process", "host"])
def test_files_of_a_cache_are_cleared_in_order(tmp_path, monkeypatch, durability):
    """Flash is synced first; entries are gone on the disk before a trim is, because an entry may be
    older than a trim of its unit."""
    cfg = small.config(ftl__gc_low_blocks=1, flash__blocks_per_plane=16, **MODES["protected"])
    drive = Drive(cfg, True, store=tmp_path / "store", durability=durability)
    drive.write(0, np.ones(small.PAGE, np.uint8))
    trim = np.zeros(1, COMMAND)
    trim["op"], trim["offset"], trim["size"], trim["data"] = TRIM, small.PAGE, small.PAGE, -1
    trim["arrival"] = drive.earliest_arrival
    drive.submit(trim)
    drive.run()
    file, seen = drive._cache_file, []

    def look(what):
        seen.append((what, bool(file.entries["sequence"].any()), bool(file.trims.any())))

    monkeypatch.setattr(PageStore, "sync", lambda store: look("flash"))
    monkeypatch.setattr(CacheFile, "sync", lambda each: look("cache"))
    look("before")
    file.clear_after(drive.store)
    look("after")
    synced = [("flash", True, True), ("cache", False, True)] if durability == "host" else []
    assert seen == [("before", True, True), *synced, ("after", False, False)]
