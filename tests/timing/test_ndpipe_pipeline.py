"""Do stores and Tuner take the time that the arithmetic by hand gives, whatever their stages, and
is every photo trained once if stores are unequal, slow or dead?"""

import functools

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.ndpipe.batches import assigned, batches
from ondie.emu.ndpipe.flash import PhotoDrive
from ondie.emu.ndpipe.pipeline import STAGES, Outcome, Plan, Store, Times, simulate
from ondie.emu.ndpipe.pipeline_bound import pipelined, training_ps
from ondie.emu.units import InputError

US = 10**6
PHOTO = 50_000
TIMES = Times(30 * US, 10 * US, 5 * US, 80 * US, 1 * US, 1 * US, 40 * US)


@functools.cache
def drive():
    return load_preset("laguna")


def run(stores, times=TIMES, **plan) -> Outcome:
    return simulate(stores, times, Plan(photo_bytes=PHOTO, batch=8, **plan), drive())


@functools.cache
def load_ps() -> int:
    """Load of one batch of eight photos, on a drive of its own."""
    each = PhotoDrive(drive(), 64, PHOTO)
    ends = [0]
    for i in range(8):
        ends.append(each.load(ends[-1], 8 * i, 8))
    assert len({*np.diff(ends)}) == 1
    return ends[1]


def by_hand(times: Times, stores: int, count: int, runs: int) -> float:
    stages = [load_ps(), *(8 * times.stage(stage) for stage in range(1, len(STAGES)))]
    return training_ps(
        stages, 8 * times.receive, stores, count, runs, 8 * count * stores * times.train
    )


def test_any_stage_times_that_are_equal_in_all_runs(counts):
    """Within 0.1 %; here to the picosecond. Each stage is the slowest one in some draw."""
    rng = np.random.default_rng(24)
    slowest = set()
    for _ in range(counts(12, 400)):
        drawn = [int(10 ** rng.uniform(3, 8.5)) for _ in range(7)]
        times = Times(*drawn)
        stores, count, runs = (int(rng.integers(1, most)) for most in (4, 6, 7))
        found = run([Store(8 * count * runs)] * stores, times, runs=runs)
        assert found.end_ps == by_hand(times, stores, count, runs)
        slowest.add(found.limited_by)
    assert len(slowest) > 4


def test_a_drive_can_be_the_slowest_stage():
    times = Times(1, 1, 1, 1, 1, 1, 1)
    found = run([Store(8 * 5 * 3)], times, runs=3)
    assert found.limited_by == "load"
    assert found.end_ps == by_hand(times, 1, 5, 3)
    assert found.bytes_read >= 8 * 5 * 3 * PHOTO


@pytest.mark.parametrize("depth", [6, 8])
def test_all_stages_as_long_as_the_load(depth):
    """Six batches in memory keep six equal stages busy."""
    each = load_ps() // 8
    times = Times(each, each, each, each, each, 1, 1)
    found = run([Store(8 * 5 * 3)], times, runs=3, depth=depth)
    assert found.end_ps == pytest.approx(by_hand(times, 1, 5, 3), abs=8 * 6 * 8)


def test_the_formula_of_the_paper():
    assert pipelined(10, 4, 1) == 14
    assert pipelined(10, 4, 2) == 12
    assert pipelined(10, 10, 10) == 11
    for wrong in ((-1, 1, 1), (1, float("nan"), 1), (1, 1, 0)):
        with pytest.raises(InputError):
            pipelined(*wrong)


def test_runs_overlap():
    """With Ts = Tt two runs save a quarter, and ten runs almost half."""
    photos = 8 * 60
    rate = 8 * 200 * US  # per batch, in the slowest stage
    times = Times(1, 1, 1, 200 * US, 1, 1, 200 * US)
    one, two, ten = (run([Store(photos)], times, runs=n).end_ps for n in (1, 2, 10))
    assert one == pytest.approx(2 * 60 * rate, rel=0.03)
    assert two / one == pytest.approx(0.75, abs=0.01)
    assert ten / one == pytest.approx(0.55, abs=0.01)


def test_a_slow_store_and_balance():
    """Of three equal shards, that at half speed takes twice as long; balanced, the times are those
    of 2.5 stores."""
    shard = 8 * 50
    alike = run([Store(shard)] * 3, copies=True)
    slow = [Store(shard, speed=0.5), Store(shard), Store(shard)]
    alone, shared = run(slow, copies=True), run(slow, copies=True, balance=True)
    assert alone.ready_ps[0] / alike.ready_ps[0] == pytest.approx(2, rel=0.03)
    assert shared.ready_ps[0] / alike.ready_ps[0] == pytest.approx(3 / 2.5, rel=0.03)
    for found in (alike, alone, shared):
        once(found, 3 * shard)
    assert alone.by_store == [shard] * 3 and shared.by_store[0] < shard < shared.by_store[1]


def once(found: Outcome, photos: int) -> None:
    """Every photo was trained once, or is named as lost."""
    assert set(found.trained.values()) == {1}
    ranges = sorted(
        (batch.owner, batch.first, batch.photos) for batch in [*found.trained, *found.lost]
    )
    for (owner, first, count), (after, start, _) in zip(ranges, ranges[1:], strict=False):
        assert start == (first + count if after == owner else 0)
    assert sum(count for *_, count in ranges) == photos
    trained = sum(batch.photos for batch in found.trained)
    assert trained == sum(found.by_store)


def test_unequal_shards():
    found = run([Store(7), Store(100), Store(33)], runs=3)
    once(found, 140)
    assert found.by_store == [7, 100, 33]


def test_a_dead_store(counts):
    """At any time: with copies the others take over what it has not sent, without them that is
    lost. The others do nothing twice."""
    rng = np.random.default_rng(3)
    whole = run([Store(80)] * 3, runs=2).end_ps
    for at in rng.integers(0, whole, counts(2, 60)).tolist():
        stores = [Store(80), Store(80, fails_ps=at), Store(80)]
        for more in ({"copies": True}, {"copies": True, "balance": True}, {}):
            found = run(stores, runs=2, detect_ps=10 * US, **more)
            once(found, 240)
            assert bool(found.lost) == ("copies" not in more and found.by_store[1] < 80)
            assert found.by_store[1] <= 80 or "balance" in more
    early = run([Store(80), Store(80, fails_ps=0), Store(80)], runs=2, copies=True)
    assert early.by_store == [112, 0, 128] and not early.lost  # of five batches a run, 2 and 3


def test_batches_of_a_dead_store_belong_to_their_run():
    """The others handle them before their own batches of later runs."""
    stores = [Store(160), Store(160, fails_ps=0), Store(160)]
    found = run(stores, runs=4, copies=True, detect_ps=US)
    share = np.diff([0, *found.ready_ps]) / found.ready_ps[-1]
    assert share == pytest.approx([0.25] * 4, abs=0.05)


def test_copies_lie_behind_the_own_photos(monkeypatch):
    reads = []
    load = PhotoDrive.load

    def noted(self, start, first, count):
        reads.append((first, count))
        return load(self, start, first, count)

    monkeypatch.setattr(PhotoDrive, "load", noted)
    run([Store(80, fails_ps=0), Store(80)], copies=True, detect_ps=0)
    assert sorted(reads)[-20:] == [(8 * i, 8) for i in range(20)]


def test_both_places_of_a_batch_dead():
    stores = [Store(80, fails_ps=US), Store(80), Store(80, fails_ps=US)]
    found = run(stores, copies=True, detect_ps=0)
    once(found, 240)
    assert 0 < sum(batch.photos for batch in found.lost) < 160
    assert {batch.owner for batch in found.lost} == {0, 2}
    nothing = run([Store(8, fails_ps=0)], detect_ps=5)
    assert not nothing.trained and nothing.end_ps == nothing.ready_ps[0] == 5


def test_balance_without_speed_differences_moves_nothing():
    every = batches([64] * 4, 2, 8, True)
    assert assigned(every, [1.0] * 4, True) == {batch: batch.owner for batch in every}
    copies = {batch.places[1] for batch in every if batch.owner == 0}
    assert copies == {1, 2, 3}


def test_bad_input():
    with pytest.raises(InputError, match="0 photos"):
        Store(0)
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(InputError, match="speed"):
            Store(1, wrong)
    with pytest.raises(InputError, match="stores: the list is empty"):
        run([])
    with pytest.raises(InputError, match="do not fit on laguna"):
        run([Store(1 << 40)])
    with pytest.raises(InputError, match="depth = 0: must be from 1"):
        Plan(depth=0)
    with pytest.raises(InputError, match="needs copies"):
        Plan(balance=True)
    with pytest.raises(InputError, match="decode = -1"):
        Times(-1, 0, 0, 0, 0, 0, 0)
