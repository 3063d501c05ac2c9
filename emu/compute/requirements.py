"""Conditions under which processors in drives can compute the layers of a training run.

Owns the checks and the text of each reason. Does not own the speed of the processors (training.py)
or the check that the data fits on flash (paths/).
Source: this project.

Each function returns the reason why the path cannot run, as text for the path's row of a table, or
None if the condition is met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ondie.emu.config.config import Config
from ondie.traces import Trace


def no_cores(cfg: Config, work: str) -> str | None:
    """Return the reason why the drive has no processor for ``work``, such as "train", or None if it
    has one.
    """
    if cfg.isp.kind == "cores":
        return None
    return (
        f"the drive has no processor that can {work} (isp.kind = {cfg.isp.kind}); set "
        "isp.kind=cores and its keys, or use --device csd-pe"
    )


def no_samples(trace: Trace) -> str | None:
    """Return the reason why the size of a sample is unknown, or None if the trace states it."""
    if trace.bytes_per_sample:
        return None
    return f"{trace.name} does not state the size of its samples (bytes_per_sample = 0)"


def no_times(trace: Trace, needed: Callable[[Sequence[float]], bool]) -> str | None:
    """Return a text that names the first step whose times are missing, or None if no step lacks
    them. ``needed``: ``any`` if the forward or the backward time is enough, ``all`` if both are
    needed.
    """
    for i, record in enumerate(trace.steps):
        if not needed((record.forward_s, record.backward_s)):
            return (
                f"{trace.name} does not state the times of forward and backward (step {i}: "
                f"{record.forward_s:g} s and {record.backward_s:g} s); use --forward and --backward"
            )
    return None


def no_speed(ratio: float) -> str | None:
    """Return the reason why the drive's processor cannot train, or None if it can. ``ratio``:
    training speed of a drive divided by that of the host.
    """
    if ratio:
        return None
    return (
        "the drive's processor cannot train (isp.training_ratio = 0 and "
        "isp.flops_per_cycle = 0); set one of them"
    )


def no_dram(cfg: Config, key: str, what: str, need: int) -> str | None:
    """Return the reason why ``need`` bytes do not fit in the DRAM ``key`` (dram.isp or host.dram),
    or None if they fit. ``what``: beginning of the reason, which names the data.
    """
    room = {"dram.isp": cfg.dram.isp_bytes, "host.dram": cfg.host.dram_bytes}[key]
    return f"{what}, more than {key} = {room / 1e9:.4g} GB" if need > room else None
