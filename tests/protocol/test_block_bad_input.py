"""Is every bad file refused with one line that names file, line, column, value, what is right?"""

import gzip
import lzma

import pytest

from ondie.traces import TraceError
from ondie.traces.block import READ, read_block, write_block
from tests.protocol.block_samples import SAMPLES, columns, write_lines
from tests.protocol.test_block_formats import MSR, V2, events

NS = {"time_unit": "ns"}


def refused(path, format, *words, **options) -> str:
    """The one line with which reading is refused."""
    with pytest.raises(TraceError) as caught:
        read_block(path, format, **options)
    line = str(caught.value)
    assert "\n" not in line and str(path) in line
    for word in words:
        assert word in line, line
    return line


GOOD = "5 0 8 8 1"
MQSIM = [
    (["5 0 8 8"], ["line 2", "'5 0 8 8'", "4 columns", "must have 5", "sectors type"]),
    (["5 0 8 8 1 1"], ["line 2", "6 columns"]),
    ([""], ["line 2", "empty", "must have 5"]),
    (["time device sector sectors type"], ["line 2", "time is 'time'", "whole number"]),
    (["4 0 8 8 1"], ["line 2", "time 4 is before time 5 of line 1", "--sort"]),
    (["-5 0 8 8 1"], ["line 2", "time is '-5'"]),
    (["5.5 0 8 8 1"], ["line 2", "time is '5.5'"]),
    (["5 x 8 8 1"], ["line 2", "device is 'x'"]),
    (["5 -1 8 8 1"], ["line 2", "device is '-1'"]),
    (["5 0 -8 8 1"], ["line 2", "sector is '-8'"]),
    (["5 0 0x10 8 1"], ["line 2", "sector is '0x10'"]),
    (["5 0 010 8 1"], ["line 2", "sector is '010'", "octal"]),
    (["5 0 8 08 1"], ["line 2", "sectors is '08'", "octal"]),
    (["5 0 8 0 1"], ["line 2", "sectors is '0'", "from 1 to"]),
    (["5 0 8 -8 1"], ["line 2", "sectors is '-8'"]),
    (["5 0 9007199254740992 8 1"], ["line 2", "sector is '9007199254740992'"]),
    (["5 0 8 8 2"], ["line 2", "type is '2'", "'0' or '1'"]),
    (["5 0 8 8 R"], ["line 2", "type is 'R'"]),
    (["9223372036854775807 0 8 8 1"], ["a time of", "107 days"]),
    (["99999999999999999999 0 8 8 1"], ["line 2", "time is '99999999999999999999'"]),
]


@pytest.mark.parametrize(("lines", "words"), MQSIM, ids=lambda x: str(x)[:40])
def test_mqsim(tmp_path, lines, words):
    refused(write_lines(tmp_path / "t", GOOD, *lines), "mqsim", *words, **NS)


@pytest.mark.parametrize("cut", ["9 0 16 8", "9 0 16 8 ", "9 0", "9", "9 0 16 8 11"])
def test_mqsim_cut_off(tmp_path, cut):
    (tmp_path / "t").write_text(f"{GOOD}\n{cut}")
    refused(tmp_path / "t", "mqsim", "line 2", **NS)


def changed(i: int, value: str) -> str:
    fields = MSR[2].split(",")
    fields[i] = value
    return ",".join(fields)


MSR_BAD = [
    (MSR[0][:-10], ["line 4", "6 columns", "must have 7", "ResponseTime"]),
    (MSR[2] + ",", ["line 4", "8 columns"]),
    (MSR[0], ["line 4", "time 128166372003061629 is before time ", "of line 3", "--sort"]),
    ("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime", ["line 4", "'Timestamp'"]),
    (changed(0, ""), ["line 4", "Timestamp is ''"]),
    (changed(1, ""), ["line 4", "Hostname is ''"]),
    (changed(2, "x"), ["line 4", "DiskNumber is 'x'"]),
    (changed(3, "read"), ["line 4", "Type is 'read'", "'Read' or 'Write'"]),
    (changed(3, "Flush"), ["line 4", "Type is 'Flush'"]),
    (changed(4, "-512"), ["line 4", "Offset is '-512'"]),
    (changed(4, "1e3"), ["line 4", "Offset is '1e3'"]),
    (changed(5, "0"), ["line 4", "Size is '0'", "from 1 to"]),
    (changed(5, "-1"), ["line 4", "Size is '-1'"]),
    (changed(6, "1.5"), ["line 4", "ResponseTime is '1.5'"]),
    ("", ["line 4", "empty"]),
]


@pytest.mark.parametrize(("line", "words"), MSR_BAD, ids=lambda x: str(x)[:50])
def test_msr(tmp_path, line, words):
    refused(write_lines(tmp_path / "t.csv", *MSR, line), "msr", *words)


def test_msr_spans_more_than_the_clock(tmp_path):
    late = f"{128166372003061629 + 92233720368548 * 1000},usr,0,Read,0,512,1"
    refused(write_lines(tmp_path / "t.csv", *MSR, late), "msr", "a time of", "107 days")


V3 = ("fio version 3 iolog", "0 /a add", "0 /a open", "5 /a read 0 512")
FIO = [
    # versions
    (["/a add"], "fio", ["line 1", "'/a add'", "fio version 2 iolog", "fio version 3 iolog"]),
    (["fio version 1 iolog"], "fio", ["line 1", "fio version 2 iolog"]),
    (["0, 4096, 512"], "fio", ["line 1", "the first line must be"]),
    (V3, "fio2", ["line 1", "must be 'fio version 2 iolog'"]),
    (V2, "fio3", ["line 1", "must be 'fio version 3 iolog'"]),
    ([*V3, *V3], "fio", ["line 5", "appended to its log", "split"]),
    # files
    ([V3[0], V3[2]], "fio", ["line 2", "'0 /a open'", "add"]),
    ([*V3[:2], V3[3]], "fio", ["line 3", "'5 /a read 0 512'", "an 'open' line must come first"]),
    ([*V3, "9 /b read 0 512"], "fio", ["line 5", "'9 /b read 0 512'", "not open"]),
    ([*V3, "9 /a close", "9 /a read 0 512"], "fio", ["line 6", "an 'open' line must come first"]),
    ([*V3, "9 /a close", "9 /a close"], "fio", ["line 6", "an 'open' line must come first"]),
    # actions
    ([*V3, "9 /a erase 0 512"], "fio", ["line 5", "action is 'erase'", "'trim'"]),
    ([*V3, "9 /a unlink"], "fio", ["line 5", "action is 'unlink'", "'add'"]),
    ([*V3, "9 /a sync_file_range 0 512"], "fio", ["line 5", "'sync_file_range'"]),
    ([*V3, "9 /a wait 100 0"], "fio", ["line 5", "action is 'wait'", "times"]),
    ([*V2, "/a wait 100 0"], "fio", ["line 6", "'100'", "--wait manual or --wait program"]),
    # columns
    ([*V3, "/a read 0 512"], "fio", ["line 5", "4 columns", "3 (time file action)", "5"]),
    ([*V3, "9 /a read 0"], "fio", ["line 5", "4 columns"]),
    ([*V3, "9 /my file read 0 512"], "fio", ["line 5", "6 columns"]),
    ([*V3, ""], "fio", ["line 5", "0 columns"]),
    ([*V2, "/a read 0"], "fio", ["line 6", "3 columns", "2 (file action)", "4"]),
    # values
    ([*V3, "4 /a read 0 512"], "fio", ["line 5", "time 4 is before time 5 of line 4"]),
    ([*V3, "x /a read 0 512"], "fio", ["line 5", "time is 'x'"]),
    ([*V3, "9 /a read -1 512"], "fio", ["line 5", "offset is '-1'"]),
    ([*V3, "9 /a read 0 0"], "fio", ["line 5", "length is '0'", "from 1"]),
    ([*V3, "9 /a sync 0 0", "9 /a write 0 0"], "fio", ["line 6", "length is '0'"]),
    ([*V3, "9 /a read 0 4k"], "fio", ["line 5", "length is '4k'"]),
    (V3[:3], "fio", ["no requests"]),
]


@pytest.mark.parametrize(("lines", "format", "words"), FIO, ids=lambda x: str(x)[:60])
def test_fio(tmp_path, lines, format, words):
    refused(write_lines(tmp_path / "t", *lines), format, *words)


def test_fio_waits_beyond_the_clock(tmp_path):
    lines = [*V2, *["/a wait 9000000000000 0"] * 3, "/a read 0 512"]
    refused(
        write_lines(tmp_path / "t", *lines),
        "fio",
        "line 8",
        "must be at most 106 days",
        wait="manual",
    )


def test_wait_where_there_are_times(tmp_path):
    refused(write_lines(tmp_path / "t", *V3), "fio", "version 3", "--wait", wait="manual")


E1, E2 = events(("D", "R", "8 + 8 [x]"), ("D", "W", "8 + 8 [x]"))
BLKPARSE = [
    (["hello"], ["line 1", "'hello'", "device cpu sequence time pid action RWBS"]),
    ([E1, "8,0 0 1 1.000000000 697 D"], ["line 2", "6 columns", "at least 7"]),
    ([E1, E2.replace(" D ", " Z ")], ["line 2", "action is 'Z'", "A B C D"]),
    ([E1, E2.replace(" W ", " X ")], ["line 2", "RWBS is 'X'"]),
    ([E1, E2.replace("8,0", "8.0")], ["line 2", "device is '8.0'", "major,minor"]),
    ([E1, E2.replace("8,0", "sda")], ["line 2", "device is 'sda'", "major,minor"]),
    ([E1, "", E2], ["line 3", "follows line 2"]),
    ([E1, "CPU0 (sda):", E2], ["line 3", "follows line 2"]),
    ([E2, E1], ["line 2", "time 0 is before time 1000000000 of line 1"]),
    ([E1, E2.replace("1.000000000", "1.0")], ["line 2", "time is '1.0'", "9 decimals"]),
    ([E1, E2.replace("8 + 8", "-8 + 8")], ["line 2", "sector is '-8'"]),
    ([E1, E2.replace("8 + 8", "8 + 0")], ["line 2", "sectors is '0'", "from 1"]),
    ([E1, E2.replace("8 + 8", "8 + x")], ["line 2", "sectors is 'x'"]),
    (events(("Q", "R", "8 + 8 [x]"), ("C", "R", "8 + 8 [0]")),
     ["no request", "kind D", "C 1, Q 1", "--event D, Q or C"]),
    (events(("D", "N", "[x]")), ["no request", "D 1"]),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "words"), BLKPARSE, ids=lambda x: str(x)[:60])
def test_blkparse(tmp_path, lines, words):
    refused(write_lines(tmp_path / "t", *lines), "blkparse", *words)


# --- files of any format

FORMATS = [("mqsim", NS), ("msr", {}), ("fio", {}), ("fio2", {}), ("fio3", {}), ("blkparse", {})]
TEXTS = {
    "mqsim": f"{GOOD}\n{GOOD}\n",
    "msr": "\n".join(MSR) + "\n",
    "fio": (SAMPLES / "fio3.log").read_text(),
    "blkparse": (SAMPLES / "blkparse.txt").read_text(),
}


@pytest.mark.parametrize(("format", "options"), FORMATS)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"\x00\x01\x02\x03" * 100, ["line 1", "not text", "0x00"]),
        (b"\x1f\x8b\x08\x00", ["gzip", ".gz"]),
        (b"\xfd7zXZ\x00", ["xz", ".xz"]),
        (b"\x07tae" + bytes(44), ["blktrace's binary", "output of blkparse"]),
        (b"\xff\xfe1\x00 \x00", ["not text"]),
        (b"x" * 3000, ["line 1", "without a newline"]),
        (b"\n\n", ["line 1"]),
    ],
)
def test_what_is_no_trace_at_all(tmp_path, format, options, content, words):
    (tmp_path / "t").write_bytes(content)
    line = refused(tmp_path / "t", format, **options)
    if format == "mqsim" and content == b"x" * 3000:  # this format's end needs no newline
        words = ["line 1", "1 columns"]
    for word in words:
        assert word in line, line


@pytest.mark.parametrize(("format", "options"), FORMATS)
def test_missing_folder_and_line_that_never_ends(tmp_path, format, options):
    refused(tmp_path / "no", format, "no such file", **options)
    refused(tmp_path, format, "folder", **options)
    (tmp_path / "t").write_bytes(b"1" * 300)
    refused(tmp_path / "t", format, "longer than 100 bytes", piece=100, **options)


@pytest.mark.parametrize("format", ["msr", "fio", "blkparse"])
def test_a_file_cut_off_anywhere_in_a_line(tmp_path, format):
    whole = TEXTS[format].encode()
    for size in range(1, len(whole), max(1, len(whole) // 150)):
        if whole[size - 1 : size] != b"\n":
            (tmp_path / "t").write_bytes(whole[:size])
            refused(tmp_path / "t", format, "line ")


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_compressed_data_cut_off_or_damaged(tmp_path, suffix, rng):
    text = "".join(f"{i} 0 {i * 8} 8 1\n" for i in range(3000)).encode()
    packed = gzip.compress(text) if suffix == ".gz" else lzma.compress(text)
    path = tmp_path / f"t{suffix}"
    path.write_bytes(packed[: len(packed) // 2])
    refused(path, "mqsim", "truncated or damaged", **NS)
    path.write_bytes(b"not compressed at all\n")
    refused(path, "mqsim", "truncated or damaged", **NS)
    for at in rng.integers(20, len(packed) - 20, 20):
        damaged = bytearray(packed)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        refused(path, "mqsim", **NS)


@pytest.mark.parametrize("format", list(TEXTS))
def test_a_byte_changed_anywhere_is_refused_or_harmless(tmp_path, format, counts, rng):
    """No change of one byte may end in anything but a trace or one line."""
    whole = TEXTS[format].encode()
    options = NS if format == "mqsim" else {}
    path = tmp_path / "t"
    refusals = 0
    for at in rng.integers(0, len(whole), counts(100, 1500)):
        changed = bytearray(whole)
        changed[at] = int(rng.integers(0, 256))
        path.write_bytes(changed)
        try:
            read_block(path, format, sort=bool(at % 2), **options)
        except TraceError as error:
            assert "\n" not in str(error) and str(path) in str(error)
            refusals += 1
    assert refusals > 0


@pytest.mark.parametrize(
    ("format", "options", "words"),
    [
        ("mqsm", {}, ["'mqsm'", "mqsim, msr, fio"]),
        ("mqsim", {}, ["--time-unit", "ps, ns, us", "Time_Unit"]),
        ("mqsim", {"time_unit": "ms"}, ["'ms'", "ps, ns, us"]),
        ("msr", NS, ["msr's time unit is fixed", "--time-unit ns"]),
        ("fio", NS, ["time unit is fixed"]),
        ("blkparse", {"event": "I"}, ["'I'", "D, Q, C"]),
        ("msr", {"event": "D"}, ["'D'", "blkparse"]),
        ("fio3", {"wait": "manual"}, ["'manual'", "version 2"]),
        ("fio", {"wait": "us"}, ["'us'", "manual, program"]),
    ],
)
def test_options_that_a_format_has_not(tmp_path, format, options, words):
    refused(write_lines(tmp_path / "t", GOOD), format, *words, **options)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one(tmp_path, limit):
    with pytest.raises(TraceError, match=f"limit {limit}: must be at least 1"):
        read_block(tmp_path / "t", "msr", limit=limit)


# --- traces made in memory, and targets


@pytest.mark.parametrize(
    ("request_", "more", "words"),
    [
        ((0, 4, 0, 512, 0), {}, "request 0: op is 4; must be 0 to 3"),
        ((0, -1, 0, 512, 0), {}, "request 0: op is -1"),
        ((0, 0, -1, 512, 0), {}, "request 0: offset is -1"),
        ((0, 0, 2**62, 512, 0), {}, "request 0: offset is"),
        ((0, 0, 0, 0, 0), {}, "request 0: size is 0; must be 1 to"),
        ((0, 3, 0, 512, 0), {}, "request 0: size is 512; must be 0 for a flush"),
        ((0, 3, 512, 0, 0), {}, "request 0: offset is 512; must be 0 for a flush"),
        ((-1, 0, 0, 512, 0), {}, "request 0: arrival_ps is -1"),
        ((0, 0, 0, 512, 1), {}, "request 0: device is 1; must be 0 to 0"),
        (
            (5, 0, 0, 512, 0),
            {"timed": False},
            "request 0: arrival_ps is 5; must be 0, because the trace",
        ),
        ((0, 0, 0, 512, 0), {"origin_ps": -1}, "origin_ps is -1"),
    ],
)
def test_an_inconsistent_trace_cannot_even_be_made(request_, more, words):
    with pytest.raises(TraceError, match=f"memory: {words}"):
        columns([request_], ("a",), **more)


def test_order_and_columns_of_a_trace_made_in_memory():
    with pytest.raises(
        TraceError, match="request 1: arrival_ps is 4; must not be before that of request 0"
    ):
        columns([(5, 0, 0, 512, 0), (4, 0, 0, 512, 0)], ("a",))
    with pytest.raises(TraceError, match="devices"):
        columns([(0, 0, 0, 512, 0)], ("a", "a"))
    trace = columns([(0, 0, 0, 512, 0)], ("a",))
    for name in ("arrival_ps", "op", "offset", "size", "device"):
        fields = {f: getattr(trace, f) for f in trace.__dataclass_fields__}
        with pytest.raises(TraceError, match=name):
            type(trace)(**(fields | {name: getattr(trace, name).astype("f8")}))


ONE = columns([(0, READ, 0, 512, 0)], ("a",))


def test_targets_that_cannot_be_written(tmp_path):
    (tmp_path / "dir").mkdir()
    for name in ("dir", "no/t.log"):
        with pytest.raises(TraceError, match=name):
            write_block(ONE, tmp_path / name, "fio3")
    with pytest.raises(TraceError, match="cannot be written"):
        write_block(ONE, "/proc/t.log", "fio3")
    assert [p.name for p in tmp_path.iterdir()] == ["dir"]


@pytest.mark.parametrize("format", ["fio", "blkparse", "csv"])
def test_formats_that_are_not_written(tmp_path, format):
    with pytest.raises(
        TraceError, match=f"cannot write format '{format}': must be one of mqsim, msr, fio2, fio3"
    ):
        write_block(ONE, tmp_path / "t", format)


def test_an_unknown_thing_to_drop(tmp_path):
    with pytest.raises(TraceError, match="drop 'trims': must be one of read, write, trim"):
        write_block(ONE, tmp_path / "t", "fio3", drop=("trims",))


def test_dropping_everything(tmp_path):
    with pytest.raises(TraceError, match="no requests"):
        write_block(ONE, tmp_path / "t", "fio3", drop=("read",))
    assert not list(tmp_path.iterdir())
