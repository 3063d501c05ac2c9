"""Owns: the check that a kernel gives the bits of its definition, for all of ondie.kernels.
Does not: know any operation; a test hands over two callables and names the arrays.
Source: own.

A kernel is run on copies of the same arrays as its definition, over odd sizes, at addresses that
are and are not aligned, on ordinary numbers, zeros, denormals, infinities and NaNs. Every array
must end with the same bits; a NaN must be a NaN in both, payload and sign not compared. The
memory on both sides of each array must stay as it was.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ondie.kernels import isas

SIZES = (0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 65, 127, 1000, 4097)
OFFSETS = (0, 4, 60, 1)  # bytes past a 64-byte boundary; 1 is not even aligned to a float
KINDS = ("ordinary", "wide", "zeros", "denormals", "infinities", "nans", "bits")
GUARD = 64  # bytes kept before and after each array

Kernel = Callable[[Sequence[np.ndarray]], None]


def compiled() -> list[tuple[str, str | None]]:
    """Every (backend, isa) that must agree with the NumPy definition here."""
    return [("numba", None), *(("c", isa) for isa in isas())]


def values(rng: np.random.Generator, n: int, kind: str) -> np.ndarray:
    """n float32 of one kind."""
    x = rng.standard_normal(n).astype(np.float32)
    if kind == "wide":
        x *= (10.0 ** rng.uniform(-30, 15, n)).astype(np.float32)
    elif kind == "zeros":
        x = np.where(rng.random(n) < 0.7, np.copysign(np.float32(0), x), x)
    elif kind == "denormals":
        x *= np.float32(2.0**-126) * rng.random(n, dtype=np.float32)
    elif kind in ("infinities", "nans"):
        special = np.float32(np.inf if kind == "infinities" else np.nan)
        x = np.where(rng.random(n) < 0.3, np.copysign(special, x), x)
    elif kind == "bits":
        x = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    return x.astype(np.float32, copy=False)


def placed(x: np.ndarray, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """A copy of x whose address is `offset` past a multiple of 64, and the buffer around it."""
    raw = np.full(x.nbytes + 2 * GUARD + 128, 0xA5, dtype=np.uint8)
    start = -(raw.ctypes.data + GUARD) % 64 + GUARD + offset
    view = raw[start : start + x.nbytes].view(x.dtype)
    view[:] = x
    assert x.size == 0 or view.ctypes.data % 64 == offset % 64
    return view, raw


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit patterns, NaNs equal wherever both have one."""
    return not different(a, b).any()


def different(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two arrays of one type differ in bits without both being NaN."""
    word = np.dtype(f"u{a.dtype.itemsize}")
    differs = np.ascontiguousarray(a).view(word) != np.ascontiguousarray(b).view(word)
    if a.dtype.kind == "f":
        differs &= ~(np.isnan(a) & np.isnan(b))
    return differs


def cases(sizes: Sequence[int] = SIZES) -> Iterator[tuple[int, int, str]]:
    """(size, offset, kind): each size at each offset, each size with each kind, not the product."""
    for size in sizes:
        for offset in OFFSETS:
            yield size, offset, "ordinary"
        for kind in KINDS:
            yield size, OFFSETS[size % 2], kind


def check_kernel(
    definition: Kernel,
    candidate: Kernel,
    arrays: Sequence[np.ndarray],
    offset: int = 0,
    names: Sequence[str] = (),
    readonly: Sequence[int] = (),
) -> list[np.ndarray]:
    """Run both on copies of `arrays`, demand equal bits, and return the definition's results.

    readonly: indices of arrays that the candidate must leave as they were.
    """
    wanted = [a.copy() for a in arrays]
    definition(wanted)
    views, buffers = zip(*(placed(a, offset) for a in arrays), strict=True)
    before = [b.copy() for b in buffers]
    candidate(views)
    for i, (got, want) in enumerate(zip(views, wanted, strict=True)):
        name = names[i] if names else f"array {i}"
        bad = np.flatnonzero(different(got, want))
        assert bad.size == 0, (
            f"{name}: {bad.size} of {got.size} elements differ, first at {bad[0]}: "
            f"got {got[bad[0]]!r}, definition {want[bad[0]]!r}"
        )
        if i in readonly:
            assert got.tobytes() == arrays[i].tobytes(), f"{name} was written to"
        got.view(np.uint8)[:] = before[i][_span(got, buffers[i])]
        assert np.array_equal(buffers[i], before[i]), f"{name}: wrote outside the array"
    return wanted


def _span(view: np.ndarray, buffer: np.ndarray) -> slice:
    start = view.ctypes.data - buffer.ctypes.data if view.size else 0
    return slice(start, start + view.nbytes)
