"""Protocol of the TCP/IP tunnel through vendor-specific NVMe commands: commands, completions and
events.

Owns the fields of the protocol and the events that either end reports. Does not own the states of
the two ends (host.py, device.py), framing (framing.py) or queue entries (wire.py).
Source: NGD's public patents (a relay per drive, notify and pull); commands follow the open-source
relay of rick-heig/nvme_csd: admin opcode C0h, cdw10 communicate 64, open 128, close 129, cdw11
write, cdw12 length, cdw13 descriptor, 4 KiB of data. Sequence numbers, events and negotiation are
this project's.

From host to drive, the relay writes one block of the packet stream per command. From drive to host,
the relay receives one block per command. Blocks are numbered from 0 in each direction, because
commands and completions may overtake each other. The relay is notified of blocks in one of two
ways, which it selects in the open command:

- event: the drive completes an asynchronous event request with the number of blocks announced so
  far. With bursts (framing.Format.notify), completions of receive commands announce further blocks.
- hold: the relay keeps receive commands outstanding for the next blocks. The drive holds each of
  them until there is a block, or completes it with length 0 when the hold time has passed. This way
  is required with a driver that reserves asynchronous event requests for itself, such as the Linux
  driver.

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

The completion of a receive command without a block has length 0; its dw0 is 2 if the drive requests
a close, else 0. `close` completes when receive commands have transferred all blocks. A close with
cdw11 = 1 ("at once") drops the waiting packets instead.

A drive without offloads rejects an open with OFFLOADS (Invalid Field); the host then opens the
tunnel without offloads.

Lost commands and completions: the host repeats a command with another command identifier. Repeating
any command has no further effect. For this purpose, the drive keeps the last `outstanding` blocks
that it sent, even after a close. It recognizes a repeated write by its block number, and a repeated
open by the number of the opening (cdw13; 0 is never recognized). If the repetition arrives while
the original command still waits in the drive, the original command is aborted. Thus, a tunnel
survives a reset of the controller.
"""

from __future__ import annotations

from typing import NamedTuple

from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel.framing import Data, Format
from ondie.emu.units import InputError

COMMUNICATE, OPEN, CLOSE = 64, 128, 129
HOLD, TAKE_OVER, OFFLOADS = 1 << 0, 1 << 1, 1 << 2
"""Flags of an open command. HOLD: the drive holds receive commands. TAKE_OVER: if a tunnel of
another opening is open, the drive closes this tunnel immediately; without this flag, the drive
rejects the open command. OFFLOADS: each packet is preceded by a framing.OFFLOAD_HEADER."""
HOLD_SHIFT = 16
TRANSIENT = frozenset(
    {
        wire.ID_CONFLICT, wire.ABORTED, wire.SQ_DELETED, wire.INTERRUPTED,
        wire.TRANSIENT_TRANSPORT, wire.PATH_ERROR, wire.ABORTED_BY_HOST,
    }
)  # fmt: skip
"""NVMe statuses after which the host repeats a tunnel command."""
RECEIVE, WRITE = 0, 1
DATA, CLOSING = 1, 2
"""Meanings of an asynchronous event of the drive: blocks wait to be received (DATA), or the drive
requests a close (CLOSING)."""
MASK = 0xFFFFFFFF


def behind(number: int, other: int) -> int:
    """Return the number of increments by which ``number`` is behind ``other``; both are counters
    that wrap at 2**32.

    The result is 0 if the difference is 2**31 or more.
    """
    gap = (other - number) & MASK
    return gap if gap < 1 << 31 else 0


class Opened(NamedTuple):
    """Event of a tunnel: the drive has opened the tunnel and assigned a descriptor to it."""

    descriptor: int


class Packet(NamedTuple):
    """Event of a tunnel: a complete packet has arrived through the tunnel."""

    data: Data


class Failed(NamedTuple):
    """Event of a tunnel: the drive rejected a command or sent invalid data, so the tunnel closes.

    ``status``: NVMe status (wire.py). ``what``: description of the command that failed.
    """

    status: int
    what: str


class Closed(NamedTuple):
    """Event of a tunnel: the tunnel is closed, and none of its commands are outstanding."""


Event = Opened | Packet | Failed | Closed


def check(packet: Data, form: Format) -> None:
    """Raise InputError if ``packet`` is empty or longer than ``form.longest`` bytes."""
    if not 0 < len(packet) <= form.longest:
        raise InputError(f"tunnel packet of {len(packet)} B: must be from 1 to {form.longest} B")
