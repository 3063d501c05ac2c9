"""Address partition: the addresses of each flow of a scenario.

Owns the partition of the drive's sectors among flows, and the pages of each flow. Does not own the
mapping of a page to flash (to_engine.py).
Source: MQSim's partition of logical addresses: the flows that list a plane get equal parts of its
sectors, rounded down, and the ranges of the flows are consecutive. MQSim's host interface splits
requests at page boundaries of the whole drive, even if a flow begins inside a page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.workload_xml import FlowParameters, Synthetic


@dataclass(frozen=True)
class Range:
    """Range of 512-byte sectors on the drive, from ``first`` to ``last`` inclusive."""

    first: int
    last: int

    @property
    def sectors(self) -> int:
        """Number of sectors in the range."""
        return self.last - self.first + 1

    def base(self, page: int) -> int:
        """Return the first sector of the page in which the range begins.

        This sector may precede the range. ``page``: number of sectors per page.
        """
        return self.first - self.first % page

    def pages(self, page: int) -> int:
        """Return the number of pages of ``page`` sectors that overlap the range."""
        return self.last // page - self.first // page + 1

    def numbered(self, page: int) -> int:
        """Return the number of pages of ``page`` sectors in the range if pages are counted from its
        first sector, as in MQSim."""
        return -(-self.sectors // page)


def working_set(flow: FlowParameters, address_range: Range) -> Range:
    """Return the sectors that the flow addresses: the first part of its range if the flow is
    synthetic, else the whole range."""
    if not isinstance(flow, Synthetic):
        return address_range
    share = flow.working_set_percentage / 100.0
    count = int(float(address_range.last - address_range.first) * share)
    return Range(address_range.first, address_range.first + count)


def ranges(drive: Drive, flows: Sequence[FlowParameters]) -> list[Range]:
    """Return the range of sectors of each flow on the drive."""
    listed = Counter(plane for flow in flows for plane in flow.planes)
    found, first = [], 0
    for flow in flows:
        sectors = sum(drive.plane_sectors(listed[plane]) for plane in flow.planes)
        found.append(Range(first, first + sectors - 1))
        first += sectors
    return found
