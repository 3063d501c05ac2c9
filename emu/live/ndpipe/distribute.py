"""Distribution of new versions over a connection; an interrupted transfer continues.

Owns the exchange of frames. Does not own versions, deltas and their checks (emu/ndpipe/versions).
Source: NDPipe (ASPLOS 2024), version-aware redistribution; the frames are this project's.
"""

from __future__ import annotations

from ondie.emu.live.ndpipe.wire import CHUNK_BYTES, MOST_UPDATE, Frame, Kind, Link, LinkLost
from ondie.emu.ndpipe.versions import NOTHING, StoreModel, Update, Versions
from ondie.emu.units import InputError


def send_update(
    link: Link, versions: Versions, version: int | None, checksum: bytes, chunk: int = CHUNK_BYTES
) -> Update:
    """Bring the store behind ``link``, which has ``version`` with ``checksum``, to the latest
    version; return the update. Raises LinkLost if the store is gone, InputError if it refuses."""
    update = versions.update(version, checksum)
    if update.form == NOTHING:
        return update
    link.send(
        Kind.UPDATE, form=update.form, version=update.version, name=update.name.hex(),
        size=len(update.message),
    )  # fmt: skip
    start = int(answer(link, Kind.RESUME).fields["at"])
    for offset in range(start, len(update.message), chunk):
        link.send(Kind.CHUNK, update.message[offset : offset + chunk], at=offset)
    found = answer(link, Kind.APPLIED)
    if found.fields["version"] != update.version:
        raise InputError(
            f"version {update.version}: the store states version {found.fields['version']}"
        )
    return update


def answer(link: Link, kind: Kind) -> Frame:
    """Return the next frame. Raises InputError if it is a refusal, LinkLost for another kind."""
    found = link.receive()
    if found.kind == Kind.REFUSED:
        raise InputError(str(found.fields["why"]))
    if found.kind != kind:
        raise LinkLost(f"received a frame {found.kind.name}; expected {kind.name}")
    return found


def take_update(link: Link, model: StoreModel, begun: Frame) -> None:
    """Receive the update that the frame ``begun`` (UPDATE) announces and apply it to ``model``.

    A refusal (a damaged message, a delta on another base) is sent back; the model stays. Raises
    LinkLost if the Tuner is gone; the received bytes are kept for the next attempt.
    """
    size, version = int(begun.fields["size"]), int(begun.fields["version"])
    if not 0 <= size <= MOST_UPDATE:
        why = f"update of {size:,} bytes; must be at most {MOST_UPDATE:,}"
        link.send(Kind.REFUSED, why=why)
        return
    update = Update(begun.fields["form"], version, bytes(size), bytes.fromhex(begun.fields["name"]))
    at = model.begin(update)
    link.send(Kind.RESUME, at=at)
    try:
        while at < size:
            part = link.receive()
            if part.kind != Kind.CHUNK or not part.body:
                raise LinkLost(f"received a frame {part.kind.name}; expected CHUNK")
            model.receive(int(part.fields["at"]), part.body)
            at += len(part.body)
        model.finish(update)
    except InputError as error:
        link.send(Kind.REFUSED, why=str(error))
        return
    link.send(Kind.APPLIED, version=model.version, checksum=model.checksum.hex())
