"""Does the fit of a calibration find the constants of figures that follow from a formula?

No drive is simulated: the figures of a point are an exact function of the constants.
"""

from dataclasses import replace

import numpy as np
import pytest

from ondie.emu.analysis.calibrate import fit as fits
from ondie.emu.analysis.calibrate.calibration import Calibration, at_bound, document, remarks
from ondie.emu.analysis.calibrate.constants import chosen
from ondie.emu.analysis.calibrate.fit import Fit, Simulator
from ondie.emu.analysis.calibrate.point import PERCENTILES, Condition, Figures, Latency, point
from ondie.emu.analysis.calibrate.simulate import requests_of
from ondie.emu.config.config import load_preset

KEYS = ("frontend.read_delay", "link.up", "flash.t_read", "flash.t_program")
US = 1e6
TRUE = {"frontend.read_delay": 60 * US, "link.up": 3e9, "flash.t_read": 90 * US,
        "flash.t_program": 700 * US}  # fmt: skip
CONDITIONS = [Condition(share, True, block, depth) for share in (0.0, 1.0)
              for block in (4096, 16384, 131072) for depth in (1, 4, 16, 64)]  # fmt: skip


def formula(condition, values, transfer=True):
    """Reads take turns on 8 dies and then on the link; writes wait for a program, in turns."""
    turns = max(condition.depth / 8, 1)
    if condition.read_share:
        latency = (values["frontend.read_delay"] + turns * values["flash.t_read"]) / US
        if transfer:
            latency += condition.depth * condition.block_bytes / values["link.up"] * 1e6
    else:
        latency = turns * values["flash.t_program"] / US
    times = Latency(latency, dict.fromkeys(PERCENTILES, latency))
    return Figures(condition.depth / latency * 1e6, {condition.directions[0]: times})


class Formula(Simulator):
    """A simulator whose figures are those of `formula`."""

    transfer = True

    def figures(self, wanted):
        return [
            formula(self.points[each.point].condition, self.values(each.x), self.transfer)
            for each in wanted
        ]


def fitted(measure, keys=KEYS, transfer=True):
    """A calibration of gen4-tlc to measured figures ``measure(condition)``."""
    cfg = load_preset("gen4-tlc")
    points = [point(each, measure(each), str(each)) for each in CONDITIONS]
    constants = chosen(cfg, keys)
    simulator = Formula(cfg, points, constants, 0)
    simulator.transfer = transfer
    found = Fit(simulator, range(len(points))).run()
    values = {each.key: round(float(np.exp(x)))
              for each, x, kept in zip(constants, found.x, found.kept, strict=True)
              if not kept}  # fmt: skip
    after = tuple(formula(each, {**TRUE, **values}, transfer) for each in CONDITIONS)
    held = tuple(i % 2 == 1 for i in range(len(points)))
    return Calibration(cfg, tuple(points), held, tuple(constants), found, values, after, after,
                       0, 0, 0.0)  # fmt: skip


def noisy(condition):
    """Measured figures with an error of 2 %, equal for all figures of a point."""
    rng = np.random.default_rng(CONDITIONS.index(condition))
    factor = np.exp(0.02 * rng.standard_normal())
    scaled = {key: value / factor if key == "link.up" else value * factor
              for key, value in TRUE.items()}  # fmt: skip
    return formula(condition, scaled)


def test_exact_figures_give_the_constants():
    found = fitted(lambda each: formula(each, TRUE))
    assert found.fitted.converged
    for key in KEYS:
        assert found.values[key] == pytest.approx(TRUE[key], rel=0.01), key
    assert (found.fitted.error < 0.05).all()


def test_errors_are_those_of_the_measurement():
    found = fitted(noisy)
    wrong = np.log([found.values[key] / TRUE[key] for key in KEYS]) / found.fitted.error
    assert np.abs(wrong).max() < 3
    assert found.fitted.error[3] == pytest.approx(0.02 / 12**0.5, rel=0.6)


def test_a_constant_without_influence_keeps_the_value_of_the_preset():
    found = fitted(lambda each: formula(each, TRUE, transfer=False), transfer=False)
    row = document(found)["constants"][1]
    assert (row["key"], row["kept"], row["value"], row["determined"]) == (
        "link.up", True, None, False,
    )  # fmt: skip
    assert row["influence"] == 0
    assert found.values["flash.t_read"] == pytest.approx(TRUE["flash.t_read"], rel=0.01)


def test_constants_that_only_their_sum_decides_are_not_determined():
    """With one turn at every depth, a delay and tR are one time."""
    fast = [each for each in CONDITIONS if each.depth <= 4]
    cfg = load_preset("gen4-tlc")
    points = [point(each, formula(each, TRUE), str(each)) for each in fast]
    found = Fit(Formula(cfg, points, chosen(cfg, KEYS), 0), range(len(points))).run()
    assert found.error[0] > 0.1 and found.error[2] > 0.1 and found.error[3] < 0.02
    correlation = found.covariance[0, 2] / (found.covariance[0, 0] * found.covariance[2, 2]) ** 0.5
    assert correlation < -0.9
    assert np.exp(found.x[0]) + np.exp(found.x[2]) == pytest.approx(150 * US, rel=0.02)


def test_a_value_outside_the_range_ends_at_the_bound():
    slow = TRUE | {"flash.t_program": 40_000 * US}
    found = fitted(lambda each: formula(each, slow))
    assert at_bound(found, 3) == "high"
    assert found.values["flash.t_program"] == pytest.approx(11_000 * US, rel=0.01)
    assert any("the fitted constants partly compensate" in line for line in remarks(found))


def test_a_fit_that_does_not_converge_says_so(monkeypatch):
    monkeypatch.setattr(fits, "MOST_DESIGNS", 3)
    found = fitted(lambda each: formula(each, TRUE))
    assert not found.fitted.converged
    assert "did not converge" in remarks(found)[0]


def test_the_share_of_reads_is_exact_in_every_stratum():
    trace = requests_of(Condition(0.7, True, 4096, 4), 1000, 1 << 30, seed=3)
    reads = (trace.op == 0).reshape(-1, 20)
    assert (reads.sum(axis=1) == 14).all()
    assert len({tuple(row) for row in reads}) > 40


def test_a_fit_that_only_describes_the_fitted_points_says_so():
    found = fitted(lambda each: formula(each, TRUE))
    assert remarks(found) == []
    slower = tuple(
        replace(each, figures=replace(each.figures, iops=each.figures.iops / 3)) if held else each
        for each, held in zip(found.points, found.held, strict=True)
    )
    (line,) = remarks(replace(found, points=slower))
    assert line.startswith("held-out points deviate by 40% on average, fitted ones by 0%")
