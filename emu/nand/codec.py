"""Implemented error-correcting codes of a drive: encode the code words of page reads, inject their
bit errors, and decode.

Owns the code of a configuration, the multithreaded decoding of batches of page reads, the decoding
of the optimizer's pages, and the decoder counters of the results. Does not own the codes
(kernels/bch.py, kernels/ldpc.py), the number and the positions of bit errors (ecc.py,
bit_errors.py, pe_protection.py), the messages of soft decision (soft_reads.py) or the effect of a
failed read on its command (nvme/decoded_reads.py).
Source: see the kernels; Cai et al., Proc. IEEE 105(9), 2017 (decoding by the controller).

Check bytes are a function of the data and are not stored: a word is encoded when a read of the word
has bit errors. A word without bit errors is a valid code word and is not decoded, unless
``decode_all`` is set.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_void_p, cast
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakMethod

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.rules.code_words import bch_degree, ldpc_circulant
from ondie.emu.engine.core.intrinsics import DECODER
from ondie.emu.nand import ecc, pe_protection
from ondie.emu.nand.bit_errors import code_words
from ondie.emu.nand.soft_reads import soft_messages
from ondie.emu.units import InputError
from ondie.kernels import bch, ldpc

THREADS = max(1, min(4, os.cpu_count() or 1))
PIECE = 32
"""Number of code words that a decoding thread decodes at a time (128 KiB of data with code words of
4 KiB)."""


class PageRead(NamedTuple):
    """Read of a page whose data is to be decoded: the stored page, and the parameters of the bit
    errors that the engine has drawn for the last attempt of the read."""

    data: np.ndarray
    """Page as stored, uint8[page bytes]."""
    key: int
    rate: float
    level: int
    """Retry level of the last hard decision."""
    outcome: int
    """Outcome according to the capability model: ecc.CORRECTED, SOFT or UNCORRECTABLE."""


class DecodedPage(NamedTuple):
    """Result of decoding a page."""

    data: np.ndarray
    """Decoded page, uint8[page bytes]. A word that could not be decoded has the bit errors of the
    last hard decision.
    """
    failed: int
    """Number of code words that could not be decoded."""


class DecodeCounts(NamedTuple):
    """Counters of the decoder of a drive since power-on."""

    pages: int = 0
    words: int = 0
    """Number of decoded code words. Only words with bit errors are decoded, unless
    :attr:`Decoder.decode_all` is set.
    """
    soft_words: int = 0
    """Number of code words that were decoded with soft decision."""
    wrong_bits: int = 0
    """Number of bit errors in the decoded code words as read, including errors in check bits."""
    failed_words: int = 0
    failed_pages: int = 0
    miscorrected_words: int = 0
    """Number of code words that were decoded to wrong data although the decoder reported success.
    """
    fails_beside_model: int = 0
    """Number of pages that the decoder cannot correct, although they are correctable according to
    the capability model."""
    corrects_beside_model: int = 0
    """Number of pages that the decoder corrects, although they are uncorrectable according to the
    capability model."""
    iterations: int = 0
    """Number of min-sum iterations of all decodings (LDPC). For BCH, the number of corrected bits,
    or the correction limit in a code word that could not be decoded."""
    flips: int = 0
    """Number of rounds of bit flipping in all decodings (LDPC)."""
    hard_failures: int = 0
    """Number of page decodings with hard decision that failed although the capability model
    corrects the page. Another read of the page followed each of them. The other counters exclude
    the code words and the iterations of these decodings."""

    def plus(self, other: DecodeCounts) -> DecodeCounts:
        """Add ``other`` counter by counter and return the sums."""
        return DecodeCounts(*(a + b for a, b in zip(self, other, strict=True)))


class BareCounts(NamedTuple):
    """Counters of the decoder for pages of the optimizer's reservoir, since the decoder was
    constructed."""

    pages: int = 0
    """Number of pages that were read with bit errors in their data."""
    words: int = 0
    """Number of decoded code words. Only words with bit errors are decoded."""
    wrong_bits: int = 0
    """Number of bit errors in the decoded code words as read, including errors in check bits."""
    failed_words: int = 0
    miscorrected_words: int = 0
    """Number of code words that were decoded to wrong data although the decoder reported success.
    """
    wrong_bits_left: int = 0
    """Number of bit errors that remain in the data after decoding. The drive reports it as
    ``bare_wrong_bits``."""
    fails_beside_model: int = 0
    """Number of code words that the decoder cannot correct although they are correctable according
    to the capability model."""
    corrects_beside_model: int = 0
    """Number of code words that the decoder corrects although they are uncorrectable according to
    the capability model."""
    iterations: int = 0
    """Number of min-sum iterations of all decodings (LDPC). For BCH, the number of corrected bits,
    or the correction limit in a code word that could not be decoded."""
    flips: int = 0
    """Number of rounds of bit flipping in all decodings (LDPC)."""
    model_bits_left: int = 0
    """Number of bit errors that remain in the data according to the capability model."""

    def plus(self, other: BareCounts) -> BareCounts:
        """Add ``other`` counter by counter and return the sums."""
        return BareCounts(*(a + b for a, b in zip(self, other, strict=True)))


class _Words(NamedTuple):
    """``n`` code words to encode and decode, with their bit errors and soft-decision parameters."""

    data: np.ndarray  # uint8[n, data bytes] as stored
    mask: np.ndarray  # uint8[n, bytes]: wrong bits
    soft: np.ndarray  # bool[n]: after soft reads
    keys: np.ndarray  # uint64[n]: of the soft reads
    rates: np.ndarray  # float64[n]


class Decoded(NamedTuple):
    """Result of decoding ``n`` code words: their data, whether each was decoded, and the sums of
    iterations and of rounds of bit flipping."""

    data: np.ndarray  # uint8[n, data bytes]; a word that failed is as it was read
    good: np.ndarray  # bool[n]
    iterations: int = 0
    flips: int = 0


class WordCode:
    """Implemented code for words with ``data_bytes`` bytes of data. If ``circulant`` is None, it is
    a BCH code that corrects ``limit`` bit errors. Otherwise, it is an LDPC code with circulants of
    ``circulant`` bits, and ``limit`` is not used. The words contain a CRC-32C.
    """

    def __init__(self, data_bytes: int, limit: int, circulant: int | None = None) -> None:
        self.data_bytes = data_bytes
        self._bch: bch.Bch | None = None
        self._ldpc: ldpc.Ldpc | None = None
        if circulant is None:
            degree = bch_degree(data_bytes, limit)
            self._bch = bch.get(degree, limit, data_bytes)
            self.check_bytes = self._bch.check_bytes
        else:
            self._ldpc = ldpc.get(data_bytes, circulant)
            self.check_bytes = self._ldpc.code.word_bytes - data_bytes

    def encode(self, data: np.ndarray) -> np.ndarray:
        """Return the check bytes, uint8[n, check_bytes], of ``data``, uint8[n, data_bytes]."""
        if self._bch is not None:
            return self._bch.encode(data)
        assert self._ldpc is not None
        return self._ldpc.encode(data)[:, self.data_bytes :]

    def decode(self, data: np.ndarray, check: np.ndarray) -> Decoded:
        """Decode words with hard decision. ``data`` (uint8[n, data_bytes]) and ``check`` (uint8[n,
        check_bytes]) are the bytes as read.
        """
        if self._bch is not None:
            data, check = data.copy(), check.copy()
            corrected = self._bch.decode(data, check)
            bits = np.where(corrected < 0, self._bch.code.t, corrected)
            return Decoded(data, corrected >= 0, int(bits.sum()))
        assert self._ldpc is not None
        return self._taken(self._ldpc.decode(np.concatenate((data, check), axis=1)), data)

    def decode_hit(self, words: _Words) -> Decoded:
        """Encode code words, inject their bit errors, and decode them.

        Code words whose ``soft`` is True are decoded with soft decision, the others with hard
        decision.
        """
        sent = np.concatenate((words.data, self.encode(words.data)), axis=1)
        read, size = sent ^ words.mask, self.data_bytes
        if not words.soft.any():
            return self.decode(read[:, :size], read[:, size:])
        assert self._ldpc is not None
        hard, soft = np.flatnonzero(~words.soft), np.flatnonzero(words.soft)
        messages = soft_messages(read[soft], words.mask[soft], words.keys[soft], words.rates[soft])
        parts = [(soft, self._taken(self._ldpc.decode_soft(messages), read[soft, :size]))]
        if len(hard):
            parts.append((hard, self.decode(read[hard, :size], read[hard, size:])))
        data, good = np.empty_like(words.data), np.zeros(len(read), bool)
        for own, found in parts:
            data[own], good[own] = found.data, found.good
        iterations = sum(found.iterations for _, found in parts)
        return Decoded(data, good, iterations, sum(found.flips for _, found in parts))

    def _taken(self, found: ldpc.Decoded, data: np.ndarray) -> Decoded:
        """Convert the result ``found`` of the LDPC decoder. A word that could not be decoded keeps
        ``data``, its bytes as read.
        """
        good = found.outcome == ldpc.CORRECT
        data = np.where(good[:, None], found.words[:, : self.data_bytes], data)
        return Decoded(data, good, int(found.iterations.sum()), int(found.flips.sum()))


def controller_code(cfg: Config) -> WordCode:
    """Return the implemented code of the controller (ecc.code = bch or ldpc)."""
    circulant = ldpc_circulant(cfg) if cfg.ecc.code == "ldpc" else None
    return _made(cfg.ecc.codeword_bytes, cfg.ecc.correctable_bits, circulant)


def die_code(cfg: Config) -> WordCode:
    """Return the implemented code of the ECC engines on the dies: BCH that corrects
    pe.ecc_correctable_bits bit errors in a code word of pe.ecc_codeword. Raises InputError if no
    such code exists.
    """
    word, limit = cfg.pe.ecc_codeword_bytes, cfg.pe.ecc_correctable_bits
    if bch_degree(word, limit) is None:
        raise InputError(
            f"pe.ecc_correctable_bits = {limit}, pe.ecc_codeword = {word} B: no BCH code "
            "corrects this number of bits in such a code word; reduce either value"
        )
    return _made(word, limit, None)


@lru_cache(32)
def _made(data_bytes: int, limit: int, circulant: int | None) -> WordCode:
    """Return the implemented code with ``data_bytes``, ``limit`` and ``circulant`` of
    :class:`WordCode`. Each code is constructed only once."""
    return WordCode(data_bytes, limit, circulant)


class Decoder:
    """Decoder of a drive's controller for the implemented code of ``cfg`` (ecc.code = bch or ldpc).

    Only the thread that runs the engine may call :meth:`decode`. If ``decode_all`` is True, words
    without bit errors are decoded, too; this does not change the decoded data.
    """

    def __init__(self, cfg: Config) -> None:
        self.code = ecc.code(cfg)[0]
        self.counts = DecodeCounts()
        self.decode_all = False
        self._data_bytes = cfg.ecc.codeword_bytes
        self._words = int(self.code["words"])
        self._soft = cfg.ecc.soft_reads > 0
        self._coder = controller_code(cfg)
        self._threads = ThreadPoolExecutor(THREADS, "ondie decoder")
        self._sure = int(ecc.sure_bits(self.code))
        corrects = WeakMethod(self.corrects)

        def ask(key: int, rate: float, level: int) -> int:
            method = corrects()
            return 1 if method is None else method(key, rate, level)

        self._function = DECODER(ask) if cfg.ecc.code == "ldpc" else None
        self.error: BaseException | None = None
        """Exception with which a call of :attr:`address` failed; None if no call failed."""

    @property
    def address(self) -> int:
        """Address of a function that calls :meth:`corrects`, for ecc.read_page; valid as long as
        this object exists. 0 for BCH: the capability model then determines whether a page is
        correctable.
        """
        return 0 if self._function is None else int(cast(self._function, c_void_p).value or 0)

    def corrects(self, key: int, rate: float, level: int) -> int:
        """Return 1 if the decoder corrects a page by hard decision. Otherwise, count the failure
        and return 0. The engine calls this method only for pages that the capability model
        corrects. ``key``: key of the random draws of the read. ``rate``: raw bit error rate.
        ``level``: retry level.

        When the engine calls this method, the bytes of the page are not yet known. The method
        therefore decodes words with all-zero data and the bit errors of the read. The result of an
        LDPC decoder depends on the bit errors, but hardly on the data. If the last read of a page
        fails with the actual data, the command of the read fails. Words with at most ecc.sure_bits
        bit errors are not decoded. If an exception occurs, it is stored for :meth:`check`, and the
        method returns 1.
        """
        try:
            mask = code_words(self._words * self._data_bytes, rate, key, self.code, level)
            mask = mask[np.bitwise_count(mask).sum(1, dtype=np.int64) > self._sure]
            none = np.zeros(len(mask))
            zeros = np.zeros((len(mask), self._data_bytes), np.uint8)
            hard = _Words(zeros, mask, none.astype(bool), none.astype(np.uint64), none)
            found = self._decode_words(hard)
        except BaseException as error:  # noqa: BLE001  # none may pass through the engine
            self.error = error
            return 1
        failed = not found.good.all()
        self.counts = self.counts._replace(hard_failures=self.counts.hard_failures + failed)
        return int(not failed)

    def close(self) -> None:
        """Stop the decoding threads. Pages cannot be decoded afterwards."""
        self._threads.shutdown()

    def check(self) -> None:
        """Raise the exception with which a call of :attr:`address` failed, if there is one."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def decode(self, reads: Sequence[PageRead]) -> list[DecodedPage]:
        """Decode the pages of ``reads``: encode each code word with a bit error, inject the bit
        errors, and decode the code word. Raises the exception of :meth:`check`, if there is one."""
        self.check()
        code, size = self.code, self._data_bytes
        page_bytes = self._words * size
        pages = np.stack([read.data for read in reads]).reshape(-1, size)
        mask = np.concatenate(
            [code_words(page_bytes, read.rate, read.key, code, read.level) for read in reads]
        )
        chosen = np.flatnonzero(mask.any(1) | self.decode_all)
        own = chosen // self._words
        soft = np.array([self._is_soft(read) for read in reads])[own]
        number = (chosen % self._words).tolist()
        keys = [ecc.word_key(np.uint64(reads[i].key), reads[i].level, word)
                for i, word in zip(own.tolist(), number, strict=True)]  # fmt: skip
        rates = np.array([read.rate for read in reads])[own]
        words = _Words(pages[chosen], mask[chosen], soft, np.array(keys, np.uint64), rates)
        found = self._decode_words(words)
        wrong = found.good & (found.data != words.data).any(1)
        pages[chosen] = found.data
        failed = np.bincount(own[~found.good], minlength=len(reads))
        gave_up = np.array([read.outcome == ecc.UNCORRECTABLE for read in reads])
        self.counts = self.counts.plus(
            DecodeCounts(
                len(reads), len(chosen), int(soft.sum()), int(np.bitwise_count(words.mask).sum()),
                int((~found.good).sum()), int((failed > 0).sum()), int(wrong.sum()),
                int(((failed > 0) & ~gave_up).sum()), int(((failed == 0) & gave_up).sum()),
                found.iterations, found.flips,
            )
        )  # fmt: skip
        decoded = pages.reshape(len(reads), page_bytes)
        return [DecodedPage(*page) for page in zip(decoded, failed.tolist(), strict=True)]

    def _is_soft(self, read: PageRead) -> bool:
        """Return True if the last decoding of the page uses soft decision."""
        return self._soft and read.outcome != ecc.CORRECTED

    def _decode_words(self, words: _Words) -> Decoded:
        """Decode words in batches on all threads. The result does not depend on the batches."""
        if not len(words.data):
            return Decoded(words.data, np.zeros(0, bool))
        starts = range(0, len(words.data), PIECE)
        pieces = [_Words(*(field[at : at + PIECE] for field in words)) for at in starts]
        if len(pieces) == 1:  # a change of threads takes longer than a few words
            return self._coder.decode_hit(pieces[0])
        done = list(self._threads.map(self._coder.decode_hit, pieces))
        return Decoded(
            np.concatenate([each.data for each in done]),
            np.concatenate([each.good for each in done]),
            sum(each.iterations for each in done),
            sum(each.flips for each in done),
        )


class BareDecoder:
    """Decoder of the optimizer's pages for the implemented code of ``cfg``: BCH on the die
    (pe.protection = on_die_ecc), or the controller's code (controller_ecc). It uses hard decision
    only and does not retry reads.
    """

    def __init__(self, cfg: Config) -> None:
        self.counts = BareCounts()
        word, self._limit = pe_protection.code(cfg)
        on_die = cfg.pe.protection == "on_die_ecc"
        self._coder = die_code(cfg) if on_die else controller_code(cfg)

    @property
    def beside_model(self) -> int:
        """Number of bit errors in the data after decoding minus the number according to the
        capability model. The result may be negative.
        """
        return self.counts.wrong_bits_left - self.counts.model_bits_left

    def decode(self, page: np.ndarray, key: int, rate: float) -> np.ndarray:
        """Return the data of a page as read and decoded, uint8[page bytes].

        ``page``: page as stored, uint8[page bytes]. ``key``: random key of the read. ``rate``: raw
        bit error rate of the read. Each word with a bit error is encoded, its bit errors are
        injected, and the word is decoded. A word that cannot be decoded keeps its bit errors.
        """
        coder = self._coder
        size = coder.data_bytes
        mask = pe_protection.wrong_words(page.size, rate, key, size, coder.check_bytes)
        chosen = np.flatnonzero(mask.any(1))
        data, none = page.reshape(-1, size).copy(), np.zeros(len(chosen))
        sent = data[chosen]
        keys = none.astype(np.uint64)
        found = coder.decode_hit(_Words(sent, mask[chosen], none.astype(bool), keys, none))
        data[chosen] = found.data
        data_bits = np.bitwise_count(mask[chosen, :size]).sum(1, dtype=np.int64)
        model = data_bits <= self._limit
        left = np.bitwise_count(found.data ^ sent).sum(1)
        self.counts = self.counts.plus(
            BareCounts(
                1, len(chosen), int(np.bitwise_count(mask).sum()), int((~found.good).sum()),
                int((found.good & (left > 0)).sum()), int(left.sum()),
                int((model & ~found.good).sum()), int((~model & found.good).sum()),
                found.iterations, found.flips, int(data_bits[~model].sum()),
            )
        )  # fmt: skip
        return data.reshape(-1)


@lru_cache(16)
def _effort(data_bytes: int, circulant: int, steps: tuple[int, ...]) -> np.ndarray:
    """Return the iterations plus rounds of bit flipping of sampled words, uint8[2 * POINTS,
    SAMPLES].

    Row i: hard decision of random words with 1 + i * ``steps[0]`` bit errors at random positions.
    Row POINTS + i: soft decision with 1 + i * ``steps[1]`` bit errors; zeros if ``steps`` has one
    element. Generating soft messages takes longer than decoding. Therefore, only SAMPLES / 4 words
    per row have soft decision, and the result of each is entered four times.
    """
    code = ldpc.get(data_bytes, circulant)
    bits = 8 * code.code.word_bytes
    found = np.zeros((2 * ecc.POINTS, ecc.SAMPLES), np.uint8)
    for soft, step in enumerate(steps):
        words = ecc.SAMPLES // 4 if soft else ecc.SAMPLES
        for point in range(ecc.POINTS):
            wrong = min(1 + point * step, bits // 2)
            rng = np.random.default_rng([soft, wrong])
            places = [rng.choice(bits, wrong, replace=False) for _ in range(words)]
            mask = np.zeros((words, bits), np.uint8)
            mask[np.arange(words)[:, None], places] = 1
            hit = np.packbits(mask, axis=1, bitorder="little")
            read = code.encode(rng.integers(0, 256, (words, data_bytes), np.uint8)) ^ hit
            if soft:
                keys = rng.integers(0, 1 << 63, words).astype(np.uint64)
                rates = np.full(words, wrong / bits)
                done = code.decode_soft(soft_messages(read, hit, keys, rates))
            else:
                done = code.decode(read)
            made = done.iterations + done.flips
            found[soft * ecc.POINTS + point] = np.tile(made, ecc.SAMPLES // words)
    return found


def effort(cfg: Config) -> np.ndarray:
    """Return samples of the LDPC decoder's iteration count, uint8[2 * POINTS, SAMPLES]; zeros of
    shape [1, 1] without LDPC or without bit errors. :func:`_effort` describes the rows.
    """
    if cfg.ecc.code != "ldpc" or cfg.errors.kind == "none":
        return np.zeros((1, 1), np.uint8)
    code, circulant = ecc.code(cfg)[0], ldpc_circulant(cfg)
    assert circulant is not None, "config/rules/code_words.py"
    steps = (int(code["step"]), int(code["soft_step"]))[: 1 + (cfg.ecc.soft_reads > 0)]
    return _effort(cfg.ecc.codeword_bytes, circulant, steps).copy()


def decoder_of(cfg: Config) -> Decoder | None:
    """Return the decoder of a configuration, or None if ecc.code = capability or errors.kind =
    none.
    """
    if cfg.ecc.code == "capability" or cfg.errors.kind == "none":
        return None
    return Decoder(cfg)


def bare_decoder_of(cfg: Config) -> BareDecoder | None:
    """Return the decoder of the optimizer's pages, or None if no implemented code protects these
    pages or bit errors are not simulated.
    """
    return BareDecoder(cfg) if pe_protection.coded(cfg) else None
