"""Are weighted gradients the mean of the whole batch, and is what Horovod's mean makes of them as
biased and as noisy as the formulas say?"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.cluster.collectives import ring
from ondie.emu.cluster.gradient_weighting import (
    EXCHANGES,
    all_reduce,
    bias,
    by_batch,
    by_rank,
    effective_batch,
    noise,
    relative_weight,
    sample_weights,
    spread,
)
from ondie.emu.units import InputError

PAPER = [315] + 24 * [25]
BATCHES = st.lists(st.integers(0, 400), min_size=1, max_size=20).filter(any)


def test_a_drives_sample_counts_12_6_host_samples():
    """315 / 25 = 12.6. By batch each counts 1; by rank 915 / 25 of a host's: 915 / (25 x 315) of
    the mean's 1, and 915 / (25 x 25) of a drive's."""
    assert relative_weight(PAPER, by_rank(PAPER), 1) == pytest.approx(12.6)
    assert relative_weight(PAPER, by_batch(PAPER), 1) == pytest.approx(1)
    assert sample_weights(PAPER, by_batch(PAPER)) == pytest.approx(25 * [1])
    counts = sample_weights(PAPER, by_rank(PAPER))
    assert counts == pytest.approx([915 / (25 * 315)] + 24 * [915 / (25 * 25)])


def test_effective_batches():
    """25^2 / (1/315 + 24/25) = 648.9 of 915; 2^2 / (1/315 + 1/25) = 92.6 of 340."""
    assert effective_batch(PAPER, by_rank(PAPER)) == pytest.approx(648.89, rel=1e-5)
    assert effective_batch(PAPER, by_batch(PAPER)) == pytest.approx(915)
    assert effective_batch([315, 25], by_rank([315, 25])) == pytest.approx(92.65, rel=1e-4)


def test_nodes_that_left_or_have_no_samples():
    """A joined rank of Horovod's counts in n, one that has left does not."""
    batches, there = [30, 0, 10, 20], np.array([True, True, True, False])
    assert by_batch(batches, there) == pytest.approx([0.75, 0, 0.25, 0])
    assert by_rank(batches, there) == pytest.approx([1 / 3, 0, 1 / 3, 0])
    assert by_rank(batches) == pytest.approx([1 / 4, 0, 1 / 4, 1 / 4])
    assert sample_weights(batches, by_batch(batches)) == pytest.approx([1, 0, 1, 1])


@given(BATCHES)
def test_weights_by_batch_leave_no_bias_and_no_noise(batches):
    w = by_batch(batches)
    assert w.sum() == pytest.approx(1) and (w >= 0).all()
    assert effective_batch(batches, w) == pytest.approx(sum(batches))
    means = np.random.default_rng(sum(batches)).normal(size=(len(batches), 7))
    assert bias(batches, w, means) == pytest.approx(np.zeros(7), abs=1e-12)
    assert noise(batches, w, 1.0) == pytest.approx(0, abs=1e-12)
    even = by_rank(batches)
    assert effective_batch(batches, even) <= sum(batches) * (1 + 1e-12)
    assert noise(batches, even, 1.0) >= -1e-12


def test_the_noise_is_the_mean_over_all_ways_to_deal():
    """Six samples dealt to nodes of 3, 2 and 1 in all 720 orders: mean and mean square distance of
    Horovod's mean, and of a mean in which a rank counts with zeros."""
    samples = np.random.default_rng(5).normal(size=(6, 4))
    for batches, w in (([3, 2, 1], by_rank([3, 2, 1])), ([3, 3, 0], by_rank([3, 3, 0]))):
        edges = np.cumsum(batches)[:-1]
        found = np.array([
            sum(w[i] * part.mean(axis=0) for i, part in enumerate(np.split(samples[list(p)], edges))
                if len(part))
            for p in itertools.permutations(range(6))
        ])  # fmt: skip
        mean = w.sum() * samples.mean(axis=0)
        assert found.mean(axis=0) == pytest.approx(mean)
        square = np.square(found - mean).sum(axis=1).mean()
        assert noise(batches, w, spread(samples)) == pytest.approx(square)


def test_the_bias_is_what_unequal_data_leave():
    """Nodes whose data differ: the mean of ranks is off by sum (1/n - b_i/B) G_i, here
    (1/2 - 3/4) (1, 0) + (1/2 - 1/4) (0, 1)."""
    assert bias([3, 1], by_rank([3, 1]), np.eye(2)) == pytest.approx([-0.25, 0.25])
    same = np.ones((2, 5))
    assert bias([3, 1], by_rank([3, 1]), same) == pytest.approx(np.zeros(5))


# --- the sum


@pytest.mark.parametrize("exchange", EXCHANGES)
@given(BATCHES, st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_the_sum_is_within_its_roundings(exchange, batches, size, seed):
    rng = np.random.default_rng(seed)
    g = [rng.normal(size=size).astype(np.float32) for _ in batches]
    w = by_batch(batches)
    before = [a.copy() for a in g]
    found = all_reduce(g, w, exchange)
    exact, scale = (np.tensordot(w, f(np.array(g, np.float64)), 1) for f in (np.array, np.abs))
    assert (np.abs(found - exact) <= (len(g) + 1) * 2.0**-24 * scale + 1e-37).all()
    assert found.dtype == np.float32 and found.shape == (size,)
    assert all_reduce(g, w, exchange).tobytes() == found.tobytes()
    assert all(np.array_equal(a, b) for a, b in zip(g, before, strict=True))


def test_the_orders_of_addition():
    """With M = 2^24, M + 1 is M in float32, so that it shows what meets what. Node after node:
    ((M + 1) + 1) - M = 0. The second piece of the ring begins at node 1: ((1 + 1) - M) + M = 2, the
    third ((1 - M) + M) + 1 = 2, the last ((-M + M) + 1) + 1 = 2. Tree: (M + 1) + (1 - M) = 1."""
    values = [2.0**24, 1, 1, -(2.0**24)]
    g = [np.full(4, v, np.float32) for v in values]
    ones = np.ones(4)
    assert all_reduce(g, ones, "star").tolist() == [0, 0, 0, 0]
    assert all_reduce(g, ones, "ring").tolist() == [0, 2, 2, 2]
    assert all_reduce(g, ones, "tree").tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("nodes, size", [(2, 7), (3, 3), (5, 64), (5, 3)])
def test_the_rings_order_is_that_of_its_hops(nodes, size):
    """Walked hop by hop as ring.py numbers them."""
    rng = np.random.default_rng(nodes)
    g = [rng.normal(size=size).astype(np.float32) for _ in range(nodes)]
    w = rng.random(nodes)
    held = [np.float32(x) * a for x, a in zip(w, g, strict=True)]
    piece = -(-size // nodes)
    for hop in range((nodes - 1) * nodes):
        i = int(ring.sender(np.array(hop), nodes))
        p = (i - hop // nodes) % nodes
        at, to = slice(p * piece, (p + 1) * piece), (i + 1) % nodes
        held[to][at] = held[i][at] + held[to][at]
    wanted = np.concatenate([held[(p - 1) % nodes][p * piece : (p + 1) * piece]
                             for p in range(nodes)])  # fmt: skip
    assert all_reduce(g, w, "ring").tobytes() == wanted.tobytes()


def test_who_takes_no_part_changes_nothing():
    g = np.arange(4, dtype=np.float32)
    bad = np.full(4, np.nan, np.float32)
    for exchange in EXCHANGES:
        assert all_reduce([g, None, g], [0.5, 0, 0.5], exchange).tolist() == g.tolist()
        assert all_reduce([g, bad, g], [0.5, 0, 0.5], exchange).tolist() == g.tolist()
    assert np.isnan(all_reduce([g, bad], [0.5, 0.5])).all()


def test_a_hundred_thousand_nodes():
    batches = np.full(100_000, 25)
    batches[0], batches[7] = 315, 0
    there = np.arange(100_000) % 10 != 3
    assert by_batch(batches, there).sum() == pytest.approx(1)
    assert relative_weight(batches, by_rank(batches, there), 1) == pytest.approx(12.6)
    g = np.ones((100_000, 3), np.float32)
    assert all_reduce(g, by_batch(batches), "tree") == pytest.approx(np.ones(3), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: by_batch([]), "a whole number per node"),
        (lambda: by_batch([1.5]), "float64 of shape"),
        (lambda: by_batch([[1], [2]]), "shape"),
        (lambda: by_batch([3, -1]), "node 1: batch -1"),
        (lambda: by_batch([0, 0]), "no node that is present has a sample"),
        (lambda: by_rank([0, 3], [True, False]), "no node that is present has a sample"),
        (lambda: by_batch([1, 2], [True]), "true or false for each of 2 nodes"),
        (lambda: by_batch([1, 2], [1, 0]), "true or false for each of 2 nodes"),
        (lambda: sample_weights([1, 2], [1.0]), "weights of 1 nodes, batches of 2"),
        (lambda: sample_weights([1, 0], [0.5, 0.5]), "node 1: weight 0.5 and no sample"),
        (lambda: sample_weights([1, 1], [0, 0]), "every weight is 0"),
        (lambda: sample_weights([1, 1], [1, np.nan]), "node 1: weight nan"),
        (lambda: sample_weights([1, 1], [[1, 1]]), "one number per node"),
        (lambda: relative_weight([1, 1], [1, 1], 2), "node 2: 0 to 1"),
        (lambda: relative_weight([0, 1], [0, 1], 1), "node 0: its samples count nothing"),
        (lambda: bias([1, 1], [0.5, 0.5], np.ones((3, 2))), "gradients of 3 nodes, batches of 2"),
        (lambda: bias([1, 1], [0.5, 0.5], 1.0), "gradients of 0 nodes"),
        (lambda: spread(np.ones((1, 4))), "two samples or more"),
        (lambda: all_reduce([], []), "no node has a gradient"),
        (lambda: all_reduce([None], [0]), "no node has a gradient"),
        (lambda: all_reduce([None], [1]), "node 0: weight 1 and no gradient"),
        (lambda: all_reduce([np.ones(2, "f4")], [1, 1]), "gradients of 1 nodes, weights of 2"),
        (lambda: all_reduce([np.ones(2)], [1]), r"node 0: gradient float64\[2\]"),
        (lambda: all_reduce([np.ones(n, "f4") for n in (2, 3)], [1, 1]), r"node 1: .*32\[2\] is"),
        (lambda: all_reduce([np.ones(2, "f4")], [-1]), "node 0: weight -1"),
        (lambda: all_reduce([np.ones(2, "f4")], [1], "rings"), "'rings'; nearest: ring"),
    ],
)  # fmt: skip
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
