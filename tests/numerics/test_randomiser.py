"""The randomizer's sequence by its recurrence, its published start, and the same bits on both
backends."""

import numpy as np
import pytest

from ondie.emu.compute.randomiser import (
    DEGREE,
    MOST,
    Randomiser,
    defined_sequence,
    page_states,
)
from ondie.kernels import KernelError

SIZE = 8192


def bits_of(data):
    return np.unpackbits(data, bitorder="little")


def test_recurrence_bit_by_bit():
    state = 0x2345_6789
    before = [state >> i & 1 for i in range(DEGREE)]
    for bit in bits_of(defined_sequence(state, 500)).tolist():
        assert bit == before[-31] ^ before[-28]
        before.append(bit)


def test_start_of_the_sequence_of_all_ones():
    """After 31 ones come 28 zeros and 3 ones: a register of O.150 that starts with ones."""
    assert bits_of(defined_sequence(MOST, 8))[:35].tolist() == [0] * 28 + [1] * 3 + [0] * 4


def test_polynomial_is_primitive():
    galois = pytest.importorskip("galois")
    assert galois.Poly.Degrees([31, 28, 0]).is_primitive()


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_backends_have_the_same_bits(seed):
    data = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
    kept = data.copy()
    for page in (0, 1, 12345, 2**63 - 1):
        for size in (1, 3, 4096, SIZE):
            defined = Randomiser(seed, "numpy")(data[:size], page)
            compiled = Randomiser(seed, "numba")(data[:size], page)
            assert (defined == compiled).all()
            assert (Randomiser(seed)(compiled, page) == data[:size]).all()
    assert (data == kept).all()


def test_no_long_runs_and_as_many_ones_as_zeros():
    """A sequence of degree 31 has no more than 31 equal bits in a row."""
    page = np.zeros(SIZE, np.uint8)
    for number in range(20):
        bits = bits_of(Randomiser(7)(page, number))
        ends = np.flatnonzero(np.diff(bits))
        assert np.diff(ends).max() <= DEGREE
        assert abs(int(bits.sum()) - 4 * SIZE) < 5 * np.sqrt(2 * SIZE)


def test_pages_and_seeds_have_states_of_their_own():
    pages = np.arange(100_000)
    states = page_states(pages, 3)
    assert states.min() >= 1 and states.max() <= MOST
    assert len(np.unique(states)) > 99_990
    assert (states[:100] != page_states(pages[:100], 4)).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**64}, "from 0 to 2"),
        ({"seed": 1.5}, "whole number"),
        ({"backend": "c"}, "unknown backend 'c'"),
    ],
)
def test_refused(arguments, words):
    with pytest.raises(KernelError, match=words):
        Randomiser(**arguments)


@pytest.mark.parametrize(
    ("data", "page", "words"),
    [
        (np.zeros(4, np.uint8), -1, "page = -1"),
        (np.zeros(4, np.int8), 0, "int8"),
        (np.zeros((2, 2), np.uint8), 0, "shape"),
    ],
)
def test_pages_refused(data, page, words):
    with pytest.raises(KernelError, match=words):
        Randomiser()(data, page)
