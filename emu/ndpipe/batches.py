"""Batches of photos: the storage servers (stores) with a copy of each batch, and the store that
uses the batch.

Owns the division of each store's photos (its shard) into runs (sub-datasets) and batches, and the
choice of the store that handles a batch. Does not own the simulation (pipeline.py).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SMALL = 1e-9
"""Threshold for moving a batch: the move must reduce the larger of the two stores' loads by more
than this value. A load is a number of photos divided by the store's speed."""


class Batch(NamedTuple):
    """Photos of one store that pass through the stages of the pipeline together.

    ``run``: number of the sub-dataset (run) that contains the photos. ``owner``: store whose shard
    contains the photos. ``first``: number of the first photo within the shard. ``photos``: number
    of photos. ``places``: stores that have these photos, the owner first.
    """

    run: int
    owner: int
    first: int
    photos: int
    places: tuple[int, ...]


def batches(photos: Sequence[int], runs: int, size: int, copies: bool) -> list[Batch]:
    """Return all batches, sorted by run (sub-dataset) and owner.

    ``photos``: number of photos in each store's shard; the runs of a shard differ by at most one
    photo. ``size``: photos per batch; the last batch of a run may have fewer. ``copies``: True if
    each batch has a copy on one other store, if there is one; the copies of a shard are spread over
    all other stores round-robin.
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

    ``every``: all batches. Without ``balance``, the owner handles the batch. With ``balance``, the
    batches of each run (sub-dataset) are moved between the owner and the store with the copy, as
    long as a move reduces the longer of the two stores' loads. ``speeds``: relative speed of each
    store.
    """
    found = {batch: batch.owner for batch in every}
    if not balance:
        return found
    for run in dict.fromkeys(batch.run for batch in every):
        _balance(found, [batch for batch in every if batch.run == run], speeds)
    return found


def _balance(found: dict[Batch, int], run: Sequence[Batch], speeds: Sequence[float]) -> None:
    """Move the batches of one run between stores, in ``found``, until no move reduces the longer
    load of the two stores concerned."""
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
    """Return the reduction of the longer of two loads if ``photos`` photos move from store ``here``
    to store ``place``."""
    if here == place:
        return 0.0
    before = max(load[here], load[place])
    return before - max(load[here] - photos / speeds[here], load[place] + photos / speeds[place])
