"""Error protection of the optimizer's pages, which processing elements read on the die.

Owns the bit errors remaining after ECC on the die or in the controller, and the bit errors of a
simulated read that represents several reads (``errors.exposure``). Does not own error rates
(rber.py), the reads of the pages (ftl/reservoir.py) or the decoding time (compute/pe.py,
ftl/transfers.py).
Source: AiF, ISCA 2025 (10 bit/1 KiB on the die); bounded-distance decoding as in ecc.py: a code
word with more bit errors than its code corrects stays unchanged.

With an implemented code (ecc.code = bch or ldpc), the decoder of the code determines the bytes
instead (codec.py). Check bits then have errors, too. The code does not change the bit errors in the
data as read.

The bit errors of a read are drawn for the whole page, with the random key of the read, and do not
depend on the code. If a simulated read represents ``exposure`` reads, a page without ECC has the
bit errors of all these reads. A page with ECC has the bit errors of every code word that failed in
any of these reads.
"""

from __future__ import annotations

import math

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.rules.code_words import bch_degree
from ondie.emu.engine.core.intrinsics import set_bits
from ondie.emu.engine.core.rng import below, binomial, uniform
from ondie.emu.nand import bit_errors, ecc
from ondie.emu.nand.ecc import codeword_failure, log_mass, word_key
from ondie.emu.nand.rber import MOST_RBER
from ondie.kernels import bch_code
from ondie.kernels.jit import njit

WITHOUT_ECC = ("none", "nan_comparator")
"""Values of pe.protection with which processing elements use pages without error correction."""
MANY = 64
"""Maximum mean number of failures per code word for which each failure is drawn separately.

Above this number, all bit errors of the page are drawn at a common rate.
"""


def code(cfg: Config) -> tuple[int, int]:
    """Return (bytes of a code word, correctable bits per code word) of the optimizer's pages.

    Returns (0, 0) without ECC.
    """
    match cfg.pe.protection:
        case "on_die_ecc":
            return cfg.pe.ecc_codeword_bytes, cfg.pe.ecc_correctable_bits
        case "controller_ecc":
            return cfg.ecc.codeword_bytes, cfg.ecc.correctable_bits
        case _:
            return 0, 0


def coded(cfg: Config) -> bool:
    """Return True if an implemented code decodes the optimizer's pages: the controller's code, or
    BCH on the die.
    """
    real = cfg.ecc.code != "capability" and cfg.errors.kind != "none"
    return real and cfg.pe.protection not in WITHOUT_ECC


def check_bytes(cfg: Config) -> int:
    """Return the number of check bytes of a code word of the optimizer's pages. The code is BCH
    with protection "on_die_ecc", otherwise the controller's code. Call this function only if
    :func:`coded` returns True."""
    if cfg.pe.protection != "on_die_ecc":
        return ecc.check_bytes(cfg)
    degree = bch_degree(*code(cfg))
    assert degree is not None, "config/rules/code_words.py"
    return bch_code.check_bytes(degree, cfg.pe.ecc_correctable_bits)


@njit
def clear_correctable(mask, word, limit):
    """Clear the correctable code words in ``mask``, the bit errors of a page, uint8[page bytes].

    A code word has ``word`` bytes and is correctable with at most ``limit`` bit errors. Returns the
    number of remaining bit errors, int64.
    """
    left = np.int64(0)
    for first in range(0, mask.shape[0], word):
        wrong = np.int64(0)
        for i in range(first, first + word):
            wrong += set_bits(int(mask[i]))
        if wrong > limit:
            left += wrong
        else:
            for i in range(first, first + word):
                mask[i] = 0
    return left


@njit
def draw_uncorrectable(key, bits, limit, rate):
    """Draw the number of bit errors (int64) of an uncorrectable code word of ``bits`` bits.

    The distribution is binomial with bit error rate ``rate``, given that the number exceeds
    ``limit``.
    """
    u = uniform(key, 0) * codeword_failure(bits, limit, rate)
    k = limit + 1
    mass = math.exp(log_mass(bits, k, rate))
    odds = rate / (1.0 - rate)
    while u > mass > 0.0 and k < bits:
        u -= mass
        mass *= odds * (bits - k) / (k + 1.0)
        k += 1
    return np.int64(k)


@njit
def failures(mask, key, rate, word, limit, exposure):
    """Fill ``mask`` with the bit errors of the code words that fail in ``exposure`` reads of a
    page. Return the number of bit errors.

    ``mask``: uint8[page bytes], initially zero. ``word``: bytes of a code word, at least 1. Other
    arguments: see :func:`fill_mask`.
    """
    own = mask.shape[0] // word
    count = own * exposure
    share = codeword_failure(8 * word, limit, rate)
    drawn = word_key(key, 0, -2)
    if share > MOST_RBER:
        failed = count - binomial(drawn, count, 1.0 - share)
    else:
        failed = binomial(drawn, count, share)
    if failed > MANY * own:
        bits = failed * max(limit + 1.0, 8.0 * word * rate)
        return bit_errors.bare_mask(mask, key, min(MOST_RBER, bits / (8.0 * mask.shape[0])))
    for i in range(failed):
        which = word_key(key, 1, i)
        first = word * below(which, 1, own)
        one = np.zeros(word, np.uint8)
        bit_errors.scatter(
            one, 0, 8 * word, which, draw_uncorrectable(which, 8 * word, limit, rate)
        )
        for k in range(word):
            mask[first + k] ^= one[k]
    left = np.int64(0)
    for k in range(mask.shape[0]):
        left += set_bits(int(mask[k]))
    return left


@njit
def fill_mask(mask, key, rate, word, limit, exposure):
    """Fill ``mask`` (uint8[page bytes], initially zero) with the bit errors that remain after a
    read.

    ``key``: from rng.page_key. ``rate``: raw bit error rate. ``word``: bytes of a code word, 0
    without ECC. ``limit``: correctable bit errors per code word. ``exposure``: number of reads that
    the simulated read represents. Returns (number of bit errors as read from the array, number of
    bit errors after correction).
    """
    if word == 0:
        raw = bit_errors.bare_mask(mask, key, min(rate * exposure, MOST_RBER))
        return raw, raw
    if exposure == 1:
        raw = bit_errors.bare_mask(mask, key, rate)
        return raw, clear_correctable(mask, word, limit)
    left = failures(mask, key, rate, word, limit, exposure)
    raw = binomial(word_key(key, 0, -3), 8 * mask.shape[0] * exposure, rate)
    return max(raw, left), left


@njit
def count_wrong_bits(key, rate, page, word, limit, exposure):
    """Return (number of bit errors as read from the array, number of bit errors after correction)
    of a page of ``page`` bytes. Other arguments: see :func:`fill_mask`. The positions of the bit
    errors are drawn only if the numbers depend on them.
    """
    if word == 0 or exposure == 1:
        raw = binomial(word_key(key, 0, -1), 8 * page, min(rate * exposure, MOST_RBER))
        if word == 0 or raw <= limit:
            return raw, raw if word == 0 else np.int64(0)
    return fill_mask(np.zeros(page, np.uint8), key, rate, word, limit, exposure)


def wrong_bits(
    page_bytes: int, rate: float, key: int, word: int = 0, limit: int = 0, exposure: int = 1
) -> np.ndarray:
    """Return the mask of the bit errors that remain after a read, uint8[page_bytes].

    The exclusive or of data and mask is the data as read. ``key``: from rng.page_key. Other
    arguments: see :func:`fill_mask`.
    """
    mask = np.zeros(page_bytes, np.uint8)
    fill_mask(mask, np.uint64(key), rate, word, limit, exposure)
    return mask


def wrong_words(page_bytes: int, rate: float, key: int, word: int, check: int) -> np.ndarray:
    """Return the bit-error mask of the code words of one read of a page, uint8[words, word +
    check]. Each word has its data bytes first, with the bit errors of :func:`wrong_bits` without
    ECC, and then its check bytes.

    ``word``, ``check``: number of data bytes and of check bytes of a code word. Raises InputError
    if ``rate`` is not from 0 to 1/2.
    """
    data = bit_errors.wrong_bits(page_bytes, rate, key).reshape(-1, word)
    beside = bit_errors.wrong_bits(len(data) * check, rate, int(check_key(np.uint64(key))))
    return np.hstack((data, beside.reshape(-1, check)))


@njit
def check_key(key):
    """Return the uint64 random key for the bit errors in the check bits of a page."""
    return word_key(key, 0, -4)


@njit
def failures_by_step(keys, rate, page, word, check, limit):
    """Return the number of code words that cannot be corrected in the page reads of each optimizer
    step, int64[steps, 2].

    Column 0: words with more than ``limit`` bit errors in their data (the capability model). Column
    1: words with more than ``limit`` bit errors in their data and ``check`` check bytes, in pages
    with bit errors in the data. ``keys``: random keys of the reads, uint64[steps, reads]. ``page``:
    bytes of a page. ``word``: data bytes of a code word.
    """
    found = np.zeros((keys.shape[0], 2), np.int64)
    words = page // word
    for step in range(keys.shape[0]):
        for i in range(keys.shape[1]):
            data = np.zeros(page, np.uint8)
            if bit_errors.bare_mask(data, keys[step, i], rate) == 0:
                continue
            beside = np.zeros(words * check, np.uint8)
            bit_errors.bare_mask(beside, check_key(keys[step, i]), rate)
            for at in range(words):
                wrong = np.int64(0)
                for k in range(at * word, (at + 1) * word):
                    wrong += set_bits(int(data[k]))
                found[step, 0] += wrong > limit
                for k in range(at * check, (at + 1) * check):
                    wrong += set_bits(int(beside[k]))
                found[step, 1] += wrong > limit
    return found


@njit
def wrong_bits_by_step(keys, rate, page, word, limit, exposure):
    """Return the number of bit errors in the page reads of each optimizer step, int64[steps, 2].

    Columns: before and after correction. ``keys``: random keys of the reads, uint64[steps, reads].
    Other arguments: see :func:`count_wrong_bits`.
    """
    found = np.zeros((keys.shape[0], 2), np.int64)
    for step in range(keys.shape[0]):
        for i in range(keys.shape[1]):
            raw, left = count_wrong_bits(keys[step, i], rate, page, word, limit, exposure)
            found[step, 0] += raw
            found[step, 1] += left
    return found
