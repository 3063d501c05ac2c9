"""What is asked of a fleet, and the answer as tables, JSON and a figure.

Owns how options become a fleet, batches and samples, and how results are shown. Does not own
arguments (fleets.py), rules, data or time (stannis/).
Source: STANNIS (DAC 2020), HyperTune (HeydariGorji et al.).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ondie import traces
from ondie.emu.cli.files import check_target, write_atomically
from ondie.emu.cluster import throughput_allocator as optimal
from ondie.emu.cluster.batch_tuner import MARGIN, MOST, tuning
from ondie.emu.cluster.build import assemble
from ondie.emu.cluster.cluster import MOST_NODES, Fleet
from ondie.emu.cluster.data_split import largest_remainder
from ondie.emu.cluster.permutation import MOST as MOST_SAMPLES
from ondie.emu.cluster.throughput_search import ROOM
from ondie.emu.cluster.training_sim import Data
from ondie.emu.cluster.workload import Workload, is_network, of_network, of_trace
from ondie.emu.config.config import Config, load_preset
from ondie.emu.units import InputError, nearest

ALLOCATORS = ("paper", "equal", "best")
MICRO_BATCHES = 4
"""At most between two exchanges, unless told."""
BY_OVERHEAD = 64
"""At most where --overhead chooses."""
Progress = Callable[[str, float], None] | None


@dataclass(frozen=True)
class Allocation:
    """Samples of a node of each kind between two exchanges, and in how many micro-batches."""

    name: str
    samples: tuple[int, ...]
    pieces: tuple[int, ...]
    exchange_s: float
    compute_s: float
    counts: tuple[int, ...]
    risk: str
    limited: tuple[str, ...] = ()
    """The kinds whose batch memory holds down; of the paper's rule alone."""

    @property
    def total(self) -> int:
        return sum(n * c for n, c in zip(self.samples, self.counts, strict=True))

    @property
    def samples_per_s(self) -> float:
        return self.total / (self.compute_s + self.exchange_s)


@dataclass(frozen=True)
class Asked:
    """A fleet and who trains on how much."""

    workload: Workload
    fleet: Fleet
    allocator: str
    allocations: Mapping[str, Allocation]

    @property
    def chosen(self) -> Allocation:
        return self.allocations[self.allocator]

    @staticmethod
    def of(options: Mapping[str, Any]) -> Asked:
        """From the options of fleets.fleet_options. InputError for what is wrong with them."""
        allocator = options["allocator"]
        one_of("allocator", allocator, ALLOCATORS)
        _check(options)
        presets = [_drives(text, options["settings"]) for text in options["drives"]]
        workload = _workload(options["workload"], presets, options["host_batch"])
        if options["json_path"] is not None:
            check_target(options["json_path"])
        fleet = assemble(
            workload, presets, hosts=options["hosts"], allreduce=options["allreduce"],
            reads=not options.get("no_reading", False),
        )  # fmt: skip
        return Asked(workload, fleet, allocator, _allocations(fleet, options))

    def by_node(self, values: tuple[int, ...]) -> np.ndarray:
        """A value for each kind as one for each node, int64[nodes]."""
        return self.fleet.by_kind(list(values))


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(
            f"--{name} {value!r}: {', '.join(known)} are right; nearest: "
            f"{nearest(value, known) or 'none'}"
        )


def _check(options: Mapping[str, Any]) -> None:
    """Numbers, before anything of their size is made."""
    nodes = options["hosts"] + sum(preset_and_count(text)[1] for text in options["drives"])
    if nodes > MOST_NODES:
        raise InputError(
            f"--hosts and --drives: a fleet of {nodes:,} nodes; 1 to {MOST_NODES:,} is right"
        )
    for name, most in (("most_batch", MOST), ("most_micro_batches", ROOM), ("host_batch", ROOM)):
        value = options[name]
        if value is not None and not 1 <= value <= most:
            words = name.replace("_", "-")
            raise InputError(f"--{words} {value}: 1 or more, up to {most}, is right")
    one_of("method", options["method"], optimal.METHODS)
    share = options["overhead"]
    if share is not None and not 0 < share < 1:
        raise InputError(f"--overhead {share:g}: a share between 0 and 1, such as 0.1, is right")


def preset_and_count(text: str) -> tuple[str, int]:
    """PRESET=N of --drives."""
    name, equals, number = text.rpartition("=")
    try:
        count = int(number)
    except ValueError:
        count = -1
    if not equals or count < 0:
        raise InputError(f"--drives {text!r}: a preset and a number are right, as newport=24")
    return name, count


def _drives(text: str, settings: tuple[str, ...]) -> tuple[Config, int]:
    name, count = preset_and_count(text)
    return load_preset(name, list(settings)), count


def _workload(name: str, presets: list[tuple[Config, int]], host_batch: int | None) -> Workload:
    configs = [cfg for cfg, _ in presets]
    if is_network(name):
        if host_batch is not None:
            raise InputError(f"--host-batch: {name}'s batches are published; it goes with traces")
        return of_network(name, configs)
    if host_batch is not None and host_batch < 1:
        raise InputError(f"--host-batch {host_batch}: 1 or more is right")
    return of_trace(traces.load(name), configs, host_batch)


def _allocations(fleet: Fleet, options: Mapping[str, Any]) -> dict[str, Allocation]:
    """By the paper's rule, with equal times, and of most samples per second."""
    there = [i for i, kind in enumerate(fleet.kinds) if kind.count]
    engines = [fleet.kinds[i].engine for i in there]
    counts = tuple(kind.count for kind in fleet.kinds)
    took = fleet.exchange(np.ones(fleet.nodes, bool)).seconds

    def full(values: tuple[int, ...], absent: int) -> tuple[int, ...]:
        out = [absent] * len(counts)
        for i, value in zip(there, values, strict=True):
            out[i] = value
        return tuple(out)

    margin = MARGIN if options["margin"] is None else options["margin"]
    t = tuning(
        engines, counts=[counts[i] for i in there], margin=margin,
        reference=options["reference"] or "slowest",
    )  # fmt: skip
    out = {
        "paper": Allocation(
            "paper", full(t.batches, 0), full((1,) * len(there), 1), took, max(t.seconds), counts,
            f"effective batch {sum(b * counts[i] for i, b in zip(there, t.batches, strict=True))}",
            tuple(e.name for e, held in zip(engines, t.limited, strict=True) if held),
        )
    }  # fmt: skip
    overhead = options["overhead"]
    most = options["most_micro_batches"] or (MICRO_BATCHES if overhead is None else BY_OVERHEAD)
    limits: dict[str, dict[str, Any]] = {
        "equal": {},
        "best": {
            "method": options["method"],
            "most_micro_batches": most,
            "most_samples": options["most_batch"],
            "overhead": overhead,
        },
    }
    for name, within in limits.items():
        p = optimal.plan(engines, [counts[i] for i in there], took, **within)
        out[name] = Allocation(
            name, full(p.samples, 0), full(tuple(max(m, 1) for m in p.micro_batches), 1), took,
            p.compute_s, counts, p.risk,
        )  # fmt: skip
    return out


def recruited(asked: Asked) -> optimal.Plan | None:
    """The plan of most samples per second, equal times, with all drives or fewer; None where they
    are not of one kind, or fewer than hosts."""
    fleet = asked.fleet
    there = [kind for kind in fleet.kinds if kind.count]
    if [kind.host for kind in there] != [True, False] or there[0].count > there[1].count:
        return None

    def exchange_s(nodes: int) -> float:
        return fleet.exchange(np.arange(fleet.nodes) < nodes).seconds

    return optimal.recruited(
        [kind.engine for kind in there], [kind.count for kind in there], exchange_s
    )


def samples(options: Mapping[str, Any]) -> dict[str, Any]:
    """What data_options say."""
    return {name: options[name] for name in ("public", "private", "levelling")}


def data(asked: Asked, given: Mapping[str, Any]) -> Data:
    """The samples of the nodes. InputError for counts that do not fit the fleet."""
    fleet, workload = asked.fleet, asked.workload
    drives = fleet.nodes - fleet.hosts
    public = workload.public if given["public"] is None else given["public"]
    private = np.zeros(fleet.nodes, np.int64)
    if not 0 <= public <= MOST_SAMPLES:
        raise InputError(f"--public {public}: 0 or more, up to 2**62, is right")
    if given["private"] is not None:
        own = _private(given["private"], drives)
        if public + sum(own) > MOST_SAMPLES:
            raise InputError(
                f"--private {given['private']!r}: {public + sum(own)} samples with the public "
                f"ones; 2**62 at most is right"
            )
        private[fleet.hosts :] = own
    elif drives:
        private[fleet.hosts :] = largest_remainder(workload.private, [1] * drives)
    if not public + int(private.sum()):
        raise InputError(f"{workload.name}: no samples are known of it; --public N says how many")
    return Data(public, private, given["levelling"])


def _private(text: str, drives: int) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--private {text!r}: a number, or one for each drive, is right") from None
    if len(numbers) == 1:
        numbers *= drives
    if len(numbers) != drives or min(numbers, default=0) < 0:
        raise InputError(
            f"--private {text!r}: {len(numbers)} numbers for {drives} drives; 0 or more for each, "
            f"or one for all, is right"
        )
    return numbers


def ranged(values: np.ndarray) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def write(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_atomically({path: text.encode()})
