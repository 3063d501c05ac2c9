"""Owns: what the module of an operation gives to `update.py`: its definition and array types.
Does not: look up operations or run them (update.py).
Source: own.
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
    """One operation: its states, hyperparameters and its three implementations."""

    states: tuple[str, ...]
    takes: tuple[str, ...]  # hyperparameters
    fold: Callable[[Mapping[str, float], int, str], list[float]]
    coefs: int  # how many scalars it folds into
    numpy: Mapping[str, Callable[[Array, Array, States, Array], None]]  # by form
    numba: Mapping[str, Callable[..., None]]
    c: str  # ONDIE_<c> in csrc/ondie.h
