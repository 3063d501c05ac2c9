"""`ondie serve --vfio-user`: a server in a process of its own starts, is used, is killed and starts
again with everything there, and ends by a signal; wrong addresses are one line and exit code 2."""

import os
import signal
import socket
import subprocess
import sys

from ondie.emu.cli.console import COMPILING
from ondie.emu.nvme.wire import Sqe
from tests.protocol.vfio_client import PAGE, Driver, VfioClient
from tests.smoke.commands import here

DRIVE = ("--device", "gen4-tlc", "--set", "flash.blocks_per_plane=16", "--block", "4096")

FLUSH, WRITE = 0, 1
"""Opcodes; a read is the one after WRITE."""


def start(path, store):
    """A server that is ready."""
    command = [sys.executable, "-m", "ondie.emu.cli", "serve", "--vfio-user", path, *DRIVE]
    process = subprocess.Popen([*command, "--store", store], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout.readline() == f"vfio-user unix:{path}\n", process.stderr.read()
    return process


def test_a_killed_server_starts_again_with_everything_there(tmp_path):
    path, store = str(tmp_path / "sock"), str(tmp_path / "store")
    for turn in range(2):
        process = start(path, store)
        try:
            with VfioClient(path) as client:
                client.map()
                driver = Driver(client)
                driver.enable()
                queue, place = driver.create(1), driver.take(PAGE)
                sqe = Sqe(WRITE + turn, nsid=1, cdw10=77, prp1=place)
                if turn == 0:
                    driver.view(place, PAGE)[:] = b"kept" * (PAGE // 4)
                assert driver.run(queue, sqe)[0].status == 0
                assert bytes(driver.view(place, 4)) == b"kept"
                smart = driver.data(2, nsid=0xFFFFFFFF, cdw10=2 | 127 << 16)
                assert smart[112] == turn + 1  # power cycles
                assert smart[144] == turn  # unsafe shutdowns
                assert driver.run(queue, Sqe(FLUSH, nsid=1))[0].status == 0
            process.send_signal(signal.SIGTERM if turn else signal.SIGKILL)
            assert process.wait(60) == (0 if turn else -signal.SIGKILL)
            assert process.stderr.read().replace(f"{COMPILING}\n", "") == ""
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()
    assert not os.path.exists(path)


def test_wrong_addresses(capsys, tmp_path):
    used = str(tmp_path / "used")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(used)
        other.listen()
        long, file = str(tmp_path / ("x" * 120)), tmp_path / "file"
        file.write_text("")
        for options, words in (
            ((), "--nbd"),
            (("--vfio-user", long), "at most 107 bytes"),
            (("--vfio-user", str(file)), "is not a socket"),
            (("--vfio-user", used), "another program listens"),
            (("--vfio-user", str(tmp_path / "no" / "sock")), "No such file"),
        ):
            done = here(capsys, "serve", *options, *DRIVE)
            assert done.code == 2 and words in done.err and done.err.count("\n") == 1, done.err
    assert file.exists()
