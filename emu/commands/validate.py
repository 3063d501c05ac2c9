"""`ondie validate`: rows of one suite or several, as tables, JSON and a figure.

Owns which options go with which suite, and the files. Does not own the rows (validate.py,
live/formats.py). Source: own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ondie.emu import validate as validation
from ondie.emu.drawing import suffix_of
from ondie.emu.report import check_target, write_atomically
from ondie.emu.units import InputError

Progress = Callable[[str, float], None] | None


@dataclass(frozen=True)
class Options:
    """What was given beside the name; None where it was not."""

    cases: Path | None = None
    runs: str | None = None
    steps: int | None = None
    seeds: Sequence[int] | None = None
    figure: Path | None = None

    def check(self, name: str | None) -> None:
        """InputError for an option of another suite."""
        for suite, given in (
            (validation.MQSIM, {"cases": self.cases, self.runs or "": self.runs}),
            (validation.FORMATS, {"steps": self.steps, "seeds": self.seeds, "figure": self.figure}),
        ):
            for flag, value in given.items():
                if value is not None and name != suite:
                    raise InputError(f"--{flag}: for ondie validate {suite} only")


def command(
    name: str | None,
    options: Options,
    json_path: Path | None,
    console: Console | None,
    progress: Progress,
) -> bool:
    """Run and write; whether every check row is within its tolerance. ``console``: where tables are
    shown. InputError: nothing is written."""
    options.check(name)
    if json_path is not None:
        check_target(json_path)
    files: dict[Path, bytes] = {}
    if options.figure is not None:
        suffix = suffix_of(options.figure)
        check_target(options.figure, *([json_path] if json_path is not None else []))
    if name == validation.FORMATS:
        rows, drawn = _formats(options, progress)
        if options.figure is not None:
            files[options.figure] = drawn[suffix]
    else:
        rows = validation.run(name, progress, options.cases, options.runs or "both")
    if json_path is not None:
        text = json.dumps([row.data() for row in rows], indent=1, allow_nan=False) + "\n"
        files[json_path] = text.encode()
    write_atomically(files)
    if console is not None:
        validation.show(rows, console)
    return not any(row.misses for row in rows)


def _formats(options: Options, progress: Progress) -> tuple[list[validation.Row], dict[str, bytes]]:
    try:
        from ondie.emu.live import formats
    except ModuleNotFoundError as error:
        raise InputError(
            f"formats: {error.name} is not installed; pip install 'ondie[train]' brings it"
        ) from error
    seeds = formats.SEEDS if options.seeds is None else options.seeds
    steps = formats.STEPS if options.steps is None else options.steps
    return formats.validate(seeds, steps, progress=progress)
