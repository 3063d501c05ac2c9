"""Programs for computation: the built-in update program, and programs that hosts load.

Owns the format of the program descriptor, which describes the cost of an execution, and the
activation of programs. Does not own the commands (computation.py) or the time of an execution
(states/device_program.py).
Source: NVMe Computational Programs Command Set (load, activate, execute, programs that the device
defines). The descriptor is specific to this project.

A program that a host loads is a cost model, not code. It consists of the numbers of instructions
and of DRAM bytes for each element of the input. Its execution occupies the cores, DRAM and flash
channels, and does not change any data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.controller.structure import Field, Structure

UPDATE = 0
"""Index of the built-in program, which updates weights and optimizer states."""
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
    """Program that a host has loaded, described by the cost of an execution."""

    element_bytes: int
    instructions: Fraction
    """Number of processor instructions per input element."""
    fixed_instructions: int
    """Number of processor instructions per execution that do not depend on the number of
    elements."""
    read_bytes: int
    """Number of bytes read from DRAM per input element."""
    written_bytes: int
    """Number of bytes written to DRAM per input element."""


def parse(data: bytes) -> Program:
    """Return the program that a descriptor, bytes[DESCRIPTOR_BYTES], describes. Raises Refused if a
    value is out of range or a reserved byte is not 0."""
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
    """Loaded programs by index. The built-in program UPDATE is always active and is not included.
    Loaded programs are lost at a power cut."""

    loaded: dict[int, Program] = field(default_factory=dict)
    active: set[int] = field(default_factory=set)
    running: dict[int, int] = field(default_factory=dict)
    """Number of unfinished executions of each loaded program, by index of the program."""

    def load(self, index: int, data: bytes, where: int) -> None:
        """Load the program with descriptor ``data`` at ``index``. ``where``: byte offset of the
        index in the submission queue entry. Raises Refused if the index is invalid or in use, or if
        the descriptor is invalid."""
        if not UPDATE < index < MOST_PROGRAMS or index in self.loaded:
            raise Refused(Code.INVALID_FIELD, where)
        self.loaded[index] = parse(data)

    def unload(self, index: int, where: int) -> None:
        """Unload the program at ``index``. ``where``: byte offset of the index in the submission
        queue entry. Raises Refused if the program is not loaded or is running."""
        self._check(index, where)
        del self.loaded[index]
        self.active.discard(index)

    def activate(self, index: int, active: bool, where: int) -> None:
        """Activate the program at ``index`` or, if ``active`` is False, deactivate it. Only active
        programs can be executed. ``where``: byte offset of the index in the submission queue entry.
        Raises Refused if the program is not loaded or is running."""
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
        """Return the program at ``index``. ``where``: byte offset of the index in the submission
        queue entry. Raises Refused with Invalid Field if no program is loaded at ``index``, and
        with Command Sequence Error if the program is not active."""
        if index not in self.loaded:
            raise Refused(Code.INVALID_FIELD, where)
        if index not in self.active:
            raise Refused(Code.SEQUENCE_ERROR, where)
        return self.loaded[index]
