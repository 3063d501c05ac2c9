"""Does `ondie bench service` measure what it says: served commands, beside the engine alone?"""

import json

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.drive import Drive
from ondie.emu.nvme.command import COMMAND, READ, WRITE
from ondie.emu.validate.speed import service
from tests.smoke.commands import files, here


def test_the_command_writes_rows(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(service, "service", lambda cfg, op, batch, payload, n: 1e5 * batch)
    monkeypatch.setattr(service, "engine_alone", lambda cfg, op, n: 2e6)
    done = here(capsys, "bench", "service", "--quick", "--json", tmp_path / "a.json")
    assert done.code == 0 and "writes with bytes, 32 at a time" in done.out
    assert "the CPU time of that thread is not counted" in " ".join(done.out.split())
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert files(tmp_path) == ["a.json"]
    found = {(r["name"], r["anchor"]): r for r in rows}
    row = found["reads, 32 at a time", "engine alone, reads"]
    assert row["value"] == 3200 and row["ratio"] == pytest.approx(1.6)
    assert found["reads, one at a time", "target 60 k/s"]["ratio"] == pytest.approx(1e5 / 60e3)


@pytest.mark.parametrize("payload", [False, True])
@pytest.mark.parametrize("op", [READ, WRITE])
def test_every_command_is_served(op, payload):
    cfg = load_preset("gen4-tlc")
    assert service.service(cfg, op, 32, payload, 640) > 0
    drive = Drive(cfg, payload=payload, queue_depth=service.DEPTH)
    if payload:
        drive.buffer = np.ones((32, service.SIZE), np.uint8)
    commands = np.zeros(32, COMMAND)
    commands["op"], commands["size"] = op, service.SIZE
    commands["data"] = np.arange(32) * service.SIZE if payload else -1
    places = np.arange(320).reshape(10, 32) * service.SIZE
    assert service.turn(drive, commands, places) == 320 and drive.outstanding == 0


def test_the_engine_alone_reads_flash():
    assert service.engine_alone(load_preset("gen4-tlc"), READ, 2000) > 0


def test_the_null_client_waits_for_the_modeled_latency():
    """On an idle drive, every read of a mapped page takes equally long; no wait is shorter."""
    seen, modeled, bare = service.null_client(load_preset("gen4-tlc"), 50)
    assert (seen >= modeled).all() and len(set(modeled)) == 1
    assert (bare >= 0).all() and len(bare) == 50


def test_rows_of_waits():
    """Medians 115 us - 85 us and 2 us: 28 us above the bare timer, 1.4 of the target."""
    modeled = np.full(100, 85e-6)
    seen = modeled + np.where(np.arange(100) < 50, 20e-6, 40e-6)
    bare = np.where(np.arange(100) < 98, 2e-6, 3e-3)
    found = {row.name: row for row in service.wait_rows(seen, modeled, bare)}
    assert found["delay of a served read, median"].value == pytest.approx(30)
    assert found["delay of a served read, 99th percentile"].value == pytest.approx(40)
    assert found["delay of a bare timer, median"].value == pytest.approx(2)
    assert found["delay of a bare timer, 99th percentile"].value > 1000
    above = found["median delay of a served read minus that of a bare timer"]
    assert above.value == pytest.approx(28) and above.ratio == pytest.approx(1.4)
    assert above.anchor == "target 20 us"


def test_rows_of_the_wall_clock():
    rows = service.wall_clock(load_preset("gen4-tlc"), 20)
    latency, *_, idle, hour = rows
    assert latency.value == pytest.approx(85.0, abs=1) and hour.unit == "s"
    assert 0 <= idle.ratio < 0.5  # a thread that polls uses a whole processor
