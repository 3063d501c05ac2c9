"""Owns: small training runs with torch, and replaying a trace with torch's own optimizers.
Does not: record; the tests do.
Source: own. Import after pytest.importorskip("torch").
"""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ondie.traces import Trace

torch.set_num_threads(1)  # the runs are tiny, and threads wait for each other


def freeze_objects() -> None:
    """Hide all present objects from the garbage collector, and from recordings, which look through
    the objects that it knows: a million of them belong to torch's compiler, which the first
    optimizer imports."""
    torch.optim.SGD([torch.zeros(1)])
    gc.freeze()


ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}


def net(seed: int = 0) -> nn.Module:
    """4 -> 6 -> 3 with batch normalisation: 24 + 6 + 6 + 6 + 18 + 3 = 63 parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def data(step: int, samples: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch that depends on the step alone."""
    rng = torch.Generator().manual_seed(100 + step)
    x = torch.randn(samples, 4, generator=rng)
    return x, torch.randint(0, 3, (samples,), generator=rng)


def loop(
    model: nn.Module,
    optimizer: Any,
    steps: int = 4,
    before: Callable[[int], None] = lambda step: None,
) -> list[float]:
    """Plain training; before(step) runs between backward() and step()."""
    losses = []
    for step in range(steps):
        x, y = data(step)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        before(step)
        optimizer.step()
        losses.append(loss.item())
    return losses


def replay(trace: Trace, kind: type, fused: bool, **fixed: Any) -> np.ndarray:
    """Final weights when the recorded gradients drive torch's own optimizer, group by group."""
    start = torch.from_numpy(trace.weights("initial").copy())
    pieces = [(t, nn.Parameter(start[t.offset : t.offset + t.size].clone())) for t in
              trace.trainable]  # fmt: skip
    groups = [{"params": [p for t, p in pieces if t.group == g]} for g in range(trace.groups)]
    optimizer = kind(groups, **fixed, **({"fused": True} if fused else {}))
    if kind is torch.optim.SGD and "m" in trace.source.states():
        for tensor, parameter in pieces:
            m = torch.from_numpy(trace.states()["m"])[tensor.offset : tensor.offset + tensor.size]
            optimizer.state[parameter]["momentum_buffer"] = m.clone()
    for i, step in enumerate(trace.steps):
        if step.skipped:
            continue
        gradient = torch.from_numpy(trace.gradient(i))
        for tensor, parameter in pieces:
            parameter.grad = gradient[tensor.offset : tensor.offset + tensor.size].clone()
        for group, hyper in zip(optimizer.param_groups, step.hyper, strict=True):
            values = dict(hyper)
            if "beta1" in values:
                values["betas"] = (values.pop("beta1"), values.pop("beta2"))
            group.update(values)
        optimizer.step()
    return np.concatenate([p.detach().numpy() for _, p in pieces])
