"""Does Eq. 1 give the paper's split, keep private data at home and lose no sample?"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.cluster.collectives import ring
from ondie.emu.cluster.data_split import largest_remainder, longest, split
from ondie.emu.units import InputError


def test_split_of_the_paper_at_24_drives():
    """84,000 samples over 315 + 24 x 25 = 915: CSD 2295.08, of them 12,000 / 24 = 500 private;
    host 28918.03; 84,000 / 915 = 91.8 steps; 84,000 - 28,918 - 24 x 2,295 = 2 are left."""
    plan = split([315] + 24 * [25], 72_000, [0] + 24 * [500])
    assert (plan.private[0], plan.public[0]) == (0, 28_918)
    assert (plan.private[1:] == 500).all() and (plan.public[1:] == 1_795).all()
    assert not plan.repeated.any()
    assert plan.steps == Fraction(84_000, 915) and round(float(plan.steps), 1) == 91.8
    assert plan.left == 2


def test_unequal_private_parts_are_levelled_with_public_data():
    plan = split([2, 1, 1], 70, [0, 20, 10])
    assert plan.private.tolist() == [0, 20, 10]
    assert plan.public.tolist() == [50, 5, 15]
    assert (plan.steps, plan.left) == (25, 0)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 50)), min_size=1, max_size=30),
    st.integers(0, 100_000),
)
def test_every_sample_is_somewhere_and_private_ones_at_home(nodes, public):
    batches, private = zip(*nodes, strict=True)
    data, whole = public + sum(private), sum(batches)
    if not whole or any(p > data * b // whole for b, p in nodes):
        with pytest.raises(InputError):
            split(batches, public, private)
        return
    plan = split(batches, public, private)
    assert tuple(plan.private) == private and not plan.repeated.any()
    assert plan.public.sum() + plan.left == public
    assert 0 <= plan.left < len(nodes)
    for public_part, samples, batch in zip(plan.public, plan.samples, batches, strict=True):
        assert 0 <= public_part and 0 <= data * batch - samples * whole < whole


def test_private_data_are_repeated_where_public_do_not_suffice():
    """Node 2 needs 60 / 2 = 30 steps: 30 x (4, 1, 2) = 120, 30, 60 samples. The host has nothing to
    repeat and gets 120 of the 130 public ones; node 1 the other 10, and 30 - 12 - 10 = 8 of its own
    once more. With public data alone, node 2's share would be 202 x 2 / 7 = 57."""
    plan = split([4, 1, 2], 130, [0, 12, 60], "repeat")
    assert plan.public.tolist() == [120, 10, 0]
    assert plan.repeated.tolist() == [0, 8, 0]
    assert (plan.steps, plan.left) == (30, 0)
    with pytest.raises(InputError, match="node 2: 60 private samples are more than its share"):
        split([4, 1, 2], 130, [0, 12, 60])
    enough = split([4, 1, 2], 1000, [0, 12, 60], "repeat")
    assert not enough.repeated.any() and enough.steps == Fraction(1072, 7)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 300)), min_size=1, max_size=30),
    st.integers(0, 5_000),
)
def test_repetition_is_levelled(nodes, public):
    """Every node trains for the same number of steps, public data are all given out, and nobody
    repeats its data more often than needed: whoever gets public data does not end up with fewer
    passes over its own than another, by more than a sample."""
    batches, private = (np.array(part) for part in zip(*nodes, strict=True))
    data, whole = public + int(private.sum()), int(batches.sum())
    level = max(Fraction(int(p), int(b)) for p, b in zip(private, batches, strict=True))
    try:
        plan = split(batches, public, private, "repeat")
    except InputError as error:
        bare = sum(int(level * int(b)) for b, p in nodes if p == 0)
        assert "no private samples to repeat" in str(error) and bare > public
        return
    assert (plan.private == private).all() and (plan.repeated >= 0).all()
    assert plan.public.sum() + plan.left == public and 0 <= plan.left < len(nodes)
    assert plan.steps >= Fraction(data, whole) and plan.steps >= level or not plan.repeated.any()
    if not plan.repeated.any():
        return
    assert plan.steps == level and plan.left == 0
    assert all(s == int(level * int(b)) for s, b in zip(plan.samples, batches, strict=True))
    own = np.flatnonzero(private > 0)
    passes = 1 + plan.repeated[own] / private[own]
    given_some = plan.public[own] > 0
    if given_some.any():
        lowest = passes[given_some] + 2 / private[own][given_some]
        assert passes.max() <= lowest.min() + 2 / private[own].min()


@pytest.mark.parametrize(
    "own, batches, steps",
    [
        ([7, 9, 100], [2, 3, 0], Fraction(7, 2)),  # batch 0 is ignored
        ([9, 7], [4, 2], Fraction(7, 2)),  # the most samples are not the most steps
        ([10**10, 10**10 + 1], [1, 1], Fraction(10**10 + 1)),  # within 1e-9 of each other
        ([2**53 + 1, 2**53], [1, 1], Fraction(2**53 + 1)),  # equal as floats
        ([2**53, 2**53 + 1], [1, 1], Fraction(2**53 + 1)),
        ([0, 0], [5, 1], Fraction(0)),
    ],
)
def test_the_longest_node_decides_exactly(own, batches, steps):
    assert longest(np.array(own), np.array(batches)) == steps


def test_repetition_takes_the_steps_of_the_longest_node():
    """10^10 + 1 private samples of node 1 by batch 1, none public: as many steps, in which node 0
    repeats one of its 10^10."""
    found = split([1, 1], 0, [10**10, 10**10 + 1], leveling="repeat")
    assert found.steps == 10**10 + 1


def test_a_fleet_is_split_at_once():
    """100,000 nodes, 10^12 samples: exact, without a loop over nodes."""
    batches = np.arange(100_000) % 40 + 1
    parts = largest_remainder(10**12, batches)
    assert parts.sum() == 10**12
    exact = Fraction(10**12 * 40, int(batches.sum()))
    assert {int(p) for p in parts[39::40]} <= {int(exact), int(exact) + 1}
    plan = split(batches, 10**10, np.full(100_000, 1000))
    assert plan.samples.sum() + plan.left == 10**10 + 10**8 and 0 <= plan.left < 100_000


@given(st.integers(0, 10**6), st.lists(st.integers(0, 1000), min_size=1, max_size=40))
def test_a_batch_is_split_exactly(total, weights):
    if not sum(weights):
        with pytest.raises(InputError, match="every node has weight 0"):
            largest_remainder(total, weights)
        return
    parts = largest_remainder(total, weights)
    assert parts.sum() == total and parts.dtype == np.int64
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part * sum(weights) - total * weight) < sum(weights)
        assert weight or not part


def test_what_the_floors_leave_goes_to_the_largest_remainders():
    """10 x (3, 2, 2) / 7 = 4.29, 2.86, 2.86; of equals the earlier: 4 x (1, 1, 1) / 3."""
    assert largest_remainder(10, [3, 2, 2]).tolist() == [4, 3, 3]
    assert largest_remainder(4, [1, 1, 1]).tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: split([2, 1], 10, [0, 9]), "node 1: 9 private samples are more than its share"),
        (lambda: split([2, 1], 10, [0]), "private samples of 1 nodes, batches of 2"),
        (lambda: split([2, -1], 10, [0, 0]), "node 1: batch -1"),
        (lambda: split([2, 1], -10, [0, 0]), "-10 samples"),
        (lambda: split([2, 1], 10, [0, -3]), "node 1: private samples -3"),
        (lambda: split([0, 0], 10, [0, 0]), "every node has batch 0"),
        (lambda: split([2, 1], 10, [0, 0.5]), "private samples: must be whole numbers, .* not 0.5"),
        (
            lambda: split([2, 1], 10, [0, 0], "repeat it"),
            "leveling 'repeat it': unknown; nearest: repeat",
        ),
        (
            lambda: split([4, 1], 10, [0, 9], "repeat"),
            "node 0: no private samples to repeat, .* 36",
        ),
        (lambda: split([4, 0], 10, [0, 9], "repeat"), "node 1: 9 private samples and batch 0"),
        (lambda: largest_remainder(1, [1 << 40, 1 << 40]), "too large to split exactly"),
        (lambda: split([], 10, []), "every node has batch 0"),
        (lambda: largest_remainder(-1, [1]), "-1 samples to split"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("nodes", [2, 3, 5, 25])
def test_the_ring_sums(nodes):
    """Walk the hops on values. In ring step s node i sends piece (i - s) mod n; a hop may use only
    what the hops it awaits (and those they await) have brought."""
    rng = np.random.default_rng(nodes)
    values = rng.integers(0, 1000, (nodes, nodes))  # node, piece
    wanted = values.sum(axis=0)
    hop = np.arange(ring.steps(nodes) * nodes)
    data, own = ring.awaited(hop, nodes)
    assert (ring.sender(hop, nodes) == hop % nodes).all()
    assert (data[:nodes] == -1).all() and (own[:nodes] == -1).all()
    held = values.copy()
    brought: dict[int, tuple[int, int]] = {}  # hop -> (receiver, piece)
    for step in range(ring.steps(nodes)):
        sent = held.copy()
        for i in range(nodes):
            h, piece, to = step * nodes + i, (i - step) % nodes, (i + 1) % nodes
            if step:
                assert brought[data[h]] == (i, piece) and own[h] == h - nodes
            held[to, piece] = sent[i, piece] + (held[to, piece] if step < nodes - 1 else 0)
            brought[h] = (to, piece)
    assert (held == wanted).all()
    last = ring.last_arrivals(nodes)
    assert [brought[int(h)][0] for h in last] == list(range(nodes))
    assert (last >= len(hop) - nodes).all()


def test_ring_pieces():
    """ceil(10 / 4) = 3 bytes in each of 2 x 3 steps."""
    assert (ring.piece_bytes(10, 4), ring.steps(4)) == (3, 6)
