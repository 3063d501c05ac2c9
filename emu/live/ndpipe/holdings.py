"""Content of an NDPipe system (model versions, photos and labels), and a description of the content
that an interrupted job has added.

Owns the counts of the content, and the text of the description. Does not own the label database
(labels.py) or the versions (kept_models.py).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ondie.emu.live.ndpipe.kept_models import count_versions
from ondie.emu.live.ndpipe.labels import Labels
from ondie.emu.units import InputError, plural


@dataclass(frozen=True)
class Holdings:
    """Content of an NDPipe system. ``versions``, ``photos``: numbers of model versions and of
    photos. ``labels``: number of labels by the model version that produced them."""

    versions: int
    photos: int
    labels: Mapping[int, int]


def holdings(folder: Path) -> Holdings | None:
    """Return the content of the NDPipe system in ``folder``, or None if the label database of the
    system is missing or cannot be used."""
    try:
        labels = Labels(folder / "labels.sqlite")
        try:
            photos, by_version = labels.counts()
        finally:
            labels.close()
    except InputError:
        return None
    return Holdings(count_versions(folder), photos, by_version)


def added(folder: Path, before: Holdings | None) -> str:
    """Return a text that lists the model versions, photos and labels added to the NDPipe system in
    ``folder`` since ``before``. The text is part of the message about an interruption."""
    now = holdings(folder)
    if now is None:
        return "nothing was written"
    if before is None:
        parts = [f"{folder} was created with {plural(now.photos, 'photo')}"]
        before = Holdings(0, now.photos, {})
    else:
        parts = []
    if now.versions > before.versions:
        first, last = before.versions, now.versions - 1
        parts.append(f"version{f' {last}' if first == last else f's {first} to {last}'} stored")
    if (count := now.photos - before.photos) > 0:
        parts.append(f"{plural(count, 'photo')} stored")
    if count := sum(max(n - before.labels.get(v, 0), 0) for v, n in now.labels.items()):
        parts.append(f"{plural(count, 'label')} written")
    return ", ".join(parts) or "no version, photo or label was written"
