"""Totals of a finished run as plain numbers, and the time spans of its phases.

Owns Totals, StepClock and the sum of the counters. Does not own the ledger
(ondie.emu.analysis.ledger) or the conservation laws (conservation.py). Source: this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.engine.core.conservation import station_quantity
from ondie.emu.engine.core.counters import COUNTERS


@dataclass(frozen=True)
class Totals:
    """Totals of a finished run as plain numbers (see :func:`system.System.totals`).

    ``counters``: counters by name, summed over devices. ``bytes_by``: bytes that passed the
    resources, by class of resource. ``planned``: amounts that the plans requested, by counter name.
    ``super_pages``: (valid, mapped) super-pages of the reservoir. ``erases``: (sum, maximum) of the
    erase counts of blocks. ``steps``: one entry per training step, phase name -> (first start, last
    end) in ps; the key "step" is the span of the whole step. ``busy_ps``: (phase, resource class)
    -> busy time of the busiest resource of the class, ps.
    """

    counters: Mapping[str, int]
    bytes_by: Mapping[str, int]
    planned: Mapping[str, int]
    mapped_pages: int
    valid_pages: int
    filled_pages: int
    super_pages: tuple[int, int]
    erases: tuple[int, int]
    in_flight: int
    steps: tuple[Mapping[str, tuple[int, int]], ...]
    busy_ps: Mapping[tuple[str, str], int]
    busy_sum_ps: Mapping[str, int]
    """Busy time by resource class, summed over the resources of the class and all phases (ps)."""
    worked_ps: Mapping[tuple[str, str], int]
    """Busy time by (phase, resource class), summed over the resources of the class (ps)."""
    page_bytes: int
    block_bytes: int
    devices: int
    worn: tuple[tuple[int, ...], ...] = ()
    """Number of erases of the reservoir's blocks, summed over the blocks of a plane: one tuple per
    die, one number per plane of the die."""
    cached_contents: int = 0
    """Number of pages in data caches that have not been written to flash yet."""

    def quantities(self) -> dict[str, int]:
        """Return the quantities of the conservation laws at the end of a run."""
        valid_super_pages, mapped_super_pages = self.super_pages
        return {
            **self.counters,
            **{f"planned_{name}": amount for name, amount in self.planned.items()},
            **{station_quantity(name): amount for name, amount in self.bytes_by.items()},
            # Pages of the optimizer pass through the controller's ECC if the dies' pages do.
            "controller_ecc": int(self.counters["pe_decoded_pages"] > 0),
            "transactions_in_flight": self.in_flight,
            "cached_pages": self.cached_contents,
            "valid_pages": self.valid_pages,
            "mapped_pages": self.mapped_pages,
            "valid_super_pages": valid_super_pages,
            "mapped_super_pages": mapped_super_pages,
            "page_bytes": self.page_bytes,
        }


class StepClock:
    """Recorder of the start and end of each phase in each training step."""

    def __init__(self, names: tuple[str, ...], phase: np.recarray) -> None:
        self._names = names
        self._phase = phase
        self.steps: list[dict[str, tuple[int, int]]] = []
        self._began = 0

    def follow(self, phase: np.recarray) -> None:
        """Use ``phase``, the phase records of another simulation, for the rest of the step."""
        self._phase = phase

    def begin(self, now: int) -> None:
        """Start a step at ``now`` ps and reset the records of its phases."""
        self._began = now
        self._phase.first = NEVER
        self._phase.last = -1

    def end(self, now: int) -> None:
        """End the step at ``now`` ps and append the time span of each phase to ``steps``."""
        spans = {
            name: (int(self._phase.first[i]), int(self._phase.last[i]))
            for i, name in enumerate(self._names)
            if self._phase.last[i] >= 0
        }
        spans["step"] = (self._began, now)
        self.steps.append(spans)


def sum_counters(count: np.ndarray) -> dict[str, int]:
    """Return the counters by name, summed over devices. ``count``: int64[devices, counters]."""
    return dict(zip(COUNTERS, np.asarray(count).sum(axis=0).tolist(), strict=True))
