"""Requests of `ondie stannis`: conversion of the options to a cluster, batches and samples.

Owns the dataclasses of the options, and the request that is assembled from the options. Does not
own the command-line arguments (cluster.py), or the computation of batches, allocations and times
(emu/cluster). Source: STANNIS (DAC 2020), HyperTune (HeydariGorji et al.).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ondie import traces
from ondie.emu.cli.options import batches
from ondie.emu.cli.output import FigureOptions, OutputOptions
from ondie.emu.cluster import throughput_allocator
from ondie.emu.cluster.allocation import (
    ALLOCATORS,
    GIVEN,
    PAPER,
    PUBLISHED,
    TUNED,
    Allocation,
    Rules,
    allocations,
)
from ondie.emu.cluster.batch_tuner import MARGIN, MOST_BATCH
from ondie.emu.cluster.build import assemble
from ondie.emu.cluster.cluster import MOST_NODES, Fleet
from ondie.emu.cluster.data_split import largest_remainder
from ondie.emu.cluster.load import slowdowns
from ondie.emu.cluster.permutation import MOST_SAMPLES
from ondie.emu.cluster.throughput_search import ROOM
from ondie.emu.cluster.training_sim import Data
from ondie.emu.cluster.workload import Workload, is_network, of_network, of_trace
from ondie.emu.config.config import Config, load_preset
from ondie.emu.units import InputError, digits, known_names

Progress = Callable[[str, float], None] | None


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The options that describe a cluster and the choice of its batches."""

    workload: str
    drives: tuple[str, ...]
    hosts: int
    settings: tuple[str, ...]
    allreduce: str
    batch: str | None
    allocator: str
    margin: float | None
    reference: str | None
    host_batch: int | None
    drive_batch: int | None
    most_micro_batches: int | None
    overhead: float | None
    method: str
    most_batch: int | None
    cores_taken: float
    slowdown: str | None
    no_reading: bool = False

    def check_numbers(self) -> None:
        """Raise InputError for a number out of range, before arrays of that size are allocated."""
        nodes = self.hosts + sum(preset_and_count(text)[1] for text in self.drives)
        if nodes > MOST_NODES:
            raise InputError(
                f"--hosts and --drives: {nodes:,} nodes in total; must be from 1 to {MOST_NODES:,}"
            )
        for name, value, most in (
            ("most-batch", self.most_batch, MOST_BATCH),
            ("most-micro-batches", self.most_micro_batches, ROOM),
        ):
            if value is not None and not 1 <= value <= most:
                raise InputError(f"--{name} {value}: must be from 1 to {most}")
        check_choice("method", self.method, throughput_allocator.METHODS)
        if self.overhead is not None and not 0 < self.overhead < 1:
            raise InputError(
                f"--overhead {self.overhead:g}: must be a fraction of the time, between 0 "
                "and 1, such as 0.1"
            )

    def make_request(self) -> Request:
        """Assemble the cluster and compute the batch of each kind of node. Raises InputError if an
        option is invalid."""
        self.check_numbers()
        rules = self.rules()
        presets = [_load_drives(text, self.settings) for text in self.drives]
        workload = _workload(self.workload, presets, rules)
        fleet = assemble(
            workload, presets, hosts=self.hosts, allreduce=self.allreduce,
            reads=not self.no_reading, slowdown=self.slowdown, cores_taken=self.cores_taken,
        )  # fmt: skip
        name = self.slowdown or slowdowns.of_host(presets[0][0].system.name)
        return Request(workload, fleet, rules, allocations(fleet, rules), name)

    def rules(self) -> Rules:
        """Return the rules for the choice of batches, as the options for batches and --allocator
        specify.

        Raises InputError for an unknown name, a number out of range, or options that cannot be
        combined.
        """
        batch = batches(self.batch, self.host_batch, self.drive_batch, default=TUNED)
        check_choice("allocator", self.allocator, ALLOCATORS)
        if batch != TUNED and self.allocator != Rules.allocator:
            what = (
                f"--batch {PAPER} uses the published batches" if batch == PAPER
                else f"--drive-batch {self.drive_batch} sets the batches"
            )  # fmt: skip
            raise InputError(f"--allocator {self.allocator}: {what}; remove one of these options")
        return Rules(
            batch=batch, host_batch=self.host_batch, drive_batch=self.drive_batch,
            allocator=self.allocator,
            margin=MARGIN if self.margin is None else self.margin,
            reference=self.reference or Rules.reference, method=self.method,
            most_micro_batches=self.most_micro_batches, overhead=self.overhead,
            most_batch=self.most_batch,
        )  # fmt: skip


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
class Request:
    """A cluster, its workload, and the batches of its nodes for each allocator."""

    workload: Workload
    fleet: Fleet
    rules: Rules
    allocations: Mapping[str, Allocation]
    slowdown: str
    """Name of the model of a host's speed on the cores that other programs do not use."""

    @property
    def interference(self) -> dict[str, Any]:
        """Interference from other programs (--cores-taken): number of cores that they take on each
        host, name of the slowdown model, and speed of a host as a fraction of its speed without
        interference."""
        host = self.fleet.kinds[0]
        speed = float(host.slowdown(np.array([host.left]))[0])
        return {"cores_taken": host.cores_taken, "slowdown": self.slowdown, "speed": speed}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the workload, and on the host cores that other programs use during the whole
        run."""
        host = self.fleet.kinds[0]
        if not host.cores_taken:
            return self.workload.notes
        taken = (
            f"other programs use {host.cores_taken:g} of the {host.cores} cores of every host, "
            f"which leaves {self.interference['speed']:.1%} of its speed (slowdown "
            f"model {self.slowdown})"
        )
        return (*self.workload.notes, taken)

    @property
    def chosen(self) -> Allocation:
        """The batches that --batch, --allocator, --host-batch and --drive-batch select."""
        return self.allocations[self.rules.chosen]

    @property
    def words(self) -> str:
        """Phrase for titles that names the rule by which the batches were chosen."""
        if self.rules.chosen in (PUBLISHED, GIVEN):
            return f"{self.rules.chosen} batches"
        return f"batches by allocator {self.rules.allocator}"

    def by_node(self, values: tuple[int, ...]) -> np.ndarray:
        """Expand ``values`` from one value per kind of node to one value per node, int64[nodes]."""
        return self.fleet.by_kind(list(values))


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise InputError if ``value`` of option --``name`` is not one of ``known``."""
    if value not in known:
        raise InputError(f"--{name} {value!r}: unknown; {known_names(value, known)}")


def preset_and_count(text: str) -> tuple[str, int]:
    """Split the value PRESET=N of --drives into the preset and the number of drives. Raises
    InputError for any other value."""
    name, equals, number = text.rpartition("=")
    try:
        count = digits(number)
    except ValueError:
        count = -1
    if not equals or count < 0:
        raise InputError(f"--drives {text!r}: use a preset and a number, such as newport=24")
    return name, count


def _load_drives(text: str, settings: tuple[str, ...]) -> tuple[Config, int]:
    """Return the configuration of the preset, and the number of drives, of ``text`` (PRESET=N)."""
    name, count = preset_and_count(text)
    return load_preset(name, list(settings)), count


def _workload(name: str, presets: list[tuple[Config, int]], rules: Rules) -> Workload:
    """Load a published network or a trace as a workload. Raises InputError if it cannot be loaded,
    or if --host-batch is given for a published network without --drive-batch."""
    configs = [cfg for cfg, _ in presets]
    if is_network(name):
        if rules.host_batch is not None and rules.batch != GIVEN:
            raise InputError(
                f"--host-batch {rules.host_batch}: cannot replace only the host's published batch "
                f"of {name}; add --drive-batch, or use a trace instead of a network"
            )
        return of_network(name, configs)
    return of_trace(traces.load(name), configs, rules.host_batch, rules.drive_batch)


def samples_of_nodes(request: Request, given: DataOptions) -> Data:
    """Return the public and private samples of the nodes in an epoch.

    Raises InputError if a number of samples is unknown, out of range, or does not match the number
    of drives.
    """
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
                f"--private {given.private!r}: {public + sum(own)} public and private samples in "
                "total; must be at most 2**62"
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
    """Return the number of private samples of each drive.

    ``text``: one number for all drives, or one number per drive (comma-separated). Raises
    InputError if a number is invalid, or if the count of numbers is neither 1 nor ``drives``.
    """
    try:
        numbers = tuple(digits(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--private {text!r}: use one number, or one number for each drive"
        ) from None
    if len(numbers) == 1:
        numbers *= drives
    if len(numbers) != drives or min(numbers, default=0) < 0:
        raise InputError(
            f"--private {text!r}: {len(numbers)} numbers for {drives} drives; use one number of "
            "0 or more, or one such number for each drive"
        )
    return numbers


def format_range(values: np.ndarray) -> str:
    """Return "low to high" for an array of integers, or the number if all are equal."""
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
