"""GPT-2 124M at its exact shapes, trained for a few real steps on bytes of English text.

This module owns the full-size run, in which throughput rather than latency limits the update of the
weights. It does not use GPT-2's tokenizer; each byte of the text is one of the 50,257 tokens.
Source: Radford et al. 2019: 12 layers, width 768, 12 heads, 1024 positions, 124,439,808 parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ondie.traces.scripts import common
from ondie.traces.scripts.gpt import GPT, fit

STEPS, SEED, BATCH, CONTEXT = 6, 1, 2, 128
HYPER: dict[str, Any] = {"lr": 6e-4, "betas": (0.9, 0.95), "eps": 1e-8}


def train(
    update: common.Update | None = None, steps: int = STEPS, seed: int = SEED
) -> common.Result:
    """Train GPT-2 124M.

    update(groups, **hyper) returns the optimizer; the default is torch's fused AdamW.
    """
    with common.deterministic(seed):
        tokens = np.frombuffer(common.text().encode(), np.uint8).astype(np.int64)
        model = GPT(50257, 1024, width=768, layers=12, heads=12)
        return fit(model, tokens, BATCH, CONTEXT, steps, seed, update, HYPER)


if __name__ == "__main__":
    common.run(train, STEPS, SEED)
