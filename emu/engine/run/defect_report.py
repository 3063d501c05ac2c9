"""Report of a drive's state after a defect of the engine, as a JSON file.

Owns the contents of the report. Does not own the state, the switch of the drive to offline
(command_system.py) or the file (drive.py).
Source: this project.
"""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.core.state import Arrays

LAST_ENTRIES = 256
"""Maximum number of entries of the log of moved bytes in a report."""


def report(
    arrays: Arrays, cfg: Config, logged: int, defect: Exception | None, now: int
) -> dict[str, Any]:
    """Return a report on the state of the engine as a JSON document.

    The document contains ``defect`` (null if there is no defect), the time in ps, the engine's
    registers, the records of device, queue pairs, data cache and units, the counters that are not
    0, the last entries of the log, and the configuration. ``logged``: number of entries in the log.
    """
    names = zip(COUNTERS, arrays.count[0].tolist(), strict=True)
    return {
        "format": 1,
        "now_ps": now,
        "defect": None if defect is None else _of_exception(defect),
        "registers": _records(arrays.reg)[0],
        "device": _records(arrays.dev)[0],
        "queue_pairs": _records(arrays.pair),
        "data_cache": _records(arrays.cache),
        "units": _records(arrays.pool),
        "counters": {name: count for name, count in names if count},
        "log": _records(arrays.log[max(logged - LAST_ENTRIES, 0) : logged]),
        "configuration": cfg.resolved(),
    }


def _of_exception(defect: Exception) -> dict[str, Any]:
    return {
        "type": type(defect).__name__,
        "message": str(defect),
        "traceback": traceback.format_exception(defect),
    }


def _records(table: np.ndarray) -> list[dict[str, Any]]:
    """Return the records of a table as dictionaries."""
    plain = np.asarray(table).view(np.ndarray)
    names = plain.dtype.names or ()
    return [dict(zip(names, each, strict=True)) for each in plain.tolist()]
