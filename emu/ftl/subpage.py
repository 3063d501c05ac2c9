"""Sub-page mapping: mapping units (slots) that are parts of a flash page.

Owns the number of slots that are allocated together and their position in a page. Does not own the
mapping table (page_map.py), reads that share an array operation (subpage_sense.py), or the
buffering of writes until their page is complete (word_line_buffer.py).
Source: sectors of 4 KiB below the larger pages of current flash, mapped individually, as in drives
whose mapping table takes one thousandth of the flash capacity; partial pages of OpenSSD and
SimpleSSD.
"""

from __future__ import annotations

from ondie.kernels.jit import cold


@cold
def slots_together(st, at, count):
    """Return the number of slots, at most ``count``, that are allocated together at slot ``at`` of
    an open block: whole pages of one super-page, or a part of one page. A program therefore never
    combines a partial page with another page.
    """
    cfg = st.cfg[0]
    inside = at % cfg.slots
    if inside > 0 or count < cfg.slots:
        return min(count, cfg.slots - inside)
    if cfg.multi_plane == 0:
        return cfg.slots
    return min(count // cfg.slots, cfg.unit_planes - at // cfg.slots % cfg.unit_planes) * cfg.slots
