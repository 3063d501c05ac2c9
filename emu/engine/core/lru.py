"""Places in the drive's DRAM: found by the number of a logical page, and in an order of use.

Owns the lists that chain the places of one bucket, and the links of an order of use. Does not own
what lies in a place, or the two ends of an order (backend/cmt.py, frontend/cache.py).
Source: own: chained hashing and doubly linked lists. Places are numbered from 1; 0 is none. Tables
of places have fields lpn, chain, newer and older; ``buckets`` is int32[devices, power of two].
"""

from __future__ import annotations

from ondie.kernels.jit import inline, njit


@inline
def bucket_of(buckets, lpn):
    """Which list of places a logical page would be in."""
    return (lpn ^ (lpn >> 9) ^ (lpn >> 18)) & (buckets.shape[1] - 1)


@inline
def find(buckets, places, dev, lpn):
    """The place of a logical page, or 0."""
    p = int(buckets[dev, bucket_of(buckets, lpn)])
    while p > 0 and places[p - 1].lpn != lpn:
        p = int(places[p - 1].chain)
    return p


@inline
def enlist(buckets, places, dev, p, lpn):
    """Place ``p`` is a logical page's from now on."""
    b = bucket_of(buckets, lpn)
    places[p - 1].lpn = lpn
    places[p - 1].chain = buckets[dev, b]
    buckets[dev, b] = p


@njit
def unlist(buckets, places, dev, p):
    """Place ``p`` is not found any more by its number."""
    b = bucket_of(buckets, places[p - 1].lpn)
    other = int(buckets[dev, b])
    if other == p:
        buckets[dev, b] = places[p - 1].chain
        return
    while places[other - 1].chain != p:
        other = int(places[other - 1].chain)
    places[other - 1].chain = places[p - 1].chain


@inline
def follow(places, p, last):
    """Place ``p``, in no order, comes behind the ``last`` of one. True when it is its first."""
    places[p - 1].newer = 0
    places[p - 1].older = last
    if last > 0:
        places[last - 1].newer = p
    return last == 0


@inline
def bypass(places, p):
    """The neighbours of place ``p`` in its order become each other's. Its ends are the caller's."""
    place = places[p - 1]
    if place.newer > 0:
        places[place.newer - 1].older = place.older
    if place.older > 0:
        places[place.older - 1].newer = place.newer
