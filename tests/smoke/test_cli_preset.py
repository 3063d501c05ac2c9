"""`ondie preset new` and `check`: a file to edit, and a data sheet beside its simulation."""

import re
import tomllib

import pytest

from ondie.emu.config.config import diff, load_preset, preset_names
from ondie.emu.config.datasheet import read_datasheet
from ondie.emu.config.new_preset import preset_text
from tests.smoke.commands import here


def uncommented(text):
    """The file with every value stated."""
    return re.sub(r"^# (?=[\w.\"-]+ = |\[datasheet|\]$|  \{ what)", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", preset_names())
def test_a_new_preset_is_its_base(name, tmp_path):
    """As written, and with every line stated."""
    base = load_preset(name)
    text = preset_text(base, name, "mine")
    stated = tomllib.loads(uncommented(text))
    assert {"base", "datasheet", *base.resolved()} == set(stated)
    for kind, content in (("comments", text), ("stated", uncommented(text))):
        path = tmp_path / f"{kind}.toml"
        path.write_text(content)
        found = load_preset(str(path))
        assert [(row.key, row.b.value) for row in diff(base, found)] == [("system.name", "mine")]
    for leaf in found.leaves():
        if leaf.key != "system.name":
            before = base.leaf(leaf.key)
            assert (leaf.low, leaf.high, leaf.ref) == (before.low, before.high, before.ref)
    sheet = read_datasheet(stated["datasheet"], "mine")
    assert sheet.capacity_bytes == base.system.capacity_bytes and len(sheet.figures) == 9


def test_new_writes_what_check_reads(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = here(capsys, "preset", "new", "mine.toml", "--from", "gen4-tlc")
    assert (done.code, done.err) == (0, "") and "ondie preset check mine.toml" in done.out
    again = here(capsys, "preset", "new", "mine.toml", "--from", "gen4-tlc")
    assert again.code == 2 and "mine.toml: exists; use --force" in again.err
    (tmp_path / "mine.toml").write_text(uncommented((tmp_path / "mine.toml").read_text()))
    assert here(capsys, "preset", "new", "second.toml", "--from", "mine.toml").code == 0
    assert load_preset("second.toml").sha256 != load_preset("mine.toml").sha256
    assert [row.key for row in diff(load_preset("mine.toml"), load_preset("second.toml"))] == [
        "system.name"
    ]


SHEET = """
base = "970-pro"
[system]
name = { value = "mine", source = "derived", ref = "a test" }
[datasheet]
source = "a test"
capacity = "512 GB"
state = "fresh"
figures = [
  { what = "sequential_read", value = "3300 MB/s", block = "128 KiB", queue_depth = 32 },
  { what = "read_latency", value = "50 us", block = "4 KiB" },
]
"""


def test_check_names_what_limits_each_figure(tmp_path, capsys, monkeypatch):
    """The figures of the sheet, then those that it does not state."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(SHEET)
    done = here(capsys, "preset", "check", "mine.toml", "--out", "found", "--csv", "found.csv")
    assert (done.code, done.err) == (0, "")
    assert "+1.8%" in done.out and "link.up = 3.36 GB/s, 100% of the time" in done.out
    assert "+26.9%" in done.out and "flash.t_read = 29.76 us" in done.out
    import json

    found = json.loads((tmp_path / "found" / "result.json").read_text())["figures"]
    assert [row["figure"].split(",")[0] for row in found] == [
        "sequential read", "read latency", "sequential write", "random read", "random write",
        "write latency", "read power", "write power", "bytes written",
    ]  # fmt: skip
    assert [row["stated"] is None for row in found] == [False] * 2 + [True] * 7
    rows = (tmp_path / "found.csv").read_text().splitlines()
    assert len(rows) == 1 + len(found) and rows[0].startswith("figure,unit,stated,simulated")


BAD = [
    ("3300 MB/s", "3 GiB/s", "is in powers of 1024; state both in the same form"),
    ("512 GB", "480 GB", "capacity = 480 GB, but system.capacity = 512 GB"),
    ("3300 MB/s", "3300", 'value: "3300" has no unit'),
    ("sequential_read", "sequential", "nearest: sequential_read"),
    ('block = "4 KiB"', "queue_depth = 1", "unknown key"),
    ("50 us", "0 us", "must be above 0"),
    ('state = "fresh"', 'state = "new"', "fresh"),
    ("128 KiB", "100 KB", "power of two"),
    ("queue_depth = 32", "queue_depth = 0", "from 1 to 65535"),
]


@pytest.mark.parametrize(("old", "new", "says"), BAD, ids=[new for _, new, _ in BAD])
def test_a_bad_sheet_is_refused(old, new, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(SHEET.replace(old, new))
    done = here(capsys, "preset", "check", "mine.toml", "--out", "found")
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1, done.err
    assert not (tmp_path / "found").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("check", "gen4-tlc", "--set", "system.capacity=2TB"), "contradicts the geometry"),
        (("check", "gen4-tlc", "--set", "system.capacity=4.2TB"), "over_provisioning = 0.0454"),
        (("new", "mine.json", "--from", "gen4-tlc"), "must end in .toml"),
        (("new", "mine.toml", "--from", "gen4"), "nearest: gen4-tlc"),
        (("new", "mine.toml"), "--from"),
    ],
)
def test_bad_input(arguments, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = here(capsys, "preset", *arguments)
    assert done.code == 2 and says in done.err, done.err
    assert done.err.count("\n") == 1 and not list(tmp_path.glob("*.toml"))
