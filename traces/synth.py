"""Synthetic traces of named models: exact tensor shapes, documented timing, no payload.

This module owns the table of models, with the batch size, the data set and the speed of each model.
It does not own tensor lists (architectures.py, convnets.py), the conversion of MACs to seconds
(step_times.py) or gradients.
Source: next to every constant, and in the trace's attributes: each constant KEY has KEY.source and,
    if assumed, KEY.low and KEY.high. The speeds of the four networks on the Stannis host are
    measured images per second; the MAC column of the paper's table is not used. HyperTune does not
    state a speed of ShuffleNet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ondie.traces import architectures, convnets, step_times
from ondie.traces.architectures import Use
from ondie.traces.errors import TraceError
from ondie.traces.model import Trace
from ondie.traces.records import Step, Tensor

_IMAGES = "Stannis (DAC 2020): 72,000 public and 12,000 private images"
_STANNIS = "Stannis (DAC 2020), Table I, host"
_WEBTEXT = "OpenWebText as tokenised by nanoGPT: 9,035,582,198 tokens for training"


@dataclass(frozen=True)
class Constant:
    """A number with its source; low and high give its range if the number is assumed."""

    value: int | float
    source: str
    low: int | float | None = None
    high: int | float | None = None


PEAK = Constant(312e12, "datasheet: NVIDIA A100 SXM, BF16 or FP16 tensor cores, dense, FLOP/s")
UTILISATION = Constant(
    0.44,
    "assumed: Narayanan et al. 2021 (Megatron-LM), Table 1, report 0.43 to 0.52 of an A100's "
    "peak with parameters in device memory; less when they are offloaded",
    0.25,
    0.52,
)
BACKWARD = Constant(2, "derived: one product for the input's and one for the weight's gradient")


@dataclass(frozen=True)
class Model:
    """A synthetic model: its architecture, and the settings of its training step."""

    uses: Callable[[], list[Use]]
    architecture: str
    samples: Constant
    sample_bytes: Constant
    dataset: Constant
    op: str
    hyper: dict[str, float | bool]
    gradient_dtype: str
    speed: Constant | None = None  # samples per second of a whole step; None: use MACs and PEAK
    private: Constant = Constant(0, "derived: public text")
    notes: dict[str, str] = field(default_factory=dict)


def _adamw(lr: float) -> dict[str, float | bool]:
    return {
        "lr": lr,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "maximize": False,
    }


def _gpt(
    layers: int,
    hidden: int,
    tokens: int,
    samples: int,
    lr: float,
    source: str,
    dataset: Constant | None = None,
) -> Model:
    text = dataset or Constant(9_035_582_198 // tokens, f"derived: {_WEBTEXT}")
    return Model(
        uses=lambda: architectures.gpt(layers, hidden, tokens, tokens),
        architecture=f"{layers} layers, hidden {hidden}, {tokens} positions, vocabulary 50257, "
        f"tied head; {source}",
        samples=Constant(
            samples,
            f"assumed: {samples * tokens} tokens per step on one "
            "accelerator, without gradient accumulation",
            max(samples // 4, 1),
            4 * samples,
        ),
        sample_bytes=Constant(2 * tokens, "derived: 16-bit token ids, vocabulary below 65,536"),
        dataset=text,
        op="adamw",
        hyper=_adamw(lr),
        gradient_dtype="float16",
    )


def _convnet(
    uses: Callable[[], list[Use]],
    architecture: str,
    batch: int,
    speed: Constant,
    pixels: int,
    batch_source: str = f"paper: {_STANNIS}",
) -> Model:
    return Model(
        uses=uses,
        architecture=architecture,
        samples=Constant(batch, batch_source),
        sample_bytes=Constant(
            3 * pixels * pixels,
            f"assumed: {pixels} x {pixels} RGB bytes, "
            "stored preprocessed; a JPEG of ImageNet has about 110 kB",
            12_000,
            3 * pixels * pixels,
        ),
        dataset=Constant(84_000, f"paper: {_IMAGES}"),
        private=Constant(12_000, f"paper: {_IMAGES}"),
        op="momentum",
        hyper={
            "lr": 0.045,
            "momentum": 0.9,
            "dampening": 0.0,
            "weight_decay": 4e-5,
            "maximize": False,
        },
        gradient_dtype="float32",
        speed=speed,
        notes={
            "optimizer.source": "assumed: momentum SGD, 0.9; Stannis does not name its "
            "optimizer (SqueezeNet's paper uses this one)"
        },
    )


def _speed(value: float, source: str = f"paper: {_STANNIS}, images per second") -> Constant:
    return Constant(value, source)


_GPT2 = "Radford et al. 2019"
_MODELS: dict[str, Model] = {
    "gpt2-124m-synth": _gpt(12, 768, 1024, 8, 6e-4, _GPT2),
    "gpt2-355m": _gpt(24, 1024, 1024, 8, 3e-4, _GPT2),
    "gpt2-774m": _gpt(36, 1280, 1024, 8, 2.5e-4, _GPT2),
    "gpt2-1.5b": _gpt(48, 1600, 1024, 8, 2e-4, _GPT2),
    "gpt-6.7b": _gpt(32, 4096, 2048, 4, 1.2e-4, "Brown et al. 2020, Table 2.1"),
    "gpt-10b": _gpt(
        50, 4096, 1024, 8, 1e-4, "the 10 B configuration of ZeRO-Offload (Ren et al. 2021)"
    ),
    "gpt3-175b": _gpt(
        96,
        12288,
        2048,
        4,
        6e-5,
        "Brown et al. 2020, Table 2.1",
        Constant(300_000_000_000 // 2048, "paper: Brown et al. 2020, 300 billion tokens"),
    ),
    "bert-large": Model(
        uses=lambda: architectures.bert(24, 1024, 512),
        architecture="24 layers, hidden 1024, 512 positions, vocabulary 30522, with the pooler, "
        "without pre-training heads; Devlin et al. 2018",
        samples=Constant(32, "assumed: one accelerator's share of a batch of 256", 8, 256),
        sample_bytes=Constant(2 * 512, "derived: 16-bit token ids"),
        dataset=Constant(
            3_300_000_000 // 512, "paper: Devlin et al. 2018, 3.3 billion words, counted as tokens"
        ),
        op="adamw",
        hyper={**_adamw(1e-4), "beta2": 0.999, "weight_decay": 0.01},
        gradient_dtype="float16",
    ),
    "t5-11b": Model(
        uses=lambda: architectures.t5(24, 1024, 128 * 128, 65536, 128, 512, 114),
        architecture="24 + 24 layers, hidden 1024, 128 heads of 128, feed-forward 65536, "
        "vocabulary 32128, tied head; Raffel et al. 2020",
        samples=Constant(16, "assumed: 8,192 source tokens per step on one accelerator", 4, 64),
        sample_bytes=Constant(
            2 * (512 + 114),
            "derived: 16-bit token ids; 512 source and, at 15 % "
            "corruption in spans of 3, 114 target tokens",
        ),
        dataset=Constant(1_000_000_000_000 // 512, "paper: Raffel et al. 2020, 1 trillion tokens"),
        op="adamw",
        hyper=_adamw(1e-4),
        gradient_dtype="float16",
    ),
    "mobilenetv2": _convnet(
        convnets.mobilenetv2,
        "width 1.0, 224 pixels, 1000 classes; Sandler et al. 2018",
        315,
        _speed(
            32.3,
            "paper: Stannis (DAC 2020), tuned MobileNetV2 on the host (Table I "
            "prints 31.05), images per second",
        ),
        224,
    ),
    "nasnet-mobile": _convnet(
        convnets.nasnet_mobile,
        "NASNet-A (4 @ 1056), 224 pixels, 1000 classes; Zoph et al. 2017",
        325,
        _speed(47.31),
        224,
    ),
    "inceptionv3": _convnet(
        convnets.inceptionv3,
        "299 pixels, 1000 classes, no auxiliary head; Szegedy et al. 2015",
        370,
        _speed(30.80),
        299,
    ),
    "squeezenet": _convnet(
        convnets.squeezenet,
        "version 1.0, 224 pixels, 1000 classes; Iandola et al. 2016",
        850,
        _speed(219.0),
        224,
    ),
    "shufflenet": _convnet(
        convnets.shufflenet,
        "version 1, 2x, 3 groups, 224 pixels, 1000 classes; Zhang et al. 2018",
        300,
        _speed(
            43.67,
            "derived: HyperTune's speedup of 2.82 with 36 Lagunas (fit); the speed is not "
            "published, images per second",
        ),
        224,
        "paper: HyperTune, host",
    ),
}


def models() -> list[str]:
    """Return the names of the synthetic models."""
    return list(_MODELS)


def build(name: str, steps: int = 1, samples: int | None = None) -> Trace:
    """Return the synthetic trace of a named model: `steps` equal steps of `samples` samples.

    The default of `samples` is the batch size of the model. Raises TraceError for an unknown name
    and for counts below 1; load() suggests the nearest name.
    """
    if name not in _MODELS:
        raise TraceError(f"unknown synthetic model {name!r}; known: {', '.join(_MODELS)}")
    model = _MODELS[name]
    batch = int(model.samples.value) if samples is None else samples
    if steps < 1 or batch < 1:
        raise TraceError(
            f"synthetic {name}: {steps} steps of {batch} samples: must be at least 1 each"
        )
    uses = model.uses()
    macs = architectures.macs(uses)
    constants = {
        "samples_per_step": model.samples,
        "bytes_per_sample": model.sample_bytes,
        "dataset_samples": model.dataset,
        "private_samples": model.private,
        "backward_over_forward": BACKWARD,
    }
    if model.speed is None:
        forward = step_times.seconds(macs, batch, PEAK.value * UTILISATION.value)
        constants |= {"accelerator_flops": PEAK, "utilisation": UTILISATION}
        rule = (
            "2 x MACs x samples / (accelerator_flops x utilisation), backward takes twice as long"
        )
    else:
        forward = batch / model.speed.value / (1 + BACKWARD.value)
        constants |= {"samples_per_second": model.speed}
        rule = "samples / samples_per_second for the whole step, one third of it forward"
    backward = BACKWARD.value * forward
    tensors, ready = _tensors(uses, backward)
    one = Step(
        index=0,
        loss=None,
        samples=batch,
        forward_s=forward,
        backward_s=backward,
        optimizer_s=0.0,
        ready_s=ready,
        hyper=(dict(model.hyper),),
        count=1,
    )
    attrs: dict[str, Any] = {
        "synthetic": True,
        "framework": "none",
        "model": name,
        "architecture": model.architecture,
        "optimizer": model.op,
        "device": "none" if model.speed else "NVIDIA A100 SXM, one",
        "timing_rule": rule,
        "optimizer_s": "not modelled: 0",
        **model.notes,
        **_flat(constants),
    }
    return Trace(
        name=name,
        payload="none",
        timing_source="synthetic",
        op=model.op,
        form="canonical",
        gradient_dtype=model.gradient_dtype,
        groups=1,
        tensors=tensors,
        steps=tuple(_repeat(one, i) for i in range(steps)),
        samples_per_step=batch,
        bytes_per_sample=int(model.sample_bytes.value),
        macs_forward=macs,
        macs_backward=int(BACKWARD.value) * macs,
        dataset_samples=int(model.dataset.value),
        private_samples=int(model.private.value),
        attrs=attrs,
        origin=f"synthetic {name}",
    )


def _repeat(step: Step, i: int) -> Step:
    return Step(**{**vars(step), "index": i, "count": i + 1})


def _flat(constants: dict[str, Constant]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, constant in constants.items():
        out[key] = constant.value
        out[f"{key}.source"] = constant.source
        if constant.low is not None and constant.high is not None:
            out[f"{key}.low"], out[f"{key}.high"] = constant.low, constant.high
    return out


def _tensors(uses: list[Use], backward_s: float) -> tuple[tuple[Tensor, ...], Any]:
    """Return the tensors in forward order, and the time (s) at which each gradient is ready.

    The backward pass visits the uses from last to first, in time proportional to their MACs. A
    tensor with two uses (a tied head) is ready when the pass reaches the use that is first in
    forward order.
    """
    total = architectures.macs(uses)
    done, times = 0, []
    for use in reversed(uses):
        done += use.macs
        if use.name is not None:
            times.append(backward_s * done / total)
    times.reverse()
    named = [use for use in uses if use.name is not None]
    order = {at: rank for rank, at in enumerate(reversed(range(len(named))))}
    out: list[Tensor] = []
    offset = 0
    for at, use in enumerate(named):
        size = math.prod(use.shape)
        out.append(Tensor(str(use.name), use.shape, "float32", offset, size, True, 0, order[at]))
        offset += size
    return tuple(out), np.array(times)
