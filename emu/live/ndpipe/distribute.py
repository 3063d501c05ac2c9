"""Distribution of new model versions from NDPipe's Tuner to a store over a connection; an
interrupted transfer is resumed.

Owns the exchange of frames. Does not own model versions, deltas and their checks
(emu/ndpipe/versions).
Source: NDPipe (ASPLOS 2024), version-aware redistribution; the frames are defined by this project.
"""

from __future__ import annotations

from ondie.emu.live.ndpipe.wire import CHUNK_BYTES, MOST_UPDATE, Frame, Kind, Link, LinkLost
from ondie.emu.ndpipe.versions import NOTHING, StoreModel, Update, Versions
from ondie.emu.units import InputError


def send_update(
    link: Link, versions: Versions, version: int | None, checksum: bytes, chunk: int = CHUNK_BYTES
) -> Update:
    """Send the latest model version to the store at the other end of ``link``, and return the
    update.

    ``version``, ``checksum``: version and checksum of the model that the store has now. ``chunk``:
    maximum number of bytes of the update in one frame. Raises LinkLost if the connection is lost or
    an unexpected frame arrives. Raises InputError if the store refuses the update or reports
    another version after it.
    """
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
            f"update to version {update.version}: the store then reports version "
            f"{found.fields['version']}, so the update has failed"
        )
    return update


def answer(link: Link, kind: Kind) -> Frame:
    """Return the next frame from the store; the kind of the frame must be ``kind``. Raises
    InputError if the frame is a refusal. Raises LinkLost if the frame has any other kind, or if the
    connection is lost."""
    found = link.receive()
    if found.kind == Kind.REFUSED:
        raise InputError(str(found.fields["why"]))
    if found.kind != kind:
        raise LinkLost(f"received frame {found.kind.name}; expected {kind.name}")
    return found


def take_update(link: Link, model: StoreModel, begun: Frame) -> None:
    """Receive the update that the frame ``begun`` (UPDATE) announces, and apply it to ``model``.

    An invalid update (too large, damaged, or a delta on another base) is refused: a refusal is sent
    to the Tuner, and the model is not changed. Raises LinkLost if the connection to the Tuner is
    lost; the received bytes are kept for the next attempt.
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
                raise LinkLost(f"received frame {part.kind.name}; expected CHUNK")
            model.receive(int(part.fields["at"]), part.body)
            at += len(part.body)
        model.finish(update)
    except InputError as error:
        link.send(Kind.REFUSED, why=str(error))
        return
    link.send(Kind.APPLIED, version=model.version, checksum=model.checksum.hex())
