"""Forward and backward on the host's accelerator and on the cores of a drive.

Owns the training rates of both, the rule that selects a step's times, and the drive's speed
relative to the host. Does not own the arithmetic of a step (traces/step_times.py) or batch sizes
(cluster/).
Source: the presets, which state peak rates and utilizations, or a ratio of speeds from a paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.emu.config.config import Config
from ondie.emu.units import InputError, fmt_flops
from ondie.traces import Trace, step_times

RULES = ("accelerator", "trace")
"""Rules for the times of forward and backward. "accelerator": compute the times from the FLOP/s of
the host's accelerator. "trace": use the times in the trace."""


def accelerator_flop_per_s(cfg: Config, model: str) -> float:
    """Return the FLOP/s of the host's accelerator on ``model``, or 0 if no rate is stated."""
    host = cfg.host
    share = host.accelerator_utilization_by_model.get(model, host.accelerator_utilization)
    return host.accelerator_peak_flop_per_s * share


def drive_flop_per_s(cfg: Config) -> float:
    """Return the FLOP/s that the cores of a drive achieve in training; 0 if no rate is stated."""
    isp = cfg.isp
    if isp.kind != "cores":
        return 0.0
    return isp.cores * isp.frequency_hz * isp.flops_per_cycle * isp.training_utilization


def training_ratio(cfg: Config, model: str, macs: int, host_speed: float) -> float:
    """Return the training speed of a drive divided by that of the host, or 0 if the drive cannot
    train.

    ``macs``: multiply-accumulates of forward and backward per sample. ``host_speed``: the host's
    samples per second. Both are used only if the preset states a training rate for the drive
    (isp.flops_per_cycle); otherwise the preset's ratio is returned.
    """
    isp = cfg.isp
    if not isp.flops_per_cycle:
        return isp.training_ratio_by_model.get(model, isp.training_ratio)
    if not (macs and host_speed):
        return 0.0
    return 1 / (step_times.seconds(macs, 1, drive_flop_per_s(cfg)) * host_speed)


@dataclass(frozen=True)
class StepTimes:
    """Origin of the times of forward and backward: name of the rule that determined them,
    explanation as text, and rate of the accelerator (FLOP/s; None with the rule "trace")."""

    rule: str
    """Name of the rule for the times of forward and backward, one of RULES."""
    text: str
    flop_per_s: float | None = None
    forward_given: bool = False
    """True if the user stated the forward time."""
    backward_given: bool = False
    """True if the user stated the backward time."""


def timed(
    trace: Trace,
    cfg: Config,
    asked: str | None = None,
    forward_s: float | None = None,
    backward_s: float | None = None,
) -> tuple[Trace, StepTimes]:
    """Return the trace with the times of forward and backward that apply to a device, and the rule
    used for these times.

    ``asked``: one of RULES, or None. With None, the rule is "accelerator" if the device states a
    rate and the trace states its multiply-accumulates, otherwise "trace". ``forward_s`` and
    ``backward_s`` (seconds per step) override the times of either rule. Raises InputError if
    ``asked`` is "accelerator" and the rate or the multiply-accumulates are missing.
    """
    rate, rule = accelerator_flop_per_s(cfg, trace.name), asked
    macs = trace.macs_forward and trace.macs_backward
    if asked == "accelerator" and not rate:
        raise InputError(
            f"--step-times accelerator: {cfg.system.name} does not state an accelerator rate "
            "(host.accelerator_peak = 0); use --set host.accelerator_peak=… and "
            "host.accelerator_utilization=…, or --device csd-pe"
        )
    if asked == "accelerator" and not macs:
        raise InputError(
            f"--step-times accelerator: {trace.origin} does not state its multiply-accumulates "
            "(macs_forward, macs_backward); use --step-times trace, or --forward and --backward"
        )
    if asked is None:
        rule = "accelerator" if rate and macs else "trace"
    if rule == "accelerator":
        trace = trace.at_rate(rate)
        host = cfg.host
        own = trace.name in host.accelerator_utilization_by_model
        key = "host.accelerator_utilization" + (f"_by_model.{trace.name}" if own else "")
        text = f"2 x MACs x samples / {fmt_flops(rate)} (host.accelerator_peak x {key})"
    else:
        text = f"the trace's ({trace.timing_source})"
        if rate and asked is None:
            text += f", because {trace.name} does not state its multiply-accumulates"
    given = [name for name, value in (("--forward", forward_s), ("--backward", backward_s))
             if value is not None]  # fmt: skip
    if given:
        text = f"{' and '.join(given)}" + ("" if len(given) == 2 else f"; otherwise {text}")
    found = StepTimes(
        str(rule), text, rate if rule == "accelerator" else None,
        forward_s is not None, backward_s is not None,
    )  # fmt: skip
    return trace.timed(forward_s, backward_s), found
