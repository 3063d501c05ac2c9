"""Options of a recording.

This module owns Options with their defaults and minimums. It does not parse a command line; the
names are those of `ondie record`'s options.
Source: the command line contract of this project.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from ondie.traces.errors import TraceError


@dataclass(frozen=True)
class Options:
    """Options of a recording.

    payload: record gradients and weights in addition to sizes and times. steps: number of optimizer
    steps to record. skip: number of steps to skip first. max_bytes: maximum size of the recorded
    vectors; the recording ends before a step that may exceed it. samples, bytes_per_sample,
    dataset_samples, macs_*: values to use instead of derived ones. optimizer: index of the
    optimizer to record, if there are several; optimizers are numbered in the order of their first
    steps. raw: store 16-bit gradients before unscaling in addition to the unscaled gradients.
    count_macs: count MACs in the first step, which makes that step slower. stop: end the run after
    the last recorded step. any_optimizer: record an optimizer even if no kernel implements its
    update; only the sizes and times of such a trace can be replayed. name: name of the trace; the
    default is the file name.
    """

    payload: bool = True
    steps: int = 20
    skip: int = 0
    max_bytes: int | None = None
    samples: int | None = None
    bytes_per_sample: int | None = None
    dataset_samples: int | None = None
    private_samples: int = 0
    macs_forward: int | None = None
    macs_backward: int | None = None
    count_macs: bool = False
    optimizer: int | None = None
    raw: bool = False
    stop: bool = False
    any_optimizer: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            least = 1 if key in ("steps", "max_bytes", "samples") else 0
            if isinstance(value, int) and value < least:
                raise TraceError(f"--{key.replace('_', '-')} is {value}; must be at least {least}")


def options(given: dict[str, Any]) -> Options:
    """Return Options from keyword arguments.

    Raises TraceError for a value below its minimum, and for an unknown keyword. The message about
    an unknown keyword names the nearest option.
    """
    known = list(Options.__dataclass_fields__)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0) or known
            raise TraceError(f"option {key!r} is unknown; did you mean {near[0]!r}?")
    return Options(**given)
