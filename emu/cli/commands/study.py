"""`ondie study formats|errors|on-die-bytes`: training runs with number formats and with raw bit
errors; on-die updates of encrypted and randomized pages.

Owns the options and the output. Does not own the training runs and the pages (ondie.emu.studies).
Source: this project.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from ondie.emu.analysis.row import CHECK, Row, show
from ondie.emu.cli.click_helpers import WHOLE, Group, progress_bar
from ondie.emu.cli.figures import saved
from ondie.emu.cli.options import DriveOptions, drive_options
from ondie.emu.cli.output import FigureOptions, OutputOptions, output_options
from ondie.emu.units import InputError, digits

Trainings = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class StudyOptions(FigureOptions):
    """The options of `ondie study formats` or `errors`. None selects the default of the study."""

    steps: int | None
    seeds: list[int] | None
    rates: list[float] | None = None
    exposure: int | None = None

    def training_options(self) -> dict[str, Any]:
        """Return the options that the user gave, as keyword arguments of the study's
        `run_study`.
        """
        names = ("steps", "seeds", "rates", "exposure")
        return {n: value for n in names if (value := getattr(self, n)) is not None}


@click.group(cls=Group)
def study() -> None:
    """Study number formats and bit errors in training. Check the bytes of on-die updates."""


def seeds_option(text: str) -> list[int]:
    """Convert a list such as "1,2,3" to integers. Raises click.BadParameter for any other text."""
    try:
        return [digits(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: use integers, such as 1,2,3") from None


def rates_option(text: str) -> list[float]:
    """Convert a list such as "1e-8,1e-6" to floating-point numbers. Raises click.BadParameter for
    any other text."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a list of numbers; write, for example, 1e-8,1e-6"
        ) from None


@study.command()
@click.option("--steps", type=WHOLE, help="Train for this number of steps.  [default: 1000]")
@click.option("--seeds", type=seeds_option, metavar="N,N,…",
              help="Train once with each seed.  [default: 1,2,3]")  # fmt: skip
@output_options("the rows", figure="the loss curves", quiet="tables")
def formats(**values: Any) -> None:
    """Train a small GPT with each number format of the update and with FP32.

    Exit code 1: the loss with a format differs from the loss with FP32 by more than the tolerance.
    """
    run("formats", StudyOptions(**values))


@study.command()
@click.option("--steps", type=WHOLE, help="Train for this number of steps.  [default: 200]")
@click.option("--seeds", type=seeds_option, metavar="N,N,…",
              help="Train once with each seed.  [default: 1,2,3]")  # fmt: skip
@click.option("--rates", type=rates_option, metavar="X,X,…",
              help="Train with these raw bit error rates (comma-separated), such as "
                   "1e-8,1e-6.")  # fmt: skip
@click.option("--exposure", type=WHOLE, metavar="N",
              help="Flip as many bits as errors would flip in a model N times as large.  "
                   "[default: 1]")  # fmt: skip
@click.option("--codes", is_flag=True,
              help="Train with implemented BCH and LDPC codes, and compare them with the "
                   "capability model.")  # fmt: skip
@output_options("the rows", figure="the increase of the loss by bit error rate", quiet="tables")
def errors(codes: bool, **values: Any) -> None:
    """Train two small models with raw bit errors in pages that are updated on the die.

    Exit code 1: the emulated drive and the drawn bit errors disagree.
    """
    run("codes" if codes else "errors", StudyOptions(**values))


@dataclass(frozen=True, kw_only=True)
class BytesOptions(DriveOptions, OutputOptions):
    """The options of `ondie study on-die-bytes`."""

    codes: str
    tweak: str
    seed: int


@study.command("on-die-bytes")
@drive_options("optimstore-r1", several=False)
@click.option("--codes", default="capability,bch,ldpc", show_default=True, metavar="CODE,…",
              help="Test these values of ecc.code (comma-separated).")  # fmt: skip
@click.option("--tweak", default="logical", show_default=True,
              type=click.Choice(["logical", "physical"]),
              help="Use the logical or the physical page number as the tweak of "
                   "AES-XTS.")  # fmt: skip
@click.option("--seed", type=WHOLE, default=1, show_default=True,
              help="Set the seed of the values, the key, the randomizer and the bit "
                   "errors.")  # fmt: skip
@output_options("the cells")
def on_die_bytes(**values: Any) -> None:
    """Update encrypted pages on the die, and read them through the controller.

    For every combination of cipher (none, controller, die), randomizer, pe.protection and ecc.code,
    the bytes are computed and compared with the prediction of the model. Exit code 1: the bytes of
    a combination differ from the prediction.
    """
    from ondie.emu.studies.on_die_bytes import check_options, run_study
    from ondie.emu.studies.on_die_bytes_tables import show

    given = BytesOptions(**values)
    cfg, codes = given.load_drive(), given.codes.split(",")
    check_options(cfg, given.settings, codes, given.tweak, given.seed)
    given.check()
    with progress_bar(given.quiet) as progress:
        cells = list(run_study(cfg, codes, given.tweak, given.seed, progress))
    files = given.write([cell.data() for cell in cells])
    if (screen := given.console) is not None:
        show(cells, screen)
    given.list_files(files)
    if not all(cell.agrees for cell in cells):
        sys.exit(1)


def run(name: str, given: StudyOptions) -> None:
    """Run study ``name``: train models, write the rows, print the tables.

    The exit code is 1 if a check row is outside its tolerance.
    """
    given.check()
    with progress_bar(given.quiet) as progress:
        found: tuple[Any, ...] = trainings(name)(
            saved, **given.training_options(), progress=progress
        )
    rows: list[Row] = found[0]
    tables = [table for part in found[2:] for table in part]
    files = given.write([row.data() for row in rows], lambda: found[1])
    if (screen := given.console) is not None:
        for table in tables:
            screen.print(table)
            screen.print()
        # The tables of a study hold its SHOWN rows.
        show([row for row in rows if row.kind == CHECK] if tables else rows, screen)
    given.list_files(files)
    if any(row.misses for row in rows):
        sys.exit(1)


def trainings(name: str) -> Trainings:
    """Return the function that runs study ``name``. Raises InputError if torch is not installed."""
    try:
        module = import_module(f"ondie.emu.studies.{name}")
    except ModuleNotFoundError as error:
        raise InputError(
            f"study {name}: {error.name} is not installed; install it with: "
            "pip install 'ondie[train]'"
        ) from error
    found: Trainings = module.run_study
    return found
