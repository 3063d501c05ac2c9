"""Is a sweep what single comparisons give, and does it say why a value cannot run?"""

import json

import pytest

from ondie.emu.analysis import sweep as sweeping
from ondie.emu.cli.figures.sweep import draw
from ondie.emu.config.config import load_preset
from ondie.emu.results.tables.sweep import capacities, show
from ondie.emu.units import InputError
from ondie.emu.validate import model
from tests.smoke.commands import BY_SMALL, SMALL, files, here, refused

PATHS = ("host_offload", "on_die")


@pytest.fixture(scope="module")
def two() -> sweeping.Sweep:
    """Queue depths by dies."""
    cfg = load_preset("optimstore-r1", SMALL)
    along = sweeping.axes(["host.io_queue_depth=1,8", "flash.dies_per_channel=1,2,200"], cfg)
    return sweeping.sweep(model("adam", 100_000), cfg, along)


def test_rows_are_single_runs(capsys, tmp_path):
    """To the last bit, on the command line."""
    words = ["compare", "mlp-fp16", "--steps", "1", "--quiet", *BY_SMALL]
    swept = here(
        capsys, *words, "--sweep", "flash.t_program=100 us,200 us", "--out", tmp_path / "s"
    )
    assert swept.code == 0, swept.err
    assert files(tmp_path / "s") == ["sweep.json", "sweep.pdf", "sweep.png"]
    data = json.loads((tmp_path / "s/sweep.json").read_text())
    assert (data["keys"], data["values"]) == (["flash.t_program"], [["100 us", "200 us"]])
    times = set()
    for value in ("100 us", "200 us"):
        out = tmp_path / value.replace(" ", "")
        setting = f"flash.t_program={value}"
        assert here(capsys, *words, "--no-swing", "--set", setting, "--out", out).code == 0
        single = json.loads((out / "result.json").read_text())
        rows = [row for row in data["rows"] if row["values"] == [value]]
        assert [row["path"] for row in rows] == [path["name"] for path in single["paths"]]
        for row, path in zip(rows, single["paths"], strict=True):
            if path["status"] != "ok":
                assert row["reason"] == path["reason"] and row["update_s"] is None
                continue
            m = {name: entry["value"] for name, entry in path["metrics"].items()}
            assert (row["update_s"], row["step_s"]) == (m["update_s"], m["step_s"])
            assert row["energy_drive_j"][1] == m["energy_drive_typical_j"]
            assert row["energy_drive_and_host_j"][2] == m["energy_drive_and_host_high_j"]
            assert row["samples_per_s"] == m["samples_per_s"]
            assert row["energy_step_j"][1] == m["energy_all_typical_j"]
            assert row["energy_sample_j"][0] == m["energy_all_low_j_per_sample"]
            assert (row["bound_by"], row["bound_by_share"]) == (m["bound_by"], m["bound_by_share"])
            times.add(row["update_s"])
    assert len(times) > 4  # the value is felt


def test_every_point_has_its_rows(two):
    points = [row.values for row in two.rows]
    assert set(points) == {(q, d) for q in ("1", "8") for d in ("1", "2", "200")}
    for row in two.rows:
        if row.values[1] == "200":
            assert row.path == "all" and "the maximum is 62" in row.reason
        elif row.path == "stannis":
            assert row.update_s is None and "isp.kind = fpga" in row.reason
        else:
            assert row.reason is None and 0 < row.update_s <= row.step_s
    ours = {(r.values, r.path): r for r in two.rows}
    deeper, shallow = (ours[(q, "2"), "host_offload"].update_s for q in ("8", "1"))
    assert deeper < shallow
    assert ours[("8", "2"), "on_die"].update_s < ours[("8", "1"), "on_die"].update_s
    base, rival = (ours[("8", "2"), name] for name in PATHS)
    assert rival.speedup == base.update_s / rival.update_s and base.speedup == 1


def test_capacity_follows_the_flash_at_every_point(two, capsys):
    """Half of the dies, half of the capacity. One that is given stays, and a point whose flash it
    does not fit says so."""
    each = two.cfg.system.capacity_bytes // 2
    sizes = {row.values[1]: row.capacity_bytes for row in two.rows if row.update_s is not None}
    assert sizes == {"1": each, "2": two.cfg.system.capacity_bytes}
    words = capacities(two)
    assert words is not None and words.startswith("system.capacity follows the flash: ")
    cfg = load_preset("optimstore-r1", [*SMALL, "system.capacity=100 MB"])
    along = sweeping.axes(["flash.dies_per_channel=1,2"], cfg)
    given = sweeping.sweep(model("adam", 100_000), cfg, along, paths=PATHS)
    assert {row.capacity_bytes for row in given.rows} == {None, 100_000_000}
    assert given.rows[0].reason is not None and "must fit the flash" in given.rows[0].reason
    assert capacities(given) is None


def test_what_is_printed(two, capsys):
    from ondie.emu.cli.console import console

    show(two, console())
    out = capsys.readouterr().out
    assert "for each host.io_queue_depth and flash.dies_per_channel" in out
    first, whole = out.split("Time and energy per step")
    assert first.count("│ host_offload ") == whole.count("│ host_offload ") == 4
    assert out.count("n/a") >= 2
    reason = "flash.dies_per_channel = 200: a channel would have 200 dies"
    assert f"all at 1, 200; 8, 200: n/a: {reason}" in " ".join(out.split())


def test_the_figure_has_the_numbers(two):
    import dataclasses

    images = draw(two)
    assert images["png"].startswith(b"\x89PNG") and images["pdf"].startswith(b"%PDF")
    assert draw(two) == images
    rows = tuple(
        dataclasses.replace(row, update_s=row.update_s * 2) if row.update_s else row
        for row in two.rows[:3]
    )
    assert draw(dataclasses.replace(two, rows=rows + two.rows[3:]))["png"] != images["png"]


def test_drives_as_a_key(capsys, tmp_path):
    """Twice the drives update in half of the time, where the drives bind."""
    words = ["compare", "gpt2-124m", "--steps", "1", "--paths", "in_storage", "--out", tmp_path]
    assert here(capsys, *words, "--device", "newport", "--sweep", "system.devices=1,2").code == 0
    rows = json.loads((tmp_path / "sweep.json").read_text())["rows"]
    assert [row["values"] for row in rows] == [["1"], ["2"]]
    assert rows[0]["update_s"] == pytest.approx(2 * rows[1]["update_s"], rel=0.01)


def test_formats_as_a_key(capsys, tmp_path):
    """Rows are single runs with `--format`; a path that cannot keep one says so, named or not."""
    words = ["compare", "mlp-fp16", "--steps", "1", "--quiet", *BY_SMALL]
    paths = ["--paths", "host_offload,in_storage,on_die"]
    swept = here(
        capsys, *words, *paths, "--sweep", "format=fp32,bf16_all,int8_dynamic", "--sweep",
        "pe.narrow_values=0,2", "--out", tmp_path / "s",
    )  # fmt: skip
    assert swept.code == 0, swept.err
    data = json.loads((tmp_path / "s/sweep.json").read_text())
    assert data["keys"] == ["format", "pe.narrow_values"]
    assert data["values"] == [["fp32", "bf16_all", "int8_dynamic"], ["0", "2"]]
    found = {(*row["values"], row["path"]): row for row in data["rows"]}
    for (name, lanes, path), row in found.items():
        runs = path != "on_die" or name == "fp32" or (name == "bf16_all" and lanes == "2")
        assert (row["update_s"] is not None) == runs
        assert runs or row["reason"].startswith(f"format {name}: ")
    out = tmp_path / "one"
    assert here(capsys, *words, "--no-swing", "--format", "int8_dynamic", "--out", out).code == 0
    single = json.loads((out / "result.json").read_text())
    assert single["options"]["format"] == "int8_dynamic"
    for path in single["paths"]:
        row = found.get(("int8_dynamic", "0", path["name"]))
        if row is None or path["status"] != "ok":
            continue
        m = {name: entry["value"] for name, entry in path["metrics"].items()}
        for key, name in (("update_s",) * 2, ("speedup", "update_speedup"), ("step_s",) * 2):
            assert row[key] == m[name]
        assert row["update_share"] == m["update_s"] / m["step_s"]
        assert path["weights"]["equal_bits_to_reference"] == path["weights"]["elements"]
    assert (
        found["bf16_all", "0", "in_storage"]["energy_drive_j"]
        < (found["fp32", "0", "in_storage"]["energy_drive_j"])
    )


def test_nothing_that_can_run(capsys, tmp_path):
    words = ["compare", "mlp-fp16", "--device", "newport", "--steps", "1", "--out", tmp_path / "o"]
    outcome = here(capsys, *words, "--paths", "on_die", "--sweep", "flash.t_read=50 us,60 us")
    refused(outcome, "on_die", "pe.kind = none")
    outcome = here(capsys, *words, "--sweep", "flash.dies_per_channel=64,128")
    refused(outcome, "--sweep: no path can run at any point", "the maximum is 62")
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("host.io_queue_deth=1,2", ("--sweep", "host.io_queue_depth")),
        ("host.io_queue_depth", ("the values are missing", "host.io_queue_depth=1,8,32")),
        ("host.io_queue_depth=1,,2", ("a value is empty",)),
        ("host.io_queue_depth=1,x", ("host.io_queue_depth", '"x"')),
        ("host.io_queue_depth=1,1", ("'1'", "named twice")),
        ("flash.t_read=30 us,30000 ns", ("named twice",)),
        ("flash.channels=0,8", ("flash.channels", "must be at least 1")),
        ("flash.t_read=30 GB", ("flash.t_read", "is a size, not a time")),
        ("format=fp32,bf16_al", ("--sweep format", "'bf16_al'", "nearest: bf16_all")),
        ("format=fp32,fp32", ("'fp32'", "named twice")),
        ("format=", ("a value is empty",)),
    ],
)
def test_what_is_refused(capsys, tmp_path, text, words):
    outcome = here(capsys, "compare", "mlp-fp16", "--sweep", text, "--out", tmp_path / "out")
    refused(outcome, *words)
    assert files(tmp_path) == []


def test_too_much_is_refused(capsys, tmp_path):
    words = ["compare", "mlp-fp16", "--out", tmp_path / "out"]
    keys = ("flash.channels=4,8", "host.io_queue_depth=1,2", "flash.t_read=1 us,2 us")
    refused(here(capsys, *words, *(x for key in keys for x in ("--sweep", key))), "at most 2")
    many = ",".join(str(i) for i in range(1, 66))
    with pytest.raises(InputError, match="65 points; at most 64"):
        sweeping.axes([f"host.io_queue_depth={many}"], load_preset("newport"))
    line = tmp_path / "line.json"
    outcome = here(capsys, *words, "--sweep", keys[0], "--timeline", line)
    refused(outcome, "--timeline", "cannot be combined with --sweep")
    for key in (keys[0], "format=fp32,bf16"):
        again = here(capsys, *words, "--sweep", key, "--sweep", key)
        refused(again, "--sweep", "twice")
    assert files(tmp_path) == []


def test_axes_are_checked_against_the_configuration():
    with pytest.raises(InputError, match="unknown key"):
        sweeping.axes(["flash.nothing=1"], load_preset("newport"))
    (axis,) = sweeping.axes(["flash.t_read_ps=30 us, 40000 ns"], load_preset("newport"))
    assert (axis.key, axis.texts) == ("flash.t_read", ("30 us", "40 us"))
