"""Check of a path's final weights against a reference run and against the recorded weights.

Owns the two comparisons. Does not own the reading of weights from flash (paths/). The reference is
the same update kernel, run outside the emulator.
Source: this project. The weights must equal the reference bit for bit. Each weight may differ from
the recorded weight by at most 16 x 2**-24 x max(|w|, sum of learning rates). The limit is not
stated in units in the last place, because these approach 0 near zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.paths.base import Path
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.traces import Trace

TOLERANCE = 16
"""Largest allowed difference from the recorded weights, in units of 2**-24 x max(|w|, sum of
learning rates)."""


class Mismatch(RuntimeError):
    """Exception: the final weights of a path differ from the expected weights, so the emulator has
    a defect. No result is written."""


@dataclass(frozen=True)
class Weights:
    """Comparison of a path's final weights with the reference and with the recorded weights."""

    equal_bits: int
    """Number of weights that equal those of the reference in every bit."""
    elements: int
    """Number of weights that were compared."""
    delivered_equal_bits: int | None
    """Number of weights at the host that equal those of the reference in every bit after the last
    step. None if this was not checked, for example because the path sends no weights."""
    recorded_distance: float | None
    """Largest difference from the recorded weights, in units of 2**-24 x max(|w|, sum of learning
    rates); None if the weights were not compared with the recorded weights."""
    recorded_equal_share: float | None
    """Fraction of weights that equal the recorded weights in every bit; None if the weights were
    not compared with the recorded weights."""


def compare_weights(
    path: Path, arithmetic: Arithmetic, steps: int, damaged: bool = False
) -> Weights:
    """Compare the weights on flash with the reference and with the recorded weights, and return the
    result.

    The reference is the same kernel run outside the emulator. ``damaged``: True if the run used
    incorrect data (error_notes.damaged). Raises Mismatch if the weights differ more than allowed
    and ``damaged`` is False.
    """
    final = path.finish()
    assert final is not None
    trace = arithmetic.trace
    reference = path.reference(arithmetic, steps)
    same = bits(final) == bits(reference)
    equal = int(same.sum())
    if equal != len(reference) and not damaged:
        at = int(np.flatnonzero(~same)[0])
        raise Mismatch(
            f"{path.name}: {len(reference) - equal} of {len(reference)} weights differ from the "
            f"reference, the first at {at} ({trace.locate(at)[0]}): {final[at]!r}, "
            f"not {reference[at]!r}"
        )
    delivered = None
    sent = path.delivered()
    if sent is not None and path.applied(steps) and path.options.weights_up == "fp32":
        delivered = int((bits(sent) == bits(arithmetic.shown(reference))).sum())
        if delivered != len(reference) and not damaged:
            raise Mismatch(
                f"{path.name}: {len(reference) - delivered} of {len(reference)} weights that were "
                "sent to the host differ from those on flash"
            )
    distance = share = None
    recorded = trace.weights("final")
    plain = path.options.format == "fp32"  # other formats differ more from the recorded weights
    if recorded is not None and steps == len(trace.steps) and plain:
        distance, share = recorded_distance(final, recorded, trace)
        if (
            not distance <= TOLERANCE and not damaged and path.lossless
        ):  # `not <=` also catches NaN, which occurs where only one of the two is finite
            raise Mismatch(
                f"{path.name}: weights are {distance:.3g} units of 2**-24 max(|w|, sum of learning "
                f"rates) from the recorded ones; the limit is {TOLERANCE}"
            )
    return Weights(equal, len(reference), delivered, distance, share)


def bits(values: np.ndarray) -> np.ndarray:
    """Return the bit patterns of an array's values as unsigned integers of the same size."""
    return values.view(np.dtype(f"u{values.itemsize}"))


def recorded_distance(final: np.ndarray, recorded: np.ndarray, trace: Trace) -> tuple[float, float]:
    """Return (largest difference between final and recorded weights, fraction of weights that equal
    the recorded weights in every bit).

    The difference is in units of 2**-24 x max(|w|, sum of learning rates).
    """
    rates = [
        sum(float(step.hyper[index]["lr"]) for step in trace.steps if not step.skipped)
        for index in range(trace.groups)
    ]
    scale = np.abs(recorded.astype(np.float64))
    for start, stop, group in trace.group_ranges():
        np.maximum(scale[start:stop], rates[group], out=scale[start:stop])
    same = (final == recorded) | (np.isnan(final) & np.isnan(recorded))
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.abs(final.astype(np.float64) - recorded) / (scale * 2.0**-24)
    units = np.where(same, 0.0, gap)
    share = float((final.view(np.uint32) == recorded.view(np.uint32)).mean())
    return float(units.max(initial=0.0)), share
