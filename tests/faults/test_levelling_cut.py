"""A power cut while planes change roles and super-pages change dies: what comes up from flash alone
ends bit for bit where an uninterrupted run does, and every super-page lies on one die.
"""

from functools import cache

import numpy as np
import pytest

from ondie.emu.analysis.compare import Run
from ondie.emu.engine.core.counters import LANDED_PAGES
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.run import driver
from ondie.emu.nand import torn_pages as torn
from ondie.emu.paths.base import Options
from tests.faults.test_on_die_cut import survive
from tests.state.models import model
from tests.state.test_levelling import BLOCKS, LEAVES, PLANES, worn
from tests.timing.harness import preset

pytestmark = pytest.mark.usefixtures("few_transactions")

STEPS = 3
CASES = (
    {},
    {"pe__dispatch": "free"},
    {"pe__dispatch": "double_buffered", "ftl__bad_blocks": 0.2},
    {"ftl__bad_blocks": 0.2, "flash__dies_per_channel": 3, "flash__channels": 1},
    {"system__devices": 2, "ftl__bad_blocks": 0.2},
    {"pe__protection": "controller_ecc", "ecc__codeword": "512 B", "ftl__bad_blocks": 0.2},
    {"pe__protection": "on_die_ecc", "pe__ecc_codeword": "512 B", "pe__atomicity": "none"},
)
WORN = 2 * PLANES
"""Cycles of the dies' blocks that are worn already: the planes have the roles that they had at the
beginning."""


@cache
def configured(case):
    return preset(LEAVES, ftl__reservoir_rotate=1, ftl__reservoir_migrate=1, **CASES[case])


@cache
def trace():
    """41 stripes."""
    return model("adam", STEPS, (("a", (41 * 128 - 80,), 0), ("b", (60,), 1)))


def start(case, seed=0):
    """A drive of which the dies with most to do have been worn before, the first of them most:
    super-pages leave it in step 0."""
    run = Run("on_die", configured(case), trace(), Options(seed=seed), payload=True)
    dies = run.system.geometry.dies
    good = run.path.good_blocks.sum(axis=1).reshape(-1, dies)
    for dev, homes in enumerate(run.path.homes):
        by_rate = np.argsort(-homes.held() / good[dev], kind="stable")
        for rank, die in enumerate(by_rate[: dies // 2]):
            at = dev * dies + die
            cycles = WORN * (dies // 2 - rank)
            worn(run)[at] += cycles
            run.system.arrays.block["erases"].reshape(-1, 2 * BLOCKS)[at, BLOCKS:] += cycles
    return run


def vectors(run):
    found = {name: run.path.payload.stored(name) for name in run.path.vectors}
    found["at the host"] = run.path.delivered()
    return {name: x.view(np.uint32).copy() for name, x in found.items()}


@cache
def uninterrupted(case):
    """(vectors at the end, events of each step, pages that changed dies in step 0)."""
    run, events, moved = start(case), [0], 0
    for i in range(STEPS):
        assert run.step(i)
        events.append(int(run.system.arrays.reg["events"][0]))
        if i == 0:
            moved = sum(run.system.arrays.count[:, LANDED_PAGES])
    found = vectors(run)
    reference = run.arithmetic.reference(STEPS).view(np.uint32)
    assert (found["w"] == reference).all()
    assert moved > 0 and run.account()[0].counters["turned_pages"] > 0
    return found, np.diff(events), int(moved)


def check_end(run, case):
    """Bits, books, and one home for each stripe: what the map has is what payload has, and as many
    as there are."""
    for name, x in vectors(run).items():
        assert (x == uninterrupted(case)[0][name]).all(), name
    totals = run.account()[0]  # balanced, or it raises
    assert totals.super_pages[0] == sum(s.count for s in run.path.stripes)
    for dev, s in enumerate(run.path.stripes):
        every = run.path.homes[dev].super_pages(0, s.count)
        assert (every == run.path.payload.homes[dev].super_pages(0, s.count)).all()
        mapped = np.flatnonzero(run.system.arrays.rmap[dev])
        assert (mapped == np.sort(every)).all()
    return totals


def test_random_cuts(counts):
    """Any of the configurations, any event of a step, up to three cuts in it, a third of them while
    the drive comes up."""
    torn_programs = kept = 0
    for seed in range(counts(10, 150)):
        rng = np.random.default_rng((20261121, seed))
        case, i = int(rng.integers(len(CASES))), int(rng.integers(STEPS))
        events = uninterrupted(case)[1]
        cuts = [("step", int(rng.integers(1, events[i] + 1)))]
        for _ in range(int(rng.integers(3))):
            if rng.random() < 0.33:
                cuts.append(("recovery", int(rng.integers(1, 200))))
            else:
                cuts.append(("step", int(rng.integers(1, events[i] + 1))))
        run = start(case, seed)
        for k in range(i):
            run.step(k)
        survive(run, i, cuts)
        for k in range(i + 1, STEPS):
            assert run.step(k)
        check_end(run, case)
        run.part()
        torn_programs += sum(found.cut.torn_programs for found in run.recoveries)
        kept += sum(found.kept for found in run.recoveries)
    assert torn_programs > 0 and kept > 0


@cache
def moving(case):
    """(events of step 0 until the last super-page has landed, those after which the array of a die
    programs one that comes from another)."""
    run, found, n, last = start(case), [], 0, 0
    a = run.system.arrays

    def look(_):
        nonlocal n, last
        n += 1
        if any(int(a.txn[t].role) == Role.MOVED for t in a.die.arr[a.die.arr >= 0]):
            found.append(n)
        if sum(a.count[:, LANDED_PAGES]) < uninterrupted(case)[2]:
            last = n + 1

    run.system.on_progress = look
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "EVENTS_PER_CALL", 1)
        run.step(0)
    return last, found


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_cuts_while_super_pages_move(case, counts):
    """After every third event, or fewer, until all have landed: those that have are on their new
    dies, the others on their old ones."""
    last, found = moving(case)
    assert found and last > 5
    seen = set()
    for n in sorted({*range(1, last + 2, counts(max(last // 4, 1), 3)), found[0], found[-1] + 1}):
        run = start(case, seed=n)
        assert not run.step(0, cut_after=n)
        done = int(sum(run.system.arrays.count[:, LANDED_PAGES]))
        lost = run.cut.lost["lifted_pages"]
        run.recover()
        elsewhere = sum(h.moved for h in run.path.homes)
        assert elsewhere >= (done > 0)
        assert run.resume()
        for k in range(1, STEPS):
            assert run.step(k)
        totals = check_end(run, case)
        assert totals.counters["lifted_pages"] == totals.counters["landed_pages"]
        seen.add((done > 0, lost > 0))
    assert len(seen) > 1


@pytest.mark.parametrize("outcome", torn.OUTCOMES)
def test_a_torn_landing(outcome, monkeypatch):
    """Whole, though nobody was told so: the super-page lies on its new die. Else the old version
    counts, which nothing has touched."""
    monkeypatch.setattr(torn, "OUTCOMES", (outcome,))
    run = start(0)
    assert not run.step(0, cut_after=moving(0)[1][0])
    assert run.cut.torn_programs > 0 and run.cut.lost["lifted_pages"] > 0
    before = run.cut.torn_programs
    run.recover()
    moved = sum((h.super_pages(0, h.count) != np.arange(h.count)).sum() for h in run.path.homes)
    assert moved == (before if outcome == "whole" else 0)
    assert run.resume()
    for k in range(1, STEPS):
        assert run.step(k)
    check_end(run, 0)


def test_what_moved_in_vain_costs_energy():
    run = start(0)
    assert not run.step(0, cut_after=moving(0)[1][0])
    lost = dict(run.cut.lost)
    assert lost["lifted_pages"] > 0 and lost["channels out"] > 0
    run.recover()
    run.resume()
    totals, _, _, joules = run.account()
    plain = start(0)
    plain.step(0)
    before, _, _, fewer = plain.account()
    assert joules.by_component["NAND read"][1] > fewer.by_component["NAND read"][1]
    assert totals.counters["landed_pages"] <= before.counters["landed_pages"]


def test_roles_are_found_again():
    """Every block's roles, where it holds something: those that it had when the power went; and the
    cycles of its planes, which are the cells' own."""
    run = start(0)
    run.step(0)
    run.step(1)
    rotated = run.system.arrays.block["turned"].copy()
    cycles = worn(run).copy()
    valid = run.system.arrays.valid.copy()
    assert not run.step(2, cut_after=1)
    run.recover()
    assert rotated[valid > 0].any()
    assert (run.system.arrays.block["turned"][valid > 0] == rotated[valid > 0]).all()
    assert (worn(run) == cycles).all()
