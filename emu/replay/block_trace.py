"""Replay of a block trace on one drive.

Owns the adaptation of requests to the drive (sectors, capacity, largest command), open and closed
loops, and the utilization of the resources. Does not own trace formats (ondie.traces), the drive or
its queue pair (player.py), or files and text (cli/commands/replay.py).
Source: NVMe base specification: commands of at most MDTS; the Linux block layer, which splits
larger requests; ATA and NVMe drives, which address whole sectors and deallocate only whole units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.config.rules.rule import mapping_unit
from ondie.emu.engine.core import stages
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.engine.run import build
from ondie.emu.ftl import tables
from ondie.emu.ftl.precondition import apply, touched_fill
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme.request import FLUSH, MAX_CHUNK, NOT_YET, REQUEST, TRIM, WRITE
from ondie.emu.replay.memory import check_memory
from ondie.emu.replay.player import Player, Replayed, Source
from ondie.emu.units import InputError
from ondie.traces import block_edit
from ondie.traces.block_model import BlockTrace

FOOTPRINTS = ("refuse", "wrap")
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Loop:
    """Rule for the submission times of the requests of a trace.

    A closed loop keeps ``depth`` requests outstanding and ignores the timestamps. In an open loop
    (``depth`` is None), each request arrives at its timestamp divided by ``speed``.
    """

    depth: int | None
    speed: float = 1.0


def loop_of(
    trace: BlockTrace, cfg: Config, queue_depth: int | None = None, speed: float | None = None
) -> Loop:
    """Return the loop of a replay: closed with ``queue_depth`` if it is given, else open with
    ``speed``.

    If neither is given, the loop is open with speed 1; for a trace without timestamps, it is closed
    with depth host.io_queue_depth.
    """
    if queue_depth is not None:
        return Loop(queue_depth)
    if speed is None and not trace.timed:
        return Loop(cfg.host.io_queue_depth)
    return Loop(None, 1.0 if speed is None else speed)


@dataclass(frozen=True)
class BlockReplayed:
    """Result of a block replay.

    ``requests``: REQUEST[n], the requests in the order of the trace, with all times. ``done``:
    result of the simulation (player.Replayed). ``half``: the counters at the start of the second
    half of the requests, or None if requests were split. ``busy``: utilization by resource, as
    fractions of the simulated time. ``moved``: bytes that crossed each resource, such as the
    channels, by name of the resource. ``notes``: remarks on changes to the trace and on reads of
    unwritten pages. ``config``: the configuration of the simulated drive.
    """

    requests: np.ndarray
    done: Replayed
    half: dict[str, int] | None
    busy: dict[str, dict[str, float]]
    moved: dict[str, int]
    notes: tuple[str, ...]
    config: Config


def replay_block(
    trace: BlockTrace,
    cfg: Config,
    loop: Loop,
    *,
    kind: str = "fill",
    footprint: str = "refuse",
    seed: int = 0,
    halves: bool = True,
    progress: Callable[[int, int], None] | None = None,
    before: Callable[[int, Config], None] | None = None,
) -> BlockReplayed:
    """Replay the trace on one drive of configuration ``cfg``.

    ``kind``: preconditioning of the drive before the replay (apply.PRECONDITIONS). ``footprint``:
    "refuse" or "wrap" requests past the end of the drive. ``halves``: True to copy the counters at
    the start of the second half of the commands. ``progress``: function called with the number of
    completed commands and the clock in ps. ``before``: function called before the drive is
    preconditioned, with the number of pages that the commands write and the configuration of the
    drive.

    Raises InputError if the trace has several devices, does not fit on the drive or lacks the
    timestamps of an open loop, if the drive does not have enough spare blocks or becomes full, or
    if the memory is too small. Raises TraceError if a request is larger than the drive.
    """
    cfg = of_replay(cfg)
    trace, notes = fitted(trace, capacity(cfg), footprint)
    cfg, more = partial_pages(trace, cfg)
    commands = Commands(trace, cfg.frontend.max_transfer_bytes, loop)
    if len(commands) > len(trace):
        notes += [
            f"{len(trace)} requests became {len(commands)} commands because of "
            "frontend.max_transfer"
        ]
    arrays = build.build(cfg, devices=1, phases=1, pairs=1, seed=seed)
    tables.check_spare(cfg, Geometry.of(cfg), arrays.cfg)
    accesses = commands.accesses(mapping_unit(cfg))
    filled = None
    if kind == "fill" and touched_fill.rest_is_idle(arrays, cfg, accesses):
        filled = touched_fill.touched_pages(arrays, accesses)
    written = accesses.written_pages()
    check_memory(cfg, kind, len(commands), written, filled)
    if before is not None:
        before(written, cfg)
    apply.precondition(arrays, cfg, kind, seed=seed, accesses=accesses)
    depth = loop.depth if loop.depth is not None else cfg.frontend.queue_depth
    source = Source(commands.chunks(), depth, loop.depth is not None, count=len(commands))
    half = len(commands) // 2 + 1 if halves else None
    done = Player(arrays, cfg, [source]).run(half, progress)
    unknown = done.counters["unmapped_pages"]
    if unknown:
        notes += [f"reads of {unknown} unwritten pages returned zeros without flash access"]
    whole = len(commands) == len(trace)
    return BlockReplayed(
        requests=commands.merged(done.requests[0]),
        done=done,
        half=done.half if whole else None,
        busy=busy(arrays, cfg, done.simulated_ps),
        moved=moved(arrays),
        notes=(*notes, *more),
        config=cfg,
    )


FEWEST_BLOCKS = 16
"""Minimum number of blocks filled by the host in each block unit (die or plane) for a write
amplification that describes the steady state.

The number of free blocks of a unit may differ by one between the start and the end of a run. If the
host fills k blocks per unit, this changes the write amplification by a fraction of up to 1 / k.
"""


def least_pages(cfg: Config, kind: str) -> int:
    """Return the number of pages that a replay must program for the host before its write
    amplification describes the steady state; 0 if the preconditioning ``kind`` is not "steady"."""
    geometry = Geometry.of(cfg)
    return FEWEST_BLOCKS * geometry.units * geometry.block_pages if kind == "steady" else 0


def of_replay(cfg: Config) -> Config:
    """Return ``cfg`` with the changes for a replay: one drive, and no host time per request.

    Block traces are recorded below the page cache, after the host has spent this time. If the user
    has set host.io_submit, its value is kept.
    """
    changes: dict[str, Any] = {"system.devices": 1}
    if cfg.leaf("host.io_submit").source != "set":
        changes["host.io_submit"] = 0
    return cfg.replace(changes, ref="a block trace is recorded below the page cache")


def capacity(cfg: Config) -> int:
    """Return the logical capacity in bytes of a drive with configuration ``cfg``."""
    geometry = Geometry.of(cfg)
    return tables.logical_pages(cfg, geometry) * geometry.page_bytes


def fitted(trace: BlockTrace, size: int, footprint: str) -> tuple[BlockTrace, list[str]]:
    """Return the trace rounded to whole sectors within a drive of ``size`` bytes, and remarks on
    the changes.

    ``footprint``: "refuse" raises InputError if a request extends past the end of the drive; "wrap"
    takes the request's offset modulo ``size``. Raises InputError also if ``footprint`` is unknown
    or the trace has several devices. Raises TraceError if "wrap" is used and a request is larger
    than the drive.
    """
    if footprint not in FOOTPRINTS:
        raise InputError(f"footprint {footprint!r}: use {' or '.join(FOOTPRINTS)}")
    if len(trace.devices) > 1:
        raise InputError(
            f"{trace.source}: contains requests of {len(trace.devices)} devices "
            f"({', '.join(trace.devices[:8])}); select one with "
            "--volume NAME, or concatenate them with --side-by-side"
        )
    known = len(trace.notes)
    trace = whole_sectors(trace)
    if footprint == "wrap":
        trace = block_edit.wrap(trace, size // SECTOR_BYTES * SECTOR_BYTES)
    beyond = trace.offset > size - trace.size
    if beyond.any():
        i = int(np.argmax(beyond))
        raise InputError(
            f"{trace.source}: request {i}: {trace.size[i]} bytes at offset {trace.offset[i]} "
            f"exceed the drive's {size} bytes; use --footprint wrap or a larger drive"
        )
    return trace, list(trace.notes[known:])


def whole_sectors(trace: BlockTrace) -> BlockTrace:
    """Return the trace with reads and writes extended to whole sectors, and with each TRIM shrunk
    to the whole sectors inside it. A TRIM that contains no whole sector is dropped.
    """
    end = trace.offset + trace.size
    odd = (trace.offset % SECTOR_BYTES != 0) | (end % SECTOR_BYTES != 0)
    if not odd.any():
        return trace
    up, down = (
        -(-trace.offset // SECTOR_BYTES) * SECTOR_BYTES,
        trace.offset // SECTOR_BYTES * SECTOR_BYTES,
    )
    trims = trace.op == TRIM
    offset = np.where(trims, up, down)
    end = np.where(trims, end // SECTOR_BYTES, -(-end // SECTOR_BYTES)) * SECTOR_BYTES
    size = np.where(trace.op == FLUSH, 0, end - offset)
    empty = trims & (size <= 0)
    notes = [
        f"{odd.sum()} requests not aligned to sectors of {SECTOR_BYTES} bytes were rounded to "
        "whole sectors"
    ]
    if empty.any():
        notes += [f"{empty.sum()} of these requests, trims of less than a sector, were dropped"]
    columns = replace(trace, offset=offset, size=np.where(empty, SECTOR_BYTES, size))
    return block_edit.take(columns, ~empty, notes=(*trace.notes, *notes))


def partial_pages(trace: BlockTrace, cfg: Config) -> tuple[Config, list[str]]:
    """Return ``cfg``, with ftl.partial_pages set to "sectors" if requests cover parts of pages, and
    remarks on this change.

    With "sectors", a write of part of a page reads the remaining sectors of the old page, and a
    read transfers only the requested sectors from the die. If the user has set ftl.partial_pages,
    its value is kept.
    """
    page, data = mapping_unit(cfg), trace.op <= WRITE
    parts = data & ((trace.offset % page != 0) | (trace.size % page != 0))
    leaf = cfg.leaf("ftl.partial_pages")
    if not parts.any() or leaf.value == "sectors":
        return cfg, []
    count = f"{parts.sum()} requests cover parts of pages of {page} bytes"
    if leaf.source == "set":
        return cfg, [
            f"{count}: processed as whole pages, because ftl.partial_pages is set to whole"
        ]
    changed = cfg.replace({"ftl.partial_pages": "sectors"}, ref="the trace covers parts of pages")
    return changed, [f"{count}; ftl.partial_pages was set to sectors"]


class Commands:
    """NVMe commands of at most ``most`` bytes for the requests of a trace. Raises InputError if
    ``loop`` is open and the trace has no timestamps, or if the speed of ``loop`` is out of range.

    `chunks` splits the requests into commands, and `merged` combines commands into requests.
    """

    def __init__(self, trace: BlockTrace, most: int, loop: Loop) -> None:
        self.trace = trace
        self.most = most
        self.loop = loop
        self.pieces: I64 = np.where(trace.op <= WRITE, -(-trace.size // most), 1)
        """Number of commands of each request, int64[requests]."""
        if loop.depth is None:
            self._check_times()

    def _check_times(self) -> None:
        """Raise InputError if the trace has no timestamps or the speed is out of range."""
        if not self.trace.timed:
            raise InputError(
                f"{self.trace.source}: the trace has no timestamps; use --queue-depth N"
            )
        if not 0 < self.loop.speed < np.inf:
            raise InputError(f"--speed {self.loop.speed}: use a value above 0")
        last = float(self.trace.arrival_ps[-1]) / self.loop.speed
        if last >= NEVER:
            raise InputError(
                f"--speed {self.loop.speed}: the last request would arrive after "
                f"{last / 1e12:.3g} s, beyond the range of the clock; use a larger value"
            )

    def __len__(self) -> int:
        return int(self.pieces.sum())

    def accesses(self, page_bytes: int) -> touched_fill.Accesses:
        """Return the logical pages of ``page_bytes`` that each command accesses. TRIMs count as
        accesses, but FLUSHes do not."""
        data = self.trace.op != FLUSH
        pieces = self.pieces[data]
        rows = np.repeat(np.flatnonzero(data), pieces)
        at = np.arange(len(rows)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        cut = np.repeat(pieces > 1, pieces)
        begin = self.trace.offset[rows] + np.where(cut, at * self.most, 0)
        end = self.trace.offset[rows] + self.trace.size[rows]
        end = np.where(cut, np.minimum(begin + self.most, end), end)
        return touched_fill.Accesses(
            begin // page_bytes, (end - 1) // page_bytes, self.trace.op[rows] == WRITE
        )

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield the NVMe commands in the order of the trace's requests, as arrays REQUEST[n]."""
        step = max(MAX_CHUNK // int(self.pieces.max()), 1)
        for part in self.trace.parts(step):
            yield self._chunk(part)

    def _chunk(self, part: slice) -> np.ndarray:
        trace, pieces = self.trace, self.pieces[part]
        rows = np.repeat(np.arange(len(pieces)), pieces)
        at = np.arange(len(rows)) - (np.cumsum(pieces) - pieces)[rows]
        out = np.zeros(len(rows), REQUEST)
        out["start"] = out["end"] = NOT_YET
        size = trace.size[part][rows]
        cut = pieces[rows] > 1
        out["op"] = trace.op[part][rows]
        out["offset"] = trace.offset[part][rows] + np.where(cut, at * self.most, 0)
        out["size"] = np.where(cut, np.minimum(size - at * self.most, self.most), size)
        out["arrival"] = NOT_YET
        if self.loop.depth is None:
            arrival = trace.arrival_ps[part][rows]
            if self.loop.speed != 1.0:
                arrival = np.rint(arrival / self.loop.speed).astype(np.int64)
            out["arrival"] = arrival
        return out

    def merged(self, done: np.ndarray) -> np.ndarray:
        """Return the requests of the trace, REQUEST[n], from their completed commands ``done``.

        A request starts when the first of its commands starts, and ends when the last of its
        commands ends. If no request was split, the result is ``done`` without a copy.
        """
        if len(done) == len(self.pieces):
            return done
        first = np.cumsum(self.pieces) - self.pieces
        out = done[first]
        out["start"] = np.minimum.reduceat(done["start"], first)
        out["end"] = np.maximum.reduceat(done["end"], first)
        out["status"] = np.maximum.reduceat(done["status"], first)
        out["size"] = self.trace.size
        out["tag"] = np.arange(len(out))
        return out


def busy(arrays: Arrays, cfg: Config, ps: int) -> dict[str, dict[str, float]]:
    """Return the utilization of each resource (such as the dies) as fractions of the simulated time
    ``ps``, by resource name.

    "mean" and "most" are the mean and the maximum over the members of the resource. "collection" is
    the part of "mean" that is due to garbage collection. Resources that were never busy are
    omitted.
    """
    geometry, lanes = Geometry.of(cfg), int(arrays.cfg.lanes[0])
    use = arrays.use.astype(np.float64) / max(ps, 1)
    dies, buses = geometry.dies * lanes, geometry.channels
    stations = use[:, dies + buses :]
    parts = {"dies": use[:, :dies], "channels": use[:, dies : dies + buses]}
    for at, name in enumerate((*stages.HOST_NAMES, *stages.DEVICE_NAMES)):
        parts[name] = stations[:, at : at + 1]
    parts["ECC"] = stations[
        :, stages.HOST_STATIONS + stages.ECC : stages.HOST_STATIONS + stages.ECC + geometry.channels
    ]
    shares = {}
    for name, part in parts.items():
        whole = part.sum(axis=0)
        if whole.any():
            shares[name] = {
                "mean": float(whole.mean()),
                "most": float(whole.max()),
                "collection": float(part[-1].mean()),
            }
    return shares


def moved(arrays: Arrays) -> dict[str, int]:
    """Return the bytes that crossed the channels and each other resource of device 0 (such as its
    DRAM), by name of the resource."""
    sizes = arrays.fifo["size"][stages.HOST_STATIONS :]
    found = {name: int(sizes[at]) for at, name in enumerate(stages.DEVICE_NAMES)}
    return found | {"channels": int(arrays.bus["size_in"].sum() + arrays.bus["size_out"].sum())}
