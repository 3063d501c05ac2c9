"""Pieces of a request whose addresses are not contiguous in the flow's pages, as in MQSim.

Owns the division of a request into pieces. Does not own the transactions of a piece
(command_split.py, mqsim_cache.py) or the addresses of a flow (replay/mqsim/address_partition.py).
Source: MQSim's host interface. It cuts a request at the page boundaries of the drive. A part that
begins behind the last sector of the flow moves to its sector number modulo one less than the number
of the flow's sectors, counted from the flow's first sector, and the request continues from there.

Two quirks need pieces. A flow that begins inside a page may number its pages from there
(``zone.skew``, quirk pages_of_flows): the sectors of a request up to the end of its first page then
follow those of the next page. A request may pass the end of the flow (``zone.end_byte``, quirk
wrapped_requests).
"""

from __future__ import annotations

from ondie.emu.engine.core.events import REQUEST
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.kernels.jit import cold, inline

MASK_SECTORS = 63
"""Sectors of a page's bit mask. MQSim's masks of such a flow have a bit for each sector, counted
from the flow's first one, of two pages of at most 32 sectors. Here, they are turned by the sectors
up to the end of the drive's page, so that bit 0 is the first sector of the drive's next page.
"""


@inline
def has_pieces(st, tid):
    """Return True if request ``tid`` may consist of several pieces."""
    zone = st.zone[st.txn[tid].stream]
    return st.txn[tid].kind == REQUEST and (zone.skew > 0 or zone.end_byte > 0)


@cold
def take_piece(st, tid):
    """Reduce request ``tid`` to its next piece, if it does not consist of a single piece.

    Return True if ``tid`` was reduced. Then call :func:`keep_rest` to continue with the remaining
    bytes. The offset of a piece whose sectors follow those of the next page is a page or more.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    command = st.command[tid]
    zone = st.zone[txn.stream]
    size = txn.size
    if zone.skew > 0 and command.offset >= zone.skew and size > 0:
        txn.size = min(size, cfg.page_bytes - command.offset)
        command.offset += MASK_SECTORS * SECTOR_BYTES - cfg.page_bytes
        txn.lpn += 1
        txn.n = 1
    elif zone.end_byte > 0:
        at = (txn.lpn - zone.first_lpn) * cfg.page_bytes + command.offset
        room = -(-(zone.end_byte - zone.first_byte) // cfg.page_bytes) * cfg.page_bytes - at
        if size <= room:
            return False
        txn.size = room
        txn.n = (command.offset + room + cfg.page_bytes - 1) // cfg.page_bytes
    else:
        return False
    command.bytes_left = size - txn.size
    return True


@cold
def keep_rest(st, tid):
    """Set ``tid`` to the bytes of the request after the piece of :func:`take_piece`."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    command = st.command[tid]
    zone = st.zone[txn.stream]
    if command.offset < cfg.page_bytes:
        txn.lpn += txn.n  # a piece ends at the end of a page
    command.offset = 0
    txn.size = command.bytes_left
    command.bytes_left = 0
    at = zone.first_byte + (txn.lpn - zone.first_lpn) * cfg.page_bytes
    if zone.end_byte > 0 and at >= zone.end_byte:
        begin = zone.first_byte + zone.inside
        at = begin + at % (zone.end_byte - begin - SECTOR_BYTES) - zone.first_byte
        txn.lpn = zone.first_lpn + at // cfg.page_bytes
        command.offset = at % cfg.page_bytes
    txn.n = 0
    if txn.size > 0:
        txn.n = (command.offset + txn.size + cfg.page_bytes - 1) // cfg.page_bytes


@cold
def next_piece(st, tid):
    """Continue request ``tid``, all of whose pages are handled, with its next piece.

    Return False if no byte of the request is left.
    """
    if st.command[tid].bytes_left == 0:
        return False
    keep_rest(st, tid)
    take_piece(st, tid)
    return True
