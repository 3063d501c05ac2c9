"""Capture of the packets at one end of a tunnel to a pcap file.

Owns the file format. Does not own the choice of the captured packets.
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
"""Magic number of pcap files with time stamps in ns, and link type of packets without a link-layer
header."""


class Capture:
    """Pcap file at ``path``. Raises InputError if the file cannot be created.

    The file contains packets as a network without offloads carries them: TCP segments are split,
    and all checksums are complete.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._full = path, False
        self._lock = threading.Lock()  # the packets of the two directions have a thread each
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise InputError(f"--pcap {path}: cannot be opened: {error.strerror}") from error
        head = struct.pack("<IHHiIII", MAGIC, 2, 4, 0, 0, LONGEST, RAW_IP)
        if why := self._write(head):
            self.close()
            raise InputError(f"--pcap {path}: cannot be written: {why}")

    def add(self, packet: Data, lead: int) -> None:
        """Append a packet to the file with the current time. ``lead``: number of bytes in front of
        the IP packet (gso.py). If a packet cannot be written, the method prints one error to
        standard error, and discards this packet and all later packets. The file then ends after the
        last complete packet."""
        seconds, ns = divmod(time.time_ns(), 10**9)
        with self._lock:
            for each in () if self._full else carried(packet, lead, 0):
                size = len(each)
                why = self._write(struct.pack("<IIII", seconds, ns, size, size) + bytes(each))
                if why:
                    self._full = True
                    said = f"--pcap {self._path}: cannot be written: {why}; no more packets are "
                    os.write(2, f"{said}captured\n".encode())
                    return

    def _write(self, data: bytes) -> str:
        """Write all of ``data`` or nothing. Return "" on success, else the reason for the
        failure."""
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
