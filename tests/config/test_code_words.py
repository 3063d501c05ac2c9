"""Which real codes fit a page and its spare area, and what is said of those that do not."""

import re
from contextlib import nullcontext

import numpy as np
import pytest
from scipy import stats

from ondie.emu.config.config import load_preset
from ondie.emu.config.loader import preset_names
from ondie.emu.config.rules import code_words
from ondie.emu.nand import ecc
from ondie.emu.units import InputError
from ondie.kernels import bch, bch_code, ldpc, ldpc_code

GEN4 = load_preset("gen4-tlc")
HARD = {"ecc.soft_reads": "0"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ecc.code": "turbo"}, ["ecc.code", '"turbo"', "capability, bch, ldpc"]),
        ({"ecc.code": "bch"}, ['"4 KiB"', '"302"', "at most 100", "below 4 KiB"]),
        ({"ecc.code": "bch", "ecc.correctable_bits": "72"}, ['"72"', "m = 15", "2 KiB fits"]),
        ({"ecc.code": "bch", "ecc.codeword": "1 KiB", "ecc.correctable_bits": "90", **HARD},
         ["flash.spare", '"2208 B"', "162 check bytes", "138 bytes", "up to 76 fit"]),
        ({"ecc.code": "bch", "ecc.codeword": "1 KiB", "ecc.correctable_bits": "0", **HARD},
         ["ecc.correctable_bits", '"0"', "at least 1"]),
        ({"ecc.code": "bch", "ecc.codeword": "1 KiB", "ecc.correctable_bits": "40"},
         ["ecc.soft_reads = 0", "hard decision"]),
        ({"ecc.code": "ldpc", "ecc.soft_reads": "4"}, ["ecc.soft_reads", "0 or 2"]),
        ({"ecc.code": "ldpc", "flash.spare": "100 B"},
         ["flash.spare", '"100 B"', "36 check bytes", "25 bytes", "144 B or more fits"]),
        ({"ecc.code": "ldpc", "ecc.codeword": "3 KiB"}, ["ecc.codeword", "whole code words"]),
        ({"ecc.code": "ldpc", "ecc.codeword": "8 KiB", "ftl.mapping_unit": "4 KiB"},
         ["ftl.mapping_unit", "whole code words"]),
        ({"ecc.code": "bch", "ecc.codeword": "128 B", "ecc.correctable_bits": "101",
          "flash.spare": "64 KiB", **HARD}, ['"101"', "at most 100"]),
        ({"ecc.code": "bch", "ecc.codeword": "1 KiB", "ecc.correctable_bits": "40",
          "flash.spare": "8 B", **HARD}, ["flash.spare", "no code fits"]),
    ],
)  # fmt: skip
def test_a_code_that_does_not_fit(changes, words):
    with pytest.raises(InputError) as caught:
        GEN4.replace(changes)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pe.ecc_correctable_bits": 101}, ['"101"', "pe.ecc_correctable_bits up to 76 fit"]),
        ({"flash.spare": "100 B", "ecc.correctable_bits": 1},
         ['"100 B"', "flash.spare", "up to 4 fit"]),
        ({"pe.ecc_correctable_bits": 101, "flash.spare": "64 KiB"}, ['"101"', "up to 100 fit"]),
        ({"errors.exposure": 2}, ["errors.exposure = 1", "single reads"]),
        ({"errors.exposure": 2, "pe.protection": "controller_ecc"}, ["single reads"]),
    ],
)  # fmt: skip
def test_a_code_on_the_die_that_does_not_fit(changes, words):
    base = load_preset("optimstore-r1").replace(
        {"pe.protection": "on_die_ecc", "ecc.code": "bch", "errors.kind": "rate"}
    )
    with pytest.raises(InputError) as caught:
        base.replace(changes)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message, message
    if fits := re.search(r"up to (\d+) fit", message):
        base.replace(changes | {"pe.ecc_correctable_bits": int(fits[1])})
        with pytest.raises(InputError):
            base.replace(changes | {"pe.ecc_correctable_bits": int(fits[1]) + 1})


def test_what_the_message_says_fits():
    """The largest code of the message is accepted, the next one is not."""
    base = {"ecc.code": "bch", "ecc.codeword": "1 KiB", **HARD}
    assert ecc.check_bytes(GEN4.replace(base | {"ecc.correctable_bits": "76"})) <= 138
    with pytest.raises(InputError):
        GEN4.replace(base | {"ecc.correctable_bits": "77"})
    GEN4.replace({"ecc.code": "ldpc", "flash.spare": "144 B"})
    for size, fits in (("64 KiB", True), ("128 KiB", False)):
        keys = dict.fromkeys(("flash.page", "ecc.codeword", "ftl.mapping_unit"), size)
        with nullcontext() if fits else pytest.raises(InputError, match="at most 64 KiB"):
            GEN4.replace({"ecc.code": "ldpc", "flash.spare": "16 KiB"} | keys)
    with pytest.raises(InputError):
        GEN4.replace({"ecc.code": "ldpc", "flash.spare": "143 B"})


def test_constants_are_those_of_the_codes():
    """This arithmetic is written twice, since the configuration does not load the compiler."""
    assert list(code_words.BCH_DEGREES) == sorted(bch_code.PRIMITIVE)
    assert code_words.MOST_BCH_ERRORS == bch_code.MOST_ERRORS
    assert code_words.CRC_BYTES == bch_code.CRC_BYTES == ldpc_code.CRC_BYTES
    assert (code_words.LDPC_ROWS, code_words.CIRCULANTS) == (ldpc_code.ROWS, ldpc_code.CIRCULANTS)


@pytest.mark.parametrize(
    ("word", "t"), [(512, 4), (512, 20), (1024, 40), (1024, 72), (2048, 100), (128, 1), (64, 90)]
)
def test_bch_codes_exist(word, t):
    """The degree is the least that has the code, and its check bytes are at most those of m t."""
    m = code_words.bch_degree(word, t)
    made = bch.get(m, t, word)
    assert made.check_bytes <= code_words.bch_check_bytes(m, t)
    if m > 10:
        assert bch_code.most_data(m - 1, t) < word + made.check_bytes


def test_ldpc_codes_exist():
    for circulant in code_words.CIRCULANTS[:5]:
        made = ldpc.get(4096, circulant)
        assert made.code.word_bytes == 4096 + code_words.ldpc_check_bytes(circulant)


@pytest.mark.parametrize("name", preset_names())
def test_presets_have_room_for_ldpc(name):
    """Rate 0.888 or less in every preset; of hard decision where it has no other."""
    cfg = load_preset(name).replace({"ecc.code": "ldpc", "errors.kind": "model"})
    rate = cfg.ecc.codeword_bytes / (cfg.ecc.codeword_bytes + ecc.check_bytes(cfg))
    assert 0.85 < rate < 0.9
    code = ecc.code(cfg)[0]
    assert code.coded and code.bits - code.data_bits == 8 * ecc.check_bytes(cfg)


def test_the_capability_model_has_no_check_bits():
    code = ecc.code(GEN4.replace({"errors.kind": "model"}))[0]
    assert not code.coded and code.bits == code.data_bits == 8 * 4096


@pytest.mark.parametrize("name", ["gen4-tlc", "newport"])
def test_the_limit_of_an_ldpc_word_counts_its_check_bits(name):
    """Where 1 in 1,000 words fails by its user bits, so does the whole word: errors hit both."""
    cfg = load_preset(name).replace({"ecc.code": "ldpc", "errors.kind": "model"})
    code = ecc.code(cfg)[0]
    for limit, whole in (
        (cfg.ecc.correctable_bits, code.limit),
        (int(cfg.ecc.correctable_bits * cfg.ecc.soft_gain), code.soft_limit),
    ):
        rates = np.linspace(limit / code.data_bits / 2, limit / code.data_bits, 4000)
        data = stats.binom.sf(limit, code.data_bits, rates)
        rate = rates[np.searchsorted(data, 1e-3)]
        assert stats.binom.sf(whole, code.bits, rate) == pytest.approx(1e-3, rel=0.25)
        assert stats.binom.sf(limit, code.bits, rate) > 0.1


def test_bch_corrects_its_number_wherever_the_bits_are():
    small = {"ecc.code": "bch", "ecc.codeword": "1 KiB", "ecc.correctable_bits": "40"}
    code = ecc.code(GEN4.replace({"errors.kind": "model", **small, **HARD}))[0]
    assert code.limit == code.soft_limit == 40
