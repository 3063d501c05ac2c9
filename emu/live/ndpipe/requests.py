"""Requests of NDPipe's Tuner to the stores for features or labels of many photos.

Owns the distribution of photos over stores, and the choice of another store for photos whose store
is dead or cannot read them. Does not own frames (wire.py) or the processing of results (tuner.py).
Source: NDPipe (ASPLOS 2024); copies as in emu/ndpipe/pipeline.py.
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
"""Function that processes the features or labels in a frame and returns the numbers of their
photos."""
SILENCE_S = 120.0
"""Time without a frame from any store after which all stores with open requests count as
dead, s."""


@dataclass
class _Request:
    """Open request to one store. ``waiting``: photos whose results have not been received."""

    store: int
    group: int
    waiting: set[int]


@dataclass
class Requests:
    """Uncompleted requests of the Tuner to the stores.

    ``links``: connections of the live stores; the connection of a dead store is removed.
    ``places``: numbers of the stores that have a photo, by photo number. ``lost``: reason for each
    photo that no live store can read, by photo number. ``deaths``: numbers of the stores that died.
    """

    links: dict[int, Link]
    places: dict[int, tuple[int, ...]]
    lost: dict[int, str] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)
    _open: dict[int, _Request] = field(default_factory=dict)
    _tried: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    _next: int = 0

    def ask(self, kind: Kind, group: int, photos: list[int], **more: Any) -> None:
        """Request the results for each of ``photos`` from the first live store that has the photo
        and has not been asked for it in this group before. If there is no such store, add the photo
        to ``lost``.

        ``kind``: EXTRACT for features or RELABEL for labels. ``group``: number of the group that
        contains the photos. For EXTRACT, a group is the photos of one training run. For RELABEL, it
        is the first (0) or second (1) half of the photos with outdated labels. Requests of several
        groups may be open at the same time. ``more``: additional fields of the frames.
        """
        by_store: dict[int, list[int]] = {}
        for photo in photos:
            tried = self._tried.setdefault((group, photo), set())
            left = [each for each in self.places[photo] if each in self.links and each not in tried]
            if left:
                tried.add(left[0])
                by_store.setdefault(left[0], []).append(photo)
            else:
                self.lost.setdefault(photo, f"photo {photo}: no live store has the photo")
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
        """Receive frames from the stores until all requests of the group ``group`` (see
        :meth:`ask`) have been completed.

        ``take``: function that processes the features or labels in a frame, by group. ``more``:
        additional fields of requests that are sent again to another store. Raises InputError if a
        store refuses a request or sends an invalid frame.
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
        """Process a frame with results, a frame with skipped photos, or the end marker of a
        request. Raises InputError if the frame is a refusal or is invalid."""
        if frame.kind == Kind.REFUSED:
            raise InputError(str(frame.fields["why"]))
        request = self._open.get(frame.fields.get("request", -1))
        if request is None or request.store != store:
            raise InputError(f"store {store}: frame {frame.kind.name} belongs to no open request")
        if frame.kind == Kind.SKIPPED:
            for photo, why in frame.fields["photos"]:
                self.lost[photo] = f"store {store}: {why}"
            return
        if frame.kind != Kind.END:
            photos = take[request.group](frame)
            if not request.waiting.issuperset(photos):
                raise InputError(f"store {store}: sent results of photos that were not requested")
            request.waiting.difference_update(photos)
            return
        del self._open[frame.fields["request"]]
        self._again(request, kind, more)

    def _again(self, request: _Request, kind: Kind, more: dict[str, Any]) -> None:
        """Request the remaining photos of a request from other stores."""
        for photo in request.waiting:
            tried = self._tried[request.group, photo]
            if any(each in self.links and each not in tried for each in self.places[photo]):
                self.lost.pop(photo, None)
        if request.waiting:
            self.ask(kind, request.group, sorted(request.waiting), **more)

    def _die(self, store: int, kind: Kind, more: dict[str, Any]) -> None:
        """Remove a dead store, and request its remaining photos from other stores."""
        if store not in self.links:
            return
        self.links.pop(store).close()
        self.deaths.append(store)
        left = [number for number, each in self._open.items() if each.store == store]
        for request in [self._open.pop(number) for number in left]:
            self._again(request, kind, more)

    def _ready(self) -> list[int]:
        """Return the stores whose connections have data. After SILENCE_S without data, return all
        stores with open requests, and set a timeout with which receiving from them fails."""
        asked = {each.store for each in self._open.values()}
        with selectors.DefaultSelector() as selector:
            for store in asked:
                selector.register(self.links[store].sock, selectors.EVENT_READ, store)
            found = [key.data for key, _ in selector.select(SILENCE_S)]
        for store in asked if not found else ():
            self.links[store].sock.settimeout(0.001)
        return found or sorted(asked)
