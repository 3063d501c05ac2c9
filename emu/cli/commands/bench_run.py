"""`ondie bench kernels|engine|service|serve|tunnel|recovery`: progress, table, remarks and files.

Owns the commands. Does not own the measurements (ondie.kernels.bench, ondie.emu.validate.speed,
ondie.emu.live.tunnel_bench). Source: this project.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ondie.emu.cli.output import FigureOptions, OutputOptions
from ondie.emu.live import tunnel_bench
from ondie.emu.units import InputError
from ondie.emu.validate.speed import recovery, sections, servers, service
from ondie.emu.validate.speed.plan import SECTIONS, Plan
from ondie.kernels import ECC, FORMATS
from ondie.kernels.bench import run
from ondie.kernels.bench.contenders import SHAPES


@dataclass(frozen=True, kw_only=True)
class KernelBenchOptions(FigureOptions):
    """The options of `ondie bench kernels`."""

    sizes: tuple[int, ...] = ()
    threads: int = 1
    ops: tuple[str, ...] = ("adam", "sgd")
    formats: tuple[str, ...] = ("fp32",)
    shapes: tuple[str, ...] = ("flat",)

    def all_ops(self) -> tuple[str, ...]:
        """Return the names of the selected operations. Each value of --op is a comma-separated list
        of names."""
        names = (op.strip() for value in self.ops for op in value.split(","))
        return tuple(dict.fromkeys(names))

    def check_codes(self) -> None:
        """Raise InputError if all operations are error-correcting codes and an option without
        effect on these codes is given."""
        if not all(op in ECC for op in self.all_ops()):
            return
        for name, differs in {
            "--size": self.sizes != (), "--threads": self.threads != 1,
            "--format": self.formats != ("fp32",), "--shape": self.shapes != ("flat",),
        }.items():  # fmt: skip
            if differs:
                raise InputError(
                    f"{name}: has no effect on error-correcting codes; remove this option, or "
                    "add an optimizer operation, such as --op adam"
                )

    def all_formats(self) -> tuple[str, ...]:
        """Return the names of the chosen number formats; "all" selects every format."""
        return tuple(FORMATS) if "all" in self.formats else self.formats

    def all_shapes(self) -> tuple[str, ...]:
        """Return the names of the chosen array shapes; "all" selects every shape."""
        return tuple(SHAPES) if "all" in self.shapes else self.shapes


def kernels_command(given: KernelBenchOptions) -> None:
    """Run `ondie bench kernels`: measure the kernels, print the table, write the files.

    On a terminal, the progress is shown. Remarks go to standard error. Either all files are written
    or none. Raises InputError or KernelError for invalid options.
    """
    given.check()
    given.check_codes()
    if given.figure_files() and all(op in ECC for op in given.all_ops()):
        what = "--out" if given.figure is None else "--figure"
        raise InputError(
            f"{what}: the roofline cannot show error-correcting codes; add an optimizer "
            "operation, such as --op adam"
        )

    def draw() -> Mapping[str, bytes]:
        from ondie.emu.cli.figures import saved
        from ondie.kernels.bench import roofline  # matplotlib takes a second to import

        return roofline.draw(bench, saved)

    talk = Console(stderr=True)
    visible = not given.quiet and sys.stderr.isatty()
    with talk.status("") if visible else nullcontext() as status:
        bench = run.run_kernels(
            given.sizes or None, given.threads, given.all_ops(),
            progress=None if status is None else status.update,
            formats=given.all_formats(), shapes=given.all_shapes(),
        )  # fmt: skip
    files = given.write(run.as_json(bench), draw)
    for remark in bench.remarks:
        talk.print(remark, highlight=False, markup=False, soft_wrap=True)
    if (screen := given.console) is not None:
        run.print_table(bench, screen)
    given.list_files(files)


@dataclass(frozen=True, kw_only=True)
class EngineBenchOptions(OutputOptions):
    """The options of `ondie bench engine`."""

    only: tuple[str, ...] = ()
    peer: Path | None = None
    cases: Path | None = None
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class ServiceBenchOptions(OutputOptions):
    """The options of `ondie bench service`, `ondie bench tunnel` and `ondie bench recovery`."""

    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class ServeBenchOptions(OutputOptions):
    """The options of `ondie bench serve`."""

    nbdkit: Path | None = None
    quick: bool = False


TARGETS = "Targets are this project's own."
TIMES = ("s", "ms", "us", "ns")
"""Units of time. A measurement with one of these units meets its target if it is not above the
target; with any other unit, if it is not below the target."""


def judged(row: run.Row) -> str:
    """Return, as text, the ratio of a measurement to the value with which it is compared. If this
    value is a target, the text states whether the target is met."""
    text = f"{row.ratio:.3g}"
    if not row.anchor.startswith("target "):
        return text
    met = row.ratio <= 1 if row.unit in TIMES else row.ratio >= 1
    return f"{text} {'met' if met else 'missed'}"


def table_of_rows(measured: run.Bench, what: str, conditions: str = "") -> Table:
    """Return a table of the measurements of ``what``: value, unit and comparison.

    The caption has ``conditions`` and a description of the machine.
    """
    machine = ", ".join(f"{key} {value}" for key, value in measured.machine.items())
    targets = TARGETS if any(row.anchor.startswith("target ") for row in measured.rows) else ""
    caption = "\n".join(filter(None, (conditions, targets, machine)))
    table = Table(title=f"{what} on one core, best of several runs", caption=caption)
    for column, heading in enumerate(("measurement", "value", "unit", "compared with", "ratio")):
        table.add_column(heading, justify="left" if column in (0, 2, 3) else "right")
    for row in measured.rows:
        anchor, ratio = ("", "") if row.anchor == "itself" else (row.anchor, judged(row))
        table.add_row(row.name, f"{row.value:.4g}", row.unit, anchor, ratio)
    return table


def engine_command(given: EngineBenchOptions) -> None:
    """Run `ondie bench engine`: measure the engine, print the table, and write the result files.

    On a terminal, the progress is shown. Raises InputError for invalid options.
    """
    plan = Plan(given.only or SECTIONS, given.quick, given.peer, given.cases)

    def measure(progress: Callable[[str], object] | None) -> run.Bench:
        if progress is not None:
            plan.progress = progress
        return sections.run(plan)

    show_rows(given, "Flash engine", measure)


def service_command(given: ServiceBenchOptions) -> None:
    """Run `ondie bench service`: measure a drive, print the table, and write the result files.

    On a terminal, the progress is shown.
    """
    show_rows(
        given, "Served drive",
        lambda progress: service.run(given.quick, progress or (lambda what: None)),
        service.CONDITIONS,
    )  # fmt: skip


def serve_command(given: ServeBenchOptions) -> None:
    """Run `ondie bench serve`: measure the servers, print the table, and write the result files.

    On a terminal, the progress is shown. Remarks go to standard error. Raises InputError if nbdkit
    is not an executable program, or if a server does not start.
    """
    program = given.nbdkit
    if program is not None and not (program.is_file() and os.access(program, os.X_OK)):
        raise InputError(f"--nbdkit {program}: is not an executable program")
    if program is None and (found := shutil.which("nbdkit")):
        program = Path(found)
    show_rows(
        given, "Servers",
        lambda progress: servers.run(given.quick, program, progress or (lambda what: None)),
        servers.conditions(),
    )  # fmt: skip


def tunnel_command(given: ServiceBenchOptions) -> None:
    """Run `ondie bench tunnel`: measure a tunnel, and a shuttle that only copies packets; print the
    table, and write the result files. On a terminal, the progress is shown. Raises InputError if
    TUN devices cannot be used."""
    show_rows(
        given, "Tunnel",
        lambda progress: tunnel_bench.run(given.quick, progress or (lambda what: None)),
        tunnel_bench.CONDITIONS,
    )  # fmt: skip


def recovery_command(given: ServiceBenchOptions) -> None:
    """Run `ondie bench recovery`: measure the recovery of a full drive, print the table, and write
    the result files. On a terminal, the progress is shown."""
    show_rows(
        given, "Recovery",
        lambda progress: recovery.run(given.quick, progress or (lambda what: None)),
    )  # fmt: skip


def show_rows(
    given: OutputOptions, what: str,
    measure: Callable[[Callable[[str], object] | None], run.Bench],
    conditions: str = "",
) -> None:  # fmt: skip
    """Call ``measure``, print its rows as a table, and write the result files.

    ``what``: noun phrase in the title of the table. ``conditions``: text below the table. On a
    terminal, a status line shows the progress.
    """
    given.check()
    visible = not given.quiet and sys.stderr.isatty()
    with Console(stderr=True).status("") if visible else nullcontext() as status:
        measured = measure(None if status is None else status.update)
    files = given.write(run.as_json(measured))
    for remark in measured.remarks:
        Console(stderr=True).print(remark, highlight=False, markup=False, soft_wrap=True)
    if (screen := given.console) is not None:
        screen.print(table_of_rows(measured, what, conditions))
    given.list_files(files)
