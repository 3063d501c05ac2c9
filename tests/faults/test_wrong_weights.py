"""What bit errors do to training: weights are right, or the run says that they are not."""

import re

import numpy as np
import pytest

from ondie import traces
from ondie.emu.analysis.compare import compare
from ondie.emu.analysis.error_notes import wrong_data, wrong_words
from ondie.emu.config.config import load_preset
from ondie.emu.nand.codec import Decoder
from ondie.emu.paths.base import Options
from tests.smoke.commands import SMALL

ERRORS = {"errors.kind": "model"}
CERTAIN = {
    "errors.kind": "model", "flash.cell": "TLC", "errors.floor": "6.5e-3", "ecc.retries": "1",
    "ecc.soft_reads": "0", "ecc.decode_limit": "20 us",
}  # fmt: skip
PAGE = 8192
"""Of 8192 bits 53 are expected to be wrong, 50 are corrected: most pages of eight words fail."""


def result(path, changes, seed=0, steps=2):
    cfg = load_preset("optimstore-r1", SMALL).replace(changes)
    trace = traces.load("mlp-fp16")
    options = Options(seed=seed)
    (found,) = compare(trace, cfg, paths=[path], steps=steps, swing=False, options=options).results
    assert found.ledger is not None and found.weights is not None
    return found


@pytest.mark.parametrize("path", ["host_offload", "in_storage", "on_die"])
def test_a_drive_as_new_ends_on_the_reference(path):
    """pSLC: no page is read again, no weight is wrong."""
    found = result(path, ERRORS)
    assert found.weights.equal_bits == found.weights.elements
    counters = found.ledger.totals.counters
    assert counters["uncorrectable_pages"] == counters["retried_pages"] == 0


@pytest.mark.parametrize("path", ["host_offload", "in_storage"])
def test_pages_that_cannot_be_corrected_spoil_weights_and_are_told(path):
    found = result(path, CERTAIN)
    counters = found.ledger.totals.counters
    assert counters["media_errors"] > 0 and counters["uncorrectable_pages"] > 0
    assert found.weights.equal_bits < found.weights.elements
    assert any("unrecovered read error (NVMe status 0x281)" in note for note in found.notes)
    assert any("weights are wrong" in note for note in found.notes)


def decoder_failures(found, model):
    """Pages that the decoder could not correct, from the note of a run, which has the model's."""
    (note,) = [note for note in found.notes if "by the decoder" in note]
    assert (
        note.endswith(f"cannot correct {model} of the pages that were read")
        and "(NVMe status 0x281)" in note
    )
    return int(note.split()[0])


@pytest.mark.parametrize("path", ["host_offload", "in_storage"])
def test_a_code_that_fails_where_the_model_does_not_is_told(path, monkeypatch):
    """Weights follow the bytes: wrong ones are no defect of the run, whatever the model says. Here
    the decoder fails in one of 20 words that the model corrects."""
    decode = Decoder._decode_words

    def failing(decoder, words):
        found = decode(decoder, words)
        chosen = np.arange(len(found.good)) % 20 == 0
        found.data[chosen] ^= words.mask[chosen, : found.data.shape[1]]
        return found._replace(good=found.good & ~chosen)

    monkeypatch.setattr(Decoder, "_decode_words", failing)
    found = result(path, CERTAIN | {"ecc.code": "bch", "errors.floor": "3e-3"})
    counters = found.ledger.totals.counters
    assert decoder_failures(found, 0) == counters["uncorrectable_pages"] > 0
    assert 0 < counters["media_errors"] <= counters["uncorrectable_pages"]
    assert found.weights.equal_bits < found.weights.elements
    assert any("weights are wrong" in note for note in found.notes)


@pytest.mark.parametrize("path", ["host_offload", "in_storage"])
def test_weights_are_what_a_real_code_makes_of_the_pages(path):
    """BCH fails where the model does; LDPC corrects most pages that the model gives up. At a lower
    rate both correct all, at a higher one none."""
    right, failed = {}, {}
    for code in ("bch", "ldpc"):
        found = result(path, CERTAIN | {"ecc.code": code})
        counters = found.ledger.totals.counters
        failed[code] = counters["uncorrectable_pages"], counters["media_errors"]
        (note,) = [note for note in found.notes if "by the decoder" in note]
        model = int(re.search(r"cannot correct (\d+) of the pages", note)[1])
        assert decoder_failures(found, model) == failed[code][0]
        assert model > 0 and (failed[code][0] == model or code == "ldpc")
        assert (failed[code][1] > 0) == (failed[code][0] > 0)
        right[code] = found.weights.equal_bits / found.weights.elements
        found = result(path, CERTAIN | {"ecc.code": code, "errors.floor": "3e-3"})
        assert found.weights.equal_bits == found.weights.elements
        counters = found.ledger.totals.counters
        assert counters["corrected_bits"] > 0
        check_energy(found, code)
        found = result(path, CERTAIN | {"ecc.code": code, "errors.floor": "2e-2"})
        assert found.weights.equal_bits < found.weights.elements
    assert right["bch"] < right["ldpc"]
    assert failed["ldpc"][0] < failed["bch"][0] / 10 and failed["ldpc"][1] < failed["bch"][1]


def check_energy(found, code):
    """Coded bits take 13 pJ each, iterations of LDPC that do not fit into the 2 us of ecc.decode
    669 mW; BCH takes nothing for wrong bits."""
    counters, parts = found.ledger.totals.counters, found.energy.by_component
    bits = 8 * PAGE * (counters["ecc_decoded_pages"] + counters["ecc_encoded_pages"])
    assert parts["ECC"][1] == pytest.approx(bits * 13e-12, rel=1e-9)
    every, late = counters["ecc_iterations"], counters["ecc_late_iterations"]
    if code == "bch":
        assert "ECC iterations" not in parts and every > 0
    else:
        assert parts["ECC iterations"][1] == pytest.approx(late * 250e-9 * 0.669, rel=1e-9)
        assert 0 < late < every


def test_a_bch_word_at_its_limit_takes_the_energy_of_its_source():
    """AiF, ISCA 2025: a decoder for 50 bit/1 KiB takes 669 mW at 6.4 GB/s, 107 nJ a word. All words
    of all pages have 50 wrong bits or more; a page takes neither less nor more."""
    word = 1024 / 6.4e9 * 0.669
    changes = CERTAIN | {"ecc.code": "bch", "errors.floor": "2e-2", "ecc.retries": "0"}
    found = result("host_offload", changes)
    counters, parts = found.ledger.totals.counters, found.energy.by_component
    read = counters["ecc_decoded_pages"]
    assert counters["ecc_iterations"] == 50 * 8 * read > 0
    coded = 8 * (read + counters["ecc_encoded_pages"])
    paid = sum(parts.get(name, (0, 0, 0))[1] for name in ("ECC", "ECC iterations"))
    assert paid / coded == pytest.approx(word, rel=0.01)


def test_retries_cost_time_and_leave_the_weights_right():
    """Half of the errors go with each retry: 53 expected of 50, then 26."""
    changes = CERTAIN | {
        "errors.floor": "0", "errors.retention": "6.5e-3", "errors.retention_exponent": "0",
        "errors.initial_days": "1", "ecc.retry_gain": "0.5",
    }  # fmt: skip
    found, plain = result("host_offload", changes), result("host_offload", {"flash.cell": "TLC"})
    counters = found.ledger.totals.counters
    assert found.weights.equal_bits == found.weights.elements
    assert counters["retried_pages"] == counters["retry_read_pages"] > 0
    assert counters["uncorrectable_pages"] == 0
    assert found.ledger.step_s > plain.ledger.step_s
    assert found.energy.drive[1] > plain.energy.drive[1]
    assert any(f"needed {counters['retry_read_pages']} additional reads" in x for x in found.notes)


def test_nothing_corrects_what_a_die_computes_with():
    """Past the ECC one bit of 50,000 is wrong: as many as the rate says over all that was read, in
    weights or in what belongs to them; by seed, the same again."""
    rate = 2e-5
    changes = ERRORS | {"errors.pslc": "1", "errors.floor": str(rate), "errors.wear": "0",
                        "errors.retention": "0", "errors.disturb": "0"}  # fmt: skip
    found = result("on_die", changes)
    totals = found.ledger.totals
    read = totals.counters["bpr_pages"] + totals.counters["reservoir_read_pages"]
    expected = read * totals.page_bytes * 8 * rate
    wrong = totals.counters["bare_wrong_bits"]
    assert abs(wrong - expected) < 4.5 * expected**0.5 and expected > 50
    assert 0 < found.weights.elements - found.weights.equal_bits < wrong
    assert any(f"{wrong} wrong bits in pages that were read without ECC" == x for x in found.notes)
    assert wrong_words(*wrong_data(totals, 2)) == f"{round(wrong / 2)} wrong bits per step"
    again, other = result("on_die", changes), result("on_die", changes, seed=1)
    assert again.weights == found.weights
    assert again.ledger.totals.counters == totals.counters
    assert other.ledger.totals.counters["bare_wrong_bits"] != wrong


def test_what_the_code_of_the_die_leaves_wrong_is_not_called_uncoded():
    """Of 8192 bits 53 are wrong on average, and no more than 10 are corrected."""
    found = result("on_die", CERTAIN | {"pe.protection": "on_die_ecc"})
    wrong = found.ledger.totals.counters["bare_wrong_bits"]
    assert wrong > 0
    assert f"{wrong} wrong bits in pages that ECC could not correct" in found.notes
    assert not any("without ECC" in note for note in found.notes)


def test_a_lost_page_is_wrong_data_as_well():
    """The mean of a step is told, also below one; without errors nothing is said."""
    lost = result("host_offload", CERTAIN).ledger.totals
    pages = lost.counters["uncorrectable_pages"]
    assert (
        wrong_words(*wrong_data(lost, 1)) == f"{pages:,} uncorrectable pages per step" and pages > 1
    )
    assert wrong_words(*wrong_data(lost, 2 * pages)) == "0.5 uncorrectable pages per step"
    assert wrong_words(*wrong_data(result("host_offload", {}).ledger.totals, 1)) == ""
