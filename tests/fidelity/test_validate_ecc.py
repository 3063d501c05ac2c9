"""Do the codes do what `ondie validate ecc` says, and would a wrong code or limit miss?"""

import dataclasses

import pytest

from ondie.emu import validate
from ondie.emu.analysis.row import IDENTITY, SHOWN, tables
from ondie.emu.nand import ecc as capability
from ondie.emu.units import InputError
from ondie.emu.validate import ecc
from ondie.emu.validate.ldpc_curve import FramePoint, frame_errors, interval
from ondie.kernels import bch, get
from tests.smoke.commands import here, refused

BITS = 32768


def point(raw_ber, failed, frames, reads=1):
    return FramePoint(raw_ber, reads, frames, failed, 0, *interval(failed, frames), 5.0, 3.0)


@pytest.fixture
def few(monkeypatch, scale):
    """At small counts, few points with few frames and few words; full counts have all points."""
    if scale != "full":
        monkeypatch.setattr(ecc, "BCH_WORDS", {2: 20_000, 4: 40_000, 6: 150_000})
        chosen = {(1, 7.3e-3): 4_000, (1, 7.7e-3): 40_000, (1, 9e-3): 4_000, (3, 16.5e-3): 4_000}
        points = tuple((*at, frames) for at, frames in chosen.items())
        monkeypatch.setattr(ecc, "POINTS", points)


def test_the_codes_are_what_is_expected(few):
    """No row misses, every kind of row is there, and the shares are those of the closed forms."""
    seen = []
    rows = validate.run("ecc", lambda what, done: seen.append(done))
    assert [row.name for row in rows if row.misses] == []
    assert seen == sorted(seen) and 0 <= seen[0] and seen[-1] < 1
    by_kind = {kind: [row for row in rows if row.kind == kind] for kind in (IDENTITY, SHOWN)}
    assert len(by_kind[IDENTITY]) + len(by_kind[SHOWN]) == len(rows)
    taken = [row for row in rows if "corrected to another word" in row.name]
    assert len(taken) == 2 * len(ecc.BCH_WORDS)
    assert all(0 < row.tolerance < 0.8 and row.trials >= 2_000 for row in taken), taken
    silent = [row for row in rows if row.published == 0]
    assert len(silent) == len(ecc.BCH_WORDS) + 1 and not any(row.predicted for row in silent)
    curve = [row for row in by_kind[SHOWN] if row.interval]
    assert len(curve) == len(ecc.POINTS)
    assert all(row.interval[0] <= row.predicted <= row.interval[1] for row in curve)
    assert {"interval", "trials"} <= {column.header for column in tables(curve)[0].columns}
    data = curve[0].data()
    assert data["interval"] == list(curve[0].interval) and data["trials"] == curve[0].trials
    assert "rate 0.888" in curve[0].source


def test_a_code_that_accepts_what_it_should_not_misses(monkeypatch):
    """Decoding without the CRC's check is silent; a code that corrects too seldom is found."""
    decode = bch.Bch.decode
    always = lambda self, data, check, verify=True: decode(self, data, check, verify=False)  # noqa: E731
    monkeypatch.setattr(bch.Bch, "decode", always)
    missed = [row for row in ecc.bch_rows(2, 2_000) if row.misses]
    assert ["wrong data without a failure" in row.name for row in missed] == [True]
    assert missed[0].predicted > 500
    monkeypatch.undo()
    row = ecc.bch_rows(3, 5_000)[0]
    assert not row.misses and row.published == pytest.approx(0.1659, abs=1e-4)
    assert dataclasses.replace(row, predicted=row.predicted * 0.8).misses


def test_the_presets_have_the_limit_that_was_measured(monkeypatch):
    """119 of 100,000 frames fail at 7.7e-3 and 9 of 20,000 at 1.65e-2 with three reads; with RiF's
    278 bits the model fails 40 times as often, and the row misses."""
    points = [point(7.7e-3, 119, 100_000), point(16.5e-3, 9, 20_000, reads=3)]
    assert capability.codeword_failure(BITS, 278, 7.7e-3) / points[0].rate > 40
    assert ecc.limits() == {1: 302, 3: 619}
    rows = ecc.limit_rows(points)
    assert [(row.published, row.predicted, row.misses) for row in rows] == [
        (302, 302, False), (619, 619, False),
    ]  # fmt: skip
    assert rows[0].interval == (301, 303)
    monkeypatch.setattr(ecc, "limits", lambda: {1: 278, 3: 417})
    assert all(row.misses for row in ecc.limit_rows(points))


def test_without_a_failure_a_limit_is_a_bound(monkeypatch):
    """3 of 1,000 is what none of 1,000 leaves possible: the row has that bound and no tolerance,
    unless the code surely corrects more than the preset says."""
    points = [point(7.7e-3, 0, 1_000), point(16.5e-3, 0, 1_000, reads=3)]
    for row, limit in zip(ecc.limit_rows(points), (302, 619), strict=True):
        assert (row.kind, row.published, row.trials) == (IDENTITY, limit, 1_000)
        assert row.name.endswith("no frame fails, at least")
        assert 0.9 * limit < row.predicted < limit and row.interval == (row.predicted, BITS)
        assert row.tolerance is None and not row.misses
    monkeypatch.setattr(ecc, "limits", lambda: {1: 278, 3: 417})
    rows = ecc.limit_rows(points)
    assert all(row.predicted > row.published and row.misses for row in rows)


def test_the_limits_rest_on_enough_frames():
    """Some frames of both points are expected to fail also without full counts."""
    for reads, raw_ber in ecc.NEAR.items():
        at = next(point for point in ecc.POINTS if point[:2] == (reads, raw_ber))
        assert ecc.frames_of(at, False) == ecc.MOST
        expected = ecc.MOST * capability.codeword_failure(BITS, ecc.limits()[reads], raw_ber)
        assert expected > 3


@pytest.mark.parametrize("raw_ber", [5e-3, 7.7e-3, 1.65e-2])
@pytest.mark.parametrize("rate", [1e-5, 1e-3, 0.3])
def test_equivalent_bits_invert_the_model(raw_ber, rate):
    limit = ecc.equivalent_bits(rate, raw_ber, BITS)
    above, at = (capability.codeword_failure(BITS, bits, raw_ber) for bits in (limit - 1, limit))
    assert at <= rate < above


def test_the_crossing_is_between_measured_points():
    """Half way in the logarithm; none where all fail more often, or where fewer were measured."""
    points = [point(7e-3, 1, 10_000), point(8e-3, 100, 10_000), point(16e-3, 5, 10, reads=2)]
    assert ecc.crossing(points) == pytest.approx(7.5e-3)
    assert ecc.crossing(points[1:]) is None
    assert ecc.crossing([point(7e-3, 0, 10_000), points[1]]) is None
    none = [point(7.7e-3, 0, 9), point(16.5e-3, 0, 9, reads=3)]
    row = ecc.limit_rows([*points[:2], *none])[-1]
    assert (row.published, row.place, row.tolerance) == (8.5e-3, "RiF, HPCA 2024", None)


def test_presets_with_different_codes_are_named(monkeypatch):
    monkeypatch.setattr(ecc, "PRESETS", ("gen4-tlc", "optimstore-r1"))
    with pytest.raises(InputError, match="gen4-tlc, optimstore-r1: their codes differ"):
        ecc.limits()


def test_the_model_has_the_measured_curve(counts):
    """What the model is worth: with one limit, from 1e-3 to 0.9, within a factor of 1.5 of the
    frames that fail (or within the interval of few frames)."""
    kernel = get("ldpc")
    for raw_ber, frames in ((8.5e-3, 5_000), (9e-3, 2_000), (10e-3, 1_000)):
        found = frame_errors(kernel, raw_ber, 1, counts(frames // 10, frames), seed=3)
        model = capability.codeword_failure(BITS, ecc.limits()[1], raw_ber)
        assert found.low / 1.5 < model < found.high * 1.5, (raw_ber, found, model)
        assert capability.codeword_failure(BITS, 278, raw_ber) > found.high


def test_full_counts_belong_to_the_suite(monkeypatch, capsys):
    given = []
    named = dataclasses.replace(
        validate.NAMED["ecc"], rows=lambda progress, **options: given.append(options) or []
    )
    monkeypatch.setitem(validate.NAMED, "ecc", named)
    assert here(capsys, "validate", "ecc", "--full", "--quiet").code == 0
    assert here(capsys, "validate", "ecc", "--quiet").code == 0
    assert given == [{"full": True}, {}]
    refused(here(capsys, "validate", "zero", "--full"), "--full", "ondie validate ecc")
    frames = [ecc.frames_of(at, False) for at in ecc.POINTS]
    assert min(frames) == ecc.LEAST and max(frames) == ecc.MOST
    assert [ecc.frames_of(at, True) for at in ecc.POINTS] == [at[2] for at in ecc.POINTS]
