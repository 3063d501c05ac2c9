"""Do SIGTERM and SIGHUP end a command as Ctrl-C does: in one line, with nothing left behind?"""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from ondie.emu.drive import Drive
from tests.state import small

# The transfer stops after its first commands and says so.
DRIVER = """
import sys, time
from ondie.emu.replay import disk_image

def wait(*arguments):
    print("ready", flush=True)
    while True:
        time.sleep(0.05)  # a signal just before a system call would wait for its end

disk_image._finish = wait
from ondie.emu.cli import start
start()
"""
LITTLE = ("flash.channels=1", "flash.dies_per_channel=1", "flash.blocks_per_plane=16",
          "cache.capacity=1 MiB")  # fmt: skip


@pytest.fixture(autouse=True)
def hang_up_ends():
    """SIGHUP ends a process, also where the shell of the tests ignores it (nohup)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def ended(folder, signals, *arguments):
    """(exit code, stdout, stderr) after these signals in the middle of a transfer."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, "store", *map(str, arguments), "--quiet"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()
        assert any(name.endswith(".partial") for name in os.listdir(folder))
        for number in signals:
            process.send_signal(number)
        out, err = process.communicate(timeout=100)
        return process.returncode, out, err.strip()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("name", "code"), [("SIGTERM", 143), pytest.param("SIGHUP", 129, marks=pytest.mark.soak)]
)
def test_an_import_leaves_nothing(tmp_path, name, code):
    (tmp_path / "a.raw").write_bytes(bytes(range(256)) * 4096)
    settings = [word for each in LITTLE for word in ("--set", each)]
    words = ("import", "a.raw", "new", "--device", "gen4-tlc", *settings)
    found = ended(tmp_path, [signal.Signals[name]], *words)
    assert found == (code, "", f"ondie: ended by {name}; nothing was written")
    assert os.listdir(tmp_path) == ["a.raw"]


def test_an_export_leaves_nothing(tmp_path):
    """A second signal does not interrupt the removal (systemd sends both)."""
    with Drive(small.config(), True, store=tmp_path / "s") as drive:
        drive.write(0, np.ones(small.PAGE, np.uint8))
    found = ended(tmp_path, [signal.SIGHUP, signal.SIGTERM], "export", "s", "out.raw")
    names = {129: "SIGHUP", 143: "SIGTERM"}  # the kernel delivers pending ones in any order
    assert (
        found[0] in names and found[2] == f"ondie: ended by {names[found[0]]}; nothing was written"
    )
    assert os.listdir(tmp_path) == ["s"]


def test_a_signal_while_the_interpreter_ends():
    """The handlers of Python are gone by then: the first signal still gives the exit code."""
    code = (
        "import os, signal, sys; from ondie.emu.cli import ending as cli; cli.end_in_order()\n"
        "class Late:\n"
        "    def __del__(self, write=os.write, kill=os.kill, pid=os.getpid()):\n"
        "        write(1, b'late'); kill(pid, 15); kill(pid, 1)\n"
        "sys.late = Late()\n"  # collected when the modules are, after the handlers
        "try:\n    os.kill(os.getpid(), signal.SIGHUP)\n"
        "except KeyboardInterrupt as error:\n    sys.exit(cli.interruption(error)[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (129, "late", "")


def test_an_ignored_signal_stays_ignored():
    """nohup: SIGHUP is ignored, SIGTERM is not."""
    code = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from ondie.emu.cli import ending as cli; cli.end_in_order()\n"
        "os.kill(os.getpid(), signal.SIGHUP); print('on')\n"
        "try:\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "except KeyboardInterrupt as error:\n    print(*cli.interruption(error))\n"
        "os.kill(os.getpid(), signal.SIGTERM); print('still on')\n"
        "print(*cli.interruption(KeyboardInterrupt()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "on", "ended by SIGTERM; nothing was written 143", "still on",
        "interrupted; nothing was written 130",
    ]  # fmt: skip
