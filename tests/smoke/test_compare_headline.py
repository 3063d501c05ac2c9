"""Do the numbers of a comparison agree with each other, and the tables with result.json?"""

import dataclasses
import json
import re

import pytest

from ondie import traces
from ondie.emu.analysis.compare import Comparison, compare
from ondie.emu.analysis.path_choice import headline_pair
from ondie.emu.analysis.result_json import headline_words, result_data
from ondie.emu.config.config import load_preset, preset_names
from ondie.emu.units import KINDS, InputError, fmt_bytes, fmt_time, parse
from tests.smoke.commands import here, small_for

PHASES = ("samples", "forward", "backward", "gradients", "synchronise", "update", "weights_up")
RUNS = {
    "mlp-fp16 on optimstore-r1": ("mlp-fp16", "optimstore-r1", ()),
    "gpt2-124m on optimstore-r1": ("gpt2-124m", "optimstore-r1", ()),
    "gpt2-124m on two of newport": ("gpt2-124m", "newport", ("system.devices=2",)),
}


@pytest.fixture(scope="module", params=RUNS)
def c(request, counts) -> Comparison:
    """At small counts, a model without payload has one step."""
    name, device, overrides = RUNS[request.param]
    trace = traces.load(name)
    steps = 2 if trace.payload == "recorded" else counts(1, 2)
    return compare(trace, load_preset(device, overrides), steps=steps, swing=False)


@pytest.fixture
def data(c) -> dict:
    return json.loads(json.dumps(result_data(c, 0)))


def ran(data: dict) -> list[dict]:
    return [p for p in data["paths"] if p["status"] == "ok"]


def value(path: dict, name: str) -> float:
    return path["metrics"][name]["value"]


def test_rates_are_what_they_say(c, data):
    for p in ran(data):
        assert value(p, "samples_per_s") * value(p, "step_s") == pytest.approx(
            value(p, "samples_per_step")
        )
        assert value(p, "samples_per_step") == c.trace.samples_per_step
        assert value(p, "update_params_per_s") * value(p, "update_s") == pytest.approx(
            c.trace.n_params
        )
        link = value(p, "link_down_bytes") + value(p, "link_up_bytes")
        assert value(p, "link_bytes") == pytest.approx(link)


def test_phases_make_up_the_step(data):
    """Each phase counts for the time that no earlier one hides: together they are the step."""
    for p in ran(data):
        spent = p["phases_s"]
        assert set(spent) <= {*PHASES, "step"}
        assert sum(spent[x] for x in PHASES if x in spent) == pytest.approx(spent["step"], rel=1e-9)
        assert value(p, "step_s") == spent["step"]
        stage = spent.get("synchronise", 0) + spent["update"]
        assert value(p, "update_s") == pytest.approx(stage, rel=1e-12)


def test_the_recorded_times_of_training_are_kept(c, data):
    """Forward and backward are the trace's, the same on every path that leaves them to the host."""
    steps = c.trace.steps[: c.steps]
    for p in ran(data):
        if p["name"] != "stannis":
            for phase in ("forward", "backward"):
                mean = sum(getattr(s, f"{phase}_s") for s in steps) / c.steps
                assert p["phases_s"][phase] == pytest.approx(mean, rel=1e-9)


def test_the_headline_is_the_ratio_of_the_update_stages(c, data):
    base, rival = (
        next(p for p in ran(data) if p["name"] == name) for name in data["assumed"]["headline"]
    )
    assert base["name"] == "host_offload"
    words = data["headline"]
    assert words.startswith(f"{rival['name']} compared with host_offload: speedup of")
    found = [float(x) for x in re.findall(r"(\d+\.\d\d)(?=x| outside| in the)", words)]
    ratios = {
        name: value(base, name) / value(rival, name)
        for name in (
            "update_s", "step_s", "energy_drive_and_host_typical_j", "energy_all_typical_j",
        )
    }  # fmt: skip
    outside = [
        value(p, "step_s") - p["phases_s"]["forward"] - p["phases_s"]["backward"]
        for p in (base, rival)
    ]
    numbers = data["headline_ratios"]
    assert numbers == {
        "update_stage": pytest.approx(ratios["update_s"], rel=1e-12),
        "outside_training": pytest.approx(outside[0] / outside[1], rel=1e-9),
        "step": pytest.approx(ratios["step_s"], rel=1e-12),
        "energy_outside_training": pytest.approx(
            ratios["energy_drive_and_host_typical_j"], rel=1e-12
        ),
        "energy": pytest.approx(ratios["energy_all_typical_j"], rel=1e-12),
    }
    order = ("update_stage", "outside_training", "step", "energy_outside_training", "energy")
    assert found == [pytest.approx(numbers[name], abs=0.005) for name in order]
    assert f"{len(c.cfg.assumed())} of {len(c.cfg.leaves())} constants are assumed" in words


def test_who_is_compared():
    everyone = ["host_offload", "host_offload_pipelined", "in_storage", "on_die", "stannis"]
    assert headline_pair(everyone) == ("host_offload", "on_die")
    assert headline_pair(everyone[:3]) == ("host_offload", "in_storage")
    assert headline_pair(["host_offload_pipelined", "host_offload"]) == (
        "host_offload", "host_offload_pipelined",
    )  # fmt: skip
    assert headline_pair(["host_offload", "stannis"]) is None
    assert headline_pair(everyone[1:]) is None


def test_operations_agree_with_bytes(c, data):
    """Pages of flash operations x page size are the bytes that the metrics name."""
    page = c.cfg.flash.page_bytes
    for p in ran(data):
        n = p["counters"]
        written = n["program_pages"] + n["gc_program_pages"] + n["bpp_pages"]
        assert value(p, "flash_written_bytes") * c.steps == written * page
        sensed = n["read_pages"] + n["gc_read_pages"] + n["bpr_pages"] + n["reservoir_read_pages"]
        assert value(p, "page_operations") * c.steps == written + sensed
        arrays = n["array_reads"] + n["array_programs"] + n["array_erases"]
        assert value(p, "array_operations") * c.steps == arrays
        assert n["array_reads"] * c.cfg.flash.planes_per_die >= sensed
        assert n["array_programs"] * c.cfg.flash.planes_per_die >= written
        if written:
            asked = n["host_write_bytes"] + n["isp_write_bytes"] + n["bpp_pages"] * page
            assert value(p, "waf") == written * page / asked >= 1


def test_what_binds_is_what_works_most(data):
    for p in ran(data):
        shares = p["utilisation_of_update"]
        assert all(0 < x <= 1 for x in shares.values())
        if p["name"] != "stannis":  # whose exchange may be the longer part
            name = value(p, "bound_by")
            assert shares[name] == max(shares.values()) == value(p, "bound_by_share")
        assert value(p, "latency_bound") == (value(p, "bound_by_share") < 0.5)


@pytest.mark.one_in(5)
def test_paths_of_one_run_do_not_know_of_each_other(c):
    """A path alone takes what it takes among the others."""
    for r in c.results:
        if r.reason is None:
            (alone,) = compare(c.trace, c.cfg, paths=[r.name], steps=c.steps, swing=False).results
            assert alone.ledger == r.ledger and alone.energy == r.energy


def test_paths_come_in_the_order_asked_for():
    trace, cfg = traces.load("mlp-fp16"), load_preset("newport")
    names = ["in_storage", "host_offload"]
    c = compare(trace, cfg, paths=names, steps=1, swing=False)
    assert [r.name for r in c.results] == names
    with pytest.raises(InputError, match="^--paths: 'in_storage' is named twice; name it once$"):
        compare(trace, cfg, paths=[*names, "in_storage"], steps=1, swing=False)


def test_a_run_of_skipped_steps_alone_has_no_headline():
    """A loss-scaled run may begin with an overflow: nothing is updated, and nothing divided."""
    trace = traces.load("mlp-fp16")
    (skipped,) = [s for s in trace.steps if s.skipped][:1]
    skipped = dataclasses.replace(skipped, index=0)
    initial = trace.weights("initial")
    same = traces.Memory(weight_vectors={"initial": initial, "final": initial})
    trace = dataclasses.replace(trace, steps=(skipped,), digest=None, source=same)
    c = compare(trace, load_preset("optimstore-r1"), paths=["host_offload", "on_die"])
    assert c.swing_pair is None and not c.swings
    assert all(r.ledger.update_s == 0 for r in c.results)
    assert all(r.weights.equal_bits == len(initial) for r in c.results)


def test_the_table_is_the_result(capsys, tmp_path):
    words = ["compare", "gpt2-124m", "--steps", "1", "--no-swing", "--verbose", "--out", tmp_path]
    out = here(capsys, *words).out
    result = json.loads((tmp_path / "result.json").read_text())
    base = next(p for p in ran(result) if p["name"] == "host_offload")
    rows = [[cell.strip() for cell in line.strip("│").split("│")]
            for line in out.splitlines() if line.startswith("│ ")]  # fmt: skip
    for p in ran(result):
        first, phases, traffic, worn, arithmetic = (row for row in rows if row[0] == p["name"])
        update_s = value(p, "update_s")
        assert first[1] == fmt_time(value(p, "step_s") * 1e12)
        assert first[3] == fmt_time(update_s * 1e12)
        assert first[5] == f"{value(base, 'update_s') / update_s:.2f}x"
        assert phases[-3] == first[1]
        assert phases[-2] == f"{update_s / value(p, 'step_s'):.1%}"
        hidden = value(p, "overlapped_s")
        assert phases[-1] == (fmt_time(hidden * 1e12) if hidden else "-")
        assert traffic[5] == f"{value(p, 'page_operations'):,.0f}"
        assert worn[1] == traffic[3] == fmt_bytes(value(p, "flash_written_bytes"))
        assert worn[3] == f"{value(p, 'lifetime_years_typical'):.3g}"
        assert worn[5] == fmt_bytes(value(p, "state_bytes"))
        assert worn[7] == fmt_bytes(3 * value(p, "state_bytes"))
        assert arithmetic[1] == first[3]
        assert arithmetic[2] == fmt_time(p["arithmetic"]["seconds"] * 1e12)
        gap = update_s / p["arithmetic"]["seconds"] - 1
        assert arithmetic[3] == f"{gap:+.1%}"
        assert arithmetic[4] == p["arithmetic"]["bottleneck"]
        assert parse(first[3], KINDS["ps"], "") == pytest.approx(update_s * 1e12, rel=0.005)
    assert result["headline"] in " ".join(out.split())
    assert out.rstrip().endswith("figure.pdf")


@pytest.mark.one_in(5, start=2)
@pytest.mark.parametrize("device", preset_names())
def test_every_device_has_something_to_compare(device):
    cfg = load_preset(device, small_for(device))
    c = compare(traces.load("gpt-small"), cfg, steps=1, swing=False)
    assert c.swing_pair is not None
    assert all(r.reason for r in c.results if r.ledger is None)
    text = headline_words(c)
    assert text.endswith(" constants are assumed.") and "\n" not in text
