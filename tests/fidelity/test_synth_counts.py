"""Synthetic traces: parameter and MAC counts against published ones, and timing by its rule."""

import time

import numpy as np
import pytest

from ondie.traces import TraceError, build, load, names

# parameters: counts of the published checkpoints; where two circulate, which is said
PARAMETERS = {
    "gpt2-124m-synth": 124_439_808,  # GPT-2 as released (Hugging Face gpt2)
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "gpt-6.7b": 6_658_404_352,  # 32 * (12 h^2 + 13 h) + (50257 + 2048) h + 2 h, h = 4096
    "gpt-10b": 10_279_047_168,  # 50 * (12 h^2 + 13 h) + (50257 + 1024) h + 2 h, h = 4096
    "gpt3-175b": 174_604_259_328,  # GPT-3's own Table D.1 says 174,600 M
    "bert-large": 335_141_888,  # bert-large-uncased with pooler, without heads
    "t5-11b": 11_307_321_344,
    "mobilenetv2": 3_504_872,  # torchvision, 1000 classes; Stannis prints 3.47 M
    "nasnet-mobile": 5_289_978,  # Keras, trainable; 5.3 M
    "inceptionv3": 23_834_568,  # torchvision without auxiliary head; Stannis prints 23.83 M
    "squeezenet": 1_248_424,  # version 1.0; Stannis prints 1.25 M (version 1.1 has 1,235,496)
    "shufflenet": 5_450_776,  # 2x, 3 groups, by hand from its paper's table; HyperTune prints 5.4 M
}
# GMAC per image as published with those weights
GMACS = {"mobilenetv2": 0.301, "nasnet-mobile": 0.564, "inceptionv3": 5.71, "squeezenet": 0.819,
         "shufflenet": 0.524}  # fmt: skip
# Stannis, Table I (MobileNetV2: tuned speed from the text): batch, images per second on the host
STANNIS = {"mobilenetv2": (315, 32.3), "nasnet-mobile": (325, 47.31), "inceptionv3": (370, 30.80),
           "squeezenet": (850, 219.0), "shufflenet": (300, 43.67)}  # fmt: skip
TRANSFORMERS = [name for name in PARAMETERS if name not in STANNIS]


def test_every_model_is_counted_here():
    assert set(names()["synthetic"]) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_exactly_the_published_ones(name):
    trace = load(name)
    assert trace.n_params == PARAMETERS[name]
    assert trace.group_ranges() == [(0, trace.n_params, 0)]


@pytest.mark.parametrize("name", GMACS)
def test_macs_of_an_image_are_the_published_ones(name):
    assert load(name).macs_forward / 1e9 == pytest.approx(GMACS[name], rel=2e-3)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_synthetic_trace_says_so_and_has_no_payload(name):
    trace = load(name)
    assert (trace.payload, trace.timing_source, trace.form) == ("none", "synthetic", "canonical")
    assert trace.attrs["synthetic"] is True
    with pytest.raises(TraceError, match=f"synthetic {name}: step 0: payload is 'none'"):
        trace.gradient(0)
    assert trace.weights("initial") is None


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_constant_has_a_source_and_every_assumed_one_a_range(name):
    attrs = load(name).attrs
    constants = [k for k in attrs if f"{k}.source" in attrs]
    assert {"samples_per_step", "bytes_per_sample", "dataset_samples"} <= set(constants)
    for key in constants:
        source, value = attrs[f"{key}.source"], attrs[key]
        assert source.split(":")[0] in ("datasheet", "paper", "derived", "assumed"), source
        if source.startswith("assumed") and not isinstance(value, str):
            assert attrs[f"{key}.low"] <= value <= attrs[f"{key}.high"]
            assert attrs[f"{key}.low"] < attrs[f"{key}.high"]


@pytest.mark.parametrize("name", STANNIS)
def test_the_stannis_networks_run_at_the_hosts_measured_speed(name):
    batch, speed = STANNIS[name]
    trace = load(name)
    step = trace.steps[0]
    assert trace.samples_per_step == step.samples == batch
    assert step.forward_s + step.backward_s == pytest.approx(batch / speed)
    assert step.backward_s == pytest.approx(2 * step.forward_s)
    assert (trace.dataset_samples, trace.private_samples) == (84_000, 12_000)
    assert trace.op == "momentum"


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_run_by_the_rule_in_their_attributes(name):
    trace = load(name)
    step, attrs = trace.steps[0], trace.attrs
    rate = attrs["accelerator_flops"] * attrs["utilisation"]
    assert step.forward_s == pytest.approx(2 * trace.macs_forward * step.samples / rate)
    assert step.backward_s == pytest.approx(2 * step.forward_s)
    # 2 FLOPs per parameter and token, embeddings looked up for free, attention on top
    if name.startswith("gpt"):
        tokens = trace.bytes_per_sample // 2
        positions = next(t.size for t in trace.tensors if t.name == "wpe.weight")
        products = trace.n_params - positions
        assert 1.0 < trace.macs_forward / (products * tokens) < 1.35


@pytest.mark.parametrize("name", PARAMETERS)
def test_gradients_become_ready_from_the_last_tensor_to_the_first(name):
    trace = load(name)
    ready = trace.steps[0].ready_s
    assert (np.diff(ready) <= 0).all()
    assert ready[0] == pytest.approx(trace.steps[0].backward_s)
    assert [t.ready_order for t in trace.tensors] == list(range(len(trace.tensors)))[::-1]


def test_readiness_follows_the_work():
    # SqueezeNet's last convolution: 512*1000*13*13 = 86.5 of 818.9 M MACs
    trace = load("squeezenet")
    share = 512 * 1000 * 13 * 13 / trace.macs_forward
    assert trace.steps[0].ready_s[-2] == pytest.approx(share * trace.steps[0].backward_s)


def test_even_the_largest_is_cheap():
    started = time.perf_counter()
    trace = build("gpt3-175b", steps=20)
    assert [s.index for s in trace.steps] == list(range(20))
    assert [s.count for s in trace.steps] == list(range(1, 21))
    assert time.perf_counter() - started < 2


def test_a_batch_of_ones_own_scales_the_time():
    one, two = build("gpt-10b", samples=1), build("gpt-10b", samples=4)
    assert two.steps[0].forward_s == pytest.approx(4 * one.steps[0].forward_s)
    assert one.sha256 != two.sha256
    assert build("gpt-10b").sha256 == load("gpt-10b").sha256


@pytest.mark.parametrize("given", [{"steps": 0}, {"samples": 0}, {"samples": -3}])
def test_counts_below_one_are_refused(given):
    with pytest.raises(TraceError, match="at least 1"):
        build("gpt-10b", **given)


def test_shapes_are_those_of_the_layers():
    shapes = {t.name: t.shape for t in load("gpt-10b").tensors}
    assert shapes["h.49.attn.c_attn.weight"] == (4096, 3 * 4096)
    assert shapes["wpe.weight"] == (1024, 4096)
    t5 = {t.name: t.shape for t in load("t5-11b").tensors}
    assert t5["decoder.block.23.layer.1.EncDecAttention.k.weight"] == (1024, 16384)
    net = {t.name: t.shape for t in load("mobilenetv2").tensors}
    assert net["features.17.depthwise.weight"] == (960, 1, 3, 3)
