"""Network devices whose packets a program reads and writes: TUN, and veth with a packet socket.

Owns the descriptors and their configuration in the kernel. Does not own names, addresses and
namespaces (namespaces.py) or the routing of packets. Source: Linux,
Documentation/networking/tuntap.rst, packet(7), netdevice(7), include/uapi/linux/ethtool.h.

Both devices have the same interface: ``fileno`` is readable when ``read`` has a packet; ``read``
returns an IP packet, with ``lead`` bytes in front, or None; ``write`` takes such a packet, and
returns False for one that the kernel refuses. A device ends with its descriptor. Who drops a packet
of a device calls ``lost``; whose tunnel opens anew, ``restart``; whose peer has gone, ``left``. At
most ``most_on_way`` bytes of a device are on their way to each other end; 0: it has no such bound.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import ipaddress
import os
import select
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from ondie.emu.live.tcp_relay import TcpRelay
from ondie.emu.nvme.tunnel.framing import LONGEST, OFFLOAD_HEADER, Data
from ondie.emu.units import InputError

TUN_FILE = "/dev/net/tun"
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETLE = 0x400454CA, 0x400454D0, 0x400454DC
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR, IFF_MULTI_QUEUE = 0x0001, 0x1000, 0x4000, 0x0100
TUN_OFFLOADS = 0x01 | 0x02 | 0x04 | 0x08
"""Offloads of a TUN device: checksums, segments of TCP over IPv4 and over IPv6, and segments with
ECN."""
MOST_QUEUES = 16
IFREQ = struct.Struct("16sH22x")
MOST_READ = LONGEST + OFFLOAD_HEADER
"""Bytes of the longest packet with its header."""
NAME_BYTES = 15
"""Longest name of a network device."""
SIOCETHTOOL, SIOCGIFHWADDR = 0x8946, 0x8927
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFMTU = 0x8913, 0x8914, 0x8922
SIOCSIFADDR, SIOCSIFNETMASK = 0x8916, 0x891C
IFF_UP = 0x1
OFFLOADS = (0x17, 0x1F, 0x2C, 0x24)
"""Requests that set the offloads of a device: transmit checksums, TSO, GRO, GSO."""
ETHERNET_IP = 0x0800
PACKET_IGNORE_OUTGOING = 23
SOL_PACKET = 263


class Networked:
    """Common base class of the devices: programs use the TCP of the kernel, which retransmits lost
    packets."""

    most_on_way = 0

    def restart(self) -> None:
        """Do nothing: connections outlive the tunnel."""

    def lost(self, packet: Data) -> list[bytes]:
        """Return no packets: TCP detects the loss without a message."""
        return []

    def left(self, peer: bytes, others: Iterable[bytes]) -> list[bytes]:
        """Return no packets: TCP finds out that the end ``peer`` has gone."""
        return []


class TunDevice(Networked):
    """A new TUN device ``name`` in the network namespace of this thread.

    ``offloads``: packets have an offload header in front (gso.py), and the kernel may leave
    segments of TCP uncut. ``queues``: number of queues over which the kernel spreads flows, 1 to
    MOST_QUEUES, and packets of one flow keep their order. Raises InputError if there is no
    /dev/net/tun, or the name is taken.
    """

    kind = "TUN"

    def __init__(self, name: str, offloads: bool = False, queues: int = 1) -> None:
        if not 0 < len(name.encode()) <= NAME_BYTES:
            raise InputError(f"device {name}: a name must have 1 to {NAME_BYTES} bytes")
        if not 1 <= queues <= MOST_QUEUES:
            raise InputError(f"device {name}: {queues} queues; must be from 1 to {MOST_QUEUES}")
        self.name = name
        self.lead = OFFLOAD_HEADER if offloads else 0
        """Bytes in front of each IP packet."""
        self._on = False
        self._next = 0
        with contextlib.ExitStack() as undo:
            self._files = [self._queue(queues > 1, undo) for _ in range(queues)]
            self._poll = self._files[0]
            if queues > 1:
                epoll = select.epoll()
                undo.callback(epoll.close)
                for each in self._files:
                    epoll.register(each, select.EPOLLIN)
                self._poll = epoll.fileno()
            self.offload(offloads)
            self._undo = undo.pop_all()

    def _queue(self, several: bool, undo: contextlib.ExitStack) -> int:
        """Open a queue of the device; return its descriptor."""
        try:
            file = os.open(TUN_FILE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"{TUN_FILE}: {error.strerror}") from error
        undo.callback(os.close, file)
        flags = IFF_TUN | IFF_NO_PI | IFF_MULTI_QUEUE * several | IFF_VNET_HDR * bool(self.lead)
        try:
            fcntl.ioctl(file, TUNSETIFF, IFREQ.pack(self.name.encode(), flags))
            if self.lead:
                fcntl.ioctl(file, TUNSETVNETLE, struct.pack("i", 1))
        except OSError as error:
            why = "the name is taken" if error.errno == errno.EBUSY else error.strerror
            raise InputError(f"device {self.name}: {why}") from error
        return file

    def offload(self, on: bool) -> None:
        """Let the kernel leave segments uncut and checksums incomplete, or not. Without effect on a
        device without offload header."""
        if self.lead and on != self._on:
            self._on = on
            try:
                fcntl.ioctl(self._files[0], TUNSETOFFLOAD, TUN_OFFLOADS if on else 0)
            except OSError as error:
                raise InputError(f"device {self.name}: offloads: {error.strerror}") from error

    def fileno(self) -> int:
        """Return the descriptor, for poll(2)."""
        return self._poll

    def read(self) -> bytes | None:
        """Return the next packet of the kernel, or None if there is none."""
        for _ in self._files:
            try:
                return os.read(self._files[self._next], MOST_READ)
            except BlockingIOError:
                self._next = (self._next + 1) % len(self._files)
            except OSError as error:
                if error.errno in (errno.EIO, errno.EBADFD):  # the device is down
                    return None
                raise
        return None

    def write(self, packet: Data) -> bool:
        """Give a packet to the kernel; return False if it takes none now, or not this one."""
        file = self._files[0]
        if len(self._files) > 1:  # the kernel then uses this queue for the flow's other direction
            ends = packet[self.lead + 12 : self.lead + 24]
            file = self._files[sum(ends) % len(self._files)]
        try:
            os.write(file, packet)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EIO, errno.EINVAL, errno.ENOBUFS):
                return False
            raise
        return True

    def close(self) -> None:
        """End the device."""
        self._undo.close()


class VethDevice(Networked):
    """The near end ``peer`` of a pair of veth devices, whose far end with hardware address ``mac``
    the programs use. It exists already, and neither end has offloads (:func:`without_offloads`).

    Raises InputError if a packet socket cannot be opened.
    """

    kind = "veth"
    lead = 0

    def __init__(self, peer: str, mac: bytes) -> None:
        self.name = peer
        try:
            self._socket = socket.socket(
                socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0
            )
            self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            self._socket.bind((peer, ETHERNET_IP))
        except OSError as error:
            raise InputError(f"packet socket of {peer}: {error.strerror}") from error
        self._to = (peer, ETHERNET_IP, 0, 0, mac)

    def fileno(self) -> int:
        """Return the descriptor, for poll(2)."""
        return self._socket.fileno()

    def read(self) -> bytes | None:
        """Return the next packet of the kernel, or None if there is none."""
        try:
            return self._socket.recv(LONGEST)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.ENETDOWN:
                return None
            raise

    def write(self, packet: Data) -> bool:
        """Give a packet to the kernel; return False if it takes none now, or not this one."""
        try:
            self._socket.sendto(packet, self._to)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS, errno.EMSGSIZE, errno.ENETDOWN):
                return False
            raise
        return True

    def offload(self, on: bool) -> None:
        """Do nothing: the device has no offloads."""

    def close(self) -> None:
        """Close the socket; the pair stays until its namespace ends."""
        self._socket.close()


Device = TunDevice | VethDevice | TcpRelay


def without_offloads(name: str) -> bytes:
    """Switch off checksum and segmentation offloads of device ``name`` of this namespace, and
    return its hardware address: a packet socket would get packets without checksums and longer
    than the MTU. Raises InputError."""
    plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    with plain:
        try:
            for command in OFFLOADS:
                value = ctypes.create_string_buffer(struct.pack("II", command, 0), 8)
                asked = struct.pack("16sQ16x", name.encode(), ctypes.addressof(value))
                fcntl.ioctl(plain, SIOCETHTOOL, asked)
            found = fcntl.ioctl(plain, SIOCGIFHWADDR, struct.pack("16s24x", name.encode()))
        except OSError as error:
            raise InputError(f"device {name}: {error.strerror}") from error
    return found[18:24]


def bring_up(name: str, address: ipaddress.IPv4Interface, mtu: int) -> None:
    """Give device ``name`` of this namespace an address and a mtu (bytes), and bring it up, without
    the program `ip`. Raises InputError."""
    path = Path(f"/proc/sys/net/ipv6/conf/{name}/addr_gen_mode")
    plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    named = name.encode()
    with plain:
        try:
            if path.exists():
                path.write_text("1")  # no IPv6 address, whose packets nobody would take
            fcntl.ioctl(plain, SIOCSIFMTU, struct.pack("16si20x", named, mtu))
            for request, each in ((SIOCSIFADDR, address.ip), (SIOCSIFNETMASK, address.netmask)):
                asked = struct.pack("16sHH4s16x", named, socket.AF_INET, 0, each.packed)
                fcntl.ioctl(plain, request, asked)
            found = fcntl.ioctl(plain, SIOCGIFFLAGS, IFREQ.pack(named, 0))
            flags = IFREQ.unpack(found)[1] | IFF_UP
            fcntl.ioctl(plain, SIOCSIFFLAGS, IFREQ.pack(named, flags))
        except OSError as error:
            raise InputError(f"device {name}: {error.strerror}") from error
