"""Does each reader take from a file what its format says, on lines worked out by hand?"""

import gzip
import lzma

import numpy as np
import pytest

from ondie.traces import TraceError
from ondie.traces.block import FLUSH, READ, TRIM, WRITE, read_block
from tests.protocol.block_samples import SAMPLES, rows, write_lines

MSR = [  # two volumes; Windows filetime, 100 ns per tick
    "128166372003061629,usr,0,Read,7014609920,24576,41286",
    "128166372003061630,usr,1,Write,1317441536,8192,1963",
    "128166372013061629,usr,0,Write,0,512,90",
]


def test_msr(tmp_path):
    trace = read_block(write_lines(tmp_path / "usr.csv", *MSR), "msr")
    assert trace.arrival_ps.tolist() == [0, 100_000, 10**12]  # 1 tick; 1e7 ticks are a second
    assert rows(trace) == [
        (READ, 7014609920, 24576, "usr_0"),
        (WRITE, 1317441536, 8192, "usr_1"),
        (WRITE, 0, 512, "usr_0"),
    ]
    assert trace.response_ps.tolist() == [4128600000, 196300000, 9000000]  # 41286 x 100 ns
    assert trace.origin_ps == 128166372003061629 * 100_000  # does not fit int64: 1.3e22
    assert (trace.source, trace.format, trace.devices) == ("usr.csv", "msr", ("usr_0", "usr_1"))


def test_msr_with_the_line_ends_of_windows(tmp_path):
    (tmp_path / "usr.csv").write_bytes("".join(f"{x}\r\n" for x in MSR).encode())
    assert read_block(tmp_path / "usr.csv", "msr").response_ps.tolist()[-1] == 9000000


def test_mqsim(tmp_path):
    path = write_lines(tmp_path / "t", "8123 0 3103360 16 0", "10993 1 2852392 256 1")
    for unit, ps in (("ps", 1), ("ns", 1000), ("us", 10**6)):
        trace = read_block(path, "mqsim", time_unit=unit)
        assert trace.arrival_ps.tolist() == [8123 * ps, 10993 * ps]  # the first is not at 0
        assert rows(trace) == [  # 0 is a write; sectors of 512 B
            (WRITE, 3103360 * 512, 8192, "0"),
            (READ, 2852392 * 512, 131072, "1"),
        ]


def test_mqsim_ends_without_a_newline(tmp_path):
    """As one of the traces that come with it does; the last column shows that nothing is cut."""
    (tmp_path / "t").write_bytes(b"1 0 8 8 1\n2 0 16 8 1")
    assert read_block(tmp_path / "t", "mqsim", time_unit="ns").offset.tolist() == [4096, 8192]


@pytest.mark.parametrize("opener", [gzip.open, lzma.open])
def test_a_compressed_file_in_several_members(tmp_path, opener):
    path = tmp_path / ("t.gz" if opener is gzip.open else "t.xz")
    with open(path, "wb") as file:
        for line in (b"1 0 8 8 1\n2 0 1", b"6 8 1\n"):
            packed = gzip.compress(line) if opener is gzip.open else lzma.compress(line)
            file.write(packed)
    assert read_block(path, "mqsim", time_unit="ns").offset.tolist() == [4096, 8192]


def test_limit_reads_no_further(tmp_path):
    path = write_lines(tmp_path / "t", "1 0 8 8 1", "2 0 16 8 1", "3 0 x 8 1")
    with pytest.raises(TraceError, match="line 3"):
        read_block(path, "mqsim", time_unit="ns")
    # Pieces of about a line: the third is never looked at.
    trace = read_block(path, "mqsim", time_unit="ns", limit=2, piece=12)
    assert trace.offset.tolist() == [4096, 8192]


def test_sorting_keeps_the_order_of_equal_times(tmp_path):
    lines = ("5 0 1 1 1", "3 0 2 1 1", "5 0 3 1 1", "3 0 4 1 0")
    trace = read_block(write_lines(tmp_path / "t", *lines), "mqsim", time_unit="ns", sort=True)
    assert (trace.offset // 512).tolist() == [2, 4, 1, 3]
    assert trace.op.tolist() == [READ, WRITE, READ, READ]
    assert trace.notes == ("requests that were out of order and were sorted by time: 4",)


# --- fio


def test_fio_writes_this_by_itself():
    """A log that fio 3.33 wrote of a job with reads, writes and fsync."""
    trace = read_block(SAMPLES / "fio3.log", "fio")
    assert trace.arrival_ps[:3].tolist() == [122 * 10**6, 5411 * 10**6, 10615 * 10**6]
    assert trace.counts() == (7, 5, 0, 1)
    assert rows(trace)[8] == (FLUSH, 0, 0, "/data/file")  # its offset says nothing
    assert trace.timed and trace.devices == ("/data/file",)


V2 = ("fio version 2 iolog", "/a add", "/b add", "/a open", "/b open")


def test_fio_version_2_without_waits_has_no_times(tmp_path):
    lines = ("/a read 0 4096", "/b write 512 100", "/a trim 8192 4096", "/b datasync 0 0")
    trace = read_block(write_lines(tmp_path / "t", *V2, *lines, "/a close", "/b close"), "fio")
    assert rows(trace) == [
        (READ, 0, 4096, "/a"),
        (WRITE, 512, 100, "/b"),
        (TRIM, 8192, 4096, "/a"),
        (FLUSH, 0, 0, "/b"),
    ]
    assert not trace.timed and not trace.arrival_ps.any()


WAITS = ("/a read 0 512", "/a wait 1000 0", "/a wait 50 0", "/a read 0 512", "/a wait 1200 9",
         "/a wait 900 0", "/b read 0 512")  # fmt: skip


def test_waits_as_the_manual_says(tmp_path):
    # Microseconds since the previous wait, below 100 discarded: 0; 1000; 1000 + 1200 + 900.
    trace = read_block(write_lines(tmp_path / "t", *V2, *WAITS), "fio2", wait="manual")
    assert (trace.arrival_ps // 10**6).tolist() == [0, 1000, 3100]


def test_waits_as_the_program_does(tmp_path):
    # Milliseconds since its start, and none for a time that has passed: 0; 1000; 1200.
    trace = read_block(write_lines(tmp_path / "t", *V2, *WAITS), "fio2", wait="program")
    assert (trace.arrival_ps // 10**9).tolist() == [0, 1000, 1200]
    assert trace.timed


@pytest.mark.parametrize("wait", ["manual", "program"])
def test_waits_go_on_from_piece_to_piece(tmp_path, wait):
    path = write_lines(tmp_path / "t", *V2, *WAITS)
    whole = read_block(path, "fio2", wait=wait)
    for piece in range(20, 60, 3):
        again = read_block(path, "fio2", wait=wait, piece=piece)
        assert again.arrival_ps.tolist() == whole.arrival_ps.tolist()


def test_a_file_may_be_opened_again(tmp_path):
    lines = ("/a read 0 512", "/a close", "/a open", "/a read 512 512", "/a close")
    assert len(read_block(write_lines(tmp_path / "t", *V2, *lines), "fio")) == 2


def test_a_file_that_nobody_uses_is_no_device(tmp_path):
    trace = read_block(write_lines(tmp_path / "t", *V2, "/b read 0 512"), "fio")
    assert trace.devices == ("/b",) and trace.device.tolist() == [0]


# --- blkparse


def blkparse(**options):
    return read_block(SAMPLES / "blkparse.txt", "blkparse", **options)


def test_blkparse_issues():
    """Of the sample: a merge, a requeue, a passthrough command, flush with and without data."""
    trace = blkparse()
    k = 512
    assert rows(trace) == [
        (WRITE, 223490 * k, 16 * k, "8,0"),  # two bios merged; issued twice, sent once
        (READ, 0, 8 * k, "8,0"),
        (READ, 1000 * k, 1 * k, "8,0"),
        (FLUSH, 0, 0, "8,0"),
        (TRIM, 5000 * k, 2048 * k, "8,0"),
        (FLUSH, 0, 0, "8,0"),  # the first F of FWFSM
        (WRITE, 7000 * k, 8 * k, "8,0"),  # the second is FUA
        (READ, 4096 * k, 8 * k, "8,0"),
        (READ, 8192 * k, 8 * k, "8,0"),
    ]
    assert (trace.arrival_ps // 1000).tolist() == [5000, 6000, 10000, 12000, 14000, 16000, 16000,
                                                   1006000, 2006000]  # fmt: skip
    assert trace.fua.tolist() == [False] * 6 + [True, False, False]
    assert list(trace.notes) == [
        "D events dropped because they have no sectors: 1",
        "requests requeued by the driver and counted once: 1",
        "writes with a preceding flush, each split into two requests: 1",
    ]


def test_blkparse_queued():
    trace = blkparse(event="Q")
    assert [(op, o // 512, s // 512) for op, o, s, _ in rows(trace)] == [
        (WRITE, 223490, 8), (WRITE, 223498, 8), (READ, 1000, 1), (FLUSH, 0, 0),
        (TRIM, 5000, 2048), (FLUSH, 0, 0), (WRITE, 7000, 8), (READ, 8000, 16),
    ]  # fmt: skip


def test_blkparse_completed():
    trace = blkparse(event="C")
    assert trace.op.tolist() == [WRITE, READ, FLUSH, FLUSH, WRITE]
    assert trace.arrival_ps[1] == 19_999_999_123_000  # 19.999999123 s


def test_blkparse_in_pieces():
    whole = blkparse()
    for piece in (100, 333, 1000):
        again = blkparse(piece=piece)
        assert rows(again) == rows(whole) and again.notes == whole.notes


EVENT = "  8,0    0  {i:7d} {i:5d}.000000000   697 {a:>2s} {d:>3s} {rest}"


def events(*lines: tuple[str, str, str]) -> list[str]:
    return [EVENT.format(i=i, a=a, d=d, rest=rest) for i, (a, d, rest) in enumerate(lines)]


@pytest.mark.parametrize(
    ("rwbs", "expected"),
    [
        ("R", [(READ, False)]),
        ("RA", [(READ, False)]),
        ("RSM", [(READ, False)]),
        ("W", [(WRITE, False)]),
        ("WS", [(WRITE, False)]),
        ("WFS", [(WRITE, True)]),
        ("FWS", [(FLUSH, False), (WRITE, False)]),
        ("FWFS", [(FLUSH, False), (WRITE, True)]),
        ("FWFSM", [(FLUSH, False), (WRITE, True)]),
        ("WBS", [(FLUSH, False), (WRITE, True)]),
        ("WB", [(FLUSH, False), (WRITE, True)]),
        ("D", [(TRIM, False)]),
        ("DS", [(TRIM, False)]),
        ("RF", [(READ, False)]),  # FUA of a read asks nothing of a cache
    ],
)
def test_rwbs(tmp_path, rwbs, expected):
    path = write_lines(tmp_path / "t", *events(("D", rwbs, "8 + 16 [x]")))
    trace = read_block(path, "blkparse")
    assert list(zip(trace.op.tolist(), trace.fua.tolist(), strict=True)) == expected


@pytest.mark.parametrize("rwbs", ["FN", "FWS", "FF", "FWFS", "WB"])
def test_a_flush_without_sectors(tmp_path, rwbs):
    lines = events(("D", "R", "8 + 16 [x]"), ("D", rwbs, "[x]"))
    if rwbs == "FF":  # no operation between its two F
        with pytest.raises(TraceError, match="line 2: RWBS is 'FF'"):
            read_block(write_lines(tmp_path / "t", *lines), "blkparse")
    else:
        trace = read_block(write_lines(tmp_path / "t", *lines), "blkparse")
        assert trace.op.tolist() == [READ, FLUSH]


def test_requeues_take_the_latest_issue_of_the_same_sectors(tmp_path):
    lines = events(
        ("D", "R", "8 + 8 [x]"),
        ("D", "R", "8 + 16 [x]"),  # other sectors
        ("D", "FN", "[x]"),
        ("R", "R", "8 + 8 [0]"),  # the first
        ("D", "R", "8 + 8 [x]"),
        ("D", "FWS", "8 + 8 [x]"),
        ("R", "FWS", "8 + 8 [0]"),  # both halves of the one before
        ("R", "FN", "[0]"),  # the lone flush
        ("R", "R", "999 + 8 [0]"),  # never issued here
        ("C", "R", "8 + 8 [0]"),
    )
    trace = read_block(write_lines(tmp_path / "t", *lines), "blkparse")
    assert (trace.arrival_ps // 10**12).tolist() == [1, 4]
    assert trace.notes[0] == "requests requeued by the driver and counted once: 3"


def test_a_process_may_be_called_like_a_number(tmp_path):
    """blkparse -s lists processes after the events."""
    lines = [*events(("D", "R", "8 + 8 [7z]")), "7z (12)", " Reads Queued:  1,  4KiB"]
    assert len(read_block(write_lines(tmp_path / "t", *lines), "blkparse")) == 1


def test_elapsed_times_of_the_option_t(tmp_path):
    lines = events(("D", "R", "8 + 8 (    1500) [x]"), ("D", "W", "8 + 8 ( 7) [x]"))
    assert read_block(write_lines(tmp_path / "t", *lines), "blkparse").size.tolist() == [4096] * 2


def test_remaps_are_counted_where_they_make_requests_twice(tmp_path):
    lines = events(("Q", "R", "8 + 8 [x]"), ("A", "R", "9 + 8 <- (253,0) 8"))
    lines[1] = lines[1].replace("8,0", "8,16", 1)
    trace = read_block(write_lines(tmp_path / "t", *lines), "blkparse", event="Q")
    assert trace.notes == (
        "remaps, each of which queues a request on another device: 1",
    )  # fmt: skip


def test_columns_are_read_only(tmp_path):
    trace = read_block(write_lines(tmp_path / "t", "1 0 8 8 1"), "mqsim", time_unit="ns")
    for column in (trace.arrival_ps, trace.op, trace.offset, trace.size, trace.device):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0
    assert [c.dtype for c in (trace.arrival_ps, trace.op, trace.offset, trace.size, trace.device)
            ] == [np.int64, np.int8, np.int64, np.int64, np.int32]  # fmt: skip
