"""Does a cluster run for a user that is not root, in the foreground, and end with its program?

Root becomes that user after all is loaded, since the user may not be able to read the program.
"""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from ondie.emu.live.namespaces import start_of
from tests.live.processes import needs, needs_tunnels, wait_for

USER = 65534
PROGRAM = textwrap.dedent(
    f"""
    import ctypes, os, sys, threading, time
    import ondie.emu.cli.commands.tunnel, ondie.emu.live.drive_end
    from ondie.emu.cli.main import main
    from ondie.emu.config.config import load_preset
    from ondie.emu.serve.memory_drive import MemoryDrive
    from ondie.emu.serve.nvme_drive import NvmeDrive

    NvmeDrive(MemoryDrive(load_preset("newport")))
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
    os.setgroups([])
    os.setresgid({USER}, {USER}, {USER})
    os.setresuid({USER}, {USER}, {USER})
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: its own /proc belongs to the user
    sys.argv[0] = "ondie"
    main()
    """
)
NAME = f"user{os.getpid()}"


def tunnel(*words: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, "tunnel", words[0], "--name", NAME, *words[1:]]


@pytest.fixture
def foreground():
    needs_tunnels()
    needs("nsenter", "mount", "ping")
    if subprocess.run(["unshare", "-Urn", "true"], user=USER, check=False).returncode:
        pytest.skip("this user may have no user namespace")
    up = tunnel("up", "--foreground", "--drives", "1", "--pace", "none", "--network-device", "veth")
    running = subprocess.Popen(up, stdout=subprocess.PIPE, text=True)
    try:
        yield running, [running.stdout.readline() for _ in range(4)]
    finally:
        running.kill()
        running.wait()
        subprocess.run(tunnel("down"), check=False, capture_output=True)


@pytest.mark.soak
def test_a_user_gets_a_cluster_in_the_foreground(foreground):
    running, printed = foreground
    assert printed[0].startswith(f"{NAME}: 1 x newport, user namespace, veth")
    assert printed[1:3] == ["host 10.77.0.1\n", "drive 0 10.77.0.2\n"]
    cluster = int(printed[3].split()[1])
    asked = tunnel("exec", "host", "ping", "-c", "1", "-W", "5", "10.77.0.2")
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert "1 received" in done.stdout, done.stdout + done.stderr
    done = subprocess.run(tunnel("status"), capture_output=True, text=True, timeout=60)
    assert "drive 0 10.77.0.2" in done.stdout, done.stderr
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 0
    assert not start_of(cluster)


@pytest.mark.soak
def test_the_cluster_ends_with_its_program(foreground):
    running, printed = foreground
    cluster = int(printed[3].split()[1])
    assert start_of(cluster)
    running.kill()
    wait_for("the end of the cluster", lambda: not start_of(cluster), 20.0)
