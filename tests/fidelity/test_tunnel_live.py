"""Do programs that send real bytes through tunnels need the commands that the cost model counts?"""

import struct

import numpy as np
import pytest

from ondie.emu.analysis.row import IDENTITY, SHOWN
from ondie.emu.cluster.collectives.allreduce import ALGORITHMS, exchange
from ondie.emu.config.config import load_preset
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.nvme.tunnel.framing import is_ip
from ondie.emu.validate import tunnel, tunnel_cluster
from ondie.emu.validate.tunnel_cluster import Cluster, TunnelStalled, node_of, packets_of
from ondie.emu.validate.tunnel_live import GRADIENT, MOVES, all_reduce, live_rows
from tests.smoke.commands import here


@pytest.fixture(scope="module")
def rows(scale: str) -> dict:
    full = scale == "full"
    found = live_rows(None, GRADIENT // (1 if full else 100), (2, 4, 8) if full else (2, 4))
    return {row.name: row for row in found}


def test_commands_are_those_of_the_model(rows):
    equal = [row for row in rows.values() if row.kind == IDENTITY]
    assert len(equal) == len(rows) // 18 * 10  # of nine writes of an algorithm, two are not
    for row in equal:
        assert row.published == row.predicted > 50 and row.tolerance == 0, row


def test_packets_share_blocks_as_they_arrive(rows):
    """At least as many write commands as full blocks need, at most two for each that arrives."""
    shared = [row for row in rows.values() if row.kind == SHOWN and row.unit == "commands"]
    assert len(shared) == len(rows) // 9
    for row in shared:
        received = rows[row.name.replace("write", "receive")].published
        assert 0.98 * received < row.published < 2 * received


def test_the_hosts_time_per_byte(rows):
    """The relay takes some time, and less per byte with fewer commands."""
    for kind in ALGORITHMS:
        one, several = (
            rows[f"{kind} over 4 drives, {how} per block: CPU time of the host's relay"]
            for how in ("one packet", "several packets")
        )
        assert one.predicted > several.predicted > 0.1
        assert one.published > several.published > 0.1


@pytest.mark.parametrize("drives", [1, 2, 5])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_all_nodes_get_the_sum_in_a_fixed_number_of_messages(kind, drives):
    """Messages of any size: 1,003 bytes are no multiple of the nodes."""
    cfg = load_preset("newport", ("tunnel.concatenate=false", "tunnel.mtu=300 B"))
    model = exchange(kind, 1003, drives, TunnelCost.of(cfg))
    with Cluster(cfg, drives) as cluster:
        for seed in range(2):
            assert all_reduce(cluster, kind, 1003, seed).commands == model.commands
    sizes = [move.stop - move.start for move in MOVES[kind](1003, drives + 1)]
    assert sum(sizes) == (2 * drives * sizes[0] if kind != "ring" else len(sizes) * sizes[0])


def test_packets_are_those_of_tcp():
    data = np.arange(5000, dtype=np.uint16).view(np.uint8)
    packets = packets_of(data, 7, 1, 3, 1500)
    assert [len(each) for each in packets] == [1500] * 6 + [10000 - 6 * 1448 + 52]
    assert all(is_ip(each) and node_of(each) == 3 for each in packets)
    for at, each in enumerate(packets):
        assert each[:2] == b"\x45\0" and each[9] == 6 and each[12:16] == bytes((10, 0, 0, 2))
        assert struct.unpack_from(">I", each, 24) == (at * 1448,)
        assert each[32] >> 4 == 8 and each[40:44] == b"\1\1\x08\x0a"
    assert b"".join(each[52:] for each in packets) == data.tobytes()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda packets: packets[1:], "expected bytes from 0 on"),
        (lambda packets: [packets[0], packets[0], *packets[2:]], "expected bytes from 1448 on"),
        (
            lambda packets: [*packets[:-1], packets[-1][:-1] + bytes([packets[-1][-1] ^ 1])],
            "does not have the sum",
        ),
    ],
)
def test_what_a_tunnel_spoils_is_noticed(monkeypatch, spoil, words):
    monkeypatch.setattr(tunnel_cluster, "packets_of", lambda *args: spoil(packets_of(*args)))
    with Cluster(load_preset("newport"), 2) as cluster, pytest.raises(TunnelStalled, match=words):
        all_reduce(cluster, "star", 5000)


def test_as_an_option(capsys, monkeypatch, rows):
    monkeypatch.setattr(tunnel, "live_rows", lambda progress: list(rows.values()))
    monkeypatch.setattr(tunnel, "paced_rows", lambda presets: [])
    for part in ("fit_rows", "identity_rows", "command_rows", "time_rows", "shape_rows"):
        monkeypatch.setattr(tunnel, part, lambda: [])
    done = here(capsys, "validate", "tunnel", "--live")
    assert (done.code, done.err) == (0, "")
    assert "tunnel-live" in done.out and f"{len(rows)} rows, 0 outside" in done.out
    done = here(capsys, "validate", "ecc", "--live")
    assert done.code == 2 and "--live can be used only with ondie validate tunnel" in done.err
