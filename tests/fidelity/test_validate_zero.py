"""Does `ondie validate zero` count every byte of the table, time by the closed forms, and miss when
the path or the drive is wrong?

FACTS used: bytes per parameter and step of DeepSpeed's NVMe offload; serial T = N(16/R + 12/W +
1/c), pipelined T = N max(16/R, 12/W, 1/c) + fill; DeepNVMe 10/5, 27/11, 48/26 and 3.7/3.2 GB/s.
"""

import dataclasses
import json

import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.paths.layout import formats
from ondie.emu.paths.offload.path import HostOffload, PipelinedOffload
from ondie.emu.validate import model
from ondie.emu.validate import zero_infinity as zero
from ondie.kernels.formats import B16
from tests.smoke.commands import here
from tests.suites import suite

TABLE = {
    "adam, FP32 master": (4, 16, 12, 32),
    "adam, parameters on NVMe": (4, 16, 14, 38),
    "adam, parameters on NVMe, activation checkpointing": (4, 16, 14, 40),
    "momentum, FP32": (4, 12, 8, 24),
    "adagrad, FP32": (4, 12, 8, 24),
    "adam, BF16 master": (2, 12, 10, 24),
    "adam, all BF16": (2, 8, 6, 16),
    "sgd, FP32": (4, 8, 4, 16),
}
"""Written in backward, read in the step, written in the step, total: B/parameter."""
COLUMNS = ("gradient written in backward", "read in the step", "written in the step", "total")


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in suite("zero")}


@pytest.mark.parametrize("name", TABLE)
def test_the_table(rows, name):
    """Counted by the drives' own counters, exact."""
    for column, expected in zip(COLUMNS, TABLE[name], strict=True):
        row = rows[f"{name}: {column}"]
        assert (row.kind, row.tolerance, row.unit) == ("identity", 0, "B/param")
        assert row.published == row.predicted == expected


def test_every_row_is_within_its_tolerance(rows):
    assert not [row.name for row in rows.values() if row.misses]
    timed = [row for row in rows.values() if row.unit == "s" and row.kind == "identity"]
    assert len(timed) == 2 * 8 + 6 + 4 and {row.tolerance for row in timed} == {0.02}
    shown = {name for name, row in rows.items() if row.kind == "shown"}
    assert shown == {
        f"{preset}: {form}"
        for preset in ("optimstore-r2", "gen4-tlc")
        for form in ("pipelined", "half duplex")
    }


def test_times_by_hand(rows):
    """60 M parameters with the published rates themselves, CPU Adam at 4 Gparam/s: for 4 x gen4
    16/10 + 12/5 + 1/4 = 4.25 ns each, pipelined 12/5 = 2.4 ns and the fill of 14.3 sub-groups."""
    n = 60e6
    for name, read, write in (
        ("1 drive through libaio", 3.7, 3.2), ("4 x gen4", 10, 5), ("4 x gen5", 27, 11),
        ("8 x gen5", 48, 26),
    ):  # fmt: skip
        stages = [16 / read, 12 / write, 1 / 4]
        serial = rows[f"{name}, CPU Adam 4 Gparam/s: serial"].predicted
        assert serial == pytest.approx(n * sum(stages) / 1e9, rel=0.025)
        fill = (sum(stages) - max(stages)) / (n / (4 << 20))
        pipelined = rows[f"{name}, CPU Adam 4 Gparam/s: pipelined"].predicted
        assert pipelined == pytest.approx(n * (max(stages) + fill) / 1e9, rel=0.025)
        assert rows[f"{name}: read alone"].predicted == pytest.approx(read, rel=0.02)


def test_what_lies_between_two_forms(rows):
    """Shown, not checked: longer than if reads and writes did not meet, shorter than if they met
    always."""
    for preset in ("optimstore-r2", "gen4-tlc"):
        free, shared = (rows[f"{preset}: {form}"] for form in ("pipelined", "half duplex"))
        assert free.published < free.predicted == shared.predicted < shared.published


def few(monkeypatch, traffic=1):
    """One case of each kind."""
    monkeypatch.setattr(zero, "TRAFFIC", zero.TRAFFIC[:traffic])
    monkeypatch.setattr(zero, "DRIVES", zero.DRIVES[:1])
    monkeypatch.setattr(zero, "RATES", zero.RATES[:1])
    monkeypatch.setattr(zero, "PRESETS", {"optimstore-r1": ("serial",)})


def test_the_command(capsys, monkeypatch, tmp_path):
    few(monkeypatch)
    done = here(capsys, "validate", "zero", "--json", tmp_path / "a.json")
    assert (done.code, done.err) == (0, "")
    assert "9 rows, 0 outside" in done.out
    found = json.loads((tmp_path / "a.json").read_text())
    assert {row["suite"] for row in found} == {"zero"} and len(found) == 9


def test_a_state_that_is_not_written_misses(capsys, monkeypatch):
    """The path leaves v on flash as it was: 4 B fewer written."""
    few(monkeypatch)
    plain = HostOffload._transfer

    def forgetful(self, out, kind, names, a, b, after):
        return plain(self, out, kind, tuple(x for x in names if x != "v"), a, b, after)

    monkeypatch.setattr(HostOffload, "_transfer", forgetful)
    done = here(capsys, "validate", "zero")
    assert done.code == 1
    missed = [line for line in done.out.splitlines() if "MISS" in line]
    assert any("written in the step" in line and "-33.33%" in line for line in missed)


def test_narrower_states_miss(capsys, monkeypatch):
    few(monkeypatch)
    narrow = dataclasses.replace(formats.FORMATS["fp32"], state=B16)
    monkeypatch.setitem(formats.FORMATS, "fp32", narrow)
    assert here(capsys, "validate", "zero", "--quiet").code == 1


def test_pipelining_that_does_not_overlap_misses(capsys, monkeypatch):
    few(monkeypatch)
    monkeypatch.setattr(PipelinedOffload, "offload", HostOffload.offload)
    done = here(capsys, "validate", "zero")
    missed = [line for line in done.out.splitlines() if "MISS" in line]
    assert done.code == 1 and len(missed) == 1 and "pipelined" in missed[0]


def test_rates_are_of_reads_and_writes_alone():
    """R1: 8 channels of 8192 B per 10.39 us; a link of 2 GB/s is the smaller."""
    n = 100 << 20
    read = zero.rate(load_preset("optimstore-r1"), zero.command.READ, n, 0)
    assert read == pytest.approx(8 * 8192 / (8192 / 800e6 + 150e-9), rel=0.01)
    slow = load_preset("optimstore-r1", ["link.down=2 GB/s"])
    assert zero.rate(slow, zero.command.WRITE, n, n) == pytest.approx(2e9, rel=0.01)


@pytest.mark.parametrize("case", zero.TRAFFIC, ids=lambda case: case.name)
def test_the_path_expects_what_is_counted(case):
    """What the closed form and the energy of host DRAM rest on."""
    cfg = load_preset("optimstore-r1", case.settings)
    path = case.path(
        cfg, model(case.op, zero.PARAMS), Options(format=case.format, offload=case.offload)
    )
    found = {name: size / zero.PARAMS for name, size in path.moved().items()}
    assert found == {
        "gradients": case.gradient, "parameters": case.parameters, "read": case.read,
        "written": case.written,
    }  # fmt: skip
