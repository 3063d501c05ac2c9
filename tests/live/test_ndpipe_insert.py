"""Do new photos find live stores, and does an error in the middle say what was stored and keep what
was computed? The stores are threads that answer as a store would, or die."""

import json
import socket
import threading

import numpy as np
import pytest

from ondie.emu.live.ndpipe import network
from ondie.emu.live.ndpipe.jobs import Infer, Relabel
from ondie.emu.live.ndpipe.kept_models import write_versions
from ondie.emu.live.ndpipe.labels import Labels
from ondie.emu.live.ndpipe.pictures import jpeg_file
from ondie.emu.live.ndpipe.store_process import LABEL
from ondie.emu.live.ndpipe.tuner import Tuner
from ondie.emu.live.ndpipe.wire import Kind, Link, LinkLost
from ondie.emu.ndpipe.delta import digest
from ondie.emu.ndpipe.versions import Versions
from ondie.emu.units import InputError

STORES, PHOTOS, LABELED = 3, 6, 4


def labeled(photos: list[int]) -> bytes:
    found = np.zeros(len(photos), LABEL)
    found["photo"], found["label"] = photos, LABELED
    return found.tobytes()


class Store(threading.Thread):
    """Answers as store ``number`` of which ``inserts`` photos are taken; at the next one it dies,
    or refuses it."""

    def __init__(self, number: int, port: int, model: bytes, inserts: int, refuse: bool) -> None:
        super().__init__()
        self.number, self.inserts, self.refuse = number, inserts, refuse
        self.got: dict[int, bytes] = {}
        self.link = Link(socket.create_connection(("127.0.0.1", port)))
        self.link.send(Kind.HELLO, token="t", store=number, photos=1, version=0,
                       checksum=digest(model).hex())  # fmt: skip

    def run(self) -> None:
        try:
            while (asked := self.link.receive()).kind != Kind.STOP:
                if asked.kind == Kind.RELABEL:
                    photos, own = np.frombuffer(asked.body, "<u8").tolist(), asked.fields
                    self.link.send(Kind.LABELS, labeled(photos), request=own["request"])
                    self.link.send(Kind.END, request=own["request"])
                    continue
                assert asked.kind == Kind.INSERT
                if len(self.got) == self.inserts:
                    if not self.refuse:
                        return
                    self.link.send(Kind.REFUSED, why=f"store {self.number}: the drive is full")
                    continue
                self.got[int(asked.fields["photo"])] = asked.body
                self.link.send(Kind.LABELS, labeled([int(asked.fields["photo"])]))
                self.link.send(Kind.END)
        except LinkLost:
            pass
        finally:
            self.link.close()


@pytest.fixture
def run(tmp_path):
    """Do a job with stores that take so many photos each; return result or error, the database
    and the stores."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("PIL", reason="Pillow is not installed")
    labels = Labels(tmp_path / "labels.sqlite", create=True)
    labels.insert([(n, n % STORES, (n + 1) % STORES, 1) for n in range(PHOTOS)])
    labels.close()
    versions = Versions(network.model_bytes(network.network(1)))
    write_versions(tmp_path, versions)
    model = versions.model(0).tobytes()

    def with_stores(job, inserts, refuse=False):
        stores = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            for number, most in enumerate(inserts):
                stores.append(Store(number, server.getsockname()[1], model, most, refuse))
                stores[-1].start()
            tuner = Tuner(tmp_path, server, STORES, "t")
            try:
                result = tuner.run(job)
            except InputError as error:
                result = str(error)
                tuner.labels.close()
            for link in tuner.all_links:
                link.close()
        for store in stores:
            store.join()
        return result, Labels(tmp_path / "labels.sqlite"), stores

    return with_stores


@pytest.fixture
def photos(tmp_path):
    files = [tmp_path / f"{name}.jpg" for name in "abc"]
    for at, file in enumerate(files):
        file.write_bytes(jpeg_file(np.full((9, 9, 3), 80 * at, np.uint8)))
    return tuple(map(str, files))


def test_other_stores_take_the_place_of_those_that_die(run, photos):
    """Store 0 takes one photo and dies at the next one; then store 1; the last photo has one."""
    result, labels, stores = run(Infer(photos), (1, 2, 9))
    assert [row[1:] for row in result["labels"]] == [(6, LABELED), (7, LABELED), (8, LABELED)]
    assert result["deaths"] == [0, 1] and result["wire"]["LABELS"]["body"] == 12 * 5
    places = {row[0]: {row[1], row[2]} for row in labels.places()}
    assert [places[number] for number in (6, 7, 8)] == [{0, 1}, {1, 2}, {2}]
    for number, path in zip((6, 7, 8), photos, strict=True):
        for store in places[number]:
            assert stores[store].got[number] == open(path, "rb").read()
    assert [labels.all()[number] for number in (6, 7, 8)] == [(LABELED, 0)] * 3
    labels.close()


@pytest.mark.parametrize("refuse", [False, True])
def test_an_error_says_what_was_stored(run, photos, refuse):
    result, labels, _ = run(Infer(photos), (2, 1, 1), refuse)
    why = "store 1: the drive is full" if refuse else "no store is alive"
    assert result.endswith(f"c.jpg: {why}; the photo was not stored; stored before: 2 photos"), (
        result
    )
    assert len(labels.all()) == PHOTOS + 2
    labels.close()


def test_labels_that_were_computed_stay(run, photos):
    """An error in the photos between the two halves loses no label; a file that is no photo is
    refused before the first one."""
    result, labels, _ = run(Relabel(photos), (0, 0, 0), True)
    assert result.endswith(
        "the photo was not stored; stored before: 0 photos; 3 of 6 labels replaced"
    )
    assert [row[0] for row in labels.outdated(0)] == [3, 4, 5]
    labels.close()
    result, labels, _ = run(Relabel((*photos, __file__)), (9, 9, 9))
    assert f"{__file__}: corrupt JPEG" in result
    assert [row[0] for row in labels.outdated(0)] == [3, 4, 5] and len(labels.all()) == PHOTOS
    labels.close()
    result, labels, _ = run(Relabel(photos), (9, 9, 9))
    assert (result["outdated"], result["replaced"], result["left"]) == (3, 3, 0)
    assert json.loads(json.dumps(result["labels"]))[2][1:] == [8, LABELED]
    labels.close()
