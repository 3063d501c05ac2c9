"""Do rows of the validation have their form, and does a check row outside its tolerance fail?"""

import dataclasses
import json
import math

import pytest

from ondie.emu import validate
from ondie.emu.analysis.row import CHECK, FIT, IDENTITY, SHOWN, Row
from ondie.emu.units import InputError
from ondie.emu.validate import closed_forms
from tests.smoke.commands import files, here, refused
from tests.suites import suite

FIELDS = {
    "name": str,
    "kind": str,
    "published": int | float,
    "predicted": int | float,
    "unit": str,
    "tolerance": int | float,
    "source": str,
    "place": str,
    "constants": list,
}
"""The row format that other programs read; the suite is there too."""


def row(predicted: float, kind: str = CHECK, tolerance: float | None = 0.1, **changes) -> Row:
    given = Row(
        "fake", "a row", kind, 100.0, predicted, "s", tolerance, "a paper, 2020", "Table 1",
        ("host.adam",) if kind == FIT else (),
    )  # fmt: skip
    return dataclasses.replace(given, **changes)


@pytest.fixture
def fake(monkeypatch):
    """Only one suite, of these rows."""

    def put(*rows: Row) -> None:
        monkeypatch.setattr(validate, "SUITES", {"fake": lambda progress: list(rows)})

    return put


@pytest.fixture(scope="module")
def everything() -> list[Row]:
    return suite()


# --- the rows of this project


def test_every_row_has_the_form(everything):
    names = set()
    for entry in everything:
        data = json.loads(json.dumps(entry.data(), allow_nan=False))
        assert set(data) == {*FIELDS, "suite"}
        for field, kind in FIELDS.items():
            assert isinstance(data[field], kind), (entry.name, field)
        assert data["suite"] in validate.SUITES
        assert data["kind"] in (FIT, IDENTITY), "no suite here has a published number of its own"
        assert data["published"] > 0 and math.isfinite(data["predicted"])
        assert 0 <= data["tolerance"] < 1
        assert data["name"] and data["source"] and data["unit"]
        names.add((data["suite"], data["name"]))
    assert len(names) == len(everything), "a name twice in a suite"


def test_what_there_is(everything):
    """Bytes per parameter of the offload path, and the closed forms of every updating path."""
    bytes_rows = {r.name: r for r in everything if r.suite == "bytes"}
    # DeepSpeed: g w m v down and up again, 16 B each way with Adam, less a state with one state
    for op, total in (("adam", 32), ("momentum", 24), ("adagrad", 24), ("sgd", 16)):
        r = bytes_rows[f"host offload, {op}"]
        assert (r.published, r.predicted, r.unit, r.kind) == (total, total, "B/param", IDENTITY)
    closed = [r for r in everything if r.suite == "closed-forms"]
    for path in ("host_offload", "host_offload_pipelined", "in_storage", "on_die"):
        assert sum(r.name.startswith(f"{path} on ") for r in closed) >= 2
    assert all(r.kind == IDENTITY and r.tolerance == 0.05 for r in closed)
    assert any(r.kind == FIT for r in everything)


def test_none_misses(everything):
    assert [r.name for r in everything if r.misses] == []


@pytest.mark.parametrize("name", validate.SUITES)
def test_a_suite_alone_gives_its_rows(everything, name):
    assert suite(name) == [r for r in everything if r.suite == name]


def test_progress_names_the_suites(monkeypatch):
    """Of the first forms."""
    monkeypatch.setattr(closed_forms, "CLOSED", closed_forms.CLOSED[:4])
    seen = []
    validate.run("closed-forms", lambda name, share: seen.append((name, share)))
    assert {name for name, _ in seen} == {"closed-forms"}
    shares = [share for _, share in seen]
    assert shares == sorted(shares) and 0 <= shares[0] and shares[-1] <= 1


# --- every suite


@pytest.fixture
def suites(monkeypatch):
    """Two suites that run without a name and two that do not; the last one may lack its files."""
    absent: list[str] = []
    ran: list[str] = []

    def suite(name: str):
        def rows(progress, **options) -> list[Row]:
            ran.append(name)
            return [row(100, suite=name)]

        return rows

    def ready() -> None:
        if absent:
            raise InputError(absent[0])

    monkeypatch.setattr(validate, "SUITES", {name: suite(name) for name in ("a", "b")})
    named = {"c": validate.Named(suite("c"), ("model",)), "d": validate.Named(suite("d"))}
    named["d"] = dataclasses.replace(named["d"], ready=ready)
    monkeypatch.setattr(validate, "NAMED", named)
    return ran, absent


def test_all_runs_every_suite_once(suites):
    assert [r.suite for r in validate.run("all")] == ["a", "b", "c", "d"]
    assert [r.suite for r in validate.run(None)] == ["a", "b"]


def test_all_checks_first_whether_every_suite_can_run(suites):
    ran, absent = suites
    absent.append("d: no cases")
    with pytest.raises(InputError, match="all: nothing was run, because d cannot run: d: no cases"):
        validate.run("all")
    assert ran == []
    assert [r.suite for r in validate.run("c")] == ["c"]


@pytest.mark.parametrize("name", ["all", "a", None])
def test_options_belong_to_one_suite(suites, name):
    with pytest.raises(InputError, match="no options, but model was given; suites with options: c"):
        validate.run(name, None, {"model": "8.4b"})
    assert suites[0] == []
    assert [r.suite for r in validate.run("c", None, {"model": "8.4b"})] == ["c"]


# --- what a kind must have


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (CHECK, {"tolerance": None}, "a check row must have a tolerance"),
        (CHECK, {"tolerance": -0.1}, "must be at least 0"),
        (CHECK, {"tolerance": math.nan}, "must be at least 0"),
        (CHECK, {"published": None}, "published = None"),
        (IDENTITY, {"published": None}, "published = None"),
        (FIT, {"published": None}, "published = None"),
        (FIT, {"constants": ()}, "a fit row must name at least one constant"),
        (CHECK, {"constants": ("host.adam",)}, "other rows must not name any"),
        ("seen", {}, "kind 'seen' is unknown; use one of check, fit, shown, identity"),
    ],
)
def test_a_row_without_what_its_kind_must_have_is_refused(kind, changes, words):
    with pytest.raises(ValueError, match=words) as caught:
        row(100, kind, **changes)
    assert "fake, " in str(caught.value) and "'a row'" in str(caught.value)


def test_a_shown_row_may_lack_everything():
    assert not row(100, SHOWN, None, published=None, place="").misses


# --- when a row misses


@pytest.mark.parametrize(
    ("predicted", "tolerance", "misses"),
    [
        (100, 0, False),
        (100.0000001, 0, True),
        (109.9, 0.1, False),
        (110.1, 0.1, True),
        (90.1, 0.1, False),
        (89.9, 0.1, True),
        (0, 0.1, True),
        (-100, 0.1, True),
    ],
)
def test_a_check_row_misses_outside_its_tolerance(predicted, tolerance, misses):
    assert row(predicted, tolerance=tolerance).misses == misses
    assert not row(predicted, FIT, tolerance).misses


def test_an_identity_misses_outside_its_tolerance():
    assert row(110.1, IDENTITY).misses and not row(109.9, IDENTITY).misses
    assert not row(1000, IDENTITY, None).misses
    assert not row(1000, SHOWN).misses


@pytest.mark.parametrize(
    ("published", "predicted", "misses"),
    [(1.1, 0.99, True), (1.1, 1.01, False), (0.95, 1.02, True), (1.0, 1.05, False)],
)
def test_a_gain_that_comes_out_as_a_loss_misses(published, predicted, misses):
    """Within the tolerance, too; other units than ratios have no direction."""
    assert row(predicted, tolerance=0.2, published=published, unit="x").misses == misses
    assert not row(predicted, tolerance=0.2, published=published, unit="s").misses


@pytest.mark.parametrize("predicted", [math.nan, math.inf])
def test_a_number_that_is_none_misses(predicted):
    assert row(predicted).misses


def test_difference():
    assert row(125.0).difference == 0.25
    assert row(80.0).difference == pytest.approx(-0.2)


# --- exit codes


def test_all_well(capsys, fake):
    fake(row(105), row(150, FIT))
    outcome = here(capsys, "validate")
    assert (outcome.code, outcome.err) == (0, "")
    assert "2 rows, 0 outside their tolerance" in outcome.out
    assert "MISS" not in outcome.out and " ok " in outcome.out


def test_a_missed_check_row_is_exit_code_1(capsys, fake, tmp_path):
    fake(row(105, name="good"), row(150, name="bad"), row(150, FIT, name="only shown"))
    outcome = here(capsys, "validate", "fake", "--json", tmp_path / "rows.json")
    assert (outcome.code, outcome.err) == (1, "")
    assert "3 rows, 1 outside their tolerance" in outcome.out
    (missed,) = (line for line in outcome.out.splitlines() if "MISS" in line)
    assert "bad" in missed and "+50" in missed
    # The rows are written all the same: that is what a reader of the failure needs.
    data = json.loads((tmp_path / "rows.json").read_text())
    assert [entry["name"] for entry in data] == ["good", "bad", "only shown"]


def test_quiet_only_has_an_exit_code(capsys, fake):
    fake(row(150))
    outcome = here(capsys, "validate", "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "")


def test_the_missed_row_of_a_real_suite(capsys, monkeypatch):
    """A model that is a tenth too slow is found by its first closed forms."""
    monkeypatch.setattr(closed_forms, "CLOSED", closed_forms.CLOSED[:2])
    original = closed_forms.run_path

    def slower(*arguments, **options):
        r = original(*arguments, **options)
        bound = dataclasses.replace(r.bound, seconds=r.bound.seconds / 1.1)
        return dataclasses.replace(r, bound=bound)

    monkeypatch.setattr(closed_forms, "run_path", slower)
    outcome = here(capsys, "validate", "closed-forms", "--quiet")
    assert outcome.code == 1


def test_an_unknown_suite(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["validate", "byte", "--json", "rows.json"]
    words_of = ("byte: there is no such suite", "nearest: bytes", "closed-forms", "rates")
    refused(here(capsys, *words), *words_of)
    assert files(tmp_path) == []


def test_rows_that_cannot_be_written(capsys, tmp_path, monkeypatch, fake):
    monkeypatch.chdir(tmp_path)
    fake(row(100))
    (tmp_path / "taken").write_text("mine")
    refused(here(capsys, "validate", "--json", "taken/rows.json"), "taken/rows.json")
    refused(here(capsys, "validate", "--json", tmp_path), str(tmp_path))
    assert files(tmp_path) == ["taken"]


def test_json_is_the_same_twice(capsys, tmp_path):
    for name in ("a", "b"):
        here(capsys, "validate", "bytes", "--quiet", "--json", tmp_path / f"{name}.json")
    first = (tmp_path / "a.json").read_bytes()
    assert first == (tmp_path / "b.json").read_bytes() and first.endswith(b"]\n")
