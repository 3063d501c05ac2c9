"""Speed forecast: the future speed of a node from the trend of its observations.

Owns both forms of the forecast. Does not own the window (hypertune/slowdown_detector.py) or the
selection of a form (hypertune/controller.py).
Source: none; HyperTune proposes prediction and publishes no method.

Results over 100 drawn traces of each kind that were not used for any choice (`compared(kind, 100,
first=5000)` of validate/forecasts.py): gain in samples/s over no forecast, which reaches about 210
samples/s, and its standard error. By CPU use: ramps +4.08 (0.19), periodic +4.71 (0.26), short jobs
+0.11 (0.07), bursts -0.01 (0.01). By speed: ramps +4.90 (0.22), periodic +2.82 (0.28), short jobs
-3.33 (0.07), bursts -4.30 (0.16). Use the CPU form where loads change gradually; the default is no
forecast. The CPU form was found, and its 5 steps chosen among 1, 3, 5, 8 and 12, on 10 to 12 other
traces of each kind.

Speeds are ratios to the uninterrupted speed of the node, float64[n]; NaN stays NaN.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.cluster.hypertune.slowdown_detector import RECENT, WINDOW, Window

CERTAIN = 3.0
"""Standard errors that a slope of CPU use must exceed [assumed, 2 to 4]."""


def by_speed(ratios: Window, ahead: int) -> np.ndarray:
    """Extrapolate the least-squares line through the window of speeds by ``ahead`` steps."""
    ratio: np.ndarray = ratios.mean() + ratios.slope(WINDOW) * ((WINDOW - 1) / 2 + ahead)
    return np.maximum(ratio, 0.0)


def by_cpu(ratio: np.ndarray, shares: Window, noise: float, ahead: int) -> np.ndarray:
    """Extrapolate the recent mean speed along the trend of the free cores, up to 1.

    The trend covers the recent steps only, which excludes steps before a sudden change. It counts
    only if it exceeds what ``noise`` of a share would cause. Speed per share is the secant from the
    present point to all cores and full speed.
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
