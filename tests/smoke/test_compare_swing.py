"""Does the swing of the headline hold every assumed constant at both ends of its range?"""

import dataclasses
import json
import math
import re

import pytest

from ondie import traces
from ondie.emu.analysis.compare import compare, run_path
from ondie.emu.analysis.energy import is_price
from ondie.emu.analysis.result_json import headline_words, result_data
from ondie.emu.analysis.sensitivity import (
    DIE_STRIPES,
    IDLE_KEYS,
    SAMPLE_STRIPES,
    USER_CHOICES,
    Headline,
    Swing,
    amortized,
    sample,
    sample_params,
    unfelt,
)
from ondie.emu.config.config import Config, load_preset, preset_names, shown
from ondie.emu.config.schema.keys import KEYS, SECTIONS
from ondie.emu.nand.timing import word_line_pages
from ondie.emu.paths.base import Options
from ondie.emu.paths.offload.options import Offload
from ondie.emu.results.tables import compare as report
from ondie.emu.validate import model
from ondie.emu.validate.drives import DRIVES
from tests.smoke.commands import (
    BY_SMALL,
    SHORT,
    SMALL,
    SWUNG,
    as_toml,
    here,
    small_for,
    spelled,
    swung_only,
)

FACTORS = ("speedup_at_low", "speedup_at_high", "energy_at_low", "energy_at_high")


def preset(tmp_path, ranges: dict[str, tuple[str, str]], name="optimstore-r1", extra="") -> Config:
    """A preset with other ranges, by way of a file."""
    path = tmp_path / "mine.toml"
    path.write_text(as_toml(load_preset(name), ranges) + extra, "utf-8")
    return load_preset(path)


def headline(
    cfg: Config, trace, pair=("host_offload", "on_die"), options=None
) -> tuple[float, float]:
    """(speedup, energy ratio), computed here from two runs."""
    base, rival = (
        run_path(p, cfg, trace, options or Options(), steps=1, payload=False) for p in pair
    )
    return (
        base.ledger.update_s / rival.ledger.update_s,
        base.energy.storage_and_host[1] / rival.energy.storage_and_host[1],
    )


@pytest.fixture
def listed(monkeypatch) -> None:
    """Each path is simulated once: for tests of which constants have a row, not of its values."""
    simulated = Headline._simulated
    known = {}

    def once(self, name, cfg, trace):
        if (self, name) not in known:
            known[self, name] = simulated(self, name, cfg, trace)
        return known[self, name]

    monkeypatch.setattr(Headline, "_simulated", once)


FELT = (*SWUNG, "pe.dispatch", "flash.cache_program")
MORE = ("energy.ecc", "energy.channel", "link.energy", "host.dram_energy")


@pytest.fixture(scope="module")
def varied(counts):
    """(trace, configuration, comparison) of a model of two million parameters. At small counts the
    drive and the model are smaller, and few constants are varied."""
    few = swung_only(load_preset("optimstore-r1", SMALL), *FELT)
    cfg = counts(few, load_preset("optimstore-r1"))
    trace = model("adam", counts(300_000, 2_000_000))
    return trace, cfg, compare(trace, cfg)


@pytest.mark.one_in(5, start=3)
@pytest.mark.parametrize("name", preset_names())
def test_every_assumed_constant_has_a_row(listed, name):
    cfg = load_preset(name, small_for(name))
    c = compare(traces.load("mlp-fp16"), cfg, steps=1)
    idle = unfelt(cfg)
    chosen = {x.key for x in cfg.assumed()} & USER_CHOICES
    assert chosen == ({"system.devices"} if name in ("csd-pe", "gen4-tlc", *DRIVES) else set())
    varied = sorted(s.key for s in c.swings)
    assert sorted([*idle, *chosen, *varied]) == sorted(x.key for x in cfg.assumed())
    assert len(c.swings) > 20
    for s in c.swings:
        leaf = cfg.leaf(s.key)
        assert (s.low, s.high) == (shown(leaf.low, leaf.unit), shown(leaf.high, leaf.unit))
    data = result_data(c, 0)
    assert data["assumed"]["count"] == len(cfg.assumed())
    assert data["assumed"]["of"] == len(cfg.leaves())
    assert data["assumed"]["unfelt"] == list(idle)
    assert [row["key"] for row in data["assumed"]["swing"]] == [s.key for s in c.swings]


def test_choices_of_the_user_are_no_uncertainty(listed, tmp_path):
    """Assumed or not, number of drives and queue depth are neither varied nor drawn."""
    ranges = {
        "system.devices": (1, 24),
        "host.io_queue_depth": (1, 128),
        "host.subgroup_params": (100_000, 1_000_000_000),
    }
    text = ['base = "optimstore-r1"']
    for key, (low, high) in ranges.items():
        value = load_preset("optimstore-r1").leaf(key).value
        text.append(f"{key} = {{ value = {value}, low = {low}, high = {high}, ")
        text[-1] += 'source = "assumed", ref = "a choice" }'
    (tmp_path / "mine.toml").write_text("\n".join(text))
    cfg = load_preset(tmp_path / "mine.toml", SMALL)
    assert {leaf.key for leaf in cfg.assumed()} >= set(ranges)
    c = compare(model("adam", 300_000), cfg)
    assert not {s.key for s in c.swings} & USER_CHOICES
    assert not {bar.key for bar in c.odds.bars} & USER_CHOICES
    assert "host.adam" in {s.key for s in c.swings}


def test_what_is_not_varied_is_a_table_over_leaves_that_exist():
    for rule in IDLE_KEYS:
        assert rule.key in KEYS and not rule.covers(rule.key)
        assert rule.value in (KEYS[rule.key].spec.choices or (rule.value,))
        for name in rule.leaves:
            assert name in KEYS or name.removesuffix(".*") in SECTIONS


def test_errors_are_varied_only_where_there_are_errors(listed):
    """14 leaves of ecc and errors are assumed in gen4-tlc; `kind` itself is always varied. What
    retention makes of cycles is idle while none but the rated one is required, and what iterations
    take is idle without a real code."""
    cfg = load_preset("gen4-tlc", small_for("gen4-tlc"))
    ours = [x.key for x in cfg.assumed() if x.key.startswith(("errors.", "ecc."))]
    assert {"errors.kind", "ecc.decode", "ecc.encode"} < set(ours) and len(ours) == 14
    coded = {"ecc.ldpc_iteration", "energy.ecc_decoder"}
    idle = (set(ours) | coded) - {"errors.kind", "ecc.decode", "ecc.encode"}
    classes = {"flash.rated_retention", "flash.cycles_3_months", "flash.cycles_3_days"}
    assert set(unfelt(cfg)) == idle | classes
    real = {"errors.kind": "model", "ecc.code": "ldpc"}
    assert set(unfelt(cfg.replace({"errors.kind": "model"}))) == classes | coded
    assert not set(unfelt(cfg.replace(real))) & coded
    assert set(unfelt(cfg.replace({"flash.retention": "3 days"}))) == idle
    c = compare(traces.load("mlp-fp16"), cfg.replace({"errors.kind": "model"}), steps=1)
    assert idle - coded < {s.key for s in c.swings}


@pytest.mark.one_in(5, start=4)
@pytest.mark.parametrize("name", preset_names())
def test_what_is_not_varied_changes_nothing(name):
    """All of it at the low end at once, and all at the high end: the same books, the same
    energy."""
    cfg = load_preset(name)
    trace = model("adam", 50_000)
    idle = [cfg.leaf(key) for key in unfelt(cfg)]
    assert len(idle) > 5
    assert any(leaf.low != leaf.value for leaf in idle)
    assert any(leaf.high != leaf.value for leaf in idle)
    found = compare(trace, cfg, swing=False).results
    for end in ("low", "high"):
        changed = cfg.replace({leaf.key: getattr(leaf, end) for leaf in idle})
        for a, b in zip(found, compare(trace, changed, swing=False).results, strict=True):
            assert (a.ledger, a.energy, a.bound, a.reason) == (
                b.ledger,
                b.energy,
                b.bound,
                b.reason,
            )


def test_widest_first(varied):
    _, _, c = varied
    widths = [s.width for s in c.swings]
    assert widths == sorted(widths, reverse=True)
    assert all(w >= 1 for w in widths) and widths[0] > 1.05
    # By hand: a factor of 0.8 is as wide as one of 1.25, and the wider of the two counts.
    s = Swing("k", "1", "2", 0.8, 1.1, None, 1.0)
    assert s.speedup_width == pytest.approx(1.25) and s.energy_width == 1.0
    assert s.width == s.speedup_width


def test_ranges_of_no_width_swing_nothing(tmp_path):
    """Every assumed constant with low = value = high: every factor is 1, exactly."""
    base = load_preset("optimstore-r1")
    ranges = {leaf.key: (spelled(leaf, leaf.value),) * 2 for leaf in base.assumed()}
    cfg = preset(tmp_path, ranges).replace(dict(text.split("=") for text in SMALL))
    c = compare(model("adam", 300_000), cfg)
    assert len(c.swings) == len(cfg.assumed()) - len(unfelt(cfg)) > 20
    assert {getattr(s, factor) for s in c.swings for factor in FACTORS} == {1.0}
    assert [s.key for s in c.swings] == sorted(s.key for s in c.swings)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "key", ["host.adam", "flash.t_erase", "pe.dispatch", "energy.controller", "flash.cache_program"]
)
def test_a_row_is_two_runs_at_the_ends(varied, key):
    """Recomputed with the constant set, on a sample of the same size."""
    trace, cfg, c = varied
    (s,) = (s for s in c.swings if s.key == key)
    small = model("adam", sample_params(trace, cfg))
    leaf = cfg.leaf(key)
    typical = headline(amortized(cfg), small)
    for end, value in (("low", leaf.low), ("high", leaf.high)):
        found = headline(amortized(cfg.replace({key: value})), small)
        assert getattr(s, f"speedup_at_{end}") == found[0] / typical[0]
        assert getattr(s, f"energy_at_{end}") == found[1] / typical[1]


@pytest.mark.parametrize(
    ("knobs", "tolerance"),
    [
        pytest.param({"ratio": 0.9}, 0.01, marks=pytest.mark.soak),
        ({"ratio": 0.5}, 0.01),
        ({"parameters": True, "parameters_in_dram": 0, "in_dram_below": 1 << 20}, 0.01),
        pytest.param({"pipeline_read": True, "pipeline_write": True}, 0.02, marks=pytest.mark.soak),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_a_bar_is_what_full_runs_give_whatever_stays_in_dram(counts, knobs, tolerance):
    """Of the sample as much is in DRAM as of the whole, also where it is less than a sub-group; and
    what is pipelined is pipelined in it. At small counts at one end of the range, with half the
    model on a drive of short blocks, which differs more from the sample than the tolerance at the
    other end."""
    group = f"host.subgroup_params={counts(2_000_000, 4_000_000)}"
    cfg = load_preset("optimstore-r1", [*counts(SHORT, ()), group])
    cfg = swung_only(cfg, "host.adam")
    if "parameters_in_dram" in knobs:
        knobs = knobs | {"parameters_in_dram": counts(10_000_000, 20_000_000)}
    trace = model("adam", counts(20_000_000, 40_000_000))
    options = Options(offload=Offload(**knobs))
    pair = ("host_offload", "on_die")
    leaf = cfg.leaf("host.adam")
    c = compare(trace, cfg, paths=pair, options=options)
    (s,) = (s for s in c.swings if s.key == "host.adam")
    base, rival = (result.ledger.update_s for result in c.results)
    typical = base / rival
    ends = ((s.speedup_at_low, leaf.low), (s.speedup_at_high, leaf.high))
    for factor, value in counts(ends[:1], ends):
        whole = headline(cfg.replace({leaf.key: value}), trace, pair, options)[0]
        assert factor == pytest.approx(whole / typical, rel=tolerance)


def test_directions_that_physics_demands(varied):
    """A slower host CPU makes the offload worse, so the speedup over it larger; a die that need not
    wait for its neighbours makes it larger; a hungrier drive controller is not felt in time."""
    _, _, c = varied
    rows = {s.key: s for s in c.swings}
    assert rows["host.adam"].speedup_at_low > 1 > rows["host.adam"].speedup_at_high
    assert rows["pe.dispatch"].speedup_at_low == 1 < rows["pe.dispatch"].speedup_at_high
    prices = [key for key in rows if is_price(key)]
    assert len(prices) >= 3
    for key in prices:
        assert rows[key].speedup_at_low == rows[key].speedup_at_high == 1, key
    assert rows["energy.controller"].energy_at_low != 1


@pytest.mark.parametrize("name", ["optimstore-r1", "newport"])
def test_a_price_has_no_say_in_time(name):
    """Runs that differ in prices alone are simulated once: so no price may move the clock."""
    cfg = load_preset(name, small_for(name))
    trace = model("adam", 50_000)
    prices = [leaf for leaf in cfg.leaves() if is_price(leaf.key)]
    assert len(prices) > 12
    dear = cfg.replace({leaf.key: leaf.value * 3 + 1 for leaf in prices})
    for a, b in zip(
        compare(trace, cfg, swing=False).results,
        compare(trace, dear, swing=False).results,
        strict=True,
    ):
        assert a.ledger == b.ledger
        if a.ledger:
            assert a.energy != b.energy


@pytest.mark.soak
def test_an_end_at_which_a_path_cannot_run_has_no_value(tmp_path, capsys):
    """Without a reservoir there is no on-die path: n/a at that end, and shown before all others."""
    cfg = preset(tmp_path, {"ftl.reservoir_fraction": ("0.0", "0.5")})
    words = ["compare", "mlp-fp16", "--device", tmp_path / "mine.toml", "--steps", "1", "--verbose"]
    out = here(capsys, *words, *BY_SMALL, "--out", tmp_path / "out").out
    data = json.loads((tmp_path / "out/result.json").read_text())["assumed"]
    cfg = cfg.replace(dict(text.split("=") for text in SMALL))
    assert data["count"] == len(data["swing"]) + len(data["unfelt"]) == len(cfg.assumed())
    row = data["swing"][0]
    assert row["key"] == "ftl.reservoir_fraction"
    assert (row["speedup_factor_at_low"], row["energy_factor_at_low"]) == (None, None)
    assert row["speedup_factor_at_high"] == pytest.approx(1, rel=0.05)
    (line,) = (x for x in out.splitlines() if x.startswith("│ ftl.reservoir_fraction"))
    assert [cell.strip() for cell in line.split("│")[1:-1]][3::2] == ["n/a", "n/a"]


def test_a_name_may_be_assumed_without_a_range(listed, tmp_path):
    name = 'name = { value = "x", source = "assumed", ref = "mine" }'
    text = f'base = "optimstore-r1"\n[system]\n{name}\n'
    (tmp_path / "mine.toml").write_text(text)
    cfg = load_preset(tmp_path / "mine.toml", SMALL)
    c = compare(traces.load("mlp-fp16"), cfg, steps=1)
    without = {leaf.key for leaf in cfg.assumed()} - {s.key for s in c.swings}
    assert without == {"system.name", *unfelt(cfg)} and "system.name" not in unfelt(cfg)


def test_an_override_is_assumed_no_longer(listed):
    cfg = load_preset("optimstore-r1", [*SMALL, "host.adam=2 Gparam/s"])
    c = compare(traces.load("mlp-fp16"), cfg, steps=1)
    assert "host.adam" not in {s.key for s in c.swings}
    assert result_data(c, 0)["assumed"]["count"] == len(
        load_preset("optimstore-r1", SMALL).assumed()
    ) - 1  # fmt: skip


def test_no_swing(capsys, tmp_path):
    words = ["compare", "mlp-fp16", "--steps", "1", "--no-swing", "--verbose", "--out", tmp_path]
    out = here(capsys, *words, *BY_SMALL).out
    assert "Swing" not in out and "swings" not in out
    data = json.loads((tmp_path / "result.json").read_text())["assumed"]
    assert data["swing"] == data["unfelt"] == [] and data["count"] > 0


def test_one_path_has_no_headline():
    cfg = load_preset("newport")
    c = compare(traces.load("mlp-fp16"), cfg, steps=1, paths=["in_storage"])
    assert (c.swings, c.swing_pair) == ((), None)
    counts = f"{len(cfg.assumed())} of {len(cfg.leaves())} constants are assumed."
    assert headline_words(c) == f"No two update paths to compare; {counts}"


# --- the sample


@pytest.mark.parametrize("name", preset_names())
def test_the_sample_gives_every_die_the_same(name):
    cfg = load_preset(name)
    f = cfg.flash
    dies = f.channels * f.dies_per_channel * cfg.system.devices
    trace = traces.load("gpt-10b")
    small = sample(trace, cfg)
    stripes = SAMPLE_STRIPES if cfg.pe.kind == "none" else DIE_STRIPES
    line = word_line_pages(cfg)
    assert small.n_params == sample_params(trace, cfg) == stripes * dies * line * f.page_bytes // 4
    assert (small.payload, len(small.steps)) == ("none", 1)
    assert (small.steps[0].forward_s, small.steps[0].backward_s) == (0, 0)
    assert small.op == trace.op
    assert sample(traces.load("mlp-fp16"), cfg).n_params == traces.load("mlp-fp16").n_params


def test_the_sample_tells_what_the_whole_would(counts):
    """Speedup of the sample within 15 % of that of forty times as many parameters."""
    cfg = load_preset("optimstore-r1")
    n = sample_params(traces.load("gpt-10b"), cfg)
    small = headline(cfg, model("adam", n))
    large = headline(cfg, model("adam", n * counts(10, 40)))
    assert math.isclose(small[0], large[0], rel_tol=0.15)


# --- the words


def test_the_headline_names_the_widest(capsys, tmp_path, scale):
    """At small counts of few constants, and of all those without effect."""
    words = ["compare", "mlp-fp16", "--steps", "1", "--verbose", "--out", tmp_path]
    if scale == "small":
        cfg = load_preset("optimstore-r1")
        few = swung_only(cfg, *FELT, *MORE, *unfelt(cfg))
        text = as_toml(few).replace('source = "set"', 'source = "derived"')
        (tmp_path / "few.toml").write_text(text, "utf-8")
        words += ["--device", tmp_path / "few.toml"]
    out = here(capsys, *words, *BY_SMALL).out
    data = json.loads((tmp_path / "result.json").read_text())
    rows = data["assumed"]["swing"]

    def width(row, what):
        found = (row[f"{what}_factor_at_low"], row[f"{what}_factor_at_high"])
        return max(max(x, 1 / x) for x in found)

    fast = max(rows, key=lambda row: width(row, "speedup"))
    lean = max(rows, key=lambda row: width(row, "energy"))
    assert (
        f"the speedup is most sensitive to {fast['key']} (x {width(fast, 'speedup'):.2f}), "
        f"the energy to {lean['key']} (x {width(lean, 'energy'):.2f})."
    ) in data["headline"]
    assert " ".join(data["headline"].split()) in " ".join(out.split())
    table = out[out.index("Ratios of") :]
    shown_keys = re.findall(r"│ ([a-z_]+\.[a-z_]+) +│", table)
    assert shown_keys == [row["key"] for row in rows[: len(shown_keys)]] and len(shown_keys) == 8
    assert f"{len(rows) - 8} more constants change either ratio by at most" in table
    idle = data["assumed"]["unfelt"]
    assert f"; {len(idle)} constants have no effect because errors.kind = none" in " ".join(
        table.split()
    )
    assert "because ecc.code" not in table  # each constant counts once


def test_a_sample_in_which_nothing_is_pipelined_says_so():
    """Two sub-groups of a model, one of its sample, where that is too short for several of whole
    blocks; and none where it is not."""
    note = "the sample fits in one sub-group, so its stages are not pipelined"
    swing = Swing("host.adam", "1", "2", 1.0, 1.0, 1.0, 1.0)
    cases = ((1_500_000, "1 MiB", True), (1_500_000, "64 KiB", False), (100_000, "64 KiB", False))
    for size, block, said in cases:
        given = [f"host.subgroup_params={size}", f"host.io_block={block}"]
        cfg = load_preset("optimstore-r1", [*SMALL, *given])
        paths = ["host_offload", "host_offload_pipelined"]
        c = compare(model("adam", 2_000_000), cfg, paths=paths, swing=False)
        table = report.tables(dataclasses.replace(c, swings=(swing,)))[-1]
        assert (note in (table.caption or "")) == said
