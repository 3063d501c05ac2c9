"""Owns: the one error class of this room, and the wording of "unknown name".
Does not: catch anything.
Source: own.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class KernelError(ValueError):
    """Bad input to a kernel: one line naming the argument, its value and what would be right."""


def unknown(what: str, value: object, known: Iterable[str]) -> KernelError:
    """The error for a name that is not among `known`, with the nearest one that is."""
    names = list(known)
    near = get_close_matches(str(value).lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return KernelError(f"unknown {what} {value!r}{hint} (known: {', '.join(names) or 'none'})")
