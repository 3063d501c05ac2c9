"""Asynchronous events: outstanding requests, pending events, and the changed namespaces.

Owns the matching of events to requests, and the masking of an event type until the host has read
the log page of the event. Does not own the sources of events (admin.py, the transport) or log pages
(log_pages.py).
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
    """Kind of an asynchronous event: event type, event information, and identifier of the log page
    that describes the event."""

    kind: int
    information: int
    log_page: int

    @property
    def dword(self) -> int:
        """Dword 0 of the completion that reports an event of this kind."""
        return self.kind | self.information << 8 | self.log_page << 16


class Event(Enum):
    """Asynchronous events that the controller can report."""

    INVALID_DOORBELL = Kind(0, 0x00, 0x01)
    """The host has written to the doorbell of a queue that does not exist."""
    INVALID_DOORBELL_VALUE = Kind(0, 0x01, 0x01)
    PERSISTENT_INTERNAL_ERROR = Kind(0, 0x03, 0x01)
    """Persistent Internal Error. The controller reports it when the drive has gone offline."""
    RELIABILITY = Kind(1, 0x00, 0x02)
    TEMPERATURE = Kind(1, 0x01, 0x02)
    SPARE = Kind(1, 0x02, 0x02)
    NAMESPACE_ATTRIBUTE = Kind(2, 0x00, 0x04)
    SANITIZE_COMPLETED = Kind(6, 0x01, 0x81)


WARNINGS = {Event.SPARE: 1 << 0, Event.TEMPERATURE: 1 << 1, Event.RELIABILITY: 0b11100}
"""Critical warnings that each event reports, as a bit mask. RELIABILITY reports three warnings:
reliability, read-only, and backup of the volatile memory. The same bits of feature 0Bh enable the
warnings."""
MOST_PENDING = 64
"""Maximum number of events that wait for an Async Event Request. A further event replaces the
oldest waiting event."""


class Events:
    """Outstanding Async Event Requests, pending events and changed namespaces of one controller."""

    def __init__(self) -> None:
        self.requests: deque[int] = deque()
        """Command identifiers of the outstanding requests, oldest first."""
        self.pending: deque[Event] = deque(maxlen=MOST_PENDING)
        self.masked: set[int] = set()
        """Event types that were reported, and whose log page the host has not read since the
        report."""
        self.changed: list[int] = []
        """Namespaces that have changed since the host last read the Changed Namespace List, without
        duplicates."""

    def reset(self) -> None:
        """Drop all requests and pending events, unmask all event types, and clear the list of
        changed namespaces, because the controller is reset."""
        self.requests.clear()
        self.pending.clear()
        self.masked.clear()
        self.changed.clear()

    def change(self, nsid: int) -> None:
        """Add namespace ``nsid`` to the list of changed namespaces."""
        if nsid not in self.changed:
            self.changed.append(nsid)

    def request(self, cid: int) -> list[Cqe]:
        """Accept the Async Event Request with command identifier ``cid``; return the completions of
        the Async Event Requests that pending events complete. Raises Refused if the maximum number
        of Async Event Requests is outstanding."""
        if len(self.requests) >= EVENTS:
            raise Refused(Code.EVENT_LIMIT)
        self.requests.append(cid)
        return self._complete()

    def occur(self, event: Event) -> list[Cqe]:
        """Report ``event``, which the host must have enabled. Return the completions of the
        Asynchronous Event Requests that report pending events."""
        if event not in self.pending:
            self.pending.append(event)
        return self._complete()

    def clear(self, log_page: int) -> list[Cqe]:
        """Unmask the event types whose log page is ``log_page``; return the completions of the
        Async Event Requests that pending events complete. The caller calls this method if the host
        has read the log page without Retain Asynchronous Event."""
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
