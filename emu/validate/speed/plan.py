"""Plan of a benchmark run, and the result rows of its measured speeds.

Owns Plan, and the rows that compare a speed with its target and with memory. Does not own the
measurements (speed.py, anchors.py).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ondie.emu.validate.speed.anchors import Anchors
from ondie.kernels.bench.run import Row

REPEAT = 5
SECTIONS = ("flash", "ftl", "ftl-64g", "peer", "large", "memory", "start")


@dataclass
class Plan:
    """Sections of the benchmark to measure, and their options.

    ``peer``: path of MQSim's program, or None to omit the section "peer". ``cases``: folder of
    MQSim cases for this section; required if ``peer`` is given.
    """

    sections: tuple[str, ...] = SECTIONS
    quick: bool = False
    peer: Path | None = None
    cases: Path | None = None
    progress: Callable[[str], object] = field(default=lambda what: None)

    @property
    def repeat(self) -> int:
        """Number of runs of each measurement; the best run is reported."""
        return 2 if self.quick else REPEAT


def memory_rows(anchors: Anchors) -> list[Row]:
    """Return rows of this machine's memory bandwidth and latency."""
    return [
        Row("memory copy", anchors.copy_bytes_per_s / 1e9, "GB/s", "itself", 1.0),
        Row("memory copy, cache line", anchors.copy_ns, "ns", "itself", 1.0),
        Row("pointer chase", anchors.chase_ns, "ns", "itself", 1.0),
    ]


def speed_rows(
    name: str, per_s: float, cpu_per_s: float, target: float | None, anchors: Anchors
) -> list[Row]:
    """Return the rows of benchmark ``name``: operations per second, and time per operation.

    The rates are compared with ``target`` (pages/s) unless it is None. The time per operation is
    compared with the memory access times in ``anchors``. ``cpu_per_s``: operations per second of
    CPU time.
    """
    ns = 1e9 / per_s
    beside = per_s / target if target else 1.0
    words = f"target {target / 1e6:g} M/s" if target else "itself"
    return [
        Row(name, per_s / 1e6, "M pages/s", words, beside),
        Row(f"{name}, processor time", cpu_per_s / 1e6, "M pages/s", words,
            cpu_per_s / target if target else 1.0),
        Row(f"{name}, time", ns, "ns/page", "pointer chase", ns / anchors.chase_ns),
        Row(f"{name}, time", ns, "ns/page", "memory copy, cache line", ns / anchors.copy_ns),
    ]  # fmt: skip
