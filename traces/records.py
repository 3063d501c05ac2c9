"""Records of a trace: its tensors, its steps and the values that apply to the whole run.

Owns these dataclasses. Does not own their validation rules (consistency.py) or the vectors that
belong to them (model.py).
Source: the trace contract of this project.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter of the model.

    `offset` is the first element in the flat vector of trainable parameters, or -1 if the parameter
    is not trainable. `group` is the parameter group, or -1 if the optimizer does not hold the
    parameter. `ready_order` is the position (from 0) of the gradient in the order in which the
    gradients became ready, or -1 if unknown.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    size: int
    trainable: bool
    group: int
    ready_order: int


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Times are in seconds. `ready_s` has one entry per tensor of the trace: the time from the start
    of the (last) backward pass until its gradient was ready, NaN if unknown. `hyper` has one dict
    per parameter group. `count` is the optimizer's step counter for bias correction (from 1).
    `scale` is the loss scale. `clip_coefficient` is the factor already applied to the gradient. A
    `skipped` step (found_inf) consumed no gradient and changed nothing. `gradient_norm` (L2) and
    `gradient_sha256` (of the flat little-endian float32 vector) describe the consumed gradient.
    `order` holds the indices of the samples in the data set, if known.
    """

    index: int
    loss: float | None
    samples: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    ready_s: npt.NDArray[np.float64] | None
    hyper: tuple[dict[str, float | bool], ...]
    count: int
    scale: float = 1.0
    clip_coefficient: float = 1.0
    found_inf: bool = False
    skipped: bool = False
    gradient_norm: float | None = None
    gradient_sha256: str | None = None
    fused: tuple[bool, ...] = ()
    order: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Contents:
    """Contents of a trace except its vectors (gradients, weights and states). `origin` names the
    source of the trace in messages (a path, or "synthetic NAME")."""

    name: str
    payload: str
    timing_source: str
    op: str
    form: str
    gradient_dtype: str
    groups: int
    tensors: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    samples_per_step: int
    bytes_per_sample: int
    macs_forward: int
    macs_backward: int
    dataset_samples: int
    private_samples: int
    attrs: dict[str, Any] = field(default_factory=dict)
    origin: str = "memory"

    @cached_property
    def n_params(self) -> int:
        """Number of trainable parameters (single weights) in the model."""
        return sum(t.size for t in self.tensors if t.trainable)

    @cached_property
    def trainable(self) -> tuple[Tensor, ...]:
        """The trainable tensors in the order of their offset in the flat vector."""
        return tuple(sorted((t for t in self.tensors if t.trainable), key=lambda t: t.offset))
