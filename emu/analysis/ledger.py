"""Ledger of a run: times, bytes and operations, checked for conservation before any report.

Owns phase times, utilization, byte and operation totals. Does not own the conservation laws
(engine/core/conservation.py), energy (analysis/energy.py) or tables (results/tables/compare.py).
Source: this project's rule that conservation is checked before a result is written.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ondie.emu.engine.core.conservation import Place, check_laws
from ondie.emu.engine.core.totals import Totals


@dataclass(frozen=True)
class Ledger:
    """Totals of one path's run, and mean times per step."""

    totals: Totals
    samples: int
    """Number of training samples per step."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Mean time of each phase per step in seconds, without the time in which the phase overlaps an
    earlier phase; the key "step" denotes the whole step."""

    @property
    def steps(self) -> int:
        """Number of simulated steps."""
        return len(self.totals.steps)

    @property
    def update_s(self) -> float:
        """Mean time of the update stage per step, seconds: from the first gradient byte sent to a
        drive to the last page program. If nodes exchange gradients, the stage lasts from the start
        of the exchange to the end of the last node's update.
        """
        return self.phases_s.get("synchronise", 0.0) + self.phases_s.get("update", 0.0)

    @property
    def step_s(self) -> float:
        """Mean time of a step, seconds."""
        return self.phases_s["step"]

    @property
    def update_share(self) -> float:
        """Mean time of the update stage divided by the mean time of the whole step."""
        return self.update_s / self.step_s if self.step_s else 0.0

    @property
    def overlapped_s(self) -> float:
        """Mean time per step, in seconds, in which a phase overlaps an earlier phase. Without
        overlap, a step would be longer by this time."""
        spans = [
            step_spans[name]
            for step_spans in self.totals.steps
            for name in ORDER
            if name in step_spans
        ]
        whole = sum(last - first for first, last in spans) / self.steps / 1e12
        return max(whole - sum(self.phases_s.get(name, 0.0) for name in ORDER), 0.0)

    def overlaps(self) -> dict[tuple[str, str], float]:
        """Return the mean time per step, in seconds, in which two phases overlap, by (later,
        earlier) phase.

        A phase lasts from its first start to its last end. ORDER lists the phases from the earliest
        to the latest. Pairs without overlap are omitted.
        """
        found: dict[tuple[str, str], int] = defaultdict(int)
        for spans in self.totals.steps:
            here = [name for name in ORDER if name in spans]
            for i, later in enumerate(here):
                for earlier in here[:i]:
                    (first, last), (other_first, other_last) = spans[earlier], spans[later]
                    found[later, earlier] += max(min(last, other_last) - max(first, other_first), 0)
        return {pair: ps / self.steps / 1e12 for pair, ps in found.items() if ps}

    @property
    def page_operations(self) -> int:
        """Number of pages sensed or programmed; each plane counts separately.

        Includes garbage collection, merges and failed programs.
        """
        counters = self.totals.counters
        return sum(
            counters[name]
            for name in (
                "read_pages", "program_pages", "gc_read_pages", "gc_program_pages", "bpr_pages",
                "bpp_pages", "reservoir_read_pages", "merge_read_pages", "remerged_pages",
                "failed_pages",
                "map_read_pages", "map_program_pages", "retry_read_pages", "soft_read_pages",
                "padding_pages", "second_pass_pages",
                "fold_read_pages", "fold_program_pages", "stored_pages", "kept_pages",
                "lifted_pages", "landed_pages",
                "scrub_read_pages", "refresh_read_pages", "refresh_program_pages",
            )
        )  # fmt: skip

    @property
    def waf(self) -> float | None:
        """Write amplification factor: bytes programmed divided by bytes that the host, the ISP and
        the dies wrote. None if nothing was written."""
        counters, page = self.totals.counters, self.totals.page_bytes
        computed = counters["bpp_pages"] + counters["stored_pages"] + counters["kept_pages"]
        written = counters["host_write_bytes"] + counters["isp_write_bytes"] + computed * page
        pages = computed + sum(
            counters[name]
            for name in (
                "program_pages", "gc_program_pages", "failed_pages", "map_program_pages",
                "padding_pages", "fold_program_pages", "landed_pages", "remerged_pages",
                "refresh_program_pages",
            )
        )  # fmt: skip
        return pages * page / written if written else None

    def utilisation(self, phase: str) -> dict[str, float]:
        """Return the utilization in a phase by resource class: busy time of the busiest resource of
        the class divided by the time of the phase. Only the work of this phase counts."""
        length = sum(
            stop - start
            for spans in self.totals.steps
            for start, stop in [spans.get(phase, (0, 0))]
        )
        if not length:
            return {}
        return {
            resource: busy / length
            for (name, resource), busy in self.totals.busy_ps.items()
            if name == phase and busy
        }

    def bound_by(self, phase: str | None = None) -> tuple[str, float]:
        """Return (name, utilization) of the busiest resource class in a phase.

        By default, the phase is the longer of "update" and "synchronise" (gradient exchange between
        nodes). If the utilization is below one half, latency limits the phase.
        """
        longer = max(("update", "synchronise"), key=lambda name: self.phases_s.get(name, 0.0))
        shares = self.utilisation(phase or longer)
        if not shares:
            return "nothing", 0.0
        return max(shares.items(), key=lambda item: item[1])


ORDER = (
    "samples", "forward", "backward", "levelling", "gradients", "synchronise", "update",
    "weights_up",
)  # fmt: skip


def ledger(totals: Totals, samples: int) -> Ledger:
    """Check the conservation laws, and return the ledger of a run. ``samples``: training samples
    per step. Raises Imbalance if a law is violated."""
    check_laws(Place.RUN, totals.quantities())
    sums: dict[str, int] = defaultdict(int)
    for spans in totals.steps:
        begin, end = spans["step"]
        sums["step"] += end - begin
        covered = begin
        for name in ORDER:
            if name not in spans:
                continue
            first, last = spans[name]
            # An update may overlap only two phases: the transfer of its weights to the host, and
            # the exchange, because a node that receives the sum earlier starts its update earlier.
            alone = name == "update" and "synchronise" not in spans
            sums[name] += max(0, last - (first if alone else max(covered, first)))
            covered = max(covered, last)
    steps = len(totals.steps)
    return Ledger(totals, samples, {name: ps / steps / 1e12 for name, ps in sums.items()})
