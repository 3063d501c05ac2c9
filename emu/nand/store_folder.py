"""Folder of a store: superblock, configuration, lock, and access to files by name.

Owns the folder's identity (UUID, configuration, seed, durability), the clean flag, the lock and
safe access to files. Does not own segments (segment_files.py), their contents (page_store.py) or
the format of the superblock (superblock.py).
Source: this project (docs/store.md); superblocks and clean flags as in file systems.

The superblock is never changed in place: a new file is written, synced and renamed, and then the
folder is synced. So the process may be killed at any time.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import uuid
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ondie.emu.config.config import Config, shown
from ondie.emu.files import as_path, lock_holder
from ondie.emu.nand import sparse_file
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.superblock import (
    VERSION,
    Superblock,
    check_durability,
    decoded,
    encoded,
)
from ondie.emu.units import InputError, plural, quoted

SEGMENT_BYTES = 1 << 26
"""Total size of the pages of one segment, in bytes of address space."""
SUPERBLOCK, CONFIGURATION, LOCK, NEW = "superblock", "configuration.json", "lock", ".new"
KEYS_SHOWN = 4
"""Number of differing configuration keys that an error message names."""
LARGEST = 1 << 24
"""Maximum size of a superblock or configuration file that is read, bytes."""


class StoreFull(InputError):
    """Error: the file system of a store is full or cannot be synced, so that no further data can be
    stored. The stored data remains unchanged and readable."""


def configuration_text(cfg: Config) -> bytes:
    """Return the canonical JSON text of the resolved configuration. Config.sha256 is its hash."""
    text = json.dumps(cfg.resolved(), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def leaves_of(tree: dict[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return the leaves (records of one value each) of a resolved configuration by key."""
    found: dict[str, dict[str, Any]] = {}
    for name, branch in tree.items():
        if "value" in branch and not isinstance(branch["value"], dict):
            found[prefix + name] = branch
        else:
            found |= leaves_of(branch, f"{prefix}{name}.")
    return found


def differing(held: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """Return a text such as "flash.channels 8, not 16" for each key whose value differs between the
    configurations ``held`` and ``given``, system.name first. Sources and ranges are not
    compared."""
    ours, theirs = leaves_of(held), leaves_of(given)
    nothing = {"value": "missing"}
    pairs = {
        key: (ours.get(key, nothing), theirs.get(key, nothing))
        for key in ("system.name", *theirs, *ours)
    }
    return [
        f"{key} {_shown(old)}, not {_shown(new)}"
        for key, (old, new) in pairs.items()
        if old["value"] != new["value"]
    ]


def _shown(leaf: dict[str, Any]) -> str:
    """Return the value of a leaf of the configuration as text with its unit."""
    return shown(leaf["value"], leaf.get("unit"))


def _of_blocks(keys: list[str]) -> str:
    """Return a phrase for the error message if the differences ``keys`` (:func:`differing`) result
    from the size of a logical block, else ""."""
    if not any(key.startswith("ftl.partial_pages sectors") for key in keys):
        if not any(key.startswith("ftl.partial_pages whole, not sectors") for key in keys):
            return ""
        return "; its logical blocks are whole mapping units: open it without block_bytes (--block)"
    return (
        "; its logical blocks are smaller than a mapping unit: open it with their size as "
        "block_bytes (--block), for example 512"
    )


class StoreFolder:
    """An open folder of a store. :meth:`create_or_open` opens it for a drive, and :meth:`look` for
    a description or a check.

    Files are opened relative to the folder and never through a symbolic link.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path("store", path)
        with self.named():
            if self.path.is_symlink():
                raise InputError(f"{self.path}: is a symbolic link; name the folder itself")
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = os.open(self.path, flags)
        self._lock: int | None = None
        self._release = weakref.finalize(self, _close, [self._handle])
        self.durability = "process"
        self.superblock: Superblock
        self.writing = False
        """True after the first change of a page since the folder was opened."""

    @property
    def syncs(self) -> bool:
        """True if stored data must survive a power loss of the host (durability "host")."""
        return self.durability == "host"

    @contextmanager
    def named(self, name: str = "", doing: str = "cannot be opened") -> Iterator[None]:
        """Convert an OSError inside this context to StoreFull if the file system is full, otherwise
        to an InputError that names file ``name`` (or the folder) and states ``doing``."""
        where = self.path / name if name else self.path
        try:
            yield
        except OSError as error:
            if error.errno in sparse_file.FULL:
                raise StoreFull(
                    f"{where}: no room ({os.strerror(error.errno)}); the store is full"
                ) from error
            if error.errno == errno.ELOOP:
                raise InputError(
                    f"{where}: is a symbolic link, which a store must not contain"
                ) from error
            raise InputError(f"{where}: {doing}: {error.strerror}") from error

    # --- files

    def open_file(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Return a descriptor of a regular file of the folder. The caller closes it. Raises
        FileNotFoundError if the file is missing, and InputError if it cannot be opened or is not a
        regular file."""
        try:
            with self.named(name):
                flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
                handle = os.open(name, flags, 0o644, dir_fd=self._handle)
        except InputError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise InputError(f"{self.path / name}: is not a regular file")
        return handle

    def names(self) -> list[str]:
        """Return the names of all files of the folder, sorted."""
        with self.named():
            return sorted(os.listdir(self._handle))

    def disk_bytes(self) -> int:
        """Return the space that the folder and its files occupy in the file system, in bytes."""
        with self.named():
            found = [os.stat(self._handle)]
            for name in os.listdir(self._handle):
                with suppress(FileNotFoundError):  # renamed meanwhile by the process that uses it
                    found.append(os.stat(name, dir_fd=self._handle, follow_symlinks=False))
        return sum(each.st_blocks for each in found) * 512

    def read(self, name: str) -> bytes:
        """Return the contents of a small file. Raises the errors of :meth:`open_file`."""
        with os.fdopen(self.open_file(name), "rb") as file:
            return file.read(LARGEST)

    def size(self, name: str) -> int:
        """Return the size of a file in bytes. Raises InputError if the file is missing."""
        with self.named(name):
            return os.stat(name, dir_fd=self._handle, follow_symlinks=False).st_size

    def create(self, name: str, size: int) -> None:
        """Create a sparse file of ``size`` zero bytes. No file is left after an error. Raises
        StoreFull if the file system is full, InputError for any other error."""
        handle = self.open_file(name + NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with self.named(name, "cannot be created"):
            try:
                os.ftruncate(handle, size)
                self._rename(name)
            except OSError:
                with suppress(OSError):
                    os.unlink(name + NEW, dir_fd=self._handle)
                raise
            finally:
                os.close(handle)

    def mapped(self, name: str) -> np.ndarray | None:
        """Return a read-only memory map of a file, uint8[size], or None if the file is empty.
        Raises the errors of :meth:`open_file`."""
        handle = self.open_file(name)
        try:
            size = os.fstat(handle).st_size
            with self.named(name):
                return sparse_file.map_shared(handle, size, writable=False) if size else None
        finally:
            os.close(handle)

    def write(self, name: str, contents: Iterable[bytes | memoryview]) -> None:
        """Replace a file such that it has either the old or the new contents after a kill or a
        power loss. Raises StoreFull if the file system is full, InputError for any other error."""
        with self.named(name, "cannot be written"):
            try:
                handle = self.open_file(name + NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                with os.fdopen(handle, "wb") as file:
                    for part in contents:
                        file.write(part)
                    file.flush()
                    os.fsync(file.fileno())
                self._rename(name)
            except OSError:
                with suppress(OSError):
                    os.unlink(name + NEW, dir_fd=self._handle)
                raise
            os.fsync(self._handle)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists, and sync the folder. Raises InputError if this fails."""
        with self.named(name, "cannot be removed"):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._handle)
            os.fsync(self._handle)

    def _rename(self, name: str) -> None:
        os.rename(name + NEW, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def sync(self) -> None:
        """Make the names of created files durable. Raises InputError if the sync fails."""
        with self.named(doing="cannot be synced"):
            os.fsync(self._handle)

    def _sync_files(self) -> None:
        """Make the contents of all files durable. Raises InputError if a sync fails."""
        for name in self.names():
            handle = self.open_file(name)
            with self.named(name, "cannot be synced"):
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    # --- opening

    @classmethod
    def create_or_open(
        cls,
        path: str | os.PathLike[str],
        cfg: Config,
        *,
        seed: int = 0,
        durability: str | None = None,
        create: bool = True,
    ) -> StoreFolder:
        """Open the store of a drive with configuration ``cfg`` and seed ``seed``. If ``create`` is
        True, create the store if the folder is empty or missing. ``durability``: one of
        DURABILITIES, or None for that of the store ("process" for a new store).

        Raises StoreFull if the file system is full. Raises InputError if ``durability`` is unknown,
        if the folder is missing, a symbolic link, in use, not writable or not a store, or if the
        store is damaged or has another version, durability, configuration or seed.
        """
        if durability is not None:
            check_durability(durability)
        place = as_path("store", path)
        if create and not os.path.lexists(place):
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"{place}: cannot be created: {error.strerror}") from error
        folder = cls(place)
        try:
            folder._refuse_others()
            if not create:
                folder._require_superblock()
            folder._take_lock(fcntl.LOCK_EX)
            folder.durability = durability or "process"
            if SUPERBLOCK not in folder.names():
                folder._create(cfg, seed)
            folder._read()
            folder.durability = folder.superblock.durability
            folder._check_drive(cfg, seed)
            folder._check_durability(durability)
            for name in folder.names():
                if name.endswith(NEW):  # a process was killed before it renamed this file
                    os.unlink(name, dir_fd=folder._handle)
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def look(cls, path: str | os.PathLike[str], lock: bool = False) -> StoreFolder:
        """Open a store for reading only. With ``lock``, no drive can use the store until it is
        closed.

        Raises InputError if the folder is missing, a symbolic link or not a store, if the store is
        damaged or has another version, or, with ``lock``, if a drive uses the store.
        """
        folder = cls(path)
        try:
            if lock:
                folder._take_lock(fcntl.LOCK_SH)
            folder._require_superblock()
            folder._read()
        except BaseException:
            folder.close()
            raise
        return folder

    def _require_superblock(self) -> None:
        """Raise InputError if the folder is not a store."""
        if SUPERBLOCK not in self.names():
            raise InputError(f"{self.path}: is not a store: it has no {SUPERBLOCK}")

    def _refuse_others(self) -> None:
        """Raise InputError if the folder has no superblock and contains files other than those that
        an interrupted creation leaves."""
        names = self.names()
        ours = {LOCK, CONFIGURATION, *(each + NEW for each in (SUPERBLOCK, CONFIGURATION))}
        others = [name for name in names if name not in ours]
        if SUPERBLOCK in names or not others:
            return
        if any(name.startswith("segment-") for name in others):
            raise InputError(f"{self.path}: {SUPERBLOCK} is missing; restore the store from a copy")
        raise InputError(
            f"{self.path}: is neither a store nor empty: it contains {quoted(others[0])}; name a "
            "new folder"
        )

    def _take_lock(self, kind: int) -> None:
        """Lock the folder until it is closed or the process ends. Raises InputError if the folder
        is in use, or if ``kind`` is LOCK_SH and the folder has no lock file."""
        alone = kind == fcntl.LOCK_EX
        try:
            self._lock = self.open_file(LOCK, os.O_RDWR | os.O_CREAT if alone else os.O_RDONLY)
        except FileNotFoundError:
            raise InputError(f"{self.path}: is not a store: it has no {LOCK}") from None
        self._release.detach()
        self._release = weakref.finalize(self, _close, [self._handle, self._lock])
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{self.path}: is in use by {lock_holder(self._lock)}") from None

    @property
    def in_use(self) -> bool:
        """True if a drive or a check has this folder open."""
        try:
            handle = self.open_file(LOCK)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def _create(self, cfg: Config, seed: int) -> None:
        """Write the configuration and then the superblock of an empty store."""
        geometry = Geometry.of(cfg)
        page = geometry.page_bytes
        self.write(CONFIGURATION, [configuration_text(cfg)])
        block = Superblock(
            version=VERSION, uuid=str(uuid.uuid4()), preset=cfg.system.name,
            configuration_sha256=cfg.sha256, seed=seed, page_bytes=page,
            segment_pages=SEGMENT_BYTES // page, pages=geometry.physical_pages,
            durability=self.durability, clean=True, segments=0, holes=self._makes_holes(),
            checkpoint=None,
        )  # fmt: skip
        self.write(SUPERBLOCK, [encoded(block)])

    def _makes_holes(self) -> bool:
        """Return True if the file system of the folder can release file space."""
        handle = self.open_file(CONFIGURATION, os.O_RDWR)
        with self.named(CONFIGURATION, "cannot be written"):
            try:
                end = os.fstat(handle).st_size
                return sparse_file.punch(handle, -(-end // 4096) * 4096, 4096)
            finally:
                os.close(handle)

    def _read(self) -> None:
        """Read the superblock and the configuration, and check that they match."""
        self.superblock = decoded(self.read(SUPERBLOCK), str(self.path / SUPERBLOCK))
        try:
            text = self.read(CONFIGURATION)
        except FileNotFoundError:
            raise InputError(f"{self.path / CONFIGURATION}: is missing; restore a copy") from None
        if hashlib.sha256(text).hexdigest() != self.superblock.configuration_sha256:
            raise InputError(f"{self.path / CONFIGURATION}: is damaged; restore a copy of it")
        self.configuration: dict[str, Any] = json.loads(text)

    def _check_drive(self, cfg: Config, seed: int) -> None:
        """Raise InputError if the store is that of a drive with another configuration or seed."""
        held = self.superblock
        if held.configuration_sha256 != cfg.sha256:
            keys = differing(self.configuration, cfg.resolved())
            if keys:
                more = f", and {plural(len(keys) - KEYS_SHOWN, 'more key')}"
                raise InputError(
                    f"{self.path}: is the store of a drive with another configuration: "
                    f"{'; '.join(keys[:KEYS_SHOWN])}{more if len(keys) > KEYS_SHOWN else ''}"
                    f"{_of_blocks(keys)}"
                )
        if held.seed != seed:
            raise InputError(
                f"{self.path}: is the store of a drive with seed {held.seed}, not {seed}; open it "
                f"with seed {held.seed}, which determines the bad blocks of the drive"
            )

    def _check_durability(self, wanted: str | None) -> None:
        """Raise InputError unless the store has durability ``wanted`` or ``wanted`` is None."""
        held = self.superblock.durability
        if wanted not in (None, held):
            raise InputError(
                f"{self.path}: has durability {held}, not {wanted}; open it without durability, or "
                f"change it with `ondie store durability {self.path} {wanted}`"
            )

    @classmethod
    def set_durability(cls, path: str | os.PathLike[str], durability: str) -> str:
        """Set the durability of a clean store and return its previous durability. If the two
        differ, all files are synced first, including changes by killed processes.

        A store that was not closed is recovered by the rules of its durability. With "host",
        recovery assumes that pages may have lost unsynced changes. With "process", it assumes no
        loss. Raises InputError if the store is in use or cannot be opened (see :meth:`look`), if
        the durability differs and the store was not closed, or if ``durability`` is unknown.
        """
        check_durability(durability)
        folder = cls(path)
        try:
            folder._require_superblock()
            folder._take_lock(fcntl.LOCK_EX)
            folder._read()
            held = folder.superblock.durability
            if held != durability:
                if not folder.superblock.clean:
                    raise InputError(
                        f"{folder.path}: was not closed; to change its durability, first open a "
                        "drive with this store (which recovers the store) and close the drive"
                    )
                folder._sync_files()
                folder._replace(durability=durability)
            return held
        finally:
            folder.close()

    # --- the clean flag

    def begin_writing(self) -> None:
        """Clear the clean flag before the first change of a page. Raises the errors of
        :meth:`write`."""
        if not self.writing:
            self._replace(clean=False, segments=None, checkpoint=None)
            self.writing = True

    def set_clean(self, segments: int, checkpoint: int | None = None) -> None:
        """Set the clean flag after the last change of a page. ``segments``: number of segments with
        files; ``checkpoint``: checksum of the checkpoint. Raises the errors of :meth:`write`."""
        self._replace(clean=True, segments=segments, checkpoint=checkpoint)
        self.writing = False

    def _replace(self, **changes: Any) -> None:
        block = replace(self.superblock, **changes)
        self.write(SUPERBLOCK, [encoded(block)])
        self.superblock = block

    def close(self) -> None:
        """Release the lock and close the folder."""
        self._release()


def _close(handles: list[int]) -> None:
    for handle in handles:
        os.close(handle)
