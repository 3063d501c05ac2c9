"""Physical Region Pages: conversion of PRP1 and PRP2 to contiguous ranges of host memory.

Owns the traversal of PRP entries and lists, and the error statuses of the traversal. Does not own
host memory, which the transport provides, or scatter gather lists (sgl.py).
Source: NVM Express Base Specification 2.0, section 4.1.1 and figures "PRP Entry Layout", "PRP List
Layout".

Each read of a PRP list covers at most one memory page. The traversal reads one entry per page of
the transfer, so its work is bounded for any contents of host memory. A list is refused if it
contains a loop: a pointer to a page that was already read as part of the list.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

from ondie.emu.controller.status_code import Code, Refused

PRP1_BYTE, PRP2_BYTE = 24, 32
ENTRY_BYTES = 8


class Memory(Protocol):
    """Interface of host memory, which the transport implements."""

    def read(self, address: int, size: int) -> bytes | None:
        """Return the ``size`` bytes starting at ``address``, or None if any of these bytes is not
        host memory."""

    def holds(self, address: int, size: int) -> bool:
        """Return True if all ``size`` bytes starting at ``address`` are host memory that the
        transport may access."""


class Piece(NamedTuple):
    """Contiguous range of host memory that holds a part of the data of a transfer: ``size`` bytes
    at ``address``."""

    address: int
    size: int


def walk(prp1: int, prp2: int, size: int, page: int, memory: Memory) -> list[Piece]:
    """Return the pieces (ranges of host memory) of a transfer of ``size`` bytes, in order. Adjacent
    pieces are merged.

    ``page``: size of a memory page (CC.MPS), bytes. Raises Refused with PRP Offset Invalid if the
    alignment of a PRP entry is invalid, with Data Transfer Error if a piece or a list is outside
    host memory, and with Invalid Field if a list contains a loop.
    """
    if size == 0:
        return []
    if prp1 % 4:
        raise Refused(Code.PRP_OFFSET_INVALID, PRP1_BYTE)
    first = min(size, page - prp1 % page)
    _check(prp1, first, memory, PRP1_BYTE)
    found = [Piece(prp1, first)]
    left = size - first
    if left == 0:
        return found
    if left <= page:
        if prp2 % page:
            raise Refused(Code.PRP_OFFSET_INVALID, PRP2_BYTE)
        _append(found, prp2, left)
    else:
        if prp2 % ENTRY_BYTES:
            raise Refused(Code.PRP_OFFSET_INVALID, PRP2_BYTE)
        _walk_lists(found, prp2, left, page, memory)
    for piece in found:
        _check(*piece, memory, PRP2_BYTE)
    return found


def _walk_lists(found: list[Piece], address: int, left: int, page: int, memory: Memory) -> None:
    """Append to ``found`` the pieces of the last ``left`` bytes of the transfer, which the PRP list
    at ``address`` describes. Raises Refused if the list is invalid or outside host memory."""
    seen: set[int] = set()
    while left:
        if address // page in seen:
            raise Refused(Code.INVALID_FIELD, PRP2_BYTE)
        seen.add(address // page)
        needed = -(-left // page)
        room = (page - address % page) // ENTRY_BYTES
        count = min(needed, room)
        data = memory.read(address, count * ENTRY_BYTES)
        if data is None:
            raise Refused(Code.DATA_TRANSFER_ERROR, PRP2_BYTE)
        entries = list(struct.unpack(f"<{count}Q", data))
        if needed > room:  # the last entry of the page is the address of the next list
            address = entries.pop()
            if address % page:
                raise Refused(Code.PRP_OFFSET_INVALID, PRP2_BYTE)
        left = _append_pages(found, entries, left, page)


def _append_pages(found: list[Piece], entries: list[int], left: int, page: int) -> int:
    """Append the pages at the addresses ``entries`` to ``found``; return the number of bytes of the
    transfer after these pages. ``left``: number of bytes from the first of these pages to the end
    of the transfer. If the transfer ends inside the last page, only the first part of this page is
    appended. Raises Refused if an address is not page-aligned."""
    begin = end = -1
    for entry in entries:
        if entry != end:
            if entry % page:
                raise Refused(Code.PRP_OFFSET_INVALID, PRP2_BYTE)
            if end > begin:
                _append(found, begin, end - begin)
            begin = entry
        end = entry + page
    over = page * len(entries) - left
    end -= max(over, 0)
    if end > begin:
        _append(found, begin, end - begin)
    return max(-over, 0)


def _append(found: list[Piece], address: int, size: int) -> None:
    """Append the ``size`` bytes at ``address`` to ``found`` as a piece, or extend the last piece if
    these bytes directly follow it."""
    last = found[-1]
    if last.address + last.size == address:
        found[-1] = Piece(last.address, last.size + size)
    else:
        found.append(Piece(address, size))


def _check(address: int, size: int, memory: Memory, byte: int) -> None:
    """Raise Refused if any of the ``size`` bytes at ``address`` is outside host memory. ``byte``:
    byte offset of the PRP entry in the submission queue entry.

    Callers check each merged piece as a whole, because separate checks of all pages would make
    large transfers slow.
    """
    if not memory.holds(address, size):
        raise Refused(Code.DATA_TRANSFER_ERROR, byte)
