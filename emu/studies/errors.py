"""Training on weights and optimizer states with raw bit errors: `ondie study errors`.

Owns the models, the configuration of the drive for each protection mode, and the selection of the
training runs that must be executed. Does not own the drive's bit errors (nand/bit_errors.py,
nand/pe_protection.py), the optimizer (csd_optimizer.py), or the rows and the figure
(errors_tables.py).
Source: this project.

Training is a closed loop. If a processing element reads a page with bit errors, the errors affect
the results that it computes and programs. Errors therefore persist and accumulate in w, m and v.
Bit errors in weight pages that the host reads affect the weights with which it trains. Models and
batches are those of the traces gpt-small and mobilenetv2-digits.

Bit flips are drawn before training. The flips of a page read depend only on the seed, the page, its
program count and the number of the read, not on data or time. The engine therefore first simulates
all page reads at an error rate of one half. At this rate, every read has bit errors, so the engine
logs the key of the random draws of every read. The flips for any error rate and any code are then
computed from these keys, and equal those that the engine would draw.

If no flip of a run remains after correction, the run is not executed, and the training run without
errors provides its results. As a check, one such run per model and mode, except the NaN comparator,
is executed nevertheless. Its results must equal the results without errors bit for bit. In every
executed run, the number of errors that the drive counts must equal the drawn number. If the NaN
comparator would not change any value, the run with bypassed ECC provides the results of the run
with the comparator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ondie.emu.analysis.row import Progress, Row
from ondie.emu.analysis.workers import Runner, pool
from ondie.emu.config.config import Config, load_preset
from ondie.emu.csd_optimizer import CSDOptimizer
from ondie.emu.engine.core.payload_log import LOG_RAW
from ondie.emu.nand import pe_protection
from ondie.emu.nand.rber import MOST_RBER
from ondie.emu.paths.base import Options
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.studies import errors_tables
from ondie.emu.studies.drives import DEVICE
from ondie.emu.studies.errors_tables import BYPASSED, COMPARED, MODES, Cell, Found, Trained
from ondie.emu.units import InputError
from ondie.traces import Trace
from ondie.traces.scripts import gpt, mobilenet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS, SEEDS = 200, (1, 2, 3)
RATES = (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
MODELS: dict[str, tuple[ModuleType, str]] = {
    "MobileNetV2": (mobilenet, "adam"),
    "GPT": (gpt, "adamw"),
}
"""Trained models: name -> (training script, optimizer operation). The model with the longest
training run is first."""
MOST_EXPOSURE = 10**12


@dataclass(frozen=True)
class Plain:
    """Results of a training run without bit errors, and the keys of the random draws of its page
    reads."""

    trained: Trained
    keys: np.ndarray
    """Key of the random draw of every page read, uint64[steps, page reads per step]."""


def device(mode: str, rate: float, exposure: int) -> Config:
    """Return the configuration of the drive. ``mode``: protection mode, a key of MODES. ``rate``:
    raw bit error rate. ``exposure``: factor on the error rate (errors.exposure)."""
    return load_preset(DEVICE).replace(
        {
            "pe.protection": MODES[mode], "errors.kind": "rate", "errors.rate": rate,
            "errors.exposure": exposure,
        }
    )  # fmt: skip


def train(model: str, mode: str, rate: float, exposure: int, seed: int, steps: int) -> Trained:
    """Train a model on the emulated drive, and return the results.

    ``mode``, ``rate``, ``exposure``: see :func:`device`. With a rate of 0, there are no errors.
    """
    return trained_on(model, device(mode, rate, exposure), seed, steps)[0]


def plain(model: str, seed: int, steps: int) -> Plain:
    """Train a model without bit errors, and return the results and the keys of the random draws of
    its page reads.

    The keys come from a second simulation of the page reads of ``steps`` steps.
    """
    cfg = device(BYPASSED, 0.0, 1)
    trained, optimizer = trained_on(model, cfg, seed, steps)
    run = optimizer.run
    return Plain(trained, readings(run.path.trace, run.path.options, steps))


def trained_on(model: str, cfg: Config, seed: int, steps: int) -> tuple[Trained, CSDOptimizer]:
    """Train a model on a drive with configuration ``cfg``, and return the results and the
    optimizer."""
    script, op = MODELS[model]
    made: list[CSDOptimizer] = []

    def update(params: Any, **hyper: Any) -> CSDOptimizer:
        made.append(CSDOptimizer(params, op, device=cfg, path="on_die", seed=seed, **hyper))
        return made[-1]

    with np.errstate(all="ignore"):  # flips cause overflow and NaN
        result = script.train(update, steps, seed)
    (optimizer,) = made
    weights = np.concatenate([w.reshape(-1) for w in result.weights.values()])
    counters = optimizer.counters()
    book, joules = optimizer.account() if optimizer.steps else (None, None)
    return Trained(
        losses=tuple(result.losses), weights=weights, steps=optimizer.steps,
        raw=counters["bare_wrong_bits"] + counters["bare_corrected_bits"],
        left=counters["bare_wrong_bits"], met=optimizer.met,
        update_s=0.0 if book is None else book.update_s,
        drive_j=0.0 if book is None or joules is None else joules.drive[1] / book.steps,
    ), optimizer  # fmt: skip


def readings(trace: Trace, options: Options, steps: int) -> np.ndarray:
    """Return the keys of the random draws of all page reads of the optimizer, uint64[steps, reads
    per step].

    The steps are simulated at an error rate of one half. ``trace``: trace of one step.
    """
    path = OnDie(device(BYPASSED, MOST_RBER, 1), trace, options)
    system = path.system(payload=True, timeline=0)
    system.arrays.cfg.seed = options.seed
    path.prepare(system, None)
    found: list[np.ndarray] = []
    system.on_log = lambda log: found.append(log["key"][log["what"] == LOG_RAW])
    by_step = []
    for _ in range(steps):
        found.clear()
        system.run(path.plan(0))
        by_step.append(np.concatenate(found))
    return np.stack(by_step)


def drawn(keys: np.ndarray, mode: str, rate: float, exposure: int) -> np.ndarray:
    """Return the number of bit errors in the page reads of each step, int64[steps, 2].

    Column 0 counts the bit errors of the flash array, column 1 those that remain after correction.
    ``keys``: random keys of the page reads, uint64[steps, reads per step]. ``mode``, ``rate``,
    ``exposure``: see :func:`device`.
    """
    cfg = device(mode, rate, exposure)
    flips: np.ndarray = pe_protection.wrong_bits_by_step(
        keys, rate, cfg.flash.page_bytes, *pe_protection.code(cfg), exposure
    )
    return flips


@dataclass
class Suite:
    """All training runs of a `run_study` call: every combination of model, mode, rate and seed.

    ``run``: function that runs work in the worker processes.
    """

    steps: int
    seeds: Sequence[int]
    rates: Sequence[float]
    exposure: int
    progress: Progress
    run: Runner

    def found(self) -> Found:
        """Execute the training runs, and return the results of all runs. Runs that must have equal
        results are executed once.

        Runs with the NaN comparator are executed last, because the runs with bypassed ECC show
        whether the comparator would change a value.
        """
        pairs = [(model, seed) for model in MODELS for seed in self.seeds]
        self._done, self._expected = 0, 4 * len(pairs)
        plains = dict(self._each(plain, [(*pair, self.steps) for pair in pairs]))
        self.plains = {(m, s): found for (m, s, _), found in plains.items()}
        cells = {
            (model, mode, rate, seed): Cell(
                drawn(self.plains[model, seed].keys, mode, rate, self.exposure)
            )
            for model, seed in pairs
            for mode in MODES
            for rate in self.rates
        }
        first = [key for key in cells if key[1] != COMPARED and cells[key].left]
        quiet = list(self._to_be_equal(cells))
        self._expected = self._done + len(first) + len(quiet)
        self._train(cells, [*first, *quiet])
        again = []
        for key, cell in cells.items():
            model, mode, rate, seed = key
            stands = self.plains[model, seed].trained
            if mode == COMPARED and cell.left:
                bypassed = cells[model, BYPASSED, rate, seed].run
                assert bypassed is not None
                stands = bypassed
            if mode == COMPARED and stands.met:
                again.append(key)
            elif mode == COMPARED or not cell.left:
                cell.trained = stands
        self._expected += len(again)
        self._train(cells, again)
        trained = {pair: p.trained for pair, p in self.plains.items()}
        readings = {pair: p.keys.size for pair, p in self.plains.items()}
        bits = 8 * load_preset(DEVICE).flash.page_bytes
        return Found(
            cells, trained, readings, bits, self.rates, self.seeds, self.steps, self.exposure
        )

    def _to_be_equal(self, cells: Mapping[Any, Cell]) -> Iterator[tuple[str, str, float, int]]:
        """Yield, for each model and mode, the key (model, mode, rate, seed) of the run with the
        highest rate among those without remaining flips.

        These runs are executed to verify that they equal the training run without errors. The NaN
        comparator is omitted.
        """
        for model in MODELS:
            for mode in MODES:
                if mode == COMPARED:
                    continue
                silent = [k for k in cells if k[:2] == (model, mode) and not cells[k].left]
                if silent:
                    yield max(silent, key=lambda k: (k[2], -k[3]))

    def _train(self, cells: Mapping[Any, Cell], keys: Sequence[Any]) -> None:
        """Execute the training runs with the given ``keys`` (model, mode, rate, seed), and store
        their results in ``cells``."""
        wanted = [(*key[:3], self.exposure, key[3], self.steps) for key in keys]
        for (model, mode, rate, _, seed, _), found in self._each(train, wanted):
            cell = cells[model, mode, rate, seed]
            cell.trained = cell.run = found

    def _each(self, work: Any, wanted: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, Any]]:
        """Call ``work`` in the worker processes with each tuple of arguments in ``wanted``, and
        report the progress.

        Yields (arguments, result) in the order of completion.
        """
        for arguments, found in self.run(work, wanted):
            self._done += 1
            if self.progress is not None:
                self.progress("errors", min(self._done / max(self._expected, 1), 1.0))
            yield arguments, found


def check(steps: int, seeds: Sequence[int], rates: Sequence[float], exposure: int) -> None:
    """Raise InputError if an argument of :func:`run_study` is out of range, or if seeds or rates
    are missing or not distinct."""
    if steps < 1:
        raise InputError(f"steps = {steps}: must be at least 1")
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(
            f"seeds = {', '.join(map(str, seeds)) or 'none'}: must be one or more distinct seeds"
        )
    if not all(0 <= seed < 1 << 32 for seed in seeds):
        raise InputError(
            f"seeds = {', '.join(map(str, seeds))}: each seed must be from 0 to 2**32 - 1"
        )
    given = ", ".join(f"{rate:g}" for rate in rates) or "none"
    if not rates or len(set(rates)) < len(rates):
        raise InputError(f"rates = {given}: must be one or more distinct rates")
    if not all(0 < rate <= MOST_RBER for rate in rates):
        raise InputError(f"rates = {given}: must be above 0 and at most {MOST_RBER}")
    if not 1 <= exposure <= MOST_EXPOSURE:
        raise InputError(f"exposure = {exposure}: must be from 1 to {MOST_EXPOSURE:,}")


def run_study(
    save: Callable[[Figure], dict[str, bytes]],
    seeds: Sequence[int] = SEEDS,
    steps: int = STEPS,
    rates: Sequence[float] = RATES,
    exposure: int = 1,
    jobs: int | None = None,
    progress: Progress = None,
) -> tuple[list[Row], dict[str, bytes], list[Any]]:
    """Execute all training runs, and return the rows, the files of the figure by suffix, and the
    tables.

    ``save``: function that converts a figure to files. ``rates``: raw bit error rates.
    ``exposure``: factor on the error rates. ``jobs``: number of worker processes; None for one
    process per core. Raises InputError for invalid arguments.
    """
    check(steps, seeds, rates, exposure)
    ordered = sorted(rates)
    with pool("errors", jobs or os.cpu_count() or 1) as run:
        found = Suite(steps, seeds, ordered, exposure, progress, run).found()
    return errors_tables.rows(found), errors_tables.draw(found, save), errors_tables.tables(found)
