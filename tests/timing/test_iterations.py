"""With a real code, does a decoding take the time of its iterations, once, and do those that the
engine draws agree with those that the decoder makes?

Numbers are those of the harness; the rates those of test_retry.py.
"""

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.engine.core.rng import below, binomial
from ondie.emu.nand import codec, ecc, soft_reads
from ondie.emu.nvme import command as queues
from ondie.kernels import ldpc
from tests.faults.test_media_errors import MODEL, counter, read, write
from tests.faults.test_real_codes import TRUSTING, fresh
from tests.state import small
from tests.timing import harness as h
from tests.timing.test_retry import BEFORE, BEHIND, SENSE, STAYS, bench, verdict

STEP = 70 * h.NS
COVERED = 14  # of 70 ns in the 1 us of ecc.decode
BCH = {"ecc.code": "bch", "flash.spare": "400 B", "ecc.bch_error": "70 ns"}
LDPC = {"ecc.code": "ldpc", "flash.spare": "400 B", "ecc.ldpc_iteration": "70 ns"}


def iterations(made):
    return counter(made, "ecc_iterations"), counter(made, "ecc_retry_iterations")


def late(made):
    return counter(made, "ecc_late_iterations")


def test_bch_takes_time_for_each_wrong_bit():
    """Of 4 words of 1 KiB and 92 check bytes k bits are wrong: 1 us, in which 14 of them are found,
    and (k - 14) x 70 ns."""
    made = bench(**BCH, **{"errors.retention": "1e-3"})
    k = verdict(made, 0)[2]
    assert COVERED < k < 100
    t = BEFORE + SENSE + h.DECODE + (k - COVERED) * STEP + BEHIND
    made.assert_ready_at(made.nvme(queues.READ, 0), t)
    assert iterations(made) == (k, 0) and counter(made, "corrected_bits") == k
    assert late(made) == k - COVERED


@pytest.mark.parametrize("step", ["4 ns", "0 ns"])
def test_wrong_bits_that_fit_into_the_decoding_of_a_page_take_no_further_time(step):
    made = bench(**BCH | {"ecc.bch_error": step, "errors.retention": "1e-3"})
    assert verdict(made, 0)[2] > 10
    made.assert_ready_at(made.nvme(queues.READ, 0), BEFORE + SENSE + h.DECODE + BEHIND)
    assert late(made) == 0 if step != "0 ns" else late(made) > 0


@pytest.mark.parametrize(("code", "steps"), [(BCH, 4 * 50), (LDPC, 4 * ldpc.ITERATIONS)])
def test_a_decoding_that_is_given_up(code, steps):
    """One bit of ten is wrong: every word takes all steps. The second reading has no wrong bit."""
    made = bench(**code)
    t = BEFORE + SENSE + h.DECODE + (steps - COVERED) * STEP + SENSE + h.DECODE + BEHIND
    made.assert_ready_at(made.nvme(queues.READ, 0), t)
    assert late(made) == steps - COVERED
    assert iterations(made) == (steps, steps) and counter(made, "ecc_decoded_pages") == 2


def test_soft_decision():
    """Hard decision twice, then soft decision, which takes all iterations as well."""
    steps = 4 * ldpc.ITERATIONS
    made = bench(**LDPC, **STAYS, **{"ecc.soft_gain": "2"})
    failed = h.DECODE + (steps - COVERED) * STEP
    t = BEFORE + 2 * (SENSE + failed) + 2 * SENSE + failed
    made.assert_ready_at(made.nvme(queues.READ, 0), t + BEHIND)
    assert iterations(made) == (3 * steps, 2 * steps) and late(made) == 3 * (steps - COVERED)


def decoding_ps(cfg, iterations):
    """The time of a decoding of a flash page with so many iterations, in its mapping units."""
    code = ecc.code(cfg)[0]
    slots = cfg.flash.page_bytes // (code["words"] * code["data_bits"] // 8)
    made = ecc.late_iterations(code, np.int64(iterations // slots))
    return slots * (code["decode"] + made * code["iteration"])


def test_a_page_of_a_preset_that_fails_takes_its_decode_limit():
    """20 us, as papers say of LDPC, and not ecc.decode more; one without wrong bits 5 us."""
    cfg = load_preset("gen4-tlc").replace({"ecc.code": "ldpc", "errors.kind": "model"})
    assert decoding_ps(cfg, 4 * ldpc.ITERATIONS) == cfg.ecc.decode_limit_ps == 20 * h.US
    assert decoding_ps(cfg, 0) == cfg.ecc.decode_ps == 5 * h.US


@pytest.mark.parametrize("retention", ["2e-4", "3e-3"])
def test_ldpc_takes_time_for_each_iteration(retention):
    """At the lower rate the bits of a page are drawn before they are divided among its words."""
    ends = []
    for step in ("70 ns", "0 ns"):
        made = bench(**LDPC | {"ecc.ldpc_iteration": step, "errors.retention": retention})
        row = made.nvme(queues.READ, 0)
        made.run_to()
        ends.append(made.end(row))
    code, (outcome, retries, k) = made.arrays.code[0], verdict(made, 0)
    assert (float(retention) < code["safe"]) == (retention == "2e-4")
    assert (outcome, retries) == (ecc.CORRECTED, 0) and k > 0
    drawn, again = iterations(made)
    assert 0 < drawn <= 4 * ldpc.ITERATIONS + k and again == 0
    assert ends[0] - ends[1] == max(drawn - COVERED, 0) * STEP
    assert (drawn > COVERED) == (retention == "3e-3")
    assert ends[1] == BEFORE + SENSE + h.DECODE + BEHIND


def test_without_a_code_there_are_none():
    made = bench(**{"errors.retention": "1e-3"})
    made.nvme(queues.READ, 0)
    made.run_to()
    assert iterations(made) == (0, 0) and made.arrays.effort.size == 1


def test_a_word_that_the_decoder_fails_takes_all_iterations():
    """The model corrects the page, the decoder does not: of four words, the one with the most wrong
    bits takes all iterations, where nearly all samples of so many wrong bits take fewer."""
    made = bench(**LDPC | {"errors.retention": "3e-3"})
    code, effort = made.arrays.code[0], made.arrays.effort
    rate, full = 3e-3, 0
    for key in range(100):
        key = np.uint64(key)
        words = [np.uint64(ecc.word_key(key, 0, word)) for word in range(4)]
        wrong = [binomial(word, code["bits"], rate) for word in words]
        each = [int(ecc.word_iterations(code, effort, word, k, 0))
                for word, k in zip(words, wrong, strict=True)]  # fmt: skip
        assert ecc.page_iterations(code, effort, key, 0, rate, 0) == sum(each)
        assert code["limit"] // 4 < max(wrong) <= code["limit"]
        worst = wrong.index(max(wrong))
        expected = sum(each) - each[worst] + ldpc.ITERATIONS
        assert ecc.failed_iterations(code, effort, key, 0, rate) == expected
        full += each[worst] >= ldpc.ITERATIONS
    assert full < 50
    beyond = ecc.failed_iterations(code, effort, np.uint64(1), 0, 0.1)
    assert beyond == ecc.page_iterations(code, effort, np.uint64(1), 0, 0.1, 0)


@pytest.mark.parametrize("retries", ["0", "2"])
def test_readings_that_the_decoder_gives_up(retries, rng):
    """One word a page: each of them takes all iterations and is one of ``hard_failures``."""
    made = fresh(TRUSTING | {"ecc__retries": retries}, 1e-2)
    lpns = np.arange(200)
    write(made, rng, lpns)
    status, _ = read(made, lpns)
    failed = made.decode_counts.hard_failures
    assert failed > 20 and made.arrays.code["words"][0] == 1
    assert iterations(made)[1] == failed * ldpc.ITERATIONS


# --- the table


def test_the_table_is_what_the_decoder_makes(counts):
    """Between the points of the table as on them: means of other words with so many wrong bits."""
    cfg = small.config(**MODEL, ecc__code="ldpc", flash__spare="69 B")
    code, table = ecc.code(cfg)[0], codec.effort(cfg)
    kernel = ldpc.get(512, 128)
    bits, step, frames = 8 * kernel.code.word_bytes, int(code["step"]), counts(400, 4000)
    rng = np.random.default_rng(7)
    for wrong in (1, 2, 5, 9, 14, 17, 20, 23, 26, 30, 60):
        places = [rng.choice(bits, wrong, replace=False) for _ in range(frames)]
        mask = np.zeros((frames, bits), np.uint8)
        mask[np.arange(frames)[:, None], places] = 1
        sent = kernel.encode(rng.integers(0, 256, (frames, 512), np.uint8))
        done = kernel.decode(sent ^ np.packbits(mask, axis=1, bitorder="little"))
        made = done.iterations + done.flips
        drawn = [ecc.word_iterations(code, table, np.uint64(key), wrong, 0)
                 for key in range(frames)]  # fmt: skip
        spread = max(made.std(), np.std(drawn))
        chance = 5 * spread * (1 / frames + 1 / ecc.SAMPLES) ** 0.5
        assert abs(np.mean(drawn) - made.mean()) < chance + 0.1 * step, wrong
    assert table[ecc.POINTS - 1].min() == ldpc.ITERATIONS and table[0].max() < 3
    assert len(table) == 2 * ecc.POINTS and not table[ecc.POINTS :].any()


def test_a_word_draws_one_of_the_samples_of_its_point():
    """By numbers of its sequence past those of wrong bits and of soft decision."""
    cfg = small.config(**MODEL, ecc__code="ldpc", flash__spare="69 B")
    code, table = ecc.code(cfg)[0], codec.effort(cfg)
    point = int(np.argmax([len(set(row)) for row in table[: ecc.POINTS].tolist()]))
    wrong = 1 + point * int(code["step"])
    keys = [np.uint64(key) for key in range(4000)]
    drawn = [int(ecc.word_iterations(code, table, key, wrong, 0)) for key in keys]
    row = table[point].tolist()
    assert set(drawn) == set(row) and len(set(row)) > 3
    assert drawn == [row[below(key, ecc.CHANCE + 1, ecc.SAMPLES)] for key in keys]
    assert ecc.CHANCE > soft_reads.UNSURE + (1 << 20) > 1 << 49
    assert abs(np.mean(drawn) - np.mean(row)) < 5 * np.std(row) / 4000**0.5


def test_a_word_without_a_wrong_bit_has_none():
    cfg = small.config(**MODEL, ecc__code="ldpc", flash__spare="69 B")
    code, table = ecc.code(cfg)[0], codec.effort(cfg)
    assert ecc.word_iterations(code, table, np.uint64(1), 0, 0) == 0
    assert ecc.page_iterations(code, table, np.uint64(1), 0, 0.0, 0) == 0


# --- beside the decoder


@pytest.mark.parametrize("floor", [1e-4, 2e-3, 5e-3])
@pytest.mark.parametrize("code", ["bch", "ldpc"])
def test_iterations_are_those_of_the_decoder(code, floor, rng):
    """BCH: the same number; LDPC: but for chance. The decoder has the last readings only."""
    changes = MODEL | {"ecc__code": code, "flash__spare": "69 B", "errors__floor": floor}
    made = small.device(payload=True, ftl__initial="fresh", **changes)
    made.buffer = np.zeros((8 * made.lpns, small.PAGE), np.uint8)
    lpns = np.arange(200)
    write(made, rng, lpns)
    for _ in range(5):
        read(made, lpns)
    found = made.decode_counts
    every, again = iterations(made)
    really = found.iterations + found.flips
    assert really > 0 and (again > 0) == (counter(made, "retry_read_pages") > 0)
    if code == "bch":
        assert every - again == really
    else:
        cfg = small.config(ftl__initial="fresh", **changes)
        spread = max(1.0, codec.effort(cfg).std(1).max())
        assert abs(every - again - really) < 5 * spread * (2 * found.words) ** 0.5
        assert abs(every - again - really) < 0.25 * really
    made.check()
