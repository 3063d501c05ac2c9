"""Setup of standard output, and the progress of the first compilation.

Owns the width of tables in files and pipes, and the display of this progress. Does not own the text
that commands print. Source: this project.

Tables that are folded at 80 columns are unreadable, so files and pipes get WIDTH columns.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 132
"""Number of columns if standard output is not a terminal."""
COMPILING = "ondie: compiling the engine (once per machine), which takes about a minute"


def console() -> Console:
    """Return a rich console for standard output. If standard output is not a terminal, the console
    has WIDTH columns."""
    from rich.console import Console  # `ondie --help` does not need rich

    out = Console(highlight=False, markup=False, emoji=False)  # names may hold [brackets]
    if not out.is_terminal:
        out.width = WIDTH
    return out


def compiling(done: int, total: int) -> None:
    """Draw the progress of the first compilation on standard error, which must be a terminal."""
    err = sys.stderr
    if not err.isatty():
        return
    bar = "#" * (20 * done // total)
    text = f"compiling the engine (once per machine) [{bar:<20}] {done}/{total} functions"
    err.write("\r" + (" " * len(text) + "\r" if done == total else text))
    err.flush()


def announce_compilation() -> None:
    """Make a command that may run in the background print one line when a compilation begins. If
    standard error is a terminal, it shows a progress bar instead."""
    from ondie.kernels import jit

    announced = False

    def report(done: int, total: int) -> None:
        nonlocal announced
        compiling(done, total)
        if not announced and not sys.stderr.isatty():
            announced = True
            sys.stderr.write(COMPILING + "\n")
            sys.stderr.flush()

    jit.on_compile = report
