"""Packets of one end of a tunnel as a pcap file.

Owns the file format. Does not own which packets are captured.
Source: draft-ietf-opsawg-pcap (PCAP Capture File Format); link type 101 is raw IP.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path

from ondie.emu.live.gso import carried
from ondie.emu.nvme.tunnel.framing import LONGEST, Data
from ondie.emu.units import InputError

MAGIC, RAW_IP = 0xA1B23C4D, 101
"""Magic number of time stamps in ns, and the link type of packets without a frame."""


class Capture:
    """A pcap file at ``path``. Raises InputError if it cannot be made.

    It has packets as a network without offloads carries them: segments of TCP are cut, and all
    checksums are there.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise InputError(f"--pcap {path}: {error.strerror}") from error
        self._file.write(struct.pack("<IHHiIII", MAGIC, 2, 4, 0, 0, LONGEST, RAW_IP))

    def add(self, packet: Data, lead: int) -> None:
        """Add a packet, which has ``lead`` bytes in front (gso.py), at the time of this call."""
        seconds, ns = divmod(time.time_ns(), 10**9)
        for each in carried(packet, lead, 0):
            size = len(each)
            self._file.write(struct.pack("<IIII", seconds, ns, size, size) + bytes(each))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
