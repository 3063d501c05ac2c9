"""Do `ondie ndpipe npe` and `scale` print, write and draw what the models give, and refuse the
rest?"""

import json

import pytest

from ondie.emu.cli.figures import ndpipe as drawing
from ondie.emu.ndpipe import cost
from ondie.emu.ndpipe.architectures import network
from tests.smoke.commands import here, refused


def test_inference(capsys, tmp_path):
    path = tmp_path / "rows.json"
    words = ("--photos", "64", "--batch", "8", "--large-batch", "16")
    done = here(capsys, "ndpipe", "npe", *words, "--json", path)
    assert (done.code, done.err) == (0, "") and "accelerator" in done.out
    rows = json.loads(path.read_text())["rows"]
    assert [len(row["optimizations"]) for row in rows] == list(range(6))
    assert rows[0]["photos_per_s"] < rows[-1]["photos_per_s"]
    few = here(capsys, "ndpipe", "npe", *words, "--with", "quantized,pipelining", "--json", "-")
    names = [row["optimizations"] for row in json.loads(few.out)["rows"]]
    assert names == [[], ["pipelining"], ["pipelining", "quantized"]]
    none = here(capsys, "ndpipe", "npe", *words, "--with", "none", "--json", "-")
    assert json.loads(none.out)["rows"] == rows[:1]


def test_three_systems_over_the_stores(capsys, tmp_path):
    done = here(capsys, "ndpipe", "scale", "--stores", "3", "--out", tmp_path)
    assert (done.code, done.err) == (0, "") and "2024-04" in done.out
    data = json.loads((tmp_path / "result.json").read_text())
    assert [(row["stores"], row["system"]) for row in data["rows"]] == [
        (count, system) for count in (1, 2, 3) for system in cost.SYSTEMS
    ]
    found = cost.point("ndpipe", network("resnet50"), 3)
    assert data["rows"][7]["dollars"] == found.dollars and data["rows"][7]["joules"] == found.joules
    assert data["servers"]["tuner"]["price"] == 3.06
    assert (tmp_path / "figure.png").exists() and (tmp_path / "figure.pdf").exists()


def test_the_figure_shows_the_points(capsys, tmp_path):
    images = []
    for sent in ("inputs", "jpeg", "inputs"):
        path = tmp_path / f"{len(images)}.png"
        words = ("--stores", "3", "--sent", sent, "--figure", path)
        assert here(capsys, "ndpipe", "scale", *words).code == 0
        images.append(path.read_bytes())
    assert images[0].startswith(b"\x89PNG") and images[0] == images[2] != images[1]


def test_each_panel_has_its_quantity(monkeypatch):
    """Four panels with a line for each system; the lines are the points' numbers."""
    figures = []
    monkeypatch.setattr(drawing, "saved", lambda figure: figures.append(figure) or {})
    points = [
        cost.point(system, network("resnet50"), count)
        for count in (1, 2)
        for system in cost.SYSTEMS
    ]
    drawing.over_stores(points, "title")
    panels = figures[0].axes
    found = [[list(line.get_ydata()) for line in at.get_lines()] for at in panels]
    for values, of in zip(
        found,
        (
            lambda point: point.photos_per_s,
            lambda point: point.traffic_bytes / 1000,
            lambda point: point.joules,
            lambda point: point.dollars_per_hour / 3600 / point.photos_per_s * 1e6,
        ),
        strict=True,
    ):
        for i, system in enumerate(cost.SYSTEMS):
            assert values[i] == pytest.approx([of(p) for p in points if p.system == system])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("npe", "resnet51"), "resnet50"),
        (("npe", "--with", "compressed"), "--with compressed: optimization 'compressed': needs"),
        (("npe", "--with", ""), "optimization ''"),
        (("npe", "--batch", "512"), "--large-batch 256: must be at least --batch 512"),
        (("npe", "--photos", "511"), "--photos = 511: must be from 512"),
        (("npe", "--device", "none"), "none"),
        (("npe", "--photos", "100000000"), "do not fit on gen4-tlc"),
        (("scale", "--stores", "0"), "--stores = 0: must be from 1"),
        (("scale", "--cut", "fc"), "this layer is trained"),
        (("scale", "--task", "inference", "--cut", "stem"), "inference runs all layers"),
        (("scale", "--task", "x"), "task 'x'"),
        (("scale", "--sent", "x"), "sent 'x'"),
    ],
)
def test_what_is_wrong_is_named(capsys, tmp_path, words, text):
    path = tmp_path / "rows.json"
    refused(here(capsys, "ndpipe", *words, "--json", path), text)
    assert not path.exists()
