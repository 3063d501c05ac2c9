"""Checkpoint of a closed drive: all tables of its engine and FTL, in one file of its store.

Owns the file: the selection of its tables, their encoding, and the check before it is used. Does
not own the decision to write or use the file (engine/run/power_system.py) or the folder
(store_folder.py).
Source: this project (docs/store.md).

The file is one line of JSON, followed by bytes of the tables. The JSON has the numbers (named
integers that are not in a table) and, for each table, its name, type, shape, stored byte ranges,
and their size in the file. Ranges of zeros are omitted. Tables of records are compressed, because
most records are alike. The superblock has the checksum of the file only while the store is clean,
so a checkpoint that is older than the pages on flash is never used.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

from ondie.emu.engine.core.sparse_table import touched_parts
from ondie.emu.engine.core.state import FIELDS, Arrays
from ondie.emu.nand.store_folder import StoreFolder
from ondie.kernels.crc import crc32c

NAME = "checkpoint"
"""Name of the checkpoint file in the store."""
NOT_KEPT = ("cfg", "code", "log", "stage", "message", "line", "wait")
"""Tables of the engine that a checkpoint omits, because they follow from the configuration or are
empty while the drive is closed. ``code`` also contains the address of a function of this process,
and ``wait`` contains uninitialized memory.
"""
PLAIN = ("l2p", "p2l", "sectors", "bytes cached", "bytes flying")
"""Names of the tables that are stored uncompressed, because they are large and compress badly
except for long ranges of zeros, which are not stored for any table."""
PART = 1 << 16
"""Size of the parts into which a table is divided for storage, in bytes. At most one contiguous
range of bytes of each part is stored."""
PIECE = 1 << 12
"""Size of the pieces into which a part is divided, in bytes. The stored range of a part extends
from the first piece to the last piece that is not all zeros."""


def of_engine(arrays: Arrays) -> dict[str, np.ndarray]:
    """Return the tables of the engine that a checkpoint contains, by name."""
    return {name: getattr(arrays, name) for name in FIELDS if name not in NOT_KEPT}


def _as_bytes(table: np.ndarray) -> np.ndarray:
    """Return a view of the memory of a table, uint8[n]."""
    return np.asarray(table).view(np.ndarray).reshape(-1).view(np.uint8)


def _layout(table: np.ndarray) -> list[Any]:
    """Return the type and the shape of a table as they are stored in JSON."""
    plain = np.asarray(table).view(np.ndarray)
    return [str(np.lib.format.dtype_to_descr(plain.dtype)), list(plain.shape)]


def _parts(raw: np.ndarray) -> list[tuple[int, int]]:
    """Return the ranges (start, end) of ``raw`` (uint8[n]) to store. All bytes outside these ranges
    are zero.

    The ranges depend only on the contents, not on the memory pages in use: the range of each part
    begins and ends with a piece that is not all zeros.
    """
    found: list[tuple[int, int]] = []
    end = 0
    for touched in touched_parts(raw):
        for first in range(max(touched.start // PART * PART, end), touched.stop, PART):
            end = min(first + PART, len(raw))
            pieces = range(first, end, PIECE)
            start = next((at for at in pieces if raw[at : at + PIECE].any()), end)
            if start == end:
                continue
            last = next(at for at in reversed(pieces) if raw[at : at + PIECE].any())
            stop = min(last + PIECE, end)
            if found and found[-1][1] == start:
                found[-1] = found[-1][0], stop
            else:
                found.append((start, stop))
    return found


def save(folder: StoreFolder, tables: dict[str, np.ndarray], numbers: dict[str, int]) -> int:
    """Write the checkpoint file of a store. Return its checksum (CRC-32C).

    ``tables``: tables of the drive by name. ``numbers``: other integers of the drive by name.
    Raises StoreFull if the file system is full, and InputError if the file cannot be written.
    """
    heads: dict[str, list[Any]] = {}
    bodies: list[memoryview] = []
    for name, table in tables.items():
        raw = _as_bytes(table)
        parts = _parts(raw)
        pieces = [raw[start:end].data for start, end in parts]
        if name not in PLAIN:
            pieces = [memoryview(zlib.compress(b"".join(pieces), 1))]
        size = sum(map(len, pieces))
        heads[name] = [*_layout(table), parts, size]
        bodies += pieces
    head = {"program": version("ondie"), "numbers": numbers, "tables": heads}
    line = json.dumps(head).encode() + b"\n"
    checksum = 0

    def contents() -> Iterator[memoryview]:
        nonlocal checksum
        for piece in (memoryview(line), *bodies):
            checksum = crc32c(np.frombuffer(piece, np.uint8), checksum)
            yield piece

    folder.write(NAME, contents())
    return checksum


def remove(folder: StoreFolder) -> None:
    """Remove the checkpoint of a store and mark the store as not clean, so that the next start is a
    recovery. Raises StoreFull if the file system is full, and InputError if the store cannot be
    changed.
    """
    folder.begin_writing()
    folder.remove(NAME)


def load(folder: StoreFolder, tables: dict[str, np.ndarray]) -> dict[str, int] | None:
    """Copy the tables of a store's checkpoint into ``tables`` and return the numbers of the
    checkpoint (see :func:`save`). The tables in PLAIN must be all zeros before the call.

    Returns None, and leaves ``tables`` unchanged, if the file is missing, damaged or from another
    version of this program, or if its tables differ in type or shape (for example because of
    another number of queue pairs). Raises InputError if the file cannot be read.
    """
    try:
        raw = folder.mapped(NAME)
    except FileNotFoundError:
        return None
    if raw is None or crc32c(raw) != folder.superblock.checkpoint:
        return None
    end = bytes(raw[: 1 << 24]).index(b"\n")
    head = json.loads(bytes(raw[:end]))
    if head["program"] != version("ondie"):
        return None
    held = {name: layout[:2] for name, layout in head["tables"].items()}
    if held != {name: _layout(table) for name, table in tables.items()}:
        return None
    at = end + 1
    for name, (_, _, parts, size) in head["tables"].items():
        body = raw[at : at + size]
        memory = _as_bytes(tables[name])
        if name not in PLAIN:
            body = np.frombuffer(zlib.decompress(body.data), np.uint8)
            memory[:] = 0
        first = 0
        for start, stop in parts:
            memory[start:stop] = body[first : first + stop - start]
            first += stop - start
        at += size
    numbers: dict[str, int] = head["numbers"]
    return numbers
