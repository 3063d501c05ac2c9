"""Do the rows of `ondie validate ndpipe` say what the sources print, and are their kinds right?"""

import dataclasses
import json

import pytest

from ondie.emu import validate
from ondie.emu.analysis.row import CHECK, FIT, IDENTITY, SHOWN
from ondie.emu.ndpipe import layers, pipeline, versions
from ondie.emu.ndpipe.architectures import NETWORKS, network
from ondie.emu.validate import ndpipe, ndpipe_runs
from tests.fidelity import fitted
from tests.smoke.commands import here
from tests.suites import suite


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in suite("ndpipe")}


def test_names_are_unique_and_nothing_misses(rows):
    assert len(rows) == len(suite("ndpipe")) and not [row for row in rows.values() if row.misses]
    assert {row.suite for row in rows.values()} == {"ndpipe"}


def test_only_published_totals_are_checked(rows):
    """Neither the number of stores nor a measured rate decides one."""
    checked = {row.name for row in rows.values() if row.kind == CHECK}
    assert checked == {
        f"{network(name).title}: {what}"
        for name in NETWORKS
        for what in ("parameters", "multiply-accumulates")
    }
    exact = [rows[f"{title}: parameters"] for title in ("ResNet50", "ViT-B/16")]
    assert [row.tolerance for row in exact] == [0, 0]


def test_the_traffic_of_features(rows):
    assert rows["ResNet50: traffic of a cut at avgpool"].predicted == 2048 / 150528
    share = rows["ResNet50: traffic of a cut at avgpool over stored files"]
    assert share.published == 0.037 and abs(share.difference) < 0.01
    shown = [row for row in rows.values() if row.unit == "of input" and row.kind == SHOWN]
    assert [row.predicted > 1 for row in shown] == [True] * 4 + [False]


def test_the_simulations_agree_with_the_closed_form(rows):
    found = [row for row in rows.values() if row.unit == "s"]
    assert len(found) == 15 and all(row.kind == IDENTITY and row.tolerance == 1e-3 for row in found)
    limits = {row.name.rsplit("limited by ")[-1] for row in found}
    assert limits == {"load", "features", "receive", "Tuner"}


def test_a_wrong_pipeline_is_found(monkeypatch):
    """The rows are no closed form against itself: a Tuner that waits for the run after its own
    makes them miss."""
    train = pipeline._Simulation._train

    def late(self):
        self.outcome.ready_ps[:-1] = self.outcome.ready_ps[1:]
        return train(self)

    monkeypatch.setattr(pipeline._Simulation, "_train", late)
    monkeypatch.setattr(ndpipe_runs, "RUNS", (2,))
    found = list(ndpipe_runs.pipeline_rows())
    assert any(row.misses for row in found if row.unit == "s")


def test_claims(rows):
    """1.8x is fitted by the number of stores; no reading of 1.7x is gated."""
    (fit,) = [row for row in rows.values() if row.kind == FIT]
    assert fit.published == 1.8 and abs(fit.difference) < fit.tolerance
    readings = [row for row in rows.values() if "1.7x" in row.name]
    assert len(readings) == 5 and {row.kind for row in readings} == {SHOWN}
    assert readings[0].predicted == pytest.approx((12.24 + 6 * 0.688) / (3.06 + 6 * 1.204))
    assert fitted.faults(lambda: list(ndpipe.claim_rows())) == []


def test_updates(rows):
    delta = rows["ResNet50: delta"]
    assert delta.published == pytest.approx(8.196) and 0 < delta.difference < 1e-3
    assert 0 < rows["ResNet50: compressed delta, relative to the head"].predicted < 0.9


def test_a_wrong_update_is_found(monkeypatch):
    """A store that keeps its model, and a delta of the whole model."""
    small = layers.Builder("small", "ResNet50", (1, 1, 64))
    small.end_stage("frozen", small.dense(64, "frozen", 64))
    small.end_stage("head", small.dense(64, "head", 100))
    monkeypatch.setattr(ndpipe_runs, "network", lambda name: small.network())
    good = {row.name: row for row in ndpipe_runs.version_rows()}
    assert not any(row.misses for row in good.values())
    monkeypatch.setattr(versions.StoreModel, "finish", lambda self, update: None)
    bad = {row.name: row for row in ndpipe_runs.version_rows()}
    assert [name for name, row in bad.items() if row.misses] == [
        "ResNet50: the store then has the bytes of the Tuner (1 = yes)"
    ]


def test_as_a_command(rows, capsys, tmp_path, monkeypatch):
    """The rows are those that the suite gave here before."""
    again = dataclasses.replace(validate.NAMED["ndpipe"], rows=lambda progress: [*rows.values()])
    monkeypatch.setitem(validate.NAMED, "ndpipe", again)
    path = tmp_path / "rows.json"
    done = here(capsys, "validate", "ndpipe", "--json", path)
    assert (done.code, done.err) == (0, "") and "MISS" not in done.out
    assert json.loads(path.read_text()) == [row.data() for row in rows.values()]
