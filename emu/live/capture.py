"""Packets of one end of a tunnel as a pcap file.

Owns the file format. Does not own which packets are captured.
Source: draft-ietf-opsawg-pcap (PCAP Capture File Format); link type 101 is raw IP.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
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
        self._path, self._full = path, False
        self._lock = threading.Lock()  # the packets of the two directions have a thread each
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise InputError(f"--pcap {path}: {error.strerror}") from error
        head = struct.pack("<IHHiIII", MAGIC, 2, 4, 0, 0, LONGEST, RAW_IP)
        if why := self._write(head):
            self.close()
            raise InputError(f"--pcap {path}: {why}")

    def add(self, packet: Data, lead: int) -> None:
        """Add a packet, which has ``lead`` bytes in front (gso.py), at the time of this call. If
        the packet cannot be written, print an error once; the file then ends with its last whole
        packet."""
        seconds, ns = divmod(time.time_ns(), 10**9)
        with self._lock:
            for each in () if self._full else carried(packet, lead, 0):
                size = len(each)
                why = self._write(struct.pack("<IIII", seconds, ns, size, size) + bytes(each))
                if why:
                    self._full = True
                    os.write(
                        2, f"--pcap {self._path}: {why}; no more packets are captured\n".encode()
                    )
                    return

    def _write(self, data: bytes) -> str:
        """Write all of ``data``, or nothing; return why nothing, or ""."""
        written, why = 0, os.strerror(errno.ENOSPC)
        try:
            written = self._file.write(data)
            if written == len(data):
                return ""
            os.ftruncate(self._file.fileno(), self._file.seek(-written, os.SEEK_CUR))
        except OSError as error:
            why = error.strerror or str(error)
        return why

    def close(self) -> None:
        """Close the file."""
        self._file.close()
