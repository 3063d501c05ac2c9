"""The console: standard output, wide when it is no terminal, and the bar of the first compilation.

Owns the width of tables in files and pipes, and the bar. Does not own what is printed.
Source: none; tables folded at 80 columns cannot be read.
"""

from __future__ import annotations

import sys

from rich.console import Console

WIDTH = 132
"""Columns when the output is no terminal."""


def console() -> Console:
    """Standard output."""
    out = Console(highlight=False, markup=False, emoji=False)  # names may hold [brackets]
    if not out.is_terminal:
        out.width = WIDTH
    return out


def compiling(done: int, total: int) -> None:
    """Draw on a terminal how far the first compilation is: ``done`` of ``total`` functions."""
    err = sys.stderr
    if not err.isatty():
        return
    bar = "#" * (20 * done // total)
    text = f"compiling the engine (once per machine) [{bar:<20}] {done}/{total} functions"
    err.write("\r" + (" " * len(text) + "\r" if done == total else text))
    err.flush()
