"""Batches of photos, their places, and their assignment to stores.

Owns how shards are divided into runs and batches, and which store handles a batch. Does not own
the simulation (pipeline.py).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SMALL = 1e-9
"""Gain of a move, in photos at speed 1, below which the move is not worthwhile."""


class Batch(NamedTuple):
    """Photos that pass through the stages together.

    ``owner``: store whose shard they belong to. ``first``: number of the first photo in the shard.
    ``places``: stores that have these photos, the owner first.
    """

    run: int
    owner: int
    first: int
    photos: int
    places: tuple[int, ...]


def batches(photos: Sequence[int], runs: int, size: int, copies: bool) -> list[Batch]:
    """Return all batches, sorted by run and owner.

    ``photos``: number of photos of each store's shard; its runs differ by at most one photo.
    ``size``: photos of a batch, the last one of a run may have fewer. ``copies``: the copy of a
    shard's batches is spread over all other stores in turn.
    """
    found = []
    for run in range(runs):
        for owner, count in enumerate(photos):
            end = count * (run + 1) // runs
            for number, first in enumerate(range(count * run // runs, end, size)):
                places = [owner]
                if copies and len(photos) > 1:
                    places.append((owner + 1 + number % (len(photos) - 1)) % len(photos))
                found.append(Batch(run, owner, first, min(size, end - first), tuple(places)))
    return found


def assigned(every: Sequence[Batch], speeds: Sequence[float], balance: bool) -> dict[Batch, int]:
    """Return the store that handles each batch.

    Without ``balance`` that is the owner. With it, batches are moved to the other place, run by
    run, as long as that shortens the time of the store that takes longest. ``speeds``: relative
    speed of each store.
    """
    found = {batch: batch.owner for batch in every}
    if not balance:
        return found
    for run in dict.fromkeys(batch.run for batch in every):
        _balance(found, [batch for batch in every if batch.run == run], speeds)
    return found


def _balance(found: dict[Batch, int], run: Sequence[Batch], speeds: Sequence[float]) -> None:
    """Move batches of one run in ``found`` until no move helps."""
    load = [0.0] * len(speeds)
    for batch in run:
        load[found[batch]] += batch.photos / speeds[found[batch]]
    while True:
        moves = [
            (load[found[batch]], gain, batch, place)
            for batch in run
            for place in batch.places
            if (gain := _gain(load, speeds, batch.photos, found[batch], place)) > SMALL
        ]
        if not moves:
            return
        _, _, batch, place = max(moves)
        here = found[batch]
        load[here] -= batch.photos / speeds[here]
        load[place] += batch.photos / speeds[place]
        found[batch] = place


def _gain(
    load: Sequence[float], speeds: Sequence[float], photos: int, here: int, place: int
) -> float:
    """Return by how much the longer one of two loads shrinks if ``photos`` move from ``here`` to
    ``place``."""
    if here == place:
        return 0.0
    before = max(load[here], load[place])
    return before - max(load[here] - photos / speeds[here], load[place] + photos / speeds[place])
