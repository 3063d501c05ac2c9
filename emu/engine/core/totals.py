"""The totals of a finished run in plain numbers, and the clock of its phases.

Owns Totals, StepClock and the sum of the counters. Does not own the ledger
(ondie.emu.analysis.ledger). Source: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.engine.core.counters import COUNTERS


@dataclass(frozen=True)
class Totals:
    """A finished run in plain numbers, as :func:`system.System.totals` hands it over.

    ``counters`` by name, summed over devices; ``bytes_by`` bytes per class of resource; ``planned``
    what the plans asked for; ``steps`` one entry per step: phase name -> (first start, last end)
    ps, with "step" for the whole; ``busy_ps`` (phase, resource class) -> ps of its busiest member.
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
    """Resource class -> ps of all its members in all phases."""
    page_bytes: int
    block_bytes: int
    devices: int
    worn: tuple[tuple[int, ...], ...] = ()
    """Erases of the optimizer's blocks: of each die's, by plane."""
    cached_contents: int = 0
    """Pages written to data caches that flash does not have."""


class StepClock:
    """Notes when the phases of each step began and ended."""

    def __init__(self, names: tuple[str, ...], phase: np.recarray) -> None:
        self._names = names
        self._phase = phase
        self.steps: list[dict[str, tuple[int, int]]] = []
        self._began = 0

    def follow(self, phase: np.recarray) -> None:
        """The step goes on in another simulation, which has taken the phases over."""
        self._phase = phase

    def begin(self, now: int) -> None:
        """A step begins."""
        self._began = now
        self._phase.first = NEVER
        self._phase.last = -1

    def end(self, now: int) -> None:
        """A step has ended."""
        spans = {
            name: (int(self._phase.first[i]), int(self._phase.last[i]))
            for i, name in enumerate(self._names)
            if self._phase.last[i] >= 0
        }
        spans["step"] = (self._began, now)
        self.steps.append(spans)


def sum_counters(count: np.ndarray) -> dict[str, int]:
    """Counters by name, summed over devices."""
    return {name: int(count[:, i].sum()) for i, name in enumerate(COUNTERS)}
