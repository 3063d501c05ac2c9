"""Process of NDPipe's Tuner: trains the head of the network on features from the stores,
distributes model versions, and replaces labels.

Owns the three jobs of the Tuner. Does not own the processes (system.py), requests (requests.py),
frames (wire.py), the network (network.py) or the label database (labels.py).
Source: NDPipe (ASPLOS 2024), FT-DMP.
"""

from __future__ import annotations

import signal
import socket
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ondie.emu.analysis.workers import end_with_parent
from ondie.emu.live.ndpipe import kept_models, network
from ondie.emu.live.ndpipe.distribute import answer, send_update
from ondie.emu.live.ndpipe.jobs import Infer, Job, Relabel, Train
from ondie.emu.live.ndpipe.labels import Labels
from ondie.emu.live.ndpipe.pictures import HELD_OUT
from ondie.emu.live.ndpipe.requests import Requests
from ondie.emu.live.ndpipe.shelf import decoded
from ondie.emu.live.ndpipe.store_process import LABEL
from ondie.emu.live.ndpipe.wire import Count, Frame, Kind, Link, LinkLost
from ondie.emu.ndpipe.delta import digest
from ondie.emu.ndpipe.versions import Versions
from ondie.emu.units import InputError, plural

Photos = list[tuple[str, bytes]]
"""Type of a list of JPEG files, as (name, content)."""
KEPT = 1 << 20
"""Maximum number of model versions that the Tuner keeps. It is never reached in practice."""
START_S = 120.0
"""Maximum time until a store process connects to the Tuner, s."""


def run_tuner(pipe: Any, folder: Path, stores: int, token: str, job: Job) -> None:
    """Run ``job`` with the stores that connect. The process terminates when the command that
    started it terminates.

    Three messages are sent through ``pipe``: the port of the server, ("begun", None) when all
    stores have connected, and ("result", dict). After an error, ("error", text) is sent instead of
    the second or third message.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends it
    end_with_parent()
    with socket.create_server(("127.0.0.1", 0)) as server:  # open until the command knows all
        try:
            pipe.send(server.getsockname()[1])
            tuner = Tuner(folder, server, stores, token)
            pipe.send(("begun", None))
            pipe.send(("result", tuner.run(job)))
            return
        except (InputError, OSError) as error:
            text = str(error)
        with suppress(OSError):  # the command has gone
            pipe.send(("error", text))


class Tuner:
    """Server of the NDPipe system in ``folder`` that runs the jobs Train, Infer and Relabel with
    its stores. The constructor waits until ``stores`` stores have connected to ``server``.
    ``token``: text with which a store identifies itself as a store of this job. Raises InputError
    as :meth:`connect` does, or if the label database cannot be used."""

    def __init__(self, folder: Path, server: socket.socket, stores: int, token: str) -> None:
        self.folder = folder
        self.labels = Labels(folder / "labels.sqlite")
        self.net: Any = network.network(0)
        self.places: dict[int, tuple[int, ...]] = {
            photo: (store,) if copy == store else (store, copy)
            for photo, store, copy, _ in self.labels.places()
        }
        self.truth = {photo: truth for photo, _, _, truth in self.labels.places()}
        self.links: dict[int, Link] = {}
        self.states: dict[int, tuple[int | None, bytes]] = {}
        self.all_links: list[Link] = []
        for _ in range(stores):
            self.connect(server, token)
        self.requests = Requests(self.links, self.places)
        self.forms: Counter[str] = Counter()
        self.update_bytes = 0

    def connect(self, server: socket.socket, token: str) -> None:
        """Wait until one store connects. Raises InputError if no store connects in time, if another
        program connects, if the store has no photos, or if the store cannot open its drive or
        index."""
        server.settimeout(START_S)
        try:
            sock, _ = server.accept()
        except TimeoutError:
            raise InputError(
                f"a store did not start within {START_S:g} s (stores that have started: "
                f"{len(self.links)}); start the job again"
            ) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(sock)
        sock.settimeout(START_S)  # a program that says nothing must not stop the job
        try:
            hello = link.receive()
        except LinkLost as error:
            raise InputError(
                f"a program that is not a store has connected: {error}; start the job again"
            ) from None
        sock.settimeout(None)
        if hello.kind not in (Kind.HELLO, Kind.REFUSED) or hello.fields.get("token") != token:
            raise InputError("a program that is not a store has connected; start the job again")
        if hello.kind == Kind.REFUSED:
            raise InputError(str(hello.fields["why"]))
        number = int(hello.fields["store"])
        if not hello.fields["photos"]:
            raise InputError(f"store {number}: has no photos; each store needs at least one")
        self.links[number] = link
        self.all_links.append(link)
        self.states[number] = hello.fields["version"], bytes.fromhex(hello.fields["checksum"])

    def run(self, job: Job) -> dict[str, Any]:
        """Run the job (Train, Infer or Relabel) with the connected stores; return its result."""
        self.versions = self._kept(job)
        match job:
            case Train():
                found = self.train(job)
            case Infer():
                files = read_photos(job.photos)
                self.distribute()
                found = {"labels": self.insert(files)}
            case Relabel():
                found = self.relabel(read_photos(job.photos))
        for number in list(self.links):
            try:
                self.links[number].send(Kind.STOP)
            except LinkLost:  # the job is done
                self.requests.deaths.append(number)
        found |= {
            "versions": self.versions.latest + 1, "deaths": self.requests.deaths,
            "lost": self.requests.lost, "updates": dict(self.forms), "wire": self._counts(),
            "update_bytes": self.update_bytes,
            "update_bytes_sent": sum(
                link.sent.get(Kind.CHUNK, Count()).body_bytes for link in self.all_links
            ),
        }  # fmt: skip
        self.labels.close()
        return found

    # --- versions

    def _kept(self, job: Job) -> Versions:
        """Return the versions of the system. For a new system, pretrain the network, which becomes
        version 0. Raises InputError if the file of the versions is damaged, or if it does not exist
        and ``job`` is not a Train job."""
        path = self.folder / kept_models.NAME
        if not path.exists():
            if not isinstance(job, Train):
                raise InputError(f"{path}: does not exist; run `ondie ndpipe train` first")
            self.net = network.network(job.seed)
            network.check_cut(self.net, job.cut)
            network.pretrain(self.net, job.pretrain, job.epochs, job.seed)
            versions = Versions(network.model_bytes(self.net), keep=KEPT)
            kept_models.write_versions(self.folder, versions)
            return versions
        models = kept_models.read_models(self.folder, len(network.model_bytes(self.net)))
        versions = Versions(models[0], keep=KEPT)
        for model in models[1:]:
            versions.publish(model)
        return versions

    def distribute(self) -> None:
        """Send the latest model version to every live store."""
        for number in list(self.links):
            version, checksum = self.states[number]
            if version is not None and version > self.versions.latest:
                version, checksum = None, b""  # of a Tuner that is gone: its base is unknown
            try:
                update = send_update(self.links[number], self.versions, version, checksum)
            except LinkLost:
                self.links.pop(number).close()
                self.requests.deaths.append(number)
                continue
            self.forms[update.form] += 1
            self.update_bytes += len(update.message)
            model = self.versions.model(self.versions.latest)
            self.states[number] = self.versions.latest, digest(model)

    # --- jobs

    def train(self, job: Train) -> dict[str, Any]:
        """Fine-tune the head of the network in ``job.runs`` runs, then publish the result as a new
        model version and distribute it. Return the result of the job. Raises InputError if
        ``job.base`` or ``job.cut`` is invalid, if no photo of a run can be read, or if a store
        refuses a request."""
        base = self.versions.latest if job.base is None else job.base
        network.load_bytes(self.net, self.versions.model(base))
        network.check_cut(self.net, job.cut)
        self.distribute()
        crops = network.held_out(job.held_out, job.seed, HELD_OUT)
        before = network.tested(self.net, *crops)
        order = np.random.default_rng(job.seed).permutation(
            sorted(photo for photo, truth in self.truth.items() if truth is not None)
        )
        runs = [part.tolist() for part in np.array_split(order, job.runs)]
        features: list[dict[int, np.ndarray]] = [{} for _ in runs]
        take = {run: self._taker(job, features[run]) for run in range(job.runs)}
        more = {"cut": job.cut, "format": job.format}
        losses, trained = [], []
        begun = time.perf_counter()
        self.requests.ask(Kind.EXTRACT, 0, runs[0], **more)
        for run, photos in enumerate(runs):
            self.requests.collect(Kind.EXTRACT, run, take, **more)
            if run + 1 < len(runs):  # while the Tuner trains on this one
                self.requests.ask(Kind.EXTRACT, run + 1, runs[run + 1], **more)
            here = [photo for photo in photos if photo in features[run]]
            if not here:
                raise InputError(
                    f"run {run}: none of its {len(photos)} photos could be read, so no model "
                    "version was published; check the stores' photo files, or use fewer runs"
                )
            trained += here
            losses.append(
                network.tune(
                    self.net,
                    job.cut,
                    np.stack([features[run].pop(photo) for photo in here]),
                    [int(self.truth[photo] or 0) for photo in here],
                    run,
                    job.runs,
                    job.epochs,
                    job.seed,
                )  # fmt: skip
            )
        seconds = time.perf_counter() - begun
        counts = self._counts()["FEATURES"]
        crossing = network.table(self.net).crossing(job.cut) * self._type(job).itemsize
        self.versions.publish(network.model_bytes(self.net))
        kept_models.write_versions(self.folder, self.versions)
        self.distribute()
        return {
            "losses": losses, "trained": trained, "most_often": max(Counter(trained).values()),
            "seconds": seconds, "feature_bytes": counts["body"] - 8 * len(trained),
            "model_bytes": crossing * len(trained),
            "overhead_bytes": counts["headers"] + counts["fields"] + 8 * len(trained),
            "tested_before": before, "tested": network.tested(self.net, *crops), "base": base,
        }  # fmt: skip

    @staticmethod
    def _type(job: Train) -> np.dtype[Any]:
        return np.dtype(network.FORMATS[job.format])

    def _taker(self, job: Train, into: dict[int, np.ndarray]) -> Any:
        """Return a function that stores the features in a frame in ``into`` and returns the numbers
        of their photos. The function raises InputError if the frame is not a frame of valid
        features, or if the features of a photo were received before."""
        shape = network.layers(self.net, job.cut, np.zeros((1, *network.SHAPE), np.float32)).shape[
            1:
        ]
        size = 8 + int(np.prod(shape)) * self._type(job).itemsize

        def take(frame: Frame) -> list[int]:
            count, rest = divmod(len(frame.body), size)
            if frame.kind != Kind.FEATURES or rest:
                raise InputError(
                    f"frame {frame.kind.name} of {len(frame.body)} bytes: must be a frame FEATURES "
                    f"whose size is a multiple of {size} bytes"
                )
            photos = np.frombuffer(frame.body, "<u8", count).tolist()
            values = np.frombuffer(frame.body, self._type(job), offset=8 * count)
            for photo, each in zip(photos, values.reshape(count, *shape), strict=True):
                if photo in into:
                    raise InputError(f"photo {photo}: its features were received twice")
                into[photo] = each
            return photos

        return take

    def relabel(self, files: Photos) -> dict[str, Any]:
        """Replace the labels that earlier model versions have produced. The new photos ``files``
        are inserted after the first half of the labels has been replaced. Raises InputError as
        :meth:`insert` does, or if a store refuses a request. Labels that were replaced before the
        error are kept."""
        self.distribute()
        latest = self.versions.latest
        asked = [photo for photo, *_ in self.labels.outdated(latest)]
        found: dict[int, int] = {}

        def take(frame: Frame) -> list[int]:
            if frame.kind != Kind.LABELS or len(frame.body) % LABEL.itemsize:
                raise InputError(
                    f"frame {frame.kind.name} of {len(frame.body)} bytes: invalid labels"
                )
            pairs = np.frombuffer(frame.body, LABEL).tolist()
            found.update(pairs)
            return [photo for photo, _ in pairs]

        half = len(asked) // 2  # new photos arrive between the halves
        self.requests.ask(Kind.RELABEL, 0, asked[:half])
        self.requests.collect(Kind.RELABEL, 0, {0: take})
        replaced = self.labels.replace(latest, found.items())
        found.clear()
        try:
            inserted = self.insert(files)
        except InputError as error:
            raise InputError(f"{error}; {replaced:,} of {len(asked):,} labels replaced") from error
        self.requests.ask(Kind.RELABEL, 1, asked[half:])
        self.requests.collect(Kind.RELABEL, 1, {1: take})
        replaced += self.labels.replace(latest, found.items())
        return {
            "outdated": len(asked), "replaced": replaced, "labels": inserted,
            "left": len(self.labels.outdated(latest)),
        }  # fmt: skip

    def insert(self, files: Photos) -> list[tuple[str, int, int]]:
        """Store new photos, given as (file, data), each in two stores if two are alive, and write
        their labels. Return (file, number, label) of each photo. If a store dies, another store
        takes its place. Raises InputError if no live store is left, or if a store refuses a photo;
        photos that were stored before are kept."""
        found: list[tuple[str, int, int]] = []
        for path, data in files:
            number = max(self.places) + 1
            try:
                labels = self._stored(number, data)
            except InputError as error:
                stored = f"; stored before: {plural(len(found), 'photo')}"
                raise InputError(f"{path}: {error}; the photo was not stored{stored}") from error
            chosen = tuple(labels)
            self.labels.insert([(number, chosen[0], chosen[-1], None)])
            self.labels.replace(self.versions.latest, [(number, labels[chosen[0]])])
            self.places[number] = chosen
            found.append((path, number, labels[chosen[0]]))
        return found

    def _stored(self, number: int, data: bytes) -> dict[int, int]:
        """Store a photo in the two live stores that have the fewest photos. Return its labels by
        store. If only one store is alive, the photo is stored once. Raises InputError if no store
        is alive, or if a store refuses the photo."""
        held = Counter(store for place in self.places.values() for store in place)
        labels: dict[int, int] = {}
        while len(labels) < 2 and (left := [each for each in self.links if each not in labels]):
            store = min(left, key=lambda each: held[each])
            link = self.links[store]
            try:
                link.send(Kind.INSERT, data, photo=number)
                body = answer(link, Kind.LABELS).body
                answer(link, Kind.END)
            except LinkLost:
                self.links.pop(store).close()
                self.requests.deaths.append(store)
                continue
            labels[store] = int(np.frombuffer(body, LABEL)["label"][0])
        if not labels:
            raise InputError("no store is alive")
        return labels

    def _counts(self) -> dict[str, dict[str, int]]:
        """Return the counters of the frames that the Tuner has received, by kind of frame."""
        total: dict[str, dict[str, int]] = {}
        for link in self.all_links:
            for kind, count in link.received.items():
                sums = total.setdefault(kind.name, dict.fromkeys(_COUNTED, 0))
                for name, value in zip(_COUNTED, _values(count), strict=True):
                    sums[name] += value
        return total


def read_photos(paths: Iterable[str]) -> Photos:
    """Read the JPEG files at ``paths``; return (path, content) of each file. Raises InputError if a
    file cannot be read or is not a JPEG file."""
    files = []
    for path in paths:
        try:
            data = Path(path).read_bytes()
            decoded(0, data)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except InputError as error:
            raise InputError(f"{path}: {str(error).removeprefix('photo 0: ')}") from error
        files.append((path, data))
    return files


_COUNTED = ("frames", "headers", "fields", "body")


def _values(count: Count) -> tuple[int, int, int, int]:
    return count.frames, count.header_bytes, count.field_bytes, count.body_bytes
