"""Drive's end of the TCP/IP tunnel: replies to commands and announcements of blocks.

Owns the state of the drive's end of one tunnel at a time. Does not own the fields of the protocol
(protocol.py) or the host's end (host.py). The relay does no I/O and has no clock: it takes packets
and commands and returns completions and events. It completes every command with a status.
Source: see protocol.py.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel import protocol
from ondie.emu.nvme.tunnel.framing import READ_HEADER, Data, Format, Packer, Unpacker
from ondie.emu.nvme.tunnel.protocol import MASK, Closed, Event, Opened, Packet, behind, check
from ondie.emu.nvme.wire import Command, Completion, Cqe, Sqe
from ondie.emu.units import InputError

DESCRIPTORS = 255
"""Largest tunnel descriptor.

Tunnels are numbered from 1, so that a command of an old tunnel is detected.
"""


class State(Enum):
    """State of the drive's end of a tunnel."""

    CLOSED = "closed"
    OPEN = "open"
    CLOSING = "closing"  # a close waits until the last block has been received


class DeviceRelay:
    """State machine of the drive's end of a tunnel.

    ``command`` takes commands of the host, and ``send`` takes packets for the host. ``completions``
    and ``events`` return the results. ``limits``: largest payload, mtu and number of outstanding
    commands that a host may request; concatenation and notification, which the drive sets.
    """

    def __init__(self, limits: Format) -> None:
        self.limits = limits
        self.state = State.CLOSED
        self.descriptor = 0
        self.signals = 0
        """Number of events that announced blocks."""
        self.answered: Counter[int] = Counter()
        """Number of completions so far, by status code."""
        self._done: list[Completion] = []
        self._events: list[Event] = []
        self._listening: list[int] = []  # event requests, by command identifier
        self._reset(limits)

    def _reset(self, form: Format) -> None:
        self.form = form
        self._out = Packer(form.up, form.concatenate)
        self._in = Unpacker(form.mtu)
        self._expected = 0  # number of the next block down,
        self._cut = 0  # and up
        self._announced = 0
        self._writes: dict[int, tuple[int, Data, int]] = {}  # blocks ahead of the expected one
        self._reads: dict[int, int] = {}
        self._close_cid = -1
        self._closing = False  # the drive requests to close
        self._told = False

    # --- the drive's side

    def send(self, packet: Data, more: bool = False) -> bool:
        """Queue a packet for transfer to the host and return True.

        Unless the tunnel is open, drop the packet and return False. ``more``: True if other packets
        follow at once; the drive then does not signal yet. Raises InputError for a packet that is
        empty or longer than the mtu.
        """
        check(packet, self.form)
        if self.state is not State.OPEN or self._closing:
            return False
        self._out.push(packet)
        if not more:
            self._signal()
        return True

    def close(self) -> None:
        """Ask the host to close the tunnel after all packets have been transferred."""
        if self.state is State.OPEN:
            self._closing = True
            self._signal()

    @property
    def waiting(self) -> int:
        """Number of blocks that the packets waiting for transfer to the host will fill."""
        return self._out.blocks

    def events(self) -> list[Event]:
        """Return the tunnel events (protocol.py) at the drive's end since the last call."""
        found, self._events = self._events, []
        return found

    # --- the host's side

    def completions(self) -> list[Completion]:
        """Return the completions of commands since the last call."""
        found, self._done = self._done, []
        return found

    def command(self, command: Command) -> None:
        """Handle a command from the host; ``completions`` returns its completion."""
        if len(command.sqe) != wire.SQE_BYTES:
            self._answer(int.from_bytes(command.sqe[2:4], "little"), wire.INVALID_FIELD)
            return
        sqe = Sqe.unpack(command.sqe)
        status: int | None
        if sqe.cid in self._kept():
            status = wire.ID_CONFLICT
        elif sqe.opcode == wire.ASYNC_EVENT_REQUEST:
            status = self._listen(sqe)
        elif sqe.opcode != wire.TUNNEL:
            status = wire.INVALID_OPCODE
        elif sqe.cdw10 == protocol.OPEN:
            status = self._open(sqe)
        elif sqe.cdw10 not in (protocol.CLOSE, protocol.COMMUNICATE):
            status = wire.INVALID_FIELD
        elif self.state is State.CLOSED or sqe.cdw13 != self.descriptor:
            status = wire.BAD_DESCRIPTOR
        elif sqe.cdw10 == protocol.CLOSE:
            status = self._close(sqe)
        elif sqe.cdw11 == protocol.WRITE:
            status = self._write(sqe, command.data)
        elif sqe.cdw11 == protocol.RECEIVE:
            status = self._receive(sqe)
        else:
            status = wire.INVALID_FIELD
        if status is not None:
            self._answer(sqe.cid, status)
        self._signal()
        self._end()

    # --- handlers of commands: each returns a status, or None if it has completed the command or
    # will complete it later

    def _listen(self, sqe: Sqe) -> int | None:
        if self.state is State.CLOSED:
            return wire.ABORTED
        if len(self._listening) >= self.form.outstanding:
            return wire.EVENT_LIMIT
        self._listening.append(sqe.cid)
        return None

    def _open(self, sqe: Sqe) -> int | None:
        if self.state is not State.CLOSED:
            return wire.NO_DESCRIPTOR
        limits = self.limits
        payload, mtu, outstanding = sqe.cdw12, sqe.cdw14 & 0xFFFF, sqe.cdw14 >> 16
        if payload > limits.payload or mtu > limits.mtu or outstanding > limits.outstanding:
            return wire.INVALID_FIELD
        try:
            form = Format(payload, outstanding, mtu, limits.concatenate, limits.notify)
        except InputError:
            return wire.INVALID_FIELD
        self._reset(form)
        self.state = State.OPEN
        self.descriptor = self.descriptor % DESCRIPTORS + 1
        self._events.append(Opened(self.descriptor))
        self._answer(sqe.cid, wire.SUCCESS, dw0=self.descriptor)
        return None

    def _close(self, sqe: Sqe) -> int | None:
        if sqe.cdw11 not in (0, 1):
            return wire.INVALID_FIELD
        if sqe.cdw11 == 1:  # at once
            self._out = Packer(self.form.up, self.form.concatenate)
            self._announced = self._cut
            waiting = [cid for cid, _, _ in self._writes.values()] + [*self._reads.values()]
            waiting += [self._close_cid] if self.state is State.CLOSING else []
            for cid in waiting:
                self._answer(cid, wire.ABORTED)
            self._writes, self._reads = {}, {}
        elif self.state is State.CLOSING:
            return wire.BAD_DESCRIPTOR
        self.state = State.CLOSING
        self._close_cid = sqe.cid
        return None

    def _write(self, sqe: Sqe, data: Data) -> int | None:
        number, length = sqe.cdw14, sqe.cdw12
        if not 0 < length <= min(self.form.down, len(data)):
            return wire.BAD_LENGTH
        ahead = (number - self._expected) & MASK
        if ahead >= self.form.outstanding or number in self._writes:
            return wire.BAD_SEQUENCE
        self._writes[number] = sqe.cid, memoryview(data)[:length], sqe.cdw15
        while self._expected in self._writes:
            cid, block, first = self._writes.pop(self._expected)
            status, packets = self._in.feed(block, first)
            self._answer(cid, status)
            if status:
                break  # the host may send a correct block with this number
            self._events += [Packet(packet) for packet in packets]
            self._expected = (self._expected + 1) & MASK
        return None

    def _receive(self, sqe: Sqe) -> int | None:
        number = sqe.cdw14
        if sqe.cdw12:
            return wire.INVALID_FIELD
        ahead = (number - self._cut) & MASK
        if ahead >= self.form.outstanding or number in self._reads:
            return wire.BAD_SEQUENCE
        self._reads[number] = sqe.cid
        while self._cut in self._reads:
            cid = self._reads.pop(self._cut)
            if not self._out.blocks:
                self._answer(cid, wire.SUCCESS, dw1=self._cut, data=bytes(READ_HEADER))
                break
            block, first = self._out.cut(READ_HEADER)
            self._cut = (self._cut + 1) & MASK
            burst = self.form.notify == "burst"
            waiting = (self._cut + self._out.blocks) & MASK
            if burst or not behind(self._cut, self._announced):
                self._announced = waiting if burst else self._cut
            told = self._announced if burst else self._cut  # else the host waits for the signal
            self._answer(cid, wire.SUCCESS, first, told, block)
        return None

    # --- events

    def _signal(self) -> None:
        """Complete event requests to announce blocks that the host may receive."""
        if self.state is State.CLOSED:
            return
        end = (self._cut + self._out.blocks) & MASK
        while self._listening and behind(self._announced, end):
            if behind(self._cut, self._announced) >= self._ahead:
                break
            burst = self.form.notify == "burst"
            self._announced = end if burst else (self._announced + 1) & MASK
            self.signals += 1
            self._tell(protocol.DATA)
        if self._closing and not self._told and self._listening:
            self._told = True
            self._tell(protocol.CLOSING)

    @property
    def _ahead(self) -> int:
        """Maximum number of blocks that are announced and not yet received; at this number the
        drive announces no further block."""
        return 1 if self.form.notify == "burst" else self.form.outstanding

    def _tell(self, what: int) -> None:
        event = wire.EVENT_VENDOR | what << 8 | self.descriptor << 16
        self._answer(self._listening.pop(0), wire.SUCCESS, event, self._announced)

    def _end(self) -> None:
        """Complete the host's close command when no block is left to receive."""
        if self.state is not State.CLOSING or self._out.blocks or self._reads:
            return
        short = self._in.partial or self._writes
        for cid in [write[0] for write in self._writes.values()] + self._listening:
            self._answer(cid, wire.ABORTED)
        self._answer(self._close_cid, wire.BAD_FRAGMENT if short else wire.SUCCESS)
        self._listening = []
        self.state = State.CLOSED
        self._events.append(Closed())

    def _kept(self) -> set[int]:
        """Return the identifiers of all commands that are not completed yet."""
        kept = {*self._listening, *self._reads.values()} | {
            write[0] for write in self._writes.values()
        }
        return kept | {self._close_cid} if self.state is State.CLOSING else kept

    def _answer(self, cid: int, status: int, dw0: int = 0, dw1: int = 0, data: Data = b"") -> None:
        self.answered[status] += 1
        self._done.append(Completion(Cqe(cid, status, dw0, dw1).pack(), data))
