"""Owns: what `python -m tests.live.tunnel_without_root OPTION...` does: a cluster of a user that is
not root, with programs at its ends, printed as JSON. Does not own: who that user is.
Source: own.
"""

import json
import re
import sys

from tests.live.processes import Live
from tests.live.tunnel_cluster import Cluster, up

SIZE = 1 << 18
"""Bytes that iperf3 receives in its time at least."""


def copy(made: Cluster, source: int, sink: int) -> int:
    """Bytes that iperf3 has received from another end."""
    place = made.address(sink)
    words = ["iperf3", "--server", "--one-off", "--forceflush", "--bind", place]
    server = made.start(sink, *words, ready="Server listening")
    client = ["iperf3", "--client", made.seen(source, sink), "--json", "--time", "2"]
    found = json.loads(made.live.run(made.words(source, *client)))
    server.wait(20)
    return found["end"]["sum_received"]["bytes"]


def main(*options: str) -> None:
    with Live() as live, up(live, "--mtu", "9000", "--pace", "none", *options) as made:
        words = ["ping", "-n", "-c", "3", "-i", "0.2", "-s", "4000", made.address(1)]
        printed = "" if "TCP relays" in made.printed else live.run(made.words(0, *words))
        answers = re.findall(r" (\d+) received", printed)
        received = [copy(made, -1, 0), copy(made, 0, 1)]
        found = {"printed": made.printed, "answers": answers, "received": received}
        print(json.dumps(found | {"status": made.settled()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
