"""The host's relay of the TCP/IP tunnel through vendor-specific NVMe commands: a state machine.

Owns the state of the host's end of one tunnel. Does not own the state of the drive's end
(device.py), the fields of the protocol (protocol.py), commands in flight and their retries
(flight.py), framing (framing.py) or the cost (cost.py). The relay does no I/O and has no clock: its
inputs are packets, completions and times (ps), and its outputs are commands and events.
Source: see protocol.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from enum import Enum

from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel import protocol
from ondie.emu.nvme.tunnel.flight import Flight
from ondie.emu.nvme.tunnel.framing import PS_PER_MS, READ_HEADER, Data, Format, Packer, Unpacker
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
from ondie.emu.nvme.wire import Command, Completion, Cqe


class State(Enum):
    """State of the host's end of a TCP/IP tunnel."""

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
"""Next state of the host's end of a tunnel by (state, event). Other pairs do not change the
state."""


RECEIVING = (State.OPEN, State.DRAINING, State.CLOSING, State.ENDING)
"""States of the host's end of a tunnel in which the host receives blocks."""


class HostRelay:
    """State machine of the host's end of one tunnel.

    ``send`` takes packets and ``completed`` takes completions. ``commands`` returns the commands
    that may be submitted now; ``requests`` and ``write`` return two subsets of them. ``events``
    returns the events. ``cids``: command identifiers of the queue that are reserved for this relay,
    at least 3 * ``form.outstanding`` + 1 (InputError is raised for fewer); twice as many if
    commands can be lost without a reset. ``timeout_ps``: time after which :meth:`tick` treats a
    command as lost, in addition to the hold time; 0 if commands cannot be lost. ``opening``: number
    of the first opening; it must differ from those of earlier hosts of the drive, for example a
    random number from 1 to 2**32 - 1. ``take_over``: True to close a tunnel that another host left
    open. If the drive does not offer ``form.offloads``, the tunnel opens without offloads, and
    ``form`` is changed accordingly.
    """

    def __init__(
        self,
        form: Format,
        cids: range = range(wire.CIDS),
        *,
        timeout_ps: int = 0,
        opening: int = 1,
        take_over: bool = False,
    ) -> None:
        self.form = form
        self.state = State.CLOSED
        self.descriptor = 0
        self.take_over = take_over
        self._hold = form.notify == "hold"
        timeout_ps += form.hold_ps if timeout_ps else 0
        self._flight = Flight(cids, 3 * form.outstanding + 1, timeout_ps)
        self._opening = opening - 1
        self._events: list[Event] = []
        self._reset()

    def _reset(self) -> None:
        form = self.form
        self._out = Packer(form.down, form.concatenate)
        self._in = Unpacker(form.longest)
        self._written = 0  # blocks written, confirmed by the drive without a gap,
        self._confirmed = 0
        self._received = 0  # requested, unpacked, announced
        self._taken = 0
        self._announced = 0
        self._ahead: set[int] = set()  # confirmed after one that is not
        self._held: dict[int, tuple[Data, int]] = {}  # received after a missing block
        self._ask: list[int] = []  # blocks to be requested once more
        self._close_asked = False
        self._asked = False  # open or close of this state has been issued
        self._deaf = False  # the drive takes no more event requests
        self._failed = False
        self.dropped = 0
        """Number of written blocks from which the drive dropped packets that are not IP packets."""

    def _go(self, what: str) -> None:
        state = TRANSITIONS.get((self.state, what))
        if state is not None:
            self.state, self._asked = state, False

    # --- the host's side

    def open(self) -> None:
        """Start opening the tunnel; ``requests`` then returns the open command.

        Has no effect unless the tunnel is closed.
        """
        if self.state is State.CLOSED:
            self._reset()
            self._opening = self._opening % MASK + 1
            self._go("open")

    def close(self) -> None:
        """Close the tunnel after the packets waiting at both ends have been transferred."""
        self._close_asked = True
        self._advance()

    def send(self, packet: Data) -> bool:
        """Queue a packet for transfer to the drive and return True.

        If the tunnel is neither open nor opening, or after :meth:`close`, drop the packet and
        return False. With offloads, packets are also dropped while the tunnel is opening. Raises
        InputError if the packet is empty or longer than the MTU.
        """
        check(packet, self.form)
        if self.state not in (State.OPENING, State.OPEN) or self._close_asked:
            return False
        if self.state is State.OPENING and self.form.offloads:
            return False  # the drive may not have them
        self._out.push(packet)
        return True

    @property
    def waiting(self) -> int:
        """Number of blocks that the packets not yet written to the drive will fill."""
        return self._out.blocks

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes of the packets not yet written to the drive, including their length
        fields."""
        return self._out.size

    @property
    def issued(self) -> Counter[str]:
        """Number of tunnel commands issued so far, by kind: open, close, event, receive, write."""
        return self._flight.issued

    @property
    def strays(self) -> int:
        """Number of completions that do not match a command of the host's relay."""
        return self._flight.strays

    @property
    def repeated(self) -> int:
        """Number of tunnel commands that were issued again."""
        return self._flight.repeated

    @property
    def lost(self) -> int:
        """Number of lost commands that have not completed since. Each of them occupies a command
        identifier. If no identifier is free for a new command, the identifier of the oldest lost
        command is reused."""
        return self._flight.lost

    def in_flight(self, kind: str) -> int:
        """Return the number of tunnel commands of kind ``kind`` that are not completed."""
        return self._flight.count(kind)

    def events(self) -> list[Event]:
        """Return the tunnel events (protocol.py) at the host's end since the last call."""
        found, self._events = self._events, []
        return found

    # --- the drive's side

    def tick(self, now: int) -> None:
        """Treat commands that were issued more than the timeout before ``now`` (ps) as lost;
        :meth:`commands` returns them again. If event requests are older than the timeout, request
        the next block without an event. Do nothing if commands cannot be lost (``timeout_ps`` is
        0)."""
        flight = self._flight
        if not flight.timeout_ps:
            return
        flight.lose_old(now)
        if self.state is State.ENDING:
            flight.drop_old("event", now)
        elif self.state in RECEIVING and not self._hold:
            silent = self._deaf or flight.has_old("event", now)
            self._deaf = False
            if silent and self._taken == self._received:
                flight.drop_old("event", now)
                self._ask.append(self._received)
        self._advance()

    def reset(self) -> None:
        """Handle a reset of the controller: its commands are lost, and :meth:`commands` returns
        them again. The tunnel stays open."""
        self._flight.forget("event")
        self._flight.lose_all()
        self._deaf = False
        self._advance()

    def commands(self, now: int = 0) -> list[Command]:
        """Return all tunnel commands that may be submitted now. ``now``: current time, ps."""
        found = self.requests(now)
        while (command := self.write(now)) is not None:
            found.append(command)
        return found

    def requests(self, now: int = 0) -> list[Command]:
        """Return the open, close, event and receive commands to submit now, and all commands that
        must be issued again."""
        self._advance()
        flight, most = self._flight, self.form.outstanding
        found = flight.again(now)
        if self.state is State.OPENING and not self._asked:
            found.append(flight.issue("open", 0, now, b"", **self._open_fields()))
            self._asked = True
        if self.state in (State.CLOSING, State.FAILED) and not self._asked:
            at_once = int(self.state is State.FAILED)
            fields = {"cdw10": protocol.CLOSE, "cdw11": at_once, "cdw13": self.descriptor}
            found.append(flight.issue("close", 0, now, b"", **fields))
            self._asked = True
        if self.state in (State.OPEN, State.DRAINING, State.CLOSING) and not self._hold:
            while flight.count("event") < most and not self._deaf:
                found.append(flight.issue("event", 0, now))
        if self.state in RECEIVING and not self._failed:
            found += self._receives(now)
        return found

    def _receives(self, now: int) -> list[Command]:
        """Return the receive commands that may be submitted now."""
        ending, most = self.state is State.ENDING, self.form.outstanding
        numbers, self._ask = self._ask, []
        if ending:
            numbers = [number for number in numbers if behind(number, self._announced)]
        ahead = self._hold and not ending
        while behind(self._taken, self._received) < most and (
            ahead or behind(self._received, self._announced)
        ):
            numbers.append(self._received)
            self._received = (self._received + 1) & MASK
        return [
            self._receive(number, now)
            for number in dict.fromkeys(numbers)
            if not self._flight.has("receive", number)
        ]

    def write(self, now: int = 0) -> Command | None:
        """Return the write command of the next block, or None if no write may be submitted now."""
        up = self.state in (State.OPEN, State.DRAINING)
        behind_by = behind(self._confirmed, self._written)
        if not (up and self._out.blocks and behind_by < self.form.outstanding):
            return None
        data, first = self._out.cut()
        number = self._written
        self._written = (number + 1) & MASK
        return self._flight.issue(
            "write", number, now, data, cdw10=protocol.COMMUNICATE, cdw11=protocol.WRITE,
            cdw12=len(data), cdw13=self.descriptor, cdw14=number, cdw15=first,
        )  # fmt: skip

    def _receive(self, number: int, now: int) -> Command:
        return self._flight.issue(
            "receive", number, now, cdw10=protocol.COMMUNICATE, cdw11=protocol.RECEIVE,
            cdw12=self.form.payload, cdw13=self.descriptor, cdw14=number,
        )  # fmt: skip

    def _open_fields(self) -> dict[str, int]:
        form, flags = self.form, protocol.TAKE_OVER * self.take_over
        if self._hold:
            flags |= protocol.HOLD | form.hold_ps // PS_PER_MS << protocol.HOLD_SHIFT
        flags |= protocol.OFFLOADS * form.offloads
        sizes = form.mtu | form.outstanding << 16
        fields = {"cdw10": protocol.OPEN, "cdw11": flags, "cdw12": form.payload}
        return fields | {"cdw13": self._opening, "cdw14": sizes}

    def completed(self, completion: Completion) -> None:
        """Handle the completion of a command of the host's relay."""
        found = self._flight.completed(completion)
        if found is not None:
            kind, number, cqe = found
            if kind == "open":
                self._opened(cqe)
            elif kind == "close":
                self._closed(cqe)
            elif kind == "event":
                self._told(cqe)
            elif kind == "receive":
                self._arrived(number, cqe, completion.data)
            else:
                self._wrote(number, cqe)
        self._advance()

    # --- handlers of completions

    def _opened(self, cqe: Cqe) -> None:
        if cqe.status == wire.INVALID_FIELD and self.form.offloads:
            self.form = replace(self.form, offloads=False)
            self._in = Unpacker(self.form.longest)
            self._asked = False
            return
        if cqe.status:
            self._fail(cqe.status, "open")
            self._go("refused")
            return
        self.descriptor = cqe.dw0
        self._events.append(Opened(cqe.dw0))
        self._go("opened")

    def _closed(self, cqe: Cqe) -> None:
        """Handle the completion of the close command: the drive has closed the tunnel. ``cqe.dw0``
        is the number of blocks that it has sent."""
        if cqe.status and not self._failed:
            self._events.append(Failed(cqe.status, "close"))
        self._announced = cqe.dw0
        self._go("closed")

    def _told(self, cqe: Cqe) -> None:
        if cqe.status == wire.ABORTED and self.state in (State.CLOSING, State.ENDING):
            self._deaf = True
        elif self._flight.timeout_ps and cqe.status in (wire.EVENT_LIMIT, wire.ID_CONFLICT):
            self._deaf = True  # requests that are taken for lost are not; see tick
        elif cqe.status:
            self._fail(cqe.status, "event")
        elif cqe.dw0 & 0x7 == wire.EVENT_VENDOR and cqe.dw0 >> 16 & 0xFF == self.descriptor:
            what = cqe.dw0 >> 8 & 0xFF
            if what == protocol.DATA:
                self._announce(cqe.dw1)
            elif what == protocol.CLOSING:
                self._close_asked = True

    def _announce(self, blocks: int) -> None:
        if behind(self._announced, blocks) and self.state is not State.ENDING:
            self._announced = blocks

    def _wrote(self, number: int, cqe: Cqe) -> None:
        if cqe.status not in (wire.SUCCESS, wire.NOT_IP):
            self._fail(cqe.status, f"write of block {number}")
            return
        self.dropped += cqe.status == wire.NOT_IP
        self._ahead.add(number)
        while self._confirmed in self._ahead:
            self._ahead.remove(self._confirmed)
            self._confirmed = (self._confirmed + 1) & MASK

    def _arrived(self, number: int, cqe: Cqe, data: Data) -> None:
        """Handle block ``number``, received from the drive. Blocks are unpacked in the order of
        their numbers."""
        if cqe.status:
            self._not_received(number, cqe.status)
            return
        length = int.from_bytes(data[:READ_HEADER], "little")
        sent = bool(behind(number, self._announced))
        may_be_empty = self._hold or not sent or self._flight.timeout_ps > 0
        if length == 0 and len(data) == READ_HEADER and may_be_empty:
            if self._hold or sent:
                self._ask.append(number)
            self._close_asked |= cqe.dw0 == protocol.CLOSING
            return
        if not 0 < length <= min(self.form.up, len(data) - READ_HEADER):
            self._fail(wire.BAD_LENGTH, f"receive of block {number}")
            return
        self._announce(cqe.dw1)
        if number == self._received:  # asked for without an event
            self._received = (number + 1) & MASK
        self._held[number] = memoryview(data)[READ_HEADER : READ_HEADER + length], cqe.dw0
        while self._taken in self._held:
            status, packets = self._in.feed(*self._held.pop(self._taken))
            if status:
                self._fail(status, f"receive of block {self._taken}")
                return
            self._events += [Packet(packet) for packet in packets]
            self._taken = (self._taken + 1) & MASK

    def _not_received(self, number: int, status: int) -> None:
        """Handle an error status of a receive command. After a close, it is not a failure if the
        requested block does not exist."""
        closing = self.state in (State.CLOSING, State.ENDING) and status == wire.BAD_DESCRIPTOR
        if not closing or behind(number, self._announced):
            self._fail(status, f"receive of block {number}")

    def _fail(self, status: int, what: str) -> None:
        self._failed = True
        self._events.append(Failed(status, what))
        self._flight.forget("write", "receive", "event")
        self._go("failure")

    # --- states

    def _advance(self) -> None:
        """Make the state transitions that depend on a requested close, on outstanding commands and
        on waiting blocks."""
        if self._close_asked:
            self._go("close")
        if not self._out.blocks and not self._flight.count("write"):
            self._go("all written")
        if self.state is State.ENDING and self._flight.empty:
            if self._failed or not behind(self._taken, self._announced):
                self._events.append(Closed())
                self._go("nothing under way")
