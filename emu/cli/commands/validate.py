"""`ondie validate`: rows of one suite or several, as tables, JSON and a figure.

Owns which options go with which suite, and the files. Does not own the rows (validate/, live/).
Source: own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ondie.emu import validate as validation
from ondie.emu.cli.click_helpers import progress_bar
from ondie.emu.cli.console import console as screen
from ondie.emu.cli.figures.save import saved, suffix_of
from ondie.emu.cli.files import check_target, write_atomically
from ondie.emu.units import InputError

Progress = Callable[[str, float], None] | None

TRAINED: dict[str, tuple[str, ...]] = {
    "formats": ("steps", "seeds", "figure"),
    "errors": ("steps", "seeds", "rates", "exposure", "figure"),
}
"""Suites that train for real, one module of emu/live each, and their options; a figure is drawn
with the rows, and there may be tables beside theirs."""
SWITCHES = {"runs": "--{value}"}
"""Options whose flag is their value."""


def check_options(name: str | None, given: Mapping[str, Any]) -> None:
    """InputError for an option that does not go with suite ``name``."""
    takes = {n: suite.options for n, suite in validation.NAMED.items()} | TRAINED
    for option, value in given.items():
        if option not in takes.get(name or "", ()):
            owners = " or ".join(f"ondie validate {n}" for n in takes if option in takes[n])
            flag = SWITCHES.get(option, "--{option}").format(option=option, value=value)
            raise InputError(f"{flag}: for {owners} only")


def command(
    name: str | None,
    options: Mapping[str, Any],
    json_path: Path | None,
    console: Console | None,
    progress: Progress,
) -> bool:
    """Run and write; whether every check row is within its tolerance. ``options``: beside the name,
    None where not given. ``console``: where tables are shown. InputError: nothing is written."""
    given = {option: value for option, value in options.items() if value is not None}
    check_options(name, given)
    if json_path is not None:
        check_target(json_path)
    files: dict[Path, bytes] = {}
    tables: list[Any] = []
    figure = given.pop("figure", None)
    if figure is not None:
        suffix = suffix_of(figure)
        check_target(figure, *([json_path] if json_path is not None else []))
    if name in TRAINED:
        rows, drawn, *more = _trained(name, given, progress)
        tables = [table for part in more for table in part]
        if figure is not None:
            files[figure] = drawn[suffix]
    else:
        rows = validation.run(name, progress, given, TRAINED)
    if json_path is not None:
        text = json.dumps([row.data() for row in rows], indent=1, allow_nan=False) + "\n"
        files[json_path] = text.encode()
    write_atomically(files)
    if console is not None:
        for table in tables:
            console.print(table)
            console.print()
        # What is only shown is in tables of the suite's own, where it has any.
        checked = [row for row in rows if row.kind == validation.CHECK]
        validation.show(checked if tables else rows, console)
    return not any(row.misses for row in rows)


def _trained(name: str, options: Mapping[str, Any], progress: Progress) -> tuple[Any, ...]:
    """Rows, the figure by suffix, and what the suite has to show beside them."""
    try:
        suite = import_module(f"ondie.emu.studies.{name}")
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name}: {error.name} is not installed; pip install 'ondie[train]' brings it"
        ) from error
    found: tuple[Any, ...] = suite.validate(saved, **options, progress=progress)
    return found


def _seeds(text: str) -> list[int]:
    """Whole numbers with commas between them."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: want whole numbers, such as 1,2,3") from None


def _rates(text: str) -> list[float]:
    """Numbers with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: want numbers, such as 1e-8,1e-6") from None


@click.command("validate")
@click.argument("name", required=False)
@click.option(
    "--cases",
    type=click.Path(path_type=Path),
    help="mqsim: folder of its cases, else those of the checkout.",
)
@click.option("--recorded", "runs", flag_value="recorded", help="mqsim: recorded addresses alone.")
@click.option("--own", "runs", flag_value="own", help="mqsim: own addresses alone.")
@click.option("--both", "runs", flag_value="both", help="mqsim: both, which is the default.")
@click.option("--model", help="smart-infinity: parameters in billions, such as 8.4b.")
@click.option("--drives", type=int, help="smart-infinity: drives behind the shared link.")
@click.option("--optimizer", help="smart-infinity: adam, momentum or adagrad.")
@click.option("--compression", help="smart-infinity: percent of the gradient's bytes, or none.")
@click.option("--steps", type=int, help="formats, errors: of each training; 1000, 200.")
@click.option("--seeds", type=_seeds, help="formats, errors: such as 1,2,3, the default.")
@click.option("--rates", type=_rates, help="errors: raw bit error rates, such as 1e-8,1e-6.")
@click.option(
    "--exposure", type=int, help="errors: how many times larger a model the small ones stand for."
)
@click.option("--figure", type=click.Path(path_type=Path),
              help="formats, errors: FILE.png or FILE.pdf.")  # fmt: skip
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Rows as JSON.")
@click.option("--quiet", is_flag=True, help="No progress bar and no table.")
def run_validate(name: str | None, json_path: Path | None, quiet: bool, **options: Any) -> None:
    """Hold the simulation against published numbers and closed forms. Exit 1 on a miss.

    NAME is one of bytes, closed-forms and rates, which run without it; optimstore: what OptimStore
    published; mqsim: MQSim's results on its own files; zero: host offload as DeepSpeed does it, in
    every configuration; smart-infinity: its fit row and shapes, or any run of it; stannis: what
    Stannis published, and what other allocations give and risk; hypertune: new batches for nodes
    that others use as well; tunnel: commands and times of TCP/IP over NVMe; formats: a small GPT
    trained with each format of the update, beside FP32; errors: two small models trained with raw
    bit errors in the pages that the dies compute with.
    """
    with progress_bar(quiet) as progress:
        good = command(name, options, json_path, None if quiet else screen(), progress)
    if not good:
        sys.exit(1)
