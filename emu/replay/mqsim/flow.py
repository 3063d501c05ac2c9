"""Flow of a scenario: its requests, in chunks, and the rule by which they are issued (closed or
open loop).

Owns Flow, the interface between workloads and the simulation. Does not own the sources of requests
(synthetic_flow.py, trace_flow.py) or their simulation (to_engine.py).
Source: MQSim's IO flows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ondie.emu.replay.mqsim.address_partition import Range
from ondie.emu.replay.mqsim.workload_xml import FlowParameters


@dataclass(frozen=True)
class Flow:
    """Requests of one flow, and the rule by which they are issued.

    Closed loop (``depth`` is a number): ``depth`` requests are issued at ISSUE_PS, and one more
    after each completion; the arrivals are NOT_YET. Open loop (``depth`` is None): each request is
    issued at its arrival, and arrivals never decrease. No request is issued after ``stop_ps``.
    ``total``: number of requests, or None if only the simulation determines it, as in a closed loop
    with a stop time.
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
    """Notes for the user on requests that were changed or dropped."""
    scenario: int = 1
    """Number of the flow's scenario in the workload file, from 1."""

    def chunks(self) -> Iterator[np.ndarray]:
        """Return all requests of the flow, starting with the first request, as arrays REQUEST[n].

        n is from 1 to MAX_CHUNK. Each call returns identical requests; in a closed loop with a stop
        time, the sequence is infinite. The caller may change the arrays.
        """
        return self.source()


ISSUE_PS = 1000
"""Time at which a closed loop issues its first requests (ps): 1 ns, as in MQSim."""


def total(flows: Sequence[Flow]) -> int | None:
    """Return the number of requests of all flows together, or None if it is unknown for a flow."""
    known = [flow.total for flow in flows if flow.total is not None]
    return sum(known) if len(known) == len(flows) else None


def half_way(flows: Sequence[Flow]) -> int | None:
    """Return the number of completions after which the counters are copied for the statistics of
    the second half of a run, or None if the number of requests is not known before the run."""
    number = total(flows)
    return None if number is None else number // 2 + 1
