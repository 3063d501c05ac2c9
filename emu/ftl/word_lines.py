"""Program units (word lines): the pages of a block that are programmed together.

Owns the arithmetic of program units ("lines": the pages of a word line in one plane or in all
planes of a unit) and the order in which writes fill lines. Does not own the buffering of incomplete
lines (word_line_buffer.py) or the time of programs.
Source: one-shot programming of a word line (ISSCC papers on 3D NAND of three bits per cell);
foggy-fine programming, in two passes between which neighboring word lines are programmed.

A *line* consists of ``line`` page slots. A *stripe* is one line, or one line of each plane if
planes are not programmed together. At the end of a stripe, no line of a write frontier is
incomplete. If pages are programmed one by one, lines and stripes have one slot. A page has several
*slots* if the mapping unit is smaller than a page (for example 4 KiB in a page of 16 KiB; the
mapping table then takes about one thousandth of the flash capacity). Without word lines, each
program of whole pages is complete by itself.
"""

from __future__ import annotations

from ondie.kernels.jit import cold, inline


@inline
def word_line_of(st, ppn):
    """Return the index within the device of the word line (pages programmed together) that contains
    physical page ``ppn``."""
    cfg = st.cfg[0]
    stripe = ppn // cfg.stripe
    if cfg.line == cfg.stripe:
        return stripe
    return stripe * cfg.unit_planes + plane_of(st, ppn)


@inline
def plane_of(st, ppn):
    """Return the plane of a physical page or slot, counted within its unit."""
    cfg = st.cfg[0]
    return ppn % cfg.together // cfg.slots


@inline
def is_first_page(st, ppn):
    """Return True if physical page ``ppn`` is the first page of its line. The pages of a line are
    programmed together."""
    cfg = st.cfg[0]
    if cfg.line == cfg.stripe:
        return ppn % cfg.stripe == 0
    return ppn % cfg.stripe < cfg.together and ppn % cfg.slots == 0


@inline
def first_page_of(st, ppn):
    """Return the first physical page of the line (pages programmed together) that contains page
    ``ppn``."""
    cfg = st.cfg[0]
    first = ppn // cfg.stripe * cfg.stripe
    return first if cfg.line == cfg.stripe else first + plane_of(st, ppn) * cfg.slots


@inline
def is_inside_stripe(st, front):
    """Return True if the next page of write frontier ``front`` is not the first page of a stripe
    (one line, or one line of each plane of the unit if planes are not programmed together)."""
    return front.block >= 0 and front.next % st.cfg[0].stripe != 0


@cold
def unit_in_turn(st, dev, stream):
    """Return the unit that receives the next page of stream ``stream``. Requires that streams fill
    the units round-robin, one stripe per unit.
    """
    cfg = st.cfg[0]
    return dev * cfg.units + st.turn[st.front[stream, dev * cfg.units].turn]


@cold
def next_turn(st, dev, unit, stream, front, count):
    """Advance stream ``stream`` to the next unit if the ``count`` pages just allocated in unit
    ``unit`` (by the write frontier of stream ``front``) complete a stripe, or if no page could be
    allocated (``count`` = 0).
    """
    cfg = st.cfg[0]
    if count > 0 and is_inside_stripe(st, st.front[front, unit]):
        return
    first = st.front[stream, dev * cfg.units]
    first.turn = first.turn + 1 if first.turn + 1 < cfg.units else 0


@cold
def slots_together(st, at, count):
    """Return the number of slots of an open block that are allocated together: either whole pages
    of one super-page, or slots within one page. A program therefore never combines a partial page
    with another page. ``at``: first slot. ``count``: maximum number of slots.
    """
    cfg = st.cfg[0]
    inside = at % cfg.slots
    if inside > 0 or count < cfg.slots:
        return min(count, cfg.slots - inside)
    if cfg.multi_plane == 0:
        return cfg.slots
    return min(count // cfg.slots, cfg.unit_planes - at // cfg.slots % cfg.unit_planes) * cfg.slots
