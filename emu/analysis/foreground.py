"""Interference between foreground requests and an update, in both directions.

Owns the requests that run concurrently with an update, and the latencies with and without the
update. Does not own queue pairs (replay/player.py), paths, or the reading of block traces
(ondie.traces).
Source: this project.

The update runs without forward and backward. The foreground requests start with the update, repeat
until the update ends, and address the logical pages of the first drive that follow the pages of the
path. For comparison, the requests run alone on the same drive for the same time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondie.emu.analysis.compare import Run
from ondie.emu.analysis.extrapolate import reduced
from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.engine.run.system import System
from ondie.emu.nvme.request import READ, WRITE
from ondie.emu.paths.base import FORWARD, Options, Rows, Unavailable
from ondie.emu.paths.update_path import UpdatingPath
from ondie.emu.replay.block_trace import Commands, Loop, partial_pages, whole_sectors
from ondie.emu.replay.player import RequestFeed, Source
from ondie.emu.replay.statistics import summary
from ondie.emu.units import InputError
from ondie.traces import Trace, block_edit
from ondie.traces.block_model import BlockTrace

FEWEST_REQUESTS = 100
"""Minimum number of requests of one kind for which latencies are reported."""


@dataclass(frozen=True)
class Interference:
    """Interference between a path's update and the foreground requests.

    ``seconds``: (time of the update without the requests, time of the update with the requests).
    ``alone``, ``beside``: latencies (us) of the requests without and with the update, by kind
    ("read", "write"), in the form of replay.statistics.summary(); None for a kind with fewer than
    FEWEST_REQUESTS requests. ``requests``: number of requests that arrived during the update.
    """

    name: str
    title: str
    reason: str | None = None
    seconds: tuple[float, float] = (0.0, 0.0)
    alone: dict[str, dict[str, float] | None] = dataclasses.field(default_factory=dict)
    beside: dict[str, dict[str, float] | None] = dataclasses.field(default_factory=dict)
    requests: int = 0

    @property
    def slower(self) -> float:
        """Increase of the update time caused by the requests, as a fraction of the update time
        without requests."""
        return self.seconds[1] / self.seconds[0] - 1


class ForegroundRequests:
    """Source of foreground requests during an update: the requests of ``trace``, shifted by
    ``first`` logical pages, to the system's first drive.

    The trace repeats until the update ends.
    """

    def __init__(self, system: System, trace: BlockTrace, loop: Loop, first: int) -> None:
        self.system = system
        page = system.geometry.page_bytes
        room = (int(system.arrays.cfg.lpns[0]) - first) * page
        self.trace = fitted(trace, room)
        self.first_byte = first * page
        pages = int(-(-(self.trace.offset + self.trace.size).max() // page))
        system.fill(0, first, pages)
        if system.arrays.cfg.partial[0]:
            sectors = page // SECTOR_BYTES
            system.arrays.sectors[:, : first + pages] = -1 if sectors >= 64 else (1 << sectors) - 1
        self.loop = loop
        self.most = system.cfg.frontend.max_transfer_bytes
        depth = loop.depth if loop.depth is not None else system.cfg.frontend.queue_depth
        source = Source(self._chunks(), depth, loop.depth is not None)
        self.feed = RequestFeed(system.arrays, system.state, [source])
        self.ended = False
        system.foreground = self
        self.feed.load()

    def _chunks(self) -> Iterator[np.ndarray]:
        """Yield the commands of the trace in an endless loop. The pause between two repetitions of
        the trace is the mean time between two commands."""
        commands = Commands(self.trace, self.most, self.loop)
        shift = 0
        while True:
            last = 0
            for chunk in commands.chunks():
                chunk["offset"] += self.first_byte
                if self.loop.depth is None:
                    last = int(chunk["arrival"][-1])
                    chunk["arrival"] += shift
                yield chunk
            shift += last + max(last // max(len(commands) - 1, 1), 1)

    def supply(self, plan_done: bool) -> bool:
        """Collect completed requests and submit more. Return True if more requests were submitted.
        ``plan_done``: True if the update has ended. Implements ForegroundFeed of
        engine/run/system.py."""
        self.feed.collect()
        if plan_done and not self.ended:
            self.ended = True
            self.feed.end()
        drained = self.feed.drained
        if drained:
            self.feed.load()
        return drained

    def done(self) -> np.ndarray:
        """Return all issued requests, an array of n REQUEST records. Raises SimulationError if a
        request is not complete."""
        self.system.foreground = None  # drops the reference that keeps the drive's memory
        self.feed.collect()
        self.system.check_finished()
        found: np.ndarray = self.feed.requests()[0]
        self._book(found)
        return found

    def _book(self, found: np.ndarray) -> None:
        """Add the pages and bytes of the requests to the system's planned totals, with which the
        conservation checks compare the counters of the run."""
        page = self.system.geometry.page_bytes
        offset, size = found["offset"], found["size"]
        pages = (offset + size - 1) // page - offset // page + 1
        for op, what, way in ((READ, "read_pages", "up"), (WRITE, "program_pages", "down")):
            mine = found["op"] == op
            self.system.add_planned(0, what, int(pages[mine].sum()))
            self.system.add_planned(0, f"link_{way}_bytes", int(size[mine].sum()))


def fitted(trace: BlockTrace, room: int) -> BlockTrace:
    """Return the block trace in whole sectors, wrapped to an address space of ``room`` bytes.

    Raises InputError if the trace has several devices, no requests, or a request larger than
    ``room``.
    """
    if len(trace.devices) > 1:
        raise InputError(
            f"{trace.source}: the block trace has requests of {len(trace.devices)} devices; use a "
            "block trace of one device"
        )
    if not len(trace):
        raise InputError(
            f"{trace.source}: the block trace is empty; use a trace with at least one request"
        )
    if room < int(trace.size.max()):
        raise InputError(
            f"{trace.source}: a request has {int(trace.size.max())} bytes, but the path leaves "
            f"only {room} bytes of the drive free; use smaller requests or a larger drive"
        )
    return block_edit.wrap(whole_sectors(trace), room // SECTOR_BYTES * SECTOR_BYTES)


def interference(
    trace: Trace,
    cfg: Config,
    names: Sequence[str],
    options: Options,
    requests: BlockTrace,
    loop: Loop,
    progress: Callable[[str, float], None] | None = None,
) -> list[Interference]:
    """Run each path that updates weights on flash, once without and once with the foreground
    requests. Return one record per such path.

    ``names``: names of paths. Raises InputError if a path leaves too little space on the drive for
    the requests.
    """
    cfg, _ = partial_pages(requests, cfg)
    small = reduced(trace, trace.n_params, name="update", training=0.0)
    found = []
    for i, name in enumerate(names):
        if not issubclass(PATHS[name], UpdatingPath):
            continue

        def at(share: float, name: str = name, i: int = i) -> None:
            if progress is not None:
                progress("interference", (i + share) / len(names))

        try:
            found.append(_felt(name, cfg, small, options, requests, loop, at))
        except Unavailable as error:
            reason = str(error).removeprefix(f"{name}: ")
            found.append(Interference(name, PATHS[name].title, reason))
    return found


def _felt(
    name: str,
    cfg: Config,
    trace: Trace,
    options: Options,
    requests: BlockTrace,
    loop: Loop,
    progress: Callable[[float], None],
) -> Interference:
    progress(0.0)
    alone = Run(name, cfg, trace, options, payload=False)
    alone.step(0)
    alone.account()
    progress(1 / 3)
    both = Run(name, cfg, trace, dataclasses.replace(options, pairs=1), payload=False)
    others = ForegroundRequests(both.system, requests, loop, both.path.free_page())
    both.step(0)
    beside = others.done()
    end = end_of_update(both)
    both.account()
    progress(2 / 3)
    quiet = Run(name, cfg, trace, dataclasses.replace(options, pairs=1), payload=False)
    others = ForegroundRequests(quiet.system, requests, loop, quiet.path.free_page())
    wait = Rows()
    wait.one(resource=plan_rows.ACCELERATOR, phase=FORWARD, array_ps=end)
    quiet.clock.begin(quiet.system.now)
    quiet.system.run([wait.take()])
    quiet.clock.end(quiet.system.now)
    lone = others.done()
    quiet.account()
    return Interference(
        name,
        PATHS[name].title,
        seconds=(end_of_update(alone) / 1e12, end / 1e12),
        alone=latencies(lone, end),
        beside=latencies(beside, end),
        requests=int((beside["arrival"] <= end).sum()),
    )


def end_of_update(run: Run) -> int:
    """Return the time at which the last phase of the first step ends, in ps. Later writes from the
    cache of the drive to flash are not included."""
    return max(last for phase, (_, last) in run.clock.steps[0].items() if phase != "step")


def latencies(found: np.ndarray, until: int) -> dict[str, dict[str, float] | None]:
    """Return statistics of the latencies (us), from arrival to completion, of the requests
    ``found`` that arrived by ``until`` (ps).

    The keys are "read" and "write". A value has the form of replay.statistics.summary(), or is None
    for fewer than FEWEST_REQUESTS requests.
    """
    out: dict[str, dict[str, float] | None] = {}
    for kind, op in (("read", READ), ("write", WRITE)):
        chosen = (found["op"] == op) & (found["arrival"] <= until)
        end, arrival = found["end"][chosen], found["arrival"][chosen]
        took = end - arrival
        out[kind] = summary(took) if len(took) >= FEWEST_REQUESTS else None
    return out


def data(found: Interference) -> dict[str, Any]:
    """Return the record of the interference of one path as a dictionary for result.json."""
    if found.reason is not None:
        return {"name": found.name, "status": "n/a", "reason": found.reason}
    return {
        "name": found.name,
        "status": "ok",
        "update_s": {"alone": found.seconds[0], "beside": found.seconds[1]},
        "latency_us": {"alone": found.alone, "beside": found.beside},
        "requests": found.requests,
    }
