"""Does `ondie calibrate` write a preset that describes the measured drive, and refuse the rest?"""

import contextlib
import io
import json

import numpy as np
import pytest

from ondie.emu.analysis.calibrate import fit
from ondie.emu.analysis.calibrate import simulate as simulate_points
from ondie.emu.analysis.calibrate.constants import DEFAULT, RANGES
from ondie.emu.analysis.calibrate.point import PERCENTILES, Condition, Figures, Latency, point
from ondie.emu.analysis.calibrate.simulate import EXTENT, simulate, small_drive
from ondie.emu.cli.main import main
from ondie.emu.config.config import load_preset
from ondie.emu.engine.run import build
from ondie.emu.replay.block_trace import capacity
from tests.fidelity import fio_json
from tests.fidelity.fio_json import Job, document, plain
from tests.fidelity.test_calibrate import KNOWN, TOLERANCE, perturbed
from tests.smoke.commands import files, here, refused

DRIVE = """base = "gen4-tlc"

[flash]
channels = { value = 2, source = "derived", ref = "a small drive" }
dies_per_channel = { value = 2, source = "derived", ref = "a small drive" }
planes_per_die = { value = 2, source = "derived", ref = "a small drive" }
blocks_per_plane = { value = 100, source = "derived", ref = "a small drive" }

[cache]
capacity = { value = "2 MiB", source = "derived", ref = "a small drive" }
destage_pages = { value = 48, source = "derived", ref = "two word lines of each die" }
"""
CONSTANTS = ("flash.t_read", "flash.t_program", "frontend.write_delay", "link.up")
SEED = 4
JOBS = [Job(rw, 4096, depth) for rw in ("randread", "randwrite") for depth in (1, 16)]
JOBS += [Job("randrw", 4096, 4), Job("randread", 65536, 16), Job("randwrite", 65536, 1)]
JOBS += [Job("randwrite", 65536, 16)]


class Run:
    """A run on a measurement of a drive with other constants: its files, result and output."""

    def __init__(self, folder):
        self.base, self.target = folder / "small.toml", folder / "presets" / "measured.toml"
        self.base.write_text(DRIVE)
        self.cfg = load_preset(self.base)
        drive, self.values = perturbed(self.cfg, CONSTANTS, SEED)
        path = fio_json.write(folder / "fio.json", drive, JOBS, 5_200, SEED)
        words = ["calibrate", path, "--from", self.base, "--constants", ",".join(CONSTANTS),
                 "--workers", "1", "--seed", SEED, "--output", self.target,
                 "--json", folder / "result.json"]  # fmt: skip
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            with pytest.raises(SystemExit) as end:
                main([str(word) for word in words])
        assert not end.value.code, err.getvalue()
        self.out = out.getvalue()
        self.data = json.loads((folder / "result.json").read_text())
        self.constants = {row["key"]: row for row in self.data["constants"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory, counts):
    """At small counts, a fit of few stages with short measurements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "BUDGET", 2048)  # the pool of a large drive takes longer to make
        patch.setattr(simulate_points, "WINDOW", counts(2000, 3000))
        patch.setattr(fit, "STAGES", counts(2, fit.STAGES))
        patch.setattr(fit, "MOST_DESIGNS", counts(8, fit.MOST_DESIGNS))
        yield Run(tmp_path_factory.mktemp("calibrate"))


def test_the_constants_of_the_measured_drive_are_found(run):
    known = {key: row for key, row in run.constants.items() if row["relative_error"] <= KNOWN}
    assert len(known) >= 2  # three here; the last digits of a fit depend on the processor
    for key, row in known.items():
        assert row["value"] == pytest.approx(run.values[key], rel=TOLERANCE), key


def test_a_constant_without_influence_keeps_its_value(run):
    """The link is faster than the four dies, so that its rate is in no figure."""
    row = run.constants["link.up"]
    assert row["kept"] and not row["determined"] and row["relative_error"] > 0.3
    assert "not determined; as in the preset" in run.out


def test_the_preset_has_the_determined_constants_as_measured(run):
    cfg = load_preset(run.target)
    assert cfg.system.name == "measured"
    for key, row in run.constants.items():
        leaf, before = cfg.leaf(key), run.cfg.leaf(key)
        if not row["kept"]:
            assert (leaf.source, leaf.value) == ("measured", row["value"])
            assert leaf.low <= leaf.value <= leaf.high
            assert "fio.json" in leaf.ref
        else:
            assert leaf == before and row["value"] is None
    others = set(cfg.records) - set(CONSTANTS) - {"system.name"}
    assert all(cfg.leaf(key) == run.cfg.leaf(key) for key in others)


def test_replay_takes_the_preset(capsys, run):
    done = here(capsys, "replay", "mixed-4k", "--device", run.target, "--queue-depth", "4",
                "--limit", "200", "--precondition", "none")  # fmt: skip
    assert done.code == 0, done


def test_the_errors_are_those_of_the_points(run):
    """Fitted and held-out errors follow from the rows, and the preset alone was worse."""
    for name, held in (("fitted", False), ("held_out", True)):
        rows = [row for row in run.data["points"] if row["held_out"] == held]
        assert len(rows) == len(JOBS) / 2
        found = [abs(row["simulated"][key] / row["measured"][key] - 1)
                 for row in rows for key in row["measured"]]  # fmt: skip
        summary = run.data["errors"][name]["all"]
        assert summary["mean"] == pytest.approx(np.mean(found))
        assert summary["largest"] == pytest.approx(max(found))
        assert summary["mean"] < run.data["errors"][f"{name}_before"]["all"]["mean"] / 3


def test_covariance_and_errors_agree(run):
    covariance = np.array(run.data["covariance"])
    assert covariance.shape == (len(CONSTANTS),) * 2
    assert np.allclose(covariance, covariance.T)
    assert (np.linalg.eigvalsh(covariance) > 0).all()
    for row, variance in zip(run.data["constants"], np.diag(covariance), strict=True):
        assert row["relative_error"] >= variance**0.5 * 0.999
        assert row["determined"] == (row["relative_error"] <= 0.3)
        assert row["range"]["low"] <= (row["value"] or row["before"]) <= row["range"]["high"]
    assert len(run.data["singular_values"]) == len(CONSTANTS)


def test_the_tables_name_constants_and_points(run):
    for key in CONSTANTS:
        assert key in run.out
    fitted, held = run.out.partition("Errors of each point")[2].split("held out")
    for row in run.data["points"]:
        cells = next(line.split("│") for line in (held if row["held_out"] else fitted).splitlines()
                     if f"{row['measured']['iops']:,.0f}, " in line)  # fmt: skip
        assert f"{row['error']['iops']:+.1%}" in cells[3]
    assert "written: " in run.out and "measured.toml" in run.out.replace("\n", "")


def point_file(folder, jobs, name="fio.json"):
    path = folder / name
    path.write_text(json.dumps(document([plain(job, latency) for job, latency in jobs])))
    return path


DEPTHS = [(Job("randread", 4096, depth), 80.0) for depth in (1, 2, 4, 8)]


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        (DEPTHS[:1], "1 point (4.00 KiB randread depth 1): a fit needs at least 4 conditions"),
        ([*DEPTHS, (DEPTHS[0][0], 800.0)], "under the same conditions; measure again"),
        ([*DEPTHS, (Job("randread", 4096, 512), 800.0)],
         "depth 512: the queue of gen4-tlc holds 256 commands (frontend.queue_depth)"),
        ([*DEPTHS, (Job("randread", 2 << 20, 1), 800.0)],
         "bs = 2.00 MiB: drive gen4-tlc transfers at most 1.00 MiB per command"),
        ([*DEPTHS, (Job("randwrite", 1 << 20, 256), 800.0)],
         "1.00 MiB randwrite depth 256: simulating this point would write 12.8 GiB (limit: "
         "4.00 GiB)"),
    ],
)  # fmt: skip
def test_points_that_cannot_be_fitted(capsys, tmp_path, monkeypatch, jobs, words):
    monkeypatch.chdir(tmp_path)
    path = point_file(tmp_path, jobs)
    refused(here(capsys, "calibrate", path), words)
    assert files(tmp_path) == ["fio.json"]


def test_results_of_other_programs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terse.json").write_text("3;fio-3.33;r4;0;0;243604;243360;60840\n")
    refused(
        here(capsys, "calibrate", "terse.json"), "terse.json: the file contains fio's terse output"
    )
    refused(here(capsys, "calibrate", "missing.json"), "missing.json: cannot be read")
    assert files(tmp_path) == ["terse.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "requires fio results"),
        (["fio.json", "--jobs", "new.fio"], "--jobs new.fio cannot be combined with fio results"),
        (["fio.json", "--output", "drive.json"], "must end in .toml"),
        (["fio.json", "--output", "there.toml"], "there.toml: exists; use --force"),
        (["fio.json", "--output", "new.toml", "--json", "new.toml"], "two options write this file"),
        (["fio.json", "--from", "gen5-tlc"], "unknown preset"),
        (["fio.json", "--constants", "flash.t_reed"], "nearest: flash.t_read"),
        (["fio.json", "--constants", "flash.channels"], "flash.channels cannot be fitted"),
        (["fio.json", "--constants", "link.up,link.up"], "link.up is given twice"),
        (["fio.json", "--constants", "link.up,"], "a name is empty"),
        (["fio.json", "--constants", ",".join(RANGES)], "constants; use at most 8"),
        (["--jobs", "there.toml"], "there.toml: exists; use --force"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_used(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    point_file(tmp_path, DEPTHS)
    (tmp_path / "there.toml").write_text("mine")
    refused(here(capsys, "calibrate", *words), message)
    assert files(tmp_path) == ["fio.json", "there.toml"]
    assert (tmp_path / "there.toml").read_text() == "mine"


def test_a_job_file_is_written_for_a_preset(capsys, tmp_path):
    path = tmp_path / "drive.fio"
    done = here(capsys, "calibrate", "--jobs", path, "--from", "gen4-tlc")
    assert done.code == 0 and done.out == ""
    assert done.err.startswith(f"ondie: wrote {path}: 36 points")
    assert "\n[randrw70-16k-4]\nstonewall\nrw=randrw\nrwmixread=70\nbs=16k\n" in path.read_text()
    done = here(capsys, "calibrate", "--jobs", path, "--force", "--quiet")
    assert (done.code, done.err) == (0, "")


def test_eight_constants_are_fitted_by_default():
    assert len(DEFAULT) == 8
    cfg = load_preset("gen4-tlc")
    assert all(cfg.leaf(key).unit for key in RANGES)


def test_a_drive_with_a_reservoir_is_simulated_within_its_host_part():
    """The host addresses half of the flash of csd-pe."""
    cfg = small_drive(load_preset("csd-pe"))
    assert capacity(cfg) < EXTENT
    measured = Figures(40_000.0, {"read": Latency(100.0, dict.fromkeys(PERCENTILES, 100.0))})
    found = simulate(cfg, point(Condition(1.0, True, 16384, 4), measured, "a point"), seed=1)
    assert found.iops * found.latency["read"].mean / 1e6 == pytest.approx(4, rel=0.01)
