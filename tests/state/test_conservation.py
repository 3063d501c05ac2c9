"""Can every conservation law fail? Each law of the table with one quantity off by one."""

import pytest

from ondie.emu.engine.core import conservation
from ondie.emu.engine.core.conservation import (
    LAWS,
    Imbalance,
    Place,
    check_laws,
    names_in,
    settle_laws,
)
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.ftl.invariants import Requested, event_quantities, idle_quantities
from tests.state.small import commands, device

FACTORS = ("page_bytes", "stripe_pages", "controller_ecc", "planes_per_erase",
           "timed_decode", "timed_encode")  # fmt: skip
"""Quantities that multiply others: here 1."""


def needed(place: Place) -> set[str]:
    """The quantities that the laws of a place use."""
    found = set()
    for law in conservation.laws_at(place):
        found |= set(names_in(law.left, law.right))
        if place in (Place.CUT, Place.CUT_SYSTEM):
            found |= set(names_in(law.least, law.most)) | set(law.settles)
    return found


def idle(place: Place) -> dict[str, int]:
    """Quantities with which every law holds: nothing has happened."""
    return {name: int(name in FACTORS) for name in needed(place)}


CASES = [
    pytest.param(law, place, name, id=f"{law.name}-{place.name}-{name}")
    for law in LAWS
    for place in law.places
    for name in sorted(set(names_in(law.left, law.right)) - set(FACTORS))
]


@pytest.mark.parametrize(("law", "place", "name"), CASES)
def test_a_law_fails_if_one_quantity_is_off(law, place, name):
    values = idle(place)
    assert law.excess(place, values, "") == 0
    most = conservation.evaluate(law.most, values) if place is Place.CUT else 0
    values[name] += most + 1
    with pytest.raises(Imbalance) as caught:
        law.excess(place, values, "device 3")
    message = str(caught.value)
    assert message.startswith(f"{law.name}, {place} (device 3): {law.left} = ")
    sides = (conservation.evaluate(side, values) for side in (law.left, law.right))
    assert all(f" {side}" in message for side in sides) and "\n" not in message
    with pytest.raises(Imbalance):  # this law, or one before it
        settle_laws(values) if place is Place.CUT else check_laws(place, values)


@pytest.mark.parametrize("place", Place)
def test_every_place_has_laws_that_hold_for_a_new_drive(place):
    assert conservation.laws_at(place)
    check_laws(place, idle(place))


def test_a_quantity_that_a_place_does_not_supply():
    values = idle(Place.REPLAY)
    del values["submitted_commands"]
    with pytest.raises(NameError, match="submitted_commands"):
        check_laws(Place.REPLAY, values)


def test_the_names_of_laws_are_unique():
    assert len({law.name for law in LAWS}) == len(LAWS)


SETTLING = [law for law in LAWS if law.settles]


@pytest.mark.parametrize("law", SETTLING, ids=[law.name for law in SETTLING])
def test_a_law_allows_the_work_in_progress_and_no_more(law):
    """One unit of every kind of work is in progress. Without the excess, the law holds."""
    progress = {name: 1 for name in names_in(law.least, law.most) if name not in FACTORS}
    values = idle(Place.CUT) | progress
    least, most = (conservation.evaluate(side, values) for side in (law.least, law.most))
    assert 0 <= least <= most > 0
    settled = law.settles[0]
    for excess in range(least, most + 1):
        assert law.excess(Place.CUT, values | {settled: excess}, "") == excess
    for excess in (least - 1, most + 1):
        with pytest.raises(Imbalance, match=f"and {least} to {most} more are in progress"):
            law.excess(Place.CUT, values | {settled: excess}, "")
    values[settled] = most
    for name in law.settles:
        values[name] -= most
    assert law.excess(Place.CUT, values | dict.fromkeys(progress, 0), "") == 0


def test_a_cut_in_the_middle_of_a_transfer():
    """A drive that has sent 3 of 5 bytes of gradients: 2 are lost, in its counters and stations."""
    values = idle(Place.CUT)
    values |= {"planned_link_down_bytes": 3, "started_link_down_bytes": 2}
    values |= {"down_bytes": 5, "station_link_down": 5, "station_dram": 4}
    lost = settle_laws(values)
    assert {name: amount for name, amount in lost.items() if amount} == {
        "down_bytes": 2, "station_link_down": 2, "station_dram": 1,
    }  # fmt: skip
    assert values["down_bytes"] == values["station_link_down"] == values["station_dram"] == 3
    assert not any(settle_laws(values | {"started_link_down_bytes": 0}).values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"down_bytes": 4}, "= 4, but planned_link_down_bytes = 3 and 2 to 2 more are in progress"),
        ({"station_link_down": 6}, "station_link_down = 6, but"),
        ({"station_dram": 2}, "station_dram = 2, but"),
        ({"station_dram": 6}, "station_dram = 6, but"),
    ],
)
def test_a_cut_that_loses_more_or_less_than_is_in_progress(change, words):
    values = idle(Place.CUT)
    values |= {"planned_link_down_bytes": 3, "started_link_down_bytes": 2}
    values |= {"down_bytes": 5, "station_link_down": 5, "station_dram": 5} | change
    with pytest.raises(Imbalance, match=words):
        settle_laws(values)


def test_a_drive_supplies_what_its_laws_use():
    """And nothing that no law uses, counters aside."""
    d = device()
    d.submit(commands([(1, 0, 8)]))
    d.run()
    events, _ = event_quantities(d.arrays, d.geometry)
    assert set(events) == needed(Place.EVENT)
    quiet = idle_quantities(d.arrays, d.geometry, Requested(1, 0, 8, 0, 8 * d.geometry.page_bytes))
    assert set(quiet) - set(COUNTERS) == needed(Place.IDLE) - set(COUNTERS)
