"""Check bytes of the reservoir's pages: the record of each page says whether it has valid ones,
also after power cuts, and the controller takes pages without them as they are.
"""

import numpy as np
import pytest

from ondie.emu.engine.core.counters import (
    BPP_PAGES,
    LANDED_PAGES,
    LIFTED_PAGES,
    RESERVOIR_READ_PAGES,
)
from ondie.emu.nand.page_store import CODED, DIE_CODED, UNCODED
from ondie.emu.nand.sealed_records import READS_VALID, read_spares
from ondie.emu.serve.control import report
from ondie.emu.serve.served import ServedDrive
from ondie.emu.service import Service
from tests.state import test_levelling as levelling
from tests.state.test_drive_states import UNITS, Both

PROTECTIONS = {
    "none": (CODED, UNCODED),
    "nan_comparator": (CODED, UNCODED),
    "on_die_ecc": (DIE_CODED, DIE_CODED),
    "controller_ecc": (CODED, CODED),
}
"""Marks of pages that the controller programs, and of those that the elements program."""
pytestmark = pytest.mark.usefixtures("few_transactions")


def marks(both):
    """The marks of all pages of the states, in the present places, by super-page."""
    payload, slots = both.states._opened, both.drive.geometry.slots
    found = {}
    for sp in payload.homes[0].super_pages(0, payload.homes[0].count).tolist():
        pages = [ppn + i for ppn in payload.pages(0, sp) for i in range(slots)]
        records = payload.stores[0].page_records(np.array(pages))
        assert (read_spares(records) == READS_VALID).all()  # the mark is sealed
        (found[sp],) = set(records["stream"].tolist())
    return found


def protected(protection, name="plain", **more):
    changes = {"pe__protection": protection, "pe__ecc_codeword": "512 B",
               "ecc__codeword": "512 B", **more}  # fmt: skip
    return Both(name, more=changes)


def ran(both):
    both.begin()
    both.drive.run()
    both.look()


def read(both):
    both.states.start_read()
    both.drive.run()
    assert (both.states.weights == both.wanted["w"]).all()


@pytest.mark.parametrize("units", [{}, UNITS], ids=["pages", "units"])
@pytest.mark.parametrize("protection", PROTECTIONS)
def test_marks_and_counts(protection, units):
    both = protected(protection, **units)
    before, after = PROTECTIONS[protection]
    bypass = after == UNCODED
    assert set(marks(both).values()) == {before}
    read(both)
    count = both.drive.arrays.count[0]
    initial = int(count[RESERVOIR_READ_PAGES])
    assert both.states.uncoded_counts == (0, 0, initial * bypass) and initial > 0
    ran(both)
    assert set(marks(both).values()) == {after}
    read(both)
    found = both.states.uncoded_counts
    assert found.unprotected_pages == count[BPP_PAGES] * bypass
    assert found.unprotected_taken == (count[RESERVOIR_READ_PAGES] - initial) * bypass
    assert found.undecoded_taken == initial * bypass


@pytest.mark.parametrize("protection", ["none", "on_die_ecc"])
def test_marks_survive_power_cuts(protection):
    """Half an update: what its die had finished is marked, and the rest is as the controller has
    programmed it. The recovered states go on with these marks."""
    both = protected(protection)
    before, after = PROTECTIONS[protection]
    both.begin(stop=4 * 128)
    both.drive.run()
    held = marks(both)
    assert sorted(held.values()) == sorted([after] * 4 + [before] * (len(held) - 4))
    both.drive.power_cut(0)
    both.drive.power_on()
    both.states = both.fresh()
    both.states.open(both.drive)
    assert marks(both) == held
    read_before = int(both.drive.arrays.count[0, RESERVOIR_READ_PAGES])
    both.states.start_read()
    both.drive.run()
    taken = int(both.drive.arrays.count[0, RESERVOIR_READ_PAGES]) - read_before
    found = both.states.uncoded_counts
    if after == UNCODED:
        assert found == (0, 4, taken - 4)
    else:
        assert found == (0, 0, 0)
    assert both.go_on()
    both.drive.run()
    assert set(marks(both).values()) == {after}


def test_pages_moved_by_the_controller_are_encoded():
    """Moves to other dies: the controller takes pages without check bytes, and encodes what it
    programs. The update that follows marks the new pages. With a code nothing counts."""
    for protection in ("nan_comparator", "on_die_ecc"):
        made = levelling.run(
            steps=100,
            ftl__reservoir_migrate=1,
            ftl__bad_blocks=0.2,
            pe__protection=protection,
            pe__ecc_codeword="512 B",
        )
        count, found = made.system.arrays.count[0], made.path.payload.uncoded_counts
        assert count[LANDED_PAGES] == count[LIFTED_PAGES] > 0
        if protection == "on_die_ecc":
            assert found == (0, 0, 0)
            continue
        assert found.unprotected_taken == count[RESERVOIR_READ_PAGES] + count[LIFTED_PAGES]
        assert found.unprotected_pages == count[BPP_PAGES] and found.undecoded_taken == 0


def test_parities_cover_marked_pages():
    """A die is taken away and restored; the controller has programmed what is new."""
    both = Both("parity", more={"pe__protection": "none"})
    ran(both)
    assert set(marks(both).values()) == {UNCODED}
    both.states.replace_die(1)
    both.look()
    dies = both.drive.geometry.dies
    assert marks(both) == {sp: CODED if sp % dies == 1 else UNCODED for sp in marks(both)}


def test_the_control_socket_has_the_counts():
    both = protected("none")
    ran(both)
    with Service(both.drive) as service:
        found = report(ServedDrive(both.drive, service))
    assert found["reservoir"] == both.states.uncoded_counts._asdict()
    assert found["reservoir"]["unprotected_pages"] == found["counters"]["bpp_pages"] > 0
