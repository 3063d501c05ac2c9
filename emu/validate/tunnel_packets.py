"""The tunnel packet by packet in virtual time: real relays, real commands, one host CPU for all.

Owns an event simulation of messages between a host and its drives, each sent when others have
arrived. Does not own the protocol (tunnel.py, tunnel_device.py), whose state machines it runs, or
the closed form that it is held against (tunnel_cost.py, stannis/allreduce.py).
Source: own. Every packet is made, cut, carried and put together again; the host's relay has a
thread each way for every tunnel, and so many of all these threads work at once, in the order in
which they have something to do. Links are not modelled: a command's time has its transfer.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ondie.emu.nvme import wire as nvme
from ondie.emu.nvme.tunnel import protocol as words
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.nvme.tunnel.device import DeviceRelay
from ondie.emu.nvme.tunnel.framing import READ_HEADER
from ondie.emu.nvme.tunnel.host import HostRelay
from ondie.emu.nvme.tunnel.timing import SEGMENT_HEADER, handling
from ondie.emu.nvme.wire import Command, Completion, Cqe, Sqe

HOST = 0
_TAG = 12
"""Bytes by which a packet is known: message 4, number 4, length 4."""


@dataclass(frozen=True)
class Transfer:
    """A message of ``n_bytes`` from a node to another; node 0 is the host, node i + 1 drive i.
    ``after``: messages that must have arrived before it begins, by their place."""

    source: int
    to: int
    n_bytes: int
    after: tuple[int, ...] = ()


@dataclass
class Outcome:
    """What a run took. Times in ps."""

    arrived: list[int]
    """When each message was there."""
    cpu_ps: int
    """Of the host's relay, all threads."""
    received: int
    written: int
    notified: int
    lost: int
    """Packets that did not come as they were sent, or not in order."""

    @property
    def end_ps(self) -> int:
        return max(self.arrived, default=0)

    @property
    def commands(self) -> int:
        return self.received + self.written + self.notified


def run(transfers: Sequence[Transfer], drives: int, cost: TunnelCost) -> Outcome:
    """All transfers, from time 0 on, tunnels open."""
    return _Run(transfers, drives, cost).outcome()


@dataclass
class _Thread:
    """One way of one tunnel's relay in the host: jobs in turn."""

    jobs: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)
    busy: bool = False


class _Tunnel:
    """A drive's tunnel, open."""

    def __init__(self, cost: TunnelCost) -> None:
        self.host = HostRelay(cost.form)
        self.device = DeviceRelay(cost.form)
        self.up, self.down = _Thread(), _Thread()
        self.kinds: dict[int, str] = {}
        """Of the commands in flight, by identifier."""
        self.host.open()
        for _ in range(2):  # open, and its event requests
            for command in self.host.requests():
                self.device.command(command)
            for completion in self.device.completions():
                self.host.completed(completion)
        self.host.issued.clear()


class _Run:
    def __init__(self, transfers: Sequence[Transfer], drives: int, cost: TunnelCost) -> None:
        self.cost = cost
        self.transfers = transfers
        self.tunnels = [_Tunnel(cost) for _ in range(drives)]
        self.now = 0
        self._events: list[tuple[int, int, int, Callable[[], None]]] = []
        self._order = 0
        self._cores = cost.threads
        self._waiting: deque[_Thread] = deque()
        self._cpu = 0
        self._packets = [self._cut(i, t.n_bytes) for i, t in enumerate(transfers)]
        self._next = [0] * len(transfers)  # packet of each message
        self._arrived = [-1] * len(transfers)
        self._left = [len(set(t.after)) for t in transfers]
        self._lost = 0

    def outcome(self) -> Outcome:
        for at, left in enumerate(self._left):
            if not left:
                self._begin(at)
        while self._events:
            self.now, _, _, action = heapq.heappop(self._events)
            action()
        issued = [t.host.issued for t in self.tunnels]
        return Outcome(
            self._arrived,
            self._cpu,
            sum(i["receive"] for i in issued),
            sum(i["write"] for i in issued),
            sum(t.device.signals for t in self.tunnels),
            self._lost + sum(at < 0 for at in self._arrived),
        )

    # --- messages and packets

    def _cut(self, at: int, n: int) -> list[bytes]:
        """IP packets of a message, each with its tag."""
        most, found = self.cost.form.mtu - SEGMENT_HEADER, []
        for number, start in enumerate(range(0, n, most)):
            length = min(most, n - start) + SEGMENT_HEADER
            tag = b"".join(x.to_bytes(4, "little") for x in (at, number, length))
            found.append(tag + bytes(length - _TAG))
        return found

    def _begin(self, at: int) -> None:
        transfer, packets = self.transfers[at], self._packets[at]
        if transfer.source == HOST:
            tunnel = self.tunnels[transfer.to - 1]
            for packet in packets:
                tunnel.host.send(packet)
            self._at(self.now, partial(self._push, tunnel), 2)
            return
        tunnel = self.tunnels[transfer.source - 1]
        for packet in packets:
            tunnel.device.send(packet, more=packet is not packets[-1])
        self._answers(tunnel)

    def _take(self, packet: bytes, node: int) -> None:
        """A packet has come out of a tunnel, at the host or at a drive."""
        at, number, length = (int.from_bytes(packet[i : i + 4], "little") for i in (0, 4, 8))
        transfer = self.transfers[at]
        if node == HOST and transfer.to != HOST:
            tunnel = self.tunnels[transfer.to - 1]
            tunnel.host.send(packet)
            self._at(self.now, partial(self._push, tunnel), 2)
            return
        if node != transfer.to or number != self._next[at] or length != len(packet):
            self._lost += 1
        self._next[at] += 1
        if self._next[at] == len(self._packets[at]):
            self._arrived[at] = self.now
            for other, later in enumerate(self.transfers):
                if at in later.after:
                    self._left[other] -= 1
                    if not self._left[other]:
                        self._begin(other)

    # --- commands

    def _push(self, tunnel: _Tunnel) -> None:
        """The relay's thread downward takes the next block, if it may."""
        if tunnel.down.busy or tunnel.down.jobs:
            return
        command = tunnel.host.write()
        if command is not None:
            self._note(tunnel, command)
            work = handling(len(command.data), self.cost.down)
            self._job(tunnel.down, work, partial(self._written, tunnel, command))

    def _written(self, tunnel: _Tunnel, command: Command) -> None:
        self._at(self.now + self.cost.down.command, partial(self._executed, tunnel, command))
        self._at(self.now, partial(self._push, tunnel), 2)

    def _requests(self, tunnel: _Tunnel) -> None:
        """What the relay asks for: event requests are there at once, receptions take their time."""
        for command in tunnel.host.requests():
            if self._note(tunnel, command) == "event":
                tunnel.device.command(command)
            else:
                later = self.now + self.cost.up.command
                self._at(later, partial(self._executed, tunnel, command))
        self._answers(tunnel)

    def _executed(self, tunnel: _Tunnel, command: Command) -> None:
        tunnel.device.command(command)
        self._answers(tunnel)
        for event in tunnel.device.events():
            if isinstance(event, words.Packet):
                self._take(event.data, self.tunnels.index(tunnel) + 1)

    def _answers(self, tunnel: _Tunnel) -> None:
        """Completions on their way, and what the relay does with them."""
        for completion in tunnel.device.completions():
            kind = tunnel.kinds.pop(Cqe.unpack(completion.cqe).cid, "event")
            if kind == "write":
                self._completed(tunnel, completion)
            elif kind == "event":
                later = self.now + self.cost.up.notify
                self._at(later, partial(self._called, tunnel, completion))
            else:
                work = handling(len(completion.data) - READ_HEADER, self.cost.up)
                self._job(tunnel.up, work, partial(self._completed, tunnel, completion))

    def _called(self, tunnel: _Tunnel, completion: Completion) -> None:
        self._job(tunnel.up, self.cost.up.cpu, partial(self._completed, tunnel, completion))

    def _completed(self, tunnel: _Tunnel, completion: Completion) -> None:
        tunnel.host.completed(completion)
        for event in tunnel.host.events():
            if isinstance(event, words.Packet):
                self._take(event.data, HOST)
        self._requests(tunnel)
        self._at(self.now, partial(self._push, tunnel), 2)

    def _note(self, tunnel: _Tunnel, command: Command) -> str:
        sqe = Sqe.unpack(command.sqe)
        kind = "event"
        if sqe.opcode == nvme.TUNNEL:
            kind = "write" if sqe.cdw11 == words.WRITE else "receive"
        tunnel.kinds[sqe.cid] = kind
        return kind

    # --- time and the host's CPU

    def _at(self, time: int, action: Callable[[], None], rank: int = 1) -> None:
        """Something happens; at equal times lower ranks go first."""
        self._order += 1
        heapq.heappush(self._events, (time, rank, self._order, action))

    def _job(self, thread: _Thread, work: int, then: Callable[[], None]) -> None:
        thread.jobs.append((work, then))
        if not thread.busy:
            thread.busy = True
            self._waiting.append(thread)
            self._dispatch()

    def _dispatch(self) -> None:
        """Threads with something to do get a core, in turn."""
        while self._cores and self._waiting:
            thread = self._waiting.popleft()
            work, then = thread.jobs.popleft()
            self._cores -= 1
            self._cpu += work
            self._at(self.now + work, partial(self._over, thread, then), 0)

    def _over(self, thread: _Thread, then: Callable[[], None]) -> None:
        self._cores += 1
        thread.busy = False
        if thread.jobs:
            thread.busy = True
            self._waiting.append(thread)
        then()
        self._dispatch()
