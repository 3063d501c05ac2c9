"""A power cut at any event of a step on the dies: what comes up from flash alone, and is resumed,
ends bit for bit where an uninterrupted run does: weights, states, what the host was sent, and the
books.
"""

import re
from functools import cache

import numpy as np
import pytest

from ondie.emu.analysis.compare import Run
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.core.conservation import Imbalance
from ondie.emu.engine.core.counters import COUNTERS, DOWN_BYTES
from ondie.emu.engine.run import driver
from ondie.emu.nand import timing
from ondie.emu.nand import torn_pages as torn
from ondie.emu.nand.page_store import SPARE_BYTES
from ondie.emu.paths.base import Options, Rows
from ondie.emu.paths.on_die import recovery_plan as resume
from ondie.emu.paths.on_die import uneven_rounds
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.units import InputError
from ondie.traces import load
from tests.state.models import model
from tests.timing.harness import COMMAND, TIMES, preset

LEAVES = {
    "flash.channels": "2",
    "flash.dies_per_channel": "2",
    "flash.planes_per_die": "4",
    "flash.blocks_per_plane": "16",
    "flash.pages_per_block": "4",
    "flash.page": "512 B",
    "ftl.reservoir_fraction": "0.5",
    "host.io_block": "4 KiB",
}
PAGES, BLOCKS, STEPS = 4, 8, 3
PLACES = PAGES * BLOCKS  # of a die's reservoir

# (op, parameters, settings). 128 parameters a page: Adam 128 a stripe, Momentum 256, SGD 512.
CASES = [
    (op, params, changes)
    for op, params in (("adam", 18 * 4 * 128 - 50), ("momentum", 11 * 4 * 256 + 700))
    for changes in (
        {},
        {"dispatch": "free"},
        {"dispatch": "double_buffered"},
        {"dispatch": "free", "ways": 3, "channels": 1},
        {"ways": 1, "channels": 3},
        {"devices": 2},
    )
] + [("sgd", 9 * 4 * 512, {"dispatch": "double_buffered"}), ("adam", 300, {})]
BY_THE_DIE = {
    "pe__protection": "on_die_ecc",
    "pe__ecc_codeword": "512 B",
    "pe__cipher": "die",
    "pe__randomiser": "die",
}
"""What the dies do for their pages beside the update: recovery has no part in it."""
KEYS = {
    "dispatch": "pe__dispatch",
    "ways": "flash__dies_per_channel",
    "channels": "flash__channels",
    "devices": "system__devices",
}


@cache
def configured(case, **more):
    changes = {KEYS[name]: value for name, value in CASES[case][2].items()}
    return preset(LEAVES, **(changes | more))


@cache
def trace(case, skipped=()):
    op, params, _ = CASES[case]
    return model(op, STEPS, (("a", (params - 100,), 0), ("b", (100,), 1)), skipped=skipped)


def start(case, seed=0, skipped=(), **more):
    options = Options(seed=seed)
    return Run("on_die", configured(case, **more), trace(case, skipped), options, payload=True)


def vectors(run):
    """All that training goes on with, as bits."""
    found = {name: run.path.payload.stored(name) for name in run.path.vectors}
    found["at the host"] = run.path.delivered()
    return {name: x.view(np.uint32).copy() for name, x in found.items()}


@cache
def uninterrupted(case, skipped=()):
    """(vectors at the end, events of each step, ledger)."""
    run = start(case, skipped=skipped)
    events = [0]
    for i in range(STEPS):
        assert run.step(i)
        events.append(int(run.system.arrays.reg["events"][0]))
    reference = run.arithmetic.reference(STEPS).view(np.uint32)
    found = vectors(run)
    assert (found["w"] == reference).all()
    return found, np.diff(events), run.account()[1]


def finish(run, i):
    """The rest of a run whose step i is done."""
    for k in range(i + 1, STEPS):
        assert run.step(k)


def check_end(run, case, skipped=()):
    found, _, book = uninterrupted(case, skipped)
    for name, x in vectors(run).items():
        wrong = np.flatnonzero(x != found[name])
        assert not len(wrong), f"{name}: {len(wrong)} of {len(x)} differ, the first at {wrong[0]}"
    _, ours, _, _ = run.account()  # balanced, or it raises
    assert ours.steps == STEPS
    # Time is no such thing: padding can put the erases of several dies into one round of lockstep.
    for name in ("array_erases", "bpp_pages", "vpp_pages", "down_bytes"):
        lost = sum(
            found.cut.lost.get(name, 0) for found in run.recoveries
        )  # a torn program is whole
        assert ours.totals.counters[name] + lost >= book.totals.counters[name], name
    return ours


def survive(run, i, cuts):
    """Step i with a cut after each number of events of ``cuts`` = [(where, events)], where "step"
    is the step or what is left of it, "recovery" the next recovery."""
    cuts = list(cuts)
    off = not run.step(i, cut_after=cuts.pop(0)[1] if cuts else None)
    while off:
        while cuts and cuts[0][0] == "recovery":
            if run.recover(cut_after=cuts.pop(0)[1]) is not None:
                break
        if run.cut is not None:
            run.recover()
        off = not run.resume(cut_after=cuts.pop(0)[1] if cuts else None)


def test_random_cuts(counts):
    """Any configuration, any event, up to three cuts in a step: a third of them while the drive
    comes up from the one before."""
    torn_programs = torn_erases = again = resent = kept = 0
    for seed in range(counts(12, 200)):
        rng = np.random.default_rng((20260605, seed))
        case = int(rng.integers(len(CASES)))
        skipped = (1,) if rng.random() < 0.1 else ()
        _, events, _ = uninterrupted(case, skipped)
        i = int(rng.integers(STEPS))
        cuts = [("step", int(rng.integers(1, events[i] + 1)))]
        for _ in range(int(rng.integers(3))):
            if rng.random() < 0.5:
                cuts.append(("recovery", int(rng.integers(1, 400))))
            else:
                cuts.append(("step", int(rng.integers(1, events[i] + 1))))
        run = start(case, seed, skipped)
        for k in range(i):
            run.step(k)
        survive(run, i, cuts)
        finish(run, i)
        check_end(run, case, skipped)
        run.part()
        for found in run.recoveries:
            torn_programs += found.cut.torn_programs
            torn_erases += found.cut.torn_erases
            again += found.cut.again
            resent += found.resent_bytes
            kept += found.kept
    assert torn_programs > 0 and resent > 0 and kept > 0  # the cuts were not all harmless
    assert counts(1, torn_erases * again) > 0


SMALL = len(CASES) - 1  # 300 parameters: 3 stripes on 4 dies


def test_every_event_of_a_step(counts):
    """Cuts after 1, 2, 3, ... events of a step, and one while the drive comes up from it."""
    _, events, _ = uninterrupted(SMALL)
    seen = set()
    for n in range(1, events[1] + 1, counts(9, 1)):
        run = start(SMALL, seed=n)
        run.step(0)
        survive(run, 1, [("step", n), ("recovery", 1 + n % 37)])
        finish(run, 1)
        check_end(run, SMALL)
        seen |= {(bool(x.cut.torn_programs), x.kept) for x in run.recoveries}
    assert {kept for _, kept in seen} >= {0, 3}, "before and behind the update"


@cache
def under_way(case, step, op):
    """Numbers of events of a step after which an array is at work on ``op``."""
    run, found, events = start(case), [], iter(range(1, 10**6))
    for k in range(step):
        run.step(k)
    a = run.system.arrays

    def look(_):
        n = next(events)
        for t in a.die.arr[a.die.arr >= 0]:
            x = a.txn[t]
            if x.op == op and x.time - a.op[op].array <= run.system.now < x.time:
                found.append(n)
                break

    run.system.on_progress = look
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "EVENTS_PER_CALL", 1)
        run.step(step)
    return found


def torn_cut(case, step, seed=0, share=0.5, op=timing.BPP):
    """A run whose power goes while programs are under way, when a share of them is done."""
    events = under_way(case, step, op)
    run = start(case, seed)
    for k in range(step):
        run.step(k)
    assert not run.step(step, cut_after=events[int(share * len(events))])
    assert run.cut.torn_programs if op == timing.BPP else run.cut.torn_erases
    return run


@pytest.mark.parametrize("outcome", [*torn.OUTCOMES, "blank and whole", "sealed and whole"])
def test_what_a_torn_program_leaves(outcome, monkeypatch):
    """All planes of a super-page alike, or one whole beside others that are not: taken for good
    only where all is there, though nobody was told so."""
    monkeypatch.setattr(torn, "OUTCOMES", tuple(outcome.split(" and ")))
    run = torn_cut(SMALL, 1, seed=3, share=0)
    programs = run.cut.torn_programs
    found = run.recover()
    if outcome == "whole":
        assert found.kept == programs and found.refused == 0
    else:
        assert found.kept == 0
        seen = {"blank": 0, "blank and whole": found.refused}.get(outcome, programs)
        assert found.refused == seen
    assert found.padded == 3  # every die's open block
    assert run.resume()
    finish(run, 1)
    check_end(run, SMALL)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("outcome", torn.OUTCOMES[:3])
def test_the_same_program_is_torn_again_and_again(outcome, monkeypatch, counts):
    """Were the place that looks blank not padded, it would be programmed a second time. Blocks of
    64 pages: each attempt leaves a place behind."""
    monkeypatch.setattr(torn, "OUTCOMES", (outcome,))
    run = start(SMALL, 4, flash__pages_per_block="64")
    run.step(0)
    assert not run.step(1, cut_after=under_way(SMALL, 1, timing.BPP)[0])
    places, programs = [], 0
    for _ in range(counts(2, 4)):
        after = 10
        while True:
            programs += run.cut.torn_programs
            before = run.cut.torn_programs
            found = run.recover()
            assert found.kept == 0 and found.refused >= (outcome != "blank") * programs
            places.append(int(run.system.arrays.pool["r_next"][0]))
            if before and after > 10:
                break
            assert not run.resume(cut_after=after)
            after += 1
        assert not run.resume(cut_after=2)
    assert programs >= counts(3, 5) and (np.diff(places) > 0).all()
    run.recover()
    assert run.resume()
    finish(run, 1)
    check_end(run, SMALL)


@pytest.mark.parametrize("remains", torn.REMAINS)
def test_a_block_that_was_being_erased(remains, monkeypatch):
    """The old versions in it were not needed any more; however it looks, it is erased again."""
    monkeypatch.setattr(torn, "REMAINS", (remains,))
    run = torn_cut(0, 1, op=timing.ERASE)
    run.recover()
    assert run.resume()
    finish(run, 1)
    check_end(run, 0)


def test_what_is_resent_and_what_is_not():
    """Lockstep: what had been sent and is not on flash goes down again, and nothing else."""
    run = torn_cut(0, 1)
    found = run.recover()
    stripes = -(-CASES[0][1] // 128)
    assert 0 < found.kept < stripes and 0 < found.resent_bytes <= (stripes - found.kept) * 512
    before = int(run.system.arrays.count[:, DOWN_BYTES].sum())
    assert run.resume()
    sent = int(run.system.arrays.count[:, DOWN_BYTES].sum()) - before
    assert sent == (stripes - found.kept) * 512
    finish(run, 1)
    ours, plain = check_end(run, 0), uninterrupted(0)[2]
    extra = {
        name: ours.totals.counters[name] - plain.totals.counters[name]
        for name in ("down_bytes", "bpp_pages", "odc_ops")
    }
    # What had come down completely and was lost: the rest of resent_bytes was on the link.
    assert extra["down_bytes"] == found.resent_bytes - found.cut.lost["down_bytes"]
    assert extra["bpp_pages"] == 3 * found.padded
    assert 0 <= extra["odc_ops"] <= 8  # a stripe on every die, or two


def test_the_lost_work_costs_energy():
    run = torn_cut(0, 1)
    run.recover()
    run.resume()
    finish(run, 1)
    totals, _, work, joules = run.account()
    assert set(run.recoveries[0].cut.lost) <= {*COUNTERS, *totals.bytes_by}
    plain = start(0)
    finish(plain, -1)
    before, _, less, fewer = plain.account()
    assert joules.drive[1] > fewer.drive[1] and joules.host[1] > fewer.host[1]
    done = totals.counters["odc_ops"], before.counters["odc_ops"]
    assert done[0] > done[1]
    assert work.adds == less.adds * done[0] // done[1] and work.register_bits > less.register_bits
    assert work.host_dram_bytes - less.host_dram_bytes == run.recoveries[0].resent_bytes


@pytest.mark.parametrize("more", [{}, BY_THE_DIE], ids=["plain", "by the die"])
def test_rows_of_a_whole_step_are_the_paths_own(more):
    """Nothing done yet: the rest of the step is the step, row by row."""
    for case in range(len(CASES)):
        path = start(case, **more).path
        ours, theirs = Rows(5), Rows(5)
        zeros = tuple(np.zeros(path.geometry.dies, np.int64) for _ in path.stripes)
        chunks = [*uneven_rounds.update(path.devices, ours, 4, zeros), ours.take()]
        a = np.concatenate(chunks)
        b = np.concatenate([*path._update(theirs, 4), theirs.take()])
        loads = b["resource"] == rows.DMA_DOWN
        assert loads.any() and len(a) == len(b)
        b["kind"][loads] = 0  # of no meaning
        assert (a == b).all(), CASES[case]


def test_what_the_dies_do_for_their_pages_is_done_again():
    """Code, cipher and randomiser on the dies: the step ends as it would without, and every stripe
    that was computed twice has gone through the cipher twice."""
    run = start(0, **BY_THE_DIE)
    assert run.step(0)
    assert not run.step(1, cut_after=under_way(0, 1, timing.BPP)[20])
    run.recover()
    assert run.resume()
    finish(run, 1)
    check_end(run, 0)
    totals, _, work, joules = run.account()
    stripe = 3 * 512 * 8  # bits of w, m and v; as read, and as programmed
    assert work.pe_cipher_bits == 2 * stripe * totals.counters["odc_ops"]
    assert joules.by_component["die ECC"][1] > 0


# --- time


def timed(**changes):
    """One die of two planes, Momentum, two stripes; forward and backward take 10 and 20 ms."""
    trace = model("momentum", 1, (("a", (2048,), 0),), seconds=20e-3)
    cfg = preset(TIMES, **{"flash__cache_read": "false"} | changes)
    return Run("on_die", cfg, trace, Options(), payload=True)


def test_recovery_takes_its_time():
    """8 blocks of 8 pages, the first of which holds two super-pages. Out-of-band data of 8 heads
    and of the 7 pages behind the one that is not blank, each: command 200 ns for two planes, array
    10 us, then 2 x 36 B over the channel at 1 B/ns, and the last of either batch through DRAM at
    8.192 B/ns. The newest with its data: 2 x 4132 B. A pad: command and program."""
    run = timed()
    assert not run.step(0, cut_after=1)
    found = run.recover()
    assert SPARE_BYTES == 36
    assert (found.scanned, found.checked, found.padded, found.kept) == (15, 1, 1, 0)
    one = 2 * COMMAND + 10_000_000 + 72_000
    dram = 72_000 / 8.192
    data = 2 * COMMAND + 10_000_000 + 8_264_000 + 8_264_000 / 8.192
    pad = 2 * COMMAND + 50_000_000
    assert found.seconds * 1e12 == pytest.approx(15 * one + 2 * dram + data + pad, abs=5)


def test_the_accelerator_goes_on():
    """A drive that is up again before the gradients are there delays nothing: only one place was
    skipped, in the same block."""
    plain = timed()
    plain.step(0)
    run = timed()
    assert not run.step(0, cut_after=20)
    run.recover()
    assert run.resume()
    assert run.clock.steps[0]["backward"][1] == 30_000_000_000
    for name in ("forward", "backward", "update", "weights_up", "step"):
        assert run.clock.steps[0][name] == plain.clock.steps[0][name], name


def test_out_of_band_data_of_large_models(counts):
    """The figures of the README. Heads of 1,002 blocks of each die and the rest of those in use;
    each read takes a die tR = 30 us and the commands of four planes, 4 x 150 ns, as any of them may
    be the idle one: its 144 B are on their way during the next one."""
    for name, ms in (("gpt2-124m", 61.9), ("gpt-10b", 2426.2))[: counts(1, 2)]:
        path = OnDie(load_preset("optimstore-r1"), load(name), Options())
        drive = path.system(False, 0)
        g = drive.geometry
        used = -(-path.stripes[0].count // g.dies // g.pages)

        def scan(blocks, pages, path=path, drive=drive, g=g):
            for page in pages:
                places = [(0, d, b * g.pages + page) for b in range(blocks) for d in range(g.dies)]
                yield resume.scan(path, drive.next_row, places, False)

        drive.run(scan(g.reservoir_blocks, [0]))
        drive.run(scan(used, range(1, g.pages)))
        reads = g.reservoir_blocks + (g.pages - 1) * used
        assert drive.now / 1e9 == pytest.approx(reads * 30.6e-3, rel=1e-3)
        assert drive.now / 1e9 == pytest.approx(ms, abs=0.05)


# --- bad input, and what is no power cut


def test_what_cannot_be_cut():
    cfg = configured(0)
    timing_only = Run("on_die", cfg, trace(0), Options(), payload=False)
    with pytest.raises(InputError, match="hold no bytes"):
        timing_only.step(0, cut_after=5)
    other = Run("in_storage", cfg, trace(0), Options(), payload=True)
    with pytest.raises(InputError, match="in_storage: only .* 'on_die' recovers from a power cut"):
        other.step(0, cut_after=5)
    chips = Run("chip_level", cfg, trace(0), Options(), payload=True)
    with pytest.raises(InputError, match="chip_level: only .* 'on_die'"):
        chips.step(0, cut_after=5)
    run = start(SMALL)
    with pytest.raises(InputError, match="after 0 events: the number of events must be at least 1"):
        run.step(0, cut_after=0)
    for call in (run.recover, run.resume):
        with pytest.raises(InputError):
            call()


def test_without_power_nothing_goes_on():
    run = start(SMALL)
    run.step(0, cut_after=90)
    for call in (lambda: run.step(1), run.account):
        with pytest.raises(InputError, match="no power"):
            call()
    with pytest.raises(InputError, match=r"call recover\(\) first"):
        run.resume()
    run.recover()
    for call in (lambda: run.step(1), run.account, run.checkpoint):
        with pytest.raises(InputError, match=r"is interrupted; call resume\(\) first"):
            call()
    with pytest.raises(InputError, match="has not been cut"):
        run.recover()


def test_a_step_that_ends_before_the_cut():
    run = start(SMALL)
    assert run.step(0, cut_after=10**6)
    finish(run, 0)
    check_end(run, SMALL)


def test_a_reservoir_without_room_for_torn_places_says_so():
    """28 of 32 places are valid: all but one block. A place that is padded leaves the next block
    one valid super-page when the die comes round to it."""
    trace = model("adam", STEPS, (("a", (28 * 4 * 128,), 0),))
    run = Run("on_die", configured(0), trace, Options(), payload=True)
    run.step(0, cut_after=400)
    run.recover()
    with pytest.raises(InputError, match="valid super-pages; use a larger fraction"):
        run.resume()
        finish(run, 0)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(4))
def test_a_second_free_block_has_room_for_two_cuts(seed):
    """24 of 32 places are valid; of the 4 of a block two cuts take 4 at most, until the die has
    come round to them, and again."""
    trace = model("adam", 6, (("a", (24 * 4 * 128,), 0),))
    run = Run("on_die", configured(0), trace, Options(seed=seed), payload=True)
    for i in range(6):
        survive(run, i, [("step", 300 + 40 * seed), ("step", 200)] if i in (0, 4) else [])
    assert len(run.recoveries) == 4
    reference = run.arithmetic.reference(6)
    assert (run.path.finish().view(np.uint32) == reference.view(np.uint32)).all()
    run.account()


def test_books_that_are_off_at_the_cut():
    """A counter that says more or less than what was under way."""
    for counter, by in ((DOWN_BYTES, 1), (COUNTERS.index("bpp_pages"), -1)):
        run = start(SMALL)
        run.step(0)
        run.system.arrays.count[0, counter] += by
        with pytest.raises(Imbalance, match=r"at the power cut \(device 0\)"):
            run.step(1, cut_after=90)


def test_the_example_of_the_documentation_runs(root):
    text = (root / "docs" / "power-loss.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (block,) = [block for block in blocks if "cut_after" in block]
    names = {}
    exec(compile(block, "docs/power-loss.md", "exec"), names)
    found = names["found"]
    # The heads of 1,002 blocks of 64 dies, the rest of a block of the 32 that hold something.
    assert (found.scanned, round(found.seconds * 1e3, 1)) == (72288, 38.8)
    assert (found.cut.torn_programs, found.kept, found.resent_bytes) == (13, 20, 98304)
    for i in range(2, 4):
        names["run"].step(i)
    reference = names["run"].arithmetic.reference(4)
    assert (names["run"].path.finish().view(np.uint32) == reference.view(np.uint32)).all()
