"""Files that a command writes: their names, the checks before a run, and writing whole files.

Owns when a target is refused. Does not own what is written. Source: none.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ondie.emu.units import InputError

IMAGES = ("png", "pdf")
"""Formats of figures."""


def write_atomically(files: Mapping[Path, bytes]) -> None:
    """Write all files whole or none: each beside its place, then renamed. Raises InputError."""
    staged: list[tuple[str, Path]] = []
    made: list[Path] = []
    try:
        for path, data in files.items():
            check_target(path)
            with _writing(path):
                _make_folder(path.parent, made)
                handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
                staged.append((name, path))
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.chmod(name, 0o644)
        while staged:
            with _writing(staged[0][1]):
                os.replace(*staged[0])
            del staged[0]
    except BaseException:
        for name, _ in staged:
            os.unlink(name)
        for folder in reversed(made):
            with suppress(OSError):  # somebody else may have put something there
                folder.rmdir()
        raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def _make_folder(folder: Path, made: list[Path]) -> None:
    """Make a folder and its parents, noting the new ones in ``made``."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for p in reversed(missing):
        p.mkdir(exist_ok=True)
        made.append(p)


def check_apart(path: str | Path, *read: str | Path) -> None:
    """Raise InputError when a file that is to be written is one of those that are ``read``."""
    if any(os.path.realpath(path) == os.path.realpath(each) for each in read):
        raise InputError(f"{path}: is read, and would be lost; another name is right")


def check_target(path: Path, *read: str | Path) -> None:
    """Raise InputError when a file cannot be written at ``path``: before a long run, not after; or
    when it is one of those that are ``read``."""
    check_apart(path, *read)
    with _writing(path):
        if path.is_dir():
            raise InputError(f"{path}: cannot be written: it is a folder")
        parent = next(p for p in path.parents if p.exists())
        if not parent.is_dir():
            raise InputError(f"{path}: cannot be written: {parent} is not a folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise InputError(f"{path}: cannot be written: no permission in {parent}")


def suffix_of(path: Path) -> str:
    """Return the image format of a file by its suffix. Raises InputError for another suffix."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in IMAGES:
        raise InputError(f"{path}: the suffix of a figure must be .{' or .'.join(IMAGES)}")
    return suffix


def targets(out: Path) -> tuple[Path, Path, Path]:
    """The files of every comparison in its folder: result and figure."""
    return out / "result.json", out / "figure.png", out / "figure.pdf"


def tornado_targets(out: Path) -> tuple[Path, Path]:
    """The files of the tornado figure, of comparisons that vary their constants."""
    return out / "tornado.png", out / "tornado.pdf"
