"""Commands of the TCP/IP tunnel: vendor-specific admin commands through which a host and a drive
exchange IP packets.

Owns the assignment of the tunnel to a controller, the status command, and the delivery of each
completion to the controller that received the command. Does not own the protocol
(nvme/tunnel/protocol.py), the state of the tunnel (nvme/tunnel/device.py), packets, threads or the
time that commands take (serve/tunnel.py).
Source: nvme/tunnel/protocol.py and its sources; NVM Express Base Specification 2.0, figure "Opcodes
for Admin Commands" (C0h to FFh are vendor-specific, bits 1:0 are the direction of the data).

Each send or receive command transfers one numbered block of the packet stream. Commands complete
asynchronously, even if they take no time: ``completions`` returns the ended commands. A controller
reset does not close the tunnel. After a reset, the host continues the sequence of block numbers
through the same controller or another controller.
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
"""Value of CDW10 of the tunnel's status command."""
STATUS_BYTES = 256


class User(Protocol):
    """Controller through which a host uses the tunnel (admin.Controller)."""

    errors: ErrorLog
    resets: int
    """Number of resets of the controller since it was created."""


class Ended(NamedTuple):
    """Ended tunnel command whose completion the transport must post."""

    controller: User
    cqe: Cqe
    data: Data
    issued: int
    """Time at which the command was issued, that is, arrived at the controller, ps."""
    down_bytes: int
    """Size of the data that the host has sent with the command, bytes."""
    resets: int
    """Number of resets of the controller before the command arrived."""

    @property
    def live(self) -> bool:
        """True if the controller was not reset after the command arrived."""
        return self.resets == self.controller.resets


class TunnelCommands:
    """Commands of the TCP/IP tunnel of one drive.

    ``limits``: maximum values of the tunnel parameters that a host may request. ``clock``: function
    that returns the current time, ps. The caller protects all accesses with a lock. Raises
    InputError if ``limits.notify`` is not "hold". A controller does not support other kinds of
    notification, because it uses Async Event Requests for the events of the specification
    (events.py).
    """

    def __init__(self, limits: Format, clock: Callable[[], int]) -> None:
        if limits.notify != "hold":
            raise InputError(
                f"tunnel notify = {limits.notify!r}: must be 'hold'; a controller does not support "
                "other kinds of notification"
            )
        self.relay = DeviceRelay(limits, is_ip)
        self.clock = clock
        self.owner: User | None = None
        """Controller whose host uses the tunnel. If it is None, the controller that receives the
        next command becomes the owner."""
        self.refused: Counter[int] = Counter()
        """Number of commands by status that were refused before they reached the relay."""
        self._issued: dict[int, tuple[int, int]] = {}
        """(Arrival time in ps, size in bytes of the data from the host) of each uncompleted command
        of the owner, by command identifier."""
        self._ended: list[Ended] = []

    def holds(self, controller: User, cid: int) -> bool:
        """Return True if a tunnel command of ``controller`` with identifier ``cid`` is not
        completed yet."""
        return self.owner is controller and cid in self._issued

    def execute(self, controller: User, sqe: Sqe, data: Data) -> None:
        """Execute a tunnel command. When the command has ended, ``completions`` returns its
        completion. A command may also complete earlier commands."""
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
        """Return True if ``controller`` is or becomes the owner of the tunnel, which is the
        controller through which the host uses the tunnel. A controller becomes the owner if the
        tunnel is closed, if the tunnel has no owner, or if the command is an open command that
        takes over the tunnel or repeats the last open command."""
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
        """Abort all uncompleted commands of the owner of the tunnel, and remove the owner."""
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
        """Abort the tunnel command of ``controller`` with identifier ``cid`` if the drive holds it;
        return False if the drive holds no such command."""
        if not self.holds(controller, cid):
            return False
        found = self.relay.abort(cid)
        self._collect()
        return found

    def forget(self, controller: User) -> None:
        """Drop the commands of a controller that is reset or removed, without completing them."""
        self._ended = [each for each in self._ended if each.controller is not controller]
        if self.owner is controller:
            self._issued.clear()
            self.relay.reset()
            self.owner = None

    # --- the drive

    def tick(self) -> None:
        """Complete the held commands whose hold time has expired."""
        self.relay.tick(self.clock())
        self._collect()

    def send(self, packet: Data, more: bool = False) -> bool:
        """Send a packet to the host. The arguments, the result and the errors are those of
        DeviceRelay.send."""
        sent = self.relay.send(packet, more)
        self._collect()
        return sent

    def announce(self) -> None:
        """Announce to the host the packets that :meth:`send` has queued with ``more`` = True."""
        self.relay.announce()
        self._collect()

    def pause(self, paused: bool) -> None:
        """Stop accepting blocks of packets from the host; if ``paused`` is False, resume accepting
        blocks."""
        self.relay.pause(paused)
        self._collect()

    def completions(self) -> list[Ended]:
        """Return the tunnel commands that have ended since the last call of this method."""
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
    """Return (direction, bytes) of the data transfer of a tunnel command, or (0, 0) if the command
    transfers no data or more than ``most`` bytes."""
    if sqe.opcode in (Tunnel.SEND, Tunnel.RECEIVE) and 0 < sqe.cdw12 <= most:
        return sqe.opcode & 0b11, sqe.cdw12
    return 0, 0


def is_status(sqe: Sqe) -> bool:
    """Return True if the command is the status command of the tunnel."""
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
        Field(1, 1, "DESC", "Descriptor of the open tunnel, or of the last open tunnel",
              lambda tunnel: tunnel.relay.descriptor),
        Field(2, 1, "USED", "1: a controller uses the tunnel",
              lambda tunnel: int(tunnel.owner is not None)),
        Field(4, 4, "OPENING", "Number of the open command", lambda tunnel: tunnel.relay.opening),
        Field(8, 4, "PAYLOAD", "Largest block, bytes", lambda tunnel: tunnel.relay.form.payload),
        Field(12, 2, "MTU", "Largest packet, bytes", lambda tunnel: tunnel.relay.form.mtu),
        Field(14, 2, "FLIGHT", "Largest number of commands in flight in each direction",
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
                    ("bytes_down", "Bytes of the blocks accepted from the host"),
                    ("packets_down", "Packets passed to the drive"),
                    ("blocks_up", "Blocks sent to the host"),
                    ("bytes_up", "Bytes of the blocks sent to the host"),
                    ("packets_up", "Packets sent to the host"),
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
