"""What a repair of on-die update costs: are bytes, time and room those of its own arithmetic, and
do the weights come out right whatever is repaired?

R1 in lockstep, as in test_validate_optimstore.py: a page with its command takes 10.39 us on a
channel of eight dies; 64 dies, stripes of 3 x 8 KiB.
"""

import json

import numpy as np
import pytest

from ondie import traces
from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import plan_rows as rows_of
from ondie.emu.nand import timing
from ondie.emu.paths.base import Options, Unavailable
from ondie.emu.paths.layout.regions import Shard, Stripes
from ondie.emu.paths.on_die.protection import Guarded
from ondie.emu.validate import model
from ondie.emu.validate.ablation import DIES_OF_PARITY, ablation, protections, tables
from tests.smoke.commands import SMALL, files, here, refused

N = 1 << 25  # 256 stripes on each die: one block
PAGE_S = 8192 / 800e6 + 150e-9
R1 = "optimstore-r1"


@pytest.fixture(scope="module")
def rows():
    found = ablation(load_preset(R1), model("adam", N))
    return {r.protection.name: r for r in found}


def test_bytes_on_the_channel(rows):
    """The gradient's 4 B; with the controller's ECC 12 B three times more; for parity over 15 dies
    the results' 12 B out and 12 B / 15 in; for commit records a page per die."""
    record = 64 * 8192 / N
    expected = {
        "none, as published": 4,
        "ECC parity, by the controller": 40,
        "RAIN over 16 dies": 4 + 12 + 12 / 15,
        "atomicity, step is resumed": 4 + record,
        "atomicity, step is undone": 4 + record,
        "all, on the die": 4 + 12 + 12 / 15 + record,
        "all, ECC by the controller": 40 + 12 / 15 + record,
    }
    for name, r in rows.items():
        found = r.channel_bytes / N
        assert found == pytest.approx(expected.get(name, 4), rel=1e-4), name


def test_time_of_what_the_die_does(rows):
    """Per stripe: two passes more are 2 x 10.24 us; an engine of 6.4 GB/s goes over 24 KiB twice in
    7.68 us, the cipher's of 6.6 GB/s in 7.45 us."""
    bare = rows["none, as published"].stage.seconds
    for name, more in (
        ("data randomizer", 2 * 8192 / 800e6),
        ("end-to-end protection", 2 * 8192 / 800e6),
        ("ECC parity, on the die", 2 * 3 * 8192 / 6.4e9),
        ("encryption (XTS)", 2 * 3 * 8192 / 6.6e9),
    ):
        assert rows[name].stage.seconds - bare == pytest.approx(256 * more, rel=0.01), name


def test_time_of_what_the_controller_does(rows):
    """In lockstep the channel carries the stripes of eight dies, three pages each, once (RAIN) or
    three times (ECC), where the dies would wait; what overlaps with programs of others is less than
    a tenth. A record takes a program at the end."""
    bare = rows["none, as published"].stage.seconds
    for name, times in (("RAIN over 16 dies", 1), ("ECC parity, by the controller", 3)):
        more = rows[name].stage.seconds - bare
        moved = 256 * times * 8 * 3 * PAGE_S
        assert 0.9 * moved < more < 1.4 * moved, name
    record = rows["atomicity, step is resumed"].stage.seconds - bare
    assert 100e-6 < record < 200e-6 + 2.1e-3  # and perhaps the erase of the block it opens


def test_energy_is_charged_where_it_is_spent(rows):
    def part(name, component):
        return rows[name].stage.parts.get(component, 0.0)

    bits = 2 * 12 * N * 8  # every bit of w, m and v, as read and as programmed
    found = part("ECC parity, on the die", "die ECC")
    assert found == pytest.approx(bits * 0.9e-12, rel=1e-6)
    found = part("encryption (XTS)", "cipher on the die")
    assert found == pytest.approx(bits * 2.36e-12, rel=1e-6)
    assert part("none, as published", "die ECC") == 0
    assert part("none, as published", "ECC") == 0
    # The controller's ECC: 12 B/param decoded, 12 B/param encoded, 13 pJ/bit.
    found = part("ECC parity, by the controller", "ECC")
    assert found == pytest.approx(bits * 13e-12, rel=1e-6)
    # A pass reads and writes every bit; 160 fJ each.
    more = part("data randomizer", "page registers") - part("none, as published", "page registers")
    assert more == pytest.approx(2 * bits * 160e-15, rel=1e-6)
    # Parity is programmed, too: 1/15 more than 12 B/param.
    more = part("RAIN over 16 dies", "NAND program") / part("none, as published", "NAND program")
    assert more == pytest.approx(1 + 1 / 15, rel=1e-3)


def test_room_on_flash(rows):
    stripes = N // 2048
    expected = {
        "RAIN over 16 dies": stripes + -(-stripes // 15),
        "atomicity, step is resumed": stripes + 64,
        "atomicity, step is undone": 2 * (stripes + 64),
    }
    for name, super_pages in expected.items():
        assert rows[name].stage.reserved == 4 * super_pages, name
    assert rows["none, as published"].stage.reserved == 4 * stripes


def test_two_versions_need_twice_the_room():
    """A model that fills more than half of the reservoir can be updated, but not undone."""
    small = (*SMALL, "ftl.reservoir_fraction=0.5")
    n = 300 * 4 * 2048  # of 31 blocks x 16 pages on each of 4 dies
    cfg = load_preset(R1, small)
    run_path("on_die", cfg, model("adam", n), Options(), steps=1, payload=False)
    with pytest.raises(Unavailable, match="ftl.reservoir_fraction"):
        undo = cfg.replace({"pe.atomicity": "undo"})
        run_path("on_die", undo, model("adam", n), Options(), steps=1, payload=False)


@pytest.mark.parametrize("dies", [4, 8, 12, 64])
@pytest.mark.parametrize("count", [1, 3, 64, 1000])
def test_parity_lies_on_a_die_of_its_own(dies, count):
    """Whatever the stripe of parity: no two on one super-page, none among the states, and none on
    the die of a state that it would have to restore."""
    stripes = Stripes(Shard(0, 0, count * 2048), ("w", "m", "v"), 1, 2048)
    assert stripes.count == count
    for rain in {2, 3, dies // 2 + 1, dies}:
        leaves = {"flash.channels": 4, "flash.dies_per_channel": dies // 4, "pe.rain": rain}
        g = Guarded.of(load_preset(R1).replace(leaves), stripes, dies)
        assert len(g.parity) == -(-count // (rain - 1)) == len(set(g.parity.tolist()))
        assert g.parity.min() >= count and g.parity.max() < g.super_pages
        for j, parity in enumerate(g.parity.tolist()):
            members = range(j * (rain - 1), min((j + 1) * (rain - 1), count))
            assert parity % dies not in {s % dies for s in members}
        done = g.completed(np.arange(count + 1))
        assert done[0] == 0 and done[-1] == len(g.parity) and (np.diff(done) >= 0).all()


PROTECTIONS = protections(DIES_OF_PARITY)
ALONE = [p.settings | ({"pe.rain": 4} if "pe.rain" in p.settings else {}) for p in PROTECTIONS]
TOGETHER = [
    {"pe.rain": 2, "pe.dispatch": "free"},
    {"pe.rain": 4, "pe.dispatch": "double_buffered", "pe.protection": "controller_ecc"},
    {"pe.rain": 2, "pe.dispatch": "double_buffered", "pe.atomicity": "resume"},
    {"pe.rain": 3, "pe.atomicity": "undo", "system.devices": 2},
]
ROUND = (
    "flash.channels=2", "flash.dies_per_channel=2", "flash.blocks_per_plane=40",
    "flash.pages_per_block=8", "flash.page=2 KiB", "ftl.reservoir_fraction=0.5",
)  # fmt: skip
"""160 places in the reservoir of each die; the model has 32 stripes on each, so that five steps go
around it."""


@pytest.mark.one_in(5)
@pytest.mark.parametrize("settings", [*ALONE, *TOGETHER], ids=str)
def test_the_weights_are_right_whatever_is_repaired(settings):
    """Five steps, once around the reservoir at least: real bytes, held against the kernel."""
    cfg = load_preset(R1, ROUND).replace(settings)
    r = run_path("on_die", cfg, traces.load("gpt-small"), Options(), steps=5, payload=True)
    assert r.weights is not None and r.weights.equal_bits == r.weights.elements == 64_512


@pytest.mark.one_in(5)
@pytest.mark.parametrize("dispatch", ["lockstep", "free", "double_buffered"])
@pytest.mark.parametrize("devices", [1, 2])
def test_the_weights_are_right_at_chip_level(dispatch, devices):
    """The gradient is programmed, sensed and used: nothing else brings it to the die."""
    cfg = load_preset(R1, ROUND).replace({"pe.dispatch": dispatch, "system.devices": devices})
    r = run_path("chip_level", cfg, traces.load("gpt-small"), Options(), steps=5, payload=True)
    assert r.weights is not None and r.weights.equal_bits == r.weights.elements == 64_512


@pytest.mark.parametrize("dispatch", ["lockstep", "free", "double_buffered"])
def test_parities_do_not_pile_up_in_dram(dispatch):
    """The gradients of a round come only when the parities of eight rounds before are on flash, as
    those gradients themselves have left DRAM by then."""
    cfg = load_preset(R1).replace({"pe.rain": 16, "pe.dispatch": dispatch})
    path = PATHS["on_die"](cfg, model("adam", 20 * 64 * 2048))
    plan = np.concatenate(list(path.plan(0)))
    loads = plan[plan["resource"] == rows_of.DMA_DOWN]
    assert len(loads) == 20 and (loads["after1"][:8] == -1).all()
    at = {int(row["id"]): row for row in plan}
    for late, early in zip(loads[8:], loads, strict=False):
        gradient, parity = (at[int(late[name])] for name in ("after0", "after1"))
        assert gradient["kind"] == timing.VPP and parity["kind"] == timing.BESIDE
        following = loads["id"][loads["id"] > early["id"]][0]
        assert early["id"] < gradient["id"] < parity["id"] == following - 1


# --- the command


def test_the_command_prints_and_writes(capsys, tmp_path):
    target = tmp_path / "a.json"
    outcome = here(capsys, "ablation", "gpt-small", "--json", target)
    assert outcome.code == 0 and outcome.err == ""
    for protection in PROTECTIONS:
        assert protection.name in outcome.out
    data = json.loads(target.read_text())
    assert [row["name"] for row in data["rows"]] == [p.name for p in PROTECTIONS]
    bare = data["rows"][0]
    assert (bare["update_ratio"], bare["drive_ratio"], bare["reserved_ratio"]) == (1, 1, 1)
    for row in data["rows"][1:]:
        assert row["breaks"] and row["repair"] and row["settings"] and row["update_ratio"] >= 1
    again = tmp_path / "b.json"
    here(capsys, "ablation", "gpt-small", "--json", again, "--quiet")
    assert again.read_bytes() == target.read_bytes()


def test_bad_input(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["ablation", "gpt-small", "--json", "a.json"]
    refused(here(capsys, *words, "--device", "newport"), "constants that this drive does not have")
    refused(here(capsys, *words, "--set", "pe.rain=65"), "pe.rain", "65", "the number of dies")
    refused(here(capsys, *words, "--set", "pe.rain=1"), "pe.rain", "must be from 2")
    refused(here(capsys, *words, "--set", "pe.rain=-1"), "pe.rain")
    refused(here(capsys, "ablation", "gpt-small", "--json", tmp_path), str(tmp_path))
    assert files(tmp_path) == []


def test_what_the_table_varies_is_not_set_beside_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["ablation", "gpt-small", "--json", "a.json", "--quiet"]
    line = refused(here(capsys, *words, "--set", "pe.rain=8"), "pe.rain", '"8"', "varies")
    assert "ondie compare" in line
    both = ("--set", "pe.rain=0", "--set", "pe.protection=on_die_ecc")
    refused(here(capsys, *words, *both), "pe.protection", "on_die_ecc", "nan_comparator")
    (tmp_path / "mine.toml").write_text(
        'base = "optimstore-r1"\n[pe]\natomicity = '
        '{ value = "undo", source = "derived", ref = "a test" }\n'
    )
    refused(here(capsys, *words, "--device", "mine.toml"), "pe.atomicity", "undo")
    assert files(tmp_path) == ["mine.toml"]


@pytest.mark.parametrize(("ways", "rain"), [(1, None), (2, 2), (9, 9), (16, 16), (17, 16)])
def test_parity_over_the_dies_that_there_are(ways, rain):
    cfg = load_preset(R1).replace({"flash.channels": 1, "flash.dies_per_channel": ways})
    found = {r.protection.name: r for r in ablation(cfg, model("adam", 40_000))}
    if rain is None:
        row = found["RAIN over dies"]
        assert row.stage is None and "1 die" in row.reason
        assert row.data()["status"] == "n/a"
        assert [name for name in found if name.startswith("all but RAIN, ")]
        assert "n/a: the drive has 1 die" in str(tables(list(found.values()), "x")[0].caption)
        return
    row = found[f"RAIN over {rain} dies"]
    assert row.protection.settings == {"pe.rain": rain} and row.stage is not None
    assert f"for every {rain - 1} super-pages" in row.protection.repair
    assert found["all, on the die"].protection.settings["pe.rain"] == rain


def test_a_row_without_room_says_so():
    """Two versions do not fit a reservoir that is more than half full; the other rows do."""
    cfg = load_preset(R1, (*SMALL, "ftl.reservoir_fraction=0.5"))
    found = {r.protection.name: r for r in ablation(cfg, model("adam", 300 * 4 * 2048))}
    assert {name for name, r in found.items() if r.stage is None} == {"atomicity, step is undone"}
    assert "ftl.reservoir_fraction" in found["atomicity, step is undone"].reason


def test_chip_level_runs_only_when_it_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = here(capsys, "compare", "gpt-small", "--steps", "1", "--no-swing", "--out", "o")
    assert outcome.code == 0 and "chip_level" not in outcome.out
    words = ["compare", "gpt-small", "--paths", "chip_level", "--steps", "1", "--no-swing"]
    assert "chip_level" in here(capsys, *words, "--out", "p").out
    refused(here(capsys, *words, "--set", "pe.rain=4"), "chip_level", "pe.rain = 4")
    refused(here(capsys, *words, "--set", "errors.kind=model"), "chip_level", "errors.kind")
