"""Forward and backward times of a training step, computed from its multiply-accumulates.

Owns the rule that converts multiply-accumulates to seconds. Does not own rates (synth.py, the
presets) or counts (macs.py). Source: one multiply-accumulate is two floating-point operations.
"""

from __future__ import annotations

FLOP_PER_MAC = 2


def seconds(macs: int, samples: float, flop_per_s: float) -> float:
    """Return the time (s) to process `samples` samples at `flop_per_s` floating-point operations
    per second.

    `macs`: number of multiply-accumulates per sample.
    """
    return FLOP_PER_MAC * macs * samples / flop_per_s
