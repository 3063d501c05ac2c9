"""Photos of one store: JPEG files in the pages of an emulated drive, and their index.

Owns where a photo lies on the drive, and reading and decoding it. Does not own the drive (drive.py)
or which store has which photo (labels.py). Source: this project.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ondie.emu.drive import Drive
from ondie.emu.live.ndpipe.database import Database
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
    damaged, or the index is invalid or damaged, which the methods report, too. ``create``: make
    both, in a folder that has neither.
    """

    def __init__(self, folder: Path, create: bool = False) -> None:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        else:
            _index(folder).close()  # before the drive, which takes time
        self.drive = Drive(DEVICE, True, store=folder / "drive")
        try:
            self._index = _index(folder, create)
        except InputError:
            self.drive.close()
            raise

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *error: object) -> None:
        self._index.close()
        self.drive.close()

    def __len__(self) -> int:
        ((count,),) = self._index.rows("SELECT count(*) FROM photos")
        return int(count)

    def add(self, photos: Iterable[tuple[int, bytes]]) -> None:
        """Store JPEG files (number, bytes); they are in the index once they are on flash."""
        size = self.drive.block_bytes
        ((end,),) = self._index.rows("SELECT max(offset + bytes) FROM photos")
        start = -(-(end or 0) // size) * size
        rows, whole = [], bytearray()
        for number, data in photos:
            rows.append((number, start + len(whole), len(data), zlib.crc32(data)))
            whole += data + bytes(-len(data) % size)
        step = self.drive.cfg.frontend.max_transfer_bytes // size * size
        for at in range(0, len(whole), step):
            self.drive.write(start + at, bytes(whole[at : at + step]))
        self.drive.flush()
        self._index.write("INSERT OR REPLACE INTO photos VALUES (?, ?, ?, ?)", rows)

    def jpeg(self, number: int) -> bytes:
        """Return the JPEG file of a photo. Raises InputError if the store does not have it or if
        its bytes differ from those that were stored."""
        found = self._index.rows("SELECT offset, bytes, crc FROM photos WHERE photo = ?", (number,))
        if not found:
            raise InputError(f"photo {number}: this store does not have it")
        ((offset, size, crc),) = found
        unit = self.drive.block_bytes
        data = self.drive.read(offset, -(-size // unit) * unit)[:size].tobytes()
        if zlib.crc32(data) != crc:
            raise InputError(f"photo {number}: its bytes differ from those that were stored")
        return data


def _index(folder: Path, create: bool = False) -> Database:
    """Return the index of the store in ``folder``. Raises InputError if it cannot be used."""
    path = folder / "index.sqlite"
    if not create and not path.exists():
        raise InputError(f"{path}: no such index of photos")
    index = Database(path, "an index of photos", (TABLE,) if create else ())
    try:
        if index.table("photos") != TABLE:
            raise InputError(f"{path}: is not the index of a store")
    except InputError:
        index.close()
        raise
    return index


def check_store(folder: Path) -> None:
    """Raise InputError if the drive of the store in ``folder`` is in use or cannot be opened, or if
    its index cannot be used."""
    StoreFolder.look(folder / "drive", lock=True).close()
    _index(folder).close()


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
