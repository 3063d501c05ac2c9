"""Which addresses each flow of a scenario has.

Owns the partition of the drive's sectors among flows, and their pages. Does not own where a page
lies. Source: MQSim's partition of logical addresses: a flow has the share of each plane that it
lists, rounded down plane by plane, and flows follow each other. Its host interface cuts requests
where pages of the whole drive end, also in a flow that begins inside a page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.workload_xml import FlowParameters


@dataclass(frozen=True)
class Range:
    """Sectors first to last, both included."""

    first: int
    last: int

    @property
    def sectors(self) -> int:
        """How many."""
        return self.last - self.first + 1

    def base(self, page: int) -> int:
        """The sector at which its first page of ``page`` sectors begins, maybe before its own."""
        return self.first - self.first % page

    def pages(self, page: int) -> int:
        """Pages of ``page`` sectors that it has at least a sector of."""
        return self.last // page - self.first // page + 1


def ranges(drive: Drive, flows: Sequence[FlowParameters]) -> list[Range]:
    """The addresses of each flow."""
    listed = Counter(plane for flow in flows for plane in flow.planes)
    found, first = [], 0
    for flow in flows:
        sectors = sum(drive.plane_sectors(listed[plane]) for plane in flow.planes)
        found.append(Range(first, first + sectors - 1))
        first += sectors
    return found
