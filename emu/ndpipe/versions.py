"""Versions of a model on a Tuner and its stores, and the distribution of new ones.

Owns the versions that the Tuner keeps, the choice between one delta, a chain of deltas and the
full model, and transfers that continue after an interruption. Does not own the format of messages
(delta.py).
Source: NDPipe (ASPLOS 2024), version-aware redistribution (VAMR).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.ndpipe.delta import Part, applied, delta, digest, full, message, parse
from ondie.emu.units import InputError, whole_number

ONE_SHOT, CHAIN, WHOLE, NOTHING = "one delta", "chain of deltas", "full model", "nothing"
"""Forms of an update."""


@dataclass(frozen=True)
class Update:
    """Message that brings a store to ``version``. ``form``: ONE_SHOT, CHAIN, WHOLE or NOTHING.
    ``name``: checksum of the message, by which a store recognizes it."""

    form: str
    version: int
    message: bytes
    name: bytes


class Versions:
    """Versions of a model on the Tuner, numbered from 0.

    ``keep``: number of latest versions whose bytes are kept; the base of a store with an older one
    is unknown. ``pack``: compress deltas.
    """

    def __init__(self, model: np.ndarray, *, keep: int = 8, pack: bool = True) -> None:
        self.keep = whole_number("keep", keep, 1, 1 << 20)
        self.pack = pack
        self.latest = -1
        self._models: dict[int, np.ndarray] = {}
        self._steps: dict[int, Part] = {}
        """Delta to the version after its key."""
        self.publish(model)

    def publish(self, model: np.ndarray) -> int:
        """Add a version with the bytes of ``model`` (any array); return its number."""
        data = np.ascontiguousarray(model).reshape(-1).view(np.uint8).copy()
        if not len(data):
            raise InputError("model: must have at least one byte")
        self.latest += 1
        if self.latest:
            before = self.latest - 1
            self._steps[before] = delta(
                before, self._models[before], self.latest, data, pack=self.pack
            )
        self._models[self.latest] = data
        for old in [version for version in self._models if version <= self.latest - self.keep]:
            del self._models[old], self._steps[old]
        return self.latest

    def model(self, version: int) -> np.ndarray:
        """Return the bytes of a version. Raises InputError if it is unknown or no longer kept."""
        self._check(version)
        if version not in self._models:
            raise InputError(
                f"version {version}: no longer kept; the Tuner has versions {min(self._models)} to "
                f"{self.latest}"
            )
        return self._models[version]

    def update(self, version: int | None, checksum: bytes = b"") -> Update:
        """Return the message for a store with ``version`` (None: it has no model).

        ``checksum``: digest of the store's model; if it is another one than that of the version,
        the base is unknown. The smaller one of one delta and a chain of deltas is sent, the full
        model only if the base is unknown. Raises InputError for a version that never existed.
        """
        if version is not None:
            self._check(version)
        old = None if version is None else self._models.get(version)
        if version is None or old is None or (checksum and digest(old) != checksum):
            return self._sent(WHOLE, [full(self.latest, self._models[self.latest])])
        if version == self.latest:
            return Update(NOTHING, version, b"", b"")
        chain = [self._steps[step] for step in range(version, self.latest)]
        one = chain[0]
        if len(chain) > 1:
            one = delta(version, old, self.latest, self._models[self.latest], pack=self.pack)
        if sum(part.bytes for part in chain) < one.bytes:
            return self._sent(CHAIN, chain)
        return self._sent(ONE_SHOT, [one])

    def _sent(self, form: str, parts: list[Part]) -> Update:
        """Return the update of ``parts``."""
        text = message(parts)
        return Update(form, self.latest, text, digest(text))

    def _check(self, version: int) -> None:
        """Raise InputError for a version that never existed."""
        if not 0 <= version <= self.latest:
            raise InputError(
                f"version {version}: unknown; the Tuner has published versions 0 to {self.latest}"
            )


class StoreModel:
    """Model of a store: its bytes, its version, and a transfer that may be incomplete.

    A transfer changes the model when it is complete and has been checked, or not at all.
    """

    def __init__(self) -> None:
        self.version: int | None = None
        self.model = np.zeros(0, np.uint8)
        self._name = b""
        self._received = bytearray()

    @property
    def checksum(self) -> bytes:
        """Digest of the model; empty if there is none."""
        return b"" if self.version is None else digest(self.model)

    def begin(self, update: Update) -> int:
        """Begin or continue the transfer of ``update``; return the number of bytes that have
        already been received. A transfer of another message is dropped."""
        if update.name != self._name:
            self._name, self._received = update.name, bytearray()
        return len(self._received)

    def receive(self, offset: int, data: bytes) -> None:
        """Append bytes of the message from ``offset`` on. Raises InputError if these are not the
        bytes that follow."""
        if offset != len(self._received):
            raise InputError(
                f"transfer: bytes from {offset} on, but {len(self._received)} have been received"
            )
        self._received += data

    def finish(self, update: Update) -> None:
        """Apply the message, if it is complete and intact, to the model.

        Raises InputError if the transfer is incomplete, damaged, or has a delta on another base;
        the model stays. A damaged message is received again from its first byte.
        """
        if update.form == NOTHING:
            return
        if update.name != self._name or len(self._received) < len(update.message):
            raise InputError(
                f"version {update.version}: {len(self._received)} of {len(update.message)} bytes "
                "have been received; continue the transfer"
            )
        text, self._name, self._received = bytes(self._received), b"", bytearray()
        parts = parse(text)
        self.model = applied(self.version, self.model, parts)
        self.version = parts[-1].version


def transfer(store: StoreModel, update: Update, chunk: int = 1 << 16) -> int:
    """Send the missing part of ``update`` in chunks and apply the update; return the bytes sent."""
    start = store.begin(update)
    for offset in range(start, len(update.message), chunk):
        store.receive(offset, update.message[offset : offset + chunk])
    store.finish(update)
    return len(update.message) - start
