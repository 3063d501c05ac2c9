"""Does a fleet's virtual time add up: steps, data, energy, interference, members?"""

from dataclasses import dataclass

import numpy as np
import pytest

from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.cluster.cluster import Fleet, Kind
from ondie.emu.cluster.hypertune.controller import HyperTune, Rule
from ondie.emu.cluster.jitter import Chance
from ondie.emu.cluster.load.on_off import Spells
from ondie.emu.cluster.load.trace import Load
from ondie.emu.cluster.membership import DIES, JOINS, LEAVES, Member
from ondie.emu.cluster.training_sim import DETECTION_S, Data, Simulation
from ondie.emu.units import InputError

DRIVES = 6
BATCH = 100, 10
SPEED = 20.0, 2.0


@dataclass(frozen=True)
class Took:
    seconds: float
    host_cpu_s: float = 0.0


def fleet(drives=DRIVES, hosts=1, exchange=0.5, **changes):
    """Host and drives that need 5 s for their batches."""
    kinds = [
        Kind(
            name,
            count,
            Engine(name, ((batch, speed),)),
            cores=8,
            slowdown=lambda left: left,
            host=name == "host",
            **changes,
        )
        for name, count, batch, speed in zip(
            ("host", "drive"), (hosts, drives), BATCH, SPEED, strict=True
        )
    ]
    return Fleet(
        tuple(kinds),
        exchange=lambda there: Took(exchange * int(there.sum())),
        sample_bytes=1000,
        watts=lambda there: 100.0 + int(there.sum()),
    )


def simulation(f, public=16_000, private=0, **options):
    batches = f.by_kind(list(BATCH))
    own = np.where(f.kind == 1, private, 0)
    return Simulation(f, batches, Data(public, own), **options)


def test_a_step_is_compute_exchange_and_update():
    f = fleet(update_s=0.25)
    h = simulation(f).run(100)
    s = h.steps
    assert s["compute_s"] == pytest.approx(5.0)
    assert s["exchange_s"] == pytest.approx(0.5 * 7)
    assert s["update_s"] == pytest.approx(0.25)
    assert h.seconds == pytest.approx(100 * 8.75)
    assert h.samples == 16_000 and h.samples_per_s == pytest.approx(160 / 8.75)
    assert h.joules == pytest.approx(107 * 875)
    assert h.busy_s == pytest.approx(np.full(7, 500.0))


def test_an_epoch_is_every_sample_once_and_then_the_next():
    f = fleet()
    h = simulation(f, public=4_000, private=30).run(52)
    assert [n.step for n in h.notes] == [27]  # 4,180 samples of 160 a step
    assert int(h.steps["samples"][:27].sum()) == 4_180


def test_nodes_wait_for_the_slowest():
    kinds = list(fleet().kinds)
    kinds[1] = Kind("drive", DRIVES, Engine("drive", ((10, 1.0),)), 8, lambda left: left)
    f = Fleet(tuple(kinds), lambda there: Took(0.0), 0, lambda there: 1.0)
    h = simulation(f).run(10)
    assert h.steps["compute_s"] == pytest.approx(10.0)
    assert h.steps["waiting"] == pytest.approx(0.5 / 7)


def test_samples_that_come_slowly_hold_up_everybody():
    f = fleet(feed_bytes_per_s=10_000.0)  # the host's 100 samples take 10 s to read
    h = simulation(f).run(50)
    assert h.steps["compute_s"][0] == pytest.approx(15.0)
    late = h.steps[10:]
    # Reading goes on behind the computing: 10 s from one start of the host's to the next.
    period = np.diff(late["start_s"])
    assert period == pytest.approx(10.0)
    assert (late["reading"] > 0).all()


def test_fast_flash_keeps_up():
    f = fleet(feed_bytes_per_s=100_000.0)
    h = simulation(f).run(50)
    assert h.steps["reading"][0] > 0  # of the very first samples
    assert h.steps["reading"][1:] == pytest.approx(0.0)
    assert np.diff(h.steps["start_s"])[1:] == pytest.approx(8.5)


def test_load_slows_everybody_down():
    load = Load(np.array([0.0]), np.array([2]), np.array([6.0]))
    h = simulation(fleet(), load=load).run(10)
    assert h.steps["compute_s"] == pytest.approx(20.0)


def test_a_drawn_load_lasts_as_long_as_the_run():
    h = simulation(fleet(), load=Spells(120.0, 0.5, seed=0)).run(400)
    slow = h.steps["compute_s"] > 5.1  # somebody was loaded: all but 0.5**7 of the time, or more
    assert h.seconds > 2 * 400 * 8.5  # as long as twice the run undisturbed, and longer
    assert all(part.mean() > 0.9 for part in np.array_split(slow, 8))


def test_a_drawn_load_is_that_of_a_file():
    """In runs of different speed, too."""
    spells, f = Spells(20.0, 0.4, seed=2), fleet()
    for exchange in (0.1, 3.0):
        f = fleet(exchange=exchange)
        own = simulation(f, load=spells).run(60)
        same = simulation(f, load=spells.until(own.seconds, f.cores)).run(60)
        assert own.steps["compute_s"] == pytest.approx(same.steps["compute_s"], rel=1e-9)


def test_load_in_the_middle_of_a_step():
    load = Load(np.array([2.0, 6.0]), np.array([2, 2]), np.array([4.0, 0.0]))
    h = simulation(fleet(), load=load).run(1)
    assert h.steps["compute_s"] == pytest.approx(7.0)  # 2 s, 4 s at half speed, 1 s


def test_hypertune_gets_back_what_a_small_batch_can():
    load = Load(np.array([50.0]), np.array([0]), np.array([4.0]))
    f = fleet()
    batches = f.by_kind(list(BATCH))
    lazy = simulation(f, public=1_000_000, load=load).run(200)
    tuner = HyperTune(Rule(noise=0.01), batches, np.where(f.kind == 0, *SPEED))
    run = simulation(f, public=1_000_000, load=load, tuner=tuner)
    tuned = run.run(200)
    changes = [n for n in tuned.notes if n.what == "batches"]
    assert [n.text for n in changes] == ["node 0 100 -> 50"]
    assert 5 < changes[0].step <= 17
    assert lazy.between(150, 200) == pytest.approx(160 / 13.5)
    assert tuned.between(150, 200) == pytest.approx(110 / 8.5)
    assert tuned.steps["rate"][-1] == pytest.approx(110 / 160)


def test_the_papers_way_ends_the_epoch():
    load = Load(np.array([50.0]), np.array([0]), np.array([4.0]))
    f = fleet()
    rule = Rule(noise=0.01, ends_epoch=True)
    tuner = HyperTune(rule, f.by_kind(list(BATCH)), np.where(f.kind == 0, *SPEED))
    h = simulation(f, public=16_000, load=load, tuner=tuner).run(60)
    step = next(n.step for n in h.notes if n.what == "batches")
    assert h.dropped == 16_000 - 160 * (step + 1)
    assert not [n for n in h.notes if n.what == "epoch"]
    lost = [n.text for n in h.notes if n.what == "dropped"]
    assert lost == [f"epoch ended, {h.dropped:,} samples dropped"]


def test_an_empty_change_is_not_noted_as_new_batches():
    f = fleet()
    rule = Rule(index="literal", noise=0.01, ends_epoch=True)
    tuner = HyperTune(rule, f.by_kind(list(BATCH)), np.where(f.kind == 0, *SPEED))
    h = simulation(f, public=16_000, tuner=tuner).run(60)
    assert h.dropped and {n.what for n in h.notes} == {"dropped"}


# --- members


def test_who_dies_is_missed_and_its_samples_are_trained_on_by_others():
    f = fleet()
    h = simulation(f, public=7_800, private=300, events=[Member(19.0, 3, DIES)]).run(80)
    dead = h.notes[0]
    assert (dead.step, dead.what, dead.text) == (2, "dies", "node 3")  # steps of 8.5 s
    assert h.steps["compute_s"][2] == pytest.approx(5.0 + DETECTION_S)
    assert h.steps["samples"][2] == 150 and h.steps["nodes"][3] == DRIVES
    assert h.steps["exchange_s"][3] == pytest.approx(0.5 * DRIVES)
    ended = next(n.step for n in h.notes if n.what == "epoch")
    trained = int(h.steps["samples"][:ended].sum())
    assert trained == 7_800 + 6 * 300 - h.deferred
    assert 280 <= h.deferred < 300  # its private rest
    assert h.steps["rate"][-1] == pytest.approx(150 / 160)


def test_who_dies_after_its_gradient_is_missed_after_the_others():
    h = simulation(fleet(), events=[Member(2.0, 3, DIES)]).run(1)
    assert h.steps["compute_s"] == pytest.approx(5.0 + DETECTION_S)


def test_who_leaves_and_comes_back():
    f = fleet(join_s=3.0)
    events = [Member(10.0, 3, LEAVES), Member(40.0, 3, JOINS), Member(20.0, 5, JOINS)]
    h = simulation(f, public=16_000, private=20, events=events).run(110)
    assert h.steps["nodes"][0] == 6 and h.steps["nodes"][-1] == 7
    assert [n.what for n in h.notes][:3] == ["leaves", "joins", "joins"]
    ended = next(n.step for n in h.notes if n.what == "epoch")
    assert int(h.steps["samples"][:ended].sum()) == 16_000 + 6 * 20
    gaps = np.diff(h.steps["start_s"])
    spent = h.steps["compute_s"] + h.steps["exchange_s"] + h.steps["update_s"]
    assert (gaps - spent[:-1]).sum() == pytest.approx(6.0)  # twice the weights


def test_members_of_a_file_in_any_order():
    events = [Member(400.0, 3, JOINS), Member(100.0, 3, LEAVES)]
    one, two = (simulation(fleet(), events=e).run(60) for e in (events, events[::-1]))
    assert [n.what for n in one.notes] == ["leaves", "joins"]
    assert np.array_equal(one.steps, two.steps) and one.steps["nodes"][0] == 7


def test_joining_takes_energy():
    events = [Member(10.0, 3, JOINS)]
    free, slow = (simulation(fleet(join_s=s), events=events).run(20) for s in (0.0, 3.0))
    assert slow.seconds - free.seconds == pytest.approx(3.0)
    assert slow.joules - free.joules == pytest.approx(3.0 * 107)


def test_a_fleet_of_every_size_covers_its_data():
    for hosts, drives in ((1, 0), (1, 1), (3, 8), (2, 1)):
        f = fleet(drives=drives, hosts=hosts)
        h = simulation(f, public=1_234).run(100)
        ended = next(n.step for n in h.notes if n.what == "epoch")
        assert int(h.steps["samples"][:ended].sum()) == 1_234


# --- chance


def test_chance_is_the_seeds():
    f = fleet()
    one, two, other = (
        simulation(f, chance=Chance(0.1, 0.05, seed=seed)).run(20).steps for seed in (1, 1, 2)
    )
    assert np.array_equal(one, two) and not np.array_equal(one, other)


def test_stragglers_make_the_step():
    h = simulation(fleet(), chance=Chance(0.0, 0.1, slower=3.0)).run(400)
    slow = h.steps["compute_s"] > 14.9
    assert slow.mean() == pytest.approx(1 - 0.9**7, abs=0.06)
    assert h.steps["compute_s"][~slow] == pytest.approx(5.0)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("share", [0.002, 0.02, 0.05, 0.2, 0.6, 0.95])
@pytest.mark.parametrize("jitter", [0.0, 0.03])
def test_hypertune_leaves_stragglers_alone(share, jitter):
    f, chance = fleet(drives=200, exchange=0.01), Chance(jitter, share, seed=5)
    batches, seen = f.by_kind(list(BATCH)), np.where(f.kind == 0, *SPEED) * chance.speed
    tuner = HyperTune(Rule(noise=max(chance.noise(Rule.sigmas), 0.01)), batches, seen)
    h = simulation(f, public=100_000_000, chance=chance, tuner=tuner).run(400)
    assert [n.text for n in h.notes] == []


def test_hypertune_sees_a_loaded_node_among_stragglers():
    f, chance = fleet(), Chance(0.0, 0.02, seed=5)
    load = Load(np.array([0.0]), np.array([2]), np.array([6.0]))
    batches, seen = f.by_kind(list(BATCH)), np.where(f.kind == 0, *SPEED) * chance.speed
    tuner = HyperTune(Rule(noise=chance.noise(Rule.sigmas)), batches, seen)
    h = simulation(f, public=1_000_000, load=load, chance=chance, tuner=tuner).run(40)
    assert {n.text.split()[1] for n in h.notes} == {"2"}


def test_the_mean_and_spread_of_chance():
    chance, random = Chance(0.1, 0.3, slower=3.0), np.random.default_rng(1)
    seen = 1 / chance.longer(random, 1_000_000)
    assert seen.mean() == pytest.approx(chance.speed, rel=2e-3)
    assert chance.noise(1e9) == pytest.approx(seen.std() / seen.mean(), rel=0.01)


def test_micro_batches_pay_the_exchange_once():
    f = fleet()
    batches = 4 * f.by_kind(list(BATCH))
    pieces = np.full(f.nodes, 4)
    h = Simulation(f, batches, Data(64_000, np.zeros(7, np.int64)), pieces=pieces).run(10)
    assert h.steps["compute_s"] == pytest.approx(20.0)
    assert h.steps["samples"].tolist() == [640] * 10


def test_many_nodes_with_load_and_hypertune(counts):
    steps = counts(100, 1000)
    f = fleet(drives=960, hosts=40, exchange=0.001)
    load = Spells(400.0, 0.1, seed=3)
    tuner = HyperTune(Rule(noise=0.03), f.by_kind(list(BATCH)), np.where(f.kind == 0, *SPEED))
    run = simulation(f, public=20_000_000, load=load, tuner=tuner, chance=Chance(0.03))
    h = run.run(steps)
    assert len(h.steps) == steps and (h.steps["nodes"] == 1000).all()
    left = run.epoch.public_left
    assert h.samples + left == 20_000_000
    assert any(n.what == "batches" for n in h.notes)


# --- bad input


def bad(told, f=None, **options):
    with pytest.raises(InputError, match=told):
        simulation(f or fleet(), **options).run(3)


def test_bad_input():
    gone = Load(np.array([1.0]), np.array([2]), np.array([8.0]))
    bad("no core left", load=gone)
    bad("node 9", load=Load(np.array([1.0]), np.array([9]), np.array([8.0])))
    bad("private samples are more than its share", private=10_000)
    for pieces, words in (
        (np.zeros(7, np.int64), "node 0: 0 micro-batches; must be at least 1"),
        (np.ones(6, np.int64), r"micro-batches have shape \(6,\): must be \(7,\)"),
    ):
        with pytest.raises(InputError, match=words):
            simulation(fleet(), pieces=pieces)
    with pytest.raises(InputError, match="0 steps"):
        simulation(fleet()).run(0)
    with pytest.raises(InputError, match="has no host"):
        Fleet(fleet().kinds[1:], lambda there: Took(0.0), 0, lambda there: 1.0)
    small = fleet()
    limited = Kind("host", 1, Engine("host", ((100, 20.0),), limit=50), 8, lambda x: x, host=True)
    f = Fleet((limited, small.kinds[1]), small.exchange, 0, small.watts)
    bad("node 0 .host.: batch 100 .* exceeds the memory limit, 50", f=f)


@pytest.mark.parametrize(
    "wrong", [{"jitter": -1}, {"stragglers": 2}, {"slower": 0.5}, {"seed": -1}]
)
def test_bad_chance(wrong):
    with pytest.raises(InputError, match="must be"):
        Chance(**wrong)
