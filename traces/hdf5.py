"""The trace container: HDF5, schema version 1, written atomically and read lazily.

This module owns the layout below, the Writer (a .partial file, then fsync and rename) and write().
It does not own reading (hdf5_read.py), the consistency rules (consistency.py) or the narrowing of
vectors (narrow.py).
Source: the trace contract of this project. The filters (shuffle, gzip) exist in every HDF5 build.

    /                     attributes: format, schema, payload, timing_source, name, op, form,
                          gradient_dtype, groups, samples_per_step, bytes_per_sample,
                          macs_forward, macs_backward, dataset_samples, private_samples
    /attributes           attributes: framework, model, optimizer, device, seed, code_version, ...
    /tensors/             name, shape (rows padded with -1), dtype, offset, size, trainable,
                          group, ready_order: one row per tensor, in the order of the model if
                          some are not trainable
    /steps/               index, loss, samples, forward_s, backward_s, optimizer_s, count, scale,
                          clip_coefficient, found_inf, skipped, gradient_norm, gradient_sha256:
                          one row per step; ready_s [steps, tensors]; fused [steps, groups];
                          order [steps, samples] padded with -1 (indices in the data set)
    /steps/hyper/KEY      [steps, groups], NaN where a group has no such key
    /gradients/STEP/      values [n_params], with attributes storage and shift (narrow.py);
                          raw [n_params], optional: the 16-bit bytes before unscaling
    /weights/             initial, final: [n_params], optional; storage and shift as above
    /states/NAME          [n_params], optional: optimizer state before the first step
    /buffers/NUMBER       with attribute name: the model's buffers before the first step
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ondie.traces.errors import TraceError
from ondie.traces.model import F32, Trace
from ondie.traces.narrow import pack
from ondie.traces.records import Tensor

if TYPE_CHECKING:
    import h5py

FORMAT = "ondie-trace"
SCHEMA = 1
HEADER: dict[str, type] = {
    "payload": str,
    "timing_source": str,
    "name": str,
    "op": str,
    "form": str,
    "gradient_dtype": str,
    "groups": int,
    "samples_per_step": int,
    "bytes_per_sample": int,
    "macs_forward": int,
    "macs_backward": int,
    "dataset_samples": int,
    "private_samples": int,
}
TENSOR_COLUMNS = ("name", "shape", "dtype", "offset", "size", "trainable", "group", "ready_order")
STEP_COLUMNS: dict[str, type] = {
    "index": int,
    "loss": float,
    "samples": int,
    "forward_s": float,
    "backward_s": float,
    "optimizer_s": float,
    "count": int,
    "scale": float,
    "clip_coefficient": float,
    "found_inf": bool,
    "skipped": bool,
    "gradient_norm": float,
    "gradient_sha256": str,
}
_CHUNK = 1 << 16
_SMALL = 64
_VERSION = ("v110", "v110")  # this version adds checksums to metadata


class Writer:
    """Writer of one trace to `path`. The file has this name only after finish().

    Use it as a context manager. Leaving the context without finish(), for example because of an
    error or an interrupt, removes the partial file. `partial` is the path of the partial file,
    which is in the same folder and has a name that ends in .partial. Raises TraceError if a file
    cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], partial: str | None = None) -> None:
        import h5py  # a replay of a block trace need not import it

        self.path = Path(path)
        self.partial = Path(partial or f"{self.path}.{os.getpid()}.partial")
        check_target(self.path)
        try:
            self._file: h5py.File | None = h5py.File(self.partial, "w", libver=_VERSION)
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be written: {reason(error)}") from None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    @property
    def file(self) -> h5py.File:
        """The HDF5 file that is being written. Raises TraceError after finish() or discard()."""
        if self._file is None:
            raise TraceError(f"{self.path}: the writer is closed")
        return self._file

    def gradient(self, index: int, vector: F32, starts: Sequence[int], prefer: int = 0) -> int:
        """Store the gradient of one step in its narrowest lossless form.

        Returns the size in bytes before compression.
        """
        with self._writing():
            return self._vector(f"gradients/{index}/values", vector, starts, prefer)

    def raw(self, index: int, values: npt.NDArray[Any]) -> None:
        """Store the gradient of step ``index`` as it was before the division by the loss scale:
        float16, or uint16 that holds bfloat16."""
        with self._writing():
            self._dataset(f"gradients/{index}/raw", values)

    def vector(self, key: str, vector: F32, starts: Sequence[int]) -> None:
        """Store a vector under ``key``: "weights/initial", "weights/final" or "states/NAME"."""
        with self._writing():
            self._vector(key, vector, starts, 0)

    def buffers(self, buffers: dict[str, npt.NDArray[Any]]) -> None:
        """Store the contents that the model's buffers had before the first step, by name."""
        with self._writing():
            for number, (name, array) in enumerate(buffers.items()):
                dataset = self._dataset(f"buffers/{number}", np.asarray(array))
                _set(dataset.attrs, "name", name)

    def finish(self, trace: Trace) -> None:
        """Write header, tensors and steps of ``trace``, which must be consistent, and complete the
        file.

        The file is flushed to disk, then renamed.
        """
        with self._writing():
            self._header(trace)
            self._tensors(trace.tensors)
            self._steps(trace)
            self.file.close()
            self._file = None
            with open(self.partial, "rb+") as handle:
                os.fsync(handle.fileno())
            os.replace(self.partial, self.path)
            _sync_folder(self.path.parent)

    def discard(self) -> None:
        """Remove the partial file unless finish() has renamed it."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.partial.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.discard()
            raise TraceError(f"{self.path}: cannot be written: {reason(error)}") from None

    def _header(self, trace: Trace) -> None:
        _set(self.file.attrs, "format", FORMAT)
        _set(self.file.attrs, "schema", SCHEMA)
        for key in HEADER:
            _set(self.file.attrs, key, getattr(trace, key))
        attributes = self.file.create_group("attributes").attrs
        for key, value in trace.attrs.items():
            if not isinstance(value, str | bool | int | float):
                raise TraceError(
                    f"{self.path}: attribute {key!r} is a {type(value).__name__}; "
                    "must be text or a number"
                )
            _set(attributes, key, value)

    def _tensors(self, tensors: Sequence[Tensor]) -> None:
        rank = max([len(t.shape) for t in tensors], default=0)
        shapes = np.full((len(tensors), rank), -1, np.int64)
        for row, tensor in zip(shapes, tensors, strict=True):
            row[: len(tensor.shape)] = tensor.shape
        self._dataset("tensors/shape", shapes)
        self._dataset("tensors/name", _texts([t.name for t in tensors]))
        self._dataset("tensors/dtype", _texts([t.dtype for t in tensors]))
        integers = {"offset": np.int64, "size": np.int64, "group": np.int32}
        for key, kind in {**integers, "ready_order": np.int32, "trainable": bool}.items():
            self._dataset(f"tensors/{key}", np.array([getattr(t, key) for t in tensors], kind))

    def _steps(self, trace: Trace) -> None:
        steps = trace.steps
        for key, kind in STEP_COLUMNS.items():
            column = [getattr(step, key) for step in steps]
            if kind is float:
                column = [math.nan if value is None else value for value in column]
            text = kind is str
            array = _texts([value or "" for value in column]) if text else np.array(column, kind)
            self._dataset(f"steps/{key}", array)
        if any(step.ready_s is not None for step in steps):
            unknown = np.full(len(trace.tensors), np.nan)
            rows = [unknown if step.ready_s is None else step.ready_s for step in steps]
            self._dataset("steps/ready_s", np.stack(rows))
        if any(step.fused for step in steps):
            none = (False,) * trace.groups
            self._dataset("steps/fused", np.array([s.fused or none for s in steps], bool))
        orders = [step.order for step in steps]
        if any(order is not None for order in orders):
            width = max(len(order) for order in orders if order is not None)
            table = np.full((len(steps), width), -1, np.int64)
            for row, order in zip(table, orders, strict=True):
                if order is not None:
                    row[: len(order)] = order
            self._dataset("steps/order", table)
        self.file.create_group("steps/hyper")
        for key in sorted({key for step in steps for entry in step.hyper for key in entry}):
            values = np.array([[h.get(key, math.nan) for h in s.hyper] for s in steps], float)
            kinds = {type(h[key]) for s in steps for h in s.hyper if key in h}
            self._dataset(f"steps/hyper/{key}", values).attrs["boolean"] = kinds == {bool}

    def _vector(self, key: str, vector: F32, starts: Sequence[int], prefer: int) -> int:
        packed = pack(vector, starts, prefer)
        dataset = self._dataset(key, packed.values)
        _set(dataset.attrs, "storage", packed.storage)
        dataset.attrs["shift"] = np.array(packed.shift, np.int16)
        return int(packed.values.nbytes)

    def _dataset(self, key: str, array: npt.NDArray[Any]) -> h5py.Dataset:
        if array.size == 0 or array.ndim == 0:
            return self.file.create_dataset(key, data=array)
        chunks = tuple(min(size, _CHUNK) for size in array.shape)
        if array.ndim > 1:
            chunks = (max(1, min(array.shape[0], _CHUNK // max(1, array[0].size))), *chunks[1:])
        small = array.size < _SMALL  # too small for compression
        return self.file.create_dataset(
            key,
            data=array,
            chunks=chunks,
            fletcher32=True,
            shuffle=not small,
            compression=None if small else "gzip",
            compression_opts=None if small else 6,
        )


def write(path: str | os.PathLike[str], trace: Trace) -> None:
    """Write a trace to `path`, completely or not at all. Raises TraceError if it cannot be
    written."""
    starts = [t.offset for t in trace.trainable]
    with Writer(path) as writer:
        if trace.payload == "recorded":
            for i, step in enumerate(trace.steps):
                if step.skipped:
                    continue
                writer.gradient(i, trace.gradient(i), starts, scale_shift(step.scale))
                raw = trace.raw_gradient(i)
                if raw is not None:
                    writer.raw(i, raw)
            for which in ("initial", "final"):
                vector = trace.weights(which)
                if vector is not None:
                    writer.vector(f"weights/{which}", vector, starts)
            for name, vector in trace.source.states().items():
                writer.vector(f"states/{name}", vector, starts)
            writer.buffers(trace.buffers())
        writer.finish(trace)


def scale_shift(scale: float) -> int:
    """Return log2 of a loss scale that is a power of two, else 0."""
    mantissa, exponent = math.frexp(scale)
    return exponent - 1 if mantissa == 0.5 else 0


def check_target(path: Path) -> None:
    """Raise TraceError unless a trace can be written to this path."""
    if path.suffix not in (".h5", ".hdf5"):
        raise TraceError(f"{path}: the name of a trace file must end in .h5")
    if path.is_dir():
        raise TraceError(f"{path}: is a folder; must be a file")
    if path.exists() and not path.is_file():
        raise TraceError(f"{path}: is a device or a FIFO; must be a file")
    if not path.parent.is_dir():
        raise TraceError(f"{path}: its folder {path.parent} does not exist")


def reason(error: BaseException) -> str:
    """Return the text of an error on one line, at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return text[:200]


def _texts(values: Sequence[str]) -> npt.NDArray[Any]:
    """Return strings as an array of text with a fixed length.

    HDF5 checksums do not cover text of variable length.
    """
    import h5py

    encoded = [value.encode() for value in values]
    length = max([1, *map(len, encoded)])
    return np.array(encoded, h5py.string_dtype("utf-8", length))


def _set(attrs: h5py.AttributeManager, key: str, value: str | bool | int | float) -> None:
    """Set an attribute of an HDF5 object; text is stored with a fixed length."""
    if isinstance(value, str):
        text = _texts([value])
        attrs.create(key, text[0], dtype=text.dtype)
    else:
        attrs[key] = value


def _sync_folder(folder: Path) -> None:
    """Make the rename of a file durable, on systems that can open folders (not Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
