"""Training with implemented error-correcting codes (BCH, LDPC): `ondie study errors --codes`.

Owns the training runs with each code, the training runs with the capability model at the limit of
that code, and the drawing of the numbers of uncorrectable words before training. Does not own the
codes and their drives (drives.py), the training on a drive (errors.py), the decoding in a drive
(nand/codec.py) or the rows and the figure (codes_tables.py).
Source: this project.

The run with a code and the corresponding run with the capability model have the same seed. The data
therefore has the same bit errors in the same reads. The check bits of the code have additional bit
errors, from separate draws. Every code word that is read with a bit error is encoded, corrupted and
decoded, and the training continues with the output of the decoder. If the capability model corrects
all bit errors of a run, the training run without errors provides the results.
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
    """Train a model on the emulated drive, and return the results and the counters of the decoder.
    With the capability model, all counters are 0. ``model``: a key of MODELS. ``code``, ``rate``,
    ``real``: see :func:`device`."""
    trained, optimizer = errors.trained_on(model, device(code, rate, real), seed, steps)
    path = optimizer.run.path
    assert isinstance(path, OnDie) and isinstance(path.payload, Reservoir)
    decoder = path.payload.decoder
    return trained, BareCounts() if decoder is None else decoder.counts


def expected(keys: np.ndarray, code: str, rate: float) -> np.ndarray:
    """Return counts for each step, from bit errors that are drawn before training, int64[steps, 3].

    Column 0: bit errors in data that the capability model does not correct. Column 1: words that
    the capability model cannot correct. Column 2: words that have more bit errors than the limit of
    the capability model, counting the bit errors in check bits. ``keys``: keys of the random draws
    of the page reads, uint64[steps, reads]. ``code``, ``rate``: see :func:`device`.
    """
    cfg = device(code, rate, real=True)
    word, limit = pe_protection.code(cfg)
    page, check = cfg.flash.page_bytes, pe_protection.check_bytes(cfg)
    left = pe_protection.wrong_bits_by_step(keys, rate, page, word, limit, 1)[:, 1:]
    words = pe_protection.failures_by_step(keys, rate, page, word, check, limit)
    return np.hstack((left, words))


@dataclass
class Suite:
    """All training runs of a `run_study` call.

    ``rates``: raw bit error rates for all codes; None for the default rates of each code. ``run``:
    function that runs work in the worker processes.
    """

    steps: int
    seeds: Sequence[int]
    rates: Sequence[float] | None
    progress: Progress
    run: Runner

    def found(self) -> CodesFound:
        """Execute all training runs, and return their results."""
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
        """Call ``work`` in the worker processes with each tuple of arguments in ``wanted``, and
        report the progress.

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
    """Execute all training runs, and return the rows, the files of the figure by suffix, and the
    tables.

    ``save``: function that converts a figure to files. ``rates``: raw bit error rates for all
    codes; None for the default rates of each code, which are near the highest rate that the code
    corrects. ``exposure``: factor on the error rate (errors.exposure); must be 1, because every
    read is decoded separately. ``jobs``: number of worker processes; None for one process per core.
    Raises InputError for invalid arguments.
    """
    errors.check(steps, seeds, (1e-4,) if rates is None else rates, exposure)
    if exposure != 1:
        raise InputError(
            f"exposure = {exposure}: must be 1 with --codes, as each read is decoded separately"
        )
    ordered = None if rates is None else sorted(rates)
    with pool("errors", jobs or os.cpu_count() or 1) as run:
        found = Suite(steps, seeds, ordered, progress, run).found()
    return codes_tables.rows(found), codes_tables.draw(found, save), codes_tables.tables(found)
