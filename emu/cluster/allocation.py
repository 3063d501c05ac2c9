"""Batch sizes of the nodes (hosts and drives) of a cluster: published, given by the user, or tuned
by one of three allocators.

Owns the choice among these batches and the resulting step time. Does not own the allocators
(batch_tuner.py, throughput_allocator.py), published batches (networks.py) or the cluster
(cluster.py). Every command and the simulated path (paths/data_parallel.py) use this module.
Source: STANNIS (DAC 2020), HyperTune (HeydariGorji et al.).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondie.emu.clock import check_seconds
from ondie.emu.cluster import throughput_allocator
from ondie.emu.cluster.batch_tuner import MARGIN, Engine, tune, tuning
from ondie.emu.cluster.cluster import Fleet, Kind
from ondie.emu.cluster.load.contention import CORES
from ondie.emu.cluster.throughput_search import ROOM
from ondie.emu.units import InputError

PAPER, TUNED = "paper", "tuned"
BATCHES = (PAPER, TUNED)
"""Allowed values of ``Rules.batch``: the batches published in the paper ("paper"), or batches that
an allocator tunes to the speeds of the nodes ("tuned")."""
PUBLISHED = "published"
"""Name of the allocation with the batches that the paper publishes."""
GIVEN = "given"
"""Value of ``Rules.batch`` for batches that the user gives, and name of the allocation with these
batches. The option --batch does not accept this value."""
ALLOCATORS = ("paper", "equal", "best")
"""Names of the allocators: "paper" is Algorithm 1 of STANNIS, "equal" aims at equal step times of
all nodes, and "best" maximizes the samples per second."""
MICRO_BATCHES = 4
"""Default maximum number of micro-batches between two gradient exchanges."""
BY_OVERHEAD = 64
"""Default maximum number of micro-batches between two gradient exchanges if ``Rules.overhead``
limits the time of the exchanges."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Parameters of the choice of batches.

    ``allocator``: an element of ALLOCATORS, used if ``batch`` is "tuned". ``margin``,
    ``reference``: parameters of the allocator "paper" (batch_tuner.tuning). ``method``,
    ``most_micro_batches``, ``overhead``, ``most_batch``: parameters of the allocator "best"
    (throughput_allocator.plan).
    """

    batch: str = TUNED
    """Origin of the batches: one of BATCHES ("paper" or "tuned"), or GIVEN."""
    host_batch: int | None = None
    drive_batch: int | None = None
    """Batches of every host (``host_batch``) and of every drive (``drive_batch``) if ``batch`` is
    GIVEN; this module ignores them otherwise. If ``host_batch`` is None, Algorithm 1 tunes the
    host's batch to ``drive_batch``."""
    allocator: str = ALLOCATORS[0]
    margin: float = MARGIN
    reference: str = "slowest"
    method: str = "accumulate"
    most_micro_batches: int | None = None
    overhead: float | None = None
    most_batch: int | None = None

    @property
    def chosen(self) -> str:
        """Name of the chosen allocation: "published", "given" or an element of ALLOCATORS."""
        return {PAPER: PUBLISHED, GIVEN: GIVEN}.get(self.batch, self.allocator)


@dataclass(frozen=True)
class Allocation:
    """Batches of the nodes of a cluster and the resulting times; tuples have one value per kind of
    node.

    ``samples``: number of samples that one node processes between two gradient exchanges.
    ``pieces``: number of micro-batches into which these samples are divided. ``counts``: number of
    nodes of each kind. ``exchange_s``, ``compute_s``, ``update_s``: time of the gradient exchange,
    of the computation on the slowest node, and of the weight update, seconds per exchange.
    ``risk``: description of how the batches may affect accuracy.
    """

    name: str
    samples: tuple[int, ...]
    pieces: tuple[int, ...]
    exchange_s: float
    compute_s: float
    update_s: float
    counts: tuple[int, ...]
    risk: str
    limited: tuple[str, ...] = ()
    """Names of the kinds of nodes whose batch is limited by memory; only the allocator "paper" sets
    this field."""

    @property
    def total(self) -> int:
        """Number of samples that all nodes together process between two gradient exchanges."""
        return sum(n * count for n, count in zip(self.samples, self.counts, strict=True))

    @property
    def step_s(self) -> float:
        """Time from one gradient exchange of the cluster to the next one, seconds."""
        return self.compute_s + self.exchange_s + self.update_s

    @property
    def samples_per_s(self) -> float:
        """Samples per second of the whole cluster, including the time of the gradient exchange and
        the weight update."""
        return self.total / self.step_s


def check_batches(given: Mapping[str, int | None], name: str) -> None:
    """Raise InputError unless every batch is None or from 1 to ROOM.

    ``given``: batch by kind of node. ``name``: name of the option in the error message, with "{}"
    in place of the kind of node.
    """
    for node, batch in given.items():
        if batch is not None and not 1 <= batch <= ROOM:
            raise InputError(f"{name.format(node)} {batch}: must be from 1 to {ROOM}")


def check_cores_taken(taken: float, name: str) -> None:
    """Raise InputError unless ``taken``, the number of a host's cores that other programs use, is
    at least 0 and less than CORES. ``name``: name of the option in the error message."""
    if not 0 <= taken < CORES:
        raise InputError(
            f"{name} {taken:g}: must be at least 0 and less than the host's {CORES} cores"
        )


def allocations(fleet: Fleet, rules: Rules) -> dict[str, Allocation]:
    """Return all allocations by name: the allocation with the given batches if ``rules.batch`` is
    GIVEN, the allocation with the published batches if they exist and fit into memory, and the
    allocation of every allocator.

    Raises InputError if ``rules`` choose published batches but no batches are published, if the
    chosen batches do not fit into memory or take too long, or if the parameters of an allocator are
    invalid.
    """
    wanted = rules.batch == PAPER or _fits(fleet)
    names = (PUBLISHED, *ALLOCATORS) if wanted else ALLOCATORS
    if rules.batch == GIVEN:
        names = (GIVEN, *names)
    spent = _Spent.of(fleet)
    return {name: _allocation(fleet, rules, name, spent) for name in names}


def chosen(fleet: Fleet, rules: Rules) -> Allocation:
    """Return the allocation of batches for the cluster ``fleet`` according to ``rules``. Raises
    InputError under the same conditions as :func:`allocations`."""
    return _allocation(fleet, rules, rules.chosen, _Spent.of(fleet))


def _allocation(fleet: Fleet, rules: Rules, name: str, spent: _Spent) -> Allocation:
    """Return the allocation called ``name``, based on the speeds of the nodes on the cores that
    other programs leave free."""
    if name == PUBLISHED:
        return _published(fleet, spent)
    if name == GIVEN:
        return _given(fleet, rules, spent)
    if name == "paper":
        return _by_algorithm_1(fleet, rules, spent)
    return _best(fleet, rules, name, spent)


@dataclass(frozen=True)
class _Spent:
    """Duration of the phases of a step in which no node computes gradients, seconds: gradient
    exchange and weight update."""

    exchange_s: float
    update_s: float

    @staticmethod
    def of(fleet: Fleet) -> _Spent:
        everyone = np.ones(fleet.nodes, bool)
        return _Spent(fleet.exchange(everyone).seconds, float(fleet.update_s.max(initial=0.0)))


def _fits(fleet: Fleet) -> bool:
    """Return True if batches are published for these kinds of nodes and fit into their memory."""
    return fleet.published is not None and all(
        _holds(kind, batch) for batch, kind in zip(fleet.published, fleet.kinds, strict=True)
    )


def _holds(kind: Kind, batch: int) -> bool:
    """Return True if ``batch`` fits into the memory of a node of this kind."""
    return kind.engine.limit is None or batch <= kind.engine.limit


def _published(fleet: Fleet, spent: _Spent) -> Allocation:
    """Return the allocation with the published batches. Raises InputError if no batches are
    published or if they do not fit into memory."""
    names = " and ".join(kind.name for kind in fleet.kinds if not kind.host)
    if fleet.published is None:
        raise InputError(f"batch {PAPER!r}: no batches are published for this model on {names}; "
                         f"use {TUNED}")  # fmt: skip
    batches = tuple(
        batch if kind.count else 0 for batch, kind in zip(fleet.published, fleet.kinds, strict=True)
    )
    for kind, batch in zip(fleet.kinds, batches, strict=True):
        _check_memory(kind, batch, f"batch {PAPER!r}, {batch} on {kind.name}", f"use {TUNED}")
    return _fixed(fleet, PUBLISHED, batches, spent)


def _check_memory(kind: Kind, batch: int, what: str, right: str) -> None:
    """Raise InputError if ``batch`` does not fit into the memory of a node of this kind. ``what``:
    origin of the batch, for the error message. ``right``: advice at the end of the error
    message."""
    if not _holds(kind, batch):
        limit = kind.engine.limit
        raise InputError(
            f"{what}: the memory of {kind.name} holds a batch of at most {limit}; {right}"
        )


def _given(fleet: Fleet, rules: Rules, spent: _Spent) -> Allocation:
    """Return the allocation with the batches that the user gives. If the user gives no batch of the
    host, Algorithm 1 tunes the host's batch to the slowest drives. Raises InputError if a batch
    does not fit into memory or takes too long."""
    host, drive = rules.host_batch, rules.drive_batch
    assert drive is not None
    for kind in fleet.kinds:
        name, batch = ("--host-batch", host) if kind.host else ("--drive-batch", drive)
        if not kind.count or batch is None:
            continue
        _check_memory(kind, batch, f"{name} {batch}", f"use at most {kind.engine.limit}")
        took = kind.loaded.seconds(batch)
        check_seconds(took, f"{name} {batch}: takes {took:.3g} s on {kind.name}")
    drives = [kind.loaded for kind in fleet.kinds if kind.count and not kind.host]
    if host is None and drives:
        # The slowest drives keep the host waiting, so the host's batch is tuned to theirs.
        slowest = max(drives, key=lambda engine: engine.seconds(drive))
        keeps = Engine(slowest.name, ((drive, slowest.speed(drive)),))
        host = tune((fleet.kinds[0].loaded, keeps), margin=rules.margin, reference=1)[0]
    elif host is None:
        host = fleet.kinds[0].loaded.best
    batches = tuple(
        (host if kind.host else drive) if kind.count else 0 for kind in fleet.kinds
    )  # fmt: skip
    return _fixed(fleet, GIVEN, batches, spent)


def _fixed(fleet: Fleet, name: str, batches: tuple[int, ...], spent: _Spent) -> Allocation:
    """Return the allocation called ``name`` with these batches, one for each kind of node."""
    took = [
        kind.loaded.seconds(batch) if batch else 0.0
        for kind, batch in zip(fleet.kinds, batches, strict=True)
    ]
    counts = tuple(kind.count for kind in fleet.kinds)
    total = sum(batch * count for batch, count in zip(batches, counts, strict=True))
    return Allocation(
        name, batches, (1,) * len(counts), spent.exchange_s, max(took), spent.update_s, counts,
        f"effective batch {total}",
    )  # fmt: skip


def _by_algorithm_1(fleet: Fleet, rules: Rules, spent: _Spent) -> Allocation:
    """Return the allocation with the batches of Algorithm 1 of STANNIS (DAC 2020)."""
    present = [i for i, kind in enumerate(fleet.kinds) if kind.count]
    engines = [fleet.kinds[i].loaded for i in present]
    counts = tuple(kind.count for kind in fleet.kinds)
    of_present = [counts[i] for i in present]
    found = tuning(engines, counts=of_present, margin=rules.margin, reference=rules.reference)
    total = sum(n * count for n, count in zip(found.batches, of_present, strict=True))
    limited = tuple(e.name for e, low in zip(engines, found.limited, strict=True) if low)
    return Allocation(
        "paper", _spread(fleet, present, found.batches, 0), (1,) * len(counts), spent.exchange_s,
        max(found.seconds), spent.update_s, counts, f"effective batch {total}", limited,
    )  # fmt: skip


def _best(fleet: Fleet, rules: Rules, name: str, spent: _Spent) -> Allocation:
    """Return the allocation of the allocator ``name``: "equal" (equal step times) or "best" (most
    samples per second)."""
    limits: dict[str, Any] = {}
    if name == "best":
        default = MICRO_BATCHES if rules.overhead is None else BY_OVERHEAD
        limits = {
            "method": rules.method,
            "most_micro_batches": rules.most_micro_batches or default,
            "most_samples": rules.most_batch,
            "overhead": rules.overhead,
        }
    present = [i for i, kind in enumerate(fleet.kinds) if kind.count]
    counts = tuple(kind.count for kind in fleet.kinds)
    found = throughput_allocator.plan(
        [fleet.kinds[i].loaded for i in present], [counts[i] for i in present],
        spent.exchange_s + spent.update_s, **limits,
    )  # fmt: skip
    pieces = tuple(max(count, 1) for count in found.micro_batches)
    return Allocation(
        name, _spread(fleet, present, found.samples, 0), _spread(fleet, present, pieces, 1),
        spent.exchange_s, found.compute_s, spent.update_s, counts, found.risk,
    )  # fmt: skip


def _spread(
    fleet: Fleet, present: list[int], values: tuple[int, ...], absent: int
) -> tuple[int, ...]:
    """Return one value per kind of node: the element of ``values`` for each kind with an index in
    ``present``, and ``absent`` for kinds without nodes."""
    of_kind: Mapping[int, int] = dict(zip(present, values, strict=True))
    return tuple(of_kind.get(i, absent) for i in range(len(fleet.kinds)))


def recruited(fleet: Fleet) -> throughput_allocator.Plan | None:
    """Return the plan with equal step times that has the most samples per second. The plan may use
    only some of the drives. Returns None if there are several kinds of drives, or fewer drives than
    hosts."""
    present = [kind for kind in fleet.kinds if kind.count]
    if [kind.host for kind in present] != [True, False] or present[0].count > present[1].count:
        return None
    update_s = _Spent.of(fleet).update_s

    def exchange_s(nodes: int) -> float:
        return fleet.exchange(np.arange(fleet.nodes) < nodes).seconds + update_s

    return throughput_allocator.recruited(
        [kind.loaded for kind in present], [kind.count for kind in present], exchange_s
    )
