"""Is a step cut into phases as the clock saw them, and is it said what overlaps with what?"""

import json

import pytest

from ondie.emu.analysis.compare import compare
from ondie.emu.analysis.ledger import ORDER
from ondie.emu.analysis.result_json import metrics, result_data
from ondie.emu.analysis.step_budget import duration
from ondie.emu.cli.console import console
from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.results.tables.compare import show
from ondie.emu.validate import model
from tests.smoke.commands import files, here, refused

N = 3_000_000


@pytest.fixture(scope="module")
def c():
    options = Options(forward_s=0.01, backward_s=0.05)
    return compare(model("adam", N), load_preset("optimstore-r1"), options=options, swing=False)


def test_update_share_and_overlap(c):
    """Share: stage over step. Of all phases, what is not in the step overlaps: gradients are
    written beside backward, weights leave beside the update."""
    ran = {r.name: r for r in c.results if r.ledger}
    assert set(ran) == {"host_offload", "host_offload_pipelined", "in_storage", "on_die"}
    for r in ran.values():
        m = {name: entry["value"] for name, entry in metrics(c, r).items()}
        (spans,) = r.ledger.totals.steps
        whole = sum(b - a for name, (a, b) in spans.items() if name in ORDER)
        assert m["update_share"] == m["update_s"] / m["step_s"]
        assert m["overlapped_s"] == pytest.approx(whole / PS_PER_S - m["step_s"], abs=1e-12)
        assert m["overlapped_s"] == pytest.approx(sum(r.ledger.overlaps().values()), abs=1e-12)
    overlaps = {name: r.ledger.overlaps() for name, r in ran.items()}
    for name in ("host_offload", "host_offload_pipelined"):
        assert set(overlaps[name]) == {("gradients", "backward")}
    assert set(overlaps["in_storage"]) == {("weights_up", "update")}
    assert overlaps["on_die"] == {}
    # The last of 12 blocks of 2^18 parameters, of 3,000,000 - 11 x 2^18, is ready first: after
    # three of 64 segments of backward, since 116,416 / 3,000,000 x 64 is 2.5.
    assert overlaps["host_offload"]["gradients", "backward"] == pytest.approx(
        0.05 * 61 / 64, rel=1e-6
    )


def test_it_is_printed_and_written(c, capsys):
    show(c, console())
    out = " ".join(capsys.readouterr().out.split())
    assert "Update share: update and gradient exchange as a share of the step. Overlap:" in out
    assert (
        "gradients concurrent with backward: host_offload 47.7 ms, host_offload_pipelined 47.7 ms"
        in out
    )
    assert "weights to host concurrent with update: in_storage" in out
    data = result_data(c, 0)
    assert data["options"]["forward_s"] == 0.01 and data["options"]["backward_s"] == 0.05
    (pair,) = next(p for p in data["paths"] if p["name"] == "host_offload")["overlaps_s"]
    assert (pair["phase"], pair["beside"]) == ("gradients", "backward")
    json.dumps(data)


def test_given_times_stand_in_for_the_recorded_ones(capsys, tmp_path):
    """Gradients become ready at the same shares of backward; what is not given stays."""
    out = tmp_path / "out"
    words = ["compare", "mlp-fp16", "--steps", "1", "--paths", "host_offload,on_die", "--no-swing"]
    done = here(capsys, *words, "--quiet", "--backward", "250 ms", "--out", out)
    assert done.code == 0, done.err
    given = json.loads((out / "result.json").read_text())
    assert here(capsys, *words, "--quiet", "--out", out).code == 0
    own = json.loads((out / "result.json").read_text())
    assert given["options"]["backward_s"] == 0.25 and own["options"]["backward_s"] is None
    assert given["trace"]["sha256"] == own["trace"]["sha256"]
    for a, b in zip(given["paths"], own["paths"], strict=True):
        assert a["phases_s"]["backward"] == pytest.approx(0.25, rel=1e-9)
        assert a["phases_s"]["forward"] == b["phases_s"]["forward"]
        assert a["weights"] == b["weights"]
        assert a["metrics"]["update_s"]["value"] == pytest.approx(
            b["metrics"]["update_s"]["value"], rel=1e-3
        )
    none = tmp_path / "none"
    for option, value, words_ in (
        ("--forward", "x", ("--forward", "is not a time")),
        ("--forward", "83.3", ("--forward", '"83.3" has no unit', '"83.3 ms"')),
        ("--backward", "83", ("--backward", '"83" has no unit', '"83 ms"')),
        ("--backward", "3 GB", ("--backward", "is a size, not a time")),
        ("--forward", "2000000 s", ("limit is 1,000,000 s",)),
    ):
        refused(here(capsys, *words, option, value, "--out", none), *words_)
    assert files(tmp_path) == ["out"] or not none.exists()


def test_a_time_of_zero_needs_no_unit():
    assert duration("0", "--forward") == duration("0.0", "--forward") == duration("0 ms", "") == 0


def test_a_trace_with_other_times():
    trace = model("adam", 100)
    assert trace.timed() is trace
    other = trace.timed(forward_s=2.0)
    assert other.steps[0].forward_s == 2.0 and other.steps[0].backward_s == 0
    from ondie import traces

    recorded = traces.load("gpt-small")
    twice = recorded.timed(backward_s=2 * recorded.steps[0].backward_s)
    assert twice.steps[0].ready_s == pytest.approx(2 * recorded.steps[0].ready_s, nan_ok=True)
    assert twice.steps[0].forward_s == recorded.steps[0].forward_s
    with pytest.raises(traces.TraceError, match="forward_s: -1"):
        trace.timed(forward_s=-1)
