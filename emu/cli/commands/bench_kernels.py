"""`ondie bench kernels`: progress, table, remarks and files of the measurement.

Owns the command. Does not own the measurement (ondie.kernels.bench). Source: none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from rich.console import Console

from ondie.emu.cli.output import FigureOptions
from ondie.kernels import FORMATS
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

    def all_formats(self) -> tuple[str, ...]:
        """Return the formats; "all" selects every format."""
        return tuple(FORMATS) if "all" in self.formats else self.formats

    def all_shapes(self) -> tuple[str, ...]:
        """Return the shapes; "all" selects every shape."""
        return tuple(SHAPES) if "all" in self.shapes else self.shapes


def kernels_command(given: KernelBenchOptions) -> None:
    """Measure, show progress on a terminal, print the table and, on standard error, remarks.

    The files appear whole or not at all. Raises InputError or KernelError for bad arguments.
    """
    given.check()

    def draw() -> Mapping[str, bytes]:
        from ondie.emu.cli.figures.save import saved
        from ondie.kernels.bench import roofline  # matplotlib takes a second to import

        return roofline.draw(bench, saved)

    talk = Console(stderr=True)
    visible = not given.quiet and sys.stderr.isatty()
    with talk.status("") if visible else nullcontext() as status:
        bench = run.run_kernels(
            given.sizes or None, given.threads, given.ops,
            progress=None if status is None else status.update,
            formats=given.all_formats(), shapes=given.all_shapes(),
        )  # fmt: skip
    files = given.write(run.as_json(bench), draw)
    for remark in bench.remarks:
        talk.print(remark, highlight=False, markup=False, soft_wrap=True)
    if (screen := given.console) is not None:
        run.print_table(bench, screen)
    given.list_files(files)
