"""Photos of one store: JPEG files in the pages of an emulated drive, and their index.

Owns where a photo lies on the drive, and reading and decoding it. Does not own the drive (drive.py)
or which store has which photo (labels.py). Source: this project.
"""

from __future__ import annotations

import io
import sqlite3
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ondie.emu.drive import Drive
from ondie.emu.nand.store_folder import StoreFolder
from ondie.emu.units import InputError

TABLE = (
    "CREATE TABLE photos (photo INTEGER PRIMARY KEY, offset INTEGER NOT NULL, "
    "bytes INTEGER NOT NULL, crc INTEGER NOT NULL)"
)
DEVICE = "gen4-tlc"
"""Preset of the drive of each store."""
EDGE = 32
"""Pixels along an edge of the network's input."""


class Shelf:
    """Photos in ``folder``: ``drive/`` has the stored pages, ``index.sqlite`` the places.

    A context manager. Raises InputError for a folder that cannot be used: its drive is in use or
    damaged, or the index is no index. ``create``: make both, in a folder that has neither.
    """

    def __init__(self, folder: Path, create: bool = False) -> None:
        path = folder / "index.sqlite"
        if not create and not path.is_file():
            raise InputError(f"{path}: no such index of photos")
        folder.mkdir(parents=True, exist_ok=True)
        self.drive = Drive(DEVICE, True, store=folder / "drive")
        self._index = sqlite3.connect(path)
        try:
            if create:
                with self._index:
                    self._index.execute(TABLE)
            found = self._index.execute("SELECT sql FROM sqlite_master WHERE name = 'photos'")
            if found.fetchone() != (TABLE,):
                raise InputError(f"{path}: is not the index of a store")
        except sqlite3.DatabaseError as error:
            self.__exit__()
            raise InputError(f"{path}: cannot be used as an index of photos: {error}") from error
        except InputError:
            self.__exit__()
            raise

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *error: object) -> None:
        self._index.close()
        self.drive.close()

    def __len__(self) -> int:
        (count,) = self._index.execute("SELECT count(*) FROM photos").fetchone()
        return int(count)

    def add(self, photos: Iterable[tuple[int, bytes]]) -> None:
        """Store JPEG files (number, bytes); they are in the index once they are on flash."""
        size = self.drive.block_bytes
        (end,) = self._index.execute("SELECT max(offset + bytes) FROM photos").fetchone()
        start = -(-(end or 0) // size) * size
        rows, whole = [], bytearray()
        for number, data in photos:
            rows.append((number, start + len(whole), len(data), zlib.crc32(data)))
            whole += data + bytes(-len(data) % size)
        step = self.drive.cfg.frontend.max_transfer_bytes // size * size
        for at in range(0, len(whole), step):
            self.drive.write(start + at, bytes(whole[at : at + step]))
        self.drive.flush()
        with self._index:
            self._index.executemany("INSERT OR REPLACE INTO photos VALUES (?, ?, ?, ?)", rows)

    def jpeg(self, number: int) -> bytes:
        """Return the JPEG file of a photo. Raises InputError if the store does not have it or it
        has other bytes than were stored."""
        found = self._index.execute(
            "SELECT offset, bytes, crc FROM photos WHERE photo = ?", (number,)
        ).fetchone()
        if found is None:
            raise InputError(f"photo {number}: this store does not have it")
        offset, size, crc = found
        unit = self.drive.block_bytes
        data = self.drive.read(offset, -(-size // unit) * unit)[:size].tobytes()
        if zlib.crc32(data) != crc:
            raise InputError(f"photo {number}: has other bytes than were stored")
        return data


def check_free(folder: Path) -> None:
    """Raise InputError if the drive of the store in ``folder`` is in use or cannot be opened."""
    StoreFolder.look(folder / "drive", lock=True).close()


def pillow() -> Any:
    """Return the module PIL.Image. Raises InputError if Pillow is not installed."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise InputError(
            "Pillow is not installed; install it with: pip install 'ondie[train]'"
        ) from error
    return Image


def decoded(number: int, data: bytes) -> np.ndarray:
    """Return float32[3, EDGE, EDGE] in [-1, 1] of a JPEG file of any size. Raises InputError,
    which names the photo, if it is damaged."""
    image = pillow()
    try:
        with image.open(io.BytesIO(data), formats=["JPEG"]) as picture:
            colors = picture.convert("RGB")
        if colors.size != (EDGE, EDGE):
            colors = colors.resize((EDGE, EDGE))
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise InputError(f"photo {number}: corrupt JPEG: {error}") from error
    pixels = np.asarray(colors, np.float32).transpose(2, 0, 1)
    return np.ascontiguousarray(pixels / np.float32(127.5) - np.float32(1))
