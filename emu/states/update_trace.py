"""Trace of one update of states in a drive, and its hyperparameters.

Owns the record that the update path uses instead of a recorded training run. Does not own the
update (drive_states.py) or the valid ranges of hyperparameters (kernels/hyper.py).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ondie.emu.paths.base import Options
from ondie.emu.units import InputError, quoted
from ondie.kernels import KernelError, get
from ondie.kernels.hyper import checked
from ondie.traces import Memory, Step, Trace, flat_tensors


def checked_hyper(op: str, hyper: Mapping[str, float | bool]) -> dict[str, float | bool]:
    """Return the hyperparameters of ``op`` as a dict. Raises InputError if a hyperparameter is
    missing or unknown, or if its value is not a number or is out of range."""
    if not isinstance(hyper, Mapping):
        raise InputError(f"hyper = {quoted(repr(hyper))}: must be a dict of names and numbers")
    for name, value in hyper.items():
        if isinstance(value, str | bytes):  # float() would read them
            raise InputError(f"hyper[{name!r}] = {quoted(repr(value))}: must be a number")
    try:
        checked(op, get(op).takes, hyper)
    except KernelError as error:
        raise InputError(f"hyper: {error}") from error
    return dict(hyper)


def trace_of(op: str, options: Options, n_params: int, hyper: Mapping[str, float | bool]) -> Trace:
    """Return a trace with one update of ``n_params`` parameters and no gradient."""
    step = Step(
        index=0, loss=None, samples=1, forward_s=0.0, backward_s=0.0, optimizer_s=0.0,
        ready_s=None, hyper=(dict(hyper),), count=1,
    )  # fmt: skip
    return Trace(
        name="states in a drive", payload="recorded", timing_source="recorded", op=op,
        form=options.form, gradient_dtype="float32", groups=1,
        tensors=flat_tensors([("states", (n_params,), 0, -1)]), steps=(step,),
        samples_per_step=1, bytes_per_sample=0, macs_forward=0, macs_backward=0,
        dataset_samples=0, private_samples=0,
        source=Memory({}, {"initial": np.broadcast_to(np.float32(0), n_params)}),
    )  # fmt: skip
