"""Physical Region Pages: the pieces of host memory that PRP1 and PRP2 name.

Owns the walk over PRP entries and lists, and its statuses. Does not own host memory, which the
transport gives, or scatter gather lists (sgl.py).
Source: NVM Express Base Specification 2.0, section 4.1.1 and figures "PRP Entry Layout", "PRP List
Layout".

A list is read one memory page at a time. The walk ends after as many entries as the transfer has
pages, so its work is bounded for any contents of memory; a list that returns to a page of lists is
refused.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

from ondie.emu.controller.status_code import Code, Refused

PRP1_BYTE, PRP2_BYTE = 24, 32
ENTRY_BYTES = 8


class Memory(Protocol):
    """Host memory, as the transport reaches it."""

    def read(self, address: int, size: int) -> bytes | None:
        """Return ``size`` bytes; None if some of them are not memory of the host."""

    def holds(self, address: int, size: int) -> bool:
        """Return True if all bytes are memory of the host that the transport may use."""


class Piece(NamedTuple):
    """Contiguous part of a transfer."""

    address: int
    size: int


def walk(prp1: int, prp2: int, size: int, page: int, memory: Memory) -> list[Piece]:
    """Return the pieces of a transfer of ``size`` bytes, in order; neighbours are joined.

    ``page``: size of a memory page (CC.MPS). Raises Refused: PRP Offset Invalid for an entry that
    is not aligned as its place demands, Data Transfer Error for bytes outside of memory, Invalid
    Field for a list that loops.
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
    """Append the pieces of ``left`` bytes from the list at ``address`` on. Raises Refused."""
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
    """Append the pages of ``entries``, of which the last one ends with the ``left`` bytes of the
    transfer; return how many of these are left. Raises Refused."""
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
    """Append a piece, joined to the last one if it follows it."""
    last = found[-1]
    if last.address + last.size == address:
        found[-1] = Piece(last.address, last.size + size)
    else:
        found.append(Piece(address, size))


def _check(address: int, size: int, memory: Memory, byte: int) -> None:
    """Raise Refused for bytes outside of memory. A piece of several pages is asked for once, since
    a block of the tunnel has 32."""
    if not memory.holds(address, size):
        raise Refused(Code.DATA_TRANSFER_ERROR, byte)
