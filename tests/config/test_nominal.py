"""Does the nominal capacity follow the flash, unless it is given, and must it fit?"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ondie.emu.config import nominal_capacity as nominal
from ondie.emu.config.config import load_preset, preset_names
from ondie.emu.config.rules.rule import raw_bytes
from ondie.emu.units import InputError

SHAPES = some.fixed_dictionaries(
    {},
    optional={
        "flash.channels": some.integers(1, 32),
        "flash.dies_per_channel": some.integers(1, 32),
        "flash.planes_per_die": some.integers(1, 8),
        "flash.blocks_per_plane": some.integers(50, 5000),
        "flash.pages_per_block": some.integers(9, 2000),
        "flash.page": some.sampled_from(("4 KiB", "8 KiB", "16 KiB", "32 KiB")),
    },
)


@given(some.sampled_from(preset_names()), SHAPES)
def test_it_is_the_same_share_of_the_flash(name, shape):
    """To the byte, rounded down; and it fits."""
    plain = load_preset(name).replace({"flash.programming": "page"})  # any number of pages
    cfg = plain.replace(shape)
    flash, was = raw_bytes(cfg), raw_bytes(plain)
    assert cfg.system.capacity_bytes == plain.system.capacity_bytes * flash // was <= flash
    same = flash == was
    assert cfg.leaf("system.capacity").source == (
        plain.leaf("system.capacity").source if same else "follows"
    )


def test_one_at_a_time_or_all_at_once():
    changes = {"flash.channels": 4, "flash.dies_per_channel": 4, "flash.planes_per_die": 2}
    sizes = set()
    for keys in itertools.permutations(changes):
        cfg = load_preset("optimstore-r1")
        for key in keys:
            cfg = cfg.replace({key: changes[key]})
        sizes.add(cfg.system.capacity_bytes)
    texts = [f"{key}={value}" for key, value in changes.items()]
    assert sizes == {load_preset("optimstore-r1", texts).system.capacity_bytes} == {125 * 10**9}


def test_the_note_says_what_it_follows():
    cfg = load_preset("optimstore-r1", ["flash.channels=4", "flash.dies_per_channel=4"])
    assert nominal.note(cfg.leaf("system.capacity")) == (
        "system.capacity = 250 GB follows the flash: 1.00 TB x 0.25, because of "
        "flash.channels = 4 (was 8), flash.dies_per_channel = 4 (was 8)"
    )
    for settings in ([], ["system.capacity=200 GB", "flash.channels=4"], ["flash.t_read=20 us"]):
        cfg = load_preset("optimstore-r1", settings)
        assert nominal.note(cfg.leaf("system.capacity")) is None


def test_what_is_given_is_taken():
    cfg = load_preset("optimstore-r1", ["flash.channels=4", "system.capacity=0.4 TB"])
    assert cfg.system.capacity_bytes == 400 * 10**9
    assert load_preset("newport").replace(
        {"flash.channels": 8, "system.capacity_bytes": 10**12}
    ).system.capacity_bytes == 10**12  # fmt: skip


@pytest.mark.parametrize(
    "settings", [["system.capacity=2 TB"], ["flash.channels=4", "system.capacity=1 TB"]], ids=str
)
def test_what_is_given_must_fit(settings):
    with pytest.raises(InputError, match=r"system\.capacity = .*must fit the flash, "):
        load_preset("optimstore-r1", settings)


def test_a_file_on_a_base(tmp_path):
    leaf = '{{ value = {}, source = "derived", ref = "a test of what follows" }}'
    text = f'base = "optimstore-r1"\n[flash]\nchannels = {leaf.format(4)}\n'
    (tmp_path / "a.toml").write_text(text)
    cfg = load_preset(tmp_path / "a.toml", ["flash.dies_per_channel=4"])
    assert cfg.system.capacity_bytes == 250 * 10**9
    said = leaf.format('"0.3 TB"')
    (tmp_path / "b.toml").write_text(f"{text}[system]\ncapacity = {said}\n")
    assert load_preset(tmp_path / "b.toml").system.capacity_bytes == 300 * 10**9
    (tmp_path / "c.toml").write_text('base = "a.toml"\n')
    assert load_preset(tmp_path / "c.toml").system.capacity_bytes == 500 * 10**9
