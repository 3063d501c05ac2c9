"""Nominal capacity: scaled with the flash, so that the numbers of one result are consistent.

Owns the rule: a change of the flash (channels, dies, planes, blocks, pages) without a change of the
capacity scales the capacity in proportion. Does not own the check that the capacity fits
(rules/ftl.py) or its use (analysis/lifetime.py).
Source: this project.

The nominal capacity of a drive is a fraction of its flash. Over-provisioning determines the
exported capacity and does not change the nominal capacity.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

from ondie.emu.config.leaf import Leaf
from ondie.emu.config.rules.rule import GEOMETRY
from ondie.emu.units import KINDS, exact, fmt_bytes

CAPACITY = "system.capacity"
FOLLOWS = "follows"
"""Value of field ``source`` of a capacity that was scaled in proportion to the flash."""


def followed(
    before: Mapping[str, Leaf], after: Mapping[str, Leaf], given: Container[str]
) -> dict[str, Leaf]:
    """Return ``after`` with its nominal capacity scaled in proportion to the flash.

    ``before``, ``after``: leaves of a configuration before and after a change. ``given``: names of
    the leaves that the change states. The capacity is that of ``before`` times the ratio of flash
    sizes, rounded down to whole bytes. The capacity is unchanged if the size of the flash is
    unchanged or ``given`` contains the capacity.
    """
    result = dict(after)
    was, now = flash_bytes(before), flash_bytes(after)
    if CAPACITY in given or was == now:
        return result
    old = before[CAPACITY]
    assert isinstance(old.value, int)
    value = max(old.value * now // was, 1)
    keys = [key for key in GEOMETRY if before[key].value != after[key].value]
    changes = ", ".join(f"{key} = {after[key].text} (was {before[key].text})" for key in keys)
    ref = f"{fmt_bytes(old.value)} x {now / was:.4g}, because of {changes}"
    text = exact(value, KINDS["bytes"])
    result[CAPACITY] = Leaf(CAPACITY, text, value, None, None, FOLLOWS, ref, old.unit)
    return result


def flash_bytes(leaves: Mapping[str, Leaf]) -> int:
    """Return the size of all pages of one drive, in bytes."""
    return math.prod(int(leaves[key].value) for key in GEOMETRY)


def note(leaf: Leaf) -> str | None:
    """Return a note if the capacity was scaled with the flash, or None if it was given."""
    if leaf.source != FOLLOWS:
        return None
    return f"{CAPACITY} = {fmt_bytes(int(leaf.value))} follows the flash: {leaf.ref}"
