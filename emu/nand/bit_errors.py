"""Bit errors in stored bytes: which bits of a page come out wrong, by seed.

Owns masks of wrong bits, reads of stored pages with them, and the seam for codecs that correct real
bytes. Does not own error rates (rber.py) or how many bits are wrong (ecc.page_errors).
Source: NAND's raw bit errors as independent flips of stored bits, as the error models of Cai et
al., Proc. IEEE 105(9), 2017; Floyd, CACM 30(9), 1987 (distinct positions without a list).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from ondie.emu.engine.core import events
from ondie.emu.engine.core.rng import below, binomial, page_key
from ondie.emu.nand.ecc import word_key
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nand.rber import MOST
from ondie.emu.units import InputError, quoted
from ondie.kernels.jit import njit

POSITIONS = 1 << 48
"""Where a code word's sequence of positions starts, behind the numbers that drew their count."""


@njit
def scatter(mask, first, bits, key, count):
    """Set ``count`` distinct bits of ``mask`` uint8[...] among the ``bits`` from bit ``first``."""
    for i in range(bits - count, bits):
        bit = first + below(key, POSITIONS + i, i + 1)
        if (mask[bit >> 3] >> (bit & 7)) & 1:
            bit = first + i  # taken: Floyd's algorithm takes the new last one
        mask[bit >> 3] |= 1 << (bit & 7)


@njit
def code_mask(mask, code, key, level, rate):
    """Fill ``mask`` uint8[page bytes], all zero, with the wrong bits of one reading of a page that
    ECC covers: as many in each code word as ecc.page_errors counts. Returns their number."""
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
    """The same for a page that no ECC covers."""
    word = word_key(key, 0, -1)
    total = binomial(word, 8 * mask.shape[0], rate)
    scatter(mask, 0, 8 * mask.shape[0], word, total)
    return total


def wrong_bits(
    page_bytes: int, rate: float, key: int, code: np.record | None = None, level: int = 0
) -> np.ndarray:
    """Mask of a reading's wrong bits, uint8[page_bytes]: exclusive-or it with the data.

    ``code`` (ecc.code(cfg)[0]) where ECC covers the page, at retry ``level``; None where nothing
    does. ``key`` by draws.page_key. Raises InputError for a rate outside 0 to 1/2.
    """
    if not 0 <= rate <= MOST:
        raise InputError(f"raw bit error rate {quoted(rate)}: it must be from 0 to {MOST}")
    mask = np.zeros(page_bytes, np.uint8)
    unsigned = np.uint64(key)  # one compiled form, whatever the value
    if code is None:
        bare_mask(mask, unsigned, rate)
    elif code.words * code.bits != 8 * page_bytes:
        raise InputError(
            f"a page of {page_bytes} bytes: the code is for {code.words} code words of "
            f"{code.bits // 8} bytes"
        )
    else:
        code_mask(mask, code, unsigned, level, rate)
    return mask


def logged(entry: events.LogEntry, code: np.record | None, page_bytes: int) -> np.ndarray:
    """Wrong bits of a page that the engine gave up, uint8[page_bytes], by its log (LOG_BAD): as
    many in each code word as the verdict counted. Without a code those of a page past the ECC
    (LOG_RAW)."""
    if code is None:
        return wrong_bits(page_bytes, entry.rate, entry.key)
    return wrong_bits(page_bytes, entry.rate, entry.key, code, entry.n)


def read_raw(store: PageStore, ppn: int, rate: float, seed: int, read: int) -> np.ndarray:
    """A copy of a stored page as the array gives it, uint8[page_bytes]; the page stays as it is.

    Draws by (seed, ppn, sequence number of its programming, ``read``): the same four give the same
    bytes. For paths that ECC does not cover.
    """
    key = page_key(seed, ppn, store.sequence(ppn), read)
    return store.read(ppn) ^ wrong_bits(store.page_bytes, rate, key)


def copy_back(store: PageStore, source: int, target: int, lpn: int, rate: float, seed: int) -> int:
    """Move a page inside the die, past the ECC: its wrong bits move with it and stay. Returns how
    many; the checksum still is that of the right bytes."""
    key = page_key(seed, source, store.sequence(source), 0)
    mask = wrong_bits(store.page_bytes, rate, key)
    store.move(source, target, lpn)
    store.damage(target, mask)
    return int(np.bitwise_count(mask).sum())


class Decoded(NamedTuple):
    """What a codec makes of a page."""

    data: np.ndarray
    """uint8[page bytes], right where every code word could be corrected."""
    corrected_bits: int
    failed_words: int


class Codec(Protocol):
    """A code that works on real bytes; ``check`` is what it keeps beside a page."""

    def encode(self, data: np.ndarray) -> np.ndarray:
        """Check bytes uint8[any] of a page uint8[page bytes]."""
        ...

    def decode(self, raw: np.ndarray, check: np.ndarray) -> Decoded:
        """Correct a reading uint8[page bytes]; ``check`` may have wrong bits too."""
        ...


class Capability:
    """The codec of which only the limit is known: its check bytes are the data themselves, which it
    looks at no further than to count wrong bits. A real codec takes its place unseen."""

    def __init__(self, codeword_bytes: int, limit: int) -> None:
        self.codeword_bytes = codeword_bytes
        self.limit = limit

    def encode(self, data: np.ndarray) -> np.ndarray:
        return data.copy()

    def decode(self, raw: np.ndarray, check: np.ndarray) -> Decoded:
        words = raw.reshape(-1, self.codeword_bytes)
        wrong = np.bitwise_count(words ^ check.reshape(words.shape)).sum(axis=1, dtype=np.int64)
        good = wrong <= self.limit
        data = np.where(good[:, None], check.reshape(words.shape), words).reshape(raw.shape)
        return Decoded(data, int(wrong[good].sum()), int((~good).sum()))
