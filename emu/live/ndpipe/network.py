"""Image classification network of the live NDPipe system: a small backbone, its division at a layer
("cut") between stores and Tuner, its parameters as bytes, and the training of its head.

Owns the torch model, pretraining, and fine-tuning of the head on given features. Does not own the
computation of features (store_process.py) or the runs (tuner.py).
Source: this project. The factor by which the learning rate decreases over the runs, (N - r/2)/N, is
that of NDPipe's repository.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from ondie.emu.live.ndpipe.pictures import CLASSES, PRETRAINED, TRAINED, crops
from ondie.emu.live.ndpipe.shelf import EDGE, decoded
from ondie.emu.ndpipe.layers import Network
from ondie.emu.ndpipe.torch_layers import from_torch
from ondie.emu.units import InputError, quoted

SHAPE = (3, EDGE, EDGE)
TITLE = "small network"
RATE, MOMENTUM, BATCH = 0.02, 0.9, 32
"""Learning rate, momentum and batch size of the stochastic gradient descent that trains the head.
The pretraining uses the same batch size."""
ADAM_RATE, RISE = 1e-2, 0.3
"""Maximum learning rate of the pretraining, and the fraction of its steps in which the learning
rate rises to the maximum. ADAM_RATE, RISE and RATE were chosen with five photographs of TRAINED for
training and the other four for validation."""
TESTED = 256
"""Maximum number of crops in one batch when the network is tested."""
FORMATS = {"fp32": np.float32, "fp16": np.float16}
"""NumPy types of the features that stores send to the Tuner, by the name of the format."""


def torch() -> Any:
    """Return the Python module torch, limited to one thread. Raises InputError if torch is not
    installed."""
    try:
        import torch as module
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed; install it with: pip install 'ondie[train]'"
        ) from error
    module.set_num_threads(1)
    return module


def network(seed: int) -> Any:
    """Return the torch model of the classification network with random weights, which are
    determined by ``seed``."""
    nn = torch().nn
    torch().manual_seed(seed)
    sizes = (3, 16, 32, 64)
    stages = OrderedDict()
    for number, name in enumerate(("stem", "layer1", "layer2")):
        conv = nn.Conv2d(sizes[number], sizes[number + 1], 3, 1 if number == 0 else 2, 1)
        stages[name] = nn.Sequential(conv, nn.ReLU())
    stages["avgpool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stages["head"] = nn.Linear(sizes[-1], len(CLASSES))
    return nn.Sequential(stages)


def table(model: Any) -> Network:
    """Return the layer table (size and operations of each layer) of the torch model ``model``."""
    return from_torch(model, SHAPE, TITLE)


def check_cut(model: Any, cut: str) -> None:
    """Raise InputError unless ``cut``, the last layer that the stores compute, is a frozen layer of
    the model (every layer except the head)."""
    names = [name for name, _ in model.named_children()][:-1]
    if cut not in names:
        raise InputError(f"cut {quoted(cut)}: is not a frozen layer; use one of {', '.join(names)}")


def model_bytes(model: Any) -> np.ndarray:
    """Return all parameters of the model in the order of its layers, FP32 values as uint8[n]."""
    flat = [value.detach().numpy().reshape(-1) for value in model.parameters()]
    return np.concatenate(flat).view(np.uint8).copy()


def load_bytes(model: Any, data: np.ndarray) -> None:
    """Set all parameters of the model to ``data``, which has the format of :func:`model_bytes`.
    Raises InputError if ``data`` has another size."""
    values, at = data.copy().view(np.float32), 0
    if len(values) != sum(each.numel() for each in model.parameters()):
        raise InputError(f"model of {len(data)} bytes: must have {len(model_bytes(model))} bytes")
    with torch().no_grad():
        for each in model.parameters():
            part = values[at : at + each.numel()].reshape(tuple(each.shape))
            each.copy_(torch().from_numpy(part))
            at += each.numel()


def layers(model: Any, cut: str, inputs: np.ndarray, behind: bool = False) -> np.ndarray:
    """Return the outputs of the layers up to and including ``cut`` for ``inputs``. If ``behind`` is
    True, ``inputs`` are the features at ``cut``, and the result is the output of the frozen layers
    after ``cut``. Inputs and outputs are float32[n, ...]."""
    last = [name for name, _ in model.named_children()].index(cut) + 1
    part = model[last:-1] if behind else model[:last]
    with torch().no_grad():
        return part(torch().from_numpy(np.ascontiguousarray(inputs))).numpy()


def labels_of(model: Any, inputs: np.ndarray) -> np.ndarray:
    """Return the most probable class of each input, int64[n]."""
    with torch().no_grad():
        return model(torch().from_numpy(inputs)).argmax(1).numpy()


def pretrain(model: Any, count: int, epochs: int, seed: int) -> None:
    """Train the whole model on ``count`` crops of the first PRETRAINED classes.

    Each convolution is trained with batch normalization; without normalization, most of the
    features are 0 for every photo. The normalization is fused into the weights after the training
    (torch's ``fuse_conv_bn_eval``), so the model keeps its layers and gets no additional
    parameters.
    """
    nn = torch().nn
    photos = crops(TRAINED, count, PRETRAINED, seed + 1_000_000)
    inputs = np.stack([decoded(number, photo.jpeg) for number, photo in enumerate(photos)])
    labels = np.array([photo.label for photo in photos])
    stages = [each for _, each in model.named_children()]
    pairs = [(each[0], nn.BatchNorm2d(each[0].out_channels)) for each in stages[:-2]]
    whole = nn.Sequential(
        *(nn.Sequential(conv, norm, nn.ReLU()) for conv, norm in pairs), *stages[-2:]
    )
    descent = torch().optim.Adam(whole.parameters(), lr=ADAM_RATE)
    steps = epochs * -(-count // BATCH)
    schedule = torch().optim.lr_scheduler.LambdaLR(descent, lambda step: cycle(step, steps))
    descend(whole, inputs, labels, epochs, descent, seed, schedule)
    whole.eval()
    with torch().no_grad():
        for conv, norm in pairs:
            fused = nn.utils.fusion.fuse_conv_bn_eval(conv, norm)
            conv.weight.copy_(fused.weight)
            conv.bias.copy_(fused.bias)


def cycle(step: int, steps: int) -> float:
    """Return the learning rate in step ``step`` (from 0) of ``steps`` steps as a fraction of the
    maximum learning rate. The rate rises linearly for the fraction RISE of the steps, then falls
    towards 0 as a cosine."""
    share = (step + 1) / (steps + 1)
    if share < RISE:
        return share / RISE
    return (1 + math.cos(math.pi * (share - RISE) / (1 - RISE))) / 2


def descend(
    model: Any, inputs: np.ndarray, labels: np.ndarray, epochs: int, descent: Any, seed: int,
    schedule: Any = None,
) -> list[float]:  # fmt: skip
    """Train ``model`` with the torch optimizer ``descent``; return the mean loss of each epoch.

    ``inputs``: float32[n, ...]. ``labels``: int64[n]. ``seed``: seed of the order of the samples.
    ``schedule``: torch learning rate scheduler, advanced after each step, or None for a constant
    learning rate.
    """
    nn = torch().nn
    given, wanted = torch().from_numpy(inputs), torch().from_numpy(labels)
    rng, losses = np.random.default_rng(seed), []
    for _ in range(epochs):
        order, total = rng.permutation(len(labels)), 0.0
        for at in range(0, len(order), BATCH):
            chosen = torch().from_numpy(order[at : at + BATCH])
            descent.zero_grad()
            loss = nn.functional.cross_entropy(model(given[chosen]), wanted[chosen])
            loss.backward()
            descent.step()
            if schedule is not None:
                schedule.step()
            total += loss.item() * len(chosen)
        losses.append(total / len(labels))
    return losses


def damped(run: int, runs: int) -> float:
    """Return the learning rate of training run ``run`` (from 0) of ``runs`` runs: RATE, decreasing
    linearly with the run."""
    return RATE * (runs - run / 2) / runs


def tune(
    model: Any, cut: str, features: np.ndarray, labels: Sequence[int], run: int, runs: int,
    epochs: int, seed: int,
) -> list[float]:  # fmt: skip
    """Train the head of ``model`` on the features of training run ``run`` of ``runs``.
    ``features``: outputs of the layer ``cut``. Return the mean loss of each epoch."""
    inputs = layers(model, cut, features.astype(np.float32), behind=True)
    head, rate = model[-1], damped(run, runs)
    descent = torch().optim.SGD(head.parameters(), lr=rate, momentum=MOMENTUM)
    return descend(head, inputs, np.asarray(labels, np.int64), epochs, descent, seed + run)


def held_out(count: int, seed: int, sources: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return ``count`` test crops of the photographs ``sources``: inputs, float32[count, 3, EDGE,
    EDGE], and classes, int64[count]."""
    photos = crops(sources, count, len(CLASSES), seed + 2_000_000)
    inputs = [decoded(number, photo.jpeg) for number, photo in enumerate(photos)]
    return np.stack(inputs), np.array([photo.label for photo in photos], np.int64)


def tested(model: Any, inputs: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Return the mean loss and the accuracy of the model on the crops ``inputs`` with the classes
    ``wanted`` (see :func:`held_out`)."""
    loss, right = 0.0, 0
    with torch().no_grad():
        for at in range(0, len(wanted), TESTED):
            found = model(torch().from_numpy(inputs[at : at + TESTED]))
            label = torch().from_numpy(wanted[at : at + TESTED])
            loss += torch().nn.functional.cross_entropy(found, label, reduction="sum").item()
            right += int((found.argmax(1) == label).sum())
    return loss / len(wanted), right / len(wanted)
