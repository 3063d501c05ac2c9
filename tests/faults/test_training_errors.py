"""What raw bit errors do to training: flips as many as their rate says and no others, runs without
one as without errors, and rows, table and figure that say so."""

import json
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from ondie.emu.cli.figures import saved
from ondie.emu.nand.ecc import log_above, log_up_to
from ondie.emu.units import InputError
from ondie.emu.validate import CHECK, SHOWN
from tests.smoke.commands import files, here, refused

torch = pytest.importorskip("torch", reason="torch is not installed")

from ondie.emu.studies import errors, errors_tables  # noqa: E402

pytestmark = [
    pytest.mark.timeout(1800),  # at full counts all trainings of the suite
    pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed"),
]

BYPASSED, COMPARED, ON_DIE, CONTROLLER = errors_tables.MODES


def in_turn(work, wanted):
    """What a pool does, in this process."""
    for arguments in wanted:
        yield arguments, work(*arguments)


@contextmanager
def no_pool(suite, jobs):
    yield in_turn


@pytest.fixture(scope="module")
def found(counts):
    """Trainings of one seed: 5 steps at two rates, or 40 at three; `ondie study errors` has three
    seeds, 200 steps and seven rates."""
    steps, rates = counts(5, 40), counts((1e-9, 1e-4), (1e-10, 1e-6, 1e-4))
    seeds = errors.SEEDS[:1]
    with counts(no_pool, errors.pool)("errors", 2) as run:
        return errors.Suite(steps, seeds, rates, 1, None, run).found()


def test_no_row_misses(found):
    """Flips within their interval, counted alike by the drive in training; runs without one equal
    to that without errors, to the last bit."""
    rows = errors_tables.rows(found)
    assert [row.name for row in rows if row.misses] == []
    checked = [row for row in rows if row.kind == CHECK]
    equal = [row for row in checked if row.unit == "numbers"]
    assert len(checked) == 2 * len(found.rates) + 2 + len(equal)
    assert len(equal) == 6 and all(row.tolerance == row.predicted == 0 for row in equal)
    assert any(ON_DIE in row.name and "1e-4" in row.name for row in equal)


def test_a_run_without_a_flip_is_that_without_errors_and_some_were_trained(found):
    for (model, mode, _, seed), cell in found.cells.items():
        if not cell.left and not (mode == BYPASSED and cell.raw):
            assert cell.trained is found.plain[model, seed]
            assert (mode in (ON_DIE, CONTROLLER)) or cell.raw == 0
    own = [cell.run for cell in found.cells.values() if cell.run is not None and not cell.left]
    assert len(own) == 6
    for run in own:
        plains = [p.weights.tobytes() for p in found.plain.values()]
        assert run.weights.tobytes() in plains and run.left == 0


def test_training_departs_where_many_bits_are_wrong(found):
    for model in errors.MODELS:
        for mode in (BYPASSED, COMPARED):
            assert min(found.missed(model, mode, 1e-4)) > errors_tables.DISTANCE
            rate = errors_tables.departs(found, model, mode)
            assert rate is not None and 1e-9 < rate <= 1e-4
        assert errors_tables.departs(found, model, ON_DIE) is None
        assert errors_tables.departs(found, model, CONTROLLER) is None


def test_where_the_comparator_has_nothing_to_do_it_changes_nothing():
    """4 flips are expected in 5 steps: none makes a number infinite, so that the comparator's own
    training is that of bypassed ECC; and not that without errors."""
    made = {m: errors.train("GPT", m, 1e-7, 1, 3, 5) for m in (BYPASSED, COMPARED)}
    plain = errors.plain("GPT", 3, 5)
    for mode, run in made.items():
        flips = errors.drawn(plain.keys, mode, 1e-7, 1)
        assert run.left == run.raw == flips[:, 1].sum() > 0 and not run.met
    assert made[BYPASSED].losses == made[COMPARED].losses
    assert made[BYPASSED].weights.tobytes() == made[COMPARED].weights.tobytes()
    assert made[BYPASSED].weights.tobytes() != plain.trained.weights.tobytes()


def test_every_reading_has_a_key_of_its_own():
    """A step of the GPT reads 32 stripes of w, m and v, and 32 pages of weights for the host."""
    keys = errors.plain("GPT", 1, 3).keys
    assert keys.shape == (3, 32 * 4) and keys.dtype == np.uint64
    assert len(np.unique(keys)) == keys.size
    other = errors.plain("GPT", 2, 3).keys
    assert not set(keys.ravel().tolist()) & set(other.ravel().tolist())
    ((raw, left),) = errors.drawn(keys[:1], ON_DIE, 1e-4, 1)
    assert raw > 600 and left == 0  # 839 expected, 8 deviations
    assert errors.drawn(keys[:1], BYPASSED, 1e-4, 1).tolist() == [[raw, raw]]
    assert errors.drawn(keys[:1], BYPASSED, 1e-7, 1000)[0, 0] > 600


# --- what is made of them


def trained(losses, weights=(1.0, 2.0), **more):
    values = {
        "losses": tuple(losses), "weights": np.array(weights, np.float32), "steps": len(losses),
        "raw": 0, "left": 0, "met": False, "update_s": 1e-4, "drive_j": 1e-3,
    }  # fmt: skip
    return errors_tables.Trained(**(values | more))


def made_up(raw=1000, exposure=1, run=None, bad=None, rates=(1e-8, 1e-6)):
    """Twenty steps of one model: at the higher rate bypassed ECC ends half way, the comparator's
    ending in no number. 10**9 bits are read: 10 and 1000 flips are expected."""
    losses = np.linspace(4.0, 2.0, 20)
    plain = trained(losses)
    bad = bad or trained(4 - (4 - losses) / 2)
    cells = {}
    for mode in errors_tables.MODES:
        for rate in rates:
            n = round(raw * rate / 1e-6)
            left = n if mode in (BYPASSED, COMPARED) else 0
            flips = np.zeros((20, 2), np.int64)
            flips[0] = n, left
            which = bad if left and rate == rates[-1] else plain
            cells["GPT", mode, rate, 7] = errors_tables.Cell(flips, which, None)
    nan = trained([4.0, 3.9, float("nan")])
    cells["GPT", COMPARED, rates[-1], 7].trained = nan
    cells["GPT", ON_DIE, rates[-1], 7].run = run or plain
    readings = {("GPT", 7): 10**9 // 65536}
    return errors_tables.Found(
        cells, {("GPT", 7): plain}, readings, 65536, rates, (7,), 20, exposure
    )


def by_name(rows):
    return {row.name: row for row in rows}


def test_rows():
    rows = errors_tables.rows(made_up(run=trained(np.linspace(4.0, 2.0, 20), raw=1000)))
    assert not any(row.misses for row in rows)
    named = by_name(rows)
    row = named["GPT, on-die ECC, 1e-6, seed 7: 1,000 flips, all corrected"]
    assert (row.kind, row.predicted, row.tolerance) == (CHECK, 0, 0)
    ends = {m: named[f"GPT, {m}, 1e-6: loss at the end"] for m in errors_tables.MODES}
    assert {row.kind for row in ends.values()} == {SHOWN}
    low = np.mean(np.linspace(4, 2, 20)[-2:])
    assert [row.predicted for row in ends.values()] == pytest.approx([2 + low / 2, 4.0, low, low])
    departs = {row.name: row.predicted for row in rows if "departs" in row.name}
    assert departs == {
        "GPT, ECC bypassed: lowest rate at which training departs": 1e-6,
        "GPT, NaN comparator: lowest rate at which training departs": 1e-6,
    }
    json.dumps([row.data() for row in rows], allow_nan=False)


@pytest.mark.parametrize("raw", [500, 850, 1150, 2000])
def test_too_few_or_too_many_flips_miss(raw):
    missed = [row for row in errors_tables.rows(made_up(raw)) if row.misses and row.unit == "flips"]
    assert any("1e-6: flips, 9" in row.name for row in missed)


def test_a_run_that_differs_in_one_bit_misses():
    right = np.linspace(4.0, 2.0, 20)
    for run in (
        trained(right, (1.0, np.nextafter(np.float32(2), np.float32(3))), raw=1000),
        trained([*right[:-1], np.nextafter(2.0, 3)], raw=1000),
    ):
        rows = errors_tables.rows(made_up(run=run))
        assert [row.predicted for row in rows if row.misses] == [1.0]


def test_a_flip_that_the_drive_did_not_count_misses():
    for raw, left in ((999, 0), (1000, 1)):
        run = trained(np.linspace(4.0, 2.0, 20), raw=raw, left=left)
        missed = [row for row in errors_tables.rows(made_up(run=run)) if row.misses]
        assert [row.predicted for row in missed] == [1.0]
        assert "flips on the drive that differ from" in missed[0].name


@pytest.mark.parametrize("n, p", [(10**9, 1e-10), (10**9, 1e-6), (5 * 10**9, 1e-4), (1000, 0.5)])
def test_the_interval_is_the_narrowest_of_its_doubt(n, p):
    low, high = errors_tables.interval(n, p, 0.01)
    assert log_above(n, high, p) <= np.log(0.005) < log_above(n, high - 1, p)
    assert log_up_to(n, low, p) > np.log(0.005)
    assert low == 0 or log_up_to(n, low - 1, p) <= np.log(0.005)
    assert low <= n * p <= high


def test_what_is_missed():
    plain = trained(np.linspace(4.0, 2.0, 20))
    low = errors_tables.end(plain, 20)
    assert errors_tables.share(plain, plain, 20) == 0
    assert errors_tables.share(trained([4.0, float("nan")]), plain, 20) == 1
    assert errors_tables.share(trained([4.0] + [1e30] * 19), plain, 20) == 1
    half = trained([4.0] + [(4 + low) / 2] * 19)
    assert errors_tables.share(half, plain, 20) == pytest.approx(0.5)


def test_the_table_and_the_exposure():
    for exposure, label in ((1, None), (1000, "exposure x 1,000")):
        found = made_up(raw=1000 * exposure, exposure=exposure)
        console = Console(width=180, record=True, file=open("/dev/null", "w"))
        for table in errors_tables.tables(found):
            console.print(table)
        text = console.export_text()
        assert "+50.0%" in text and "+100.0%" in text and "1 NaN" in text
        assert f"{1000 * exposure:,}" in text and "none up to 1e-6" in text
        assert (label is None) or label in text
        names = [row.name for row in errors_tables.rows(found)]
        assert label is None or all(label in name for name in names)
        assert label is None or not any(row.misses for row in errors_tables.rows(found)[:2])


def test_the_figure(tmp_path):
    figures = []
    drawn = errors_tables.draw(made_up(exposure=50), lambda f: figures.append(f) or saved(f))
    (axes,) = figures[0].axes
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == list(errors_tables.MODES)
    lines = axes.get_lines()[:4]
    assert [line.get_ydata()[-1] for line in lines] == pytest.approx([0.5, 1, 0, 0])
    assert lines[0].get_xdata().tolist() == [1e-8, 1e-6] and axes.get_xscale() == "log"
    assert "exposure x 50" in axes.get_title() and axes.get_xlabel() == "raw bit error rate"
    assert (
        errors_tables.draw(made_up(exposure=50), saved)
        == drawn
        != errors_tables.draw(made_up(), saved)
    )
    (tmp_path / "f.png").write_bytes(drawn["png"])
    image = matplotlib.image.imread(tmp_path / "f.png")
    assert image.shape == (690, 1650, 4) and image[..., :3].min() < 0.1
    assert drawn["pdf"].startswith(b"%PDF-") and b"CreationDate" not in drawn["pdf"]


# --- the command


def test_the_command_writes_what_it_found(capsys, tmp_path, monkeypatch):
    right = made_up(run=trained(np.linspace(4.0, 2.0, 20), raw=1000))
    monkeypatch.setattr(errors, "pool", no_pool)
    monkeypatch.setattr(errors.Suite, "found", lambda suite: given.append(suite) or right)
    monkeypatch.chdir(tmp_path)
    given = []
    words = ("study", "errors", "--steps", 20, "--seeds", 7, "--rates", "1e-6,1e-8",
             "--exposure", 3, "--json", "rows.json", "--figure", "f.png")  # fmt: skip
    outcome = here(capsys, *words)
    assert (outcome.code, outcome.err) == (0, "")
    (suite,) = given
    assert (suite.steps, suite.seeds, suite.rates, suite.exposure) == (20, [7], [1e-8, 1e-6], 3)
    assert files(tmp_path) == ["f.png", "rows.json"]
    assert json.loads(Path("rows.json").read_text()) == [
        r.data() for r in errors_tables.rows(right)
    ]
    assert Path("f.png").read_bytes() == errors_tables.draw(right, saved)["png"]
    assert "Training runs of 20 steps" in outcome.out and "loss at the end" not in outcome.out
    monkeypatch.setattr(errors.Suite, "found", lambda suite: made_up(raw=2000))
    assert here(capsys, *words[:-2]).code == 1  # draws nothing


@pytest.mark.parametrize(
    "options, words",
    [
        (["--steps", "0"], ["steps = 0", "at least 1"]),
        (["--seeds", "1,1"], ["seeds = 1, 1", "distinct"]),
        (["--rates", "0"], ["rates = 0", "must be above 0"]),
        (["--rates", "1e-8,0.6"], ["rates = 1e-08, 0.6", "at most 0.5"]),
        (["--rates", "1e-8,1e-8"], ["rates", "distinct"]),
        (["--rates", "1e-8;1"], ["--rates", "'1e-8;1'", "for example, 1e-8,1e-6"]),
        (["--rates", "nan"], ["rates = nan", "must be above 0"]),
        (["--exposure", "0"], ["exposure = 0", "must be from 1 to"]),
        (["--exposure", "x"], ["--exposure", "'x'"]),
    ],
    ids=lambda x: " ".join(x),
)
def test_what_cannot_be(capsys, tmp_path, monkeypatch, options, words):
    def untouched(*arguments, **more):
        raise AssertionError("trained")

    monkeypatch.setattr(errors, "pool", untouched)
    monkeypatch.chdir(tmp_path)
    refused(here(capsys, "study", "errors", *options, "--json", "rows.json"), *words)
    assert files(tmp_path) == []


def test_options_of_its_own(capsys):
    for option, value in (("--rates", "1e-8"), ("--exposure", "2")):
        refused(here(capsys, "study", "formats", option, value), "No such option", option)


def test_a_check_without_seeds_or_rates():
    with pytest.raises(InputError, match="seeds = none"):
        errors.check(1, (), (1e-8,), 1)
    with pytest.raises(InputError, match="rates = none"):
        errors.check(1, (1,), (), 1)
