"""What a trace and a configuration need so that processors in drives compute a training's layers.

Owns the reasons why they cannot. Does not own their speeds (training.py) or whether data fit the
flash (paths/). Source: this project.

Each function returns the reason as a text for the path's row, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ondie.emu.config.config import Config
from ondie.traces import Trace


def no_cores(cfg: Config, work: str) -> str | None:
    """``work``: what the drive's processor has to do, such as "train"."""
    if cfg.isp.kind == "cores":
        return None
    return (
        f"the drive has no processor that can {work} (isp.kind = {cfg.isp.kind}); set "
        "isp.kind=cores and its keys, or use --device csd-pe"
    )


def no_samples(trace: Trace) -> str | None:
    """The size of a sample must be known."""
    if trace.bytes_per_sample:
        return None
    return f"{trace.name} does not state the size of its samples (bytes_per_sample = 0)"


def no_times(trace: Trace, needed: Callable[[Sequence[float]], bool]) -> str | None:
    """``needed``: any or all of a step's times of forward and backward must be positive."""
    for i, record in enumerate(trace.steps):
        if not needed((record.forward_s, record.backward_s)):
            return (
                f"{trace.name} does not state the times of forward and backward (step {i}: "
                f"{record.forward_s:g} s and {record.backward_s:g} s); use --forward and --backward"
            )
    return None


def no_speed(ratio: float) -> str | None:
    """``ratio``: training speed of a drive divided by the host's."""
    if ratio:
        return None
    return (
        "the drive's processor cannot train (isp.training_ratio = 0 and "
        "isp.flops_per_cycle = 0); set one of them"
    )


def no_dram(cfg: Config, key: str, what: str, need: int) -> str | None:
    """``key``: dram.isp or host.dram. ``need``: bytes of what must be there; ``what`` says so."""
    room = {"dram.isp": cfg.dram.isp_bytes, "host.dram": cfg.host.dram_bytes}[key]
    return f"{what}, more than {key} = {room / 1e9:.4g} GB" if need > room else None
