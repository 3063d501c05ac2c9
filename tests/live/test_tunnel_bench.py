"""Does `ondie bench tunnel` measure a tunnel beside a bare shuttle, and leave nothing?"""

import ipaddress
import json
import os
import time

import pytest

from ondie.emu.live import namespaces, request, tunnel_bench
from ondie.emu.live.shuttle import DRIVE, HOST, Shuttle
from ondie.emu.live.tunnel_bench import CASES, WAYS, Series, System, Used
from ondie.emu.units import InputError
from tests.live.processes import alone, needs_tunnels
from tests.smoke.commands import files, here, refused


def test_the_command_writes_rows(capsys, tmp_path, monkeypatch):
    def measure(way, name, mtu, gso, quick, progress):
        assert quick and (name, mtu, gso) in CASES
        tunnel = Series([1.2e9, 1.0e9, 0.6e9], [2.0, 3.0, 4.0], [5.0, 6.0, 8.0])
        shuttle = Series([4.0e9, 2.0e9, 6.0e9], [0.5, 0.4, 0.9], [0.5, 0.4, 0.9])
        return {(key, ends): found for ends, *_ in WAYS
                for key, found in (("tunnel", tunnel), ("shuttle", shuttle))}  # fmt: skip

    monkeypatch.setattr(tunnel_bench, "usable_way", lambda: None)
    monkeypatch.setattr(tunnel_bench, "measure", measure)
    done = here(capsys, "bench", "tunnel", "--quick", "--json", tmp_path / "a.json")
    assert done.code == 0 and "that send and receive is not counted" in " ".join(done.out.split())
    assert files(tmp_path) == ["a.json"]
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert len(rows) == 5 * 6 + 2
    found = {(row["name"], row["anchor"]): (row["value"], row["ratio"]) for row in rows}
    lead = "MTU 9000, GSO, to the host"
    ratio = pytest.approx(0.3)  # of 0.3 0.5 0.1
    assert found[f"{lead}: rate, tunnel", "the shuttle"] == (1.0, ratio)
    assert found[f"{lead}: rate, tunnel", "target 1 Gb/s"] == (1.0, pytest.approx(1.0))
    assert found[f"{lead}: rate, shuttle", "itself"] == (4.0, 1)
    assert found[f"{lead}: CPU time, shuttle", "itself"] == (0.5, 1)
    both = found[f"{lead}: CPU time, relay and drive", "the shuttle"]
    assert both == (6.0, pytest.approx(10))  # of 10 15 8.9
    model = tunnel_bench.model_cpu(9000)["to the host"]
    relay = found[f"{lead}: CPU time, relay", f"the model, {model:.3g}"]
    assert relay == (3.0, pytest.approx(3 / model))
    assert not [key for key in found if key[1].startswith("target") and "GSO" not in key[0]]


def test_the_models_time_is_that_of_a_gigabyte():
    cost = tunnel_bench.TunnelCost.of(tunnel_bench.load_preset("newport", ("tunnel.mtu=1500B",)))
    found = tunnel_bench.model_cpu(1500)
    assert found["to the drive"] == pytest.approx(cost.downward(10**9).cpu_ps / 1e12, rel=1e-3)
    assert found["to the host"] == pytest.approx(cost.upward(10**9).cpu_ps / 1e12, rel=1e-3)
    assert found["to the drive"] != found["to the host"]


def test_without_tun_devices_it_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(request, "TUN_FILE", "/dev/net/none")
    done = here(capsys, "bench", "tunnel", "--json", tmp_path / "a.json")
    said = "/dev/net/none: cannot be opened: No such file"
    refused(done, "bench tunnel: needs TUN devices", said)
    assert files(tmp_path) == []


def test_the_time_of_a_process_that_has_gone_is_not_nothing():
    before = Used.of(os.getpid())
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert 0.05 < before.since() < 10
    with pytest.raises(InputError, match="has ended, and another process has its process ID"):
        before._replace(start=before.start - 1).since()
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    said = f"process {pid} has ended, so its CPU time is unknown"
    with pytest.raises(InputError, match=said):
        Used.of(pid)
    os.waitpid(pid, 0)
    with pytest.raises(InputError, match=said):
        Used.of(pid)


def left() -> list[str]:
    return [each for each in namespaces.namespaces() if each.startswith(f"ondie-{os.getpid()}-")]


@pytest.mark.parametrize("offloads", [False, True])
def test_a_shuttle_copies_both_ways_and_ends(offloads):
    needs_tunnels()
    network = ipaddress.IPv4Network("198.18.2.0/24")
    found = Series()
    with alone("shuttle"):
        with Shuttle(request.way_of("tun"), network, 1500, offloads) as shuttle:
            assert f"ondie-{shuttle.pid}-0" in namespaces.namespaces()
            system = System(network, shuttle.pid, (shuttle.pid,), False)
            for ends in ((HOST, DRIVE), (DRIVE, HOST)):
                system.transfer(*ends, 0.05, found)
        assert f"ondie-{shuttle.pid}-0" not in namespaces.namespaces()
    assert len(found.rates) == 2 and min(found.rates) > 1e6
    assert found.host == found.both and min(found.host) >= 0
    assert not os.path.exists(f"/sys/class/net/ondie{shuttle.pid}")


@pytest.mark.soak
def test_a_tunnel_and_a_shuttle_are_measured_in_turns():
    needs_tunnels()
    told = []
    with alone("tunnel"):
        found = tunnel_bench.measure(request.way_of("tun"), "case", 9000, True, True, told.append)
    assert told == [f"case: {ends}, round 1" for ends, *_ in WAYS]
    assert set(found) == {(key, ends) for key in ("shuttle", "tunnel") for ends, *_ in WAYS}
    for (key, _), series in found.items():
        (rate,), (host,), (both,) = series.rates, series.host, series.both
        assert rate > 1e6 and 0 <= host <= both and (host > 0 or key == "shuttle")
        assert (host < both) == (key == "tunnel")
