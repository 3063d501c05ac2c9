"""Versions of a model on a Tuner and its stores, and the distribution of new versions.

Owns the versions kept by the Tuner, the choice between one delta, a chain of deltas and the full
model, and the continuation of interrupted transfers. Does not own the format of messages
(delta.py).
Source: NDPipe (ASPLOS 2024), version-aware redistribution (VAMR).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.ndpipe.delta import Part, applied, delta, digest, full, message, parse
from ondie.emu.units import InputError, whole_number

ONE_SHOT, CHAIN, WHOLE, NOTHING = "one delta", "chain of deltas", "full model", "nothing"
"""Names of the forms in which an update brings a store to the latest version of a model."""


@dataclass(frozen=True)
class Update:
    """Message that updates the model of a store to version ``version``. ``form``: ONE_SHOT, CHAIN,
    WHOLE or NOTHING. ``name``: checksum of the message, by which a store recognizes the message."""

    form: str
    version: int
    message: bytes
    name: bytes


class Versions:
    """Versions of a model on the Tuner, numbered from 0.

    ``keep``: number of latest versions whose models are kept; a store with an older version
    receives the full model. ``pack``: True to compress deltas.
    """

    def __init__(self, model: np.ndarray, *, keep: int = 8, pack: bool = True) -> None:
        self.keep = whole_number("keep", keep, 1, 1 << 20)
        self.pack = pack
        self.latest = -1
        self._models: dict[int, np.ndarray] = {}
        self._steps: dict[int, Part] = {}
        """Deltas from a version to the next version, by number of the earlier version."""
        self.publish(model)

    def publish(self, model: np.ndarray) -> int:
        """Add ``model`` (any array) as a new version; return the number of the version. Raises
        InputError if the model is empty."""
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
        """Return the model of a version (uint8[n]). Raises InputError if the version is unknown or
        no longer kept."""
        self._check(version)
        if version not in self._models:
            raise InputError(
                f"version {version}: no longer kept; the Tuner has versions {min(self._models)} to "
                f"{self.latest}"
            )
        return self._models[version]

    def update(self, version: int | None, checksum: bytes = b"") -> Update:
        """Return the message that updates a store from ``version`` to the latest version;
        ``version`` is None if the store has no model.

        ``checksum``: digest of the store's model, or empty to skip the comparison. The update is
        the full model if the store has no model, if its version is no longer kept, or if
        ``checksum`` is not that of its version. Otherwise, its form is NOTHING if the store has the
        latest version. For an older version, the update is the smaller of one delta and a chain of
        deltas. Raises InputError if the version never existed.
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
        """Return the update that consists of ``parts``."""
        text = message(parts)
        return Update(form, self.latest, text, digest(text))

    def _check(self, version: int) -> None:
        """Raise InputError if the version never existed."""
        if not 0 <= version <= self.latest:
            raise InputError(
                f"version {version}: unknown; the Tuner has published versions 0 to {self.latest}"
            )


class StoreModel:
    """Model of a store: its bytes, its version, and a transfer that may be incomplete.

    A transfer changes the model only when the transfer is complete and its checksums are correct.
    """

    def __init__(self) -> None:
        self.version: int | None = None
        self.model = np.zeros(0, np.uint8)
        self._name = b""
        self._received = bytearray()

    @property
    def checksum(self) -> bytes:
        """Digest of the store's model, or b"" if the store has no model."""
        return b"" if self.version is None else digest(self.model)

    def begin(self, update: Update) -> int:
        """Begin or continue the transfer of the message of ``update``; return the number of bytes
        of this message that have already been received. If part of a different message has been
        received, that part is discarded."""
        if update.name != self._name:
            self._name, self._received = update.name, bytearray()
        return len(self._received)

    def receive(self, offset: int, data: bytes) -> None:
        """Append ``data``, the bytes of the message that begin at ``offset``. Raises InputError if
        ``offset`` is not the number of bytes received so far."""
        if offset != len(self._received):
            raise InputError(
                f"transfer: data begins at byte {offset}; must begin at byte {len(self._received)}"
            )
        self._received += data

    def finish(self, update: Update) -> None:
        """Apply a message to the model if the message is complete and intact.

        Raises InputError if the transfer is incomplete or damaged, or if a delta has another base;
        the model is then unchanged. After damage, the message must be sent again from its first
        byte.
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
    """Send those bytes of ``update`` that the store has not yet received; each chunk has at most
    ``chunk`` bytes. Then apply the update and return the number of bytes sent. Raises InputError as
    :meth:`StoreModel.finish` does."""
    start = store.begin(update)
    for offset in range(start, len(update.message), chunk):
        store.receive(offset, update.message[offset : offset + chunk])
    store.finish(update)
    return len(update.message) - start
