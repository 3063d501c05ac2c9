"""The drive's other users during an update: what each path does to them, and they to it.

Owns the requests that run beside an update, and the latencies with and without it. Does not own
queue pairs (replay.py), paths, or the reading of block traces (ondie.traces).
Source: own. The update is taken by itself, without forward and backward; the requests begin with
it, are repeated until it is over, and lie behind what the path stores on the first drive. Alone
they run on the same drive, for as long.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondie.emu.analysis.compare import PATHS, Run
from ondie.emu.analysis.extrapolate import reduced
from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.run.errors import raise_full
from ondie.emu.engine.run.system import System
from ondie.emu.nvme.request import READ, WRITE
from ondie.emu.paths.base import FORWARD, Options, Rows, Unavailable
from ondie.emu.paths.update_path import UpdatingPath
from ondie.emu.replay.block_trace import SECTOR, Commands, Loop, partial_pages, whole_sectors
from ondie.emu.replay.player import Player, Source
from ondie.emu.replay.statistics import summary
from ondie.emu.units import InputError
from ondie.traces import Trace, block_edit
from ondie.traces.block_model import BlockTrace

FEWEST = 100
"""Requests of a kind that percentiles are given of, at least."""


@dataclass(frozen=True)
class Felt:
    """A path and the drive's other users. seconds: the update alone, and beside them. alone,
    beside: latencies in us by kind ("read", "write"), as mqsim.statistics.summary() has them, of
    the requests that came meanwhile; None where there are fewer than FEWEST. requests: how many
    came."""

    name: str
    title: str
    reason: str | None = None
    seconds: tuple[float, float] = (0.0, 0.0)
    alone: dict[str, dict[str, float] | None] = dataclasses.field(default_factory=dict)
    beside: dict[str, dict[str, float] | None] = dataclasses.field(default_factory=dict)
    requests: int = 0

    @property
    def slower(self) -> float:
        """How much longer the update takes beside the requests, relative."""
        return self.seconds[1] / self.seconds[0] - 1


class Others:
    """Requests of ``trace`` on pages [first, first + n) of a system's first drive, again and again,
    until the plan beside them is done."""

    def __init__(self, system: System, trace: BlockTrace, loop: Loop, first: int) -> None:
        self.system = system
        page = system.geometry.page_bytes
        room = (int(system.arrays.cfg.lpns[0]) - first) * page
        self.trace = fitted(trace, room)
        self.first_byte = first * page
        pages = int(-(-(self.trace.offset + self.trace.size).max() // page))
        system.fill(0, first, pages)
        if system.arrays.cfg.partial[0]:
            sectors = page // SECTOR
            system.arrays.sectors[:, : first + pages] = -1 if sectors >= 64 else (1 << sectors) - 1
        self.loop = loop
        self.most = system.cfg.frontend.max_transfer_bytes
        depth = loop.depth if loop.depth is not None else system.cfg.frontend.queue_depth
        source = Source(self._chunks(), depth, loop.depth is not None)
        self.player = Player(system.arrays, system.cfg, [source])
        self.ended = False
        system.beside = self
        self.player.feed()

    def _chunks(self) -> Iterator[np.ndarray]:
        """The trace's commands, and once more after as long a pause as between two of them."""
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

    def turn(self, last: bool) -> bool:
        """As system.Beside says."""
        self.player.collect()
        if last and not self.ended:
            self.ended = True
            self.player.end()
        if self.system.arrays.reg["thirsty"][0]:
            self.player.feed()
            return True
        return False

    def done(self) -> np.ndarray:
        """REQUEST[n]: what was issued; all of it is done. SimulationError where it is not."""
        self.system.beside = None  # so that nothing holds the drive's memory
        self.player.collect()
        if self.system.arrays.pair["outstanding"].any():
            raise_full(self.system.arrays, self.system.cfg)
        found: np.ndarray = self.player.requests()[0]
        self._book(found)
        return found

    def _book(self, found: np.ndarray) -> None:
        """What the requests asked for, beside what the plan did: the books hold both."""
        page = self.system.geometry.page_bytes
        pages = (found["offset"] + found["size"] - 1) // page - found["offset"] // page + 1
        for op, what, way in ((READ, "read_pages", "up"), (WRITE, "program_pages", "down")):
            mine = found["op"] == op
            self.system.book(0, what, int(pages[mine].sum()))
            self.system.book(0, f"link_{way}_bytes", int(found["size"][mine].sum()))


def fitted(trace: BlockTrace, room: int) -> BlockTrace:
    """The trace on whole sectors of an address space of ``room`` bytes."""
    if len(trace.devices) > 1:
        raise InputError(
            f"{trace.source}: requests of {len(trace.devices)} devices; those of one are right"
        )
    if not len(trace):
        raise InputError(f"{trace.source}: no requests")
    if room < int(trace.size.max()):
        raise InputError(
            f"{trace.source}: a request of {int(trace.size.max())} bytes; the path leaves {room} "
            "bytes of the drive free"
        )
    return block_edit.wrap(whole_sectors(trace), room // SECTOR * SECTOR)


def interference(
    trace: Trace,
    cfg: Config,
    names: Sequence[str],
    options: Options,
    requests: BlockTrace,
    loop: Loop,
    progress: Callable[[str, float], None] | None = None,
) -> list[Felt]:
    """Each of the paths that update weights on flash, beside the requests.

    InputError for requests that do not fit, or that write where a path leaves no room.
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
            found.append(Felt(name, PATHS[name].title, reason))
    return found


def _felt(
    name: str,
    cfg: Config,
    trace: Trace,
    options: Options,
    requests: BlockTrace,
    loop: Loop,
    progress: Callable[[float], None],
) -> Felt:
    progress(0.0)
    alone = Run(name, cfg, trace, options, payload=False)
    alone.step(0)
    seconds = alone.account()[1].step_s
    progress(1 / 3)
    both = Run(name, cfg, trace, dataclasses.replace(options, pairs=1), payload=False)
    others = Others(both.system, requests, loop, both.path.free_page())
    both.step(0)
    beside = others.done()
    end = max(last for phase, (_, last) in both.clock.steps[0].items() if phase != "step")
    both.account()
    progress(2 / 3)
    quiet = Run(name, cfg, trace, dataclasses.replace(options, pairs=1), payload=False)
    others = Others(quiet.system, requests, loop, quiet.path.free_page())
    wait = Rows()
    wait.one(resource=rows.ACCELERATOR, phase=FORWARD, array_ps=end)
    quiet.clock.begin(quiet.system.now)
    quiet.system.run([wait.take()])
    quiet.clock.end(quiet.system.now)
    lone = others.done()
    quiet.account()
    return Felt(
        name,
        PATHS[name].title,
        seconds=(seconds, end / 1e12),
        alone=latencies(lone, end),
        beside=latencies(beside, end),
        requests=int((beside["arrival"] <= end).sum()),
    )


def latencies(found: np.ndarray, until: int) -> dict[str, dict[str, float] | None]:
    """Of reads and writes that arrived up to ``until`` ps: arrival to completion, us."""
    out: dict[str, dict[str, float] | None] = {}
    for kind, op in (("read", READ), ("write", WRITE)):
        mine = found[(found["op"] == op) & (found["arrival"] <= until)]
        took = mine["end"] - mine["arrival"]
        out[kind] = summary(took) if len(took) >= FEWEST else None
    return out


def data(felt: Felt) -> dict[str, Any]:
    """As result.json has it."""
    if felt.reason is not None:
        return {"name": felt.name, "status": "n/a", "reason": felt.reason}
    return {
        "name": felt.name,
        "status": "ok",
        "update_s": {"alone": felt.seconds[0], "beside": felt.seconds[1]},
        "latency_us": {"alone": felt.alone, "beside": felt.beside},
        "requests": felt.requests,
    }
