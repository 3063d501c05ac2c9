"""Does every kind of bad configuration end in one line: where, key, value, and what is right?"""

import pickle
import re

import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.units import InputError

BASE = 'base = "newport"\n'


def leaf(value, extra='source = "measured", ref = "my own drive"'):
    return f"{{ value = {value}, {extra} }}"


def refused(call, words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and message.isprintable()
    for word in words:
        assert word in message, message
    return message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flash.t_reed=45 us", ['"flash.t_reed"', "nearest: flash.t_read"]),
        ("flash.channel=4", ['"flash.channel"', "nearest: flash.channels"]),  # not energy.channel
        ("flash.decode=2 us", ['"flash.decode"', "nearest: ecc.decode"]),
        ("flsh.t_read=45 us", ['"flsh.t_read"', "nearest: flash.t_read"]),
        ("t_read=45 us", ['"t_read"', "nearest: flash.t_read"]),
        ("host.t_read=45 us", ['"host.t_read"', "nearest: flash.t_read"]),
        ("isp.frequencies=1 GHz", ["nearest: isp.frequency"]),
        ("qqqq=1", ['"qqqq"', "flash.*"]),
        ("isp.training_ratio_by_model=1", ["unknown key"]),
        ("flash.t_read", ["no value", 'flash.t_read="45 us"']),
        ("flash.t_read=", ["flash.t_read", "is not a time"]),
        ("flash.t_read=45", ["flash.t_read", '"45"', "has no unit", "45 us"]),
        ("flash.t_read=45 uss", ["unknown unit", "nearest: us"]),
        ("flash.t_read=4 KiB", ["is a size, not a time"]),
        ("flash.t_read=-1 us", ["is too small"]),
        ("flash.t_read=0", ["flash.t_read", "too small", "must be at least 1 ps"]),
        ("flash.t_read=nan", ["is not a time"]),
        ("flash.t_read=1e30 s", ["is too large"]),
        ("flash.channels=0", ["flash.channels", "too small", "must be at least 1"]),
        ("flash.channels=2.5", ["is not a whole number"]),
        ("flash.channels=many", ["is not a whole number"]),
        ("flash.channels=1e15", ["flash.channels", '"1e15"', "capacity overflows"]),
        ("flash.cell=tlc", ['"tlc"', "nearest: TLC"]),
        ("flash.multi_plane=yes", ['"yes"', "true or false"]),
        ("flash.page=10 KiB", ["flash.page", '"10 KiB"', "nearest: 8 KiB"]),
        ("flash.page=256 B", ["too small", "512 B"]),
        ("pe.dispatch=locked", ["pe.dispatch", "nearest: lockstep"]),
        ("isp.kind=gpu", ["isp.kind", "none, cores, fpga"]),
        ("isp.kind=fpga", ["isp.kind", 'isp.engine = "8.2 GB/s"']),
        ("isp.cores=0", ["isp.cores", "isp.cores above 0"]),
        ("isp.frequency=0", ["isp.frequency", "requires isp.frequency above 0"]),
        ("isp.ipc=0", ["isp.ipc", "isp.ipc above 0, for example 0.8"]),
        ("isp.ipc=fast", ["isp.ipc", "is not a number"]),
        ("isp.flash=0", ["isp.flash", "isp.flash above 0"]),
        ("dram.isp=0", ["dram.isp", "dram.isp above 0"]),
        ("dram.isp=9 GB", ["dram.isp", '"9 GB"', "dram.capacity", "must fit"]),
        ("ftl.over_provisioning=1", ["ftl.over_provisioning", "below 1"]),
        ("ftl.over_provisioning=-0.1", ["is too small"]),
        ("ftl.reservoir_fraction=1.5", ["ftl.reservoir_fraction", "below 1"]),
        ("ftl.gc_low_blocks=5000", ["ftl.gc_low_blocks", "flash.blocks_per_plane"]),
        ("ftl.erase_failures=0.1", ["ftl.erase_failures", "ftl.erase", "collected"]),
        ("host.io_block=10 KB", ["host.io_block", "multiple of the page"]),
        ("frontend.max_transfer=10 KB", ["frontend.max_transfer", "multiple of the page"]),
        ("pe.kind=per_plane", ["pe.kind", "pe.clock_divider = 4", "energy.pe_add"]),
        ("system.name=", ["system.name", "is not a name"]),
        ("system.name=a\nb", ["system.name"]),
    ],
)
def test_overrides(text, words):
    refused(lambda: load_preset("newport", [text]), words)


@pytest.mark.parametrize(
    ("name", "texts", "words"),
    [
        (
            "newport",
            ["ftl.partial_pages=sectors", "flash.page=64 KiB", "host.io_block=1 MiB"],
            ["ftl.partial_pages", "flash.page", "at most 32 KiB"],
        ),
        (
            "optimstore-r1",
            ["flash.plane_reads=alone"],
            ["pe.kind", "flash.plane_reads", "all planes of a die together"],
        ),
        (
            "optimstore-r1",
            ["pe.narrow_values=3"],
            ["pe.narrow_values", '"3"', "pe.clock_divider", "at most half of pe.clock_divider"],
        ),
    ],
)
def test_overrides_that_do_not_go_together(name, texts, words):
    refused(lambda: load_preset(name, texts), words)


@pytest.mark.parametrize(
    ("name", "text", "keys"),
    [
        (
            "newport",
            "pe.kind=per_plane",
            "pe.clock_divider pe.bus_values pe.dispatch pe.protection ftl.reservoir_fraction "
            "energy.pe_add energy.pe_multiply energy.register",
        ),
        (
            "smartssd",
            "pe.cipher=die",
            "pe.kind pe.clock_divider pe.bus_values pe.dispatch pe.protection "
            "ftl.reservoir_fraction energy.pe_add energy.pe_multiply energy.register",
        ),
        (
            "gen4-tlc",
            "isp.kind=cores",
            "isp.cores isp.frequency isp.ipc isp.flash dram.isp energy.isp_core energy.isp_idle",
        ),
        (
            "gen4-tlc",
            "isp.kind=fpga",
            "isp.engine isp.flash dram.isp energy.isp_core energy.isp_idle",
        ),
        ("optimstore-r1", "isp.kind=cores", "isp.cores isp.frequency isp.ipc"),
    ],
)
def test_enabling_a_processor_asks_for_all_of_its_constants_at_once(name, text, keys):
    """Each with an example; with all examples set it is enabled, without any one of them it is
    not, and a 0 that is stated counts."""
    message = refused(lambda: load_preset(name, [text]), [*keys.split(), "does not have"])
    examples = re.findall(r"([a-z]+\.\w+) = (\"[^\"]*\"|[\w.]+) \(", message)
    assert " ".join(key for key, _ in examples) == keys
    given = [f"{key}={value}".replace('"', "") for key, value in examples]
    cfg = load_preset(name, [text, *given])
    assert all(cfg.leaf(key).source == "set" for key, _ in examples)
    for i, left_out in enumerate(keys.split()):
        rest = [*given[:i], *given[i + 1 :]]
        refused(lambda rest=rest: load_preset(name, [text, *rest]), [left_out])
    if "energy.pe_add" in keys:
        load_preset(name, [text, *zero(given, "energy.pe_add")])


def zero(given, key):
    """The same settings, with 0 for one key."""
    return [f"{key}=0" if text.startswith(f"{key}=") else text for text in given]


def test_a_drive_with_processing_elements_keeps_its_constants_without_them():
    load_preset("optimstore-r1", ["pe.kind=none"])


def test_an_override_names_the_command_line_and_a_key_is_set_once():
    assert refused(lambda: load_preset("newport", ["flash.t_read=4"]), []).startswith("--set ")
    refused(
        lambda: load_preset("newport", ["flash.t_read=4 us", "flash.t_read_ps=5 us"]),
        ["flash.t_read is set twice"],
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("newprot", ['"newprot"', "nearest: newport", "or a path that ends in .toml"]),
        ("Newport", ["nearest: newport"]),
        ("", ["unknown preset", "use one of 7450, ", "or a path that ends in .toml"]),
        ("new-port", ["unknown preset", "nearest: newport (of 7450, "]),
        ("a\nb", ["unknown preset"]),
        ("missing.toml", ["missing.toml", "no such file"]),
    ],
)
def test_unknown_presets(name, words):
    refused(lambda: load_preset(name), words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[flash]\n", ["system.name is missing", "base ="]),
        ("[flsh]\n", ['unknown section "flsh"', "nearest: flash"]),
        ("bases = 1\n", ["nearest: base"]),
        ("flash = 1\n", ["is not a section", "[flash]"]),
        ("base = 1\n", ['base = "1"', "is not a name"]),
        ('base = "newprot"\n', ["base: ", "nearest: newport"]),
        ('base = "mine.toml"\n', ["refers back to this file"]),
        ('base = "gone.toml"\n', ["gone.toml", "no such file"]),
        ('base = "a\\u0000.toml"\n', ["is not a name"]),
        ("include = 1\n", ['include = "1"', "is not a name"]),
        ('include = "managment"\n', ["include: managment", "nearest: management"]),
        ('include = "gone.toml"\n', ["include: gone.toml", "no such file; parts are"]),
        (
            'include = "mine.toml"\n',
            ['contains include = "mine.toml"', "a part contains only sections"],
        ),
        ('includ = "management"\n', ["nearest: include"]),
        ("[flash\n", ["is not TOML"]),
        ("x = " + "[" * 5000, ["is not TOML"]),
        (BASE + f"[flash]\nt_reed = {leaf('1')}\n", ['"flash.t_reed"', "nearest: flash.t_read"]),
        (BASE + '[flash]\nt_read = "45 us"\n', ["flash.t_read", '"45 us"', "has no source"]),
        (
            BASE + "[flash]\nt_read = { value = '1 us', source = 'paper' }\n",
            ["flash.t_read", "ref is missing"],
        ),
        (
            BASE + "[flash]\nt_read = { value = '1 us', source = 'paper', ref = ' ' }\n",
            ["flash.t_read", 'ref is ""'],
        ),
        (
            BASE + "[flash]\nt_read = { value = '1 us', source = 'papre', ref = 'x' }\n",
            ['"papre"', "nearest: paper"],
        ),
        (
            BASE + "[flash]\nt_read = { value = '1 us', source = 'set', ref = 'x' }\n",
            ['unknown source "set"'],
        ),
        (
            BASE + "[flash]\nt_read = { value = '1 us', source = 3, ref = 'x' }\n",
            ["must be strings"],
        ),
        (
            BASE + "[flash]\nt_read = { value = '1 us', sauce = 'paper', ref = 'x' }\n",
            ['"sauce"', "nearest: source"],
        ),
        (
            BASE + "[flash]\nt_read = { value = '9 us', source = 'assumed', ref = 'a guess' }\n",
            ["flash.t_read", '"9 us"', "assumed but has no range"],
        ),
        (
            BASE + f"[flash]\nt_read = {leaf(repr('9 us'))[:-1]}, low = '1 us' }}\n",
            ["high is missing"],
        ),
        (
            BASE + f"[flash]\nt_read = {leaf(repr('9 us'))[:-1]}, low = '1 us', high = '8 us' }}\n",
            ['"9 us"', "outside its range", '"1 us" to "8 us"'],
        ),
        (
            BASE + f"[flash]\nt_read = {leaf(repr('9 us'))[:-1]}, low = '1', high = '8 us' }}\n",
            ["flash.t_read: low", "has no unit"],
        ),
        (BASE + f"[flash]\nt_read = {leaf(45)}\n", ["flash.t_read", '"45"', "has no unit"]),
        (BASE + f"[flash]\nt_read = {leaf('true')}\n", ["is not a number"]),
        (BASE + f"[flash]\nt_read = {leaf('1979-05-27')}\n", ["is not a number"]),
        (
            BASE + f"[flash]\nchannels = {leaf('nan')}\n",
            ["flash.channels", "is not a whole number"],
        ),
        (
            BASE + f"[flash]\nchannels = {leaf('0x' + 'f' * 9000)}\n",
            ["flash.channels", "is too large"],
        ),
        (BASE + f"[flash]\nchannels = {leaf('9' * 9000)}\n", ["is not TOML"]),
        (BASE + f"[flash]\ncell = {leaf(3)}\n", ["flash.cell", "is not a name"]),
        (
            BASE + f"[flash]\nt_read = {leaf(repr('1 us'))}\nt_read_ps = {leaf(repr('2 us'))}\n",
            ["flash.t_read is stated twice"],
        ),
        (BASE + "[isp]\ntraining_ratio_by_model = 3\n", ["is not a table"]),
        (BASE + f"[isp.training_ratio_by_model]\n'' = {leaf(1)}\n", ["is not a key"]),
        (BASE + f"[isp]\ncores = {leaf(0)}\n", ["mine.toml: isp.kind", "isp.cores above 0"]),
    ],
)
def test_files(content, words, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(content)
    message = refused(lambda: load_preset(path), words)
    assert message.startswith(str(path))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ('base = "newport"\n', ['contains base = "newport"', "a part contains only sections"]),
        (
            'include = "management"\n',
            ['contains include = "management"', "a part contains only sections"],
        ),
        ("[flsh]\n", ['unknown section "flsh"', "nearest: flash"]),
        (f"[flash]\nt_reed = {leaf('1')}\n", ['"flash.t_reed"', "nearest: flash.t_read"]),
        (f"[flash]\nt_read = {leaf(45)}\n", ["flash.t_read", '"45"', "has no unit"]),
        ("[flash]\nt_read = '45 us'\n", ["flash.t_read", "has no source"]),
        ("[flash\n", ["is not TOML"]),
    ],
)
def test_parts(part, words, tmp_path):
    """What is wrong in a part names the file, its part and the leaf."""
    path = tmp_path / "mine.toml"
    path.write_text(BASE + 'include = "part.toml"\n')
    (tmp_path / "part.toml").write_text(part)
    message = refused(lambda: load_preset(path), words)
    assert message.startswith(f"{path}: include: part.toml: ")


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    refused(lambda: load_preset(path), ["mine.toml", "is not UTF-8", "byte 0"])
    (tmp_path / "folder.toml").mkdir()
    refused(lambda: load_preset(tmp_path / "folder.toml"), ["folder.toml", "cannot be read"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"flash.t_reed": 1}, ["nearest: flash.t_read"]),
        ({"flash.t_read": -1}, ["flash.t_read", "is too small"]),
        ({"flash.t_read": 0}, ["flash.t_read", "too small"]),
        ({"flash.t_read": 2**63}, ["flash.t_read", "is too large"]),
        ({"flash.t_read": 1.5}, ["flash.t_read", "has no unit"]),
        ({"flash.t_read": True}, ["flash.t_read", "is not a number"]),
        ({"flash.t_read": "45"}, ["flash.t_read", "has no unit"]),
        ({"flash.multi_plane": 1}, ["flash.multi_plane", "true or false"]),
        ({"ftl.over_provisioning": float("nan")}, ["ftl.over_provisioning", "is not a number"]),
        ({"dram.isp": 9 * 10**9}, ["dram.isp", "must fit"]),
    ],
)
def test_replace_is_as_strict(changes, words):
    refused(lambda: load_preset("newport").replace(changes), words)


def test_lookups():
    config = load_preset("newport")
    refused(lambda: config.leaf("flash.t_reed"), ["nearest: flash.t_read"])
    refused(lambda: config.leaf("isp.training_ratio_by_model.resnet"), ["mobilenetv2"])
    assert pickle.loads(pickle.dumps(InputError("one line"))).args == ("one line",)
