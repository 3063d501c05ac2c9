"""Wrong bits and the comparator of dies that have a cipher or a randomizer: a wrong bit spoils its
block of the cipher, and the comparator does not process what leaves encrypted for the host."""

import numpy as np
import pytest

from ondie import traces
from ondie.emu.analysis.compare import Run
from ondie.emu.compute import nan_comparator
from ondie.emu.engine.core import payload_log
from ondie.emu.nand import pe_protection, timing
from ondie.emu.paths.base import Options
from tests.faults.test_die_errors import PAGE, device

TRACE = "mlp-fp16"
LAYERS = ({}, {"pe.randomiser": "die"}, {"pe.cipher": "die"})
NAMES = ("no layer", "randomizer", "cipher")
SPECIAL = np.array([0x7F800000, 0xFF800000, 0x7FC00001], np.uint32).view(np.float32)


def started(mode, rate=None, **layers):
    cfg = device(mode, rate, **layers)
    return Run("on_die", cfg, traces.load(TRACE), Options(seed=4), payload=True)


def words(values):
    return values.view(np.uint32)


@pytest.mark.parametrize("layers", LAYERS, ids=NAMES)
@pytest.mark.parametrize("mode", ["none", "nan_comparator"])
def test_infinities_on_their_way_to_the_host(mode, layers):
    """The comparator makes them finite unless the die has a layer: then the host gets them, and
    all other words are as they were stored."""
    run = started(mode, **layers)
    run.step(0)
    payload = run.path.payload
    assert not payload.met
    payload.sent[: len(SPECIAL)] = SPECIAL
    found = payload.delivered
    assert payload.met
    changes = mode == "nan_comparator" and not layers
    assert (words(found)[: len(SPECIAL)] == words(SPECIAL)).all() != changes
    assert nan_comparator.special(found).any() != changes
    assert (words(found)[len(SPECIAL) :] == words(payload.sent)[len(SPECIAL) :]).all()


@pytest.mark.parametrize("layers", LAYERS, ids=NAMES)
def test_infinities_on_their_way_to_a_processing_element(layers):
    """The comparator is in front of the element, so layers make no difference there."""
    run = started("nan_comparator", **layers)
    run.step(0)
    payload = run.path.payload
    (stripes,) = run.path.stripes
    first = payload.stored("m").copy()
    (home,) = payload.homes
    at = payload.at(0, int(home.super_pages(0, stripes.count)[0]))
    page = payload.stores[0].read(payload.page(at, stripes.plane("m", 0)))
    page[: SPECIAL.nbytes] = SPECIAL.view(np.uint8)
    assert nan_comparator.special(payload.stored("m")[: len(SPECIAL)]).all()
    run.step(1)
    after = {name: payload.stored(name) for name in run.path.vectors}
    assert payload.met and np.isfinite(first).all()
    assert all(np.isfinite(values).all() for values in after.values())
    assert (abs(after["m"][: len(SPECIAL)]) > 0.5).all()  # 1 and 1.5, and not 0 or a momentum


def listened(run, step):
    """The wrong bits of a step's reads: (kind of read, super-page, page, mask)."""
    follow, found = run.system.on_log, []

    def listen(log):
        for entry in log[log["what"] == payload_log.LOG_RAW]:
            mask = pe_protection.wrong_bits(
                PAGE, float(entry["rate"]), int(entry["key"]), *run.path.payload.code
            )
            found.append((int(entry["old"]), int(entry["lpn"]), int(entry["n"]), mask))
        follow(log)

    run.system.on_log = listen
    run.step(step)
    run.system.on_log = follow
    return found


@pytest.mark.parametrize(("mode", "rate"), [("none", 3e-5), ("on_die_ecc", 1.1e-3)])
def test_a_wrong_bit_spoils_its_block(mode, rate):
    """Read for the host: with the cipher, the words of each block of 16 bytes with a wrong bit, and
    no others, differ from what is stored; without it, the wrong bits do."""
    for layers in LAYERS:
        run = started(mode, rate, **layers)
        reads = listened(run, 0)
        (stripes,) = run.path.stripes
        stored, sent = run.path.payload.stored("w"), run.path.payload.sent
        expected, bits = np.zeros(len(sent), bool), np.zeros(len(sent), np.uint32)
        for kind, super_page, page, mask in reads:
            if kind == timing.BPR:
                continue
            start, stop = run.path.payload.span(0, super_page, page)
            wrong = words(mask).reshape(-1, 4)
            spoiled = np.repeat(wrong.any(axis=1), 4) if "pe.cipher" in layers else words(mask) != 0
            expected[start:stop] |= spoiled[: stop - start]
            bits[start:stop] ^= words(mask)[: stop - start]
        changed = words(stored) ^ words(sent)
        assert expected.sum() > 3 and ((changed != 0) == expected).all()
        if "pe.cipher" in layers:  # half of the bits, in the mean
            assert 12 < np.bitwise_count(changed[expected]).mean() < 20
        else:
            assert (changed == bits).all()
        assert stripes.count > 1


def test_the_die_updates_what_the_cipher_leaves():
    """Values that the update changes otherwise are in blocks with a wrong bit of one of the states.
    A word of random bits that is much smaller than a value makes no difference; most do, more than
    one in each block."""
    clean, run = started("none"), started("none", 3e-5, **{"pe.cipher": "die"})
    clean.step(0)
    payload = run.path.payload
    (stripes,) = run.path.stripes
    expected = np.zeros(len(payload.sent), bool)
    for kind, super_page, page, mask in listened(run, 0):
        if kind == timing.BPR:
            start, stop = payload.span(0, super_page, page // len(stripes.vectors))
            wrong = np.repeat(words(mask).reshape(-1, 4).any(axis=1), 4)
            expected[start:stop] |= wrong[: stop - start]
    assert expected.sum() > 100
    for name in stripes.vectors:
        changed = words(clean.path.payload.stored(name)) != words(payload.stored(name))
        assert not (changed & ~expected).any(), name
        assert changed.sum() > expected.sum() / 2.5, name


@pytest.mark.parametrize("layers", LAYERS, ids=NAMES)
def test_without_wrong_bits_layers_change_no_bit(layers):
    run = started("nan_comparator", **layers)
    for step in range(2):
        run.step(step)
    assert (words(run.path.payload.stored("w")) == words(run.arithmetic.reference(2))).all()
    assert (words(run.path.delivered()) == words(run.arithmetic.reference(2))).all()


def test_words_that_a_real_code_gives_up_spoil_their_blocks():
    """BCH on the die decodes encrypted bytes: the same words fail, and their wrong bits spoil the
    blocks that they are in."""
    blocks = []
    for layers in ({}, {"pe.cipher": "die"}):
        run = started("on_die_ecc", 1e-3, **{"ecc.code": "bch"} | layers)
        run.step(0)
        payload = run.path.payload
        changed = words(payload.stored("w")) != words(payload.sent)
        changed = changed[: len(changed) // 4 * 4].reshape(-1, 4)
        blocks.append(changed.any(axis=1))
        whole = changed[changed.any(axis=1)].all(axis=1).mean()
        assert whole == 1 if layers else whole < 0.1
    assert blocks[0].sum() > 10 and (blocks[0] == blocks[1]).all()
