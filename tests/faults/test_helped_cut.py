"""A power cut at any event of a step on the dies for whose pages the controller works: parity over
dies, commit records, its ECC. What comes up ends where an uninterrupted run does, with parities
that stand in for any stripe, and a step that can be undone begins again from the one before.
"""

from functools import cache

import numpy as np
import pytest

from ondie.emu.analysis.compare import Run
from ondie.emu.engine.core.conservation import Imbalance
from ondie.emu.engine.core.counters import ECC_DECODED_PAGES, FETCHED_PAGES, STORED_PAGES
from ondie.emu.ftl.reservoir_recovery import Unrecoverable
from ondie.emu.nand import torn_pages as torn
from ondie.emu.paths.base import Options
from tests.faults.test_on_die_cut import STEPS, configured, finish, survive, trace, vectors
from tests.faults.test_parity import held, lose, stripes

pytestmark = pytest.mark.usefixtures("few_transactions")

MORE = {"flash__blocks_per_plane": "48", "ecc__codeword": "512 B"}
HELPED = {
    "two dies": {"pe__rain": "2"},
    "three dies": {"pe__rain": "3"},
    "controller's ECC": {"pe__protection": "controller_ecc"},
    "resume": {"pe__atomicity": "resume"},
    "undo": {"pe__atomicity": "undo"},
    "three dies, undo": {"pe__rain": "3", "pe__atomicity": "undo"},
    "two dies, resume, controller's ECC": {
        "pe__rain": "2", "pe__atomicity": "resume", "pe__protection": "controller_ecc",
    },
    "three dies, undo, the die's ECC": {
        "pe__rain": "3", "pe__atomicity": "undo", "pe__protection": "on_die_ecc",
        "pe__ecc_codeword": "512 B", "pe__cipher": "die",
    },
}  # fmt: skip
CASES = {0: "lockstep", 1: "free", 2: "double buffered", 5: "two drives", 8: "momentum"}
DIES = 4


def start(case, helped, seed=0, **more):
    cfg = configured(case, **MORE, **HELPED[helped], **more)
    return Run("on_die", cfg, trace(case), Options(seed=seed), payload=True)


@cache
def plain(case, helped, **more):
    """(vectors at the end, events of each step) without a cut."""
    run = start(case, helped, **more)
    events = [0]
    for i in range(STEPS):
        assert run.step(i)
        events.append(int(run.system.arrays.reg["events"][0]))
    found = vectors(run)
    assert (found["w"] == run.arithmetic.reference(STEPS).view(np.uint32)).all()
    return found, np.diff(events)


def check(run, case, helped):
    """All vectors as without a cut; every stripe from its parity; every record of the last step."""
    for name, x in plain(case, helped)[0].items():
        assert (vectors(run)[name] == x).all(), name
    payload = run.path.payload
    if run.cfg.pe.rain:
        for device, sp in stripes(run):
            pages, records = held(payload, device, sp)
            again, beside = payload.rebuilt(device, sp)
            assert (again == pages).all() and (beside == records).all(), (device, sp)
    for device, guarded in enumerate(run.path.guarded):
        for sp in guarded.beside(0):
            ppn = payload.pages(device, sp)[0]
            assert payload.stores[device].spare(ppn).step == STEPS
    assert not any(beside.chains for beside in payload.beside) and not payload.again
    assert run.account()[1].steps == STEPS  # balanced, or it raises


def cut_at_random(case, helped, seed, **more):
    """A run of which a step is cut at any event, up to three times, some while the drive comes
    up."""
    rng = np.random.default_rng((20261121, seed))
    _, events = plain(case, helped, **more)
    i = int(rng.integers(STEPS))
    cuts = [("step", int(rng.integers(1, events[i] + 1)))]
    for _ in range(int(rng.integers(3))):
        if rng.random() < 0.4:
            cuts.append(("recovery", int(rng.integers(1, 400))))
        else:
            cuts.append(("step", int(rng.integers(1, events[i] + 1))))
    run = start(case, helped, seed, **more)
    for k in range(i):
        run.step(k)
    survive(run, i, cuts)
    finish(run, i)
    check(run, case, helped)
    return run


@pytest.mark.one_in(5)
@pytest.mark.parametrize("helped", HELPED)
def test_random_cuts(helped, counts):
    torn_programs = kept = undone = 0
    for seed in range(counts(6, 12)):
        run = cut_at_random(list(CASES)[seed % len(CASES)], helped, seed)
        run.part()
        for found in run.recoveries:
            torn_programs += found.cut.torn_programs
            kept += found.kept
            undone += found.undone
    assert torn_programs > 0
    assert (undone > 0) == ("undo" in helped) and (kept > 0 or "undo" in helped)


@pytest.mark.one_in(5, start=2)
@pytest.mark.parametrize("helped", HELPED)
def test_random_cuts_while_planes_change_roles(helped, counts):
    """With every erase, in a reservoir that is gone through more than once; the bits are those of
    planes that stay what they are."""
    room = "0.375" if "dies" in helped else "0.25"
    turned = torn_programs = 0
    for seed in range(counts(1, 10)):
        case = list(CASES)[seed % len(CASES)]
        run = cut_at_random(
            case, helped, 1000 + seed, ftl__reservoir_rotate="1", ftl__reservoir_fraction=room
        )
        turned += run.system.arrays.block["turned"].any()
        run.part()
        torn_programs += sum(found.cut.torn_programs for found in run.recoveries)
    assert turned > 0 and counts(1, torn_programs) > 0


@pytest.mark.one_in(5)
@pytest.mark.parametrize("outcome", torn.OUTCOMES)
@pytest.mark.parametrize("helped", ["two dies", "three dies, undo"])
def test_parities_and_records_are_torn_too(helped, outcome, monkeypatch):
    """Cuts while the last programs of a step are under way: parities, then records."""
    monkeypatch.setattr(torn, "OUTCOMES", (outcome,))
    _, events = plain(0, helped)
    torn_ones = 0
    for back in (330, 345, 360, 375, 390):  # of the 330 or so last events weights go up
        run = start(0, helped, seed=back)
        run.step(0)
        if run.step(1, cut_after=int(events[1]) - back):
            continue
        torn_ones += run.cut.torn_programs
        found = run.recover()
        assert found.undone == ("undo" in helped and not any(found.made))
        run.resume()
        finish(run, 1)
        check(run, 0, helped)
    assert torn_ones > 0


def test_a_step_that_is_undone_begins_again():
    """Nothing of it is kept, all gradients go down again, and the weights are those of the step
    before: read from the pages that are mapped."""
    for share in (0.15, 0.3, 0.5):
        run = start(0, "undo")
        run.step(0)
        before = {name: run.path.payload.stored(name) for name in ("w", "m", "v")}
        _, events = plain(0, "undo")
        assert not run.step(1, cut_after=int(share * events[1]))
        found = run.recover()
        assert found.undone and found.kept == 0 and not found.made[0]
        for name, vector in before.items():
            assert (run.path.payload.stored(name) == vector).all()
        run.resume()
        finish(run, 1)
        check(run, 0, "undo")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("helped", [x for x in HELPED if "undo" in x])
def test_undoing_takes_no_room(helped, counts):
    """Room for two versions of everything and two blocks: any number of cuts, late ones too."""
    run = start(0, helped, ftl__reservoir_fraction="0.375" if "dies" in helped else "0.25")
    run.step(0)
    _, events = plain(0, helped)
    rng = np.random.default_rng(20261122)
    shares = rng.uniform(0.05, 0.6, counts(6, 20))
    assert not run.step(1, cut_after=int(0.6 * events[1]))
    for share in shares:
        found = run.recover()
        assert found.undone and not any(found.made)
        assert not run.resume(cut_after=int(share * events[1]))
    assert run.recover().undone
    assert run.resume()
    finish(run, 1)
    check(run, 0, helped)


def test_records_say_that_a_step_is_done(counts):
    """A cut when a record is there: nothing is sent again, what records are missing are made."""
    _, events = plain(0, "undo")
    seen = set()
    for back in range(1, 420, counts(40, 20)):
        run = start(0, "undo", seed=back)
        run.step(0)
        if run.step(1, cut_after=int(events[1]) - back):
            continue
        found = run.recover()
        if not found.made[0]:
            assert found.undone
            continue
        stripes_ = run.path.stripes[0].count
        assert not found.undone and found.kept == stripes_ and found.resent_bytes == 0
        seen.add(len(found.made[0]))
        run.resume()
        finish(run, 1)
        check(run, 0, "undo")
    assert max(seen) == DIES


def test_records_that_contradict_the_host():
    run = start(0, "resume")
    run.step(0)
    run.step(1)
    assert not run.step(2, cut_after=40)
    run.path.payload.step += 1
    with pytest.raises(
        Unrecoverable, match="the commit records state that step 2 is complete, but step 4 was"
    ):
        run.recover()


def test_what_can_no_longer_be_undone_goes_on():
    """One old version of the step before is gone, as after cuts that took its room: the step goes
    on from its cursors instead."""
    run = start(0, "undo")
    run.step(0)
    _, events = plain(0, "undo")
    old = run.path.payload.pages(0, 0)
    assert not run.step(1, cut_after=int(0.5 * events[1]))
    payload = run.path.payload
    assert payload.pages(0, 0) != old
    for page in old:
        payload.stores[0].torn(page)["lpn"] = -1
    found = run.recover()
    assert not found.undone and found.kept > 0
    run.resume()
    finish(run, 1)
    check(run, 0, "undo")


def test_stripes_that_were_programmed_are_read_for_their_parity():
    """Those of a parity that was not made before the cut, once each, and no others."""
    run = start(0, "three dies")
    run.step(0)
    _, events = plain(0, "three dies")
    assert not run.step(1, cut_after=int(0.5 * events[1]))
    found = run.recover()
    guarded = run.path.guarded[0]
    missing = [j for j, sp in enumerate(guarded.parity.tolist()) if sp not in found.made[0]]
    cursors = found.cursors[0]
    again = [sp for j in missing for sp in guarded.under(j) if sp // DIES < cursors[sp % DIES]]
    assert missing and again
    reads = int(run.system.arrays.count[0, FETCHED_PAGES])
    before = run.system.totals(run.clock).counters["reservoir_read_pages"]
    run.resume()
    after = run.system.totals(run.clock).counters["reservoir_read_pages"]
    weights = run.path.stripes[0].count
    assert after - before == 3 * len(again) + weights
    fetched = int(run.system.arrays.count[0, FETCHED_PAGES]) - reads
    assert fetched == 3 * (run.path.stripes[0].count - found.kept)
    finish(run, 1)
    check(run, 0, "three dies")


def test_a_lost_die_after_a_power_cut():
    run = start(0, "three dies")
    run.step(0)
    _, events = plain(0, "three dies")
    assert not run.step(1, cut_after=int(0.5 * events[1]))
    run.recover()
    run.resume()
    wanted = {name: run.path.payload.stored(name) for name in run.path.vectors}
    lose(run, 0, 2)
    saved = run.checkpoint((0, 2)).vectors
    assert all((saved[name] == x).all() for name, x in wanted.items())


@pytest.mark.parametrize(
    ("helped", "counter"),
    [
        ("two dies", FETCHED_PAGES), ("two dies", STORED_PAGES),
        ("controller's ECC", ECC_DECODED_PAGES),
    ],
)  # fmt: skip
def test_books_that_are_off_at_the_cut(helped, counter):
    run = start(0, helped)
    run.step(0)
    run.system.arrays.count[0, counter] -= 1
    with pytest.raises(Imbalance, match=r"at the power cut \(device 0\)"):
        run.step(1, cut_after=90)
