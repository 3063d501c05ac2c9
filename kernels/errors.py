"""Error class of the kernels package.

This module owns KernelError and the message for an unknown name. It does not catch errors.
Source: this project.
"""

import operator
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class KernelError(ValueError):
    """Error: an argument of a kernel is invalid. The message states its name, value and valid
    values."""


def unknown(what: str, value: object, known: Iterable[str]) -> KernelError:
    """Return a KernelError for ``value``, a name that is not in ``known``. The message suggests the
    closest name.

    ``what``: kind of name, such as "operation".
    """
    names = list(known)
    near = get_close_matches(str(value).lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return KernelError(f"unknown {what} {value!r}{hint} (known: {', '.join(names) or 'none'})")


def whole(name: str, value: Any) -> int:
    """Return the whole number ``value`` of a Python or NumPy type as int. Raises KernelError for
    any other value, including a Boolean."""
    try:
        if type(value).__name__ not in ("bool", "bool_"):
            return operator.index(value)
    except TypeError:
        pass
    raise KernelError(f"{name} = {value!r}; must be a whole number")
