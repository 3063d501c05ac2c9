"""Calibration of a preset: constants are fitted to half of the measured points, and checked on the
other half.

Owns the sequence of the steps, the errors of all points, the JSON document of the result and the
calibrated preset. Does not own the fit (fit.py) or tables (results/).
Source: this project.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ondie.emu.analysis.calibrate.constants import Constant, chosen
from ondie.emu.analysis.calibrate.fit import UNDETERMINED, Fit, Fitted, Simulator, simulate_points
from ondie.emu.analysis.calibrate.point import Figures, Point, held_out, merged
from ondie.emu.analysis.calibrate.simulate import check_simulated
from ondie.emu.analysis.workers import pool
from ondie.emu.config.config import Config
from ondie.emu.units import KINDS, exact

NEAR_BOUND = 0.01
"""A fitted constant is reported to be at a bound of its range if its distance from the bound is
less than this fraction of the range (distance and range in logarithms)."""
DIGITS = 4
"""Number of significant digits to which a fitted constant is rounded."""
BUSY = 0.9
"""CPU utilization of fio, in cores, above which a remark states that the host may have limited the
point."""
HOST_SHARE = 0.2
"""Fraction of a request's time that is spent in the host. A remark states the number of points
above this fraction."""
MODEL_ERROR = 0.05
"""Median absolute relative error of the simulated metrics of the fitted points, above which a
remark states that the model differs from the drive."""
WORSE = 1.5
"""A remark states the mean errors of held-out and of fitted points if the mean error of the
held-out points exceeds both MODEL_ERROR and this multiple of the mean error of the fitted
points."""
INTERVAL = 1.96
"""Half-width of a 95 % confidence interval of a fitted constant, in standard errors."""


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration.

    ``cfg``: configuration of the preset. ``points``: measured points. ``held``: for each point,
    True if it was held out. ``constants``: constants of the fit. ``fitted``: result of the fit.
    ``values``: fitted constants in base units by key, without the constants that keep the value of
    the preset. ``before``, ``after``: simulated metrics of each point with the preset and with the
    fitted constants. ``seed``: seed of the choice of held-out points and of the simulated requests.
    ``simulations``: number of simulations. ``wall_s``: duration of the calibration in seconds.
    """

    cfg: Config
    points: tuple[Point, ...]
    held: tuple[bool, ...]
    constants: tuple[Constant, ...]
    fitted: Fitted
    values: Mapping[str, int]
    before: tuple[Figures, ...]
    after: tuple[Figures, ...]
    seed: int
    simulations: int
    wall_s: float


def calibrate(
    points: Sequence[Point],
    cfg: Config,
    *,
    constants: Sequence[str] | None = None,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[float], None] | None = None,
) -> Calibration:
    """Fit constants of ``cfg`` to half of ``points``, and return the fitted constants with the
    errors of all points.

    ``constants``: names of at most MOST constants; by default the first MOST of RANGES. ``seed``:
    seed of the choice of held-out points and of the simulated requests. ``workers``: number of
    processes that simulate; 1 to simulate in the calling process. Raises InputError if
    ``constants`` are invalid, if points contradict each other or cannot be simulated on the drive,
    or if there are too few points.
    """
    began = time.perf_counter()
    fit_constants = chosen(cfg, constants)
    known = merged(points)
    for each in known:
        check_simulated(each, cfg)
    held = held_out(known, seed)
    simulator = Simulator(cfg, known, fit_constants, seed)
    fit = Fit(simulator, [i for i, out in enumerate(held) if not out], progress)
    if workers == 1:
        fitted = fit.run()
    else:
        with pool("calibrate", workers) as run:
            simulator.run = run
            fitted = fit.run()
    values = {
        constant.key: _rounded(float(np.exp(value)), constant)
        for constant, value, kept in zip(fit_constants, fitted.x, fitted.kept, strict=True)
        if not kept
    }
    seeds = [(each, simulator.seed_of(i)) for i, each in enumerate(known)]
    return Calibration(
        cfg=cfg,
        points=tuple(known),
        held=tuple(held),
        constants=tuple(fit_constants),
        fitted=fitted,
        values=values,
        before=tuple(simulate_points(cfg, {}, seeds)),
        after=tuple(simulate_points(cfg, values, seeds)),
        seed=seed,
        simulations=simulator.runs + 2 * len(known),
        wall_s=time.perf_counter() - began,
    )


def _rounded(value: float, constant: Constant) -> int:
    """Return ``value`` rounded to DIGITS significant digits and limited to the range of
    ``constant``."""
    return min(max(int(float(f"{value:.{DIGITS}g}")), constant.low), constant.high)


def at_bound(calibration: Calibration, i: int) -> str | None:
    """Return "low" or "high" if fitted constant ``i`` is at this bound of its range; None if the
    constant is not at a bound or keeps the value of the preset."""
    constant, x = calibration.constants[i], calibration.fitted.x[i]
    if calibration.fitted.kept[i]:
        return None
    low, high = np.log(constant.low), np.log(constant.high)
    near = NEAR_BOUND * (high - low)
    return "low" if x < low + near else "high" if x > high - near else None


def interval(calibration: Calibration, i: int) -> tuple[int, int]:
    """Return the 95 % confidence interval (low, high) of fitted constant ``i`` in base units,
    limited to the range of the constant."""
    constant = calibration.constants[i]
    value = calibration.values[constant.key]
    factor = float(np.exp(INTERVAL * calibration.fitted.error[i]))
    low, high = _rounded(value / factor, constant), _rounded(value * factor, constant)
    return min(low, value), max(high, value)


def errors(simulated: Figures, point: Point) -> dict[str, float]:
    """Return the relative error of each metric of a point by name: simulated / measured - 1."""
    values = simulated.flat()
    return {name: values[name] / value - 1 for name, value in point.figures.flat().items()}


def summary(
    simulated: Sequence[Figures], points: Sequence[Point], use: Sequence[bool]
) -> dict[str, Any]:
    """Return the median, mean and largest absolute relative error of the points for which ``use``
    is True, by kind of metric ("iops", "mean", "p50", ...) and for all metrics ("all")."""
    found: dict[str, list[float]] = {}
    for figures, each, used in zip(simulated, points, use, strict=True):
        if used:
            for name, error in errors(figures, each).items():
                found.setdefault(name.split()[-1], []).append(abs(error))
    every = [error for kind in found.values() for error in kind]
    return {
        name: {
            "median": float(np.median(values)),
            "mean": float(np.mean(values)),
            "largest": float(np.max(values)),
        }
        for name, values in {**found, "all": every}.items()
    }


def document(calibration: Calibration) -> dict[str, Any]:
    """Return the JSON document of a calibration for `ondie calibrate --json`; latencies are in
    us."""
    of, fitted = calibration, calibration.fitted
    fit = [not held for held in of.held]
    return {
        "preset": of.cfg.system.name,
        "seed": of.seed,
        "constants": [_constant(of, i) for i in range(len(of.constants))],
        "covariance": [[float(value) for value in row] for row in fitted.covariance],
        "singular_values": [float(value) for value in fitted.singular],
        "misfit": fitted.misfit,
        "converged": fitted.converged,
        "errors": {
            "fitted": summary(of.after, of.points, fit),
            "held_out": summary(of.after, of.points, of.held),
            "fitted_before": summary(of.before, of.points, fit),
            "held_out_before": summary(of.before, of.points, of.held),
        },
        "points": [_row(of, i) for i in range(len(of.points))],
        "simulations": of.simulations,
        "wall_s": of.wall_s,
    }


def _constant(of: Calibration, i: int) -> dict[str, Any]:
    """Return the entry of constant ``i`` in the JSON document; values are in base units."""
    constant, kept = of.constants[i], bool(of.fitted.kept[i])
    low, high = (None, None) if kept else interval(of, i)
    return {
        "key": constant.key,
        "unit": constant.unit,
        "before": constant.base,
        "value": of.values.get(constant.key),
        "low": low,
        "high": high,
        "relative_error": float(of.fitted.error[i]),
        "determined": bool(of.fitted.error[i] <= UNDETERMINED),
        "kept": kept,
        "at_bound": at_bound(of, i),
        "influence": float(of.fitted.influence[i]),
        "range": {"low": constant.low, "high": constant.high, "ref": constant.ref},
    }


def _row(of: Calibration, i: int) -> dict[str, Any]:
    """Return the entry of measured point ``i`` in the JSON document of a calibration."""
    each = of.points[i]
    condition = each.condition
    return {
        "condition": str(condition),
        "read_share": condition.read_share,
        "random": condition.random,
        "block_bytes": condition.block_bytes,
        "depth": condition.depth,
        "held_out": of.held[i],
        "place": each.place,
        "repeats": each.repeats,
        "host_us": each.host_us,
        "measured": each.figures.flat(),
        "simulated": of.after[i].flat(),
        "before": of.before[i].flat(),
        "error": errors(of.after[i], each),
    }


def remarks(of: Calibration) -> list[str]:
    """Return remarks on the reliability of a calibration, one sentence each."""
    found = []
    busy = [each for each in of.points if each.busy > BUSY]
    if busy:
        found.append(
            f"fio used more than {BUSY:.0%} of a core in {len(busy)} of {len(of.points)} points "
            f"(first: {busy[0].place}): the host, not the drive, may have limited these points"
        )
    slow = [
        each
        for each in of.points
        if each.host_us > HOST_SHARE * each.condition.depth / each.figures.iops * 1e6
    ]
    if slow:
        found.append(
            f"in {len(slow)} points, more than {HOST_SHARE:.0%} of the time of a request was spent "
            f"in the host (first: {slow[0].place})"
        )
    if not of.fitted.converged:
        found.append(
            f"the fit did not converge in {of.fitted.designs} sets of simulations; the fitted "
            "values and their errors may be wrong"
        )
    if not of.values:
        found.append("the points determine none of the constants; the preset keeps all its values")
    fit = [not held for held in of.held]
    typical = summary(of.after, of.points, fit)["all"]["median"]
    if typical > MODEL_ERROR:
        found.append(
            f"half of the fitted metrics deviate by more than {typical:.0%}: the measured drive "
            f"differs from {of.cfg.system.name} in a mechanism or a constant that is not fitted, "
            "and the fitted constants partly compensate for this difference"
        )
    seen, unseen = (summary(of.after, of.points, use)["all"]["mean"] for use in (fit, of.held))
    if unseen > max(MODEL_ERROR, WORSE * seen):
        found.append(
            f"held-out points deviate by {unseen:.0%} on average, fitted ones by {seen:.0%}: the "
            "fit describes points that it did not use less accurately; measure more points, or fit "
            "fewer constants"
        )
    return found


def measured_preset(of: Calibration, base: str, target: Path, measured: str) -> str:
    """Return the TOML text of the calibrated preset.

    ``base``: name of the preset, or TOML file, that was calibrated. ``target``: file to which the
    caller will write the text; if ``base`` is a file, its path is made relative to the folder of
    ``target``. ``measured``: description of the measurement; it is added to the field ``ref``
    (source) of each fitted constant.
    """
    if base.endswith(".toml"):
        base = os.path.relpath(base, target.parent)
    of_errors = {
        name: summary(of.after, of.points, use)["all"]["mean"]
        for name, use in (("fit", [not held for held in of.held]), ("held", of.held))
    }
    lines = [
        f"# {base}, calibrated by ondie calibrate to {len(of.points)} points of {measured}.",
        f"# Mean absolute error: {of_errors['fit']:.1%} of the fitted points, "
        f"{of_errors['held']:.1%} of the held-out points (seed {of.seed}).",
        "",
        f"base = {_text(base)}",
    ]
    section = ""
    for i, constant in enumerate(of.constants):
        if constant.key not in of.values:
            continue
        head, _, key = constant.key.partition(".")
        if head != section:
            section = head
            lines += ["", f"[{section}]"]
        bound = at_bound(of, i)
        kind = KINDS[_kind(constant)]
        low, high = (exact(value, kind) for value in interval(of, i))
        notes = ["hardly determined"] if of.fitted.error[i] > UNDETERMINED else []
        notes += [f"at the {bound} bound of its range"] if bound else []
        ref = "; ".join([f"ondie calibrate: {measured}", "95 % interval from low to high", *notes])
        value = exact(of.values[constant.key], kind)
        lines.append(
            f'{key} = {{ value = "{value}", low = "{low}", high = "{high}", '
            f'source = "measured", ref = {_text(ref)} }}'
        )
    return "\n".join(lines) + "\n"


def _kind(constant: Constant) -> str:
    """Return the kind of quantity of a constant: the key in units.KINDS whose base unit is that of
    the constant, such as "ps" for a time."""
    return next(name for name, kind in KINDS.items() if kind.shown[0] == constant.unit)


def _text(value: str) -> str:
    """Return ``value`` as a TOML string in double quotes."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
