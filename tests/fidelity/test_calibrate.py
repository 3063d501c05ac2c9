"""Does a calibration find the constants of the drive that was measured, and is it honest?

tests/smoke/test_cli_calibrate.py asks the same at small counts, on a drive of four dies.
"""

import datetime
import functools
import hashlib
import json
import lzma
import resource
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import pytest

from ondie.emu.analysis.calibrate.calibration import (
    calibrate,
    document,
    measured_preset,
    remarks,
)
from ondie.emu.analysis.calibrate.constants import chosen
from ondie.emu.analysis.calibrate.fio_result import read_fio
from ondie.emu.analysis.calibrate.fit import UNDETERMINED
from ondie.emu.config.config import load_preset
from ondie.emu.units import InputError
from tests.fidelity import fio_json

FOLDER = Path(__file__).parent / "fio"
PROVENANCE = tomllib.loads((FOLDER / "PROVENANCE.toml").read_text("utf-8"))
TOLERANCE = 0.05
KNOWN = 0.025
"""Reported standard error up to which a constant is identifiable: two of them are TOLERANCE."""
FACTOR = 1.5
"""Largest factor between a constant of the measured drive and of the preset."""
MOST_SIGMAS = 4
"""Largest deviation of a fitted constant in multiples of its reported standard error."""
FINEST = 0.01
"""Deviation that is accepted whatever error is reported."""
FEWEST_KNOWN = 2
"""Fewest constants that are identifiable. Three are on the machine where this was written; the fit
is not the same in the last digits on others."""
CORES = 2
DEPTHS = (1, 16)
"""Queue depths of the points of a perturbed preset: half of the points of `--jobs`."""
LONGEST_S = 300
"""Longest fit on CORES cores."""


def perturbed(cfg, keys, seed):
    """A configuration with other constants, and these constants by key.

    The log of each factor is uniform. A draw that breaks a rule of the configuration is repeated.
    """
    rng = np.random.default_rng(seed)
    while True:
        values = {
            each.key: int(np.clip(each.base * FACTOR ** rng.uniform(-1, 1), each.low, each.high))
            for each in chosen(cfg, keys)
        }
        try:
            return cfg.replace(values), values
        except InputError:
            continue


def recording(name, folder):
    """A recording of fio as fio wrote it."""
    path = folder / f"{name}.json"
    path.write_bytes(lzma.decompress((FOLDER / PROVENANCE[name]["file"]).read_bytes()))
    return path


def processor_s():
    """Processor time of this process and of its children that have ended."""
    of = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in of)


def fitted(points, cfg, seed=0):
    """A calibration on CORES cores, which would take at most LONGEST_S on an idle machine."""
    begin = processor_s()
    found = calibrate(points, cfg, seed=seed, workers=CORES)
    assert processor_s() - begin < CORES * LONGEST_S
    return found


@functools.cache
def fitted_recording(name):
    """The calibration of gen4-tlc to a recording; docs/calibrate.md shows it."""
    with tempfile.TemporaryDirectory() as folder:
        points = read_fio(recording(name, Path(folder)))
    return fitted(points, load_preset("gen4-tlc"))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1])  # each takes minutes of processor time
def test_the_constants_of_a_perturbed_preset_are_found(tmp_path, seed):
    """All default constants of gen4-tlc at once, from half of the points of `--jobs`."""
    cfg = load_preset("gen4-tlc")
    drive, values = perturbed(cfg, None, seed)
    path = fio_json.write(tmp_path / "fio.json", drive, fio_json.grid(depths=DEPTHS), 30_000, seed)
    found = fitted(read_fio(path), cfg, seed)
    assert found.fitted.converged
    known = 0
    for row in document(found)["constants"]:
        if row["kept"]:
            assert row["relative_error"] > UNDETERMINED
            continue
        wrong = abs(np.log(row["value"] / values[row["key"]]))
        assert wrong <= max(MOST_SIGMAS * row["relative_error"], FINEST), row
        if row["relative_error"] <= KNOWN:
            known += 1
            assert wrong <= TOLERANCE, row
    assert known >= FEWEST_KNOWN
    errors = document(found)["errors"]
    for half in ("fitted", "held_out"):
        assert errors[half]["all"]["median"] < 0.02
        assert errors[half]["mean"]["mean"] < errors[f"{half}_before"]["mean"]["mean"] / 3


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["loop"])  # docs/calibrate.md has both
def test_a_fit_of_a_recorded_disk_says_what_it_is_worth(tmp_path, name):
    """The errors are those of the preset that is written, fitted and held-out points alike."""
    found = fitted_recording(name)
    data = document(found)
    target = tmp_path / "disk.toml"
    target.write_text(measured_preset(found, "gen4-tlc", target, f"{name}.json"))
    again = calibrate_errors(load_preset(target), found)
    for half in ("fitted", "held_out"):
        assert data["errors"][half]["all"]["mean"] == pytest.approx(again[half])
        assert again[half] < data["errors"][f"{half}_before"]["all"]["mean"]
    # A disk without flash: tR ends at its bound, and a remark says that the fit compensates for it.
    bounds = {row["key"]: row["at_bound"] for row in data["constants"]}
    assert (bounds["flash.t_read"], bounds["flash.bus"]) == ("low", "high")
    said = " ".join(remarks(found))
    assert "the fitted constants partly compensate" in said
    assert ("less accurately" in said) == (name == "loop")


def calibrate_errors(cfg, found):
    """Mean absolute errors of a configuration at the points of a calibration, computed anew."""
    from ondie.emu.analysis.calibrate.fit import Simulator
    from ondie.emu.analysis.calibrate.simulate import simulate, small_drive

    seeds = Simulator(cfg, found.points, found.constants, found.seed)
    drive = small_drive(cfg)
    halves = {"fitted": [], "held_out": []}
    for i, (point, held) in enumerate(zip(found.points, found.held, strict=True)):
        simulated = simulate(drive, point, seeds.seed_of(i)).flat()
        halves["held_out" if held else "fitted"] += [
            abs(simulated[key] / value - 1) for key, value in point.figures.flat().items()
        ]
    return {half: float(np.mean(errors)) for half, errors in halves.items()}


@pytest.mark.parametrize("name", sorted(PROVENANCE))
def test_recordings_are_as_their_provenance_says(tmp_path, name):
    entry, path = PROVENANCE[name], recording(name, tmp_path)
    text = path.read_bytes()
    assert hashlib.sha256(text).hexdigest() == entry["sha256"]
    result = json.loads(text)
    assert result["fio version"].replace("-", " ") in entry["versions"]
    day = datetime.datetime.fromtimestamp(result["timestamp"], datetime.UTC).date()
    assert day == entry["when"]
    assert result["global options"]["filename"] == "drive"
    points = read_fio(path)
    conditions = {(p.condition.read_share, p.condition.block_bytes, p.condition.depth)
                  for p in points}  # fmt: skip
    assert conditions == {(job.read_share, job.bs, job.iodepth) for job in fio_json.grid()}


@pytest.mark.parametrize("name", sorted(PROVENANCE))
def test_percentiles_of_recordings_are_middles_of_bins(tmp_path, name):
    """The bins with which fio_json writes its results are those of fio."""
    result = json.loads(recording(name, tmp_path).read_text())
    values = [value for job in result["jobs"] for direction in ("read", "write")
              for value in job[direction]["clat_ns"].get("percentile", {}).values()]  # fmt: skip
    assert len(values) == 3 * 48
    assert [fio_json.binned(value) for value in values] == values
