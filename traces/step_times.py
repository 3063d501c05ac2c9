"""Forward and backward times of a training step from its arithmetic.

Owns the rule that converts multiply-accumulates to seconds. Does not own rates (synth.py, the
presets) or counts (macs.py). Source: one multiply-accumulate is two floating-point operations.
"""

from __future__ import annotations

FLOP_PER_MAC = 2


def seconds(macs: int, samples: float, flop_per_s: float) -> float:
    """Return the time (s) of `samples` samples at a rate of floating-point operations per second.

    `macs`: multiply-accumulates of each sample.
    """
    return FLOP_PER_MAC * macs * samples / flop_per_s
