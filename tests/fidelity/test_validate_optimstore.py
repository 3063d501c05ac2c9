"""Does one preset, taken whole, meet what OptimStore published, and are its rows what they say?

The sample's numbers by hand: R1's channels take 8 x 8192 B / (8192 B / 800 MB/s + 150 ns) =
6.308 GB/s, a page with its command 10.39 us, five passes over a page 51.2 us.
"""

import pytest

from ondie.emu import validate
from ondie.emu.analysis.row import IDENTITY
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core.conservation import Place, check_laws
from ondie.emu.validate import CHECK, FIT, SHOWN, model, optimstore
from ondie.emu.validate.optimstore import PARAMS, iteration
from ondie.emu.validate.update_stage import stage
from tests.suites import suite

PAGE_S = 8192 / 800e6 + 150e-9
CHANNELS = 8 * 8192 / PAGE_S
CPU = 800e6
PASSES_S = 5 * 8192 / 800e6
CHECKS = {"lifetime in iterations"}
DECIDED = {
    "power of the SSD, on die", "power of the SSD, C-ISP", "I/O share of the iteration",
    "bytes programmed",
}  # fmt: skip
"""Published too, but the fits or the check row decide them: identities with a tolerance."""
FITS = {
    "on die over baseline, Adam", "on die over C-ISP, Adam", "on die over baseline, Momentum",
    "C-ISP over baseline, Adam", "baseline, Adam",
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> dict[str, validate.Row]:
    rows = suite("optimstore")
    assert len({row.name for row in rows}) == len(rows), "a name twice"
    return {row.name: row for row in rows}


def named(found, kind: str) -> set[str]:
    return {name for name, row in found.items() if row.kind == kind}


def test_one_preset_meets_every_check_row(found):
    """R1, and R1 alone is checked: what R2 meets and misses is shown beside it."""
    assert named(found, CHECK) == {f"R1: {name}" for name in CHECKS}
    for name in DECIDED:
        row = found[f"R1: {name}"]
        assert row.kind == IDENTITY and row.tolerance, name
    assert [name for name, row in found.items() if row.misses] == []


def test_what_was_fitted_is_said_to_be(found):
    assert named(found, FIT) == {f"R1: {name}" for name in FITS}
    for name in FITS:
        row = found[f"R1: {name}"]
        assert row.predicted == pytest.approx(row.published, rel=row.tolerance), name


def test_energy_ratio_with_each_reading_of_the_host_power(found):
    """By hand: drive and host DRAM, plus 120 W for the whole stage of the baseline and 88 W of the
    other; or 120 W only while the CPU updates, 88 W otherwise; and 80 W of the accelerator."""
    cfg = load_preset("optimstore-r1")
    stages = [stage(path, cfg, model("adam", PARAMS)) for path in ("host_offload", "on_die")]
    cpu_s = (PARAMS / CPU, 0.0)
    drawn = {
        "busy power for the whole stage": [120 * stages[0].seconds, 88 * stages[1].seconds],
        "busy power while the CPU computes": [
            120 * cpu + 88 * (s.seconds - cpu) for s, cpu in zip(stages, cpu_s, strict=True)
        ],
    }
    drawn["and a waiting accelerator"] = [
        joules + 80 * s.seconds
        for joules, s in zip(drawn["busy power while the CPU computes"], stages, strict=True)
    ]
    bits = (84 * 8 * PARAMS, 24 * 8 * PARAMS)
    for reading, powers in drawn.items():
        base, die = (
            s.drive_j + 40e-12 * n + joules
            for s, n, joules in zip(stages, bits, powers, strict=True)
        )
        row = found[f"R1: energy, baseline / on die, {reading}"]
        assert row.kind == SHOWN and row.published == 3.6
        assert row.predicted == pytest.approx(base / die, rel=1e-6)


def test_r2_is_shown_beside(found):
    """It misses rows that R1 meets: its C-ISP is too fast, and so takes too much power."""
    for name in CHECKS | FITS:
        assert found[f"R2: {name}"].kind == SHOWN
    assert {row.tolerance for name, row in found.items() if name.startswith("R2: ")} == {None}
    assert found["R2: C-ISP over baseline, Adam"].predicted > 1.9
    row = found["R2: power of the SSD, C-ISP"]
    assert row.predicted > row.published * 1.2


def test_identities_follow_from_other_rows(found):
    speedup = found["R1: on die over baseline, Adam"].predicted
    amdahl = found["R1: end to end"]
    assert amdahl.kind == IDENTITY
    assert amdahl.predicted == pytest.approx(1 / (0.07 + 0.93 / speedup), rel=1e-6)
    rate = found["R1: baseline, Adam"].predicted
    assert found["R1: on die, Adam"].predicted == pytest.approx(rate * speedup, rel=1e-9)
    years, iterations = found["R1: lifetime in years"], found["R1: lifetime in iterations"]
    assert years.kind == IDENTITY
    assert years.difference == pytest.approx(iterations.difference, rel=1e-9)
    moved = found["R1: DeepStore on the channel"]
    assert moved.kind == IDENTITY and moved.predicted == pytest.approx(28, rel=1e-3)


def test_the_dies_in_lockstep_are_the_published_ones(found):
    """Free and double-buffered ones are faster, and weights on their way up cost all of them."""
    for preset in ("R1", "R2"):
        for op in ("adam", "momentum"):
            lockstep, free, double = (
                found[f"{preset}: {op}, {dispatch}"].predicted for dispatch in optimstore.DISPATCHES
            )
            assert lockstep < free <= double
            for dispatch in optimstore.DISPATCHES:
                name = f"{preset}: {op}, {dispatch}"
                alone, fp16, fp32 = (
                    found[name + up].predicted
                    for up in ("", ", with FP16 weights to host", ", with FP32 weights to host")
                )
                assert fp32 < fp16 < alone


def test_the_documentation_says_the_same(found, root):
    text = " ".join((root / "docs" / "validation" / "optimstore.md").read_text("utf-8").split())
    plain, free, double, fp32, fp16 = (
        f"{found[f'R1: adam, {name}'].predicted:.2f}x"
        for name in (
            "lockstep", "free", "double_buffered", "lockstep, with FP32 weights to host",
            "lockstep, with FP16 weights to host",
        )
    )  # fmt: skip
    assert (
        f"{plain} in lockstep, {free} if the dies start freely, and {double} with a second" in text
    )
    assert f"the lockstep result falls to {fp32} (FP32) or {fp16} (FP16)" in text


def test_the_baseline_is_flat_from_32_dies(found):
    rows = [row for name, row in found.items() if "baseline, " in name and " dies over " in name]
    assert len(rows) == 4
    for row in rows:
        assert row.kind == SHOWN and row.predicted == pytest.approx(1, abs=0.02)
    assert found["R1: on die, 64 dies over 32, 8 channels"].predicted > 1.5


def test_deepstore_by_hand():
    """28 B/param on the channel; programs its gradient, so two tPROG and a tR. In lockstep the
    channel first has the gradients of eight dies, which are programmed meanwhile but for the last,
    then 3 pages out and 3 in for each. Half of the dies come to a new block a round later than the
    others, and keep them waiting for a second erase."""
    cfg, trace = load_preset("optimstore-r1"), model("adam", PARAMS)
    s = stage("chip_level", cfg, trace)
    c = s.totals.counters
    pages = PARAMS * 4 // 8192
    assert c["kept_pages"] == pages and c["fetched_pages"] == c["stored_pages"] == 3 * pages
    assert c["bpr_pages"] == 4 * pages and c["bpp_pages"] == c["vpp_pages"] == 0
    assert c["ecc_encoded_pages"] == 4 * pages and c["ecc_decoded_pages"] == 0
    stripe = 2 * 100e-6 + 30e-6 + PASSES_S + PAGE_S + 8 * 6 * PAGE_S + 2 * 2e-3 / 256
    assert s.seconds == pytest.approx(PARAMS / 2048 / 64 * stripe, rel=0.02)
    check_laws(Place.RUN, s.ledger.totals.quantities())


def test_deepstore_in_lockstep_and_the_published_direction_exclude_each_other(found):
    """1.1x next to 2.8x allows 673 us per stripe. The channel takes 582 us of it, arrays that are
    not overlapped 281 us: so it is a loss in lockstep, and a gain where dies start freely."""
    lockstep = found["R1: DeepStore over baseline"]
    free = found["R1: DeepStore over baseline, dies start freely"]
    assert lockstep.kind == free.kind == SHOWN
    assert lockstep.predicted < 1 < free.predicted
    stripe = 30 + 51.2 + 100 + 8 * PAGE_S * 1e6
    serial = 30 + 51.2 + 200 + (1 + 6 * 8) * PAGE_S * 1e6
    for words in (f"{stripe:.0f} us. With", f"{stripe * 2.8 / 1.1:.0f} us", f"{serial:.0f} us"):
        assert words in lockstep.source, words
    assert "cannot both hold in lockstep" in lockstep.source
    on_die = stage("on_die", load_preset("optimstore-r1"), model("adam", PARAMS))
    chip = stage("chip_level", load_preset("optimstore-r1"), model("adam", PARAMS))
    erases = 2 * 2e3 / 256  # us of two dies' blocks, as in test_deepstore_by_hand
    expected = (serial + erases) / (stripe + erases)
    assert chip.seconds / on_die.seconds == pytest.approx(expected, rel=0.03)
    assert "both speedups could hold" in optimstore.deepstore_budget(load_preset("optimstore-r2"))


def test_one_depth_of_the_queue_gives_one_of_the_published_waits(found):
    """K = (array + page) / (page (1 - share)): 4.9 pages for reads, 31.7 for writes."""
    wait = {
        (name, depth): found[
            f"R1: waiting for the channel, {name}, {depth} blocks of 64 KiB in flight"
        ].predicted
        for name in ("reads", "writes")
        for depth in optimstore.DEPTHS
    }
    few, many = optimstore.DEPTHS
    assert wait["reads", few] == pytest.approx(0.195, abs=0.05) and wait["writes", few] < 0.1
    assert wait["writes", many] == pytest.approx(0.66, abs=0.05) and wait["reads", many] > 0.6
    source = found["R1: waiting for the channel, reads"].source
    assert "K = 4.9" in source and "K = 31.7" in source


def test_the_io_share_by_hand(found):
    """Per parameter: states 28 B and gradients 4 B over the channels, the CPU's 1.25 ns. Forward
    and backward are 7 %; gradients leave during two thirds of that, and late. What is neither
    forward, backward nor CPU is I/O: nothing counts twice."""
    _, base = iteration(load_preset("optimstore-r1"))
    update = 28 / CHANNELS + 1 / CPU
    assert base.update_s / PARAMS == pytest.approx(update, rel=0.02)
    t = base.phases_s
    cpu = base.totals.busy_ps["update", "host CPU"] / 1e12
    share = found["R1: I/O share of the iteration"].predicted
    assert share + cpu / base.step_s + 0.07 == pytest.approx(1, abs=1e-3)
    compute = t["forward"] + t["backward"]
    assert compute == pytest.approx(0.07 * base.step_s, rel=1e-3)
    assert t["forward"] == pytest.approx(compute / 3, rel=1e-6)


def test_a_stage_is_the_step_less_what_lies_around_it():
    """Host offload: the gradient's pages are programmed before. On the die: weights are read out
    behind. In storage nothing lies outside, and the energy is that of the whole step."""
    cfg, trace = load_preset("optimstore-r1"), model("adam", 1 << 22)
    pages = (1 << 22) * 4 // 8192
    base, isp, die = (stage(path, cfg, trace) for path in ("host_offload", "in_storage", "on_die"))
    assert base.ledger.totals.counters["program_pages"] == 4 * pages
    assert base.totals.counters["program_pages"] == 3 * pages
    assert base.totals.counters["read_pages"] == 4 * pages
    assert die.ledger.totals.counters["reservoir_read_pages"] == pages
    assert die.totals.counters["reservoir_read_pages"] == 0
    assert die.totals.counters["bpp_pages"] == 3 * pages
    assert isp.totals.counters == isp.ledger.totals.counters
    assert isp.totals.bytes_by == isp.ledger.totals.bytes_by
    for s in (base, isp, die):
        ((begin, end),) = (span["step"] for span in s.totals.steps)
        assert (end - begin) / 1e12 == pytest.approx(s.ledger.update_s, rel=1e-9)


def test_cutting_a_plan_changes_no_time():
    """The stage of a step that is run in three parts is that of a step run at once."""
    cfg, trace = load_preset("optimstore-r1"), model("adam", 1 << 22)
    for path in ("host_offload", "in_storage", "on_die", "chip_level"):
        whole = optimstore._run(path, cfg, trace)
        cut = stage(path, cfg, trace).ledger
        assert cut.update_s == whole.update_s, path
        assert cut.totals.counters == whole.totals.counters, path


@pytest.mark.timeout(300)
def test_rows_do_not_depend_on_size(counts):
    """By less than 1.5 %: DeepStore, the speedup and the bytes programmed of 2 B parameters (at
    small counts of three times the sample) against the sample."""
    cfg = load_preset("optimstore-r1")
    ratios = []
    for n in (PARAMS, counts(3 * PARAMS, 2_000_000_000)):
        books = {
            path: optimstore._run(path, cfg, model("adam", n))
            for path in ("host_offload", "chip_level", "on_die")
        }
        base = books["host_offload"].update_s
        t = books["on_die"].totals
        programmed = t.counters["bpp_pages"] * t.page_bytes / n
        speedups = (base / books[path].update_s for path in ("chip_level", "on_die"))
        ratios.append((*speedups, programmed))
    assert ratios[1] == pytest.approx(ratios[0], rel=0.015)
