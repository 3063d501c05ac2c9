"""Data of commands in host memory: the pieces that PRPs and SGLs name, gathered and scattered.

Owns the choice between PRP and SGL, and the copies. Does not own the walks (controller/prp.py,
controller/sgl.py) or host memory (guest_memory.py).
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
"""PRP or SGL for Data Transfer."""
POINTER_BYTE = 24
Pieces = Sequence[prp.Piece | sgl.Piece]


def pieces_of(sqe: Sqe, size: int, to_controller: bool, page: int, memory: GuestMemory) -> Pieces:
    """Return the pieces of a command's data of ``size`` bytes. ``page``: CC.MPS. Raises Refused."""
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
    """Return the bytes of pieces. Raises Refused."""
    found = []
    for each in pieces:
        data = memory.read(each.address, each.size)
        if data is None:
            raise Refused(Code.DATA_TRANSFER_ERROR, POINTER_BYTE)
        found.append(data)
    return b"".join(found)


def scatter(pieces: Pieces, data: bytes | np.ndarray, memory: GuestMemory) -> bool:
    """Write ``data``, bytes or uint8[n], to the first bytes of pieces; return False if some memory
    has gone."""
    at = 0
    for each in pieces:
        if at >= len(data):
            break
        if not memory.write(each.address, data[at : at + each.size]):
            return False
        at += each.size
    return True
