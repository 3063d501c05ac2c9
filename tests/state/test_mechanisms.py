"""Does every mechanism of flash management keep every page, and its books?

Each is switched on by itself on a small drive that is overwritten many times over, its bytes held
against a dictionary; what it is for has to have happened.
"""

import numpy as np
import pytest

from ondie.emu.engine.core import counters as stats
from ondie.emu.ftl.policies import VICTIMS
from ondie.emu.nvme import command as queues
from ondie.emu.units import InputError
from tests.state.small import PAGE, commands, counter, device

READ, WRITE, TRIM = queues.READ, queues.WRITE, queues.TRIM
SUSPEND = {
    "flash__suspend": "program_erase",
    "flash__t_suspend_program": "5 us",
    "flash__t_suspend_erase": "20 us",
    "flash__t_resume": "2 us",
    "flash__max_suspends": 4,
}
MESSAGES = {
    "frontend__doorbell": "4 B",
    "frontend__request": "24 B",
    "frontend__entry": "64 B",
    "frontend__completion": "16 B",
    "link__packet": "256 B",
    "link__packet_overhead": "24 B",
}
PLANES = {"ftl__block_unit": "plane"}
UNITS = {
    "flash__page": "2 KiB",
    "ftl__mapping_unit": "512 B",
    "flash__pages_per_block": 4,
    "flash__blocks_per_plane": 16,
}
COLLECTED = {"ftl__erase": "collected"}
ROOMY = {"flash__blocks_per_plane": 16}  # blocks are lost to failures
MECHANISMS: dict[str, tuple[dict[str, object], tuple[int, ...]]] = {
    "as it is": ({}, ()),
    "units of a plane": (PLANES, ()),
    "planes that read alone": (
        {**PLANES, "flash__plane_reads": "alone", "pe__kind": "none"},
        (),
    ),
    "static places": ({"ftl__placement": "static"}, ()),
    "static places of planes": ({**PLANES, "ftl__placement": "static"}, ()),
    "another order": ({**PLANES, "ftl__allocation": "WDPC"}, ()),
    "hot and cold": ({"ftl__write_streams": 2, "ftl__stream_policy": "by_age"}, ()),
    "several victims": ({"ftl__gc_parallel": 3, "ftl__gc_low_blocks": 4}, ()),
    "whole blocks in motion": ({"ftl__gc_window_pages": 0}, ()),
    # Two blocks of eight kept back, and two open: there must be more room than elsewhere.
    "writes that wait": ({"ftl__gc_stop_blocks": 2, "ftl__over_provisioning": 0.45}, ()),
    "collection behind the host": ({"ftl__gc_priority": "background"}, ()),
    "collection before the host": ({"ftl__gc_priority": "urgent", "ftl__gc_hard_blocks": 3}, ()),
    "collection alone": ({"ftl__gc_priority": "exclusive"}, ()),
    "collection alone, erased at once": ({**COLLECTED, "ftl__gc_priority": "exclusive"}, ()),
    "copy-back": ({"ftl__gc_copyback": "true"}, (stats.COPYBACK_PAGES,)),
    "sectors": ({"ftl__partial_pages": "sectors"}, ()),
    "mapping units": (UNITS, (stats.BESIDE_PAGES,)),
    "mapping units of planes": ({**PLANES, **UNITS}, (stats.BESIDE_PAGES,)),
    "mapping units, static places": (
        {**UNITS, "ftl__placement": "static"},
        (stats.BESIDE_PAGES, stats.PADDING_PAGES),
    ),
    "erased when collected": (COLLECTED, ()),
    "any free block": ({"ftl__wear_dynamic": "false"}, ()),
    "levelled when collected": ({**COLLECTED, "ftl__wear_static_cycles": 2}, (stats.WEAR_MOVES,)),
    "levelled when opened": ({"ftl__wear_static_cycles": 2}, (stats.WEAR_MOVES,)),
    "bad blocks": ({**ROOMY, "ftl__bad_blocks": 0.05}, ()),
    "programs fail": (
        {**ROOMY, "ftl__program_failures": 0.0005},
        (stats.PROGRAM_FAILURES, stats.FAILED_PAGES, stats.BAD_BLOCKS),
    ),
    "programs fail in copy-back": (
        {**ROOMY, "ftl__program_failures": 0.0005, "ftl__gc_copyback": "true"},
        (stats.PROGRAM_FAILURES, stats.FAILED_PAGES, stats.BAD_BLOCKS),
    ),
    "erases fail": ({**ROOMY, **COLLECTED, "ftl__erase_failures": 0.01}, (stats.BAD_BLOCKS,)),
    "suspension": (SUSPEND, ()),
    "a limit of power": ({"flash__power_planes": 3}, ()),
    "data before commands": ({"flash__grants": "data"}, ()),
    "messages": (MESSAGES, (stats.LINK_EXTRA_DOWN_BYTES, stats.LINK_EXTRA_UP_BYTES)),
    **{f"victims: {name}": ({"ftl__gc_policy": name}, ()) for name in VICTIMS if name != "greedy"},
}


def batches(rng, lpns, n):
    """``n`` batches of commands of 1 to 8 pages, mostly writes, none of which touch each other."""
    for _ in range(n):
        taken = np.zeros(lpns, bool)
        items = []
        for op in rng.choice([WRITE] * 6 + [READ] * 2 + [TRIM], 60):
            size = int(rng.integers(1, 9))
            at = int(rng.integers(0, lpns - size + 1))
            if not taken[at : at + size].any():
                taken[at : at + size] = True
                items.append((int(op), at, size))
        yield items


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("changes", "happened"), MECHANISMS.values(), ids=MECHANISMS)
def test_no_page_is_lost(changes, happened, counts):
    d = device(payload=True, **changes)
    rng = np.random.default_rng(1)
    known = np.zeros((d.lpns, PAGE), np.uint8)
    n = 30 if stats.BAD_BLOCKS in happened else counts(30, 150)  # blocks that are lost run out
    for items in batches(rng, d.lpns, n):
        d.buffer = rng.integers(1, 256, (512, PAGE)).astype(np.uint8)
        given = d.buffer.copy()
        batch = commands(items, arrival=d.now, slot=0)
        d.submit(batch)
        d.run()
        assert len(d.completions()) == len(items)
        for c in batch:
            lpns = slice(c["lpn"], c["lpn"] + c["n"])
            slots = slice(c["payload_slot"], c["payload_slot"] + c["n"])
            if c["op"] == WRITE:
                known[lpns] = given[slots]
            elif c["op"] == TRIM:
                known[lpns] = 0
            else:
                assert (d.buffer[slots] == known[lpns]).all()
        d.check()
    for lpn in range(0, d.lpns, 8):
        n = min(8, d.lpns - lpn)
        assert (d.read(lpn, n) == known[lpn : lpn + n]).all()
    d.check()
    assert counter(d, stats.COLLECTIONS) > 50
    assert all(counter(d, which) > 0 for which in happened)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"ftl__unwritten": "as_written"},
            'ftl.unwritten = "as_written": must be "zeros" if payload',
        ),
        (
            {"ftl__map_update": "placed"},
            'ftl.map_update = "placed": must be "programmed" if payload',
        ),
    ],
)
def test_what_a_device_with_bytes_cannot_do_is_refused(changes, words):
    with pytest.raises(InputError) as caught:
        device(payload=True, **changes)
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)
    if "ftl__unwritten" in changes:
        device(payload=False, **changes)


@pytest.mark.parametrize("seed", range(5))
def test_victims_beside_each_other_leave_a_block_for_each(seed):
    """Several collections on a die, and as few blocks as can be: each has a block to move its pages
    to, however many the host's writes ask for meanwhile."""
    d = device(ftl__gc_parallel=4, ftl__gc_low_blocks=4)
    lpns = np.random.default_rng(seed).integers(0, d.lpns, 4000)
    d.submit(commands([(WRITE, int(lpn), 1) for lpn in lpns]))
    most = 0
    while d.run_until(d.now + 2_000_000_000):
        most = max(most, int(d.arrays.pool.victims.max()))
    assert most > 1 and len(d.completions()) == 4000
    d.check()
