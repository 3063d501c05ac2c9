"""Host's relay of the TCP/IP tunnel through vendor NVMe commands: a state machine.

Owns the state of the host's end of one tunnel. Does not own the state of the drive's end
(device.py), the fields of the protocol (protocol.py), framing (framing.py) or the cost (cost.py).
The relay does no I/O and has no clock: it takes packets and completions and returns commands and
events.
Source: see protocol.py.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import Enum

from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel import protocol
from ondie.emu.nvme.tunnel.framing import READ_HEADER, Data, Format, Packer, Unpacker
from ondie.emu.nvme.tunnel.protocol import (
    MASK,
    Closed,
    Event,
    Failed,
    Opened,
    Packet,
    behind,
    check,
)
from ondie.emu.nvme.wire import Command, Completion, Cqe, Sqe
from ondie.emu.units import InputError


class State(Enum):
    """State of the host's end of a tunnel."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    DRAINING = "draining"  # closing: the last packets are written to the drive
    CLOSING = "closing"  # closing: the last packets are received from the drive
    FAILED = "failed"  # closing without transfer of the waiting packets
    ENDING = "ending"  # closed by the drive: outstanding commands complete


TRANSITIONS: dict[tuple[State, str], State] = {
    (State.CLOSED, "open"): State.OPENING,
    (State.OPENING, "opened"): State.OPEN,
    (State.OPENING, "refused"): State.ENDING,
    (State.OPEN, "close"): State.DRAINING,
    (State.OPEN, "failure"): State.FAILED,
    (State.DRAINING, "failure"): State.FAILED,
    (State.DRAINING, "all written"): State.CLOSING,
    (State.CLOSING, "failure"): State.FAILED,
    (State.CLOSING, "closed"): State.ENDING,
    (State.FAILED, "closed"): State.ENDING,
    (State.ENDING, "nothing under way"): State.CLOSED,
}
"""Next state of the host's end by (state, event). Other pairs do not change the state."""


class HostRelay:
    """State machine of the host's end of one tunnel.

    ``send`` takes packets and ``completed`` takes completions. ``commands`` returns the commands
    that may be submitted now; ``requests`` and ``write`` return two subsets of them. ``events``
    returns the events. ``cids``: command identifiers of the queue that are reserved for this relay,
    at least 3 * ``form.outstanding`` + 1.
    """

    def __init__(self, form: Format, cids: range = range(wire.CIDS)) -> None:
        self.form = form
        self.need = 3 * form.outstanding + 1
        if len(cids) < self.need:
            raise InputError(
                f"tunnel relay with {len(cids)} command identifiers: must be at least {self.need}"
            )
        self._cids = deque(cids[: self.need])
        self.state = State.CLOSED
        self.descriptor = 0
        self.issued: Counter[str] = Counter()
        """Number of commands issued so far, by kind: open, close, event, receive, write."""
        self.strays = 0
        """Number of completions that match no command of this relay."""
        self._flying: dict[int, tuple[str, int]] = {}
        self._events: list[Event] = []
        self._reset()

    def _reset(self) -> None:
        form = self.form
        self._out = Packer(form.down, form.concatenate)
        self._in = Unpacker(form.mtu)
        self._written = 0  # blocks written, requested, unpacked, announced
        self._received = 0
        self._taken = 0
        self._announced = 0
        self._held: dict[int, tuple[Data, int]] = {}  # received after a missing block
        self._under_way: Counter[str] = Counter()
        self._close_asked = False
        self._asked = False  # open or close of this state has been issued
        self._deaf = False  # the drive takes no more event requests
        self._failed = False

    def _go(self, what: str) -> None:
        state = TRANSITIONS.get((self.state, what))
        if state is not None:
            self.state, self._asked = state, False

    # --- the host's side

    def open(self) -> None:
        """Start to open the tunnel; ``requests`` then returns the open command.

        Has no effect unless the tunnel is closed.
        """
        if self.state is State.CLOSED:
            self._reset()
            self._go("open")

    def close(self) -> None:
        """Close the tunnel after the packets waiting at both ends have been transferred."""
        self._close_asked = True
        self._advance()

    def send(self, packet: Data) -> bool:
        """Queue a packet for transfer to the drive and return True.

        Unless the tunnel is open or opening, drop the packet and return False. Raises InputError
        for a packet that is empty or longer than the mtu.
        """
        check(packet, self.form)
        if self.state not in (State.OPENING, State.OPEN) or self._close_asked:
            return False
        self._out.push(packet)
        return True

    @property
    def waiting(self) -> int:
        """Number of blocks that the packets not yet written to the drive will fill."""
        return self._out.blocks

    def events(self) -> list[Event]:
        """Return the tunnel events (protocol.py) at the host's end since the last call."""
        found, self._events = self._events, []
        return found

    # --- the drive's side

    def commands(self) -> list[Command]:
        """Return all commands that may be submitted now."""
        found = self.requests()
        while (command := self.write()) is not None:
            found.append(command)
        return found

    def requests(self) -> list[Command]:
        """Return the open, close, event and receive commands that may be submitted now."""
        found = []
        self._advance()
        if self.state is State.OPENING and not self._asked:
            sizes = self.form.mtu | self.form.outstanding << 16
            payload = self.form.payload
            found.append(self._issue("open", 0, cdw10=protocol.OPEN, cdw12=payload, cdw14=sizes))
            self._asked = True
        if self.state in (State.CLOSING, State.FAILED) and not self._asked:
            at_once = int(self.state is State.FAILED)
            tunnel = self.descriptor
            found.append(self._issue("close", 0, cdw10=protocol.CLOSE, cdw11=at_once, cdw13=tunnel))
            self._asked = True
        if self.state in (State.OPEN, State.DRAINING, State.CLOSING):
            most = self.form.outstanding
            while self._under_way["event"] < most and not self._deaf:
                found.append(self._issue("event", 0))
            while (
                behind(self._received, self._announced)
                and behind(self._taken, self._received) < most
            ):
                found.append(self._communicate("receive", self._received, protocol.RECEIVE))
                self._received = (self._received + 1) & MASK
        return found

    def write(self) -> Command | None:
        """Return the write command of the next block, or None if none may be submitted now."""
        up = self.state in (State.OPEN, State.DRAINING)
        if not (up and self._out.blocks and self._under_way["write"] < self.form.outstanding):
            return None
        data, first = self._out.cut()
        number = self._written
        self._written = (number + 1) & MASK
        return self._communicate("write", number, protocol.WRITE, data, first)

    def completed(self, completion: Completion) -> None:
        """Handle the completion of a command of this relay."""
        if len(completion.cqe) != wire.CQE_BYTES:
            self.strays += 1
            return
        cqe = Cqe.unpack(completion.cqe)
        kind, number = self._flying.pop(cqe.cid, ("", 0))
        if not kind:
            self.strays += 1
            return
        self._cids.append(cqe.cid)
        self._under_way[kind] -= 1
        if kind == "open":
            self._opened(cqe)
        elif kind == "close":
            self._closed(cqe)
        elif not self._failed:  # a close may overtake the last receptions
            if kind == "event":
                self._told(cqe)
            elif cqe.status:
                self._fail(cqe.status, f"{kind} of block {number}")
            elif kind == "receive":
                self._arrived(number, cqe, completion.data)
        self._advance()

    # --- handlers of completions

    def _opened(self, cqe: Cqe) -> None:
        if cqe.status:
            self._fail(cqe.status, "open")
            self._go("refused")
            return
        self.descriptor = cqe.dw0
        self._events.append(Opened(cqe.dw0))
        self._go("opened")

    def _closed(self, cqe: Cqe) -> None:
        if cqe.status and not self._failed:
            self._events.append(Failed(cqe.status, "close"))
        self._go("closed")

    def _told(self, cqe: Cqe) -> None:
        if cqe.status == wire.ABORTED and self.state in (State.CLOSING, State.ENDING):
            self._deaf = True
        elif cqe.status:
            self._fail(cqe.status, "event")
        elif cqe.dw0 & 0x7 == wire.EVENT_VENDOR and cqe.dw0 >> 16 & 0xFF == self.descriptor:
            what = cqe.dw0 >> 8 & 0xFF
            if what == protocol.DATA:
                self._announce(cqe.dw1)
            elif what == protocol.CLOSING:
                self._close_asked = True

    def _announce(self, blocks: int) -> None:
        if behind(self._announced, blocks):
            self._announced = blocks

    def _arrived(self, number: int, cqe: Cqe, data: Data) -> None:
        """Handle block ``number``, received from the drive. Blocks are unpacked in the order of
        their numbers.
        """
        length = int.from_bytes(data[:READ_HEADER], "little")
        if not 0 < length <= min(self.form.up, len(data) - READ_HEADER):
            self._fail(wire.BAD_LENGTH, f"receive of block {number}")
            return
        self._announce(cqe.dw1)
        self._held[number] = memoryview(data)[READ_HEADER : READ_HEADER + length], cqe.dw0
        while self._taken in self._held:
            status, packets = self._in.feed(*self._held.pop(self._taken))
            if status:
                self._fail(status, f"receive of block {self._taken}")
                return
            self._events += [Packet(packet) for packet in packets]
            self._taken = (self._taken + 1) & MASK

    def _fail(self, status: int, what: str) -> None:
        self._failed = True
        self._events.append(Failed(status, what))
        self._go("failure")

    # --- states and commands

    def _advance(self) -> None:
        """Make the state transitions that depend on a requested close, on outstanding commands and
        on waiting blocks."""
        if self._close_asked:
            self._go("close")
        if not self._out.blocks and not self._under_way["write"]:
            self._go("all written")
        if self.state is State.ENDING and not self._flying:
            self._events.append(Closed())
            self._go("nothing under way")

    def _communicate(
        self, kind: str, number: int, write: int, data: Data = b"", first: int = 0
    ) -> Command:
        return self._issue(
            kind,
            number,
            data,
            cdw10=protocol.COMMUNICATE,
            cdw11=write,
            cdw12=len(data),
            cdw13=self.descriptor,
            cdw14=number,
            cdw15=first,
        )

    def _issue(self, kind: str, number: int, data: Data = b"", **fields: int) -> Command:
        cid = self._cids.popleft()
        self._flying[cid] = kind, number
        self._under_way[kind] += 1
        self.issued[kind] += 1
        opcode = wire.ASYNC_EVENT_REQUEST if kind == "event" else wire.TUNNEL
        return Command(Sqe(opcode, cid=cid, **fields).pack(), data)
