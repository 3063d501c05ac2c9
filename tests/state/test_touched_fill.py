"""Is a replay on a filled drive the same if only the pages that it accesses are mapped?"""

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.engine.run import build
from ondie.emu.ftl.precondition import touched_fill
from ondie.emu.ftl.precondition.touched_fill import Accesses
from ondie.emu.replay.block_trace import Loop, replay_block
from ondie.traces.block_model import READ, TRIM, WRITE, BlockTrace

DRIVE = (
    "flash.channels=2", "flash.dies_per_channel=3", "flash.blocks_per_plane=120",
    "flash.pages_per_block=48", "ftl.over_provisioning=0.4", "cache.capacity=2 MiB",
    "ftl.gather_time=1 ms",
)  # fmt: skip
SPAN = 1200 << 20
PAGES = ("flash.programming=page", "cache.mode=off")
WHOLE = (*PAGES, "ftl.mapping_unit=0 B")
DRIVES = {
    "word lines, mapping units, cache": (),
    "mapping units": PAGES,
    "pages": WHOLE,
    "blocks of planes": (*WHOLE, "ftl.block_unit=plane"),
    "one plane at a time": (*WHOLE, "flash.multi_plane=false"),
    "page types": (*WHOLE, "flash.page_types=turns", "flash.t_read_upper=20 us"),
    "sectors": (*WHOLE, "ftl.partial_pages=sectors"),
    "bad blocks": (*WHOLE, "ftl.bad_blocks=0.02"),
    "two passes": ("flash.programming=two_pass", "flash.t_program_second=300 us"),
}


def requests(rng, count, span):
    """Requests of up to 160 KiB in two regions, one in twenty a TRIM."""
    size = (1 + rng.integers(0, 40, count)) * 4096
    offset = rng.integers(0, (span // 8 - size.max()) // 4096, count) * 4096
    offset += np.where(rng.random(count) < 0.5, span // 2, 0)
    op = np.where(rng.random(count) < 0.5, READ, WRITE).astype(np.int8)
    op[rng.random(count) < 0.05] = TRIM
    return BlockTrace(
        arrival_ps=np.cumsum(rng.integers(0, 60_000_000, count)), op=op, offset=offset, size=size,
        device=np.zeros(count, np.int32), devices=("drive",), source="drawn", format="drawn",
    )  # fmt: skip


@pytest.mark.parametrize("settings", DRIVES.values(), ids=DRIVES.keys())
def test_the_rest_of_the_drive_changes_nothing(settings, rng, monkeypatch, counts):
    """All requests end at the same time, all counters and busy times are equal."""
    cfg = load_preset("gen4-tlc", (*DRIVE, *settings))
    trace = requests(rng, counts(400, 1500), SPAN)
    runs, mapped = [], []
    for whole in (False, True):
        with monkeypatch.context() as patch:
            if whole:
                patch.setattr(touched_fill, "rest_is_idle", lambda *_: False)
            else:
                fill = touched_fill.fill
                patch.setattr(
                    touched_fill, "fill",
                    lambda arrays, accesses, fill=fill: (
                        fill(arrays, accesses), mapped.append(int(arrays.dev.mapped[0]))
                    ),
                )  # fmt: skip
            runs.append(replay_block(trace, cfg, Loop(None)))
    part, full = runs
    assert mapped and mapped[0] < 0.5 * SPAN / 4096
    np.testing.assert_array_equal(part.requests, full.requests)
    assert part.done.counters == full.done.counters and part.busy == full.busy
    assert part.done.counters["erased_blocks"] > 0  # blocks are opened at the same time


@pytest.mark.parametrize(
    ("settings", "idle"),
    [
        ((), True),
        (("ftl.gc_low_blocks=30",), False),
        (("ftl.wear_static_cycles=4",), False),
        (("ftl.program_failures=0.001",), False),
        (("errors.kind=model",), False),
        (("ftl.write_streams=2",), False),
        (("ftl.open_blocks=ahead",), False),
    ],
)
def test_a_run_that_may_move_other_data_fills_the_drive(settings, idle):
    """5,000 writes of 1 MiB may take 25 of the 35 free blocks of each unit."""
    shape = ("flash.blocks_per_plane=100", "ftl.over_provisioning=0.35")
    cfg = load_preset("gen4-tlc", (*shape, "flash.pages_per_block=192", *settings))
    arrays = build.build(cfg, devices=1, phases=1, pairs=1)
    first = np.arange(5000, dtype=np.int64) * 256
    accesses = Accesses(first, first + 255, np.ones(len(first), bool))
    assert touched_fill.rest_is_idle(arrays, cfg, accesses) == idle


def test_intervals_are_disjoint_and_contain_every_page(rng, counts):
    cfg = load_preset("gen4-tlc", DRIVE)
    arrays = build.build(cfg, devices=1, phases=1, pairs=1)
    stripe, last = touched_fill.stripe_pages(arrays), int(arrays.cfg.lpns[0]) - 1
    for _ in range(counts(20, 400)):
        first = rng.integers(0, last - 400, 30)
        end = first + rng.integers(0, 400, 30)
        low, high = touched_fill.intervals(arrays, Accesses(first, end, np.zeros(30, bool)))
        assert (low < high).all() and (high[:-1] < low[1:]).all()
        wanted = {last // stripe} | {
            each for a, b in zip(first, end, strict=True)
            for each in range(a // stripe, b // stripe + 1)
        }  # fmt: skip
        assert {s for a, b in zip(low, high, strict=True) for s in range(a, b)} == wanted
