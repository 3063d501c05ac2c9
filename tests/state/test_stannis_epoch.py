"""Is every sample trained on once, whatever happens to the nodes in between, and do private ones
stay at home?"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.cluster.epoch import Epoch
from ondie.emu.cluster.interval_set import Ranges
from ondie.emu.cluster.permutation import Shuffle
from ondie.emu.units import InputError


class Ledger:
    """Who was trained on what, by sample: an oracle that knows of no ranges and no plan."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.public: Counter[int] = Counter()
        self.private: Counter[tuple[int, int]] = Counter()
        self.last: list[tuple[int, Counter[int], Counter[tuple[int, int]]]] = []

    def take(self) -> np.ndarray:
        """One step; samples of each node."""
        take = self.epoch.take()
        public, private = ([Counter() for _ in range(self.epoch.nodes)] for _ in range(2))
        everything: list[int] = []
        for node, start, length in zip(
            take.public_node, take.public_start, take.public_length, strict=True
        ):
            assert length > 0
            found = self.epoch.public_indices(int(start), int(length)).tolist()
            public[node].update(found)
            everything += found
        at_once = self.epoch.public_indices(take.public_start, take.public_length)
        assert at_once.tolist() == everything
        for node, (start, length) in enumerate(
            zip(take.private_start, take.private_length, strict=True)
        ):
            own = int(self.epoch.private[node])
            positions = range(int(start), int(start + length))
            private[node].update((node, position % own) for position in positions)
        self.last = [(n, public[n], private[n]) for n in range(self.epoch.nodes)]
        for _, a, b in self.last:
            self.public += a
            self.private += b
        return np.array([a.total() + b.total() for _, a, b in self.last])

    def undone(self, nodes) -> None:
        """The last step of these nodes was not finished."""
        for n, a, b in self.last:
            if n in nodes:
                self.public -= a
                self.private -= b
        self.last = [each for each in self.last if each[0] not in nodes]

    def check_left(self) -> None:
        """What the epoch says is left is what nobody was trained on."""
        e = self.epoch
        assert e.public_left == e.public - len(self.public)
        seen = np.zeros(e.nodes, np.int64)
        for node, _ in self.private:
            seen[node] += 1
        assert (e.private_left == e.private - seen).all()
        assert e.deferred == int((e.private - seen)[e.away].sum())

    def check_end(self) -> None:
        """Every public sample once; every private one of those present once, or as often as the
        epoch says, all of a node's within one of each other."""
        e = self.epoch
        assert set(self.public.values()) <= {1} and len(self.public) == e.public
        assert set(self.public) == set(range(e.public))
        for node in range(e.nodes):
            n, more = int(e.private[node]), int(e.repeated[node])
            counts = [self.private[node, i] for i in range(n)]
            if e.away[node]:
                assert sum(c > 0 for c in counts) == n - e.private_left[node]
            elif n:
                assert sum(counts) == n + more and max(counts) - min(counts) <= 1 <= min(counts)
        if e.leveling == "public":
            assert not e.repeated.any()


batch = st.integers(1, 12)


@st.composite
def beginnings(draw):
    """An epoch that can start, and its batches: public data enough for its private ones."""
    nodes = draw(st.integers(1, 6))
    w = np.array(draw(st.lists(batch, min_size=nodes, max_size=nodes)))
    private = np.array(draw(st.lists(st.integers(0, 40), min_size=nodes, max_size=nodes)))
    steps = -(-private // w)
    need = int(steps.max()) * int(w.sum()) - int(private.sum())
    public = need + draw(st.integers(0, 200))
    leveling = draw(st.sampled_from(["public", "repeat"]))
    if leveling == "repeat" and (private > 0).all():
        public = draw(st.integers(0, public))
    return Epoch(public, private, seed=draw(st.integers(0, 9)), leveling=leveling), w


def happen(draw, ledger: Ledger) -> None:
    """One change, drawn."""
    e = ledger.epoch
    there, gone = np.flatnonzero(~e.away), np.flatnonzero(e.away)
    new = np.array([draw(batch) for _ in range(e.nodes)])
    new[e.away] = 0
    what = draw(st.sampled_from(["resplit", "leave", "die", "join", "take"]))
    if what == "resplit":
        e.resplit(new)
        ledger.last = []
    elif what in ("leave", "die") and len(there) > 1:
        some = draw(st.sets(st.sampled_from(there.tolist()), max_size=len(there) - 1, min_size=1))
        left = e.leave(sorted(some), unfinished=what == "die")
        if what == "die":
            ledger.undone(some)
        assert (left == e.private_left[sorted(some)]).all()
    elif what == "join" and len(gone):
        node = draw(st.sampled_from(gone.tolist()))
        new[node] = draw(batch)
        e.join([node], new)
        ledger.last = []
    elif e.left:
        ledger.take()


@given(beginnings(), st.data())
def test_every_sample_once_whatever_happens(beginning, data):
    epoch, w = beginning
    epoch.start(w)
    ledger = Ledger(epoch)
    for _ in range(data.draw(st.integers(0, 25))):
        happen(data.draw, ledger)
        ledger.check_left()
    while epoch.left:
        before, batches = epoch.left, epoch.batches
        samples = ledger.take()
        assert (samples <= batches).all(), "more than a node's batch"
        assert epoch.left == before - samples.sum() and samples.sum()
    assert epoch.steps_left == 0
    ledger.check_end()
    with pytest.raises(InputError, match="the epoch is over"):
        epoch.take()


@given(beginnings())
def test_steps_are_alike_and_as_many_as_eq_1_has(beginning):
    """Dataset / sum(BS) of them, rounded up; between two changes they differ by a sample at most,
    in whole and on each node; each node's samples of the epoch are Eq. 1's, within one."""
    epoch, w = beginning
    data = epoch.public + int(epoch.private.sum())
    epoch.start(w)
    repeats = epoch.left > data
    steps = epoch.steps_left
    assert repeats or steps == -(-data // int(w.sum()))
    ledger = Ledger(epoch)
    taken = np.array([ledger.take() for _ in range(steps)]).reshape(steps, epoch.nodes)
    assert not epoch.left and epoch.step == steps
    ledger.check_end()
    if steps:
        assert np.ptp(taken.sum(axis=1)) <= 1 and (np.ptp(taken, axis=0) <= 1).all()
        if not repeats:
            assert (abs(taken.sum(axis=0) - data * w / w.sum()) <= 1).all()


def test_the_paper_at_24_drives():
    """84,000 images in 92 steps of 913 or 914; 500 private ones on each drive, 5 or 6 a step."""
    epoch = Epoch(72_000, [0] + 24 * [500])
    epoch.start([315] + 24 * [25])
    assert epoch.steps_left == 92
    totals, own = [], []
    while epoch.left:
        take = epoch.take()
        totals.append(int(take.samples.sum()))
        own.append(take.private_length)
    assert sorted(set(totals)) == [913, 914] and sum(totals) == 84_000
    assert (np.sum(own, axis=0) == [0] + 24 * [500]).all()
    assert set(np.array(own)[:, 1:].flat) == {5, 6}


# --- changes, by hand


def test_a_slower_drive_lengthens_the_epoch_for_its_private_data():
    """Half-way it has 50 private images left; at batch 5 they need 10 steps, where the others' 400
    public ones alone would have taken 450 / 85 = 5.3: these go on in smaller batches."""
    epoch = Epoch(800, [0, 100])
    epoch.start([80, 10])
    for _ in range(5):
        epoch.take()
    assert (epoch.public_left, epoch.private_left.tolist()) == (400, [0, 50])
    epoch.resplit([80, 5])
    assert epoch.steps_left == 10
    for _ in range(10):
        assert epoch.take().samples.tolist() == [40, 5]
    assert not epoch.left


def test_with_repetition_the_others_repeat_instead():
    """The same with 60 private images on the host: its batches stay full, of its own once more."""
    epoch = Epoch(400, [60, 100], leveling="repeat")
    epoch.start([46, 10])
    for _ in range(5):
        epoch.take()
    epoch.resplit([46, 5])
    steps = epoch.steps_left
    totals = [epoch.take().samples.tolist() for _ in range(steps)]
    assert totals == steps * [[46, 5]]
    assert epoch.repeated[0] > 0 and epoch.repeated[1] == 0 and not epoch.left


def test_a_host_with_nothing_to_repeat_waits_for_slow_drives():
    """The drive's 50 images at batch 1 take 50 steps; the host would need 50 x 80 public images for
    full batches, 400 are left: the epoch is lengthened, not refused."""
    epoch = Epoch(800, [0, 100], leveling="repeat")
    epoch.start([80, 10])
    for _ in range(5):
        epoch.take()
    epoch.resplit([80, 1])
    assert epoch.steps_left == 50
    while epoch.left:
        assert epoch.take().samples.tolist() == [8, 1]
    assert not epoch.repeated.any() and epoch.step == 55


def test_two_may_die_in_one_step():
    """The second is known to be dead after the first: what both had taken comes back."""
    epoch = Epoch(100, [0, 10, 10, 10])
    epoch.start([20, 5, 5, 5])
    take = epoch.take()
    epoch.leave([1])
    assert epoch.leave([2]).tolist() == [10]
    done = take.public[[0, 3]].sum()
    assert epoch.public_left == 100 - done and epoch.deferred == 20
    assert epoch.leave([3], unfinished=False).tolist() == [10 - take.private_length[3]]


def test_a_dead_drive_gives_back_what_it_had_taken():
    epoch = Epoch(100, [0, 10, 10], seed=3)
    epoch.start([20, 5, 5])
    first = epoch.take()
    mine = first.public_node == 1
    left = epoch.leave([1])
    assert left.tolist() == [10] and epoch.deferred == 10
    again = epoch.take()
    back = set(zip(first.public_start[mine], first.public_length[mine], strict=True))
    begins = {int(s) for s in again.public_start}
    assert {int(s) for s, _ in back} <= begins, "the next step begins with them"
    others = int(first.public.sum() - first.public[1])
    assert epoch.public_left == 100 - others - int(again.public.sum())
    assert again.samples[1] == 0 and epoch.batches.tolist() == [20, 0, 5]


def test_one_that_left_in_peace_has_finished():
    epoch = Epoch(100, [0, 10])
    epoch.start([20, 5])
    taken = int(epoch.take().private_length[1])
    assert taken > 0
    assert epoch.leave([1], unfinished=False).tolist() == [10 - taken]
    epoch.join([1], [20, 5])
    assert epoch.private_left.tolist() == [0, 10 - taken] and not epoch.deferred


def test_a_fleet_of_100000():
    """Ten steps with departures, returns and new batches: no loop over nodes."""
    n = 100_000
    rng = np.random.default_rng(7)
    epoch = Epoch(10**8, np.full(n, 100))
    epoch.start(np.full(n, 25))
    taken = 0
    for i in range(10):
        take = epoch.take()
        if i % 3 == 0:
            dead = np.arange(50) + 100 * i
            epoch.leave(dead)
            taken -= int(take.samples[dead].sum())
        elif i % 3 == 1:
            w = rng.integers(15, 30, n)
            epoch.resplit(np.where(epoch.away, 0, w))
        else:
            back = np.flatnonzero(epoch.away)[:20]
            epoch.join(back, np.where(epoch.away, 0, epoch.batches) + np.isin(np.arange(n), back))
        taken += int(take.samples.sum())
        assert taken == 10**8 + 10**7 - epoch.public_left - int(epoch.private_left.sum())


# --- what is refused

SMALL = {"public": 100, "private": [0, 10, 10]}


def started() -> Epoch:
    epoch = Epoch(**SMALL)
    epoch.start([20, 5, 5])
    return epoch


def away() -> Epoch:
    epoch = started()
    epoch.leave([1])
    return epoch


@pytest.mark.parametrize(
    ("make", "call", "words"),
    [
        (
            lambda: Epoch(10, [0, 9]),
            lambda e: e.start([2, 1]),
            "node 1: 9 private samples are more",
        ),
        (lambda: Epoch(**SMALL), lambda e: e.take(), "the epoch has not started"),
        (started, lambda e: e.start([20, 5, 5]), "the epoch has started; call resplit"),
        (started, lambda e: e.resplit([20, 5]), "2 batches for 3 nodes"),
        (started, lambda e: e.resplit([20, 0, 5]), "node 1: batch 0, but 10 private samples"),
        (started, lambda e: e.resplit([20, -1, 5]), "node 1: batch -1"),
        (
            started,
            lambda e: e.leave([3]),
            r"nodes \[3\]: must be one or more distinct nodes from 0 to 2",
        ),
        (started, lambda e: e.leave([1, 1]), r"nodes \[1, 1\]"),
        (started, lambda e: e.leave([0, 1, 2]), "node 0 is the last node that trains"),
        (started, lambda e: e.join([1], [20, 5, 5]), "node 1 is present; call resplit"),
        (away, lambda e: e.leave([1]), "node 1 has already left"),
        (
            away,
            lambda e: e.resplit([20, 5, 5]),
            "node 1 has left, but its batch size is 5; call join",
        ),
        (away, lambda e: e.join([1], [20, 0, 5]), "node 1: batch 0, but 10 private samples"),
        (lambda: None, lambda e: Epoch(1, [-1]), "node 0: private samples -1"),
        (lambda: None, lambda e: Epoch(-1, [0]), "-1 samples"),
        (lambda: None, lambda e: Epoch(1, [0], leveling="x"), "leveling 'x'"),
        (
            lambda: Epoch(10**10, [0]),
            lambda e: e.start([1]),
            "node 0: 10000000000 samples in an epoch",
        ),
    ],
)
def test_refused_and_unchanged(make, call, words):
    """One line, and the epoch goes on as if nothing had been asked."""
    epoch, untouched = make(), make()
    with pytest.raises(InputError, match=words) as caught:
        call(epoch)
    assert "\n" not in str(caught.value)
    if untouched is not None and epoch.batches.any():
        assert (epoch.nodes, epoch.left, epoch.steps_left) == (
            untouched.nodes, untouched.left, untouched.steps_left,
        )  # fmt: skip
        assert (epoch.take().samples == untouched.take().samples).all()


def test_an_epoch_of_nothing():
    epoch = Epoch(0, [0, 0])
    epoch.start([3, 2])
    assert (epoch.left, epoch.steps_left) == (0, 0)


# --- its parts


@given(st.integers(0, 3000), st.integers(0, 99), st.integers(0, 99))
def test_a_shuffle_is_a_permutation(n, seed, other):
    order = Shuffle(n, seed, 1)(np.arange(n))
    assert sorted(order) == list(range(n))
    assert (Shuffle(n, seed, 1)(np.arange(n)) == order).all(), "the same for the same seed"
    if n > 50 and seed != other:
        assert (Shuffle(n, other, 1)(np.arange(n)) != order).any()


def test_a_shuffle_mixes():
    """Of 10,000: no position keeps its neighbour more often than by chance, and the first half of
    positions holds about half of the first half of indices (5,000 +- 5 sigma of 35 / 2)."""
    order = Shuffle(10_000, 5)(np.arange(10_000))
    assert (np.diff(order) == 1).sum() < 10
    assert abs((order[:5000] < 5000).sum() - 2500) < 5 * 25
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05


def test_a_shuffle_of_anything():
    big = Shuffle(10**15, 1)
    found = big(np.arange(1000).reshape(10, 100))
    assert found.shape == (10, 100) and len(np.unique(found)) == 1000
    assert 0 <= found.min() and found.max() < 10**15
    with pytest.raises(InputError, match="position 3: must be from 0 to 2"):
        Shuffle(3, 1)(np.array([3]))
    with pytest.raises(InputError, match="position -1: must be from 0 to 2"):
        Shuffle(3, 1)(np.array([-1]))
    with pytest.raises(InputError, match="-1 samples to shuffle"):
        Shuffle(-1, 1)


@given(
    st.integers(0, 200),
    st.lists(st.tuples(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.booleans())),
)
def test_ranges_hand_out_every_position_once(n, steps):
    """Against a plain list: taken from the front, put back to it."""
    ranges, plain = Ranges(n), list(range(n))
    for wanted, back in steps:
        wanted = np.minimum(wanted, max(len(plain) // len(wanted), 0))
        node, start, length = ranges.take(wanted)
        got = [
            (int(i), p)
            for i, s, size in zip(node, start, length, strict=True)
            for p in range(int(s), int(s + size))
        ]
        given_out, plain = plain[: int(wanted.sum())], plain[int(wanted.sum()) :]
        assert [p for _, p in got] == given_out
        assert [i for i, _ in got] == np.repeat(np.arange(len(wanted)), wanted).tolist()
        if back:
            ranges.put_back(start, length)
            plain = given_out + plain
        assert ranges.total == len(plain)
