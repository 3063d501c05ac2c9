"""Closed form of pipelined fine-tuning, for equal stores and equal stage times in all runs.

A run is the pass of one sub-dataset through the pipeline. Owns the closed forms. Does not own the
simulation (pipeline.py).
Source: NDPipe (ASPLOS 2024): T(N) = [Ts + Tt + (N - 1) max(Ts, Tt)] / N, the total time of N runs.
Ts and Tt are the times of all photos on the stores and on the Tuner. This module adds the time
until the stages are full, which the paper omits.
"""

from __future__ import annotations

from collections.abc import Sequence

from ondie.emu.units import InputError, whole_number


def pipelined(stores: float, tuner: float, runs: int) -> float:
    """Return T(N) of the NDPipe paper: the total time of the pipeline with ``runs`` sub-datasets.

    ``stores``, ``tuner``: times that the stores and the Tuner need for all photos, in any common
    unit; the result has the same unit. Raises InputError if a time is below 0 or ``runs`` is below
    1.
    """
    whole_number("runs", runs, 1, 1 << 40)
    for name, value in (("stores", stores), ("tuner", tuner)):
        if not value >= 0:
            raise InputError(f"{name} = {value}: a time must be at least 0")
    return (stores + tuner + (runs - 1) * max(stores, tuner)) / runs


def training_ps(
    stages_ps: Sequence[float], receive_ps: float, stores: int, batches: int, runs: int,
    train_ps: float,
) -> float:  # fmt: skip
    """Return the time of pipelined fine-tuning (ps).

    ``stages_ps``: time of one batch in each stage of a store. ``receive_ps``: time of one batch in
    the Tuner's network, which the stores share. ``stores``: number of stores. ``runs``: number of
    runs (sub-datasets). ``batches``: batches per store and run. ``train_ps``: time of the training
    on one run. All batches have the same size. Raises InputError if ``batches`` or ``runs`` is
    below 1.

    The batches that equal stores send at the same time pass through the Tuner's network one after
    another. The network therefore acts as one more stage. The first run is complete after the time
    to fill all stages except the slowest, plus the time of the slowest stage for each batch; each
    later run takes the time of the slowest stage for each of its batches.
    """
    whole_number("batches", batches, 1, 1 << 40)
    every = [*stages_ps, stores * receive_ps]
    slowest = max(every)
    fill = sum(every) - slowest
    return fill + pipelined(runs * batches * slowest, runs * train_ps, runs)
