"""Forecast: the speed that a node will have, from the trend of what was observed of it.

Owns both forms. Does not own the window (decline.py), or which one is used (hypertune.py).
Source: own; HyperTune proposes prediction and publishes none.

What came out, over 100 drawn traces of each kind that nothing was chosen on (`compared(kind, 100,
first=5000)` of validate/forecasts.py): gain over no forecast, which makes about 210 samples/s, and
its standard error. By CPU use: ramps +4.08 (0.19), periodic +4.71 (0.26), short jobs +0.11 (0.07),
bursts -0.01 (0.01). By speed: ramps +4.90 (0.22), periodic +2.82 (0.28), short jobs -3.33 (0.07),
bursts -4.30 (0.16). So CPU use is what to ask for where loads come gradually, and nothing is asked
for by default. The form by CPU use was found, and its 5 steps chosen among 1, 3, 5, 8 and 12, on 10
to 12 other traces of each kind.

Speeds are ratios to a node's uninterrupted one, float64[n]; NaN stays NaN.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.cluster.hypertune.slowdown_detector import RECENT, WINDOW, Window

CERTAIN = 3.0
"""Standard errors that a slope of CPU use must have. Assumed, 2 to 4."""


def by_speed(ratios: Window, ahead: int) -> np.ndarray:
    """The line of least squares through the window of speeds, so many steps after its end."""
    ratio: np.ndarray = ratios.mean() + ratios.slope(WINDOW) * ((WINDOW - 1) / 2 + ahead)
    return np.maximum(ratio, 0.0)


def by_cpu(ratio: np.ndarray, shares: Window, noise: float, ahead: int) -> np.ndarray:
    """Recent mean speeds carried on along the trend of the cores that are left, up to 1.

    The trend is that of the recent steps, so that none before a sudden change is in it, and counts
    if it is more than ``noise`` of a share would make it. Speed per share: the secant from here to
    all cores and full speed.
    """
    x = np.arange(RECENT) - (RECENT - 1) / 2
    slope = shares.slope(RECENT)
    slope = np.where(np.abs(slope) > CERTAIN * noise / np.sqrt(x @ x), slope, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        secant = np.maximum(1 - ratio, 0.0) / (1 - shares.recent())
        moved = np.where(slope == 0, 0.0, secant * slope)
    moved = np.where(np.isfinite(moved), moved, 0.0)
    carried: np.ndarray = np.maximum(ratio + moved * ((RECENT - 1) / 2 + ahead), 0.0)
    return np.minimum(carried, np.maximum(ratio, 1.0))
