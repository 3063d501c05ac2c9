"""What is concluded from out-of-band data of a die's reservoir, and what torn pages look like."""

import numpy as np
import pytest

from ondie.emu.ftl.reservoir_recovery import (
    ATTEMPT,
    DieScan,
    Unrecoverable,
    assign_super_pages,
    check_newest,
    conclude,
)
from ondie.emu.nand import torn_pages as torn
from ondie.emu.nand.page_store import PageStore, Spare
from ondie.emu.units import InputError


def scanned(*places, pages=4, blocks=4, planes=2):
    """A die of which (place, super-page, step, sequence) were read, or (place,) of what is torn."""
    scan = DieScan(0, blocks, pages)
    for place, *record in places:
        spares = [False] * planes
        if record:
            sp, step, sequence = record
            spares = [Spare(sp, sequence, step, plane) for plane in range(planes)]
        scan.saw(place, spares)
    return scan


def test_the_newest_complete_version_wins():
    scan = scanned((0, 7, 1, 1), (1, 8, 1, 2), (2, 7, 2, 3), (3,), (4,))
    found = conclude(scan, [7, 8], 2)
    assert found.places == {7: 2, 8: 1} and found.cursor == 1 and found.sequence == 3
    # Block 0 is full, what is torn in it included; what block 1 holds does not matter.
    assert (found.next_place, found.pad) == (4, None)


def test_an_open_block_is_padded():
    for torn_places, following in (((), (3, 2)), (((2,),), (4, 3))):
        scan = scanned((0, 7, 1, 1), (1, 8, 1, 2), *torn_places)
        found = conclude(scan, [7, 8], 2)
        assert (found.next_place, found.pad) == following
    scan = scanned((14, 7, 1, 1))
    assert conclude(scan, [7], 1).next_place == 0  # behind the pad at 15: round and round


def test_data_that_do_not_match():
    """Two cuts have torn the same super-page: neither is taken, however whole their records."""
    scan = scanned((0, 7, 1, 1), (1, 8, 1, 2), (2, 7, 2, 3), (3, 7, 2, 4))
    looks = 0
    while not check_newest(scan, lambda v: v.place < 2):
        looks += 1
    found = conclude(scan, [7, 8], 2)
    assert looks == 2 and found.places == {7: 0, 8: 1} and found.cursor == 0
    assert found.sequence == 4  # no number is given twice
    assert (found.next_place, found.pad) == (4, None)


def test_planes_must_agree():
    scan = DieScan(0, 4, 4)
    scan.saw(0, [Spare(7, 1, 1, 0), Spare(7, 1, 1, 1)])
    scan.saw(1, [Spare(7, 2, 2, 0), None])
    scan.saw(2, [Spare(7, 3, 2, 0), Spare(7, 2, 2, 1)])
    scan.saw(3, [Spare(7, 4, 2, 1), Spare(7, 4, 2, 0)])
    assert list(scan.versions) == [0] and scan.torn == 3 and scan.sequence == 4


def test_planes_may_have_changed_roles():
    """Three of four planes in use: where the first slot lies says by how many they have turned, if
    the others follow it and the idle one is whichever is left. Blank planes between slots, slots
    out of order or of two versions are torn."""
    scan = DieScan(0, 4, 4, 3)
    for place, turned in enumerate((0, 1, 2, 3)):
        spares = [None] * 4
        for slot in range(3):
            spares[(turned + slot) % 4] = Spare(7, place + 1, place + 1, slot)
        scan.saw(place, spares)
    assert [v.turned for v in scan.versions.values()] == [0, 1, 2, 3] and scan.torn == 0
    a, b, c = (Spare(8, 9, 5, slot) for slot in range(3))
    for place, spares in enumerate(
        ([a, None, b, c], [a, c, b, None], [None, a, b, Spare(8, 10, 5, 2)], [b, c, None, None],
         [a, b, False, None]), start=4
    ):  # fmt: skip
        scan.saw(place, spares)
    assert len(scan.versions) == 4 and scan.torn == 5 and scan.visible == set(range(9))
    full = DieScan(0, 4, 4, 3)
    full.saw(0, [c, a, b])
    assert full.torn == 1
    found = conclude(scan, [7], 4)
    assert found.places == {7: 3} and found.turned == {0: 3}


def test_what_is_undone_is_erased_again():
    """The die goes on behind what is kept: in the next block, where it had got that far; in the
    open one behind a pad, where it had not."""
    kept = (0, 7, 1, 1), (1, 8, 1, 2)
    found = conclude(scanned(*kept, (2, 7, 2, 3), (3, 8, 2, 4), (4, 9, 2, 5)), [7, 8], 2, undo=True)
    assert found.places == {7: 0, 8: 1} and found.sequence == 5
    assert (found.next_place, found.pad) == (4, None)
    found = conclude(scanned(*kept, (2, 7, 2, 3)), [7, 8], 2, undo=True)
    assert (found.next_place, found.pad) == (4, 3)


def test_attempts_given_up_do_not_count():
    """Torn at place 4 by the first of two attempts at step 2, and not looked at by the second: of
    which super-page 7 alone is there."""
    scan = scanned(
        (0, 7, 1, 1), (1, 8, 1, 2), (2, 7, 2, 3), (3, 8, 2, 4), (5, 7, 2, ATTEMPT + 1)
    )  # fmt: skip
    scan.give_up(2, 1)
    found = conclude(scan, [7, 8], 2)
    assert found.places == {7: 5, 8: 1} and found.cursor == 1
    assert (found.next_place, found.pad) == (7, 6)
    scan.give_up(1, 1)  # of another step than theirs
    assert sorted(scan.versions) == [5]


def test_a_super_page_on_two_dies():
    """Moved from die 0 to die 1 between steps 1 and 2: both versions are of step 1, the later one
    counts, and from then on every newer one; torn, the older one does."""
    old = ((0, 7, 1, 1), (1, 8, 1, 2))
    for new, held in (
        (((0, 9, 1, 3), (1, 7, 1, 5)), [[8], [7, 9]]),
        (((0, 9, 1, 3), (1, 7, 2, 5)), [[8], [7, 9]]),
        (((0, 9, 1, 3), (1,)), [[7, 8], [9]]),
    ):
        scans = [scanned((2, 0, 1, 9), *old), scanned(*new)]
        for sp in range(1, 7):
            scans[0].versions[20 + sp] = scans[0].versions[2].__class__(sp, 1, 0, 20 + sp)
        found = assign_super_pages(scans, 10, 2)
        assert found == [[0, 1, 2, 3, 4, 5, 6, *held[0]], held[1]]


def test_a_super_page_on_no_die():
    with pytest.raises(Unrecoverable, match=r"version of super-page 1 \(2 super-pages have none\)"):
        assign_super_pages([scanned((0, 0, 1, 1)), scanned((0, 3, 1, 1))], 4, 1)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([(0, 7, 1, 1)], "die 0: no complete version of super-page 8"),
        (
            [(0, 7, 1, 1), (1, 8, 2, 2)],
            "super-pages of step 2: 1; they are not the first in the order of updates",
        ),
        ([(0, 7, 2, 1), (1, 8, 0, 2)], "a super-page has step 0; must be step 1 or 2"),
    ],
)
def test_what_cannot_be_recovered(places, message):
    with pytest.raises(Unrecoverable, match=message):
        conclude(scanned(*places), [7, 8], 2)


def test_a_torn_page_takes_no_program():
    """Whatever it looks like, until its block has been erased."""
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, 512).astype(np.uint8)
    spare = Spare(7, 1, 1, 0)
    for outcome in torn.OUTCOMES:
        store = PageStore(512)
        torn.interrupt_program(store, 3, spare, data, rng, outcome)
        looks = {"blank": None, "garbled": False}.get(outcome, spare)
        assert store.spare(3) == looks
        assert store.intact(3) == (outcome == "whole")
        with pytest.raises(InputError, match="programmed twice"):
            store.program(3, spare, data)
        store.erase(0, 8)
        assert store.spare(3) is None
        store.program(3, spare, data)
    for remains in torn.REMAINS:
        store = PageStore(512)
        store.program(0, spare, data)
        torn.interrupt_erase(store, range(8), rng, remains)
        looks = {"blank": None, "garbled": False}.get(remains, spare)
        assert store.spare(0) == looks and store.intact(0) == (remains in ("kept", "blank"))
        for ppn in (0, 5):
            with pytest.raises(InputError, match="programmed twice"):
                store.program(ppn, spare, data)
