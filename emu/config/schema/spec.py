"""Description of a leaf: its meaning, minimum and choices.

Owns the description of a leaf. Does not own the sections of the tree (host.py to energy.py).
Source: this project.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spec:
    """Description of a key: its meaning, the minimum of a number, the ordered choices of a text,
    and the name of the key if it does not follow from the attribute."""

    doc: str
    least: int = 0
    choices: tuple[str, ...] = ()
    key: str = ""
