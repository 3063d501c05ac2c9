"""Requests of `ondie stannis`: options become a cluster, batches and samples.

Owns the records of the options and the request that is made of them. Does not own the arguments
(cluster.py), or rules, data and time (emu/cluster).
Source: STANNIS (DAC 2020), HyperTune (HeydariGorji et al.).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ondie import traces
from ondie.emu.cli.output import FigureOptions, OutputOptions
from ondie.emu.cluster import throughput_allocator
from ondie.emu.cluster.batch_tuner import MARGIN, MOST_BATCH, tuning
from ondie.emu.cluster.build import assemble
from ondie.emu.cluster.cluster import MOST_NODES, Fleet
from ondie.emu.cluster.data_split import largest_remainder
from ondie.emu.cluster.permutation import MOST_SAMPLES
from ondie.emu.cluster.throughput_search import ROOM
from ondie.emu.cluster.training_sim import Data
from ondie.emu.cluster.workload import Workload, is_network, of_network, of_trace
from ondie.emu.config.config import Config, load_preset
from ondie.emu.units import InputError, known_names

ALLOCATORS = ("paper", "equal", "best")
MICRO_BATCHES = 4
"""Default maximum of micro-batches between two exchanges."""
BY_OVERHEAD = 64
"""Default maximum with --overhead."""
Progress = Callable[[str, float], None] | None


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The options that describe a cluster and its batches."""

    workload: str
    drives: tuple[str, ...]
    hosts: int
    settings: tuple[str, ...]
    allreduce: str
    allocator: str
    margin: float | None
    reference: str | None
    host_batch: int | None
    most_micro_batches: int | None
    overhead: float | None
    method: str
    most_batch: int | None
    no_reading: bool = False

    def check_numbers(self) -> None:
        """Raise InputError for numbers out of range, before arrays of that size are allocated."""
        nodes = self.hosts + sum(preset_and_count(text)[1] for text in self.drives)
        if nodes > MOST_NODES:
            raise InputError(
                f"--hosts and --drives: {nodes:,} nodes; 1 to {MOST_NODES:,} are possible"
            )
        for name, value, most in (
            ("most-batch", self.most_batch, MOST_BATCH),
            ("most-micro-batches", self.most_micro_batches, ROOM),
            ("host-batch", self.host_batch, ROOM),
        ):
            if value is not None and not 1 <= value <= most:
                raise InputError(f"--{name} {value}: must be from 1 to {most}")
        check_choice("method", self.method, throughput_allocator.METHODS)
        if self.overhead is not None and not 0 < self.overhead < 1:
            raise InputError(
                f"--overhead {self.overhead:g}: must be a share between 0 and 1, such as 0.1"
            )

    def make_request(self) -> Request:
        """Assemble the cluster and compute its batches. Raises InputError."""
        check_choice("allocator", self.allocator, ALLOCATORS)
        self.check_numbers()
        presets = [_load_drives(text, self.settings) for text in self.drives]
        workload = _workload(self.workload, presets, self.host_batch)
        fleet = assemble(
            workload, presets, hosts=self.hosts, allreduce=self.allreduce,
            reads=not self.no_reading,
        )  # fmt: skip
        return Request(workload, fleet, self.allocator, _allocations(fleet, self))


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The options that describe the samples of an epoch."""

    public: int | None
    private: str | None
    leveling: str


@dataclass(frozen=True, kw_only=True)
class TuneOptions(FleetOptions, OutputOptions):
    """The options of `ondie stannis tune`."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(FleetOptions, DataOptions, OutputOptions):
    """The options of `ondie stannis plan`."""


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(FleetOptions, FigureOptions):
    """The options of `ondie stannis scale`."""


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(FleetOptions, DataOptions, FigureOptions):
    """The options of `ondie stannis simulate`."""

    steps: int
    load: Path | None
    draw_load: str | None
    members: Path | None
    hypertune: str
    batch_rule: str
    jitter: float
    stragglers: float
    seed: int


@dataclass(frozen=True)
class Allocation:
    """Samples of a node of each kind between two exchanges, and their number of micro-batches."""

    name: str
    samples: tuple[int, ...]
    pieces: tuple[int, ...]
    exchange_s: float
    compute_s: float
    counts: tuple[int, ...]
    risk: str
    limited: tuple[str, ...] = ()
    """Kinds whose batch is limited by memory; only the paper's rule sets it."""

    @property
    def total(self) -> int:
        """Samples of all nodes between two exchanges."""
        return sum(n * count for n, count in zip(self.samples, self.counts, strict=True))

    @property
    def samples_per_s(self) -> float:
        """Samples per second, the exchange included."""
        return self.total / (self.compute_s + self.exchange_s)


@dataclass(frozen=True)
class Request:
    """A cluster, its workload, and the batches by each allocator."""

    workload: Workload
    fleet: Fleet
    allocator: str
    allocations: Mapping[str, Allocation]

    @property
    def chosen(self) -> Allocation:
        """The allocation of --allocator."""
        return self.allocations[self.allocator]

    def by_node(self, values: tuple[int, ...]) -> np.ndarray:
        """Return a value for each kind as one for each node, int64[nodes]."""
        return self.fleet.by_kind(list(values))


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise InputError for an unknown value of option ``name``."""
    if value not in known:
        raise InputError(f"--{name} {value!r}: {known_names(value, known)}")


def preset_and_count(text: str) -> tuple[str, int]:
    """Return the parts of PRESET=N. Raises InputError."""
    name, equals, number = text.rpartition("=")
    try:
        count = int(number)
    except ValueError:
        count = -1
    if not equals or count < 0:
        raise InputError(f"--drives {text!r}: use a preset and a number, such as newport=24")
    return name, count


def _load_drives(text: str, settings: tuple[str, ...]) -> tuple[Config, int]:
    """Return the configuration and the number of drives of PRESET=N."""
    name, count = preset_and_count(text)
    return load_preset(name, list(settings)), count


def _workload(name: str, presets: list[tuple[Config, int]], host_batch: int | None) -> Workload:
    """Load a network or a trace. Raises InputError."""
    configs = [cfg for cfg, _ in presets]
    if is_network(name):
        if host_batch is not None:
            raise InputError(
                f"--host-batch {host_batch}: the batches of {name} are published; use this option "
                "with traces"
            )
        return of_network(name, configs)
    return of_trace(traces.load(name), configs, host_batch)


def _allocations(fleet: Fleet, given: FleetOptions) -> dict[str, Allocation]:
    """Compute the batches by the paper's rule, for equal times, and for most samples per second."""
    present = [i for i, kind in enumerate(fleet.kinds) if kind.count]
    engines = [fleet.kinds[i].engine for i in present]
    counts = tuple(kind.count for kind in fleet.kinds)
    present_counts = [counts[i] for i in present]
    exchange_s = fleet.exchange(np.ones(fleet.nodes, bool)).seconds

    def for_all_kinds(values: tuple[int, ...], absent: int) -> tuple[int, ...]:
        out = [absent] * len(counts)
        for i, value in zip(present, values, strict=True):
            out[i] = value
        return tuple(out)

    tuned = tuning(
        engines, counts=present_counts,
        margin=MARGIN if given.margin is None else given.margin,
        reference=given.reference or "slowest",
    )  # fmt: skip
    batch = sum(n * count for n, count in zip(tuned.batches, present_counts, strict=True))
    out = {
        "paper": Allocation(
            "paper", for_all_kinds(tuned.batches, 0), for_all_kinds((1,) * len(present), 1),
            exchange_s, max(tuned.seconds), counts, f"effective batch {batch}",
            tuple(e.name for e, limited in zip(engines, tuned.limited, strict=True) if limited),
        )
    }  # fmt: skip
    default = MICRO_BATCHES if given.overhead is None else BY_OVERHEAD
    limits: dict[str, dict[str, Any]] = {
        "equal": {},
        "best": {
            "method": given.method,
            "most_micro_batches": given.most_micro_batches or default,
            "most_samples": given.most_batch,
            "overhead": given.overhead,
        },
    }
    for name, within in limits.items():
        found = throughput_allocator.plan(engines, present_counts, exchange_s, **within)
        pieces = tuple(max(count, 1) for count in found.micro_batches)
        out[name] = Allocation(
            name, for_all_kinds(found.samples, 0), for_all_kinds(pieces, 1), exchange_s,
            found.compute_s, counts, found.risk,
        )  # fmt: skip
    return out


def recruited(request: Request) -> throughput_allocator.Plan | None:
    """Return the plan of most samples per second for equal times, with all drives or fewer.

    None if the drives are of several kinds, or fewer than the hosts.
    """
    fleet = request.fleet
    present = [kind for kind in fleet.kinds if kind.count]
    if [kind.host for kind in present] != [True, False] or present[0].count > present[1].count:
        return None

    def exchange_s(nodes: int) -> float:
        return fleet.exchange(np.arange(fleet.nodes) < nodes).seconds

    return throughput_allocator.recruited(
        [kind.engine for kind in present], [kind.count for kind in present], exchange_s
    )


def samples_of_nodes(request: Request, given: DataOptions) -> Data:
    """Return the samples of the nodes. Raises InputError for numbers that do not fit the
    cluster."""
    fleet, workload = request.fleet, request.workload
    drives = fleet.nodes - fleet.hosts
    public = workload.public if given.public is None else given.public
    private = np.zeros(fleet.nodes, np.int64)
    if not 0 <= public <= MOST_SAMPLES:
        raise InputError(f"--public {public}: must be from 0 to 2**62")
    if given.private is not None:
        own = _private(given.private, drives)
        if public + sum(own) > MOST_SAMPLES:
            raise InputError(
                f"--private {given.private!r}: {public + sum(own)} samples together with the "
                "public ones; at most 2**62 are possible"
            )
        private[fleet.hosts :] = own
    elif drives:
        private[fleet.hosts :] = largest_remainder(workload.private, [1] * drives)
    if not public + int(private.sum()):
        raise InputError(
            f"{workload.name}: the number of samples is unknown; give it with --public N"
        )
    return Data(public, private, given.leveling)


def _private(text: str, drives: int) -> tuple[int, ...]:
    """Return the private samples of each drive. Raises InputError."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--private {text!r}: use one number, or one number for each drive"
        ) from None
    if len(numbers) == 1:
        numbers *= drives
    if len(numbers) != drives or min(numbers, default=0) < 0:
        raise InputError(
            f"--private {text!r}: {len(numbers)} numbers for {drives} drives; use one number that "
            "is 0 or more, or one for each drive"
        )
    return numbers


def format_range(values: np.ndarray) -> str:
    """Return the range of some integers as text."""
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
