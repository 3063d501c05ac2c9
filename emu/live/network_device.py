"""Network devices whose packets a program reads and writes: TUN, and veth with a packet socket.

Owns the descriptors and their configuration in the kernel. Does not own names, addresses and
namespaces (namespaces.py) or the routing of packets.
Source: Linux, Documentation/networking/tuntap.rst, packet(7), netdevice(7),
include/uapi/linux/ethtool.h.

All devices have the same interface. ``fileno`` is readable when ``read`` has a packet. ``read``
returns an IP packet with ``lead`` bytes in front, or None. ``write`` accepts such a packet, and
returns False if the packet is refused. The device exists until its descriptor is closed. The
program that uses a device calls ``lost`` when it drops a packet, ``restart`` when its tunnel opens
again, and ``left`` when another end disconnects. A device has at most ``most_on_way`` bytes in
flight to each other end; 0 means that there is no limit.
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
"""Offload flags of a TUN device: checksums, and TCP segmentation offload (TSO) over IPv4, over IPv6
and with ECN."""
MOST_QUEUES = 16
IFREQ = struct.Struct("16sH22x")
MOST_READ = LONGEST + OFFLOAD_HEADER
"""Maximum size of a packet that is read from a network device, including its offload header,
bytes."""
NAME_BYTES = 15
"""Maximum length of the name of a network device, bytes."""
SIOCETHTOOL, SIOCGIFHWADDR = 0x8946, 0x8927
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFMTU = 0x8913, 0x8914, 0x8922
SIOCSIFADDR, SIOCSIFNETMASK = 0x8916, 0x891C
IFF_UP = 0x1
OFFLOADS = (0x17, 0x1F, 0x2C, 0x24)
"""Ethtool commands that set the offloads of a network device: transmit checksums, TSO, GRO, GSO."""
ETHERNET_IP = 0x0800
PACKET_IGNORE_OUTGOING = 23
SOL_PACKET = 263


class Networked:
    """Base class of TunDevice and VethDevice, the network devices of the Linux kernel. Programs use
    the TCP of the kernel, which retransmits lost packets."""

    most_on_way = 0

    def restart(self) -> None:
        """Do nothing, because TCP connections survive when the tunnel opens again."""

    def lost(self, packet: Data) -> list[bytes]:
        """Return an empty list, because TCP detects the loss without a notification."""
        return []

    def left(self, peer: bytes, others: Iterable[bytes]) -> list[bytes]:
        """Return an empty list, because TCP detects without a notification that the end ``peer``
        has disconnected."""
        return []


class TunDevice(Networked):
    """New TUN device ``name`` in the network namespace of the calling thread.

    ``offloads``: True if each packet is preceded by an offload header (gso.py) and the kernel may
    leave TCP segments unsplit. ``queues``: number of queues, 1 to MOST_QUEUES, over which the
    kernel distributes flows; packets of one flow keep their order. Raises InputError if a parameter
    is out of range, if /dev/net/tun cannot be opened, or if the kernel refuses the device, for
    example because the name is taken.
    """

    kind = "TUN"

    def __init__(self, name: str, offloads: bool = False, queues: int = 1) -> None:
        if not 0 < len(name.encode()) <= NAME_BYTES:
            raise InputError(f"device {name}: a name must have 1 to {NAME_BYTES} bytes")
        if not 1 <= queues <= MOST_QUEUES:
            raise InputError(f"device {name}: {queues} queues; must be from 1 to {MOST_QUEUES}")
        self.name = name
        self.lead = OFFLOAD_HEADER if offloads else 0
        """Number of bytes in front of each IP packet."""
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
        """Open a queue of the device; return its descriptor. Raises InputError if the queue cannot
        be opened. ``several``: True if the device has several queues. ``undo``: stack to which the
        closing of the descriptor is added."""
        try:
            file = os.open(TUN_FILE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"{TUN_FILE}: cannot be opened: {error.strerror}") from error
        undo.callback(os.close, file)
        flags = IFF_TUN | IFF_NO_PI | IFF_MULTI_QUEUE * several | IFF_VNET_HDR * bool(self.lead)
        try:
            fcntl.ioctl(file, TUNSETIFF, IFREQ.pack(self.name.encode(), flags))
            if self.lead:
                fcntl.ioctl(file, TUNSETVNETLE, struct.pack("i", 1))
        except OSError as error:
            why = "the name is taken" if error.errno == errno.EBUSY else error.strerror
            raise InputError(f"device {self.name}: cannot be opened: {why}") from error
        return file

    def offload(self, on: bool) -> None:
        """Allow the kernel to leave segments unsplit and checksums incomplete if ``on`` is True;
        forbid it if ``on`` is False. The call has no effect if the device has no offload header.
        Raises InputError if the kernel refuses the change."""
        if self.lead and on != self._on:
            self._on = on
            try:
                fcntl.ioctl(self._files[0], TUNSETOFFLOAD, TUN_OFFLOADS if on else 0)
            except OSError as error:
                raise InputError(
                    f"device {self.name}: cannot set offloads: {error.strerror}"
                ) from error

    def fileno(self) -> int:
        """Return the descriptor, for poll(2)."""
        return self._poll

    def read(self) -> bytes | None:
        """Return the next packet from the kernel, or None if no packet is available."""
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
        """Write a packet to the kernel. Return False if the kernel has no room or refuses the
        packet."""
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
        """Close the device. The kernel then removes the device."""
        self._undo.close()


class VethDevice(Networked):
    """Packet socket at the end ``peer`` of an existing pair of veth devices. Programs use the other
    end of the pair, which has the hardware address ``mac``. The offloads of both ends must be
    switched off (:func:`without_offloads`). Raises InputError if a packet socket cannot be opened.
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
            raise InputError(
                f"device {peer}: cannot open a packet socket: {error.strerror}"
            ) from error
        self._to = (peer, ETHERNET_IP, 0, 0, mac)

    def fileno(self) -> int:
        """Return the descriptor, for poll(2)."""
        return self._socket.fileno()

    def read(self) -> bytes | None:
        """Return the next packet from the kernel, or None if no packet is available."""
        try:
            return self._socket.recv(LONGEST)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.ENETDOWN:
                return None
            raise

    def write(self, packet: Data) -> bool:
        """Write a packet to the kernel. Return False if the kernel has no room or refuses the
        packet."""
        try:
            self._socket.sendto(packet, self._to)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS, errno.EMSGSIZE, errno.ENETDOWN):
                return False
            raise
        return True

    def offload(self, on: bool) -> None:
        """Ignore ``on``, because the device has no offloads."""

    def close(self) -> None:
        """Close the socket. The pair of devices continues to exist."""
        self._socket.close()


Device = TunDevice | VethDevice | TcpRelay


def without_offloads(name: str) -> bytes:
    """Switch off the checksum and segmentation offloads of device ``name`` in this namespace, and
    return its hardware address. With offloads, a packet socket would receive packets without
    checksums and packets longer than the MTU. Raises InputError if the kernel refuses the change.
    """
    plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    with plain:
        try:
            for command in OFFLOADS:
                value = ctypes.create_string_buffer(struct.pack("II", command, 0), 8)
                asked = struct.pack("16sQ16x", name.encode(), ctypes.addressof(value))
                fcntl.ioctl(plain, SIOCETHTOOL, asked)
            found = fcntl.ioctl(plain, SIOCGIFHWADDR, struct.pack("16s24x", name.encode()))
        except OSError as error:
            raise InputError(f"device {name}: cannot be configured: {error.strerror}") from error
    return found[18:24]


def bring_up(name: str, address: ipaddress.IPv4Interface, mtu: int) -> None:
    """Set the address and the MTU (bytes) of device ``name`` in this namespace, and bring the
    device up, without the program `ip`. Raises InputError if the kernel refuses a change."""
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
            raise InputError(f"device {name}: cannot be configured: {error.strerror}") from error
