"""The host's end of the tunnels of several drives: one relay that routes IP packets.

Owns the way of a packet between the host's device and the tunnels, and from drive to drive, and its
counters. Does not own devices (network_device.py), the way of commands to a controller
(admin_queue.py), the protocol (nvme/tunnel/host.py), or the drives, which may be anywhere.
Source: NGD's public patents: a relay per drive; traffic from drive to drive crosses the host.

All of it belongs to one thread, which calls ``take`` when the device is readable and ``Port.work``
when a queue is.
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
"""Largest number of bytes that wait for a drive; further packets wait in the device. If the ends
bound what they send to the drive, that is added, so that none of it need be dropped."""
SILENT_S = 0.5
"""Time after which a drive that accepts no packets delays the others no longer, s: packets for it
are dropped."""
MOST_PACKETS = 64
"""Largest number of packets that are read from the device before commands are submitted to the
drives."""
PS_PER_NS = 1000


class Port:
    """One drive's tunnel at the host. ``queue``: the admin queue of its controller. ``form``: the
    parameters that the open requests. ``address``: the drive's address, bytes[4]. ``take_over``:
    close a tunnel that another host has left open. ``cids``, ``timeout_ps``: of the relay
    (nvme/tunnel/host.py)."""

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
        """Packets and bytes "down" and "up"; "dropped" ones, "forwarded" ones to other drives, and
        "link_down" and "link_up": bytes of entries and data on the link."""
        self._gone = ""
        self.told_gone: Callable[[Port], None] | None = None
        """Called once, when nothing passes any more."""
        self.drive_status: dict[str, int | bytes] = {}
        """What the drive says of its end (controller/tunnel.STATUS_DATA), when last asked."""
        self.most_waiting = MOST_WAITING
        """Bytes that wait for the drive at most."""
        self._asked = self._asking = self._answered = False
        """The status shall be asked for; it is, and its identifier is in use; the drive has said
        it."""
        self._moved = time.monotonic()
        self.relay.open()
        self.pump()

    busy = False
    """True while another thread uses the controller."""

    @property
    def gone(self) -> str:
        """Reason why no packets can pass any more; "" if they can."""
        return self._gone

    @gone.setter
    def gone(self, why: str) -> None:
        before, self._gone = self._gone, why
        if why and not before and self.told_gone is not None:
            self.told_gone(self)

    @property
    def open(self) -> bool:
        """True if the tunnel is open: packets may cross."""
        return self.relay.state is State.OPEN and not self.gone

    @property
    def lead(self) -> int:
        """Bytes in front of each IP packet (gso.py), once the tunnel is open."""
        return self.relay.form.lead

    @property
    def full(self) -> bool:
        """True if as many bytes wait as may."""
        return self.relay.waiting_bytes >= self.most_waiting

    @property
    def blocks_others(self) -> bool:
        """True if the device must wait for this drive: it is full, or its tunnel opens."""
        waits = (self.full or self.relay.state is State.OPENING) and not self.gone
        return waits and time.monotonic() - self._moved < SILENT_S

    def send(self, packet: Data, always: bool = False) -> bool:
        """Send a packet, with ``lead`` bytes in front, to the drive; return False if it was
        dropped. ``always``: also if MOST_WAITING bytes wait already."""
        fits = len(packet) <= self.relay.form.longest
        full = self.full and not always
        if not fits or not self.open or full or not self.relay.send(packet):
            self.counts["dropped"] += 1
            return False
        self.counts["packets_down"] += 1
        self.counts["bytes_down"] += len(packet) - self.lead
        return True

    def pump(self) -> None:
        """Submit the commands that may be submitted now."""
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
        """Handle completions, submit the next commands, and return the packets from the drive."""
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
        """Close the tunnel after the packets that wait at both ends: ``closed`` then becomes
        True, if the drive answers."""
        self.relay.close()
        self.pump()

    @property
    def closed(self) -> bool:
        """True if the tunnel is closed, or its drive has gone."""
        return self.relay.state is State.CLOSED or bool(self.gone)

    def _end(self, why: str) -> None:
        self.gone = self.gone or why

    # --- status

    def ask(self) -> None:
        """Ask the drive for its counters: ``answered`` then becomes True, if it answers. While an
        answer is outstanding, no further request is sent."""
        self._asked, self._answered = not self._asking, False
        self.pump()

    @property
    def answered(self) -> bool:
        """True if the drive has answered, or never will."""
        return self._answered or bool(self.gone)

    def _told(self, completion: Completion) -> None:
        if len(completion.data) == STATUS_BYTES:
            self.drive_status = STATUS_DATA.unpack(bytes(completion.data))
        self._asking, self._answered = False, True

    def report(self) -> dict[str, int | str]:
        """Return the counters of both ends, as plain values."""
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
    """The relay of a host with ``address`` (bytes[4]) and network device ``device``; None: it has
    none, and packets to the host are dropped. ``capture``: file that gets all packets of the
    device."""

    def __init__(
        self, device: Device | None, address: bytes, capture: Capture | None = None
    ) -> None:
        self.device, self.address, self.capture = device, address, capture
        if device is not None:
            device.restart()
        self.counts: Counter[str] = Counter()
        """Packets of the device "in" and "out", their "bytes_in" and "bytes_out", "dropped" ones:
        no IP, a wrong header of offloads, no drive with the address, or refused by the kernel."""
        self.ports: dict[bytes, Port] = {}

    def add(self, port: Port) -> None:
        """Route packets of the port's address to it. Raises InputError for an address in use."""
        if port.address in self.ports or port.address == self.address:
            raise InputError(f"address {dotted(port.address)}: two ends of the tunnel have it")
        self.ports[port.address] = port
        port.told_gone = self._left
        if self.device is not None:  # each of the other ends sends so much, and what controls it
            on_way = len(self.ports) * self.device.most_on_way
            for each in self.ports.values():
                each.most_waiting = MOST_WAITING + on_way

    @property
    def holds(self) -> bool:
        """True if packets must wait in the device until a drive accepts more."""
        return any(port.blocks_others for port in self.ports.values())

    def take(self) -> None:
        """Send packets of the device to the drives."""
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
        """Handle the completions of a drive."""
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
        """Return gso.carried of a packet; one whose header is wrong is dropped."""
        found = carried(packet, lead, wanted)
        if not found:
            self.counts["dropped"] += 1
        return found

    def _drop(self, packet: Data) -> None:
        """Drop a packet for nobody here."""
        self.counts["dropped"] += 1
        if self.device is not None:
            self._tell(self.device.lost(packet))

    def _left(self, port: Port) -> None:
        """The drive of a port has gone."""
        if self.device is not None:
            others = [each.address for each in self.ports.values() if each.open]
            self._tell(self.device.left(port.address, others))

    def _tell(self, packets: Iterable[bytes]) -> None:
        """Send what a device says to drives about packets that were dropped."""
        for packet in packets:
            port = self.ports.get(_destination(packet, 0))
            if port is not None and port.send(packet, always=True):
                port.pump()

    def _give(self, packet: Data, lead: int) -> None:
        """Give a packet with ``lead`` bytes in front to the host."""
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
        """Return the port of the destination of a packet with ``lead`` bytes in front; None if it
        is no IPv4 packet, or of no drive."""
        return self.ports.get(_destination(packet, lead))


def _destination(packet: Data, lead: int) -> bytes:
    """Return the destination of a packet with ``lead`` bytes in front, bytes[4]; b"" if it is no
    IPv4 packet."""
    inner = memoryview(packet)[lead:] if lead else packet
    if not is_ip(inner) or inner[0] >> 4 != 4:
        return b""
    return bytes(inner[16:20])


def dotted(address: bytes) -> str:
    """Return an IPv4 address (bytes[4]) as text."""
    return ".".join(map(str, address))
