"""Does `ondie validate smart-infinity` give the fit row, the shapes and any other run?"""

import json

import pytest

from ondie.emu import validate
from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.row import CHECK, FIT, IDENTITY, SHOWN
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.paths.offload.options import Offload
from ondie.emu.validate import smart_infinity as suite
from tests.smoke.commands import files, here, refused

VARIANTS = ("base", "SU", "SU+O", "SU+O+C")


def run(capsys, folder, *words):
    """Rows by name of a run that is well, and what was printed."""
    path = folder / "rows.json"
    done = here(capsys, "validate", "smart-infinity", *words, "--json", path)
    assert (done.code, done.err) == (0, "")

    def constant(text):
        raise AssertionError(f"{text} is no JSON")

    rows = json.loads(path.read_text(), parse_constant=constant)
    assert all(row["suite"] == "smart-infinity" for row in rows)
    return {row["name"]: row for row in rows}, done.out


@pytest.mark.soak
def test_the_fit_row(capsys, tmp_path):
    rows, printed = run(capsys, tmp_path, "--model", "4.0b")
    assert "MISS" not in printed and len(rows) == 4 * 4 + 3
    fits = {name for name, row in rows.items() if row["kind"] == FIT}
    phases = {f"{variant}: {phase}" for variant in VARIANTS for phase in ("FW", "BW", "UPD")}
    assert {name.partition(",")[0] for name in fits} == phases
    assert all((row["kind"] == FIT) == bool(row["constants"]) for row in rows.values())
    assert {row["kind"] for name, row in rows.items() if name not in fits} == {IDENTITY}
    # Smart-Infinity (HPCA 2024): forward, backward, update, s
    published = {
        "base": (0.62, 5.59, 17.55), "SU": (0.67, 5.33, 13.04), "SU+O": (0.67, 5.43, 12.27),
        "SU+O+C": (0.67, 4.14, 10.77),
    }  # fmt: skip
    found = {}
    for variant, seconds in published.items():
        tail = "4.0 B, 6 drives, adam" + (", 2 %" if variant == "SU+O+C" else "")
        for phase, expected in zip(("FW", "BW", "UPD"), seconds, strict=True):
            row = rows[f"{variant}: {phase}, {tail}"]
            assert row["published"] == expected
            assert row["predicted"] == pytest.approx(expected, rel=0.08), row["name"]
            found[variant, phase] = row["predicted"]
        total = rows[f"{variant}: total, {tail}"]
        assert total["published"] == pytest.approx(sum(seconds))
        assert total["predicted"] == pytest.approx(
            sum(found[variant, p] for p in ("FW", "BW", "UPD"))
        )
        assert total["predicted"] == pytest.approx(sum(seconds), rel=0.05)
    # one after the other, 667 M parameters per drive: 10.67 GB / 2.78 + 18.67 GB / 8.2 + 8 GB /
    # 1.63, and 16 GB / 8 of weights = 3.84 + 2.28 + 4.91 + 2.0; peer to peer
    assert found["SU", "UPD"] == pytest.approx(13.03, rel=0.015)
    # its m and v, 5.33 GB / 1.63 = 3.27 s, next to a load of 3.84 s, on shared channels and dies
    assert found["SU", "UPD"] - 3.27 < found["SU+O", "UPD"] < found["SU", "UPD"] - 1.0
    # and the gradient's 10.67 / 4 GB not loaded, and 4 of 28 B/param not through the engine's DRAM
    gain = found["SU+O", "UPD"] - found["SU+O+C", "UPD"]
    assert gain == pytest.approx(0.94 + 0.33, rel=0.25)


def test_the_shapes(counts):
    """A twentieth of the parameters suffices, or a half: shapes are of rates."""
    params = counts(200_000_000, 2_000_000_000)
    rows = {r.name: r for r in suite.shape_rows(None, params)}
    checks = [r.name for r in rows.values() if r.kind == CHECK]
    assert checks == ["SU+O: slower than base with one drive each (1 = yes)"]
    assert sum(r.kind == IDENTITY for r in rows.values()) == 3 + 1
    assert not any(r.misses for r in rows.values()), [r for r in rows.values() if r.misses]
    link = [r.predicted for name, r in rows.items() if "bytes on the shared link" in name]
    assert link == pytest.approx([32, 8, 4.08], rel=0.005)
    totals = [r.predicted for name, r in rows.items() if name.startswith("base: total")]
    assert len(totals) == 10
    slow = next(
        r for name, r in rows.items() if name.startswith("SU+O: speedup") and "1 drive," in name
    )
    assert slow.kind == SHOWN and slow.published is None and 0.5 < slow.predicted < 1
    # captions say what was asked, not what the paper ran
    for row in rows.values():
        assert ("6 SmartSSDs" in row.source) == ("6 drives" in row.name), row
    assert all(f"{params / 1e9:g} G parameters" in r.source for r in rows.values())


@pytest.mark.parametrize(
    "drives", [4, pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.soak)]
)
def test_the_baseline_on_fewer_drives(drives):
    """Published: speed over one drive; one drive takes 23.76 s x 2.255 = 53.6 s."""
    fit = suite.Case()
    found = suite.simulate("base", suite.Case(drives=drives))
    rows = {r.name: r for r in suite.base_rows({drives: found.total}, fit)}
    (row,) = rows.values()
    kind = CHECK if drives < 4 else IDENTITY  # the shared link takes the time of the fit
    assert row.kind == kind and row.tolerance == 0.1 and not row.misses, row
    assert row.place == "Smart-Infinity (HPCA 2024), Fig. 3(b)"
    assert row.published == pytest.approx(23.76 * 2.255 / suite.BASE_SPEED[drives])
    if kind == CHECK:
        assert "64 GB / 3.3 GB/s + 48 GB / 2 GB/s" in row.source and "55.9 s" in row.source
    # at the FPGA's rates the same run misses: the rates of the host path decide
    if drives == 1:
        cfg = load_preset("smartssd", ("flash.bus=347.5 MT/s", "flash.t_program=1192 us"))
        slow = run_path(
            "smart_base", cfg, suite.trace_of(fit), Options(offload=Offload(buffers=40)),
            steps=1, payload=False,
        )  # fmt: skip
        assert slow.ledger.step_s > 1.1 * row.published


def test_the_speeds_as_printed_are_beside_the_seconds():
    """Over one drive: 1.546 is printed with two, and the seconds' errors add up in it."""
    rows = {r.name: r for r in suite.base_rows({1: 56.0, 2: 32.0, 4: 24.0}, suite.Case())}
    two = rows["base: speed relative to one drive, 4.0 B, 2 drives, adam"]
    assert (two.kind, two.published, two.predicted) == (SHOWN, 1.546, 1.75)
    assert (
        "outside a tolerance of 10%" in two.source
        and "48 GB / 4 GB/s + CPU 3.4 s = 25.1 s" in two.source
    )
    four = rows["base: speed relative to one drive, 4.0 B, 4 drives, adam"]
    assert four.kind == SHOWN and "outside" not in four.source
    assert "base: speed relative to one drive, 4.0 B, 1 drive, adam" not in rows


def test_the_arithmetic_of_two_drives():
    """What the text of the speed with two drives says, from the preset and the printed phases."""
    cfg = load_preset("smartssd")
    read, write = cfg.flash.channels * cfg.flash.bus_bytes_per_s, suite.write_rate(cfg)
    cpu = 4e9 / cfg.host.adam_params_per_s
    assert (2 * read / 1e9, 2 * write / 1e9) == pytest.approx((6.6, 4), rel=0.01)
    assert 64e9 / (2 * read) + 48e9 / (2 * write) + cpu == pytest.approx(25.1, abs=0.1)
    one = sum(suite.PUBLISHED["base"]) * suite.BASE_SPEED[6]
    phases = sum(suite.PUBLISHED["base"][:2])
    updates = [one / suite.BASE_SPEED[n] - phases for n in (1, 2)]
    assert updates == pytest.approx([47, 28.5], rel=0.01)
    first, second = (s - cpu for s in updates)
    assert first / second == pytest.approx(1.74, rel=0.01)


def test_the_knee():
    assert suite.knee({1: 100.0, 2: 50.0, 3: 34.0, 4: 26.0, 5: 24.0, 6: 20.0}) == 4
    assert suite.knee({1: 100.0, 2: 50.0, 3: 34.0}) == 3


def test_another_run(capsys, tmp_path):
    words = ("--model", "0.4B", "--drives", "2", "--optimizer", "momentum", "--compression", "10")
    rows, printed = run(capsys, tmp_path, *words)
    assert len(rows) == 4 * 4 + 3 and "MISS" not in printed
    for row in rows.values():
        assert (row["kind"], row["published"], row["tolerance"]) == (SHOWN, None, None)
        assert row["predicted"] > 0
    for variant in VARIANTS:
        tail = "0.4 B, 2 drives, momentum" + (", 10 %" if variant == "SU+O+C" else "")
        assert {f"{variant}: {p}, {tail}" for p in ("FW", "BW", "UPD", "total")} <= set(rows)
    base = rows["base: total, 0.4 B, 2 drives, momentum"]["predicted"]
    fast = rows["SU+O+C: total, 0.4 B, 2 drives, momentum, 10 %"]["predicted"]
    speedup = rows["SU+O+C: speedup over base, 0.4 B, 2 drives, momentum, 10 %"]
    assert speedup["predicted"] == pytest.approx(base / fast) and speedup["unit"] == "x"
    # read w m g 4.8 GB / 6.6 + write w m 3.2 GB / 4 + 0.4 G x 20 B / (28 B x 1.16 G/s) of CPU
    update = rows["base: UPD, 0.4 B, 2 drives, momentum"]["predicted"]
    assert update == pytest.approx(0.727 + 0.8 + 0.246, rel=0.04)
    # the captions say what was asked
    sources = {row["source"] for row in rows.values()}
    assert sources == {
        "predicted: 0.4 G parameters on 2 SmartSSDs, momentum, compression 10 %; constants fitted "
        "to Smart-Infinity (HPCA 2024), 4 G parameters on 6 SmartSSDs, adam, compression 2 %"
    }


@pytest.mark.parametrize("without", ["none", "0"])
def test_without_compression(capsys, tmp_path, without):
    words = ("--model", "0.02b", "--optimizer", "adagrad", "--compression", without)
    rows, _ = run(capsys, tmp_path, *words)
    assert len(rows) == 3 * 4 + 2 and not any("SU+O+C" in name for name in rows)


def test_more_compression_moves_more_bytes():
    for share in (1.0, 10.0):
        times = suite.simulate("SU+O+C", suite.Case(400_000_000, 4, "adagrad", share))
        # w up, and the gradient's share of 4 B, in whole super-pages of 32 KiB per block of 1 MiB
        assert times.link == pytest.approx(4 + 4 * share / 100, rel=0.005)


@pytest.mark.soak
def test_a_large_model_is_so_many_sub_groups(counts):
    """Time is a line over the number of sub-groups: so 33 B is what 4 B is, 8.25 times."""
    params = counts(1_000_000_000, 2_000_000_000)
    one, two, four = (
        suite.simulate("SU+O", suite.Case(n * params, 6)) for n in counts((1, 2, 3), (1, 2, 4))
    )
    n = counts(2, 3)
    assert four.total - one.total == pytest.approx(n * (two.total - one.total), rel=0.03)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_update_takes_what_its_stages_take(variant, counts):
    """One after the other: the sum of the stages, each at its bottleneck. With the handler reads
    wait for programs on their die, which the sum does not know: up to a tenth more."""
    case = suite.Case(counts(500_000_000, 4_000_000_000), 2)
    cfg = load_preset("smartssd", ("system.devices=2",))
    found = run_path(
        suite.PATHS[variant], cfg, suite.trace_of(case), Options(), steps=1, payload=False
    )
    more = found.ledger.update_s / found.bound.seconds - 1
    assert -0.01 < more < (0.02 if variant in ("base", "SU") else 0.1)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--model", "large"), ("--model large", "8.4b")),
        (("--model", "4e9"), ("--model 4e9", "billions")),
        (("--drives", "0"), ("--drives 0", "1 to 64")),
        (("--optimizer", "adma"), ("--optimizer adma", "nearest: adam")),
        (("--compression", "-1"), ("--compression -1", "none")),
        (("--compression", "much"), ("--compression much", "percent")),
    ],
)
def test_what_cannot_be_is_refused(capsys, tmp_path, words, parts):
    line = refused(
        here(capsys, "validate", "smart-infinity", *words, "--json", tmp_path / "x.json")
    )
    assert all(part in line for part in parts)
    assert files(tmp_path) == []


@pytest.mark.parametrize("option", ["--model", "--optimizer", "--compression"])
def test_its_options_are_its_own(capsys, option):
    line = refused(here(capsys, "validate", "bytes", option, "2"))
    assert f"{option} can be used only with ondie validate smart-infinity" in line


def test_it_runs_only_by_name():
    assert "smart-infinity" in validate.NAMED and "smart-infinity" not in validate.SUITES
