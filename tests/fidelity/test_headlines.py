"""Are the figures of a data sheet what arithmetic by hand gives on drives that one constant limits?

The drives are the 970 PRO with other constants: pages of 32 KiB, one plane per die.
"""

import numpy as np
import pytest

from ondie.emu.analysis import headlines
from ondie.emu.analysis.headlines import Bench, reduced, simulate, window_rate
from ondie.emu.config.config import load_preset, preset_names
from ondie.emu.config.datasheet import read_datasheet
from ondie.emu.config.rules.rule import native_bytes, raw_bytes
from ondie.emu.ftl import pslc
from ondie.emu.nand.geometry import Geometry
from ondie.emu.replay.block_trace import capacity
from tests.fidelity.waf_theory import mean_field

US, MB = 1e6, 1e6
SMALL = ("flash.blocks_per_plane=64", "flash.pages_per_block=64")
T_READ = 29.76 + 12 / 2
"""us; half of the pages are upper pages."""
WRITTEN = 32768 / (185 + 32768 / 800 + 3500 / 64)
"""MB/s that a die writes: transfer, program, and a part of the erase of its block."""


def drive(*settings):
    return load_preset("970-pro", [*SMALL, *settings])


def found(cfg, *figures, state="fresh"):
    """The headlines of figures, each a dictionary of a data sheet."""
    table = {"source": "by hand", "capacity": "1 GB", "state": state, "figures": list(figures)}
    return simulate(cfg, read_datasheet(table, "by hand"))


def sequential(what, **more):
    return {"what": what, "value": "1 MB/s", "block": "128 KiB", "queue_depth": 32} | more


def random(what, depth=128):
    return {"what": what, "value": 1, "block": "4 KiB", "queue_depth": depth}


def one(cfg, figure, state="fresh"):
    (headline,) = found(cfg, figure, state=state)
    return headline


# --- rates: the busiest resource limits them


@pytest.mark.parametrize(
    ("what", "setting", "rate", "limit"),
    [
        ("sequential_read", "link.up=500 MB/s", 500, "link.up"),
        ("sequential_write", "link.down=500 MB/s", 500, "link.down"),
        # 8 channels
        ("sequential_read", "flash.bus=50 MB/s", 400, "flash.bus"),
        # read data cross the DRAM twice
        ("sequential_read", "dram.bandwidth=1 GB/s", 500, "dram.bandwidth"),
    ],
)
def test_a_sequential_rate_is_that_of_the_slowest_resource(what, setting, rate, limit):
    headline = one(drive(setting), sequential(what))
    assert headline.value == pytest.approx(rate * MB, rel=0.01)
    assert headline.limit == limit and headline.why == "the time"
    assert headline.share > 0.97
    assert headline.difference == pytest.approx(headline.value / 1e6 - 1)


def test_the_time_per_command_limits_a_random_rate():
    headline = one(drive("frontend.command=10 us"), random("random_read"))
    assert headline.value == pytest.approx(1e5, rel=0.01)
    assert headline.limit == "frontend.command"


def test_a_single_die_limits_rates_by_its_array_and_its_transfers():
    """A read occupies the die for tR and 4 KiB on the channel, a program for 32 KiB, tPROG, and its
    part of the erase of its block of 64 pages."""
    cfg = drive("flash.channels=1", "flash.dies_per_channel=1")
    read, write = found(cfg, random("random_read"), sequential("sequential_write"))
    assert read.value == pytest.approx(1e6 / (T_READ + 4096 / 800), rel=0.01)
    assert read.limit == "flash.t_read"
    assert write.value == pytest.approx(WRITTEN * MB, rel=0.01)
    assert write.limit == "flash.t_program"


def test_a_write_rate_is_not_that_of_the_cache():
    """The run is longer than the cache, which takes writes at the rate of the link at first."""
    cfg = drive("flash.channels=1", "flash.dies_per_channel=1", "cache.capacity=8 MiB")
    headline = one(cfg, sequential("sequential_write"))
    assert headline.value == pytest.approx(WRITTEN * MB, rel=0.01)


# --- latencies: the sum of their parts


def test_the_latency_of_a_read_is_the_sum_of_its_parts():
    cfg = drive()
    headline = one(cfg, {"what": "read_latency", "value": "1 us", "block": "4 KiB"})
    delay = cfg.frontend.read_delay_ps / US
    parts = delay + T_READ + 4096 / 800 + 4096 / 3360 + 2 * 4096 / 8900
    assert headline.value / US == pytest.approx(parts, rel=0.01)  # lower and upper by chance
    assert headline.limit == "flash.t_read"
    assert headline.share == pytest.approx(29.76 / parts, rel=0.02)
    assert headline.why == "the latency"


def test_the_latency_of_a_write_is_the_sum_of_its_parts():
    cfg = drive()
    latency, rate = found(
        cfg, {"what": "write_latency", "value": "1 us", "block": "4 KiB"}, random("random_write", 1)
    )
    parts = 4 + 4096 / 3360 + 4096 / 8900
    assert latency.value / US == pytest.approx(parts, rel=0.001)
    assert (latency.limit, latency.share) == (
        "frontend.write_delay", pytest.approx(4 / parts, rel=0.01),
    )  # fmt: skip
    assert rate.value == pytest.approx(1e6 / parts, rel=0.001)  # depth 1: the inverse
    assert (rate.limit, rate.why) == (latency.limit, "the latency")


# --- the constant that is named


@pytest.mark.parametrize(
    ("figure", "factor"),
    [
        (sequential("sequential_write"), 1.25),
        pytest.param(random("random_read", 1), 1.25, marks=pytest.mark.soak),
        pytest.param(sequential("sequential_read"), 0.8, marks=pytest.mark.soak),
        pytest.param(random("random_read"), 1.25, marks=pytest.mark.soak),
        pytest.param(random("random_write", 1), 1.25, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_the_named_constant_changes_the_figure_more_than_others(figure, factor):
    cfg = load_preset("970-pro")
    before = one(cfg, figure)
    op = headlines.READ if figure["what"].endswith("read") else headlines.WRITE

    def moved(key):
        leaf = cfg.leaf(key)
        by = factor if leaf.unit != "bytes_per_s" or factor < 1 else 1 / factor
        return abs(one(cfg.replace({key: round(leaf.value * by)}), figure).value / before.value - 1)

    others = [key for key in headlines.PARTS[op] if cfg.leaf(key).value and key != before.limit]
    change = moved(before.limit)
    assert change > 0.08
    assert all(moved(key) < change for key in others[:3])


# --- power and endurance


def test_the_power_is_the_energy_of_what_was_moved():
    cfg = drive()
    bench = Bench(cfg, "fresh", 1, 0)
    figure = {"what": "write_power", "value": "1 W", "block": "128 KiB", "queue_depth": 32}
    table = {"source": "by hand", "capacity": "1 GB", "state": "fresh", "figures": [figure]}
    power = bench.headline(read_datasheet(table, "by hand").figures[0])
    run = bench.rate(headlines.WRITE, 128 << 10, 32, False).run
    rate = power.requests * (128 << 10) / (run.done.simulated_ps / 1e12)
    keys = ("nand_program", "nand_erase", "channel", "dram", "ecc", "controller")
    energy = {key: cfg.leaf(f"energy.{key}").value for key in keys}
    # a written byte crosses link, DRAM (in and out), ECC and channel, is programmed, and its cells
    # have been erased: fJ per bit
    each = sum(energy[key] for key in ("nand_program", "nand_erase", "channel", "ecc", "dram"))
    each += energy["dram"] + cfg.leaf("link.energy").value
    watts = energy["controller"] / 1e3 + rate * 8 * each / 1e15
    assert power.value / 1e3 == pytest.approx(watts, rel=0.01)
    parts = {"energy.nand_program": rate * 8 * energy["nand_program"] / 1e15,
             "energy.controller": energy["controller"] / 1e3}  # fmt: skip
    assert power.limit == max(parts, key=parts.get) and power.why == "the power"
    assert power.share == pytest.approx(parts[power.limit] / watts, rel=0.02)


def test_sequential_writes_use_every_cycle_once():
    cfg = drive()
    headline = one(cfg, {"what": "bytes_written", "value": "1 TB", "workload": "sequential"})
    assert headline.value == pytest.approx(3000 * raw_bytes(cfg), rel=0.002)
    assert headline.share == pytest.approx(1, rel=0.002)
    assert headline.limit == "flash.endurance_cycles"


@pytest.mark.soak
def test_random_writes_use_the_cycles_that_theory_says():
    """Greedy collection in steady state, by the mean field of tests/fidelity/waf_theory.py."""
    cfg = load_preset("7450")
    figure = {"what": "bytes_written", "value": "1 PB", "workload": "random"}
    headline = one(cfg, figure, state="steady")
    geometry = Geometry.of(cfg)
    valid = capacity(cfg) / (geometry.units * geometry.block_pages * geometry.page_bytes)
    # blocks among which a victim is chosen: not the free one that is left under load, nor those
    # open for host and moves
    full = geometry.blocks - 3
    theory = mean_field(valid / full, geometry.block_pages).waf
    assert 1 / headline.share == pytest.approx(theory, rel=0.05)
    assert headline.value == pytest.approx(
        cfg.flash.endurance_cycles * raw_bytes(cfg) * headline.share
    )


# --- the reduced drive


STEADY = ("flash.channels=2", "flash.dies_per_channel=4", "ftl.over_provisioning=0.2",
          "system.capacity=1 GB")  # fmt: skip


def test_a_reduced_drive_is_as_full_and_has_the_same_dies():
    cfg = load_preset("970-pro", STEADY)
    part = reduced(cfg, 1, 100, 32)
    assert (part.flash.blocks_per_plane, part.flash.pages_per_block) == (100, 64)
    assert part.flash.t_erase_ps == cfg.flash.t_erase_ps * 64 // 512
    spare = cfg.ftl.gc_low_blocks + 2
    shares = [
        capacity(each) / raw_bytes(each) * blocks / (blocks - spare)
        for each in (cfg, part)
        for blocks in (each.flash.blocks_per_plane,)
    ]
    assert shares[0] == pytest.approx(shares[1], rel=1e-3)
    changed = {leaf.key for leaf in cfg.leaves() if part.leaf(leaf.key).value != leaf.value}
    assert changed == {
        "system.capacity", "flash.blocks_per_plane", "flash.pages_per_block", "flash.t_erase",
        "ftl.over_provisioning",
    }  # fmt: skip


@pytest.mark.parametrize("name", preset_names())
def test_a_reduced_drive_has_room_for_collection(name):
    """Of the blocks that the FTL maps, the share between the reservoir and free or open ones is as
    full as on the whole drive, and not full."""
    whole = load_preset(name)
    part = reduced(whole, 1, *headlines.RATE_SHAPE)
    shares = []
    for cfg in (whole, part):
        blocks = cfg.flash.blocks_per_plane * (1 - cfg.ftl.reservoir_fraction)
        used = blocks - cfg.ftl.gc_low_blocks - cfg.ftl.write_streams - 1
        shares.append(blocks * (1 - cfg.ftl.over_provisioning) / used)
    assert shares[0] == pytest.approx(shares[1], rel=1e-6) and shares[1] < 0.99


def test_programs_of_one_plane_are_named():
    """Without multi-plane commands a program is that of one plane."""
    settings = ("flash.programming=page", "flash.t_program=400 us", "flash.multi_plane=false",
                *SMALL[:1], "flash.pages_per_block=96")  # fmt: skip
    found = one(load_preset("gen4-tlc", settings), sequential("sequential_write"))
    assert found.limit == "flash.t_program"
    assert found.why == "the time; programs use 25% of the planes"


def test_a_reduced_drive_writes_as_a_larger_one(counts):
    """In steady state; twice the blocks, of twice the length."""
    cfg = load_preset("970-pro", STEADY)
    small, large = (
        Bench(cfg, "steady", scale, 0).rate(headlines.WRITE, 4096, 128, True).per_s
        for scale in (1, counts(2, 4))
    )
    assert small == pytest.approx(large, rel=0.1)


def test_the_window_leaves_out_the_start_and_the_end():
    """Completions at 1 per us, after a slow start and before a slow end."""
    end = np.concatenate([np.arange(25) * 9e6, 24 * 9e6 + np.arange(1, 76) * 1e6]).astype(np.int64)
    end[-3:] += np.array([1, 2, 3], np.int64) * 50_000_000

    class Run:
        requests = np.zeros(100, [("end", "i8")])

    Run.requests["end"] = end[::-1]  # in any order
    assert window_rate(Run, 4, 0.25, 1.0) == pytest.approx(1e6, rel=1e-9)


# --- pSLC


def test_the_pslc_cache_is_faster_until_it_is_full():
    fast, slow = found(
        load_preset("970-evo"),
        sequential("sequential_write"),
        sequential("sequential_write", pslc="full"),
    )
    assert fast.limit == "link.down" and fast.share > 0.97
    assert slow.limit == "flash.t_program"
    # 32 dies of TLC, at most
    assert slow.value < 32 * 32768 / (714 + 32768 / 800) * MB < fast.value / 2


def test_idle_folding_is_no_part_of_a_rate():
    cfg = load_preset("970-evo")
    bench = Bench(cfg, "fresh", 1, 0)
    assert bench.cfg.ftl.fold_idle_ps == 0 < cfg.ftl.fold_idle_ps
    assert bench.rate(headlines.WRITE, 128 << 10, 32, False).run.done.counters["folds"] == 0


def test_folding_wears_native_blocks_and_the_cache_its_own_cycles():
    """Each byte is programmed once in pSLC, at a tenth of the cycles and a third of the pages, and
    once in TLC."""
    cfg = load_preset("970-evo")
    headline = one(cfg, {"what": "bytes_written", "value": "1 TB", "workload": "sequential"})
    assert headline.share == pytest.approx(1 / (1 + 3 * 3000 / 30000), rel=0.02)
    assert headline.value == pytest.approx(3000 * raw_bytes(cfg) * headline.share)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("cycles", "region"), [(3000, True), (300, False)])
def test_a_fixed_region_wears_separately(cycles, region):
    """Each byte is programmed once in the region and once in TLC. With 3000 cycles of TLC, the
    region is used up first, with 300 the native blocks."""
    cfg = load_preset("970-evo").replace(
        {"ftl.pslc": "static", "ftl.over_provisioning": 0.0599, "flash.endurance_cycles": cycles}
    )
    headline = one(cfg, {"what": "bytes_written", "value": "1 TB", "workload": "sequential"})
    assert headline.share == pytest.approx(1, rel=0.02)
    size = pslc.capacity(cfg) if region else native_bytes(cfg)
    assert headline.value == pytest.approx((30_000 if region else cycles) * size, rel=0.02)
    assert headline.limit == "flash." + "pslc_" * region + "endurance_cycles"
    assert headline.why.endswith(f"in {'pSLC' if region else 'native'} blocks are host writes")


def test_runs_that_figures_share_are_made_once(monkeypatch):
    calls = []
    whole = Bench._replay
    monkeypatch.setattr(
        Bench, "_replay", lambda self, *given: calls.append(given) or whole(self, *given)
    )
    power = {"what": "write_power", "value": "1 W", "block": "128 KiB", "queue_depth": 32}
    found(drive(), sequential("sequential_write"), power)
    assert len(calls) == 1
