"""Base classes of the paths that update weights and optimizer states on flash.

Owns the preparation of a run, the transfer of gradients to the payload, reading weights back, and
the regions of the conventional namespace. Does not own the order of commands (the module of each
path).
Source: this project's contract of paths (base.py) and traces.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ondie.emu.engine.run.system import System
from ondie.emu.ftl.tables import logical_pages
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.base import BACKWARD, PHASES, Options, Path, Rows
from ondie.emu.paths.layout.formats import Stored
from ondie.emu.paths.layout.regions import Regions, Shard, shards
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.emu.paths.optimizer_step import Arithmetic, Scalars
from ondie.emu.paths.payload import Conventional
from ondie.emu.paths.pieces import Pieces, pieces
from ondie.kernels import get


@dataclass
class UpdatingPath(Path):
    """Base of paths whose weights and states are on flash. Subclasses choose the location of
    these vectors and plan the update."""

    def __post_init__(self) -> None:
        self.check_format()
        self.geometry = Geometry.of(self.cfg)
        self.kernel = get(self.trace.op, form=self.options.form)
        self.stored = Stored(self.options.format, self.trace.op)
        self.vectors = ("w", *self.kernel.states)
        self.shards: tuple[Shard, ...] = shards(
            self.trace.n_params, self.cfg.system.devices, self.granule()
        )
        self.lay_out()
        self.payload: Conventional | Reservoir | None = None
        self.arithmetic: Arithmetic | None = None
        self.next_row = 0
        """Id of the next plan row to be created."""
        super().__post_init__()

    @abstractmethod
    def granule(self) -> int:
        """Return the granule: vectors are split over the devices at multiples of this number of
        parameters."""

    @abstractmethod
    def lay_out(self) -> None:
        """Choose the location of each shard's vectors on flash, before the first plan."""

    @abstractmethod
    def fill(self, system: System) -> None:
        """Place the vectors on the flash of ``system`` before the run, without simulated time."""

    @abstractmethod
    def follow(self, system: System) -> Conventional | Reservoir:
        """Return a new payload, which applies the log of ``system``'s engine to the bytes of this
        path."""

    @abstractmethod
    def update(self, out: Rows, step: int, segments: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the plan rows of the step, starting with the gradient transfer. ``segments``: ids
        of the rows of the backward segments, int64."""

    @abstractmethod
    def period(self) -> int:
        """Return the number of parameters after which the pattern of flash writes repeats. The
        writes of these parameters fill one block of every plane."""

    def group(self) -> int:
        """Return the number of parameters in a sub-group, or 0 if the path has no sub-groups."""
        return 0

    def part_options(self) -> Options:
        """Return the options that give a piece of the model the same layout as the whole model."""
        return self.options

    def part_settings(self, n_params: int) -> dict[str, int]:
        """Return changes to the configuration, by key, for a piece of ``n_params`` parameters. With
        these changes, the operations of the piece overlap as in the whole model."""
        return {}

    def unsampled(self) -> str | None:
        """Return the reason why the simulation of pieces of the model cannot predict the update of
        the whole model, or None if it can."""
        return None

    def pieces(self) -> Pieces | None:
        """Return the pieces to simulate in place of the whole update stage. Return None if the
        model is too small for pieces, or if pieces cannot predict the whole model."""
        if self.unsampled():
            return None
        devices = len(self.shards)
        granule = self.granule() * devices
        return pieces(self.trace.n_params, self.period() * devices, granule, self.group())

    @property
    def up_bytes(self) -> int:
        """Size of one weight in the transfer of new weights to the host, bytes."""
        return 2 if self.options.weights_up == "fp16" else self.stored.shown.itemsize

    def prepare(self, system: System, arithmetic: Arithmetic | None) -> None:
        self.fill(system)
        if arithmetic is None:
            return
        self.arithmetic = arithmetic
        self.payload = self.follow(system)
        self.payload.store_initial(arithmetic.initial())

    def compute(
        self, start: int, stop: int, vectors: dict[str, np.ndarray], gradient: np.ndarray
    ) -> None:
        """Update parameters [start, stop) of ``vectors`` (arrays by slot name) with ``gradient``,
        in place."""
        assert self.arithmetic is not None
        self.arithmetic.apply(self._coefficients, start, stop, vectors, gradient)

    def begin_step(self, step: int) -> None:
        if self.payload is not None and self.arithmetic is not None:
            self._coefficients: list[Scalars] = self.arithmetic.coefficients(step)
            self.payload.offer_gradient(self.arithmetic.gradient(self.trace.gradient(step)))

    def finish(self) -> np.ndarray | None:
        return None if self.payload is None else self.payload.stored("w")

    def part(self) -> None:
        self.payload = None

    def delivered(self) -> np.ndarray | None:
        return None if self.payload is None else self.payload.delivered

    def plan(self, step: int) -> Iterator[np.ndarray]:
        out = Rows(self.next_row)
        segments = self.training_rows(out, step, out.fence(BACKWARD))
        if not self.trace.steps[step].skipped:
            yield from self.update(out, step, segments)
        yield out.take()
        self.next_row = out.next


@dataclass
class ConventionalPath(UpdatingPath):
    """Path whose vectors are in regions of the conventional namespace. Accesses pass through the
    mapping table, ECC and DRAM."""

    def lay_out(self) -> None:
        self.regions = tuple(
            Regions.of(shard, (*self.stored.vectors, self.stored.gradient), self.geometry)
            for shard in self.shards
        )

    @property
    def written(self) -> tuple[str, ...]:
        """Names of the vectors that a step writes to flash."""
        return self.vectors

    def period(self) -> int:
        geometry = self.geometry
        written = sum(
            Fraction(1, self.regions[0].vector(name).per_page(geometry.page_bytes))
            for name in self.written
        )
        return math.ceil(geometry.pages * geometry.planes * geometry.dies / written)

    def too_large(self, names: tuple[str, ...]) -> str | None:
        """Return the reason why the vectors ``names`` do not fit in the namespace, or None if they
        fit."""
        lpns = logical_pages(self.cfg, self.geometry)
        planes = self.geometry.planes
        need = max(
            sum(-(-regions.used(name) // planes) * planes for name in names)
            for regions in self.regions
        )
        if need <= lpns:
            return None
        gb = self.geometry.page_bytes / 1e9
        return (
            f"{', '.join(names)} of {self.trace.n_params:,} parameters take {need * gb:.4g} GB per "
            f"device, but the conventional namespace has {lpns * gb:.4g} GB"
        )

    def system(self, payload: bool, timeline: int) -> System:
        return System(
            self.cfg, PHASES, payload=payload, timeline=timeline, pairs=self.options.pairs
        )

    def free_page(self) -> int:
        return max(regions.total_pages for regions in self.regions)

    def fill(self, system: System) -> None:
        for regions in self.regions:
            for name in self.vectors:
                system.fill(regions.shard.device, regions.first(name), regions.used(name))

    def follow(self, system: System) -> Conventional:
        return Conventional(system, self.regions, self.compute, shown=self.stored.shown)
