"""Fit of constants to measured points: weighted least squares on a response surface.

Owns the weights, the derivatives, the iterations of the fit and its covariance. Does not own the
simulation of a point (simulate.py), the choice of points and constants, or the output
(calibration.py).
Source: Box, Wilson, On the experimental attainment of optimum conditions, JRSS B 13(1), 1951;
Plackett, Burman, The design of optimum multifactorial experiments, Biometrika 33(4), 1946;
scipy.optimize.least_squares (Branch, Coleman, Li, SIAM J. Sci. Comput. 21(1), 1999).

The logarithms of the metrics are fitted as functions of the logarithms of the constants. A small
change of a constant changes the order of requests in the queues, which adds noise to the metrics of
a short window. Derivatives are therefore not differences of two simulations. They are computed by
regression over a design, a set of simulations in which each constant is increased in one half and
decreased in the other half. scipy's least_squares solves the resulting linear model within bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ondie.emu.analysis.calibrate.constants import MOST, Constant
from ondie.emu.analysis.calibrate.point import Figures, Point
from ondie.emu.analysis.calibrate.simulate import simulate, small_drive
from ondie.emu.analysis.workers import Runner
from ondie.emu.config.config import Config

F64 = npt.NDArray[np.float64]

ROWS = {4: (1, 1, 1, -1, 1, -1, -1), MOST: (1, 1, -1, 1, 1, 1, -1, -1, -1, 1, -1)}
"""First row of a Plackett-Burman design, from which all rows of the design follow. The key is the
largest number of constants for which the design leaves three degrees of freedom for the error: 4
for the design of 8 simulations, MOST for that of 12."""
WEIGHTS = {"iops": 1.0, "mean": 1.0, "p50": 1.0, "p90": 0.5, "p99": 0.25}
"""Weight of a metric by kind. Tail latencies have a small weight, because they depend on effects
that the model does not include, such as refresh."""
LEAST_ERROR = {"iops": 0.005, "mean": 0.005, "p50": 0.01, "p90": 0.01, "p99": 0.01}
"""Relative measurement error that the fit assumes for each kind of metric, in addition to the
errors that it estimates. Percentiles are less exact, because fio sorts latencies into bins that are
1.6 % wide."""
OUTLIER = 3.0
"""Deviation of a simulated metric from the measured one, in multiples of the metric's error, above
which the weight of the metric decreases (soft L1 loss)."""
SIGMA = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""
SEEDS = 3
"""Number of additional simulations of each point with other random request sequences. Their results
give an estimate of the random error of the metrics of a short simulation."""
SMALLEST_STEP, LARGEST_STEP, WANTED_CHANGE = 0.03, 0.5, 0.04
"""Smallest and largest step of a constant in a design (natural logarithms), and the change of a
metric (natural logarithm) that a step should cause."""
FIRST_RADIUS, LARGEST_RADIUS = 0.7, 1.5
"""First and largest radius within which the linear model is used, in logarithms of the
constants."""
UNDETERMINED = 0.3
"""Standard error of the natural logarithm of a constant above which the measured points do not
determine the constant."""
SAME = 2.0
"""Largest increase of the cost of the fit, in multiples of max(misfit, 1), at which an undetermined
constant is reset to its value in the preset. The misfit is the sum of the squared weighted
deviations per degree of freedom. This increase corresponds to a change of one constant by two
standard errors."""
MOST_DESIGNS = 30
STAGES = 5
GAIN_OF_STAGE = 0.7
"""The fit ends if the median deviation after a stage exceeds this fraction of the deviation before
the stage. A stage is a descent with fixed design steps and fixed weights."""
CONVERGED = 0.002
"""A stage of the fit ends if no constant changes by this value or more (natural logarithm)."""
LEAST_GAIN = 0.3
"""A stage of the fit ends if the cost decreases by less than LEAST_GAIN times max(misfit, 1). The
misfit is the sum of the squared weighted deviations per degree of freedom. A change of one constant
by half a standard error would decrease the cost by 0.13."""


def design(constants: int) -> F64:
    """Return the Plackett-Burman design for a number of constants: the signs (1 or -1) of the steps
    of each constant in each simulation, float64[simulations, constants]."""
    row = next(row for most, row in ROWS.items() if constants <= most)
    runs = [np.roll(row, i) for i in range(len(row))] + [np.full(len(row), -1)]
    return np.array(runs, np.float64)[:, :constants]


@dataclass(frozen=True)
class Wanted:
    """One simulation to run. ``point``: index of the measured point. ``x``: natural logarithms of
    the constants, float64[n]. ``draw``: index of the random request sequence."""

    point: int
    x: F64
    draw: int = 0


def simulate_points(
    cfg: Config, values: dict[str, int], points: Sequence[tuple[Point, int]]
) -> list[Figures]:
    """Simulate points on a drive with constants ``values`` in base units, and return their metrics.
    ``points``: pairs of a point and the seed of its requests."""
    drive = small_drive(cfg.replace(values, ref="of the fit") if values else cfg)
    return [simulate(drive, point, seed) for point, seed in points]


class Simulator:
    """Simulator of measured points for given values of the constants, with a cache of the simulated
    metrics.

    Cached metrics of a point are used unless a constant that influences the requests of the point
    has changed. A constant influences reads, writes or both. ``run``: function that `pool` yields,
    or None to simulate in this process.
    """

    def __init__(
        self,
        cfg: Config,
        points: Sequence[Point],
        constants: Sequence[Constant],
        seed: int,
        run: Runner | None = None,
    ) -> None:
        self.cfg = cfg
        self.points = list(points)
        self.constants = list(constants)
        self.seed = seed
        self.run = run
        self.runs = 0
        """Number of simulations run so far."""
        self._known: dict[tuple[object, ...], Figures] = {}

    def values(self, x: F64) -> dict[str, int]:
        """Return the constants in base units, by key, from their logarithms ``x``, float64[n]."""
        return {
            constant.key: int(round(float(np.exp(value))))
            for constant, value in zip(self.constants, x, strict=True)
        }

    def figures(self, wanted: Sequence[Wanted]) -> list[Figures]:
        """Return the metrics of the simulations ``wanted``. Only simulations that are not in the
        cache are run."""
        keys = [self._key(each) for each in wanted]
        missing: dict[tuple[tuple[str, int], ...], dict[tuple[object, ...], tuple[Point, int]]] = {}
        for key, each in zip(keys, wanted, strict=True):
            if key not in self._known:
                values = tuple(self.values(each.x).items())
                point = self.points[each.point], self.seed_of(each.point, each.draw)
                missing.setdefault(values, {})[key] = point
        work = [(self.cfg, dict(values), list(of.values())) for values, of in missing.items()]
        if self.run is None:
            done = [simulate_points(*each) for each in work]
        else:  # in the order of completion
            by_work = {id(each): found for each, found in self.run(simulate_points, work)}
            done = [by_work[id(each)] for each in work]
        for of, found in zip(missing.values(), done, strict=True):
            self._known |= zip(of, found, strict=True)
            self.runs += len(of)
        return [self._known[key] for key in keys]

    def _key(self, wanted: Wanted) -> tuple[object, ...]:
        """Return the cache key of a simulation: the point, the draw, and the values of the
        constants that influence the point."""
        directions = set(self.points[wanted.point].condition.directions)
        values = self.values(wanted.x)
        used = (values[each.key] for each in self.constants if directions & set(each.directions))
        return wanted.point, wanted.draw, *used

    def seed_of(self, i: int, draw: int = 0) -> int:
        """Return the seed of the random number generator for the requests of point ``i``. ``draw``:
        index of the random request sequence of this point."""
        return int(np.random.SeedSequence((self.seed, draw, i)).generate_state(1)[0])


@dataclass(frozen=True)
class Fitted:
    """Result of a fit, with one entry per constant in each array.

    ``x``: logarithms of the constants. ``covariance``: covariance of ``x`` from the derivatives,
    float64[n, n]. ``error``: standard error of ``x``, the maximum of the errors from the covariance
    and from a jackknife over the points. ``kept``: bool[n], True if the constant keeps its value in
    the preset, because the measured points do not determine the constant. ``influence``: largest
    change of a fitted metric per change of the constant, both in logarithms. ``singular``: singular
    values of the weighted derivatives, largest first. ``misfit``: weighted mean square of the
    deviations; 1 if the deviations are as large as the errors of the metrics. ``designs``: number
    of simulated designs. ``converged``: False if the fit reached MOST_DESIGNS designs.
    """

    x: F64
    covariance: F64
    error: F64
    kept: npt.NDArray[np.bool_]
    influence: F64
    singular: F64
    misfit: float
    designs: int
    converged: bool


@dataclass(frozen=True)
class Surface:
    """Linear model of m metrics as a function of n constants, all in logarithms: ``mean`` +
    ``slope`` @ (x - ``centre``).

    ``mean``: metrics averaged over the design, float64[m]. ``slope``: derivatives, float64[m, n].
    ``centre``: constants at the center of the design, float64[n]. ``spread``: uncertainty of the
    metrics that are percentiles, 0 for all other metrics, float64[m].
    """

    centre: F64
    mean: F64
    slope: F64
    spread: F64


class Fit:
    """A fit of the constants of ``simulator`` to the points with the indices ``chosen``.

    ``progress`` is called with the number of simulated designs divided by MOST_DESIGNS, at most 1.
    In the methods, n is the number of constants, m is the number of metrics, and ``x`` contains the
    logarithms of the constants, float64[n].
    """

    def __init__(
        self,
        simulator: Simulator,
        chosen: Sequence[int],
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.simulator = simulator
        self.chosen = list(chosen)
        self.progress = progress
        constants = simulator.constants
        self.low = np.log([each.low for each in constants])
        self.high = np.log([each.high for each in constants])
        self.start = np.log([max(each.base, each.low) for each in constants])
        measured, kinds, points = [], [], []
        for i in self.chosen:
            for name, value in simulator.points[i].figures.flat().items():
                measured.append(np.log(value))
                kinds.append(name.split()[-1])
                points.append(i)
        self.measured = np.array(measured)
        self.point = np.array(points)
        self.weight = np.array([WEIGHTS[kind] for kind in kinds])
        self.least = np.array([LEAST_ERROR[kind] for kind in kinds])
        self.scale = 1 / self.least
        self.prior = (self.high - self.low) / 2
        self.step = np.full(len(constants), SMALLEST_STEP)
        self.model_error = 0.0
        """Typical relative deviation of the simulated metrics from the measured metrics so far."""
        self.designs = 0

    def simulated(self, at: Sequence[tuple[F64, int]]) -> tuple[F64, F64]:
        """Simulate the chosen points for each of the k elements of ``at``: pairs (logarithms of the
        constants, index of the random request sequence).

        Returns (logarithms of the m metrics of all points, uncertainties of these metrics),
        float64[k, m] each. For the uncertainties, see Figures.spread.
        """
        wanted = [Wanted(i, x, draw) for x, draw in at for i in self.chosen]
        values, spread = [], []
        for figures in self.simulator.figures(wanted):
            for name, value in figures.flat().items():
                values.append(np.log(value))
                spread.append(figures.spread.get(name, 0.0))
        shape = len(at), len(self.measured)
        return np.reshape(values, shape), np.reshape(spread, shape)

    def surface(self, x: F64) -> Surface:
        """Simulate a design (set of variations of the constants) around ``x``, and return the
        linear model of the simulated metrics."""
        step = np.minimum(self.step, (self.high - self.low) / 2)
        centre = np.clip(x, self.low + step, self.high - step)
        signs = design(len(x))
        values, spread = self.simulated([(centre + step * row, 0) for row in signs])
        mean = values.mean(axis=0)
        effect = signs.T @ values / len(signs)
        rest = values - mean - signs @ effect
        error = np.sqrt((rest**2).sum(axis=0) / (len(signs) - 1 - len(x)) / len(signs))
        # A derivative that does not exceed twice its error is set to 0.
        effect[np.abs(effect) < 2 * error] = 0
        self.designs += 1
        if self.progress is not None:
            self.progress(min(self.designs / MOST_DESIGNS, 1.0))
        return Surface(centre, mean, (effect / step[:, None]).T, spread.mean(axis=0))

    def adapt(self, surface: Surface, x: F64) -> None:
        """Prepare a stage of the fit that starts from ``x``: set the step size of each constant in
        the simulated designs, and the weight of each metric in the cost. The weights include the
        noise of the simulation and the deviation of the linear model at ``x`` from the measured
        metrics."""
        change = np.abs(surface.slope).max(axis=0, initial=0)
        with np.errstate(divide="ignore"):
            self.step = np.clip(WANTED_CHANGE / change, SMALLEST_STEP, LARGEST_STEP)
        draws, _ = self.simulated([(x, draw) for draw in range(SEEDS + 1)])
        noise = np.var(draws, axis=0, ddof=1)
        body = np.abs(self.deviation(surface, x))[self.weight == 1]
        self.model_error = SIGMA * float(np.median(body))
        self.scale = self.weight / np.sqrt(
            self.least**2 + noise + surface.spread**2 + self.model_error**2
        )

    def deviation(self, surface: Surface, x: F64) -> F64:
        """Return the logarithms of the metrics that the linear model predicts at ``x``, minus those
        of the measured metrics, float64[m]."""
        return surface.mean + surface.slope @ (x - surface.centre) - self.measured

    def residual(self, surface: Surface, x: F64) -> F64:
        """Return the weighted deviations of the linear model at ``x``, transformed by the soft L1
        loss, followed by the weighted deviations of ``x`` from the preset, float64[m + n]."""
        values = self.deviation(surface, x)
        return np.concatenate([_soft(values * self.scale), (x - self.start) / self.prior])

    def cost(self, surface: Surface, x: F64) -> float:
        """Return half of the sum of the squared elements of :meth:`residual` at ``x``."""
        return float((self.residual(surface, x) ** 2).sum()) / 2

    def derivative(self, surface: Surface, x: F64) -> F64:
        """Return the derivatives of the elements of :meth:`residual` (m metrics, then n constants)
        with respect to ``x``, float64[m + n, n]."""
        values = self.deviation(surface, x)
        scale = self.scale * _soft_slope(values * self.scale)
        return np.vstack([scale[:, None] * surface.slope, np.diag(1 / self.prior)])

    def solve(
        self,
        surface: Surface,
        x: F64,
        radius: float,
        *,
        free: npt.NDArray[np.bool_] | None = None,
        rows: npt.NDArray[np.bool_] | None = None,
    ) -> F64:
        """Return the constants within ``radius`` of ``x`` with the lowest cost in the linear model,
        float64[n] in logarithms.

        ``free``: mask of the constants that may change, bool[n]. ``rows``: mask of the metrics that
        contribute to the cost, bool[m]. By default, all constants may change and all metrics
        contribute.
        """
        from scipy.optimize import least_squares

        moved = np.full(len(x), True) if free is None else free
        if not moved.any():
            return x
        used = np.full(len(self.measured) + len(x), True)
        if rows is not None:
            used[: len(rows)] = rows

        def whole(part: F64) -> F64:
            at = x.copy()
            at[moved] = part
            return at

        low = np.maximum(self.low, x - radius)[moved]
        high = np.minimum(self.high, x + radius)[moved]
        margin = (high - low) * 1e-6
        found = least_squares(
            lambda part: self.residual(surface, whole(part))[used],
            np.clip(x[moved], low + margin, high - margin),
            lambda part: self.derivative(surface, whole(part))[used][:, moved],
            bounds=(low, high),
            x_scale="jac",
        )
        return whole(found.x)

    def run(self) -> Fitted:
        """Run the fit in up to STAGES stages, and return its result.

        Each stage starts from the constants that the previous stage found, with step sizes and
        metric weights from :meth:`adapt`. A stage moves the center of the linear model until the
        cost no longer decreases. The fit ends early if a stage has hardly reduced the deviation
        from the measured metrics.
        """
        x = self.start
        surface = self.surface(x)
        for _ in range(STAGES):
            before = max(self.model_error, LEAST_ERROR["mean"]) if self.model_error else np.inf
            self.adapt(surface, x)
            if self.model_error > GAIN_OF_STAGE * before:
                break
            surface = self.surface(x)
            x, surface = self.descend(surface, x)
        return self.result(surface, x)

    def descend(self, surface: Surface, x: F64) -> tuple[F64, Surface]:
        """Run a stage from ``x``: move the center of the linear model until the cost no longer
        decreases or MOST_DESIGNS designs were simulated.

        Return the constants at the end of the stage, float64[n] in logarithms, and the last linear
        model that the stage accepted.
        """
        radius, cost = FIRST_RADIUS, self.cost(surface, x)
        rows = len(self.measured)
        while self.designs < MOST_DESIGNS:
            at = self.solve(surface, x, radius)
            length = float(np.abs(at - x).max())
            expected = cost - self.cost(surface, at)
            least = LEAST_GAIN * max(2 * cost / rows, 1)
            if length < CONVERGED or expected < least:
                x = at
                break
            there = self.surface(at)
            found = self.cost(there, at)
            if found >= cost:
                radius = length / 3
                if radius < SMALLEST_STEP / 3:
                    break
                continue
            gain = cost - found
            if gain > 0.7 * expected:
                radius = min(2 * radius, LARGEST_RADIUS)
            x, surface, cost = at, there, found
            if gain < least:
                break
        return x, surface

    def result(self, surface: Surface, x: F64) -> Fitted:
        """Return the result of the fit that ended at ``x``, with the errors of the constants."""
        slope = self.derivative(surface, x)
        rows = len(self.measured)
        misfit = self.misfit(surface, x)
        covariance = np.asarray(np.linalg.inv(slope.T @ slope), np.float64) * max(misfit, 1.0)
        error = np.maximum(np.sqrt(np.diag(covariance)), self.jackknife(surface, x))
        at, kept = self.keep(surface, x, error)
        return Fitted(
            x=at,
            covariance=covariance,
            error=np.where(kept, error, np.hypot(error, at - x)),
            kept=kept,
            influence=np.abs(surface.slope).max(axis=0, initial=0),
            singular=np.asarray(np.linalg.svd(slope[:rows], compute_uv=False), np.float64),
            misfit=misfit,
            designs=self.designs,
            converged=self.designs < MOST_DESIGNS,
        )

    def keep(self, surface: Surface, x: F64, error: F64) -> tuple[F64, npt.NDArray[np.bool_]]:
        """Reset each constant that the measured points do not determine to its value in the preset,
        unless this increases the cost by more than SAME times max(misfit, 1). Return the natural
        logarithms of all constants, float64[n], and the mask of the reset constants, bool[n].

        A constant is undetermined if its standard error ``error``, float64[n] in logarithms,
        exceeds UNDETERMINED. All of these constants are reset together. If the cost then
        increases too much, they are reset one by one instead. After each reset, the other
        constants are fitted again on the linear model, and the result is simulated to obtain the
        cost.
        """
        limit = self.cost_of(x) + SAME * max(self.misfit(surface, x), 1.0)
        kept = np.full(len(x), False)
        unknown = [int(i) for i in np.argsort(-error) if error[i] > UNDETERMINED]
        for tried in ([unknown] if len(unknown) > 1 else []) + [[i] for i in unknown]:
            fixed = kept.copy()
            fixed[tried] = True
            if (fixed == kept).all():
                continue
            at = self.solve(surface, np.where(fixed, self.start, x), LARGEST_RADIUS, free=~fixed)
            if self.cost_of(at) <= limit:
                kept = fixed
                x = at
        return x, kept

    def cost_of(self, x: F64) -> float:
        """Simulate all metrics with the constants ``x`` (logarithms), and return the cost: half of
        the sum of the squared residuals."""
        values, _ = self.simulated([(x, 0)])
        soft = _soft((values[0] - self.measured) * self.scale)
        return float((soft**2).sum() + (((x - self.start) / self.prior) ** 2).sum()) / 2

    def misfit(self, surface: Surface, x: F64) -> float:
        """Return the weighted sum of the squared deviations of the linear model at ``x``, per
        degree of freedom."""
        rows = len(self.measured)
        squares = float((self.residual(surface, x)[:rows] ** 2).sum())
        return squares / max(rows - len(x), 1)

    def jackknife(self, surface: Surface, x: F64) -> F64:
        """Return the standard errors of the natural logarithms of the constants, float64[n], from
        fits of the linear model. Each fit omits another point (jackknife; Tukey, 1958)."""
        left = [self.solve(surface, x, LARGEST_RADIUS, rows=self.point != i) for i in self.chosen]
        count = len(left)
        return np.sqrt((count - 1) * np.var(left, axis=0))


def _soft(values: F64) -> F64:
    """Return the values whose squares are the soft L1 loss of ``values``, with the signs of
    ``values``."""
    loss = 2 * OUTLIER**2 * (np.sqrt(1 + (values / OUTLIER) ** 2) - 1)
    return np.sign(values) * np.sqrt(loss)


def _soft_slope(values: F64) -> F64:
    """Return the derivative of `_soft` at ``values``."""
    bent = np.abs(_soft(values))
    slope = np.abs(values) / np.sqrt(1 + (values / OUTLIER) ** 2)
    return np.divide(slope, bent, out=np.ones_like(values), where=bent > 1e-9)
