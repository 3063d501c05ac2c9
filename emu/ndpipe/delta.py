"""Lossless difference between two versions of a model, and the messages that carry it.

Owns the format of messages (full model, delta, chain of deltas), their checksums, and their
application. Does not own the record of each store's version (versions.py).
Source: NDPipe (ASPLOS 2024), version-aware redistribution; the format is this project's.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass

import numpy as np

from ondie.emu.units import InputError

MAGIC = b"NDPV"
DIGEST_BYTES = 16
WORD = 4
"""Size in bytes of the words in which two versions of a model are compared. A delta contains the
words that differ."""
NEAR = 4
"""Maximum distance, in words, between two consecutive changed words that a delta stores in one run
(range of words). Storing the unchanged words between them costs less than the header of another
run."""
FULL, DELTA = 0, 1
PACKED, RAW = 1, 0
HEADER = struct.Struct("<4sBBHqqQQ16s16s")
"""Header of a part of a message: magic number, kind, compression flag, number of parts in the
message, base version, version, size of the model (bytes), size of the body (bytes), digest of the
base, digest of the model."""
RUN = np.dtype([("start", "<u8"), ("words", "<u8")])


def digest(data: bytes | np.ndarray) -> bytes:
    """Return the checksum of a model or message: 16 bytes of BLAKE2b."""
    text = data.data if isinstance(data, np.ndarray) else data
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True)
class Part:
    """One part of a message: the full model, or a delta from version ``base`` to ``version``.

    ``size``: bytes of the model after this part. ``body``: the model or the delta, as bytes.
    """

    kind: int
    packed: int
    base: int
    version: int
    size: int
    base_digest: bytes
    digest: bytes
    body: bytes

    def encoded(self, parts: int) -> bytes:
        """Return the part as bytes: its header and body. ``parts``: number of parts in the
        message."""
        head = HEADER.pack(
            MAGIC, self.kind, self.packed, parts, self.base, self.version, self.size,
            len(self.body), self.base_digest, self.digest,
        )  # fmt: skip
        return head + self.body

    @property
    def bytes(self) -> int:
        """Size of the part's header and body, bytes."""
        return HEADER.size + len(self.body)


def full(version: int, model: np.ndarray) -> Part:
    """Return a message part that contains all bytes of the model of version ``version``. ``model``:
    these bytes, uint8[n]."""
    none = bytes(DIGEST_BYTES)
    return Part(FULL, RAW, -1, version, len(model), none, digest(model), model.tobytes())


def delta(base: int, old: np.ndarray, version: int, new: np.ndarray, *, pack: bool = True) -> Part:
    """Return the delta from ``old`` (uint8[n]) to ``new`` (uint8[m]); n and m may differ.

    ``pack``: compress the delta if that makes it smaller. A changed word is stored as the exclusive
    or of its old and new value, and the bytes of the words are grouped by their position in the
    word, so that unchanged signs and exponents become zeros.
    """
    words = -(-max(len(old), len(new)) // WORD)
    change = _padded(old, words) ^ _padded(new, words)
    at = np.flatnonzero(change)
    breaks = np.flatnonzero(np.diff(at) > NEAR) + 1
    starts = at[np.concatenate([[0], breaks])] if len(at) else at
    ends = at[np.concatenate([breaks - 1, [len(at) - 1]])] + 1 if len(at) else at
    runs = np.zeros(len(starts), RUN)
    runs["start"], runs["words"] = starts, ends - starts
    picked = [change[run["start"] : run["start"] + run["words"]] for run in runs]
    values = np.concatenate(picked) if picked else change[:0]
    planes = np.ascontiguousarray(values.view(np.uint8).reshape(-1, WORD).T)
    plain = struct.pack("<Q", len(runs)) + runs.tobytes() + planes.tobytes()
    small = zlib.compress(plain, 1) if pack else plain
    packed, body = (PACKED, small) if len(small) < len(plain) else (RAW, plain)
    return Part(DELTA, packed, base, version, len(new), digest(old), digest(new), body)


def _padded(model: np.ndarray, words: int) -> np.ndarray:
    """Return uint32[words] with the bytes of ``model``, padded with zeros."""
    if len(model) == words * WORD and model.flags.c_contiguous:
        return model.view(np.uint32)
    out = np.zeros(words * WORD, np.uint8)
    out[: len(model)] = model
    return out.view(np.uint32)


def message(parts: list[Part]) -> bytes:
    """Return the parts as one message with a checksum at the end."""
    text = b"".join(part.encoded(len(parts)) for part in parts)
    return text + digest(text)


def parse(text: bytes) -> list[Part]:
    """Return the parts of a complete message. Raises InputError if the message is damaged."""
    body, end = text[:-DIGEST_BYTES], text[-DIGEST_BYTES:]
    if len(text) < DIGEST_BYTES + HEADER.size or digest(body) != end:
        raise InputError(
            f"message of {len(text)} bytes: the checksum does not match; send it again"
        )
    parts, at = [], 0
    while at < len(body):
        (
            magic, kind, packed, count, base, version, size, length, base_digest, model_digest,
        ) = HEADER.unpack_from(body, at)  # fmt: skip
        at += HEADER.size
        if magic != MAGIC or kind not in (FULL, DELTA) or at + length > len(body):
            raise InputError(
                f"message: invalid part header at byte {at - HEADER.size}; send the message again"
            )
        parts.append(
            Part(
                kind, packed, base, version, size, base_digest, model_digest, body[at : at + length]
            )
        )
        at += length
    if len(parts) != count:
        raise InputError(
            f"message: contains {len(parts)} parts, but its header states {count}; send it again"
        )
    return parts


def applied(version: int | None, model: np.ndarray, parts: list[Part]) -> np.ndarray:
    """Return the model (uint8[n]) after all parts are applied; ``model`` is not changed.

    ``version``: version of ``model``, or None if there is no model yet. Raises InputError if the
    base of a delta differs from the model in version or data, if a delta changes words outside the
    model, or if a result does not have the stated checksum.
    """
    for part in parts:
        if part.kind == FULL:
            model = np.frombuffer(part.body, np.uint8)
        else:
            _check_base(version, model, part)
            model = _patched(model, part)
        if len(model) != part.size or digest(model) != part.digest:
            raise InputError(
                f"version {part.version}: the resulting model does not have the stated checksum; "
                "send the message again"
            )
        version = part.version
    return model


def _check_base(version: int | None, model: np.ndarray, part: Part) -> None:
    """Raise InputError unless ``part`` is a delta whose base has the number ``version`` and the
    data ``model``."""
    name = f"delta from version {part.base} to {part.version}"
    if version != part.base:
        has = "no model" if version is None else f"version {version}"
        raise InputError(
            f"{name}: the store has {has} instead of version {part.base}; the model was not changed"
        )
    if digest(model) != part.base_digest:
        raise InputError(
            f"{name}: version {version} of the model in the store differs from the base of the "
            "delta; the model was not changed"
        )


def _patched(model: np.ndarray, part: Part) -> np.ndarray:
    """Return the model (uint8[part.size]) that results from applying the delta ``part`` to
    ``model``. Raises InputError if the delta changes words outside the model."""
    plain = zlib.decompress(part.body) if part.packed else part.body
    (count,) = struct.unpack_from("<Q", plain)
    runs = np.frombuffer(plain, RUN, count, 8)
    words = int(runs["words"].sum())
    planes = np.frombuffer(plain, np.uint8, words * WORD, 8 + count * RUN.itemsize)
    values = np.ascontiguousarray(planes.reshape(WORD, words).T).view(np.uint32).reshape(-1)
    room = -(-max(len(model), part.size) // WORD)
    starts, lengths = runs["start"], runs["words"]
    if count and int((starts + lengths).max()) > room:
        raise InputError(
            f"version {part.version}: the delta changes bytes up to "
            f"{int((starts + lengths).max()) * WORD}, but the model has "
            f"{max(len(model), part.size)} bytes; send a valid delta or the full model"
        )
    out, at = _padded(model, room).copy(), 0
    for start, length in runs.tolist():
        out[start : start + length] ^= values[at : at + length]
        at += length
    return out.view(np.uint8)[: part.size]
