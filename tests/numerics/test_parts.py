"""Functions compiled as one program: what is copied, what stays apart, what callers share."""

import numpy as np
import pytest
from numba import types

from ondie.kernels.jit import cold, inline, njit


@inline
def doubled(x):
    return 2 * x


@cold
def seldom(x):
    return x - 1000


@njit
def taken(x):
    return seldom(x) if x > 100 else doubled(x)


def text(function) -> str:
    """The program that Python calls, as LLVM has optimised it."""
    (result,) = function.whole.overloads.values()
    return result.library.get_llvm_str()


def defined(function, name: str) -> list[str]:
    """Heads of the definitions whose names hold ``name``."""
    return [x for x in text(function).splitlines() if x.startswith("define") and name in x]


@pytest.mark.parametrize("value", [-7, 0, 100, 101, 2**40])
def test_parts_compute_what_python_does(value):
    def plain(x):
        return x - 1000 if x > 100 else 2 * x

    assert taken(value) == plain(value)
    assert taken.py_func(value) == plain(value)


def test_signed_integers_of_any_width_share_a_part():
    @njit(cache=False)
    def part(x):
        return seldom(x) if x > 100 else doubled(x)

    @njit(cache=False)
    def of_widths(a, i):
        return part(a[i]) + part(np.int8(a[i])) + part(np.int32(a[i])) + part(3)

    values = np.array([-5, 90], np.int16)
    assert of_widths(values, 0) == 3 * -10 + 6
    assert of_widths(values, 1) == 3 * 180 + 6
    assert list(part.overloads) == [(types.int64,)]


def test_other_types_keep_theirs():
    @njit(cache=False)
    def half(x):
        return x / 2

    @njit(cache=False)
    def both(a, b):
        return half(a), half(b)

    assert both(np.float32(3), np.uint32(2**32 - 1)) == (1.5, (2**32 - 1) / 2)
    assert set(half.overloads) == {(types.float32,), (types.uint32,)}


def test_small_parts_are_copied_and_cold_ones_are_private():
    @cold
    def squared(x):
        return x * x + 1

    @njit(cache=False)
    def whole(x):
        return doubled(squared(x) + squared(x + 1))

    assert whole(3) == 2 * (10 + 17)
    assert not defined(whole, "doubled")
    (head,) = defined(whole, "squared")
    assert "internal" in head
    assert "i32 @" not in head  # its status, which is always the same, is gone
    assert "noinline" in text(whole)


def test_called_by_python_and_by_compiled_code():
    """A function is a program of its own where Python calls it, and a part where others do."""

    @njit(cache=False)
    def inner(x):
        return x + 1

    @njit(cache=False)
    def outer(x):
        return inner(inner(x))

    assert outer(1) == 3
    assert inner(1) == 2
    assert outer(2.5) == 4.5
    assert inner(np.int32(7)) == 8
