"""Do the live commands of NDPipe say at once, in one line, what stops them, and what was written
until then, and does inference store and label photos?"""

import json
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from ondie.emu.cli.ending import Terminated, effect_of_interruption, interruption
from ondie.emu.live.ndpipe import holdings, kept_models, shelf, system, tuner
from ondie.emu.live.ndpipe.jobs import Infer, Train
from ondie.emu.live.ndpipe.labels import Labels
from ondie.emu.live.ndpipe.shelf import Shelf
from ondie.emu.live.ndpipe.wire import (
    HEADER,
    MAGIC,
    MOST_BODY,
    MOST_FIELDS,
    MOST_JPEG,
    Kind,
    Link,
    LinkLost,
)
from ondie.emu.ndpipe.versions import Versions
from ondie.emu.units import InputError
from tests.smoke.commands import here, refused

SHORT = ("--epochs", "1", "--held-out", "32", "--quiet")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A system with two versions; a test that changes it takes a copy."""
    for name in ("torch", "sklearn", "skimage", "PIL"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    folder = tmp_path_factory.mktemp("ndpipe") / "system"
    system.run_job(folder, Train(photos=60, pretrain=64, epochs=1, held_out=32))
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "system")


@pytest.fixture
def photo(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.new("RGB", (40, 50), (200, 30, 10)).save(tmp_path / "new.jpg")
    return tmp_path / "new.jpg"


def test_inference_stores_and_labels(capsys, folder, photo):
    """The photo is in two stores, byte for byte, with the label that the model gives it. A damaged
    model of a store is sent anew."""
    for store, data in ((0, b"abc"), (1, b"abc" + bytes(1000))):
        (folder / f"store-{store}" / "model").write_bytes(data)
    path = folder / "store-2" / "model"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    outcome = here(capsys, "ndpipe", "infer", folder, photo, photo, "--json", "-")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["updates"] == {"full model": 3}
    names, numbers, given = zip(*found["labels"], strict=True)
    assert names == (str(photo),) * 2 and numbers == (60, 61) and given[0] == given[1]
    labels = Labels(folder / "labels.sqlite")
    assert [labels.all()[number] for number in numbers] == [(given[0], 1)] * 2
    places = {number: {store, copy} for number, store, copy, _ in labels.places()}
    labels.close()
    for number in numbers:
        assert len(places[number]) == 2
        for store in places[number]:
            with Shelf(folder / f"store-{store}") as opened:
                assert opened.jpeg(number) == photo.read_bytes()
    from ondie.emu.live.ndpipe import network

    net = network.network(0)
    network.load_bytes(net, np.load(folder / "versions.npy")[1])
    inputs = shelf.decoded(0, photo.read_bytes())[None]
    assert network.labels_of(net, inputs).tolist() == [given[0]]


def test_a_store_in_use_is_named_at_once(capsys, folder, photo):
    before = (folder / "versions.npy").read_bytes()
    with Shelf(folder / "store-1"):
        began = time.monotonic()
        line = refused(here(capsys, "ndpipe", "infer", folder, photo))
        assert line.startswith(f"ondie: {folder}/store-1/drive: is in use by")  # nothing started
        assert time.monotonic() - began < 30
    labels = Labels(folder / "labels.sqlite")
    assert len(labels.places()) == 60 and (folder / "versions.npy").read_bytes() == before
    labels.close()


def test_a_store_that_is_taken_at_the_start_tells_the_tuner(folder, photo, monkeypatch):
    """It was free when the command looked."""
    monkeypatch.setattr(system, "check_store", lambda store: None)
    began = time.monotonic()
    with Shelf(folder / "store-2"), pytest.raises(InputError, match=r"store 2: .*is in use by"):
        system.run_job(folder, Infer((str(photo),)))
    assert time.monotonic() - began < 100


def test_a_store_that_dies_at_its_start_is_named():
    """Its exit code tells that it has told nobody."""
    ours, theirs = get_context("spawn").Pipe()
    context = get_context("forkserver")
    bad, good = (context.Process(target=sys.exit, args=(code,)) for code in (3, 0))
    bad.start(), good.start()
    with pytest.raises(InputError, match="store 1 ended with exit code 3 during its start"):
        system._received(ours, {"store 0": good, "store 1": bad})
    theirs.send(5)
    assert system._received(ours, {"store 0": good}) == 5
    theirs.close()
    ended = "the Tuner ended without a result, or sent nothing for 3600 s; start the job again"
    with pytest.raises(InputError, match=ended):
        system._received(ours, {})
    bad.join(), good.join()


def test_damaged_versions_are_one_line(capsys, folder):
    good = (folder / "versions.npy").read_bytes()
    for at in (0, 100, 200, -1, -17):
        data = bytearray(good)
        data[at] ^= 1
        (folder / "versions.npy").write_bytes(data)
        outcome = here(capsys, "ndpipe", "train", folder, *SHORT)
        refused(outcome, "versions.npy: is damaged: its checksum does not match")
        assert (folder / "versions.npy").read_bytes() == data
    (folder / "versions.npy").write_bytes(good[:-16])  # numpy.load reads it, and earlier versions
    outcome = here(capsys, "ndpipe", "relabel", folder)
    refused(outcome, "versions.npy: has no checksum", "an earlier version of ondie; train in a new")
    (folder / "versions.npy").write_bytes(good[:90])
    refused(here(capsys, "ndpipe", "relabel", folder), "versions.npy: is damaged")
    (folder / "versions.npy").unlink()
    (folder / "versions.npy").mkdir()
    refused(here(capsys, "ndpipe", "relabel", folder), "versions.npy: cannot be read")


def test_versions_of_another_network_are_refused(tmp_path):
    versions = Versions(np.arange(8, dtype=np.uint8))
    versions.publish(np.arange(1, 9, dtype=np.uint8))
    kept_models.write_versions(tmp_path, versions)
    assert kept_models.read_models(tmp_path, 8).tolist() == [[*range(8)], [*range(1, 9)]]
    assert kept_models.count_versions(tmp_path) == 2
    with pytest.raises(InputError, match=r"uint8\[2, 8\]; .* must be uint8\[versions, 9\]"):
        kept_models.read_models(tmp_path, 9)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--stores", "4"), "--stores 4: .* exists already and has 3 stores; remove"),
        (("--photos", "61"), "--photos 61: .* exists already and has 60 photos; remove"),
        (("--pretrain", "64"), "--pretrain 64: the network of .* is pretrained already; remove"),
        (("--kill", "3:5"), "--kill 3:5: no such store; the stores are 0, 1, 2"),
        (("--kill", "1:0"), "--kill 1:0: the number of photos must be 1 or more"),
    ],
)  # fmt: skip
def test_options_that_an_existing_system_does_not_follow(capsys, made, words, text):
    line = refused(here(capsys, "ndpipe", "train", made, *SHORT, *words))
    assert re.search(text, line), line


def test_options_that_agree_are_taken(made):
    system.refuse_ignored(made, {"stores": 3, "photos": 60})
    system.refuse_ignored(made / "none", {"stores": 9, "photos": 1, "pretrain": 1})


@pytest.mark.parametrize(
    ("module", "text"),
    [("PIL", "Pillow is not installed"), ("torch", "torch is not installed")],
)
def test_a_missing_package_is_named_with_its_extra(capsys, made, photo, monkeypatch, module, text):
    monkeypatch.setitem(sys.modules, module, None)
    before = sorted(made.rglob("*"))
    for words in (("infer", made, photo), ("train", made.parent / "new"), ("relabel", made)):
        outcome = here(capsys, "ndpipe", *words)
        refused(outcome, f"{text}; install it with: pip install 'ondie[train]'")
    assert sorted(made.rglob("*")) == before and not (made.parent / "new").exists()


def test_photos_that_cannot_be_taken(capsys, made, tmp_path):
    large = tmp_path / "large.jpg"
    with large.open("wb") as file:
        file.truncate(MOST_JPEG + 1)
    outcome = here(capsys, "ndpipe", "infer", made, large)
    refused(outcome, "large.jpg: 67,108,865 bytes; a photo must have at most 67,108,864 bytes")


def children(pid):
    """Processes that process ``pid`` has started, and theirs."""
    try:
        mine = [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except FileNotFoundError:
        return []
    return mine + [each for child in mine for each in children(child)]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "processes"),
    [
        (signal.SIGTERM, 0),
        (signal.SIGTERM, 1),
        (signal.SIGTERM, 6),
        (signal.SIGKILL, 6),
    ],
)
def test_a_signal_ends_all_processes(tmp_path, number, processes):
    """It comes when the system is there, in the start of the first process, or in pretraining, in
    which there are two processes of Python's, the Tuner and three stores, and which takes long.
    SIGTERM says what was written, and nobody reports an error."""
    for name in ("torch", "sklearn", "skimage", "PIL"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    folder = tmp_path / "system"
    command = (sys.executable, "-m", "ondie.emu.cli", "ndpipe", "train", str(folder))
    words = ("--photos", "60", "--pretrain", "100000", "--epochs", "100")
    process = subprocess.Popen((*command, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        end, ready = time.monotonic() + 200, False
        while not ready and time.monotonic() < end:
            time.sleep(0.02)
            ready = len(children(process.pid)) >= processes and (folder / "labels.sqlite").exists()
        assert ready
        process.send_signal(number)
        out, err = process.communicate(timeout=100)  # until the last of them has closed its output
    finally:
        process.kill()
    assert process.returncode == (143 if number == signal.SIGTERM else -number) and out == b""
    text = f"ondie: ended by SIGTERM; {folder} was created with 60 photos"
    assert err.decode().strip() == (text if number == signal.SIGTERM else "")
    assert [path.name for path in tmp_path.iterdir()] == ["system"]


def test_signals_wait_for_the_start_of_a_process():
    """All that come are one, which comes when the process has started; the handlers return."""
    came, started = [], []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    ours = signal.getsignal(signal.SIGTERM)
    try:
        with system._signals_held():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
            started.append(list(came))
        assert started == [[]] and came == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is ours
        with pytest.raises(KeyboardInterrupt), system._signals_held():
            signal.raise_signal(signal.SIGINT)
            started.append(list(came))
        assert len(started) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_tuner_whose_command_has_gone_is_silent(made, monkeypatch):
    """It can send neither its port nor why it ends."""
    monkeypatch.setattr(tuner, "end_with_parent", lambda: None)
    before = signal.getsignal(signal.SIGINT)
    ours, theirs = get_context("spawn").Pipe()
    ours.close()
    try:
        tuner.run_tuner(theirs, made, 3, "t", Infer(()))
    finally:
        signal.signal(signal.SIGINT, before)
    theirs.close()


def test_what_was_written_is_counted(folder):
    before = holdings.holdings(folder)
    assert before == holdings.Holdings(2, 60, {})
    assert holdings.added(folder, before) == "no version, photo or label was written"
    assert holdings.added(folder / "none", None) == "nothing was written"
    labels = Labels(folder / "labels.sqlite")
    labels.insert([(60, 0, 1, None)])
    labels.replace(0, [(60, 3), (1, 3)])
    assert holdings.added(folder, before) == "1 photo stored, 2 labels written"
    between = holdings.holdings(folder)
    labels.replace(1, [(1, 3)])
    labels.close()
    versions = Versions(np.zeros(4, np.uint8))
    for value in (1, 2):
        versions.publish(np.full(4, value, np.uint8))
    kept_models.write_versions(folder, versions)
    assert holdings.added(folder, between) == "version 2 stored, 1 label written"
    text = f"{folder} was created with 61 photos, versions 0 to 2 stored, 2 labels written"
    assert holdings.added(folder, None) == text


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (KeyboardInterrupt(), "interrupted; 2 photos stored", 130),
        (Terminated(signal.SIGHUP), "ended by SIGHUP; 2 photos stored", 129),
    ],
)
def test_the_message_has_the_effect(error, text, code):
    with pytest.raises(Terminated) as end, effect_of_interruption(lambda: "2 photos stored"):
        raise error
    assert interruption(end.value) == (text, code)


def test_a_frame_has_at_most_the_length_of_its_kind():
    """Both ends hold to it: nothing longer is sent, and what announces more begins no frame."""
    for kind in Kind:
        most = MOST_BODY.get(kind, 0)
        for fields, body, wrong in (
            (MOST_FIELDS, most, None), (MOST_FIELDS + 1, 0, "fields"), (0, most + 1, "body"),
        ):  # fmt: skip
            ours, theirs = socket.socketpair()
            with ours, theirs:
                ours.sendall(HEADER.pack(MAGIC, kind, 0, fields, body, 0))
                ours.shutdown(socket.SHUT_WR)
                ended = "the connection has ended|the checksum of a frame does not match"
                text = f"frame {kind.name}: {wrong} of" if wrong else ended
                with pytest.raises(LinkLost, match=text):
                    Link(theirs).receive()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(InputError, match="frame STOP: body of 1 bytes; must be at most 0"):
            Link(ours).send(Kind.STOP, b"x")
        with pytest.raises(InputError, match=r"frame END: fields of 65,\d+ bytes; must be"):
            Link(ours).send(Kind.END, why="x" * MOST_FIELDS)
        ours.shutdown(socket.SHUT_WR)
        assert theirs.recv(1) == b""


def test_an_index_of_another_program_is_refused(folder):
    with sqlite3.connect(folder / "store-0" / "index.sqlite") as base:
        base.execute("DROP TABLE photos")
    with pytest.raises(InputError, match="is not the index of a store"):
        Shelf(folder / "store-0")
    with pytest.raises(InputError, match="no such index of photos"):
        Shelf(folder / "store-9")
    with Shelf(folder / "store-1") as opened:  # and the drive was closed
        assert len(opened) == 40
