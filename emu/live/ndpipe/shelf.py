"""Photos of one NDPipe store: JPEG files in the pages of an emulated drive, and their index.

Owns the location of a photo on the drive, and the reading and decoding of photos. Does not own the
drive (drive.py) or the assignment of photos to stores (labels.py).
Source: this project.
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
"""Configuration preset of the emulated drive of each store."""
EDGE = 32
"""Width and height of the network's input, pixels."""


class Shelf:
    """Context manager for the drive with the photos of the store in ``folder``. ``drive/`` contains
    the pages of the drive, and ``index.sqlite`` contains the location of each photo.

    ``create``: True to create the drive and the index in a folder that contains neither the drive
    nor the index. Raises InputError if the drive is in use or damaged, or if the index is missing,
    invalid or damaged. The methods raise InputError if the drive or the index is damaged.
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
        """Store JPEG files, given as (number, data). The photos are added to the index after their
        data has been flushed to the drive."""
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
        """Return the JPEG file of a photo. Raises InputError if the store does not have the photo,
        or if the data that was read differs from the stored data."""
        found = self._index.rows("SELECT offset, bytes, crc FROM photos WHERE photo = ?", (number,))
        if not found:
            raise InputError(f"photo {number}: this store does not have the photo")
        ((offset, size, crc),) = found
        unit = self.drive.block_bytes
        data = self.drive.read(offset, -(-size // unit) * unit)[:size].tobytes()
        if zlib.crc32(data) != crc:
            raise InputError(f"photo {number}: the data that was read differs from the stored data")
        return data


def _index(folder: Path, create: bool = False) -> Database:
    """Return the index of the store in ``folder``. Raises InputError if the index is missing or
    cannot be used."""
    path = folder / "index.sqlite"
    if not create and not path.exists():
        raise InputError(
            f"{path}: no such index of photos; `ondie ndpipe train` creates one in a new folder"
        )
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
    the index of the store cannot be used."""
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
    """Return the pixels of a JPEG file of any size, scaled to float32[3, EDGE, EDGE] in [-1, 1].
    Raises InputError, with the photo's number, if the file is damaged."""
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
