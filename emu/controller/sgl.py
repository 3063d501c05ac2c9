"""Scatter gather lists: conversion of an SGL descriptor to the contiguous parts of a transfer.

Owns the traversal of descriptors and segments, and the error statuses of the traversal. Does not
own host memory, capsules or PRPs (prp.py).
Source: NVM Express Base Specification 2.0, section 4.1.2 and figures "SGL Descriptor Type", "SGL
Descriptor Sub Type Values"; NVMe over TCP Transport Specification 1.0 (transport SGL data blocks).

A traversal reads at most MOST_DESCRIPTORS descriptors. A list with a loop therefore fails with
Invalid Number of SGL Descriptors.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

from ondie.emu.controller.prp import Memory
from ondie.emu.controller.status_code import Code, Refused

SGL1_BYTE = 24
DESCRIPTOR_BYTES = 16
_DESCRIPTOR = struct.Struct("<QI3xB")
MOST_DESCRIPTORS = 1 << 13
DATA_BLOCK, SEGMENT, LAST_SEGMENT, TRANSPORT_DATA_BLOCK = 0x0, 0x2, 0x3, 0x5
"""SGL descriptor types."""
ADDRESS, OFFSET, TRANSPORT_SPECIFIC = 0x0, 0x1, 0xA
"""SGL descriptor sub types."""


class Place(Enum):
    """Location of the data that an SGL data block descriptor describes."""

    MEMORY = "host memory"
    CAPSULE = "command capsule"
    """Data of the command capsule. ``Piece.address`` is then the offset from the start of this
    data."""
    TRANSPORT = "data units of the transport"


class Piece(NamedTuple):
    """Contiguous part of the data of a transfer: ``size`` bytes at ``address``. ``place``: location
    to which the address refers, such as host memory."""

    address: int
    size: int
    place: Place


class _Walk:
    """Traversal of the SGL descriptors of one command."""

    def __init__(self, size: int, memory: Memory, capsule: int | None) -> None:
        self.left = size
        self.memory = memory
        self.capsule = capsule
        self.found: list[Piece] = []

    def data(self, address: int, size: int, kind: int, subtype: int) -> None:
        """Append the piece that a data block descriptor describes, up to the end of the transfer.
        ``kind``, ``subtype``: type and sub type of the descriptor. Raises Refused if the type is
        not supported, or if the block is outside host memory or the capsule."""
        size = min(size, self.left)
        if (kind, subtype) == (DATA_BLOCK, ADDRESS):
            if size and not self.memory.holds(address, size):
                raise Refused(Code.DATA_TRANSFER_ERROR, SGL1_BYTE)
            place = Place.MEMORY
        elif (kind, subtype) == (DATA_BLOCK, OFFSET) and self.capsule is not None:
            if address + size > self.capsule:
                raise Refused(Code.SGL_OFFSET_INVALID, SGL1_BYTE)
            place = Place.CAPSULE
        elif (kind, subtype) == (TRANSPORT_DATA_BLOCK, TRANSPORT_SPECIFIC) and (
            self.capsule is not None
        ):
            place = Place.TRANSPORT
        else:
            raise Refused(Code.SGL_TYPE_INVALID, SGL1_BYTE + 15)
        if size:
            self.found.append(Piece(address, size, place))
            self.left -= size

    def segment(self, address: int, size: int) -> list[tuple[int, int, int, int]]:
        """Return the descriptors of the SGL segment of ``size`` bytes at ``address``. Raises
        Refused if the length of the segment is invalid or the segment is outside host memory."""
        if size == 0 or size % DESCRIPTOR_BYTES:
            raise Refused(Code.INVALID_SGL_SEGMENT, SGL1_BYTE + 8)
        if size > MOST_DESCRIPTORS * DESCRIPTOR_BYTES:
            raise Refused(Code.INVALID_SGL_COUNT, SGL1_BYTE + 8)
        data = self.memory.read(address, size)
        if data is None:
            raise Refused(Code.DATA_TRANSFER_ERROR, SGL1_BYTE)
        return [_parts(data[at : at + 16]) for at in range(0, size, DESCRIPTOR_BYTES)]


def _parts(descriptor: bytes) -> tuple[int, int, int, int]:
    """Return (address, length, type, sub type) of an SGL descriptor, bytes[DESCRIPTOR_BYTES]."""
    address, size, kind = _DESCRIPTOR.unpack(descriptor)
    return address, size, kind >> 4, kind & 0xF


def walk(descriptor: bytes, size: int, memory: Memory, capsule: int | None = None) -> list[Piece]:
    """Return the pieces of a transfer of ``size`` bytes, in order.

    ``descriptor``: bytes 24 to 39 of the submission queue entry. ``capsule``: size of the data in
    the command capsule, bytes, or None for a transport without capsules. If the list describes more
    than ``size`` bytes, the excess is not used. Raises Refused with the status that the
    specification defines if a descriptor is invalid, with Data SGL Length Invalid if the list
    describes fewer than ``size`` bytes, and with Data Transfer Error if a range is outside host
    memory.
    """
    steps = _Walk(size, memory, capsule)
    address, length, kind, subtype = _parts(descriptor)
    if kind not in (SEGMENT, LAST_SEGMENT):
        steps.data(address, length, kind, subtype)
    read = 1
    while kind in (SEGMENT, LAST_SEGMENT):
        if subtype != ADDRESS:
            raise Refused(Code.SGL_TYPE_INVALID, SGL1_BYTE + 15)
        last = kind == LAST_SEGMENT
        descriptors = steps.segment(address, length)
        read += len(descriptors)
        if read > MOST_DESCRIPTORS:
            raise Refused(Code.INVALID_SGL_COUNT, SGL1_BYTE)
        for at, (address, length, kind, subtype) in enumerate(descriptors):
            if kind not in (SEGMENT, LAST_SEGMENT):
                steps.data(address, length, kind, subtype)
            elif last or at + 1 < len(descriptors):
                raise Refused(Code.INVALID_SGL_SEGMENT, SGL1_BYTE)
        if not last and kind not in (SEGMENT, LAST_SEGMENT):
            raise Refused(Code.INVALID_SGL_SEGMENT, SGL1_BYTE)
    if steps.left:
        raise Refused(Code.SGL_LENGTH_INVALID, SGL1_BYTE + 8)
    return steps.found
