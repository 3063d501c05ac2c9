"""Does error correction fail as often as the binomial tail says, and cost what its stages cost?"""

import math
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ondie.emu.config.config import load_preset, preset_names
from ondie.emu.engine.core import rng as draws
from ondie.emu.nand import ecc, rber
from ondie.emu.units import InputError
from ondie.kernels.jit import njit

LDPC = load_preset("newport").replace({"errors.kind": "model"})
BCH = load_preset("optimstore-r1").replace({"errors.kind": "model"})
CODE = ecc.code(LDPC)[0]
NEVER = 2.0**-60


@njit
def read_many(code, seed, n, stable, shifted):
    """(outcome, retries, wrong bits) of pages 0 to n - 1, int64[n, 3]."""
    out = np.empty((n, 3), np.int64)
    for i in range(n):
        outcome, retries, errors = ecc.read_page(
            code, draws.page_key(seed, i, 0, 0), stable, shifted, 1.0
        )
        out[i, 0] = outcome
        out[i, 1] = retries
        out[i, 2] = errors
    return out


def tail(n, t, p):
    """P(X > t) exactly, p a Fraction: the shorter side summed in whole numbers."""
    a, b = p.numerator, p.denominator - p.numerator
    low = range(t + 1) if t < n // 2 else range(t + 1, n + 1)
    term = math.comb(n, low.start) * a**low.start * b ** (n - low.start)
    total = 0
    for k in low:
        total += term
        term = term * (n - k) * a // ((k + 1) * b)  # C(n, k+1) a^(k+1) b^(n-k-1), a whole number
    part = Fraction(total, p.denominator**n)
    return 1 - part if low.start == 0 else part


def close(got, wanted, rel=1e-9):
    return abs(Fraction(got) / wanted - 1) < rel


# --- the binomial tail


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("n", "t", "p"),
    [
        (1, 0, Fraction(1, 3)),
        (10, 3, Fraction(1, 10)),
        (50, 5, Fraction(1, 100)),
        (50, 40, Fraction(2, 5)),
        (1000, 10, Fraction(1, 50)),  # more than is corrected, most of the time
        (8192, 10, Fraction(1, 10**6)),
        (8192, 72, Fraction(85, 10**4)),
        (32768, 302, Fraction(5, 10**3)),  # 1e-22
        (32768, 302, Fraction(92, 10**4)),  # at the limit
        (32768, 302, Fraction(12, 10**3)),  # beyond it
    ],
)
def test_codeword_failure_against_whole_numbers(n, t, p):
    exact = tail(n, t, p)
    assert close(ecc.codeword_failure(n, t, float(p)), exact)
    assert close(math.exp(ecc.log_up_to(n, t, float(p))), 1 - exact)


def test_the_tail_by_hand():
    """Three bits, one corrected, p = 1/4: 3 x 1/16 x 3/4 + 1/64 = 10/64. Two such words:
    1 - (54/64)^2 = 295/1024."""
    assert ecc.codeword_failure(3, 1, 0.25) == pytest.approx(10 / 64, rel=1e-13)
    assert ecc.page_failure(3, 1, 2, 0.25) == pytest.approx(295 / 1024, rel=1e-13)


@pytest.mark.parametrize("p", [Fraction(1, 10**6), Fraction(1, 1000), Fraction(1, 100)])
def test_a_page_fails_when_any_of_its_words_does(p):
    for words in (1, 4, 16):
        exact = 1 - (1 - tail(1024, 10, p)) ** words
        assert close(ecc.page_failure(1024, 10, words, float(p)), exact)


def test_on_die_ecc_on_pslc():
    """10 bit/1 KiB at 1e-8: about (8192e-8)^11/11! = 1.116e-45/3.99e7 = 2.8e-53 a code word."""
    assert ecc.codeword_failure(8192, 10, 1e-8) == pytest.approx(2.79e-53, rel=0.01)


def test_ends():
    assert ecc.codeword_failure(100, 5, 0.0) == 0 and ecc.codeword_failure(100, 5, 1.0) == 1
    assert ecc.codeword_failure(100, 100, 0.3) == 0  # as many as there are bits
    assert ecc.page_failure(100, 100, 4, 0.3) == 0 and ecc.page_failure(100, 5, 4, 1.0) == 1


@given(
    some.integers(2, 40_000),
    some.integers(0, 500),
    some.floats(1e-9, 0.499),
    some.floats(1.001, 2),
)
def test_failure_is_monotone(n, t, p, factor):
    """More errors fail more often, more capability fails less often, and both sides make one."""
    here = ecc.log_above(n, t, p)
    slack = 1e-9
    assert here <= 0
    assert ecc.log_above(n, t, min(p * factor, 0.5)) >= here - slack
    assert ecc.log_above(n, t + 1, p) <= here + slack
    assert math.exp(here) + math.exp(ecc.log_up_to(n, t, p)) == pytest.approx(1, abs=1e-9)
    one, four = ecc.page_failure(n, t, 1, p), ecc.page_failure(n, t, 4, p)
    assert one <= four * (1 + slack) and four <= 4 * one * (1 + slack)


@given(some.integers(1, 40_000), some.integers(0, 400), some.floats(1e-9, 0.5))
def test_uncompiled_is_the_same(n, t, p):
    assert ecc.log_above.py_func(n, t, p) == ecc.log_above(n, t, p)
    assert ecc.log_up_to.py_func(n, t, p) == ecc.log_up_to(n, t, p)
    assert ecc.page_failure.py_func(n, t, 4, p) == ecc.page_failure(n, t, 4, p)


# --- the code of a configuration


def test_the_code_of_a_preset():
    """Measured: 302 bits of 4 KiB; 16 KiB pages hold 4 words; soft decision 2.05 x 302 = 619.1.
    OptimStore: 50 bit/1 KiB in pages of 8 KiB."""
    assert (CODE.bits, CODE.limit, CODE.words, CODE.soft_limit) == (32768, 302, 4, 619)
    bch = ecc.code(BCH)[0]
    assert (bch.bits, bch.limit, bch.words, bch.soft_limit, bch.soft_reads) == (8192, 50, 8, 50, 0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cfg", [BCH, LDPC], ids=["bch", "ldpc"])
def test_short_cuts_are_taken_where_nothing_is_lost(cfg):
    """Just inside `safe` and `hopeless` the other outcome has a chance of about 2**-60."""
    c = ecc.code(cfg)[0]
    n, t, words = int(c.bits), int(c.limit), int(c.words)
    assert 0 < c.safe < t / n < c.hopeless < 0.5
    safe, hopeless = (Fraction(round(10**7 * float(p)), 10**7) for p in (c.safe, c.hopeless))
    fails = 1 - (1 - tail(n, t, safe)) ** words
    assert 0.95 < fails / NEVER < 1.05  # the rates are rounded to 1e-7 here
    assert 0.95 < (1 - tail(n, t, hopeless)) ** words / NEVER < 1.05


def test_soft_decision_gains_what_the_channel_holds():
    """Gaussian channel, code rate 0.9: hard decision reaches capacity at RBER 1.30 %, three levels
    at 1.96 % (1.5 times), full soft values at 2.63 % (twice)."""

    def entropy(p):
        return -p * math.log2(p) - (1 - p) * math.log2(1 - p)

    def below(x):  # standard normal distribution function
        return 0.5 * math.erfc(-x / math.sqrt(2))

    def hard(sigma):
        return 1 - entropy(below(-1 / sigma))

    def three(sigma):
        best = 0.0
        for d in np.linspace(0.02, 0.6, 30):
            wrong = below((-1 - d) / sigma)
            erased = below((d - 1) / sigma) - wrong
            best = max(best, (1 - erased) * (1 - entropy(wrong / (1 - erased))))
        return best

    def soft(sigma):
        y = np.linspace(1 - 10 * sigma, 1 + 10 * sigma, 20_001)
        density = np.exp(-((y - 1) ** 2) / (2 * sigma**2)) / math.sqrt(2 * math.pi) / sigma
        return 1 - float(np.trapezoid(density * np.log2(1 + np.exp(-2 * y / sigma**2)), y))

    def reached(capacity):
        low, high = 0.3, 0.8
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if capacity(middle) > 0.9 else (low, middle)
        return below(-1 / low)

    limits = [reached(capacity) for capacity in (hard, three, soft)]
    assert limits == pytest.approx([0.0130, 0.0196, 0.0263], abs=1e-4)
    leaf = LDPC.leaf("ecc.soft_gain")
    assert leaf.low < limits[1] / limits[0] == pytest.approx(1.5, rel=0.02)
    assert limits[2] / limits[0] == pytest.approx(2.02, abs=0.01)  # of no code, and of no preset
    # The preset's gain is that of one code with three levels, over its own hard decision. Neither
    # passes its capacity, and hard decision is further from it.
    bits, limit = ecc.code(LDPC)[0].bits, ecc.code(LDPC)[0].limit
    by_hard, by_three = limit / bits / limits[0], leaf.value * limit / bits / limits[1]
    assert by_hard < by_three < 1


@pytest.mark.parametrize("name", preset_names())
def test_presets_read_new_pages_at_once(name):
    """A drive just written has neither retries nor media errors: its rate is below `safe`."""
    cfg = load_preset(name).replace({"errors.kind": "model"})
    c, code = rber.rates(cfg)[0], ecc.code(cfg)[0]
    shifted = rber.shifted_rate(c, rber.leak_rate(c, 0), rber.pressure_rate(c, 0), 0.0, 0)
    new = rber.total_rate(rber.stable_rate(c, 0), shifted, np.nanmax(rber.scales(cfg)[2:4]))
    fails = ecc.page_failure(int(code.bits), int(code.limit), int(code.words), new)
    assert fails < 1e-9


# --- reading a page


def test_pages_fail_as_often_as_the_tail_says(counts):
    """Without retries and soft decision, near the limit: within 4 standard errors."""
    cfg = LDPC.replace({"ecc.retries": 0, "ecc.soft_reads": 0})
    code = ecc.code(cfg)[0]
    n = counts(20_000, 1_000_000)
    for rate in (8.0e-3, 8.4e-3, 8.8e-3):
        outcome, retries, errors = read_many(code, 17, n, rate, 0.0).T
        chance = ecc.page_failure(32768, 302, 4, rate)
        assert 0.01 < chance < 0.9
        failed = (outcome == ecc.UNCORRECTABLE).mean()
        assert abs(failed - chance) < 4 * math.sqrt(chance * (1 - chance) / n)
        assert not retries.any() and set(outcome) == {ecc.CORRECTED, ecc.UNCORRECTABLE}
        mean, variance = 131072 * rate, 131072 * rate * (1 - rate)
        assert abs(errors.mean() - mean) < 4 * math.sqrt(variance / n)


def test_retries_by_the_product_of_failures(counts):
    """P(more than i retries) is the product of the page's failures at levels 0 to i."""
    n = counts(20_000, 1_000_000)
    gain, stable, shifted = float(CODE.gain), 7.3e-3, 2e-3
    outcome, retries, _ = read_many(CODE, 23, n, stable, shifted).T
    product = 1.0
    for level in range(3):
        rate = rber.retry_rate(stable, shifted, 1.0, gain, level)
        product *= ecc.page_failure(32768, 302, 4, rate)
        seen = (retries > level).mean()
        assert abs(seen - product) < 4 * math.sqrt(product * (1 - product) / n) + 1e-12
    assert (outcome == ecc.CORRECTED).all()


def test_a_page_walks_through_every_stage():
    """Nothing is shifted, so no retry helps: below 302 bits a word at once, between the limits by
    soft decision, above 619 never. Rates: 100, 450 and 800 bits of 32768."""
    for wrong, wanted in ((100, (0, 0)), (450, (1, 8)), (800, (2, 8))):
        outcome, retries, errors = read_many(CODE, 5, 50, wrong / 32768, 0.0).T
        assert set(zip(outcome, retries, strict=True)) == {wanted}
        assert errors.mean() == pytest.approx(4 * wrong, rel=0.05)


def test_retries_find_a_page_of_last_year():
    """A year at 0 P/E: 1.48e-3 + 1.52e-3 x 365^0.54 = 1.48e-3 + 0.03678. Halved three times
    1.48e-3 + 4.6e-3 = 6.1e-3, below the limit with a margin; twice 1.07e-2, above it."""
    c = rber.rates(LDPC)[0]
    shifted = rber.shifted_rate(c, rber.leak_rate(c, 0), 0.0, 365.0, 0)
    assert shifted == pytest.approx(0.03678, rel=1e-3)
    outcome, retries, _ = read_many(CODE, 1, 500, rber.stable_rate(c, 0), shifted).T
    assert set(retries) == {3} and not outcome.any()


@given(some.floats(0, 0.02), some.floats(0, 0.5), some.integers(0, 2**62), some.integers(0, 2**40))
def test_outcome_and_stages_agree(stable, shifted, seed, ppn):
    key = np.uint64(draws.page_key(seed, ppn, 0, 0))
    outcome, retries, errors = ecc.read_page(CODE, key, stable, shifted, 1.0)
    assert (outcome, retries, errors) == ecc.read_page(CODE, key, stable, shifted, 1.0)
    assert outcome == ecc.CORRECTED or retries == CODE.retries
    assert 0 <= retries <= CODE.retries
    rate = rber.retry_rate(stable, shifted, 1.0, CODE.gain, retries)
    total, worst = ecc.page_errors(CODE, key, retries, rate)
    assert total == errors
    assert (outcome == ecc.CORRECTED) == (worst <= CODE.limit)
    assert (outcome == ecc.UNCORRECTABLE) == (worst > CODE.soft_limit)


def test_order_does_not_matter():
    code, n = ecc.code(LDPC)[0], 300
    forwards = read_many(code, 4, n, 6.5e-3, 2e-3)
    keys = [np.uint64(draws.page_key(4, i, 0, 0)) for i in range(n)]
    backwards = [ecc.read_page(code, key, 6.5e-3, 2e-3, 1.0) for key in reversed(keys)]
    assert np.array(backwards)[::-1].tolist() == forwards.tolist()
    assert (read_many(code, 5, n, 6.5e-3, 2e-3)[:, 2] != forwards[:, 2]).mean() > 0.9


# --- what it costs


def test_decoding_takes_longer_with_errors():
    """5 us without errors, 20 us at 4 x 302 = 1208 wrong bits, half way 12.5 us, never more."""
    assert ecc.decode_ps(CODE, 0) == 5_000_000
    assert ecc.decode_ps(CODE, 604) == 12_500_000
    assert ecc.decode_ps(CODE, 1208) == ecc.decode_ps(CODE, 5000) == 20_000_000
    times = [ecc.decode_ps(CODE, e) for e in range(1300)]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("outcome", "retries", "senses", "decodes"),
    [
        (ecc.CORRECTED, 0, 1, 1),
        (ecc.CORRECTED, 3, 4, 4),  # three fail at their limit
        (ecc.SOFT, 8, 11, 10),  # nine fail, two more readings, soft decision
        (ecc.UNCORRECTABLE, 8, 11, 10),  # and that fails too
    ],
)
def test_what_a_read_takes(outcome, retries, senses, decodes):
    assert ecc.senses(CODE, outcome, retries) == senses
    assert ecc.decodes(CODE, outcome, retries) == decodes


def test_without_soft_decision_a_page_is_given_up_after_its_retries():
    """9 readings, 9 decodings."""
    bch = ecc.code(BCH)[0]
    assert ecc.senses(bch, ecc.UNCORRECTABLE, 8) == ecc.decodes(bch, ecc.UNCORRECTABLE, 8) == 9


# --- bad input


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ecc.codeword": "5 KiB"}, ["ecc.codeword", "5 KiB", "whole code words"]),
        ({"ecc.correctable_bits": 0}, ["ecc.correctable_bits", '"0"', "at least 1"]),
        ({"ecc.correctable_bits": 16384}, ["ecc.correctable_bits", "less than half"]),
        ({"ecc.decode_limit": "1 us"}, ["ecc.decode_limit", "1 us", "at least ecc.decode,"]),
        ({"ecc.retry_gain": 1.5}, ["ecc.retry_gain", "1.5", "at most 1"]),
        ({"ecc.soft_gain": 0.5}, ["ecc.soft_gain", "0.5", "at least 1"]),
        ({"errors.coding": "grey"}, ["errors.coding", "grey", "binary"]),
        ({"errors.disturb_reads": 0}, ["errors.disturb_reads", "too small"]),
        ({"errors.retention_cycles": 0}, ["errors.retention_cycles", "too small"]),
        ({"errors.wear": -1}, ["errors.wear", "too small"]),
    ],
)
def test_bad_codes_and_rates_are_named(changes, words):
    with pytest.raises(InputError) as caught:
        LDPC.replace(changes)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_without_errors_the_code_is_not_looked_at():
    """Pages of 1 KiB with code words of 4 KiB: a device without errors has no code words, reads
    every page right at once and decodes it in 5 us."""
    small = {"flash.page": "1 KiB", "host.io_block": "4 KiB", "frontend.max_transfer": "8 KiB"}
    cfg = load_preset("newport").replace(small)
    c, code = rber.rates(cfg)[0], ecc.code(cfg)[0]
    shifted = rber.shifted_rate(c, rber.leak_rate(c, 10**6), 0.0, 1e6, 10**9)
    read = ecc.read_page(code, np.uint64(1), rber.stable_rate(c, 10**6), shifted, 1.0)
    assert read == (ecc.CORRECTED, 0, 0)
    assert ecc.decode_ps(code, 0) == cfg.ecc.decode_ps == 5_000_000
    assert ecc.senses(code, ecc.CORRECTED, 0) == ecc.decodes(code, ecc.CORRECTED, 0) == 1
    with pytest.raises(InputError, match="whole code words"):
        LDPC.replace(small)


# --- compiled and not

SCRIPT = """
import sys
import numpy as np
from ondie.emu.engine.core import rng as draws
from ondie.emu.nand import ecc, bit_errors as inject, rber
from ondie.emu.config.config import load_preset
cfg = load_preset("newport").replace({"errors.kind": "model"})
c, code = rber.rates(cfg)[0], ecc.code(cfg)[0]
rows, masks = [], []
for i, (cycles, days) in enumerate([(0, 0.0), (500, 1.0), (500, 9.0), (200, 14.0), (3000, 365.0)]):
    shifted = rber.shifted_rate(
        c, rber.leak_rate(c, cycles), rber.pressure_rate(c, cycles), days, 10**5
    )
    stable = rber.stable_rate(c, cycles)
    for scale in (6.7e-6, 0.056, 1.0, 1.5, 3.0):
        for ppn in range(6):
            key = np.uint64(draws.page_key(2**40 + i, ppn, cycles, 3))
            outcome, retries, errors = ecc.read_page(code, key, stable, shifted, scale)
            cost = ecc.decode_ps(code, errors)
            rows.append((outcome, retries, errors, cost, ecc.senses(code, outcome, retries)))
        rate = min(0.5, scale * (stable + shifted))
        masks.append(inject.wrong_bits(16384, rate, key, code))
        masks.append(inject.wrong_bits(16384, rate, key))
fields = np.array([float(getattr(code, name)) for name in ecc.CODE.names])
np.savez(sys.argv[1], rows=np.array(rows, np.int64), masks=np.array(masks), code=fields)
"""


@pytest.mark.soak
def test_interpreted_and_compiled_agree(tmp_path, root):
    """The same functions without Numba: the same outcomes, times and flipped bits."""
    made = []
    for off in ("0", "1"):
        env = os.environ | {"NUMBA_DISABLE_JIT": off, "PYTHONPATH": str(root)}
        file = tmp_path / f"{off}.npz"
        command = [sys.executable, "-W", "error", "-c", SCRIPT, str(file)]
        subprocess.run(command, env=env, check=True, timeout=300)
        made.append(np.load(file))
    compiled, plain = made
    assert compiled["rows"].shape == (150, 5) and len(set(compiled["rows"][:, 2].tolist())) > 30
    assert set(compiled["rows"][:, 0].tolist()) == {ecc.CORRECTED, ecc.SOFT, ecc.UNCORRECTABLE}
    for name in ("rows", "masks", "code"):
        assert compiled[name].tobytes() == plain[name].tobytes(), name
