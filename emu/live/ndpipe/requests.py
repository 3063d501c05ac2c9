"""Requests of the Tuner for many photos: the store that handles each photo, and the results.

Owns the distribution of photos over stores, and the other place of photos whose store is dead or
cannot read them. Does not own frames (wire.py) or the use of results (tuner.py). Source:
NDPipe (ASPLOS 2024); copies as in emu/ndpipe/pipeline.py.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ondie.emu.live.ndpipe.wire import Frame, Kind, Link, LinkLost
from ondie.emu.units import InputError

Take = Callable[[Frame], list[int]]
"""Function that processes the results of a frame and returns the photos that they belong to."""
SILENCE_S = 120.0
"""After this number of seconds without a frame, all stores that are waited for count as dead."""


@dataclass
class _Request:
    """Photos that one store was asked for and that have not come back yet."""

    store: int
    group: int
    waiting: set[int]


@dataclass
class Requests:
    """Open requests. ``links``: connections of live stores; that of a dead one is removed.

    ``places``: stores that have a photo. ``lost``: photos that no live store can read, with the
    reason. ``deaths``: numbers of the stores that died.
    """

    links: dict[int, Link]
    places: dict[int, tuple[int, ...]]
    lost: dict[int, str] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)
    _open: dict[int, _Request] = field(default_factory=dict)
    _tried: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    _next: int = 0

    def ask(self, kind: Kind, group: int, photos: list[int], **more: Any) -> None:
        """Send a request for each photo to its first live store. ``group``: number of the run;
        frames of several groups may be open."""
        by_store: dict[int, list[int]] = {}
        for photo in photos:
            tried = self._tried.setdefault((group, photo), set())
            left = [each for each in self.places[photo] if each in self.links and each not in tried]
            if left:
                tried.add(left[0])
                by_store.setdefault(left[0], []).append(photo)
            else:
                self.lost.setdefault(photo, f"photo {photo}: no live store has it")
        for store, chosen in by_store.items():
            number, self._next = self._next, self._next + 1
            request = self._open[number] = _Request(store, group, set(chosen))
            if store not in self.links:  # it died at a request of this loop
                self._again(self._open.pop(number), kind, more)
                continue
            body = np.array(sorted(request.waiting), "<u8").tobytes()
            try:
                self.links[store].send(kind, body, request=number, **more)
            except LinkLost:
                self._die(store, kind, more)

    def collect(self, kind: Kind, group: int, take: dict[int, Take], **more: Any) -> None:
        """Receive frames until all requests of ``group`` have ended. ``take``: function for the
        results, by group. ``more``: fields of requests that are sent again, to another store.

        Raises InputError if a store refuses the request itself.
        """
        while any(each.group == group for each in self._open.values()):
            for store in self._ready():
                if store not in self.links:
                    continue
                try:
                    frame = self.links[store].receive()
                except LinkLost:
                    self._die(store, kind, more)
                    continue
                self._handle(store, frame, kind, take, more)

    def _handle(
        self, store: int, frame: Frame, kind: Kind, take: dict[int, Take], more: dict[str, Any]
    ) -> None:
        """Take a frame with results or the end marker of a request."""
        if frame.kind == Kind.REFUSED:
            raise InputError(str(frame.fields["why"]))
        request = self._open.get(frame.fields.get("request", -1))
        if request is None or request.store != store:
            raise InputError(f"store {store}: a frame {frame.kind.name} belongs to no request")
        if frame.kind == Kind.SKIPPED:
            for photo, why in frame.fields["photos"]:
                self.lost[photo] = f"store {store}: {why}"
            return
        if frame.kind != Kind.END:
            photos = take[request.group](frame)
            if not request.waiting.issuperset(photos):
                raise InputError(f"store {store}: sent photos that were not requested")
            request.waiting.difference_update(photos)
            return
        del self._open[frame.fields["request"]]
        self._again(request, kind, more)

    def _again(self, request: _Request, kind: Kind, more: dict[str, Any]) -> None:
        """Ask other places for what a request has left."""
        for photo in request.waiting:
            tried = self._tried[request.group, photo]
            if any(each in self.links and each not in tried for each in self.places[photo]):
                self.lost.pop(photo, None)
        if request.waiting:
            self.ask(kind, request.group, sorted(request.waiting), **more)

    def _die(self, store: int, kind: Kind, more: dict[str, Any]) -> None:
        """Give what a dead store has left to other places."""
        if store not in self.links:
            return
        self.links.pop(store).close()
        self.deaths.append(store)
        left = [number for number, each in self._open.items() if each.store == store]
        for request in [self._open.pop(number) for number in left]:
            self._again(request, kind, more)

    def _ready(self) -> list[int]:
        """Return stores of which something has arrived; after SILENCE_S, all that are waited
        for, whose reception then fails."""
        asked = {each.store for each in self._open.values()}
        with selectors.DefaultSelector() as selector:
            for store in asked:
                selector.register(self.links[store].sock, selectors.EVENT_READ, store)
            found = [key.data for key, _ in selector.select(SILENCE_S)]
        for store in asked if not found else ():
            self.links[store].sock.settimeout(0.001)
        return found or sorted(asked)
