"""A live NDPipe system in a folder: its photos, and the processes of one job.

Owns the creation of a system, the start and the termination of stores and Tuner, and central
fine-tuning for comparison. Does not own the work of the processes (store_process.py, tuner.py).
Source: this project.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np

from ondie.emu.live.ndpipe import kept_models, network
from ondie.emu.live.ndpipe.jobs import Job, Train
from ondie.emu.live.ndpipe.labels import Labels
from ondie.emu.live.ndpipe.pictures import CLASSES, HELD_OUT, TRAINED, crops
from ondie.emu.live.ndpipe.shelf import Shelf, check_store, decoded, pillow
from ondie.emu.live.ndpipe.store_process import Place, run_store
from ondie.emu.live.ndpipe.tuner import run_tuner
from ondie.emu.live.ndpipe.wire import BATCH
from ondie.emu.units import InputError, plural

JOB_S = 3600.0
"""Maximum time to wait for a message from the Tuner, s."""


def create(folder: Path, job: Train) -> None:
    """Create an NDPipe system with photos in all of its stores. Each photo has a copy in the next
    store.

    Raises InputError if the folder exists and is not empty, if ``job.base`` is not version 0 (the
    only version of a new system), if ``job.cut`` is not a frozen layer, if a source image from
    which photos are cropped is missing, or if the folder cannot be created. After an error, no
    files are left behind.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"{folder}: is not empty and does not contain a system; use another folder"
        )
    if job.base:
        raise InputError(f"version {job.base}: does not exist; a new system has only version 0")
    network.check_cut(network.network(job.seed), job.cut)
    photos = crops(TRAINED, job.photos, len(CLASSES), job.seed)
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        count = job.stores
        for store in range(count):
            own = [n for n in range(job.photos) if store in (n % count, (n + 1) % count)]
            with Shelf(part / f"store-{store}", create=True) as shelf:
                shelf.add((number, photos[number].jpeg) for number in own)
        labels = Labels(part / "labels.sqlite", create=True)
        labels.insert(
            (number, number % count, (number + 1) % count, photo.label)
            for number, photo in enumerate(photos)
        )
        labels.close()
        if folder.exists():
            folder.rmdir()
        part.rename(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be created: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def stores_of(folder: Path) -> dict[int, Path]:
    """Return the folders of the stores of the system in ``folder``, by store number."""
    found = ((each.name.removeprefix("store-"), each) for each in folder.glob("store-*"))
    return dict(sorted((int(number), each) for number, each in found if number.isdecimal()))


def is_system(folder: Path) -> bool:
    """Return True if the folder contains a label database, and therefore an NDPipe system."""
    return (folder / "labels.sqlite").is_file()


def refuse_ignored(folder: Path, given: Mapping[str, int]) -> None:
    """Raise InputError if an option in ``given`` (``stores``, ``photos`` or ``pretrain``) does not
    apply because ``folder`` already contains a system. Numbers of stores and photos that equal
    those of the system are accepted."""
    if not is_system(folder):
        return
    labels = Labels(folder / "labels.sqlite")
    photos = sum(truth is not None for *_, truth in labels.places())
    labels.close()
    has = {"stores": len(stores_of(folder)), "photos": photos}
    for name, value in given.items():
        if name == "pretrain" and (folder / kept_models.NAME).exists():
            raise InputError(
                f"--pretrain {value}: the network of {folder} is pretrained already; remove this "
                "option, or use a new folder"
            )
        if name in has and value != has[name]:
            raise InputError(
                f"--{name} {value}: {folder} exists already and has {plural(has[name], name[:-1])}"
                "; remove this option, or use a new folder"
            )


def run_job(folder: Path, job: Job) -> dict[str, Any]:
    """Run a job with one process per store and one process for the Tuner; return the result.

    A Train job creates the system if it does not exist. Raises InputError if torch or Pillow is not
    installed, if the system cannot be created, is missing or is damaged, if ``job.kill`` names a
    store that does not exist, if a drive is in use, if the Tuner refuses the job, or if a process
    terminates without a result. All processes have terminated when the function returns.
    """
    network.torch()
    pillow()
    kill = job.kill if isinstance(job, Train) else None
    new = isinstance(job, Train) and not is_system(folder)
    numbers = range(job.stores) if isinstance(job, Train) and new else stores_of(folder)
    if kill is not None and kill[0] not in numbers:
        known = ", ".join(map(str, numbers))
        raise InputError(f"--kill {kill[0]}:{kill[1]}: no such store; the stores are {known}")
    if isinstance(job, Train) and new:
        create(folder, job)
    Labels(folder / "labels.sqlite").close()
    stores = stores_of(folder)
    if not stores:
        raise InputError(f"{folder}: has no stores; restore them, or train in a new folder")
    for store in stores.values():
        check_store(store)
    if (folder / kept_models.NAME).exists():
        kept_models.read_models(folder, len(network.model_bytes(network.network(0))))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", run_store.__module__])
    token = secrets.token_hex(16)
    ours, theirs = context.Pipe()
    tuner = context.Process(target=run_tuner, args=(theirs, folder, len(stores), token, job))
    processes: dict[str, Any] = {"Tuner": tuner}
    try:
        with _signals_held():
            tuner.start()
        theirs.close()
        port = _received(ours, {})
        for number, store in stores.items():
            dies = kill[1] if kill is not None and kill[0] == number else None
            place = Place(store, number, port, token, dies)
            process = context.Process(target=run_store, args=(place,))
            processes[f"store {number}"] = process
            with _signals_held():
                process.start()
        started = {name: each for name, each in processes.items() if each is not tuner}
        kind, found = _received(ours, started)
        if kind != "error":  # all stores have connected; from now on one may die
            kind, found = _received(ours, {})
        if kind == "error":
            raise InputError(found)
        for process in processes.values():
            process.join(30)
        result: dict[str, Any] = found
        return result
    finally:
        for process in processes.values():
            if process.is_alive():
                process.terminate()
                process.join()


@contextmanager
def _signals_held() -> Iterator[None]:
    """Defer SIGINT, SIGTERM and SIGHUP until the end of the context. At the end, the first deferred
    signal is raised.

    If a signal interrupted the start of a process, that process would not be terminated and would
    report missing resources. Signals are not blocked, because other threads would receive a blocked
    signal, and a new process would inherit the blocked signals. Their handlers are replaced
    instead. Handlers run only in the main thread, so the context has no effect in other threads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(number)):
                before[number] = signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if came:
            signal.raise_signal(came[0])


def _received(pipe: Any, needed: Mapping[str, Any]) -> Any:
    """Return the next message from the Tuner. Raises InputError if the Tuner terminates, if the
    Tuner sends no message within JOB_S, or if one of the processes ``needed`` (by name) terminates
    with an error first."""
    waited = {process.sentinel: (name, process) for name, process in needed.items()}
    end = time.monotonic() + JOB_S
    while ready := connection.wait([pipe, *waited], end - time.monotonic()):
        if pipe in ready:
            try:
                return pipe.recv()
            except EOFError:
                break
        for each in ready:
            name, process = waited.pop(each)  # a store that ends in order has told the Tuner why
            if process.exitcode:
                raise InputError(f"{name} ended with exit code {process.exitcode} during its start")
    raise InputError(
        f"the Tuner ended without a result, or sent nothing for {JOB_S:g} s; start the job again"
    )


def central(folder: Path, job: Train, trained: list[int]) -> dict[str, Any]:
    """Fine-tune the head centrally, in one run, on the same photos in the same order as the live
    system. Return the losses and the result of the test.

    ``trained``: numbers of the photos in the order of the training. The features are computed in
    this process in FP32, with the same model, from the JPEG files of all stores.
    """
    net = network.network(job.seed)
    models = kept_models.read_models(folder, len(network.model_bytes(net)))
    network.load_bytes(net, models[-2 if job.base is None else job.base])
    labels = Labels(folder / "labels.sqlite")
    truth = {photo: label for photo, _, _, label in labels.places()}
    labels.close()
    inputs: dict[int, np.ndarray] = {}
    for store in stores_of(folder).values():
        with Shelf(store) as shelf:
            for photo in set(trained) - set(inputs):
                try:
                    inputs[photo] = decoded(photo, shelf.jpeg(photo))
                except InputError:
                    continue  # the other place has it
    given = np.stack([inputs[photo] for photo in trained])
    features = [
        network.layers(net, job.cut, given[at : at + BATCH]) for at in range(0, len(given), BATCH)
    ]
    wanted = [truth[photo] for photo in trained]
    one = replace(job, runs=1)
    losses = network.tune(
        net, job.cut, np.concatenate(features), [int(each or 0) for each in wanted], 0, 1,
        one.epochs, one.seed,
    )  # fmt: skip
    return {
        "losses": losses,
        "tested": network.tested(net, *network.held_out(job.held_out, job.seed, HELD_OUT)),
        "photos": plural(len(trained), "photo"),
    }  # fmt: skip
