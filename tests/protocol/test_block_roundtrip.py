"""Is what is read from a written file the trace that was written, to the format's resolution?"""

import csv
import gzip
import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.traces import TraceError
from ondie.traces.block import FLUSH, READ, TRIM, WRITE, read_block, write_block
from ondie.traces.block_model import BlockTrace
from tests.protocol.block_samples import columns, rows, traces

UNITS = {"ps": 1, "ns": 1000, "us": 10**6}
READS_AND_WRITES = (READ, WRITE)
NUMBERS = st.integers(0, 10**6).map(str)
VOLUMES = st.from_regex(r"[a-z0-9_.]{1,12}_(0|[1-9][0-9]?)", fullmatch=True)
FIO_NAMES = st.from_regex(r"[a-zA-Z0-9/,_.:-]{1,256}", fullmatch=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("block")


def same_again(path, format, trace: BlockTrace, **options: str) -> None:
    """Writing what was read changes no byte any more."""
    before = path.read_bytes()
    write_block(trace, path, format, **options)
    assert path.read_bytes() == before


@given(trace=traces(READS_AND_WRITES, NUMBERS), unit=st.sampled_from(list(UNITS)))
def test_mqsim(folder, trace, unit):
    path = folder / "t.trace"
    write_block(trace, path, "mqsim", time_unit=unit)
    after = read_block(path, "mqsim", time_unit=unit)
    assert rows(after) == rows(trace)
    tick = UNITS[unit]
    assert after.arrival_ps.tolist() == [t // tick * tick for t in trace.arrival_ps.tolist()]
    same_again(path, "mqsim", after, time_unit=unit)


@given(trace=traces(READS_AND_WRITES, VOLUMES, response=True))
def test_msr(folder, trace):
    path = folder / "t.csv"
    write_block(trace, path, "msr")
    after = read_block(path, "msr")
    assert rows(after) == rows(trace)
    tick = 100_000
    assert after.arrival_ps[0] == 0
    before = [trace.origin_ps + t // tick * tick for t in trace.arrival_ps.tolist()]
    assert [after.origin_ps + t for t in after.arrival_ps.tolist()] == before
    response = trace.response_ps // tick * tick
    if response.any():
        assert after.response_ps.tolist() == response.tolist()
    else:
        assert after.response_ps is None
    same_again(path, "msr", after)


@given(trace=traces(names=FIO_NAMES, most_size=2**32 - 512))
def test_fio_version_3(folder, trace):
    path = folder / "t.log"
    write_block(trace, path, "fio3")
    after = read_block(path, "fio")
    assert rows(after) == rows(trace)
    late = 10**6 if trace.arrival_ps[0] < 10**6 else 0
    rounded = trace.arrival_ps // 10**6 * 10**6
    assert (after.arrival_ps - rounded == late).all()
    same_again(path, "fio3", after)


@given(trace=traces(names=FIO_NAMES, most_size=2**32 - 512))
def test_fio_version_2_as_the_program_waits(folder, trace):
    path = folder / "t.log"
    write_block(trace, path, "fio2")
    after = read_block(path, "fio2", wait="program" if trace.arrival_ps[-1] >= 10**9 else None)
    assert rows(after) == rows(trace)
    assert after.arrival_ps.tolist() == (trace.arrival_ps // 10**9 * 10**9).tolist()
    assert after.timed == (trace.arrival_ps[-1] >= 10**9)
    same_again(path, "fio2", after)


@given(trace=traces(names=FIO_NAMES, most_size=2**32 - 512))
def test_fio_version_2_as_the_manual_says(folder, trace):
    path = folder / "t.log"
    write_block(trace, path, "fio2", wait="manual")
    after = read_block(path, "fio2", wait="manual")
    assert rows(after) == rows(trace)
    early = trace.arrival_ps // 10**6 - after.arrival_ps // 10**6
    assert (early >= 0).all() and (early < 100).all()  # us: shorter waits are discarded
    same_again(path, "fio2", after, wait="manual")


@given(trace=traces(READS_AND_WRITES, VOLUMES, response=True), piece=st.integers(200, 400))
def test_msr_is_what_the_csv_module_reads_whatever_the_pieces(folder, trace, piece):
    path = folder / "t.csv"
    write_block(trace, path, "msr")
    with open(path, newline="") as file:
        lines = list(csv.reader(file))
    after = read_block(path, "msr", piece=piece)
    first = int(lines[0][0])
    ticks = after.arrival_ps // 100_000 + first
    for i, (time, host, disk, kind, offset, size, _) in enumerate(lines):
        assert (int(time), f"{host}_{disk}") == (ticks[i], after.devices[after.device[i]])
        assert (kind, int(offset), int(size)) == (
            ["Read", "Write"][after.op[i]], after.offset[i], after.size[i]
        )  # fmt: skip


@given(trace=traces(most_size=2**32 - 512), piece=st.integers(300, 600), limit=st.integers(1, 40))
def test_fio_in_pieces_and_in_part(folder, trace, piece, limit):
    path = folder / "t.log"
    write_block(trace, path, "fio3")
    whole = read_block(path, "fio")
    assert rows(read_block(path, "fio", piece=piece)) == rows(whole)
    part = read_block(path, "fio", piece=piece, limit=limit)
    assert rows(part) == rows(whole)[:limit]
    assert part.arrival_ps.tolist() == whole.arrival_ps.tolist()[:limit]


def test_a_trace_longer_than_the_writers_slices(folder):
    n = 70_000
    trace = columns([(i * 1000, i % 2, i * 512, 512, 0) for i in range(n)], ("0",))
    formats = ("mqsim", {"time_unit": "ns"}), ("msr", {}), ("fio2", {}), ("fio3", {})
    for format, options in formats:
        write_block(trace, folder / "long", format, **options)
        after = read_block(folder / "long", format, **options)  # within 1 ms: no waits in fio2
        assert np.array_equal(after.offset, trace.offset) and np.array_equal(after.op, trace.op)
        assert len(after) == n


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_compressed_by_suffix_in_and_out(folder, suffix):
    trace = columns([(0, READ, 512, 4096, 0), (5000, WRITE, 0, 512, 0)], ("0",))
    path = folder / f"t.trace{suffix}"
    write_block(trace, path, "mqsim", time_unit="ns")
    opener = {"": open, ".gz": gzip.open, ".xz": lzma.open}[suffix]
    with opener(path, "rb") as file:
        assert file.read() == b"0 0 1 8 1\n5 0 0 1 0\n"
    assert rows(read_block(path, "mqsim", time_unit="ns")) == rows(trace)
    before = path.read_bytes()
    write_block(trace, path, "mqsim", time_unit="ns")
    assert path.read_bytes() == before  # no time of day in it


# --- what a format cannot hold is named, or dropped on request

FULL = columns(
    [(0, READ, 0, 512, 0), (0, WRITE, 0, 512, 0), (1, TRIM, 0, 512, 0), (2, FLUSH, 0, 0, 0)],
    ("a",),
    fua=np.array([False, True, False, False]),
)


@pytest.mark.parametrize("format", ["mqsim", "msr"])
def test_operations_that_a_format_lacks(folder, format):
    options = {"time_unit": "ns"} if format == "mqsim" else {}
    path = folder / f"lacks.{format}"
    for drop, words in (
        ((), "1 trim requests.*--drop trim"),
        (("trim",), "1 flush requests.*--drop flush"),
        (("trim", "flush"), "1 writes with FUA.*--drop fua"),
    ):
        with pytest.raises(TraceError, match=words):
            write_block(FULL, path, format, drop=drop, **options)
        assert not path.exists()
    notes = write_block(FULL, path, format, drop=("trim", "flush", "fua"), **options)
    assert notes[:3] == ("1 trim requests dropped", "1 flush requests dropped",
                         "1 writes without their FUA flag")  # fmt: skip
    assert [r[:3] for r in rows(read_block(path, format, **options))] == [(0, 0, 512), (1, 0, 512)]


@pytest.mark.parametrize("drop", ["read", "write"])
def test_any_operation_can_be_dropped(folder, drop):
    write_block(FULL, folder / "t.log", "fio3", drop=(drop, "fua"))
    left = [op for op, *_ in rows(read_block(folder / "t.log", "fio3"))]
    assert left == [op for op in range(4) if op != ("read", "write").index(drop)]


def test_a_trace_without_times(folder):
    trace = columns([(0, READ, 0, 512, 0), (0, READ, 512, 512, 0)], ("a",), timed=False)
    write_block(trace, folder / "t.log", "fio2")
    assert not read_block(folder / "t.log", "fio2").timed
    for format, options in (("fio3", {}), ("msr", {}), ("mqsim", {"time_unit": "ns"})):
        with pytest.raises(TraceError, match=r"has no times.*--drop time"):
            write_block(trace, folder / "no", format, **options)
        write_block(trace, folder / "yes", format, drop=("time",), **options)
        after = read_block(folder / "yes", format, **options)
        assert after.arrival_ps[1] == after.arrival_ps[0]


@pytest.mark.parametrize(
    ("request_", "devices", "format", "words"),
    [
        ((0, READ, 100, 512, 0), ("0",), "mqsim", ["request 0", "offset is 100", "512"]),
        ((0, READ, 0, 1000, 0), ("0",), "mqsim", ["request 0", "size is 1000", "512"]),
        ((0, READ, 0, 2**32, 0), ("0",), "fio3", ["request 0", "size is 4294967296", "4294967295"]),
        ((0, READ, 0, 512, 0), ("a b",), "fio2", ["'a b'", "without blanks"]),
        ((0, READ, 0, 512, 0), ("a\n",), "fio3", [r"'a\n'", "without blanks"]),
        ((0, READ, 0, 512, 0), ("x" * 257,), "fio3", ["256 bytes"]),
        ((0, READ, 0, 512, 0), ("a,b",), "msr", ["'a,b'", "without a comma"]),
    ],
)
def test_values_that_a_format_cannot_hold(folder, request_, devices, format, words):
    path = folder / "never"
    options = {"time_unit": "ns"} if format == "mqsim" else {}
    with pytest.raises(TraceError) as caught:
        write_block(columns([request_], devices), path, format, **options)
    for word in (str(path), *words):
        assert word in str(caught.value)
    assert not path.exists()


def test_volumes_that_would_be_one_in_msr(folder):
    trace = columns([(0, READ, 0, 512, 0), (0, READ, 0, 512, 1)], ("usr", "usr_0"))
    with pytest.raises(TraceError, match="'usr' and 'usr_0' would both be usr,0"):
        write_block(trace, folder / "t.csv", "msr")


def test_names_that_are_no_numbers_are_numbered_for_mqsim(folder):
    trace = columns([(0, READ, 0, 512, 0), (0, READ, 0, 512, 1)], ("usr_0", "7"))
    notes = write_block(trace, folder / "t.trace", "mqsim", time_unit="ns")
    assert notes == ("devices are numbered: 0 = usr_0, 1 = 7",)
    assert read_block(folder / "t.trace", "mqsim", time_unit="ns").devices == ("0", "1")


def test_what_is_lost_without_harm_is_said(folder):
    trace = columns([(0, READ, 0, 512, 0)], ("a",), response_ps=np.array([10**6]), origin_ps=10**17)
    assert write_block(trace, folder / "t.log", "fio3") == (
        "recorded response times dropped",
        "start time dropped: times are relative to the first request",
    )
    bare = columns([(0, READ, 0, 512, 0)], ("a",))
    assert write_block(bare, folder / "t.csv", "msr") == (
        "response times unknown: written as 0",
    )  # fmt: skip
