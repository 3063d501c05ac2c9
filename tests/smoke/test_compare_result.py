"""Does a comparison write the same bytes wherever it runs, and nothing of the machine?"""

import contextlib
import getpass
import hashlib
import io
import json
import math
import os
import re
import socket
import struct
import sys
import zlib
from dataclasses import asdict
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from ondie import traces
from ondie.emu.analysis import monte_carlo as uncertainty
from ondie.emu.analysis.compare import compare
from ondie.emu.analysis.result_json import SCHEMA_VERSION, result_data
from ondie.emu.cli.figures import tornado
from ondie.emu.cli.main import main
from ondie.emu.config.config import Config, load_preset, preset_names, shown
from ondie.emu.paths.offload.options import Offload
from ondie.emu.results.tables import compare as report
from tests.smoke.commands import BY_SMALL, SMALL, SWUNG, apart, as_toml, files, here, swung_only

FILES = [
    "figure.pdf", "figure.png", "line.json", "result.json", "tornado.pdf", "tornado.png",
]  # fmt: skip
MORE = [("gpt-small", "newport"), ("mobilenetv2-digits", "laguna"), ("gpt2-124m", "smartssd")]


FEW = 4
"""Steps at small counts."""
WORDS = ["--seed", "7", "--out", "out", "--timeline", "out/line.json", "--quiet"]


def run(
    folder: Path, *arguments: str, wanted: list[str] | None = None, **env: str
) -> dict[str, bytes]:
    """`ondie compare ...` in a process of its own that starts in ``folder``: its files."""
    outcome = apart("compare", *arguments, *WORDS, cwd=folder, env=env)
    assert outcome.code == 0, outcome.err
    assert files(folder / "out") == (wanted or FILES)
    return {name: (folder / "out" / name).read_bytes() for name in wanted or FILES}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    return [tmp_path_factory.mktemp(name) for name in ("one", "another-folder")]


@pytest.fixture(scope="module")
def cfg(counts) -> Config:
    """The configuration of the run; at small counts a smaller drive, of which a swing simulates
    less."""
    return load_preset("optimstore-r1", counts(SMALL, ()))


@pytest.fixture(scope="module")
def first(folders, scale) -> dict[str, bytes]:
    """The files of one run, with the swing over every assumed constant. At small counts, where no
    other process is compared with it, it runs in this one, and has few steps."""
    if scale == "full":
        return run(folders[0], "mlp-fp16", PYTHONHASHSEED="0")
    with contextlib.chdir(folders[0]), pytest.raises(SystemExit) as end:
        main(["compare", "mlp-fp16", "--steps", str(FEW), *BY_SMALL, *WORDS])
    assert not end.value.code
    assert files(folders[0] / "out") == FILES
    return {name: (folders[0] / "out" / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def result(first) -> dict:
    return json.loads(first["result.json"])


# --- the same bytes


@pytest.mark.soak
def test_from_another_folder_and_environment(folders, first, scale):
    """And, at full counts, over the files of the run before, with the same seeds of everything."""
    if scale == "full":
        assert run(folders[0], "mlp-fp16", PYTHONHASHSEED="0") == first
    again = run(
        folders[1],
        "mlp-fp16",
        PYTHONHASHSEED="12345",
        TZ="Pacific/Kiritimati",
        LC_ALL="C",
        COLUMNS="40",
        HOSTNAME="elsewhere",
        OMP_NUM_THREADS="1",
        SOURCE_DATE_EPOCH="1",
    )
    assert {n: hashlib.sha256(x).hexdigest() for n, x in again.items()} == {
        n: hashlib.sha256(x).hexdigest() for n, x in first.items()
    }


@pytest.mark.one_in(5, start=1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "device"), MORE)
def test_other_traces_and_devices(tmp_path, scale, name, device):
    """Whole runs at full counts, of which `test_from_another_folder_and_environment` has the swing;
    else one step of the recorded gradients, twice."""
    if scale == "small":
        trace, cfg = traces.load(name), load_preset(device)
        some = None if trace.payload == "recorded" else ["in_storage"]
        one, two = (compare(trace, cfg, steps=1, swing=False, paths=some) for _ in range(2))
        assert result_data(one, 0) == result_data(two, 0)
        return
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    words = [name, "--device", device, "--no-swing"]
    wanted = [file for file in FILES if not file.startswith("tornado")]
    a = run(tmp_path / "a", *words, wanted=wanted, PYTHONHASHSEED="1")
    assert run(tmp_path / "b", *words, wanted=wanted, PYTHONHASHSEED="2") == a


def test_the_seed_is_recorded_and_changes_nothing_else(result, cfg, counts):
    assert result["seed"] == 7
    again = compare(traces.load("mlp-fp16"), cfg, steps=counts(FEW, None), swing=False)
    data = result_data(again, 8)
    assert data["seed"] == 8
    assert data["paths"] == result["paths"]


# --- nothing of the machine


def places(folders: list[Path]) -> set[str]:
    """Folders and files of this machine that a result could give away."""
    here_are = {*folders, os.getcwd(), Path.home(), sys.prefix, sys.executable, traces.DATA}
    return {str(place) for place in (*here_are, Path(report.__file__).parent)} - {"/"}


@pytest.mark.parametrize("name", ["result.json", "line.json"])
def test_no_trace_of_this_machine(first, folders, name):
    text = first[name].decode("ascii")
    assert not any(place in text for place in places(folders))
    assert not re.search(r"(?<![\w.])/(home|root|tmp|usr|opt|work|var|proc|Users)\b", text)
    for word in {socket.gethostname(), socket.getfqdn(), getpass.getuser()} - {""}:
        assert not re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", text), word
    assert not re.search(r"(?<!\d)20\d\d-[01]\d-[0-3]\d", text)  # a date
    assert not re.search(r"(?<!\d)[0-2]\d:[0-5]\d(:[0-5]\d)?(?!\d)", text)  # a time of day


def test_no_trace_of_this_machine_in_the_figure(first, folders):
    text = first["figure.pdf"].decode("latin-1") + "".join(unpacked(first["figure.pdf"]))
    assert not any(place in text for place in places(folders))
    for key in ("CreationDate", "ModDate", "Producer", "Creator", "Author"):
        assert f"/{key}" not in text
    for key in (b"tEXt", b"iTXt", b"tIME"):
        assert key not in first["figure.png"]


def unpacked(pdf: bytes) -> list[str]:
    """The compressed streams of a PDF as text."""
    found = []
    for stream in re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL):
        decoder = zlib.decompressobj()
        try:
            found.append(decoder.decompress(stream).decode("latin-1"))
        except zlib.error:  # not every stream is compressed
            found.append(stream.decode("latin-1"))
    return found


def test_a_preset_in_a_file_leaves_no_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(as_toml(load_preset("newport")), "utf-8")
    cfg = load_preset(path, SMALL)
    c = compare(traces.load("mlp-fp16"), cfg, steps=1, swing=False, paths=["in_storage"])
    assert str(tmp_path) not in json.dumps(result_data(c, 0))
    assert "mine.toml" not in json.dumps(result_data(c, 0))


@pytest.mark.soak
def test_a_trace_in_a_file_leaves_no_path(tmp_path, capsys, monkeypatch):
    """A copy of a shipped trace under another name gives the same result.json."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copy.h5").write_bytes((traces.DATA / "mlp-fp16.h5").read_bytes())
    words = ["--steps", "2", "--no-swing", "--quiet"]
    here(capsys, "compare", "copy.h5", *words, "--out", "a")
    here(capsys, "compare", "mlp-fp16", *words, "--out", "b")
    assert (tmp_path / "a/result.json").read_bytes() == (tmp_path / "b/result.json").read_bytes()


# --- its form


def test_the_form(result, counts):
    assert result["schema_version"] == SCHEMA_VERSION == 1
    assert set(result) == {
        "schema_version", "ondie_version", "seed", "trace", "options", "configuration",
        "configuration_sha256", "assumed", "answer", "headline", "headline_ratios", "notes",
        "paths", "uncertainty", "step_times",
    }  # fmt: skip
    assert re.fullmatch(r"\d+\.\d+\.\d+", result["ondie_version"])
    trace = traces.load("mlp-fp16")
    assert result["trace"] == {
        "name": "mlp-fp16",
        "sha256": hashlib.sha256((traces.DATA / "mlp-fp16.h5").read_bytes()).hexdigest(),
        "payload": "recorded",
        "timing_source": "recorded",
        "op": "momentum",
        "n_params": trace.n_params,
        "steps": counts(FEW, len(trace.steps)),
    }
    options = dict(result["options"])
    assert options.pop("offload") == json.loads(json.dumps(asdict(Offload())))
    assert options == {
        "weights_up": "fp32", "form": "canonical", "format": "fp32", "batch": "same",
        "host_batch": None, "drive_batch": None, "allreduce": "ring",
        "compression": 2.0, "forward_s": None, "backward_s": None,
        "cores_taken": 0.0, "slowdown": None, "step_times": None,
    }  # fmt: skip


def test_the_text_is_plain_json(first):
    text = first["result.json"].decode("ascii")

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    def once(pairs):
        assert len(dict(pairs)) == len(pairs), "a key twice"
        return dict(pairs)

    data = json.loads(text, parse_constant=refuse, object_pairs_hook=once)
    assert text == json.dumps(data, indent=1, sort_keys=True) + "\n"


def ran(data: dict) -> list[dict]:
    return [path for path in data["paths"] if path["status"] == "ok"]


def test_every_metric_has_a_value_and_a_unit(result):
    units = {
        "s", "samples", "samples/s", "param/s", "B", "pages", "operations", "blocks", "erases",
        "1", "resource", "bool", "J/step", "J/sample", "steps", "years", "W",
    }  # fmt: skip
    names = [set(path["metrics"]) for path in ran(result)]
    assert len(names) == 4 and all(x == names[0] and len(x) > 30 for x in names)
    for path in ran(result):
        for name, metric in path["metrics"].items():
            assert set(metric) == {"value", "unit"}, name
            assert metric["unit"] in units, name
            value = metric["value"]
            if metric["unit"] == "resource":
                assert isinstance(value, str) and value
            elif metric["unit"] == "bool":
                assert isinstance(value, bool)
            else:
                assert isinstance(value, int | float) and math.isfinite(value) and value >= 0, name
            for ending, unit in (("_s", ("s", "samples/s", "param/s")), ("_bytes", ("B",)),
                                 ("_j", ("J/step",)), ("_per_sample", ("J/sample",)),
                                 ("_w", ("W",))):  # fmt: skip
                if name.endswith(ending):
                    assert metric["unit"] in unit, name


def test_a_path_that_did_not_run_says_why(result):
    (stannis,) = (path for path in result["paths"] if path["status"] != "ok")
    assert stannis == {
        "name": "stannis",
        "title": stannis["title"],
        "status": "n/a",
        "reason": "the drive has no processor that can train (isp.kind = fpga); set "
        "isp.kind=cores and its keys, or use --device csd-pe",
    }


def test_a_path_that_cannot_run_is_a_row_unless_it_was_named(capsys, tmp_path):
    words = ["compare", "mlp-fp16", "--device", "newport", "--steps", "1", "--no-swing"]
    outcome = here(capsys, *words, *BY_SMALL, "--out", tmp_path)
    assert outcome.code == 0
    assert re.search(r"on_die +n/a ", outcome.out)
    assert "on_die: n/a: no processing elements on the dies (pe.kind = none)" in outcome.out
    data = json.loads((tmp_path / "result.json").read_text())
    assert [p["status"] for p in data["paths"]].count("n/a") == 1
    assert next(p for p in data["paths"] if p["name"] == "on_die")["reason"].startswith("no proc")


# --- the configuration in it


def test_the_configuration_has_its_hash(result, cfg):
    text = json.dumps(result["configuration"], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == result["configuration_sha256"] == cfg.sha256


def test_the_configuration_reloads(tmp_path):
    """Written out as a preset file from the result alone, it is the same configuration."""
    base = load_preset("optimstore-r1")
    c = compare(traces.load("mlp-fp16"), base, steps=1, swing=False, paths=["host_offload"])
    result = json.loads(json.dumps(result_data(c, 0)))
    lines = []
    for section, keys in result["configuration"].items():
        lines.append(f"[{section}]")
        for key, leaf in keys.items():
            if "value" in leaf:
                lines.append(f"{key} = {inline(leaf)}")
            else:
                lines += [f"{key}.{row} = {inline(entry)}" for row, entry in leaf.items()]
    path = tmp_path / "again.toml"
    path.write_text("\n".join(lines), "utf-8")
    again = load_preset(path)
    assert again == base
    assert again.sha256 == result["configuration_sha256"]


BASE_UNITS = {
    "ps": "ps", "bytes": "B", "bytes_per_s": "B/s", "hz": "Hz", "mw": "mW", "fj": "fJ",
    "fj_per_bit": "fJ/bit", "params_per_s": "param/s", "flop_per_s": "FLOP/s",
}  # fmt: skip


def inline(leaf: dict) -> str:
    """A leaf of result.json as TOML's inline table."""

    def one(value):
        if isinstance(value, bool) or not isinstance(value, int) or "unit" not in leaf:
            return json.dumps(value)
        return f'"{value} {BASE_UNITS[leaf["unit"]]}"'

    fields = {name: one(leaf[name]) for name in ("value", "low", "high") if name in leaf}
    fields |= {name: json.dumps(leaf[name], ensure_ascii=False) for name in ("source", "ref")}
    return "{ " + ", ".join(f"{name} = {text}" for name, text in fields.items()) + " }"


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_reloads(name, tmp_path):
    cfg = load_preset(name)
    (tmp_path / "again.toml").write_text(as_toml(cfg), "utf-8")
    again = load_preset(tmp_path / "again.toml")
    assert (again, again.sha256) == (cfg, cfg.sha256)


def test_an_override_changes_the_hash_and_is_marked():
    cfg = load_preset("optimstore-r1", ["flash.t_read=31 us"])
    c = compare(traces.load("mlp-fp16"), cfg, steps=1, swing=False)
    data = result_data(c, 0)
    assert data["configuration"]["flash"]["t_read"]["value"] == 31_000_000
    assert data["configuration"]["flash"]["t_read"]["source"] == "set"
    assert data["configuration_sha256"] == cfg.sha256 != load_preset("optimstore-r1").sha256


# --- the figure


def test_the_figure_can_be_read(first):
    png = first["figure.png"]
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and png.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", png[16:24])
    assert width > 1000 and height > 400
    pixels = matplotlib.image.imread(io.BytesIO(png))
    colours = np.unique((pixels[..., :3] * 255).astype(int) @ (1 << 16, 1 << 8, 1))
    assert len(colours) > 20  # bars of several colours, not an empty page
    assert first["figure.pdf"].startswith(b"%PDF-1.") and first["figure.pdf"].rstrip().endswith(
        b"%%EOF"
    )


def test_the_tornado_can_be_read(first, result):
    """A panel for each of the three ratios: twelve bars at most, the widest of result.json."""
    png = first["tornado.png"]
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and first["tornado.pdf"].startswith(b"%PDF-1.")
    width, height = struct.unpack(">II", png[16:24])
    assert width > 1200 and height > 900
    for key in ("/CreationDate", "/ModDate", "/Producer"):
        assert key not in first["tornado.pdf"].decode("latin-1")
    bars = result["uncertainty"]["tornado"]
    assert len(bars) > 20 and len({bar["key"] for bar in bars}) == len(bars)
    cfg = load_preset("optimstore-r1")
    for bar in bars:
        leaf = cfg.leaf(bar["key"])
        texts = [shown(x, leaf.unit) for x in (leaf.low, leaf.value, leaf.high)]
        assert [bar["low"], bar["typical"], bar["high"]] == texts and bar["source"] == leaf.source
    cfg = swung_only(load_preset("optimstore-r1", SMALL), *SWUNG)
    c = compare(traces.load("mlp-fp16"), cfg, steps=1)
    for of, typical in zip(
        (lambda b: b.energy, lambda b: b.drive, lambda b: b.speedup), c.odds.ratios, strict=True
    ):
        drawn = tornado.widest(c.odds, of, typical)
        widths = [uncertainty.width(of(bar), typical) for bar in drawn]
        assert 2 <= len(drawn) <= 12 and widths == sorted(widths, reverse=True)
        rest = [b for b in c.odds.bars if b not in drawn]
        assert all(uncertainty.width(of(b), typical) <= max(widths[-1], 1.005) for b in rest)


def test_the_odds_are_written(result):
    found = result["uncertainty"]
    assert (found["baseline"], found["rival"], found["seed"]) == ("host_offload", "on_die", 7)
    for answers in found["energy_ratio"].values():
        for a in answers.values():
            assert 0 <= a["probability_rival_takes_less"] <= 1
            low, middle, high = a["quantiles_5_50_95"]
            assert 0 < low <= middle <= high
            assert all(x == float(f"{x:.6g}") for x in (low, middle, high))
    both = ["host.update_power", "host.wait_power"]
    varied = [(x["vary"], x["keys"]) for x in found["host_power_where_the_winner_changes"]]
    alone = [("alone", [key]) for key in both]
    assert varied == [("in proportion", both), ("equal", both), *alone]


def test_no_swing_no_odds():
    c = compare(traces.load("mlp-fp16"), load_preset("optimstore-r1"), steps=1, swing=False)
    assert c.odds is None and result_data(c, 0)["uncertainty"] is None


@pytest.mark.soak
def test_a_longer_bar_moves_the_figure(tmp_path):
    from ondie.emu.cli.figures.compare import draw

    trace = traces.load("mlp-fp16")
    cfg = load_preset("optimstore-r1", SMALL)
    one = draw(compare(trace, cfg, steps=1, swing=False))
    again = draw(compare(trace, cfg, steps=1, swing=False))
    other = draw(compare(trace, cfg.replace({"flash.t_program": "9 ms"}), steps=1, swing=False))
    assert one == again
    assert one["png"] != other["png"] and one["pdf"] != other["pdf"]
