"""Protocol of the TCP/IP tunnel through vendor NVMe commands: commands, completions and events.

Owns the fields of the protocol and the events that either end reports. Does not own the states of
the two ends (host.py, device.py), framing (framing.py) or queue entries (wire.py).
Source: NGD's public patents (a relay per drive, notify and pull); commands after the open relay of
rick-heig/nvme_csd: admin opcode C0h, cdw10 communicate 64, open 128, close 129, cdw11 write, cdw12
length, cdw13 descriptor, 4 KiB of data. Sequence numbers, events and negotiation have no source.

From host to drive, the relay writes one block of the packet stream per command. From drive to host,
the relay receives one block per command. Blocks are numbered from 0 in each direction, so that
commands and completions may overtake each other. The relay learns of blocks in one of two ways,
which it chooses at the open:

- event: the drive completes an asynchronous event request with the number of blocks announced so
  far. With bursts (framing.Format.notify), completions of receive commands announce further blocks.
- hold: the relay keeps receive commands outstanding for the next blocks. The drive holds each until
  there is a block, or completes it with length 0 when the hold time has passed. A driver that keeps
  asynchronous event requests to itself, as that of Linux does, needs this one.

| command | opcode | cdw10 | cdw11          | cdw12   | cdw13      | cdw14          | cdw15        |
|---------|--------|-------|----------------|---------|------------|----------------|--------------|
| open    | C0h    | 128   | flags, hold ms | payload | opening    | mtu, in flight |              |
| close   | C0h    | 129   | at once        |         | descriptor |                |              |
| write   | C1h    | 64    | 1              | length  | descriptor | block number   | first header |
| receive | C2h    | 64    | 0              | payload | descriptor | block number   |              |

| completion | dw0                            | dw1              | data                   |
|------------|--------------------------------|------------------|------------------------|
| open       | descriptor                     |                  |                        |
| close      | blocks sent to the host        |                  |                        |
| receive    | first header                   | blocks announced | length, 4 bytes; block |
| event      | 7, what << 8, descriptor << 16 | blocks announced |                        |

A receive command without a block has length 0; dw0 is then 2 if the drive asks for a close, else 0.
`close` completes when every block has been given to a receive command. A close with cdw11 = 1 ("at
once") drops the waiting packets instead.

A drive without offloads refuses an open with OFFLOADS (Invalid Field); the host then opens without.

Lost commands and completions: the host repeats a command with another command identifier. Every
command may be repeated, with the same effect as once: the drive keeps the last `outstanding` blocks
that it has sent, also after a close, knows a block that it has accepted by its number, and an open
by the number of the opening (cdw13; 0: not known again). A command that still waits in the drive is
aborted if its repetition arrives. So a tunnel survives a reset of the controller.
"""

from __future__ import annotations

from typing import NamedTuple

from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel.framing import Data, Format
from ondie.emu.units import InputError

COMMUNICATE, OPEN, CLOSE = 64, 128, 129
HOLD, TAKE_OVER, OFFLOADS = 1 << 0, 1 << 1, 1 << 2
"""Flags of an open: the drive holds receive commands; an open tunnel of another opening is closed
at once instead of refusing this one; packets have a framing.OFFLOAD_HEADER in front."""
HOLD_SHIFT = 16
TRANSIENT = frozenset(
    {
        wire.ID_CONFLICT, wire.ABORTED, wire.SQ_DELETED, wire.INTERRUPTED,
        wire.TRANSIENT_TRANSPORT, wire.PATH_ERROR, wire.ABORTED_BY_HOST,
    }
)  # fmt: skip
"""Statuses after which the host repeats a command."""
RECEIVE, WRITE = 0, 1
DATA, CLOSING = 1, 2
"""Meaning of an event: blocks wait to be received (DATA); the drive requests a close (CLOSING)."""
MASK = 0xFFFFFFFF


def behind(number: int, other: int) -> int:
    """Return by how much ``number`` is behind ``other``; both are counters that wrap at 2**32.

    The difference counts as 0 if it is 2**31 or more.
    """
    gap = (other - number) & MASK
    return gap if gap < 1 << 31 else 0


class Opened(NamedTuple):
    """Event: the drive has opened the tunnel and assigned a descriptor to it."""

    descriptor: int


class Packet(NamedTuple):
    """Event: a complete packet has arrived through the tunnel."""

    data: Data


class Failed(NamedTuple):
    """Event: the drive refused a command or sent invalid data, so the tunnel closes.

    ``status``: NVMe status (wire.py). ``what``: the command that failed, as text.
    """

    status: int
    what: str


class Closed(NamedTuple):
    """Event: the tunnel is closed, and none of its commands is outstanding."""


Event = Opened | Packet | Failed | Closed


def check(packet: Data, form: Format) -> None:
    """Raise InputError if ``packet`` is empty or longer than ``form.longest``."""
    if not 0 < len(packet) <= form.longest:
        raise InputError(f"tunnel packet of {len(packet)} B: must be from 1 to {form.longest} B")
