"""Is write amplification the bytes that the drive programmed over the bytes that the host wrote?

The bytes written are summed from the log of requests. The pages programmed are counted from the
blocks after the run: their erases, and what they hold.
"""

import csv
import json

import numpy as np
import pytest

from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.run import build
from ondie.emu.ftl import page_map
from ondie.emu.nand.geometry import Geometry
from ondie.emu.replay import block_trace
from ondie.emu.validate.speed.speed import WHOLE_PAGES
from tests.smoke.commands import here

SMALL = (
    *WHOLE_PAGES,
    "flash.channels=2", "flash.dies_per_channel=2", "flash.planes_per_die=2",
    "flash.blocks_per_plane=48", "flash.pages_per_block=32", "flash.page=4 KiB",
    "ftl.over_provisioning=0.3", "ftl.initial=fresh", "ftl.erase=collected",
)  # fmt: skip
LARGE = ("flash.page=16 KiB", "flash.blocks_per_plane=24", "flash.pages_per_block=16")
CASES = {
    "whole pages": ((), 4),
    "a quarter of a page": ((*LARGE, "ftl.mapping_unit=0 KiB"), 4),
    "16 KiB pages, 16 KiB requests": ((*LARGE, "ftl.mapping_unit=0 KiB"), 16),
    "mapping units": ((*LARGE, "ftl.mapping_unit=4 KiB"), 4),
    "mapping units, sectors": ((*LARGE, "ftl.mapping_unit=4 KiB"), 2),
    "sectors": ((), 1),
    "two pages": ((), 8),
    "fifo": (("ftl.gc_policy=fifo",), 4),
    "planes": (("ftl.block_unit=plane",), 4),
    "streams": (("ftl.write_streams=2", "ftl.stream_policy=by_age", "ftl.gc_streams=each"), 4),
    "word lines": (
        (
            "flash.programming=one_shot",
            "flash.cell=MLC",
            "flash.planes_per_die=1",
            "flash.blocks_per_plane=96",
        ),
        4,
    ),
    "cached map": (("ftl.map_cache=16 KiB",), 4),
    "write cache, word lines, mapping units": (
        (
            "flash.programming=one_shot",
            "flash.page=16 KiB",
            "flash.pages_per_block=24",
            "flash.blocks_per_plane=14",
            "ftl.mapping_unit=4 KiB",
            "cache.mode=write_back",
            "cache.capacity=1 MiB",
        ),
        4,
    ),
}
"""Settings, and KiB of a request, at most."""


def programmed(arrays: Arrays, geometry: Geometry) -> int:
    """Pages that the blocks have been programmed with since the drive was built."""
    block = arrays.block
    held = np.where(
        np.isin(block["state"], [page_map.FULL, page_map.VICTIM]), geometry.block_pages, 0
    )
    fronts = arrays.front.reshape(-1, geometry.units)
    for front in fronts:
        for unit in np.flatnonzero(front["block"] >= 0):
            held[unit * geometry.all_blocks + front["block"][unit]] = front["next"][unit]
    return int((block["erases"] * geometry.block_pages + held).sum())


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CASES)
def test_bytes_by_hand(capsys, tmp_path, monkeypatch, rng, name):
    """Random writes of 1.5 times the capacity to the first 22 MiB of the drive."""
    settings, size = CASES[name]
    built = []

    original = build.build

    def build_and_keep(cfg, **options):
        built.append((original(cfg, **options), Geometry.of(cfg)))
        return built[-1][0]

    monkeypatch.setattr(block_trace.build, "build", build_and_keep)
    lines = []
    for _ in range(13_000):
        kib = int(rng.integers(1, size + 1)) if size < 4 else size
        step = max(size, 4)
        lines.append(f"0 0 {int(rng.integers(0, 22 * 1024 // step)) * step * 2} {kib * 2} 0")
    path = tmp_path / "w.trace"
    path.write_text("\n".join(lines) + "\n")
    given = dict(each.split("=") for each in (*SMALL, *settings))
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    done = here(
        capsys, "replay", path, "--from", "mqsim", "--time-unit", "ns", "--queue-depth", "8",
        "--precondition", "none", "--json", tmp_path / "a.json", "--log", tmp_path / "a.csv",
        "--quiet", *words,
    )  # fmt: skip
    assert done.code == 0, done
    data = json.loads((tmp_path / "a.json").read_text())
    with open(tmp_path / "a.csv", newline="") as file:
        written = sum(int(row["size"]) for row in csv.DictReader(file) if row["op"] == "write")
    ((arrays, geometry),) = built
    page = int(arrays.cfg.page_bytes[0])
    pages = programmed(arrays, geometry)
    assert data["written_bytes"] == written
    assert data["programmed_bytes"] == pages * page
    assert data["waf"] == pages * page / written > 1
    assert data["management"]["collections"] > 0
