"""Description of a leaf: its meaning, minimum and choices.

Owns the description of a leaf. Does not own the sections of the tree (host.py to energy.py).
Source: none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spec:
    """Description of a key: its meaning, its minimum, and the ordered set of choices of a text."""

    doc: str
    least: int = 0
    choices: tuple[str, ...] = ()
    key: str = ""
