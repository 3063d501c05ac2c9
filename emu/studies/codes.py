"""Training behind real error-correcting codes: `ondie study errors --codes`.

Owns the trainings behind each code and behind the capability model with its limit, and the counts
of words that must agree. Does not own the codes and their drives (drives.py), the trainings and
their draws (errors.py), the codes in a drive (nand/codec.py) or the rows and the figure
(codes_tables.py).
Source: none.

A code and the model have the same seeds, hence the same wrong bits of data in the same reads. The
check bits of the code are hit, too, with draws of their own. Every code word that is read with a
wrong bit is encoded, hit and decoded, and the training continues with the decoder's output. A
training behind the model is replaced by that without errors if no wrong bit remains.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ondie.emu.analysis.row import Progress, Row
from ondie.emu.analysis.workers import Runner, pool
from ondie.emu.nand import pe_protection
from ondie.emu.nand.codec import BareCounts
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.emu.studies import codes_tables, errors
from ondie.emu.studies.codes_tables import Coded, CodesFound
from ondie.emu.studies.drives import CODES, device
from ondie.emu.studies.errors import MODELS, SEEDS, STEPS, Plain
from ondie.emu.studies.errors_tables import Trained
from ondie.emu.units import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def train(
    model: str, code: str, rate: float, real: bool, seed: int, steps: int
) -> tuple[Trained, BareCounts]:
    """Train a model on the emulated drive, and return the results and the decoder's counters (all
    zero without a real code). Arguments: see :func:`device`."""
    trained, optimizer = errors.trained_on(model, device(code, rate, real), seed, steps)
    path = optimizer.run.path
    assert isinstance(path, OnDie) and isinstance(path.payload, Reservoir)
    decoder = path.payload.decoder
    return trained, BareCounts() if decoder is None else decoder.counts


def expected(keys: np.ndarray, code: str, rate: float) -> np.ndarray:
    """Return the drawn wrong bits and words in each step, int64[steps, 3]: wrong bits of data that
    the model leaves; words that the model cannot correct; words with more wrong bits than the
    model's limit, check bits included. ``keys``: uint64[steps, reads]."""
    cfg = device(code, rate, real=True)
    word, limit = pe_protection.code(cfg)
    page, check = cfg.flash.page_bytes, pe_protection.check_bytes(cfg)
    left = pe_protection.wrong_bits_by_step(keys, rate, page, word, limit, 1)[:, 1:]
    words = pe_protection.failures_by_step(keys, rate, page, word, check, limit)
    return np.hstack((left, words))


@dataclass
class Suite:
    """All runs of one call of `run_study`. ``rates``: error rates for all codes; None: the default
    rates of each code."""

    steps: int
    seeds: Sequence[int]
    rates: Sequence[float] | None
    progress: Progress
    run: Runner

    def found(self) -> CodesFound:
        """Train all runs, and return their results."""
        pairs = [(model, seed) for model in MODELS for seed in self.seeds]
        rates = {code: self.rates or own.rates for code, own in CODES.items()}
        cells = [(m, c, rate, s) for m, s in pairs for c in CODES for rate in rates[c]]
        self._done, self._total = 0, len(pairs) + 2 * len(cells)
        plain: dict[tuple[str, int], Plain] = {
            (m, s): made
            for (m, s, _), made in self._each(errors.plain, [(*p, self.steps) for p in pairs])
        }
        drawn = {(m, c, rate, s): expected(plain[m, s].keys, c, rate) for m, c, rate, s in cells}
        wanted: list[tuple[Any, ...]] = []
        models: dict[Any, Trained] = {}
        for m, c, rate, s in cells:
            wanted.append((m, c, rate, True, s, self.steps))
            if drawn[m, c, rate, s][:, 0].any():
                wanted.append((m, c, rate, False, s, self.steps))
            else:
                models[m, c, rate, s] = plain[m, s].trained
        self._total = len(pairs) + len(wanted)
        coded: dict[Any, tuple[Trained, BareCounts]] = {}
        for (m, c, rate, real, s, _), made in self._each(train, wanted):
            if real:
                coded[m, c, rate, s] = made
            else:
                models[m, c, rate, s] = made[0]
        return CodesFound(
            {key: Coded(*coded[key], models[key], drawn[key]) for key in cells},
            {pair: made.trained for pair, made in plain.items()},
            rates, self.seeds, self.steps,
        )  # fmt: skip

    def _each(self, work: Any, wanted: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, Any]]:
        """Call ``work`` in the worker processes with each tuple of ``wanted``; report the progress.

        Yields (arguments, result) in the order of completion.
        """
        for arguments, made in self.run(work, wanted):
            self._done += 1
            if self.progress is not None:
                self.progress("codes", min(self._done / self._total, 1.0))
            yield arguments, made


def run_study(
    save: Callable[[Figure], dict[str, bytes]],
    seeds: Sequence[int] = SEEDS,
    steps: int = STEPS,
    rates: Sequence[float] | None = None,
    exposure: int = 1,
    jobs: int | None = None,
    progress: Progress = None,
) -> tuple[list[Row], dict[str, bytes], list[Any]]:
    """Train all runs, and return the rows, the files of the figure by suffix, and the tables.

    ``save``: function that converts a figure to files. ``rates``: raw bit error rates of all codes;
    None: of each code, rates near its limit. ``exposure``: must be 1. ``jobs``: number of worker
    processes; None for one per core. Raises InputError for invalid arguments.
    """
    errors.check(steps, seeds, (1e-4,) if rates is None else rates, exposure)
    if exposure != 1:
        raise InputError(f"exposure: {exposure}; must be 1 with --codes, which decode single reads")
    ordered = None if rates is None else sorted(rates)
    with pool("errors", jobs or os.cpu_count() or 1) as run:
        found = Suite(steps, seeds, ordered, progress, run).found()
    return codes_tables.rows(found), codes_tables.draw(found, save), codes_tables.tables(found)
