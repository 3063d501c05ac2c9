"""Does `ondie validate mqsim` hold every case beside MQSim's numbers, and fail when one is off?"""

import json
import os

import pytest

from ondie.emu import validate
from ondie.emu.replay.mqsim import to_engine as ours
from tests.fidelity.test_mqsim_results import CASES
from tests.smoke.commands import here, refused

NAMES = ("V01", "V20", "V16")


@pytest.fixture
def cases(tmp_path):
    """A folder of some of the cases; a change to MQSim's result of the first one."""

    def make(change=lambda result: None, recorded=True):
        folder = tmp_path / "cases"
        folder.mkdir()
        content = json.loads((CASES / "cases.json").read_text())
        content["cases"] = {name: content["cases"][name] for name in NAMES}
        change(content["cases"]["V01"]["result"])
        (folder / "cases.json").write_text(json.dumps(content))
        for part in ("configs", "traces", *(["requests"] if recorded else [])):
            os.symlink(CASES / part, folder / part)
        return folder

    return make


def run(capsys, folder, *words, name="rows.json"):
    path = folder.parent / name
    done = here(capsys, "validate", "mqsim", "--cases", folder, "--json", path, *words)
    return done, json.loads(path.read_text()) if path.exists() else None


def test_each_case_in_both_ways(capsys, cases):
    done, rows = run(capsys, cases())
    assert (done.code, done.err) == (0, "")
    assert f"{len(rows)} rows, 0 outside" in done.out and "MISS" not in done.out
    for case in NAMES:
        mine = {row["name"]: row for row in rows if row["name"].startswith(case)}
        kind = "identity" if case == "V16" else "check"  # V16's arrivals are in its trace
        for way, allowed in (("recorded", 0.01), ("own", 0.03)):
            rate = mine[f"{case}, {way} addresses: IOPS"]
            assert (rate["kind"], rate["tolerance"], rate["suite"]) == (kind, allowed, "mqsim")
            assert rate["published"] > 1000 and case in rate["source"]
            assert rate["place"] == ("" if kind == "identity" else
                                     f"MQSim's result of case {case}, cases.json")  # fmt: skip
        at = mine[f"{case}, recorded addresses: requests within 1%"]
        assert at["kind"] == "shown" and at["tolerance"] is None and at["predicted"] > 0.5


def test_identities_follow_from_other_rows(capsys, cases):
    """The trace's rate and count are inputs; a depth of one is one over the latency; the mean of
    all is that of reads and writes, whose numbers are in the trace."""
    _, rows = run(capsys, cases(), "--own", "--quiet")
    found = {row["name"].replace(" own addresses:", ""): row for row in rows}
    kinds = {name: row["kind"] for name, row in found.items() if row["kind"] != "shown"}
    assert {name for name, kind in kinds.items() if kind == "check"} == {
        "V01, IOPS", "V01, all: p99", "V20, IOPS", "V20, all: p99", "V16, all: p99",
        "V16, read: mean", "V16, read: p99", "V16, write: mean", "V16, write: p99",
    }  # fmt: skip
    assert set(kinds.values()) == {"check", "identity"}
    for case, only in (("V01", "read"), ("V20", "write")):
        rate, mean = (found[f"{case}, {name}"]["predicted"] for name in ("IOPS", "all: mean"))
        assert rate * mean == pytest.approx(1e6, rel=1e-4)
        for name in ("mean", "p99"):
            alone = found[f"{case}, {only}: {name}"]["predicted"]
            assert alone == found[f"{case}, all: {name}"]["predicted"]
    reads, writes, every = (
        found[f"V16, {kind}: mean"]["predicted"] for kind in ("read", "write", "all")
    )
    share = (writes - every) / (writes - reads)
    assert share == pytest.approx(0.65, abs=0.01)  # 65 % of the trace are reads
    assert found["V16, requests"]["published"] == 50_000


def test_collections_follow_from_the_write_amplification():
    """MQSim's own numbers of V09: the blocks of 64 pages that it collected in the second half, and
    the pages that it wrote then."""
    half = json.loads((CASES / "cases.json").read_text())["cases"]["V09"]["result"]["last_half"]
    assert half["gc_exec"] * 64 == pytest.approx(half["WAF"] * 1_500_000, rel=1e-3)


@pytest.mark.parametrize(("flag", "left"), [("--recorded", "own"), ("--own", "recorded")])
def test_one_way_alone(capsys, cases, flag, left):
    done, rows = run(capsys, cases(), flag, "--quiet")
    assert (done.code, done.out) == (0, "")
    assert rows and not any(f"{left} addresses" in row["name"] for row in rows)


def test_a_drive_that_is_too_slow_misses(capsys, cases, monkeypatch):
    """A tenth more for each array read."""
    monkeypatch.setattr(ours, "TR_MORE", ours.TR_MORE + 5_000_000)
    done, rows = run(capsys, cases(), "--recorded")
    assert done.code == 1
    # 55.714 us of V01 become 60.714: +9.0 %
    (missed,) = [line for line in done.out.splitlines() if "V01" in line and "all: mean" in line]
    assert "MISS" in missed and "+8.97%" in missed
    row = next(r for r in rows if r["name"] == "V01, recorded addresses: all: mean")
    assert (row["published"], row["predicted"]) == pytest.approx((55.714, 60.714), abs=1e-3)


def test_another_result_of_mqsim_misses(capsys, cases):
    folder = cases(lambda result: result.update(iops=result["iops"] * 1.04))
    assert run(capsys, folder, "--own", "--quiet")[0].code == 1
    assert run(capsys, folder, "--recorded", "--quiet", name="b.json")[0].code == 0


def test_cases_without_recorded_requests(capsys, cases):
    folder = cases(recorded=False)
    refused(run(capsys, folder, "--recorded")[0], str(folder), "--own")
    done, rows = run(capsys, folder, "--quiet")
    assert done.code == 0 and all("own addresses" in row["name"] for row in rows)


def test_what_is_refused(capsys, tmp_path, monkeypatch):
    refused(here(capsys, "validate", "mqsim", "--cases", tmp_path), "cases.json", "no such file")
    refused(here(capsys, "validate", "bytes", "--own"), "--own", "mqsim")
    refused(here(capsys, "validate", "--cases", tmp_path), "--cases", "mqsim")
    monkeypatch.setattr(validate.mqsim, "cases_folder", lambda: None)
    refused(here(capsys, "validate", "mqsim"), "--cases DIR")
    refused(here(capsys, "validate", "all"), "nothing was run, because mqsim cannot run")


def test_the_checkout_has_its_cases():
    assert validate.cases_folder() == CASES
