"""A flow ready to run: its requests in chunks, and how they are let go.

Owns Flow, the seam between workloads and the simulation. Does not own where its requests come from
(synthetic.py, replayed.py) or what becomes of them. Source: MQSim's IO flows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ondie.emu.replay.mqsim.address_partition import Range
from ondie.emu.replay.mqsim.workload_xml import FlowParameters


@dataclass(frozen=True)
class Flow:
    """The requests of one flow, and when each is issued.

    Closed loop (depth is a number): `depth` requests at ISSUE_PS, then one with each completion;
    their arrivals are NOT_YET. Open loop (depth is None): each at its arrival, which never
    decreases. No request is issued after stop_ps. total: how many will come; None where only the
    simulation can tell, as in a closed loop with a stop.
    """

    stream: int
    name: str
    parameters: FlowParameters
    range: Range
    depth: int | None
    total: int | None
    stop_ps: int | None
    source: Callable[[], Iterator[np.ndarray]]
    notes: tuple[str, ...] = ()
    """What was changed or left out, in words."""

    def chunks(self) -> Iterator[np.ndarray]:
        """The requests, REQUEST[n] with n from 1 to MAX_CHUNK, from the first on; the same ones at
        each call, without end in a closed loop with a stop. Arrays belong to the caller."""
        return self.source()


ISSUE_PS = 1000
"""When a closed loop issues its first requests: 1 ns, as MQSim does."""


def total(flows: Sequence[Flow]) -> int | None:
    """Requests of all flows, None if a flow does not know."""
    known = [flow.total for flow in flows if flow.total is not None]
    return sum(known) if len(known) == len(flows) else None


def half_way(flows: Sequence[Flow]) -> int | None:
    """Completions up to and with the first of the second half, where counters are to be copied;
    None where the number of requests is not known beforehand."""
    number = total(flows)
    return None if number is None else number // 2 + 1
