"""Host and drives whose programs send real bytes through the tunnels, in threads and wall time.

Owns the threads, the packets of a message, and the order of messages. Does not own the ends of the
tunnels (nvme/tunnel/), the controller (controller/), the drive's end (serve/tunnel.py) or the
messages of an algorithm (tunnel_live.py). Source: this project.

Each drive has a thread for the commands of its controller, the thread of its tunnel
(serve/tunnel.py), and a thread of the program that sends and receives. The host has a program and a
relay, which is one thread for all tunnels. The relay routes packets by their destination.

A message is divided into packets as in TCP over IPv4: at most ``mtu`` bytes, of which
SEGMENT_HEADER are headers. There are no acknowledgments (as in nvme/tunnel/timing.py) and no
checksums. The program sends a message when the messages on which it depends have arrived. The
threads report the arrival of messages to each other outside of the tunnel.
"""

from __future__ import annotations

import dataclasses
import queue
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.controller.admin import Controller
from ondie.emu.controller.capabilities import capabilities_of
from ondie.emu.controller.health import Health
from ondie.emu.controller.namespaces import Namespace, Namespaces
from ondie.emu.controller.shared import Shared
from ondie.emu.controller.tunnel import Ended, TunnelCommands
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.nvme.tunnel.framing import READ_HEADER, Data
from ondie.emu.nvme.tunnel.host import HostRelay, State
from ondie.emu.nvme.tunnel.protocol import Failed, Packet
from ondie.emu.nvme.tunnel.timing import SEGMENT_HEADER
from ondie.emu.nvme.wire import Completion
from ondie.emu.serve.tunnel import DriveTunnel, limits_of

HOST_NODE = 0
_HEADER = struct.Struct(">BBHHHBBH4s4s HHIIBBHHHBBBBII")
"""Header of a packet: IPv4 without options, and TCP with the time stamp option; 52 bytes."""
assert _HEADER.size == SEGMENT_HEADER
_TOTAL, _SOURCE, _TO, _OFFSET, _MOVE = 2, 8, 9, 12, 23
"""Indices of the fields of _HEADER: length, source and destination address, sequence number (offset
in the message), time stamp (number of the message)."""
WAIT_S = 120.0
"""Time without any progress after which a run has failed (s)."""


class TunnelStalled(RuntimeError):
    """Raised if a packet is lost or damaged, a command fails, or the run makes no progress."""


class Move(NamedTuple):
    """Message from node ``source`` to node ``to``.

    Bytes ``start`` to ``stop`` of the array of ``source`` are sent. If ``add`` is True, ``to`` adds
    them to its array; otherwise it stores them there. ``after``: numbers of the messages that must
    have arrived before this message is sent.
    """

    source: int
    to: int
    start: int
    stop: int
    add: bool
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Run:
    """Measurements of one run of messages through the tunnels.

    ``seconds``: wall time. ``received``, ``written``: number of receive and write commands with
    packets that the host's relay completed, over all tunnels. ``empty``: number of receive commands
    that the drives completed without a packet. ``host_cpu_s``: CPU time of the host's relay.
    """

    seconds: float
    received: int
    written: int
    empty: int
    host_cpu_s: float

    @property
    def commands(self) -> int:
        """Number of receive and write commands with packets, over all tunnels."""
        return self.received + self.written


def packets_of(data: np.ndarray, move: int, source: int, to: int, mtu: int) -> list[bytes]:
    """Return the packets of message ``move``, as IP packets of at most ``mtu`` bytes.

    ``data``: bytes of the message, uint8[n]. ``source``, ``to``: numbers of the sending and the
    receiving node.
    """
    raw, most = data.tobytes(), mtu - SEGMENT_HEADER
    addresses = (bytes((10, 0, 0, node + 1)) for node in (source, to))
    fields: list[Any] = [0x45, 0, 0, 0, 0x4000, 64, 6, 0, *addresses]
    fields += [5000, 5000, 0, 0, 8 << 4, 0x10, 0xFFFF, 0, 0, 1, 1, 8, 10, move, 0]
    found = []
    for start in range(0, len(raw), most):
        part = raw[start : start + most]
        fields[_TOTAL], fields[_OFFSET] = SEGMENT_HEADER + len(part), start
        found.append(_HEADER.pack(*fields) + part)
    return found


def node_of(packet: Data) -> int:
    """Return the number of the node (0: host, i + 1: drive i) to which a packet is addressed."""
    return packet[19] - 1


class _Program(threading.Thread):
    """Program of one node: sends the messages whose numbers it receives in its inbox, and stores or
    adds the messages that arrive."""

    def __init__(self, cluster: Cluster, node: int, array: np.ndarray) -> None:
        super().__init__(name=f"node {node}", daemon=True)
        self.cluster, self.node, self.array = cluster, node, array
        self.inbox: queue.SimpleQueue[Data | int | None] = queue.SimpleQueue()
        """Packets that have arrived, and numbers of messages to send. None ends the program."""
        self._parts: dict[int, np.ndarray] = {}
        self._next: dict[int, int] = {}

    def run(self) -> None:
        try:
            while (item := self.inbox.get()) is not None:
                if isinstance(item, int):
                    self._send(item)
                else:
                    self._take(item)
        except Exception as error:  # noqa: BLE001 - the run that waits shows it
            self.cluster.told.put(error)

    def _send(self, number: int) -> None:
        move = self.cluster.moves[number]
        part = self.array[move.start : move.stop]
        packets = packets_of(part, number, self.node, move.to, self.cluster.mtu)
        if self.node == HOST_NODE:
            self.cluster.relay.inbox.put(packets)
        else:
            self.cluster.drives[self.node - 1].send(packets)

    def _take(self, packet: Data) -> None:
        fields = _HEADER.unpack_from(packet)
        number, offset = fields[_MOVE], fields[_OFFSET]
        move = self.cluster.moves[number]
        size = move.stop - move.start
        expected = self._next.get(number, 0)
        part = self._parts.setdefault(number, np.empty(size, np.uint8))
        end = offset + len(packet) - SEGMENT_HEADER
        if offset != expected or move.to != self.node or end > size:
            raise TunnelStalled(
                f"tunnel: node {self.node} got bytes {offset} to {end} of message {number}: "
                f"expected bytes from {expected} on, of {size} bytes"
            )
        part[offset:end] = np.frombuffer(packet, np.uint8, end - offset, SEGMENT_HEADER)
        self._next[number] = end
        if end == size:
            mine = self.array[move.start : move.stop]
            mine[:] = mine + part if move.add else part
            del self._parts[number], self._next[number]
            self.cluster.told.put(number)


class _Drive(threading.Thread):
    """Controller of one drive, with the drive's end of the tunnel. The thread executes admin
    commands."""

    def __init__(self, cluster: Cluster, cfg: Config, cost: TunnelCost, at: int) -> None:
        super().__init__(name=f"drive {at}", daemon=True)
        self.cluster, self.at = cluster, at
        self.commands: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        self.program = _Program(cluster, at + 1, np.zeros(0, np.uint8))
        self.tunnel = DriveTunnel(limits_of(cost), self.program.inbox.put)
        self.controller = controller_of(cfg, self.tunnel.commands, f"LIVE{at}")
        self.tunnel.add(self.controller, self._deliver)

    def _deliver(self, ended: Ended) -> None:
        self.cluster.relay.inbox.put((self.at, ended))

    def run(self) -> None:
        try:
            while (item := self.commands.get()) is not None:
                with self.tunnel.lock:
                    reply = self.controller.execute(*item)
                self.tunnel.flush()
                if reply.entries:
                    raise TunnelStalled(f"tunnel: a command was answered {reply.entries[0]}")
        except Exception as error:  # noqa: BLE001 - the run that waits shows it
            self.cluster.told.put(error)

    def send(self, packets: Sequence[bytes]) -> None:
        """Send packets to the host. All packets become available at the same time. Raises
        TunnelStalled if the tunnel of this drive is not open."""
        with self.tunnel.lock:
            for packet in packets:
                if not self.tunnel.commands.send(packet, more=packet is not packets[-1]):
                    raise TunnelStalled(f"the tunnel of drive {self.at} is not open")
        self.tunnel.flush()


def controller_of(cfg: Config, commands: TunnelCommands, serial: str) -> Controller:
    """Return the NVMe controller of a drive that has the tunnel commands ``commands`` and no
    media."""
    offered = capabilities_of(
        cfg, capacity_bytes=1 << 30, block_bytes=4096, serial=serial, firmware="live"
    )
    shared = Shared(Namespaces(offered), tunnel=commands)
    return Controller(dataclasses.replace(offered, tunnel=True), shared, _no_health, _no_use)


def _no_health() -> Health:
    raise AssertionError("the host of this run must not read the health log page")


def _no_use(namespace: Namespace) -> int:
    raise AssertionError("the host of this run must not read a namespace")


Item = list[bytes] | tuple[int, Ended] | None
"""Item of the relay's queue: packets of the host's program, or (drive, completion), or None to end
the relay."""


class _Relay(threading.Thread):
    """Relay of the host: one thread that forwards the packets of the tunnels of all drives."""

    def __init__(self, cluster: Cluster, cost: TunnelCost, drives: int) -> None:
        super().__init__(name="relay", daemon=True)
        self.cluster = cluster
        self.inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self.ends = [HostRelay(limits_of(cost), opening=1 + at) for at in range(drives)]
        self.cpu_s = 0.0
        self.received = 0
        """Number of receive commands that have transferred packets."""

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - the run that waits shows it
            self.cluster.told.put(error)

    def _run(self) -> None:
        for at, end in enumerate(self.ends):
            end.open()
            self._submit(at)
        while (item := self.inbox.get()) is not None:
            if isinstance(item, list):
                self._route(item)
            else:
                self._completed(*item)
            self.cpu_s = time.thread_time()

    def _completed(self, at: int, ended: Ended) -> None:
        end = self.ends[at]
        self.received += len(ended.data) > READ_HEADER
        end.completed(Completion(ended.cqe.pack(), ended.data))
        packets = []
        for event in end.events():
            if isinstance(event, Failed):
                raise TunnelStalled(
                    f"tunnel of drive {at}: status {event.status:#x} ({event.what})"
                )
            if isinstance(event, Packet):
                packets.append(event.data)
        if packets:
            self._route(packets)
        self._submit(at)
        if end.state is State.OPEN and not self.cluster.opened[at].is_set():
            self.cluster.opened[at].set()

    def _route(self, packets: Sequence[Data]) -> None:
        """Forward packets to their destinations, and submit the resulting commands."""
        touched = set()
        for packet in packets:
            node = node_of(packet)
            if node == HOST_NODE:
                self.cluster.program.inbox.put(packet)
            else:
                self.ends[node - 1].send(packet)
                touched.add(node - 1)
        for at in touched:
            self._submit(at)

    def _submit(self, at: int) -> None:
        drive = self.cluster.drives[at]
        for command in self.ends[at].commands():
            drive.commands.put((command.sqe, bytes(command.data)))


class Cluster:
    """A host and ``drives`` drives of configuration ``cfg``, with open tunnels.

    The format of the packets is that of the cost model, but the times of the cost model are not
    simulated. Raises InputError for a configuration without a tunnel, and TunnelStalled if a tunnel
    cannot be opened.
    """

    def __init__(self, cfg: Config, drives: int) -> None:
        cost = TunnelCost.of(cfg)
        self.mtu = cost.form.mtu
        self.moves: Sequence[Move] = ()
        self.told: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()
        """Numbers of the messages that have arrived, and exceptions of the threads."""
        self.opened = [threading.Event() for _ in range(drives)]
        self.program = _Program(self, HOST_NODE, np.zeros(0, np.uint8))
        self.relay = _Relay(self, cost, drives)
        self.drives = [_Drive(self, cfg, cost, at) for at in range(drives)]
        self._threads: list[threading.Thread] = [self.program, self.relay]
        self._threads += [each for drive in self.drives for each in (drive, drive.program)]
        for thread in self._threads:
            thread.start()
        for event in self.opened:
            if not event.wait(WAIT_S):
                self.close()
                raise TunnelStalled("tunnel: a drive did not open its tunnel within {WAIT_S:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all threads and close the tunnels."""
        self.program.inbox.put(None)
        self.relay.inbox.put(None)
        for drive in self.drives:
            drive.commands.put(None)
            drive.program.inbox.put(None)
        for thread in self._threads:
            thread.join()
        for drive in self.drives:
            drive.tunnel.close()

    def run(self, moves: Sequence[Move], arrays: Sequence[np.ndarray]) -> Run:
        """Send the messages ``moves`` between the nodes, and return the measurements when all
        messages have arrived.

        ``arrays``: array of each node, uint8[n] each, which the messages change. Raises
        TunnelStalled if a packet is lost or damaged, a command fails, or no message arrives for
        WAIT_S seconds.
        """
        self.moves = moves
        programs = [self.program, *(drive.program for drive in self.drives)]
        for program, array in zip(programs, arrays, strict=True):
            program.array = array
        left = [len(set(move.after)) for move in moves]
        followers: list[list[int]] = [[] for _ in moves]
        for number, move in enumerate(moves):
            for other in set(move.after):
                followers[other].append(number)
        before, began = self._counts(), time.monotonic()
        for number, count in enumerate(left):
            if not count:
                programs[moves[number].source].inbox.put(number)
        for _ in moves:
            try:
                told = self.told.get(timeout=WAIT_S)
            except queue.Empty:
                raise TunnelStalled(f"tunnel: no message has arrived for {WAIT_S:g} s") from None
            if isinstance(told, Exception):
                raise told
            for number in followers[told]:
                left[number] -= 1
                if not left[number]:
                    programs[moves[number].source].inbox.put(number)
        seconds = time.monotonic() - began
        after = self._counts()
        received, written, empty = (int(after[i] - before[i]) for i in range(3))
        return Run(seconds, received, written, empty, after[3] - before[3])

    def _counts(self) -> tuple[int, int, int, float]:
        """Return the counts so far: receive commands with packets, write commands, receive commands
        without packets, and CPU time of the relay (s)."""
        ends = self.relay.ends
        empty = sum(drive.tunnel.commands.relay.counts["empty"] for drive in self.drives)
        written = sum(end.issued["write"] for end in ends)
        return self.relay.received, written, empty, self.relay.cpu_s
