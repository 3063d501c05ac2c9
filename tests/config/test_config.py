"""Is a configuration one frozen, hashable, portable tree, however it was put together?"""

import dataclasses
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ondie.emu.config.config import diff, load_preset, preset_names
from ondie.emu.config.loader import PRESETS
from ondie.emu.config.schema.keys import ALIASES, KEYS, SECTIONS

ROOT = Path(__file__).resolve().parents[2]

OWN = """
base = "newport"

[system]
name = { value = "my drive", source = "measured", ref = "the drive on my desk" }

[flash]
t_read = { value = "45 us", source = "datasheet", ref = "part X, table 3", low = "40 us", high = "50 us" }

[isp.training_ratio_by_model]
"gpt2-1.5b" = { value = 0.05, source = "measured", ref = "on my desk" }
"""  # noqa: E501


def test_values_arrive_in_base_units():
    config = load_preset("optimstore-r1")
    assert config.flash.t_read_ps == 30_000_000
    assert config.flash.page_bytes == 8192
    assert config.flash.bus_bytes_per_s == 800_000_000
    assert config.energy.channel_fj_per_bit == 5800
    assert config.host.update_power_mw == 120_000
    assert config.flash.multi_plane is True
    assert config.isp.training_ratio_by_model == {}
    for key in KEYS.values():
        value = getattr(getattr(config, key.section), key.attribute)
        assert isinstance(value, dict if key.table else key.type), key


def test_a_configuration_is_frozen():
    config = load_preset("newport")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.flash.t_read_ps = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.flash = None


def test_overrides_and_replacement_agree():
    texts = {
        "flash.t_read": "45 us",
        "system.devices": "24",
        "ftl.initial": "fresh",
        "flash.cache_read": "false",
        "isp.training_ratio_by_model.resnet50": "0.08",
    }
    original = load_preset("newport")
    overridden = load_preset("newport", [f"{key}={value}" for key, value in texts.items()])
    replaced = original.replace(texts)
    numbers = original.replace(
        {
            "flash.t_read_ps": 45_000_000,
            "system.devices": 24,
            "ftl.initial": "fresh",
            "flash.cache_read": False,
            "isp.training_ratio_by_model.resnet50": 0.08,
        }
    )
    assert overridden == replaced == numbers != original
    assert overridden.flash.t_read_ps == 45_000_000 and overridden.system.devices == 24
    assert overridden.isp.training_ratio_by_model["resnet50"] == 0.08
    leaf = overridden.leaf("flash.t_read")
    assert (leaf.text, leaf.source, leaf.low, leaf.high) == ("45 us", "set", None, None)
    assert leaf.ref == "given on the command line"
    assert numbers.leaf("flash.t_read").text == "45 us"
    assert original.flash.t_read_ps == 60_000_000  # untouched
    assert {d.key for d in diff(original, overridden)} == set(texts)
    assert "flash.t_read" not in {leaf.key for leaf in overridden.assumed()}


def test_changes_are_checked_together():
    """Neither fits alone: the processor's 9 GB exceed 8 GB until the drive's DRAM grows too."""
    config = load_preset("newport", ["dram.isp=9 GB", "dram.capacity=16 GB"])
    assert config.dram.isp_bytes == 9_000_000_000


def test_a_file_without_a_name_is_named_after_the_file(tmp_path):
    (tmp_path / "my-drive.toml").write_text('base = "gen4-tlc"\n')
    (tmp_path / "next.toml").write_text('base = "my-drive.toml"\n')
    config, base = load_preset(tmp_path / "my-drive.toml"), load_preset("gen4-tlc")
    assert config.system.name == "my-drive"
    assert config.leaf("system.name").source == "derived"
    assert {d.key for d in diff(base, config)} == {"system.name"}
    assert load_preset(tmp_path / "next.toml").system.name == "next"
    assert load_preset(tmp_path / "next.toml", ["system.name=given"]).system.name == "given"


def test_a_file_states_only_what_differs(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    config, base = load_preset(path), load_preset("newport")
    assert config.system.name == "my drive"
    assert {d.key for d in diff(base, config)} == {
        "system.name",
        "flash.t_read",
        "isp.training_ratio_by_model.gpt2-1.5b",
    }
    assert config.leaf("flash.t_read").source == "datasheet"
    assert config.isp.training_ratio_by_model["gpt2-1.5b"] == 0.05
    assert set(config.records) == set(base.records) | {"isp.training_ratio_by_model.gpt2-1.5b"}
    assert [leaf.key.partition(".")[0] for leaf in config.leaves()] == sorted(
        (leaf.key.partition(".")[0] for leaf in config.leaves()), key=list(SECTIONS).index
    )
    (tmp_path / "grandchild.toml").write_text(
        'base = "mine.toml"\n[flash]\n'
        't_program_ps = { value = "1 ms", source = "measured", ref = "by its attribute" }\n'
    )
    grandchild = load_preset(str(tmp_path / "grandchild.toml"), ["flash.t_erase=4 ms"])
    assert grandchild.flash.t_read_ps == 45_000_000
    assert grandchild.flash.t_program_ps == 10**9
    assert grandchild.flash.t_erase_ps == 4 * 10**9


@pytest.mark.parametrize("name", preset_names())
def test_resolved_is_plain_data_and_complete(name):
    config = load_preset(name)
    tree = config.resolved()
    assert json.loads(json.dumps(tree, allow_nan=False)) == tree
    for leaf in config.leaves():
        node = tree
        section, _, rest = leaf.key.partition(".")
        table, _, row = rest.partition(".")
        node = tree[section][table][row] if row else tree[section][table]
        assert (node["value"], node["source"], node["ref"]) == (leaf.value, leaf.source, leaf.ref)
        assert node.get("unit") == leaf.unit and node.get("low") == leaf.low


def test_hash_depends_on_content_alone(tmp_path):
    config = load_preset("newport")
    text = (PRESETS / "newport.toml").read_text()
    shutil.copy(PRESETS / "newport.toml", tmp_path / "elsewhere.toml")
    (tmp_path / "spelling.toml").write_text(text.replace('"60 us"', '"0.06 ms"'))
    (tmp_path / "other.toml").write_text(text.replace('value = "60 us"', 'value = "61 us"'))
    (tmp_path / "order.toml").write_text(  # sections in reverse order
        "\n[".join(['include = "management"\n', *reversed(text.split("\n[")[1:])])
    )
    assert load_preset(tmp_path / "elsewhere.toml").sha256 == config.sha256
    assert load_preset(tmp_path / "spelling.toml").sha256 == config.sha256
    assert load_preset(tmp_path / "order.toml").sha256 == config.sha256
    assert load_preset(tmp_path / "other.toml").sha256 != config.sha256
    assert load_preset("newport", ["flash.t_read=60 us"]).sha256 != config.sha256  # its source
    assert len({load_preset(name).sha256 for name in preset_names()}) == len(preset_names())


def test_hash_is_stable_over_processes_and_folders(tmp_path):
    code = "from ondie.emu.config.config import load_preset; print(load_preset('newport').sha256)"
    for seed in ("0", "1"):
        out = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            check=True,
            timeout=60,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        assert out.strip() == load_preset("newport").sha256


def test_pickles():
    config = load_preset("newport", ["flash.t_read=45 us"])
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config and copy.sha256 == config.sha256 and hash(copy) == hash(config)


def test_keys_and_attributes():
    assert ALIASES["flash.t_read_ps"] == "flash.t_read"
    assert ALIASES["host.dram_bytes"] == "host.dram"
    assert ALIASES["tunnel.relay_bytes_per_s"] == "tunnel.relay_copy"
    config = load_preset("newport")
    for alias, key in ALIASES.items():
        if not KEYS[key].table:
            assert config.leaf(alias) is config.leaf(key)


def test_differences_of_presets():
    changes = {d.key: d for d in diff(load_preset("optimstore-r1"), load_preset("optimstore-r2"))}
    assert changes["flash.page"].a.text == "8 KiB" and changes["flash.page"].b.text == "16 KiB"
    assert "flash.t_read" not in changes
    gone = [d for d in diff(load_preset("newport"), load_preset("laguna")) if d.b is None]
    assert {d.key.rpartition(".")[2] for d in gone} == {
        "mobilenetv2",
        "nasnet-mobile",
        "inceptionv3",
        "squeezenet",
    }


def test_the_bare_folder_name_is_refused():
    result = subprocess.run(
        [sys.executable, "-c", "import emu"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode != 0 and "import this package as ondie.emu" in result.stderr
