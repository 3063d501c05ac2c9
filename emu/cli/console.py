"""Where text goes: standard output, wide when it is no terminal.

Owns the width of tables in files and pipes. Does not own what is printed.
Source: none; tables folded at 80 columns cannot be read.
"""

from __future__ import annotations

from rich.console import Console

WIDTH = 132
"""Columns when the output is no terminal."""


def console() -> Console:
    """Standard output."""
    out = Console(highlight=False, markup=False, emoji=False)  # names may hold [brackets]
    if not out.is_terminal:
        out.width = WIDTH
    return out
