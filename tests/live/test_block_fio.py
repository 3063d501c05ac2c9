"""Does fio itself replay the logs written for it, and are its own logs read for what it did?

Needs the program fio, 3.31 or later (Debian package fio).
"""

import json
import re
import shutil
import subprocess
import time

import numpy as np
import pytest

from ondie.traces import TraceError
from ondie.traces.block import FLUSH, READ, WRITE, read_block, write_block
from tests.protocol.block_samples import columns, rows

MIB = 1 << 20


@pytest.fixture(scope="module")
def fio():
    """The program's path."""
    path = shutil.which("fio")
    if path is None:
        pytest.skip("fio is not installed")
    version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (3, 31):
        pytest.skip(f"{version.strip()} does not know version 3 of its log")
    return path


def run(fio, folder, *arguments: str) -> dict:
    """Its first job's results."""
    words = [fio, "--name=job", "--ioengine=psync", "--output-format=json", "--thread"]
    done = subprocess.run([*words, *arguments], cwd=folder, capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"bad iolog|bad ddir|not allowed|ignoring", done.stdout + done.stderr)
    return json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]


def replayed(folder) -> list[list[int]]:
    """Per read and write in order: ms from the start, latency, direction, size, offset, ..."""
    text = (folder / "io_clat.1.log").read_text()
    return [[int(field) for field in line.split(",")] for line in text.splitlines()]


def random_trace(rng, n: int, seconds: float, devices=("8,0",)):
    """Reads, writes and flushes of 4 to 16 KiB in 4 MiB, from time 0 on."""
    op = rng.choice([READ, READ, WRITE, WRITE, FLUSH], n)
    offset, size = rng.integers(0, 1000, n) * 4096, rng.integers(1, 5, n) * 4096
    arrival = np.sort(rng.integers(0, int(seconds * 10**12), n))
    arrival[0] = 0
    op[0] = READ  # fio counts from what it logs
    flush = op == FLUSH
    offset[flush] = size[flush] = 0
    device = rng.integers(0, len(devices), n)
    return columns(list(zip(arrival, op, offset, size, device, strict=True)), devices)


@pytest.mark.parametrize("format", ["fio3", "fio2"])
def test_a_written_log_is_replayed_request_by_request(fio, tmp_path, rng, format):
    """The same requests in the same order and not before their time, however late a busy machine
    makes them. After a late request fio shortens the next pauses, on a busy machine a little too
    much: 2.8 ms early was seen."""
    trace = random_trace(rng, 40, 0.6)
    (tmp_path / "drive").write_bytes(bytes(4 * MIB + 16384))
    write_block(trace, tmp_path / "log", format)
    start = time.monotonic()
    job = run(fio, tmp_path, "--read_iolog=log", "--replay_redirect=drive",
              "--write_lat_log=io", "--log_offset=1")  # fmt: skip
    wall_ms = (time.monotonic() - start) * 1e3
    done = [job[kind]["total_ios"] for kind in ("read", "write", "sync")]
    assert done == [trace.counts()[i] for i in (READ, WRITE, FLUSH)]
    assert job["read"]["io_bytes"] == trace.size[trace.op == READ].sum()
    assert job["write"]["io_bytes"] == trace.size[trace.op == WRITE].sum()
    log = np.array(replayed(tmp_path))
    data = trace.op != FLUSH
    assert np.array_equal(log[:, 2], trace.op[data])
    assert np.array_equal(log[:, 4], trace.offset[data])
    assert np.array_equal(log[:, 3], trace.size[data])
    last_ms = int(trace.arrival_ps[-1]) // 10**9
    assert last_ms > 400 and last_ms <= wall_ms < 20_000
    if format == "fio3":  # version 2 counts from fio's start, before the job's
        lag = log[:, 0] - trace.arrival_ps[data] / 1e9  # completions, in whole ms
        assert (lag > -2 - 0.05 * last_ms).all(), lag


def test_without_the_microsecond_fio_loses_the_first_pause(fio, tmp_path):
    """Why version 3 is written from 1 us on."""
    (tmp_path / "drive").write_bytes(bytes(MIB))
    trace = columns([(0, READ, 0, 4096, 0), (10**12, READ, 4096, 4096, 0)], ("drive",))
    write_block(trace, tmp_path / "ours", "fio3")
    text = (tmp_path / "ours").read_text()
    from_zero = re.sub(r"^(\d+) ", lambda m: f"{int(m[1]) - 1} ", text, flags=re.MULTILINE)
    (tmp_path / "zero").write_text(from_zero)
    assert from_zero.splitlines()[3] == "0 drive read 0 4096"
    ours, *zero = [
        run(fio, tmp_path, f"--read_iolog={log}")["job_runtime"] for log in ("ours", *["zero"] * 3)
    ]
    assert ours >= 1000 > min(zero) + 200, (ours, zero)


def test_several_files(fio, tmp_path, rng):
    trace = random_trace(rng, 30, 0.01, ("a", "b"))
    for name in trace.devices:
        (tmp_path / name).write_bytes(bytes(4 * MIB + 16384))
    write_block(trace, tmp_path / "log", "fio3")
    job = run(fio, tmp_path, "--read_iolog=log")
    done = [job[kind]["total_ios"] for kind in ("read", "write", "sync")]
    assert done == [trace.counts()[i] for i in (READ, WRITE, FLUSH)]


def test_its_own_log_is_what_it_did(fio, tmp_path):
    job = run(fio, tmp_path, "--filename=data", "--size=1m", "--rw=randrw", "--bs=4k",
              "--number_ios=24", "--fsync=5", "--thinktime=1000", "--write_iolog=log",
              "--write_lat_log=io", "--log_offset=1")  # fmt: skip
    trace = read_block(tmp_path / "log", "fio")
    data = trace.op != FLUSH
    assert data.sum() == 24 == job["read"]["total_ios"] + job["write"]["total_ios"]
    assert (trace.op == FLUSH).sum() > 0
    log = np.array(replayed(tmp_path))
    assert np.array_equal(log[:, 2], trace.op[data])
    assert np.array_equal(log[:, 4], trace.offset[data])
    assert (log[:, 3] == trace.size[data]).all() and (trace.size[data] == 4096).all()
    assert trace.devices == ("data",) and trace.timed
    # 24 pauses of a millisecond lie in it, whatever the machine.
    assert trace.span_ps > 20 * 10**9
    # And what is read of it is replayed once more as the same.
    write_block(trace, tmp_path / "again", "fio3")
    assert rows(read_block(tmp_path / "again", "fio")) == rows(trace)


def test_two_runs_in_one_log_are_refused(fio, tmp_path):
    """fio appends."""
    for _ in range(2):
        run(fio, tmp_path, "--filename=data", "--size=64k", "--rw=read", "--bs=4k",
            "--write_iolog=log")  # fmt: skip
    with pytest.raises(TraceError, match=r"'fio version 3 iolog' again: fio appended"):
        read_block(tmp_path / "log", "fio")
