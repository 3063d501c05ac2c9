"""Ledger of a run: times, bytes and operations, checked for conservation before any report.

Owns phase times, utilisation, byte and operation totals, and the conservation checks. Does not own
energy (analysis/energy.py) or report text (cli/tables/compare.py).
Source: this project's contract of results: conservation is checked before anything is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ondie.emu.engine.core.totals import Totals


class Imbalance(RuntimeError):
    """A conservation check of a run failed: a defect of the simulator. Nothing is reported."""


class Booked(Protocol):
    """The arrays of a simulation that the ledger reads."""

    phase: np.recarray


@dataclass(frozen=True)
class Ledger:
    """Totals and mean times per step of one path."""

    totals: Totals
    samples: int
    """Training samples per step."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Mean seconds per step of each phase, without the time hidden by an earlier phase; "step" is
    the whole step."""

    @property
    def steps(self) -> int:
        return len(self.totals.steps)

    def per_step(self, counter: str) -> float:
        """Return the mean of a counter per step."""
        return self.totals.counters[counter] / self.steps

    @property
    def update_s(self) -> float:
        """Mean seconds of the update stage, from the first gradient byte down to the last program.

        If nodes exchange gradients: from the start of the exchange to the last node's update.
        """
        return self.phases_s.get("synchronise", 0.0) + self.phases_s.get("update", 0.0)

    @property
    def step_s(self) -> float:
        return self.phases_s["step"]

    @property
    def update_share(self) -> float:
        """Update stage as a share of the step."""
        return self.update_s / self.step_s if self.step_s else 0.0

    @property
    def overlapped_s(self) -> float:
        """Mean seconds per step in which a phase overlaps an earlier one.

        Without any overlap, a step would be longer by this time.
        """
        spans = [
            step_spans[name]
            for step_spans in self.totals.steps
            for name in ORDER
            if name in step_spans
        ]
        whole = sum(last - first for first, last in spans) / self.steps / 1e12
        return max(whole - sum(self.phases_s.get(name, 0.0) for name in ORDER), 0.0)

    def overlaps(self) -> dict[tuple[str, str], float]:
        """Return the mean seconds per step in which two phases overlap, keyed (later, earlier).

        A phase lasts from its first start to its last end. Later and earlier refer to ORDER. Pairs
        without overlap are omitted.
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
        """Number of pages sensed and programmed; each plane counts separately.

        Includes garbage collection, merges and failed programs.
        """
        counters = self.totals.counters
        return sum(
            counters[name]
            for name in (
                "read_pages", "program_pages", "gc_read_pages", "gc_program_pages", "bpr_pages",
                "bpp_pages", "reservoir_read_pages", "merge_read_pages", "failed_pages",
                "map_read_pages", "map_program_pages", "retry_read_pages", "soft_read_pages",
                "padding_pages", "second_pass_pages",
                "fold_read_pages", "fold_program_pages", "stored_pages", "kept_pages",
                "lifted_pages", "landed_pages",
            )
        )  # fmt: skip

    @property
    def waf(self) -> float | None:
        """Write amplification: pages programmed over pages requested; None if none were written."""
        counters = self.totals.counters
        computed = counters["bpp_pages"] + counters["stored_pages"] + counters["kept_pages"]
        asked = written_pages(counters) + computed
        again = (
            counters["gc_program_pages"] + counters["failed_pages"] + counters["map_program_pages"]
        )
        again += (
            counters["padding_pages"] + counters["fold_program_pages"] + counters["landed_pages"]
        )
        return (counters["program_pages"] + computed + again) / asked if asked else None

    def utilisation(self, phase: str) -> dict[str, float]:
        """Return, per resource class, the share of the phase's time that its busiest member worked
        for the phase."""
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
        """Return (busiest resource class, its share) of a phase.

        The default phase is the longer part of the update stage. A share below one half means that
        the phase is bound by latency.
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
    """Check every balance, then return the ledger. Raises Imbalance."""
    for what, left, right in balance(totals):
        if left != right:
            raise Imbalance(f"{what}: {left} against {right}")
    sums: dict[str, int] = defaultdict(int)
    for spans in totals.steps:
        begin, end = spans["step"]
        sums["step"] += end - begin
        covered = begin
        for name in ORDER:
            if name not in spans:
                continue
            first, last = spans[name]
            # An update may overlap only the transfer of its weights to the host, and an exchange:
            # a node that has the sum earlier starts its update earlier.
            alone = name == "update" and "synchronise" not in spans
            sums[name] += max(0, last - (first if alone else max(covered, first)))
            covered = max(covered, last)
    steps = len(totals.steps)
    return Ledger(totals, samples, {name: ps / steps / 1e12 for name, ps in sums.items()})


def balance(totals: Totals) -> list[tuple[str, int, int]]:
    """Return every balance of a run as (what, one side, other side)."""
    counters, page = totals.counters, totals.page_bytes
    down = counters["host_write_bytes"] + counters["down_bytes"]
    up = counters["host_read_bytes"] + counters["up_bytes"] + counters["reservoir_up_bytes"]
    inside = counters["copyback_pages"]  # moved inside the die
    decoded = (
        counters["read_pages"] + counters["gc_read_pages"] + counters["merge_read_pages"] - inside
    )
    decoded += (
        counters["map_read_pages"] + counters["retry_read_pages"] + counters["fold_read_pages"]
    )
    sensed = (
        decoded + counters["soft_read_pages"]
    )  # soft reads of a page are decoded together, once
    fetched = counters["fetched_pages"]  # from the page registers
    decoded += counters["soft_pages"]
    encoded = (
        counters["program_pages"] + counters["gc_program_pages"] + counters["failed_pages"] - inside
    )
    encoded += (
        counters["map_program_pages"] + counters["padding_pages"] + counters["fold_program_pages"]
    )
    decoded += counters["pe_decoded_pages"]
    encoded += counters["pe_encoded_pages"]
    returned = counters["pe_returned_pages"]
    channel_out = (sensed + returned + counters["pe_encoded_pages"] + fetched) * page + counters[
        "scan_bytes"
    ]
    channel_out += (
        counters["reservoir_up_bytes"]
        - counters["unasked_out_bytes"]
        + counters["lifted_pages"] * page
    )
    encoded += counters["stored_pages"] + counters["kept_pages"]
    channel_in = (
        encoded - counters["pe_encoded_pages"] + counters["second_pass_pages"] + returned
    ) * page
    channel_in += (
        counters["load_bytes"] - counters["unasked_in_bytes"] + counters["landed_pages"] * page
    )
    if counters["pe_decoded_pages"]:  # the optimizer's pages pass through the controller's ECC
        encoded += counters["landed_pages"]
    extra_down, extra_up = counters["link_extra_down_bytes"], counters["link_extra_up_bytes"]
    return [
        ("commands fetched, commands completed", counters["commands"], counters["commands_done"]),
        ("transactions in flight at the end", totals.in_flight, 0),
        ("bytes down the link, bytes planned", down, totals.planned["link_down_bytes"]),
        ("bytes up the link, bytes planned", up, totals.planned["link_up_bytes"]),
        (
            "bytes down the link, bytes of its station",
            down + extra_down,
            totals.bytes_by["link down"],
        ),
        ("bytes up the link, bytes of its station", up + extra_up, totals.bytes_by["link up"]),
        (
            "pages read, pages planned",
            counters["read_pages"] + counters["unmapped_pages"] + counters["cache_hit_pages"],
            totals.planned["read_pages"],
        ),
        ("pages written, pages planned", written_pages(counters), totals.planned["program_pages"]),
        (
            "contents that the data cache took: merged, dropped, on flash, or there still",
            counters["cache_write_pages"],
            counters["cache_merged_pages"]
            + counters["cache_dropped_pages"]
            + counters["destaged_pages"]
            + totals.cached_contents,
        ),
        (
            "pages moved by collection",
            counters["gc_read_pages"],
            counters["gc_program_pages"] + counters["gc_dropped_pages"],
        ),
        (
            "pages folded",
            counters["fold_read_pages"],
            counters["fold_program_pages"] + counters["fold_dropped_pages"],
        ),
        *_planned_on_dies(totals),
        (
            "reservoir pages lifted, landed elsewhere",
            counters["lifted_pages"],
            counters["landed_pages"],
        ),
        ("bytes out over the channels", channel_out, totals.bytes_by["channels out"]),
        ("bytes into the dies over the channels", channel_in, totals.bytes_by["channels in"]),
        ("pages decoded, pages read through ECC", counters["ecc_decoded_pages"], decoded),
        (
            "pages encoded, pages programmed through ECC",
            counters["ecc_encoded_pages"],
            encoded,
        ),
        ("valid pages, mapped pages", totals.valid_pages, totals.mapped_pages),
        ("super-pages valid, super-pages mapped", *totals.super_pages),
        *_tunnels(totals),
    ]


def _planned_on_dies(totals: Totals) -> list[tuple[str, int, int]]:
    """Return the balances of operations on the dies with the plan, as (what, done, planned)."""
    counters = totals.counters
    return [
        ("VPP pages, planned", counters["vpp_pages"], totals.planned["vpp_pages"]),
        ("BPR pages, planned", counters["bpr_pages"], totals.planned["bpr_pages"]),
        ("BPP pages, planned", counters["bpp_pages"], totals.planned["bpp_pages"]),
        ("ODC operations, planned", counters["odc_ops"], totals.planned["odc_ops"]),
        (
            "reservoir pages read, planned",
            counters["reservoir_read_pages"],
            totals.planned["reservoir_read_pages"],
        ),
        (
            "register pages fetched, planned",
            counters["fetched_pages"],
            totals.planned["fetched_pages"],
        ),
        (
            "reservoir pages stored by the controller, planned",
            counters["stored_pages"],
            totals.planned["stored_pages"],
        ),
        ("gradient pages kept, planned", counters["kept_pages"], totals.planned["kept_pages"]),
        (
            "reservoir pages lifted, planned",
            counters["lifted_pages"],
            totals.planned["lifted_pages"],
        ),
        (
            "reservoir pages landed, planned",
            counters["landed_pages"],
            totals.planned["landed_pages"],
        ),
    ]


def _tunnels(totals: Totals) -> list[tuple[str, int, int]]:
    """Return the balances of the tunnels, as (what, one side, other side)."""
    counters = totals.counters
    return [
        (
            "bytes through the tunnels, planned",
            counters["tunnel_bytes"],
            totals.planned["tunnel_bytes"],
        ),
        *[
            (f"{what} of the tunnels, planned", counters[name], totals.planned[name])
            for what, name in (("commands", "tunnel_commands"), ("link bytes", "tunnel_wire_bytes"))
        ],
        (
            "bytes through the tunnels, bytes of their stations",
            counters["tunnel_bytes"],
            totals.bytes_by["tunnel up"] + totals.bytes_by["tunnel down"],
        ),
    ]


def written_pages(counters: Mapping[str, int]) -> int:
    """Return the number of pages that host and ISP wrote, to flash or to the data cache."""
    return counters["program_pages"] - counters["destaged_pages"] + counters["cache_write_pages"]
