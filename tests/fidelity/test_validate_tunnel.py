"""Does `ondie validate tunnel` give the papers' rates, and hold the model against the relays?"""

import dataclasses
import json

import pytest

from ondie.emu import validate
from ondie.emu.analysis.row import CHECK, FIT, IDENTITY, SHOWN
from ondie.emu.validate import tunnel
from tests.smoke.commands import here
from tests.suites import suite


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in suite("tunnel")}


def test_the_fits(rows):
    """36 and 14.5 MB/s; 2.7x, simulated by the engine; 1.82 s with a gradient of 13.6 MB, 1.86 with
    13.88."""
    fits = {name: row for name, row in rows.items() if row.kind == FIT}
    assert len(fits) == 3 and all(row.constants == ("tunnel.command",) for row in fits.values())
    assert fits["newport: ring over 24 drives, per link"].predicted == pytest.approx(36, rel=0.005)
    assert fits["laguna: ring over 36 drives, per link"].predicted == pytest.approx(14.5, rel=0.005)
    for row in fits.values():
        assert abs(row.difference) < row.tolerance, row
    same = rows["laguna: a ring of 13.6 MB over 36 drives"]
    assert same.kind == IDENTITY and same.predicted == pytest.approx(1.825, abs=1e-3)


def test_our_models_agree_and_nothing_is_checked(rows):
    """Cost model against our own state machines: no row is a check."""
    assert not [row for row in rows.values() if row.kind == CHECK]
    own = [row for row in rows.values() if row.source in (tunnel.MODEL, tunnel.STEPS)]
    assert len(own) == 2 * (6 + len(tunnel.TUNNELS))
    assert all(row.kind == IDENTITY and not row.misses for row in own)
    assert all(row.difference == 0 for row in own if row.unit == "commands")
    steps = [row.difference for row in own if "ring step" in row.name]
    assert all(-0.02 < x < 1e-9 for x in steps)  # the closed form knows of no queue


def test_the_open_equivalents_range(rows):
    """100 to 280 us per command are 15 to 41 MB/s; both drives' tunnels lie in it."""
    found = [rows[f"{us} us per command: rate from drive to host"] for us in (100, 280)]
    assert [row.kind for row in found] == [IDENTITY] * 2
    assert [row.published for row in found] == [41, 15]
    for row in found:
        assert abs(row.difference) < row.tolerance
    for preset in tunnel.PAPERS:
        row = rows[f"{preset}: time between two commands, drive to host, 100 MB"]
        assert row.kind == SHOWN and 100 < row.predicted < 280


def test_the_relay_is_a_constraint(rows):
    """24 Newports keep three of its eight threads busy: with two it limits, with one alone thrice
    as much; a ring of more than 63 of them would want more than eight."""
    took = [
        rows[f"newport: ring over 24 drives, relay threads: {n}"].predicted for n in tunnel.THREADS
    ]
    assert took[0] > 2 * took[1] > 2.9 * took[2] and took[2] == took[3]
    cores = rows["newport: host cores busy with relaying for 24 drives"].predicted
    assert took[1] == pytest.approx(cores / 2 * took[3], rel=0.1)
    drives = rows["newport: drives for which 8 relay threads suffice"].predicted
    at_most, beyond = (
        tunnel.exchange("ring", 10**8, n, tunnel.cost_of("newport")).limited_by
        for n in (int(drives * 0.95), int(drives * 1.1))
    )
    assert at_most.startswith("tunnel") and beyond == "host relay"


def test_as_a_command(rows, capsys, tmp_path, monkeypatch):
    """The rows are those that the suite gave here before."""
    again = dataclasses.replace(validate.NAMED["tunnel"], rows=lambda progress: [*rows.values()])
    monkeypatch.setitem(validate.NAMED, "tunnel", again)
    path = tmp_path / "rows.json"
    done = here(capsys, "validate", "tunnel", "--json", path)
    assert (done.code, done.err) == (0, "") and "MISS" not in done.out
    assert json.loads(path.read_text()) == [row.data() for row in rows.values()]
    assert all(row.suite == "tunnel" for row in rows.values())
    assert "tunnel" in validate.NAMED and "tunnel" not in validate.SUITES
