"""Fit of constants to measured points: weighted least squares on a response surface.

Owns the weights, the derivatives, the steps of the fit and its covariance. Does not own the
simulation of a point (simulate.py), the choice of points and constants (calibration.py), or any
output.
Source: Box, Wilson, On the experimental attainment of optimum conditions, JRSS B 13(1), 1951;
Plackett, Burman, The design of optimum multifactorial experiments, Biometrika 33(4), 1946;
scipy.optimize.least_squares (Branch, Coleman, Li, SIAM J. Sci. Comput. 21(1), 1999).

The logarithms of the figures are fitted as functions of the logarithms of the constants. A
simulation of queues is rough: a small change of a constant changes the order of requests, and with
it the figures of a short window. Derivatives are therefore not differences of two simulations, but
the regression over a design of simulations, in half of which a constant is raised and in the
others lowered. scipy's least squares solves the linear model within bounds.
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
"""First row of the Plackett-Burman design of 8 or 12 runs, by the largest number of constants that
leaves three degrees of freedom for the error."""
WEIGHTS = {"iops": 1.0, "mean": 1.0, "p50": 1.0, "p90": 0.5, "p99": 0.25}
"""Weight of a figure: tails depend on what the model lacks, such as read retries and refresh."""
LEAST_ERROR = {"iops": 0.005, "mean": 0.005, "p50": 0.01, "p90": 0.01, "p99": 0.01}
"""Smallest relative error of a measured figure; fio sorts latencies into bins of 1.6 %."""
OUTLIER = 3.0
"""Deviation in multiples of its error above which a figure counts less (soft L1 loss)."""
SIGMA = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
SEEDS = 3
"""Simulations with other requests, from which the error of a short window is estimated."""
SMALLEST_STEP, LARGEST_STEP, WANTED_CHANGE = 0.03, 0.5, 0.04
"""Steps of the design in logarithms: such that a figure changes by WANTED_CHANGE."""
FIRST_RADIUS, LARGEST_RADIUS = 0.7, 1.5
"""Radius in which the linear model is used, in logarithms of the constants."""
UNDETERMINED = 0.3
"""Standard error, in logarithms, above which the data do not determine a constant."""
SAME = 2.0
"""Largest increase of the cost, in multiples of the misfit, with which figures are as close: two
standard errors of one constant."""
MOST_DESIGNS = 30
STAGES = 5
GAIN_OF_STAGE = 0.7
"""A stage that leaves more than this share of the deviation before it is the last."""
CONVERGED = 0.002
"""Step of every constant in logarithms at which a stage ends."""
LEAST_GAIN = 0.3
"""Decrease of the cost at which a stage ends, relative to the misfit or to 1: half a standard
error of one constant would be 0.13."""


def design(constants: int) -> F64:
    """Return the signs of the steps of a design, float64[runs, constants]."""
    row = next(row for most, row in ROWS.items() if constants <= most)
    runs = [np.roll(row, i) for i in range(len(row))] + [np.full(len(row), -1)]
    return np.array(runs, np.float64)[:, :constants]


@dataclass(frozen=True)
class Wanted:
    """A simulation: point ``point`` with constants ``x`` (logarithms); ``draw`` selects other
    requests."""

    point: int
    x: F64
    draw: int = 0


def simulate_points(
    cfg: Config, values: dict[str, int], points: Sequence[tuple[Point, int]]
) -> list[Figures]:
    """Return the figures of points, each with its seed, on a drive with constants ``values``."""
    drive = small_drive(cfg.replace(values, ref="of the fit") if values else cfg)
    return [simulate(drive, point, seed) for point, seed in points]


class Simulator:
    """Simulates points for values of the constants, and keeps the figures.

    A point is simulated again only if a constant has changed that influences its directions.
    ``run``: workers of `pool`, or None to simulate in this process.
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
        """Number of simulations of a point so far."""
        self._known: dict[tuple[object, ...], Figures] = {}

    def values(self, x: F64) -> dict[str, int]:
        """Return the constants in base units for their logarithms ``x``."""
        return {
            constant.key: int(round(float(np.exp(value))))
            for constant, value in zip(self.constants, x, strict=True)
        }

    def figures(self, wanted: Sequence[Wanted]) -> list[Figures]:
        """Return the figures of simulations, of which those that are not yet known are run."""
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
        """Return the key of a simulation: the point, the draw, and the values that influence it."""
        directions = set(self.points[wanted.point].condition.directions)
        values = self.values(wanted.x)
        used = (values[each.key] for each in self.constants if directions & set(each.directions))
        return wanted.point, wanted.draw, *used

    def seed_of(self, i: int, draw: int = 0) -> int:
        """Return the seed of the requests of point ``i``."""
        return int(np.random.SeedSequence((self.seed, draw, i)).generate_state(1)[0])


@dataclass(frozen=True)
class Fitted:
    """Result of a fit, with one entry per constant in each array.

    x: logarithms of the constants. covariance: of x, float64[n, n], from the derivatives. error:
    standard error of x, the larger of that of the covariance and of a jackknife over the points.
    kept: bool[n], whether the constant kept its start, because it is not determined and the figures
    are as close with it. influence: largest change of a fitted figure per change of the constant,
    in logarithms. singular: singular values of the weighted derivatives, largest first. misfit:
    weighted mean square of the deviations; 1 for deviations as large as the errors of the figures.
    designs: number of designs simulated. converged: False if MOST_DESIGNS ended the fit.
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
    """Linear model of the figures around ``centre``: ``mean`` + ``slope`` (x - centre).

    mean: float64[m], logarithms of the figures, averaged over the design. slope: float64[m, n].
    spread: float64[m], uncertainty of percentiles.
    """

    centre: F64
    mean: F64
    slope: F64
    spread: F64


class Fit:
    """A fit of the constants of ``simulator`` to the points ``chosen``.

    ``progress`` is called with the share of the work that is done, at most.
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
        """Typical deviation that the simulation could not explain so far, relative."""
        self.designs = 0

    def simulated(self, at: Sequence[tuple[F64, int]]) -> tuple[F64, F64]:
        """Return the logarithms of all figures and their spreads, float64[k, m] each, for k pairs
        (constants, draw)."""
        wanted = [Wanted(i, x, draw) for x, draw in at for i in self.chosen]
        values, spread = [], []
        for figures in self.simulator.figures(wanted):
            for name, value in figures.flat().items():
                values.append(np.log(value))
                spread.append(figures.spread.get(name, 0.0))
        shape = len(at), len(self.measured)
        return np.reshape(values, shape), np.reshape(spread, shape)

    def surface(self, x: F64) -> Surface:
        """Return the linear model around ``x``, from the simulations of a design."""
        step = np.minimum(self.step, (self.high - self.low) / 2)
        centre = np.clip(x, self.low + step, self.high - step)
        signs = design(len(x))
        values, spread = self.simulated([(centre + step * row, 0) for row in signs])
        mean = values.mean(axis=0)
        effect = signs.T @ values / len(signs)
        rest = values - mean - signs @ effect
        error = np.sqrt((rest**2).sum(axis=0) / (len(signs) - 1 - len(x)) / len(signs))
        # A difference that is not larger than twice its error is no derivative.
        effect[np.abs(effect) < 2 * error] = 0
        self.designs += 1
        if self.progress is not None:
            self.progress(min(self.designs / MOST_DESIGNS, 1.0))
        return Surface(centre, mean, (effect / step[:, None]).T, spread.mean(axis=0))

    def adapt(self, surface: Surface, x: F64) -> None:
        """Set the steps of the design and the errors of the figures for a fit around ``x``."""
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
        """Return the logarithms of simulated over measured figures of the linear model."""
        return surface.mean + surface.slope @ (x - surface.centre) - self.measured

    def residual(self, surface: Surface, x: F64) -> F64:
        """Return the weighted deviations of the linear model at ``x``, with soft L1 for outliers,
        and those of ``x`` from the preset, float64[m + n]."""
        values = self.deviation(surface, x)
        return np.concatenate([_soft(values * self.scale), (x - self.start) / self.prior])

    def cost(self, surface: Surface, x: F64) -> float:
        """Return half of the sum of squares of `residual`."""
        return float((self.residual(surface, x) ** 2).sum()) / 2

    def derivative(self, surface: Surface, x: F64) -> F64:
        """Return the derivatives of `residual`, float64[m + n, n]."""
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
        """Return the best constants of the linear model within ``radius`` around ``x``.

        ``free``: constants that may change, by default all. ``rows``: figures that count.
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
        """Return the fitted constants.

        A stage moves the linear model until the cost no longer decreases. The next one begins there
        with new steps and errors of the figures, which contain the deviation that is left.
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
        """Return the constants at which the cost no longer decreases, and the model around them."""
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
        """Return the fitted constants with their errors."""
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
        """Return the constants, of which those that the data do not determine keep their start, and
        which ones these are.

        The others are fitted again on the linear model, and the result is simulated: a constant
        that is not determined but contradicts the data at its start stays as fitted.
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
        """Return the cost of one simulation with constants ``x``."""
        values, _ = self.simulated([(x, 0)])
        soft = _soft((values[0] - self.measured) * self.scale)
        return float((soft**2).sum() + (((x - self.start) / self.prior) ** 2).sum()) / 2

    def misfit(self, surface: Surface, x: F64) -> float:
        """Return the weighted mean square of the deviations per degree of freedom."""
        rows = len(self.measured)
        squares = float((self.residual(surface, x)[:rows] ** 2).sum())
        return squares / max(rows - len(x), 1)

    def jackknife(self, surface: Surface, x: F64) -> F64:
        """Return the standard errors of the constants from fits of the linear model that leave out
        one point each (Tukey, 1958), float64[n]."""
        left = [self.solve(surface, x, LARGEST_RADIUS, rows=self.point != i) for i in self.chosen]
        count = len(left)
        return np.sqrt((count - 1) * np.var(left, axis=0))


def _soft(values: F64) -> F64:
    """Return the values whose squares are the soft L1 loss of ``values``."""
    loss = 2 * OUTLIER**2 * (np.sqrt(1 + (values / OUTLIER) ** 2) - 1)
    return np.sign(values) * np.sqrt(loss)


def _soft_slope(values: F64) -> F64:
    """Return the derivative of `_soft`."""
    bent = np.abs(_soft(values))
    slope = np.abs(values) / np.sqrt(1 + (values / OUTLIER) ** 2)
    return np.divide(slope, bent, out=np.ones_like(values), where=bent > 1e-9)
