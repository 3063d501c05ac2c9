"""Do stores have exactly the Tuner's bytes after any history of versions and transfers?"""

import dataclasses

import numpy as np
import pytest

from ondie.emu.ndpipe import delta as deltas
from ondie.emu.ndpipe.versions import (
    CHAIN,
    NOTHING,
    ONE_SHOT,
    WHOLE,
    StoreModel,
    Versions,
    transfer,
)
from ondie.emu.units import InputError


def changed(model: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The next version: other bytes at the end, here and there, everywhere, or another size."""
    new = model.copy()
    match rng.integers(5):
        case 0:
            new[-rng.integers(1, len(new) + 1) :] = rng.integers(256)
        case 1:
            at = rng.integers(len(new), size=rng.integers(1, 9))
            new[at] ^= rng.integers(1, 256, len(at), np.uint8)
        case 2:
            new = rng.integers(0, 256, len(new), np.uint8)
        case 3:
            new = np.resize(new, rng.integers(1, 4000))
        case _:
            pass
    return new


def history(rng: np.random.Generator) -> set[str]:
    """One history of a Tuner with four stores; the forms of its updates."""
    first = rng.integers(0, 256, rng.integers(1, 4000), np.uint8)
    tuner = Versions(first, keep=int(rng.integers(1, 6)), pack=bool(rng.integers(2)))
    published, forms = [first], set()
    stores = [StoreModel() for _ in range(4)]
    for _ in range(rng.integers(3, 25)):
        which = int(rng.integers(4))
        store = stores[which]
        match rng.integers(6):
            case 0 | 1:
                published.append(changed(published[-1], rng))
                assert tuner.publish(published[-1]) == len(published) - 1
            case 2:  # part of a transfer; it continues, or a newer version replaces it
                update = tuner.update(store.version, store.checksum)
                at = store.begin(update)
                store.receive(at, update.message[at : at + int(rng.integers(1, 500))])
            case 3:  # a damaged transfer
                update = tuner.update(store.version, store.checksum)
                if update.form != NOTHING:
                    before = store.version, store.model.copy()
                    wrong = bytearray(update.message)
                    wrong[rng.integers(len(wrong))] ^= int(rng.integers(1, 256))
                    other = StoreModel()
                    other.version, other.model = before
                    other.begin(update)
                    other.receive(0, bytes(wrong))
                    with pytest.raises(InputError, match="checksum"):
                        other.finish(update)
                    assert other.version == before[0] and np.array_equal(other.model, before[1])
                    transfer(other, update)  # again, from the first byte
                    assert np.array_equal(other.model, published[-1])
            case 4:
                stores[which] = StoreModel()  # replaced
            case _:
                update = tuner.update(store.version, store.checksum)
                forms.add(update.form)
                known = store.version is not None and store.version > tuner.latest - tuner.keep
                assert (update.form == WHOLE) == (not known)
                transfer(store, update, int(rng.integers(1, 900)))
                assert store.version == tuner.latest
        for each in stores:
            if each.version is not None:
                assert np.array_equal(each.model, published[each.version])
    return forms


def test_random_histories_are_exact(counts):
    rng = np.random.default_rng(24)
    forms = set().union(*(history(rng) for _ in range(counts(100, 1000))))
    assert {ONE_SHOT, WHOLE, NOTHING} <= forms


def versions(count: int = 4, size: int = 4096, **more) -> tuple[Versions, list[np.ndarray]]:
    """A Tuner with versions that differ in their last 1,024 bytes."""
    rng = np.random.default_rng(1)
    models = [rng.integers(0, 256, size, np.uint8)]
    tuner = Versions(models[0], **more)
    for _ in range(count - 1):
        models.append(models[-1].copy())
        models[-1][-1024:] = rng.integers(0, 256, 1024, np.uint8)
        tuner.publish(models[-1])
    return tuner, models


def store_of(tuner: Versions, version: int) -> StoreModel:
    store = StoreModel()
    store.version, store.model = version, tuner.model(version).copy()
    return store


def test_a_delta_has_the_changed_bytes_and_no_more():
    tuner, _ = versions(pack=False)
    for version in range(3):
        update = tuner.update(version)
        assert update.form == ONE_SHOT
        assert 1024 <= len(update.message) < 1024 + 150


def test_the_smaller_one_of_delta_and_chain_is_sent():
    """Two periodic changes are small alone; together they have a period longer than the model."""
    rng = np.random.default_rng(2)
    model = rng.integers(0, 1 << 32, 1 << 14, np.uint32)
    tuner = Versions(model)
    for period in (211, 307):
        model = model ^ np.resize(rng.integers(1, 1 << 32, period, np.uint32), len(model))
        tuner.publish(model)
    update = tuner.update(0)
    assert update.form == CHAIN
    one = deltas.delta(0, tuner.model(0), 2, tuner.model(2))
    assert len(update.message) < one.bytes
    store = store_of(tuner, 0)
    transfer(store, update)
    assert np.array_equal(store.model.view(np.uint32), model)


def test_an_interrupted_transfer_sends_the_rest_only():
    tuner, models = versions(pack=False)
    store, update = store_of(tuner, 0), tuner.update(0)
    store.begin(update)
    store.receive(0, update.message[:700])
    with pytest.raises(InputError, match=r"version 3: 700 of \d+ bytes have been received"):
        store.finish(update)
    with pytest.raises(InputError, match="data begins at byte 900; must begin at byte 700"):
        store.receive(900, b"x")
    assert transfer(store, update) == len(update.message) - 700
    assert np.array_equal(store.model, models[3])


@pytest.mark.parametrize("version", [-1, 4, 99])
def test_an_unknown_version_is_named(version):
    tuner, _ = versions()
    for call in (tuner.update, tuner.model):
        with pytest.raises(InputError, match=f"version {version}: unknown; .* versions 0 to 3"):
            call(version)


def test_a_delta_on_the_wrong_base_changes_nothing():
    tuner, models = versions()
    update = tuner.update(1)
    store = store_of(tuner, 2)
    with pytest.raises(
        InputError, match="from version 1 to 3: the store has version 2 instead of version 1"
    ):
        transfer(store, update)
    assert store.version == 2 and np.array_equal(store.model, models[2])
    store = store_of(tuner, 1)
    store.model[5] ^= 1
    with pytest.raises(
        InputError, match="version 1 of the model in the store differs from the base of the delta"
    ):
        transfer(store, update)
    assert store.version == 1 and tuner.update(1, store.checksum).form == WHOLE
    with pytest.raises(InputError, match="the store has no model"):
        transfer(StoreModel(), update)


def test_other_checks_of_a_message():
    tuner, _ = versions(keep=2)
    with pytest.raises(InputError, match="version 0: no longer kept"):
        tuner.model(0)
    with pytest.raises(InputError, match="at least one byte"):
        tuner.publish(np.zeros(0))
    parts = deltas.parse(tuner.update(2).message)
    with pytest.raises(InputError, match="contains 1 parts, but its header states 2"):
        text = parts[0].encoded(2)
        deltas.parse(text + deltas.digest(text))
    wrong = dataclasses.replace(parts[0], digest=bytes(deltas.DIGEST_BYTES))
    with pytest.raises(InputError, match="does not have the stated checksum"):
        deltas.applied(None if wrong.kind == deltas.FULL else 2, tuner.model(2), [wrong])
    with pytest.raises(InputError, match="invalid part header at byte"):
        text = b"X" + parts[0].encoded(1)[1:]
        deltas.parse(text + deltas.digest(text))
