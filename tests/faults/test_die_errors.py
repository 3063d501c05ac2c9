"""Wrong bits in the pages that the dies compute with: which are left behind each protection, what
becomes of them, and what the protection costs."""

import math

import numpy as np
import pytest

from ondie import traces
from ondie.emu.analysis.compare import Run, compare
from ondie.emu.compute import nan_comparator as comparator
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import payload_log
from ondie.emu.engine.core import rng as draws
from ondie.emu.nand import bit_errors as inject
from ondie.emu.nand import ecc, timing
from ondie.emu.nand import pe_protection as shield
from ondie.emu.paths.base import Options, Unavailable
from ondie.emu.units import InputError
from ondie.emu.validate import model
from tests.smoke.commands import SMALL
from tests.state.both_ways import printed

PAGE, WORD, LIMIT = 8192, 1024, 10
MODES = ("none", "nan_comparator", "on_die_ecc", "controller_ecc")


def key(ppn, seed=1):
    return np.uint64(draws.page_key(seed, ppn, 0, 0))


def bits(mask):
    return int(np.bitwise_count(mask).sum())


def device(mode, rate=None, **more):
    changes = {"pe.protection": mode}
    if rate is not None:
        changes |= {"errors.kind": "rate", "errors.rate": rate}
    return load_preset("optimstore-r1", SMALL).replace(changes | more)


# --- the comparator


def floats(*patterns):
    return np.array(patterns, np.uint32).view(np.float32)


def test_the_comparator_flips_the_top_of_an_exponent_of_ones():
    """Infinity is 1, a NaN lies from 1 to 2, sign and mantissa stay."""
    values = floats(0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x7F800001)
    assert comparator.special(values).all()
    assert comparator.compare(values) == 5
    wanted = [0x3F800000, 0xBF800000, 0x3FC00000, 0xBFFFFFFF, 0x3F800001]
    assert values.view(np.uint32).tolist() == wanted
    assert values[0] == 1 and values[1] == -1 and (np.abs(values) < 2).all()


def test_the_comparator_lets_all_else_pass(rng):
    """The largest numbers, denormals, zeros, and numbers at random."""
    values = floats(0x7F7FFFFF, 0xFF7FFFFF, 0x7F000000, 1, 0x80000000, 0)
    values = np.concatenate([values, rng.normal(size=1000).astype(np.float32)])
    before = values.tobytes()
    assert comparator.compare(values) == 0 and not comparator.special(values).any()
    assert values.tobytes() == before


# --- which bits are left


def test_a_word_of_ten_wrong_bits_comes_back_and_one_of_eleven_stays():
    mask = np.zeros(PAGE, np.uint8)
    for word, n in enumerate((LIMIT, LIMIT + 1, 0, 1, LIMIT, LIMIT + 1, 40, 2)):
        inject.scatter(mask, 8 * WORD * word, 8 * WORD, key(word), n)
    before = mask.copy()
    assert shield.clear_correctable(mask, WORD, LIMIT) == 11 + 11 + 40
    words, was = mask.reshape(8, WORD), before.reshape(8, WORD)
    for word in range(8):
        kept = word in (1, 5, 6)
        assert (words[word] == (was[word] if kept else 0)).all()


def test_the_array_is_the_same_whatever_stands_behind():
    """What a code leaves are whole code words of what nothing leaves; without a mask as many are
    counted. At 1.2e-3 the mean of a word is 9.8: some words fail, some do not."""
    fails = 0
    for ppn in range(60):
        plain = shield.wrong_bits(PAGE, 1.2e-3, key(ppn))
        coded = shield.wrong_bits(PAGE, 1.2e-3, key(ppn), WORD, LIMIT)
        assert plain.tobytes() == inject.wrong_bits(PAGE, 1.2e-3, key(ppn)).tobytes()
        per_word = np.bitwise_count(plain.reshape(8, WORD)).sum(axis=1)
        wanted = np.where((per_word > LIMIT)[:, None], plain.reshape(8, WORD), 0)
        assert coded.tobytes() == wanted.tobytes()
        fails += int((per_word > LIMIT).sum())
        assert shield.count_wrong_bits(key(ppn), 1.2e-3, PAGE, 0, 0, 1) == (
            bits(plain),
            bits(plain),
        )
        assert shield.count_wrong_bits(key(ppn), 1.2e-3, PAGE, WORD, LIMIT, 1) == (
            bits(plain),
            bits(coded),
        )
    assert 100 < fails < 400


@pytest.mark.one_in(5)
@pytest.mark.parametrize("rate", [1e-7, 1e-5, 1e-3])
def test_counts_are_binomial(rate, counts):
    """Sum over readings: within 4.5 standard deviations; each seed has its own."""
    n = counts(4000, 100_000)
    totals = []
    for seed in (1, 2):
        keys = np.array([[key(i, seed) for i in range(n)]])
        ((raw, left),) = shield.wrong_bits_by_step(keys, rate, PAGE, 0, 0, 1)
        again = shield.wrong_bits_by_step(keys, rate, PAGE, 0, 0, 1)
        assert raw == left and again.tolist() == [[raw, left]]
        mean = n * 8 * PAGE * rate
        assert abs(raw - mean) < 4.5 * math.sqrt(mean)
        totals.append(raw)
    assert totals[0] != totals[1]


def test_exposure_without_a_code_is_as_many_flips(counts):
    n = counts(2000, 50_000)
    keys = np.array([[key(i) for i in range(n)]])
    ((raw, left),) = shield.wrong_bits_by_step(keys, 1e-8, PAGE, 0, 0, 1000)
    mean = n * 8 * PAGE * 1e-5
    assert raw == left and abs(raw - mean) < 4.5 * math.sqrt(mean)
    assert bits(shield.wrong_bits(PAGE, 1e-3, key(5), exposure=10**9)) > 0.45 * 8 * PAGE


def test_exposure_behind_a_code_is_as_many_code_words(counts):
    """Not a higher rate: of 300 x 8 words of a page at 3e-4 (mean 2.5) each fails as often as one
    does, with the bits of one. A rate 300 times as high would leave no word whole."""
    n, rate, exposure = counts(1500, 20_000), 3e-4, 300
    fails = ecc.codeword_failure(8 * WORD, LIMIT, rate)
    masks = [shield.wrong_bits(PAGE, rate, key(i), WORD, LIMIT, exposure) for i in range(n)]
    words = np.array([np.bitwise_count(m.reshape(8, WORD)).sum(axis=1) for m in masks])
    mean = n * 8 * exposure * fails
    hit = words[words > 0]
    assert mean > 80 and abs(len(hit) - mean) < 4.5 * math.sqrt(mean)
    assert hit.min() > LIMIT and np.median(hit) <= LIMIT + 2
    for i in range(40):
        raw, left = shield.count_wrong_bits(key(i), rate, PAGE, WORD, LIMIT, exposure)
        assert left == words[i].sum()
        assert abs(raw - exposure * 8 * PAGE * rate) < 6 * math.sqrt(exposure * 8 * PAGE * rate)


def test_given_that_a_word_fails_its_bits_are_distributed_so():
    """Mean of X given X > 10, X binomial, from its masses."""
    n, p = 8 * WORD, 3e-4
    k = np.arange(LIMIT + 1, 200)
    mass = np.exp([ecc.log_mass(n, i, p) for i in k])
    mean = (k * mass).sum() / mass.sum()
    spread = math.sqrt((k**2 * mass).sum() / mass.sum() - mean**2)
    found = np.array([shield.draw_uncorrectable(key(i), n, LIMIT, p) for i in range(4000)])
    assert found.min() == LIMIT + 1
    assert abs(found.mean() - mean) < 4.5 * spread / math.sqrt(len(found))


PLAIN = """
import numpy as np
from ondie.emu.engine.core import rng as draws
from ondie.emu.nand import pe_protection as shield
for rate, word, limit, exposure in ((1e-4, 0, 0, 1), (1.2e-3, 1024, 10, 1), (3e-4, 1024, 10, 900)):
    for ppn in range(3):
        key = np.uint64(draws.page_key(1, ppn, 0, 0))
        mask = np.zeros(8192, np.uint8)
        raw, left = shield.fill_mask(mask, key, rate, word, limit, exposure)
        print(int(raw), int(left), np.flatnonzero(mask).tolist()[:40])
"""


def test_interpreted_it_is_the_same():
    outputs = printed(PLAIN)
    assert outputs[0] == outputs[1] and outputs[0].count("\n") == 9


# --- what becomes of them


def stored(run):
    return {name: run.path.payload.stored(name).copy() for name in run.path.vectors}


@pytest.mark.parametrize(
    "mode, rate", [("none", 3e-5), ("nan_comparator", 2e-4), ("on_die_ecc", 1.1e-3)]
)
def test_flips_stay_in_what_the_die_programs(mode, rate):
    """Three steps: what the pages hold after each is the kernel's result, outside the emulator, on
    what they held before with the wrong bits that the log names. So they add up."""
    trace = traces.load("mlp-fp16")
    cfg = device(mode, rate)
    run = Run("on_die", cfg, trace, Options(seed=4), payload=True)
    follow, raw = run.system.on_log, []

    def listen(log):
        raw.extend(entry.copy() for entry in log if entry["what"] == payload_log.LOG_RAW)
        follow(log)

    run.system.on_log = listen
    (stripes,) = run.path.stripes
    touched = set()
    for step in range(3):
        before = stored(run)
        raw.clear()
        run.step(step)
        for entry in raw:
            if entry["old"] != timing.BPR:
                continue
            name = stripes.vectors[int(entry["n"]) % len(stripes.vectors)]
            group = int(entry["n"]) // len(stripes.vectors)
            first, last = stripes.span(int(entry["lpn"]), group)
            mask = shield.wrong_bits(PAGE, rate, int(entry["key"]), *shield.code(cfg))
            values = before[name][first:last].view(np.uint8)
            values ^= mask[: len(values)]
            touched |= {name} if mask[: len(values)].any() else set()
        if mode == "nan_comparator":
            for values in before.values():
                comparator.compare(values)
        with np.errstate(all="ignore"):
            run.arithmetic.apply(
                run.arithmetic.coefficients(step), 0, trace.n_params, before, trace.gradient(step)
            )
        after = stored(run)
        for name in stripes.vectors:
            same = before[name].view(np.uint32) == after[name].view(np.uint32)
            assert (same | (np.isnan(before[name]) & np.isnan(after[name]))).all(), (step, name)
    assert touched == set(stripes.vectors)


def result(mode, rate, steps=2, **more):
    cfg = device(mode, rate, **more)
    (found,) = compare(
        traces.load("mlp-fp16"), cfg, paths=["on_die"], steps=steps, swing=False,
        options=Options(seed=2),
    ).results  # fmt: skip
    return found


def test_each_mode_leaves_what_it_says():
    """At 1e-4 a page of 8 KiB has 6.6 wrong bits, a code word of 1 KiB 0.8: nothing is left behind
    10 or 50 correctable bits. At 1.2e-3 the die's code fails, the controller's does not."""
    for rate in (1e-4, 1.2e-3):
        found = {mode: result(mode, rate) for mode in MODES}
        counts = {mode: r.ledger.totals.counters for mode, r in found.items()}
        wrong = counts["none"]["bare_wrong_bits"]
        assert wrong > 100 and counts["none"]["bare_corrected_bits"] == 0
        for mode in MODES:
            c = counts[mode]
            assert c["bare_wrong_bits"] + c["bare_corrected_bits"] == wrong
        assert counts["nan_comparator"]["bare_wrong_bits"] == wrong
        assert counts["controller_ecc"]["bare_wrong_bits"] == 0
        assert (counts["on_die_ecc"]["bare_wrong_bits"] > 0) == (rate > 1e-3)
        for mode in ("on_die_ecc", "controller_ecc"):
            whole = counts[mode]["bare_wrong_bits"] == 0
            assert (found[mode].weights.equal_bits == found[mode].weights.elements) == whole
        assert found["none"].weights.equal_bits < found["none"].weights.elements


# --- what it costs


def alone(mode, dispatch="free", rate=None, params=2000):
    """One stripe on one die: (simulated seconds of the update, its ledger, its energy, cfg)."""
    cfg = device(mode, rate, **{"pe.dispatch": dispatch})
    (found,) = compare(model("adam", params), cfg, paths=["on_die"], swing=False).results
    return found, cfg


@pytest.mark.parametrize("dispatch", ["lockstep", "free", "double_buffered"])
def test_one_stripe_takes_longer_by_what_the_table_says(dispatch):
    """On the die: three pages of 8 KiB through 6.4 GB/s, decoded and encoded. In the controller:
    three pages out, decoded, back behind a command of three planes, out again and encoded."""
    plain, cfg = alone("none", dispatch)
    for mode in MODES[1:]:
        found, _ = alone(mode, dispatch)
        more = found.ledger.update_s - plain.ledger.update_s
        page = PAGE / cfg.flash.bus_bytes_per_s
        wanted = {
            "nan_comparator": 0.0,
            "on_die_ecc": 2 * 3 * PAGE / 6.4e9,
            "controller_ecc": 9 * page + 3 * cfg.flash.t_command_ps / 1e12
            + 3 * (cfg.ecc.decode_ps + cfg.ecc.encode_ps) / 1e12,
        }  # fmt: skip
        assert more == pytest.approx(wanted[mode], rel=1e-6, abs=3e-12)
        up = found.ledger.phases_s["weights_up"] - plain.ledger.phases_s["weights_up"]
        wanted_up = {"on_die_ecc": PAGE / 6.4e9, "controller_ecc": cfg.ecc.decode_ps / 1e12}
        assert up == pytest.approx(wanted_up.get(mode, 0.0), rel=1e-6, abs=3e-12)


def test_the_controllers_decoder_takes_longer_for_errors():
    clean, cfg = alone("controller_ecc")
    found, _ = alone("controller_ecc", rate=1e-3)
    c = found.ledger.totals.counters
    most = PAGE // cfg.ecc.codeword_bytes * cfg.ecc.correctable_bits
    slope = (cfg.ecc.decode_limit_ps - cfg.ecc.decode_ps) / most
    whole = found.ledger.step_s - clean.ledger.step_s
    assert c["bare_corrected_bits"] > 100
    assert whole == pytest.approx(c["bare_corrected_bits"] * slope / 1e12, rel=0.01)


def test_energy_and_traffic():
    """0.9 pJ for each bit that the die's code sees: three pages read and programmed, one read for
    the host. The controller's way is paid on the channel and in its ECC."""
    plain, _ = alone("none")
    coded, _ = alone("on_die_ecc")
    sent, cfg = alone("controller_ecc")
    joules = {name: part[1] for name, part in coded.energy.by_component.items()}
    assert joules["die ECC"] == pytest.approx(7 * 8 * PAGE * 0.9e-12)
    assert "die ECC" not in plain.energy.by_component
    c = sent.ledger.totals.counters
    assert [c[f"pe_{x}_pages"] for x in ("decoded", "encoded", "returned")] == [4, 3, 3]
    out, back = (sent.ledger.totals.bytes_by[f"channels {x}"] for x in ("out", "in"))
    was_out, was_in = (plain.ledger.totals.bytes_by[f"channels {x}"] for x in ("out", "in"))
    assert (out - was_out, back - was_in) == (6 * PAGE, 3 * PAGE)
    more = sent.energy.by_component["channels"][1] - plain.energy.by_component["channels"][1]
    assert more == pytest.approx(9 * 8 * PAGE * 5.8e-12)
    assert sent.energy.by_component["ECC"][1] == pytest.approx(7 * 8 * PAGE * 13e-12)
    assert c["ecc_decoded_pages"] == 4 and c["ecc_encoded_pages"] == 3


@pytest.mark.parametrize("dispatch", ["lockstep", "free", "double_buffered"])
@pytest.mark.parametrize("mode", ["on_die_ecc", "controller_ecc"])
def test_the_closed_form_knows_it(mode, dispatch, counts):
    """64 dies, 61 stripes each. Lockstep: pages of one die cross the channel while another's PE
    works, which the closed form does not see."""
    cfg = load_preset("optimstore-r1").replace({"pe.protection": mode, "pe.dispatch": dispatch})
    trace = model("adam", counts(8_000_000, 124_000_000))
    (found,) = compare(trace, cfg, paths=["on_die"], swing=False).results
    overlap = 0.06 if (mode, dispatch) == ("controller_ecc", "lockstep") else 0.03
    assert found.ledger.update_s == pytest.approx(found.bound.seconds, rel=overlap)


# --- bad input


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"pe.protection": "ecc"}, "on_die_ecc"),
        ({"errors.kind": "rate", "errors.rate": "0.6"}, "0.5"),
        ({"errors.kind": "rates"}, "nearest: rate"),
        ({"errors.exposure": "0"}, "must be at least 1"),
        ({"pe.protection": "on_die_ecc", "pe.ecc_codeword": "3 KiB"}, "pe.ecc_codeword"),
        (
            {"pe.protection": "on_die_ecc", "pe.ecc_correctable_bits": "0"},
            "must be at least 1 and less",
        ),
        ({"pe.protection": "controller_ecc", "ecc.codeword": "3 KiB"}, "ecc.codeword"),
    ],
)
def test_what_cannot_be(changes, words):
    with pytest.raises(InputError, match=words):
        load_preset("optimstore-r1").replace(changes)


def test_the_controller_decodes_whole_pages():
    cfg = device("controller_ecc")
    options = Options(weights_up="fp16")
    with pytest.raises(Unavailable, match="controller_ecc: the controller decodes whole pages"):
        compare(model("adam", 2000), cfg, paths=["on_die"], swing=False, options=options)
