"""Batch allocations other than Stannis', on Stannis' engines and ring: throughput, accuracy risk.

Owns the rows of these allocations in `ondie validate stannis`. Does not own the allocator
(cluster/throughput_allocator.py) or the all-reduce (cluster/collectives/).
Source: none for the allocations. The engines are those of STANNIS (DAC 2020), Table I, at their
published batches or smaller batches; no speed is extrapolated beyond the published batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ondie.emu.analysis.row import IDENTITY, SHOWN, Row
from ondie.emu.cluster.batch_tuner import throughput
from ondie.emu.cluster.emulated_engine import published
from ondie.emu.cluster.networks import Network
from ondie.emu.cluster.throughput_allocator import Plan, plan

SUITE = "stannis"
OVERHEAD = 0.1
"""Maximum fraction of the run time taken by synchronization in the plans "gradients accumulated"
and "local steps", which synchronize less often than the plan "equal times"."""
MOST_STEPS = 64
LARGEST_BATCH = 8192
"""Largest batch size at which training on ImageNet with a scaled learning rate kept its accuracy
(Goyal et al. 2017)."""
IMAGES = 84_000
"""Number of training images in an epoch."""
LEAST_GAIN = {"mobilenetv2": 1.10}
"""Minimum speedup, by network, of the plan in which all nodes have equal step times: its speed
(samples/s) divided by that of Stannis' allocation (the published batches)."""
LEAST_RARER = {"inceptionv3": 1.3}
"""Minimum speedup, by network, of the plan with fewer synchronizations: its speed (samples/s)
divided by that of the plan in which all nodes have equal step times."""
ARITHMETIC = {
    "mobilenetv2": (1.116, 1.22, 1.09),
    "inceptionv3": (None, 1.70, 1.59),
}
"""Expected ratios of samples/s by network, calculated by hand from Table I.

The three ratios are: speed with equal step times divided by speed with Stannis' allocation, speed
without synchronization divided by speed with Stannis' allocation, and speed without synchronization
divided by speed with equal step times.
"""
SPEED = (
    "not in the papers: ratio of samples/s with 24 Newports and a ring at 36 MB/s; no batch "
    "exceeds the published one; expected values: calculated by hand from Table I"
)
RISK = (
    f"not in the papers: the risk to accuracy. A larger effective batch means fewer updates in an "
    f"epoch of {IMAGES:,} images (with a scaled learning rate, ImageNet kept its accuracy up to "
    f"{LARGEST_BATCH}: Goyal et al. 2017). Local steps mean weights that differ between nodes "
    f"(Stich 2019). Not measured here"
)


def beyond_rows(
    networks: list[Network], drives: int, ring_s: Callable[[Network, int], float]
) -> Iterator[Row]:
    """Yield the rows of allocations other than Stannis': first the speeds of all networks, then the
    effective batches, updates per epoch and local steps of all networks.

    ``ring_s(network, nodes)``: duration of a ring all-reduce (s).
    """
    found = [Found.of(net, drives, ring_s(net, drives + 1)) for net in networks]
    for each in found:
        yield from each.speeds()
    for each in found:
        yield from each.risks()


@dataclass(frozen=True)
class Found:
    """Batch plans of one network, and two reference speeds for them (``stannis`` and ``bound``).
    ``plans``: plans by name."""

    net: Network
    batch: int
    """Sum of the published batches of all nodes (Stannis' allocation)."""
    stannis: float
    """Speed (samples/s) with Stannis' allocation, the published batches."""
    bound: float
    """Upper bound of the speed: samples/s at the best batches if the nodes do not synchronize."""
    plans: dict[str, Plan]

    @staticmethod
    def of(net: Network, drives: int, exchange_s: float) -> Found:
        """Compute the batch plans of a network on a host and ``drives`` drives, and their reference
        speeds. ``exchange_s``: duration of one gradient exchange, seconds."""
        kinds, counts = published(net), (1, drives)
        host, drive = kinds
        batches = [net.host_batch, *[net.drive_batch] * drives]
        step_s = sum(batches) / throughput([host, *[drive] * drives], batches)
        rarer = partial(
            plan, kinds, counts, exchange_s, most_micro_batches=MOST_STEPS, overhead=OVERHEAD
        )
        plans = {
            "equal times": plan(kinds, counts, exchange_s),
            "gradients accumulated": rarer(),
            "local steps": rarer(method="local"),
            "largest batch": plan(
                kinds, counts, exchange_s,
                most_micro_batches=MOST_STEPS, most_samples=LARGEST_BATCH,
            ),
        }  # fmt: skip
        bound = host.speed(host.best) + drives * drive.speed(drive.best)
        return Found(net, sum(batches), sum(batches) / (step_s + exchange_s), bound, plans)

    @property
    def equal(self) -> float:
        """Speed (samples/s) of the plan in which all engines have equal compute times."""
        return self.plans["equal times"].samples_per_s

    def speeds(self) -> Iterator[Row]:
        """Yield the rows that compare the speeds of the plans with each other and with Stannis'
        allocation."""
        title, name = self.net.title, self.net.name
        known = ARITHMETIC.get(name, (None, None, None))

        def row(text: str, expected: float | None, value: float, tolerance: float = 0.01) -> Row:
            kind = SHOWN if expected is None else IDENTITY
            limit = None if expected is None else tolerance
            return Row(SUITE, f"{title}: {text}", kind, expected, value, "x", limit, SPEED)

        yield row("speed of equal times relative to Stannis", known[0], self.equal / self.stannis)
        least = LEAST_GAIN.get(name)
        if least is not None:
            text = f"equal times at least {least:g}x as fast as Stannis (1 = yes)"
            yield row(text, 1, float(self.equal >= least * self.stannis), 0)
        for what in ("gradients accumulated", "local steps"):
            gain = self.plans[what].samples_per_s / self.equal
            rarely = (
                f"speed of {what} relative to equal times, ring at most {OVERHEAD:.0%} of the time"
            )
            yield row(rarely, None, gain)
            least = LEAST_RARER.get(name)
            if least is not None:
                text = f"{what} at least {least:g}x as fast as equal times (1 = yes)"
                yield row(text, 1, float(gain >= least), 0)
        text = f"speed of batch {LARGEST_BATCH} by accumulation relative to equal times"
        yield row(text, None, self.plans["largest batch"].samples_per_s / self.equal)
        text = "speed without synchronization (upper bound) relative to"
        yield row(f"{text} Stannis", known[1], self.bound / self.stannis)
        yield row(f"{text} equal times", known[2], self.bound / self.equal)

    def risks(self) -> Iterator[Row]:
        """Yield the rows that show how far each plan may affect accuracy: effective batch, updates
        per epoch and local steps."""

        def row(text: str, value: float, unit: str) -> Row:
            return Row(SUITE, f"{self.net.title}: {text}", SHOWN, None, value, unit, None, RISK)

        yield row("Stannis: effective batch", self.batch, "samples")
        yield row("Stannis: updates in an epoch", IMAGES / self.batch, "updates")
        same = self.plans["equal times"]
        for what, chosen in self.plans.items():
            if what != "equal times" and chosen.samples == same.samples:
                continue  # the ring is already within OVERHEAD
            batch = chosen.effective_batch
            yield row(f"{what}: effective batch", batch, "samples")
            yield row(f"{what}: updates in an epoch", IMAGES / batch, "updates")
            if chosen.method == "local":
                yield row(f"{what}: local steps between two exchanges", chosen.staleness, "steps")
