"""Do stores and Tuner as processes train, distribute and relabel as one machine would?"""

import json
import socket
import sqlite3
import threading
import tracemalloc

import numpy as np
import pytest

from ondie.emu.live.ndpipe.distribute import send_update, take_update
from ondie.emu.live.ndpipe.holdings import Holdings, holdings
from ondie.emu.live.ndpipe.jobs import Train
from ondie.emu.live.ndpipe.labels import TABLE, Labels
from ondie.emu.live.ndpipe.pictures import CLASSES, TRAINED, crops, jpeg_file
from ondie.emu.live.ndpipe.shelf import EDGE, Shelf, decoded
from ondie.emu.live.ndpipe.system import create
from ondie.emu.live.ndpipe.wire import HEADER, MOST_JPEG, Kind, Link, LinkLost
from ondie.emu.ndpipe.versions import NOTHING, StoreModel, Versions
from ondie.emu.units import InputError
from tests.smoke.commands import here, refused

NEW = ("--photos", "120", "--pretrain", "64")
SMALL = ("--epochs", "2", "--held-out", "64", "--quiet")


def needs_extra():
    for name in ("torch", "sklearn", "skimage", "PIL"):
        pytest.importorskip(name, reason=f"{name} is not installed")


def trained(capsys, tmp_path, *words: str, code: int = 0) -> dict:
    """The result of `ondie ndpipe train`."""
    folder = tmp_path / "system"
    new = () if (folder / "versions.npy").exists() else NEW
    outcome = here(capsys, "ndpipe", "train", folder, *new, *SMALL, "--json", "-", *words)
    assert outcome.code == code, outcome.err
    return json.loads(outcome.out)


def links() -> tuple[Link, Link]:
    """The two ends of a connection."""
    ours, theirs = socket.socketpair()
    return Link(ours), Link(theirs)


def transferred(versions: Versions, store: StoreModel, cut_after: int | None, chunk: int) -> str:
    """The form of one live update; the connection ends after ``cut_after`` bytes, if given."""
    ours, theirs = links()

    def serve() -> None:
        try:
            while (asked := theirs.receive()).kind == Kind.UPDATE:
                take_update(theirs, store, asked)
        except LinkLost:
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        if cut_after is not None:
            send = ours.send

            def stops(kind: Kind, body: bytes = b"", **fields) -> None:
                if kind == Kind.CHUNK and fields["at"] >= cut_after:
                    raise LinkLost("cut")
                send(kind, body, **fields)

            ours.send = stops
        return send_update(ours, versions, store.version, store.checksum, chunk).form
    except LinkLost:
        return "cut"
    finally:
        ours.close()
        thread.join()
        theirs.close()


def test_random_histories_are_exact_through_the_live_transfer(counts):
    rng = np.random.default_rng(26)
    forms = set()
    for _ in range(counts(20, 1000)):
        model = rng.integers(0, 256, rng.integers(4, 3000), np.uint8)
        versions, store = Versions(model, keep=int(rng.integers(1, 5))), StoreModel()
        for _ in range(rng.integers(2, 8)):
            if rng.random() < 0.6:
                model = model.copy()
                model[-int(rng.integers(1, len(model) + 1)) :] = rng.integers(256)
                versions.publish(model)
            before = store.version, store.model.copy()
            cut = int(rng.integers(800)) if rng.random() < 0.4 else None
            forms.add(form := transferred(versions, store, cut, int(rng.integers(1, 500))))
            if form == "cut":  # nothing half-applied
                assert store.version == before[0] and np.array_equal(store.model, before[1])
            else:
                assert store.version == versions.latest and np.array_equal(store.model, model)
    assert {"cut", NOTHING, "full model", "one delta"} <= forms


def test_a_delta_on_the_wrong_base_is_refused_and_nothing_changes():
    versions = Versions(np.arange(64, dtype=np.uint8))
    versions.publish(np.arange(1, 65, dtype=np.uint8))
    store = StoreModel()
    store.version, store.model = 0, np.zeros(64, np.uint8)
    ours, theirs = links()
    thread = threading.Thread(target=lambda: take_update(theirs, store, theirs.receive()))
    thread.start()
    with pytest.raises(
        InputError, match="version 0 of the model in the store differs from the base of the delta"
    ):
        send_update(ours, versions, 0, b"")
    thread.join()
    assert store.version == 0 and not store.model.any()
    ours.close(), theirs.close()


def test_a_damaged_frame_is_noticed_at_every_byte():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Link(ours).send(Kind.CHUNK, b"some bytes", at=3)
        data = theirs.recv(1000)
    assert len(data) == HEADER.size + len('{"at":3}') + 10
    for at in range(len(data)):
        ours, theirs = socket.socketpair()
        ours.sendall(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        ours.close()
        with pytest.raises(LinkLost):
            Link(theirs).receive()
        theirs.close()


def test_a_header_alone_takes_no_memory():
    """What a program announces and does not send is not allocated."""
    ours, theirs = socket.socketpair()
    ours.sendall(HEADER.pack(b"NDPW", Kind.INSERT, 0, 0, MOST_JPEG, 0) + bytes(1000))
    ours.close()
    tracemalloc.start()
    try:
        with pytest.raises(LinkLost, match="the connection has ended"):
            Link(theirs).receive()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
        theirs.close()


def test_labels_are_replaced_where_they_are_outdated_only(tmp_path):
    labels = Labels(tmp_path / "labels.sqlite", create=True)
    labels.insert([(0, 0, 1, 2), (1, 1, 0, None)])
    assert [row[0] for row in labels.outdated(1)] == [0, 1]
    labels.insert([(2, 0, 1, None)])
    labels.replace(2, [(2, 5)])
    assert labels.replace(1, [(0, 3), (1, 4), (2, 0)]) == 2
    assert labels.all() == {0: (3, 1), 1: (4, 1), 2: (5, 2)}
    labels.close()


def test_a_database_of_another_schema_is_refused(tmp_path):
    path = tmp_path / "labels.sqlite"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE labels (photo INTEGER)")
    before = path.read_bytes()
    with pytest.raises(InputError, match="schema 0; must have schema 1"):
        Labels(path)
    assert path.read_bytes() == before
    path.write_bytes(b"no database" * 100)
    with pytest.raises(InputError, match="cannot be used as a label database"):
        Labels(path)
    with pytest.raises(InputError, match="no such label database"):
        Labels(tmp_path / "none")


def second_page_damaged(path):
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    data[size : 2 * size] = b"\xa5" * size
    path.write_bytes(data)
    return bytes(data)


@pytest.mark.parametrize("file", ["labels.sqlite", "store-1/index.sqlite"])
def test_a_damaged_database_is_named(capsys, tmp_path, file):
    """Its first page, with the schema, is good. Each command says so before anything starts."""
    needs_extra()
    folder = tmp_path / "system"
    create(folder, Train(photos=60))
    photo = tmp_path / "new.jpg"
    photo.write_bytes(jpeg_file(np.zeros((9, 9, 3), np.uint8)))
    data = second_page_damaged(folder / file)
    before = sorted(folder.rglob("*"))
    what = "a label database" if "labels" in file else "an index of photos"
    for words in (
        ("train", folder, "--photos", "60"), ("train", folder), ("relabel", folder),
        ("infer", folder, photo),
    ):  # fmt: skip
        refused(here(capsys, "ndpipe", *words), f"{folder / file}: cannot be used as {what}: ")
    assert (folder / file).read_bytes() == data and sorted(folder.rglob("*")) == before
    (folder / file).unlink()
    (folder / file).mkdir()  # what cannot be opened, even by root
    outcome = here(capsys, "ndpipe", "relabel", folder)
    refused(outcome, f"{folder / file}: cannot be used as {what}: unable to open database file")


def test_damage_after_the_opening_is_named(tmp_path):
    labels = Labels(tmp_path / "labels.sqlite", create=True)
    labels.insert([(0, 0, 1, 2)])
    assert holdings(tmp_path) == Holdings(0, 1, {})
    with sqlite3.connect(tmp_path / "labels.sqlite") as base:
        base.execute("DROP TABLE labels")
    base.close()
    text = "labels.sqlite: cannot be used as a label database: no such table: labels"
    for wrong in (
        labels.places, labels.all, labels.counts, lambda: labels.outdated(1),
        lambda: labels.insert([(1, 0, 1, 2)]), lambda: labels.replace(1, [(0, 1)]),
    ):  # fmt: skip
        with pytest.raises(InputError, match=text):
            wrong()
    labels.close()
    assert holdings(tmp_path) is None


def test_three_stores_one_of_which_is_killed(capsys, tmp_path):
    """Train, new photos, relabel, and what is refused, in one system: each start takes seconds."""
    needs_extra()
    found = trained(capsys, tmp_path, "--kill", "1:32", "--seed", "3")
    assert found["deaths"] == [1] and not found["lost"]
    assert found["photos"] == 120 and found["most_often"] == 1
    np.testing.assert_allclose(found["losses"][0], found["central"]["losses"], rtol=1e-6)
    assert found["feature_bytes"] == found["model_bytes"] == 120 * 64 * 4
    wire = found["wire"]["FEATURES"]
    assert wire["headers"] == wire["frames"] * HEADER.size
    assert found["updates"] == {"full model": 3, "one delta": 2}
    models = np.load(tmp_path / "system" / "versions.npy")
    versions = Versions(models[0], keep=2)
    whole = len(versions.update(None).message)
    versions.publish(models[1])
    assert found["update_bytes_sent"] == 3 * whole + 2 * len(versions.update(0).message)
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(b"\xff\xd8 no picture")
    outcome = here(capsys, "ndpipe", "infer", tmp_path / "system", damaged)
    refused(outcome, "damaged.jpg", "corrupt JPEG")
    labels = Labels(tmp_path / "system" / "labels.sqlite")
    assert len(labels.all()) == 120
    from PIL import Image

    Image.new("RGB", (40, 50), (200, 30, 10)).save(tmp_path / "new.jpg")
    new = tmp_path / "new.jpg"
    words = ("relabel", tmp_path / "system", "--insert", new, "--json", "-", "--quiet")
    outcome = here(capsys, "ndpipe", *words)
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert (found["outdated"], found["replaced"], found["left"]) == (120, 120, 0)
    update = {"RESUME", "APPLIED"}  # of the store that was killed
    assert set(found["wire"]) == {"HELLO", "LABELS", "END", *update}
    assert found["wire"]["APPLIED"]["frames"] == found["updates"]["one delta"] == 1
    assert found["wire"]["LABELS"]["body"] == 12 * (120 + 2)
    every = labels.all()
    assert len(every) == 121 and {version for _, version in every.values()} == {1}
    labels.close()
    outcome = here(capsys, "ndpipe", "train", tmp_path / "system", *SMALL, "--base", "7")
    refused(outcome, "version 7: unknown", "versions 0 to 1")
    outcome = here(capsys, "ndpipe", "train", tmp_path / "system", *SMALL, "--cut", "fc")
    refused(outcome, 'cut "fc": is not a frozen layer', "avgpool")


def test_half_precision(capsys, tmp_path):
    needs_extra()
    found = trained(capsys, tmp_path, "--format", "fp16")
    np.testing.assert_allclose(found["losses"][0], found["central"]["losses"], rtol=5e-3)
    assert found["feature_bytes"] == found["model_bytes"] == 120 * 64 * 2


def test_a_corrupt_photo_and_a_store_without_photos(capsys, tmp_path):
    """Photo 0 is damaged in both of its stores, photo 3 in the first one; store 2 dies in the
    second of three runs. The label of photo 0 stays outdated. Then a store loses its index."""
    needs_extra()
    folder = tmp_path / "system"
    create(folder, Train(photos=120))
    for store, photos in ((0, (0, 3)), (1, (0,))):
        with Shelf(folder / f"store-{store}") as shelf:
            shelf.add([(photo, shelf.jpeg(photo)[:150]) for photo in photos])
    found = trained(capsys, tmp_path, "--runs", "3", "--kill", "2:16")
    assert found["deaths"] == [2] and list(found["lost"]) == ["0"]
    assert "photo 0: corrupt JPEG" in found["lost"]["0"]
    assert found["photos"] == 119 and found["most_often"] == 1 and len(found["losses"]) == 3
    outcome = here(capsys, "ndpipe", "relabel", folder)
    assert outcome.code == 0 and "120 labels outdated, 119 replaced, 1 left" in outcome.out
    assert "1 photo skipped\nstore 1: photo 0: corrupt JPEG: " in outcome.out
    with sqlite3.connect(folder / "store-1" / "index.sqlite") as base:
        base.execute("DELETE FROM photos")
    before = (folder / "versions.npy").read_bytes()
    outcome = here(capsys, "ndpipe", "train", folder, *SMALL)
    refused(outcome, "store 1: has no photos; each store needs at least one")
    assert (folder / "versions.npy").read_bytes() == before


def test_what_is_refused_before_anything_starts(capsys, tmp_path):
    needs_extra()
    outcome = here(capsys, "ndpipe", "train", tmp_path / "system", "--photos", "2")
    refused(outcome, "photos = 2", "3 stores need at least one photo each")
    outcome = here(capsys, "ndpipe", "train", tmp_path / "system", "--cut", "layer9")
    refused(outcome, 'cut "layer9": is not a frozen layer')
    outcome = here(capsys, "ndpipe", "train", tmp_path / "system", "--base", "5")
    refused(outcome, "version 5: does not exist; a new system has only version 0")
    outcome = here(capsys, "ndpipe", "relabel", tmp_path / "system")
    refused(outcome, "no such label database")
    outcome = here(capsys, "ndpipe", "train", tmp_path / "system", "--runs", "2,2")
    refused(outcome, "--runs 2,2: a number occurs twice")
    outcome = here(capsys, "ndpipe", "train", tmp_path / "system", "--runs", "2,x")
    refused(outcome, "--runs '2,x': use whole numbers")
    assert not (tmp_path / "system").exists()


@pytest.mark.parametrize("schema", [1, 2])
def test_a_system_whose_labels_have_another_schema_stays_as_it_is(capsys, tmp_path, schema):
    """A version of the schema that is not known, and the known version with another table."""
    needs_extra()
    path = tmp_path / "system" / "labels.sqlite"
    path.parent.mkdir()
    with sqlite3.connect(path) as base:
        base.execute(TABLE if schema == 2 else "CREATE TABLE labels (photo INTEGER)")
        base.execute(f"PRAGMA user_version = {schema}")
    base.close()
    photo = tmp_path / "new.jpg"
    photo.write_bytes(jpeg_file(np.zeros((9, 9, 3), np.uint8)))
    before = path.read_bytes()
    for words in (("train", path.parent), ("relabel", path.parent), ("infer", path.parent, photo)):
        outcome = here(capsys, "ndpipe", *words)
        refused(outcome, f"{path}: label database", "must have schema 1")
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_damaged_photo_is_decoded_or_named(counts):
    """No damage ends in another error than the one that is counted."""
    needs_extra()
    rng = np.random.default_rng(3)
    photos, named = crops(TRAINED, 12, len(CLASSES), 1), 0
    tries = counts(300, 5000)
    for number in range(tries):
        data = bytearray(photos[number % len(photos)].jpeg)
        del data[len(data) - int(rng.integers(len(data) // 4)) :]
        for _ in range(rng.integers(4)):
            data[rng.integers(len(data))] = rng.integers(256)
        try:
            found = decoded(number, bytes(data))
        except InputError as error:
            assert str(error).startswith(f"photo {number}: corrupt JPEG: ")
            named += 1
        else:
            assert found.shape == (3, EDGE, EDGE) and np.abs(found).max() <= 1
    assert tries / 10 < named < tries
