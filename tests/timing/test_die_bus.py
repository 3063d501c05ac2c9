"""What crosses a die's shared bus, and how long it takes: passes that read another plane's
register, pages that change planes; and super-pages on their way to another die.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.analysis.compare import Run, run_path
from ondie.emu.compute import pe
from ondie.emu.compute import pe_bus as die_bus
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.core.totals import sum_counters
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.nand.timing import BPP, BPR, LAND, LIFT, ODC, VPP
from ondie.emu.paths.base import Options
from ondie.emu.validate import model
from ondie.kernels import on_die
from tests.state.models import model as recorded
from tests.timing.harness import BUS, COMMAND, DRAM, ERASE, PROGRAM, READ, Bench, preset

N = 1024  # values of a page


# --- passes


def test_which_passes_cross_planes():
    """Adam: g beside m, the root beside v: v <- g, root x m, w <- result cross. Momentum: w <- m.
    SGD: all lies in w's plane. AdaGrad: only one plane more than vectors made on the way, so that
    g lies beside v and the root beside w: root <- v and root x g cross."""
    found = {op: die_bus.crossing(op) for op in on_die.OPERANDS}
    assert found["adam"] == found["adamw"] == (False, True, False, True, True)
    assert found["momentum"] == (False, True)
    assert found["nesterov"] == (False, False, True)
    assert found["sgd"] == (False,)
    assert found["adagrad"] == (False, True, True, False)
    assert sum(die_bus.crossing("momentum", coupled_decay=True)) == 2  # g <- w as well


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("op", on_die.OPERANDS)
def test_operands_are_those_of_the_passes(op, decay):
    """A pass for each pair; one that reads its own operand reads two."""
    passes, operands = on_die.passes(op, decay), on_die.operands(op, decay)
    assert len(passes) == len(operands) == len(die_bus.crossing(op, decay))
    for done, (v1, _) in zip(passes, operands, strict=True):
        assert done.reads == (1 if done.name == "ISQRT" else 2)
        assert (v1 == "t") == (done.name in ("ISQRT", "VMUL"))


def test_groups_wait_for_each_other_on_one_lane():
    """Momentum, two groups: both make m at once, then w <- m one after the other: 3 pages' time
    where two lanes take 2. With four groups 5, and over two lanes 3. Half a lane: 2 more for
    each."""
    for groups, lanes, total in ((1, 1, 2), (2, 1, 3), (2, 2, 2), (4, 1, 5), (4, 2, 3), (4, 4, 2)):
        found = die_bus.passes("momentum", groups, N, lanes)
        assert (found.total, found.own, found.bus) == (total * N, N, (total - 1) * N)
    assert die_bus.passes("momentum", 2, N, 0.5).total == (1 + 2 * 2) * N
    assert die_bus.passes("adam", 1, N, 0.5).total == (2 + 3 * 2) * N
    assert die_bus.passes("adam", 1, N, 1) == die_bus.passes("adam", 1, N, 4)


def test_a_lane_is_given_in_order_of_arrival():
    """Adam, two groups, one lane, in pages: m by 1; v 1-2 and 2-3; roots by 3 and 4; products 3-4
    and 4-5; w 5-6 and 6-7 (the first is ready at 4, when the lane is the other's)."""
    assert die_bus.passes("adam", 2, N, 1).total == 7 * N


@given(
    op=st.sampled_from(sorted(on_die.OPERANDS)),
    groups=st.integers(1, 6),
    lanes=st.sampled_from([0.25, 0.5, 0.7, 1, 1.5, 2, 3, 4, 8]),
    decay=st.booleans(),
    n=st.integers(1, 4096),
)
def test_bounds_of_any_die(op, groups, lanes, decay, n):
    """No shorter than a group alone or than what the bus has to carry, no longer than one group
    after the other; more lanes never take longer, and with one for each group nobody waits."""
    found = die_bus.passes(op, groups, n, lanes, decay)
    crossing = sum(die_bus.crossing(op, decay))
    local = len(on_die.operands(op, decay)) - crossing
    each = die_bus.across(n, lanes)
    alone = local * n + crossing * each
    assert found.own == local * n and found.own + found.bus == found.total
    assert alone <= found.total <= groups * alone
    assert found.total >= groups * crossing * each / max(int(lanes), 1)
    if lanes >= groups:
        assert found.total == alone == len(on_die.passes(op, decay)) * n


def test_the_published_stripe_is_five_and_two_passes():
    """R1: a page of 8 KiB at 800 MB/s takes 10.24 us: Adam 51.2 us of which 30.72 over the bus,
    Momentum's two groups 20.48 and 10.24; where the bus has one plane's rate 30.72 and 20.48."""
    cfg = load_preset("optimstore-r1")
    assert pe.stripe_ps(cfg, "adam", False, 1) == (51_200_000, 30_720_000)
    assert pe.stripe_ps(cfg, "momentum", False, 2) == (20_480_000, 10_240_000)
    slow = cfg.replace({"pe.bus_values": 1})
    assert pe.stripe_ps(slow, "adam", False, 1) == (51_200_000, 30_720_000)
    assert pe.stripe_ps(slow, "momentum", False, 2) == (30_720_000, 20_480_000)
    half = cfg.replace({"pe.bus_values": 0.5})
    assert pe.stripe_ps(half, "adam", False, 1) == (81_920_000, 61_440_000)
    assert pe.register_move_ps(cfg) == 10_240_000 and pe.register_move_ps(half) == 20_480_000


def test_a_slower_bus_takes_so_much_longer_and_no_more_energy_on_it():
    """4 stripes a die of Adam in lockstep: 30.72 us each more at half the rate. Three words of 32
    bit a parameter cross the bus, however fast it is."""
    trace, cfg = model("adam", 256 * 2048), load_preset("optimstore-r1")
    times, bits = [], []
    for values in (2, 0.5):
        r = run_path(
            "on_die", cfg.replace({"pe.bus_values": values}), trace, Options(), steps=1,
            payload=False,
        )  # fmt: skip
        times.append(r.ledger.update_s)
        bits.append(r.work.die_bus_bits)
        low, typical, high = r.energy.by_component["die bus"]
        assert typical == pytest.approx(bits[-1] * 500e-15, rel=1e-12)
        assert (low, high) == pytest.approx((typical / 5, typical * 4), rel=1e-12)
        assert ", 30.72 of it over" in r.bound.text or values == 0.5
    assert times[1] - times[0] == pytest.approx(4 * 30.72e-6, rel=1e-9)
    assert bits == [3 * 32 * trace.n_params] * 2


def test_a_bus_that_carries_nothing_is_refused():
    with pytest.raises(Exception, match="requires pe.bus_values above 0"):
        load_preset("optimstore-r1", ["pe.bus_values=0"])


# --- pages that change planes


def turning(**changes):
    """Dies of four planes, three in use, that change roles with every cycle; eight super-pages fill
    the first block of 8 pages."""
    bench = Bench(
        super_pages=8, planes=3, flash__planes_per_die=4, ftl__initial="steady",
        ftl__reservoir_rotate=1, **changes,
    )  # fmt: skip
    bench.arrays.block["dirty"] = 1
    return bench


def stripe(bench, sp):
    """VPP, BPR and ODC of a super-page, then its BPP: (time before, its row)."""
    bench.die(VPP, sp)
    bench.die(BPR, sp, pages=3)
    bench.run_to()
    bench.die(ODC, sp, pages=0, array_ps=1000)
    bench.run_to()
    return bench.now, bench.die(BPP, sp, pages=3)


def test_pages_change_planes_when_their_block_has():
    """Into a block that has just been erased, so that its planes have turned by one: the erase with
    three planes' commands, then those of the program, three pages from register to register, each
    1,024 values at one per 4 ns, and the program. Behind it no pages have to move: to those of
    super-page 1, read from block 0, the same happens, but no erase."""
    assert pe.register_move_ps(turning().cfg) == BUS
    bench = turning()
    now, row = stripe(bench, 0)
    bench.assert_ready_at(row, now + 3 * COMMAND + ERASE + 3 * COMMAND + 3 * BUS + PROGRAM)
    now, row = stripe(bench, 1)
    bench.assert_ready_at(row, now + 3 * COMMAND + 3 * BUS + PROGRAM)
    now, row = stripe(bench, 0)
    bench.assert_ready_at(row, now + 3 * COMMAND + PROGRAM)
    bench.run_to()
    count = sum_counters(bench.arrays.count)
    assert count["turned_pages"] == 6 and count["bpp_pages"] == 9
    assert count["erased_blocks"] == 3 and count["array_erases"] == 1
    assert bench.arrays.worn[:3].tolist() == [[0] * 4, [1, 1, 1, 0], [0] * 4]
    assert bench.arrays.block["turned"][8:11].tolist() == [0, 1, 0]


def test_a_slow_bus_moves_pages_slowly():
    bench = turning(pe__bus_values=0.25)
    now, row = stripe(bench, 0)
    bench.assert_ready_at(row, now + 6 * COMMAND + ERASE + 3 * 4 * BUS + PROGRAM)


@pytest.mark.parametrize(
    ("planes", "used", "by", "pages"),
    [(4, 3, 1, 3), (4, 3, 2, 4), (4, 3, 3, 3), (4, 2, 2, 2), (8, 6, 1, 6), (8, 6, 2, 6),
     (8, 6, 4, 8), (2, 1, 1, 1)],
)  # fmt: skip
def test_how_many_pages_move(planes, used, by, pages):
    """A ring of planes with an idle one moves page by page; one without sets a page aside first.
    4 planes, 3 in use, turned by 2: rings {0, 2}, {1, 3}: the first is full."""
    bench = Bench(super_pages=8, planes=used, flash__planes_per_die=planes, ftl__reservoir_rotate=1)
    bench.arrays.block["erases"][9] = by
    bench.die(VPP)
    bench.die(BPR, pages=used)
    bench.run_to()
    bench.die(ODC, pages=0, array_ps=1000)
    bench.run_to()
    bench.die(BPP, pages=used)
    bench.run_to()
    assert sum_counters(bench.arrays.count)["turned_pages"] == pages
    at = np.arange(used)
    rings = {int(x) % np.gcd(planes, by) for x in at}
    full = sum(all(p in at for p in range(r, planes, np.gcd(planes, by))) for r in rings)
    assert pages == used + full


def test_turned_pages_cost_register_and_bus_energy():
    """Each is read out of a register, crosses the bus and enters another register."""
    leaves = {"ftl.reservoir_rotate": "1", "flash.pages_per_block": "8"}
    trace = recorded("adam", 1, (("a", (8 * 64 * 2048,), 0),))
    plain, turned = (
        Run("on_die", preset(x), trace, Options(), payload=False)
        for x in ({"flash.pages_per_block": "8"}, leaves)
    )
    joules = []
    for run in (plain, turned):
        run.step(0)
        totals, _, _, energy = run.account()
        joules.append(energy.by_component)
    pages = totals.counters["turned_pages"]
    assert pages == 3 * 8 * 64  # the fill has ended with a block
    bits = pages * 8 * 8192
    for name, fj in (("die bus", 500), ("page registers", 2 * 160)):
        more = joules[1][name][1] - joules[0][name][1]
        assert more == pytest.approx(bits * fj * 1e-15, rel=1e-9)


# --- super-pages that change their die


def test_a_super_page_goes_to_another_die():
    """Read: three planes' commands, tR, three pages over the channel, once into DRAM. Programmed:
    commands and data in, while DRAM gives them, then tPROG. From then on it is the other one."""
    bench = Bench(super_pages=8, planes=3, flash__planes_per_die=4, flash__dies_per_channel=2)
    bench.arrays.rmap[0, 7] = 0  # a super-page of die 1 that holds nothing
    bench.arrays.valid[24] -= 1
    bench.arrays.dev.r_mapped[0] -= 1
    size = 3 * 4096
    lift = bench.one(resource=rows.DIE, kind=LIFT, lpn=4, bytes_out=size)
    bench.assert_ready_at(lift, 3 * COMMAND + READ + 3 * BUS + 3 * DRAM)
    now = bench.now
    land = bench.one(resource=rows.DIE, kind=LAND, lpn=7, tag=4, bytes_in=size)
    bench.assert_ready_at(land, now + 3 * COMMAND + 3 * BUS + PROGRAM)
    count = sum_counters(bench.arrays.count)
    assert count["lifted_pages"] == count["landed_pages"] == 3
    assert bench.arrays.rmap[0].tolist() == [1, 1, 2, 2, 0, 3, 4, 5]
    assert bench.arrays.valid[[8, 24]].tolist() == [3, 4] and bench.arrays.dev.r_mapped[0] == 7


def test_what_lies_nowhere_cannot_move():
    """Neither be read nor be programmed elsewhere: a defect of the plan."""
    for row in ({"kind": LIFT, "lpn": 4, "bytes_out": 4096},
                {"kind": LAND, "lpn": 7, "tag": 4, "bytes_in": 4096},
                {"kind": LAND, "lpn": 7, "tag": 8, "bytes_in": 4096}):  # fmt: skip
        bench = Bench(super_pages=8, flash__dies_per_channel=2)
        bench.arrays.rmap[0, 4] = 0
        bench.one(resource=rows.DIE, **row)
        with pytest.raises(SimulationError, match="super-page [48]"):
            bench.run_to()
