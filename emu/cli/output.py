"""The output options that all commands share: --json, --csv, --out, --figure and --quiet.

Owns these options, the checks of their files before a run, and the writing of the files after it.
Does not own results, figures or tables. Source: this project.

--json PATH writes the machine-readable result to a file. If PATH is `-`, it writes to standard
output, and no tables are printed. --csv PATH writes the rows of the main table in the same way.
--out DIR writes result.json, and the figures if the command draws any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import click
from rich.console import Console

from ondie.emu.cli.console import console
from ondie.emu.cli.options import Decorator, add_options
from ondie.emu.files import IMAGES, check_target, suffix_of, write_atomically
from ondie.emu.results.result import Result, as_csv, as_json, rows_of
from ondie.emu.units import InputError

STANDARD_OUTPUT = Path("-")
Images = Callable[[], Mapping[str, bytes]]
"""Function that draws a figure and returns {"png": bytes, "pdf": bytes}."""


class FileOrDash(click.Path):
    """Parameter type of --json and --csv: a file or `-`.

    A value that looks like an option, such as --quiet, is an error, because the user has omitted
    the file.
    """

    name = "path"

    def __init__(self, option: str) -> None:
        super().__init__(path_type=Path, allow_dash=True)
        self.option = option

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if str(value).startswith("-") and str(value) != "-":
            self.fail(
                f"{value!r} looks like an option; {self.option} takes a file, or - for standard "
                f"output: {self.option} -", param, ctx,
            )  # fmt: skip
        return super().convert(value, param, ctx)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options of a command that has a machine-readable result."""

    json_path: Path | None = None
    csv_path: Path | None = None
    out: Path | None = None
    quiet: bool = False
    draws: ClassVar[bool] = False
    """True if the command that has these options draws a figure."""

    @property
    def names(self) -> tuple[str, str]:
        """Base names of the result and figure files in the folder of --out, without suffixes."""
        return "result", "figure"

    @property
    def console(self) -> Console | None:
        """The console for tables; None if --quiet is given or data is written to standard
        output."""
        taken = STANDARD_OUTPUT in (self.json_path, self.csv_path)
        return None if self.quiet or taken else console()

    def remark(self, line: str) -> None:
        """Write a line to standard error unless --quiet is given."""
        if not self.quiet:
            click.echo(f"ondie: {line}", err=True)

    def json_files(self) -> list[Path]:
        """Return the paths of the JSON files to write."""
        found = [] if self.json_path in (None, STANDARD_OUTPUT) else [self.json_path]
        found += [] if self.out is None else [self.out / f"{self.names[0]}.json"]
        return [path for path in found if path is not None]

    def csv_files(self) -> list[Path]:
        """Return the paths of the CSV files to write."""
        path = self.csv_path
        return [] if path is None or path == STANDARD_OUTPUT else [path]

    def figure_files(self) -> dict[Path, str]:
        """Return the path and the image format of each figure to write."""
        if self.out is None or not self.draws:
            return {}
        return {self.out / f"{self.names[1]}.{suffix}": suffix for suffix in IMAGES}

    def check(self, *inputs: Path | str, others: tuple[Path, ...] = ()) -> None:
        """Raise InputError if a file cannot be written, is one of ``inputs``, or is written twice,
        or if --out is `-`.

        ``others``: further files that the command writes.
        """
        if self.out == Path(STANDARD_OUTPUT):
            raise InputError("--out -: must be a folder; --json - writes to standard output")
        if self.json_path == self.csv_path == STANDARD_OUTPUT:
            raise InputError(
                "--json - and --csv -: both write to standard output; name a file for one of them"
            )
        taken: set[Path] = set()
        for path in (*self.json_files(), *self.csv_files(), *self.figure_files(), *others):
            check_target(path, *inputs)
            if path.resolve() in taken:
                raise InputError(
                    f"{path}: two options write this file; use another name for one of them"
                )
            taken.add(path.resolve())

    def write(
        self, result: Any, draw: Images | None = None, others: Mapping[Path, bytes] | None = None,
        *, sort_keys: bool = False, rows: Callable[[], list[dict[str, Any]]] | None = None,
    ) -> list[Path]:  # fmt: skip
        """Write the result as JSON and CSV, the figure, and ``others``: all files or none.

        ``result``: data, or a string that is already JSON. ``rows``: function that returns the rows
        of the CSV file; if it is None, rows_of derives the rows from the data. ``draw``: function
        that draws the figure. ``others``: further files and their contents. Returns the written
        files in the order in which they are listed for the user.
        """
        files: dict[Path, bytes] = {}
        if self.json_path is not None or self.out is not None:
            text = result if isinstance(result, str) else as_json(result, sort_keys)
            files |= dict.fromkeys(self.json_files(), text.encode())
        if self.csv_path is not None:
            table = as_csv(rows_of(result) if rows is None else rows())
            files |= dict.fromkeys(self.csv_files(), table.encode())
        wanted = self.figure_files()
        if wanted:
            assert draw is not None
            images = draw()
            files |= {path: images[suffix] for path, suffix in wanted.items()}
        files |= others or {}
        write_atomically(files)
        if self.json_path == STANDARD_OUTPUT:
            click.echo(text, nl=False)
        if self.csv_path == STANDARD_OUTPUT:
            click.echo(table, nl=False)
        return list(files)

    def write_result(
        self, result: Result, draw: Images | None = None, others: Mapping[Path, bytes] | None = None
    ) -> list[Path]:
        """Write a result object; the other arguments are those of `write`."""
        return self.write(result.data, draw, others, sort_keys=result.sort_keys, rows=result.rows)

    def list_files(self, files: list[Path]) -> None:
        """Print the names of the files that were written."""
        if files and (screen := self.console) is not None:
            screen.print("written: " + ", ".join(map(str, files)))


@dataclass(frozen=True, kw_only=True)
class FigureOptions(OutputOptions):
    """Options of a command that also draws a figure."""

    figure: Path | None = None
    draws: ClassVar[bool] = True

    def figure_files(self) -> dict[Path, str]:
        """Return the path and the image format of each figure to write.

        Raises InputError if the suffix of --figure is not png or pdf.
        """
        found = super().figure_files()
        return found if self.figure is None else {self.figure: suffix_of(self.figure)} | found


def output_options(
    result: str, *, figure: str | None = None, out: str | None = None, quiet: str = "tables"
) -> Decorator:
    """Return a decorator that adds the options of OutputOptions, or of FigureOptions with
    ``figure``.

    ``result``, ``figure``: noun phrases for the help text. ``out``: help text of --out; None
    selects the default text. ``quiet``: output that --quiet suppresses in addition to the progress
    bar.
    """
    folder = "result.json" if figure is None else "result.json and the figure (PNG and PDF)"
    options: list[Decorator] = [
        click.option("--json", "json_path", type=FileOrDash("--json"), metavar="PATH|-",
                     help=f"Write {result} as JSON to a file, or to standard output (-)."),
        click.option("--csv", "csv_path", type=FileOrDash("--csv"), metavar="PATH|-",
                     help="Write the rows of the main table as CSV to a file, or to standard "
                     "output (-)."),
        click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
                     help=out or f"Write {folder} to this folder."),
        click.option("--quiet", is_flag=True, help=f"Print no progress bar and no {quiet}."),
    ]  # fmt: skip
    if figure is not None:
        options.insert(3, click.option("--figure", type=click.Path(path_type=Path), metavar="FILE",
                                       help=f"Draw {figure} to FILE.png or FILE.pdf."))  # fmt: skip

    return add_options(*options)
