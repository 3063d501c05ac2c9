"""Does a forked process say when it is ready, or why it never will be?"""

import os
import signal

import pytest

from ondie.emu.live import forked
from ondie.emu.live.namespaces import start_of
from ondie.emu.units import InputError

FORK = os.fork


def ended(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_it_is_ready_and_ends():
    told, telling = os.pipe()

    def run(ready) -> None:
        os.write(telling, b"%d" % os.getsid(0))
        ready()

    pid = forked.start(run, "has ended")
    assert os.read(told, 100) == b"%d" % pid  # it leads a session
    assert ended(pid) == 0
    os.close(told)
    os.close(telling)


def test_it_may_run_on():
    def run(ready) -> None:
        ready()
        signal.pause()

    pid = forked.start(run, "has ended")
    assert start_of(pid)
    os.kill(pid, signal.SIGKILL)
    assert ended(pid) == -signal.SIGKILL


@pytest.mark.parametrize("error", [None, InputError("--option: wrong"), ValueError("defect")])
def test_why_it_is_not_ready(monkeypatch, capfd, error):
    forked_ones = []

    def fork() -> int:
        forked_ones.append(FORK())
        return forked_ones[-1]

    def run(ready) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(os, "fork", fork)
    said = str(error) if isinstance(error, InputError) else "has ended"
    with pytest.raises(InputError, match=f"^{said}$"):
        forked.start(run, "has ended")
    assert ("ValueError: defect" in capfd.readouterr().err) == (type(error) is ValueError)
    (pid,) = forked_ones
    with pytest.raises(ChildProcessError):  # it was reaped
        os.waitpid(pid, os.WNOHANG)


def test_a_later_error_reaches_no_other_file(capfd, tmp_path):
    """The descriptor that has said so is that of the next file."""
    place = tmp_path / "file"

    def run(ready) -> None:
        ready()
        os.open(place, os.O_WRONLY | os.O_CREAT)
        raise InputError("too late")

    assert ended(forked.start(run, "has ended")) == 1
    assert place.read_bytes() == b"" and capfd.readouterr().err == "too late\n"
