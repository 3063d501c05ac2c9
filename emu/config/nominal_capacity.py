"""Nominal capacity: follows the flash, so that the numbers of one result agree.

Owns the rule: who changes the flash (channels, dies, planes, blocks, pages) and does not say what
capacity is offered gets as much more or less of it. Does not own that it must fit (constraints.py)
or what is counted in it (lifetime.py).
Source: own. A drive's nominal capacity is a share of its flash; over-provisioning says what the map
offers, and leaves what the label says as it is.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

from ondie.emu.config.leaf import Leaf
from ondie.emu.config.rules.rule import GEOMETRY
from ondie.emu.units import KINDS, exact, fmt_bytes

CAPACITY = "system.capacity"
FOLLOWS = "follows"
"""Source of a capacity that nobody has given."""


def followed(
    before: Mapping[str, Leaf], after: Mapping[str, Leaf], given: Container[str]
) -> dict[str, Leaf]:
    """``after``, with the capacity of ``before`` scaled as its flash, in whole bytes rounded down,
    unless the flash is as large as it was or the capacity is among what was ``given``."""
    result = dict(after)
    was, now = flash_bytes(before), flash_bytes(after)
    if CAPACITY in given or was == now:
        return result
    old = before[CAPACITY]
    assert isinstance(old.value, int)
    value = max(old.value * now // was, 1)
    keys = [key for key in GEOMETRY if before[key].value != after[key].value]
    changes = ", ".join(f"{key} = {after[key].text} (was {before[key].text})" for key in keys)
    ref = f"{fmt_bytes(old.value)} x {now / was:.4g}, as the flash with {changes}"
    text = exact(value, KINDS["bytes"])
    result[CAPACITY] = Leaf(CAPACITY, text, value, None, None, FOLLOWS, ref, old.unit)
    return result


def flash_bytes(leaves: Mapping[str, Leaf]) -> int:
    """Bytes of all pages of one drive."""
    return math.prod(int(leaves[key].value) for key in GEOMETRY)


def note(leaf: Leaf) -> str | None:
    """What a reader has to know of a capacity that follows; None where it was given."""
    if leaf.source != FOLLOWS:
        return None
    return f"{CAPACITY} = {fmt_bytes(int(leaf.value))} follows: {leaf.ref}"
