"""Do the table of networks, and servers, say what the papers say, with a source for every value?"""

import math
import tomllib
from importlib import resources

import pytest

from ondie.emu.cluster.networks import NETWORKS, network
from ondie.emu.cluster.power import Server
from ondie.emu.config.config import load_preset
from ondie.emu.units import InputError
from ondie.traces import convnets, load

# FACTS used: Table I of STANNIS (batch host/Newport, img/s host/Newport), parameters, tuned speeds;
# HyperTune's batches and parameters; power P = 328.5 + 0.919 N W, 94 W; 441 and 539 W.
TABLE_I = {
    "mobilenetv2": (315, 25, 31.05, 3.08, 3.47e6),
    "nasnet-mobile": (325, 15, 47.31, 2.80, 5.3e6),
    "inceptionv3": (370, 16, 30.80, 1.85, 23.83e6),
    "squeezenet": (850, 50, 219.0, 16.3, 1.25e6),
}


def leaves(table, path=()):
    for key, value in table.items():
        if isinstance(value, dict) and "value" in value:
            yield (*path, key), value
        elif isinstance(value, dict):
            yield from leaves(value, (*path, key))


def test_every_value_has_a_source():
    text = resources.files("ondie.emu.cluster").joinpath("networks.toml").read_text("utf-8")
    for path, leaf in leaves(tomllib.loads(text)):
        assert leaf["source"] in ("paper", "derived", "assumed"), path
        assert leaf["ref"] and set(leaf) <= {"value", "source", "ref", "low", "high"}, path
        assert leaf["source"] != "assumed" or {"low", "high"} <= set(leaf), path
        if "low" in leaf and not isinstance(leaf["value"], str):
            assert leaf["low"] <= leaf["value"] <= leaf["high"], path


@pytest.mark.parametrize("name", TABLE_I)
def test_table_i(name):
    net = network(name)
    found = (net.host_batch, net.drive_batch, net.host_speed, net.drive_speed, net.params)
    assert found == TABLE_I[name] and net.drive == "newport"
    tuned = 32.3 if name == "mobilenetv2" else net.host_speed
    assert (net.tuned_host_speed, net.tuned_drive_speed) == (tuned, net.drive_speed)
    assert net.gradient_bytes == 4 * net.params and net.model_bytes == 12 * net.params


@pytest.mark.parametrize("name", TABLE_I)
def test_they_are_the_networks_of_the_traces(name):
    """Parameters to 1 %, as the papers round them; batch, speed and samples exactly."""
    net, trace = network(name), load(name)
    assert trace.n_params == pytest.approx(net.params, rel=0.011)
    assert trace.samples_per_step == net.host_batch
    assert trace.bytes_per_sample == net.bytes_per_sample
    step = trace.steps[0]
    assert step.samples / (step.forward_s + step.backward_s) == pytest.approx(net.tuned_host_speed)


def test_activations_are_what_the_convolutions_put_out():
    """FP32, each output and its activation; SqueezeNet's are in place. Outputs = MACs / (what one
    output takes)."""
    for name in (*TABLE_I, "shufflenet"):
        layers = getattr(convnets, name.replace("-", "_"))()
        outputs = sum(layer.macs / math.prod(layer.shape[1:]) for layer in layers)
        copies = 1 if name == "squeezenet" else 2
        expected = copies * 4 * outputs
        assert network(name).activation_bytes == pytest.approx(expected, rel=0.005), name


def test_laguna():
    net = network("mobilenetv2", "laguna")
    assert (net.host_batch, net.drive_batch, net.host_speed, net.drive_speed) == (
        180,
        15,
        33.4,
        3.34,
    )
    shuffle = network("shufflenet")
    assert (shuffle.drive, shuffle.host_batch, shuffle.drive_batch) == ("laguna", 300, 25)
    assert (net.params, network("mobilenetv2").params, shuffle.params) == (3.4e6, 3.47e6, 5.4e6)
    assert shuffle.sources["host_speed"].source == "derived"
    trace = load("shufflenet")
    assert trace.n_params == pytest.approx(shuffle.params, rel=0.011)
    assert trace.samples_per_step == shuffle.host_batch
    step = trace.steps[0]
    assert 300 / (step.forward_s + step.backward_s) == pytest.approx(shuffle.tuned_host_speed)


def of(name):
    return Server.of(load_preset(name))


def test_servers():
    """Table II at 4 and 24 Newports: 332.2 and 350.6 W; Laguna 441 and 539 W."""
    newport, laguna = of("newport"), of("laguna")
    assert newport.watts(24) == pytest.approx(328.5 + 24 * 0.919)
    assert laguna.watts(0) == 441 and laguna.watts(36) == pytest.approx(539, abs=0.5)
    assert newport.joules(32.3, 0) == pytest.approx(10.17, abs=0.005)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: network("mobilenet"), "network 'mobilenet': unknown; nearest: mobilenetv2"),
        (lambda: network("curve"), "network 'curve'"),
        (lambda: network("squeezenet", "laguna"), "SqueezeNet on 'laguna': .*; use newport"),
        (lambda: network("mobilenetv2", "x"), "use newport or laguna"),
        (lambda: network("inceptionv3").memory_limit(10**6), "they do not fit together into"),
        (lambda: of("newport").watts(-1), "-1 drives"),
        (lambda: of("newport").joules(0.0, 1), "0.0 samples/s"),
    ],
)
def test_bad_names(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_all_are_listed():
    assert set(TABLE_I) < set(NETWORKS) and "shufflenet" in NETWORKS and "curve" not in NETWORKS
