"""Does a user that is not root get a cluster, and is it said which way it runs?

The user is this one, whom a user namespace gives another number: files stay readable, and
capabilities are gone.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.docs.generate import ROOT
from tests.live.processes import alone, needs, needs_tunnels
from tests.live.tunnel_without_root import SIZE

USER = 1_000_000 + os.getpid()
BECOME = ["unshare", "--user", f"--map-user={USER}", f"--map-group={USER}"]
HIDE = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/net && exec "$@"', "sh"]
"""Without /dev/net/tun."""
PLAIN = "user namespace, veth and packet sockets"
ONE = ["unshare", "--user", "--map-root-user", "sh", "-c",
       'echo 1 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]  # fmt: skip
"""With one user namespace, which is that of the user."""
WAYS = {
    "tun": ([], ["--network-device", "tun"], "user namespace, TUN (not root)"),
    "veth": ([], ["--network-device", "veth"], f"{PLAIN} (not root)"),
    "relay": (
        ONE,
        ["--port", "5201"],
        "TCP relays on the loopback device (not root, cannot create a user namespace: "
        "No space left on device)",
    ),
    "no TUN": (
        HIDE,
        [],
        f"{PLAIN} (not root, /dev/net/tun: cannot be opened: No such file or directory)",
    ),
}


@pytest.fixture(autouse=True)
def only_clusters():
    """The user's folder of states goes at the end."""
    needs_tunnels()
    needs("ping", "iperf3")
    with alone("tunnel"), contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, f"/tmp/ondie-tunnel-{USER}", ignore_errors=True)
        yield


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_programs_talk(way):
    before, options, said = WAYS[way]
    words = [sys.executable, "-m", "tests.live.tunnel_without_root", *options]
    done = run(*before, *BECOME, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["printed"].split("\n")[0].endswith(f": 2 x newport, {said}")
    assert found["answers"] == ([] if way == "relay" else ["3"])
    assert min(found["received"]) > SIZE
    status = found["status"]
    assert status["way"] == said and status["own_user"] == (way != "relay")
    for drive, received in zip(status["drives"], found["received"], strict=True):
        assert drive["bytes_down"] > received
    assert status["drives"][0]["forwarded"] > found["received"][1] / 65535
