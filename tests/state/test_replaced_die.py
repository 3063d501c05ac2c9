"""A die that is taken away and restored from the parities over dies: the weights and states are
those of the kernel bit for bit, go on being updated, and survive the next power cut.
"""

import os

import numpy as np
import pytest

from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.nand import parity_records
from ondie.emu.nvme.command import COMMAND, READ, WRITE
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.control import ControlServer
from ondie.emu.serve.control_words import send
from ondie.emu.serve.served import ServedDrive
from ondie.emu.service import Service
from ondie.emu.states import replaced_die
from ondie.emu.units import InputError
from tests.state.test_drive_states import DRIVES, Both

pytestmark = pytest.mark.usefixtures("few_transactions")
FORMS = {
    "parity": DRIVES["parity"],
    "parity, records": DRIVES["parity, records"],
    "parity, double buffered": DRIVES["parity"] | {"pe__dispatch": "double_buffered"},
}


def updated(form, updates=3, **options):
    both = Both(more=FORMS[form], **options)
    for _ in range(updates):
        both.begin()
        both.drive.run()
    return both


def same(both):
    for name, values in both.wanted.items():
        np.testing.assert_array_equal(both.states.stored(name), values)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("die", range(4))
def test_weights_are_equal_to_the_last_bit(form, die):
    """Each die of four, with its stripes, parities and commit record; then the next update, a power
    cut, and another die."""
    both = updated(form)
    found = both.states.replace_die(die)
    assert found.stripes == len(range(die, both.states.stripes, 4))
    assert found.commit_records == (form == "parity, records")
    assert found.parities == sum(sp % 4 == die for sp in both.states._path.guarded[0].parity)
    same(both)
    both.begin()
    both.drive.run()
    same(both)
    both.drive.power_cut(0)
    both.drive.power_on()
    both.states.open(both.drive)
    assert both.states.complete and both.states.step == both.updates
    same(both)
    both.states.replace_die((die + 1) % 4)
    same(both)
    both.drive.check()


@pytest.mark.parametrize("form", FORMS)
def test_the_power_is_cut_right_after(form):
    """What was restored is found where it is, parities and records included."""
    both = updated(form)
    for die in range(4):
        both.states.replace_die(die)
        both.drive.power_cut(0)
        both.drive.power_on()
        both.states.open(both.drive)
        assert both.states.complete
        same(both)


def test_pages_and_their_records_are_those_before():
    """Stripes have the same pages and out-of-band data; parities the same pages."""
    both = updated("parity, records")
    payload, store = both.states._payload, both.drive.moved.store
    guarded = both.states._path.guarded[0]

    def contents(super_page):
        pages = payload.pages(0, super_page)
        records = [parity_records.covered(store, ppn).tobytes() for ppn in pages]
        return [store.read(ppn).tobytes() for ppn in pages], records

    stripes = {stripe: contents(stripe) for stripe in range(both.states.stripes)}
    parities = {int(sp): contents(int(sp))[0] for sp in guarded.parity}
    for die in range(4):
        both.states.replace_die(die)
        assert stripes == {stripe: contents(stripe) for stripe in stripes}
        assert parities == {sp: contents(sp)[0] for sp in parities}
        for stripe in stripes:
            again, _ = payload.rebuilt(0, stripe)
            assert (again == np.stack([store.read(ppn) for ppn in payload.pages(0, stripe)])).all()


def test_without_the_parities_the_die_is_gone(monkeypatch):
    """The pages are really taken away: nothing but the other dies brings them back."""
    both = updated("parity")
    monkeypatch.setattr(replaced_die.Reservoir, "put_again", lambda *_: None)
    before = both.states.stored("w")
    both.states.replace_die(1)
    after = both.states.stored("w")
    lost = np.flatnonzero(before != after)
    params = both.states.stripe_params
    assert len(lost) and set(lost // params % 4) == {1} and not after[lost].any()


def test_conventional_pages_of_the_die_are_lost():
    both = updated("parity")
    drive = both.drive
    unit = drive.unit_bytes
    drive.buffer = np.arange(64 * unit, dtype=np.int64).astype(np.uint8)
    command = np.zeros(64, COMMAND)
    command["op"], command["size"], command["tag"] = WRITE, unit, np.arange(64)
    command["offset"] = command["data"] = np.arange(64) * unit
    command["arrival"] = drive.now
    drive.submit(command)
    drive.run()
    drive.completions()
    place = drive.arrays.l2p[0, :64].astype(np.int64) - 1
    there = place // drive.geometry.die_pages == 2
    found = both.states.replace_die(2)
    assert found.lost_pages == there.sum() > 0
    command["op"], command["arrival"] = READ, drive.now
    drive.submit(command)
    drive.run()
    done = drive.completions()
    status = done["status"][np.argsort(done["tag"])]
    assert ((status != 0) == there).all()
    assert drive.arrays.count[0, COUNTERS.index("media_errors")] == there.sum()
    same(both)


@pytest.mark.parametrize(
    ("die", "words"), [(4, ["die = 4", "from 0 to 3"]), (-1, ["die = -1"]), (1.5, ["die"])]
)
def test_a_die_that_does_not_exist(die, words):
    both = updated("parity", 1)
    with pytest.raises(InputError) as caught:
        both.states.replace_die(die)
    assert all(word in str(caught.value) for word in words), caught.value
    same(both)


def test_states_that_cannot_be_restored():
    with pytest.raises(InputError, match=r"pe\.rain = 0"):
        Both().states.replace_die(0)
    both = updated("parity", 0)
    with pytest.raises(InputError, match="has no parity; complete update 1 first"):
        both.states.replace_die(0)
    both.begin()
    with pytest.raises(InputError, match="a plan is running"):
        both.states.replace_die(0)
    both.drive.run()
    both.states.replace_die(0)
    same(both)


# --- the other dies' pages have bit errors

CODES = {
    "bch on the die": {"pe__protection": "on_die_ecc", "ecc__code": "bch",
                       "pe__ecc_correctable_bits": 20, "pe__ecc_codeword": "512 B"},
    "bch": {"pe__protection": "controller_ecc", "ecc__code": "bch"},
    "ldpc": {"pe__protection": "controller_ecc", "ecc__code": "ldpc"},
    "capability": {"pe__protection": "controller_ecc"},
    "none": {"pe__protection": "none"},
}  # fmt: skip
WEAR = {
    "ecc__codeword": "512 B", "ecc__correctable_bits": 20, "ecc__soft_reads": 0,
    "ecc__soft_gain": 1, "flash__spare": "69 B", "errors__wear": 0, "errors__retention": 0,
    "errors__disturb": 0, "errors__pslc": 1,
}  # fmt: skip


def hit(rate):
    """Errors of the model whose rate is the floor, at which it stays."""
    return WEAR | {"errors__kind": "model", "errors__floor": rate}


def hit_drive(code, rate, form="parity, records"):
    both = Both(more=FORMS[form] | CODES[code] | hit(rate))
    for _ in range(2):
        both.begin()
        both.drive.run()
    return both


def bits(both):
    """Counters of corrected and of wrong bits, and code words that a real code has decoded."""
    count = both.drive.arrays.count[0]
    own = (int(count[COUNTERS.index(f"bare_{what}_bits")]) for what in ("corrected", "wrong"))
    decoder = both.states._payload.decoder
    return np.array([*own, 0 if decoder is None else decoder.counts.words])


@pytest.mark.parametrize("code", list(CODES)[:-1])
def test_wrong_bits_of_the_other_dies_are_corrected(code):
    """At 2e-3 nearly every page that is read has wrong bits, 8 in the mean, and the code takes all
    of them back: each die is restored to the last bit, parities included, and goes on."""
    both = hit_drive(code, 2e-3)
    same(both)
    seen, guarded = both.drive.arrays.seen[0], both.states._path.guarded[0]
    others, every = both.states._payload.beside[0].others, []
    for die in range(4):
        before, reads = bits(both), int(seen.sum())
        found = both.states.replace_die(die)
        corrected, wrong, words = bits(both) - before
        pages = int(seen.sum()) - reads
        assert wrong == found.wrong_bits == 0
        needed = [len(others(stripe)) for stripe in range(die, both.states.stripes, 4)]
        parities = [int(sp) for sp in guarded.parity if sp % 4 == die]
        needed += [len(guarded.under(guarded.number(sp))) for sp in parities]
        assert pages == 3 * sum(needed)  # w, m and v
        every.append(int(corrected))
        assert abs(corrected - pages * 4096 * 2e-3) < 5 * (pages * 4096 * 2e-3) ** 0.5
        assert words == 0 if code == "capability" else 0.9 * pages < words <= pages
        same(both)
    before = bits(both)
    both.states.replace_die(0)
    assert (bits(both) - before)[0] != every[0]  # another read has other wrong bits
    both.begin()
    both.drive.run()
    same(both)
    both.drive.check()


@pytest.mark.parametrize(("code", "rate"), [("none", 1e-3), ("bch", 8e-3), ("ldpc", 3e-2)])
def test_what_the_code_leaves_is_in_the_restored_die(code, rate):
    """Bits that no code takes back are wrong in the stripes of the die, each once, and counted."""
    both = hit_drive(code, 0 if code == "none" else 1e-3, "parity")
    same(both)
    both.drive.arrays.rate["floor"] = rate
    both.drive.arrays.quality["cycles"] = 0  # draws the rates again
    payload = both.states._payload
    stripes = range(1, both.states.stripes, 4)

    def contents():
        pages = [ppn for stripe in stripes for ppn in payload.pages(0, stripe)]
        return np.stack([both.drive.moved.store.read(ppn) for ppn in pages])

    right, before = contents(), bits(both)
    found = both.states.replace_die(1)
    left = int(np.bitwise_count(contents() ^ right).sum())
    assert 0 < left <= found.wrong_bits == bits(both)[1] - before[1]
    with pytest.raises(AssertionError):
        same(both)


@pytest.mark.parametrize("code", [None, "ldpc"])
def test_over_the_control_socket_of_a_served_drive(tmp_path_factory, code):
    """`ondie ctl … replace-die`: the answer, and what is refused."""
    both = hit_drive(code, 2e-3) if code else updated("parity, records")
    path = os.path.relpath(tmp_path_factory.mktemp("ctl") / "s")
    with Service(both.drive) as service:
        listener = Listener(Address(path=path), "--ctl", private=True)
        control = ControlServer(ServedDrive(both.drive, service), listener)
        try:
            found = send(path, "replace-die", {"die": 2})
            with pytest.raises(InputError, match="die = 9"):
                send(path, "replace-die", {"die": 9})
            send(path, "power-cut", {})
            with pytest.raises(InputError, match="power"):
                send(path, "replace-die", {"die": 2})
            send(path, "power-on", {})
            with pytest.raises(InputError, match="the drive holds no optimizer states"):
                send(path, "replace-die", {"die": 2})
        finally:
            control.close()
    assert found["stripes"] == 2 and found["commit_records"] == 1 and found["parities"] > 0
    assert found["wrong_bits"] == 0
    both.states.open(both.drive)
    same(both)
