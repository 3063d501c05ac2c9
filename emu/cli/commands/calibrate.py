"""`ondie calibrate`: fit of a preset's constants to fio results, and the job file for fio.

Owns the options and the files. Does not own the fit (analysis/calibrate/) or its result
(results/calibration.py). Source: this project.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ondie.emu.analysis.calibrate import calibration, fio_jobs
from ondie.emu.analysis.calibrate.constants import MOST
from ondie.emu.analysis.calibrate.fio_result import read_fio
from ondie.emu.cli.click_helpers import WholeRange, progress_bar
from ondie.emu.cli.options import seed_option, split_names
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.config.config import load_preset
from ondie.emu.files import check_target, write_atomically
from ondie.emu.results.calibration import CalibrationResult
from ondie.emu.units import InputError, plural

MOST_WORKERS = 4


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(OutputOptions):
    """The options of `ondie calibrate`; each field has the name of its click parameter."""

    base: str
    constants: str | None
    seed: int
    target: Path | None
    jobs: Path | None
    workers: int | None
    force: bool

    def preset_file(self, results: tuple[Path, ...]) -> Path:
        """Return the path of the calibrated preset. Raises InputError if the name does not end in
        .toml, if the file exists and --force is not given, or if an output file cannot be
        written."""
        path = self.target or Path(f"{results[0].stem}.toml")
        if path.suffix != ".toml":
            raise InputError(f"--output {path}: the name of a preset file must end in .toml")
        self.check_new(path)
        self.check(*results, others=(path,))
        return path

    def check_new(self, path: Path) -> None:
        """Raise InputError if ``path`` exists and --force is not given."""
        if path.exists() and not self.force:
            raise InputError(f"{path}: exists; use --force to replace it, or use another name")


def write_jobs(given: CalibrateOptions) -> None:
    """Write the job file of --jobs. Raises InputError if the file exists and --force is not given,
    if it cannot be written, or if the preset of --from is invalid."""
    assert given.jobs is not None
    given.check_new(given.jobs)
    check_target(given.jobs)
    cfg = load_preset(given.base)
    text = fio_jobs.job_file(cfg, given.base, given.jobs.name)
    write_atomically({given.jobs: text.encode()})
    given.remark(
        f"wrote {given.jobs}: {plural(len(fio_jobs.conditions(cfg)), 'point')}; its first lines "
        "show the commands to run"
    )


@click.command("calibrate")
@click.argument("results", nargs=-1, type=click.Path(path_type=Path), metavar="FIO.json…")
@click.option("--from", "base", default="gen4-tlc", show_default=True, metavar="PRESET|FILE",
              help="Fit the constants of this preset or TOML file.")  # fmt: skip
@click.option("--constants", metavar="KEY,…",
              help=f"Fit these constants (comma-separated, at most {MOST}).  [default: firmware "
                   "times, link and channel rates, tR, tPROG]")  # fmt: skip
@seed_option("the points that are held out and the simulated requests")
@click.option("--output", "target", type=click.Path(path_type=Path), metavar="FILE.toml",
              help="Write the calibrated preset to this file.  [default: name of the first "
                   "result file, with the suffix .toml]")  # fmt: skip
@click.option(
    "--jobs", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the fio job file that measures the points, and do not fit anything.",
)  # fmt: skip
@click.option("--workers", type=WholeRange(1, 64), metavar="N",
              help=f"Simulate in N processes.  [default: the number of cores, at most "
                   f"{MOST_WORKERS}]")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace existing files.")
@output_options("the result", quiet="tables or remarks")
def run_calibrate(results: tuple[Path, ...], **values: Any) -> None:
    """Fit constants of a preset to fio results, and write the calibrated preset.

    FIO.json is the output of fio 3 with --output-format=json. Half of the measured points are not
    used in the fit; they test its result.
    """
    given = CalibrateOptions(**values)
    if given.jobs is not None:
        if results:
            raise InputError(
                f"--jobs {given.jobs} cannot be combined with fio results; remove {results[0]}"
            )
        write_jobs(given)
        return
    if not results:
        raise InputError(
            "calibrate: requires fio results; pass a FIO.json file, or use --jobs FILE "
            "to write a job file for fio"
        )
    path = given.preset_file(results)
    cfg = load_preset(given.base)
    points = [point for each in results for point in read_fio(each)]
    with progress_bar(given.quiet) as progress:
        found = calibration.calibrate(
            points, cfg, constants=split_names(given.constants, "--constants"), seed=given.seed,
            workers=given.workers or min(os.cpu_count() or 1, MOST_WORKERS),
            progress=None if progress is None else lambda share: progress("fit", share),
        )  # fmt: skip
    for line in calibration.remarks(found):
        given.remark(line)
    result = CalibrationResult(calibration.document(found), found)
    names = ", ".join(each.name for each in results)
    text = calibration.measured_preset(found, given.base, path, names)
    files = given.write_result(result, others={path: text.encode()})
    if (screen := given.console) is not None:
        result.show(screen)
    given.list_files(files)
