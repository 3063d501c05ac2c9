"""Real codes of the optimizer's pages: which words come back, which bytes the dies compute with,
and where the decoder and the capability model differ."""

from functools import cache

import numpy as np
import pytest

from ondie import traces
from ondie.emu.analysis.compare import Run
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import rng as draws
from ondie.emu.nand import pe_protection as shield
from ondie.emu.nand.codec import BareDecoder, bare_decoder_of
from ondie.emu.paths.base import Options
from ondie.emu.studies.drives import CODES
from tests.smoke.commands import SMALL

PAGE = 8192
DIE_BCH, BCH, LDPC = (dict(code.changes) for code in CODES.values())
NEAR = {"die": (DIE_BCH, 1e-3), "bch": (BCH, 5e-3), "ldpc": (LDPC, 7.9e-3)}
"""Codes, and raw bit error rates at which some words fail."""


def config(changes, rate):
    more = {"errors.kind": "rate", "errors.rate": rate}
    return load_preset("optimstore-r1", SMALL).replace(changes | more)


def keys(count, seed=1):
    return np.array([draws.page_key(seed, page, 0, 0) for page in range(count)], np.uint64)


def wrong(got, page, word):
    return np.bitwise_count(got ^ page).reshape(-1, word).sum(1)


@pytest.mark.parametrize("code", NEAR)
def test_data_have_the_wrong_bits_that_they_have_without_a_code(code):
    """Check bits are wrong at the same rate, with draws of their own."""
    changes, rate = NEAR[code]
    word, check = shield.code(config(changes, rate))[0], 64
    masks = [shield.wrong_words(PAGE, rate, int(key), word, check) for key in keys(200)]
    for key, mask in zip(keys(200), masks, strict=True):
        assert (mask[:, :word].reshape(-1) == shield.wrong_bits(PAGE, rate, int(key))).all()
    expected = 200 * (PAGE // word) * 8 * check * rate
    beside = sum(int(np.bitwise_count(mask[:, word:]).sum()) for mask in masks)
    assert abs(beside - expected) < 5 * expected**0.5


@pytest.mark.parametrize("code", ["die", "bch"])
def test_a_bch_word_comes_back_if_no_more_bits_than_its_limit_are_wrong(rng, code):
    """Check bits included, which the model does not know of: it differs by those words only."""
    changes, rate = NEAR[code]
    cfg = config(changes, rate)
    (word, limit), decoder = shield.code(cfg), BareDecoder(cfg)
    check = decoder._coder.check_bytes
    failed = beside = left = bits = 0
    for key in keys(100):
        page = rng.integers(0, 256, PAGE, np.uint8)
        mask = shield.wrong_words(PAGE, rate, int(key), word, check)
        data, whole = (np.bitwise_count(part).sum(1) for part in (mask[:, :word], mask))
        found = wrong(decoder.decode(page, int(key), rate), page, word)
        assert (found == np.where(whole > limit, data, 0)).all()
        failed += int((whole > limit).sum())
        beside += int(((whole > limit) & (data <= limit)).sum())
        left += int(found.sum())
        bits += int(np.minimum(whole, limit).sum()) if data.any() else 0
    counts = decoder.counts
    assert 0 < beside < failed < counts.words <= 100 * PAGE // word
    assert counts.failed_words == failed and counts.fails_beside_model == beside
    assert counts.wrong_bits_left == left and counts.pages == 100
    assert counts.corrects_beside_model == counts.miscorrected_words == counts.flips == 0
    assert counts.iterations == bits
    by_step = shield.failures_by_step(keys(100)[None], rate, PAGE, word, check, limit)
    assert by_step.tolist() == [[failed - beside, failed]]


def test_an_ldpc_word_comes_back_or_has_its_wrong_bits(rng):
    changes, rate = NEAR["ldpc"]
    cfg = config(changes, rate)
    (word, limit), decoder = shield.code(cfg), BareDecoder(cfg)
    failed = model = 0
    for key in keys(150):
        page = rng.integers(0, 256, PAGE, np.uint8)
        mask = shield.wrong_bits(PAGE, rate, int(key)).reshape(-1, word)
        found = wrong(decoder.decode(page, int(key), rate), page, word)
        data = np.bitwise_count(mask).sum(1)
        assert ((found == data) | (found == 0)).all()
        failed, model = failed + int((found > 0).sum()), model + int((data > limit).sum())
    counts = decoder.counts
    assert counts.words == 300 and counts.failed_words == failed and counts.iterations > 300
    assert counts.miscorrected_words == 0
    assert model - counts.corrects_beside_model + counts.fails_beside_model == failed
    assert 0 < counts.corrects_beside_model + counts.fails_beside_model


def test_without_a_code_an_error_or_a_protection_nothing_is_decoded():
    assert isinstance(bare_decoder_of(config(BCH, 1e-4)), BareDecoder)
    assert bare_decoder_of(config(BCH | {"ecc.code": "capability"}, 1e-4)) is None
    for protection in shield.WITHOUT_ECC:
        assert bare_decoder_of(config(BCH | {"pe.protection": protection}, 1e-4)) is None
    assert bare_decoder_of(config(BCH, 1e-4).replace({"errors.kind": "none"})) is None


@cache
def right():
    """Weights without errors."""
    return steps(config({"pe.protection": "none"}, 0).replace({"errors.kind": "none"}))[3]


def steps(cfg, count=2):
    """Some steps of the optimizer; the engine's draws and times do not depend on the code."""
    run = Run("on_die", cfg, traces.load("gpt-small"), Options(seed=1), payload=True)
    for i in range(count):
        assert run.step(i)
    totals = run.account()[0]
    return run.path.payload, totals, run.system.now, run.path.finish()


BARE = ("bare_wrong_bits", "bare_corrected_bits")


def others(counters):
    """Counters without those of wrong bits and of a real code."""
    own = (*BARE, "ecc_iterations", "ecc_late_iterations")
    return {name: count for name, count in counters.items() if name not in own}


@pytest.mark.parametrize("code", NEAR)
def test_the_dies_compute_with_what_the_decoder_made(code):
    """Below its limit a code changes nothing; above it the weights are wrong. Wrong bits are those
    that the decoder has left. Decoding takes the time of its iterations, on the die that of the
    model; other counters are the model's."""
    changes, rate = NEAR[code]
    model = changes | {"ecc.code": "capability"}
    for low in (True, False):
        cfg = config(changes, rate / 8 if low else rate)
        held, totals, now, weights = steps(cfg)
        beside, expected, same, theirs = steps(cfg.replace(model))
        counts = held.decoder.counts
        assert beside.decoder is None and others(totals.counters) == others(expected.counters)
        of = [sum(each.counters[name] for name in BARE) for each in (totals, expected)]
        assert of[0] == of[1] > 0 and totals.counters["bare_wrong_bits"] == counts.wrong_bits_left
        assert counts.model_bits_left == expected.counters["bare_wrong_bits"]
        made = totals.counters["ecc_iterations"]
        assert (now == same and made == 0) if code == "die" else (now != same and made > 0)
        really = counts.iterations + counts.flips
        assert code == "die" or made == pytest.approx(really, rel=0.05)
        assert counts.words > 100 and counts.miscorrected_words == 0
        assert (counts.failed_words == counts.wrong_bits_left == 0) == low
        assert (weights.tobytes() == right().tobytes()) == low
        fails = counts.failed_words + counts.corrects_beside_model - counts.fails_beside_model
        assert (fails > 0) == (expected.counters["bare_wrong_bits"] > 0)
        differs = counts.fails_beside_model + counts.corrects_beside_model
        assert (differs > 0) == (weights.tobytes() != theirs.tobytes())


def test_a_code_that_is_never_asked_would_be_seen(monkeypatch):
    """Without the decoder, words that it corrects keep their wrong bits."""
    monkeypatch.setattr(
        BareDecoder, "decode",
        lambda own, page, key, rate: page ^ shield.wrong_bits(page.size, rate, key),
    )  # fmt: skip
    assert steps(config(DIE_BCH, 1e-4))[3].tobytes() != right().tobytes()
