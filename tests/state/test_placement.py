"""Where do pages go? All orders of channels, ways, dies and planes against loops as they are
written down, for pages that follow their number and for pages that take the next unit in turn.
"""

import itertools

import numpy as np
import pytest

from ondie.emu.config.schema.flash import ORDERS
from ondie.emu.engine.core.counters import COLLECTIONS, COPYBACK_PAGES, GC_READ_PAGES
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme import command as queues
from tests.state.small import commands, config, counter, device, random_writes

WRITE = queues.WRITE
SHAPE = {
    "flash__channels": 2,
    "flash__dies_per_channel": 6,
    "flash__dies_per_chip": 2,
    "flash__planes_per_die": 2,
}
SIZES = {"C": 2, "W": 3, "D": 2, "P": 2}


def loops(order, sizes):
    """Places in turn: the first letter in the innermost loop. Yields {letter: index}."""
    outer = order[::-1]
    for at in itertools.product(*(range(sizes[letter]) for letter in outer)):
        yield dict(zip(outer, at, strict=True))


def place(g, ppn, chip_dies):
    """Where a physical page lies, from its number: planes first in a die's super-page or, by
    planes, block after block of one plane; dies channel first."""
    die, rest = divmod(ppn, g.die_pages)
    way, channel = divmod(die, g.channels)
    chip, of_chip = divmod(way, chip_dies)
    if g.unit_planes > 1:
        plane = rest % g.block_pages % g.unit_planes
    else:
        plane = rest // (g.all_blocks * g.block_pages)
    return {"C": channel, "W": chip, "D": of_chip, "P": plane}


def one_by_one(d, lpns):
    """Writes of single pages, each when the one before is done."""
    for lpn in lpns:
        d.submit(commands([(WRITE, int(lpn), 1)], arrival=d.now))
        d.run()
    d.check()


def places(d, lpns):
    return [place(d.geometry, int(d.arrays.l2p[0, lpn]) - 1, 2) for lpn in lpns]


@pytest.mark.parametrize("unit", ["die", "plane"])
def test_every_order_is_its_loops(unit):
    """24 orders; over dies the planes of a super-page are written in turn, whatever the order
    says."""
    assert len(ORDERS) == 24
    g = Geometry.of(config(ftl__block_unit=unit, **SHAPE))
    seen = set()
    for order in ORDERS:
        sizes = SIZES if unit == "plane" else SIZES | {"P": 1}
        wanted = [
            ((at["W"] * 2 + at["D"]) * 2 + at["C"]) * sizes["P"] + at["P"]
            for at in loops(order, sizes)
        ]
        turns = g.turns(order)
        assert turns.dtype == np.int32 and turns.tolist() == wanted
        assert sorted(wanted) == list(range(g.units))
        seen.add(tuple(wanted))
    # Without planes three letters are left: 3! orders.
    assert len(seen) == (24 if unit == "plane" else 6)


@pytest.mark.parametrize("order", ORDERS)
def test_pages_written_in_turn(order):
    """Page after page takes the next place of the loops, twice around."""
    d = device(ftl__allocation=order, ftl__block_unit="plane", **SHAPE)
    lpns = range(2 * d.geometry.units)
    one_by_one(d, lpns)
    assert places(d, lpns) == 2 * list(loops(order, SIZES))


@pytest.mark.parametrize("order", ["PCWD", "DPWC"])
def test_static_places_follow_the_number(order):
    """Written in any order, and over again."""
    d = device(ftl__allocation=order, ftl__block_unit="plane", ftl__placement="static", **SHAPE)
    wanted = list(loops(order, SIZES))
    lpns = np.random.default_rng(1).permutation(3 * d.geometry.units)
    one_by_one(d, [*lpns, *lpns[:30]])
    assert places(d, lpns) == [wanted[lpn % len(wanted)] for lpn in lpns.tolist()]


@pytest.mark.parametrize("unit", ["die", "plane"])
@pytest.mark.parametrize("copyback", ["false", "true"])
def test_collection_keeps_the_unit(unit, copyback):
    """Under collection that moves everything many times a static page stays in its unit; without,
    pages wander. Copy-back stays in its plane: among super-blocks it takes the pages whose turn
    comes in their own plane, by itself all."""
    for placement in ("static", "dynamic"):
        d = device(
            ftl__block_unit=unit,
            ftl__placement=placement,
            ftl__gc_copyback=copyback,
            ftl__allocation="WDCP",
            ftl__over_provisioning=0.45,
            flash__blocks_per_plane=12,
            host__io_queue_depth=32,
        )
        g = d.geometry
        d.submit(commands([(WRITE, lpn, 1) for lpn in range(d.lpns)]))
        d.submit(random_writes(np.random.default_rng(2), 4000, d.lpns, longest=4))
        d.run()
        d.check()
        assert counter(d, COLLECTIONS) > 100
        inside = counter(d, COPYBACK_PAGES) / counter(d, GC_READ_PAGES)
        wanted = {"die": (0.2, 0.8), "plane": (1, 1)}[unit] if copyback == "true" else (0, 0)
        assert wanted[0] <= inside <= wanted[1]
        lpns = np.arange(d.lpns)
        unit_of = (d.arrays.l2p[0].astype(int) - 1) // (g.all_blocks * g.block_pages)
        wanted = g.turns("WDCP")[lpns // g.unit_planes % g.units]
        same = (unit_of == wanted).mean()
        assert same == 1 if placement == "static" else same < 0.9


def test_dynamic_writes_spread_evenly():
    """Hot pages, too, go to all units alike: each filled as many blocks, but for the open one."""
    d = device(ftl__block_unit="plane", ftl__over_provisioning=0.5)
    one_by_one(d, np.random.default_rng(3).integers(0, 4, 200))
    landed = np.bincount(
        np.flatnonzero(d.arrays.p2l[0]) // (d.geometry.all_blocks * d.geometry.block_pages),
        minlength=d.geometry.units,
    )
    assert landed.sum() == 200 and landed.max() - landed.min() == 0
