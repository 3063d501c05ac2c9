"""Location of a super-page of the reservoir, and its physical pages.

Owns the record of a location and the numbers of its pages. Does not own the map from super-pages to
locations (ftl/reservoir.py) or the contents of pages (paths/on_die/registers.py).
Source: OptimStore (HPCA 2023); the numbering of nand/geometry.py.
"""

from __future__ import annotations

from typing import NamedTuple

from ondie.emu.nand.geometry import Geometry


class At(NamedTuple):
    """Location of a super-page of the reservoir: the die of the device (``die``), the super-page's
    position in the die's reservoir (``place``), and the number of planes by which its vectors are
    rotated at this position (``turned``)."""

    die: int
    place: int
    turned: int


def physical_page(geometry: Geometry, at: At, slot: int) -> int:
    """Return the first physical page (mapping unit) of the flash page that stores role ``slot`` of
    the super-page with location ``at``. A role is the combination of a vector of the optimizer,
    such as the weights, and a group of parameters."""
    plane = (slot + at.turned) % geometry.planes
    first = (geometry.blocks * geometry.pages + at.place) * geometry.planes
    return at.die * geometry.die_pages + (first + plane) * geometry.slots
