"""Error correction: capability and latency of ECC, with read retry.

Owns the probability that a page cannot be corrected, the outcome of one read with its retries, and
the number of array reads, decodings and iterations of the read, with its decoding time. Does not
own error rates (rber.py), bit errors in bytes (bit_errors.py), implemented codes (codec.py) or the
scheduling of retries (ftl/read_retry.py).
Source: Chun et al., "RiF", HPCA 2024 (QC-LDPC on 4 KiB, limit and latency); Bates, "Latency in
LDPC-based next-generation SSD controllers", Microsemi 2014 (1 us per iteration, 1 to 20
iterations); Cai et al., Proc. IEEE 105(9), 2017 (hard decision, then retries, then soft decision).

A code word is corrected if it has at most ``limit`` bit errors (bounded-distance decoding, as in
the papers). A page is corrected if all of its code words are corrected. With ``ecc.code =
capability``, only user bits have errors; the spare bytes that hold parity are not transferred. With
an implemented code, check bits have errors, too, and on a drive with payload the decoder decides
whether a page is corrected (codec.py). A read has these steps. Each step follows only if the
previous step has failed:

    1. hard decision at the default reference voltages
    2. up to ``retries`` hard decisions at other voltages; each multiplies ``shifted`` by ``gain``
    3. soft decision with ``soft_reads`` additional reads
    4. media error

An LDPC decoder may fail on a page that the model corrects by hard decision. A drive with payload
therefore calls its decoder (``decoder``) and continues with the next step if the decoder fails. The
call uses words of zeros, because the outcome depends on the bit errors and hardly on the data.

With an implemented code, a decoding takes the time ``decode``, which covers some iterations, and
the time of further iterations. A BCH word has one iteration per bit error, but not more than the
code corrects. The iterations of an LDPC word are drawn from a table by the number of bit errors;
the table has samples of the decoder (codec.effort). The actual iterations cannot determine the
time: another thread decodes the words after the engine has scheduled the following events, and a
drive without payload has no words to decode. Drawn and actual iterations agree except for random
variation, because they depend on the number and the positions of the bit errors and hardly on the
data; ``iterations`` and ``flips`` of codec.DecodeCounts are actual numbers. A word on which the
called decoder fails takes the maximum number of iterations. Near the limit of LDPC, a drive with
payload thus makes more reads than a drive without payload.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.rules.code_words import bch_degree, ldpc_check_bytes, ldpc_circulant
from ondie.emu.config.rules.rule import mapping_unit
from ondie.emu.engine.core.intrinsics import call_decoder
from ondie.emu.engine.core.rng import absorb, below, binomial
from ondie.emu.engine.core.state import record_type, records
from ondie.emu.nand.rber import MOST_RBER, total_rate
from ondie.kernels import bch_code
from ondie.kernels.jit import njit
from ondie.kernels.ldpc import ITERATIONS

CODE = record_type(
    bits="i8",  # bits of a code word that errors hit: user bits, and check bits of a real code
    data_bits="i8",  # user bits of a code word
    coded="i8",  # 1: a real code decodes the bytes that are read
    limit="i8",  # wrong bits that hard decision corrects
    soft_limit="i8",  # wrong bits that soft decision corrects; = limit without soft decision
    words="i8",  # code words of a page
    retries="i8",
    soft_reads="i8",  # additional readings for soft decision; 0 = no soft decision
    decode="i8",  # ps for a page without errors
    iteration="i8",  # ps for an iteration of a real code's decoder on a code word
    covered="i8",  # iterations of a decoding that fit into ``decode``
    step="i8",  # wrong bits between two points of the table of iterations; 0: BCH
    soft_step="i8",  # the same with soft decision
    decoder="i8",  # address of the function that says whether a page decodes; 0: none
    decode_limit="i8",  # ps for a page at its limit, or given up
    soft_decode="i8",  # ps
    gain="f8",
    safe="f8",  # below this rate hard decision fails less than once in 2**60 pages
    hopeless="f8",  # above this rate it succeeds less than once in 2**60 pages
)
NEVER_LOG = -60 * math.log(2)
USUAL = 1e-3
"""Fraction of code words that fail at the raw bit error rate stated as the limit of a code."""
POINTS, SAMPLES = 33, 256
"""Size of the LDPC iteration table: POINTS rows for hard decision and POINTS rows for soft
decision, each for one number of bit errors, with SAMPLES samples in each row.
"""
BEYOND = 1.5
"""Largest number of bit errors in the LDPC iteration table, divided by the number of bit errors
that the code corrects. The decoder corrects no code word with this number of bit errors."""
SURE = 2
"""Divisor of the code's limit: a word with at most limit / SURE bit errors counts as corrected and
is not decoded.
"""
CHANCE = 1 << 50
"""Index, in a code word's random sequence, of the first random number that selects the word's
number of decoder iterations."""
CORRECTED, SOFT, UNCORRECTABLE = range(3)
"""Outcome of a read: corrected by hard decision, with or without retries (CORRECTED), corrected by
soft decision (SOFT), or media error (UNCORRECTABLE)."""


@njit
def log_mass(n, k, p):
    """Return log P(X = k) for a binomial X with parameters ``n`` and ``p``, 0 < p < 1."""
    return (
        math.lgamma(n + 1.0)
        - math.lgamma(k + 1.0)
        - math.lgamma(n - k + 1.0)
        + k * math.log(p)
        + (n - k) * math.log1p(-p)
    )


@njit
def _series_above(n, t, p):
    """Return log P(X > t) for a binomial X (n, p) as a sum of P(X = k) over k > t.

    Requires t + 1 >= n p, so that the terms decrease.
    """
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
    """Return log P(X <= t) for a binomial X (n, p) as a sum of P(X = k) from k = t down.

    Requires t + 1 < n p, so that the terms decrease.
    """
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
    """Return log P(X > t) for a binomial X with parameters ``n`` and ``p``.

    P is the probability that a code word of ``n`` bits has more than ``t`` bit errors. The relative
    error of P is below 1e-9 for n up to 2**20.
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
    """Return log P(X <= t) for a binomial X with parameters ``n`` and ``p``. See
    :func:`log_above`.
    """
    if p <= 0.0 or t >= n:
        return 0.0
    if t < 0 or p >= 1.0:
        return -math.inf
    if t + 1.0 < n * p:
        return _series_up_to(n, t, p)
    return math.log1p(-math.exp(_series_above(n, t, p)))


@njit
def codeword_failure(n, t, p):
    """Return the probability that a code word of ``n`` bits cannot be corrected at RBER ``p``.
    ``t``: maximum number of correctable bit errors.
    """
    return math.exp(log_above(n, t, p))


@njit
def page_failure(n, t, words, p):
    """Return the probability that at least one of ``words`` code words cannot be corrected at RBER
    ``p``. ``n``: bits of a code word; ``t``: maximum number of correctable bit errors per code
    word.
    """
    fails = codeword_failure(n, t, p)
    if fails >= 1.0:
        return 1.0
    return -math.expm1(words * math.log1p(-fails))


def code(cfg: Config) -> np.recarray:
    """Return the error-correcting code of a configuration: one record of CODE.

    The record applies to one mapping unit. A mapping unit smaller than a flash page has separate
    code words and a proportional part of the decoding time. If ``errors.kind`` is "none", a page is
    one code word in which all bits are correctable.
    """
    ecc = cfg.ecc
    made = records(CODE, 1)
    page = mapping_unit(cfg)
    slots = cfg.flash.page_bytes // page
    made.decode = -(-ecc.decode_ps // slots)
    if cfg.errors.kind == "none":
        made.words = 1
        made.bits = made.data_bits = made.limit = made.soft_limit = 8 * page
        made.decode_limit = made.decode
        made.safe = made.hopeless = MOST_RBER
        return made
    made.data_bits = 8 * ecc.codeword_bytes
    made.bits = 8 * (ecc.codeword_bytes + check_bytes(cfg))
    made.coded = ecc.code != "capability"
    limit = soft_limit = word_limit(cfg, ecc.correctable_bits)
    if ecc.soft_reads > 0:
        soft_limit = word_limit(cfg, int(ecc.correctable_bits * ecc.soft_gain))
    made.limit, made.soft_limit = limit, soft_limit
    words = page // ecc.codeword_bytes
    made.words = words
    made.iteration = step = iteration_ps(cfg)
    made.covered = made.decode // step if step > 0 else 0
    if ecc.code == "ldpc":
        made.step = math.ceil(BEYOND * limit / (POINTS - 1))
        made.soft_step = math.ceil(BEYOND * soft_limit / (POINTS - 1))
    made.retries = ecc.retries
    made.soft_reads = ecc.soft_reads
    made.decode_limit = -(-ecc.decode_limit_ps // slots)
    made.soft_decode = -(-ecc.soft_decode_ps // slots)
    made.gain = ecc.retry_gain
    n, t = 8 * (ecc.codeword_bytes + check_bytes(cfg)), limit
    made.safe = _turn(lambda p: math.log(words) + log_above(n, t, p) < NEVER_LOG)[0]
    made.hopeless = _turn(lambda p: words * log_up_to(n, t, p) >= NEVER_LOG)[1]
    return made


def iteration_ps(cfg: Config) -> int:
    """Return the time of one iteration of the implemented code's decoder on a code word, in ps. For
    BCH, an iteration is the correction of one bit error. 0 for the capability model.
    """
    return {"ldpc": cfg.ecc.ldpc_iteration_ps, "bch": cfg.ecc.bch_error_ps}.get(cfg.ecc.code, 0)


def charged_ps(cfg: Config, counters: Mapping[str, int]) -> int:
    """Return the decoding time for which ``energy.ecc_decoder`` is charged, in ps: the time of the
    LDPC iterations that ``ecc.decode`` does not include.

    ``counters``: counters of a drive. ``energy.ecc`` covers encoding and the part of each decoding
    within ``ecc.decode``. It covers BCH decoding completely: its source states the energy of a
    decoder that finds as many bit errors as the code corrects.
    """
    if cfg.ecc.code != "ldpc":
        return 0
    return counters["ecc_late_iterations"] * iteration_ps(cfg)


def word_limit(cfg: Config, limit: int) -> int:
    """Return the number of correctable bit errors in a code word with its check bits. ``limit``:
    number of correctable bit errors in the user bits.

    BCH corrects ``limit`` bit errors at any positions. The limit of an LDPC code determines the raw
    bit error rate at which a fraction USUAL of its words fail (`ondie validate ecc`). With check
    bits, the result is the smallest limit at which at most this fraction of the words fail at this
    rate.
    """
    if cfg.ecc.code != "ldpc":
        return limit
    data, usual = 8 * cfg.ecc.codeword_bytes, math.log(USUAL)
    bits = data + 8 * check_bytes(cfg)
    rate = _turn(lambda p: log_above(data, limit, p) < usual)[0]
    return next(most for most in range(limit, bits + 1) if log_above(bits, most, rate) <= usual)


def check_bytes(cfg: Config) -> int:
    """Return the number of check bytes of a code word; 0 for the capability model."""
    ecc = cfg.ecc
    if ecc.code == "ldpc":
        circulant = ldpc_circulant(cfg)
        assert circulant is not None, "config/rules/code_words.py"
        return ldpc_check_bytes(circulant)
    if ecc.code == "bch":
        degree = bch_degree(ecc.codeword_bytes, ecc.correctable_bits)
        assert degree is not None, "config/rules/code_words.py"
        return bch_code.check_bytes(degree, ecc.correctable_bits)
    return 0


def _turn(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Return bit error rates (low, high), 2**-25 apart in [0, 1/2], such that ``holds`` is true at
    ``low`` and false at ``high``. ``holds`` must change once, from true to false.

    The interval is wide enough that the rounding of logarithms has no effect.
    """
    low, high = 0.0, MOST_RBER
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


@njit
def word_key(key, level, word):
    """Return the uint64 random key for the errors of code word ``word`` at retry ``level``."""
    return absorb(key, (level << 32) + word)


@njit
def page_errors(code, key, level, rate):
    """Draw the number of bit errors of a page at retry ``level`` and bit error rate ``rate``.

    Returns (bit errors of the page, bit errors of its worst code word). At a rate below
    ``code.safe``, no code word reaches the limit, so the bit errors are drawn for the whole page
    and the second number is 0.
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
def word_iterations(code, effort, key, wrong, soft):
    """Return the number of iterations of the implemented code's decoder on a word with ``wrong``
    bit errors.

    ``effort``: result of codec.effort. ``key``: random key of the word. ``soft``: 1 for soft
    decision, 0 for hard decision.
    """
    if wrong <= 0:
        return np.int64(0)
    if code.step == 0:
        return np.int64(min(wrong, code.limit))
    step = code.soft_step if soft else code.step
    point = (wrong - 1) // step
    if below(key, CHANCE, step) < (wrong - 1) % step:
        point += 1
    row = soft * POINTS + min(point, POINTS - 1)
    return np.int64(effort[row, below(key, CHANCE + 1, SAMPLES)])


@njit
def divided_iterations(code, effort, key, level, words, errors, soft):
    """Return the total number of iterations for ``errors`` bit errors that are distributed at
    random over ``words`` code words. Other arguments are those of :func:`page_iterations`.
    """
    made = np.int64(0)
    left = errors
    for word in range(words):
        if left <= 0:
            break
        own = word_key(key, level, word)
        wrong = left if word == words - 1 else binomial(own, left, 1.0 / (words - word))
        made += word_iterations(code, effort, own, wrong, soft)
        left -= wrong
    return made


@njit
def page_iterations(code, effort, key, level, rate, soft):
    """Return the number of decoder iterations of one decoding of a page at retry ``level``.

    The page has the bit errors of :func:`page_errors`. The other arguments are those of
    :func:`word_iterations`.
    """
    if rate < code.safe:
        errors = page_errors(code, key, level, rate)[0]
        return divided_iterations(code, effort, key, level, code.words, errors, soft)
    made = np.int64(0)
    for word in range(code.words):
        own = word_key(key, level, word)
        made += word_iterations(code, effort, own, binomial(own, code.bits, rate), soft)
    return made


@njit
def failed_iterations(code, effort, key, level, rate):
    """Return the number of iterations of a failed hard decoding of a page. The arguments are those
    of :func:`page_iterations`.

    If the capability model corrects the page, the implemented decoder has failed
    (:func:`decoder_corrects`). In that case, the word with the most bit errors takes the maximum
    number of iterations, although most words with as many bit errors take fewer.
    """
    made = page_iterations(code, effort, key, level, rate, 0)
    worst = page_errors(code, key, level, rate)[1]
    if code.step == 0 or not 0 < worst <= code.limit:
        return made
    for word in range(code.words):
        own = word_key(key, level, word)
        if binomial(own, code.bits, rate) == worst:
            made += ITERATIONS - word_iterations(code, effort, own, worst, 0)
            break
    return made


@njit
def late_iterations(code, made):
    """Return the number of iterations of one page decoding that do not fit into the decoding time
    ``ecc.decode``. ``made``: number of all iterations of this decoding."""
    return max(made - code.covered, np.int64(0))


@njit
def read_page(code, key, stable, shifted, scale):
    """Draw the outcome of a page read with retries.

    Returns (outcome, number of retries, bit errors in the last hard decision). The outcome is
    CORRECTED, SOFT or UNCORRECTABLE. ``code``: a record of CODE; ``key``: from rng.page_key;
    ``stable`` and ``shifted``: from rber.stable_rate and rber.shifted_rate; ``scale``: from
    rber.scales. The result depends on the arguments only, not on the order or time of the reads.

    If ``code.decoder`` is set, hard decision succeeds only if both the model and the LDPC decoder
    correct the page; otherwise the next read follows.
    """
    level = 0
    while True:
        rate = total_rate(stable, shifted, scale)
        if rate <= code.hopeless or level == code.retries:
            errors, worst = page_errors(code, key, level, rate)
            if worst <= code.limit and decoder_corrects(code, key, rate, level, worst):
                return CORRECTED, level, errors
            if level == code.retries:
                return (SOFT if worst <= code.soft_limit else UNCORRECTABLE), level, errors
        shifted *= code.gain
        level += 1


@njit
def sure_bits(code):
    """Return the largest number of bit errors at which a code word counts as corrected without
    calling the implemented decoder. ``code``: a record of CODE.
    """
    return code.limit // SURE


@njit
def decoder_corrects(code, key, rate, level, worst):
    """Return True if the implemented decoder corrects the page of :func:`page_errors` by hard
    decision. ``worst``: number of bit errors of its worst code word.

    Returns True without calling the decoder if ``code.decoder`` is 0, if ``worst`` is at most
    :func:`sure_bits`, or if neither a retry nor soft decision is left.
    """
    if code.decoder == 0 or worst <= sure_bits(code):
        return True
    if level == code.retries and code.soft_reads == 0:
        return True  # the last reading is decoded with the bytes
    return call_decoder(code.decoder, key, rate, level) != 0


@njit
def senses(code, outcome, retries):
    """Return the number of array reads of a page read, including retries and soft reads.

    Each array read has a command phase and a data-out phase on the channel.
    """
    if outcome == CORRECTED:
        return 1 + retries
    return 1 + retries + code.soft_reads


@njit
def decodes(code, outcome, retries):
    """Return the number of decoding attempts of one page read.

    Each attempt consumes ``energy.ecc`` per bit.
    """
    if outcome == CORRECTED or code.soft_reads == 0:
        return 1 + retries
    return 2 + retries


@njit
def decode_ps(code, errors):
    """Return the time of a successful hard decoding of a page with ``errors`` bit errors, in ps.

    The time grows linearly from ``code.decode`` without bit errors to ``code.decode_limit`` at the
    maximum number of correctable bit errors.
    """
    most = code.words * code.limit
    return code.decode + (code.decode_limit - code.decode) * min(errors, most) // most
