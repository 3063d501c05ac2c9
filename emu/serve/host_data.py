"""Data of commands in host memory: gathering and scattering of the pieces that PRPs and SGLs
describe.

Owns the choice between PRP and SGL, and the copies. Does not own the traversal of PRPs and SGLs
(controller/prp.py, controller/sgl.py) or host memory (guest_memory.py).
Source: NVM Express Base Specification 2.0, section 4.1 and figure "Common Command Format" (PSDT).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ondie.emu.controller import prp, sgl
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.nvme.wire import Sqe
from ondie.emu.serve.guest_memory import GuestMemory

PSDT = 0b11 << 6
"""Mask of the field PRP or SGL for Data Transfer (PSDT) in the byte Flags."""
POINTER_BYTE = 24
Pieces = Sequence[prp.Piece | sgl.Piece]


def pieces_of(sqe: Sqe, size: int, to_controller: bool, page: int, memory: GuestMemory) -> Pieces:
    """Return the pieces of host memory for the ``size`` data bytes of a command. ``to_controller``:
    True if the data is sent to the controller. ``page``: size of a memory page (CC.MPS), bytes.
    Raises Refused if a PRP or SGL is invalid, or if a piece is not accessible host memory."""
    if size == 0:
        return ()
    pieces: Pieces
    if sqe.flags & PSDT:
        pieces = sgl.walk(sqe.pack()[POINTER_BYTE : POINTER_BYTE + 16], size, memory)
    else:
        pieces = prp.walk(sqe.prp1, sqe.prp2, size, page, memory)
    if not to_controller and not all(memory.accepts(*each[:2]) for each in pieces):
        raise Refused(Code.DATA_TRANSFER_ERROR, POINTER_BYTE)
    return pieces


def gather(pieces: Pieces, memory: GuestMemory) -> bytes:
    """Return the contents of all pieces in order. Raises Refused if a piece is not readable host
    memory."""
    found = []
    for each in pieces:
        data = memory.read(each.address, each.size)
        if data is None:
            raise Refused(Code.DATA_TRANSFER_ERROR, POINTER_BYTE)
        found.append(data)
    return b"".join(found)


def scatter(pieces: Pieces, data: bytes | np.ndarray, memory: GuestMemory) -> bool:
    """Write ``data``, bytes or uint8[n], to the pieces in order, and return True. ``data`` may be
    shorter than the pieces. Return False if a piece is no longer writable host memory."""
    at = 0
    for each in pieces:
        if at >= len(data):
            break
        if not memory.write(each.address, data[at : at + each.size]):
            return False
        at += each.size
    return True
