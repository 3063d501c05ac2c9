"""Do programs of Debian work between host and drives, and are their bytes in the counters?"""

import json
import re

import pytest

from tests.live.processes import needs
from tests.live.tunnel_cluster import Cluster, cluster, moved

HOST, FIRST, SECOND = -1, 0, 1
WAYS = [(HOST, FIRST), (SECOND, HOST), (FIRST, SECOND)]
SIZE, LENGTH = 16 << 20, 1400
"""Bytes that iperf3 sends; of a datagram, bytes."""
WINDOW, KEPT = 128 << 10, 1 << 20
"""Of iperf3's sockets, and what two ends of a stream with it keep at most (Linux doubles it)."""
DATAGRAMS = 60
"""All of them fit in the buffer of a receiver that gets no processor for a time."""
LONGEST = 65535
"""Of TCP's segments that are not cut, bytes."""
HEADERS = 28
"""Of IPv4 and UDP, bytes."""


@pytest.fixture(scope="module")
def made():
    """One cluster for all tests of this file."""
    with cluster("--mtu", "1500", "--pace", "none") as found:
        yield found


def iperf(made: Cluster, source: int, sink: int, *options: str) -> dict:
    """The results of iperf3, which sends from one end to the other."""
    place = made.address(sink)
    words = made.inside(sink, "iperf3", "--server", "--one-off", "--forceflush", "--bind", place)
    server = made.live.start(words, lambda log: "Server listening" in log.read_text())
    words = ["iperf3", "--client", place, "--json", *options]
    found = json.loads(made.live.run(made.inside(source, *words)))
    assert "error" not in found and server.wait(20) == 0, made.live.log_of(server)
    return found["end"]


def check_bytes(before: dict, after: dict, source: int, sink: int, least: float) -> None:
    """The drives concerned have sent or received at least so many bytes, and the others none."""
    for number, drive in enumerate(moved(before, after)):
        expected = {"up": number == source, "down": number == sink}
        for way, large in expected.items():
            assert (drive[way] >= least) if large else (drive[way] < least / 4), (number, drive)
    forwarded = moved(before, after)[source]["forwarded"] if source >= 0 else 0
    assert (forwarded > least / LONGEST / 2) == (source >= 0 and sink >= 0)


@pytest.mark.parametrize(("source", "sink"), WAYS)
def test_iperf3_tcp(made, source, sink):
    needs("iperf3")
    before = made.settled()
    for options, streams in (((), 1), (("--parallel", "2"), 2), (("--reverse",), 1)):
        giver, taker = (sink, source) if "--reverse" in options else (source, sink)
        sizes = ("--bytes", str(SIZE), "--window", str(WINDOW))
        found = iperf(made, source, sink, *sizes, *options)
        after = made.settled()
        sent, received = found["sum_sent"]["bytes"], found["sum_received"]["bytes"]
        assert SIZE <= sent < 1.1 * SIZE
        assert sent - streams * KEPT < received <= sent  # the rest was on its way
        check_bytes(before, after, giver, taker, received)
        before = after


@pytest.mark.parametrize(("source", "sink"), WAYS)
def test_iperf3_udp(made, source, sink):
    """2 Mb/s for a third of a second, which fit in the queue of a device: no datagram is lost."""
    needs("iperf3")
    before = made.settled()
    options = ("--udp", "--bitrate", "2M", "--length", str(LENGTH), "--blockcount", str(DATAGRAMS))
    found = iperf(made, source, sink, *options)["sum"]
    assert found["packets"] >= DATAGRAMS and found["lost_packets"] == 0, found
    check_bytes(before, made.settled(), source, sink, found["packets"] * (LENGTH + HEADERS))


@pytest.mark.parametrize(("source", "sink"), [*WAYS, (FIRST, HOST)])
def test_ping(made, source, sink):
    needs("ping")
    before = made.settled()
    words = ["ping", "-n", "-c", "5", "-i", "0.05", "-s", "1000", "-W", "10", made.address(sink)]
    printed = made.live.run(made.inside(source, *words))
    assert re.search(r"5 packets transmitted, 5 received, 0% packet loss", printed)
    ways = moved(before, made.settled())
    ends = {end: ways[end] for end in (source, sink) if end >= 0}
    assert all(drive["up"] == drive["down"] == 5 * 1028 for drive in ends.values()), ways
    others = [drive for end, drive in enumerate(ways) if end not in ends]
    assert all(drive["up"] == drive["down"] == 0 for drive in others), ways
