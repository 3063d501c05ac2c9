"""Do the drives that one can buy come out as docs/drives.md says, and is nothing but one constant
fitted?"""

import tomllib

import pytest

from ondie.emu.analysis.headlines import Bench, simulate
from ondie.emu.analysis.row import CHECK, FIT, IDENTITY
from ondie.emu.config.config import load_preset
from ondie.emu.config.datasheet import load_datasheet
from ondie.emu.config.loader import PRESETS
from ondie.emu.config.rules.rule import native_bytes, raw_bytes
from ondie.emu.ftl import pslc
from ondie.emu.replay.block_trace import capacity
from ondie.emu.validate.drives import DRIVES, TOLERANCE, drive_rows
from ondie.traces.block_model import READ, WRITE
from tests.fidelity import fitted
from tests.suites import suite

CALIBRATED = "970-pro"


@pytest.fixture(scope="module")
def calibrated():
    """The rows of the calibrated drive."""
    return drive_rows(CALIBRATED)


def test_the_calibrated_drive_comes_out(calibrated):
    """Sequential and random headlines of the 970 PRO within 15 % from one fitted constant."""
    checked = [row for row in calibrated if row.kind == CHECK]
    assert {row.name.split(": ")[1].split(",")[0] for row in checked} == {
        "sequential write", "random read", "random write",
    }  # fmt: skip
    assert all(row.tolerance == TOLERANCE and not row.misses for row in checked), checked
    (fit,) = (row for row in calibrated if row.kind == FIT)
    assert fit.constants == ("frontend.read_delay",)
    assert fit.predicted == pytest.approx(63.6, rel=0.005)


@pytest.mark.parametrize("name", DRIVES)
def test_other_drives_are_not_gated(name):
    """Nothing of them is fitted or checked."""
    kinds = {figure.kind for figure in load_datasheet(name, load_preset(name)).figures}
    if name != CALIBRATED:
        assert not kinds & {CHECK, FIT, IDENTITY}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_every_row_names_the_capacity():
    for row in suite("drives"):
        assert row.source.startswith(row.name.split(":")[0])
        assert " TB," in row.source or " GB," in row.source


@pytest.mark.soak
def test_the_fit_decides_no_check(calibrated):
    runs = iter([calibrated])
    part = lambda: next(runs, None) or drive_rows(CALIBRATED)  # noqa: E731
    assert fitted.faults(part) == []
    assert fitted.constants(calibrated) == ["frontend.read_delay"]


CARRIED = ("frontend.command", "frontend.read_delay", "frontend.write_delay", "flash.t_command",
           "flash.cache_read", "flash.cache_program", "ecc.decode", "ecc.encode", "link.latency",
           "flash.channels", "ftl.mapping_unit", "cache.mode")  # fmt: skip
"""Constants that docs/drives.md carries over from the calibrated drive as they are."""


@pytest.mark.parametrize("name", DRIVES)
def test_the_rule_gives_the_constants(name):
    cfg, base = load_preset(name), load_preset(CALIBRATED)
    for key in CARRIED:
        assert cfg.leaf(key).value == base.leaf(key).value, key
    fourth = cfg.link.up_bytes_per_s // base.link.up_bytes_per_s
    assert fourth == (2 if name in ("pm9a3", "7450", "7500") else 1)
    assert cfg.link.up_bytes_per_s == cfg.link.down_bytes_per_s == 3_360_000_000 * fourth
    assert cfg.dram.bandwidth_bytes_per_s == 8_900_000_000 * fourth
    f = cfg.flash
    bits = {"MLC": 2, "TLC": 3, "QLC": 4}[f.cell]
    dies = f.channels * f.dies_per_channel
    program = f.planes_per_die * f.page_bytes * (1 if f.programming == "page" else bits)
    passes = 2 if f.programming == "two_pass" else 1
    assert cfg.cache.capacity_bytes == 2 * dies * program * passes
    binary = 2 ** (cfg.system.capacity_bytes - 1).bit_length()
    assert raw_bytes(cfg) == pytest.approx(binary, rel=0.01)
    native = native_bytes(cfg)
    assert (native - cfg.system.capacity_bytes) / native == pytest.approx(
        cfg.ftl.over_provisioning, abs=1e-3
    )


def test_dies_are_those_of_the_table(root):
    """tR, write throughput and channel of each drive's die, as the table of docs/drives.md."""
    for name, planes, read_us, write_mb, bus in (
        ("pm9a3", 4, 56, 132, 1066), ("7450", 4, 40, 184, 2000), ("p4320", 2, 145, 12, 800),
    ):  # fmt: skip
        f = load_preset(name).flash
        assert (f.planes_per_die, f.t_read_ps) == (planes, read_us * 10**6)
        bits = {"TLC": 3, "QLC": 4}[f.cell]
        word_line_ps = f.t_program_ps + f.t_program_second_ps * (f.programming == "two_pass")
        rate = bits * planes * f.page_bytes / (word_line_ps / 1e12)
        assert rate == pytest.approx(write_mb * 1e6, rel=0.001)
        assert f.bus_bytes_per_s == pytest.approx(bus * 1e6, rel=0.001)


def test_the_die_of_64_layers_is_that_of_the_other_manufacturer():
    """512 Gbit instead of 256 Gbit with the same times, and half of the channel's rate or more."""
    wd, samsung = load_preset("sn750").flash, load_preset("970-evo").flash
    assert (wd.t_read_ps, wd.t_program_ps, wd.page_bytes, wd.pages_per_block) == (
        samsung.t_read_ps, samsung.t_program_ps, samsung.page_bytes, samsung.pages_per_block,
    )  # fmt: skip
    gbit = 8 * wd.blocks_per_plane * wd.pages_per_block * wd.page_bytes / 2**30
    assert gbit == pytest.approx(512, rel=0.001)
    assert wd.bus_bytes_per_s == 533_000_000


def test_the_fixed_region_is_no_part_of_the_exported_capacity():
    cfg = load_preset("sn750")
    assert pslc.capacity(cfg) == pytest.approx(12e9, rel=0.01)
    assert raw_bytes(cfg) - native_bytes(cfg) == 3 * pslc.capacity(cfg)
    assert cfg.system.capacity_bytes <= capacity(cfg) < 1.001 * cfg.system.capacity_bytes


def test_twice_as_many_dies_would_bring_the_sn750_to_its_random_reads():
    """The figures of docs/drives.md for 512 Gbit and for 256 Gbit."""
    smaller = {"flash.dies_per_channel": 4, "flash.blocks_per_plane": 1366,
               "cache.capacity": "2 MiB", "cache.destage_pages": 64}  # fmt: skip
    for more, kiops, mb_per_s in (({}, 231, 558), (smaller, 444, 989)):
        bench = Bench(load_preset("sn750").replace(more), "fresh", 1, 0)
        reads = bench.rate(READ, 4096, 256, True).per_s
        writes = bench.rate(WRITE, 128 << 10, 32, False, pslc_full=True).per_s * (128 << 10)
        assert (round(reads / 1e3), round(writes / 1e6)) == (kiops, mb_per_s)
        assert reads < bench.cfg.flash.channels * bench.cfg.flash.dies_per_channel / 60e-6


def test_mechanisms_have_their_presets():
    """pSLC that folds, two-pass and one-shot programming, mapping units, suspended programs."""
    evo, qlc = load_preset("970-evo"), load_preset("p4320")
    assert (evo.ftl.pslc, evo.cache.mode) == ("dynamic", "write_back") and evo.ftl.fold_idle_ps
    fixed = load_preset("sn750").ftl
    assert (fixed.pslc, fixed.pslc_full) == ("static", "direct") and fixed.fold_idle_ps
    assert (qlc.flash.programming, qlc.flash.suspend) == ("two_pass", "program_erase")
    assert load_preset("7450").flash.programming == "one_shot"


@pytest.mark.parametrize("name", DRIVES)
def test_the_sheet_is_in_the_preset(name):
    """Every figure of a sheet is simulated; the capacity is that of the geometry."""
    stated = tomllib.loads((PRESETS / f"{name}.toml").read_text())["datasheet"]
    sheet = load_datasheet(name, load_preset(name))
    assert len(sheet.figures) == len(stated["figures"]) >= 4


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ("970-pro", "7450", "p4320"))
def test_longer_runs_give_the_same_figures(name):
    """Twice as many requests, and twice as large a part of the drive: within 4 %."""
    cfg = load_preset(name)
    sheet = load_datasheet(name, cfg)
    for once, twice in zip(simulate(cfg, sheet), simulate(cfg, sheet, scale=2), strict=True):
        assert twice.value == pytest.approx(once.value, rel=0.04), once.figure.title
        assert twice.limit == once.limit
