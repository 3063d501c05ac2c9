"""`ondie bench kernels`: the measurement's progress, table, remarks and files.

Owns the command. Does not own the measurement (ondie.kernels.bench). Source: none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from ondie.emu.cli.console import console
from ondie.emu.cli.files import check_target, suffix_of, write_atomically
from ondie.kernels.bench import run


def kernels_command(
    sizes: Sequence[int] | None,
    threads: int,
    json_path: str | Path | None,
    quiet: bool,
    ops: Sequence[str] = ("adam", "sgd"),
    formats: Sequence[str] = ("fp32",),
    shapes: Sequence[str] = ("flat",),
    figure: Path | None = None,
) -> None:
    """`ondie bench kernels`: measure, show progress on a terminal, print the table and, on standard
    error, remarks; write JSON and the roofline figure.

    The files appear whole or not at all. Raises InputError or KernelError for bad
    arguments.
    """
    target = Path(json_path) if json_path is not None else None
    if target is not None:
        check_target(target)
    if figure is not None:
        from ondie.emu.cli.figures.save import saved
        from ondie.kernels.bench.roofline import draw  # and Matplotlib

        suffix = suffix_of(figure)
        check_target(figure, *([target] if target is not None else []))
    talk = Console(stderr=True)
    visible = not quiet and sys.stderr.isatty()
    with talk.status("") if visible else nullcontext() as status:
        update = None if status is None else status.update
        bench = run.run_kernels(
            sizes or None, threads, ops, progress=update, formats=formats, shapes=shapes
        )
    files = {} if target is None else {target: run.as_json(bench).encode()}
    if figure is not None:
        files[figure] = draw(bench, saved)[suffix]
    write_atomically(files)
    for remark in bench.remarks:
        talk.print(remark, highlight=False, markup=False, soft_wrap=True)
    if not quiet:
        run.print_table(bench, console())
