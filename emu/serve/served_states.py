"""Optimizer states on a served drive: creation of new states, or restoration of states in the
store.

Owns the options for the states, the checks of the options, the choice between restored and new
states, and the file `states.json` in the store (optimizer and hyperparameters of the states). Does
not own the states (states/resident.py) or the commands for them (computation.py).
Source: this project.
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
"""Default values of hyperparameters. The default value of every other hyperparameter is 0."""
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
NOT_READ = (OSError, ValueError, TypeError, KeyError, OverflowError)
"""Types of the exceptions that reading a missing or damaged file `states.json` raises."""


class Held(NamedTuple):
    """Description of the optimizer states in a store: the contents of the file `states.json`."""

    params: int
    """Number of parameters of the model."""
    optimizer: str
    hyper: dict[str, float | bool] | None
    """All hyperparameters by name. None if the file was written by an earlier version of ondie,
    which did not store them."""


@dataclass(frozen=True, kw_only=True)
class StatesOptions:
    """Options for the optimizer states on a drive."""

    count: int
    """Number of parameters of the model."""
    optimizer: str
    hyper: tuple[str, ...] = ()
    """Hyperparameters that the user sets, each in the form NAME=VALUE."""
    weights: str | None = None
    """Path of a .npy file with the initial weights, or None if all initial weights are 0."""

    def check(self) -> np.ndarray | None:
        """Check the options without a drive; return the initial weights, float32[count], or None if
        ``weights`` is None. Raises InputError if an option is invalid, or if the file of weights is
        invalid or cannot be read."""
        if self.optimizer not in list(OPS):
            wrong = f"--optimizer {quoted(self.optimizer)}"
            raise InputError(f"{wrong}: unknown; {known_names(self.optimizer, OPS)}")
        count = whole_number("--states", self.count, 1, 1 << 40)
        hyper_of(self.optimizer, self.hyper)
        return None if self.weights is None else load_weights(self.weights, count)

    def states(self, cfg: Config, seed: int) -> ResidentStates:
        """Return the optimizer states for a drive with configuration ``cfg``. They are not yet
        created on the drive. The caller must have called :meth:`check`. Raises InputError if such a
        drive cannot hold the states."""
        hyper = hyper_of(self.optimizer, self.hyper)
        try:
            return ResidentStates(cfg, self.optimizer, self.count, hyper, seed=seed)
        except InputError as error:
            text = str(error)
            option = "" if text.startswith("hyper: ") else f"states {self.count}: "
            raise InputError(f"--{option}{text.removeprefix('on_die: ')}") from error

    def place(self, states: ResidentStates, drive: Drive, weights: np.ndarray | None) -> None:
        """Restore ``states`` from ``drive``, or create them if the drive is new. ``weights``:
        initial weights that :meth:`check` has returned. Raises InputError if the options contradict
        the store, or if the states cannot be restored."""
        self._check_store(drive, states)
        if drive.started is not Start.NEW:
            if self.weights is not None:
                raise InputError("--weights: the store already contains weights; omit the option")
            try:
                states.open(drive)
            except Unrecoverable as error:
                raise InputError(f"the states in the store cannot be restored: {error}") from error
            return
        vectors = {place.name: np.zeros(states.n_params, np.float32) for place in states.places}
        if weights is not None:
            vectors["w"] = weights
        states.create(drive, vectors)

    def _check_store(self, drive: Drive, states: ResidentStates) -> None:
        """Write `states.json` to the store of a new drive. If the drive is not new, compare the
        contents of the file with the options, and set the hyperparameters of ``states`` to those in
        the file. Raises InputError if the options contradict the file, or if the file cannot be
        read or written."""
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
                f"--states: {folder} is the store of a drive without optimizer states; "
                "omit the option"
            ) from None
        except NOT_READ as error:
            raise InputError(f"{path}: cannot be read: {error}") from error
        if held[:2] != own[:2]:
            raise InputError(
                f"--states {self.count} --optimizer {self.optimizer}: {folder} holds states of "
                f"{held.params} parameters for {held.optimizer}; use these values"
            )
        if held.hyper is None:
            if drive.condition is Condition.ONLINE:
                write_atomically({path: note(own)}, files.folder.syncs)
                values = ", ".join(f"{name}={value:g}" for name, value in (own.hyper or {}).items())
                say_once(f"{path}: contained no hyperparameters; these were added: {values}")
            return
        for text in self.hyper:
            name = text.partition("=")[0]
            of_store = held.hyper[name]
            if states.hyper[name] != of_store:
                raise InputError(
                    f"--hyper {text}: {folder} holds states with {name}={of_store:g}; "
                    "omit the option, or set the value in the update command (docs/computation.md)"
                )
        states.hyper = held.hyper


def note(held: Held) -> bytes:
    """Return ``held`` as the contents of the file `states.json`."""
    found = {"states": held.params, "optimizer": held.optimizer, "hyper": held.hyper}
    return json.dumps(found).encode()


def all_of(optimizer: str, given: Mapping[str, float | bool]) -> dict[str, float | bool]:
    """Return the values of all hyperparameters of ``optimizer``: the values in ``given``, and
    default values for the hyperparameters that ``given`` omits. Raises KernelError if a name or a
    value is invalid."""
    values = checked(optimizer, get(optimizer).takes, given)
    return {name: bool(value) if name in FLAGS else value for name, value in values.items()}


def held_by(path: Path) -> Held:
    """Return the description in the file `states.json` at ``path``. Raises one of the exceptions
    NOT_READ if the file is missing or damaged."""
    found = json.loads(path.read_bytes())
    count, optimizer, hyper = int(found["states"]), str(found["optimizer"]), found.get("hyper")
    if hyper is not None:
        if not isinstance(hyper, dict):
            raise ValueError(f"hyper = {quoted(repr(hyper))}: must be a JSON object")
        try:
            hyper = all_of(optimizer, hyper)
        except KernelError as error:
            raise ValueError(f"hyper: {error}") from error
    return Held(count, optimizer, hyper)


def describe_states(folder: str) -> dict[str, Any]:
    """Return the description of the optimizer states in the store at ``folder``, for the output of
    `ondie store info`. The dictionary is empty if the store holds no states. Raises InputError if
    the file `states.json` cannot be read."""
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
    """Raise InputError if the store at ``store`` holds optimizer states. The server calls this
    function if the option --states is not given. ``store``: path, or None for a drive without a
    store."""
    if store is None or not (Path(store) / NAME).exists():
        return
    try:
        held = held_by(Path(store) / NAME)
        given = f"--states {held.params} --optimizer {held.optimizer}"
    except NOT_READ:
        given = "the --states COUNT with which it was created"
    raise InputError(f"--store {store}: holds optimizer states; serve it with {given}")


def hyper_of(optimizer: str, given: Iterable[str]) -> dict[str, float | bool]:
    """Return hyperparameters by name: the values in ``given`` (texts of the form NAME=VALUE), and
    the values in DEFAULTS for hyperparameters that ``given`` omits. Raises InputError if a text is
    invalid, or if a name is unknown or repeated."""
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
                f"--hyper {quoted(text)}: {optimizer} has no hyperparameter {quoted(name)}; it has "
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
                raise InputError(f"--hyper {quoted(text)}: {name} must be 0 or 1")
            found[name] = bool(found[name])
    return found


def number(text: str) -> float:
    """Return the number that ``text`` represents in ASCII digits, such as 0.5, 1e-8 or -2. Raises
    ValueError for all other texts, including some that float() accepts: "1_0", " 1", "nan", and
    digits of other scripts."""
    if not NUMBER.fullmatch(text):
        raise ValueError(f"{quoted(text)}: must be a number in ASCII digits")
    return float(text)


def load_weights(path: str, count: int) -> np.ndarray:
    """Return the weights in the .npy file at ``path``, float32[count]. Raises InputError if the
    file cannot be read, if its dtype or shape differs, or if a value is not finite."""
    right = f"must be a .npy file of float32[{count}]"
    try:
        with open(path, "rb") as file:
            is_array = file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX
            file.seek(0)
            found = np.load(file, allow_pickle=False) if is_array else None
    except OSError as error:
        raise InputError(f"--weights {path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError):
        raise InputError(f"--weights {path}: cannot be read as an array; {right}") from None
    if found is None:
        raise InputError(f"--weights {path}: is not a .npy file; {right}")
    if found.dtype != np.float32 or found.shape != (count,):
        order = " in the wrong byte order" if not found.dtype.isnative else ""
        kind = f"{found.dtype.newbyteorder('=')}{list(found.shape)}{order}"
        raise InputError(f"--weights {path}: is {kind}; {right}")
    if not np.isfinite(found).all():
        at = int(np.flatnonzero(~np.isfinite(found))[0])
        raise InputError(f"--weights {path}: element {at} is {found[at]}; it must be finite")
    return found
