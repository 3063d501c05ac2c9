"""Superblock of a store: its fields and its file format.

Owns the format version, the encoding with its checksum, and the names of the durability modes. Does
not own the folder or the replacement of the file (store_folder.py).
Source: this project (docs/store.md); superblocks and clean flags as in file systems.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from ondie.emu.units import InputError, quoted
from ondie.kernels.crc import crc32c

MAGIC = b"ondie store\n"
VERSION = 1
DURABILITIES = ("process", "host")
"""Durabilities of a store. "process": stored data survives the end of the process. "host": data of
a completed FLUSH or of a completed write with FUA also survives a power loss of the host."""


@dataclass(frozen=True)
class Superblock:
    """Superblock of a store: identity, sizes and state. Sizes are in bytes or pages."""

    version: int
    uuid: str
    preset: str
    configuration_sha256: str
    seed: int
    page_bytes: int
    segment_pages: int
    pages: int
    durability: str
    clean: bool
    """True if the drive was closed and had no data left to store."""
    segments: int | None
    """Number of segments with files when the drive was closed; None if the store is not clean."""
    holes: bool
    """True if the file system can release the space of erased pages."""
    checkpoint: int | None
    """CRC-32C of the checkpoint (nand/checkpoint.py); None if there is no checkpoint or if pages
    have changed since it was written.
    """


def encoded(block: Superblock) -> bytes:
    """Return the contents of a superblock file: the magic line, a line with the checksum, and the
    superblock in JSON."""
    text = json.dumps(asdict(block), indent=1).encode() + b"\n"
    return MAGIC + f"{crc32c(text):08x}\n".encode() + text


def decoded(raw: bytes, where: str) -> Superblock:
    """Return the superblock in the file contents ``raw``. Raises InputError if ``raw`` is not a
    superblock, is damaged, has another version, or has fields that differ from those of this
    version. The message names ``where``."""
    if not raw.startswith(MAGIC):
        raise InputError(f"{where}: is not the superblock of a store, or its first line is damaged")
    line, _, text = raw[len(MAGIC) :].partition(b"\n")
    if line != f"{crc32c(text):08x}".encode():
        raise InputError(
            f"{where}: is damaged or truncated (wrong checksum); restore it from a copy"
        )
    try:
        found = json.loads(text)
        version = int(found["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{where}: is not the superblock of a store: {error}") from error
    if version != VERSION:
        raise InputError(
            f"{where}: has format version {version}, but this program reads version {VERSION}; "
            "open the store with the version of this program that wrote it"
        )
    names = {field.name for field in fields(Superblock)}
    if set(found) != names:
        raise InputError(
            f"{where}: its fields differ from format version {VERSION} (missing: "
            f"{', '.join(sorted(names - set(found))) or 'none'}; unknown: "
            f"{quoted(', '.join(sorted(set(found) - names)) or 'none')}); open the store with the "
            "version of this program that wrote it"
        )
    return Superblock(**found)


def check_durability(durability: str) -> None:
    """Raise InputError unless ``durability`` is one of DURABILITIES."""
    if durability not in DURABILITIES:
        raise InputError(f"durability = {quoted(durability)}: must be {' or '.join(DURABILITIES)}")
