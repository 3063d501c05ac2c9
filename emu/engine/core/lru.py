"""Hash table and LRU list of cache slots in the drive's DRAM, indexed by logical page.

Owns the hash chain of each bucket and the links of an LRU list. Does not own the contents of a slot
or the head and tail of a list (ftl/cmt.py, nvme/data_cache.py).
Source: this project (chained hashing, doubly linked lists). Slots are numbered from 1; 0 means that
there is no slot. ``places`` is a table of slots with the fields lpn, chain, newer and older.
``buckets`` is int32[devices, power of two]: the first slot of each hash chain.
"""

from __future__ import annotations

from ondie.kernels.jit import inline, njit


@inline
def bucket_of(buckets, lpn):
    """Return the index of the hash bucket of logical page ``lpn``."""
    return (lpn ^ (lpn >> 9) ^ (lpn >> 18)) & (buckets.shape[1] - 1)


@inline
def find(buckets, places, dev, lpn):
    """Return the slot (from 1) of logical page ``lpn`` of device ``dev``, or 0 if the page has no
    slot. ``buckets``: first slot of each hash bucket, by device. ``places``: records of the slots.
    """
    slot = int(buckets[dev, bucket_of(buckets, lpn)])
    while slot > 0 and places[slot - 1].lpn != lpn:
        slot = int(places[slot - 1].chain)
    return slot


@inline
def enlist(buckets, places, dev, slot, lpn):
    """Assign slot ``slot`` to logical page ``lpn`` and insert the slot into the page's hash
    bucket."""
    block = bucket_of(buckets, lpn)
    places[slot - 1].lpn = lpn
    places[slot - 1].chain = buckets[dev, block]
    buckets[dev, block] = slot


@njit
def unlist(buckets, places, dev, slot):
    """Remove slot ``slot`` from the hash bucket of its logical page."""
    block = bucket_of(buckets, places[slot - 1].lpn)
    other = int(buckets[dev, block])
    if other == slot:
        buckets[dev, block] = places[slot - 1].chain
        return
    while places[other - 1].chain != slot:
        other = int(places[other - 1].chain)
    places[other - 1].chain = places[slot - 1].chain


@inline
def follow(places, slot, last):
    """Append slot ``slot``, which must not be in a list, after ``last``, the newest slot of a list.

    ``last`` is 0 if the list is empty. Returns True if the list was empty.
    """
    places[slot - 1].newer = 0
    places[slot - 1].older = last
    if last > 0:
        places[last - 1].newer = slot
    return last == 0


@inline
def bypass(places, slot):
    """Unlink slot ``slot`` from its list. The caller updates the head and tail of the list."""
    place = places[slot - 1]
    if place.newer > 0:
        places[place.newer - 1].older = place.older
    if place.older > 0:
        places[place.older - 1].newer = place.newer
