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
        spans = [s[name] for s in self.totals.steps for name in ORDER if name in s]
        whole = sum(last - first for first, last in spans) / self.steps / 1e12
        return max(whole - sum(self.phases_s.get(name, 0.0) for name in ORDER), 0.0)

    def overlaps(self) -> dict[tuple[str, str], float]:
        """Return the mean seconds per step in which two phases overlap, keyed (later, earlier).

        A phase lasts from its first start to its last end. Later and earlier refer to ORDER. Pairs
        without overlap are omitted.
        """
        found: dict[tuple[str, str], int] = defaultdict(int)
        for s in self.totals.steps:
            here = [name for name in ORDER if name in s]
            for i, later in enumerate(here):
                for earlier in here[:i]:
                    (a, b), (c, d) = s[earlier], s[later]
                    found[later, earlier] += max(min(b, d) - max(a, c), 0)
        return {pair: ps / self.steps / 1e12 for pair, ps in found.items() if ps}

    @property
    def page_operations(self) -> int:
        """Number of pages sensed and programmed; each plane counts separately.

        Includes garbage collection, merges and failed programs.
        """
        c = self.totals.counters
        return sum(
            c[name]
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
        c = self.totals.counters
        computed = c["bpp_pages"] + c["stored_pages"] + c["kept_pages"]
        asked = written_pages(c) + computed
        again = c["gc_program_pages"] + c["failed_pages"] + c["map_program_pages"]
        again += c["padding_pages"] + c["fold_program_pages"] + c["landed_pages"]
        return (c["program_pages"] + computed + again) / asked if asked else None

    def utilisation(self, phase: str) -> dict[str, float]:
        """Return, per resource class, the share of the phase's time that its busiest member worked
        for the phase."""
        length = sum(b - a for s in self.totals.steps for a, b in [s.get(phase, (0, 0))])
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
    n = len(totals.steps)
    return Ledger(totals, samples, {name: ps / n / 1e12 for name, ps in sums.items()})


def balance(t: Totals) -> list[tuple[str, int, int]]:
    """Return every balance of a run as (what, one side, other side)."""
    c, page = t.counters, t.page_bytes
    down = c["host_write_bytes"] + c["down_bytes"]
    up = c["host_read_bytes"] + c["up_bytes"] + c["reservoir_up_bytes"]
    inside = c["copyback_pages"]  # moved inside the die
    decoded = c["read_pages"] + c["gc_read_pages"] + c["merge_read_pages"] - inside
    decoded += c["map_read_pages"] + c["retry_read_pages"] + c["fold_read_pages"]
    sensed = decoded + c["soft_read_pages"]  # soft reads of a page are decoded together, once
    fetched = c["fetched_pages"]  # from the page registers
    decoded += c["soft_pages"]
    encoded = c["program_pages"] + c["gc_program_pages"] + c["failed_pages"] - inside
    encoded += c["map_program_pages"] + c["padding_pages"] + c["fold_program_pages"]
    decoded += c["pe_decoded_pages"]
    encoded += c["pe_encoded_pages"]
    returned = c["pe_returned_pages"]
    channel_out = (sensed + returned + c["pe_encoded_pages"] + fetched) * page + c["scan_bytes"]
    channel_out += c["reservoir_up_bytes"] - c["unasked_out_bytes"] + c["lifted_pages"] * page
    encoded += c["stored_pages"] + c["kept_pages"]
    channel_in = (encoded - c["pe_encoded_pages"] + c["second_pass_pages"] + returned) * page
    channel_in += c["load_bytes"] - c["unasked_in_bytes"] + c["landed_pages"] * page
    if c["pe_decoded_pages"]:  # the optimizer's pages pass through the controller's ECC
        encoded += c["landed_pages"]
    extra_down, extra_up = c["link_extra_down_bytes"], c["link_extra_up_bytes"]
    return [
        ("commands fetched, commands completed", c["commands"], c["commands_done"]),
        ("transactions in flight at the end", t.in_flight, 0),
        ("bytes down the link, bytes planned", down, t.planned["link_down_bytes"]),
        ("bytes up the link, bytes planned", up, t.planned["link_up_bytes"]),
        ("bytes down the link, bytes of its station", down + extra_down, t.bytes_by["link down"]),
        ("bytes up the link, bytes of its station", up + extra_up, t.bytes_by["link up"]),
        (
            "pages read, pages planned",
            c["read_pages"] + c["unmapped_pages"] + c["cache_hit_pages"],
            t.planned["read_pages"],
        ),
        ("pages written, pages planned", written_pages(c), t.planned["program_pages"]),
        (
            "contents that the data cache took: merged, dropped, on flash, or there still",
            c["cache_write_pages"],
            c["cache_merged_pages"]
            + c["cache_dropped_pages"]
            + c["destaged_pages"]
            + t.cached_contents,
        ),
        (
            "pages moved by collection",
            c["gc_read_pages"],
            c["gc_program_pages"] + c["gc_dropped_pages"],
        ),
        (
            "pages folded",
            c["fold_read_pages"],
            c["fold_program_pages"] + c["fold_dropped_pages"],
        ),
        ("VPP pages, planned", c["vpp_pages"], t.planned["vpp_pages"]),
        ("BPR pages, planned", c["bpr_pages"], t.planned["bpr_pages"]),
        ("BPP pages, planned", c["bpp_pages"], t.planned["bpp_pages"]),
        ("ODC operations, planned", c["odc_ops"], t.planned["odc_ops"]),
        (
            "reservoir pages read, planned",
            c["reservoir_read_pages"],
            t.planned["reservoir_read_pages"],
        ),
        ("register pages fetched, planned", fetched, t.planned["fetched_pages"]),
        (
            "reservoir pages stored by the controller, planned",
            c["stored_pages"],
            t.planned["stored_pages"],
        ),
        ("gradient pages kept, planned", c["kept_pages"], t.planned["kept_pages"]),
        ("reservoir pages lifted, planned", c["lifted_pages"], t.planned["lifted_pages"]),
        ("reservoir pages landed, planned", c["landed_pages"], t.planned["landed_pages"]),
        ("reservoir pages lifted, landed elsewhere", c["lifted_pages"], c["landed_pages"]),
        ("bytes out over the channels", channel_out, t.bytes_by["channels out"]),
        ("bytes into the dies over the channels", channel_in, t.bytes_by["channels in"]),
        (
            "pages decoded, pages read through ECC",
            c["ecc_decoded_pages"],
            decoded,
        ),
        (
            "pages encoded, pages programmed through ECC",
            c["ecc_encoded_pages"],
            encoded,
        ),
        ("valid pages, mapped pages", t.valid_pages, t.mapped_pages),
        ("super-pages valid, super-pages mapped", *t.super_pages),
        ("bytes through the tunnels, planned", c["tunnel_bytes"], t.planned["tunnel_bytes"]),
        *[
            (f"{what} of the tunnels, planned", c[name], t.planned[name])
            for what, name in (("commands", "tunnel_commands"), ("link bytes", "tunnel_wire_bytes"))
        ],
        (
            "bytes through the tunnels, bytes of their stations",
            c["tunnel_bytes"],
            t.bytes_by["tunnel up"] + t.bytes_by["tunnel down"],
        ),
    ]


def written_pages(c: Mapping[str, int]) -> int:
    """Return the number of pages that host and ISP wrote, to flash or to the data cache."""
    return c["program_pages"] - c["destaged_pages"] + c["cache_write_pages"]
