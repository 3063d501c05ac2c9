"""Network devices whose packets a program takes and gives: TUN, and veth with a packet socket.

Owns the descriptors and what the kernel must be told about them. Does not own names, addresses and
namespaces (namespaces.py) or what happens to packets.
Source: Linux, Documentation/networking/tuntap.rst, packet(7), netdevice(7),
include/uapi/linux/ethtool.h.

Both devices have the same interface: ``fileno`` is readable when ``read`` has a packet; ``read``
returns an IP packet, or None; ``write`` returns False for a packet that the kernel refuses. A
device ends with its descriptor.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

from ondie.emu.nvme.tunnel.framing import LONGEST, Data
from ondie.emu.units import InputError

TUN_FILE = "/dev/net/tun"
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
IFREQ = struct.Struct("16sH22x")
NAME_BYTES = 15
"""Longest name of a network device."""
SIOCETHTOOL, SIOCGIFHWADDR = 0x8946, 0x8927
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFMTU = 0x8913, 0x8914, 0x8922
SIOCSIFADDR, SIOCSIFNETMASK = 0x8916, 0x891C
IFF_UP = 0x1
OFFLOADS = (0x17, 0x1F, 0x2C, 0x24)
"""Set: transmit checksums, TSO, GRO, GSO."""
ETHERNET_IP = 0x0800
PACKET_IGNORE_OUTGOING = 23
SOL_PACKET = 263


class TunDevice:
    """A new TUN device ``name`` in the network namespace of this thread.

    Raises InputError if there is no /dev/net/tun, or the name is taken.
    """

    kind = "TUN"

    def __init__(self, name: str) -> None:
        if not 0 < len(name.encode()) <= NAME_BYTES:
            raise InputError(f"device {name}: a name must have 1 to {NAME_BYTES} bytes")
        self.name = name
        try:
            self._file = os.open(TUN_FILE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"{TUN_FILE}: {error.strerror}") from error
        try:
            fcntl.ioctl(self._file, TUNSETIFF, IFREQ.pack(name.encode(), IFF_TUN | IFF_NO_PI))
        except OSError as error:
            os.close(self._file)
            why = "the name is taken" if error.errno == errno.EBUSY else error.strerror
            raise InputError(f"device {name}: {why}") from error

    def fileno(self) -> int:
        """Return the descriptor, for poll(2)."""
        return self._file

    def read(self) -> bytes | None:
        """Return the next packet of the kernel, or None if there is none."""
        try:
            return os.read(self._file, LONGEST)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EIO, errno.EBADFD):  # the device is down
                return None
            raise

    def write(self, packet: Data) -> bool:
        """Give a packet to the kernel; return False if it takes none now, or not this one."""
        try:
            os.write(self._file, packet)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EIO, errno.EINVAL, errno.ENOBUFS):
                return False
            raise
        return True

    def close(self) -> None:
        """End the device."""
        os.close(self._file)


class VethDevice:
    """The near end ``peer`` of a pair of veth devices, whose far end with hardware address ``mac``
    the programs use. It exists already, and neither end has offloads (:func:`without_offloads`).

    Raises InputError if a packet socket cannot be opened.
    """

    kind = "veth"

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

    def close(self) -> None:
        """Close the socket; the pair stays until its namespace ends."""
        self._socket.close()


Device = TunDevice | VethDevice


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
