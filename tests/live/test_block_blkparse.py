"""Is the text that blkparse itself prints read for what its binary input says?

Needs the program blkparse (Debian package blktrace), no kernel facility: its input is made here.
"""

import shutil
import struct
import subprocess

import pytest

from ondie.traces.block import FLUSH, READ, TRIM, WRITE, read_block
from tests.protocol.block_samples import SAMPLES, rows

# The record of the kernel's blktrace interface, version 7: magic, sequence, time in ns, sector,
# bytes, action (what happened below, category bits from 16 up), pid, device, cpu, error, length
# of the data behind it.
RECORD = struct.Struct("<IIQQIIIIIHH")
MAGIC = 0x65617407
CATEGORY = {"R": 0, "W": 1, "flush": 2, "S": 3, "queue": 4, "requeue": 5, "issue": 6,
            "complete": 7, "fs": 8, "pc": 9, "notify": 10, "A": 11, "M": 12, "D": 13,
            "FUA": 15}  # fmt: skip
ACTION = {"Q": (1, "queue"), "M": (2, "queue"), "G": (4, "queue"), "R": (6, "requeue"),
          "D": (7, "issue"), "C": (8, "complete"), "P": (9, "queue"), "U": (10, "queue"),
          "I": (12, "queue"), "X": (13, None)}  # fmt: skip
KIB = 1024
PROCESS = struct.pack("<IIQQIIIIIHH", MAGIC, 0, 0, 0, 0, 1 << 26, 697, 0, 0, 0, 16)


def record(sequence, time_ns, action, marks, sector=0, size=0, data=b"", cpu=0, device=(8, 0),
           error=0, category="fs"):  # fmt: skip
    """One event; marks: names of CATEGORY."""
    number, of = ACTION[action]
    bits = [*marks, category] + ([of] if of else [])
    what = number | sum(1 << (16 + CATEGORY[bit]) for bit in bits)
    at = device[0] << 20 | device[1]
    head = (MAGIC, sequence, time_ns, sector, size, what, 697, at, cpu, error, len(data))
    return RECORD.pack(*head) + data


EVENTS = [
    # time, action, marks, sector, bytes
    (1000, "Q", ["W"], 223490, 4 * KIB),
    (1500, "G", ["W"], 223490, 4 * KIB),
    (2000, "P", [], 0, 0),
    (2500, "Q", ["W", "S"], 223498, 4 * KIB),
    (2600, "M", ["W", "S"], 223498, 4 * KIB),
    (3000, "I", ["W"], 223490, 8 * KIB),
    (4500, "D", ["W"], 223490, 8 * KIB),
    (5000, "R", ["W"], 223490, 8 * KIB),
    (6000, "D", ["W"], 223490, 8 * KIB),
    (9000, "C", ["W"], 223490, 8 * KIB),
    (11000, "D", ["R", "A"], 1000, 512),
    (13000, "D", ["flush"], 0, 0),
    (15000, "D", ["W", "D"], 5000, KIB * KIB),
    (17000, "D", ["W", "flush", "FUA", "S", "M"], 7000, 4 * KIB),
    (18000, "Q", ["R"], 8000, 8 * KIB),
    (20_000_000_123, "D", ["R"], 2**40, 4 * KIB),
]


@pytest.fixture(scope="module")
def blkparse():
    """The program's path."""
    path = shutil.which("blkparse")
    if path is None:
        pytest.skip("blkparse is not installed")
    return path


def printed(blkparse, folder, *options: str) -> str:
    """What it prints of the files x.blktrace.CPU in a folder."""
    words = [blkparse, "-i", "x", *options]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (folder / "out.txt").write_text(done.stdout)
    return done.stdout


def write_binary(folder, second_cpu: bool = True) -> None:
    first = PROCESS + b"kjournald".ljust(16, b"\0")
    for i, event in enumerate(EVENTS, start=1):
        first += record(i, *event)
    first += record(99, 20_000_000_200, "D", ["R"], 0, 36, bytes([0x12, 0, 0, 0, 36, 0]),
                    category="pc")  # fmt: skip
    (folder / "x.blktrace.0").write_bytes(first)
    if second_cpu:
        other = [
            record(i, 7000 + i * 10**6, "D", ["R"], 4096 * i, 4 * KIB, cpu=1) for i in range(1, 4)
        ]
        (folder / "x.blktrace.1").write_bytes(b"".join(other))


@pytest.mark.parametrize("options", [(), ("-q",), ("-t",), ("-s",), ("-v",), ("-t", "-s")])
def test_issues(blkparse, tmp_path, options):
    write_binary(tmp_path)
    text = printed(blkparse, tmp_path, *options)
    assert ("Throughput" in text) == ("-q" not in options)
    trace = read_block(tmp_path / "out.txt", "blkparse")
    first = 1000  # blkparse's time 0 is the earliest event
    assert list(zip((trace.arrival_ps // 1000 + first).tolist(), rows(trace), strict=True)) == [
        (t, (op, sector * 512, size, "8,0"))
        for t, op, sector, size in [
            (6000, WRITE, 223490, 8 * KIB),  # the one at 4500 was requeued
            (11000, READ, 1000, 512),
            (13000, FLUSH, 0, 0),
            (15000, TRIM, 5000, KIB * KIB),
            (17000, FLUSH, 0, 0),
            (17000, WRITE, 7000, 4 * KIB),
            (1_007_000, READ, 4096, 4 * KIB),
            (2_007_000, READ, 8192, 4 * KIB),
            (3_007_000, READ, 12288, 4 * KIB),
            (20_000_000_123, READ, 2**40, 4 * KIB),
        ]
    ]
    assert trace.fua.tolist() == [False] * 5 + [True] + [False] * 4


def test_queued(blkparse, tmp_path):
    write_binary(tmp_path, second_cpu=False)
    printed(blkparse, tmp_path)
    trace = read_block(tmp_path / "out.txt", "blkparse", event="Q")
    assert (trace.offset // 512).tolist() == [223490, 223498, 8000]


def test_the_sample_was_printed_like_this(blkparse, tmp_path):
    """Lines of the stored sample have the columns of this blkparse."""
    write_binary(tmp_path)
    here = printed(blkparse, tmp_path).splitlines()
    stored = (SAMPLES / "blkparse.txt").read_text().splitlines()
    issue = next(x for x in here if " D " in x and "223490 + 16" in x)
    then = next(x for x in stored if " D " in x and "223490 + 16" in x)
    assert issue.index("223490") == then.index("223490")
    assert issue.split()[0] == then.split()[0] == "8,0"
    assert [issue.split()[i] for i in (5, 6, 8)] == [then.split()[i] for i in (5, 6, 8)]
