"""Actions that a controller requests from its transport: their names and arguments.

Owns the records of actions. Does not own the choice of actions (registers.py, admin.py) or their
execution (the transport and the drive).
Source: NVM Express Base Specification 2.0, sections 3.3 (queues), 3.5 (initialization), 3.6
(shutdown) and 3.7 (resets).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Do(Enum):
    """Actions that a transport performs for a controller. The transport performs the actions of one
    reply in order."""

    ENABLE = "enable"
    """Map the admin queues; then call Registers.enabled, or Registers.fail if the host has no
    memory at the addresses of the admin queues."""
    RESET = "reset"
    """Stop fetching commands, drop all I/O queues and doorbell buffers, and wait until no command
    accesses host memory; then call Controller.disabled."""
    SHUT_DOWN = "shut down"
    """Flush the drive unless ``abrupt`` is set. In both cases, then call Registers.shut_down."""
    SUBSYSTEM_RESET = "subsystem reset"
    """Reset all controllers of the drive; then call Controller.subsystem_reset."""
    CREATE_CQ = "create completion queue"
    CREATE_SQ = "create submission queue"
    DELETE_CQ = "delete completion queue"
    DELETE_SQ = "delete submission queue"
    """Stop fetching commands from the queue, and remove the queue. Commands in the queue that were
    not fetched are not executed."""
    MAP_DOORBELLS = "map doorbell buffers"
    FLUSH = "flush"
    """Send FLUSH to the drive and wait for its completion."""
    DEALLOCATE = "deallocate"
    """Wait until all commands that access the ``size`` bytes starting at byte ``first`` have ended.
    Then send TRIM for these bytes, then FLUSH."""
    ERASE = "erase"
    """Deallocate the ``size`` bytes starting at byte ``first``, and erase all blocks that hold old
    versions of these bytes."""
    SANITIZE = "sanitize"
    """Erase all data of the drive, including data in its caches; then call Controller.sanitized.
    The transport posts the reply before the erasure ends."""
    REGISTER_HOST = "register host"
    """Register the host identifier ``host`` that the host has set with Set Features."""


class Action(NamedTuple):
    """Action with its arguments. An argument that the action does not use has its default
    value."""

    do: Do
    queue: int = 0
    """Identifier of the queue."""
    completion_queue: int = 0
    base: int = 0
    """Address of the queue, or of the shadow doorbells, in host memory."""
    event_base: int = 0
    """Address of the event indexes of the doorbells."""
    entries: int = 0
    vector: int = -1
    """Interrupt vector, or -1 if the interrupts of the queue are disabled."""
    priority: int = 0
    first: int = 0
    """First byte of the affected range of the drive."""
    size: int = 0
    """Size of the affected range, or of a page of shadow doorbells, bytes."""
    abrupt: bool = False
    host: bytes = b""
