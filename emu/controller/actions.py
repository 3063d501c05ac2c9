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
    """Stop fetching commands from I/O submission queue ``queue``, and remove this queue. Commands
    in the queue that were not fetched are not executed."""
    MAP_DOORBELLS = "map doorbell buffers"
    FLUSH = "flush"
    """Send the command FLUSH to the drive and wait for its completion."""
    DEALLOCATE = "deallocate"
    """Wait until all commands that access the ``size`` bytes of the drive starting at byte
    ``first`` have ended. Then send the drive TRIM for these bytes, followed by FLUSH."""
    ERASE = "erase"
    """Deallocate the ``size`` bytes of the drive starting at byte ``first``, and erase all flash
    blocks that hold old versions of these bytes."""
    SANITIZE = "sanitize"
    """Erase all data of the drive, including data in its caches; then call Controller.sanitized.
    The transport posts the completion of the Sanitize command before the erasure ends."""
    REGISTER_HOST = "register host"
    """Register the host identifier ``host`` that the host has set with Set Features."""


class Action(NamedTuple):
    """Request of a controller to its transport: an action and the arguments of the action. An
    argument that the action does not use has its default value."""

    do: Do
    queue: int = 0
    """Identifier of the I/O queue to create or delete."""
    completion_queue: int = 0
    base: int = 0
    """Address in host memory of the queue to create, or of the page with the shadow doorbells."""
    event_base: int = 0
    """Address in host memory of the page with the event indexes of the shadow doorbells."""
    entries: int = 0
    vector: int = -1
    """Interrupt vector of the completion queue to create, or -1 if the interrupts of the queue are
    disabled."""
    priority: int = 0
    first: int = 0
    """First byte of the range of the drive that the action affects."""
    size: int = 0
    """Size of the range of the drive that the action affects, or of each of the two pages for
    shadow doorbells, bytes."""
    abrupt: bool = False
    host: bytes = b""
