"""Bit errors in stored bytes: the bits that the seed names, as many as the rate says, no others;
what a code can correct comes back, what it cannot is known.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import rng as draws
from ondie.emu.nand import bit_errors as inject
from ondie.emu.nand import ecc, rber
from ondie.emu.nand.codec import Decoder, PageRead
from ondie.emu.nand.page_store import PageStore
from ondie.emu.units import InputError

CFG = load_preset("newport").replace({"errors.kind": "model"})
CODE = ecc.code(CFG)[0]
PAGE = 16384
BITS = 8 * PAGE


def key(ppn, seed=1, cycles=0, read=0):
    return np.uint64(draws.page_key(seed, ppn, cycles, read))


def count(mask):
    return int(np.bitwise_count(mask).sum())


def per_word(mask):
    return np.bitwise_count(mask).reshape(CODE.words, -1).sum(axis=1, dtype=np.int64)


def positions(mask):
    return np.flatnonzero(np.unpackbits(mask, bitorder="little"))


def excess(observed, expected):
    """(chi-square - degrees of freedom) / its standard deviation."""
    freedom = len(observed) - 1
    return (((observed - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


@pytest.fixture
def page(rng):
    return rng.integers(0, 256, PAGE, np.uint8)


# --- which bits


@given(
    some.floats(0, 0.5), some.integers(0, 2**62), some.integers(0, 2**40), some.integers(0, 8),
    some.booleans(),
)  # fmt: skip
def test_the_same_draw_gives_the_same_bits(rate, seed, ppn, level, covered):
    code = CODE if covered else None
    one = inject.wrong_bits(PAGE, rate, key(ppn, seed), code, level)
    other = inject.wrong_bits(PAGE, 0.25, key(ppn + 1, seed), code, level)
    assert one.tobytes() == inject.wrong_bits(PAGE, rate, key(ppn, seed), code, level).tobytes()
    assert one.tobytes() != other.tobytes()
    assert one.shape == (PAGE,) and one.dtype == np.uint8


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 3.5e-3, 4.8e-3, 8.5e-3, 0.1, 0.5])
def test_as_many_as_the_read_counted(rate):
    """What ecc.page_errors counts without bytes is what is flipped with them, word by word."""
    for ppn in range(20):
        mask = inject.wrong_bits(PAGE, rate, key(ppn), CODE, 2)
        errors, worst = ecc.page_errors(CODE, key(ppn), 2, rate)
        assert count(mask) == errors
        assert worst == 0 if rate < CODE.safe else worst == per_word(mask).max()


def test_a_reading_that_was_corrected_is_correctable():
    """Days 0 to 60 at 500 P/E: the outcome of the read is that of its bits."""
    c, seen = rber.rates(CFG)[0], set()
    leak, stable = rber.leak_rate(c, 500), rber.stable_rate(c, 500)
    for ppn in range(240):
        shifted = rber.shifted_rate(c, leak, 0.0, ppn / 4, 0)
        outcome, retries, errors = ecc.read_page(CODE, key(ppn), stable, shifted, 1.0)
        rate = rber.retry_rate(stable, shifted, 1.0, CODE.gain, retries)
        mask = inject.wrong_bits(PAGE, rate, key(ppn), CODE, retries)
        assert count(mask) == errors
        assert outcome == ecc.CORRECTED and per_word(mask).max() <= CODE.limit
        if retries:
            rate = rber.retry_rate(stable, shifted, 1.0, CODE.gain, retries - 1)
            before = inject.wrong_bits(PAGE, rate, key(ppn), CODE, retries - 1)
            assert per_word(before).max() > CODE.limit
        seen.add(retries)
    assert seen >= {0, 1, 2}


def test_counts_are_binomial(counts):
    """Mean n p and variance n p (1 - p), each within 4 of its standard errors."""
    n, rate = counts(1000, 50_000), 1.48e-3
    found = np.array([count(inject.wrong_bits(PAGE, rate, key(i), CODE)) for i in range(n)])
    mean, variance = BITS * rate, BITS * rate * (1 - rate)
    assert abs(found.mean() - mean) < 4 * math.sqrt(variance / n)
    assert abs(found.var() - variance) < 4 * variance * math.sqrt(2 / n)


@pytest.mark.parametrize("code", [CODE, None], ids=["covered", "bare"])
@pytest.mark.parametrize("rate", [2e-3, 6e-3])
def test_every_bit_is_as_likely(code, rate, counts):
    """Bits of 200 pages over 1024 stretches of a page and over the 8 places of a byte."""
    n = counts(200, 20_000)
    found = np.concatenate(
        [positions(inject.wrong_bits(PAGE, rate, key(i), code)) for i in range(n)]
    )
    for observed in (np.bincount(found // 128, minlength=1024), np.bincount(found % 8)):
        assert abs(excess(observed, len(found) / len(observed))) < 5


def test_half_of_the_bits_at_most():
    """Where every second bit is wrong no position is taken twice: the count is what was drawn."""
    mask = inject.wrong_bits(PAGE, 0.5, key(3))
    assert count(mask) == draws.binomial(ecc.word_key(key(3), 0, -1), BITS, 0.5)
    assert abs(count(mask) - BITS / 2) < 5 * math.sqrt(BITS / 4)


def test_nothing_at_rate_zero():
    assert not inject.wrong_bits(PAGE, 0.0, key(1)).any()
    assert not inject.wrong_bits(PAGE, 0.0, key(1), CODE).any()


@pytest.mark.parametrize("count_", [0, 1, 7, 63, 64])
def test_scattered_bits_are_distinct_and_inside(count_):
    """64 bits from bit 13 of 128: as many as asked for, none outside."""
    mask = np.zeros(16, np.uint8)
    inject.scatter(mask, 13, 64, key(9), count_)
    found = positions(mask)
    assert len(found) == count_ and set(found) <= set(range(13, 77))
    plain = np.zeros(16, np.uint8)
    inject.scatter.py_func(plain, 13, 64, key(9), count_)
    assert plain.tobytes() == mask.tobytes()


def test_every_pair_is_as_likely():
    """2 of 5 bits: ten pairs, 5000 draws, chi-square with 9 degrees of freedom."""
    found = np.zeros(10, np.int64)
    pairs = [(a, b) for a in range(5) for b in range(a + 1, 5)]
    for i in range(5000):
        mask = np.zeros(1, np.uint8)
        inject.scatter(mask, 0, 5, key(i), 2)
        found[pairs.index(tuple(positions(mask)))] += 1
    assert abs(excess(found, 500)) < 5


# --- stored pages


def test_bad_input_is_named(page):
    store = PageStore(PAGE)
    store.write(0, 7, page)
    for rate in (-1e-9, 0.6, math.nan):
        with pytest.raises(InputError, match="must be from 0 to 0.5") as caught:
            inject.wrong_bits(PAGE, rate, key(1))
        assert str(rate) in str(caught.value)
    with pytest.raises(InputError, match=r"8192 bytes.*4 code words of 4096 bytes"):
        inject.wrong_bits(8192, 1e-3, key(1), CODE)
    with pytest.raises(InputError, match="page 9 was read before it was programmed"):
        store.read(9)
    with pytest.raises(InputError, match="page 9 .*never programmed"):
        store.damage(9, np.zeros(PAGE, np.uint8))
    assert store.intact(0)


# --- what a real code makes of them


def test_a_real_code_agrees_with_the_read(page):
    """Rates around the limit of a BCH code: words with more wrong bits than it corrects, check bits
    included, fail, and no others; they are as they were read."""
    bch = {"ecc.code": "bch", "ecc.codeword": "1 KiB", "ecc.correctable_bits": "60"}
    cfg = load_preset("newport").replace({"errors.kind": "model", "ecc.soft_reads": "0"} | bch)
    code, decoder = ecc.code(cfg)[0], Decoder(cfg)
    outcomes = set()
    for ppn in range(40):
        rate = 5.5e-3 + 2e-3 * ppn / 40
        (found,) = decoder.decode([PageRead(page, int(key(ppn)), rate, 0, ecc.CORRECTED)])
        words = inject.code_words(PAGE, rate, key(ppn), code)
        wrong = np.bitwise_count(words).sum(axis=1, dtype=np.int64)
        errors, worst = ecc.page_errors(code, key(ppn), 0, rate)
        assert (wrong.sum(), wrong.max()) == (errors, worst)
        assert found.failed == (wrong > 60).sum()
        mask = np.where((wrong > 60)[:, None], words[:, :1024], 0).reshape(-1)
        assert (found.data == page ^ mask.astype(np.uint8)).all()
        outcomes.add(found.failed)
    assert 0 in outcomes and len(outcomes) > 2
