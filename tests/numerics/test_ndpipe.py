"""Do layer tables, the selection of a cut and the bounds of fine-tuning compute what their
definitions say?"""

import dataclasses
import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from ondie.emu.ndpipe import convergence
from ondie.emu.ndpipe.architectures import NETWORKS, network
from ondie.emu.ndpipe.layers import Builder
from ondie.emu.ndpipe.partition import (
    FP16,
    Fleet,
    best_cut,
    enough_stores,
    fleet,
    rates,
    traffic_ratio,
)
from ondie.emu.ndpipe.servers import SERVERS, server
from ondie.emu.units import InputError

# --- layer tables


@pytest.mark.parametrize("name", NETWORKS)
def test_stages_are_the_layers(name):
    net = network(name)
    assert sum(stage.macs for stage in net.stages) == net.macs
    assert sum(stage.params for stage in net.stages) == net.params
    for stage in net.stages:
        mine = [layer for layer in net.layers if layer.stage == stage.name]
        assert stage.macs == sum(layer.macs for layer in mine) and mine
    assert net.cuts == ("input", *(stage.name for stage in net.stages[:-1]))
    assert net.crossing("input") == net.inputs and net.macs_before("input") == 0


def test_resnet50_by_cut():
    net = network("resnet50")
    found = {cut: (net.macs_before(cut), net.crossing(cut)) for cut in net.cuts}
    assert found == {
        "input": (0, 150528),
        "stem": (118013952, 200704),
        "layer1": (785956864, 802816),
        "layer2": (1813561344, 401408),
        "layer3": (3277897728, 200704),
        "layer4": (4087136256, 100352),
        "avgpool": (4087136256, 2048),
    }


def test_a_layer_by_hand():
    build = Builder("small", "Small", (4, 9, 7))
    shape = build.conv((4, 9, 7), "conv", 6, (3, 1), stride=2, pad=(1, 0), groups=2)
    assert shape == (6, 5, 4)
    assert build.pool(shape, "pool", 3, 2, 1) == (6, 3, 2)
    build.dense(6, "dense", 10, 3)
    build.attention(3, 8, "attention")
    build.end_stage("all", shape)
    conv, pool, dense, attention = build.network().layers
    assert (conv.params, conv.macs, conv.outputs) == (36 + 12, 36 * 20, 120)
    assert (pool.params, pool.macs, pool.outputs) == (0, 0, 36)
    assert (dense.params, dense.macs, dense.outputs) == (70, 180, 30)
    assert (attention.macs, attention.outputs) == (2 * 3 * 3 * 8, 24)


@pytest.mark.parametrize("cut", ["layer5", "conv1", ""])
def test_a_cut_that_is_no_layer_is_named(cut):
    with pytest.raises(InputError, match=f"ResNet50, cut '{cut}': the network has no such cut"):
        rates(network("resnet50"), cut, fleet(4))


def test_the_head_is_no_cut():
    with pytest.raises(InputError, match="cut 'fc': this layer is trained"):
        network("resnet50").macs_before("fc")
    with pytest.raises(InputError, match="network 'resnet51'"):
        network("resnet51")
    with pytest.raises(InputError, match="server 'p4'"):
        server("p4")


# --- cut


def drawn(rng: np.random.Generator) -> Fleet:
    return Fleet(int(rng.integers(1, 40)), *(10 ** rng.uniform(9, 14, 4)), int(rng.integers(1, 9)))


def test_the_cut_has_the_highest_throughput_and_the_least_traffic(counts):
    rng = np.random.default_rng(5)
    chosen = set()
    for name in itertools.islice(itertools.cycle(NETWORKS), counts(100, 1000)):
        net, servers = network(name), drawn(rng)
        found = best_cut(net, servers)
        for cut in net.cuts:
            other = rates(net, cut, servers)
            assert other.throughput <= found.throughput
            if other.throughput == found.throughput:
                assert other.crossing_bytes >= found.crossing_bytes
        chosen.add((name, found.cut))
    assert len(chosen) > 20


def test_rates_by_hand():
    net = network("resnet50")
    found = rates(net, "layer3", Fleet(3, 1e12, 1e9, 4e12, 2e9, epochs=5))
    size = FP16 * 200704
    assert found.crossing_bytes == size
    assert found.stores == pytest.approx(3e12 / 3277897728)
    assert found.store_network == pytest.approx(3e9 / size)
    assert found.tuner_network == pytest.approx(2e9 / size)
    assert found.tuner == pytest.approx(4e12 / (net.macs - 3277897728 + 5 * 2 * 2048000))
    assert found.throughput == found.stores and found.limited_by == "stores"
    assert rates(net, "input", fleet(1)).stores == math.inf


def test_enough_stores_is_the_smallest_number(counts):
    rng = np.random.default_rng(6)
    for name in itertools.islice(itertools.cycle(NETWORKS), counts(20, 200)):
        net, servers = network(name), drawn(rng)
        count = enough_stores(net, servers)
        best = [
            best_cut(net, dataclasses.replace(servers, stores=stores)).throughput
            for stores in (max(1, count - 1), count, count + 1)
        ]
        assert best[1] == best[2] and (count == 1 or best[0] < best[1])


def test_cuts_before_layer4_increase_the_traffic():
    net = network("resnet50")
    ratios = {cut: traffic_ratio(net, cut) for cut in net.cuts}
    assert all(ratios[cut] > 1 for cut in ("stem", "layer1", "layer2", "layer3"))
    assert ratios["layer4"] == pytest.approx(2 / 3) and ratios["avgpool"] == 2048 / 150528


@pytest.mark.parametrize("field", ["store_macs_per_s", "tuner_bytes_per_s"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_a_wrong_rate_is_named(field, value):
    with pytest.raises(InputError, match=f"{field} = "):
        dataclasses.replace(fleet(1), **{field: value})


def test_servers():
    with pytest.raises(InputError, match="stores = 0"):
        fleet(0)
    assert server("host").macs_per_s == 2 * server("tuner").macs_per_s
    for name in SERVERS:
        assert server(name).price > 0 and server(name).bytes_per_s in (1.25e9, 3.125e9)


# --- bounds


def test_the_lemma_is_hoeffdings_inequality(counts):
    """Exact tail of the mean of m fair coins: below the bound, which loses a factor of at most 20
    here."""
    for samples in range(50, counts(201, 801), 50):
        for probability in (0.01, 0.2):
            gap = convergence.generalization_gap(1, samples, probability)
            wrong = sum(
                math.comb(samples, heads)
                for heads in range(samples + 1)
                if abs(Fraction(heads, samples) - Fraction(1, 2)) >= gap
            )
            tail = Fraction(wrong, 2**samples)
            assert probability / 20 < tail <= probability


def test_the_gap_by_hand():
    """sqrt(ln(2e6 / 0.05) / 2000), against decimal arithmetic."""
    gap = convergence.generalization_gap(10**6, 1000, 0.05)
    assert gap == pytest.approx(float((Decimal(2 * 10**6 * 20).ln() / 2000).sqrt()), rel=1e-12)
    assert convergence.next_run_loss(0.25, 10**6, 1000, 0.05) == 0.25 + gap


@pytest.mark.parametrize("loss", [-0.01, 1.01, math.nan, 2.3])
def test_a_loss_outside_the_lemma_is_named(loss):
    with pytest.raises(InputError, match=r"holds for losses in \[0, 1\]"):
        convergence.next_run_loss(loss, 10, 10, 0.1)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 10, 0.1), "params"), ((10, 0, 0.1), "samples"), ((10, 10, 0), "probability"),
        ((10, 10, 1), "probability"), ((10, 10, math.nan), "probability"),
    ],
)  # fmt: skip
def test_conditions_of_the_lemma(arguments, name):
    with pytest.raises(InputError, match=f"{name} = "):
        convergence.generalization_gap(*arguments)


def test_conditions_of_the_theorem():
    most = convergence.largest_rate(0.5, 3, 2.0)
    assert most == pytest.approx(0.5 ** (10 / 3) / (6144 * 27 * 2 ** (14 / 3)))
    good = {"loss": 0.5, "goal": 0.1, "rate": most, "margin": 0.5, "layers": 3, "target_norm": 2.0}
    steps = convergence.second_run_steps(**good)
    assert steps == math.ceil(math.log(5) / (most * 0.5 ** (4 / 3)))
    assert convergence.second_run_steps(**good | {"goal": 0.5}) == 0
    for name, value in (
        ("rate", most * 1.001), ("rate", 0), ("margin", 0), ("margin", 2.1), ("layers", 0),
        ("goal", 0), ("loss", 0), ("target_norm", -1), ("loss", math.nan),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"{name} = "):
            convergence.second_run_steps(**good | {name: value})


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_gradient_descent_reaches_the_goal(layers):
    """A linear network of width 1 with target 1, balanced start: at T2 the loss is below the goal,
    and one step of the theorem in twenty is not enough."""
    start, goal = 0.95, 1e-5
    weight = start ** (1 / layers)
    loss = (start - 1) ** 2 / 2
    rate = convergence.largest_rate(start, layers, 1.0)
    steps = convergence.second_run_steps(loss, goal, rate, start, layers, 1.0)
    early = math.nan
    for step in range(steps):
        if step == steps // 20:
            early = (weight**layers - 1) ** 2 / 2
        weight -= rate * (weight**layers - 1) * weight ** (layers - 1)
    assert (weight**layers - 1) ** 2 / 2 <= goal < early
