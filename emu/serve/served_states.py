"""States of an optimizer on a drive that is to be served: from options to a drive that holds them.

Owns the options, their checks, the choice between states of the store and new ones, and the file
`states.json` of the store, which names the optimizer and the hyperparameters of the states. Does
not own the states (states/resident.py) or their commands (computation.py). Source: none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from ondie.emu.config.config import Config
from ondie.emu.drive import Drive
from ondie.emu.engine.run.power_system import Start
from ondie.emu.files import write_atomically
from ondie.emu.ftl.reservoir_recovery import Unrecoverable
from ondie.emu.nvme.status import Condition
from ondie.emu.serve.defects import say_once
from ondie.emu.states.resident import FLAGS, ResidentStates
from ondie.emu.units import InputError, known_names, quoted, whole_number
from ondie.kernels import OPS, KernelError, get
from ondie.kernels.hyper import checked

NAME = "states.json"
DEFAULTS = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "momentum": 0.9}
"""Default values of hyperparameters that the user does not set; others are 0."""
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
NOT_READ = (OSError, ValueError, TypeError, KeyError, OverflowError)
"""Exceptions on reading a file that is missing or damaged."""


class Held(NamedTuple):
    """Description of the optimizer states in a store."""

    params: int
    """Number of parameters."""
    optimizer: str
    hyper: dict[str, float | bool] | None
    """All hyperparameters; None: the store is of an earlier version, without them."""


@dataclass(frozen=True, kw_only=True)
class StatesOptions:
    """Options of the optimizer states that a drive holds."""

    count: int
    """Number of parameters."""
    optimizer: str
    hyper: tuple[str, ...] = ()
    """Hyperparameters, each as NAME=VALUE."""
    weights: str | None = None
    """File of the initial weights, .npy; None: zeros."""

    def check(self) -> np.ndarray | None:
        """Return the initial weights, float32[count]; None: they were not given. Raises InputError
        for options that are wrong for any drive."""
        if self.optimizer not in list(OPS):
            wrong = f"--optimizer {quoted(self.optimizer)}"
            raise InputError(f"{wrong}: {known_names(self.optimizer, OPS)}")
        count = whole_number("--states", self.count, 1, 1 << 40)
        hyper_of(self.optimizer, self.hyper)
        return None if self.weights is None else load_weights(self.weights, count)

    def states(self, cfg: Config, seed: int) -> ResidentStates:
        """Return states for a drive with ``cfg``, after :meth:`check`. Raises InputError for a
        drive that cannot hold them."""
        hyper = hyper_of(self.optimizer, self.hyper)
        try:
            return ResidentStates(cfg, self.optimizer, self.count, hyper, seed=seed)
        except InputError as error:
            text = str(error)
            option = "" if text.startswith("hyper: ") else f"states {self.count}: "
            raise InputError(f"--{option}{text.removeprefix('on_die: ')}") from error

    def place(self, states: ResidentStates, drive: Drive, weights: np.ndarray | None) -> None:
        """Take the states that ``drive`` holds, or create them on a new one with the ``weights`` of
        :meth:`check`. Raises InputError."""
        self._check_store(drive, states)
        if drive.started is not Start.NEW:
            if self.weights is not None:
                raise InputError("--weights: the store has weights already; leave the option out")
            try:
                states.open(drive)
            except Unrecoverable as error:
                raise InputError(f"the store holds no states: {error}") from error
            return
        vectors = {place.name: np.zeros(states.n_params, np.float32) for place in states.places}
        if weights is not None:
            vectors["w"] = weights
        states.create(drive, vectors)

    def _check_store(self, drive: Drive, states: ResidentStates) -> None:
        """Note in the store of a new drive what it holds; give ``states`` the hyperparameters of
        another one. Raise InputError if it holds something else, or the note cannot be read or
        written."""
        files = None if drive.store is None else drive.store.files
        if files is None:
            return
        folder = files.folder.path
        path, own = (
            folder / NAME,
            Held(self.count, self.optimizer, all_of(self.optimizer, states.hyper)),
        )
        if drive.started is Start.NEW:
            write_atomically({path: note(own)}, files.folder.syncs)
            return
        try:
            held = held_by(path)
        except FileNotFoundError:
            raise InputError(
                f"--states: {folder} is the store of a drive without optimizer states"
            ) from None
        except NOT_READ as error:
            raise InputError(f"{path}: cannot be read: {error}") from error
        if held[:2] != own[:2]:
            raise InputError(
                f"--states {self.count} --optimizer {self.optimizer}: {folder} holds states of "
                f"{held.params} parameters for {held.optimizer}"
            )
        if held.hyper is None:
            if drive.condition is Condition.ONLINE:
                write_atomically({path: note(own)}, files.folder.syncs)
                values = ", ".join(f"{name}={value:g}" for name, value in (own.hyper or {}).items())
                say_once(f"{path}: says no hyperparameters; it does now: {values}")
            return
        for text in self.hyper:
            name = text.partition("=")[0]
            of_store = held.hyper[name]
            if states.hyper[name] != of_store:
                raise InputError(
                    f"--hyper {text}: {folder} holds states with {name}={of_store:g}; an "
                    "update may have another one in its command (docs/computation.md)"
                )
        states.hyper = held.hyper


def note(held: Held) -> bytes:
    """Return the contents of a file `states.json`."""
    found = {"states": held.params, "optimizer": held.optimizer, "hyper": held.hyper}
    return json.dumps(found).encode()


def all_of(optimizer: str, given: Mapping[str, float | bool]) -> dict[str, float | bool]:
    """Return all hyperparameters, from the given ones and defaults. Raises KernelError."""
    values = checked(optimizer, get(optimizer).takes, given)
    return {name: bool(value) if name in FLAGS else value for name, value in values.items()}


def held_by(path: Path) -> Held:
    """Return the description in a file `states.json`. Raises one of NOT_READ."""
    found = json.loads(path.read_bytes())
    count, optimizer, hyper = int(found["states"]), str(found["optimizer"]), found.get("hyper")
    if hyper is not None:
        if not isinstance(hyper, dict):
            raise ValueError(f"hyper = {quoted(repr(hyper))}: must be an object")
        try:
            hyper = all_of(optimizer, hyper)
        except KernelError as error:
            raise ValueError(f"hyper: {error}") from error
    return Held(count, optimizer, hyper)


def describe_states(folder: str) -> dict[str, Any]:
    """Return the description of the states in a store, for `ondie store info`; nothing if it holds
    none. Raises InputError for a file that cannot be read."""
    path = Path(folder) / NAME
    try:
        held = held_by(path)
    except FileNotFoundError:
        return {}
    except NOT_READ as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    found: dict[str, Any] = {"states": held.params, "optimizer": held.optimizer}
    if held.hyper is not None:
        found["hyperparameters"] = dict(held.hyper)
    return found


def check_without_states(store: str | None) -> None:
    """Raise InputError for the folder of a store that holds states, which is to be served without
    them."""
    if store is None or not (Path(store) / NAME).exists():
        return
    try:
        held = held_by(Path(store) / NAME)
        given = f"--states {held.params} --optimizer {held.optimizer}"
    except NOT_READ:
        given = "the same --states COUNT"
    raise InputError(f"--store {store}: holds states; serve it with {given}")


def hyper_of(optimizer: str, given: Iterable[str]) -> dict[str, float | bool]:
    """Return hyperparameters by name from texts NAME=VALUE and DEFAULTS. Raises InputError."""
    takes = get(optimizer).takes
    found: dict[str, float | bool] = {
        name: value for name, value in DEFAULTS.items() if name in takes
    }
    named: set[str] = set()
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--hyper {quoted(text)}: must be NAME=VALUE")
        if name not in takes:
            raise InputError(
                f"--hyper {quoted(text)}: {optimizer} has no {quoted(name)}; it has "
                f"{', '.join(takes)}"
            )
        if name in named:
            raise InputError(f"--hyper {quoted(text)}: {name} is given twice")
        named.add(name)
        try:
            found[name] = number(value)
        except ValueError:
            raise InputError(f"--hyper {quoted(text)}: {quoted(value)} is not a number") from None
        if name in FLAGS:
            if found[name] not in (0, 1):
                raise InputError(f"--hyper {quoted(text)}: must be 0 or 1")
            found[name] = bool(found[name])
    return found


def number(text: str) -> float:
    """Return a number that is written with digits, such as 0.5, 1e-8 or -2. Raises ValueError for
    other text, also for what float() accepts: "1_0", " 1", "nan", digits of other scripts."""
    if not NUMBER.fullmatch(text):
        raise ValueError(f"{quoted(text)}is not a number in digits")
    return float(text)


def load_weights(path: str, count: int) -> np.ndarray:
    """Return the weights in a .npy file, float32[count]. Raises InputError."""
    right = f"must be a .npy file of float32[{count}]"
    try:
        with open(path, "rb") as file:
            is_array = file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX
            file.seek(0)
            found = np.load(file, allow_pickle=False) if is_array else None
    except OSError as error:
        raise InputError(f"--weights {path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError):
        raise InputError(f"--weights {path}: cannot be read as numbers; {right}") from None
    if found is None:
        raise InputError(f"--weights {path}: is not a .npy file; {right}")
    if found.dtype != np.float32 or found.shape != (count,):
        order = " in the byte order of other machines" if not found.dtype.isnative else ""
        kind = f"{found.dtype.newbyteorder('=')}{list(found.shape)}{order}"
        raise InputError(f"--weights {path}: is {kind}; {right}")
    if not np.isfinite(found).all():
        at = int(np.flatnonzero(~np.isfinite(found))[0])
        raise InputError(f"--weights {path}: element {at} is {found[at]}; all must be finite")
    return found
