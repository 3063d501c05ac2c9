"""Do TCP streams survive the end of the host's relay, and do reconnections leave nothing behind?"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from ondie.emu.live import namespaces, processes
from ondie.emu.live.request import file_of
from ondie.emu.live.tunnel_bench import children
from tests.live.processes import alone, needs_tunnels, wait_for
from tests.live.test_tunnel_cluster import NAME, NET, Running, present

EVERY_S = 0.3
"""Time for which a relay works before it is killed."""
LEAST_KILLS = 3
LEAK_BYTES, LOADED_BYTES = 2 << 20, 16 << 20
"""What a process may grow by: in 500 reconnections, after as many, and in 1,000 resets, with the
packets that wait under load. It is 4 KiB a reconnection and 16 KiB a reset, less than a block. The
first reconnections cost some MB, because memory that was given back is in pieces."""


@pytest.fixture(autouse=True)
def only_clusters():
    with alone("tunnel"):
        yield


def opened(start: int) -> dict:
    """The status of relay ``start`` of the cluster, or of a later one, when its tunnels are open
    or have ended."""
    found: dict = {}

    def ready() -> bool:
        nonlocal found
        found = processes.status(NAME)
        states = [each["state"] for each in found["drives"]]
        settled = all(each == "open" or each.startswith("ended: ") for each in states)
        return found["relay_starts"] >= start and settled

    wait_for(f"relay {start}", ready)
    return found


class Killer:
    """Kills the relay again and again, until the context is left: each one when it has worked for
    EVERY_S."""

    def __init__(self) -> None:
        self.killed = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        start = 1
        while True:
            found = opened(start)
            if self._ending.wait(EVERY_S):
                return
            os.kill(found["relay_process"], signal.SIGKILL)
            self.killed += 1
            start = found["relay_starts"] + 1


def held(pid: int) -> tuple[Counter, int]:
    """Kinds of the descriptors of a process, and its threads."""
    kinds = Counter(
        os.readlink(each).partition(":")[0] for each in Path(f"/proc/{pid}/fd").iterdir()
    )
    return kinds, len(os.listdir(f"/proc/{pid}/task"))


def resident(pid: int) -> int:
    (line,) = (each for each in Path(f"/proc/{pid}/status").read_text().splitlines()
               if each.startswith("VmRSS"))  # fmt: skip
    return int(line.split()[1]) << 10


def restarted(found: dict) -> dict:
    """Kill the relay; return the status of the next one, when its tunnels are open."""
    os.kill(found["relay_process"], signal.SIGKILL)
    return opened(found["relay_starts"] + 1)


@pytest.mark.parametrize(
    "ends",
    [pytest.param((-1, 0), id="down", marks=pytest.mark.soak), pytest.param((0, 1), id="across")],
)
def test_a_relay_is_killed_under_load(ends, counts):
    with Running(pace="none", mtu=9000) as cluster:
        before = processes.status(NAME)
        stood = present(cluster.pid)
        with Killer() as killer:
            cluster.copy(*ends, counts(2.0, 20.0))
            while killer.killed < LEAST_KILLS:  # on a busy machine
                cluster.copy(*ends)
        found = opened(1 + killer.killed)
        assert found["relay_starts"] == 1 + killer.killed
        for key in ("address", "namespace", "process"):
            assert [each[key] for each in found["drives"]] == [
                each[key] for each in before["drives"]
            ]
        assert present(cluster.pid) == stood
        assert all(each["state"] == "open" for each in found["drives"])
        assert cluster.ping(-1, 0) and cluster.ping(0, 1)
        log = file_of(NAME, "log").read_text()
        assert log.count("has ended with signal 9; a new relay is started") == killer.killed
    assert not present(cluster.pid)


def test_a_connection_outlives_the_relay():
    """One TCP connection that says a line before and after."""
    answer = """
import socket, sys
listener = socket.create_server((sys.argv[1], 5002))
print("ready", flush=True)
client, _ = listener.accept()
with client, client.makefile("rw") as file:
    for line in file:
        file.write(line[::-1].strip() + "\\n")
        file.flush()
"""
    ask = """
import socket, sys
with socket.create_connection((sys.argv[1], 5002), 20) as client, client.makefile("rw") as file:
    for line in sys.stdin:
        file.write(line)
        file.flush()
        print(file.readline(), end="", flush=True)
"""
    with Running(drives=1, pace="none") as cluster:
        there = cluster.start(0, answer, f"{NET}.2")
        assert there.stdout.readline() == "ready\n"
        here = subprocess.Popen([sys.executable, "-c", ask, f"{NET}.2"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)  # fmt: skip
        try:
            found = processes.status(NAME)
            for word in ("once", "again", "more"):
                here.stdin.write(f"{word}\n")
                here.stdin.flush()
                assert here.stdout.readline() == f"{word[::-1]}\n"
                found = restarted(found)
        finally:
            for each in (here, there):
                each.kill()
                each.communicate()


def test_a_relay_ends_with_its_cluster_and_a_dead_drive_stays_dead():
    with Running(pace="none") as cluster:
        found = processes.status(NAME)
        assert children(cluster.pid) == [*(each["process"] for each in found["drives"]),
                                         found["relay_process"]]  # fmt: skip
        os.kill(found["drives"][0]["process"], signal.SIGKILL)
        wait_for("the end", lambda: "disconnected" in processes.status(NAME)["drives"][0]["state"])
        found = restarted(found)
        first, second = found["drives"]
        assert first["state"].startswith("ended: controller of the tunnel: ")
        assert second["state"] == "open" and cluster.ping(-1, 1) and not cluster.ping(-1, 0, 0.5)
        os.kill(found["relay_process"], signal.SIGTERM)  # as well
        wait_for("a relay", lambda: processes.status(NAME)["relay_starts"] == 3)
        relay = processes.status(NAME)["relay_process"]
        os.kill(cluster.pid, signal.SIGKILL)
        rest = cluster.pid, relay, second["process"]
        wait_for("the end of all", lambda: not any(map(namespaces.start_of, rest)))


def test_a_silent_drive_holds_up_no_other_when_a_relay_starts():
    with Running(pace="none") as cluster:
        found = processes.status(NAME)
        silent = found["drives"][0]["process"]
        os.kill(silent, signal.SIGSTOP)
        try:
            os.kill(found["relay_process"], signal.SIGKILL)

            def second_is_open() -> bool:
                nonlocal found
                found = processes.status(NAME)
                return found["relay_starts"] == 2 and found["drives"][1]["state"] == "open"

            wait_for("the other drive", second_is_open)
            assert found["drives"][0]["state"] == "opening, does not answer"  # not yet given up
            assert cluster.ping(-1, 1)
        finally:
            os.kill(silent, signal.SIGCONT)
        found = opened(2)
        assert [each["state"] for each in found["drives"]] == ["open"] * 2
        assert cluster.ping(-1, 0) and cluster.ping(0, 1)


@pytest.mark.timeout(1800)  # as in `make soak`; it may wait for other clusters
def test_reconnections_leave_nothing(counts):
    """Relays that are killed: the cluster and its drives have what they had."""
    with Running(pace="none") as cluster:
        found = processes.status(NAME)
        stay = [cluster.pid, *(each["process"] for each in found["drives"])]
        for _ in range(5):
            found = restarted(found)
        before = present(cluster.pid), [at_rest(pid) for pid in (*stay, found["relay_process"])]
        half = counts(5, 500)
        for count in range(2 * half):
            if count == half:
                memory = [resident(pid) for pid in stay]
            found = restarted(found)
            assert [each["state"] for each in found["drives"]] == ["open"] * 2
        assert cluster.ping(-1, 0) and cluster.ping(0, 1)
        after = present(cluster.pid), [at_rest(pid) for pid in (*stay, found["relay_process"])]
        assert after == before
        grown = [resident(pid) - size for pid, size in zip(stay, memory, strict=True)]
        assert max(grown) < LEAK_BYTES, grown
    assert not present(cluster.pid)


def at_rest(pid):
    """What a process holds while no controller is reset, which has a thread: the least of 0.6 s."""
    found = []
    for _ in range(12):
        found.append(held(pid))
        time.sleep(0.05)
    return min(found, key=lambda each: (each[1], each[0].total()))


@pytest.mark.timeout(1800)  # as in `make soak`; it may wait for other clusters
def test_resets_leave_nothing(counts):
    """A relay that stays, and a controller that is reset under load."""
    with Running(drives=1, pace="none", mtu=9000, inject="reset=0.05") as cluster:
        cluster.copy(0, -1, 1.0)
        found = processes.status(NAME)
        stay = [cluster.pid, found["relay_process"], found["drives"][0]["process"]]
        before, memory = [at_rest(pid) for pid in stay], [resident(pid) for pid in stay]
        first = found["drives"][0]["resets"]
        while processes.status(NAME)["drives"][0]["resets"] < first + counts(20, 1000):
            cluster.copy(0, -1, 1.0)
        assert [at_rest(pid) for pid in stay] == before
        grown = [resident(pid) - size for pid, size in zip(stay, memory, strict=True)]
        assert max(grown) < LOADED_BYTES, grown


def test_a_relay_that_cannot_start_is_given_up():
    needs_tunnels()
    program = f"""
import os, signal, sys
from ondie.emu.config.config import load_preset
from ondie.emu.live import cluster
from ondie.emu.live.request import Request, way_of
from ondie.emu.units import InputError
asked = Request.of(load_preset("newport"), name="{NAME}", subnet="{NET}.0/24", drives=1)
made = cluster.Cluster(asked, way_of("auto"))
def refuse(*given):
    raise InputError("no relay today")
cluster.Relay = refuse
os.kill(made._relay, signal.SIGKILL)
try:
    made.run()
finally:
    made.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *others, last = done.stderr.splitlines()
    assert first.endswith("has ended with signal 9; a new relay is started")
    assert [each.partition(" with ")[2] for each in others] == [
        "exit code 1; a new relay is started"
    ] * 2
    assert last == "no relay today; the cluster ends"
