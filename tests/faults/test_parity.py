"""Does parity over dies hold what the others do not: every bit of a super-page of a lost die, and
of its out-of-band data? And does a commit record say which step is done?

Own: the parity of j (rain - 1) .. stripes lies on the die before them (guards.py).
"""

from dataclasses import replace

import numpy as np
import pytest

from ondie.emu.analysis.compare import Run
from ondie.emu.engine.core import payload_log
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.nand.parity_records import covered
from ondie.emu.paths.base import Options
from ondie.emu.units import InputError
from ondie.traces import Memory
from tests.state.models import model
from tests.timing.harness import preset

LEAVES = {
    "flash.channels": "2",
    "flash.dies_per_channel": "2",
    "flash.planes_per_die": "4",
    "flash.blocks_per_plane": "20",
    "flash.pages_per_block": "4",
    "flash.page": "1 KiB",
    "ftl.reservoir_fraction": "0.8",
    "host.io_block": "4 KiB",
    "ecc.codeword": "1 KiB",
}
CASES = {
    "two dies": {"pe__rain": 2},
    "three dies": {"pe__rain": 3},
    "all dies": {"pe__rain": 4},
    "free": {"pe__rain": 3, "pe__dispatch": "free"},
    "double buffered": {"pe__rain": 4, "pe__dispatch": "double_buffered"},
    "controller's ECC": {"pe__rain": 3, "pe__protection": "controller_ecc"},
    "the die's ECC": {"pe__rain": 4, "pe__protection": "on_die_ecc"},
    "two drives": {"pe__rain": 3, "system__devices": 2},
    "records": {"pe__rain": 3, "pe__atomicity": "resume"},
    "BF16": {"pe__rain": 3, "pe__narrow_values": 1},
}


def started(case, op="adam", steps=3, format="fp32"):
    cfg = preset(LEAVES, **CASES[case])
    options = Options(format="bf16_all" if case == "BF16" else format)
    return Run("on_die", cfg, model(op, steps), options, payload=True)


def stripes(run):
    return [(s.shard.device, sp) for s in run.path.stripes for sp in range(s.count)]


def held(payload, device, super_page):
    """Pages as they lie in the array, and out-of-band data as a parity covers them: without the
    mark of check bytes, which the program gives a page."""
    store, pages = payload.stores[device], payload.pages(device, super_page)
    return np.stack([store.read(p) for p in pages]), np.stack([covered(store, p) for p in pages])


def lose(run, device, die):
    """Every page of a die is gone."""
    g = run.system.geometry
    run.path.payload.stores[device].erase(die * g.die_pages, g.die_pages)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("op", ["adam", "momentum"])
@pytest.mark.parametrize("case", CASES)
def test_every_stripe_is_made_again_from_the_others(case, op):
    """After each of three steps, bit for bit: pages, and what is written beside them."""
    run = started(case, op)
    for i in range(3):
        run.step(i)
        payload = run.path.payload
        assert not any(beside.chains for beside in payload.beside)
        for device, sp in stripes(run):
            pages, records = held(payload, device, sp)
            again, beside = payload.rebuilt(device, sp)
            assert (again == pages).all() and (beside == records).all(), (i, device, sp)
    reference = run.arithmetic.reference(3)
    assert (run.path.finish() == reference).all()
    run.account()  # balanced


@pytest.mark.one_in(5)
@pytest.mark.parametrize("die", range(4))
@pytest.mark.parametrize("case", ["two dies", "three dies", "all dies", "two drives", "BF16"])
def test_a_lost_die_is_read_out_through_its_parities(case, die):
    """All of it, and no page of that die is read: there is nothing there. Another drive goes on
    from what came out."""
    run = started(case)
    plain = started(case)
    run.step(0)
    run.step(1)
    wanted = {name: run.path.payload.stored(name) for name in run.path.vectors}
    device = run.system.devices - 1
    lose(run, device, die)
    saved = run.checkpoint((device, die))
    for name, vector in wanted.items():
        assert (saved.vectors[name] == vector).all(), name
    plain.step(0)
    plain.step(1)
    whole = plain.checkpoint()
    s, members = run.path.stripes[device], run.path.guarded[device].members
    gone = range(die, s.count, run.system.geometry.dies)
    parities = len({sp // members for sp in gone})
    size = s.planes * run.system.geometry.page_bytes
    assert saved.bytes_up == whole.bytes_up + (parities - len(gone)) * size
    if case == "BF16":
        return
    trace, vectors = run.path.trace, dict(saved.vectors)
    rest = replace(
        trace, steps=(replace(trace.steps[2], index=0),),
        source=Memory({0: trace.gradient(2)}, {"initial": vectors.pop("w")}, vectors),
    )  # fmt: skip
    again = Run("on_die", run.cfg, rest, Options(), payload=True)
    again.step(0)
    plain.step(2)
    assert (again.path.finish() == plain.path.finish()).all()


@pytest.mark.parametrize(("code", "die"), [("bch on the die", 0), ("bch", 1), ("ldpc", 2)])
def test_a_lost_die_behind_a_real_code(code, die):
    """At 1e-3 most pages are read with wrong bits, 8 in the mean, also those of the parities; a
    real decoder takes them back, and the vectors are those of a drive without errors."""
    on_die = code == "bch on the die"
    changes = CASES["three dies"] | {
        "errors__kind": "model", "errors__floor": 1e-3, "errors__wear": 0, "errors__retention": 0,
        "errors__disturb": 0, "errors__pslc": 1, "ecc__code": code.split()[0],
        "ecc__correctable_bits": 40, "ecc__soft_reads": 0, "flash__spare": "150 B",
        "pe__protection": "on_die_ecc" if on_die else "controller_ecc",
        "pe__ecc_codeword": "1 KiB", "pe__ecc_correctable_bits": 40,
    }  # fmt: skip
    plain = started("three dies")
    run = Run("on_die", preset(LEAVES, **changes), model("adam", 3), Options(), payload=True)
    for i in range(2):
        plain.step(i)
        run.step(i)
    decoder, count = run.path.payload.decoder, run.system.arrays.count[0]
    lose(run, 0, die)
    before = decoder.counts
    saved = run.checkpoint((0, die)).vectors
    for name in run.path.vectors:
        assert (saved[name] == plain.path.payload.stored(name)).all(), name
    assert decoder.counts.pages - before.pages > 10
    assert decoder.counts.failed_words == decoder.counts.wrong_bits_left == 0
    corrected = int(count[COUNTERS.index("bare_corrected_bits")])
    assert 0 < corrected < decoder.counts.wrong_bits  # check bits were hit, too
    assert count[COUNTERS.index("bare_wrong_bits")] == 0


def test_a_wrong_bit_of_a_parity_is_in_what_it_makes():
    """One bit of one page of the parity of stripes 0 and 1: of die 0 only its own stripe 0."""
    run = started("three dies")
    run.step(0)
    payload, guarded = run.path.payload, run.path.guarded[0]
    wanted = {name: payload.stored(name) for name in run.path.vectors}
    parity = int(guarded.parity[0])
    assert parity % 4 == 3 and list(guarded.under(0)) == [0, 1]
    payload.stores[0].flip(payload.pages(0, parity)[1], 9, 0x10)
    lose(run, 0, 0)
    saved = run.checkpoint((0, 0)).vectors
    wrong = {
        n: np.flatnonzero(saved[n].view(np.uint32) != x.view(np.uint32)) for n, x in wanted.items()
    }
    assert {name: x.tolist() for name, x in wrong.items()} == {"w": [], "m": [2], "v": []}


def test_a_parity_is_made_of_what_left_the_registers():
    """A program that went wrong is not in it: the page is made again as it was meant."""
    run = started("three dies")
    run.step(0)
    payload = run.path.payload
    pages, records = held(payload, 0, 5)
    store = payload.stores[0]
    for plane in range(3):
        store.read(payload.pages(0, 5)[plane])[:] = 0x55
    again, beside = payload.rebuilt(0, 5)
    assert (again == pages).all() and (beside == records).all()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("changes", [{}, {"flash__cache_program": "false"}])
@pytest.mark.parametrize("case", CASES)
def test_a_die_programs_in_sequence(case, changes):
    """Stripes, parities and records alike: each at the place behind the last one, and a block's
    first after its erase. They wait for registers, not for their turn in the block."""
    cfg = preset(LEAVES, **{**CASES[case], **changes})
    run = Run("on_die", cfg, model("adam", 3), Options(), payload=True)
    g, follow = run.system.geometry, run.system.on_log
    next_place, erased = {}, set()

    def watch(log):
        for entry in log:
            what, at = int(entry.what), (int(entry.dev), int(entry.die) % g.dies)
            if what == payload_log.LOG_ERASE:
                block = int(entry.ppn) // (g.pages * g.planes) % g.all_blocks - g.blocks
                erased.add((*at, block))
            elif what in (payload_log.LOG_BPP, payload_log.LOG_MADE):
                place = int(entry.ppn)
                assert place == next_place.get(at, place)
                next_place[at] = (place + 1) % (g.reservoir_blocks * g.pages)
                if place % g.pages == 0:
                    erased.remove((*at, place // g.pages))
        follow(log)

    run.system.on_log = watch
    for i in range(3):
        run.step(i)
    assert len(next_place) == g.dies * run.system.devices and not erased


def test_a_record_says_which_step_is_done():
    """One page of each die, whose out-of-band data have the step."""
    run = started("records")
    for i in range(2):
        run.step(i)
        payload, guarded = run.path.payload, run.path.guarded[0]
        for die in range(4):
            sp = guarded.records + die
            ppn = payload.pages(0, sp)[0]
            spare = payload.stores[0].spare(ppn)
            assert (spare.lpn, spare.step, spare.slot) == (sp, i + 1, 0)
            store, stripes = payload.stores[0], range(die, guarded.count, 4)
            mine = [store.spare(payload.pages(0, x)[0]).sequence for x in stripes]
            assert spare.sequence > max(mine)  # the last that its die programmed
            assert payload.stores[0].read(ppn)[:8].view(np.int64)[0] == i + 1
            assert payload.stores[0].spare(ppn + 1) is None


def test_what_cannot_stand_in():
    run = started("two dies")
    with pytest.raises(InputError, match="no parity exists before"):
        run.checkpoint((0, 1))
    run.step(0)
    for lost in ((0, 4), (1, 0), (0, -1)):
        with pytest.raises(
            InputError, match="must be a drive from 0 to 0 and one of its dies from 0 to 3"
        ):
            run.checkpoint(lost)
    bare = Run("on_die", preset(LEAVES), model("adam", 1), Options(), payload=True)
    with pytest.raises(InputError, match="pe.rain = 0"):
        bare.checkpoint((0, 0))


def test_a_parity_without_all_of_its_stripes_is_a_defect():
    run = started("three dies")
    beside = run.path.payload.beside[0]
    planes = np.zeros((beside.planes, beside.page), np.uint8)
    records = np.zeros((beside.planes, 36), np.uint8)
    beside.join(0, planes, records)
    with pytest.raises(SimulationError, match="some stripes have not been added"):
        beside.made(int(beside.guarded.parity[0]), 1, 1)
    with pytest.raises(SimulationError, match="twice"):
        beside.join(0, planes, records)
