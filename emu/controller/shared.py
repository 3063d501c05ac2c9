"""State that all controllers of one drive share.

Owns the records that hold this state. Does not own the operations on the state: namespaces
(namespaces.py), ranges that are marked uncorrectable (uncorrectable.py), sanitize operations
(namespace_commands.py) and counters (io_commands.py).
Source: NVM Express Base Specification 2.0, sections 2.4 (NVM subsystem), 5.16.1.3 (scope of the
SMART / Health Information log page) and 8.21 (sanitize operations).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ondie.emu.controller.health_logs import SanitizeState
from ondie.emu.controller.namespaces import Namespaces
from ondie.emu.controller.tunnel import TunnelCommands
from ondie.emu.controller.uncorrectable import Uncorrectable


@dataclass(slots=True)
class MediaState:
    """State of the media of a drive that is served without an NVMe controller."""

    uncorrectable: Uncorrectable = field(default_factory=Uncorrectable)
    sanitize: SanitizeState = field(default_factory=SanitizeState)
    written_beside: bool = False
    """True if a client that is not an NVMe host has written since the start of the sanitize
    operation in progress."""


@dataclass(slots=True)
class Shared:
    """State of one drive that all of its controllers share: namespaces, media state and counters.
    If controllers run in different threads, the transport protects accesses with a lock."""

    namespaces: Namespaces
    uncorrectable: Uncorrectable = field(default_factory=Uncorrectable)
    sanitize: SanitizeState = field(default_factory=SanitizeState)
    written_beside: bool = False
    """True if a client that is not an NVMe host has written since the start of the sanitize
    operation in progress."""
    saved_features: dict[tuple[int, int], int] = field(default_factory=dict)
    """Saved feature values by (feature identifier, scope)."""
    tunnel: TunnelCommands | None = None
    """Drive end of the TCP/IP tunnel, or None if the drive has no tunnel."""
    read_commands: int = 0
    """Number of completed Read, Compare and Verify commands. The function io_commands.finish
    updates this counter and the following ones."""
    write_commands: int = 0
    unaligned: int = 0
