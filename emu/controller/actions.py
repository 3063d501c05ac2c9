"""Actions that a controller requests of its transport: their names and arguments.

Owns the records. Does not own the decisions (registers.py, admin.py) or the execution (the
transport and the drive).
Source: NVM Express Base Specification 2.0, sections 3.3 (queues), 3.5 (initialization), 3.6
(shutdown) and 3.7 (resets).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Do(Enum):
    """Action. The transport performs the actions of one reply in order."""

    ENABLE = "enable"
    """Map the admin queues; then call Registers.enabled, or Registers.fail if their memory does not
    exist."""
    RESET = "reset"
    """Stop fetching, drop all I/O queues and doorbell buffers, wait until no command touches host
    memory; then call Controller.disabled."""
    SHUT_DOWN = "shut down"
    """Complete a FLUSH of the drive, unless ``abrupt``, and prepare it for a clean start; then call
    Registers.shut_down."""
    SUBSYSTEM_RESET = "subsystem reset"
    """Reset all controllers of the drive; then call Controller.subsystem_reset."""
    CREATE_CQ = "create completion queue"
    CREATE_SQ = "create submission queue"
    DELETE_CQ = "delete completion queue"
    DELETE_SQ = "delete submission queue"
    """Stop fetching; end commands outside of the drive with SQ_DELETED, wait for the others."""
    MAP_DOORBELLS = "map doorbell buffers"
    FLUSH = "flush"
    """Complete a FLUSH of the drive."""
    DEALLOCATE = "deallocate"
    """Wait for commands to the bytes ``first`` to ``first + size``, and TRIM them."""
    ERASE = "erase"
    """Deallocate the bytes and erase all blocks that hold an old version of them."""
    SANITIZE = "sanitize"
    """Erase every block of the drive, caches included; then call Controller.sanitized. The reply is
    posted at once."""
    REGISTER_HOST = "register host"
    """Register the identifier that the host has set (``host``)."""


class Action(NamedTuple):
    """Action with its arguments; those that it does not use are zero."""

    do: Do
    queue: int = 0
    """Queue identifier."""
    completion_queue: int = 0
    base: int = 0
    """Address of the queue, or of the shadow doorbells, in host memory."""
    event_base: int = 0
    """Address of the event indexes of the doorbells."""
    entries: int = 0
    vector: int = -1
    """Interrupt vector; -1: interrupts are disabled."""
    priority: int = 0
    first: int = 0
    """First byte on the drive."""
    size: int = 0
    """Number of bytes."""
    abrupt: bool = False
    host: bytes = b""
