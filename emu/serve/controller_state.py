"""State that the controllers of a drive preserve across power cycles, in a file in the store of the
drive.

Owns the file `nvme.json` and its checks. Does not own the meaning of its contents
(controller/shared.py, controller/health.py) or the other files of the store (nand/store_folder.py).
Source: NVM Express Base Specification 2.0, which requires that namespaces, saved feature values,
sanitize operations and the counters of the SMART / Health Information log page persist across a
loss of power.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ondie.emu.controller.health import Past, Ran
from ondie.emu.controller.health_logs import SanitizeState
from ondie.emu.controller.namespaces import Namespace, Namespaces
from ondie.emu.controller.shared import MediaState, Shared
from ondie.emu.controller.uncorrectable import Uncorrectable
from ondie.emu.files import write_atomically
from ondie.emu.serve.marked_blocks import MarkedBlocks
from ondie.emu.serve.served import Served
from ondie.emu.units import InputError

NAME = "nvme.json"
VERSION = 2
Found = TypeVar("Found")
MOST_COUNT = (1 << 128) - 1
"""Maximum value of a counter in the log pages."""


def save(folder: Path, shared: Shared, past: Past, ran: Ran, running: bool, durable: bool) -> None:
    """Write the state of the controllers atomically to the store in ``folder``.

    ``past``: health data up to the last start at which the counters of the drive began at 0.
    ``ran``: counters since that start. ``running``: True if a power cut at this time would be an
    unsafe shutdown. ``durable``: True if the file must survive a failure of the host. Raises
    InputError if the file cannot be written.
    """
    document = {
        "version": VERSION,
        "running": running,
        "past": past._asdict() | {"ran": past.ran._asdict()},
        "ran": ran._asdict(),
        "created": shared.namespaces.created,
        "namespaces": [
            {
                "nsid": each.nsid, "first": each.first, "size": each.size, "blocks": each.blocks,
                "block_format": each.block_format, "uuid": str(each.uuid),
                "attached": each.attached, "write_protected": each.write_protected,
            }
            for each in shared.namespaces.by_nsid.values()
            if not each.states  # it is added at every start
        ],
        "uncorrectable": shared.uncorrectable.ranges,
        "sanitize": shared.sanitize._asdict(),
        "features": [[*setting, value] for setting, value in shared.saved_features.items()],
        "read_commands": shared.read_commands,
        "write_commands": shared.write_commands,
        "unaligned": shared.unaligned,
    }  # fmt: skip
    write_atomically({folder / NAME: json.dumps(document, indent=1).encode()}, durable)


class Loaded:
    """State of the controllers in a file that :func:`save` has written."""

    def __init__(self, document: dict[str, Any], namespaces: Namespaces) -> None:
        """Raises KeyError, TypeError or ValueError if ``document`` was not written by ``save``."""
        self.running = bool(document["running"])
        past = document["past"]
        self.past = Past(**(past | {"ran": _ran(past["ran"])}))
        self.ran = _ran(document["ran"])
        self.shared = Shared(namespaces)
        sizes, capacity = namespaces.capabilities.formats, namespaces.capabilities.capacity_bytes
        namespaces.created = int(document["created"])
        for each in document["namespaces"]:
            size = sizes[_number(each["block_format"], "block_format", len(sizes) - 1)]
            found = Namespace(**(each | {"uuid": uuid.UUID(each["uuid"]), "block_bytes": size}))
            _check(found, namespaces)
            namespaces.by_nsid[found.nsid] = found
        self.shared.uncorrectable.ranges = _marks(document, capacity)
        self.shared.sanitize = SanitizeState(**document["sanitize"])
        self.shared.saved_features = {
            (feature, part): value for feature, part, value in document["features"]
        }
        for name in ("read_commands", "write_commands", "unaligned"):
            setattr(self.shared, name, int(document[name]))


class WithoutController:
    """Saved state (see :func:`save`) of a drive that is served without an NVMe controller. The
    media state, ``state``, is the only part that :meth:`save` changes in the file."""

    def __init__(self, folder: Path, document: dict[str, Any], capacity: int) -> None:
        """Raises KeyError, TypeError or ValueError if ``document`` was not written by ``save``."""
        self._folder, self._document = folder, document
        self.state = MediaState(
            Uncorrectable(_marks(document, capacity)), SanitizeState(**document["sanitize"])
        )

    def save(self, durable: bool) -> None:
        """Write the state atomically. ``durable``: True if the file must survive a failure of the
        host. Raises InputError if the file cannot be written."""
        changed = {
            "uncorrectable": self.state.uncorrectable.ranges,
            "sanitize": self.state.sanitize._asdict(),
        }
        text = json.dumps(self._document | changed, indent=1)
        write_atomically({self._folder / NAME: text.encode()}, durable)


def _marks(document: dict[str, Any], capacity: int) -> list[tuple[int, int]]:
    """Return the byte ranges that are marked uncorrectable, as (first byte, end). ``capacity``:
    capacity of the drive, bytes. Raises KeyError, TypeError or ValueError if the ranges are
    invalid."""
    marks, last = [(low, high) for low, high in document["uncorrectable"]], 0
    for low, high in marks:
        _number(high, "end of the uncorrectable bytes", capacity)
        if _number(low, "first uncorrectable byte", high - 1) < last:
            raise ValueError(
                f"uncorrectable bytes {low} to {high}: the range must begin at or after byte "
                f"{last}, the end of the previous range"
            )
        last = high
    return marks


def of_version_1(document: dict[str, Any]) -> dict[str, Any]:
    """Convert a document from version 1 to version 2. Of the counters in Ran, version 1 contains
    only the power-on time."""
    past = dict(document["past"])
    before = {"power_on_ps": past.pop("power_on_ps")}
    ran = {"power_on_ps": document["now_ps"]}
    return document | {"version": 2, "past": past | {"ran": before}, "ran": ran}


def _ran(counts: dict[str, Any]) -> Ran:
    """Return the counters ``counts`` of a document as Ran. Raises TypeError or ValueError if a name
    or a value is invalid."""
    return Ran(**{name: _number(each, name, MOST_COUNT) for name, each in counts.items()})


def _number(value: object, name: str, most: int, least: int = 0) -> int:
    """Return ``value`` if it is an integer from ``least`` to ``most``. Raises ValueError
    otherwise."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} = {value!r}: must be an integer from {least} to {most}")
    return value


def _check(found: Namespace, namespaces: Namespaces) -> None:
    """Raise ValueError if the namespace ``found`` is invalid, or if it conflicts with one of
    ``namespaces``."""
    offered, others = namespaces.capabilities, namespaces.by_nsid
    capacity, unit = offered.capacity_bytes, offered.mapping_unit_bytes
    _number(found.nsid, "nsid", offered.namespaces, 1)
    if found.nsid in others:
        raise ValueError(f"namespace {found.nsid} is listed twice")
    name = f"namespace {found.nsid}:"
    _number(found.first, f"{name} first", capacity - 1)
    _number(found.size, f"{name} size", capacity - found.first, 1)
    _number(found.blocks, f"{name} blocks", found.size // found.block_bytes, 1)
    for key, value in (("first", found.first), ("size", found.size)):
        if value % unit:
            raise ValueError(f"{name} {key} = {value}: must be a multiple of {unit}")
    for each in others.values():
        if found.first < each.first + each.size and each.first < found.first + found.size:
            raise ValueError(
                f"{name} first = {found.first}, size = {found.size}: overlaps namespace "
                f"{each.nsid} (first = {each.first}, size = {each.size})"
            )


def load(folder: Path, namespaces: Namespaces) -> Loaded | None:
    """Return the state of the controllers from its file in the store in ``folder``, or None if the
    store has no such file. Add the namespaces of the file to ``namespaces``. Raises InputError if
    the file cannot be read or is damaged."""
    return _load(folder, lambda document: Loaded(document, namespaces))


def load_without_controller(folder: Path, capacity: int) -> WithoutController | None:
    """Return the saved state from its file in the store in ``folder``, or None if the store has no
    such file. The drive has a capacity of ``capacity`` bytes and is served without an NVMe
    controller. Raises InputError if the file cannot be read or is damaged."""
    return _load(folder, lambda document: WithoutController(folder, document, capacity))


def _load(folder: Path, take: Callable[[dict[str, Any]], Found]) -> Found | None:
    """Read the file in ``folder``, and return the result of ``take`` for its JSON document, or None
    if there is no file. Raises InputError if the file cannot be read or is damaged."""
    path = folder / NAME
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    try:
        if document["version"] == 1:
            document = of_version_1(document)
        if document["version"] != VERSION:
            raise ValueError(f"version = {document['version']}: must be 1 or {VERSION}")
        return take(document)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: is damaged ({error}); restore the file, or remove it to start "
                         "with one namespace of the whole drive") from error  # fmt: skip


def follow_marks(served: Served) -> None:
    """Apply the ranges listed as uncorrectable in the store to a drive served without an NVMe
    controller, and save later changes of these ranges. Raises InputError if the file cannot be read
    or is damaged."""
    files = None if served.store is None else served.store.files
    if files is None:
        return
    found = load_without_controller(files.folder.path, served.capacity)
    if found is None:
        return
    lock, keeps, durable = threading.Lock(), served.online, files.folder.syncs

    def save() -> None:
        if keeps:
            with lock:
                found.save(durable)

    served.marks = MarkedBlocks(found.state, lock, save)
