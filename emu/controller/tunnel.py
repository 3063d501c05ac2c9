"""Commands of the TCP/IP tunnel: vendor-specific admin commands of a drive that has one.

Owns which controller uses the tunnel, the status command, and the way of completions back to the
controller whose command they end. Does not own the protocol (nvme/tunnel/protocol.py), the state
of the tunnel (nvme/tunnel/device.py), packets, threads or the time that commands take
(serve/tunnel.py).
Source: see nvme/tunnel/protocol.py; NVM Express Base Specification 2.0, figure "Opcodes for Admin
Commands" (C0h to FFh are vendor-specific, bits 1:0 are the direction of the data).

A command is completed later, also if it takes no time: ``completions`` returns the ended commands.
A controller that is reset leaves the tunnel open, and its host continues with the numbers of its
blocks, through the same controller or another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ondie.emu.controller.opcodes import Tunnel
from ondie.emu.controller.structure import Field, Structure
from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel import protocol
from ondie.emu.nvme.tunnel.device import DeviceRelay, State
from ondie.emu.nvme.tunnel.framing import Data, Format, is_ip
from ondie.emu.nvme.tunnel.protocol import TRANSIENT
from ondie.emu.nvme.wire import Command, Cqe, Sqe
from ondie.emu.units import InputError

if TYPE_CHECKING:  # a host's end loads this file without NumPy
    from ondie.emu.controller.log_pages import ErrorLog

STATUS = 130
"""CDW10 of the status command."""
STATUS_BYTES = 256


class User(Protocol):
    """Controller whose host uses the tunnel (admin.Controller)."""

    errors: ErrorLog
    resets: int
    """Number of resets of the controller."""


class Ended(NamedTuple):
    """Command whose completion a controller must post."""

    controller: User
    cqe: Cqe
    data: Data
    issued: int
    """Time of its arrival, ps."""
    down_bytes: int
    """Bytes that the host has sent."""
    resets: int
    """Resets of the controller before the command arrived."""

    @property
    def live(self) -> bool:
        """True if the controller was not reset since the command arrived."""
        return self.resets == self.controller.resets


class TunnelCommands:
    """The tunnel of one drive. ``limits``: largest parameters that a host may request. ``clock``:
    returns the time, ps. A lock of the caller protects all of it. Raises InputError for a
    ``notify`` other than "hold": event requests belong to the controller (events.py)."""

    def __init__(self, limits: Format, clock: Callable[[], int]) -> None:
        if limits.notify != "hold":
            raise InputError(
                f"tunnel notify {limits.notify!r}: must be hold, the only kind that a controller "
                "offers"
            )
        self.relay = DeviceRelay(limits, is_ip)
        self.clock = clock
        self.owner: User | None = None
        """The controller whose host uses the tunnel; None: that of the next command."""
        self.refused: Counter[int] = Counter()
        """Commands that were refused before they reached the relay, by status."""
        self._issued: dict[int, tuple[int, int]] = {}
        """Time of the arrival and bytes of the host, by command identifier, of commands of the
        owner."""
        self._ended: list[Ended] = []

    def holds(self, controller: User, cid: int) -> bool:
        """Return True if a command of a controller is not completed."""
        return self.owner is controller and cid in self._issued

    def execute(self, controller: User, sqe: Sqe, data: Data) -> None:
        """Execute a command of the tunnel; ``completions`` returns its end and those of others."""
        now = self.clock()
        if not self._may_use(controller, sqe):
            opens = (sqe.opcode, sqe.cdw10) == (Tunnel.CONTROL, protocol.OPEN)
            status = wire.NO_DESCRIPTOR if opens else wire.BAD_DESCRIPTOR
            self.refused[status] += 1
            controller.errors.add(0, sqe.cid, status, 0, nsid=0)
            self._ended.append(
                Ended(controller, Cqe(sqe.cid, status), b"", now, len(data), controller.resets)
            )
            return
        self._issued[sqe.cid] = now, len(data)
        self.relay.command(Command(sqe.pack(), data), now)
        self._collect()

    def _may_use(self, controller: User, sqe: Sqe) -> bool:
        """Return True if the controller is the owner, or becomes it: by an open that takes over or
        that repeats the last one, or if the tunnel has none."""
        if self.owner is controller:
            return True
        free = self.owner is None or self.relay.state is State.CLOSED
        if not free and (sqe.opcode, sqe.cdw10) == (Tunnel.CONTROL, protocol.OPEN):
            again = sqe.cdw13 != 0 and sqe.cdw13 == self.relay.opening
            free = again or bool(sqe.cdw11 & protocol.TAKE_OVER)
        if free:
            self._release()
            self.owner = controller
        return free

    def _release(self) -> None:
        """Abort the commands that the owner has in the tunnel."""
        if self.owner is None:
            return
        self._collect()
        for cid, (at, size) in self._issued.items():
            aborted = Cqe(cid, wire.ABORTED)
            self._ended.append(Ended(self.owner, aborted, b"", at, size, self.owner.resets))
        self._issued.clear()
        self.relay.reset()
        self.owner = None

    def abort(self, controller: User, cid: int) -> bool:
        """Abort a command that waits; return False if there is none."""
        if not self.holds(controller, cid):
            return False
        found = self.relay.abort(cid)
        self._collect()
        return found

    def forget(self, controller: User) -> None:
        """Drop the commands of a controller that is reset or has gone: they are not completed."""
        self._ended = [each for each in self._ended if each.controller is not controller]
        if self.owner is controller:
            self._issued.clear()
            self.relay.reset()
            self.owner = None

    # --- the drive

    def tick(self) -> None:
        """End commands whose hold time is over."""
        self.relay.tick(self.clock())
        self._collect()

    def send(self, packet: Data, more: bool = False) -> bool:
        """Send a packet to the host; see DeviceRelay.send."""
        sent = self.relay.send(packet, more)
        self._collect()
        return sent

    def announce(self) -> None:
        """Signal the packets that were sent with ``more``."""
        self.relay.announce()
        self._collect()

    def pause(self, paused: bool) -> None:
        """Accept no blocks as long as ``paused``."""
        self.relay.pause(paused)
        self._collect()

    def completions(self) -> list[Ended]:
        """Return the commands that have ended since the last call."""
        found, self._ended = self._ended, []
        return found

    def _collect(self) -> None:
        for each in self.relay.completions():
            cqe = Cqe.unpack(each.cqe)
            found = self._issued.pop(cqe.cid, None)
            if self.owner is None or found is None:
                continue
            if cqe.status and cqe.status not in TRANSIENT:
                self.owner.errors.add(0, cqe.cid, cqe.status, 0, nsid=0)
            self._ended.append(Ended(self.owner, cqe, each.data, *found, self.owner.resets))

    def status(self) -> bytes:
        """Return the data of the status command, bytes[STATUS_BYTES]."""
        return STATUS_DATA.pack(self)


def transfer_of(sqe: Sqe, most: int) -> tuple[int, int]:
    """Return (direction, bytes) of the data of a command of the tunnel; (0, 0) for none, and for
    more than ``most`` bytes."""
    if sqe.opcode in (Tunnel.SEND, Tunnel.RECEIVE) and 0 < sqe.cdw12 <= most:
        return sqe.opcode & 0b11, sqe.cdw12
    return 0, 0


def is_status(sqe: Sqe) -> bool:
    """Return True for the status command."""
    return sqe.opcode == Tunnel.RECEIVE and sqe.cdw10 == STATUS


def _count(name: str) -> Callable[[TunnelCommands], int]:
    return lambda tunnel: tunnel.relay.counts[name]


STATUS_DATA = Structure(
    "Status of the tunnel",
    STATUS_BYTES,
    "this project",
    (
        Field(0, 1, "STATE", "0: closed, 1: open, 2: closing",
              lambda tunnel: list(State).index(tunnel.relay.state)),
        Field(1, 1, "DESC", "Descriptor of the open tunnel, or of the last one",
              lambda tunnel: tunnel.relay.descriptor),
        Field(2, 1, "USED", "1: a controller uses the tunnel",
              lambda tunnel: int(tunnel.owner is not None)),
        Field(4, 4, "OPENING", "Number of the opening", lambda tunnel: tunnel.relay.opening),
        Field(8, 4, "PAYLOAD", "Bytes of a block", lambda tunnel: tunnel.relay.form.payload),
        Field(12, 2, "MTU", "Largest packet, bytes", lambda tunnel: tunnel.relay.form.mtu),
        Field(14, 2, "FLIGHT", "Commands in flight in each direction",
              lambda tunnel: tunnel.relay.form.outstanding),
        Field(16, 4, "NEXTDOWN", "Number of the next block to the drive",
              lambda tunnel: tunnel.relay.numbers[0]),
        Field(20, 4, "NEXTUP", "Number of the next block to the host",
              lambda tunnel: tunnel.relay.numbers[1]),
        Field(24, 8, "WAITING", "Blocks that wait for receive commands",
              lambda tunnel: tunnel.relay.waiting),
        *(
            Field(32 + 8 * at, 8, name.replace("_", "").upper(), title, _count(name))
            for at, (name, title) in enumerate(
                (
                    ("blocks_down", "Blocks accepted from the host"),
                    ("bytes_down", "Their bytes"),
                    ("packets_down", "Packets passed on"),
                    ("blocks_up", "Blocks sent to the host"),
                    ("bytes_up", "Their bytes"),
                    ("packets_up", "Packets sent"),
                    ("dropped", "Packets that were dropped"),
                    ("repeated", "Commands that the host has repeated"),
                    ("empty", "Receive commands that have ended without a block"),
                )
            )
        ),
        Field(104, 8, "REFUSED", "Commands that have ended with an error",
              lambda tunnel: sum(tunnel.refused.values()) + sum(
                  count for status, count in tunnel.relay.answered.items()
                  if status and status not in TRANSIENT)),
    ),
)  # fmt: skip
