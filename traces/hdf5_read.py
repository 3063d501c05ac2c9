"""Reader of trace files: lazy, with a one-line error for every kind of damage.

This module owns read() and the FileSource that fetches vectors on demand. It does not own the
layout (hdf5.py) or the consistency rules (consistency.py).
Source: the layout in hdf5.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ondie.traces.errors import TraceError
from ondie.traces.hdf5 import FORMAT, HEADER, SCHEMA, STEP_COLUMNS, TENSOR_COLUMNS, reason
from ondie.traces.model import F32, Trace
from ondie.traces.narrow import Packed, unpack
from ondie.traces.records import Step, Tensor

if TYPE_CHECKING:
    import h5py

_MAX_ENTRIES = 1 << 28  # maximum size of a table of tensors or steps


def read(path: str | os.PathLike[str]) -> Trace:
    """Read a trace file; vectors stay in the file until they are requested.

    Raises TraceError with a one-line message for a missing or truncated file, a file that is not
    HDF5, another format or version, a missing key or attribute, a value of the wrong type, and
    contradictory sizes.
    """
    path = Path(path)
    with _opened(path) as file:
        if _plain(file.attrs.get("format")) != FORMAT:
            raise TraceError(
                f"{path}: attribute format is {_plain(file.attrs.get('format'))!r}; must be "
                f"{FORMAT!r}; the file is not a trace"
            )
        if _plain(file.attrs.get("schema")) != SCHEMA:
            raise TraceError(
                f"{path}: attribute schema is {_plain(file.attrs.get('schema'))!r}; "
                f"must be {SCHEMA}, the version that this program reads"
            )
        header = {key: _attribute(path, file, key, kind) for key, kind in HEADER.items()}
        if header["groups"] < 1:  # the tables below have one column per group
            raise TraceError(f"{path}: groups is {header['groups']}; must be at least 1")
        tensors = _read_tensors(path, file)
        steps = _read_steps(path, file, len(tensors), header["groups"])
        attrs = {}
        if "attributes" in file:
            attrs = {key: _plain(value) for key, value in file["attributes"].attrs.items()}
        trace = Trace(
            tensors=tensors,
            steps=steps,
            attrs=attrs,
            origin=str(path),
            source=FileSource(path, tensors),
            digest=lambda: file_sha256(path),
            **header,
        )
        _check_vectors(path, file, trace)
    return trace


class FileSource:
    """The vectors of a trace file, read when they are requested (implements Source of model.py)."""

    def __init__(self, path: Path, tensors: Sequence[Tensor]) -> None:
        self.path = path
        self.starts = sorted(t.offset for t in tensors if t.trainable)

    def gradient(self, index: int) -> F32:
        """Return the gradient of a step as float32, without a check for NaN."""
        with _opened(self.path) as file:
            return self._vector(file, f"gradients/{index}/values")

    def raw(self, index: int) -> npt.NDArray[Any] | None:
        """Return the 16-bit gradient of a step before unscaling, or None if the file does not have
        it."""
        with _opened(self.path) as file:
            key = f"gradients/{index}/raw"
            return _array(self.path, file, key) if key in file else None

    def weights(self, which: str) -> F32 | None:
        """Return the "initial" or "final" weights, or None if the file does not have them."""
        with _opened(self.path) as file:
            key = f"weights/{which}"
            return self._vector(file, key) if key in file else None

    def states(self) -> dict[str, F32]:
        """Return the optimizer states before the first step, by name."""
        with _opened(self.path) as file:
            names = list(file["states"]) if "states" in file else []
            return {name: self._vector(file, f"states/{name}") for name in names}

    def buffers(self) -> dict[str, npt.NDArray[Any]]:
        """Return the model's buffers before the first step, by name."""
        with _opened(self.path) as file:
            group = file.get("buffers", {})
            keys = sorted(group, key=int)
            return {str(_plain(group[key].attrs["name"])): group[key][()] for key in keys}

    def storage(self, index: int) -> tuple[str, tuple[int, ...], int]:
        """Return (storage type, shifts, size in bytes in the file) of the gradient of step
        ``index``. A gradient is its stored values times 2**-shift; there is one shift for the
        gradient, or one for each tensor."""
        with _opened(self.path) as file:
            dataset = file[f"gradients/{index}/values"]
            shift = tuple(int(k) for k in np.atleast_1d(dataset.attrs["shift"]))
            return (
                str(_plain(dataset.attrs["storage"])),
                shift,
                int(dataset.id.get_storage_size()),
            )

    def _vector(self, file: h5py.File, key: str) -> F32:
        values = _array(self.path, file, key)
        attrs = file[key].attrs
        shift = tuple(int(k) for k in np.atleast_1d(attrs["shift"]))
        try:
            return unpack(Packed(str(_plain(attrs["storage"])), shift, values), self.starts)
        except TraceError as error:
            raise TraceError(f"{self.path}: /{key}: {error}") from None


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return the sha256 of a file's bytes as hexadecimal text. Raises TraceError if the file cannot
    be read."""
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {reason(error)}") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Open a trace file for reading; HDF5 errors become TraceErrors of one line."""
    import h5py  # a replay of a block trace need not import it

    if not path.exists():
        raise TraceError(f"{path}: no such file")
    if not path.is_file():
        raise TraceError(f"{path}: not a file")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except TraceError:
        raise
    except (
        OSError,
        RuntimeError,
        KeyError,
        ValueError,
        TypeError,
        OverflowError,
        AttributeError,
        MemoryError,
    ) as error:
        raise TraceError(
            f"{path}: not a complete HDF5 trace: {reason(error)}; a trace is a .h5 file that "
            "`ondie record` wrote, or a name that `ondie trace info` lists"
        ) from None


def _plain(value: object) -> Any:
    """Convert an HDF5 attribute to a Python str, bool, int or float; keep other types unchanged."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.generic):
        return value.item()
    return value


def _attribute(path: Path, file: h5py.File, key: str, kind: type) -> Any:
    """Return an attribute of the file. Raises TraceError if it is missing or does not have the type
    ``kind``."""
    if key not in file.attrs:
        raise TraceError(f"{path}: attribute {key} is missing")
    value = _plain(file.attrs[key])
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TraceError(
            f"{path}: attribute {key} is {value!r}; "
            f"must be {'text' if kind is str else 'a whole number'}"
        )
    return value


def _is_dataset(file: h5py.File, key: str) -> bool:
    """Return True if the file has an HDF5 data set named ``key``."""
    import h5py

    return key in file and isinstance(file[key], h5py.Dataset)


def _array(path: Path, file: h5py.File, key: str) -> npt.NDArray[Any]:
    """Return an HDF5 data set as an array. Raises TraceError if it is missing or too large."""
    if not _is_dataset(file, key):
        raise TraceError(f"{path}: /{key} is missing")
    if key.startswith(("tensors/", "steps/")) and file[key].size > _MAX_ENTRIES:
        raise TraceError(
            f"{path}: /{key} has {file[key].size} entries; must have at most {_MAX_ENTRIES}"
        )
    values: npt.NDArray[Any] = file[key][()]
    return values


def _column(path: Path, file: h5py.File, key: str, kind: type, shape: tuple[int, ...]) -> list[Any]:
    """Return an HDF5 data set as a list. Raises TraceError if it is missing or too large, or does
    not have the given type and shape."""
    array = _array(path, file, key)
    if array.shape != shape:
        raise TraceError(f"{path}: /{key} has shape {array.shape}; must be {shape}")
    if kind is str:
        if array.dtype.kind not in "SO":
            raise TraceError(f"{path}: /{key} holds {array.dtype}; must be text")
        return [_plain(value) for value in array.tolist()]
    kinds = {int: "iu", float: "f", bool: "b"}[kind]
    if array.dtype.kind not in kinds:
        raise TraceError(f"{path}: /{key} holds {array.dtype}; must be {kind.__name__}")
    return list(array.tolist())


def _rows(path: Path, file: h5py.File, key: str) -> int:
    """Return the number of entries of an HDF5 data set. Raises TraceError if it is missing or too
    large, or does not have one dimension."""
    array = _array(path, file, key)
    if array.ndim != 1:
        raise TraceError(f"{path}: /{key} has shape {array.shape}; must have one dimension")
    return len(array)


def _read_tensors(path: Path, file: h5py.File) -> tuple[Tensor, ...]:
    """Return the tensors of the model from the group /tensors. Raises TraceError for invalid
    data."""
    n = _rows(path, file, "tensors/name")
    shapes = _array(path, file, "tensors/shape")
    if shapes.ndim != 2 or len(shapes) != n or shapes.dtype.kind not in "iu":
        raise TraceError(
            f"{path}: /tensors/shape is {shapes.dtype}{list(shapes.shape)}; must have one row "
            f"of whole numbers for each of {n} tensors"
        )
    kinds = {"name": str, "dtype": str, "trainable": bool}
    columns = {
        key: _column(path, file, f"tensors/{key}", kinds.get(key, int), (n,))
        for key in TENSOR_COLUMNS
        if key != "shape"
    }
    columns["shape"] = [_unpadded(row) for row in shapes.tolist()]
    return tuple(Tensor(**{key: columns[key][i] for key in TENSOR_COLUMNS}) for i in range(n))


def _unpadded(row: list[int]) -> tuple[int, ...]:
    """Return a shape without the entries of -1 that fill its row."""
    while row and row[-1] == -1:
        row.pop()
    return tuple(row)


def _read_steps(path: Path, file: h5py.File, tensors: int, groups: int) -> tuple[Step, ...]:
    """Return the steps of the trace from the group /steps. Raises TraceError for invalid data."""
    n = _rows(path, file, "steps/index")
    columns = {
        key: _column(path, file, f"steps/{key}", kind, (n,)) for key, kind in STEP_COLUMNS.items()
    }
    for key in ("loss", "gradient_norm"):
        columns[key] = [None if math.isnan(value) else value for value in columns[key]]
    columns["gradient_sha256"] = [value or None for value in columns["gradient_sha256"]]
    columns["ready_s"] = [None] * n
    if "steps/ready_s" in file:
        _column(path, file, "steps/ready_s", float, (n, tensors))
        rows = _array(path, file, "steps/ready_s").astype(np.float64)
        columns["ready_s"] = [None if np.isnan(row).all() else row for row in rows]
    columns["fused"] = [()] * n
    if "steps/fused" in file:
        fused = _column(path, file, "steps/fused", bool, (n, groups))
        columns["fused"] = [tuple(row) for row in fused]
    columns["order"] = [None] * n
    if "steps/order" in file:
        rows = _array(path, file, "steps/order")
        if rows.ndim != 2 or len(rows) != n or rows.dtype.kind != "i":
            raise TraceError(
                f"{path}: /steps/order is {rows.dtype}{list(rows.shape)}; must have one row of "
                f"indices for each of {n} steps"
            )
        columns["order"] = [row[row >= 0] if (row >= 0).any() else None for row in rows]
    columns["hyper"] = _read_hyper(path, file, n, groups)
    return tuple(Step(**{key: columns[key][i] for key in columns}) for i in range(n))


def _read_hyper(path: Path, file: h5py.File, n: int, groups: int) -> list[tuple[Any, ...]]:
    """Return the hyperparameters of each step, as one dictionary per group. Raises TraceError for
    missing or invalid data."""
    if "steps/hyper" not in file:
        raise TraceError(f"{path}: /steps/hyper is missing")
    entries: list[list[dict[str, float | bool]]] = [[{} for _ in range(groups)] for _ in range(n)]
    for key in file["steps/hyper"]:
        rows = _column(path, file, f"steps/hyper/{key}", float, (n, groups))
        boolean = bool(file[f"steps/hyper/{key}"].attrs.get("boolean", False))
        for i, row in enumerate(rows):
            for group, value in enumerate(row):
                if not math.isnan(value):
                    entries[i][group][key] = bool(value) if boolean else value
    return [tuple(entry) for entry in entries]


def _check_vectors(path: Path, file: h5py.File, trace: Trace) -> None:
    """Raise TraceError unless every required vector exists and has the right length.

    The contents of the vectors are not read.
    """
    keys = [
        f"{folder}/{key}"
        for folder in ("weights", "states")
        if folder in file
        for key in file[folder]
    ]
    gradients = file.get("gradients", {})
    if trace.payload == "recorded":
        keys += [f"gradients/{step.index}/values" for step in trace.steps if not step.skipped]
    elif len(gradients):
        raise TraceError(
            f"{path}: payload is 'none', but /gradients has {len(gradients)} entries; must be empty"
        )
    for key in keys:
        if not _is_dataset(file, key):
            raise TraceError(f"{path}: /{key} is missing")
        dataset = file[key]
        if dataset.shape != (trace.n_params,):
            raise TraceError(
                f"{path}: /{key} has shape {dataset.shape}; must be ({trace.n_params},)"
            )
        if not {"storage", "shift"} <= set(dataset.attrs):
            raise TraceError(f"{path}: /{key}: attribute storage or shift is missing")
        right = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
        storage = str(_plain(dataset.attrs["storage"]))
        if storage not in right or dataset.dtype != np.dtype(right[storage]):
            raise TraceError(
                f"{path}: /{key} has storage {storage!r} and dtype {dataset.dtype.str}; must be "
                f"one of {', '.join(f'{name} with dtype {code}' for name, code in right.items())}"
            )
