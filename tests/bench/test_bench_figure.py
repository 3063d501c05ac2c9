"""Does the roofline show the rows of a bench, each where it belongs, and is it written whole?"""

import numpy as np
import pytest

from ondie.emu.cli.commands.bench_run import KernelBenchOptions, kernels_command
from ondie.emu.cli.figures import saved
from ondie.emu.units import InputError
from ondie.kernels.bench import roofline as bench_figure
from ondie.kernels.bench import run as bench
from ondie.kernels.bench.contenders import LIMIT, PEAK
from ondie.kernels.bench.run import Bench, Row
from tests.smoke.commands import files, here, refused

MACHINE = {"processor": "a processor", "isa": "avx2", "threads": 2}


def case(name, n, per_byte, limit, rates, peak=250.0):
    """Rows of a case, GB/s and Gop/s as `ondie bench kernels` has them."""
    rows = [Row(f"{name} n={n} {LIMIT}", limit, "GB/s", LIMIT, 1.0)] if limit else []
    for who, rate in rates.items():
        rows.append(Row(f"{name} n={n} {who}", rate / per_byte, "GB/s", LIMIT, 1.0))
        rows.append(Row(f"{name} n={n} {who}", rate, "Gop/s", PEAK, rate / peak))
    return [*rows, Row(f"{name} n={n} {PEAK}", peak, "Gop/s", PEAK, 1.0)]


@pytest.fixture
def rows():
    """In cache, two updates; from DRAM one, at another time."""
    return [
        *case("adam", 1000, 0.5, 200.0, {"c": 90.0, "torch operator": 40.0}),
        *case("sgd", 1000, 1 / 6, 180.0, {"c": 29.0}),
        *case("adam", 10**8, 0.5, 60.0, {"c": 30.0}, peak=240.0),
        *case("adam/bf16_all/pages", 10**8, 1.0, 50.0, {"c": 20.0, "c, one array": 25.0}),
    ]


@pytest.fixture
def figure(rows, monkeypatch):
    """The figure itself, laid out."""
    kept = []
    bench_figure.draw(Bench(rows, MACHINE), lambda figure: kept.append(figure) or {})
    kept[0].draw_without_rendering()
    return kept[0]


def panel(figure, title):
    (found,) = [axes for axes in figure.axes if axes.get_title() == title]
    return found


def points(axes, marker):
    return {
        (line.get_color(), round(float(line.get_xdata()[0]), 6), float(line.get_ydata()[0]))
        for line in axes.lines
        if line.get_marker() == marker
    }


def test_a_panel_for_each_shape_and_size(figure):
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles == [
        "flat, 1,000 parameters",
        "flat, 100,000,000 parameters",
        "pages, 100,000,000 parameters",
    ]


def test_points_are_at_their_intensity_and_rate(figure):
    cached = panel(figure, "flat, 1,000 parameters")
    assert points(cached, "o") == {("C0", 0.5, 90.0), ("C1", round(1 / 6, 6), 29.0)}
    assert points(cached, "s") == {("C0", 0.5, 40.0)}
    # the case's own memory limit: 200 GB/s at half an operation per byte
    bars = {(colour, y) for colour, _, y in points(cached, "_")}
    assert bars == {("C0", 100.0), ("C1", 30.0)}
    assert points(panel(figure, "pages, 100,000,000 parameters"), "D") == {("C2", 1.0, 25.0)}


def test_roofs_are_the_limits_of_the_run(figure):
    """Slanted: the best memory limit of each size, to where it meets the compute limit."""
    for title, own in [
        ("flat, 1,000 parameters", 200.0),
        ("flat, 100,000,000 parameters", 60.0),
        ("pages, 100,000,000 parameters", 60.0),
    ]:
        axes = panel(figure, title)
        found = {}
        flat = []
        for line in axes.lines:
            x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
            if line.get_marker() == "None" and y[0] == y[-1]:
                flat.append(y[0])
            elif line.get_marker() == "None":
                np.testing.assert_allclose(y / x, y[0] / x[0])
                assert y[-1] == pytest.approx(250.0)
                found[round(y[0] / x[0], 6)] = line.get_color()
        assert flat == [250.0]
        assert set(found) == {200.0, 60.0} and found[own] == "black" != found[260.0 - own]
        labels = {text.get_text() for text in axes.texts}
        assert labels == {f"{PEAK}, 250 Gop/s", f"{LIMIT}, {own:,.0f} GB/s"}


def test_everything_is_seen(figure):
    for axes in figure.axes:
        left, right = axes.get_xlim()
        low, high = axes.get_ylim()
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert left < 1 / 6 and right > 250 / 60 and low < 20 and high > 250


def test_the_legend_has_each_contender_and_each_update_once(figure):
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "c", "torch operator", "c, one array", f"{LIMIT} of the case",
        "adam", "sgd", "adam/bf16_all",
    ]  # fmt: skip
    shown = legend.get_window_extent()
    assert 0 <= shown.y0 and shown.y1 <= figure.bbox.height


def test_a_legend_of_many_fits(monkeypatch):
    """Each update has a colour of its own, and the figure room for all of them."""
    kept = []
    many = [r for i in range(42) for r in case(f"op{i}", 1000, 0.5, 200.0, {"c": 1.0 + i})]
    bench_figure.draw(Bench(many, MACHINE), lambda figure: kept.append(figure) or {})
    kept[0].draw_without_rendering()
    assert len({colour for colour, _, _ in points(kept[0].axes[0], "o")}) == 42
    (legend,) = kept[0].legends
    shown = legend.get_window_extent()
    assert 0 <= shown.y0 and shown.y1 <= kept[0].bbox.height


def test_without_the_c_extension_there_is_no_slanted_roof():
    drawn = bench_figure.draw(Bench(case("adam", 1000, 0.5, None, {"numba": 90.0}), MACHINE), saved)
    assert drawn["png"].startswith(b"\x89PNG") and drawn["pdf"].startswith(b"%PDF")


# --- the command


@pytest.fixture
def quick(monkeypatch, rows):
    """The command with those rows, and a remark."""
    found = Bench(rows, MACHINE, ["torchao is left out"])
    monkeypatch.setattr(bench, "run_kernels", lambda *_, **__: found)


def test_figure_and_rows_are_written_together(quick, capsys, tmp_path):
    words = ("--json", tmp_path / "rows.json", "--figure", tmp_path / "new/roof.pdf")
    done = here(capsys, "bench", "kernels", "--quiet", *words)
    assert (done.code, done.out, done.err) == (0, "", "torchao is left out\n")
    assert files(tmp_path) == ["new", "new/roof.pdf", "rows.json"]
    assert (tmp_path / "new/roof.pdf").read_bytes().startswith(b"%PDF")


def test_nothing_is_half_written(quick, capsys, tmp_path, monkeypatch):
    def draw(found, save):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_figure, "draw", draw)
    words = ("--json", tmp_path / "rows.json", "--figure", tmp_path / "roof.png")
    done = here(capsys, "bench", "kernels", *words)
    assert done.code != 0 and files(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--figure", "roof.svg"), ["roof.svg", ".png or .pdf"]),
        (("--figure", "."), [".png or .pdf"]),
        (("--figure", "there/roof.png"), ["there is not a folder"]),
        (("--figure", "a.png", "--json", "./a.png"), ["a.png", "another name"]),
    ],
)
def test_what_is_refused_before_anything_is_measured(capsys, tmp_path, monkeypatch, words, says):
    def measure(*_, **__):
        raise AssertionError("measured before the targets were looked at")

    monkeypatch.setattr(bench, "run_kernels", measure)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("")
    with pytest.raises(InputError):
        kernels_command(KernelBenchOptions(quiet=True, figure=tmp_path / "roof.gif"))
    refused(here(capsys, "bench", "kernels", *words), *says)
    assert files(tmp_path) == ["there"]
