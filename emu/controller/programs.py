"""Programs of the device: those that it has, and those that hosts load.

Owns the descriptor of a program, which states the cost of an execution, and whether a program is
active. Does not own the commands (computation.py) or the time of an execution
(states/device_program.py).
Source: NVMe Computational Programs Command Set (load, activate, execute; programs that the device
defines); the descriptor is this project's.

A program that a host loads is a cost, not code: instructions and bytes for each element of its
input. It occupies the cores, DRAM and flash channels, and leaves all bytes as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.controller.structure import Field, Structure

UPDATE = 0
"""Program that the device has: it updates weights and states."""
MOST_PROGRAMS = 1 << 8
DESCRIPTOR_BYTES = 64
MOST_ELEMENT = 1 << 20
MOST_FACTOR = 1 << 32

DESCRIPTOR = Structure(
    "Program descriptor",
    DESCRIPTOR_BYTES,
    "this project",
    (
        Field(0, 4, "TYPE", "Type of the program; 1: cost", 1),
        Field(4, 4, "ELEM", "Bytes of an element of the input"),
        Field(8, 4, "INSN", "Instructions for each element: numerator"),
        Field(12, 4, "INSD", "Instructions for each element: denominator"),
        Field(16, 8, "INSF", "Instructions for each execution"),
        Field(24, 4, "RDB", "Bytes read from DRAM for each element"),
        Field(28, 4, "WRB", "Bytes written to DRAM for each element"),
    ),
)
COST = 1


class Program(NamedTuple):
    """Cost of an execution of a program."""

    element_bytes: int
    instructions: Fraction
    """Instructions per element."""
    fixed_instructions: int
    """Instructions per execution, independent of the elements."""
    read_bytes: int
    """Bytes read from DRAM per element."""
    written_bytes: int
    """Bytes written to DRAM per element."""


def parse(data: bytes) -> Program:
    """Return the program of a descriptor, bytes[DESCRIPTOR_BYTES]. Raises Refused for a value that
    is out of range, at its byte."""
    found = {name: int(value) for name, value in DESCRIPTOR.unpack(data).items()}
    limits = {
        "TYPE": (COST, COST), "ELEM": (1, MOST_ELEMENT), "INSD": (1, MOST_FACTOR),
        "INSF": (0, 1 << 48), "RDB": (0, MOST_ELEMENT), "WRB": (0, MOST_ELEMENT),
    }  # fmt: skip
    for each in DESCRIPTOR.fields:
        low, high = limits.get(each.name, (0, MOST_FACTOR))
        if not low <= found[each.name] <= high:
            raise Refused(Code.INVALID_FIELD)
    if any(data[32:]):
        raise Refused(Code.INVALID_FIELD)
    return Program(
        found["ELEM"], Fraction(found["INSN"], found["INSD"]), found["INSF"], found["RDB"],
        found["WRB"],
    )  # fmt: skip


@dataclass
class Programs:
    """Programs by index. UPDATE is always there and active; others are lost with the power."""

    loaded: dict[int, Program] = field(default_factory=dict)
    active: set[int] = field(default_factory=set)
    running: dict[int, int] = field(default_factory=dict)
    """Number of executions of each program that have not ended."""

    def load(self, index: int, data: bytes, where: int) -> None:
        """Load a program at an ``index`` that is free. ``where``: byte of the entry with the index.
        Raises Refused."""
        if not UPDATE < index < MOST_PROGRAMS or index in self.loaded:
            raise Refused(Code.INVALID_FIELD, where)
        self.loaded[index] = parse(data)

    def unload(self, index: int, where: int) -> None:
        """Remove a program. Raises Refused for one that is not loaded, or that is running."""
        self._check(index, where)
        del self.loaded[index]
        self.active.discard(index)

    def activate(self, index: int, active: bool, where: int) -> None:
        """Allow or forbid the execution of a program. Raises Refused as :meth:`unload` does."""
        self._check(index, where)
        if active:
            self.active.add(index)
        else:
            self.active.discard(index)

    def _check(self, index: int, where: int) -> None:
        if index not in self.loaded:
            raise Refused(Code.INVALID_FIELD, where)
        if self.running.get(index):
            raise Refused(Code.COMMAND_INTERRUPTED, where)

    def executable(self, index: int, where: int) -> Program:
        """Return a loaded program. Raises Refused: Invalid Field if there is none, Command
        Sequence Error if it is not active."""
        if index not in self.loaded:
            raise Refused(Code.INVALID_FIELD, where)
        if index not in self.active:
            raise Refused(Code.SEQUENCE_ERROR, where)
        return self.loaded[index]
