"""Bit errors in stored bytes: random positions of the bit errors of a page read.

Owns the bit-error masks of page reads, including the page reads in the engine's log. Does not own
error rates (rber.py), the number of bit errors (ecc.page_errors) or the codes that correct them
(codec.py).
Source: raw bit errors of NAND as independent flips of stored bits, as in the error models of Cai et
al., Proc. IEEE 105(9), 2017; Floyd, CACM 30(9), 1987 (random selection of distinct positions
without a list of all positions).
"""

from __future__ import annotations

import numpy as np

from ondie.emu.engine.core import payload_log
from ondie.emu.engine.core.rng import below, binomial
from ondie.emu.nand.ecc import word_key
from ondie.emu.nand.rber import MOST_RBER
from ondie.emu.units import InputError, quoted
from ondie.kernels.jit import njit

POSITIONS = 1 << 48
"""Index, in a code word's random sequence, of the first random number that selects a bit position.

Random numbers with lower indices determine the number of bit errors.
"""


@njit
def scatter(mask, first, bits, key, count):
    """Set ``count`` distinct random bits of ``mask`` (uint8[n]), chosen from the ``bits`` bits that
    start at bit ``first``. All of these bits must be 0 when the function is called. ``key`` is the
    random key.
    """
    for i in range(bits - count, bits):
        bit = first + below(key, POSITIONS + i, i + 1)
        if (mask[bit >> 3] >> (bit & 7)) & 1:
            bit = first + i  # already set: Floyd's algorithm sets the last one instead
        mask[bit >> 3] |= 1 << (bit & 7)


@njit
def code_mask(mask, code, key, level, rate):
    """Fill ``mask`` (uint8[words * bits / 8], initially zero) with the bit errors of one read of a
    page with ECC. Return the number of bit errors.

    The mask has one code word after another. Each code word has its data first and then the check
    bytes of the implemented code. The number of bit errors of each code word is that of
    ecc.page_errors.
    """
    total = np.int64(0)
    if rate < code.safe:
        word = word_key(key, level, -1)
        total = binomial(word, code.words * code.bits, rate)
        scatter(mask, 0, code.words * code.bits, word, total)
        return total
    for i in range(code.words):
        word = word_key(key, level, i)
        wrong = binomial(word, code.bits, rate)
        scatter(mask, i * code.bits, code.bits, word, wrong)
        total += wrong
    return total


@njit
def bare_mask(mask, key, rate):
    """Fill ``mask`` (uint8[page bytes], initially zero) with the bit errors of one read of a page
    without ECC. Return the number of bit errors.
    """
    word = word_key(key, 0, -1)
    total = binomial(word, 8 * mask.shape[0], rate)
    scatter(mask, 0, 8 * mask.shape[0], word, total)
    return total


def wrong_bits(
    page_bytes: int, rate: float, key: int, code: np.record | None = None, level: int = 0
) -> np.ndarray:
    """Return the bit-error mask of a page read, uint8[page_bytes].

    The exclusive or of data and mask is the data as read. ``rate``: raw bit error rate. ``code``:
    ecc.code(cfg)[0] for a page with ECC that is read at retry ``level``; None for a page without
    ECC. ``key``: from rng.page_key. Raises InputError if ``rate`` is not from 0 to 1/2, or if
    ``code`` is for another page size.
    """
    if code is not None:
        words = code_words(page_bytes, rate, key, code, level)
        return np.ascontiguousarray(words[:, : code.data_bits // 8]).reshape(-1)
    _check_rate(rate)
    mask = np.zeros(page_bytes, np.uint8)
    bare_mask(mask, np.uint64(key), rate)  # a single type, hence a single compiled form
    return mask


def code_words(
    page_bytes: int, rate: float, key: int, code: np.record, level: int = 0
) -> np.ndarray:
    """Return the bit-error mask of the code words of a page read, uint8[words, bytes]. Each word
    has its data bytes first, then its check bytes. Arguments and errors are those of
    :func:`wrong_bits`.
    """
    _check_rate(rate)
    words, bits, data_bits = (int(code[name]) for name in ("words", "bits", "data_bits"))
    if words * data_bits != 8 * page_bytes:
        raise InputError(
            f"page of {page_bytes} bytes: the code is for pages of {words} code words of "
            f"{data_bits // 8} bytes"
        )
    mask = np.zeros(words * bits // 8, np.uint8)
    code_mask(mask, code, np.uint64(key), level, rate)
    return mask.reshape(words, -1)


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= MOST_RBER:
        raise InputError(f"raw bit error rate = {quoted(rate)}: must be from 0 to {MOST_RBER}")


def logged_bits(entry: payload_log.LogEntry, code: np.record | None, page_bytes: int) -> np.ndarray:
    """Return the bit-error mask of a logged page read, uint8[page_bytes].

    For a LOG_BAD entry (a page that the engine could not correct), ``code`` is the code of the
    page. Each code word then has the number of bit errors that the engine drew for it. For a
    LOG_RAW entry (a page read without ECC), ``code`` is None. Raises the errors of
    :func:`wrong_bits`.
    """
    if code is None:
        return wrong_bits(page_bytes, entry.rate, entry.key)
    return wrong_bits(page_bytes, entry.rate, entry.key, code, entry.n)
