"""An interrupted or failed write leaves the old file whole and nothing half-written."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from ondie.traces import TraceError, hdf5, read, write
from tests.traces.samples import sample, sample_file


def calls_of_a_write(monkeypatch, tmp_path) -> int:
    count = 0
    original = hdf5.Writer._dataset

    def counted(self, key, array):
        nonlocal count
        count += 1
        return original(self, key, array)

    with monkeypatch.context() as patch:
        patch.setattr(hdf5.Writer, "_dataset", counted)
        write(tmp_path / "count.h5", sample())
    (tmp_path / "count.h5").unlink()
    return count


def failing_at(call: int, error: BaseException):
    original, count = hdf5.Writer._dataset, 0

    def dataset(self, key, array):
        nonlocal count
        count += 1
        if count == call:
            raise error
        return original(self, key, array)

    return dataset


def test_an_interrupt_at_any_moment_leaves_the_old_file(monkeypatch, tmp_path):
    calls = calls_of_a_write(monkeypatch, tmp_path)
    assert calls > 25
    old = sample_file(tmp_path).read_bytes()
    for call in range(1, calls + 1):
        monkeypatch.setattr(hdf5.Writer, "_dataset", failing_at(call, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "sample.h5", sample(steps=5))
        monkeypatch.undo()
        assert [p.name for p in tmp_path.iterdir()] == ["sample.h5"]
        assert (tmp_path / "sample.h5").read_bytes() == old


@pytest.mark.parametrize("call", [1, 10, 25])
def test_a_full_disk_is_one_line_and_leaves_nothing(monkeypatch, tmp_path, call):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(hdf5.Writer, "_dataset", failing_at(call, full))
    with pytest.raises(TraceError, match=r"sample.h5: cannot be written: No space left"):
        write(tmp_path / "sample.h5", sample())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failing_rename_leaves_the_old_file(monkeypatch, tmp_path, function):
    old = sample_file(tmp_path).read_bytes()

    def fails(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(hdf5.os, function, fails)
    with pytest.raises(TraceError, match="cannot be written"):
        write(tmp_path / "sample.h5", sample(steps=5))
    assert [p.name for p in tmp_path.iterdir()] == ["sample.h5"]
    assert (tmp_path / "sample.h5").read_bytes() == old


def test_a_folder_that_may_not_be_written_is_one_line(tmp_path):
    if os.geteuid() == 0:
        target = "/proc/sample.h5"  # not even root makes files there
    else:
        (tmp_path / "closed").mkdir(mode=0o500)
        target = str(tmp_path / "closed" / "sample.h5")
    with pytest.raises(TraceError, match="cannot be written"):
        write(target, sample())


SLOW = """
import sys, time
from ondie.traces import hdf5
from tests.traces.samples import sample
from ondie.traces import write
original = hdf5.Writer.finish
def slow(self, trace):
    sys.stdout.write("writing\\n"); sys.stdout.flush()
    time.sleep(60)
    original(self, trace)
hdf5.Writer.finish = slow
write(sys.argv[1], sample())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_in_the_middle_of_a_write(tmp_path, root, number):
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(tmp_path / "t.h5")],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout.readline() == "writing\n"
    time.sleep(0.1)
    child.send_signal(number)
    child.communicate(timeout=30)
    left = [p.name for p in tmp_path.iterdir()]
    if number == signal.SIGINT:
        assert left == []
    else:  # nobody can tidy up after SIGKILL, but the name says what it is
        assert left == [f"t.h5.{child.pid}.partial"]
        with pytest.raises(TraceError):
            read(tmp_path / left[0])
