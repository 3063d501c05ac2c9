"""Are arrays cut into whole, disjoint chunks, at multiples of a block, and never too small?"""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.kernels import KernelError
from ondie.kernels.threads import GRAIN, LEAST, chunks, run


@given(st.integers(0, 10_000_000), st.integers(1, 64))
def test_chunks_cover_once(n, threads):
    parts = chunks(n, threads)
    assert parts[0][0] == 0 and parts[-1][1] == n and 1 <= len(parts) <= threads
    assert all(a[1] == b[0] for a, b in zip(parts, parts[1:], strict=False))
    assert all(start % GRAIN == 0 for start, _ in parts)
    assert len(parts) == 1 or n >= len(parts) * LEAST


def test_short_arrays_stay_on_the_calling_thread():
    assert chunks(2 * LEAST - 1, 8) == [(0, 2 * LEAST - 1)]
    assert run(100, 8, lambda i, j: threading.get_ident()) == [threading.get_ident()]


def test_long_arrays_use_other_threads_and_keep_order():
    barrier = threading.Barrier(3, timeout=30)

    def work(start, stop):
        barrier.wait()  # passes only when three run at once
        return start

    assert run(3 * LEAST, 3, work) == [0, LEAST, 2 * LEAST]


def test_an_error_in_a_thread_is_the_callers():
    def work(start, stop):
        raise KeyError(start)

    with pytest.raises(KeyError):
        run(100 * LEAST, 2, work)
    with pytest.raises(KernelError, match="threads: 0"):
        run(100, 0, work)
