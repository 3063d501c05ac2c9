"""Is the start of a cluster ended by signals and by `ondie tunnel down`, does it refuse a name in
one line, and is a relay that fails given up?
"""

import os
import signal
import subprocess
import sys

import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.live import cluster, namespaces, processes
from ondie.emu.live.request import Request, file_of, way_of
from ondie.emu.units import InputError
from tests.live.processes import alone, needs_tunnels, wait_for
from tests.live.test_tunnel_cluster import NAME, NET, Running, present

PROGRAM = f"""
import os, signal, sys, time
from ondie.emu.config.config import load_preset
from ondie.emu.live import cluster, namespaces, processes
from ondie.emu.live.request import Request, way_of
asked = Request.of(load_preset("newport"), name="{NAME}", subnet="{NET}.0/24", drives=2)
print(os.getpid(), flush=True)
"""
SERVE = """
try:
    cluster.serve(asked, way_of("auto"), processes.write_state, lambda made: print("ready"))
except processes.InputError as error:
    print(error, flush=True)
"""
ENDED = f"--name {NAME}: the cluster was ended during its start"


@pytest.fixture(autouse=True)
def only_clusters():
    needs_tunnels()
    with alone("tunnel"):
        yield
        processes.stop(NAME)


def run(program: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-c", PROGRAM + program]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


# --- signals


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", cluster.ENDING)
def test_a_signal_while_networks_are_made_ends_the_start(number):
    """It comes with the first namespace, and no second one is made."""
    done = run(f"""
run, made = namespaces.run, []
def signalled(*words, **named):
    if words[:2] == ("netns", "add"):
        made.append(words[2])
        os.kill(os.getpid(), {int(number)})
    return run(*words, **named)
namespaces.run = signalled
{SERVE}
print(made)
""")
    assert done.returncode == 0, done.stderr
    pid, *lines = done.stdout.splitlines()
    assert lines == [ENDED, f"['ondie-{pid}-0']"]
    assert not present(int(pid)) and not file_of(NAME, "sock").exists()


SLOW = f"""
class Slow(cluster.Relay):
    def await_open(self):
        print("waits", flush=True)
        time.sleep(40)
cluster.Relay = Slow
{SERVE}
"""


def test_a_signal_while_the_tunnels_open_ends_the_start():
    with subprocess.Popen([sys.executable, "-c", PROGRAM + SLOW], stdout=subprocess.PIPE,
                          text=True) as slow:  # fmt: skip
        pid = int(slow.stdout.readline())
        assert slow.stdout.readline() == "waits\n"
        slow.send_signal(signal.SIGTERM)
        assert slow.communicate(timeout=20)[0] == f"{ENDED}\n" and slow.returncode == 0
    assert not present(pid) and not file_of(NAME, "sock").exists()


def test_down_ends_a_cluster_that_starts():
    with subprocess.Popen([sys.executable, "-c", PROGRAM + SLOW], stdout=subprocess.PIPE,
                          text=True) as slow:  # fmt: skip
        pid = int(slow.stdout.readline())
        assert slow.stdout.readline() == "waits\n"
        assert processes.read_state(NAME)["pid"] == pid
        assert processes.stop(NAME) is True
        assert slow.communicate(timeout=20)[0] == f"{ENDED}\n"
    assert not present(pid) and not file_of(NAME, "sock").exists()
    assert processes.stop(NAME) is False


# --- names


def test_a_refused_start_leaves_the_log_and_a_new_one_empties_it():
    log = file_of(NAME, "log")
    with Running(drives=1, pace="none") as made:
        os.kill(processes.status(NAME)["relay_process"], signal.SIGKILL)
        wait_for("the next relay", lambda: processes.status(NAME)["relay_starts"] == 2)
        before = log.read_text()
        assert "has ended with signal 9" in before
        asked = Request.of(load_preset("newport"), name=NAME, subnet=f"{NET}.0/24")
        with pytest.raises(InputError, match=f"--name {NAME}: a cluster with this name is up"):
            processes.start(asked, way_of("auto"))
        assert log.read_text() == before
        os.kill(processes.status(NAME)["relay_process"], signal.SIGKILL)
        wait_for("the next relay", lambda: processes.status(NAME)["relay_starts"] == 3)
        assert log.read_text().startswith(before)  # behind it, with no gap
        assert log.read_text().count("has ended with signal 9") == 2
        assert "\0" not in log.read_text() and namespaces.start_of(made.pid)
    with Running(drives=1, pace="none"):
        assert log.read_text() == ""


def test_a_name_that_cannot_be_had_is_not_a_cluster_that_is_up():
    place = file_of(NAME, "sock")
    place.write_text("")
    try:
        asked = Request.of(load_preset("newport"), name=NAME, subnet=f"{NET}.0/24")
        with pytest.raises(InputError) as caught:
            processes.start(asked, way_of("auto"))
    finally:
        place.unlink()
    assert str(caught.value) == f"--name unix:{place}: the file exists and is not a socket"


# --- relays


def test_a_relay_that_fails_at_once_is_given_up():
    """Its drives open, and what it does first is an error."""
    done = run("""
cluster.LIVED_S = 60
class Failing(cluster.Relay):
    def run(self):
        raise OSError("no room")
cluster.Relay = Failing
made = cluster.Cluster(asked, way_of("auto"))
began = time.monotonic()
try:
    made.run()
finally:
    made.close()
print(time.monotonic() - began)
""")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines.count("OSError: no room") == cluster.MOST_FAILURES
    told = [line for line in lines if "has ended with exit code 1" in line]
    assert [line.partition("; ")[2] for line in told] == ["a new relay is started"] * 2 + [
        "the cluster ends"
    ]
    took = float(done.stdout.splitlines()[-1])
    assert took >= 3 * cluster.PAUSE_S  # the second pause is twice as long


def test_a_relay_that_has_lived_is_none_of_those():
    """Each one fails after a time, and a fifth ends the cluster."""
    done = run("""
cluster.LIVED_S = 0.05
class Failing(cluster.Relay):
    def run(self):
        time.sleep(0.1)
        if self.place.starts == 5:
            os.kill(self.place.pid, signal.SIGTERM)
            time.sleep(20)
        raise OSError("no room")
cluster.Relay = Failing
cluster.serve(asked, way_of("auto"), processes.write_state, lambda made: None)
""")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("a new relay is started") == 4 and "ends" not in done.stderr
