"""Has every number a source, every assumed one a range, and do the derived ones add up?"""

import re
import shutil
import tomllib

import pytest

from ondie.emu.config.config import load_preset, preset_list, preset_names, preset_table
from ondie.emu.config.leaf import SOURCES, rank
from ondie.emu.config.loader import PARTS, PRESETS, key_of, part_names
from ondie.emu.config.rules.rule import native_bytes
from ondie.emu.config.schema.keys import KEYS
from ondie.emu.units import InputError
from ondie.emu.validate.drives import DRIVES
from ondie.traces import synth

NAMES = preset_names()


def test_the_presets_ship():
    assert set(NAMES) == {
        *DRIVES,
        "csd-pe",
        "newport",
        "laguna",
        "optimstore-r1",
        "optimstore-r2",
        "smartssd",
        "gen4-tlc",
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_leaf_has_a_source_and_every_assumed_one_a_range(name):
    config = load_preset(name)
    assert config.system.name == name
    stated = {leaf.key for leaf in config.leaves()}
    assert stated >= {key for key, spec in KEYS.items() if not spec.table}
    for leaf in config.leaves():
        assert leaf.source in SOURCES and len(leaf.ref) > 10, leaf
        key = key_of(leaf.key)[0]
        if leaf.source == "assumed":
            assert leaf.low is not None and leaf.low != leaf.high, leaf
        if leaf.low is not None:
            assert rank(key, leaf.low) <= rank(key, leaf.value) <= rank(key, leaf.high), leaf
    assert {leaf.key for leaf in config.assumed()} == {
        leaf.key for leaf in config.leaves() if leaf.source == "assumed"
    }
    assert config.assumed()


def test_parts_are_no_presets():
    assert part_names() == ("management",) and not set(part_names()) & set(NAMES)


def test_a_part_states_no_quantity_without_a_source():
    """What has a unit and applies has a published source or a range; "derived" is for what does
    not apply, which is 0, and for what the drive of a model is."""
    for name in part_names():
        stated = tomllib.loads((PARTS / f"{name}.toml").read_text())
        keys = [f"{section}.{key}" for section, leaves in stated.items() for key in leaves]
        leaves = [load_preset("newport").leaf(key) for key in keys]
        assert len(leaves) > 40
        for leaf in leaves:
            if leaf.unit is not None and leaf.source == "derived":
                assert leaf.value == 0, leaf


def test_a_file_goes_before_its_part_and_its_part_before_its_base(tmp_path):
    leaf = '{{ value = {}, source = "derived", ref = "a test of precedence" }}'
    (tmp_path / "part.toml").write_text(
        f"[flash]\nchannels = {leaf.format(3)}\ndies_per_channel = {leaf.format(5)}\n"
    )
    (tmp_path / "mine.toml").write_text(
        f'base = "newport"\ninclude = "part.toml"\n[flash]\nchannels = {leaf.format(7)}\n'
    )
    flash = load_preset(tmp_path / "mine.toml").flash
    assert (flash.channels, flash.dies_per_channel) == (7, 5)
    assert flash.planes_per_die == load_preset("newport").flash.planes_per_die


@pytest.mark.parametrize("name", NAMES)
def test_energies_are_intervals(name):
    """An energy is an answer from low to high: each one that applies has a range."""
    for leaf in load_preset(name).leaves():
        energy = leaf.unit in ("fj", "fj_per_bit", "mw")
        assert not energy or leaf.value == 0 or leaf.low is not None, leaf


@pytest.mark.parametrize("name", NAMES)
def test_both_ends_of_every_range_are_valid_configurations(name):
    config = load_preset(name)
    for leaf in config.leaves():
        for end in (leaf.low, leaf.high):
            if end is not None:
                changed = config.replace({leaf.key: end})
                assert changed.leaf(leaf.key).value == end


@pytest.mark.parametrize("name", NAMES)
def test_capacity_is_nominal_within_a_tenth(name):
    config = load_preset(name)
    user = native_bytes(config) * (1 - config.ftl.over_provisioning)
    assert user == pytest.approx(config.system.capacity_bytes, rel=0.1)
    assert user >= config.system.capacity_bytes  # the nominal capacity can really be written


LEAF = re.compile(r"^(?P<key>[\w-]+) = \{ (?P<body>.*) \}$")


def mutations(path):
    """Every leaf of a file with its source, its ref, or an end of its range taken away."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        match = LEAF.match(line)
        if match is None:
            continue
        leaf = tomllib.loads(line)[match["key"]]
        for part in ("value", "source", "ref", *(["low", "high"] if "low" in leaf else [])):
            kept = {k: v for k, v in leaf.items() if k != part}
            body = ", ".join(
                f"{k} = {str(v).lower() if isinstance(v, bool) else v!r}" for k, v in kept.items()
            )
            mutated = [*lines]
            mutated[number] = f"{match['key']} = {{ {body} }}"
            yield match["key"], part, "\n".join(mutated)
        yield match["key"], "leaf", "\n".join(lines[:number] + lines[number + 1 :])


def leaves_of(table):
    """The number of leaves that a parsed file states."""
    tables = [value for value in table.values() if isinstance(value, dict)]
    return sum(1 if "value" in value else leaves_of(value) for value in tables)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "place",
    [*(PRESETS / f"{name}.toml" for name in NAMES), *PARTS.glob("*.toml")],
    ids=lambda place: place.stem,
)
def test_taking_any_provenance_away_is_refused(place, tmp_path, counts):
    """Of the leaves that a preset states, and of those in the part that all include; of some of
    them at small counts."""
    preset, part = tmp_path / "mutated.toml", tmp_path / "part.toml"
    shutil.copy(PARTS / "management.toml", part)
    name = place.stem if place.stem in NAMES else "newport"
    whole = (PRESETS / f"{name}.toml").read_text()
    own, shared = tomllib.loads(whole), tomllib.loads(part.read_text())
    assert ("base" in own) != ('include = "management"\n' in whole)
    preset.write_text(whole.replace('include = "management"\n', 'include = "part.toml"\n'))
    assert load_preset(preset) == load_preset(name)
    mutated = preset if place.stem in NAMES else part
    twice = {
        key
        for section, table in own.items()
        if isinstance(table, dict)
        for key in table.keys() & shared.get(section, {}).keys()
    }
    """What the preset states beside the part: without it, the part's counts."""
    if "base" in own:
        twice = {key for table in own.values() if isinstance(table, dict) for key in table}
        """Without a leaf of the preset, its base's counts."""
    tried, leaves = 0, 0
    for key, what, text in [*mutations(mutated)][:: counts(7, 1)]:
        leaves += what == "leaf"
        if what == "leaf" and key in ROWS:
            continue  # rows of a table may be absent
        if what == "leaf" and mutated == preset and key in twice:
            continue
        mutated.write_text(text)
        with pytest.raises(InputError) as caught:
            load_preset(preset)
        message = str(caught.value)
        assert key in message and "mutated.toml" in message and "\n" not in message
        assert "is missing" in message
        tried += 1
    stated = leaves_of(own if mutated == preset else shared)
    # a preset with a base states few leaves and takes the others from it
    assert stated > 30 and leaves >= counts(stated // 14, stated)
    assert tried >= counts(3 * leaves, 4 * leaves - len(ROWS) - len(twice))


ROWS = {
    leaf.key.rpartition("_by_model.")[2]
    for name in NAMES
    for leaf in load_preset(name).leaves()
    if leaf.key not in KEYS
}
"""Rows of tables: names of models."""


def test_an_assumed_leaf_without_any_range_is_refused(tmp_path):
    text = (PRESETS / "newport.toml").read_text()
    path = tmp_path / "mutated.toml"
    path.write_text(
        re.sub(r'(t_read = \{ value = "60 us"), low = "40 us", high = "106 us"', r"\1", text)
    )
    with pytest.raises(InputError, match=r'flash.t_read: "60 us" is assumed but has no range'):
        load_preset(path)


def test_a_copied_preset_without_changes_loads(tmp_path):
    shutil.copy(PRESETS / "newport.toml", tmp_path / "copy.toml")
    assert load_preset(tmp_path / "copy.toml") == load_preset("newport")


# --- what the derived numbers claim


def test_optimstore_r1_rates():
    """Stripe: tR 30 + 5 x 10.24 (vector passes) + tPROG 100 + 8 dies x 10.24 (gradients) = 263 us.

    64 dies x 2048 parameters / 263.1 us = 498 Mparam/s; C-ISP: 8 x 0.8 GB/s / 24 B = 267 Mparam/s.
    """
    flash = load_preset("optimstore-r1").flash
    page_us = flash.page_bytes / flash.bus_bytes_per_s * 1e6
    array_us = (flash.t_read_ps + flash.t_program_ps) / 1e6
    stripe_us = array_us + (5 + flash.dies_per_channel) * page_us
    dies = flash.channels * flash.dies_per_channel
    assert stripe_us == pytest.approx(263.1, abs=0.1)
    assert dies * (flash.page_bytes / 4) / stripe_us == pytest.approx(498, abs=1)  # Mparam/s
    assert flash.channels * flash.bus_bytes_per_s / 24 == pytest.approx(267e6, rel=0.01)


def test_optimstore_r2_is_pcie_bound():
    r1, r2 = load_preset("optimstore-r1"), load_preset("optimstore-r2")
    assert r1.flash.channels * r1.flash.bus_bytes_per_s < r1.link.up_bytes_per_s
    assert r2.flash.channels * r2.flash.bus_bytes_per_s > r2.link.up_bytes_per_s
    assert r2.energy == r1.energy  # charged per bit, not per operation


def test_optimstore_baseline_rate():
    """Serial baseline at the channel's 6.4 GB/s: 28 B/6.4 GB/s + 1/c = 1/(0.177 G) within 2 %."""
    config = load_preset("optimstore-r1")
    seconds = 28 / (config.flash.channels * config.flash.bus_bytes_per_s) + 1 / (
        config.host.adam_params_per_s
    )
    assert 1 / seconds == pytest.approx(0.177e9, rel=0.02)


@pytest.mark.parametrize(
    ("name", "leaf", "microseconds", "bits"),
    [
        ("optimstore-r1", "nand_read", 30, 8192 * 8),
        ("optimstore-r1", "nand_program", 100, 8192 * 8),
        ("optimstore-r1", "nand_erase", 2000, 256 * 8192 * 8),
        ("newport", "nand_read", 60, 16384 * 8),
        ("newport", "nand_program", 500, 16384 * 8),
        ("newport", "nand_erase", 3500, 768 * 16384 * 8),
        ("gen4-tlc", "nand_read", 40, 16384 * 8),
        ("gen4-tlc", "nand_program", 1200, 3 * 16384 * 8),
        ("gen4-tlc", "nand_erase", 3500, 1536 * 16384 * 8),
    ],
)
def test_nand_energy_is_the_array_power_over_the_bits(name, leaf, microseconds, bits):
    """25 mA x 3.3 V = 82.5 mW per plane; 82.5 mW x 30 us / 65536 bit = 37.77 pJ/bit."""
    femtojoules = 82.5e-3 * microseconds * 1e-6 / bits * 1e15
    assert load_preset(name).leaf(f"energy.{leaf}").value == pytest.approx(femtojoules, abs=1)


def test_smartssd_rates():
    """Data sheet: 8 x 412.5 MB/s = 3.3 GB/s; 128 planes x 16 KiB / (969 + 2 x 39.7 us) = 2 GB/s."""
    cfg = load_preset("smartssd")
    flash = cfg.flash
    assert flash.channels * flash.bus_bytes_per_s == pytest.approx(3.3e9, rel=0.001)
    stripe = flash.planes_per_die * flash.page_bytes
    seconds = flash.t_program_ps / 1e12 + stripe / flash.bus_bytes_per_s
    dies = flash.channels * flash.dies_per_channel
    assert dies * stripe / seconds == pytest.approx(2e9, rel=0.001)
    assert cfg.isp.flash_bytes_per_s == 2_780_000_000
    assert cfg.isp.flash_write_bytes_per_s == 1_630_000_000


def test_server_power_fits():
    """STANNIS: P = 328.5 + 0.919 N W; HyperTune: 441 W and 539 W with 36 drives."""
    newport, laguna = load_preset("newport"), load_preset("laguna")
    for config, host, drive in ((newport, 328_500, 919), (laguna, 441_000, 2728)):
        energy = config.energy
        assert config.host.compute_power_mw == host
        assert energy.controller_mw + config.isp.cores * energy.isp_core_mw == drive


def test_published_training_ratios():
    """Table I: 3.08/32.3 = 0.0954, 2.80/47.31 = 0.0592, 1.85/30.80 = 0.0601, 16.3/219 = 0.0744."""
    isp = load_preset("newport").isp
    assert {k: round(v, 4) for k, v in isp.training_ratio_by_model.items()} == {
        "mobilenetv2": 0.0954,
        "nasnet-mobile": 0.0592,
        "inceptionv3": 0.0601,
        "squeezenet": 0.0744,
    }
    assert isp.training_ratio == 0.072


def test_csd_pe_consists_of_optimstore_and_newport():
    """Flash, PEs and reservoir are those of R1; cores and tunnel those of Newport."""
    made, r1, newport = map(load_preset, ("csd-pe", "optimstore-r1", "newport"))
    assert (made.flash, made.pe, made.ftl, made.ecc) == (r1.flash, r1.pe, r1.ftl, r1.ecc)
    assert made.tunnel == newport.tunnel
    for key in ("kind", "cores", "frequency_hz", "ipc"):
        assert getattr(made.isp, key) == getattr(newport.isp, key)


def test_csd_pe_accelerator_is_that_of_the_synthetic_traces():
    host = load_preset("csd-pe").host
    assert host.accelerator_peak_flop_per_s == synth.PEAK.value
    assert host.accelerator_utilization == synth.UTILISATION.value


def test_csd_pe_utilizations():
    """NVIDIA's img/s on an A100: EfficientNet-B0, 0.39 GMACs: 2489; ResNet-50, 4.09 GMACs: 2470.

    STANNIS: MobileNetV2, 300.8 M MACs, 3.08 img/s on 4 cores at 1 GHz, 8 operations per cycle.
    """
    cfg = load_preset("csd-pe")
    shares = cfg.host.accelerator_utilization_by_model
    assert shares["mobilenetv2"] == pytest.approx(6 * 0.39e9 * 2489 / 312e12, rel=0.01)
    assert shares["inceptionv3"] == pytest.approx(6 * 4.09e9 * 2470 / 312e12, rel=0.01)
    assert cfg.isp.training_utilization == pytest.approx(6 * 300.8e6 * 3.08 / 32e9, rel=0.001)


# --- tables for the command line


def test_tables():
    config = load_preset("optimstore-r1")
    plain, why = preset_table(config), preset_table(config, why=True)
    assert (
        [row.key for row in plain]
        == [row.key for row in why]
        == [leaf.key for leaf in config.leaves()]
    )
    assert all(row.value and row.doc for row in plain)
    assert not any(row.source or row.ref or row.range for row in plain)
    rows = {row.key: row for row in why}
    assert (rows["flash.t_read"].value, rows["flash.t_read"].range) == ("30 us", "20 us .. 40 us")
    assert rows["flash.t_read"].source == "paper" and "HPCA 2023" in rows["flash.t_read"].ref
    assert all(row.source and row.ref for row in why)
    assert all(row.range for row in why if row.source == "assumed")


def test_list():
    lines = {line.name: line for line in preset_list()}
    assert tuple(lines) == NAMES
    assert lines["optimstore-r1"].flash == "8 x 8 x 4 x 8 KiB pSLC"
    assert lines["newport"].isp == "4 x 1 GHz"
    assert lines["gen4-tlc"].isp == "none"
