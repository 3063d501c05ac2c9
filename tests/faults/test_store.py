"""The store of a drive on disk: what is kept, what is refused, and what a kill or a full file
system leaves.
"""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.drive import CommandError, Drive
from ondie.emu.nand import page_store, segment_files, sparse_file, store_folder, superblock
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nand.store_check import check_store, describe_store
from ondie.emu.nand.store_folder import StoreFolder, StoreFull
from ondie.emu.nvme.command import COMMAND, FLUSH, READ, WRITE
from ondie.emu.nvme.status import Condition, Status
from ondie.emu.units import InputError
from ondie.kernels import native
from tests.faults.filled_store import commands, ends, run
from tests.faults.test_compiled_code import mounts, without_privilege
from tests.smoke.commands import here
from tests.state import small

LARGE = load_preset("gen4-tlc")
PAGES = Geometry.of(LARGE)
PER_SEGMENT = store_folder.SEGMENT_BYTES // PAGES.page_bytes


def opened(path, cfg=LARGE, most_open=segment_files.MOST_OPEN, **options):
    folder = StoreFolder.create_or_open(path, cfg, **options)
    block = folder.superblock
    return PageStore(block.page_bytes, folder, block.pages, most_open)


def read_first(path):
    store = opened(path)
    try:
        store.read(0)
    finally:
        store.close()


def pages(rng, count):
    return rng.integers(0, 256, (count, PAGES.page_bytes), np.uint8)


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for word in words:
        assert str(word) in message, message


def flip(path, at, mask=0xFF):
    raw = bytearray(path.read_bytes())
    raw[at] ^= mask
    path.write_bytes(raw)


def flip_in_place(path, at, mask=0xFF):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ mask]))


# --- what is kept


def test_values_in_c_and_python_agree():
    lib = native.lib
    assert (page_store.ERASED, page_store.PROGRAMMED, page_store.TORN) == (
        lib.ONDIE_ERASED, lib.ONDIE_PROGRAMMED, lib.ONDIE_TORN,
    )  # fmt: skip
    states = np.array([lib.ONDIE_ERASED, lib.ONDIE_PROGRAMMED, lib.ONDIE_TORN], "<u4")
    table = states.view(np.uint8).reshape(3, 4)
    assert all((table[i] != table[j]).all() for i in range(3) for j in range(i))


def test_reopening_keeps_bytes_and_records(tmp_path, rng):
    """Pages of forty segments, of which at most eight are mapped."""
    store = opened(tmp_path / "store", most_open=8)
    ppns = rng.permutation(40)[:, None] * PER_SEGMENT + rng.integers(0, PER_SEGMENT, (40, 3))
    ppns = np.unique(ppns)
    data = pages(rng, len(ppns))
    views = []
    for lpn, (ppn, page) in enumerate(zip(ppns.tolist(), data, strict=True)):
        store.write(ppn, lpn, page)
        views.append(store.read(ppn))
        assert store.files.open_segments <= 8
        assert np.count_nonzero(store.page_at) == np.count_nonzero(store.spare_at) <= 8
    assert all((view == page).all() for view, page in zip(views, data, strict=True))
    assert not describe_store(tmp_path / "store")["clean"]
    assert describe_store(tmp_path / "store")["in_use"]
    identity = store.files.folder.superblock.uuid
    store.close(clean=True)
    assert all((view == page).all() for view, page in zip(views, data, strict=True))
    told = describe_store(tmp_path / "store")
    assert told["clean"] and not told["in_use"] and told["programmed_pages"] == len(ppns)
    assert told["uuid"] == identity and told["segments"] == 40

    store = opened(tmp_path / "store", most_open=8)
    assert store.segments_on_disk() == list(range(40))
    assert list(store.programmed()) == [(ppn, lpn, lpn + 1) for lpn, ppn in enumerate(ppns)]
    assert store.files.open_segments == 0  # records are read without maps
    records = store.records(0)
    assert records.dtype == page_store.OOB and len(records) == PER_SEGMENT
    with pytest.raises(ValueError, match="read-only"):
        records["lpn"][0] = 1
    for lpn, (ppn, page) in enumerate(zip(ppns.tolist(), data, strict=True)):
        assert (store.read(ppn) == page).all() and store.intact(ppn)
        assert store.spare(ppn)[:2] == (lpn, lpn + 1)
    refused(lambda: store.read(int(ppns[0]) ^ 1 << 9), "before it was programmed")
    refused(lambda: store.write(int(ppns[0]), 0, data[0]), "twice")
    assert describe_store(tmp_path / "store")["clean"]  # nothing has changed
    store.close()
    refused(lambda: store.read(int(ppns[0])), "closed")
    refused(lambda: PageStore(512, store.files.folder, 512, most_open=2), "most_open = 2")


@pytest.mark.parametrize("page", [512, 4096, 16384])
def test_reads_create_no_files_and_erased_pages_give_their_room_back(tmp_path, rng, page):
    folder = StoreFolder.create_or_open(tmp_path / "store", LARGE)
    store = PageStore(page, folder, 1 << 20)
    assert store.spare(7) is None and store.owner(7) == -1 and not store.intact(7)
    store.erase(0, 4096)
    assert store.segments_on_disk() == [] and folder.superblock.clean
    data = rng.integers(0, 256, (96, page), np.uint8)
    before = folder.disk_bytes()
    for ppn, each in enumerate(data):
        store.write(ppn, ppn, each)
    full = folder.disk_bytes() - before
    assert data.nbytes <= full <= data.nbytes + 2 * segment_files.RUN_BYTES
    store.erase(0, 96, mask=0b01, planes=2, slots=8)
    left = [ppn for ppn in range(96) if ppn // 8 % 2]
    assert [ppn for ppn, _, _ in store.programmed()] == left
    store.erase(0, 96)
    assert not list(store.programmed())
    if folder.superblock.holes:
        assert folder.disk_bytes() - before < full - data.nbytes + 2 * 4096 + page
    for ppn, each in enumerate(data[::-1]):
        store.write(ppn, ppn, each)
    assert all((store.read(ppn) == each).all() for ppn, each in enumerate(data[::-1]))
    store.close(clean=True)


def test_a_file_system_without_holes(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(sparse_file, "punch", lambda *_: False)
    store = opened(tmp_path / "store")
    store.write(0, 0, pages(rng, 1)[0])
    store.erase(0, 16)
    assert store.spare(0) is None
    store.write(0, 1, pages(rng, 1)[0])
    assert not describe_store(tmp_path / "store")["holes_for_erased_pages"]


def test_an_empty_32_tb_drive_is_small(tmp_path, rng):
    many = 32 * 10**12 // PAGES.page_bytes // (PAGES.physical_pages // PAGES.blocks)
    cfg = LARGE.replace({"flash.blocks_per_plane": int(many * 1.1)})
    store = opened(tmp_path / "store", cfg)
    assert store.files.segments * store_folder.SEGMENT_BYTES > 32 * 10**12
    told = describe_store(tmp_path / "store")
    assert told["disk_bytes"] < 1 << 20 and told["flash_bytes"] > 32 * 10**12
    last = Geometry.of(cfg).physical_pages - 1
    store.write(last, 5, pages(rng, 1)[0])
    assert store.segments_on_disk() == [last // PER_SEGMENT]
    assert store.files.folder.disk_bytes() < 2 << 20


@pytest.mark.soak
def test_written_in_order_it_takes_little_more(tmp_path, counts):
    """1 GiB at full counts."""
    size = counts(1 << 28, 1 << 30)
    drive = Drive("gen4-tlc", payload=True, store=tmp_path / "store")
    one = drive.cfg.frontend.max_transfer_bytes
    drive.buffer = np.random.default_rng(1).integers(0, 256, one, np.uint8)
    for first in range(0, size, 256 * one):
        commands = np.zeros(256, COMMAND)
        commands["op"], commands["size"] = WRITE, one
        commands["offset"] = first + np.arange(256) * one
        commands["arrival"] = drive.earliest_arrival
        drive.submit(commands)
        drive.run()
        drive.completions()
    drive.close()
    told = describe_store(tmp_path / "store")
    assert told["programmed_bytes"] >= size and told["clean"]
    assert told["disk_bytes"] <= 1.1 * size + counts(1 << 25, 0)  # with the checkpoint


# --- a drive


@pytest.mark.one_in(2)
@pytest.mark.parametrize("changes", [{}, {"ftl__block_unit": "plane"}], ids=str)
def test_a_drive_with_a_store_reads_what_it_wrote(tmp_path, rng, changes):
    """Overwrites with collection; the same bytes and times as in memory."""
    cfg = small.config(**changes)
    drives = [Drive(cfg, True, store=tmp_path / "store"), Drive(cfg, True)]
    history = [rng.integers(0, drives[0].units, 100) for _ in range(12)]
    for drive in drives:
        drive.buffer = np.zeros((drive.units, small.PAGE), np.uint8)
        content = np.random.default_rng(3)
        for units in history:
            drive.buffer[units] = content.integers(0, 256, (100, small.PAGE), np.uint8)
            run(drive, [(WRITE, unit) for unit in np.unique(units)])
        drive.check()
    stored, memory = drives
    assert stored.now == memory.now and int(stored.arrays.count[0].sum()) > 0
    for unit in range(stored.units):
        held = [drive.stored(unit) for drive in drives]
        assert (held[0] is None) == (held[1] is None)
        assert held[0] is None or (held[0] == held[1]).all()
    sent, stored.buffer[:] = stored.buffer.copy(), 0
    read = np.unique(np.concatenate(history))
    run(stored, [(READ, unit) for unit in read])
    assert (stored.buffer[read] == sent[read]).all()
    stored.close()
    stored.close()
    refused(lambda: stored.run(), "closed")
    assert describe_store(tmp_path / "store")["clean"]
    assert check_store(tmp_path / "store").intact
    again = Drive(cfg, True, store=tmp_path / "store")
    assert again.now == stored.now
    again.buffer = np.zeros_like(stored.buffer)
    run(again, [(READ, unit) for unit in read])
    assert (again.buffer[read] == sent[read]).all()
    again.close()
    memory.close()


def test_a_new_store_is_used_again_while_nothing_is_written(tmp_path):
    for _ in range(2):
        drive = Drive(small.config(), True, store=tmp_path / "store")
        assert not drive.read(0, small.PAGE).any()
        drive.close()
    refused(lambda: Drive(small.config(), store=tmp_path / "other"), "keeps no payload")
    refused(
        lambda: Drive(small.config(), True, store=tmp_path / "other", durability="disk"), "disk"
    )
    assert not (tmp_path / "other").exists()


def test_host_durability_syncs_before_it_reports(tmp_path, monkeypatch):
    calls = []
    sync, punch = os.fdatasync, sparse_file.punch
    monkeypatch.setattr(os, "fdatasync", lambda handle: (calls.append("sync"), sync(handle)))
    monkeypatch.setattr(sparse_file, "punch", lambda *a: (calls.append("punch"), punch(*a))[1])
    drive = Drive(small.config(), True, store=tmp_path / "store", durability="host")
    drive.buffer = np.zeros((drive.units, small.PAGE), np.uint8)
    calls.clear()
    run(drive, [(WRITE, 3), (READ, 4)])
    assert calls == []
    run(drive, [(FLUSH, 0)])
    assert calls == ["sync"] * 2
    run(drive, [(FLUSH, 0)])
    assert calls == ["sync"] * 2  # nothing has changed
    with_fua = commands([(WRITE, 5)], drive)
    with_fua["fua"] = 1
    drive.submit(with_fua)
    drive.run()
    assert len(calls) == 2
    drive.completions()
    assert calls == ["sync"] * 4
    calls.clear()
    for _ in range(8):
        run(drive, [(WRITE, unit) for unit in range(drive.units)])
    assert "punch" in calls or not drive.store.files.punches
    for at, call in enumerate(calls):
        if call == "punch" and calls[at - 1] != "punch":
            assert calls[at - 2 : at] == ["sync"] * 2  # the records, after the copies
    drive.check()


# --- what is refused


@pytest.fixture
def written(tmp_path, rng):
    """(folder, data, physical pages): a clean store with pages in two segments."""
    store = opened(tmp_path / "store")
    data, ppns = pages(rng, 40), np.arange(40) * 3
    ppns[20:] += PER_SEGMENT
    for lpn, ppn in enumerate(ppns.tolist()):
        store.write(ppn, lpn, data[lpn])
    store.close(clean=True)
    return tmp_path / "store", data, ppns.tolist()


def test_a_folder_in_use(written):
    path, _, _ = written
    store = opened(path)
    refused(lambda: opened(path), path, "in use")
    refused(lambda: check_store(path), path, "in use")
    del store
    opened(path).close()


def test_symbolic_links(written, tmp_path):
    path, _, _ = written
    (tmp_path / "link").symlink_to(path)
    for name in ("link", "link/", "link/."):
        refused(lambda name=name: opened(f"{tmp_path}/{name}"), "symbolic link")
    refused(lambda: opened(path / "superblock"), "superblock")
    for name in ("segment-0.oob", "superblock", "lock", "configuration.json"):
        file = path / name
        file.rename(tmp_path / name)
        file.symlink_to(tmp_path / name)
        refused(lambda: read_first(path), file, "symbolic link")
        file.unlink()
        (tmp_path / name).rename(file)
    (path / "segment-0.oob").unlink()
    os.mkfifo(path / "segment-0.oob")
    refused(lambda: read_first(path), "segment-0.oob", "not a regular file")


def test_a_folder_that_is_not_writable_or_no_store(tmp_path):
    script = """
import sys
from ondie.emu.config.config import load_preset
from ondie.emu.nand.store_folder import StoreFolder
from ondie.emu.units import InputError
for path in sys.argv[1:]:
    try:
        StoreFolder.create_or_open(path, load_preset("gen4-tlc"))
    except InputError as error:
        print(error)
"""
    locked = tmp_path / "locked"
    locked.mkdir(0o555)
    command = [*without_privilege(), sys.executable, "-c", script, str(locked), f"{locked}/new"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.startswith(str(locked)) for line in lines] == [True, True], done
    assert all("Permission denied" in line for line in lines)
    (tmp_path / "text").write_text("x")
    refused(lambda: opened(tmp_path / "text"), "text", "Not a directory")
    refused(lambda: opened(tmp_path), tmp_path, "neither a store nor empty", "locked")
    refused(lambda: check_store(tmp_path), "not a store")
    refused(lambda: describe_store(tmp_path / "missing"), "missing", "No such file")


def test_another_configuration_names_the_keys(written):
    path, _, _ = written
    other = LARGE.replace({"flash.t_read": 41_000_000, "ftl.gc_low_blocks": 5})
    refused(lambda: opened(path, other), path, "flash.t_read", ", not 41 us", "ftl.gc_low_blocks")
    refused(
        lambda: opened(path, load_preset("csd-pe")), "system.name gen4-tlc, not csd-pe", "more keys"
    )
    refused(lambda: opened(path, seed=3), "seed 0, not 3")
    opened(path, LARGE).close()


def test_another_version(written):
    path, _, _ = written
    block = superblock.decoded((path / "superblock").read_bytes(), "")
    for version in (0, 2):
        (path / "superblock").write_bytes(superblock.encoded(replace(block, version=version)))
        for use in (opened, check_store, describe_store):
            refused(lambda use=use: use(path), f"format version {version}", "reads version 1")


def test_any_damage_of_the_superblock(written, counts, rng):
    path, _, _ = written
    raw = (path / "superblock").read_bytes()
    superblock.decoded(raw, "")
    for at in range(len(raw)):
        damaged = bytearray(raw)
        for mask in counts(rng.integers(1, 256, 4).tolist(), range(1, 256)):
            damaged[at] = raw[at] ^ mask
            refused(lambda damaged=damaged: superblock.decoded(bytes(damaged), "here"), "here")
        refused(lambda at=at: superblock.decoded(raw[:at], "here"), "here")
    refused(lambda: superblock.decoded(raw + b"\0", "here"), "here")
    flip(path / "superblock", 40)
    for use in (opened, check_store, describe_store):
        refused(lambda use=use: use(path), path / "superblock", "damaged")
    (path / "superblock").unlink()
    refused(lambda: opened(path), path, "superblock is missing")


def test_damage_of_the_configuration(written):
    path, _, _ = written
    flip(path / "configuration.json", 1000, 1)
    refused(lambda: opened(path), "configuration.json", "damaged")
    (path / "configuration.json").unlink()
    refused(lambda: opened(path), "configuration.json", "missing")


@pytest.mark.parametrize("damage", ["truncated", "empty", "missing", "longer"])
@pytest.mark.parametrize("name", ["segment-1.pages", "segment-1.oob"])
def test_damaged_files_of_a_segment(written, name, damage):
    """The others stay readable, and the check names the file."""
    path, data, ppns = written
    size = (path / name).stat().st_size
    if damage == "missing":
        (path / name).unlink()
    else:
        os.truncate(path / name, {"truncated": size - 1, "empty": 0, "longer": size + 1}[damage])
    store = opened(path)
    for at, ppn in enumerate(ppns):
        if at < 20:
            assert (store.read(ppn) == data[at]).all()
        else:
            refused(lambda ppn=ppn: store.read(ppn), path / name)
    store.close()
    report = check_store(path)
    assert not report.intact and name in report.problems[0] and report.programmed_pages == 20


def test_a_missing_segment_of_a_clean_store(written):
    path, _, _ = written
    for name in ("segment-1.pages", "segment-1.oob"):
        (path / name).unlink()
    assert "has 1 segments; its superblock states 2" in check_store(path).problems[0]


def test_a_flipped_byte_is_found_by_page(written, rng, counts):
    """Of a page, or of its record: the check names the page, and all others stay readable."""
    path, data, ppns = written
    assert check_store(path).data() == {
        "store": str(path), "intact": True, "segments": 2, "programmed_pages": 40,
        "torn_pages": 0, "damaged_pages": {"count": 0, "listed": []},
        "damaged_records": {"count": 0, "listed": []},
        "cached_pages": 0, "broken_entries": 0, "trimmed_units": 0, "problems": [],
    }  # fmt: skip
    record = page_store.OOB.itemsize
    places = [("oob", at) for at in range(record)]
    places += [("pages", int(at)) for at in rng.integers(0, PAGES.page_bytes, counts(20, 400))]
    for kind, byte in places:
        which = int(rng.integers(len(ppns)))
        number, at = divmod(ppns[which], PER_SEGMENT)
        file = path / f"segment-{number}.{kind}"
        place = at * (record if kind == "oob" else PAGES.page_bytes) + byte
        mask = int(rng.integers(1, 256))
        flip_in_place(file, place, mask)
        report = check_store(path)
        found = report.records_listed if kind == "oob" else report.pages_listed
        assert found == [ppns[which]], (kind, byte, report)
        assert report.damaged_pages + report.damaged_records == 1
        assert report.programmed_pages == 40 - (kind == "oob")
        flip_in_place(file, place, mask)
    flip_in_place(path / "segment-0.pages", 3 * PAGES.page_bytes)
    store = opened(path)
    assert [(store.read(ppn) == page).all() for ppn, page in zip(ppns, data, strict=True)] == [
        ppn != 3 for ppn in ppns
    ]
    assert [store.intact(ppn) for ppn in ppns] == [ppn != 3 for ppn in ppns]


def test_the_commands(written, capsys):
    path, _, _ = written
    shown = here(capsys, "store", "info", path)
    assert shown.code == 0 and "gen4-tlc" in shown.out and "programmed pages" in shown.out
    assert '"clean": true' in here(capsys, "store", "info", path, "--json", "-").out
    checked = here(capsys, "store", "check", path)
    assert checked.code == 0 and "intact" in checked.out
    flip_in_place(path / "segment-0.pages", 3 * PAGES.page_bytes)
    checked = here(capsys, "store", "check", path)
    assert checked.code == 1 and "1: physical pages 3" in checked.out
    assert '"intact": false' in here(capsys, "store", "check", path, "--json", "-").out
    for command in ("info", "check"):
        bad = here(capsys, "store", command, path / "none")
        assert bad.code == 2 and len(bad.err.splitlines()) == 1 and "none" in bad.err


# --- kills and a full file system


class Killed(BaseException):
    """Raised in place of a kill."""


def test_a_kill_at_any_call_leaves_a_superblock(tmp_path, monkeypatch):
    """Before every call of the system that changes the folder, of the creation, the first write and
    the closing."""
    calls, stop = [0], [0]

    def counting(call):
        def counted(*args, **options):
            calls[0] += 1
            if calls[0] == stop[0]:
                raise Killed
            return call(*args, **options)

        return counted

    for name in ("fsync", "rename", "ftruncate", "posix_fallocate", "fdatasync", "open"):
        monkeypatch.setattr(os, name, counting(getattr(os, name)))
    page = np.zeros(PAGES.page_bytes, np.uint8)
    survived = 0
    while not survived:
        stop[0] += 1
        path, calls[0], store = tmp_path / str(stop[0]), 0, None
        try:
            store = opened(path)
            store.write(1, 2, page)
            store.close(clean=True)
            survived = calls[0]
        except Killed:
            held = store and store.files.folder
            if held:
                held.close()
        calls[0] = -(10**9)
        again = opened(path)
        assert again.owner(1) in (-1, 2)
        again.write(2, 3, page)
        again.close(clean=True)
        assert check_store(path).intact and describe_store(path)["clean"]
        assert not list(path.glob("*.new"))
    assert survived > 20


PROGRAMS = """
import sys
import numpy as np
from ondie.emu.drive import Drive
from ondie.emu.engine.run import build
from ondie.emu.nvme.command import COMMAND, WRITE
from tests.state import small
build.BUDGET, build.ROWS = 1024, 1 << 10
drive = Drive(small.config(), True, store=sys.argv[1], durability=sys.argv[2])
rng = np.random.default_rng(int(sys.argv[3]))
drive.buffer = np.zeros((drive.units, small.PAGE), np.uint8)
while True:
    drive.buffer[:] = rng.integers(0, 256, small.PAGE, np.uint8)
    some = np.zeros(64, COMMAND)
    some["op"], some["size"] = WRITE, small.PAGE
    some["offset"] = rng.integers(0, drive.units, 64) * small.PAGE
    some["data"], some["arrival"] = some["offset"], drive.earliest_arrival
    drive.submit(some)
    drive.run()
    drive.completions()
    print("wrote", flush=True)
"""


@pytest.mark.soak
def test_kills_of_a_drive_that_programs_and_collects(in_memory, rng, counts, root):
    programmed = []
    for turn in range(counts(3, 12)):
        path = in_memory / str(turn)
        words = [
            sys.executable,
            "-c",
            PROGRAMS,
            str(path),
            ("process", "host")[turn % 2],
            str(turn),
        ]
        with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"wrote\n"
            time.sleep(rng.uniform(0.05, 0.4))
            process.send_signal(signal.SIGKILL)
        assert not describe_store(path)["clean"] and not describe_store(path)["in_use"]
        report = check_store(path)
        assert report.intact and report.torn_pages <= 1, report
        programmed.append(report.programmed_pages)
    assert max(programmed) > 256


def test_no_room_in_mid_run(tmp_path, monkeypatch, rng):
    """In the middle of overwrites with collection."""
    path = tmp_path / "store"
    drive = Drive(small.config(), True, store=path)
    drive.buffer = rng.integers(0, 256, (drive.units, small.PAGE), np.uint8)
    room, reserve = [1], sparse_file.reserve

    def limited(handle, start, size):
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(handle, start, size)

    for _ in range(4):
        room[0] = 10**6
        run(drive, [(WRITE, unit) for unit in range(drive.units)])
    monkeypatch.setattr(sparse_file, "reserve", limited)
    drive.store.files.punches = True
    room[0] = 3
    found = []
    while not any(found) and room[0] >= 0:
        found = ends(drive, [(WRITE, unit) for unit in range(drive.units)])
    assert Status.WRITE_FAULT in found and "no room" in drive.why
    first = found.index(Status.WRITE_FAULT)  # all later ones fail, as in memory or refused
    assert not any(found[:first]) and all(found[first:])
    assert ends(drive, [(WRITE, 0)]) == [Status.NAMESPACE_WRITE_PROTECTED]
    sent, drive.buffer[:] = drive.buffer.copy(), 0
    run(drive, [(READ, unit) for unit in range(drive.units)])
    assert (drive.buffer == sent).all()  # also what is in memory only
    drive.check()
    lost = "lost: the data written after the store could no longer be changed"
    with pytest.raises(CommandError, match=f"close: .*write fault; {lost}"):
        drive.close()
    drive.close()
    assert check_store(path).intact


def test_a_strict_drive_raises_once(tmp_path, monkeypatch):
    """Then its commands end with a status."""
    drive = Drive(small.config(), True, store=tmp_path / "store", strict=True)
    drive.buffer = np.ones((drive.units, small.PAGE), np.uint8)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sparse_file, "reserve", full)
    with pytest.raises(StoreFull, match="no room"):
        run(drive, [(WRITE, 0)])
    drive.run()
    assert drive.completions()["status"].tolist() == [Status.WRITE_FAULT]
    assert ends(drive, [(WRITE, 0), (FLUSH, 0)]) == [
        Status.NAMESPACE_WRITE_PROTECTED,
        Status.WRITE_FAULT,
    ]
    with pytest.raises(CommandError, match="lost: .*no room"):
        drive.close()


def test_a_failed_sync_fails_the_flush_and_all_later_changes(tmp_path, monkeypatch):
    """Durability "host": what was not durable must not be acknowledged."""
    drive = Drive(small.config(), True, store=tmp_path / "store", durability="host")
    drive.buffer = np.ones((drive.units, small.PAGE), np.uint8)
    assert ends(drive, [(WRITE, 0), (FLUSH, 0)]) == [Status.SUCCESS] * 2

    def broken(handle):
        raise OSError(errno.EIO, "Input/output error")

    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", broken)
    assert ends(drive, [(WRITE, 1)]) == [Status.SUCCESS]
    assert ends(drive, [(FLUSH, 0)]) == [Status.WRITE_FAULT]
    monkeypatch.setattr(os, "fdatasync", sync)  # a second sync succeeds and says nothing
    assert ends(drive, [(FLUSH, 0)]) == [Status.WRITE_FAULT]
    assert drive.condition is Condition.READ_ONLY and "cannot be synced" in drive.why
    assert ends(drive, [(WRITE, 1), (READ, 1)]) == [
        Status.NAMESPACE_WRITE_PROTECTED,
        Status.SUCCESS,
    ]


def test_a_full_file_system(tmp_path, root):
    """A small file system, or a small limit of the size of files where none may be mounted."""
    mount = 'mount -t tmpfs -o size=8m none "$0"; exec "$@"'
    before, least = ["unshare", "-m", "sh", "-c", mount, str(tmp_path)], 250
    if not mounts():
        before, least = ["prlimit", "--fsize=6000000"], -1
    words = [*before, sys.executable, "-m", "tests.faults.filled_store", str(tmp_path), str(least)]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("end"), done
