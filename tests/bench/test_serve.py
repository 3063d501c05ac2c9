"""Does `ondie bench serve` measure what it says: requests of NBD that succeed, servers in turns?"""

import contextlib
import json
import socket
import struct
import sys
import threading

import numpy as np
import pytest

from ondie.emu.cli.commands import bench_run
from ondie.emu.serve.nbd_load import READ, SPAN, WRITE, Load, check, requests
from ondie.emu.units import InputError
from ondie.emu.validate.speed import servers
from ondie.emu.validate.speed.servers import FLASH, NBDKIT, NULL, VFIO_FLASH, VFIO_NULL
from ondie.kernels.bench.run import Bench, Row
from tests.serve import nbd_client as nbd
from tests.serve import served
from tests.smoke.commands import files, here, refused

UNIT = 4096


@contextlib.contextmanager
def load(path):
    made = Load(path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("kind", [READ, WRITE])
@pytest.mark.parametrize("size", [UNIT, 32 << 10])
def test_a_load_is_requests_that_succeed(tmp_path, kind, size):
    """Its rate is that of the requests that the server has counted; none is left in the end."""
    with served.memory(tmp_path) as (server, path), load(path) as one:
        rate = one.rate(kind, size, 8, 0.1)
        counted = server.served.statistics()
        name = "reads" if kind == READ else "writes"
        assert counted[name] == sum(counted.values()) and counted["errors"] == 0
        assert 0.5 * counted[name] <= rate * 0.1 <= counted[name] and counted[name] > 8
        assert one.rate(READ, UNIT, 1, 0.01) > 0  # the stream of replies is in step
        assert (one.waits(UNIT, 20) > 0).all()


def test_places_are_all_over_the_span():
    sent = requests(READ, UNIT, 1000, SPAN)
    places = [nbd_request(sent[at : at + 28]) for at in range(0, len(sent), 28)]
    assert {kind for kind, _, _ in places} == {READ} and {size for _, _, size in places} == {UNIT}
    offsets = np.array([offset for _, offset, _ in places])
    assert (offsets % UNIT == 0).all() and len(set(offsets.tolist())) > 950
    assert offsets.min() < SPAN // 100 and SPAN * 99 // 100 < offsets.max() < SPAN
    assert len(requests(WRITE, UNIT, 3, SPAN)) == 3 * (28 + UNIT)


def nbd_request(head):
    magic, _, kind, _, offset, size = struct.unpack(">IHHQQI", head)
    assert magic == 0x25609513
    return kind, offset, size


def test_every_place_is_written_before(tmp_path):
    with served.memory(tmp_path) as (server, path), load(path) as one:
        size = server.served.capacity // (128 << 10) * (128 << 10)
        one.fill()
        with nbd.client(path) as other:
            assert all(other.read(0, size)[::UNIT])


def test_replies_are_checked():
    good = np.frombuffer(nbd.simple(1) + nbd.simple(2), np.uint8)
    check(good, 2, 16)
    for bad in (nbd.simple(1) + nbd.simple(2, 5), nbd.simple(1) + nbd.error_chunk(2, 5)):
        with pytest.raises(InputError, match="error"):
            check(np.frombuffer(bad[:32], np.uint8), 2, 16)


def test_a_server_that_fails(tmp_path):
    with served.drive(tmp_path) as (server, path), load(path) as one:
        server.service.call(lambda: server.drive.power_cut(0)).result(nbd.SECONDS)
        with pytest.raises(InputError, match="error 5"):
            one.rate(WRITE, UNIT, 4, 0.1)


def test_what_is_no_server(tmp_path):
    path = str(tmp_path / "a")
    with pytest.raises(InputError, match="No such file"):
        Load(path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()

        def answer():
            one, _ = other.accept()
            one.sendall(b"HTTP/1.1 400 Bad Request")
            one.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(InputError, match="the peer is not an NBD server"):
            Load(path)
        thread.join(nbd.SECONDS)
    command = [sys.executable, "-c", "raise SystemExit('no such plugin')"]
    with pytest.raises(InputError, match="kit: does not listen: no such plugin"):
        with servers.server("kit", command):
            pass


@pytest.mark.parametrize(
    ("code", "said"),
    [("0", "ended with exit code 0 and printed nothing"), ("3", "exit code 3"),
     ("time.sleep(60)", "printed nothing in 0.1 s")],
)  # fmt: skip
def test_a_silent_program_that_is_no_server(monkeypatch, code, said):
    monkeypatch.setattr(servers, "START_S", 0.1 if "sleep" in code else 60.0)
    command = [sys.executable, "-c", f"import time; raise SystemExit({code})"]
    with pytest.raises(InputError, match=f"kit: does not listen: it has .*{said}"):
        with servers.server("kit", command):
            pass


def test_the_table_judges_targets():
    """Rates must reach a target, times must not exceed it; other ratios are not judged."""
    rows = [
        Row("a", 1, "k/s", "target 2 k/s", 0.5), Row("b", 2, "k/s", "target 2 k/s", 1),
        Row("c", 9, "us", "target 6 us", 1.5), Row("d", 3, "us", "target 6 us", 0.5),
        Row("e", 3, "k/s", NBDKIT, 0.25),
    ]  # fmt: skip
    assert [bench_run.judged(row) for row in rows] == [
        "0.5 missed", "1 met", "1.5 missed", "0.5 met", "0.25",
    ]  # fmt: skip
    table = bench_run.table_of_rows(Bench(rows, {"cores": 2}), "NBD", servers.conditions())
    said = str(table.caption)
    assert "gen4-tlc, " in said and "32 in flight" in said and "random in 256 MiB" in said
    assert "median of the rounds' ratios" in said and bench_run.TARGETS in said
    alone = bench_run.table_of_rows(Bench(rows[-1:], {"cores": 2}), "NBD")
    assert alone.caption == "cores 2"


def test_rows_of_rates():
    """Best rates, median ratios of the rounds, and targets."""
    case = "reads of 128 KiB"
    rates = {(case, NULL): [16384, 8192.0], (case, FLASH): [4096.0, 4096],
             (case, NBDKIT): [32768.0, 8192.0]}  # fmt: skip
    found = {(row.name, row.anchor): row for row in servers.rate_rows(rates)}
    null = found[f"{case}, {NULL}", NBDKIT]
    assert (null.value, null.unit, null.ratio) == (2.0, "GiB/s", 0.75)
    assert found[f"{case}, {NULL}", "target 2 GiB/s"].ratio == 1.0
    assert found[f"{case}, {NULL}", "target 0.5 of nbdkit memory"].ratio == 1.5
    assert found[f"{case}, {FLASH}", NBDKIT].ratio == pytest.approx((1 / 8 + 1 / 2) / 2)
    alone = servers.rate_rows({("reads of 4 KiB", NULL): [3e5]})
    assert [(row.value, row.ratio) for row in alone] == [(300, 1), (300, 2)]


def test_rows_of_waits():
    """20 us without a drive, 85 of flash and 130 seen: 25 us above both, 1.25 of the target."""
    rows = servers.wait_rows(np.full(9, 20e-6), np.full(9, 130e-6), 85e-6)
    assert rows[-1].value == pytest.approx(25) and rows[-1].ratio == pytest.approx(1.25)


def test_the_command_writes_rows(capsys, tmp_path, monkeypatch):
    """Without nbdkit it says so."""
    started = []

    @contextlib.contextmanager
    def server(name, command, client=Load):
        assert (client is Load) == ("--nbd" in command)
        started.append((name, command[-1]))
        with served.memory(tmp_path) as (_, path), load(path) as one:
            yield one

    monkeypatch.setattr(servers, "server", server)
    monkeypatch.setattr(servers, "modeled_latency", lambda: 85e-6)
    monkeypatch.setattr(servers, "CASES", [servers.CASES[0], servers.CASES[4]])
    monkeypatch.setattr("shutil.which", lambda name: None)
    done = here(capsys, "bench", "serve", "--quick", "--json", tmp_path / "a.json")
    assert done.code == 0 and "nbdkit: not found" in done.err
    assert started == [(NULL, "--null"), (FLASH, "unix:{path}"), (VFIO_NULL, "--null"),
                       (VFIO_FLASH, "4096"), ("the wall clock", "real")]  # fmt: skip
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert {row["anchor"] for row in rows} == {
        "itself", "target 150 k/s", "target 100 k/s", "target 20 us",
    }  # fmt: skip
    assert "a.json" in files(tmp_path)


def test_a_program_that_cannot_be_run(capsys, tmp_path):
    refused(here(capsys, "bench", "serve", "--nbdkit", tmp_path / "no"), "--nbdkit", "executable")
