"""Asynchronous events: outstanding requests, pending events, and the changed namespaces.

Owns which event completes which request, and the masking of a type until its log page was read.
Does not own the occurrence of events (admin.py, the transport) or log pages (log_pages.py).
Source: NVM Express Base Specification 2.0, section 5.2 and figure "Asynchronous Event Request -
Completion Queue Entry Dword 0".
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from ondie.emu.controller.identify_controller import EVENTS
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.nvme.wire import Cqe


class Kind(NamedTuple):
    """Event: type, information and log page that describes it."""

    kind: int
    information: int
    log_page: int

    @property
    def dword(self) -> int:
        """Dword 0 of the completion."""
        return self.kind | self.information << 8 | self.log_page << 16


class Event(Enum):
    """Asynchronous events of the controller."""

    INVALID_DOORBELL = Kind(0, 0x00, 0x01)
    """A host wrote a doorbell of a queue that does not exist."""
    INVALID_DOORBELL_VALUE = Kind(0, 0x01, 0x01)
    PERSISTENT_INTERNAL_ERROR = Kind(0, 0x03, 0x01)
    """Persistent Internal Error: the drive has gone offline."""
    RELIABILITY = Kind(1, 0x00, 0x02)
    TEMPERATURE = Kind(1, 0x01, 0x02)
    SPARE = Kind(1, 0x02, 0x02)
    NAMESPACE_ATTRIBUTE = Kind(2, 0x00, 0x04)
    SANITIZE_COMPLETED = Kind(6, 0x01, 0x81)


WARNINGS = {Event.SPARE: 1 << 0, Event.TEMPERATURE: 1 << 1, Event.RELIABILITY: 0b11100}
"""Critical warnings that an event reports: spare, temperature; reliability, read-only and backup of
the volatile memory. The same bits of feature 0Bh enable it for each of them."""
MOST_PENDING = 64
"""Events that wait for a request; the oldest is dropped."""


class Events:
    """Async Event Requests and events of one controller."""

    def __init__(self) -> None:
        self.requests: deque[int] = deque()
        """Command identifiers of outstanding requests."""
        self.pending: deque[Event] = deque(maxlen=MOST_PENDING)
        self.masked: set[int] = set()
        """Types that were reported and whose log page was not read since."""
        self.changed: list[int] = []
        """Namespaces that have changed since the Changed Namespace List was read, each once."""

    def reset(self) -> None:
        """Forget requests and events: the controller was reset."""
        self.requests.clear()
        self.pending.clear()
        self.masked.clear()
        self.changed.clear()

    def change(self, nsid: int) -> None:
        """Add a namespace to those that have changed."""
        if nsid not in self.changed:
            self.changed.append(nsid)

    def request(self, cid: int) -> list[Cqe]:
        """Take a request; return the completions that follow. Raises Refused: too many."""
        if len(self.requests) >= EVENTS:
            raise Refused(Code.EVENT_LIMIT)
        self.requests.append(cid)
        return self._complete()

    def occur(self, event: Event) -> list[Cqe]:
        """Report an event that the host has enabled; return the completions that follow."""
        if event not in self.pending:
            self.pending.append(event)
        return self._complete()

    def clear(self, log_page: int) -> list[Cqe]:
        """Unmask the event types of a log page that the host has read without Retain Asynchronous
        Event; return the completions that follow."""
        self.masked -= {event.value.kind for event in Event if event.value.log_page == log_page}
        if log_page == Event.NAMESPACE_ATTRIBUTE.value.log_page:
            self.changed.clear()
        return self._complete()

    def _complete(self) -> list[Cqe]:
        out = []
        for event in list(self.pending):
            if self.requests and event.value.kind not in self.masked:
                self.pending.remove(event)
                self.masked.add(event.value.kind)
                out.append(Cqe(self.requests.popleft(), dw0=event.value.dword))
        return out
