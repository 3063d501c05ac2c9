"""Files: checks before a run, atomic writing of several files, and the holder of a file lock.

Owns the checks of paths, file names and folders, atomic writes, and the identification of a lock's
holder. Does not own the contents of files.
Source: this project.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ondie.emu.units import InputError, quoted

STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
"""File descriptor of each standard stream that has a name in /dev, by path."""
IMAGES = ("png", "pdf")
"""Image formats of figures."""


def as_path(name: str, value: object) -> Path:
    """Return ``value`` as a Path. Raises InputError if ``value`` is neither a string nor
    os.PathLike, or if no file can have this name. ``name``: name of the value in the error message.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InputError(f"{name} = {quoted(repr(value))}: must be a string or os.PathLike")
    if not text or "\0" in text:
        raise InputError(f"{name} = {quoted(text)}: must not be empty or contain null characters")
    return Path(text)


def write_atomically(files: Mapping[Path, bytes], durable: bool = False) -> None:
    """Write all files, or no file if one of them cannot be written. ``files``: contents by path.

    Each file is written under a temporary name, then renamed. Missing folders are created. A
    symbolic link is kept, and its target is written. A device or a FIFO (``/dev/null``,
    ``/dev/stdout``) is written directly, before the files are renamed, because a renamed file would
    replace it. With ``durable``, files and their names are synced to the storage medium, so that
    they survive a failure of the host. Raises InputError if a file cannot be written.
    """
    staged: list[tuple[str, Path]] = []
    made: list[Path] = []
    for path in files:
        check_target(path)
    streams = {path: data for path, data in files.items() if _is_stream(path)}
    files = {
        Path(os.path.realpath(path)) if path.is_symlink() else path: data
        for path, data in files.items()
        if path not in streams
    }
    try:
        for path, data in files.items():
            with writing(path):
                _make_folder(path.parent, made)
                handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
                staged.append((name, path))
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    os.fchmod(file.fileno(), 0o644)
                    if durable:
                        file.flush()
                        os.fsync(file.fileno())
        for path, data in streams.items():
            with writing(path):
                _write_stream(path, data)
        while staged:
            with writing(staged[0][1]):
                os.replace(*staged[0])
            del staged[0]
        for path in files if durable else ():
            with writing(path):
                _sync_folder(path.parent)
    except BaseException:
        for name, _ in staged:
            os.unlink(name)
        for folder in reversed(made):
            with suppress(OSError):  # another process may have created a file there
                folder.rmdir()
        raise


def _is_stream(path: Path) -> bool:
    """Return True if ``path`` is an open file of this process, or if it exists and is neither a
    file nor a folder (a device, a FIFO or a socket).
    """
    if _descriptor(path) is not None:
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _descriptor(path: Path) -> int | None:
    """Return the descriptor of the open file that ``path`` refers to, such as /dev/stdout, or None
    if ``path`` is an ordinary path.
    """
    name = STANDARD.get(str(path))
    if name is None and str(path.parent) in ("/dev/fd", "/proc/self/fd") and path.name.isdecimal():
        name = int(path.name)
    return name


def _write_stream(path: Path, data: bytes) -> None:
    """Write ``data`` to a device or a FIFO, or at the current position of an open file of this
    process.
    """
    number = _descriptor(path)
    if number is None:
        path.write_bytes(data)
        return
    sys.stdout.flush()
    with open(os.dup(number), "wb") as file:
        file.write(data)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context manager for reads from the file ``path``: replaces an OSError by an InputError that
    names the file.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context manager for writes to the file ``path``: replaces an OSError by an InputError that
    names the file.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def _sync_folder(folder: Path) -> None:
    """Sync the directory entries of a folder to the storage medium."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _make_folder(folder: Path, made: list[Path]) -> None:
    """Create a folder and its missing parents. Append the created folders to ``made``."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        made.append(each)


def check_apart(path: str | Path, *read: str | Path) -> None:
    """Raise InputError if the output file ``path`` is one of the input files ``read``."""
    if any(os.path.realpath(path) == os.path.realpath(each) for each in read):
        raise InputError(f"{path}: is an input file and would be overwritten; use another name")


def check_target(path: Path, *read: str | Path) -> None:
    """Raise InputError if the output file ``path`` cannot be written or is one of the input files
    ``read``.

    Commands call this function before a long run.
    """
    check_apart(path, *read)
    with writing(path):
        if path.is_dir():
            raise InputError(f"{path}: cannot be written: it is a folder")
        if _is_stream(path):
            if not os.access(path, os.W_OK):
                raise InputError(f"{path}: cannot be written: no permission")
            return
        parent = next(each for each in path.parents if each.exists())
        if not parent.is_dir():
            raise InputError(f"{path}: cannot be written: {parent} is not a folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise InputError(f"{path}: cannot be written: no permission in {parent}")
        with tempfile.TemporaryFile(dir=parent):  # root passes every permission check
            pass


def suffix_of(path: Path) -> str:
    """Return the image format of a file from its suffix: one of IMAGES.

    Raises InputError if the suffix is not in IMAGES.
    """
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in IMAGES:
        raise InputError(f"{path}: the file name of a figure must end with .{' or .'.join(IMAGES)}")
    return suffix


def lock_holder(handle: int) -> str:
    """Return a text that names the process holding the lock (flock) of an open file, as precisely
    as the operating system reports it.
    """
    number = os.fstat(handle).st_ino
    try:
        with open("/proc/locks") as file:
            rows = [line.split() for line in file]
    except OSError:
        rows = []
    for row in rows:
        if row[1] == "FLOCK" and row[5].rpartition(":")[2] == str(number):
            if row[4] == str(os.getpid()):
                return "another drive or store check in this process"
            if int(row[4]) > 0:
                return f"another process (pid {row[4]})"
    return "another drive or store check"
