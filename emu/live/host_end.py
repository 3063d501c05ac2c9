"""The host's end of the tunnels of several drives: one relay that routes IP packets.

Owns the routing of packets between the host's device and the tunnels, and from drive to drive, and
the packet counters. Does not own devices (network_device.py), the transport of commands to a
controller (admin_queue.py), the protocol (nvme/tunnel/host.py), or the drives, which may run
anywhere.
Source: NGD's public patents: a relay per drive; traffic from drive to drive crosses the host.

One thread runs the relay. The thread calls ``take`` when the device is readable and ``Port.work``
when a queue is readable.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ondie.emu.controller.tunnel import STATUS, STATUS_BYTES, STATUS_DATA
from ondie.emu.live.admin_queue import STATUS_CID, AdminQueue
from ondie.emu.live.capture import Capture
from ondie.emu.live.gso import carried
from ondie.emu.live.network_device import Device
from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel.framing import Data, Format, is_ip
from ondie.emu.nvme.tunnel.host import HostRelay, State
from ondie.emu.nvme.tunnel.protocol import Failed, Packet
from ondie.emu.nvme.wire import CQE_BYTES, SQE_BYTES, Command, Completion, Sqe
from ondie.emu.units import InputError

MOST_WAITING = 4 << 20
"""Maximum number of bytes that wait at the host for one drive. Further packets wait in the host's
network device. If this device limits the number of bytes in flight to each drive (``most_on_way``),
the maximum is higher by this limit times the number of drives, so that no packet is dropped for
lack of room."""
SILENT_S = 0.5
"""Time after which a drive that accepts no packets no longer delays the other drives, s. Packets
for this drive are then dropped."""
MOST_PACKETS = 64
"""Maximum number of packets that are read from the host's network device before commands are
submitted to the drives."""
PS_PER_NS = 1000


class Port:
    """Host's end of the tunnel of one drive. ``queue``: admin queue of the drive's controller.
    ``form``: parameters with which the tunnel is opened. ``address``: the drive's IPv4 address,
    bytes[4]. ``take_over``: True to close a tunnel that another host has left open. ``cids``:
    command identifiers that the tunnel may use. ``timeout_ps``: time after which a command counts
    as lost, in addition to the hold time, ps; 0 if commands cannot be lost."""

    def __init__(
        self, queue: AdminQueue, form: Format, address: bytes, take_over: bool = False,
        cids: range = range(STATUS_CID), timeout_ps: int = 0,
    ) -> None:  # fmt: skip
        self.queue, self.address = queue, address
        opening = random.SystemRandom().randrange(1, 1 << 32)
        self.relay = HostRelay(
            form, cids, timeout_ps=timeout_ps, opening=opening, take_over=take_over
        )  # fmt: skip
        self.counts: Counter[str] = Counter()
        """Counters: packets and bytes in each direction ("packets_down", "packets_up",
        "bytes_down", "bytes_up"), "dropped" packets, packets "forwarded" to other drives, and bytes
        of queue entries and data on the link ("link_down", "link_up")."""
        self._gone = ""
        self.told_gone: Callable[[Port], None] | None = None
        """Function that is called once, when the tunnel can no longer transfer packets; None for no
        call."""
        self.drive_status: dict[str, int | bytes] = {}
        """Latest status that the drive has reported (controller/tunnel.STATUS_DATA)."""
        self.most_waiting = MOST_WAITING
        """Maximum number of bytes that wait for the drive."""
        self._asked = self._asking = self._answered = False
        """Three states of the status request. ``_asked``: the command must be submitted.
        ``_asking``: the command is in flight, and its identifier is in use. ``_answered``: the
        drive has answered."""
        self._moved = time.monotonic()
        self.relay.open()
        self.pump()

    busy = False
    """True while another thread uses the drive's controller, for example to reset it."""

    @property
    def gone(self) -> str:
        """Reason why the tunnel can no longer transfer packets, or "" if it can."""
        return self._gone

    @gone.setter
    def gone(self, why: str) -> None:
        before, self._gone = self._gone, why
        if why and not before and self.told_gone is not None:
            self.told_gone(self)

    @property
    def open(self) -> bool:
        """True if the tunnel is open and packets can pass."""
        return self.relay.state is State.OPEN and not self.gone

    @property
    def lead(self) -> int:
        """Number of bytes in front of each IP packet (the size of the offload header, or 0), valid
        after the tunnel has opened."""
        return self.relay.form.lead

    @property
    def full(self) -> bool:
        """True if at least ``most_waiting`` bytes wait at the host for the drive."""
        return self.relay.waiting_bytes >= self.most_waiting

    @property
    def blocks_others(self) -> bool:
        """True if packets in the device must wait because the queue of this drive is full or its
        tunnel is opening. False if no command of the tunnel has completed for SILENT_S, or if the
        tunnel can no longer transfer packets."""
        waits = (self.full or self.relay.state is State.OPENING) and not self.gone
        return waits and time.monotonic() - self._moved < SILENT_S

    def send(self, packet: Data, always: bool = False) -> bool:
        """Send an IP packet to the drive. In ``packet``, the IP packet follows the first
        :attr:`lead` bytes, which hold the offload header. Return False if the packet was dropped.
        ``always``: True to send the packet even if :attr:`full` is True."""
        fits = len(packet) <= self.relay.form.longest
        full = self.full and not always
        if not fits or not self.open or full or not self.relay.send(packet):
            self.counts["dropped"] += 1
            return False
        self.counts["packets_down"] += 1
        self.counts["bytes_down"] += len(packet) - self.lead
        return True

    def pump(self) -> None:
        """Submit the commands of the tunnel that may be submitted now, including a requested status
        command."""
        if self.gone:
            return
        commands = self.relay.commands(time.monotonic_ns() * PS_PER_NS)
        if self._asked:
            self._asked, self._asking = False, True
            asked = Sqe(wire.TUNNEL_RECEIVE, cid=STATUS_CID, cdw10=STATUS, cdw12=STATUS_BYTES)
            commands.append(Command(asked.pack()))
        for command in commands:
            self.counts["link_down"] += SQE_BYTES + len(command.data)
        try:
            self.queue.submit(commands)
        except OSError as error:
            self._end(error.strerror or str(error))

    def work(self) -> list[Data]:
        """Process the completed commands of the tunnel, submit the next commands, and return the
        packets that the drive has sent."""
        if self.gone:
            return []
        try:
            found = self.queue.completions()
        except OSError as error:
            self._end(error.strerror or str(error))
            return []
        for each in found:
            self.counts["link_up"] += CQE_BYTES + len(each.data)
            if each.cqe[12] | each.cqe[13] << 8 == STATUS_CID:
                self._told(each)
            else:
                self._moved = time.monotonic()
                self.relay.completed(each)
        packets: list[Data] = []
        for event in self.relay.events():
            if isinstance(event, Packet):
                packets.append(event.data)
                self.counts["packets_up"] += 1
                self.counts["bytes_up"] += len(event.data) - self.lead
            elif isinstance(event, Failed):
                self._end(f"{event.what}: status 0x{event.status:x}")
        self.pump()
        return packets

    def close(self) -> None:
        """Close the tunnel after all packets that wait at both ends have been transferred.
        :attr:`closed` becomes True when the drive has answered."""
        self.relay.close()
        self.pump()

    @property
    def closed(self) -> bool:
        """True if the tunnel is closed or can no longer transfer packets."""
        return self.relay.state is State.CLOSED or bool(self.gone)

    def _end(self, why: str) -> None:
        self.gone = self.gone or why

    # --- status

    def ask(self) -> None:
        """Request the drive's packet counters. :attr:`answered` becomes True when the drive has
        answered. While a request is in flight, no further request is sent."""
        self._asked, self._answered = not self._asking, False
        self.pump()

    @property
    def answered(self) -> bool:
        """True if the drive has answered the status request, or can no longer answer it."""
        return self._answered or bool(self.gone)

    def _told(self, completion: Completion) -> None:
        if len(completion.data) == STATUS_BYTES:
            self.drive_status = STATUS_DATA.unpack(bytes(completion.data))
        self._asking, self._answered = False, True

    def report(self) -> dict[str, int | str]:
        """Return the packet counters of both ends of the tunnel, and the state of the tunnel, as a
        JSON-serializable dictionary."""
        counts, relay = self.counts, self.relay
        told = {name.lower(): value for name, value in self.drive_status.items()}
        found: dict[str, int | str] = {
            "state": f"ended: {self.gone}" if self.gone else relay.state.value,
            "packets_down": counts["packets_down"],
            "packets_up": counts["packets_up"],
            "bytes_down": counts["bytes_down"],
            "bytes_up": counts["bytes_up"],
            "forwarded": counts["forwarded"],
            "dropped": counts["dropped"],
            "waiting_blocks": relay.waiting,
            "writes": relay.issued["write"],
            "receives": relay.issued["receive"],
            "repeated": relay.repeated,
            "strays": relay.strays,
            "offloads": int(relay.form.offloads),
            "link_bytes_down": counts["link_down"],
            "link_bytes_up": counts["link_up"],
        }
        for name in ("blocksdown", "bytesdown", "packetsdown", "blocksup", "bytesup", "packetsup",
                     "dropped", "empty", "repeated", "refused"):  # fmt: skip
            value = told.get(name, 0)
            assert isinstance(value, int)
            found[f"drive_{name}"] = value
        return found


class HostEnd:
    """Relay at the host's end of the tunnels. It passes packets between the host's network device
    and the drives, and from drive to drive. ``device``: network device of the host; if it is None,
    packets to the host are dropped. ``address``: IPv4 address of the host, bytes[4]. ``capture``:
    file that records all packets of the device, or None."""

    def __init__(
        self, device: Device | None, address: bytes, capture: Capture | None = None
    ) -> None:
        self.device, self.address, self.capture = device, address, capture
        if device is not None:
            device.restart()
        self.counts: Counter[str] = Counter()
        """Counters of the device: "packets_in" and "bytes_in" (read), "packets_out" and "bytes_out"
        (written), and "dropped". A packet is dropped if it is not an IP packet, has an invalid
        offload header or an unknown destination, or is refused by the kernel."""
        self.ports: dict[bytes, Port] = {}

    def add(self, port: Port) -> None:
        """Add a drive: send packets for the address of ``port`` through the tunnel of ``port``.
        Raises InputError if another end has the same address."""
        if port.address in self.ports or port.address == self.address:
            raise InputError(
                f"address {dotted(port.address)}: two ends of the tunnel have this address; give "
                "each end a different address"
            )
        self.ports[port.address] = port
        port.told_gone = self._left
        if self.device is not None:  # each of the other ends sends so much, and what controls it
            on_way = len(self.ports) * self.device.most_on_way
            for each in self.ports.values():
                each.most_waiting = MOST_WAITING + on_way

    @property
    def holds(self) -> bool:
        """True if packets must wait in the host's network device until a drive accepts more
        packets."""
        return any(port.blocks_others for port in self.ports.values())

    def take(self) -> None:
        """Read up to MOST_PACKETS packets from the host's network device, and send them to the
        drives."""
        device = self.device
        if device is None or self.holds:
            return
        touched: set[bytes] = set()
        lead = device.lead
        for _ in range(MOST_PACKETS):
            if (packet := device.read()) is None:
                break
            self.counts["packets_in"] += 1
            self.counts["bytes_in"] += len(packet) - lead
            if self.capture is not None:
                self.capture.add(packet, lead)
            port = self._port_of(packet, lead)
            if port is None:
                self._drop(packet)
                continue
            for each in self._carried(packet, lead, port.lead):
                if port.send(each):
                    touched.add(port.address)
                else:
                    self._tell(device.lost(each))
            if port.blocks_others:
                break
        for address in touched:
            self.ports[address].pump()

    def work(self, port: Port) -> None:
        """Process the completed commands of a drive, and route the packets that the drive has
        sent."""
        touched: set[bytes] = set()
        lead = port.lead
        for packet in port.work():
            to = _destination(packet, lead)
            other = self.ports.get(to)
            if other is not None and other is not port:
                for each in self._carried(packet, lead, other.lead):
                    if other.send(each):
                        port.counts["forwarded"] += 1
                        touched.add(other.address)
                    elif self.device is not None:
                        self._tell(self.device.lost(each))
            elif to == self.address:
                self._give(packet, lead)
            else:
                self._drop(packet)
        for address in touched:
            self.ports[address].pump()

    def _carried(self, packet: Data, lead: int, wanted: int) -> Sequence[Data]:
        """Return the result of gso.carried for a packet. If the result is empty, because the
        offload header is invalid, count the packet as dropped."""
        found = carried(packet, lead, wanted)
        if not found:
            self.counts["dropped"] += 1
        return found

    def _drop(self, packet: Data) -> None:
        """Drop a packet whose destination is not an end of a tunnel, and send the notifications
        that the device returns for it."""
        self.counts["dropped"] += 1
        if self.device is not None:
            self._tell(self.device.lost(packet))

    def _left(self, port: Port) -> None:
        """Notify the other drives, if the device requires it, that the drive of ``port`` has
        disconnected."""
        if self.device is not None:
            others = [each.address for each in self.ports.values() if each.open]
            self._tell(self.device.left(port.address, others))

    def _tell(self, packets: Iterable[bytes]) -> None:
        """Send each notification of a device about a dropped packet or a disconnected drive to its
        destination."""
        for packet in packets:
            port = self.ports.get(_destination(packet, 0))
            if port is not None and port.send(packet, always=True):
                port.pump()

    def _give(self, packet: Data, lead: int) -> None:
        """Write a packet, which has ``lead`` bytes in front, to the host's device. Count the
        packets accepted by the device, and the dropped packets."""
        device = self.device
        if device is None:
            self.counts["dropped"] += 1
            return
        for each in self._carried(packet, lead, device.lead):
            if not device.write(each):
                self.counts["dropped"] += 1
                continue
            self.counts["packets_out"] += 1
            self.counts["bytes_out"] += len(each) - device.lead
            if self.capture is not None:
                self.capture.add(each, device.lead)

    def _port_of(self, packet: Data, lead: int) -> Port | None:
        """Return the port for the destination of a packet, which has ``lead`` bytes in front.
        Return None if the packet is not an IPv4 packet or its destination is not a drive."""
        return self.ports.get(_destination(packet, lead))


def _destination(packet: Data, lead: int) -> bytes:
    """Return the destination address of a packet, which has ``lead`` bytes in front, bytes[4]; b""
    if the packet is not an IPv4 packet."""
    inner = memoryview(packet)[lead:] if lead else packet
    if not is_ip(inner) or inner[0] >> 4 != 4:
        return b""
    return bytes(inner[16:20])


def dotted(address: bytes) -> str:
    """Return an IPv4 address (bytes[4]) as text."""
    return ".".join(map(str, address))
