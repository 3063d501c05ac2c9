"""Packet simulation of the TCP/IP tunnels in virtual time, with the relays' state machines.

Owns an event simulation of messages between a host and its drives; a message can depend on the
arrival of other messages. Does not own the protocol (nvme/tunnel/host.py, nvme/tunnel/device.py),
whose state machines run here, or the closed form with which the simulation is compared
(nvme/tunnel/cost.py, cluster/collectives/). Source: this project.

Every packet is built, packed into commands, transferred and unpacked. The host's relay has one
thread per direction for every tunnel. At most TunnelCost.threads of these threads run at the same
time; they get a core in the order in which they become ready. Links are not modeled: the command
time includes the transfer.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel import protocol
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.nvme.tunnel.device import DeviceRelay
from ondie.emu.nvme.tunnel.framing import READ_HEADER
from ondie.emu.nvme.tunnel.host import HostRelay
from ondie.emu.nvme.tunnel.timing import SEGMENT_HEADER, handling
from ondie.emu.nvme.wire import Command, Completion, Cqe, Sqe

HOST_NODE = 0
_TAG = 12
"""Size of the tag that identifies a packet (bytes): message 4, number 4, length 4."""


@dataclass(frozen=True)
class Transfer:
    """Message of ``n_bytes`` from node ``source`` to node ``to``.

    Node 0 is the host, and node i + 1 is drive i. ``after``: indices of the messages that must
    arrive before this message starts.
    """

    source: int
    to: int
    n_bytes: int
    after: tuple[int, ...] = ()


@dataclass
class Outcome:
    """Results of a packet simulation. Times are in ps of virtual time."""

    arrived: list[int]
    """Arrival time of each message; -1 if the message did not arrive."""
    cpu_ps: int
    """CPU time of the host's relay (ps), over all of its threads."""
    received: int
    written: int
    notified: int
    lost: int
    """Number of packets that arrived damaged or out of order, plus number of messages not
    received."""

    @property
    def end_ps(self) -> int:
        """Arrival time of the message that arrives last (ps)."""
        return max(self.arrived, default=0)

    @property
    def commands(self) -> int:
        """Number of commands of all tunnels, including notifications."""
        return self.received + self.written + self.notified


def run(transfers: Sequence[Transfer], drives: int, cost: TunnelCost) -> Outcome:
    """Simulate all transfers, starting at time 0 with open tunnels, and return the results."""
    return _Run(transfers, drives, cost).outcome()


@dataclass
class _Thread:
    """Thread of the host's relay for one direction of one tunnel. It runs its jobs in order."""

    jobs: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)
    busy: bool = False


class _Tunnel:
    """State of the open tunnel of one drive: relays at both ends, threads, and commands in
    flight."""

    def __init__(self, cost: TunnelCost) -> None:
        self.host = HostRelay(cost.form)
        self.device = DeviceRelay(cost.form)
        self.up, self.down = _Thread(), _Thread()
        self.kinds: dict[int, str] = {}
        """Kind of each command in flight, by command identifier."""
        self.host.open()
        for _ in range(2):  # first the open command, then the event requests
            for command in self.host.requests():
                self.device.command(command)
            for completion in self.device.completions():
                self.host.completed(completion)
        self.host.issued.clear()


class _Run:
    """State of one simulation: tunnels, pending events, cores, and progress of each message."""

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
        self._next = [0] * len(transfers)  # next expected packet of each message
        self._arrived = [-1] * len(transfers)
        self._left = [len(set(t.after)) for t in transfers]
        self._lost = 0

    def outcome(self) -> Outcome:
        """Process all events and return the results."""
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
        """Return the tagged IP packets of the message with index ``at``, which has ``n`` bytes."""
        most, found = self.cost.form.mtu - SEGMENT_HEADER, []
        for number, start in enumerate(range(0, n, most)):
            length = min(most, n - start) + SEGMENT_HEADER
            tag = b"".join(x.to_bytes(4, "little") for x in (at, number, length))
            found.append(tag + bytes(length - _TAG))
        return found

    def _begin(self, at: int) -> None:
        """Send all packets of the message with index ``at`` from its source."""
        transfer, packets = self.transfers[at], self._packets[at]
        if transfer.source == HOST_NODE:
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
        """Handle a packet that leaves a tunnel at ``node``: forward the packet, or count it as
        arrived."""
        at, number, length = (int.from_bytes(packet[i : i + 4], "little") for i in (0, 4, 8))
        transfer = self.transfers[at]
        if node == HOST_NODE and transfer.to != HOST_NODE:
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
        """Start the next block of the host-to-drive thread if the thread is idle and a command is
        available."""
        if tunnel.down.busy or tunnel.down.jobs:
            return
        command = tunnel.host.write()
        if command is not None:
            self._note(tunnel, command)
            work = handling(len(command.data), self.cost.down)
            self._job(tunnel.down, work, partial(self._written, tunnel, command))

    def _written(self, tunnel: _Tunnel, command: Command) -> None:
        """Schedule the execution of a write command that the relay has issued."""
        self._at(self.now + self.cost.down.command, partial(self._executed, tunnel, command))
        self._at(self.now, partial(self._push, tunnel), 2)

    def _requests(self, tunnel: _Tunnel) -> None:
        """Issue the relay's requests: an event request immediately, and each receive command when
        its command time has passed."""
        for command in tunnel.host.requests():
            if self._note(tunnel, command) == "event":
                tunnel.device.command(command)
            else:
                later = self.now + self.cost.up.command
                self._at(later, partial(self._executed, tunnel, command))
        self._answers(tunnel)

    def _executed(self, tunnel: _Tunnel, command: Command) -> None:
        """Execute a command on the drive and handle its completions and received packets."""
        tunnel.device.command(command)
        self._answers(tunnel)
        for event in tunnel.device.events():
            if isinstance(event, protocol.Packet):
                self._take(bytes(event.data), self.tunnels.index(tunnel) + 1)

    def _answers(self, tunnel: _Tunnel) -> None:
        """Deliver the drive's completions to the host and schedule the relay's work for them."""
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
        """Queue the CPU time with which the relay handles the notification of an event."""
        self._job(tunnel.up, self.cost.up.cpu, partial(self._completed, tunnel, completion))

    def _completed(self, tunnel: _Tunnel, completion: Completion) -> None:
        """Pass a completion to the relay, handle received packets, and issue further commands."""
        tunnel.host.completed(completion)
        for event in tunnel.host.events():
            if isinstance(event, protocol.Packet):
                self._take(bytes(event.data), HOST_NODE)
        self._requests(tunnel)
        self._at(self.now, partial(self._push, tunnel), 2)

    def _note(self, tunnel: _Tunnel, command: Command) -> str:
        """Store the kind of a command ("event", "write" or "receive") and return this kind."""
        sqe = Sqe.unpack(command.sqe)
        kind = {wire.TUNNEL_SEND: "write", wire.TUNNEL_RECEIVE: "receive"}.get(sqe.opcode, "event")
        tunnel.kinds[sqe.cid] = kind
        return kind

    # --- time and the host's CPU

    def _at(self, time: int, action: Callable[[], None], rank: int = 1) -> None:
        """Schedule an action. Of several actions at the same time, the action with the lowest rank
        runs first."""
        self._order += 1
        heapq.heappush(self._events, (time, rank, self._order, action))

    def _job(self, thread: _Thread, work: int, then: Callable[[], None]) -> None:
        """Queue a job of ``work`` ps of CPU time on a thread; call ``then`` at the end of the
        job."""
        thread.jobs.append((work, then))
        if not thread.busy:
            thread.busy = True
            self._waiting.append(thread)
            self._dispatch()

    def _dispatch(self) -> None:
        """Grant free cores to waiting threads in the order in which they became ready."""
        while self._cores and self._waiting:
            thread = self._waiting.popleft()
            work, then = thread.jobs.popleft()
            self._cores -= 1
            self._cpu += work
            self._at(self.now + work, partial(self._over, thread, then), 0)

    def _over(self, thread: _Thread, then: Callable[[], None]) -> None:
        """Free the core of the finished job, make the thread ready if it has another job, and call
        ``then``."""
        self._cores += 1
        thread.busy = False
        if thread.jobs:
            thread.busy = True
            self._waiting.append(thread)
        then()
        self._dispatch()
