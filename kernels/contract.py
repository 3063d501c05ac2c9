"""Interface between the module of an operation and `update.py`.

This module owns the definition record of an operation and the array types. It does not look up or
run operations (update.py).
Source: this project.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
States = Sequence[Array]
Mad = Callable[[Any, Any, Any], Any]  # a * b + c, rounded once or twice


@dataclass(frozen=True)
class Definition:
    """Definition of an update operation, such as "adam": its states, its hyperparameters and its
    implementations in NumPy, Numba and C."""

    states: tuple[str, ...]
    takes: tuple[str, ...]  # names of the hyperparameters
    fold: Callable[[Mapping[str, float], int, str], list[float]]
    coefs: int  # number of scalars that `fold` returns
    numpy: Mapping[str, Callable[[Array, Array, States, Array], None]]  # keyed by form
    numba: Mapping[str, Callable[..., None]]
    c: str  # ONDIE_<c> in csrc/ondie.h
