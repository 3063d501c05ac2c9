"""Does an all-reduce take what its messages take, hop by hop; and move what it has to?

The reference is a simulation of stations, each of which does one thing at a time: a tunnel's way
up, its way down, the host's relay. It knows nothing of formulas.
"""

import dataclasses
import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.cluster.collectives import ring, tree
from ondie.emu.cluster.collectives.allreduce import ALGORITHMS, Allreduce, exchange
from ondie.emu.cluster.collectives.tunnels import sum_ps
from ondie.emu.config.config import load_preset
from ondie.emu.nvme.tunnel.cost import Message, TunnelCost
from ondie.emu.units import InputError

NEWPORT, LAGUNA = (TunnelCost.of(load_preset(name)) for name in ("newport", "laguna"))
GRADIENT = 3_470_000 * 4


class Stations:
    """Messages in order of their beginning; what one does of its stations, they do in order of
    arrival."""

    def __init__(self, costs: list[TunnelCost]) -> None:
        self.costs = costs
        self.free: dict[tuple[str, int], int] = {}
        self.waiting: list[tuple[int, int, str, int, int]] = []
        self.relay_work = 0
        self.moved = [0, 0]
        self.counted = 0

    def serve(self, station: tuple[str, int], at: int, work: int) -> int:
        self.free[station] = max(self.free.get(station, 0), at) + work
        return self.free[station]

    def message(self, source: int, to: int, n: int) -> Message:
        if source == 0:
            return self.costs[to - 1].downward(n)
        cost = self.costs[source - 1]
        return cost.upward(n) if to == 0 else cost.across(n, self.costs[to - 1])

    def send(self, batch: list[tuple[int, int, int]], n: int) -> list[int]:
        """When messages (begins, from, to) are there; each as the engine sends it."""
        jobs, ends = [], [0] * len(batch)
        for at, (begin, source, to) in enumerate(batch):
            m = self.message(source, to, n)
            work = -(-m.cpu_ps // self.costs[0].threads)
            self.relay_work += m.cpu_ps
            self.counted += m.commands
            self.moved[0] += n if source else 0
            self.moved[1] += n if to else 0
            jobs.append((begin, at, "relay", 0, work))
            if source:
                jobs.append((begin, at, "up", source, m.up_ps))
            if to:
                body = m.body_ps + (0 if source else m.tail_ps)
                jobs.append((begin, at, "down", to, body))
        heapq.heapify(jobs)
        while jobs:
            begin, at, what, which, work = heapq.heappop(jobs)
            end = self.serve((what, which), begin, work)
            ends[at] = max(ends[at], end)
            _, source, to = batch[at]
            if what == "up" and to:
                m = self.message(source, to, n)
                heapq.heappush(jobs, (end, at, "down", to, m.tail_ps))
        return ends


def by_hops(kind: str, n: int, costs: list[TunnelCost]) -> tuple[int, int, Stations]:
    """(ps until the host has the sum, ps until the last drive has)."""
    drives, nodes = len(costs), len(costs) + 1
    s = Stations(costs)
    if kind == "star":
        up = s.send([(0, d, 0) for d in range(1, nodes)], n)
        host = max(up) + sum_ps(n, drives, costs[0].host_dram)
        return host, max(s.send([(host, 0, d) for d in range(1, nodes)], n)), s
    if kind == "ring":
        piece = ring.piece_bytes(n, nodes)
        has, sent = [0] * nodes, [0] * nodes
        for _ in range(ring.steps(nodes)):
            batch = [(max(has[i], sent[i]), i, (i + 1) % nodes) for i in range(nodes)]
            sent = s.send(batch, piece)
            has = [sent[i - 1] for i in range(nodes)]
        return has[0], max(has[1:]), s
    ready = [0] * nodes
    for level in reversed(tree.levels(nodes)[1:]):
        batch = [(ready[i], int(i), int((i - 1) // 2)) for i in level]
        for (_, _, parent), end in zip(batch, s.send(batch, n), strict=True):
            ready[parent] = max(ready[parent], end)
    host = ready[0] + sum_ps(n, min(drives, 2), costs[0].host_dram)
    ready = [host] * nodes
    for level in tree.levels(nodes)[1:]:
        batch = [(ready[(i - 1) // 2], int((i - 1) // 2), int(i)) for i in level]
        for i, end in zip(level, s.send(batch, n), strict=True):
            ready[i] = end
    return host, max(ready[1:]), s


def like(x: Allreduce, found: tuple[int, int, Stations], rel: float = 1e-9) -> None:
    host, drives, s = found
    assert x.seconds == pytest.approx(max(host, drives) / 1e12, rel=rel)
    assert x.host_s == pytest.approx(host / 1e12, rel=rel)
    assert x.drives_s == pytest.approx(drives / 1e12, rel=rel)
    assert x.host_cpu_s == pytest.approx(s.relay_work / 1e12, rel=1e-9)
    assert [x.bytes_up, x.bytes_down] == s.moved
    assert x.commands + x.notifications == s.counted


@given(
    st.sampled_from(ALGORITHMS),
    st.integers(1, 12),
    st.integers(1, 3_000_000),
    st.sampled_from(["newport", "laguna"]),
    st.sampled_from([(), ("tunnel.outstanding=4",), ("tunnel.mtu=9000 B", "tunnel.payload=1 KiB")]),
)
def test_an_exchange_is_its_hops(kind, drives, n, preset, overrides):
    cost = TunnelCost.of(load_preset(preset, overrides))
    like(exchange(kind, n, drives, cost), by_hops(kind, n, [cost] * drives))


@given(st.sampled_from(ALGORITHMS), st.lists(st.integers(0, 2), min_size=1, max_size=10), st.data())
def test_drives_may_differ(kind, which, data):
    """Each has its own tunnel; in a ring the slowest decides."""
    fast = TunnelCost.of(load_preset("newport", ["tunnel.outstanding=3"]))
    costs = (NEWPORT, LAGUNA, fast)
    n = data.draw(st.integers(1, 500_000))
    x = exchange(kind, n, len(which), costs, np.array(which))
    found = by_hops(kind, n, [costs[i] for i in which])
    if kind == "ring":
        assert x.seconds == pytest.approx(max(found[:2]) / 1e12, rel=1e-9)
    else:
        like(x, found)
    assert x.host_cpu_s == pytest.approx(found[2].relay_work / 1e12)


def test_one_slow_drive_decides_in_a_ring_and_in_a_star():
    which = np.zeros(24, np.int64)
    which[11] = 1
    for kind in ("ring", "star"):
        slow = exchange(kind, GRADIENT, 24, (NEWPORT, LAGUNA), which)
        assert slow.seconds == pytest.approx(exchange(kind, GRADIENT, 24, LAGUNA).seconds, rel=0.02)
        assert slow.seconds > 2 * exchange(kind, GRADIENT, 24, NEWPORT).seconds


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize("drives", [1, 5, 12])
def test_a_relay_that_is_short_of_threads(kind, drives):
    """One thread for all: whatever the order, its work is not done sooner. A ring takes as long as
    that, and a star, whose sum is written by half as much work as gradients are received, nearly; a
    tree has few messages at once near its root."""
    cost = TunnelCost.of(
        load_preset("newport", ["tunnel.relay_threads=1", "tunnel.relay_command=20 us"])
    )
    x = exchange(kind, 200_000, drives, cost)
    waiting = cost.waiting(x.wait_ps)
    host, last, s = by_hops(kind, 200_000, [waiting] * drives)
    assert x.host_cpu_s == pytest.approx(s.relay_work / 1e12)
    assert x.seconds == pytest.approx(max(host, last) / 1e12, rel=0.01)
    assert x.seconds >= x.host_cpu_s / cost.threads * (1 - 1e-9)
    many = exchange(kind, 200_000, drives, dataclasses.replace(cost, threads=1000))
    assert many.wait_ps == 0 and many.limited_by.startswith("tunnel")
    if kind != "tree" and drives > 1:
        assert x.limited_by == "host relay" and x.seconds > many.seconds * 1.2
        assert x.seconds == pytest.approx(x.host_cpu_s, rel=0.05)
    elif drives == 12:
        assert x.limited_by == "host relay" and x.seconds > many.seconds
    else:
        assert x.seconds == many.seconds


# --- by arithmetic


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_what_crosses_the_host(kind):
    """24 drives. Ring: 2 x 24 steps of 25 pieces, all but two of them up and down again. Star: each
    gradient up, the sum down. Tree: 22 drives below the host's children up and down, twice; these
    two once each way."""
    x = exchange(kind, GRADIENT, 24, NEWPORT)
    piece = -(-GRADIENT // 25)
    up = {"ring": 48 * 24 * piece, "star": 24 * GRADIENT, "tree": (2 + 22 * 2) * GRADIENT}[kind]
    assert x.bytes_up == x.bytes_down == up
    sums = {"ring": 3 * 24 * piece, "star": 3 * 24 * GRADIENT, "tree": 3 * 2 * GRADIENT}[kind]
    assert x.host_dram_bytes == 2 * up + sums
    assert x.wire_bytes == pytest.approx(2 * up * 1502 / 1448, rel=0.002)


def test_a_ring_moves_no_more_than_twice_the_gradient():
    """2 (n - 1) / n: its time hardly grows with the drives, while the relay, whose work grows with
    them and with that, has room."""
    few, many = exchange("ring", GRADIENT, 6, NEWPORT), exchange("ring", GRADIENT, 24, NEWPORT)
    assert 1 < many.seconds / few.seconds < 1.2
    grown = 24 / 6 * (24 / 25) / (6 / 7)
    assert many.host_cpu_s / few.host_cpu_s == pytest.approx(grown, rel=0.02)


def test_the_papers_rates():
    """36 MB/s over 24 Newports, 14.5 MB/s over 36 Lagunas (fit)."""
    for cost, drives, rate in ((NEWPORT, 24, 36e6), (LAGUNA, 36, 14.5e6)):
        x = exchange("ring", GRADIENT, drives, cost)
        moved = 2 * drives * -(-GRADIENT // (drives + 1))
        assert moved / x.seconds == pytest.approx(rate, rel=0.005)


def test_a_star_is_as_quick_and_takes_half_the_relay():
    """The host is in the middle anyway: every tunnel carries the gradient once each way instead of
    twice, one way after the other."""
    ring_, star = (exchange(kind, GRADIENT, 24, NEWPORT) for kind in ("ring", "star"))
    assert star.seconds == pytest.approx(ring_.seconds, rel=0.05)
    assert star.host_cpu_s == pytest.approx(ring_.host_cpu_s / 2, rel=0.05)
    assert star.joules["host relay"] == pytest.approx(star.host_cpu_s * 10)


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_100_000_drives(kind):
    """One host's relay for all of them is what takes long; to say so does not."""
    x = exchange(kind, GRADIENT, 100_000, NEWPORT)
    assert x.limited_by == "host relay"
    assert x.seconds >= x.host_cpu_s / 8 * (1 - 1e-6)
    which = np.arange(100_000) % 2
    y = exchange(kind, GRADIENT, 100_000, (NEWPORT, LAGUNA), which)
    assert y.seconds == pytest.approx(x.seconds, rel=0.2)


def test_levels_of_a_tree():
    assert [level.tolist() for level in tree.levels(6)] == [[0], [1, 2], [3, 4, 5]]
    assert tree.parents(np.arange(1, 7)).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_nothing_to_exchange(kind):
    for drives, n in ((0, 100), (3, 0)):
        x = exchange(kind, n, drives, NEWPORT)
        assert x.seconds == x.host_cpu_s == x.commands == x.bytes_up == x.wire_bytes == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rnig", 1, 1, NEWPORT), "'rnig': unknown; nearest: ring"),
        (("ring", 1, -1, NEWPORT), "-1 drives"),
        (("ring", -1, 1, NEWPORT), "exchange of -1 B"),
        (("ring", 1, 1, ()), "no tunnel is given"),
        (("ring", 1, 2, (NEWPORT,), np.zeros(1)), "1 kinds for 2 drives"),
        (("ring", 1, 2, (NEWPORT,), np.array([0, 1])), "0 to 0"),
        (
            ("ring", 1, 1, (NEWPORT, dataclasses.replace(LAGUNA, threads=3))),
            "must have the same number of relay threads",
        ),
    ],
)
def test_exchanges_that_cannot_be(arguments, words):
    with pytest.raises(InputError, match=words):
        exchange(*arguments)
