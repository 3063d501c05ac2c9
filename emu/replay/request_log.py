"""Request log of a replay: one line or row per request.

Owns the columns and both file formats, and the atomic writing of the files. Does not own the
requests (player.py).
Source: this project; times are integer picoseconds of simulated time, sizes and offsets are bytes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from ondie.emu.nvme.request import REQUEST_NAMES
from ondie.emu.units import InputError
from ondie.traces.textfile import Target, check_target

LOG_COLUMNS = {
    "request": "tag",
    "op": "op",
    "offset": "offset",
    "size": "size",
    "arrival_ps": "arrival",
    "start_ps": "start",
    "end_ps": "end",
    "status": "status",
}
"""Fields of REQUEST that the log contains, by column of the log.

start: time at which the request entered the submission queue. status: NVMe status of the request's
completion: 0, or 641 (0x281) for an unrecovered read error.
"""
ENDINGS = (".csv", ".csv.gz", ".csv.xz", ".h5", ".hdf5")
LINES = 1 << 16


def check_log_path(path: Path) -> None:
    """Raise InputError or TraceError if the log cannot be written to ``path``, or if the file name
    does not end in a member of ENDINGS."""
    if not path.name.endswith(ENDINGS):
        raise InputError(f"--log {path}: use a file name that ends in {' or '.join(ENDINGS)}")
    if path.exists() and not path.is_file():
        raise InputError(f"--log {path}: exists and is not a regular file; use another name")
    check_target(path)


def write(requests: np.ndarray, path: Path) -> None:
    """Write requests (REQUEST[n]) to a log file in the given order.

    The ending of the file name selects CSV or HDF5. Raises InputError or TraceError if the file
    cannot be written.
    """
    if path.suffix in (".h5", ".hdf5"):
        _write_hdf5(requests, path)
    else:
        _write_csv(requests, path)


def _write_csv(requests: np.ndarray, path: Path) -> None:
    """Write requests (REQUEST[n]) as CSV; the ending of ``path`` selects the compression."""
    with Target(path) as file:
        file.write(",".join(LOG_COLUMNS) + "\n")
        for at in range(0, len(requests), LINES):
            part = requests[at : at + LINES]
            columns = [part[field].tolist() for field in LOG_COLUMNS.values()]
            columns[1] = [REQUEST_NAMES[op] for op in columns[1]]
            rows = zip(*columns, strict=True)
            file.write("".join(",".join(map(str, row)) + "\n" for row in rows))
        file.finish()


def _write_hdf5(requests: np.ndarray, path: Path) -> None:
    """Write requests (REQUEST[n]) as HDF5, with one compressed data set per column."""
    import h5py  # a replay without this log need not import it

    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with h5py.File(partial, "w") as file:
            for name, field in LOG_COLUMNS.items():
                file.create_dataset(name, data=requests[field], compression="gzip", shuffle=True)
            file["op"].attrs["names"] = list(REQUEST_NAMES)
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error}") from error
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
