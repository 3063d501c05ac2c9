"""Pieces of a request: parts with contiguous addresses, into which MQSim divides some requests.

Owns the division of a request into pieces. Does not own the transactions of a piece
(command_split.py, mqsim_cache.py) or the addresses of a flow (replay/mqsim/address_partition.py).
Source: MQSim's host interface, which divides a request at the page boundaries of the drive. If a
part begins after the last sector of the flow, its sector number on the drive is taken modulo n - 1,
where n is the number of sectors of the flow. The part moves to the sector with the resulting
number, counted from the flow's first sector, and the request continues from there.

Two quirks divide requests into pieces. With quirk pages_of_flows, a flow that begins inside a page
of the drive numbers its pages from there (``zone.skew``). Each page of the flow then covers the end
of one page of the drive and the start of the next one. If a request begins in the first of these
two drive pages, its sectors up to the end of that page form a piece. This piece has the number of
the second drive page, and an offset behind the sectors of that page (see MASK_SECTORS). With quirk
wrapped_requests, a request may pass the end of the flow (``zone.end_byte``).
"""

from __future__ import annotations

from ondie.emu.engine.core.events import REQUEST
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.kernels.jit import cold, inline

MASK_SECTORS = 63
"""Number of bits of the mask of a page's sectors with quirk pages_of_flows. If a flow begins inside
a page of the drive and numbers its pages from there, each of its pages covers the end of one page
of the drive and the start of the next (at most 32 sectors each). In MQSim's mask, bit 0 is the
first sector of the flow's page. Here, the mask is rotated: bit 0 is the first sector of the drive's
second page, and the sectors of the drive's first page have the highest bits."""


@inline
def has_pieces(st, tid):
    """Return True if request ``tid`` may consist of several pieces (parts with contiguous
    addresses)."""
    zone = st.zone[st.txn[tid].stream]
    return st.txn[tid].kind == REQUEST and (zone.skew > 0 or zone.end_byte > 0)


@cold
def take_piece(st, tid):
    """Reduce request ``tid`` to its next piece (part with contiguous addresses), unless the request
    consists of only one piece.

    Return True if ``tid`` was reduced; call :func:`keep_rest` afterwards to continue with the
    remaining bytes. With quirk pages_of_flows, a piece may have the number of the next page and an
    offset behind its sectors (see the module docstring). The offset of the piece is then at least
    one page.
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
    """Advance request ``tid`` to the bytes that follow the piece (part with contiguous addresses)
    from :func:`take_piece`."""
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
    """Continue request ``tid`` with its next piece (part with contiguous addresses) after all pages
    of the current piece are handled.

    Return False if no bytes of the request are left.
    """
    if st.command[tid].bytes_left == 0:
        return False
    keep_rest(st, tid)
    take_piece(st, tid)
    return True
