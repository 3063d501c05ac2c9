"""State that all controllers of one drive share.

Owns the records. Does not own their meaning: namespaces (namespaces.py), marks (uncorrectable.py),
the state of sanitize operations (namespace_commands.py) and the counts (io_commands.py).
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
    """State of the media of a drive that is served without a controller."""

    uncorrectable: Uncorrectable = field(default_factory=Uncorrectable)
    sanitize: SanitizeState = field(default_factory=SanitizeState)
    written_beside: bool = False
    """Meaning as in Shared.written_beside."""


@dataclass(slots=True)
class Shared:
    """Namespaces and counts of one drive. Controllers that run in several threads use a lock of
    the transport."""

    namespaces: Namespaces
    uncorrectable: Uncorrectable = field(default_factory=Uncorrectable)
    sanitize: SanitizeState = field(default_factory=SanitizeState)
    written_beside: bool = False
    """True if a client other than an NVMe host has written since the start of the sanitize
    operation that is in progress."""
    saved_features: dict[tuple[int, int], int] = field(default_factory=dict)
    """Saved values of features, by (feature identifier, scope)."""
    tunnel: TunnelCommands | None = None
    """The drive's end of the TCP/IP tunnel; None if it has none."""
    read_commands: int = 0
    """Number of completed read commands; io_commands.finish increases this counter and the next
    ones."""
    write_commands: int = 0
    unaligned: int = 0
