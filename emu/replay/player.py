"""Replay of host requests on a drive, with the start and end time of each request.

Owns the loading of requests into queue pairs, the collection of completed requests, and the checks
of a finished replay. Does not own the sources (mqsim/, block_trace.py), the event loop
(engine/run/driver.py) or statistics (statistics.py).
Source: MQSim's host model: a closed loop keeps a number of requests outstanding, and an open loop
issues requests at their arrival times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.core import counters
from ondie.emu.engine.core.conservation import Place, check_laws
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.run.driver import Driver
from ondie.emu.ftl.invariants import check_between_events
from ondie.emu.nvme import queue_pair
from ondie.emu.nvme.request import READ, REQUEST, WRITE

COPIED = ("arrival", "offset", "size", "op", "stream")


@dataclass
class Source:
    """Source of the host requests of one queue pair.

    ``chunks``: arrays REQUEST[n], in the order of arrival. ``depth``: maximum number of outstanding
    requests. ``closed``: if True, a request arrives as soon as fewer than ``depth`` requests are
    outstanding; if False, it arrives at its arrival time. No request is issued before ``start_ps``
    or after ``stop_ps``. ``count``: expected number of requests, for which memory is reserved.
    """

    chunks: Iterator[np.ndarray]
    depth: int
    closed: bool
    start_ps: int = 0
    stop_ps: int = NEVER
    stream: int = 0
    device: int = 0
    count: int = 0


@dataclass
class Replayed:
    """Result of a replay.

    ``requests``: issued requests of each source, REQUEST[n], in the order of the source.
    ``counters``: counters by name (counters.COUNTERS). ``half``: the counters at the completion
    whose number was passed to :meth:`Player.run`, or None. ``loop_s``, ``loop_cpu_s``: wall time
    and CPU time of the event loop. ``warmed_s``: wall time of compiling the loop, or of loading it
    from the cache. ``unserved``: numbers of issued reads and writes of each source that never
    completed; nonzero only if the run was allowed to stall.
    """

    requests: list[np.ndarray]
    counters: dict[str, int]
    half: dict[str, int] | None
    simulated_ps: int
    events: int
    loop_s: float
    loop_cpu_s: float
    warmed_s: float
    unserved: list[tuple[int, int]]


class RequestFeed:
    """Loader of requests from sources into the queue pairs of a drive, and collector of the
    completed requests.

    ``arrays``: state of the drive, which has one queue pair for each source. ``state``: the engine
    state that Driver holds. Raises ValueError if the numbers of sources and queue pairs differ.
    """

    def __init__(self, arrays: Arrays, state: Any, sources: Sequence[Source]) -> None:
        if len(arrays.pair) != len(sources):
            raise ValueError(
                f"{len(sources)} sources for {len(arrays.pair)} queue pairs: must be one source "
                "per queue pair"
            )
        self.arrays = arrays
        self.state = state
        self.sources = list(sources)
        self.ring = int(arrays.cfg.ring[0])
        self.collected = [0] * len(sources)
        """Number of requests collected so far, by source."""
        self._rest: list[np.ndarray | None] = [None] * len(sources)  # of a chunk loaded in part
        self._done = [np.full(source.count, np.zeros((), REQUEST)) for source in sources]
        """Collected requests of each source, followed by spare entries."""
        for number, source in enumerate(sources):
            pair = arrays.pair[number : number + 1]
            pair["depth"], pair["closed"] = source.depth, source.closed
            pair["start"], pair["stop"] = source.start_ps, source.stop_ps
            pair["stream"], pair["dev"] = source.stream, source.device
            pair["more"] = 1

    @property
    def drained(self) -> bool:
        """True if a queue pair has issued all requests loaded from its source and the source may
        have more."""
        return bool(self.arrays.reg["pause"][0])

    @property
    def exhausted(self) -> bool:
        """True if all requests of all sources have been loaded."""
        return not self.arrays.pair["more"].any()

    def issue(self) -> None:
        """Issue all loaded requests that can be issued at the current simulated time, from all
        queue pairs."""
        self.arrays.reg["pause"] = 0
        for source in range(len(self.sources)):
            queue_pair.issue(self.state, source)

    def load(self) -> None:
        """Load as many requests as fit in the rings of the queue pairs, and issue the requests that
        can be issued now."""
        for source in range(len(self.sources)):
            self._load(source)
        self.issue()

    def end(self) -> None:
        """Stop issuing requests of all queue pairs at the current simulated time."""
        self.arrays.pair["more"] = 0
        self.arrays.pair["stop"] = np.minimum(self.arrays.pair["stop"], self.arrays.reg["now"][0])

    def _load(self, source: int) -> None:
        """Load as many requests as fit in the ring of queue pair ``source``."""
        pair = self.arrays.pair
        while pair["more"][source]:
            room = self.ring - int(pair["loaded"][source] - pair["tail"][source])
            if room == 0:
                return
            chunk = self._rest[source]
            if chunk is None or not len(chunk):
                chunk = next(self.sources[source].chunks, None)
                if chunk is None:
                    pair["more"][source] = 0
                    return
            part, self._rest[source] = chunk[:room], chunk[room:]
            for place, at in self._places(source, int(pair["loaded"][source]), len(part)):
                requests = self.arrays.req[place]
                for name in COPIED:
                    requests[name] = part[name][at]
                requests["done"] = 0
                requests["status"] = 0
            pair["loaded"][source] += len(part)

    def _places(self, source: int, first: int, count: int) -> Iterator[tuple[slice, slice]]:
        """Yield pairs of a slice of the request table and the matching slice of 0 to ``count`` - 1,
        for requests ``first`` to ``first`` + ``count`` - 1 of queue pair ``source``. There are two
        pairs if the ring wraps."""
        done = 0
        while done < count:
            at = (first + done) & (self.ring - 1)
            part = min(count - done, self.ring - at)
            yield (
                slice(source * self.ring + at, source * self.ring + at + part),
                slice(done, done + part),
            )
            done += part

    def collect(self) -> None:
        """Collect the completed requests of all queue pairs."""
        for source in range(len(self.sources)):
            self._collect(source)

    def _collect(self, source: int) -> None:
        """Collect the completed requests of queue pair ``source`` that precede the oldest
        outstanding request."""
        tail = int(self.arrays.pair["tail"][source])
        if tail == self.collected[source]:
            return
        if tail > len(self._done[source]):  # resize remaps pages instead of copying bytes
            self._done[source].resize(tail + tail // 8 + self.ring, refcheck=False)
        out = self._done[source][self.collected[source] : tail]
        for place, at in self._places(source, self.collected[source], len(out)):
            requests = self.arrays.req[place]
            for name in (*COPIED, "start", "end", "status"):
                out[name][at] = requests[name]
        out["tag"] = np.arange(self.collected[source], tail)
        self.collected[source] = tail

    def give_up(self) -> list[tuple[int, int]]:
        """Collect all completed requests, including those issued after an outstanding request, and
        return the numbers of outstanding reads and writes of each source.

        Call this method once, at the end of a run with requests that never complete.
        """
        self.collect()
        left = []
        for source in range(len(self.sources)):
            pair = self.arrays.pair[source : source + 1]
            issued = np.arange(int(pair["tail"][0]), int(pair["next"][0]))
            place = source * self.ring + (issued & (self.ring - 1))
            done = self.arrays.req["done"][place] != 0
            waiting, place, count = place[~done], place[done], self.collected[source]
            self._done[source].resize(count + len(place), refcheck=False)
            out = self._done[source][count:]
            for name in (*COPIED, "start", "end", "status"):
                out[name] = self.arrays.req[name][place]
            out["tag"] = issued[done]
            self.collected[source] += len(place)
            reads = self.arrays.req["op"][waiting] == READ
            left.append((int(reads.sum()), int((~reads).sum())))
        return left

    def requests(self) -> list[np.ndarray]:
        """Return the requests collected so far, REQUEST[n] for each source."""
        return [done[:count] for done, count in zip(self._done, self.collected, strict=True)]


class Player(Driver):
    """Simulation of a drive that processes requests from one or more sources.

    ``arrays``: state of the drive, built with one queue pair for each source.
    """

    def __init__(self, arrays: Arrays, cfg: Config, sources: Sequence[Source]) -> None:
        super().__init__(cfg, arrays)
        self.feed = RequestFeed(arrays, self.state, sources)
        self._half: int | None = None
        self._half_counters: dict[str, int] | None = None
        self._progress: Callable[[int, int], None] | None = None

    def run(
        self,
        half: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        *,
        may_stall: bool = False,
    ) -> Replayed:
        """Simulate until all requests are done, and return the result.

        ``half``: number of completions at which the counters are copied. ``progress``: function
        that is called with the number of completed requests and the clock in ps. ``may_stall``:
        True to allow the run to end while requests wait for a mapping entry, or for a free block
        that garbage collection never provides; the result then has only the completed requests.
        Raises InputError if the drive is full or a request extends past its end. Raises Imbalance
        if a conservation law fails.
        """
        self._half, self._progress = half, progress
        warmed_s = self.warm_up()
        self.feed.load()
        self.run_until()
        unserved = [(0, 0)] * len(self.feed.sources)
        stalled = (self.arrays.pool.stall_head >= 0).any() or self.arrays.reg["turnless"].any()
        stalled = stalled or (self.arrays.tpage["lost_first"] > 0).any()
        if may_stall and stalled:
            unserved = self.feed.give_up()
        else:
            self._check()
        return Replayed(
            self.feed.requests(),
            self._counters(),
            self._half_counters,
            self.now,
            self.events,
            self.loop_s,
            self.loop_cpu_s,
            warmed_s,
            unserved,
        )

    def supply(self) -> bool:
        """Load more requests if a queue pair has issued all its loaded requests. Return True if
        that was the case.

        Also copy the counters once ``half`` requests have completed (see :meth:`run`).
        """
        drained = self.feed.drained
        if drained:
            self.feed.load()
        self.arrays.reg["closing"] = int(self.feed.exhausted)
        if self._half is not None and self._half_counters is None and self._left_to_half() <= 0:
            self._half_counters = self._counters()
        return drained

    def batch_limit(self) -> int:
        """Return the maximum number of events to handle before :meth:`supply` is called again.

        If the counters are to be copied after ``half`` completions (see :meth:`run`), the limit is
        at most the number of completions that remain until then, because each completion takes at
        least one event.
        """
        if self._half is None or self._half_counters is not None:
            return super().batch_limit()
        return min(super().batch_limit(), self._left_to_half())

    def _left_to_half(self) -> int:
        """Return the number of completions until the counters must be copied."""
        assert self._half is not None
        return self._half - int(self.arrays.count[:, counters.COMMANDS_DONE].sum())

    def report(self) -> None:
        """Collect completed requests and report their number and the simulated time to the progress
        callback."""
        self.feed.collect()
        if self._progress is not None:
            self._progress(sum(self.feed.collected), self.now)

    def warm_up(self) -> float:
        """Compile the event loop and the code that issues requests, or load them from the cache.
        Return the wall time for this, s."""
        begin = time.perf_counter()
        super().warm_up()
        self.feed.issue()
        return time.perf_counter() - begin

    def _counters(self) -> dict[str, int]:
        """Return the counters by name, summed over all devices; GATHERED_MOST is the maximum over
        all devices."""
        total = self.arrays.count.sum(axis=0)
        total[counters.GATHERED_MOST] = self.arrays.count[:, counters.GATHERED_MOST].max()
        return {name: int(values) for name, values in zip(counters.COUNTERS, total, strict=True)}

    def _check(self) -> None:
        """Check the conservation laws after the last event. Raises Imbalance if a law fails, and
        InputError as :meth:`run` does."""
        self.check_finished()
        done = self.feed.requests()
        sizes = {
            op: sum(int(each["size"].sum(where=each["op"] == op)) for each in done)
            for op in (READ, WRITE)
        }
        quantities = {
            **self._counters(),
            "outstanding_commands": int(self.arrays.pair["outstanding"].sum()),
            "controller_ecc": 0,
            "cache_flying_pages": int(self.arrays.cache["flying"].sum()),
            "transactions_in_flight": self.transactions_in_flight,
            "submitted_commands": sum(map(len, done)),
            "planned_link_up_bytes": sizes[READ],
            "planned_link_down_bytes": sizes[WRITE],
        }
        check_laws(Place.REPLAY, quantities)
        check_between_events(self.arrays, self.geometry)
