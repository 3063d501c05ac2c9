"""Slots: mapping units that are parts of a page of flash.

Owns how many of them go together, and where in a page they lie. Does not own the map (mapping.py),
reads that share an array operation (sharing.py), or how writes gather until their page is complete.
Source: sectors of 4 KiB under the larger pages of today's flash, mapped one by one, as drives whose
map takes 1 byte per thousand of flash do; OpenSSD's and SimpleSSD's partial pages.
"""

from __future__ import annotations

from ondie.kernels.jit import cold


@cold
def together(st, at, n):
    """How many of ``n`` slots go to the front at slot ``at`` of its block: whole pages of one
    super-page, or a part of one page. So nothing that is programmed holds a part of a page beside
    another page."""
    c = st.cfg[0]
    inside = at % c.slots
    if inside > 0 or n < c.slots:
        return min(n, c.slots - inside)
    if c.multi_plane == 0:
        return c.slots
    return min(n // c.slots, c.unit_planes - at // c.slots % c.unit_planes) * c.slots
