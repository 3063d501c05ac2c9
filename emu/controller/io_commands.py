"""I/O commands of the NVM Command Set: conversion of a command to commands of the drive, and of the
drive commands' statuses to an NVMe status.

Owns the checks, the table of I/O commands, the split of a command into stages of drive commands,
and the combination of the statuses of the drive commands. Does not own the drive commands
(nvme/command.py), their statuses (nvme/status.py) or the data transfer (prp.py, sgl.py, the
transport).
Source: NVM Command Set Specification 1.0, sections 3.2.1 (Compare), 3.2.3 (Dataset Management),
3.2.4 (Read), 3.2.5 (Verify), 3.2.6 (Write), 3.2.7 (Write Uncorrectable), 3.2.8 (Write Zeroes); NVM
Express Base Specification 2.0, section 7.1 (Flush).

A plan has a *data area*: ``area`` bytes that the transport allocates. The data that the host sends
or receives starts at offset 0 of the area. The field ``data`` of the plan's drive commands is an
offset in the area; the transport adds the address of the area and sets ``queue``, ``tag`` and
``arrival``. A stage begins when the previous stage has completed without an error.

1. ``transfer_of`` returns the direction of the data transfer and the number of bytes.
2. ``decode`` returns an :class:`IoPlan`, or raises Refused. The transport copies the data from the
   host into the area before the first stage. For Dataset Management, the transport passes the data
   to ``decode`` instead.
3. ``finish`` returns the status. If the status is success, the transport then copies data from the
   area to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ondie.emu.controller import computation
from ondie.emu.controller.admin import FLAGS_BYTE, FUSED, TO_CONTROLLER, TO_HOST, Controller
from ondie.emu.controller.identify_controller import MOST_RANGES
from ondie.emu.controller.namespaces import BROADCAST, Namespace
from ondie.emu.controller.opcodes import CHANGES_CONTENT, COMPUTE_EFFECTS, NVM_EFFECTS, Nvm
from ondie.emu.controller.status_code import Code, Refused, status_field
from ondie.emu.nvme.command import FLUSH, READ, TRIM, WRITE, commands_of
from ondie.emu.nvme.wire import Sqe

OPCODE_BYTE, NSID_BYTE, SLBA_BYTE, NLB_BYTE, PRINFO_BYTE = 0, 4, 40, 48, 51
FUA = 1 << 30
PROTECTION_CHECKS = 0b1111 << 26
"""Mask of field PRINFO in command dword 12. The field must be 0, because no LBA format has
protection information."""
DEALLOCATE = 1 << 2
"""Attribute Deallocate (AD) of Dataset Management."""
RANGE_BYTES = 16
READS = (Nvm.READ, Nvm.COMPARE, Nvm.VERIFY)
WITH_DATA = {Nvm.READ: TO_HOST, Nvm.WRITE: TO_CONTROLLER, Nvm.COMPARE: TO_CONTROLLER}
"""Direction of the data transfer of each command that transfers the contents of its logical
blocks."""


class IoPlan(NamedTuple):
    """Plan of an I/O command: the drive commands that together execute the I/O command."""

    opcode: int
    namespace: Namespace | None
    """Namespace of the command, or None for a Flush of all namespaces."""
    first: int
    """Byte address of the command's first logical block on the drive."""
    size: int
    """Total size of the command's logical blocks, bytes."""
    stages: tuple[np.ndarray, ...]
    """Drive commands of each stage, COMMAND[n]; empty if no drive command is necessary."""
    area: int = 0
    """Size of the data area, bytes. Before the first of ``stages``, the transport must zero the
    bytes of the area that do not hold data from the host."""
    ranges: tuple[tuple[int, int], ...] = ()
    """Byte ranges of the drive that Dataset Management deallocates, as (first byte, number of
    bytes)."""


def transfer_of(sqe: Sqe, controller: Controller) -> tuple[int, int]:
    """Return (direction, bytes) of the data transfer of an I/O command.

    Return (0, 0) if the command transfers no data, or if ``decode`` refuses it because of its
    namespace or size.
    """
    if sqe.opcode == Nvm.DATASET_MANAGEMENT:
        return TO_CONTROLLER, ((sqe.cdw10 & 0xFF) + 1) * RANGE_BYTES
    namespace = controller.namespaces.by_nsid.get(sqe.nsid)
    if sqe.opcode in COMPUTE_EFFECTS and namespace is not None and namespace.states:
        return computation.transfer_of(sqe, controller.capabilities.transfer_bytes)
    if sqe.opcode not in WITH_DATA or namespace is None or not namespace.attached:
        return 0, 0
    size = ((sqe.cdw12 & 0xFFFF) + 1) * namespace.block_bytes
    if size > controller.capabilities.transfer_bytes:
        return 0, 0
    return WITH_DATA[Nvm(sqe.opcode)], size


def decode(sqe: Sqe, controller: Controller, data: bytes = b"") -> IoPlan:
    """Return the plan of an I/O command. ``data``: list of ranges that the host sends with Dataset
    Management. Raises Refused if the command is invalid, if its namespace is write-protected, or if
    the state of sanitize operations does not allow the command."""
    if sqe.opcode not in NVM_EFFECTS:
        raise Refused(Code.INVALID_OPCODE, OPCODE_BYTE)
    if sqe.flags & FUSED:
        raise Refused(Code.INVALID_FIELD, FLAGS_BYTE)
    controller.check_sanitize(allowed=False)
    opcode = Nvm(sqe.opcode)
    if opcode == Nvm.FLUSH and sqe.nsid == BROADCAST:
        return _flush(None)
    namespace = controller.namespaces.active(sqe.nsid)
    if opcode == Nvm.FLUSH:
        return _flush(namespace)
    if namespace.write_protected and opcode in CHANGES_CONTENT:
        raise Refused(Code.NAMESPACE_WRITE_PROTECTED, NSID_BYTE)
    if opcode == Nvm.DATASET_MANAGEMENT:
        return _dataset_management(sqe, namespace, data)
    return _blocks(opcode, sqe, namespace, controller)


class NamespaceRead(NamedTuple):
    """Task of a Read, Compare or Verify command: read from the namespace of optimizer states, whose
    bytes are not part of the address space of the drive."""

    first: int
    """Offset from the start of the namespace to the first byte to read, bytes."""
    size: int


def namespace_read(
    sqe: Sqe, namespace: Namespace, controller: Controller, given: int
) -> NamespaceRead:
    """Return the range of ``namespace`` that a Read, Compare or Verify command reads. ``given``:
    number of data bytes that the host has sent. Raises Refused if a field of the command or the
    number of data bytes is invalid."""
    count = (sqe.cdw12 & 0xFFFF) + 1
    size, slba = count * namespace.block_bytes, sqe.cdw10 | sqe.cdw11 << 32
    if sqe.flags & FUSED:
        raise Refused(Code.INVALID_FIELD, FLAGS_BYTE)
    if size > controller.capabilities.transfer_bytes:
        raise Refused(Code.INVALID_FIELD, NLB_BYTE)
    if sqe.cdw12 & PROTECTION_CHECKS:
        raise Refused(Code.INVALID_FIELD, PRINFO_BYTE)
    if slba + count > namespace.blocks:
        raise Refused(Code.LBA_OUT_OF_RANGE, SLBA_BYTE)
    if given != (size if sqe.opcode == Nvm.COMPARE else 0):
        raise Refused(Code.DATA_TRANSFER_ERROR)
    return NamespaceRead(slba * namespace.block_bytes, size)


FLUSH_STAGE = commands_of([(FLUSH, 0, 0, -1, 0)])


def _flush(namespace: Namespace | None) -> IoPlan:
    return IoPlan(Nvm.FLUSH, namespace, 0, 0, (FLUSH_STAGE.copy(),))


def _blocks(opcode: Nvm, sqe: Sqe, namespace: Namespace, controller: Controller) -> IoPlan:
    """Return the plan of a command that accesses the logical blocks SLBA to SLBA + NLB. Raises
    Refused if a field is invalid, if the range exceeds the namespace, or if the command reads a
    block that is marked uncorrectable."""
    slba, count = sqe.cdw10 | sqe.cdw11 << 32, (sqe.cdw12 & 0xFFFF) + 1
    size = count * namespace.block_bytes
    limited = opcode in WITH_DATA or opcode == Nvm.VERIFY
    if limited and size > controller.capabilities.transfer_bytes:
        raise Refused(Code.INVALID_FIELD, NLB_BYTE)
    if opcode != Nvm.WRITE_UNCORRECTABLE and sqe.cdw12 & PROTECTION_CHECKS:
        raise Refused(Code.INVALID_FIELD, PRINFO_BYTE)
    if slba + count > namespace.blocks:
        raise Refused(Code.LBA_OUT_OF_RANGE, SLBA_BYTE)
    first = namespace.first + slba * namespace.block_bytes
    if opcode in READS and controller.shared.uncorrectable.touches(first, size):
        raise Refused(Code.UNRECOVERED_READ_ERROR, SLBA_BYTE)
    through = bool(sqe.cdw12 & FUA) or not controller.features.cache_enabled
    plan = IoPlan(opcode, namespace, first, size, ())
    match opcode:
        case Nvm.READ:
            read = commands_of([(READ, first, size, 0, 0)])
            cached = sqe.cdw12 & FUA and controller.features.cache_enabled
            stages = (FLUSH_STAGE.copy(), read) if cached else (read,)
            return plan._replace(stages=stages, area=size)
        case Nvm.WRITE:
            write = commands_of([(WRITE, first, size, 0, int(through))])
            return plan._replace(stages=(write,), area=size)
        case Nvm.COMPARE:  # the host's data, then those of the drive
            read = commands_of([(READ, first, size, size, 0)])
            return plan._replace(stages=(read,), area=2 * size)
        case Nvm.VERIFY:
            read = commands_of([(READ, first, size, 0, 0)])
            return plan._replace(stages=(read,), area=size)
        case Nvm.WRITE_ZEROES:
            return _write_zeroes(plan, controller.capabilities.mapping_unit_bytes, through)
    return plan  # Write Uncorrectable: marked by finish


def _write_zeroes(plan: IoPlan, unit: int, through: bool) -> IoPlan:
    """Return the plan of Write Zeroes: a TRIM of the whole mapping units in the range, which then
    read as zeros, and writes of zeros to the partial mapping units at both ends of the range.
    ``unit``: size of a mapping unit, bytes. ``through``: True if the effect must be durable at
    completion; a FLUSH then follows the TRIM."""
    begin, end = plan.first, plan.first + plan.size
    low, high = -(-begin // unit) * unit, end // unit * unit
    if low > high:  # inside of one unit
        low = high = end
    rows = [(TRIM, low, high - low, -1, 0)] if low < high else []
    trims, area = bool(rows), 0
    for first, size in ((begin, low - begin), (high, end - high)):
        if size:
            rows.append((WRITE, first, size, 0, int(through)))
            area = max(area, size)
    stages: tuple[np.ndarray, ...] = (commands_of(rows),)
    if trims and through:
        stages += (FLUSH_STAGE.copy(),)
    return plan._replace(stages=stages, area=area)


def _dataset_management(sqe: Sqe, namespace: Namespace, data: bytes) -> IoPlan:
    """Return the plan of Dataset Management: a TRIM of each range if the attribute Deallocate is
    set, otherwise no drive command. Raises Refused if the size of ``data`` is invalid, or if a
    range exceeds the namespace."""
    count = (sqe.cdw10 & 0xFF) + 1
    if len(data) != count * RANGE_BYTES or count > MOST_RANGES:
        raise Refused(Code.DATA_TRANSFER_ERROR)
    ranges = []
    for at in range(0, len(data), RANGE_BYTES):
        blocks = int.from_bytes(data[at + 4 : at + 8], "little")
        slba = int.from_bytes(data[at + 8 : at + 16], "little")
        if slba + blocks > namespace.blocks:
            raise Refused(Code.LBA_OUT_OF_RANGE, SLBA_BYTE)
        if blocks and sqe.cdw11 & DEALLOCATE:
            first = namespace.first + slba * namespace.block_bytes
            ranges.append((first, blocks * namespace.block_bytes))
    rows = [(TRIM, first, size, -1, 0) for first, size in ranges]
    stages = (commands_of(rows),) if rows else ()
    return IoPlan(Nvm.DATASET_MANAGEMENT, namespace, 0, 0, stages, ranges=tuple(ranges))


def finish(plan: IoPlan, statuses: Sequence[int], area: np.ndarray, controller: Controller) -> int:
    """Return the status (status code type << 8 | code) of an I/O command whose stages have ended.
    Update the command counters and the ranges that are marked uncorrectable. ``statuses``: statuses
    of all executed drive commands of the plan. ``area``: data area, uint8[plan.area]."""
    status = next((status for status in statuses if status), int(Code.SUCCESS))
    if status == Code.SUCCESS and plan.opcode == Nvm.COMPARE:
        if not np.array_equal(area[: plan.size], area[plan.size : 2 * plan.size]):
            status = int(Code.COMPARE_FAILURE)
    unit = controller.capabilities.mapping_unit_bytes
    if plan.opcode in READS:
        controller.shared.read_commands += 1
    elif plan.opcode == Nvm.WRITE:
        controller.shared.write_commands += 1
        controller.shared.unaligned += bool(plan.first % unit or plan.size % unit)
    if status != Code.SUCCESS:
        return status
    marked = controller.shared.uncorrectable
    if plan.opcode in (Nvm.WRITE, Nvm.WRITE_UNCORRECTABLE):
        controller.shared.sanitize = controller.shared.sanitize._replace(erased=False)
    if plan.opcode == Nvm.WRITE_UNCORRECTABLE:
        marked.mark(plan.first, plan.size)
    elif plan.opcode in (Nvm.WRITE, Nvm.WRITE_ZEROES):
        marked.clear(plan.first, plan.size)
    for first, size in plan.ranges:
        marked.clear(first, size)
    return status


def record(controller: Controller, sqid: int, sqe: Sqe, status: int, where: int = 0xFFFF) -> int:
    """Return the status field of an I/O command's completion. If ``status`` is an error, add an
    entry to the Error Information log. ``sqid``: identifier of the command's submission queue.
    ``where``: Parameter Error Location."""
    if status == Code.SUCCESS:
        return 0
    field = status_field(status)
    lba = sqe.cdw10 | sqe.cdw11 << 32
    controller.errors.add(sqid, sqe.cid, field, where, lba, sqe.nsid)
    return field
