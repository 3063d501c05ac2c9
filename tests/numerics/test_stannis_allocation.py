"""Does Eq. 1 give the paper's split, keep private data at home and lose no sample?"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.stannis import ring
from ondie.emu.stannis.allocation import largest_remainder, levelled, longest, split
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
    for given, samples, batch in zip(plan.public, plan.samples, batches, strict=True):
        assert 0 <= given and 0 <= data * batch - samples * whole < whole


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
        (lambda: split([2, 1], 10, [0]), "private data of 1 nodes, batches of 2"),
        (lambda: split([2, -1], 10, [0, 0]), "node 1: batch -1"),
        (lambda: split([2, 1], -10, [0, 0]), "-10 samples"),
        (lambda: split([2, 1], 10, [0, -3]), "node 1: private samples -3"),
        (lambda: split([0, 0], 10, [0, 0]), "every node has batch 0"),
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
