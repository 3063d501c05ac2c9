"""Does `ondie bench recovery` measure what it says: a full drive, recovered and timed?"""

import json

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.engine.run.recovery_time import recovery_ps
from ondie.emu.ftl.recovery import Recovered
from ondie.emu.nand.geometry import Geometry
from ondie.emu.validate.speed import recovery
from tests.smoke.commands import files, here

SMALL = ["flash.blocks_per_plane=12", "flash.pages_per_block=48"]


@pytest.mark.parametrize("at_random", [False, True])
def test_every_unit_is_found(at_random):
    cfg = load_preset("gen4-tlc", SMALL)
    rate, copies, found = recovery.scan(cfg, at_random)
    geometry = Geometry.of(cfg)
    assert rate > 0 and copies > 0
    assert found.mapped == int(geometry.native_pages * (1 - cfg.ftl.over_provisioning))
    assert found.refused_pages == 0 and not found.damaged


@pytest.mark.parametrize("at_random", [False, True])
def test_a_checkpoint_has_every_unit(at_random):
    """Those written after it are found in the blocks behind it, nearer to the end of the drive."""
    cfg = load_preset("gen4-tlc", [*SMALL, *recovery.CHECKPOINTS])
    rate, _, found = recovery.scan(cfg, at_random)
    geometry = Geometry.of(cfg)
    units = int(geometry.native_pages * (1 - cfg.ftl.over_provisioning))
    entries = geometry.page_bytes // 8 - 8
    metadata = -(-(units + -(-units // 8 // geometry.page_bytes)) // entries) + 2
    assert rate > 0 and found.mapped == units + metadata and found.checkpoint == 1
    assert len(found.read_pages) == metadata
    assert found.scanned_blocks < 0.3 * geometry.units * geometry.all_blocks
    both = {}
    for name, changes in (("with", found), ("without", recovery.scan(
        load_preset("gen4-tlc", SMALL), at_random)[2])):  # fmt: skip
        both[name] = recovery_ps(cfg, geometry, changes)
    assert 0 < both["with"] < both["without"]


def test_the_command_writes_rows(capsys, tmp_path, monkeypatch):
    found = Recovered(mapped=7_000_000, visible_stripes=np.zeros(4, np.int64))
    monkeypatch.setattr(
        recovery,
        "scan",
        lambda cfg, at_random: (8e6, 0 if cfg.ftl.map_checkpoint_bytes else 64e6, found),
    )
    monkeypatch.setattr(
        recovery,
        "recovery_ps",
        lambda cfg, geometry, found: (1 if cfg.ftl.map_checkpoint_bytes else 3) * 10**12,
    )
    done = here(capsys, "bench", "recovery", "--quick", "--json", tmp_path / "a.json")
    assert done.code == 0 and "scaled by pages to 3.84 TB" in done.out
    assert files(tmp_path) == ["a.json"]
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    ratios = {
        (row["name"].partition(",")[0].split()[-1], row["anchor"]): row["ratio"] for row in rows
    }
    assert ratios["order", "copy of the records"] == pytest.approx(1 / 8)
    assert ratios["random", "target 5 M/s"] == pytest.approx(1.6)
    times = [row for row in rows if row["unit"] == "s"]
    assert [row["value"] for row in times] == pytest.approx([3, 240, 1, 80])
    assert times[-1]["anchor"] == "all pages" and times[-1]["ratio"] == pytest.approx(1 / 3)


def test_the_capacity_is_the_one_asked_for():
    cfg = recovery.of_capacity(48e9)
    geometry = Geometry.of(cfg)
    size = int(geometry.native_pages * (1 - cfg.ftl.over_provisioning)) * geometry.page_bytes
    assert 48e9 <= size < 1.1 * 48e9


def test_times_follow_from_the_pages():
    """Twice the stripes take twice the reads; a die reads its blocks one after the other."""
    cfg = load_preset("gen4-tlc", SMALL)
    geometry = Geometry.of(cfg)
    blocks = geometry.units * geometry.all_blocks
    stripe = 3 * geometry.unit_planes * geometry.slots

    pages = np.full(blocks, geometry.block_pages)

    def taken(stripes, **more):
        found = Recovered(stripe=stripe, visible_stripes=stripes, block_pages=pages, **more)
        return recovery_ps(cfg, geometry, found)

    empty = taken(np.zeros(blocks, np.int64))
    one_each = geometry.all_blocks * cfg.flash.t_read_ps
    assert one_each < empty < 1.1 * one_each
    few, many = (taken(np.full(blocks, n)) for n in (6, 12))
    reads = 6 * 3 * geometry.all_blocks * cfg.flash.t_read_ps
    assert reads < many - few < 1.1 * reads
    assert taken(np.full(blocks, 12), checked_stripes=12) > many + 8 * 3 * geometry.all_blocks * (
        cfg.flash.t_read_ps
    )  # with durability "host", every page is read whole
    one_die = np.zeros(blocks, np.int64)
    one_die[: geometry.all_blocks] = 12
    assert 0.6 * many < taken(one_die) < many  # alone on its channel
