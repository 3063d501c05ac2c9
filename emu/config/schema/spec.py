"""Description of a configuration key: its meaning, minimum and allowed values.

Owns the record Spec. Does not own the keys themselves, which the sections of the configuration
define (host.py to energy.py). Source: this project.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spec:
    """Description of a configuration key.

    ``doc``: meaning of the key. ``least``: minimum, if the value is a number. ``choices``: allowed
    values in order, if the value is a text. ``key``: name of the key; if it is empty, the name
    follows from the name of the attribute.
    """

    doc: str
    least: int = 0
    choices: tuple[str, ...] = ()
    key: str = ""
