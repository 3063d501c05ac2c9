"""The words of the TCP/IP tunnel through vendor NVMe commands: commands, completions and events.

Owns the protocol's fields and what either end reports. Does not own states (tunnel.py,
tunnel_device.py), framing (framing.py) or entries (nvme.py).
Source: NGD's public patents (a relay per drive, notify and pull); commands after the open relay of
rick-heig/nvme_csd: admin opcode C0h, cdw10 communicate 64, open 128, close 129, cdw11 write,
cdw12 length, cdw13 descriptor, 4 KiB of data. Sequence numbers, events and negotiation are ours.

Down, the relay writes a block of the stream of packets with each command. Up, the drive completes
an asynchronous event request with the number of blocks it has announced so far, and the relay
receives those, one per command; where a signal stands for many, receptions announce more. Blocks
are numbered, each way from 0, so that commands and completions may overtake each other.

| command | cdw10 | cdw11   | cdw12   | cdw13      | cdw14            | cdw15        | data  |
|---------|-------|---------|---------|------------|------------------|--------------|-------|
| open    | 128   |         | payload |            | mtu, outstanding |              |       |
| close   | 129   | at once |         | descriptor |                  |              |       |
| write   | 64    | 1       | length  | descriptor | number of block  | first header | block |
| receive | 64    | 0       | 0       | descriptor | number of block  |              |       |

| completion | dw0                            | dw1              | data                   |
|------------|--------------------------------|------------------|------------------------|
| open       | descriptor                     |                  |                        |
| receive    | first header                   | blocks announced | length, 4 bytes; block |
| event      | 7, what << 8, descriptor << 16 | blocks announced |                        |

`close` completes when the drive's last packet has been received, or, at once, drops what waits.
"""

from __future__ import annotations

from typing import NamedTuple

from ondie.emu.nvme.tunnel.framing import Format
from ondie.emu.units import InputError

COMMUNICATE, OPEN, CLOSE = 64, 128, 129
RECEIVE, WRITE = 0, 1
DATA, CLOSING = 1, 2
"""What an event tells: blocks wait; the drive wants to close."""
MASK = 0xFFFFFFFF


def behind(number: int, other: int) -> int:
    """By how much a 32-bit number is behind another one that is at most 2**31 ahead, else 0."""
    gap = (other - number) & MASK
    return gap if gap < 1 << 31 else 0


class Opened(NamedTuple):
    """The drive has given the tunnel a descriptor."""

    descriptor: int


class Packet(NamedTuple):
    """A packet has come out of the tunnel whole."""

    data: bytes


class Failed(NamedTuple):
    """The other end has refused something, or sent what cannot be; the tunnel closes."""

    status: int
    what: str


class Closed(NamedTuple):
    """Nothing of the tunnel is under way any more."""


Event = Opened | Packet | Failed | Closed


def check(packet: bytes, form: Format) -> None:
    """InputError for a packet that no tunnel of this format takes."""
    if not 0 < len(packet) <= form.mtu:
        raise InputError(f"packet of {len(packet)} B: 1 to {form.mtu} B are right")
