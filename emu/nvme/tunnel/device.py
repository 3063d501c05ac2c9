"""Drive's end of the TCP/IP tunnel: completes commands and announces blocks of packets.

Owns the state of the drive's end of one tunnel at a time. Does not own the fields of the protocol
(protocol.py) or the host's end (host.py). The drive's end does no I/O and has no clock: its inputs
are packets, commands and times (ps), and its outputs are completions and events. It completes every
command with a status.
Source: see protocol.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel import protocol
from ondie.emu.nvme.tunnel.framing import PS_PER_MS, READ_HEADER, Data, Format, Packer, Unpacker
from ondie.emu.nvme.tunnel.protocol import MASK, Closed, Event, Opened, Packet, behind, check
from ondie.emu.nvme.wire import Command, Completion, Cqe, Sqe
from ondie.emu.units import InputError

DESCRIPTORS = 255
"""Largest tunnel descriptor.

Descriptors are numbered from 1 and change with each tunnel, so that a command of an old tunnel is
detected.
"""


class State(Enum):
    """State of the drive's end of a TCP/IP tunnel."""

    CLOSED = "closed"
    OPEN = "open"
    CLOSING = "closing"  # a close waits until the last block has been received


class _Write(NamedTuple):
    """Write command of the host that the drive has not completed yet."""

    cid: int
    block: Data
    first: int
    until: int
    """Latest time at which the drive completes this write command, ps."""


class _Read(NamedTuple):
    """Receive command of the host that the drive has not completed yet."""

    cid: int
    until: int


class DeviceRelay:
    """State machine of the drive's end of a tunnel.

    ``command`` takes commands of the host, and ``send`` takes packets for the host. ``completions``
    and ``events`` return the results. ``limits``: largest payload, mtu, hold time and number of
    outstanding commands that a host may request, and the settings for concatenation and
    notification. A host must request that the drive holds receive commands if ``limits.notify`` is
    "hold", and must not request it otherwise. ``accepts``: function that returns True if a packet
    is to be passed on, or None to pass on all packets. Other packets are counted and dropped, and
    their write command ends with NOT_IP.
    """

    def __init__(self, limits: Format, accepts: Callable[[Data], bool] | None = None) -> None:
        self.limits = limits
        self.accepts = accepts
        self.state = State.CLOSED
        self.descriptor = 0
        self.signals = 0
        """Number of events that announced blocks."""
        self.answered: Counter[int] = Counter()
        """Number of completions so far, by status code."""
        self.counts: Counter[str] = Counter()
        """Counts since the relay was created: written and received blocks ("blocks_down",
        "blocks_up"), their bytes ("bytes_down", "bytes_up"), packets passed on ("packets_down"),
        sent ("packets_up") and dropped ("dropped"), repeated commands ("repeated"), and receive
        commands that ended without a block ("empty")."""
        self._done: list[Completion] = []
        self._events: list[Event] = []
        self._listening: list[int] = []  # event requests, by command identifier
        self.opening = 0
        """Number of the last opening, assigned by the host; 0 if there has been no opening."""
        self._paused = False  # by the drive, for this opening and later ones
        self._reset(limits)

    def _reset(self, form: Format) -> None:
        self.form = form
        self._out = Packer(form.up, form.concatenate)
        self._in = Unpacker(form.longest)
        self._expected = 0  # number of the next block down,
        self._cut = 0  # and up
        self._accepted = 0  # blocks that may be repeated, down
        self._sent: dict[int, tuple[Data, int]] = {}  # and up, by number
        self._announced = 0
        self._writes: dict[int, _Write] = {}  # blocks from the expected one on
        self._reads: dict[int, _Read] = {}
        self._close_cid = -1
        self._closing = False  # the drive requests to close
        self._told = False
        self._end_status = -1  # of the close of this tunnel, if it is closed

    # --- the drive's side

    def send(self, packet: Data, more: bool = False) -> bool:
        """Queue a packet for transfer to the host and return True.

        If the tunnel is not open, drop the packet and return False. ``more``: True if the caller
        sends further packets immediately afterwards; the drive then defers its signal to the host.
        Raises InputError if the packet is empty or longer than the mtu.
        """
        check(packet, self.form)
        if self.state is not State.OPEN or self._closing:
            return False
        self._out.push(packet)
        self.counts["packets_up"] += 1
        if not more:
            self._signal()
        return True

    def announce(self) -> None:
        """Announce to the host the packets that :meth:`send` has queued with ``more`` = True."""
        self._signal()

    def close(self) -> None:
        """Ask the host to close the tunnel. The queued packets are still transferred; packets that
        are sent later are dropped."""
        if self.state is State.OPEN:
            self._closing = True
            self._signal()

    @property
    def waiting(self) -> int:
        """Number of blocks that the packets waiting for transfer to the host will fill."""
        return self._out.blocks

    @property
    def numbers(self) -> tuple[int, int]:
        """Positions in the two streams of blocks: (number of the next block from the host, number
        of the next block to the host)."""
        return self._expected, self._cut

    def events(self) -> list[Event]:
        """Return the tunnel events (protocol.py) at the drive's end since the last call."""
        found, self._events = self._events, []
        return found

    def pause(self, paused: bool) -> None:
        """Pause the acceptance of blocks if ``paused`` is True; otherwise, resume it. During a
        pause, write commands wait, so that at most ``outstanding`` blocks are in flight. A write
        that waits for ``hold_ps`` ends with INTERRUPTED, and the host repeats it."""
        self._paused = paused
        self._accept_writes()
        self._end()

    def reset(self) -> None:
        """Handle a reset of the controller: discard its commands. The tunnel stays open; the host
        repeats the commands that were not completed."""
        self._done, self._listening = [], []
        self._writes, self._reads = {}, {}
        self._close_cid = -1
        self._announced, self._told = self._cut, False

    def abort(self, cid: int) -> bool:
        """Abort the waiting write or receive command with identifier ``cid``. Return False if there
        is no such command."""
        writes = [number for number, each in self._writes.items() if each.cid == cid]
        reads = [number for number, each in self._reads.items() if each.cid == cid]
        for number in writes:
            del self._writes[number]
        for number in reads:
            del self._reads[number]
        if writes or reads:
            self._answer(cid, wire.ABORTED)
        return bool(writes or reads)

    # --- time

    @property
    def deadline(self) -> int | None:
        """Time at which :meth:`tick` must be called next, ps, or None if no command is held."""
        writes = (each.until for each in self._writes.values())
        return min((*writes, *(each.until for each in self._reads.values())), default=None)

    def tick(self, now: int) -> None:
        """End the commands whose hold time has expired at time ``now`` (ps)."""
        for number, read in list(self._reads.items()):
            if read.until <= now:
                del self._reads[number]
                self._answer_empty(read.cid)
        for number, write in list(self._writes.items()):
            if write.until <= now:
                del self._writes[number]
                self._answer(write.cid, wire.INTERRUPTED)

    # --- the host's side

    def completions(self) -> list[Completion]:
        """Return the completions of the host's commands since the last call."""
        found, self._done = self._done, []
        return found

    def command(self, command: Command, now: int = 0) -> None:
        """Handle a command from the host at time ``now`` (ps); ``completions`` returns its
        completion."""
        if len(command.sqe) != wire.SQE_BYTES:
            self._answer(int.from_bytes(command.sqe[2:4], "little"), wire.INVALID_FIELD)
            return
        sqe = Sqe.unpack(command.sqe)
        status = self._execute(sqe, command.data, now)
        if status is not None:
            self._answer(sqe.cid, status)
        self._signal()
        self._end()

    def _execute(self, sqe: Sqe, data: Data, now: int) -> int | None:
        """Execute a command. Return its status, or None if the command was completed already or
        will be completed later. The results of the handlers below have the same meaning."""
        waits = self._reads or self._writes or self._listening or self._close_cid >= 0
        if waits and sqe.cid in self._waiting_cids():
            return wire.ID_CONFLICT
        if sqe.opcode == wire.ASYNC_EVENT_REQUEST:
            return self._listen(sqe)
        known = self.state is not State.CLOSED and sqe.cdw13 == self.descriptor
        match sqe.opcode, sqe.cdw10:
            case wire.TUNNEL, protocol.OPEN:
                return self._open(sqe)
            case wire.TUNNEL, protocol.CLOSE:
                return self._close(sqe)
            case wire.TUNNEL_SEND, protocol.COMMUNICATE:
                return self._write(sqe, data, now) if known else wire.BAD_DESCRIPTOR
            case wire.TUNNEL_RECEIVE, protocol.COMMUNICATE:
                return self._receive(sqe, now)
            case ((wire.TUNNEL | wire.TUNNEL_SEND | wire.TUNNEL_RECEIVE), _):
                return wire.INVALID_FIELD
        return wire.INVALID_OPCODE

    # --- handlers of commands

    def _listen(self, sqe: Sqe) -> int | None:
        if self.state is State.CLOSED:
            return wire.ABORTED
        if len(self._listening) >= self.form.outstanding:
            return wire.EVENT_LIMIT
        self._listening.append(sqe.cid)
        return None

    def _open(self, sqe: Sqe) -> int | None:
        opening = sqe.cdw13
        again = opening != 0 and opening == self.opening
        if again and self.state is not State.CLOSED:
            self.counts["repeated"] += 1
            self._answer(sqe.cid, wire.SUCCESS, dw0=self.descriptor)
            return None
        if again:
            return wire.BAD_SEQUENCE  # a late repetition: that tunnel is closed
        flags = sqe.cdw11 & (1 << protocol.HOLD_SHIFT) - 1
        if self.state is not State.CLOSED and not flags & protocol.TAKE_OVER:
            return wire.NO_DESCRIPTOR
        form = self._form(sqe, flags)
        if form is None or flags & ~(protocol.HOLD | protocol.TAKE_OVER | protocol.OFFLOADS):
            return wire.INVALID_FIELD
        if self.state is not State.CLOSED:
            self._drop()
            self._finish(wire.ABORTED)
        self._reset(form)
        self.state = State.OPEN
        self.opening = opening
        self.descriptor = self.descriptor % DESCRIPTORS + 1
        self._events.append(Opened(self.descriptor))
        self._answer(sqe.cid, wire.SUCCESS, dw0=self.descriptor)
        return None

    def _form(self, sqe: Sqe, flags: int) -> Format | None:
        """Return the parameters that an open command requests, or None if the drive does not offer
        them."""
        limits, hold_ps = self.limits, (sqe.cdw11 >> protocol.HOLD_SHIFT) * PS_PER_MS
        payload, mtu, outstanding = sqe.cdw12, sqe.cdw14 & 0xFFFF, sqe.cdw14 >> 16
        hold, offloads = bool(flags & protocol.HOLD), bool(flags & protocol.OFFLOADS)
        if payload > limits.payload or mtu > limits.mtu or outstanding > limits.outstanding:
            return None
        if offloads and not limits.offloads:
            return None
        if hold != (limits.notify == "hold") or (hold and hold_ps > limits.hold_ps):
            return None
        try:
            return Format(
                payload, outstanding, mtu, limits.concatenate, limits.notify,
                hold_ps if hold else limits.hold_ps, offloads,
            )  # fmt: skip
        except InputError:
            return None

    def _close(self, sqe: Sqe) -> int | None:
        if sqe.cdw13 != self.descriptor:
            return wire.BAD_DESCRIPTOR
        if sqe.cdw11 not in (0, 1):
            return wire.INVALID_FIELD
        if self.state is State.CLOSED:
            if self._end_status < 0:
                return wire.BAD_DESCRIPTOR
            self.counts["repeated"] += 1
            self._answer(sqe.cid, self._end_status, dw0=self._cut)
            return None
        if sqe.cdw11 == 1:  # at once
            self._drop()
        elif self.state is State.CLOSING:
            self._abort_close()
        self.state = State.CLOSING
        self._close_cid = sqe.cid
        return None

    def _abort_close(self) -> None:
        """Abort a waiting close command because another close command has arrived."""
        if self._close_cid >= 0:
            self._answer(self._close_cid, wire.ABORTED)

    def _drop(self) -> None:
        """Drop the packets for the host and abort all commands except event requests."""
        self._out = Packer(self.form.up, self.form.concatenate)
        self._announced = self._cut
        writes = [write.cid for write in self._writes.values()]
        for cid in writes + [read.cid for read in self._reads.values()]:
            self._answer(cid, wire.ABORTED)
        if self.state is State.CLOSING:
            self._abort_close()
        self._writes, self._reads, self._close_cid = {}, {}, -1

    def _write(self, sqe: Sqe, data: Data, now: int) -> int | None:
        number, length = sqe.cdw14, sqe.cdw12
        if sqe.cdw11 != protocol.WRITE:
            return wire.INVALID_FIELD
        if not 0 < length <= min(self.form.down, len(data)):
            return wire.BAD_LENGTH
        if 0 < (self._expected - number) & MASK <= min(self._accepted, self.form.outstanding):
            self.counts["repeated"] += 1
            return wire.SUCCESS
        if (number - self._expected) & MASK >= self.form.outstanding:
            return wire.BAD_SEQUENCE
        if number in self._writes:
            self.counts["repeated"] += 1
            self._answer(self._writes[number].cid, wire.ABORTED)
        block = memoryview(data)[:length]
        self._writes[number] = _Write(sqe.cid, block, sqe.cdw15, now + self.form.hold_ps)
        self._accept_writes()
        return None

    def _accept_writes(self) -> None:
        """Accept the blocks that are next in sequence, unless the drive is paused."""
        while self._expected in self._writes and not self._paused:
            write = self._writes.pop(self._expected)
            status, packets = self._in.feed(write.block, write.first)
            if status:  # the host may send a correct block with this number
                self._answer(write.cid, status)
                break
            good = packets if self.accepts is None else self._accepted_of(packets, self.accepts)
            self._events += [Packet(packet) for packet in good]
            self._expected = (self._expected + 1) & MASK
            self._accepted += 1
            counts = self.counts
            counts["blocks_down"] += 1
            counts["bytes_down"] += len(write.block)
            counts["packets_down"] += len(good)
            counts["dropped"] += len(packets) - len(good)
            self._answer(write.cid, wire.SUCCESS if len(good) == len(packets) else wire.NOT_IP)

    def _accepted_of(
        self, packets: list[Data], accepts: Callable[[Data], bool]
    ) -> list[Data]:  # fmt: skip
        """Return the packets whose content after the offload header is accepted by ``accepts``."""
        lead = self.form.lead
        return [each for each in packets if accepts(each[lead:] if lead else each)]

    def _receive(self, sqe: Sqe, now: int) -> int | None:
        number, form = sqe.cdw14, self.form
        if sqe.cdw13 != self.descriptor or (self.state is State.CLOSED and self._end_status < 0):
            return wire.BAD_DESCRIPTOR
        if sqe.cdw11 != protocol.RECEIVE:
            return wire.INVALID_FIELD
        if sqe.cdw12 != form.payload:
            return wire.BAD_LENGTH
        if number in self._sent:
            self.counts["repeated"] += 1
            block, first = self._sent[number]
            told = self._announced if form.notify == "burst" else self._cut
            self._answer(sqe.cid, wire.SUCCESS, first, told, block)
            return None
        if self.state is State.CLOSED:
            return wire.BAD_DESCRIPTOR
        if (number - self._cut) & MASK >= form.outstanding:
            return wire.BAD_SEQUENCE
        if number in self._reads:
            self.counts["repeated"] += 1
            self._answer(self._reads[number].cid, wire.ABORTED)
        self._reads[number] = _Read(sqe.cid, now + form.hold_ps)
        self._send_blocks()
        return None

    def _send_blocks(self) -> None:
        """Send the next blocks to the host as data of its receive commands, while packets are
        available."""
        form = self.form
        burst = form.notify == "burst"
        while self._cut in self._reads:
            if not self._out.blocks:
                if form.notify != "hold":
                    self._answer_empty(self._reads.pop(self._cut).cid)
                elif self._closing and not self._told:
                    self._told = True
                    self._answer_empty(self._reads.pop(self._cut).cid)
                break
            number, cid = self._cut, self._reads.pop(self._cut).cid
            block, first = self._out.cut(READ_HEADER)
            self._sent[number] = block, first
            self._sent.pop((number - form.outstanding) & MASK, None)
            self._cut = (number + 1) & MASK
            if burst or not behind(self._cut, self._announced):
                waiting = (self._cut + self._out.blocks) & MASK
                self._announced = waiting if burst else self._cut
            told = self._announced if burst else self._cut  # else the host waits for the signal
            self.counts["blocks_up"] += 1
            self.counts["bytes_up"] += len(block) - READ_HEADER
            self._answer(cid, wire.SUCCESS, first, told, block)

    # --- events

    def _signal(self) -> None:
        """Announce blocks that the host may receive by completing event requests, or complete the
        receive commands held for the blocks."""
        if self.state is State.CLOSED:
            return
        if self.form.notify == "hold":
            self._send_blocks()
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
        """Number of announced blocks not yet received by the host at which the drive stops
        announcing further blocks."""
        return 1 if self.form.notify == "burst" else self.form.outstanding

    def _tell(self, what: int) -> None:
        event = wire.EVENT_VENDOR | what << 8 | self.descriptor << 16
        self._answer(self._listening.pop(0), wire.SUCCESS, event, self._announced)

    def _end(self) -> None:
        """Complete the host's waiting close command if receive commands have transferred all
        blocks."""
        if self.state is not State.CLOSING or self._out.blocks or self._close_cid < 0:
            return
        for read in self._reads.values():
            self._answer_empty(read.cid)
        self._reads = {}
        self._finish(wire.BAD_FRAGMENT if self._in.partial or self._writes else wire.SUCCESS)

    def _finish(self, status: int) -> None:
        """Close the tunnel. ``status``: status of the host's close command, if there is one."""
        for cid in [write.cid for write in self._writes.values()] + self._listening:
            self._answer(cid, wire.ABORTED)
        if self._close_cid >= 0:
            self._answer(self._close_cid, status, dw0=self._cut)
        self._writes, self._listening, self._close_cid = {}, [], -1
        self._end_status = status
        self.state = State.CLOSED
        self._events.append(Closed())

    def _waiting_cids(self) -> set[int]:
        """Return the identifiers of all commands that are not completed yet."""
        held = {*self._listening, *(each.cid for each in self._reads.values())}
        return held | {self._close_cid} | {each.cid for each in self._writes.values()}

    def _answer_empty(self, cid: int) -> None:
        """Complete a receive command without a block."""
        self.counts["empty"] += 1
        dw0 = protocol.CLOSING if self._closing else 0
        self._answer(cid, wire.SUCCESS, dw0, self._cut, bytes(READ_HEADER))

    def _answer(self, cid: int, status: int, dw0: int = 0, dw1: int = 0, data: Data = b"") -> None:
        self.answered[status] += 1
        self._done.append(Completion(Cqe(cid, status, dw0, dw1).pack(), data))
