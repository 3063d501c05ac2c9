"""Replay of host requests on a drive, with the start and end time of each request.

Owns loading queue pairs from sources of requests, and collecting completed requests. Does not own
the sources (mqsim/, block_trace.py), the drive (engine/run/loop.py) or statistics (statistics.py).
Source: closed loops keep a number of requests outstanding, open loops issue requests at their
arrival time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.core.conservation import Place, check_laws
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.run import loop as dispatch
from ondie.emu.engine.run.errors import raise_error, raise_full
from ondie.emu.ftl.invariants import check_between_events
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme import queue_pair as pairs
from ondie.emu.nvme.request import READ, REQUEST, WRITE

EVENTS_PER_CALL = 1 << 22
COPIED = ("arrival", "offset", "size", "op", "stream")


@dataclass
class Source:
    """Requests for one queue pair.

    ``depth``: largest number outstanding; ``closed``: a request arrives when there is room,
    otherwise at its arrival time. ``chunks``: REQUEST[n], arrivals in order.
    """

    chunks: Iterator[np.ndarray]
    depth: int
    closed: bool
    start_ps: int = 0
    stop_ps: int = NEVER
    stream: int = 0
    device: int = 0


@dataclass
class Replayed:
    """Result of a replay.

    ``requests``: REQUEST[n] per source, in its order, those that were issued. ``counters`` by name
    (counters.COUNTERS), ``half``: the counters at the requested completion. ``loop_s``: wall time
    of the event loop alone, ``loop_cpu_s``: its processor time; ``warmed_s``: wall time of
    compiling the loop, or loading it from the cache, beforehand.
    """

    requests: list[np.ndarray]
    counters: dict[str, int]
    half: dict[str, int] | None
    simulated_ps: int
    events: int
    loop_s: float
    loop_cpu_s: float
    warmed_s: float


class Player:
    """Runs sources on a drive described by ``arrays``, built with one queue pair per source."""

    def __init__(self, arrays: Arrays, cfg: Config, sources: Sequence[Source]) -> None:
        if len(arrays.pair) != len(sources):
            raise ValueError(f"{len(sources)} sources for {len(arrays.pair)} queue pairs")
        self.arrays = arrays
        self.cfg = cfg
        self.state = arrays.handle()
        self.sources = list(sources)
        self.ring = int(arrays.cfg.ring[0])
        self.seen = [0] * len(sources)  # requests collected so far
        self.ahead: list[np.ndarray | None] = [None] * len(sources)
        self.done = [np.zeros(0, REQUEST) for _ in sources]  # collected requests, and spare room
        self.loop_s = self.loop_cpu_s = 0.0
        for number, source in enumerate(sources):
            pair = arrays.pair[number : number + 1]
            pair["depth"], pair["closed"] = source.depth, source.closed
            pair["start"], pair["stop"] = source.start_ps, source.stop_ps
            pair["stream"], pair["dev"] = source.stream, source.device
            pair["more"] = 1

    def run(
        self,
        half: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Replayed:
        """Run to the end. ``half``: copy the counters when that many requests are done.

        ``progress`` is called with the number of requests done and the clock in ps. Raises
        InputError for a full drive, or a request past its end; Imbalance if a conservation law
        fails.
        """
        reg = self.arrays.reg
        copied = None
        warmed_s = self._warm()
        self.feed()
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        while True:
            room = EVENTS_PER_CALL
            if half is not None and copied is None:
                left = half - int(self.arrays.count[:, stats.COMMANDS_DONE].sum())
                if left <= 0:
                    copied = self._counters()
                else:  # a completion takes at least one event
                    room = min(room, left)
            reason = dispatch.run(self.state, NEVER - 1, room, 0)
            raise_error(self.arrays, self.cfg)
            self.loop_s += time.perf_counter() - begin
            self.loop_cpu_s += time.thread_time() - begin_cpu
            self.collect()
            if progress is not None:
                progress(sum(self.seen), int(reg["now"][0]))
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            if reg["thirsty"][0]:
                self.feed()
            elif reason == 0:
                break
        self._check()
        return Replayed(
            self.requests(),
            self._counters(),
            copied,
            int(reg["now"][0]),
            int(reg["events"][0]),
            self.loop_s,
            self.loop_cpu_s,
            warmed_s,
        )

    def _warm(self) -> float:
        """Compile the event loop by a run without events. Return the seconds that this took."""
        begin = time.perf_counter()
        dispatch.run(self.state, -1, 0, 0)
        for source in range(len(self.sources)):
            pairs.issue(self.state, source)
        self.arrays.reg["thirsty"] = 0
        return time.perf_counter() - begin

    def feed(self) -> None:
        """Load requests, as many as there is room for, and issue those that may be issued now."""
        self.arrays.reg["thirsty"] = 0
        for source in range(len(self.sources)):
            self._load(source)
            pairs.issue(self.state, source)

    def end(self) -> None:
        """Stop issuing requests."""
        self.arrays.pair["more"] = 0
        self.arrays.pair["stop"] = np.minimum(self.arrays.pair["stop"], self.arrays.reg["now"][0])

    def _load(self, source: int) -> None:
        """Load as many requests as the ring of pair ``source`` takes."""
        pair = self.arrays.pair
        while pair["more"][source]:
            room = self.ring - int(pair["loaded"][source] - pair["tail"][source])
            if room == 0:
                return
            chunk = self.ahead[source]
            if chunk is None or not len(chunk):
                chunk = next(self.sources[source].chunks, None)
                if chunk is None:
                    pair["more"][source] = 0
                    return
            part, self.ahead[source] = chunk[:room], chunk[room:]
            place = source * self.ring + (
                (int(pair["loaded"][source]) + np.arange(len(part))) & (self.ring - 1)
            )
            for name in COPIED:
                self.arrays.req[name][place] = part[name]
            self.arrays.req["done"][place] = 0
            self.arrays.req["status"][place] = 0
            pair["loaded"][source] += len(part)

    def collect(self) -> None:
        """Collect the requests that are done."""
        for source in range(len(self.sources)):
            self._collect(source)

    def _collect(self, source: int) -> None:
        """Collect the requests of pair ``source`` that are done, up to the oldest that is not."""
        tail = int(self.arrays.pair["tail"][source])
        if tail == self.seen[source]:
            return
        if tail > len(self.done[source]):  # resize remaps pages instead of copying bytes
            self.done[source].resize(tail + tail // 8 + self.ring, refcheck=False)
        place = source * self.ring + (np.arange(self.seen[source], tail) & (self.ring - 1))
        out = self.done[source][self.seen[source] : tail]
        for name in (*COPIED, "start", "end", "status"):
            out[name] = self.arrays.req[name][place]
        out["tag"] = np.arange(self.seen[source], tail)
        self.seen[source] = tail

    def requests(self) -> list[np.ndarray]:
        """Return REQUEST[n] per source: those collected so far."""
        return [done[:count] for done, count in zip(self.done, self.seen, strict=True)]

    def _counters(self) -> dict[str, int]:
        total = self.arrays.count.sum(axis=0)
        total[stats.GATHERED_MOST] = self.arrays.count[:, stats.GATHERED_MOST].max()
        return {name: int(values) for name, values in zip(stats.COUNTERS, total, strict=True)}

    def _check(self) -> None:
        """Check the conservation laws when no event is left. Raises Imbalance or InputError."""
        outstanding = int(self.arrays.pair["outstanding"].sum())
        if outstanding or self.arrays.cache["flying"].any():
            raise_full(self.arrays, self.cfg)
        done = self.requests()
        sizes = {
            op: sum(int(each_pass["size"][each_pass["op"] == op].sum()) for each_pass in done)
            for op in (READ, WRITE)
        }
        quantities = {
            **self._counters(),
            "outstanding_commands": outstanding,
            "controller_ecc": 0,
            "cache_flying_pages": int(self.arrays.cache["flying"].sum()),
            "transactions_in_flight": len(self.arrays.txn) - int(self.arrays.reg["txns_free"][0]),
            "submitted_commands": sum(map(len, done)),
            "planned_link_up_bytes": sizes[READ],
            "planned_link_down_bytes": sizes[WRITE],
        }
        check_laws(Place.REPLAY, quantities)
        check_between_events(self.arrays, Geometry.of(self.cfg))
