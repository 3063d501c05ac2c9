"""`ondie trace convert` and `ondie trace info --from`, as a user types them."""

import json

import pytest

from ondie.traces.block import read_block
from tests.protocol.block_samples import SAMPLES, rows, write_lines
from tests.protocol.test_block_formats import MSR
from tests.smoke.commands import apart, files, here, refused

BLK, FIO = SAMPLES / "blkparse.txt", SAMPLES / "fio3.log"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_msr_to_fio(folder, capsys):
    write_lines(folder / "usr.csv", *MSR)
    done = here(capsys, "trace", "convert", "usr.csv", "usr.log", "--from", "msr", "--to", "fio3",
                "--device", "usr_0")  # fmt: skip
    assert done.code == 0 and "written: usr.log" in done.out
    assert "recorded response times dropped" in done.out
    assert (folder / "usr.log").read_text().splitlines() == [
        "fio version 3 iolog",
        "1 usr_0 add",
        "1 usr_0 open",
        "1 usr_0 read 7014609920 24576",
        "1000001 usr_0 write 0 512",  # one second, and the 1 us that fio needs
        "1000001 usr_0 close",
    ]


def test_units_on_both_sides(folder, capsys):
    write_lines(folder / "in", "3 0 8 8 1")
    convert = ["trace", "convert", "in", "out", "--from", "mqsim", "--to"]
    for more, line in (
        (["mqsim", "--time-unit", "us"], "3 0 8 8 1"),
        (["mqsim", "--time-unit", "us", "--out-time-unit", "ns"], "3000 0 8 8 1"),
    ):
        assert here(capsys, *convert, *more).code == 0
        assert (folder / "out").read_text() == line + "\n"
    assert here(capsys, "trace", "convert", FIO, "out", "--from", "fio", "--to", "mqsim",
                "--time-unit", "ns", "--drop", "flush").code == 0  # fmt: skip
    assert (folder / "out").read_text().startswith("122000 0 120 8 1\n")  # 61440 / 512


def test_wrap_limit_sort_side_by_side(folder, capsys):
    lines = ("9 0 4 8 1", "3 1 0 8 0", "5 0 100 8 1")
    write_lines(folder / "in", *lines)
    convert = ["trace", "convert", "in", "out", "--from", "mqsim", "--to", "mqsim",
               "--time-unit", "ns"]  # fmt: skip
    done = here(capsys, *convert, "--sort", "--limit", "2", "--side-by-side",
                "--offset-wrap", "52 KiB")  # fmt: skip
    assert done.code == 0
    # Sorted: 3 (device 1), 5 (device 0); side by side in order of appearance: 0 from 0 (its end,
    # 108 sectors, fits 1 MiB), 1 from 2048 sectors; 104 sectors of space: 2048 % 104 = 72;
    # 100 to 107 goes over the end, so that it becomes 100 to 103 and 0 to 3.
    assert (folder / "out").read_text().splitlines() == [
        "3 0 72 8 0", "5 0 100 4 1", "5 0 0 4 1",
    ]  # fmt: skip
    for words in (
        "sorted by time",
        "one after the other at: 0 from 0, 1 from 1048576",
        "across the wrap",
    ):
        assert words in done.out, done.out
    assert here(capsys, *convert, "--sort", "--offset-wrap", "53248").code == 0  # bytes


def test_blkparse_events(folder, capsys):
    convert = ["trace", "convert", BLK, "out", "--from", "blkparse", "--to", "fio3"]
    line = refused(here(capsys, *convert), "1 writes with FUA", "--drop fua")
    assert line.startswith("ondie: out: ")
    assert files(folder) == []
    assert here(capsys, *convert, "--drop", "fua", "--event", "Q").code == 0
    queued = read_block(BLK, "blkparse", event="Q")
    assert rows(read_block("out", "fio")) == rows(queued)


def test_waits(folder, capsys):
    convert = ["trace", "convert", FIO, "out", "--from", "fio", "--to", "fio2"]
    assert here(capsys, *convert).code == 0
    assert "/data/file wait 5 0" in (folder / "out").read_text()  # 5411 us are 5 ms
    assert here(capsys, *convert, "--out-wait", "manual").code == 0
    assert "/data/file wait 5289 0" in (folder / "out").read_text()  # 5411 - 122
    info = ["trace", "info", "out", "--from", "fio"]
    refused(here(capsys, *info), "out: line 4", "--wait manual or --wait program")
    assert here(capsys, *info, "--wait", "manual").code == 0


def test_info(folder, capsys):
    done = here(capsys, "trace", "info", FIO, "--from", "fio", "--json", "-")
    data = json.loads(done.out)
    assert data["requests"] == 13 and data["share"]["flush"] == pytest.approx(1 / 13)
    table = here(capsys, "trace", "info", FIO, "--from", "fio")
    assert table.code == 0 and "addressed size: all" in table.out and "49.2 KB" in table.out
    part = here(capsys, "trace", "info", FIO, "--from", "fio", "--limit", "3", "--json", "-")
    assert json.loads(part.out)["requests"] == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["info", "no", "--from", "msr"], ["no: no such file"]),
        (["info", FIO, "--from", "msr"], ["fio3.log: line 1", "1 columns"]),
        (["info", FIO, "--from", "fioo"], ["'fioo'", "mqsim, msr, fio"]),
        (["info", FIO, "--from", "mqsim"], ["--time-unit"]),
        (["info", FIO, "--from", "fio", "--time-unit", "ns"], ["time unit is fixed"]),
        (["info", FIO, "--from", "fio", "--device", "sda"], ["'sda'", "/data/file"]),
        (["info", FIO, "--from", "fio", "--limit", "0"], ["--limit", "0"]),
        (["info", "--from", "fio"], ["--from fio", "NAME"]),
        (["info", "gpt-small", "--sort"], ["--sort", "--from"]),
        (["info", "gpt-small", "--time-unit", "ns"], ["--time-unit", "--from"]),
        (["info", "gpt-small", "--device", "x"], ["--device", "--from"]),
        (["convert", FIO], ["OUT"]),
        (["convert", FIO, "out", "--to", "msr"], ["--from"]),
        (["convert", FIO, "out", "--from", "fio"], ["--to"]),
        (["convert", FIO, "out", "--from", "fio", "--to", "fio"], ["format 'fio'", "fio2, fio3"]),
        (["convert", FIO, "no/out", "--from", "fio", "--to", "fio3"], ["no/out", "does not exist"]),
        (["convert", FIO, ".", "--from", "fio", "--to", "fio3"], ["folder"]),
        (["convert", FIO, "out", "--from", "fio", "--to", "msr"], ["1 flush", "--drop flush"]),
        (["convert", FIO, "out", "--from", "fio", "--to", "mqsim", "--drop", "flush"],
         ["out", "--time-unit"]),
        (["convert", FIO, "out", "--from", "fio", "--to", "fio3", "--time-unit", "ns"],
         ["fixed", "--time-unit ns"]),
        (["convert", FIO, "out", "--from", "fio", "--to", "fio3", "--out-time-unit", "ns"],
         ["fixed", "--time-unit ns"]),
        (["convert", FIO, "out", "--from", "fio", "--to", "fio3", "--out-wait", "manual"],
         ["'manual'", "version 2"]),
        (["convert", FIO, "out", "--from", "fio", "--to", "fio3", "--drop", "flushes"],
         ["'flushes'", "flush, fua"]),
        (["convert", FIO, "out", "--from", "fio", "--to", "fio3", "--offset-wrap", "4 KB/s"],
         ["--offset-wrap", "KB/s"]),
        (["convert", FIO, "out", "--from", "fio", "--to", "fio3", "--offset-wrap", "0"],
         ["offset wrap 0"]),
        (["convert", FIO, "out", "--from", "fio", "--to", "fio3", "--offset-wrap", "1 KiB"],
         ["request 0", "larger", "1024"]),
    ],
    ids=lambda x: " ".join(map(str, x))[-60:],
)  # fmt: skip
def test_what_is_refused(folder, capsys, arguments, words):
    refused(here(capsys, "trace", *arguments), *words)
    assert files(folder) == []


def test_as_a_process(folder):
    done = apart("trace", "convert", FIO, "out.gz", "--from", "fio", "--to", "fio3", cwd=folder)
    assert (done.code, done.err) == (0, "") and files(folder) == ["out.gz"]
    refused(apart("trace", "info", FIO, "--from", "blkparse", cwd=folder), "fio3.log: line 1")
