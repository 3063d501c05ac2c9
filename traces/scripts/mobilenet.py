"""A reduced MobileNetV2 on handwritten digits: Adam with coupled weight decay, batch statistics.

This module owns the network (inverted residuals, depthwise convolutions) and its training loop. It
does not choose the update; train(update) repeats the run with another update.
Source: Sandler et al. 2018, with fewer and narrower blocks for images of 8 x 8 pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ondie.traces.scripts import common

STEPS, SEED, BATCH = 22, 2, 64
HYPER: dict[str, Any] = {"lr": 3e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 4e-5}
#: expansion, channels, repeats, stride of each stage
STAGES = ((1, 8, 1, 1), (6, 16, 2, 1), (6, 24, 2, 2), (6, 32, 2, 1))


def convolution(
    cin: int, cout: int, kernel: int = 1, stride: int = 1, groups: int = 1, active: bool = True
) -> list[nn.Module]:
    """Return a convolution with batch normalization and, if ``active`` is True, ReLU6."""
    layers: list[nn.Module] = [
        nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(cout),
    ]
    return [*layers, nn.ReLU6()] if active else layers


class Residual(nn.Module):
    """A residual block: expand the channels, convolve each channel separately, project.

    The block has a shortcut if input and output have the same shape.
    """

    def __init__(self, cin: int, cout: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = cin * expand
        self.shortcut = stride == 1 and cin == cout
        self.layers = nn.Sequential(
            *(convolution(cin, wide) if expand > 1 else []),
            *convolution(wide, wide, 3, stride, groups=wide),
            *convolution(wide, cout, active=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.shortcut else self.layers(x)


class MobileNetV2(nn.Module):
    """Small MobileNetV2 that computes logits [batch, 10] from images [batch, 1, 8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        layers, channels = convolution(1, 16, 3), 16
        for expand, out, repeat, stride in STAGES:
            for i in range(repeat):
                layers.append(Residual(channels, out, stride if i == 0 else 1, expand))
                channels = out
        self.features = nn.Sequential(*layers, *convolution(channels, 128))
        self.classifier = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean(dim=(2, 3)))


def train(
    update: common.Update | None = None, steps: int = STEPS, seed: int = SEED
) -> common.Result:
    """Train the network on the digits.

    update(parameters, **hyper) returns the optimizer; the default is torch's fused Adam.
    """
    with common.deterministic(seed):
        model = MobileNetV2()
        make = update or (lambda params, **h: torch.optim.Adam(params, fused=True, **h))
        optimizer = make(model.parameters(), **HYPER)
        losses: list[float] = []
        for x, y in common.batches(common.digits(), BATCH, steps, seed):
            loss = functional.cross_entropy(model(x), y)
            losses.append(loss.item())
            if common.lost(losses):
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return common.Result(losses, common.weights(model.named_parameters()))


if __name__ == "__main__":
    common.run(train, STEPS, SEED)
