"""Pages that are encrypted, randomized, updated on a die and read by the controller: do the bytes
say what the model predicts, and does a wrong die change that?"""

import json

import numpy as np
import pytest

from ondie.emu.compute.randomiser import Randomiser
from ondie.emu.compute.xts import Xts
from ondie.emu.config.config import load_preset
from ondie.emu.nand import pe_protection
from ondie.emu.nand.page_store import CODED, DIE_CODED, UNCODED
from ondie.emu.studies import on_die_bytes as study
from ondie.emu.studies import page_layers
from ondie.emu.studies.on_die_bytes import AT_REGISTERS, CODES, PROTECTIONS, Case
from ondie.emu.studies.page_layers import Coding, PageNumber, layers_of
from ondie.emu.studies.page_path import PagePath
from ondie.emu.units import InputError
from ondie.kernels import get
from tests.smoke.commands import files, here, refused

DRIVE = load_preset("optimstore-r1")
KEY = bytes(range(64))
BOTH = Case("die", "die", "nan_comparator", "bch")


@pytest.fixture(scope="module")
def cells():
    return list(study.run_study(DRIVE))


def test_every_cell_says_what_the_model_predicts(cells):
    assert len(cells) == 3 * 3 * 5 * 3 and len({cell.case for cell in cells}) == len(cells)
    for cell in cells:
        assert cell.agrees, cell


def test_cells_that_are_right(cells):
    """Written out: the dies know all layers, and no comparator changes stored bytes."""
    for cell in cells:
        case = cell.case
        known = case.cipher in ("none", "die") and case.randomiser in ("none", "die")
        plain = (case.cipher, case.randomiser) == ("none", "none")
        assert cell.found.right == (plain if case.protection == AT_REGISTERS else known)
        if not known:
            assert cell.wrong_share > 0.999
        elif not cell.found.right:
            assert 0.002 < cell.wrong_share < 0.1


def test_the_code_on_the_die_notices_what_it_cannot_correct(rng):
    """Words with three wrong bits, of which the code corrects two: it takes one in eight for a word
    with two others, and the CRC shows it. Study and drive have the same code."""
    changes = {"pe.protection": "on_die_ecc", "ecc.code": "bch", "pe.ecc_correctable_bits": 2}
    cfg = DRIVE.replace(changes)
    code, words = page_layers.die_code(cfg), 400
    stored = rng.integers(0, 256, words * 1024, np.uint8)
    spare = code.encode(stored)
    assert spare.size == words * pe_protection.check_bytes(cfg)
    wrong = np.zeros((words, 8 * 1024), np.uint8)
    for word in wrong:
        word[rng.choice(8 * 1024, 3, replace=False)] = 1
    mask = np.packbits(wrong).reshape(-1)
    read, failed = code.decode(stored ^ mask, spare, mask)
    assert failed == words and (read == stored ^ mask).all()
    wrong[:, : 8 * 1024 // 2] = 0  # at most two remain in about half of the words
    mask, few = np.packbits(wrong).reshape(-1), wrong.sum(1) <= 2
    read, failed = code.decode(stored ^ mask, spare, mask)
    right = (read == stored).reshape(words, -1).all(1)
    assert 0 < failed == int((~few).sum()) < words and (right == few).all()


def by_hand(case, tweak, pages, change):
    """The bytes that the controller reads after an update of ``pages``, from end to end: which
    functions of bytes follow each other. Check bytes change no byte without a wrong bit."""
    key = np.random.default_rng([1, 1]).bytes(64)
    cipher, randomiser, registers = (
        Xts(key),
        Randomiser(1, "numpy"),
        case.protection == AT_REGISTERS,
    )
    compares = case.protection.startswith("nan_comparator")

    def unit(number, place):
        return number if tweak == "logical" else place

    def compared(data):
        words = data.view(np.uint32).copy()
        words[words & 0x7F800000 == 0x7F800000] ^= 1 << 30
        return words.view(np.uint8)

    def stored(data, number, place, places):
        data = cipher.encrypt(data, unit(number, place)) if case.cipher in places else data
        return randomiser(data, place) if case.randomiser in places else data

    def taken(data, number, place, places):
        data = randomiser(data, place) if case.randomiser in places else data
        return cipher.decrypt(data, unit(number, place)) if case.cipher in places else data

    all_layers, of_die = ("controller", "die"), ("die",)
    values = []
    for i, data in enumerate(pages):
        cells = stored(data, i, 10 + i, all_layers)
        sensed = compared(cells) if registers else cells
        value = taken(sensed, i, 10 + i, of_die)
        values.append(compared(value) if compares and not registers else value.copy())
    change(values)
    read = []
    plain = "die" not in (case.cipher, case.randomiser)
    for i, value in enumerate(values):
        out = stored(value, i, 120 + i, of_die)
        out = compared(out) if compares and (registers or plain) else out
        read.append(taken(out, i, 120 + i, all_layers))
    return read


@pytest.mark.parametrize("tweak", ["logical", "physical"])
def test_every_byte_by_hand(tweak):
    start = study.initial_values(DRIVE.flash.page_bytes // 4, 1)
    initial = [start[name].view(np.uint8) for name in "wmv"]
    kernel = get("adamw_on_die")
    coefficients = kernel.coefficients(study.HYPER, step=study.STEP)

    def change(pages):
        w, m, v = (page.view(np.float32) for page in pages)
        with np.errstate(all="ignore"):
            kernel(w, start["g"], (m, v), coefficients)

    sources, targets = study.pages_of_states(10), study.pages_of_states(120)
    for case in study.cases(["bch"]):
        own = study.configuration(DRIVE, case)
        path = PagePath(own, study.coding(case, tweak, 1), case.protection == AT_REGISTERS)
        for page, data in zip(sources, initial, strict=True):
            path.write(page, data)
        path.update(sources, targets, change)
        expected = by_hand(case, tweak, initial, change)
        for page, data in zip(targets, expected, strict=True):
            assert (path.read(page) == data).all(), (case, page)


def test_share_of_a_comparator_at_the_registers():
    """One of 256 random words has an exponent of ones. A value is wrong if the comparator changes
    its word when the page is sensed or when the controller reads it, and a value of w also if it
    changes those of m or v; with the cipher, a word of its block."""
    spread = {1: 0.0016, 4: 0.0065}  # standard deviation of a seed
    for cipher, randomiser, words in (("none", "die", 1), ("die", "none", 4), ("die", "die", 4)):
        case = Case(cipher, randomiser, AT_REGISTERS, "capability")
        shares = [study.ran(DRIVE, case, "logical", seed).wrong_share for seed in range(12)]
        kept = (255 / 256) ** words
        expected = (1 - kept**4 + 2 * (1 - kept**2)) / 3
        assert abs(np.mean(shares) - expected) < 4 * spread[words] / np.sqrt(12)


def test_each_wrong_bit_changes_what_the_die_writes():
    """Other seeds have as many wrong values: no wrong bit of an old page is without effect."""
    for seed in range(20, 30):
        for cipher in ("none", "die"):
            cell = study.ran(DRIVE, Case(cipher, "none", "none", "capability"), "logical", seed)
            assert cell.agrees, cell
    assert cell.found.after_wrong_sources == 200


@pytest.mark.parametrize("tweak", ["logical", "physical"])
def test_other_values_and_both_tweaks(tweak):
    for protection in PROTECTIONS:
        for cipher, randomiser in (("die", "die"), ("controller", "die"), ("die", "controller")):
            case = Case(cipher, randomiser, protection, "ldpc")
            cell = study.ran(DRIVE, case, tweak, seed=7)
            assert cell.agrees, cell


class Forgets(Randomiser):
    """A die whose randomizer does not know the number of the page."""

    def __call__(self, data, page):
        return super().__call__(data, 0)


def wrong_die(change):
    def layers(cfg, coding):
        controller, die = layers_of(cfg, coding)
        return controller, change(die)

    return layers


@pytest.mark.parametrize(
    "change",
    [
        lambda die: die._replace(randomiser=Forgets(1)),
        lambda die: die._replace(randomiser=Randomiser(2)),
        lambda die: die._replace(randomiser=None),
        lambda die: die._replace(cipher=page_layers.Xts(KEY)),
        lambda die: die._replace(cipher=None),
    ],
    ids=["no page number", "other seed", "no randomizer", "other key", "no cipher"],
)
def test_a_wrong_die_turns_the_cell(monkeypatch, change):
    assert study.ran(DRIVE, BOTH, "logical", 1).agrees
    monkeypatch.setattr("ondie.emu.studies.page_path.layers_of", wrong_die(change))
    cell = study.ran(DRIVE, BOTH, "logical", 1)
    assert not cell.agrees and cell.predicted.right and not cell.found.right


def test_a_die_with_the_old_tweak_turns_the_cell(monkeypatch):
    """With the physical page as tweak the new page has another tweak than the old one."""
    monkeypatch.setattr(
        "ondie.emu.studies.page_path.layers_of",
        wrong_die(lambda die: die._replace(tweak="logical")),
    )
    assert study.ran(DRIVE, BOTH, "logical", 1).agrees
    assert not study.ran(DRIVE, BOTH, "physical", 1).agrees


def test_a_controller_that_ignores_the_record_turns_the_cell(monkeypatch):
    """A controller that decodes a page of the die's code with its own corrects no wrong bit."""
    case = Case("none", "none", "on_die_ecc", "bch")
    assert study.ran(DRIVE, case, "logical", 1).agrees
    sense = PagePath._sense
    monkeypatch.setattr(
        PagePath, "_sense", lambda self, page: sense(self, page)._replace(mark=CODED)
    )
    cell = study.ran(DRIVE, case, "logical", 1)
    assert not cell.agrees
    assert (cell.found.after_wrong_bits, cell.found.after_wrong_sources) == (30, 50)


def test_marks_and_what_the_cells_hold():
    data = study.initial_values(DRIVE.flash.page_bytes // 4, 4)["w"].view(np.uint8)
    wanted = {"none": (CODED, UNCODED), "nan_comparator": (CODED, UNCODED),
              "on_die_ecc": (DIE_CODED, DIE_CODED), "controller_ecc": (CODED, CODED)}  # fmt: skip
    for protection, marks in wanted.items():
        case = Case("die", "die", protection, "bch")
        path = PagePath(study.configuration(DRIVE, case), study.coding(case, "logical", 1))
        old, new = PageNumber(3, 10), PageNumber(3, 20)
        path.write(old, data)
        path.update([old], [new], lambda pages: None)
        assert tuple(path._sense(page).mark for page in (old, new)) == marks
        cells = [path._sense(page) for page in (old, new)]
        for page, own in zip((old, new), cells, strict=True):
            expected = Randomiser(1)(path.controller.cipher.encrypt(data, 3), page.physical)
            assert (own.data == expected).all()  # encrypted, then randomized
        kept = (cells[0].spare == cells[1].spare).all()
        assert kept == (marks[1] == UNCODED)
        assert path.check_bytes.counts.unprotected_pages == (marks[1] == UNCODED)


@pytest.mark.parametrize("layer", ["cipher", "randomiser"])
def test_a_layer_that_the_controller_lacks_is_refused(layer):
    coding = {"cipher": "xts", "randomiser": "prbs", "key": KEY} | {layer: "none"}
    cfg = DRIVE.replace({"pe.cipher": "die", "pe.randomiser": "die"})
    with pytest.raises(InputError, match=f'pe.{layer} = "die" while the controller has no'):
        PagePath(cfg, Coding(**coding))


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("study", "on-die-bytes", "--codes", "capability", "--json", "cells.json")
    found = here(capsys, *words)
    assert (found.code, found.err) == (
        0,
        "",
    ) and "45 cases computed; 0 differ from the prediction" in found.out
    rows = json.loads((tmp_path / "cells.json").read_text())
    assert len(rows) == 45 and all(row["agrees"] for row in rows)
    monkeypatch.setattr(
        "ondie.emu.studies.page_path.layers_of",
        wrong_die(lambda die: die._replace(randomiser=die.randomiser and Forgets(1))),
    )
    found = here(capsys, *words)
    assert found.code == 1 and "predicted Answers(right=True" in found.out and "(!)" in found.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "gen4-tlc"], ["gen4-tlc", 'pe.kind = "none"', "optimstore-r1"]),
        (["--set", "pe.cipher=die"], ["--set pe.cipher=die", "remove this option"]),
        (["--set", "ecc.code = bch"], ["ecc.code", "remove this option"]),
        (["--codes", "turbo"], ["--codes turbo", "capability, bch, ldpc"]),
        (["--codes", "bch,bch"], ["at most once"]),
        (["--codes", ""], ["--codes"]),
        (["--set", "flash.spare=100 B"], ["ecc.code", "spare"]),
        (["--set", "pe.ecc_correctable_bits=2000"], ["pe.ecc_correctable_bits", "2000"]),
        (["--tweak", "none"], ["--tweak", "logical"]),
        (["--seed", "-1"], ["--seed", "-1"]),
        (["--json", "file/cells.json"], ["file/cells.json"]),
    ],
    ids=lambda x: " ".join(x),
)
def test_refused(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    refused(here(capsys, "study", "on-die-bytes", *arguments), *words)
    assert files(tmp_path) == ["file"]


def test_codes_and_places_are_those_of_the_configuration():
    from ondie.emu.config.schema.keys import KEYS

    assert KEYS["ecc.code"].spec.choices == CODES
    assert KEYS["pe.cipher"].spec.choices == KEYS["pe.randomiser"].spec.choices == ("none", "die")
    assert tuple(p for p in PROTECTIONS if p != AT_REGISTERS) == KEYS["pe.protection"].spec.choices
