"""The one mutable state of a simulation, shared by every compiled function.

Owns the structref and its field names. Does not own what the fields mean: each room defines the
record layout of its own table beside the functions that use it.
Source: Numba's structref: one, built inside a cached njit factory; the same functions
run on a plain attribute object when Numba is disabled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import config as numba_config
from numba.core import types
from numba.experimental import structref

from ondie.kernels.jit import njit

FIELDS = (
    "cfg",  # 1 record: integer configuration (device.py)
    "reg",  # 1 record: now, counters of the pools, error (device.py)
    "leaf",  # int64[leaves]: time of each exclusive resource's next event (events.py)
    "tree",  # int32[2 * leaves]: winners of the tournament over leaf (events.py)
    "fifo",  # records: first-in first-out stations: links, DRAM, ECC, CPUs (events.py)
    "txn",  # records: pool of things in flight (events.py)
    "op",  # records: timing table by flash operation (backend/timing.py)
    "die",  # records: registers and queues of each die (backend/nand.py)
    "bus",  # records: each channel (backend/nand.py)
    "l2p",  # uint32/uint64[devices, lpns]: ppn + 1, 0 = unmapped (backend/mapping.py)
    "p2l",  # uint32/uint64[devices, ppns]: lpn + 1
    "block",  # records[dies, blocks]: super-blocks (backend/mapping.py)
    "free",  # int32[dies, blocks]: ring of free super-blocks (backend/mapping.py)
    "front",  # records[streams, dies]: open super-block of each stream (backend/mapping.py)
    "pool",  # records[dies]: free blocks, collection, reservoir cursor (backend/mapping.py)
    "rmap",  # uint32[devices, super-pages]: reservoir map, physical super-page + 1
    "dev",  # records[devices]: queues and cursors of each device (device.py)
    "count",  # int64[devices, counters] (stats.py)
    "row",  # records: ring of plan rows (system.py)
    "wait",  # int64[2 * rows]: links of the lists of rows that wait for a row (system.py)
    "use",  # int64[phases + 1, leaves]: ps each resource worked for each phase, collection last
    "phase",  # records: first start and last end of each phase (system.py)
    "log",  # records: bytes that moved, in the order of events, for payload (events.py)
    "line",  # records: intervals of exclusive resources, for the timeline (events.py)
)


@structref.register
class StateType(types.StructRef):  # type: ignore[name-defined]
    """Numba type of the state; generic in the types of its arrays."""


class State(structref.StructRefProxy):
    """Proxy of the compiled state. Python reads the arrays it made, never through this."""

    def __new__(cls, *arrays: Any) -> Any:
        return structref.StructRefProxy.__new__(cls, *arrays)


structref.define_proxy(State, StateType, list(FIELDS))


@njit
def _compiled_state(
    cfg, reg, leaf, tree, fifo, txn, op, die, bus, l2p, p2l, block, free, front, pool, rmap, dev,
    count, row, wait, use, phase, log, line,
):  # fmt: skip
    return State(
        cfg, reg, leaf, tree, fifo, txn, op, die, bus, l2p, p2l, block, free, front, pool, rmap,
        dev, count, row, wait, use, phase, log, line,
    )  # fmt: skip


class Arrays:
    """The state's arrays as plain attributes: what Python sees, and what uncompiled code runs
    on."""

    def __init__(self, **arrays: np.ndarray) -> None:
        missing = set(FIELDS) ^ set(arrays)
        if missing:
            raise ValueError(f"state fields differ: {sorted(missing)}")
        for name, array in arrays.items():
            setattr(self, name, array)

    def __getattr__(self, name: str) -> Any:  # for type checkers: set in __init__
        raise AttributeError(name)

    def handle(self) -> Any:
        """The object that compiled functions take (this very object when Numba is disabled)."""
        if numba_config.DISABLE_JIT:
            return self
        return _compiled_state(*(getattr(self, name) for name in FIELDS))


class Element:
    """One record for uncompiled code, whose attributes are the fields and nothing else: NumPy's own
    records prefer what every scalar has, such as ``size`` and ``device``."""

    __slots__ = ("_item",)

    def __init__(self, item: np.void) -> None:
        object.__setattr__(self, "_item", item)

    def __getattr__(self, name: str) -> Any:
        return self._item[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._item[name] = value


class Elements(np.recarray):
    """Array of records for uncompiled code."""

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return Element(item) if isinstance(item, np.void) else item


def as_records(array: np.ndarray) -> np.ndarray:
    """The array as compiled and uncompiled code take it: fields are attributes of its elements."""
    return array.view(Elements) if numba_config.DISABLE_JIT else array


def records(dtype: np.dtype, *shape: int) -> np.recarray:
    """Zeroed array of records whose fields are attributes, compiled or not."""
    return as_records(np.zeros(shape, dtype).view(np.recarray))  # type: ignore[return-value]


def record_type(**fields: str) -> np.dtype:
    """Aligned record of named integer fields, all int64 unless said otherwise."""
    return np.dtype(list(fields.items()), align=True)
