"""Photos on the emulated drive of a storage server (store).

Owns the location of photos on the drive, and the time to load photos. Does not own the drive
(drive.py) or the processing of photos (pipeline.py).
Source: this project.
"""

from __future__ import annotations

import math

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.drive import CommandError, Drive
from ondie.emu.nvme.command import COMMAND, READ, first_error
from ondie.emu.nvme.status import Status
from ondie.emu.units import InputError, whole_number


class PhotoDrive:
    """Drive with ``photos`` consecutive photos of ``photo_bytes`` bytes each; every photo begins at
    the start of a mapping unit. :meth:`load` reads photos with commands of the drive's queue pair,
    whose depth limits the number of commands in flight.

    Raises InputError if ``photos`` or ``photo_bytes`` is below 1, or if the photos do not fit on
    the drive.
    """

    def __init__(self, cfg: Config, photos: int, photo_bytes: int) -> None:
        self.photos = whole_number("photos", photos, 1, 1 << 40)
        size = whole_number("photo_bytes", photo_bytes, 1, 1 << 40)
        self._drive = Drive(cfg)
        unit = self._drive.unit_bytes
        self._units = -(-size // unit)
        if self.photos * self._units > self._drive.units:
            raise InputError(
                f"{photos} photos of {photo_bytes} bytes do not fit on {cfg.system.name}; at most "
                f"{self._drive.units // self._units} fit"
            )
        self._drive.fill(0, 0, self.photos * self._units)
        self._most = cfg.frontend.max_transfer_bytes // unit * unit
        self._unit = unit

    def load(self, start_ps: int, first: int, count: int) -> int:
        """Read ``count`` photos, starting with number ``first`` (modulo the number of photos), at
        ``start_ps``; return the time at which the last photo is in memory (ps).

        A load must not begin before the previous load ends. Raises CommandError if a command ends
        with an error.
        """
        size = self._units * self._unit
        pieces = math.ceil(size / self._most)
        photo = (first + np.arange(count)) % self.photos
        commands = np.zeros(count * pieces, COMMAND)
        piece = np.tile(np.arange(pieces), count)
        commands["op"], commands["data"] = READ, -1
        commands["offset"] = np.repeat(photo, pieces) * size + piece * self._most
        commands["size"] = np.minimum(self._most, size - piece * self._most)
        commands["tag"] = np.arange(len(commands))
        commands["arrival"] = start_ps
        self._drive.submit(commands)
        self._drive.run_until(completions=len(commands))
        done = self._drive.completions()
        if (status := first_error(done)) or len(done) != len(commands):
            raise CommandError(
                f"load of {count} photos: {len(done)} of {len(commands)} commands completed, "
                f"status 0x{status:x}",
                Status(status),
            )
        return int(done["end"].max())

    @property
    def bytes_read(self) -> int:
        """Total bytes that all loads have read from the drive."""
        return int(self._drive.requested[2])

    def close(self) -> None:
        """Close the drive."""
        self._drive.close()
