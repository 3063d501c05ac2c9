"""What a user can ask of a recording.

Owns: Options, their defaults and least values.
Does not: parse a command line; the names are those of `ondie record`'s options.
Source: the command line contract of this project.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from ondie.traces.errors import TraceError


@dataclass(frozen=True)
class Options:
    """What to record.

    payload: gradients and weights too. steps: optimizer steps to keep, after `skip` others.
    max_bytes: end earlier rather than store more. samples, bytes_per_sample, dataset_samples,
    macs_*: given instead of derived. optimizer: which, by order of first step, if there are
    several. raw: keep 16-bit gradients before unscaling too. count_macs: count them in the first
    step, which is slower for it. stop: end the run after the last recorded step. name: of the
    trace, else the file's.
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
    name: str | None = None

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            least = 1 if key in ("steps", "max_bytes", "samples") else 0
            if isinstance(value, int) and value < least:
                raise TraceError(f"--{key.replace('_', '-')} is {value}, at least {least} is right")


def options(given: dict[str, Any]) -> Options:
    """Options from keywords; TraceError naming the nearest for an unknown one."""
    known = list(Options.__dataclass_fields__)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0) or known
            raise TraceError(f"option {key!r} is unknown: {near[0]!r} is the nearest known")
    return Options(**given)
