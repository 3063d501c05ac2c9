"""All versions of a model in one file: `versions.npy`, uint8[versions, bytes].

Owns the file and its checksum. Does not own the numbers and differences of versions
(emu/ndpipe/versions.py).
Source: this project. A checksum of 16 bytes follows the array. numpy.load can also read the file,
because it ignores the bytes after the array.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from ondie.emu.files import write_atomically
from ondie.emu.ndpipe.delta import DIGEST_BYTES, digest
from ondie.emu.ndpipe.versions import Versions
from ondie.emu.units import InputError

NAME = "versions.npy"


def write_versions(folder: Path, versions: Versions) -> None:
    """Write all model versions to the file in ``folder`` in one atomic operation."""
    out = io.BytesIO()
    np.save(out, np.stack([versions.model(each) for each in range(versions.latest + 1)]))
    write_atomically({folder / NAME: out.getvalue() + digest(out.getvalue())})


def read_models(folder: Path, size: int) -> np.ndarray:
    """Return the parameters of all model versions in ``folder``, uint8[versions, size]. Raises
    InputError if the file `versions.npy` cannot be read or is damaged, if it was written by a
    version of ondie without checksums, or if a model in it does not have ``size`` bytes."""
    path = folder / NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    text = data[:-DIGEST_BYTES]
    if _is_array(data):
        raise InputError(
            f"{path}: has no checksum, like files of an earlier version of ondie; train in a new "
            "folder"
        )
    if digest(text) != data[-DIGEST_BYTES:]:
        raise InputError(
            f"{path}: is damaged: its checksum does not match; restore it, or train in a new folder"
        )
    models: np.ndarray = np.load(io.BytesIO(text))
    if models.dtype != np.uint8 or models.ndim != 2 or models.shape[1] != size:
        raise InputError(
            f"{path}: contains an array {models.dtype}{list(models.shape)}; for this network, the "
            f"array must be uint8[versions, {size}]"
        )
    return models


def _is_array(data: bytes) -> bool:
    """Return True if ``data`` is an array in the format of numpy.save, without further bytes after
    the array."""
    file = io.BytesIO(data)
    try:
        np.load(file)
    except (ValueError, EOFError):
        return False
    return not file.read(1)


def count_versions(folder: Path) -> int:
    """Return the number of model versions according to the header of the file in ``folder``, or 0
    if the file is missing or cannot be read."""
    try:
        models = np.load(folder / NAME, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return 0
    return len(models) if models.ndim else 0
