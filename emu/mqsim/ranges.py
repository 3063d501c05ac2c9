"""Which addresses each flow of a scenario has.

Owns the partition of the drive's sectors among flows. Does not own where a page lies.
Source: MQSim's partition of logical addresses: a flow has the share of each plane that it lists,
rounded down plane by plane, and flows follow each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ondie.emu.mqsim.drive import Drive
from ondie.emu.mqsim.workload import FlowParameters


@dataclass(frozen=True)
class Range:
    """Sectors first to last, both included."""

    first: int
    last: int

    @property
    def sectors(self) -> int:
        """How many."""
        return self.last - self.first + 1


def ranges(drive: Drive, flows: Sequence[FlowParameters]) -> list[Range]:
    """The addresses of each flow."""
    listed = Counter(plane for flow in flows for plane in flow.planes)
    found, first = [], 0
    for flow in flows:
        sectors = sum(drive.plane_sectors(listed[plane]) for plane in flow.planes)
        found.append(Range(first, first + sectors - 1))
        first += sectors
    return found
