"""Real codes in a drive with payload: the bytes of a read are what the decoder makes of the stored
code words with the engine's wrong bits; a read that it cannot correct fails, and none is wrong.
"""

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.engine.core.rng import uniform
from ondie.emu.nand import codec, ecc
from ondie.emu.nand.codec import Decoder, PageRead
from ondie.emu.nand.soft_reads import soft_messages, soft_model
from ondie.emu.nvme.command import COMMAND, READ, WRITE
from ondie.emu.validate.ldpc_curve import intervals
from ondie.kernels import bch, ldpc
from tests.faults.test_media_errors import MEDIA_ERROR, MODEL, counter, read, write
from tests.serve import nbd_client as nbd
from tests.serve import served
from tests.state import small
from tests.state.written import config

BCH = MODEL | {"ecc__code": "bch", "flash__spare": "69 B"}
LDPC = BCH | {"ecc__code": "ldpc"}
SOFT = LDPC | {"ecc__soft_reads": 2, "ecc__soft_gain": 1.5, "ecc__soft_decode": "40 us"}


def device(changes, **more):
    made = small.device(payload=True, **(changes | more))
    made.buffer = np.zeros((8 * made.lpns, small.PAGE), np.uint8)
    return made


def fresh(changes, floor):
    return device(changes, ftl__initial="fresh", errors__floor=floor)


def wrong_bits(got, data):
    return np.bitwise_count(got ^ data).sum(axis=1, dtype=np.int64)


@pytest.mark.parametrize("changes", [BCH, LDPC], ids=["bch", "ldpc"])
def test_a_segment_that_is_missing_fails_its_reads(tmp_path, rng, changes):
    """As without a real code: the reads fail, and the drive stays online."""
    cfg = small.config(**changes, ftl__initial="fresh", errors__floor=1e-3)
    commands = np.zeros(8, COMMAND)
    commands["op"], commands["size"] = WRITE, small.PAGE
    commands["offset"] = commands["data"] = np.arange(8) * small.PAGE
    with Drive(cfg, payload=True, store=tmp_path / "s") as drive:
        drive.buffer = rng.integers(0, 256, (8, small.PAGE), np.uint8)
        drive.submit(commands)
        drive.run_until(None)
        assert not drive.completions()["status"].any()
    with Drive(cfg, payload=True, store=tmp_path / "s") as drive:
        for path in (tmp_path / "s").glob("segment-*"):
            path.unlink()
        drive.buffer = np.zeros((8, small.PAGE), np.uint8)
        commands["op"], commands["arrival"] = READ, drive.now
        drive.submit(commands)
        drive.run_until(None)
        assert (drive.completions()["status"] == MEDIA_ERROR).all()
        assert drive.defect is None


# --- what the code makes of a read


def test_bch_corrects_what_the_model_says(rng):
    """Bounded distance: the code and the model agree on every page, and on every wrong bit."""
    made = fresh(BCH, 5e-3)
    lpns = np.arange(200)
    data = write(made, rng, lpns)
    status, got = read(made, lpns)
    found = made.decode_counts
    assert set(status) == {0, MEDIA_ERROR}
    assert not wrong_bits(got, data)[status == 0].any() and wrong_bits(got, data)[status != 0].all()
    assert found.pages == 200 and found.fails_beside_model == found.corrects_beside_model == 0
    assert found.failed_pages == (status != 0).sum() == counter(made, "media_errors")
    assert found.failed_pages == counter(made, "uncorrectable_pages")
    assert found.miscorrected_words == 0 and found.wrong_bits > counter(made, "corrected_bits") > 0
    assert all(made.store.intact(int(made.arrays.l2p[0, lpn]) - 1) for lpn in lpns)
    made.check()


def test_every_wrong_bit_that_the_engine_counts_is_flipped(rng):
    made = fresh(BCH, 1e-3)
    lpns = np.arange(200)
    data = write(made, rng, lpns)
    status, got = read(made, lpns)
    assert not status.any() and (got == data).all()
    found = made.decode_counts
    assert found.wrong_bits == counter(made, "corrected_bits")
    bits = 8 * (512 + bch.get(13, 20, 512).check_bytes)
    assert abs(found.wrong_bits - 200 * bits * 1e-3) < 5 * (200 * bits * 1e-3) ** 0.5
    made.check()


def test_ldpc_has_the_last_word(rng):
    """The status of a read is the decoder's, not the model's; where they differ is counted."""
    made = fresh(LDPC, 8e-3)
    lpns = np.arange(200)
    data = write(made, rng, lpns)
    status, got = read(made, lpns)
    failed, found = status != 0, made.decode_counts
    assert 0 < failed.sum() < 200
    assert not wrong_bits(got, data)[~failed].any() and wrong_bits(got, data)[failed].all()
    assert found.failed_pages == failed.sum() == counter(made, "media_errors")
    assert counter(made, "uncorrectable_pages") == failed.sum()
    assert found.corrects_beside_model > 100 and found.iterations > 200 and found.flips > 0
    made.check()


def test_soft_decision_corrects_more(rng):
    """The same pages with two more readings: each bit is sure or not, and most words come back."""
    made = fresh(SOFT, 1.4e-2)
    hard = fresh(LDPC, 1.4e-2)
    lpns = np.arange(120)
    failed = []
    for one in (made, hard):
        data = write(one, rng, lpns)
        status, got = read(one, lpns)
        assert not wrong_bits(got, data)[status == 0].any()
        failed.append(int((status != 0).sum()))
    assert failed[0] < 30 and failed[1] > 90
    assert made.decode_counts.soft_words > 100 and hard.decode_counts.soft_words == 0


TRUSTING = SOFT | {"ecc__correctable_bits": 70, "ecc__retry_gain": 1}
"""The model's limit is above what the code corrects: at 1e-2 it hardly gives up any page."""


def counters(made):
    names = ("retried_pages", "retry_read_pages", "soft_pages", "soft_read_pages", "array_reads",
             "read_pages", "ecc_decoded_pages", "media_errors")  # fmt: skip
    return {name: counter(made, name) for name in names}


@pytest.mark.parametrize("retries", [0, 2])
def test_readings_go_on_when_the_decoder_fails_below_the_limit(rng, retries):
    """The model corrects every page by the first reading; many words are too much for the decoder.
    It asks for retries, then soft reads, and their counters are those of the readings made."""
    made, lpns = fresh(TRUSTING | {"ecc__retries": retries}, 1e-2), np.arange(200)
    data = write(made, rng, lpns)
    before = counters(made)
    status, got = read(made, lpns)
    found = made.decode_counts
    now = {name: value - before[name] for name, value in counters(made).items()}
    soft, retried = now["soft_pages"], now["retry_read_pages"]
    assert soft > 0
    assert found.hard_failures == retried + soft
    assert now["soft_read_pages"] == 2 * soft
    if retries:  # each asks about its own wrong bits: a retry corrects a third of the pages
        assert soft < 0.55 * now["retried_pages"] and retried > retries * soft
    else:
        assert retried == 0 and soft == now["retried_pages"]
    assert now["array_reads"] == now["read_pages"] + retried + 2 * soft
    assert now["ecc_decoded_pages"] == now["read_pages"] + retried + soft
    assert found.failed_pages == now["media_errors"] == (status != 0).sum() < soft
    assert not wrong_bits(got, data)[status == 0].any() and wrong_bits(got, data)[status != 0].all()
    made.check()


def test_a_failed_hard_decoding_takes_the_time_of_further_readings(rng):
    """One page after the other: a read with soft decision takes longer than one without by two
    readings and a decoding."""
    made, lpns = fresh(TRUSTING | {"ecc__retries": 0}, 1e-2), np.arange(60)
    write(made, rng, lpns)
    took = {0: [], 1: []}
    for lpn in lpns:
        soft, start = counter(made, "soft_pages"), made.now
        read(made, np.array([lpn]))
        took[counter(made, "soft_pages") - soft].append(made.now - start)
    assert took[0] and took[1]
    sense = int(made.arrays.page_ps[0].min())
    assert min(took[1]) > min(took[0]) + 2 * sense


def test_whether_a_word_is_corrected_depends_on_its_wrong_bits(rng):
    """The engine asks about words of zeros, before it has the bytes: with random data as many
    fail, but for very few."""
    code = ldpc.get(512, 128)
    bits = 8 * code.code.word_bytes
    mask = np.zeros((600, bits), np.uint8)
    for row in mask:
        row[rng.choice(bits, 42, replace=False)] = 1
    hit = np.packbits(mask, axis=1, bitorder="little")
    zeros, data = np.zeros((600, 512), np.uint8), rng.integers(0, 256, (600, 512), np.uint8)
    failed = [code.decode(code.encode(words) ^ hit).outcome != ldpc.CORRECT
              for words in (zeros, data)]  # fmt: skip
    assert 100 < failed[0].sum() < 500 and (failed[0] != failed[1]).sum() <= 6


@pytest.mark.parametrize("rate", [1e-3, 5e-3, 1.2e-2, 3e-2])
def test_soft_readings_are_those_of_the_measured_curve(rate):
    """Another program for the same channel: intervals of three reads with maximal information."""
    found = soft_model(rate)
    zero, messages = intervals(rate, 3)
    assert found.right == pytest.approx(zero[1] / (zero[0] + zero[1]), rel=0.05)
    assert found.wrong == pytest.approx(zero[2] / (zero[2] + zero[3]), rel=0.05)
    assert abs(found.weak - int(messages[1])) <= 1


def test_a_page_that_hard_decision_corrects_has_no_further_readings(rng):
    page = rng.integers(0, 256, 512, np.uint8)
    for outcome in (ecc.CORRECTED, ecc.SOFT, ecc.UNCORRECTABLE):
        decoder = Decoder(small.config(**SOFT, errors__floor=5e-3))
        decoder.decode([PageRead(page, 7, 5e-3, 0, outcome)])
        assert decoder.counts.words == 1
        assert decoder.counts.soft_words == (outcome != ecc.CORRECTED)


def test_words_at_any_place_and_level_have_their_own_unsure_bits(rng):
    """Bit i of a word depends on its key and number 2**49 + i of its sequence, past those that
    place its wrong bits."""
    read = rng.integers(0, 256, (4, 64), np.uint8)
    mask = (rng.random((4, 64)) < 0.2).astype(np.uint8)
    keys = [ecc.word_key(np.uint64(9), level, word) for level in (0, 1) for word in (0, 1)]
    model = soft_model(1e-2)
    found = soft_messages(read, mask, np.array(keys, np.uint64), np.full(4, 1e-2))
    unsure = set()
    for one, wrong, key, messages in zip(read, mask, keys, found, strict=True):
        hits = np.unpackbits(wrong, bitorder="little")
        drawn = np.array([uniform(np.uint64(key), (1 << 49) + i) for i in range(512)])
        weak = drawn < np.where(hits, model.wrong, model.right)
        signs = 1 - 2 * np.unpackbits(one, bitorder="little").astype(int)
        assert (messages == signs * np.where(weak, model.weak, 16)).all()
        unsure.add(weak.tobytes())
    assert len(unsure) == 4


def test_each_word_and_level_has_its_own_draws(rng, monkeypatch):
    keys: list[int] = []

    def recorded(read, mask, of_words, rates):
        keys.extend(of_words.tolist())
        return soft_messages(read, mask, of_words, rates)

    monkeypatch.setattr(codec, "soft_messages", recorded)
    cfg = small.config(**SOFT | {"ecc__codeword": "128 B", "flash__spare": "200 B"},
                       errors__floor=1e-2)  # fmt: skip
    page = rng.integers(0, 256, 512, np.uint8)
    Decoder(cfg).decode([PageRead(page, 7, 5e-2, level, ecc.SOFT) for level in (0, 1)])
    places = [(level, word) for level in (0, 1) for word in range(4)]
    assert keys == [int(ecc.word_key(np.uint64(7), *place)) for place in places]


# --- words that are not decoded


def test_words_without_a_wrong_bit_decode_to_themselves(rng):
    """Decoding all of them makes no difference; the rest of a page may be clean."""
    words = BCH | {"ecc__codeword": "128 B", "ecc__correctable_bits": 3}
    results = []
    for every in (False, True):
        made = fresh(words, 1e-3)
        made._decoder.decode_all = every
        data = write(made, np.random.default_rng(3), np.arange(200))
        status, got = read(made, np.arange(200))
        assert ((got == data).all(axis=1) == (status == 0)).all()
        results.append((status.tolist(), got.tobytes(), made.decode_counts))
    some, every = results
    assert some[:2] == every[:2]
    assert some[2]._replace(words=0) == every[2]._replace(words=0)
    assert some[2].words < every[2].words == 4 * every[2].pages
    pages = rng.integers(0, 256, (50, 512), np.uint8)
    decoder = Decoder(small.config(**words, errors__floor=1e-3))
    decoder.decode_all = True
    clean = decoder.decode([PageRead(page, 7, 0.0, 0, ecc.CORRECTED) for page in pages])
    assert all((one.data == page).all() and not one.failed
               for one, page in zip(clean, pages, strict=True))  # fmt: skip
    assert decoder.counts.words == 200 and decoder.counts.wrong_bits == 0


@pytest.mark.parametrize("code", [BCH, LDPC])
def test_the_size_of_pieces_makes_no_difference(code, rng, monkeypatch):
    pages = rng.integers(0, 256, (40, 512), np.uint8)
    reads = [PageRead(page, 100 + i, 9e-3, 0, ecc.CORRECTED) for i, page in enumerate(pages)]
    found = []
    for piece in (1, 7, 32):
        monkeypatch.setattr("ondie.emu.nand.codec.PIECE", piece)
        decoder = Decoder(small.config(**code))
        found.append(([page.data.tobytes() for page in decoder.decode(reads)], decoder.counts))
    assert found[0] == found[1] == found[2] and found[0][1].failed_words > 0


# --- over the life of a drive


@pytest.mark.parametrize("code", [BCH, LDPC, SOFT])
@pytest.mark.parametrize("mode", ["off", "read_write"])
def test_no_read_has_wrong_bytes(code, mode, rng, counts):
    """Overwrites with collection and reads of one to eight pages, also from the cache, at a rate
    at which some pages cannot be corrected: EIO or the bytes of the last write."""
    cache = {} if mode == "off" else {"cache__mode": mode, "cache__capacity": "32 KiB"}
    floor = 4e-3 if code is BCH else 1.2e-2 if code is SOFT else 6e-3
    made = device(code, errors__floor=floor, **cache)
    span = made.lpns
    held = np.zeros((span, small.PAGE), np.uint8)
    order = rng.permutation(span)
    held[order] = write(made, rng, order)
    failed = 0
    for _ in range(counts(5, 30)):
        some = rng.permutation(span)[: span // 3]
        held[some] = write(made, rng, some)
        for pages in (1, 8):
            lpns = rng.integers(0, span - pages, 60)
            status, got = read(made, lpns, pages)
            good = status == 0
            wanted = np.stack([held[lpn : lpn + pages].reshape(-1) for lpn in lpns])
            assert (got[good] == wanted[good]).all()
            failed += int((~good).sum())
        made.check()
    found = made.decode_counts
    assert failed > 0 and found.miscorrected_words == 0
    assert counter(made, "gc_program_pages") > 0
    if code is BCH:
        assert found.fails_beside_model == found.corrects_beside_model == 0


def test_a_page_that_cannot_be_corrected_is_not_cached(rng):
    """Reads fill the cache with what was decoded; nothing is served that was not."""
    made = device(LDPC, errors__floor=8e-3, ftl__initial="fresh", cache__mode="read",
                  cache__capacity="256 KiB")  # fmt: skip
    lpns = np.arange(60)
    write(made, rng, lpns)
    assert all(made.cached(int(lpn)) is None for lpn in lpns)
    failed, _ = read(made, lpns)
    cached = np.array([made.cached(int(lpn)) is not None for lpn in lpns])
    assert (failed != 0).any() and (cached == (failed == 0)).all()


@pytest.mark.parametrize("code", [BCH, LDPC])
def test_the_size_of_steps_makes_no_difference(code, rng):
    """The same reads in one run, and in runs of a few events: other batches of the decoder."""
    found = []
    for events in (None, 7, 150):
        made = fresh(code, 6e-3)
        lpns = np.arange(160)
        data = write(made, np.random.default_rng(5), lpns)
        made.submit(small.commands([(READ, int(lpn), 1) for lpn in lpns], made.now, slot=0))
        while made.outstanding:
            made.run_until(None, max_events=events)
        done = made.completions()
        got = made.buffer[: len(lpns)].copy()
        failed = done["status"][np.argsort(done["tag"])] != 0
        assert failed.any() and ((got != data).any(axis=1) == failed).all()
        found.append((done.tobytes(), got.tobytes(), made.decode_counts))
    assert found[0] == found[1] == found[2]


OLD = {
    "ecc__codeword": "1 KiB", "ecc__correctable_bits": 40, "ecc__soft_reads": 0,
    "flash__spare": "552 B", "ecc__code": "bch", "errors__kind": "model", "errors__tlc": 1,
    "errors__pslc": 1, "ftl__initial": "fresh", "errors__initial_cycles": 3000,
    "ecc__decode_limit": "20 us", "ecc__retries": 2, "ecc__retry_gain": 0.5,
    "errors__wear": 1e-10, "errors__wear_exponent": 2.05, "errors__retention": 0,
    "errors__disturb": 0,
}  # fmt: skip


@pytest.mark.parametrize("code", ["bch", "ldpc"])
def test_verify_over_nbd_at_the_end_of_life(tmp_path, code, rng):
    """As fio's verify: what was written is read again, corrected and counted."""
    changes = OLD | {"ecc__code": code, "errors__floor": 1e-3}
    with served.drive(tmp_path, **changes) as (server, path), nbd.client(path) as one:
        size = 32 * 4096
        data = rng.integers(0, 256, size, np.uint8).tobytes()
        for at in range(0, size, 16384):
            one.write(at, data[at : at + 16384])
        assert b"".join(one.read(at, 8192) for at in range(0, size, 8192)) == data
        found = server.drive.decode_counts
        assert found.pages >= 32 and found.wrong_bits > 1000 and found.failed_pages == 0
        assert counter(server.drive, "media_errors") == 0


@pytest.mark.parametrize("code", ["bch", "ldpc"])
def test_past_the_limit_nbd_has_eio(tmp_path, code, rng):
    changes = OLD | {"ecc__code": code, "errors__floor": 4e-3 if code == "bch" else 9e-3}
    with served.drive(tmp_path, **changes) as (server, path), nbd.client(path) as one:
        data = rng.integers(0, 256, 32 * 4096, np.uint8).tobytes()
        for at in range(0, len(data), 16384):
            one.write(at, data[at : at + 16384])
        failed = 0
        for at in range(0, len(data), 4096):
            answer = one.ask(nbd.READ, at, 4096)
            assert answer.error in (0, nbd.EIO)
            assert answer.error or answer.data == data[at : at + 4096]
            failed += answer.error != 0
        assert failed > 3 and server.drive.decode_counts.failed_pages == failed
        assert counter(server.drive, "media_errors") == failed


def test_a_drive_without_wrong_bits_decodes_nothing(rng):
    made = fresh(BCH, 0.0)
    data = write(made, rng, np.arange(50))
    status, got = read(made, np.arange(50))
    assert not status.any() and (got == data).all() and made.decode_counts.pages == 0
    assert small.device(payload=True).decode_counts is None


def test_a_command_over_mapping_units(rng):
    """A page of two mapping units of two code words each; the command has four units."""
    cfg = config(**OLD, errors__floor=1e-3, ftl__mapping_unit="2 KiB")
    drive = Drive(cfg, payload=True)
    drive.buffer = np.frombuffer(rng.bytes(8192), np.uint8).copy()
    sent = drive.buffer.copy()
    command = np.zeros(1, COMMAND)
    command["op"], command["size"] = WRITE, 8192
    drive.submit(command)
    drive.run_until(None)
    drive.buffer[:] = 0
    command["op"], command["arrival"] = READ, drive.now
    drive.submit(command)
    drive.run_until(None)
    assert not drive.completions()["status"].any()
    assert (drive.buffer == sent).all() and drive.decode_counts.pages == 4
