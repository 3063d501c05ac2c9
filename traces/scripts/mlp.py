"""An FP16 multi-layer perceptron with FP32 master weights and dynamic loss scaling, on digits.

This module owns mixed precision without autocast: FP16 weights, activations and gradients, and
momentum SGD on FP32 masters, which receive the FP16 gradients divided by a power of two. It does
not use autocast, because autocast on a CPU gives the optimizer FP32 gradients. Source: Micikevicius
et al. 2018; torch.amp.GradScaler finds the scale and skips overflowed steps.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ondie.traces.scripts import common

STEPS, SEED, BATCH = 25, 3, 64
HYPER: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
#: start high and grow often, so that some steps overflow FP16 as they do in long runs
SCALE, GROWTH_INTERVAL = 2.0**16, 5


def train(
    update: common.Update | None = None, steps: int = STEPS, seed: int = SEED
) -> common.Result:
    """Train the perceptron on the digits.

    update(masters, **hyper) returns the optimizer of ``masters``, the float32 copies of the
    network's float16 parameters; the default is torch's fused momentum SGD.
    """
    with common.deterministic(seed):
        model = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 256),
            nn.ReLU(),
            nn.Linear(256, 160),
            nn.ReLU(),
            nn.Linear(160, 10),
        )
        masters = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        names = [name for name, _ in model.named_parameters()]
        model.half()
        make = update or (lambda params, **h: torch.optim.SGD(params, fused=True, **h))
        optimizer = make(masters, **HYPER)
        if not hasattr(optimizer, "param_groups"):  # which the scaler looks for gradients in
            optimizer = SimpleNamespace(param_groups=[{"params": masters}], step=optimizer.step)
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=GROWTH_INTERVAL)
        losses: list[float] = []
        for x, y in common.batches(common.digits(), BATCH, steps, seed):
            for half, master in zip(model.parameters(), masters, strict=True):
                half.data.copy_(master.data)
                half.grad = None
            loss = functional.cross_entropy(model(x.half()).float(), y)
            scaler.scale(loss).backward()
            for half, master in zip(model.parameters(), masters, strict=True):
                assert half.grad is not None
                master.grad = half.grad.float()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return common.Result(losses, common.weights(zip(names, masters, strict=True)))


if __name__ == "__main__":
    common.run(train, STEPS, SEED)
