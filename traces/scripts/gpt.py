"""A small character-level GPT on English text: AdamW, warm-up, clipping, two parameter groups.

This module owns the GPT (pre-norm, tied head), which gpt2.py trains at full size, and its training
loop. It does not choose the update; train(update) repeats the run with another update.
Source: Radford et al. 2019 for the architecture and its initialization.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ondie.traces.scripts import common

STEPS, SEED, BATCH, CONTEXT = 22, 1, 16, 64
HYPER: dict[str, Any] = {"lr": 2e-3, "betas": (0.9, 0.95), "eps": 1e-8}
WARM_UP = 5


class Block(nn.Module):
    """One layer of the GPT: causal self-attention and a feed-forward network of four times the
    width.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (
            part.view(n, t, self.heads, -1).transpose(1, 2)
            for part in self.attn(x).split(width, dim=2)
        )
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        mixed = scores.masked_fill(future, -math.inf).softmax(dim=-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(n, t, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        return x + self.out(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Decoder-only transformer that computes logits [batch, time, vocabulary] from tokens [batch,
    time].

    The output head shares its weights with the token embedding.
    """

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        for name, value in self.named_parameters():
            if value.ndim > 1:
                into_residual = name.endswith(("proj.weight", "out.weight"))
                nn.init.normal_(value, 0, 0.02 / (math.sqrt(2 * layers) if into_residual else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(value)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


def fit(
    model: GPT,
    tokens: Any,
    batch: int,
    context: int,
    steps: int,
    seed: int,
    update: common.Update | None,
    hyper: dict[str, Any],
) -> common.Result:
    """Train a model with warm-up and the global norm of the gradient clipped at 1.

    Returns the losses and the weights.
    """
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    make = update or (lambda params, **h: torch.optim.AdamW(params, fused=True, **h))
    optimizer = make(groups, **hyper)
    losses: list[float] = []
    data = common.Windows(tokens, context)
    for step, (x, y) in enumerate(common.batches(data, batch, steps, seed)):
        for group in groups:
            group["lr"] = hyper["lr"] * min(1.0, (step + 1) / WARM_UP)
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        losses.append(loss.item())
        if common.lost(losses):
            break
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return common.Result(losses, common.weights(model.named_parameters()))


def train(
    update: common.Update | None = None, steps: int = STEPS, seed: int = SEED
) -> common.Result:
    """Train the small GPT.

    update(groups, **hyper) returns the optimizer; the default is torch's fused AdamW.
    """
    with common.deterministic(seed):
        letters = sorted(set(common.text()))
        index = {letter: number for number, letter in enumerate(letters)}
        tokens = np.array([index[letter] for letter in common.text()], np.int64)
        model = GPT(len(letters), CONTEXT, width=48, layers=2, heads=4)
        return fit(model, tokens, BATCH, CONTEXT, steps, seed, update, HYPER)


if __name__ == "__main__":
    common.run(train, STEPS, SEED)
