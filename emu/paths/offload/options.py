"""User options of host offload, modeled on DeepSpeed's options for optimizer states on NVMe.

Owns the options and their combinations. Does not own the plan (path.py), placement of bytes
(layout/volume.py), storage formats (layout/formats.py) or the reading of a DeepSpeed configuration
file (traces/deepspeed.py).
Source: DeepSpeed's swappers (runtime/swap_tensor) and the source code that reads DeepSpeed's
configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from ondie.emu.units import InputError, digits, known_names, plural


@dataclass(frozen=True)
class Offload:
    """User options of host offload. Block size, queue depth and sub-group size are not options but
    configuration values (host.io_block, host.io_queue_depth, host.subgroup_params)."""

    parameters: bool = False
    """True to store the model's 16-bit parameters on NVMe, too. Forward and backward read them, and
    the update writes them."""
    checkpointing: bool = False
    """True for activation checkpointing: backward repeats forward and thus reads the parameters
    once more."""
    pipeline_read: bool = False
    """True to read the next sub-group while the host computes the current sub-group."""
    pipeline_write: bool = False
    """True to write a sub-group while the host computes the next sub-group."""
    buffers: int | None = None
    """Number of pinned host buffers, each for one array of the largest sub-group (buffer_count).
    The update reads into these buffers, and the backward pass copies gradients into them. With
    None, the number is not limited, and gradients are written block by block."""
    parameter_buffers: int = 5
    """Number of buffers in host memory for portions of the parameters: one portion is in use while
    the other portions are prefetched."""
    parameter_buffer: int = 0
    """Size of the buffer for a parameter tensor, elements (offload_param.buffer_size). 0 makes the
    buffer large enough for every tensor."""
    parameters_in_dram: int = 0
    """Number of parameters, counted from the first parameter, that stay in DRAM, rounded to whole
    sub-groups (max_in_cpu)."""
    ratio: float = 1.0
    """Fraction of the sub-groups whose states are on NVMe; the other states stay in host DRAM."""
    threads: int | None = None
    """Number of threads among which each request is divided, each with host.io_queue_depth blocks
    in flight over all drives. With None, host.io_queue_depth blocks are in flight on every drive.
    """
    overlap_events: bool = True
    """True to send the next block when any block completes; False to send the next batch when all
    blocks of the previous batch have completed."""
    in_dram_below: int = 0
    """Size in bytes below which a sub-group, a gradient or a parameter tensor stays in DRAM."""
    align: int = 1
    """Alignment in bytes: the arrays of a sub-group are padded to multiples of this size."""
    remarks: tuple[str, ...] = ()
    """Notes on the origin of these options, printed with the results."""

    def __post_init__(self) -> None:
        for name, least in LEAST_VALUES.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} = {value}: must be at least {least}")
        if not 0 <= self.ratio <= 1:
            raise InputError(f"ratio = {self.ratio}: must be from 0 to 1")

    @property
    def in_flight(self) -> int:
        """Maximum number of sub-groups that are read, computed or written at the same time."""
        return 1 + self.pipeline_read + self.pipeline_write

    def stops(self, arrays: int, groups: int) -> str | None:
        """Return the reason why DeepSpeed would stop with an error in the update of ``groups``
        sub-groups of ``arrays`` arrays each, or None if it would not stop."""
        held = min(self.in_flight, groups)
        if self.buffers is None or self.buffers >= arrays * held:
            return None
        return (
            f"buffers={self.buffers}: DeepSpeed stops, because {plural(held, 'sub-group')} "
            f"of {plural(arrays, 'array')} each take {arrays * held} swap buffers in memory; set "
            f"buffers (DeepSpeed's buffer_count) to at least {arrays * held}"
        )

    def stops_at_tensor(self, largest: int) -> str | None:
        """Return the reason why DeepSpeed would stop with an error at a parameter tensor of
        ``largest`` elements, the largest of the model, or None if it would not stop."""
        if not self.parameters or not self.parameter_buffer or largest < self.parameter_buffer:
            return None
        return (
            f"DeepSpeed stops: the largest parameter tensor has {largest:,} elements and must be "
            f"smaller than a buffer of {self.parameter_buffer:,} (parameter_buffer; DeepSpeed's "
            "offload_param.buffer_size)"
        )


@dataclass(frozen=True)
class Shares:
    """Placement of a whole model's data on NVMe, as fractions, for the simulation of its pieces.

    The sub-groups and tensors of a piece differ from those of the model. An option that counts
    sub-groups or tensors would therefore keep a different fraction of the piece in DRAM. These
    fractions replace such options."""

    states: Fraction
    """Fraction of all parameters with states on NVMe. These are the first parameters of the model.
    """
    gradients: Fraction
    """Fraction of the gradients (including padding) that is on NVMe. Only the gradients of
    parameters with states on NVMe are counted. The gradients on NVMe are the first in each
    sub-group."""
    buffer: Fraction
    """Fraction of all parameters that are in the largest sub-group. This fraction determines the
    size of a pinned buffer."""
    kept: Fraction
    """Fraction of all parameters with a 16-bit copy that stays in DRAM, although the 16-bit copies
    of other parameters are on NVMe. These are the first parameters of the model."""
    parameters: Fraction
    """Fraction of the 16-bit parameter copies, including padding, that are on NVMe. The copies that
    ``kept`` counts are excluded. The copies on NVMe are the first in each sub-group."""


LEAST_VALUES = {
    "buffers": 1, "parameter_buffers": 1, "threads": 1, "in_dram_below": 0, "align": 1,
    "parameters_in_dram": 0, "parameter_buffer": 0,
}  # fmt: skip


def parse_offload(settings: tuple[str, ...], base: Offload | None = None) -> Offload:
    """Return ``base`` with the options in ``settings``, texts of the form ``key=value``. Raises
    InputError for an unknown key or an invalid value."""
    values: dict[str, Any] = {}
    known = {field.name: str(field.type) for field in fields(Offload) if field.name != "remarks"}
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or key not in known:
            raise InputError(f"--offload {setting!r}: must be KEY=VALUE; {known_names(key, known)}")
        values[key] = _value(setting, known[key], text)
    try:
        plain = {field.name: getattr(base or Offload(), field.name) for field in fields(Offload)}
        return Offload(**{**plain, **values})
    except InputError as error:
        raise InputError(f"--offload {error}") from error


def _value(setting: str, kind: str, text: str) -> Any:
    if kind == "bool":
        if text not in ("true", "false"):
            raise InputError(f"--offload {setting!r}: must be true or false")
        return text == "true"
    try:
        return float(text) if kind == "float" else digits(text)
    except ValueError:
        expected = "a number" if kind == "float" else "a whole number"
        raise InputError(f"--offload {setting!r}: must be {expected}") from None
