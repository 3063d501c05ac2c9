"""Mapping units of 4 KiB on pages of 16 KiB: what small and large writes cost beside a map of whole
pages, what collection moves, what the map takes, and what is refused.
"""

import hashlib

import numpy as np
import pytest

from ondie.emu.engine.run import build
from ondie.emu.ftl import cmt, tables
from ondie.emu.ftl.precondition.apply import precondition
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme.request import FLUSH, READ, TRIM, WRITE
from ondie.emu.units import InputError
from tests.state import small
from tests.state.both_ways import printed
from tests.state.small import PageDrive
from tests.state.written import PAGE, config, drive, play, requests

SLOTS = 4
WHOLE = {
    "flash__page": "16 KiB",
    "flash__blocks_per_plane": 32,
    "flash__pages_per_block": 8,
    "flash__channels": 2,
}
UNITS = WHOLE | {"ftl__mapping_unit": "4 KiB"}
SECTORS = WHOLE | {"ftl__partial_pages": "sectors"}
"""The same drive with a map of pages, which reads what a write does not bring."""


def programmed(arrays, cfg, counters):
    """Bytes of flash programmed, padding among them."""
    names = ("program_pages", "gc_program_pages", "map_program_pages", "padding_pages")
    return sum(counters.get(name, 0) for name in names) * Geometry.of(cfg).page_bytes


def small_writes(rng, cfg, n):
    """Writes of 4 KiB anywhere in the first half of the drive."""
    size = tables.logical_pages(cfg, Geometry.of(cfg)) * Geometry.of(cfg).page_bytes
    return requests(rng.integers(0, size // 2 // PAGE, n) * PAGE, PAGE, WRITE)


def run(cfg, given, depth=32, fill=True):
    """Counters of the requests alone on a drive that holds data everywhere, and the drive."""
    arrays = drive(cfg)
    if fill:
        precondition(arrays, cfg, "fill")
    return arrays, play(arrays, cfg, [given], depth).counters


def test_small_writes_amplify_on_a_map_of_pages_only(rng):
    """4 KiB anywhere: a page of 16 KiB is read and programmed for each, four times the bytes; four
    mapping units make a page. Only as many as fit the drive's free blocks, so nothing is
    collected."""
    n = 384
    written = {}
    for changes in (SECTORS, UNITS):
        cfg = config(**changes, cache__mode="write_back", cache__capacity="1 MiB")
        arrays, c = run(cfg, small_writes(rng, cfg, n))
        assert c["collections"] == 0 and c["host_write_bytes"] == n * PAGE
        taken = c["destaged_pages"] * PAGE  # not what was overwritten in the cache
        written["units" if changes is UNITS else "pages"] = programmed(arrays, cfg, c) / taken
        if changes is SECTORS:
            assert c["merge_read_pages"] > 0.9 * c["destaged_pages"]
        else:
            assert c["merge_read_pages"] == 0
            assert c["array_programs"] * SLOTS == c["program_pages"] + c["padding_pages"]
    assert written["pages"] == 4
    assert written["units"] < 1.05


@pytest.mark.parametrize("unit", ["die", "plane"])
def test_large_requests_cost_what_they_cost_with_pages(unit):
    """1 MiB in order, over the whole drive and once more: as many operations, as many bytes over
    the channels, as much time for reads."""
    found = []
    for changes in (WHOLE, UNITS):
        cfg = config(**changes, ftl__block_unit=unit)
        size = int(tables.logical_pages(cfg, Geometry.of(cfg)) * Geometry.of(cfg).page_bytes)
        offset = np.arange(size >> 20) << 20
        op = np.repeat([WRITE, WRITE, READ], len(offset))
        arrays, c = run(cfg, requests(np.tile(offset, 3), 1 << 20, op), 1, fill=False)
        names = ("array_programs", "array_reads", "erased_blocks", "collections")
        found.append(
            [c[name] for name in names]
            + [int(arrays.bus.size_in.sum()), int(arrays.bus.size_out.sum())]
        )
        assert c["gc_program_pages"] == 0 and c.get("padding_pages", 0) == 0
    assert found[0] == found[1]


def test_the_map_is_four_times_as_large():
    """As many bytes are offered; an entry for each 4 KiB of them, of two bits more, and as many
    times more translation pages, each of a quarter."""
    pages, units = config(**WHOLE), config(**UNITS)
    drives = [drive(cfg) for cfg in (pages, units)]
    g = [Geometry.of(cfg) for cfg in (pages, units)]
    assert g[0].physical_pages * SLOTS == g[1].physical_pages
    lpns = [int(d.cfg.lpns[0]) for d in drives]
    assert abs(lpns[1] - SLOTS * lpns[0]) < SLOTS
    assert drives[1].l2p.nbytes >= SLOTS * drives[0].l2p.nbytes - 4 * SLOTS
    for cfg, shape, n, page in ((pages, g[0], lpns[0], 1 << 14), (units, g[1], lpns[1], 1 << 12)):
        cached = cfg.replace({"ftl.map_cache": "1 KiB"}, ref="test")
        entries, span, tpages = cmt.table_sizes(cached, shape.physical_pages, n)
        _, stored = cmt.entry_bytes(cached, shape.physical_pages)
        assert span == page // stored and tpages == -(-n // span)
        assert entries == 1024 // cmt.entry_bytes(cached, shape.physical_pages)[0]


def test_collection_moves_what_is_valid_of_a_page(rng):
    """Random overwrites of a full drive: slots that are valid move, each page of which any is valid
    is sensed once, and what moves is packed again."""
    cfg = config(**UNITS)
    arrays = drive(cfg)
    precondition(arrays, cfg, "fill")
    lpns = int(arrays.cfg.lpns[0])
    given = requests(rng.integers(0, lpns, 3 * lpns) * PAGE, PAGE, WRITE)
    c = play(arrays, cfg, [given], 64).counters
    assert c["gc_read_pages"] > lpns
    assert c["array_reads"] < 0.8 * c["gc_read_pages"]  # some pages have several valid slots
    assert c["array_reads"] * SLOTS == c["gc_read_pages"] + c["beside_pages"]
    all_programs = c["program_pages"] + c["gc_program_pages"] + c["padding_pages"]
    assert c["array_programs"] * SLOTS <= all_programs
    # A line that collection leaves incomplete is padded where no other follows within 10 ms.
    assert c["padding_pages"] < 0.1 * all_programs


def test_part_of_a_slot_reads_that_slot(rng):
    """Writes of 512 B into 4 KiB: the other seven sectors of the slot cross the channel, not those
    of the page."""
    cfg = config(**UNITS, ftl__partial_pages="sectors")
    n = 64
    lpns = rng.permutation(int(drive(cfg).cfg.lpns[0]))[:n]
    arrays, c = run(cfg, requests(lpns * PAGE + 1024, 512, WRITE))
    assert c["merge_read_pages"] == n and int(arrays.bus.size_out.sum()) == n * 7 * 512
    assert c["beside_pages"] == n * (SLOTS - 1)
    held = np.asarray(arrays.sectors[0, lpns])
    assert (held == 0xFF).all()


@pytest.mark.parametrize("cache", ["off", "write_back", "read_write"])
def test_bytes_are_kept(rng, cache):
    """What was written comes back, through the data cache and past it, sub-page by sub-page."""
    cfg = small.config(
        flash__page="2 KiB", ftl__mapping_unit="512 B", flash__pages_per_block=4,
        cache__mode=cache, cache__capacity="0 B" if cache == "off" else "16 KiB",
        flash__blocks_per_plane=16, ftl__over_provisioning=0.5,
    )  # fmt: skip
    device = PageDrive(cfg, payload=True)
    model = np.zeros((device.lpns, small.PAGE), np.uint8)
    for _ in range(150):
        n = int(rng.integers(1, 13))
        lpn = int(rng.integers(0, device.lpns - n))
        if rng.random() < 0.7:
            model[lpn : lpn + n] = rng.integers(0, 256, (n, small.PAGE))
            device.write(lpn, model[lpn : lpn + n])
        elif rng.random() < 0.2:
            device.submit(small.commands([(TRIM, lpn, n)], arrival=device.now))
            device.run()
            model[lpn : lpn + n] = 0
        else:
            np.testing.assert_array_equal(device.read(lpn, n), model[lpn : lpn + n])
    device.submit(small.commands([(FLUSH, 0, 0)], arrival=device.now))
    device.run()
    device.check()
    np.testing.assert_array_equal(
        np.concatenate([device.read(lpn, 1) for lpn in range(device.lpns)]), model
    )


def test_compiled_and_uncompiled_runs_are_alike():
    """Every operation, parts of slots, collection, a cached map: the times of all requests, and the
    map, to the bit."""
    script = (
        "import hashlib, numpy as np\n"
        "from ondie.emu.replay.player import Player, Source\n"
        "from tests.state.written import config, drive, requests\n"
        "cfg = config(ftl__partial_pages='sectors', flash__blocks_per_plane=16,\n"
        "             flash__page='16 KiB', ftl__mapping_unit='4 KiB', ftl__map_cache='200 B',\n"
        "             flash__pages_per_block=4, ftl__over_provisioning=0.7, flash__channels=1,\n"
        "             flash__dies_per_channel=1)\n"
        "rng = np.random.default_rng(3)\n"
        "arrays = drive(cfg)\n"
        "op = rng.choice(4, 200, p=[.3, .6, .08, .02])\n"
        "offset = np.where(op < 3, rng.integers(0, 500, 200) * 512, 0)\n"
        "size = np.where(op < 3, rng.integers(1, 40, 200) * 512, 0)\n"
        "given = requests(offset, size, op, np.arange(200) * 20_000_000)\n"
        "done = Player(arrays, cfg, [Source(iter([given]), 6, True)]).run()\n"
        "text = b''.join(r.tobytes() for r in done.requests) + arrays.l2p.tobytes()\n"
        "print(hashlib.sha256(text).hexdigest(), done.counters)\n"
    )
    found = printed(script)
    assert found[0] == found[1] and "'collections': 0" not in found[0]
    assert len(hashlib.sha256().hexdigest()) < len(found[0])


REFUSED = [
    ({"ftl__mapping_unit": "3 KiB"}, "power of two"),
    ({"ftl__mapping_unit": "32 KiB"}, "whole mapping units"),
    ({"ftl__mapping_unit": "256 B"}, "from 512 B"),
    ({"ftl__map_update": "placed"}, "programmed"),
    ({"ftl__unwritten": "as_written"}, "zeros"),
    ({"ftl__gc_copyback": "true"}, "whole pages"),
    ({"pe__rain": 4, "ftl__reservoir_fraction": 0.25}, "whole pages of the reservoir"),
    ({"host__io_block": "2 KiB"}, "multiple"),
]


@pytest.mark.parametrize("changes, words", REFUSED)
def test_refused(changes, words):
    with pytest.raises(InputError, match=words) as caught:
        config(**UNITS | {"ftl__block_unit": "die"} | changes)
    message = str(caught.value)
    assert "\n" not in message and "ftl.mapping_unit = " in message


def test_operations_by_place_are_whole_pages():
    with pytest.raises(InputError, match=r"^ftl\.mapping_unit = 4096 B: "):
        build.build(config(**UNITS), jobs=8)


@pytest.mark.parametrize(
    ("reads", "multi_plane", "operations"),
    [
        ("together", "true", 1),
        ("together", "false", 2),
        ("alone", "true", 2),
        ("alone", "false", 2),
    ],
)
def test_planes_that_are_read_alone_share_no_operation(reads, multi_plane, operations):
    """Eight units of two planes: one array operation senses both planes only if the die reads its
    planes together, with a multi-plane command."""
    cfg = config(
        **UNITS, pe__kind="none", ftl__block_unit="die", flash__plane_reads=reads,
        flash__multi_plane=multi_plane,
    )  # fmt: skip
    arrays = drive(cfg)
    precondition(arrays, cfg, "fill")
    counters = play(arrays, cfg, [requests(0, 8 * PAGE, READ)], 1).counters
    assert counters["array_reads"] == operations and counters["read_pages"] == 8
