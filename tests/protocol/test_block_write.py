"""Does an interrupted or failed write leave the old file whole and nothing half-written?"""

import errno
import os

import pytest

from ondie.traces import TraceError, textfile
from ondie.traces.block import READ, read_block, write_block
from tests.protocol.block_samples import columns, rows

LONG = columns([(i * 10**6, READ, i * 512, 512, 0) for i in range(40_000)], ("/a",))
SHORT = columns([(10**6, READ, 0, 512, 0)], ("/a",))


def failing(at: int, error: BaseException):
    original, calls = textfile.Target.write, 0

    def write(self, text):
        nonlocal calls
        calls += 1
        if calls == at:
            raise error
        original(self, text)

    return write


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interrupt_leaves_the_old_file(monkeypatch, tmp_path, call, suffix):
    path = tmp_path / f"t{suffix}"
    write_block(SHORT, path, "fio3")
    old = path.read_bytes()
    monkeypatch.setattr(textfile.Target, "write", failing(call, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        write_block(LONG, path, "fio3")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == old


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failing_rename_leaves_the_old_file(monkeypatch, tmp_path, function):
    write_block(SHORT, tmp_path / "t", "fio3")
    old = (tmp_path / "t").read_bytes()

    def fails(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(textfile.os, function, fails)
    with pytest.raises(TraceError, match="t: cannot be written: No space left"):
        write_block(LONG, tmp_path / "t", "fio3")
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
    assert (tmp_path / "t").read_bytes() == old


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    """/dev/full is a disk without room."""

    class Full(textfile.Target):
        def __init__(self, path):
            super().__init__(path)
            self._file = open("/dev/full", "wb", buffering=0)

    with Full(tmp_path / "t") as target, pytest.raises(TraceError, match="No space left"):
        target.write("x" * 10)
    assert not list(tmp_path.iterdir())


def test_nothing_is_seen_before_the_end(tmp_path):
    with textfile.Target(tmp_path / "t") as target:
        target.write("half")
        assert [p.name for p in tmp_path.iterdir()] == [f"t.{os.getpid()}.partial"]
    assert not list(tmp_path.iterdir())


def test_progress_goes_from_nothing_to_all(tmp_path):
    for suffix in ("", ".gz", ".xz"):
        wrote, read = [], []
        path = tmp_path / f"t{suffix}"
        write_block(LONG, path, "fio3", progress=wrote.append)
        again = read_block(path, "fio3", progress=read.append, piece=1 << 16)
        assert rows(again) == rows(LONG)
        for shares in (wrote, read):
            assert shares == sorted(shares) and shares[-1] == 1.0 and shares[0] < 1


def test_damage_while_reading_closes_the_file(tmp_path, recwarn):
    (tmp_path / "t").write_text("1 0 8 8 1\n1 0 8 8\n")
    with pytest.raises(TraceError):
        read_block(tmp_path / "t", "mqsim", time_unit="ns")
    assert not [w for w in recwarn if issubclass(w.category, ResourceWarning)]
