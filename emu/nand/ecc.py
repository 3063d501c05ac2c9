"""Error correction: capability, latency and energy, with read retry.

Owns the probability that a page cannot be corrected, the outcome of one read with its retries, and
its cost. Does not own error rates (rber.py), real bytes (bit_errors.py) or the scheduling of
retries.
Source: Chun et al., "RiF", HPCA 2024 (QC-LDPC on 4 KiB, limit and latency); Bates, "Latency in
LDPC-based next-generation SSD controllers", Microsemi 2014 (1 us an iteration, 1 to 20 of them);
Cai et al., Proc. IEEE 105(9), 2017 (hard decision, then retries, then soft decision).

A code word is corrected when at most ``limit`` of its bits are wrong, a page when all of its code
words are corrected: bounded-distance decoding, as the papers state capabilities. Bits are user
bits; the spare bytes that hold parity are not transferred and have no errors. The steps of a read:

    hard decision at the default voltages -> up to ``retries`` times at shifted ones, each leaving
    ``gain`` of the shifted errors -> soft decision over ``soft_reads`` more readings -> media error
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.rules.rule import mapping_unit
from ondie.emu.engine.core.rng import absorb, binomial
from ondie.emu.engine.core.state import record_type, records
from ondie.emu.nand.rber import MOST_RBER, total_rate
from ondie.kernels.jit import njit

CODE = record_type(
    bits="i8",  # user bits of a code word
    limit="i8",  # wrong bits that hard decision corrects
    soft_limit="i8",  # wrong bits that soft decision corrects; = limit without soft decision
    words="i8",  # code words of a page
    retries="i8",
    soft_reads="i8",  # additional readings for soft decision; 0 = no soft decision
    decode="i8",  # ps for a page without errors
    decode_limit="i8",  # ps for a page at its limit, or given up
    soft_decode="i8",  # ps
    gain="f8",
    safe="f8",  # below this rate hard decision fails less than once in 2**60 pages
    hopeless="f8",  # above this rate it succeeds less than once in 2**60 pages
)
NEVER_LOG = -60 * math.log(2)
CORRECTED, SOFT, UNCORRECTABLE = range(3)
"""Outcome of a read: corrected by hard decision (at once or after retries), by soft decision, or
media error."""


@njit
def log_mass(n, k, p):
    """Return log P(X = k) for X binomial of ``n`` and ``p``, 0 < p < 1."""
    return (
        math.lgamma(n + 1.0)
        - math.lgamma(k + 1.0)
        - math.lgamma(n - k + 1.0)
        + k * math.log(p)
        + (n - k) * math.log1p(-p)
    )


@njit
def _series_above(n, t, p):
    """Return log P(X > t) from the masses above t, which decrease if t + 1 >= n p."""
    odds = p / (1.0 - p)
    k = t + 1
    term = 1.0
    total = 1.0
    while k < n and term > total * 1e-17:
        term *= odds * (n - k) / (k + 1.0)
        total += term
        k += 1
    return min(0.0, log_mass(n, t + 1, p) + math.log(total))


@njit
def _series_up_to(n, t, p):
    """Return log P(X <= t) from the masses up to t, which decrease downwards if t + 1 < n p."""
    odds = (1.0 - p) / p
    k = t
    term = 1.0
    total = 1.0
    while k > 0 and term > total * 1e-17:
        term *= odds * k / (n - k + 1.0)
        total += term
        k -= 1
    return min(0.0, log_mass(n, t, p) + math.log(total))


@njit
def log_above(n, t, p):
    """Return log P(X > t) for X binomial of ``n`` and ``p``.

    P is the probability that a code word of ``n`` bits has more than ``t`` wrong bits; its relative
    error is below 1e-9 for n up to 2**20.
    """
    if p <= 0.0 or t >= n:
        return -math.inf
    if t < 0 or p >= 1.0:
        return 0.0
    if t + 1.0 >= n * p:
        return _series_above(n, t, p)
    return math.log1p(-math.exp(_series_up_to(n, t, p)))


@njit
def log_up_to(n, t, p):
    """Return log P(X <= t) for X binomial of ``n`` and ``p``; see :func:`log_above`."""
    if p <= 0.0 or t >= n:
        return 0.0
    if t < 0 or p >= 1.0:
        return -math.inf
    if t + 1.0 < n * p:
        return _series_up_to(n, t, p)
    return math.log1p(-math.exp(_series_above(n, t, p)))


@njit
def codeword_failure(n, t, p):
    """Return the probability that a code word of ``n`` bits, of which ``t`` are correctable, cannot
    be corrected at RBER ``p``."""
    return math.exp(log_above(n, t, p))


@njit
def page_failure(n, t, words, p):
    """Return the probability that at least one of ``words`` code words cannot be corrected."""
    fails = codeword_failure(n, t, p)
    if fails >= 1.0:
        return 1.0
    return -math.expm1(words * math.log1p(-fails))


def code(cfg: Config) -> np.recarray:
    """Return the code of a configuration: one record of CODE.

    A mapping unit smaller than a page has separate code words and its share of the decoding time.
    If ``errors.kind`` is none, a page is one code word without limit; its first read is correct.
    """
    ecc = cfg.ecc
    made = records(CODE, 1)
    page = mapping_unit(cfg)
    slots = cfg.flash.page_bytes // page
    made.decode = -(-ecc.decode_ps // slots)
    if cfg.errors.kind == "none":
        made.words = 1
        made.bits = made.limit = made.soft_limit = 8 * page
        made.decode_limit = made.decode
        made.safe = made.hopeless = MOST_RBER
        return made
    made.bits = 8 * ecc.codeword_bytes
    made.limit = ecc.correctable_bits
    soft = ecc.soft_reads > 0
    made.soft_limit = int(ecc.correctable_bits * ecc.soft_gain) if soft else ecc.correctable_bits
    words = page // ecc.codeword_bytes
    made.words = words
    made.retries = ecc.retries
    made.soft_reads = ecc.soft_reads
    made.decode_limit = -(-ecc.decode_limit_ps // slots)
    made.soft_decode = -(-ecc.soft_decode_ps // slots)
    made.gain = ecc.retry_gain
    n, t = 8 * ecc.codeword_bytes, ecc.correctable_bits
    made.safe = _turn(lambda p: math.log(words) + log_above(n, t, p) < NEVER_LOG)[0]
    made.hopeless = _turn(lambda p: words * log_up_to(n, t, p) >= NEVER_LOG)[1]
    return made


def _turn(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Return the two rates in [0, 1/2], 2**-25 apart, between which ``holds`` turns from true to
    false. The step is coarse enough that the last digit of a logarithm has no effect."""
    low, high = 0.0, MOST_RBER
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


@njit
def word_key(key, level, word):
    """Return the random key of one code word's errors at one retry level."""
    return absorb(key, (level << 32) + word)


@njit
def page_errors(code, key, level, rate):
    """Return the wrong bits of a page at retry ``level``, and those of its worst code word.

    Below ``code.safe`` the errors are drawn for the whole page, because no code word reaches its
    limit there, and the worst code word is given as 0.
    """
    if rate < code.safe:
        return binomial(word_key(key, level, -1), code.words * code.bits, rate), np.int64(0)
    errors = np.int64(0)
    worst = np.int64(0)
    for word in range(code.words):
        wrong = binomial(word_key(key, level, word), code.bits, rate)
        errors += wrong
        worst = max(worst, wrong)
    return errors, worst


@njit
def read_page(code, key, stable, shifted, scale):
    """Read a page with retries: return (outcome, retries, wrong bits in the last reading).

    ``code``: a record of CODE; ``key``: from rng.page_key; ``stable`` and ``shifted``: from
    rber.stable_rate and rber.shifted_rate; ``scale``: from rber.scales. Outcome: CORRECTED, SOFT or
    UNCORRECTABLE. It depends on the arguments alone, not on the order or time of the reads.
    """
    level = 0
    while True:
        rate = total_rate(stable, shifted, scale)
        if rate <= code.hopeless or level == code.retries:
            errors, worst = page_errors(code, key, level, rate)
            if worst <= code.limit:
                return CORRECTED, level, errors
            if level == code.retries:
                return (SOFT if worst <= code.soft_limit else UNCORRECTABLE), level, errors
        shifted *= code.gain
        level += 1


@njit
def senses(code, outcome, retries):
    """Return the number of array readings that a page read takes.

    Each reading has a command and a data out.
    """
    if outcome == CORRECTED:
        return 1 + retries
    return 1 + retries + code.soft_reads


@njit
def decodes(code, outcome, retries):
    """Return the number of decodings that a page read takes.

    Each decoding costs ``energy.ecc`` for each bit.
    """
    if outcome == CORRECTED or code.soft_reads == 0:
        return 1 + retries
    return 2 + retries


@njit
def decode_ps(code, errors):
    """Return the time of a successful decoding, in ps.

    The number of iterations grows with the errors: from ``decode`` for none to ``decode_limit`` for
    the most that can be corrected.
    """
    most = code.words * code.limit
    return code.decode + (code.decode_limit - code.decode) * min(errors, most) // most


@njit
def decoder_ps(code, outcome, retries, errors):
    """Return the decoder time of a read with all its retries, in ps.

    A failed hard decoding takes ``decode_limit``.
    """
    if outcome == CORRECTED:
        return retries * code.decode_limit + decode_ps(code, errors)
    hard = (1 + retries) * code.decode_limit
    return hard + code.soft_decode if code.soft_reads > 0 else hard
