"""`ondie study errors --codes`: words that real codes do not correct are those that were drawn, and
rows, table and figure say where a code and the capability model differ."""

import io
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ondie.emu.analysis.row import CHECK, SHOWN
from ondie.emu.cli.figures import saved
from ondie.emu.nand import pe_protection
from ondie.emu.nand.codec import BareCounts
from ondie.emu.nand.ecc import codeword_failure
from tests.faults.test_training_errors import in_turn, no_pool, trained
from tests.smoke.commands import files, here, refused

torch = pytest.importorskip("torch", reason="torch is not installed")

from ondie.emu.studies import codes, codes_tables, drives  # noqa: E402
from ondie.emu.studies.errors_tables import written  # noqa: E402

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed"),
]
DIE, BCH, LDPC = drives.CODES
RUNS = {
    (model, code, written(rate))
    for model in codes.MODELS for code, own in drives.CODES.items() for rate in own.rates
}  # fmt: skip
"""Those of the command; tests make fewer of them."""


@pytest.fixture(scope="module")
def found(counts):
    """Trainings of one seed behind the codes, at the highest of their rates, and at full counts at
    all: 2 steps of the GPT, or 20 of both models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes, "MODELS", counts({"GPT": None}, codes.MODELS))
        for name, own in drives.CODES.items():
            few = drives.Code(own.changes, counts(own.rates[-1:], own.rates))
            patch.setitem(drives.CODES, name, few)
        yield codes.Suite(counts(2, 20), (1,), None, None, in_turn).found()


def test_no_row_misses(found):
    """BCH leaves the words that were drawn with more wrong bits than it corrects, and no others."""
    rows = codes_tables.rows(found)
    assert [row.name for row in rows if row.misses] == []
    bch = [row for row in rows if row.kind == CHECK and row.tolerance == 0 and "BCH" in row.name]
    failed = [row for row in bch if "words not corrected" in row.name]
    assert len(failed) == 2 * len(found.models)
    assert all(row.published > 0 and row.trials > row.published for row in failed)


def test_codes_differ_from_the_model_where_words_say_so(found):
    """BCH never corrects more than the model; every training with wrong bits differs from that
    without errors, and one without from none."""
    for (model, code, _, seed), cell in found.cells.items():
        counts = cell.counts
        assert counts.words > 0 and counts.miscorrected_words == 0
        fails = counts.failed_words + counts.corrects_beside_model - counts.fails_beside_model
        assert fails == cell.words[0]
        assert code == LDPC or counts.corrects_beside_model == 0
        same = codes_tables.equal(cell.trained, found.plain[model, seed])
        assert same == (counts.wrong_bits_left == 0)


# --- what is made of them


def made_up(whole=7, miscorrected=0, failed=7):
    plain = trained(np.linspace(4.0, 2.0, 20))
    half = trained(4 - (4 - np.linspace(4.0, 2.0, 20)) / 2)
    drawn = np.zeros((20, 3), np.int64)
    drawn[0] = 300, 5, whole
    counts = BareCounts(100, 800, 5_000, failed, miscorrected, 400, 3, 1)
    cells = {
        ("GPT", DIE, 1e-4, 7): codes_tables.Coded(plain, BareCounts(9, 9, 9), plain, 0 * drawn),
        ("GPT", DIE, 1e-3, 7): codes_tables.Coded(half, counts, plain, drawn),
    }
    return codes_tables.CodesFound(cells, {("GPT", 7): plain}, {DIE: (1e-4, 1e-3)}, (7,), 20)


def test_rows_and_table():
    found = made_up()
    rows = codes_tables.rows(found)
    assert not any(row.misses for row in rows)
    shown = {row.name: row for row in rows if row.kind == SHOWN}
    words = shown[f"GPT, {DIE}, 1e-3: words not corrected"]
    assert (words.published, words.predicted, words.trials) == (5, 7, 800)
    loss = shown[f"GPT, {DIE}, 1e-3: loss at the end"]
    assert loss.published < loss.predicted
    json.dumps([row.data() for row in rows], allow_nan=False)
    console = Console(width=180, record=True, file=io.StringIO())
    console.print(codes_tables.tables(found)[0])
    text = console.export_text()
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    below, above = (next(line for line in lines if rate in line) for rate in ("1e-4", "1e-3"))
    assert above[-7:] == ["800", "7", "5", "3", "1", "+50.0%", "="]
    assert below[-2:] == ["=", "="]
    assert set(codes_tables.draw(found, saved)) == {"png", "pdf"}


@pytest.mark.parametrize("wrong", [{"whole": 6}, {"failed": 8}, {"miscorrected": 1}])
def test_a_word_that_should_not_be_misses(wrong):
    assert sum(row.misses for row in codes_tables.rows(made_up(**wrong))) == 1


def test_the_command(capsys, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(codes, "pool", no_pool)
    monkeypatch.setattr(codes.Suite, "found", lambda suite: given.append(suite) or made_up())
    monkeypatch.chdir(tmp_path)
    words = ("study", "errors", "--codes", "--steps", 20, "--seeds", 7, "--json", "rows.json")
    outcome = here(capsys, *words)
    assert (outcome.code, outcome.err) == (0, "") and "only code" in outcome.out
    assert (given[0].steps, given[0].seeds, given[0].rates) == (20, [7], None)
    assert here(capsys, *words, "--rates", "1e-3,1e-4").code == 0
    assert given[1].rates == [1e-4, 1e-3]
    monkeypatch.setattr(codes.Suite, "found", lambda suite: made_up(whole=6))
    assert here(capsys, *words).code == 1
    (tmp_path / "rows.json").unlink()
    refused(here(capsys, *words, "--exposure", "2"), "exposure = 2", "must be 1", "--codes")
    refused(here(capsys, *words, "--rates", "0"), "rates = 0")
    assert files(tmp_path) == []


# --- the table of the page


def page():
    """Cells of the lines of the table in docs/errors.md, by (model, code, rate)."""
    text = (Path(__file__).parents[2] / "docs/errors.md").read_text()
    table = text.split("<!-- training codes -->\n")[1].split("<!-- end -->")[0].splitlines()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert tuple(lines[0]) == codes_tables.COLUMNS
    return {tuple(line[:3]): line[3:] for line in lines[2:]}


def numbers(cells):
    return [int(cell.replace(",", "")) for cell in cells[:5]]


def test_the_table_of_the_page_is_one_of_these_codes():
    """Its lines are the runs of the command. Words that differ are those of code and model, and in
    trainings to the end as many words fail as their rate says, within five deviations."""
    lines = page()
    assert set(lines) == RUNS
    for (_, code, rate), cells in lines.items():
        words, fails, modelled, only_code, only_model = numbers(cells)
        assert fails - only_code + only_model == modelled
        assert (only_model == 0) or code == LDPC
        if "NaN" in "".join(cells) or code == LDPC:
            continue
        cfg = drives.device(code, float(rate), real=True)
        word, limit = pe_protection.code(cfg)
        bits = 8 * (word + pe_protection.check_bytes(cfg))
        read = words / -np.expm1(bits * np.log1p(-float(rate)))  # words without wrong bits, too
        expected = read * codeword_failure(bits, limit, float(rate))
        assert abs(fails - expected) <= 5 * max(expected, 1) ** 0.5, (code, rate, fails, expected)


@pytest.mark.soak
def test_the_table_of_the_page_is_what_the_command_gives():
    """Trainings that end in NaN may end at another step on another processor."""
    found = codes.Suite(codes.STEPS, (1,), None, None, in_turn).found()
    for (model, code, rate), cells in page().items():
        _, *again = codes_tables.line(found, model, code, float(rate))
        ended = ["NaN" in cell for cell in cells[-2:]]
        assert ["NaN" in cell for cell in again[-2:]] == ended
        if not ended[0]:
            assert again[:5] == cells[:5]
        for own, theirs, nan in zip(again[-2:], cells[-2:], ended, strict=True):
            if "=" in (own, theirs):
                assert own == theirs
            elif not nan:
                share, other = (float(cell.strip("%")) for cell in (own, theirs))
                assert abs(share - other) < 3
