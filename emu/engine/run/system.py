"""Simulated system that runs plans: one host, a PCIe tree, N devices and one clock.

Owns the loading of plans, the numbers of operations and bytes that the plans request, and the
totals of a finished run. Does not own the event loop (driver.py), the contents of plans (paths/) or
the cost of plans (analysis/ledger.py).
Source: the plan format (engine/core/plan_rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows, stages
from ondie.emu.engine.core.plan_rows import MixedPlan, PlanMix
from ondie.emu.engine.core.totals import StepClock, Totals, sum_counters
from ondie.emu.engine.run import build
from ondie.emu.engine.run.driver import CLOSING, Driver
from ondie.emu.engine.run.errors import SimulationError, raise_error
from ondie.emu.ftl import cmt, reservoir, write_frontier
from ondie.emu.nand import timing
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme import command
from ondie.emu.nvme.tunnel.message_table import Messages
from ondie.emu.units import InputError

MOST_BYTES = 1 << 36
"""Maximum transfer size of one plan row in bytes (limit of clock.rate_scale)."""
PLANNED = (
    "read_pages", "program_pages", "vpp_pages", "bpr_pages", "bpp_pages", "odc_ops",
    "reservoir_read_pages", "fetched_pages", "stored_pages", "kept_pages",
    "lifted_pages", "landed_pages",
    "link_down_bytes", "link_up_bytes", "tunnel_bytes",
    "tunnel_commands", "tunnel_wire_bytes",
)  # fmt: skip
EVENTS_PER_TURN = 1 << 14
"""Maximum number of events between two calls of ``ForegroundFeed.supply``, which loads requests."""


@dataclass(frozen=True)
class ReservoirOptions:
    """Parameters of the optimizer's reservoir of a drive: its sizes, and the names of the phases of
    the update plans."""

    super_pages: int
    """Number of logical super-pages in the reservoir map; some of them may be unmapped."""
    planes: int
    """Number of planes that a super-page uses."""
    phases: tuple[str, ...]
    """Names of the phases that the plans' rows refer to by index."""


NO_RESERVOIR = ReservoirOptions(0, 0, ("",))
"""Options of a drive without a reservoir. Plans on such a drive have one phase, and do not use the
reservoir."""


class ForegroundFeed(Protocol):
    """Interface of a source that loads requests into the system's queue pairs while plans run."""

    def supply(self, plan_done: bool) -> bool:
        """Collect completions and load more requests; return True if any request was loaded."""


class System(Driver):
    """One host and ``cfg.system.devices`` devices, on which plans run.

    ``phases``: names of the phases that plan rows refer to by index. ``on_log``: function that
    receives the log of moved bytes (payload_log.LOG, in order of events) if ``payload`` is set.
    ``pairs``: number of queue pairs, into which ``foreground`` loads requests while plans run.
    ``relay_wait_ps``: time that the tunnel relay waits for a host core before each task, according
    to the cost model of collectives (cluster/collectives/allreduce.py).
    """

    def __init__(
        self,
        cfg: Config,
        phases: tuple[str, ...],
        *,
        reservoir_super_pages: int = 0,
        reservoir_planes: int = 0,
        queue_depth: int | None = None,
        payload: bool = False,
        timeline: int = 0,
        pairs: int = 0,
        relay_wait_ps: int = 0,
        seed: int = 0,
    ) -> None:
        arrays = build.build(
            cfg,
            seed=seed,
            phases=len(phases),
            reservoir_super_pages=reservoir_super_pages,
            reservoir_planes=reservoir_planes,
            queue_depth=queue_depth,
            payload=payload,
            timeline=timeline,
            pairs=pairs,
        )
        super().__init__(cfg, arrays)
        self.relay_wait_ps = relay_wait_ps
        self.phases = phases
        self.devices = cfg.system.devices
        self.on_log: Callable[[np.ndarray], None] | None = None
        self.on_progress: Callable[[int], None] | None = None
        self.foreground: ForegroundFeed | None = None
        self._messages: Messages | None = None
        self._chunks: Iterator[np.ndarray] = iter(())  # of the plan that runs
        self._next_chunk: np.ndarray | None = None
        self._mix: PlanMix | None = None  # the plans that run at the same time
        self.filled_pages = 0
        self.planned = np.zeros((self.devices, len(PLANNED)), np.int64)
        """Totals that the plans requested, int64[devices, PLANNED].

        The ledger (analysis/ledger.py) compares the simulated totals with these totals.
        """

    def fill(self, device: int, lpn: int, count: int) -> None:
        """Place ``count`` logical pages on flash as if they had been written sequentially before
        the run.

        Takes no simulated time. Raises InputError if the pages exceed the namespace or no free
        block is left.
        """
        lpns = int(self.arrays.cfg.lpns[0])
        if lpn < 0 or count < 0 or lpn + count > lpns:
            raise InputError(
                f"{count} pages starting at page {lpn}: must be within the device's {lpns} logical "
                "pages"
            )
        rest = write_frontier.fill(self.state, device, lpn, count, 0)
        if rest:
            raise InputError(
                f"device {device} has no free block for {rest} of the {count} pages; use fewer "
                "logical pages"
            )
        if self.arrays.cfg.map_entries[0] and cmt.fill_translation_pages(
            self.state, device, lpn, count
        ):
            raise InputError(
                f"device {device} has no free block for translation pages; use fewer logical pages"
            )
        self.filled_pages += count

    def fill_reservoir(self, device: int, super_page: int, count: int) -> None:
        """Place ``count`` super-pages, starting at ``super_page``, in the reservoir of device
        ``device`` as if they had been written sequentially before the run."""
        reservoir.fill(self.state, device, super_page, count)
        raise_error(self.arrays, self.cfg)

    def start(self, plan: Iterable[np.ndarray]) -> None:
        """Start a plan (chunks of plan_rows.PLAN). Later calls that handle events run the plan."""
        self._chunks = _chunks(plan)
        self._next_chunk = next(self._chunks, None)

    def start_beside(self, plan: Iterable[np.ndarray]) -> MixedPlan:
        """Start a plan as :meth:`start` does, concurrently with other plans that this method has
        started.

        An exception that the iterator ``plan`` raises is stored in MixedPlan.error. Raises
        InputError if a plan that :meth:`start` has started is running.
        """
        if self.plan_done:
            self._chunks = self._mix = PlanMix(self)
        elif self._mix is None or self._chunks is not self._mix:
            raise InputError(
                "the running plan excludes concurrent plans; wait until it has completed"
            )
        mixed = self._mix.add(_chunks(plan))
        if self._next_chunk is None:
            self._next_chunk = next(self._mix, None)
        return mixed

    def run(self, plan: Iterable[np.ndarray]) -> int:
        """Run a plan (chunks of plan_rows.PLAN) to its end; return the number of events handled.

        Raises InputError or SimulationError if rows cannot complete, and PowerCut if
        ``events_left`` reaches 0 before the end.
        """
        self.start(plan)
        try:
            count = self.run_until()
        finally:  # after a power cut, the rest of the plan is lost
            self._chunks, self._next_chunk = iter(()), None
        self.check_finished()
        return count

    @property
    def plan_done(self) -> bool:
        """True if every row of the plan has been loaded and completed."""
        return self._next_chunk is None and self.rows_done == self.next_row

    def supply(self) -> bool:
        """Load the plan's chunks for which the ring has room, then foreground requests.

        Return True if anything was loaded.
        """
        loaded = False
        while self._next_chunk is not None and len(self._next_chunk) <= self.free_rows:
            self._load(self._next_chunk)
            loaded = True
            self._next_chunk = next(self._chunks, None)
        self.rows_wanted = 0 if self._next_chunk is None else len(self._next_chunk)
        ends = self._next_chunk is None
        if self.foreground is not None:
            ends = self.plan_done
            loaded |= self.foreground.supply(ends)
        self.registers[CLOSING] = ends
        return loaded

    def _load(self, chunk: np.ndarray) -> None:
        """Check a chunk of rows, add the amounts that the rows request to ``planned``, and load the
        chunk.
        """
        self._check_ids(chunk)
        chunk = self._with_message_costs(chunk)
        self.planned += self.requested_amounts(chunk)
        self.load_rows(chunk)

    def batch_limit(self) -> int:
        """Return the maximum number of events until the next call of :meth:`supply`.

        The number is smaller if ``foreground`` is set, so that the feed detects the end of the plan
        soon.
        """
        return super().batch_limit() if self.foreground is None else EVENTS_PER_TURN

    def take_log(self, count: int) -> None:
        """Pass the first ``count`` records of the log of moved bytes to ``on_log``."""
        if self.on_log is not None:
            self.on_log(self.arrays.log[:count])

    def report(self) -> None:
        """Call ``on_progress`` with the number of completed rows."""
        if self.on_progress is not None:
            self.on_progress(self.rows_done)

    def _check_ids(self, chunk: np.ndarray) -> None:
        first, ids = self.next_row, chunk["id"]
        if len(chunk) and (
            ids[0] != first
            or ids[-1] != first + len(chunk) - 1
            or (chunk["after0"] >= ids).any()
            or (chunk["after1"] >= ids).any()
            or not (0 <= chunk["device"].min() and chunk["device"].max() < self.devices)
            or not (0 <= chunk["phase"].min() and chunk["phase"].max() < len(self.phases))
            or min(chunk["bytes_in"].min(), chunk["bytes_out"].min(), chunk["array_ps"].min()) < 0
        ):
            raise SimulationError(
                f"invalid chunk of plan rows: ids must be consecutive, starting with {first}, "
                "dependencies must be earlier rows, devices must be from 0 to "
                f"{self.devices - 1} and phases from 0 to {len(self.phases) - 1}, and byte counts "
                "and array_ps must not be negative"
            )
        longest = int(max(chunk["bytes_in"].max(initial=0), chunk["bytes_out"].max(initial=0)))
        if longest > MOST_BYTES:
            raise InputError(
                f"a plan row transfers {longest:,} bytes; a row must transfer at most "
                f"{MOST_BYTES:,} bytes to keep the clock exact"
            )

    def _with_message_costs(self, chunk: np.ndarray) -> np.ndarray:
        """Return the chunk with the index of each tunnel message's cost record in column
        ``stream``.

        The chunk is copied if it contains tunnel messages.
        """
        sent = np.flatnonzero(chunk["resource"] == plan_rows.TUNNEL)
        if not len(sent):
            return chunk
        if self._messages is None:
            self._messages = Messages(self.cfg, self.arrays.message, self.relay_wait_ps)
        chunk = chunk.copy()
        kinds, sizes = chunk["kind"][sent], chunk["bytes_in"][sent]
        chunk["stream"][sent] = self._messages.places(kinds, sizes)
        return chunk

    def _message_costs(self, chunk: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return the numbers of commands and wire bytes of the tunnel messages of a chunk.

        The chunk must come from :meth:`_with_message_costs`. Each value of the result is
        (amount per row, mask of the tunnel rows).
        """
        sent = chunk["resource"] == plan_rows.TUNNEL
        of = np.where(sent, chunk["stream"], 0)
        message = self.arrays.message
        return {
            "tunnel_commands": (message.commands[of], sent),
            "tunnel_wire_bytes": ((message.wire_up + message.wire_down)[of], sent),
        }

    def requested_amounts(self, chunk: np.ndarray) -> np.ndarray:
        """Return the amounts of work (pages, bytes, commands) that the plan rows in ``chunk``
        request: int64[devices, PLANNED].
        """
        amounts = np.zeros_like(self.planned)
        bytes_in, bytes_out = chunk["bytes_in"], chunk["bytes_out"]
        pages = -(-(bytes_in + bytes_out) // self.geometry.page_bytes)
        resource, kind, device = (
            np.ascontiguousarray(chunk[name]) for name in ("resource", "kind", "device")
        )
        io = (resource == plan_rows.NVME) | (resource == plan_rows.ISP_IO)
        die = resource == plan_rows.DIE
        masks = {
            "read_pages": (pages, io & (kind == command.READ)),
            "program_pages": (pages, io & (kind == command.WRITE)),
            "vpp_pages": (pages, die & (kind == timing.VPP)),
            "bpr_pages": (pages, die & ((kind == timing.BPR) | (kind == timing.RECALL))),
            "bpp_pages": (pages, die & ((kind == timing.BPP) | (kind == timing.PAD))),
            "odc_ops": (np.ones_like(pages), die & (kind == timing.ODC)),
            "reservoir_read_pages": (
                pages,
                die & ((kind == timing.READ) | (kind == timing.SCAN)),
            ),
            "fetched_pages": (pages, die & (kind == timing.FETCH)),
            "stored_pages": (pages, die & ((kind == timing.STORE) | (kind == timing.BESIDE))),
            "kept_pages": (pages, die & (kind == timing.KEEP)),
            "lifted_pages": (pages, die & (kind == timing.LIFT)),
            "landed_pages": (pages, die & (kind == timing.LAND)),
            "link_down_bytes": (
                chunk["bytes_in"],
                ((resource == plan_rows.NVME) & (kind == command.WRITE))
                | (resource == plan_rows.DMA_DOWN),
            ),
            "link_up_bytes": (
                chunk["bytes_out"],
                ((resource == plan_rows.NVME) & (kind == command.READ))
                | (resource == plan_rows.DMA_UP)
                | (die & (kind == timing.READ)),
            ),
            "tunnel_bytes": (chunk["bytes_in"], resource == plan_rows.TUNNEL),
            **self._message_costs(chunk),
        }
        for i, name in enumerate(PLANNED):
            amount, mask = masks[name]
            at = np.flatnonzero(mask)
            np.add.at(amounts[:, i], device[at], amount[at])
        crossing = np.flatnonzero((resource == plan_rows.TUNNEL) & (kind == plan_rows.ACROSS))
        tunnels = amounts[:, PLANNED.index("tunnel_bytes")]
        np.add.at(tunnels, chunk["lpn"][crossing], chunk["bytes_in"][crossing])
        return amounts

    def drop_callbacks(self) -> None:
        """Drop all callbacks, so that the callbacks' objects and the drives' state can be freed."""
        self.on_log = self.on_progress = self.foreground = None

    def add_planned(self, device: int, what: str, amount: int) -> None:
        """Add ``amount`` to the total ``what`` (one of PLANNED) of device ``device``, for work that
        was requested outside the plans."""
        self.planned[device, PLANNED.index(what)] += amount

    def totals(self, steps: StepClock) -> Totals:
        """Return the totals of the finished run as plain numbers, for the ledger."""
        arrays, geometry = self.arrays, self.geometry
        classes, which = leaf_classes(self.devices, geometry, self.lanes)
        busy: dict[tuple[str, str], int] = {}
        busy_sum: dict[str, int] = {}
        phase_sum: dict[tuple[str, str], int] = {}
        worked = arrays.use.sum(axis=0)
        for leaf in np.flatnonzero(worked):
            kind = classes[which[leaf]]
            busy_sum[kind] = busy_sum.get(kind, 0) + int(worked[leaf])
        for i, name in enumerate(self.phases):
            for leaf in np.flatnonzero(arrays.use[i]):
                key = name, classes[which[leaf]]
                busy[key] = max(busy.get(key, 0), int(arrays.use[i, leaf]))
                phase_sum[key] = phase_sum.get(key, 0) + int(arrays.use[i, leaf])
        sizes = dict.fromkeys((*stages.HOST_NAMES, *stages.DEVICE_NAMES, "ECC"), 0)
        fifo0 = int(arrays.reg["fifo0"][0])
        for station in np.flatnonzero(arrays.fifo["size"]):
            sizes[classes[which[fifo0 + station]]] += int(arrays.fifo["size"][station])
        sizes["channels in"] = int(arrays.bus.size_in.sum())
        sizes["channels out"] = int(arrays.bus.size_out.sum())
        erases = arrays.block["erases"]
        valid = arrays.valid.reshape(self.devices, geometry.units, geometry.all_blocks)
        dies = self.devices * geometry.dies
        worn = arrays.worn[: dies * geometry.reservoir_blocks].reshape(
            dies, geometry.reservoir_blocks, geometry.planes
        )
        return Totals(
            counters=sum_counters(arrays.count),
            bytes_by=sizes,
            planned={
                label: int(value)
                for label, value in zip(PLANNED, self.planned.sum(axis=0), strict=True)
            },
            mapped_pages=int(arrays.dev.mapped.sum()),
            valid_pages=int(valid[:, :, : geometry.blocks].sum()),
            filled_pages=self.filled_pages,
            super_pages=(int(valid[:, :, geometry.blocks :].sum()), int(arrays.dev.r_mapped.sum())),
            worn=tuple(map(tuple, worn.sum(axis=1).tolist())),
            erases=(int(erases.sum()), int(erases.max())),
            cached_contents=int(arrays.cache.contents.sum()),
            in_flight=self.transactions_in_flight,
            steps=tuple(steps.steps),
            busy_ps=busy,
            busy_sum_ps=busy_sum,
            worked_ps=phase_sum,
            page_bytes=geometry.page_bytes,
            block_bytes=geometry.pages * geometry.slots * geometry.page_bytes,
            devices=self.devices,
        )

    def leaf_name(self, leaf: int) -> tuple[int, str]:
        """Return (device, name) of the resource with index ``leaf``. The device is -1 for the
        host.
        """
        return leaf_name(self.devices, self.geometry, self.lanes, leaf)

    @property
    def lanes(self) -> int:
        """Number of units of a die that operate independently: its planes, or 1 (the whole die)."""
        return int(self.arrays.cfg.lanes[0])


def _chunks(plan: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the row arrays of a plan in chunks of at most plan_rows.MAX_CHUNK rows."""
    for block in plan:
        for at in range(0, len(block), plan_rows.MAX_CHUNK):
            yield block[at : at + plan_rows.MAX_CHUNK]


def leaf_name(devices: int, index: Geometry, lanes: int, leaf: int) -> tuple[int, str]:
    """Return (device, name) of the resource with index ``leaf`` in a system: a die, a plane, a
    channel or a station. The device is -1 for the host.
    """
    bus0 = devices * index.dies * lanes
    fifo0 = bus0 + devices * index.channels
    if leaf < bus0:
        (dev, die), plane = divmod(leaf // lanes, index.dies), leaf % lanes
        name = f"die {index.channel_of(die)}.{die // index.channels}"
        return dev, f"{name} plane {plane}" if lanes > 1 else name
    if leaf < fifo0:
        return (leaf - bus0) // index.channels, f"channel {(leaf - bus0) % index.channels}"
    station = leaf - fifo0
    if station < stages.HOST_STATIONS:
        return -1, stages.HOST_NAMES[station]
    dev, which = divmod(station - stages.HOST_STATIONS, stages.ECC + index.channels)
    return dev, stages.DEVICE_NAMES[which] if which < stages.ECC else f"ECC {which - stages.ECC}"


@lru_cache(maxsize=16)
def leaf_classes(devices: int, die: Geometry, lanes: int) -> tuple[list[str], np.ndarray]:
    """Return the names of the resource classes ("dies", "channels", "ECC", "link up", ...), and for
    each resource the index of its class, int64[resources]. ``devices``: number of devices.
    ``lanes``: number of independently operating planes per die.
    """
    leaves = devices * (die.dies * lanes + 2 * die.channels + stages.ECC) + stages.HOST_STATIONS
    names = []
    for leaf in range(leaves):
        name = leaf_name(devices, die, lanes, leaf)[1]
        kind = name.split()[0]
        names.append({"die": "dies", "channel": "channels", "ECC": "ECC"}.get(kind, name))
    classes = list(dict.fromkeys(names))
    at = {name: i for i, name in enumerate(classes)}
    return classes, np.array([at[name] for name in names])
