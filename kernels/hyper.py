"""Checks of the hyperparameters of an operation.

This module owns the check of given hyperparameters against the hyperparameters that an operation
takes. It does not own the conversion of hyperparameters to coefficients (the modules of the
operations).
Source: names and ranges follow PyTorch's optimizers, with betas as beta1 and beta2.
"""

import math
from collections.abc import Mapping

from .errors import KernelError, unknown

# name -> (inclusive minimum, exclusive maximum)
RANGES = {
    "lr": (0.0, math.inf),
    "beta1": (0.0, 1.0),
    "beta2": (0.0, 1.0),
    "eps": (0.0, math.inf),
    "weight_decay": (0.0, math.inf),
    "momentum": (0.0, math.inf),
    "dampening": (-math.inf, math.inf),
    "lr_decay": (0.0, math.inf),
    "maximize": (0.0, math.inf),  # 0 or 1
    "newton": (0.0, 4.0),  # Newton steps of the on-die inverse square root
    "trust_max": (0.0, math.inf),
    "eps1": (0.0, math.inf),
    "eps2": (0.0, math.inf),
    "clip": (0.0, math.inf),
    "decay_rate": (-1.0, 0.0),
}
OPTIONAL = {
    "weight_decay": 0.0, "dampening": 0.0, "lr_decay": 0.0, "maximize": 0.0, "newton": 1.0,
    "trust_max": 10.0, "eps1": 1e-30, "eps2": 1e-3, "clip": 1.0, "decay_rate": -0.8,
}  # fmt: skip


def checked(op: str, takes: tuple[str, ...], given: Mapping[str, float]) -> dict[str, float]:
    """Return the hyperparameters in ``takes`` as floats, with defaults for missing optional ones.

    A hyperparameter that the operation does not take is accepted only with the value 0. Raises
    KernelError naming the first key that is unknown, missing without a default, or out of range.
    """
    for name, value in given.items():
        if name not in RANGES or (name not in takes and value != 0):
            raise unknown(f"hyperparameter of {op}", name, takes)
    values: dict[str, float] = {}
    for name in takes:
        if name not in given and name not in OPTIONAL:
            raise KernelError(
                f"{op}: hyperparameter {name!r} is missing (takes {', '.join(takes)})"
            )
        try:
            value = float(given.get(name, OPTIONAL.get(name, 0.0)))
        except (TypeError, ValueError):
            raise KernelError(f"{op}: {name} = {given[name]!r}; must be a number") from None
        least, below = RANGES[name]
        if not (least <= value < below):
            raise KernelError(f"{op}: {name} = {value!r}, expected {least:g} <= {name} < {below:g}")
        if name == "maximize" and value not in (0.0, 1.0):
            raise KernelError(f"{op}: maximize = {given[name]!r}; must be true or false")
        if name == "newton" and value not in (0.0, 1.0, 2.0, 3.0):
            raise KernelError(f"{op}: newton = {given[name]!r}; must be 0, 1, 2 or 3")
        values[name] = value
    return values


def checked_step(op: str, step: float) -> int:
    """Return a step number, counted from 1, as int.

    Raises KernelError for a number below 1 or a fraction.
    """
    if not (isinstance(step, int | float) and math.isfinite(step) and step == int(step) >= 1):
        raise KernelError(f"{op}: step = {step!r}; must be a whole number, at least 1")
    return int(step)
