"""Do the drive, the script and the formulas of "Your own model and drive" work as printed?"""

import json
import re
import shlex
import sys

import pytest

from ondie.emu.config.config import load_preset
from tests.docs.generate import ROOT
from tests.docs.test_small_drive import block
from tests.smoke.commands import here

PAGE = "own-model.md"
TEXT = (ROOT / "docs" / PAGE).read_text("utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The drive and the script of the page, in the current folder."""
    for language, name in (("toml", "my-drive.toml"), ("python", "train.py")):
        (tmp_path / name).write_text(block(ROOT, PAGE, language, name), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(start):
    """The words of the first printed command that begins with ``start``."""
    return shlex.split(next(x for x in re.findall(r"^\$ ondie (.*)", TEXT, re.M) if start in x))


@pytest.mark.soak
def test_the_drive_is_compared(folder, capsys):
    words = command("compare gpt-small --device my-drive.toml")
    done = here(capsys, *words, "--out", "out")
    assert (done.code, done.err) == (0, "") and "on my-drive: 1 step" in done.out
    data = json.loads((folder / "out/result.json").read_text())
    paths = {path["name"]: path for path in data["paths"]}
    assert {"host_offload", "in_storage", "on_die", "stannis"} <= set(paths)
    swung = {row["key"] for row in data["assumed"]["swing"]}
    assert {"flash.t_program", "energy.nand_program"} <= swung
    assert not swung & {"host.adam", "host.compute_power", "flash.t_read", "system.devices"}


def test_the_host_decides_between_paths(folder, capsys):
    """The drive takes least with on_die, the system with in_storage."""
    words = command("--paths host_offload,in_storage,on_die")
    done = here(capsys, *words, "--no-swing", "--json", "result.json", "--quiet")
    assert (done.code, done.err) == (0, "")
    data = json.loads((folder / "result.json").read_text())
    answer = data["answer"]
    assert answer["fastest"]["best"] == answer["least_energy"]["best"] == "in_storage"
    rows = {row["name"]: row["drives_j_per_sample"][1] for row in answer["strategies"]}
    assert min(rows, key=rows.get) == "on_die"


def test_the_formulas_give_the_drive(folder):
    cfg = load_preset("my-drive.toml")
    flash = cfg.flash
    planes = flash.channels * flash.dies_per_channel * flash.planes_per_die
    block_bytes = flash.pages_per_block * flash.page_bytes
    assert flash.blocks_per_plane == -(-(2**41) // (planes * block_bytes))
    size = planes * block_bytes * flash.blocks_per_plane
    assert cfg.ftl.over_provisioning == pytest.approx(
        1 - cfg.system.capacity_bytes / size, abs=1e-3
    )
    rate = planes * flash.page_bytes / (flash.t_program_ps / 1e12)
    assert rate == pytest.approx(2.1e9, rel=0.01)

    def fj(key):
        return cfg.leaf(key).value

    idle_w = fj("energy.controller") / 1e3
    rest = (7.4 - idle_w) / (8 * 2.1e9) * 1e15
    rest -= fj("energy.channel") + fj("energy.ecc") + fj("link.energy") + 2 * fj("energy.dram")
    assert fj("energy.nand_program") == pytest.approx(rest, rel=0.01)


def test_the_table_of_traces(capsys):
    rows = re.findall(r"^\| `([\w.-]+)` \| ([\d,]+) \| `(\w+)` \|", TEXT, re.M)
    assert len(rows) == 6
    for name, params, op in rows:
        out = here(capsys, "trace", "info", name).out
        assert re.search(rf"trainable parameters +│ {params} ", out), name
        assert re.search(rf"optimizer operation +│ {op} ", out), name


def test_a_base_without_elements_lists_their_keys(folder, capsys):
    done = here(capsys, *command("pe.kind=per_plane"))
    assert done.code == 2
    for key in ("pe.clock_divider", "pe.dispatch", "ftl.reservoir_fraction", "energy.register"):
        assert key in done.err


@pytest.mark.soak
def test_the_script_is_recorded(folder, capfd):
    pytest.importorskip("torch", reason="torch is not installed")
    for start in ("record run.h5", "record bare.h5"):
        words = command(start)
        words[words.index("python")] = sys.executable
        assert here(capfd, *words).code == 0
    assert (folder / "run.h5").stat().st_size > 7e6
    assert (folder / "bare.h5").stat().st_size < 30e3
    words = command("compare bare.h5")
    done = here(capfd, *words, "--json", "result.json", "--quiet")
    assert (done.code, done.err) == (0, "")
    rule = json.loads((folder / "result.json").read_text())["step_times"]["text"]
    assert rule == "--forward and --backward"
