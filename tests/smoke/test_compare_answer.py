"""Does the first screen of a comparison give the figures of the runs, per sample and whole?"""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from ondie import traces
from ondie.emu.analysis import answer as answers
from ondie.emu.analysis.answer import answer
from ondie.emu.analysis.compare import compare
from ondie.emu.analysis.energy import FJ_PER_J, energy, is_price
from ondie.emu.analysis.lifetime import lifetime, programmed_bytes
from ondie.emu.analysis.result_json import headline_words
from ondie.emu.analysis.sensitivity import Swing
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.results.tables import answer as screen
from ondie.emu.results.tables import compare as report
from tests.smoke.commands import BY_SMALL, LITTLE_FLASH, SHORT, SMALL, SWUNG, here, swung_only


@pytest.fixture(scope="module")
def found(counts):
    """A comparison in which the dies update, with swings; at small counts, of few constants of a
    drive with short blocks."""
    few = swung_only(load_preset("optimstore-r1", SHORT), *SWUNG)
    cfg = counts(few, load_preset("optimstore-r1"))
    return compare(traces.load("gpt-small"), cfg, steps=1)


@pytest.fixture(scope="module")
def distributed():
    """A comparison in which host and drives train, with the batch of the trace."""
    return compare(traces.load("gpt-small"), load_preset("newport", SMALL), steps=1, swing=False)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("which", ["found", "distributed"])
def test_a_row_is_the_run_of_the_whole_step(which, request):
    comparison = request.getfixturevalue(which)
    rows = answer(comparison).strategies
    assert [row.name for row in rows] == [result.name for result in comparison.results]
    for row, result in zip(rows, comparison.results, strict=True):
        if result.reason is not None:
            assert row.reason == result.reason
            continue
        book, parts = result.ledger, result.energy.by_component
        samples = comparison.steps * book.samples
        assert row.samples_per_step == comparison.trace.samples_per_step
        spans = [spans["step"] for spans in book.totals.steps]
        whole_s = sum(stop - start for start, stop in spans) / 1e12
        assert row.step_s == pytest.approx(whole_s / comparison.steps)
        assert row.samples_per_s == pytest.approx(samples / whole_s)
        for end in range(3):
            every = sum(span[end] for span in parts.values())
            outside = ("host ", "accelerator waiting")
            hosts = sum(span[end] for name, span in parts.items() if name.startswith(outside))
            assert row.all_j_per_sample[end] == pytest.approx(every / samples)
            assert row.drives_j_per_sample[end] == pytest.approx((every - hosts) / samples)
        written = programmed_bytes(book.totals) / samples
        assert row.written_bytes_per_sample == pytest.approx(written)
        assert row.lifetime_years == lifetime(comparison.cfg, book, result.updates_weights).years
        busy = {
            kind: sum(ps for (_, other), ps in book.totals.busy_ps.items() if other == kind)
            for _, kind in book.totals.busy_ps
        }
        assert busy[row.bound_by] == max(busy.values())
        assert row.bound_by_share == pytest.approx(busy[row.bound_by] / 1e12 / whole_s)


def test_the_winners_have_the_least_of_all(found):
    verdicts = answer(found)
    rows = {row.name: row for row in verdicts.strategies if row.reason is None}
    for verdict, figure in (
        (verdicts.fastest, lambda row: row.step_s / row.samples_per_step),
        (verdicts.least_energy, lambda row: row.all_j_per_sample[1]),
    ):
        values = {name: figure(row) for name, row in rows.items()}
        assert values[verdict.best] == verdict.value == min(values.values())
        assert {verdict.best, *verdict.equal, *verdict.others} == set(values)
        assert list(verdict.others.values()) == sorted(verdict.others.values())
        for name, ratio in verdict.others.items():
            assert ratio == pytest.approx(values[name] / verdict.value)
            assert ratio > 1 + answers.TIE
        assert all(values[name] <= verdict.value * (1 + answers.TIE) for name in verdict.equal)


def slower(swing: Swing, path: str, factor: float) -> Swing:
    return dataclasses.replace(swing, times_at_high={path: factor})


def test_a_constant_that_turns_the_result_is_an_exception(found):
    """A winner whose update is slower at one end than the other's loses there, and it is said."""
    best = answer(found).fastest.best
    assert best == "on_die"
    still = [
        dataclasses.replace(swing, times_at_low={}, times_at_high={}) for swing in found.time_swings
    ]
    found = dataclasses.replace(found, swings=tuple(still), published_swings=())
    sure = answer(found).fastest.certainty
    assert (sure.other, sure.constants, sure.exceptions) == ("host_offload", len(still), ())
    turned = (slower(still[0], "on_die", 1e3), *still[1:])
    changed = dataclasses.replace(found, swings=turned)
    sure = answer(changed).fastest.certainty
    assert sure.exceptions == (still[0].key,) and sure.decided_by == still[0].key
    assert sure.ratio[1] < 1 < sure.ratio[0]
    text = printed(changed)
    assert (
        f"Not certain against host_offload: it loses at an end of the range of {still[0].key}"
        in (" ".join(text.split()))
    )


def test_an_end_at_which_a_path_cannot_run_is_no_win(found):
    first, *others = found.time_swings
    failing = dataclasses.replace(first, speedup_at_low=None, times_at_low={}, times_at_high={})
    found = dataclasses.replace(found, published_swings=(), swings=(failing, *others))
    sure = answer(found).fastest.certainty
    assert sure.constants == len(others) > 1
    assert f"at both ends of each of {len(others)} ranges" in " ".join(printed(found).split())
    two = dataclasses.replace(found, swings=(failing, others[0]))
    assert "at both ends of the range; " in " ".join(printed(two).split())
    alone = dataclasses.replace(found, swings=(failing,))
    assert answer(alone).fastest.certainty is None
    assert (
        "Times are exact for these constants: host_offload or on_die cannot run at an end of each "
        "range." in " ".join(printed(alone).split())
    )


def test_constants_of_energy_are_no_ranges_of_time(found):
    prices = tuple(swing for swing in found.swings if is_price(swing.key))
    only = dataclasses.replace(found, swings=prices, published_swings=())
    assert prices and answer(only).fastest.certainty is None
    assert "exact for these constants, which were not varied." in " ".join(printed(only).split())


def with_near(comparison):
    """The comparison with a strategy "near", a little better than the next best: the best with more
    bits in the page registers."""
    verdict, best = answer(comparison).least_energy, comparison.result("on_die")
    next_best = comparison.result(next(iter(verdict.others)))
    more = (next_best.energy.all[1] - best.energy.all[1]) * 0.97
    bits = round(more * FJ_PER_J / comparison.cfg.leaf("energy.register").value)
    work = dataclasses.replace(best.work, register_bits=best.work.register_bits + bits)
    joules = energy(comparison.cfg, best.ledger.totals, work)
    near = dataclasses.replace(best, name="near", work=work, energy=joules)
    return dataclasses.replace(comparison, results=(*comparison.results, near))


@pytest.mark.parametrize("next_best", ["near", "host_offload"])
def test_the_basis_of_what_decides_is_told(found, next_best):
    """The energy constants decide against the next best, and all constants against the headline's
    other strategy, also if the two are one."""
    if next_best == "near":
        found = with_near(found)
    sure = answer(found).least_energy.certainty
    assert sure.other == next_best and is_price(sure.decided_by)
    drawn, typical = sure.with_times, found.odds.answers["mixed"]["step"].typical
    assert drawn.other == "host_offload" and drawn.constants == found.odds.drawn > sure.constants

    def change(bar):
        ends = [typical if end is None else end for end in bar.step]
        return max(ends) / min(ends)

    widest = max(found.odds.bars, key=change)
    assert (drawn.decided_by, drawn.ratio) == (widest.key, widest.step)
    low, high = sorted(sure.ratio)
    text = " ".join(printed(found).split())
    assert (
        f"of {screen.DRAWS:,} draws of {sure.constants} energy constants, and less than "
        f"host_offload in 100% if constants that affect time are also drawn ({drawn.constants} in "
        f"total; {drawn.decided_by} matters most); of the energy constants, "
        f"{sure.decided_by} matters most: over its range {next_best} uses {low:.2f} "
        f"to {high:.2f} times as much." in text
    )


def test_a_rival_that_wins_or_loses_has_the_inverse_ratio(found):
    """The draws are of the baseline over the rival; the ratio is of the other over the best."""
    turned = dataclasses.replace(found.odds, pair=found.odds.pair[::-1])
    usual, inverse = (
        answer(dataclasses.replace(found, odds=odds)).least_energy.certainty.with_times
        for odds in (found.odds, turned)
    )
    assert inverse.ratio == pytest.approx([1 / end for end in usual.ratio])
    assert inverse.probability == pytest.approx(1 - usual.probability)


def test_an_end_without_a_run_has_no_ratio_of_energy(found):
    first, *bars = found.odds.bars
    broken = dataclasses.replace(first, step=(None, 50.0))
    odds = dataclasses.replace(found.odds, bars=(broken, *bars))
    drawn = answer(dataclasses.replace(found, odds=odds)).least_energy.certainty.with_times
    assert (drawn.decided_by, drawn.ratio) == (first.key, (None, 50.0))


def test_strategies_that_are_equal_are_excluded_in_words(found):
    """A second name of the best run takes as much in every draw."""
    best = answer(found).least_energy.best
    twin = dataclasses.replace(found.result(best), name="twin")
    text = " ".join(printed(dataclasses.replace(found, results=(*found.results, twin))).split())
    assert "It uses less than every strategy that is more than 0.5% worse in 100% of" in text


def test_the_energy_of_the_whole_step_decides_with_its_probability(found):
    sure = answer(found).least_energy.certainty
    odds = found.odds.answers["mixed"]
    assert sure.probability == odds["step"].probability == odds["drive_and_host"].probability
    # Forward and backward take as much on both paths, so the ratio of the step is nearer to 1.
    assert 1 < odds["step"].typical < odds["drive_and_host"].typical
    base, rival = (found.result(name).energy.all[1] for name in found.swing_pair)
    assert odds["step"].typical == pytest.approx(base / rival)


def printed(comparison) -> str:
    console = Console(file=io.StringIO(), width=132)
    screen.show(comparison, answer(comparison), console)
    return console.file.getvalue()


@pytest.mark.parametrize("which", ["found", "distributed"])
def test_the_screen_has_80_columns_and_cuts_nothing(which, request):
    comparison = request.getfixturevalue(which)
    text = printed(comparison)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for row in answer(comparison).strategies:
        assert screen.fold(row.name).splitlines()[0] in text
        if row.reason is None:
            for span in (row.drives_j_per_sample, row.all_j_per_sample):
                assert span[0] <= span[1] <= span[2]
            assert f"{row.samples_per_s:.4g}" in text
        else:
            assert f"{row.name}: n/a: {row.reason}" in " ".join(text.split())


def test_less_is_a_reduction_and_faster_a_ratio_of_speeds():
    """9.02 J against 10.5 J is 1.48 / 10.5 = 14.1 % less; 1 s against 2.55 s is 2.55x as fast, and
    1 J of 2.55 J is 60.8 % less."""
    assert screen.reduction(10.5 / 9.02) == "14.1%"
    assert screen.reduction(2.55) == "60.8%" and screen.speedup(2.55) == "2.55x"
    assert screen.reduction(1.01) == "1.0%" and screen.speedup(1.035) == "3.5%"
    assert screen.reduction(1e4) == "99.99%" and screen.reduction(float("inf")) == "100.0%"


def test_the_screen_says_how_much_less_the_winner_takes(found):
    verdict, text = answer(found).least_energy, " ".join(printed(found).split())
    values = {
        row.name: row.all_j_per_sample[1] for row in answer(found).strategies if not row.reason
    }
    for name in verdict.others:
        less = 1 - values[verdict.best] / values[name]
        assert f"{less:.1%} less than {name}" in text


def test_a_sub_group_of_everything_names_its_key(found):
    assert "(host.subgroup_params), so nothing is pipelined." in " ".join(printed(found).split())


def on_tlc(*settings):
    """A comparison on a drive of TLC; only its dies read without ECC."""
    cfg = load_preset("optimstore-r1", [*SHORT, "flash.cell=TLC", *settings])
    names = ["host_offload", "in_storage", "on_die"]
    return compare(traces.load("gpt-small"), cfg, paths=names, steps=1, swing=False)


def test_dies_that_read_tlc_without_ecc_are_named(found):
    bare = "are read without ECC (pe.protection = nan_comparator)"
    text = " ".join(printed(on_tlc()).split())
    assert (
        f"on_die: pages of TLC {bare}; --set errors.kind=model counts bit errors; see "
        "docs/errors.md" in text
    )
    assert "(wrong bits)" not in text and "wrong" not in headline_words(found)
    assert "The result" not in text
    for other in (found, on_tlc("pe.protection=on_die_ecc")):
        assert "without ECC" not in printed(other)


def test_a_winner_with_wrong_bits_is_called_wrong():
    """Only the dies read past the ECC, so the best without wrong bits is another strategy."""
    comparison = on_tlc("errors.kind=model")
    wrong = comparison.result("on_die").ledger.totals.counters["bare_wrong_bits"]
    found, text = answer(comparison), printed(comparison)
    used = {row.name: row.wrong_bits_per_step for row in found.strategies if row.wrong}
    assert wrong > 0 and used == {"on_die": wrong}
    assert found.fastest.best == found.least_energy.best == "on_die"
    assert "(wrong bits)" in text
    text = " ".join(text.split())
    rows = [row for row in found.strategies if row.name != "on_die"]
    for figure in (lambda row: row.s_per_sample, lambda row: row.all_j_per_sample[1]):
        best = min(rows, key=figure).name
        verdict = found.fastest if figure(rows[0]) == rows[0].s_per_sample else found.least_energy
        assert verdict.best_right == best
        rest = f"{best} is best of those that used no data with bit errors."
        assert f"The result of on_die is wrong; {rest}" in text
    assert f"; the result of on_die is wrong, with {wrong:,} wrong" in headline_words(comparison)
    for words in ("Time: {} is fastest", "Energy: {} uses the least"):
        assert words.format(f"on_die, with {wrong:,} wrong bits per step,") in text
    assert (
        "Weights read back from flash" in text
        and "the reference: host_offload, in_storage. " in text
    )
    assert f"on_die: {wrong} wrong bits in pages that were read without ECC" in text


def test_the_mean_power_of_the_drives_is_their_energy_over_the_step(found):
    console = Console(file=io.StringIO(), width=132)
    report.show(found, console)
    text = " ".join(console.file.getvalue().split())
    for row in answer(found).strategies:
        if row.reason is None:
            watts = row.drives_j_per_sample[1] * row.samples_per_step / row.step_s
            assert found.result(row.name).drives_w(found.steps)[1] == pytest.approx(watts)
            assert f"{row.name} {watts:.3g} W" in text.partition("whole step: ")[2]


def test_blocks_that_wear_out_before_the_drive_are_named(found):
    """The reservoir is half of the drive. By the steps that it lasts alone, with leveling."""
    (row,) = (row for row in answer(found).strategies if row.name == "on_die")
    result = found.result("on_die")
    steps, _ = lifetime(found.cfg, result.ledger, share=result.share).reservoir_steps
    years = steps * row.step_s / (8760 * 3600)
    assert row.own_blocks_years == pytest.approx(years) and years < row.lifetime_years[1]
    text = " ".join(printed(found).split())
    assert (
        f"The blocks that only on_die uses last {screen.three(years)} years; the lifetime" in text
    )
    assert text.count("The blocks that only ") == 1


def test_other_batches_are_compared_per_sample():
    trace, cfg = (
        traces.load("mobilenetv2"),
        load_preset("newport", [*LITTLE_FLASH, "system.devices=6"]),
    )
    comparison = compare(trace, cfg, options=Options(batch="paper"), swing=False)
    found = answer(comparison)
    assert not found.equal_batches
    rows = {row.name: row for row in found.strategies if row.reason is None}
    batch = rows["stannis"].samples_per_step
    assert batch != rows["host_offload"].samples_per_step == trace.samples_per_step
    assert found.fastest.value == min(row.step_s / row.samples_per_step for row in rows.values())
    assert f"stannis {batch}" in " ".join(printed(comparison).split())


def test_the_default_is_one_screen_and_verbose_has_the_tables(capsys, tmp_path):
    words = ["compare", "mlp-fp16", "--steps", "1", "--no-swing", *BY_SMALL]
    short = here(capsys, *words, "--out", tmp_path / "a").out
    long = here(capsys, *words, "--verbose", "--out", tmp_path / "b").out
    assert len(short.splitlines()) <= 40 and "Time per step by phase" not in short
    assert "Time per step by phase" in long and "Lifetime and capacity" in long
    data = json.loads((tmp_path / "a/result.json").read_text())
    assert data == json.loads((tmp_path / "b/result.json").read_text())
    fastest = data["answer"]["fastest"]["best"]
    assert f"Time: {fastest} is fastest" in short
    by_name = {row["name"]: row for row in data["answer"]["strategies"]}
    for path in data["paths"]:
        if path["status"] == "ok":
            row = by_name[path["name"]]
            for end, joules in zip(
                ("low", "typical", "high"), row["all_j_per_sample"], strict=True
            ):
                assert joules == path["metrics"][f"energy_all_{end}_j_per_sample"]["value"]
