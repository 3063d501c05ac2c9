"""Process of an NDPipe store: sends features and labels and stores new photos on request of the
Tuner.

Owns the loop of a store and its model. Does not own the frames (wire.py), the drive and the photos
(shelf.py) or the requests (tuner.py).
Source: NDPipe (ASPLOS 2024), PipeStore.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ondie.emu.files import write_atomically
from ondie.emu.live.ndpipe import network
from ondie.emu.live.ndpipe.distribute import take_update
from ondie.emu.live.ndpipe.shelf import Shelf, decoded
from ondie.emu.live.ndpipe.wire import BATCH, MOST_TEXT, Frame, Kind, Link, LinkLost
from ondie.emu.ndpipe.versions import StoreModel
from ondie.emu.units import InputError

LABEL = np.dtype([("photo", "<u8"), ("label", "<u4")])


@dataclass(frozen=True)
class Place:
    """Start parameters of a store process: its folder, its number, the port of the Tuner, and the
    token with which the process identifies itself. ``die_after``: None, or, in tests, a number of
    photos. When the process has sent the features of at least this number of photos, it kills
    itself with SIGKILL."""

    folder: Path
    number: int
    port: int
    token: str
    die_after: int | None = None


def run_store(place: Place) -> None:
    """Serve the Tuner at ``place.port`` until the Tuner sends the end marker or the connection is
    closed.

    If the drive or index of the store cannot be opened, the process reports the error to the Tuner.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends it
    try:
        sock = socket.create_connection(("127.0.0.1", place.port))
    except OSError:
        raise SystemExit(1) from None  # the Tuner is gone; the command reports why
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link = Link(sock)
    with closing(link), suppress(LinkLost):  # if the Tuner is gone, there is nothing to do
        try:
            with Shelf(place.folder) as shelf:
                _Store(place, shelf, link).serve()
        except InputError as error:
            link.send(Kind.REFUSED, token=place.token, why=f"store {place.number}: {cut(error)}")


def cut(error: InputError) -> str:
    """Return the text of an error, shortened to MOST_TEXT characters, for a frame to the Tuner."""
    text = str(error)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}..."


class _Store:
    """A store with its connection to the Tuner."""

    def __init__(self, place: Place, shelf: Shelf, link: Link) -> None:
        self.place, self.shelf, self.link = place, shelf, link
        self.model = StoreModel()
        self.net: Any = network.network(0)
        self.sent = 0
        self.path = place.folder / "model"
        if self.path.is_file():
            self.read_model(self.path.read_bytes())

    def read_model(self, data: bytes) -> None:
        """Load the model from the content of the file ``model``. Content of another size is
        ignored; the Tuner then sends the complete model. The Tuner also sends the complete model if
        the checksum of the loaded model is not that of its version."""
        if len(data) == 8 + len(network.model_bytes(self.net)):
            self.model.version = int.from_bytes(data[:8], "little")
            self.model.model = np.frombuffer(data, np.uint8, offset=8)
            network.load_bytes(self.net, self.model.model)

    def serve(self) -> None:
        """Identify this store to the Tuner, then answer requests until the Tuner sends the end
        marker. Raises LinkLost if the connection is lost."""
        self.link.send(
            Kind.HELLO, token=self.place.token, store=self.place.number, photos=len(self.shelf),
            version=self.model.version, checksum=self.model.checksum.hex(),
        )  # fmt: skip
        actions = {
            Kind.UPDATE: self.update, Kind.EXTRACT: self.extract, Kind.RELABEL: self.relabel,
            Kind.INSERT: self.insert,
        }  # fmt: skip
        while (asked := self.link.receive()).kind != Kind.STOP:
            try:
                actions[asked.kind](asked)
            except InputError as error:
                self.link.send(Kind.REFUSED, why=f"store {self.place.number}: {cut(error)}")

    def update(self, asked: Frame) -> None:
        """Receive an update, and write the model and its version to the file ``model``. After a
        refused update, these are the previous model and its version."""
        take_update(self.link, self.model, asked)
        if self.model.version is not None:
            network.load_bytes(self.net, self.model.model)
            head = self.model.version.to_bytes(8, "little")
            write_atomically({self.path: head + self.model.model.tobytes()})

    def batches(self, asked: Frame) -> Any:
        """Yield (numbers, inputs) of the photos of a request, in batches. Send the photos that
        cannot be read or decoded in SKIPPED frames, and an END frame after the last batch."""
        numbers = np.frombuffer(asked.body, "<u8").tolist()
        for at in range(0, len(numbers), BATCH):
            good, inputs, skipped = [], [], []
            for number in numbers[at : at + BATCH]:
                try:
                    inputs.append(decoded(number, self.shelf.jpeg(number)))
                    good.append(number)
                except InputError as error:
                    skipped.append([number, cut(error)])
            if skipped:
                self.link.send(Kind.SKIPPED, request=asked.fields["request"], photos=skipped)
            if good:
                yield good, np.stack(inputs)
        self.link.send(Kind.END, request=asked.fields["request"])

    def extract(self, asked: Frame) -> None:
        """Send the features of the requested photos at the requested cut."""
        cut, form = asked.fields["cut"], network.FORMATS[asked.fields["format"]]
        network.check_cut(self.net, cut)
        for good, inputs in self.batches(asked):
            features = network.layers(self.net, cut, inputs).astype(form)
            body = np.array(good, "<u8").tobytes() + features.tobytes()
            self.link.send(Kind.FEATURES, body, request=asked.fields["request"])
            self.sent += len(good)
            if self.place.die_after is not None and self.sent >= self.place.die_after:
                os.kill(os.getpid(), signal.SIGKILL)

    def relabel(self, asked: Frame) -> None:
        """Send the labels of the requested photos, computed with the store's current model."""
        for good, inputs in self.batches(asked):
            found = np.zeros(len(good), LABEL)
            found["photo"], found["label"] = good, network.labels_of(self.net, inputs)
            self.link.send(Kind.LABELS, found.tobytes(), request=asked.fields["request"])

    def insert(self, asked: Frame) -> None:
        """Store a new photo, and send its label. Raises InputError if the photo is corrupt or
        cannot be stored."""
        number = int(asked.fields["photo"])
        inputs = decoded(number, asked.body)
        self.shelf.add([(number, asked.body)])
        found = np.zeros(1, LABEL)
        found["photo"], found["label"] = number, network.labels_of(self.net, inputs[None])
        self.link.send(Kind.LABELS, found.tobytes())
        self.link.send(Kind.END)
