"""Computation commands: vendor-specific I/O commands of the namespace of optimizer states.

Owns the table of computation commands, their checks, the execution of the commands that take no
simulated time, and the task records of the other commands. Does not own device memory
(device_memory.py), programs (programs.py) or the execution of tasks in the drive
(serve/computation.py).
Source: the commands follow the NVMe Computational Programs and Subsystem Local Memory Command Sets
but do not use their identifiers: all opcodes are vendor-specific (NVM Express Base Specification
2.0, figure "Opcodes for I/O Commands": 80h to FFh, bits 1:0 are the direction of the data). The
meanings of B0h, C0h, D0h, E1h, F2h and F5h are those of FEMU 10.1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ondie.emu.controller.admin import TO_CONTROLLER, TO_HOST
from ondie.emu.controller.device_memory import (
    GRANULE,
    MOST_RANGES,
    RANGE_BYTES,
    DeviceMemory,
    Range,
)
from ondie.emu.controller.namespaces import Namespace
from ondie.emu.controller.opcodes import Compute
from ondie.emu.controller.programs import DESCRIPTOR_BYTES, UPDATE, Program, Programs
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.controller.structure import Field, Structure
from ondie.emu.controller.uncorrectable import Uncorrectable
from ondie.emu.nvme.wire import Sqe

CDW10_BYTE, CDW11_BYTE, CDW12_BYTE, CDW14_BYTE = 40, 44, 48, 56
RSID_BYTE = 42
MOST_PARAMETERS = 4096
"""Maximum size of the parameters that the host passes to a program execution, bytes."""
REPORT_BYTES = 4096
VALUE_BYTES = 4
"""Size of an FP32 value, bytes."""


class Selected(IntEnum):
    """Operations of the Activate Program command (field SEL)."""

    DEACTIVATE = 0
    ACTIVATE = 1
    UNLOAD = 2


class Done(NamedTuple):
    """Task of a computation command that :func:`decode` has already executed. ``dw0``: dword 0 of
    the command's completion."""

    dw0: int = 0


class Transfer(NamedTuple):
    """Task of a computation command: transfer bytes between host memory and device memory."""

    range: Range
    to_host: bool


class Copy(NamedTuple):
    """Task of a computation command: copy bytes from a namespace to device memory."""

    first: int
    """Byte address of the source on the drive."""
    range: Range


class Update(NamedTuple):
    """Task of a computation command: update the weights and optimizer states on the drive."""

    gradient: Range
    hyper: tuple[float, ...]
    """Values of all hyperparameters, in the order in which the optimizer lists them, or an empty
    tuple to use the values of the last update."""
    number: int
    """Number of the update (optimizer step), starting at 1; 0 to resume an incomplete update or, if
    there is none, to start the next update."""
    stop: int
    """Index of the first parameter that is not updated, or 0 to update all parameters."""


class Execution(NamedTuple):
    """Task of a computation command: execute a program that a host has loaded."""

    number: int
    program: Program
    ranges: tuple[Range, ...]
    """Ranges of device memory that the host passes to the program. The elements that the program
    processes are in the first range."""
    elements: int


class Report(NamedTuple):
    """Task of a computation command: report the progress and the counters of updates and program
    executions on the drive."""


Task = Done | Transfer | Copy | Update | Execution | Report


@dataclass
class Device:
    """Drive state that computation commands use and change: device memory, loaded programs, and
    properties of the optimizer states."""

    namespace: Namespace
    memory: DeviceMemory
    params: int
    """Number of parameters of the model whose optimizer states the drive holds."""
    granule: int
    """Granularity of partial updates: an update may stop at multiples of this number of
    parameters."""
    hyper: int
    """Number of hyperparameters of the optimizer."""
    processor: bool
    """True if the drive has a processor that can run programs loaded by a host."""
    programs: Programs = field(default_factory=Programs)


def transfer_of(sqe: Sqe, most: int) -> tuple[int, int]:
    """Return (direction, bytes) of the data transfer of a computation command, or (0, 0) if the
    command transfers no data or has a size that ``decode`` refuses. ``most``: maximum transfer
    size, bytes."""
    match sqe.opcode:
        case Compute.WRITE_MEMORY | Compute.READ_MEMORY:
            size = sqe.cdw11
            fits = 0 < size <= most and size % GRANULE == 0
            direction = TO_HOST if sqe.opcode == Compute.READ_MEMORY else TO_CONTROLLER
            return (direction, size) if fits else (0, 0)
        case Compute.CREATE_SET:
            count = sqe.cdw10
            return (TO_CONTROLLER, count * RANGE_BYTES) if 0 < count <= MOST_RANGES else (0, 0)
        case Compute.LOAD_PROGRAM:
            return TO_CONTROLLER, DESCRIPTOR_BYTES
        case Compute.EXECUTE:
            size = sqe.cdw11
            return (TO_CONTROLLER, size) if 0 < size <= MOST_PARAMETERS else (0, 0)
        case Compute.REPORT:
            return TO_HOST, REPORT_BYTES
    return 0, 0


def decode(
    sqe: Sqe, data: bytes, device: Device, most: int, source: Namespace | None,
    marked: Uncorrectable,
) -> Task:  # fmt: skip
    """Decode a computation command and return its task.

    A command that takes no simulated time is executed by this function; its task is Done.
    ``data``: data that the host sends. ``most``: maximum transfer size, bytes. ``source``,
    ``marked``: see :func:`copied_bytes`. Raises Refused if the command is invalid.
    """
    direction, size = transfer_of(sqe, most)
    if len(data) != (size if direction == TO_CONTROLLER else 0):
        raise Refused(Code.DATA_TRANSFER_ERROR)
    memory = device.memory
    match sqe.opcode:
        case Compute.ALLOCATE:
            return Done(memory.allocate(sqe.cdw10 | sqe.cdw11 << 32, CDW10_BYTE))
        case Compute.FREE:
            memory.free(sqe.cdw10, CDW10_BYTE)
        case Compute.CREATE_SET:
            if not size:
                raise Refused(Code.INVALID_FIELD, CDW10_BYTE)
            return Done(memory.create_set(data))
        case Compute.DELETE_SET:
            memory.delete_set(sqe.cdw10, CDW10_BYTE)
        case Compute.LOAD_PROGRAM:
            if not device.processor:
                raise Refused(Code.INVALID_OPCODE)
            device.programs.load(sqe.cdw10, data, CDW10_BYTE)
        case Compute.ACTIVATE:
            _activate(sqe, device.programs)
        case Compute.WRITE_MEMORY | Compute.READ_MEMORY:
            return _transfer(sqe, memory, size)
        case Compute.COPY:
            return _copy(sqe, memory, *copied_bytes(sqe, source, marked))
        case Compute.EXECUTE:
            if sqe.cdw11 and not size:
                raise Refused(Code.INVALID_FIELD, CDW11_BYTE)
            return _execute(sqe, data, device)
        case Compute.REPORT:
            return Report()
        case _:
            raise Refused(Code.INVALID_OPCODE)
    return Done()


def _activate(sqe: Sqe, programs: Programs) -> None:
    """Activate, deactivate or unload a program. Raises Refused if SEL is invalid, or if the program
    is not loaded or is running."""
    if sqe.cdw11 not in list(Selected):
        raise Refused(Code.INVALID_FIELD, CDW11_BYTE)
    if sqe.cdw11 == Selected.UNLOAD:
        programs.unload(sqe.cdw10, CDW10_BYTE)
    else:
        programs.activate(sqe.cdw10, sqe.cdw11 == Selected.ACTIVATE, CDW10_BYTE)


def _transfer(sqe: Sqe, memory: DeviceMemory, size: int) -> Transfer:
    """Return the task that transfers CDW11 bytes at offset CDW12-13 of the device memory with
    handle CDW10. ``size``: CDW11, or 0 if CDW11 is invalid. Raises Refused if the range is invalid,
    or if the command writes to memory that a running program uses."""
    if not size:
        raise Refused(Code.INVALID_FIELD, CDW11_BYTE)
    offset = sqe.cdw12 | sqe.cdw13 << 32
    found = memory.range(sqe.cdw10, offset, size, (CDW10_BYTE, CDW12_BYTE, CDW11_BYTE))
    to_host = sqe.opcode == Compute.READ_MEMORY
    if not to_host and found.memory.programs:
        raise Refused(Code.COMMAND_INTERRUPTED, CDW10_BYTE)
    return Transfer(found, to_host)


def copied_bytes(sqe: Sqe, source: Namespace | None, marked: Uncorrectable) -> tuple[int, int]:
    """Return the bytes of the drive that COPY reads, as (first byte, number of bytes).

    COPY reads CDW11 logical blocks of namespace ``source``, starting at LBA CDW14-15. ``source`` is
    None if the namespace does not exist. ``marked``: byte ranges that a host has marked with Write
    Uncorrectable. Raises Refused if the namespace does not exist, if the range exceeds the
    namespace, or if a byte of the range is marked.
    """
    if source is None:
        raise Refused(Code.INVALID_NAMESPACE)
    slba, blocks = sqe.cdw14 | sqe.cdw15 << 32, sqe.cdw11
    if slba + blocks > source.blocks:
        raise Refused(Code.LBA_OUT_OF_RANGE, CDW14_BYTE)
    first, size = source.first + slba * source.block_bytes, blocks * source.block_bytes
    if marked.touches(first, size):
        raise Refused(Code.UNRECOVERED_READ_ERROR, CDW14_BYTE)
    return first, size


def _copy(sqe: Sqe, memory: DeviceMemory, first: int, size: int) -> Copy:
    """Return the task that copies ``size`` bytes, starting at byte ``first`` of the drive, to
    offset CDW12-13 of the device memory with handle CDW10. Raises Refused if the destination is
    invalid, or if a running program uses the memory."""
    offset = sqe.cdw12 | sqe.cdw13 << 32
    found = memory.range(sqe.cdw10, offset, size, (CDW10_BYTE, CDW12_BYTE, CDW11_BYTE))
    if found.memory.programs:
        raise Refused(Code.COMMAND_INTERRUPTED, CDW10_BYTE)
    return Copy(first, found)


def _execute(sqe: Sqe, data: bytes, device: Device) -> Update | Execution:
    """Return the execution of the program with the index in CDW10 15:00 on the memory range set
    with the identifier in CDW10 31:16. The index UPDATE selects an update of weights and states.
    ``data``: parameters of the execution. Raises Refused if the program, the set or the parameters
    are invalid."""
    index, number = sqe.cdw10 & 0xFFFF, sqe.cdw10 >> 16
    first, second = sqe.cdw12 | sqe.cdw13 << 32, sqe.cdw14 | sqe.cdw15 << 32
    if index != UPDATE:
        program = device.programs.executable(index, CDW10_BYTE)
        ranges = device.memory.set(number, RSID_BYTE)
        if data:
            raise Refused(Code.INVALID_FIELD, CDW11_BYTE)
        elements, rest = divmod(ranges[0].size, program.element_bytes)
        if rest:
            raise Refused(Code.INVALID_FIELD, RSID_BYTE)
        return Execution(index, program, ranges, elements)
    (gradient, *others) = device.memory.set(number, RSID_BYTE)
    if others or gradient.size != device.params * VALUE_BYTES:
        raise Refused(Code.INVALID_FIELD, RSID_BYTE)
    if data and len(data) != device.hyper * 8:
        raise Refused(Code.INVALID_FIELD, CDW11_BYTE)
    if second > device.params or (second % device.granule and second != device.params):
        raise Refused(Code.INVALID_FIELD, CDW14_BYTE)
    hyper = struct.unpack(f"<{len(data) // 8}d", data)
    return Update(gradient, hyper, first, second)


class ReportFacts(NamedTuple):
    """Values of the fields of the report that the task Report returns to the host (structure
    REPORT)."""

    params: int
    granule: int
    stripes: int
    stripes_done: int
    step: int
    complete: bool
    updating: bool
    recovered: bool
    vectors: int
    vector_bytes: int
    capacity: int
    allocated: int
    now_ps: int
    updates: int
    executions: int
    instructions: int
    written_bytes: int
    read_bytes: int
    copied_bytes: int
    last_ps: int


def _fact(name: str) -> object:
    return lambda facts: int(getattr(facts, name))


REPORT = Structure(
    "Progress and counts of computation",
    REPORT_BYTES,
    "this project",
    tuple(
        Field(at, size, name, title, _fact(fact))  # type: ignore[arg-type]
        for at, size, name, title, fact in (
            (0, 8, "STEP", "Number of the last update that has begun, or 0 if none has", "step"),
            (8, 8, "DONE", "Stripes with results of the last update on flash", "stripes_done"),
            (16, 8, "STRIPES", "Number of stripes of all parameters", "stripes"),
            (24, 1, "COMPLETE", "1: the last update is complete", "complete"),
            (25, 1, "RUNNING", "1: an update is running", "updating"),
            (26, 1, "RECOVERED", "1: the states were recovered after a loss of power", "recovered"),
            (32, 8, "PARAMS", "Number of parameters", "params"),
            (40, 8, "GRANULE", "Granularity of partial updates, parameters", "granule"),
            (48, 8, "VECTORS", "Number of vectors: weights and states", "vectors"),
            (56, 8, "VSIZE", "Bytes from one vector to the next", "vector_bytes"),
            (64, 8, "MEMORY", "Bytes of device memory", "capacity"),
            (72, 8, "USED", "Bytes of device memory that are allocated", "allocated"),
            (80, 8, "TIME", "Simulated time since the power came on, ps", "now_ps"),
            (88, 8, "UPDATES", "Update commands that have succeeded", "updates"),
            (96, 8, "EXECS", "Executions of loaded programs that have succeeded", "executions"),
            (104, 8, "INSTR", "Instructions of these program executions", "instructions"),
            (112, 8, "WRITTEN", "Bytes written to device memory", "written_bytes"),
            (120, 8, "READ", "Bytes read from device memory", "read_bytes"),
            (128, 8, "COPIED", "Bytes copied from a namespace to device memory", "copied_bytes"),
            (136, 8, "LAST", "Simulated time of the last execution, ps", "last_ps"),
        )
    ),
)
